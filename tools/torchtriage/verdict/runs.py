"""Telling several runs apart when a folder above them was given: evidence of different runs must never be mixed."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from torchtriage.artefacts.identity import identity_of
from torchtriage.artefacts.text import read_lines
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from torchtriage.artefacts.inputs import Artefact, Inputs

MAX_LINES = 2000
MAX_FOLDERS = 64


def several_runs(inputs: Inputs) -> list[str]:
    """The folders that hold the log of a whole run each; empty when all that was given can be one run.

    Two folders are two runs when one and the same rank, told by the lines themselves, steps in the logs of both.
    Logs of one rank each, and logs of nodes with other ranks, are parts of one run. Lines that name local ranks tell
    nothing.
    """
    by_folder: dict[str, list[Artefact]] = {}
    for artefact in inputs.of("log"):
        folder, _, _ = artefact.name.rpartition("/")
        by_folder.setdefault(folder, []).append(artefact)
    if len(by_folder) < 2:
        return []
    ranks = {folder: _ranks_that_step(logs) for folder, logs in islice(by_folder.items(), MAX_FOLDERS)}
    folders = [folder for folder, found in ranks.items() if found]
    clashing = [a for a in folders if any(a != b and ranks[a] & ranks[b] for b in folders)]
    return sorted(clashing)


def _ranks_that_step(logs: list[Artefact]) -> set[int]:
    from torchtriage.logs.metrics.progress import stepping
    from torchtriage.logs.scan.read import LogSource, PatternSet, scan

    found: set[int] = set()
    for log in logs:
        if identity_of(log.name.rpartition("/")[2]).rank is not None:
            continue
        try:
            lines = list(islice(read_lines(log), MAX_LINES))
        except UnreadableError:
            continue
        if not any("[default" in line for line in islice(lines, 50)):
            found.update(stepping(scan([LogSource(log.name, chain(lines))], PatternSet([]))))
    return found
