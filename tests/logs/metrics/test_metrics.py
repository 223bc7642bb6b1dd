"""Steps and values in the forms that trainers print."""

from __future__ import annotations

import math

import pytest

from torchtriage.logs.analyze import LogFindings, analyze
from torchtriage.logs.metrics.curves import curves_of
from torchtriage.logs.scan.read import LogSource, PatternSet, scan, text_source

NO_PATTERNS = PatternSet([])


def findings(text: str) -> LogFindings:
    return analyze(scan([text_source(text)], NO_PATTERNS))


def names(text: str) -> list[str]:
    return [signal.name for signal in findings(text).signals]


@pytest.mark.parametrize(
    ("form", "step", "values"),
    [
        ("step 3 loss 7.06 grad_norm 0.39 lr 6e-05", 3, {"loss": 7.06, "grad_norm": 0.39, "lr": 6e-05}),
        ("step: 3, loss: 7.06", 3, {"loss": 7.06}),
        ("step=3 loss=nan", 3, {"loss": "nan"}),
        ("Step 3/100 | loss 7.06", 3, {"loss": 7.06}),
        ("epoch 1 step 10 loss 2.5", 10, {"epoch": 1, "loss": 2.5}),
        (
            " iteration       10/     100 | consumed samples:           80 | elapsed time per iteration (ms): 123.4 | "
            "lm loss: 7.1E+00 | loss scale: 1.0 | grad norm: 0.400 | number of nan iterations:   0 |",
            10,
            {"consumed_samples": 80, "lm_loss": 7.1, "loss_scale": 1.0, "grad_norm": 0.4},
        ),
        ("{'loss': 7.1, 'grad_norm': 0.3, 'epoch': 0.1}", None, {"loss": 7.1, "grad_norm": 0.3, "epoch": 0.1}),
        ('{"step": 4, "train/loss": 1.25}', 4, {"train/loss": 1.25}),
        ("10%|#  | 10/100 [00:10<01:30, 1.00it/s, loss=7.1]", 10, {"loss": 7.1}),
        ("step 1 tokens 4,096 loss 1.0", 1, {"tokens": 4096, "loss": 1.0}),
    ],
)
def test_progress_lines_are_read(form, step, values):
    (own,) = scan([text_source(form)], NO_PATTERNS).metrics.owners.values()
    (row,) = own.rows
    assert row.step == step
    got = {name: str(value) if math.isnan(value) else value for name, value in row.values.items()}
    assert {name: got.get(name) for name in values} == values


