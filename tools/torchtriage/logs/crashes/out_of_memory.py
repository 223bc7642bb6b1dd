"""The numbers of an allocator's out-of-memory message, and what they mean in proportion.

Knows the texts of torch 1.0 to 2.14 for CUDA, ROCm, XPU, NPU and Apple's MPS, also where they are broken over lines or
cut. What a message does not tell stays None: nothing is worked out from numbers that are missing. Does not say why the
memory was full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    import re

MAX_CHARS = 4096
_MAX_PROCESSES = 64
# A number that a line break tore apart ("60. 71 GiB") is none.
_SIZE = (
    r"(?<![\d.])(?<!\d )(?<!\d\. )(?P<number>\d{1,20}(?:\.\d{1,6})?) (?P<unit>bytes|B|[KMGT]i?B)(?![A-Za-z])"
)  # fmt: skip
# format_size of c10 counts in powers of 1024; so does that of MPS, which wrote KB, MB and GB in older versions.
_UNITS = {"bytes": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("requested_bytes", lazy_re(rf"Tried to allocate {_SIZE}")),
    ("total_bytes", lazy_re(rf"total capaci?ty of {_SIZE}")),
    ("total_bytes", lazy_re(rf"{_SIZE} total capacity")),
    ("free_bytes", lazy_re(rf"of which {_SIZE} is free")),
    ("free_bytes", lazy_re(rf"{_SIZE} free[;)]")),
    ("this_process_bytes", lazy_re(rf"this process has {_SIZE} memory in use")),
    ("allocated_bytes", lazy_re(rf"{_SIZE} is allocated by PyTorch")),
    ("allocated_bytes", lazy_re(rf"{_SIZE} already allocated")),
    ("allocated_bytes", lazy_re(rf"MPS allocated: {_SIZE}")),
    ("reserved_unallocated_bytes", lazy_re(rf"{_SIZE} is reserved by PyTorch but unallocated")),
    ("reserved_bytes", lazy_re(rf"{_SIZE} reserved in total by PyTorch")),
    ("allowed_bytes", lazy_re(rf"{_SIZE} allowed;")),
    ("allowed_bytes", lazy_re(rf"max allowed: {_SIZE}")),
    ("private_pools_bytes", lazy_re(rf"{_SIZE} allocated in private pools")),
    # Until torch 1.3 what was cached did not include what was allocated.
    ("reserved_unallocated_bytes", lazy_re(rf"{_SIZE} cached\)")),
)
_PROCESS = lazy_re(rf"\bProcess (?P<pid>\d{{1,10}}) has {_SIZE} memory in use")
_GPU = lazy_re(r"\b(?:GPU|NPU|GCU) (?P<gpu>\d{1,4})\b(?=;| has a total)")
_DEVICE = lazy_re(
    r"\b(?P<device>CUDA|HIP|XPU|NPU|MPS)(?: backend)? out of memory|"
    r"\b(?P<runtime>CUDA|HIP) (?:[eE]rror: |runtime error \(2\) : )out of memory|\bOut of memory\. Tried to allocate "
)
_ALLOCATORS = lazy_re(r"[oO]ut of memory(?:\. (?:Tried to allocate|Allocation was) | \(MPS allocated: )")
_CAPPED = "would exceed per_process_memory_fraction limit"
_CORRUPT = "Tried to allocate more than 1EB"
# No card holds as much in the foreseeable future: the size was computed from something negative or overflown.
_IMPOSSIBLE_BYTES = 1 << 50
# What stands at the end of the numbers, in each version.
_LAST_NUMBER = lazy_re(
    r"but unallocated|reserved in total|\d[A-Za-z ]{1,7}cached\)|private pool\b|shared pool\b|more than 1EB"
)


def says_out_of_memory(text: str) -> bool:
    """Whether a text says, in software's own words, that the memory of a device ran out."""
    return _DEVICE.search(text, 0, MAX_CHARS) is not None


def is_cut(text: str) -> bool:
    """Whether an allocator's message ends before its last number, so that the next line may go on with it."""
    return _ALLOCATORS.search(text, 0, MAX_CHARS) is not None and _LAST_NUMBER.search(text, 0, MAX_CHARS) is None


