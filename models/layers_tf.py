"""Layers in TensorFlow, channels last, with the numbers of their PyTorch counterparts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from xbench.models import layers

Tensor = Any
_EXPORTING = ContextVar("exporting", default=False)


def exporting() -> bool:
    """Whether a graph is being traced for an exporter."""
    return _EXPORTING.get()


@contextlib.contextmanager
def export_mode() -> Iterator[None]:
    """Trace what is written otherwise for an exporter in that way."""
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)


class Layers(tf.Module):  # type: ignore[misc]
    """A model whose layers are called by the names of their parameters.

    ``parameters`` maps canonical names to variables (or tensors) in TensorFlow's layout.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.parameters = dict(parameters)
        self.xla = False
        """Set by an engine that compiles with XLA, before it calls."""

    def biased(self, name: str, x: Tensor) -> Tensor:
        """``x`` with the bias of layer ``name``, where it has one."""
        bias = self.parameters.get(f"{name}.bias")
        return x if bias is None else tf.nn.bias_add(x, bias)

    def conv(self, name: str, x: Tensor, *, stride: int = 1, pad: int = 0) -> Tensor:
        """A convolution of (batch, height, width, channels) with ``pad`` zeros on every side."""
        kernel = self.parameters[f"{name}.weight"]
        return self.biased(name, tf.nn.conv2d(x, kernel, stride, padding(kernel, stride, pad)))

    def dense(self, name: str, x: Tensor) -> Tensor:
        """A fully connected layer on (batch, inputs)."""
        return self.biased(name, tf.matmul(x, self.parameters[f"{name}.weight"]))

    def batch_norm(self, name: str, x: Tensor, *, training: bool) -> Tensor:
        """Batch normalisation of (batch, height, width, channels).

        In training by the statistics of the batch, of which the running ones take their share; the
        running variance is unbiased.
        """
        scale, shift, running_mean, running_variance = (
            self.parameters[f"{name}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        if not training:
            found = normalised(x, scale, shift, running_mean, running_variance)
            return found[0]
        y, mean, variance = normalised(x, scale, shift)
        for running, batch in ((running_mean, mean), (running_variance, variance)):
            share = layers.BATCH_NORM_MOMENTUM * (running - tf.cast(batch, running.dtype))
            running.assign_sub(share)
        return y


def padding(kernel: Tensor, stride: int, pad: int) -> str | list[list[int]]:
    """How to ask for ``pad`` zeros on every side.

    At a stride, "SAME" may pad on one side only. Where it pads on both, it is asked for by name.
    """
    if pad == 0:
        return "VALID"
    if stride == 1 and list(kernel.shape[:2]) == [2 * pad + 1] * 2:
        return "SAME"
    return [[0, 0], [pad, pad], [pad, pad], [0, 0]]


def normalised(
    x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor = None, variance: Tensor = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` normalised by a mean and variance per channel, and these; by its own if none is given.

    Its own variance is handed out unbiased. The fused kernel has no double, and its wrapper in
    ``tf.compat`` raises epsilon to 1.001e-5.
    """
    training = mean is None
    if x.dtype == tf.float64:
        unbiased = variance
        if training:
            mean = tf.reduce_mean(x, axis=[0, 1, 2])
            variance = tf.reduce_mean(tf.square(x - mean), axis=[0, 1, 2])
            count = tf.cast(tf.size(x) / tf.size(mean), x.dtype)
            unbiased = variance * count / (count - 1.0)
        factor = scale * tf.math.rsqrt(variance + layers.BATCH_NORM_EPS)
        return (x - mean) * factor + shift, mean, unbiased
    none = tf.zeros([0], tf.float32)
    y, batch_mean, batch_variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=tf.cast(scale, tf.float32),
        offset=tf.cast(shift, tf.float32),
        mean=none if training else tf.cast(mean, tf.float32),
        variance=none if training else tf.cast(variance, tf.float32),
        epsilon=layers.BATCH_NORM_EPS,
        is_training=training,
    )
    return y, batch_mean, batch_variance


def max_pool(x: Tensor, *, size: int, stride: int, pad: int = 0, xla: bool = False) -> Tensor:
    """Maxima over ``size`` x ``size``, with ``pad`` places on every side that never win.

    XLA pools without padding only: for it the places are made first.
    """
    edges = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
    if xla and pad:
        x = tf.pad(x, edges, constant_values=x.dtype.min)
    return tf.nn.max_pool2d(x, size, stride, "VALID" if xla or not pad else edges)


def local_response_norm(x: Tensor) -> Tensor:
    """``layers.LRN`` over the channels of (batch, height, width, channels).

    The sums over neighbouring channels are a 1x1 convolution by a band of ones: quicker than
    TensorFlow's own kernel, which has no double, and becomes an ONNX operator that ONNX Runtime
    runs slowly.
    """
    channels = tf.range(x.shape[-1])
    near = tf.abs(channels[:, None] - channels) <= int(layers.LRN["size"]) // 2
    band = tf.cast(near, x.dtype)[None, None]
    sums = tf.nn.conv2d(tf.square(x), band, 1, "VALID")
    root = tf.math.rsqrt(layers.LRN["k"] + layers.LRN["alpha"] * sums)
    return x * (root * tf.sqrt(root))  # the power -3/4 is two roots


def dropout(x: Tensor, keep: float, mask: Tensor | None) -> Tensor:
    """``x`` with a share of its elements zero and the others over ``keep``: by mask, or drawn."""
    return tf.nn.dropout(x, 1.0 - keep) if mask is None else x * mask


def flatten(x: Tensor) -> Tensor:
    """(batch, height, width, channels) as (batch, features), channels first as in PyTorch."""
    batch = tf.shape(x)[0]
    features = x.shape[1] * x.shape[2] * x.shape[3]
    return tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [batch, features])


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """The mean over the batch of -log softmax(logits)[label]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))
