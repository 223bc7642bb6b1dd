"""One playbook entry: front matter that says what proves a failure mode, and a body for people.

The body's fixed headings are also data: its first paragraph of "Why it happens" is the verdict's cause, the items of
"Fix it" are its fixes, and the items of "Confused with" say what separates it from its neighbours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.version_ranges import Range, parse_ranges
from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADINGS = ("What you see", "Why it happens", "Prove it", "Fix it", "Confused with", "Known from")

_FRONT_MATTER = lazy_re(r"\A---\n(.*?)\n---\n", re.DOTALL)
_HEADING = lazy_re(r"^## (.+?)\s*$", re.MULTILINE)
_ITEM = lazy_re(r"^(?:-|\d+\.) (.*(?:\n  .*)*)", re.MULTILINE)
_NEIGHBOUR = lazy_re(r"`([a-z0-9-]+)`:\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """One thing that must be observed: a signal with certain facts, a text in a log line, or a known message."""

    signals: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    regex: str | None = None
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    ranks: str | None = None
    meets_culprit: bool = True
    speaks_of_others: bool = False
    """Whether it must speak of all ranks but the culprit."""


@dataclass(frozen=True)
class Proof:
    """Conditions that together prove the mode (or make it likely)."""

    conditions: tuple[Condition, ...]
    likely_only: bool = False


@dataclass(frozen=True)
class Exclusion:
    """An observation that rules the mode out, and why."""

    condition: Condition
    because: str


@dataclass(frozen=True)
class Closer:
    """What is told in place of the entry's own words where one observation says more closely what happened."""

    when: Condition
    summary: str | None
    cause: str | None
    fix: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One failure mode."""

    id: str
    title: str
    branch: str
    culprit: str
    path: str
    """Relative to the playbook folder."""
    summary: tuple[str, ...]
    proves: tuple[Proof, ...]
    supports: tuple[Condition, ...]
    excludes: tuple[Exclusion, ...]
    refines: tuple[str, ...]
    culprit_from: tuple[str, ...]
    keywords: tuple[str, ...]
    reports: tuple[str, ...]
    """How people describe this failure; what a pasted report is ranked against."""
    next_check: dict[str, Any]
    cause: str
    fix: tuple[str, ...]
    confused_with: dict[str, str]
    closer: tuple[Closer, ...] = ()
    """The first that holds, and of which everything is known, is told."""
    versions: tuple[tuple[str, Range], ...] = ()
    """By package, the releases that alone have the fault; of what is not named, all may have it."""

    def conditions(self) -> Iterator[Condition]:
        """All conditions, wherever they stand."""
        for proof in self.proves:
            yield from proof.conditions
        yield from self.supports
        for exclusion in self.excludes:
            yield exclusion.condition
        for closer in self.closer:
            yield closer.when


def split_document(text: str, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Split an entry into its front matter and its sections by heading.

    Raises:
        KnowledgeError: there is no front matter, or it is not a YAML mapping.
    """
    found = _FRONT_MATTER.match(text)
    if found is None:
        raise KnowledgeError(f"{path}: must begin with front matter between two lines of ---")
    import yaml  # only when the compiled index does not know the file

    # libyaml is ten times as fast; the pure loader serves where a wheel lacks it.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        front = yaml.load(found[1], Loader=loader)  # noqa: S506  # both are safe loaders
    except yaml.YAMLError as error:
        raise KnowledgeError(f"{path}: front matter is not YAML: {error}") from error
    if not isinstance(front, dict):
        raise KnowledgeError(f"{path}: front matter must be a mapping")
    body = text[found.end() :]
    marks = list(_HEADING.finditer(body))
    ends = [*(m.start() for m in marks[1:]), len(body)]
    return front, {m[1]: body[m.end() : end].strip() for m, end in zip(marks, ends, strict=True)}  # pyright: ignore[reportUnknownVariableType]


def items_of(section: str) -> list[str]:
    """The items of a section's lists, without their marks."""
    return _ITEM.findall(section)


def compile_entry(text: str, path: str) -> dict[str, Any]:
    """Turn an entry's text into the plain mapping that the compiled index keeps.

    Raises:
        KnowledgeError: it lacks what every entry must have.
    """
    front, sections = split_document(text, path)
    missing = [heading for heading in HEADINGS if not sections.get(heading)]
    if missing:
        raise KnowledgeError(f"{path}: heading missing or empty: {', '.join(missing)}")
    return {
        **front,
        "path": path,
        "cause": _plain(sections["Why it happens"].split("\n\n")[0]),
        "fix": [_plain(item) for item in items_of(sections["Fix it"])],
        "confused_with": {
            m[1]: _plain(m[2]) for item in items_of(sections["Confused with"]) if (m := _NEIGHBOUR.match(item))
        },
    }


def entry_from(compiled: dict[str, Any]) -> Entry:
    """Build an entry from what :func:`compile_entry` gave.

    Raises:
        KnowledgeError: a required field is missing.
    """
    try:
        return Entry(
            id=compiled["id"],
            title=compiled["title"],
            branch=compiled["branch"],
            culprit=compiled["culprit"],
            path=compiled["path"],
            summary=tuple(compiled["summary"]),
            proves=tuple(
                Proof(tuple(_condition(c) for c in p["all"]), p.get("strength") == "likely") for p in compiled["proves"]
            ),
            supports=tuple(_condition(c) for c in compiled.get("supports", ())),
            excludes=tuple(Exclusion(_condition(e["when"]), e["because"]) for e in compiled.get("excludes", ())),
            refines=tuple(compiled.get("refines", ())),
            culprit_from=tuple(compiled.get("culprit_from", ())),
            keywords=tuple(compiled.get("keywords", ())),
            reports=tuple(compiled.get("reports", ())),
            next_check=compiled["next_check"],
            cause=compiled["cause"],
            fix=tuple(compiled["fix"]),
            confused_with=compiled["confused_with"],
            closer=tuple(
                Closer(_condition(c["when"]), c.get("summary"), c.get("cause"), tuple(c.get("fix", ())))
                for c in compiled.get("closer", ())
            ),
            versions=parse_ranges(compiled.get("versions", {})),
        )
    except ValueError as error:
        raise KnowledgeError(f"{compiled.get('path')}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise KnowledgeError(f"{compiled.get('path')}: front matter lacks or misspells {error}") from error


def _condition(raw: dict[str, Any]) -> Condition:
    return Condition(
        signals=_tuple(raw.get("signal")),
        texts=_tuple(raw.get("log")),
        templates=_tuple(raw.get("template")),
        regex=raw.get("regex"),
        where=raw.get("where", {}),
        ranks=raw.get("ranks"),
        meets_culprit=raw.get("meets", "culprit") == "culprit",
        speaks_of_others=raw.get("meets") == "others",
    )


def _tuple(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _plain(markdown: str) -> str:
    """One line of text: line breaks folded, nothing else touched."""
    return " ".join(markdown.split())
