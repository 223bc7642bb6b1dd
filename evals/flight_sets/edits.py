"""Faults as edits of a job's programs, and what may happen to the dumps afterwards."""

# ruff: noqa: ARG001 (all of one kind have the same parameters)
from collections.abc import Callable
from pathlib import Path

from flight_sets import shapes
from flight_sets.dumps import Form, write
from flight_sets.generate import Job, Op, play

Edit = Callable[[Job], None]
After = Callable[[Path, Job], None]


def many(*edits: Edit) -> Edit:
    def run(job: Job) -> None:
        for edit in edits:
            edit(job)

    return run


def skip(ranks: list[int], label: str, step: int, count: int = 1) -> Edit:
    return lambda job: shapes.skip(job, ranks, label, step, count)


def extra(ranks: list[int], label: str, step: int, new: Op | None = None) -> Edit:
    return lambda job: shapes.extra(job, ranks, label, step, new)


def change(
    ranks: list[int], label: str, step: int, name: str = "", size: list[int] | None = None, dtype: str = ""
) -> Edit:
    return lambda job: shapes.change(job, ranks, label, step, name=name, size=size, dtype=dtype)


def swap(ranks: list[int], a: str, b: str, step: int) -> Edit:
    return lambda job: shapes.swap(job, ranks, a, b, step)


def stuck(ranks: list[int], label: str, step: int) -> Edit:
    return lambda job: shapes.stuck(job, ranks, label, step)


def gpu(ranks: list[int], label: str, step: int) -> Edit:
    return lambda job: shapes.gpu_stuck(job, ranks, label, step)


def leave(ranks: list[int], step: int) -> Edit:
    return lambda job: shapes.leave(job, ranks, step)


def hang(group: str, label: str, step: int) -> Edit:
    return lambda job: job.hung.add((group, label, step))


def lose(ranks: list[int], label: str, step: int) -> Edit:
    return lambda job: job.lost.update((rank, label, step) for rank in ranks)


def truncate(ranks: list[int], share: float) -> After:
    """Only the first part of these ranks' files is there."""

    def run(folder: Path, job: Job) -> None:
        for rank in ranks:
            path = folder / f"nccl_trace_rank_{rank}"
            data = path.read_bytes()
            path.write_bytes(data[: int(len(data) * share)])

    return run


def stray(folder: Path, job: Job) -> None:
    """What lies beside dumps in real folders."""
    (folder / "README.md").write_text("dumps of job 4711\n", encoding="utf-8")
    (folder / "core.12345").write_bytes(b"\x7fELF" + bytes(4096))
    (folder / "train.log").write_text("step 10 loss 3.25\nstep 11 loss 3.24\n", encoding="utf-8")
    (folder / "nccl_trace_rank_").write_bytes(b"")
    (folder / "config.json").write_text('{"version": "1.0", "entries": {"a": 1}}', encoding="utf-8")


def same_again(ranks: list[int]) -> After:
    """The same file twice, as after a second copy."""

    def run(folder: Path, job: Job) -> None:
        other = folder / "copy"
        other.mkdir()
        for rank in ranks:
            (other / f"nccl_trace_rank_{rank}").write_bytes((folder / f"nccl_trace_rank_{rank}").read_bytes())

    return run


def earlier(job: Callable[[], Job], at: float) -> After:
    """A dump on request of the same job, taken while it still ran, lies in a folder beside."""

    def run(folder: Path, _: Job) -> None:
        before = job()
        played = play(before, "earlier")
        write(before, played, Form(at_s=played.until * at, skew_s=0.0), folder / "on_request", "earlier")

    return run


def second_replica(edit: Edit | None) -> After:
    """Another replica group of a fault-tolerant job: its ranks count from 0 again, its files go on."""

    def run(folder: Path, job: Job) -> None:
        other = shapes.ddp(job.world)
        if edit is not None:
            edit(other)
        played = play(other, "replica")
        late = 0.5 if edit is None else 601.0
        names = folder / "shifted"
        write(other, played, Form(at_s=played.until + late), names, "replica")
        for rank in range(job.world):
            (names / f"nccl_trace_rank_{rank}").rename(folder / f"nccl_trace_rank_{rank + job.world}")
        names.rmdir()

    return run
