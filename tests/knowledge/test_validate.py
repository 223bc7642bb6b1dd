import re
from pathlib import Path

from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.validate import problems

ROOT = data_root()


def test_every_entry_of_the_playbook_is_valid() -> None:
    assert problems(ROOT) == []


def test_problems_are_found_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "playbook"
    (folder / "hang").mkdir(parents=True)
    (folder / "schema.json").write_bytes((ROOT / "playbook" / "schema.json").read_bytes())
    text = (ROOT / "playbook" / "hang" / "uneven-batches-per-rank.md").read_text(encoding="utf-8")
    (folder / "hang" / "misnamed.md").write_text(
        text.replace("log.left_loop_early", "log.no_such_signal", 1).replace("\n# Ranks have", "\n# Other", 1),
        encoding="utf-8",
    )
    (folder / "hang" / "extra.md").write_text(text.replace("culprit: rank", "culprit: somebody", 1), encoding="utf-8")
    found = "\n".join(problems(tmp_path))
    for words in (
        "must stand in hang/",
        "the first heading must be the title",
        "no_such_signal is not",
        "'somebody' is not one of",
    ):
        assert words in found


def test_no_playbook_text_is_so_short_that_anything_holds_it() -> None:
    for entry in load_playbook().entries.values():
        for condition in entry.conditions():
            for text in condition.texts:
                assert len(text) >= 8 or condition.regex, (entry.id, text)


def test_no_regex_can_take_more_than_linear_time() -> None:
    nested = re.compile(r"[*+}]\)[*+{]")
    for entry in load_playbook().entries.values():
        for condition in entry.conditions():
            assert not nested.search(condition.regex or ""), (entry.id, condition.regex)
