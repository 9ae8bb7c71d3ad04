"""Parameters of the usual layers: names, shapes and layouts, initialisers, probe ranges.

Names are PyTorch's, so that ``NAME.weight`` of ``conv`` is the weight of an ``nn.Conv2d`` called
NAME. What the layers compute stands in ``layers_pt`` and ``layers_tf``.
"""

from __future__ import annotations

from collections.abc import Callable

from xbench.spec import (
    Bernoulli,
    Constant,
    DrawSpec,
    Normal,
    ParameterSpec,
    TensorSpec,
    Uniform,
)

Initialiser = Callable[[int, int], Uniform | Normal]
"""From fan-in and fan-out to a distribution."""
Specs = tuple[ParameterSpec, ...]

PROBE_BIAS = Uniform(-0.1, 0.3)
"""Mostly above zero, so that few units of a ReLU network are dead for all inputs."""
RELU_GAIN = 2.0**0.5
"""Keeps the mean square from layer to layer: a ReLU halves it."""


LABEL = TensorSpec("label", ("batch",), dtype="int64")
"""The class of every item, counted from 0."""


def picture(name: str, channels: int, side: int) -> TensorSpec:
    """Square pictures, or what a layer makes of them."""
    return TensorSpec(name, ("batch", channels, side, side), axes="NCHW", tf_axes="NHWC")


def mask(name: str, width: int, keep: float) -> DrawSpec:
    """A dropout mask for a layer of ``width`` units, of which a share of ``keep`` stays."""
    return DrawSpec(name=name, shape=("batch", width), distribution=Bernoulli(keep))


def glorot_uniform(fan_in: int, fan_out: int) -> Uniform:
    """Uniform with variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010, eq. 16)."""
    bound = (6.0 / (fan_in + fan_out)) ** 0.5
    return Uniform(-bound, bound)


def he_normal(fan_in: int, fan_out: int) -> Normal:
    """Normal with variance 2 / fan_in (He et al. 2015, arXiv 1502.01852, eq. 10)."""
    return Normal(std=(2.0 / fan_in) ** 0.5)


def probe(fan_in: int, gain: float) -> Uniform:
    """Uniform whose sum over ``fan_in`` unit inputs has the deviation ``gain``."""
    bound = gain * (3.0 / fan_in) ** 0.5
    return Uniform(-bound, bound)


def conv(
    name: str,
    out: int,
    inputs: int,
    size: int,
    init: Initialiser,
    *,
    gain: float = RELU_GAIN,
    bias: float | None = 0.0,
    probe_bias: Uniform = PROBE_BIAS,
) -> Specs:
    """A square convolution of ``size``; ``inputs`` channels of one group; ``bias`` at ``init``.

    There is no bias where it is None.
    """
    area = size * size
    weight = ParameterSpec(
        name=f"{name}.weight",
        shape=(out, inputs, size, size),
        axes="OIHW",
        tf_axes="HWIO",
        init=init(area * inputs, area * out),
        probe=probe(area * inputs, gain),
    )
    return (weight, *offset(name, out, bias, probe_bias))


def dense(
    name: str,
    out: int,
    inputs: int,
    init: Initialiser,
    *,
    gain: float = RELU_GAIN,
    bias: float | None = 0.0,
    probe_bias: Uniform = PROBE_BIAS,
) -> Specs:
    """A fully connected layer; ``bias`` as for ``conv``."""
    weight = ParameterSpec(
        name=f"{name}.weight",
        shape=(out, inputs),
        axes="OI",
        tf_axes="IO",
        init=init(inputs, out),
        probe=probe(inputs, gain),
    )
    return (weight, *offset(name, out, bias, probe_bias))


def offset(name: str, size: int, bias: float | None, probe_bias: Uniform) -> Specs:
    """The bias of a layer; nothing where it is None."""
    if bias is None:
        return ()
    return (
        ParameterSpec(name=f"{name}.bias", shape=(size,), init=Constant(bias), probe=probe_bias),
    )


