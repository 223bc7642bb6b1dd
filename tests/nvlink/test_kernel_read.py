"""Reading NVIDIA's messages off kernel logs."""

import csv
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlink.lines import at, link_down, lost, switch_fault, xid
from torchtriage.nvlink.kernel_read import (
    KEPT_FIRST,
    KEPT_LAST,
    MAX_KEYS,
    KernelEvent,
    bus_id,
    events_of,
    read_events,
    read_task,
)

DEAD = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def only(*lines: str) -> KernelEvent:
    (event,) = read_events(lines)
    return event


@pytest.mark.parametrize(
    ("prefix", "seconds", "clock", "host"),
    [
        ("[   12.500000] ", 12.5, "boot", None),
        ("<4>[   12.500000] ", 12.5, "boot", None),
        ("[Mon Mar  2 01:00:05 2026] ", 1772413205.0, "local", None),
        ("kern  :warn  : 2026-03-02T01:00:05,250000+00:00 ", 1772413205.25, "utc", None),
        ("2026-03-02T02:00:05+0100 node7 kernel: ", 1772413205.0, "utc", "node7"),
        ("2026-03-02T01:00:05.250Z node7 kernel: ", 1772413205.25, "utc", "node7"),
        ("4,1227,12500000,-;", 12.5, "boot", None),
        ("4,1227,12500000,c,1,-;", 12.5, "boot", None),
        ("Mar  2 01:00:05 node7 kernel: ", 61 * 86400 + 3605, "syslog", "node7"),
        ("Mar  2 01:00:05 node7 kernel: [   12.500000] ", 12.5, "boot", "node7"),
        ("node7 | ERROR: nhc: found: [ 12.500000] ", 12.5, "boot", None),
        ("", None, None, None),
    ],
)
def test_every_form_of_prefix_gives_time_clock_and_host(
    prefix: str, seconds: float | None, clock: str | None, host: str | None
) -> None:
    event = only(prefix + DEAD)
    assert (event.time_s, event.clock, event.host, event.code) == (seconds, clock, host, 79)


@pytest.mark.parametrize("text", ["0000:3b:00", "0000:3B:00.0", "00000000:3B:00.0", "00000000:3b:00"])
def test_both_forms_of_a_bus_id_are_one(text: str) -> None:
    assert bus_id(text) == "0000:3b:00"


def test_an_instance_of_a_gpu_is_read() -> None:
    event = only("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 94, pid=71, Contained: SM (0x1). RST: No, D-RST: Yes")
    assert (event.gpu_instance, event.compute_instance, event.pid, event.process) == (5, 1, 71, None)
    assert (event.reset, event.drain_reset) == (False, True)


@pytest.mark.parametrize(
    ("who", "pid", "process"),
    [
        (", pid='<unknown>', name=<unknown>", None, None),
        (", pid=<unknown>, name=<unknown>", None, None),
        (", pid=42, name=ray::Worker.step-1", 42, "ray::Worker.step-1"),
        (", pid=42, name='my job'", 42, "my job"),
        (", pid=42", 42, None),
        ("", None, None),
    ],
)
def test_processes_of_all_spellings_are_read(who: str, pid: int | None, process: str | None) -> None:
    event = only(f"NVRM: Xid (PCI:0000:3b:00): 43{who}, Ch 0000001f")
    assert (event.pid, event.process, event.channel, event.text) == (pid, process, "0000001f", "Ch 0000001f")


def test_unit_severity_link_and_words_of_a_link_event_are_read() -> None:
    event = only(link_down("3b", 7, 4))
    assert (event.unit, event.fatal, event.link) == ("NETIR_LINK_EVT", True, 7)
    assert event.words[:2] == (0x0040E1C6, 0)


def test_units_with_digits_and_two_names_are_read() -> None:
    event = only(xid("3b", 146, "TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004)"))
    assert (event.unit, event.fatal) == ("TLW_RX/TLW_RX_PIPE0", True)


