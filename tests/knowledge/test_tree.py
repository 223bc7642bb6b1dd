from pathlib import Path

import pytest
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata

from torchtriage import _HOMES
from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.tree import embed_tree, load_tree, render_tree

SKILL = data_root() / "SKILL.md"


def test_the_skill_shows_the_decision_tree_as_it_is() -> None:
    text = SKILL.read_text(encoding="utf-8")
    assert embed_tree(text, load_tree()) == text


def test_every_call_in_the_tree_is_a_tool() -> None:
    calls = {s["call"] for b in load_tree()["branches"] for s in b["steps"] if "call" in s}
    assert calls <= set(_HOMES)
    assert len(calls) >= 5


def test_the_rendered_tree_names_every_branch_and_condition() -> None:
    text = render_tree(load_tree())
    for branch in load_tree()["branches"]:
        assert f"### {branch['name']}: {branch['when']}" in text


def test_the_skill_is_valid() -> None:
    metadata, body = parse_frontmatter(SKILL.read_text(encoding="utf-8"))
    assert validate_metadata(metadata, Path("/x/torchtriage")) == []
    assert len(body.splitlines()) < 500


def test_a_skill_without_the_markers_is_refused() -> None:
    with pytest.raises(KnowledgeError, match="markers"):
        embed_tree("# no markers", load_tree())
