"""Judge the dumps of all ranks together: what diverges first, on which ranks, and what merely follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.attempts import folder_of
from torchtriage.flight.blame import judge_job
from torchtriage.flight.in_step import in_step_signal, young_signal
from torchtriage.flight.job import build_job
from torchtriage.flight.picture import picture_of
from torchtriage.report import Signal
from torchtriage.tool_reports import Divergence, FlightGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.flight.findings import Finding
    from torchtriage.flight.model import RankDump

MAX_FINDINGS = 48
MAX_GROUPS_LISTED = 1024


@dataclass
class FlightFindings:
    """What the dumps of one job show together."""

    groups: list[FlightGroup] = field(default_factory=list[FlightGroup])
    divergences: list[Divergence] = field(default_factory=list[Divergence])
    culprit_ranks: list[int] = field(default_factory=list[int])
    signals: list[Signal] = field(default_factory=list[Signal])
    gaps: list[str] = field(default_factory=list[str])
    stuck_groups: list[str] = field(default_factory=list[str])
    """Other groups in which calls are unfinished."""
    picture: list[str] = field(default_factory=list[str])
    stands: bool = False
    """Whether the job is known to hang, also where nobody can be named."""


def analyze(dumps: Sequence[RankDump]) -> FlightFindings:
    """Compare dumps of the ranks of one job; the order in which they are given does not matter.

    Divergences come first mover first: content that does not fit together, then ranks that others wait for, then what
    follows from those, then what is merely missing.
    """
    job = build_job(sorted(dumps, key=lambda d: d.artefact))
    found = FlightFindings(gaps=job.gaps)
    found.groups = [
        FlightGroup(name=clean_text(g.name, 120), desc=clean_text(g.desc, 120), ranks=list(g.ranks))
        for g in job.groups[:MAX_GROUPS_LISTED]
    ]
    if len(job.groups) > MAX_GROUPS_LISTED:
        found.gaps.append(
            f"{len(job.groups)} process groups: only {MAX_GROUPS_LISTED} are listed, all of these were judged"
        )
    if not job.dumps:
        return found
    judged = judge_job(job)
    findings = judged.findings
    found.stands = judged.stands
    if len(findings) > MAX_FINDINGS:
        found.gaps.append(f"{len(findings)} divergences: only the first {MAX_FINDINGS} are listed")
        findings = findings[:MAX_FINDINGS]
    found.divergences = [finding.divergence() for finding in findings]
    found.signals = [finding.signal() for finding in findings]
    found.culprit_ranks = _culprits(findings)
    if findings:
        found.picture = picture_of(findings[0], job.vocabulary)
        found.stuck_groups = [
            clean_text(group.label(), 120)
            for group in job.groups
            if group is not findings[0].group and len(group.ranks) > 1 and group.has_unfinished
        ]
    # Another folder of which no dump was used may be another run, of which nothing is known.
    all_used = {dump.rank for dump in dumps} - {None} <= job.dumps.keys() and not _other_runs(job.dumps.values(), dumps)
    if (
        all_used
        and not findings
        and not judged.n_settled
        and (signal := in_step_signal(job, judged.moving)) is not None
    ):
        found.signals.append(signal)
    if (young := young_signal(job)) is not None:
        found.signals.append(young)
    return found


def _culprits(findings: Sequence[Finding]) -> list[int]:
    """The ranks of the root divergence; of several root lags all, because their ranks wait for nobody."""
    if not findings:
        return []
    first = findings[0]
    if first.kind not in ("behind_on_enqueue", "behind_on_complete"):
        return sorted(first.either_of or first.ranks) if first.names_culprits else []
    return sorted(
        {rank for f in findings if f.kind in ("behind_on_enqueue", "behind_on_complete") and f.root for rank in f.ranks}
    )


def _other_runs(used: Iterable[RankDump], dumps: Sequence[RankDump]) -> bool:
    """Whether there are folders of which no dump was used, and which are no copies of what was used."""
    used = list(used)
    folders = set(map(folder_of, used))
    processes = {tuple(dump.summary["first_ns"]) for dump in used}
    return any(folder_of(dump) not in folders and tuple(dump.summary["first_ns"]) not in processes for dump in dumps)
