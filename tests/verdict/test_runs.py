from pathlib import Path

import pytest

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.verdict.runs import several_runs
from torchtriage.verdict.tool import triage


def log(ranks: tuple[int, ...], prefix: str = "[rank{}]") -> str:
    return "".join(f"{prefix.format(r)} step {s} loss 7.{s}\n" for s in range(5) for r in ranks)


def runs(tmp_path: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with open_inputs([str(tmp_path)]) as inputs:
        return several_runs(inputs)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"run-1/a.log": log((0, 1)), "run-2/a.log": log((0, 1))}, ["run-1", "run-2"]),
        ({"node0/a.log": log((0, 1)), "node1/a.log": log((2, 3))}, []),
        ({"rank_0/stderr.log": log((0,)), "rank_1/stderr.log": log((1,))}, []),
        ({"node0/a.log": log((0, 1), "[default{}]:"), "node1/a.log": log((0, 1), "[default{}]:")}, []),
        ({"a.log": log((0, 1)), "b.log": log((0, 1))}, []),
    ],
)
def test_runs_are_told_from_parts_of_one_run(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    assert runs(tmp_path, files) == expected


def test_several_runs_get_no_common_verdict(tmp_path: Path, cases: Path) -> None:
    for name in ("case-002", "case-012"):
        (tmp_path / name).symlink_to(cases / name)  # links are not followed, so copy below
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "torchrun.log").write_bytes((cases / name / "inputs" / "torchrun.log").read_bytes())
    verdict = triage([str(tmp_path)])
    assert verdict.status == "inconclusive"
    assert "2 runs are mixed" in verdict.summary
    assert [c.arguments["paths"] for c in verdict.next_checks] == [[f"{tmp_path}/case-002"], [f"{tmp_path}/case-012"]]
