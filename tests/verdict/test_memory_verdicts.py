"""Verdicts on out-of-memory failures from logs alone: the right mode, or several, and silence where nothing failed."""

from __future__ import annotations

import pytest

import torchtriage

SITE = "/opt/env/lib/python3.12/site-packages/"
CALL = (SITE + "torch/nn/modules/module.py", "_call_impl")
ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
)
STEPS = [f"[rank{rank}] step {step} loss 2.{9 - step}000" for step in range(1, 4) for rank in (0, 1)]
RUNTIME_ERROR = "torch.AcceleratorError: CUDA error: out of memory"


def message(
    asked: str = "1.00 GiB", allocated: str = "76.00 GiB", unallocated: str = "512.00 MiB", own: str = "77.50 GiB",
    others: str = "", allowed: str = "", free: str = "640.00 MiB",
) -> str:  # fmt: skip
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 1 has a total capacity of 80.00 "
        f"GiB of which {free} is free. {others}Including non-PyTorch memory, this process has {own} memory in use. "
        f"{allowed}Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by "
        f"PyTorch but unallocated.{ADVICE}"
    )


def failure(*frames: tuple[str, str], last: str, rank: int = 1) -> list[str]:
    lines = ["Traceback (most recent call last):", '  File "/job/run.py", line 3, in main', "    loop()"]
    for file, function in frames:
        lines += [f'  File "{file}", line 12, in {function}', "    call()"]
    return [f"[rank{rank}]: {line}" for line in [*lines, last]]


