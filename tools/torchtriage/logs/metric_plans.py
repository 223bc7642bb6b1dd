"""Where the numbers of a progress line are: its step, and the named values.

Forms: ``step 3 loss 7.06``, ``step: 3``, ``step=3, loss=7.06``, Megatron's ``iteration 10/ 100 | lm loss: 7.1E+00 |``,
the Trainer's ``{'loss': 7.1, 'grad_norm': 0.3}``, JSON lines, tqdm's ``10/100 [..., loss=7.1]``. Works on templates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Span = tuple[int, int]

_NUMBER = (
    r"[+\-]?(?:0{1,3}(?:,000)+(?![\d.])|0+(?:\.0*)?(?:[eE][+\-]?0{1,3})?|\.0+|"
    r"(?:nan|NaN|NAN|inf|Inf|INF|[iI]nfinity))(?![\w])"
)
_STEP_WORDS = (
    r"(?:global[_ ]|train(?:ing)?[_ /]|optim(?:izer)?[_ ])?(?:[sS]tep|STEP|[iI]ter(?:ation)?|ITER|[uU]pdate)|it"
)
_STEP = re.compile(
    rf"(?<![\w.])['\"]?(?:{_STEP_WORDS})['\"]?\s{{0,3}}[:=#]?\s{{0,16}}\[?['\"]?(?P<step>0{{1,10}})(?![\w.%]|,0)"
)
# "saving at step 500", "total steps: 1000" name a step that is not one of the loop just done.
_NOT_PROGRESS = re.compile(
    r"(?i)\b(?:sav|load|resum|restor|checkpoint|skip|total|max|num|warm|every|remain|until|after|from|last|next|before|"
    r"overflow|eval|valid|retry|attempt)"
)
# Numbers that count something other than training steps, by which lines of different ranks can still be compared.
_INDEX = re.compile(
    r"(?<![\w.])(?P<word>layer|micro[_ ]?batch|batch|chunk|bucket|round|rollout|block)"
    r"\s{0,2}[:=#]?\s{0,3}(?P<step>0{1,8})(?![\w.%]|/)"
)
_TQDM = re.compile(r"(?<![\w.])(?P<step>0{1,10})/\s{0,3}0{1,10} \[")
_PAIR = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z_][\w./\-]{0,60}(?:[ ](?!and\b)[A-Za-z_]\w{0,30}){0,5})"
    r"(?:[ ]?\([\w/%]{1,12}\))?['\"]?\s{0,8}[:=]\s{0,16}['\"]?"
    rf"(?P<value>{_NUMBER})"
)
_SPACED = re.compile(rf"(?<![\w.])(?P<name>[A-Za-z_][\w./\-]{{0,60}})[ ]{{1,4}}(?P<value>{_NUMBER})")
_LOSS = re.compile(r"(?i)loss|perplexity|\bppl\b|grad[_ ]?norm|gradient norm")
_SCALE = re.compile(r"(?i)scale")
_HINTS = (
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
    integer: bool
    finite: bool


@dataclass(frozen=True)
class MetricPlan:
    """Where a progress line has its numbers; ``index`` says what ``step`` counts ("step", or "layer", ...)."""

    index: str
    step: Span | None
    fields: tuple[Field, ...]


def plan_metrics(template: str, start: int, end: int) -> MetricPlan | None:
    """Find step and named values in ``template[start:end]``; None when it is no progress line."""
    text = template[start:end].lower()
    if ("0" not in text and "nan" not in text and "inf" not in text) or not any(hint in text for hint in _HINTS):
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
            text = match["value"]
            taken.append((a, b))
            fields[name] = Field(name, a, b, text.strip("+-").isdigit(), text[-1:].isdigit() or text[-1:] == ".")
    loss_like = any(is_loss_like(name) for name in fields)
    if step is None and not loss_like:
        return None
    if step is None and (tqdm := _TQDM.search(template, start, end)):
        step, index = tqdm.span("step"), "step"
    return MetricPlan(index, step, tuple(fields.values()))


def _find_step(template: str, start: int, end: int) -> tuple[Span | None, str]:
    for match in _STEP.finditer(template, start, end):
        if _NOT_PROGRESS.search(template, start, match.start()) is None:
            return match.span("step"), "step"
        return None, "step"
    if match := _INDEX.search(template, start, end):
        return match.span("step"), normal_name(match["word"])
    return None, "step"


def normal_name(name: str) -> str:
    """One spelling of a metric's name: lower case, words joined by "_"."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())[:80]


def is_loss_like(name: str) -> bool:
    """Say whether a metric must stay finite and near where it was: a loss or a gradient norm, not a loss scale."""
    return _LOSS.search(name) is not None and _SCALE.search(name) is None
