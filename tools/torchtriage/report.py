"""What every tool returns: evidence, signals, the report base, the verdict, and the registry of signal names.

Everything here leaves the program as JSON, so everything here is a pydantic model. Nothing here judges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SCHEMA_VERSION = "1"

RankState = Literal[
    "in_collective", "waiting_on_gpu", "data_loading", "lock_wait", "network_io", "file_io", "checkpointing",
    "compiling", "garbage_collecting", "python_running", "native_running", "sleeping", "stopped", "exited",
    "unreadable",
]  # fmt: skip

DivergenceKind = Literal[
    "collective_missing", "collective_extra", "type_mismatch", "size_mismatch", "dtype_mismatch", "order_deadlock",
    "p2p_mismatch", "behind_on_enqueue", "behind_on_complete", "all_joined_none_finished", "dump_missing",
]  # fmt: skip

VerdictStatus = Literal["diagnosed", "suspected", "healthy", "inconclusive", "out_of_domain"]

DIAGNOSED_FROM = 0.8
SUSPECTED_FROM = 0.4


class SignalSpec(BaseModel):
    """What a registered signal means and what it says about the job's health."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    meaning: str
    health: Literal["trouble", "neutral", "good"]
    detail: str = ""
    """The signal's facts in words, for one line; used when all names are known."""


def _spec(health: Literal["trouble", "neutral", "good"], meaning: str, detail: str = "") -> SignalSpec:
    return SignalSpec.model_construct(meaning=meaning, health=health, detail=detail)


