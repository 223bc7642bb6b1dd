"""What the rooms make of what their readers read: for each worker task, its analyzer, called with all outcomes.

An analyzer adds to the findings, and may learn which process is which rank for those after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.verdict.findings import add_own_signals, add_signals
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.artefacts.isolate import Outcome
    from torchtriage.gpu.analyze import Process
    from torchtriage.verdict.findings import Findings


def _analyze_flight(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.flight.analyze import analyze
    from torchtriage.flight.tool import rank_dumps

    del rank_of_pid
    found = analyze(rank_dumps(outcomes))
    findings.kinds_read.add("flight")
    add_signals(found.signals, findings)
    findings.ranks.update(r for g in found.groups for r in g.ranks)
    findings.losses.extend(found.gaps)
    findings.members = {r for g in found.groups for r in g.ranks}


def _analyze_stacks(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    judge_stacks([(o.artefact.name, o.result) for o in outcomes], rank_of_pid, findings)


def judge_stacks(
    dumps: Sequence[tuple[str, Mapping[str, Any]]], rank_of_pid: Mapping[int, int], findings: Findings
) -> None:
    """Add what stack dumps (as ``stacks.read.read_task`` gives them) show."""
    from torchtriage.stacks.analyze import analyze

    for name, dump in dumps:
        findings.losses.extend(f"{clean_text(name)}: {clean_text(note)}" for note in dump["notes"])
        findings.notes.extend(f"{clean_text(name)}: {clean_text(note)}" for note in dump["choices"])
    if findings.members:
        rank_of_pid = {pid: rank for pid, rank in rank_of_pid.items() if rank in findings.members}
    found = analyze(dumps, rank_of_pid)
    ranks = {r.rank for r in found.ranks if r.rank is not None}
    if findings.members and (foreign := ranks - findings.members):
        findings.losses.append(f"stacks of {rank_words(foreign)}: the job's process groups have no such rank; left out")
    findings.kinds_read.add("stacks")
    add_own_signals(found.signals, findings)
    findings.ranks.update(r for r in ranks if not findings.members or r in findings.members)
    findings.hints.extend(found.notes)


def _analyze_ras(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Also learns which process is which rank, for the stacks."""
    from torchtriage.ras.analyze import analyze

    found = analyze([(o.artefact.name, o.result) for o in outcomes])
    if found.rank_of_pid and rank_of_pid and found.rank_of_pid.keys().isdisjoint(rank_of_pid):
        names = ", ".join(clean_text(o.artefact.name) for o in outcomes[:3])
        findings.losses.append(f"{names}: speaks of other processes than the logs, so of another job; left out")
        return
    findings.kinds_read.add("ras")
    add_signals(found.signals, findings)
    findings.ranks.update(found.rank_of_pid.values())
    findings.losses.extend(found.notes)
    for pid, rank in found.rank_of_pid.items():
        rank_of_pid.setdefault(pid, rank)


def _analyze_proc(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Also learns which process is which rank, for the stacks."""
    from torchtriage.bundle.proc_analyze import analyze

    found = analyze([(o.artefact.name, o.result) for o in outcomes])
    findings.kinds_read.add("proc")
    for pid, rank in found.rank_of_pid.items():
        rank_of_pid.setdefault(pid, rank)
    findings.ranks.update(found.ranks)
    findings.processes = _processes(outcomes)
    add_own_signals(found.signals, findings)
    findings.losses.extend(found.notes)


def _processes(outcomes: Sequence[Outcome]) -> list[Process]:
    from torchtriage.gpu.analyze import Process, node_of

    return [
        Process(f["pid"], node_of(o.artefact.name), f["rank"], f["local_rank"], is_rank=f["role"] == "rank")
        for o in outcomes
        for f in [o.result]
    ]


def _analyze_gpus(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.gpu.analyze import Process, analyze

    processes = findings.processes or [Process(pid, "", rank, None, is_rank=True) for pid, rank in rank_of_pid.items()]
    found = analyze([(o.artefact.name, o.result) for o in outcomes], processes)
    findings.kinds_read.add("gpu")
    add_own_signals(found.signals, findings)
    findings.losses.extend(found.notes)
    if found.not_judged:
        findings.unjudged["nvidia_smi"] = found.not_judged
    findings.gpu_names, findings.gpu_ranks = found.names, found.ranks


def _analyze_links(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Links, fabric and topology, of the same answers that tell of the GPUs themselves."""
    from torchtriage.nvlink.analyze import analyze

    del rank_of_pid
    found = analyze([(o.artefact.name, o.result) for o in outcomes], findings.gpu_ranks)
    add_own_signals(found.signals, findings)
    if "nvidia_smi" in findings.unjudged:
        left = [name for name in findings.unjudged.pop("nvidia_smi") if name not in found.read]
        if left:
            findings.unjudged["nvidia_smi"] = left


def _analyze_kernel(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.nvlink.kernel_analyze import analyze

    found = analyze(
        [(o.artefact.name, o.result) for o in outcomes], findings.gpu_names, findings.gpu_ranks, rank_of_pid
    )
    findings.kinds_read.add("kernel")
    add_own_signals(found.signals, findings)
    findings.losses.extend(found.notes)


def _analyze_unanswered(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.gpu.analyze import unanswered

    del rank_of_pid
    add_signals(unanswered([(o.artefact.name, o.result) for o in outcomes]), findings)


def _analyze_versions(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.bundle.version_analyze import version_signals

    del rank_of_pid
    add_signals(version_signals([(o.artefact.name, o.result) for o in outcomes]), findings)


def _analyze_traces(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.trace.analyze import analyze

    del rank_of_pid
    found = analyze([(o.artefact.name, o.result) for o in outcomes])
    findings.kinds_read.add("trace")
    add_signals(found.signals, findings)
    findings.losses.extend(found.notes)


def _analyze_memory(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Logs were read before: what they say of the GPU's size and of other processes is known by then."""
    from torchtriage.memory.analyze import analyze, beside, snapshots_of

    del rank_of_pid
    snapshots = snapshots_of([(o.artefact.name, o.result) for o in outcomes])
    found = analyze(snapshots, beside((o.name, o.ranks, o.facts) for o in findings.observations))
    findings.kinds_read.add("memory")
    add_own_signals(found.signals, findings)
    findings.ranks.update(s.rank for s in snapshots if s.rank is not None and not findings.members)
    findings.losses.extend(found.notes)


# In this order: RAS answers and facts of processes tell ranks to the stacks and the GPUs, and these to the kernel's
# messages.
ANALYZERS = {
    "ras": _analyze_ras,
    "flight": _analyze_flight,
    "proc": _analyze_proc,
    "stacks": _analyze_stacks,
    "trace": _analyze_traces,
    "gpu": _analyze_gpus,
    "links": _analyze_links,
    "kernel": _analyze_kernel,
    "gpu_unanswered": _analyze_unanswered,
    "versions": _analyze_versions,
    "memory": _analyze_memory,
}