def memory_facts(message: str) -> dict[str, Any]:
    """The numbers of an allocator's out-of-memory message, in bytes, and their proportions; None is not told.

    Args:
        message: as printed; it may be broken over lines, between words or inside them.
    """
    lines = message[:MAX_CHARS].split("\n")
    spaced = " ".join(" ".join(lines).split())
    texts = [spaced] if len(lines) == 1 else [spaced, "".join(line.strip("\r") for line in lines)]
    facts: dict[str, Any] = dict.fromkeys(name for name, _ in _SIZES)
    for name, pattern in _SIZES:
        for text in texts:
            if facts[name] is None and (match := pattern.search(text)):
                facts[name] = _bytes(match)
    _add_reserved(facts)
    listed = {int(match["pid"]): _bytes(match) for match in _PROCESS.finditer(spaced)}
    facts["this_process_bytes"], others = _own_and_others(facts, dict(list(listed.items())[:_MAX_PROCESSES]))
    facts["other_pids"], facts["other_processes_bytes"] = list(others), list(others.values())
    facts["n_other_processes"] = len(others)
    gpu = _GPU.search(spaced)
    facts["gpu"] = int(gpu["gpu"]) if gpu else None
    device = _DEVICE.search(spaced)
    facts["device"] = (device["device"] or device["runtime"] or None) if device else None
    facts["caching_allocator"] = _ALLOCATORS.search(spaced) is not None
    requested = facts["requested_bytes"]
    facts["corrupt_size"] = _CORRUPT in spaced or (requested is not None and requested >= _IMPOSSIBLE_BYTES)
    facts |= _shares(facts)
    facts["fraction_capped"] = _CAPPED in spaced or _is_over_the_cap(facts)
    return facts


def _add_reserved(facts: dict[str, Any]) -> None:
    """Versions tell either all that is reserved or what of it is unallocated: the one follows from the other."""
    allocated, unallocated, reserved = (
        facts["allocated_bytes"], facts["reserved_unallocated_bytes"], facts["reserved_bytes"]
    )  # fmt: skip
    if allocated is None:
        return
    if unallocated is None and reserved is not None:
        facts["reserved_unallocated_bytes"] = max(0, reserved - allocated)
    elif reserved is None and unallocated is not None:
        facts["reserved_bytes"] = allocated + unallocated


def _own_and_others(facts: dict[str, Any], listed: dict[int, int]) -> tuple[int | None, dict[int, int]]:
    """Which of the listed processes is the one that prints: in a container the driver knows it by another number.

    Then no text says "this process", and the smallest one that can hold what the allocator holds is it.
    """
    own: int | None = facts["this_process_bytes"]
    held: int | None = facts["reserved_bytes"]
    fitting = [pid for pid, size in listed.items() if held and size >= 0.99 * held]
    if own is not None or not fitting:
        return own, listed
    pid = min(fitting, key=lambda pid: listed[pid])
    return listed[pid], {other: size for other, size in listed.items() if other != pid}


def _shares(facts: dict[str, Any]) -> dict[str, Any]:
    """What the numbers mean in proportion: to what the allocator holds, to the request, and to the card."""
    unallocated, reserved = facts["reserved_unallocated_bytes"], facts["reserved_bytes"]
    total, requested = facts["total_bytes"], facts["requested_bytes"]
    limit = min((size for size in (total, facts["allowed_bytes"]) if size), default=None)
    own = facts["this_process_bytes"]
    outside = None if own is None or reserved is None else max(0, own - reserved)
    return {
        "reserved_unallocated_share": _share(unallocated, reserved),
        # Twice the request: a hole of exactly the right size is not to be expected.
        "fits_in_reserved": None if unallocated is None or requested is None else unallocated >= 2 * requested,
        "unallocated_per_request": _share(unallocated, requested),
        "other_processes_share": _share(sum(facts["other_processes_bytes"]) or None, total),
        "non_pytorch_bytes": outside,
        "non_pytorch_share": _share(outside, total),
        "single_request_share": _share(requested, limit),
        "private_pool_share": _share(facts["private_pools_bytes"], reserved),
        "own_share": _share(own, total),
    }


def _share(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 3) if part is not None and whole else None


def _is_over_the_cap(facts: dict[str, Any]) -> bool:
    """Whether the process's own limit, and not the card, was what the request met.

    Only told where memory was free: a full card refuses whatever the limit is.
    """
    free, requested, allowed = facts["free_bytes"], facts["requested_bytes"], facts["allowed_bytes"]
    return allowed is not None and free is not None and requested is not None and free > requested


def _bytes(match: re.Match[str]) -> int:
    unit = match["unit"]
    return round(float(match["number"]) * (_UNITS.get(unit) or _UNITS[unit[0]]))
