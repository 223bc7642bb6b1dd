"""The pictures of the page as SVG that stretches with it and needs no script; a script only adds to them.

Widths are in percent and heights in pixels, so that text keeps its size on any screen. Colours are classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchtriage.memory.page.flame import SMALLER, boxes_of, tree_of
from torchtriage.memory.page.markup import esc
from torchtriage.wording import bytes_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchtriage.tool_reports import MemoryDevice

CATEGORIES = (
    "activations", "parameters", "gradients", "optimizer_state", "retained", "temporaries", "communication",
    "kv_cache", "workspace", "graphs", "before_history", "other",
)  # fmt: skip
_TOP, _PLOT, _BOTTOM = 34, 170, 22
_ROW = 18
_BOX_CHARS = 190
"""Of a box of the flame graph beside its name and label."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 50, 64, 80, 100, 128, 200, 256, 400, 512, 1024)
_PYTHON = re.compile(r":\d{1,10}\)(?: \[[^\n]{1,120}\])?$")
_OF_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|\(<(?:frozen|string|eval_with_key)|/torchinductor_|/torch/\w"
)


def timeline(device: MemoryDevice) -> str:
    """What was allocated and reserved over the events of the history, with the peak and the requests that failed."""
    samples = device.timeline
    highest = max((max(allocated, reserved) for _, allocated, reserved in samples), default=0)
    if len(samples) < 2 or not highest:
        return '<p class="note">There is no history of events, and so no timeline.</p>'
    last = max(1, samples[-1][0], device.n_events - 1)
    top = highest * 1.04

    def x(event: int) -> float:
        return min(99.9, 100 * event / last)  # a line at the very edge would be cut

    def path(values: Sequence[tuple[int, int]]) -> str:
        return "L".join(f"{10 * x(event):.1f} {_PLOT * (1 - value / top):.1f}" for event, value in values)

    allocated = path([(event, value) for event, value, _ in samples])
    reserved = path([(event, value) for event, _, value in samples])
    first_x, last_x = 10 * x(samples[0][0]), 10 * x(samples[-1][0])
    down = f"L{last_x:.1f} {_PLOT}L{first_x:.1f} {_PLOT}Z"
    plot = (
        f'<svg class="plot" y="{_TOP}" width="100%" height="{_PLOT}" viewBox="0 0 1000 {_PLOT}" '
        f'preserveAspectRatio="none"><path class="fill-r" d="M{reserved}{down}"/>'
        f'<path class="fill-a" d="M{allocated}{down}"/><path class="line-r" d="M{reserved}"/>'
        f'<path class="line-a" d="M{allocated}"/></svg>'
    )
    said = (
        f"allocated and reserved memory over {device.n_events:,} events: at most "
        f"{bytes_words(device.peak_allocated_bytes)} allocated and {bytes_words(device.peak_reserved_bytes)} reserved"
    )
    points = " ".join(f"{event},{value},{kept}" for event, value, kept in samples)
    middle = last // 2
    bottom = _TOP + _PLOT + 15
    return (
        f'<svg class="timeline" role="img" aria-label="{esc(said)}" width="100%" height="{_TOP + _PLOT + _BOTTOM}" '
        f'data-points="{points}" data-last="{last}">{plot}{_grid(top)}{_marks(device, x)}'
        f'<text x="0" y="{bottom}">event 0</text>'
        f'<text x="50%" y="{bottom}" class="mid">{middle:,}</text>'
        f'<text x="100%" y="{bottom}" class="end">{last:,}</text>'
        f'<line class="cross" y1="{_TOP}" y2="{_TOP + _PLOT}" x1="0" x2="0" visibility="hidden"/></svg>'
    )


def _grid(top: float) -> str:
    """Lines at round numbers of bytes, three to six of them, each with its value."""
    unit, word = next((u for u in _UNITS if top >= 2 * u[0]), _UNITS[-1])
    step = next((s * unit for s in _STEPS if top / (s * unit) <= 5), top / 4)
    lines: list[str] = []
    for number in range(1, 7):
        if number * step >= top:
            break
        y = _TOP + _PLOT * (1 - number * step / top)
        value = number * step / unit
        lines.append(
            f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="halo" x="4" y="{y - 3:.1f}">{value:g} {word}</text>'
        )
    base = _TOP + _PLOT
    return "".join(lines) + f'<line class="axis" x1="0" x2="100%" y1="{base}" y2="{base}"/>'


def _marks(device: MemoryDevice, x: Callable[[int], float]) -> str:
    marks = ""
    if device.peak_event is not None:
        at = x(device.peak_event)
        marks += _mark("peak", at, 12, f"peak: {bytes_words(device.peak_allocated_bytes)} allocated")
    for failed in device.failed_requests:
        label = (
            f"failed: a request of {bytes_words(failed.requested_bytes)}"
            if failed is device.failed_requests[-1]
            else ""
        )
        marks += _mark("failed", x(failed.event), 27, label)
    return marks


