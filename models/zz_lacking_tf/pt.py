"""PredNet in PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.zz_lacking_tf import Config

State = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""R, cell and E of every layer, bottom first; each (batch, channels, height, width)."""

Observed = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""R, Ahat and E of every layer after a step."""


def hard_sigmoid(x: Tensor) -> Tensor:
    """clip(0.2 x + 0.5, 0, 1), as the authors' Keras had it; F.hardsigmoid is relu6(x + 3) / 6."""
    return (0.2 * x + 0.5).clamp(0.0, 1.0)


def conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)


class PredNet(nn.Module):
    """Frames (batch, time, channels, height, width) in [0, 1] -> the prediction of each frame."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        channels = config.channels
        self.lstm = nn.ModuleList(
            conv3x3(config.gate_inputs(layer), 4 * size) for layer, size in enumerate(channels)
        )
        self.ahat = nn.ModuleList(conv3x3(size, size) for size in channels)
        self.a = nn.ModuleList(conv3x3(2 * below, above) for below, above in pairwise(channels))

    def initial_state(self, frame: Tensor) -> State:
        """All zero, for a batch of the size of ``frame``."""

        def zeros(layer: int, factor: int) -> Tensor:
            height, width = self.config.extent(layer)
            return frame.new_zeros(
                frame.shape[0], factor * self.config.channels[layer], height, width
            )

        layers = range(self.config.layers)
        return (
            [zeros(layer, 1) for layer in layers],
            [zeros(layer, 1) for layer in layers],
            [zeros(layer, 2) for layer in layers],
        )

    def step(self, state: State, frame: Tensor) -> tuple[State, Observed]:
        """One time step: predictions from the top down, then errors from the bottom up."""
        r, cell, error = (list(part) for part in state)
        top = self.config.layers - 1
        for layer in range(top, -1, -1):
            seen = [r[layer], error[layer]]
            if layer < top:
                seen.append(F.interpolate(r[layer + 1], scale_factor=2, mode="nearest"))
            gates, candidate = self.lstm[layer](torch.cat(seen, dim=1)).tensor_split(
                [3 * self.config.channels[layer]], dim=1
            )
            i, f, o = hard_sigmoid(gates).chunk(3, dim=1)
            cell[layer] = f * cell[layer] + i * torch.tanh(candidate)
            r[layer] = o * torch.tanh(cell[layer])
        prediction = []
        actual = frame
        for layer in range(top + 1):
            ahat = F.relu(self.ahat[layer](r[layer]))
            if layer == 0:
                ahat = ahat.clamp(max=1.0)
            prediction.append(ahat)
            error[layer] = torch.cat([F.relu(ahat - actual), F.relu(actual - ahat)], dim=1)
            if layer < top:
                actual = F.max_pool2d(F.relu(self.a[layer](error[layer])), kernel_size=2)
        return (r, cell, error), (r, prediction, error)

    def unroll(self, frames: Tensor) -> list[Observed]:
        """What every time step shows."""
        state = self.initial_state(frames[:, 0])
        seen = []
        for frame in frames.unbind(dim=1):
            state, observed = self.step(state, frame)
            seen.append(observed)
        return seen

    def forward(self, frames: Tensor) -> Tensor:
        return torch.stack([prediction[0] for _, prediction, _ in self.unroll(frames)], dim=1)

    def objective(self, frames: Tensor, loss: str) -> Tensor:
        """The scalar that training lowers: ``L0``, ``L_all`` or ``mse-next``."""
        steps = list(zip(self.config.time_weights, self.unroll(frames), strict=True))[1:]
        if loss == "mse-next":
            return sum_(
                [
                    weight * (prediction[0] - frames[:, t]).square().mean()
                    for t, (weight, (_, prediction, _)) in enumerate(steps, start=1)
                ]
            )
        layers = self.config.layer_weights if loss == "L_all" else (1.0,)
        return sum_(
            [
                weight * layer_weight * error[layer].mean()
                for weight, (_, _, error) in steps
                for layer, layer_weight in enumerate(layers)
            ]
        )

    def taps(self, frames: Tensor) -> dict[str, Tensor]:
        """Every R, prediction and error by its name in ``SPEC.taps``."""
        return {
            f"{kind}{layer}[t={t}]": value
            for t, observed in enumerate(self.unroll(frames))
            for kind, values in zip("RPE", observed, strict=True)
            for layer, value in enumerate(values)
        }


def sum_(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def build(config: Config) -> PredNet:
    return PredNet(config)