@pytest.mark.parametrize(
    ("form", "step", "standard"),
    [
        (
            "{'loss': 7.1, 'grad_norm': 0.3, 'learning_rate': 5e-05, 'epoch': 0.01}",
            None,
            {"loss": 7.1, "grad_norm": 0.3, "learning_rate": 5e-05},
        ),
        ("{'loss': '7.1', 'learning_rate': '5e-05', 'epoch': '0.01'}", None, {"loss": 7.1, "learning_rate": 5e-05}),
        (" 10%|#  | 10/100 [00:12<01:40, 1.1s/it, loss=7.1]", 10, {"loss": 7.1, "step_time_s": 1.1}),
        (" 10%|#  | 10/100 [00:12<01:40, 1.25it/s, loss=7.1]", 10, {"loss": 7.1, "step_time_s": 0.8}),
        (
            " iteration 10/ 100 | consumed samples: 80 | elapsed time per iteration (ms): 812.3 | "
            "throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.0E-04 | global batch size: 8 | "
            "lm loss: 7.1E+00 | loss scale: 65536.0 | grad norm: 0.3 | number of skipped iterations: 2 |",
            10,
            {
                "step_time_s": 0.8123, "tflops": 123.4, "learning_rate": 1e-4, "work_size": 8, "loss": 7.1,
                "loss_scale": 65536, "grad_norm": 0.3, "skipped_steps": 2,
            },
        ),
        (
            "\x1b[31mstep: 10  \x1b[32mloss:  7.1234  \x1b[38;2;180;60;0mgrad_norm: 0.3  "
            "\x1b[33mmemory: 40.00GiB(50.70%)  \x1b[34mtps: 5,123  \x1b[36mtflops: 120.3\x1b[39m",
            10,
            {"loss": 7.1234, "grad_norm": 0.3, "memory_bytes": 40 * 2**30, "tokens_per_s": 5123, "tflops": 120.3},
        ),
        (
            "[2026-11-30 11:01:08,203] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[0.0001], "
            "mom=[[0.9, 0.95]]",
            10,
            {"skipped_steps": 1, "learning_rate": 1e-4},
        ),
        (
            "[2026-11-30 11:01:08,203] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/global_step=10, "
            "RunningAvgSamplesPerSec=9.5, CurrSamplesPerSec=12.6, MemAllocated=3.2GB",
            10,
            {"samples_per_s": 12.6, "memory_bytes": 3.2e9},
        ),
        (
            "Epoch 0:  10%|#   | 10/100 [00:12<01:40,  1.10s/it, v_num=0, train_loss=7.1]",
            10,
            {"loss": 7.1, "step_time_s": 1.1},
        ),
        (
            "Training epoch 0, iteration 10/99 | lr: 1e-4 | global_batch_size: 8 | global_step: 10 | "
            "reduced_train_loss: 10.1 | train_step_timing in s: 0.51 | consumed_samples: 88",
            10,
            {"learning_rate": 1e-4, "work_size": 8, "loss": 10.1, "step_time_s": 0.51},
        ),
        (
            "step:1 - actor/grad_norm:0.3 - perf/throughput:1234.5 - perf/max_memory_allocated_gb:40.2 - "
            "timing_s/step:33.1 - timing_s/gen:12.0 - critic/rewards/mean:0.3 - response_length/mean:512.0",
            1,
            {
                "grad_norm": 0.3, "tokens_per_s": 1234.5, "memory_bytes": 40.2e9, "step_time_s": 33.1, "reward": 0.3,
                "work_size": 512,
            },
        ),
        ("step:1 - actor/pg_loss:np.float64(0.1)", 1, {"reward": 0.1}),
        (
            "Train epoch [1/1]:  10%|# | 10/100 [00:12<01:40, 1.1s/it, policy_loss=0.1, kl=0.01, act_lr=1e-6]",
            10,
            {"reward": 0.01, "learning_rate": 1e-6, "step_time_s": 1.1},
        ),
        (
            "step 3 loss 7.06 norm 0.39 time 812ms mem 12.5 GiB",
            3,
            {"loss": 7.06, "grad_norm": 0.39, "step_time_s": 0.812, "memory_bytes": 12.5 * 2**30},
        ),
        (
            "step 10: loss=2.1, dt=812.31ms, tok/sec=12,345",
            10,
            {"loss": 2.1, "step_time_s": 0.81231, "tokens_per_s": 12345},
        ),
        ("step 0 583.6 ms", 0, {"step_time_s": 0.5836}),
        ("step 3/100 took 1.2s", 3, {"step_time_s": 1.2}),
        (
            '{"step": 4, "train/loss": 1.25, "step_time_ms": 812.3, "memory_allocated": 43123456789}',
            4,
            {"loss": 1.25, "step_time_s": 0.8123, "memory_bytes": 43123456789},
        ),
        (
            "step=9/40 loss=8.4 tok/s=108724 prep_ms=200 fwd_ms=9 bwd_ms=31",
            9,
            {"loss": 8.4, "tokens_per_s": 108724, "data_time_s": 0.2, "forward_time_s": 0.009, "wait_time_s": 0.031},
        ),
        ("Epoch: [0][  10/1000]\tTime  0.512 ( 0.600)\tLoss 6.9 (6.95)", 10, {"step_time_s": 0.512, "loss": 6.9}),
        ("step\t10\tloss\t7.1", 10, {"loss": 7.1}),
        ("step=10 loss=2.0 reserved=20480MiB", 10, {"loss": 2.0, "memory_bytes": 20480 * 2**20}),
        ("step=10 loss=2.0 mem_util=50% memory=40%", 10, {"loss": 2.0}),
        ("step=10 loss=2.0 eval_loss=3.0 val/loss=4.0", 10, {"loss": 2.0}),
        ("step=10 loss=2.0 total_time=9000s eta=12s", 10, {"loss": 2.0}),
    ],
)  # fmt: skip
def test_printed_numbers_get_standard_names_and_units(form, step, standard):
    (own,) = scan([text_source(form)], NO_PATTERNS).metrics.owners.values()
    curves = curves_of(own)
    assert [row.step for row in own.rows] == [step]
    got = {curve.standard: curve.points[-1].value for curve in curves.by_metric.values()}
    assert got == pytest.approx(standard)


