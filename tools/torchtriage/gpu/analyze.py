"""Judge answers of nvidia-smi: which ranks' GPUs spin, rest, run slow, have failed, or hold another's memory.

Each answer is one moment. A kernel that waits for its peers keeps the GPU busy at little power, and so does a job that
is too small for its card: that is told, and never as trouble. Whose a GPU is, the process table tells; where it shows
no rank (a container of its own), local ranks do when they are as many as the GPUs, marked ``sure: false``. The use of
a GPU that others share says nothing of its rank, unless it is 0 %. A GPU without values is left out, not called well.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_line, quote_value
from torchtriage.gpu.read import REASON_BITS
from torchtriage.gpu.thresholds import (
    BUSY_PERCENT,
    FOREIGN_MEMORY_SHARE,
    SLOW_CLOCK_SHARE,
    SPINNING_POWER_SHARE,
    THROTTLED_CLOCK_SHARE,
    WORKS_PERCENT,
)
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.report import Evidence

Answer = tuple[str, "Mapping[str, Any]"]
MAX_SIGNALS = 64
MAX_QUOTES = 6
MAX_PIDS = 32
MAX_GPUS_OF_AN_ANSWER = 256
"""Distinct ones: a node has 16 at the most, and an answer may repeat them as often as it was asked."""
_NAMES = ("uuid", "bus", "index")
_PARTS = frozenset({"gpu", "proc", "again"})
# In the words of nvidia-smi -q; that of a cause before the one that comes with each of them.
_REASON_WORDS = {
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
    "hw_slowdown": "HW Slowdown",
}


@dataclass(frozen=True)
class Process:
    """A process of the job on this node, by its facts."""

    pid: int
    node: str
    """As :func:`node_of` gives it."""
    rank: int | None
    local_rank: int | None
    is_rank: bool
    """Whether it is the rank itself and no child or launcher."""


@dataclass
class GpuFindings:
    """What the answers show; ``not_judged`` are names of those that nothing here reads."""

    signals: list[Signal] = field(default_factory=list[Signal])
    notes: list[str] = field(default_factory=list[str])
    not_judged: list[str] = field(default_factory=list[str])
    names: dict[str, str] = field(default_factory=dict[str, str], compare=False)
    """Product names by node (the last part of its name) and bus id, ``node/0000:3b:00.0``; of one node by bus id."""
    ranks: dict[str, list[int]] = field(default_factory=dict[str, list[int]], compare=False)
    """The ranks that are known to be on a GPU, by the same keys."""


@dataclass
class _Gpu:
    """One GPU of one node, with all rows about it in the order of their answers."""

    node: str
    uuid: str | None = None
    bus: str | None = None
    index: float | None = None
    rows: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, "Mapping[str, Any]"]])
    ranks: set[int] = field(default_factory=set[int])
    sure: bool = True
    foreign: dict[int, tuple[str, Mapping[str, Any]]] = field(
        default_factory=dict[int, tuple[str, "Mapping[str, Any]"]]
    )

    @property
    def name(self) -> str:
        return self.bus or self.uuid or f"GPU {int(self.index or 0)}"

    def readings(self, key: str) -> list[float]:
        return [row[key] for _, row in self.rows if row[key] is not None]

    def shared(self) -> bool:
        """Whether its use is not that of one rank alone."""
        return bool(self.foreign) or len(self.ranks) > 1


def node_of(name: str) -> str:
    """The folder of the node to which an artefact of a bundle belongs."""
    parts = name.split("/")[:-1]
    while parts and parts[-1] in _PARTS:
        del parts[-1]
    return "/".join(parts)


def analyze(answers: Sequence[Answer], processes: Sequence[Process]) -> GpuFindings:
    """Judge answers, given as (artefact name, what the reader returned).

    Args:
        answers: of one or several nodes.
        processes: what is known of the job's processes. One whose node is "" may be anywhere.
    """
    found = GpuFindings()
    gpus = _merge(answers, found.notes)
    for name, answer in answers:
        found.notes += [f"{clean_text(name)}: {clean_text(str(note))}" for note in answer["notes"][:4]]
        if answer["form"] == "other":
            found.not_judged.append(clean_text(name))
    nodes: dict[str, tuple[list[_Gpu], list[Answer], list[Process]]] = {gpu.node: ([], [], []) for gpu in gpus}
    for gpu in gpus:
        nodes[gpu.node][0].append(gpu)
    for answer in answers:
        if (node := nodes.get(node_of(answer[0]))) is not None:
            node[1].append(answer)
    for process in processes:
        # One whose node is not known is that of the only one.
        if (node := nodes.get(process.node)) is not None or (not process.node and len(nodes) == 1):
            (node or next(iter(nodes.values())))[2].append(process)
    for _, (of_node, told, here) in sorted(nodes.items(), key=lambda each: each[0]):
        _assign(of_node, told, here)
    _tell_others(gpus, found)
    found.signals += _fell_off(gpus, answers)
    for gpu in gpus:
        found.signals += [*_uncorrected(gpu), *_foreign_memory(gpu)]
    found.signals += _throttled(gpus)
    found.signals += _use(gpus)
    if len(found.signals) > MAX_SIGNALS:
        found.notes.append(f"{len(found.signals)} observations of GPUs: only the first {MAX_SIGNALS} are listed")
        found.signals = found.signals[:MAX_SIGNALS]
    return found


def _tell_others(gpus: Sequence[_Gpu], found: GpuFindings) -> None:
    one_node = len({gpu.node for gpu in gpus}) == 1
    for gpu in gpus:
        if gpu.bus is None:
            continue
        names = [str(row["name"]) for _, row in gpu.rows if row["name"]]
        for key in (
            f"{gpu.node.rpartition('/')[2]}/{short_bus(gpu.bus)}",
            *((short_bus(gpu.bus),) if one_node else ()),
        ):
            if names:
                found.names[key] = names[0]
            if gpu.ranks and gpu.sure:
                found.ranks[key] = sorted(gpu.ranks)


def unanswered(manifests: Sequence[Answer]) -> list[Signal]:
    """``gpu.smi_hangs`` for each node on which nvidia-smi did not come back, by a bundle's manifest."""
    name = "gpu.smi_hangs"
    signals: list[Signal] = []
    for artefact, manifest in manifests:
        by_host: dict[str | None, list[Mapping[str, Any]]] = {}
        for item in manifest["unanswered"]:
            by_host.setdefault(item["host"], []).append(item)
        for host, items in by_host.items():
            evidence = [quote_value(artefact, item["where"], item["error"], name) for item in items[:2]]
            scope = Scope(hosts=[host] if host else [])
            signals.append(Signal(name=name, scope=scope, facts={"n_questions": len(items)}, evidence=evidence))
    return signals[:MAX_SIGNALS]


