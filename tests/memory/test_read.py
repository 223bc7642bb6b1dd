"""Snapshots of every age and form, and files that are none or not whole."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.make_snapshot import GIB, MIB, Allocator, OutOfMemoryError, snapshot, user, write
from memory.simulated_jobs import Job, trained
from memory.truths import summary_of
from torchtriage.artefacts.plain_pickle import RefusedPickleError
from torchtriage.errors import UnreadableError
from torchtriage.memory.analyze import Snapshot, analyze
from torchtriage.memory.read import summarise_task
from torchtriage.memory.tool import memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path

_QUIET = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def _leaking() -> Allocator:
    return trained(10, lambda job, _: job.keep(8 * MIB)).gpu


def _kinds(summary: dict[str, Any]) -> list[str]:
    return [one.finding.kind for one in analyze([Snapshot("s", None, summary)]).faults]


def _without(value: Any, *keys: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(part, *keys) for key, part in value.items() if key not in keys}
    return [_without(part, *keys) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "missing",
    [["time_us"], ["pool_id", "segment_pool_id"], ["requested_size"], ["compile_context", "user_metadata"],
     ["is_expandable", "segment_type"], ["external_annotations", "allocator_settings"], ["stream"],
     ["allocated_size", "active_size"]],
)  # fmt: skip
def test_what_older_versions_do_not_write_is_not_needed(missing: list[str], tmp_path: Path) -> None:
    content = snapshot(_leaking())
    whole = summary_of(content, tmp_path)["devices"][0]
    found = summary_of(_without(content, *missing), tmp_path)
    device = found["devices"][0]
    for key in ("reserved", "allocated", "active", "peak_allocated", "peak_reserved", "n_steps", "grown_bytes"):
        assert device[key] == whole[key], key
    assert _kinds(found) == ["leak"]


def test_blocks_without_addresses_lie_one_after_the_other(tmp_path: Path) -> None:
    content = snapshot(_leaking())
    whole = summary_of(content, tmp_path)["devices"][0]
    for segment in content["segments"]:
        segment["blocks"] = _without(segment["blocks"], "address")
    assert summary_of(content, tmp_path)["devices"][0]["grown_bytes"] == whole["grown_bytes"]


def test_a_history_of_each_block_is_read_as_its_stack_and_size(tmp_path: Path) -> None:
    gpu = Allocator()
    gpu.alloc(5 * MIB + 100, [user("load", 7)])
    segments = snapshot(gpu)["segments"]
    for segment in segments:
        del segment["requested_size"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                block["history"] = [
                    {"addr": block["address"], "real_size": block["requested_size"], "frames": block["frames"]}
                ]
            for key in ("frames", "requested_size", "address"):
                del block[key]
    # Then the list of segments was all there is.
    device = summary_of(segments, tmp_path)["devices"][0]
    assert (device["requested"], device["allocated"]) == (5 * MIB + 100, 5 * MIB + 512)
    assert device["holders"][0]["site"] == "load (/job/train.py:7)"
    assert device["holders"][0]["bytes"] == 5 * MIB + 512


def test_a_pending_block_is_active_under_either_name(tmp_path: Path) -> None:
    gpu = Allocator()
    gpu.free(gpu.alloc(4 * MIB, []), [], used_elsewhere=True)
    content = snapshot(gpu)
    for name in ("active_pending_free", "active_awaiting_free"):
        content["segments"][0]["blocks"][0]["state"] = name
        device = summary_of(content, tmp_path)["devices"][0]
        assert (device["allocated"], device["active"]) == (0, 4 * MIB)


def test_pinned_host_memory_private_pools_and_settings_are_told(tmp_path: Path) -> None:
    gpu = Allocator()
    gpu.alloc(4 * MIB, [user("capture", 3)], pool=(0, 5))
    content = snapshot(gpu) | {"host_segments": [{"total_size": 3 * MIB}, {"total_size": "x"}, 5], "host_traces": [[]]}
    content["allocator_settings"] |= {"huge": 10**5000, "nested": {"1": 0}}
    found = summary_of(content, tmp_path)
    assert found["pinned"] == 3 * MIB
    assert found["devices"][0]["private_pools"] == 20 * MIB
    assert found["devices"][0]["by_category"] == {"graphs": 4 * MIB}
    assert found["settings"] == {"expandable_segments": False, "max_split_size": -1}
    json.dumps(found)


def test_frames_of_compiled_graphs_tell_their_operation(tmp_path: Path) -> None:
    gpu = Allocator()
    frame = user("call", 12, "/tmp/torchinductor_me/ab/cab.py") | {
        "fx_node_op": "call_function",
        "fx_node_name": "mm_3",
    }
    gpu.alloc(4 * MIB, [frame, user("main", 3)])
    gpu.events[-1] |= {"compile_context": "0/1", "user_metadata": "epoch 3"}
    device = summary_of(snapshot(gpu), tmp_path)["devices"][0]
    assert device["compile_contexts"] == [("0/1", 1)]
    assert device["metadata"] == [("epoch 3", 1)]


def test_actions_that_are_not_known_change_nothing(tmp_path: Path) -> None:
    content = snapshot(_leaking())
    whole = summary_of(content, tmp_path)["devices"][0]
    for name in ("snapshot", "annotate", "workspace_snapshot", "of 2031"):
        content["device_traces"][0].append({"action": name, "addr": 0, "size": 1 << 40, "stream": 0, "frames": []})
    found = summary_of(content, tmp_path)
    assert found["notes"] == []
    assert len(found["devices"][0]["unknown_actions"]) == 4
    assert found["devices"][0]["peak_allocated"] == whole["peak_allocated"]
    assert _kinds(found) == ["leak"]


def test_devices_are_told_apart_and_those_of_no_memory_left_out(tmp_path: Path) -> None:
    gpus = [
        trained(8, lambda job, _: job.keep(8 * MIB), Allocator(device=1)).gpu,
        trained(8, None, Allocator(device=6)).gpu,
    ]
    found = summary_of(snapshot(*gpus), tmp_path)
    assert [d["device"] for d in found["devices"]] == [1, 6]
    assert [bool(d["grown"]) for d in found["devices"]] == [True, False]
    assert found["devices"][0]["grown"][0]["where"].startswith("/device_traces/1/")


def test_frees_that_were_not_recorded_are_no_leak(tmp_path: Path) -> None:
    job = Job(Allocator())
    job.setup()
    for number in range(20):
        # Of other sizes each time, so that addresses are seldom handed out again.
        job.step(scale=0.5 + number / 7)
    job.gpu.events = type(job.gpu.events)(e for e in job.gpu.events if not e["action"].startswith("free"))
    found = summary_of(snapshot(job.gpu), tmp_path)
    assert _kinds(found) == []
    assert "without a free" in found["notes"][0]


def test_a_history_with_a_pause_is_no_leak(tmp_path: Path) -> None:
    job = trained(12)
    n = len(job.gpu.events)
    job.gpu.events = type(job.gpu.events)(e for k, e in enumerate(job.gpu.events) if not 0.5 * n < k < 0.55 * n)
    assert _kinds(summary_of(snapshot(job.gpu), tmp_path)) == []


# Forms of files


def test_json_and_compressed_files_say_the_same_as_the_pickle(tmp_path: Path) -> None:
    content = snapshot(_leaking())
    write(tmp_path / "a.pickle", content)
    (tmp_path / "b.json").write_text(json.dumps(content))
    (tmp_path / "c.pickle.gz").write_bytes(gzip.compress(pickle.dumps(content, protocol=4)))
    (tmp_path / "d.pkl").write_bytes(pickle.dumps(content, protocol=2))
    (tmp_path / "e.pkl").write_bytes(pickle.dumps(content, protocol=5))
    reports = [
        memory_snapshot([str(tmp_path / name)]) for name in ("a.pickle", "b.json", "c.pickle.gz", "d.pkl", "e.pkl")
    ]
    seen = [(r.status, r.findings[0].bytes, r.devices[0].peak_allocated_bytes, len(r.gaps)) for r in reports]
    assert seen == [seen[0]] * 5
    assert seen[0][0] == "fault"


def test_a_file_that_imports_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    path = write(tmp_path / "snapshot.pickle", {"segments": [], "device_traces": [[Runs()]]})
    with pytest.raises(RefusedPickleError):
        summarise_task(str(path), None, {"format": "pickle"})
    report = memory_snapshot([str(path)])
    assert report.status == "inconclusive"
    assert "nothing was imported or run" in report.gaps[0]
    assert not (tmp_path / "ran").exists()


def test_empty_and_foreign_files_are_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "empty.pickle").write_bytes(b"")
    write(tmp_path / "other.pickle", {"weights": [1, 2]})
    write(tmp_path / "none.pickle", {"segments": [], "device_traces": [[], []]})
    for name in ("empty.pickle", "other.pickle", "none.pickle"):
        assert memory_snapshot([str(tmp_path / name)]).status == "inconclusive"
    with pytest.raises(UnreadableError):
        summary_of({"weights": [1]}, tmp_path)


def test_deep_nesting_is_no_way_to_stop_the_reader(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    event = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "frames": [{"name": deep, "line": deep}, deep]}
    content = {
        "segments": [{"total_size": MIB, "blocks": deep, "frames": deep}],
        "device_traces": [[event, deep], deep],
    }
    assert _kinds(summary_of(content, tmp_path)) == []


@pytest.mark.parametrize("order", [["segments", "device_traces"], ["device_traces", "segments"]])
@pytest.mark.parametrize("made", ["pickle", "json"])
def test_a_file_cut_anywhere_raises_no_wrong_alarm(made: str, order: list[str], tmp_path: Path) -> None:
    job = Job(Allocator(), n_layers=1)
    job.setup()
    for _ in range(5):
        job.step()
    content = {key: snapshot(job.gpu)[key] for key in order}
    data = pickle.dumps(content, protocol=4) if made == "pickle" else json.dumps(content).encode()
    step = 53 if made == "pickle" else 997
    n_read = 0
    for end in range(0, len(data), step):
        path = tmp_path / "cut"
        path.write_bytes(data[:end])
        try:
            summary = summarise_task(str(path), None, {"format": made})
        except (UnreadableError, RefusedPickleError):
            continue
        n_read += 1
        found = analyze([Snapshot("s", None, summary)])
        assert [one.finding.kind for one in found.judged] == [], end
        assert not found.steady
        assert summary["notes"]
    assert n_read > 20


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_a_cut_file_still_tells_what_is_whole_in_it(share: float, tmp_path: Path) -> None:
    data = pickle.dumps(snapshot(trained(20, lambda job, _: job.keep(8 * MIB)).gpu), protocol=4)
    path = tmp_path / "cut.pickle"
    path.write_bytes(data[: int(share * len(data))])
    assert _kinds(summarise_task(str(path), None, {"format": "pickle"})) == ["leak"]


def test_a_cut_file_of_an_oom_names_no_gaps_that_are_not_known(tmp_path: Path) -> None:
    job = trained(3, None, Allocator(total_bytes=2 * GIB), parameter_bytes=2 * MIB)
    with pytest.raises(OutOfMemoryError):
        job.step(scale=60)
    content = snapshot(job.gpu)
    content["device_traces"][0] += [dict(event) for event in content["device_traces"][0][:40]]
    data = pickle.dumps({key: content[key] for key in ("segments", "device_traces")}, protocol=4)
    path = tmp_path / "cut.pickle"
    path.write_bytes(data[:-60])
    summary = summarise_task(str(path), None, {"format": "pickle"})
    assert summary["devices"][0]["ooms"][0]["gaps"] is None


# Bad types everywhere

_SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 70), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=6),
    st.sampled_from(["alloc", "oom", "free_completed", "free_requested", "segment_alloc", "active_allocated", "START"]),
)  # fmt: skip
_ANY = st.recursive(
    _SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["action", "addr", "size", "frames", "device", "blocks", "total_size", "name", "line"]),
            inner, max_size=5,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@_QUIET
@given(
    content=st.dictionaries(
        st.sampled_from(
            ["segments", "device_traces", "external_annotations", "allocator_settings", "host_segments", "other"]
        ),
        _ANY,
    )
)
def test_any_plain_data_is_read_or_refused(content: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        found = summary_of(content, tmp_path_factory.getbasetemp())
    except UnreadableError:
        return
    json.dumps(found)
    assert set(_kinds(found)) <= {"single_large_allocation"}


_PLACES = st.lists(st.tuples(st.integers(0, 10_000), _ANY), min_size=1, max_size=12)


@_QUIET
@given(places=_PLACES)
def test_bad_values_at_any_place_of_a_healthy_snapshot_raise_nothing(
    places: list[tuple[int, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = copy.deepcopy(_HEALTHY)
    slots = _slots(content)
    for number, value in places:
        holder, key = slots[number * 7919 % len(slots)]
        holder[key] = value
    try:
        found = summary_of(content, tmp_path_factory.getbasetemp())
    except UnreadableError:
        return
    json.dumps(found)
    analyze([Snapshot("s", 3, found)])
    if not any(device["ooms"] for device in found["devices"]):
        assert _kinds(found) == []


def _slots(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a structure whose value can be replaced."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    seen: set[int] = set()
    while waiting:
        here = waiting.pop()
        if id(here) in seen or not isinstance(here, (dict, list)):
            continue
        seen.add(id(here))
        items = list(here.items()) if isinstance(here, dict) else list(enumerate(here))
        found.extend((here, key) for key, _ in items)
        waiting.extend(part for _, part in items)
    return found


_HEALTHY = snapshot(trained(6, None, Allocator(), n_layers=1).gpu)


def test_words_of_a_job_that_are_no_text_can_be_shown(tmp_path: Path) -> None:
    from torchtriage.memory.render import render

    gpu = Allocator()
    for number in range(8):
        gpu.alloc(8 * MIB, [user("keep\ud800\x1b[31m\u202e", 5 + number % 2, "/job/\udcff.py"), user("main", 2)])
    path = write(tmp_path / "snapshot.pickle", snapshot(gpu))
    text = render(memory_snapshot([str(path)]))
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode()
