from torchtriage.knowledge.load import load_playbook
from torchtriage.logs.scan.read import scan, text_source
from torchtriage.logs.versions import version_signals
from torchtriage.verdict.gather import log_patterns

LOG = (
    "[rank0]: node-0:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    "[rank1]: node-0:2:2 [1] NCCL INFO NCCL version 2.27.3+cuda12.4\n"
    "[rank0]: step 1 loss 2.3\n"
)


def test_the_versions_that_a_log_prints_are_told_with_rank_and_line() -> None:
    signals = version_signals(scan([text_source(LOG, "train.log")], log_patterns(load_playbook())).hits)
    assert [(s.facts["package"], s.facts["version"], s.scope.ranks, s.evidence[0].where) for s in signals] == [
        ("nccl", "2.21.5+cuda12.4", [0], "1"),
        ("nccl", "2.27.3+cuda12.4", [1], "2"),
    ]
    assert not any(s.facts["works"] for s in signals)