def test_numbers_of_an_evaluation_are_not_those_of_training():
    text = "Evaluating:  10%|#  | 10/100 [00:12<01:40, 1.1s/it, loss=7.1]\nvalidation step 3 loss 2.0"
    for own in scan([text_source(text)], NO_PATTERNS).metrics.owners.values():
        assert curves_of(own).by_metric == {}


@pytest.mark.parametrize(
    "line",
    [
        "vm:638:638 [0] NCCL INFO step 3 loss 7.0",
        "Total optimization steps = 1,000",
        "saving checkpoint at step 500",
        "resuming from step 500",
        "the loss of data is bad",
        "[rank0]:[W1130 06:20:25.1 Utils.hpp:137] step 3",
    ],
)
def test_what_only_mentions_a_step_is_no_progress_line(line):
    assert not any(own.n_rows for own in scan([text_source(line)], NO_PATTERNS).metrics.owners.values())


def run(ranks: int, steps: int, **odd: str) -> str:
    lines = [
        f"[rank{rank}] " + odd.get(f"r{rank}s{step}", f"step {step} tokens 4096 loss {7 - step / 100:.4f}")
        for step in range(steps)
        for rank in range(ranks)
    ]
    return "\n".join(lines)


def test_even_steps_and_finish_lines_are_good_signs():
    text = run(3, 5) + "".join(f"\n[rank{rank}] Training completed" for rank in range(3))
    even, finished = findings(text).signals
    assert even.name == "log.steps_even"
    assert even.facts == {"first_step": 0, "last_step": 4, "n_ranks": 3, "order": 12}
    assert (finished.name, finished.facts) == ("log.finished", {"n_ranks": 3})


def test_a_rank_that_did_not_finish_withholds_the_finish():
    found = names(run(2, 5) + "\n[rank0] finished")
    assert "log.finished" not in found
    assert "log.finished_on_some" in found


def test_one_step_is_not_enough_to_be_even():
    assert names(run(2, 1)) == []


def test_one_process_without_rank_prefix_can_be_even():
    (even,) = findings("step 1 loss 7\nstep 2 loss 6").signals
    assert (even.name, even.scope.ranks) == ("log.steps_even", [])


def test_nan_on_one_rank_names_that_rank():
    signals = findings(run(2, 6, r1s3="step 3 tokens 4096 loss nan")).signals
    (found,) = [s for s in signals if s.name == "log.nonfinite_metric"]
    assert (found.scope.ranks, found.facts["first_rank"], found.facts["all_ranks"]) == ([1], 1, False)
    assert found.facts["recovered"] is True


def test_a_gradient_overflow_that_passes_is_no_trouble():
    text = "\n".join(f"step {s} loss 7.{s} grad_norm {'inf' if s < 2 else 0.4} scale 65536" for s in range(8))
    assert "log.nonfinite_metric" not in names(text)


