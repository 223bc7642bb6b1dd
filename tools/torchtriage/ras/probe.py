"""Asks NCCL's RAS service of a job on this node, once, and keeps its answers as they came. It judges nothing.

NCCL 2.24 and newer answer on ``NCCL_RAS_ADDR`` or localhost:28028. Being asked is known to have crashed jobs under some
versions (nccl #1669, #1718, #1762), so those are never asked, and one whose version cannot be told only on demand.
What the service counts are launches of collectives; sends, receives and all-to-all are not counted.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import path_in_bundle, write_new
from torchtriage.bundle.manifest import Item
from torchtriage.ras.nccl_version import Version, mapped_libraries, nccl_version_of
from torchtriage.ras.own_address import NotOwnAddressError, SocketAddress, own_socket_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.processes import JobProcess

KIND = "ras"
DEFAULT_ADDRESS = "localhost:28028"
DEFAULT_PORT = 28028
FIRST_VERSION: Version = (2, 24, 3)
FIRST_JSON_VERSION: Version = (2, 28, 7)
CRASHING_VERSIONS: frozenset[Version] = frozenset({(2, 26, 2), (2, 26, 5), (2, 27, 3)})
"""NVIDIA/nccl #1669, #1718, #1762: jobs died while their RAS service was asked."""
MAX_ANSWER_BYTES = 32 << 20
MAX_LINE_BYTES = 4096
_COLLECT_S = 3
"""How long NCCL itself may wait for other nodes before it answers."""
_PID = re.compile(
    rb'"pid": {0,4}(\d{1,10})\b|managed by process (\d{1,10})\b|^  Process (\d{1,10}) on node ', re.MULTILINE
)
_MAX_PIDS = 200_000


@dataclass(frozen=True)
class _Form:
    file: str
    lines: tuple[str, ...]
    """Sent one by one, each after the line that answers the one before."""
    end: bytes
    """What a whole answer holds near its end."""


_TEXT = _Form("ncclras-verbose.txt", ("CLIENT PROTOCOL 2", f"TIMEOUT {_COLLECT_S}", "VERBOSE STATUS"), b"\nWarnings")
_JSON = _Form(
    "ncclras-json.txt", ("CLIENT PROTOCOL 3", "SET FORMAT json", f"TIMEOUT {_COLLECT_S}", "VERBOSE STATUS"), b"}"
)


def probe_ras(
    processes: Sequence[JobProcess],
    folder: Path,
    *,
    host: str,
    timeout_s: float = 8.0,
    force: bool = False,
    proc: Path = Path("/proc"),
) -> list[Item]:
    """Ask the RAS service of one job once and write its answers below ``folder/ras/``.

    Args:
        processes: the job's processes on this node.
        folder: this host's folder in the bundle.
        host: its name, for the manifest.
        timeout_s: limit of each of the (at most two) questions, waiting for other nodes included.
        force: ask also when the version of NCCL cannot be told.
        proc: where /proc lies.

    Returns:
        Items; one without a path and ``ok`` when the job uses no NCCL.
    """
    ranks = [process for process in processes if process.role == "rank"] or list(processes)
    if not ranks:
        return []
    # Set but empty is as good as not set.
    addresses = {p.environment.get("NCCL_RAS_ADDR", "").strip() for p in ranks} - {""}
    address = min(addresses, default=DEFAULT_ADDRESS)
    if not any(mapped_libraries(p.pid, proc) for p in ranks) and not addresses and not force:
        return [_nothing(host, address, "no process of this job has NCCL loaded, so there is no RAS service to ask")]
    if any(p.environment.get("NCCL_RAS_ENABLE", "").strip() == "0" for p in ranks):
        return [_refused(host, address, "the service is off", "NCCL_RAS_ENABLE=0 turns it off: leave it unset")]
    if len(addresses) > 1:
        return [_refused(host, address, "ranks differ in NCCL_RAS_ADDR", "give all ranks of a node the same address")]
    if any(_other_network(p.pid, proc) for p in ranks):
        return [
            _refused(
                host,
                address,
                "the job has a network of its own (a container)",
                "run the collector inside the job's container, where its service can be reached",
            )
        ]
    versions = {version for p in ranks if (version := nccl_version_of(p.pid, proc)) is not None}
    if bad := versions & CRASHING_VERSIONS:
        return [_crashing(host, address, min(bad))]
    version = versions.pop() if len(versions) == 1 else None
    pids = {pid for process in processes for pid in _pids_of(process.pid, proc)}
    return ask(address, folder, nccl_version=version, timeout_s=timeout_s, host=host, force=force, pids=frozenset(pids))


