"""Which environment variables of a process may be read into a bundle, and how launchers spell "which rank am I".

Everything that is not named here stays where it is: an environment holds keys and passwords. The lists are data; the
names come from the launchers' own documentation (torchrun, Open MPI 4 and 5, MPICH / Intel MPI, MVAPICH, Cray PALS,
Slurm 23, Ray 2, DeepSpeed, accelerate, Lightning) and from the headers of torch 2.13 and NCCL 2.29.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_VARIABLES = 256
MAX_VALUE_CHARS = 256


@dataclass(frozen=True)
class Scheme:
    """How one launcher tells a process its rank; ``""`` where it does not tell that."""

    rank: str
    local_rank: str
    world_size: str
    own: bool
    """Whether the launcher starts ranks, rather than tasks that may also be shells, agents and monitors."""


# In order of precedence: inside a Slurm or MPI task, torchrun gives each of its workers another rank.
SCHEMES = (
    Scheme("RANK", "LOCAL_RANK", "WORLD_SIZE", own=True),
    Scheme("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", own=False),
    Scheme("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", own=False),
    Scheme("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NRANKS", own=False),
    Scheme("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", own=False),
    # Slurm sets PMIX_RANK too, but only Slurm's own names tell the local rank and the size.
    Scheme("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", own=False),
    Scheme("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", own=False),
    Scheme("PMIX_RANK", "PMIX_LOCAL_RANK", "PMIX_SIZE", own=False),
)
# Steps of Slurm that are no srun: the batch script, the external step, an interactive shell.
SLURM_FIRST_SPECIAL_STEP = 0xFFFFFFF0

ALLOWED = frozenset(
    {
        # rank and rendezvous
        *(name for scheme in SCHEMES for name in (scheme.rank, scheme.local_rank, scheme.world_size)),
        *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE"),
        *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ENABLE_FILE_TIMER"),
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE"),
        *("SLURM_TASKS_PER_NODE", "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
        *("PMIX_NAMESPACE", "OMPI_COMM_WORLD_NODE_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_UNIVERSE_SIZE"),
        *("OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PALS_APID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID"),
        *("RAY_JOB_ID", "RAY_NODE_ID", "RAY_CLIENT_MODE"),
        *("DEEPSPEED_MULTINODE_LAUNCHER", "DS_ACCELERATOR", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"),
        *("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_USE_CPU", "FSDP_SHARDING_STRATEGY"),
        *("PL_GLOBAL_SEED", "JOB_COMPLETION_INDEX"),
        # devices, allocator, threads
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND"),
        *("MALLOC_ARENA_MAX", "TOKENIZERS_PARALLELISM", "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "PYTHON_GIL"),
        *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
        *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
        # distributed logging and its recorder
        *("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_INCLUDE_STACK_TRACE"),
        *("TORCH_INCLUDE_ONLY_ACTIVE", "TORCH_DIST_INIT_BARRIER", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
        *("GLOO_DEVICE_TRANSPORT", "LD_PRELOAD"),
    }
)
# Families whose variables are all settings: none of them takes a key or a password.
ALLOWED_PREFIXES = ("NCCL_", "RCCL_", "TORCH_NCCL_", "TORCH_FR_", "NVSHMEM_", "DEEPEP_", "UCX_", "FI_", "RDMAV_")


def parse(data: bytes) -> dict[bytes, bytes]:
    """The content of /proc/PID/environ as names and values; what is no assignment is left out.

    Of a name that comes twice the first counts, as it does for getenv(3).
    """
    variables: dict[bytes, bytes] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            variables.setdefault(name, value)
    return variables


def allowed(variables: Mapping[bytes, bytes]) -> dict[str, str]:
    """The variables that may be shown, masked and bounded; sorted by name."""
    shown: dict[str, str] = {}
    for name in sorted(_allowed_names(variables))[:MAX_VARIABLES]:
        shown[name] = _shown(name, variables[name.encode("ascii")][: MAX_VALUE_CHARS * 4])
    return shown


# The processes of a job have nearly all values in common.
@lru_cache(maxsize=4096)
def _shown(name: str, value: bytes) -> str:
    # Masked together with its name: a pattern may need that to see what the value is.
    masked = clean_text(f"{name}={value.decode('utf-8', errors='replace')}", MAX_VALUE_CHARS + len(name) + 1)
    return masked.partition("=")[2]


def _allowed_names(variables: Iterable[bytes]) -> list[str]:
    names: list[str] = []
    for raw in variables:
        if raw.isascii() and len(raw) <= 128:
            name = raw.decode("ascii")
            if name in ALLOWED or (name.startswith(ALLOWED_PREFIXES) and name.isidentifier()):
                names.append(name)
    return names


def number(text: str | None) -> int | None:
    """A rank or a size: a plain number of at most seven digits, else None."""
    if text is None:
        return None
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else None
