"""Say what a file is from its first bytes. The name decides nothing; it only breaks no ties here.

Each test looks for words that the producing program itself writes (sources: torch 2.13 FlightRecorder.hpp and
_memory_viz, py-spy 0.4.3, pystack 1.7, CPython's faulthandler, kineto's output, NCCL's ras client, nvidia-smi).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.encoding import as_utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Recognised:
    """Kind and format of an artefact; see :class:`torchtriage.artefacts.inputs.Artefact`."""

    kind: str
    format: str


_FLIGHT_KEYS = (
    b"pg_config",
    b"pg_status",
    b"collective_seq_id",
    b"profiling_name",
    b"comm_lib_version",
    b"nccl_version",
)
_MEMORY_KEYS = (b"segments", b"device_traces", b"allocator_settings", b"segment_type")

_STACK_STARTS = re.compile(
    rb"^(?:Process \d+: .*\nPython v"  # py-spy
    rb"|Traceback for thread \d+"  # pystack
    rb"|Thread \d{1,6} \(Thread 0x[0-9a-f]{1,16} \(LWP \d{1,10}\)"  # gdb
    rb"|(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[.*\] )?\(most recent call first\):"
    rb"|Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!\n(?:Current thread|Thread) 0x)",  # faulthandler
    re.MULTILINE,
)
# What py-spy and pystack write to stderr when they get no stack: also a fact about that process.
_REFUSED = re.compile(
    rb"(?:Error: (?:Failed to (?:get stack traces|suspend process|find python version|get process executable name)"
    rb"|no stack could be had of pid \d"
    rb"|not suspended, for it was stopped already|Unsupported version of Python|failed to get gil_thread_id"
    rb"|No such (?:process|file or directory) \(os error)|Permission Denied: Try running again|\xf0\x9f\x9a\xa8 )"
)
_STACK_LINE = re.compile(
    rb'^(?:Process \d+: |Python v\d|Thread \S+ \((?:active|idle)|    .* \(.*\)$|\s+File "|(?:\(Python\)|\(C\)) File '
    rb"|Current thread 0x|Thread 0x|Timeout \(|Traceback for thread|\s+<no Python frame>|#\d{1,4} {1,4}\S)",
)
_RAS = re.compile(rb"SERVER PROTOCOL \d+|NCCL version \S+ compiled with CUDA")
# Every log of NCCL has its version line too: only what the RAS client writes around it makes it an answer.
_RAS_NEAR = re.compile(rb"^(?:SERVER PROTOCOL \d+|Job summary)|\"communicators\"", re.MULTILINE)
_RAS_NEAR_BYTES = 2048
_SMI = re.compile(
    rb"^(?:\+-{20,}|\|[ \t]{0,40}NVIDIA-SMI |=+NVSMI LOG=+|GPU \d+: .*\(UUID: (?:GPU|MIG)-"
    rb"|[ \t]{1,40}GPU0\t|[ \t]{0,40}GPU0[ \t]{1,40}GPU1"
    rb"|NVML: Unable to retrieve NVLink"
    rb"|timestamp, (?:name|index|pci|gpu_name)|index, (?:name|uuid|memory|utilization))",
    re.MULTILINE,
)
# The header of an answer as CSV; the rows below have times, as a log has.
_SMI_CSV = re.compile(
    rb"(?:timestamp|index|name|uuid|gpu_uuid|pid)(?: \[[\w%/]{1,8}\])?, ?"
    rb"(?:name|index|uuid|pci\.bus_id|gpu_name|gpu_uuid|pid|process_name|memory\.|utilization\.)[^\n\"]{0,2000}\n"
)
# What it prints in place of an answer, when that is all there is.
_SMI_FAILED = re.compile(
    rb"(?:NVIDIA-SMI has failed because|Failed to initialize NVML: |No devices were found\n?$"
    rb"|Unable to determine the device handle for (?i:gpu) ?[0-9a-fA-F]{4,8}:)"
)
_KERNEL = re.compile(
    rb"^(?:<\d+>|\d+,\d+,\d+,[-c](?:,[^;\n]{0,40})?;|NVRM: |nvidia-nvswitch\d+: |kern\s*:\w+\s*:\s*|\[\s*\d+\.\d{6}\] "
    rb"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\] "
    rb"|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S+ kernel: |\d{4}-\d\d-\d\dT\S+ \S+ kernel: )",
)
_CONFIG_WORDS = re.compile(
    rb"(?i)(?:tensor|pipeline|context|expert|data|sequence)[_-]?(?:model[_-]?)?parallel|zero_optimization|train_(?:micro_)?batch_size|"
    rb"deepspeed_config|fsdp_config|fsdp_version|distributed_type|dp_shard|num_processes|micro_batch_size|parallel_dims"
)
_LOG_HINT = re.compile(
    rb"(?im)\b(?:step|iter(?:ation)?|epoch|loss|rank ?\d|error|warning|info|traceback|exception|exitcode"
    rb"|nccl|cuda|failed|killed)\b"
    rb"|\d\d:\d\d:\d\d"
)
# Lines that only the log of a job has. No blank in these may be a line end: a file of line ends would take for ever.
_LOG_LINE = re.compile(
    rb"^[^\n\"']{0,64}?(?:\[rank ?\d+\]|\[default\d+\]|NCCL (?:INFO|WARN) |\[PG (?:ID|GUID) )"
    rb"|^[^\n\"'#]{0,200}Traceback \(most recent call last\):[ \t\r]{0,40}$"
    rb"|^[ \t]{0,40}exitcode[ \t]{0,40}: -?\d+|torch\.distributed\.elastic\.|ChildFailedError:"
    rb"|^[ \t]{0,40}(?:step|iter(?:ation)?)[ =:]{1,40}\d{1,19}\b[^\n]{0,4000}loss",
    re.MULTILINE,
)
# Kinds that a log can look like by its beginning.
_MAY_BE_LOG = frozenset({"text", "config", "nvidia_smi", "kernel_log", "unknown", "empty"})
_SOURCE = re.compile(rb"(?m)^(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|#include |#!/)")


def recognise(head: bytes, name: str, more: Callable[[], Sequence[bytes]] | None = None) -> Recognised:
    """Recognise a file by the head of its uncompressed content.

    Args:
        head: the first bytes.
        name: the file's name.
        more: gives pieces from further behind; asked only when the head may hide that the file is a log.
    """
    found = _by_head(head, name)
    if found.kind not in _MAY_BE_LOG or found.format == "pickle" or (found.format == "json" and found.kind != "text"):
        return found
    pieces = [head, *(more() if more is not None else ())]
    texts = [text for text in map(as_utf8_text, pieces) if text]
    if any(_LOG_LINE.search(text) for text in texts):
        return Recognised("log", "text")
    if found.kind in ("unknown", "empty") and texts and not head.strip(b"\0 \t\r\n"):
        # A hole of zeros or blanks at the beginning, as a log has that was truncated under its writer.
        return _by_head(b"\n".join(texts), name)
    return found


def _by_head(head: bytes, name: str) -> Recognised:
    if not head:
        return Recognised("empty", "text")
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        return Recognised(_by_keys(head) or "unknown", "pickle")
    text = as_utf8_text(head)
    if text is None:
        return Recognised("unknown", "binary")
    stripped = text.lstrip()
    if not stripped:
        return Recognised("empty", "text")
    if _RAS.match(stripped) and _RAS_NEAR.search(stripped[:_RAS_NEAR_BYTES]):
        return Recognised("ras", "json" if b'"communicators"' in stripped else "text")
    if stripped[:1] in b"{[":
        kind = _json_kind(stripped)
        if kind is not None:
            return Recognised(kind, "json")
    if stripped[:1] == b"<" and (b"<nvidia_smi_log" in stripped or b"nvsmi_device" in stripped):
        return Recognised("nvidia_smi", "xml")
    return Recognised(_text_kind(stripped, name), "text")


def _by_keys(head: bytes) -> str | None:
    flight = sum(key in head for key in _FLIGHT_KEYS)
    memory = sum(key in head for key in _MEMORY_KEYS)
    if flight == memory == 0:
        return None
    return "flight_recorder" if flight >= memory else "memory_snapshot"


def _json_kind(text: bytes) -> str | None:
    if b'"traceEvents"' in text or (b'"deviceProperties"' in text and b'"schemaVersion"' in text):
        return "trace"
    if b'"communicators"' in text and b'"nccl_version"' in text:
        return "ras"
    if b'"frames"' in text and (b'"owns_gil"' in text or b'"os_thread_id"' in text):
        return "stack_dump"
    if any(b'"' + key + b'"' in text for key in _FLIGHT_KEYS[:4]):
        return "flight_recorder"
    if b'"device_traces"' in text and (b'"segments"' in text or b'"action"' in text):
        return "memory_snapshot"
    if b'"segment_type"' in text and b'"total_size"' in text:  # the traces may only come far behind the segments
        return "memory_snapshot"
    if b'"proc_facts"' in text and b'"start_ticks"' in text:
        return "proc_facts"
    if b'"torchtriage_version"' in text and b'"items"' in text:
        return "manifest"
    first_line = text.split(b"\n", 1)[0].strip()
    if first_line.startswith(b"{") and first_line.endswith(b"}") and text.count(b"\n") > 1:
        return None  # JSON lines: a structured log
    # "[rank0] step 1" and "[W1130 06:10:09" begin like JSON and are logs.
    if not re.match(rb'[{\[]\s*(?:["{\[\]}]|-?\d+\s*[,\]]|true|false|null)', text):
        return None
    return "config" if _CONFIG_WORDS.search(text) else "text"


def _text_kind(text: bytes, name: str) -> str:
    lines = [line for line in text[:16384].split(b"\n") if line.strip()][:200]
    if len(text) <= 16 and text.strip().isdigit():
        return "rank_note" if "rank" in name.rsplit("/", 1)[-1] else "text"
    if len(text) < 4096 and _REFUSED.match(text):
        return "stack_dump"
    if _SMI_CSV.match(text) or (len(lines) <= 16 and _SMI_FAILED.match(text)):
        return "nvidia_smi"
    # Looking at the whole head costs nothing, but a dump inside a log leaves it a log.
    if _STACK_STARTS.search(text[:16384]):
        stack_like = sum(bool(_STACK_LINE.match(line)) for line in lines)
        if stack_like * 2 >= len(lines) or _STACK_STARTS.match(text):
            return "stack_dump"
    if _SMI.search(text[:4096]) and not _looks_like_log(lines):
        return "nvidia_smi"
    if sum(bool(_KERNEL.match(line)) for line in lines) * 2 > len(lines):
        return "kernel_log"
    if len(_SOURCE.findall(text[:16384])) >= 3 and not _looks_like_log(lines):
        return "text"
    key_values = sum(bool(re.match(rb"^\s*(?:- )?[\w.\-]+\s*[:=]\s*\S*", line)) for line in lines)
    if key_values * 10 >= len(lines) * 8 and _CONFIG_WORDS.search(text) and not re.search(rb"\d\d:\d\d:\d\d", text):
        return "config"
    return "log" if _LOG_HINT.search(text) else "text"


def _looks_like_log(lines: list[bytes]) -> bool:
    hits = sum(
        bool(
            re.search(
                rb"\[rank ?\d+\]|\[default\d+\]|NCCL (?:INFO|WARN)|Traceback|ProcessGroup|\bstep[ =:]*\d"
                rb"|\d\d:\d\d:\d\d",
                line,
            )
        )
        for line in lines[:200]
    )
    return hits * 5 >= len(lines)
