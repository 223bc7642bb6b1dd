"""Groups kernel messages into incidents: what happened first in front, what followed from it behind.

Knows that a lost GPU takes its links and the switches with it, that a fatal link event is echoed by its peers, that a
memory error comes in three messages, and that a process's work is torn down afterwards. Where several GPUs report the
same and nothing tells them apart, it names no culprit. Which code goes before which is data (skill/hardware/xid.yaml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torchtriage.nvlink.incident import Incident, Node
from torchtriage.nvlink.kernel_read import bus_id
from torchtriage.nvlink.moments import moments
from torchtriage.nvlink.sxid import FAMILY as SWITCH
from torchtriage.nvlink.verdict_on_incident import conclude
from torchtriage.nvlink.xid import decode
from torchtriage.nvlink.xid_catalogue import load_xids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchtriage.nvlink.incident import Gpu
    from torchtriage.nvlink.kernel_read import KernelEvent
    from torchtriage.nvlink.xid import Decoded

MAX_INCIDENTS = 256
_T = TypeVar("_T")
_LINKS = frozenset({"nvlink", SWITCH})
# What the loss of a link or of a peer does to other GPUs.
_ECHOES = frozenset({"nvlink", SWITCH, "cleanup", "recovery"})
_ECHOED_CODES = frozenset({43, 94, 95})
# Generations whose NVLink reaches beyond the host have these codes.
_DOMAIN_WIDE = frozenset(range(144, 151))


def judge_incidents(
    events: Iterable[KernelEvent],
    names: Mapping[str, str] | None = None,
    ranks: Mapping[str, Sequence[int]] | None = None,
) -> list[Incident]:
    """Group events into incidents, in the order of their moments.

    Args:
        events: of one or several hosts.
        names: product name of a GPU by its bus id, or by ``host/bus id`` where there are several hosts.
        ranks: the ranks on a GPU, by the same keys.
    """
    named = {_key(key): name for key, name in (names or {}).items()}
    of_gpu = {_key(key): list(on_it) for key, on_it in (ranks or {}).items()}
    decoded = [(event, decode(event, _known(named, event.gpu))) for event in events]
    found: list[Incident] = []
    for moment in moments(decoded):
        found += _Moment(moment).incidents()
        if len(found) >= MAX_INCIDENTS:
            break
    for incident in found:
        conclude(incident)
        whose = incident.culprit or (incident.root.gpu if incident.root.decoded.end != "peer" else None)
        if whose is not None and not incident.suspects:
            incident.ranks = sorted(_known(of_gpu, whose) or [])
    return found[:MAX_INCIDENTS]


def _key(key: str) -> str:
    host, slash, bus = key.rpartition("/")
    try:
        return f"{host}{slash}{bus_id(bus)}"
    except ValueError:
        return key


def _known(by_key: Mapping[str, _T], gpu: Gpu) -> _T | None:
    host, bus = gpu
    if bus is None:
        return None
    return by_key.get(f"{host}/{bus}", by_key.get(bus))


def tier_of(event: KernelEvent, decoded: Decoded) -> int:
    """Place of a message in the order of first movers."""
    order = load_xids().first_movers
    if event.kind == "sxid":
        # A switch notices what its links' other ends did: behind all that a GPU can say of a link itself.
        return next((i for i, mover in enumerate(order) if 74 in mover.codes), len(order)) + 1
    for i, mover in enumerate(order):
        if event.code in mover.codes and (not mover.ends or (decoded.end or "unknown") in mover.ends):
            return i
    return len(order)


class _Moment:
    """The messages of one moment, and the incidents that they are put into."""

    def __init__(self, events: Sequence[tuple[KernelEvent, Decoded]]) -> None:
        nodes: dict[tuple[object, ...], Node] = {}
        for position, (event, decoded) in enumerate(events):
            kind = "sxid" if event.kind == "sxid" else event.code
            means = (decoded.role, decoded.end, decoded.action, decoded.benign, decoded.injected, decoded.recovery)
            key = (kind, event.gpu, event.switch, event.code, means)
            if key in nodes:
                nodes[key].events.append(event)
            else:
                nodes[key] = Node([event], decoded, tier_of(event, decoded), position)
        self._nodes = sorted(nodes.values(), key=lambda node: (node.tier, node.position))
        self._found: list[Incident] = []
        self._of_gpu: dict[Gpu, Incident] = {}
        self._of_pid: dict[int, Incident] = {}
        self._of_host: dict[tuple[str | None, str], Incident] = {}
        self._domain: Incident | None = None

    def incidents(self) -> list[Incident]:
        """First those that can have happened first, then what may follow from them."""
        roots = [node for node in self._nodes if node.decoded.role == "root"]
        others = [node for node in self._nodes if node.decoded.role != "root"]
        for node in roots:
            self._put(node, self._home_of_root(node))
        for node in others:
            self._put(node, self._home_of_other(node))
        return self._found

    def _home_of_root(self, node: Node) -> Incident | None:
        own = self._own(node)
        if own is not None:
            return own
        family, host = node.decoded.family, node.first.host
        if family == "bus":
            return self._of_host.get((host, "bus"))
        if family in _LINKS:
            return self._of_host.get((host, "bus")) or self._of_links(node)
        if family == "application":
            return self._by_pid(node)
        return None

    def _home_of_other(self, node: Node) -> Incident | None:
        own = self._own(node)
        if own is not None:
            return own
        host, family = node.first.host, node.decoded.family
        by_pid = self._by_pid(node)
        if by_pid is not None:
            return by_pid
        if family in _ECHOES or node.code in _ECHOED_CODES:
            lost = self._of_host.get((host, "bus"))
            links = self._of_links(node)
            if family in _LINKS or lost is not None or (links is not None and links.root.decoded.role == "root"):
                return lost or links
        if node.code in _ECHOED_CODES and family == "memory":
            return self._of_host.get((host, "memory"))
        return None

    def _own(self, node: Node) -> Incident | None:
        return self._of_gpu.get(node.gpu) if node.first.bus is not None else None

    def _by_pid(self, node: Node) -> Incident | None:
        return next((self._of_pid[pid] for pid in node.pids() if pid in self._of_pid), None)

    def _of_links(self, node: Node) -> Incident | None:
        on_host = self._of_host.get((node.first.host, "links"))
        if on_host is not None:
            return on_host
        return self._domain if node.code in _DOMAIN_WIDE or node.decoded.family in ("cleanup", "recovery") else None

    def _put(self, node: Node, home: Incident | None) -> None:
        if home is None:
            home = Incident(node, [])
            self._found.append(home)
        home.nodes.append(node)
        if node.first.bus is not None:
            self._of_gpu.setdefault(node.gpu, home)
        if home.family in ("application", "cleanup"):
            for pid in node.pids():
                self._of_pid.setdefault(pid, home)
        family = "links" if home.family in _LINKS else home.family
        self._of_host.setdefault((node.first.host, family), home)
        if home.root.code in _DOMAIN_WIDE:
            self._domain = self._domain or home
