"""Decide: hold all observations against the playbook and order the failure modes. Pure; no knowledge lives here.

A mode is proven when all conditions of one of its proofs hold and their scopes meet in at least one rank; that meeting
is the culprit. Evidence is ordinal: proven by several kinds of artefact, proven by one, likely, supported. The few
numbers below turn that order into a confidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchtriage.knowledge.templates import template_key
from torchtriage.verdict.gather import pattern_key
from torchtriage.verdict.versions import ByVersion, judge_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.knowledge.entries import Condition, Entry, Proof
    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.findings import Observation

# The share of verdicts like this one that are right. Set by hand on the recorded cases, which are few; benchmarks/
# and the eval suite report how they hold on others.
PROVEN_BY_SEVERAL_KINDS = 0.95
PROVEN_BY_ONE_KIND = 0.88
LIKELY_AND_SUPPORTED = 0.7
LIKELY = 0.6
SUPPORTED_TWICE = 0.35
SUPPORTED = 0.25
UNSURE = 0.75  # factor: the reader itself was not sure whose fault a proof is
RIVALLED = 0.7  # factor: another mode, unrelated, is proven as well

# Branches of failures in which ranks stand still.
_STALLS = frozenset({"hang", "nccl_timeout"})
_WAITS = ("stacks.in_collective", "stacks.waiting_on_gpu")


@dataclass(frozen=True)
class Assessment:
    """How one failure mode stands."""

    entry: Entry
    confidence: float
    ranks: frozenset[int]
    observed: tuple[Observation, ...]
    proven: bool
    order: float


@dataclass
class Decision:
    """Modes that may be the cause, best first, and those that looked possible and are not."""

    assessments: list[Assessment] = field(default_factory=list[Assessment])
    ruled_out: list[tuple[Entry, str]] = field(default_factory=list[tuple["Entry", str]])
    by_version: ByVersion = field(default_factory=ByVersion)
    goes_on: bool = False
    """Whether the job was seen to go on between two looks."""
    excluded: frozenset[str] = frozenset()
    """Modes for which nothing speaks and against which something does: words alone do not bring them back."""


def decide(book: Playbook, observations: Sequence[Observation], ranks: Iterable[int]) -> Decision:
    """Assess every entry of the playbook; ``ranks`` are all ranks that are known."""
    view = _View(observations, frozenset(ranks))
    decision = Decision(by_version=judge_versions(book.entries.values(), observations))
    excluded: set[str] = set()
    for entry in book.entries.values():
        found = _assess(entry, view, decision.by_version.supports.get(entry.id, ()))
        if found is not None and (outdated := decision.by_version.outdated.get(entry.id)) is not None:
            decision.ruled_out.insert(0, (entry, outdated))
        elif isinstance(found, Assessment):
            decision.assessments.append(found)
        elif found is not None:
            decision.ruled_out.append((entry, found))
        elif any(view.matching(e.condition) for e in entry.excludes if not e.condition.speaks_of_others):
            excluded.add(entry.id)
    decision.excluded = frozenset(excluded)
    decision.goes_on = _goes_on(view)
    if decision.goes_on:
        _rule_out_stalls(decision, "ranks went on between two looks at them", None)
    elif joined := _joined_their_peers(view):
        _rule_out_stalls(decision, "at a second look it waited where its peers do", joined)
    _prefer_causes(decision, book)
    decision.assessments.sort(key=lambda a: (-a.confidence, -_weight(a), a.order, a.entry.id))
    _weigh_rivals(decision)
    return decision


class _View:
    """Observations by signal and by pattern, so that 150 entries cost look-ups, not scans."""

    def __init__(self, observations: Sequence[Observation], ranks: frozenset[int]) -> None:
        self.ranks = ranks
        self._by_name: dict[str, list[Observation]] = {}
        for observation in observations:
            self._by_name.setdefault(observation.pattern or observation.name, []).append(observation)

    def matching(self, condition: Condition) -> list[Observation]:
        """The observations that satisfy a condition."""
        names = (
            *condition.signals,
            *(pattern_key(t, condition.regex) for t in condition.texts),
            *(template_key(t) for t in condition.templates),
        )
        found = [o for n in names for o in self._by_name.get(n, ()) if facts_fit(o.facts, condition.where)]
        if not found or condition.ranks is None:
            return found
        shown = frozenset[int]().union(*(o.ranks for o in found))
        fits = {
            "one": len(shown) == 1 and len(self.ranks) > 1,
            "some": bool(shown) and shown < self.ranks,
            "all": bool(shown) and shown >= self.ranks,
        }[condition.ranks]
        return found if fits else []


def _goes_on(view: _View) -> bool:
    """Whether a second look found most ranks elsewhere in the program, or one go on that had waited for its peers.

    One alone that did not wait may be polling in a loop. A call that is younger than the first look was made since.
    """
    looks = view.matching(_named("stacks.moving"))
    moving = frozenset[int]().union(*(o.ranks for o in looks))
    most = len(moving) > 1 and len(moving) * 2 > len(view.ranks)
    apart_s = [o.facts.get("seconds_between") or 0 for o in view.matching(_named("stacks.still"))]
    young = any(o.facts["oldest_wait_s"] < min(apart_s, default=0) for o in view.matching(_named("flight.waits_young")))
    return most or young or any(o.facts.get("waited") for o in looks)


def _joined_their_peers(view: _View) -> frozenset[int]:
    """Ranks that were elsewhere at first, and at a second look where their peers had waited."""
    waiting = [o for name in _WAITS for o in view.matching(_named(name))]
    places = {o.facts.get("where") for o in waiting}
    found = [o for o in view.matching(_named("stacks.moving")) if o.facts.get("where_later") in places]
    return frozenset[int]().union(*(o.ranks for o in found))


def _rule_out_stalls(decision: Decision, because: str, ranks: frozenset[int] | None) -> None:
    """Nothing stands still in what goes on, whatever one moment of it looked like; ``ranks``: of these alone."""
    stalls = [
        a
        for a in decision.assessments
        if a.entry.branch in _STALLS and (ranks is None or (a.ranks and a.ranks <= ranks))
    ]
    decision.assessments = [a for a in decision.assessments if a not in stalls]
    decision.ruled_out[:0] = [(a.entry, because) for a in stalls]


def facts_fit(facts: Any, where: dict[str, Any]) -> bool:
    """Whether an observation has the facts that a condition asks for."""
    for name, expected in where.items():
        value = facts.get(name)
        if isinstance(expected, dict):
            low, high = expected.get("min"), expected.get("max")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return False
            if (low is not None and value < low) or (high is not None and value > high):
                return False
        elif isinstance(expected, list):
            if value not in expected:
                return False
        elif value != expected and not (expected is False and value is None):
            return False
    return True


@dataclass(frozen=True)
class _Held:
    """A proof that holds: where its scopes meet, and on what."""

    ranks: frozenset[int]
    observed: tuple[Observation, ...]


def _hold(proof: Proof, view: _View) -> _Held | None:
    """The proof's meeting, or None when a condition fails or the scopes do not meet."""
    meeting: frozenset[int] | None = None
    peers: set[int] = set()
    matched: list[tuple[Condition, list[Observation]]] = []
    for condition in proof.conditions:
        found = view.matching(condition)
        if not found:
            return None
        matched.append((condition, found))
        if condition.speaks_of_others:
            peers.update(*(o.ranks for o in found))
        scoped = [o.ranks for o in found if o.ranks]
        # An observation without ranks (a pasted line without prefix) speaks of nobody in particular and meets all.
        if condition.meets_culprit and scoped and len(scoped) == len(found):
            shown = frozenset[int]().union(*scoped)
            meeting = shown if meeting is None else meeting & shown
            if not meeting:
                return None
    if peers and meeting is not None:
        meeting -= peers
        if not meeting or not view.ranks <= meeting | peers:
            return None
    ranks = meeting if meeting is not None else frozenset[int]()
    observed: list[Observation] = []
    for condition, found in matched:
        at_culprit = [o for o in found if not ranks or not o.ranks or o.ranks & ranks or not condition.meets_culprit]
        observed.extend(at_culprit or found)
    return _Held(ranks, _unique(observed))


