"""Members that list other ranks for a group than most of its members do: one damaged list would split the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from torchtriage.flight.model import Group
    from torchtriage.flight.rank_lists import RankList

MAX_SAME_NAME = 64
"""More groups of one name than this are those of a split, of which no two have a rank in common."""


def settle_disputes(groups: dict[tuple[str, RankList], Group], gaps: list[str]) -> None:
    """Put members with an odd list into the group that most members list.

    Only when that list has them, and ranks of the odd list say themselves that the other is right: groups of a split
    share a name, but no rank. A list that is also that of another group may be a mixture of both, and stays apart.
    """
    of_name: dict[tuple[str, str], list[tuple[str, RankList]]] = {}
    names: dict[RankList, set[str]] = {}
    for key, group in groups.items():
        of_name.setdefault((group.name, group.desc), []).append(key)
        names.setdefault(key[1], set()).add(group.name)
    for keys in of_name.values():
        if not 1 < len(keys) <= MAX_SAME_NAME:
            continue
        keys.sort(key=lambda key: -len(groups[key].members))
        for at in range(len(keys) - 1, 0, -1):
            odd = groups[keys[at]]
            usual = next((groups[key] for key in keys[:at] if _is_right(groups[key], key[1], odd)), None)
            if usual is None or len(names[keys[at][1]]) > 1:
                continue
            gaps.append(
                f"{rank_words(sorted(odd.members))} and most of its members list other ranks for group "
                f"{usual.label()}; judged by what most list"
            )
            usual.members.update(odd.members)
            usual.disputed = True
            del groups[keys[at]]


def _is_right(usual: Group, listed: RankList, odd: Group) -> bool:
    return (
        len(usual.members) > len(odd.members) > 0
        and listed.members.issuperset(odd.members)
        and usual.members.keys().isdisjoint(odd.members)
        and not usual.members.keys().isdisjoint(odd.ranks)
    )
