"""The verdict on every recorded case: right, or an honest abstention; never wrong, and every quote found again."""

from pathlib import Path

import pytest

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.evals.case import load_case
from torchtriage.evals.score import score
from torchtriage.report import DIAGNOSED_FROM
from torchtriage.signals import SIGNALS
from torchtriage.verdict.gather import NOT_JUDGED
from torchtriage.verdict.render import render
from torchtriage.verdict.tool import triage

CASES = sorted((Path(__file__).parents[2] / "evals" / "cases").iterdir())

# Cases that what is read today does not decide, and why.
UNDECIDED = {
    "case-013": "only one number in the log differs, and nothing failed",
    "case-023": "nvidia-smi output is not judged yet",
    "case-055": "the run was looked at while it ran, and its end is not in the log",
    "case-056": "a lock that a rank waits for has no name",
    "case-058": "the log has no rank marks, and both ranks wait in one group at different places",
    "case-068": "a lock that a rank waits for has no name",
    "case-077": "the message alone does not tell what holds the memory",
    "case-079": "the log has no step numbers",
    "case-080": "the run was looked at while it ran, and only one rank printed its end",
    "case-091": "the run was looked at while it ran, and nothing has been logged for a while",
    "case-111": "the run was looked at while it ran, and both looks found it at a save",
    "case-112": "nothing is known of the rank that is gone: its log was not collected",
    "case-117": "the snapshot was taken without a history",
    "case-125": "of four recorded steps the later ones hold more than the first",
    "case-135": "the history's ring holds less than two steps",
    "case-144": "captured graphs replay without allocations, so that no steps are seen",
    "case-147": "only the first steps were recorded",
    "case-153": "the history of either snapshot is too short to see steps",
}
# Cases that are judged wrongly today: each must leave this list when it is mended.
MISJUDGED = {
    "case-078": "the log does not say how many ranks there are, so a fault of all ranks names none",
}


@pytest.mark.parametrize("folder", CASES, ids=lambda p: p.name)
def test_the_verdict_on_a_recorded_case_is_right_and_grounded(folder: Path) -> None:
    case = load_case(folder)
    inputs_folder = str(folder / case.inputs)
    verdict = triage([inputs_folder])
    with open_inputs([inputs_folder]) as inputs:
        result = score(folder.name, case, verdict, inputs)
    assert result.evidence_grounded
    assert not result.claims_excluded_mode
    assert not any(NOT_JUDGED in gap for gap in verdict.gaps)
    if folder.name in UNDECIDED:
        assert verdict.status == "inconclusive", "decided now: take it out of the list"
        assert verdict.failure_mode is None
        assert verdict.gaps or verdict.next_checks
        return
    if folder.name in MISJUDGED:
        assert not result.culprits_right, "right now: take it out of the list"
        return
    assert result.mode_right, (result.answered, verdict.summary)
    assert result.culprits_right, verdict.culprits
    if verdict.failure_mode:
        assert verdict.branch
        assert verdict.cause
        assert verdict.fix
        assert verdict.evidence
        assert (verdict.status == "diagnosed") == (verdict.confidence >= DIAGNOSED_FROM)


@pytest.mark.parametrize("folder", CASES, ids=lambda p: p.name)
def test_the_text_of_a_verdict_begins_with_the_answer_and_is_short(folder: Path) -> None:
    verdict = triage([str(folder / "inputs")])
    text = render(verdict)
    assert text.startswith(verdict.status.upper())
    assert verdict.summary in text.splitlines()[0]
    # Some 600 tokens of about four characters, with room for numbers and the long paths of a bundle.
    assert len(text) < 3000, len(text)


def test_the_name_of_a_folder_decides_nothing(tmp_path: Path) -> None:
    source = CASES[0] / "inputs"
    for number, path in enumerate(sorted(source.iterdir())):
        content = path.read_bytes()
        # Ranks must still be told: that is what names are for.
        kept = path.name if content[:1] == b"\x80" or "pid" in path.name else f"{number:02d}"
        (tmp_path / kept).write_bytes(content)
    verdict = triage([str(tmp_path)])
    assert (verdict.failure_mode, verdict.culprits.ranks) == ("collective-skipped-on-one-rank", [1])


def test_an_archive_of_a_folder_gets_the_verdict_of_the_folder(tmp_path: Path) -> None:
    import shutil

    for folder in CASES[:6]:
        archive = shutil.make_archive(str(tmp_path / folder.name), "gztar", folder / "inputs")
        plain, packed = triage([str(folder / "inputs")]), triage([archive])
        assert packed.model_dump(exclude={"next_checks"}) == plain.model_dump(exclude={"next_checks"})


def test_files_given_one_by_one_get_the_verdict_of_the_folder() -> None:
    folder = CASES[0] / "inputs"
    verdict = triage([str(p) for p in sorted(folder.iterdir())])
    assert (verdict.failure_mode, verdict.culprits.ranks) == ("collective-skipped-on-one-rank", [1])


def test_every_signal_that_the_playbook_names_is_emitted_by_an_analyzer() -> None:
    """A signal that nothing emits would make an entry dead; the rooms' sources and tests show that each one is."""
    from torchtriage.knowledge.load import load_playbook

    named = {n for e in load_playbook().entries.values() for c in e.conditions() for n in c.signals}
    named |= {n for e in load_playbook().entries.values() for n in e.culprit_from}
    assert named <= set(SIGNALS)
    tests = "\n".join(p.read_text(encoding="utf-8") for p in Path(__file__).parents[1].glob("**/test_*.py"))
    seen = {s for f in CASES for e in triage([str(f / "inputs")]).evidence for s in (e.signal,)}
    untold = {name for name in named if name not in seen and name.partition(".")[2] not in tests}
    assert untold == set()
