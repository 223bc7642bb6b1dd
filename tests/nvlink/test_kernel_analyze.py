"""Which signals kernel logs give, and what a verdict makes of them."""

from pathlib import Path
from typing import Any

import pytest

from nvlink.lines import at, churn, link_down, lost, recovery, switch_fault, torn_down, xid
from torchtriage.artefacts.evidence import check_evidence
from torchtriage.artefacts.recognise import recognise
from torchtriage.nvlink.kernel_analyze import analyze, host_of
from torchtriage.nvlink.kernel_read import read_task
from torchtriage.report import Signal, Verdict
from torchtriage.verdict.tool import triage

QUIET = at(1.0, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build")
STEPS = [f"2026-03-02 01:00:0{n} INFO [rank{{0}}] step={n} loss=2.{n} step_s=0.1" for n in range(1, 6)]
FINISH = "2026-03-02 01:00:09 INFO [rank{0}] training finished"


def signals(folder: Path, *lines: str, ranks: Any = (), pids: Any = ()) -> list[Signal]:
    log = folder / "dmesg.txt"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return analyze([("n1/kernel/dmesg.txt", read_task(str(log), None, {}))], {}, dict(ranks), dict(pids)).signals


def only(folder: Path, *lines: str, **known: Any) -> Signal:
    (signal,) = signals(folder, *lines, **known)
    return signal


def verdict(folder: Path, *lines: str, job: list[str] | None = None) -> Verdict:
    for name, told in (("kernel/dmesg.txt", list(lines)), ("logs/rank0.log", job or [])):
        if told:
            path = folder / "bundle" / "n1" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(told) + "\n", encoding="utf-8")
    found = triage([str(folder / "bundle")])
    assert all(check_evidence(evidence, [str(folder / "bundle")]) for evidence in found.evidence)
    return found


def finished_job() -> list[str]:
    return [line.format(0) for line in [*STEPS, FINISH]]


def test_a_lost_gpu_is_trouble_and_names_its_gpu_host_and_rank(tmp_path: Path) -> None:
    signal = only(tmp_path, lost("91", seconds=5.0), ranks={"n1/0000:91:00.0": [6]})
    assert signal.name == "kernel.xid_root"
    assert (signal.scope.gpus, signal.scope.hosts, signal.scope.ranks) == (["0000:91:00"], ["n1"], [6])
    assert {"xid": 79, "family": "bus", "action": "reboot_node", "n_gpus": 1}.items() <= signal.facts.items()


def test_a_link_that_went_down_is_told_with_its_link_and_what_followed(tmp_path: Path) -> None:
    lines = [link_down("1b", 7, 4, seconds=1.0), churn("43", 3, seconds=1.1), recovery("1b", 0, 1, seconds=1.2)]
    signal = only(tmp_path, *lines)
    assert signal.scope.links == ["0000:1b:00 link 7"]
    assert signal.facts["also_xids"] == [145, 154]
    assert [evidence.where for evidence in signal.evidence] == ["1", "2", "3"]


def test_a_root_at_the_other_end_is_not_sure_and_names_no_gpu(tmp_path: Path) -> None:
    signal = only(tmp_path, link_down("1b", 7, 33, seconds=1.0), ranks={"0000:1b:00": [0]})
    assert (signal.facts["sure"], signal.facts["end"]) == (False, "peer")
    assert (signal.scope.gpus, signal.scope.ranks) == ([], [])


def test_the_same_fault_again_is_one_signal(tmp_path: Path) -> None:
    lines = [at(100.0 * n, xid("1b", 119, "Timeout after 6s of waiting for RPC response", pid=5)) for n in range(4)]
    signal = only(tmp_path, *lines)
    assert (signal.facts["n_incidents"], signal.facts["count"]) == (4, 4)


