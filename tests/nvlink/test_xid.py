"""What one kernel message means."""

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvlink.lines import churn, link_down, recovery, switch_fault, xid
from torchtriage.nvlink.kernel_read import read_events
from torchtriage.nvlink.xid import Decoded, decode
from torchtriage.nvlink.xid_catalogue import load_nvlink_rules, load_sxids, load_xids

H100 = "NVIDIA H100 80GB HBM3"


def meaning(line: str, gpu_name: str | None = None) -> Decoded:
    (event,) = read_events([line])
    return decode(event, gpu_name)


def failed_link(*registers: int) -> str:
    words = [*registers, *(0 for _ in range(7 - len(registers)))]
    return xid("3b", 74, f"NVLink: fatal error detected on link 14({', '.join(map(hex, words))})")


def test_the_catalogue_has_all_codes_in_use_and_a_date() -> None:
    catalogue = load_xids()
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, *range(143, 151), 154, 173, 176} <= set(
        catalogue.codes
    )
    assert not {1, 14, 23, 111} & set(catalogue.codes)
    assert catalogue.date == "2025-10-29"
    assert len(load_nvlink_rules().rules) == 94
    assert len(load_sxids().names) == 420


def test_each_first_mover_is_in_the_catalogue() -> None:
    catalogue = load_xids()
    assert {code for mover in catalogue.first_movers for code in mover.codes} <= set(catalogue.codes)


def test_no_word_of_one_code_fits_rules_of_both_versions_but_the_one_of_zeros() -> None:
    data = load_nvlink_rules()
    for rule in data.rules:
        of_code = [other for other in data.rules if other.xid == rule.xid]
        for version, other in (("v1", "v2"), ("v2", "v1")):
            word = rule.patterns[version][1] | 5 << data.link_field[0]
            fits = [r for r in of_code if word & r.patterns[other][0] == r.patterns[other][1]]
            assert not fits or rule.xid == 150


@pytest.mark.parametrize(
    ("subcode", "end", "action"),
    [(4, "link", "reset_gpu"), (33, "peer", "reset_gpu"), (37, "peer", "reset_gpu"), (22, "software", "reset_gpu"),
     (38, "software", "investigate_software"), (42, "link", "check_cabling"), (0, "unknown", "reset_gpu")],
)  # fmt: skip
def test_the_subcode_tells_which_end_is_at_fault(subcode: int, end: str, action: str) -> None:
    found = meaning(link_down("3b", 9, subcode))
    assert (found.end, found.action, found.link, found.subcode, found.fatal) == (end, action, 9, subcode, True)


