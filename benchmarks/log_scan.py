"""Measure the scan of large logs: time and memory of ``triage`` on one file of 64 interleaved ranks, beside grep.

    python benchmarks/log_scan.py [--sizes-mb 100 300 1000] [--repeat 3]

grep looks for the same literals in the same file (``grep -F -f``, locale C), counts lines, and decides nothing. The
second table compares ways to look for all literals of the playbook at once, start-up included; those that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from log_files import CULPRIT, MODE, write_log
from measuring import RESULTS, ROOT, peak_memory, spread, table, timed, versions, write_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TARGET_S, TARGET_MB, TARGET_SIZE_MB = 8.0, 250.0, 1000
LIMIT_S = 600.0
_ENGINE_MB = 20


def literals() -> list[str]:
    """All texts that a scan looks for."""
    from torchtriage.knowledge.load import load_playbook
    from torchtriage.logs.scan.plans import CORE
    from torchtriage.verdict.gather import log_patterns

    return sorted({p.text for p in log_patterns(load_playbook()).patterns} | {text for text, _ in CORE})


def main() -> None:
    """Generate, run, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes-mb", nargs="+", type=int, default=[100, 300, TARGET_SIZE_MB])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the generated files")
    parser.add_argument("--output", type=Path, default=RESULTS / "log_scan.json")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools"))
    texts = literals()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        folder = Path(scratch)
        for size in args.sizes_mb:
            for wordy in (False, True) if size == min(args.sizes_mb) else (False,):
                rows += _measured(folder, size, texts, args.repeat, wordy=wordy)
                print(" | ".join(_cells(rows[-2])), file=sys.stderr)
        engines = _engines(folder, texts)
    facts = {
        "versions": versions("torchtriage", "ahocorasick_rs", "pyahocorasick", "hyperscan"),
        "n_literals": len(texts),
        "engines": engines,
    }
    write_results(args.output, facts, rows)
    print(table(["log", "program", "wall s (least)", "cpu s", "peak MB", "right"], list(map(_cells, rows))))
    print(table(["engine", "start-up ms", "MB/s"], [[e["engine"], e["startup_ms"], e["mb_per_s"]] for e in engines]))


def _measured(folder: Path, size_mb: int, texts: Sequence[str], repeat: int, *, wordy: bool) -> list[dict[str, Any]]:
    path = folder / "train.log"
    write_log(path, size_mb, wordy=wordy)
    wanted = folder / "literals.txt"
    wanted.write_text("\n".join(texts) + "\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "LC_ALL": "C"}
    programs = [
        ("torchtriage", [sys.executable, "-m", "torchtriage", "triage", "--json", str(path)]),
        ("grep -F -f", ["grep", "-c", "-F", "-f", str(wanted), str(path)]),
    ]
    rows: list[dict[str, Any]] = []
    for program, command in programs:
        done = timed(command, environment, repeat, LIMIT_S)
        memory = peak_memory(command, environment, LIMIT_S)
        right = None
        if program == "torchtriage":
            verdict = json.loads(done.output[done.output.index("{") :])
            right = verdict["failure_mode"] == MODE and verdict["culprits"]["ranks"] == [CULPRIT]
        name = f"{path.stat().st_size / 1e6:.0f} MB, 64 ranks" + (", much free text" if wordy else "")
        rows.append({
            "log": name, "size_mb": size_mb, "wordy": wordy, "program": program, **spread(done.runs),
            "peak_tree_mb": round(memory.tree / 1e6, 1), "right": right,
        })  # fmt: skip
    path.unlink()
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    wall = f"{row['median_s']:.2f} ({row['min_s']:.2f})" + ("*" if row["disturbed_runs"] else "")
    right = {None: "", True: "yes", False: "NO"}[row["right"]]
    return [row["log"], row["program"], wall, f"{row['cpu_s']:.2f}", f"{row['peak_tree_mb']:.0f}", right]


def _engines(folder: Path, texts: Sequence[str]) -> list[dict[str, str]]:
    """Time to be ready in a fresh interpreter, and MB/s on a log."""
    path = folder / "engine.log"
    write_log(path, _ENGINE_MB)
    wanted = folder / "literals.json"
    wanted.write_text(json.dumps(list(texts)), encoding="utf-8")
    rows: list[dict[str, str]] = []
    for name, module in (("ahocorasick_rs", "ahocorasick_rs"), ("pyahocorasick", "ahocorasick"),
                         ("hyperscan", "hyperscan"), ("re, one alternation", "re")):  # fmt: skip
        done = subprocess.run(
            [sys.executable, __file__, "--engine", module, str(wanted), str(path)],
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode == 0:
            ready_s, rate = json.loads(done.stdout)
            rows.append({"engine": name, "startup_ms": f"{1000 * ready_s:.1f}", "mb_per_s": f"{rate:.0f}"})
    return rows


def _run_engine(module: str, wanted: str, log: str) -> None:
    """In an interpreter of its own: load the engine, build the database, scan."""
    texts: list[bytes] = [text.encode() for text in json.loads(Path(wanted).read_text(encoding="utf-8"))]
    data = Path(log).read_bytes()
    start = time.perf_counter()
    engine = importlib.import_module(module)
    scan: Callable[[], object]
    if module == "ahocorasick_rs":
        rust = engine.BytesAhoCorasick(texts)
        scan = lambda: rust.find_matches_as_indexes(data, overlapping=True)  # noqa: E731
    elif module == "ahocorasick":
        automaton = engine.Automaton()
        for number, text in enumerate(texts):
            automaton.add_word(text.decode(), number)
        automaton.make_automaton()
        decoded = data.decode("latin-1")
        scan = lambda: list(automaton.iter(decoded))  # noqa: E731
    elif module == "hyperscan":
        database = engine.Database()
        numbers, flags = list(range(len(texts))), [0] * len(texts)
        database.compile(expressions=texts, ids=numbers, elements=len(texts), literal=True, flags=flags)
        found: list[tuple[int, int]] = []

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((number, end))

        scan = lambda: database.scan(data, match_event_handler=on_match)  # noqa: E731
    else:
        pattern = re.compile(b"|".join(map(re.escape, texts)))
        data = data[: len(data) // 10]
        scan = lambda: pattern.findall(data)  # noqa: E731
    ready = time.perf_counter()
    scan()
    took = time.perf_counter() - ready
    print(json.dumps([ready - start, len(data) / 1e6 / took]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        _run_engine(*sys.argv[2:5])
    else:
        main()
