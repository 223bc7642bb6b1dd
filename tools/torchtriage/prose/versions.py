"""Which versions a text says that its job runs, and which it says to work: ``torch 2.9.1``, ``NCCL version 2.21.5``.

Whose versions are read and how people tell good from bad ones is data (skill/versions.yaml). A number counts only
behind a package's name. What a sentence may say of another job, a requirement or a plan is left out: with a wrong
version a true cause would be ruled out.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.evidence import quote_line
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.version_ranges import SUFFIX_TEXT, VERSION_TEXT, parse_version
from torchtriage.lazy_re import lazy_re
from torchtriage.prose.analyze import is_denied
from torchtriage.prose.read import MAX_LINE_CHARS, MAX_LINES
from torchtriage.report import Signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SIGNAL = "said.version"
MAX_MENTIONS = 64
MAX_TELLING_LINES = 500
_MAX_CLAUSES = 64
_MAX_PLACES = 24
_AROUND_CHARS = 300
# What makes a number behind a name a size, a duration or a share; or one end of a range, or a lower bound.
_NOT_BEHIND = (
    r"(?![\w/%\\])(?!\.\d)(?!\+)(?! ?%)(?!\s?[-\u2013~]\s?\d)"
    r"(?! ?(?:[KMGT]i?B|[KMG]i?b/s|Gbps|[munp]?s|secs?|seconds?|mins?|minutes?|h|hours?|days?|x|times|W|kW|watts?|"
    r"[MG]Hz|T?FLOPS?|tokens?|steps?|samples?|epochs?|it/s|million|billion|thousand|[kMB]|percent|points?)(?:/s)?(?![\w/]))"
    r"(?!,? ?(?:or|and|/) ?(?:later|newer|above|higher|up|upwards?|earlier|older|below|lower|before|after)\b)"
)
_NUMBER = rf"(?P<version>{VERSION_TEXT}{SUFFIX_TEXT}(?: (?:dev|nightly|rc))?){_NOT_BEHIND}"
_TO = lazy_re(rf"['\"`)]{{0,2}} ?(?:->|=>|-->|\u2192|to|vs\.?|versus) ?(?:\w{{1,20}} )?v?{_NUMBER}", re.IGNORECASE)
_BARE = lazy_re(rf"\b(?:with|on|in|under|using|to) v?{_NUMBER}", re.IGNORECASE)
_SENTENCE_END = lazy_re(r"(?<=[!?;])\s{1,40}|(?<=[^\s.]\.)\s{1,40}(?=[^\d\s])")
_CLAUSE_END = lazy_re(r", |; | (?:but|while|whereas|and|though|although|yet|-|\u2013) ")
_ADDRESS = lazy_re(r"\d{1,3}(?:\.\d{1,3}){3}")
# "2.05" is a size or a loss.
_MINOR = lazy_re(r"(?:0|[1-9]\d{0,2})(?!\d)")
_EARLY = lazy_re(r" ?(?:dev|nightly|rc)$")


@dataclass(frozen=True)
class _Package:
    package: str
    majors: tuple[int, int]
    common: bool


@dataclass(frozen=True)
class _Known:
    """The data of skill/versions.yaml."""

    by_name: Mapping[str, _Package]
    named: re.Pattern[str]
    """A package's name and a version."""
    printed: tuple[str, ...]
    words: Mapping[str, re.Pattern[str]]


@dataclass(frozen=True)
class Mention:
    """A version that a line tells: of what runs where it fails, or of what is said to work."""

    package: str
    version: str
    works: bool


@dataclass(frozen=True)
class _Place:
    """A version as it stands in a sentence."""

    package: str
    version: str
    start: int
    later: str | None = None
    """The version that it was exchanged for."""


def versions_said(text: str, artefact: str = "text") -> list[Signal]:
    """The signals ``said.version`` of a text: each version once, with the first line that tells it."""
    found: dict[Mention, Signal] = {}
    n_telling = 0
    for number, line in enumerate(text.split("\n", MAX_LINES)[:MAX_LINES], start=1):
        mentions = versions_in(line)
        for mention in mentions:
            if mention not in found:
                evidence = quote_line(artefact, number, line, SIGNAL)
                found[mention] = Signal(name=SIGNAL, facts=dict(vars(mention)), evidence=[evidence])
        n_telling += bool(mentions)
        if len(found) >= MAX_MENTIONS or n_telling >= MAX_TELLING_LINES:
            break
    return list(found.values())


def versions_in(line: str) -> list[Mention]:
    """The versions that one line tells, in order; empty for most lines, at the cost of one look for a name."""
    known = _load()
    line = line[:MAX_LINE_CHARS]
    lowered = line.lower()
    if not any(name in lowered for name in known.by_name):
        return []
    found: dict[Mention, None] = {}
    for sentence in _SENTENCE_END.split(line):
        for mention in _told(sentence, known):
            found[mention] = None
    return list(found)[:MAX_MENTIONS]


def printed_texts() -> tuple[str, ...]:
    """The texts of which a log line holds one where software prints a version."""
    return _load().printed


