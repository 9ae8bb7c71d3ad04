"""Connectionist temporal classification (Graves et al. 2006) in plain operators of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from xbench.models.speech import BLANK, NEVER

Tensor = Any


def ctc(logits: Tensor, frames: Tensor, label: Tensor, label_length: Tensor) -> Tensor:
    """-log p(label | logits) of each item, (batch,); infinite where no path spells the label.

    ``logits`` are (time, batch, letters). Of an item the first ``frames`` count, at least one, and
    the first ``label_length`` ids of its row of ``label`` (batch, most letters).

    A path goes through states: blank, letter, blank, letter, ..., blank. At every frame it stays,
    goes on by one, or by two past a blank between letters that differ. ``alpha`` holds, for each
    state, the logarithm of the sum over all paths that have come there (section 4.1, eq. 5 to 8),
    or about NEVER where there is none, which leaves every gradient a number.
    """
    log_p = tf.nn.log_softmax(logits)
    time, batch, letters = tf.shape(logits)[0], tf.shape(logits)[1], label.shape[1]
    blank = tf.fill([batch, letters, 1], tf.constant(BLANK, label.dtype))
    states = tf.reshape(tf.concat([blank, label[:, :, None]], 2), [batch, 2 * letters])
    states = tf.concat([states, blank[:, 0]], 1)
    shown = tf.gather(log_p, tf.broadcast_to(states, [time, batch, 2 * letters + 1]), batch_dims=2)
    before = tf.pad(states, [[0, 0], [2, 0]], constant_values=BLANK)[:, :-2]
    passes = (states != BLANK) & (states != before)
    passing = tf.where(passes, tf.zeros([], logits.dtype), NEVER)
    # Two states before the first: every path comes from the second of them.
    never = tf.fill([batch, 2], tf.constant(NEVER, logits.dtype))
    start = tf.pad(never[:, :1] * 0, [[0, 0], [1, 2 * letters + 1]], constant_values=NEVER)

    def step(alpha: Tensor, now: Tensor) -> Tensor:
        stay_or_go = log_add(alpha[:, 2:], alpha[:, 1:-1])
        alpha = now + log_add(stay_or_go, alpha[:, :-2] + passing)
        return tf.concat([never, alpha], axis=1)

    alphas = tf.scan(step, shown, start)
    last = tf.gather(tf.transpose(alphas, [1, 0, 2]), frames - 1, batch_dims=1)
    end = tf.gather(last, 2 * label_length + 2, batch_dims=1)
    # Of no letters this is a state before the first, where no path is.
    letter = tf.gather(last, 2 * label_length + 1, batch_dims=1)
    loss = -log_add(end, letter)
    return tf.where(loss > -0.5 * NEVER, tf.constant(float("inf"), loss.dtype), loss)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) of finite numbers."""
    larger = tf.stop_gradient(tf.maximum(a, b))
    return larger + tf.math.log(tf.exp(a - larger) + tf.exp(b - larger))
