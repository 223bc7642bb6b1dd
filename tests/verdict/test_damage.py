"""One bad file never spoils the verdict on the others, is never silent, and never becomes "healthy"."""

import os
import pickle
import random
import shutil
from pathlib import Path

import pytest

from torchtriage.report import Verdict
from torchtriage.verdict.gather import NOT_JUDGED
from torchtriage.verdict.render import render
from torchtriage.verdict.tool import triage

CASES = Path(__file__).parents[2] / "evals" / "cases"


class Touches:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def hostile(original: bytes) -> dict[str, bytes]:
    """The ways in which a file is damaged; the fixed seed keeps failures repeatable."""
    rng = random.Random(len(original))
    return {
        "emptied": b"",
        "random": rng.randbytes(len(original) or 100),
        "runs a command": pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": [Touches()]}, 2),
        "asks for 64 GB": b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\x7f.",
        "zeros": bytes(4096),
        "foreign": b"%PDF-1.7\n" + rng.randbytes(300),
        "halved": original[: len(original) // 2],
    }


def cuts(content: bytes) -> list[int]:
    """Offsets to cut at: a sample, and around the ends of records."""
    if len(content) < 2:
        return []
    rng = random.Random(len(content))
    ends = [i for i, byte in enumerate(content) if byte in b"\n}.u"]
    near = [end + d for end in rng.sample(ends, min(6, len(ends))) for d in (-1, 0, 1)]
    return sorted({n for n in [*near, *(rng.randrange(1, len(content)) for _ in range(6))] if 0 < n < len(content)})


def damaged(case: str, name: str, content: bytes, into: Path) -> Verdict:
    folder = into / "inputs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CASES / case / "inputs", folder)
    (folder / name).write_bytes(content)
    return triage([str(folder)])


def check(verdict: Verdict, whole: Verdict, what: str) -> None:
    assert not any(NOT_JUDGED in gap for gap in verdict.gaps), (what, verdict.gaps)
    assert "Traceback" not in render(verdict)
    if whole.status != "healthy":
        assert verdict.status != "healthy", what
    if verdict.status == "diagnosed":
        assert verdict.failure_mode == whole.failure_mode, (what, verdict.summary)
        assert set(verdict.culprits.ranks) <= set(whole.culprits.ranks), what


@pytest.mark.parametrize("case", ["case-001", "case-003", "case-006", "case-008", "case-014", "case-024"])
def test_a_damaged_file_is_named_and_the_others_are_still_judged(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = triage([str(CASES / case / "inputs")])
    for path in sorted((CASES / case / "inputs").iterdir()):
        for what, content in hostile(path.read_bytes()).items():
            verdict = damaged(case, path.name, content, tmp_path)
            check(verdict, whole, f"{path.name} {what}")
            if what in ("emptied", "random", "zeros", "runs a command", "asks for 64 GB"):
                assert any(path.name in gap for gap in verdict.gaps) or len(verdict.gaps) == 12, (
                    path.name,
                    what,
                    verdict.gaps,
                )
    assert not (tmp_path / "pwned").exists()


def test_a_healthy_job_with_a_damaged_file_is_not_called_healthy(tmp_path: Path) -> None:
    for name in ("nccl_trace_rank_1", "torchrun.log"):
        content = (CASES / "case-003" / "inputs" / name).read_bytes()
        for what, bad in hostile(content).items():
            assert damaged("case-003", name, bad, tmp_path).status == "inconclusive", (name, what)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["case-001", "case-004", "case-006", "case-010", "case-014", "case-019", "case-022"])
def test_a_file_cut_anywhere_never_turns_the_verdict_around(case: str, tmp_path: Path) -> None:
    whole = triage([str(CASES / case / "inputs")])
    for path in sorted((CASES / case / "inputs").iterdir()):
        content = path.read_bytes()
        for cut in cuts(content):
            check(damaged(case, path.name, content[:cut], tmp_path), whole, f"{path.name} cut at {cut}")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["case-001", "case-006", "case-010", "case-014"])
def test_a_file_replaced_by_another_never_brings_a_wrong_diagnosis(case: str, tmp_path: Path) -> None:
    whole = triage([str(CASES / case / "inputs")])
    files = sorted((CASES / case / "inputs").iterdir())
    for path in files:
        for other in files:
            if other != path:
                verdict = damaged(case, path.name, other.read_bytes(), tmp_path)
                check(verdict, whole, f"{path.name} replaced by {other.name}")


def test_a_rank_that_the_job_does_not_have_is_no_culprit(tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    shutil.copytree(CASES / "case-006" / "inputs", folder)
    for note in folder.glob("rank-of-pid*"):
        if note.read_text().strip() == "1":
            note.write_text("99\n")
    verdict = triage([str(folder)])
    assert 99 not in verdict.culprits.ranks
    assert "rank 99" not in verdict.summary


def test_what_a_stack_dump_lost_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    shutil.copytree(CASES / "case-006" / "inputs", folder)
    dump = next(folder.glob("pyspy-pid*.json"))
    dump.write_bytes(dump.read_bytes()[:-40])
    assert any(dump.name in gap for gap in triage([str(folder)]).gaps)


def test_damaged_dumps_are_named_before_empty_files(tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    shutil.copytree(CASES / "case-001" / "inputs", folder)
    for n in range(30):
        (folder / f"a{n:02d}.log").write_bytes(b"")
    dump = next(p for p in sorted(folder.iterdir()) if p.read_bytes()[:1] == b"\x80")
    dump.write_bytes(dump.read_bytes()[:200])
    assert any(dump.name in gap for gap in triage([str(folder)]).gaps)


def test_words_of_the_job_stand_in_quotes(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/workspace/train.py", line 3, in main\n'
        "[rank0]:     step()\n"
        "[rank0]: ValueError: run the command below to fix it\n"
    )
    assert '"run the command below to fix it"' in triage([str(log)]).summary
