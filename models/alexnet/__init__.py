"""AlexNet (Krizhevsky, Sutskever & Hinton 2012): image classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xbench.models import layers
from xbench.models.flops import conv_flops, dense_flops
from xbench.spec import (
    SGD,
    DrawSpec,
    ModelSpec,
    Normal,
    ParameterSpec,
    TensorSpec,
)

KEEP = 0.5
"""Share of the hidden units that a dropout mask keeps."""
STRIDE = 4
"""Of the first convolution."""
PAD = {"conv1": 2, "conv2": 2, "conv3": 1, "conv4": 1, "conv5": 1}
"""Zeros on every side. With 2, the first convolution makes the paper's 55x55 of 224x224."""
GROUPS = {"conv1": 1, "conv2": 2, "conv3": 1, "conv4": 2, "conv5": 2}
"""Groups of channels that do not see each other: the two GPUs of the paper (figure 2)."""


class Layer(NamedTuple):
    """``size`` of the kernel is 1 for a fully connected layer, ``bias`` is that of ``init``."""

    name: str
    inputs: int
    """Channels of one group."""
    outputs: int
    size: int
    bias: float


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters. ``filters`` of the five convolutions, ``hidden`` units of two layers."""

    filters: tuple[int, int, int, int, int]
    hidden: int
    side: int
    """Height and width of a picture, in pixels."""
    classes: int
    deviation: float | None = None
    """Of the weights at ``init``; None: 1 / sqrt(fan-in)."""

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Height and width after the first convolution and after each of the three pools."""
        conv1 = (self.side + 2 * PAD["conv1"] - 11) // STRIDE + 1
        pool1 = (conv1 - 3) // 2 + 1
        pool2 = (pool1 - 3) // 2 + 1
        return conv1, pool1, pool2, (pool2 - 3) // 2 + 1

    @property
    def features(self) -> int:
        """What the first fully connected layer sees: all that the last pool gives."""
        return self.filters[-1] * self.extents[-1] ** 2

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers with parameters, in order."""
        one, two, three, four, five = self.filters
        return (
            Layer("conv1", 3, one, 11, 0.0),
            Layer("conv2", one // 2, two, 5, 1.0),
            Layer("conv3", two, three, 3, 0.0),
            Layer("conv4", three // 2, four, 3, 1.0),
            Layer("conv5", four // 2, five, 3, 1.0),
            Layer("fc6", self.features, self.hidden, 1, 1.0),
            Layer("fc7", self.hidden, self.hidden, 1, 1.0),
            Layer("fc8", self.hidden, self.classes, 1, 0.0),
        )


GAINS = {"conv1": 12.0, "fc6": 0.2, "fc8": 1.0}
"""Of the probe parameters, where other than usual: LRN sees activations at which its alpha counts,
and the logits are about 1 again."""


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """Normal weights; biases 1 where the paper wants a ReLU to see positive inputs (section 5)."""

    def normal(fan_in: int, fan_out: int) -> Normal:
        return Normal(std=config.deviation or fan_in**-0.5)

    specs: list[ParameterSpec] = []
    for name, inputs, out, size, bias in config.layers:
        gain = GAINS.get(name, layers.RELU_GAIN)
        if name in PAD:
            full = f"features.{name}"
            specs += layers.conv(full, out, inputs, size, normal, gain=gain, bias=bias)
        else:
            specs += layers.dense(name, out, inputs, normal, gain=gain, bias=bias)
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
    """Every convolution and hidden layer after its ReLU, every normalisation and every pool."""
    conv1, pool1, pool2, pool5 = config.extents
    one, two, three, four, five = config.filters
    pictures = (
        ("conv1", one, conv1),
        ("norm1", one, conv1),
        ("pool1", one, pool1),
        ("conv2", two, pool1),
        ("norm2", two, pool1),
        ("pool2", two, pool2),
        ("conv3", three, pool2),
        ("conv4", four, pool2),
        ("conv5", five, pool2),
        ("pool5", five, pool5),
    )
    return (
        *(layers.picture(*item) for item in pictures),
        *(TensorSpec(name, ("batch", config.hidden)) for name in ("fc6", "fc7")),
    )


def flops(config: Config) -> int:
    """All layers with parameters; the normalisations are not counted."""
    conv1, pool1, pool2, _ = config.extents
    sides = {"conv1": conv1, "conv2": pool1, "conv3": pool2, "conv4": pool2, "conv5": pool2}
    return sum(
        conv_flops(layer.outputs, layer.inputs, layer.size, sides[layer.name] ** 2)
        if layer.name in sides
        else dense_flops(layer.outputs, layer.inputs)
        for layer in config.layers
    )


SPEC = ModelSpec(
    name="alexnet",
    title="AlexNet: deep convolutional network for image classification",
    paper="Krizhevsky, Sutskever & Hinton 2012, NIPS 25",
    sizes={
        "tiny": Config(filters=(12, 32, 48, 48, 32), hidden=64, side=96, classes=10),
        "small": Config(filters=(24, 64, 96, 96, 64), hidden=256, side=128, classes=10),
        "full": Config(
            filters=(96, 256, 384, 384, 256),
            hidden=4096,
            side=224,
            classes=1000,
            deviation=0.01,
        ),
    },
    batch={"tiny": 4, "small": 16, "full": 64},
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
