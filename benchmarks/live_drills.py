"""Judge the recorded live faults by the rules of today, and write the table into RESULTS.md.

    python benchmarks/live_drills.py            # judges and rewrites the marked part of RESULTS.md
    python benchmarks/live_drills.py --check    # only says whether it would change

The cases are those of evals/cases that evals/faults/drill/record.py made: a bundle of each fault as ``torchtriage
collect`` left it on two GPUs while the job hung, before any watchdog fired, or the logs of a job that had ended.
"""

import argparse
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools")]

from torchtriage.artefacts.inputs import open_inputs  # noqa: E402
from torchtriage.evals.case import load_case  # noqa: E402
from torchtriage.evals.score import score  # noqa: E402
from torchtriage.verdict.tool import triage  # noqa: E402
from torchtriage.wording import rank_words  # noqa: E402

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
BEGIN = "<!-- judged now: rendered by live_drills.py -->"
END = "<!-- end of judged now -->"
RECORDER = "python evals/faults/drill/record.py "


@dataclass(frozen=True)
class Row:
    """One fault, its truth and what is said of it."""

    case: str
    fault: str
    truth: str
    answer: str
    outcome: str


def judge(folder: Path) -> Row | None:
    """The row of a case; None when it is from elsewhere."""
    case = load_case(folder)
    command = case.provenance.command or ""
    if not command.startswith(RECORDER):
        return None
    inputs_folder = str(folder / case.inputs)
    verdict = triage([inputs_folder])
    with open_inputs([inputs_folder]) as inputs:
        result = score(folder.name, case, verdict, inputs)
    right = result.mode_right and result.culprits_right and result.evidence_grounded
    outcome = "right" if right else "left open" if result.abstained else "**wrong**"
    answer = named(verdict.failure_mode or verdict.status, verdict.culprits.ranks)
    if verdict.failure_mode:
        answer += f" ({verdict.status}, {verdict.confidence:.2f})"
    truth = named(case.expected.failure_mode, case.expected.culprits.ranks)
    return Row(folder.name, command.split()[-1], truth, answer, outcome)


def named(mode: str, ranks: list[int]) -> str:
    return f"{mode}, {rank_words(ranks)}" if ranks else mode


def table(rows: list[Row]) -> str:
    counts = {what: sum(row.outcome.strip("*") == what for row in rows) for what in ("right", "left open", "wrong")}
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    lines = [
        f"{told} of {len(rows)}.",
        "",
        "| fault | case | truth | verdict | |",
        "|---|---|---|---|---|",
        *(f"| {row.fault} | {row.case} | {row.truth} | {row.answer} | {row.outcome} |" for row in rows),
    ]
    return "\n".join(lines)


def main() -> int:
    """Judge all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when the table would change")
    options = parser.parse_args()
    judged = [judge(folder) for folder in sorted((ROOT / "evals" / "cases").iterdir())]
    rendered = table(sorted((row for row in judged if row is not None), key=lambda row: row.fault))
    print(rendered)
    page = RESULTS.read_text(encoding="utf-8")
    before, found, rest = page.partition(BEGIN)
    old, ended, after = rest.partition(END)
    if not (found and ended):
        print(f"{RESULTS} lacks the marks {BEGIN} and {END}", file=sys.stderr)
        return 2
    if options.check:
        return 0 if rendered in old else 1
    today = datetime.now(timezone.utc).date()
    RESULTS.write_text(f"{before}{BEGIN}\n\n{today}: {rendered}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
