"""Generate a large memory snapshot as torch's writer writes it, with one leak in it, without ever holding it in memory.

Pickle protocol 4, laid out as ``torch.cuda.memory._dump_snapshot`` of torch 2.11 leaves it: stacks of 15 to 60 frames
with native frames before and after those of Python, every frame written once and meant by its number from then on, the
list of a block's stack shared with the event that allocated it, a request to free and its completion sharing theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

LEAK_FUNCTION = "remember_output"
LEAK_BYTES = 4 << 20
N_LAYERS, N_KINDS_OF_LAYER, N_DEVICES = 32, 8, 8
_PARAMETER_BYTES, _ACTIVATION_BYTES = 50 << 20, 12 << 20
_LEAKS_PER_SEGMENT = 5
_BASE, _LEAK_BASE = 0x7F2000000000, 0x7F8000000000
_START_US, _EVENT_US = 1_790_000_000_000_000, 7
_BATCH = 1000
_FEW_STEPS = 4
_FRAME_BYTES = 1 << 16
_PACKAGES = "/opt/venv/lib/python3.12/site-packages"

Frame = tuple[str, str, int]
"""File, function, line."""
Stack = tuple[Frame, ...]


class _Event(NamedTuple):
    """An event that comes again in each step, and whether it has the stack of the event before it."""

    action: str
    address: int
    size: int
    stack: Stack
    same_stack: bool


def write_snapshot(path: Path, size_mb: int) -> tuple[int, int]:
    """Write about ``size_mb`` MB, and return how many events and how many steps of training are in it."""
    sizes: list[int] = []
    for n_steps in (_FEW_STEPS, 2 * _FEW_STEPS):
        with path.open("wb") as out:
            _Writer(out).write(n_steps)
        sizes.append(path.stat().st_size)
    n_steps = max(2, round(_FEW_STEPS * (1 + (size_mb * 1_000_000 - sizes[0]) / (sizes[1] - sizes[0]))))
    with path.open("wb") as out:
        return _Writer(out).write(n_steps), n_steps


class _Writer:
    """Writes opcodes one after the other and counts what the reader will number."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._pieces: list[bytes] = []
        self._held = 0
        self._n_numbered = 0
        self._texts: dict[str, bytes] = {}
        self._frames: dict[Frame, bytes] = {}
        self._stacks: dict[int, tuple[Stack, bytes]] = {}
        """Stacks whose frames are all written, by identity, which the stack kept beside them keeps theirs."""
        self._heads: dict[int, tuple[_Event, bytes]] = {}
        self._clock_us = _START_US
        self._last_stack = b""

    def write(self, n_steps: int) -> int:
        """The whole file; returns the number of events."""
        self._out.write(b"\x80\x04")
        self._put(self._new(b"}"), b"(", self._text("segments"), self._new(b"]"), b"(")
        parameters = [self._segment(_parameter_address(k), _PARAMETER_BYTES, 1, _setup_stack()) for k in
                      range(N_LAYERS)]  # fmt: skip
        activations = max(event.address + event.size for event in _step_events()) - _BASE
        self._segment(_BASE, activations, 0, ())
        leaks: list[bytes] = []
        for first in range(0, n_steps, _LEAKS_PER_SEGMENT):
            n_blocks = min(_LEAKS_PER_SEGMENT, n_steps - first)
            leaks += self._segment(_leak_address(first), LEAK_BYTES, n_blocks, _leak_stack())
        self._put(b"e", self._text("device_traces"), self._new(b"]"), b"(", self._new(b"]"))
        n_events = self._events(n_steps, [shared[0] for shared in parameters], leaks)
        self._put(*(self._new(b"]") for _ in range(N_DEVICES - 1)), b"e", self._text("allocator_settings"))
        self._put(self._new(b"}"), b"(", self._text("expandable_segments"), b"\x89")
        self._put(self._text("max_split_size"), _int(-1), b"u", self._text("external_annotations"), self._new(b"]"))
        self._put(b"u.")
        self._flush()
        return n_events

    def _events(self, n_steps: int, parameters: Sequence[bytes], leaks: Sequence[bytes]) -> int:
        n_events = 0

        def batched() -> None:
            nonlocal n_events
            if n_events % _BATCH == 0:
                self._put(b"e(" if n_events else b"(")
            n_events += 1

        for number, shared in enumerate(parameters):
            address, stack = _parameter_address(number), _setup_stack()
            batched()
            self._event(_Event("segment_alloc", address, _PARAMETER_BYTES, stack, same_stack=False), shared)
            batched()
            self._event(_Event("alloc", address, _PARAMETER_BYTES, stack, same_stack=False), shared)
        step = _step_events()
        activations = max(event.address + event.size for event in step) - _BASE
        batched()
        self._event(_Event("segment_alloc", _BASE, activations, step[0].stack, same_stack=False), None)
        for k in range(n_steps):
            for event in step:
                batched()
                self._event(event, None)
            if k % _LEAKS_PER_SEGMENT == 0:
                size = LEAK_BYTES * min(_LEAKS_PER_SEGMENT, n_steps - k)
                batched()
                self._event(_Event("segment_alloc", _leak_address(k), size, _leak_stack(), same_stack=False), leaks[k])
            batched()
            self._event(_Event("alloc", _leak_address(k), LEAK_BYTES, _leak_stack(), same_stack=False), leaks[k])
        self._put(b"e")
        return n_events

    def _segment(self, address: int, block_bytes: int, n_live: int, stack: Stack) -> list[bytes]:
        """A segment of live blocks, or of one free one; returns how the stack of each block is meant again."""
        total, live = block_bytes * max(1, n_live), block_bytes * n_live
        self._put(self._new(b"}"), b"(", self._text("device"), _int(0), self._text("address"), _int(address))
        self._put(self._text("total_size"), _int(total))
        for name in ("allocated_size", "active_size", "requested_size"):
            self._put(self._text(name), _int(live))
        self._put(self._text("stream"), _int(0), self._text("segment_type"), self._text("large"))
        self._put(self._text("segment_pool_id"), self._new(_int(0) + _int(0) + b"\x86"))
        self._put(self._text("is_expandable"), b"\x89", self._text("frames"), self._new(b"]"))
        self._put(self._text("blocks"), self._new(b"]"), b"(")
        shared: list[bytes] = []
        for number in range(max(1, n_live)):
            self._put(self._new(b"}"), b"(", self._text("address"), _int(address + number * block_bytes))
            self._put(self._text("size"), _int(block_bytes), self._text("requested_size"), _int(block_bytes))
            self._put(self._text("state"), self._text("active_allocated" if n_live else "inactive"))
            self._put(self._text("frames"))
            shared.append(self._stack(stack))
            self._put(b"u")
        self._put(b"eu")
        return shared

    def _event(self, event: _Event, shared: bytes | None) -> None:
        self._clock_us += _EVENT_US
        self._put(self._new(b"}"), b"(", self._head(event), _int(self._clock_us), self._text("compile_context"))
        self._put(self._new(b"\x8c\x03N/A"), self._text("user_metadata"), self._text(""), self._text("frames"))
        if event.same_stack:
            self._put(self._last_stack)
        elif shared is not None:
            self._put(shared)
        else:
            self._last_stack = self._stack(event.stack)
        self._put(b"u")
        if self._held > _FRAME_BYTES:
            self._flush()

    def _head(self, event: _Event) -> bytes:
        """The fields of an event up to its time."""
        known = self._heads.get(id(event))
        if known is not None:
            return known[1]
        before = self._n_numbered
        head = b"".join((
            self._text("action"), self._text(event.action), self._text("addr"), _int(event.address),
            self._text("size"), _int(event.size), self._text("stream"), _int(0), self._text("time_us"),
        ))  # fmt: skip
        if self._n_numbered == before:
            self._heads[id(event)] = event, head
        return head

    def _stack(self, stack: Stack) -> bytes:
        """A list of frames; returns how it is meant again."""
        shared = _get(self._n_numbered)
        self._put(self._new(b"]"))
        known = self._stacks.get(id(stack))
        if known is not None:
            self._put(known[1])
            return shared
        before = self._n_numbered
        frames = b"".join((b"(", *map(self._frame, stack), b"e")) if stack else b""
        if self._n_numbered == before:
            self._stacks[id(stack)] = stack, frames
        self._put(frames)
        return shared

    def _frame(self, frame: Frame) -> bytes:
        known = self._frames.get(frame)
        if known is not None:
            return known
        self._frames[frame] = _get(self._n_numbered)
        file, name, line = frame
        parts = [self._new(b"}"), b"(", self._text("name"), self._text(name), self._text("filename")]
        return b"".join([*parts, self._text(file), self._text("line"), _int(line), b"u"])

    def _text(self, text: str) -> bytes:
        known = self._texts.get(text)
        if known is not None:
            return known
        self._texts[text] = _get(self._n_numbered)
        data = text.encode()
        return self._new((b"\x8c" + bytes([len(data)]) if len(data) < 256 else b"X" + len(data).to_bytes(4, "little"))
                         + data)  # fmt: skip

    def _new(self, opcodes: bytes) -> bytes:
        self._n_numbered += 1
        return opcodes + b"\x94"

    def _put(self, *pieces: bytes) -> None:
        self._pieces.extend(pieces)
        self._held += sum(map(len, pieces))

    def _flush(self) -> None:
        data = b"".join(self._pieces)
        self._out.write(b"\x95" + len(data).to_bytes(8, "little") + data)
        self._pieces.clear()
        self._held = 0


