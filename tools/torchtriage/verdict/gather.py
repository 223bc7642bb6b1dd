"""Gather: open the inputs, run every reader and analyzer that fits, and return all observations in one form.

Structured artefacts are read together in isolated workers; logs are read here, line by line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.verdict.analyzers import ANALYZERS
from torchtriage.verdict.findings import Findings, Observation, add_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchtriage.artefacts.inputs import Artefact, Inputs
    from torchtriage.artefacts.isolate import Job, Outcome
    from torchtriage.knowledge.entries import Condition
    from torchtriage.knowledge.load import Playbook
    from torchtriage.knowledge.templates import Template
    from torchtriage.logs.analyze import LogFindings, PatternMatch
    from torchtriage.logs.records import LogSource, PatternSet
    from torchtriage.logs.scan.messages import Reading

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
    for task, analyzer in ANALYZERS.items():
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
    add_signals(found.signals, findings)
    findings.observations.extend(
        _of_match(m)
        for m in found.pattern_matches
        if template_of_pattern(m.pattern_id) is None and not is_version_pattern(m.pattern_id)
    )
    add_signals(version_signals(timeline.hits), findings)
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


def _account_for_the_rest(inputs: Inputs, findings: Findings) -> None:
    """Say what was not judged: nothing that was given may vanish silently."""
    findings.losses.extend((*inputs.gaps, *inputs.unopened()))
    for artefact in inputs.artefacts:
        name = clean_text(artefact.name)
        if artefact.kind in UNJUDGED and artefact.kind not in TASK_OF_KIND:
            findings.unjudged.setdefault(artefact.kind, []).append(name)
        elif artefact.kind == "text":
            findings.notes.append(f"{name}: text that is no log; not judged")


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
