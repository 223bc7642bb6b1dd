"""Versions and ranges of them, compared without ever guessing: what could lie inside a range is not outside of it.

A version that was told in part ("2.4") stands for all releases that it may be, and one of a nightly or release
candidate for everything between its neighbours. A range is a comma-separated ``>=A`` and ``<B`` of release numbers, a
part of what PEP 440 knows; epochs, local versions and post releases are not ordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Mapping

Release = tuple[int, ...]

MAX_PARTS = 4
VERSION_TEXT = r"\d{1,4}(?:\.\d{1,5}){1,3}"
"""A regular expression for the release number of a version."""
SUFFIX_TEXT = r"(?:\.?(?:dev|post|rc|a|b)\d{0,12}|\.x)?(?:\+[A-Za-z0-9][\w.]{0,40})?"
"""One for what may follow it: a pre-release, ``.x``, a local version."""

_VERSION = lazy_re(rf"v?({VERSION_TEXT})({SUFFIX_TEXT})$")
_PRE = lazy_re(r"\.?(?:dev|rc|a|b)\d")
_CLAUSE = lazy_re(r"(>=|<)\s?(\d{1,4}(?:\.\d{1,5}){0,3})$")
# A release number is padded with zeros to this length, so that 2.7 and 2.7.0 are one.
_LENGTH = MAX_PARTS


@dataclass(frozen=True)
class Span:
    """All releases that a version may be: from ``low`` on, before ``high``."""

    low: Release
    high: Release


@dataclass(frozen=True)
class Range:
    """Releases from ``since`` on and before ``until``; None: no bound."""

    since: Release | None
    until: Release | None
    text: str

    def excludes(self, version: Span) -> bool:
        """Whether nothing that the version may be lies in the range."""
        too_old = self.since is not None and version.high <= self.since
        return too_old or (self.until is not None and version.low >= self.until)

    def begins_after(self, version: Span) -> bool:
        """Whether the range has a beginning, and all that the version may be lies before it."""
        return self.since is not None and version.high <= self.since


def parse_version(text: str) -> Span | None:
    """What a version may be; None where it is not one."""
    found = _VERSION.match(text)
    if found is None:
        return None
    release = tuple(int(part) for part in found[1].split("."))
    if _PRE.match(found[2]):
        return Span(_padded(_before(release)), _padded(_after(release)))
    return Span(_padded(release), _padded(_after(release)))


def parse_range(text: str) -> Range:
    """A range as front matter writes it: ``>=2.0,<2.7``, or one half of that.

    Raises:
        ValueError: it is written otherwise, or holds nothing.
    """
    bounds: dict[str, Release] = {}
    for clause in text.split(","):
        found = _CLAUSE.match(clause.strip())
        if found is None or found[1] in bounds:
            raise ValueError(f"{text!r} is no range: write >=A, <B or >=A,<B")
        bounds[found[1]] = _padded(tuple(int(part) for part in found[2].split(".")))
    since, until = bounds.get(">="), bounds.get("<")
    if since is not None and until is not None and since >= until:
        raise ValueError(f"{text!r} holds no release")
    return Range(since, until, text)


def parse_ranges(raw: Mapping[str, str]) -> tuple[tuple[str, Range], ...]:
    """The field ``versions`` of an entry, by package.

    Raises:
        ValueError: a range is not written as :func:`parse_range` takes it.
    """
    return tuple((package, parse_range(text)) for package, text in raw.items())


def _padded(release: Release) -> Release:
    return (*release, *(0,) * (_LENGTH - len(release)))


def _after(release: Release) -> Release:
    """The first release that no longer begins like this one."""
    return (*release[:-1], release[-1] + 1)


def _before(release: Release) -> Release:
    """The minor release before the one that a pre-release leads to: what of it was merged by then is not known."""
    major, minor = release[0], release[1]
    return (major, minor - 1) if minor else (max(major - 1, 0), 0)
