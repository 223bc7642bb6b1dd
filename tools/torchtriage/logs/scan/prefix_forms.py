"""The forms of what stands before a log message, as expressions over templates (every digit of the line is "0").

Sources: torchrun (``[rank3]:``, ``[default3]:``), c10d (``[Rank 3]``, ``[PG ID 0 PG GUID 0(default_pg) Rank 3]``),
Slurm (``srun --label``), Open MPI 4 and 5 (``--tag-output``, ``--output tag-detailed``), Hydra (``-prepend-rank``),
pdsh and the DeepSpeed launcher, Ray and vLLM (``(Worker pid=12)``), SkyPilot, ``kubectl logs --prefix``, stern, CRI log
files, docker compose, journald and syslog, dmesg, glog, klog and absl, loguru, Lightning, NeMo, NCCL's debug lines,
ISO 8601.
"""

from __future__ import annotations

import re

from torchtriage.lazy_re import lazy_re

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SUCCESS|[A-Z][a-z]{3,7}(?=[ ]?\|))"
_CLOCK = r"00:00:00(?:[.,]0{1,9})?"
_ISO = rf"0000[-/]00[-/]00[T_ ]{_CLOCK}(?:Z|[ ]?[+-]00:?00|[+-]00|[ ](?:UTC|GMT))?"
_EPOCH = r"0{10}(?:0{3}|0{6}|0{9}|\.0{1,9})?"
_HOST = r"[A-Za-z0-9][\w.\-]{0,100}"
# Of syslog and journald: the program and its process id, or the kernel.
_UNIT = r"(?:[\w.@/\-]{1,60}\[0{1,10}\]|kernel):(?=[ ]|$)"
_RANK = r"(?:rank|Rank|RANK)"
_OF_SIZE = r"(?:/0{1,7})?"
# Ranks of another kind than the job's, and ranks of matrices.
_OTHER_RANK = (
    r"(?i:local|node|group|tp|pp|dp|cp|ep|sp|etp|vpp|cluster|lora|low|full|matrix|tensor|pipeline|data|expert|model|"
    r"context|sequence|world|role|machine|the|with|on|from|of|adapter)"
)

