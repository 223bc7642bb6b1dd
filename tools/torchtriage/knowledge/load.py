"""The playbook and the message templates, loaded once per process through an index that is keyed by the files' content.

Parsing 150 YAML front matters costs more than a whole triage should, so what was parsed is kept as JSON in the user's
cache folder under a hash of all the bytes; a changed file changes the hash. Without a cache folder it is parsed anew.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import keep, read_kept
from torchtriage.knowledge.entries import Entry, compile_entry, entry_from
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.templates import Template, by_id, compile_section, templates_from

if TYPE_CHECKING:
    from pathlib import Path

INDEX_VERSION = "2"


@dataclass(frozen=True)
class Playbook:
    """All entries, by id, in order of branch and id, and all message templates, by id, in order of section."""

    entries: dict[str, Entry]
    root: Path
    key: str
    """Hash of the content: what is derived from the playbook may be kept under it."""
    templates: dict[str, Template] = field(default_factory=dict[str, Template])

    def text(self, entry: Entry) -> str:
        """The whole document of an entry."""
        return (self.root / entry.path).read_text(encoding="utf-8")


@functools.cache
def load_playbook(root: Path | None = None) -> Playbook:
    """Load the playbook under ``root`` (default: the one that belongs to this package).

    Raises:
        KnowledgeError: a file cannot be used, or two have the same id.
    """
    folder = (root or data_root()) / "playbook"
    files = [*sorted(folder.glob("*/*.md")), *sorted(folder.glob("templates/*.yaml"))]
    sources = [(f"{p.parent.name}/{p.name}", p.read_bytes()) for p in files]
    digest = hashlib.blake2b(INDEX_VERSION.encode(), digest_size=16)
    for name, content in sources:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    key = digest.hexdigest()
    found = _kept(key, [name for name, _ in sources])
    if found is None:
        compiled = _compiled(sources)
        found = _built(compiled)
        keep(f"playbook-{key}.json", compiled)
    entries: dict[str, Entry] = {}
    for entry in found[0]:
        if entry.id in entries:
            raise KnowledgeError(f"{entry.path}: the id {entry.id} is taken by {entries[entry.id].path}")
        entries[entry.id] = entry
    return Playbook(entries=entries, templates=by_id(found[1]), root=folder, key=key)


def _compiled(sources: list[tuple[str, bytes]]) -> dict[str, list[dict[str, Any]]]:
    texts = [(name, content.decode("utf-8")) for name, content in sources]
    return {
        "entries": [compile_entry(text, name) for name, text in texts if name.endswith(".md")],
        "templates": [compile_section(text, name) for name, text in texts if name.endswith(".yaml")],
    }


def _built(compiled: dict[str, list[dict[str, Any]]]) -> tuple[list[Entry], list[Template]]:
    entries = [entry_from(raw) for raw in compiled["entries"]]
    return entries, [template for raw in compiled["templates"] for template in templates_from(raw)]


def _kept(key: str, names: list[str]) -> tuple[list[Entry], list[Template]] | None:
    """The index as it was kept; None when there is none, or when it is not what this version wrote for these files."""
    kept = read_kept(f"playbook-{key}.json")
    try:
        found = _built(kept)
        known = [raw["path"] for part in ("entries", "templates") for raw in kept[part]]
    except (ValueError, TypeError, KeyError, AttributeError, KnowledgeError):
        return None
    return found if known == names else None
