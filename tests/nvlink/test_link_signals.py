"""Signals of links, and what a verdict makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvlink.link_answers import counters, states
from torchtriage import triage
from torchtriage.nvlink.analyze import analyze
from torchtriage.nvlink.read import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FABRIC = ["GPU 00000000:52:00.0", "    GPU Recovery Action : Reset", "    Fabric", "        State : In Progress"]
UNHEALTHY = ["GPU 00000000:52:00.0", "    Fabric", "        Health", "            Summary : Unhealthy"]


def signals(*files: Iterable[str]) -> list[tuple[str, list[str], list[str]]]:
    found = analyze([(f"gpu/{number}.txt", read_lines(lines)) for number, lines in enumerate(files)])
    return [(signal.name, signal.scope.gpus, signal.scope.links) for signal in found.signals]


def test_each_fault_is_a_signal_about_its_gpu_and_link() -> None:
    assert signals(states(2, link4="<inactive>")) == [("nvlink.link_down", ["GPU 2"], ["GPU 2 link 4"])]
    assert signals(states(2, link4="12.5 GB/s")) == [("nvlink.link_slow", ["GPU 2"], ["GPU 2 link 4"])]
    before, after = counters(0), counters(0, set_to={(1, "Replay Errors"): 3})
    assert signals([*before, *after]) == [("nvlink.errors_grow", ["GPU 0"], ["GPU 0 link 1"])]
    assert [name for name, _, _ in signals(counters(0, set_to={(1, "Replay Errors"): 5000}))] == [
        "nvlink.errors_stand_out"
    ]
    rate = counters(0, labels=["Effective BER"], set_to={(1, "Effective BER"): "1e-8"})
    assert [name for name, _, _ in signals(rate)] == ["nvlink.bit_errors_high"]
    assert [name for name, _, _ in signals(FABRIC)] == ["nvlink.fabric_not_ready", "nvlink.recovery_wanted"]
    assert [name for name, _, _ in signals(UNHEALTHY)] == ["nvlink.fabric_unhealthy"]


def test_sound_links_are_no_signal() -> None:
    assert signals(states(0), counters(0)) == []


def test_links_that_are_down_are_suspected(tmp_path: Path) -> None:
    (tmp_path / "nvlink-s.txt").write_text("\n".join([*states(0), *states(1, link4="<inactive>")]), encoding="utf-8")
    verdict = triage([tmp_path])
    assert (verdict.status, verdict.failure_mode) == ("suspected", "nvlink-failed-on-one-gpu")
    assert (verdict.culprits.gpus, verdict.evidence[0].quote) == (["GPU 1"], "Link 4: <inactive>")


def test_counters_that_grow_are_suspected(tmp_path: Path) -> None:
    later = counters(1, set_to={(2, "CRC Errors"): 812})
    (tmp_path / "nvlink-e.txt").write_text("\n".join([*counters(1), *later]), encoding="utf-8")
    assert triage([tmp_path]).failure_mode == "marginal-nvlink-fabric"


def test_a_sound_node_accuses_nothing_and_leaves_nothing_unjudged(tmp_path: Path) -> None:
    (tmp_path / "nvlink-s.txt").write_text("\n".join(states(0)), encoding="utf-8")
    verdict = triage([tmp_path])
    assert (verdict.failure_mode, verdict.status) == (None, "inconclusive")
    assert not any("nvidia-smi" in gap for gap in verdict.gaps)
