"""Whatever a log holds, it is read without an error, in linear time, and quoted faithfully."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtriage.artefacts.clean import clean_text
from torchtriage.logs.analyze import LogFindings, analyze
from torchtriage.logs.scan.literals import DIGITS
from torchtriage.logs.scan.prefixes import parse_prefix
from torchtriage.logs.scan.read import LogPattern, LogSource, PatternSet, scan, text_source

DATA = Path(__file__).parent.parent / "data" / "logs"
PATTERNS = PatternSet([LogPattern("oom", "out of memory", r"allocate (?P<size>\S+)"), LogPattern("r", "rank")])
RECORDED = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(DATA.glob("*.log"))]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

PIECES = st.sampled_from(
    [
        "[rank",
        "[rank0]",
        "[rank1]: ",
        "]",
        ":",
        " ",
        "\t",
        "\r",
        "\x1b[31m",
        "step ",
        "loss ",
        "nan",
        "inf",
        "1e999",
        "9" * 30,
        "0",
        "-9",
        "Traceback (most recent call last):",
        "\n",
        '  File "a.py", line 1, in f',
        "ValueError: x",
        "During handling of the above exception, another exception occurred:",
        "CUDA out of memory. Tried to allocate ",
        "1.00 GiB",
        "WorkNCCL(SeqNum=",
        "Watchdog caught collective operation timeout: ",
        "  rank      : 1 (local_rank: 1)",
        "Root Cause (first observed failure):",
        "  exitcode  : -9 (pid: 1)",
        "failed (exitcode: -6) local_rank: 1 (pid: 2)",
        "srun: error: n: tasks 0-9999999: Killed",
        "E1330 99:99:99.1 a.cpp:1]",
        "2026-13-40 25:61:61",
        "| ",
        "{'loss': ",
        "  + Exception Group Traceback (most recent call last):",
        "\u202e",
        "\ud800",
        "٣",
        "²",
        "10/100 [",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  x",
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f (most recent call first):",
        "frame #0: f() + 0x1 (0x7f in /a/b.so)",
        "Original Traceback (most recent call last):",
        "RayTaskError(ValueError): ray::f() (pid=1, ip=1.1.1.1)",
        "  traceback : Traceback (most recent call last):",
        "[default1]:",
        "pod/a-1 ",
        "Reason: Error",
        "Exit Code: 139",
    ]
)


def read(text: str, rank: int | None = None) -> LogFindings:
    return analyze(scan([LogSource("a", text.split("\n"), rank=rank), text_source(text, "b")], PATTERNS))


@QUICK
@given(st.text(max_size=400))
def test_any_text_is_read(text):
    read(text)


@QUICK
@given(st.binary(max_size=400))
def test_any_bytes_are_read(data):
    read(data.decode("utf-8", errors="replace"), rank=3)


@QUICK
@given(st.lists(PIECES, max_size=60).map("".join))
def test_any_mixture_of_log_pieces_is_read(text):
    read(text)


LAUNCHERS = st.sampled_from(
    ["", "[default3]:", "[1,3]<stdout>:", "(Worker pid=12) ", "pod/train-3 ", "[pod/train-3/c] ", "trainer-3  | ",
     "(raylet) ", "2026-11-30T06:20:26.5Z stdout F "]
)  # fmt: skip
TIMES = st.sampled_from(
    ["", "2026-11-30 06:20:26,123 ", "[2026-11-30 06:20:26] ", "2026-11-30T06:20:26+01:00 ", "Nov 30 06:20:26 n1 ",
     "I1130 06:20:26.5 12 a.py:1] ", "[Mon Nov 30 06:20:26 2026] ", "1796019626.25 ", "06:20:26 ", "[12.345678] ",
     "11-30 06:20:26 "]
)  # fmt: skip
LEVELS = st.sampled_from(["", "INFO ", "[INFO] ", "- WARNING - ", "| ERROR    | a.b:c:12 - ", "[trainer.py:12] "])
RANKS = st.sampled_from(["[rank3]: ", "[Rank 3] ", "[rank: 3] ", "(rank 3) ", "rank 3: ", "[rank3/8] ", "[n1 rank3] "])


@QUICK
@given(LAUNCHERS, TIMES, LEVELS, RANKS)
def test_whatever_stands_before_a_message_its_rank_is_read_and_its_text_kept(launcher, when, level, rank):
    line = launcher + when + level + rank + "out of memory. allocate 7x"
    timeline = scan([text_source(line)], PATTERNS)
    (hits,) = [hits for hits in timeline.hits if hits.pattern_id == "oom"]
    assert hits.lines[0].rank == 3
    assert hits.facts == {"size": "7x"}
    template = line.translate(DIGITS)
    found = parse_prefix(template, 0, len(template), labelled="")
    assert line[found.body :] == "out of memory. allocate 7x"


@QUICK
@given(LAUNCHERS, TIMES, LEVELS, st.text(max_size=40), st.sampled_from(["", "srun", "hydra", "pdsh", "stern"]))
def test_a_prefix_never_takes_more_than_the_line_has(launcher, when, level, text, labelled):
    template = (launcher + when + level + text).translate(DIGITS)
    found = parse_prefix(template, 0, len(template), labelled=labelled)
    assert 0 <= found.body <= len(template)
    assert found.owner is None or found.owner[1] <= len(template)


@QUICK
@given(st.data())
def test_damaged_recordings_are_read_and_quoted_faithfully(data):
    text = data.draw(st.sampled_from(RECORDED))[:20_000]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 200))
    junk = data.draw(st.text(max_size=60))
    damaged = text[:start] + junk + text[start + length :]
    lines = damaged.split("\n")
    found = analyze(scan([text_source(damaged)], PATTERNS))
    for evidence in [e for s in found.signals for e in s.evidence] + [m.evidence for m in found.pattern_matches]:
        assert evidence.quote in clean_text(lines[int(evidence.where) - 1], limit=None)


@pytest.mark.parametrize(
    "piece",
    [
        "a ",
        "step ",
        "a_a ",
        "[",
        "loss 1,",
        "[rank1]",
        "[PG ",
        "pod/a-",
        "(",
        "skip ",
        "A.",
        "step 1 ",
        "- ",
        "=",
        "1 ",
        "[rank1]x",
        "Process ",
        "rank 1 ",
        "\x1b[",
        "\r",
        "Traceback ",
        "[a] ",
        "2026-11-30 00:00:00 ",
        "[a rank 1] ",
        "[a,",
        "(a pid=1 ",
        "ray::",
        "frame #1: ",
        '{"rank": 1, ',
        '{"a": "Traceback (most recent call last):\\n  File \\"a\\", line 1, in f\\n',
        "INFO ",
        "a:b:1 - ",
        ": ",
        "|",
    ],
)
def test_a_hostile_line_costs_linear_time(piece):
    times: list[float] = []
    for size in (8_000, 64_000):
        line = (piece * (size // len(piece) + 1))[:size]
        start = time.perf_counter()
        analyze(scan([text_source(line)], PATTERNS))
        times.append(time.perf_counter() - start)
    assert times[1] < 16 * times[0] + 0.3


def test_endless_tracebacks_are_bounded():
    frames = '  File "a.py", line 1, in f\n    x\n' * 30_000
    found = read("Traceback (most recent call last):\n" + frames + "ValueError: x")
    assert len(found.signals) <= 1


def test_many_ranks_are_bounded():
    text = "\n".join(f"[rank{n}] step 1 loss 2.0\n[rank{n}]: ValueError: x" for n in range(30_000))
    assert len(analyze(scan([text_source(text)], PATTERNS)).signals) < 300
