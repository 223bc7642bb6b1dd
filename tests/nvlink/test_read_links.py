"""What is read off nvidia-smi's and dcgmi's answers about links."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlink.link_answers import counters, header, states
from torchtriage.nvlink.gpus import gpus_of
from torchtriage.nvlink.judge import judge
from torchtriage.nvlink.read import read_lines, read_task

RECORDED = Path(__file__).resolve().parents[1] / "data" / "nvlink" / "healthy_h200"


def test_states_and_speeds_are_read() -> None:
    (gpu,) = read_lines(states(3, link1="<inactive>", link2="53.125 GB/s (sleep)"))["gpus"]
    assert (gpu["index"], gpu["name"]) == (3, "NVIDIA H200")
    assert gpu["states"]["0"][:2] == ["active", 26.562]
    assert gpu["states"]["1"][:2] == ["inactive", None]
    assert gpu["states"]["2"][:2] == ["sleep", 53.125]


@pytest.mark.parametrize(
    "line",
    [
        "NVML: Unable to retrieve NVLink information as all links are inactive",
        "NVML:Unable to retrieve Nvlink information as all links are inActive",
    ],
)
def test_both_spellings_of_all_inactive_belong_to_the_gpu_above(line: str) -> None:
    first, second = read_lines([*states(0), header(1), line])["gpus"]
    assert (first["inactive"], second["inactive"]) == (None, [21, line])


def test_counters_of_every_family_are_kept_under_their_own_words() -> None:
    labels = [
        "Replay Errors", "Malformed packet Errors", "Link recovery failed events", "Effective BER", "FEC Errors - 12",
        "Raw BER Lane 0", "Frobnicated Things",
    ]  # fmt: skip
    (gpu,) = read_lines(counters(0, n_links=1, labels=labels, set_to={(0, "Effective BER"): "15e-255"}))["gpus"]
    assert list(gpu["counters"]["0"]) == [label.lower() for label in labels]
    assert gpu["counters"]["0"]["effective ber"][0][0] == 15e-255


def test_a_second_section_is_a_second_reading() -> None:
    again = counters(0, n_links=2, set_to={(1, "CRC Errors"): 7})
    (gpu,) = read_lines([*counters(0, n_links=2), *again])["gpus"]
    assert [reading[0] for reading in gpu["counters"]["1"]["crc errors"]] == [0, 7]


def test_lane_counts_below_a_link_are_that_links() -> None:
    (gpu,) = read_lines([header(0), "\t Link 0:", "\t\t Lane 1 ECC Correction Count: 11 (Overflow=0)"])["gpus"]
    assert gpu["counters"]["0"]["lane 1 ecc correction count"][0][0] == 11


def test_tables_of_topo_are_read_with_their_escape_sequences() -> None:
    lines = ["\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m", "GPU0\t X \tNV18\t0-31", "GPU1\tNV18\t X \t0-31", ""]
    (paths,) = read_lines(lines)["matrices"]
    assert (paths["kind"], paths["rows"]["1"][0]) == ("paths", ["NV18", "X"])
    (peers,) = read_lines([" \tGPU0\tGPU1", " GPU0\tX\tNS", " GPU1\tNS\tX"])["matrices"]
    assert (peers["kind"], peers["rows"]["0"][0]) == ("peers", ["X", "NS"])


def test_text_and_xml_of_q_tell_the_same() -> None:
    text, xml = (read_task(str(RECORDED / name), None, {})["gpus"] for name in ("q.txt", "q_x.txt"))
    for of_text, of_xml in zip(text, xml, strict=True):
        assert of_text["name"] == of_xml["name"] == "NVIDIA H200"
        for path in ("fabric/state", "fabric/status", "gpu_recovery_action", "ecc_errors/volatile/dram_uncorrectable"):
            assert of_text["facts"][path][0] == of_xml["facts"][path][0]


def test_cut_outs_of_q_are_a_gpu_each() -> None:
    lines = ["    Fabric", "        State   : Completed", "        Status  : Success"] * 2
    first, second = read_lines(lines)["gpus"]
    assert first["facts"]["fabric/status"][0] == second["facts"]["fabric/status"][0] == "Success"


def test_tables_of_dcgmi_are_read() -> None:
    listed = read_lines(["GPUs:", "    gpuId 0:", "        U U D X _ _"])["gpus"][0]["states"]
    assert {link: state[0] for link, state in listed.items()} == {
        "0": "active", "1": "active", "2": "down", "3": "disabled",
    }  # fmt: skip
    box = [
        "| GPU 2                                      |", "| Link 5                |                    |",
        "| -> CRC FLIT Error           | 41                    |",
    ]  # fmt: skip
    assert read_lines(box)["gpus"][0]["counters"]["5"]["crc flit error"][0][0] == 41


def test_a_log_names_no_gpus() -> None:
    lines = ["step 1 loss 2.3", "GPU 0: allocated 3 GiB", "Fabric softener: none", "Link 3: https://example.org"]
    assert read_lines(lines)["gpus"] == []


_WORDS = st.sampled_from(
    ["GPU 0: NVIDIA H200", " Link 1: ", "<inactive>", "26.562 GB/s", "Errors: ", "7", "GPU0\tGPU1", "GPU0 X NS", "NV18",
     "Fabric", "    State : ", "Completed", "<gpu id=\"0:0:0.0\">", "<fabric>", "<state>N/A</state>", "</gpu>", "\n",
     "<nvidia_smi_log>", "gpuId 0:", " U U D", "| GPU 1   |", "all links are inActive",
     "NVML: Unable to retrieve NVLink "]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(_WORDS, st.text(max_size=12)), max_size=60))
def test_whatever_is_written_is_read_without_a_fault(pieces: list[str]) -> None:
    judge(gpus_of([("any.txt", read_lines("".join(pieces).split("\n")))]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=40))
def test_text_of_any_kind_accuses_nothing(lines: list[str]) -> None:
    assert judge(gpus_of([("any.txt", read_lines(lines))])).faults == []
