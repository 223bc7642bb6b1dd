"""Asks torch's worker server of a process for its flight record: the only way to have one of gloo while it hangs.

A process that runs its program in ``torch.distributed.elastic.control_plane.worker_main()`` and was started with
``TORCH_WORKER_SERVER_SOCKET`` serves HTTP on that unix socket from a thread that needs no interpreter lock (handlers of
torch 2.13: ``fr_trace_json`` for gloo and others on the CPU, ``dump_nccl_trace_pickle`` for NCCL). Each is asked once,
never longer than the limit, and only where the very process that is meant listens.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.job_files import NotTheJobsError, check_owned

if TYPE_CHECKING:
    import threading
    from collections.abc import Generator

SOCKET_NAME = "TORCH_WORKER_SERVER_SOCKET"
CPU, NCCL = "fr_trace_json", "dump_nccl_trace_pickle"
MAX_HEAD_BYTES = 16_384
_LOOK_S = 0.2
_PIECE_BYTES = 1 << 16
_REQUEST = b"POST /handler/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]{0,200}\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]{0,8}(\d{1,15})\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What came of one question."""

    data: bytes = b""
    error: str | None = None
    reason: str | None = None

    @property
    def has_calls(self) -> bool:
        """Whether a record holds any call; a process that uses no such backend has an empty one."""
        return b"profiling_name" in self.data  # in both forms


def command_of(path: str, handler: str) -> list[str]:
    """The same question as a command line."""
    return ["curl", "-X", "POST", "--unix-socket", clean_text(path), f"http://localhost/handler/{handler}"]


def ask(
    path: str, handler: str, *, pid: int, uid: int, deadline: float, limit_bytes: int, stop: threading.Event
) -> Answer:
    """Ask the server at a socket's path, which must be process ``pid`` of user ``uid``; never raises for what it does.

    Args:
        path: where the socket lies for us.
        handler: ``CPU`` or ``NCCL``.
        pid: the process that must listen there.
        uid: its user.
        deadline: until when to wait, by the monotonic clock.
        limit_bytes: how much of the answer is kept.
        stop: set by another thread to give up.
    """
    try:
        with _connected(path, pid, uid) as connection:
            connection.sendall(_REQUEST % handler.encode("ascii"))
            return _answer(connection, deadline, limit_bytes, stop)
    except NotTheJobsError as error:
        return Answer(error=str(error), reason="only a socket on which the job itself listens is asked")
    except ConnectionRefusedError:
        return Answer(error="nobody listens there", reason="the process's worker server has ended, or was not started")
    except BlockingIOError:
        return Answer(error="it takes no connection", reason="the thread that should answer is stuck, or many ask it")
    except OSError as error:
        return Answer(
            error=clean_text(error.strerror or str(error)), reason="run the collector as the job's user or as root"
        )


@contextlib.contextmanager
def _connected(path: str, pid: int, uid: int) -> Generator[socket.socket, None, None]:
    """A connection to that very socket, refused when somebody else made it or listens on it."""
    seen = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owned(seen, stat.S_ISSOCK, "socket", (uid,))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{seen}")
            # Whose process called listen(2), as the kernel says.
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            peer_pid, peer_uid, _ = struct.unpack("3i", peer)
            if (peer_pid, peer_uid) != (pid, uid):
                raise NotTheJobsError(f"process {peer_pid} of uid {peer_uid} listens there")
            connection.settimeout(_LOOK_S)
            yield connection
    finally:
        os.close(seen)


def _answer(connection: socket.socket, deadline: float, limit_bytes: int, stop: threading.Event) -> Answer:
    data = bytearray()
    begins, size = 0, -1
    while size < 0 or len(data) < begins + min(size, limit_bytes):
        if stop.is_set():
            return Answer(error="no answer yet", reason="the collector was stopped while it waited")
        if time.monotonic() >= deadline:
            return Answer(
                error="no answer in time",
                reason="the process may be stopped, or what it needs for the record is locked",
            )
        try:
            piece = connection.recv(_PIECE_BYTES)
        except TimeoutError:
            continue
        if not piece:
            break
        data += piece
        if size < 0 and (end := data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)) >= 0:
            head, begins = bytes(data[: end + 2]), end + 4
            told, length = _STATUS.match(head), _LENGTH.search(head)
            if told is None or length is None:
                break
            if told[1] != b"200":
                reason = "this torch, or this process group's backend, has no such record"
                return Answer(error=f"the server answered {told[1].decode('ascii')}", reason=reason)
            size = int(length[1])
        elif size < 0 and len(data) > MAX_HEAD_BYTES:
            break
    if size < 0:
        return Answer(error="the answer is not that of a worker server", reason="another program listens there")
    body = bytes(data[begins : begins + min(size, limit_bytes)])
    if len(body) < min(size, limit_bytes):
        return Answer(body, "the answer ends early", "what came was kept; the process may just have ended")
    if size > limit_bytes:
        return Answer(body, f"the record is larger than {limit_bytes} bytes", "only its beginning was kept")
    return Answer(body)
