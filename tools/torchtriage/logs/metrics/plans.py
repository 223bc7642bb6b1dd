"""Where the numbers of a progress line are: its step, and the named values.

Forms: ``step 3 loss 7.06``, ``step: 3``, ``step=3, loss=7.06``, Megatron's ``iteration 10/ 100 | lm loss: 7.1E+00 |``,
the Trainer's ``{'loss': 7.1, 'grad_norm': 0.3}``, torchtitan's ``step: 10  loss:  7.1  memory: 40.2GiB(50.7%)``,
DeepSpeed's ``step=10, skipped=0, lr=[0.0001]``, verl's ``step:1 - actor/pg_loss:0.1``, JSON lines, tqdm's
``10/100 [00:12<01:40, 1.1s/it, loss=7.1]``. Works on templates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.metrics.names import STEP_TIME, TRACKED, UNIT, Meaning, meaning_of, varies

Span = tuple[int, int]

_DIGITS = r"(?:0{1,3}(?:,000)+(?![\d.])|0+(?:\.0*)?(?:[eE][+\-]?0{1,3})?|\.0+)"
_NUMBER = rf"(?:[+\-]?{_DIGITS}(?=[ ]?(?:{UNIT})(?![\w/])|(?!\w))|[+\-]?(?:nan|NaN|NAN|inf|Inf|INF|[iI]nfinity)(?!\w))"
_UNIT_BEHIND = lazy_re(rf"[ ]?(?P<unit>{UNIT})(?![\w/])|(?P<percent>%)")
_STEP_WORDS = (
    r"(?:global[_ ]|train(?:ing)?[_ /]|optim(?:izer)?[_ ])?(?:[sS]tep|STEP|[iI]ter(?:ation)?|ITER|[uU]pdate)|it"
)
_STEP = lazy_re(
    rf"(?<![\w.])['\"]?(?:{_STEP_WORDS})['\"]?\s{{0,3}}[:=#]?\s{{0,16}}\[?['\"]?(?P<step>0{{1,10}})(?![\w.%]|,0)"
    # "step 3 of the guide" is a step of another kind.
    r"(?![ ](?:of|in|from|for)[ ](?:the|this|that|a|an|each|our|your|my|its)\b)"
)
# "saving at step 500", "total steps: 1000" name a step that is not one of the loop just done.
_NOT_PROGRESS = lazy_re(
    r"(?i)\b(?:sav|load|resum|restor|checkpoint|skip|total|max|num|warm|every|remain|until|after|from|last|next|before|"
    r"overflow|eval|valid|retry|attempt)"
)
# Numbers that count something other than training steps, by which lines of different ranks can still be compared.
_INDEX = lazy_re(
    r"(?<![\w.])(?P<word>layer|micro[_ ]?batch|batch|chunk|bucket|round|rollout|block)"
    r"\s{0,2}[:=#]?\s{0,3}(?P<step>0{1,8})(?![\w.%]|/)"
)
# "Epoch: [0][ 10/1000] Loss 6.9"
_OF_EPOCH = lazy_re(r"[Ee]poch\W{0,3}0{1,6}(?:/0{1,6})?\W{0,3}\[\s{0,8}(?P<step>0{1,10})/\s{0,8}0{1,10}\]")
_TQDM = lazy_re(r"(?<![\w.])(?P<step>0{1,10})/\s{0,3}0{1,10} \[")
_PAIR = lazy_re(
    r"(?<![\w.])(?P<name>[A-Za-z_][\w./\-]{0,60}(?:[ ](?!and\b)[A-Za-z_]\w{0,30}){0,5})"
    r"(?:[ ]?\((?P<unit>[\w/%]{1,12})\))?['\"]?\s{0,8}[:=]\s{0,16}(?:['\"]|\[{1,2}|np\.float00\()?"
    rf"(?P<value>{_NUMBER})"
)
_SPACED = lazy_re(
    rf"(?<![\w.])(?P<name>(?!(?:of|is|no|any)\b)[A-Za-z_][\w./\-]{{0,60}})[ \t]{{1,4}}(?P<value>{_NUMBER})"
)
# Times without a name: tqdm's "1.1s/it", and "step 3 583.6 ms" or "step 3 took 1.2 s".
_PACE = lazy_re(rf"(?<![\w.])(?P<value>{_DIGITS})(?=(?:s/it|it/s)(?![\w/]))")
_BARE_TIME = lazy_re(
    rf"(?:/\s{{0,3}}0{{1,10}})?[\s:|,\-\])]{{1,4}}(?:(?:took|takes|in|done in|time)[ ]?)?(?P<value>{_DIGITS})"
    r"(?=[ ]?(?:ms|s|secs?|seconds)(?![\w/]))"
)
_BARE_NAME = "step_time"
_EVALUATION = lazy_re(r"(?i)\b(?:eval|valid|test)")
_LOSS = lazy_re(r"(?i)loss|perplexity|\bppl\b|grad[_ ]?norm|gradient norm")
_SCALE = lazy_re(r"(?i)scale")
HINTS = (
    "step", "iter", "update", "it ", "it:", "it=", "loss", "ppl", "perplexity", "grad", "layer", "batch", "chunk",
    "bucket", "round", "rollout", "block",
)  # fmt: skip
MAX_FIELDS = 32


@dataclass(frozen=True)
class Field:
    """One named number of a line."""

    name: str
    start: int
    end: int
    compared: bool
    """A whole number that ought to be the same on all ranks."""
    finite: bool
    meaning: Meaning | None = None
    commas: bool = False
    paces: bool = False
    """It is the time of a step, or how many steps there are per second."""


@dataclass(frozen=True)
class MetricPlan:
    """Where a progress line has its numbers; ``index`` says what ``step`` counts ("step", or "layer", ...)."""

    index: str
    step: Span | None
    fields: tuple[Field, ...]
    evaluates: bool
    """The line is about an evaluation, so its numbers are not those of training."""
    measured: tuple[Field, ...]
    """The fields of which the meaning is known."""
    tracked: tuple[Field, ...]
    """The fields of which extremes are kept."""


def plan_metrics(template: str, start: int, end: int) -> MetricPlan | None:
    """Find step and named values in ``template[start:end]``; None when it is no progress line."""
    text = template[start:end].lower()
    if ("0" not in text and "nan" not in text and "inf" not in text) or not any(hint in text for hint in HINTS):
        return None
    step, index = _find_step(template, start, end)
    fields: dict[str, Field] = {}
    taken = [step] if step is not None else []
    for pattern in (_PAIR, _SPACED):
        if pattern is _SPACED and step is None:
            break
        for match in pattern.finditer(template, start, end):
            a, b = match.span("value")
            name = normal_name(match["name"])
            if any(a < y and x < b for x, y in taken) or name in fields or len(fields) >= MAX_FIELDS:
                continue
            taken.append((a, b))
            fields[name] = _field(template, name, a, b, match.groupdict().get("unit") or "")
    loss_like = any(is_loss_like(name) for name in fields)
    if step is None and not loss_like:
        return None
    if step is None and (tqdm := _TQDM.search(template, start, end)):
        step, index = tqdm.span("step"), "step"
    if (pace := _find_pace(template, step, start, end)) is not None and not _has_pace(fields):
        fields.setdefault(_BARE_NAME, _field(template, _BARE_NAME, *pace, ""))
    first = min((a for a, _ in taken), default=start)
    evaluates = _EVALUATION.search(template, start, first) is not None
    measured = () if evaluates else tuple(spot for spot in fields.values() if spot.meaning is not None)
    tracked = tuple(spot for spot in measured if spot.meaning is not None and spot.meaning.name in TRACKED)
    return MetricPlan(index, step, tuple(fields.values()), evaluates, measured, tracked)


def _field(template: str, name: str, start: int, end: int, unit: str) -> Field:
    text = template[start:end]
    behind = _UNIT_BEHIND.match(template, end)
    found = behind["unit"] if behind is not None else None
    digits = len(text) if text.isdigit() else 0
    percent = behind is not None and behind["percent"] is not None
    meaning = meaning_of(name, unit or found or "", is_percent=percent, whole_digits=digits)
    compared = text.strip("+-").replace(",", "").isdigit() and not found and not unit and not varies(name)
    finite = text[-1:].isdigit() or text[-1:] == "."
    meaning = meaning if finite else None
    paces = meaning is not None and meaning.name == STEP_TIME
    return Field(name, start, end, compared, finite, meaning, "," in text, paces)


def _find_pace(template: str, step: Span | None, start: int, end: int) -> Span | None:
    if (pace := _PACE.search(template, start, end)) is not None:
        return pace.span("value")
    bare = _BARE_TIME.match(template, step[1], end) if step is not None else None
    return bare.span("value") if bare is not None else None


def _has_pace(fields: dict[str, Field]) -> bool:
    return any(spot.paces for spot in fields.values())


def _find_step(template: str, start: int, end: int) -> tuple[Span | None, str]:
    for match in _STEP.finditer(template, start, end):
        if _NOT_PROGRESS.search(template, start, match.start()) is None:
            return match.span("step"), "step"
        return None, "step"
    if match := _OF_EPOCH.search(template, start, end):
        return match.span("step"), "step"
    if match := _INDEX.search(template, start, end):
        return match.span("step"), normal_name(match["word"])
    return None, "step"


def normal_name(name: str) -> str:
    """One spelling of a metric's name: lower case, words joined by "_"."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())[:80]


def is_loss_like(name: str) -> bool:
    """Say whether a metric must stay finite and near where it was: a loss or a gradient norm, not a loss scale."""
    return _LOSS.search(name) is not None and _SCALE.search(name) is None