def _mark(kind: str, at: float, y: int, label: str) -> str:
    side, gap = ("end", -5) if at > 50 else ("start", 5)
    text = f'<text class="halo {side} {kind}" x="{at:.2f}%" dx="{gap}" y="{y}">{label}</text>' if label else ""
    return f'<line class="{kind}" x1="{at:.2f}%" x2="{at:.2f}%" y1="{y - 9}" y2="{_TOP + _PLOT}"/>{text}'


def category_class(category: str) -> str:
    """The class that colours a category."""
    return f"k-{category}" if category in CATEGORIES else "k-unknown"


def swatch(category: str) -> str:
    """A small square in the category's colour."""
    return (
        f'<svg class="swatch" width="11" height="11" aria-hidden="true"><rect class="{category_class(category)}" '
        'width="11" height="11" rx="2"/></svg>'
    )


def category_bar(by_category: Mapping[str, int]) -> str:
    """One bar, a piece for each category, and a legend with bytes and shares."""
    total = sum(by_category.values())
    if not total:
        return ""
    ordered = sorted(by_category.items(), key=lambda item: (-item[1], item[0]))
    start, pieces = 0, ""
    for category, size in ordered:
        said = f"{esc(_words(category))}: {bytes_words(size)}, {size / total:.1%}"
        pieces += (
            f'<rect class="{category_class(category)}" x="{100 * start / total:.3f}%" '
            f'width="{100 * size / total:.3f}%" height="26"><title>{said}</title></rect>'
        )
        start += size
    legend = "".join(
        f"<li>{swatch(category)} {esc(_words(category))} <b>{bytes_words(size)}</b> {size / total:.1%}</li>"
        for category, size in ordered
    )
    return (
        f'<svg class="bar" role="img" aria-label="bytes by category; the list below says the same" width="100%" '
        f'height="26">{pieces}</svg><ul class="legend">{legend}</ul>'
    )


def _words(category: str) -> str:
    return category.replace("_", " ")


def flame_graph(name: str, stacks: Sequence[tuple[Sequence[str], int]], total_bytes: int, budget: int) -> str:
    """A flame graph by bytes, callers above what they call.

    Args:
        name: of all of it.
        stacks: frames, outermost first, and bytes.
        total_bytes: of all that was live.
        budget: characters that it may take.
    """
    known: dict[str, tuple[str, str]] = {}

    def told(frame: str) -> tuple[str, str]:
        if frame not in known:
            known[frame] = esc(frame), esc(_label(frame), 80)
        return known[frame]

    def cost(frame: str) -> int:
        return _BOX_CHARS + sum(len(text.encode("utf-8", "replace")) for text in told(frame))

    root = tree_of(f"{name}: {bytes_words(total_bytes)}", stacks, total_bytes)
    if not root.bytes:
        return ""
    boxes = boxes_of(root, cost, budget)
    parts: list[str] = []
    for box in boxes:
        whole, label = told(box.name)
        kind = "all" if box.depth == 0 else kind_of(box.name)
        parts.append(
            f'<svg class="b" x="{100 * box.start / root.bytes:.4f}%" y="{box.depth * _ROW}" '
            f'width="{100 * box.bytes / root.bytes:.4f}%" height="{_ROW - 1}"><title>{whole}\n'
            f"{bytes_words(box.bytes)}, {box.bytes / root.bytes:.1%}</title>"
            f'<rect class="f-{kind}" width="100%" height="100%"/><text x="3" y="13">{label}</text></svg>'
        )
    height = _ROW * (1 + max(box.depth for box in boxes))
    said = f"flame graph of {bytes_words(root.bytes)} by stack, callers above what they call"
    return (
        f'<svg class="flame" role="img" aria-label="{said}" width="100%" height="{height}" data-row="{_ROW}">'
        f"{''.join(parts)}</svg>"
    )


def kind_of(frame: str) -> str:
    """Whose code a frame is, for its colour: ``user``, ``library`` (Python of libraries), ``native`` or ``smaller``."""
    if frame == SMALLER or frame.startswith("(no stack"):
        return "smaller"
    if not _PYTHON.search(frame):
        return "native"
    return "library" if _OF_LIBRARY.search(frame) else "user"


def _label(frame: str) -> str:
    """A frame in short: the function, the file without its folders, the line."""
    function, _, place = frame.partition(" (")
    return f"{function} ({place.rpartition('/')[2]}" if _PYTHON.search(frame) and "/" in place else frame
