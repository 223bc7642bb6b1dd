"""What a stack of a memory snapshot says: whose code asked, and in which phase of training. Stdlib only.

Stacks are innermost frame first. Frames of Python and of C++ are mixed in snapshots taken with ``stacks="all"``; the
outermost Python frames may follow those of the C runtime. Marks are read off file and function names alone, as torch
2.x, its backends and the usual training libraries have them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

(
    OPTIMIZER, BACKWARD, RECOMPUTE, LOADING, SETUP, COMMUNICATION, FORWARD, KV_CACHE, GRAPH, EVALUATION, WORKSPACE,
    STATE_DICT, GENERATION,
) = (1 << bit for bit in range(13))  # fmt: skip
NATIVE, NATIVE_OPERATION, BACKWARD_NODE, TORCH, LIBRARY, USER = range(6)
MAX_FRAMES = 512
MAX_STACKS = 400_000
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_MIN_SAMPLED_FRAMES = 8
_MAX_ALIKE = 16
_MAX_NAME_CHARS = 200
_NATIVE_SUFFIXES = (".cpp", ".cc", ".c", ".cxx", ".h", ".hpp", ".cu", ".cuh")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?:frozen|string|__array)")
_BACKWARD_NODE = re.compile(r"\btorch::autograd::(?:generated::)?(\w{1,80}Backward\d{0,3}|AccumulateGrad)::")
_OPERATION = re.compile(r"at::(?:native|_ops)::|c10d::|nccl")
# Also where torch is used from its sources.
_TORCH = re.compile(
    r"^<(?:eval_with_key|frozen)|/torchinductor_\w"
    r"|/torch/(?:nn|optim|utils|autograd|cuda|distributed|amp|fx|functional|serialization|_\w{1,40})[/.]"
)
_MARKS: tuple[tuple[int, re.Pattern[str]], ...] = (
    # Each is matched against "file:function".
    (
        OPTIMIZER,
        re.compile(
            r"torch/optim/(?!lr_scheduler)|/(?:apex|bitsandbytes|torchao)/(?:\w+/)?optim|deepspeed/ops/(?:adam|lamb|lion)"
            r"|(?:zero/stage_1_and_2|zero/stage3|bf16_optimizer|fused_optimizer)\.py:(?:step|_optimizer_step|initialize_opt)"
            r"|megatron/core/optimizer/|transformer_engine/pytorch/optimizers|:_init_group$|:_multi_tensor_adam"
        ),
    ),
    (
        BACKWARD,
        re.compile(
            r"torch/(?:autograd/(?:__init__|graph)|_tensor)\.py:(?:backward|grad|_engine_run_backward)$"
            r"|torch::autograd::Engine::|torch::autograd::python::PythonEngine|:backward$"
        ),
    ),
    (RECOMPUTE, re.compile(r"torch/utils/checkpoint\.py:(?:recompute_fn|backward|unpack_hook)")),
    (
        LOADING,
        re.compile(
            r"torch/serialization\.py|safetensors/|:load_state_dict|:_load_from_state_dict|:from_pretrained"
            r"|:load_checkpoint|distributed/checkpoint/|:set_module_tensor_to_device|:_load_state_dict"
        ),
    ),
    (
        SETUP,
        re.compile(
            r"nn/modules/module\.py:(?:_apply|convert|to_empty|cuda|to|half|bfloat16)$|torch/nn/init\.py"
            r"|:reset_parameters$|:init_weights$|:_init_weights$|torch/nn/modules/\w+\.py:__init__|nn/parameter\.py"
            r"|_module\.py:convert$"
        ),
    ),
    (
        COMMUNICATION,
        re.compile(
            r"torch/distributed/|nn/parallel/distributed\.py:(?:__init__|_ddp_init_helper)|c10d::|deepspeed/(?:comm|runtime/comm)"
            r"|zero/(?:partition_parameters|partitioned_param_coordinator)|megatron/core/(?:distributed|parallel_state|"
            r"pipeline_parallel/p2p|tensor_parallel/(?:mappings|layers))|/deep_ep/|(?<!\w)nccl\w*::"
        ),
    ),
    (
        KV_CACHE,
        re.compile(
            r"(?i)cache_utils\.py|(?:kv|past|key_value|paged|block|attention|decode)\w{0,16}_?cache\w*(?:\.py)?[:./]"
            r"|:\w*(?:kv|past|key_value)_?\w{0,12}(?:cache|states?)\w*$|:(?:append|update|extend)_(?:kv|cache)\w*$"
        ),
    ),
    (GRAPH, re.compile(r"torch/cuda/graphs\.py|cudagraph_trees|:make_graphed_callables")),
    (
        EVALUATION,
        re.compile(r":(?:evaluation_loop|evaluate\w*|eval_\w+|validat\w+|validation_step|nested_concat|predict\w*)$"),
    ),
    (WORKSPACE, re.compile(r"(?i):.{0,80}(?:cublas\w{0,40}workspace|allocateNewWorkspace|getCurrentCUDABlasHandle)")),
    (
        STATE_DICT,
        re.compile(r":_?(?:full_|gather_|sharded_|get_model_|get_)?(?:model_)?state_dict\w{0,24}$|:full_tensor$"),
    ),
    (GENERATION, re.compile(r":_?(?:generate\w{0,24}|decode_\w{1,24}|greedy_\w{1,24}|beam_search|sample_tokens?)$")),
    (
        FORWARD,
        re.compile(
            r"nn/modules/module\.py:(?:_call_impl|_wrapped_call_impl|_slow_forward)$|torch/nn/functional\.py|:forward$"
            r"|torch/_dynamo/eval_frame\.py:(?!inner)|/torchinductor_|torch/_inductor/|torch/_functorch/"
        ),
    ),
)


@dataclass(frozen=True)
class Frame:
    """One frame, known by its content."""

    text: str
    """``function (file:line)``."""
    place: tuple[str, str, int]
    """File, function, line."""
    kind: int
    """How well it stands for a stack: one of ``NATIVE`` ... ``USER``."""
    marks: int


@dataclass
class Stack:
    """A stack that occurred: which frame stands for it, and the phases that it is marked with."""

    frames: tuple[int, ...]
    site: int
    """Number of the frame that stands for it, or -1: the innermost of the user's own code, else the best there is."""
    marks: int
    """Of all its frames."""
    inner: int
    """Of the innermost frame that has any: what the allocation itself is for."""
    leaf: int = -1
    """Number of its innermost Python frame, or -1."""


