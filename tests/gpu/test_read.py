"""Reading answers of nvidia-smi: CSV, XML, sentences about a lost GPU, and what is cut, missing or not supported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.answers import APPS, HEADER, app, gpu, read
from torchtriage.artefacts.recognise import recognise
from torchtriage.errors import UnreadableError
from torchtriage.gpu.read import _rows, failures_task  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from pathlib import Path

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:3B:00.0">
		<product_name>NVIDIA H200</product_name>
		<uuid>GPU-7</uuid>
		<clocks_event_reasons>
			<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
			<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
		</clocks_event_reasons>
		<fb_memory_usage>
			<total>143771 MiB</total>
		</fb_memory_usage>
		<utilization>
			<gpu_util>97 %</gpu_util>
		</utilization>
		<ecc_errors>
			<volatile>
				<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
				<dram_uncorrectable>2</dram_uncorrectable>
			</volatile>
			<aggregate>
				<dram_uncorrectable>9</dram_uncorrectable>
			</aggregate>
		</ecc_errors>
		<remapped_rows>
			<remapped_row_pending>Yes</remapped_row_pending>
			<remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<gpu_power_readings>
			<average_power_draw>600.10 W</average_power_draw>
			<instant_power_draw>N/A</instant_power_draw>
			<current_power_limit>700.00 W</current_power_limit>
		</gpu_power_readings>
		<clocks>
			<sm_clock>600 MHz</sm_clock>
		</clocks>
		<max_clocks>
			<sm_clock>1980 MHz</sm_clock>
		</max_clocks>
		<processes>
			<process_info>
				<pid>4711</pid>
				<process_name>python3</process_name>
				<used_memory>2138 MiB</used_memory>
			</process_info>
		</processes>
	</gpu>
</nvidia_smi_log>"""


def test_rows_with_times_make_no_log_of_an_answer() -> None:
    for lines in ([HEADER, gpu(0), gpu(1)], [APPS, app(0, 1), app(0, 2)]):
        assert recognise("\n".join(lines).encode(), "any.csv").kind == "nvidia_smi"
    for text in ("step,loss,time\n1,2.0,10:00:01\n", "index, loss at step\n1, 2.0\n"):
        assert recognise(text.encode(), "any.csv").kind != "nvidia_smi"


def test_a_row_has_the_values_of_a_gpu_and_the_line_it_stands_on(tmp_path: Path) -> None:
    (row,) = read(tmp_path, HEADER, gpu(3))["gpus"]
    assert row["where"] == 2
    assert (row["index"], row["uuid"], row["bus"]) == (3, "GPU-3", "00000000:03:00.0")
    assert (row["utilisation"], row["power_w"], row["power_limit_w"]) == (98, 652.2, 700)
    assert (row["sm_mhz"], row["max_sm_mhz"], row["reasons"], row["uncorrected"]) == (1980, 1980, 4, 0)


