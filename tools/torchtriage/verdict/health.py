"""When a job may be called healthy: only when enough was seen to say so, and nothing of it speaks against.

Missing, damaged or unjudged artefacts never make a job healthy; they make the verdict inconclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.verdict.gather import Findings, Observation

# What can only be said of a job when artefacts of these kinds were judged: a snapshot may show a leak, a kernel log an
# Xid. nvidia-smi's output and configurations are often lying beside healthy jobs and decide nothing by themselves.
_HIDES_TROUBLE = ("memory_snapshot", "kernel_log")
# A kind of artefact that was read must itself say that all is well. Stacks never can: they are one moment.
_GOOD_SIGN = {"flight": "flight.in_step", "trace": "trace.balanced", "ras": "ras.in_step"}


def reasons_against_health(findings: Findings) -> list[str]:
    """Why the job may not be called healthy; empty when it may."""
    reasons: list[str] = []
    names = {o.name for o in findings.observations}
    trouble = [o for o in findings.observations if o.health == "trouble"]
    if trouble:
        reasons.append(f"there is trouble: {', '.join(sorted({o.name for o in trouble}))}")
    if findings.losses:
        reasons.append("part of what was given could not be read")
    reasons += [
        f"{kind.replace('_', ' ')}s were given and are not judged"
        for kind in _HIDES_TROUBLE
        if kind in findings.unjudged
    ]
    reasons += [
        f"the {kind} evidence does not say that all is well"
        for kind, sign in _GOOD_SIGN.items()
        if kind in findings.kinds_read and sign not in names
    ]
    if not _covers(findings, "log.finished"):
        reasons.append("no log shows every rank finishing")
    if "log.steps_even" not in names and "flight.in_step" not in names:
        reasons.append("no log shows every rank doing the same steps")
    if names & {"log.left_loop_early", "log.stopped_early"}:
        reasons.append("ranks did different numbers of steps")
    return reasons


def _covers(findings: Findings, name: str) -> bool:
    """Whether observations of this name speak of every rank that is known."""
    shown = [o for o in findings.observations if o.name == name]
    return any(not o.ranks or o.ranks >= findings.ranks for o in shown)


def good_signs(findings: Findings) -> list[Observation]:
    """What speaks for health, one observation per kind of sign."""
    return list({o.name: o for o in findings.observations if o.health == "good"}.values())
