"""Are speech and seq2seq as quick in TensorFlow as what one would write first in Keras?

    .venv/bin/python -m benchmarks.recurrent_tf [--size small] [--rounds 40]

Theirs is ``Bidirectional(SimpleRNN)`` (which cannot clip), and ``LSTM`` with ``LSTMCell``, all
under tf.function. Both sides have the same parameters, inputs, loss and optimizer and are run in
one process, in turn. Each pair is also held to compute the same, before anything is trained and
where no unit reaches the clip.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from benchmarks.known_models import LIMIT, Body, compared
from xbench import draws, environment, registry
from xbench.models.recurrent_tf import clipped
from xbench.models.seq2seq import GO, PAD
from xbench.models.seq2seq import tf as seq2seq
from xbench.models.speech import ALPHABET, BOUND, RECURRENT
from xbench.models.speech import tf as speech
from xbench.runners import tf_optimizers
from xbench.spec import ModelSpec

Tensor = Any


class Speech(speech.DeepSpeech):
    """Deep Speech of Keras layers."""

    def __init__(self, config: Any, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(config, parameters)
        hidden = config.hidden

        def values(*names: str) -> list[Any]:
            return [parameters[name].numpy() for name in names]

        self.parts: dict[str, Any] = {}
        for name, inputs in {**config.layers, "output": hidden}.items():
            if name == RECURRENT:
                rnn = keras.layers.SimpleRNN(hidden, activation="relu", return_sequences=True)
                layer = keras.layers.Bidirectional(rnn, merge_mode="sum")
                layer.build((None, None, inputs))
                for way, one in (("", layer.forward_layer), ("_reverse", layer.backward_layer)):
                    names = f"{name}.weight_ih", f"{name}.weight_hh{way}", f"{name}.bias"
                    one.set_weights(values(*names))
            else:
                last = name == "output"
                activation = None if last else lambda x: clipped(x, BOUND)
                width = len(ALPHABET) if last else hidden
                layer = keras.layers.Dense(width, activation=activation)
                layer.build((None, None, inputs))
                layer.set_weights(values(f"{name}.weight", f"{name}.bias"))
            self.parts[name] = layer
        layers = self.parts.values()
        self.trained = [v.value for layer in layers for v in layer.trainable_weights]

    def __call__(self, features: Tensor) -> Tensor:
        time, context = tf.shape(features)[1], self.config.context
        padded = tf.pad(features, [[0, 0], [context, context], [0, 0]])
        x = tf.concat([padded[:, k : k + time] for k in range(2 * context + 1)], axis=2)
        x = tf.ensure_shape(x, [None, None, self.config.window])
        for layer in self.parts.values():
            x = layer(x)
        return x

    def logits(self, features: Tensor) -> Tensor:
        return batch_first(self(features))


class Seq2Seq(seq2seq.Seq2Seq):
    """Translation by ``keras.layers.LSTM`` and cells, word by word, in training too."""

    def __init__(self, config: Any, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(config, parameters)
        hidden, widths = config.hidden, [config.embedding, *[config.hidden] * (config.layers - 1)]
        self.encoder, self.cells = [], []
        for number, width in enumerate(widths):
            layer = keras.layers.LSTM(
                hidden, return_sequences=True, return_state=True, use_bias=False
            )
            layer.build((None, None, width))
            names = [f"encoder.weight_{part}_l{number}" for part in ("ih", "hh")]
            layer.set_weights([parameters[name].numpy() for name in names])
            self.encoder.append(layer)
            name, place = ("upper", number - 1) if number else ("decoder", 0)
            cell = keras.layers.LSTMCell(hidden)
            cell.build((None, hidden if number else config.embedding + hidden))
            kernel, recurrence, *biases = (
                parameters[f"{name}.{part}_l{place}"].numpy()
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            cell.set_weights([kernel, recurrence, biases[0] + biases[1]])
            self.cells.append(cell)
        own = [layer.trainable_weights for layer in (*self.encoder, *self.cells)]
        self.trained = [variable.value for weights in own for variable in weights] + [
            variable
            for name, variable in parameters.items()
            if name.partition(".")[0] not in ("encoder", "decoder", "upper")
        ]

    def encode(self, source: Tensor) -> Any:
        real = source != PAD
        x = tf.gather(self.parameters["source_words.weight"], source)
        x *= tf.cast(real, x.dtype)[..., None]
        h, c = [], []
        for layer in self.encoder:
            x, state, cell = layer(x)
            h.append(state)
            c.append(cell)
        mask = tf.where(real, 0.0, tf.float32.min)
        keys = tf.tensordot(x, self.parameters["key.weight"], 1)
        return seq2seq.Memory(x, keys, mask, tf.shape(mask, tf.int64)), h, c

    def word(self, memory: Any, embedded: Tensor, h: list[Tensor], c: list[Tensor]) -> Any:
        """Every layer's h and c after one word more."""
        query = tf.matmul(h[0], self.parameters["query.weight"])
        energies = tf.tanh(memory.keys + query[:, None])
        scores = tf.tensordot(energies, self.parameters["score.weight"], 1)[..., 0]
        attention = tf.nn.softmax(scores + memory.mask)
        x = tf.concat([embedded, tf.matmul(attention[:, None], memory.values)[:, 0]], axis=1)
        new_h, new_c = [], []
        for cell, *state in zip(self.cells, h, c, strict=True):
            x, (one, other) = cell(x, state)
            new_h.append(one)
            new_c.append(other)
        return new_h, new_c

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        memory, h, c = self.encode(source)
        first = tf.fill([tf.shape(target)[0], 1], tf.constant(GO, tf.int64))
        read = tf.transpose(tf.concat([first, target[:, :-1]], axis=1))
        embedded = tf.gather(self.parameters["target_words.weight"], read)
        states, _ = tf.scan(lambda state, now: self.word(memory, now, *state), embedded, (h, c))
        return tf.reshape(states[-1], [-1, self.config.hidden])

    def __call__(self, source: Tensor) -> tuple[Tensor, Tensor]:
        memory, h, c = self.encode(source)
        table, output = (self.parameters[f"{name}.weight"] for name in ("target_words", "output"))
        steps = tf.shape(source)[1] + self.config.headroom

        def body(time: Tensor, token: Tensor, h: Any, c: Any, tokens: Any, scores: Any) -> Any:
            h, c = self.word(memory, tf.gather(table, token), h, c)
            logits = tf.matmul(h[-1], output, transpose_b=True) + self.parameters["output.bias"]
            found = tf.nn.log_softmax(logits)
            token = tf.argmax(found, axis=1)
            best = tf.reduce_max(found, axis=1)
            return time + 1, token, h, c, tokens.write(time, token), scores.write(time, best)

        token = tf.fill([tf.shape(source)[0]], tf.constant(GO, tf.int64))
        arrays = [tf.TensorArray(dtype, steps) for dtype in (tf.int64, tf.float32)]
        *_, tokens, scores = tf.while_loop(
            lambda time, *_: time < steps, body, (0, token, h, c, *arrays)
        )
        return batch_first(tokens.stack()), batch_first(scores.stack())


