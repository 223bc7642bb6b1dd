"""Turn one flight-recorder dump into a compact summary: groups, calls as columns, and what was lost. Never judges.

Stdlib only: runs inside the isolated worker. Knows schema versions 1.1 to 2.10 as pickle and JSON (source: torch
FlightRecorder.hpp and fr_trace's components/types.py, 2.13), and the files that torch itself cannot read back: gloo,
custom backends, JSON, dumps without entries. Every value is type-checked; frames may be shared objects that are huge
when walked, so how many are looked at is bounded over the whole file.
"""

from __future__ import annotations

import json
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError
from torchtriage.flight.columns import FINISHED, Columns, pack_columns
from torchtriage.flight.leaps import fold_strays, leaps_of, leave_out_odd_numbers
from torchtriage.flight.rank_lists import pack_ranks
from torchtriage.flight.tables import (
    SignatureTable,
    SiteTable,
    as_int,
    as_mapping,
    as_sequence,
    as_text,
    names_key,
    sizes_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ENTRIES = 200_000
MAX_GROUPS = 4096
MAX_RANKS = 65_536
MAX_RANKS_CHARS = 1 << 20
_KNOWN_KEYS = ("entries", "pg_config", "pg_status", "nccl_version", "comm_lib_version")
_STATUS_FIELDS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_FIELDS = (
    "profiling_name", "process_group", "pg_id", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes",
    "state", "retired", "time_created_ns", "is_p2p", "collective_seq_id", "frames", "thread_name",
)  # fmt: skip
_usual_fields = itemgetter(*_FIELDS)
_FINISHED_BY_STATE = {"scheduled": 0, "started": 0, "completed": 1}


def summarise_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: the summary of one dump, JSON-able.

    Raises:
        UnreadableError, RefusedPickleError: nothing can be had of it.
    """
    view, note = load_view(path, compression, str(args["format"]))
    summary = summarise(without_torn_end(view) if note else view)
    if note:
        summary["notes"].insert(0, note)
        summary["damaged"] = True
        summary["cut"] |= _ends_in_entries(view)
    return summary


def without_torn_end(view: Any) -> Any:
    """A damaged dump without its last item, entry, group or counters: what the damage left of that may be a part."""
    top = as_mapping(view)
    if top is None:
        return view[:-1] if isinstance(view, list) else view  # pyright: ignore[reportUnknownVariableType]
    last = next(reversed(top), None)
    content = top.get(last)
    if isinstance(content, list):
        return {**top, last: cast("list[Any]", content)[:-1]}
    if isinstance(content, dict):
        return {**top, last: dict(islice(cast("dict[Any, Any]", content).items(), max(0, len(top[last]) - 1)))}
    return top


def _ends_in_entries(view: Any) -> bool:
    """Whether entries may be lost: a key that stands after them shows that they are all there."""
    top = as_mapping(view)
    return top is None or "entries" not in top or next(reversed(top)) == "entries"


def summarise(view: Any) -> dict[str, Any]:
    """The summary of a loaded dump.

    Keys: ``version``, ``comm_lib``, ``damaged``, ``cut`` (what came after the last entry is not known), ``notes``,
    ``partial`` (it has more groups than are read),
    ``first_ns`` (creation times of the first entries: two processes never share them), ``timeout_ms``,
    ``entries_pointer`` and ``config_pointer`` (JSON Pointers), ``has_entries``, ``n_entries``,
    ``first_id`` (record_id of the first entry: how many the ring buffer lost before it),
    ``n_skipped`` (how many ids are missing between: calls that a dump of active ones leaves out),
    ``any_finished`` (else it may be one of active calls alone),
    ``config`` ([key, name, desc, ranks as ``rank_lists.py`` packs them]),
    ``status`` ([uid, enqueued, started, completed], values as found),
    ``tracks`` (per group of the entries: what ``columns.py`` packs),
    ``tables`` (what the columns refer to, as JSON text, because nearly all ranks have the same).
    """
    top, entries, pointer = _parts(view)
    notes: list[str] = []
    reader = _EntryReader()
    records = as_sequence(entries)
    unread = records is None and entries is not None
    if records is not None:
        if len(records) > MAX_ENTRIES:
            notes.append(f"holds {len(records)} entries; only the last {MAX_ENTRIES} were read")
        reader.read(records)
    elif entries is not None:
        notes.append(f"its entries are a {type(entries).__name__}, not a list; they were not read")
    status = _status(top.get("pg_status"))
    reader.settle({int(row[0]) for row in status if row[0].isascii() and row[0].isdecimal()})
    n_groups = max(reader.n_groups, *(len(as_mapping(part) or as_sequence(part) or ()) for part in _by_group(top)))
    if n_groups > MAX_GROUPS:
        notes.append(f"has more than {MAX_GROUPS} process groups; only the first {MAX_GROUPS} were read and judged")
    if reader.n_odd:
        notes.append(f"{reader.n_odd} of its entries are not records of calls and were left out")
    if reader.n_misnumbered:
        notes.append(f"{reader.n_misnumbered} of its entries have a group or number that does not fit; left out")
    if reader.signatures.n_unreadable:
        notes.append("sizes or dtypes of some of its calls cannot be read; they count as unknown")
    if not reader.n_read and any(as_int(row[1]) for row in status):
        notes.append("holds no calls though its counters count some; it speaks by its counters alone")
    return {
        "version": as_text(top.get("version"), 32) or "",
        "comm_lib": as_text(top.get("comm_lib_version") or top.get("nccl_version"), 32) or "",
        "damaged": unread or reader.n_odd + reader.n_misnumbered > 0,
        "cut": unread or reader.ends_odd,
        "partial": n_groups > MAX_GROUPS,
        "first_ns": _first_times(records or ()),
        "timeout_ms": _timeout_ms(records or ()),
        "notes": notes,
        "entries_pointer": pointer,
        "config_pointer": "/pg_config" if as_mapping(top.get("pg_config")) is not None else None,
        "has_entries": records is not None,
        "n_entries": reader.n_read,
        "first_id": _record_id(records, 0),
        "n_skipped": _record_id(records, -1) - _record_id(records, 0) - len(records or ()) + 1,
        "any_finished": bool(reader.any_finished & FINISHED),
        "config": _config(top.get("pg_config"), notes),
        "status": status,
        "tracks": reader.tracks(),
        "tables": reader.tables(),
    }


def _parts(view: Any) -> tuple[Mapping[Any, Any], Any, str]:
    """The top-level record, the entries, and where they are; dumps of schema 1.1 are the bare list of entries."""
    records = as_sequence(view)
    if records is not None:
        first = as_mapping(records[0]) if records else None
        if first is None or not ("profiling_name" in first or "collective_seq_id" in first):
            raise UnreadableError("holds a list, but not of flight-recorder entries")
        return {}, records, ""
    top = as_mapping(view)
    if top is None:
        raise UnreadableError(f"holds a {type(view).__name__}, not a flight-recorder dump")
    if not any(key in top for key in _KNOWN_KEYS):
        raise UnreadableError("has none of the fields of a flight-recorder dump (entries, pg_config, pg_status)")
    return top, top.get("entries"), "/entries"


def _by_group(top: Mapping[Any, Any]) -> tuple[Any, Any]:
    return top.get("pg_config"), top.get("pg_status")


def _config(raw: Any, notes: list[str]) -> list[list[Any]]:
    """Groups as [key, name, desc, packed ranks]; the caller parses those once, who sees them on many ranks."""
    by_key, listed = as_mapping(raw), as_sequence(raw)
    items: list[tuple[Any, Any]] = []
    if by_key is not None:
        items = list(islice(by_key.items(), MAX_GROUPS))
    elif listed is not None:
        items = [(None, item) for item in listed[:MAX_GROUPS]]
    elif raw is not None:
        notes.append(f"its pg_config is a {type(raw).__name__}, not a record of process groups")
    n_unreadable = 0
    rows: list[list[Any]] = []
    for key, value in items:
        group = as_mapping(value)
        if group is None:
            notes.append("a process group of pg_config is not a record; it was left out")
            continue
        name = as_text(group.get("name"), 256) or ""
        label = as_text(key, 256)
        desc = as_text(group.get("desc"), 256) or ""
        ranks = group.get("ranks")
        text = _ranks_text(ranks)
        n_unreadable += not text and ranks is not None and ranks != ""
        rows.append([name if label is None else label, name, desc, pack_ranks(text)])
    if n_unreadable:
        notes.append(f"the ranks of {n_unreadable} of its process groups cannot be read")
    return rows


def _ranks_text(ranks: Any) -> str:
    """The ranks as torch writes them, "[0, 1]"; empty when they are neither that nor a list of ints."""
    if isinstance(ranks, str):
        return ranks if len(ranks) <= MAX_RANKS_CHARS else ""
    listed = as_sequence(ranks) or ()
    numbers = [as_int(n) for n in listed] if len(listed) <= MAX_RANKS else []
    # A list with a rank left out would be another group.
    return f"[{', '.join(map(str, numbers))}]" if numbers and None not in numbers else ""


def _record_id(records: Any, at: int) -> int:
    entry = as_mapping(records[at]) if records else None
    return max(0, (as_int(entry.get("record_id")) if entry is not None else None) or 0)


def _first_times(records: Any) -> list[int]:
    """Creation times, in ns since the epoch, of the first entries that say them."""
    times: list[int] = []
    for record in islice(records, 64):
        entry = as_mapping(record)
        created = as_int(entry.get("time_created_ns")) if entry is not None else None
        if created is not None and created > 0:
            times.append(created)
            if len(times) == 3:
                break
    return times


def _timeout_ms(records: Any) -> int | None:
    """The shortest time-out of the newest entries that say theirs."""
    newest = records[-64:]
    timeouts = [as_int(entry.get("timeout_ms")) for record in newest if (entry := as_mapping(record)) is not None]
    return min((timeout for timeout in timeouts if timeout is not None and timeout > 0), default=None)


def _status(raw: Any) -> list[list[Any]]:
    """[uid, enqueued, started, completed]; the values stay as found (JSON dumps hold them as strings)."""
    rows: list[list[Any]] = []
    for uid, value in islice((as_mapping(raw) or {}).items(), MAX_GROUPS):
        counters = as_mapping(value)
        if isinstance(uid, str) and len(uid) <= 32 and counters is not None:
            found = [counters.get(field) for field in _STATUS_FIELDS]
            rows.append([uid, *(number if as_int(number) is not None else None for number in found)])
    return rows


class _EntryReader:
    """Walks the entries once and sorts them into one set of columns per process group."""

    def __init__(self) -> None:
        self.signatures = SignatureTable()
        self.sites = SiteTable()
        self.tokens: dict[tuple[int, int, str], int] = {}
        self.n_read = 0
        self.n_odd = 0
        self.n_misnumbered = 0
        self.n_groups = 0
        """At least this many groups have calls in it; more than are read when some were left out."""
        self.ends_odd = False
        """Whether the last entry could not be read, so that nobody knows what came last."""
        self._entries: Any = ()
        self.any_finished = 0
        self._token_of: dict[tuple[Any, ...], int] = {}
        self._groups: dict[tuple[str, str, int], Columns] = {}

    def read(self, entries: Any) -> None:
        """Read all entries (the last :data:`MAX_ENTRIES` of them)."""
        self._entries = entries
        tokens, site_of, sites = self._token_of, self.sites.id_of, self.sites.by_identity
        for index in range(max(0, len(entries) - MAX_ENTRIES), len(entries)):
            entry: Any = entries[index]
            if entry.__class__ is not dict:
                self.n_odd += 1
                self.ends_odd = index == len(entries) - 1
                continue
            fields: tuple[Any, ...]
            try:
                fields = _usual_fields(entry)
            except KeyError:
                fields = tuple(map(entry.get, _FIELDS))
            (name, process_group, pg_id, ins, outs, in_types, out_types,
             state, retired, created, is_p2p, seq, frames, thread) = fields  # fmt: skip
            columns = self._columns(process_group, pg_id)
            if columns is None:
                self.n_groups = MAX_GROUPS + 1
                continue
            if name.__class__ is not str:
                self.n_odd += 1
                self.ends_odd = index == len(entries) - 1
                continue
            self.n_read += 1
            finished = 1 if retired is True else _FINISHED_BY_STATE.get(state, 2) if state.__class__ is str else 2
            self.any_finished |= finished
            created = created // 1_000_000 if created.__class__ is int and 0 < created < 1 << 63 else 0
            # A call like one before is the usual case: then this key is all that is looked at.
            site = sites.get(id(frames))
            key = (
                name, sizes_key(ins), sizes_key(outs), names_key(in_types), names_key(out_types),
                site_of(frames) if site is None else site, thread if thread.__class__ is str else "", is_p2p is True,
            )  # fmt: skip
            token = tokens.get(key)
            if token is None:
                token = tokens[key] = self._token(key, (ins, outs, in_types, out_types))
            if token < 0:
                columns.n_p2p += 1
                route = self.signatures.routes[-1 - token]
                if route is None and finished == 1:
                    columns.end_batch(as_int(entry.get("p2p_seq_id")) or 0)
                if finished == 0:
                    order = as_int(entry.get("p2p_seq_id")) or 0
                    if route is not None:
                        columns.p2p.append([index, *route, order, -1 - token, created])
                    else:
                        columns.open_batch(order)
                continue
            if seq.__class__ is not int or not -1 <= seq < 1 << 62:
                seq = as_int(seq if seq is not None else entry.get("seq_id"))
                if seq is None:
                    seq = columns.next_seq()
            columns.rows.append((index, seq, token, finished, created))

    def _token(self, key: tuple[Any, ...], asked: tuple[Any, ...]) -> int:
        """The number of a call's (signature, site, thread); -1 minus the signature for a point-to-point call."""
        name, *sizes_and_types, site, thread, is_p2p = key
        signature = self.signatures.id_of(name, *sizes_and_types, asked=asked)
        if is_p2p or self.signatures.routes[signature] is not None:
            return -1 - signature
        return self.tokens.setdefault((signature, site, thread[:64]), len(self.tokens))

    def _columns(self, process_group: Any, pg_id: Any) -> Columns | None:
        """The columns of an entry's group; a group is named by (name, description), before 2.0 by its id alone."""
        if process_group.__class__ is tuple and len(process_group) == 2 and pg_id.__class__ is int:
            name, desc = process_group  # the usual case, on the hot path
            if name.__class__ is str and desc.__class__ is str:
                columns = self._groups.get((name, desc, pg_id))
                if columns is not None:
                    return columns
        uid = pg_id if pg_id.__class__ is int and -1 < pg_id < 1 << 31 else -1
        name, desc = str(uid), ""
        if process_group.__class__ in (tuple, list) and process_group:
            first = process_group[0]
            second = process_group[1] if len(process_group) > 1 else ""
            if first.__class__ is str:
                name = first
            if second.__class__ is str:
                desc = second
        elif process_group.__class__ is str:
            name = process_group
        key = (name, desc, uid)
        columns = self._groups.get(key)
        if columns is None:
            if len(self._groups) >= MAX_GROUPS:
                return None
            columns = self._groups[key] = Columns(name[:256], desc[:256], uid)
        return columns

    def settle(self, known: set[int]) -> None:
        """Set right, or leave out, what damage has put into another group or given a number that cannot be.

        Args:
            known: the groups' numbers that pg_status has.
        """
        self.n_groups = max(self.n_groups, len(self._groups))
        self.n_misnumbered, at_end = fold_strays(self._groups, known)
        self.ends_odd |= at_end
        for columns in self._groups.values():
            self.n_misnumbered += leave_out_odd_numbers(columns, self._id_at)
            columns.leaps = leaps_of(columns, self._id_at)

    def _id_at(self, index: int) -> int:
        return as_int(self._entries[index].get("record_id")) or 0

    def tables(self) -> str:
        """What the columns refer to, as JSON text."""
        tables = [self.signatures.rows, self.sites.rows, list(self.tokens)]
        return json.dumps(tables, separators=(",", ":"))

    def tracks(self) -> list[dict[str, Any]]:
        """The columns of all groups, packed."""
        if not self.any_finished:
            names = self.signatures.rows
            closing = {token for key, token in self.tokens.items() if names[key[0]][0].endswith("coalesced")}
            for columns in self._groups.values():
                columns.leave_out_finished_batches()
                columns.leave_out_finished_parts(closing)
        return [pack_columns(columns) for columns in self._groups.values()]
