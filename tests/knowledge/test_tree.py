import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata

import torchtriage
from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.tool import playbook, render
from torchtriage.knowledge.tree import (
    RESOURCE_LINK,
    branch_named,
    embed_tree,
    load_tree,
    reference_page,
    render_tree,
    rendered_files,
)
from torchtriage.verdict.tool import explain_symptom

ROOT = data_root()
TREE = load_tree()
TRIGGERS = Path(__file__).resolve().parents[2] / "evals" / "skill" / "triggers.yaml"
BRANCHES = [branch["name"] for branch in TREE["branches"]]
MIN_CHARS_PER_TOKEN = 3.4
WAYS = ("node", "modes", "branch", "collect")


def triggers() -> list[dict[str, Any]]:
    """What somebody may ask, and whether the skill is for it."""
    return yaml.safe_load(TRIGGERS.read_text(encoding="utf-8"))["queries"]


def nodes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield from ((branch, node) for branch in TREE["branches"] for node in branch["nodes"])


def answers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield from ((branch, answer) for branch, node in nodes() for answer in node["answers"])


@pytest.mark.parametrize("path", rendered_files(ROOT), ids=lambda path: path.name)
def test_what_is_rendered_from_the_tree_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == rendered_files(ROOT)[path], "run python -m torchtriage.knowledge.tree"


def test_there_is_a_page_for_every_branch_and_no_other() -> None:
    assert sorted(p.stem for p in (ROOT / "skill" / "reference").iterdir()) == sorted(BRANCHES)
    assert sorted({entry.branch for entry in load_playbook().entries.values()}) == sorted(BRANCHES)


def test_every_call_in_the_tree_is_a_call_of_a_tool() -> None:
    calls = [node for _, node in nodes()] + [a for a in TREE["first"]["answers"] if "call" in a]
    for node in calls:
        assert node["call"] in torchtriage.__all__
        inspect.signature(getattr(torchtriage, node["call"])).bind_partial(**node.get("arguments", {}))
    assert {node["call"] for node in calls} == set(torchtriage.__all__) - {"clean_text", "check_evidence"}


def test_every_answer_leads_one_way_to_something_that_exists() -> None:
    entries = load_playbook().entries
    for branch, answer in answers():
        (way,) = [way for way in WAYS if way in answer]
        assert set(answer) == {"if", way}
        if way == "node":
            assert answer["node"] in {node["id"] for node in branch["nodes"]}
        elif way == "branch":
            assert answer["branch"] in BRANCHES
        elif way == "modes":
            assert answer["modes"]
            assert set(answer["modes"]) <= set(entries)


def test_every_question_can_be_reached_and_leads_to_two_places_or_more() -> None:
    for branch in TREE["branches"]:
        ids = [node["id"] for node in branch["nodes"]]
        asked = {answer["node"] for node in branch["nodes"] for answer in node["answers"] if "node" in answer}
        assert len(ids) == len(set(ids))
        assert asked | {ids[0]} == set(ids)
        assert all(len(node["answers"]) >= 2 for node in branch["nodes"])


def test_every_failure_mode_is_where_an_answer_of_its_branch_or_a_neighbour_leads() -> None:
    reached = Counter(mode for _, answer in answers() for mode in answer.get("modes", ()))
    assert set(load_playbook().entries) - set(reached) == set()


def test_a_playbook_query_in_the_tree_names_an_entry() -> None:
    queries = [node["arguments"]["query"] for _, node in nodes() if node["call"] == "playbook"]
    assert set(queries) <= set(load_playbook().entries)


def test_a_job_that_still_hangs_is_looked_at_first() -> None:
    first = next(branch for branch in TREE["branches"] if branch["name"] == "hang")["nodes"][0]
    assert (first["call"], first["arguments"]) == ("triage", {"live": True})
    assert "collect" in first["see"]


def test_the_tree_s_top_names_every_branch_with_a_link_to_its_page() -> None:
    text = render_tree(TREE)
    for branch in TREE["branches"]:
        assert f"| {branch['when']} | [{branch['name']}]({RESOURCE_LINK.format(branch['name'])}) |" in text


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_page_is_short_and_holds_every_mode_of_its_branch(branch: str) -> None:
    page = reference_page(branch)
    assert len(page) / MIN_CHARS_PER_TOKEN < 3000
    modes = [entry.id for entry in load_playbook().entries.values() if entry.branch == branch]
    assert re.findall(r"^\| \d+ \| `([a-z0-9-]+)`: ", page, re.MULTILINE) == modes
    assert page.count("`") % 2 == 0


@pytest.mark.parametrize("query", ["hang", "HANG", "nccl_timeout", "nccl-timeout", "data"])
def test_a_branch_s_name_is_answered_with_its_page(query: str) -> None:
    report = playbook(query)
    assert report.branch == branch_named(query)
    assert report.text == render(report) == reference_page(report.branch or "")
    assert {hit.branch for hit in report.hits} == {report.branch}
    assert report.failure_mode is None


def test_words_around_a_branch_s_name_are_still_searched() -> None:
    report = playbook("hang in dataloader")
    assert report.branch is None
    assert report.hits[0].score > 0


def test_a_page_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match=r"hang\.md"):
        reference_page("hang", tmp_path)


def test_the_skill_is_valid_and_short() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    metadata, body = parse_frontmatter(text)
    assert validate_metadata(metadata, Path("/x/torchtriage")) == []
    assert len(metadata["description"]) <= 1024
    assert len(body.splitlines()) < 500
    assert len(text) / MIN_CHARS_PER_TOKEN < 5000


def test_every_page_that_the_skill_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "SKILL.md").read_text(encoding="utf-8"))
    assert len(links) >= len(BRANCHES)
    assert all((ROOT / link).is_file() for link in links)


def test_a_skill_without_the_markers_is_refused() -> None:
    with pytest.raises(KnowledgeError, match="markers"):
        embed_tree("# no markers", TREE)


def test_triggers_are_as_many_that_should_as_that_should_not() -> None:
    queries = triggers()
    assert Counter(query["should_trigger"] for query in queries) == {True: 10, False: 10}
    assert len({query["query"] for query in queries}) == len(queries)
    for query in queries:
        assert set(query) == {"query", "should_trigger", "why"}
        assert query["query"].strip()
        assert query["why"].strip()


def test_what_should_trigger_the_skill_is_not_about_something_else() -> None:
    asked = [query["query"] for query in triggers() if query["should_trigger"]]
    assert [query for query in asked if explain_symptom(query).status == "out_of_domain"] == []
