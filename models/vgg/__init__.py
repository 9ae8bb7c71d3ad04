"""VGG-19 (Simonyan & Zisserman 2014, arXiv 1409.1556, configuration E): image classification."""

from __future__ import annotations

from dataclasses import dataclass

from xbench.models import layers
from xbench.models.flops import conv_flops, dense_flops
from xbench.spec import SGD, DrawSpec, ModelSpec, ParameterSpec, TensorSpec, Uniform

GROUPS = (2, 2, 4, 4, 4)
"""Convolutions before each pool: those of configuration E (paper, table 1)."""
KEEP = 0.5
"""Share of the hidden units that a dropout mask keeps."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters. ``channels`` per group of convolutions, ``hidden`` units of two layers."""

    channels: tuple[int, ...]
    hidden: int
    side: int
    """Height and width of a picture, in pixels."""
    classes: int
    gain: float = 1.25
    """Of the weights at ``init``, over Glorot's: 1 as published, more for a signal that is to reach
    the last layer without thousands of steps."""

    @property
    def convolutions(self) -> dict[str, tuple[int, int]]:
        """Channels that go into and come out of every convolution, by name, in order."""
        found = {}
        inputs = 3
        for group, (channels, count) in enumerate(zip(self.channels, GROUPS, strict=True), start=1):
            for place in range(1, count + 1):
                found[f"conv{group}_{place}"] = (inputs, channels)
                inputs = channels
        return found

    def extent(self, group: int) -> int:
        """Height and width within ``group``, counted from 1: every pool halves them, downwards."""
        return self.side >> (group - 1)

    @property
    def features(self) -> int:
        """What the first fully connected layer sees: all that the last pool gives."""
        side: int = self.extent(len(GROUPS) + 1)
        return self.channels[-1] * side * side


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """Glorot uniform, which the paper names for training from scratch (section 3.1); biases 0."""

    def glorot(fan_in: int, fan_out: int) -> Uniform:
        bound = config.gain * layers.glorot_uniform(fan_in, fan_out).high
        return Uniform(-bound, bound)

    specs: list[ParameterSpec] = []
    for name, (inputs, out) in config.convolutions.items():
        specs += layers.conv(f"features.{name}", out, inputs, 3, glorot)
    specs += layers.dense("fc6", config.hidden, config.features, glorot)
    specs += layers.dense("fc7", config.hidden, config.hidden, glorot)
    specs += layers.dense("fc8", config.classes, config.hidden, glorot, gain=1.0)
    return tuple(specs)


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    return (layers.picture("image", 3, config.side),)


def targets(config: Config) -> tuple[TensorSpec, ...]:
    return (layers.LABEL,)


def draws(config: Config) -> tuple[DrawSpec, ...]:
    """Dropout masks of the two hidden layers."""
    return tuple(layers.mask(name, config.hidden, KEEP) for name in ("dropout6", "dropout7"))


def outputs(config: Config) -> tuple[TensorSpec, ...]:
    return (TensorSpec("logits", ("batch", config.classes)),)


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """Every convolution and hidden layer, after its ReLU, and every pool."""
    specs = []
    for group, (channels, count) in enumerate(zip(config.channels, GROUPS, strict=True), start=1):
        for place in range(1, count + 1):
            specs.append(layers.picture(f"conv{group}_{place}", channels, config.extent(group)))
        specs.append(layers.picture(f"pool{group}", channels, config.extent(group + 1)))
    specs += [TensorSpec(name, ("batch", config.hidden)) for name in ("fc6", "fc7")]
    return tuple(specs)


def flops(config: Config) -> int:
    """All convolutions, whose names begin with their group, and the three dense layers."""
    total = dense_flops(config.hidden, config.features)
    total += dense_flops(config.hidden, config.hidden)
    total += dense_flops(config.classes, config.hidden)
    groups = [group for group, count in enumerate(GROUPS, start=1) for _ in range(count)]
    for group, (inputs, out) in zip(groups, config.convolutions.values(), strict=True):
        total += conv_flops(out, inputs, 3, config.extent(group) ** 2)
    return total


SPEC = ModelSpec(
    name="vgg",
    title="VGG-19: very deep convolutional network for image classification",
    paper="Simonyan & Zisserman 2014, arXiv 1409.1556",
    sizes={
        "tiny": Config(channels=(4, 8, 16, 32, 32), hidden=32, side=64, classes=10),
        "small": Config(channels=(16, 32, 64, 128, 128), hidden=256, side=32, classes=10),
        "full": Config(
            channels=(64, 128, 256, 512, 512), hidden=4096, side=224, classes=1000, gain=1.0
        ),
    },
    batch={"tiny": 4, "small": 64, "full": 8},
    parameters=parameters,
    inputs=inputs,
    targets=targets,
    draws=draws,
    outputs=outputs,
    taps=taps,
    losses=("cross-entropy",),
    optimizer=SGD(lr=0.01, momentum=0.9, weight_decay=5e-4),
    data="crops of the photographs that scikit-learn and scikit-image ship",
    flops=flops,
)
