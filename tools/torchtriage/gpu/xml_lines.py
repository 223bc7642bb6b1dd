"""The XML of ``nvidia-smi -q -x``, of which it writes an element a line, as places and values. Stdlib only.

An answer that is cut is read up to there, which no parser of whole documents would do.
"""

from __future__ import annotations

import re
from typing import Literal

_NAME = r"[A-Za-z_][\w.\-]{0,60}"
_OPEN = re.compile(rf"\s{{0,64}}<({_NAME})(?:\s[^<>]{{0,200}})?>\s{{0,8}}$")
_CLOSE = re.compile(rf"\s{{0,64}}</({_NAME})>\s{{0,8}}$")
_LEAF = re.compile(rf"\s{{0,64}}<({_NAME})(?:\s[^<>]{{0,200}})?>([^<]{{0,400}})</\1>\s{{0,8}}$")
_GPU_ID = re.compile(r'\s{0,64}<gpu id="([0-9a-fA-F:.]{4,32})">')

Step = tuple[Literal["gpu", "leaf", "close"], str, str]


class XmlLines:
    """Where in the tree of a GPU the lines are."""

    def __init__(self, max_depth: int) -> None:
        """Elements deeper than ``max_depth`` count to the one that holds them."""
        self._max_depth = max_depth
        self._inside = False
        self._path: list[str] = []

    def step(self, line: str) -> Step | None:
        """What a line is: a ``gpu`` (bus id), a ``leaf`` of it (path below the GPU, value) or the end of an element.

        None of all else, and of what stands outside of every GPU.
        """
        if (named := _GPU_ID.match(line)) is not None:
            self._inside, self._path = True, []
            return "gpu", named[1], ""
        if not self._inside:
            return None
        if (leaf := _LEAF.match(line)) is not None:
            return "leaf", "/".join([*self._path, leaf[1]]), leaf[2].strip()
        if (closed := _CLOSE.match(line)) is not None:
            name = closed[1]
            if name == "gpu":
                self._inside = False
            if name in self._path:
                del self._path[len(self._path) - 1 - self._path[::-1].index(name) :]
            return "close", name, ""
        if (opened := _OPEN.match(line)) is not None and len(self._path) < self._max_depth:
            self._path.append(opened[1])
        return None
