"""Compare the ranks of each communicator in RAS answers: who launched less, who does not answer, who reports an error.

Counts are of launches: a call that all ranks launched and none finished looks like all is well (nccl#1730), and calls
made of sends and receives (all-to-all) are not counted. So equal counts never say that a job is healthy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_line, quote_value
from torchtriage.artefacts.pointer import pointer_token
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.report import Evidence

MAX_SIGNALS = 64
MAX_QUOTES = 6
_IN_PROGRESS = 7  # ncclInProgress: not an error
_ERROR_WORDS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument",
                5: "Invalid usage", 6: "Remote process error"}  # fmt: skip

Answer = tuple[str, dict[str, Any]]


@dataclass
class RasFindings:
    """What RAS answers show.

    ``rank_of_pid`` maps process ids to global ranks, from the communicator that holds all processes; ids that occur on
    several hosts are left out.
    """

    signals: list[Signal] = field(default_factory=list[Signal])
    rank_of_pid: dict[int, int] = field(default_factory=dict[int, int])
    notes: list[str] = field(default_factory=list[str])


@dataclass
class _Rank:
    """What is known of one rank of a communicator; the quotes say from where."""

    rank: int
    pid: int | None
    host: str | None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    status: str | None = None
    quotes: dict[str, tuple[str, Any, Any]] = field(default_factory=dict[str, tuple[str, Any, Any]])


@dataclass
class _Communicator:
    """One communicator, all answers merged."""

    name: str
    size: int | None
    ranks: dict[int, _Rank] = field(default_factory=dict[int, _Rank])
    statements: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    missing: dict[int, tuple[_Rank, bool]] = field(default_factory=dict[int, tuple[_Rank, bool]])
    errors: list[tuple[str, str, list[_Rank]]] = field(default_factory=list[tuple[str, str, list[_Rank]]])
    counted: bool = False
    """Whether a JSON answer gave counts for its ranks: then those are used, and text only adds quotes."""


def analyze(answers: Sequence[Answer]) -> RasFindings:
    """Judge RAS answers about one job, given as (artefact name, what the reader returned)."""
    found = RasFindings()
    ordered = sorted(answers, key=lambda a: (a[1]["format"] != "json", a[1]["timestamp"], a[0]))
    for name, answer in ordered:
        found.notes.extend(f"{clean_text(name)}: {clean_text(str(note))}" for note in answer["notes"][:4])
    communicators = _merge(ordered)
    found.rank_of_pid = _rank_of_pid(ordered, communicators)
    signals: list[Signal] = []
    for communicator in communicators.values():
        signals += _errors(communicator, found.rank_of_pid)
        signals += _missing(communicator, found.rank_of_pid)
        signals += _status(communicator, found.rank_of_pid)
        signals += _counts(communicator, found.rank_of_pid)
    signals += _opposite(communicators, found.rank_of_pid)
    signals += _silent_processes(ordered, found.rank_of_pid, signals)
    if not signals and (signal := _in_step(ordered, communicators)) is not None:
        signals.append(signal)
    if len(signals) > MAX_SIGNALS:
        found.notes.append(f"{len(signals)} observations in RAS answers: only the first {MAX_SIGNALS} are listed")
    found.signals = signals[:MAX_SIGNALS]
    return found


def _merge(ordered: Sequence[Answer]) -> dict[str, _Communicator]:
    """Answers about one communicator put together; of several JSON answers the latest counts."""
    merged: dict[str, _Communicator] = {}
    for name, answer in ordered:
        for raw in answer["communicators"]:
            here = merged.setdefault(raw["hash"], _Communicator(raw["hash"], raw["size"]))
            here.size = here.size or raw["size"]
            if answer["format"] == "json":
                _add_json(here, name, raw)
            else:
                _add_text(here, name, raw)
    return dict(sorted(merged.items(), key=lambda item: (-(item[1].size or 0), item[0])))


def _add_json(here: _Communicator, name: str, raw: Mapping[str, Any]) -> None:
    here.ranks, here.missing, here.errors = {}, {}, []
    failed: dict[tuple[str, int], list[_Rank]] = {}
    for row in raw["ranks"]:
        rank = _Rank(row["rank"], row["pid"], row["host"], row["counts"], row["status"])
        rank.quotes = {
            op: (name, f"{row['where']}/collective_counts/{pointer_token(op)}", n) for op, n in row["counts"].items()
        }
        if row["flags"] is not None:
            rank.quotes["status"] = (name, f"{row['where']}/status", row["flags"])
        here.ranks[rank.rank] = rank
        here.counted = here.counted or bool(row["counts"])
        for phase, code in (("initialization", row["init_state"]), ("asynchronous", row["async_error"])):
            if code and code != _IN_PROGRESS:
                failed.setdefault((phase, code), []).append(rank)
    for row in raw["missing"]:
        rank = _Rank(row["rank"], row["pid"], row["host"])
        rank.quotes["missing"] = (name, f"{row['where']}/rank", row["rank"])
        here.missing[rank.rank] = (rank, row["dead"])
    here.errors = [
        (phase, _ERROR_WORDS.get(code, "Unexpected error"), ranks) for (phase, code), ranks in failed.items()
    ]


def _add_text(here: _Communicator, name: str, raw: Mapping[str, Any]) -> None:
    # Text answers carry no time, and counts of two moments must not be compared: the last one stands.
    here.statements = []
    if not here.counted:
        here.ranks = {}
    for statement in raw["statements"]:
        here.statements.append((name, statement))
        members = [_from_text(name, statement, member) for member in statement["members"]]
        if statement["kind"] == "missing":
            for rank in members:
                here.missing.setdefault(rank.rank, (rank, False))
        elif statement["kind"] == "error" and not any(
            e[:2] == (statement["about"], statement["value"]) for e in here.errors
        ):
            here.errors.append((statement["about"], statement["value"], members))
        elif not here.counted:
            for rank in members:
                known = here.ranks.setdefault(rank.rank, rank)
                if statement["kind"] == "count":
                    known.counts[statement["about"]] = statement["value"]
                elif statement["kind"] == "status":
                    known.status = statement["value"]
                known.quotes.update(rank.quotes)


def _from_text(name: str, statement: Mapping[str, Any], member: Mapping[str, Any]) -> _Rank:
    rank = _Rank(member["rank"], member["pid"], member["host"])
    key = statement["about"] if statement["kind"] == "count" else statement["kind"]
    rank.quotes[key] = (name, member["where"], member["text"])
    return rank


def _rank_of_pid(ordered: Sequence[Answer], communicators: Mapping[str, _Communicator]) -> dict[int, int]:
    """Global ranks by process id, from communicators that hold the whole job: there rank numbers are the job's."""
    everyone = {_process(r) for c in communicators.values() for r in _known(c) if r.pid is not None}
    # A text answer lists few ranks, but says how many GPUs the job has.
    n_gpus = max((answer["n_gpus"] for _, answer in ordered), default=0)
    largest = max((c.size or 0 for c in communicators.values()), default=0)
    ranks: dict[tuple[str | None, int | None], set[int]] = {}
    for communicator in communicators.values():
        here = _known(communicator)
        whole = communicator.size == n_gpus if n_gpus else {_process(rank) for rank in here} >= everyone
        if communicator.size == largest > 1 and whole:
            for rank in here:
                ranks.setdefault(_process(rank), set()).add(rank.rank)
    of_pid: dict[int, set[int]] = {}
    for (_, pid), numbers in ranks.items():
        if pid is not None:
            of_pid.setdefault(pid, set()).update(numbers)
    return {pid: next(iter(numbers)) for pid, numbers in sorted(of_pid.items()) if len(numbers) == 1}


