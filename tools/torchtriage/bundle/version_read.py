"""The versions that a bundle's manifest records. Stdlib only: runs inside the isolated worker; judges nothing."""

from __future__ import annotations

from typing import Any, cast

from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError

MAX_CHARS = 64
_FIELDS = {"torch": "torch_version", "nccl": "nccl_version", "python": "python_version"}


def versions_task(path: str, compression: str | None, args: dict[str, Any]) -> list[dict[str, str]]:
    """Worker task: ``[{"package", "version", "where"}]`` of a manifest; empty where it tells none.

    Raises:
        UnreadableError: it is no manifest.
    """
    del args
    view, _ = load_view(path, compression, "json")
    if not isinstance(view, dict):
        raise UnreadableError("is no manifest of a bundle")
    raw = cast("dict[str, Any]", view)
    return [
        {"package": package, "version": raw[name], "where": f"/{name}"}
        for package, name in _FIELDS.items()
        if isinstance(raw.get(name), str) and 0 < len(raw[name]) <= MAX_CHARS
    ]
