"""Why py-spy could not read a process, as far as /proc tells, and what to do about it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchtriage.bundle import proc_files
from torchtriage.stacks.guard import stat_of, tracer_of
from torchtriage.stacks.refusals import NO_PYTHON, THE_PROCESS_HAS_ENDED, refusal_in

DEEP_SLEEP = (
    "a thread sleeps in the kernel where nothing can stop it (state D), mostly for a file system or a driver: its "
    "wchan and kernel stack say for what"
)
_SYS_PTRACE = 1 << 19
_FREE_THREADED = re.compile(r"python\d\.\d{1,2}t")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_CONTAINER_FLAG = "add it with `docker run --cap-add SYS_PTRACE` (Kubernetes: securityContext.capabilities.add)"
_YAMA_SAYS = {
    1: "kernel.yama.ptrace_scope is 1, so that only a parent may trace: run this as root, or set it to 0",
    2: "kernel.yama.ptrace_scope is 2, so that only root may trace: run this as root",
    3: "kernel.yama.ptrace_scope is 3, so that nothing may be traced until the node is booted again; "
    "only dumps that the job itself writes (faulthandler) can help",
}


def obstacle(pid: int, error: str, *, timed_out: bool = False, cut: bool = False) -> str:
    """What kept py-spy from reading the process, and what to do.

    Args:
        pid: the process.
        error: what py-spy said.
        timed_out: it did not end within its time limit.
        cut: it wrote more than is kept.
    """
    stat = stat_of(pid)
    if stat is None or stat[0] in "ZX":
        return THE_PROCESS_HAS_ENDED
    if cut:
        return (
            "py-spy wrote more than is kept of one process: it has very many threads or very deep stacks; "
            f"`pystack remote {pid}` shows them"
        )
    refusal = refusal_in(error.splitlines())
    lowered = error.lower()
    if "permission denied" in lowered or ("not permitted" in lowered and not tracer_of(pid)):
        return _permission(pid)
    if tracer := tracer_of(pid):
        return (
            f"process {tracer} ({_name(tracer)}) traces it already: end that one, or read it with "
            "`py-spy dump --nonblocking`"
        )
    if NO_PYTHON in error:
        return _not_python(pid)
    if timed_out:
        if stat[0] == "D":
            return DEEP_SLEEP
        return "py-spy did not end in time: the node may be overloaded, or a thread cannot be stopped; try again later"
    if refusal is not None:
        return str(refusal["meaning"])
    return "py-spy could not read it; `pystack remote PID` reads processes in another way"


def without_stack(pid: int) -> tuple[str, str] | None:
    """Of what has no stack of a program (a zombie, a thread of the kernel): what is the matter, and what that means."""
    stat = proc_files.parse_stat(proc_files.read(f"/proc/{pid}/stat", 4096))
    if stat is None:
        return None
    if stat.state in "ZX":
        return THE_PROCESS_HAS_ENDED, "it is a zombie: its parent has not yet asked how it ended"
    if stat.is_kernel_thread:
        return "a thread of the kernel, not a program", "give the pid of a rank's own process"
    return None


def _permission(pid: int) -> str:
    scope = _yama()
    if scope == 3:
        return _YAMA_SAYS[3]
    owner = _owner(pid)
    inside = _in_container()
    if os.geteuid() == 0:
        if not _has_sys_ptrace():
            where = "this container" if inside else "this shell"
            return f"{where} is root without CAP_SYS_PTRACE: {_CONTAINER_FLAG}, or look from the host"
        return "a security module or another user namespace forbids tracing it: look from the host or its own container"
    if owner is not None and owner != os.geteuid():
        return f"the process belongs to user {owner} and this is user {os.geteuid()}: run this as root or as that user"
    if scope in _YAMA_SAYS:
        return _YAMA_SAYS[scope] + (f"; in a container {_CONTAINER_FLAG}" if inside else "")
    if inside:
        return f"this container does not allow tracing: {_CONTAINER_FLAG}, or look from the host"
    return "the process has rights that this one lacks, or does not let itself be traced: run this as root"


def _not_python(pid: int) -> str:
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return "it is no Python process, or one that this py-spy does not know"
    shown = "".join(c for c in program if c.isprintable())[:80]
    if _FREE_THREADED.match(program):
        return f"{shown} is a free-threaded build, which py-spy cannot read: use `pystack remote {pid}`"
    if program.startswith(("python", "pypy")):
        return (
            f"{shown} is a build of Python that this py-spy does not know (static, stripped or too new): install the "
            f"newest py-spy, or use `pystack remote {pid}`"
        )
    return f"{shown} is not Python, and only Python can be dumped: give the pid of a rank's own process"


def _yama() -> int | None:
    try:
        return int(_YAMA.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _has_sys_ptrace() -> bool:
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & _SYS_PTRACE)


def _in_container() -> bool:
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    # systemd-nspawn, podman and LXC set it in lower case.
    return any(os.environ.get(name) for name in ("container", "SINGULARITY_NAME", "APPTAINER_NAME"))


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace")
    except OSError:
        return "gone"
    return "".join(c for c in name if c.isprintable())[:32]