def _known(communicator: _Communicator) -> list[_Rank]:
    """Every rank that an answer speaks of."""
    failed = [rank for _, _, ranks in communicator.errors for rank in ranks]
    return [*communicator.ranks.values(), *(rank for rank, _ in communicator.missing.values()), *failed]


def _process(rank: _Rank) -> tuple[str | None, int | None]:
    return (rank.host, rank.pid)


def _signal(
    name: str,
    communicator: _Communicator,
    ranks: Sequence[_Rank],
    rank_of_pid: Mapping[int, int],
    facts: dict[str, Any],
    evidence: list[Evidence],
) -> Signal:
    """A signal in global ranks; ranks that cannot be mapped stand in the facts as process ids."""
    evidence = list({(quote.artefact, quote.where): quote for quote in evidence}.values())
    known = sorted({rank_of_pid[r.pid] for r in ranks if r.pid is not None and r.pid in rank_of_pid})
    facts = {
        **facts,
        "n_ranks": communicator.size,
        "communicator": communicator.name,
        "communicator_ranks": sorted(r.rank for r in ranks)[:256],
        "pids": sorted({r.pid for r in ranks if r.pid is not None})[:256],
    }
    hosts = sorted({clean_text(r.host, 64) for r in ranks if r.host})[:64]
    return Signal(name=name, scope=Scope(ranks=known, hosts=hosts), facts=facts, evidence=evidence)


def _quotes(ranks: Sequence[_Rank], key: str, signal: str) -> list[Evidence]:
    return [_quote(*rank.quotes[key], signal) for rank in ranks if key in rank.quotes][:MAX_QUOTES]


