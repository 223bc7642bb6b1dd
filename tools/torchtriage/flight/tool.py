"""``analyze_flight_recorder``: what the flight-recorder dumps of a job say about which rank broke step first."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.identity import identities_of_dumps
from torchtriage.artefacts.inputs import open_inputs, path_names
from torchtriage.artefacts.isolate import read_isolated
from torchtriage.flight.analyze import FlightFindings, analyze
from torchtriage.flight.environment import Checked, check_environment
from torchtriage.flight.model import RankDump
from torchtriage.flight.torch_version import installed_torch_version
from torchtriage.report import Culprits, NextCheck
from torchtriage.tool_reports import FlightReport
from torchtriage.wording import next_lines, rank_words, some

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Inputs, Paths
    from torchtriage.artefacts.isolate import Outcome
    from torchtriage.tool_reports import Divergence

Status = Literal["fault", "in_step", "inconclusive"]
MAX_EVIDENCE = 24
MAX_GAPS = 40
MAX_STUCK_GROUPS = 64
_RENDERED_DIVERGENCES = 3
_RENDERED_QUOTES = 5
_DUMP_NAME = re.compile(
    r"(?i)(?:(?:nccl|comm_lib|fr)_trace|flight_?recorder)[^/]{0,200}\Z|(?:^|/)_?dump_\d{1,7}(?:\.\w{1,8}){0,2}\Z"
)
# Dumps, and what Inputs.unopened tells of.
_TOLD_ELSEWHERE = frozenset({"flight_recorder", "empty", "unknown"})
_KIND_WORDS = {
    "log": "a log", "text": "text", "stack_dump": "a stack dump", "memory_snapshot": "a memory snapshot",
    "trace": "a profiler's trace", "ras": "an answer of NCCL's RAS", "config": "a configuration",
}  # fmt: skip
_EMPTY_DUMP = "an empty dump: it holds no calls, no process groups and no counters"
_NOT_ENOUGH = frozenset({"all_joined_none_finished", "dump_missing"})

_WORDS = {
    "collective_missing": "{who} skipped {call}, which {peers} issued",
    "collective_extra": "{who} issued an extra {call}, which {peers} did not issue",
    "type_mismatch": "{who} issued {found} where {peers} issued {expected}",
    "size_mismatch": "{who} issued {found} where {peers} issued {expected}: the sizes do not fit together",
    "dtype_mismatch": "{who} issued {found} where {peers} issued {expected}: the dtypes differ",
    "order_deadlock": "{who}: waits in another order of groups than the peers ({found}; {expected})",
    "p2p_mismatch": "{who}: a send ({expected}) meets a receive ({found}) that does not fit it",
    "behind_on_enqueue": "{who} did not enqueue {call}, in which {peers} wait",
    "behind_on_complete": "{who} did not finish {call}, which {peers} finished",
    "all_joined_none_finished": "{who} joined {call} and none finished it",
    "dump_missing": "{who} left no dump",
}


def analyze_flight_recorder(
    paths: Paths,
    *,
    check_env: bool = False,
    pids: Sequence[int] | None = None,
    roots: Sequence[Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FlightReport:
    """Compare the flight-recorder dumps in ``paths`` and name the first divergence, the ranks behind it and the place.

    Args:
        paths: dumps (pickle or JSON, compressed or not), folders, bundles or archives that hold them.
        check_env: also say whether this process's environment would let the flight recorder work.
        pids: with ``check_env``, running processes of a job whose environments are checked instead; only /proc is read.
        roots: when given, every path must lie inside one of these folders.
        progress: called with (dumps read, dumps in all), from other threads.

    Returns:
        ``fault``: a rank is named or calls do not fit together; ``in_step``: all ranks of all groups agree, and
        nothing is unfinished or ranks went on while they were dumped; ``inconclusive``: too little to say either. With
        ``check_env`` and no paths it is the environments' state: ``fault`` when no dump will be written, ``in_step``
        when the recorder records and will dump, ``inconclusive`` when that cannot be told.

    Raises:
        InputNotFoundError, OutsideRootsError: see :func:`torchtriage.artefacts.inputs.open_inputs`.
        NoJobError: a pid is not there.
    """
    checked = _checked(pids) if check_env else {}
    remarks = [f"{whose}{said}" for whose, one in checked.items() for said in one.sentences]
    if check_env and not paths:
        return _of_environment(checked, pids, remarks)
    with open_inputs(paths, roots) as inputs:
        gaps = [*inputs.gaps, *inputs.unopened(), *_only_named_like_dumps(inputs)]
        outcomes = read_isolated("flight", inputs.of("flight_recorder"), progress)
        dumps = rank_dumps(outcomes)
    gaps.extend(f"{clean_text(d.artefact)}: {_EMPTY_DUMP}" for d in dumps if _says_nothing(d.summary))
    unreadable = [o for o in outcomes if o.error is not None]
    gaps.extend(f"{clean_text(o.artefact.name)}: {clean_text(o.error or '')}" for o in unreadable)
    found = analyze(dumps)
    gaps.extend(found.gaps)
    status = _status(found, complete=not unreadable)
    if len(gaps) > MAX_GAPS:
        gaps = [*gaps[:MAX_GAPS], f"{len(gaps) - MAX_GAPS} more of this kind"]
    return FlightReport(
        tool="analyze_flight_recorder",
        status=status,
        summary=_summary(status, found, len({d.rank for d in dumps if d.rank is not None}) or len(dumps)),
        gaps=gaps,
        next_checks=_next_checks(status, found, path_names(paths)),
        groups=found.groups,
        divergences=found.divergences,
        culprits=Culprits(ranks=found.culprit_ranks),
        evidence=[quote for signal in found.signals for quote in signal.evidence][:MAX_EVIDENCE],
        stuck_groups=found.stuck_groups[:MAX_STUCK_GROUPS],
        picture=found.picture,
        environment=remarks,
    )


def _checked(pids: Sequence[int] | None) -> dict[str, Checked]:
    """What :func:`check_environment` says of this process, or of running ones: by whom it is said.

    Raises:
        NoJobError: a pid is not there.
    """
    if not pids:
        return {"": check_environment(os.environ, installed_torch_version())}
    from torchtriage.bundle.processes import find_processes, named
    from torchtriage.flight.job_environment import environment_of_job

    found = [one for one in named(find_processes(pids=pids), pids) if one.pid in set(pids)]
    return {f"pid {one.pid}: ": environment_of_job(one) for one in found}


def _of_environment(checked: Mapping[str, Checked], pids: Sequence[int] | None, remarks: list[str]) -> FlightReport:
    """The report when only environments were looked at: whether dumps can be expected, nothing of the ranks' calls."""
    expected = [one.dumps for one in checked.values()]
    n_faults = sum(len(one.faults) for one in checked.values())
    status: Status = "fault" if False in expected else "inconclusive" if None in expected else "in_step"
    change = f"{n_faults} thing{'s' if n_faults > 1 else ''} to change"
    if status == "fault":
        what = f"the flight recorder will write no dump; {change}"
    elif status == "inconclusive":
        what = (
            f"the flight recorder may write no dump; {change}" if n_faults else "nothing is known of a flight recorder"
        )
    else:
        what = "the flight recorder records and will dump" + (f"; {change}" if n_faults else "")
    whose = "This environment" if not pids else f"The environment of pid {', '.join(map(str, pids[:8]))}"
    return FlightReport(
        tool="analyze_flight_recorder",
        status=status,
        summary=f"{whose}: {what}",
        gaps=["only environments were looked at: no dump was compared, which says nothing of the ranks' calls"],
        environment=remarks,
    )


