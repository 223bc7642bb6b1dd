"""What the main thread of a process is doing, from its Python and native frames, by the table in ``rules``.

It says how sure it is: a dump without native frames shows a thread that waits in ``tensor.item()`` just as one that
computes in Python, so that "running Python" is certain only when native frames or the GIL say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchtriage.stacks.places import kind_of_file, loader_index
from torchtriage.stacks.rules import ANY_DEPTH, Rule, Tier, rules_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.tool_reports import RankState

WAITING: frozenset[str] = frozenset({"waiting_on_gpu", "in_collective"})

_BLOCKING = frozenset({"file_io", "network_io", "lock_wait", "sleeping"})
_PURPOSES = frozenset({"data_loading", "checkpointing", "compiling", "garbage_collecting"})
_INTERPRETER = re.compile(
    r"(?:^|/)(?:python\d?(?:\.\d+)?|libpython[\w.]*)$|(?:^|/)(?:libc|libpthread|ld-linux)[\w.\-]*so"
)
_NATIVE_COLLECTIVE = re.compile(r"^(?:c10d::ProcessGroup\w*::(\w+)|p?(nccl[A-Z]\w+)|gloo::(\w+))")
_SERVES = re.compile(r"(?:^|[._])(?:accept4?|serve_forever|_serve|listen)(?:@|$)")
# Between a collective and its caller: decorators that log and time the call.
_TRANSPARENT = re.compile(r"/(?:c10d_logger|contextlib|_contextlib)\.py$")


@dataclass(frozen=True)
class Standing:
    """What a process is doing."""

    state: RankState
    key_frame_index: int | None
    """The frame that decides, in the thread ``thread_index``."""
    why: str
    thread_index: int = 0
    certain: bool = True
    collective: str | None = None
    """The call that issues a collective in which the thread is, also when it waits for the device there."""
    collective_index: int | None = None
    """The frame of that call, in the same thread."""
    within: RankState | None = None
    """What the wait is part of: a checkpoint, the DataLoader, a compiler."""
    thread_state: RankState | None = None
    """Where the main thread waits for a lock, a queue or a thread: the I/O that another thread of the program is in."""
    holds_gil: bool = False
    """Whether a thread of the process sleeps in a system call and keeps the interpreter lock meanwhile."""


def classify(process: Mapping[str, Any]) -> Standing:
    """Say what a process (as :func:`torchtriage.stacks.read.read_task` gives it) is doing.

    The main thread decides. While it waits for autograd, the autograd thread that is at work decides for it.
    """
    if (refused := process.get("refused")) is not None:
        return Standing(refused["state"], None, refused["meaning"], certain=refused["state"] != "unreadable")
    threads: list[Mapping[str, Any]] = process["threads"]
    index = next((i for i, thread in enumerate(threads) if thread["main"]), 0)
    if not threads or not threads[index]["frames"]:
        return Standing("unreadable", None, "has no frames", index, certain=False)
    standing, rule = _judge(threads[index])
    standing = replace(standing, thread_index=index, holds_gil=any(_keeps_gil(thread) for thread in threads))
    if rule is not None and rule.role == "autograd":
        return _through_autograd(threads, index, standing)
    if standing.state == "lock_wait":
        return replace(standing, thread_state=_io_of_threads(threads, index))
    return standing


def _io_of_threads(threads: Sequence[Mapping[str, Any]], main: int) -> RankState | None:
    """The network or file call of a thread of the program's own code; one that waits for callers does not count."""
    for index, thread in enumerate(threads):
        frames: Sequence[Mapping[str, Any]] = thread["frames"]
        own = any(not frame["native"] and kind_of_file(frame["file"]) in ("user", "framework") for frame in frames)
        if index == main or not own or any(_SERVES.search(frame["function"]) for frame in frames):
            continue
        standing, _ = _judge(thread)
        if standing.state in ("network_io", "file_io") and standing.certain:
            return standing.state
    return None


def _keeps_gil(thread: Mapping[str, Any]) -> bool:
    """py-spy's JSON tells both; its text says no more than "idle" of a thread that sleeps with the lock."""
    return bool(thread["owns_gil"]) and thread["active"] is False


def _judge(thread: Mapping[str, Any]) -> tuple[Standing, Rule | None]:
    frames: list[Mapping[str, Any]] = thread["frames"]
    best: dict[Tier, tuple[int, Rule]] = {}
    inside = True
    for index, frame in enumerate(frames):
        for rule in rules_for(frame["function"], frame["file"], frame["native"]):
            if (inside or rule.tier <= ANY_DEPTH) and rule.tier not in best:
                best[rule.tier] = (index, rule)
        if inside and not frame["native"] and kind_of_file(frame["file"]) in ("user", "framework"):
            inside = False
    if not best:
        return _running(thread), None
    index, rule = best[min(best)]
    if rule.state == "data_loading" and (inner := _inside_loader(thread)) is not None:
        return inner
    at, collective = _collective_of(frames, index) if rule.role in ("device", "collective") else (None, None)
    return (
        Standing(
            rule.state,
            index,
            rule.why,
            certain=rule.certain,
            collective=collective,
            collective_index=at,
            within=_within(frames, index, rule.state),
        ),
        rule,
    )


