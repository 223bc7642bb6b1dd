"""Statements about ends of processes that stand in one line: of torch.multiprocessing.spawn, DeepSpeed's launcher, Open
MPI, Ray, Lightning, SkyPilot, systemd, shells, the kernel, and Slurm's accounting. What spans lines is in ``launcher``
and ``pods``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.ends.host_memory import kill_facts, killed_pid, node_facts
from torchtriage.logs.ends.records import LauncherRecord, status_of, status_of_signal, status_of_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtriage.logs.records import Line

_CHARS = 4096
_OOM = "oom_kill"


def _first(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.search(text, 0, _CHARS)


def _oom_kill(text: str, line: Line) -> list[LauncherRecord]:
    """The kernel's, Slurm's or a container's words for a kill because of host memory."""
    return [LauncherRecord("oom_kill", line, pid=killed_pid(text[:_CHARS]), exitcode=-9, reason=_OOM,
                           memory=kill_facts(text[:_CHARS]))]  # fmt: skip


def _oom_kill_sizes(text: str, line: Line) -> list[LauncherRecord]:
    """``Killed process 957 (python) total-vm:...``: the second line of older kernels, without a reason of its own."""
    if "ut of memory: " in text[:_CHARS] or "total-vm:" not in text[:_CHARS]:
        return []
    return _oom_kill(text, line)


def _cancelled(text: str, line: Line) -> list[LauncherRecord]:
    """``*** JOB 1 ON node CANCELLED AT ... DUE TO TIME LIMIT ***``."""
    match = _first(_CANCELLED, text)
    if match is None:
        return []
    why = match["why"].strip().lower().replace(" ", "_")
    # The node that is named is the one that speaks for the whole job, not one on which something happened.
    return [LauncherRecord("cancelled", line, exitcode=-15, reason=why)]


_CANCELLED = lazy_re(r"CANCELLED AT .{1,40}? DUE TO (?P<why>[A-Z][A-Z ]{0,40})", re.DOTALL)


def _accounting(text: str, line: Line) -> list[LauncherRecord]:
    """A row of ``sacct``, or ``JobState=`` of ``scontrol show job``, of a job that failed."""
    match = _first(_SACCT, text) or _first(_SCONTROL, text)
    if match is None:
        return []
    reason, exitcode = next(
        (meaning for state, meaning in _STATES.items() if match["state"].startswith(state)), (None, None)
    )
    groups = match.groupdict()
    if exitcode is None and groups.get("code") is not None:
        code, number = int(groups["code"]), int(groups["signal"])
        exitcode = -number if 0 < number < 65 else status_of(groups["code"]) if code else None
    if reason is None and exitcode is None:
        return []
    return [LauncherRecord("slurm_accounting", line, exitcode=exitcode, reason=reason)]


# Names are cut to the width of the column, with a plus sign.
_STATES: dict[str, tuple[str | None, int | None]] = {
    "OUT_OF_ME": (_OOM, -9), "NODE_FAIL": ("node_failure", None), "TIMEOUT": ("time_limit", -15),
    "PREEMPTED": ("preemption", -15), "CANCELLED": ("cancelled", -15), "FAILED": (None, None),
}  # fmt: skip
_STATE = r"(?P<state>OUT_OF_ME\w{0,4}|NODE_FAIL|TIMEOUT|PREEMPTED|CANCELLED|FAILED)\+?"
_SACCT = lazy_re(
    r"^\s{0,8}\d{1,12}(?:_\d{1,7})?(?:\.(?:\d{1,6}|batch|exte\w{0,2}\+?|inter\w{0,7}\+?))?[ |]"
    rf"(?:.{{0,300}}?[ |])?{_STATE}(?: by \d{{1,10}})?(?=[ |])"
    r"(?:.{0,200}?[ |](?P<code>\d{1,3}):(?P<signal>\d{1,3})(?![\d:]))?"
)
_SCONTROL = lazy_re(rf"\bJobState={_STATE}(?=[ ,]|$)")


def _deepspeed_kill(text: str, line: Line) -> list[LauncherRecord]:
    """``Killing subprocess 957``."""
    match = re.search(r"Killing subprocess (\d{1,10})", text)
    return [LauncherRecord("deepspeed_kill", line, pid=int(match[1]), is_order=True)] if match else []


def _deepspeed_exit(text: str, line: Line) -> list[LauncherRecord]:
    """``['python', 'train.py', '--local_rank=3'] exits with return code = 1``."""
    match = re.search(r"exits with return code = (-?\d{1,5})", text)
    if match is None or int(match[1]) == 0:
        return []
    local = re.search(r"--local_rank[=', ]{1,5}(\d{1,4})\b", text[:_CHARS])
    return [LauncherRecord("deepspeed_exit", line, exitcode=status_of(match[1]), first_observed=True,
                           local_rank=int(local[1]) if local else None)]  # fmt: skip


def _elastic_restart(text: str, line: Line) -> list[LauncherRecord]:  # noqa: ARG001
    """``Worker group FAILED. 2/3 attempts left; will restart worker group``: what ended before was begun again."""
    return [LauncherRecord("elastic_restart", line, is_order=True)]


def _spawn(text: str, line: Line) -> list[LauncherRecord]:
    """``process 1 terminated with signal SIGSEGV`` (torch.multiprocessing.spawn)."""
    match = _first(_SPAWN, text)
    if match is None:
        return []
    code = status_of_signal(match["signal"]) if match["signal"] else int(match["code"])
    return [LauncherRecord("spawn_exit", line, rank=int(match["rank"]), exitcode=code, first_observed=True)]


