"""Gather: open the inputs, run every reader and analyzer that fits, and return all observations in one form.

Structured artefacts are read together in isolated workers; logs are read here, line by line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.signals import SIGNALS
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchtriage.artefacts.inputs import Artefact, Inputs
    from torchtriage.artefacts.isolate import Job, Outcome
    from torchtriage.gpu.analyze import Process
    from torchtriage.knowledge.entries import Condition
    from torchtriage.knowledge.load import Playbook
    from torchtriage.knowledge.templates import Template
    from torchtriage.logs.analyze import LogFindings, PatternMatch
    from torchtriage.logs.records import LogSource, PatternSet
    from torchtriage.logs.scan.messages import Reading
    from torchtriage.report import Evidence, Signal

# Worker task by artefact kind: what this version reads, besides logs.
TASK_OF_KIND = {
    "flight_recorder": "flight",
    "stack_dump": "stacks",
    "ras": "ras",
    "trace": "trace",
    "proc_facts": "proc",
    "nvidia_smi": "gpu",
    "kernel_log": "kernel",
    "manifest": "gpu_unanswered",
    "memory_snapshot": "memory",
}
# Kinds that are recognised and say something about the job, of which nothing here judges all or any yet.
UNJUDGED = {
    "nvidia_smi": "nvidia-smi output",
    "config": "configuration",
}
NOT_JUDGED = "could not be judged"


@dataclass(frozen=True)
class Observation:
    """A signal, or a line that holds a playbook text or is a known message: the form that decisions are made on."""

    name: str
    ranks: frozenset[int]
    facts: Mapping[str, Any]
    evidence: tuple[Evidence, ...]
    pattern: str | None = None
    """Key of the playbook text that matched, for ``log.pattern``; of the template, for ``log.template``."""
    order: float = 0.0
    """Position in the log's timeline; 0 where there is none."""
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Which kind of artefact it was read off: log, flight, stacks, ras, ..."""
        return self.name.partition(".")[0]

    @property
    def health(self) -> str:
        """What the registry says it means: trouble, neutral or good."""
        return SIGNALS[self.name].health


@dataclass
class Findings:
    """Everything that was observed, and what could not be."""

    observations: list[Observation] = field(default_factory=list[Observation])
    ranks: set[int] = field(default_factory=set[int])
    """All ranks that anything speaks of."""
    kinds_read: set[str] = field(default_factory=set[str])
    members: set[int] = field(default_factory=set[int])
    """The ranks of the job's process groups, where dumps tell them: there are no others."""
    unjudged: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    losses: list[str] = field(default_factory=list[str])
    """What was damaged, unreadable or missing: forbids the verdict healthy."""
    notes: list[str] = field(default_factory=list[str])
    """What was left out without loss."""
    processes: list[Process] = field(default_factory=list["Process"])
    """The job's processes by node, where their facts were given."""
    gpu_names: dict[str, str] = field(default_factory=dict[str, str])
    """Product names of GPUs, by node and bus id."""
    gpu_ranks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The ranks on GPUs, by node and bus id."""
    hints: list[str] = field(default_factory=list[str])
    """What analyzers could not tell from their kind of evidence; of interest when nothing else tells it either."""


def pattern_key(text: str, regex: str | None) -> str:
    """The id under which a playbook text is searched for in logs."""
    return f"{text}\n{regex or ''}"


def patterns_of(conditions: Iterable[Condition]) -> dict[str, tuple[str, str | None]]:
    """All texts that the given conditions look for, by key."""
    return {pattern_key(t, c.regex): (t, c.regex) for c in conditions for t in c.texts}


def gather(inputs: Inputs, book: Playbook, progress: Callable[[int, int], None] | None = None) -> Findings:
    """Read and analyze everything in ``inputs``."""
    from torchtriage.artefacts.isolate import Job, run_jobs

    findings = Findings()
    logs = inputs.of("log")
    findings.notes.extend(inputs.notes)
    jobs = [Job(TASK_OF_KIND[a.kind], a) for a in inputs.artefacts if a.kind in TASK_OF_KIND]
    jobs += [Job("versions", a) for a in inputs.of("manifest")]
    jobs += [Job("links", a) for a in inputs.of("nvidia_smi")]
    patterns = log_patterns(book) if logs else None
    thinning = _thinning_jobs(logs, patterns) if patterns is not None else []
    outcomes = run_jobs([*jobs, *thinning], progress) if jobs or thinning else []
    sources = _log_sources(logs, thinning, outcomes[len(jobs) :], findings.losses) if logs else []
    outcomes = outcomes[: len(jobs)]
    kernel = _kernel_sources(inputs.of("kernel_log"), findings.losses)
    log_findings = scan_logs(sources, book, findings, patterns, kernel) if logs else None
    rank_of_pid = dict(log_findings.rank_of_pid) if log_findings else {}
    if recorded := inputs.of("rank_note"):
        from torchtriage.stacks.tool import ranks_of_pids

        ranks, conflicts = ranks_of_pids(recorded)
        rank_of_pid.update(ranks)
        findings.notes.extend(conflicts)

    by_task: dict[str, list[Outcome]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.error is not None:
            findings.losses.append(f"{clean_text(outcome.artefact.name)}: {clean_text(outcome.error)}")
        else:
            by_task.setdefault(job.task, []).append(outcome)
    for task, analyzer in _ANALYZERS.items():
        if task not in by_task:
            continue
        try:
            analyzer(by_task[task], rank_of_pid, findings)
        except Exception as error:  # a fault of ours in one room must not cost the verdict on the others
            names = ", ".join(clean_text(o.artefact.name) for o in by_task[task][:3])
            findings.losses.append(f"{names}: {NOT_JUDGED} ({type(error).__name__}: {clean_text(str(error), 80)})")
    _account_for_the_rest(inputs, findings)
    return findings


def scan_logs(
    sources: Sequence[LogSource],
    book: Playbook,
    findings: Findings,
    patterns: PatternSet | None = None,
    kernel_logs: Sequence[LogSource] = (),
) -> LogFindings:
    """Scan logs (or a pasted text) for events, the playbook's texts and known messages; add what was observed.

    ``patterns`` are those of :func:`log_patterns`, where the caller has them already. Of ``kernel_logs`` only kills of
    the job's own processes count.
    """
    from torchtriage.knowledge.templates import template_of_pattern
    from torchtriage.logs.analyze import analyze
    from torchtriage.logs.ends.kernel_log import add_kills
    from torchtriage.logs.scan.messages import readings
    from torchtriage.logs.scan.read import scan
    from torchtriage.logs.versions import is_version_pattern, version_signals

    known = {template.key: template for template in book.templates.values()}
    timeline = scan(sources, patterns or log_patterns(book))
    add_kills(timeline, kernel_logs)
    found = analyze(timeline)
    findings.kinds_read.add("log")
    findings.ranks.update(found.ranks_seen)
    findings.observations.extend(_of_signal(s) for s in found.signals)
    findings.observations.extend(
        _of_match(m)
        for m in found.pattern_matches
        if template_of_pattern(m.pattern_id) is None and not is_version_pattern(m.pattern_id)
    )
    findings.observations.extend(_of_signal(s) for s in version_signals(timeline.hits))
    messages = readings(timeline.hits, {key: template.regex for key, template in known.items()})
    findings.observations.extend(_of_message(m, known[m.key]) for m in messages)
    findings.notes.extend(found.notes)
    return found


def scan_log_files(logs: Sequence[Artefact], book: Playbook, findings: Findings) -> None:
    """Read and scan log files alone, for a tool whose own evidence is of another kind."""
    from torchtriage.artefacts.isolate import run_jobs

    patterns = log_patterns(book)
    thinning = _thinning_jobs(logs, patterns)
    outcomes = run_jobs(thinning) if thinning else []
    scan_logs(_log_sources(logs, thinning, outcomes, findings.losses), book, findings, patterns)


def add_signals(signals: Iterable[Signal], findings: Findings) -> None:
    """Add what an analyzer found."""
    findings.observations.extend(_of_signal(s) for s in signals)


def log_patterns(book: Playbook) -> PatternSet:
    """Everything that the playbook looks for in logs: texts of its entries and the messages that it knows."""
    from torchtriage.logs.records import LogPattern, PatternSet
    from torchtriage.logs.versions import version_patterns

    wanted = patterns_of(c for e in book.entries.values() for c in e.conditions())
    patterns = [LogPattern(id=key, text=text, regex=regex) for key, (text, regex) in wanted.items()]
    patterns += [pattern for template in book.templates.values() for pattern in template.patterns()]
    patterns += version_patterns()
    return PatternSet(patterns)


def _thinning_jobs(logs: Sequence[Artefact], patterns: PatternSet) -> list[Job]:
    from torchtriage.logs.scan.thin import thinning_jobs

    return thinning_jobs(logs, patterns)


def _log_sources(
    logs: Sequence[Artefact], thinning: Sequence[Job], outcomes: Sequence[Outcome], losses: list[str]
) -> list[LogSource]:
    from torchtriage.artefacts.identity import identity_of
    from torchtriage.artefacts.text import read_lines
    from torchtriage.logs.records import LogSource
    from torchtriage.logs.scan.thin import thinned_logs
    from torchtriage.logs.timeline.tasks import file_tasks

    thinned = thinned_logs(thinning, outcomes, losses)
    tasks = file_tasks([log.name for log in logs])
    sources: list[LogSource] = []
    for log in logs:
        identity = identity_of(log.name)
        lines = () if log.name in thinned else read_lines(log, losses)
        sources.append(
            LogSource(
                log.name, lines, identity.rank, identity.host, thinned.get(log.name), identity.pid, tasks.get(log.name)
            )
        )
    return sources


def _kernel_sources(logs: Sequence[Artefact], losses: list[str]) -> list[LogSource]:
    from torchtriage.artefacts.identity import identity_of
    from torchtriage.artefacts.text import read_lines
    from torchtriage.logs.records import LogSource

    return [LogSource(log.name, read_lines(log, losses), host=identity_of(log.name).host) for log in logs]


def _analyze_flight(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.flight.analyze import analyze
    from torchtriage.flight.tool import rank_dumps

    del rank_of_pid
    found = analyze(rank_dumps(outcomes))
    findings.kinds_read.add("flight")
    findings.observations.extend(_of_signal(s) for s in found.signals)
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
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
    findings.ranks.update(r for r in ranks if not findings.members or r in findings.members)
    findings.hints.extend(found.notes)


def _foreign(signal: Signal, findings: Findings) -> bool:
    """Whether a signal speaks of ranks that the job does not have, as what lies over from another job does."""
    return bool(findings.members) and not findings.members.issuperset(signal.scope.ranks)


def _analyze_ras(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Also learns which process is which rank, for the stacks."""
    from torchtriage.ras.analyze import analyze

    found = analyze([(o.artefact.name, o.result) for o in outcomes])
    if found.rank_of_pid and rank_of_pid and found.rank_of_pid.keys().isdisjoint(rank_of_pid):
        names = ", ".join(clean_text(o.artefact.name) for o in outcomes[:3])
        findings.losses.append(f"{names}: speaks of other processes than the logs, so of another job; left out")
        return
    findings.kinds_read.add("ras")
    findings.observations.extend(_of_signal(s) for s in found.signals)
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
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
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
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
    findings.losses.extend(found.notes)
    if found.not_judged:
        findings.unjudged["nvidia_smi"] = found.not_judged
    findings.gpu_names, findings.gpu_ranks = found.names, found.ranks


