"""``collect`` on jobs that run here: plain Python processes that say by their environment that they are ranks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from bundle.plain_jobs import PlainJob, plain_job
from stacks.live_processes import need_ptrace, state, within
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.bundle.collect import Limits
from torchtriage.bundle.processes import NoJobError, SeveralJobsError
from torchtriage.bundle.tool import collect, render
from torchtriage.cli import main
from torchtriage.errors import BadCallError
from torchtriage.report import NextCheck
from torchtriage.schemas import schema
from torchtriage.stacks.tool import dump_stacks
from torchtriage.tool_reports import CollectReport

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = Limits(again_after_s=0.1)
SECRET = "abcdefghijklmnop"


@pytest.fixture(autouse=True)
def _private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PlainJob]:
    need_ptrace()
    with plain_job(tmp_path, world_size=4) as running:
        yield running


def files_of(bundle: Path) -> list[Path]:
    return sorted(path for path in bundle.rglob("*") if path.is_file())


def test_a_bundle_holds_what_its_manifest_lists_and_is_private(job: PlainJob, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    before = [state(pid) for pid in job.pids]
    report = collect(job=job.key, output=str(target), limits=QUICK)

    assert [state(pid) for pid in job.pids] == before
    assert (report.status, report.ranks, report.bundle) == ("collected", [0, 1], str(target))
    assert report.job is not None
    assert job.key in report.job
    assert report.collected["stack_dump"] == 4
    assert report.collected["proc_facts"] == 4
    assert report.collected["log"] == 2
    assert any("2 of the job's 4 ranks run on this node" in gap for gap in report.gaps)
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema("manifest"))
    listed = {item["path"] for item in manifest["items"] if item["path"]}
    assert listed == {path.relative_to(target).as_posix() for path in files_of(target)} - {"manifest.json"}
    assert manifest["job"]["world_size"] == 4
    # What these ranks run, not what is installed beside the collector.
    assert manifest["torch_version"] is None
    assert manifest["nccl_version"] is None
    assert manifest["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert manifest["stopped_by"] is None
    assert manifest["job"]["master_port"] == job.port
    assert {path.stat().st_mode & 0o777 for path in files_of(target)} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (target, *target.rglob("*")) if path.is_dir()} == {0o700}
    assert report.size_bytes == sum(path.stat().st_size for path in files_of(target))
    assert report.next_checks[0].arguments == {"paths": [str(target)]}


def test_the_stacks_in_a_bundle_are_read_again(job: PlainJob, tmp_path: Path) -> None:
    collect(pids=job.pids, output=str(tmp_path / "bundle"), limits=QUICK)
    read = dump_stacks([str(tmp_path / "bundle")])
    assert [(rank.rank, rank.pid) for rank in read.ranks] == list(enumerate(job.pids))
    assert all(any("waits_for_ever" in frame for frame in rank.frames) for rank in read.ranks)


def test_pids_choose_ranks(job: PlainJob, tmp_path: Path) -> None:
    report = collect(pids=job.pids[1:], output=str(tmp_path / "bundle"), limits=QUICK)
    assert report.ranks == [1]
    here, elsewhere = (gap for gap in report.gaps if " ranks " in gap)
    assert here.startswith("1 of the job's 2 ranks on this node looked at, as only some were named: --job 127.0.0.1:")
    assert elsewhere.startswith("2 of the job's 4 ranks run on this node")
    assert not [path for path in files_of(tmp_path / "bundle") if f"pid{job.pids[0]}" in path.name]


def test_a_packed_bundle_is_read_as_a_folder_is(job: PlainJob, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.zst"
    report = collect(job=job.key, output=str(target), limits=QUICK)
    assert report.bundle == str(target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert report.size_bytes > 0
    assert not list((tmp_path / "tmp" / "torchtriage_bundles").iterdir())
    with open_inputs([str(target)]) as inputs:
        kinds = [artefact.kind for artefact in inputs.artefacts]
        assert not inputs.gaps
    assert kinds.count("stack_dump") == report.collected["stack_dump"]
    assert [rank.rank for rank in dump_stacks([str(target)]).ranks] == [0, 1]


def test_without_an_output_a_private_folder_is_made(job: PlainJob, tmp_path: Path) -> None:
    report = collect(job=job.key, limits=QUICK)
    assert report.bundle is not None
    assert report.bundle.startswith(str(tmp_path / "tmp" / "torchtriage_bundles"))
    assert (tmp_path / "tmp" / "torchtriage_bundles").stat().st_mode & 0o777 == 0o700


def test_no_secret_of_environment_command_line_or_log_is_in_the_bundle(tmp_path: Path) -> None:
    need_ptrace()
    environment = {
        "HF_TOKEN": f"hf_{SECRET}",
        "WANDB_API_KEY": SECRET,
        "TORCHELASTIC_RUN_ID": f"https://user:{SECRET}@host/x",
        "SAYS": f"Authorization: Bearer {SECRET}|api_key={SECRET}",
    }
    arguments = ["--api-key", SECRET, f"--password={SECRET}"]
    with plain_job(tmp_path, 1, environment=environment, arguments=arguments) as job:
        report = collect(pids=job.pids, output=str(tmp_path / "bundle"), limits=QUICK)
        assert SECRET in job.log_of(0).read_text(encoding="utf-8")
    assert report.collected["log"] == 1
    assert len(files_of(tmp_path / "bundle")) > 4
    assert not [path for path in files_of(tmp_path / "bundle") if SECRET.encode() in path.read_bytes()]
    assert SECRET not in report.model_dump_json()


def test_a_rank_that_is_stopped_stays_stopped_and_is_seen_so(job: PlainJob, tmp_path: Path) -> None:
    os.kill(job.pids[1], signal.SIGSTOP)
    collect(job=job.key, output=str(tmp_path / "bundle"), limits=QUICK)
    assert [state(pid) for pid in job.pids] == ["S", "T"]
    assert [rank.state for rank in dump_stacks([str(tmp_path / "bundle")]).ranks][1] == "stopped"


def test_of_several_jobs_none_is_chosen_and_each_is_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        keys: list[str] = []
        for number in (1, 2):
            folder = tmp_path / f"job{number}"
            folder.mkdir()
            port = 40_000 + (os.getpid() * 2 + number) % 20_000
            keys.append(stack.enter_context(plain_job(folder, 9, port=port)).key)
        with pytest.raises(SeveralJobsError, match="choose one") as told:
            collect(output=str(tmp_path / "bundle"))
        assert all(key in str(told.value) for key in keys)
    assert not (tmp_path / "bundle").exists()


def test_where_no_rank_runs_nothing_is_found_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchtriage.bundle.tool.find_processes", lambda **_options: [])
    report = collect(output=str(tmp_path / "bundle"))
    assert (report.status, report.bundle) == ("nothing_found", None)
    assert "--pid" in report.summary
    assert main(["collect", "--output", str(tmp_path / "bundle")]) == 3
    assert capsys.readouterr().out.startswith("nothing_found: no process on this node looks like a rank")
    assert main(["triage", "--live", "--output", str(tmp_path / "bundle")]) == 3
    assert capsys.readouterr().out.count("no process on this node") == 1
    assert not (tmp_path / "bundle").exists()


def test_a_pid_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoJobError, match="no process 4194305"):
        collect(pids=[4194305], output=str(tmp_path / "bundle"))
    assert main(["collect", "--pid", "4194305"]) == 2
    assert "4194305" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_a_wrong_job_is_a_wrong_call_and_told_once(job: PlainJob, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["collect"], ["triage", "--live"]):
        assert main([*command, "--job", "no such job"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("is no job on this node") == 1
        assert f"--job 127.0.0.1:{job.port}  # 2 of 4 ranks" in said.err


@pytest.mark.parametrize("ending", ["", ".tar.zst"])
def test_an_output_that_no_report_could_name_is_refused(
    job: PlainJob, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"{tmp_path}/b\udcff{ending}"
    assert main(["collect", "--job", job.key, "--output", output]) == 2
    assert f"b\\xff{ending}: this path is no UTF-8" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("b")]


def test_the_next_command_can_be_pasted_whatever_the_output_is_called(job: PlainJob, tmp_path: Path) -> None:
    name = "a b's {}\tco@host.org \u202e token=abcdefgh12 é" + "x" * 100
    report = collect(pids=job.pids, output=str(tmp_path / name / ("y" * 200)), limits=QUICK)
    line = next(x for x in render(report).splitlines() if x.startswith("Next: "))
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {line.partition(' triage ')[2]}"], capture_output=True, check=True)
    assert os.fsdecode(said.stdout) == report.bundle


def test_a_bundle_that_cannot_be_packed_is_kept_and_its_place_told(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchtriage.bundle.pack._tar", full)
    with pytest.raises(BadCallError, match=r"No space left on device\); the bundle is in ") as told:
        collect(pids=job.pids, output=str(tmp_path / "bundle.tar.zst"), limits=QUICK)
    assert not (tmp_path / "bundle.tar.zst").exists()
    assert (Path(str(told.value).rpartition(" is in ")[2]) / "manifest.json").is_file()


def test_on_a_full_disk_what_is_there_is_told_and_no_half_of_a_manifest_is_left(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.fdopen

    def full(descriptor: int, mode: str) -> object:
        if "manifest" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.close(descriptor)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return real(descriptor, mode)

    monkeypatch.setattr("torchtriage.bundle.files.os.fdopen", full)
    assert main(["collect", "--job", job.key, "-o", str(tmp_path / "bundle")]) == 2
    said = capsys.readouterr().err
    assert "fault of torchtriage" not in said
    assert f"the disk is full: manifest.json could not be written ({os.strerror(errno.EDQUOT)})" in said
    assert f" is in {tmp_path}/bundle, " in said
    assert "-o FOLDER" in said
    assert not list((tmp_path / "bundle").glob("*manifest*"))
    assert list((tmp_path / "bundle").glob("*/stacks/*"))


def test_parts_that_a_full_disk_did_not_take_are_a_gap_said_first_and_make_it_partial(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for where in ("bundle.job_logs.write_new", "bundle.collect.probe_gpus"):
        monkeypatch.setattr(f"torchtriage.{where}", full)
    report = collect(pids=job.pids, output=str(tmp_path / "bundle"), limits=QUICK)
    assert report.status == "partial"
    assert report.gaps[0].startswith("the disk is full: 3 parts of the bundle could not be kept")
    assert not any("fault of torchtriage" in gap for gap in report.gaps)


def test_a_kernel_thread_or_a_zombie_is_refused_by_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert main(["collect", "--pid", str(ended.pid), "-o", str(tmp_path / "bundle")]) == 2
    finally:
        ended.wait()
    assert f"process {ended.pid} is a zombie: it has ended and process {os.getpid()}" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_collector_that_is_ended_leaves_a_manifest_at_once_though_a_program_hangs(
    job: PlainJob, tmp_path: Path, number: signal.Signals
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    smi = programs / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/smi.new; mv {tmp_path}/smi.new {tmp_path}/smi\nsleep 600\n")
    smi.chmod(0o755)
    target = tmp_path / "bundle"
    with subprocess.Popen(
        [sys.executable, "-m", "torchtriage", "collect", "--job", job.key, "-o", str(target)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    ) as collector:  # fmt: skip
        try:
            assert within(30, (tmp_path / "smi").exists)
            began = time.monotonic()
            collector.send_signal(number)
            out, err = collector.communicate(timeout=30)
            took_s = time.monotonic() - began
        finally:
            collector.kill()
    assert (collector.returncode, err) == (3, "")
    assert f"gap: interrupted by {number.name}" in out
    assert took_s < 20  # the program itself sleeps for ten minutes; a busy machine needs some of this to end the rest
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema("manifest"))
    assert manifest["stopped_by"] == number.name
    assert {item["path"] for item in manifest["items"] if item["path"]} == {
        path.relative_to(target).as_posix() for path in files_of(target)
    } - {"manifest.json"}
    assert any("ended before it had answered" in (item["error"] or "") for item in manifest["items"])
    assert not Path(f"/proc/{(tmp_path / 'smi').read_text().strip()}").exists()
    assert all(state(pid) == "S" for pid in job.pids)


def test_ctrl_c_while_the_command_line_is_still_read_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtriage.cli._parser", interrupted)
    assert main(["collect"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_output_that_cannot_be_used_is_refused_and_left_as_it_is(job: PlainJob, tmp_path: Path) -> None:
    full, elsewhere, link = tmp_path / "full", tmp_path / "elsewhere", tmp_path / "link"
    full.mkdir()
    (full / "mine").write_text("mine", encoding="utf-8")
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    packed = tmp_path / "bundle.tar.gz"
    packed.symlink_to(elsewhere / "bundle.tar.gz")
    for output, words in (
        (full, "is not empty"),
        (link, "no folder that can be used"),
        (packed, "is there already"),
        (full / "mine", "no folder that can be used"),
        (tmp_path / "nowhere" / "bundle.tar.zst", "is no folder"),
    ):
        with pytest.raises(BadCallError, match=words):
            collect(pids=job.pids, output=str(output), limits=QUICK)
    assert [path.name for path in full.iterdir()] == ["mine"]
    assert not list(elsewhere.iterdir())


def test_an_empty_folder_of_ones_own_is_used(job: PlainJob, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    target.mkdir(mode=0o777)
    target.chmod(0o777)
    collect(pids=job.pids, output=str(target), limits=QUICK)
    assert target.stat().st_mode & 0o777 == 0o700
    assert (target / "manifest.json").exists()


def test_an_interrupted_collect_leaves_a_manifest_of_what_it_has(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "torchtriage.bundle.collect.probe_kernel", lambda *_a, **_k: os.kill(os.getpid(), signal.SIGINT) or []
    )
    target = tmp_path / "bundle"
    report = collect(pids=job.pids, output=str(target), limits=QUICK)
    assert report.status == "partial"
    assert report.gaps[0].startswith("interrupted by SIGINT")
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["items"]
    assert manifest["stopped_by"] == "SIGINT"
    assert all((target / item["path"]).is_file() for item in manifest["items"] if item["path"])
    assert all(state(pid) == "S" for pid in job.pids)


def test_a_probe_that_raises_is_a_gap_and_the_bundle_is_whole(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("torchtriage.bundle.collect.probe_gpus", fails)
    report = collect(pids=job.pids, output=str(tmp_path / "bundle"), limits=QUICK)
    assert report.status == "collected"
    assert any(gap.startswith("gpu: RuntimeError: no such thing") for gap in report.gaps)


def test_ranks_whose_stacks_cannot_be_had_make_it_partial(
    job: PlainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: None)
    report = collect(pids=job.pids, output=str(tmp_path / "bundle"), limits=QUICK)
    assert report.status == "partial"
    assert any("pip install" in gap for gap in report.gaps)
    assert report.collected["proc_facts"] == 4


def test_the_text_says_what_is_there_what_is_not_and_what_to_do() -> None:
    report = CollectReport(
        tool="collect", status="partial", summary="rank 0-1 looked at; 5 files in /tmp/b", bundle="/tmp/b",
        collected={"log": 2, "stack_dump": 3}, gaps=[f"ras: {number}" for number in range(9)],
        next_checks=[NextCheck(tool="triage", arguments={"paths": ["/tmp/b"]}, why="one verdict from all of it")],
    )  # fmt: skip
    lines = render(report).splitlines()
    assert lines[:2] == ["partial: rank 0-1 looked at; 5 files in /tmp/b", "  2 log, 3 stack_dump"]
    assert lines[2:-3] == [f"gap: ras: {number}" for number in range(6)]
    assert lines[-3:-1] == ["gap: and 3 more (manifest.json has all)", "Next: torchtriage triage /tmp/b"]
