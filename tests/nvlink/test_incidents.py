"""What happened first, what followed, and what to do."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvlink.lines import at, churn, link_down, lost, recovery, switch_fault, torn_down, xid
from torchtriage.nvlink.incident import Incident
from torchtriage.nvlink.incidents import judge_incidents
from torchtriage.nvlink.kernel_read import read_events

GPUS = ("1b", "43", "52", "61")


def incidents(*lines: str, **known: object) -> list[Incident]:
    return judge_incidents(read_events(lines), **known)  # type: ignore[arg-type]


def only(*lines: str, **known: object) -> Incident:
    (incident,) = incidents(*lines, **known)
    return incident


def bus(gpu: str) -> str:
    return f"0000:{gpu}:00"


def fabric_falls(subcode: int = 4) -> list[str]:
    """One link goes down; every peer notes it and every process is torn down, told of many times."""
    echoes = [churn(gpu, 3, seconds=100.001) for gpu in GPUS]
    ends = [
        torn_down(gpu, 500 + n, again % 9, seconds=100.3 + again / 1000)
        for n, gpu in enumerate(GPUS)
        for again in range(64 if n == 0 else 32)
    ]
    return [link_down("1b", 0, subcode, seconds=100.0), *echoes, *ends, recovery("1b", 0, 1, seconds=100.404)]


def test_a_link_that_went_down_is_the_root_and_all_else_follows() -> None:
    incident = only(*fabric_falls())
    assert (incident.root.code, incident.culprit_pci_bus_id) == (149, bus("1b"))
    assert {node.code for node in incident.nodes[1:]} == {145, 45, 154}
    assert len(incident.gpus()) == 4


def test_channels_and_processes_are_counted_and_not_lines() -> None:
    torn = [node for node in only(*fabric_falls()).nodes if node.code == 45]
    assert [(node.n_lines(), node.n_channels(), len(node.pids())) for node in torn] == [
        (64, 9, 1), (32, 9, 1), (32, 9, 1), (32, 9, 1),
    ]  # fmt: skip


def test_the_order_of_the_lines_does_not_make_the_root() -> None:
    lines = fabric_falls()
    assert only(*reversed(lines)).root.code == 149


def test_a_deliberate_link_down_blames_its_own_gpu() -> None:
    incident = only(*fabric_falls(subcode=22))
    assert (incident.root.decoded.end, incident.culprit_pci_bus_id) == ("software", bus("1b"))


def test_the_driver_decides_on_the_action() -> None:
    incident = only(link_down("1b", 0, 4, seconds=1.0), recovery("1b", 0, 4, seconds=1.1))
    assert (incident.action, incident.driver_said) == ("drain_and_reset", True)
    escalated = only(
        link_down("1b", 0, 4, seconds=1.0), recovery("1b", 0, 1, seconds=1.1), recovery("1b", 1, 2, seconds=1.2)
    )
    assert escalated.action == "reboot_node"


def test_a_gpu_that_was_reset_needs_nothing_more() -> None:
    lines = [link_down("1b", 0, 4, seconds=1.0), recovery("1b", 0, 1, seconds=1.1), recovery("1b", 1, 0, seconds=20.0)]
    incident = only(*lines)
    assert (incident.action, incident.recovered) == ("none", True)


def test_a_word_that_points_at_the_other_end_blames_nobody_here() -> None:
    incident = only(link_down("1b", 0, 33, seconds=1.0))
    assert incident.culprit_pci_bus_id is None
    assert incident.suspects == [(None, bus("1b"))]
    assert incident.report()["root"] == {
        "xid": 149, "pci_bus_id": bus("1b"), "host": None, "link": 0, "links": [0],
        "meaning": "an NVLink event in the link layer (NETIR)", "end": "peer", "n_lines": 1, "n_channels": 0,
        "pids": [],
    }  # fmt: skip


def test_the_end_that_blames_itself_goes_before_the_ends_that_blame_their_peer() -> None:
    incident = only(link_down("1b", 0, 37, seconds=1.0), link_down("43", 5, 4, seconds=1.2))
    assert (incident.root.gpu, incident.culprit_pci_bus_id) == ((None, bus("43")), bus("43"))


def test_both_ends_of_one_link_blame_nobody() -> None:
    incident = only(
        xid("1b", 74, "NVLink: fatal error detected on link 2(0x0, 0x0)", seconds=1.0),
        xid("43", 74, "NVLink: fatal error detected on link 9(0x0, 0x0)", seconds=1.0),
    )
    assert incident.culprit is None
    assert len(incident.suspects) == 2


def test_the_gpu_that_all_failed_links_share_is_to_blame() -> None:
    own = [xid("43", 74, f"NVLink: fatal error detected on link {link}(0x0, 0x0)", seconds=1.0) for link in range(4)]
    peer = xid("1b", 74, "NVLink: fatal error detected on link 2(0x0, 0x0)", seconds=0.9)
    assert only(peer, *own).culprit_pci_bus_id == bus("43")


def test_a_storm_of_switch_messages_belongs_to_the_gpu_that_was_lost_before() -> None:
    storm = [switch_fault(switch, 40 + switch, seconds=112.0 + switch / 1000) for switch in range(3)]
    incident = only(lost("91", seconds=100.0), *storm)
    assert (incident.root.code, incident.culprit_pci_bus_id, incident.action) == (79, bus("91"), "reboot_node")
    assert len(incident.nodes) == 4


def test_a_switch_alone_is_its_own_root_and_no_gpus_fault() -> None:
    incident = only(switch_fault(1, 48, seconds=1.0))
    assert (incident.family, incident.culprit) == ("nvswitch", None)
    assert incident.report()["root"]["sxid"] == 20034


def test_gpus_that_are_lost_together_have_one_cause_that_is_none_of_them() -> None:
    incident = only(lost("91", seconds=1.0), lost("92", seconds=1.5))
    assert incident.culprit is None
    assert len(incident.suspects) == 2


def test_three_messages_of_one_memory_error_are_one_incident() -> None:
    incident = only(
        xid("52", 48, "An uncorrectable double bit error (DBE) has been detected on GPU", seconds=1.0),
        xid("52", 63, "Row Remapper: New row (0x1) marked for remapping, reset gpu to activate.", seconds=1.02),
        xid("52", 94, "Contained: SM (0x1). RST: No, D-RST: No", seconds=1.03),
    )
    assert (incident.root.code, incident.action) == (48, "drain_and_reset")
    assert incident.culprit_pci_bus_id == bus("52")
    assert {node.code for node in incident.nodes[1:]} == {63, 94}


def test_an_uncontained_error_follows_the_drivers_word() -> None:
    incident = only(xid("52", 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", seconds=1.0))
    assert (incident.action, incident.driver_said) == ("reset_gpu", True)


def test_many_exceptions_of_one_access_are_one_incident_with_their_process() -> None:
    exceptions = [
        xid("38", 13, f"Graphics SM Warp Exception on (GPC {n}, TPC 1, SM 1): Out Of Range Address", seconds=1.0)
        for n in range(5)
    ]
    incident = only(*exceptions, xid("38", 43, "Ch 00000008", seconds=1.1, pid=77))
    assert (incident.root.code, incident.action, incident.pids()) == (13, "restart_app", [77])
    assert incident.culprit is None


def test_faults_of_two_programs_on_two_gpus_are_two_incidents() -> None:
    found = incidents(
        xid("38", 31, "MMU Fault: ENGINE GRAPHICS", seconds=1.0, pid=7),
        xid("43", 31, "MMU Fault: ENGINE GRAPHICS", seconds=1.0, pid=8),
    )
    assert len(found) == 2


def test_what_is_far_apart_in_time_is_not_one_incident() -> None:
    found = incidents(lost("91", seconds=1.0), link_down("1b", 0, 4, seconds=4000.0))
    assert [incident.root.code for incident in found] == [79, 149]


def test_lines_without_times_are_taken_in_their_order() -> None:
    incident = only(lost("91"), "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", link_down("1b", 0, 4))
    assert incident.root.code == 79


def test_events_of_several_clocks_do_not_mix() -> None:
    found = incidents(lost("91", seconds=5.0), f"Mar  2 01:00:05 n1 kernel: {link_down('1b', 0, 4)}")
    assert len(found) == 2


def test_churn_is_benign_and_asks_for_nothing() -> None:
    incident = only(*(churn(gpu, 3, seconds=600.0 * n) for n, gpu in enumerate(GPUS)))
    assert (incident.benign, incident.action, incident.culprit, incident.n_lines()) == (True, "none", None, 4)


def test_a_teardown_whose_cause_is_not_in_the_log_says_so() -> None:
    incident = only(torn_down("1b", 5, 1, seconds=1.0))
    assert (incident.action, incident.culprit) == ("none", None)
    assert incident.notes == ["the Xid 149 that it names is not in the log"]


def test_ranks_and_names_are_known_by_either_form_of_a_bus_id() -> None:
    line = xid("1b", 74, "NVLink: fatal error detected on link 14(0x10000, 0x0, 0x0)", seconds=1.0)
    incident = only(line, names={"00000000:1B:00.0": "NVIDIA H100 80GB HBM3"}, ranks={"0000:1b:00": [3]})
    assert (incident.action, incident.ranks) == ("check_cabling", [3])


def test_a_gpu_of_another_host_is_not_taken_for_it() -> None:
    line = f"2026-03-02T01:00:05+00:00 n2 kernel: {lost('1b')}"
    assert only(line, ranks={"n1/0000:1b:00": [3], "n2/0000:1b:00": [9]}).ranks == [9]


def test_real_lines_of_a_lost_gpu_and_its_storm_are_one_incident(samples: Path) -> None:
    text = (samples / "public" / "xid" / "sxid_lines.txt").read_text(encoding="utf-8")
    lines = text.split("# [set 2]")[0].splitlines()
    assert only(*lines).culprit_pci_bus_id == "0000:91:00"


CODES = st.sampled_from([13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119, 137, 145, 149, 154, 999])


@given(st.lists(st.tuples(CODES, st.sampled_from(GPUS), st.integers(0, 100), st.booleans()), max_size=40))
def test_every_message_is_in_exactly_one_incident(told: list[tuple[int, str, int, bool]]) -> None:
    lines = [xid(gpu, code, "text", seconds=seconds if timed else None) for code, gpu, seconds, timed in told]
    assert sum(incident.n_lines() for incident in incidents(*lines)) == len(lines)


@given(st.permutations(fabric_falls()[:12]))
def test_lines_out_of_order_have_the_same_root_and_culprit(lines: list[str]) -> None:
    assert [(i.root.code, i.culprit_pci_bus_id) for i in incidents(*lines)] == [(149, bus("1b"))]


def test_many_incidents_cost_little() -> None:
    lines = [at(100.0 * n, lost("91")) for n in range(4000)]
    assert len(incidents(*lines)) <= 256
