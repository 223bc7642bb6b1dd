import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.knowledge.entries import compile_entry, entry_from
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.tool import playbook
from torchtriage.knowledge.version_ranges import parse_range, parse_version


@pytest.mark.parametrize(
    ("known", "version", "outside"),
    [
        (">=2.0,<2.7", "2.9.1", True),
        (">=2.0,<2.7", "2.7.0", True),
        (">=2.0,<2.7", "2.7", True),
        (">=2.0,<2.7", "2.6.0+cu124", False),
        (">=2.0,<2.7", "1.13.1", True),
        ("<2.7.1", "2.7", False),  # it may be 2.7.0
        (">=2.7.1", "2.7", False),  # it may be 2.7.1
        (">=2.10", "2.9", True),  # numbers, not letters
        ("<2.13", "2.13.0.dev20260101", False),  # a nightly may be older than the fix
        (">=2.5", "2.5.0a0+872d972e41", False),
        ("<2.4", "2.5.0a0+872d972e41", True),
        ("<2.21", "2.21.5+cuda12.4", True),
        ("<550.90", "550.54.15", False),
        (">=4.33", "4.33.x", False),
    ],
)
def test_a_version_is_outside_only_where_all_that_it_may_be_is(known: str, version: str, outside: bool) -> None:
    span = parse_version(version)
    assert span is not None
    assert parse_range(known).excludes(span) is outside


@pytest.mark.parametrize("text", ["", "2", "2.", "2.x", "torch", "2.3-2.6", "1.2.3.4.5", "2.3 GiB", ">=2.3"])
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize("text", ["", "2.7", ">2.7", "<2.0,>=2.7", ">=2.7,<2.7", "<2.7,<2.8", "~=2.7", "<2.7.dev0"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|no release"):
        parse_range(text)


def test_a_range_begins_after_a_version_that_lies_wholly_before_it() -> None:
    old, same = parse_version("2.3"), parse_version("2.5")
    assert old is not None
    assert same is not None
    assert parse_range(">=2.5,<2.7").begins_after(old)
    assert not parse_range(">=2.5,<2.7").begins_after(same)
    assert not parse_range("<2.7").begins_after(old)


@given(st.lists(st.integers(0, 999), min_size=2, max_size=4), st.lists(st.integers(0, 999), min_size=2, max_size=4))
def test_a_whole_version_is_on_one_side_of_any_bound(bound: list[int], version: list[int]) -> None:
    version += [0] * (4 - len(version))
    bound_text, span = ".".join(map(str, bound)), parse_version(".".join(map(str, version)))
    assert span is not None
    before = version < bound + [0] * (4 - len(bound))
    assert parse_range(f"<{bound_text}").excludes(span) is not before
    assert parse_range(f">={bound_text}").excludes(span) is before


def test_entries_with_versions_say_so_and_name_a_source() -> None:
    book = load_playbook()
    ranged = [entry for entry in book.entries.values() if entry.versions]
    assert len(ranged) >= 10
    for entry in ranged:
        shown = playbook(entry.id).text
        known_from = shown.partition("## Known from")[2]
        for package, known in entry.versions:
            assert f"{package} {known.text}" in shown
            bounds = [bound for bound in (known.since, known.until) if bound is not None]
            numbers = [".".join(map(str, bound)) for bound in bounds]
            assert all(number.removesuffix(".0").removesuffix(".0") in known_from for number in numbers), entry.id


def test_an_entry_whose_range_is_misspelt_is_refused() -> None:
    book = load_playbook()
    entry = next(entry for entry in book.entries.values() if entry.versions)
    text = book.text(entry)
    raw = compile_entry(text, entry.path) | {"versions": {"torch": "2.7 or so"}}
    with pytest.raises(Exception, match="is no range"):
        entry_from(raw)
