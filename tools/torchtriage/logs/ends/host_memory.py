"""What kernels, Slurm and Ray tell of the host's memory when they kill a process for it: sizes, limits, whose memory.

Sources of the texts: mm/oom_kill.c of Linux 3.10 to 6.12, slurmstepd 20 to 25, Ray 2.2 to 2.50. Sizes are bytes.
"""

from __future__ import annotations

from torchtriage.lazy_re import lazy_re

_PID = lazy_re(r"[Kk]ill(?:ed)? process (?P<pid>\d{1,10})|oom-kill:.{0,600}?,task=[^,]{1,80},pid=(?P<taskpid>\d{1,10})")
_COMM = lazy_re(r"[Kk]ill(?:ed)? process \d{1,10} \((?P<comm>[^)]{1,32})\)|,task=(?P<task>[^,]{1,32}),pid=")
_KB = (
    ("total_vm_bytes", lazy_re(r"\btotal-vm:(\d{1,16})kB")),
    ("anon_rss_bytes", lazy_re(r"\banon-rss:(\d{1,16})kB")),
    ("shmem_rss_bytes", lazy_re(r"\bshmem-rss:(\d{1,16})kB")),
)
_CONSTRAINT = lazy_re(r"\boom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]{2,24})")
_CONSTRAINTS = {"MEMCG": "cgroup", "NONE": "host", "CPUSET": "cpuset", "MEMORY_POLICY": "memory_policy"}
_CGROUP = lazy_re(r"[Mm]emory cgroup out of memory|cgroup out-of-memory handler|tasks have been OOM Killed")
_HOST = lazy_re(r"(?<!cgroup )\bOut of memory: [Kk]ill")
_STEP = lazy_re(r"Detected (?P<events>\d{1,9}) oom[_-]kill event")
_NODE = lazy_re(
    r"(?P<used>\d{1,9}(?:\.\d{1,9})?)GB / (?P<total>\d{1,9}(?:\.\d{1,9})?)GB \(\d(?:\.\d{1,16})?\), which exceeds the "
    r"memory usage threshold of (?P<threshold>\d(?:\.\d{1,16})?)"
)
_OWN = lazy_re(r"\bmemory used=(?P<own>\d{1,9}(?:\.\d{1,9})?)GB")
_GB = 1 << 30


def killed_pid(text: str) -> int | None:
    """The process that the kernel killed."""
    match = _PID.search(text)
    return int(match["pid"] or match["taskpid"]) if match else None


def kill_facts(text: str) -> dict[str, int | float | str]:
    """What a line of the kernel or of slurmstepd tells: the process's name and sizes, and whose limit was met."""
    facts: dict[str, int | float | str] = {}
    if match := _COMM.search(text):
        facts["comm"] = match["comm"] or match["task"]
    facts.update((name, int(match[1]) << 10) for name, pattern in _KB if (match := pattern.search(text)))
    if match := _CONSTRAINT.search(text):
        facts["limited_by"] = _CONSTRAINTS.get(match["constraint"], match["constraint"].lower())
    elif _CGROUP.search(text):
        facts["limited_by"] = "cgroup"
    elif _HOST.search(text):
        facts["limited_by"] = "host"
    if match := _STEP.search(text):
        facts["kill_events"] = int(match["events"])
    return facts


def node_facts(text: str) -> dict[str, int | float | str]:
    """What Ray's memory monitor tells: how much of the node was used, its threshold, and the worker's own part."""
    facts: dict[str, int | float | str] = {}
    if match := _NODE.search(text):
        facts |= {
            "node_used_bytes": round(float(match["used"]) * _GB),
            "node_total_bytes": round(float(match["total"]) * _GB),
            "threshold_share": float(match["threshold"]),
            "limited_by": "ray",
        }
    if match := _OWN.search(text):
        facts["anon_rss_bytes"] = round(float(match["own"]) * _GB)
    return facts
