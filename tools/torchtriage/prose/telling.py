"""How much each line of a pasted report tells of what went wrong: a person's most, what any job prints nothing.

A report holds forms, lists of packages, settings, and frames of a stack beside the few lines that matter. What such
lines look like is data (skill/boilerplate.yaml), except for two that are known by their neighbours: a run of settings
and the outer frames of a traceback. Judges no line: a setting may well be the cause, but no word of it ranks an entry.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root
from torchtriage.lazy_re import lazy_re
from torchtriage.prose.read import MAX_LINES, is_prose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PROSE, PRINTED, NOTHING = 1.0, 0.5, 0.0
_MAX_CHARS = 600
_MIN_SETTINGS = 4  # so many lines of "name: value" in a row are a list of settings, and no sentence with a colon
_MAX_SETTING_WORDS = 14
_SETTING = lazy_re(
    r"\s{0,40}(?:[-*] )?[`\"']?[A-Za-z_][\w().?/+ -]{0,60}[`\"']?\s{0,20}[:=](?:\s{0,40}\S.{0,160})?$",
)
_RANK = r"(?:\[?(?:default\d{1,3}|rank\d{1,6})\]?:?\s{0,4}|\d{1,6}: )?"
_RANK_MARK = lazy_re(r"^\s{0,20}\[?(?:default\d{1,3}|rank ?\d{1,6})\]?:?\s{0,4}")
_MIN_MARKED_WORDS = 9
_FRAME = lazy_re(_RANK + r'\s{0,20}File "[^"]{1,300}", line \d{1,7}')
_CODE = lazy_re(_RANK + r"\s{2,20}\S")
_KEPT_FRAMES = 2  # the innermost say what was being done; the outer ones are those of any job
_CODE_LINES = 2  # under a frame: the line of code, and what marks a part of it


def telling(text: str) -> list[float]:
    """For each of the first :data:`MAX_LINES` lines how much its words count, from 0 to 1."""
    lines = [line[:_MAX_CHARS] for line in text.split("\n", MAX_LINES)[:MAX_LINES]]
    weights = [_alone(line) for line in lines]
    for first, end in [*_settings(lines), *_outer_frames(lines)]:
        weights[first:end] = [NOTHING] * (end - first)
    return weights


def _alone(line: str) -> float:
    if any(regex.search(line) for regex in load_boilerplate()):
        return NOTHING
    said = _RANK_MARK.sub("", line)  # people mark what they say of a rank as its own lines are marked
    sentence = is_prose(line) or (len(said.split()) >= _MIN_MARKED_WORDS and is_prose(said))
    return PROSE if sentence else PRINTED


def _settings(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Runs of lines that each give a name a value."""
    first = 0
    for place in range(len(lines) + 1):
        if place < len(lines) and _SETTING.match(lines[place]) and len(lines[place].split()) <= _MAX_SETTING_WORDS:
            continue
        if place - first >= _MIN_SETTINGS:
            yield first, place
        first = place + 1


def _outer_frames(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """All but the last frames of each traceback, with their lines of code."""
    frames: list[int] = []
    for place in range(len(lines) + 1):
        if place < len(lines) and _FRAME.match(lines[place]):
            frames.append(place)
        elif frames and not (place < len(lines) and place - frames[-1] <= _CODE_LINES and _CODE.match(lines[place])):
            if len(frames) > _KEPT_FRAMES:
                yield frames[0], frames[-_KEPT_FRAMES]
            frames = []


@functools.cache
def load_boilerplate(root: Path | None = None) -> tuple[re.Pattern[str], ...]:
    """The expressions of skill/boilerplate.yaml."""
    path = (root or data_root()) / "skill" / "boilerplate.yaml"
    return tuple(lazy_re(regex, re.IGNORECASE) for kind in load_yaml(path)["boilerplate"] for regex in kind["regexes"])
