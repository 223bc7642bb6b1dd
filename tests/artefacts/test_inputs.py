import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from torchtriage.artefacts.inputs import open_inputs, path_names
from torchtriage.artefacts.recognise import Recognised, recognise
from torchtriage.errors import InputNotFoundError, OutsideRootsError
from torchtriage.verdict.tool import triage

LOG = b"[rank0] step 0 loss 7.1\n[rank1] step 0 loss 7.1\n"


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.log").write_bytes(LOG)
    (folder / "deep" / "b.log").write_bytes(LOG)
    return folder


def _tar(path: Path, mode: str, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_names_are_relative_to_the_one_folder_that_was_given(tmp_path: Path) -> None:
    with open_inputs([str(_folder(tmp_path))]) as inputs:
        assert [(a.name, a.kind) for a in inputs.artefacts] == [("a.log", "log"), ("deep/b.log", "log")]


def test_a_single_file_keeps_the_name_it_was_given_by(tmp_path: Path) -> None:
    path = str(_folder(tmp_path) / "a.log")
    with open_inputs([path]) as inputs:
        assert [a.name for a in inputs.artefacts] == [path]


def test_several_folders_keep_their_names_apart(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with open_inputs([str(folder), str(folder / "deep")]) as inputs:
        assert {a.name for a in inputs.artefacts} == {f"{folder}/a.log", f"{folder}/deep/b.log"}


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.zst", "zip"])
def test_archives_are_read_whatever_they_are_called(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "no-ending"
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("run/a.log", LOG)
    elif ending == "tar.zst":
        plain = _tar(tmp_path / "plain.tar", "w", {"run/a.log": LOG})
        path.write_bytes(zstandard.compress(plain.read_bytes()))
    else:
        _tar(path, "w" if ending == "tar" else "w:gz", {"run/a.log": LOG})
    with open_inputs([str(path)]) as inputs:
        assert [(a.name, a.kind) for a in inputs.artefacts] == [("run/a.log", "log")]
        private = inputs.private_folder()
        assert private.stat().st_mode & 0o777 == 0o700
    assert not private.exists()


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_files_are_read_through(tmp_path: Path, compress: object) -> None:
    path = tmp_path / "rank0.log.gz"
    path.write_bytes(compress(LOG))  # type: ignore[operator]
    with open_inputs([str(path)]) as inputs:
        assert [a.kind for a in inputs.artefacts] == ["log"]


def test_no_name_in_an_archive_becomes_a_path(tmp_path: Path) -> None:
    target = tmp_path / "escaped"
    path = _tar(tmp_path / "evil.tar", "w", {"../../../../../../../../" + str(target)[1:]: LOG, str(target): LOG})
    with open_inputs([str(path)]) as inputs:
        assert len(inputs.artefacts) == 2
        assert all(".." not in a.name and inputs.private_folder() in a.path.parents for a in inputs.artefacts)
    assert not target.exists()


def test_links_and_devices_in_an_archive_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("passwd.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        device = tarfile.TarInfo("null")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    with open_inputs([str(path)]) as inputs:
        assert inputs.artefacts == []
        assert any("2 link(s) or special file(s)" in gap for gap in inputs.gaps)


def test_a_cut_archive_yields_what_came_before_the_cut(tmp_path: Path) -> None:
    whole = _tar(
        tmp_path / "whole.tar.gz", "w:gz", {f"{i}.log": LOG + os.urandom(4000) for i in range(20)}
    ).read_bytes()
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with open_inputs([str(path)]) as inputs:
        assert inputs.artefacts
        assert any("damaged" in gap for gap in inputs.gaps)


def test_links_and_pipes_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder / "link.log").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    with open_inputs([str(folder)]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["a.log", "deep/b.log"]
        assert any("3 link(s) or special file(s)" in gap for gap in inputs.gaps)


def test_a_pipe_that_is_named_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open_inputs([str(tmp_path / "pipe")]) as inputs:
        assert inputs.artefacts == []
        assert any("not a regular file" in gap for gap in inputs.gaps)


@pytest.mark.parametrize("path", ["nowhere", "", "nul\x00byte", "a" * 5000])
def test_a_path_that_does_not_exist_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(InputNotFoundError, match=r"no such file or folder|not a path"):
        open_inputs([path] if path else ["/nowhere/at/all"])


def test_no_path_at_all_says_what_to_pass() -> None:
    with pytest.raises(InputNotFoundError, match="pass a folder"):
        open_inputs([])


def test_roots_confine_paths_also_through_links(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    outside = tmp_path / "outside.log"
    outside.write_bytes(LOG)
    (folder / "way-out").symlink_to(outside)
    with open_inputs([str(folder / "a.log")], roots=[folder]) as inputs:
        assert len(inputs.artefacts) == 1
    for path in (outside, folder / "way-out", folder / ".." / "outside.log", tmp_path / "not-there"):
        with pytest.raises(OutsideRootsError):
            open_inputs([str(path)], roots=[folder])


def test_ranks_are_listed_in_numeric_order(tmp_path: Path) -> None:
    for rank in (10, 9, 2):
        (tmp_path / f"rank_{rank}.log").write_bytes(LOG)
    with open_inputs([str(tmp_path)]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["rank_2.log", "rank_9.log", "rank_10.log"]


def test_an_empty_path_is_refused_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_folder(tmp_path))
    for given in ("", "  "):
        with pytest.raises(InputNotFoundError, match="an empty path was given"):
            open_inputs([given])


def test_paths_that_cannot_exist_are_refused_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputNotFoundError, match="no such user"):
        open_inputs(["~nosuchuser-at-all/x"])
    with pytest.raises(InputNotFoundError, match="no such file"):
        open_inputs(["a" * 5000], roots=[tmp_path])
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InputNotFoundError, match="working folder itself is gone"):
        open_inputs(["x"])
    with open_inputs([str(_folder(tmp_path))]) as inputs:
        assert len(inputs.artefacts) == 2


def test_folders_of_tools_are_not_looked_into_and_said_so_in_a_note(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "b.log").write_bytes(LOG)
    with open_inputs([str(folder)]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["a.log", "deep/b.log"]
        assert inputs.gaps == []
        assert len(inputs.notes) == 1
        assert ".venv" in inputs.notes[0]
    with open_inputs([str(folder / ".venv")]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["b.log"]


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with open_inputs([str(folder), str(folder / "a.log"), str(folder / "deep")]) as inputs:
        assert len(inputs.artefacts) == 2


def test_whatever_one_file_causes_is_a_gap_of_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)

    def broken(head: bytes, name: str, more: object = None) -> Recognised:
        if name == "a.log":
            raise OverflowError
        return recognise(head, name)

    monkeypatch.setattr("torchtriage.artefacts.inputs.recognise", broken)
    with open_inputs([str(folder)]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["deep/b.log"]
        assert inputs.gaps == ["a.log: not readable (OverflowError: )"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
def test_a_log_behind_a_long_first_line_is_a_log(tmp_path: Path, compress: object) -> None:
    content = b"q" * 100_000 + b"\n[rank0]: Traceback (most recent call last):\n"
    (tmp_path / "a").write_bytes(compress(content))  # type: ignore[operator]
    with open_inputs([str(tmp_path)]) as inputs:
        assert [a.kind for a in inputs.artefacts] == ["log"]


def test_a_path_object_and_a_single_string_are_paths_too(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[rank0]: step 1 loss 2.0\n", encoding="utf-8")

    reports = [triage(given) for given in ([str(tmp_path)], str(tmp_path), tmp_path, [tmp_path])]

    assert len({report.model_dump_json() for report in reports}) == 1


def test_a_path_of_any_bytes_is_printable_in_reports_and_can_be_given_back(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff\x1b[2J")
    folder.mkdir()
    (folder / "a.log").write_bytes(LOG)
    (shown,) = path_names(folder)
    assert shown.isprintable()
    assert shown.endswith(r"bad\xff\x1b[2J")
    assert triage(folder).model_dump_json()
    with open_inputs([shown], [tmp_path]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["a.log"]
    with pytest.raises(OutsideRootsError):
        open_inputs([shown], [tmp_path / "elsewhere"])
