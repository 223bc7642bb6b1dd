"""What ``nvlink_health`` returns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from torchtriage.nvlink.xid_catalogue import Action  # noqa: TC001  # pydantic reads annotations at run time
from torchtriage.report import Culprits, Evidence, Model, Report

LinkStatus = Literal["ok", "degraded", "failed", "unknown"]
NvlinkStatus = Literal["ok", "degraded", "failed", "unknown", "not_applicable"]


class NvlinkLink(Model):
    """One NVLink of a GPU."""

    link: int
    state: str | None = Field(description="active, sleep, inactive, missing, ...; null: it was not told")
    bw_gb_s: float | None = Field(default=None, description="in one direction, as nvidia-smi prints it")
    status: LinkStatus
    reasons: list[str] = []
    counters: dict[str, float] = Field(
        default={}, description="over its life, by the words that are printed; those at zero only with per_link"
    )
    growth: dict[str, float] = Field(default={}, description="between two readings, or since the baseline")


class NvlinkGpu(Model):
    """One GPU."""

    index: int | None
    name: str | None
    uuid: str | None = None
    pci_bus_id: str | None
    host: str = ""
    status: NvlinkStatus
    expected_links: int | None = Field(description="null: not known, or it depends on bridges that may be left out")
    active_links: int | None = None
    reasons: list[str] = []
    links: list[NvlinkLink] = []


def code_words(root: dict[str, Any]) -> str:
    """How the code of an incident's root is called."""
    return f"Xid {root['xid']}" if "xid" in root else f"SXid {root['sxid']}"


class NvlinkReport(Report):
    """Answer of ``nvlink_health``."""

    status: NvlinkStatus  # pyright: ignore[reportIncompatibleVariableOverride]  # a closed set per tool
    gpus: list[NvlinkGpu] = []
    incidents: list[dict[str, Any]] = Field(
        default=[], description="of the kernel's messages: root, what followed (sympathetic), action, culprit"
    )
    action: Action = "none"
    culprits: Culprits = Culprits()
    evidence: list[Evidence] = []
    per_link: bool = False
    output_dir: str | None = Field(default=None, description="of a live look: where the answers were kept")
