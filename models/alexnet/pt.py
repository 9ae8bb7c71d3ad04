"""AlexNet in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.alexnet import GROUPS, KEEP, PAD, STRIDE, Config
from xbench.models.layers_pt import dropout, local_response_norm


class LocalResponseNorm(nn.Module):
    """Normalisation over neighbouring channels (section 3.3)."""

    def forward(self, x: Tensor) -> Tensor:
        return local_response_norm(x)


def pool() -> nn.MaxPool2d:
    """Windows that overlap (section 3.4)."""
    return nn.MaxPool2d(kernel_size=3, stride=2)


class AlexNet(nn.Module):
    """Pictures (batch, 3, side, side) -> logits (batch, classes)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        one, two, three, four, five = (
            nn.Conv2d(
                layer.inputs * GROUPS[layer.name],
                layer.outputs,
                layer.size,
                stride=STRIDE if layer.name == "conv1" else 1,
                padding=PAD[layer.name],
                groups=GROUPS[layer.name],
            )
            for layer in config.layers[:5]
        )
        self.features = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=one,
                relu1=nn.ReLU(inplace=True),
                norm1=LocalResponseNorm(),
                pool1=pool(),
                conv2=two,
                relu2=nn.ReLU(inplace=True),
                norm2=LocalResponseNorm(),
                pool2=pool(),
                conv3=three,
                relu3=nn.ReLU(inplace=True),
                conv4=four,
                relu4=nn.ReLU(inplace=True),
                conv5=five,
                relu5=nn.ReLU(inplace=True),
                pool5=pool(),
            )
        )
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


def build(config: Config) -> AlexNet:
    return AlexNet(config)
