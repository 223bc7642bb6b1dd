"""What the tools beside ``triage`` and ``explain_symptom`` return.

Apart from what every verdict needs, as building a model takes about a millisecond. Nothing here judges.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from torchtriage.report import Culprits, Evidence, Model, Report

RankState = Literal[
    "in_collective", "waiting_on_gpu", "data_loading", "lock_wait", "network_io", "file_io", "checkpointing",
    "compiling", "garbage_collecting", "python_running", "native_running", "sleeping", "stopped", "exited",
    "unreadable",
]  # fmt: skip

DivergenceKind = Literal[
    "collective_missing", "collective_extra", "type_mismatch", "size_mismatch", "dtype_mismatch", "order_deadlock",
    "p2p_mismatch", "behind_on_enqueue", "behind_on_complete", "all_joined_none_finished", "dump_missing",
]  # fmt: skip


class RankStack(Model):
    """One rank's main thread in a stack dump; ``frames`` are outermost last, "function (file:line)"."""

    rank: int | None
    pid: int | None
    host: str | None
    state: RankState
    where: str
    frames: list[str]


class StackGroup(Model):
    """Ranks that stand at the same place."""

    ranks: list[int]
    frames: list[str]


class StacksReport(Report):
    """Answer of ``dump_stacks``."""

    status: Literal["fault", "healthy", "inconclusive"]  # pyright: ignore[reportIncompatibleVariableOverride]
    ranks: list[RankStack] = []
    groups: list[StackGroup] = []
    culprits: Culprits = Culprits()
    evidence: list[Evidence] = []
    output_dir: str | None = Field(default=None, description="where the dumps of running ranks were written")


class HotFunction(Model):
    """One function of a recorded process."""

    function: str = Field(description="name and file, without the line")
    line: int | None = Field(default=None, description="the line of it that was sampled most")
    self_share: float = Field(description="of all samples: the function itself was running (or waiting)")
    total_share: float = Field(description="of all samples: it or what it called")


class RankProfile(Model):
    """Where a process spent its time."""

    rank: int | None
    pid: int | None
    host: str | None = None
    artefact: str
    samples: int
    hottest: list[HotFunction]


class ProfileDifference(Model):
    """What one rank does more than most others."""

    rank: int
    function: str
    share: float = Field(description="of the rank's samples, with what the function called")
    others_share: float = Field(description="the median of all ranks; of two ranks, the other's")


class FlamegraphReport(Report):
    """Answer of ``record_flamegraph``: the pictures, the hottest functions and what one rank does alone."""

    status: Literal["collected", "partial", "nothing_found"]  # pyright: ignore[reportIncompatibleVariableOverride]
    ranks: list[RankProfile] = []
    comparison: Literal["differs", "even", "not_compared"] = Field(
        default="not_compared", description="even: no frame stands out between the ranks that were compared"
    )
    compared_ranks: list[int] = Field(default=[], description="those with enough samples to be compared")
    differences: list[ProfileDifference] = []
    output_dir: str | None = None


class CollectReport(Report):
    """Answer of ``collect``: where the bundle is, and what could not be had."""

    status: Literal["collected", "partial", "nothing_found"]  # pyright: ignore[reportIncompatibleVariableOverride]
    bundle: str | None = Field(default=None, description="the folder or archive to give to triage")
    job: str | None = Field(default=None, description="the key of the job that was looked at")
    ranks: list[int] = []
    size_bytes: int = 0
    collected: dict[str, int] = Field(default={}, description="how many files of each kind are in the bundle")


class FlightGroup(Model):
    """A process group as the dumps describe it."""

    name: str
    desc: str
    ranks: list[int]


class Divergence(Model):
    """One way in which ranks of a group are not in step."""

    kind: DivergenceKind
    group: str
    ranks: list[int]
    seq: int | None = None
    collective: str | None = None
    where: str | None = Field(default=None, description="call site, 'function (file:line)', if frames were recorded")
    expected: str | None = Field(default=None, description="what the peers did, with its call site")
    found: str | None = Field(default=None, description="what the ranks did instead, with its call site")
    since: str | None = Field(default=None, description="when the call was made, UTC, by the clock of its host")


