"""Findings as the records of the report: cleaned, cut, with the contract's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.memory.judge import others_hold
from torchtriage.tool_reports import (
    MemoryChange,
    MemoryComparison,
    MemoryDevice,
    MemoryFinding,
    MemoryHolder,
    MemoryRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.memory.analyze import Judged, Snapshot
    from torchtriage.memory.compare import Difference
    from torchtriage.memory.judge import Beside

MAX_HOLDERS = 20


def device_record(snapshot: Snapshot, device: Mapping[str, Any], about: Beside | None) -> MemoryDevice:
    """One device of one snapshot."""
    nothing: dict[str, Any] = {"free": device["reserved"] - device["active"], "lanes": []}
    gaps: dict[str, Any] = (device["ooms"][-1]["gaps"] if device["ooms"] else None) or device["gaps"] or nothing
    return MemoryDevice(
        artefact=clean_text(snapshot.artefact), rank=snapshot.rank, device=device["device"],
        reserved_bytes=device["reserved"], allocated_bytes=device["allocated"], active_bytes=device["active"],
        requested_bytes=device["requested"], peak_allocated_bytes=device["peak_allocated"],
        peak_reserved_bytes=device["peak_reserved"], peak_event=device["peak_event"],
        peak_time_us=device["peak_time_us"] or None, fragmentation_bytes=gaps["free"],
        largest_free_bytes=max((lane["largest"] for lane in gaps["lanes"]), default=0),
        expandable_would_free_bytes=(
            0 if device["expandable"] else sum(lane["in_used_segments"] for lane in gaps["lanes"])
        ),
        failed_requests=[
            MemoryRequest(
                event=oom["event"], requested_bytes=oom["requested"], device_free_bytes=oom["device_free"],
                allocated_bytes=oom["allocated"], reserved_bytes=oom["reserved"], stream=oom["stream"],
                site=clean_text(oom["site"], 300), others_hold_bytes=others_hold(oom, about),
            )
            for oom in device["ooms"]
        ],
        private_pool_bytes=device["private_pools"], moment=device["moment"], by_category=device["by_category"],
        top_holders=[holder_record(h) for h in device["holders"][:MAX_HOLDERS]], n_events=device["n_events"],
        n_steps=device["n_steps"], history_truncated=device["truncated"],
        timeline=[(int(a), int(b), int(c)) for a, b, c in device["timeline"]],
    )  # fmt: skip


def holder_record(holder: Mapping[str, Any]) -> MemoryHolder:
    """Blocks of one call site."""
    return MemoryHolder(
        bytes=holder["bytes"], blocks=holder["blocks"], category=holder["category"], sure=holder["sure"],
        site=clean_text(holder["site"], 300), frames=[clean_text(frame, 300) for frame in holder["frames"]],
    )  # fmt: skip


def finding_record(judged: Judged) -> MemoryFinding:
    """A finding with the snapshot that it is about."""
    finding = judged.finding
    return MemoryFinding(
        kind=finding.kind,  # pyright: ignore[reportArgumentType]  # a closed set, checked when the model is made
        artefact=clean_text(judged.snapshot.artefact), rank=judged.snapshot.rank, device=finding.device,
        bytes=finding.bytes, sure=finding.sure,  # pyright: ignore[reportArgumentType]
        says=clean_text(finding.says, 600), call_site=clean_text(finding.site, 300),
        frames=[clean_text(frame, 300) for frame in finding.frames], facts=finding.facts,
    )  # fmt: skip


def comparison_record(difference: Difference, *, listed: bool) -> MemoryComparison:
    """Two snapshots; only the first changes unless they are to be listed."""
    changes = [
        MemoryChange(
            site=clean_text(c.site, 300), category=c.category, before_bytes=c.before[0], after_bytes=c.after[0],
            before_blocks=c.before[1], after_blocks=c.after[1],
        )
        for c in (difference.changes if listed else difference.changes[:3])
    ]  # fmt: skip
    return MemoryComparison(
        of="moments" if difference.of == "moments" else "ranks", rank=difference.rank, device=difference.device,
        before=clean_text(difference.before), after=clean_text(difference.after), more_bytes=difference.more_bytes,
        last_rank=difference.last_rank,
        changes=changes,
    )  # fmt: skip