def batch_first(x: Tensor) -> Tensor:
    """(time, batch, ...) from (batch, time, ...), and back."""
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


PAIRS = {"speech": (speech.DeepSpeech, Speech), "seq2seq": (seq2seq.Seq2Seq, Seq2Seq)}


def bodies(spec: ModelSpec, model: Any, trained: list[Any], given: list[Tensor]) -> dict[str, Body]:
    """Inference and a training step, each under tf.function."""
    loss = spec.native_losses.get(spec.losses[0], spec.losses[0])
    optimizer = tf_optimizers.make(spec.optimizer, trained)
    count = len(spec.inputs(model.config))

    def train(*arguments: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            found = model.objective(*arguments, loss=loss)
        gradients = [tf.convert_to_tensor(one) for one in tape.gradient(found, trained)]
        if spec.clip is not None:
            gradients = tf_optimizers.clipped(spec.clip, gradients)
        optimizer.apply(gradients)
        return found

    step = tf.function(train, autograph=False)
    forward = tf.function(model.__call__, autograph=False)
    return {"infer": lambda: forward(*given[:count]), "train": lambda: step(*given)}


def main() -> int:
    """Print the ratios; 1 where one is beyond the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(environment.usable_cpus())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    beyond = False
    for name, (ours, theirs) in PAIRS.items():
        spec = registry.model(name)
        config, batch = spec.sizes[options.size], spec.batch[options.size]
        load = registry.model_part(name, "data").load
        (found,) = load(config, batch=batch, count=1, seed=0, source=None).inputs
        (drawn,) = draws.steps(spec, config, batch=batch, count=1, seed=0)
        given = [tf.constant(value) for value in (found | drawn).values()]
        specs = {item.name: item for item in spec.parameters(config)}
        values = draws.parameters(spec, options.size, "init", 0)
        sides = []
        for kind in (ours, theirs):
            variables = {
                key: tf.Variable(np.ascontiguousarray(specs[key].to_tf(value)))
                for key, value in values.items()
            }
            model = kind(config, variables)
            trained = getattr(model, "trained", list(variables.values()))
            sides.append(bodies(spec, model, trained, given))
        for phase in ("infer", "train"):
            one, other = (side[phase] for side in sides)
            for a, b in zip(tf.nest.flatten(one()), tf.nest.flatten(other()), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
            ratio, seconds = compared(one, other, options.rounds)
            beyond = beyond or ratio > LIMIT
            print(
                f"tf {name} {options.size}, {phase}: {ratio:.3f} of their time, median of "
                f"{options.rounds} rounds; ours {seconds * 1e3:.1f} ms",
                flush=True,
            )
    print(f"claim: at most {LIMIT}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
