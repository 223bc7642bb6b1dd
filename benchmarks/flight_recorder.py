"""Measure ``analyze_flight_recorder`` on generated dumps beside torch's own analyser: time, memory, and who is right.

    python benchmarks/flight_recorder.py [--torch-python /path/to/python] [--sets 64x2000-world ...] [--repeat 5]

Both programs get the same files, one after the other, in the same run. A set is RANKSxENTRIES-LAYOUT[-VARIANT]; layouts
and variants are those of ``flight_dumps.py``. torch is optional: without it, its rows are left out and a note says so.
Its analyser takes a quarter of an hour and 15 GB for 4,096 ranks, so that is measured only with ``--slow-peers``. The
files of 4,096 ranks are 1.7 GB, in the folder for temporary files, and are deleted after each set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flight_dumps import PREFIX, VARIANTS, DumpSet, write_dumps
from measuring import RESULTS, ROOT, peak_memory, spread, table, timed, versions, write_results

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS_S = {64: 1.2, 512: 7.0, 4096: 80.0}
"""Wall seconds for 2,000 calls per rank on two cores, by ranks."""
TARGET_MB = 250.0
"""Memory of the largest process, whatever the number of ranks."""
COST_SETS = [f"{n_ranks}x2000-{layout}" for n_ranks in TARGETS_S for layout in ("world", "3d")]
CORRECTNESS_SETS = [
    "8x200-world-missing_last", "8x200-world-wrong_size", "8x200-world-wrong_size_first", "8x200-world-wrong_type",
    "8x200-world-skipped_one", "8x200-two-order_swap", "8x200-world-all_joined", "8x200-world-truncated_file",
    "8x200-world-json_file", "8x200-world-healthy",
]  # fmt: skip
LIMIT_S = 2400.0
MANY_ENTRIES = 500_000
"""From here on torchfrtrace runs once; from eight times as many on only when asked to, and torchtriage thrice."""
_SET = re.compile(r"(\d+)x(\d+)-(world|3d|two)(?:-(\w+))?")
_MISSING = re.compile(r"missing ranks: \{([\d, ]*)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_VERSION_CODE = "import torch, torch.distributed.flight_recorder.fr_trace; print(torch.__version__)"


def parsed_set(text: str) -> DumpSet:
    """A set from its short name.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    found = _SET.fullmatch(text)
    if found is None or (found[4] or "missing_last") not in VARIANTS:
        raise argparse.ArgumentTypeError(f"{text}: not RANKSxENTRIES-world|3d|two[-{'|'.join(VARIANTS)}]")
    return DumpSet(int(found[1]), int(found[2]), found[3], found[4] or "missing_last")


def read_ours(output: str, truth: list[int], variant: str) -> tuple[str, bool]:
    """What torchtriage says, in short, and whether it is right."""
    report = json.loads(output[output.index("{") :])
    named: list[int] = report["culprits"]["ranks"]
    kinds = [divergence["kind"] for divergence in report["divergences"]]
    if variant == "healthy":
        right = report["status"] == "in_step"
    elif variant == "all_joined":
        right = not named and kinds == ["all_joined_none_finished"]
    else:
        right = named == truth
    said = f"{kinds[0]}, " if kinds else f"{report['status']}, "
    return said + (f"names {_ranks(named)}" if named else "names nobody"), right


