"""The dumps of all ranks as process groups with one track of calls per rank. Decodes summaries; never judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.columns import unpack_column
from torchtriage.flight.naming import named, named_site
from torchtriage.flight.ops import Signature, sent_received

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class RankDump:
    """One dump: how reports name it, whose it is (None: its name does not say), and the reader's summary."""

    artefact: str
    rank: int | None
    host: str | None
    summary: Mapping[str, Any]
    written_ms: int | None = None
    """The time of its file, in ms since the epoch; that of a copy when it is one."""


@dataclass(frozen=True)
class Call:
    """What a call looks like to the alignment: signatures (several when coalesced) and call site."""

    signatures: tuple[Signature, ...]
    site: str
    thread: str
    issuer: str = ""
    """Machinery that issued it on its own: fsdp, zero, or nothing known."""

    @property
    def op(self) -> str:
        """The operation; of a coalesced call that of its first member."""
        return named(self.signatures[0].op)

    def describe(self) -> str:
        """Words for reports."""
        text = "; ".join(signature.describe() for signature in self.signatures[:2])
        if len(self.signatures) > 2:
            text += f"; ... {len(self.signatures)} coalesced"
        if self.site:
            text += f" at {named_site(self.site)}"
        elif self.thread.startswith("pt_autograd"):
            text += " in the backward pass"  # the autograd threads have no Python frames to show
        return clean_text(text)


class Vocabulary:
    """Numbers calls across all dumps. ``soft`` tells call sites apart, ``hard`` only what must fit together.

    0 stands for "not recorded" in both.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.calls: list[Call] = [Call((Signature("", None, None, None, None),), "", "")]
        self.hard_of: list[int] = [0]
        self.comparables: list[tuple[tuple[object, ...], ...]] = [()]
        """What must fit together, by hard number."""
        self.vague_soft: set[int] = set()
        """Soft numbers of calls of which sizes or dtypes are unknown, so that they fit several others."""
        self.vague_hard: set[int] = set()
        self.moved: list[tuple[int, int] | None] = [None]
        """(elements sent, elements received) of calls in which the members' sums must be equal, else None."""
        self._soft: dict[Any, int] = {}
        self._hard: dict[Any, int] = {}

    def number(self, signatures: tuple[Signature, ...], site: str, thread: str, issuer: str = "") -> int:
        """The soft number of a call."""
        key = (signatures, site)
        soft = self._soft.get(key)
        if soft is None:
            soft = self._soft[key] = len(self.calls)
            self.calls.append(Call(signatures, site, thread, issuer))
            self.moved.append(sent_received(signatures))
            comparable = tuple(signature.comparable() for signature in signatures)
            hard = self._hard.setdefault(comparable, len(self._hard) + 1)
            if hard == len(self.comparables):
                self.comparables.append(comparable)
            self.hard_of.append(hard)
            if any(signature.is_vague() for signature in signatures):
                self.vague_soft.add(soft)
                self.vague_hard.add(hard)
        return soft

    def merged(self, members: Sequence[int]) -> int:
        """The number of a coalesced call made of several entries."""
        signatures = tuple(s for member in members[:256] for s in self.calls[member].signatures)
        first = self.calls[members[0]]
        return self.number(signatures, first.site, first.thread, first.issuer)


@dataclass(frozen=True, eq=False)
class Tables:
    """What the columns of a dump refer to; one object for all dumps that have the same."""

    signatures: Sequence[Sequence[Any]]
    sites: Sequence[Sequence[Any]]
    tokens: Sequence[tuple[int, int, str]]
    softs: tuple[int, ...]
    """The soft number of each token."""


NO_TABLES = Tables((), (), (), ())


@dataclass(frozen=True, eq=False)
class Calls:
    """What a rank called in one group, by sequence number from ``first`` on; ranks that did the same share one object.

    ``index`` and ``token`` are by row: the entries in their own order. 0 in the other columns is a hole.
    """

    first: int
    soft: array[int]
    hard: array[int]
    index: Sequence[int]
    token: Sequence[int]
    row_of: Sequence[int] | None
    """Row of each sequence number, -1 for none; None when they are the same."""
    first_unfinished: int | None
    all_known: bool
    """Whether every call's state could be told."""
    first_unknown: int | None = None
    """The first call behind those known to be finished of which nobody can tell whether it is."""

    @property
    def last(self) -> int:
        """The last recorded sequence number."""
        return self.first + len(self.soft) - 1

    @property
    def last_finished(self) -> int:
        """The last call that it is known to have finished."""
        behind = [seq for seq in (self.first_unfinished, self.first_unknown) if seq is not None]
        return min(behind) - 1 if behind else self.last

    def soft_at(self, seq: int) -> int:
        """The soft number of the call ``seq``, 0 when it is not recorded."""
        return self.soft[seq - self.first] if self.first <= seq <= self.last else 0

    def hard_at(self, seq: int) -> int:
        """The hard number of the call ``seq``, 0 when it is not recorded."""
        return self.hard[seq - self.first] if self.first <= seq <= self.last else 0

    def before(self, seq: int) -> array[int]:
        """The soft numbers of the calls before ``seq``."""
        return self.soft[: max(0, seq - self.first)]


