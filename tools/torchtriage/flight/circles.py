"""Circles in a graph of waits: its strongly connected components, and what would untie them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

MAX_TRIED = 48


def blamed(edges: Mapping[int, set[int]]) -> tuple[set[int], list[list[int]]]:
    """(ranks at the end of waits, cycles among them): ranks of strongly connected components that wait for no other."""
    ends: set[int] = set()
    cycles: list[list[int]] = []
    component = _components(edges)
    members: dict[int, list[int]] = {}
    for rank, number in component.items():
        members.setdefault(number, []).append(rank)
    for number, nodes in members.items():
        if all(component[q] == number for node in nodes for q in edges.get(node, ())):
            ranks = sorted(node for node in nodes if node >= 0)
            ends.update(ranks)
            if len(ranks) > 1:
                cycles.append(ranks)
    return ends, sorted(cycles)


def untying(cycle: Sequence[int], edges: Mapping[int, set[int]]) -> list[int]:
    """The ranks without any one of which none of ``cycle`` would wait in a circle; empty when no single rank is it."""
    component = _components(edges)
    inside = {node for node, number in component.items() if number == component[cycle[0]]}
    part = {node: edges.get(node, set()) & inside for node in inside}
    ranks = [node for node in _circle(cycle[0], part) if node >= 0]
    if len(ranks) > MAX_TRIED:
        return []
    return sorted(rank for rank in ranks if not _has_circle({n: o - {rank} for n, o in part.items() if n != rank}))


def _circle(start: int, edges: Mapping[int, AbstractSet[int]]) -> list[int]:
    """A shortest circle through ``start``: a rank that unties all circles is in it."""
    before: dict[int, int] = {}
    front = [start]
    while front:
        reached: list[int] = []
        for node in front:
            for other in sorted(edges.get(node, ())):
                if other == start:
                    circle = [node]
                    while circle[-1] != start:
                        circle.append(before[circle[-1]])
                    return circle
                if other not in before:
                    before[other] = node
                    reached.append(other)
        front = reached
    return []


def _has_circle(edges: Mapping[int, set[int]]) -> bool:
    sizes = Counter(_components(edges).values())
    return any(n > 1 for n in sizes.values())


def _components(edges: Mapping[int, set[int]]) -> dict[int, int]:
    """Strongly connected components (Tarjan), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    counter = 0
    n_components = 0
    nodes = sorted(set(edges) | {q for others in edges.values() for q in others})
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = counter
        counter += 1
        stack.append(root)
        while work:
            node, others = work[-1]
            pushed = False
            for other in others:
                if other not in index:
                    index[other] = low[other] = counter
                    counter += 1
                    stack.append(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    pushed = True
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            if pushed:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                while True:
                    member = stack.pop()
                    component[member] = n_components
                    if member == node:
                        break
                n_components += 1
    return component
