"""Packing a bundle into one file: what comes out is what went in, and nothing that is there is touched."""

import os
import tarfile
from pathlib import Path

import pytest

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.bundle.pack import ENDINGS, check_packed_name, pack
from torchtriage.errors import BadCallError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "node1-20261130-120000"
    (folder / "node1" / "logs").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    (folder / "node1" / "logs" / "rank00-pid7.stdout.log").write_text("step=1\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_archive_holds_every_file_under_the_bundles_name(bundle: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"out{ending}"
    pack(bundle, target)
    assert target.stat().st_mode & 0o777 == 0o600
    with open_inputs([str(target)]) as inputs:
        names = sorted(artefact.name for artefact in inputs.artefacts)
        assert not inputs.gaps
    assert [name.partition(f"{bundle.name}/")[2] for name in names] == [
        "manifest.json",
        "node1/logs/rank00-pid7.stdout.log",
    ]


def test_what_is_packed_can_be_unpacked_by_others(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "out.tgz")
    with tarfile.open(tmp_path / "out.tgz") as archive:
        read = archive.extractfile(f"{bundle.name}/node1/logs/rank00-pid7.stdout.log")
        assert read is not None
        assert read.read() == b"step=1\n"


def test_a_file_that_is_there_is_not_overwritten(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar"
    target.write_bytes(b"mine")
    with pytest.raises(BadCallError, match="there already"):
        pack(bundle, target)
    assert target.read_bytes() == b"mine"


def test_a_planted_link_is_not_followed(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.zst"
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCallError, match="there already"):
        pack(bundle, target)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("out.rar", "ends in"), ("nowhere/out.tar.zst", "no folder"), ("tar.zst", "ends in")]
)
def test_a_name_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(BadCallError, match=words):
        check_packed_name(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told_with_the_place_of_the_bundle(bundle: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(BadCallError, match=r"could not be written .* the bundle is in"):
        pack(bundle, closed / "out.tar")
