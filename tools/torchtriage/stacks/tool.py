"""``dump_stacks``: what each rank of a job is doing, from dumps that py-spy, faulthandler or pystack wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.identity import identity_of
from torchtriage.artefacts.inputs import Artefact, Inputs, open_inputs, path_names
from torchtriage.artefacts.isolate import read_isolated
from torchtriage.artefacts.text import read_lines
from torchtriage.errors import BadCallError, UnreadableError
from torchtriage.report import Culprits, NextCheck
from torchtriage.stacks.analyze import StackFindings, analyze
from torchtriage.stacks.classify import WAITING
from torchtriage.stacks.read import REFUSED
from torchtriage.tool_reports import StacksReport
from torchtriage.wording import next_lines, rank_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Paths
    from torchtriage.report import Signal
    from torchtriage.tool_reports import RankStack

_RECORD_FIRST = (
    "pass recorded dumps: run `py-spy dump --native --pid PID > stacks/rank-N.txt` for each rank's "
    "process, then give the folder"
)

_FLIGHT_OF_LIVE = (
    "takes the flight record of every rank with the stacks, where the job keeps one: it shows which rank lacks the "
    "collective that the others wait in; then triage the bundle"
)


def dump_stacks(
    paths: Paths | None = None,
    *,
    pids: Sequence[int] | None = None,
    job: str | None = None,
    native: bool = True,
    output_dir: str | None = None,
    live: bool = False,
    roots: Sequence[Path] | None = None,
) -> StacksReport:
    """Say what each rank's main thread is doing and which rank is not waiting for the others.

    Args:
        paths: files, folders or archives with recorded stack dumps (and ``rank-of-pid<P>`` notes).
        pids: running ranks to dump; their children come with them.
        job: the job on this node whose ranks are dumped, by a part of its key; needed when several run.
        native: with native frames of running ranks.
        output_dir: where dumps of running ranks are kept; ``$TMPDIR/halo_diag_stacks`` when None.
        live: dump the ranks of the one job that runs here. ``pids``, ``job`` and ``output_dir`` imply it.
        roots: when given, only paths inside these folders are opened.

    Raises:
        BadCallError: neither ``paths`` nor anything live was asked for, or both; see also ``stacks.live``.
        InputNotFoundError, OutsideRootsError: a path cannot be opened, or no rank runs here.
    """
    if live or pids or job or output_dir:
        if paths:
            raise BadCallError("recorded dumps and running processes are looked at by separate calls")
        from torchtriage.stacks.live import dump_live

        dumped = dump_live(pids, job, native=native, output_dir=output_dir)
        report = _judge([str(dumped.folder)], None, dumped.failures)
        report.output_dir = str(dumped.folder)
        if any(check.tool == "analyze_flight_recorder" for check in report.next_checks):
            # What was dumped here holds no flight record: the job must be asked for it.
            report.next_checks = [NextCheck(tool="collect", arguments={"job": dumped.job}, why=_FLIGHT_OF_LIVE)]
        return report
    if not paths:
        raise BadCallError(f"no paths: {_RECORD_FIRST}; or look at running ranks: --live, --pid PID or --job JOB")
    return _judge(paths, roots, [])


def _judge(paths: Paths, roots: Sequence[Path] | None, failures: list[str]) -> StacksReport:
    with open_inputs(paths, roots) as inputs:
        dumps, rank_of_pid, gaps = read_dumps(inputs)
        # Why a process that was looked at just now could not be read is among the failures, with what to do.
        gaps = [*failures, *inputs.gaps, *inputs.unopened(), *(g for g in gaps if not failures or REFUSED not in g)]
    findings = analyze(dumps, rank_of_pid)
    return _report(findings, gaps, path_names(paths))


def read_dumps(inputs: Inputs) -> tuple[list[tuple[str, dict[str, Any]]], dict[int, int], list[str]]:
    """Read all stack dumps and rank notes among the inputs: dumps by name, the rank of each pid, and gaps."""
    gaps: list[str] = []
    dumps: list[tuple[str, dict[str, Any]]] = []
    readable = [artefact for artefact in inputs.of("stack_dump") if artefact.format in ("json", "text")]
    for outcome in read_isolated("stacks", readable):
        shown = clean_text(outcome.artefact.name)
        if outcome.error is not None:
            gaps.append(f"{shown}: {clean_text(outcome.error)}")
            continue
        gaps.extend(f"{shown}: {clean_text(note)}" for note in (*outcome.result["notes"], *outcome.result["choices"]))
        dumps.append((outcome.artefact.name, outcome.result))
    rank_of_pid, conflicts = ranks_of_pids(inputs.of("rank_note"))
    gaps.extend(conflicts)
    return dumps, rank_of_pid, gaps


def ranks_of_pids(notes: Sequence[Artefact]) -> tuple[dict[int, int], list[str]]:
    """The ranks that notes record; a pid with two ranks (one on each of two hosts) is left to the dumps' names."""
    ranks: dict[int, set[int]] = {}
    for artefact in notes:
        pid = identity_of(artefact.name).pid
        if pid is None:
            continue
        try:
            text = next(iter(read_lines(artefact)), "").strip()
        except UnreadableError:
            continue
        if text.isascii() and text.isdigit() and len(text) <= 7:
            ranks.setdefault(pid, set()).add(int(text))
    gaps = [
        f"pid {pid} is recorded with {len(found)} different ranks; its rank was taken from the names of its dumps"
        for pid, found in ranks.items()
        if len(found) > 1
    ]
    return {pid: next(iter(found)) for pid, found in ranks.items() if len(found) == 1}, gaps


