"""The plain autoencoder in PyTorch."""

from __future__ import annotations

from itertools import pairwise, starmap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.autoencoder import Config


class Autoencoder(nn.Module):
    """Images (batch, pixels) in [0, 1] -> their reconstruction from a narrow code."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.ModuleList(starmap(nn.Linear, pairwise((config.pixels, *config.widths))))
        self.decoder = nn.ModuleList(starmap(nn.Linear, pairwise(config.widths[::-1])))
        self.pixels = nn.Linear(config.widths[0], config.pixels)

    def forward(self, image: Tensor) -> Tensor:
        return self.taps(image)["reconstruction"]

    def objective(self, image: Tensor, loss: str) -> Tensor:
        """The mean squared error over all pixels of all images."""
        return F.mse_loss(self(image), image)

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """Every layer's output by its name in ``SPEC.taps``."""
        x, found = image, {}
        for name, layer in zip(self.config.hidden, (*self.encoder, *self.decoder), strict=True):
            found[name] = x = F.relu(layer(x))
        found["reconstruction"] = torch.sigmoid(self.pixels(x))
        return found


def build(config: Config) -> Autoencoder:
    return Autoencoder(config)
