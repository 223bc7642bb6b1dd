"""A stand-in for a playbook three times as large: the real one, padded with invented entries, in a copied tree.

The product needs no switch for it: it finds its knowledge beside its package, so a copy of both is another product.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from measuring import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_LIBRARIES = ("allocator", "checkpoint writer", "tokenizer", "prefetcher", "optimizer shard", "pipeline stage")
_FAULTS = ("lost", "refused", "stale", "truncated", "duplicated", "overdue", "misaligned", "exhausted")
_PLACES = ("in warm-up", "after resume", "at evaluation", "on the last stage", "under autocast", "after rescale")
_BRANCHES = ("hang", "crash", "init", "oom", "nan", "slow", "nccl_timeout", "silent")

_ENTRY = """\
---
id: {id}
title: {title}
branch: {branch}
culprit: rank
summary:
  - "{{ranks}}: {title}"
proves:
  - all:
      - {{log: "{text}"{regex}}}
supports:
{supports}
next_check:
  tool: triage
  why: the log of the rank that is named first holds the line
keywords: [{fault}, {subject}]
---

# {title}

## What you see

The {subject} reports that its work is {fault} {place}, and the job stops within a few steps.

## Why it happens

The {subject} keeps state per rank, and a restart or a change of layout left it {fault} on one of them.

## Prove it

- `torchtriage triage FOLDER` quotes the line.

## Fix it

- Rebuild the state of the {subject} on all ranks before the first step.

## Confused with

- `process-killed-by-sigkill`: there the process leaves no line at all

## Known from

- Invented for a measurement.
"""


def copy_tree(destination: Path) -> Path:
    """Copy the package and its knowledge; return the folder for PYTHONPATH."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("tools", "playbook", "skill"):
        shutil.copytree(ROOT / name, destination / name, ignore=skip)
    shutil.copy2(ROOT / "SKILL.md", destination / "SKILL.md")
    return destination / "tools"


def pad_playbook(playbook: Path, n_entries: int, n_patterns: int, *, held_entries: int, held_patterns: int) -> None:
    """Add invented entries until there are ``n_entries`` with ``n_patterns`` log patterns in all.

    Args:
        playbook: the folder to write into.
        n_entries: how many entries there shall be.
        n_patterns: how many log patterns they shall hold together.
        held_entries: how many entries there are.
        held_patterns: how many log patterns those hold.
    """
    missing_entries = n_entries - held_entries
    for number in range(missing_entries):
        # Spread what is missing evenly; each entry has one pattern that proves and some that support.
        due = (n_patterns - held_patterns) * (number + 1) // missing_entries
        before = (n_patterns - held_patterns) * number // missing_entries
        _write_entry(playbook, number, max(1, due - before))


def _write_entry(playbook: Path, number: int, n_patterns: int) -> None:
    subject = _LIBRARIES[number % len(_LIBRARIES)]
    fault = _FAULTS[number // len(_LIBRARIES) % len(_FAULTS)]
    place = _PLACES[number // (len(_LIBRARIES) * len(_FAULTS)) % len(_PLACES)]
    title = f"The {subject} is {fault} {place}"
    identifier = f"{subject}-{fault}-{place}-{number}".replace(" ", "-")
    branch = _BRANCHES[number % len(_BRANCHES)]
    texts = [f"RuntimeError: {subject} {number}: state {k} is {fault} {place}" for k in range(n_patterns)]
    # A fifth of the real patterns carries a regular expression; so does one in five here.
    regex = ", regex: 'is \\w{1,20} .{0,80}rank (?P<rank>\\d{1,6})'" if number % 5 == 0 else ""
    supports = "".join(f'  - {{log: "{text}"}}\n' for text in texts[1:]).rstrip("\n")
    text = _ENTRY.format(
        id=identifier, title=title, branch=branch, text=texts[0], regex=regex, fault=fault, subject=subject,
        place=place, supports=supports or '  - {signal: log.watchdog_timeout}',
    )  # fmt: skip
    folder = playbook / branch
    folder.mkdir(exist_ok=True)
    (folder / f"{identifier}.md").write_text(text, encoding="utf-8")
