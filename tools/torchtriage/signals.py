"""The one registry of signal names: what an analyzer may observe, and what it says about the job's health.

A name is ``room.observation``; the kinds that the tools' reports list are names of signals too. Nothing here judges.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


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
    "log.host_memory_refused": _spec(
        "trouble", "memory of the host was refused, and the rank ended", "{requested_bytes} asked for"
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
    "log.version": _spec("neutral", "a log tells a version", "{package} {version}"),
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
    "said.version": _spec("neutral", "the text tells a version", "{package} {version}"),
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
    "proc.version": _spec("neutral", "a bundle tells a version", "{package} {version}"),
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
    # NVLinks, from nvidia-smi
    "nvlink.link_down": _spec("trouble", "NVLinks are down that the GPU should have", "{gpu}"),
    "nvlink.link_slow": _spec("neutral", "NVLinks run below their speed", "{gpu}: {bw_gb_s} of {usual_gb_s} GB/s"),
    "nvlink.errors_grow": _spec(
        "trouble", "error counters of an NVLink grow between two readings", "{gpu} link {link}: {counter} +{growth}"
    ),
    "nvlink.errors_stand_out": _spec(
        "neutral", "error counters of an NVLink stand far out from its peers'", "{gpu} link {link}: {count} {counter}"
    ),
    "nvlink.bit_errors_high": _spec("trouble", "an NVLink has a high bit error rate", "{gpu} link {link}: {counter}"),
    "nvlink.fabric_not_ready": _spec("trouble", "the NVLink fabric is not set up", "{value}"),
    "nvlink.fabric_unhealthy": _spec("trouble", "the driver calls the NVLink fabric unhealthy", "{gpu}: {value}"),
    "nvlink.recovery_wanted": _spec("trouble", "the driver asks for a GPU's recovery", "{gpu}: {value}"),
    # what the kernel says of GPUs and NVSwitches
    "kernel.xid_root": _spec(
        "trouble", "the driver reports a fault of a GPU, or of the job's program on one", "Xid {xid}: {means}"
    ),
    "kernel.xid_other": _spec(
        "neutral", "the driver reports what explains no failure of the job by itself", "Xid {xid}: {means}"
    ),
    "kernel.xid_benign": _spec(
        "neutral", "the driver reports what comes on sound machines too", "Xid {xid}, {count} lines"
    ),
    "kernel.link_marginal": _spec(
        "neutral", "an NVLink reports a raised error rate that it survived", "Xid {xid}, {count} lines"
    ),
    "kernel.links_not_found": _spec("neutral", "the driver could not tell which NVLinks are connected"),
    "kernel.sxid_root": _spec("trouble", "an NVSwitch reports a fatal error", "SXid {sxid}: {means}"),
    "kernel.sxid_other": _spec("neutral", "an NVSwitch reports what it survived", "SXid {sxid}: {means}"),
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
    # memory snapshots
    "memory.out_of_memory": _spec("trouble", "an allocation failed and was recorded", "{requested_bytes} at {site}"),
    "memory.activation_peak": _spec(
        "neutral", "an allocation failed when activations filled the GPU", "{held_bytes} of {allocated_bytes} at {site}"
    ),
    "memory.single_large_allocation": _spec(
        "neutral", "one request as large as a good part of the GPU failed", "{requested_bytes} at {site}"
    ),
    "memory.optimizer_state": _spec("neutral", "an allocation for the optimizer's state failed", "{site}"),
    "memory.parameters": _spec("neutral", "an allocation failed when parameters filled the GPU", "{site}"),
    "memory.leak": _spec(
        "trouble", "what one place allocates is kept from step to step", "{grown_bytes} over {n_steps} steps, {site}"
    ),
    "memory.fragmentation": _spec(
        "neutral",
        "an allocation failed although enough was reserved and free, in pieces or where it could not be used",
        "{requested_bytes} asked for, {free_bytes} free in pieces of at most {largest_free_bytes}",
    ),
    "memory.other_process": _spec("neutral", "others hold the memory that a failed allocation lacked", "{other_bytes}"),
    "memory.history_truncated": _spec("neutral", "a snapshot's history lost its oldest events"),
    "memory.rank_heavier": _spec(
        "neutral", "one rank's peak of memory is far above that of its peers", "{more_bytes} more, for {category}"
    ),
    "memory.steady": _spec("good", "memory does not grow from step to step, and no allocation failed"),
    # profiler traces
    "trace.straggler_host": _spec("trouble", "a rank reaches its collectives late while its GPU idles"),
    "trace.straggler_gpu": _spec("trouble", "a rank reaches its collectives late because its GPU computes longer"),
    "trace.balanced": _spec("good", "no rank makes the others wait"),
}