def _unique(observed: Iterable[Observation]) -> tuple[Observation, ...]:
    """Each observation once, in order (they hold mappings, so they have no hash)."""
    return tuple({id(o): o for o in observed}.values())


def _assess(entry: Entry, view: _View, versions: Sequence[Observation] = ()) -> Assessment | str | None:
    """The entry's standing; a string says why it is ruled out although something speaks for it.

    ``versions`` that work speak for an entry of later ones, where something else does.
    """
    held, likely = None, None
    for proof in entry.proves:
        result = _hold(proof, view)
        if result is None:
            continue
        if proof.likely_only:
            likely = likely or result
        elif held is None or _kinds(result.observed) > _kinds(held.observed):
            held = result
    best = held or likely
    supports = [
        observation
        for condition in entry.supports
        for observation in view.matching(condition)[:2]
        if best is None
        or not observation.ranks
        or not best.ranks
        or observation.ranks & best.ranks
        or not condition.meets_culprit
    ]
    if best is None and not supports:
        return None
    supports += versions
    culprit = best.ranks if best is not None else _meeting_of(supports)
    for exclusion in entry.excludes:
        against = view.matching(exclusion.condition)
        if exclusion.condition.meets_culprit and culprit:
            against = [o for o in against if not o.ranks or o.ranks & culprit]
        elif exclusion.condition.speaks_of_others:
            against = [o for o in against if culprit and o.ranks and not o.ranks & culprit]
        if against:
            return exclusion.because
    observed = _unique((*(best.observed if best is not None else ()), *supports))
    return Assessment(
        entry=entry,
        confidence=_confidence(held, likely, observed, supports),
        ranks=_culprit_ranks(entry, culprit, view),
        observed=observed,
        proven=held is not None,
        order=min((o.order for o in observed if o.order), default=0.0),
    )


