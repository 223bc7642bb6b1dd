"""YAML of the package, parsed once per content: parsing it anew would cost more than the call that needs it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION = b"1"


def cache_folder() -> Path:
    """Where compiled indexes are kept: ``$XDG_CACHE_HOME/torchtriage`` or ``~/.cache/torchtriage``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchtriage"


def load_yaml(path: Path, prepare: Callable[[Any], Any] | None = None, version: str = "") -> Any:
    """What a YAML file of the package holds, from the user's cache folder where its content is known already.

    Args:
        path: the file.
        prepare: makes of its content what is kept and returned instead, where that takes long.
        version: of ``prepare``; another one finds nothing that was kept before.

    Raises:
        KnowledgeError: it is missing or no YAML.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KnowledgeError(f"{path}: cannot be read: {error}") from error
    name = f"{path.stem}-{hashlib.blake2b(_VERSION + version.encode() + content, digest_size=16).hexdigest()}.json"
    kept = read_kept(name)
    if kept is not None:
        return kept
    import yaml

    try:
        value: Any = yaml.safe_load(content.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{path}: this is no YAML: {error}") from error
    if prepare is not None:
        value = prepare(value)
    keep(name, value)
    return value


def read_kept(name: str) -> Any:
    """A JSON document from the cache folder; None when there is none that can be read."""
    try:
        return json.loads((cache_folder() / name).read_bytes())
    except (OSError, ValueError, RuntimeError, TypeError):
        return None


def keep(name: str, value: object) -> None:
    """Write a JSON document beside its final place and move it there, so that no reader ever sees half of it.

    Older ones of the same stem are removed after a month. Without a cache folder nothing is kept.
    """
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as out:
            json.dump(value, out, separators=(",", ":"))
        Path(out.name).replace(folder / name)
        newest = folder.stat().st_mtime
        for old in folder.glob(f"{name.rpartition('-')[0]}-*.json"):
            if old.name != name and old.stat().st_mtime < newest - 30 * 86400:
                old.unlink(missing_ok=True)
    except (OSError, RuntimeError, TypeError):
        return
