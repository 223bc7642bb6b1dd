"""Will the flight recorder of a running process record, and where: from what it was started with and has loaded.

Only /proc is read. What the program itself set later is not seen.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight import job_files
from torchtriage.flight.environment import Checked, check_environment
from torchtriage.flight.prefix import OLDER_DEFAULT, PIPE_NAME, PREFIX_NAMES
from torchtriage.flight.probe import NAMES, prefixes_of
from torchtriage.flight.torch_version import has_torch, torch_version_of
from torchtriage.flight.worker_server import SOCKET_NAME
from torchtriage.ras.nccl_version import mapped_libraries

if TYPE_CHECKING:
    from torchtriage.bundle.processes import JobProcess


def environment_of_job(process: JobProcess, *, proc: Path = Path("/proc")) -> Checked:
    """What :func:`check_environment` says of a running process: will its flight recorder record, and where.

    Of a process that has no torch loaded nothing can be said; that it says, and whether a launcher gave it a rank.
    """
    with_torch = has_torch(process.pid, proc)
    if not with_torch:
        return Checked((), (_without_torch(process, readable=with_torch is not None),), known=False)
    environment = dict(process.environment)
    variables = job_files.variables_of(process.pid, NAMES, proc)
    environment.update({name: variables[name] for name in (*PREFIX_NAMES, PIPE_NAME) if name in variables})
    uses_nccl = bool(mapped_libraries(process.pid, proc))
    version = torch_version_of(process.pid, proc, uid=process.uid)
    checked = check_environment(
        environment,
        version,
        uid=process.uid,
        root=None if _sees_what_we_see(process.pid, proc) else proc / str(process.pid) / "root",
        backend=None if uses_nccl else "gloo",
    )
    prefixes, configured = prefixes_of(process, variables)
    number = "<rank>" if process.rank is None else str(process.rank)
    where = clean_text(prefixes[0] + number, 200)
    if not configured:
        where += f" (in older releases to {OLDER_DEFAULT}{number})"
    remark = f"Remark: this process's dumps go to {where}, if the program itself sets no other prefix."
    if process.rank is None:
        remark += " No variable that it was started with tells its rank."
    remarks = [*checked.remarks, remark]
    if variables.get(SOCKET_NAME):
        remarks.append("Remark: its worker server may be asked for the record while it hangs, which collect does.")
    return replace(checked, remarks=tuple(remarks))


def _without_torch(process: JobProcess, *, readable: bool) -> str:
    if not readable:
        return (
            "Whether this process has torch loaded cannot be seen: run this as its user or as root. Nothing is known "
            "of its flight recorder."
        )
    rank = "no variable of its environment tells a rank" if process.rank is None else f"it is rank {process.rank}"
    return (
        f"This process has no torch loaded (no libtorch is mapped), and {rank}: it "
        + ("is no training process" if process.rank is None else "has not imported torch yet")
        + ", so that it has no flight recorder that could be told of."
    )


def _sees_what_we_see(pid: int, proc: Path) -> bool:
    try:
        return job_files.as_seen_here("/", pid, proc) == "/"
    except OSError:
        return True
