"""What the names and units of printed numbers mean: standard names, and factors into seconds, bytes and tokens/s.

Names are those of HF Trainer, TRL, Megatron-LM, torchtitan, DeepSpeed, Lightning, NeMo, verl, OpenRLHF and of plain
prints. Memory without a unit is only read as whole bytes; a time without one is taken for seconds, as ratios are what
counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtriage.lazy_re import lazy_re

STEP_TIME = "step_time_s"
TOKENS = "tokens_per_s"
SAMPLES = "samples_per_s"
FLOPS = "tflops"
MEMORY = "memory_bytes"
LOSS = "loss"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
LOSS_SCALE = "loss_scale"
SKIPPED = "skipped_steps"
SIZE = "work_size"
"""Lengths and batch sizes: when they grow, time and memory may grow with them."""
REWARD = "reward"
DATA_TIME, FORWARD_TIME, WAIT_TIME = "data_time_s", "forward_time_s", "wait_time_s"
"""Parts of a step: only the first two are a rank's own; in a backward pass ranks wait for each other."""
THROUGHPUTS = (TOKENS, SAMPLES, FLOPS)
PHASES = (DATA_TIME, FORWARD_TIME, WAIT_TIME)
# Of these the largest and smallest values are kept exactly.
TRACKED = frozenset({STEP_TIME, *THROUGHPUTS, MEMORY, LOSS, GRAD_NORM, LOSS_SCALE})

_TIME_UNITS = {
    "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "second": 1.0, "seconds": 1.0, "s/it": 1.0, "s/iter": 1.0, "s/step": 1.0, "ms/it": 1e-3, "ms/step": 1e-3,
    "ms/iter": 1e-3,
}  # fmt: skip
_RATE_UNITS = frozenset({"it/s", "iter/s", "steps/s", "step/s"})
_SIZE_UNITS = {
    "b": 1, "bytes": 1, "kib": 1 << 10, "kb": 1000, "mib": 1 << 20, "mb": 10**6, "m": 1 << 20, "gib": 1 << 30,
    "gb": 10**9, "g": 1 << 30, "tib": 1 << 40, "tb": 10**12,
}  # fmt: skip
UNIT = (
    r"ms/(?:iter|it|step)|s/(?:iter|it|step)|(?:iter|it|steps|step)/s|msecs?|ms|us|µs|seconds?|secs?|[KMGTkmgt]i?[Bb]|"
    r"bytes|[sBMGk]"
)
"""Expression for a unit right behind a number."""
_SUFFIX = lazy_re(r"(?:^|[_./])(?:in_)?(?P<unit>ms|msec|us|s|sec|secs|seconds|kib|kb|mib|mb|gib|gb|g|m|bytes)$")

_PER_SECOND = lazy_re(r"(?:/|_?per_|_p)(?:s|sec|second)(?:_|/|$)|(?:^|/|_)(?:tps|tgs|wps)$|^perf/throughput$")
_TOKENS = lazy_re(r"tok(?:en)?s?(?:_|/|$|per)|(?:^|/|_)(?:tps|tgs|wps)$|^perf/throughput$")
_SAMPLES = lazy_re(r"(?:sample|seq(?:uence)?|img|image|example|sentence)s?_?(?:/|per)_?s|samplespersec")
_FLOPS = lazy_re(r"tflop|(?:^|/|_)mfu$")
_TIME = lazy_re(
    r"(?:^|[/_])(?:step|iter(?:ation)?|train_step|batch)_?(?:time|timing|duration|latency)(?:_|$)|"
    r"(?:^|[/_])(?:time|ms|s|sec|seconds|elapsed_time)_?(?:per|/)_?(?:step|iter(?:ation)?)(?:_|$)|"
    r"(?:^|[/_])(?:step|iter(?:ation)?)_?(?:ms|s|sec|seconds)$|^(?:time|dt|elapsed)(?:_|$)|timing_s/step$"
)
_NOT_STEP_TIME = lazy_re(r"total|cum|since|eta|remain|left|start|stamp|epoch")
_DATA = lazy_re(
    r"(?:^|[/_])(?:data|dataload\w{0,6}|data_?loader|batch_?(?:load|fetch|get|gen)\w{0,8}|fetch|prep|preproc\w{0,8}|collate|"
    r"tokeni[sz]\w{0,6}|input|load)(?:_|$)"
)
_FORWARD = lazy_re(r"(?:^|[/_])(?:fwd|forward)(?:_|$)")
_WAITING = lazy_re(
    r"(?:^|[/_])(?:bwd|backward|opt|optim|optimizer|comm|allreduce|all_reduce|sync|wait|barrier|update|reduce)(?:_|$)"
)
_MEMORY = lazy_re(
    r"(?:^|[/_])(?:\w{0,20}_)?(?:mem|memory|rss|vram|alloc|allocated|reserved|hbm)(?:_|$)|memallocated|memreserved|^peak$"
)
_NOT_MEMORY = lazy_re(r"percent|pct|ratio|frac|util|free|avail|total|limit|capacity")
_HOST = lazy_re(r"rss|host|cpu|ram(?:_|$)")
_MAIN_LOSS = lazy_re(
    r"(?:^|/)(?:(?:global_)?(?:avg|mean|average|running|smoothed|reduced|smooth)_)?"
    r"(?:(?:train|training|lm|ce|cross_entropy|total|nll|mlm|batch|step|model)[_/])?"
    r"(?:loss|cross_entropy)(?:_(?:mean|avg|step|total))?$"
)
_REWARD = lazy_re(r"reward|advantage|(?:^|[/_])kl(?:_|/|$)|clip_?(?:frac|ratio)|completion|policy|actor|critic|return")
_GRAD_NORM = lazy_re(r"grad(?:ient)?s?_?norm|(?:^|[/_])gnorm$|^norm$")
_LEARNING_RATE = lazy_re(r"(?:^|[/_])(?:lr|learning_rate)(?:_\w{0,12})?$")
_SCALE = lazy_re(r"(?:^|[/_])(?:(?:loss|grad|amp|fp16|cur)_)?scaler?$|loss_scale")
_SKIPPED = lazy_re(r"skipped(?:_|$)|(?:^|_)(?:n_)?skips?$|overflows?$")
_SIZE = lazy_re(
    r"(?:response|completion|seq(?:uence)?|prompt|output|gen(?:erated)?|context|max)s?_?len(?:gth)?s?|(?:^|[/_])glen|seqlen|"
    r"mean_len\w{0,6}|batch_?size|bsz|accum|(?:^|[/_])(?:n_|num_)?tok(?:en)?s$"
)
_NOT_SIZE = lazy_re(r"consumed|total|seen|cumul|processed|so_far")