def _told(sentence: str, known: _Known) -> Iterator[Mention]:
    clauses = _clauses(sentence)
    for place in itertools.islice(_places(sentence, clauses, known), _MAX_PLACES):
        clause = _clause_at(place.start, sentence, clauses)
        if known.words["elsewhere"].search(clause):
            continue
        if place.later is not None:
            around = sentence[max(0, place.start - _AROUND_CHARS) : place.start + _AROUND_CHARS]
            yield from _exchanged(place, place.later, around, known)
        elif (works := _works(clause, known)) is not None:
            yield Mention(place.package, place.version, works)


def _places(sentence: str, clauses: list[tuple[int, int]], known: _Known) -> Iterator[_Place]:
    packages: set[str] = set()
    end = 0
    for found in known.named.finditer(sentence):
        package = known.by_name[found["name"].lower()]
        version = _version(found["version"], package)
        if version is None or (package.common and not found["mark"].strip(" '\"`(") and version.count(".") < 2):
            continue
        packages.add(package.package)
        end = found.end()
        to = _TO.match(sentence, found.end())
        later = _version(to["version"], package) if to is not None else None
        yield _Place(package.package, version, found.start(), later)
    if len(packages) == 1:
        # "works with torch 2.3, hangs with 2.6"
        (name,) = packages
        package = next(p for p in known.by_name.values() if p.package == name)
        for found in _BARE.finditer(sentence, end):
            clause = _clause_at(found.start(), sentence, clauses)
            version = _version(found["version"], package)
            if version is not None and (known.words["fails"].search(clause) or known.words["works"].search(clause)):
                yield _Place(name, version, found.start())


def _version(text: str, package: _Package) -> str | None:
    """The version as it is kept; None where the number is not likely one of this package."""
    early = _EARLY.search(text)
    version = f"{text[: early.start()]}.dev0" if early else text
    low, high = package.majors
    major, minor = version.split(".")[:2]
    if (
        _ADDRESS.match(version)
        or parse_version(version) is None
        or not low <= int(major) <= high
        or not _MINOR.match(minor)
    ):
        return None
    return version


def _clauses(sentence: str) -> list[tuple[int, int]]:
    """Where the clauses of a sentence begin and end; what stands in brackets is part of the clause around it."""
    starts = [0]
    for found in _CLAUSE_END.finditer(sentence):
        before = sentence[: found.start()]
        if before.count("(") <= before.count(")"):
            starts.append(found.start())
        if len(starts) >= _MAX_CLAUSES:
            break
    return list(zip(starts, [*starts[1:], len(sentence)], strict=True))


def _clause_at(place: int, sentence: str, clauses: list[tuple[int, int]]) -> str:
    start, end = next(((a, b) for a, b in clauses if a <= place < b), (0, len(sentence)))
    return sentence[max(start, place - _AROUND_CHARS) : min(end, place + _AROUND_CHARS)]


def _works(clause: str, known: _Known) -> bool | None:
    """Whether a clause says that the version in it works (not: is in use); None where that is not clear."""
    works = _says(known.words["works"], clause)
    cured = works or _says(known.words["cures"], clause)
    fails = known.words["fails"].search(clause) is not None
    if known.words["back"].search(clause):
        return True if cured and not fails else None
    if known.words["forward"].search(clause):
        return cured and not fails
    if works and fails:
        return None
    return works


def _exchanged(place: _Place, later: str, sentence: str, known: _Known) -> Iterator[Mention]:
    """What "from 2.3 to 2.6" tells: the later one is in use, unless the exchange is said to be the cure."""
    if sentence.rstrip().endswith("?"):
        return
    cured = _says(known.words["cures"], sentence) and not known.words["fails"].search(sentence)
    back = known.words["back"].search(sentence) is not None
    if cured:
        yield Mention(place.package, place.version, works=False)
        yield Mention(place.package, later, works=True)
    elif not back:
        if known.words["since"].search(sentence) and known.words["fails"].search(sentence):
            yield Mention(place.package, place.version, works=True)
        yield Mention(place.package, later, works=False)


def _says(words: re.Pattern[str], text: str) -> bool:
    found = words.search(text)
    return found is not None and not is_denied(text, found.start())


@functools.cache
def _load() -> _Known:
    raw = load_yaml(data_root() / "skill" / "versions.yaml")
    by_name: dict[str, _Package] = {}
    printed: list[str] = []
    for each in raw["packages"]:
        low, high = each["majors"]
        package = _Package(each["package"], (low, high), each.get("common", False))
        by_name |= dict.fromkeys(each["names"], package)
        printed += each["printed"]
    names = "|".join(re.escape(name) for name in sorted(by_name, key=lambda name: (-len(name), name)))
    mark = (
        r"(?:\.__version__|[ -]version|[ -]info: version)?['\"`]{0,2}"
        r"(?:\s{0,4}(?:==?|:|@|\(|is|was|from)\s{0,4}|\s{1,40}|-)?['\"`(]{0,2}v?"
    )
    named = rf"(?<![\w./-])(?P<name>{names})(?P<mark>{mark}){_NUMBER}"
    words = {name: lazy_re(source.strip(), re.IGNORECASE) for name, source in raw["words"].items()}
    return _Known(by_name, lazy_re(named, re.IGNORECASE), tuple(dict.fromkeys(printed)), words)
