import gzip
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.view import load_view, parse_json
from torchtriage.errors import UnreadableError

DOCUMENT = {"a": [1, {"b": 'x,]}\\"'}, [2.5, None]], "c": {"d": True}}


def test_text_before_the_first_brace_is_not_part_of_the_view() -> None:
    assert parse_json(b'SERVER PROTOCOL 2\nOK\n{"a": 1}\n') == ({"a": 1}, None)


def test_a_cut_document_yields_what_was_whole() -> None:
    text = json.dumps({"entries": [{"id": i, "name": f"n{i}"} for i in range(9)]}).encode()
    for cut in range(40, len(text)):
        value, note = parse_json(text[:cut])
        assert note is not None
        whole = [e for e in value["entries"] if e.keys() == {"id", "name"}]
        assert whole == [{"id": i, "name": f"n{i}"} for i in range(len(whole))]


def test_a_document_without_json_says_so() -> None:
    with pytest.raises(UnreadableError, match="no JSON"):
        parse_json(b"nothing here")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_clear_refusal(data: bytes) -> None:
    try:
        parse_json(data)
    except UnreadableError as error:
        assert str(error)


@given(st.integers(min_value=1, max_value=60))
def test_a_cut_anywhere_is_survived(cut: int) -> None:
    text = json.dumps(DOCUMENT).encode()
    try:
        value: Any = parse_json(text[:cut])[0]
        assert isinstance(value, dict)
    except UnreadableError:
        assert cut < 12


def test_what_stands_before_one_bad_byte_in_the_middle_is_salvaged() -> None:
    text = bytearray(json.dumps({"entries": [{"id": i, "name": f"n{i}"} for i in range(100)]}).encode())
    text[text.find(b'{"id": 50') - 1] = 1
    value, note = parse_json(bytes(text))
    assert note is not None
    assert [e["id"] for e in value["entries"]] == list(range(50))


@pytest.mark.parametrize("escape", [b"\\q", b"\\u12x4", b"\\"])
def test_a_bad_escape_costs_what_follows_it_alone(escape: bytes) -> None:
    value, note = parse_json(b'{"a": [1, "x,]", {"b": "say ' + escape + b' \\" , [", "c": 2}]}')
    assert note is not None
    assert value["a"][:2] == [1, "x,]"]


def test_control_characters_in_strings_and_a_byte_order_mark_do_no_harm() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": "x\ty\x01"}') == ({"a": "x\ty\x01"}, None)
    assert parse_json('{"a": 1}'.encode("utf-16")) == ({"a": 1}, None)


def test_a_number_of_too_many_digits_costs_itself_alone() -> None:
    assert parse_json(b'{"a": ' + b"9" * 100_000 + b', "b": 2}') == ({"a": None, "b": 2}, None)


def test_a_damaged_document_of_many_megabytes_takes_linear_time() -> None:
    text = b'{"a": [' + b'{"b": "c,]}", "d": [1, 2]}, ' * 300_000 + b"\x01]}"
    started = time.monotonic()
    value, _ = parse_json(text)
    assert len(value["a"]) == 300_000
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("file_format", ["pickle", "json"])
def test_damage_of_a_compressed_dump_is_noted_even_when_all_of_it_was_read(
    tmp_path: Path, compress: Callable[[bytes], bytes], file_format: str
) -> None:
    content = pickle.dumps(DOCUMENT, 2) if file_format == "pickle" else json.dumps(DOCUMENT).encode()
    whole = compress(content)
    for kept, damaged in ((whole, False), (whole[:-5], True) if whole[:2] == b"\x1f\x8b" else (whole[:-1], True)):
        (tmp_path / "dump").write_bytes(kept)
        if damaged and whole[:2] != b"\x1f\x8b":
            continue  # a small zstd frame is one block: nothing of it is left
        value, note = load_view(str(tmp_path / "dump"), "gz" if whole[:2] == b"\x1f\x8b" else "zst", file_format)
        assert value == DOCUMENT
        assert (note is not None) == damaged


def test_a_pickle_beyond_the_bound_is_refused_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.artefacts.view.MAX_PICKLE_BYTES", 10)
    (tmp_path / "dump").write_bytes(pickle.dumps(DOCUMENT))
    with pytest.raises(UnreadableError, match="larger than"):
        load_view(str(tmp_path / "dump"), None, "pickle")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"entries": [1], "x": 2, "entries": []}', {"entries": [1], "x": 2}),
        ('{"entries": [], "entries": [1], "entries": [2]}', {"entries": [1]}),
    ],
)
def test_of_a_key_that_is_there_twice_the_first_value_that_is_not_empty_counts(text: str, value: object) -> None:
    read, note = parse_json(text.encode())
    assert read == value
    assert note is not None
    assert "more than once" in note


@pytest.mark.parametrize("text", ["{}", ' {"a": {"b": 1}, "c" : [1, 2] , "d":\n"x"} ', '{"a": 1} {"a": 2}', "[1, 2]"])
def test_json_whose_keys_are_there_once_is_read_without_a_note(text: str) -> None:
    start = len(text) - len(text.lstrip())
    assert parse_json(text.encode()) == (json.JSONDecoder().raw_decode(text, start)[0], None)
