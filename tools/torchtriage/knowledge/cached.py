"""YAML of the package, parsed once per content: parsing it anew would cost more than the call that needs it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION = b"2"
MAX_KEPT_BYTES = 64 << 20


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
    """A JSON document from the cache folder, as :func:`keep` left it; None when there is none of ours.

    What somebody else could have written, what is no plain file, too large or not as it was written is none of ours.
    """
    try:
        with open(cache_folder() / name, "rb", opener=_open_own) as kept:
            digest, _, content = kept.read(MAX_KEPT_BYTES + 1).partition(b"\n")
        return json.loads(content) if digest == _digest(content) else None
    except (OSError, ValueError, RuntimeError, TypeError):
        return None


def _open_own(path: str, flags: int) -> int:
    """Open a regular file that is this user's own and that nobody else may write; never wait for it.

    Raises:
        OSError: it is none.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if own and found.st_size <= MAX_KEPT_BYTES:
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is no file that this program kept")


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()


def keep(name: str, value: object) -> None:
    """Write a JSON document and its hash beside their final place and move them there: no reader ever sees half of it.

    Older ones of the same stem are removed after a month. Without a cache folder nothing is kept.
    """
    import tempfile  # only when something is new

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = json.dumps(value, separators=(",", ":")).encode()
        with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as out:
            out.write(_digest(content) + b"\n" + content)
        Path(out.name).replace(folder / name)
        newest = folder.stat().st_mtime
        for old in folder.glob(f"{name.rpartition('-')[0]}-*.json"):
            if old.name != name and old.stat().st_mtime < newest - 30 * 86400:
                old.unlink(missing_ok=True)
    except (OSError, RuntimeError, TypeError):
        return
