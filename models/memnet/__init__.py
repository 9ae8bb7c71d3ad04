"""End-to-end memory network (Sukhbaatar et al. 2015, arXiv 1503.08895): answers to stories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xbench.models.flops import dense_flops
from xbench.models.layers import embedding
from xbench.spec import SGD, ClipNorm, ModelSpec, Normal, ParameterSpec, TensorSpec, Uniform

INIT = Normal(std=0.1)
"""Of every parameter (section 4.2)."""
PAD = 0
"""The id of what is no word: sentences and stories are filled up with it."""
UNSEEN = -1e4
"""Added to the score of an empty sentence: in any precision its exponential is then 0."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters: ids with ``PAD``, words a sentence and sentences a story are filled up to.

    ``memory`` is the number of sentences that have a row in the temporal encodings. Raises
    ValueError where a story has more.
    """

    width: int
    memory: int
    sentences: int = 10
    words: int = 6
    vocabulary: int = 20
    hops: int = 3

    def __post_init__(self) -> None:
        if self.sentences > self.memory:
            raise ValueError(f"{self.sentences} sentences do not fit a memory of {self.memory}")


def positions(config: Config) -> np.ndarray[Any, Any]:
    """The position encoding times words * width: whole numbers, int64 (words, width).

    Section 4.1 has l = (1 - j/J) - (k/d) (1 - 2j/J) for word j of J and unit k of d, both counted
    from 1; J is ``words`` here, for every sentence.
    """
    j = np.arange(1, config.words + 1)[:, None]
    k = np.arange(1, config.width + 1)
    return (config.words - j) * config.width - k * (config.words - 2 * j)


def probe(config: Config) -> Uniform:
    """Of every parameter: at any width, no softmax of a hop is near one-hot, and few near even.

    A score sums ``width`` products of two vectors.
    """
    bound = 1.3 * config.width**-0.25
    return Uniform(-bound, bound)


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """Embeddings of words, and of how long ago a sentence was said (``time``).

    Those called 0 are A of the first hop, and B of the question. Those called k are C of hop k and
    A of hop k + 1; the last embedding also makes the logits.
    """
    levels = range(config.hops + 1)
    words = (
        item
        for level in levels
        for item in embedding(
            f"embedding.{level}", config.vocabulary, config.width, init=INIT, probe=probe(config)
        )
    )
    times = (
        ParameterSpec(
            name=f"time.{level}",
            shape=(config.memory, config.width),
            init=INIT,
            probe=probe(config),
        )
        for level in levels
    )
    return (*words, *times)


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    """Ids of the words of a story, its latest sentence first, and of the question."""
    return (
        TensorSpec("story", ("batch", "sentences", config.words), dtype="int64"),
        TensorSpec("query", ("batch", config.words), dtype="int64"),
    )


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """The question; then per hop how much of each sentence is read, and the state after it."""

    def hops() -> Iterator[TensorSpec]:
        yield TensorSpec("query", ("batch", config.width))
        for hop in range(1, config.hops + 1):
            yield TensorSpec(f"hop{hop}.attention", ("batch", "sentences"))
            yield TensorSpec(f"hop{hop}.state", ("batch", config.width))

    return tuple(hops())


def flops(config: Config) -> int:
    """Scores and what is read, in each hop, and the logits.

    The weighted sums over words are no matrix products.
    """
    hop = 2 * dense_flops(config.sentences, config.width)
    return config.hops * hop + dense_flops(config.vocabulary, config.width)


SPEC = ModelSpec(
    name="memnet",
    title="End-to-end memory network: answers to short stories",
    paper="Sukhbaatar et al. 2015, arXiv 1503.08895",
    sizes={
        "tiny": Config(width=8, memory=12),
        "small": Config(width=16, memory=20),
        "full": Config(width=20, memory=50),
        "babi": Config(width=50, memory=50, sentences=50, words=12, vocabulary=200),
    },
    batch={"tiny": 8, "small": 32, "full": 32, "babi": 32},
    parameters=parameters,
    inputs=inputs,
    targets=lambda config: (TensorSpec("answer", ("batch",), dtype="int64"),),
    outputs=lambda config: (TensorSpec("logits", ("batch", config.vocabulary)),),
    taps=taps,
    losses=("cross-entropy-sum",),
    optimizer=SGD(lr=0.01),
    clip=ClipNorm(40.0, per_tensor=True),
    lengths=("sentences",),
    data="stories generated to the grammar of bAbI task 1",
    flops=flops,
)
