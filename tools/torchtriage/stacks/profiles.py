"""What recorded flame graphs say: the hottest functions of each rank, and what one rank does that the others do not."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import unescape
from statistics import median
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.errors import UnreadableError
from torchtriage.report import HotFunction, ProfileDifference, RankProfile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_FRAMES = 200_000
MAX_BYTES = 64 << 20
N_HOTTEST = 10
N_DIFFERENCES = 5
LEAST_DIFFERENCE = 0.1
LEAST_SAMPLES = 20
# inferno, which py-spy draws with: a frame's samples are the width of its box, its depth the box's height on the page.
_BOX = re.compile(
    r'<title>([^<]{1,8192})</title><rect x="[^"]{1,32}" y="(\d{1,7})"[^>]{0,200}? fg:x="(\d{1,12})" fg:w="(\d{1,12})"/>'
)
_LABEL = re.compile(r"^(.{1,8000}?)(?::(\d{1,9}))?(\))? \([\d,]{1,16} samples, [\d.]{1,8}%\)$", re.DOTALL)


@dataclass
class Profile:
    """Samples of one process by function; shares are of ``samples``."""

    samples: int = 0
    own: Counter[str] = field(default_factory=Counter["str"])
    total: Counter[str] = field(default_factory=Counter["str"])
    lines: dict[str, Counter[int]] = field(default_factory=dict["str", "Counter[int]"])


def read_flamegraph(path: Path) -> Profile:
    """Read the numbers out of a flame graph that py-spy drew.

    Raises:
        UnreadableError: it is none, or too large.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(f"{path.name}: larger than {MAX_BYTES >> 20} MiB")
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise UnreadableError(f"{path.name}: {error.strerror}") from None
    boxes: list[tuple[int, int, int, str]] = []
    for match in _BOX.finditer(text):
        boxes.append((int(match[3]), int(match[2]), int(match[4]), match[1]))
        if len(boxes) > MAX_FRAMES:
            raise UnreadableError(f"{path.name}: more than {MAX_FRAMES} frames")
    if not boxes:
        raise UnreadableError(f"{path.name}: is no flame graph with samples as py-spy draws it")
    return _profile(boxes)


def summarise(profile: Profile, artefact: str, *, rank: int | None, pid: int | None, host: str | None) -> RankProfile:
    """The hottest functions of one process, by the samples in which they themselves ran."""
    n = max(1, profile.samples)
    hottest = sorted(profile.own, key=lambda key: (-profile.own[key], key))[:N_HOTTEST]
    return RankProfile(
        rank=rank,
        pid=pid,
        host=host,
        artefact=artefact,
        samples=profile.samples,
        hottest=[
            HotFunction(
                function=key,
                line=profile.lines[key].most_common(1)[0][0] if key in profile.lines else None,
                self_share=round(profile.own[key] / n, 4),
                total_share=round(profile.total[key] / n, 4),
            )
            for key in hottest
            if profile.own[key]
        ],
    )


def compare_ranks(profiles: Sequence[tuple[int, Profile]]) -> list[ProfileDifference]:
    """Functions whose share of a rank's samples is far from the median of ranks; the largest differences first.

    Ranks with too few samples are left out.
    """
    usable = [(rank, profile) for rank, profile in profiles if profile.samples >= LEAST_SAMPLES]
    if len(usable) < 2:
        return []
    names = {name for _, profile in usable for name, n in profile.total.items() if n >= profile.samples * 0.05}
    found: list[ProfileDifference] = []
    for name in names:
        shares = [profile.total[name] / profile.samples for _, profile in usable]
        middle = median(shares)
        for (rank, _), share in zip(usable, shares, strict=True):
            # The median of two lies between them, and that of the others alone is half the odd one's among three.
            other = middle if len(usable) > 2 else sum(shares) - share
            if abs(share - other) >= LEAST_DIFFERENCE:
                found.append(
                    ProfileDifference(rank=rank, function=name, share=round(share, 4), others_share=round(other, 4))
                )
    found.sort(key=lambda each: (-round(abs(each.share - each.others_share), 3), each.rank, each.function))
    kept: Counter[int] = Counter()
    chosen: list[ProfileDifference] = []
    for each in found:
        kept[each.rank] += 1
        if kept[each.rank] <= N_DIFFERENCES:
            chosen.append(each)
    return chosen


def _profile(boxes: list[tuple[int, int, int, str]]) -> Profile:
    """Walk the boxes from left to right and outside in: each lies inside the last one of a smaller depth."""
    profile = Profile()
    # Where flames hang down a larger y is further in; py-spy draws them so.
    boxes.sort(key=lambda box: (box[0], box[1], -box[2]))
    open_boxes: list[tuple[int, str]] = []
    active: Counter[str] = Counter()
    for _, depth, width, label in boxes:
        while open_boxes and open_boxes[-1][0] >= depth:
            active[open_boxes.pop()[1]] -= 1
        key, line = _function(label)
        if not open_boxes:
            # The outermost box is "all".
            profile.samples += width
            open_boxes.append((depth, ""))
            continue
        outer = open_boxes[-1][1]
        if outer:
            profile.own[outer] -= width
        profile.own[key] += width
        if not active[key]:
            profile.total[key] += width
        if line is not None:
            profile.lines.setdefault(key, Counter())[line] += width
        active[key] += 1
        open_boxes.append((depth, key))
    return profile


def _function(label: str) -> tuple[str, int | None]:
    match = _LABEL.match(unescape(label))
    if match is None:
        return clean_text(unescape(label), 240), None
    return clean_text(match[1] + (match[3] or ""), 240), int(match[2]) if match[2] else None
