"""What answers of nvidia-smi decide, beside the facts of processes and the logs of a small bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu.answers import APPS, HEADER, RESTS, SPINS, app, gpu
from torchtriage.artefacts.evidence import check_evidence
from torchtriage.bundle.manifest import Item, Manifest
from torchtriage.bundle.proc_model import ProcFacts
from torchtriage.verdict.tool import triage

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.report import Verdict

OUT_OF_MEMORY = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "139.80 GiB of which 1.00 GiB is free."
)


def verdict(tmp_path: Path, gpus: list[str], *, table: tuple[str, ...] = (), log: str = "") -> Verdict:
    node = tmp_path / "bundle" / "n1"
    for folder in ("gpu", "proc", "logs"):
        (node / folder).mkdir(parents=True)
    for rank in range(4):
        facts = ProcFacts(
            pid=100 + rank, start_ticks=5, ppid=1, name="python3", role="rank", rank=rank, local_rank=rank, host="n1",
            time_s=1000.0, state="R", cpu_s=50.0, n_threads=9,
        )  # fmt: skip
        (node / f"proc/rank0{rank}-pid{100 + rank}.json").write_text(facts.model_dump_json(), encoding="utf-8")
    (node / "gpu/query-gpu.csv").write_text("\n".join([HEADER, *gpus]), encoding="utf-8")
    rows = [APPS, *(app(rank, 100 + rank) for rank in range(4)), *table]
    (node / "gpu/compute-apps.csv").write_text("\n".join(rows), encoding="utf-8")
    if log:
        (node / "logs/rank01-pid101.stderr.log").write_text(log + "\n", encoding="utf-8")
    given = triage([str(tmp_path / "bundle")])
    assert all(check_evidence(each, [str(tmp_path / "bundle")]) for each in given.evidence)
    return given


@pytest.mark.parametrize(
    ("odd", "mode"),
    [
        (gpu(1, sm="600 MHz", reasons="0x0000000000000088"), "gpu-clock-throttled"),
        (gpu(1).replace("98 %", "[GPU is lost]"), "gpu-lost-from-bus-or-power"),
    ],
)
def test_a_sick_gpu_is_suspected_with_its_rank(tmp_path: Path, odd: str, mode: str) -> None:
    found = verdict(tmp_path, [gpu(0), odd, gpu(2), gpu(3)])
    assert (found.status, found.failure_mode, found.culprits.ranks) == ("suspected", mode, [1])
    assert found.culprits.gpus == ["00000000:01:00.0"]


def test_memory_of_others_explains_that_a_rank_has_too_little(tmp_path: Path) -> None:
    found = verdict(tmp_path, [gpu(r) for r in range(4)], table=(app(1, 900, 120_000),), log=OUT_OF_MEMORY)
    assert (found.failure_mode, found.culprits.ranks) == ("foreign-process-occupies-gpu", [1])


@pytest.mark.parametrize("use", [{}, SPINS, RESTS], ids=["full load", "spinning", "at rest"])
def test_gpus_alone_accuse_nobody(tmp_path: Path, use: dict[str, str]) -> None:
    found = verdict(tmp_path, [gpu(r, **use) for r in range(4)])
    assert (found.status, found.culprits.ranks) == ("inconclusive", [])
    assert found.summary == "Nothing wrong was found, and too little was seen to call the job healthy"


def test_an_nvidia_smi_that_hangs_is_told_from_the_manifest(tmp_path: Path) -> None:
    verdict(tmp_path, [])
    error = "nvidia-smi did not answer in time"
    item = Item(path="", kind="nvidia_smi", host="n1", command=["nvidia-smi"], ok=False, error=error, redacted=False)
    manifest = Manifest(torchtriage_version="1", time="2026-01-01T00:00:00+00:00", hosts=["n1"], items=[item])
    (tmp_path / "bundle/manifest.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    found = triage([str(tmp_path / "bundle")])
    (quoted,) = [each for each in found.evidence if each.signal == "gpu.smi_hangs"]
    assert (quoted.where, error in quoted.quote) == ("/items/0/error", True)
    assert check_evidence(quoted, [str(tmp_path / "bundle")])
    assert "nvidia-smi did not answer in time" in found.summary