def batch_norm(
    name: str,
    channels: int,
    *,
    weight: Uniform = Uniform(0.5, 1.5),  # noqa: B008 - a frozen value
) -> Specs:
    """Scale, shift and running statistics of batch normalisation (Ioffe & Szegedy 2015).

    ``weight`` is the probe range of the scale. Statistics begin at mean 0, variance 1.
    """

    def one(part: str, init: float, probe: Uniform, trainable: bool = True) -> ParameterSpec:
        return ParameterSpec(
            name=f"{name}.{part}",
            shape=(channels,),
            init=Constant(init),
            probe=probe,
            trainable=trainable,
        )

    return (
        one("weight", 1.0, weight),
        one("bias", 0.0, Uniform(-0.3, 0.5)),
        one("running_mean", 0.0, Uniform(-0.5, 0.5), trainable=False),
        one("running_var", 1.0, Uniform(0.5, 2.0), trainable=False),
    )


BATCH_NORM_EPS = 1e-5
"""Added to a variance under the root: PyTorch's default."""
BATCH_NORM_MOMENTUM = 0.1
"""Share of the batch in a new running statistic (Keras calls one minus this its momentum)."""
LRN = {"size": 5, "alpha": 1e-4, "k": 2.0}
"""Local response normalisation, x / (k + alpha * sum over ``size`` channels of x^2)^0.75, as in
Krizhevsky et al. 2012, section 3.3. (``torch.nn.LocalResponseNorm`` divides its alpha by the size,
``tf.nn.local_response_normalization`` does not.)"""


def embedding(name: str, count: int, width: int, init: Uniform | Normal, probe: Uniform) -> Specs:
    """One row of ``width`` for each of ``count`` ids."""
    return (ParameterSpec(name=f"{name}.weight", shape=(count, width), init=init, probe=probe),)


def lstm(
    name: str,
    hidden: int,
    inputs: int,
    layers: int,
    init: Uniform | None = None,
    *,
    gain: float = 1.0,
    bias: bool = True,
) -> Specs:
    """``layers`` of LSTM, one on the other, under PyTorch's names, gates in its order i, f, g, o.

    PyTorch has a bias for the input and one for the recurrence, which are added. ``init`` is
    uniform within 1 / sqrt(hidden), as PyTorch's, where none is given. ``gain`` is the probe's, of
    the weights of inputs.
    """
    init = init or Uniform(-(hidden**-0.5), hidden**-0.5)
    specs: list[ParameterSpec] = []
    for layer in range(layers):
        width = hidden if layer else inputs
        specs += [
            _gates(f"{name}.weight_ih_l{layer}", 4 * hidden, width, init, gain),
            _gates(f"{name}.weight_hh_l{layer}", 4 * hidden, hidden, init),
        ]
        specs += [
            ParameterSpec(
                name=f"{name}.bias_{part}_l{layer}",
                shape=(4 * hidden,),
                init=init,
                probe=Uniform(-0.5, 0.5),
            )
            for part in ("ih", "hh")
            if bias
        ]
    return tuple(specs)


def rnn(name: str, hidden: int, inputs: int, init: Initialiser) -> Specs:
    """A plain recurrent layer that runs both ways, with one weight and bias for its inputs.

    Each direction has a recurrence of its own (Hannun et al. 2014, arXiv 1412.5567, section 2).
    """
    recurrence = init(hidden, hidden)
    return (
        _gates(f"{name}.weight_ih", hidden, inputs, init(inputs, hidden)),
        _gates(f"{name}.weight_hh", hidden, hidden, recurrence, 0.7),
        _gates(f"{name}.weight_hh_reverse", hidden, hidden, recurrence, 0.7),
        *offset(name, hidden, 0.0, PROBE_BIAS),
    )


def _gates(
    name: str, out: int, inputs: int, init: Uniform | Normal, gain: float = 1.0
) -> ParameterSpec:
    return ParameterSpec(
        name=name,
        shape=(out, inputs),
        axes="OI",
        tf_axes="IO",
        init=init,
        probe=probe(inputs, gain),
    )