def _merge(answers: Sequence[Answer], notes: list[str]) -> list[_Gpu]:
    """Rows about one GPU put together, whichever of its names each answer gives."""
    gpus: list[_Gpu] = []
    by_name: dict[tuple[str, str, object], _Gpu] = {}
    for name, answer in answers:
        node = node_of(name)
        of_answer: set[int] = set()
        n_left_out = 0
        for row in answer["gpus"]:
            names = [
                (node, key, short_bus(row[key]) if key == "bus" else row[key]) for key in _NAMES if row[key] is not None
            ]
            known = next((gpu for each in names if (gpu := by_name.get(each)) is not None and _same(gpu, row)), None)
            if len(of_answer) >= MAX_GPUS_OF_AN_ANSWER and (known is None or id(known) not in of_answer):
                n_left_out += 1
                continue
            if known is None:
                known = _Gpu(node)
                gpus.append(known)
            of_answer.add(id(known))
            for each in names:
                by_name.setdefault(each, known)
            known.uuid = known.uuid or row["uuid"]
            known.bus = known.bus or row["bus"]
            known.index = row["index"] if known.index is None else known.index
            known.rows.append((name, row))
        if n_left_out:
            what = f"tells of more than {MAX_GPUS_OF_AN_ANSWER} GPUs: {n_left_out} rows about others were left out"
            notes.append(f"{clean_text(name)}: {what}")
    return gpus


def _same(gpu: _Gpu, row: Mapping[str, Any]) -> bool:
    if gpu.uuid and row["uuid"]:
        return gpu.uuid == row["uuid"]
    if gpu.bus and row["bus"]:
        return short_bus(gpu.bus) == short_bus(row["bus"])
    return gpu.index is not None and gpu.index == row["index"]


def short_bus(bus: str) -> str:
    """A PCI address in one form: its domain has four digits in the kernel log and eight in nvidia-smi."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _assign(gpus: Sequence[_Gpu], answers: Sequence[Answer], processes: Sequence[Process]) -> None:
    """Say of each GPU which ranks have memory on it, and which processes that are not known to be the job's."""
    known = {p.pid: p for p in processes}
    table = [(name, row) for name, answer in answers for row in answer["processes"]]
    of_gpu = {key: gpu for gpu in gpus for key in (gpu.uuid, gpu.bus) if key}
    if any(row["pid"] in known and known[row["pid"]].is_rank for _, row in table):
        for name, row in table:
            gpu, process = of_gpu.get(row["uuid"]), known.get(row["pid"])
            if gpu is None:
                continue
            if process is None:
                before = gpu.foreign.get(row["pid"])
                if before is None or (row["text"] and not before[1]["text"]):
                    gpu.foreign[row["pid"]] = (name, row)
            elif process.rank is not None:
                gpu.ranks.add(process.rank)
        return
    of_local = {p.local_rank: p.rank for p in processes if p.is_rank and p.rank is not None}
    indices = [int(gpu.index) for gpu in gpus if gpu.index is not None]
    if len(indices) == len(gpus) and sorted(of_local, key=str) == sorted(indices, key=str):
        for gpu in gpus:
            gpu.sure = False
            gpu.ranks = {of_local[int(gpu.index or 0)]}


