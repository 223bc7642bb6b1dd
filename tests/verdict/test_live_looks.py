"""What two looks at a running job, its recorder and its logs say together, by the real playbook."""

from __future__ import annotations

from typing import Any

import pytest

from torchtriage.knowledge.load import load_playbook
from torchtriage.verdict.decide import LIKELY, decide
from torchtriage.verdict.findings import Findings, Observation
from torchtriage.verdict.gather import pattern_key
from torchtriage.verdict.health import job_goes_on, reasons_against_health

CIRCLE: dict[str, Any] = {"collective": "all_reduce", "entered_alone": False, "by_rank_zero": False, "sure": True}


def seen(name: str, *ranks: int, **facts: Any) -> Observation:
    return Observation(name=name, ranks=frozenset(ranks), facts=facts, evidence=())


def said(mode: str, text: str, *ranks: int) -> Observation:
    """A line of a log that the entry looks for."""
    conditions = [c for c in load_playbook().entries[mode].conditions() if text in c.texts]
    key = pattern_key(text, conditions[0].regex)
    return Observation("log.pattern", frozenset(ranks), {"count": 1}, (), pattern=key)


def answer(*observed: Observation, n_ranks: int = 2) -> tuple[str | None, set[int], float]:
    best = decide(load_playbook(), observed, range(n_ranks)).assessments
    if not best or best[0].confidence < LIKELY:
        return None, set(), 0.0
    return best[0].entry.id, set(best[0].ranks), best[0].confidence


def test_two_orders_that_are_both_to_be_seen_are_diagnosed() -> None:
    found = answer(seen("flight.order_deadlock", 1, **CIRCLE, all_joined=True, turn="next"))
    assert found[:2] == ("group-order-differs-between-ranks", {1})
    assert found[2] > 0.8


def test_a_circle_in_which_calls_are_yet_to_be_made_is_at_most_likely() -> None:
    lag = seen("ras.opposite_lag", 0, 1)
    device = seen("stacks.waiting_on_gpu", 0, 1, all_ranks=True, certain=True)
    found = answer(seen("flight.order_deadlock", 1, **CIRCLE, all_joined=False, turn="next"), lag, device)
    assert found[0] == "group-order-differs-between-ranks"
    assert found[2] <= 0.7


def test_a_rank_of_a_circle_that_is_a_step_ahead_left_a_call_out() -> None:
    circle = seen("flight.order_deadlock", 1, **CIRCLE, all_joined=False, turn="next")
    found = answer(circle, seen("log.stopped_early", 0, last_step=4, peers_last_step=5))
    assert found[:2] == ("collective-skipped-on-one-rank", {1})


def test_a_rank_of_a_circle_that_says_that_its_data_ended_left_the_loop() -> None:
    circle = seen("flight.order_deadlock", 1, **CIRCLE, all_joined=False, turn="elsewhere")
    assert answer(circle)[0] is None
    found = answer(circle, said("uneven-batches-per-rank", "end of training data", 1))
    assert found[:2] == ("uneven-batches-per-rank", {1})


@pytest.mark.parametrize(("ahead", "mode"), [((0, 1, 3), "collective-skipped-on-one-rank"), ((0, 1), None)])
def test_by_stacks_alone_a_rank_left_a_call_out_only_when_all_others_are_a_step_behind(
    ahead: tuple[int, ...], mode: str | None
) -> None:
    stands = {"all_ranks": True, "certain": True}
    found = answer(
        seen("stacks.in_collective", 0, 1, 2, 3, **stands), seen("stacks.still", 0, 1, 2, 3, **stands),
        seen("stacks.different_place", 2, where="a", majority_where="b", by_rank_zero=False),
        seen("log.stopped_early", *ahead, last_step=4, peers_last_step=5), n_ranks=4,
    )  # fmt: skip
    assert found[0] == mode


