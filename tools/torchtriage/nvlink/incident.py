"""One incident of a kernel log: what happened first, what followed from it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.nvlink.kernel_read import KernelEvent
    from torchtriage.nvlink.xid import Decoded
    from torchtriage.nvlink.xid_catalogue import Action

MAX_LISTED = 32
Gpu = tuple["str | None", "str | None"]
"""Host and bus id (see ``kernel_read.bus_id``), each None where it is not known."""


@dataclass
class Node:
    """Messages of one GPU (or switch) that have one code and mean the same, within one incident."""

    events: list[KernelEvent]
    decoded: Decoded
    tier: int
    """Place in the order of first movers; the lowest is looked for first."""
    position: int
    """Place of the first one among all events of its moment."""

    @property
    def first(self) -> KernelEvent:
        """The first of its messages."""
        return self.events[0]

    @property
    def gpu(self) -> Gpu:
        """The host and bus id."""
        return self.first.gpu

    @property
    def code(self) -> int | None:
        """Xid or SXid."""
        return self.first.code

    def n_lines(self) -> int:
        """How many lines there were, of which not all are kept."""
        return sum(event.count for event in self.events)

    def links(self) -> list[int]:
        """The links that they name."""
        own = {event.link for event in self.events if event.link is not None and event.link >= 0}
        return sorted(own | ({self.decoded.link} if self.decoded.link is not None else set()))[:MAX_LISTED]

    def pids(self) -> list[int]:
        """The processes that they name."""
        return sorted({event.pid for event in self.events if event.pid is not None})

    def n_channels(self) -> int:
        """How many channels they name: one channel may be told of many times."""
        return len({(event.pid, event.channel) for event in self.events if event.channel is not None})


@dataclass
class Incident:
    """Messages of one moment that have one cause."""

    root: Node
    nodes: list[Node]
    """All of it, the root first."""
    action: Action = "none"
    driver_said: bool = False
    """Whether the action is the driver's own verdict."""
    recovered: bool = False
    """Whether the driver said afterwards that nothing needs to be done any more."""
    culprit: Gpu | None = None
    """The GPU that is at fault; None where the messages do not tell it, or where none is."""
    suspects: list[Gpu] = field(default_factory=list[Gpu])
    ranks: list[int] = field(default_factory=list[int])
    """Those of the culprit."""
    notes: list[str] = field(default_factory=list[str])

    @property
    def family(self) -> str:
        """Of the root: bus, memory, nvlink, nvswitch, application, firmware, ..."""
        return self.root.decoded.family

    @property
    def benign(self) -> bool:
        """Whether all of it comes on sound machines too."""
        return all(node.decoded.benign or node.decoded.injected for node in self.nodes)

    @property
    def culprit_pci_bus_id(self) -> str | None:
        """Bus id of the GPU at fault."""
        return self.culprit[1] if self.culprit is not None else None

    def gpus(self) -> list[Gpu]:
        """All GPUs that messages are about, in the order of their roles in it."""
        return list(dict.fromkeys(node.gpu for node in self.nodes if node.first.kind != "sxid"))

    def pids(self) -> list[int]:
        """All processes that are named."""
        return sorted({pid for node in self.nodes for pid in node.pids()})

    def n_lines(self) -> int:
        """How many lines it is made of."""
        return sum(node.n_lines() for node in self.nodes)

    def report(self) -> dict[str, Any]:
        """In the form of the report of ``nvlink_health``."""
        return {
            "root": _described(self.root),
            "action": self.action,
            "culprit_pci_bus_id": self.culprit_pci_bus_id,
            "sympathetic": [_described(node) for node in self.nodes[1 : MAX_LISTED + 1]],
            "benign": self.benign,
        }


def _described(node: Node) -> dict[str, Any]:
    links = node.links()
    pids = node.pids()
    return {
        "sxid" if node.first.kind == "sxid" else "xid": node.code,
        "pci_bus_id": node.first.bus,
        "host": node.first.host,
        "link": links[0] if len(links) == 1 else None,
        "links": links,
        "meaning": node.decoded.means,
        "end": node.decoded.end,
        "n_lines": node.n_lines(),
        "n_channels": node.n_channels(),
        "pids": pids[:MAX_LISTED],
    }
