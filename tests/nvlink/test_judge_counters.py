"""Error counters: growth, lives that stand out, rates."""

from __future__ import annotations

import pytest

from nvlink.link_answers import counters, faults, judged

FEC = [f"FEC Errors - {number}" for number in range(16)]


def node(set_to: dict[tuple[int, str], object], labels: tuple[str, ...] | list[str] = ()) -> list[str]:
    """GPUs 0 and 1; what is set is GPU 1's."""
    given = labels or ("Replay Errors", "Recovery Errors", "CRC Errors")
    return [*counters(0, labels=given), *counters(1, labels=given, set_to=set_to)]


def test_zeros_are_sound() -> None:
    assert faults(node({})) == []


def test_what_grows_between_two_readings_is_a_fault() -> None:
    before, after = node({(3, "Replay Errors"): 4}), node({(3, "Replay Errors"): 6})
    assert faults([*before, *after]) == [("errors_grow", "degraded", (3,))]
    assert faults(after, baseline=before) == [("errors_grow", "degraded", (3,))]


def test_files_that_do_not_tell_whose_they_are_are_no_two_moments() -> None:
    def scrubbed(errors: int) -> list[str]:
        lines = counters(0, set_to={(3, "Replay Errors"): errors})
        return [line.partition(" (UUID")[0] for line in lines]

    assert faults(scrubbed(1), scrubbed(3)) == []
    assert faults([*scrubbed(1), *scrubbed(3)]) == [("errors_grow", "degraded", (3,))]
    assert faults(counters(0), counters(0, set_to={(3, "Replay Errors"): 2})) == [("errors_grow", "degraded", (3,))]


def test_what_is_old_is_none() -> None:
    reading = node({(3, "Replay Errors"): 900})
    assert faults(reading) == [("errors_stand_out", "degraded", (3,))]
    found = judged(reading, baseline=reading)
    assert found.faults == []
    assert ["since the baseline" in finding.says for finding in found.findings] == [True]


def test_a_counter_that_was_reset_is_said_and_not_counted() -> None:
    found = judged(node({(3, "CRC Errors"): 2}), baseline=node({(3, "CRC Errors"): 5000}))
    assert found.faults == []
    assert any("was reset" in finding.says for finding in found.findings)


def test_one_recovery_in_a_life_is_no_fault() -> None:
    labels = ["Link recovery successful events", "Total link recovery events"]
    assert faults(node({(0, labels[0]): 1, (0, labels[1]): 1}, labels)) == []
    assert faults(node({(0, labels[0]): 505}, labels)) == [("errors_stand_out", "degraded", (0,))]


def test_counts_that_all_links_have_do_not_stand_out() -> None:
    everywhere: dict[tuple[int, str], object] = {(link, "Replay Errors"): 12 + link % 3 for link in range(18)}
    assert faults([*counters(0, set_to=everywhere), *counters(1, set_to=everywhere)]) == []


def test_a_counter_at_its_end_is_told() -> None:
    found = judged(node({(0, "CRC Errors"): 65535})).faults
    assert [(f.kind, "where this counter ends" in f.says) for f in found] == [("errors_stand_out", True)]


@pytest.mark.parametrize(("rate", "bad"), [("15e-255", False), ("15e-238", False), ("3e-14", False), ("2e-9", True)])
def test_bit_error_rates_are_held_against_their_limit(rate: str, bad: bool) -> None:
    labels = ["Effective Errors", "Effective BER"]
    assert bool(faults(node({(2, "Effective BER"): rate}, labels))) == bad


def test_deep_bins_of_forward_error_correction_count_and_shallow_ones_do_not() -> None:
    clean: dict[tuple[int, str], object] = {(link, "FEC Errors - 0"): 36_140_749_276 for link in range(18)}
    assert faults(node(clean | {(1, "FEC Errors - 1"): 40}, FEC)) == []
    assert faults(node(clean | {(1, "FEC Errors - 5"): 5200}, FEC)) == [("bit_errors_high", "degraded", (1,))]
    before, after = node({(1, "FEC Errors - 4"): 1}, FEC), node({(1, "FEC Errors - 4"): 60}, FEC)
    assert faults(after, baseline=before) == [("errors_grow", "degraded", (1,))]


def test_a_high_share_of_repaired_words_is_told() -> None:
    told: dict[tuple[int, str], object] = {(1, "FEC Errors - 0"): 10_000_000, (1, "FEC Errors - 1"): 400}
    assert faults(node(told, FEC)) == [("bit_errors_high", "degraded", (1,))]


def test_counters_that_are_not_known_are_listed_and_not_judged() -> None:
    found = judged(node({(0, "Frobnicated Things"): 10**9}, ["Frobnicated Things"]))
    assert found.faults == []
    assert any("frobnicated things" in gap for gap in found.gaps)
