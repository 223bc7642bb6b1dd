"""The catalogues of Xid and SXid codes and the rules for NVLink events: skill/hardware/*.yaml, as objects."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

Action = Literal[
    "none", "restart_app", "reset_gpu", "drain_and_reset", "reboot_node", "check_cabling", "replace_hardware",
    "investigate_software",
]  # fmt: skip
Role = Literal["root", "sympathetic", "consequence", "informational"]
End = Literal["this", "link", "peer", "software", "host", "unknown"]


@dataclass(frozen=True)
class XidCode:
    """One code of the catalogue."""

    code: int
    name: str
    means: str
    action: Action
    role: Role
    family: str


@dataclass(frozen=True)
class NvlinkRule:
    """What one event word of Xids 144 to 150 means."""

    xid: int
    units: tuple[str, ...]
    patterns: dict[str, tuple[int, int]]
    """By version of the words: the bits that are told, and their values."""
    status: int
    resolution: str
    investigate: str
    fatal: str
    """"no", "yes", or "link"."""


@dataclass(frozen=True)
class Reading:
    """What columns of the rules mean: where the source is, and what to do."""

    end: End
    action: Action
    sympathetic: bool
    investigate: str | None
    resolution: str | None


@dataclass(frozen=True)
class Meaning:
    """Words and an action."""

    means: str
    action: Action


@dataclass(frozen=True)
class FirstMover:
    """Codes that are looked for together, perhaps only where their word points at certain ends."""

    codes: frozenset[int]
    ends: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Registers:
    """The bits of Xid 74 on some GPUs."""

    gpus: tuple[str, ...]
    bits: dict[int, dict[str, tuple[int, ...]]]
    readings: dict[str, Meaning]


@dataclass(frozen=True)
class XidCatalogue:
    """Everything of the Xids."""

    date: str
    codes: dict[int, XidCode]
    first_movers: tuple[FirstMover, ...]
    recovery_actions: dict[int, Meaning]
    wording: dict[int, tuple[str, ...]]
    injected: tuple[str, ...]
    registers: Registers


@dataclass(frozen=True)
class NvlinkRules:
    """Everything of the NVLink events of Xids 144 to 150."""

    link_field: tuple[int, int]
    subcode_field: tuple[int, int]
    no_link: int
    rules: tuple[NvlinkRule, ...]
    readings: tuple[Reading, ...]
    benign: tuple[tuple[int, str, int, str], ...]
    """(Xid, unit, status, fatal)."""


@dataclass(frozen=True)
class SxidCatalogue:
    """Everything of the SXids."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    class_of: dict[int, str] = field(default_factory=dict[int, str])
    classes: dict[str, Meaning] = field(default_factory=dict[str, Meaning])
    by_severity: dict[str, Meaning] = field(default_factory=dict[str, Meaning])


@functools.cache
def load_xids(root: Path | None = None) -> XidCatalogue:
    """The catalogue of Xids.

    Raises:
        KnowledgeError: the file is missing, no YAML, or lacks what it must have.
    """
    path, raw = _loaded(root, "xid.yaml")
    with _read_as(path, "not what a catalogue of Xids holds"):
        registers = raw["xid_74_registers"]
        return XidCatalogue(
            date=raw["catalogue_date"],
            codes={
                int(code): XidCode(
                    int(code), of["name"], of["means"], _action(of["action"]), _role(of["role"]), of["family"]
                )
                for code, of in raw["codes"].items()
            },
            first_movers=tuple(
                FirstMover(frozenset(of["codes"]), frozenset(of.get("end", ()))) for of in raw["first_movers"]
            ),
            recovery_actions={int(number): _meaning(of) for number, of in raw["recovery_actions"].items()},
            wording={int(code): tuple(texts) for code, texts in raw["wording"].items()},
            injected=tuple(raw["injected"]),
            registers=Registers(
                tuple(registers["gpus"]),
                {
                    int(number): {kind: tuple(bits) for kind, bits in of.items()}
                    for number, of in registers["bits"].items()
                },
                {kind: _meaning(of) for kind, of in registers["readings"].items()},
            ),
        )


@functools.cache
def load_nvlink_rules(root: Path | None = None) -> NvlinkRules:
    """The rules for NVLink events.

    Raises:
        KnowledgeError: the file is missing, no YAML, or lacks what it must have.
    """
    path, raw = _loaded(root, "nvlink5.yaml")
    with _read_as(path, "not what rules for NVLink events hold"):
        link, subcode = raw["fields"]["link"], raw["fields"]["subcode"]
        return NvlinkRules(
            link_field=(int(link[0]), int(link[1])),
            subcode_field=(int(subcode[0]), int(subcode[1])),
            no_link=int(raw["no_link"]),
            rules=tuple(
                NvlinkRule(
                    int(of["xid"]),
                    tuple(of["units"]),
                    {version: _bits(of[version]) for version in ("v1", "v2")},
                    int(of["status"]),
                    of["resolution"],
                    of["investigate"],
                    of["fatal"],
                )
                for of in raw["rules"]
            ),
            readings=tuple(
                Reading(
                    _end(of["end"]),
                    _action(of["action"]),
                    bool(of.get("sympathetic")),
                    of.get("investigate"),
                    of.get("resolution"),
                )
                for of in raw["readings"]
            ),
            benign=tuple((int(of["xid"]), of["unit"], int(of["status"]), of["fatal"]) for of in raw["benign"]),
        )


@functools.cache
def load_sxids(root: Path | None = None) -> SxidCatalogue:
    """The catalogue of SXids.

    Raises:
        KnowledgeError: the file is missing, no YAML, or lacks what it must have.
    """
    path, raw = _loaded(root, "sxid.yaml")
    with _read_as(path, "not what a catalogue of SXids holds"):
        return SxidCatalogue(
            names={int(code): name for code, name in raw["names"].items()},
            class_of={int(code): kind for kind, codes in raw["class_of"].items() for code in codes},
            classes={kind: _meaning(of) for kind, of in raw["classes"].items()},
            by_severity={kind: _meaning(of) for kind, of in raw["by_severity"].items()},
        )


def _loaded(root: Path | None, name: str) -> tuple[Path, Any]:
    path = (root or data_root()) / "skill" / "hardware" / name
    return path, load_yaml(path)


@contextlib.contextmanager
def _read_as(path: Path, otherwise: str) -> Generator[None, None, None]:
    """Say of a file that lacks or misspells something what it is not."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise KnowledgeError(f"{path}: {otherwise}: {error!r}") from error


def _bits(pattern: str) -> tuple[int, int]:
    """(mask, value) of a pattern that begins with bit 31."""
    if len(pattern) != 32 or not set(pattern) <= set("01-"):
        raise ValueError(f"no pattern of 32 bits: {pattern!r}")
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)


def _meaning(of: dict[str, Any]) -> Meaning:
    return Meaning(of["means"], _action(of["action"]))


def _action(text: str) -> Action:
    return _one_of(text, get_args(Action))


def _role(text: str) -> Role:
    return _one_of(text, get_args(Role))


def _end(text: str) -> End:
    return _one_of(text, get_args(End))


def _one_of(text: str, known: tuple[str, ...]) -> Any:
    if text not in known:
        raise ValueError(f"{text!r} is none of {', '.join(known)}")
    return text
