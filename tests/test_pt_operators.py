"""torch, operator by operator: correct kernels pass, planted faults are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import jobs
from xbench import draws, registry
from xbench.runners.base import Work
from xbench.runners.pt import TorchRunner
from xbench.runners.pt_operators import operators


def runner(phase: str, folder: Path) -> TorchRunner:
    """PredNet tiny with its probe parameters on random frames."""
    case, spec = jobs.case("prednet", "torch", phase, batch=2, threads=1), registry.model("prednet")
    config = registry.config(spec, "tiny")
    random = np.random.default_rng(0)
    frames = {
        item.name: random.random(item.at(batch=2), np.float32) for item in spec.inputs(config)
    }
    parameters = draws.parameters(spec, "tiny", "probe", 0)
    made = TorchRunner("torch")
    made.load(Work(case, spec, config, parameters, [frames], None, folder))
    return made


def test_prednet_infers(tmp_path: Path) -> None:
    one = runner("infer", tmp_path)

    def body() -> None:
        with torch.no_grad():
            one.model(**one.batches[0])

    found = operators(body)
    assert found.checked > 150
    assert found.worst[0].score < 0.5
    assert found.unchecked == []
    assert any(item.node.startswith("PredNet") for item in found.worst)


def test_prednet_trains(tmp_path: Path) -> None:
    one = runner("train", tmp_path)
    found = operators(one.train_step)
    assert found.checked > 500
    assert found.worst[0].score < 0.5
    assert found.unchecked == []


class Residual(nn.Module):
    """Two residual blocks with what a classifier has around them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in "12")
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in "12")
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(x + norm(convolution(x)))
        return F.log_softmax(self.head(self.drop(x.mean((2, 3)))), -1)


def test_residual_network_trains_as_without_the_check() -> None:
    """Every operator passes, only dropout's bits are left out, and what training changes is the
    same to the bit: gradients, running statistics, parameters after the optimizer's step."""
    states = []
    for checked in (False, True):
        torch.manual_seed(0)
        model = Residual()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        x, y = torch.randn(4, 3, 16, 16), torch.arange(4)

        def body(
            model: nn.Module = model,
            optimizer: torch.optim.Adam = optimizer,
            x: Tensor = x,
            y: Tensor = y,
        ) -> None:
            F.nll_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        if checked:
            found = operators(body)
            assert found.checked > 100
            assert found.worst[0].score < 1
            assert found.unchecked == ["bernoulli (1 calls): random"]
        else:
            body()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        states.append([*model.state_dict().values(), *grads])
    assert len(states[0]) == len(states[1]) > 20
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@torch.library.custom_op("xbench_test::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """Exact in float64, 1e-3 off in narrower types."""
    return x * 2 if x.dtype == torch.float64 else x * 2.002


@torch.library.custom_op("xbench_test::double_here", mutates_args=("x",))
def double_here(x: Tensor) -> None:
    x.mul_(2 if x.dtype == torch.float64 else 2.002)


@torch.library.custom_op("xbench_test::above", mutates_args=())
def above(x: Tensor) -> Tensor:
    """One element of a mask is wrong in float32."""
    mask = x > 0
    if x.dtype == torch.float32:
        mask.view(-1)[0] ^= True
    return mask


@torch.library.custom_op("xbench_test::holed", mutates_args=())
def holed(x: Tensor) -> Tensor:
    """A NaN that float64 has not."""
    x = x.clone()
    if x.dtype == torch.float32:
        x.view(-1)[0] = torch.nan
    return x


class Bent(torch.autograd.Function):
    """Right forwards, planted backwards."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        bent: Tensor = doubled(grads[0])
        return bent


def planted(call: Callable[[Tensor], object]) -> Callable[[], object]:
    """A small network with ``call`` in its middle."""
    torch.manual_seed(0)
    x, weight = torch.randn(8, 64), torch.randn(64, 64, requires_grad=True)

    def body() -> None:
        hidden = torch.tanh(x @ weight)
        value = call(hidden)
        if isinstance(value, Tensor) and value.requires_grad:
            value.square().mean().backward()  # type: ignore[no-untyped-call]

    return body


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda x: doubled(x.detach()), "doubled"),
        (lambda x: double_here(x.detach()), "double_here"),
        (lambda x: above(x.detach()), "above"),
        (lambda x: holed(x.detach()), "holed"),
        (Bent.apply, "doubled"),
    ],
    ids=["result", "in-place", "mask", "nan", "backward"],
)
def test_a_planted_fault_is_named(call: Callable[[Tensor], object], op: str) -> None:
    found = operators(planted(call))
    assert found.worst[0].op == f"xbench_test.{op}"
    assert found.worst[0].score > 10
    assert found.worst[1].score < 1, "and nothing that comes after it"
    assert found.checked > 2
    if call is Bent.apply:
        assert found.worst[0].node.startswith("backward")


def test_ties_are_the_kernels_choice() -> None:
    """Indices of equal elements may differ; limits are compared as the kernel rounds them."""
    x = torch.randint(0, 3, (4, 6, 8, 8)).float() / 10

    def body() -> None:
        F.max_pool2d(x, 2, return_indices=True)
        x.topk(3, -1), x.argmax(1), x.argmax(), x.sort(0), x.max(2)
        x > 0.1, x == 0.2, x.clamp(max=0.1)

    found = operators(body)
    assert found.checked == 13
    assert found.worst[0].score < 1
    assert found.unchecked == []


@pytest.mark.parametrize("train", [False, True])
def test_recurrence_has_a_reference_of_its_own(train: bool) -> None:
    """oneDNN's LSTM has no float64 kernel, and is checked nevertheless."""
    torch.manual_seed(0)
    model, x = nn.LSTM(6, 8, bidirectional=True), torch.randn(5, 3, 6)

    def body() -> None:
        with torch.set_grad_enabled(train):
            value = model(x)[0].square().mean()
        if train:
            value.backward()

    found = operators(body)
    assert found.unchecked == []
    assert found.worst[0].score < 1
    assert found.checked > (25 if train else 9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_held_to_their_own_eps(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(8, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    found = operators(lambda: F.softmax(torch.tanh(x @ weight), -1).sum())
    assert (found.checked, found.unchecked) == (4, [])
    assert 0 < found.worst[0].score < 1
    assert max(item.error_rms for item in found.worst) > 1e-5


def test_float64_has_nothing_to_be_held_against() -> None:
    x = torch.ones(3, dtype=torch.float64)
    found = operators(lambda: x.exp())
    assert (found.checked, found.unchecked) == (0, [])
