"""What the words of a text speak for, whatever else was pasted beside them."""

import pytest

from torchtriage.report import Verdict
from torchtriage.verdict.tool import explain_symptom

FORM = """### Bug description

### Environment
- Platform: Linux-6.5.0-x86_64
- Python version: 3.11.4
- PyTorch version (GPU?): 2.6.0+cu124 (True)
- Accelerate version: 1.2.0
- Using distributed set-up: yes
[pip3] numpy==2.0.1
[pip3] triton==3.2.0

- [x] I have searched the existing issues
"""
SETTINGS = """model_name: llama
dataset: own
num_workers: 8
gradient_checkpointing: true
save_steps: 200
eval_steps: 200
lr_scheduler_type: cosine
"""
START = "\n".join(
    f"n4:91:{n} [0] NCCL INFO {what}"
    for n, what in enumerate(
        [
            "Bootstrap : Using eth0:10.0.0.4<0>",
            "Channel 00/02 : 0 1",
            "Connected all trees",
            "P2P Chunksize set to 131072",
        ]
    )
)
FRAMES = "\n".join(f"frame #{n}: c10d::ProcessGroupNCCL::run() + 0x{n}a (0x7f in libtorch_cuda.so)" for n in range(6))
REPORTS = {
    "activation-peak-exceeds-memory": "Out of memory on one rank after a day with a flat curve; that batch held a"
    " document three times as long as any other, and we have no maximum length.",
    "uneven-batches-per-rank": "The epoch never ends on two of four ranks: the others ran out of batches and wait in"
    " the barrier after the loop, as my sampler gives each rank another number of batches.",
    "gradients-reduced-every-microbatch": "With 16 accumulation steps the profiler shows a reduce-scatter after every"
    " micro-batch instead of one per step; no_sync has no effect with fully_shard.",
    "optimizer-state-wrong-after-resume": "After each resume the loss is right at first and rises over the next steps;"
    " exp_avg is zero after loading, while the weights are identical.",
}


def first(verdict: Verdict) -> str:
    return verdict.failure_mode or verdict.candidates[0].failure_mode


@pytest.mark.parametrize("mode", REPORTS)
@pytest.mark.parametrize("around", [FORM, SETTINGS, START, FRAMES], ids=["form", "settings", "start", "frames"])
def test_what_stands_around_a_report_does_not_change_what_it_reads_like(mode: str, around: str) -> None:
    assert first(explain_symptom(REPORTS[mode])) == mode
    assert first(explain_symptom(f"{around}\n{REPORTS[mode]}")) == mode
    assert first(explain_symptom(f"{REPORTS[mode]}\n\n{around}")) == mode


def test_a_cause_told_in_the_line_of_the_symptom_is_read() -> None:
    text = (
        "RuntimeError: DeepEP error: timeout (dispatch CPU) in the first step of a new image; the second start passes, "
        "as the kernels of all nodes are compiled by then."
    )
    verdict = explain_symptom(text)
    assert (verdict.status, first(verdict)) == ("inconclusive", "deepep-wait-exceeded-by-peer-jit")


def test_a_report_without_the_words_of_the_field_is_not_about_another_one() -> None:
    text = (
        "Stage 3, which has the language head, needs 14 minutes of autotuning in its first step on a cold cache, and "
        "the other stages die by the 10 minute limit before it is done. The second try passes."
    )
    verdict = explain_symptom(text)
    assert (verdict.status, first(verdict)) == ("inconclusive", "jit-compile-skew-outlasts-timeout")


def test_words_of_the_field_hold_a_text_that_fits_another_field_as_well() -> None:
    text = (
        "On 60 ranks NCCL says connection reset by peer. The oldest line is of rank 37: json.decoder.JSONDecodeError: "
        "Expecting ',' delimiter: line 1 column 40961, and the rest came two seconds later."
    )
    assert explain_symptom(text).status != "out_of_domain"


def test_words_name_what_a_killed_process_is_only_the_end_of() -> None:
    text = (
        "It dies while the checkpoint is loaded: each of the 8 processes reads the whole 70B model into host memory, "
        "and all of the 1 TB is used by then. With 4 processes the load completes.\n"
        "E1104 09:12:11.221 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) local_rank: 2 "
        "(pid: 9921) of binary: /usr/bin/python3"
    )
    verdict = explain_symptom(text)
    assert (verdict.status, verdict.failure_mode) == ("suspected", "checkpoint-loaded-to-cpu-by-every-rank")
    assert verdict.candidates[1].failure_mode == "process-killed-by-sigkill"
    assert "log.process_exit" in {e.signal for e in verdict.evidence}


def test_a_setting_that_people_tried_rules_nothing_out() -> None:
    told = "Memory of the loader workers climbs over the epoch, list of Python dictionaries, 12 workers."
    assert first(explain_symptom(f"{told} num_workers=0 no growth.")) == "dataloader-copy-on-write-growth"
    verdict = explain_symptom(f"{told}\nconfig: num_workers=0")
    assert "dataloader-copy-on-write-growth" not in {c.failure_mode for c in verdict.candidates}


def test_symptom_lines_alone_are_no_ground_to_suspect_anything() -> None:
    line = (
        "[rank4]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9921, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for "
        "600043 milliseconds before timing out."
    )
    assert explain_symptom(f"{line}\nThat is all I have.").status == "inconclusive"
