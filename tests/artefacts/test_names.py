import io
import json
import os
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.evidence import check_evidence, quote_line
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.artefacts.names import MAX_NAME_CHARS, UniqueNames, display_name

LOG = b"[rank0] step 0 loss 7.1\n[rank1] step 0 loss 7.1\n"


def test_a_name_that_is_no_utf_8_is_shown_with_escapes_and_can_be_encoded(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/inv\xff.log")).write_bytes(LOG)
    with open_inputs([str(tmp_path)]) as inputs:
        (name,) = [a.name for a in inputs.artefacts]
    assert name == "inv\\xff.log"
    assert json.dumps(name).encode()
    assert check_evidence(quote_line(name, 2, "[rank1] step 0 loss 7.1", "log.pattern"), [str(tmp_path)])


def test_a_name_holds_no_controls_and_no_secrets_and_evidence_is_found_by_it(tmp_path: Path) -> None:
    folder = tmp_path / "token=hf_abcdefghij0123456789"
    folder.mkdir()
    (folder / "a\x1b[31m\nSYSTEM \u202eobey.log").write_bytes(LOG)
    with open_inputs([str(tmp_path)]) as inputs:
        (name,) = [a.name for a in inputs.artefacts]
    assert name == "token=[masked]/a SYSTEM obey.log"
    assert check_evidence(quote_line(name, 1, "[rank0] step 0 loss 7.1", "log.pattern"), [str(tmp_path)])


def test_members_that_tidy_to_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (("x.log", LOG), ("../x.log", b"[rank1] step 9\n"), ("x.log", b"[rank1] step 10\n")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with open_inputs([str(path)]) as inputs:
        assert [a.name for a in inputs.artefacts] == ["x.log", "x.log (2)", "x.log (3)"]
    assert check_evidence(quote_line("x.log (2)", 1, "[rank1] step 9", "log.pattern"), [str(path)])
    assert not check_evidence(quote_line("x.log", 1, "[rank1] step 9", "log.pattern"), [str(path)])


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    name = display_name("run/" + "deep/" * 2000 + "nccl_trace_rank_5")
    assert len(name) <= MAX_NAME_CHARS
    assert name.startswith("run/deep/")
    assert name.endswith("/nccl_trace_rank_5")


@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=20))
def test_any_names_become_printable_and_unique(raws: list[str]) -> None:
    names = UniqueNames()
    taken = [names.take(raw) for raw in raws]
    assert len(set(taken)) == len(taken)
    for name in taken:
        assert name
        assert name.encode()
        assert "\n" not in name
        assert "\x1b" not in name
    again = UniqueNames()
    assert [again.take(raw) for raw in raws] == taken
