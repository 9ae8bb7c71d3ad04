"""The plain autoencoder in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.autoencoder import Config
from xbench.models.layers_tf import Layers

Tensor = Any


class Autoencoder(Layers):
    """Images (batch, pixels) in [0, 1] -> their reconstruction from a narrow code."""

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config

    def __call__(self, image: Tensor) -> Tensor:
        return self.taps(image)["reconstruction"]

    def objective(self, image: Tensor, loss: str) -> Tensor:
        """The mean squared error over all pixels of all images."""
        return tf.reduce_mean(tf.math.squared_difference(self(image), image))

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """Every layer's output by its name in ``SPEC.taps``."""
        x, found = image, {}
        for name in self.config.hidden:
            found[name] = x = tf.nn.relu(self.dense(name, x))
        found["reconstruction"] = tf.sigmoid(self.dense("pixels", x))
        return found


def build(config: Config, parameters: Mapping[str, Tensor]) -> Autoencoder:
    return Autoencoder(config, parameters)
