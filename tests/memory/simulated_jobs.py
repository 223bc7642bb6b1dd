"""Scripted training on the simulated allocator: what each job does wrong, if anything, is known by construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memory.make_snapshot import GIB, MIB, Allocator, Block, Frames, OutOfMemoryError, native, torch_frame, user

if TYPE_CHECKING:
    from collections.abc import Callable

_CALL = torch_frame("_call_impl", "nn/modules/module.py", 1790)
_WRAPPED = torch_frame("_wrapped_call_impl", "nn/modules/module.py", 1779)
_LINEAR = torch_frame("forward", "nn/modules/linear.py", 125)
_ENGINE = native("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)")
_THREAD = native("torch::autograd::python::PythonEngine::thread_init(int, std::shared_ptr<ReadyQueue> const&, bool)")
_ACCUMULATE = native("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)")
_MATMUL = native("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)")
_PY_BACKWARD = [
    torch_frame("_make_grads", "autograd/__init__.py", 140),
    torch_frame("backward", "autograd/__init__.py", 354),
    torch_frame("backward", "_tensor.py", 630),
]
_APPLY = [
    torch_frame("convert", "nn/modules/module.py", 1370),
    torch_frame("_apply", "nn/modules/module.py", 950),
    torch_frame("to", "nn/modules/module.py", 1380),
]
_ADAM = [
    torch_frame("_init_group", "optim/adamw.py", 110),
    torch_frame("step", "optim/adamw.py", 220),
    torch_frame("wrapper", "optim/optimizer.py", 520),
]
_ADAM_MATH = [
    torch_frame("_multi_tensor_adam", "optim/adam.py", 600),
    torch_frame("adam", "optim/adam.py", 900),
    torch_frame("step", "optim/adamw.py", 240),
    torch_frame("wrapper", "optim/optimizer.py", 520),
]


@dataclass
class Job:
    """A transformer of ``n_layers``: 4 parameters a layer, two activations a layer that backward gives back."""

    gpu: Allocator
    n_layers: int = 4
    parameter_bytes: int = 8 * MIB
    activation_bytes: int = 16 * MIB
    native_stacks: bool = True
    """Whether C++ frames are kept; without them the autograd thread has no frames at all."""
    outer: Frames = field(default_factory=lambda: [user("main", 90), user("<module>", 99)])
    one_line: bool = False
    """Whether the loop's body is one line, so that the loop never goes back to an earlier one."""
    parameters: list[Block] = field(default_factory=list[Block])
    gradients: list[Block] = field(default_factory=list[Block])
    state: list[Block] = field(default_factory=list[Block])
    held: list[Block] = field(default_factory=list[Block])
    _stacks: dict[Any, Frames] = field(default_factory=dict[Any, Frames])

    def at(self, line: int, *inner: dict[str, Any], function: str = "train") -> Frames:
        """A stack of the training loop, kept so that equal stacks are one object."""
        line = 30 if self.one_line else line
        key = (line, function, *((f["name"], f["filename"], f["line"]) for f in inner))
        return self._stacks.setdefault(key, [*inner, user(function, line), *self.outer])

    def autograd(self, *inner: dict[str, Any]) -> Frames:
        """A stack of the autograd thread."""
        if not self.native_stacks:
            return []
        return self._stacks.setdefault(("autograd", inner[0]["name"]), [*inner, _ENGINE, _THREAD])

    def in_model(self, line: int, layer_line: int, function: str = "train") -> Frames:
        """A stack inside a layer's forward."""
        return self.at(
            line, _LINEAR, _CALL, _WRAPPED, user("forward", layer_line, "/job/model.py"), _CALL, _WRAPPED,
            user("forward", 60, "/job/model.py"), _CALL, _WRAPPED, function=function,
        )  # fmt: skip

    def setup(self) -> None:
        """Parameters come to the GPU."""
        for _ in range(self.n_layers * 4):
            self.parameters.append(self.gpu.alloc(self.parameter_bytes, self.at(10, *_APPLY)))

    def forward(self, scale: float = 1.0, line: int = 21, function: str = "train", kept: bool = True) -> list[Block]:
        """Activations of all layers; with ``kept`` false each is dropped after the next one, as without a graph."""
        made: list[Block] = []
        for _ in range(self.n_layers):
            for layer_line in (24, 26):
                size = max(512, int(self.activation_bytes * scale))
                made.append(self.gpu.alloc(size, self.in_model(line, layer_line, function)))
                if not kept and len(made) > 1:
                    self.gpu.free(made.pop(0), self.in_model(line, layer_line, function))
        return made

    def backward(self, activations: list[Block], line: int = 23) -> None:
        """Activations go, gradients come."""
        root = self.gpu.alloc(512, self.at(line, *_PY_BACKWARD))
        fresh = not self.gradients
        for number in range(self.n_layers * 4):
            working = self.gpu.alloc(self.parameter_bytes, self.autograd(_MATMUL))
            if fresh:
                self.gradients.append(working)
            else:
                self.gpu.free(working, self.autograd(_ACCUMULATE))
            if activations and number % 2 == 0:
                self.gpu.free(activations.pop(), self.autograd(_MATMUL))
        while activations:
            self.gpu.free(activations.pop(), self.autograd(_MATMUL))
        self.gpu.free(root, self.at(line))

    def optimize(self, line: int = 24) -> None:
        """State at the first step, a temporary in every one."""
        if not self.state:
            for _ in range(self.n_layers * 4 * 2):
                self.state.append(self.gpu.alloc(self.parameter_bytes, self.at(line, *_ADAM)))
        temporary = self.gpu.alloc(self.parameter_bytes, self.at(line, *_ADAM_MATH))
        self.gpu.free(temporary, self.at(line, *_ADAM_MATH))

    def zero_grad(self, line: int = 25) -> None:
        """Gradients go."""
        for block in self.gradients:
            self.gpu.free(block, self.at(line))
        self.gradients.clear()

    def step(self, scale: float = 1.0, n_micro: int = 1) -> None:
        """One whole training step."""
        for _ in range(n_micro):
            batch = self.gpu.alloc(MIB, self.at(20))
            activations = self.forward(scale)
            loss = self.gpu.alloc(512, self.at(22))
            self.backward(activations)
            self.gpu.free(loss, self.at(23))
            self.gpu.free(batch, self.at(23))
        self.optimize()
        self.zero_grad()

    def keep(self, size: int, line: int = 26, function: str = "train") -> None:
        """Something is put aside and never dropped."""
        self.held.append(self.gpu.alloc(size, self.at(line, function=function)))

    def evaluate(self, n_batches: int = 6, kept_bytes: int = 0, function: str = "evaluate") -> None:
        """An evaluation, whose outputs are kept when they have bytes; called from the training function."""
        outer = self.outer
        self.outer = [user("train", 40), *outer]
        for _ in range(n_batches):
            batch = self.gpu.alloc(MIB, self.at(70, function=function))
            outputs = self.forward(0.5, line=71, function=function, kept=False)
            for block in outputs:
                self.gpu.free(block, self.at(72, function=function))
            if kept_bytes:
                self.keep(kept_bytes, line=72, function=function)
            self.gpu.free(batch, self.at(72, function=function))
        self.outer = outer


def trained(n_steps: int, each: Callable[[Job, int], None] | None = None, gpu: Allocator | None = None,
            **kwargs: Any) -> Job:  # fmt: skip
    """A job after some steps, ``each`` being called after every one with the job and the number of the step."""
    job = Job(gpu or Allocator(), **kwargs)
    job.setup()
    for number in range(n_steps):
        job.step()
        if each is not None:
            each(job, number)
    return job


def until_oom(run: Callable[[], None]) -> None:
    """Run what has to end out of memory."""
    try:
        run()
    except OutOfMemoryError:
        return
    raise AssertionError("the simulated GPU was large enough")


__all__ = ["GIB", "MIB", "Job", "trained", "until_oom"]
