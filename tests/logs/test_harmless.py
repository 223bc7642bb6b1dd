"""Lines that look bad and are not: none of them may be trouble."""

from __future__ import annotations

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import LogSource, PatternSet, scan, text_source
from torchtriage.signals import SIGNALS

HARMLESS = """\
/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 8
  warnings.warn(_create_warning_msg(
FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use `torch.amp.GradScaler('cuda', args...)`
DeprecationWarning: invalid escape sequence
huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parall
node1:638:638 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
node1:638:638 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - undefined symbol: mlx5dv_reg_dmabuf_mr, version ML
node1:638:638 [0] NCCL INFO Failed to initialize NET plugin IB
node1:638:638 [0] NCCL INFO comm 0x188c8f20 rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE
[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1
[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
errors=0
error_rate 0.1
no error
0 errors, 0 warnings
download failed, retrying (1/5)
retry succeeded
upload failed with ConnectionError, retrying in 3 s
[rank0]:[W1130 06:10:09.1 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before p
[W1130 06:10:09.1 Utils.hpp:137] Warning: Environment variable TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated
[rank0] using loss CrossEntropyLoss, error feedback off, nan_check=False
[rank0] max loss tolerated: inf
[rank0] eval perplexity: inf
WARNING:root:Exception hooks installed; ValueError is turned into a warning
INFO: set ignore_errors=True, on_exception=continue
INFO: handlers: KeyboardInterrupt -> save, RuntimeError -> abort
[2026-11-30 06:20:26,123] [INFO] [launch.py:350:main] Process 957 exits successfully.
Failed to build fused kernels, falling back to the Python implementation
libibverbs: Warning: couldn't load driver
Traceback (most recent call last) will be shown with --debug
killing time until the store is ready
Process group watchdog is enabled, timeout 1800 s
W1130 06:20:26.1 1 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1
signal handler for SIGTERM installed
see step 37 of the guide for errors
will retry up to 3 times on ConnectionError
no error so far, continuing with shard 3
wandb: syncing run 12
exit code 0
node_rank: 0, exitcode: 0
"""


def test_harmless_lines_are_no_trouble():
    text = HARMLESS + "\n".join(f"[rank{r}] step {s} loss {7 - s / 10}" for s in range(9) for r in range(2))
    signals = analyze(scan([text_source(text)], PatternSet([]))).signals
    assert [s.name for s in signals if SIGNALS[s.name].health == "trouble"] == []
    assert "log.steps_even" in {s.name for s in signals}


@pytest.mark.parametrize("line", HARMLESS.splitlines())
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "2026-11-30 06:20:26,123 - INFO - "])
def test_each_harmless_line_alone_is_no_trouble(prefix, line):
    signals = analyze(scan([text_source(prefix + line)], PatternSet([]))).signals
    assert [s.name for s in signals if SIGNALS[s.name].health == "trouble"] == []


@pytest.mark.parametrize(
    ("line", "happened"),
    [
        ("will retry up to 3 times on ConnectionError", False),
        ("skip_on_error: true, retry: 3", False),
        ("no error so far, continuing", False),
        ("skipping batch 3: CUDA out of memory", True),
        ("upload failed with ConnectionError, retry 3", True),
        ("skip sample 7 on error KeyError('x')", True),
        ("ValueError in sample 7, will retry in 5 s", True),
    ],
)
def test_an_exception_that_is_only_announced_was_not_handled(line, happened):
    signals = analyze(scan([text_source(f"[rank1]: {line}")], PatternSet([]))).signals
    assert ("log.exception_handled" in {s.name for s in signals}) == happened


def test_a_step_of_something_else_is_no_step_of_the_loop():
    steps = "".join(f"[rank{r}] step {s} loss {7 - s / 10}\n" for s in range(9) for r in range(2))
    signals = analyze(scan([text_source(steps + "[rank1] see step 37 of the guide\n")], PatternSet([]))).signals
    assert "log.steps_even" in {s.name for s in signals}


def test_a_traceback_that_a_retry_outlived_is_no_trouble():
    text = "\n".join(
        [
            "[rank0] step 1 loss 7.0",
            "[rank0] fetch failed:",
            "[rank0] Traceback (most recent call last):",
            '[rank0]   File "/workspace/fetch.py", line 7, in get',
            "[rank0] ConnectionError: timed out",
            "[rank0] retry succeeded",
            "[rank0] step 2 loss 6.9",
        ]
    )
    signals = analyze(scan([text_source(text)], PatternSet([]))).signals
    assert [s.name for s in signals if SIGNALS[s.name].health == "trouble"] == []


def test_steps_in_another_file_do_not_show_that_an_exception_without_a_time_was_caught():
    steps = [f"2026-11-30 06:20:0{n},123 INFO trainer rank=1 step={n}/9 loss=2.5" for n in range(5)]
    trace = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/workspace/train.py", line 7, in main',
        "[rank1]: ValueError: bad sample",
        "[rank1]:[W1130 06:20:09.1 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called",
    ]
    sources = [LogSource("all.log", steps), LogSource("rank_1.log", trace, rank=1)]
    names = {s.name for s in analyze(scan(sources, PatternSet([]))).signals}
    assert "log.python_exception" in names
    assert "log.exception_handled" not in names
