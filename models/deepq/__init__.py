"""Deep Q-network (Mnih et al. 2015, doi 10.1038/nature14236): the worth of actions in a game."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from xbench.models import layers
from xbench.spec import ModelSpec, ParameterSpec, RMSProp, TensorSpec, Uniform

KERNELS = ((8, 4), (4, 2), (3, 1))
"""Edge and stride of each convolution; none is padded."""
GAMMA = 0.99
"""What a reward one step later is worth."""
DELTA = 1.0
"""Where the Huber loss goes over from a parabola to a line."""
TARGET = "target."
"""Prefix of the parameters of the network that only makes goals."""
BATCH = 32
EPSILON = 0.01**0.5 / BATCH
"""The authors add 0.01 to the mean square of gradients that are sums over the batch."""
PROBE_FIRST = 3.0
"""Probe gain of the first convolution: most of a screen is black."""
PROBE_VALUES = 1.5
"""Probe gain of the last layer: errors on both sides of the Huber loss's bend."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """``size`` x ``size`` with a stride, unpadded; makes (side, side) of ``outputs`` channels."""

    name: str
    inputs: int
    outputs: int
    size: int
    stride: int
    side: int


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters: ``history`` screens of (side, side) in, one value per action out."""

    channels: tuple[int, int, int]
    hidden: int
    actions: int = 4
    side: int = 84
    history: int = 4

    def plan(self) -> Iterator[Convolution]:
        """The convolutions in order."""
        inputs, side = self.history, self.side
        stages = zip(self.channels, KERNELS, strict=True)
        for number, (outputs, (size, stride)) in enumerate(stages, start=1):
            side = (side - size) // stride + 1
            yield Convolution(f"conv{number}", inputs, outputs, size, stride, side)
            inputs = outputs

    @property
    def features(self) -> int:
        """Values that leave the last convolution."""
        *_, last = self.plan()
        return last.outputs * last.side**2


def fan_in_uniform(fan_in: int, fan_out: int) -> Uniform:
    """Uniform within 1 / sqrt(fan-in): what Torch's layers began with."""
    return Uniform(-(fan_in**-0.5), fan_in**-0.5)


def network(config: Config) -> layers.Specs:
    """Parameters of one network. A bias begins within the bounds of its layer's weights."""
    found: list[ParameterSpec] = []
    for c in config.plan():
        gain = layers.RELU_GAIN if found else PROBE_FIRST
        found += layers.conv(c.name, c.outputs, c.inputs, c.size, fan_in_uniform, gain=gain)
    found += layers.dense("fc4", config.hidden, config.features, fan_in_uniform)
    found += layers.dense("fc5", config.actions, config.hidden, fan_in_uniform, gain=PROBE_VALUES)
    inits = [item.init for item in found[::2] for _ in ("weight", "bias")]
    return tuple(
        msgspec.structs.replace(item, init=init) for item, init in zip(found, inits, strict=True)
    )


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """The online network's, then those of the target network, which no gradient trains."""
    online = network(config)
    target = (
        msgspec.structs.replace(item, name=f"{TARGET}{item.name}", trainable=False, inference=False)
        for item in online
    )
    return (*online, *target)


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    """The last screens, the newest in the last channel, each value in [0, 1]."""
    return (layers.picture("state", config.history, config.side),)


def targets(config: Config) -> tuple[TensorSpec, ...]:
    """What was done, what it earned, what was seen then, and 1 where nothing follows, else 0."""
    return (
        TensorSpec("action", ("batch",), dtype="int64"),
        TensorSpec("reward", ("batch",)),
        layers.picture("next_state", config.history, config.side),
        TensorSpec("done", ("batch",)),
    )


def outputs(config: Config) -> tuple[TensorSpec, ...]:
    return (TensorSpec("values", ("batch", config.actions)),)


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """Every layer but the last, after its ReLU."""
    return (
        *(layers.picture(c.name, c.outputs, c.side) for c in config.plan()),
        TensorSpec("fc4", ("batch", config.hidden)),
    )


def flops(config: Config) -> int:
    """Floating-point operations of inference on one item; two for each weight at each place."""
    convolutions = sum(c.outputs * c.inputs * c.size**2 * c.side**2 for c in config.plan())
    return 2 * (convolutions + config.hidden * (config.features + config.actions))


SIZES = {
    "tiny": Config(channels=(8, 16, 16), hidden=64),
    "small": Config(channels=(16, 32, 32), hidden=256),
    "full": Config(channels=(32, 64, 64), hidden=512),
    "legal": Config(channels=(32, 64, 64), hidden=512, actions=18),
}

SPEC = ModelSpec(
    name="deepq",
    title="Deep Q-network: plays a game from its screens",
    paper="Mnih et al. 2015, doi 10.1038/nature14236",
    sizes=SIZES,
    batch=dict.fromkeys(SIZES, BATCH),
    infer_batch=dict.fromkeys(SIZES, (1, BATCH)),
    parameters=parameters,
    inputs=inputs,
    targets=targets,
    outputs=outputs,
    taps=taps,
    losses=("td",),
    optimizer=RMSProp(lr=2.5e-4, alpha=0.95, eps=EPSILON),
    data="screens of Breakout in the Arcade Learning Environment",
    flops=flops,
)