def _signal(name: str, gpus: Sequence[_Gpu], facts: Mapping[str, Any], evidence: Sequence[Evidence]) -> Signal:
    """A signal about ailing GPUs, which are named, and the ranks on them."""
    told = {key: value for key, value in facts.items() if value is not None}
    if any(gpu.ranks and not gpu.sure for gpu in gpus):
        told["sure"] = False
    scope = Scope(
        ranks=sorted({rank for gpu in gpus for rank in gpu.ranks}),
        gpus=sorted({clean_text(gpu.name, 64) for gpu in gpus}),
    )
    return Signal(name=name, scope=scope, facts=told, evidence=list(evidence)[:MAX_QUOTES])


def _quote(artefact: str, row: Mapping[str, Any], key: str, signal: str) -> Evidence:
    where, text = row.get("places", {}).get(key) or (row["where"], row["text"])
    return quote_line(artefact, int(where), str(text), signal)


def _fell_off(gpus: Sequence[_Gpu], answers: Sequence[Answer]) -> list[Signal]:
    name = "gpu.fell_off"
    signals: list[Signal] = []
    for gpu in gpus:
        lost = [(artefact, row) for artefact, row in gpu.rows if row["lost"]]
        if lost:
            signals.append(_signal(name, [gpu], {"bus": gpu.bus}, [_quote(*each, "lost", name) for each in lost[:2]]))
    seen = {(gpu.node, short_bus(gpu.bus)) for gpu in gpus if gpu.bus and any(row["lost"] for _, row in gpu.rows)}
    for artefact, answer in answers:
        for failure in answer["failures"]:
            node, bus = node_of(artefact), failure["bus"]
            if (node, short_bus(bus or "")) in seen:
                continue
            seen.add((node, short_bus(bus or "")))
            gpu = next(
                (g for g in gpus if g.node == node and g.bus and bus and short_bus(g.bus) == short_bus(bus)), None
            )
            about = [gpu] if gpu else [_Gpu(node, bus=bus)] if bus else []
            evidence = [quote_line(artefact, failure["where"], failure["text"], name)]
            signals.append(_signal(name, about, {"bus": bus}, evidence))
    return signals


def _uncorrected(gpu: _Gpu) -> list[Signal]:
    """Errors since the driver was loaded, and rows that wait for a reset or could not be replaced."""
    name = "gpu.ecc_uncorrected"
    count = max(gpu.readings("uncorrected"), default=0)
    pending, failed = (any(row[key] for _, row in gpu.rows) for key in ("remap_pending", "remap_failed"))
    if not count and not pending and not failed:
        return []
    keys = ("uncorrected", "remap_pending", "remap_failed")
    evidence = [_quote(a, row, key, name) for key in keys for a, row in gpu.rows if row[key]]
    facts = {"errors": int(count), "remap_pending": pending, "remap_failed": failed, "bus": gpu.bus}
    return [_signal(name, [gpu], facts, evidence)]


def _foreign_memory(gpu: _Gpu) -> list[Signal]:
    """Memory of processes that are none of the job's, on a GPU that a rank of the job uses."""
    name = "gpu.foreign_memory"
    total = max(gpu.readings("memory_mib"), default=0)
    held = sum(row["memory_mib"] or 0 for _, row in gpu.foreign.values())
    if not gpu.ranks or not total or held < total * FOREIGN_MEMORY_SHARE.value:
        return []
    largest = sorted(gpu.foreign.values(), key=lambda each: -(each[1]["memory_mib"] or 0))
    facts = {
        "share": round(held / total, 3), "mib": int(held), "pids": [row["pid"] for _, row in largest[:MAX_PIDS]],
        "process_name": largest[0][1]["name"], "bus": gpu.bus,
    }  # fmt: skip
    return [_signal(name, [gpu], facts, [_quote(a, row, "", name) for a, row in largest[:MAX_QUOTES]])]