# Which characters a form can begin with ("a" is any letter, "0" any digit), and the form. The first that fits counts.
_FORMS: tuple[tuple[str, str], ...] = (
    ("[", rf"\[(?:global[ _\-]?)?{_RANK}[ :=_\-]{{0,2}}(?P<bracket>0{{1,7}}){_OF_SIZE}\]:?"),
    (
        "[",
        rf"\[(?!PG[ ])(?:[^\[\]]{{1,60}}?[,|/:;@][ ]?|(?!{_OTHER_RANK}[ ])[\w.\-]{{1,60}}[ ])(?:global[ _])?"
        rf"{_RANK}[ :=_\-]{{0,2}}(?P<inner>0{{1,7}}){_OF_SIZE}(?:[ ,|;/][^\[\]]{{0,40}})?\]:?",
    ),
    ("(", rf"\({_RANK}[ :=_]{{0,2}}(?P<paren>0{{1,7}}){_OF_SIZE}\):?"),
    (
        "a",
        rf"{_RANK}[ =_]{{0,2}}(?P<word>0{{1,7}}){_OF_SIZE}"
        r"(?:[ ]?[:|\]>]|[ ]-(?=[ ])|(?=,?[ ](?:(?:global[_ ])?step|iter|iteration|Step|Iter|Iteration)[ :=]{1,3}0))",
    ),
    ("a", r"RANK=(?P<env>0{1,7})(?=\s)"),
    ("a", r"(?:(?:global_)?rank=(?P<field>0{1,7}))(?=[\s,;]|$)"),
    ("a", r"(?:(?:global_)?rank:[ ](?P<kvcolon>0{1,7}))(?=[ ]?[,|])"),
    ("[", r"\[PG[ ][^\]]{0,140}?\(default_pg\)[ ]Rank[ ](?P<pg>0{1,7})\]"),
    ("[", r"\[PG[ ][^\]]{1,160}?[ ]Rank[ ]0{1,7}\]"),
    ("a", r"(?P<cri>std(?:out|err)[ ][FP](?=[ ]))"),
    (
        "[",
        r"\[(?:[\w.\-]{1,100}@)?0{1,10},(?P<mpi>0{1,7})\](?:\[[\w.\-]{1,100}:0{1,10}\])?<std[a-z]{2,5}>:?",
    ),
    ("[", r"\[(?!GPU)(?P<local>[A-Za-z_]{2,24}0{1,5})\]:"),
    ("(", r"\((?:head|worker0{1,5}),[ ]rank=(?P<sky>0{1,5}),[ ]pid=0{1,10}(?:,[ ]ip=[0-9a-fA-F.:]{2,64})?\)"),
    (
        "[a",
        r"\[?pod/(?P<pod>[A-Za-z0-9.\-]{1,200}-0{1,5})(?:/[A-Za-z][\w.\-]{0,100}|[ ][A-Za-z][\w.\-]{0,100}(?=\]))?"
        r"(?:\]|(?=\s))",
    ),
    ("[", r"\[pod/(?P<otherpod>[A-Za-z0-9.\-]{1,200})/[\w.\-]{1,100}\]"),
    ("a", r"(?P<compose>[A-Za-z][A-Za-z0-9.\-_]{0,60}[-_]0{1,5})[ ]{1,16}\|"),
    (
        "(",
        r"\([A-Za-z_][\w.:+]{0,80}(?:\([^()]{0,80}\))?,?[ ](?:[^()]{0,80}[ ,])?pid=(?P<raypid>0{1,10})"
        r"(?:,[ ]ip=(?P<rayip>[0-9a-fA-F.:]{2,64}))?[^()]{0,40}\)",
    ),
    ("a0", rf"(?P<ncclhost>{_HOST}):(?P<ncclpid>0{{1,10}}):0{{1,10}}[ ]\[[^\]]{{0,20}}\](?=[ ].{{0,80}}?NCCL[ ])"),
    (
        "[",
        r"\[(?P<mpihost>[A-Za-z][\w.\-]{0,100}):(?P<mpipid>0{1,10})\]"
        r"(?=[ ](?:\*\*\*|Signal|Associated|Failing|\[[ ]?0{1,3}\]))",
    ),
    ("[0", rf"\[?(?P<iso>{_ISO})\]?:?(?:[ ](?P<isohost>{_HOST})[ ]{_UNIT})?"),
    (
        "[a",
        r"\[?(?P<glog>[EWIFD]0{3,4}[ ]00:00:00[.,]0{1,9})(?:[ ]{1,8}0{1,20})?"
        r"[ ](?P<file>[\w./+\-<>]{1,200}):0{1,6}\]:?",
    ),
    ("[", r"\[[EWIFD][ ](?P<oldfile>[\w./+\-]{1,200}):0{1,6}\]:?"),
    (
        "a",
        rf"(?P<syslog>[A-Z][a-z]{{2}}[ ][ 0]0[ ]00:00:00(?:\.0{{1,9}})?)(?:[ ](?P<syshost>{_HOST})(?=[ ]))?"
        rf"(?:[ ]{_UNIT})?",
    ),
    (
        "[a",
        r"\[?(?P<ctime>[A-Z][a-z]{2}[ ][A-Z][a-z]{2}[ ][ 0]0[ ]00:00:00(?:\.0{1,9})?[ ]0000)\]?:?(?=[\s\[<]|$)",
    ),
    ("[0", rf"\[?(?P<mdy>00/00/0000,?[ ]{_CLOCK})\]?:?"),
    ("[0", rf"\[?(?P<monthday>00[-/]00[ ]{_CLOCK})(?:[ ][\w.]{{1,80}}\])?\]?:?(?=\s)"),
    ("[0", rf"\[?(?P<epoch>{_EPOCH})\]?:?(?=\s)"),
    ("[0", rf"\[?(?P<clock>{_CLOCK})\]?:?(?=\s|\[|\|)"),
    ("[", r"\[[ ]{0,8}0{1,9}\.0{6}\](?=\s)"),
    ("a", rf"(?:time|ts|timestamp|asctime|t)=\"?(?:(?P<kviso>{_ISO})|(?P<kvepoch>{_EPOCH}))\"?(?=\s)"),
    ("[", rf"\[NeMo[ ][A-Z][ ](?P<nemoiso>{_ISO})(?:[ ][^\]]{{0,80}}?(?:rank:(?P<nemorank>0{{1,7}}))?)?\]"),
    ("[a", r"(?:[A-Z]{4,8}:|\[[A-Z]{4,8}\][ ])?(?P<torchlog>torch\.distributed(?:\.[a-z_0]{1,40}){1,8}):"),
)


