"""What a collection lacks, in sentences: first what weighs most, and once what is the same for many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.environment import SCHEMES, number
from torchtriage.bundle.files import says_full
from torchtriage.bundle.job_words import job_option, output_option
from torchtriage.wording import rank_words, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.bundle.manifest import Item
    from torchtriage.bundle.processes import JobProcess

# Without what these probes give nobody can judge; that a node has no GPU or no RAS is no failure of the collection.
NEEDED = frozenset({"stack_dump"})
_SHOWN_PIDS = 8
_MAX_CHARS = 400


def is_lacking(failed: Iterable[Item]) -> bool:
    """Whether a collection with these failures is only a part of one."""
    return any(item.kind in NEEDED or says_full(item.error or "") for item in failed)


def gaps_of(
    failed: Sequence[Item],
    processes: Sequence[JobProcess],
    everything: Sequence[JobProcess],
    *,
    world_size: int | None,
    interrupted: bool,
    stopped_by: str | None,
) -> list[str]:
    """All that is missing: why it ended early, stacks, ranks, then the rest.

    Args:
        failed: items that are not ok.
        processes: those that were looked at, of one job.
        everything: all of the node's jobs.
        world_size: of the job, if that is known.
        interrupted: whether it was ended before its time.
        stopped_by: by which signal.
    """
    gaps: list[str] = []
    if interrupted:
        by = f" by {stopped_by}" if stopped_by is not None else ""
        gaps.append(f"interrupted{by}: what was taken until then is in the bundle")
    n_lost = sum(says_full(item.error or "") for item in failed)
    if n_lost:
        gaps.append(
            f"the disk is full: {n_lost} part{'s' if n_lost > 1 else ''} of the bundle could not be kept. Make room, "
            f"or collect again to another disk with {output_option()}"
        )
    gaps += _merged(item for item in failed if item.kind in NEEDED)
    gaps += _other_ranks(processes, everything, world_size)
    gaps += _odd_ranks(processes)
    gaps += _merged(item for item in failed if item.kind not in NEEDED)
    return gaps


def _merged(items: Iterable[Item]) -> list[str]:
    """A sentence for all items of a kind that have one reason."""
    alike: dict[tuple[str, str | None], list[Item]] = {}
    for item in items:
        alike.setdefault((item.kind, item.reason or item.error), []).append(item)
    return [_sentence(members) for members in alike.values()]


def _sentence(items: Sequence[Item]) -> str:
    first = items[0]
    ranks = {item.rank for item in items if item.rank is not None}
    pids = sorted({item.pid for item in items if item.rank is None and item.pid is not None})
    who = [rank_words(ranks)] if ranks else []
    who += [_pids_words(pids)] if pids else []
    others = " (and other errors)" if len({item.error for item in items}) > 1 else ""
    error = f"{first.error or 'not collected'}{others}"
    reason = f" - {first.reason}" if first.reason else ""
    return clean_text(f"{first.kind}: {' and '.join(who)}{': ' if who else ''}{error}{reason}", _MAX_CHARS)


def _other_ranks(
    processes: Sequence[JobProcess], everything: Sequence[JobProcess], world_size: int | None
) -> list[str]:
    """Which ranks of the job were not looked at: some that run here, and some that do not."""
    n_ranks = sum(p.role == "rank" for p in processes)
    jobs = {p.job for p in processes}
    n_here = max(n_ranks, sum(p.role == "rank" and p.job in jobs for p in everything))
    gaps: list[str] = []
    if n_ranks < n_here:
        gaps.append(
            f"{n_ranks} of the job's {n_here} ranks on this node looked at, as only some were named: "
            f"{job_option(processes[0].job)} takes all"
        )
    if 0 < (world := world_size or 0) != n_here:
        gaps.append(f"{n_here} of the job's {world} ranks run on this node; the others have to be collected there")
    return gaps


def _odd_ranks(processes: Sequence[JobProcess]) -> list[str]:
    """Ranks whose own variables cannot be right."""
    ranks = [p for p in processes if p.role == "rank"]
    gaps: list[str] = []
    unreadable = [p.pid for p in ranks if p.rank is None and _rank_is_no_number(p)]
    if unreadable:
        gaps.append(
            f"{len(unreadable)} process{'es' if len(unreadable) > 1 else ''} of this job "
            f"{'have' if len(unreadable) > 1 else 'has'} a RANK that is no number: {_pids_words(unreadable)}"
        )
    beyond = [p for p in ranks if _is_beyond(p)]
    if beyond:
        sizes = sorted({p.world_size for p in beyond if p.world_size is not None})
        gaps.append(
            f"{rank_words(p.rank for p in beyond if p.rank is not None)}: RANK must be less than WORLD_SIZE, which is "
            f"{some([str(size) for size in sizes])} there ({_pids_words([p.pid for p in beyond])})"
        )
    return gaps


def _rank_is_no_number(process: JobProcess) -> bool:
    name = SCHEMES[0].rank
    return name in process.environment and number(process.environment[name]) is None


def _is_beyond(process: JobProcess) -> bool:
    """Only by what the process was given: a rank that was concluded may be wrong itself."""
    scheme = SCHEMES[0]
    rank, size = (number(process.environment.get(name)) for name in (scheme.rank, scheme.world_size))
    return rank is not None and size is not None and rank >= size and (process.rank, process.world_size) == (rank, size)


def _pids_words(pids: Sequence[int]) -> str:
    return f"pid{'s' if len(pids) > 1 else ''} {some([str(pid) for pid in pids], _SHOWN_PIDS)}"
