"""Open what a user points at: files, folders, bundles and archives, as a list of recognised artefacts.

Only regular files are opened; links and special files inside a folder are not followed. Archives are unpacked into one
private folder, under names of our own, so that no name in an archive is ever a path on disk.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.archives import Budget, archive_type, unpack
from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.names import UniqueNames, display_name
from torchtriage.artefacts.recognise import Recognised, recognise
from torchtriage.artefacts.streams import MAX_HEAD_BYTES, compression_of, open_regular, read_head, read_samples
from torchtriage.errors import InputNotFoundError, OutsideRootsError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    Paths: TypeAlias = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]
    """What callers may give: paths, or a single one."""

MAX_FILES = 50_000
MAX_DEPTH = 24
MAX_NESTED_ARCHIVES = 2


@dataclass(frozen=True)
class Artefact:
    """One file that was found and recognised."""

    name: str
    """How reports name it: relative to the one folder or archive that was given, else the path as given; made fit to
    be shown (see :mod:`torchtriage.artefacts.names`), and no two artefacts have the same."""
    path: Path
    kind: str
    """log, flight_recorder, stack_dump, memory_snapshot, trace, nvidia_smi, kernel_log, ras, config, rank_note,
    manifest, text, empty or unknown."""
    format: str
    """pickle, json, xml, text or binary."""
    compression: str | None
    size_bytes: int


@dataclass
class Inputs:
    """Everything that was found; close it (or use it in ``with``) to remove what was unpacked."""

    artefacts: list[Artefact] = field(default_factory=list["Artefact"])
    gaps: list[str] = field(default_factory=list[str])
    """What was given and could not be read or opened."""
    notes: list[str] = field(default_factory=list[str])
    """What was left out without loss."""
    _private: Path | None = None
    names: UniqueNames = field(default_factory=UniqueNames)
    seen: set[Path] = field(default_factory=set[Path])
    budget: Budget = field(default_factory=Budget)

    def of(self, *kinds: str) -> list[Artefact]:
        """The artefacts of these kinds, in order of name."""
        return [a for a in self.artefacts if a.kind in kinds]

    def unopened(self) -> list[str]:
        """What was found and cannot be used by anything, a sentence each: nothing that was given vanishes silently."""
        lost: list[str] = []
        for artefact in self.of("empty", "unknown"):
            name = artefact.name
            if artefact.kind == "empty":
                lost.append(f"{name}: empty")
            else:
                what = "a pickle that is no dump known here" if artefact.format == "pickle" else "binary data"
                lost.append(f"{name}: not recognised ({what}); not opened")
        return lost

    def private_folder(self) -> Path:
        """The folder (mode 0700) that holds what was unpacked; made when first asked for."""
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix="torchtriage-"))
        return self._private

    def close(self) -> None:
        """Remove the private folder."""
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def path_names(paths: Paths) -> list[str]:
    """What was given as printable text for reports, other bytes as ``\\x1b``; :func:`open_inputs` takes that too."""
    return ["".join(c if c.isprintable() else _escaped(c) for c in path) for path in _given(paths)]


def _given(paths: Paths) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def _escaped(char: str) -> str:
    code = ord(char)
    data = bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else char.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def _unescaped(path: str) -> str:
    """What :func:`path_names` made printable."""
    data = os.fsencode(path)
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), data))


def open_inputs(paths: Paths, roots: Sequence[Path] | None = None) -> Inputs:
    """Find and recognise all artefacts in ``paths``.

    Args:
        paths: files, folders and archives; a single one may be given as it is.
        roots: when given, every path must lie inside one of these folders, links resolved.

    Raises:
        InputNotFoundError: a path does not exist, or none was given.
        OutsideRootsError: a path lies outside ``roots``.
    """
    paths = _given(paths)
    if not paths:
        raise InputNotFoundError("no path was given: pass a folder, log file, dump, bundle or archive")
    starts = [_checked_start(given, roots) for given in paths]
    inputs = Inputs()
    try:
        for given, start in zip(paths, starts, strict=True):
            label = "" if len(paths) == 1 else given
            _add(inputs, start, given if not start.is_dir() else label, given=len(paths) == 1)
    except BaseException:
        inputs.close()
        raise
    inputs.artefacts.sort(key=lambda a: _natural(a.name))
    return inputs


def _checked_start(given: str, roots: Sequence[Path] | None) -> Path:
    shown = clean_text(given)
    if "\\x" in given and given.isprintable() and not _exists(Path(given)) and _exists(Path(_unescaped(given))):
        given = _unescaped(given)
    if not given.strip():
        raise InputNotFoundError("an empty path was given: pass a folder, log file, dump, bundle or archive")
    if "\x00" in given:
        raise InputNotFoundError(f"not a path: {shown!r}")
    try:
        path = Path(given).expanduser() if given.startswith("~") else Path(given)
    except RuntimeError as error:
        raise InputNotFoundError(f"no such user: {shown} (its home folder is not known)") from error
    here = _working_folder()
    if not path.is_absolute():
        if roots:
            # A caller of a server knows its roots, not its working directory.
            bases = [*([here] if here is not None else []), *roots]
            path = next((base / path for base in bases if _exists(base / path)), roots[0] / path)
        elif here is None:
            raise InputNotFoundError(
                f"no such file or folder: {shown} (the working folder itself is gone: pass an absolute path)"
            )
    try:
        resolved = path.resolve(strict=True)
        resolved.stat()
    except (OSError, RuntimeError, ValueError):
        resolved = None
    if roots is not None:
        probe = resolved if resolved is not None else Path(os.path.abspath(path))  # noqa: PTH100  # no link may decide here
        if not any(probe == root or root in probe.parents for root in (r.resolve() for r in roots)):
            allowed = ", ".join(str(r) for r in roots)
            raise OutsideRootsError(
                f"{shown} is outside the folders this server may read ({allowed}): pass a path inside"
            )
    if resolved is None:
        raise InputNotFoundError(f"no such file or folder: {shown} (looked from {here})")
    return resolved


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, for one
        return False


def _add(inputs: Inputs, start: Path, label: str, *, given: bool) -> None:
    """Add one path that the user named; ``given``: it is the only one, so names inside it are relative to it."""
    mode = start.stat().st_mode
    if stat.S_ISDIR(mode):
        for path, name in _walk(inputs, start):
            _add_file(inputs, path, f"{label.rstrip('/')}/{name}" if label else name, nested=0)
    elif stat.S_ISREG(mode):
        _add_file(inputs, start, label, nested=0, sole=given)
    else:
        inputs.gaps.append(f"{display_name(label)}: not a regular file (a device, pipe or socket); not opened")


def _walk(inputs: Inputs, start: Path) -> Iterator[tuple[Path, str]]:
    """Yield the regular files under ``start``; count what is not followed."""
    skipped = 0
    uninteresting: list[str] = []
    n_files = 0
    pending: list[tuple[str, str, int]] = [(str(start), "", 0)]
    while pending:
        folder, prefix, depth = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            inputs.gaps.append(f"{display_name(prefix or '.')}: folder not readable ({error.strerror})")
            continue
        for entry in entries:
            name = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in _UNINTERESTING_FOLDERS:
                        uninteresting.append(name)
                    elif depth < MAX_DEPTH:
                        pending.append((entry.path, name + "/", depth + 1))
                    else:
                        inputs.gaps.append(f"{display_name(name)}: deeper than {MAX_DEPTH} folders; not looked into")
                elif entry.is_file(follow_symlinks=False):
                    n_files += 1
                    if n_files > MAX_FILES:
                        inputs.gaps.append(f"more than {MAX_FILES} files: the rest was not read; pass a narrower path")
                        return
                    yield Path(entry.path), name
                else:
                    skipped += 1
            except OSError as error:
                inputs.gaps.append(f"{display_name(name)}: {error.strerror}")
    if skipped:
        inputs.gaps.append(f"{skipped} link(s) or special file(s) were not followed; pass their targets if they matter")
    if uninteresting:
        listed = ", ".join(display_name(name) for name in uninteresting[:3]) + (", ..." if uninteresting[3:] else "")
        inputs.notes.append(
            f"{len(uninteresting)} folder(s) of tools were not looked into ({listed}); pass them if they matter"
        )


_UNINTERESTING_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv"})


def _add_file(inputs: Inputs, path: Path, name: str, *, nested: int, sole: bool = False) -> None:
    if path in inputs.seen:
        return  # given twice, or by itself and with its folder
    inputs.seen.add(path)
    shown = display_name(name)
    try:
        _add_readable(inputs, path, name, nested=nested, sole=sole)
    except (UnreadableError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        inputs.gaps.append(f"{shown}: not readable ({reason})")
    except Exception as error:  # the boundary: whatever one hostile file causes is a gap of that file
        inputs.gaps.append(f"{shown}: not readable ({type(error).__name__}: {clean_text(str(error), 80)})")


def _add_readable(inputs: Inputs, path: Path, name: str, *, nested: int, sole: bool) -> None:
    with open_regular(path) as raw:
        size_bytes = os.fstat(raw.fileno()).st_size
        first = raw.read(MAX_HEAD_BYTES)
    inner = archive_type(first, path)
    if inner is not None:
        shown = display_name(name)
        if nested >= MAX_NESTED_ARCHIVES:
            inputs.gaps.append(f"{shown}: archives nested deeper than {MAX_NESTED_ARCHIVES} are not opened")
            return
        for member in unpack(path, inner, inputs.private_folder(), inputs.gaps, shown, inputs.budget):
            _add_file(inputs, member.path, member.name if sole else f"{name}/{member.name}", nested=nested + 1)
        return
    compression = compression_of(first)
    head = read_head(path, compression) if compression else first
    if not size_bytes:
        found = Recognised("empty", "text")
    elif len(head) < MAX_HEAD_BYTES:
        found = recognise(head, name)
    else:
        found = recognise(head, name, lambda: read_samples(path, compression))
    inputs.artefacts.append(
        Artefact(
            name=inputs.names.take(name),
            path=path,
            kind=found.kind,
            format=found.format,
            compression=compression,
            size_bytes=size_bytes,
        )
    )


def _natural(name: str) -> list[Any]:
    """Sort key under which rank_10 comes after rank_9."""
    parts: list[Any] = []
    digits = ""
    for char in name:
        if char.isascii() and char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((1, int(digits[:18]), digits))
            digits = ""
        parts.append((0, 0, char))
    if digits:
        parts.append((1, int(digits[:18]), digits))
    return parts
