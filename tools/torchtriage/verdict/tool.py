"""The tools ``triage`` and ``explain_symptom``: gather, decide, and say it as a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.errors import BadCallError
from torchtriage.knowledge.load import load_playbook
from torchtriage.report import Verdict
from torchtriage.verdict.analyzers import judge_stacks
from torchtriage.verdict.compose import compose, compose_several_runs
from torchtriage.verdict.decide import decide
from torchtriage.verdict.findings import Findings, add_signals
from torchtriage.verdict.gather import gather, scan_logs
from torchtriage.verdict.symptom import compose_symptom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Paths

MAX_TEXT_CHARS = 2_000_000
MAX_COLLECT_GAPS = 8


def triage(
    paths: Paths = (),
    *,
    live: bool = False,
    pids: Sequence[int] | None = None,
    job: str | None = None,
    output: str | None = None,
    roots: Sequence[Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Judge what a job left behind.

    Args:
        paths: files, folders, bundles and archives: logs, flight-recorder dumps, stack dumps, RAS answers, traces,
            memory snapshots, answers of nvidia-smi, kernel logs.
        live: first ``collect`` from the job that runs on this node, then judge that bundle (with ``paths``, if any).
        pids, job, output: of a live triage, see :func:`torchtriage.collect`.
        roots: when given, every path must lie inside one of these folders.
        progress: called with (files done, files in all) while structured files are read.

    Raises:
        InputNotFoundError, OutsideRootsError: the call names something that cannot be read.
        BadCallError: of a live triage, see :func:`torchtriage.collect`.
    """
    from torchtriage.artefacts.inputs import open_inputs, path_names
    from torchtriage.verdict.runs import several_runs

    if live:
        from torchtriage.bundle.tool import collect

        collected = collect(pids=pids, job=job, output=output, progress=progress)
        if collected.bundle is None:
            return Verdict(tool="triage", status="inconclusive", summary=collected.summary)
        verdict = triage([*path_names(paths), collected.bundle], progress=progress)
        verdict.bundle = collected.bundle
        verdict.gaps[:0] = collected.gaps[:MAX_COLLECT_GAPS]  # in which what weighs most comes first
        return verdict
    book = load_playbook()
    with open_inputs(paths, roots) as inputs:
        if runs := several_runs(inputs):
            return compose_several_runs(runs, path_names(paths))
        findings = gather(inputs, book, progress)
        decision = decide(book, findings.observations, findings.ranks)
        return compose("triage", book, decision, findings, path_names(paths))


def explain_symptom(
    text: str,
    paths: Paths | None = None,
    *,
    roots: Sequence[Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Judge a pasted error or a description in words, with files beside it if there are any.

    Args:
        text: what a person would paste: log lines, a traceback, prose; ``config: key=value, ...`` may follow.
        paths: as for :func:`triage`.
        roots: as for :func:`triage`.
        progress: as for :func:`triage`.

    Raises:
        BadCallError: the text is empty or longer than two million characters.
        InputNotFoundError, OutsideRootsError: a path cannot be read.
    """
    from torchtriage.logs.scan.read import text_source
    from torchtriage.prose.analyze import said
    from torchtriage.prose.versions import versions_said
    from torchtriage.stacks.pasted import pasted_dumps

    if not text.strip():
        raise BadCallError(
            "text is empty: pass the error, the last log lines of the rank that failed, or the symptom in words"
        )
    if len(text) > MAX_TEXT_CHARS:
        raise BadCallError(f"text has {len(text)} characters: pass a log of this size as a file in paths")
    book = load_playbook()
    findings, names = Findings(), list[str]()
    if paths:
        from torchtriage.artefacts.inputs import open_inputs, path_names

        with open_inputs(paths, roots) as inputs:
            findings = gather(inputs, book, progress)
        names = path_names(paths)
    scanned = scan_logs([text_source(text)], book, findings)
    if dumps := pasted_dumps(text):
        judge_stacks([("text", dump) for dump in dumps], scanned.rank_of_pid, findings)
    add_signals([*said(text), *versions_said(text)], findings)
    decision = decide(book, findings.observations, findings.ranks)
    return compose_symptom(text, book, decision, findings, names)
