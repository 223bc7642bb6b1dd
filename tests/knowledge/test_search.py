import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.search import search
from torchtriage.knowledge.tool import playbook, render


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("one rank skipped an all_reduce because of a continue", "collective-skipped-on-one-rank"),
        ("DataLoader worker hangs reading from NFS", "dataloader-worker-blocked-in-read"),
        ("last batch uneven DistributedSampler drop_last", "uneven-batches-per-rank"),
        ("two processes on the same GPU, set_device forgotten", "rank-bound-to-wrong-gpu"),
        ("srcIndex < srcSelectDimSize token out of vocabulary", "token-id-outside-embedding"),
    ],
)
def test_words_find_the_entry_they_are_about(query: str, wanted: str) -> None:
    assert search(load_playbook(), query)[0][0] == wanted


def test_an_id_gives_the_whole_entry_without_its_front_matter() -> None:
    report = playbook("uneven-batches-per-rank")
    assert report.status == "found"
    assert render(report).startswith("# Ranks have different numbers of batches")
    assert "## Fix it" in report.text
    assert "proves:" not in report.text


def test_nothing_lists_everything_by_branch() -> None:
    report = playbook()
    assert len(report.hits) == len(load_playbook().entries)
    assert "hang:\n" in render(report)


def test_words_that_no_entry_holds_are_not_found() -> None:
    report = playbook("zzzz qqqq")
    assert (report.status, report.hits) == ("not_found", [])
    assert report.next_checks


@given(st.text(max_size=300))
def test_any_query_is_answered(query: str) -> None:
    assert playbook(query).status in ("found", "not_found")
