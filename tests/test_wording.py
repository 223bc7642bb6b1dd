import pytest

from torchtriage.wording import bytes_words, rank_ranges, rank_words, some


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no rank"),
        ([1], "rank 1"),
        ([0, 1], "ranks 0-1"),
        ([7, 0, 1, 2, 3, 9], "ranks 0-3, 7, 9"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        ([0, 1, 2, *range(10, 50, 2)], "ranks 0-2, 10, 12, 14, 16, 18, 20, 22 and 13 more"),
    ],
)
def test_ranks_are_written_as_people_write_them(ranks: list[int], words: str) -> None:
    assert rank_words(ranks) == words


def test_ranges_are_short_and_sorted() -> None:
    assert rank_ranges([7, 0, 1, 2, 3, 9, 10]) == "0-3,7,9-10"


def test_sizes_have_the_units_of_pytorch() -> None:
    assert [bytes_words(n) for n in (12, 2048, 14 << 20, 1_900_523_028)] == [
        "12 bytes",
        "2.00 KiB",
        "14.00 MiB",
        "1.77 GiB",
    ]


def test_long_lists_are_cut_and_counted() -> None:
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert some(["a"]) == "a"
