"""AlexNet in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.alexnet import GROUPS, KEEP, PAD, STRIDE, Config
from xbench.models.layers_tf import (
    Layers,
    cross_entropy,
    dropout,
    flatten,
    local_response_norm,
    max_pool,
)

Tensor = Any


def pool(x: Tensor) -> Tensor:
    """Windows that overlap (section 3.4)."""
    return max_pool(x, size=3, stride=2)


class AlexNet(Layers):
    """Pictures (batch, side, side, 3) -> logits (batch, classes)."""

    def activated(self, name: str, x: Tensor, *, stride: int = 1, training: bool) -> Tensor:
        """A convolution, in groups where the paper has them, after its ReLU.

        One operator does all groups, but has no gradient on the CPU: there, one per group.
        """
        full, pad = f"features.{name}", PAD[name]
        groups = GROUPS[name] if training else 1
        if groups == 1:
            return tf.nn.relu(self.conv(full, x, stride=stride, pad=pad))
        kernels = tf.split(self.parameters[f"{full}.weight"], groups, axis=-1)
        parts = [
            tf.nn.conv2d(part, kernel, stride, "SAME")
            for part, kernel in zip(tf.split(x, groups, axis=-1), kernels, strict=True)
        ]
        return tf.nn.relu(self.biased(full, tf.concat(parts, axis=-1)))

    def features(self, image: Tensor, *, training: bool) -> dict[str, Tensor]:
        """Activations up to the last pool, in order."""
        seen = {}
        x = seen["conv1"] = self.activated("conv1", image, stride=STRIDE, training=training)
        x = seen["norm1"] = local_response_norm(x)
        x = seen["pool1"] = pool(x)
        x = seen["conv2"] = self.activated("conv2", x, training=training)
        x = seen["norm2"] = local_response_norm(x)
        x = seen["pool2"] = pool(x)
        x = seen["conv3"] = self.activated("conv3", x, training=training)
        x = seen["conv4"] = self.activated("conv4", x, training=training)
        x = seen["conv5"] = self.activated("conv5", x, training=training)
        seen["pool5"] = pool(x)
        return seen

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """Activations by their names in ``SPEC.taps``."""
        seen = self.features(image, training=False)
        seen["fc6"] = tf.nn.relu(self.dense("fc6", flatten(seen["pool5"])))
        seen["fc7"] = tf.nn.relu(self.dense("fc7", seen["fc6"]))
        return seen

    def __call__(self, image: Tensor) -> Tensor:
        return self.dense("fc8", self.taps(image)["fc7"])

    def objective(
        self,
        image: Tensor,
        label: Tensor,
        dropout6: Tensor | None = None,
        dropout7: Tensor | None = None,
        *,
        loss: str,
    ) -> Tensor:
        """Softmax cross-entropy, with dropout in both hidden layers."""
        x = flatten(self.features(image, training=True)["pool5"])
        x = dropout(tf.nn.relu(self.dense("fc6", x)), KEEP, dropout6)
        x = dropout(tf.nn.relu(self.dense("fc7", x)), KEEP, dropout7)
        return cross_entropy(self.dense("fc8", x), label)


def build(config: Config, parameters: Mapping[str, Tensor]) -> AlexNet:
    return AlexNet(parameters)
