"""Which addresses are this node's own: a service of the job is asked on this node only, never elsewhere."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from pathlib import Path

_PORT = re.compile(r":(\d{1,5})$")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,253}$")
_RESOLVE_S = 2.0

SocketAddress = tuple[str, int]


class NotOwnAddressError(ValueError):
    """The address is not this node's, or cannot be told to be; the message says which and what to do."""


def own_socket_address(address: str, default_port: int, *, root: Path = Path("/")) -> SocketAddress:
    """Turn "host:port", "[v6]:port" or "host" into a numeric address of this node and a port.

    Raises:
        NotOwnAddressError: it names another node, or nothing that can be resolved.
    """
    host, port = _split(address.strip(), default_port)
    candidates = _numeric(host)
    for candidate in candidates:
        if candidate.is_unspecified:  # a service that listens everywhere is reached here
            return ("127.0.0.1" if candidate.version == 4 else "::1", port)
        if candidate.is_loopback or (not _any_can_be_bound(root, candidate.version) and _can_be_bound(candidate)):
            return str(candidate), port
    raise NotOwnAddressError(
        f"{host} is not an address of this node; only this node's own services are asked, so collect on that node"
    )


def _split(address: str, default_port: int) -> tuple[str, int]:
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed:
            raise NotOwnAddressError("the address is not of the form host:port")
    elif address.count(":") > 1:
        host, rest = address, ""
    else:
        port_at = address.find(":")
        host, rest = (address, "") if port_at < 0 else (address[:port_at], address[port_at:])
    if not rest:
        return host, default_port
    port = _PORT.fullmatch(rest)
    if port is None or not 0 < int(port[1]) < 65536:
        raise NotOwnAddressError("the address is not of the form host:port")
    return host, int(port[1])


def _numeric(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    if host.lower() == "localhost":
        return [ipaddress.ip_address("127.0.0.1")]
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise NotOwnAddressError("the address is not of the form host:port")
    found: list[str] = []

    def resolve() -> None:
        try:
            found.extend(str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[:16])
        except OSError:
            return

    # The resolver has no time limit of its own, and a dead name server must not hold the collector.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_RESOLVE_S)
    addresses = [ipaddress.ip_address(text) for text in list(found) if "%" not in text]
    if not addresses:
        raise NotOwnAddressError(f"{host} cannot be resolved here")
    return addresses


def _can_be_bound(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Only an address of one of its own interfaces can be bound by a node."""
    if address.is_multicast or address == ipaddress.ip_address("255.255.255.255"):
        return False  # these can be bound too
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _any_can_be_bound(root: Path, version: int) -> bool:
    """Whether the node lets programs bind addresses that it does not have (sysctl ip_nonlocal_bind)."""
    name = f"proc/sys/net/ipv{version}/ip_nonlocal_bind"
    try:
        return (root / name).read_text(encoding="ascii", errors="replace").strip() not in ("", "0")
    except OSError:
        return False
