"""Regular expressions that are compiled when they are first used.

Python compiles an expression in about a millisecond, and most texts need few of those that a reader knows: what no line
asks for is never compiled. A wrong one fails at its first use; the tests use them all.
"""

from __future__ import annotations

import functools
import re
from typing import Any, AnyStr, cast


def lazy_re(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What ``re.compile`` gives, for module level: its methods and attributes come with the first use of one.

    It equals itself alone: the ``re`` of a match is another object.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(source, flags))


class _LazyPattern:
    """Stands in for a compiled expression; what was asked for once is an attribute of its own and costs no more."""

    def __init__(self, source: str | bytes, flags: int) -> None:
        self._source, self._flags = source, flags

    @functools.cached_property
    def _compiled(self) -> re.Pattern[Any]:
        return re.compile(self._source, self._flags)

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(self._compiled, name)
        return value
