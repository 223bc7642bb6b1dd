import io
import os
import pickle
import subprocess
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchtriage.artefacts.plain_pickle import RefusedPickleError, check_plain, load_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.tuples(inner)
    ),
    max_leaves=20,
)
ENTRIES = [{"record_id": i, "frames": [{"name": "f", "line": i}], "state": "completed"} for i in range(50)]
DUMP = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": 50}}, "entries": ENTRIES}


class Calls:
    """Runs a command when a naive reader loads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def load(data: bytes) -> tuple[Any, str | None]:
    return load_plain(io.BytesIO(data))


@given(PLAIN, st.integers(min_value=0, max_value=pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_whole_in_every_protocol(value: Any, protocol: int) -> None:
    # Protocols 0 and 1 write bytes as a call of codecs.encode, which is refused like any other call.
    try:
        assert load(pickle.dumps(value, protocol)) == (value, None)
    except RefusedPickleError as error:
        assert protocol < 3
        assert "_codecs" in str(error) or "bytes" in str(error)


@pytest.mark.parametrize(
    "payload",
    [
        Calls(os.system, "touch pwned"),
        Calls(subprocess.check_output, ["touch", "pwned"]),
        Calls(eval, "open('pwned', 'w')"),
        Calls(bytearray, 10),
        {"entries": [Calls(os.system, "touch pwned")]},
    ],
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_ever_imported_or_run(
    payload: Any, protocol: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(payload, protocol)
    for cut in (len(data), len(data) - 1, len(data) - 5):
        try:
            load(data[:cut])
        except RefusedPickleError as error:
            assert str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_persistent_reference_is_refused() -> None:
    with pytest.raises(RefusedPickleError, match="persistent"):
        load(b"\x80\x02X\x01\x00\x00\x00aQ.")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_cut_dump_yields_its_whole_entries(protocol: int) -> None:
    data = pickle.dumps(DUMP, protocol)
    for cut in range(len(data) // 3, len(data) - 1, 7):
        value, note = load(data[:cut])
        assert note is not None
        assert value["version"] == "2.10"
        entries = value.get("entries", [])
        assert entries == ENTRIES[: len(entries)]
    assert len(entries) >= 49


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_give_plain_data(data: bytes) -> None:
    try:
        value, _ = load(data)
        check_plain(value, max_nodes=100_000)
    except (RefusedPickleError, MemoryError, OverflowError):
        return


@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=2000), st.integers(min_value=0, max_value=255))
def test_a_changed_byte_never_raises_anything_unforeseen(position: int, byte: int) -> None:
    # "r" gives the memo an index of four bytes, for which Python asks for gigabytes: the worker has a limit for that.
    assume(byte != ord("r"))
    data = bytearray(pickle.dumps(DUMP, 2))
    data[position % len(data)] = byte
    try:
        load(bytes(data))
    except (RefusedPickleError, MemoryError):
        return


def test_a_walk_that_would_never_end_is_refused() -> None:
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(RefusedPickleError, match="steps"):
        check_plain(shared, max_nodes=10_000)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RefusedPickleError, match="deeper"):
        check_plain(loop)


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(RefusedPickleError, match="bytearray"):
        check_plain([bytearray(3)])
