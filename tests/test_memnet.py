"""The memory network: a plain computation, traps, what padding does, and the position encoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import jobs
from xbench import draws, registry, tensors
from xbench.errors import UsageError
from xbench.launch import Launcher
from xbench.models import memnet
from xbench.models.memnet import SPEC, Config

Array = np.ndarray[Any, Any]
TINY = SPEC.sizes["tiny"]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


class Truth:
    """What torch makes of one batch in float64, each phase computed once."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        case = jobs.case("memnet", "torch", precision="fp64")
        self.inputs: Path = jobs.data_file(launcher, case, count=1)
        self.batch = tensors.load_batches(self.inputs)[0]
        self.seen: dict[str, dict[str, Array]] = {}

    def of(self, phase: str) -> dict[str, Array]:
        if phase not in self.seen:
            case = jobs.case("memnet", "torch", phase, precision="fp64")
            report = jobs.observe(self.launcher, case, self.inputs, taps=phase == "infer")
            self.seen[phase] = report.tensors()
        return self.seen[phase]


@pytest.fixture(scope="module")
def truth(launcher: Launcher) -> Truth:
    return Truth(launcher)


# Phase, and what is planted in a copy of tf.py. Loss or outputs must show it.
TRAPS = {
    "position-encoding-transposed": (
        "infer",
        "positions(self.config) / scale",
        "positions(self.config).reshape(self.config.width, self.config.words).T / scale",
    ),
    "position-encoding-dropped": ("infer", "positions(self.config) / scale", "1.0"),
    "words-reversed": (
        "infer",
        "positions(self.config) / scale",
        "positions(self.config)[::-1] / scale",
    ),
    "question-read-the-other-way": (
        "infer",
        "tf.gather(self.tables[0], query) * self.weights(query)",
        "tf.gather(self.tables[0], query) * self.weights(query)[..., ::-1]",
    ),
    "time-rows-reversed": ("infer", "time[:sentences]", "time[:sentences][::-1]"),
    "time-rows-from-the-end": ("infer", "time[:sentences]", "time[-sentences:]"),
    "time-encoding-dropped": ("infer", "+ time[:sentences]", "+ 0.0 * time[:sentences]"),
    "question-not-tied": (
        "infer",
        "tf.gather(self.tables[0], query)",
        "tf.gather(self.tables[1], query)",
    ),
    "answer-not-tied": ("infer", "state, self.tables[-1]", "state, self.tables[0]"),
    "memories-not-adjacent": ("infer", "tf.matmul(memories[hop - 1],", "tf.matmul(memories[0],"),
    "read-from-the-input-memory": (
        "infer",
        "(attention, 1), memories[hop])",
        "(attention, 1), memories[hop - 1])",
    ),
    "state-not-added": ("infer", "state += tf.squeeze", "state = tf.squeeze"),
    "empty-sentences-read": ("infer", "tf.nn.softmax(scores + unseen)", "tf.nn.softmax(scores)"),
    "padding-words-counted": (
        "infer",
        "encoding * tf.expand_dims(tf.cast(ids != PAD, encoding.dtype), -1)",
        "encoding * tf.ones_like(tf.cast(ids, encoding.dtype))[..., None]",
    ),
    "loss-averaged": (
        "train",
        "tf.reduce_sum(\n            tf.nn.sparse",
        "tf.reduce_mean(\n            tf.nn.sparse",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(launcher: Launcher, truth: Truth, trap: str) -> None:
    phase, old, new = TRAPS[trap]
    right = truth.of(phase)
    with jobs.model_copy("memnet", f"zz_{trap.replace('-', '_')}", {"tf.py": (old, new)}) as name:
        case = jobs.case(name, "tf", phase, precision="fp64")
        wrong = jobs.observe(launcher, case, truth.inputs, taps=phase == "infer").tensors()
    shown = "loss" if phase == "train" else "outputs"
    assert jobs.worst_relative(wrong, right)[shown] > 1e-6


def test_an_untouched_copy_agrees(launcher: Launcher, truth: Truth) -> None:
    """So that what the traps find is what they change."""
    for phase in ("infer", "train"):
        case = jobs.case("memnet", "tf", phase, precision="fp64")
        seen = jobs.observe(launcher, case, truth.inputs, taps=phase == "infer").tensors()
        assert max(jobs.worst_relative(seen, truth.of(phase)).values()) < 1e-9


def probe() -> dict[str, Array]:
    return draws.parameters(SPEC, "tiny", "probe", 0, "float64")


def answered(story: list[list[int]], query: list[int], parameters: Mapping[str, Array]) -> Any:
    """States, attentions and logits for one story of real words only, as the paper writes them."""
    words, width = TINY.words, TINY.width

    def encoded(table: Array, sentence: list[int]) -> Array:
        total = np.zeros(width)
        for j, word in enumerate(sentence, start=1):
            for k in range(1, width + 1):
                weight = (1 - j / words) - (k / width) * (1 - 2 * j / words)
                total[k - 1] += weight * table[word, k - 1]
        return total

    a, times = (
        [parameters[name.format(level)] for level in range(TINY.hops + 1)]
        for name in ("embedding.{}.weight", "time.{}")
    )
    u = encoded(a[0], query)
    states, attentions = [u], []
    for hop in range(TINY.hops):
        m = [encoded(a[hop], sentence) + times[hop][ago] for ago, sentence in enumerate(story)]
        c = [
            encoded(a[hop + 1], sentence) + times[hop + 1][ago]
            for ago, sentence in enumerate(story)
        ]
        scores = np.exp([float(u @ row) for row in m])
        p = scores / scores.sum()
        u = u + sum(share * row for share, row in zip(p, c, strict=True))
        states.append(u)
        attentions.append(p)
    return states, attentions, a[-1] @ u


def test_the_network_is_the_papers(truth: Truth) -> None:
    seen, trained, parameters = truth.of("infer"), truth.of("train"), probe()
    total, lengths = 0.0, set()
    for row, (story, query, answer) in enumerate(
        zip(*(truth.batch[name] for name in ("story", "query", "answer")), strict=True)
    ):
        told = [[int(word) for word in sentence if word] for sentence in story if sentence.any()]
        asked = [int(word) for word in query if word]
        states, attentions, logits = answered(told, asked, parameters)
        lengths.add(len(told))
        assert np.abs(seen["taps/query"][row] - states[0]).max() < 1e-12
        for hop in range(TINY.hops):
            state, attention = (seen[f"taps/hop{hop + 1}.{x}"][row] for x in ("state", "attention"))
            assert np.abs(state - states[hop + 1]).max() < 1e-12
            assert np.abs(attention[: len(told)] - attentions[hop]).max() < 1e-12
            assert not attention[len(told) :].any(), "empty sentences are not read"
        assert np.abs(seen["outputs/logits"][row] - logits).max() < 1e-12
        total += float(np.log(np.exp(logits).sum()) - logits[answer])
    assert float(trained["loss/0"]) == pytest.approx(total, rel=1e-12)
    assert len(lengths) > 2
    assert min(lengths) < TINY.sentences, "there is padding to be counted for nothing"


def test_attention_of_the_probe_is_neither_even_nor_one_hot(truth: Truth) -> None:
    seen = truth.of("infer")
    for hop in range(1, TINY.hops + 1):
        largest = seen[f"taps/hop{hop}.attention"].max(axis=1)
        told = truth.batch["story"].any(axis=2).sum(axis=1)
        assert (largest < 0.999).all()
        assert np.median(largest * told) > 1.3


def test_padding_learns_nothing(truth: Truth) -> None:
    """Row 0 is no word: only as a possible answer, in the last table, does it get a gradient."""
    seen = truth.of("train")
    told = int(truth.batch["story"].any(axis=2).sum(axis=1).max())
    for level in range(TINY.hops + 1):
        words, times = (
            seen[f"gradients/0/{name}"] for name in (f"embedding.{level}.weight", f"time.{level}")
        )
        assert words[0].any() == (level == TINY.hops)
        assert times[:told].any(axis=1).all()
        assert not times[told:].any(), "rows of time that no sentence reaches"


def test_the_position_encoding_by_hand() -> None:
    """Two words of two units: l = 1/2, 1/2 for the first word and 1/2, 1 for the second."""
    config = Config(width=2, memory=1, sentences=1, words=2)
    np.testing.assert_array_equal(memnet.positions(config) / 4, [[0.5, 0.5], [0.5, 1.0]])


@pytest.mark.parametrize("size", SPEC.sizes)
def test_the_position_encoding_is_the_papers(size: str) -> None:
    config = SPEC.sizes[size]
    found = memnet.positions(config)
    assert found.shape == (config.words, config.width)
    for j in range(1, config.words + 1):
        for k in range(1, config.width + 1):
            expected = (1 - j / config.words) - (k / config.width) * (1 - 2 * j / config.words)
            scaled = found[j - 1, k - 1] / (config.words * config.width)
            assert scaled == pytest.approx(expected, abs=1e-15)


def test_more_sentences_than_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="13 sentences do not fit a memory of 12"):
        Config(width=8, memory=12, sentences=13)


def test_sizes_of_the_sources() -> None:
    full, babi = SPEC.sizes["full"], SPEC.sizes["babi"]
    assert (full.hops, full.width, full.memory, full.sentences, full.words) == (3, 20, 50, 10, 6)
    assert (babi.hops, babi.width, babi.memory, babi.sentences) == (3, 50, 50, 50)
    assert SPEC.clip is not None
    assert SPEC.clip.per_tensor


def test_baseline_by_hand() -> None:
    """Of four answers, one comes three times: 3 log(4/3) + log 4, batch by batch."""
    data = registry.model_part("memnet", "data")
    batches = [{"answer": np.array([5, 5, 2])}, {"answer": np.array([5])}]
    found = data.baseline(batches, "cross-entropy-sum", TINY)
    assert found == pytest.approx([2 * np.log(4 / 3) + np.log(4), np.log(4 / 3)])
    with pytest.raises(UsageError, match="unknown loss 'mse'"):
        data.baseline(batches, "mse", TINY)