def test_a_fault_of_another_program_is_no_trouble_of_this_job(tmp_path: Path) -> None:
    lines = [
        xid("38", 13, "Graphics SM Warp Exception", seconds=1.0),
        xid("38", 43, "Ch 00000008", seconds=1.1, pid=77),
    ]
    assert only(tmp_path, *lines).name == "kernel.xid_other"
    own = only(tmp_path, *lines, pids={77: 3})
    assert (own.name, own.scope.ranks) == ("kernel.xid_root", [3])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (churn("1b", 3, seconds=1.0), "kernel.xid_benign"),
        (xid("1b", 149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00006226 0x00000001)"), "kernel.link_marginal"),
        (xid("1b", 63, "Row Remapper: New row marked for remapping, reset gpu to activate."), "kernel.xid_other"),
        (torn_down("1b", 5, 1, seconds=1.0), "kernel.xid_other"),
        (switch_fault(1, 48, seconds=1.0), "kernel.sxid_root"),
        (switch_fault(1, 48, seconds=1.0).replace("Fatal", "Non-fatal"), "kernel.sxid_other"),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "kernel.links_not_found",
        ),
        (xid("1b", 94, "Contained: SM (0x1). RST: No, D-RST: No"), "kernel.xid_root"),
        (xid("1b", 137, "NVLink FLA fault: Failed to resolve a mapping"), "kernel.xid_other"),
    ],
)
def test_each_kind_has_its_signal(tmp_path: Path, line: str, name: str) -> None:
    assert only(tmp_path, line).name == name


def test_how_often_churn_comes_is_told_where_there_is_enough_of_it(tmp_path: Path) -> None:
    assert only(tmp_path, *(churn("1b", 3, seconds=36.0 * n) for n in range(101))).facts["per_hour"] == 101.0
    assert "per_hour" not in only(tmp_path, churn("1b", 3, seconds=1.0)).facts


def test_the_host_is_the_folder_of_the_bundle() -> None:
    assert host_of("n1/kernel/dmesg.txt") == "n1"
    assert host_of("dmesg.txt") is None


@pytest.mark.parametrize("line", [lost("91"), switch_fault(1, 48, seconds=1.0), f"4,1227,5000,c,1,-;{lost('91')}"])
def test_lines_that_were_cut_out_of_a_kernel_log_are_one_still(line: str) -> None:
    assert recognise(line.encode(), "xid.txt").kind == "kernel_log"


def test_a_quiet_kernel_log_is_silent(tmp_path: Path) -> None:
    assert signals(tmp_path, QUIET) == []


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ([QUIET, lost("91", seconds=5.0), switch_fault(1, 48, seconds=17.0)], "gpu-lost-from-bus-or-power"),
        ([QUIET, xid("52", 48, "An uncorrectable double bit error", seconds=5.0)], "gpu-memory-ecc-failure"),
        ([QUIET, link_down("1b", 7, 4, seconds=5.0), churn("43", 3, seconds=5.1)], "nvlink-failed-on-one-gpu"),
        ([QUIET, switch_fault(1, 48, seconds=17.0)], "nvlink-failed-on-one-gpu"),
    ],
)
def test_the_verdict_names_what_the_kernel_log_shows(tmp_path: Path, lines: list[str], mode: str) -> None:
    found = verdict(tmp_path, *lines)
    assert (found.status, found.failure_mode) == ("diagnosed", mode)


def test_a_word_that_points_at_the_other_end_leaves_a_doubt_and_says_where_to_look(tmp_path: Path) -> None:
    found = verdict(tmp_path, QUIET, link_down("1b", 7, 33, seconds=5.0))
    assert (found.status, found.failure_mode) == ("suspected", "nvlink-failed-on-one-gpu")
    assert found.culprits.gpus == []
    assert "other end" in found.summary


def test_a_flood_of_survived_events_is_a_marginal_fabric(tmp_path: Path) -> None:
    found = verdict(tmp_path, QUIET, *(churn("1b", 3, seconds=10.0 * n) for n in range(400)))
    assert (found.status, found.failure_mode) == ("suspected", "marginal-nvlink-fabric")


@pytest.mark.parametrize(
    "line",
    [
        QUIET,
        churn("1b", 3, seconds=1.0),
        lost("91", seconds=5.0),
        xid("38", 13, "Graphics Exception", seconds=1.0, pid=7),
    ],
)
def test_a_job_that_finished_is_healthy_whatever_the_kernel_told_of_before(tmp_path: Path, line: str) -> None:
    assert verdict(tmp_path, QUIET, line, job=finished_job()).status == "healthy"
