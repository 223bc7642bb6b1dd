import gzip
import json
import pickle
from pathlib import Path

import pytest
import zstandard

from torchtriage.artefacts.evidence import check_evidence, quote_line, quote_value
from torchtriage.report import Evidence

DUMP = {
    "version": "2.10",
    "pg_config": {},
    "entries": [{"profiling_name": "nccl:all_reduce", "process_group": ("0", "d")}],
}


def test_a_quoted_line_is_found_again_after_cleaning(tmp_path: Path) -> None:
    line = "\x1b[31m[rank1] ERROR token=abcdefghijkl at step 3\x1b[0m " + "x" * 500
    (tmp_path / "run.log").write_text(f"first\n{line}\nlast step 1\n", encoding="utf-8")
    evidence = quote_line("run.log", 2, line, "log.pattern")
    assert "abcdefghijkl" not in evidence.quote
    assert check_evidence(evidence, [str(tmp_path)])


@pytest.mark.parametrize(
    "change",
    [{"where": "3"}, {"where": "99"}, {"quote": "[rank1] ERRORS"}, {"artefact": "other.log"}, {"quote": ""}],
)
def test_a_quote_that_is_not_there_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    (tmp_path / "run.log").write_text("first step 0\n[rank1] ERROR\nlast\n", encoding="utf-8")
    good = quote_line("run.log", 2, "[rank1] ERROR", "log.pattern")
    assert check_evidence(good, [str(tmp_path)])
    assert not check_evidence(good.model_copy(update=change), [str(tmp_path)])


@pytest.mark.parametrize("kind", ["pickle", "json", "json.gz", "pickle.zst"])
def test_a_value_is_found_again_by_its_pointer(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    text = json.dumps(DUMP).encode()
    path.write_bytes(
        {
            "pickle": pickle.dumps(DUMP, 2),
            "json": text,
            "json.gz": gzip.compress(text),
            "pickle.zst": zstandard.compress(pickle.dumps(DUMP, 2)),
        }[kind]
    )
    for pointer, value in (("/entries/0/profiling_name", "nccl:all_reduce"), ("/entries/0/process_group", ["0", "d"])):
        evidence = quote_value("nccl_trace_rank_0", pointer, value, "flight.behind_on_enqueue")
        assert check_evidence(evidence, [str(tmp_path)])
        assert not check_evidence(evidence.model_copy(update={"where": "/entries/1"}), [str(tmp_path)])
        assert not check_evidence(evidence.model_copy(update={"quote": '"nccl:broadcast"'}), [str(tmp_path)])


def test_a_pointer_into_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 0 loss 1\n", encoding="utf-8")
    evidence = Evidence(artefact="run.log", where="/0", quote="step", signal="log.pattern")
    assert not check_evidence(evidence, [str(tmp_path)])
