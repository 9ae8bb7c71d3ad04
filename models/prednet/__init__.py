"""PredNet (Lotter, Kreiman & Cox 2016, arXiv 1605.08104): next-frame video prediction."""

from __future__ import annotations

from dataclasses import dataclass

from xbench.models.flops import conv_flops
from xbench.spec import Adam, Constant, ModelSpec, ParameterSpec, TensorSpec, Uniform


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters. ``channels`` per layer, bottom first; the frame has ``channels[0]``."""

    channels: tuple[int, ...]
    height: int
    width: int
    time: int
    layer_weights: tuple[float, ...] = (1.0, 0.1, 0.1, 0.1)

    @property
    def layers(self) -> int:
        return len(self.channels)

    def gate_inputs(self, layer: int) -> int:
        """Channels that the ConvLSTM of ``layer`` sees: R, E (twice the channels), R above."""
        above = self.channels[layer + 1] if layer + 1 < self.layers else 0
        return 3 * self.channels[layer] + above

    def extent(self, layer: int) -> tuple[int, int]:
        """Height and width of ``layer``: every layer halves the one below."""
        return self.height >> layer, self.width >> layer

    @property
    def time_weights(self) -> tuple[float, ...]:
        """0 at the first frame, which nothing can predict, then equal."""
        return (0.0,) + (1.0 / (self.time - 1),) * (self.time - 1)


def _conv(
    name: str, out: int, inputs: int, *, gates: int = 1, gain: float, bias: Uniform
) -> tuple[ParameterSpec, ParameterSpec]:
    """A 3x3 convolution; ``gates`` kernels that share their input lie one after the other in it.

    ``init`` is Glorot uniform per gate with zero bias, as in the authors' Keras code. ``probe``
    has kernels of ``gain`` over sqrt(fan-in) and biases from ``bias``: signals neither die nor
    explode over 4 layers and 10 steps, and every clip is reached from both sides (a test asserts
    it), or no comparison could tell whether it is there.
    """
    glorot = (6.0 / (9 * (inputs + out))) ** 0.5
    probe = gain * (3.0 / (9 * inputs)) ** 0.5
    kernel = ParameterSpec(
        name=f"{name}.weight",
        shape=(gates * out, inputs, 3, 3),
        axes="OIHW",
        tf_axes="HWIO",
        init=Uniform(-glorot, glorot),
        probe=Uniform(-probe, probe),
    )
    offset = ParameterSpec(
        name=f"{name}.bias", shape=(gates * out,), init=Constant(0.0), probe=bias
    )
    return kernel, offset


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """All parameters, in the order in which a time step uses them."""
    specs: list[ParameterSpec] = []
    for layer, channels in enumerate(config.channels):
        inputs = config.gate_inputs(layer)
        specs += _conv(
            f"lstm.{layer}", channels, inputs, gates=4, gain=0.7, bias=Uniform(-2.6, 2.6)
        )
        if layer == 0:
            # Pixels, clipped at 1: the one place that must come near it.
            specs += _conv("ahat.0", channels, channels, gain=1.2, bias=Uniform(0.6, 1.1))
        else:
            specs += _conv(f"ahat.{layer}", channels, channels, gain=0.7, bias=Uniform(-0.1, 0.3))
        if layer + 1 < config.layers:
            above = config.channels[layer + 1]
            specs += _conv(f"a.{layer}", above, 2 * channels, gain=0.7, bias=Uniform(-0.1, 0.3))
    return tuple(specs)


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    shape = ("batch", config.time, config.channels[0], config.height, config.width)
    return (TensorSpec("frames", shape, axes="NTCHW", tf_axes="NTHWC"),)


def outputs(config: Config) -> tuple[TensorSpec, ...]:
    """The prediction of every frame."""
    shape = ("batch", config.time, config.channels[0], config.height, config.width)
    return (TensorSpec("prediction", shape, axes="NTCHW", tf_axes="NTHWC"),)


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """R (representation), P (prediction, Ahat) and E (error) of every layer and time step."""
    specs = []
    for t in range(config.time):
        for kind, factor in (("R", 1), ("P", 1), ("E", 2)):
            layers = range(config.layers)
            for layer in reversed(layers) if kind == "R" else layers:
                shape = ("batch", factor * config.channels[layer], *config.extent(layer))
                specs.append(
                    TensorSpec(f"{kind}{layer}[t={t}]", shape, axes="NCHW", tf_axes="NHWC")
                )
    return tuple(specs)


def flops(config: Config) -> int:
    """All convolutions of every time step."""
    total = 0
    for layer, channels in enumerate(config.channels):
        height, width = config.extent(layer)
        kernels = [(4 * channels, config.gate_inputs(layer)), (channels, channels)]
        if layer + 1 < config.layers:
            kernels.append((config.channels[layer + 1], 2 * channels))
        total += sum(conv_flops(out, inputs, 3, height * width) for out, inputs in kernels)
    return config.time * total


SPEC = ModelSpec(
    name="prednet",
    title="PredNet: predictive coding network for next-frame video prediction",
    paper="Lotter, Kreiman & Cox 2016, arXiv 1605.08104",
    sizes={
        "tiny": Config(channels=(3, 8, 16, 32), height=32, width=40, time=4),
        "small": Config(channels=(3, 16, 32, 64), height=64, width=80, time=10),
        "full": Config(channels=(3, 48, 96, 192), height=128, width=160, time=10),
    },
    batch={"tiny": 2, "small": 2, "full": 4},
    parameters=parameters,
    inputs=inputs,
    outputs=outputs,
    taps=taps,
    losses=("L0", "L_all", "mse-next"),
    optimizer=Adam(lr=1e-3),
    data="Enduro, a driving game, from the Arcade Learning Environment",
    flops=flops,
)
