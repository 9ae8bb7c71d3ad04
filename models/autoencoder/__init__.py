"""The plain autoencoder of handwritten digits: dense layers down to a code and back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from xbench.models.flops import dense_flops
from xbench.models.layers import dense, glorot_uniform
from xbench.spec import Adam, ModelSpec, ParameterSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters. ``widths`` of the encoder's layers, the code last; images are square."""

    side: int
    widths: tuple[int, ...]

    @property
    def pixels(self) -> int:
        return self.side * self.side

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of every layer, in the order of computation."""
        down = list(pairwise((self.pixels, *self.widths)))
        up = [(inputs, out) for out, inputs in reversed(down)]
        names = [f"encoder.{index}" for index in range(len(down))]
        names += [f"decoder.{index}" for index in range(len(up) - 1)]
        return dict(zip([*names, "pixels"], down + up, strict=True))

    @property
    def hidden(self) -> list[str]:
        """The layers that end in a ReLU: all but the last."""
        return list(self.layers)[:-1]


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """Weights and biases, in the order of computation."""
    return tuple(
        item
        for name, (inputs, out) in config.layers.items()
        for item in dense(name, out, inputs, glorot_uniform)
    )


def images(config: Config, name: str) -> tuple[TensorSpec, ...]:
    """A batch of images as one tensor called ``name``, row by row."""
    return (TensorSpec(name, ("batch", config.pixels)),)


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """Every hidden layer after its ReLU (the code is the encoder's last), and the output."""
    hidden = [TensorSpec(name, ("batch", config.layers[name][1])) for name in config.hidden]
    return (*hidden, *images(config, "reconstruction"))


def flops(config: Config) -> int:
    """All layers."""
    return sum(dense_flops(out, inputs) for inputs, out in config.layers.values())


SPEC = ModelSpec(
    name="autoencoder",
    title="Plain autoencoder of handwritten digits",
    paper="arXiv 2109.01451, whose layers are not published: these are our choice",
    sizes={
        "tiny": Config(side=14, widths=(48, 24, 12)),
        "small": Config(side=28, widths=(64, 32, 16)),
        "full": Config(side=28, widths=(128, 64, 32)),
    },
    batch={"tiny": 16, "small": 64, "full": 128},
    parameters=parameters,
    inputs=lambda config: images(config, "image"),
    outputs=lambda config: images(config, "reconstruction"),
    taps=taps,
    losses=("mse",),
    optimizer=Adam(lr=1e-3),
    data="handwritten digits of UCI, from scikit-learn",
    flops=flops,
)
