"""``collect``: everything that a job on this node can tell before it dies, in one bundle."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage import __version__
from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.collect import Collected, collect_node
from torchtriage.bundle.files import is_full, write_new
from torchtriage.bundle.folders import default_base, private_folder
from torchtriage.bundle.gaps import gaps_of, is_lacking
from torchtriage.bundle.host import host_name, require_linux
from torchtriage.bundle.interrupts import at_most_one_interrupt
from torchtriage.bundle.job_words import output_option
from torchtriage.bundle.manifest import Job, Manifest
from torchtriage.bundle.pack import ENDINGS, check_packed_name, pack
from torchtriage.bundle.processes import NothingRunsError, choose, find_processes
from torchtriage.errors import BadCallError
from torchtriage.report import NextCheck
from torchtriage.tool_reports import CollectReport
from torchtriage.wording import next_lines, pasteable, rank_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchtriage.bundle.collect import Limits
    from torchtriage.bundle.processes import JobProcess

BASE = "torchtriage_bundles"
MANIFEST = "manifest.json"
_SHOWN_FAILURES = 6


def collect(
    *,
    pids: Sequence[int] | None = None,
    output: str | None = None,
    job: str | None = None,
    native: bool = True,
    launcher: bool = False,
    force_ras: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CollectReport:
    """Look at all ranks of a job on this node at once, without harm, and write what is seen into a bundle.

    Attaches to live processes for a moment (py-spy), asks NCCL RAS, the flight recorder's pipes and nvidia-smi, copies
    the ends of the job's own logs and dumps. Never changes the job; nothing is read of an environment beyond an
    allow-list.

    Args:
        pids: ranks to look at; all of the job when None.
        output: the bundle: a folder that does not exist yet or is empty, or a file that ends in .tar.zst, .tar.gz or
            .tar. When None, a new private folder below ``$TMPDIR/torchtriage_bundles``.
        job: which job, when several run on this node: a part of its key that only one has.
        native: with native frames of the ranks, which tell a wait for the device from Python that runs.
        launcher: also the stacks of the launchers (torchrun, ...).
        force_ras: ask NCCL RAS although the version of NCCL cannot be told (some versions crash when asked).
        limits: time limits of the probes.
        progress: called with (probes done, probes in all).

    Returns:
        ``collected``; ``partial`` when the stack of some rank could not be had; ``nothing_found`` when no rank runs
        here. ``bundle`` is the path to give to ``triage``.

    Raises:
        BadCallError: no Linux, the output cannot be used, or several jobs run and none was chosen.
        NoJobError: a pid or the job that was named is not there.
    """
    require_linux()
    packed = Path(output) if output is not None and output.endswith(ENDINGS) else None
    if packed is not None:
        check_packed_name(packed)
    everything = find_processes(pids=pids or ())
    try:
        chosen = choose(everything, pids=pids, job=job)
    except NothingRunsError as error:
        return CollectReport(tool="collect", status="nothing_found", summary=str(error))
    began = datetime.now(timezone.utc)
    host = host_name()
    root = _bundle_folder(None if packed is not None else output, f"{host}-{began:%Y%m%d-%H%M%S}")
    folder = private_folder(root, host)
    found = Collected(interrupted=True)
    with at_most_one_interrupt() as interrupts:
        with contextlib.suppress(KeyboardInterrupt):
            found = collect_node(
                chosen,
                folder,
                host=host,
                native=native,
                launcher=launcher,
                force_ras=force_ras,
                limits=limits,
                progress=progress,
            )
            interrupts.no_more()
        interrupts.no_more()
        manifest = Manifest(
            torchtriage_version=__version__,
            torch_version=found.versions.torch,
            python_version=found.versions.python,
            nccl_version=found.versions.nccl,
            time=began.isoformat(timespec="seconds"),
            stopped_by=interrupts.by if found.interrupted else None,
            hosts=[host],
            job=_job(chosen),
            items=found.items,
        )
        _write_manifest(root, manifest)
        report = _report(chosen, found, packed or root, root, everything, interrupts.by)
        if packed is not None:
            pack(root, packed)
            # What was in it is in the file now; left there, bundles would fill the folder for temporary files.
            shutil.rmtree(root, ignore_errors=True)
    return report


def _bundle_folder(output: str | None, name: str) -> Path:
    if output is None:
        return private_folder(default_base(BASE), name)
    folder = private_folder(Path(output))
    if any(folder.iterdir()):
        raise BadCallError(f"{pasteable(output)} is not empty: name a new folder, so that nothing is mixed up")
    return folder


def _write_manifest(root: Path, manifest: Manifest) -> None:
    """Under its name it is whole, also when the collector is killed meanwhile.

    Raises:
        BadCallError: it cannot be written; the message says where the rest is.
    """
    unfinished = root / f".{MANIFEST}.part"
    try:
        write_new(unfinished, manifest.model_dump_json(indent=1).encode("utf-8"))
        unfinished.rename(root / MANIFEST)
    except OSError as error:
        full = "the disk is full: " if is_full(error) else ""
        raise BadCallError(
            f"{full}{MANIFEST} could not be written ({error.strerror}). What was collected until then is in "
            f"{pasteable(root)}, and can be triaged without it: make room, or collect again to another disk with "
            f"{output_option()}"
        ) from None


def _job(processes: Sequence[JobProcess]) -> Job:
    """What the ranks' environments agree on."""

    def common(*names: str) -> str | None:
        values = Counter(p.environment[name] for p in processes for name in names if name in p.environment)
        return values.most_common(1)[0][0] if values else None

    port = common("MASTER_PORT")
    sizes = Counter(p.world_size for p in processes if p.world_size is not None)
    launchers = [p for p in processes if p.role == "launcher"]
    return Job(
        run_id=common("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"),
        master_addr=common("MASTER_ADDR"),
        master_port=int(port) if port is not None and port.isascii() and port.isdigit() and len(port) < 6 else None,
        world_size=sizes.most_common(1)[0][0] if sizes else None,
        launcher=" ".join(launchers[0].command[:4]) if launchers else None,
    )