def test_a_loss_that_stays_a_hundred_times_higher_has_diverged():
    text = "\n".join(f"[rank0] step {s} loss {2.0 if s < 30 else 900.0}" for s in range(200))
    (found,) = [s for s in findings(text).signals if s.name == "log.metric_diverged"]
    assert (found.facts["from"], found.facts["to"]) == (2.0, 900.0)


def test_a_spike_that_passes_has_not_diverged():
    text = "\n".join(f"[rank0] step {s} loss {900.0 if s == 50 else 2.0}" for s in range(200))
    assert "log.metric_diverged" not in names(text)


def test_one_odd_number_at_one_rank_is_an_outlier():
    assert "log.metric_outlier" in names(run(4, 6, r2s3="step 3 tokens 17 loss 7.0"))


@pytest.mark.parametrize(
    "odd",
    [
        {"r0s5": "step 5 tokens 17 loss 7.0", "r1s5": "step 5 tokens 17 loss 7.0"},
        {"r0s1": "step 1 tokens 1 loss 7.0", "r1s2": "step 2 tokens 2 loss 7.0"},
    ],
)
def test_numbers_that_differ_on_all_ranks_are_no_outliers(odd):
    assert "log.metric_outlier" not in names(run(2, 6, **odd))


@pytest.mark.parametrize("field", ["retries", "loss_scale", "time_ms", "lr", "max_mem"])
def test_fields_that_vary_as_a_matter_of_course_are_no_outliers(field):
    odd = {"r1s3": f"step 3 {field} 9"}
    text = run(2, 6, **{f"r{r}s{s}": f"step {s} {field} 4" for r in range(2) for s in range(6)} | odd)
    assert "log.metric_outlier" not in names(text)


def test_a_rank_that_is_behind_stopped_early():
    text = run(3, 4).split("\n")
    text = [line for line in text if not line.startswith("[rank2] step 3")]
    (found,) = findings("\n".join(text)).signals
    facts = {"last_step": 2, "peers_last_step": 3, "n_ranks": 3}
    assert (found.name, found.scope.ranks, found.facts) == ("log.stopped_early", [2], facts)


def test_an_end_line_that_only_comes_after_the_peers_is_no_early_leave():
    text = "[rank0] step 0\n[rank1] step 0\n[rank0] step 1\n[rank1] finished\n[rank0] finished"
    assert "log.left_loop_early" not in names(text)
    assert "log.stopped_early" in names(text)


def test_a_rank_that_logs_every_tenth_step_skips_none():
    lines = [f"[rank0] step {s}" for s in range(31)] + [f"[rank1] step {s}" for s in range(0, 31, 10)]
    assert "log.step_skipped" not in names("\n".join(lines))


def test_files_of_ranks_are_compared():
    sources = [
        LogSource(f"rank_{r}.log", [f"step {s} loss 2.0" for s in range(5)] + ["finished"], rank=r) for r in range(2)
    ]
    found = analyze(scan(sources, NO_PATTERNS))
    assert [s.name for s in found.signals] == ["log.steps_even", "log.finished"]


def test_ranks_that_appear_in_no_log_are_noted():
    found = findings("WORLD_SIZE=4\n[rank0] step 1\n[rank1] step 1")
    assert found.notes == ["2 of 4 ranks appear in no log: 2, 3"]


def test_the_metric_that_is_not_reduced_over_all_ranks_is_told_first_and_names_who_was_first():
    rows = [
        f"[rank{rank}]: step {step} loss {'nan' if step >= 6 else 2.0} "
        f"local_loss {'nan' if step > 6 or (step == 6 and rank == 2) else 2.0}"
        for step in range(10)
        for rank in range(4)
    ]
    local, reduced = [s for s in findings("\n".join(rows)).signals if s.name == "log.nonfinite_metric"]
    assert (local.facts["metric"], local.facts["first_ranks"]) == ("local_loss", [2])
    assert local.facts["first_seen"] == "first on rank 2, at step 6"
    assert "[rank2]" in local.evidence[0].quote
    assert (reduced.facts["metric"], reduced.facts["first_seen"]) == ("loss", "at step 6")