def ask(
    address: str,
    folder: Path,
    *,
    nccl_version: Version | None,
    timeout_s: float,
    host: str | None = None,
    force: bool = False,
    pids: frozenset[int] = frozenset(),
) -> list[Item]:
    """Ask one RAS service on this node, in text and (from 2.28.7 on) in JSON.

    Args:
        address: ``host:port``; refused unless it is this node's own.
        folder: this host's folder in the bundle.
        nccl_version: of the job; None when it cannot be told.
        timeout_s: limit of each question.
        host: this node's name, for the manifest.
        force: ask also when the version is not known.
        pids: the job's processes; an answer that speaks of other processes only is another job's and is not kept.
    """
    if nccl_version is None and not force:
        return [
            _refused(
                host,
                address,
                "not asked: the version of NCCL cannot be told",
                "being asked crashed jobs under NCCL 2.26.2, 2.26.5 and 2.27.3; when it is another version, ask "
                "with `--force-ras`",
            )
        ]
    if nccl_version in CRASHING_VERSIONS:
        return [_crashing(host, address, nccl_version)]
    if nccl_version is not None and nccl_version < FIRST_VERSION:
        return [_nothing(host, address, f"NCCL {_shown(nccl_version)} has no RAS service; 2.24 is the first that has")]
    try:
        where = own_socket_address(address, DEFAULT_PORT)
    except NotOwnAddressError as error:
        return [_refused(host, address, "not asked: the address is not this node's", clean_text(str(error)))]
    with_json = nccl_version is None or nccl_version >= FIRST_JSON_VERSION
    items: list[Item] = []
    for form in (_JSON, _TEXT) if with_json else (_TEXT,):
        item, unreachable = _question(where, form, folder, address, host, timeout_s, pids)
        items.append(item)
        if unreachable:
            break
    return items


def _question(
    where: SocketAddress,
    form: _Form,
    folder: Path,
    address: str,
    host: str | None,
    timeout_s: float,
    pids: frozenset[int],
) -> tuple[Item, bool]:
    """(what came of one question, whether a second one would be in vain)."""
    answer = _exchange(where, form, timeout_s)
    item = Item(
        path="", kind=KIND, host=host, command=_command(address, form), ok=False, error=answer.error,
        reason=answer.reason, redacted=False,
    )  # fmt: skip
    if not answer.data:
        return item, answer.unreachable
    spoken_of = _pids_in(answer.data)
    if pids and spoken_of and not spoken_of & pids:
        item.error = "the answer speaks of other processes"
        item.reason = "another job's RAS service has this address: give each job of a node its own NCCL_RAS_ADDR"
        return item, True
    name = f"ras/{form.file}"
    try:
        write_new(folder / name, answer.data)
    except OSError as error:
        item.error, item.reason = clean_text(str(error)), "the answer could not be written to the bundle"
        return item, False
    item.path, item.ok = path_in_bundle(folder, name), answer.error is None
    return item, answer.unreachable


@dataclass(frozen=True)
class _Answer:
    data: bytes = b""
    error: str | None = None
    reason: str | None = None
    unreachable: bool = False


