"""What stands before a log message: time stamps, rank marks, process ids, host names, levels.

Works on templates (every digit of the line is "0"), so what is found are places in the line, and one answer holds for
all lines of one shape. The forms are in ``prefix_forms``. A number that a launcher gave to a task, a pod or a local
process is told apart from a rank that the process itself printed: only the latter is a rank for sure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.scan.prefix_forms import FILLER, HEAD_LINES, LABELS, looks_labelled, match_token

if TYPE_CHECKING:
    import re

__all__ = [
    "GROUP",
    "HEAD_LINES",
    "PROCESS",
    "STRONG",
    "TASK",
    "Prefix",
    "Span",
    "looks_labelled",
    "parse_prefix",
    "split_glued",
]

Span = tuple[int, int]

_MAX_TOKENS = 8
_MAX_FILLERS = 6
# How much a mark is worth: a rank that the process prints beats the rank in a group, which beats the number that a
# launcher gave to a task, which beats a process id.
STRONG, GROUP, TASK, PROCESS = 4, 3, 2, 1
_STRENGTH = {
    **dict.fromkeys(("bracket", "inner", "paren", "word", "env", "field", "kvcolon", "nemorank"), STRONG),
    "pg": GROUP,
    **dict.fromkeys(("srun", "hydra", "mpi", "stern", "local", "pod", "compose", "sky"), TASK),
    **dict.fromkeys(("raypid", "ncclpid", "mpipid"), PROCESS),
}  # fmt: skip
_TIME_KINDS = {
    "iso": "iso", "kviso": "iso", "nemoiso": "iso", "glog": "glog", "syslog": "syslog", "ctime": "ctime", "mdy": "mdy",
    "monthday": "monthday", "epoch": "epoch", "kvepoch": "epoch", "clock": "clock",
}  # fmt: skip
_HOST_GROUPS = ("ncclhost", "mpihost", "rayip", "syshost", "isohost", "pod", "otherpod", "stern", "pdsh")

# A line that is one JSON object says in fields of it who wrote it, and when. A "rank" alone may be that of a matrix.
_JSON_RANK = lazy_re(r"[\"'](?:global_)?rank[\"'][ ]?:[ ]?(0{1,7})[ ]?[,}]")
_JSON_TIME = lazy_re(
    r"[\"'](?:time|ts|timestamp|@timestamp|asctime|datetime)[\"'][ ]?:[ ]?[\"']?"
    r"(?:(?P<iso>0000[-/]00[-/]00[T_ ]00:00:00(?:[.,]0{1,9})?(?:Z|[ ]?[+-]00:?00)?)|"
    r"(?P<epoch>0{10}(?:0{3}|0{6}|0{9}|\.0{1,9})?))[\"',} ]"
)
_JSON_LOG = lazy_re(r"[\"'](?:message|msg|level|levelname|severity|event|step|iteration|time|ts|timestamp)[\"'][ ]?:")
_JSON_CHARS = 2048
_RAY_RANK = lazy_re(r"(?<![A-Za-z_])rank[ =]?(0{1,7})\b")
_TRACEBACK = "Traceback (most recent call last):"
_ESCAPED = _TRACEBACK + "\\n"
_LINE_END = lazy_re(r"\\n")
_QUOTE = lazy_re(r"(?<!\\)\"")
_MAX_ESCAPED_LINES = 400
_LOGGER_CHARS = 200
_LEVEL_WORD = lazy_re(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")

# Brackets alone in front of a mark ("[12:30:01][INFO][rank0]") are its prefix, not another message.
_BRACKETS = lazy_re(r"(?:\s{0,4}\[[^\[\]]{0,80}\]){1,8}\s{0,4}$")
# A second message glued into the line: a mark right behind other text.
_GLUED = lazy_re(r"(?<=[^\s\[(:,=>])\[(?:rank|default)0{1,7}\](?=[: ])")


@dataclass(frozen=True)
class Prefix:
    """Places of what was found before a message; ``body`` is where the message starts, indentation included."""

    body: int
    owner: Span | None
    strength: int
    style: str
    time: Span | None
    time_kind: str
    host: Span | None
    source_file: str
    is_nccl: bool
    tasks: tuple[tuple[str, Span], ...] = ()
    """Numbers that launchers gave, outermost first: the form, and where the number (or the name with it) is."""


class _Reading:
    """What has been found so far in one line."""

    def __init__(self, start: int) -> None:
        self.body = start
        self.owner: Span | None = None
        self.strength = 0
        self.time: Span | None = None
        self.time_kind = ""
        self.host: Span | None = None
        self.source_file = ""
        self.is_nccl = False
        self.tasks: list[tuple[str, Span]] = []

    def take(self, match: re.Match[str], template: str) -> None:
        for name, text in match.groupdict().items():
            if text is None:
                continue
            span = match.span(name)
            worth = _STRENGTH.get(name, 0)
            if name == "bracket" and self.source_file.endswith("ProcessGroupNCCL.cpp"):
                worth = GROUP  # behind its own mark c10d prints the rank in the group
            # Of two marks of one worth the first one is the printer's, the second may be what it talks about.
            if worth > self.strength:
                self.owner, self.strength = span, worth
            if worth == TASK:
                self.tasks.append((name, span))
            if name in _TIME_KINDS and self.time is None:
                self.time, self.time_kind = span, _TIME_KINDS[name]
            elif name in _HOST_GROUPS:
                self.host = span
            elif name in ("file", "oldfile"):
                self.source_file = text
            elif name == "torchlog":
                self.source_file = text.replace(".", "/")
            elif name == "ncclpid":
                self.is_nccl = True
            elif name == "raypid" and (ranked := _RAY_RANK.search(template, match.start(), match.end())):
                self.owner, self.strength = ranked.span(1), STRONG
        self.body = match.end()


def parse_prefix(template: str, start: int, end: int, *, labelled: str) -> Prefix:
    """Read the prefix of the message in ``template[start:end]``.

    Args:
        template: the line with every digit replaced by "0".
        start: where the message starts.
        end: where it ends.
        labelled: what launcher labelled every line of the log, as :func:`looks_labelled` told.
    """
    found = _Reading(start)
    position = start
    fillers = 0
    for step in range(_MAX_TOKENS + _MAX_FILLERS):
        match = LABELS[labelled].match(template, position, end) if labelled and step == 0 and start == 0 else None
        match = match or match_token(template, position, end)
        if match is not None and match.end() > position:
            found.take(match, template)
            position = match.end()
            continue
        filler = FILLER.match(template, position, end) if fillers < _MAX_FILLERS else None
        if filler is None:
            break
        fillers += 1
        position = filler.end()
    if template.startswith("{", _skip_blanks(template, position)) and found.strength < STRONG:
        _read_json(found, template, position, end)
    style = template[start : found.body].strip() if found.strength else ""
    body = found.body
    if (at := _logged_traceback(template, body, end, timed=found.time is not None)) is not None:
        body = at
    if body > start and template[body : body + 1] == " " and body < end:
        body += 1
    return Prefix(
        body, found.owner, found.strength, style, found.time, found.time_kind, found.host, found.source_file,
        found.is_nccl, tuple(found.tasks),
    )  # fmt: skip


def _logged_traceback(template: str, position: int, end: int, *, timed: bool) -> int | None:
    """Where a traceback begins behind a logger's level and name, which only its first line has."""
    at = template.find(_TRACEBACK, position, min(end, position + _LOGGER_CHARS))
    if at <= position:
        return None
    before = template[position:at].rstrip()
    if before.startswith("{"):
        return at
    if before[-1:] not in (":", "-", "|", ">", "]") or before.endswith("traceback :"):
        return None
    return at if timed or _LEVEL_WORD.search(before) else None


