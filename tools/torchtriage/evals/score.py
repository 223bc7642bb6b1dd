"""Hold a verdict against a case's truth: mode, culprits, grounding, claims. Pure, apart from looking quotes up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.evidence import quote_occurs
from torchtriage.report import Model

if TYPE_CHECKING:
    from torchtriage.artefacts.inputs import Inputs
    from torchtriage.evals.case import Case
    from torchtriage.report import Verdict

# Truths that are answered by a status, not by a failure mode.
_BY_STATUS = {"healthy": "healthy", "insufficient-evidence": "inconclusive", "out-of-domain": "out_of_domain"}


class CaseScore(Model):
    """How one verdict did on one case."""

    id: str
    expected: str
    answered: str
    mode_right: bool
    culprits_right: bool
    abstained: bool
    claims_excluded_mode: bool
    evidence_grounded: bool


def score(case_id: str, case: Case, verdict: Verdict, inputs: Inputs) -> CaseScore:
    """Score one verdict; ``inputs`` are the case's own artefacts, in which the quotes must occur."""
    expected = case.expected
    answered = verdict.failure_mode or verdict.status
    wanted = _BY_STATUS.get(expected.failure_mode)
    right = (
        verdict.status == wanted if wanted else verdict.failure_mode in (expected.failure_mode, *expected.acceptable)
    )
    by_name = {a.name: a for a in inputs.artefacts}
    return CaseScore(
        id=case_id,
        expected=expected.failure_mode,
        answered=answered,
        mode_right=right,
        culprits_right=right and sorted(verdict.culprits.ranks) == sorted(expected.culprits.ranks),
        abstained=verdict.status == "inconclusive",
        claims_excluded_mode=verdict.failure_mode in expected.must_not_claim,
        evidence_grounded=all(e.artefact in by_name and quote_occurs(e, by_name[e.artefact]) for e in verdict.evidence),
    )
