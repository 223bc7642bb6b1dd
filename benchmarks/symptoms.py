"""Measure ``explain_symptom`` on labelled failure reports: how often its first answer is the right one.

    python benchmarks/symptoms.py FILE.jsonl [--branches hang nccl_timeout crash init] [--half first|second]

FILE has one report a line: {"id", "text", "config": {}, "truth": {"failure_mode", "acceptable": [], "branch"}}; only
text and config are shown to the tool. The halves are made by a hash of the id: develop on the first, and measure the
second. Beside it stands a plain BM25 search over the entries' ids and titles.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import RESULTS, ROOT, table, versions, write_results

if TYPE_CHECKING:
    from collections.abc import Sequence

SPECIAL = {"healthy": "healthy", "insufficient-evidence": "inconclusive", "out-of-domain": "out_of_domain"}


def half_of(item_id: str) -> str:
    """Which half of the reports one belongs to."""
    return "first" if hashlib.sha256(item_id.encode()).digest()[0] % 2 == 0 else "second"


def shown(item: dict[str, Any]) -> str:
    """What the tool gets to see of a report."""
    config = ", ".join(f"{name}={value}" for name, value in item["config"].items())
    return f"{item['text']}\nconfig: {config}" if config else item["text"]


def main() -> None:
    """Run, print one line per branch, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--branches", nargs="+", default=None)
    parser.add_argument("--half", choices=["first", "second"], default=None)
    parser.add_argument("--each", action="store_true", help="print every report's answer")
    parser.add_argument("--output", type=Path, default=RESULTS / "symptoms.json")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools"))
    with args.reports.open(encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines if line.strip()]
    items = [i for i in items if args.branches is None or i["truth"]["branch"] in args.branches]
    items = [i for i in items if args.half is None or half_of(i["id"]) == args.half]
    rows = _measured(items, each=args.each)
    write_results(args.output, {"versions": versions("torchtriage"), "half": args.half or "both"}, rows)
    header = ["branch", "reports", "first answer right", "among five", "diagnosed", "suspected", "titles alone"]
    print(table(header, [symptom_cells(row) for row in rows]))


def _measured(items: Sequence[dict[str, Any]], *, each: bool) -> list[dict[str, Any]]:
    from torchtriage.knowledge.load import load_playbook
    from torchtriage.verdict.tool import explain_symptom

    titles = {entry.id: f"{entry.id} {entry.title}" for entry in load_playbook().entries.values()}
    counts: dict[str, Counter[str]] = {}
    for item in items:
        truth = item["truth"]
        right = {truth["failure_mode"], *truth["acceptable"]}
        verdict = explain_symptom(shown(item))
        candidates = [c.failure_mode for c in verdict.candidates]
        first = verdict.failure_mode or (candidates[0] if candidates else None)
        if truth["failure_mode"] in SPECIAL:
            hit = among = verdict.status == SPECIAL[truth["failure_mode"]]
        else:
            hit, among = first in right, not right.isdisjoint([first, *candidates])
        for name in (truth["branch"], "all"):
            count = counts.setdefault(name, Counter())
            count["n"] += 1
            count["first"] += hit
            count["five"] += among
            count[verdict.status] += 1
            count[f"{verdict.status} right"] += first in right
            count["titles"] += _nearest(titles, item["text"]) in right
        if each:
            print("right" if hit else "WRONG", item["id"], truth["failure_mode"], "->", verdict.status, candidates[:3])
    return [{"branch": name, **count} for name, count in sorted(counts.items(), key=lambda pair: pair[0] == "all")]


def _nearest(titles: dict[str, str], text: str) -> str | None:
    from torchtriage.knowledge.search import rank_texts

    ranked = rank_texts(titles, text)
    return ranked[0] if ranked else None


def symptom_cells(row: dict[str, Any]) -> list[str]:
    """One row of the table."""
    statuses = [f"{row.get(f'{s} right', 0)} of {row.get(s, 0)} right" for s in ("diagnosed", "suspected")]
    share = f"{row['first']} ({row['first'] / row['n']:.0%})"
    return [row["branch"], str(row["n"]), share, str(row["five"]), *statuses, str(row["titles"])]


if __name__ == "__main__":
    main()
