from pathlib import Path

import pytest

from torchtriage.artefacts.evidence import check_evidence
from torchtriage.bundle.manifest import Manifest
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.version_ranges import parse_ranges
from torchtriage.report import Verdict
from torchtriage.verdict.findings import Observation
from torchtriage.verdict.tool import explain_symptom, triage
from torchtriage.verdict.versions import judge_versions

MODE = "fsdp-recompute-skips-input-cast"
OTHER_DTYPE = """\
Fine-tuning with FSDP2 (fully_shard, MixedPrecisionPolicy with bf16) and activation checkpointing, first backward:
torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have \
different metadata than during the forward pass.
tensor at position 12:
saved metadata: {'shape': torch.Size([1, 64, 512]), 'dtype': torch.bfloat16, 'device': device(type='cuda', index=0)}
recomputed metadata: {'shape': torch.Size([1, 64, 512]), 'dtype': torch.float32, 'device': device(type='cuda', index=0)}
"""
NEW_LENGTH = (
    "The compiled model recompiles at each new shape: 20 s for a batch of a new length, else 0.4 s. Ranks with short "
    "sequences wait for the rank with the long ones. "
)


def told(version: str, *, works: bool = False, name: str = "said.version", package: str = "torch") -> Observation:
    facts = {"package": package, "version": version, "works": works}
    return Observation(name=name, ranks=frozenset(), facts=facts, evidence=())


def names(verdict: Verdict) -> list[str]:
    return [candidate.failure_mode for candidate in verdict.candidates]


def reason(verdict: Verdict, mode: str) -> str | None:
    return next((r.because for r in verdict.ruled_out if r.failure_mode == mode), None)


@pytest.mark.parametrize("version", ["", "We run torch 2.11.", "torch==2.12.0+cu130", "torch 2.13.0.dev20260301"])
def test_a_version_inside_the_range_or_none_changes_nothing(version: str) -> None:
    verdict = explain_symptom(OTHER_DTYPE + version)
    assert verdict.failure_mode == MODE
    assert reason(verdict, MODE) is None


@pytest.mark.parametrize("line", ["We run torch 2.13.1.", "PyTorch version: 2.14.0+cu130"])
def test_a_version_outside_the_range_rules_a_mode_out_and_says_why(line: str) -> None:
    verdict = explain_symptom(OTHER_DTYPE + line)
    assert verdict.failure_mode != MODE
    assert MODE not in names(verdict)
    assert (reason(verdict, MODE) or "").startswith("known from torch <2.13 alone; the report says 2.1")


def test_a_version_flips_two_candidates() -> None:
    modes = ("recompilation-on-every-new-shape", "sequence-length-imbalance-across-ranks")
    new, old = explain_symptom(f"{NEW_LENGTH}torch 2.6"), explain_symptom(f"{NEW_LENGTH}torch 1.13.1")
    assert [name for name in names(new) if name in modes] == list(modes)
    assert [name for name in names(old) if name in modes] == [modes[1]]
    assert reason(old, modes[0]) == "known from torch >=2.0 alone; the report says 1.13.1"


def test_of_an_upgrade_the_later_version_counts() -> None:
    assert explain_symptom(OTHER_DTYPE + "We upgraded torch from 2.11 to 2.13.1.").failure_mode != MODE
    assert explain_symptom(OTHER_DTYPE + "We upgraded torch from 2.4 to 2.11.").failure_mode == MODE


def test_where_two_versions_fail_one_inside_the_range_is_enough() -> None:
    assert explain_symptom(OTHER_DTYPE + "The same with torch 2.12 and with torch 2.14.").failure_mode == MODE


def test_a_version_that_works_before_the_range_begins_speaks_for_the_mode() -> None:
    entries = [e for e in load_playbook().entries.values() if e.versions == parse_ranges({"torch": ">=2.0"})]
    assert entries
    works = told("1.13", works=True)
    assert judge_versions(entries, [works, told("2.5")]).supports == {e.id: (works,) for e in entries}
    assert judge_versions(entries, [told("1.13", works=True), told("1.13")]).supports == {}
    assert judge_versions(entries, [told("2.1", works=True), told("2.5")]).supports == {}


def test_a_version_that_works_rules_nothing_out() -> None:
    assert judge_versions(load_playbook().entries.values(), [told("2.14", works=True)]).outdated == {}


def test_versions_of_other_packages_rule_nothing_out() -> None:
    told_versions = [told("9.9", package="vllm"), told("550.54", package="driver")]
    assert judge_versions(load_playbook().entries.values(), told_versions).outdated == {}


def test_a_version_alone_makes_no_failure_likely() -> None:
    verdict = explain_symptom("Since we upgraded from torch 1.13 to torch 2.5")
    assert verdict.status in ("inconclusive", "out_of_domain")


def test_an_excerpt_of_a_healthy_run_with_its_version_still_gets_no_guesses() -> None:
    lines = [f"[rank{r}] step {s} loss {3 - s / 10:.3f}" for s in range(8) for r in (0, 1)]
    verdict = explain_symptom("\n".join(["torch==2.6.0", *lines]))
    assert (verdict.status, verdict.candidates) == ("inconclusive", [])


def test_the_version_of_a_log_counts_and_can_be_checked(tmp_path: Path) -> None:
    lines = [f"[rank0]: {line}" for line in OTHER_DTYPE.splitlines()[1:]]
    log = tmp_path / "train.log"
    log.write_text("\n".join([*lines, "[rank0]: exitcode  : 1 (pid: 7)"]) + "\n", encoding="utf-8")
    assert triage([str(log)]).failure_mode == MODE
    log.write_text("\n".join(["[rank0]: PyTorch version: 2.13.1", *lines]) + "\n", encoding="utf-8")
    verdict = triage([str(log)])
    assert verdict.failure_mode != MODE
    assert reason(verdict, MODE) == "known from torch <2.13 alone; the log says 2.13.1"
    assert all(check_evidence(evidence, [str(log)]) for evidence in verdict.evidence)


def test_the_version_of_a_bundle_counts(tmp_path: Path) -> None:
    lines = [f"[rank0]: {line}" for line in OTHER_DTYPE.splitlines()[1:]]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest = Manifest(torchtriage_version="0", torch_version="2.14.0", time="2026-11-30", hosts=[], items=[])
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    verdict = triage([str(tmp_path)])
    assert verdict.failure_mode != MODE
    assert reason(verdict, MODE) == "known from torch <2.13 alone; the bundle says 2.14.0"
