"""Run faults on real GPUs, look at each while it hangs and before any watchdog fires, and keep the bundles.

    python evals/faults/drill/record.py OUT.tar.zst [FAULT ...]

Several jobs share the GPUs, each with its own NCCL RAS port and flight-recorder files; each is collected by its pids,
as `torchtriage collect --pid` does, and judged at once. Of a fault that ends by itself its logs are kept. Needs as many
GPUs as ranks (two, unless WORLD_SIZE says otherwise); BACKEND=gloo tries it without any.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tools")]

from faults.drill.launch import Fault, load_faults, started  # noqa: E402

from torchtriage import collect, triage  # noqa: E402
from torchtriage.bundle.pack import pack  # noqa: E402

BACKEND = os.environ.get("BACKEND", "nccl")
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "2"))
AT_ONCE = int(os.environ.get("AT_ONCE", "4"))
FIRST_PORT = 28100


def record(fault: Fault, bundles: Path) -> dict[str, object]:
    """What came of one fault."""
    began = time.monotonic()
    bundle = bundles / fault.name
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        settings = {
            "NCCL_RAS_ADDR": f"127.0.0.1:{FIRST_PORT + fault.number}",
            "TORCH_FR_DUMP_TEMP_FILE": f"{scratch}/nccl_trace_rank_",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{scratch}/nccl_trace_rank_",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{scratch}/ask_",
            "NCCL_DEBUG": "WARN",
        }
        row: dict[str, object] = {
            "fault": fault.name, "failure_mode": fault.failure_mode, "acceptable": list(fault.acceptable),
            "shows": fault.shows,
        }  # fmt: skip
        try:
            with started(
                fault, folder, world_size=WORLD_SIZE, backend=BACKEND, settings=settings, timeout_s=150
            ) as drill:
                row["culprits"] = drill.culprits
                row["reached_s"] = round(time.monotonic() - began, 1)
                if fault.shows in ("fails", "finishes"):
                    shutil.copytree(drill.logs, bundle / "logs")
                    shutil.copy(drill.console, bundle)
                else:
                    looked = time.monotonic()
                    report = collect(pids=list(drill.find_ranks().values()), output=str(bundle))
                    row["collect_s"] = round(time.monotonic() - looked, 1)
                    row["collected"] = report.collected
                    row["collect_gaps"] = report.gaps
            verdict = triage([str(bundle)])
            row["said"] = {
                "status": verdict.status, "failure_mode": verdict.failure_mode, "confidence": verdict.confidence,
                "ranks": verdict.culprits.ranks, "summary": verdict.summary,
            }  # fmt: skip
            row["right"] = verdict.failure_mode in (fault.failure_mode, *fault.acceptable) and (
                verdict.culprits.ranks == drill.culprits or not verdict.culprits.ranks
            )
        except Exception as error:  # one fault that does not come off must not lose the others
            row["error"] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Record all faults that were asked for."""
    target, names = Path(sys.argv[1]), sys.argv[2:]
    chosen = [fault for fault in load_faults() if not names or fault.name in names]
    with tempfile.TemporaryDirectory() as scratch:
        bundles = Path(scratch) / "drill"
        bundles.mkdir()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = list(pool.map(lambda fault: record(fault, bundles), chosen))
        (bundles / "results.json").write_text(json.dumps(rows, indent=1))
        pack(bundles, target)


if __name__ == "__main__":
    main()
