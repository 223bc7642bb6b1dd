"""Compares reports about the sets with the truth: `python -m flight_sets.score [words of set ids]`, from `evals/`."""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from flight_sets.cases import CASES, Case
from torchtriage import analyze_flight_recorder


def wrong_parts(case: Case, report: dict[str, Any]) -> list[str]:
    """Which of kind, culprits and status the report gets wrong."""
    divergences, ranks = report["divergences"], tuple(sorted(report["culprits"]["ranks"]))
    first = divergences[0]["kind"] if divergences else ""
    told = {tuple(sorted(d["ranks"])) for d in divergences if d["kind"] == "dump_missing"}
    wrong = []
    silent = not divergences and report["status"] == "inconclusive" and "inconclusive" in case.statuses
    if not (silent or first in case.kinds or (not case.culprits[0] and not first)):
        wrong.append("kind")
    # an absent dump is told, and need not be blamed
    if ranks not in case.culprits and not (not ranks and (silent or told.intersection(case.culprits))):
        wrong.append("culprits")
    if report["status"] not in case.statuses:
        wrong.append("status")
    return wrong


def main() -> None:
    """Print the score per kind of fault, then what is wrong."""
    words = sys.argv[1:]
    scores: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if words and not any(word in case.id for word in words):
                continue
            case.build(Path(folder) / case.id)
            report = analyze_flight_recorder([f"{folder}/{case.id}"]).model_dump(mode="json")
            wrong = wrong_parts(case, report)
            score = scores[case.fault]
            for i, right in enumerate((True, *(p not in wrong for p in ("kind", "culprits", "status")), not wrong)):
                score[i] += right
            if wrong:
                first = report["divergences"][0] if report["divergences"] else {"kind": "-"}
                lines.append(
                    f"{case.id}: wrong {', '.join(wrong)}: {report['status']} {first['kind']} "
                    f"{report['culprits']['ranks'][:12]}; truth {' '.join(case.kinds) or '-'} {case.culprits[0][:12]}"
                )
    print(f"{'fault':14} sets kind culprits status all")
    for fault, (n, kind, culprits, status, every) in [
        *scores.items(),
        ("total", [sum(c) for c in zip(*scores.values(), strict=True)]),
    ]:
        print(f"{fault:14} {n:4} {kind:4} {culprits:8} {status:6} {every:3}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