OPTIMIZER = [(SITE + "torch/optim/adamw.py", "step"), (SITE + "torch/optim/adamw.py", "_init_group")]
CASES = {
    "optimizer-state-oom-at-first-step": [
        *failure(*OPTIMIZER, last=message(), rank=0),
        *failure(*OPTIMIZER, last=message(), rank=1),
    ],
    "eval-outputs-accumulate-on-gpu": [
        *STEPS,
        *failure((SITE + "transformers/trainer_pt_utils.py", "nested_concat"), last=message()),
    ],
    "allocator-fragmentation": [
        *STEPS, *failure(CALL, last=message(asked="300.00 MiB", allocated="50.00 GiB", unallocated="26.00 GiB")),
    ],
    "foreign-process-occupies-gpu": [
        *failure(CALL, last=message(allocated="20.00 GiB", own="21.00 GiB",
                                    others="Process 4711 has 58.00 GiB memory in use. ")),
    ],
    "activation-peak-exceeds-memory": [
        *(f"[rank{rank}] step {n} loss 2.0 peak_memory {20 + n // 9}.00 GiB" for n in range(6) for rank in (0, 1)),
        *failure(CALL, last=message()),
    ],
    "attention-scores-materialized": [
        *failure(CALL, ("/job/model.py", "eager_attention_forward"), last=message(asked="24.00 GiB", free="9.00 GiB",
                                                                             allocated="69.00 GiB")),
    ],
    "unsharded-gradients-kept-during-accumulation": failure(
        (SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "to_accumulated_grad_if_needed"), last=message()
    ),
    "colocated-engine-memory-budget-too-large": [
        "[rank1] engine config: gpu_memory_utilization=0.3",
        *failure(CALL, last=message(free="50.00 GiB", allowed="24.00 GiB allowed; ", allocated="23.00 GiB",
                                    own="24.50 GiB")),
    ],
    "rank-bound-to-wrong-gpu": [
        *failure(CALL, last=message(allocated="38.00 GiB", own="39.00 GiB",
                                    others="Process 4711 has 40.00 GiB memory in use. ")),
        "failed (exitcode: 1) local_rank: 1 (pid: 4712) of binary: python",
        "Sending process 4711 closing signal SIGTERM",
    ],
    "oom-surfaces-as-library-error": failure(CALL, last=RUNTIME_ERROR),
    "pinned-host-allocation-failed-or-inflated": failure(
        (SITE + "torch/utils/data/_utils/pin_memory.py", "do_one_step"), last=RUNTIME_ERROR
    ),
    "full-state-dict-gathered-on-every-rank": failure(
        (SITE + "torch/distributed/fsdp/_state_dict_utils.py", "_full_post_state_dict_hook"),
        last="RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.",
    ),
    "checkpoint-loaded-to-cpu-by-every-rank": failure(
        (SITE + "torch/serialization.py", "load"),
        last="RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", CASES)
def test_a_log_leads_to_its_mode_as_a_file_and_as_a_pasted_text(tmp_path, mode):
    (tmp_path / "train.log").write_text("\n".join(CASES[mode]), encoding="utf-8")
    of_file = torchtriage.triage([str(tmp_path)])
    assert (of_file.failure_mode, of_file.status in ("suspected", "diagnosed")) == (mode, True)
    assert torchtriage.explain_symptom("\n".join(CASES[mode])).failure_mode == mode


def test_a_message_alone_leaves_several_modes_and_none_that_its_numbers_exclude():
    verdict = torchtriage.explain_symptom(message())
    names = [candidate.failure_mode for candidate in verdict.candidates]
    assert verdict.status == "inconclusive"
    assert {"activation-peak-exceeds-memory", "tensors-kept-alive-across-steps"} <= set(names)
    assert "allocator-fragmentation" not in names


def test_many_gibibytes_outside_the_allocator_bring_the_communicators_in():
    verdict = torchtriage.explain_symptom("\n".join([*STEPS, *failure(CALL, last=message(allocated="64.00 GiB"))]))
    assert "communicator-buffers-outside-allocator" in [c.failure_mode for c in verdict.candidates]


def test_a_size_that_cannot_be_is_an_exception_and_no_lack_of_memory():
    last = "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."
    verdict = torchtriage.explain_symptom("\n".join([*STEPS, *failure(CALL, last=last)]))
    assert verdict.failure_mode == "python-exception-on-one-rank"


def test_a_rank_that_skipped_its_batch_did_not_fail(tmp_path):
    told = message().partition(": ")[2]
    lines = [*STEPS, f"[rank1] WARNING skipping batch: {told}", "[rank0] step 4 loss 2.4", "[rank1] step 4 loss 2.4"]
    finish = ["[rank0] training finished", "[rank1] training finished"]
    (tmp_path / "train.log").write_text("\n".join([*lines, *finish]), encoding="utf-8")
    verdict = torchtriage.triage([str(tmp_path)])
    assert verdict.failure_mode is None
    assert all(e.signal != "log.cuda_out_of_memory" for e in verdict.evidence)


def test_the_kernels_log_beside_the_jobs_tells_how_much_memory_the_killed_rank_held(tmp_path):
    (tmp_path / "train.log").write_text(
        "\n".join([*STEPS, "failed (exitcode: -9) local_rank: 1 (pid: 640) of binary: python"]), encoding="utf-8"
    )
    (tmp_path / "dmesg.txt").write_text(
        "[ 5.100000] eth0: link up\n[ 7.250000] Out of memory: Killed process 640 (python) total-vm:9437184kB, "
        "anon-rss:8388608kB, file-rss:0kB\n",
        encoding="utf-8",
    )
    verdict = torchtriage.triage([str(tmp_path)])
    assert (verdict.failure_mode, verdict.culprits.ranks) == ("process-killed-by-sigkill", [1])
    assert "8.00 GiB" in verdict.summary
    assert {e.artefact for e in verdict.evidence} >= {"train.log", "dmesg.txt"}


def test_a_kill_of_somebody_elses_process_says_nothing_about_the_job(tmp_path):
    finish = ["[rank0] training finished", "[rank1] training finished"]
    (tmp_path / "train.log").write_text("\n".join([*STEPS, *finish]), encoding="utf-8")
    (tmp_path / "dmesg.txt").write_text(
        "[ 5.100000] eth0: link up\n[ 7.250000] Out of memory: Killed process 9 (java) total-vm:9kB, anon-rss:8kB\n",
        encoding="utf-8",
    )
    assert torchtriage.triage([str(tmp_path)]).failure_mode is None
