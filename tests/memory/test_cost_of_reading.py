"""What large and ill-shaped histories take of the processor and of memory: never more than linear."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memory.make_snapshot import MIB, native, snapshot, torch_frame, user
from memory.simulated_jobs import trained
from memory.truths import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable

_TOOLS = Path(__file__).resolve().parents[2] / "tools"
_READ = """
import gc, json, sys, time
sys.path.insert(0, sys.argv[1])
gc.disable()
from torchtriage.memory.read import summarise_task
found = summarise_task(sys.argv[2], None, {"format": "pickle"})
peak = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([time.process_time(), peak, found["devices"][0]["n_events"], found["devices"][0]["n_steps"]]))
"""


def _event(action: str, address: int, size: int, frames: list[Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": address, "frames": frames}


def _of_many_segments(n: int) -> dict[str, Any]:
    """Segments come and go throughout, many of them at a time, before a request fails."""
    stack = [user("main", 3)]
    events = [_event("segment_alloc", k * 4 * MIB, 2 * MIB, stack) for k in range(n // 3)]
    events.append({**_event("oom", 0, 1 << 40, stack), "device_free": 5})
    for k in range(n // 3):
        events.append(_event("segment_free", k * 4 * MIB, 2 * MIB, stack))
        events.append(_event("segment_alloc", (n + k) * 4 * MIB, 2 * MIB, stack))
    segments = [
        {"device": 0, "address": (n + k) * 4 * MIB, "total_size": 2 * MIB, "stream": 0, "blocks": []}
        for k in range(n // 3)
    ]
    return {"segments": segments, "device_traces": [events]}


def _of_many_gradients(n: int) -> dict[str, Any]:
    """Backward alone, and everything is live."""
    engine = [native("torch::autograd::Engine::evaluate_function()")]
    return {"segments": [], "device_traces": [[_event("alloc", k * MIB, 512, engine) for k in range(n)]]}


def _of_many_places(n: int) -> dict[str, Any]:
    """Every allocation has a stack of its own, deep in a loop that goes back all the time; all is kept."""
    events = []
    for k in range(n):
        depth = [user(f"f{k % 7}", (k * 31) % 97 + d, f"/job/{d}.py") for d in range(12)]
        events.append(_event("alloc", k * MIB, MIB, [user("leaf", k + 1), *depth, user("main", 1)]))
    return {"segments": [], "device_traces": [events]}


def _of_overlapping_segments(n: int) -> dict[str, Any]:
    """No allocator makes this: all segments lie on the same blocks."""
    blocks = [{"address": k * 1024, "size": 512, "state": "active_allocated", "frames": []} for k in range(n // 2)]
    segments = [
        {"device": 0, "address": k, "total_size": 1 << 40, "stream": k % 3, "blocks": blocks if k == 0 else []}
        for k in range(n // 2)
    ]
    return {"segments": segments, "device_traces": [[_event("alloc", 1, 1, [])]]}


def _of_many_failures(n: int) -> dict[str, Any]:
    """Requests that fail again and again."""
    stack = [torch_frame("empty", "functional.py"), user("main", 3)]
    events = [_event("alloc", k * MIB, MIB, stack) for k in range(n // 2)]
    events += [{**_event("oom", 0, 1 << 40, stack), "device_free": 5} for _ in range(n // 2)]
    return {"segments": [], "device_traces": [events]}


@pytest.mark.parametrize(
    "made", [_of_many_segments, _of_many_gradients, _of_many_places, _of_overlapping_segments, _of_many_failures]
)
def test_no_shape_of_history_takes_more_than_linear_time(made: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    content = made(12_000)
    start = time.process_time()
    summary_of(content, tmp_path)
    assert time.process_time() - start < 8


@pytest.mark.slow
def test_a_million_events_are_read_in_seconds_and_a_few_times_the_size_of_the_file(tmp_path: Path) -> None:
    job = trained(3, None, n_layers=24, parameter_bytes=1 << 16, activation_bytes=1 << 17)
    before = len(job.gpu.events)
    job.step()
    content = snapshot(job.gpu)
    events = content["device_traces"][0]
    step = events[before:]
    while len(events) < 1_000_000:
        events.extend({**event, "time_us": event["time_us"] + len(events)} for event in step)
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    answer = subprocess.run(
        [sys.executable, "-c", _READ, str(_TOOLS), str(path)], capture_output=True, text=True, check=True
    )
    cpu_s, peak_bytes, n_events, n_steps = json.loads(answer.stdout)
    assert n_events == len(events)
    assert n_steps > 2000
    assert cpu_s < 10
    assert peak_bytes < 6 * path.stat().st_size
