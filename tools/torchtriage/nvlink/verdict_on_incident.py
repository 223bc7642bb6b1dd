"""Whom an incident blames and what it asks for.

The driver's own verdict on a GPU (Xid 154, ``RST:``) goes before the catalogue's. A word that points at the device on
the other end of a link blames nobody here: which device that is, no message says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.nvlink.incident import Gpu, Incident, Node
    from torchtriage.nvlink.xid_catalogue import Action

_RECOVERY = 154
_GRAVITY: tuple[Action, ...] = (
    "none", "investigate_software", "check_cabling", "restart_app", "reset_gpu", "drain_and_reset", "reboot_node",
    "replace_hardware",
)  # fmt: skip
# What the program did, or its end: no GPU is to blame.
_NO_GPU = frozenset({"application", "cleanup", "nvswitch", "recovery", "unknown"})
# One that reports this many times the links of the next is the end that all of them share.
_MANY_MORE = 2


def conclude(incident: Incident) -> None:
    """Fill in culprit, suspects, action and notes."""
    _blame(incident)
    _act(incident)
    seen = {node.code for node in incident.nodes}
    named = {event.previous_xid for node in incident.nodes for event in node.events if event.previous_xid is not None}
    incident.notes += [f"the Xid {code} that it names is not in the log" for code in sorted(named - seen)]
    incident.notes += dict.fromkeys(note for node in incident.nodes for note in node.decoded.notes)


def _blame(incident: Incident) -> None:
    root = incident.root
    if incident.family in _NO_GPU or root.first.bus is None or incident.benign or root.decoded.role == "informational":
        return
    # What cannot happen first (the echo of a link, alone) blames nobody; one memory error may be told by 94 alone.
    if root.decoded.role != "root" and incident.family == "nvlink" and not root.decoded.fatal:
        return
    alike = [node for node in incident.nodes if node.tier == root.tier and node.decoded.role == root.decoded.role]
    gpus = list(dict.fromkeys(node.gpu for node in alike))
    if root.decoded.end == "peer":
        incident.suspects = gpus
        return
    if len(gpus) == 1:
        incident.culprit = gpus[0]
        return
    incident.suspects = gpus
    if incident.family == "nvlink":
        links = sorted(((len(_links(alike, gpu)), gpu) for gpu in gpus), key=lambda each: -each[0])
        if links[0][0] >= _MANY_MORE * max(1, links[1][0]):
            incident.culprit, incident.suspects = links[0][1], []


def _links(nodes: list[Node], gpu: Gpu) -> set[int]:
    return {link for node in nodes if node.gpu == gpu for link in node.links()}


def _act(incident: Incident) -> None:
    if incident.benign:
        return
    whose = incident.culprit or incident.root.gpu
    last: dict[Gpu, tuple[tuple[float, int], Node]] = {}
    for node in incident.nodes:
        if node.code != _RECOVERY or node.first.kind == "sxid":
            continue
        event = node.events[-1]
        place = (event.time_s or 0.0, event.line)
        if node.decoded.recovery is not None and (node.gpu not in last or last[node.gpu][0] < place):
            last[node.gpu] = (place, node)
    if last:
        _, node = last.get(whose) or max(last.values(), key=lambda each: _GRAVITY.index(each[1].decoded.action))
        incident.action, incident.driver_said = node.decoded.action, True
        incident.recovered = node.decoded.recovery == 0
        return
    resets: list[Action] = [
        "drain_and_reset" if event.drain_reset else "reset_gpu"
        for node in incident.nodes
        if node.gpu == whose
        for event in node.events
        if event.drain_reset or event.reset
    ]
    if resets:
        incident.action, incident.driver_said = max(resets, key=_GRAVITY.index), True
        return
    incident.action = incident.root.decoded.action
