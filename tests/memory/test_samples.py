"""Snapshots that others recorded, with what is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.memory.read import summarise_task
from torchtriage.memory.tool import memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def _sample(samples: Path, pattern: str) -> Path:
    found = sorted((samples / "public" / "memory").glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} among the samples")
    return found[0]


def test_peaks_of_a_snapshot_of_two_devices_are_exact(samples: Path) -> None:
    summary = summarise_task(str(_sample(samples, "*multi*")), None, {"format": "pickle"})
    first, second = summary["devices"]
    assert (first["peak_allocated"], first["peak_event"], first["peak_reserved"]) == (597_642_080, 7467, 643_825_664)
    assert summary["notes"] == []
    (grown,) = first["grown"]
    assert grown["site"].startswith("train_one_step (")
    assert grown["bytes_per_step"] == 40 << 20
    assert second["grown"] == []


@pytest.mark.parametrize("pattern", ["*expandable*", "*empty_cache.pkl", "*empty_cache_expandable*", "*multi*"])
def test_a_tensor_kept_in_each_of_three_steps_is_told(pattern: str, samples: Path) -> None:
    report = memory_snapshot([str(_sample(samples, pattern))])
    assert [finding.kind for finding in report.findings] == ["leak"]


def test_a_history_of_three_even_steps_is_healthy(samples: Path) -> None:
    report = memory_snapshot([str(_sample(samples, "ptsnap_snapshot_1*"))])
    assert (report.status, report.findings) == ("healthy", [])


def test_a_made_up_history_without_any_loop_is_inconclusive(samples: Path) -> None:
    report = memory_snapshot([str(_sample(samples, "mosaic*"))])
    assert (report.status, report.findings) == ("inconclusive", [])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("oom_activation", ["activation_peak"]),
        ("frag_oom", ["fragmentation", "fragmentation"]),
        ("snapshot_healthy", []),
    ],
)
def test_recorded_jobs_are_judged_by_what_was_done_to_them(name: str, kinds: list[str], samples: Path) -> None:
    folder = samples / "recordings" / name
    if not folder.is_dir():
        pytest.skip(f"no recording {name}")
    report = memory_snapshot([str(folder)])
    assert [finding.kind for finding in report.findings] == kinds
    assert report.status == ("fault" if kinds else "healthy")
