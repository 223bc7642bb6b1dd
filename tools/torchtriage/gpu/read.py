"""Read one answer of nvidia-smi into rows about GPUs, processes and failures, line by line. Never judges.

Known are what the probe asks for: ``--query-gpu`` and ``--query-compute-apps`` as CSV with a header, ``-q -x``, and the
sentences with which nvidia-smi says that it lost a GPU. Everything else that it prints (the table, nvlink, topo) is
passed on as not read. Stdlib only: runs inside the isolated worker.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.text import read_file_lines
from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError
from torchtriage.gpu.xml_lines import XmlLines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_LINES = 400_000
MAX_LINE_CHARS = 2000
MAX_ROWS = 20_000
MAX_CHARS = 120
MAX_FAILURES = 64
_MAX_DEPTH = 16

# Columns as printed, without their unit, and what they are called here. Names changed with R535.
_GPU_COLUMNS = {
    "timestamp": "time", "index": "index", "name": "name", "uuid": "uuid", "pci.bus_id": "bus",
    "utilization.gpu": "utilisation", "power.draw": "power_w", "power.limit": "power_limit_w",
    "enforced.power.limit": "power_limit_w", "clocks.sm": "sm_mhz", "clocks.current.sm": "sm_mhz",
    "clocks.max.sm": "max_sm_mhz", "clocks_event_reasons.active": "reasons",
    "clocks_throttle_reasons.active": "reasons", "memory.total": "memory_mib",
    "ecc.errors.uncorrected.volatile.total": "uncorrected", "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failed",
}  # fmt: skip
_APP_COLUMNS = {
    "gpu_uuid": "uuid", "pid": "pid", "process_name": "name", "used_memory": "memory_mib",
    "used_gpu_memory": "memory_mib",
}  # fmt: skip
# Elements of -q -x below <gpu>, at any depth before the path that is given; several ones are summed where counted.
_XML = {
    "uuid": "uuid", "product_name": "name", "utilization/gpu_util": "utilisation",
    "gpu_power_readings/power_draw": "power_w", "gpu_power_readings/instant_power_draw": "power_w",
    "gpu_power_readings/average_power_draw": "power_w", "power_readings/power_draw": "power_w",
    "gpu_power_readings/current_power_limit": "power_limit_w", "power_readings/power_limit": "power_limit_w",
    "clocks/sm_clock": "sm_mhz", "max_clocks/sm_clock": "max_sm_mhz", "fb_memory_usage/total": "memory_mib",
    "remapped_rows/remapped_row_pending": "remap_pending", "remapped_rows/remapped_row_failure": "remap_failed",
}  # fmt: skip
_XML_UNCORRECTED = re.compile(
    r"^ecc_errors/volatile/(?:sram_uncorrectable(?:_parity|_secded)?|dram_uncorrectable|double_bit/total)$"
)
_XML_REASON = re.compile(
    r"^clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_"
    r"(hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown)$"
)
# Bits of nvmlClocksEventReasons (nvml.h, R550); "hw_slowdown" comes with the one that is its reason.
REASON_BITS = {
    "hw_slowdown": 0x08,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_HEADER = re.compile(r"(?:[a-z_.]{2,60}(?: \[[\w%/]{1,8}\])?, ?){1,80}[a-z_.]{2,60}(?: \[[\w%/]{1,8}\])?\s{0,4}$")
_UNIT = re.compile(r" \[[\w%/]{1,8}\]$")
_NUMBER = re.compile(r"\s{0,8}(-?\d{1,12}(?:\.\d{1,6})?)(?: (?:%|W|MHz|MiB|C))?\s{0,8}$")
_HEX = re.compile(r"\s{0,8}0x([0-9a-fA-F]{1,16})\s{0,8}$")
_BUS = r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
# What NVML answers for a device that left the bus (NVML_ERROR_GPU_IS_LOST) or does not answer any more.
LOST = re.compile(
    rf"Unable to determine the device handle for (?:GPU|gpu) ?{_BUS}: (?:Unknown Error|(?:The )?GPU is lost)"
    rf"|^\s{{0,4}}(?:GPU|gpu) ?{_BUS.replace('bus', 'bus2')}: GPU is lost|\bGPU is lost\. +Reboot the system"
)
_LOST_FIELD = re.compile(r"^\[?GPU is lost\]?$")
_UNKNOWN_FIELD = re.compile(r"^\[?Unknown Error\]?$")
_NO_ANSWER = re.compile(r"did not answer in time|does not answer and could not be killed")


def read_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: one answer, JSON-able.

    Returns:
        ``form`` ("gpus", "processes", "xml", "failure" or "other"), ``gpus``, ``processes`` and ``failures``: rows with
        the line they stand on (``where``), its text and their values, of the right type or None; ``notes``.
    """
    del args
    lost: list[str] = []
    found = _rows(read_file_lines(Path(path), compression, lost))
    found["notes"] += lost
    return found


