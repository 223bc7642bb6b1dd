"""Reading of dumps of every schema, and of what is not one."""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight.flight_dumps import call, dump, loop, p2p, rank_dump
from torchtriage.artefacts.plain_pickle import RefusedPickleError
from torchtriage.errors import UnreadableError
from torchtriage.flight.analyze import analyze
from torchtriage.flight.columns import unpack_column
from torchtriage.flight.read import summarise, summarise_task
from torchtriage.flight.tool import analyze_flight_recorder

if TYPE_CHECKING:
    from pathlib import Path

STEPS = loop(3, call("all_reduce", 10), call("broadcast", 11))
GROUPS = {"0": [0, 1]}


def in_step(views: list[Any]) -> bool:
    return [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals] == ["flight.in_step"]


def as_json(view: dict[str, Any]) -> dict[str, Any]:
    """What torch's JSON writer makes of it: counters as strings, tuples as lists, no frames."""
    plain = json.loads(json.dumps(view))
    for status in plain["pg_status"].values():
        status.update({k: str(v) for k, v in status.items()})
    for entry in plain["entries"]:
        del entry["frames"]
    return plain


def test_pickle_and_json_of_one_dump_say_the_same() -> None:
    assert in_step([dump(STEPS, GROUPS), as_json(dump(STEPS, GROUPS))])


def test_columns_come_back_as_they_were() -> None:
    track = summarise(dump(STEPS, GROUPS))["tracks"][0]
    assert list(unpack_column(track["seq"], track["n"])) == [1, 2, 3, 4, 5, 6]
    assert list(unpack_column(track["token"], track["n"])) == [0, 1, 0, 1, 0, 1]


def test_the_call_site_is_the_innermost_frame_outside_torch() -> None:
    _, sites, _ = json.loads(summarise(dump(STEPS, GROUPS))["tables"])
    assert [row[0] for row in sites] == [
        "",
        "train (train.py:10)",
        "train (train.py:11)",
    ]


def test_a_bare_list_of_entries_is_the_oldest_schema() -> None:
    views = [dump(STEPS, GROUPS)["entries"] for _ in range(2)]
    assert in_step(views)


def test_pg_config_may_be_a_list() -> None:
    views = [dump(STEPS, GROUPS) for _ in range(2)]
    for view in views:
        view["pg_config"] = list(view["pg_config"].values())
    assert in_step(views)


def test_ranks_may_be_a_list() -> None:
    views = [dump(STEPS, GROUPS) for _ in range(2)]
    views[0]["pg_config"]["0"]["ranks"] = [0, 1]
    assert in_step(views)


