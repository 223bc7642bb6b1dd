"""``nvlink_health``: are the NVLinks and the GPUs of a node sound, live or from what nvidia-smi and the kernel said."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.inputs import open_inputs, path_names
from torchtriage.artefacts.isolate import Job, run_jobs
from torchtriage.errors import BadCallError
from torchtriage.nvlink.gpus import gpus_of
from torchtriage.nvlink.judge import judge
from torchtriage.nvlink.kernel_analyze import analyze as analyze_kernel
from torchtriage.nvlink.records import Gathered, report_of
from torchtriage.report import NextCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchtriage.artefacts.inputs import Inputs, Paths
    from torchtriage.artefacts.isolate import Outcome
    from torchtriage.nvlink.report import NvlinkReport

Answers = list[tuple[str, Any]]
# What may hold answers that were pasted or kept under any name.
_LINK_KINDS = ("nvidia_smi", "text", "config", "log", "kernel_log")
_KERNEL_KINDS = ("kernel_log", "log", "text")
MAX_GAPS = 40


def nvlink_health(
    paths: Paths = (),
    *,
    per_link: bool = False,
    window: float | None = None,
    baseline: Paths = (),
    roots: Sequence[Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NvlinkReport:
    """Say which NVLinks and GPUs of a node are sound: links against their model and peers, counters, fabric, memory.

    Args:
        paths: recorded output of nvidia-smi (``nvlink -s``, ``-e``, ``topo -m``, ``-q -x``, ...), of ``dcgmi nvlink``
            and of the kernel log; none asks this node.
        per_link: list every link with all of its counters.
        window: live: read the counters twice, so many seconds apart, and tell what grew.
        baseline: an earlier reading of the counters (``nvidia-smi nvlink -e``): only what grew since then counts.
        roots: when given, every path must lie inside one of these folders.
        progress: called with (files read, files in all), from other threads.

    Returns:
        ``ok``, ``degraded`` (it works, with errors), ``failed`` (a link, a GPU or the fabric is down),
        ``not_applicable`` (no NVLink to judge), ``unknown`` (too little could be read).

    Raises:
        InputNotFoundError, OutsideRootsError: see :func:`torchtriage.artefacts.inputs.open_inputs`.
        BadCallError: a window for recorded files, or one that is no length of time.
    """
    _check_window(window, paths)
    gathered = Gathered()
    earlier = _baseline(baseline, roots, gathered.gaps)
    if not path_names(paths):
        folder = _look(window or 0.0, gathered)
        roots = None
        given: Paths = [str(folder)]
    else:
        given = paths
    with open_inputs(given, roots) as inputs:
        gathered.gaps += [*inputs.gaps, *inputs.unopened()]
        links, kernel, manifests = _read(inputs, gathered.gaps, progress)
    asked = [question for _, manifest in manifests for question in manifest["unanswered"]]
    gathered.hung += [clean_text(f"{question['host'] or 'a host'}: {question['error']}", 300) for question in asked]
    gathered.seen = gpus_of(links, earlier)
    gathered.judged = judge(gathered.seen)
    gathered.compared = bool(earlier)
    gathered.kernel = analyze_kernel(kernel, _names(gathered), {}, {})
    gathered.gaps += [*gathered.seen.notes, *gathered.judged.gaps, *gathered.kernel.notes]
    if not gathered.judged.gpus and not gathered.kernel.incidents:
        gathered.gaps += [f"{clean_text(name)}: holds no answer about NVLinks" for name, _ in links[:4]]
    report = report_of(gathered, per_link=per_link)
    report.gaps = [clean_text(gap, 400) for gap in gathered.gaps][:MAX_GAPS]
    report.next_checks = _next_checks(report, gathered, path_names(given), live=not path_names(paths))
    return report


def _check_window(window: float | None, paths: Paths) -> None:
    from torchtriage.nvlink.probe import MAX_WINDOW_S

    if window is None:
        return
    if not 0 < window <= MAX_WINDOW_S:
        raise BadCallError(f"window: give a number of seconds between 0 and {MAX_WINDOW_S:.0f}")
    if path_names(paths):
        raise BadCallError("window is of a live look; compare recorded files with baseline")


def _look(window_s: float, gathered: Gathered) -> Path:
    """Ask this node, and keep its answers in a folder of our own."""
    from torchtriage.bundle.folders import default_base, private_folder
    from torchtriage.bundle.host import host_name
    from torchtriage.nvlink.probe import hangs, probe_links

    base = private_folder(default_base("torchtriage_nvlink"), f"{datetime.now():%Y%m%d-%H%M%S}")
    host = host_name()
    folder = base / host
    folder.mkdir()
    for item in probe_links(folder, host=host, window_s=window_s):
        if hangs(item):
            gathered.hung.append(clean_text(f"{' '.join(item.command)}: {item.error}"))
        elif not item.ok or not (item.path or item.kind == "kernel_log"):
            why = "; ".join(part for part in (item.error, item.reason) if part)
            gathered.gaps.append(clean_text(f"{' '.join(item.command)[:120]}: {why}", 400))
    gathered.output_dir = str(base)
    return base


def _baseline(baseline: Paths, roots: Sequence[Path] | None, gaps: list[str]) -> Answers:
    if not path_names(baseline):
        return []
    with open_inputs(baseline, roots) as inputs:
        gaps += inputs.gaps
        outcomes = run_jobs([Job("links", artefact) for artefact in inputs.of(*_LINK_KINDS)])
        answers = _answers(outcomes, gaps)
    if not any(gpu["counters"] for _, answer in answers for gpu in answer["gpus"]):
        gaps.append("the baseline holds no counters of links: keep `nvidia-smi nvlink -e` for one")
    return answers


def _read(
    inputs: Inputs, gaps: list[str], progress: Callable[[int, int], None] | None
) -> tuple[Answers, Answers, Answers]:
    jobs = [Job("links", artefact) for artefact in inputs.of(*_LINK_KINDS)]
    n_links = len(jobs)
    jobs += [Job("kernel", artefact) for artefact in inputs.of(*_KERNEL_KINDS)]
    n_all = len(jobs)
    jobs += [Job("gpu_unanswered", artefact) for artefact in inputs.of("manifest")]
    outcomes = run_jobs(jobs, progress)
    return (
        _answers(outcomes[:n_links], gaps), _answers(outcomes[n_links:n_all], []), _answers(outcomes[n_all:], gaps)
    )  # fmt: skip


def _answers(outcomes: Sequence[Outcome], gaps: list[str]) -> Answers:
    gaps += [f"{clean_text(o.artefact.name)}: {clean_text(o.error)}" for o in outcomes if o.error is not None]
    return [(o.artefact.name, o.result) for o in outcomes if o.error is None]


def _names(gathered: Gathered) -> dict[str, str]:
    return {gpu.bus: gpu.name for gpu in gathered.seen.gpus if gpu.bus and gpu.name}


def _next_checks(report: NvlinkReport, gathered: Gathered, paths: list[str], *, live: bool) -> list[NextCheck]:
    if report.status in ("ok", "not_applicable"):
        return []
    if report.status == "unknown":
        why = "on the node itself: links, counters, fabric and kernel log in one look"
        return [NextCheck(tool="nvlink_health", why=why)]
    checks: list[NextCheck] = []
    if any(finding.kind in ("errors_stand_out", "bit_errors_high") for finding in gathered.judged.faults):
        why = "on the node under load: whether these counters still grow, or are old"
        checks.append(NextCheck(tool="nvlink_health", arguments={"window": 60}, why=why))
    where = [gathered.output_dir] if live and gathered.output_dir else paths
    why = "with the kernel log and the job's logs beside them: one verdict on the cause"
    return [*checks, NextCheck(tool="triage", arguments={"paths": where}, why=why)]
