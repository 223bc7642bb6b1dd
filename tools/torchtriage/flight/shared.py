"""What the ranks of a job have in common, decoded and kept once: tables, columns, and whole histories of calls.

Ranks of one job make the same calls, so their packed columns are equal as text. What is equal is decoded for the first
rank and found by that text for all others; memory grows with what differs, not with ranks times calls.
"""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

from torchtriage.flight.columns import FINISHED, UNFINISHED, UNKNOWN, unpack_column
from torchtriage.flight.model import Calls, Tables, shapes, words
from torchtriage.flight.ops import Signature, op_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import Vocabulary


class Shared:
    """Decodes summaries of one job's dumps."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Calls get their numbers from ``vocabulary``."""
        self._vocabulary = vocabulary
        self._tables: dict[str, Tables] = {}
        self._columns: dict[Any, Sequence[int]] = {}
        self._histories: dict[Any, tuple[int, array[int], array[int], Sequence[int] | None]] = {}
        self._calls: dict[Any, Calls] = {}

    def tables(self, text: str) -> Tables:
        """The tables of a dump.

        Raises:
            ValueError, TypeError, IndexError: they do not fit together.
        """
        found = self._tables.get(text)
        if found is None:
            signatures, sites, tokens = json.loads(text)
            found = self._tables[text] = Tables(
                signatures, sites, tokens, _soft_numbers(signatures, sites, tokens, self._vocabulary)
            )
        return found

    def calls(self, tables: Tables, packed: Mapping[str, Any]) -> Calls | None:
        """The calls of a rank in a group; None when there are none."""
        n = packed["n"]
        if not n:
            return None
        key = (tables.softs, n, *(tuple(packed[name]) for name in ("seq", "token", "finished", "index")))
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._decoded(tables, packed)
        return found

    def _decoded(self, tables: Tables, packed: Mapping[str, Any]) -> Calls:
        n = packed["n"]
        seqs = self._column(packed["seq"], n)
        tokens = self._column(packed["token"], n)
        finished = self._column(packed["finished"], n)
        key = (tables.softs, n, tuple(packed["seq"]), tuple(packed["token"]))
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = self._history(seqs, tokens, tables.softs)
        first, soft, hard, row_of = history
        open_seqs = [seqs[i] for i in range(n) if finished[i] == UNFINISHED] if UNFINISHED in finished else []
        if row_of is not None and open_seqs:
            # The parts of a coalesced call have no events: only its last entry tells whether it is finished. Of numbers
            # that start over, the old ones are not kept.
            last_row = dict(zip(seqs, range(n), strict=True))
            open_seqs = [
                s
                for s, row in last_row.items()
                if finished[row] == UNFINISHED and 0 <= s - first < len(row_of) and row_of[s - first] >= 0
            ]
        return Calls(
            first=first,
            soft=soft,
            hard=hard,
            index=self._column(packed["index"], n),
            token=tokens,
            row_of=row_of,
            first_unfinished=min(open_seqs, default=None),
            all_known=UNKNOWN not in finished,
            first_unknown=_first_unknown(seqs, finished),
        )

    def _column(self, packed: Any, n: int) -> Sequence[int]:
        key = (*packed, n)
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = unpack_column(packed, n)
        return found

    def _history(
        self, seqs: Sequence[int], tokens: Sequence[int], softs: Sequence[int]
    ) -> tuple[int, array[int], array[int], Sequence[int] | None]:
        first = seqs[0]
        soft = array("I", map(softs.__getitem__, tokens))
        row_of: Sequence[int] | None = None
        if not isinstance(seqs, range) and len(seqs) > 1:
            first, soft, row_of = _by_seq(seqs, soft, self._vocabulary)
        return first, soft, array("I", map(self._vocabulary.hard_of.__getitem__, soft)), row_of


def _first_unknown(seqs: Sequence[int], finished: Sequence[int]) -> int | None:
    """The first call of unknown state behind the last that is known to be finished: a device runs them in order."""
    if UNKNOWN not in finished:
        return None
    ended = max((at for at, state in enumerate(finished) if state == FINISHED), default=-1)
    return next((seqs[at] for at in range(ended + 1, len(seqs)) if finished[at] == UNKNOWN), None)


def _soft_numbers(
    signatures: Sequence[Sequence[Any]],
    sites: Sequence[Sequence[Any]],
    tokens: Sequence[tuple[int, int, str]],
    vocabulary: Vocabulary,
) -> tuple[int, ...]:
    known: dict[int, Signature] = {}
    numbers: list[int] = []
    for number, site, thread in tokens:
        signature = known.get(number)
        if signature is None:
            name, ins, outs, in_types, out_types = signatures[number]
            signature = known[number] = Signature(
                op_of(name), shapes(ins), shapes(outs), words(in_types), words(out_types)
            )
        numbers.append(vocabulary.number((signature,), sites[site][0], thread, sites[site][3]))
    return tuple(numbers)


def _by_seq(seqs: Sequence[int], soft: array[int], vocabulary: Vocabulary) -> tuple[int, array[int], array[int]]:
    """Columns by sequence number when entries share one (coalesced calls) or numbers start over (a new epoch)."""
    start = max((i for i in range(1, len(seqs)) if seqs[i] < seqs[i - 1]), default=0)
    rows: dict[int, list[int]] = {}
    for i in range(start, len(seqs)):
        rows.setdefault(seqs[i], []).append(i)
    first, last = min(rows), max(rows)
    if last - first > 4 * len(rows) + 4096:  # numbers that no counter gives: keep what follows the last jump
        ordered = sorted(rows)
        jump = max(range(1, len(ordered)), key=lambda i: ordered[i] - ordered[i - 1])
        rows = {seq: rows[seq] for seq in ordered[jump:]}
        first, last = min(rows), max(rows)
        if last - first > 4 * len(rows) + 4096:
            rows = {last: rows[last]}
            first = last
    column = array("I", bytes(4 * (last - first + 1)))
    row_of = array("i", [-1]) * (last - first + 1)
    for seq, members in rows.items():
        column[seq - first] = soft[members[0]] if len(members) == 1 else vocabulary.merged([soft[i] for i in members])
        row_of[seq - first] = members[0]
    return first, column, row_of
