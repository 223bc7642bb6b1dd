"""What the environment of one process claims: which rank it is, of which job. Children inherit the claims of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.environment import SCHEMES, SLURM_FIRST_SPECIAL_STEP, Scheme, number

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PART_CHARS = 64
# Ids by which schedulers and MPI keep their jobs apart.
_SCHEDULER_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PALS_APID", "LSB_JOBID", "PBS_JOBID")


@dataclass(frozen=True)
class Claim:
    """A rank that a process says it is."""

    rank: int | None
    local_rank: int | None
    world_size: int | None
    job: str
    """Key of the job; empty when nothing in the environment names one."""
    scheduler: str
    """Key of the scheduler's or MPI's job step; empty without one."""
    own: bool
    """Whether a launcher of ranks said so, and not only a scheduler that starts tasks of any kind."""
    local_world_size: int | None = None
    unreadable_rank: str | None = None
    """What stands in RANK where that is no number."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What a rank and the processes below it have in common."""
        return self.job, self.scheduler, self.rank, self.local_rank, self.unreadable_rank


def claim_of(variables: Mapping[bytes, bytes]) -> Claim | None:
    """What the variables claim; None when they tell no rank, or a single task that is no part of a group."""
    told = [(scheme, *_numbers(variables, scheme)) for scheme in SCHEMES]
    told = [each for each in told if (each[1] is not None or each[2] is not None) and _counts(variables, each)]
    unreadable = _unreadable_rank(variables)
    if not told:
        # Somebody's own variable may be called RANK; beside a rendezvous it is the rank of a job.
        if unreadable is None or not _text(variables, "MASTER_ADDR"):
            return None
        size = number(_text(variables, "WORLD_SIZE"))
        job, step = job_of(variables), scheduler_of(variables)
        return Claim(None, None, size, job, step, own=True, unreadable_rank=unreadable)
    first, rank, local_rank, world_size = told[0]
    for _, other_rank, other_local, other_size in told[1:]:
        rank = other_rank if rank is None and not _tells_nodes(variables) else rank
        local_rank = other_local if local_rank is None and rank == other_rank else local_rank
        world_size = other_size if world_size is None and rank == other_rank else world_size
    local_size = number(_text(variables, "LOCAL_WORLD_SIZE"))
    if rank is None and local_rank is not None and unreadable is None:
        rank = _from_node(variables, local_rank, world_size, local_size)
    return Claim(
        rank, local_rank, world_size, job_of(variables), scheduler_of(variables), first.own, local_size,
        unreadable if rank is None else None,
    )  # fmt: skip


def job_of(variables: Mapping[bytes, bytes]) -> str:
    """The key that keeps jobs of a node apart: master address and port, run id, scheduler's job."""
    address, port = _text(variables, "MASTER_ADDR"), _text(variables, "MASTER_PORT")
    run = _text(variables, "TORCHELASTIC_RUN_ID")
    slurm = _text(variables, "SLURM_JOB_ID")
    parts = [
        f"{address}:{port}" if address and port else address,
        run if run != "none" else None,
        f"slurm {slurm}" if slurm else None,
    ]
    # Where all ranks share a master, the ids of MPI say nothing more.
    if not address:
        parts += [_text(variables, name) for name in _SCHEDULER_IDS]
    return " ".join(part for part in parts if part)


def scheduler_of(variables: Mapping[bytes, bytes]) -> str:
    """The key of the job step of Slurm or MPI that a process belongs to."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", *_SCHEDULER_IDS)
    return " ".join(f"{name}={value}" for name in names if (value := _text(variables, name)))


def _numbers(variables: Mapping[bytes, bytes], scheme: Scheme) -> tuple[int | None, int | None, int | None]:
    rank, local_rank, world_size = (
        number(_text(variables, name)) for name in (scheme.rank, scheme.local_rank, scheme.world_size)
    )
    return rank, local_rank, world_size


def _counts(variables: Mapping[bytes, bytes], told: tuple[Scheme, int | None, int | None, int | None]) -> bool:
    scheme, rank, _, world_size = told
    if scheme.own:
        return True
    if scheme.rank.startswith("SLURM"):
        # A batch script and all that it runs has SLURM_PROCID=0; only srun starts tasks.
        step = _text(variables, "SLURM_STEP_ID")
        if step is None or not step.isdigit() or int(step[:12]) >= SLURM_FIRST_SPECIAL_STEP or world_size is None:
            return False
    return rank is not None and world_size != 1


def _tells_nodes(variables: Mapping[bytes, bytes]) -> bool:
    return b"NODE_RANK" in variables or b"GROUP_RANK" in variables


def _from_node(
    variables: Mapping[bytes, bytes], local_rank: int, world_size: int | None, local_size: int | None
) -> int | None:
    """The rank from the node's rank, as Lightning's launcher leaves it to the process."""
    node = number(_text(variables, "NODE_RANK") or _text(variables, "GROUP_RANK"))
    if node == 0 or (local_size is not None and world_size == local_size):
        return local_rank
    return node * local_size + local_rank if node is not None and local_size is not None else None


def _unreadable_rank(variables: Mapping[bytes, bytes]) -> str | None:
    """The text of a RANK that is no number, which the program cannot use either; "" where it is empty."""
    if b"RANK" not in variables:
        return None
    text = _text(variables, "RANK") or ""
    return text if number(text) is None else None


def _text(variables: Mapping[bytes, bytes], name: str) -> str | None:
    value = variables.get(name.encode("ascii"))
    return _cleaned(value[:1024]) if value else None


# The processes of a job have nearly all values in common.
@lru_cache(maxsize=4096)
def _cleaned(value: bytes) -> str | None:
    return clean_text(value.decode("utf-8", errors="replace"), MAX_PART_CHARS) or None
