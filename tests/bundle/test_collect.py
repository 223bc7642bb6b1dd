"""Probing a node: what one probe does must not touch the others, and what was taken is kept."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bundle.test_job_logs import process
from torchtriage.bundle.collect import Limits, collect_node
from torchtriage.bundle.interrupts import at_most_one_interrupt
from torchtriage.bundle.manifest import Item

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBES = ("dump_processes", "write_facts", "probe_ras", "probe_flight", "probe_gpus", "probe_kernel", "copy_logs")
QUICK = Limits(again_after_s=0.0)


def item(kind: str, rank: int | None = None) -> Item:
    return Item(path=f"n/{kind}", kind=kind, rank=rank, ok=True, redacted=True)


def answers(kind: str) -> Callable[..., list[Item]]:
    return lambda *_arguments, **_options: [item(kind)]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Stands in for a probe; all of them answer at once until told otherwise."""

    def replace(name: str, function: Callable[..., Any]) -> None:
        monkeypatch.setattr(f"torchtriage.bundle.collect.{name}", function)

    for name in PROBES:
        replace(name, answers(name))
    return replace


def test_the_items_of_all_probes_come_in_order(probes: Any, tmp_path: Path) -> None:
    probes("copy_logs", lambda *_a, **_k: [item("log", 3), item("log", 1), item("log")])
    found = collect_node([], tmp_path, host="n", limits=QUICK)
    # The states of processes are looked at twice.
    assert [(each.kind, each.rank) for each in found.items] == [
        ("dump_processes", None), ("log", None), ("log", 1), ("log", 3), ("probe_flight", None), ("probe_gpus", None),
        ("probe_kernel", None), ("probe_ras", None), ("write_facts", None), ("write_facts", None),
    ]  # fmt: skip
    assert not found.interrupted


@pytest.mark.parametrize("broken", PROBES)
def test_a_probe_that_raises_costs_only_itself(probes: Any, tmp_path: Path, broken: str) -> None:
    def fails(*_arguments: object, **_options: object) -> list[Item]:
        raise ZeroDivisionError("token=hf_abcdefghijklmnop")

    probes(broken, fails)
    found = collect_node([], tmp_path, host="n", limits=QUICK)
    (failed,) = [each for each in found.items if not each.ok]
    assert (failed.path, failed.host) == ("", "n")
    assert (failed.error or "").startswith("ZeroDivisionError")
    assert "abcdefghijklmnop" not in (failed.error or "")
    assert "rest of the bundle is whole" in (failed.reason or "")
    assert {each.kind for each in found.items if each.ok} == set(PROBES) - {broken}


@pytest.mark.parametrize(("launcher", "roles"), [(False, ["rank"]), (True, ["launcher", "rank"])])
def test_of_launchers_the_logs_are_taken_in_any_case_and_the_stacks_when_asked(
    probes: Any, tmp_path: Path, launcher: bool, roles: list[str]
) -> None:
    given: dict[str, list[str]] = {}
    for name in ("dump_processes", "write_facts", "copy_logs"):
        probes(name, lambda processes, *_a, name=name, **_k: given.update({name: [p.role for p in processes]}) or [])
    collect_node([process(3, "launcher"), process(7, rank=1)], tmp_path, host="n", launcher=launcher, limits=QUICK)
    assert given == {"dump_processes": roles, "write_facts": roles, "copy_logs": ["launcher", "rank"]}


def test_progress_counts_the_probes(probes: Any, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    collect_node([], tmp_path, host="n", limits=QUICK, progress=lambda done, total: told.append((done, total)))
    assert told == [(number, len(PROBES)) for number in range(1, len(PROBES) + 1)]


def test_an_interrupt_keeps_what_was_taken(probes: Any, tmp_path: Path) -> None:
    def interrupts(*_arguments: object, **_options: object) -> list[Item]:
        os.kill(os.getpid(), signal.SIGINT)
        return [item("probe_kernel")]

    probes("probe_kernel", interrupts)
    found = collect_node([], tmp_path, host="n", limits=Limits(again_after_s=0.5))
    assert found.interrupted
    assert "dump_processes" in {each.kind for each in found.items}


def test_a_probe_that_does_not_end_is_given_up_and_what_is_cancelled_ends_at_once(
    probes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.bundle.collect.ENDING_S", 0.2)
    hangs = threading.Event()
    probes("probe_ras", lambda *_a, **_k: hangs.wait(30) and [])
    probes("probe_gpus", lambda *_a, cancelled, **_k: [item(f"gpu {cancelled.wait(30)}")])
    probes("dump_processes", lambda *_a, cancelled, **_k: [item(f"stacks {cancelled.wait(30)}")])
    probes("probe_kernel", lambda *_a, **_k: os.kill(os.getpid(), signal.SIGINT) or [])
    found = collect_node([], tmp_path, host="n", limits=QUICK)
    hangs.set()
    assert found.interrupted
    assert {each.kind for each in found.items if each.ok} >= {"gpu True", "stacks True"}
    given_up = {each.kind: each.error for each in found.items if not each.ok}
    assert given_up.pop("ras") == "stopped before it had ended"
    assert set(given_up) <= {"log"}  # the interrupt may come before the last one is started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_after_a_first_signal_further_ones_do_nothing_until_all_is_written(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in signal.valid_signals()]
    with at_most_one_interrupt() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        for further in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(further)
    assert interrupts.by == number.name
    with at_most_one_interrupt() as interrupts:
        interrupts.no_more()
        signal.raise_signal(number)
    assert interrupts.by is None
    assert [signal.getsignal(each) for each in signal.valid_signals()] == before


def test_a_signal_that_is_ignored_or_has_a_handler_of_its_own_stays_so() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda n, _: got.append(n))
    try:
        with at_most_one_interrupt():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert got == [signal.SIGTERM]
