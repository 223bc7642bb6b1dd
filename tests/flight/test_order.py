"""Circles of waits: another order of two groups, or a part of the program that one rank entered alone."""

from __future__ import annotations

from typing import Any

import pytest

from flight.flight_dumps import call, job
from torchtriage.flight.analyze import analyze

GROUPS = {"all": [0, 1], "dp": [0, 1]}
GRADIENTS = call("all_reduce", 10, group="dp")
NORM = call("all_reduce", 20, group="all")
EVALUATE = call("all_reduce", 77, 1, group="all", function="evaluate", done=False)


def deadlock(*calls: list[dict[str, Any]]) -> tuple[list[int], bool, bool]:
    (signal,) = [s for s in analyze(job(*calls, groups=GROUPS)).signals if s.name == "flight.order_deadlock"]
    return signal.scope.ranks, signal.facts["entered_alone"], signal.facts["by_rank_zero"]


@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_that_waits_where_nobody_called_before_went_there_alone(alone: int) -> None:
    past = [GRADIENTS, NORM] * 4
    calls = [[*past, dict(GRADIENTS, done=False)] for _ in range(2)]
    calls[alone][-1] = EVALUATE
    assert deadlock(*calls) == ([alone], True, alone == 0)


def test_calls_that_both_ranks_repeat_are_used_in_another_order() -> None:
    past = [GRADIENTS, NORM] * 4
    found = deadlock([*past, dict(GRADIENTS, done=False)], [*past, dict(NORM, done=False)])
    assert found == ([1], False, False)


def test_when_both_ranks_wait_at_new_places_nobody_went_alone() -> None:
    save = call("all_gather", 88, group="dp", function="save", done=False)
    assert not deadlock([*[GRADIENTS, NORM] * 4, save], [*[GRADIENTS, NORM] * 4, EVALUATE])[1]


@pytest.mark.parametrize(("went_on", "past_it"), [(True, True), (False, False)])
def test_a_rank_that_lacks_a_call_and_went_on_to_later_ones_went_past_it(went_on: bool, past_it: bool) -> None:
    past = [NORM, GRADIENTS] * 4
    stuck = [dict(NORM, done=False), dict(GRADIENTS, done=False)]
    found = analyze(job([*past, *stuck], [*past, *(stuck[1:] if went_on else [])], groups=GROUPS))
    late = [s for s in found.signals if s.name == "flight.behind_on_enqueue"]
    assert all(signal.scope.ranks == [1] for signal in late)
    assert any(signal.facts.get("went_past", False) for signal in late) is past_it
    assert late


def test_ranks_outside_a_circle_of_two_that_wait_in_one_of_its_calls_say_which_order_is_right() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    norm, gradients = dict(NORM, group="0", done=False), dict(GRADIENTS, group="1", done=False)
    # ranks 2 and 3 enqueued both calls, so that only ranks 0 and 1 wait for each other
    found = analyze(job([norm], [gradients], [norm, gradients], [norm, gradients], groups=groups))
    assert [(d.kind, d.ranks) for d in found.divergences] == [("order_deadlock", [1])]


def test_ranks_of_one_of_the_groups_alone_have_no_word_on_the_order() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1]}
    norm, own = dict(NORM, group="0", done=False), dict(GRADIENTS, group="1", done=False)
    found = analyze(job([norm], [own], [norm], [norm], groups=groups))
    assert [(d.kind, d.ranks) for d in found.divergences] == [("order_deadlock", [0, 1])]


def order(*calls: list[dict[str, Any]]) -> tuple[bool, str]:
    groups = {name: list(range(len(calls))) for name in GROUPS}
    (signal,) = [s for s in analyze(job(*calls, groups=groups)).signals if s.name == "flight.order_deadlock"]
    return signal.facts["all_joined"], signal.facts["turn"]


def test_both_orders_are_seen_only_when_all_ranks_have_made_both_calls() -> None:
    past, gradients, norm = [GRADIENTS, NORM] * 4, dict(GRADIENTS, done=False), dict(NORM, done=False)
    assert order([*past, gradients, norm], [*past, norm, gradients]) == (True, "next")
    assert order([*past, gradients], [*past, norm]) == (False, "next")


def test_a_call_that_never_followed_on_the_one_that_peers_wait_in_is_of_another_part_of_the_program() -> None:
    evaluate = dict(EVALUATE, done=True)
    past = [*[GRADIENTS, NORM] * 4, evaluate, *[GRADIENTS, NORM] * 2]
    stuck = [*past, dict(GRADIENTS, done=False)]
    assert order(stuck, [*past, EVALUATE], stuck) == (False, "elsewhere")


def test_the_turn_of_a_call_that_was_never_made_before_is_not_known() -> None:
    past = [GRADIENTS, NORM] * 4
    assert order([*past, dict(GRADIENTS, done=False)], [*past, EVALUATE]) == (False, "unknown")
