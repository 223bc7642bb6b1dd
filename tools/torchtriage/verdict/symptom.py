"""The verdict on a pasted text or a description: what its lines prove stands first; its words order what is left open.

Nothing that words say is proven: a mode whose words fit far better than any other's is suspected, a text that fits
something normal and tells of no failure is called healthy, and one that fits another field is out of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_line
from torchtriage.knowledge.background import load_backgrounds
from torchtriage.knowledge.search import telling_lines, words
from torchtriage.knowledge.tree import load_tree
from torchtriage.prose.read import MAX_LINES, is_prose
from torchtriage.report import SUSPECTED_FROM, Candidate, NextCheck, RuledOut, Verdict
from torchtriage.verdict.compose import MAX_CANDIDATES, MAX_RULED_OUT, compose
from torchtriage.verdict.summary import says_something
from torchtriage.verdict.words import Weighed, weigh

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.report import Evidence
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.findings import Findings

# How far words must lead, and how much must be said, before a mode is suspected for them alone, and from which lead on
# they are as sure as words can be. Measured: benchmarks/symptoms.py, table "What a confidence is worth".
MIN_LEAD, FULL_LEAD, MIN_SCORE = 0.2, 0.4, 29.0
# Confidence of the best entry without any lead, just below and at the least lead, and at the full one.
NO_LEAD, OPEN, LED, FULLY_LED = 0.34, 0.39, 0.65, 0.77
SHOWN_AND_LED = 0.79  # where lines make likely what words alone lead to as well
CONFIDENCE_OF_OTHERS = (0.15, 0.1, 0.07, 0.05)
# From which share of the best entry's score on another field, or something normal, is what the text is about.
ELSEWHERE_FROM, NORMAL_FROM, MIN_NORMAL_SCORE = 0.95, 0.85, 30.0
OWN_WORDS = 2  # so many that no other field has, and the text is not about one, whatever else it fits
# A text without this field's words: below this share no other field is near, from this score on this one is.
ELSEWHERE_ALONE, MIN_SCORE_ALONE = 0.75, 24.0
CONFIDENCE_OF_NO_FAILURE = 0.8
MAX_EVIDENCE = 3
_SHOWN_GOOD = frozenset({"log.steps_even", "log.finished"})
_GOOD_SIGNS = _SHOWN_GOOD | {"said.goes_well"}


def compose_symptom(text: str, book: Playbook, decision: Decision, findings: Findings, paths: Sequence[str]) -> Verdict:
    """The verdict on a text: like :func:`compose`, with words where the evidence leaves something open."""
    verdict = compose("explain_symptom", book, decision, findings, paths)
    if verdict.status == "healthy" or (verdict.status == "diagnosed" and paths):
        return verdict
    weighed = weigh(text, book, decision, findings)
    suspected = verdict.status == "suspected"
    if suspected and not paths:  # what ends a process ends those of every field
        if not _is_ours(text, findings) and _fits_elsewhere(text, weighed, own_words=1):
            return _out_of_domain(weighed)
    elif not paths and verdict.status == "inconclusive":
        elsewhere = _fits_elsewhere(text, weighed, own_words=OWN_WORDS)
        if not _is_ours(text, findings) and (elsewhere or _is_strange(text, weighed, findings)):
            return _out_of_domain(weighed)
        if _is_normal(weighed, findings):
            return _healthy(weighed, findings, text)
    closer = None if paths or verdict.failure_mode is None else _closer_by_words(verdict, book, weighed, decision)
    if closer is not None:
        _suspect_closer(verdict, book, closer, _confidence(weighed, book.entries[closer].refines), text)
    if closer is not None or verdict.status == "diagnosed":
        return verdict
    if _shows_only_good(findings, decision):
        return verdict
    alone = weighed.words_alone[0][0] if weighed.words_alone else None
    if suspected and alone == verdict.failure_mode and _confidence(weighed) >= SUSPECTED_FROM:
        verdict.candidates[0].confidence = SHOWN_AND_LED
    _rule_out_outdated(verdict, weighed, decision)
    _add_candidates(verdict, book, weighed, decision)
    if suspected:
        return verdict
    possible = alone is not None and alone not in _contradicted(decision)
    if alone is not None and possible and not paths and _leads(alone, verdict, weighed):
        confidence = _confidence(weighed)
        known = findings.ranks or _known_words(text, "domain_words")
        if known and confidence >= SUSPECTED_FROM and not _tells_of_no_failure(weighed, findings):
            _suspect(verdict, book, alone, confidence, text)
    branch = _branch_of(text)
    if verdict.status == "inconclusive" and not says_something(findings.observations):
        what = f"reads like {branch['reads_like']}, and names" if branch else "names"
        verdict.summary = f"Not decided: the text {what} nothing that only one cause shows"
    if branch and not paths:
        verdict.next_checks.insert(0, NextCheck(tool="triage", arguments={"paths": ["FOLDER"]}, why=branch["collect"]))
    if verdict.candidates and not any(c.tool == "playbook" for c in verdict.next_checks):
        why = "the text alone does not decide it; this entry says what would"
        query = verdict.candidates[0].failure_mode
        verdict.next_checks.append(NextCheck(tool="playbook", arguments={"query": query}, why=why))
    return verdict


def _confidence(weighed: Weighed, beside: Collection[str] = ()) -> float:
    """How often the best entry is right when words alone lead to it as they do here; ``beside`` are no rivals of it."""
    lead = weighed.lead_beside(beside)
    if weighed.best_score >= MIN_SCORE and lead >= MIN_LEAD and not weighed.is_bare:
        beyond = min(1.0, (lead - MIN_LEAD) / (FULL_LEAD - MIN_LEAD))
        return round(LED + beyond * (FULLY_LED - LED), 2)
    return round(NO_LEAD + min(1.0, lead / MIN_LEAD) * (OPEN - NO_LEAD), 2)


def _leads(entry_id: str, verdict: Verdict, weighed: Weighed) -> bool:
    """Whether an entry is first by words and evidence together as well, and nothing speaks against it."""
    return weighed.modes[0][0] == entry_id and all(r.failure_mode != entry_id for r in verdict.ruled_out)


def _rule_out_outdated(verdict: Verdict, weighed: Weighed, decision: Decision) -> None:
    """Say of what the words fit well, and the versions do not, that it is out, before all else that is."""
    known = {r.failure_mode for r in verdict.ruled_out}
    because = decision.by_version.outdated
    found = [RuledOut(failure_mode=n, because=because[n]) for n in weighed.outdated if n not in known]
    verdict.ruled_out = [*found, *verdict.ruled_out][:MAX_RULED_OUT]


def _closer_by_words(verdict: Verdict, book: Playbook, weighed: Weighed, decision: Decision) -> str | None:
    """What the words clearly fit, where the lines show only what it leads to: a killed process, an exception."""
    alone = weighed.words_alone[0][0] if weighed.words_alone else None
    if alone is None or alone in _contradicted(decision) or verdict.failure_mode not in book.entries[alone].refines:
        return None
    return alone if _confidence(weighed, book.entries[alone].refines) >= SUSPECTED_FROM else None


def _suspect_closer(verdict: Verdict, book: Playbook, entry_id: str, confidence: float, text: str) -> None:
    """Put an entry before the one that the lines show, with the lines of both."""
    shown, others = verdict.candidates[0], [c for c in verdict.candidates[1:] if c.failure_mode != entry_id]
    shown.confidence = min(shown.confidence, OPEN)
    lines = verdict.evidence
    verdict.candidates = [Candidate(failure_mode=entry_id, confidence=confidence), shown, *others][:MAX_CANDIDATES]
    _suspect(verdict, book, entry_id, confidence, text)
    verdict.evidence = [*lines, *(e for e in verdict.evidence if e not in lines)]
    verdict.ruled_out = [r for r in verdict.ruled_out if r.failure_mode != entry_id]


def _contradicted(decision: Decision) -> set[str]:
    """The entries that something speaks against; that nothing shows an entry does not count, where words may."""
    return {entry.id for entry, _ in decision.ruled_out} | decision.excluded


def _add_candidates(verdict: Verdict, book: Playbook, weighed: Weighed, decision: Decision) -> None:
    """Order the candidates by evidence and words together; a suspected mode stays the first.

    Where the words fit nothing well, as those of a bare traceback, what the lines speak for comes before all else.
    """
    ruled_out = _contradicted(decision).union(weighed.outdated)
    shown = {assessment.entry.id for assessment in decision.assessments}
    first = [c for c in verdict.candidates if c.failure_mode == verdict.failure_mode]
    others = [name for name, _ in weighed.modes if name != verdict.failure_mode and name not in ruled_out]
    if weighed.best_score < MIN_SCORE:
        others.sort(key=lambda name: name not in shown)
    # Of an exception and what it is an exception of, the latter is asked for.
    alone = weighed.words_alone[0][0] if weighed.words_alone else None
    if alone in others and weighed.lead >= MIN_LEAD and others[0] in book.entries[alone].refines:
        others.sort(key=lambda name: name != alone)
    steps = CONFIDENCE_OF_OTHERS if first else (min(OPEN, _confidence(weighed)), *CONFIDENCE_OF_OTHERS)
    room = MAX_CANDIDATES - len(first)
    verdict.candidates = [
        *first,
        *(Candidate(failure_mode=n, confidence=c) for n, c in zip(others[:room], steps, strict=False)),
    ]
    if verdict.candidates:
        verdict.confidence = verdict.candidates[0].confidence
    named = {c.failure_mode for c in verdict.candidates}
    verdict.ruled_out = [r for r in verdict.ruled_out if r.failure_mode not in named]


def _suspect(verdict: Verdict, book: Playbook, entry_id: str, confidence: float, text: str) -> None:
    """Name the entry that the words fit, and say that it is no more than that."""
    entry = book.entries[entry_id]
    verdict.status = "suspected"
    verdict.branch, verdict.failure_mode, verdict.confidence = entry.branch, entry.id, confidence
    verdict.summary = f"The words fit one known cause far better than any other, and nothing proves it: {entry.title}"
    verdict.cause, verdict.fix = entry.cause, list(entry.fix)
    lines = telling_lines(book, entry.id, text, MAX_EVIDENCE)
    verdict.evidence = [quote_line("text", number, line, "text.reads_like") for number, line in lines]
    verdict.candidates[0] = Candidate(failure_mode=entry.id, confidence=confidence)


def _out_of_domain(weighed: Weighed) -> Verdict:
    summary = "This does not look like a failure of a distributed PyTorch job"
    if weighed.elsewhere.share >= ELSEWHERE_FROM:
        other = load_backgrounds().elsewhere[weighed.elsewhere.id]
        summary += f"; it reads like a question about {other.title}"
    return Verdict(tool="explain_symptom", status="out_of_domain", summary=summary, confidence=CONFIDENCE_OF_NO_FAILURE)


def _is_normal(weighed: Weighed, findings: Findings) -> bool:
    """Whether the text is about something normal, tells of a job that goes on, and of no failure."""
    names = {o.name for o in findings.observations}
    trouble = any(o.health == "trouble" and o.kind != "said" for o in findings.observations)
    asked = bool(names & _GOOD_SIGNS) or "said.asks_if_normal" in names
    fits = weighed.normal.share >= NORMAL_FROM and weighed.normal.score >= MIN_NORMAL_SCORE
    # Who says that something fails is believed, unless the lines show the job going on ("is a rank stuck here?").
    return fits and asked and not trouble and ("said.fails" not in names or bool(names & _SHOWN_GOOD))


def _shows_only_good(findings: Findings, decision: Decision) -> bool:
    """Whether it is an excerpt of a run in which nothing looks wrong, of which nobody says that something is."""
    good = any(o.health == "good" and o.kind != "said" for o in findings.observations)
    said = any(o.kind == "said" and o.name != "said.version" for o in findings.observations)
    return good and not decision.assessments and not said


def _tells_of_no_failure(weighed: Weighed, findings: Findings) -> bool:
    """Whether nothing is said to fail, and the text asks, or fits something normal as well as any failure.

    No failure is suspected of such a text for its words alone.
    """
    names = {o.name for o in findings.observations}
    return "said.fails" not in names and ("said.asks_if_normal" in names or weighed.normal.share >= NORMAL_FROM)


def _healthy(weighed: Weighed, findings: Findings, text: str) -> Verdict:
    thing = load_backgrounds().normal[weighed.normal.id]
    signs = [o for o in findings.observations if o.name in _GOOD_SIGNS]
    evidence: list[Evidence] = [e for o in signs for e in o.evidence][:MAX_EVIDENCE]
    known = set(words(thing.words))
    lines = sorted(enumerate(text.split("\n"), start=1), key=lambda item: -len(known.intersection(words(item[1]))))
    evidence += [quote_line("text", number, line, "text.reads_like") for number, line in lines[:1]]
    return Verdict(
        tool="explain_symptom",
        status="healthy",
        summary=f"What is described is normal: {thing.title}",
        confidence=CONFIDENCE_OF_NO_FAILURE,
        cause=thing.means,
        evidence=evidence,
        gaps=["judged by the text alone: a failure that it does not tell of would not be seen"],
    )


def _is_strange(text: str, weighed: Weighed, findings: Findings) -> bool:
    """Whether a text has none of this field's words, and is not clearly nearer to one of its failures all the same."""
    fits_here = weighed.best_score >= MIN_SCORE_ALONE and weighed.elsewhere.share < ELSEWHERE_ALONE
    return not findings.ranks and not _known_words(text, "domain_words") and not fits_here


