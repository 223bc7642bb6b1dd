"""Real two-rank jobs that were made to fail in a known way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchtriage.artefacts.clean import clean_text
from torchtriage.logs.analyze import LogFindings, analyze
from torchtriage.logs.scan.read import PatternSet, scan, text_source
from torchtriage.signals import SIGNALS

if TYPE_CHECKING:
    from torchtriage.report import Signal

DATA = Path(__file__).parent.parent / "data" / "logs"
NO_PATTERNS = PatternSet([])


def findings(name: str) -> LogFindings:
    text = (DATA / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    return analyze(scan([text_source(text, "torchrun.log")], NO_PATTERNS))


def named(found: LogFindings, name: str) -> list[Signal]:
    return [signal for signal in found.signals if signal.name == name]


def trouble(found: LogFindings) -> set[str]:
    return {signal.name for signal in found.signals if SIGNALS[signal.name].health == "trouble"}


def test_a_caught_out_of_memory_error_is_handled_and_no_end():
    found = findings("oom_skip_batch")
    (handled,) = named(found, "log.exception_handled")
    assert (handled.scope.ranks, handled.facts["type"]) == ([1], "OutOfMemoryError")
    (skipped,) = named(found, "log.step_skipped")
    assert (skipped.scope.ranks, skipped.facts["step"]) == ([1], 3)
    assert not named(found, "log.cuda_out_of_memory")
    assert not named(found, "log.steps_even")


def test_a_rank_that_ran_out_of_batches_left_the_loop_early():
    found = findings("uneven_batches")
    (left,) = named(found, "log.left_loop_early")
    assert left.scope.ranks == [1]
    assert left.facts == {"last_step": 4, "peers_last_step": 5, "line": "[rank1] epoch end, saving", "n_ranks": 2}
    # The two ranks wait at different sequence numbers, so their lines do not contradict each other.
    assert not named(found, "log.collectives_differ")


def test_a_rank_that_waits_for_data_stopped_early():
    found = findings("dataloader_stall")
    (stopped,) = named(found, "log.stopped_early")
    assert (stopped.scope.ranks, stopped.facts["last_step"]) == ([1], 2)
    (timeout,) = named(found, "log.watchdog_timeout")
    assert timeout.scope.ranks == [0]
    assert timeout.scope.groups == ["default_pg"]
    assert timeout.facts["progress_by_rank"] == {"0": [12, 10], "1": [10, 10]}


def test_different_operations_at_one_sequence_number_are_seen():
    (differ,) = named(findings("skip_branch"), "log.collectives_differ")
    assert differ.scope.ranks == [0, 1]
    assert differ.facts["by_rank"] == {"0": "ALLREDUCE 65536", "1": "BROADCAST 65536"}


def test_the_process_that_was_killed_is_told_from_the_one_that_the_launcher_ended():
    exits = {signal.scope.ranks[0]: signal.facts for signal in named(findings("sigkill"), "log.process_exit")}
    assert (exits[1]["signal"], exits[1]["first_observed"], exits[1]["by_launcher"]) == ("SIGKILL", True, False)
    assert (exits[0]["signal"], exits[0]["first_observed"], exits[0]["by_launcher"]) == ("SIGTERM", False, True)


def test_a_number_that_differs_at_one_rank_and_step_is_an_outlier():
    (outlier,) = named(findings("shape_mismatch"), "log.metric_outlier")
    assert outlier.scope.ranks == [1]
    facts = {key: outlier.facts[key] for key in ("metric", "step", "usual", "value", "peer_at_step")}
    assert facts == {"metric": "tokens", "step": 4, "usual": 4096, "value": 3968, "peer_at_step": True}


def test_a_layer_that_dispatched_other_token_counts_is_an_outlier():
    (outlier,) = named(findings("a2a_split"), "log.metric_outlier")
    assert (outlier.scope.ranks, outlier.facts["metric"], outlier.facts["value"]) == ([0], "dispatched", 4608)


def test_a_loss_that_explodes_and_becomes_nan_on_all_ranks_is_told_so():
    found = findings("nan_fp16")
    nonfinite = next(s for s in named(found, "log.nonfinite_metric") if s.facts["metric"] == "loss")
    assert nonfinite.scope.ranks == [0, 1]
    assert (nonfinite.facts["step"], nonfinite.facts["all_ranks"], nonfinite.facts["same_step"]) == (4, True, True)
    diverged = next(s for s in named(found, "log.metric_diverged") if s.facts["metric"] == "loss")
    assert (diverged.facts["from"], diverged.facts["to"]) == (7.11, 1413.4059)


@pytest.mark.parametrize(
    ("name", "ranks", "requested", "unallocated", "allowed"),
    [
        ("frag_oom", [1, 0], 14 << 20, round(1.77 * 2**30), round(4.02 * 2**30)),
        ("cotenant_oom", [0], 2 << 30, round(19.58 * 2**20), None),
        ("oom_activation", [0], 96 << 20, None, round(8.05 * 2**30)),
    ],
)
def test_the_numbers_of_an_out_of_memory_message_are_bytes(name, ranks, requested, unallocated, allowed):
    signals = named(findings(name), "log.cuda_out_of_memory")
    assert [signal.scope.ranks[0] for signal in signals] == ranks
    facts = signals[0].facts
    assert facts["requested_bytes"] == requested
    assert unallocated is None or facts["reserved_unallocated_bytes"] == unallocated
    assert facts["allowed_bytes"] == allowed


def test_other_processes_on_the_card_are_listed():
    (oom,) = named(findings("cotenant_oom"), "log.cuda_out_of_memory")
    assert oom.facts["this_process_bytes"] == round(131.85 * 2**30)
    assert len(oom.facts["other_processes_bytes"]) == 4


def test_an_exception_names_its_rank_and_the_users_frame():
    found = findings("rank_exception")
    (exception,) = named(found, "log.python_exception")
    assert exception.scope.ranks == [1]
    assert exception.facts["type"] == "ValueError"
    assert exception.facts["where"] == "run_train_loop (/workspace/llm/train_gpt2.py:155)"
    assert (exception.facts["cascade"], exception.facts["all_ranks"]) == (False, False)


def test_a_device_side_assert_is_an_exception_of_its_rank():
    (exception,) = named(findings("embedding_oob"), "log.python_exception")
    assert (exception.scope.ranks, exception.facts["type"]) == ([1], "AcceleratorError")


@pytest.mark.parametrize("name", ["healthy", "straggler_cpu"])
def test_a_run_that_went_well_has_even_steps_and_no_trouble(name):
    found = findings(name)
    assert trouble(found) == set()
    assert {signal.name for signal in found.signals} == {"log.steps_even", "log.finished"}


def test_ranks_of_processes_are_learnt_from_nccls_lines():
    found = findings("healthy")
    assert (found.rank_of_pid, found.world_size) == ({638: 0, 639: 1}, 2)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.log")), ids=lambda path: path.stem)
def test_every_quotation_is_part_of_the_line_that_it_names(path):
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for signal in findings(path.stem).signals:
        assert signal.evidence
        for evidence in signal.evidence:
            assert evidence.quote
            assert evidence.quote in clean_text(lines[int(evidence.where) - 1], limit=None)
