"""What a job's ranks run: told from what they have mapped, as they see it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bundle.test_job_logs import process
from torchtriage.bundle.versions import Versions, versions_of

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.bundle.processes import JobProcess

SITE = "/env/lib/python3.12/site-packages"


class Ranks:
    """A /proc with ranks, each with a root of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"

    def add(self, pid: int, *mapped: str, program: str = "/usr/bin/python3.12") -> JobProcess:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        lines = [f"7f{pid}00-7f{pid}01 r-xp 0 00:01 5   {path}\n" for path in mapped]
        (folder / "maps").write_text("".join(lines), encoding="utf-8")
        (folder / "exe").symlink_to(program)
        (folder / "root").symlink_to(self.folder / f"root{pid}")
        return replace(process(pid, rank=pid), uid=(self.folder).stat().st_uid)

    def site(self, pid: int) -> Path:
        path = self.folder / f"root{pid}{SITE}"
        (path / "torch").mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_the_versions_are_the_jobs(ranks: Ranks) -> None:
    mapped = f"{SITE}/torch/lib/libtorch_cpu.so", f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    both = [ranks.add(pid, *mapped) for pid in (1, 2)]
    for pid in (1, 2):
        (ranks.site(pid) / "torch-2.9.1+cu128.dist-info").mkdir()
        (ranks.site(pid) / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    assert versions_of(both, ranks.proc) == Versions("2.9.1+cu128", "2.27.5", "3.12")


def test_a_build_from_source_tells_its_version_in_a_file(ranks: Ranks) -> None:
    one = ranks.add(1, f"{SITE}/torch/lib/libtorch_cpu.so")
    file = ranks.site(1) / "torch" / "version.py"
    file.write_text("__all__ = ['x']\n__version__ = '2.10.0a0+gitabc123'\ndebug = False\n", encoding="utf-8")
    assert versions_of([one], ranks.proc).torch == "2.10.0a0+gitabc123"
    file.write_text("__version__: str = '" + "9" * 9000 + "'\n", encoding="utf-8")
    assert versions_of([one], ranks.proc).torch is None
    file.rename(file.with_name("other"))
    file.symlink_to("other")
    assert versions_of([one], ranks.proc).torch is None


def test_where_ranks_differ_or_have_nothing_mapped_nothing_is_said(ranks: Ranks) -> None:
    differ = [ranks.add(pid, f"{SITE}/torch/lib/libtorch_cpu.so") for pid in (1, 2)]
    for pid in (1, 2):
        (ranks.site(pid) / f"torch-2.{pid}.0.dist-info").mkdir()
    assert versions_of(differ, ranks.proc) == Versions(None, None, "3.12")
    assert versions_of([ranks.add(3, program="/bin/trainer")], ranks.proc) == Versions()
    assert versions_of([], ranks.proc) == Versions()


def test_the_python_inside_another_program_is_told_by_its_library(ranks: Ranks) -> None:
    one = ranks.add(1, "/opt/lib/libpython3.10.so.1.0", program="/opt/bin/trainer")
    other = ranks.add(2, "/opt/lib/python3.13t/lib-dynload/math.so", program="/opt/bin/trainer")
    assert versions_of([one], ranks.proc).python == "3.10"
    assert versions_of([other], ranks.proc).python == "3.13"
