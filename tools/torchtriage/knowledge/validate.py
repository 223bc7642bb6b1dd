"""Hold every entry against the JSON Schema of front matter, the registry of signals and its neighbours.

For tests and for authors; nothing here runs when a job is triaged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema

from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.entries import HEADINGS, compile_entry, entry_from, split_document
from torchtriage.knowledge.regex_cost import regex_problems
from torchtriage.knowledge.validate_templates import reference_problems, template_problems
from torchtriage.signals import SIGNALS

if TYPE_CHECKING:
    from pathlib import Path


def front_matter_schema(root: Path) -> dict[str, Any]:
    """The JSON Schema of front matter, of the knowledge under ``root``."""
    return json.loads((root / "playbook" / "schema.json").read_text(encoding="utf-8"))


def _packages(root: Path) -> set[str]:
    """The packages whose versions are read in texts."""
    return {each["package"] for each in load_yaml(root / "skill" / "versions.yaml")["packages"]}


def problems(root: Path) -> list[str]:
    """Everything that is wrong with the playbook and the message templates under ``root``; empty when nothing is."""
    found, templates = template_problems(root)
    folder = root / "playbook"
    validator = jsonschema.Draft202012Validator(front_matter_schema(root))
    texts = {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in sorted(folder.glob("*/*.md"))}
    ids = {split_document(text, path)[0].get("id") for path, text in texts.items()}
    for path, text in texts.items():
        front, sections = split_document(text, path)
        errors = [f"{path}: {'/'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(front)]  # pyright: ignore[reportUnknownMemberType]
        found += errors
        if errors:
            continue
        entry = entry_from(compile_entry(text, path))
        if path != f"{entry.branch}/{entry.id}.md":
            found.append(f"{path}: must stand in {entry.branch}/{entry.id}.md")
        if tuple(sections) != HEADINGS:
            found.append(f"{path}: headings must be {', '.join(HEADINGS)}, in this order")
        if f"\n# {entry.title}\n" not in text:
            found.append(f"{path}: the first heading must be the title")
        if not entry.fix:
            found.append(f"{path}: Fix it must be a list")
        found += [
            f"{path}: versions names {package}, which skill/versions.yaml does not know"
            for package, _ in entry.versions
            if package not in _packages(root)
        ]
        unknown = {n for c in entry.conditions() for n in c.signals if n not in SIGNALS}
        unknown |= {n for n in entry.culprit_from if n not in SIGNALS}
        found += [f"{path}: {name} is not a registered signal" for name in sorted(unknown)]
        found += [f"{path}: refines {other}, which has no entry" for other in entry.refines if other not in ids]
        found += [f"{path}: {problem}" for problem in reference_problems(entry, templates)]
        found += [
            f"{path}: {problem}"
            for c in entry.conditions()
            if c.regex is not None
            for problem in regex_problems(c.regex, c.texts)
        ]
    return found
