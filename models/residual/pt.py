"""Residual networks in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.layers_pt import BatchNorm2d
from xbench.models.residual import STEM_SIZE, Block, Config


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without bias, which the normalisation after it would take away."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def shortcut(block: Block) -> nn.Module:
    """The identity, or a projection where the shape changes."""
    if not block.projects:
        return nn.Identity()
    projection = conv(block.inputs, block.outputs, 1, block.stride)
    return nn.Sequential(OrderedDict(conv=projection, norm=BatchNorm2d(block.outputs)))


class Basic(nn.Module):
    """Two 3x3 convolutions (figure 5, left)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.conv1 = conv(block.inputs, block.width, 3, block.stride)
        self.norm1 = BatchNorm2d(block.width)
        self.conv2 = conv(block.width, block.outputs, 3)
        self.norm2 = BatchNorm2d(block.outputs)
        self.shortcut = shortcut(block)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class Bottleneck(nn.Module):
    """1x1, which reduces and has the stride, 3x3, and 1x1, which restores (figure 5, right)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.conv1 = conv(block.inputs, block.width, 1, block.stride)
        self.norm1 = BatchNorm2d(block.width)
        self.conv2 = conv(block.width, block.width, 3)
        self.norm2 = BatchNorm2d(block.width)
        self.conv3 = conv(block.width, block.outputs, 1)
        self.norm3 = BatchNorm2d(block.outputs)
        self.shortcut = shortcut(block)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class Residual(nn.Module):
    """Images (batch, 3, side, side) -> logits (batch, classes)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        first = config.channels[0]
        self.stem = nn.Sequential(
            OrderedDict(
                conv=conv(3, first, STEM_SIZE, stride=2),
                norm=BatchNorm2d(first),
                relu=nn.ReLU(inplace=True),
                pool=nn.MaxPool2d(3, stride=2, padding=1),
            )
        )
        kind = Bottleneck if config.bottleneck else Basic
        self.names = [block.name for block in config.plan()]
        for block in config.plan():
            stage, name = block.name.split(".")
            if stage not in self._modules:
                self.add_module(stage, nn.Sequential())
            self.get_submodule(stage).add_module(name, kind(block))
        self.fc = nn.Linear(config.features, config.classes)

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """What leaves the stem, every block, and the average over all places."""
        x = self.stem(image)
        seen = {"stem": x}
        for name in self.names:
            seen[name] = x = self.get_submodule(name)(x)
        seen["pooled"] = x.mean((2, 3))
        return seen

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for name in self.names:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

    def objective(self, image: Tensor, label: Tensor, loss: str) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(self(image), label)


def build(config: Config) -> Residual:
    return Residual(config)