def _throttled(gpus: Sequence[_Gpu]) -> list[Signal]:
    """GPUs at work whose clock was lowered by heat or a power signal, or is far below that of their peers."""
    name = "gpu.throttled"
    signals: list[Signal] = []
    clocks = _clocks_at_work(gpus)
    in_order = {kind: sorted(of_gpu.values()) for kind, of_gpu in clocks.items()}
    for number, gpu in enumerate(gpus):
        for artefact, row in gpu.rows:
            clock, highest = row["sm_mhz"], row["max_sm_mhz"]
            if clock is None or not _at_work(row):
                continue
            reasons = [word for key, word in _REASON_WORDS.items() if (row["reasons"] or 0) & REASON_BITS[key]]
            own = clocks[row["name"]].get(number)
            typical = _median_without(in_order[row["name"]], own)
            n_peers = len(clocks[row["name"]]) - (own is not None)
            slow_for_peers = n_peers > 1 and typical is not None and clock < typical * SLOW_CLOCK_SHARE.value
            lowered = highest and clock < highest * THROTTLED_CLOCK_SHARE.value
            if not (lowered and reasons) and not slow_for_peers:
                continue
            facts = {
                "reason": reasons[0] if reasons else None, "sm_mhz": int(clock), "bus": gpu.bus,
                "max_sm_mhz": int(highest) if highest else None,
                "peers_sm_mhz": int(typical) if typical is not None else None,
            }  # fmt: skip
            keys = ["sm_mhz", *(["reasons"] if reasons else [])]
            signals.append(_signal(name, [gpu], facts, [_quote(artefact, row, key, name) for key in keys]))
            break
    return signals


def _at_work(row: Mapping[str, Any]) -> bool:
    return row["utilisation"] is not None and row["utilisation"] >= WORKS_PERCENT.value


def _clocks_at_work(gpus: Sequence[_Gpu]) -> dict[object, dict[int, float]]:
    """Of each name of GPUs, the clock of each that is at work, by its place in ``gpus``."""
    clocks: dict[object, dict[int, float]] = {}
    for number, gpu in enumerate(gpus):
        for _, row in gpu.rows:
            if row["sm_mhz"] is not None and _at_work(row):
                clocks.setdefault(row["name"], {}).setdefault(number, row["sm_mhz"])
    return clocks


def _median_without(values: Sequence[float], one: float | None) -> float | None:
    """The median of sorted values, one of them left out; None of no value. Takes the same time for any number."""
    at = bisect_left(values, one) if one is not None else len(values)
    n = len(values) - (one is not None)
    if not n:
        return None
    low, high = (values[k + (k >= at)] for k in ((n - 1) // 2, n // 2))
    return (low + high) / 2


def _use(gpus: Sequence[_Gpu]) -> list[Signal]:
    """``gpu.spinning`` and ``gpu.idle``, a signal each; of a GPU that nobody is known to use, its use tells nothing."""
    known = [gpu for gpu in gpus if gpu.ranks]
    judged = [gpu for gpu in known if gpu.readings("utilisation")]
    spinning = [gpu for gpu in judged if not gpu.shared() and all(_spins(row) for _, row in _with_use(gpu))]
    idle = [gpu for gpu in judged if not any(gpu.readings("utilisation"))]
    signals: list[Signal] = []
    for name, members, others in (("gpu.spinning", spinning, idle), ("gpu.idle", idle, spinning)):
        if not members:
            continue
        shares = [_power_share(row) for gpu in members for _, row in _with_use(gpu)]
        n_others = len(known) - len(members)
        facts: dict[str, Any] = {
            "n_gpus": len(members),
            "n_judged": len(judged),
            "all_ranks": not n_others,
            "power_share_max": max((round(share, 3) for share in shares if share is not None), default=None),
        }
        facts["peers_idle" if name == "gpu.spinning" else "peers_spinning"] = 0 < n_others == len(others)
        # Whose use it is says which ranks wait; no GPU is to blame for it, so none is named.
        facts["gpus"] = [clean_text(gpu.name, 64) for gpu in members[:MAX_PIDS]]
        evidence = [_quote(a, row, "utilisation", name) for gpu in members for a, row in _with_use(gpu)[:1]]
        signal = _signal(name, members, facts, evidence)
        signals.append(signal.model_copy(update={"scope": Scope(ranks=signal.scope.ranks)}))
    return signals


def _with_use(gpu: _Gpu) -> list[tuple[str, Mapping[str, Any]]]:
    return [(artefact, row) for artefact, row in gpu.rows if row["utilisation"] is not None]


def _spins(row: Mapping[str, Any]) -> bool:
    share = _power_share(row)
    return row["utilisation"] >= BUSY_PERCENT.value and share is not None and share <= SPINNING_POWER_SHARE.value


def _power_share(row: Mapping[str, Any]) -> float | None:
    draw, limit = row["power_w"], row["power_limit_w"]
    return draw / limit if draw is not None and limit else None
