"""The calls that would decide what is still open; each can be made as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.report import DIAGNOSED_FROM, SUSPECTED_FROM, NextCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.verdict.decide import Assessment
    from torchtriage.verdict.findings import Findings


def next_checks(
    assessments: Sequence[Assessment], findings: Findings, paths: Sequence[str], *, diagnosed: bool = False
) -> list[NextCheck]:
    """The kinds of evidence that are missing, then what would separate the modes that stand.

    Each can be called as it stands: a tool that reads evidence of a kind that was read already cannot tell more, so
    the entry that says what would prove the mode is pointed to instead. After a diagnosis only rivals are left.
    """
    checks: dict[tuple[str, str], NextCheck] = {}
    seen = {o.name for o in findings.observations}
    # A bundle has all that the node could give, and a job that ended can be looked at no more.
    can_collect = "proc" not in findings.kinds_read and not seen & _ENDED
    if paths and can_collect and not diagnosed and seen & _HANG_SIGNS:
        if "stacks" not in findings.kinds_read:
            checks["collect", ""] = NextCheck(tool="collect", arguments={}, why=_COLLECT)
        elif "flight" not in findings.kinds_read and seen & _NCCL_SIGNS:
            checks["analyze_flight_recorder", ""] = NextCheck(
                tool="analyze_flight_recorder", arguments={"check_env": True}, why=_RECORD_FLIGHT
            )
    for assessment in assessments:
        entry = assessment.entry
        why = f"{entry.id}: {entry.next_check['why']}"
        tool = entry.next_check["tool"]
        if paths and can_collect and tool in _COLLECTED and _COLLECTED[tool] not in findings.kinds_read:
            checks.setdefault(("collect", ""), NextCheck(tool="collect", arguments={}, why=why))
        else:
            checks.setdefault(
                ("playbook", entry.id), NextCheck(tool="playbook", arguments={"query": entry.id}, why=why)
            )
    return list(checks.values())[:3]


_ENDED = frozenset({"log.process_exit", "log.finished"})
# What a tool reads that only a job's own node can give.
_COLLECTED = {"dump_stacks": "stacks", "analyze_flight_recorder": "flight"}
_COLLECT = (
    "while it hangs, on its node: the stacks of every rank twice, flight-recorder dumps, NCCL RAS and GPU state; "
    "then triage the bundle together with these files"
)
_RECORD_FLIGHT = (
    "on the job's node, says whether its flight recorder records and where each rank's dump lies after a time-out; "
    "triage the dumps together with these files"
)
_HANG_SIGNS = frozenset(
    {
        "log.watchdog_timeout",
        "log.collectives_differ",
        "log.desync_report",
        "log.gloo_timeout",
        "log.barrier_late",
        "log.heartbeat_lost",
        "log.stopped_early",
        "log.left_loop_early",
        "flight.behind_on_enqueue",
        "flight.behind_on_complete",
        "flight.all_joined_none_finished",
        "stacks.waiting_on_gpu",
        "stacks.in_collective",
        "ras.operation_counts_differ",
    }
)
# Signs of a hang among ranks that talk over NCCL, which alone keeps a flight recorder that dumps by itself.
_NCCL_SIGNS = _HANG_SIGNS - {"log.gloo_timeout", "log.stopped_early", "log.left_loop_early", "stacks.in_collective"}


def rivals(assessments: Sequence[Assessment]) -> Sequence[Assessment]:
    """What a verdict should be separated from: of a diagnosis only a mode that is nearly as likely."""
    best = assessments[0]
    if best.confidence < DIAGNOSED_FROM:
        return assessments[:2]
    return [a for a in assessments[1:2] if a.confidence >= SUSPECTED_FROM]
