"""Whose code a frame is: the user's, a training framework's, a library's, or the interpreter's.

py-spy shortens paths of installed packages to ``torch/utils/...``; faulthandler and pystack give whole paths. Both are
understood; what cannot be placed counts as the user's.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Packages that run a training loop: their frames say where in the program a rank stands.
FRAMEWORKS = frozenset({
    "accelerate", "axolotl", "colossalai", "composer", "deepspeed", "fairscale", "fairseq", "fairseq2", "lightning",
    "lightning_fabric", "llamafactory", "megatron", "nemo", "nemo_rl", "open_clip", "openrlhf", "peft",
    "pytorch_lightning", "swift", "timm", "torchtitan", "torchtune", "transformers", "trl", "verl",
})  # fmt: skip
# Packages whose frames say how something is done, not where in the program.
LIBRARIES = frozenset({
    "aiobotocore", "aiohttp", "anyio", "apex", "azure", "bitsandbytes", "boto3", "botocore", "certifi", "click",
    "comet_ml", "cv2", "datasets", "dill", "einops", "ffcv", "filelock", "fire", "flash_attn", "fsspec", "functorch",
    "gcsfs", "google", "grpc", "h5py", "httpcore", "httpx", "huggingface_hub", "hydra", "joblib", "litdata", "lmdb",
    "mlflow", "multiprocess", "neptune", "numpy", "nvidia", "omegaconf", "orjson", "pandas", "PIL", "psutil",
    "pyarrow", "pydantic", "ray", "requests", "s3fs", "s3torchconnector", "s3transfer", "safetensors", "scipy",
    "sentencepiece", "sentry_sdk", "sklearn", "soundfile", "streaming", "tensorboard", "tensorflow", "tokenizers",
    "torch", "torch_npu", "torch_xla", "torchao", "torchaudio", "torchdata", "torchvision", "tornado", "tqdm",
    "transformer_engine", "triton", "typer", "urllib3", "vllm", "wandb", "webdataset", "xformers", "yaml", "zarr",
    "zmq",
})  # fmt: skip
_INSTALLED = ("/site-packages/", "/dist-packages/")
# A source tree of torch is recognised by folders that no training program has under that name.
_TORCH_TREE = ("/torch/distributed/", "/torch/utils/data/", "/torch/nn/", "/torch/autograd/", "/torch/_dynamo/",
               "/torch/_inductor/", "/torch/cuda/")  # fmt: skip


@lru_cache(maxsize=16384)
def kind_of_file(file: str) -> str:
    """Say "user", "framework", "library" or "interpreter" for the file of a Python frame."""
    if file.startswith("<") or not file:
        return "interpreter"
    for marker in _INSTALLED:
        _, found, inside = file.rpartition(marker)
        if found:
            return "framework" if _top(inside) in FRAMEWORKS else "library"
    if "/lib/python3" in file or "/lib64/python3" in file:
        return "interpreter"
    if any(tree in file for tree in _TORCH_TREE):
        return "library"
    if file.startswith("/"):
        return "user"
    top = _top(file)
    if top in FRAMEWORKS:
        return "framework"
    if top in LIBRARIES and "/" in file:
        return "library"
    return "interpreter" if top in sys.stdlib_module_names else "user"


def _top(relative: str) -> str:
    head, slash, _ = relative.partition("/")
    return head if slash else head.rpartition(".")[0] or head


def user_frame_index(frames: Sequence[Mapping[str, Any]]) -> int | None:
    """The innermost frame of the user's code; without one, of a framework; without one, of any Python code."""
    fallback: int | None = None
    framework: int | None = None
    for index, frame in enumerate(frames):
        if frame["native"]:
            continue
        kind = kind_of_file(frame["file"])
        if kind == "user":
            return index
        if kind == "framework" and framework is None:
            framework = index
        if fallback is None:
            fallback = index
    return framework if framework is not None else fallback


def framework_frame_index(frames: Sequence[Mapping[str, Any]]) -> int | None:
    """The innermost frame that is the user's or a framework's: where in the whole program the thread stands."""
    for index, frame in enumerate(frames):
        if not frame["native"] and kind_of_file(frame["file"]) in ("user", "framework"):
            return index
    return None


def loader_index(frames: Sequence[Mapping[str, Any]]) -> int | None:
    """The innermost frame of torch's data loading: what is inside it is the user's data set."""
    return next((i for i, frame in enumerate(frames) if "torch/utils/data/" in frame["file"]), None)


def place(frame: Mapping[str, Any]) -> str:
    """A frame as reports write it: ``function (file:line)``, with the last two parts of the path at most."""
    function = str(frame["function"])
    if len(function) > 120:
        function = function[:117] + "..."
    file = str(frame["file"])
    if frame["native"]:
        file = file.rpartition("/")[2]
    elif "/" in file and kind_of_file(file) == "user":
        file = "/".join(file.split("/")[-2:]) if not file.startswith("/") else file.rpartition("/")[2]
    else:
        file = _without_install_path(file)
    line = frame["line"]
    if not file:
        return function
    return f"{function} ({file}:{line})" if line is not None else f"{function} ({file})"


def _without_install_path(file: str) -> str:
    for marker in _INSTALLED:
        _, found, inside = file.rpartition(marker)
        if found:
            return inside
    _, found, inside = file.rpartition("/lib/python3")
    return inside.partition("/")[2] if found else file