# Numbers that differ between ranks or steps as a matter of course.
_VARIES = lazy_re(
    r"time|elapsed|_ms$|(?:^|_)(?:ms|sec|secs|seconds|eta|lr|mem|memory|peak|alloc\w*|reserved|gib|mib|tflops|mfu|port|pid|rank|"
    r"local_rank|gpu|device|seed|epoch|step|iter\w*|samples|consumed\w*|skipped|retr\w+|overflow\w*|count|total|id|version|"
    r"world_size|rss|temp\w*|power|bucket|scale)(?:_|$)|loss|speed|throughput|tokens_per|it/s"
)
_EVALUATION = lazy_re(r"(?:^|[/_.])(?:eval|evaluation|val|valid|validation|test)(?:[/_.]|$)")


@dataclass(frozen=True)
class Meaning:
    """A standard name, and how to get its value: multiply by ``factor``, after taking the inverse if ``inverse``."""

    name: str
    factor: float = 1.0
    inverse: bool = False


def meaning_of(name: str, unit: str, *, is_percent: bool, whole_digits: int) -> Meaning | None:
    """What a named number is.

    Args:
        name: as :func:`~torchtriage.logs.metrics.plans.normal_name` spells it.
        unit: what stands right behind the number, or in brackets behind its name; may be empty.
        is_percent: a percent sign follows the number.
        whole_digits: of a whole number, how many digits it has; else 0.
    """
    if _EVALUATION.search(name):
        return None
    if unit in _RATE_UNITS:
        return Meaning(STEP_TIME, inverse=True)
    if _LEARNING_RATE.search(name):
        return Meaning(LEARNING_RATE)
    if _GRAD_NORM.search(name):
        return Meaning(GRAD_NORM)
    if _MAIN_LOSS.search(name):
        return Meaning(LOSS)
    if _SKIPPED.search(name):
        return Meaning(SKIPPED)
    if _SCALE.search(name):
        return Meaning(LOSS_SCALE)
    return _speed(name, unit) or _time(name, unit) or _memory(name, unit, is_percent, whole_digits) or _other(name)


def varies(name: str) -> bool:
    """Say whether a number differs between ranks and steps of a healthy job."""
    return _VARIES.search(name) is not None


def is_host_memory(name: str) -> bool:
    """Say whether a memory metric is the host's, not the GPU's."""
    return _HOST.search(name) is not None


def _speed(name: str, unit: str) -> Meaning | None:
    if "running" in name:  # an average since the start moves for ever
        return None
    if _SAMPLES.search(name):
        return Meaning(SAMPLES)
    if _FLOPS.search(name) or "flop" in unit.lower():
        return Meaning(FLOPS)
    per_second = _PER_SECOND.search(name) is not None or unit.lower().endswith(("/s", "/sec"))
    if per_second and (_TOKENS.search(name) or unit.lower().startswith("tok")):
        return Meaning(TOKENS)
    return None


def _time(name: str, unit: str) -> Meaning | None:
    suffix = _SUFFIX.search(name)
    factor = _TIME_UNITS.get(unit) or (_TIME_UNITS.get(suffix["unit"]) if suffix else None)
    if name.startswith("timing_s/"):
        factor = 1.0
    if unit in ("s/it", "s/iter", "s/step", "ms/it", "ms/step", "ms/iter"):
        return Meaning(STEP_TIME, _TIME_UNITS[unit])
    if factor is None:
        # "time 0.51" and "data_time: 0.004" of training loops are seconds as far as anybody can tell.
        factor = 1.0 if re.search(r"(?:^|[/_])(?:time|timing|dt|duration|latency)(?:_|$)", name) else None
    if factor is None or _NOT_STEP_TIME.search(name):
        return None
    if _DATA.search(name):
        return Meaning(DATA_TIME, factor)
    if _FORWARD.search(name):
        return Meaning(FORWARD_TIME, factor)
    if _WAITING.search(name):
        return Meaning(WAIT_TIME, factor)
    return Meaning(STEP_TIME, factor) if _TIME.search(name) or name in ("step", "iter") else None


def _memory(name: str, unit: str, is_percent: bool, whole_digits: int) -> Meaning | None:
    if is_percent or not _MEMORY.search(name) or _NOT_MEMORY.search(name):
        return None
    suffix = _SUFFIX.search(name)
    factor = _SIZE_UNITS.get(unit.lower()) or (_SIZE_UNITS.get(suffix["unit"]) if suffix else None)
    if factor is None and whole_digits >= 7:
        factor = 1
    return Meaning(MEMORY, factor) if factor is not None else None


def _other(name: str) -> Meaning | None:
    if _SIZE.search(name):
        return None if _NOT_SIZE.search(name) else Meaning(SIZE)
    return Meaning(REWARD) if _REWARD.search(name) else None