def _tokens(first: str) -> re.Pattern[str]:
    return lazy_re("|".join(form for firsts, form in _FORMS if first in firsts), re.VERBOSE)


_TOKENS = {first: _tokens(first) for first in "[(0a"}
_BLANKS = lazy_re(r"\s{0,16}")


def match_token(template: str, position: int, end: int) -> re.Match[str] | None:
    """The mark or time at this position of a template, behind blanks."""
    at = _BLANKS.match(template, position, end)
    start = at.end() if at is not None else position
    if start >= end:
        return None
    first = template[start]
    tokens = _TOKENS.get(first) or (_TOKENS["a"] if first.isalpha() else None)
    return tokens.match(template, start, end) if tokens is not None else None


# Between a time and a mark, or in front of them, these say nothing of who prints.
FILLER = lazy_re(
    rf"\s{{0,16}}(?:\[?{_LEVEL}\]?:?|[-|>:›]|>>|\[[A-Za-z_][\w./ :|\-<>]{{0,60}}\]"
    r"|\([A-Za-z_][\w./:\-]{0,40}(?:, ip=[0-9a-fA-F.:]{2,64})?\)"
    r"|(?:time|ts|level|lvl|logger|host|node|pid|caller)=(?:\"[^\"]{0,80}\"|[^\s\"]{1,80})"
    # a unit of journald or syslog; loguru's and Python's places of a call
    rf"|{_UNIT}|[A-Za-z_][\w.\-]{{0,60}}(?=[ ]-[ ])"
    r"|[\w.<>]{1,80}:[\w<>]{1,80}:0{1,6}(?=[ ]-)|[\w.\-]{1,60}:0{1,6}(?=[ ]-)"
    # the name of a logger, when a field with the rank is what follows it
    rf"|(?!{_OTHER_RANK}[ ])[A-Za-z_][\w.\-]{{0,60}}(?=[ ](?:global_)?rank=0))(?=\s|\[)"
)

LABELS = {
    # srun --label; more than one digit is padded
    "srun": lazy_re(r"\s{0,8}(?P<srun>0{1,6}):(?=\s|$)"),
    # mpiexec of MPICH and Intel MPI with -prepend-rank or -l
    "hydra": lazy_re(r"\[(?P<hydra>0{1,6})\](?=\s|$)"),
    # pdsh, and what the DeepSpeed launcher passes on: the host
    "pdsh": lazy_re(r"(?P<pdsh>[A-Za-z0-9][\w.\-]{0,100}):(?=\s|$)"),
    # stern: pod and container
    "stern": lazy_re(r"(?P<stern>[a-z0-9][a-z0-9.\-]{1,200}-0{1,5})[ ][a-z0-9][a-z0-9\-]{0,60}(?=\s|$)"),
}
# The same on lines as they are; the first group is the label.
_LABEL_HEADS = {
    "srun": lazy_re(r"\s{0,8}(\d{1,6}):(?:\s|$)"),
    "hydra": lazy_re(r"\[(\d{1,6})\](?:\s|$)"),
    "stern": lazy_re(r"([a-z0-9][a-z0-9.\-]{1,200}-\d{1,5} [a-z0-9][a-z0-9\-]{0,60})(?:\s|$)"),
    "pdsh": lazy_re(r"([A-Za-z0-9](?=[\w.\-]{0,99}[\d.\-])[\w.\-]{0,100}):(?:\s|$)"),
}


HEAD_LINES = 200
"""How many of a log's first lines :func:`looks_labelled` is asked about."""


def looks_labelled(head: list[str]) -> str:
    """Which launcher labels every line, by a log's first ones: "srun", "hydra", "pdsh", "stern", or "" for none.

    Numbers that only ever grow are line numbers, not tasks, so a label must come again.
    """
    filled = [line for line in head if line.strip()]
    for kind, pattern in _LABEL_HEADS.items():
        found = [match[1] for line in filled if (match := pattern.match(line[:300]))]
        if len(found) < 3 or len(found) * 10 < len(filled) * 8:
            continue
        distinct = len(set(found))
        # Words in front of a colon are hosts only where few of them label many lines.
        if distinct < len(found) and (kind in ("srun", "hydra") or distinct * 3 <= len(found)):
            return kind
    return ""
