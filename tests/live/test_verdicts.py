"""The verdict on jobs that run here and are looked at while they hang, or whose logs are read when they have failed.

No verdict may accuse somebody who did nothing, on any fault; those that cannot be told yet are listed with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING

import jsonschema
import pytest
from faults.drill.launch import Drill, Fault, has_ended, load_faults, started

from stacks.live_processes import need_ptrace, state
from torchtriage.bundle.tool import collect
from torchtriage.schemas import schema
from torchtriage.verdict.tool import triage

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.report import Verdict

FAULTS = load_faults()
IN_EVERY_RUN = ("stopped", "file-wait", "blocked-http-call", "exception")
# Faults that a look at a job over gloo does not decide on every machine, and why.
OPEN = {
    "ordinary-run": "ranks that work are a step apart when they are looked at, which alone does not show health",
    "two-group-order": "over gloo there is no flight record, and stacks alone do not tell the order of groups",
    "sizes-differ": "gloo aborts on a rank that received the wrong length, and does not say whose call differs",
    "exception-kept-alive": "the rank lives on and is seen in a wait, so that its exception is taken for a handled one",
}
ACCUSES_FROM = 0.8
"""The confidence from which a verdict is acted on."""

pytestmark = [
    # Two jobs beside each other would make each other slow, and a slow rank looks like a stuck one.
    pytest.mark.xdist_group("live"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or importlib.util.find_spec("torch") is None,
        reason="starts training jobs: needs Linux and torch",
    ),
]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=() if each.name in IN_EVERY_RUN else pytest.mark.slow) for each in FAULTS],
)
def test_a_job_is_judged_rightly_and_left_as_it_is(fault: Fault, tmp_path: Path) -> None:
    if fault.needs == "root" and os.geteuid():
        pytest.skip("mounts a file system: needs root")
    need_ptrace()

    with started(fault, tmp_path / "job") as drill:
        if fault.state("gloo") in ("hangs", "runs"):
            verdict = _look(drill, tmp_path / "bundle")
        else:
            verdict = triage([str(drill.logs), str(drill.console)])

    _accuses_nobody_wrongly(verdict, drill)
    if fault.name in OPEN and not _is_right(verdict, drill):
        pytest.xfail(OPEN[fault.name])
    assert _is_right(verdict, drill), (verdict.failure_mode, verdict.culprits.ranks, verdict.summary, verdict.gaps)


def _look(drill: Drill, bundle: Path) -> Verdict:
    """Collect while the job stands, see that it still does, and judge."""
    pids = list(drill.find_ranks().values())
    stopped = {pid for pid in pids if state(pid) in "Tt"}
    report = collect(pids=pids, output=str(bundle))

    assert not [pid for pid in pids if has_ended(pid)]
    assert {pid for pid in pids if state(pid) in "Tt"} == stopped
    assert report.ranks == [0, 1, 2, 3]
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema("manifest"))
    assert all((bundle / item["path"]).is_file() for item in manifest["items"] if item["path"])
    return triage([str(bundle)])


def _is_right(verdict: Verdict, drill: Drill) -> bool:
    if drill.fault.failure_mode == "healthy":
        allowed = {"healthy"} | ({"inconclusive"} if "insufficient-evidence" in drill.fault.acceptable else set())
        return verdict.status in allowed
    named = verdict.failure_mode in (drill.fault.failure_mode, *drill.fault.acceptable)
    return named and sorted(verdict.culprits.ranks) == drill.culprits


def _accuses_nobody_wrongly(verdict: Verdict, drill: Drill) -> None:
    told = (verdict.failure_mode, verdict.confidence, verdict.culprits.ranks, verdict.summary)
    if verdict.status == "diagnosed":
        assert verdict.failure_mode in (drill.fault.failure_mode, *drill.fault.acceptable), told
    if verdict.confidence >= ACCUSES_FROM:
        assert set(verdict.culprits.ranks) <= set(drill.culprits), told
    if drill.fault.failure_mode == "healthy":
        assert verdict.failure_mode is None, told
        assert not verdict.culprits.ranks, told
