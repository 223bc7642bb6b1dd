"""The verdict on a pasted text or a description: decided like any other, with the playbook's words as a last resort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_line
from torchtriage.knowledge.search import search, telling_lines, words
from torchtriage.knowledge.tree import load_tree
from torchtriage.report import Candidate, NextCheck, Verdict
from torchtriage.verdict.compose import MAX_CANDIDATES, compose
from torchtriage.verdict.summary import says_something

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.gather import Findings

# Words alone: "look here first", unless one entry fits far better than all others. How often that is right is measured
# by benchmarks/symptoms.py.
SEARCHED = 0.3
SEARCHED_CLEARLY = 0.7
MIN_LEAD = 0.3
MIN_SCORE = 34.0
MAX_EVIDENCE = 3


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
    if not says_something(findings.observations):
        what = f"reads like {branch['reads_like']}, and names" if branch else "names"
        verdict.summary = f"Not decided: the text {what} nothing that only one cause shows"
    known = {c.failure_mode for c in verdict.candidates} | {r.failure_mode for r in verdict.ruled_out}
    found = search(book, text, MAX_CANDIDATES)
    for rank, (entry_id, _) in enumerate(found):
        if entry_id not in known and len(verdict.candidates) < MAX_CANDIDATES:
            verdict.candidates.append(Candidate(failure_mode=entry_id, confidence=round(SEARCHED / (rank + 2), 3)))
    verdict.candidates.sort(key=lambda c: -c.confidence)
    verdict.confidence = verdict.candidates[0].confidence if verdict.candidates else 0.0
    said = search(book, _without_symptoms(text, findings), 2) if not paths else []
    if _is_clear(said) and said[0][0] not in {r.failure_mode for r in verdict.ruled_out}:
        _suspect(verdict, book, said[0][0], text)
    if branch and not paths:
        verdict.next_checks.insert(0, NextCheck(tool="triage", arguments={"paths": ["FOLDER"]}, why=branch["collect"]))
    if verdict.candidates and not any(c.tool == "playbook" for c in verdict.next_checks):
        first = verdict.candidates[0].failure_mode
        why = "the text alone does not decide it; this entry says what would"
        verdict.next_checks.append(NextCheck(tool="playbook", arguments={"query": first}, why=why))
    return verdict


def _is_clear(found: Sequence[tuple[str, float]]) -> bool:
    """Whether the first entry fits well, and far better than the second."""
    if len(found) < 2 or found[0][1] < MIN_SCORE:
        return False
    return 1 - found[1][1] / found[0][1] >= MIN_LEAD


def _without_symptoms(text: str, findings: Findings) -> str:
    """The text without the lines that every failure of their kind prints: a time-out speaks for no cause."""
    symptoms = {
        evidence.where
        for observation in findings.observations
        if observation.name == "log.template" and observation.facts["role"] not in ("cause", "ambiguous")
        for evidence in observation.evidence
    }
    return "\n".join(line for n, line in enumerate(text.split("\n"), start=1) if str(n) not in symptoms)


def _suspect(verdict: Verdict, book: Playbook, entry_id: str, text: str) -> None:
    """Name the entry that the words fit, and say that it is no more than that."""
    entry = book.entries[entry_id]
    verdict.status = "suspected"
    verdict.branch, verdict.failure_mode, verdict.confidence = entry.branch, entry.id, SEARCHED_CLEARLY
    verdict.summary = f"The words fit one known cause far better than any other, and nothing proves it: {entry.title}"
    verdict.cause, verdict.fix = entry.cause, list(entry.fix)
    lines = telling_lines(book, entry.id, text, MAX_EVIDENCE)
    verdict.evidence = [quote_line("text", number, line, "text.reads_like") for number, line in lines]
    others = [c for c in verdict.candidates if c.failure_mode != entry.id][: MAX_CANDIDATES - 1]
    verdict.candidates = [Candidate(failure_mode=entry.id, confidence=SEARCHED_CLEARLY), *others]


def _branch_of(text: str) -> dict[str, Any] | None:
    """The branch of the decision tree whose words the text uses, if any."""
    said = set(words(text))
    for branch in load_tree()["branches"]:
        if "words" in branch and not said.isdisjoint(words(branch["words"])):
            return branch
    return None


def _is_in_domain(text: str) -> bool:
    """Whether the text shares a word with this field's vocabulary (skill/decision_tree.yaml)."""
    return not set(words(" ".join(load_tree()["domain_words"]))).isdisjoint(words(text))
