"""PyTorch, eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

# The first optimizer imports this, for a second: here it is paid once per host, not per case.
import torch._dynamo
from torch import Tensor, nn

from xbench import registry
from xbench.errors import EngineError, FellBack, Unavailable
from xbench.result import Placement, Profile
from xbench.runners import profile_pt
from xbench.runners.base import Array, Arrays, Runner, Trained, Work
from xbench.spec import PRECISIONS

ENGINES = {"torch": {"order": 0, "native": True, "packages": ("torch",)}}

Mark = Callable[[str], AbstractContextManager[object]]


def unmarked(name: str) -> AbstractContextManager[object]:
    """The mark of a step that nobody profiles."""
    return nullcontext()


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
        self.model = model.to(self.device, self.dtype)
        self.batches = [
            {name: self.to_device(array) for name, array in batch.items()} for batch in work.batches
        ]
        self.bind(work.parameters)
        self.last: Tensor | None = None
        self.body = self.train_step if case.phase == "train" else self.forward

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
        self.saved = [parameter.detach().clone() for parameter in self.model.parameters()]
        adam = self.work.spec.optimizer
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=adam.lr,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            fused=True,
        )
        self.optimizer.zero_grad(set_to_none=True)

    def reset(self) -> None:
        if self.work.case.phase != "train":
            return
        with torch.no_grad():
            torch._foreach_copy_(list(self.model.parameters()), self.saved)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def run(self) -> None:
        self.last = self.body()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, mark: Mark = unmarked, batch: int = 0) -> Tensor:
        with torch.inference_mode(), mark("xbench:forward"):
            output: Tensor = self.model(**self.batches[batch])
        return output

    def train_step(self, mark: Mark = unmarked, step: int = 0) -> Tensor:
        """Forward, loss, backward and optimizer update; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with mark("xbench:forward"):
            loss: Tensor = self.model.objective(**self.batches[step], loss=self.loss_name)  # type: ignore[operator]
        with mark("xbench:backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with mark("xbench:optimizer"):
            self.optimizer.step()
        return loss.detach()

    def check(self) -> None:
        if self.last is not None and not bool(torch.isfinite(self.last).all()):
            what = "loss" if self.work.case.phase == "train" else "output"
            raise EngineError(f"the {what} is not finite")

    def placement(self) -> list[Placement]:
        held = [*self.model.parameters(), *([] if self.last is None else [self.last])]
        elsewhere = {tensor.device.type for tensor in held} - {self.device.type}
        if elsewhere:
            raise FellBack(f"asked for {self.device.type}, tensors are on {sorted(elsewhere)}")
        return [Placement(ep=self.device.type, nodes=None, time_share=1.0)]

    def infer(self, batch: int = 0) -> Arrays:
        (spec,) = self.work.spec.outputs(self.work.config)
        return {spec.name: self.forward(batch=batch).cpu().numpy()}

    def taps(self) -> Arrays:
        with torch.inference_mode():
            taps = self.model.taps(**self.batches[0])  # type: ignore[operator]
        return {name: value.cpu().numpy() for name, value in taps.items()}

    def train(self) -> Trained:
        losses, gradients = [], []
        for step in range(len(self.batches)):
            losses.append(float(self.train_step(step=step)))
            gradients.append(
                {
                    name: parameter.grad.cpu().numpy().copy()
                    for name, parameter in self.model.named_parameters()
                    if parameter.grad is not None
                }
            )
        final = {name: p.detach().cpu().numpy().copy() for name, p in self.model.named_parameters()}
        return Trained(losses, gradients, final)

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        profile = profile_pt.profile(lambda: self.body(torch.profiler.record_function), steps)
        return profile, {self.device.type: 1.0}


def no_cuda() -> str:
    """Why CUDA cannot start, in torch's own words."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "no device is visible"


def make(engine: str) -> TorchRunner:
    return TorchRunner(engine)
