"""Residual networks in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.layers_tf import Layers, cross_entropy, max_pool
from xbench.models.residual import Block, Config

Tensor = Any


class Residual(Layers):
    """Images (batch, side, side, 3) -> logits (batch, classes)."""

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config

    def stem(self, image: Tensor, training: bool) -> Tensor:
        x = self.conv("stem.conv", image, stride=2, pad=3)
        x = tf.nn.relu(self.batch_norm("stem.norm", x, training=training))
        return max_pool(x, size=3, stride=2, pad=1, xla=self.xla)

    def shortcut(self, block: Block, x: Tensor, training: bool) -> Tensor:
        """The identity, or a projection where the shape changes."""
        if not block.projects:
            return x
        x = self.conv(f"{block.name}.shortcut.conv", x, stride=block.stride)
        return self.batch_norm(f"{block.name}.shortcut.norm", x, training=training)

    def basic(self, block: Block, x: Tensor, training: bool) -> Tensor:
        """Two 3x3 convolutions (figure 5, left)."""
        y = self.conv(f"{block.name}.conv1", x, stride=block.stride, pad=1)
        y = tf.nn.relu(self.batch_norm(f"{block.name}.norm1", y, training=training))
        y = self.conv(f"{block.name}.conv2", y, pad=1)
        y = self.batch_norm(f"{block.name}.norm2", y, training=training)
        return tf.nn.relu(y + self.shortcut(block, x, training))

    def bottleneck(self, block: Block, x: Tensor, training: bool) -> Tensor:
        """1x1, which reduces and has the stride, 3x3, and 1x1, which restores (figure 5, right)."""
        y = self.conv(f"{block.name}.conv1", x, stride=block.stride)
        y = tf.nn.relu(self.batch_norm(f"{block.name}.norm1", y, training=training))
        y = self.conv(f"{block.name}.conv2", y, pad=1)
        y = tf.nn.relu(self.batch_norm(f"{block.name}.norm2", y, training=training))
        y = self.conv(f"{block.name}.conv3", y)
        y = self.batch_norm(f"{block.name}.norm3", y, training=training)
        return tf.nn.relu(y + self.shortcut(block, x, training))

    def taps(self, image: Tensor, training: bool = False) -> dict[str, Tensor]:
        """What leaves the stem, every block, and the average over all places."""
        x = self.stem(image, training)
        seen = {"stem": x}
        apply = self.bottleneck if self.config.bottleneck else self.basic
        for block in self.config.plan():
            seen[block.name] = x = apply(block, x, training)
        # With the axes kept, the exported graph needs no Transpose before the mean.
        seen["pooled"] = tf.squeeze(tf.reduce_mean(x, axis=[1, 2], keepdims=True), [1, 2])
        return seen

    def __call__(self, image: Tensor, training: bool = False) -> Tensor:
        return self.dense("fc", self.taps(image, training)["pooled"])

    def objective(self, image: Tensor, label: Tensor, loss: str) -> Tensor:
        """The mean cross-entropy."""
        return cross_entropy(self(image, training=True), label)


def build(config: Config, parameters: Mapping[str, Tensor]) -> Residual:
    return Residual(config, parameters)
