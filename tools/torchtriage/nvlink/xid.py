"""What one kernel message of a GPU or switch means: the catalogue's word, made closer by what the line itself holds.

Knows the event words of Xids 144 to 150, the recovery action of 154, the registers of 74 on Hopper, and what the driver
says of a contained or uncontained error. Refuses to apply registers to a GPU whose name it was not told, and to guess
which end of a link is at fault where the word does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.nvlink.sxid import decode_sxid
from torchtriage.nvlink.xid_catalogue import Action, End, Reading, Role, load_nvlink_rules, load_xids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.nvlink.kernel_read import KernelEvent
    from torchtriage.nvlink.xid_catalogue import NvlinkRule, NvlinkRules

_LINK_EVENTS = frozenset(range(144, 151))
_RECOVERY = lazy_re(
    r"GPU recovery action changed from 0x([0-9A-Fa-f]{1,4}) \([^)]{0,60}\) to 0x([0-9A-Fa-f]{1,4}) \([^)]{0,60}\)"
)
_ENUMERATED = frozenset({149, 150})  # their status is a number; that of the others a set of bits


@dataclass(frozen=True)
class Decoded:
    """What a message means."""

    means: str
    action: Action
    role: Role
    family: str
    """What belongs together: bus, memory, nvlink, application, firmware, cleanup, ..."""
    name: str | None = None
    """Symbolic name of the code."""
    end: End | None = None
    """Where the source of a link's event is; None where the message is not about a link."""
    link: int | None = None
    fatal: bool | None = None
    benign: bool = False
    version: str | None = None
    subcode: int | None = None
    resolution: str | None = None
    investigate: str | None = None
    recovery: int | None = None
    """Of 154: the number of the action that the driver asks for now."""
    injected: bool = False
    notes: tuple[str, ...] = field(default=())


def decode(event: KernelEvent, gpu_name: str | None = None) -> Decoded:
    """Say what a message means.

    Args:
        event: what the reader gave.
        gpu_name: the GPU's product name, where it is known.
    """
    if event.kind == "sxid":
        return decode_sxid(event)
    if event.kind == "links_not_found":
        return Decoded(
            "the driver could not tell which NVLinks are connected", "reboot_node", "informational", "nvlink"
        )
    base = _by_code(event)
    if base.injected:
        return base
    if event.code in _LINK_EVENTS:
        return _link_event(event, base)
    if event.code == 154:
        return _recovery(event, base)
    if event.code == 74:
        return _registers(event, base, gpu_name)
    if event.drain_reset:
        return replace(base, action="drain_and_reset")
    if event.reset:
        return replace(base, action="reset_gpu")
    return base


def _by_code(event: KernelEvent) -> Decoded:
    catalogue = load_xids()
    known = catalogue.codes.get(event.code or 0)
    if known is None:
        return Decoded("not in the catalogue", "none", "informational", "unknown", link=_link(event))
    notes = tuple(
        f"its words are those of Xid {code}"
        for code, texts in catalogue.wording.items()
        if code != event.code and any(text in event.text for text in texts)
    )
    base = Decoded(known.means, known.action, known.role, known.family, known.name, link=_link(event), notes=notes)
    if any(text in event.text for text in catalogue.injected):
        return replace(base, action="none", role="informational", injected=True, notes=("written by a test tool",))
    return replace(base, end="unknown") if known.family == "nvlink" else base


def _link(event: KernelEvent) -> int | None:
    return event.link if event.link is not None and event.link >= 0 else None


