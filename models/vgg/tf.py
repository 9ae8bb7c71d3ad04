"""VGG-19 in TensorFlow, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models import layers_tf
from xbench.models.layers_tf import Layers, dropout, flatten
from xbench.models.vgg import GROUPS, KEEP, Config

Tensor = Any


class VGG(Layers):
    """Pictures (batch, side, side, 3) -> logits (batch, classes)."""

    def features(self, image: Tensor) -> dict[str, Tensor]:
        """Every convolution after its ReLU, and every pool, in order."""
        seen = {}
        x = image
        for group, count in enumerate(GROUPS, start=1):
            for place in range(1, count + 1):
                name = f"conv{group}_{place}"
                x = seen[name] = tf.nn.relu(self.conv(f"features.{name}", x, pad=1))
            x = seen[f"pool{group}"] = layers_tf.max_pool(x, size=2, stride=2)
        return seen

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """Activations by their names in ``SPEC.taps``."""
        seen = self.features(image)
        seen["fc6"] = tf.nn.relu(self.dense("fc6", flatten(seen[f"pool{len(GROUPS)}"])))
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
        x = flatten(self.features(image)[f"pool{len(GROUPS)}"])
        x = dropout(tf.nn.relu(self.dense("fc6", x)), KEEP, dropout6)
        x = dropout(tf.nn.relu(self.dense("fc7", x)), KEEP, dropout7)
        return layers_tf.cross_entropy(self.dense("fc8", x), label)


def build(config: Config, parameters: Mapping[str, Tensor]) -> VGG:
    return VGG(parameters)
