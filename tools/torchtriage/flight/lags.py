"""Which ranks that are behind are so by their own doing, and which wait for others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torchtriage.flight.ops import ROOTED
from torchtriage.flight.order import has_gone_past
from torchtriage.flight.waits import lags_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import Group, Vocabulary
    from torchtriage.flight.order import GroupsOfRank
    from torchtriage.flight.waits import Lag, Standing


def roots_and_followers(
    groups: Sequence[Group],
    at: Sequence[Mapping[int, Standing]],
    of_rank: GroupsOfRank,
    diverged: set[int],
    wait: set[int],
    told_elsewhere: set[int],
    vocabulary: Vocabulary,
) -> tuple[list[Lag], list[Lag]]:
    """(lags of ranks that wait for nobody, lags that those explain); those of ``told_elsewhere`` are in none.

    ``wait``: ranks that wait for others, so that their lag may be those others' doing.
    """
    roots: list[Lag] = []
    followers: list[Lag] = []
    for number, group in enumerate(groups):
        if number in diverged:
            continue
        for lag in lags_of(group, at[number]):
            own = [rank for rank in lag.ranks if rank not in told_elsewhere]
            blameless = [] if _proves_itself(lag, vocabulary) else [rank for rank in own if rank in wait]
            guilty = own if not blameless else [rank for rank in own if rank not in wait]
            if guilty:
                lag.ranks, lag.explained = guilty, blameless
                lag.went_past = lag.kind == "behind_on_enqueue" and has_gone_past(guilty[0], lag, of_rank)
                roots.append(lag)
            elif own:
                lag.ranks = own
                followers.append(lag)
    return roots, followers


def _proves_itself(lag: Lag, vocabulary: Vocabulary) -> bool:
    """Whether the lag cannot come from the rank's waiting elsewhere.

    Peers can finish an all-reduce only with this rank's part done, so a rank that alone has not finished it waits for
    nobody. With a root that only sends, or only receives, they can.
    """
    if lag.kind != "behind_on_complete":
        return False
    track = lag.group.members[lag.ranks[0]].track
    return track is None or not any(s.op in ROOTED for s in vocabulary.calls[track.soft_at(lag.seq)].signatures)


def ranks_that_went_past(
    groups: Sequence[Group], at: Sequence[Mapping[int, Standing]], of_rank: GroupsOfRank
) -> set[int]:
    """Ranks that lack a call of a group and issued, in another group, a later one.

    To each of two ranks it is the other that is out of order; so it is the one that is so to more of its peers.
    """
    n_against: Counter[int] = Counter()
    found: list[tuple[list[int], list[int]]] = []
    for group, group_at in zip(groups, at, strict=True):
        for lag in lags_of(group, group_at):
            past = [rank for rank in lag.ranks if lag.kind == "behind_on_enqueue" and has_gone_past(rank, lag, of_rank)]
            peers = [rank for rank, s in group_at.items() if s.unfinished is not None and s.enqueued >= lag.seq]
            if past:
                found.append((past, peers))
                n_against.update(dict.fromkeys(past, len(peers)))
                n_against.update(dict.fromkeys(peers, len(past)))
    return {rank for past, peers in found for rank in past if n_against[rank] >= max(n_against[peer] for peer in peers)}
