"""Evidence for findings: where in a dump a call, a call site, a counter or a list of ranks stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_value
from torchtriage.artefacts.pointer import pointer_token
from torchtriage.flight.rank_lists import unpack_ranks

if TYPE_CHECKING:
    from torchtriage.flight.model import Group, Member, Track
    from torchtriage.report import Evidence

STATUS_FIELDS = {"last_enqueued_collective": 1, "last_started_collective": 2, "last_completed_collective": 3}
_SIGNATURE_FIELDS = {"profiling_name": 0, "input_sizes": 1, "output_sizes": 2, "input_dtypes": 3, "output_dtypes": 4}


def quote_call(track: Track, seq: int, signal: str, fields: tuple[str, ...], *, site: bool = True) -> list[Evidence]:
    """Quote fields of one entry and, when it was recorded, the frame of its call site."""
    row = track.row(seq)
    if row is None:
        return []
    summary = track.dump.summary
    signature, site_number, _ = track.tables.tokens[track.calls.token[row]]
    here = f"{summary['entries_pointer']}/{track.calls.index[row]}"
    values = track.tables.signatures[signature]
    quotes = [
        quote_value(track.dump.artefact, f"{here}/{field}", values[_SIGNATURE_FIELDS[field]], signal)
        for field in fields
        if values[_SIGNATURE_FIELDS[field]] is not None
    ]
    _, position, frame, _ = track.tables.sites[site_number]
    if site and frame is not None:
        quotes.append(quote_value(track.dump.artefact, f"{here}/frames/{position}", frame, signal))
    return quotes


def quote_p2p(member: Member, row: list[Any], signal: str) -> list[Evidence]:
    """Quote the name of a point-to-point entry."""
    dump = member.dump
    name = member.tables.signatures[row[5]][0]
    return [quote_value(dump.artefact, f"{dump.summary['entries_pointer']}/{row[0]}/profiling_name", name, signal)]


def quote_status(member: Member, field: str, signal: str) -> list[Evidence]:
    """Quote one counter of pg_status."""
    if member.status is None or member.status[STATUS_FIELDS[field]] is None:
        return []
    pointer = f"/pg_status/{pointer_token(member.status[0])}/{field}"
    return [quote_value(member.dump.artefact, pointer, member.status[STATUS_FIELDS[field]], signal)]


def quote_ranks(group: Group, signal: str) -> list[Evidence]:
    """Quote the list of the group's ranks from the first dump that has it."""
    for member in group.members.values():
        summary = member.dump.summary
        if summary["config_pointer"] is None:
            continue
        for key, name, _, ranks in summary["config"]:
            if group.name in (key, name) and ranks:
                pointer = f"{summary['config_pointer']}/{pointer_token(key)}/ranks"
                return [quote_value(member.dump.artefact, pointer, unpack_ranks(ranks), signal)]
    return []