def test_the_version_of_a_word_is_told_by_the_word() -> None:
    old, new = (
        meaning(xid("3b", 149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 00 ({word} 0x00000000)"))
        for word in ("0x004001c6", "0x00400011")
    )
    assert (old.version, new.version) == ("v1", "v2")
    assert old.investigate == new.investigate == "INVESTIGATE_LINK_SI"


def test_a_fatal_event_of_a_unit_with_a_digit_is_fatal() -> None:
    found = meaning(xid("3b", 146, "TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004)"))
    assert (found.fatal, found.role, found.action) == (True, "root", "reset_gpu")


def test_several_bits_of_a_status_mean_the_worst_of_them() -> None:
    found = meaning(xid("3b", 144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000021 0x00000006)"))
    assert (found.resolution, found.end) == ("RESET_GPU", "this")


def test_a_raised_error_rate_asks_for_cables_and_no_reset() -> None:
    found = meaning(xid("3b", 149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00006226 0x00000001)"))
    assert (found.action, found.role, found.end, found.fatal) == ("check_cabling", "informational", "link", False)


def test_what_a_gpu_logs_when_a_peers_process_ended_is_benign() -> None:
    assert meaning(churn("3b", 13)).benign
    assert not meaning(churn("3b", 13).replace("Nonfatal", "Fatal")).benign


def test_a_word_without_a_rule_is_said_to_have_none() -> None:
    found = meaning(xid("3b", 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x03f001c6 0x00000000)"))
    assert found.notes == ("no rule is known for its words",)
    assert (found.role, found.end) == ("root", "unknown")


def test_the_driver_names_the_recovery_action() -> None:
    assert meaning(recovery("3b", 0, 4)).action == "drain_and_reset"
    assert meaning(recovery("3b", 1, 2)).action == "reboot_node"
    assert meaning(recovery("3b", 1, 0)).recovery == 0


@pytest.mark.parametrize(
    ("registers", "action"),
    [((0x10000,), "check_cabling"), ((1 << 21,), "check_cabling"), ((0, 0, 1 << 13), "investigate_software"),
     ((0, 0, 0, 1 << 18), "drain_and_reset"), ((1 << 20,), "none"), ((0,), "reset_gpu")],
)  # fmt: skip
def test_registers_of_a_link_failure_are_read_on_hopper(registers: tuple[int, ...], action: str) -> None:
    assert meaning(failed_link(*registers), H100).action == action


@pytest.mark.parametrize("name", [None, "NVIDIA A100-SXM4-80GB", "NVIDIA B200"])
def test_registers_are_not_read_where_they_are_not_known(name: str | None) -> None:
    assert meaning(failed_link(0x10000), name) == meaning(failed_link(0), name)


def test_the_drivers_own_word_on_a_reset_goes_before_the_catalogue() -> None:
    text = "Contained: SM (0x1). RST: {}, D-RST: {}"
    assert meaning(xid("3b", 94, text.format("No", "No"))).action == "restart_app"
    assert meaning(xid("3b", 94, text.format("Yes", "No"))).action == "reset_gpu"
    assert meaning(xid("3b", 94, text.format("No", "Yes"))).action == "drain_and_reset"


def test_words_of_another_code_are_said_and_not_believed() -> None:
    found = meaning(xid("3b", 71, "NVLink: fatal error detected on link 6"))
    assert found.family == "application"
    assert found.notes == ("its words are those of Xid 74",)


def test_a_line_that_a_test_tool_wrote_is_no_fault() -> None:
    found = meaning(xid("3b", 79, "fake xid generated by dcgm tests"))
    assert found.injected
    assert (found.action, found.role) == ("none", "informational")


def test_an_unknown_code_is_told_by_its_number_alone() -> None:
    assert meaning(xid("3b", 999, "something new")).means == "not in the catalogue"


def test_messages_of_switches_go_by_their_code_else_by_their_severity() -> None:
    assert meaning(switch_fault(1, 48, seconds=1.0)).name == "DLPL_LTSSM_FAULT_UP"
    assert meaning(switch_fault(1, 48, seconds=1.0, code=24007)).action == "reset_gpu"
    survived = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt"
    assert meaning(survived).benign


@given(
    st.integers(min_value=144, max_value=150),
    st.lists(st.integers(min_value=0, max_value=0xFFFFFFFF), min_size=1, max_size=6),
    st.sampled_from(["Fatal", "Nonfatal"]),
)
def test_any_words_are_decoded(code: int, words: list[int], severity: str) -> None:
    text = f"NETIR_LINK_EVT {severity} XC0 i0 Link 01 ({' '.join(f'0x{word:08x}' for word in words)})"
    assert meaning(xid("3b", code, text)).fatal == (severity == "Fatal")


def test_labelled_words_name_the_printed_link_and_fit_one_rule(samples: Path) -> None:
    with (samples / "public" / "xid" / "xid_lines.tsv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    words = [row for row in rows if row["decode"] and "NVRM" in row["line"]]
    assert len(words) > 15
    for row in words:
        found = meaning(row["line"])
        assert found.version == "v1", row
        assert f"sub={found.subcode} " in row["decode"]
        assert not found.notes


def test_made_up_words_of_all_units_have_their_printed_severity(samples: Path) -> None:
    with (samples / "public" / "xid" / "gpud_nvlink5_synthetic.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            found = meaning(row["line"])
            assert found.version is not None, row
            assert found.fatal == (" Fatal " in row["line"]), row
