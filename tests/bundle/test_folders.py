"""Private folders: ours alone, never one that somebody else planted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from torchtriage.bundle.folders import default_base, private_folder
from torchtriage.errors import BadCallError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_folder_is_ours_alone_and_one_of_the_same_name_gets_a_number(tmp_path: Path) -> None:
    base = tmp_path / "a" / "stacks"
    made = [private_folder(base, "20261130-rank00") for _ in range(2)]
    assert [path.name for path in made] == ["20261130-rank00", "20261130-rank00-2"]
    assert [mode(path) for path in (base, *made)] == [0o700] * 3


def test_a_link_that_somebody_planted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "stacks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCallError, match="name another one"):
        private_folder(tmp_path / "stacks", "x")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stacks").touch()
    with pytest.raises(BadCallError, match="name another one"):
        private_folder(tmp_path / "stacks")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(BadCallError, match="belongs to another user"):
        private_folder(tmp_path / "stacks")


def test_a_folder_that_others_could_write_to_is_closed_and_a_readable_one_left(tmp_path: Path) -> None:
    base = tmp_path / "stacks"
    base.mkdir()
    for before, after in ((0o777, 0o700), (0o755, 0o755)):
        base.chmod(before)
        private_folder(base)
        assert mode(base) == after


def test_a_planted_link_of_the_inner_name_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "now").symlink_to(tmp_path / "elsewhere")
    assert private_folder(tmp_path, "now").name == "now-2"


def test_the_default_is_below_the_folder_for_temporary_files() -> None:
    assert default_base("halo_diag_stacks") == Path(tempfile.gettempdir()) / "halo_diag_stacks"
