"""Tables that a dump's entries share: signatures of calls (operation, sizes, dtypes) and call sites. Stdlib only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TENSORS = 64
MAX_DIMS = 16
MAX_NAME_CHARS = 512
MAX_FRAMES_PER_ENTRY = 512
MAX_FRAME_LOOKS = 4_000_000
Sizes = tuple[tuple[int, ...], ...]
Names = tuple[str, ...]
_INT = re.compile(r"-?[0-9]{1,18}\Z")
_ROUTE = re.compile(r"(?:[^:]{0,64}:)?(send|recv) (\d{1,7})(->|<-)(\d{1,7})\Z")

# Files of torch and of the interpreter never are the place that a person looks for.
_TORCH = ("/torch/distributed/", "/torch/nn/", "/torch/utils/", "/torch/autograd/", "/torch/optim/", "/torch/csrc/",
          "/torch/_", "site-packages/torch/", "dist-packages/torch/", "/lib/python3.", "<frozen ")  # fmt: skip
# Machinery that issues collectives on its own, for a module's parameters and gradients.
_ISSUERS = (("/fsdp/", "fsdp"), ("/fully_sharded_data_parallel", "fsdp"), ("/deepspeed/runtime/zero/", "zero"))
_LIBRARY = ("site-packages/", "dist-packages/")


def as_int(value: Any) -> int | None:
    """An int of up to 63 bits, also when written as a short string; None for everything else."""
    if value.__class__ is int:
        return value if -(1 << 62) < value < 1 << 62 else None
    if value.__class__ is str and len(value) <= 20 and value.isascii() and _INT.match(value):
        return int(value)
    return None


def as_text(value: Any, limit: int) -> str | None:
    """A str, cut; ints count too (versions are numbers in some dumps); None for everything else."""
    if value.__class__ is str:
        return value[:limit]
    if value.__class__ is int and -(1 << 62) < value < 1 << 62:
        return str(value)
    return None


def as_mapping(value: Any) -> Mapping[Any, Any] | None:
    """A dict, or None."""
    return cast("Mapping[Any, Any]", value) if isinstance(value, dict) else None


def as_sequence(value: Any) -> Sequence[Any] | None:
    """A list or tuple, or None."""
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else None


class SignatureTable:
    """Numbers the distinct (profiling name, input and output sizes, input and output dtypes)."""

    def __init__(self) -> None:
        """``rows`` are the signatures; ``routes`` say [is_receive, source, destination] for point-to-point calls."""
        self.rows: list[list[Any]] = []
        self.routes: list[tuple[int, int, int] | None] = []
        self.n_unreadable = 0
        self._ids: dict[Any, int] = {}

    def id_of(
        self,
        name: str,
        in_sizes: Sizes | None,
        out_sizes: Sizes | None,
        in_dtypes: Names | None,
        out_dtypes: Names | None,
        *,
        asked: tuple[Any, ...],
    ) -> int:
        """The number of a signature, from what :func:`sizes_key` and :func:`names_key` make of the values ``asked``."""
        key = (name, in_sizes, out_sizes, in_dtypes, out_dtypes)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.rows)
            self.rows.append([name[:MAX_NAME_CHARS], *key[1:]])
            self.routes.append(_route(name))
            self.n_unreadable += any(k is None and _should_be_known(v) for k, v in zip(key[1:], asked, strict=True))
        return found


def _should_be_known(value: Any) -> bool:
    """Whether it is there and not just longer than what is kept."""
    return value is not None and not (value.__class__ in (list, tuple) and len(value) > MAX_TENSORS)


def sizes_key(value: Any) -> Sizes | None:
    """Sizes as tuples; None when they are not what they should be."""
    # Checked before it is hashed: hashing nested shared tuples could take for ever.
    if value.__class__ is list and len(value) == 1:  # the usual case, on the hot path
        (shape,) = value
        if shape.__class__ is list and len(shape) <= MAX_DIMS:
            for n in shape:
                if n.__class__ is not int or not -1 <= n < 1 << 62:
                    return None
            return (tuple(shape),)
    if value.__class__ not in (list, tuple) or len(value) > MAX_TENSORS:
        return None
    tensors: list[tuple[int, ...]] = []
    for shape in value:
        if shape.__class__ not in (list, tuple) or len(shape) > MAX_DIMS:
            return None
        for n in shape:
            if n.__class__ is not int or not -1 <= n < 1 << 62:
                return None
        tensors.append(tuple(shape))
    return tuple(tensors)


def names_key(value: Any) -> Names | None:
    """Dtypes as a tuple; None when they are not what they should be."""
    if value.__class__ is list and len(value) == 1 and value[0].__class__ is str and len(value[0]) <= 64:
        return (value[0],)  # the usual case, on the hot path
    if value.__class__ not in (list, tuple) or len(value) > MAX_TENSORS:
        return None
    for name in value:
        if name.__class__ is not str or len(name) > 64:
            return None
    return tuple(value)


def _route(name: str) -> tuple[int, int, int] | None:
    """(is receive, source, destination) in ranks of the group, from names like "nccl:send 0->3", "nccl:recv 0<-3"."""
    found = _ROUTE.match(name[:MAX_NAME_CHARS])
    if found is None:
        return None
    here, there = int(found[2]), int(found[4])
    source, destination = (here, there) if found[3] == "->" else (there, here)
    return (int(found[1] == "recv"), source, destination)


class SiteTable:
    """Numbers the call sites: the innermost frame outside torch and installed packages. Number 0 is "none known"."""

    def __init__(self) -> None:
        """``rows`` are [label "function (file:line)", index of the frame, the frame when it can be quoted, issuer]."""
        self.rows: list[list[Any]] = [["", -1, None, ""]]
        self._ids: dict[tuple[str, int, str], int] = {}
        self.by_identity: dict[int, int] = {}
        self._frames: dict[int, tuple[int, str, str]] = {}
        self._looks_left = MAX_FRAME_LOOKS

    def id_of(self, frames: Any) -> int:
        """The number of the call site that a list of frames (innermost first) shows."""
        if frames.__class__ is not list or not frames:
            return 0
        # The loaded file is alive all the while, so identities are stable and shared lists are looked at once.
        found = self.by_identity.get(id(frames))
        if found is None:
            found = self.by_identity[id(frames)] = self._find(frames)
        return found

    def _find(self, frames: list[Any]) -> int:
        fallback, issuer = -1, ""
        for position, frame in enumerate(frames[:MAX_FRAMES_PER_ENTRY]):
            self._looks_left -= 1
            if self._looks_left < 0:
                return 0
            kind, _, by = self._frames.get(id(frame)) or self._judge(frame)
            issuer = issuer or by
            if kind == 0:
                return self._number(frames, position, issuer)
            if kind == 1 and fallback < 0:
                fallback = position
        return self._number(frames, fallback, issuer) if fallback >= 0 else 0

    def _judge(self, frame: Any) -> tuple[int, str, str]:
        """(0 the user's, 1 an installed package's, 2 torch's or none; label; which machinery it is of)."""
        kind, label, issuer = 2, "", ""
        if frame.__class__ is dict:
            name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
            if file.__class__ is str:
                issuer = next((by for part, by in _ISSUERS if part in file[:4096]), "")
            if file.__class__ is str and file and name.__class__ is str and not any(p in file[:4096] for p in _TORCH):
                kind = 1 if any(p in file[:4096] for p in _LIBRARY) else 0
                number = as_int(line)
                base = file[-512:].replace("\\", "/").rpartition("/")[2][:128]
                label = f"{name[:128]} ({base}:{number if number is not None else '?'})"
        self._frames[id(frame)] = (kind, label, issuer)
        return kind, label, issuer

    def _number(self, frames: list[Any], position: int, issuer: str) -> int:
        frame = frames[position]
        label = self._frames[id(frame)][1]
        found = self._ids.get((label, position, issuer))
        if found is None:
            found = self._ids[(label, position, issuer)] = len(self.rows)
            plain = list(frame) == ["name", "filename", "line"] and all(
                v.__class__ is int or (v.__class__ is str and len(v) <= 1024) for v in frame.values()
            )
            quotable = dict(frame) if plain and as_int(frame["line"]) is not None else None
            self.rows.append([label, position, quotable, issuer])
        return found