def test_gloo_is_finished_when_retired_and_calls_its_group_by_nothing() -> None:
    views = [dump(STEPS, GROUPS) for _ in range(2)]
    for view in views:
        view["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
        for entry in view["entries"]:
            entry.update(state="scheduled", profiling_name=entry["profiling_name"].replace("nccl", "gloo"))
    assert in_step(views)
    views[0]["entries"][-1]["retired"] = views[1]["entries"][-1]["retired"] = False
    assert not in_step(views)


@pytest.mark.parametrize("name", ["ucc:all_reduce", "nccl2:all_reduce", "all_reduce", "nccl:all_reduce_brand_new", "x"])
def test_unknown_backends_and_operations_are_read(name: str) -> None:
    views = [dump(STEPS, GROUPS) for _ in range(2)]
    for view in views:
        for entry in view["entries"]:
            entry["profiling_name"] = name
    assert in_step(views)


def test_a_dump_without_entries_speaks_by_its_counters() -> None:
    view = dump(STEPS, GROUPS)
    del view["entries"]
    summary = summarise(view)
    assert (summary["has_entries"], summary["status"]) == (False, [["0", 6, -1, 6]])


def test_extra_keys_are_ignored() -> None:
    views = [{**dump(STEPS, GROUPS), "health_check_results": {"gpu": {"status": True}}} for _ in range(2)]
    assert in_step(views)


def test_process_group_may_be_a_list_or_absent() -> None:
    views = [dump(STEPS, GROUPS) for _ in range(2)]
    for entry in views[0]["entries"]:
        entry["process_group"] = list(entry["process_group"])
    for entry in views[1]["entries"]:
        del entry["process_group"]
    assert in_step(views)


def test_point_to_point_entries_are_no_collectives() -> None:
    summary = summarise(dump([*STEPS, p2p("send", 0, 1), p2p("recv", 0, 1, done=True)], GROUPS))
    track = summary["tracks"][0]
    assert (track["n"], track["n_p2p"]) == (6, 2)
    assert [row[:4] for row in track["p2p"]] == [[6, 0, 0, 1]]


@pytest.mark.parametrize("view", [None, 3, "text", [], {}, {"a": 1}, [1, 2], [[]], {"segments": []}])
def test_what_is_no_dump_is_refused(view: Any) -> None:
    with pytest.raises(UnreadableError):
        summarise(view)


def test_shared_frames_that_are_huge_when_walked_cost_little() -> None:
    shared: Any = {"name": "f", "filename": "/opt/lib/python3.12/site-packages/torch/distributed/x.py", "line": 1}
    frames = [shared] * 100_000
    view = dump(STEPS, GROUPS)
    view["entries"] = [{**view["entries"][0], "frames": frames}] * 5000
    assert summarise(view)["n_entries"] == 5000
    nested: Any = []
    for _ in range(60):
        nested = [nested, nested]
    view["entries"] = [{**view["entries"][0], "input_sizes": nested, "process_group": nested, "state": nested}]
    assert summarise(view)["n_entries"] == 1


def test_a_truncated_dump_yields_its_whole_entries_and_a_gap(tmp_path: Path) -> None:
    data = pickle.dumps(dump(STEPS, GROUPS), protocol=2)
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    data = pickle.dumps(dump(STEPS, GROUPS, start_ns=1), protocol=2)
    (tmp_path / "nccl_trace_rank_1").write_bytes(data[: len(data) * 2 // 3])
    report = analyze_flight_recorder([str(tmp_path)])
    assert report.status == "inconclusive"
    assert any("nccl_trace_rank_1" in gap for gap in report.gaps)


def test_a_stray_or_hostile_file_costs_only_itself(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (print, ("executed",))

    for rank in (0, 1):
        content = pickle.dumps(dump(STEPS, GROUPS, start_ns=rank), protocol=2)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps({"pg_config": {}, "entries": Evil()}, protocol=2))
    report = analyze_flight_recorder([str(tmp_path)])
    assert report.status == "inconclusive"
    assert any("nccl_trace_rank_2" in gap and "import" in gap for gap in report.gaps)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400) | st.just(-1),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)
BASE = dump([*STEPS, call("all_to_all", 12, done=False), p2p("send", 0, 1)], {"0": [0, 1], "1": [0]})


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_value_in_any_place_gives_a_summary_that_can_be_judged(data: st.DataObject) -> None:
    view = copy.deepcopy(BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.sampled_from(["top", "config", "status", "entry", "frame"]))
        target: Any = {
            "top": view,
            "config": view["pg_config"]["0"] if isinstance(view.get("pg_config"), dict) else {"x": 0},
            "status": view["pg_status"]["0"] if isinstance(view.get("pg_status"), dict) else {"x": 0},
            "entry": view["entries"][-2] if isinstance(view.get("entries"), list) else {"x": 0},
            "frame": {"x": 0},
        }[where]
        if where == "frame" and isinstance(view.get("entries"), list) and view["entries"]:
            frames = view["entries"][0].get("frames") if isinstance(view["entries"][0], dict) else None
            target = frames[-1] if isinstance(frames, list) and frames and isinstance(frames[-1], dict) else target
        if isinstance(target, dict) and target:
            target[data.draw(st.sampled_from(sorted(map(str, target))))] = data.draw(HOSTILE)
        if not isinstance(view.get("entries"), list) or len(view["entries"]) < 2:
            break
        if not isinstance(view["pg_config"], dict) or not isinstance(view["pg_config"].get("0"), dict):
            break
        if not isinstance(view["pg_status"], dict) or not isinstance(view["pg_status"].get("0"), dict):
            break
    summary = json.loads(json.dumps(summarise(view)))
    good = rank_dump(0, BASE)
    bad = type(good)("nccl_trace_rank_1", 1, None, summary)
    analyze([good, bad])


RAW = pickle.dumps(BASE, protocol=2)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_in_part(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(RAW[: data.draw(st.integers(1, len(RAW)))])
    for _ in range(data.draw(st.integers(0, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "dump"
    path.write_bytes(bytes(raw))
    try:
        summary = summarise_task(str(path), None, {"format": "pickle"})
    except (UnreadableError, RefusedPickleError, MemoryError, RecursionError):
        return
    analyze([rank_dump(0, BASE), type(rank_dump(0, BASE))("b", 1, None, json.loads(json.dumps(summary)))])
