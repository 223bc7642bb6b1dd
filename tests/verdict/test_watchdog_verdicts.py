"""What triage answers when all that is left of a hang is what the watchdogs printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logs.watchdog.watchdog_lines import DEFAULT, STAMP, dump, failed, step, waits, work
from torchtriage.verdict.tool import triage

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.report import Verdict

TP = "PG ID 1 PG GUID 1(tp)"


def verdict(folder: Path, lines: list[str]) -> Verdict:
    (folder / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return triage([str(folder)])


def observed(rank: int) -> str:
    return (
        f"[rank{rank}]:[{STAMP}] [{DEFAULT} Rank {rank}] Observed flight recorder dump signal from another rank via "
        "TCPStore."
    )


def steps(ranks: int, n_steps: int = 3) -> list[str]:
    return [step(rank, number) for number in range(n_steps) for rank in range(ranks)]


def test_an_open_verdict_names_who_did_not_join_which_collective(tmp_path: Path) -> None:
    lines = steps(4) + [line for r in (0, 1, 3) for line in waits(r)] + [observed(2), dump(2, 18, 18, asked_by=0)]
    found = verdict(tmp_path, lines)
    assert (found.status, found.failure_mode) == ("inconclusive", None)
    assert "rank 2" in found.summary
    assert "ALLREDUCE number 19" in found.summary
    assert "ranks 0-1, 3 wait" in found.summary
    assert "Last enqueued NCCL work: 18" in found.evidence[0].quote
    assert "slow-collective-hits-timeout" not in {c.failure_mode for c in found.candidates}


def test_an_open_verdict_on_calls_that_differ_shows_both(tmp_path: Path) -> None:
    found = verdict(tmp_path, steps(2) + waits(0) + waits(1, operation="BROADCAST"))
    assert found.status == "inconclusive"
    assert "rank 0 in ALLREDUCE 8, rank 1 in BROADCAST 8" in found.summary


@pytest.mark.parametrize(
    ("said", "rank", "mode"),
    [
        ("Saving model checkpoint to out/3", 0, "rank0-only-work-outlasts-timeout"),
        ("Tokenizing the evaluation set", 0, "rank0-only-work-outlasts-timeout"),
        ("Compiling the model for sequence length 4096", 2, "jit-compile-skew-outlasts-timeout"),
    ],
)
def test_a_rank_that_says_what_it_works_on_while_its_peers_time_out_is_suspected(
    tmp_path: Path, said: str, rank: int, mode: str
) -> None:
    peers = [r for r in range(4) if r != rank]
    lines = [*steps(4), f"[rank{rank}] {said}", *(line for r in peers for line in waits(r)), observed(rank)]
    found = verdict(tmp_path, lines)
    assert (found.status, found.failure_mode, found.culprits.ranks) == ("suspected", mode, [rank])


def test_a_rank_other_than_0_that_saves_is_no_rank_0_work(tmp_path: Path) -> None:
    lines = [*steps(4), "[rank2] Saving shard 2", *(line for r in (0, 1, 3) for line in waits(r)), observed(2)]
    assert verdict(tmp_path, lines).failure_mode != "rank0-only-work-outlasts-timeout"


def test_a_call_that_a_rank_went_past_was_skipped(tmp_path: Path) -> None:
    lines = steps(2)
    lines += [work(0, 25), failed(0, 25, 27, 24, TP), work(0, 9), failed(0, 9, 9, 8), dump(0, 9, 8)]
    lines += [work(1, 25), failed(1, 25, 27, 24, TP), dump(1, 8, 8)]
    found = verdict(tmp_path, lines)
    assert (found.status, found.failure_mode) == ("suspected", "collective-skipped-on-one-rank")
    assert found.culprits.ranks == [1]
    assert "Rank 1 never issued ALLREDUCE number 9" in found.summary


def test_rank_0_alone_in_a_call_of_many_ranks_is_suspected(tmp_path: Path) -> None:
    lines = [*steps(4), *waits(0), *(line for r in (1, 2, 3) for line in (observed(r), dump(r, 18, 18, asked_by=0)))]
    found = verdict(tmp_path, lines)
    assert (found.status, found.failure_mode) == ("suspected", "collective-inside-rank0-branch")
    assert found.culprits.ranks == [0]


def test_of_many_ranks_the_one_with_another_size_is_the_culprit(tmp_path: Path) -> None:
    found = verdict(tmp_path, steps(4) + [line for r in range(4) for line in waits(r, numel=9 if r == 2 else 8)])
    assert (found.status, found.failure_mode) == ("suspected", "collective-sizes-or-dtypes-differ-between-ranks")
    assert found.culprits.ranks == [2]


def test_all_ranks_in_one_call_are_nobodys_fault(tmp_path: Path) -> None:
    found = verdict(tmp_path, steps(4) + [line for r in range(4) for line in waits(r)])
    assert (found.status, found.culprits.ranks) == ("inconclusive", [])
    assert "all ranks joined a collective and none finished it" in found.summary


def test_a_batch_that_one_rank_threw_away_explains_its_missing_step(tmp_path: Path) -> None:
    lines = [*steps(2), "[rank1] WARNING batch 7 not used: no labels", step(0, 3), "[rank1] epoch finished, saving"]
    found = verdict(tmp_path, [*lines, *waits(0), *waits(1, 20)])
    assert (found.failure_mode, found.culprits.ranks) == ("exception-handled-on-one-rank-only", [1])


def test_a_silent_rank_is_named_before_those_that_wait_for_it(tmp_path: Path) -> None:
    found = verdict(tmp_path, [line for r in (0, 1, 3, 4) for line in waits(r)])
    assert "prints nothing at all while its peers print (rank 2)" in found.summary
    assert "ranks 0-1, 3-4 wait in ALLREDUCE number 19" in found.summary


def test_waits_of_one_kernel_for_one_rank_are_trouble_and_name_it(tmp_path: Path) -> None:
    waiting = [
        f"Warning: DeepEP timeout for combine receive, rank {r}, local_expert_idx 0, src_rank 2" for r in (0, 1, 3)
    ]
    found = verdict(tmp_path, steps(4) + waiting)
    assert found.status == "inconclusive"
    assert "did not arrive (rank 2)" in found.summary
    assert [c.failure_mode for c in found.candidates] == ["deepep-wait-exceeded-by-peer-jit"]


def test_the_only_rank_that_does_not_report_a_wait_is_named_and_no_gpu_is_blamed(tmp_path: Path) -> None:
    lines = steps(5)
    for r in (0, 1, 2, 4):
        lines.append(f"DeepEP timeout for dispatch receivers, rank {r}, responsible_channel = 3, tokens remained: 17")
        lines.append(
            f"[rank{r}]:[{STAMP}] [{DEFAULT} Rank {r}] Process group watchdog thread terminated with exception: "
            "CUDA error: unspecified launch failure"
        )
    found = verdict(tmp_path, lines)
    assert "(ranks 0-2, 4); only rank 3 does not show this" in found.summary
    assert "gpu-lost-from-bus-or-power" not in {c.failure_mode for c in found.candidates}


def test_where_the_numbers_name_no_rank_a_message_that_does_is_told_beside_them(tmp_path: Path) -> None:
    lines = [f"iteration {n} | lm loss: {'nan' if n > 5 else 2.0} | grad norm: 1.0 |" for n in range(9)]
    lines.append(
        "[rank5]: RuntimeError: Rank 5, node n3, device 5, iteration 9: Unexpected result nan "
        "(message='found NaN in local forward loss calculation')"
    )
    found = verdict(tmp_path, lines)
    assert "lm_loss at step 6; rank 5: A checked value is not as it should be" in found.summary


def test_a_message_after_which_all_ranks_went_on_is_no_headline_of_trouble(tmp_path: Path) -> None:
    waiting = "Warning: DeepEP timeout for combine receive, rank 0, local_expert_idx 0, src_rank 2"
    found = verdict(tmp_path, [waiting, *steps(4, 8)])
    assert not found.summary.startswith("Not decided: DeepEP")
    assert "Nothing wrong was found" not in found.summary
    assert verdict(tmp_path, [*steps(4, 8), waiting]).summary.startswith("Not decided: DeepEP low-latency")