def read_torch(output: str, truth: list[int], variant: str) -> tuple[str, bool]:
    """What torchfrtrace says; right when its first verdict, or all of them together, name the truth and no more."""
    if "Traceback (most recent call last)" in output:
        return f"ends with {output.strip().splitlines()[-1][:80]}", False
    verdicts: list[list[int]] = []
    for line in output.splitlines():
        missing = _MISSING.search(line)
        ranks = [int(n) for n in missing[1].split(",") if n.strip()] if missing else []
        ranks += map(int, _CULPRIT.findall(line))
        if ranks:
            verdicts.append(sorted(set(ranks)))
    union = sorted({rank for ranks in verdicts for rank in ranks})
    if variant in ("healthy", "all_joined"):
        # It has no words for "all joined and nobody finished", and silence is what it says of a healthy job.
        right = variant == "healthy" and not union
    else:
        right = truth in (union, verdicts[0] if verdicts else [])
    return (f"names {_ranks(union)}" if union else "names nobody"), right


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def torch_version(python: str) -> str | None:
    """torch's version under that interpreter; None when it or its analyser cannot be imported."""
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", _VERSION_CODE], capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except OSError:
        return None
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def main() -> None:
    """Generate, run, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", type=parsed_set, default=None, help="default: cost, then correctness")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each program; torchfrtrace at scale has one")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--no-peers", action="store_true", help="measure torchtriage alone")
    parser.add_argument("--slow-peers", action="store_true", help="run torchfrtrace on 4096 ranks too")
    parser.add_argument("--output", type=Path, default=RESULTS / "flight_recorder.json")
    args = parser.parse_args()
    version = None if args.no_peers else torch_version(args.torch_python)
    notes: list[str] = []
    if version is None and not args.no_peers:
        notes.append(f"torchfrtrace was left out: {args.torch_python} cannot import torch's analyser")
    rows: list[dict[str, Any]] = []
    for wanted in args.sets or list(map(parsed_set, [*COST_SETS, *CORRECTNESS_SETS])):
        peer = None if version is None or (_is_huge(wanted) and not args.slow_peers) else args.torch_python
        rows += _measured(wanted, args.repeat, peer)
        print("\n".join(" | ".join(_cells(row)) for row in rows[-1 if peer is None else -2 :]), file=sys.stderr)
    installed = versions("torchtriage", "pydantic")
    facts = {"versions": {**installed, **({"torch": version} if version else {})}, "notes": notes}
    write_results(args.output, facts, rows)
    header = ["set", "MB", "program", "wall s (least)", "cpu s", "peak MB (all, parent, worker)", "says", "right"]
    print(table(header, list(map(_cells, rows))))
    print("\n".join([*notes, *_target_lines(rows)]))


def _is_huge(wanted: DumpSet) -> bool:
    return wanted.n_ranks * wanted.n_entries >= 8 * MANY_ENTRIES


def _measured(wanted: DumpSet, repeat: int, torch_python: str | None) -> list[dict[str, Any]]:
    large = wanted.n_ranks * wanted.n_entries > 10_000
    name = f"{wanted.n_ranks}x{wanted.n_entries}-{wanted.layout}"
    programs: list[tuple[str, list[str], Callable[[str, list[int], str], tuple[str, bool]], int]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        truth, size = write_dumps(folder, wanted)
        ours = [sys.executable, "-m", "torchtriage", "analyze-flight-recorder", "--json", str(folder)]
        times = min(repeat, 3) if _is_huge(wanted) else repeat
        programs.append(("torchtriage", ours, read_ours, times if large else 1))
        if torch_python is not None:
            module = "torch.distributed.flight_recorder.fr_trace"
            theirs = [torch_python, "-W", "ignore", "-m", module, str(folder), "-p", PREFIX]
            often = min(repeat, 3) if wanted.n_ranks * wanted.n_entries < MANY_ENTRIES else 1
            programs.append(("torchfrtrace", theirs, read_torch, often if large else 1))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
        for program, command, read, times in programs:
            done = timed(command, environment, times, LIMIT_S)
            memory = peak_memory(command, environment, LIMIT_S)
            says, right = read(done.output, truth, wanted.variant)
            rows.append({
                "set": name, "variant": wanted.variant, "size_mb": round(size / 1e6, 1), "program": program,
                **spread(done.runs), "peak_tree_mb": round(memory.tree / 1e6, 1),
                "peak_parent_mb": round(memory.parent / 1e6, 1),
                "peak_child_mb": round(memory.largest_child / 1e6, 1),
                "truth": truth, "says": says, "right": right,
            })  # fmt: skip
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    wall = f"{row['median_s']:.2f} ({row['min_s']:.2f})" + ("*" if row["disturbed_runs"] else "")
    memory = f"{row['peak_tree_mb']:.0f}, {row['peak_parent_mb']:.0f}, {row['peak_child_mb']:.0f}"
    right = "yes" if row["right"] else "NO"
    name = f"{row['set']} {row['variant']}"
    return [name, f"{row['size_mb']:.1f}", row["program"], wall, f"{row['cpu_s']:.2f}", memory, row["says"], right]


def _target_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["* some runs were disturbed by other programs: their wall time is too long, their cpu time less so"]
    for row in rows:
        if row["program"] == "torchtriage" and row["set"] in COST_SETS and row["variant"] == "missing_last":
            wall = TARGETS_S[int(row["set"].partition("x")[0])]
            met = row["median_s"] < wall and largest_process_mb(row) < TARGET_MB
            lines.append(f"target of {row['set']}, {wall} s and {TARGET_MB:.0f} MB: {'met' if met else 'NOT met'}")
    return lines


def largest_process_mb(row: dict[str, Any]) -> float:
    """Peak memory of the program's largest process."""
    return max(row["peak_parent_mb"], row["peak_child_mb"])


if __name__ == "__main__":
    main()