def _get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def _int(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    n_bytes = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([n_bytes]) + value.to_bytes(n_bytes, "little", signed=True)


def _parameter_address(number: int) -> int:
    return _BASE + (1 << 38) + number * _PARAMETER_BYTES


def _leak_address(number: int) -> int:
    return _LEAK_BASE + number * LEAK_BYTES


def _step_events() -> list[_Event]:
    """One step: forward keeps activations that backward gives back, both have temporaries, the optimizer has some."""
    events: list[_Event] = []
    kept: list[tuple[int, int]] = []
    here = _BASE
    for layer in range(N_LAYERS):
        kind = layer % N_KINDS_OF_LAYER
        for operation in range(12):
            stack, size = _forward_stack(kind, operation), _ACTIVATION_BYTES >> operation % 4
            events.append(_Event("alloc", here, size, stack, same_stack=False))
            if operation % 3:
                events += _freed(here, size, stack[6:])
            else:
                kept.append((here, size))
                here += size
    for _ in range(N_LAYERS):
        for operation in range(10):
            stack, size = _backward_stack(operation), _ACTIVATION_BYTES >> operation % 3
            events.append(_Event("alloc", here, size, stack, same_stack=False))
            events += _freed(here, size, stack[5:])
            if operation % 3 == 0:
                events += _freed(*kept.pop(), stack[8:])
    for number in range(24):
        stack = _optimizer_stack(number)
        events.append(_Event("alloc", here, _PARAMETER_BYTES, stack, same_stack=False))
        events += _freed(here, _PARAMETER_BYTES, stack[6:])
    return events


def _freed(address: int, size: int, stack: Stack) -> Iterator[_Event]:
    frames = (*_gathering("free"), *stack)
    yield _Event("free_requested", address, size, frames, same_stack=False)
    yield _Event("free_completed", address, size, frames, same_stack=True)


def _gathering(what: str) -> Stack:
    allocator = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator"
    return (
        ("??", "torch::unwind::unwind()", 0), ("??", "torch::CapturedTraceback::gather(bool, bool, bool)", 0),
        ("memory_snapshot.cpp", "torch::cuda::(anonymous namespace)::gather_with_cpp()", 0),
        ("CUDACachingAllocator.cpp", f"{allocator}::{what}(unsigned long, CUstream_st*)", 0),
    )  # fmt: skip


def _native(operation: int, n_frames: int) -> Stack:
    """Frames of the dispatcher below an operation: long names, as C++ has them."""
    signature = "(at::Tensor const&, std::optional<c10::ScalarType>, std::optional<c10::Layout>, bool)"
    return tuple(
        ("??" if level % 3 else f"Register{level}.cpp", f"at::_ops::op{operation}_{level}::call{signature}", 0)
        for level in range(n_frames)
    )


_RUNTIME: Stack = (
    ("??", "_PyEval_EvalFrameDefault", 0), ("??", "PyEval_EvalCode", 0), ("??", "Py_RunMain", 0), ("??", "_start", 0),
)  # fmt: skip
_MODULE = f"{_PACKAGES}/torch/nn/modules/module.py"


def _loop(line: int) -> Stack:
    return (("/workspace/train.py", "train", line), ("/workspace/train.py", "main", 310),
            ("/workspace/train.py", "<module>", 341))  # fmt: skip


def _called(file: str, line: int) -> Stack:
    return ((file, "forward", line), (_MODULE, "_call_impl", 1786), (_MODULE, "_wrapped_call_impl", 1775))


def _forward_stack(kind: int, operation: int) -> Stack:
    inner = _called(f"{_PACKAGES}/torch/nn/modules/{('linear', 'normalization', 'activation')[operation % 3]}.py", 134)
    layer = [frame for depth in range(1 + operation % 4) for frame in
             _called(f"/workspace/model/layer{kind}.py", 40 + 10 * depth + operation)]  # fmt: skip
    native = _native(operation, 6 + 2 * operation)
    return (*_gathering("malloc"), *native, inner[0], *_RUNTIME, *inner[1:], *layer,
            *_called("/workspace/model/model.py", 88), *_loop(207))  # fmt: skip


def _backward_stack(operation: int) -> Stack:
    engine = "torch::autograd::Engine"
    return (
        *_gathering("malloc"), *_native(100 + operation, 8 + 3 * operation),
        ("??", f"torch::autograd::generated::Op{operation}Backward0::apply(std::vector<at::Tensor>&&)", 0),
        ("??", f"{engine}::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", 0),
        ("??", f"{engine}::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", 0), ("??", "__clone", 0),
    )  # fmt: skip


def _optimizer_stack(number: int) -> Stack:
    optim = f"{_PACKAGES}/torch/optim"
    return (*_gathering("malloc"), *_native(200 + number, 9), (f"{optim}/adamw.py", "_multi_tensor_adam", 640),
            *_RUNTIME, (f"{optim}/adamw.py", "step", 243), (f"{optim}/optimizer.py", "wrapper", 526),
            *_loop(214))  # fmt: skip


def _setup_stack() -> Stack:
    return (*_gathering("malloc"), *_native(300, 14), (_MODULE, "convert", 1370), *_RUNTIME,
            *((_MODULE, "_apply", 934) for _ in range(3)), (_MODULE, "to", 1384), *_loop(120))  # fmt: skip


def _leak_stack() -> Stack:
    return (*_gathering("malloc"), *_native(400, 12), ("/workspace/train.py", LEAK_FUNCTION, 172), *_RUNTIME,
            *_loop(219))  # fmt: skip
