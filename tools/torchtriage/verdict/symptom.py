"""The verdict on a pasted text or a description: decided like any other, with the playbook's words as a last resort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.knowledge.search import search, words
from torchtriage.knowledge.tree import load_tree
from torchtriage.report import Candidate, NextCheck, Verdict
from torchtriage.verdict.compose import MAX_CANDIDATES, compose
from torchtriage.verdict.summary import says_something

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.gather import Findings

# Words alone never say more than "look here first".
SEARCHED = 0.3


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
    said = set(words(text))
    for branch in load_tree()["branches"]:
        if "words" in branch and not said.isdisjoint(words(branch["words"])):
            return branch
    return None


def _is_in_domain(text: str) -> bool:
    """Whether the text shares a word with this field's vocabulary (skill/decision_tree.yaml)."""
    return not set(words(" ".join(load_tree()["domain_words"]))).isdisjoint(words(text))
