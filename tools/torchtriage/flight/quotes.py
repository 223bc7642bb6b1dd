"""Evidence for findings: where in a dump a call, a call site, a counter or a list of ranks stands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import QUOTE_CHARS, clean_text
from torchtriage.artefacts.evidence import is_quotable, quote_value
from torchtriage.artefacts.pointer import pointer_token
from torchtriage.flight.rank_lists import unpack_ranks
from torchtriage.flight.tables import MAX_NAME_CHARS
from torchtriage.report import Evidence

if TYPE_CHECKING:
    from torchtriage.flight.model import Group, Member, RankDump, Track

MAX_KEY_CHARS = 256
_LIST = re.compile(r"\[[0-9, ]{1,1048576}\]\Z")
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
    quotes: list[Evidence] = []
    for field in fields:
        quotes += _quote(track.dump, f"{here}/{field}", values[_SIGNATURE_FIELDS[field]], signal)
    _, position, frame, _ = track.tables.sites[site_number]
    if site and frame is not None:
        quotes += _quote(track.dump, f"{here}/frames/{position}", frame, signal)
    return quotes


def quote_p2p(member: Member, row: list[Any], signal: str) -> list[Evidence]:
    """Quote the name of a point-to-point entry."""
    dump = member.dump
    name = member.tables.signatures[row[5]][0]
    return _quote(dump, f"{dump.summary['entries_pointer']}/{row[0]}/profiling_name", name, signal)


def quote_status(member: Member, field: str, signal: str) -> list[Evidence]:
    """Quote one counter of pg_status."""
    if member.status is None or member.status[STATUS_FIELDS[field]] is None:
        return []
    pointer = f"/pg_status/{pointer_token(member.status[0])}/{field}"
    return _quote(member.dump, pointer, member.status[STATUS_FIELDS[field]], signal)


def quote_ranks(group: Group, signal: str) -> list[Evidence]:
    """Quote the list of the group's ranks from the first dump that has it."""
    for member in group.members.values():
        summary = member.dump.summary
        if summary["config_pointer"] is None:
            continue
        for key, name, _, ranks in summary["config"]:
            # Of a key that long the summary may hold the beginning alone.
            if group.name in (key, name) and ranks and len(key) < MAX_KEY_CHARS:
                pointer = f"{summary['config_pointer']}/{pointer_token(key)}/ranks"
                text = unpack_ranks(ranks)
                if is_quotable(pointer) and _LIST.match(text):
                    # Without quotation marks it is part of the JSON of a text and of that of a list.
                    quote = clean_text(text)
                    return [Evidence(artefact=member.dump.artefact, where=pointer, quote=quote, signal=signal)]
    return []


def _quote(dump: RankDump, pointer: str, value: Any, signal: str) -> list[Evidence]:
    """Quote a value, unless it is not there or could not be found again as it is quoted."""
    if value is None or not is_quotable(pointer):
        return []
    quote = quote_value(dump.artefact, pointer, value, signal)
    # The summary holds the beginning of a long name alone, whose end would be quoted as if it were the name's.
    cut = isinstance(value, str) and len(value) >= MAX_NAME_CHARS and len(quote.quote) < QUOTE_CHARS - 1
    return [] if cut else [quote]