def _exchange(where: SocketAddress, form: _Form, timeout_s: float) -> _Answer:
    """Send the lines of a question one by one; everything that came back, and what went wrong."""
    deadline = time.monotonic() + timeout_s
    data = bytearray()
    greeted = False
    try:
        with socket.create_connection(where, timeout=timeout_s) as connection:
            for number, line in enumerate(form.lines):
                connection.settimeout(_left_s(deadline))
                connection.sendall(line.encode("ascii") + b"\n")
                if number == len(form.lines) - 1:
                    break
                reply = _one_line(connection, deadline)
                if number == 0 and not reply.startswith(b"SERVER PROTOCOL "):
                    return _Answer(error="the answer is not that of a RAS service", reason=_OTHER, unreachable=True)
                greeted = True
                data += reply
                if reply.startswith(b"ERROR"):
                    shown = clean_text(reply.decode("utf-8", errors="replace"))
                    return _Answer(error=f"the service refused {line}: {shown}", reason="this NCCL does not know it")
            while len(data) < MAX_ANSWER_BYTES:
                connection.settimeout(_left_s(deadline))
                piece = connection.recv(1 << 16)
                if not piece:
                    return _whole(bytes(data), form)
                data += piece
    except TimeoutError:
        if form.end in data[-200_000:] and greeted and data.endswith(b"\n"):
            return _whole(bytes(data), form)
        return _Answer(
            bytes(data) if greeted else b"", "no whole answer in time", _SLOW if greeted else _SILENT, unreachable=True
        )
    except ConnectionRefusedError:
        return _Answer(error="nobody listens there", reason=_NOBODY, unreachable=True)
    except OSError as error:
        said = clean_text(error.strerror or str(error))
        return _Answer(
            bytes(data) if greeted else b"", said, "the connection broke; the job may just have ended", unreachable=True
        )
    return _Answer(bytes(data[:MAX_ANSWER_BYTES]), "the answer is too long", "only its beginning was kept")


_OTHER = "another program listens at this address; see NCCL_RAS_ADDR of the job"
_NOBODY = (
    "the job has not initialised NCCL yet, has ended, uses another NCCL_RAS_ADDR, or NCCL was built without the service"
)
_SILENT = "something listens there and does not answer: the process that holds the port may be stopped or stuck"
_SLOW = "the service began to answer and stopped; what came was kept"


def _whole(data: bytes, form: _Form) -> _Answer:
    if form.end in data[-200_000:]:
        return _Answer(data)
    return _Answer(data, "the answer ends early", "what came was kept; some communicators may be missing from it")


def _one_line(connection: socket.socket, deadline: float) -> bytes:
    """Read up to a line end, byte by byte so that nothing of what follows is taken."""
    line = bytearray()
    while len(line) < MAX_LINE_BYTES:
        connection.settimeout(_left_s(deadline))
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError(0, "the connection was closed before the answer")
        line += byte
        if byte == b"\n":
            break
    return bytes(line)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _pids_in(data: bytes) -> set[int]:
    found: set[int] = set()
    for match in _PID.finditer(data):
        found.add(int(match[1] or match[2] or match[3]))
        if len(found) >= _MAX_PIDS:
            break
    return found


def _pids_of(pid: int, proc: Path) -> set[int]:
    """A process's numbers here and, in a container, inside it: NCCL knows the inner one."""
    try:
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {pid}
    inner = re.search(r"(?m)^NSpid:((?:\s{1,8}\d{1,10}){1,32})$", status)
    return {pid} | ({int(word) for word in inner[1].split()} if inner else set())


def _other_network(pid: int, proc: Path) -> bool:
    try:
        return (proc / str(pid) / "ns/net").readlink() != (proc / "self/ns/net").readlink()
    except OSError:
        return False


def _command(address: str, form: _Form | None) -> list[str]:
    """What was done: the address, and the lines that were sent there."""
    lines = () if form is None else form.lines
    return [f"tcp://{clean_text(address, 120)}", *lines]


def _refused(host: str | None, address: str, error: str, reason: str) -> Item:
    return Item(
        path="", kind=KIND, host=host, command=_command(address, None), ok=False, error=error, reason=reason,
        redacted=False,
    )  # fmt: skip


def _nothing(host: str | None, address: str, reason: str) -> Item:
    return Item(path="", kind=KIND, host=host, command=_command(address, None), ok=True, reason=reason, redacted=False)


def _crashing(host: str | None, address: str, version: Version) -> Item:
    return _refused(
        host,
        address,
        f"not asked: NCCL {_shown(version)}",
        "jobs with this version are known to die when their RAS service is asked; update NCCL to 2.28 or newer",
    )


def _shown(version: Version) -> str:
    return ".".join(map(str, version))
