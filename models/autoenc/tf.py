"""The variational autoencoder in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.autoenc import Config
from xbench.models.layers_tf import Layers

Tensor = Any


class VariationalAutoencoder(Layers):
    """Images (batch, pixels) in [0, 1] -> p(pixel = 1) where z is the mean of q(z | image)."""

    def encode(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden layer, and mean and log variance of q(z | image)."""
        hidden = tf.tanh(self.dense("encoder", image))
        mu, logvar = tf.split(self.dense("latent", hidden), 2, axis=1)
        return hidden, mu, logvar

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden layer, and the logits of p(pixel = 1 | z)."""
        hidden = tf.tanh(self.dense("decoder", z))
        return hidden, self.dense("pixels", hidden)

    def __call__(self, image: Tensor) -> Tensor:
        return self.taps(image)["reconstruction"]

    def objective(self, image: Tensor, noise: Tensor = None, loss: str = "elbo") -> Tensor:
        """-ELBO: of each image all pixels' cross-entropy and KL(q || N(0, 1)); their mean."""
        _, mu, logvar = self.encode(image)
        if noise is None:
            noise = tf.random.normal(tf.shape(mu), dtype=mu.dtype)
        _, logits = self.decode(mu + tf.exp(0.5 * logvar) * noise)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=image, logits=logits)
        divergence = 0.5 * (tf.square(mu) + tf.exp(logvar) - 1.0 - logvar)
        return tf.reduce_mean(tf.reduce_sum(entropy, axis=1) + tf.reduce_sum(divergence, axis=1))

    def taps(self, image: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        encoder, mu, logvar = self.encode(image)
        decoder, logits = self.decode(mu)
        return {
            "encoder": encoder,
            "mu": mu,
            "logvar": logvar,
            "decoder": decoder,
            "reconstruction": tf.sigmoid(logits),
        }


def build(config: Config, parameters: Mapping[str, Tensor]) -> VariationalAutoencoder:
    return VariationalAutoencoder(parameters)
