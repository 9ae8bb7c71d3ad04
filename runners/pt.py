"""PyTorch, eager."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import msgspec
import numpy as np
import torch

# The first optimizer imports this, for a second: here it is paid once per host, not per case.
import torch._dynamo
from torch import Tensor, nn

from xbench import registry
from xbench.errors import EngineError, FellBack, Unavailable, Unsupported
from xbench.result import Operators, Placement, Profile
from xbench.runners import profile_pt, pt_operators, pt_optimizers
from xbench.runners.base import Array, Arrays, DeviceTimer, Runner, Trained, Work, as_tuple
from xbench.spec import PRECISIONS

ENGINES = {"torch": {"order": 0, "native": True, "packages": ("torch",)}}

Mark = Callable[[str], AbstractContextManager[object]]
P = ParamSpec("P")
R = TypeVar("R")

LACKS = re.compile(
    r"not implemented for '\w+'|Low precision dtypes not supported|Unsupported dtype \w+"
    r"|path needs the cpu support"
)
"""What torch says where it has no kernel for a type."""


def unmarked(name: str) -> AbstractContextManager[object]:
    """The mark of a step that nobody profiles."""
    return nullcontext()


def lacks_kernels(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, raising Unsupported with torch's words where torch lacks a kernel."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            # A compiler wraps torch's words in its own, of many lines.
            for line in str(error).splitlines():
                if LACKS.search(line):
                    raise Unsupported(f"torch: {line.strip()}") from error
            raise

    return call


class CudaTimer(DeviceTimer):
    """CUDA events on the current stream."""

    def __init__(self) -> None:
        self.events = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        ]

    def start(self) -> None:
        self.events[0].record()

    def stop(self) -> None:
        self.events[1].record()

    def elapsed_s(self) -> float:
        # The body has synchronised before this event was put on the queue.
        self.events[1].synchronize()
        return float(self.events[0].elapsed_time(self.events[1])) * 1e-3


class TorchRunner(Runner):
    """An ``nn.Module`` as the user wrote it, with torch.optim."""

    def probe(self, device: str) -> dict[str, str]:
        if device == "cuda":
            if torch.version.cuda is None:
                raise Unavailable(f"this torch build ({torch.__version__}) has no CUDA")
            if not torch.cuda.is_available():
                raise Unavailable(f"torch {torch.__version__} finds no CUDA device: {no_cuda()}")
        x = torch.ones(8, 8, device=device)
        if float((x @ x).sum()) != 512.0:
            raise Unavailable(f"a product of ones on {device} came out wrong")
        if device == "cuda":
            return {
                "gpu": torch.cuda.get_device_name(),
                "cuda": str(torch.version.cuda),
                "tf32": f"cudnn {torch.backends.cudnn.allow_tf32}, "
                f"matmul {torch.backends.cuda.matmul.allow_tf32}",
            }
        return {"cpu_capability": torch.backends.cpu.get_cpu_capability()}

    def load(self, work: Work) -> None:
        case = work.case
        torch.set_num_threads(case.threads)
        torch.manual_seed(case.seed)
        self.work = work
        self.device = torch.device(case.device)
        self.dtype = getattr(torch, PRECISIONS[case.precision])
        self.loss_name = case.loss
        model: nn.Module = registry.model_part(case.model, "pt").build(work.config)
        self.model = model.to(self.device, self.dtype).train(case.phase == "train")
        self.held = list(self.model.state_dict().values())
        self.batches = [
            {name: self.to_device(array) for name, array in batch.items()} for batch in work.batches
        ]
        self.bind(work.parameters)
        self.define()
        self.last: tuple[Tensor, ...] = ()
        self.body = self.train_step if case.phase == "train" else self.forward

    def define(self) -> None:
        """What a step calls: the model's ``forward`` and ``objective``."""
        self.call: Callable[..., Tensor | tuple[Tensor, ...]] = self.model
        self.objective: Callable[..., Tensor] = self.model.objective  # type: ignore[assignment]

    def to_device(self, array: Array) -> Tensor:
        # A copy of its own: torch would otherwise share the memory of the caller's array.
        tensor = torch.from_numpy(np.array(array))
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor.to(self.device)

    def bind(self, parameters: Arrays) -> None:
        state = {name: self.to_device(array) for name, array in parameters.items()}
        self.model.load_state_dict(state, strict=True)
        if self.work.case.phase == "infer":
            return
        self.saved = [tensor.clone() for tensor in self.held]
        self.trained = [item for item in self.model.parameters() if item.requires_grad]
        self.optimizer = pt_optimizers.make(self.work.spec.optimizer, self.trained)
        self.optimizer.zero_grad(set_to_none=True)

    def reset(self) -> None:
        if self.work.case.phase != "train":
            return
        with torch.no_grad():
            torch._foreach_copy_(self.held, self.saved)
            for state in self.optimizer.state.values():
                for value in state.values():
                    if value is not None:
                        value.zero_()

    @lacks_kernels
    def run(self) -> None:
        self.last = as_tuple(self.body())
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, mark: Mark = unmarked, batch: int = 0) -> Tensor | tuple[Tensor, ...]:
        with torch.inference_mode(), mark("xbench:forward"):
            return self.call(**self.batches[batch])

    def train_step(self, mark: Mark = unmarked, step: int = 0) -> Tensor:
        """Forward, loss, backward, clipped gradients and optimizer update; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with mark("xbench:forward"):
            loss = self.objective(**self.batches[step], loss=self.loss_name)
        with mark("xbench:backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with mark("xbench:optimizer"):
            if self.work.spec.clip is not None:
                pt_optimizers.clip(self.work.spec.clip, self.trained)
            self.optimizer.step()
        return loss.detach()

    def check(self) -> None:
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.last):
            what = "loss" if self.work.case.phase == "train" else "output"
            raise EngineError(f"the {what} is not finite")

    def placement(self) -> list[Placement]:
        held = [*self.held, *self.last]
        elsewhere = {tensor.device.type for tensor in held} - {self.device.type}
        if elsewhere:
            raise FellBack(f"asked for {self.device.type}, tensors are on {sorted(elsewhere)}")
        return [Placement(ep=self.device.type, nodes=None, time_share=1.0)]

    def device_timer(self) -> DeviceTimer | None:
        return CudaTimer() if self.device.type == "cuda" else None

    def end_to_end(self) -> Callable[[], object] | None:
        if self.device.type != "cuda":
            return None
        inputs = self.batches[0]
        hosts = {name: tensor.cpu().pin_memory() for name, tensor in inputs.items()}

        def whole() -> list[Tensor]:
            for name, host in hosts.items():
                inputs[name].copy_(host, non_blocking=True)
            self.run()
            return [tensor.cpu() for tensor in self.last]

        return whole

    def effective_precision(self) -> str:
        """TF32 where torch's switches allow it for what was asked in float32.

        CPU kernels do bfloat16 and float16 as asked: each operator rounds its result to the type,
        with sums inside it in float32.
        """
        if self.device.type != "cuda" or self.work.case.precision != "fp32":
            return ""
        if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
            return ""
        if torch.cuda.get_device_capability(self.device) < (8, 0):
            return ""
        convolutions = torch.backends.cudnn.allow_tf32
        products = torch.backends.cuda.matmul.allow_tf32
        if convolutions and products:
            return "tf32"
        return "tf32 convolutions" if convolutions else "tf32 products" if products else ""

    @lacks_kernels
    def infer(self, batch: int = 0) -> Arrays:
        outputs = as_tuple(self.forward(batch=batch))
        specs = self.work.spec.outputs(self.work.config)
        return {spec.name: shown(value) for spec, value in zip(specs, outputs, strict=True)}

    @lacks_kernels
    def taps(self) -> Arrays:
        with torch.inference_mode():
            taps = self.model.taps(**self.batches[0])  # type: ignore[operator]
        return {name: shown(value) for name, value in taps.items()}

    @lacks_kernels
    def train(self, steps: Sequence[int]) -> Trained:
        losses, gradients = [], []
        for step in steps:
            losses.append(float(self.train_step(step=step)))
            gradients.append(
                {
                    name: shown(parameter.grad)
                    for name, parameter in self.model.named_parameters()
                    if parameter.grad is not None
                }
            )
        final = {name: shown(value) for name, value in self.model.state_dict().items()}
        return Trained(losses, gradients, final)

    @lacks_kernels
    def operators(self, step: int) -> Operators:
        def body() -> None:
            if self.work.case.phase == "train":
                self.train_step(step=step)
                return
            # Inference mode hides what operators are made of; the arithmetic is the same.
            with torch.no_grad():
                self.model(**self.batches[step])

        found = pt_operators.operators(body)
        # A training step was whole.
        return msgspec.structs.replace(found, optimizer=self.work.case.phase == "train")

    @lacks_kernels
    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        profile = profile_pt.profile(lambda: self.body(torch.profiler.record_function), steps)
        return profile, {self.device.type: 1.0}


def shown(tensor: Tensor) -> Array:
    """A numpy copy; of bfloat16 and float16 in float32, which holds them exactly."""
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: Array = tensor.cpu().numpy()
    return array.copy()


def no_cuda() -> str:
    """Why CUDA cannot start, in torch's own words."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "no device is visible"


def make(engine: str) -> TorchRunner:
    return TorchRunner(engine)