@pytest.mark.parametrize(
    "said", ["N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "", "[Insufficient Permissions]"]
)
def test_what_is_not_told_is_none(tmp_path: Path, said: str) -> None:
    (row,) = read(tmp_path, HEADER, gpu(0, use=said, power=said, ecc=said))["gpus"]
    assert (row["utilisation"], row["power_w"], row["uncorrected"], row["lost"]) == (None, None, None, False)


def test_missing_columns_and_a_row_that_is_cut_give_what_is_there(tmp_path: Path) -> None:
    answer = read(tmp_path, "index, uuid, utilization.gpu [%]", "0, GPU-0, 12 %", "1, GPU-1, 3")
    assert [(row["uuid"], row["utilisation"], row["power_w"]) for row in answer["gpus"]] == [
        ("GPU-0", 12, None),
        ("GPU-1", 3, None),
    ]
    (row,) = read(tmp_path, HEADER, gpu(0)[:60])["gpus"]
    assert row["utilisation"] is None


def test_older_drivers_call_a_reason_to_lower_clocks_a_throttle_reason(tmp_path: Path) -> None:
    (row,) = read(tmp_path, HEADER.replace("clocks_event", "clocks_throttle"), gpu(0, reasons="0x48"))["gpus"]
    assert row["reasons"] == 0x48


def test_processes_are_read_whatever_their_name_holds(tmp_path: Path) -> None:
    answer = read(tmp_path, APPS, app(0, 71, name="train, really"), app(1, 72, name="[Not Found]"))
    assert [(row["pid"], row["uuid"], row["name"], row["memory_mib"]) for row in answer["processes"]] == [
        (71, "GPU-0", "train, really", 2138),
        (72, "GPU-1", None, 2138),
    ]


def test_the_xml_answer_gives_the_same_values_and_the_lines_they_stand_on(tmp_path: Path) -> None:
    answer = read(tmp_path, *XML.split("\n"))
    (row,) = answer["gpus"]
    assert (row["bus"], row["uuid"], row["utilisation"], row["memory_mib"]) == ("00000000:3B:00.0", "GPU-7", 97, 143771)
    assert (row["power_w"], row["sm_mhz"], row["max_sm_mhz"], row["reasons"]) == (600.1, 600, 1980, 0x08)
    assert (row["uncorrected"], row["remap_pending"], row["remap_failed"]) == (2, True, False)
    where, text = row["places"]["uncorrected"]
    assert text == XML.split("\n")[where - 1]
    assert [(p["pid"], p["uuid"]) for p in answer["processes"]] == [(4711, "GPU-7")]
    assert answer["notes"] == []


def test_an_xml_answer_that_ends_early_says_so(tmp_path: Path) -> None:
    answer = read(tmp_path, *XML.split("\n")[:20])
    assert answer["gpus"][0]["utilisation"] == 97
    assert answer["notes"] == ["the answer ends early; what came before was read"]


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU0000:86:00.0: Unknown Error",
    ],
)
def test_a_sentence_about_a_lost_gpu_names_its_address(tmp_path: Path, line: str) -> None:
    assert recognise(line.encode(), "gpu/query-gpu.csv").kind == "nvidia_smi"
    (failure,) = read(tmp_path, line)["failures"]
    assert (failure["where"], failure["bus"]) == (1, "0000:86:00.0")


def test_a_row_of_a_gpu_that_is_gone_is_lost_and_one_sensor_that_fails_is_not(tmp_path: Path) -> None:
    gone = ", ".join(["1", *["[GPU is lost]"] * 4])
    dead = ", ".join(["2", *["[Unknown Error]"] * 4])
    header = "index, uuid, power.draw [W], utilization.gpu [%], clocks.current.sm [MHz]"
    rows = read(tmp_path, header, "0, GPU-0, [Unknown Error], 3 %, 210 MHz", gone, dead)["gpus"]
    assert [row["lost"] for row in rows] == [False, True, True]


def test_other_answers_are_passed_on_as_not_read(tmp_path: Path) -> None:
    assert read(tmp_path, "GPU 0: NVIDIA H200 (UUID: GPU-1)", "\t Link 0: 26.562 GB/s")["form"] == "other"


def test_a_manifest_tells_which_questions_got_no_answer(tmp_path: Path) -> None:
    items = [
        {"kind": "nvidia_smi", "error": "nvidia-smi did not answer in time", "host": "node1"},
        {"kind": "nvidia_smi", "error": "exit code 9: no driver", "host": "node1"},
        {"kind": "ras", "error": "did not answer in time", "host": "node1"},
        "odd",
    ]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"items": items}), encoding="utf-8")
    assert failures_task(str(path), None, {})["unanswered"] == [
        {"where": "/items/0/error", "error": "nvidia-smi did not answer in time", "host": "node1"}
    ]
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UnreadableError):
        failures_task(str(path), None, {})


PIECES = st.sampled_from(
    [
        HEADER,
        APPS,
        gpu(0),
        app(0, 5),
        *XML.split("\n"),
        "GPU is lost. Reboot the system",
        "<gpu id=",
        ", ,",
        "\x00",
        "0x",
    ]
)


@given(st.lists(PIECES | st.text(max_size=60), max_size=40))
def test_no_mixture_of_lines_breaks_the_reader(lines: list[str]) -> None:
    json.dumps(_rows(lines))
