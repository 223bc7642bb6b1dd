"""Whether a regex that is searched in hostile lines can take more than linear time: by its shape, and by the clock.

For tests and for authors; nothing here runs when a job is triaged.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LINE_CHARS = 16 << 10
MAX_LINE_S = 0.12
_NOTICED_S = 0.04
_MAX_GROWTH = 3.0  # of the time when the line becomes twice as long; a quadratic search takes four times as long
_MAX_LINES = 160
_FILLERS = ("0", "a", "A", " ", "_", ".", ",", ":", "[", "(", "0 ", "a ", "rank 0 ")

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_ASCII = frozenset(range(128))
_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset(c for c in _ASCII if chr(c).isdigit()),
    "CATEGORY_WORD": frozenset(c for c in _ASCII if chr(c).isalnum() or c == ord("_")),
    "CATEGORY_SPACE": frozenset(c for c in _ASCII if chr(c).isspace()),
}
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def regex_problems(regex: str, literals: Sequence[str] = (), lines: Sequence[str] = ()) -> list[str]:
    """What makes a regex unfit for hostile lines; empty when nothing does.

    Args:
        regex: as it is searched in a line.
        literals: texts of which a line holds one before the regex is tried.
        lines: lines that it matches.
    """
    try:
        tree = list(_parser.parse(regex))
        compiled = re.compile(regex)
    except re.error as error:
        return [f"regex {regex!r}: {error}"]
    found = [f"regex {regex!r}: {problem}" for problem in dict.fromkeys(_shape_problems(tree))]
    if not found and (cost := slowest_search(compiled, _hostile_lines(compiled, tree, literals, lines))):
        found.append(f"regex {regex!r}: {cost}")
    return found


def slowest_search(compiled: re.Pattern[str], lines: Iterable[str]) -> str | None:
    """Say how slow the slowest of the lines is when that is too slow, or grows faster than the line; else None."""
    for line in lines:
        # What is slow on all of the line is not fast on a quarter of it, and what is hopeless there needs no more.
        part = line[: len(line) // 4]
        seconds = _search_s(compiled, part)
        if seconds > MAX_LINE_S / 2:
            seconds = min(_search_s(compiled, part) for _ in range(3))
        if seconds > MAX_LINE_S / 2:
            return f"takes {seconds:.3f} s for {len(part)} characters: {line[:60]!r}..."
        if seconds < _NOTICED_S / 32:
            continue
        seconds, half = _whole_and_half_s(compiled, line, 3)
        if _is_slow(seconds, half):
            seconds, half = _whole_and_half_s(compiled, line, 12)
        if _is_slow(seconds, half):
            return (
                f"takes {seconds:.3f} s for {len(line)} characters and {half:.3f} s for half of them: {line[:60]!r}..."
            )
    return None


def _is_slow(seconds: float, half: float) -> bool:
    return seconds > MAX_LINE_S or (seconds >= _NOTICED_S and seconds > _MAX_GROWTH * half)


def _whole_and_half_s(compiled: re.Pattern[str], line: str, times: int) -> tuple[float, float]:
    """The best of some tries, in turns: a busy machine makes any search look slow for a while."""
    pairs = [(_search_s(compiled, line), _search_s(compiled, line[: len(line) // 2])) for _ in range(times)]
    return min(whole for whole, _ in pairs), min(half for _, half in pairs)


def _search_s(compiled: re.Pattern[str], line: str) -> float:
    began = time.thread_time()
    compiled.search(line)
    return time.thread_time() - began


def _shape_problems(tree: Sequence[Any]) -> Iterator[str]:
    """Repeats without bound that stand inside each other, or beside each other and can take the same characters."""
    before: frozenset[int] = frozenset()
    for item in _flat(tree):
        name, value = str(item[0]), item[1]
        endless = name in _REPEATS and value[1] is _parser.MAXREPEAT
        if endless and any(_varies(inner) for inner in _all_items(value[2])):
            yield "a repeat inside a repeat that has no bound"
        if endless and before & _characters([item]):
            yield "two repeats without bound, side by side, that can take the same characters"
        if endless:
            before = before | _characters([item]) if _may_be_empty(item) else _characters([item])
        elif not _may_be_empty(item):
            before = frozenset()
        for part in _parts(item):
            yield from _shape_problems(part)


def _flat(tree: Iterable[Any]) -> Iterator[Any]:
    """A sequence with its groups opened: what stands side by side in the line stands side by side here."""
    for item in tree:
        if str(item[0]) in ("SUBPATTERN", "ATOMIC_GROUP"):
            yield from _flat(_parts(item)[0])
        else:
            yield item


def _varies(item: Any) -> bool:
    return str(item[0]) in _REPEATS and item[1][0] != item[1][1]


def _parts(item: Any) -> list[list[Any]]:
    """The sequences inside an item."""
    name, value = str(item[0]), item[1]
    if name in _REPEATS:
        return [list(value[2])]
    if name == "SUBPATTERN":
        return [list(value[3])]
    if name == "BRANCH":
        return [list(branch) for branch in value[1]]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [list(value[1])]
    return [list(value)] if name == "ATOMIC_GROUP" else []


def _all_items(tree: Iterable[Any]) -> Iterator[Any]:
    for item in tree:
        yield item
        for part in _parts(item):
            yield from _all_items(part)


def _may_be_empty(item: Any) -> bool:
    name, value = str(item[0]), item[1]
    if name in ("AT", "ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS"):
        return True
    if name in _REPEATS and value[0] == 0:
        return True
    parts = _parts(item)
    return bool(parts) and any(all(_may_be_empty(i) for i in part) for part in parts)


def _characters(tree: Iterable[Any]) -> frozenset[int]:
    """The ASCII characters that a sequence may hold."""
    found: frozenset[int] = frozenset()
    for item in tree:
        name, value = str(item[0]), item[1]
        if name == "LITERAL":
            found |= {value}
        elif name == "NOT_LITERAL":
            found |= _ASCII - {value}
        elif name == "ANY":
            found |= _ASCII - {10}
        elif name == "RANGE":
            found |= frozenset(range(value[0], min(value[1], 127) + 1))
        elif name == "CATEGORY":
            said = str(value)
            known = _CATEGORIES[said.replace("_NOT_", "_")]
            found |= _ASCII - known if "_NOT_" in said else known
        elif name == "IN":
            negated = str(value[0][0]) == "NEGATE"
            inside = _characters(value[1:] if negated else value)
            found |= _ASCII - inside if negated else inside
        else:
            for part in _parts(item):
                found |= _characters(part)
    return found


def _hostile_lines(
    compiled: re.Pattern[str], tree: Sequence[Any], literals: Sequence[str], lines: Sequence[str]
) -> Iterator[str]:
    """Long lines that begin as a match does and then go on and on: up to each repeat, each literal, each group."""
    starts = dict.fromkeys(_starts(tree))
    for literal in literals:
        starts.setdefault((literal, None))
    for line in lines:
        match = compiled.search(line)
        spans = [match.span(), *match.regs[1:]] if match is not None else []
        for at in sorted({place for span in spans for place in span if place >= 0}):
            starts.setdefault((line[:at], None))
    made = 0
    for begin, char in starts:
        fillers = [begin, *_FILLERS] if char is None else [begin, char, *_FILLERS[:4]]
        for filler in dict.fromkeys(f for f in fillers if f):
            made += 1
            if made > _MAX_LINES:
                return
            line = begin + filler * (LINE_CHARS // len(filler))
            yield line[:LINE_CHARS]


def _starts(tree: Sequence[Any]) -> Iterator[tuple[str, str | None]]:
    """For each repeat of which the length varies: a text that leads to it, and a character that it takes."""
    said = least = ""
    for item in tree:
        if _varies(item):
            yield said, _sample(item[1][2])[:1] or None
            yield least, None
        for part in _parts(item):
            for begin, char in _starts(part):
                yield said + begin, char
        said += _sample([item])
        least += "" if _may_be_empty(item) else _sample([item])


def _sample(tree: Iterable[Any]) -> str:
    """A short text of the form that a sequence describes."""
    said = ""
    for item in tree:
        name, value = str(item[0]), item[1]
        parts = _parts(item)
        if name in ("ASSERT", "ASSERT_NOT"):
            continue
        if name in _REPEATS:
            said += _sample(value[2]) * min(max(value[0], 1), 200)
        elif parts:
            said += _sample(parts[0])
        elif allowed := _characters([item]):
            liked = [c for c in (48, 97, 32) if c in allowed]
            said += chr(liked[0] if liked else min(allowed & frozenset(range(33, 127)) or allowed))
    return said