def _link_event(event: KernelEvent, base: Decoded) -> Decoded:
    """Xids 144 to 150, by their words; without words by the driver's Fatal or Nonfatal alone."""
    fatal = event.fatal
    base = replace(base, fatal=fatal, role="root" if fatal else "sympathetic", action="reset_gpu" if fatal else "none")
    if not event.words:
        return base
    data = load_nvlink_rules()
    found = _rules(event, data)
    word = event.words[0]
    link = _field(word, data.link_field)
    base = replace(base, subcode=_field(word, data.subcode_field))
    if base.link is None and link != data.no_link and found is not None:
        base = replace(base, link=link)
    elif found is not None and base.link is not None and base.link != link:
        base = replace(base, notes=(*base.notes, f"its word names link {link}"))
    if found is None:
        return replace(base, notes=(*base.notes, "no rule is known for its words"))
    rule, version = found
    reading = next((r for r in data.readings if _reads(r, rule)), None)
    if fatal is None:
        fatal = rule.fatal != "no"
    if reading is None:
        return replace(base, version=version, resolution=rule.resolution, investigate=rule.investigate, fatal=fatal)
    benign = any(
        rule.xid == xid and unit in rule.units and rule.status == status and rule.fatal == severity and not fatal
        for xid, unit, status, severity in data.benign
    )
    # One that is no more than an echo is still the root when the driver calls it fatal and nothing else is there.
    role: Role = "sympathetic" if reading.sympathetic or not fatal else "root"
    if not fatal and reading.end == "link":
        role = "informational"
    return replace(
        base,
        action=reading.action,
        role=role,
        end=reading.end,
        fatal=fatal,
        benign=benign or (not fatal and rule.resolution == rule.investigate == "IGNORE"),
        version=version,
        resolution=rule.resolution,
        investigate=rule.investigate,
    )


def _reads(reading: Reading, rule: NvlinkRule) -> bool:
    return reading.investigate in (None, rule.investigate) and reading.resolution in (None, rule.resolution)


def _field(word: int, place: tuple[int, int]) -> int:
    first, n_bits = place
    return (word >> first) & ((1 << n_bits) - 1)


def _rules(event: KernelEvent, data: NvlinkRules) -> tuple[NvlinkRule, str] | None:
    """The rule of a word and the version that the word is of; the worst of several bits."""
    fitting = list(_fitting(event, data))
    status = event.words[1] if len(event.words) > 1 else 0
    exact = [each for each in fitting if each[0].status == status]
    if exact:
        return exact[0]
    if event.code in _ENUMERATED:
        return None
    bits = [each for each in fitting if each[0].status & status]
    return max(bits, key=lambda each: (each[0].fatal != "no", each[0].resolution != "IGNORE"), default=None)


def _fitting(event: KernelEvent, data: NvlinkRules) -> Iterator[tuple[NvlinkRule, str]]:
    printed = set((event.unit or "").split("/"))
    for rule in data.rules:
        if rule.xid != event.code or (event.unit is not None and printed.isdisjoint(rule.units)):
            continue
        for version, (mask, value) in rule.patterns.items():
            if event.words[0] & mask == value:
                yield rule, version
                break


def _recovery(event: KernelEvent, base: Decoded) -> Decoded:
    found = _RECOVERY.search(event.text)
    if found is None:
        return base
    now = int(found[2], 16)
    known = load_xids().recovery_actions.get(now)
    if known is None:
        return replace(base, recovery=now)
    return replace(base, recovery=now, action=known.action, means=f"the driver asks for: {known.means}")


def _registers(event: KernelEvent, base: Decoded, gpu_name: str | None) -> Decoded:
    """Xid 74 of Hopper, whose registers are known: the gravest of what its bits say."""
    base = replace(base, fatal=True)
    registers = load_xids().registers
    if gpu_name is None or not any(name in gpu_name.split() for name in registers.gpus):
        return base
    kinds = {
        kind
        for number, of in registers.bits.items()
        if number < len(event.words)
        for kind, bits in of.items()
        if any(event.words[number] >> bit & 1 for bit in bits)
    }
    gravest = next((kind for kind in reversed(registers.readings) if kind in kinds), None)
    if gravest is None:
        return base
    reading = registers.readings[gravest]
    role: Role = "sympathetic" if reading.action == "none" else "root"
    return replace(base, means=f"{base.means}: {reading.means}", action=reading.action, role=role)
