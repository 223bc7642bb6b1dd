"""``dump_stacks`` and ``record_flamegraph`` on running processes: choose, attach, write, judge what was written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.folders import default_base, private_folder
from torchtriage.bundle.host import host_name, require_linux
from torchtriage.bundle.proc_facts import facts_of
from torchtriage.bundle.processes import choose, find_processes
from torchtriage.errors import BadCallError, UnreadableError
from torchtriage.report import NextCheck
from torchtriage.stacks import flamegraph
from torchtriage.stacks.probe import BASE, dump_processes
from torchtriage.stacks.profiles import compare_ranks, read_flamegraph, summarise
from torchtriage.tool_reports import FlamegraphReport
from torchtriage.wording import next_lines, rank_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.manifest import Item
    from torchtriage.bundle.processes import JobProcess
    from torchtriage.stacks.profiles import Comparison, Profile

AGAIN_AFTER_S = 2.0
_STATES = {"D": "uninterruptible wait", "T": "stopped", "t": "stopped by a tracer", "Z": "ended, not yet reaped"}


def chosen_processes(pids: Sequence[int] | None, job: str | None) -> list[JobProcess]:
    """The processes of one job, or those named and their children; no launchers.

    Raises:
        BadCallError: not on Linux, or several jobs and none chosen.
        NoJobError: no rank runs here, or a pid is not there.
    """
    require_linux()
    return [p for p in choose(find_processes(pids=pids or ()), pids=pids, job=job) if p.role != "launcher"]


def output_folder(base: str, output_dir: str | None, processes: Sequence[JobProcess]) -> Path:
    """A new private folder ``<timestamp>-rank<NN>`` below ``$TMPDIR/base`` or below ``output_dir``.

    Raises:
        BadCallError: it cannot be made.
    """
    lowest = min((p.rank for p in processes if p.rank is not None), default=0)
    name = f"{datetime.now():%Y%m%d-%H%M%S}-rank{lowest:02d}"
    return private_folder(Path(output_dir) if output_dir is not None else default_base(base), name)


@dataclass(frozen=True)
class Dumped:
    """Dumps of running ranks."""

    folder: Path
    job: str
    """The key of their job."""
    failures: list[str]
    """What could not be had, and why."""


def dump_live(pids: Sequence[int] | None, job: str | None, *, native: bool, output_dir: str | None) -> Dumped:
    """Dump the stacks of running ranks, twice.

    Raises:
        BadCallError, NoJobError: see :func:`chosen_processes` and :func:`output_folder`.
    """
    processes = chosen_processes(pids, job)
    folder = output_folder(BASE, output_dir, processes)
    items = dump_processes(processes, folder, host=host_name(), native=native, again_after_s=AGAIN_AFTER_S, root=folder)
    failures = list(dict.fromkeys(_failure(item) for item in items if item.error))
    return Dumped(folder, processes[0].job, failures)


def _failure(item: Item) -> str:
    """Why a process could not be dumped, and what the kernel says of it all the same."""
    who = f"rank {item.rank} (pid {item.pid})" if item.rank is not None else f"pid {item.pid}" if item.pid else "stacks"
    text = f"{who}: {item.error}"
    if item.reason:
        text += f" - {item.reason}"
    facts = facts_of(item.pid) if item.pid is not None and not item.ok else None
    if facts is not None:
        text += f"; /proc says: state {facts.state}"
        if facts.state in _STATES:
            text += f" ({_STATES[facts.state]})"
        if facts.call is not None and facts.call.name:
            text += f" in {facts.call.name}"
            text += f" of {facts.call.path}" if facts.call.path else ""
        elif facts.wchan:
            text += f" in {facts.wchan}"
        text += f", {facts.cpu_s:.1f} s of CPU time"
    return clean_text(text, 480)


def record_flamegraph(
    *,
    pids: Sequence[int] | None = None,
    job: str | None = None,
    duration: float = 30.0,
    rate: int = 100,
    native: bool = False,
    idle: bool = False,
    speedscope: bool = False,
    output_dir: str | None = None,
) -> FlamegraphReport:
    """Record where the ranks of a running job spend their time, all together, and compare them.

    Args:
        pids: ranks to record; all of the job when None.
        job: which job, when several run on this node.
        duration: seconds.
        rate: samples a second (Hz).
        native: with native frames.
        idle: with threads that wait; without it a rank that hangs gives no samples.
        speedscope: also write files for speedscope.
        output_dir: folder for the flame graphs; ``$TMPDIR/halo_diag_flamegraphs`` when None.

    Returns:
        ``collected``; ``partial`` when a rank could not be recorded; ``nothing_found`` when none was.

    Raises:
        BadCallError: no Linux, a value out of range, several jobs and none chosen, or the folder cannot be used.
        NoJobError: no rank runs here, or a pid is not there.
    """
    if not 1 <= duration <= flamegraph.MAX_DURATION_S:
        raise BadCallError(f"duration {duration}: takes 1 to {flamegraph.MAX_DURATION_S:.0f} seconds")
    if not 1 <= rate <= flamegraph.MAX_RATE_HZ:
        raise BadCallError(f"rate {rate}: takes 1 to {flamegraph.MAX_RATE_HZ} samples a second")
    ranks = [p for p in chosen_processes(pids, job) if p.role == "rank" or (pids and p.pid in pids)]
    folder = output_folder(flamegraph.BASE, output_dir, ranks)
    items = flamegraph.record_processes(
        ranks, folder, host=host_name(), duration_s=duration, rate_hz=rate, native=native, idle=idle,
        speedscope=speedscope, root=folder,
    )  # fmt: skip
    gaps = [_failure(item) for item in items if item.error]
    profiles: list[tuple[int, Profile]] = []
    report = FlamegraphReport(tool="record_flamegraph", status="nothing_found", summary="", output_dir=str(folder))
    for item in items:
        if not item.path or not item.path.endswith(".svg"):
            continue
        try:
            profile = read_flamegraph(folder / item.path)
        except UnreadableError as error:
            gaps.append(f"{item.path}: {error}")
            continue
        report.ranks.append(summarise(profile, item.path, rank=item.rank, pid=item.pid, host=item.host))
        if item.rank is not None:
            profiles.append((item.rank, profile))
    compared = compare_ranks(profiles)
    report.compared_ranks, report.differences = compared.ranks, compared.differences
    if compared.ranks:
        report.comparison = "differs" if compared.differences else "even"
    report.gaps = gaps
    recorded = [p.rank for p in report.ranks if p.rank is not None]
    if report.ranks:
        report.status = "collected" if len(report.ranks) == len(ranks) and not gaps else "partial"
        who = rank_words(recorded) if recorded else f"{len(report.ranks)} processes"
        told = _compared(compared) if len(recorded) > 1 else ""
        report.summary = f"{who} recorded for {duration:.0f} s{told}"
        if not idle and (compared.left_out or any(flamegraph.WAITED in gap for gap in gaps)):
            why = "with idle threads a rank that waits has samples, and its wait can be compared"
            arguments = {"idle": True, "job": ranks[0].job}
            report.next_checks = [NextCheck(tool="record_flamegraph", arguments=arguments, why=why)]
    else:
        report.summary = "no rank could be recorded" if gaps else "nothing was recorded"
        why = "one look at all stacks says where the ranks wait; then triage the bundle"
        arguments = {"job": ranks[0].job} if ranks else {}
        report.next_checks = [NextCheck(tool="collect", arguments=arguments, why=why)]
    return report


def _compared(compared: Comparison) -> str:
    """What the comparison came to, and whom it left out."""
    few = f"{rank_words(compared.left_out)} waited: too few samples to compare (record idle threads, or longer)"
    if not compared.ranks:
        return f"; {few}"
    said = "; no frame stands out between the ranks"
    if compared.differences:
        most = compared.differences[0]
        said = f"; rank {most.rank} spends {most.share:.0%} in {most.function}, the others {most.others_share:.0%}"
    return f"{said}; {few}" if compared.left_out else said


def render_flamegraph(report: FlamegraphReport) -> str:
    """Compact text: where each rank was, what differs, where the pictures are."""
    lines = [f"{report.status}: {clean_text(report.summary, 400)}"]
    for one in report.ranks[:8]:
        hottest = ", ".join(f"{hot.self_share:.0%} {clean_text(hot.function, 70)}" for hot in one.hottest[:3])
        who = f"rank {one.rank}" if one.rank is not None else f"pid {one.pid}"
        lines.append(f"  {who}: {one.samples} samples; {hottest}")
    if len(report.ranks) > 8:
        lines.append(f"  and {len(report.ranks) - 8} more ranks")
    lines += [
        f"  rank {d.rank}: {d.share:.0%} in {clean_text(d.function, 80)}, the others {d.others_share:.0%}"
        for d in report.differences[:3]
    ]
    if report.output_dir is not None and report.ranks:
        lines.append(f"  pictures: {clean_text(report.output_dir, 300)}")
    lines += [f"gap: {clean_text(gap, 300)}" for gap in report.gaps[:4]]
    lines += next_lines(report.next_checks[:1])
    return "\n".join(lines)
