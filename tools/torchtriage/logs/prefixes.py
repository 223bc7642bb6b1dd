"""What stands before a log message: time stamps, rank marks, process ids, host names, levels.

Works on templates (every digit of the line is "0"), so what is found are places in the line, and one answer holds for
all lines of one shape. Sources of the forms: torchrun (``[rank3]:``, ``[default3]:``), c10d (``[Rank 3]``,
``[PG ID 0 PG GUID 0(default_pg) Rank 3]``), key-value and JSON loggers (``rank=3``),
``srun --label``, ``mpirun --tag-output``, Ray, ``kubectl logs --prefix``,
docker compose, Lightning and Accelerate, NCCL's debug lines, glog, syslog, ISO 8601.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

Span = tuple[int, int]

_TIMES = r"""
      \[?(?P<iso>0000[-/]00[-/]00[T_ ]00:00:00(?:[.,]0{1,9})?(?:Z|[+-]00:?00)?)\]?:?
    | \[?(?P<glog>[EWIFD]0{3,4}[ ]00:00:00[.,]0{1,9})(?:[ ]{1,3}0{1,10})?[ ](?P<file>[\w./+\-]{1,200}):0{1,6}\]:?
    | \[[EWIFD][ ](?P<oldfile>[\w./+\-]{1,200}):0{1,6}\]:?
    | (?P<syslog>[A-Z][a-z]{2}[ ][ 0]0[ ]00:00:00(?:\.0{1,9})?)(?:[ ](?P<syshost>[A-Za-z][\w.\-]{0,100})(?=[ ]))?
    | \[?(?P<epoch>0{10}(?:0{3}|\.0{1,9})?)\]?:?(?=\s)
    | \[?00:00:00(?:[.,]0{1,9})?\]?:?(?=\s)
    | \[[ ]{0,8}0{1,9}\.0{6}\](?=\s)
"""
_MARKS = r"""
      \[(?:global[ _])?(?:rank|Rank|RANK)[ :=_]{0,2}(?P<bracket>0{1,7})\]:?
    | \((?:rank|Rank|RANK)[ :=_]{0,2}(?P<paren>0{1,7})\):?
    | (?:rank|Rank|RANK)[ =_]{0,2}(?P<word>0{1,7})(?:[ ]?[:|\]>]|[ ]-(?=[ ]))
    | RANK=(?P<env>0{1,7})(?=\s)
    | (?:(?:global_)?rank=(?P<field>0{1,7}))(?=[\s,;]|$)
    | \[0{1,10},(?P<mpi>0{1,7})\]<std[a-z]{2,5}>:?
    | \[PG[ ][^\]]{1,160}?[ ]Rank[ ](?P<pg>0{1,7})\]
    | \[(?!GPU)[A-Za-z_]{2,24}(?P<local>0{1,5})\]:
    | \[?pod/(?P<pod>[A-Za-z0-9.\-]{1,200})-(?P<podrank>0{1,5})(?:[/ ][A-Za-z][\w.\-]{0,100})?(?:\]|(?=\s))
    | (?P<compose>[A-Za-z][A-Za-z0-9.\-_]{0,60})[-_](?P<composerank>0{1,5})[ ]{1,16}\|
    | \([A-Za-z_][\w.]{0,60}[ ](?:[^()]{0,80}[ ,])?pid=(?P<raypid>0{1,10})(?:,[ ]ip=(?P<rayip>[0-9a-fA-F.:]{2,64}))?
        [^()]{0,40}\)
    | (?P<ncclhost>[A-Za-z0-9][\w.\-]{0,100}):(?P<ncclpid>0{1,10}):0{1,10}[ ]\[[^\]]{0,20}\](?=[ ].{0,80}?NCCL[ ])