def _analyze_links(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Links, fabric and topology, of the same answers that tell of the GPUs themselves."""
    from torchtriage.nvlink.analyze import analyze

    del rank_of_pid
    found = analyze([(o.artefact.name, o.result) for o in outcomes], findings.gpu_ranks)
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
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
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
    findings.losses.extend(found.notes)


def _analyze_unanswered(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.gpu.analyze import unanswered

    del rank_of_pid
    findings.observations.extend(_of_signal(s) for s in unanswered([(o.artefact.name, o.result) for o in outcomes]))


def _analyze_versions(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.bundle.version_analyze import version_signals

    del rank_of_pid
    add_signals(version_signals([(o.artefact.name, o.result) for o in outcomes]), findings)


def _analyze_traces(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    from torchtriage.trace.analyze import analyze

    del rank_of_pid
    found = analyze([(o.artefact.name, o.result) for o in outcomes])
    findings.kinds_read.add("trace")
    findings.observations.extend(_of_signal(s) for s in found.signals)
    findings.losses.extend(found.notes)


def _analyze_memory(outcomes: Sequence[Outcome], rank_of_pid: dict[int, int], findings: Findings) -> None:
    """Logs were read before: what they say of the GPU's size and of other processes is known by then."""
    from torchtriage.memory.analyze import analyze, beside, snapshots_of

    del rank_of_pid
    snapshots = snapshots_of([(o.artefact.name, o.result) for o in outcomes])
    found = analyze(snapshots, beside((o.name, o.ranks, o.facts) for o in findings.observations))
    findings.kinds_read.add("memory")
    findings.observations.extend(_of_signal(s) for s in found.signals if not _foreign(s, findings))
    findings.ranks.update(s.rank for s in snapshots if s.rank is not None and not findings.members)
    findings.losses.extend(found.notes)


# In this order: RAS answers and facts of processes tell ranks to the stacks and the GPUs, and these to the kernel's
# messages.
_ANALYZERS = {
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


def _account_for_the_rest(inputs: Inputs, findings: Findings) -> None:
    """Say what was not judged: nothing that was given may vanish silently."""
    findings.losses.extend((*inputs.gaps, *inputs.unopened()))
    for artefact in inputs.artefacts:
        name = clean_text(artefact.name)
        if artefact.kind in UNJUDGED and artefact.kind not in TASK_OF_KIND:
            findings.unjudged.setdefault(artefact.kind, []).append(name)
        elif artefact.kind == "text":
            findings.notes.append(f"{name}: text that is no log; not judged")


def _of_signal(signal: Signal) -> Observation:
    order = signal.facts.get("order", 0)
    return Observation(
        name=signal.name,
        ranks=frozenset(signal.scope.ranks),
        facts=signal.facts,
        evidence=tuple(signal.evidence),
        order=float(order) if isinstance(order, (int, float)) else 0.0,
        hosts=tuple(signal.scope.hosts),
        gpus=tuple(signal.scope.gpus),
        links=tuple(signal.scope.links),
    )


def _of_match(match: PatternMatch) -> Observation:
    return Observation(
        name="log.pattern",
        ranks=frozenset(match.ranks),
        facts={**match.facts, "count": match.count},
        evidence=(match.evidence,),
        pattern=match.pattern_id,
        order=float(match.order),
    )


def _of_message(reading: Reading, template: Template) -> Observation:
    return Observation(
        name="log.template",
        ranks=frozenset(reading.ranks),
        facts={**reading.facts, "template": template.id, "role": template.role, "count": reading.count},
        evidence=(reading.evidence,),
        pattern=template.key,
        order=float(reading.order),
    )