def _quote(name: str, where: Any, content: Any, signal: str) -> Evidence:
    if isinstance(where, int):
        return quote_line(name, where, str(content), signal)
    return quote_value(name, where, content, signal)


def _counts(communicator: _Communicator, rank_of_pid: Mapping[int, int]) -> list[Signal]:
    """One signal per operation of which ranks launched different numbers; the most common number is the peers'."""
    name = "ras.operation_counts_differ"
    tallies = {op: tally for op, tally in _tallies(communicator).items() if len(tally) > 1}
    signals: list[Signal] = []
    for op, tally in sorted(tallies.items()):
        peers = max(tally, key=lambda count: (tally[count], count))
        lower = [r for r in communicator.ranks.values() if op in r.counts and r.counts[op] < peers]
        higher = [r for r in communicator.ranks.values() if op in r.counts and r.counts[op] > peers]
        # Where nobody is below the majority, those above it are the ones that differ.
        deviating = lower or higher
        others = [r for r in communicator.ranks.values() if r.counts.get(op) == peers]
        count = min(r.counts[op] for r in deviating) if lower else max((r.counts[op] for r in deviating), default=peers)
        evidence = _quotes(deviating[: MAX_QUOTES - 1], op, name) + _quotes(others[:1], op, name)
        evidence += _lines(communicator, name, "count", about=op)
        facts: dict[str, Any] = {
            "operation": clean_text(op, 40), "count": count, "peers_count": peers, "behind_by": peers - count,
            "ahead": not lower, "other_operations_equal": len(tallies) == 1,
        }  # fmt: skip
        signals.append(_signal(name, communicator, deviating, rank_of_pid, facts, evidence))
    return signals


def _opposite(communicators: Mapping[str, _Communicator], rank_of_pid: Mapping[int, int]) -> list[Signal]:
    """Two ranks that lag behind each other, one in one communicator and the other in another one."""
    name = "ras.opposite_lag"
    behind_in = [(c, behind) for c in communicators.values() if (behind := _behind(c))]
    for first, first_behind in behind_in:
        for second, second_behind in behind_in:
            both = {_process(r) for r in _known(first)} & {_process(r) for r in _known(second)}
            here, there = both & first_behind.keys(), both & second_behind.keys()
            if first is second or not here - there or not there - here:
                continue
            one, other = first_behind[min(here - there, key=str)], second_behind[min(there - here, key=str)]
            evidence = _quotes([one[0]], one[1], name) + _quotes([other[0]], other[1], name)
            return [
                _signal(name, first, [one[0], other[0]], rank_of_pid, {"other_communicator": second.name}, evidence)
            ]
    return []


def _behind(communicator: _Communicator) -> dict[tuple[str | None, int | None], tuple[_Rank, str]]:
    """Processes that launched fewer of some operation than most members, with that operation."""
    found: dict[tuple[str | None, int | None], tuple[_Rank, str]] = {}
    for op, tally in _tallies(communicator).items():
        peers = max(tally, key=lambda count: (tally[count], count))
        for rank in communicator.ranks.values():
            if rank.counts.get(op, peers) < peers:
                found.setdefault(_process(rank), (rank, op))
    return found


def _tallies(communicator: _Communicator) -> dict[str, Counter[int]]:
    """Per operation how many ranks have which count; the text form tells sizes of groups without listing all ranks."""
    tallies: dict[str, Counter[int]] = {}
    if communicator.counted:
        for rank in communicator.ranks.values():
            for op, count in rank.counts.items():
                tallies.setdefault(op, Counter())[count] += 1
        return tallies
    seen: dict[str, dict[int, int]] = {}
    for _, statement in communicator.statements:
        if statement["kind"] == "count":
            here = seen.setdefault(statement["about"], {})
            here[statement["value"]] = max(here.get(statement["value"], 0), statement["n"] or 1)
    return {op: Counter(counts) for op, counts in seen.items()}


def _lines(
    communicator: _Communicator, signal: str, kind: str, *, about: str | None = None, value: str | None = None
) -> list[Evidence]:
    """Quotes of the statements of one text answer."""
    return [
        quote_line(name, s["where"], s["text"], signal)
        for name, s in communicator.statements
        if s["kind"] == kind and about in (None, s["about"]) and value in (None, s["value"])
    ][:MAX_QUOTES]


