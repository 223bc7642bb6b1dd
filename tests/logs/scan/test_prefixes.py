"""Whose line it is, in the forms that launchers and loggers print."""

from __future__ import annotations

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.prefixes import looks_labelled
from torchtriage.logs.scan.read import LogPattern, LogSource, PatternSet, scan, text_source

MARKER = PatternSet([LogPattern("marker", "boom here")])


def match_ranks(text: str, **source: object) -> list[list[int]]:
    one = LogSource("log", text.split("\n"), **source)
    return [match.ranks for match in analyze(scan([one], MARKER)).pattern_matches]


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: boom here",
        "[rank3] boom here",
        "[Rank 3] boom here",
        "[rank: 3] boom here",
        "[default3]: boom here",
        "rank 3: boom here",
        "Rank 3 | boom here",
        "RANK=3 boom here",
        "(rank 3) boom here",
        "[1,3]<stdout>:boom here",
        "[rank3]:[E1130 06:20:50.602031820 ProcessGroupNCCL.cpp:689] [Rank 0] boom here",
        "[E ProcessGroupNCCL.cpp:737] [Rank 3] boom here",
        "[E1130 06:20:50.602031820 ProcessGroupNCCL.cpp:689] [PG ID 0 PG GUID 0(default_pg) Rank 3] boom here",
        "2026-11-30 06:20:26,123 - INFO - [rank3] boom here",
        "2026-11-30T06:20:26.123Z [rank3]: boom here",
        "[2026-11-30 06:20:26] [rank3] boom here",
        "Nov 30 06:20:26 node01 [rank3]: boom here",
        "1795994426.25 [rank3] boom here",
        "[pod/train-worker-3/pytorch] boom here",
        "pod/train-worker-3 boom here",
        "(Worker rank=3 pid=4711) boom here",
        "2026-11-30 06:20:26,123 INFO trainer rank=3 boom here",
        "2026-11-30 06:20:26,123 INFO pretrain.loop rank=3, boom here",
        "time=2026-11-30T06:20:26Z level=info rank=3 msg=boom here",
        '{"time": "2026-11-30T06:20:26Z", "rank": 3, "message": "boom here"}',
        "\x1b[36m[rank3]:\x1b[0m boom here",
        "10%|#   | 1/10\r20%|##  | 2/10\r[rank3] boom here",
        "[rank3/8] boom here",
        "[node01 rank3] boom here",
        "[INFO][node0/rank3] boom here",
        "rank 3 step 10: boom here",
        "[default3]: [rank3]: boom here",
        "[default3]:[rank3]: boom here",
        "(RayTrainWorker pid=12, ip=10.0.0.4, rank=3) boom here",
        "(train_fn pid=1) [rank=3] boom here",
        "(VllmWorker rank=3 pid=12) INFO 11-30 06:20:26 [core.py:12] boom here",
        "[pod/train-worker-3/pytorch] 2026-11-30T06:20:26.123456789Z boom here",
        "[pod/train-worker-1/pytorch] [rank3]: boom here",
        "2026-11-30T06:20:26.123456789Z stderr P [rank3]: boom here",
        "Nov 30 12:00:00 node01 train[123]: [rank3]: boom here",
        "Nov 30 12:00:00.123456 node01 train[123]: [rank3]: boom here",
        "2026-11-30T12:00:00+0000 node01 train[123]: [rank3]: boom here",
        "I1130 12:00:00.123456 140123456789012 main.py:12] [rank3] boom here",
        "2026-11-30 06:20:26.123 | INFO     | trainer.loop:run:12 - [rank3] boom here",
        "[NeMo I 2026-11-30 06:20:26 nemo_logging:393 rank:3] boom here",
        "[2026-11-30 06:20:26,123] [INFO] [logging.py:96:log_dist] [Rank 3] boom here",
        "11/30/2026 06:20:26 - INFO - __main__ - [rank3] boom here",
        "2026-11-30 06:20:26 +0100 [rank3] boom here",
        "12:30:01 [rank3] boom here",
        '{"ts": 1796019626.25, "level": "info", "rank": 3, "msg": "boom here"}',
        'time="2026-11-30T06:20:26Z" level=info rank=3 msg="boom here"',
        "[prterun-host-1234@1,3]<stderr>: boom here",
        "[1,3][host:123]<stderr>: boom here",
        "Mon Nov 30 06:20:26 2026[1,3]<stdout>: boom here",
    ],
)
def test_the_rank_in_front_of_a_message_is_read(line):
    assert match_ranks(line) == [[3]]


