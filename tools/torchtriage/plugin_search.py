"""``importlib.metadata``, loaded when somebody asks it something.

pydantic names it to look for its plugins, of which none is wanted here, and loading it takes a twentieth of the time in
which a pasted text is judged. Whoever does ask gets the module itself.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "importlib.metadata"


class _Metadata(ModuleType):
    """Stands in for the module until something of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load(self), name)


def load_metadata_when_asked() -> None:
    """Put a stand-in in its place, unless it is loaded; for a process of our own, as others may rely on the module."""
    if _NAME in sys.modules:
        return
    stand_in = _Metadata(_NAME)

    def entry_points(**wanted: Any) -> Any:
        return _load(stand_in).entry_points(**wanted)

    # What the import system asks every module for, and what pydantic imports and calls only where plugins are allowed.
    vars(stand_in)["__path__"] = [str(Path(folder, "metadata")) for folder in importlib.__path__]
    vars(stand_in)["entry_points"] = entry_points
    sys.modules[_NAME] = stand_in
    setattr(importlib, _NAME.rpartition(".")[2], stand_in)


def _load(stand_in: ModuleType) -> Any:
    if sys.modules.get(_NAME) is stand_in:
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
