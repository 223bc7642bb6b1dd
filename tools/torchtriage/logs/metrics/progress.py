"""From steps to signals: who did fewer steps, who skipped one, who went on to what follows the loop, who finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.logs.metrics.skips import left_out_steps
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from torchtriage.logs.metrics.collect import OwnerMetrics, Row
    from torchtriage.logs.records import Line, OwnerLines, Timeline

MAX_SIGNALS = 8


def stepping(timeline: Timeline) -> dict[int, OwnerMetrics]:
    """The ranks that printed numbered steps."""
    owners = timeline.metrics.owners.items()
    return {owner: own for owner, own in owners if isinstance(owner, int) and own.n_stepped > 0}


def step_signals(
    timeline: Timeline,
    hang_orders: Mapping[int | None, int],
    ended: Set[int],
    waits: Mapping[int, Set[tuple[object, ...]]],
) -> list[Signal]:
    """Signals about ranks whose steps differ from their peers'.

    Args:
        timeline: what was read.
        hang_orders: the place of the first line that tells of a time-out, by the rank that printed it.
        ended: ranks whose end is told by an exception; that they stop is explained.
        waits: in which calls ranks wait for others, by their own watchdog's word.
    """
    ranks = stepping(timeline)
    if len(ranks) < 2:
        return []
    highest = max(own.last_step or 0 for own in ranks.values())
    ahead = next(own.last_step_row for own in ranks.values() if own.last_step == highest and own.last_step_row)
    hang_order = min(hang_orders.values(), default=None)
    left: dict[int, list[tuple[int, Line]]] = {}
    done: list[tuple[int, Line]] = []
    stopped: dict[int, list[int]] = {}
    for rank, own in ranks.items():
        end_line = timeline.owners[rank].end_line if rank in timeline.owners else None
        # A rank that timed out itself waited from then on: its peers' reports say nothing of what it printed before.
        hung_at = hang_orders.get(rank, hang_order)
        if own.last_step == highest and end_line is not None and hung_at is not None and end_line.order < hung_at:
            done.append((rank, end_line))
        if own.last_step is None or own.last_step >= highest or rank in ended:
            continue
        # Without a hang, what a rank printed counts until its peers' last step: behind that everybody leaves the loop.
        if end_line is not None and end_line.order < (ahead.line.order if hung_at is None else hung_at):
            left.setdefault(own.last_step, []).append((rank, end_line))
        else:
            stopped.setdefault(own.last_step, []).append(rank)
    signals = [_left(step, found, highest, ahead, ranks) for step, found in sorted(left.items())[:MAX_SIGNALS]]
    signals += [_stopped(step, found, highest, ahead, ranks) for step, found in sorted(stopped.items())[:MAX_SIGNALS]]
    waiting = waits.keys() - {rank for rank, _ in done}
    # Who waits in one call with a peer that did not go on has gone past nothing.
    joined = set[tuple[object, ...]]().union(*(waits[rank] for rank in waiting))
    done = [(rank, line) for rank, line in done if joined.isdisjoint(waits.get(rank, ()))]
    if done and waiting:
        signals.append(_done_first(done, highest, ranks))
    return signals + _skipped(ranks, left_out_steps(timeline, ranks))


def _done_first(done: list[tuple[int, Line]], last_step: int, ranks: dict[int, OwnerMetrics]) -> Signal:
    """Ranks that did all steps and went on while their peers, with as many steps before them, hung."""
    name = "log.done_before_peers"
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(rank for rank, _ in done)),
        facts={"last_step": last_step, "line": clean_text(done[0][1].text), "n_ranks": len(ranks)},
        evidence=[quote(line, name) for _, line in done[:2]],
        time_s=done[0][1].time_s,
    )


def _left(step: int, found: list[tuple[int, Line]], highest: int, ahead: Row, ranks: dict[int, OwnerMetrics]) -> Signal:
    name = "log.left_loop_early"
    first_rank, line = found[0]
    last = ranks[first_rank].last_step_row
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(rank for rank, _ in found)),
        facts={
            "last_step": step,
            "peers_last_step": highest,
            "line": clean_text(line.text),
            "n_ranks": len(ranks),
        },
        evidence=[quote(line, name), *([quote(last.line, name)] if last else []), quote(ahead.line, name)],
        time_s=line.time_s,
    )


def _stopped(step: int, found: list[int], highest: int, ahead: Row, ranks: dict[int, OwnerMetrics]) -> Signal:
    name = "log.stopped_early"
    last = ranks[found[0]].last_step_row
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(found)),
        facts={"last_step": step, "peers_last_step": highest, "n_ranks": len(ranks)},
        evidence=[*([quote(last.line, name)] if last else []), quote(ahead.line, name)],
        time_s=last.line.time_s if last else None,
    )


def _skipped(ranks: dict[int, OwnerMetrics], left_out: Mapping[int, Mapping[int, Line]]) -> list[Signal]:
    """Steps that some ranks printed and others, although they went on, did not; those that they say they left out."""
    name = "log.step_skipped"
    known = {rank: own for rank, own in ranks.items() if own.steps is not None}
    if len(known) < 2:
        return []
    by_words = _said_to_be_skipped(known, left_out)
    told = {(rank, signal.facts["step"]) for signal in by_words for rank in signal.scope.ranks}
    common = set[int]().union(*(own.steps or () for own in known.values()))
    signals: list[Signal] = []
    by_steps: dict[tuple[int, ...], list[int]] = {}
    for rank, own in known.items():
        first, last = own.first_step, own.last_step
        if own.steps is None or first is None or last is None or len(own.steps) * 2 < len(common):
            continue  # a rank that logs more rarely than others skips nothing
        missing = tuple(sorted(s for s in common if first < s < last and s not in own.steps and (rank, s) not in told))
        if missing and len(missing) <= 3:
            by_steps.setdefault(missing, []).append(rank)
    for missing, found in list(by_steps.items())[:MAX_SIGNALS]:
        if len(found) * 2 > len(known):
            continue
        peer = next((own for rank, own in known.items() if rank not in found and missing[0] in (own.steps or ())), None)
        rows = peer.rows if peer is not None else []
        shown = next((row for row in rows if row.step == missing[0]), None)
        after = next((row for row in known[found[0]].rows if row.step is not None and row.step > missing[0]), None)
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=sorted(found)),
                facts={"step": missing[0], "n_steps": len(missing), "n_ranks": len(ranks)},
                evidence=[quote(row.line, name) for row in (after, shown) if row is not None],
                time_s=after.line.time_s if after else None,
            )
        )
    return (by_words + signals)[:MAX_SIGNALS]


def _said_to_be_skipped(known: Mapping[int, OwnerMetrics], left_out: Mapping[int, Mapping[int, Line]]) -> list[Signal]:
    """What some ranks say they left out, at a step that the others did or were about to do."""
    name = "log.step_skipped"
    by_step: dict[int, dict[int, Line]] = {}
    for rank, steps in left_out.items():
        for step, line in steps.items():
            if rank in known:
                by_step.setdefault(step, {})[rank] = line
    signals: list[Signal] = []
    for step, lines in sorted(by_step.items()):
        peers = [own for rank, own in known.items() if rank not in lines and own.last_step is not None]
        reached = [own for own in peers if own.last_step is not None and own.last_step >= step - 1]
        if len(lines) * 2 > len(known) or not reached:
            continue  # most of them did so, or nobody else came so far
        first = min(lines.values(), key=lambda line: line.order)
        shown = next((row for row in reached[0].rows if row.step == step), reached[0].last_step_row)
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=sorted(lines)),
                facts={"step": step, "n_steps": 1, "n_ranks": len(known), "said": True},
                evidence=[quote(line, name) for line in (first, *([shown.line] if shown else []))],
                time_s=first.time_s,
            )
        )
    return signals[:MAX_SIGNALS]


def good_signals(timeline: Timeline, *, values_are_well: bool) -> list[Signal]:
    """``log.steps_even`` and ``log.finished``, or ``log.finished_on_some``."""
    signals: list[Signal] = []
    unnamed = timeline.metrics.owners.get(None)
    owners = stepping(timeline) or ({} if unnamed is None else {0: unnamed})
    if values_are_well and owners and (even := _even(owners, timeline)) is not None:
        signals.append(even)
    if (finished := _finished(timeline)) is not None:
        signals.append(finished)
    return signals


def _even(owners: dict[int, OwnerMetrics], timeline: Timeline) -> Signal | None:
    name = "log.steps_even"
    one = next(iter(owners.values()))
    ranks = stepping(timeline)
    if _said_to_be_skipped(ranks, left_out_steps(timeline, ranks)):
        return None
    for own in owners.values():
        if own.first_step is None or own.last_step is None or own.first_step == own.last_step:
            return None
        if (own.first_step, own.last_step) != (one.first_step, one.last_step) or own.steps != one.steps:
            return None
    named = sorted(rank for rank in ranks if rank in owners)
    rows = [own.last_step_row for own in owners.values() if own.last_step_row is not None][:2]
    return Signal(
        name=name,
        scope=Scope(ranks=named),
        facts={
            "first_step": one.first_step,
            "last_step": one.last_step,
            "n_ranks": len(owners),
            "order": rows[0].line.order if rows else 0,
        },
        evidence=[quote(row.line, name) for row in rows],
        time_s=rows[0].line.time_s if rows else None,
    )


def _finished(timeline: Timeline) -> Signal | None:
    said: dict[int, OwnerLines] = {
        owner: own for owner, own in timeline.owners.items() if isinstance(owner, int) and own.last_own is not None
    }
    named = sorted(said)
    if not said:
        nobody = timeline.owners.get(None)
        if nobody is None or nobody.last_own is None:
            return None
        said = {0: nobody}
    name = "log.finished"
    ended = {owner: own for owner, own in said.items() if own.last_own_is_finish}
    if not ended:
        return None
    if len(ended) < len(said):
        # Often only one rank prints that the job is done.
        name, named, said = "log.finished_on_some", sorted(ended), ended
    lines = [own.last_own for own in said.values() if own.last_own is not None]
    return Signal(
        name=name,
        scope=Scope(ranks=named),
        facts={"n_ranks": len(said)},
        evidence=[quote(line, name) for line in lines[:4]],
        time_s=lines[-1].time_s,
    )
