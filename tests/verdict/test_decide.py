"""Decisions on small playbooks made for the purpose: what the rules mean, apart from what the real entries say."""

from pathlib import Path
from typing import Any

import pytest

from torchtriage.knowledge.entries import entry_from
from torchtriage.knowledge.load import Playbook
from torchtriage.verdict.decide import LIKELY, PROVEN_BY_ONE_KIND, PROVEN_BY_SEVERAL_KINDS, UNSURE, Decision, decide
from torchtriage.verdict.findings import Observation
from torchtriage.verdict.gather import pattern_key


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "title": f"Title of {name}",
        "branch": "hang",
        "culprit": "rank",
        "path": f"hang/{name}.md",
        "summary": [name],
        "proves": [{"all": [{"signal": "flight.order_deadlock"}]}],
        "next_check": {"tool": "triage", "why": "w"},
        "cause": "c",
        "fix": ["f"],
        "confused_with": {},
        **fields,
    }


def book(*entries: dict[str, Any]) -> Playbook:
    return Playbook(entries={e["id"]: entry_from(e) for e in entries}, root=Path(), key="k")


def seen(name: str, ranks: tuple[int, ...] = (), **facts: Any) -> Observation:
    return Observation(name=name, ranks=frozenset(ranks), facts=facts, evidence=())


def names(decision: Decision) -> list[str]:
    return [a.entry.id for a in decision.assessments]


BEHIND_AND_LOADING = entry(
    "stall", proves=[{"all": [{"signal": "flight.behind_on_enqueue"}, {"signal": "stacks.data_loading"}]}]
)


def test_scopes_that_meet_prove_a_mode_and_name_the_rank() -> None:
    observed = [seen("flight.behind_on_enqueue", (1, 2)), seen("stacks.data_loading", (2,))]
    (found,) = decide(book(BEHIND_AND_LOADING), observed, range(4)).assessments
    assert (found.proven, found.ranks, found.confidence) == (True, {2}, PROVEN_BY_SEVERAL_KINDS)


def test_scopes_that_do_not_meet_prove_nothing() -> None:
    observed = [seen("flight.behind_on_enqueue", (1,)), seen("stacks.data_loading", (2,))]
    assert decide(book(BEHIND_AND_LOADING), observed, range(4)).assessments == []


def test_a_condition_may_hold_anywhere_when_the_entry_says_so() -> None:
    loose = entry(
        "loose",
        proves=[{"all": [{"signal": "log.watchdog_timeout", "meets": "anything"}, {"signal": "stacks.stopped"}]}],
    )
    observed = [seen("log.watchdog_timeout", (0,)), seen("stacks.stopped", (3,))]
    (found,) = decide(book(loose), observed, range(4)).assessments
    assert found.ranks == {3}


def test_an_observation_without_ranks_meets_every_other() -> None:
    observed = [seen("flight.behind_on_enqueue", (1,)), seen("stacks.data_loading")]
    (found,) = decide(book(BEHIND_AND_LOADING), observed, range(2)).assessments
    assert found.ranks == {1}


@pytest.mark.parametrize(
    ("where", "facts", "holds"),
    [
        ({"left_loop": True}, {"left_loop": True}, True),
        ({"left_loop": True}, {"left_loop": False}, False),
        ({"left_loop": True}, {}, False),
        ({"left_loop": False}, {}, True),
        ({"exitcode": [-9, 137]}, {"exitcode": 137}, True),
        ({"exitcode": [-9, 137]}, {"exitcode": 1}, False),
        ({"share": {"min": 0.3}}, {"share": 0.3}, True),
        ({"share": {"min": 0.3, "max": 0.5}}, {"share": 0.6}, False),
        ({"share": {"min": 0.3}}, {"share": "much"}, False),
    ],
)
def test_facts_must_fit(where: dict[str, Any], facts: dict[str, Any], *, holds: bool) -> None:
    one = entry("one", proves=[{"all": [{"signal": "log.process_exit", "where": where}]}])
    assert bool(decide(book(one), [seen("log.process_exit", (0,), **facts)], range(2)).assessments) is holds


@pytest.mark.parametrize(
    ("ranks", "shown", "holds"),
    [
        ("one", (1,), True),
        ("one", (1, 2), False),
        ("some", (1, 2), True),
        ("some", (0, 1, 2), False),
        ("all", (0, 1, 2), True),
        ("all", (0, 1), False),
    ],
)
def test_how_many_ranks_show_it_may_matter(ranks: str, shown: tuple[int, ...], *, holds: bool) -> None:
    one = entry("one", proves=[{"all": [{"signal": "log.python_exception", "ranks": ranks}]}])
    assert bool(decide(book(one), [seen("log.python_exception", (r,)) for r in shown], range(3)).assessments) is holds


def test_a_line_that_a_playbook_text_names_counts_like_a_signal() -> None:
    one = entry("one", proves=[{"all": [{"log": ["first text", "other text"], "regex": "x"}]}])
    match = Observation("log.pattern", frozenset({1}), {}, (), pattern=pattern_key("other text", "x"))
    assert names(decide(book(one), [match], range(2))) == ["one"]


def test_an_exclusion_at_the_culprit_rules_the_mode_out_and_says_why() -> None:
    one = entry("one", excludes=[{"when": {"signal": "log.python_exception"}, "because": "it raised"}])
    deadlock = seen("flight.order_deadlock", (1,))
    decision = decide(book(one), [deadlock, seen("log.python_exception", (1,))], range(2))
    assert (decision.assessments, [(e.id, why) for e, why in decision.ruled_out]) == ([], [("one", "it raised")])
    assert names(decide(book(one), [deadlock, seen("log.python_exception", (0,))], range(2))) == ["one"]


