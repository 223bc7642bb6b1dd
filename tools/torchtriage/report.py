"""What every tool returns: evidence, signals, the report base and the verdict.

Everything here leaves the program as JSON, so everything here is a pydantic model. Nothing here judges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from torchtriage.signals import SIGNALS

SCHEMA_VERSION = "1"

VerdictStatus = Literal["diagnosed", "suspected", "healthy", "inconclusive", "out_of_domain"]

DIAGNOSED_FROM = 0.8
SUSPECTED_FROM = 0.4


class Model(BaseModel):
    """Base of all report models: closed, so that a misspelt field is an error; built when first used."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Evidence(Model):
    """One quotation that a reader can find again in the artefact.

    For text, ``where`` is a line number (from 1) and ``quote`` is part of that line after cleaning. For structured
    artefacts ``where`` is a JSON Pointer into the reader's view and ``quote`` the compact JSON found there, cleaned.
    """

    artefact: str
    where: str
    quote: str
    signal: str


class Scope(Model):
    """Whom a signal speaks of. Empty lists mean "not about one of these"."""

    ranks: list[int] = []
    gpus: list[str] = []
    links: list[str] = []
    groups: list[str] = []
    hosts: list[str] = []


class Signal(Model):
    """An observation with a registered name: what can be read off one kind of artefact, and where."""

    name: str
    scope: Scope = Scope()
    facts: dict[str, Any] = {}
    evidence: list[Evidence] = []
    time_s: float | None = Field(default=None, description="seconds since the epoch (or since log start) if known")

    @field_validator("name")
    @classmethod
    def _registered(cls, name: str) -> str:
        if name not in SIGNALS:
            raise ValueError(f"{name!r} is not a registered signal")
        return name


class NextCheck(Model):
    """A call that would separate what is still open."""

    tool: str
    arguments: dict[str, Any] = {}
    why: str


class Report(Model):
    """What all reports have in common."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    tool: str
    status: str
    summary: str
    gaps: list[str] = []
    next_checks: list[NextCheck] = []


class Culprits(Model):
    """Where the cause is; never the victims."""

    ranks: list[int] = []
    gpus: list[str] = []
    links: list[str] = []
    hosts: list[str] = []


class Candidate(Model):
    """A failure mode that may be the cause."""

    failure_mode: str
    confidence: Annotated[float, Field(ge=0, le=1)]


class RuledOut(Model):
    """A failure mode that looked possible and is not the cause."""

    failure_mode: str
    because: str


class Recognised(Model):
    """A known message in the logs: what it means, whoever printed it, and the first line that is one."""

    template: str
    means: str
    role: Literal["cause", "symptom", "cascade", "boilerplate", "info", "ambiguous"]
    count: int
    ranks: list[int] = []
    evidence: Evidence


class Verdict(Report):
    """The answer: what failed, on which rank, why, the evidence, what it was not, and the fix."""

    status: VerdictStatus  # pyright: ignore[reportIncompatibleVariableOverride]  # a closed set per tool
    branch: str | None = None
    failure_mode: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1, description="share of verdicts like this one that are right")] = 0.0
    cause: str = ""
    fix: list[str] = []
    culprits: Culprits = Culprits()
    evidence: list[Evidence] = []
    candidates: Annotated[list[Candidate], Field(max_length=5)] = []
    ruled_out: list[RuledOut] = []
    recognised: Annotated[list[Recognised], Field(max_length=8, description="what lines of the logs mean")] = []
    bundle: str | None = Field(default=None, description="of a live triage: the bundle that was judged")


GOOD_STATUSES = frozenset(
    {"healthy", "ok", "not_applicable", "in_step", "valid", "warnings", "collected", "found", "out_of_domain"}
)
BAD_STATUSES = frozenset({"diagnosed", "suspected", "fault", "degraded", "failed", "invalid"})


def exit_code(status: str) -> int:
    """Map a status to the process exit code: 0 good, 1 a fault was found, 3 nothing could be decided."""
    if status in GOOD_STATUSES:
        return 0
    return 1 if status in BAD_STATUSES else 3
