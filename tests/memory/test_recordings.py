"""Snapshots recorded on an H200 by evals/faults/memory, against what the programs did."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from torchtriage import check_evidence, memory_snapshot

ROOT = Path(__file__).resolve().parents[2]
FAULTS: dict[str, Any] = yaml.safe_load((ROOT / "evals/faults/memory/faults.yaml").read_text(encoding="utf-8"))
# What a recording does not tell, and why.
OPEN = {
    "no-history": "nothing but the moment was recorded",
    "ring-truncated": "the ring holds less than two steps",
    "healthy-cuda-graph": "captured graphs replay without allocations",
    "fragmentation-expandable": "of four steps the later ones hold more than the first: chunks are filled",
    "healthy-first-steps": "only the first steps were recorded",
    "healthy-before-and-after": "the history of either moment is too short to see steps",
}


def recordings() -> dict[str, Path]:
    """The folder of each recorded fault, by the fault's name."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "evals/cases").glob("case-*/case.yaml")):
        command = yaml.safe_load(path.read_text(encoding="utf-8"))["provenance"].get("command", "")
        if "evals/faults/memory/record.py" in command:
            found[command.split()[-1]] = path.parent / "inputs"
    return found


RECORDED = recordings()


def of_site(site: str) -> str:
    """``function (/folder/file.py:12)`` as ``file.py:function``."""
    function, _, place = site.partition(" (")
    return f"{place.rpartition(':')[0].rpartition('/')[2]}:{function}"


@pytest.mark.parametrize("fault", sorted(RECORDED))
def test_a_recording_is_judged_as_its_program_deserves(fault: str) -> None:
    truth = FAULTS[fault]["truth"]
    report = memory_snapshot([str(RECORDED[fault])])
    told = [f for f in report.findings if f.kind != "history_truncated"]
    if fault in OPEN:
        assert report.status == "inconclusive", "decided now: take it out of the list"
        assert told == []
        assert report.gaps
        return
    if not truth["kinds"]:
        assert (report.status, told) == ("healthy", [])
        return
    assert report.status == "fault"
    first = told[0]
    assert first.kind in truth["kinds"]
    sites = truth.get("call_site", [])
    if first.kind in ("leak", "activation_peak", "single_large_allocation") and sites:
        assert of_site(first.call_site) in ([sites] if isinstance(sites, str) else sites)
    if "ranks" in truth:
        assert report.culprits.ranks == truth["ranks"]
    if first.kind == "leak" and "bytes_per_step" in truth and "bytes_per_step" in first.facts:
        assert first.facts["bytes_per_step"] == pytest.approx(truth["bytes_per_step"], rel=0.1)
    if "requested_bytes" in truth and "requested_bytes" in first.facts:
        assert first.facts["requested_bytes"] == truth["requested_bytes"]
    assert report.fixes


@pytest.mark.parametrize("fault", sorted(RECORDED))
def test_every_quotation_of_a_recording_is_found_again(fault: str) -> None:
    paths = [str(RECORDED[fault])]
    report = memory_snapshot(paths)
    assert report.evidence or not report.findings
    assert all(check_evidence(quote, paths) for quote in report.evidence)
