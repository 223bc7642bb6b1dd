"""Read a memory snapshot into one compact summary per device. Stdlib only: runs in the isolated worker.

The file is plain nested data; what is only summed is not kept. Nothing here judges.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, cast

from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError
from torchtriage.memory import frames
from torchtriage.memory.columns import Columns, read_events, whole
from torchtriage.memory.frames import Stacks
from torchtriage.memory.gaps import Gaps, Lane, gaps_at
from torchtriage.memory.growth import grown_sites, keeps_a_graph
from torchtriage.memory.holders import MAX_HOLDERS, Holder, course_of, holders_at, purpose_of
from torchtriage.memory.replay import Replay, replay
from torchtriage.memory.segments import MAX_BYTES, Now, device_of, read_segments
from torchtriage.memory.steps import rounds_at_the_end, step_starts

MAX_DEVICES = 64
MAX_OOMS = 8
MAX_GROWN = 20
MAX_LANES_TOLD = 24
SHOWN_FRAMES = 8
_WORK = frames.FORWARD | frames.BACKWARD | frames.OPTIMIZER
ROUNDS_OF_GOING_ON = 2
MAX_SHARE_OF_MISSING = 0.01
MAX_FLAME_STACKS = 2000
MAX_FLAME_FRAMES = 64


def summarise_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: sum one snapshot up.

    Returns:
        devices (one entry per device that has segments or events; see ``_device``), pinned (bytes of host segments),
        settings (the allocator's, as far as they are scalars), and notes.

    Raises:
        UnreadableError: it holds neither segments nor events.
    """
    view: Any
    view, note = load_view(path, compression, str(args["format"]))
    # A list is what memory_snapshot() gives, and _snapshot() gave before it knew traces.
    record = cast("dict[Any, Any]", {"segments": view} if isinstance(view, list) else view)
    if not isinstance(record, dict) or not ({"segments", "device_traces"} & record.keys()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnreadableError("holds neither segments nor device_traces: not a memory snapshot")
    del view
    notes = [note] if note else []
    segments = record.get("segments")
    traces: Any = record.get("device_traces")
    traces = cast("list[Any]", traces) if isinstance(traces, list) else []
    if not isinstance(segments, list):
        segments = []
        notes.append("it has no segments: what is held now, and was before the history, cannot be told")
    numbers = {number for number, trace in enumerate(traces) if trace}
    for entry in cast("list[Any]", segments):
        if isinstance(entry, dict):
            numbers.add(device_of(cast("dict[Any, Any]", entry)))
    numbers.discard(-1)
    stacks = Stacks()
    devices: list[dict[str, Any]] = []
    for number in sorted(numbers)[:MAX_DEVICES]:
        found = traces[number] if number < len(traces) else None
        trace = cast("list[Any]", found) if isinstance(found, list) else []
        asked = _Asked(number, joined=note is None, flame=bool(args.get("flame")))
        devices.append(_device(asked, segments, trace, record.get("external_annotations"), stacks, notes))
        if number < len(traces):
            traces[number] = None
    if len(numbers) > MAX_DEVICES:
        notes.append(f"{len(numbers) - MAX_DEVICES} more devices were not looked at")
    return {
        "devices": devices,
        "pinned": _pinned(record.get("host_segments")),
        "settings": _settings(record.get("allocator_settings")),
        "notes": notes,
    }


@dataclass(frozen=True)
class _Asked:
    number: int
    joined: bool
    """Whether the segments are those after the last event, which they are not in a file that was cut."""
    flame: bool


def _device(
    asked: _Asked, segments: Any, trace: list[Any], annotations: Any, stacks: Stacks, notes: list[str]
) -> dict[str, Any]:
    """One device: now, peaks, OOMs, holders, growth, gaps, steps, timeline."""
    number = asked.number
    now = read_segments(segments, number)
    first = cast("dict[Any, Any]", trace[0]) if trace and isinstance(trace[0], dict) else {}
    first_action = named if isinstance(named := first.get("action"), str) and len(named) <= 40 else None
    columns = read_events(trace, stacks)
    course = replay(columns, now, joined=asked.joined)
    if columns.n_odd or now.n_odd:
        notes.append(f"device {number}: {columns.n_odd + now.n_odd} entries could not be read and were left out")
    complete = course.n_frees_missing <= MAX_SHARE_OF_MISSING * len(columns)
    if not complete:
        notes.append(
            f"device {number}: {course.n_frees_missing} blocks are gone without a free in the history: it was paused "
            "or skips frees, so that growth cannot be told"
        )
    starts = step_starts(columns, stacks, annotations)
    ooms = [_oom(columns, stacks, oom, number) for oom in course.ooms[-MAX_OOMS:]]
    if ooms:
        ooms[-1]["went_on"] = len(starts) - bisect_right(starts, course.ooms[-1][0]) >= ROUNDS_OF_GOING_ON
        if asked.joined and complete:
            ooms[-1]["gaps"] = _gaps(gaps_at(columns, now, course, course.ooms[-1][0]), stacks)
    grown, rounds = grown_sites(columns, course, stacks, starts, course.peak_allocated) if complete else [], starts
    if course.ooms and complete and not grown:
        # Nothing was kept over whole steps: within the last one something may have been, of every round.
        rounds = rounds_at_the_end(columns, stacks, starts)
        grown = grown_sites(columns, course, stacks, rounds, course.peak_allocated)
    kept_graph = keeps_a_graph(columns, stacks, rounds, grown)
    if kept_graph and rounds is starts:
        starts = []
    known = course_of(columns, now, course, stacks, starts)
    if not kept_graph:
        known.grown = frozenset(g.place for g in grown)
    last = len(columns) - 1
    moment = course.ooms[-1][0] if course.ooms else course.peak_at
    holders, by_category, by_stack = holders_at(known, moment, number)
    ending, ending_by_category, _ = holders_at(known, last, number)
    told: dict[str, Any] = {
        "device": number,
        "reserved": now.reserved, "allocated": now.allocated, "active": now.active, "requested": now.requested,
        "peak_allocated": course.peak_allocated, "peak_reserved": course.peak_reserved,
        "peak_event": columns.position[course.peak_at] if course.peak_at >= 0 else None,
        "peak_time_us": columns.time_us[course.peak_at] if course.peak_at >= 0 else None,
        "n_events": len(columns), "n_steps": len(starts),
        "held_at_steps": [course.allocated_before(start) for start in _thinned(starts)],
        "works": any(marks & _WORK for marks in {stacks.stacks[s].marks for s in set(columns.stack)}),
        "last_time_us": columns.time_us[-1] if len(columns) else None,
        "has_history": bool(len(columns)), "has_frames": any(columns.stack),
        "first_action": first_action, "truncated": _truncated(columns, now, course),
        "before_history": sum(course.before.values()), "n_frees_missing": course.n_frees_missing,
        "moment": "oom" if course.ooms else "peak",
        "holders": [_holder(h, stacks) for h in holders[:MAX_HOLDERS]],
        "n_holders": len(holders),
        "by_category": by_category,
        "ending": [_holder(h, stacks) for h in ending[:MAX_HOLDERS]],
        "ending_by_category": ending_by_category,
        "ooms": ooms,
        "grown": [
            {
                "site": stacks.site_text(g.stack), "frames": stacks.shown(g.stack, SHOWN_FRAMES),
                "bytes": g.grown_bytes, "few_rounds": g.few_rounds, "kept_graph": kept_graph,
                "blocks": g.grown_blocks, "rounds": g.n_rounds, "bytes_per_step": g.bytes_per_round,
                "where": f"/device_traces/{number}/{columns.position[g.last_event]}/size",
                "category": purpose_of(known, g.last_event)[0], "value": columns.size[g.last_event],
                "in_evaluation": bool(stacks.stacks[g.stack].marks & frames.EVALUATION),
                "in_generation": bool(stacks.stacks[g.stack].marks & frames.GENERATION),
            }
            for g in grown[:MAX_GROWN]
        ],
        "grown_bytes": sum(g.grown_bytes for g in grown),
        "gaps": _gaps(gaps_at(columns, now, course, last), stacks) if asked.joined and complete else None,
        "private_pools": sum(s.total for s in now.segments if s.pool != (0, 0)),
        "expandable": any(s.expandable for s in now.segments),
        "timeline": [list(sample) for sample in course.timeline],
        "metadata": sorted(columns.metadata.items(), key=lambda item: -item[1])[:8],
        "compile_contexts": sorted(columns.compile_contexts.items(), key=lambda item: -item[1])[:8],
        "unknown_actions": columns.unknown_actions,
    }  # fmt: skip
    if asked.flame:
        told["flame"] = [[_flame_names(stacks, s), size] for s, size in by_stack[:MAX_FLAME_STACKS]]
    return told


def _thinned(series: list[int], most: int = 200) -> list[int]:
    """Some of many, evenly, with the first and the last."""
    if len(series) <= most:
        return series
    return [series[round(k * (len(series) - 1) / (most - 1))] for k in range(most)]


def _holder(holder: Holder, stacks: Stacks) -> dict[str, Any]:
    return {
        "bytes": holder.bytes, "blocks": holder.blocks, "category": holder.category, "sure": holder.sure,
        "site": holder.site, "frames": stacks.shown(holder.stack, SHOWN_FRAMES), "where": holder.where,
        "largest_bytes": holder.largest_bytes,
    }  # fmt: skip


def _oom(columns: Columns, stacks: Stacks, oom: tuple[int, int, int, int], device: int) -> dict[str, Any]:
    """A request that failed; the gaps of that moment are told of the last one alone."""
    index, allocated, active, reserved = oom
    stream, pool = columns.lanes[columns.lane[index]]
    free = columns.address[index]
    marks = stacks.stacks[columns.stack[index]].marks
    return {
        "event": columns.position[index], "requested": columns.size[index], "device_free": free if free >= 0 else None,
        "stream": stream, "pool": list(pool), "allocated": allocated, "active": active, "reserved": reserved,
        "site": stacks.site_text(columns.stack[index]), "frames": stacks.shown(columns.stack[index], SHOWN_FRAMES),
        "in_optimizer": bool(marks & frames.OPTIMIZER), "in_backward": bool(marks & frames.BACKWARD),
        "in_evaluation": bool(marks & frames.EVALUATION),
        "in_state_dict": bool(marks & frames.STATE_DICT), "where": f"/device_traces/{device}/{columns.position[index]}",
        "gaps": None, "went_on": False,
    }  # fmt: skip


def _gaps(gaps: Gaps, stacks: Stacks) -> dict[str, Any]:
    lanes = sorted(gaps.lanes, key=lambda lane: -lane.free_bytes)[:MAX_LANES_TOLD]
    return {
        "free": gaps.free_bytes,
        "lanes": [
            {
                "stream": lane.stream, "pool": list(lane.pool), "large": lane.large, "free": lane.free_bytes,
                "largest": lane.largest_bytes, "in_used_segments": lane.in_used_segments_bytes, "n_gaps": lane.n_gaps,
                "pin": _pin(lane, stacks),
            }
            for lane in lanes
        ],
    }  # fmt: skip


def _pin(lane: Lane, stacks: Stacks) -> list[Any] | None:
    """The call site whose live blocks keep most of the lane's used segments: text, bytes, blocks."""
    sites: dict[str, list[int]] = {}
    for stack, (size, blocks) in lane.pins.items():
        if stack:
            held = sites.setdefault(stacks.site_text(stack), [0, 0])
            held[0] += size
            held[1] += blocks
    if not sites:
        return None
    site = max(sites, key=lambda text: (sites[text][1], sites[text][0]))
    return [site, *sites[site]]


def _truncated(columns: Columns, now: Now, course: Replay) -> bool | None:
    """Whether the ring dropped its oldest events; None when the history began late and nothing tells.

    A block that knows its stack was allocated while the history was on. When its event is gone, the ring was full.
    """
    old = set(course.before)
    if any(block.frames for block in now.blocks if block.state == 0 and block.address in old):
        return bool(len(columns))
    if not old or not len(columns):
        return False
    return None


def _flame_names(stacks: Stacks, number: int) -> list[str]:
    """The stack outermost first, as flame graphs want it."""
    names = [stacks.frames[f].text for f in reversed(stacks.stacks[number].frames) if stacks.frames[f].kind]
    return names[-MAX_FLAME_FRAMES:] or ["(no stack recorded)"]


def _pinned(segments: Any) -> int:
    total = 0
    for entry in cast("list[Any]", segments)[:1_000_000] if isinstance(segments, list) else []:
        if isinstance(entry, dict):
            total += whole(cast("dict[Any, Any]", entry).get("total_size"), MAX_BYTES) or 0
    return total


def _settings(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict):
        return {}
    record = cast("dict[Any, Any]", settings)
    return {
        key[:60]: value if not isinstance(value, str) else value[:300]
        for key, value in list(record.items())[:40]
        if isinstance(key, str)
        and (isinstance(value, (bool, float, str)) or (isinstance(value, int) and abs(value) <= MAX_BYTES))
    }
