"""The manifest of a bundle: what was collected, by which exact command, from which process, and what failed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from torchtriage.report import Model


class Item(Model):
    """One part of a bundle."""

    path: str = Field(description="relative to the manifest; empty when nothing could be collected")
    kind: str
    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    command: list[str] = Field(default=[], description="the exact command that made it, as an argument list")
    ok: bool
    error: str | None = Field(default=None, description="the error as it was reported, when not ok")
    reason: str | None = Field(default=None, description="what that error means and what would help")
    redacted: bool = Field(description="whether secrets were masked in it")


class Job(Model):
    """Which job it was."""

    run_id: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    world_size: int | None = None
    launcher: str | None = None


class Manifest(Model):
    """``manifest.json`` at the root of a bundle."""

    schema_version: Literal["1"] = "1"
    torchtriage_version: str
    torch_version: str | None = Field(default=None, description="of the torch that the job's ranks have loaded")
    python_version: str | None = Field(default=None, description="of the Python that they run, without its last part")
    nccl_version: str | None = Field(default=None, description="of the NCCL that they have loaded")
    time: str = Field(description="when collecting began, ISO 8601 with zone")
    stopped_by: str | None = Field(default=None, description="the signal that ended collecting before its time")
    hosts: list[str]
    job: Job | None = None
    items: list[Item]
