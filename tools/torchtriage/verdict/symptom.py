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
from torchtriage.report import SUSPECTED_FROM, Candidate, NextCheck, Verdict
from torchtriage.verdict.compose import MAX_CANDIDATES, compose
from torchtriage.verdict.summary import says_something
from torchtriage.verdict.words import Weighed, weigh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.report import Evidence
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.gather import Findings

# How far words must lead, and how much must be said, before a mode is suspected for them alone; and the share of such
# answers that are right, by that lead. Measured: benchmarks/symptoms.py, table "What a confidence is worth".
MIN_LEAD, MIN_SCORE = 0.3, 34.0
CONFIDENCE_BY_LEAD = ((0.4, 0.79), (MIN_LEAD, 0.7))
CONFIDENCE_OPEN = (0.38, 0.15, 0.1, 0.07, 0.05)  # of the candidates of an open verdict, best first
# From which share of the best entry's score on another field, or something normal, is what the text is about.
ELSEWHERE_FROM, NORMAL_FROM, MIN_NORMAL_SCORE = 0.95, 0.85, 30.0
ELSEWHERE_ALONE = 0.4  # below this, no other field is near
CONFIDENCE_OF_NO_FAILURE = 0.8
MAX_EVIDENCE = 3
_SHOWN_GOOD = frozenset({"log.steps_even", "log.finished"})
_GOOD_SIGNS = _SHOWN_GOOD | {"said.goes_well"}


def compose_symptom(text: str, book: Playbook, decision: Decision, findings: Findings, paths: Sequence[str]) -> Verdict:
    """The verdict on a text: like :func:`compose`, with words where the evidence leaves something open."""
    verdict = compose("explain_symptom", book, decision, findings, paths)
    if verdict.status in ("diagnosed", "healthy"):
        return verdict
    weighed = weigh(text, book, decision, findings)
    suspected = verdict.status == "suspected"
    if not paths and not suspected:
        strange = not findings.ranks and not _is_in_domain(text) and not _fits_here_alone(weighed)
        if strange or weighed.elsewhere.share >= ELSEWHERE_FROM:
            return _out_of_domain(weighed)
        if _is_normal(weighed, findings):
            return _healthy(weighed, findings, text)
    if _shows_only_good(findings, decision):
        return verdict
    alone = weighed.words_alone[0][0] if weighed.words_alone else None
    if suspected and alone == verdict.failure_mode:  # what the lines make likely, the words say as well
        verdict.candidates[0].confidence = max(verdict.confidence, _confidence(weighed))
    _add_candidates(verdict, weighed)
    if suspected:
        return verdict
    if alone is not None and not paths and _leads(alone, verdict, weighed):
        confidence = _confidence(weighed)
        if confidence >= SUSPECTED_FROM and not _tells_of_no_failure(weighed, findings):
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


def _confidence(weighed: Weighed) -> float:
    """How often the best entry is right when words alone lead to it as they do here."""
    if weighed.best_score >= MIN_SCORE:
        for lead, confidence in CONFIDENCE_BY_LEAD:
            if weighed.lead >= lead:
                return confidence
    return CONFIDENCE_OPEN[0]


def _leads(entry_id: str, verdict: Verdict, weighed: Weighed) -> bool:
    """Whether an entry is first by words and evidence together as well, and nothing speaks against it."""
    return weighed.modes[0][0] == entry_id and all(r.failure_mode != entry_id for r in verdict.ruled_out)


def _add_candidates(verdict: Verdict, weighed: Weighed) -> None:
    """Order the candidates by evidence and words together; a suspected mode stays the first."""
    ruled_out = {r.failure_mode for r in verdict.ruled_out}
    first = [c for c in verdict.candidates if c.failure_mode == verdict.failure_mode]
    others = [name for name, _ in weighed.modes if name != verdict.failure_mode and name not in ruled_out]
    steps = CONFIDENCE_OPEN[len(first) :]
    room = MAX_CANDIDATES - len(first)
    verdict.candidates = [
        *first,
        *(Candidate(failure_mode=n, confidence=c) for n, c in zip(others[:room], steps, strict=False)),
    ]
    if verdict.candidates:
        verdict.confidence = verdict.candidates[0].confidence


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
    return good and not decision.assessments and not any(o.kind == "said" for o in findings.observations)


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


def _fits_here_alone(weighed: Weighed) -> bool:
    """Whether a text without this field's usual words is still nearer to one of its failures than to another field."""
    return weighed.best_score >= MIN_SCORE and weighed.elsewhere.share < ELSEWHERE_ALONE


def _branch_of(text: str) -> dict[str, Any] | None:
    """The branch of the decision tree whose words the text uses, if any."""
    said = set(words(text))
    for branch in load_tree()["branches"]:
        if "words" in branch and not said.isdisjoint(words(branch["words"])):
            return branch
    return None


def _is_in_domain(text: str) -> bool:
    """Whether the text shares a word with this field's vocabulary (skill/decision_tree.yaml)."""
    # Of "init_process_group" only the whole counts: its parts are words of every field.
    terms = [words(term) for line in load_tree()["domain_words"] for term in line.split()]
    known = {term[0] for term in terms if term}
    return not known.isdisjoint(words(text))