def _is_ours(text: str, findings: Findings) -> bool:
    """Whether a text cannot be of another field: ranks are named, or it is nothing but an allocator's own message."""
    if findings.ranks:
        return True
    refused = any(o.name == "log.cuda_out_of_memory" for o in findings.observations)
    return refused and not any(is_prose(line) for line in text.splitlines()[:MAX_LINES])


def _fits_elsewhere(text: str, weighed: Weighed, own_words: int) -> bool:
    """Whether another field fits as well as any failure, and fewer words than so many are this field's alone."""
    own = _known_words(text, "domain_words") - _known_words(text, "shared_words")
    return weighed.elsewhere.share >= ELSEWHERE_FROM and len(own) < own_words


def _branch_of(text: str) -> dict[str, Any] | None:
    """The branch of the decision tree whose words the text uses, if any."""
    said = set(words(text))
    for branch in load_tree()["branches"]:
        if "words" in branch and not said.isdisjoint(words(branch["words"])):
            return branch
    return None


def _known_words(text: str, vocabulary: str) -> set[str]:
    """The words of a text that stand in a vocabulary of skill/decision_tree.yaml."""
    # Of "init_process_group" only the whole counts: its parts are words of every field.
    terms = [words(term) for line in load_tree()[vocabulary] for term in line.split()]
    return {term[0] for term in terms if term}.intersection(words(text))
