"""The verdict on logs does not hang on what does not matter: how the lines of ranks mix and in which files they are,
the names of hosts, the time of day, what else is printed, how the text is encoded, and which numbers ranks have.
"""

from __future__ import annotations

import functools
import random
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtriage.artefacts.evidence import quote_occurs
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.verdict.tool import triage
from verdict.job_logs import JOBS, LAYOUTS, as_bytes, in_files, mix, relabelled, show, streams_of, with_noise

if TYPE_CHECKING:
    from collections.abc import Mapping

CASES = Path(__file__).parents[2] / "evals" / "cases"
RECORDED = ("case-002", "case-010", "case-012", "case-035", "case-043", "case-075")
QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FEW = settings(QUICK, max_examples=10)
JOB = st.sampled_from(sorted(JOBS))
LAYOUT = st.sampled_from(LAYOUTS)
RNG = st.integers(0, 1 << 30).map(random.Random)
SHIFTS_S = (-25200.0, 19800.0, 17.3, 64000.0, 40 * 86400.0)
SKEWS_S = (-25200.0, 3600.0, 3.0, -3.0, 40.0, -40.0, 700.0, -700.0)

Answer = tuple[str, str | None, tuple[int, ...]]
NOTHING: Answer = ("inconclusive", None, ())


def judge(files: Mapping[str, bytes]) -> Answer:
    """Status, failure mode and culprits, after every quote of the verdict was found again."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        verdict = triage([folder])
        with open_inputs([folder]) as inputs:
            artefacts = {artefact.name: artefact for artefact in inputs.artefacts}
            for evidence in verdict.evidence:
                assert quote_occurs(evidence, artefacts[evidence.artefact]), evidence
    return verdict.status, verdict.failure_mode, tuple(verdict.culprits.ranks)


@functools.cache
def usual(job: str) -> Answer:
    """The answer on a job whose lines stand in one file, by time."""
    lines = JOBS[job]()
    return judge(in_files(show(lines, stamped=False), lines, "one"))


def test_the_jobs_are_told_apart() -> None:
    assert {job: usual(job) for job in JOBS} == {
        "one_rank_raises": ("diagnosed", "python-exception-on-one-rank", (2,)),
        "one_rank_leaves_the_loop_early": ("diagnosed", "uneven-batches-per-rank", (1,)),
        "one_rank_runs_out_of_memory": NOTHING,
        "one_rank_prints_nan": NOTHING,
        "all_ranks_diverge": ("suspected", "learning-rate-diverges", (0, 1, 2, 3)),
        "one_rank_is_killed": ("diagnosed", "process-killed-by-sigkill", (3,)),
        "one_rank_crashes_in_native_code": ("diagnosed", "segfault-in-native-code", (3,)),
        "gloo_ranks_wait_in_vain": NOTHING,
        "rank_zero_is_elsewhere": ("suspected", "collective-skipped-on-one-rank", (0,)),
        "one_rank_waits_in_another_call": NOTHING,
        "all_is_well": ("healthy", None, ()),
        "the_log_just_ends": NOTHING,
    }


@QUICK
@given(JOB, st.booleans(), st.sampled_from(["one", "node"]), RNG)
def test_the_order_in_which_lines_of_ranks_mix_decides_nothing(job, stamped, layout, rng):
    lines = JOBS[job]()
    answer = judge(in_files(show(lines, stamped=stamped), lines, layout, rng))
    # What rank 0 prints without a time may now stand behind its peers' time-outs: as if it had gone on only then.
    unknown = job == "rank_zero_is_elsewhere" and not stamped
    assert answer in ({usual(job), NOTHING} if unknown else {usual(job)})


@QUICK
@given(JOB, st.booleans(), LAYOUT, st.booleans())
def test_how_lines_are_split_into_files_decides_nothing(job, stamped, layout, bare):
    lines = JOBS[job]()
    files = in_files(show(lines, stamped=stamped), lines, layout)
    if bare and layout in ("rank", "folder"):
        files = {name: re.sub(rb"(?m)^\[rank\d\]: ?", b"", content) for name, content in files.items()}
    assert judge(files) == usual(job)


@FEW
@given(JOB, st.booleans(), LAYOUT, st.sampled_from([("gpu-b-7.cluster", "gpu-b-8.cluster"), ("ip-10-0-3-4", "a")]))
def test_the_names_of_hosts_decide_nothing(job, stamped, layout, hosts):
    lines = JOBS[job]()
    assert judge(in_files(show(lines, stamped=stamped, hosts=hosts), lines, layout)) == usual(job)


@QUICK
@given(JOB, st.booleans(), LAYOUT, st.sampled_from(SHIFTS_S))
def test_the_time_of_day_decides_nothing(job, stamped, layout, shift_s):
    lines = JOBS[job]()
    assert judge(in_files(show(lines, stamped=stamped, shift_s=shift_s), lines, layout)) == usual(job)


@QUICK
@given(JOB, st.booleans(), LAYOUT, st.integers(0, 1), st.sampled_from(SKEWS_S))
def test_a_wrong_clock_of_one_host_never_names_another_culprit(job, stamped, layout, host, skew_s):
    lines = JOBS[job]()
    skew = (skew_s, 0.0) if host == 0 else (0.0, skew_s)
    assert judge(in_files(show(lines, stamped=stamped, skew_s=skew), lines, layout)) in {usual(job), NOTHING}


@settings(QUICK, max_examples=60)
@given(JOB, st.booleans(), LAYOUT, RNG)
def test_harmless_lines_decide_nothing(job, stamped, layout, rng):
    lines = JOBS[job]()
    assert judge(in_files(with_noise(show(lines, stamped=stamped), lines, rng), lines, layout)) == usual(job)


ENCODINGS = {
    "Windows": lambda content: content.replace(b"\n", b"\r\n"),
    "with a mark": lambda content: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"),
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "coloured": lambda content: re.sub(rb"(?m)^(.+)$", lambda line: b"\x1b[31m" + line[1] + b"\x1b[0m", content),
}


@QUICK
@given(JOB, st.booleans(), LAYOUT, st.sampled_from(sorted(ENCODINGS)))
def test_line_ends_colours_and_encodings_decide_nothing(job, stamped, layout, encoding):
    lines = JOBS[job]()
    files = in_files(show(lines, stamped=stamped), lines, layout)
    assert judge({name: ENCODINGS[encoding](content) for name, content in files.items()}) == usual(job)


@QUICK
@given(JOB, st.booleans(), LAYOUT, st.permutations(range(4)))
def test_other_numbers_for_ranks_give_other_numbers_for_culprits(job, stamped, layout, new):
    lines = relabelled(JOBS[job](), new)
    status, mode, culprits = usual(job)
    answer = judge(in_files(show(lines, stamped=stamped), lines, layout))
    assert answer == (status, mode, tuple(sorted(new[rank] for rank in culprits)))


@functools.cache
def recorded(case: str) -> Answer:
    return judge({"torchrun.log": (CASES / case / "inputs" / "torchrun.log").read_bytes()})


@pytest.mark.parametrize("case", RECORDED)
@settings(FEW, max_examples=3)
@given(RNG)
def test_a_recorded_log_may_be_mixed_anew_and_split_by_rank(case, rng):
    streams = streams_of(CASES / case / "inputs" / "torchrun.log")
    assert judge({"torchrun.log": as_bytes(mix(streams.values(), rng))}) == recorded(case)
    files = {("torchrun.log" if not key else f"rank_{key}.log"): as_bytes(lines) for key, lines in streams.items()}
    assert judge(files) == recorded(case)
