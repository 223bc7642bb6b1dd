"""Answers of nvidia-smi about NVLinks, as it prints them, with values that the tests choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.nvlink.gpus import gpus_of
from torchtriage.nvlink.judge import Judged, judge, status_of
from torchtriage.nvlink.read import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

H200 = "NVIDIA H200"


def header(index: int, name: str = H200) -> str:
    """The line that names a GPU."""
    return f"GPU {index}: {name} (UUID: GPU-{index:08x}-1111-2222-3333-444455556666)"


def states(index: int, name: str = H200, n_links: int = 18, speed: str = "26.562 GB/s", **other: str) -> list[str]:
    """``nvlink -s`` of one GPU; ``link3="<inactive>"`` sets a link, "" leaves it out."""
    lines = [header(index, name)]
    for link in range(n_links):
        state = other.get(f"link{link}", speed)
        lines += [f"\t Link {link}: {state}"] if state else []
    return lines


def counters(
    index: int, name: str = H200, n_links: int = 18, set_to: Mapping[tuple[int, str], object] | None = None,
    labels: Iterable[str] = ("Replay Errors", "Recovery Errors", "CRC Errors"),
) -> list[str]:  # fmt: skip
    """``nvlink -e`` of one GPU, zero unless told."""
    told = set_to or {}
    lines = [header(index, name)]
    for link in range(n_links):
        lines += [f"\t Link {link}: {label}: {told.get((link, label), 0)}" for label in labels]
        lines.append("")
    return lines


def judged(*files: Iterable[str], baseline: Iterable[str] = ()) -> Judged:
    """The judgement over files of one folder, in that order."""
    answers = [(f"answer-{number}.txt", read_lines(lines)) for number, lines in enumerate(files)]
    earlier = [("before.txt", read_lines(baseline))] if baseline else []
    return judge(gpus_of(answers, earlier))


def statuses(*files: Iterable[str]) -> list[str]:
    """The status of each GPU."""
    seen = gpus_of([(f"answer-{number}.txt", read_lines(lines)) for number, lines in enumerate(files)])
    found = judge(seen)
    return [status_of(gpu, found, seen) for gpu in found.gpus]


def faults(*files: Iterable[str], baseline: Iterable[str] = ()) -> list[tuple[str, str, tuple[int, ...]]]:
    """Kind, level and links of each fault."""
    return [(f.kind, f.level, f.links) for f in judged(*files, baseline=baseline).faults]
