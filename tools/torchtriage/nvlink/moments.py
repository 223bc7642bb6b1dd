"""Cuts kernel messages into moments: what came so close together that it can have one cause.

Times of one clock are compared; messages without a time are taken by their place in their log. What keeps coming on
sound machines neither begins a moment nor makes one longer: it is laid to the one it falls into, else put aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchtriage.nvlink.kernel_read import KernelEvent
    from torchtriage.nvlink.xid import Decoded

    Told = tuple[KernelEvent, Decoded]

# A storm of switch messages was seen 12 s behind the GPU that fell off the bus.
GAP_S = 30.0
# Without times: a log that was filtered for GPUs has related lines next to each other.
GAP_LINES = 200.0


def moments(told: Iterable[Told]) -> Iterator[list[Told]]:
    """Events that belong to one moment, clock by clock in order; then what was put aside, by code and unit."""
    by_clock: dict[tuple[str | None, ...], list[Told]] = {}
    for each in told:
        by_clock.setdefault(_clock(each[0]), []).append(each)
    for clock, of_clock in by_clock.items():
        yield from _moments_of(sorted(of_clock, key=_order), GAP_LINES if clock[0] is None else GAP_S)


def _clock(event: KernelEvent) -> tuple[str | None, ...]:
    """Two events compare where these are the same."""
    if event.time_s is None:
        return (None, event.artefact)
    if event.clock == "boot":
        return ("boot", event.host or event.artefact)
    return (event.clock,)


def _order(each: Told) -> tuple[float, str, int]:
    event = each[0]
    return (event.time_s if event.time_s is not None else float(event.line), event.artefact, event.line)


def _at(each: Told) -> float:
    return _order(each)[0]


def _moments_of(told: list[Told], gap: float) -> Iterator[list[Told]]:
    found: list[list[Told]] = []
    for each in told:
        if _notable(each):
            if found and _at(each) - _at(found[-1][-1]) <= gap:
                found[-1].append(each)
            else:
                found.append([each])
    spans = [(_at(moment[0]) - gap, _at(moment[-1]) + gap) for moment in found]
    aside: dict[tuple[object, ...], list[Told]] = {}
    number = 0
    for each in told:
        if _notable(each):
            continue
        while number < len(spans) and spans[number][1] < _at(each):
            number += 1
        if number < len(spans) and spans[number][0] <= _at(each):
            found[number].append(each)
        else:
            aside.setdefault((each[0].code, each[0].unit, each[0].host), []).append(each)
    for moment in found:
        yield sorted(moment, key=_order)
    yield from aside.values()


def _notable(each: Told) -> bool:
    return not each[1].benign and not each[1].injected