"""
_TOKEN = re.compile(rf"\s{{0,16}}(?:{_MARKS}|{_TIMES})", re.VERBOSE)
_SRUN = re.compile(r"\s{0,8}(?P<srun>0{1,6}):(?=\s|$)")
_FILLER = re.compile(
    r"\s{0,16}(?:\[?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?:?|[-|>:]|\[[A-Za-z_][\w./ :|\-]{0,60}\]"
    r"|\([A-Za-z_][\w./:\-]{0,40}\)|(?:time|ts|level|lvl|logger|host|node|pid)=(?:\"[^\"]{0,80}\"|[^\s\"]{1,80})"
    # the name of a logger, when a field with the rank is what follows it
    r"|[A-Za-z_][\w.\-]{0,60}(?=[ ](?:global_)?rank=0))(?=\s)"
)
# A line that is one JSON object says in a field of it who wrote it.
_JSON_RANK = re.compile(r"[\"'](?:global_)?rank[\"'][ ]?:[ ]?(0{1,7})[ ]?[,}]")
_RAY_RANK = re.compile(r"\brank[ =]?(0{1,7})\b")
_MAX_TOKENS = 8
# How much a mark is worth: a rank of the job beats a rank inside a node or a group, which beats a process id.
STRONG, WEAK, PROCESS = 3, 2, 1
_STRENGTH = {
    "bracket": STRONG, "paren": STRONG, "word": STRONG, "env": STRONG, "field": STRONG, "mpi": STRONG, "srun": STRONG,
    "pg": WEAK, "local": WEAK, "podrank": WEAK, "composerank": WEAK, "raypid": PROCESS, "ncclpid": PROCESS,
}  # fmt: skip
_TIME_GROUPS = ("iso", "glog", "syslog", "epoch")
_HOST_GROUPS = ("ncclhost", "rayip", "syshost", "pod")

# Brackets alone in front of a mark ("[12:30:01][INFO][rank0]") are its prefix, not another message.
_BRACKETS = re.compile(r"(?:\s{0,4}\[[^\[\]]{0,80}\]){1,8}\s{0,4}$")
# A second message glued into the line: a mark right behind other text.
_GLUED = re.compile(r"(?<=[^\s\[(:,=>])\[(?:rank|default)0{1,7}\](?=[: ])")


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


def parse_prefix(template: str, start: int, end: int, *, labelled: bool) -> Prefix:
    """Read the prefix of the message in ``template[start:end]``.

    Args:
        template: the line with every digit replaced by "0".
        start: where the message starts.
        end: where it ends.
        labelled: the log's lines start with a task number, as ``srun --label`` prints it.
    """
    position = body = start
    owner: Span | None = None
    strength = 0
    time: Span | None = None
    time_kind = ""
    host: Span | None = None
    source_file = ""
    is_nccl = False
    fillers = 0
    for step in range(_MAX_TOKENS):
        match = _SRUN.match(template, position, end) if labelled and step == 0 and start == 0 else None
        match = match or _TOKEN.match(template, position, end)
        if match is None:
            filler = _FILLER.match(template, position, end) if fillers < 3 else None
            if filler is None:
                break
            fillers += 1
            position = filler.end()
            continue
        found = {name: match.span(name) for name, text in match.groupdict().items() if text is not None}
        for name, span in found.items():
            worth = _STRENGTH.get(name, 0)
            # Of two marks of one worth the first one is the printer's, the second may be what it talks about.
            if worth > strength:
                owner, strength = span, worth
            if name in _TIME_GROUPS and time is None:
                time, time_kind = span, name
            if name in _HOST_GROUPS:
                host = span
        if "raypid" in found and (ranked := _RAY_RANK.search(template, match.start(), match.end())):
            owner, strength = ranked.span(1), STRONG
        source_file = match.groupdict().get("file") or match.groupdict().get("oldfile") or source_file
        is_nccl = is_nccl or "ncclpid" in found
        position = body = match.end()
    if not strength and template.startswith("{", position) and (said := _JSON_RANK.search(template, position, end)):
        owner, strength = said.span(1), STRONG
    style = template[start:body].strip() if strength else ""
    if body > start and template[body : body + 1] == " " and body < end:
        body += 1
    return Prefix(body, owner, strength, style, time, time_kind, host, source_file, is_nccl)


def split_glued(template: str) -> list[Span]:
    """Places of the messages in a line, in order; more than one when writers did not wait for each other's newline."""
    if "[rank" not in template and "[default" not in template:
        return [(0, len(template))]
    cuts = [match.start() for match in _GLUED.finditer(template)][:8]
    if cuts and _BRACKETS.match(template[: min(cuts[0], 1024)]) and not template.startswith(("[rank", "[default")):
        del cuts[0]
    edges = [0, *cuts, len(template)]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def looks_labelled(head: list[str]) -> bool:
    """Say whether lines start with a task number (``3: text``), as ``srun --label`` prints them.

    Numbers that only ever grow are line numbers, not tasks.
    """
    filled = [line for line in head if line.strip()]
    found = [match for line in filled if (match := re.match(r"\s{0,8}(\d{1,6}):(?:\s|$)", line))]
    if len(found) < 3 or len(found) * 10 < len(filled) * 8:
        return False
    return len({match[1] for match in found}) < len(found)