def _status(communicator: _Communicator, rank_of_pid: Mapping[int, int]) -> list[Signal]:
    name = "ras.status_differs"
    tally: Counter[str] = Counter()
    if communicator.counted:
        tally.update(r.status for r in communicator.ranks.values() if r.status)
    else:
        for _, statement in communicator.statements:
            if statement["kind"] == "status":
                tally[statement["value"]] = max(tally[statement["value"]], statement["n"] or 1)
    if len(tally) < 2:
        return []
    # With as many on both sides the running ones are the peers.
    peers = max(tally, key=lambda status: (tally[status], status == "RUNNING", status))
    deviating = [r for r in communicator.ranks.values() if r.status is not None and r.status != peers]
    words = sorted({r.status for r in deviating if r.status}) or sorted(set(tally) - {peers})
    evidence = _quotes(deviating, "status", name) + _lines(communicator, name, "status")
    facts: dict[str, Any] = {"status": "/".join(words), "peers_status": peers}
    return [_signal(name, communicator, deviating, rank_of_pid, facts, evidence)]


def _missing(communicator: _Communicator, rank_of_pid: Mapping[int, int]) -> list[Signal]:
    name = "ras.missing_ranks"
    absent = [rank for rank, _ in communicator.missing.values()]
    evidence = _quotes(absent, "missing", name) + _lines(communicator, name, "missing")
    if not absent and not evidence:
        return []
    facts: dict[str, Any] = {"n_missing": len(absent) or None, "dead": any(d for _, d in communicator.missing.values())}
    return [_signal(name, communicator, absent, rank_of_pid, facts, evidence)]


def _errors(communicator: _Communicator, rank_of_pid: Mapping[int, int]) -> list[Signal]:
    name = "ras.communicator_error"
    signals: list[Signal] = []
    for phase, word, ranks in communicator.errors:
        evidence = _quotes(ranks, "status", name) + _quotes(ranks, "error", name)
        evidence += _lines(communicator, name, "error", value=word)
        facts: dict[str, Any] = {"error": clean_text(str(word), 80), "phase": clean_text(str(phase), 40)}
        signals.append(_signal(name, communicator, ranks, rank_of_pid, facts, evidence))
    return signals


def _silent_processes(
    ordered: Sequence[Answer], rank_of_pid: Mapping[int, int], known: Sequence[Signal]
) -> list[Signal]:
    """Processes that the whole job misses, where no communicator says so already."""
    name = "ras.missing_ranks"
    told = {pid for signal in known if signal.name == name for pid in signal.facts["pids"]}
    silent: dict[tuple[str, int], tuple[str, Mapping[str, Any]]] = {}
    for artefact, answer in ordered:
        for process in answer["processes"]:
            if process["pid"] not in told:
                silent.setdefault((process["host"], process["pid"]), (artefact, process))
    if not silent:
        return []
    rows = list(silent.values())
    evidence = [quote_line(artefact, p["where"], p["text"], name) for artefact, p in rows[:MAX_QUOTES]]
    facts: dict[str, Any] = {
        "n_missing": len(rows),
        "dead": any(p["dead"] for _, p in rows),
        "pids": sorted({p["pid"] for _, p in rows})[:256],
    }
    ranks = sorted({rank_of_pid[p["pid"]] for _, p in rows if p["pid"] in rank_of_pid})
    hosts = sorted({clean_text(p["host"], 64) for _, p in rows})[:64]
    return [Signal(name=name, scope=Scope(ranks=ranks, hosts=hosts), facts=facts, evidence=evidence)]


def _in_step(ordered: Sequence[Answer], communicators: Mapping[str, _Communicator]) -> Signal | None:
    """All communicators seen agree. Says nothing of whether they get on."""
    name = "ras.in_step"
    rows = [(artefact, row) for artefact, answer in ordered for row in answer["rows"]]
    counted = [c for c in communicators.values() if c.counted]
    if any(answer["notes"] for _, answer in ordered) or not (rows or counted):
        return None
    if any(row["errors"] != "OK" or row["status"] != "RUNNING" for _, row in rows):
        return None
    evidence = [quote_line(artefact, row["where"], row["text"], name) for artefact, row in rows[:2]]
    if not evidence:
        evidence = [q for rank in list(counted[0].ranks.values())[:2] for q in _quotes([rank], "status", name)]
    launched = max((n for c in counted for r in c.ranks.values() for n in r.counts.values()), default=None)
    n = len(counted) or sum(row["n_communicators"] for _, row in rows)
    sizes = [c.size for c in counted if c.size] + [row["size"] for _, row in rows]
    ranks = sorted({r.rank for c in counted if c.size == max(sizes, default=0) for r in c.ranks.values()})
    facts: dict[str, Any] = {"n_communicators": n, "n_ranks": max(sizes, default=None), "most_launched": launched}
    return Signal(name=name, scope=Scope(ranks=ranks), facts=facts, evidence=evidence)
