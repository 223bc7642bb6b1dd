"""Measure ``analyze_flight_recorder`` on generated dumps: wall time and peak memory, beside torch's own analyser.

    python benchmarks/flight_scale.py [--ranks 64] [--entries 2000] [--layout world|3d] [--variant missing_last|...]

The generator writes what torch's writer writes: schema 2.10 pickles of protocol 2, 8 frames per entry shared between
entries. torchfrtrace (torch.distributed.flight_recorder) is run on the same files only when torch is importable.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

VARIANTS = ("healthy", "missing_last", "skipped_one", "wrong_size", "wrong_type", "all_joined")
ROOT = Path(__file__).resolve().parents[1]
BASE_NS = 1_790_000_000_000_000_000
OPS = (("all_reduce", 65536), ("_all_gather_base", 4096), ("_reduce_scatter_base", 8192), ("all_reduce", 262144))


def frames_of(op: int) -> list[dict[str, Any]]:
    """Eight frames, innermost first: two of torch, one of the user's loop, five above it."""
    library = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    return [
        {"name": OPS[op][0], "filename": library, "line": 3000 + op},
        {"name": "wrapper", "filename": library.replace("distributed_c10d", "c10d_logger"), "line": 83},
        {"name": "train_step", "filename": "/workspace/train.py", "line": 50 + op},
        *({"name": f"level_{k}", "filename": "/workspace/train.py", "line": 100 + k} for k in range(5)),
    ]  # fmt: skip


def layout_groups(n_ranks: int, layout: str) -> list[tuple[str, str, list[int]]]:
    """(name, description, ranks): the world alone, or with tensor-parallel rows of 8 and data-parallel columns."""
    world = [("0", "default_pg", list(range(n_ranks)))]
    if layout == "world":
        return world
    tp = [list(range(k, min(k + 8, n_ranks))) for k in range(0, n_ranks, 8)]
    dp = [list(range(k, n_ranks, 8)) for k in range(min(8, n_ranks))]
    rows = [*(("TENSOR_PARALLEL", r) for r in tp), *(("DATA_PARALLEL", r) for r in dp)]
    return world + [(str(number), desc, ranks) for number, (desc, ranks) in enumerate(rows, start=1)]


def dump_of(rank: int, n_ranks: int, n_entries: int, layout: str, variant: str, odd_rank: int) -> dict[str, Any]:
    """One rank's dump; all but the last call are completed unless the variant says otherwise."""
    groups = [g for g in layout_groups(n_ranks, layout) if rank in g[2]]
    frames = [frames_of(op) for op in range(len(OPS))]
    counters = dict.fromkeys((g[0] for g in groups), 0)
    odd = rank == odd_rank
    entries: list[dict[str, Any]] = []
    planned = [(groups[(i // len(OPS)) % len(groups)], i % len(OPS)) for i in range(n_entries)]
    skipped_at = n_entries - 2
    for i, (group, op) in enumerate(planned):
        if odd and (
            (variant == "missing_last" and i == n_entries - 1) or (variant == "skipped_one" and i == skipped_at)
        ):
            continue
        counters[group[0]] += 1
        seq = counters[group[0]]
        name, size = OPS[op]
        last = i >= (skipped_at if variant == "skipped_one" else n_entries - 1)
        if odd and last and variant == "wrong_size":
            size += 128
        if odd and last and variant == "wrong_type":
            name = "broadcast"
        done = variant == "healthy" or not last
        created = BASE_NS + i * 1_000_000 + rank
        entries.append({
            "frames": frames[op], "record_id": len(entries), "pg_id": groups.index(group),
            "process_group": (group[0], group[1]), "thread_name": "python3", "thread_id": "140241203544384",
            "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": f"nccl:{name}",
            "time_created_ns": created, "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": [[size]],
            "output_dtypes": ["Float"], "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": created + 500 if done else None,
            "retired": done, "timeout_ms": 600000, "is_p2p": False,
        })  # fmt: skip
    waiting = {e["process_group"][0] for e in entries if not e["retired"]}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(r)} for n, d, r in groups},
        "pg_status": {
            str(k): {
                "last_enqueued_collective": counters[g[0]],
                "last_started_collective": -1,
                "last_completed_collective": counters[g[0]] - (g[0] in waiting),
            }
            for k, g in enumerate(groups)
        },
        "entries": entries,
    }


def write_dumps(folder: Path, n_ranks: int, n_entries: int, layout: str, variant: str, odd_rank: int) -> int:
    """Write one file per rank; return their size in bytes."""
    total = 0
    for rank in range(n_ranks):
        data = pickle.dumps(dump_of(rank, n_ranks, n_entries, layout, variant, odd_rank), protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        total += len(data)
    return total


def tree_rss_bytes(root: int) -> int:
    """Resident memory of a process and all its descendants, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        grew = bool(more)
        family |= more
    total = 0
    for pid in family:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
    return total


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, int, str]:
    """Run a command; (wall seconds, peak bytes over the whole process tree, its output)."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    peak = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max(peak, tree_rss_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    wall = time.perf_counter() - start
    stop.set()
    watcher.join()
    return wall, peak, output


_OURS = (
    "import sys, json; from torchtriage import analyze_flight_recorder as f; r = f(sys.argv[1:]);"
    "print(json.dumps({'status': r.status, 'culprits': r.culprits.ranks, 'summary': r.summary}))"
)


def main() -> None:
    """Generate, run, print one line of JSON per program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--layout", choices=("world", "3d"), default="world")
    parser.add_argument("--variant", choices=VARIANTS, default="missing_last")
    parser.add_argument("--odd-rank", type=int, default=None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=None, help="write the dumps here and keep them")
    args = parser.parse_args()
    odd_rank = args.odd_rank if args.odd_rank is not None else min(13, args.ranks - 1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        size = write_dumps(folder, args.ranks, args.entries, args.layout, args.variant, odd_rank)
        setup = {"ranks": args.ranks, "entries": args.entries, "layout": args.layout, "variant": args.variant}
        print(json.dumps({**setup, "odd_rank": odd_rank, "size_mb": round(size / 1e6, 1)}))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
        programs = {"torchtriage": [sys.executable, "-c", _OURS, str(folder)]}
        if importlib.util.find_spec("torch") is not None:
            trace = [
                sys.executable,
                "-m",
                "torch.distributed.flight_recorder.fr_trace",
                str(folder),
                "-p",
                "nccl_trace_rank_",
            ]
            programs["torchfrtrace"] = trace
        for name, command in programs.items():
            runs = [measure(command, environment) for _ in range(args.repeat)]
            wall, _, output = min(runs, key=lambda run: run[0])
            row = {"program": name, "wall_s": round(wall, 2), "peak_rss_mb": round(max(r[1] for r in runs) / 1e6, 1)}
            print(json.dumps({**row, "says": output.strip().splitlines()[-1][:300] if output.strip() else ""}))


if __name__ == "__main__":
    main()
