"""Decide which logs are too large to be read line by line, and have workers thin them, in parts and in parallel."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.isolate import Job
from torchtriage.artefacts.streams import open_stream
from torchtriage.artefacts.text import file_chunks, is_plain, read_lines
from torchtriage.errors import UnreadableError
from torchtriage.logs.records import Thinned
from torchtriage.logs.scan.plans import CORE, HINTS
from torchtriage.logs.scan.prefixes import HEAD_LINES, looks_labelled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Artefact
    from torchtriage.artefacts.isolate import Outcome
    from torchtriage.logs.records import PatternSet

# Below this in all, reading every line takes about as long as starting the workers.
THIN_FROM_BYTES = 4 << 20
PACKED_RATIO = 10  # about how much larger the text of a compressed log is
MIN_PART_BYTES = 4 << 20
# About as many lines of a job as are then read in a second or two.
BUDGET_LINES = 24_000
MIN_BUDGET_LINES = 4_000
_MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True)
class _Part:
    artefact: Artefact
    start: int
    end: int | None


def thinning_jobs(logs: Sequence[Artefact], patterns: PatternSet) -> list[Job]:
    """The worker jobs that thin these logs; empty when they are small enough to be read as they are."""
    sizes = {log.name: log.size_bytes * (PACKED_RATIO if log.compression else 1) for log in logs}
    total = sum(sizes.values())
    if total < THIN_FROM_BYTES:
        return []
    n_workers = max(1, min(os.cpu_count() or 1, 16))
    parts = [part for log in logs for part in _parts(log, max(MIN_PART_BYTES, total // n_workers))]
    args: dict[str, Any] = {
        "telling": sorted({p.text for p in patterns.patterns} | {text for text, _ in CORE}),
        "hints": list(HINTS),
        "budget": max(MIN_BUDGET_LINES, BUDGET_LINES // len(parts)),
    }
    labelled = {log.name: _is_labelled(log) for log in logs}
    return [
        Job(
            "sift",
            part.artefact,
            {**args, "labelled": labelled[part.artefact.name], "start": part.start, "end": part.end},
            part_bytes=None if part.end is None else part.end - part.start,
        )
        for part in parts
    ]


def thinned_logs(jobs: Sequence[Job], outcomes: Sequence[Outcome], losses: list[str]) -> dict[str, Thinned]:
    """What the workers kept, by the log's name; ``losses`` gets what could not be read."""
    found: dict[str, Thinned] = {}
    pairs = zip(jobs, outcomes, strict=True)
    for name, group in itertools.groupby(pairs, key=lambda pair: pair[0].artefact.name):
        kept: list[tuple[int, int, str]] = []
        n_lines = 0
        labelled = ""
        for job, outcome in group:
            labelled = job.args["labelled"]
            if outcome.error is not None:
                losses.append(f"{name}: a part of it was not read: {outcome.error}")
                n_lines += _count_lines(job)
                continue
            result = outcome.result
            losses.extend(f"{name}: {reason}" for reason in result["losses"])
            kept.extend((n_lines + number, weight, text) for number, weight, text in result["kept"])
            n_lines += result["n_lines"]
        found[name] = Thinned(kept, n_lines, labelled)
    return found


def _parts(log: Artefact, part_bytes: int) -> list[_Part]:
    """Cut a log at line ends; one that is compressed or in another encoding is one part."""
    n_parts = math.ceil(log.size_bytes / part_bytes) if log.compression is None else 1
    try:
        if log.compression is not None or not is_plain(log.path):
            return [_Part(log, 0, None)]
        starts = [_line_start(log.path, log.size_bytes * k // n_parts) for k in range(1, n_parts)]
        cuts = [0, *(start for start in starts if start is not None), log.size_bytes]
    except (OSError, UnreadableError):
        return [_Part(log, 0, None)]  # the worker says why
    return [_Part(log, a, b) for a, b in itertools.pairwise(sorted(set(cuts)))]


def _line_start(path: Path, position: int) -> int | None:
    """The start of the first line behind ``position``; None when that is too far away."""
    with open_stream(path, None) as stream:
        stream.seek(position)
        line = stream.readline(_MAX_LINE_BYTES)
        return position + len(line) if line.endswith(b"\n") else None


def _count_lines(job: Job) -> int:
    """How many lines a part has that was not read, so that the numbers of the next part's lines are right."""
    start, end = job.args["start"], job.args["end"]
    try:
        chunks = file_chunks(job.artefact.path, job.artefact.compression, [], start=start, end=end)
        return sum(chunk.count(b"\n") for chunk in chunks)
    except (OSError, UnreadableError):
        return 0


def _is_labelled(log: Artefact) -> str:
    try:
        return looks_labelled(list(islice(read_lines(log), HEAD_LINES)))
    except UnreadableError:
        return ""
