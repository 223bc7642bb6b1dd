"""From the summary of one device to what is wrong with its memory: findings, the cause of an out-of-memory first.

Pure: knows the summary of :mod:`torchtriage.memory.read` and, where there are logs beside it, what they say of the GPU.
It says what holds the memory, not why the job was built so: that is the playbook's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.wording import bytes_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.memory.compare import Difference

# Shares of what the device had reserved, allocated or asked for; a request that fits no gap of a few percent is no
# fragmentation, and a peak always has some of everything.
FRAGMENTED_FROM = 0.25
MAYBE_FRAGMENTED_FROM = 0.12
LEAK_IS_CAUSE_FROM = 0.1
ONE_REQUEST_FROM = 0.25
TOP_CATEGORY_FROM = 0.3
OTHERS_HOLD_FROM = 0.3
CONTEXT_BYTES = 2 << 30
"""What a CUDA context and libraries may take beside the allocator, at most."""
# Between two moments, of one place.
GROWN_BLOCKS_FROM = 3
GROWN_BYTES_FROM = 8 << 20
GROWN_SHARE_FROM = 0.05
_BUILT_UP_ONCE = frozenset(
    {"parameters", "optimizer_state", "gradients", "communication", "graphs", "workspace", "activations", "temporaries"}
)
MIN_STEPS_FOR_HEALTHY = 2
MAX_CALLERS = 2
RISE_ALLOWED_BYTES = 4 << 20
RISE_ALLOWED_SHARE = 0.01
MIN_STEPS_OF_A_REST = 5
_ATTENTION = re.compile(r"(?i)scaled_dot_product|attention|\battn|softmax|baddbmm|flash_attn")
_OF_A_STEP = ("activations", "temporaries")


@dataclass(frozen=True)
class Beside:
    """What logs say of the GPU of a snapshot; None where they do not."""

    total_bytes: int | None = None
    other_processes_bytes: int | None = None


@dataclass
class Finding:
    """Something wrong, or worth knowing, about one device's memory."""

    kind: str
    device: int
    bytes: int
    sure: str
    says: str
    """One sentence without an end: what holds how much, from where."""
    where: str
    """JSON Pointer of the evidence."""
    value: Any = None
    """What stands there."""
    site: str = ""
    frames: list[str] = field(default_factory=list[str])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    harmless: bool = False


def judge_device(device: dict[str, Any], beside: Beside | None = None) -> list[Finding]:
    """All findings about one device, the cause of an out-of-memory first."""
    beside = beside or Beside()
    leak = _leak(device)
    findings: list[Finding] = []
    if device["ooms"]:
        findings = _causes_of_oom(device, device["ooms"][-1], leak, beside)
        if device["ooms"][-1]["went_on"]:
            _say_that_it_went_on(findings)
    if leak is not None and all(f.kind != "leak" for f in findings):
        findings.append(leak)
    truncated = _history_truncated(device)
    return [*findings, *([truncated] if truncated is not None else [])]


