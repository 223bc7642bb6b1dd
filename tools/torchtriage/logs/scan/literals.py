"""Which of many literals occur in a line, at a cost that hardly depends on how many there are.

Lines are compared as templates (every digit is "0"), so that the answer can be remembered per template. The search is
an Aho-Corasick automaton (ahocorasick_rs); benchmarks/log_scan.py compares it with the alternatives.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ahocorasick_rs import AhoCorasick

DIGITS = str.maketrans("123456789", "000000000")


class LiteralIndex:
    """Positions of the literals that occur in a line."""

    def __init__(self, literals: Sequence[str]) -> None:
        """Build the index; positions in answers are those of ``literals``. Empty literals are never found."""
        self._positions: dict[str, list[int]] = {}
        for position, literal in enumerate(literals):
            if literal:
                self._positions.setdefault(literal.translate(DIGITS), []).append(position)
        self._of_automaton = list(self._positions.values())

    @cached_property
    def _automaton(self) -> AhoCorasick:
        from ahocorasick_rs import AhoCorasick  # only where a log is read

        return AhoCorasick(list(self._positions))

    def candidates(self, template: str) -> tuple[int, ...]:
        """Positions of the literals whose template occurs in this line template, in order."""
        if not self._positions:
            return ()
        try:
            matches = self._automaton.find_matches_as_indexes(template, overlapping=True)
        except UnicodeEncodeError:  # a lone surrogate, which text that was pasted can hold
            whole = template.encode("utf-8", errors="replace").decode("utf-8")
            matches = self._automaton.find_matches_as_indexes(whole, overlapping=True)
        found = {index for index, _, _ in matches}
        if not found:
            return ()
        return tuple(sorted(position for index in found for position in self._of_automaton[index]))