@pytest.mark.parametrize(("state", "facts", "mode"), [
    ("lock_wait", {"thread_state": "network_io"}, "logging-call-blocks-one-rank"),
    ("lock_wait", {"child_state": "idle", "child_where": "build (a.py:1)"}, "forked-worker-deadlocks"),
    ("native_running", {"holds_gil": True}, "native-call-holds-gil"),
    ("checkpointing", {}, "rank0-only-work-outlasts-timeout"),
])  # fmt: skip
def test_what_one_rank_does_while_its_peers_wait_counts_when_it_is_seen_twice(
    state: str, facts: dict[str, Any], mode: str
) -> None:
    once = seen(f"stacks.{state}", 1, peers_waiting=True, certain=True, where="f (a.py:2)", **facts)
    assert answer(once)[0] is None
    assert answer(once, seen("stacks.still", 0, 1, all_ranks=True))[:2] == (mode, {1})


def test_a_rank_that_leaves_by_its_own_decision_makes_all_others_lose_it() -> None:
    lost = seen("log.python_exception", 0, 2, cascade=True, type="RuntimeError")
    decided = said("rank-local-decision-not-agreed", "time budget used up", 1)
    assert answer(lost, decided, n_ranks=3)[:2] == ("rank-local-decision-not-agreed", {1})


def running(*observed: Observation) -> Findings:
    return Findings(observations=[seen("log.steps_even", 0, 1, 2), *observed], ranks={0, 1, 2})


def test_a_running_job_whose_ranks_all_move_is_healthy() -> None:
    findings = running(seen("stacks.moving", 0, 1, 2))
    assert job_goes_on(findings)
    assert reasons_against_health(findings) == []


def test_one_rank_that_waited_where_all_wait_and_went_on_shows_that_the_job_goes_on() -> None:
    waits = seen("stacks.in_collective", 0, 1, 2, all_ranks=True)
    assert job_goes_on(running(waits, seen("stacks.moving", 2, waited=True)))
    assert not job_goes_on(running(waits, seen("stacks.moving", 2, waited=False)))
    assert not job_goes_on(running(waits, seen("stacks.moving", 2, waited=True), seen("stacks.different_place", 1)))


def test_trouble_in_a_job_that_goes_on_is_trouble() -> None:
    findings = running(seen("stacks.moving", 0, 1, 2), seen("log.nonfinite_metric", 0, metric="loss"))
    assert reasons_against_health(findings)


LOADS = seen(
    "stacks.data_loading", 1, peers_waiting=True, certain=True, why="waits for the DataLoader", where="b (a.py:2)"
)
WAIT = seen("stacks.in_collective", 0, 2, certain=True, where="train (a.py:9)")


def test_a_rank_that_a_second_look_finds_where_its_peers_wait_did_not_hang() -> None:
    assert answer(LOADS, WAIT, n_ranks=3)[:2] == ("dataloader-worker-blocked-in-read", {1})
    assert answer(LOADS, WAIT, seen("stacks.moving", 1, where_later="train (a.py:9)"), n_ranks=3)[0] is None
    polls = seen("stacks.moving", 1, where_later="poll (a.py:3)")
    assert answer(LOADS, WAIT, polls, n_ranks=3)[:2] == ("dataloader-worker-blocked-in-read", {1})


def test_nothing_hangs_where_a_rank_that_waited_for_its_peers_went_on() -> None:
    assert answer(LOADS, WAIT, seen("stacks.moving", 2, waited=True, where_later="step (a.py:4)"), n_ranks=3)[0] is None


@pytest.mark.parametrize(("oldest_wait_s", "found"), [(0.6, None), (4.0, "rank0-only-work-outlasts-timeout")])
def test_a_wait_that_began_after_the_first_look_is_no_stall(oldest_wait_s: float, found: str | None) -> None:
    """A job that saves often is found at its save by both looks, and its peers in the barrier after it."""
    looks = [
        seen("stacks.checkpointing", 0, peers_waiting=True, certain=True),
        seen("stacks.waiting_on_gpu", 1, all_but_one=True, certain=True),
        seen("stacks.still", 0, 1, all_ranks=True, seconds_between=3.0),
    ]
    young = seen("flight.waits_young", 0, 1, oldest_wait_s=oldest_wait_s)
    assert answer(*looks, young)[0] == found
