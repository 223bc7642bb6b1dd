"""Copy the results into the tables of README.md.

python benchmarks/readme_tables.py
"""

from __future__ import annotations

import json
from typing import Any

from flight_recorder import TARGET_MB, largest_process_mb
from flight_recorder import TARGETS_S as FLIGHT_TARGETS_S
from log_scan import TARGET_MB as LOG_TARGET_MB
from log_scan import TARGET_S as LOG_TARGET_S
from log_scan import TARGET_SIZE_MB as LOG_SIZE_MB
from measuring import RESULTS, ROOT, table
from memory_snapshot import HEADER as SNAPSHOT_HEADER
from memory_snapshot import TARGET_MB as SNAPSHOT_TARGET_MB
from memory_snapshot import TARGET_S as SNAPSHOT_TARGET_S
from memory_snapshot import TARGET_SIZE_MB as SNAPSHOT_SIZE_MB
from memory_snapshot import TARGET_TIMES_THE_FILE, snapshot_cells
from startup import TARGETS_S
from symptoms import BAND_HEADER, HEADER, band_cells, symptom_cells

_MARK = "<!-- results: rendered by readme_tables.py -->"


def main() -> None:
    """Render everything after the mark anew."""
    path = ROOT / "benchmarks" / "README.md"
    text = path.read_text(encoding="utf-8").partition(_MARK)[0].rstrip()
    parts = [text, _MARK]
    for name, render in (
        ("startup", startup_part),
        ("flight_recorder", flight_part),
        ("flight_sets", sets_part),
        ("log_scan", logs_part),
        ("memory_snapshot", snapshots_part),
        ("symptoms", symptoms_part),
    ):
        source = RESULTS / f"{name}.json"
        if source.is_file():
            parts.append(render(json.loads(source.read_text(encoding="utf-8"))))
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def startup_part(document: dict[str, Any]) -> str:
    """Start-up times, with all cases of one playbook in one line."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in document["rows"]:
        groups.setdefault((row["playbook"], row["what"], row.get("index", "")), []).append(row)
    lines = [_startup_line(document, *key, rows) for key, rows in groups.items()]
    header = ["playbook", "what", "median s", "slowest case s", "least s", "cpu s", "target s", "disturbed runs"]
    return f"## Start-up\n\n{_where(document)}\n\n{table(header, lines)}"


def _startup_line(
    document: dict[str, Any], playbook: str, what: str, index: str, rows: list[dict[str, Any]]
) -> list[str]:
    by_time = sorted(rows, key=lambda row: row["median_s"])
    middle, slowest = by_time[len(by_time) // 2], by_time[-1]
    size = document["playbooks"][playbook]
    target = TARGETS_S.get(what.strip("-"), TARGETS_S["server"] if what.startswith("serve") else None)
    named = f"{what}, {index} index" if index else what
    if len(rows) > 1:
        named += f", {len(rows)} cases"
    return [
        f"{playbook}: {size['entries']} entries, {size['log_patterns']} patterns", named, f"{middle['median_s']:.2f}",
        f"{slowest['median_s']:.2f} ({slowest['case']})" if len(rows) > 1 else "",
        f"{by_time[0]['min_s']:.2f}", f"{middle['cpu_s']:.2f}",
        f"{target:.2f}" if target is not None and index != "cold" else "",
        f"{sum(row['disturbed_runs'] for row in rows)} of {sum(row['runs'] for row in rows)}",
    ]  # fmt: skip


def flight_part(document: dict[str, Any]) -> str:
    """Time, memory and verdicts on the generated dumps."""
    lines = [
        [
            row["set"], row["variant"], row["program"], f"{row['median_s']:.2f}", f"{row['cpu_s']:.2f}",
            f"{row['disturbed_runs']} of {row['runs']}", f"{row['peak_tree_mb']:.0f}",
            f"{largest_process_mb(row):.0f}", row["says"], "yes" if row["right"] else "**no**",
        ]
        for row in document["rows"]
    ]  # fmt: skip
    header = [
        "set",
        "fault",
        "program",
        "wall s",
        "cpu s",
        "disturbed runs",
        "peak MB",
        "of one process",
        "says",
        "right",
    ]
    by_ranks = ", ".join(f"{n_ranks} ranks {wall_s:g} s" for n_ranks, wall_s in FLIGHT_TARGETS_S.items())
    target = f"Targets for 2,000 calls per rank: {by_ranks}; no process above {TARGET_MB:.0f} MB."
    notes = "".join(f" {note}." for note in document["notes"])
    return f"## Flight recorders\n\n{_where(document)} {target}{notes}\n\n{table(header, lines)}"


def sets_part(document: dict[str, Any]) -> str:
    """Who names the right ranks on the generated sets."""
    header = [{"whole": "kind, ranks and status"}.get(key, key) for key in document["rows"][0]]
    lines = [[str(value) for value in row.values()] for row in document["rows"]]
    return f"## Flight recorder: who is named\n\n{_where(document)}\n\n{table(header, lines)}"


def logs_part(document: dict[str, Any]) -> str:
    """Time and memory on large logs, and the engines that look for literals."""
    lines = [
        [
            row["log"], row["program"], f"{row['median_s']:.2f}", f"{row['cpu_s']:.2f}", f"{row['peak_tree_mb']:.0f}",
            {None: "", True: "yes", False: "**no**"}[row["right"]], f"{row['disturbed_runs']} of {row['runs']}",
        ]
        for row in document["rows"]
    ]  # fmt: skip
    header = ["log", "program", "wall s", "cpu s", "peak MB", "right", "disturbed runs"]
    engines = table(
        ["engine", "start-up ms", "MB/s"],
        [[engine["engine"], engine["startup_ms"], engine["mb_per_s"]] for engine in document["engines"]],
    )
    target = (
        f"Target for {LOG_SIZE_MB} MB: {LOG_TARGET_S:.0f} s and {LOG_TARGET_MB:.0f} MB, parent and workers together."
    )
    return (
        f"## Large logs\n\n{_where(document)} {target}\n\n{table(header, lines)}\n\n"
        f"Ways to look for all {document['n_literals']} literals at once; the first is used: it starts at once, "
        f"weighs 1 MB, and looks at shapes of lines that were not met before, which are few.\n\n{engines}"
    )


def snapshots_part(document: dict[str, Any]) -> str:
    """Time and memory on recorded and generated memory snapshots."""
    notes = "".join(f" {note}." for note in document["notes"])
    target = (
        f"Targets for {SNAPSHOT_SIZE_MB} MB: {SNAPSHOT_TARGET_S:.0f} s and {SNAPSHOT_TARGET_MB:.0f} MB, parent and "
        f"worker together, and about {TARGET_TIMES_THE_FILE:.0f} times the file at most."
    )
    rows = table(SNAPSHOT_HEADER, [snapshot_cells(row) for row in document["rows"]])
    return f"## Memory snapshots\n\n{_where(document)} {target}{notes}\n\n{rows}"


def symptoms_part(document: dict[str, Any]) -> str:
    """How often the first answer on a description is right, beside simpler ways, and what a confidence is worth."""
    return (
        f"## Descriptions in words\n\n{_where(document)}\n\n"
        f"{table(HEADER, [symptom_cells(row) for row in document['rows']])}\n\n"
        f"What a confidence is worth:\n\n{table(BAND_HEADER, [band_cells(band) for band in document['reliability']])}"
    )


def _where(document: dict[str, Any]) -> str:
    machine = document["machine"]
    programs = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return (
        f"{document['date']}; {machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}; {programs}; load average at the end {machine['load_average_1min']}."
    )


if __name__ == "__main__":
    main()
