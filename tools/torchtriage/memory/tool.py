"""``memory_snapshot``: what holds a GPU's memory, since when, from which line, and what would free it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.inputs import open_inputs, path_names
from torchtriage.artefacts.isolate import Job, run_jobs
from torchtriage.errors import BadCallError
from torchtriage.memory.analyze import MemoryFindings, analyze, beside, snapshots_of
from torchtriage.memory.fixes import fixes_for
from torchtriage.memory.judge import MIN_STEPS_FOR_HEALTHY, MIN_STEPS_OF_A_REST, rises_in_all
from torchtriage.memory.records import comparison_record, device_record, finding_record
from torchtriage.report import Culprits, NextCheck
from torchtriage.tool_reports import MemoryReport
from torchtriage.wording import bytes_words, rank_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Inputs, Paths
    from torchtriage.memory.judge import Beside, Finding

Status = Literal["fault", "healthy", "inconclusive"]
MAX_GAPS = 40
MAX_EVIDENCE = 24
MAX_FINDINGS = 64


def memory_snapshot(
    paths: Paths = (),
    *,
    pid: int | None = None,
    compare: bool = False,
    html: str | None = None,
    collapsed: str | None = None,
    roots: Sequence[Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MemoryReport:
    """Say what holds the memory in snapshots of ``torch.cuda.memory``, and what made an allocation fail.

    Args:
        paths: snapshots (pickle or JSON, compressed or not) of one or several ranks or moments, folders, archives;
            logs among them tell how large the GPU is and what other processes hold.
        pid: take a snapshot of this running process first (Python 3.14 or later), and judge it with ``paths``.
        compare: also list, of several snapshots, which call sites make the difference.
        html: a file to write a page to that needs no network: the timeline, the holders, a flame graph.
        collapsed: a file to write collapsed stacks to, for speedscope.app or flamegraph.pl.
        roots: when given, every path must lie inside one of these folders.
        progress: called with (files read, files in all), from other threads.

    Returns:
        ``fault``: an allocation failed, or memory grows step after step; ``healthy``: steps were seen and nothing is
        left behind by them; ``inconclusive``: too little was recorded to say either.

    Raises:
        InputNotFoundError, OutsideRootsError: see :func:`torchtriage.artefacts.inputs.open_inputs`.
        NoJobError: there is no such process.
        BadCallError: there is nothing to read, the process cannot be asked, or a file cannot be written.
    """
    writes = html is not None or collapsed is not None
    if writes:
        from torchtriage.memory.export import check_targets

        check_targets(html, collapsed, roots)
    if pid is not None:
        from torchtriage.bundle.folders import default_base, private_folder
        from torchtriage.memory.live import take_snapshot

        folder = private_folder(default_base("torchtriage_memory"), f"{datetime.now():%Y%m%d-%H%M%S}")
        paths = [*path_names(paths), str(take_snapshot(pid, folder))]
    if not paths:
        raise BadCallError("give the snapshots that the job wrote (torch.cuda.memory._dump_snapshot), or their folder")
    with open_inputs(paths, roots) as inputs:
        gaps = [*inputs.gaps, *inputs.unopened(), *_no_snapshots(inputs)]
        args = {"flame": writes}
        outcomes = run_jobs([Job("memory", artefact, args) for artefact in inputs.of("memory_snapshot")], progress)
        snapshots = snapshots_of([(o.artefact.name, o.result) for o in outcomes if o.error is None])
        logs = _beside(inputs)
        found = analyze(snapshots, logs)
    unreadable = [o for o in outcomes if o.error is not None]
    gaps.extend(f"{clean_text(o.artefact.name)}: {clean_text(o.error or '')}" for o in unreadable)
    gaps.extend(clean_text(note, 300) for note in found.notes)
    gaps.extend(_what_is_missing(found))
    if len(gaps) > MAX_GAPS:
        gaps = [*gaps[:MAX_GAPS], f"{len(gaps) - MAX_GAPS} more of this kind"]
    status = _status(found, complete=not unreadable)
    judged = found.judged[:MAX_FINDINGS]
    n_ranks = len({s.rank for s in snapshots})
    report = MemoryReport(
        tool="memory_snapshot",
        status=status,
        summary=clean_text(_summary(status, found), 900),
        gaps=gaps,
        next_checks=_next_checks(status, found, path_names(paths)),
        devices=[
            device_record(s, d, logs.get(s.rank) or logs.get(None)) for s in snapshots for d in s.summary["devices"]
        ],
        findings=[finding_record(one) for one in judged],
        fixes=fixes_for(found.faults, n_ranks),
        comparisons=[comparison_record(d, listed=compare) for d in found.differences],
        pinned_host_bytes=sum(s.summary["pinned"] for s in snapshots),
        culprits=Culprits(ranks=_culprits(found)),
        evidence=_evidence(found),
    )
    if writes:
        from torchtriage.memory.export import write_files

        report.written = write_files(report, found, html=html, collapsed=collapsed, roots=roots)
    return report


def _beside(inputs: Inputs) -> Mapping[int | None, Beside]:
    """What the logs that lie beside the snapshots say of the GPUs: their size, and what others hold of them."""
    from torchtriage.knowledge.load import load_playbook
    from torchtriage.verdict.findings import Findings
    from torchtriage.verdict.gather import scan_log_files

    if not inputs.of("log") or not inputs.of("memory_snapshot"):
        return {}
    findings = Findings()
    scan_log_files(inputs.of("log"), load_playbook(), findings)
    return beside((o.name, o.ranks, o.facts) for o in findings.observations)


def _no_snapshots(inputs: Inputs) -> list[str]:
    """What the files are, where none is a snapshot."""
    if inputs.of("memory_snapshot"):
        return []
    named = [a for a in inputs.artefacts if a.kind not in ("empty", "unknown")]
    told = [f"{clean_text(a.name)}: {a.kind.replace('_', ' ')}, not a memory snapshot" for a in named[:5]]
    return [*told, f"{len(named) - 5} more files are no memory snapshots"] if len(named) > 5 else told


def _status(found: MemoryFindings, *, complete: bool) -> Status:
    if found.faults or any(d["ooms"] for s in found.snapshots for d in s.summary["devices"]):
        return "fault"
    return "healthy" if found.steady and complete else "inconclusive"


def _summary(status: Status, found: MemoryFindings) -> str:
    if not found.snapshots:
        return "No memory snapshot could be read."
    if found.faults:
        first = found.faults[0]
        alike = _culprits(found)
        who = f"{rank_words(alike)}: " if alike else ""
        return f"{who}{_kind_words(first.finding)}{first.finding.says}."
    devices = [(s, d) for s in found.snapshots for d in s.summary["devices"]]
    peak = max((d["peak_allocated"] for _, d in devices), default=0)
    if status == "fault":
        oom = next(d["ooms"][-1] for _, d in devices if d["ooms"])
        return (
            f"A request of {bytes_words(oom['requested'])} failed at {oom['site']} with "
            f"{bytes_words(oom['allocated'])} allocated; what fills the memory cannot be told."
        )
    if status == "healthy":
        n_steps = min(d["n_steps"] for _, d in devices) + 1
        return (
            f"No allocation failed and nothing is left behind from step to step ({n_steps} steps seen); "
            f"at most {bytes_words(peak)} were allocated."
        )
    return f"Too little was recorded to judge; at most {bytes_words(peak)} were allocated in what is there."


def _kind_words(finding: Finding) -> str:
    """What a finding comes to; a leak's own sentence says it."""
    if finding.kind == "leak":
        return "out of memory: " if finding.facts.get("out_of_memory") else ""
    words = {
        "activation_peak": "out of memory from activations",
        "single_large_allocation": "out of memory from one request",
        "optimizer_state": "out of memory from the optimizer's state",
        "parameters": "out of memory from parameters",
        "fragmentation": "out of memory from fragmentation",
        "other_process": "out of memory because of others on the GPU",
    }
    return f"{words.get(finding.kind, finding.kind.replace('_', ' '))}: "


