"""Turn a decision into the verdict that is returned: status, words, evidence, gaps, next checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.knowledge.search import search, words
from torchtriage.report import (
    DIAGNOSED_FROM,
    SIGNALS,
    SUSPECTED_FROM,
    Candidate,
    Culprits,
    Evidence,
    NextCheck,
    RuledOut,
    Verdict,
)
from torchtriage.verdict.gather import UNJUDGED
from torchtriage.verdict.health import good_signs, job_finished, reasons_against_health
from torchtriage.verdict.render import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Assessment, Decision
    from torchtriage.verdict.gather import Findings, Observation

MAX_EVIDENCE = 8
MAX_GAPS = 12
MAX_RULED_OUT = 4
MAX_CANDIDATES = 5
# Words alone never say more than "look here first".
SEARCHED = 0.3
_ENDS_A_JOB = frozenset({"hang", "nccl_timeout", "crash", "init", "oom"})
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def compose(tool: str, book: Playbook, decision: Decision, findings: Findings, paths: Sequence[str]) -> Verdict:
    """The verdict on what was gathered."""
    if job_finished(findings):
        _drop_what_ends_a_job(decision)
    best = decision.assessments[0] if decision.assessments else None
    candidates = _candidates(decision.assessments)
    decided = best is not None and best.confidence >= SUSPECTED_FROM
    gaps = _gaps(findings, hints=not decided)
    if best is not None and best.confidence >= SUSPECTED_FROM:
        return Verdict(
            tool=tool,
            status="diagnosed" if best.confidence >= DIAGNOSED_FROM else "suspected",
            summary=_summary(best),
            branch=best.entry.branch,
            failure_mode=best.entry.id,
            confidence=best.confidence,
            cause=best.entry.cause,
            fix=list(best.entry.fix),
            culprits=_culprits(best),
            evidence=_evidence(best.observed),
            candidates=candidates,
            ruled_out=_ruled_out(best, decision, book),
            gaps=gaps,
            next_checks=_next_checks(_rivals(decision.assessments), findings, paths),
        )
    against = reasons_against_health(findings)
    if not against:
        signs = good_signs(findings)
        return Verdict(
            tool=tool,
            status="healthy",
            summary=f"No sign of trouble: {_and(SIGNALS[o.name].meaning for o in signs)}",
            confidence=0.9,
            evidence=_evidence(signs),
            gaps=gaps
            if "trace" in findings.kinds_read
            else [*gaps, "speed was not judged: no profiler traces were given"],
        )
    return Verdict(
        tool=tool,
        status="inconclusive",
        summary=_open_summary(findings, candidates),
        confidence=candidates[0].confidence if candidates else 0.0,
        evidence=_evidence(_telling(findings.observations)),
        candidates=candidates,
        ruled_out=[RuledOut(failure_mode=e.id, because=why) for e, why in decision.ruled_out[:MAX_RULED_OUT]],
        gaps=_limited([*gaps, *(_why_not_healthy(findings, against) if paths else ())]),
        next_checks=_next_checks(decision.assessments[:2], findings, paths),
    )


def compose_several_runs(runs: Sequence[str], paths: Sequence[str]) -> Verdict:
    """No verdict: what was given holds several runs, and their evidence must not be mixed."""
    base = f"{paths[0].rstrip('/')}/" if len(paths) == 1 else ""
    checks = [
        NextCheck(tool="triage", arguments={"paths": [f"{base}{run}"]}, why="one run at a time") for run in runs[:3]
    ]
    return Verdict(
        tool="triage",
        status="inconclusive",
        summary=f"{len(runs)} runs are mixed in what was given: pass one of {_some([clean_text(r) for r in runs])}",
        gaps=["nothing was judged: the same ranks appear in the logs of several folders"],
        next_checks=checks,
    )


def compose_symptom(text: str, book: Playbook, decision: Decision, findings: Findings, paths: Sequence[str]) -> Verdict:
    """The verdict on a text: like :func:`compose`, with the playbook's own words as a last resort."""
    verdict = compose("explain_symptom", book, decision, findings, paths)
    if verdict.status != "inconclusive":
        return verdict
    if not paths and not findings.observations and not _is_in_domain(text):
        return Verdict(
            tool="explain_symptom",
            status="out_of_domain",
            summary="This does not look like a failure of a distributed PyTorch job",
            confidence=0.8,
        )
    if any(o.health == "good" for o in findings.observations) and not verdict.candidates:
        return verdict  # an excerpt of a run in which nothing looks wrong needs no guesses
    branch = _branch_of(text)
    telling = [o for o in findings.observations if o.health != "good" and o.name not in _NOTHING_TO_TELL]
    if not telling:
        what = f"reads like {branch['reads_like']}, and names" if branch else "names"
        verdict.summary = f"Not decided: the text {what} nothing that only one cause shows"
    known = {c.failure_mode for c in verdict.candidates}
    for rank, (entry_id, _) in enumerate(search(book, text, MAX_CANDIDATES)):
        if entry_id not in known and len(verdict.candidates) < MAX_CANDIDATES:
            verdict.candidates.append(Candidate(failure_mode=entry_id, confidence=round(SEARCHED / (rank + 2), 3)))
    verdict.candidates.sort(key=lambda c: -c.confidence)
    verdict.confidence = verdict.candidates[0].confidence if verdict.candidates else 0.0
    if branch and not paths:
        verdict.next_checks.insert(0, NextCheck(tool="triage", arguments={"paths": ["FOLDER"]}, why=branch["collect"]))
    if verdict.candidates and not any(c.tool == "playbook" for c in verdict.next_checks):
        first = verdict.candidates[0].failure_mode
        why = "the text alone does not decide it; this entry says what would"
        verdict.next_checks.append(NextCheck(tool="playbook", arguments={"query": first}, why=why))
    return verdict


