"""A log that was thinned, in parts, gives the verdict that reading every line of it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtriage.evals.case import load_case
from torchtriage.verdict.tool import triage

CASES = sorted((Path(__file__).parents[2] / "evals" / "cases").iterdir())


def _same_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(folder / load_case(folder).inputs)]
    whole = triage(paths)
    monkeypatch.setattr("torchtriage.logs.scan.thin.THIN_FROM_BYTES", 0)
    monkeypatch.setattr("torchtriage.logs.scan.thin.MIN_PART_BYTES", 20_000)

    thinned = triage(paths)

    assert thinned.model_dump() == whole.model_dump()


@pytest.mark.parametrize("folder", CASES[::9], ids=lambda p: p.name)
def test_a_recorded_case_is_judged_alike_when_its_logs_are_thinned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _same_verdict(folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("folder", CASES, ids=lambda p: p.name)
def test_every_recorded_case_is_judged_alike_when_its_logs_are_thinned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _same_verdict(folder, monkeypatch)


@pytest.mark.parametrize("free_text", [False, True])
def test_one_failed_rank_is_found_in_a_large_log_with_a_long_run_before_it(tmp_path: Path, *, free_text: bool) -> None:
    path = tmp_path / "train.log"
    with path.open("w", encoding="utf-8") as out:
        for step in range(7000):
            for rank in range(16):
                out.write(f"[rank{rank}]: 2026-11-30 {step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d} ")
                out.write(f"step {step} loss 2.5 grad_norm 0.3\n")
                if free_text:
                    out.write(f"[rank{rank}]: shard {hash((step, rank)):x} opened\n")
        out.write("[rank11]: Traceback (most recent call last):\n")
        out.write('[rank11]:   File "/workspace/train.py", line 40, in <module>\n[rank11]:     main()\n')
        out.write("[rank11]: ValueError: bad sample 7\n")

    verdict = triage([str(path)])

    assert path.stat().st_size > 6 << 20
    assert (verdict.failure_mode, verdict.culprits.ranks) == ("python-exception-on-one-rank", [11])
