"""The variational autoencoder in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.autoenc import Config


class VariationalAutoencoder(nn.Module):
    """Images (batch, pixels) in [0, 1] -> p(pixel = 1) where z is the mean of q(z | image)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = nn.Linear(config.pixels, config.hidden)
        self.latent = nn.Linear(config.hidden, 2 * config.latent)
        self.decoder = nn.Linear(config.latent, config.hidden)
        self.pixels = nn.Linear(config.hidden, config.pixels)

    def encode(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden layer, and mean and log variance of q(z | image)."""
        hidden = torch.tanh(self.encoder(image))
        mu, logvar = self.latent(hidden).chunk(2, dim=1)
        return hidden, mu, logvar

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden layer, and the logits of p(pixel = 1 | z)."""
        hidden = torch.tanh(self.decoder(z))
        return hidden, self.pixels(hidden)

    def forward(self, image: Tensor) -> Tensor:
        return self.taps(image)["reconstruction"]

    def objective(self, image: Tensor, noise: Tensor | None = None, loss: str = "elbo") -> Tensor:
        """-ELBO: of each image all pixels' cross-entropy and KL(q || N(0, 1)); their mean."""
        _, mu, logvar = self.encode(image)
        if noise is None:
            noise = torch.randn_like(mu)
        _, logits = self.decode(mu + torch.exp(0.5 * logvar) * noise)
        entropy = F.binary_cross_entropy_with_logits(logits, image, reduction="none").sum(dim=1)
        divergence = 0.5 * (mu.square() + logvar.exp() - 1.0 - logvar).sum(dim=1)
        return (entropy + divergence).mean()

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        encoder, mu, logvar = self.encode(image)
        decoder, logits = self.decode(mu)
        return {
            "encoder": encoder,
            "mu": mu,
            "logvar": logvar,
            "decoder": decoder,
            "reconstruction": torch.sigmoid(logits),
        }


def build(config: Config) -> VariationalAutoencoder:
    return VariationalAutoencoder(config)