def _branch_of(text: str) -> dict[str, Any] | None:
    """The branch of the decision tree whose words the text uses, if any."""
    from torchtriage.knowledge.tree import load_tree

    said = set(words(text))
    for branch in load_tree()["branches"]:
        if "words" in branch and not said.isdisjoint(words(branch["words"])):
            return branch
    return None


def _is_in_domain(text: str) -> bool:
    """Whether the text shares a word with this field's vocabulary (skill/decision_tree.yaml)."""
    from torchtriage.knowledge.tree import load_tree

    return not set(words(" ".join(load_tree()["domain_words"]))).isdisjoint(words(text))


def rank_words(ranks: Iterable[int]) -> str:
    """Ranks as people write them: "rank 1", "ranks 0-3, 7"."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(str(a) if a == b else (f"{a}-{b}" if b > a + 1 else f"{a}, {b}") for a, b in runs[:8])
    more = f" and {sum(b - a + 1 for a, b in runs[8:])} more" if len(runs) > 8 else ""
    return f"rank{'s' if len(ordered) > 1 else ''} {shown}{more}"


def _rivals(assessments: Sequence[Assessment]) -> Sequence[Assessment]:
    """What a verdict should be separated from: of a diagnosis only a mode that is nearly as likely."""
    best = assessments[0]
    if best.confidence < DIAGNOSED_FROM:
        return assessments[:2]
    return [a for a in assessments[1:2] if a.confidence >= SUSPECTED_FROM]


def _drop_what_ends_a_job(decision: Decision) -> None:
    """A job whose every rank finished in good order neither hung nor crashed, whatever one moment of it looked like."""
    ended = [a for a in decision.assessments if a.entry.branch in _ENDS_A_JOB]
    decision.assessments = [a for a in decision.assessments if a.entry.branch not in _ENDS_A_JOB]
    decision.ruled_out[:0] = [(a.entry, "every rank finished, and no rank reports a failure") for a in ended]


def _summary(best: Assessment) -> str:
    """The entry's first line of which everything is known."""
    known = _known(best.observed)
    if best.ranks:
        known["ranks"] = rank_words(best.ranks)
    if seen := frozenset[int]().union(*(o.ranks for o in best.observed)):
        known["seen_ranks"] = rank_words(seen)
    for template in best.entry.summary:
        if (line := _fill(template, known)) is not None:
            return line[:1].upper() + line[1:]
    return best.entry.title


def _known(observed: Sequence[Observation]) -> dict[str, str]:
    """The facts of observations as words; the first that has a fact tells it."""
    known: dict[str, str] = {}
    for observation in observed:
        for name, value in observation.facts.items():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
                known.setdefault(name, _bytes_words(value) if name.endswith("_bytes") else str(value))
    return known


def _bytes_words(value: str | float) -> str:
    """A number of bytes as people and PyTorch write it: "14.00 MiB"."""
    if isinstance(value, str):
        return value
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} bytes"


def _fill(template: str, known: dict[str, str]) -> str | None:
    """The template with its names filled in; None when one is not known."""
    if not template or any(name not in known for name in _PLACEHOLDER.findall(template)):
        return None
    return _PLACEHOLDER.sub(lambda m: clean_text(known[m[1]], 120), template)


def _culprits(best: Assessment) -> Culprits:
    observed = best.observed
    return Culprits(
        ranks=sorted(best.ranks),
        gpus=sorted({g for o in observed for g in o.gpus}),
        links=sorted({x for o in observed for x in o.links}),
        hosts=sorted({h for o in observed if not o.ranks or o.ranks & best.ranks for h in o.hosts}),
    )


