"""How to read a line, worked out once per line template (the line with every digit replaced by "0").

Logs repeat a few shapes millions of times. Where the prefix ends, where the numbers are and which texts can occur
depends on the shape alone, so the reader looks that up and only slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.blocks import CRASH_TEXTS
from torchtriage.logs.ends.texts import LAUNCHER_TEXTS
from torchtriage.logs.metrics.plans import HINTS as METRIC_HINTS
from torchtriage.logs.metrics.plans import MetricPlan, plan_metrics
from torchtriage.logs.scan.literals import LiteralIndex
from torchtriage.logs.scan.prefixes import Span, is_escaped, parse_prefix, split_glued
from torchtriage.logs.scan.prose import is_prose

if TYPE_CHECKING:
    from torchtriage.logs.records import PatternSet

# Texts of which the reader itself knows the meaning: (literal, kind of record).
CORE: tuple[tuple[str, str], ...] = (
    # ProcessGroupNCCL watchdog: torch 1.13 .. 2.14; the last one is the nccl2 backend's
    ("Watchdog caught collective operation timeout", "watchdog"),
    ("timed out in call to wait()", "wait_timeout"),
    ("timed out in blocking wait", "wait_timeout"),
    ("timeout watchdog detected operation timeout", "watchdog_nccl2"),
    ("detected by watchdog at work", "progress"),
    ("Timeout at NCCL work: ", "progress"),
    ("Last enqueued NCCL work: ", "progress"),
    ("last enqueued NCCL work: ", "progress"),
    ("finish collective #", "desync"),
    ("join collective #", "desync"),
    ("They never joined any collectives", "desync"),
    ("are the lagging ranks that caused this timeout", "desync"),
    ("CollectiveFingerPrint(", "fingerprint"),
    ("Observed flight recorder dump signal from another rank", "observed_dump"),
    ("detecting the dump signal through tcpstore", "observed_dump"),
    ("Received a global dump signal from rank", "observed_dump"),
    ("Stack trace of the failed collective", "stack_head"),
    ("#0 ", "stack_frame"),
    ("#00 ", "stack_frame"),
    ("watchdog got stuck for", "heartbeat"),
    ("monitoring thread detects no heartbeat", "heartbeat"),
    ("Heartbeat monitor timed out!", "heartbeat"),
    ("detected no heartbeat of its watchdog", "heartbeat"),
    ('Failed to check the "should dump" flag on TCPStore', "store_gone"),
    ("TCPStore check for dump key", "store_gone"),
    # other waits, and what torch's own tools say of ranks
    ("ms for recv operation", "gloo_wait"),
    ("ms for send operation", "gloo_wait"),
    ("failed to pass monitoredBarrier in", "barrier"),
    ("returned 0, likely a timeout", "store_wait"),
    ("Timeout waiting for key: ", "store_wait"),
    ("wait timeout after ", "store_wait"),
    ("seconds waiting for clients", "init_wait"),
    ("is setting up NCCL communicator", "init_wait"),
    ("Not all ranks joining", "flight_tool"),
    ("missing ranks: {", "flight_tool"),
    ("Culprit rank ", "flight_tool"),
    # who is who
    ("ncclCommInitRank", "nccl_rank"),
    ("nranks", "nccl_rank"),
    ("nRanks", "nccl_rank"),
    ("WORLD_SIZE", "world_size"),
    ("world_size", "world_size"),
    ("world size", "world_size"),
    # ends of processes
    *LAUNCHER_TEXTS,
    *((text, "crash") for text in CRASH_TEXTS),
    # allocators' messages, in whatever line they are quoted
    ("ut of memory. Tried to allocate ", "out_of_memory"),
    ("ut of memory. Allocation was ", "out_of_memory"),
    ("MPS backend out of memory (", "out_of_memory"),
    # exceptions that were caught, told in one line
    ("skip", "handled"),
    ("Skip", "handled"),
    ("SKIP", "handled"),
    ("caught", "handled"),
    ("Caught", "handled"),
    ("retry", "handled"),
    ("Retry", "handled"),
    ("ignoring", "handled"),
    ("Ignoring", "handled"),
    ("continuing", "handled"),
)  # fmt: skip
_CORE_INDEX = LiteralIndex([literal for literal, _ in CORE])

# What libraries print for themselves: never a rank's own word about its progress.
_LIBRARY = lazy_re(
    r"NCCL (?:INFO|WARN)|(?:User|Future|Deprecation|Runtime|Resource)Warning|^\s*warnings?\.warn|_warn_once|"
    r"^frame #|^#0+ |^\s*what\(\):|^terminate called|^Exception raised from|^\*{3,}|^[=\-_*~]{4,}|"
    r"huggingface/tokenizers|^wandb: "
)
_TRACEBACK = lazy_re(r"^\s{0,8}(?:traceback : |[+|] )?(?:Exception Group )?Traceback \(most recent call last\):")
_BARE_EXCEPTION = lazy_re(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)(?:\(\w{1,60}\))?(?::\s|$)"
)
# The name of a logger and a level may stand before what is said.
_LOGGER = r"(?:(?:\[?(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR)\]?:?|[\w.]{1,60}:(?:\d{1,6}:?)?|[-|>])\s{1,3}){0,5}"
FINISH = lazy_re(
    rf"(?i)^\s{{0,8}}{_LOGGER}\W{{0,4}}(?:(?:\w+ ){{0,2}}(?:finished|all done|done training|completed|"
    r"training (?:is )?(?:complete|completed|done|finished)|done)\b(?!.{0,40}(?:step|iter|batch|epoch 0))|"
    # Trainer (its last line), Lightning, Megatron
    r"['\"]?train_runtime['\"]?: |`?Trainer\.fit`? stopped: .{0,40}reached|\[?exiting program (?:at|after) )"
)
_END_OF_LOOP = lazy_re(
    r"(?i)\b(?:epoch \d* ?(?:end|ended|done|finished|complete|completed)|end of (?:epoch|training|data)|finished|done|"
    r"exhausted|sav(?:e|ing) (?:\w+ ){0,3}(?:checkpoint|model|state|weights)|saving|evaluat(?:e|ing|ion)|"
    r"validat(?:ing|ion)|StopIteration|out of data|no more (?:data|batches|samples)|"
    r"training (?:complete|completed)|checkpointing)\b"
)


@dataclass(frozen=True)
class Piece:
    """How to read one message of a line: places in it, and what it can be."""

    start: int
    end: int
    body: int
    owner: Span | None
    strength: int
    tasks: tuple[tuple[str, Span], ...]
    style: str
    time: Span | None
    time_kind: str
    host: Span | None
    own: bool
    finish: bool
    end_of_loop: bool
    traceback: bool
    bare_exception: bool
    from_launcher: bool
    metrics: MetricPlan | None
    cores: tuple[str, ...]
    patterns: tuple[int, ...]

    @property
    def dull(self) -> bool:
        """Nothing of the message is of use beyond its place."""
        return not (self.traceback or self.bare_exception or self.metrics or self.cores or self.patterns)


# Without one of these words the expressions above cannot match: most lines are spared them.
_FINISH_WORDS = frozenset({"finished", "done", "completed", "complete", "runtime", "reached", "exiting"})
_END_WORDS = frozenset({"finished", "done", "completed", "complete"}) | {
    "end", "ended", "exhausted", "save", "saving", "evaluate", "evaluation", "evaluating", "validating", "validation",
    "stopiteration", "out", "no", "checkpointing",
}  # fmt: skip
_LIBRARY_HINTS = (
    "NCCL ", "Warning", "warn", "frame #", "#", "what():", "terminate ", "Exception raised", "***", "===", "---", "___",
    "~~~", "tokenizers", "wandb: ",
)  # fmt: skip
# A line that holds none of these, nor a text of CORE or of the playbook, can only tell who printed it. Of a log that is
# thinned, lines with them are kept in greater number.
HINTS = tuple(
    dict.fromkeys(
        form
        for word in (*METRIC_HINTS, *sorted(_END_WORDS), "error", "exception", "interrupt", "traceback", "frame #")
        for form in (word, word.capitalize(), word.upper())
        if len(word) > 2
    )
)
_WORD = lazy_re(r"[a-z]+")
_MAX_PLANNED_CHARS = 4096


def plan_line(template: str, patterns: PatternSet, *, labelled: str) -> tuple[Piece, ...]:
    """Plan the reading of all lines that have this template. Blank messages are left out."""
    head = template if len(template) <= _MAX_PLANNED_CHARS or is_escaped(template) else template[:_MAX_PLANNED_CHARS]
    spans = split_glued(head)
    pieces: list[Piece] = []
    for index, (start, end) in enumerate(spans):
        last = index == len(spans) - 1 and end == len(head)
        # Only the prefix and the numbers are looked for in the head of a very long line; texts in all of it.
        whole = template[start:] if last else template[start:end]
        if not whole.strip():
            continue
        pieces.append(_plan_piece(head, start, end, whole, len(template) if last else end, patterns, labelled))
    return tuple(pieces)


def _plan_piece(
    head: str, start: int, head_end: int, whole: str, end: int, patterns: PatternSet, labelled: str
) -> Piece:
    prefix = parse_prefix(head, start, head_end, labelled=labelled)
    body = head[prefix.body : head_end]
    from_cpp = prefix.source_file.endswith((".cpp", ".hpp", ".cc", ".cu", ".h"))
    from_launcher = "torch/distributed/" in prefix.source_file or "[launch.py:" in whole
    library = prefix.is_nccl or from_cpp or from_launcher or _is_library(body)
    words = frozenset[str]() if library else frozenset(_WORD.findall(body[:200].lower()))
    indented = body[:1] in (" ", "\t")
    # A person's sentence about the job shows nothing, whatever texts it holds.
    prose = not library and is_prose(body)
    words = frozenset[str]() if prose else words
    cores = () if prose else tuple(dict.fromkeys(CORE[i][1] for i in _CORE_INDEX.candidates(whole)))
    return Piece(
        start=start,
        end=end,
        body=prefix.body,
        owner=prefix.owner,
        strength=prefix.strength,
        tasks=prefix.tasks,
        style=prefix.style,
        time=prefix.time,
        time_kind=prefix.time_kind,
        host=prefix.host,
        own=not library and not indented and not prose,
        finish=not words.isdisjoint(_FINISH_WORDS) and FINISH.search(body[:200]) is not None,
        end_of_loop=not words.isdisjoint(_END_WORDS) and _END_OF_LOOP.search(body[:200]) is not None,
        traceback=_TRACEBACK.match(body) is not None,
        bare_exception=not prose and _BARE_EXCEPTION.match(body) is not None,
        from_launcher=from_launcher,
        metrics=None if library or prose else plan_metrics(head, prefix.body, min(head_end, prefix.body + 2048)),
        cores=cores,
        patterns=() if prose else patterns.index.candidates(whole),
    )


def _is_library(body: str) -> bool:
    if not any(hint in body for hint in _LIBRARY_HINTS):
        return not body.strip()
    return _LIBRARY.search(body) is not None