def _report(findings: StackFindings, gaps: list[str], paths: list[str]) -> StacksReport:
    gaps = [*gaps, *findings.notes]
    if not findings.ranks:
        if not gaps:
            gaps.append("no stack dump was found in what was given")
        return StacksReport(
            tool="dump_stacks", status="inconclusive", summary=f"no stack could be read: {_RECORD_FIRST}", gaps=gaps
        )
    evidence = [each for signal in findings.signals for each in signal.evidence]
    moved = {rank for signal in findings.signals if signal.name == "stacks.moving" for rank in signal.scope.ranks}
    if moved.issuperset(findings.culprit_ranks):  # whoever goes on is not what the others wait for
        findings = replace(findings, culprit_ranks=[])
    return StacksReport(
        tool="dump_stacks",
        status="fault" if findings.culprit_ranks else "inconclusive",
        summary=_summary(findings) + _two_looks(findings),
        gaps=gaps,
        next_checks=_next_checks(findings, paths),
        ranks=findings.ranks,
        groups=findings.groups,
        culprits=Culprits(ranks=findings.culprit_ranks),
        evidence=evidence,
    )


def _summary(findings: StackFindings) -> str:
    ranks = findings.ranks
    if findings.culprit_ranks:
        first = next(each for each in ranks if each.rank in findings.culprit_ranks)
        others = sum(each.state in WAITING for each in ranks)
        n = len(findings.culprit_ranks)
        who = f"rank{'s' if n > 1 else ''} {rank_ranges(findings.culprit_ranks)} {'are' if n > 1 else 'is'}"
        return (
            f"{who} not waiting for the others: {_doing(first)}, "
            f"while {others} rank(s) wait for the device or in a collective"
        )
    if len(ranks) == 1:
        only = ranks[0]
        name = f"rank {only.rank}" if only.rank is not None else f"process {only.pid}"
        if only.state == "unreadable":
            return f"{name} could not be read, so that where it stands is not known"
        if only.state == "exited":
            return f"{name} has ended, so that it has no stack; dump its peers"
        return f"{name} is {_doing(only)}; one process alone cannot show which rank is missing: dump its peers"
    if all(each.state in WAITING for each in ranks):
        different = next((s for s in findings.signals if s.name == "stacks.different_place"), None)
        if different is not None:
            return (
                f"all {len(ranks)} ranks wait, but not at one place: {different.facts['where']} against "
                f"{different.facts['majority_where']}; compare their flight-recorder dumps"
            )
        return (
            f"all {len(ranks)} ranks wait for the device or in a collective{_at(ranks[0].where)}: stacks cannot tell "
            "which one is missing; look at the flight recorder"
        )
    others = [each for each in ranks if each.state not in WAITING]
    if len(others) == 1 and others[0].state not in ("unreadable", "exited"):
        (one,) = others
        name = f"rank {one.rank}" if one.rank is not None else f"process {one.pid}"
        sure = "does not wait" if any(_is_of(signal, one) for signal in findings.signals) else "may not wait"
        return (
            f"{name} {sure} with the others: {_doing(one)}, while {len(ranks) - 1} rank(s) wait for the device or in "
            "a collective; this sample does not show that it is stuck"
        )
    states = sorted({each.state for each in ranks})
    return f"{len(ranks)} processes, states {', '.join(states)}: no single rank stands out in this sample"


