"""The deep Q-network in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.deepq import DELTA, GAMMA, Config


class Network(nn.Module):
    """Screens (batch, history, side, side) -> the value of each action (batch, actions)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        for c in config.plan():
            self.add_module(c.name, nn.Conv2d(c.inputs, c.outputs, c.size, c.stride))
        self.convolutions = [c.name for c in config.plan()]
        self.fc4 = nn.Linear(config.features, config.hidden)
        self.fc5 = nn.Linear(config.hidden, config.actions)

    def taps(self, state: Tensor) -> dict[str, Tensor]:
        """Every layer but the last, after its ReLU."""
        seen: dict[str, Tensor] = {}
        x = state
        for name in self.convolutions:
            seen[name] = x = F.relu(self.get_submodule(name)(x))
        seen["fc4"] = F.relu(self.fc4(x.flatten(1)))
        return seen

    def forward(self, state: Tensor) -> Tensor:
        values: Tensor = self.fc5(self.taps(state)["fc4"])
        return values


class DeepQ(Network):
    """The network that is trained, and within it ``target``, which makes its goals."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.target = Network(config).requires_grad_(False)

    def objective(
        self,
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        next_state: Tensor,
        done: Tensor,
        loss: str,
    ) -> Tensor:
        """The mean Huber loss of values against rewards and the best that is to follow."""
        value = self(state).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            best = self.target(next_state).amax(dim=1)
            goal = reward + GAMMA * (1.0 - done) * best
        return F.huber_loss(value, goal, delta=DELTA)


def build(config: Config) -> DeepQ:
    return DeepQ(config)