def _report(
    processes: Sequence[JobProcess],
    found: Collected,
    bundle: Path,
    root: Path,
    everything: Sequence[JobProcess],
    stopped_by: str | None,
) -> CollectReport:
    failed = [item for item in found.items if not item.ok]
    ranks = sorted({p.rank for p in processes if p.role == "rank" and p.rank is not None})
    n_ranks = sum(p.role == "rank" for p in processes)
    lacking = found.interrupted or is_lacking(failed)
    gaps = gaps_of(
        failed, processes, everything, world_size=_job(processes).world_size, interrupted=found.interrupted,
        stopped_by=stopped_by,
    )  # fmt: skip
    who = rank_words(ranks) if ranks else f"{n_ranks} process{'es' if n_ranks != 1 else ''}"
    n_files = sum(item.ok and bool(item.path) for item in found.items)
    return CollectReport(
        tool="collect",
        status="partial" if lacking else "collected",
        summary=f"{who} looked at; {n_files} files in {pasteable(bundle)}",
        gaps=gaps,
        bundle=str(bundle),
        job=processes[0].job if processes else None,
        ranks=ranks,
        size_bytes=_size_bytes(root),
        collected=dict(sorted(Counter(item.kind for item in found.items if item.ok and item.path).items())),
        next_checks=[NextCheck(tool="triage", arguments={"paths": [str(bundle)]}, why="one verdict from all of it")],
    )


def _size_bytes(root: Path) -> int:
    return sum(
        entry.stat(follow_symlinks=False).st_size
        for folder, _, names in os.walk(root)
        for entry in (Path(folder) / name for name in names)
        if not entry.is_symlink()
    )


def render(report: CollectReport) -> str:
    """Compact text: what was taken, where it is, what failed and why, and the next command."""
    lines = [f"{report.status}: {report.summary}"]
    if report.collected:
        lines.append("  " + ", ".join(f"{count} {kind}" for kind, count in report.collected.items()))
    lines += [f"gap: {clean_text(gap, 300)}" for gap in report.gaps[:_SHOWN_FAILURES]]
    if len(report.gaps) > _SHOWN_FAILURES:
        lines.append(f"gap: and {len(report.gaps) - _SHOWN_FAILURES} more (manifest.json has all)")
    return "\n".join([*lines, *next_lines(report.next_checks)])
