"""Links that are down or slow, and those that may be."""

from __future__ import annotations

from nvlink.link_answers import faults, header, judged, states, statuses

INACTIVE = "NVML: Unable to retrieve NVLink information as all links are inactive"


def test_all_links_up_is_sound() -> None:
    lines = [line for index in range(8) for line in states(index)]
    assert (faults(lines), statuses(lines)) == ([], ["ok"] * 8)


def test_an_inactive_link_is_named() -> None:
    assert faults([*states(0), *states(1, link7="<inactive>")]) == [("link_down", "failed", (7,))]


def test_a_link_that_is_not_listed_is_missing() -> None:
    assert faults([*states(0, link17=""), *states(1)]) == [("link_down", "failed", (17,))]
    assert faults(states(0, link17="")) == [("link_down", "failed", (17,))]


def test_a_listing_that_breaks_off_accuses_no_link() -> None:
    lines = [*states(0), *states(1, n_links=4)]
    assert (faults(lines), statuses(lines)) == ([], ["ok", "unknown"])


def test_gpus_with_all_links_inactive_failed_where_links_are_on_board() -> None:
    ((kind, level, links),) = faults([*states(0), header(1), INACTIVE])
    assert (kind, level, len(links)) == ("link_down", "failed", 18)


def test_a_card_without_bridge_is_not_applicable() -> None:
    lines = [header(0, "NVIDIA A100 80GB PCIe"), INACTIVE]
    assert (faults(lines), statuses(lines)) == ([], ["not_applicable"])


def test_bridges_count_whole() -> None:
    inactive = {f"link{link}": "<inactive>" for link in range(4, 12)}
    assert faults(states(0, "NVIDIA A100 80GB PCIe", 12, "25 GB/s", **inactive)) == []
    broken = inactive | {"link2": "<inactive>"}
    assert faults(states(0, "NVIDIA A100 80GB PCIe", 12, "25 GB/s", **broken))[0][:2] == ("link_down", "failed")


def test_export_models_have_fewer() -> None:
    lines = [line for index in range(8) for line in states(index, "NVIDIA H800", 8)]
    assert (faults(lines), statuses(lines)) == ([], ["ok"] * 8)


def test_a_mesh_that_wires_fewer_links_for_all_is_taken_as_its_board() -> None:
    name, inactive = "Tesla V100-SXM2-32GB", {"link4": "<inactive>", "link5": "<inactive>"}
    alike = [line for index in range(4) for line in states(index, name, 6, "25.781 GB/s", **inactive)]
    assert faults(alike) == []
    one = [*states(0, name, 6, "25.781 GB/s", **inactive), *states(1, name, 6, "25.781 GB/s")]
    assert faults(one) == [("link_down", "failed", (4, 5))]


def test_the_same_links_inactive_on_all_gpus_of_a_switched_node_are_a_fault() -> None:
    lines = [line for index in range(8) for line in states(index, link3="<inactive>")]
    assert faults(lines) == [("link_down", "failed", (3,))] * 8


def test_links_that_are_off_under_mig_are_not_judged() -> None:
    mig = "  MIG 1g.18gb     Device  0: (UUID: MIG-11112222-3333-4444-5555-666677778888)"
    lines = [header(0), mig, *states(0, speed="<inactive>")[1:]]
    assert (faults(lines), statuses(lines)) == ([], ["not_applicable"])


def test_a_gpu_that_is_not_known_is_held_against_its_peers() -> None:
    name = "NVIDIA Z900"
    others = [line for index in range(4) for line in states(index, name, 4)]
    assert faults([*others, *states(4, name, 4, link2="<inactive>")]) == [("link_down", "failed", (2,))]
    assert faults(states(0, name, 4, link2="<inactive>")) == []


def test_a_slow_link_is_told() -> None:
    assert faults(states(0, link5="13.281 GB/s")) == [("link_slow", "degraded", (5,))]


def _table(n_gpus: int, usual: str, **cells: str) -> list[str]:
    lines = ["\t".join(["", *(f"GPU{index}" for index in range(n_gpus))])]
    for row in range(n_gpus):
        told = [
            "X" if row == column else cells.get(f"c{min(row, column)}_{max(row, column)}", usual)
            for column in range(n_gpus)
        ]
        lines.append("\t".join([f"GPU{row}", *told]))
    return lines


def test_the_gpu_that_all_odd_pairs_share_is_named() -> None:
    cells = {f"c{min(2, other)}_{max(2, other)}": "SYS" for other in range(8) if other != 2}
    found = judged(_table(8, "NV18", **cells)).faults
    assert [(f.kind, f.level, f.gpu.index if f.gpu else None) for f in found] == [("link_down", "failed", 2)]
    assert faults(_table(8, "OK", **dict.fromkeys(cells, "NS")))[0][:2] == ("link_down", "failed")


def test_fewer_links_to_one_gpu_degrade_it() -> None:
    cells = {f"c{min(5, other)}_{max(5, other)}": "NV17" for other in range(8) if other != 5}
    assert [fault[:2] for fault in faults(_table(8, "NV18", **cells))] == [("link_down", "degraded")]


def test_tables_of_meshes_pairs_and_pcie_machines_accuse_nobody() -> None:
    mesh = _table(4, "NV1", c0_3="SYS", c1_2="SYS", c0_1="NV2")
    pairs = _table(4, "SYS", c0_1="NV12", c2_3="NV12")
    pcie = _table(4, "PIX")
    assert [faults(table) for table in (mesh, pairs, pcie)] == [[], [], []]
    assert statuses(pcie) == ["not_applicable"] * 4


def test_peer_access_between_no_pair_is_a_fabric_that_is_not_up() -> None:
    table = _table(8, "NS")
    known = [line for index in range(8) for line in states(index)]
    assert faults(table) == [("fabric_not_ready", "degraded", ())]
    assert faults(known, table) == [("fabric_not_ready", "failed", ())]
    assert faults(_table(8, "PIX"), table) == []
    cards = [line for index in range(8) for line in [header(index, "NVIDIA L40S")]]
    assert faults(cards, table) == []
