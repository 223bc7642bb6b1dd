import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.view import parse_json
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
