"""Translation by LSTMs with attention, in TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from xbench.models.layers_tf import Layers
from xbench.models.recurrent_tf import in_time, lstm, lstm_layer, lstm_step, lstm_weights
from xbench.models.seq2seq import GO, PAD, Config, log_expected

Tensor = Any


class Memory(NamedTuple):
    """What the decoder may look at: ``values`` and ``keys`` are (batch, source, hidden).

    ``mask`` (batch, source) is 0 on words, and on PAD so low that it gets no attention. ``shape``
    is its shape, which no step need ask for again.
    """

    values: Tensor
    keys: Tensor
    mask: Tensor
    shape: Tensor


class Seq2Seq(Layers):
    """Sentences (batch, source) -> translations and their log-probabilities (batch, target)."""

    def __init__(self, config: Config, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.config = config

    def encode(self, source: Tensor) -> tuple[Memory, list[Tensor], list[Tensor]]:
        """What the decoder may look at, and the last h and c (batch, hidden) of every layer."""
        real = source != PAD
        words = tf.gather(self.parameters["source_words.weight"], source)
        # Without biases, an LSTM at rest that reads zeros stays at rest.
        words *= tf.expand_dims(tf.cast(real, words.dtype), 2)
        found, h, c = lstm(self, "encoder", batch_first(words), self.config.layers)
        values = batch_first(found)
        mask = tf.where(real, tf.zeros([], values.dtype), values.dtype.min)
        keys = tf.tensordot(values, self.parameters["key.weight"], 1)
        return Memory(values, keys, mask, tf.shape(mask, tf.int64)), h, c

    def attend(self, memory: Memory, h: Tensor) -> tuple[Tensor, Tensor]:
        """The attention (batch, source) of the state ``h``, and what it sees (batch, hidden)."""
        query = tf.matmul(h, self.parameters["query.weight"])
        energies = tf.tanh(memory.keys + tf.expand_dims(query, 1))
        flat = tf.reshape(energies, [-1, self.config.hidden])
        scores = tf.matmul(flat, self.parameters["score.weight"])
        attention = tf.nn.softmax(tf.reshape(scores, memory.shape) + memory.mask)
        context = tf.matmul(tf.expand_dims(attention, 1), memory.values)
        return attention, tf.squeeze(context, axis=1)

    def decode(self, source: Tensor, kinds: int) -> tuple[Memory, list[Tensor]]:
        """What the decoder looked at, and what it said: the first ``kinds`` of its tokens, scores,
        attention and last layer, each (batch, target, ...).
        """
        memory, h, c = self.encode(source)
        words, output = (self.parameters[f"{name}.weight"] for name in ("target_words", "output"))
        # Turned once: an ONNX loop would turn it again at each step.
        output = tf.transpose(output)
        layers = [lstm_weights(self, "decoder", 0)]
        layers += [lstm_weights(self, "upper", layer) for layer in range(len(h) - 1)]

        def step(time: Tensor, token: Tensor, h: Any, c: Any, said: Any) -> Any:
            attention, context = self.attend(memory, h[0])
            x = tf.concat([tf.gather(words, token), context], axis=1)
            new_h, new_c = [], []
            for (kernel, recurrence, bias), state, cell in zip(layers, h, c, strict=True):
                gates = tf.nn.bias_add(tf.matmul(x, kernel) + tf.matmul(state, recurrence), bias)
                x, cell = lstm_step(gates, cell)
                new_h.append(x)
                new_c.append(cell)
            scores = tf.nn.log_softmax(self.biased("output", tf.matmul(x, output)))
            token = tf.argmax(scores, axis=1)
            seen = (token, tf.reduce_max(scores, axis=1), attention, x)[:kinds]
            said = [array.write(time, value) for array, value in zip(said, seen, strict=True)]
            return time + 1, token, new_h, new_c, said

        steps = tf.shape(source)[1] + self.config.headroom
        dtypes = (tf.int64, *[words.dtype] * 3)[:kinds]
        said = [tf.TensorArray(dtype, steps) for dtype in dtypes]
        token = tf.fill([tf.shape(source)[0]], go())
        start = (tf.constant(0), token, h, c, said)
        *_, said = tf.while_loop(lambda time, *_: time < steps, step, start)
        return memory, [batch_first(array.stack()) for array in said]

    def __call__(self, source: Tensor) -> tuple[Tensor, Tensor]:
        _, (tokens, scores) = self.decode(source, 2)
        return tokens, scores

    def taps(self, source: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        memory, (_, scores, attention, decoder) = self.decode(source, 4)
        return {
            "encoder": memory.values,
            "attention": attention,
            "decoder": decoder,
            "scores": scores,
        }

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        """The last layer (target * batch, hidden) while GO and the words of ``target`` are read.

        Only the first layer takes part in attention: all else is done for all words at once.
        """
        memory, h, c = self.encode(source)
        target = tf.transpose(target)
        read = tf.concat([tf.fill(tf.shape(target[:1]), go()), target[:-1]], axis=0)
        kernel, recurrence, bias = lstm_weights(self, "decoder", 0)
        of_words, of_context = tf.split(kernel, [self.config.embedding, self.config.hidden])
        words = tf.gather(self.parameters["target_words.weight"], read)
        seen = tf.tensordot(words, of_words, 1) + bias

        def step(now: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
            _, context = self.attend(memory, state)
            gates = now + tf.matmul(context, of_context) + tf.matmul(state, recurrence)
            return lstm_step(gates, cell)

        x, *_ = in_time(step, seen, h[0], c[0])
        for layer in range(self.config.layers - 1):
            weights = lstm_weights(self, "upper", layer)
            x, *_ = lstm_layer(x, *weights, start=(h[layer + 1], c[layer + 1]))
        return tf.reshape(x, [-1, self.config.hidden])

    def objective(
        self,
        source: Tensor,
        target: Tensor,
        sampled: Tensor = None,
        loss: str = "sampled-softmax",
    ) -> Tensor:
        """The mean over all words of all targets, EOS included, of -log p(word)."""
        states = self.teach(source, target)
        word = tf.reshape(tf.transpose(target), [-1])
        if loss == "softmax":
            logits = tf.matmul(states, self.parameters["output.weight"], transpose_b=True)
            logits, label = self.biased("output", logits), word
        else:
            sampled = self.sample() if sampled is None else sampled
            # The true word is the first candidate.
            logits, label = self.candidates(states, word, sampled), tf.zeros_like(word)
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        real = tf.cast(word != PAD, costs.dtype)
        return tf.reduce_sum(costs * real) / tf.reduce_sum(real)

    def candidates(self, states: Tensor, word: Tensor, sampled: Tensor) -> Tensor:
        """Logits of the true words and of the sampled ones: (words, 1 + samples).

        Less the logarithm of the expected count of each (Jean et al. 2015, section 3; Bengio &
        Senecal 2008). A sampled word that is the true one counts only once.
        """
        weight = self.parameters["output.weight"]
        expected = tf.constant(log_expected(self.config), weight.dtype)
        bias = self.parameters["output.bias"] - expected
        true = tf.reduce_sum(states * tf.gather(weight, word), axis=1) + tf.gather(bias, word)
        others = tf.matmul(states, tf.gather(weight, sampled), transpose_b=True)
        others = tf.nn.bias_add(others, tf.gather(bias, sampled))
        others = tf.where(word[:, None] == sampled, others.dtype.min, others)
        return tf.concat([true[:, None], others], axis=1)

    def sample(self) -> Tensor:
        """Ids in the distribution of ``sampled``, by the inverse of its distribution function."""
        unit = tf.random.uniform([self.config.samples])
        ids = tf.cast(tf.exp(unit * math.log(self.config.vocabulary + 1.0)), tf.int64) - 1
        return tf.clip_by_value(ids, 0, self.config.vocabulary - 1)


def go() -> Tensor:
    """The id that the decoder reads first."""
    return tf.constant(GO, tf.int64)


def batch_first(x: Tensor) -> Tensor:
    """(time, batch, ...) as (batch, time, ...), or the other way round."""
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def build(config: Config, parameters: Mapping[str, Tensor]) -> Seq2Seq:
    return Seq2Seq(config, parameters)
