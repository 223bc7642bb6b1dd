"""Judge the facts of processes: stopped, stuck in a file call, near the memory limit, idle between two looks.

One look cannot tell a wait from a hang: what stands still in the only look is marked ``looks: 1``. Nothing here says
that a process is well: a rank that spins in a kernel launch uses CPU time as one that works does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.report import Evidence, Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SIGNALS = 64
MAX_QUOTES = 6
NEAR_LIMIT_SHARE = 0.95
"""Cache that the kernel would give up does not count."""
IDLE_SHARE = 0.01
"""CPU time over time between two looks below which a process did nothing; heartbeat threads use less."""
LEAST_APART_S = 1.0
_OPENS = ("open", "openat", "openat2", "creat")
_READS = frozenset(
    {"read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"}
)
_WRITES = frozenset({"write", "writev", "sendto", "sendmsg", "sendmmsg", "connect", "sendfile", "splice"})
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_AT_WORK = ("rank", "dataloader worker")
"""Helpers and launchers wait at pipes by design."""

Record = tuple[str, "Mapping[str, Any]"]


@dataclass
class ProcFindings:
    """What the facts show; ``rank_of_pid`` maps process ids to ranks where only one host has that id."""

    signals: list[Signal] = field(default_factory=list[Signal])
    rank_of_pid: dict[int, int] = field(default_factory=dict[int, int])
    ranks: set[int] = field(default_factory=set[int])
    notes: list[str] = field(default_factory=list[str])


def analyze(records: Sequence[Record]) -> ProcFindings:
    """Judge facts of processes of one job, given as (artefact name, what the reader returned)."""
    found = ProcFindings()
    processes = _by_process(records)
    for name, facts in records:
        found.notes.extend(f"{clean_text(name)}: {clean_text(str(note))}" for note in facts["notes"][:4])
    hosts: dict[int, set[str | None]] = {}
    for looks in processes:
        hosts.setdefault(looks[-1][1]["pid"], set()).add(looks[-1][1]["host"])
    for looks in processes:
        facts = looks[-1][1]
        if facts["rank"] is not None and facts["role"] != "launcher":
            found.ranks.add(facts["rank"])
            if facts["role"] == "rank" and len(hosts[facts["pid"]]) == 1:
                found.rank_of_pid[facts["pid"]] = facts["rank"]
        if facts["role"] != "launcher":
            found.signals += [*_stopped(looks), *_network_read(looks), *_fifo(looks), *_other_end(looks)]
    found.signals += _idle(processes)
    found.signals += _near_limit(processes)
    if len(found.signals) > MAX_SIGNALS:
        found.notes.append(f"{len(found.signals)} observations of processes: only the first {MAX_SIGNALS} are listed")
        found.signals = found.signals[:MAX_SIGNALS]
    return found


def _by_process(records: Sequence[Record]) -> list[list[Record]]:
    """The looks at each process in order of time; a pid alone names none, as pids are given again."""
    processes: dict[tuple[object, ...], list[Record]] = {}
    for record in sorted(records, key=lambda r: (r[1]["time_s"] or 0.0, r[0])):
        facts = record[1]
        processes.setdefault((facts["host"], facts["pid"], facts["start_ticks"]), []).append(record)
    return list(processes.values())


def _stopped(looks: Sequence[Record]) -> list[Signal]:
    """Stopped in every look: a debugger or a dumper that somebody else ran beside us may hold it in one."""
    if not all(_is_stopped(facts) for _, facts in looks):
        return []
    facts = looks[-1][1]
    name = "proc.stopped"
    frozen = bool(facts["memory"] and facts["memory"]["frozen"])
    keys = ["state", *(["tracer_pid"] if facts["tracer_pid"] else []), *(["memory"] if frozen else [])]
    details = {"state": facts["state"], "frozen": frozen, "tracer_pid": facts["tracer_pid"] or None}
    return [_signal(name, looks, {**details, "tracer_name": facts["tracer_name"]}, keys)]


def _is_stopped(facts: Mapping[str, Any]) -> bool:
    if facts["state"] in ("T", "t"):
        return not facts["tracer_is_ours"]
    return bool(facts["memory"] and facts["memory"]["frozen"])


def _network_read(looks: Sequence[Record]) -> list[Signal]:
    if not all(f["state"] == "D" and f["call"] and f["call"]["network_file_system"] for _, f in looks):
        return []
    if len({(facts["call"]["name"], facts["call"]["path"]) for _, facts in looks}) > 1:
        return []
    call = looks[-1][1]["call"]
    details = {"call": call["name"], "path": call["path"], "file_system": call["file_system"]}
    details["wchan"] = looks[-1][1]["wchan"]
    return [_signal("proc.uninterruptible_on_network_fs", looks, details, ["state", "call"])]


def _fifo(looks: Sequence[Record]) -> list[Signal]:
    calls = [facts["call"] for _, facts in looks]
    if not all(call and call["name"] in _OPENS and call["path_kind"] == "fifo" for call in calls):
        return []
    if len({call["path"] for call in calls}) > 1:
        return []
    return [_signal("proc.blocked_in_open_of_fifo", looks, {"path": calls[-1]["path"]}, ["call", "wchan"])]


def _other_end(looks: Sequence[Record]) -> list[Signal]:
    """A read or write of one pipe, socket or terminal in every look: not storage but somebody else keeps it waiting."""
    calls = [facts["call"] for _, facts in looks]
    if looks[-1][1]["role"] not in _AT_WORK or not all(call and call["path"] for call in calls):
        return []
    call = calls[-1]
    kind = "terminal" if call["path"].startswith(_TERMINALS) else call["path_kind"]
    if kind not in ("fifo", "pipe", "socket", "terminal") or call["name"] not in _READS | _WRITES:
        return []
    if len({(each["name"], each["path"]) for each in calls}) > 1:
        return []
    details = {"call": call["name"], "path": call["path"], "kind": "pipe" if kind == "fifo" else kind}
    details["writes"] = call["name"] in _WRITES
    return [_signal("proc.waits_for_other_end", looks, details, ["call", "wchan"])]


def _idle(processes: Sequence[Sequence[Record]]) -> list[Signal]:
    """Ranks that used no CPU time between the first and the last look, in one signal."""
    name = "proc.no_cpu_progress"
    ranks: set[int] = set()
    evidence: list[Evidence] = []
    apart: list[float] = []
    n_looked = 0
    for looks in processes:
        (_, first), (artefact, last) = looks[0], looks[-1]
        if last["role"] != "rank" or None in (first["cpu_s"], last["cpu_s"], first["time_s"], last["time_s"]):
            continue
        seconds = last["time_s"] - first["time_s"]
        if seconds < LEAST_APART_S:
            continue
        n_looked += 1
        if last["rank"] is not None and last["cpu_s"] - first["cpu_s"] <= seconds * IDLE_SHARE:
            ranks.add(last["rank"])
            apart.append(seconds)
            evidence += [*_quotes(looks[0][0], first, ["cpu_s"], name), *_quotes(artefact, last, ["cpu_s"], name)]
    if not ranks:
        return []
    facts: dict[str, Any] = {"seconds": round(min(apart), 1), "n_ranks": n_looked, "all_ranks": len(ranks) == n_looked}
    return [Signal(name=name, scope=Scope(ranks=sorted(ranks)), facts=facts, evidence=evidence[:MAX_QUOTES])]


def _near_limit(processes: Sequence[Sequence[Record]]) -> list[Signal]:
    """One signal a control group; the ranks in it share what is left."""
    groups: dict[tuple[object, object], list[Record]] = {}
    for looks in processes:
        record = looks[-1]
        memory = record[1]["memory"]
        if record[1]["role"] != "launcher" and memory and memory["limit_bytes"] and memory["current_bytes"]:
            groups.setdefault((record[1]["host"], memory["path"]), []).append(record)
    signals: list[Signal] = []
    for members in groups.values():
        fullest = max(members, key=lambda record: _share(record[1]["memory"]))
        memory = fullest[1]["memory"]
        if _share(memory) >= NEAR_LIMIT_SHARE:
            details = {key: memory[key] for key in ("limit_bytes", "current_bytes", "oom_kills")}
            signal = _signal(
                "proc.near_memory_limit", [fullest], {**details, "share": round(_share(memory), 3)}, ["memory"]
            )
            ranks = {facts["rank"] for _, facts in members if facts["rank"] is not None}
            signals.append(
                signal.model_copy(update={"scope": signal.scope.model_copy(update={"ranks": sorted(ranks)})})
            )
    return signals


def _share(memory: Mapping[str, Any]) -> float:
    return (memory["current_bytes"] - (memory["inactive_file_bytes"] or 0)) / memory["limit_bytes"]


def _signal(name: str, looks: Sequence[Record], details: Mapping[str, Any], keys: Sequence[str]) -> Signal:
    artefact, facts = looks[-1]
    told = {key: value for key, value in details.items() if value is not None}
    told |= {"role": facts["role"], "looks": len(looks), "pids": [facts["pid"]]}
    ranks = [facts["rank"]] if facts["rank"] is not None else []
    hosts = [facts["host"]] if facts["host"] else []
    return Signal(name=name, scope=Scope(ranks=ranks, hosts=hosts), facts=told,
                  evidence=_quotes(artefact, facts, keys, name))  # fmt: skip


def _quotes(artefact: str, facts: Mapping[str, Any], keys: Sequence[str], signal: str) -> list[Evidence]:
    quotes: Mapping[str, str] = facts["quotes"]
    return [
        Evidence(artefact=artefact, where=f"/{key}", quote=quotes[key], signal=signal)
        for key in keys
        if quotes.get(key)
    ]
