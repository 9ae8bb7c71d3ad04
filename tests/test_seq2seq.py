"""Translation: a plain computation, traps, what padding does, the sampled softmax.

Its exports are looked at in tests/test_end_to_end.py, where they are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tests import jobs
from xbench import draws, tensors
from xbench.launch import Launcher
from xbench.models import seq2seq
from xbench.models.seq2seq import EOS, GO, PAD, SPEC, Config

Array = np.ndarray[Any, Any]
Batch = Mapping[str, Array]
TINY: Config = SPEC.sizes["tiny"]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def batch(launcher: Launcher) -> Batch:
    """Real sentences; among the sampled ids some that are targets, and one of these twice."""
    path = jobs.data_file(launcher, jobs.case("seq2seq", "torch"), count=1)
    found = tensors.load_batches(path)[0]
    target = found["target"]
    sampled = found["sampled"].copy()
    sampled[:4] = [EOS, target[0, 0], target[1, 1], target[1, 1]]
    return {**found, "sampled": sampled}


def observed(launcher: Launcher, batch: Batch, name: str = "seq2seq", **fields: Any) -> Batch:
    """What torch, or another engine, makes of a batch from the probe parameters, in float64."""
    path = launcher.folder() / "inputs.npz"
    tensors.save_batches(path, [batch])
    engine, phase = fields.pop("engine", "torch"), fields.pop("phase", "infer")
    case = jobs.case(name, engine, phase, precision="fp64", threads=1, **fields)
    return jobs.observe(launcher, case, path, taps=phase == "infer").tensors()


# -- a plain computation -----------------------------------------------------------------------


class Plain:
    """The model in numpy, one sentence and one step at a time."""

    def __init__(self) -> None:
        self.p = draws.parameters(SPEC, "tiny", "probe", 0, "float64")

    def cell(self, name: str, layer: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """The next h and c of one layer."""
        gates: Array = self.p[f"{name}.weight_ih_l{layer}"] @ x
        gates += self.p[f"{name}.weight_hh_l{layer}"] @ h
        for part in ("bias_ih", "bias_hh"):
            gates += self.p.get(f"{name}.{part}_l{layer}", 0.0)
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def encode(self, source: Array) -> tuple[Array, list[Array], list[Array]]:
        """Outputs for the words of a sentence, without its padding; last h and c."""
        h = [np.zeros(TINY.hidden) for _ in range(TINY.layers)]
        c = [np.zeros(TINY.hidden) for _ in range(TINY.layers)]
        outputs = []
        for word in source[source != PAD]:
            x = self.p["source_words.weight"][word]
            for layer in range(TINY.layers):
                x, c[layer] = self.cell("encoder", layer, x, h[layer], c[layer])
                h[layer] = x
            outputs.append(x)
        return np.array(outputs), h, c

    def step(self, values: Array, word: int, h: list[Array], c: list[Array]) -> Array:
        """The attention after one more ``word``; ``h`` and ``c`` become the next."""
        energies = np.tanh(values @ self.p["key.weight"].T + self.p["query.weight"] @ h[0])
        attention: Array = softmax(energies @ self.p["score.weight"][0])
        x = np.concatenate([self.p["target_words.weight"][word], attention @ values])
        for layer in range(TINY.layers):
            name, number = ("upper", layer - 1) if layer else ("decoder", 0)
            x, c[layer] = self.cell(name, number, x, h[layer], c[layer])
            h[layer] = x
        return attention

    def logits(self, state: Array) -> Array:
        found: Array = self.p["output.weight"] @ state + self.p["output.bias"]
        return found

    def translate(self, source: Array, steps: int) -> tuple[list[int], list[float], Array]:
        """Words, their log-probabilities and the attention at each step."""
        values, h, c = self.encode(source)
        tokens, scores, attentions = [GO], [], []
        for _ in range(steps):
            attentions.append(self.step(values, tokens[-1], h, c))
            probability = softmax(self.logits(h[-1]))
            tokens.append(int(probability.argmax()))
            scores.append(float(np.log(probability.max())))
        return tokens[1:], scores, np.array(attentions)

    def loss(self, batch: Batch, loss: str) -> float:
        """The mean cost of every word and of every EOS, each computed alone."""
        costs = []
        for source, target in zip(batch["source"], batch["target"], strict=True):
            values, h, c = self.encode(source)
            before = GO
            for word in target[target != PAD]:
                self.step(values, before, h, c)
                logits = self.logits(h[-1])
                if loss == "softmax":
                    costs.append(-np.log(softmax(logits)[word]))
                else:
                    costs.append(self.sampled(logits, int(word), batch["sampled"]))
                before = word
        return float(np.mean(costs))

    def sampled(self, logits: Array, word: int, sampled: Array) -> float:
        """-log of the share of ``word`` among itself and the samples that are other words."""

        def weight(k: int) -> float:
            expected = TINY.samples * np.log((k + 2) / (k + 1)) / np.log(TINY.vocabulary + 1)
            return float(np.exp(logits[k]) / expected)

        others = sum(weight(int(k)) for k in sampled if k != word)
        return float(-np.log(weight(word) / (weight(word) + others)))


def sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def differs(one: Batch, other: Batch) -> float:
    """The largest difference of the scores; infinite where another word is said."""
    if not np.array_equal(one["outputs/tokens"], other["outputs/tokens"]):
        return float("inf")
    return float(np.abs(one["outputs/scores"] - other["outputs/scores"]).max())


@pytest.fixture(scope="module")
def truth(batch: Batch) -> Batch:
    """What ``Plain`` makes of the batch."""
    plain, sources = Plain(), batch["source"]
    said = [plain.translate(source, TINY.target_length) for source in sources]
    attention = np.zeros((len(sources), TINY.target_length, TINY.source_length))
    for row, (source, (*_, found)) in enumerate(zip(sources, said, strict=True)):
        attention[row][:, source != PAD] = found
    return {
        "outputs/tokens": np.array([tokens for tokens, *_ in said]),
        "outputs/scores": np.array([scores for _, scores, _ in said]),
        "attention": attention,
    } | {loss: np.array(plain.loss(batch, loss)) for loss in SPEC.losses}


def test_greedy_decoding_is_that_of_the_plain_computation(
    launcher: Launcher, batch: Batch, truth: Batch
) -> None:
    seen = observed(launcher, batch)
    assert differs(seen, truth) < 1e-12
    assert np.abs(seen["taps/attention"] - truth["attention"]).max() < 1e-12
    # So that this says something: sentences differ, and so do their translations.
    assert len({tuple(row) for row in truth["outputs/tokens"]}) == len(batch["source"])
    assert len(np.unique(truth["outputs/tokens"])) > 10


@pytest.mark.parametrize("loss", SPEC.losses)
def test_the_loss_is_that_of_the_plain_computation(
    launcher: Launcher, batch: Batch, truth: Batch, loss: str
) -> None:
    """Padding costs nothing, EOS does, and a sample that is the true word is no other word."""
    assert (batch["target"] == PAD).any()
    seen = observed(launcher, batch, phase="train", loss=loss)
    assert float(seen["loss/0"]) == pytest.approx(float(truth[loss]), rel=1e-12)


# Phase or loss, what is right in pt.py, and what is wrong.
TRAPS = {
    "gates-swapped": (
        "infer",
        "torch.lstm_cell(x, last, *weights)",
        "torch.lstm_cell(x, last, *(w.roll(len(w) // 4, 0) for w in weights))",
    ),
    "context-dropped": ("infer", "[word, context]", "[word, 0.0 * context]"),
    "context-of-keys": ("infer", "unsqueeze(1), memory.values)", "unsqueeze(1), memory.keys)"),
    "last-layer-asks": ("infer", "attend(memory, before_h[0])", "attend(memory, before_h[-1])"),
    "padding-attended": ("infer", "softmax(scores + memory.mask, ", "softmax(scores, "),
    "padding-read": ("infer", "source_words(source) * real.unsqueeze(2)", "source_words(source)"),
    "cells-not-handed-over": ("infer", "c.unbind())", "(0.0 * c).unbind())"),
    "word-not-fed-back": ("infer", "return (self.target_words(token),", "return (word,"),
    "languages-mixed": ("infer", "word = self.target_words(", "word = self.source_words("),
    "gates-swapped-in-training": ("softmax", "i, f, g, o = gates", "f, i, g, o = gates"),
    "context-dropped-in-training": ("softmax", "(now, context,", "(now, 0.0 * context,"),
    "target-not-shifted": ("softmax", "target.t()[:-1], (0, 0, 1, 0)", "target.t(), (0, 0, 0, 0)"),
    "one-bias-dropped": ("softmax", "biases[0] + biases[1]", "biases[0]"),
    "padding-costs": ("softmax", "word, ignore_index=PAD)", "word)"),
    "padding-costs-sampled": ("sampled-softmax", "(word == PAD).long().neg()", "0 * word"),
    "hits-kept": ("sampled-softmax", "masked_fill(hit, ", "masked_fill(hit & False, "),
    "counts-not-expected": (
        "sampled-softmax",
        "self.output.bias - self.log_expected.to(weight.dtype)",
        "self.output.bias",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(launcher: Launcher, batch: Batch, truth: Batch, trap: str) -> None:
    what, old, new = TRAPS[trap]
    with jobs.model_copy("seq2seq", f"zz_{trap.replace('-', '_')}", {"pt.py": (old, new)}) as name:
        if what == "infer":
            assert differs(observed(launcher, batch, name), truth) > 1e-6
        else:
            seen = observed(launcher, batch, name, phase="train", loss=what)
            assert abs(float(seen["loss/0"]) - float(truth[what])) > 1e-6


# -- padding, end, samples ---------------------------------------------------------------------


def padded(batch: Batch, more: int) -> Batch:
    """The same sentences with more padding: before the source, after the target."""
    return {
        **batch,
        "source": np.pad(batch["source"], ((0, 0), (more, 0))),
        "target": np.pad(batch["target"], ((0, 0), (0, more))),
    }


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_more_padding_changes_nothing(
    launcher: Launcher, batch: Batch, truth: Batch, engine: str
) -> None:
    seen = observed(launcher, padded(batch, 5), engine=engine)
    assert seen["outputs/tokens"].shape == (8, TINY.target_length + 5)
    cut = {
        f"outputs/{name}": seen[f"outputs/{name}"][:, : TINY.target_length]
        for name in ("tokens", "scores")
    }
    assert differs(cut, truth) < 1e-12
    assert not seen["taps/encoder"][:, :5].any(), "the encoder is at rest"


@pytest.mark.parametrize("loss", SPEC.losses)
def test_more_padding_costs_nothing(
    launcher: Launcher, batch: Batch, truth: Batch, loss: str
) -> None:
    seen = observed(launcher, padded(batch, 5), phase="train", loss=loss)
    assert float(seen["loss/0"]) == pytest.approx(float(truth[loss]), rel=1e-12)


def test_a_sentence_without_words_is_translated_all_the_same(
    launcher: Launcher, batch: Batch
) -> None:
    """All attention is masked, and the context is zero."""
    empty = {**batch, "source": np.where(np.arange(8)[:, None] == 3, PAD, batch["source"])}
    seen, whole = observed(launcher, empty), observed(launcher, batch)
    assert np.isfinite(seen["outputs/scores"]).all()
    rest = np.arange(8) != 3
    assert np.array_equal(seen["outputs/tokens"][rest], whole["outputs/tokens"][rest])


def test_the_table_of_words_learns_nothing_of_padding(launcher: Launcher, batch: Batch) -> None:
    seen = observed(launcher, batch, phase="train")
    rows = seen["gradients/0/source_words.weight"].any(axis=1)
    assert set(np.flatnonzero(rows)) == set(np.unique(batch["source"])) - {PAD}
    rows = seen["gradients/0/output.weight"].any(axis=1)
    words = set(np.unique(batch["target"])) - {PAD}
    assert set(np.flatnonzero(rows)) == words | set(batch["sampled"])


MEAN = {
    "pt.py": (
        "return torch.cat([true[:, None], others], dim=1)",
        "return torch.cat([0.0 * true[:, None], 0.0 * others[:, :1]"
        " + sampled.double().log1p().mean()], dim=1)",
    ),
    "tf.py": (
        "return tf.concat([true[:, None], others], axis=1)",
        "return tf.concat([0.0 * true[:, None], 0.0 * others[:, :1]"
        " + tf.reduce_mean(tf.math.log1p(tf.cast(sampled, tf.float64)))], axis=1)",
    ),
    "__init__.py": ("samples=16", "samples=20_000"),
}
"""A copy whose logits are 0 and the mean of log(k + 1) over the samples k."""


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_samples_that_are_not_fed_are_drawn_as_those_that_are(
    launcher: Launcher, batch: Batch, engine: str
) -> None:
    unfed = {name: batch[name] for name in ("source", "target")}
    with jobs.model_copy("seq2seq", f"zz_drawn_{engine}", MEAN) as name:
        seen = observed(launcher, unfed, name, engine=engine, phase="train")
    mean = np.log(np.expm1(float(seen["loss/0"])))
    ids = np.arange(TINY.vocabulary)
    probability = np.log((ids + 2) / (ids + 1)) / np.log(TINY.vocabulary + 1)
    assert probability.sum() == pytest.approx(1.0)
    expected = probability @ np.log1p(ids)
    deviation = np.sqrt(probability @ np.log1p(ids) ** 2 - expected**2) / np.sqrt(20_000)
    assert abs(mean - expected) < 5 * deviation
    assert 5 * deviation < 0.06


def test_expected_counts_are_those_of_the_draws() -> None:
    config = SPEC.sizes["small"]
    expected = np.exp(seq2seq.log_expected(config))
    assert expected.sum() == pytest.approx(config.samples)
    drawn = [step["sampled"] for step in draws.steps(SPEC, config, batch=1, count=400, seed=0)]
    counts = np.bincount(np.concatenate(drawn), minlength=config.vocabulary) / 400
    often = expected > 1.0
    assert often.sum() > 5
    assert np.abs(counts[often] / expected[often] - 1.0).max() < 0.2
