"""What recorded flame graphs say: the hottest functions of each rank, and what one rank does that the others do not."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import unescape
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.errors import UnreadableError
from torchtriage.tool_reports import HotFunction, ProfileDifference, RankProfile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_FRAMES = 200_000
MAX_BYTES = 64 << 20
N_HOTTEST = 10
N_DIFFERENCES = 5
LEAST_DIFFERENCE = 0.1
LEAST_SAMPLES = 100
"""Below that a rank is not compared: it waited nearly all the time, and idle threads were not recorded."""
# Samples that follow each other mostly see one call: so many of them count as one.
_SAMPLES_ALIKE = 10
# Hundreds of functions of many ranks are compared, so that three standard deviations keep chance out.
_DEVIATIONS = 3.0
_SPREADS = 3.0
_SPREAD_OF_MAD = 1.4826
# inferno, which py-spy draws with: a frame's samples are the width of its box, its depth the box's height on the page.
_BOX = re.compile(
    r'<title>([^<]{1,8192})</title><rect x="[^"]{1,32}" y="(\d{1,7})"[^>]{0,200}? fg:x="(\d{1,12})" fg:w="(\d{1,12})"/>'
)
_LABEL = re.compile(r"^(.{1,8000}?)(?::(\d{1,9}))?(\))? \([\d,]{1,16} samples, [\d.]{1,8}%\)$", re.DOTALL)

_ADDRESS = re.compile(r"^0x[0-9a-fA-F]{1,16}(?=$| )")
NO_SYMBOL = "code without symbols"


@dataclass
class Profile:
    """Samples of one process by function; shares are of ``samples``."""

    samples: int = 0
    own: Counter[str] = field(default_factory=Counter["str"])
    total: Counter[str] = field(default_factory=Counter["str"])
    lines: dict[str, Counter[int]] = field(default_factory=dict["str", "Counter[int]"])


@dataclass(frozen=True)
class Comparison:
    """What came of comparing ranks."""

    ranks: list[int]
    """Those that were compared; none when fewer than two could be."""
    left_out: list[int]
    """Ranks with too few samples."""
    differences: list[ProfileDifference] = field(default_factory=list["ProfileDifference"])


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


def compare_ranks(profiles: Sequence[tuple[int, Profile]]) -> Comparison:
    """Functions in which one rank spends more of its samples than the others do; the largest differences first.

    A rank stands out where its share lies above that of most ranks by a tenth of all samples, by more than chance
    explains, and by more than the ranks differ among themselves. That a rank does less of something is not told: it
    follows from what it does instead, or from a peer that does more.
    """
    usable = [(rank, profile) for rank, profile in profiles if profile.samples >= LEAST_SAMPLES]
    left_out = sorted(rank for rank, profile in profiles if profile.samples < LEAST_SAMPLES)
    if len(usable) < 2:
        return Comparison([], left_out)
    names = {name for _, profile in usable for name, n in profile.total.items() if n >= profile.samples * 0.05}
    found: list[tuple[float, ProfileDifference]] = []
    for name in names:
        shares = [profile.total[name] / profile.samples for _, profile in usable]
        middle = median(shares)
        spread = _SPREADS * _SPREAD_OF_MAD * median([abs(share - middle) for share in shares])
        for (rank, profile), share in zip(usable, shares, strict=True):
            # The median of two lies between them, and that of the others alone is half the odd one's among three.
            other = middle if len(usable) > 2 else sum(shares) - share
            n_others = sum(each.samples for _, each in usable) - profile.samples
            margin = max(LEAST_DIFFERENCE, _chance(share, profile.samples, other, n_others))
            if share - other >= (max(margin, spread) if len(usable) > 2 else margin):
                difference = ProfileDifference(
                    rank=rank, function=name, share=round(share, 4), others_share=round(other, 4)
                )
                found.append((profile.own[name] / profile.samples, difference))
    # Of callers and what they call, which differ alike, the innermost says most.
    found.sort(key=lambda f: (-round(f[1].share - f[1].others_share, 1), -f[0], f[1].rank, f[1].function))
    kept: Counter[int] = Counter()
    chosen: list[ProfileDifference] = []
    for _, each in found:
        kept[each.rank] += 1
        if kept[each.rank] <= N_DIFFERENCES:
            chosen.append(each)
    return Comparison(sorted(rank for rank, _ in usable), left_out, chosen)


def _chance(share: float, n: int, other: float, n_others: int) -> float:
    """The difference of two shares that chance alone gives very rarely: the test of two proportions."""
    n, n_others = n // _SAMPLES_ALIKE, n_others // _SAMPLES_ALIKE
    together = (share * n + other * n_others) / (n + n_others)
    return _DEVIATIONS * sqrt(together * (1 - together) * (1 / n + 1 / n_others))


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
    """The name and file of a box, and its line. Addresses without a symbol differ in each process: one name for all."""
    match = _LABEL.match(unescape(label))
    if match is None:
        return clean_text(unescape(label), 240), None
    name = _ADDRESS.sub(NO_SYMBOL, match[1]) + (match[3] or "")
    return clean_text(name, 240), int(match[2]) if match[2] else None
