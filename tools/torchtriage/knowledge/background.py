"""What is no failure of a distributed job: things that look frightening and are normal, and other fields.

Both stand beside the playbook when a text is read: what fits one of them far better than any entry is not a failure.
Their data is skill/normal.yaml and skill/elsewhere.yaml.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root

if TYPE_CHECKING:
    from pathlib import Path

_FILES = ("normal.yaml", "elsewhere.yaml")


@dataclass(frozen=True)
class Background:
    """One thing that is no failure."""

    id: str
    title: str
    means: str
    """Why it is normal and what would make it a fault; empty for another field."""
    words: str
    """Everything that a text is held against."""


@dataclass(frozen=True)
class Backgrounds:
    """All of them, by id."""

    normal: dict[str, Background]
    elsewhere: dict[str, Background]


@functools.cache
def load_backgrounds(root: Path | None = None) -> Backgrounds:
    """Load both files.

    Raises:
        KnowledgeError: one is missing, or a thing in it lacks its id, its title or its words, or has another's id.
    """
    folder = (root or data_root()) / "skill"
    return Backgrounds(normal=_things(folder / _FILES[0], "normal"), elsewhere=_things(folder / _FILES[1], "elsewhere"))


def backgrounds_key(root: Path) -> str:
    """Hash of both files under ``root``: what is derived from them may be kept under it, and found without them.

    Raises:
        KnowledgeError: one is missing.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in _FILES:
        try:
            content = (root / "skill" / name).read_bytes()
        except OSError as error:
            raise KnowledgeError(f"{root / 'skill' / name}: cannot be read: {error}") from error
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _things(path: Path, kind: str) -> dict[str, Background]:
    found: dict[str, Background] = {}
    try:
        for raw in load_yaml(path)[kind]:
            thing = _thing(raw)
            if found.setdefault(thing.id, thing) is not thing:
                raise KnowledgeError(f"{path}: two things have the id {thing.id}")
    except (KeyError, TypeError, AttributeError) as error:
        raise KnowledgeError(
            f"{path}: expected a list {kind!r} of things with id, title, reports: {error!r}"
        ) from error
    return found


def _thing(raw: dict[str, Any]) -> Background:
    title, means = raw["title"], raw.get("means", "")
    return Background(
        id=raw["id"],
        title=title,
        means=means,
        words=" ".join([raw["id"], title, means, *raw.get("lines", ()), raw.get("words", ""), *raw["reports"]]),
    )
