"""Which of many literals occur in a line, at a cost that hardly depends on how many there are.

Lines are compared as templates (every digit is "0"), so that the answer can be remembered per template.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGITS = str.maketrans("123456789", "000000000")
_WORD = re.compile(r"\w+")


class LiteralIndex:
    """Literals by a word that a line which holds them must hold as a whole word.

    A word inside a literal (with something else on both sides of it) is a whole word of the line too. Literals without
    such a word ("OutOfMemoryError") are looked for one by one.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        """Build the index; positions in answers are those of ``literals``."""
        self._literals = [literal.translate(DIGITS) for literal in literals]
        inner = [_inner_words(literal) for literal in self._literals]
        common = Counter(word for words in inner for word in set(words))
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)
        self._loose: list[int] = []
        for position, words in enumerate(inner):
            if words:
                self._by_word[min(words, key=lambda word: (common[word], -len(word)))].append(position)
            elif self._literals[position]:
                self._loose.append(position)
        self._words = frozenset(self._by_word)

    def candidates(self, template: str) -> tuple[int, ...]:
        """Positions of the literals whose template occurs in this line template."""
        literals = self._literals
        found = [position for position in self._loose if literals[position] in template]
        for word in self._words.intersection(_WORD.findall(template)):
            found += [position for position in self._by_word[word] if literals[position] in template]
        return tuple(sorted(found))


def _inner_words(literal: str) -> list[str]:
    return [match[0] for match in _WORD.finditer(literal) if match.start() > 0 and match.end() < len(literal)]