class FlightReport(Report):
    """Answer of ``analyze_flight_recorder``; divergences come first mover first."""

    status: Literal["fault", "in_step", "inconclusive"]  # pyright: ignore[reportIncompatibleVariableOverride]
    groups: list[FlightGroup] = []
    divergences: list[Divergence] = []
    culprits: Culprits = Culprits()
    evidence: list[Evidence] = []
    stuck_groups: list[str] = Field(
        default=[],
        max_length=64,
        description="other groups that hold unfinished calls, as a rule because of the first divergence",
    )
    picture: list[str] = Field(default=[], description="the first divergence as a table for a terminal")
    environment: list[str] = Field(default=[], description="what check_env found; empty when it was not asked")


class PlaybookHit(Model):
    """One entry that answers a query."""

    failure_mode: str
    title: str
    branch: str
    score: float


MemoryKind = Literal[
    "activation_peak", "single_large_allocation", "optimizer_state", "parameters", "leak", "fragmentation",
    "other_process", "history_truncated",
]  # fmt: skip


class MemoryHolder(Model):
    """Blocks of one call site and one purpose; ``frames`` start at the call site, innermost first."""

    bytes: int
    blocks: int
    category: str
    sure: Literal["high", "medium", "low"]
    site: str
    frames: list[str] = []


class MemoryRequest(Model):
    """An allocation that failed."""

    event: int
    requested_bytes: int
    device_free_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    stream: int
    site: str
    others_hold_bytes: int | None = Field(default=None, description="outside this process's allocator; from logs")


class MemoryDevice(Model):
    """One device in one snapshot. Holders and categories are those of the moment that is named."""

    artefact: str
    rank: int | None
    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int | None = Field(description="position in device_traces; null: before the first event that is left")
    peak_time_us: int | None = None
    fragmentation_bytes: int = Field(description="reserved and free: at the out-of-memory, else at the end")
    largest_free_bytes: int
    private_pool_bytes: int = 0
    expandable_would_free_bytes: int = Field(
        default=0, description="free in segments that hold live blocks: what expandable_segments could give back"
    )
    failed_requests: list[MemoryRequest] = []
    moment: Literal["oom", "peak"]
    by_category: dict[str, int] = {}
    top_holders: list[MemoryHolder] = []
    n_events: int = 0
    n_steps: int = 0
    history_truncated: bool | None = Field(default=None, description="null: it began late, and nothing tells")
    timeline: list[tuple[int, int, int]] = Field(default=[], description="samples of (event, allocated, reserved)")


class MemoryFinding(Model):
    """Something that is wrong with a device's memory; the cause of an out-of-memory comes first."""

    kind: MemoryKind
    artefact: str
    rank: int | None
    device: int
    bytes: int
    sure: Literal["high", "medium", "low"]
    says: str
    call_site: str = ""
    frames: list[str] = []
    facts: dict[str, Any] = {}


class MemoryFix(Model):
    """What to change, and the bytes that it would free in this snapshot where that can be told."""

    action: str
    frees_bytes: int | None = None
    unless: str = ""


class MemoryChange(Model):
    """A call site that holds more in one snapshot than in another."""

    site: str
    category: str
    before_bytes: int
    after_bytes: int
    before_blocks: int = 0
    after_blocks: int = 0


class MemoryComparison(Model):
    """Two moments of one rank, or one rank against its peers (whose typical value is ``before``)."""

    of: Literal["moments", "ranks"]
    rank: int | None = None
    device: int | None = None
    before: str
    after: str
    more_bytes: int
    last_rank: bool = Field(default=False, description="of ranks: it is the last one, as the last pipeline stage is")
    changes: list[MemoryChange] = []


class MemoryReport(Report):
    """Answer of ``memory_snapshot``."""

    status: Literal["fault", "healthy", "inconclusive"]  # pyright: ignore[reportIncompatibleVariableOverride]
    devices: list[MemoryDevice] = []
    findings: list[MemoryFinding] = []
    fixes: list[MemoryFix] = []
    comparisons: list[MemoryComparison] = []
    pinned_host_bytes: int = 0
    culprits: Culprits = Culprits()
    evidence: list[Evidence] = []
    written: list[str] = Field(default=[], description="files that were written, when asked for")


class PlaybookReport(Report):
    """Answer of ``playbook``: one entry whole, or the entries that fit best."""

    status: Literal["found", "not_found"]  # pyright: ignore[reportIncompatibleVariableOverride]
    failure_mode: str | None = None
    branch: str | None = None
    text: str = ""
    hits: list[PlaybookHit] = []
