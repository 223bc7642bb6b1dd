"""One line that says what is known: from a playbook entry's templates, or from what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.signals import SIGNALS
from torchtriage.verdict.versions import SOURCES
from torchtriage.wording import bytes_words, quoted, rank_words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchtriage.report import Candidate, Recognised
    from torchtriage.verdict.decide import Assessment
    from torchtriage.verdict.findings import Findings, Observation

MAX_TELLING = 8
# Who did not join which collective tells more than that somebody waits; the first of these that was seen is told first.
_FIRST_MOVERS = (
    "log.desync_report",
    "log.waits_alone",
    "log.two_groups_cross",
    "log.collectives_differ",
    "log.behind_on_enqueue",
    "log.rank_without_timeout",
    "log.rank_silent",
    "log.completed_on_some",
    "log.all_joined_none_finished",
)
MAX_QUOTED_CHARS = 110
# Facts that an analyzer words itself.
_OUR_WORDS = frozenset({"why", "cause", "waiting", "done", "sides", "first_seen"})
# One word without blanks, or a place of the program: function (file:line).
_WORD_OR_PLACE = lazy_re(r"[\w.:/<>@+%-]{1,80}|[\w.<>]{1,80} \([\w./<>@+-]{1,110}(?::\d{1,7})?\)")
_PLACEHOLDER = lazy_re(r"\{(\w+)\}")
# That a process ended tells least, with what error a little more: everything else says how it came to that.
_ENDS = {"log.python_exception": 1, "log.process_exit": 2}
# Observations that tell nothing by themselves: a text that is only named somewhere, a moment that is as it should be.
_NOTHING_TO_TELL = frozenset(
    {
        "log.pattern",
        "log.template",
        "log.finished_on_some",
        "ras.in_step",
        "gpu.spinning",
        "gpu.idle",
        "flight.waits_young",
        "proc.no_cpu_progress",
    }
)

# What a message must tell to be a headline: that something went wrong, and not merely that it was noticed.
_SPEAKS_OF_TROUBLE = frozenset({"cause", "symptom"})
_MANY_ALIKE = 3


def summary_of(best: Assessment) -> str:
    """The entry's first line of which everything is known."""
    known = known_facts(best.observed)
    if best.ranks:
        known["ranks"] = rank_words(best.ranks)
    if seen := frozenset[int]().union(*(o.ranks for o in best.observed)):
        known["seen_ranks"] = rank_words(seen)
    for template in best.entry.summary:
        if (line := fill(template, known)) is not None:
            return _with_first_mover(line[:1].upper() + line[1:], best)
    return best.entry.title


def _with_first_mover(line: str, best: Assessment) -> str:
    """Of a cause that is only suspected, also say what is known: which rank did not join which collective."""
    movers = [] if best.proven else [o for o in best.observed if o.name in _FIRST_MOVERS and "seq" in o.facts]
    for observation in sorted(movers, key=lambda o: _place(o.name)):
        detail = fill(SIGNALS[observation.name].detail, known_facts([observation]))
        if detail and f"number {observation.facts['seq']}" not in line:
            return f"{line}; {detail}"
    return line


def known_facts(observed: Sequence[Observation]) -> dict[str, str]:
    """The facts of observations as words; the first that has a fact tells it."""
    known: dict[str, str] = {}
    for observation in observed:
        for name, value in observation.facts.items():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
                known.setdefault(name, _fact_words(name, value))
    return known


def _fact_words(name: str, value: str | float) -> str:
    """A fact in words; what the job wrote (a message, an odd name) stands in quotes, as not ours."""
    if not isinstance(value, str):
        return bytes_words(value) if name.endswith("_bytes") else str(value)
    if name in _OUR_WORDS or _WORD_OR_PLACE.fullmatch(value):
        return value
    return quoted(value, MAX_QUOTED_CHARS)


def fill(template: str, known: dict[str, str]) -> str | None:
    """The template with its names filled in; None when one is not known."""
    if not template or any(name not in known for name in _PLACEHOLDER.findall(template)):
        return None
    return _PLACEHOLDER.sub(lambda m: clean_text(known[m[1]], 120), template)


