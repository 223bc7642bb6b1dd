"""Where the job runs, how large things are, and what of its memory is recorded.

Without a GPU everything is small and nothing is recorded: then the programs are only tried.
"""

import contextlib
import inspect
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ON_GPU = os.environ.get("DEVICE", "cuda") != "cpu"
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
HERE = Path(os.environ.get("RUN_DIR", "."))
CANNOT = 77
"""Exit status: what was asked for is not in this torch or on this machine."""


@dataclass(frozen=True)
class Shape:
    """Of a model and its batches."""

    width: int = 512
    heads: int = 8
    layers: int = 2
    vocabulary: int = 8192
    rows: int = 8
    length: int = 256
    attention: str = "fused"
    recompute: bool = False


def shape(**changes):
    """The usual shape with changes, or one that a CPU can do."""
    asked = Shape(**changes)
    if ON_GPU:
        return asked
    return replace(
        asked, width=64, heads=4, layers=min(2, asked.layers), vocabulary=256, rows=min(4, asked.rows), length=32
    )


def floats(size_mib):
    """How many make that many MiB; as many KiB on a CPU."""
    return int(size_mib * (1 << 20 if ON_GPU else 1 << 10)) // 4


class Memory:
    """The recorded history of this process, and a few numbers that the allocator counts by itself."""

    def __init__(self):
        self.after_step = []
        self.dumped = False

    def start(self):
        if not ON_GPU:
            return
        torch.cuda.set_device(DEVICE)
        cap_gib = float(os.environ.get("MEMORY_CAP_GIB", "0"))
        if cap_gib:
            total = torch.cuda.get_device_properties(DEVICE).total_memory
            torch.cuda.set_per_process_memory_fraction(cap_gib * (1 << 30) / total, DEVICE)
        if os.environ.get("HISTORY", "all") != "off":
            self.record(**json.loads(os.environ.get("HISTORY_OPTIONS", "{}")))
        if os.environ.get("DUMP_BY") == "observer":
            torch._C._cuda_attach_out_of_memory_observer(lambda *_: self.dump())

    def record(self, **options):
        known = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        if unknown := [name for name in options if name not in known]:
            cannot(f"torch {torch.__version__} cannot record {', '.join(unknown)}")
        torch.cuda.memory._record_memory_history(
            os.environ.get("HISTORY", "all"),
            stacks=os.environ.get("STACKS", "python"),
            max_entries=int(os.environ.get("MAX_ENTRIES", "20000")),
            **options,
        )

    def note(self):
        """Count what is allocated now that a step is done."""
        if ON_GPU:
            self.after_step.append(torch.cuda.memory_allocated(DEVICE))

    def dump(self, moment=""):
        """Write a snapshot: of a moment that has a name, or the one of the end."""
        if not ON_GPU or (self.dumped and not moment):
            return
        # The error that an observer has seen is caught later too.
        self.dumped = self.dumped or not moment
        path = HERE / f"snapshot-rank{RANK:02d}{moment and '-'}{moment}.pickle"
        dump = torch.cuda.memory._dump_snapshot
        wanted = {"augment_with_fx_traces": True} if os.environ.get("FX_TRACES") else {}
        dump(str(path), **{k: v for k, v in wanted.items() if k in inspect.signature(dump).parameters})

    def measure(self):
        """What is known without the snapshot, for the truth."""
        if not ON_GPU or "MEASURED" not in os.environ:
            return
        total = torch.cuda.get_device_properties(DEVICE).total_memory
        told = {
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(DEVICE),
            "total_bytes": total,
            "allocated_after_step_bytes": self.after_step,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(DEVICE),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(DEVICE),
            "allocated_bytes": torch.cuda.memory_allocated(DEVICE),
            "reserved_bytes": torch.cuda.memory_reserved(DEVICE),
        }
        Path(os.environ["MEASURED"]).write_text(json.dumps(told), encoding="utf-8")


MEMORY = Memory()


@contextlib.contextmanager
def recorded():
    """Record what happens, and when memory runs out keep a snapshot; else the program takes it while all is alive."""
    MEMORY.start()
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        # The frames that failed are alive as long as the error is, and with them what they hold.
        MEMORY.dump()
        raise
    finally:
        MEMORY.measure()


def cannot(why):
    """End, because this cannot be shown here."""
    print(f"not here: {why}", flush=True)
    sys.exit(CANNOT)


def log(message):
    print(f"[rank{RANK}] {message}" if WORLD_SIZE > 1 else message, flush=True)
