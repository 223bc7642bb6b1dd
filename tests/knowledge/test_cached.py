import os
from pathlib import Path

import pytest

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import cache_folder, keep, load_yaml, read_kept

NAME = "thing-1.json"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_what_was_kept_is_found_again() -> None:
    keep(NAME, {"a": [1, None]})
    assert read_kept(NAME) == {"a": [1, None]}


@pytest.mark.parametrize("content", [b"{}", b"[]", b"5", b'"x"', b"", b"\n{}", b"\xff" * 100])
def test_what_was_changed_since_is_not_believed(content: bytes) -> None:
    keep(NAME, {"a": 1})
    (cache_folder() / NAME).write_bytes(content)
    assert read_kept(NAME) is None


def test_what_others_may_write_is_not_believed() -> None:
    keep(NAME, {"a": 1})
    (cache_folder() / NAME).chmod(0o666)
    assert read_kept(NAME) is None


@pytest.mark.parametrize("planted", ["fifo", "link", "folder"])
def test_what_is_no_plain_file_is_neither_waited_for_nor_followed(planted: str, tmp_path: Path) -> None:
    keep("other-1.json", {"a": 1})
    path = cache_folder() / NAME
    if planted == "fifo":
        os.mkfifo(path)
    elif planted == "link":
        path.symlink_to(cache_folder() / "other-1.json")
    else:
        path.mkdir()
    assert read_kept(NAME) is None


def test_a_file_is_parsed_anew_where_what_was_kept_is_not_ours(tmp_path: Path) -> None:
    source = tmp_path / "things.yaml"
    source.write_text("things: [1, 2]", encoding="utf-8")
    assert load_yaml(source) == {"things": [1, 2]}
    for kept in cache_folder().iterdir():
        kept.write_bytes(b"{}")
    assert load_yaml(source) == {"things": [1, 2]}


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    source = tmp_path / "things.yaml"
    source.write_text("a: [", encoding="utf-8")
    with pytest.raises(KnowledgeError, match=r"things\.yaml"):
        load_yaml(source)
