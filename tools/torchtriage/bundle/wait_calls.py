"""In which system call a process waits, and for which file; read without stopping it and without touching the file."""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import proc_files, system_calls
from torchtriage.bundle.mounts import is_network, type_of
from torchtriage.bundle.proc_model import WaitCall
from torchtriage.bundle.shown import command_of

MAX_MOUNTINFO_BYTES = 2 << 20
MAX_PATH_CHARS = 512
_FIFO_WAITS = ("wait_for_partner", "fifo_open")


def command_and_call(folder: str, wchan: str | None) -> tuple[list[str], WaitCall | None, list[str]]:
    """The command line, the call in which the main thread waits, and notes; all that needs a lock of its memory.

    Args:
        folder: the process's folder in /proc.
        wchan: the kernel function in which it waits, if that is known.
    """
    data = proc_files.read(f"{folder}/cmdline", 16_384) or b""
    arguments = data.rstrip(b"\0 ").split(b"\0") if data.strip(b"\0 ") else []
    command = command_of(tuple(each.decode("utf-8", errors="replace") for each in arguments[:512]))
    call = system_calls.parse(proc_files.read_text(f"{folder}/syscall", 512) or "", platform.machine())
    if call is None:
        return list(command), None, []
    path: str | None = None
    notes: list[str] = []
    if call.path_address is not None:
        path = _path_argument(folder, call)
        if path is None:
            notes.append("the path that it waits for is not readable")
    elif call.descriptor is not None:
        path = proc_files.link(f"{folder}/fd/{call.descriptor}")
    return list(command), _wait_call(folder, call, path, wchan), notes


def _wait_call(folder: str, call: system_calls.SystemCall, path: str | None, wchan: str | None) -> WaitCall:
    found = WaitCall(number=call.number, name=call.name, path=shown_path(path))
    if path is None:
        return found
    if not path.startswith("/"):
        word = path.partition(":")[0]
        found.path_kind = "pipe" if word == "pipe" else "socket" if word == "socket" else "anonymous"
        return found
    found.file_system = type_of(path, proc_files.read_text(f"{folder}/mountinfo", MAX_MOUNTINFO_BYTES) or "")
    found.network_file_system = None if found.file_system is None else is_network(found.file_system)
    # A named FIFO has a path like a file; while it is being opened only the wait channel tells it.
    fifo = wchan in _FIFO_WAITS if call.path_address is not None else _is_open_fifo(folder, call, found, wchan)
    found.path_kind = "fifo" if fifo else "file"
    return found


def _is_open_fifo(folder: str, call: system_calls.SystemCall, found: WaitCall, wchan: str | None) -> bool:
    if "pipe" in (wchan or ""):
        return True
    if found.network_file_system is not False:  # to ask for its mode could hold us
        return False
    try:
        return stat.S_ISFIFO(Path(folder, "fd", str(call.descriptor)).stat().st_mode)
    except OSError:
        return False


def _path_argument(folder: str, call: system_calls.SystemCall) -> str | None:
    """The string that a call got as its path, made absolute; links in it are not followed."""
    address = call.path_address
    if not address:
        return None
    try:
        descriptor = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Up to the end of the page: what follows may not be mapped.
            data = os.pread(descriptor, min(4096 - address % 4096, 4096), address)
            if b"\0" not in data:
                data += os.pread(descriptor, 4096, address + len(data))
        finally:
            os.close(descriptor)
    except (OSError, OverflowError, ValueError):
        return None
    text, end, _ = data.partition(b"\0")
    if not end or not text:
        return None
    path = text.decode("utf-8", errors="replace")
    if path.startswith("/"):
        return path
    base = proc_files.link(f"{folder}/fd/{call.descriptor}" if call.descriptor is not None else f"{folder}/cwd")
    return os.path.normpath(f"{base}/{path}") if base else path


def shown_path(path: str | None) -> str | None:
    """A path, masked and bounded."""
    return None if path is None else clean_text(path, MAX_PATH_CHARS)
