"""The calls that would decide what is still open; each can be made as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.report import DIAGNOSED_FROM, SUSPECTED_FROM, NextCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.verdict.decide import Assessment
    from torchtriage.verdict.gather import Findings


def next_checks(assessments: Sequence[Assessment], findings: Findings, paths: Sequence[str]) -> list[NextCheck]:
    """The kinds of evidence that are missing, then what would separate the modes that stand.

    Evidence that must be recorded first is asked for in FOLDER. All else can be called as it stands: a tool that reads
    evidence of a kind that was read already cannot tell more, so the entry that says what would prove the mode is
    pointed to instead.
    """
    checks: dict[tuple[str, str], NextCheck] = {}
    arguments: dict[str, Any] = {"paths": list(paths)}
    hang = any(o.name in _HANG_SIGNS for o in findings.observations)
    if paths and hang and "stacks" not in findings.kinds_read:
        checks["dump_stacks", ""] = NextCheck(tool="dump_stacks", arguments=_RECORDED, why=_RECORD_STACKS)
    if paths and hang and "flight" not in findings.kinds_read:
        checks["analyze_flight_recorder", ""] = NextCheck(
            tool="analyze_flight_recorder", arguments=_RECORDED, why=_RECORD_FLIGHT
        )
    for assessment in assessments:
        entry = assessment.entry
        why = f"{entry.id}: {entry.next_check['why']}"
        tool = entry.next_check["tool"]
        if paths and _KIND_OF_TOOL.get(tool, "log") not in findings.kinds_read:
            recorded = _RECORDED if tool in _KIND_OF_TOOL else arguments
            checks.setdefault((tool, ""), NextCheck(tool=tool, arguments=recorded, why=why))
        else:
            checks.setdefault(
                ("playbook", entry.id), NextCheck(tool="playbook", arguments={"query": entry.id}, why=why)
            )
    return list(checks.values())[:3]


_KIND_OF_TOOL = {"dump_stacks": "stacks", "analyze_flight_recorder": "flight"}
_RECORDED: dict[str, Any] = {"paths": ["FOLDER"]}
_RECORD_STACKS = (
    "shows where each rank stands; record first, while it hangs, for every rank: "
    "py-spy dump --native --pid PID > FOLDER/rank-N.txt"
)
_RECORD_FLIGHT = (
    "shows which rank lacks which call; copy first: after a time-out each rank's dump lies at "
    "TORCH_FR_DUMP_TEMP_FILE + rank"
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


def rivals(assessments: Sequence[Assessment]) -> Sequence[Assessment]:
    """What a verdict should be separated from: of a diagnosis only a mode that is nearly as likely."""
    best = assessments[0]
    if best.confidence < DIAGNOSED_FROM:
        return assessments[:2]
    return [a for a in assessments[1:2] if a.confidence >= SUSPECTED_FROM]