def rank_dumps(outcomes: Sequence[Outcome]) -> list[RankDump]:
    """The dumps that could be read, with what their names say of rank and host."""
    readable = [outcome for outcome in outcomes if outcome.error is None]
    identities = identities_of_dumps([outcome.artefact.name for outcome in readable])
    return [
        RankDump(o.artefact.name, identity.rank, identity.host, o.result, _written_ms(o.artefact.path))
        for o, identity in zip(readable, identities, strict=True)
    ]


def _only_named_like_dumps(inputs: Inputs) -> list[str]:
    """Files whose names are those of dumps and whose content is something else, a sentence each."""
    told: list[str] = []
    for artefact in inputs.artefacts:
        if artefact.kind in _TOLD_ELSEWHERE or not _DUMP_NAME.search(artefact.name[-512:]):
            continue
        what = "JSON of another kind" if artefact.format == "json" else _KIND_WORDS.get(artefact.kind, "something else")
        told.append(f"{clean_text(artefact.name)}: named like a flight-recorder dump, but it is {what}; not used")
    return told


def _says_nothing(summary: Mapping[str, Any]) -> bool:
    return not (summary["n_entries"] or summary["config"] or summary["status"])


def _written_ms(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _status(found: FlightFindings, *, complete: bool) -> Status:
    if found.divergences and (found.stands or found.divergences[0].kind not in _NOT_ENOUGH):
        return "fault"
    in_step = any(signal.name == "flight.in_step" for signal in found.signals)
    return "in_step" if in_step and complete else "inconclusive"


def _summary(status: Status, found: FlightFindings, n_dumps: int) -> str:
    if not n_dumps:
        return "No flight-recorder dump could be read."
    if found.divergences:
        first = found.divergences[0]
        text = sentence(first)
        others = [rank for rank in found.culprit_ranks if rank not in first.ranks]
        if others:
            text += f" (likewise {rank_words(others)} in other groups)"
        if first.kind == "dump_missing" and n_dumps == 1:
            text += "; the only dump cannot be compared with anything"
        return text + "."
    waits = [wait for signal in found.signals if (wait := signal.facts.get("oldest_wait_ms")) is not None]
    if status == "in_step" and waits:
        return (
            f"All {n_dumps} ranks issue the same calls in all {len(found.groups)} groups; nothing had been unfinished "
            f"for more than {max(waits) / 1000:.1f} s when they were dumped."
        )
    if status == "in_step" and any(signal.facts.get("running") for signal in found.signals):
        return f"All {n_dumps} ranks issue the same calls in all {len(found.groups)} groups and went on when dumped."
    if status == "in_step":
        return f"All {n_dumps} ranks issued the same calls in all {len(found.groups)} groups and nothing is unfinished."
    if n_dumps == 1:
        return "Only one rank's dump could be used; ranks can be compared only with the dumps of the others."
    return f"{n_dumps} dumps show no divergence, but hold too little to say that all ranks are in step."


def sentence(divergence: Divergence) -> str:
    """One divergence in words: rank, call and place."""
    d = divergence
    call = d.collective or "a call"
    if d.where and d.kind not in ("type_mismatch", "size_mismatch", "dtype_mismatch", "order_deadlock"):
        call += f" at {d.where}"
    if d.seq is not None:
        call += f" (seq {d.seq})"
    template = _WORDS[d.kind]
    if d.kind == "behind_on_complete" and d.found:
        template = "{who} did not start {call} on its device, which {peers} started"
    elif d.kind == "p2p_mismatch" and d.found and d.found.startswith("no "):
        template = "{who}: {expected} waits for a call that was never made ({found})"
    words = template.format(
        who=rank_words(d.ranks), call=call, peers="its peers" if len(d.ranks) == 1 else "their peers",
        expected=d.expected or call, found=d.found or "another call",
    )  # fmt: skip
    if d.kind == "dump_missing" and d.seq is not None:
        words += f", and its peers wait in {call}"
    return clean_text(f"{words}, in group {d.group}", 480)


def _next_checks(status: Status, found: FlightFindings, paths: list[str]) -> list[NextCheck]:
    if status == "in_step":
        return []
    kinds = {d.kind for d in found.divergences}
    wanted: list[tuple[str, str]] = []
    if found.culprit_ranks and kinds & {"behind_on_enqueue", "behind_on_complete"}:
        who = rank_words(found.culprit_ranks)
        wanted.append(("dump_stacks", f"the stack of {who} says what keeps it from the call its peers wait in"))
    if "behind_on_complete" in kinds:
        why = "a device that alone does not finish a call may be faulty: add its host's kernel log (dmesg -T)"
        wanted.append(("triage", why))
    if "all_joined_none_finished" in kinds:
        why = "all ranks are in the call: add logs with NCCL_DEBUG=INFO and the hosts' kernel logs (dmesg -T)"
        wanted.append(("triage", why))
    if "dump_missing" in kinds:
        absent = rank_words({r for d in found.divergences if d.kind == "dump_missing" for r in d.ranks})
        wanted.append(
            ("dump_stacks", f"{absent} left no dump: stacks or the log say whether it lived and where it stood")
        )
    if not wanted:
        wanted.append(("triage", "logs and stacks next to the dumps say why the ranks parted"))
    return [NextCheck(tool=tool, arguments={"paths": paths}, why=why) for tool, why in wanted]


def _side_by_side(divergence: Divergence) -> list[str]:
    """What the odd ranks and their peers did, one under the other, and since when; nothing for circles of waits."""
    d = divergence
    if d.kind in ("order_deadlock", "p2p_mismatch", "dump_missing"):
        return [f"since {d.since}"] if d.since else []
    their = "its peers" if len(d.ranks) == 1 else "their peers"
    if d.kind in ("behind_on_enqueue", "behind_on_complete"):
        pair = [(rank_words(d.ranks), d.found), (their, f"in {d.expected}" if d.expected else None)]
    else:
        pair = [(rank_words(d.ranks), d.found), (their, d.expected)]
    shown = [(who, did) for who, did in pair if did]
    width = max((len(who) for who, _ in shown), default=0)
    lines = [clean_text(f"{who:<{width}}  {did}", 240) for who, did in shown] if len(shown) > 1 else []
    return [*lines, f"since {d.since}"] if d.since else lines


def render(report: FlightReport) -> str:
    """Compact text for a terminal or an agent: the verdict first, then evidence, then what to do next."""
    lines = [f"{report.status}: {report.summary}"]
    lines += [f"  {line}" for line in _side_by_side(report.divergences[0])] if report.divergences else []
    lines += [f"  {line}" for line in report.picture]
    lines += [f"  then: {sentence(d)}" for d in report.divergences[1 : 1 + _RENDERED_DIVERGENCES - 1]]
    if len(report.divergences) > _RENDERED_DIVERGENCES:
        n_more = len(report.divergences) - _RENDERED_DIVERGENCES
        lines.append(f"  and {n_more} more divergence{'s' if n_more > 1 else ''} (--json lists them)")
    if report.stuck_groups:
        lines.append(f"  also unfinished: calls in {some(report.stuck_groups)}")
    if report.culprits.ranks:
        lines.append(f"culprits: {rank_words(report.culprits.ranks)}")
    if report.evidence:
        lines.append("evidence (quoted from the job):")
    lines += [
        f"  {clean_text(f'{e.artefact} {e.where} {e.quote[:120]}', 1200)}" for e in report.evidence[:_RENDERED_QUOTES]
    ]
    lines += [f"gap: {clean_text(gap, 160)}" for gap in report.gaps[:4]]
    if len(report.gaps) > 4:
        lines.append(f"gap: {len(report.gaps) - 4} more")
    lines += [f"environment: {clean_text(sentence, 200)}" for sentence in report.environment]
    lines += next_lines(report.next_checks[:3])
    return "\n".join(lines)
