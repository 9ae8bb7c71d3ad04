"""Deep Speech in TensorFlow: time first inside, so that a recurrence reads what lies together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from xbench.models.layers_tf import Layers
from xbench.models.recurrent_tf import clipped, clipped_rnn
from xbench.models.speech import BLANK, BOUND, RECURRENT, Config
from xbench.models.speech.ctc_tf import ctc

Tensor = Any


class DeepSpeech(Layers):
    """Features (batch, time, features) -> logits of blank and letters (batch, time, 29)."""

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config

    def hidden(self, features: Tensor) -> dict[str, Tensor]:
        """Every layer but the last, (time * batch, hidden)."""
        found: dict[str, Tensor] = {}
        x = self.windows(features)
        for name in self.config.layers:
            if name == RECURRENT:
                x = clipped_rnn(self, name, by_frame(x, features), BOUND)
                x = tf.reshape(x, [-1, self.config.hidden])
            else:
                x = clipped(self.dense(name, x), BOUND)
            found[name] = x
        return found

    def windows(self, features: Tensor) -> Tensor:
        """Each frame with those beside it, the earliest first; beyond the ends they are zero.

        (batch, time, features) -> (time * batch, window).
        """
        time, context = tf.shape(features)[1], self.config.context
        padded = tf.pad(tf.transpose(features, [1, 0, 2]), [[context, context], [0, 0], [0, 0]])
        x = tf.concat([padded[k : k + time] for k in range(2 * context + 1)], axis=2)
        return tf.reshape(x, [-1, self.config.window])

    def logits(self, features: Tensor) -> Tensor:
        """(time, batch, 29)."""
        *_, last = self.hidden(features).values()
        return by_frame(self.dense("output", last), features)

    def __call__(self, features: Tensor) -> Tensor:
        return tf.transpose(self.logits(features), [1, 0, 2])

    def objective(
        self,
        features: Tensor,
        frames: Tensor,
        label: Tensor,
        label_length: Tensor,
        loss: str = "ctc",
    ) -> Tensor:
        """The mean over the batch of -log p(label | features), in single precision at least."""
        logits = self.logits(features)
        if logits.dtype.size < tf.float32.size:
            logits = tf.cast(logits, tf.float32)
        if loss == "ctc":
            return tf.reduce_mean(ctc(logits, frames, label, label_length))
        return tf.reduce_mean(native_ctc(logits, frames, label, label_length, xla=self.xla))

    def taps(self, features: Tensor) -> dict[str, Tensor]:
        """The landmarks by their names in ``SPEC.taps``, (batch, time, hidden)."""
        return {
            name: tf.transpose(by_frame(value, features), [1, 0, 2])
            for name, value in self.hidden(features).items()
        }


def by_frame(x: Tensor, features: Tensor) -> Tensor:
    """(time * batch, values) as (time, batch, values), for ``features`` (batch, time, features)."""
    shape = tf.shape(features)
    return tf.reshape(x, [shape[1], shape[0], x.shape[-1]])


def native_ctc(
    logits: Tensor, frames: Tensor, label: Tensor, label_length: Tensor, *, xla: bool
) -> Tensor:
    """TensorFlow's own: of sparse labels, which is several times as quick as of dense ones.

    XLA has no kernel for it, and compiles what TensorFlow has for dense labels. Neither computes
    in double, whatever it is given.
    """
    if logits.dtype == tf.float64:
        return ctc(logits, frames, label, label_length)
    if xla:
        return tf.nn.ctc_loss(label, logits, label_length, frames, blank_index=BLANK)
    letters = tf.sparse.from_dense(tf.cast(label, tf.int32))
    count = tf.cast(frames, tf.int32)
    return tf.nn.ctc_loss(letters, logits, None, count, blank_index=BLANK)


def build(config: Config, parameters: Mapping[str, Tensor]) -> DeepSpeech:
    return DeepSpeech(config, parameters)