def test_a_word_that_was_cut_is_no_word() -> None:
    assert only(xid("3b", 149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406")).words == (0x000FE406,)
    assert only(xid("3b", 149, "NETIR Fatal XC0 i0 Link -1 (0x000fe4")).words == ()
    assert only(xid("3b", 149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0000")).words == (0x000FE406,)


def test_registers_of_a_link_failure_are_read_without_a_blank_before_them() -> None:
    event = only(xid("3b", 74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"))
    assert (event.link, event.words) == (14, (0, 0, 0x10000, 0, 0, 0, 0))


def test_what_an_xid_says_of_an_earlier_one_is_read() -> None:
    assert only(xid("3b", 45, "Ch 00000001 caused by previous Xid 149", pid=5)).previous_xid == 149


def test_further_lines_of_a_switch_message_belong_to_it() -> None:
    rest = "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, "
    event = only(
        switch_fault(0, 30, seconds=1.0),
        at(1.1, rest + "Severity 1 Engine instance 30 Sub-engine instance 00"),
        at(1.2, rest + "Data {0x50610002, 0x10100030}"),
    )
    assert (event.switch, event.code, event.fatal, event.link) == ("nvidia-nvswitch0", 20034, True, 30)


def test_a_gpu_that_is_gone_is_told_without_a_code_too() -> None:
    assert only("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.").bus == "0000:3b:00"
    three = (
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "NVRM: (PCI ID: 10de:20b2) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    event = only(*three)
    assert (event.kind, event.code, event.bus, event.line) == ("lost", 79, "0000:3b:00", 3)


def test_links_that_were_not_found_are_read() -> None:
    event = only("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!")
    assert event.kind == "links_not_found"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "dcgm: policy: no Xid 79 in the last hour",
        "oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=3,uid=0",
    ],
)
def test_other_lines_are_nobodys_business_here(line: str) -> None:
    assert read_events([line]) == []


def test_what_repeats_is_counted_and_its_first_and_last_lines_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("\n".join(xid("3b", 43, "Ch 00000001", seconds=n, pid=5) for n in range(1000)), encoding="utf-8")
    events = events_of(read_task(str(log), None, {}), "dmesg")
    assert len(events) == KEPT_FIRST + KEPT_LAST
    assert sum(event.count for event in events) == 1000
    assert (events[0].line, events[-1].line, events[0].artefact) == (1, 1000, "dmesg")


def test_what_is_told_of_too_many_gpus_is_said_to_be_left_out(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("\n".join(xid("3b", 43, f"Ch {n:08x}", pid=n) for n in range(MAX_KEYS + 5)), encoding="utf-8")
    result = read_task(str(log), None, {})
    assert len(result["events"]) == MAX_KEYS
    assert "5 lines were left out" in result["notes"][0]


def test_one_message_in_a_long_log_costs_little(tmp_path: Path) -> None:
    filler = "[  100.000000] systemd[1]: Started Session 1234 of User nobody, which is nothing that matters here.\n"
    costs: list[float] = []
    for n_lines in (50_000, 100_000):
        log = tmp_path / f"dmesg-{n_lines}"
        log.write_text(filler * n_lines + lost("3b", seconds=101.0) + "\n", encoding="utf-8")
        before = time.process_time()
        (event,) = events_of(read_task(str(log), None, {}))
        costs.append(time.process_time() - before)
        assert event.line == n_lines + 1
    assert costs[1] < 0.5


@given(st.text(max_size=300), st.integers(min_value=0, max_value=9999), st.text(max_size=200))
def test_no_text_around_a_code_breaks_the_reader(prefix: str, code: int, text: str) -> None:
    for event in read_events([f"{prefix}NVRM: Xid (PCI:0000:3b:00): {code}{text}"]):
        assert event.line == 1


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    log = tmp_path_factory.mktemp("kernel") / "dmesg"
    log.write_bytes(b"NVRM: Xid (".join(pieces))
    result = read_task(str(log), None, {})
    assert result["n_lines"] >= 0


def test_labelled_lines_have_their_code(samples: Path) -> None:
    with (samples / "public" / "xid" / "xid_lines.tsv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    for row in rows:
        events = read_events(row["line"].split("\\n"))
        if "condensed" not in row["kind"] and row["code"].isdigit():
            assert [event.code for event in events] == [int(row["code"])], row