@pytest.mark.parametrize(
    "line",
    [
        "boom here",
        "job 3: boom here",
        "[3] boom here",
        "0: boom here",
        "torch 2.11.0 boom here",
        "[2026-11-30 06:20:26] boom here",
        "[local rank 3] boom here",
        "[tp rank 3] boom here",
        "[tp_rank 3] boom here",
        "[lora rank 8] boom here",
        "lora rank=8 alpha=16 boom here",
        '{"rank": 3, "alpha": 16, "note": "boom here"}',
        '{"timestamp": "2026-11-30T06:20:26Z", "local_rank": 3, "msg": "boom here"}',
        "(TrainWorker pid=12, ip=10.0.0.4) boom here",
        "(EngineCore_DP0 pid=12) INFO 11-30 06:20:26 [core.py:12] boom here",
        "(Worker_TP1 pid=12) boom here",
        "(worker1, rank=1, pid=123, ip=10.0.0.2) boom here",
        "[PG ID 2 PG GUID 5(tp) Rank 1] boom here",
        "trainer-3  | boom here",
        "E1130 12:00:00.123456   12345 controller.go:123] boom here",
        "[NeMo I 2026-11-30 06:20:26 nemo_logging:393] boom here",
        "2026-11-30T06:20:26.123456789Z stdout F boom here",
    ],
)
def test_other_numbers_in_front_of_a_message_are_no_rank(line):
    assert match_ranks(line) == [[]]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (["0: a", "1: a", "0: b", "1: b"], "srun"),
        ([" 0: a", "10: a", " 0: b"], "srun"),
        (["[0] a", "[1] a", "[0] b"], "hydra"),
        (["worker-0: a", "worker-1: a", "worker-0: b", "worker-1: b", "worker-0: c", "worker-1: c"], "pdsh"),
        (["train-worker-0 pytorch a", "train-worker-1 pytorch a", "train-worker-0 pytorch b"], ""),
        (["train-worker-0 pytorch a", "train-worker-0 pytorch b", "train-worker-0 pytorch c"], "stern"),
        (["1: a", "2: a", "3: a"], ""),
        (["loss: 3", "lr: 4", "loss: 5", "lr: 5"], ""),
        ([], ""),
    ],
)
def test_the_launcher_that_labels_all_lines_is_told_by_the_first_ones(head, kind):
    assert looks_labelled(head) == kind


def test_the_host_before_each_line_is_no_part_of_the_message():
    text = "\n".join(f"worker-{n % 2}: [rank{n % 2}]: step {n} boom here" for n in range(8))
    found = analyze(scan([text_source(text)], MARKER)).pattern_matches
    assert [match.ranks for match in found] == [[0], [1]]


def test_task_numbers_of_srun_are_ranks():
    assert match_ranks("0: a\n1: a\n0: b\n 3: boom here\n1: b\n3: c") == [[3]]


def test_line_numbers_are_not_ranks():
    assert match_ranks("1: a\n2: a\n3: boom here\n4: b\n5: c") == [[]]


def test_a_process_id_becomes_a_rank_when_nccl_tells_it():
    text = (
        "(RayTrainWorker pid=957, ip=10.0.0.2) boom here\n"
        "node:957:957 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 5 nranks 8 cudaDev 1 busId 70 - Init COMPLETE"
    )
    assert match_ranks(text) == [[5]]


def test_two_messages_on_one_line_are_two_events_of_that_line():
    found = analyze(scan([text_source("[rank1] boom here 1[rank0] boom here 1")], MARKER))
    assert [(match.ranks, match.evidence.where) for match in found.pattern_matches] == [([1], "1"), ([0], "1")]


def test_a_progress_bar_in_front_of_a_ranks_line_does_not_hide_the_rank():
    assert match_ranks(" 10%|#   | 1/10 [00:01<00:09][rank2]: boom here") == [[2]]


def test_a_mentioned_rank_is_not_the_printing_rank():
    assert match_ranks("[rank1] sending to [rank2] boom here") == [[1]]


def test_the_rank_of_the_file_holds_where_a_line_names_none():
    assert match_ranks("boom here", rank=7) == [[7]]
    assert match_ranks("[rank2]: boom here", rank=7) == [[2]]
    assert match_ranks("[default1]: boom here", rank=7) == [[7]]


def test_lines_of_several_files_are_ordered_by_their_time():
    late = LogSource("rank0.log", ["2026-11-30 06:20:30 boom here"], rank=0)
    early = LogSource("rank1.log", ["[E1130 06:20:26.5 a.cpp:1] boom here"], rank=1)
    found = analyze(scan([late, early], MARKER)).pattern_matches
    assert [(match.ranks, match.time_s) for match in found] == [([1], 1796019626.5), ([0], 1796019630.0)]


def test_inside_a_file_its_own_order_is_kept():
    text = "2026-11-30 06:20:30 [rank0] boom here\n2026-11-30 06:20:26 [rank1] boom here"
    assert match_ranks(text) == [[0], [1]]


@pytest.mark.parametrize(
    ("stamp", "time_s"),
    [
        ("2026-11-30 06:20:26", 1796019626.0),
        ("2026-11-30T06:20:26.250Z", 1796019626.25),
        ("2026-11-30T07:20:26.250+01:00", 1796019626.25),
        ("2026/11/30 06:20:26,500", 1796019626.5),
        ("1796019626.25", 1796019626.25),
        ("1796019626250", 1796019626.25),
        ("1796019626250000", 1796019626.25),
        ("11/30/2026 06:20:26 -", 1796019626.0),
        ("30/11/2026 06:20:26 -", 1796019626.0),
        ("[Mon Nov 30 06:20:26 2026]", 1796019626.0),
        ("2026-11-30T07:20:26+01", 1796019626.0),
        ("2026-11-30 06:20:26 UTC", 1796019626.0),
        ("[NeMo I 2026-11-30 06:20:26 trainer:12 rank:0]", 1796019626.0),
        ("01:00:05", 3605.0),
        ("[12345.123456]", None),
        ("2026-99-99 99:99:99", None),
    ],
)
def test_time_stamps_are_seconds_since_the_epoch(stamp, time_s):
    (match,) = analyze(scan([text_source(f"{stamp} boom here")], MARKER)).pattern_matches
    assert match.time_s == time_s
