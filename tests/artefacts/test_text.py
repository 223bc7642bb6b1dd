import gzip
from pathlib import Path

from torchtriage.artefacts.inputs import open_inputs
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
