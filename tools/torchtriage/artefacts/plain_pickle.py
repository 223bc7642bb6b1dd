"""Pickles as data: only None, bool, int, float, str, bytes, list, tuple, dict and set can come out of one.

Stdlib only: this runs inside the isolated worker (:mod:`torchtriage.artefacts.worker`), which bounds memory and time.
Real dumps of torch hold no globals at all (checked on flight-recorder dumps of schema 2.9 and 2.10 and on memory
snapshots of torch 2.11), so every instruction that would import or call something refuses the file.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, BinaryIO, NoReturn, cast

from torchtriage.artefacts.streams import read_bounded

MAX_NODES = 40_000_000
MAX_DEPTH = 64
MAX_SALVAGED_BYTES = 1 << 30
_BUFFER_BYTES = 1 << 16
_SCALARS = (type(None), bool, int, float, str, bytes)
_CONTAINERS = (list, tuple, dict, set, frozenset)


class RefusedPickleError(Exception):
    """The pickle asks for something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        _refuse_import(module, name)

    def persistent_load(self, pid: object) -> NoReturn:
        _refuse_reference(pid)


def _refuse_import(module: str, name: str) -> NoReturn:
    raise RefusedPickleError(f"it asks to import {module[:80]}.{name[:80]}; nothing was imported or run")


def _refuse_reference(pid: object) -> NoReturn:
    del pid
    raise RefusedPickleError("it refers to persistent objects outside the file; nothing was loaded")


# The pure-Python unpickler is used only for salvage: it leaves its stacks open to inspection when the bytes end early.
class _SalvagingUnpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    def find_class(self, module: str, name: str) -> NoReturn:
        _refuse_import(module, name)

    def persistent_load(self, pid: object) -> NoReturn:
        _refuse_reference(pid)


def load_plain(stream: BinaryIO) -> tuple[Any, str | None]:
    """Load one pickle; return its value and, when the bytes ended early, a note of what that means.

    The bytes of a whole pickle are never all in memory; those of a damaged one are read again, from the beginning of
    the stream, which can be gone back to.

    Raises:
        RefusedPickleError: it asks for an import, a call or a persistent object, or it is not a pickle.
        MemoryError, RecursionError: limits of the worker.
    """
    # The C unpickler peeks; on a stream that cannot it makes a tiny read for each instruction, three times as slow.
    reader = io.BufferedReader(stream, _BUFFER_BYTES)  # pyright: ignore[reportArgumentType]
    try:
        value = _PlainUnpickler(reader).load()
    except RefusedPickleError:
        raise
    except (EOFError, pickle.UnpicklingError, ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError,
            AttributeError, TypeError, OSError) as error:  # fmt: skip
        stream.seek(0)
        return _salvage(read_bounded(stream, MAX_SALVAGED_BYTES)[0], error)
    finally:
        reader.detach()
    return value, None


def _salvage(data: bytes, error: Exception) -> tuple[Any, str]:
    """Return what was whole when the bytes ended, by folding the open containers of an interrupted load."""
    unpickler = _SalvagingUnpickler(io.BytesIO(data))
    try:
        return unpickler.load(), "the fast reader stopped at it, the slow one read it whole"
    except RefusedPickleError:
        raise
    except Exception as slow_error:  # whatever stops the walk, the stacks hold what came before
        stacks: list[list[Any]] = [*getattr(unpickler, "metastack", []), getattr(unpickler, "stack", [])]
        value = _fold(stacks)
        if value is None:
            raise RefusedPickleError(f"nothing in it could be read ({type(error).__name__}: {error})") from slow_error
        return (
            value,
            f"the bytes end early or are damaged ({type(slow_error).__name__}); what was whole before that was read",
        )


def _fold(stacks: list[list[Any]]) -> Any:
    """Attach open items to the containers they were meant for; an unfinished record inside a list is dropped.

    ``stacks[k]`` holds what was pushed after the k-th open MARK. The container that a MARK fills is the last item of
    the stack before it, and that container is itself an item of the list or a value of the dict one further down.
    """
    for level in range(len(stacks) - 1, 0, -1):
        items, below = stacks[level], stacks[level - 1]
        if not below:
            continue
        container: Any = below[-1]
        if level == len(stacks) - 1 and isinstance(container, list) and items and items[-1] in ({}, []):
            items.pop()  # opened, and nothing of it was read yet
        if isinstance(container, list):
            cast("list[Any]", container).extend(items)
        elif isinstance(container, dict):
            inside_list = level > 1 and bool(stacks[level - 2]) and isinstance(stacks[level - 2][-1], list)
            if inside_list:
                below.pop()
                continue
            if len(items) % 2 and len(items) > 2 and isinstance(items[-1], list) and items[-2] == []:
                items[-2].append(items.pop())  # the only item of a list is put into it without a MARK
            whole = items[: len(items) // 2 * 2]
            for key, value in zip(whole[::2], whole[1::2], strict=True):
                if isinstance(key, (str, int, bytes)):
                    container[key] = value
    bottom: Any = stacks[0][0] if stacks and stacks[0] else None
    return bottom if isinstance(bottom, (dict, list)) and bottom else None  # pyright: ignore[reportUnknownVariableType]


def check_plain(value: Any, max_nodes: int = MAX_NODES, max_depth: int = MAX_DEPTH) -> None:
    """Refuse a structure that is too deep, too large when walked, cyclic, or not plain.

    Shared parts count every time they are met, because that is what a walk costs.
    """
    budget = max_nodes
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        node, depth = stack.pop()
        budget -= 1
        if isinstance(node, _SCALARS):
            continue
        if not isinstance(node, _CONTAINERS):
            raise RefusedPickleError(f"it holds a {type(node).__name__}, which is not plain data")
        if depth >= max_depth:
            raise RefusedPickleError(f"it is nested deeper than {max_depth} levels")
        items = cast("dict[Any, Any] | list[Any]", node)
        budget -= len(items)
        if budget < 0:
            raise RefusedPickleError(f"walking it would take more than {max_nodes} steps")
        if isinstance(items, dict):
            if not all(isinstance(key, (*_SCALARS, tuple)) for key in items):
                raise RefusedPickleError("it has a key that is neither a scalar nor a tuple")
            items = list(items.values())
        stack.extend((item, depth + 1) for item in items if not isinstance(item, _SCALARS))
