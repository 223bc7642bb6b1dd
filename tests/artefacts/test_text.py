import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtriage.artefacts.inputs import Artefact, open_inputs
from torchtriage.artefacts.streams import compression_of
from torchtriage.artefacts.text import MAX_LINE_CHARS, read_line, read_lines


def _lines(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    with open_inputs([str(path)]) as inputs:
        return list(read_lines(inputs.artefacts[0]))


def test_lines_are_numbered_as_other_tools_number_them(tmp_path: Path) -> None:
    content = b"step 1\r\nstep 2 10%\rstep 2 20%\nlast without end"
    assert _lines(tmp_path / "a.log", content) == ["step 1", "step 2 10%\rstep 2 20%", "last without end"]
    with open_inputs([str(tmp_path / "a.log")]) as inputs:
        assert read_line(inputs.artefacts[0], 3) == "last without end"
        assert read_line(inputs.artefacts[0], 4) is None


def test_a_line_of_many_megabytes_is_cut_and_the_next_ones_stay(tmp_path: Path) -> None:
    content = b"step 1\n" + b"x" * (5 << 20) + b"\nstep 2\n"
    lines = _lines(tmp_path / "a.log", content)
    assert [len(line) for line in lines] == [6, MAX_LINE_CHARS, 6]


def test_broken_encoding_loses_nothing_else(tmp_path: Path) -> None:
    assert _lines(tmp_path / "a.log", b"step 1 \xff\xfe\nstep 2\n") == ["step 1 \ufffd\ufffd", "step 2"]


def test_utf_16_is_read(tmp_path: Path) -> None:
    assert _lines(tmp_path / "a.log", "step 1\nstep 2".encode("utf-16")) == ["step 1", "step 2"]


def test_a_cut_gzip_yields_its_first_lines(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"[rank0] step %d loss 7.%d\n" % (i, i * 7919) for i in range(20_000)))
    lines = _lines(tmp_path / "a.log.gz", whole[: len(whole) // 2])
    assert lines[0] == "[rank0] step 0 loss 7.0"
    assert len(lines) > 100


def _lines_and_losses(path: Path, content: bytes) -> tuple[list[str], list[str]]:
    path.write_bytes(content)
    losses: list[str] = []
    with open_inputs([str(path)]) as inputs:
        return list(read_lines(inputs.artefacts[0], losses)), losses


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damage_of_a_compressed_text_is_reported(tmp_path: Path, compress: object, damage: str) -> None:
    content = b"".join(b"[rank0] step %d loss 7.%d\n" % (i, i * 7919) for i in range(90_000))
    whole = bytearray(compress(content))  # type: ignore[operator]
    assert _lines_and_losses(tmp_path / "whole", bytes(whole))[1] == []
    middle = len(whole) // 2
    if damage == "cut":
        del whole[middle:]
    else:
        whole[middle : middle + 16] = b"\xff" * 16
    lines, losses = _lines_and_losses(tmp_path / "damaged", bytes(whole))
    assert lines[0] == "[rank0] step 0 loss 7.0"
    assert len(losses) == 1
    assert "damaged or cut" in losses[0]


def test_the_bytes_before_a_bad_checksum_are_handed_out(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(b"step 1\nstep 2\n"))
    whole[-6] ^= 255
    lines, losses = _lines_and_losses(tmp_path / "a.log.gz", bytes(whole))
    assert lines == ["step 1", "step 2"]
    assert losses


def test_a_cut_compressed_utf_16_text_yields_its_beginning(tmp_path: Path) -> None:
    text = "".join(f"[rank0] step {i} loss {i * 7919}\n" for i in range(9000))
    whole = gzip.compress(text.encode("utf-16"))
    lines, losses = _lines_and_losses(tmp_path / "a.log.gz", whole[:-300])
    assert lines[:100] == text.split("\n")[:100]
    assert losses


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_every_encoding_is_read_to_the_end_with_and_without_mark(tmp_path: Path, codec: str) -> None:
    wanted = [f"[rank0] step {i} loss {i * 7919}" for i in range(60_000)]
    lines, losses = _lines_and_losses(tmp_path / "a.log", ("\n".join(wanted) + "\n").encode(codec))
    assert lines == wanted
    assert losses == []


def test_carriage_returns_end_lines_when_nothing_else_does(tmp_path: Path) -> None:
    content = b"".join(b"[rank0] step %d\r" % i for i in range(10_000))
    path = tmp_path / "a.log"
    lines, _ = _lines_and_losses(path, content + b"last\r\nvery last")
    assert len(lines) == 10_002
    assert lines[-3:] == ["[rank0] step 9999", "last", "very last"]
    with open_inputs([str(path)]) as inputs:
        assert read_line(inputs.artefacts[0], 10_000) == "[rank0] step 9999"


def test_a_hole_of_zeros_hides_no_line(tmp_path: Path) -> None:
    lines, _ = _lines_and_losses(tmp_path / "a.log", bytes(500_000) + b"[rank0] step 1\n" + bytes(9000) + b"step 2\n")
    assert lines == ["[rank0] step 1", "step 2"]


def test_text_beyond_the_bound_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.artefacts.text.MAX_TEXT_BYTES", 100_000)
    lines, losses = _lines_and_losses(tmp_path / "a.log", b"[rank0] step 1\n" * 400_000)
    assert 0 < len(lines) < 400_000
    assert "the rest was not read" in losses[0]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_as_lines(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.log").write_bytes(content)
    artefact = Artefact("a.log", tmp_path / "a.log", "log", "text", compression_of(content), len(content))
    lines = list(read_lines(artefact))
    for number, line in enumerate(lines, start=1):
        assert read_line(artefact, number) == line


def test_a_log_that_grows_while_it_is_read_is_read_as_far_as_it_reached(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"step 1 loss 2.0\n" * 10_000)
    with open_inputs([str(path)]) as inputs:
        lines = read_lines(inputs.artefacts[0])
        first = next(lines)
        with path.open("ab") as more:
            more.write(b"step 2 loss 1.0\n" * 10_000)
        assert [first, *lines] == ["step 1 loss 2.0"] * 10_000


def test_a_log_that_became_shorter_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"step 1 loss 2.0\n" * 100)
    with open_inputs([str(path)]) as inputs:
        path.write_bytes(b"step 1 loss 2.0\n")
        losses: list[str] = []
        assert list(read_lines(inputs.artefacts[0], losses)) == ["step 1 loss 2.0"]
    assert losses == ["a.log: became shorter while it was read"] or losses[0].endswith(
        "became shorter while it was read"
    )
