"""Which words a text must hold for an expression to be found in it: looking for those is far cheaper than compiling it.

Knows the shapes of expressions; where it is not certain that a word is needed, it tells none. Words are told in lower
case, for texts in ASCII: other letters have more than one small form.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def needed_words(regex: str) -> list[str]:
    """Words of which a text must hold one, in lower case, for the expression to match; empty when none is certain."""
    return sorted(_of_sequence(_parser.parse(regex)) or ())


def _of_sequence(items: Iterable[Any]) -> frozenset[str] | None:
    """Of all parts of a sequence the words that are least likely to be met by chance: the longest."""
    found = [words for words in _of_parts(items) if words]
    return _without_longer(max(found, key=lambda words: (min(map(len, words)), -len(words)))) if found else None


def _of_parts(items: Iterable[Any]) -> Iterator[frozenset[str] | None]:
    word = ""
    for operator, argument in items:
        if str(operator) == "LITERAL" and argument < 128:
            word += chr(argument).lower()
            continue
        yield frozenset({word} if word else ())
        word = ""
        yield _of_part(str(operator), argument)
    yield frozenset({word} if word else ())


def _of_part(operator: str, argument: Any) -> frozenset[str] | None:
    if operator == "SUBPATTERN":
        return _of_sequence(argument[-1])
    if operator == "ATOMIC_GROUP":
        return _of_sequence(argument)
    if operator in _REPEATS:
        least, _, items = argument
        return _of_sequence(items) if least > 0 else None
    if operator == "BRANCH":
        choices = [_of_sequence(choice) or frozenset[str]() for choice in argument[1]]
        return frozenset[str]().union(*choices) if all(choices) else None
    return None


def _without_longer(words: frozenset[str]) -> frozenset[str]:
    """Without those that hold another one."""
    return frozenset(word for word in words if not any(other != word and other in word for other in words))
