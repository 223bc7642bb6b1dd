"""Measure ``explain_symptom`` on labelled failure reports, beside keywords alone and BM25 alone.

    python benchmarks/symptoms.py [FILE.jsonl[:even|:odd] ...] [--each]

A file has one report a line: {"id", "text", "config": {}, "truth": {"failure_mode", "acceptable": [], "branch"}}; only
text and config are shown. `:even` and `:odd` take the reports whose id has such a SHA-256. Without a file the project's
own reports are taken (evals/symptoms). Writes results/symptoms.json; readme_tables.py renders it.

What is counted: of the reports with a failure mode, how often the branch, the first candidate, one of the first three
is right; of healthy ones, how often no fault is claimed; of those that decide nothing or are about something else, how
often they are answered as such; and how the confidence of an answer compares with how often such answers are right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import RESULTS, ROOT, table, versions, write_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OWN = [ROOT / "evals" / "symptoms" / f"{name}.jsonl" for name in ("develop", "measure")]
SPECIAL = {"healthy": "healthy", "insufficient-evidence": "inconclusive", "out-of-domain": "out_of_domain"}
CLAIMS = ("diagnosed", "suspected")
BANDS = ((0.0, 0.4), (0.4, 0.75), (0.75, 0.8), (0.8, 0.9), (0.9, 1.01))


@dataclass(frozen=True)
class Answer:
    """What an arm says of a report."""

    status: str
    candidates: tuple[str, ...]
    confidence: float


def main() -> None:
    """Run all arms on all files, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", default=[str(path) for path in OWN])
    parser.add_argument("--each", action="store_true", help="print every report that is answered wrongly")
    parser.add_argument("--output", type=Path, default=RESULTS / "symptoms.json")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools"))
    rows: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    for name in args.reports:
        items = _items(name)
        for arm, answer in _arms().items():
            answers = [answer(_shown(item)) for item in items]
            rows.append({"set": Path(name).name, "arm": arm, **_scored(items, answers)})
            if arm == "torchtriage":
                bands += _reliability(Path(name).name, items, answers)
                if args.each:
                    _print_wrong(items, answers)
    write_results(args.output, {"versions": versions("torchtriage"), "reliability": bands}, rows)
    print(table(HEADER, [symptom_cells(row) for row in rows]))
    print(table(BAND_HEADER, [band_cells(band) for band in bands]))


def _items(name: str) -> list[dict[str, Any]]:
    path, _, half = name.partition(":")
    with Path(path).open(encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines if line.strip()]
    items = [item for item in items if item["text"].strip()]
    if not half:
        return items
    return [i for i in items if hashlib.sha256(i["id"].encode()).digest()[0] % 2 == (half == "odd")]


def _shown(item: dict[str, Any]) -> str:
    config = ", ".join(f"{name}={value}" for name, value in item["config"].items())
    return f"{item['text']}\nconfig: {config}" if config else item["text"]


def _arms() -> dict[str, Callable[[str], Answer]]:
    from torchtriage.knowledge.load import load_playbook
    from torchtriage.knowledge.search import rank_texts, words
    from torchtriage.verdict.tool import explain_symptom

    entries = load_playbook().entries.values()
    titles = {entry.id: f"{entry.id} {entry.title}" for entry in entries}
    keywords = {entry.id: {*words(f"{entry.id} {' '.join(entry.keywords)}")} for entry in entries}

    def ours(text: str) -> Answer:
        verdict = explain_symptom(text)
        named = [c.failure_mode for c in verdict.candidates]
        return Answer(verdict.status, tuple(dict.fromkeys([verdict.failure_mode or named[0], *named] if named else [])),
                      verdict.confidence)  # fmt: skip

    def by_keywords(text: str) -> Answer:
        said = set(words(text))
        found = sorted(keywords, key=lambda name: (-len(keywords[name] & said), name))
        return Answer("suspected", tuple(found[:5]), 0.5)

    def by_titles(text: str) -> Answer:
        return Answer("suspected", tuple(rank_texts(titles, text)[:5]), 0.5)

    return {"torchtriage": ours, "keywords": by_keywords, "BM25 over titles": by_titles}