# One registry lists every signal that an analyzer may emit. "trouble" forbids healthy; "good" argues for it.
SIGNALS: dict[str, SignalSpec] = {
    # logs
    "log.python_exception": _spec("trouble", "a rank ended with an uncaught Python exception", "{type}: {message}"),
    "log.exception_handled": _spec("neutral", "a rank caught an exception and went on"),
    "log.process_exit": _spec(
        "trouble", "a launcher reports a process that ended with a failure or a signal", "exit code {told_exitcode}"
    ),
    "log.end_recovered": _spec(
        "neutral", "a process ended with a failure, the launcher restarted the job, and it then finished", "{signal}"
    ),
    "log.native_crash": _spec(
        "trouble", "a process crashed in native code (a signal, an uncaught C++ exception, a damaged heap)", "{signal}"
    ),
    "log.watchdog_timeout": _spec(
        "trouble",
        "a process-group watchdog reports a collective that did not finish",
        "{operation}, sequence number {seq}",
    ),
    "log.collectives_differ": _spec(
        "trouble",
        "at one sequence number of one group, ranks report different operations or sizes",
        "number {seq} of group {group}: {sides}",
    ),
    "log.behind_on_enqueue": _spec(
        "neutral",
        "a rank never issued the collective that its peers wait in",
        "{operation} number {seq} of group {group}; its last was {last_enqueued}; {waiting}",
    ),
    "log.rank_without_timeout": _spec(
        "neutral",
        "a rank reports no time-out where all its peers do, so it did not wait with them",
        "{waiting} in {operation} number {seq}",
    ),
    "log.waits_alone": _spec(
        "neutral", "one rank waits in a collective that none of its peers joined", "{operation} number {seq}"
    ),
    "log.completed_on_some": _spec(
        "neutral",
        "ranks finished a collective that others still wait in",
        "{operation} number {seq}: {done} finished it, {waiting}",
    ),
    "log.all_joined_none_finished": _spec(
        "neutral", "all ranks joined a collective and none finished it", "{operation} number {seq} on {n_ranks} ranks"
    ),
    "log.two_groups_cross": _spec(
        "neutral",
        "ranks wait for each other in two process groups",
        "{operation} number {seq} of group {group}, {other_operation} number {other_seq} of group {other_group}",
    ),
    "log.rank_silent": _spec(
        "neutral", "a rank prints nothing at all while its peers print", "{waiting} in {operation} number {seq}"
    ),
    "log.desync_report": _spec("trouble", "a desync report names ranks that did not join", "number {seq}"),
    "log.heartbeat_lost": _spec("trouble", "nothing was heard from a rank's watchdog thread: it is blocked itself"),
    "log.store_gone": _spec("neutral", "the store of the job could not be reached any more: its process had ended"),
    "log.gloo_timeout": _spec("trouble", "a Gloo operation did not finish in time", "{operation}, {timeout_ms} ms"),
    "log.barrier_late": _spec("trouble", "ranks did not come to a monitored barrier in time", "{timeout_ms} ms"),
    "log.init_wait": _spec(
        "trouble", "ranks waited in vain for others when the job or a group was set up", "{joined} of {expected} came"
    ),
    "log.store_timeout": _spec("neutral", "a wait for a key of the job's store expired"),
    "log.cuda_out_of_memory": _spec(
        "trouble", "the CUDA allocator could not serve a request, and the rank ended", "{requested_bytes} asked for"
    ),
    "log.nonfinite_metric": _spec("trouble", "a training metric became NaN or infinite", "{metric} {first_seen}"),
    "log.metric_diverged": _spec("trouble", "a training metric grew many times over before it became non-finite"),
    "log.metric_outlier": _spec(
        "trouble",
        "a number that is the same on all ranks and steps differs at one rank and step",
        "{metric} {value} against {usual} at step {step}",
    ),
    "log.metric_spike": _spec(
        "neutral", "a loss or gradient norm jumped and came back", "{metric} {value} against {usual} at step {step}"
    ),
    "log.loss_exactly_zero": _spec(
        "trouble", "a loss is exactly zero for several steps, to the end of the log", "{metric} from step {step} on"
    ),
    "log.loss_scale_collapsed": _spec(
        "trouble", "the fp16 loss scale was lowered step by step to its minimum", "{from} to {to} by step {step}"
    ),
    "log.step_time_jump": _spec(
        "trouble", "steps take longer from one step on, for good", "{from_s} s to {to_s} s at step {step}"
    ),
    "log.step_time_drift": _spec(
        "trouble", "steps take longer and longer over the whole run", "{from_s} s to {to_s} s by step {step}"
    ),
    "log.periodic_stall": _spec(
        "neutral", "every so many steps, one is several times slower", "every {every_steps} steps, {factor} times"
    ),
    "log.throughput_drop": _spec(
        "trouble", "throughput fell and stayed low, or fell bit by bit", "{metric} {from} to {to} at step {step}"
    ),
    "log.slow_rank": _spec(
        "trouble",
        "a rank's own part of the step is longer than its peers', nearly always",
        "{metric}: {own_s} s against {peers_s} s, of steps of {step_s} s",
    ),
    "log.memory_growth": _spec(
        "trouble", "memory grew step after step over most of the run", "{metric}: {bytes_per_step} bytes per step"
    ),
    "log.left_loop_early": _spec(
        "neutral", "a rank did fewer steps than its peers and then went on to what follows the loop"
    ),
    "log.stopped_early": _spec("neutral", "a rank's last step is earlier than its peers' and it printed nothing after"),
    "log.step_skipped": _spec("neutral", "a rank lacks a step that its peers printed, and went on to later ones"),
    "log.done_before_peers": _spec(
        "neutral", "a rank did all its steps and went on while its peers, with as many steps, hung"
    ),
    "log.steps_even": _spec("good", "all ranks did the same steps, with finite metrics"),
    "log.finished": _spec("good", "all ranks printed that they finished"),
    "log.finished_on_some": _spec("neutral", "some ranks printed that they finished, and others did not"),
    "log.pattern": _spec("neutral", "a line matches a text that a playbook entry names"),
    "log.template": _spec("neutral", "a line is a message whose meaning is known"),
    # a text in words
    "text.reads_like": _spec("neutral", "a text uses the words of one playbook entry"),
    # what a person says of the job
    "said.fails": _spec("trouble", "the text says that something fails"),
    "said.goes_well": _spec("good", "the text says that the job goes well"),
    "said.asks_if_normal": _spec("neutral", "the text asks whether something is normal"),
    "said.busy_at_idle_power": _spec("neutral", "GPUs are said to be busy at little power: they spin in a wait"),
    "said.one_rank_differs": _spec("neutral", "one rank is said to differ from the others", "rank {rank}"),
    "said.only_on_several_nodes": _spec("neutral", "it is said to work on one node"),
    "said.after_resume": _spec("neutral", "it is said to come with a resumed run"),
    "said.after_upgrade": _spec("neutral", "it is said to come with another version"),
    "said.at_epoch_end": _spec("neutral", "it is said to come at the end of an epoch"),
    "said.while_saving": _spec("neutral", "it is said to come with saving"),
    "said.while_evaluating": _spec("neutral", "it is said to come with an evaluation"),
    "said.at_regular_times": _spec("neutral", "it is said to come at regular times"),
    "said.loss_exactly_zero": _spec("neutral", "the loss is said to be exactly zero"),
    "said.setting_makes_it_go_away": _spec("neutral", "a setting is said to make it go away", "{setting}"),
    # stacks: the state of a rank's main thread, for the ranks of which it is true
    **{
        f"stacks.{state}": _spec("neutral", f"ranks whose main thread is {words}")
        for state, words in {
            "in_collective": "inside a call that issues a collective",
            "waiting_on_gpu": "waiting for the device",
            "data_loading": "waiting for its DataLoader",
            "lock_wait": "waiting for a lock, a queue or another thread",
            "network_io": "in a network call",
            "file_io": "in a file or storage call",
            "checkpointing": "writing or reading a checkpoint",
            "compiling": "in a compiler or autotuner",
            "garbage_collecting": "in the garbage collector",
            "python_running": "running Python code",
            "native_running": "running native code",
            "sleeping": "in a sleep",
            "stopped": "stopped by a signal",
            "exited": "gone",
            "unreadable": "not readable",
        }.items()
    },
    "stacks.still": _spec("neutral", "ranks whose main thread stands at the same frames in two looks"),
    "stacks.moving": _spec("neutral", "ranks whose main thread is elsewhere in the user's code in a second look"),
    "stacks.different_place": _spec("neutral", "ranks that wait at another place of the program than most ranks"),
    # what the kernel says of processes
    "proc.stopped": _spec(
        "trouble", "a process of a rank is stopped by a signal, a tracer or a frozen control group", "state {state}"
    ),
    "proc.uninterruptible_on_network_fs": _spec(
        "neutral", "an uninterruptible call on a network file system", "{call} of {path} on {file_system}"
    ),
    "proc.blocked_in_open_of_fifo": _spec("neutral", "a process waits in the open of a FIFO", "{path}"),
    "proc.waits_for_other_end": _spec(
        "neutral", "a process waits in a read or write for whoever is at the other end", "{call} of a {kind}: {path}"
    ),
    "proc.near_memory_limit": _spec(
        "neutral", "a control group uses nearly all memory that it may", "{share} of {limit_bytes} bytes"
    ),
    "proc.no_cpu_progress": _spec("neutral", "ranks used no CPU time between two looks", "in {seconds} s"),
    # nvidia-smi
    "gpu.spinning": _spec(
        "neutral", "GPUs are busy at little power, as with a kernel that waits", "{power_share_max} of the power limit"
    ),
    "gpu.idle": _spec("neutral", "GPUs run nothing", "{n_gpus} of {n_judged}"),
    "gpu.throttled": _spec(
        "trouble", "a GPU at work runs at a clock far below its own or its peers'", "{reason}, {sm_mhz} MHz"
    ),
    "gpu.ecc_uncorrected": _spec(
        "trouble", "a GPU counts uncorrectable memory errors, or rows wait to be replaced", "{errors} errors"
    ),
    "gpu.foreign_memory": _spec(
        "neutral", "processes that are none of the job's hold memory of a rank's GPU", "{share} of it"
    ),
    "gpu.fell_off": _spec("trouble", "nvidia-smi cannot reach a GPU any more", "{bus}"),
    "gpu.smi_hangs": _spec("trouble", "nvidia-smi did not answer in time: a GPU or the driver does not answer"),
    # flight recorder
    "flight.collective_missing": _spec("trouble", "a rank lacks one call that its peers issued; then they agree again"),
    "flight.collective_extra": _spec("trouble", "a rank issued one call that its peers lack; then they agree again"),
    "flight.type_mismatch": _spec("trouble", "ranks issued different operations at one position of a group"),
    "flight.size_mismatch": _spec("trouble", "ranks issued one operation with sizes that do not fit together"),
    "flight.dtype_mismatch": _spec("trouble", "ranks issued one operation with different dtypes"),
    "flight.order_deadlock": _spec("trouble", "ranks wait for each other in two or more groups"),
    "flight.p2p_mismatch": _spec("trouble", "a send has no matching receive, or the other way round"),
    "flight.behind_on_enqueue": _spec("neutral", "a rank has enqueued fewer collectives of a group than its peers"),
    "flight.behind_on_complete": _spec("neutral", "a rank has completed fewer collectives of a group than its peers"),
    "flight.all_joined_none_finished": _spec("neutral", "all ranks joined a collective and none finished it"),
    "flight.dump_missing": _spec("neutral", "a member of a group left no dump"),
    "flight.waits_young": _spec(
        "neutral", "no unfinished call had waited long when the dumps were written", "{oldest_wait_s} s at most"
    ),
    "flight.in_step": _spec("good", "all ranks of all groups issued the same calls, and none is left unfinished"),
    # NCCL RAS
    "ras.operation_counts_differ": _spec("neutral", "ranks of a communicator launched different numbers of operations"),
    "ras.opposite_lag": _spec("trouble", "of two ranks, each is behind the other in one of two communicators"),
    "ras.status_differs": _spec("trouble", "ranks of a communicator are in different states"),
    "ras.missing_ranks": _spec("trouble", "processes of a communicator do not answer"),
    "ras.communicator_error": _spec("trouble", "NCCL recorded an error on ranks of a communicator"),
    "ras.in_step": _spec("neutral", "all ranks of all communicators launched the same numbers of operations"),
    # profiler traces
    "trace.straggler_host": _spec("trouble", "a rank reaches its collectives late while its GPU idles"),
    "trace.straggler_gpu": _spec("trouble", "a rank reaches its collectives late because its GPU computes longer"),
    "trace.balanced": _spec("good", "no rank makes the others wait"),
}


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


class PlaybookReport(Report):
    """Answer of ``playbook``: one entry whole, or the entries that fit best."""

    status: Literal["found", "not_found"]  # pyright: ignore[reportIncompatibleVariableOverride]
    failure_mode: str | None = None
    branch: str | None = None
    text: str = ""
    hits: list[PlaybookHit] = []


GOOD_STATUSES = frozenset(
    {"healthy", "ok", "not_applicable", "in_step", "valid", "warnings", "collected", "found", "out_of_domain"}
)
BAD_STATUSES = frozenset({"diagnosed", "suspected", "fault", "degraded", "failed", "invalid"})


def exit_code(status: str) -> int:
    """Map a status to the process exit code: 0 good, 1 a fault was found, 3 nothing could be decided."""
    if status in GOOD_STATUSES:
        return 0
    return 1 if status in BAD_STATUSES else 3
