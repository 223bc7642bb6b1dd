import shutil
from pathlib import Path

import pytest

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import cache_folder, read_kept
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.locate import data_root


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A playbook of one's own, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "root"
    shutil.copytree(data_root() / "playbook", root / "playbook")
    load_playbook.cache_clear()
    yield root
    load_playbook.cache_clear()


def test_the_compiled_index_gives_the_same_playbook(copy: Path) -> None:
    parsed = load_playbook(copy)
    assert len(list(cache_folder().glob("playbook-*.json"))) == 1
    load_playbook.cache_clear()
    assert load_playbook(copy) == parsed


def test_a_changed_file_is_noticed(copy: Path) -> None:
    before = load_playbook(copy)
    some = next(iter(before.entries.values()))
    path = copy / "playbook" / some.path
    path.write_text(path.read_text(encoding="utf-8").replace(some.title, "Quite another title"), encoding="utf-8")
    load_playbook.cache_clear()
    assert load_playbook(copy).entries[some.id].title == "Quite another title"


@pytest.mark.parametrize("content", [b"", b"[1, 2", b'{"a": 1}', bytes(range(50)), b"[]", b"[{}]", b"[null, 3]"])
def test_a_damaged_index_is_made_anew(copy: Path, content: bytes) -> None:
    parsed = load_playbook(copy)
    next(cache_folder().glob("playbook-*.json")).write_bytes(content)
    load_playbook.cache_clear()
    assert load_playbook(copy) == parsed


def test_without_a_place_for_the_cache_it_still_loads(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert load_playbook(copy).entries


def test_two_files_with_one_id_are_an_error_that_names_both(copy: Path) -> None:
    some = next(iter(load_playbook(copy).entries.values()))
    shutil.copy(copy / "playbook" / some.path, copy / "playbook" / some.branch / "another.md")
    load_playbook.cache_clear()
    with pytest.raises(KnowledgeError, match="is taken by"):
        load_playbook(copy)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("---\nid:", "id:", "front matter"),
        ("## Fix it", "## Mend it", "Fix it"),
        ("branch: hang", "branch: [", "not YAML"),
    ],
)
def test_a_broken_entry_says_what_is_wrong(copy: Path, old: str, new: str, complaint: str) -> None:
    path = copy / "playbook" / "hang" / "uneven-batches-per-rank.md"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(KnowledgeError, match=complaint):
        load_playbook(copy)


def test_the_index_is_data_only(copy: Path) -> None:
    load_playbook(copy)
    index = read_kept(next(cache_folder().glob("playbook-*.json")).name)
    assert sorted(index) == ["entries", "templates"]
