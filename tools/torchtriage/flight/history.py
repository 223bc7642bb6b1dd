"""What a sequence of calls leads one to expect next: training repeats itself, so its past says who broke with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HISTORY = 4096
MAX_CONTEXT = 16

NOVEL, OUT_OF_PLACE, CONTINUES = 0, 1, 2


def followers(history: Sequence[int]) -> set[int]:
    """What came after the longest recent run of calls that occurred before; empty when nothing did."""
    past = list(history[-MAX_HISTORY:])
    if not past:
        return set()
    matches = [i for i in range(len(past) - 1) if past[i] == past[-1]]
    for n in range(2, MAX_CONTEXT + 1):
        longer = [i for i in matches if i >= n - 1 and past[i - n + 1] == past[-n]]
        if not longer:
            break
        matches = longer
    return {past[i + 1] for i in matches}


def place_of(call: int, history: Sequence[int]) -> int:
    """How a call fits what came before it on its own rank: it continues that, is out of place, or was never seen."""
    if call in followers(history):
        return CONTINUES
    return OUT_OF_PLACE if call in history[-MAX_HISTORY:] else NOVEL
