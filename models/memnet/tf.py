"""The end-to-end memory network in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.layers_tf import Layers
from xbench.models.memnet import PAD, UNSEEN, Config, positions

Tensor = Any


class MemoryNetwork(Layers):
    """A story (batch, sentences, words), a question (batch, words) -> logits (batch, vocabulary).

    Ids of words, the latest sentence first.
    """

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config
        self.tables = [self.parameters[f"embedding.{k}.weight"] for k in range(config.hops + 1)]
        self.time = [self.parameters[f"time.{k}"] for k in range(config.hops + 1)]

    def weights(self, ids: Tensor) -> Tensor:
        """How much each word counts in each unit: the position encoding; 0 for padding."""
        scale = self.config.words * self.config.width
        encoding = tf.constant(positions(self.config) / scale, self.tables[0].dtype)
        return encoding * tf.expand_dims(tf.cast(ids != PAD, encoding.dtype), -1)

    def taps(self, story: Tensor, query: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        weights = self.weights(story)
        unseen = UNSEEN * tf.cast(tf.reduce_max(story, axis=2) == PAD, weights.dtype)
        sentences = tf.shape(story)[1]
        memories = [
            tf.reduce_sum(tf.gather(table, story) * weights, axis=2) + time[:sentences]
            for table, time in zip(self.tables, self.time, strict=True)
        ]
        state = tf.reduce_sum(tf.gather(self.tables[0], query) * self.weights(query), axis=1)
        seen = {"query": state}
        for hop in range(1, len(memories)):
            scores = tf.squeeze(tf.matmul(memories[hop - 1], tf.expand_dims(state, 2)), axis=2)
            attention = tf.nn.softmax(scores + unseen)
            state += tf.squeeze(tf.matmul(tf.expand_dims(attention, 1), memories[hop]), axis=1)
            seen |= {f"hop{hop}.attention": attention, f"hop{hop}.state": state}
        return seen

    def __call__(self, story: Tensor, query: Tensor) -> Tensor:
        *_, state = self.taps(story, query).values()
        return tf.matmul(state, self.tables[-1], transpose_b=True)

    def objective(self, story: Tensor, query: Tensor, answer: Tensor, loss: str) -> Tensor:
        """The sum over the batch of -log p(answer)."""
        logits = self(story, query)
        return tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=answer, logits=logits)
        )


def build(config: Config, parameters: Mapping[str, Tensor]) -> MemoryNetwork:
    return MemoryNetwork(config, parameters)