def _right(item: dict[str, Any]) -> set[str]:
    return {item["truth"]["failure_mode"], *item["truth"]["acceptable"]}


def _correct(item: dict[str, Any], answer: Answer) -> bool:
    """Whether the whole answer is right: the mode, or that there is none."""
    special = SPECIAL.get(item["truth"]["failure_mode"])
    if special is not None and answer.status == special:
        return True
    return bool(answer.candidates) and answer.candidates[0] in _right(item) and answer.status not in SPECIAL.values()


def _scored(items: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
    from torchtriage.knowledge.load import load_playbook

    branch = {entry.id: entry.branch for entry in load_playbook().entries.values()}
    count: Counter[str] = Counter()
    squares: list[float] = []
    for item, answer in zip(items, answers, strict=True):
        right, truth = _right(item), item["truth"]["failure_mode"]
        if truth in SPECIAL:
            count[f"n {truth}"] += 1
            count[truth] += answer.status == SPECIAL[truth] or _correct(item, answer)
            count[f"{truth} unclaimed"] += answer.status not in CLAIMS
            squares.append((answer.confidence - _correct(item, answer)) ** 2 if answer.status in CLAIMS else 0.0)
            continue
        first = answer.candidates[0] if answer.candidates else None
        count["n"] += 1
        count["first"] += first in right
        count["three"] += not right.isdisjoint(answer.candidates[:3])
        count["branch"] += branch.get(str(first)) in {item["truth"]["branch"], *(branch.get(r) for r in right)}
        count["claimed"] += answer.status in CLAIMS
        count["claimed right"] += answer.status in CLAIMS and first in right
        squares.append((answer.confidence - (first in right)) ** 2)
    return {**count, "brier": round(sum(squares) / max(1, len(squares)), 3)}


def _reliability(name: str, items: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """For each band of confidence how many first candidates are right, over the reports that have a failure mode."""
    rows: list[dict[str, Any]] = []
    pairs = [(a, i) for a, i in zip(answers, items, strict=True) if i["truth"]["failure_mode"] not in SPECIAL]
    for low, high in BANDS:
        found = [(a, i) for a, i in pairs if low <= a.confidence < high]
        if found:
            right = sum(bool(a.candidates) and a.candidates[0] in _right(i) for a, i in found)
            mean = sum(a.confidence for a, _ in found) / len(found)
            rows.append({"set": name, "low": low, "high": min(high, 1.0), "n": len(found), "right": right,
                         "mean": round(mean, 2)})  # fmt: skip
    return rows


def _print_wrong(items: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> None:
    for item, answer in zip(items, answers, strict=True):
        if not _correct(item, answer) and not (answer.candidates and answer.candidates[0] in _right(item)):
            print(item["id"], item["truth"]["failure_mode"], "->", answer.status, ", ".join(answer.candidates[:3]))


HEADER = ["reports", "arm", "with a mode", "branch", "first", "among three", "claimed right", "healthy: none claimed",
          "undecidable: said so", "elsewhere: said so", "Brier"]  # fmt: skip
BAND_HEADER = ["reports", "confidence", "its mean", "answers", "first candidate right"]


def symptom_cells(row: dict[str, Any]) -> list[str]:
    """One row of the table of arms."""

    def share(name: str, of: str) -> str:
        return f"{row.get(name, 0) / row[of]:.0%}" if row.get(of) else "-"

    def part(name: str, of: str) -> str:
        return f"{row.get(name, 0)} of {row[of]}" if row.get(of) else "-"

    shares = [share(name, "n") for name in ("branch", "first", "three")]
    specials = [
        part("healthy unclaimed", "n healthy"),
        part("insufficient-evidence", "n insufficient-evidence"),
        part("out-of-domain", "n out-of-domain"),
    ]
    claimed = part("claimed right", "claimed")
    return [row["set"], row["arm"], str(row.get("n", 0)), *shares, claimed, *specials, str(row["brier"])]


def band_cells(band: dict[str, Any]) -> list[str]:
    """One row of the reliability table."""
    return [band["set"], f"{band['low']:.2f} to {band['high']:.2f}", str(band["mean"]), str(band["n"]),
            f"{band['right']} ({band['right'] / band['n']:.0%})"]  # fmt: skip


if __name__ == "__main__":
    main()
