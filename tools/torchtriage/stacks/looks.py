"""Two looks at one process, some seconds apart: does its main thread stand where it stood, and does it compute there?

Only the innermost user frame and what called it make a process "moving": a library that polls is at another line each
time. Two looks at one place prove no hang, for a slow step spends most of its time at one place as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torchtriage.stacks.places import place, user_frame_index

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Outcome = Literal["still", "spinning", "moving", "unclear"]

SPINNING_CPU_SHARE = 0.5
WOKE_CPU_SHARE = 0.05
"""Of a core. A thread that was found asleep in the kernel and used so much until the second look had left that sleep;
loops that poll with a sleep in them use less."""
_SHORTEST_S = 0.5
_INNERMOST = 2
# Calls of the C library that put a thread to sleep until something or some time comes.
_ASLEEP = re.compile(
    r"^(?:_{0,2}(?:clock_)?nanosleep|_{0,2}pthread_(?:cond|clockjoin|join|rwlock)_\w{1,20}|_{0,3}futex\w{0,20}|"
    r"_{0,2}(?:p?poll|epoll_p?wait|p?select|sem_(?:timed|clock)?wait|do_sem_wait|wait4|waitpid))(?:$|[@. ])"
)


@dataclass(frozen=True)
class Change:
    """What happened between two looks."""

    outcome: Outcome
    """``still``: all Python frames are the same, ``spinning``: and the thread used its core, ``moving``: the user's
    code went on, or a sleep was left, ``unclear``: only frames inside libraries differ."""
    first_where: str
    second_where: str
    seconds: float | None
    """Between the looks; None where the dumps do not say when they were taken."""
    cpu_share: float | None
    """Of one core, by the main thread, between the looks."""
    second_frame: Mapping[str, Any]
    """The frame of the second look that shows it."""


def compare_looks(first: Mapping[str, Any], second: Mapping[str, Any]) -> Change | None:
    """Compare two dumps of one process (as the reader gives them); None where one lacks Python frames."""
    thread, later = _main(first), _main(second)
    if thread is None or later is None:
        return None
    frames, later_frames = _python_frames(thread), _python_frames(later)
    if not frames or not later_frames:
        return None
    seconds, cpu_share = _between(thread, later)
    user, later_user = user_frame_index(frames), user_frame_index(later_frames)
    outcome: Outcome = "unclear"
    if _keys(frames) == _keys(later_frames):
        spins = cpu_share is not None and cpu_share >= SPINNING_CPU_SHARE
        outcome = "spinning" if spins else "still"
    elif user is not None and later_user is not None and _keys(frames[user:]) != _keys(later_frames[later_user:]):
        outcome = "moving"
    if cpu_share is not None and cpu_share >= WOKE_CPU_SHARE and _is_asleep(thread):
        outcome = "moving"
    shown = later_frames[later_user if later_user is not None else 0]
    return Change(
        outcome=outcome,
        first_where=place(frames[user if user is not None else 0]),
        second_where=place(shown),
        seconds=seconds,
        cpu_share=cpu_share,
        second_frame=shown,
    )


def _between(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float | None, float | None]:
    times, cpus = (first.get("time_s"), second.get("time_s")), (first.get("cpu_s"), second.get("cpu_s"))
    if times[0] is None or times[1] is None or times[1] <= times[0]:
        return None, None
    seconds = times[1] - times[0]
    if cpus[0] is None or cpus[1] is None or cpus[1] < cpus[0] or seconds < _SHORTEST_S:
        return seconds, None
    return seconds, (cpus[1] - cpus[0]) / seconds


def _is_asleep(thread: Mapping[str, Any]) -> bool:
    """Whether the innermost native frames are a wait in the kernel, during which no processor time is used."""
    innermost = thread["frames"][:_INNERMOST]
    return any(frame["native"] and _ASLEEP.search(str(frame["function"])) for frame in innermost)


def _main(process: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((thread for thread in process["threads"] if thread["main"]), None)


def _python_frames(thread: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [frame for frame in thread["frames"] if not frame["native"]]


def _keys(frames: Sequence[Mapping[str, Any]]) -> list[tuple[object, object, object]]:
    return [(frame["function"], frame["file"], frame["line"]) for frame in frames]
