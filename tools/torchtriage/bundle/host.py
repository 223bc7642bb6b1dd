"""The name of this node."""

from __future__ import annotations

import re
import socket

from torchtriage.artefacts.clean import clean_text


def host_name() -> str:
    """This node's name, as a folder can be called."""
    return re.sub(r"[^\w.-]", "_", clean_text(socket.gethostname(), 64)).strip(".") or "host"
