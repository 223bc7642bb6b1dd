"""What would free memory, by the bytes of the snapshot itself."""

from pathlib import Path

import pytest

from torchtriage import memory_snapshot
from torchtriage.memory.fixes import load_fixes
from torchtriage.memory.render import render
from torchtriage.tool_reports import MemoryKind

CASES = Path(__file__).resolve().parents[2] / "evals/cases"
KINDS = set(MemoryKind.__args__)


def test_every_fix_names_findings_and_categories_that_exist() -> None:
    categories = {
        "found", "requested", "expandable", "stranded", "activations", "temporaries", "parameters", "gradients",
        "optimizer_state", "kv_cache",
    }  # fmt: skip
    for fix in load_fixes():
        assert set(fix["kinds"]) <= KINDS
        assert set(fix.get("frees", {})) <= categories
        assert all(share == "per_rank" or 0 < share <= 1 for share in fix.get("frees", {}).values())


@pytest.mark.parametrize("kind", sorted(KINDS - {"history_truncated"}))
def test_every_kind_of_fault_has_a_fix(kind: str) -> None:
    assert any(kind in fix["kinds"] for fix in load_fixes())


def test_fixes_of_the_leading_finding_come_first_with_most_bytes_first() -> None:
    report = memory_snapshot([str(CASES / "case-146" / "inputs")])
    assert report.findings[0].kind == "activation_peak"
    told = [fix.frees_bytes for fix in report.fixes if fix.frees_bytes is not None]
    assert told == sorted(told, reverse=True)
    assert told[0] <= report.devices[0].allocated_bytes


def test_the_text_leads_with_the_answer_and_is_short() -> None:
    for number in (115, 127, 146, 152):
        text = render(memory_snapshot([str(CASES / f"case-{number}" / "inputs")]))
        assert text.startswith("fault: ")
        assert "fix, by what it would free here:" in text
        assert len(text) < 4 * 900


def test_a_healthy_snapshot_has_no_fixes() -> None:
    report = memory_snapshot([str(CASES / "case-138" / "inputs")])
    assert (report.status, report.fixes) == ("healthy", [])
