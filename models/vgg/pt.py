"""VGG-19 in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.layers_pt import dropout
from xbench.models.vgg import GROUPS, KEEP, Config


class VGG(nn.Module):
    """Pictures (batch, 3, side, side) -> logits (batch, classes)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for name, (inputs, outputs) in config.convolutions.items():
            group, place = name.removeprefix("conv").split("_")
            parts[name] = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
            parts[f"relu{group}_{place}"] = nn.ReLU(inplace=True)
            if int(place) == GROUPS[int(group) - 1]:
                parts[f"pool{group}"] = nn.MaxPool2d(kernel_size=2, stride=2)
        self.features = nn.Sequential(parts)
        self.fc6 = nn.Linear(config.features, config.hidden)
        self.fc7 = nn.Linear(config.hidden, config.hidden)
        self.fc8 = nn.Linear(config.hidden, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.features(image).flatten(1)
        x = F.relu_(self.fc6(x))
        x = F.relu_(self.fc7(x))
        logits: Tensor = self.fc8(x)
        return logits

    def objective(
        self,
        image: Tensor,
        label: Tensor,
        dropout6: Tensor | None = None,
        dropout7: Tensor | None = None,
        *,
        loss: str,
    ) -> Tensor:
        """Softmax cross-entropy, with dropout in both hidden layers."""
        x = self.features(image).flatten(1)
        x = dropout(F.relu_(self.fc6(x)), KEEP, dropout6)
        x = dropout(F.relu_(self.fc7(x)), KEEP, dropout7)
        return F.cross_entropy(self.fc8(x), label)

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """Activations by their names in ``SPEC.taps``."""
        seen = {}
        x = image
        for name, part in self.features.named_children():
            x = part(x)
            # A ReLU works in place, on what its convolution left here.
            if not isinstance(part, nn.ReLU):
                seen[name] = x
        seen["fc6"] = F.relu_(self.fc6(x.flatten(1)))
        seen["fc7"] = F.relu_(self.fc7(seen["fc6"]))
        return seen


def build(config: Config) -> VGG:
    return VGG(config)
