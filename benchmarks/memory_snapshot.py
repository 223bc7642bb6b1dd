"""Measure ``memory_snapshot`` on small and large snapshots beside what else reads them: time, memory, who is right.

    python benchmarks/memory_snapshot.py [--samples PATH ...] [--sizes-mb 10 100 500] [--torch-python PYTHON]
                                         [--pt-snap COMMAND]

All programs get the same files, one after the other, in the same run: torch's own ``_memory_viz.py`` (``stats``, which
sums the segments up, and ``trace_plot``, which writes a page to look at; it is run as a file, so that its time holds no
import of torch) and pt-snap-cli (``import`` into its database, then ``report peak-memory``). None of these judges. A
program that is not there is left out, and a note says so. Snapshots below ``--samples`` are copied first: pt-snap can
write beside what it reads. The generated ones (``memory_files.py``) hold a leak; right is the one answer that names its
call site and nothing else. The files lie in the folder for temporary files, and are deleted after each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import RESULTS, ROOT, peak_memory, spread, table, timed, versions, write_results
from memory_files import LEAK_FUNCTION, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TARGET_S, TARGET_MB, TARGET_SIZE_MB = 30.0, 3000.0, 500
TARGET_TIMES_THE_FILE = 6.0
LIMIT_S = 900.0
_SUFFIXES = (".pickle", ".pkl")
_OURS = "torchtriage"


class _Peers(NamedTuple):
    viz: list[str] | None
    """How ``_memory_viz.py`` is run."""
    pt_snap: str | None
    versions: dict[str, str]
    notes: list[str]


def main() -> None:
    """Generate, run, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", nargs="*", type=Path, default=[], help="recorded snapshots, or their folders")
    parser.add_argument("--sizes-mb", nargs="*", type=int, default=[10, 100, TARGET_SIZE_MB])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--pt-snap", default="pt-snap", help="command of pt-snap-cli")
    parser.add_argument("--output", type=Path, default=RESULTS / "memory_snapshot.json")
    args = parser.parse_args()
    peers = _peers(args.torch_python, args.pt_snap)
    rows: list[dict[str, Any]] = []
    for file in _samples(args.samples):
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / file.name
            shutil.copyfile(file, copy)
            rows += _measured(copy, f"{file.parent.name}/{file.name}", peers, args.repeat, {"generated": False})
    for size_mb in args.sizes_mb:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "snapshot.pickle"
            n_events, n_steps = write_snapshot(path, size_mb)
            facts = {"generated": True, "n_events": n_events, "n_steps": n_steps}
            rows += _measured(path, f"generated, {size_mb} MB, {n_events} events", peers, args.repeat, facts)
    facts = {"versions": {**versions(_OURS, "pydantic"), **peers.versions}, "notes": peers.notes}
    write_results(args.output, facts, rows)
    print(table(HEADER, list(map(snapshot_cells, rows))))
    print("\n".join(peers.notes))


def _peers(torch_python: str, pt_snap: str) -> _Peers:
    found: dict[str, str] = {}
    notes: list[str] = []
    viz = _asked(
        torch_python, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    )
    script = Path(viz or "") / "cuda" / "_memory_viz.py"
    if viz is None or not script.is_file():
        notes.append(f"_memory_viz.py was left out: {torch_python} has no torch")
    else:
        found["torch"] = _asked(torch_python, "-c", "import importlib.metadata as m; print(m.version('torch'))") or "?"
    command = shutil.which(pt_snap)
    if command is None:
        notes.append("pt-snap-cli was left out: it is not installed here")
    else:
        found["pt-snap-cli"] = (_asked(command, "--version") or "?").split()[-1]
    return _Peers([torch_python, str(script)] if "torch" in found else None, command, found, notes)


def _asked(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _samples(given: Sequence[Path]) -> Iterator[Path]:
    for path in given:
        files = [path] if path.is_file() else path.rglob("*")
        yield from sorted(file for file in files if file.suffix in _SUFFIXES)


def _measured(path: Path, name: str, peers: _Peers, repeat: int, facts: dict[str, Any]) -> list[dict[str, Any]]:
    out = path.parent / "out"
    programs = [(_OURS, [sys.executable, "-m", "torchtriage", "memory-snapshot", "--json", str(path)])]
    if peers.viz is not None:
        programs.append(("_memory_viz.py stats", [*peers.viz, "stats", str(path)]))
        programs.append(("_memory_viz.py trace_plot", [*peers.viz, "trace_plot", str(path), "-o", f"{out}.html"]))
    if peers.pt_snap is not None:
        both = '"$0" import --force --no-focus -o "$2" "$1" && "$0" report peak-memory --json "$2/${1##*/}.db"'
        programs.append(("pt-snap", ["sh", "-c", both, peers.pt_snap, str(path), str(out)]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    rows: list[dict[str, Any]] = []
    for program, command in programs:
        row: dict[str, Any] = {"snapshot": name, "size_mb": round(path.stat().st_size / 1e6, 1), "program": program}
        rows.append({**row, **facts, **_run(program, command, environment, repeat, generated=facts["generated"])})
        print(" | ".join(snapshot_cells(rows[-1])), file=sys.stderr)
    return rows


def _run(
    program: str, command: list[str], environment: dict[str, str], repeat: int, *, generated: bool
) -> dict[str, Any]:
    try:
        done = timed(command, environment, repeat, LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"says": f"not done after {LIMIT_S:.0f} s", "right": None}
    memory = peak_memory(command, environment, LIMIT_S)
    says, right = _answer(done.output, done.code, generated=generated) if program == _OURS else ("", None)
    if program != _OURS and done.code:
        says = f"ends with {(done.output.strip().splitlines() or ['nothing'])[-1][:80]}"
    return {**spread(done.runs), "peak_tree_mb": round(memory.tree / 1e6, 1), "says": says, "right": right}


def _answer(output: str, code: int, *, generated: bool) -> tuple[str, bool | None]:
    """What our report says, and of a generated snapshot whether it names the leak and nothing else."""
    if code not in (0, 1, 3):
        return f"ended with {code}", False
    report = json.loads(output[output.index("{") :])
    kinds = [finding["kind"] for finding in report["findings"]]
    says = ", ".join([report["status"], *dict.fromkeys(kinds)])
    return says, kinds == ["leak"] and LEAK_FUNCTION in report["summary"] if generated else None


HEADER = ["snapshot", "MB", "program", "least s", "median s", "cpu s", "peak MB", "times the file", "says", "right",
          "disturbed runs"]  # fmt: skip


def snapshot_cells(row: dict[str, Any]) -> list[str]:
    """One row of the table."""
    right = {None: "", True: "yes", False: "**no**"}[row["right"]]
    named = [row["snapshot"], f"{row['size_mb']:.1f}", row["program"]]
    if "median_s" not in row:
        return [*named, "", "", "", "", "", row["says"], right, ""]
    times = f"{row['peak_tree_mb'] / row['size_mb']:.1f}" if row["size_mb"] >= 5 else ""
    return [
        *named, f"{row['min_s']:.2f}", f"{row['median_s']:.2f}", f"{row['cpu_s']:.2f}", f"{row['peak_tree_mb']:.0f}",
        times, row["says"], right, f"{row['disturbed_runs']} of {row['runs']}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
