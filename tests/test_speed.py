"""Guards against what makes start-up or a large set several times slower; the measured figures are in benchmarks/.

The bounds are four times the targets and the best of a few runs counts, so that a busy machine does not fail them.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import torchtriage

IMPORT_ROOT = Path(torchtriage.__file__).parents[1]
BENCHMARKS = IMPORT_ROOT.parent / "benchmarks"
SLACK = 4.0
ATTEMPTS = 4
LIMIT_S = 120.0


def run(*arguments: str | Path, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT)}
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment)


def best_s(call: Callable[[], object], enough_s: float) -> float:
    """The best wall time of a few calls; stops at the first that is good enough."""
    best = float("inf")
    for _ in range(ATTEMPTS):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
        if best < enough_s:
            break
    return best


def test_help_starts_at_once() -> None:
    bound = SLACK * 0.15
    assert best_s(lambda: run("-m", "torchtriage", "--help"), bound) < bound


@pytest.mark.parametrize("case", ["case-001", "case-006", "case-018"])
def test_a_triage_with_a_warm_index_is_quick(case: str, cases: Path, tmp_path: Path) -> None:
    bound = SLACK * 0.6

    def call() -> None:
        run("-m", "torchtriage", "triage", cases / case / "inputs", cache=tmp_path)

    call()
    assert best_s(call, bound) < bound


def test_a_triage_leaves_the_heavy_modules_alone(cases: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from torchtriage.cli import main; main(['triage', sys.argv[1]]);"
        "print([m for m in ('mcp', 'torch', 'yaml', 'jsonschema', 'numpy', 'asyncio') if m in sys.modules],"
        " file=sys.stderr)"
    )
    inputs = cases / "case-001" / "inputs"
    run("-c", code, inputs, cache=tmp_path)
    assert run("-c", code, inputs, cache=tmp_path).stderr.strip() == "[]"


def test_a_pasted_text_loads_only_what_a_verdict_needs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['torchtriage', 'explain-symptom', '--text', 'it hangs on rank 3']\n"
        "from torchtriage.cli import main; main()\n"
        "print([m for m in ('yaml', 'asyncio', 'ssl', 'multiprocessing', 'email.message', 'tempfile', 'zipfile',"
        " 'torchtriage.flight') if m in sys.modules], file=sys.stderr)"
    )
    run("-c", code, cache=tmp_path)
    assert run("-c", code, cache=tmp_path).stderr.strip() == "[]"


def cpu_s(*arguments: str, stdin: str, cache: Path) -> float:
    """Processor seconds of one run: unlike the wall time they hardly grow when others keep the machine busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(cache / "compiled")
    command = [sys.executable, *arguments]
    subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_pasted_text_is_explained_within_a_few_times_what_pydantic_takes_to_load(tmp_path: Path) -> None:
    log = (IMPORT_ROOT.parent / "tests" / "data" / "logs" / "embedding_oob.log").read_text(encoding="utf-8")
    text = "It hangs after an hour, is this normal?\n" + "\n".join(log.splitlines()[:200])
    least, explain = float("inf"), ("-m", "torchtriage", "explain-symptom", "--text", "-")
    for _ in range(ATTEMPTS):
        load = cpu_s("-c", "import pydantic; pydantic.BaseModel", stdin="", cache=tmp_path)
        least = min(least, cpu_s(*explain, stdin=text, cache=tmp_path) / load)
    assert least < 6


@pytest.mark.slow
def test_64_ranks_of_2000_calls_stay_within_time_and_memory(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = run(
        BENCHMARKS / "flight_recorder.py", "--sets", "64x2000-world", "64x2000-3d", "--no-peers", "--repeat", "3",
        "--output", results,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["right"] is True, row
        assert row["min_s"] < SLACK * 1.2
        assert row["peak_tree_mb"] < 2 * 120