_SPAWN = lazy_re(
    r"[pP]rocess (?P<rank>\d{1,7}) terminated with (?:signal (?P<signal>SIG[A-Z]{2,8})|exit code (?P<code>\d{1,5}))"
)


def _ray(text: str, line: Line) -> list[LauncherRecord]:
    """Ray's words for a worker that is gone, other than because it was meant to be."""
    if "INTENDED_" in text:
        return []
    memory = _RAY_MEMORY.search(text, 0, _CHARS) is not None
    pid = re.search(r"\b(?:pid|PID)[=:]\s?(\d{1,10})", text)
    code = re.search(r"\bexit code[:=]? (-?\d{1,5})", text)
    exitcode = -9 if memory else status_of(code[1]) if code and int(code[1]) else None
    address = re.search(r"\b(?:ip=|ip: |IP: )(\d{1,3}(?:\.\d{1,3}){3})\b", text)
    return [
        LauncherRecord("ray", line, pid=int(pid[1]) if pid else None, exitcode=exitcode,
                       host=address[1] if address else None, reason=_OOM if memory else None,
                       memory=node_facts(text[:_CHARS]) if memory else {})
    ]  # fmt: skip


_RAY_MEMORY = lazy_re(r"low on memory|memory usage threshold|memory pressure|killed by (?:the )?OOM killer")


def _lightning_child(text: str, line: Line) -> list[LauncherRecord]:
    """``Child process with PID 957 terminated with code -9.``: Lightning's launcher."""
    match = re.search(r"Child process with PID (\d{1,10}) terminated with code (-?\d{1,5})", text)
    if match is None or int(match[2]) == 0:
        return []
    return [LauncherRecord("lightning_child", line, pid=int(match[1]), exitcode=status_of(match[2]),
                           first_observed=True)]  # fmt: skip


def _subprocess(text: str, line: Line) -> list[LauncherRecord]:
    """``Command '[...]' died with <Signals.SIGSEGV: 11>.``, as Accelerate's launcher passes it on."""
    match = _first(_SUBPROCESS, text)
    if match is None:
        return []
    code = status_of_signal(match["signal"]) if match["signal"] else status_of(match["code"])
    return [LauncherRecord("subprocess", line, exitcode=code)] if code else []


_SUBPROCESS = lazy_re(r"died with <Signals\.(?P<signal>SIG[A-Z]{2,8})|returned non-zero exit status (?P<code>\d{1,5})")


def _sky(text: str, line: Line) -> list[LauncherRecord]:
    """``failed with return code list: [0, 137]``: SkyPilot, one code per node."""
    match = re.search(r"return code list:? ?\[([\d, \-]{1,2000})\]", text)
    codes = [part.strip() for part in match[1].split(",")] if match else []
    statuses = {status_of(code) for code in codes if code.lstrip("-").isdigit() and int(code) != 0}
    return [LauncherRecord("skypilot", line, exitcode=status) for status in sorted(s for s in statuses if s)]


def _systemd(text: str, line: Line) -> list[LauncherRecord]:
    """``Main process exited, code=killed, status=9/KILL``."""
    match = re.search(
        r"[pP]rocess exited, code=(?:killed|dumped|exited), status=(?P<code>\d{1,3})/(?P<word>\w{1,16})", text
    )
    if match is None or int(match["code"]) == 0:
        return []
    by_signal = status_of_signal(match["word"])
    return [LauncherRecord("systemd", line, exitcode=status_of(match["code"]) if by_signal is None else by_signal)]


def _shell(text: str, line: Line) -> list[LauncherRecord]:
    """``run.sh: line 3: 957 Segmentation fault      (core dumped) python train.py``, or only the words."""
    match = _SHELL.match(text[:400].strip())
    if match is None:
        return []
    pid = int(match["pid"]) if match["pid"] else None
    return [LauncherRecord("shell", line, pid=pid, exitcode=status_of_words(match["what"]))]


_SHELL = lazy_re(
    r"(?:\S{1,200}: (?:line \d{1,7}: {1,8})?(?P<pid>\d{1,10})?:? {0,8})?"
    r"(?P<what>Killed|(?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception)"
    r"\s{1,20}\(core dumped\))(?:\s{1,20}\S.{0,300})?$"
)


def _exit_code(text: str, line: Line) -> list[LauncherRecord]:
    """``trainer-1 exited with code 137``, ``command terminated with exit code 137``: docker compose and kubectl."""
    match = _first(_EXITED, text)
    status = status_of(match["code"] or match["of_command"]) if match else None
    if match is None or not status:
        return []
    return [LauncherRecord("container", line, exitcode=status, host=match["name"])]


_EXITED = lazy_re(
    r"^(?P<name>[A-Za-z][\w.\-]{0,100}) exited with code (?P<code>\d{1,3})\b"
    r"|command terminated with exit code (?P<of_command>\d{1,3})\b"
)


ENDS: dict[str, Callable[[str, Line], list[LauncherRecord]]] = {
    "oom_kill": _oom_kill,
    "oom_kill_sizes": _oom_kill_sizes,
    "cancelled": _cancelled,
    "slurm_accounting": _accounting,
    "elastic_restart": _elastic_restart,
    "deepspeed_kill": _deepspeed_kill,
    "deepspeed_exit": _deepspeed_exit,
    "spawn_exit": _spawn,
    "ray_memory": _ray,
    "ray_died": _ray,
    "lightning_child": _lightning_child,
    "subprocess": _subprocess,
    "skypilot": _sky,
    "systemd": _systemd,
    "shell": _shell,
    "container": _exit_code,
}
