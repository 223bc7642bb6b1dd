"""What a message of an NVSwitch means: by its code where that is known, else by its own word Fatal or Non-fatal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.nvlink.xid_catalogue import load_sxids

if TYPE_CHECKING:
    from torchtriage.nvlink.kernel_read import KernelEvent
    from torchtriage.nvlink.xid import Decoded
    from torchtriage.nvlink.xid_catalogue import Role

FAMILY = "nvswitch"


def decode_sxid(event: KernelEvent) -> Decoded:
    """Say what a message of a switch means; one of an unknown severity is held for one that was survived."""
    from torchtriage.nvlink.xid import Decoded

    catalogue = load_sxids()
    code = event.code or 0
    fatal = bool(event.fatal)
    kind = catalogue.class_of.get(code)
    known = catalogue.classes[kind] if kind is not None else catalogue.by_severity["fatal" if fatal else "nonfatal"]
    role: Role = "root" if fatal else "informational" if kind in ("benign", "ecc_corrected") else "sympathetic"
    return Decoded(
        means=known.means,
        action=known.action if fatal or kind is not None else "none",
        role=role,
        family=FAMILY,
        name=catalogue.names.get(code),
        end="unknown",
        link=event.link,
        fatal=event.fatal,
        benign=not fatal and role == "informational",
    )
