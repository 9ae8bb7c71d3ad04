"""The deep Q-network in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.deepq import DELTA, GAMMA, TARGET, Config
from xbench.models.layers_tf import Layers, exporting, flatten

Tensor = Any


class DeepQ(Layers):
    """Screens (batch, side, side, history) -> the value of each action (batch, actions)."""

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config

    def taps(self, state: Tensor, prefix: str = "") -> dict[str, Tensor]:
        """Every layer but the last, after its ReLU, of the network that ``prefix`` names."""
        seen = {}
        x = state
        for c in self.config.plan():
            conv = self.conv_in_rows if exporting() and x is state else self.conv
            seen[c.name] = x = tf.nn.relu(conv(prefix + c.name, x, stride=c.stride))
        seen["fc4"] = tf.nn.relu(self.dense(f"{prefix}fc4", flatten(x)))
        return seen

    def conv_in_rows(self, name: str, x: Tensor, *, stride: int) -> Tensor:
        """``conv`` without padding, where the channels of a row are one after the other in it.

        For exports: ONNX has convolutions of channels first only, and a picture of one channel is
        that already, so that the screens need no Transpose, a sixth of ONNX Runtime's time at
        ``tiny``. TensorFlow's gradient of it takes twice as long as that of ``conv``.
        """
        kernel = self.parameters[f"{name}.weight"]
        rows, columns, inputs, outputs = kernel.shape
        x = tf.reshape(x, [-1, x.shape[1], x.shape[2] * inputs, 1])
        kernel = tf.reshape(kernel, [rows, columns * inputs, 1, outputs])
        return self.biased(name, tf.nn.conv2d(x, kernel, [stride, stride * inputs], "VALID"))

    def __call__(self, state: Tensor, prefix: str = "") -> Tensor:
        return self.dense(f"{prefix}fc5", self.taps(state, prefix)["fc4"])

    def objective(
        self,
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        next_state: Tensor,
        done: Tensor,
        loss: str,
    ) -> Tensor:
        """The mean Huber loss of values against rewards and the best that is to follow."""
        values = self(state)
        chosen = tf.one_hot(action, self.config.actions, dtype=values.dtype)
        best = tf.stop_gradient(tf.reduce_max(self(next_state, TARGET), axis=1))
        goal = reward + GAMMA * (1.0 - done) * best
        return huber(tf.reduce_sum(values * chosen, axis=1) - goal)


def huber(error: Tensor) -> Tensor:
    """The mean of e^2 / 2 up to |e| = DELTA, and of the tangent beyond (Huber 1964)."""
    size = tf.abs(error)
    line = DELTA * (size - 0.5 * DELTA)
    return tf.reduce_mean(tf.where(size <= DELTA, 0.5 * tf.square(error), line))


def build(config: Config, parameters: Mapping[str, Tensor]) -> DeepQ:
    return DeepQ(config, parameters)