def _culprits(found: MemoryFindings) -> list[int]:
    """Ranks with the finding that leads."""
    if not found.faults:
        return []
    kind = found.faults[0].finding.kind
    return sorted({o.snapshot.rank for o in found.faults if o.finding.kind == kind and o.snapshot.rank is not None})


def _what_is_missing(found: MemoryFindings) -> list[str]:
    told: list[str] = []
    # A leak that two moments show needs no long history.
    moments = [d for d in found.differences if d.of == "moments" and found.faults]
    compared = {(name, d.device) for d in moments for name in (d.before, d.after)}
    for snapshot in found.snapshots:
        name = clean_text(snapshot.artefact)
        if not snapshot.summary["devices"]:
            told.append(f"{name}: holds no device with memory")
        for device in snapshot.summary["devices"]:
            where = f"{name}, device {device['device']}"
            if not device["has_history"]:
                told.append(
                    f"{where}: no history was recorded, so that peak, growth and call sites cannot be told: call "
                    "torch.cuda.memory._record_memory_history() before the first allocation"
                )
            elif not device["has_frames"]:
                told.append(f"{where}: no stacks were recorded, so that call sites and steps cannot be told")
            elif (snapshot.artefact, device["device"]) in compared:
                continue
            elif device["truncated"] and device["n_steps"] < MIN_STEPS_OF_A_REST and not device["ooms"]:
                told.append(
                    f"{where}: the ring of the history holds too few steps to see growth: record with a larger "
                    "max_entries, or compare snapshots of more distant steps"
                )
            elif rises_in_all(device) and not device["ooms"] and not found.faults:
                told.append(f"{where}: more is held at later steps than at earlier ones, too unevenly to name a place")
            elif device["n_steps"] < MIN_STEPS_FOR_HEALTHY and not device["ooms"]:
                told.append(f"{where}: fewer than three steps can be told apart, too few to see growth")
    return told


def _next_checks(status: Status, found: MemoryFindings, paths: list[str]) -> list[NextCheck]:
    if status == "healthy":
        return []
    if found.faults:
        why = "with the job's logs beside the snapshots: one verdict on the cause"
        return [NextCheck(tool="triage", arguments={"paths": paths}, why=why)]
    why = "how to record a snapshot that tells: the history from the start, dumped at the failure or after some steps"
    return [NextCheck(tool="playbook", arguments={"query": "activation-peak-exceeds-memory"}, why=why)]


def _evidence(found: MemoryFindings) -> list[Any]:
    quotes = [quote for signal in found.signals for quote in signal.evidence]
    return list({(q.artefact, q.where): q for q in quotes}.values())[:MAX_EVIDENCE]
