"""Message templates: what software prints, what it means, and how a line of a log is recognised as one.

A template says of a line what it is worth (a cause, a victim's view, a consequence, a phrase that is always printed);
which failure mode a job has is the playbook's business. Example lines stay in the files and never reach the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torchtriage.errors import KnowledgeError
from torchtriage.logs.records import LogPattern

if TYPE_CHECKING:
    from collections.abc import Iterable

Role = Literal["cause", "symptom", "cascade", "boilerplate", "info", "ambiguous"]

ROLES: tuple[Role, ...] = ("cause", "ambiguous", "symptom", "info", "cascade", "boilerplate")
"""All roles, those that bring a reader nearer to the cause first."""
NEVER_THE_ROOT = frozenset({"cascade", "boilerplate"})

_KEPT = ("id", "means", "role", "versions", "text")
_PREFIX = "template:"


@dataclass(frozen=True)
class Template:
    """One message as software prints it."""

    id: str
    section: str
    means: str
    role: Role
    versions: str
    caveat: str
    texts: tuple[str, ...]
    regex: str | None

    @property
    def key(self) -> str:
        """Under which observations of it are found."""
        return template_key(self.id)

    def patterns(self) -> list[LogPattern]:
        """What the log reader looks for: one pattern per literal."""
        return [LogPattern(f"{self.key}#{n}", text, self.regex) for n, text in enumerate(self.texts)]


def template_key(template_id: str) -> str:
    """The key of a template's observations; no text of an entry has such a key."""
    return f"{_PREFIX}{template_id}"


def template_of_pattern(pattern_id: str) -> str | None:
    """The template that a pattern of :meth:`Template.patterns` belongs to; None for other patterns."""
    return pattern_id[len(_PREFIX) :].rpartition("#")[0] if pattern_id.startswith(_PREFIX) else None


def compile_section(text: str, path: str) -> dict[str, Any]:
    """Turn a file of templates into the plain mapping that the compiled index keeps: without the example lines.

    Raises:
        KnowledgeError: it is not YAML, or lacks what every template must have.
    """
    raw = parse_section(text, path)
    try:
        kept = [
            {**{k: t[k] for k in _KEPT}, **{k: t[k] for k in ("caveat", "regex") if k in t}} for t in raw["templates"]
        ]
        return {"path": path, "section": raw["section"], "templates": kept}
    except (KeyError, TypeError, AttributeError) as error:
        raise KnowledgeError(f"{path}: a template lacks or misspells {error}") from error


def parse_section(text: str, path: str) -> dict[str, Any]:
    """The whole file as a mapping.

    Raises:
        KnowledgeError: it is not a YAML mapping.
    """
    import yaml  # only when the compiled index does not know the file

    # libyaml is ten times as fast; the pure loader serves where a wheel lacks it.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        raw = yaml.load(text, Loader=loader)  # noqa: S506  # both are safe loaders
    except yaml.YAMLError as error:
        raise KnowledgeError(f"{path}: is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise KnowledgeError(f"{path}: must be a mapping")
    return raw  # pyright: ignore[reportUnknownVariableType]


def templates_from(compiled: dict[str, Any]) -> list[Template]:
    """Build a section's templates from what :func:`compile_section` gave.

    Raises:
        KnowledgeError: a required field is missing.
    """
    try:
        return [
            Template(
                id=raw["id"],
                section=compiled["section"],
                means=" ".join(raw["means"].split()),
                role=raw["role"],
                versions=raw["versions"],
                caveat=" ".join(raw.get("caveat", "").split()),
                texts=tuple(raw["text"]),
                regex=raw.get("regex"),
            )
            for raw in compiled["templates"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise KnowledgeError(f"{compiled.get('path')}: a template lacks or misspells {error}") from error


def by_id(templates: Iterable[Template]) -> dict[str, Template]:
    """Templates by id.

    Raises:
        KnowledgeError: two have the same id.
    """
    found: dict[str, Template] = {}
    for template in templates:
        if template.id in found:
            raise KnowledgeError(
                f"the template {template.id} stands in {found[template.id].section} and in {template.section}"
            )
        found[template.id] = template
    return found
