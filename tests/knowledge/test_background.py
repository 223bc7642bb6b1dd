from pathlib import Path

import pytest

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.background import backgrounds_key


def test_the_key_follows_the_content_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "skill").mkdir()
    normal, elsewhere = tmp_path / "skill" / "normal.yaml", tmp_path / "skill" / "elsewhere.yaml"
    keys: set[str] = set()
    for one, other in (("normal: []", "elsewhere: []"), ("normal: [1]", "elsewhere: []"), ("normal: []", "")):
        normal.write_text(one, encoding="utf-8")
        elsewhere.write_text(other, encoding="utf-8")
        keys.update({backgrounds_key(tmp_path), backgrounds_key(tmp_path)})
    assert len(keys) == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match=r"normal\.yaml"):
        backgrounds_key(tmp_path)
