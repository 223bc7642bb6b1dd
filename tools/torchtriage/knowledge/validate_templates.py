"""Hold every message template against the JSON Schema, its own example lines and the clock.

For tests and for authors; nothing here runs when a job is triaged.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.regex_cost import regex_problems
from torchtriage.knowledge.templates import (
    NEVER_THE_ROOT,
    Template,
    compile_section,
    parse_section,
    templates_from,
)
from torchtriage.logs.scan.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchtriage.knowledge.entries import Entry

RESERVED_FACTS = frozenset({"count", "template", "role"})
"""What an observation of any template tells, beside the fields of its regex."""

Fields = dict[str, str]


def templates_schema(root: Path) -> dict[str, Any]:
    """The JSON Schema of a file of templates, of the knowledge under ``root``."""
    return json.loads((root / "playbook" / "templates.schema.json").read_text(encoding="utf-8"))


def template_problems(root: Path) -> tuple[list[str], dict[str, Template]]:
    """Everything that is wrong with the templates under ``root``, and those that can be used, by id."""
    found: list[str] = []
    known: dict[str, Template] = {}
    paths = sorted((root / "playbook" / "templates").glob("*.yaml"))
    validator = jsonschema.Draft202012Validator(templates_schema(root)) if paths else None
    for path in paths:
        name, text = f"templates/{path.name}", path.read_text(encoding="utf-8")
        try:
            raw = parse_section(text, name)
        except KnowledgeError as error:
            found.append(str(error))
            continue
        errors = list(validator.iter_errors(raw)) if validator else []  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
        if errors:
            found += [f"{name}: {'/'.join(map(str, e.path))}: {e.message[:200]}" for e in errors]
            continue
        if path.stem != raw["section"]:
            found.append(f"{name}: must be called {raw['section']}.yaml")
        for template, full in zip(templates_from(compile_section(text, name)), raw["templates"], strict=True):
            if template.id in known:
                found.append(f"{name}: {template.id}: the id is taken in templates/{known[template.id].section}.yaml")
            known[template.id] = template
            found += [f"{name}: {template.id}: {problem}" for problem in _problems(template, full)]
    return found, known


def reference_problems(entry: Entry, templates: dict[str, Template]) -> Iterator[str]:
    """What is wrong with the templates that an entry's conditions name."""
    for condition in entry.conditions():
        for name in condition.templates:
            if name not in templates:
                yield f"{name} is no message template"
                continue
            facts = {*RESERVED_FACTS, *field_names(templates[name])}
            yield from (f"{name} has no field {field}" for field in condition.where if field not in facts)
    for proof in entry.proves:
        # One of a condition's templates is enough to meet it.
        weak = [
            [n for n in c.templates if n in templates and templates[n].role in NEVER_THE_ROOT] for c in proof.conditions
        ]
        if all(weak):
            yield f"{weak[0][0]} ({templates[weak[0][0]].role}) is never the root, and alone proves nothing"


def field_names(template: Template) -> list[str]:
    """The facts that a template tells, without the ranks."""
    return [name for name in re.compile(template.regex or "").groupindex if not name.startswith("rank")]


def recognised(template: Template, line: str) -> list[Fields]:
    """What a scan of this line reads with one template: the fields of each match, ranks among them."""
    timeline = scan([text_source(line)], PatternSet(template.patterns()))
    found: list[Fields] = []
    for hits in timeline.hits:
        fields = {**hits.facts, **({"rank": ",".join(map(str, hits.ranks))} if hits.ranks else {})}
        if fields not in found:
            found.append(fields)
    return found


def _problems(template: Template, full: dict[str, Any]) -> Iterator[str]:
    lines = [example["line"] for example in full["matches"]]
    if template.regex is not None:
        yield from regex_problems(template.regex, template.texts, lines)
        try:
            reserved = RESERVED_FACTS.intersection(field_names(template))
        except re.error:
            return
        if reserved:
            yield f"fields must not be called {', '.join(sorted(reserved))}"
    for example in full["matches"]:
        said = {name: str(value) for name, value in example.get("fields", {}).items()}
        ranks = sorted({int(v) for k, v in said.items() if k.startswith("rank") and v.isdecimal()})
        expected = {k: v for k, v in said.items() if not k.startswith("rank")}
        if ranks:
            expected["rank"] = ",".join(map(str, ranks))
        found = recognised(template, example["line"])
        if not found:
            yield f"does not recognise {example['line'][:120]!r}{_why_not(template, example['line'])}"
        elif found != [expected]:
            yield f"reads {found} off {example['line'][:120]!r}, not {expected}"
    for text in template.texts:
        if not any(text in line for line in lines):
            yield f"no matching line holds {text!r}"
    for line in full["rejects"]:
        if recognised(template, line):
            yield f"recognises {line[:120]!r}, which it should reject"


def _why_not(template: Template, line: str) -> str:
    if not any(text in line for text in template.texts):
        return ": none of its literals occurs there"
    if template.regex and re.search(template.regex, line) is None:
        return ": the regex does not match"
    return ": the log reader takes it for a person's sentence, or for a negated one"
