"""Answers that others recorded, with what is known of them."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from torchtriage.nvlink.tool import nvlink_health

if TYPE_CHECKING:
    from pathlib import Path


def test_each_bad_sample_is_found_and_each_healthy_one_is_not_accused(samples: Path) -> None:
    folder = samples / "public" / "nvlink"
    if not (folder / "MANIFEST.tsv").is_file():
        pytest.skip("no answers about NVLinks among the samples")
    with (folder / "MANIFEST.tsv").open(encoding="utf-8", newline="") as manifest:
        rows = list(csv.DictReader(manifest, delimiter="\t"))
    wrong = {
        row["file"]: status
        for row in rows
        if ((status := nvlink_health([folder / row["file"]]).status) in ("degraded", "failed"))
        != ("BAD" in row["ground truth"])
    }
    assert (len(rows) > 40, wrong) == (True, {})


@pytest.mark.parametrize(
    ("pattern", "status"),
    [
        ("h100pcie_*bridged*", "ok"),
        ("h800x8_*nvlink-s*", "ok"),
        ("v100sxm2x8_*topo-m*", "ok"),
        ("pcie8_*", "not_applicable"),
        ("*qx-l40s.xml", "not_applicable"),
        ("*qx-b200.xml", "ok"),
        ("*gb200-lost.xml", "failed"),
        ("*2inactive.txt", "failed"),
    ],
)
def test_status_of(pattern: str, status: str, samples: Path) -> None:
    found = sorted((samples / "public" / "nvlink").glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} among the samples")
    assert nvlink_health([found[0]]).status == status
