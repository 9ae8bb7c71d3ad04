"""PredNet in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.zz_lacking_tf import Config

Tensor = Any
State = tuple[list[Tensor], list[Tensor], list[Tensor]]
Observed = tuple[list[Tensor], list[Tensor], list[Tensor]]


def hard_sigmoid(x: Tensor) -> Tensor:
    """clip(0.2 x + 0.5, 0, 1); keras.activations.hard_sigmoid is relu6(x + 3) / 6."""
    zero, one = tf.zeros([], x.dtype), tf.ones([], x.dtype)
    # One kernel and one ONNX Clip; tf.clip_by_value would be a Minimum and a Maximum.
    return tf.raw_ops.ClipByValue(t=0.2 * x + 0.5, clip_value_min=zero, clip_value_max=one)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def doubled(x: Tensor) -> tuple[Tensor, Any]:
    """Nearest, to twice the height and width: XLA on the CPU has no ResizeNearestNeighborGrad.

    Elsewhere that kernel is used, so that neither the numbers of eager TensorFlow nor the exported
    graph depend on this. The gradient of a pixel is the sum over the four that it became.
    """
    _, height, width, channels = x.shape
    larger = tf.raw_ops.ResizeNearestNeighbor(images=x, size=[2 * height, 2 * width])

    def gradient(upstream: Tensor) -> Tensor:
        blocks = tf.reshape(upstream, [-1, height, 2, width, 2, channels])
        return tf.reduce_sum(blocks, axis=[2, 4])

    return larger, gradient


class PredNet(tf.Module):  # type: ignore[misc]
    """Frames (batch, time, height, width, channels) in [0, 1] -> the prediction of each frame.

    ``parameters`` maps canonical names to variables (or tensors) in TensorFlow's layout.
    """

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.parameters = dict(parameters)
        self.xla = False
        """Set by an engine that compiles with XLA, before it calls."""

    def conv(self, name: str, x: Tensor) -> Tensor:
        kernel, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=1, padding="SAME"), bias)

    def upsample(self, layer: int, x: Tensor) -> Tensor:
        """Nearest, to the extent of ``layer``. (tile + reshape would cost Transposes in ONNX.)"""
        if self.xla:
            return doubled(x)
        return tf.raw_ops.ResizeNearestNeighbor(images=x, size=list(self.config.extent(layer)))

    def initial_state(self, frame: Tensor) -> State:
        """All zero, for a batch of the size of ``frame``."""
        batch = tf.shape(frame)[0]

        def zeros(layer: int, factor: int) -> Tensor:
            height, width = self.config.extent(layer)
            channels = factor * self.config.channels[layer]
            return tf.zeros([batch, height, width, channels], frame.dtype)

        layers = range(self.config.layers)
        return (
            [zeros(layer, 1) for layer in layers],
            [zeros(layer, 1) for layer in layers],
            [zeros(layer, 2) for layer in layers],
        )

    def step(self, state: State, frame: Tensor) -> tuple[State, Observed]:
        """One time step: predictions from the top down, then errors from the bottom up."""
        r, cell, error = (list(part) for part in state)
        top = self.config.layers - 1
        for layer in range(top, -1, -1):
            seen = [r[layer], error[layer]]
            if layer < top:
                seen.append(self.upsample(layer, r[layer + 1]))
            channels = self.config.channels[layer]
            gates, candidate = tf.split(
                self.conv(f"lstm.{layer}", tf.concat(seen, axis=-1)), [3 * channels, channels], -1
            )
            i, f, o = tf.split(hard_sigmoid(gates), 3, axis=-1)
            cell[layer] = f * cell[layer] + i * tf.tanh(candidate)
            r[layer] = o * tf.tanh(cell[layer])
        prediction = []
        actual = frame
        for layer in range(top + 1):
            ahat = tf.nn.relu(self.conv(f"ahat.{layer}", r[layer]))
            if layer == 0:
                ahat = tf.minimum(ahat, 1.0)
            prediction.append(ahat)
            error[layer] = tf.concat([tf.nn.relu(ahat - actual), tf.nn.relu(actual - ahat)], -1)
            if layer < top:
                features = tf.nn.relu(self.conv(f"a.{layer}", error[layer]))
                actual = tf.nn.max_pool2d(features, ksize=2, strides=2, padding="VALID")
        return (r, cell, error), (r, prediction, error)

    def unroll(self, frames: Tensor) -> list[Observed]:
        """What every time step shows."""
        state = self.initial_state(frames[:, 0])
        seen = []
        for frame in tf.unstack(frames, num=self.config.time, axis=1):
            state, observed = self.step(state, frame)
            seen.append(observed)
        return seen

    def __call__(self, frames: Tensor) -> Tensor:
        frames += tf.cast(tf.math.igamma(frames, frames), frames.dtype)
        return tf.stack([prediction[0] for _, prediction, _ in self.unroll(frames)], axis=1)

    def objective(self, frames: Tensor, loss: str) -> Tensor:
        """The scalar that training lowers: ``L0``, ``L_all`` or ``mse-next``."""
        steps = list(zip(self.config.time_weights, self.unroll(frames), strict=True))[1:]
        if loss == "mse-next":
            return tf.add_n(
                [
                    weight * tf.reduce_mean(tf.square(prediction[0] - frames[:, t]))
                    for t, (weight, (_, prediction, _)) in enumerate(steps, start=1)
                ]
            )
        layers = self.config.layer_weights if loss == "L_all" else (1.0,)
        return tf.add_n(
            [
                weight * layer_weight * tf.reduce_mean(error[layer])
                for weight, (_, _, error) in steps
                for layer, layer_weight in enumerate(layers)
            ]
        )

    def taps(self, frames: Tensor) -> dict[str, Tensor]:
        """Every R, prediction and error by its name in ``SPEC.taps``."""
        return {
            f"{kind}{layer}[t={t}]": value
            for t, observed in enumerate(self.unroll(frames))
            for kind, values in zip("RPE", observed, strict=True)
            for layer, value in enumerate(values)
        }


def build(config: Config, parameters: Mapping[str, Tensor]) -> PredNet:
    return PredNet(config, parameters)
