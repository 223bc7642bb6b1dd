"""Turn a decision into the verdict that is returned: status, words, evidence, gaps, next checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.report import (
    DIAGNOSED_FROM,
    SUSPECTED_FROM,
    Candidate,
    Culprits,
    Evidence,
    NextCheck,
    RuledOut,
    Verdict,
)
from torchtriage.signals import SIGNALS
from torchtriage.verdict.checks import next_checks, rivals
from torchtriage.verdict.closer import words_of
from torchtriage.verdict.gather import UNJUDGED
from torchtriage.verdict.health import good_signs, job_finished, reasons_against_health
from torchtriage.verdict.recognised import recognise, recognise_beside
from torchtriage.verdict.summary import open_summary, telling
from torchtriage.wording import some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Assessment, Decision
    from torchtriage.verdict.findings import Findings, Observation

# How a neighbour is worded that nothing in the evidence speaks for.
UNSEEN = "nothing here shows it"
MAX_EVIDENCE = 8
MAX_GAPS = 12
MAX_RULED_OUT = 4
MAX_CANDIDATES = 5
_NO_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ENDS_A_JOB = frozenset({"hang", "nccl_timeout", "crash", "init", "oom"})


def compose(tool: str, book: Playbook, decision: Decision, findings: Findings, paths: Sequence[str]) -> Verdict:
    """The verdict on what was gathered."""
    if job_finished(findings):
        _drop_what_ends_a_job(decision)
    best = decision.assessments[0] if decision.assessments else None
    candidates = _candidates(decision.assessments)
    decided = best is not None and best.confidence >= SUSPECTED_FROM
    gaps = _gaps(findings, hints=not decided)
    if best is not None and best.confidence >= SUSPECTED_FROM:
        diagnosed = best.confidence >= DIAGNOSED_FROM
        evidence = _evidence(best.observed)
        words = words_of(best, findings.observations)
        return Verdict(
            tool=tool,
            status="diagnosed" if diagnosed else "suspected",
            summary=words.summary,
            branch=best.entry.branch,
            failure_mode=best.entry.id,
            confidence=best.confidence,
            cause=words.cause,
            fix=words.fix,
            culprits=_culprits(best),
            evidence=evidence,
            candidates=candidates,
            ruled_out=_ruled_out(best, decision, book),
            gaps=gaps,
            next_checks=next_checks(rivals(decision.assessments), findings, paths, diagnosed=diagnosed),
            recognised=recognise_beside(findings.observations, book, evidence)
            if diagnosed
            else recognise(findings.observations, book, pasted=tool == "explain_symptom"),
        )
    against = reasons_against_health(findings)
    if not against:
        signs = good_signs(findings)
        return Verdict(
            tool=tool,
            status="healthy",
            summary=f"No sign of trouble: {'; '.join(SIGNALS[o.name].meaning for o in signs)}",
            confidence=0.9,
            evidence=_evidence(signs),
            gaps=gaps
            if "trace" in findings.kinds_read
            else [*gaps, "speed was not judged: no profiler traces were given"],
        )
    recognised = recognise(findings.observations, book, pasted=tool == "explain_symptom")
    told = open_summary(findings, candidates, recognised)
    return Verdict(
        tool=tool,
        status="inconclusive",
        summary=f"No hang at this moment: ranks went on between two looks. {told}" if decision.goes_on else told,
        confidence=candidates[0].confidence if candidates else 0.0,
        evidence=_evidence(telling(findings.observations)),
        candidates=candidates,
        ruled_out=[RuledOut(failure_mode=e.id, because=why) for e, why in decision.ruled_out[:MAX_RULED_OUT]],
        gaps=_limited([*gaps, *(_why_not_healthy(findings, against) if paths else ())]),
        next_checks=next_checks(decision.assessments[:2], findings, paths),
        recognised=recognised,
    )


def compose_several_runs(runs: Sequence[str], paths: Sequence[str]) -> Verdict:
    """No verdict: what was given holds several runs, and their evidence must not be mixed."""
    runs = [run for run in runs if run] or list(runs)  # logs beside the folders have no folder of their own
    base = f"{paths[0].rstrip('/')}/" if len(paths) == 1 else ""
    checks = [
        NextCheck(tool="triage", arguments={"paths": [f"{base}{run}"]}, why="one run at a time") for run in runs[:3]
    ]
    return Verdict(
        tool="triage",
        status="inconclusive",
        summary=f"at least {len(runs)} runs are mixed in what was given: "
        f"pass one of {some([clean_text(r) for r in runs])}",
        gaps=["nothing was judged: the same ranks appear in the logs of several folders"],
        next_checks=checks,
    )


def _drop_what_ends_a_job(decision: Decision) -> None:
    """A job that finished in good order neither hung nor crashed, whatever one moment of it looked like.

    What a memory snapshot's history shows stays: a short run ends before a leak fills the GPU. What the kernel's log
    alone tells happened before it, or to others.
    """
    ended = [
        a
        for a in decision.assessments
        if (a.entry.branch in _ENDS_A_JOB and not any(o.kind == "memory" and o.health == "trouble" for o in a.observed))
        or all(o.kind == "kernel" for o in a.observed)
    ]
    decision.assessments = [a for a in decision.assessments if a not in ended]
    decision.ruled_out[:0] = [(a.entry, "the job finished, and no rank reports a failure") for a in ended]


def _culprits(best: Assessment) -> Culprits:
    observed = best.observed
    return Culprits(
        ranks=sorted(best.ranks),
        gpus=sorted({g for o in observed for g in o.gpus}),
        links=sorted({x for o in observed for x in o.links}),
        hosts=sorted({h for o in observed if _is_at(o, best) for h in o.hosts if h not in _NO_NAMES}),
    )


def _is_at(observation: Observation, best: Assessment) -> bool:
    """Whether an observation was made where the cause is; the end of a process whose rank is not known, too."""
    if best.ranks or best.entry.culprit in ("config", "library"):
        return bool(observation.ranks & best.ranks)
    if observation.name == "kernel.xid_root":
        return bool(observation.gpus)
    return observation.name == "log.process_exit" and not observation.ranks and not observation.facts["by_launcher"]


def _evidence(observed: Sequence[Observation]) -> list[Evidence]:
    """The quotations, each observation's together; with many observations fewer of each, so that all are shown."""
    of_each = max(1, MAX_EVIDENCE // max(1, sum(bool(o.evidence) for o in observed)))
    shown: dict[tuple[str, str, str], Evidence] = {}
    for observation in observed:
        for evidence in [e for e in observation.evidence if e.quote][: max(of_each, 2)]:
            shown.setdefault((evidence.artefact, evidence.where, evidence.quote), evidence)
    return list(shown.values())[:MAX_EVIDENCE]


def _candidates(assessments: Sequence[Assessment]) -> list[Candidate]:
    return [Candidate(failure_mode=a.entry.id, confidence=a.confidence) for a in assessments[:MAX_CANDIDATES]]


def _ruled_out(best: Assessment, decision: Decision, book: Playbook) -> list[RuledOut]:
    """First what was contradicted or explained, then the neighbours that nothing here speaks for."""
    found = {e.id: why for e, why in decision.ruled_out if e.id != best.entry.id}
    standing = {a.entry.id for a in decision.assessments}
    for neighbour, difference in best.entry.confused_with.items():
        if neighbour in book.entries and neighbour not in standing and neighbour not in found:
            found[neighbour] = f"{UNSEEN}; {difference}"
    return [RuledOut(failure_mode=k, because=v) for k, v in list(found.items())[:MAX_RULED_OUT]]


def _gaps(findings: Findings, *, hints: bool) -> list[str]:
    """Losses first, then what was recognised and not judged, then notes and what the analyzers could not tell."""
    unjudged = [
        f"{UNJUDGED[kind]} is recognised but not judged by this version: {some(names)}"
        for kind, names in findings.unjudged.items()
    ]
    return _limited(
        [
            *dict.fromkeys(findings.losses),
            *unjudged,
            *dict.fromkeys(findings.notes),
            *(dict.fromkeys(findings.hints) if hints else ()),
        ]
    )


def _why_not_healthy(findings: Findings, against: Sequence[str]) -> list[str]:
    """Only of a job in which nothing looks wrong does anybody ask why it is not called healthy."""
    if any(o.health == "trouble" for o in findings.observations):
        return []
    return [f"not called healthy because {reason}" for reason in against]


def _limited(gaps: list[str]) -> list[str]:
    if len(gaps) <= MAX_GAPS:
        return gaps
    return [*gaps[: MAX_GAPS - 1], f"and {len(gaps) - MAX_GAPS + 1} more of this kind"]
