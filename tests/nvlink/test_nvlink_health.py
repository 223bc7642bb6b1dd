"""``nvlink_health`` on recorded answers: statuses, actions, evidence, the text, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvlink.link_answers import counters, states
from torchtriage import check_evidence, nvlink_health
from torchtriage.cli import main
from torchtriage.errors import BadCallError, OutsideRootsError
from torchtriage.nvlink.render import render

if TYPE_CHECKING:
    from torchtriage.nvlink.report import NvlinkReport

RECORDED = Path(__file__).resolve().parents[1] / "data" / "nvlink" / "healthy_h200"
Q = """\
GPU 00000000:52:00.0
    Product Name                          : NVIDIA H200
    GPU Recovery Action                   : {action}
    ECC Errors
        Volatile
            DRAM Uncorrectable            : {dram}
        Aggregate
            DRAM Uncorrectable            : 12
    Remapped Rows
        Uncorrectable Error               : 1
        Pending                           : {pending}
        Remapping Failure Occurred        : {failure}
    Fabric
        State                             : {state}
        Status                            : {status}
        Health
            Summary                       : {summary}
"""
SOUND = {
    "action": "None", "dram": "0", "pending": "No", "failure": "No", "state": "Completed", "status": "Success",
    "summary": "Healthy",
}  # fmt: skip


def of(tmp_path: Path, *texts: str | list[str]) -> NvlinkReport:
    for number, text in enumerate(texts):
        lines = text if isinstance(text, str) else "\n".join(text) + "\n"
        (tmp_path / f"answer-{number}.txt").write_text(lines, encoding="utf-8")
    return nvlink_health([tmp_path])


def test_a_recorded_healthy_node_is_ok_and_says_what_was_seen() -> None:
    report = nvlink_health(RECORDED)
    assert (report.status, report.action, report.gaps, report.evidence) == ("ok", "none", [], [])
    assert [(gpu.status, gpu.expected_links, gpu.active_links) for gpu in report.gpus] == [("ok", 18, 18)] * 2
    assert [gpu.pci_bus_id for gpu in report.gpus] == ["0000:00:06.0", "0000:00:07.0"]
    assert "2 GPUs (NVIDIA H200); 18 active links each; no error counter stands out" in report.summary


@pytest.mark.parametrize("name", ["nvlink_s", "nvlink_e", "topo_m", "topo_p2p_n", "q", "q_x"])
def test_each_answer_alone_accuses_nothing(name: str) -> None:
    assert nvlink_health(RECORDED / f"{name}.txt").status == "ok"


def test_answers_in_one_file_are_read_like_several(tmp_path: Path) -> None:
    texts = [(RECORDED / f"{name}.txt").read_text("utf-8") for name in ("topo_m", "nvlink_s", "q_x", "nvlink_e", "q")]
    report = of(tmp_path, "\n".join(texts))
    assert [(gpu.status, gpu.active_links, len(gpu.links)) for gpu in report.gpus] == [("ok", 18, 18)] * 2


@pytest.mark.parametrize(
    ("told", "status", "action"),
    [
        ({}, "ok", "none"),
        ({"action": "Reset"}, "degraded", "reset_gpu"),
        ({"action": "Drain and Reset"}, "degraded", "drain_and_reset"),
        ({"action": "Reboot"}, "failed", "reboot_node"),
        ({"dram": "3"}, "degraded", "reset_gpu"),
        ({"pending": "Yes"}, "degraded", "reset_gpu"),
        ({"failure": "Yes"}, "failed", "replace_hardware"),
        ({"state": "In Progress", "status": "N/A"}, "failed", "investigate_software"),
        ({"status": "Insufficient Resources"}, "failed", "investigate_software"),
        ({"summary": "Unhealthy"}, "failed", "reset_gpu"),
        ({"summary": "Limited Capacity"}, "degraded", "reset_gpu"),
    ],
)
def test_what_the_driver_says_of_a_gpu_decides(told: dict[str, str], status: str, action: str, tmp_path: Path) -> None:
    report = of(tmp_path, Q.format(**(SOUND | told)))
    assert (report.status, report.action) == (status, action)
    assert bool(report.evidence) == bool(told)


def test_only_what_is_known_without_links_is_unknown(tmp_path: Path) -> None:
    report = of(tmp_path, Q.format(**(SOUND | {"state": "N/A", "status": "N/A", "summary": "N/A"})))
    assert report.status == "unknown"
    assert any("nvidia-smi nvlink -s" in gap for gap in report.gaps)
    assert report.next_checks[0].tool == "nvlink_health"


def test_a_lost_gpu_is_failed(tmp_path: Path) -> None:
    xml = (RECORDED / "q_x.txt").read_text("utf-8").split("</gpu>")
    xml[1] = xml[1].replace("<state>Completed<", "<state>GPU is lost<")
    report = of(tmp_path, "</gpu>".join(xml))
    assert (report.status, report.action) == ("failed", "reboot_node")
    assert [gpu.status for gpu in report.gpus] == ["ok", "failed"]
    sentence = "Unable to determine the device handle for GPU0000:86:00.0: GPU is lost.  Reboot the system\n"
    (tmp_path / "other").mkdir()
    assert nvlink_health([_written(tmp_path / "other" / "said.txt", sentence)]).culprits.gpus == ["0000:86:00.0"]


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_evidence_can_be_found_again(tmp_path: Path) -> None:
    report = of(tmp_path, [*states(0, link4="<inactive>"), *states(1)], counters(1, set_to={(2, "CRC Errors"): 9000}))
    assert (report.status, report.culprits.links) == ("failed", ["GPU 0 link 4", "GPU 1 link 2"])
    assert len(report.evidence) == 2
    assert all(check_evidence(quote, [str(tmp_path)]) for quote in report.evidence)
    links = {link.link: link for link in report.gpus[0].links}
    assert (links[4].status, links[4].state, links[3].status) == ("failed", "inactive", "ok")


def test_a_baseline_is_compared_with(tmp_path: Path) -> None:
    def reading(name: str, errors: int) -> Path:
        lines = [*counters(0), *counters(1, set_to={(2, "Replay Errors"): errors})]
        return _written(tmp_path / name, "\n".join(lines))

    old, same, grown = reading("old.txt", 700), reading("same.txt", 700), reading("grown.txt", 702)
    assert nvlink_health(same).status == "degraded"
    assert nvlink_health(same, baseline=[old]).status == "ok"
    report = nvlink_health(grown, baseline=[old])
    assert (report.status, report.gpus[1].links[2].growth) == ("degraded", {"replay errors": 2.0})


def test_messages_of_the_kernel_are_incidents(tmp_path: Path) -> None:
    line = "[  812.334110] NVRM: Xid (PCI:0000:52:00): 79, pid=1200, name=python3, GPU has fallen off the bus.\n"
    report = nvlink_health([_written(tmp_path / "dmesg.txt", line)])
    assert (report.status, report.incidents[0]["root"]["xid"]) == ("failed", 79)
    assert report.culprits.gpus == ["0000:52:00"]


def test_nodes_are_kept_apart(tmp_path: Path) -> None:
    for host, lines in (("node-a", states(0)), ("node-b", states(0, link1="<inactive>"))):
        (tmp_path / host / "gpu").mkdir(parents=True)
        _written(tmp_path / host / "gpu" / "nvlink-s.txt", "\n".join(lines))
    report = nvlink_health([tmp_path])
    assert [(gpu.host, gpu.status) for gpu in report.gpus] == [("node-a", "ok"), ("node-b", "failed")]
    assert report.culprits.hosts == ["node-b"]


def test_nothing_about_links_is_unknown(tmp_path: Path) -> None:
    report = of(tmp_path, "step 1 loss 2.31\nstep 2 loss 2.28\n")
    assert (report.status, report.gpus) == ("unknown", [])


def test_a_window_is_of_a_live_look(tmp_path: Path) -> None:
    with pytest.raises(BadCallError):
        nvlink_health([tmp_path], window=5)
    with pytest.raises(BadCallError):
        nvlink_health(window=-1)


def test_files_outside_the_roots_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    outside = _written(tmp_path / "out.txt", "\n".join(states(0)))
    with pytest.raises(OutsideRootsError):
        nvlink_health([outside], roots=[tmp_path / "in"])
    inside = _written(tmp_path / "in" / "s.txt", "\n".join(states(0)))
    with pytest.raises(OutsideRootsError):
        nvlink_health([inside], baseline=[outside], roots=[tmp_path / "in"])


def test_the_text_tells_status_links_and_reason(tmp_path: Path) -> None:
    text = render(of(tmp_path, [*states(0, link4="<inactive>"), *states(1)]))
    assert text.startswith("failed: GPU 0: link 4 is inactive: 17 of 18 are active\naction: reset_gpu\n")
    assert "17/18" in text
    assert "Next: torchtriage triage" in text


def test_the_command_gates_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = _written(tmp_path / "s.txt", "\n".join(states(0, link4="<inactive>")))
    assert main(["nvlink-health", str(RECORDED)]) == 0
    assert main(["nvlink-health", str(bad), "--per_link"]) == 1
    assert "link 4: failed, inactive" in capsys.readouterr().out
    assert main(["nvlink-health", str(_written(tmp_path / "x.txt", "nothing\n"))]) == 3
    capsys.readouterr()
    main(["nvlink-health", str(bad), "--json"])
    assert json.loads(capsys.readouterr().out)["gpus"][0]["links"][4]["status"] == "failed"
