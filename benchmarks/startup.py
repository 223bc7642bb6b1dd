"""Measure how long torchtriage takes from process start to its answer: help, triage, a pasted text, the server.

    python benchmarks/startup.py [--runs 7] [--server-runs 15] [--output benchmarks/results/startup.json]

Each figure is the wall time seen from outside, interpreter start included. The index of the playbook lives in a cache
folder of its own, so that "cold" (no index yet) and "warm" are what they say. The large playbook is a copy of this
tree, padded to 150 entries and 600 log patterns (``large_playbook.py``).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from large_playbook import copy_tree, pad_playbook
from measuring import RESULTS, ROOT, Run, spread, table, timed, undisturbed, versions, write_results

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGETS_S = {"help": 0.15, "triage": 0.6, "explain-symptom": 0.5, "server": 0.9}
N_ENTRIES, N_PATTERNS = 150, 600
# What is pasted: lines of recorded logs, among which somebody says a few words.
PASTED = {
    "exception": ("rank_exception.log", "sigkill.log", "nan_fp16.log"),
    "device assert": ("embedding_oob.log", "frag_oom.log"),
}
PASTED_LINES, LINES_PER_REMARK = 200, 13
REMARKS = (
    "Our job hangs after about an hour and I do not know why.",
    "It always stops on the same node, the other ranks wait for it.",
    "What we tried: more timeouts, without any luck.",
    "Is this normal, or is something wrong with the network?",
)
LIMIT_S = 60.0

_COUNT = (
    "from torchtriage.knowledge.load import load_playbook; b = load_playbook().entries.values();"
    "print(len(b), sum(len(c.texts) for e in b for c in e.conditions()))"
)
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
FIRST_REQUESTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "0"},
    },
    "server/discover": {"_meta": _META},
}


def environment_for(import_root: Path, cache: Path) -> dict[str, str]:
    """This environment with the package of ``import_root`` and an index cache of its own."""
    return {**os.environ, "PYTHONPATH": str(import_root), "XDG_CACHE_HOME": str(cache)}


def playbook_size(environment: dict[str, str]) -> tuple[int, int]:
    """How many entries and log patterns the product's playbook holds."""
    done = subprocess.run([sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True, check=True)
    entries, patterns = done.stdout.split()
    return int(entries), int(patterns)


def first_answer_s(environment: dict[str, str], method: str) -> float:
    """Wall seconds from spawning the server to its whole first answer, over stdio.

    Raises:
        RuntimeError: the first line on stdout is not the answer.
    """
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": FIRST_REQUESTS[method]})
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtriage", "serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    with process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdin.write(request.encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        took = time.perf_counter() - start
        process.stdin.close()
        process.wait(LIMIT_S)
    if "result" not in json.loads(line or b"{}"):
        raise RuntimeError(f"the server answered {line[:200]!r} to {method}")
    return took


def verdict_of(output: str) -> str:
    """The first line of the answer without its numbers: enough to see that two playbooks give the same verdict."""
    return output.partition("\n")[0].partition(" (")[0][:80]


def triage_row(case: str, environment: dict[str, str], runs: int, playbook: str, inputs: Path) -> dict[str, Any]:
    """Triage one case with a warm index."""
    command = [sys.executable, "-m", "torchtriage", "triage", str(inputs)]
    done = timed(command, environment, runs, LIMIT_S)
    if done.code not in (0, 1, 3):
        raise RuntimeError(f"triage of {case} ended with {done.code}: {done.output[:300]}")
    row = {"what": "triage", "case": case, "playbook": playbook, "index": "warm", **spread(done.runs)}
    return {**row, "target_s": TARGETS_S["triage"], "verdict": verdict_of(done.output)}


def pasted_text(logs: Sequence[str]) -> str:
    """Lines of logs with remarks among them, as somebody would paste them."""
    folder = ROOT / "tests" / "data" / "logs"
    lines = [line for name in logs for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    for number, remark in enumerate(REMARKS * 4):
        lines.insert(number * LINES_PER_REMARK, remark)
    return "\n".join(lines[:PASTED_LINES])


def explain_row(case: str, environment: dict[str, str], runs: int, playbook: str) -> dict[str, Any]:
    """Explain a pasted text with a warm index."""
    command = [sys.executable, "-m", "torchtriage", "explain-symptom", "--text", pasted_text(PASTED[case])]
    timed(command, environment, 1, LIMIT_S)
    done = timed(command, environment, runs, LIMIT_S)
    if done.code not in (0, 1, 3):
        raise RuntimeError(f"explain-symptom of {case} ended with {done.code}: {done.output[:300]}")
    row = {"what": "explain-symptom", "case": case, "playbook": playbook, "index": "warm", **spread(done.runs)}
    return {**row, "target_s": TARGETS_S["explain-symptom"], "verdict": verdict_of(done.output)}


def product_rows(
    playbook: str, environment: dict[str, str], cache: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """All figures of one product tree."""
    rows: list[dict[str, Any]] = []
    base = [sys.executable, "-m", "torchtriage"]
    timed([*base, "--help"], environment, 1, LIMIT_S)  # compiles the modules
    runs = timed([*base, "--help"], environment, args.runs, LIMIT_S).runs
    rows.append({"what": "--help", "playbook": playbook, **spread(runs), "target_s": TARGETS_S["help"]})
    cases = sorted((ROOT / "evals" / "cases").glob("*/inputs"))
    if cases:
        timed([*base, "triage", str(cases[0])], environment, 1, LIMIT_S)  # compiles the modules
        cold: list[Run] = []
        for _ in range(args.runs):
            shutil.rmtree(cache, ignore_errors=True)
            cold += timed([*base, "triage", str(cases[0])], environment, 1, LIMIT_S).runs
        name = cases[0].parent.name
        rows.append({"what": "triage", "case": name, "playbook": playbook, "index": "cold", **spread(cold)})
    rows += [triage_row(c.parent.name, environment, args.runs, playbook, c) for c in cases]
    rows += [explain_row(case, environment, args.runs, playbook) for case in PASTED]
    for method in FIRST_REQUESTS:
        first_answer_s(environment, method)
        answers = undisturbed(functools.partial(first_answer_s, environment, method), args.server_runs)
        row = {"what": f"serve, {method}", "playbook": playbook, **spread(answers)}
        rows.append({**row, "target_s": TARGETS_S["server"]})
    return rows


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="runs of each command (default: %(default)s)")
    parser.add_argument("--server-runs", type=int, default=15, help="spawns of the server (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS / "startup.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        real = environment_for(ROOT / "tools", cache / "real")
        entries, patterns = playbook_size(real)
        copy = Path(scratch) / "large"
        large = environment_for(copy_tree(copy), cache / "large")
        pad_playbook(copy / "playbook", N_ENTRIES, N_PATTERNS, held_entries=entries, held_patterns=patterns)
        sizes = {"real": [entries, patterns], "large": list(playbook_size(large))}
        rows = product_rows("real", real, cache / "real", args)
        rows += product_rows("large", large, cache / "large", args)
    named = {"playbooks": {name: {"entries": e, "log_patterns": p} for name, (e, p) in sizes.items()}}
    facts = {**named, "versions": versions("torchtriage", "pydantic", "mcp", "PyYAML")}
    write_results(args.output, facts, rows)
    shown = [
        [
            f"{row['what']} {row.get('case', '')}".strip(), f"{row['playbook']} ({sizes[row['playbook']][0]} entries)",
            row.get("index", ""), f"{row['median_s']:.3f}", f"{row['min_s']:.3f} .. {row['max_s']:.3f}",
            f"{row['cpu_s']:.3f}", f"{row['disturbed_runs']}/{row['runs']}",
            f"{row['target_s']:.2f}" if "target_s" in row else "",
            ("yes" if row["median_s"] < row["target_s"] else "NO") if "target_s" in row else "",
        ]
        for row in rows
    ]  # fmt: skip
    print(
        table(["what", "playbook", "index", "median s", "min .. max s", "cpu s", "disturbed", "target s", "met"], shown)
    )
    changed = _changed_verdicts(rows)
    print(f"verdicts that the padding changed: {', '.join(changed) or 'none'}")


def _changed_verdicts(rows: list[dict[str, Any]]) -> list[str]:
    by_case: dict[str, set[str]] = {}
    for row in rows:
        if "verdict" in row:
            by_case.setdefault(row["case"], set()).add(row["verdict"])
    return sorted(case for case, verdicts in by_case.items() if len(verdicts) > 1)


if __name__ == "__main__":
    main()