def _inside_loader(thread: Mapping[str, Any]) -> tuple[Standing, Rule | None] | None:
    """What a data set that is read without workers waits for, when its frames say it."""
    frames: list[Mapping[str, Any]] = thread["frames"]
    loader = loader_index(frames)
    if not loader or not frames[loader]["file"].endswith("_utils/fetch.py"):
        return None
    standing, rule = _judge({**thread, "frames": frames[:loader]})
    if standing.state not in _BLOCKING or not standing.certain:
        return None
    return replace(standing, within="data_loading"), rule


def _running(thread: Mapping[str, Any]) -> Standing:
    frames: list[Mapping[str, Any]] = thread["frames"]
    innermost = next((i for i, frame in enumerate(frames) if not frame["native"]), None)
    if innermost is None:
        return Standing("native_running", 0, "runs native code")
    unknown = next(
        (i for i, frame in enumerate(frames[:innermost]) if not _INTERPRETER.search(str(frame["file"]))), None
    )
    if unknown is not None:
        return Standing("native_running", unknown, "runs native code")
    if _keeps_gil(thread):
        return Standing("native_running", innermost, "sleeps in a native call that keeps the interpreter lock")
    if thread["owns_gil"]:
        return Standing("python_running", innermost, "holds the interpreter lock")
    has_native = any(frame["native"] and frame["file"] for frame in frames)
    if has_native and thread["active"] is not False:
        return Standing("python_running", innermost, "runs Python code, with no native call inside")
    why = (
        "stands in Python code, idle: it waits for something that is not named"
        if thread["active"] is False
        else "stands in Python code; without native frames a wait for the device looks the same"
    )
    return Standing("python_running", innermost, why, certain=False)


def _within(frames: Sequence[Mapping[str, Any]], key: int, state: str) -> RankState | None:
    for frame in frames[key + 1 :]:
        for rule in rules_for(frame["function"], frame["file"], frame["native"]):
            if rule.tier <= ANY_DEPTH and rule.state in _PURPOSES and rule.state != state:
                return rule.state
    return None


def _collective_of(frames: Sequence[Mapping[str, Any]], key: int) -> tuple[int | None, str | None]:
    """The outermost of the nested Python calls that issue the collective around ``key``, else the native one."""
    native: tuple[int | None, str | None] = (None, None)
    found: tuple[int | None, str | None] = (None, None)
    for index, frame in enumerate(frames[key:], start=key):
        function, file = frame["function"], frame["file"]
        if frame["native"]:
            if native[0] is None and (match := _NATIVE_COLLECTIVE.match(function)):
                native = (index, next(group for group in match.groups() if group))
            continue
        if any(rule.role == "collective" for rule in rules_for(function, file, False)):
            found = (index, function.rpartition(".")[2])
        elif found[0] is not None:
            if not _TRANSPARENT.search(f"/{file}"):
                break
        elif kind_of_file(file) in ("user", "framework"):
            break
    return found if found[0] is not None else native


def _through_autograd(threads: Sequence[Mapping[str, Any]], main: int, waiting: Standing) -> Standing:
    for index, thread in enumerate(threads):
        if index == main or not _is_autograd_thread(thread):
            continue
        standing, rule = _judge(thread)
        if rule is None or rule.role not in ("autograd", "idle_autograd"):
            why = f"waits for backward, whose thread {standing.why}"
            return replace(standing, thread_index=index, holds_gil=waiting.holds_gil, why=why)
    computing = _computes_itself(threads[main], waiting.key_frame_index or 0)
    if computing is not None:
        return Standing("native_running", computing, "runs native code in backward", main)
    return waiting


def _is_autograd_thread(thread: Mapping[str, Any]) -> bool:
    """By its name, by the engine's frames, or, without native frames, as a thread that Python did not start."""
    if (thread["name"] or "").startswith("pt_autograd"):
        return bool(thread["frames"])
    frames: Sequence[Mapping[str, Any]] = thread["frames"]
    if any(frame["native"] and frame["function"].startswith("torch::autograd::Engine::thread_") for frame in frames):
        return True
    outermost = next((frame for frame in reversed(frames) if not frame["native"]), None)
    return (
        outermost is not None
        and not thread["name"]
        and not any(frame["native"] for frame in frames)
        and not str(outermost["file"]).endswith("threading.py")
    )


def _computes_itself(thread: Mapping[str, Any], engine: int) -> int | None:
    """A native frame inside the engine's that is no wait, where the graph lies on the CPU."""
    for index, frame in enumerate(thread["frames"][:engine]):
        if not frame["native"]:
            return None
        rules = rules_for(frame["function"], frame["file"], True)
        if rules or "Future" in frame["function"]:
            return None
        if not _INTERPRETER.search(str(frame["file"])) and str(frame["function"]).startswith(("at::", "torch::")):
            return index
    return None
