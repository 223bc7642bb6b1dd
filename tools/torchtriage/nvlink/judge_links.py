"""Which links are down or slow, against what the GPU should have and against its peers. Pure.

Silent where links may rightly be absent: cards with bridges, MIG, GPUs without NVLink, boards of a mesh that wire
fewer, names that are not known. A listing that ends early tells of no missing link.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torchtriage.nvlink.findings import Finding, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.nvlink.gpus import Gpu, Link
    from torchtriage.nvlink.health_catalogue import HealthCatalogue, Model

_DOWN = frozenset({"inactive", "down", "off"})
MIN_AGREEING_PEERS = 2
MAX_LINES = 6


def judge_links(gpu: Gpu, peers: Sequence[Gpu], catalogue: HealthCatalogue, gaps: list[str]) -> list[Finding]:
    """The links of one GPU; ``peers`` are the other GPUs of its node with its name."""
    model = catalogue.model(gpu.name)
    listed = _listed(gpu)
    if gpu.mig or (model is not None and model.links == 0):
        return []
    if gpu.inactive is not None and not any(link.up for link in listed):
        return _all_inactive(gpu, model, catalogue, gaps)
    if not listed:
        return []
    missing = [] if ends_early(gpu, catalogue) else _missing(gpu, listed, peers, model, gaps)
    found = [_down(gpu, missing, model, catalogue)] if missing else []
    return [*found, *_slow(gpu, listed, peers, model, catalogue)]


def may_have_none(gpu: Gpu, catalogue: HealthCatalogue) -> bool:
    """Whether NVLink health does not apply to it: it has no links, none is bridged, or they are off under MIG."""
    model = catalogue.model(gpu.name)
    if model is not None and model.links == 0:
        return True
    up = any(link.up for link in gpu.links.values())
    told = gpu.inactive is not None or any(link.state is not None for link in gpu.links.values())
    return told and not up and (gpu.mig or (model is not None and not model.on_board))


def ends_early(gpu: Gpu, catalogue: HealthCatalogue) -> bool:
    """Whether the last listing of a file breaks off, by half or more: then what is not there was not told."""
    model, listed = catalogue.model(gpu.name), _listed(gpu)
    if model is None or not listed or not gpu.last_listed or not all(link.up for link in listed):
        return False
    return model.on_board and len(listed) * 2 <= model.links


def _listed(gpu: Gpu) -> list[Link]:
    return [link for _, link in sorted(gpu.links.items()) if link.state is not None]


def _all_inactive(gpu: Gpu, model: Model | None, catalogue: HealthCatalogue, gaps: list[str]) -> list[Finding]:
    if gpu.inactive is None or (model is not None and not model.on_board):
        return []
    if model is None:
        gaps.append(f"{gpu.label}: which GPU has no active link is not told; on a card without bridges that is sound")
    level = "degraded" if model is None else "failed"
    links = tuple(range(model.links)) if model is not None else ()
    return [
        Finding(
            "link_down", level, gpu, f"{gpu.label}: all its NVLinks are inactive", catalogue.link_down_action, links,
            (gpu.inactive,), {"n_down": len(links) or None, "all": True},
        )
    ]  # fmt: skip


def _missing(gpu: Gpu, listed: Sequence[Link], peers: Sequence[Gpu], model: Model | None, gaps: list[str]) -> list[int]:
    """Links that should be up and are not; those that somebody disabled are left alone."""
    down = [link.number for link in listed if link.state in _DOWN]
    up = [link.number for link in listed if link.up]
    if model is None:
        return _fewer_than_peers(up, down, peers)
    if not model.on_board:
        part = len(up) % model.bridge_links
        return down if part and down else []
    absent = [number for number in range(model.links) if number not in gpu.links or gpu.links[number].state is None]
    alike = [_listed(peer) for peer in peers if _listed(peer)]
    if absent and not down and _all_the_same(len(listed), alike):
        gaps.append(f"{gpu.label}: it and its peers list {len(listed)} links, and a usual {gpu.name} has {model.links}")
        return []
    if down and model.mesh and _all_the_same(len(up), [[link for link in each if link.up] for each in alike]):
        gaps.append(f"{gpu.label}: it and its peers have {len(up)} active links: taken for the wiring of this board")
        return []
    return sorted({*down, *absent})


def _all_the_same(count: int, alike: Sequence[Sequence[Link]]) -> bool:
    return len(alike) >= MIN_AGREEING_PEERS and all(len(each) == count for each in alike)


def _fewer_than_peers(up: Sequence[int], down: Sequence[int], peers: Sequence[Gpu]) -> list[int]:
    """Of a GPU that is not known: links that it has down and that most of its peers have up."""
    sets = [frozenset(link.number for link in _listed(peer) if link.up) for peer in peers if _listed(peer)]
    if not down or len(sets) < MIN_AGREEING_PEERS:
        return []
    usual, count = Counter(sets).most_common(1)[0]
    return [number for number in down if number in usual and number not in up] if count * 3 >= len(sets) * 2 else []


def _down(gpu: Gpu, missing: Sequence[int], model: Model | None, catalogue: HealthCatalogue) -> Finding:
    listed = [gpu.links[number] for number in missing if number in gpu.links and gpu.links[number].line is not None]
    up = [link for link in gpu.links.values() if link.up]
    any_line = next((link.line for link in up if link.line is not None), None)
    lines = [link.line for link in listed if link.line is not None] or ([any_line] if any_line is not None else [])
    how = "inactive" if listed else "not listed"
    of = f": {len(up)} of {model.links} are active" if model is not None and model.on_board else ""
    return Finding(
        "link_down", "failed", gpu, f"{gpu.label}: {numbers(missing)} {'is' if len(missing) == 1 else 'are'} {how}{of}",
        catalogue.link_down_action, tuple(missing), tuple(lines[:MAX_LINES]),
        {"n_down": len(missing), "n_active": len(up), "all": not up},
    )  # fmt: skip


def _slow(
    gpu: Gpu, listed: Sequence[Link], peers: Sequence[Gpu], model: Model | None, catalogue: HealthCatalogue
) -> list[Finding]:
    """Links below their speed: that of the model, else that of most links of the GPU and its peers."""
    speeds = [link.bw_gb_s for each in (gpu, *peers) for link in each.links.values() if link.up and link.bw_gb_s]
    usual = model.gb_s if model is not None and model.gb_s else Counter(speeds).most_common(1)[0][0] if speeds else None
    if usual is None:
        return []
    slow = [link for link in listed if link.up and link.bw_gb_s and link.bw_gb_s < usual * catalogue.slow_share]
    if not slow:
        return []
    links = [link.number for link in slow]
    return [
        Finding(
            "link_slow", "degraded", gpu,
            f"{gpu.label}: {numbers(links)} at {slow[0].bw_gb_s} GB/s, and {usual} GB/s is usual",
            "check_cabling", tuple(links), tuple(link.line for link in slow[:MAX_LINES] if link.line is not None),
            {"bw_gb_s": slow[0].bw_gb_s, "usual_gb_s": usual},
        )
    ]  # fmt: skip