def test_the_special_case_explains_the_general_one_away() -> None:
    general = entry("general", proves=[{"all": [{"signal": "log.python_exception"}]}])
    special = entry("special", proves=[{"all": [{"log": "device-side assert"}]}], refines=["middle"])
    middle = entry("middle", proves=[{"all": [{"signal": "stacks.stopped"}]}], refines=["general"])
    observed = [
        seen("log.python_exception", (1,)),
        Observation("log.pattern", frozenset({1}), {}, (), pattern=pattern_key("device-side assert", None)),
    ]
    decision = decide(book(general, special, middle), observed, range(2))
    assert names(decision) == ["special"]
    assert [(e.id, why) for e, why in decision.ruled_out] == [("general", "special explains it: Title of special")]


def test_evidence_is_ordinal() -> None:
    likely = entry("likely", proves=[{"strength": "likely", "all": [{"signal": "stacks.stopped"}]}])
    proven = entry("proven", proves=[{"all": [{"signal": "stacks.sleeping"}]}])
    backed = entry(
        "backed", proves=[{"all": [{"signal": "stacks.sleeping"}]}], supports=[{"signal": "flight.behind_on_enqueue"}]
    )
    supported = entry("supported", supports=[{"signal": "flight.behind_on_enqueue"}])
    observed = [seen("stacks.stopped", (1,)), seen("stacks.sleeping", (1,)), seen("flight.behind_on_enqueue", (1,))]
    decision = decide(book(likely, proven, backed, supported), observed, range(2))
    assert names(decision) == ["backed", "proven", "likely", "supported"]
    assert [a.confidence for a in decision.assessments[:3]] == [PROVEN_BY_SEVERAL_KINDS, PROVEN_BY_ONE_KIND, LIKELY]


def test_a_reader_that_was_not_sure_lowers_the_confidence() -> None:
    (found,) = decide(book(entry("one")), [seen("flight.order_deadlock", (1,), sure=False)], range(2)).assessments
    assert found.confidence == round(PROVEN_BY_ONE_KIND * UNSURE, 3)


def test_two_unrelated_proofs_leave_a_doubt() -> None:
    other = entry("other", proves=[{"all": [{"signal": "flight.p2p_mismatch"}]}])
    decision = decide(
        book(entry("one"), other), [seen("flight.order_deadlock", (1,)), seen("flight.p2p_mismatch", (0,))], range(2)
    )
    assert decision.assessments[0].confidence < PROVEN_BY_ONE_KIND


def test_what_happened_first_in_the_log_comes_first() -> None:
    late = entry("a-late", proves=[{"all": [{"signal": "log.process_exit"}]}])
    early = entry("b-early", proves=[{"all": [{"signal": "log.python_exception"}]}])
    observed = [
        Observation("log.process_exit", frozenset({0}), {}, (), order=90.0),
        Observation("log.python_exception", frozenset({1}), {}, (), order=10.0),
    ]
    assert names(decide(book(late, early), observed, range(2))) == ["b-early", "a-late"]


def test_a_setting_or_a_library_names_no_rank() -> None:
    one = entry("one", culprit="config")
    (found,) = decide(book(one), [seen("flight.order_deadlock", (1,))], range(2)).assessments
    assert found.ranks == frozenset()


def test_the_culprit_signal_names_the_rank_within_the_meeting() -> None:
    one = entry("one", culprit_from=["stacks.stopped"])
    observed = [seen("flight.order_deadlock", (1, 2)), seen("stacks.stopped", (2, 3))]
    (found,) = decide(book(one), observed, range(4)).assessments
    assert found.ranks == {2}


AHEAD = entry(
    "ahead", proves=[{"all": [{"signal": "flight.order_deadlock"}, {"signal": "log.stopped_early", "meets": "others"}]}]
)


@pytest.mark.parametrize(("behind", "named"), [((0, 2), [{1}]), ((0,), [{1, 2}]), ((0, 1, 2), []), ((2,), [])])
def test_what_speaks_of_all_others_leaves_the_one_rank_of_which_it_does_not_speak(
    behind: tuple[int, ...], named: list[set[int]]
) -> None:
    observed = [seen("flight.order_deadlock", (1, 2)), seen("log.stopped_early", behind)]
    assert [set(a.ranks) for a in decide(book(AHEAD), observed, range(3)).assessments] == named


def test_what_speaks_of_others_rules_out_a_mode_whose_culprit_it_leaves_out() -> None:
    one = entry("one", excludes=[{"when": {"signal": "log.stopped_early", "meets": "others"}, "because": "b"}])
    observed = [seen("flight.order_deadlock", (1,)), seen("log.stopped_early", (0,))]
    assert names(decide(book(one), observed, range(2))) == []
    assert names(decide(book(one), [observed[0], seen("log.stopped_early", (1,))], range(2))) == ["one"]


@pytest.mark.parametrize(("moving", "branch", "stands"), [
    ((0, 1, 2), "hang", False), ((1, 2), "nccl_timeout", False), ((1,), "hang", True), ((0, 1, 2), "slow", True),
])  # fmt: skip
def test_a_job_of_which_most_ranks_move_does_not_hang(moving: tuple[int, ...], branch: str, stands: bool) -> None:
    observed = [seen("flight.order_deadlock", (1,)), seen("stacks.moving", moving)]
    decision = decide(book(entry("one", branch=branch)), observed, range(3))
    assert names(decision) == (["one"] if stands else [])
    assert [e.id for e, _ in decision.ruled_out] == ([] if stands else ["one"])
