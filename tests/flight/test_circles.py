"""Circles of waits and the one rank without which there would be none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchtriage.flight.circles import MAX_TRIED, blamed, untying

RANKS = st.integers(0, 7)
WAITS = st.dictionaries(RANKS, st.sets(RANKS, max_size=3), max_size=8)


def test_ranks_that_wait_for_nobody_are_at_the_end() -> None:
    assert blamed({0: {1}, 1: {2}, 3: {2}}) == ({2}, [])


def test_a_rank_that_all_circles_run_through_unties_them() -> None:
    waits = {0: {1}, 1: {0}, 2: {0}, 0 + 3: {1}}
    waits[0] = {1, 2}
    (cycle,) = blamed(waits)[1]
    assert untying(cycle, waits) == [0]


def test_in_a_single_circle_every_rank_would_untie_it() -> None:
    waits = {rank: {(rank + 1) % 5} for rank in range(5)}
    assert untying([0, 1, 2, 3, 4], waits) == [0, 1, 2, 3, 4]


def test_two_circles_without_a_common_rank_are_untied_by_none() -> None:
    waits = {0: {1}, 1: {0, 2}, 2: {3}, 3: {2, 0}}
    assert untying([0, 1, 2, 3], waits) == []


def test_a_very_long_circle_is_not_tried_rank_by_rank() -> None:
    n = MAX_TRIED + 1
    assert untying(list(range(n)), {rank: {(rank + 1) % n} for rank in range(n)}) == []


@given(WAITS)
def test_who_unties_a_circle_is_found_as_by_trying_every_rank(waits: dict[int, set[int]]) -> None:
    waits = {rank: others - {rank} for rank, others in waits.items()}
    for cycle in blamed(waits)[1]:
        inside = set(cycle)

        def circular(without: int, inside: set[int] = inside) -> bool:
            left = {r: (o & inside) - {without} for r, o in waits.items() if r in inside and r != without}
            while ends := {r for r in left if not left[r] & left.keys()}:
                left = {r: o for r, o in left.items() if r not in ends}
            return bool(left)

        assert untying(cycle, waits) == [rank for rank in cycle if not circular(rank)]