def _skip_blanks(template: str, position: int) -> int:
    return position + 1 if template.startswith(" ", position) else position


def _read_json(found: _Reading, template: str, position: int, end: int) -> None:
    until = min(end, position + _JSON_CHARS)
    if found.time is None and (when := _JSON_TIME.search(template, position, until)):
        found.time_kind = when.lastgroup or "iso"
        found.time = when.span(found.time_kind)
    end = len(template) if is_escaped(template) else end
    if _JSON_LOG.search(template, position, until) and (said := _JSON_RANK.search(template, position, end)):
        found.owner, found.strength = said.span(1), STRONG


def split_glued(template: str) -> list[Span]:
    """Places of the messages in a line, in order; more than one when writers did not wait for each other's newline."""
    if is_escaped(template):
        return _escaped_lines(template)
    if "[rank" not in template and "[default" not in template:
        return [(0, len(template))]
    cuts = [match.start() for match in _GLUED.finditer(template)][:8]
    if cuts and _BRACKETS.match(template[: min(cuts[0], 1024)]) and not template.startswith(("[rank", "[default")):
        del cuts[0]
    edges = [0, *cuts, len(template)]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def is_escaped(template: str) -> bool:
    """Whether a line is a JSON object that holds a whole traceback, with its line ends escaped."""
    return template.startswith("{") and _ESCAPED in template


def _escaped_lines(template: str) -> list[Span]:
    """The object up to the traceback's first line, then every further line of it; what follows in the object is left
    out.
    """
    first = template.index(_ESCAPED)
    closing = _QUOTE.search(template, first)
    stop = closing.start() if closing is not None else len(template)
    cuts = [match.span() for match in _LINE_END.finditer(template, first, stop)][:_MAX_ESCAPED_LINES]
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), stop]
    return [(a, b) for a, b in zip(starts, ends, strict=True) if b > a]