@dataclass(frozen=True, eq=False)
class Track:
    """The collectives of one rank in one group: what it called, and when."""

    rank: int
    dump: RankDump
    tables: Tables
    calls: Calls
    packed: Mapping[str, Any]
    cut: bool = False
    """Whether later calls may be lost: nothing is known behind ``last`` then."""
    lost_before: bool = False
    """Whether the ring buffer has overwritten older calls, of which some may be unfinished."""

    torn: bool = False
    """Whether the ring buffer may have overwritten a part of the first call, which then looks like another one."""

    @property
    def first(self) -> int:
        """The first recorded sequence number."""
        return self.calls.first

    @property
    def first_whole(self) -> int:
        """The first recorded sequence number of a call that is there as a whole."""
        return self.calls.first + self.torn

    @property
    def last(self) -> int:
        """The last recorded sequence number."""
        return self.calls.last

    @property
    def first_unfinished(self) -> int | None:
        """The first call that it had not finished."""
        return self.calls.first_unfinished

    def soft_at(self, seq: int) -> int:
        """The soft number of the call ``seq``, 0 when it is not recorded."""
        return self.calls.soft_at(seq)

    def row(self, seq: int) -> int | None:
        """The row of the columns that holds the call ``seq``."""
        calls = self.calls
        if not calls.first <= seq <= calls.last:
            return None
        row = seq - calls.first if calls.row_of is None else calls.row_of[seq - calls.first]
        return row if row >= 0 else None

    def index_at(self, seq: int) -> int | None:
        """Which entry of the dump, from 0 on, holds the call ``seq``."""
        row = self.row(seq)
        return None if row is None else self.calls.index[row]

    def time_ms(self, seq: int) -> int | None:
        """When the call was created, in ms since the epoch.

        The times of a rank are its own, so they stay packed; that of the call it is stuck in is at hand.
        """
        row = self.row(seq)
        if row is None:
            return None
        unfinished = self.packed["open"]
        if unfinished is not None and unfinished[0] == row:
            return unfinished[1] or None
        ms = unpack_column(self.packed["ms"], self.packed["n"])[row]
        return self.packed["base_ms"] + ms - 1 if ms else None


@dataclass
class Member:
    """What one rank's dump says of one group."""

    rank: int
    dump: RankDump
    track: Track | None = None
    status: tuple[str, Any, Any, Any] | None = None
    p2p: list[list[Any]] = field(default_factory=list[list[Any]])
    n_p2p: int = 0
    tables: Tables = NO_TABLES
    open_batches: list[int] | None = None
    """Batches of sends and receives that are not closed; None where its dump shows no batches."""
    never_called: bool = False
    """Whether its dump goes back to the first call and holds none of this group."""

    @property
    def first_open(self) -> int | None:
        """Which entry of the dump, from 0 on, is the first of the group that is unfinished."""
        track = self.track
        seq = track.first_unfinished if track is not None else None
        index = track.index_at(seq) if track is not None and seq is not None else None
        if not self.p2p:
            return index
        return self.p2p[0][0] if index is None else min(index, self.p2p[0][0])


@dataclass
class Group:
    """One process group: its ranks as the dumps list them, and what each dump says of it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    members: dict[int, Member] = field(default_factory=dict[int, Member])
    disputed: bool = False
    """Whether the dumps of some members list other ranks than most do."""

    @property
    def tracks(self) -> list[Track]:
        """The tracks there are, in order of rank."""
        return [m.track for _, m in sorted(self.members.items()) if m.track is not None]

    @property
    def missing(self) -> list[int]:
        """Ranks of the group that left no dump."""
        return [rank for rank in self.ranks if rank not in self.members]

    @property
    def has_unfinished(self) -> bool:
        """Whether any of its ranks has something unfinished in it."""
        return any(member.first_open is not None for member in self.members.values())

    @property
    def has_cut(self) -> bool:
        """Whether the end of a member's dump is lost."""
        return any(member.dump.summary["cut"] for member in self.members.values())

    @property
    def has_p2p(self) -> bool:
        """Whether point-to-point calls were seen in it: then pg_status counts those too."""
        return any(member.n_p2p for member in self.members.values())

    def other_side(self, row: Sequence[Any]) -> int:
        """The rank at the other end of a send or receive; -1 when the group has no such place."""
        place: int = row[2] if row[1] else row[3]
        return self.ranks[place] if place < len(self.ranks) else -1

    def label(self) -> str:
        """Name and description for reports."""
        return f"{named(self.name)} ({named(self.desc)})" if self.desc and self.desc != self.name else named(self.name)


def shapes(sizes: list[list[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    """Sizes as the vocabulary wants them."""
    return None if sizes is None else tuple(map(tuple, sizes))


def words(dtypes: list[str] | None) -> tuple[str, ...] | None:
    """Dtypes as the vocabulary wants them."""
    return None if dtypes is None else tuple(dtypes)