def failures_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: of a bundle's manifest, the questions to nvidia-smi that got no answer in time.

    Raises:
        UnreadableError: it is no manifest.
    """
    del args
    view, note = load_view(path, compression, "json")
    raw = cast("dict[str, Any]", view).get("items") if isinstance(view, dict) else None
    if not isinstance(raw, list):
        raise UnreadableError("is no manifest of a bundle")
    found: list[dict[str, Any]] = []
    for number, each in enumerate(cast("list[Any]", raw)[:MAX_ROWS]):
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        error = item.get("error")
        if item.get("kind") == "nvidia_smi" and isinstance(error, str) and _NO_ANSWER.search(error[:MAX_LINE_CHARS]):
            host = item.get("host")
            shown = clean_text(host[:MAX_CHARS]) if isinstance(host, str) else None
            found.append({"where": f"/items/{number}/error", "error": error, "host": shown})
    return {"unanswered": found[:MAX_FAILURES], "notes": [note] if note else []}


def _rows(lines: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"form": "other", "gpus": [], "processes": [], "failures": [], "notes": []}
    columns: list[str] | None = None
    xml: _Xml | None = None
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            found["notes"].append(f"only its first {MAX_LINES} lines were read")
            break
        line = line[:MAX_LINE_CHARS].rstrip("\r")
        if xml is None and "<nvidia_smi_log" in line:
            found["form"], xml = "xml", _Xml(found)
        elif xml is not None:
            xml.line(number, line)
        elif (lost := LOST.search(line)) is not None:
            found["form"] = "failure" if found["form"] == "other" else found["form"]
            bus = lost["bus"] or lost["bus2"]
            found["failures"].append({"where": number, "text": line, "bus": bus})
        elif _HEADER.match(line) and (header := _columns(line)) is not None:
            columns = header
            found["form"] = "processes" if "gpu_uuid" in header and "pid" in header else "gpus"
        elif columns is not None and line.strip():
            if len(found["gpus"]) + len(found["processes"]) >= MAX_ROWS:
                found["notes"].append(f"only its first {MAX_ROWS} rows were read")
                break
            _add_row(found, columns, number, line)
    if xml is not None and not xml.ended:
        found["notes"].append("the answer ends early; what came before was read")
    found["failures"] = found["failures"][:MAX_FAILURES]
    return found


def _columns(header: str) -> list[str] | None:
    """The names of the columns, None of a line that is none of the two answers known here."""
    names = [_UNIT.sub("", name.strip()) for name in header.split(",")]
    of_gpus = any(name in names for name in ("index", "uuid", "pci.bus_id")) and len(names) > 1
    return names if of_gpus or ("gpu_uuid" in names and "pid" in names) else None


def _add_row(found: dict[str, Any], columns: list[str], number: int, line: str) -> None:
    if found["form"] == "processes":
        fields = line.split(", ")
        extra = len(fields) - len(columns)
        if extra > 0 and "process_name" in columns:  # a program's name may hold a comma
            at = columns.index("process_name")
            fields[at : at + extra + 1] = [", ".join(fields[at : at + extra + 1])]
        raw = {_APP_COLUMNS[c]: f.strip() for c, f in zip(columns, fields, strict=False) if c in _APP_COLUMNS}
        pid = _number(raw.get("pid"))
        if pid is not None and raw.get("uuid"):
            found["processes"].append(
                {
                    "where": number, "text": line, "uuid": _word(raw["uuid"]), "pid": int(pid),
                    "name": _word(raw.get("name")), "memory_mib": _number(raw.get("memory_mib")),
                }
            )  # fmt: skip
        return
    fields = [field.strip() for field in line.split(",")]
    raw = {_GPU_COLUMNS[c]: f for c, f in zip(columns, fields, strict=False) if c in _GPU_COLUMNS}
    n_unknown = sum(bool(_UNKNOWN_FIELD.match(field)) for field in fields)
    # One field that is not known is a sensor; of a device that does not answer most are not.
    lost = any(_LOST_FIELD.match(field) for field in fields) or n_unknown * 2 > len(columns)
    found["gpus"].append(_gpu(raw, number, line, lost=lost))


def _gpu(raw: Mapping[str, str], where: int, text: str, *, lost: bool) -> dict[str, Any]:
    """A row about a GPU; ``places`` has the line and text of values that do not stand on the row's own."""
    row: dict[str, Any] = {"where": where, "text": text, "lost": lost, "places": {}}
    for name in ("time", "name", "uuid", "bus"):
        row[name] = _word(raw.get(name))
    for name in ("index", "utilisation", "power_w", "power_limit_w", "sm_mhz", "max_sm_mhz", "memory_mib"):
        row[name] = _number(raw.get(name))
    row["uncorrected"] = _number(raw.get("uncorrected"))
    row["reasons"] = int(found[1], 16) if (found := _HEX.match(raw.get("reasons", ""))) else None
    for name in ("remap_pending", "remap_failed"):
        row[name] = {"yes": True, "no": False, "1": True, "0": False}.get(raw.get(name, "").lower())
    return row


