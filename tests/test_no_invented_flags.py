"""Whatever the skill and the playbook name in code exists: it is torchtriage's own, or is listed with its source."""

import argparse
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import torchtriage
from code_names import code_spans, names_in
from torchtriage import cli, report
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.templates import ROLES
from torchtriage.signals import SIGNALS

MAX_UNVERIFIED = 0.03
KNOWN = data_root() / "playbook" / "known_names.yaml"


def documents() -> list[Path]:
    root = data_root()
    pages = [root / "SKILL.md", root / "skill" / "decision_tree.yaml", *sorted(root.glob("skill/reference/*.md"))]
    return [*pages, *sorted(root.glob("playbook/*/*.md"))]


def body(path: Path) -> str:
    """Without front matter, which quotes logs and what people write."""
    text = path.read_text(encoding="utf-8")
    return text.split("\n---\n", 1)[1] if text.startswith("---\n") else text


@cache
def listed() -> dict[str, Any]:
    return yaml.safe_load(KNOWN.read_text(encoding="utf-8"))


@cache
def listed_names() -> frozenset[str]:
    return frozenset(name for group in listed()["names"] for name in group["names"])


@cache
def own_commands() -> dict[str, frozenset[str]]:
    """Commands of torchtriage with their flags."""
    subparsers = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name: frozenset(sub._option_string_actions) for name, sub in subparsers.choices.items()}


@cache
def own_names() -> frozenset[str]:
    """Commands, flags, tools, parameters, signals, failure modes, and the fields and states of reports."""
    tools = {name: inspect.signature(getattr(torchtriage, name)) for name in torchtriage.__all__}
    fields = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", inspect.getsource(report)))
    names = {"torchtriage", *tools, *SIGNALS, *(name.partition(".")[2] for name in SIGNALS), *ROLES, *fields}
    names |= {parameter for signature in tools.values() for parameter in signature.parameters}
    names |= {*own_commands(), *(flag for flags in own_commands().values() for flag in flags)}
    return frozenset(names | set(load_playbook().entries))


def exists(name: str) -> bool:
    if name in listed_names() or name in own_names():
        return True
    first, *rest = name.split(".")
    # What a variable is called is nobody's business; what is asked of it must exist.
    return bool(rest) and first not in listed()["modules"] and all(exists(part) for part in rest)


def unknown_names(text: str) -> Iterator[str]:
    for span in code_spans(text):
        yield from (f"{name} in `{span[:100]}`" for name in sorted(names_in(span)) if not exists(name))


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(data_root())))
def test_every_name_in_code_exists(path: Path) -> None:
    assert list(unknown_names(body(path))) == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(data_root())))
def test_every_command_of_torchtriage_that_is_shown_would_be_accepted(path: Path) -> None:
    for span in code_spans(body(path)):
        command, _, rest = span.removeprefix("torchtriage ").partition(" ")
        if not span.startswith("torchtriage ") or command.startswith(("-", "...")):
            continue
        assert command in own_commands(), span
        flags = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest.partition(" -- ")[0]))
        assert flags <= own_commands()[command], span


def test_an_invented_name_is_found() -> None:
    invented = "Set `NCCL_FIX_HANGS=1`, run `nvidia-smi -Z` or `frobnicate --now PID`, call `torch.cuda.unhang()`."
    assert [line.partition(" in ")[0] for line in unknown_names(invented)] == [
        "NCCL_FIX_HANGS",
        "nvidia-smi -Z",
        "--now",
        "frobnicate",
        "torch.cuda.unhang",
    ]


def test_every_listed_name_has_one_source_and_few_are_unverified() -> None:
    groups = listed()["names"]
    assert all(set(group) == {"software", "source", "names"} and group["source"] for group in groups)
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == sorted(set(names))
    unverified = [name for group in groups if group["source"] == "unverified" for name in group["names"]]
    assert len(unverified) <= MAX_UNVERIFIED * len(names)
