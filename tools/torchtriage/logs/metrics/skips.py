"""Lines in which a rank says that it left out a batch or a step, such as "step=5 skipping batch: bad label".

Only what is rank-local counts: batches passed over after a resume, a checkpoint or an evaluation that is skipped, and a
step that the fp16 loss scaler leaves out (on all ranks alike) are none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.logs.metrics.collect import OwnerMetrics, Row
    from torchtriage.logs.records import Line, Timeline

_WHAT = r"(?:(?:micro|mini)[\-_ ]?)?(?:batch|step|iter(?:ation)?|update|backward)"
_LEFT_OUT = lazy_re(
    rf"(?i)\bskip(?:ping|ped|s)? (?:(?:this|the|a|bad|corrupt(?:ed)?|training|whole|entire|current|empty|invalid|one) )"
    rf"{{0,3}}{_WHAT}\b"
    rf"|\b{_WHAT}\b[^.;]{{0,24}}\bskipped\b(?!\s{{0,3}}[=:])"
)
_AGREED = lazy_re(
    r"(?i)\b(?:resum|restor|checkpoint|already|first|warm|overflow|loss.?scal|scaler|eval|validation|until"
    r"|fast.?forward|will|would|if|to skip)"
)
_NUMBER = lazy_re(r"(?i)\b(?:step|iter(?:ation)?|update)\W{0,3}(\d{1,10})\b")
_BATCH_NUMBER = lazy_re(r"(?i)\bbatch\W{0,3}(\d{1,10})\b")
_SEARCHED_CHARS = 400
MAX_LEFT_OUT = 3


def left_out_steps(timeline: Timeline, ranks: Mapping[int, OwnerMetrics]) -> dict[int, dict[int, Line]]:
    """By rank the steps that it says it left out and has printed in no other line, each with the line that says so.

    A rank that leaves out many does so by its rules for the data: nothing is told of it.
    """
    lines: dict[int, list[Line]] = {}
    for line in timeline.records.get("handled", ()):
        rank, text = line.owner, line.text[:_SEARCHED_CHARS]
        if isinstance(rank, int) and rank in ranks and _LEFT_OUT.search(text) and not _AGREED.search(text):
            lines.setdefault(rank, []).append(line)
    stated: dict[int, dict[int, Line]] = {}
    for rank, said in lines.items():
        if len(said) > MAX_LEFT_OUT:
            continue
        own, rows = ranks[rank], ranks[rank].rows
        for line in said:
            number = _NUMBER.search(line.text[:_SEARCHED_CHARS]) or _BATCH_NUMBER.search(line.text[:_SEARCHED_CHARS])
            step = int(number[1]) if number else _step_at(line, rows)
            if step is not None and not (_is_among(step, own) and _printed_apart(step, line, rows)):
                stated.setdefault(rank, {}).setdefault(step, line)
    return stated


def _step_at(line: Line, rows: Sequence[Row]) -> int | None:
    """The step at which a line without a number stands, where the rank numbers every step."""
    before = [row.step for row in rows if row.step is not None and row.line.key < line.key][-2:]
    return before[1] + 1 if len(before) == 2 and before[1] - before[0] == 1 else None


def _is_among(step: int, own: OwnerMetrics) -> bool:
    return own.steps is None or step in own.steps


def _printed_apart(step: int, line: Line, rows: Sequence[Row]) -> bool:
    """Whether the step is printed besides, or may be, as the lines around were not kept."""
    return any(row.step == step and row.line.key != line.key for row in rows) or all(
        row.line.key != line.key for row in rows
    )