class Stacks:
    """All stacks of a snapshot, each kept once. Equal frames share their number whether or not the file shares them."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.frames: list[Frame] = []
        self.stacks: list[Stack] = [Stack((), -1, 0, 0)]
        self._frame_of: dict[tuple[str, str, int], int] = {}
        self._by_identity: dict[int, int] = {}
        self._by_numbers: dict[tuple[int, ...], int] = {(): 0}
        self._by_shared: dict[tuple[int, ...], int] = {(): 0}
        self._by_sample: dict[tuple[int, ...], list[tuple[list[Any], int]]] = {}
        """Lists by their length and a few of their frames: to compare a list with one that shares its frames takes a
        tenth of what naming all of them takes. They hold flat frames alone, which can be compared in bounded time."""
        self._kept: list[Any] = []

    def number(self, frames: Any) -> int:
        """The number of a stack as the snapshot has it, a list of frames; 0 of none.

        What it is given has to stay alive as long as this object is asked, which :meth:`number` sees to for frames.
        """
        if not isinstance(frames, list) or not frames:
            return 0
        given = cast("list[Any]", frames)
        alike: list[tuple[list[Any], int]] | None = None
        if (depth := len(given)) >= _MIN_SAMPLED_FRAMES:
            sampled = (
                depth, id(given[5]), id(given[depth >> 2]), id(given[depth >> 1]), id(given[-(depth >> 2)]),
                id(given[-3]),
            )  # fmt: skip
            alike = self._by_sample.setdefault(sampled, [])
            for other, number in alike:
                if other == given:
                    return number
        number = self._number(given)
        if alike is not None and len(alike) < _MAX_ALIKE and all(map(_is_flat, given)):
            alike.append((given, number))
        return number

    def _number(self, given: list[Any]) -> int:
        shared = tuple(map(id, given))
        known = self._by_shared.get(shared)
        if known is not None:
            return known
        numbers = tuple(self._number_of_frame(frame) for frame in given[:MAX_FRAMES])
        number = self._by_numbers.get(numbers)
        if number is None:
            if len(self.stacks) >= MAX_STACKS:
                return 0
            number = len(self.stacks)
            self.stacks.append(self._stack(numbers))
            self._by_numbers[numbers] = number
        self._by_shared[shared] = number
        return number

    def site_text(self, number: int) -> str:
        """What stands for a stack, in words."""
        site = self.stacks[number].site
        return self.frames[site].text if site >= 0 else "(no stack recorded)"

    def shown(self, number: int, most: int) -> list[str]:
        """Python frames of a stack from its site outward, at most ``most``."""
        stack = self.stacks[number]
        if stack.site < 0:
            return []
        start = stack.frames.index(stack.site)
        # Between two lines of the job's own code the library's are of no interest.
        least = USER if self.frames[stack.site].kind == USER else TORCH
        python = [self.frames[f].text for f in stack.frames[start:] if self.frames[f].kind >= least]
        return (python or [self.frames[stack.site].text])[:most]

    def _number_of_frame(self, frame: Any) -> int:
        known = self._by_identity.get(id(frame))
        if known is not None:
            return known
        place = _place(frame)
        number = self._frame_of.get(place)
        if number is None:
            number = len(self.frames)
            self.frames.append(_frame(place, frame))
            self._frame_of[place] = number
        # Its identity is a key only as long as it lives.
        self._kept.append(frame)
        self._by_identity[id(frame)] = number
        return number

    def _stack(self, numbers: tuple[int, ...]) -> Stack:
        site, best, marks, inner, leaf = -1, -1, 0, 0, -1
        for number in numbers:
            frame = self.frames[number]
            if leaf < 0 and frame.kind >= TORCH:
                leaf = number
            marks |= frame.marks
            inner = inner or frame.marks
            # The innermost frame of the best kind there is.
            if frame.kind > best:
                site, best = number, frame.kind
        return Stack(numbers, site, marks, inner, leaf)


def _is_flat(frame: Any) -> bool:
    """Whether it is a record of scalars."""
    return isinstance(frame, dict) and _CONTAINERS.isdisjoint(map(type, cast("dict[Any, Any]", frame).values()))


def _place(frame: Any) -> tuple[str, str, int]:
    if not isinstance(frame, dict):
        return ("", "", 0)
    record = cast("dict[Any, Any]", frame)
    file, name, line = record.get("filename"), record.get("name"), record.get("line")
    return (
        file[:4096] if isinstance(file, str) else "",
        name[:1024] if isinstance(name, str) else "",
        line if isinstance(line, int) and 0 <= line < 1 << 31 else 0,
    )


def _frame(place: tuple[str, str, int], frame: Any) -> Frame:
    file, name, line = place
    python = line > 0 and file not in ("", "??") and "::" not in name and not file.endswith(_NATIVE_SUFFIXES)
    if python:
        kind = TORCH if _is_torch(file) else LIBRARY if _LIBRARY.search(file) else USER
    else:
        node = _BACKWARD_NODE.search(name)
        kind = BACKWARD_NODE if node else NATIVE_OPERATION if _OPERATION.match(name) else NATIVE
        name = node.group(1) if node else name.partition("(")[0]
    where = f"{file}:{name}"
    marks = 0
    for mark, pattern in _MARKS:
        if pattern.search(where):
            marks |= mark
    text = f"{name[:_MAX_NAME_CHARS] or '?'} ({file[-_MAX_NAME_CHARS:]}:{line})" if python else name[:_MAX_NAME_CHARS]
    return Frame(text + _compiled_from(frame), place, kind, marks)


def _is_torch(file: str) -> bool:
    packages = _LIBRARY.search(file)
    if packages is None:
        return _TORCH.search(file) is not None
    rest = file[packages.end() :]
    return rest.startswith(("torch/", "torch_npu/", "functorch/")) or "-packages" not in packages.group()


def _compiled_from(frame: Any) -> str:
    """What a compiled graph's frame says of the operation that it came from."""
    record = cast("dict[Any, Any]", frame) if isinstance(frame, dict) else {}
    operation, node = record.get("fx_node_op"), record.get("fx_node_name")
    return f" [{operation} {node}]"[:120] if isinstance(operation, str) and isinstance(node, str) else ""