def _kinds(observed: Iterable[Observation]) -> int:
    return len({o.kind for o in observed})


def _meeting_of(observed: Sequence[Observation]) -> frozenset[int]:
    meeting: frozenset[int] | None = None
    for observation in observed:
        if observation.ranks:
            meeting = observation.ranks if meeting is None else meeting & observation.ranks
    return meeting or frozenset()


def _confidence(
    held: _Held | None, likely: _Held | None, observed: Sequence[Observation], supports: Sequence[Observation]
) -> float:
    if held is not None:
        value = PROVEN_BY_SEVERAL_KINDS if _kinds(observed) > 1 else PROVEN_BY_ONE_KIND
    elif likely is not None:
        value = LIKELY_AND_SUPPORTED if supports else LIKELY
    else:
        together = len(supports) > 1 and _kinds(supports) > 1 and bool(_meeting_of(supports))
        return SUPPORTED_TWICE if together else SUPPORTED
    decisive = (held or likely).observed if held or likely else ()  # type: ignore[union-attr]
    unsure = any(o.facts.get("sure") is False or o.facts.get("certain") is False for o in decisive)
    return round(value * UNSURE, 3) if unsure and _kinds(decisive) == 1 else value


def _culprit_ranks(entry: Entry, meeting: frozenset[int], view: _View) -> frozenset[int]:
    """Whom the verdict names: the first of the entry's culprit signals that is there, else where the proof meets."""
    nobodys = entry.culprit in ("config", "library")
    for name in entry.culprit_from:
        found = view.matching(_named(name))
        shown = frozenset[int]().union(*(o.ranks for o in found))
        if shown:
            return shown & meeting or shown
        if found and nobodys:
            return meeting
    return frozenset() if nobodys else meeting


def _named(name: str) -> Condition:
    from torchtriage.knowledge.entries import Condition

    return Condition(signals=(name,))


def _prefer_causes(decision: Decision, book: Playbook) -> None:
    """When a mode and what it is a special case (or the cause) of both stand, the latter is explained by it."""
    standing = {a.entry.id: a for a in decision.assessments if a.proven or a.confidence >= LIKELY}
    explained: dict[str, str] = {}
    for assessment in standing.values():
        for other in _all_refined(assessment.entry, book):
            if other in standing and standing[other].confidence <= assessment.confidence + 0.08:
                explained[other] = assessment.entry.id
    for other, by in explained.items():
        loser = standing[other]
        decision.assessments.remove(loser)
        decision.ruled_out.append((loser.entry, f"{by} explains it: {book.entries[by].title}"))


def _all_refined(entry: Entry, book: Playbook) -> set[str]:
    """What an entry refines, directly or through others."""
    seen: set[str] = set()
    pending = list(entry.refines)
    while pending:
        name = pending.pop()
        if name not in seen and name != entry.id:
            seen.add(name)
            if name in book.entries:
                pending.extend(book.entries[name].refines)
    return seen


def _weight(assessment: Assessment) -> int:
    """How much was seen for it: kinds of artefacts first, then observations."""
    return _kinds(assessment.observed) * 100 + min(len(assessment.observed), 99)


def _weigh_rivals(decision: Decision) -> None:
    """Two unrelated proofs about equally strong leave a doubt."""
    if len(decision.assessments) < 2:
        return
    first, second = decision.assessments[:2]
    if (
        second.proven
        and second.confidence >= first.confidence
        and _weight(first) < 2 * _weight(second)
        and (first.order == 0 or second.order == 0 or abs(first.order - second.order) < 1)
    ):
        decision.assessments[0] = replace(first, confidence=round(first.confidence * RIVALLED, 3))
