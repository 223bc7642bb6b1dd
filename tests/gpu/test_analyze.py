"""Judging answers of nvidia-smi: who spins, rests, runs slow, has failed; and silence about GPUs that work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu.answers import APPS, HEADER, RESTS, SPINS, app, gpu, read
from torchtriage.gpu.analyze import MAX_GPUS_OF_AN_ANSWER, GpuFindings, Process, analyze, node_of, unanswered

if TYPE_CHECKING:
    from pathlib import Path

RANKS = [Process(100 + r, "n1", r, r, is_rank=True) for r in range(4)]
TABLE = [APPS, *(app(r, 100 + r) for r in range(4))]


def judged(tmp_path: Path, gpus: list[str], table: list[str] = TABLE, processes: list[Process] = RANKS) -> GpuFindings:
    answers = [("n1/gpu/query-gpu.csv", read(tmp_path, HEADER, *gpus))]
    if table:
        answers.append(("n1/gpu/compute-apps.csv", read(tmp_path, *table)))
    return analyze(answers, processes)


def told(found: GpuFindings) -> dict[str, tuple[list[int], dict[str, Any]]]:
    return {signal.name: (signal.scope.ranks, signal.facts) for signal in found.signals}


def test_gpus_at_full_load_say_nothing(tmp_path: Path) -> None:
    rows = [gpu(0), gpu(1, use="100 %"), gpu(2, use="100 %", sm="1410 MHz"), gpu(3, use="83 %", power="300.00 W")]
    assert judged(tmp_path, rows) == GpuFindings()


def test_the_rank_whose_gpu_rests_while_all_others_spin_does_not_wait_with_them(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(r, **(RESTS if r == 2 else SPINS)) for r in range(4)])
    assert {name: ranks for name, (ranks, _) in told(found).items()} == {"gpu.spinning": [0, 1, 3], "gpu.idle": [2]}
    assert told(found)["gpu.idle"][1]["peers_spinning"] is True
    assert told(found)["gpu.spinning"][1]["power_share_max"] == 0.214
    assert all(not signal.scope.gpus for signal in found.signals)
    assert found.signals[0].evidence[0].where == "2"


def test_a_rank_at_work_beside_one_that_rests_leaves_open_whether_it_waits(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(0), gpu(1, **RESTS), gpu(2, **SPINS), gpu(3, **SPINS)])
    assert told(found)["gpu.idle"][1]["peers_spinning"] is False


def test_the_use_of_a_gpu_that_others_share_is_not_that_of_its_rank(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(r, **SPINS) for r in range(4)], [*TABLE, app(1, 999, 500)])
    assert told(found)["gpu.spinning"][0] == [0, 2, 3]


def test_a_gpu_at_rest_rests_for_all_who_share_it(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(0), gpu(1, **RESTS), gpu(2), gpu(3)], [*TABLE, app(1, 999, 500)])
    assert {name: ranks for name, (ranks, _) in told(found).items()} == {"gpu.idle": [1]}


def test_without_a_table_local_ranks_tell_and_it_is_not_sure(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(r, **SPINS) for r in range(4)], [])
    ranks, facts = told(found)["gpu.spinning"]
    assert (ranks, facts["sure"], facts["all_ranks"]) == ([0, 1, 2, 3], False, True)


def test_fewer_ranks_than_gpus_without_a_table_are_matched_with_none(tmp_path: Path) -> None:
    assert judged(tmp_path, [gpu(r, **SPINS) for r in range(4)], [], RANKS[:2]).signals == []


def test_gpus_that_nobody_uses_may_rest(tmp_path: Path) -> None:
    assert judged(tmp_path, [gpu(0, **RESTS)], [], []).signals == []


def test_a_mig_device_without_utilisation_is_left_out(tmp_path: Path) -> None:
    found = judged(tmp_path, [gpu(0, use="[N/A]", power="150.00 W"), *(gpu(r, **SPINS) for r in (1, 2, 3))])
    assert told(found)["gpu.spinning"][0] == [1, 2, 3]


def test_two_ranks_on_one_gpu_are_not_told_apart(tmp_path: Path) -> None:
    table = [APPS, app(0, 100), app(0, 101), app(2, 102), app(3, 103)]
    found = judged(tmp_path, [gpu(r, **SPINS) for r in range(4)], table)
    assert told(found)["gpu.spinning"][0] == [2, 3]


def test_a_gpu_slowed_by_heat_is_named_with_its_rank_and_the_reason(tmp_path: Path) -> None:
    rows = [gpu(0), gpu(1, sm="600 MHz", reasons="0x0000000000000048"), gpu(2), gpu(3)]
    (signal,) = judged(tmp_path, rows).signals
    assert (signal.name, signal.scope.ranks, signal.scope.gpus) == ("gpu.throttled", [1], ["00000000:01:00.0"])
    assert (signal.facts["reason"], signal.facts["sm_mhz"]) == ("HW Thermal Slowdown", 600)


def test_a_clock_that_somebody_locked_shows_beside_its_peers(tmp_path: Path) -> None:
    rows = [gpu(0), gpu(1), gpu(2), gpu(3, sm="900 MHz", reasons="0x0000000000000002")]
    (signal,) = judged(tmp_path, rows).signals
    assert (signal.scope.ranks, signal.facts["peers_sm_mhz"], signal.facts.get("reason")) == ([3], 1980, None)


def test_low_clocks_of_gpus_at_rest_or_of_all_alike_are_no_fault(tmp_path: Path) -> None:
    rest = gpu(0, use="3 %", sm="345 MHz", reasons="0x0000000000000009", power="400.00 W")
    assert judged(tmp_path, [rest, gpu(1), gpu(2), gpu(3)]).signals == []
    assert judged(tmp_path, [gpu(r, sm="1200 MHz", reasons="0x4") for r in range(4)]).signals == []


def test_uncorrectable_errors_name_the_gpu(tmp_path: Path) -> None:
    (signal,) = judged(tmp_path, [gpu(0), gpu(1), gpu(2, ecc="3"), gpu(3, ecc="[N/A]")]).signals
    assert (signal.name, signal.scope.ranks, signal.facts["errors"]) == ("gpu.ecc_uncorrected", [2], 3)


def test_memory_of_a_process_that_is_not_the_jobs_counts_from_a_share_on(tmp_path: Path) -> None:
    rows = [gpu(r) for r in range(4)]
    assert judged(tmp_path, rows, [*TABLE, app(1, 999, 20_000)]).signals == []
    (signal,) = judged(tmp_path, rows, [*TABLE, app(1, 999, 80_000, "vllm")]).signals
    assert (signal.name, signal.scope.ranks, signal.facts["pids"]) == ("gpu.foreign_memory", [1], [999])
    assert (signal.facts["share"], signal.facts["process_name"]) == (0.556, "vllm")


def test_children_of_a_rank_are_no_strangers(tmp_path: Path) -> None:
    child = Process(999, "n1", 1, 1, is_rank=False)
    assert judged(tmp_path, [gpu(r) for r in range(4)], [*TABLE, app(1, 999, 80_000)], [*RANKS, child]).signals == []


def test_process_ids_of_another_name_space_make_nobody_a_stranger(tmp_path: Path) -> None:
    table = [APPS, *(app(r, 70_000 + r, 100_000) for r in range(4))]
    assert judged(tmp_path, [gpu(r) for r in range(4)], table).signals == []


def test_processes_of_one_node_are_not_looked_for_on_another(tmp_path: Path) -> None:
    others = [Process(p.pid, "n2", p.rank, p.local_rank, is_rank=True) for p in RANKS]
    assert judged(tmp_path, [gpu(r, **SPINS) for r in range(4)], TABLE, others).signals == []


def test_a_lost_gpu_is_told_once_whichever_answer_says_it(tmp_path: Path) -> None:
    words = "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system"
    lost = gpu(1).replace("98 %", "[GPU is lost]")
    answers = [
        ("n1/gpu/query-gpu.csv", read(tmp_path, HEADER, gpu(0), lost)),
        ("n1/gpu/nvlink-s.txt", read(tmp_path, words)),
    ]
    (signal,) = analyze(answers, []).signals
    assert (signal.name, signal.scope.gpus) == ("gpu.fell_off", ["00000000:01:00.0"])


def test_a_question_without_answer_is_told_for_its_host() -> None:
    item = {"where": "/items/4/error", "error": "nvidia-smi did not answer in time", "host": "n7"}
    (signal,) = unanswered([("manifest.json", {"unanswered": [item], "notes": []})])
    assert (signal.name, signal.scope.hosts, signal.evidence[0].where) == ("gpu.smi_hangs", ["n7"], "/items/4/error")


def test_the_node_of_an_answer_is_its_folder_in_the_bundle() -> None:
    assert node_of("b/n1/gpu/query-gpu.csv") == node_of("b/n1/proc/again/rank00-pid1.json") == "b/n1"
    assert node_of("nvidia-smi.csv") == ""


def test_rows_about_ever_new_gpus_are_bounded_and_it_is_said(tmp_path: Path) -> None:
    rows = [gpu(k) for k in range(19_000)]
    found = judged(tmp_path, [*rows, gpu(3, use="99 %")], [])
    told_of = f"n1/gpu/query-gpu.csv: tells of more than {MAX_GPUS_OF_AN_ANSWER} GPUs: "
    assert found.notes == [f"{told_of}{19_000 - MAX_GPUS_OF_AN_ANSWER} rows about others were left out"]


def test_gpus_without_an_end_in_xml_are_bounded_too(tmp_path: Path) -> None:
    gpus = [f'<gpu id="00000000:{k >> 8:02X}:{k & 255:02X}.0">\n</gpu>' for k in range(19_000)]
    answer = read(tmp_path, "<nvidia_smi_log>", *gpus, "</nvidia_smi_log>")
    found = analyze([("n1/gpu/q.xml", answer)], [])
    assert len(found.notes) == 1
    assert "rows about others were left out" in found.notes[0]


def test_a_gpu_is_one_whichever_of_its_names_an_answer_gives(tmp_path: Path) -> None:
    by_bus = read(tmp_path, "pci.bus_id, utilization.gpu [%], ecc.errors.uncorrected.volatile.total",
                  *(f"0000:0{k}:00.0, 0 %, {2 * (k == 1)}" for k in range(4)))  # fmt: skip
    by_index = read(tmp_path, "index, utilization.gpu [%], remapped_rows.pending", "1, 0 %, Yes")
    answers = [("n1/gpu/a.csv", read(tmp_path, HEADER, *(gpu(k) for k in range(4)))), ("n1/gpu/b.csv", by_bus),
               ("n1/gpu/c.csv", by_index), ("n1/gpu/apps.csv", read(tmp_path, *TABLE))]  # fmt: skip
    (found,) = [each for each in analyze(answers, RANKS).signals if each.name == "gpu.ecc_uncorrected"]
    assert (found.scope.ranks, found.facts["errors"], found.facts["remap_pending"]) == ([1], 2, True)
