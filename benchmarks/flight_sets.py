"""Who names the right ranks on the generated sets of `evals/flight_sets`: torchtriage, torch's analyser, a plain rule.

    python benchmarks/flight_sets.py --torch-python /path/to/python-with-torch

A set counts when exactly the ranks at fault are named (and nobody where nobody is at fault or it cannot be told who).
Torch's analyser is counted when its first verdict or all its verdicts together do; it is imported once and runs each
set in a child, with all ranks' files under the names it wants, so that names and import time cost it nothing. The plain
rule takes pg_status alone: in each group that has no point-to-point calls, the ranks that enqueued fewer calls than the
most, else those that completed fewer.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from flight_recorder import read_torch, torch_version
from measuring import RESULTS, ROOT, table, versions, write_results

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "evals")]

from flight_sets.cases import CASES, Case  # noqa: E402
from flight_sets.score import wrong_parts  # noqa: E402

from torchtriage import analyze_flight_recorder  # noqa: E402

PREFIX = "nccl_trace_rank_"
LIMIT_S = 60
# Runs under the interpreter that has torch: a child per folder, so that what one set breaks does not reach the next.
_DRIVER = f"""
import os, signal, sys
import torch.distributed.flight_recorder.fr_trace as fr_trace
for folder in sys.stdin.read().split():
    with open(folder + ".out", "wb") as out:
        if (child := os.fork()) == 0:
            signal.alarm({LIMIT_S})
            os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            try:
                fr_trace.main([folder, "-p", "{PREFIX}", "--allow-incomplete-ranks"])
            except SystemExit:
                pass
            except BaseException:
                import traceback
                traceback.print_exc()
            os._exit(0)
        os.waitpid(child, 0)
"""


def main() -> None:
    """Build the sets, ask all three, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--output", type=Path, default=RESULTS / "flight_sets.json")
    args = parser.parse_args()
    peer = torch_version(args.torch_python)
    names = ["torchtriage", "pg_status rule", *(["torchfrtrace"] if peer is not None else [])]
    right: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(["sets", "whole", *names], 0))
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            case.build(Path(scratch) / case.id)
        said = _peer(args.torch_python, Path(scratch)) if peer is not None else {}
        for case in CASES:
            row = right[case.fault]
            report = analyze_flight_recorder([f"{scratch}/{case.id}"]).model_dump(mode="json")
            row["sets"] += 1
            row["whole"] += not wrong_parts(case, report)
            row["torchtriage"] += "culprits" not in wrong_parts(case, report)
            row["pg_status rule"] += _is_right(case, _by_status(Path(scratch) / case.id))
            if peer is not None:
                nobody = not case.culprits[0]
                row["torchfrtrace"] += any(
                    read_torch(said[case.id], list(ranks), "healthy" if nobody else "")[1] for ranks in case.culprits
                )
    rows: list[dict[str, Any]] = [{"fault": fault, **row} for fault, row in right.items()]
    rows.append({"fault": "all", **{key: sum(row[key] for row in right.values()) for key in ("sets", "whole", *names)}})
    installed = versions("torchtriage", "pydantic")
    notes = [] if peer is not None else [f"torchfrtrace was left out: {args.torch_python} cannot import it"]
    write_results(args.output, {"versions": {**installed, **({"torch": peer} if peer else {})}, "notes": notes}, rows)
    print(table(["fault", "sets", "all right", *names], [[str(v) for v in row.values()] for row in rows]))
    print("\n".join(notes))


def _is_right(case: Case, named: list[int]) -> bool:
    return tuple(named) in case.culprits or (not named and not case.culprits[0])


def _peer(python: str, scratch: Path) -> dict[str, str]:
    """What torch's analyser prints for each set."""
    copies: dict[str, Path] = {}
    for case in CASES:
        copies[case.id] = scratch / f"peer-{case.id}"
        copies[case.id].mkdir()
        for path in (scratch / case.id).rglob("*"):
            digits = "".join(c for c in path.name.split(".")[0].rpartition("_")[2] if c.isdigit())
            if path.is_file() and digits:
                shutil.copy2(path, copies[case.id] / f"{PREFIX}{int(digits)}")
    folders = "\n".join(map(str, copies.values()))
    subprocess.run([python, "-W", "ignore", "-c", _DRIVER], input=folders, text=True, check=True, timeout=3600)
    return {name: Path(f"{folder}.out").read_text(errors="replace") for name, folder in copies.items()}


def _by_status(folder: Path) -> list[int]:
    """The plain rule on the files that pickle or json can load; they are of our own making."""
    counts: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for path in sorted(folder.rglob("*")):
        try:
            content = path.read_bytes()
            view = json.loads(content) if content[:1] in b"{[" else pickle.loads(content)
            digits = "".join(c for c in path.name.split(".")[0].rpartition("_")[2] if c.isdigit())
            by_uid = zip(sorted(view["pg_status"], key=int), view["pg_config"].values(), strict=False)
            for uid, group in by_uid:
                status = view["pg_status"][uid]
                enqueued, completed = int(status["last_enqueued_collective"]), int(status["last_completed_collective"])
                counts[group["name"] + group["ranks"]][int(digits)] = (enqueued, completed)
            for entry in view.get("entries", []):
                if entry.get("is_p2p"):
                    counts[entry["process_group"][0]] = {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, pickle.PickleError):
            continue
    for position in (0, 1):
        behind: set[int] = set()
        for ranks in counts.values():
            most = max((c[position] for c in ranks.values()), default=0)
            behind |= {rank for rank, c in ranks.items() if c[position] < most}
        if behind:
            return sorted(behind)
    return []


if __name__ == "__main__":
    main()
