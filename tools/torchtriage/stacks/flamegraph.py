"""Record where ranks spend their time with py-spy, all of them over the same seconds, one SVG a rank.

py-spy's SVG carries the number of samples of every frame, so that one recording gives picture and data; a second one
for speedscope runs beside it when asked for, at the price of a few failed samples where both want the process at once.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import write_new
from torchtriage.bundle.manifest import Item
from torchtriage.stacks.attach import Guard, run_guarded
from torchtriage.stacks.guard import stat_of, tracer_of
from torchtriage.stacks.obstacles import obstacle
from torchtriage.stacks.probe import HOW_TO_GET_IT, process_name, py_spy_here
from torchtriage.stacks.refusals import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.stacks.probe import Target

BASE = "halo_diag_flamegraphs"
"""The folder below ``$TMPDIR`` where recordings land when nobody says otherwise."""
MAX_PROCESSES = 128
MAX_DURATION_S = 3600.0
MAX_RATE_HZ = 1000
MAX_FILE_BYTES = 64 << 20
_MAX_CHARS = 1000
_MARGIN_S = 15.0
_UNWRITABLE = "the folder cannot be written: name another one"
_LABEL = re.compile(r">([^<>]{1,8192})</(title|text)>")
_NO_SAMPLES = "No stack counts found"
"""How py-spy's flame graphs refuse a recording without samples."""
WAITED = "no samples: the process waited all the time, or was stopped (record idle threads to see where)"


def record_processes(
    processes: Sequence[Target],
    folder: Path,
    *,
    host: str,
    duration_s: float = 30.0,
    rate_hz: int = 100,
    native: bool = False,
    idle: bool = False,
    speedscope: bool = False,
    root: Path | None = None,
) -> list[Item]:
    """Record processes in parallel; never raises for what they or the node do.

    Args:
        processes: the ranks to record.
        folder: where the files go: ``rank03-pid4711.svg`` and, with ``speedscope``, ``.speedscope.json``.
        host: its name, for the manifest.
        duration_s: whole seconds, as py-spy counts.
        rate_hz: samples a second.
        native: with native frames.
        idle: with threads that wait; without it a rank that hangs gives no samples.
        speedscope: also record for https://www.speedscope.app.
        root: to which paths in the manifest are relative; two folders up when None.
    """
    root = root or folder.parent.parent
    py_spy, missing = py_spy_here()
    if py_spy is None:
        return [_item(None, host, [], error=missing, reason=HOW_TO_GET_IT)] if processes else []
    seconds = int(min(max(duration_s, 1.0), MAX_DURATION_S))
    options = ["--duration", str(seconds), "--rate", str(min(max(rate_hz, 1), MAX_RATE_HZ))]
    options += ["--native"] * native + ["--idle"] * idle
    formats = [("flamegraph", "svg"), *([("speedscope", "speedscope.json")] if speedscope else [])]
    jobs = [(process, *each) for process in processes[:MAX_PROCESSES] for each in formats]
    if not jobs:
        return []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # py-spy follows links where it writes: it writes to a new folder of our own.
        parts = Path(tempfile.mkdtemp(prefix=".recording-", dir=folder))
    except OSError as error:
        return [_item(None, host, [], error=str(error.strerror), reason=_UNWRITABLE)]
    try:
        with Guard(grace_s=0.0) as guard, ThreadPoolExecutor(len(jobs)) as pool:

            def record(job: tuple[Target, str, str]) -> Item:
                process, kind, ending = job
                name = f"{process_name(process.rank, process.pid)}.{ending}"
                how = [*options, *_nonblocking(process.pid, native)]
                command = [py_spy, "record", "--format", kind, *how, "--output", str(parts / name)]
                command += ["--pid", str(process.pid)]
                ended = run_guarded(command, process.pid, guard, timeout_s=seconds + _MARGIN_S, end_with=signal.SIGINT)
                error = ended.error if ended.returncode != 0 else None
                data = masked_recording(parts / name)
                if data is None:
                    if error is None or _NO_SAMPLES in error:
                        return _item(process, host, command, kind=kind, error=WAITED)
                    reason = obstacle(process.pid, error, timed_out=ended.returncode is None, cut=ended.cut)
                    return _item(process, host, command, kind=kind, error=error, reason=reason)
                write_new(folder / name, data)
                path = (folder / name).relative_to(root) if folder.is_relative_to(root) else folder / name
                return _item(process, host, command, kind=kind, path=path.as_posix(), error=error)

            try:
                items = list(pool.map(record, jobs))
            except BaseException:
                guard.cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    except OSError as error:
        items = [_item(None, host, [], error=str(error.strerror), reason=_UNWRITABLE)]
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    if len(processes) > MAX_PROCESSES:
        left = f"{len(processes) - MAX_PROCESSES} processes were not recorded"
        items.append(_item(None, host, [], error=left, reason=f"at most {MAX_PROCESSES} are recorded together"))
    return items


def masked_recording(path: Path) -> bytes | None:
    """A recording as it may be kept: secrets masked; None when there is none, no sample in it, or it is too large."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text("utf-8", "replace")
    except OSError:
        return None
    if path.suffix != ".json":
        return _LABEL.sub(_masked_label, text).encode() if "fg:w=" in text else None
    try:
        profile = json.loads(text)
        for frame in profile["shared"]["frames"]:
            frame["name"], frame["file"] = _cleaned(frame["name"]), _cleaned(frame["file"])
        for each in profile["profiles"]:
            each["name"] = _cleaned(each["name"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return json.dumps(profile, separators=(",", ":")).encode() if profile["profiles"] else None


def _masked_label(match: re.Match[str]) -> str:
    return f">{escape(_cleaned(unescape(match[1])), quote=False)}</{match[2]}>"


def _cleaned(text: str) -> str:
    return clean_text(text, _MAX_CHARS) if text.strip() else text


def _nonblocking(pid: int, native: bool) -> list[str]:
    """A process that is stopped or traced already can only be read as it runs, and then without native frames."""
    stat = stat_of(pid)
    held = (stat is not None and stat[0] in "Tt") or bool(tracer_of(pid))
    return ["--nonblocking"] if held and not native else []


def _item(process: Target | None, host: str, command: list[str], **fields: Any) -> Item:
    path = cast("str", fields.get("path", ""))
    error = fields.get("error")
    return Item(
        path=path,
        kind=fields.get("kind", "flamegraph"),
        rank=process.rank if process else None,
        pid=process.pid if process else None,
        host=host,
        command=command,
        ok=bool(path),
        error=clean_text(in_one_line(str(error)), 400) if error else None,
        reason=fields.get("reason"),
        redacted=True,
    )
