import gzip
import io
import os
import struct
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtriage.artefacts import archives
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.artefacts.tar import tar_members

LOG = b"[rank0] step 0 loss 7.1\n" * 40


def _tar(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _found(path: Path, content: bytes) -> tuple[list[str], list[str]]:
    path.write_bytes(content)
    with open_inputs([str(path)]) as inputs:
        return [a.name for a in inputs.artefacts], list(inputs.gaps)


def _with_checksum(archive: bytearray, at: int) -> bytes:
    archive[at + 148 : at + 156] = b" " * 8
    archive[at + 148 : at + 156] = b"%06o\0 " % sum(archive[at : at + 512])
    return bytes(archive)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_contents_of_every_dialect_are_read_as_the_standard_library_reads_them(form: int) -> None:
    members = {"a.log": LOG, "b/" * 40 + "c.log": b"", "rank-é.log": b"x" * 513}
    if form != tarfile.USTAR_FORMAT:
        members["long/" * 60 + "d.log"] = b"y" * 512
    losses: list[str] = []
    read = {}
    for member in tar_members(io.BytesIO(_tar(members, form)), losses):
        assert member.stream is not None
        chunks = iter(lambda stream=member.stream: stream.read(100), b"")
        read[member.name] = b"".join(chunks)
    assert read == members
    assert losses == []


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_size_beyond_all_bounds_costs_that_member_alone(tmp_path: Path, compress: object) -> None:
    archive = bytearray(_tar({"a.log": LOG, "b.log": LOG}))
    archive[124:136] = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7
    started = time.monotonic()
    names, gaps = _found(tmp_path / "a.tar", compress(_with_checksum(archive, 0)))  # type: ignore[operator]
    assert names == ["b.log"]
    assert any("'a.log'" in gap and "damaged" in gap for gap in gaps)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("change", ["checksum", "zeroed"])
def test_a_damaged_header_is_a_gap_and_what_follows_is_read(tmp_path: Path, change: str) -> None:
    archive = bytearray(_tar({"a.log": LOG, "lost.log": LOG, "c.log": LOG}))
    at = archive.find(b"lost.log")
    archive[at + (148 if change == "checksum" else 0) : at + (150 if change == "checksum" else 512)] = bytes(
        2 if change == "checksum" else 512
    )
    names, gaps = _found(tmp_path / "a.tar", bytes(archive))
    assert names == ["a.log", "c.log"]
    assert len(gaps) == 1
    assert "damaged" in gaps[0]


def test_concatenated_archives_are_read_to_the_end(tmp_path: Path) -> None:
    assert _found(tmp_path / "a.tar", _tar({"a.log": LOG}) + _tar({"b.log": LOG})) == (["a.log", "b.log"], [])


def test_bytes_after_the_end_and_a_missing_end_are_gaps(tmp_path: Path) -> None:
    whole = _tar({"a.log": LOG})
    assert any("no member" in gap for gap in _found(tmp_path / "a.tar", whole + b"[rank1] Traceback " * 99)[1])
    assert any("ends early" in gap for gap in _found(tmp_path / "b.tar", whole[: 512 + 1024])[1])


def test_a_pax_record_of_impossible_length_is_no_error(tmp_path: Path) -> None:
    record = b"99999999999999999999 path=a\n"
    info = tarfile.TarInfo("p")
    info.size, info.type = len(record), b"x"
    archive = info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + _tar({"a.log": LOG})
    assert _found(tmp_path / "a.tar", archive) == (["a.log"], [])


def test_member_names_of_any_length_cost_no_time(tmp_path: Path) -> None:
    started = time.monotonic()
    names, _ = _found(tmp_path / "a.tar", _tar({".txt" * 60_000 + "x": LOG, "rank_a" * 20_000: LOG}))
    assert all(len(name) <= 520 for name in names)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [(10, struct.pack("<H", 99), "not known here"),
     (42, struct.pack("<I", 0x7FFFFFFF), "damaged"), (8, b"\1", "encrypted")],
)  # fmt: skip
def test_a_zip_member_that_cannot_be_opened_is_named_and_costs_itself_alone(
    tmp_path: Path, offset: int, value: bytes, words: str
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first.log", LOG)
        archive.writestr("second.log", LOG)
    content = bytearray(out.getvalue())
    at = content.find(b"PK\1\2") + offset
    content[at : at + len(value)] = value
    names, gaps = _found(tmp_path / "a.zip", bytes(content))
    assert names == ["second.log"]
    assert any("first.log" in gap and words in gap for gap in gaps)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 4095), st.binary(min_size=1, max_size=40), st.booleans())
def test_a_damaged_archive_is_read_or_has_a_gap(tmp_path: Path, at: int, noise: bytes, as_zip: bool) -> None:
    out = io.BytesIO(_tar({"a.log": LOG, "b.log": LOG}))
    if as_zip:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.log", LOG)
            archive.writestr("b.log", os.urandom(600))
    content = bytearray(out.getvalue())
    at %= len(content)
    content[at : at + len(noise)] = noise
    names, gaps = _found(tmp_path / "archive", bytes(content))
    assert names or gaps


def _zip(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_an_archive_that_grows_many_times_over_is_not_unpacked_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    names, gaps = _found(tmp_path / "a.zip", _zip({"a.log": LOG, "b.log": b"\n" * (16 << 20), "c.log": LOG}))
    assert names == ["a.log", "b.log"]
    assert any("more than 200 times its size" in gap for gap in gaps)


def test_what_all_archives_together_unpack_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_TOTAL_BYTES", 3 * len(LOG))
    for name in "abcde":
        (tmp_path / f"{name}.zip").write_bytes(_zip({f"{name}.log": LOG}))
    with open_inputs([str(tmp_path)]) as inputs:
        assert len(inputs.artefacts) == 3
        assert sum("holds more than is unpacked" in gap for gap in inputs.gaps) == 2


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize(("stated", "kept"), [(1_764_540_000.0, True), (0.0, False), (float(1 << 34), False)])
def test_a_member_keeps_the_time_of_its_last_change_where_that_is_a_time(
    form: int, stated: float, kept: bool, tmp_path: Path
) -> None:
    packed = tmp_path / "a.tar"
    with tarfile.open(packed, "w", format=form) as archive:
        member = tarfile.TarInfo("rank0.log")
        member.mtime = stated if form != tarfile.USTAR_FORMAT else min(stated, 8**11 - 1)
        archive.addfile(member, io.BytesIO(b""))
    with open_inputs([packed]) as inputs:
        (found,) = inputs.artefacts
        assert (found.path.stat().st_mtime == stated) is kept


@pytest.mark.parametrize("stated", [b"nan", b"inf", b"-1", b"x", b"1e400", b"9" * 50])
def test_a_stated_time_that_is_none_is_left_out(stated: bytes) -> None:
    length = len(stated) + 9
    record = b"%d mtime=%s\n" % (length + len(str(length)) - 1, stated)
    record = b"%d mtime=%s\n" % (len(record), stated)
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    plain = tarfile.TarInfo("a")
    content = header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + plain.tobuf(tarfile.USTAR_FORMAT)
    (member,) = tar_members(io.BytesIO(content + bytes(1024)), [])
    assert member.changed_s is None
