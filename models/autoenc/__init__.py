"""The variational autoencoder (Kingma & Welling 2013, arXiv 1312.6114) of handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from xbench.models.flops import dense_flops
from xbench.models.layers import dense, glorot_uniform
from xbench.spec import Adam, DrawSpec, ModelSpec, Normal, ParameterSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters: units of both hidden layers, and latent variables; images are square."""

    side: int
    hidden: int
    latent: int

    @property
    def pixels(self) -> int:
        return self.side * self.side


INIT = Normal(std=0.1)
"""Of every weight and bias: section 5 has N(0, 0.01), where the paper writes variances."""


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """Weights and biases; ``latent`` makes mu and then logvar."""
    pixels, hidden, latent = config.pixels, config.hidden, config.latent
    found = (
        *dense("encoder", hidden, pixels, glorot_uniform),
        *dense("latent", 2 * latent, hidden, glorot_uniform),
        *dense("decoder", hidden, latent, glorot_uniform),
        *dense("pixels", pixels, hidden, glorot_uniform),
    )
    return tuple(msgspec.structs.replace(item, init=INIT) for item in found)


def vectors(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, ("batch", size))


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """Both hidden layers after their tanh, the moments of z, the output."""
    return (
        vectors("encoder", config.hidden),
        vectors("mu", config.latent),
        vectors("logvar", config.latent),
        vectors("decoder", config.hidden),
        vectors("reconstruction", config.pixels),
    )


def draws(config: Config) -> tuple[DrawSpec, ...]:
    """One sample of the latent variables per image."""
    return (DrawSpec(name="noise", shape=("batch", config.latent), distribution=Normal()),)


def flops(config: Config) -> int:
    """The four layers; inference computes logvar, too."""
    pixels, hidden, latent = config.pixels, config.hidden, config.latent
    shapes = ((hidden, pixels), (2 * latent, hidden), (hidden, latent), (pixels, hidden))
    return sum(dense_flops(out, inputs) for out, inputs in shapes)


SPEC = ModelSpec(
    name="autoenc",
    title="Variational autoencoder of handwritten digits",
    paper="Kingma & Welling 2013, arXiv 1312.6114",
    sizes={
        "tiny": Config(side=14, hidden=60, latent=6),
        "small": Config(side=28, hidden=200, latent=10),
        "full": Config(side=28, hidden=500, latent=20),
    },
    batch={"tiny": 16, "small": 64, "full": 128},
    parameters=parameters,
    inputs=lambda config: (vectors("image", config.pixels),),
    outputs=lambda config: (vectors("reconstruction", config.pixels),),
    taps=taps,
    draws=draws,
    losses=("elbo",),
    optimizer=Adam(lr=1e-3),
    data="handwritten digits of UCI, from scikit-learn",
    flops=flops,
)