def _evidence(observed: Sequence[Observation]) -> list[Evidence]:
    """The quotations, each observation's together; with many observations fewer of each, so that all are shown."""
    of_each = max(1, MAX_EVIDENCE // max(1, sum(bool(o.evidence) for o in observed)))
    shown: dict[tuple[str, str, str], Evidence] = {}
    for observation in observed:
        for evidence in [e for e in observation.evidence if e.quote][: max(of_each, 2)]:
            shown.setdefault((evidence.artefact, evidence.where, evidence.quote), evidence)
    return list(shown.values())[:MAX_EVIDENCE]


def _telling(observations: Sequence[Observation]) -> list[Observation]:
    """What an undecided verdict should show: trouble first, then what is not plainly good."""
    order = {"trouble": 0, "neutral": 1, "good": 2}
    found = [o for o in observations if o.evidence]
    # That a process ended tells least: everything else says how.
    return sorted(found, key=lambda o: (order[o.health], o.name in _ENDS, o.order))[:MAX_EVIDENCE]


_ENDS = frozenset({"log.python_exception", "log.process_exit"})


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
        f"{UNJUDGED[kind]} is recognised but not judged by this version: {_some(names)}"
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


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _and(parts: Iterable[str]) -> str:
    return "; ".join(parts)


def _open_summary(findings: Findings, candidates: Sequence[Candidate]) -> str:
    """One line that says what is known although it does not decide."""
    telling = [o for o in _telling(findings.observations) if o.health != "good" and o.name not in _NOTHING_TO_TELL]
    if telling:
        first = telling[0]
        who = f" ({rank_words(first.ranks)})" if first.ranks else ""
        detail = _fill(SIGNALS[first.name].detail, _known([first]))
        seen = f"{SIGNALS[first.name].meaning}{who}{': ' + detail if detail else ''}"
        return f"Not decided: {seen}; what was given does not show why"
    if candidates:
        return f"Not decided: {candidates[0].failure_mode} is possible, and nothing proves it"
    if not findings.kinds_read:
        return "Nothing that can be judged was found: pass logs, flight-recorder dumps, stack dumps or RAS answers"
    return "Nothing wrong was found, and too little was seen to call the job healthy"


# Observations that tell nothing by themselves: a text that is only named somewhere, a moment that is as it should be.
_NOTHING_TO_TELL = frozenset({"log.pattern", "ras.in_step"})


def _next_checks(assessments: Sequence[Assessment], findings: Findings, paths: Sequence[str]) -> list[NextCheck]:
    """The kinds of evidence that are missing, then what would separate the modes that stand.

    Every check can be called as it stands: a tool that reads evidence of a kind that was read already cannot tell more,
    so the entry that says what would prove the mode is pointed to instead.
    """
    checks: dict[tuple[str, str], NextCheck] = {}
    arguments: dict[str, Any] = {"paths": list(paths)}
    hang = any(o.name in _HANG_SIGNS for o in findings.observations)
    if paths and hang and "stacks" not in findings.kinds_read:
        checks["dump_stacks", ""] = NextCheck(tool="dump_stacks", arguments=arguments, why=_RECORD_STACKS)
    if paths and hang and "flight" not in findings.kinds_read:
        checks["analyze_flight_recorder", ""] = NextCheck(
            tool="analyze_flight_recorder", arguments=arguments, why=_RECORD_FLIGHT
        )
    for assessment in assessments:
        entry = assessment.entry
        why = f"{entry.id}: {entry.next_check['why']}"
        tool = entry.next_check["tool"]
        if paths and _KIND_OF_TOOL.get(tool, "log") not in findings.kinds_read:
            checks.setdefault((tool, ""), NextCheck(tool=tool, arguments=arguments, why=why))
        else:
            checks.setdefault(
                ("playbook", entry.id), NextCheck(tool="playbook", arguments={"query": entry.id}, why=why)
            )
    return list(checks.values())[:3]


_KIND_OF_TOOL = {"dump_stacks": "stacks", "analyze_flight_recorder": "flight"}
_RECORD_STACKS = (
    "shows where each rank stands; while it hangs, for every rank: py-spy dump --native --pid PID > FOLDER/rank-N.txt"
)
_RECORD_FLIGHT = (
    "shows which rank lacks which call; after a time-out each rank's dump lies at TORCH_FR_DUMP_TEMP_FILE + rank"
)
_HANG_SIGNS = frozenset(
    {
        "log.watchdog_timeout",
        "log.collectives_differ",
        "log.stopped_early",
        "log.left_loop_early",
        "flight.behind_on_enqueue",
        "flight.behind_on_complete",
        "flight.all_joined_none_finished",
        "stacks.waiting_on_gpu",
        "stacks.in_collective",
        "ras.operation_counts_differ",
    }
)
