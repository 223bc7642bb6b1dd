"""Compare the ranks of a job by their stacks: which state each is in, which stand together, which one is not waiting.

A pure function of what the readers gave. One sample cannot tell a wait from a hang, and when every rank waits for the
device the stacks alone cannot tell for whom.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_line
from torchtriage.report import Evidence, Scope, Signal
from torchtriage.stacks.classify import WAITING, Standing, classify
from torchtriage.stacks.looks import compare_looks
from torchtriage.stacks.places import framework_frame_index, loader_index, place, user_frame_index
from torchtriage.stacks.processes import MAX_CHILDREN, RankProcess, find_ranks
from torchtriage.tool_reports import RankStack, RankState, StackGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_QUOTES = 3
MAX_PLACES = 8
MAX_SHOWN_FRAMES = 40
MAX_PIDS = 256
# A forked process that waits here has nothing to do.
_TASK_QUEUES = ("multiprocessing/queues.py", "multiprocessing/connection.py", "/queue.py")
_STATES: tuple[RankState, ...] = get_args(RankState)


@dataclass(frozen=True)
class StackFindings:
    """What the stacks of a job say."""

    ranks: list[RankStack] = field(default_factory=list["RankStack"])
    groups: list[StackGroup] = field(default_factory=list["StackGroup"])
    signals: list[Signal] = field(default_factory=list["Signal"])
    culprit_ranks: list[int] = field(default_factory=list["int"])
    """Ranks that are not waiting while all others wait for the device or in a collective."""
    notes: list[str] = field(default_factory=list["str"])


@dataclass(frozen=True)
class _Judged:
    """A rank process with what it is doing and where."""

    seen: RankProcess
    standing: Standing
    where: str
    site: tuple[str, str]
    """The innermost user frame and the innermost frame of the user or a framework: the call site."""
    worker_state: str | None
    child: tuple[str, str] | None
    """Of a rank that waits for a lock, a queue or a process: what a process that it forked does, and where."""

    @property
    def waits(self) -> bool:
        return self.standing.certain and self.standing.state in WAITING

    @property
    def acts(self) -> bool:
        return self.standing.certain and self.standing.state not in WAITING and self.standing.state != "unreadable"


def analyze(dumps: Sequence[tuple[str, Mapping[str, Any]]], rank_of_pid: Mapping[int, int]) -> StackFindings:
    """Judge recorded dumps.

    Args:
        dumps: artefact names with what :func:`torchtriage.stacks.read.read_task` gave for them.
        rank_of_pid: which rank a process is, where that is recorded; else names and commands tell.
    """
    found, notes = find_ranks(dumps, rank_of_pid)
    judged = [_judge(each) for each in found]
    culprits = _culprits(judged, notes)
    for each in [each for each in judged if each.seen.process.get("fatal")][:MAX_PLACES]:
        notes.append(f"{_names([each])} was dumped as it ended: {each.seen.process['fatal']}")
    return StackFindings(
        ranks=[_rank_stack(each) for each in judged],
        groups=_groups(judged),
        signals=[*_state_signals(judged), *_place_signals(judged), *_look_signals(judged)],
        culprit_ranks=culprits,
        notes=notes,
    )


def _judge(seen: RankProcess) -> _Judged:
    standing = classify(seen.process)
    frames = _main_frames(seen.process)
    user, framework = user_frame_index(frames), framework_frame_index(frames)
    where = place(frames[user]) if user is not None else place(frames[0]) if frames else ""
    worker_state: str | None = None
    if standing.state == "data_loading" and seen.helpers:
        worker_state = _worker_state(seen.helpers)
    child = _stuck_child(seen.children) if standing.state == "lock_wait" else None
    return _Judged(
        seen, standing, where, (where, place(frames[framework]) if framework is not None else ""), worker_state, child
    )


def _stuck_child(children: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, str] | None:
    """Of the forked processes at work on a task of the program, the first that waits: ("lock_wait" or "idle", where).

    Without native frames a process that takes a lock looks as one that sleeps or reads: it is "idle".
    """
    for _, process in children[:MAX_CHILDREN]:
        frames = _main_frames(process)
        run = next((i for i, f in enumerate(frames) if str(f["file"]).endswith("multiprocessing/process.py")), None)
        user = user_frame_index(frames)
        if run is None or user is None or user >= run or not any(_is_fork(frame) for frame in frames[run:]):
            continue
        if any(str(frame["file"]).endswith(_TASK_QUEUES) for frame in frames[:user]):
            continue
        standing = classify(process)
        idle = not standing.certain and all(thread["active"] is False for thread in process["threads"])
        if standing.state == "lock_wait" or (standing.state == "python_running" and idle):
            return ("idle" if idle else "lock_wait"), place(frames[user])
    return None


def _is_fork(frame: Mapping[str, Any]) -> bool:
    return str(frame["file"]).endswith("multiprocessing/popen_fork.py")


def _worker_state(helpers: Sequence[tuple[str, Mapping[str, Any]]]) -> str | None:
    """What the workers are doing inside their loop; a worker at work tells more than those that wait for an index."""
    states: Counter[str] = Counter()
    for _, process in helpers:
        inner = _without_loader(process)
        states[classify(inner).state] += 1
    busy = Counter({state: n for state, n in states.items() if state not in ("lock_wait", "unreadable")})
    chosen = busy or states
    return chosen.most_common(1)[0][0] if chosen else None


def _without_loader(process: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's stack up to the loader's own frames, which would make all of it "data_loading"."""
    threads: list[dict[str, Any]] = []
    for thread in process["threads"]:
        frames = thread["frames"]
        end = loader_index(frames)
        threads.append({**thread, "frames": frames[:end] or frames[:1]})
    return {**process, "threads": threads}