def _say_that_it_went_on(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.kind != "leak":
            finding.says += "; the job caught that and went on"
            finding.facts["went_on"] = True


def _leak(device: dict[str, Any]) -> Finding | None:
    # A KV cache grows by design, and forwards whose backward is yet to come keep theirs: causes, but no faults.
    grown = [
        g
        for g in device["grown"]
        if g["category"] not in ("parameters", "optimizer_state", "graphs")
        and (device["ooms"] or not (g["kept_graph"] or _is_kv_cache(g)))
    ]
    # A loop without any work of training or inference loads or builds something: no steps.
    if not grown or not (device["works"] or device["ooms"] or not device["has_frames"]):
        return None
    first, total = grown[0], sum(g["bytes"] for g in grown)
    more = f", and {len(grown) - 1} more place(s)" if len(grown) > 1 else ""
    kept = first["blocks"] > 0
    per_step = sum(g["bytes_per_step"] for g in grown)
    how = "tensors are kept" if kept else "the KV cache grows" if _is_kv_cache(first) else "a buffer grows"
    doubtful = first["few_rounds"] or first["kept_graph"] or not device["works"]
    return Finding(
        "leak", device["device"], total, "low" if doubtful else "high" if kept else "medium",
        f"{how} from step to step: {bytes_words(per_step)} a step, {bytes_words(total)} over {first['rounds']} steps, "
        f"allocated at {first['site']}{_via(first['frames'])}{more}",
        first["where"], first["value"], first["site"], first["frames"],
        {
            "grown_bytes": total, "bytes_per_step": per_step, "n_steps": first["rounds"],
            "n_blocks": first["blocks"], "category": first["category"], "few_rounds": first["few_rounds"],
            "in_evaluation": first["in_evaluation"], "kv_cache": _is_kv_cache(first),
            "out_of_memory": bool(device["ooms"]),
        },
    )  # fmt: skip


def rises_in_all(device: Mapping[str, Any]) -> bool:
    """Whether more is held at the later steps than at the earlier ones, whoever holds it and however unevenly."""
    held = device["held_at_steps"]
    # The first half of many steps may still be warming up.
    held = held[len(held) // 2 :] if len(held) > MIN_STEPS_OF_A_REST else held
    allowed = max(RISE_ALLOWED_BYTES, RISE_ALLOWED_SHARE * device["peak_allocated"])
    return len(held) > 1 and min(held[-1], held[-2] if len(held) > 2 else held[-1]) - held[0] > allowed


def _is_kv_cache(grown: Mapping[str, Any]) -> bool:
    """Whether a cache of keys and values grows: by its name, or as a buffer that generation makes anew each time."""
    return grown["category"] == "kv_cache" or (grown["in_generation"] and grown["blocks"] <= 0)


def _via(frames: Sequence[str]) -> str:
    """The next callers of a place in the job's own code."""
    callers = frames[1 : 1 + MAX_CALLERS]
    return f" via {', '.join(callers)}" if callers else ""


def leak_between(device: Mapping[str, Any], difference: Difference) -> Finding | None:
    """A leak that two moments show: one place holds several times as many blocks at the later one.

    What a job builds up once, and what only lives within a step, is left out: the moments may be of different phases.
    """
    kept = [
        change
        for change in difference.changes
        if change.category not in _BUILT_UP_ONCE
        and change.before[1] > 0
        and change.after[1] >= GROWN_BLOCKS_FROM * change.before[1]
        and change.after[0] - change.before[0] >= max(GROWN_BYTES_FROM, GROWN_SHARE_FROM * device["allocated"])
    ]
    if not kept:
        return None
    first, total = kept[0], sum(change.after[0] - change.before[0] for change in kept)
    holder = next(h for h in device["ending"] if (h["site"], h["category"]) == (first.site, first.category))
    says = (
        f"tensors are kept: {bytes_words(first.after[0])} in {first.after[1]} blocks from {first.site}, where an "
        f"earlier snapshot has {bytes_words(first.before[0])} in {first.before[1]}"
    )
    facts = {
        "grown_bytes": total, "n_blocks": first.after[1] - first.before[1], "category": first.category,
        "few_rounds": True, "in_evaluation": False, "kv_cache": first.category == "kv_cache", "between": True,
    }  # fmt: skip
    return Finding("leak", device["device"], total, "medium", says, holder["where"], holder["largest_bytes"],
                   first.site, holder["frames"], facts)  # fmt: skip


def _causes_of_oom(device: dict[str, Any], oom: dict[str, Any], leak: Finding | None, beside: Beside) -> list[Finding]:
    """What made the request fail, likeliest first."""
    causes = [
        leak
        if leak is not None and leak.bytes >= max(oom["requested"], LEAK_IS_CAUSE_FROM * oom["allocated"])
        else None,
        _fragmentation(device, oom),
        _other_process(device, oom, beside),
    ]
    found = [cause for cause in causes if cause is not None]
    if not found or found[0].sure == "low":
        found[:0] = _what_fills_it(device, oom)
    return found


def _fragmentation(device: dict[str, Any], oom: dict[str, Any]) -> Finding | None:
    """Enough was reserved and free, and nothing of it could serve the request."""
    gaps, requested, reserved = oom["gaps"], oom["requested"], max(1, oom["reserved"])
    if gaps is None:
        return None
    large = requested > 1 << 20
    own = [g for g in gaps["lanes"] if _serves(g, oom, large=large)]
    others = [g for g in gaps["lanes"] if g["large"] == large and not _serves(g, oom, large=large)]
    pending = oom["active"] - oom["allocated"]
    # What waits for a stream lies in the gaps too, and is no free place yet.
    own_free = max(0, sum(g["free"] for g in own) - pending)
    own_largest = max((g["largest"] for g in own), default=0)
    # Each capture of a CUDA graph has a pool of its own, and each side stream its own blocks: together they count.
    private_free = sum(g["free"] for g in others if g["pool"] != [0, 0])
    streams_free = sum(g["free"] for g in others if g["pool"] == [0, 0])
    facts: dict[str, Any] = {
        "requested_bytes": requested, "reserved_bytes": oom["reserved"], "free_bytes": own_free,
        "largest_free_bytes": own_largest, "share": round(own_free / reserved, 3), "stranded": False,
        "expandable_segments": device["expandable"], "private_pool": False,
        "expandable_would_free_bytes": 0 if device["expandable"] else sum(g["in_used_segments"] for g in own),
    }  # fmt: skip
    where, at = oom["where"] + "/size", {"value": requested, "site": oom["site"], "frames": oom["frames"]}
    if own_free >= requested > own_largest and own_free >= MAYBE_FRAGMENTED_FROM * reserved:
        sure = "high" if own_free >= FRAGMENTED_FROM * reserved else "low"
        says = (
            f"a request of {bytes_words(requested)} failed while {bytes_words(own_free)} of "
            f"{bytes_words(oom['reserved'])} reserved were free in pieces of at most {bytes_words(own_largest)}"
            f"{_pinned_by(own)}"
        )
        return Finding("fragmentation", device["device"], own_free, sure, says, where, facts=facts, **at)
    free = max(private_free, streams_free)
    if max(free, pending) >= max(requested, FRAGMENTED_FROM * reserved):
        private = private_free >= max(pending, streams_free)
        whose = "private pools (CUDA graphs)" if private else "other streams"
        facts |= {"stranded": True, "stranded_bytes": max(free, pending), "private_pool": private}
        state = "wait for a stream to finish with them" if pending > free else f"belong to {whose}"
        says = (
            f"a request of {bytes_words(requested)} failed while {bytes_words(max(free, pending))} of "
            f"{bytes_words(oom['reserved'])} reserved were free but {state}{_pinned_by(others)}"
        )
        return Finding("fragmentation", device["device"], max(free, pending), "high", says, where, facts=facts, **at)
    return None


def _pinned_by(lanes: Sequence[dict[str, Any]]) -> str:
    """Whose live blocks keep the free ones from being given back to the GPU."""
    fullest = max(lanes, key=lambda lane: lane["in_used_segments"], default=None)
    if fullest is None or fullest["in_used_segments"] < fullest["free"] / 2 or fullest["pin"] is None:
        return ""
    site, size, blocks = fullest["pin"]
    return f", between {blocks} live blocks ({bytes_words(size)}) of {site} that keep their segments"


def _serves(lane: dict[str, Any], oom: dict[str, Any], *, large: bool) -> bool:
    return lane["stream"] == oom["stream"] and lane["large"] == large and lane["pool"] == oom["pool"]


def others_hold(oom: dict[str, Any], beside: Beside | None) -> int | None:
    """Bytes of the GPU that neither this process's allocator held nor were free; None where its size is not known."""
    if beside is None or beside.total_bytes is None or oom["device_free"] is None:
        return None
    if beside.other_processes_bytes is not None:
        return beside.other_processes_bytes
    return max(0, beside.total_bytes - oom["device_free"] - oom["reserved"] - CONTEXT_BYTES)


def _other_process(device: dict[str, Any], oom: dict[str, Any], beside: Beside) -> Finding | None:
    """Others hold what is missing; told only where the GPU's size or the others' share is known."""
    free, others = oom["device_free"], others_hold(oom, beside)
    if beside.total_bytes is None or others is None or free is None or free >= oom["requested"]:
        return None
    if others < OTHERS_HOLD_FROM * beside.total_bytes:
        return None
    says = (
        f"of {bytes_words(beside.total_bytes)} on the GPU this process had reserved {bytes_words(oom['reserved'])} and "
        f"{bytes_words(free)} were free: others hold about {bytes_words(others)}"
    )
    facts = {"other_bytes": others, "total_bytes": beside.total_bytes, "device_free_bytes": free,
             "reserved_bytes": oom["reserved"]}  # fmt: skip
    sure = "high" if beside.other_processes_bytes is not None else "medium"
    return Finding("other_process", device["device"], others, sure, says, oom["where"] + "/device_free", free,
                   oom["site"], oom["frames"], facts)  # fmt: skip


def _what_fills_it(device: dict[str, Any], oom: dict[str, Any]) -> list[Finding]:
    """Of a device that is simply full: by what."""
    held, allocated, requested = device["by_category"], max(1, oom["allocated"]), oom["requested"]
    of_step = sum(held.get(category, 0) for category in _OF_A_STEP)
    attention = any(_ATTENTION.search(text) for text in [oom["site"], *oom["frames"]])
    facts: dict[str, Any] = {
        "requested_bytes": requested, "allocated_bytes": oom["allocated"], "reserved_bytes": oom["reserved"],
        "device_free_bytes": oom["device_free"], "n_steps": device["n_steps"], "attention": attention,
        "in_backward": oom["in_backward"], "in_evaluation": oom["in_evaluation"], "kv_cache": False,
        # The device had room and the request was refused all the same: a cap set on this process.
        "capped": oom["device_free"] is not None and oom["device_free"] >= requested + (1 << 30),
    }  # fmt: skip
    at = {"site": oom["site"], "frames": oom["frames"]}
    where = oom["where"] + "/size"
    asked = f"a request of {bytes_words(requested)} at {oom['site']} failed{_cap_words(oom, capped=facts['capped'])}"
    optimizer = held.get("optimizer_state", 0)

    def cause(kind: str, held_bytes: int, says: str, more: dict[str, Any]) -> list[Finding]:
        facts.update(more)
        return [Finding(kind, device["device"], held_bytes, "high", says, where, requested, facts=facts, **at)]

    if oom["in_optimizer"]:
        says = f"{asked} in the optimizer, whose state held {bytes_words(optimizer)} by then"
        more = {"first_step": device["n_steps"] <= 1, "optimizer_bytes": optimizer}
        return cause("optimizer_state", optimizer + requested, says, more)
    if requested >= ONE_REQUEST_FROM * (allocated + requested) and requested > _largest_of_step(device):
        says = f"{asked}: one request as large as {requested / allocated:.0%} of all that was allocated"
        return cause(
            "single_large_allocation", requested, says, {"share": round(requested / (allocated + requested), 3)}
        )
    if of_step < TOP_CATEGORY_FROM * allocated:
        return _largest_holder(device, oom, asked, facts)
    top = next((h for h in device["holders"] if h["category"] in _OF_A_STEP), None)
    says = f"{asked} while activations held {bytes_words(of_step)} of {bytes_words(allocated)} allocated"
    if top is not None:
        says += f", {bytes_words(top['bytes'])} of it from {top['site']}"
        at = {"site": top["site"], "frames": top["frames"]}
    return cause("activation_peak", of_step, says, {"share": round(of_step / allocated, 3)})


def _cap_words(oom: dict[str, Any], *, capped: bool) -> str:
    """That the GPU had room: then a limit of this process refused the request."""
    if not capped:
        return ""
    return f" (at a limit of this process: {bytes_words(oom['device_free'])} were free on the GPU)"


def _largest_holder(device: dict[str, Any], oom: dict[str, Any], asked: str, facts: dict[str, Any]) -> list[Finding]:
    """Neither activations nor one request: what most of it is."""
    held, allocated = device["by_category"], max(1, oom["allocated"])
    category = max(held, key=lambda c: held[c], default="")
    top = next((h for h in device["holders"] if h["category"] == category), None)
    if top is None or held[category] < TOP_CATEGORY_FROM * allocated:
        return []
    kinds = {
        "optimizer_state": "optimizer_state", "parameters": "parameters", "gradients": "parameters", "retained": "leak",
        "kv_cache": "activation_peak",
    }  # fmt: skip
    kind = kinds.get(category)
    if kind is None:
        return []
    words = category.replace("_", " ")
    says = (
        f"{asked} while {words} held {bytes_words(held[category])} of {bytes_words(allocated)} allocated, most from "
        f"{top['site']}"
    )
    where, value = (top["where"], top["largest_bytes"]) if top["where"] else (oom["where"] + "/size", oom["requested"])
    more = {"share": round(held[category] / allocated, 3), "category": category, "kv_cache": category == "kv_cache"}
    return [Finding(kind, device["device"], held[category], "medium", says, where, value, top["site"], top["frames"],
                    {**facts, **more})]  # fmt: skip


def _largest_of_step(device: dict[str, Any]) -> int:
    return max((h["largest_bytes"] for h in device["holders"] if h["category"] in _OF_A_STEP), default=0)


def _history_truncated(device: dict[str, Any]) -> Finding | None:
    if not device["truncated"]:
        return None
    says = (
        f"the history's ring was full: its oldest events are gone, {bytes_words(device['before_history'])} were "
        "allocated before the first one that is left"
    )
    return Finding("history_truncated", device["device"], device["before_history"], "high", says,
                   f"/device_traces/{device['device']}/0/action", device["first_action"], harmless=True)  # fmt: skip
