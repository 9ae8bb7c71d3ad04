"""Translation by LSTMs with attention, in TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from xbench.models.layers_tf import Layers
from xbench.models.recurrent_tf import lstm, lstm_layer, lstm_step, lstm_weights
from xbench.models.seq2seq import GO, PAD, Config, log_expected

Tensor = Any


class Memory(NamedTuple):
    """What the decoder may look at: ``values`` and ``keys`` are (batch, source, hidden).

    ``mask`` (batch, source) is 0 on words, and on PAD so low that it gets no attention.
    """

    values: Tensor
    keys: Tensor
    mask: Tensor


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
        words *= tf.cast(real, words.dtype)[..., None]
        found, h, c = lstm(self, "encoder", tf.transpose(words, [1, 0, 2]), self.config.layers)
        values = tf.transpose(found, [1, 0, 2])
        mask = tf.where(real, tf.zeros([], values.dtype), values.dtype.min)
        keys = tf.tensordot(values, self.parameters["key.weight"], 1)
        return Memory(values, keys, mask), h, c

    def attend(self, memory: Memory, h: Tensor) -> tuple[Tensor, Tensor]:
        """The attention (batch, source) of the state ``h``, and what it sees (batch, hidden)."""
        query = tf.matmul(h, self.parameters["query.weight"])
        energies = tf.tanh(memory.keys + query[:, None])
        scores = tf.tensordot(energies, self.parameters["score.weight"][:, 0], 1)
        attention = tf.nn.softmax(scores + memory.mask)
        return attention, tf.matmul(attention[:, None], memory.values)[:, 0]

    def decode(self, source: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the encoder says; tokens, scores, attention and the last layer at every step."""
        memory, h, c = self.encode(source)
        layers = [lstm_weights(self, "decoder", 0)]
        layers += [lstm_weights(self, "upper", k) for k in range(self.config.layers - 1)]
        output = tf.transpose(self.parameters["output.weight"])

        def step(time: Tensor, token: Tensor, h: Any, c: Any, said: Any) -> Any:
            attention, context = self.attend(memory, h[0])
            x = tf.concat([tf.gather(self.parameters["target_words.weight"], token), context], 1)
            new_h, new_c = [], []
            for (kernel, recurrence, bias), state, cell in zip(layers, h, c, strict=True):
                gates = tf.nn.bias_add(tf.matmul(x, kernel) + tf.matmul(state, recurrence), bias)
                x, cell = lstm_step(gates, cell)
                new_h.append(x)
                new_c.append(cell)
            logits = tf.nn.log_softmax(self.biased("output", tf.matmul(x, output)))
            token = tf.argmax(logits, axis=1)
            seen = (token, tf.reduce_max(logits, axis=1), attention, x)
            said = [array.write(time, x) for array, x in zip(said, seen, strict=True)]
            return time + 1, token, new_h, new_c, said

        steps = tf.shape(source)[1] + self.config.headroom
        dtypes = (tf.int64, h[0].dtype, h[0].dtype, h[0].dtype)
        arrays = [tf.TensorArray(dtype, steps) for dtype in dtypes]
        go = tf.fill([tf.shape(source)[0]], tf.constant(GO, tf.int64))
        *_, said = tf.while_loop(
            lambda time, *_: time < steps, step, (tf.constant(0), go, h, c, arrays)
        )
        tokens, scores, attention, decoder = (array.stack() for array in said)
        return memory.values, (
            tf.transpose(tokens),
            tf.transpose(scores),
            tf.transpose(attention, [1, 0, 2]),
            tf.transpose(decoder, [1, 0, 2]),
        )

    def __call__(self, source: Tensor) -> tuple[Tensor, Tensor]:
        _, (tokens, scores, *_) = self.decode(source)
        return tokens, scores

    def taps(self, source: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        encoder, (_, scores, attention, decoder) = self.decode(source)
        return {"encoder": encoder, "attention": attention, "decoder": decoder, "scores": scores}

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        """The last layer (target * batch, hidden) while GO and the words of ``target`` are read.

        Only the first layer takes part in attention: all else is done for all words at once.
        """
        memory, h, c = self.encode(source)
        read = tf.pad(tf.transpose(target)[:-1], [[1, 0], [0, 0]], constant_values=GO)
        kernel, recurrence, bias = lstm_weights(self, "decoder", 0)
        of_words, of_context = tf.split(kernel, [self.config.embedding, self.config.hidden])
        words = tf.gather(self.parameters["target_words.weight"], read)
        seen = tf.tensordot(words, of_words, 1) + bias

        def step(before: tuple[Tensor, Tensor], now: Tensor) -> tuple[Tensor, Tensor]:
            state, cell = before
            _, context = self.attend(memory, state)
            gates = now + tf.matmul(context, of_context) + tf.matmul(state, recurrence)
            return lstm_step(gates, cell)

        x, _ = tf.scan(step, seen, (h[0], c[0]))
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


def build(config: Config, parameters: Mapping[str, Tensor]) -> Seq2Seq:
    return Seq2Seq(config, parameters)