def _main_frames(process: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    nothing: Sequence[Mapping[str, Any]] = ()
    return next((thread["frames"] for thread in process["threads"] if thread["main"]), nothing)


def _culprits(judged: Sequence[_Judged], notes: list[str]) -> list[int]:
    """The ranks that act while all others wait; none when nobody waits, or when more act than wait."""
    waiting = [each for each in judged if each.waits]
    acting = [each for each in judged if each.acts]
    unsure = [each for each in judged if not each.waits and not each.acts]
    unreadable = [each for each in unsure if each.standing.state == "unreadable"]
    unsure = [each for each in unsure if each.standing.state != "unreadable"]
    if unreadable:
        notes.append(f"the dump of {_names(unreadable)} holds no frames of its main thread")
    if unsure:
        notes.append(
            f"what {_names(unsure)} is doing cannot be told without native frames: "
            "dump again with `py-spy dump --native --pid PID`"
        )
    if len(judged) > 1 and len(waiting) == len(judged):
        notes.append(
            "every rank waits for the device or in a collective: stacks alone cannot tell which rank is missing"
        )
    if not waiting or not acting or len(acting) > len(waiting):
        return []
    if unranked := [each for each in acting if each.seen.rank is None]:
        notes.append(f"{_names(unranked)} is not waiting while others are, but its rank is not known")
    return sorted({each.seen.rank for each in acting if each.seen.rank is not None})


def _names(judged: Sequence[_Judged]) -> str:
    shown = [f"rank {e.seen.rank}" if e.seen.rank is not None else f"pid {e.seen.pid}" for e in judged[:4]]
    return ", ".join(shown) + (f" and {len(judged) - 4} more" if len(judged) > 4 else "")


def _state_signals(judged: Sequence[_Judged]) -> list[Signal]:
    by_state: dict[str, list[_Judged]] = {}
    for each in judged:
        by_state.setdefault(each.standing.state, []).append(each)
    n_waiting = sum(each.waits for each in judged)
    signals: list[Signal] = []
    for state in _STATES:
        members = by_state.get(state)
        if not members:
            continue
        others = len(judged) - len(members)
        others_waiting = n_waiting - sum(each.waits for each in members)
        facts: dict[str, Any] = {
            "n_ranks": sum(each.seen.rank is not None for each in judged),
            "all_ranks": not others,
            "peers_waiting": others > 0 and others_waiting == others,
            "where": Counter(each.where for each in members).most_common(1)[0][0],
            "certain": all(each.standing.certain for each in members),
            "why": members[0].standing.why,
        }
        for key, values in (
            ("in_collective_call", [each.standing.collective for each in members]),
            ("within", [each.standing.within for each in members]),
            ("worker_state", [each.worker_state for each in members]),
            ("thread_state", [each.standing.thread_state for each in members]),
        ):
            if known := Counter(value for value in values if value is not None):
                facts[key] = known.most_common(1)[0][0]
        if child := next((each.child for each in members if each.child is not None), None):
            facts["child_state"], facts["child_where"] = child
        if any(each.standing.holds_gil for each in members):
            facts["holds_gil"] = True
        if in_call := sorted(e.seen.rank for e in members if e.standing.collective and e.seen.rank is not None):
            facts["in_collective_call_ranks"] = in_call
        if pids := [each.seen.pid for each in members if each.seen.pid is not None]:
            facts["pids"] = pids[:MAX_PIDS]
        signals.append(_signal(f"stacks.{state}", members, facts))
    return signals


def _place_signals(judged: Sequence[_Judged]) -> list[Signal]:
    """Waiting ranks whose call site is not that of most waiting ranks; with a tie, all of them."""
    by_site: dict[tuple[str, str], list[_Judged]] = {}
    for each in judged:
        if each.waits and each.seen.rank is not None and each.where:
            by_site.setdefault(each.site, []).append(each)
    if len(by_site) < 2:
        return []
    sites = sorted(by_site, key=lambda site: (-len(by_site[site]), by_site[site][0].seen.rank or 0))
    majority = sites[0]
    if len(by_site[majority]) == len(by_site[sites[1]]):
        members = [each for site in sites for each in by_site[site]]
        facts: dict[str, Any] = {
            "tie": True,
            "where": _site_words(sites[1]),
            "majority_where": _site_words(majority),
            "n_places": len(sites),
            "same_caller": _same_caller(by_site[sites[1]][0], by_site[majority][0]),
        }
        return [_signal("stacks.different_place", members, facts)]
    signals: list[Signal] = []
    for site in sites[1 : MAX_PLACES + 1]:
        facts = {"where": _site_words(site), "majority_where": _site_words(majority), "n_places": len(sites)}
        facts["same_caller"] = _same_caller(by_site[site][0], by_site[majority][0])
        facts["by_rank_zero"] = [each.seen.rank for each in by_site[site]] == [0]
        signals.append(_signal("stacks.different_place", by_site[site], facts))
    return signals


def _same_caller(one: _Judged, other: _Judged) -> bool:
    """Whether one line of the program called what each of the two stands in: it calls in turn, or picks by rank."""
    frames, others = ([f for f in _main_frames(e.seen.process) if not f["native"]] for e in (one, other))
    for here, there in zip(reversed(frames), reversed(others), strict=False):
        if (here["function"], here["file"]) != (there["function"], there["file"]):
            return True
        if here["line"] != there["line"]:
            return False
    return False


def _look_signals(judged: Sequence[_Judged]) -> list[Signal]:
    """Who stood and who moved between two looks; a stopped process needs no second one."""
    looked = [
        (each, change)
        for each in judged
        if each.seen.again is not None
        and not each.seen.process.get("refused")
        and (change := compare_looks(each.seen.process, each.seen.again[1])) is not None
    ]
    signals: list[Signal] = []
    for name, outcomes in (("stacks.still", ("still", "spinning")), ("stacks.moving", ("moving",))):
        members = [(each, change) for each, change in looked if change.outcome in outcomes]
        if not members:
            continue
        changes = [change for _, change in members]
        facts: dict[str, Any] = {
            "n_ranks": len(looked),
            "all_ranks": len(members) == len(looked),
            "where": Counter(change.first_where for change in changes).most_common(1)[0][0],
            "where_later": Counter(change.second_where for change in changes).most_common(1)[0][0],
        }
        if name == "stacks.moving":
            # Whoever waited for its peers and went on has shown that they came.
            facts["waited"] = any(each.waits for each, _ in members)
        if seconds := [change.seconds for change in changes if change.seconds is not None]:
            facts["seconds_between"] = round(min(seconds), 2)
        if shares := [change.cpu_share for change in changes if change.cpu_share is not None]:
            facts["cpu_share_max"] = round(max(shares), 2)
            facts["spinning_ranks"] = [e.seen.rank for e, c in members if c.outcome == "spinning"]
        ranks = sorted({each.seen.rank for each, _ in members if each.seen.rank is not None})
        quoted = [
            evidence
            for each, change in members[:MAX_QUOTES]
            if each.seen.again and (evidence := _evidence(each.seen.again[0], change.second_frame, name)) is not None
        ]
        signals.append(Signal(name=name, scope=Scope(ranks=ranks), facts=facts, evidence=quoted))
    return signals


def _site_words(site: tuple[str, str]) -> str:
    user, framework = site
    return user if framework in ("", user) else f"{framework} < {user}"


def _signal(name: str, members: Sequence[_Judged], facts: dict[str, Any]) -> Signal:
    ranks = sorted({each.seen.rank for each in members if each.seen.rank is not None})
    quoted = [evidence for each in members[:MAX_QUOTES] if (evidence := _quote(each, name)) is not None]
    # A wait for the device inside a collective is told by two frames.
    for each in members:
        index = each.standing.collective_index
        if len(quoted) < MAX_QUOTES and index is not None and index != each.standing.key_frame_index:
            thread = each.seen.process["threads"][each.standing.thread_index]
            if (evidence := _evidence(each.seen.artefact, thread["frames"][index], name)) is not None:
                quoted.append(evidence)
    return Signal(name=name, scope=Scope(ranks=ranks), facts=facts, evidence=quoted)


def _quote(each: _Judged, signal: str) -> Evidence | None:
    """The frame that decided; for a place, the user's frame; without frames, the thread's header."""
    if (refused := each.seen.process.get("refused")) is not None:
        return _evidence(each.seen.artefact, refused, signal)
    thread = each.seen.process["threads"][each.standing.thread_index] if each.seen.process["threads"] else None
    if thread is None:
        return None
    said: Mapping[str, Any] = thread
    if signal == "stacks.different_place":
        frames = _main_frames(each.seen.process)
        index = user_frame_index(frames)
        said = frames[index] if index is not None else thread
    elif each.standing.key_frame_index is not None:
        said = thread["frames"][each.standing.key_frame_index]
    return _evidence(each.seen.artefact, said, signal)


def _evidence(artefact: str, said: Mapping[str, Any], signal: str) -> Evidence | None:
    where, text = str(said["where"]), str(said["text"])
    if where.startswith("/"):
        # The reader passed on the scalar as compact JSON, as the view has it.
        quote = clean_text(text)
        return Evidence(artefact=artefact, where=where, quote=quote, signal=signal) if quote else None
    return quote_line(artefact, int(where), text, signal)


def _groups(judged: Sequence[_Judged]) -> list[StackGroup]:
    by_place: dict[tuple[str, tuple[str, str], str], list[_Judged]] = {}
    for each in judged:
        if each.seen.rank is not None:
            by_place.setdefault((each.standing.state, each.site, _blocking(each)), []).append(each)
    groups = [
        StackGroup(
            ranks=sorted(each.seen.rank for each in members if each.seen.rank is not None),
            frames=_short_stack(members[0]),
        )
        for members in by_place.values()
    ]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def _blocking(each: _Judged) -> str:
    """The call that decides, by function alone: addresses and driver versions differ between hosts."""
    index = each.standing.key_frame_index
    if index is None:
        return ""
    return each.standing.collective or str(
        each.seen.process["threads"][each.standing.thread_index]["frames"][index]["function"]
    )


def _short_stack(each: _Judged) -> list[str]:
    """The deciding frame, then the Python frames around it out to the user's code."""
    thread = each.seen.process["threads"][each.standing.thread_index] if each.seen.process["threads"] else None
    if thread is None or each.standing.key_frame_index is None:
        return []
    frames = thread["frames"]
    key = each.standing.key_frame_index
    shown = [place(frames[key])]
    outer = [frame for frame in frames[key + 1 :] if not frame["native"]]
    if not thread["main"]:
        outer = [frame for frame in _main_frames(each.seen.process) if not frame["native"]]
    user = user_frame_index(outer)
    end = min((user if user is not None else 0) + 1, 6)
    shown += [place(frame) for frame in outer[:end]]
    if user is not None and user >= end:
        shown.append(place(outer[user]))
    return shown


def _rank_stack(each: _Judged) -> RankStack:
    frames = [f for f in _main_frames(each.seen.process) if not (f["native"] and f["function"].startswith("0x"))]
    return RankStack(
        rank=each.seen.rank,
        pid=each.seen.pid,
        host=each.seen.host,
        state=each.standing.state,
        where=each.where,
        frames=[place(frame) for frame in frames[:MAX_SHOWN_FRAMES]],
    )
