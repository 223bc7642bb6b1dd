"""This node: its name, and whether processes can be looked at on it."""

from __future__ import annotations

import re
import socket
import sys

from torchtriage.artefacts.clean import clean_text
from torchtriage.errors import BadCallError


def host_name() -> str:
    """This node's name, as a folder can be called."""
    return re.sub(r"[^\w.-]", "_", clean_text(socket.gethostname(), 64)).strip(".") or "host"


def require_linux() -> None:
    """Refuse to look at live processes elsewhere.

    Raises:
        BadCallError: this is no Linux.
    """
    if sys.platform != "linux":
        raise BadCallError("live processes are looked at on Linux alone: run this on the node of the job")