def open_summary(findings: Findings, candidates: Sequence[Candidate], recognised: Sequence[Recognised] = ()) -> str:
    """One line that says what is known although it does not decide."""
    messages = [known for known in recognised if known.role in _SPEAKS_OF_TROUBLE]
    if found := says_something(findings.observations):
        first = found[0]
        # Of what several ranks show alike, all are named.
        alike = [o for o in found if o.name == first.name and _same_call(o, first)]
        ranks = frozenset[int]().union(*(o.ranks for o in alike))
        who = f" ({rank_words(ranks)})" if ranks else ""
        detail = fill(SIGNALS[first.name].detail, known_facts([first]))
        seen = f"{SIGNALS[first.name].meaning}{who}{': ' + detail if detail else ''}"
        # Where the numbers name nobody, a message may.
        named = next((m for m in messages if m.ranks), None) if not ranks else None
        told = f"; {rank_words(named.ranks)}: {_sentence(named)}" if named else _who_does_not(findings, ranks)
        return f"Not decided: {seen}{told}; what was given does not show why"
    went_on = [known for known in messages if _went_on_after(known, findings)]
    if ended := [known for known in messages if known not in went_on]:
        told = _who_does_not(findings, ended[0].ranks)
        return f"Not decided: {_told_by(ended[0])}{told}; what was given does not show why"
    if candidates:
        return f"Not decided: {candidates[0].failure_mode} is possible, and nothing proves it"
    if not findings.kinds_read:
        return "Nothing that can be judged was found: pass logs, flight-recorder dumps, stack dumps or RAS answers"
    if went_on:
        return f"Nothing was found that stopped the job: all ranks went on after this: {_told_by(went_on[0])}"
    return "Nothing wrong was found, and too little was seen to call the job healthy"


def _sentence(known: Recognised) -> str:
    """The first sentence of what a message means."""
    return known.means.partition(". ")[0].strip().rstrip(".")


def _told_by(known: Recognised) -> str:
    return f"{_sentence(known)}{f' ({rank_words(known.ranks)})' if known.ranks else ''}"


def _went_on_after(known: Recognised, findings: Findings) -> bool:
    """Whether all ranks did the same steps to one that was printed after the message."""
    # The last of those that are told apart, since later ones may be where the job stood still.
    orders = [o.order for o in findings.observations if o.facts.get("template") == known.template]
    return any(o.name == "log.steps_even" and max(orders, default=o.order) < o.order for o in findings.observations)


def _who_does_not(findings: Findings, ranks: Collection[int]) -> str:
    """The only rank that does not show what all others show; where several do not, nobody stands out."""
    others = findings.ranks.difference(ranks)
    return f"; only {rank_words(others)} does not show this" if len(others) == 1 and len(ranks) >= _MANY_ALIKE else ""


def _same_call(a: Observation, b: Observation) -> bool:
    return all(a.facts.get(name) == b.facts.get(name) for name in ("seq", "operation", "group", "type"))


def telling(observations: Sequence[Observation]) -> list[Observation]:
    """What an undecided verdict should show: trouble first, then what is not plainly good."""
    order = {"trouble": 0, "neutral": 1, "good": 2}
    # What known messages mean has a place of its own in the verdict; a version alone tells of nothing.
    beside = {"log.template", *SOURCES}
    found = [o for o in observations if o.evidence and o.name not in beside and o.kind != "said"]
    return sorted(
        found,
        key=lambda o: (o.name not in _FIRST_MOVERS and order[o.health], _place(o.name), o.order),
    )[:MAX_TELLING]


def _place(name: str) -> int:
    return _FIRST_MOVERS.index(name) - len(_FIRST_MOVERS) if name in _FIRST_MOVERS else _ENDS.get(name, 0)


def says_something(observations: Sequence[Observation]) -> list[Observation]:
    """What speaks of something that is not as it should be, most telling first."""
    return [
        o
        for o in telling(observations)
        if o.health != "good"
        and o.name not in _NOTHING_TO_TELL
        and (o.kind != "stacks" or o.facts.get("peers_waiting"))
    ]
