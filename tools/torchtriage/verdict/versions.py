"""Which failure modes the versions of a job rule out, and for which a version that works speaks. Pure.

A mode with a range of versions exists only there. Where several versions of one package are told, any of them may be
the one that fails: a mode is out only when all lie outside of its range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.knowledge.version_ranges import Span, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.knowledge.entries import Entry
    from torchtriage.verdict.findings import Observation

# Who says it, by the signal.
SOURCES = {"said.version": "the report says", "log.version": "the log says", "proc.version": "the bundle says"}


@dataclass(frozen=True)
class _Told:
    span: Span
    observation: Observation


@dataclass
class ByVersion:
    """What versions say of the playbook's entries, by their ids."""

    outdated: dict[str, str] = field(default_factory=dict[str, str])
    """Why an entry cannot be the cause."""
    supports: dict[str, tuple[Observation, ...]] = field(default_factory=dict[str, tuple["Observation", ...]])
    """The versions that work, where the entry's range begins after them."""


def judge_versions(entries: Iterable[Entry], observations: Sequence[Observation]) -> ByVersion:
    """Hold the versions that were observed against the entries' ranges."""
    found = ByVersion()
    in_use, working = _by_package(observations)
    if not in_use and not working:
        return found
    for entry in entries:
        supports: list[Observation] = []
        for package, known in entry.versions:
            used = in_use.get(package, [])
            if used and all(known.excludes(told.span) for told in used):
                last = used[-1].observation
                found.outdated[entry.id] = (
                    f"known from {package} {known.text} alone; {SOURCES[last.name]} {last.facts['version']}"
                )
                break
            supports += [told.observation for told in working.get(package, ()) if known.begins_after(told.span)]
        if supports and entry.id not in found.outdated:
            found.supports[entry.id] = tuple(supports)
    return found


def _by_package(observations: Sequence[Observation]) -> tuple[dict[str, list[_Told]], dict[str, list[_Told]]]:
    """The versions in use and those that work, by package; one that is said to be both is in use."""
    in_use: dict[str, list[_Told]] = {}
    working: dict[str, list[_Told]] = {}
    for observation in observations:
        if observation.name not in SOURCES:
            continue
        span = parse_version(str(observation.facts["version"]))
        if span is not None:
            kind = working if observation.facts["works"] else in_use
            kind.setdefault(str(observation.facts["package"]), []).append(_Told(span, observation))
    for package, used in in_use.items():
        spans = {told.span for told in used}
        working[package] = [told for told in working.get(package, []) if told.span not in spans]
    return in_use, working
