"""When a job may be called healthy: only when enough was seen to say so, and nothing of it speaks against.

Missing, damaged or unjudged artefacts never make a job healthy; they make the verdict inconclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.verdict.findings import Findings, Observation

# A profile that was read must itself say that all is well. Stacks, RAS answers and dumps taken on demand are one moment
# of a job that finished afterwards: trouble in them counts, the lack of a good sign does not. A kernel's log tells of
# days before the job.
_GOOD_SIGN = {"trace": "trace.balanced", "memory": "memory.steady"}
_MOMENTARY = frozenset({"ras", "stacks", "kernel"})
# What a log says of an end that was not good, apart from signals of trouble.
_BAD_ENDS = frozenset({"log.left_loop_early", "log.stopped_early", "log.done_before_peers"})


def job_finished(findings: Findings) -> bool:
    """Whether the logs show the job finishing, and no rank reporting a failure.

    Either every known rank says so, or one does and all of them did the same steps.
    """
    names = {o.name for o in findings.observations}
    trouble = any(
        o.health == "trouble" and o.kind == "log" and o.name not in _WITHOUT_END for o in findings.observations
    )
    ended = _covers(findings, "log.finished") or (
        "log.finished_on_some" in names and _covers(findings, "log.steps_even")
    )
    return ended and not trouble and not names & _BAD_ENDS


def job_goes_on(findings: Findings) -> bool:
    """Whether a running job was seen to advance between two looks at its ranks.

    Either all known ranks moved, or one that waited for its peers did, while all others wait where it waited.
    """
    moving = [o for o in findings.observations if o.name == "stacks.moving" and o.ranks]
    if not moving or not findings.ranks:
        return False
    if findings.ranks <= moving[0].ranks:
        return True
    odd = {"stacks.different_place", "proc.no_cpu_progress"} & {o.name for o in findings.observations}
    together = any(
        o.name in ("stacks.in_collective", "stacks.waiting_on_gpu") and o.facts.get("all_ranks")
        for o in findings.observations
    )
    return bool(moving[0].facts.get("waited")) and together and not odd


# Trouble that a job can have and still finish.
_WITHOUT_END = frozenset(
    {
        "log.metric_outlier", "log.nonfinite_metric", "log.metric_diverged", "log.loss_exactly_zero",
        "log.loss_scale_collapsed", "log.step_time_jump", "log.step_time_drift", "log.throughput_drop",
        "log.slow_rank", "log.memory_growth",
    }
)  # fmt: skip


def reasons_against_health(findings: Findings) -> list[str]:
    """Why the job may not be called healthy; empty when it may."""
    reasons: list[str] = []
    names = {o.name for o in findings.observations}
    finished = job_finished(findings)
    trouble = [o for o in findings.observations if o.health == "trouble" and not (finished and o.kind in _MOMENTARY)]
    goes_on = not finished and job_goes_on(findings)
    if trouble:
        reasons.append(f"there is trouble: {', '.join(sorted({o.name for o in trouble}))}")
    if findings.losses:
        reasons.append("part of what was given could not be read")
    reasons += [
        f"the {kind} evidence does not say that all is well"
        for kind, sign in _GOOD_SIGN.items()
        if kind in findings.kinds_read and sign not in names
    ]
    if not goes_on and not _covers(findings, "log.finished"):
        some = "log.finished_on_some" in names
        reasons.append("only some ranks say that they finished" if some else "no log shows every rank finishing")
    if "log.steps_even" not in names and "flight.in_step" not in names:
        reasons.append("no log shows every rank doing the same steps")
    if "log.end_recovered" in names:
        reasons.append("a process had ended with a failure before the launcher restarted the job, which then finished")
    if names & _BAD_ENDS:
        reasons.append("ranks did different numbers of steps")
    return reasons


def _covers(findings: Findings, name: str) -> bool:
    """Whether observations of this name speak of every rank that is known."""
    shown = [o for o in findings.observations if o.name == name]
    return any(not o.ranks or o.ranks >= findings.ranks for o in shown)


def good_signs(findings: Findings) -> list[Observation]:
    """What speaks for health, one observation per kind of sign."""
    return list({o.name: o for o in findings.observations if o.health == "good"}.values())