def _doing(one: RankStack) -> str:
    return f"{one.state}{_at(one.where)}"


def _at(where: str) -> str:
    """A place in words; of a process without frames there is none."""
    return f" at {where}" if where else ""


def _is_of(signal: Signal, one: RankStack) -> bool:
    """Whether a signal says for certain that this process is in its state."""
    mine = one.rank in signal.scope.ranks if one.rank is not None else one.pid in signal.facts.get("pids", ())
    return signal.name == f"stacks.{one.state}" and mine and signal.facts.get("certain") is True


def _two_looks(findings: StackFindings) -> str:
    """Who stood and who moved between two looks, where there are two."""
    words = {"stacks.still": "stood still", "stacks.moving": "moved on"}
    said = [
        f"rank {rank_ranges(signal.scope.ranks)} {words[signal.name]}"
        for signal in findings.signals
        if signal.name in words and signal.scope.ranks
    ]
    return f"; between two looks {' and '.join(said)}" if said else ""


def _next_checks(findings: StackFindings, paths: list[str]) -> list[NextCheck]:
    states = {each.state for each in findings.ranks}
    checks: list[NextCheck] = []
    if states & WAITING and not findings.culprit_ranks:
        checks.append(
            NextCheck(
                tool="analyze_flight_recorder",
                arguments={"paths": paths},
                why="it shows which rank's sequence of collectives lacks the one that the others wait in",
            )
        )
    unsure = [
        signal
        for signal in findings.signals
        if signal.facts.get("certain") is False and signal.name in ("stacks.python_running", "stacks.waiting_on_gpu")
    ]
    if unsure:
        checks.append(
            NextCheck(
                tool="dump_stacks",
                arguments={"paths": paths},
                why="native frames tell a wait for the device from running Python code: add dumps made with "
                "`py-spy dump --native` to these, or collect from the running job",
            )
        )
    return checks


def render(report: StacksReport) -> str:
    """The report as compact text: verdict, one line per group of ranks, gaps, next check as a command."""
    lines = [f"{report.status}: {report.summary}"]
    state_of = {each.rank: each.state for each in report.ranks if each.rank is not None}
    for group in report.groups[:8]:
        state = state_of.get(group.ranks[0], "unreadable") if group.ranks else "unreadable"
        where = " < ".join(_brief(group.frames)) or "no frames"
        lines.append(f"  rank {rank_ranges(group.ranks)}: {state}  {where}")
    if len(report.groups) > 8:
        lines.append(f"  and {len(report.groups) - 8} more places")
    lines += [
        f"  pid {each.pid}: {each.state}  {each.where or 'no frames'}" for each in report.ranks if each.rank is None
    ][:8]
    lines += [f"  {each.artefact}:{each.where}  {each.quote[:100]}" for each in report.evidence[:3]]
    if report.output_dir is not None:
        lines.append(f"  dumps: {report.output_dir}")
    lines += [f"gap: {gap}" for gap in report.gaps[:4]]
    if len(report.gaps) > 4:
        lines.append(f"gap: and {len(report.gaps) - 4} more")
    text = "\n".join(clean_text(line, 320) for line in lines[:1]) + "".join(
        f"\n{'  ' if line.startswith('  ') else ''}{clean_text(line, 300)}" for line in lines[1:]
    )
    # A command is shown whole, or it could not be pasted.
    return "\n".join([text, *next_lines(report.next_checks[:2])])


def _brief(frames: list[str]) -> list[str]:
    if len(frames) <= 2:
        return frames
    return [frames[0], frames[-1]]
