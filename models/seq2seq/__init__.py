"""Translation by LSTMs with attention (Sutskever et al. 2014, Bahdanau et al. 2015)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xbench.models import layers
from xbench.models.flops import dense_flops
from xbench.spec import (
    SGD,
    ClipNorm,
    DrawSpec,
    LogUniform,
    ModelSpec,
    ParameterSpec,
    TensorSpec,
    Uniform,
)

PAD = 0
"""The id that fills sentences up: no word."""
GO = 1
"""The id that the decoder reads before the first word."""
EOS = 2
"""The id that ends a translation."""
UNK = 3
"""The id of every word outside the vocabulary."""
FIRST_WORD = 4
"""The id of the most frequent word; the others follow by falling frequency."""

PROBE_ENCODER, PROBE_ATTENTION, PROBE_DECODER, PROBE_OUTPUT = 3.0, 4.0, 2.0, 6.0
"""Probe gains of what the LSTMs read, of the attention, and of the last layer: translations are no
repetitions."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters: words of each language, ``samples`` of them in the loss, and widths.

    There are ``layers`` (two at least) of LSTM on either side. Sentences have up to
    ``source_length`` words, translations, with EOS, up to ``headroom`` more.
    """

    vocabulary: int
    samples: int
    hidden: int
    layers: int
    embedding: int
    source_length: int
    headroom: int

    @property
    def target_length(self) -> int:
        """Words of a translation, with EOS: as many are decoded."""
        return self.source_length + self.headroom

    @property
    def init(self) -> Uniform:
        """Of every parameter but the output's bias.

        Sutskever et al. 2014, section 3.4, have 0.08 for 1,000 units: with fewer, sums keep their
        size.
        """
        bound = 0.08 * (1000 / self.hidden) ** 0.5
        return Uniform(-bound, bound)


def log_expected(config: Config) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The logarithm of how often each id is expected among the samples: (vocabulary,)."""
    ids = np.arange(config.vocabulary)
    probability = np.log1p(1.0 / (ids + 1.0)) / math.log(config.vocabulary + 1.0)
    found: np.ndarray[Any, np.dtype[np.float64]] = np.log(config.samples * probability)
    return found


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """All parameters, in order of computation. The encoder has no biases: see the README."""
    vocabulary, hidden, embedding = config.vocabulary, config.hidden, config.embedding
    init = config.init

    def words(name: str) -> layers.Specs:
        return layers.embedding(name, vocabulary, embedding, init, layers.probe(1, 1.0))

    def dense(name: str, out: int) -> layers.Specs:
        return layers.dense(name, out, hidden, lambda *_: init, gain=PROBE_ATTENTION, bias=None)

    rows = layers.probe(hidden, PROBE_OUTPUT)
    return (
        *words("source_words"),
        *layers.lstm(
            "encoder", hidden, embedding, config.layers, init, gain=PROBE_ENCODER, bias=False
        ),
        *dense("key", hidden),
        *words("target_words"),
        *dense("query", hidden),
        *dense("score", 1),
        *layers.lstm("decoder", hidden, embedding + hidden, 1, init, gain=PROBE_DECODER),
        *layers.lstm("upper", hidden, hidden, config.layers - 1, init, gain=PROBE_DECODER),
        *layers.embedding("output", vocabulary, hidden, init, rows),
        *layers.offset("output", vocabulary, 0.0, Uniform(-0.5, 0.5)),
    )


def sentence(name: str) -> TensorSpec:
    """Ids of ``source`` or ``target`` words."""
    return TensorSpec(name, ("batch", f"{name}_length"), dtype="int64")


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    """The sentence, its last word first, behind as many PAD as there is room."""
    return (sentence("source"),)


def targets(config: Config) -> tuple[TensorSpec, ...]:
    """The translation, EOS, and PAD."""
    return (sentence("target"),)


def draws(config: Config) -> tuple[DrawSpec, ...]:
    """The ids that the sampled softmax sets against every true one."""
    return (
        DrawSpec(
            name="sampled",
            shape=(config.samples,),
            dtype="int64",
            distribution=LogUniform(config.vocabulary),
        ),
    )


def outputs(config: Config) -> tuple[TensorSpec, ...]:
    """The translation, and the log-probability of each of its words among all words."""
    return (
        TensorSpec("tokens", ("batch", "target_length"), dtype="int64"),
        TensorSpec("scores", ("batch", "target_length")),
    )


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """What the last layer of the encoder says, where the decoder looks, and its last layer."""
    return (
        TensorSpec("encoder", ("batch", "source_length", config.hidden)),
        TensorSpec("attention", ("batch", "target_length", "source_length")),
        TensorSpec("decoder", ("batch", "target_length", config.hidden)),
        TensorSpec("scores", ("batch", "target_length")),
    )


def flops(config: Config) -> int:
    """Reading the sentence and decoding ``target_length`` words."""
    hidden, embedding = config.hidden, config.embedding
    upper = (config.layers - 1) * dense_flops(4 * hidden, 2 * hidden)
    reading = dense_flops(4 * hidden, embedding + hidden) + upper + dense_flops(hidden, hidden)
    attention = dense_flops(hidden, hidden) + 2 * dense_flops(config.source_length, hidden)
    word = (
        attention
        + dense_flops(4 * hidden, embedding + 2 * hidden)
        + upper
        + dense_flops(config.vocabulary, hidden)
    )
    return config.source_length * reading + config.target_length * word


SPEC = ModelSpec(
    name="seq2seq",
    title="Translation by LSTMs with attention",
    paper="Sutskever et al. 2014, arXiv 1409.3215; Bahdanau et al. 2015, arXiv 1409.0473",
    sizes={
        "tiny": Config(
            vocabulary=120,
            samples=16,
            hidden=32,
            layers=3,
            embedding=24,
            source_length=12,
            headroom=4,
        ),
        "small": Config(
            vocabulary=2000,
            samples=128,
            hidden=128,
            layers=3,
            embedding=128,
            source_length=20,
            headroom=6,
        ),
        "full": Config(
            vocabulary=40_000,
            samples=512,
            hidden=256,
            layers=3,
            embedding=256,
            source_length=40,
            headroom=10,
        ),
    },
    batch={"tiny": 8, "small": 32, "full": 64},
    parameters=parameters,
    inputs=inputs,
    targets=targets,
    draws=draws,
    outputs=outputs,
    taps=taps,
    losses=("sampled-softmax", "softmax"),
    optimizer=SGD(lr=0.5),
    clip=ClipNorm(5.0),
    data="English and French numbers of num2words",
    lengths=("source_length",),
    flops=flops,
)
