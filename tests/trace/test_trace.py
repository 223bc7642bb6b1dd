import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.artefacts.isolate import read_isolated
from torchtriage.trace.analyze import TraceFindings, analyze


def trace(rank: int, comm_us: float, compute_us: float, *, args: bool = True) -> dict[str, Any]:
    """Four steps of 10 ms: computing, then a collective that ends at the step's end."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    for step in range(4):
        end = 10_000.0 * (step + 1)
        events.append({"cat": "kernel", "name": "gemm", "ts": end - comm_us - compute_us, "dur": compute_us})
        events.append({"cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": end - comm_us, "dur": comm_us})
        events.append({"cat": "cpu_op", "name": "aten::mm", "ts": end, "dur": 5})
    return {"traceEvents": events, **({"distributedInfo": {"rank": rank}} if args else {})}


def findings(tmp_path: Path, traces: dict[str, Any]) -> TraceFindings:
    for name, content in traces.items():
        data = json.dumps(content).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with open_inputs([str(tmp_path)]) as inputs:
        outcomes = read_isolated("trace", inputs.of("trace"))
    return analyze([(o.artefact.name, o.result) for o in outcomes if o.error is None])


def test_a_rank_whose_gpu_idles_before_its_collectives_is_a_host_straggler(tmp_path: Path) -> None:
    found = findings(tmp_path, {"a.json": trace(0, 8_000, 1_500), "b.json.gz": trace(1, 500, 1_500)})
    (signal,) = found.signals
    assert (signal.name, signal.scope.ranks) == ("trace.straggler_host", [1])
    assert signal.facts["share"] > 0.3
    assert len(signal.evidence) == 2


def test_a_rank_whose_gpu_computes_longer_is_a_gpu_straggler(tmp_path: Path) -> None:
    found = findings(tmp_path, {"a.json": trace(0, 8_000, 1_500), "b.json": trace(1, 500, 9_000)})
    assert [(s.name, s.scope.ranks) for s in found.signals] == [("trace.straggler_gpu", [1])]


def test_ranks_that_spend_alike_are_balanced(tmp_path: Path) -> None:
    found = findings(tmp_path, {"a.json": trace(0, 2_000, 6_000), "b.json": trace(1, 1_900, 6_000)})
    assert [(s.name, s.scope.ranks) for s in found.signals] == [("trace.balanced", [0, 1])]


def test_between_the_bounds_nothing_is_said(tmp_path: Path) -> None:
    assert findings(tmp_path, {"a.json": trace(0, 3_500, 5_000), "b.json": trace(1, 1_000, 5_000)}).signals == []


def test_the_rank_comes_from_the_name_when_the_trace_does_not_tell_it(tmp_path: Path) -> None:
    traces = {f"t-rank0{r}.json": trace(r, 8_000 - 7_500 * r, 1_500, args=False) for r in (0, 1)}
    assert findings(tmp_path, traces).signals[0].scope.ranks == [1]


def test_one_trace_compares_nothing_and_says_so(tmp_path: Path) -> None:
    found = findings(tmp_path, {"a.json": trace(0, 8_000, 1_500)})
    assert found.signals == []
    assert any("fewer than two" in note for note in found.notes)


@pytest.mark.parametrize(
    "bad", [None, "x", [], {"ts": "1e999"}, {"cat": "kernel", "name": "nccl", "ts": True, "dur": -1}]
)
def test_events_of_wrong_types_are_left_out(tmp_path: Path, bad: Any) -> None:
    broken = trace(1, 500, 1_500)
    broken["traceEvents"][1:1] = [bad, {"cat": "kernel", "name": 5, "ts": "3", "dur": "nan"}]
    found = findings(tmp_path, {"a.json": trace(0, 8_000, 1_500), "b.json": broken})
    assert [s.name for s in found.signals] == ["trace.straggler_host"]


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=9)


@given(st.lists(st.dictionaries(st.sampled_from(["cat", "name", "ts", "dur"]), VALUES), max_size=20))
def test_any_events_give_a_summary(events: list[Any]) -> None:
    from torchtriage.trace import read

    view = {"traceEvents": events}
    original = read.load_view
    read.load_view = lambda *_: (view, None)  # type: ignore[assignment]
    try:
        summary = read.summarise_task("x", None, {"format": "json"})
    finally:
        read.load_view = original
    json.dumps(summary)
    analyze([("rank0.json", summary), ("rank1.json", summary)])