class _Xml:
    """The answer of ``-q -x``, of which nvidia-smi writes an element a line."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.ended = False
        self.lines = XmlLines(_MAX_DEPTH)
        self.gpu: dict[str, Any] | None = None
        self.process: dict[str, str] = {}

    def line(self, number: int, line: str) -> None:
        if "</nvidia_smi_log>" in line:
            self.ended = True
            return
        step = self.lines.step(line)
        if step is None:
            return
        kind, name, value = step
        if kind == "gpu":
            self.gpu = _gpu({"bus": name}, number, line, lost=False)
            if len(self.found["gpus"]) < MAX_ROWS:
                self.found["gpus"].append(self.gpu)
        elif self.gpu is None:
            return
        elif kind == "leaf":
            self._leaf(name, value, number, line, self.gpu)
        elif name == "gpu":
            self.gpu = None
        elif name == "process_info":
            self._process(number, self.gpu)

    def _leaf(self, path: str, value: str, number: int, line: str, gpu: dict[str, Any]) -> None:
        if _LOST_FIELD.match(value):
            gpu["lost"] = True
            gpu["places"].setdefault("lost", [number, line])
        elif (reason := _XML_REASON.match(path)) is not None:
            # What is active says so; the word differs from "Not Active" by what stands before it.
            gpu["reasons"] = (gpu["reasons"] or 0) | (REASON_BITS[reason[1]] if value == "Active" else 0)
            if value == "Active":
                gpu["places"]["reasons"] = [number, line]
        elif _XML_UNCORRECTED.match(path):
            count = _number(value)
            if count is not None:
                gpu["uncorrected"] = (gpu["uncorrected"] or 0) + count
                if count:
                    gpu["places"].setdefault("uncorrected", [number, line])
        elif path.startswith("processes/process_info/"):
            self.process[path.rpartition("/")[2]] = value
        elif (name := _XML.get(path)) is not None and gpu[name] is None:
            given = _gpu({name: value}, number, line, lost=False)[name]
            gpu[name] = given
            if given is not None:
                gpu["places"][name] = [number, line]

    def _process(self, number: int, gpu: dict[str, Any]) -> None:
        raw, self.process = self.process, {}
        pid = _number(raw.get("pid"))
        if pid is not None and len(self.found["processes"]) < MAX_ROWS:
            self.found["processes"].append(
                {
                    "where": number, "text": "", "uuid": gpu["uuid"] or gpu["bus"], "pid": int(pid),
                    "name": _word(raw.get("process_name")), "memory_mib": _number(raw.get("used_memory")),
                }
            )  # fmt: skip


def _number(value: str | None) -> float | None:
    """A number with or without its unit; None for N/A, [Not Supported], [Unknown Error] and what is cut."""
    found = _NUMBER.match(value) if value is not None else None
    return float(found[1]) if found else None


def _word(value: str | None) -> str | None:
    if value is None or not value or value.startswith("[") or value == "N/A":
        return None
    return clean_text(value[: MAX_CHARS * 4], MAX_CHARS)
