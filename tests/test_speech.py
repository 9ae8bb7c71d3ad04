"""Deep Speech: its layers and CTC against plain computations, and traps that these find."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xbench import draws
from xbench.models.speech import ALPHABET, BLANK, BOUND, SPEC

Array = np.ndarray[Any, Any]

TINY = SPEC.sizes["tiny"]
SIDE = 12
"""Items and frames of each: as many, so that no shape tells time from batch."""
FEW, FRAMES = 4, 5
"""Letters, the blank included, and frames of which all paths are counted."""
SPELLED = [
    ([], 5), ([1], 5), ([1, 1], 4), ([1, 2, 3], 5), ([2, 2], 3), ([1, 1, 1], 5), ([3, 1], 2),
    ([1, 2, 1, 3, 2], 5), ([2, 2], 2), ([1, 2, 1, 3, 2], 4),
]  # fmt: skip
"""Labels and frames: none, repeated, with no frame to spare, and at last two impossible ones."""
POSSIBLE = len(SPELLED) - 2

COMMON = """
import dataclasses, json, sys
import numpy as np
from xbench.models.speech import SPEC
fed = dict(np.load(sys.argv[1]))
configs = {
    recurrent: dataclasses.replace(SPEC.sizes["tiny"], recurrent=recurrent)
    for recurrent in (True, False)
}
kinks = np.array([-1.0, 0.0, 5.0, 20.0, 21.0])
names = ("features", "frames", "label", "label_length")
def of(prefix):
    return [fed[f"{prefix}/{name}"] for name in ("logits", *names[1:])]
"""
TORCH = """
import torch
import torch.nn.functional as F
from xbench.models.recurrent_pt import both_ways
from xbench.models.speech import pt
from xbench.models.speech.ctc_pt import ctc
found = {}
def loss(name, function, prefix):
    logits, *more = map(torch.tensor, of(prefix))
    logits.requires_grad_()
    losses = function(logits, *more)
    losses[losses.isfinite()].sum().backward()
    found[f"{name}/loss"], found[f"{name}/gradient"] = losses.detach(), logits.grad
def native(logits, frames, label, length):
    return F.ctc_loss(F.log_softmax(logits, 2), label, frames, length, reduction="none")
for recurrent, config in configs.items():
    model = pt.build(config).double()
    names_here = model.state_dict()
    model.load_state_dict({name: torch.tensor(fed[f"p/{name}"]) for name in names_here})
    found[f"logits/{recurrent}"] = model(torch.tensor(fed["features"])).detach()
    if recurrent:
        batch = [torch.tensor(fed[name]) for name in names]
        for kind in ("ctc", "ctc-native"):
            found[f"objective/{kind}"] = model.objective(*batch, loss=kind).detach()
        x = torch.randn(3, 2, 32, dtype=torch.float64)
        weights = [fed[f"p/layer4.{part}"] for part in
                   ("weight_ih", "weight_hh", "weight_hh_reverse", "bias")]
        weights = [torch.tensor(weight) for weight in weights]
        found["operator"] = torch.ops.xbench.clipped_rnn(x, *weights, 2.0)
        found["both ways"] = both_ways(x, *weights, 2.0)
loss("few", ctc, "few")
loss("many", ctc, "many")
loss("native", native, "many")
for clip in (F.hardtanh, F.hardtanh_):
    x = torch.tensor(kinks, requires_grad=True)
    clip(1.0 * x, 0.0, 20.0).sum().backward()
    found[f"kinks/{clip.__name__}"] = x.grad
np.savez(sys.argv[2], **{key: value.numpy() for key, value in found.items()})
"""
TF = """
import functools, types
from pathlib import Path
import tensorflow as tf
import xbench.models.speech as package
MODELS = Path(package.__file__).parent.parent
FILES = {
    "recurrent_tf.py": "xbench.models.recurrent_tf",
    "speech/ctc_tf.py": "xbench.models.speech.ctc_tf",
    "speech/tf.py": "xbench.models.speech.tf",
}
def planted(where="", old="", new=""):
    "The definition with a change in one of its files."
    for file, name in FILES.items():
        text = (MODELS / file).read_text()
        if file == where:
            assert old in text, f"{file} has no {old!r}"
            text = text.replace(old, new)
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(text, file, "exec"), module.__dict__)
    return module
def model_of(module, dtype="float64", recurrent=True):
    specs = SPEC.parameters(configs[recurrent])
    values = {item.name: item.to_tf(fed[f"p/{item.name}"]).astype(dtype) for item in specs}
    return module.build(configs[recurrent], {k: tf.constant(v) for k, v in values.items()})
def shown(module, what):
    "What a trap must spoil."
    dtype = "float32" if what == "ctc-native" else "float64"
    features, *more = [tf.constant(fed[name]) for name in names]
    features = tf.cast(features, dtype)
    model = model_of(module, dtype)
    if what == "logits":
        return model(features)
    return model.objective(features, *more, loss=what)
found = {}
right = planted()
def loss(name, function, prefix, dtype):
    logits, *more = map(tf.constant, of(prefix))
    logits = tf.cast(logits, dtype)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = function(logits, *more)
        total = tf.reduce_sum(tf.boolean_mask(losses, tf.math.is_finite(losses)))
    found[f"{name}/loss"], found[f"{name}/gradient"] = losses, tape.gradient(total, logits)
for recurrent in configs:
    found[f"logits/{recurrent}"] = model_of(right, recurrent=recurrent)(fed["features"])
for kind in ("ctc", "ctc-native"):
    found[f"objective/{kind}"] = shown(right, kind)
    found[f"double/{kind}"] = model_of(right).objective(*[fed[name] for name in names], loss=kind)
loss("few", right.ctc, "few", "float64")
loss("many", right.ctc, "many", "float64")
for xla in (False, True):
    native = functools.partial(right.native_ctc, xla=xla)
    loss(f"native/{xla}", native, "spelled", "float32")
x = tf.constant(kinks)
with tf.GradientTape() as tape:
    tape.watch(x)
    y = right.clipped(x, 20.0)
found["kinks/clipped"] = tape.gradient(y, x)
for name, (what, *change) in json.loads(sys.argv[3]).items():
    found[f"trap/{name}"] = shown(planted(*change), what)
np.savez(sys.argv[2], **{key: value.numpy() for key, value in found.items()})
"""

RECURRENT, CTC, MODEL = "recurrent_tf.py", "speech/ctc_tf.py", "speech/tf.py"
SUM = "return forward + tf.reverse(backward, [0])"
# What is spoilt, and the change of a file that spoils it.
TRAPS = {
    "only-forwards": ("logits", RECURRENT, SUM, "return forward"),
    "backwards-not-turned": ("logits", RECURRENT, SUM, "return forward + backward"),
    "both-from-one-end": (
        "logits", RECURRENT, "(seen, tf.reverse(seen, [0]))", "(seen, seen)",
    ),
    "recurrences-swapped": (
        "logits", RECURRENT,
        '"weight_hh", "weight_hh_reverse"', '"weight_hh_reverse", "weight_hh"',
    ),
    "no-clip": (
        "logits", RECURRENT, "tf.minimum(tf.constant(bound, x.dtype), tf.nn.relu(x))",
        "tf.nn.relu(x)",
    ),
    "no-clip-in-the-recurrence": (
        "logits", RECURRENT, "clipped(seen[0] + tf.matmul(states[0], recurrence), bound)",
        "tf.nn.relu(seen[0] + tf.matmul(states[0], recurrence))",
    ),
    "clip-on-both-sides": ("logits", RECURRENT, "tf.nn.relu(x)", "tf.maximum(x, -bound)"),
    "context-latest-first": (
        "logits", MODEL, "in range(2 * context + 1)", "in reversed(range(2 * context + 1))",
    ),
    "context-of-the-past": ("logits", MODEL, "[context, context]", "[2 * context, 0]"),
    "batch-first-inside": ("logits", MODEL, "tf.transpose(features, [1, 0, 2])", "features"),
    "time-first-outside": (
        "logits", MODEL, "tf.transpose(self.logits(features), [1, 0, 2])", "self.logits(features)",
    ),
    "batch-first-ctc": (
        "ctc", MODEL, "ctc(logits, frames", "ctc(tf.transpose(logits, [1, 0, 2]), frames",
    ),
    "summed-over-the-batch": ("ctc", MODEL, "reduce_mean(ctc(", "reduce_sum(ctc("),
    "blank-last": ("ctc", CTC, "import BLANK, NEVER", "import NEVER\nBLANK = 28"),
    "equal-letters-joined": (
        "ctc", CTC, "(states != BLANK) & (states != before)", "states != BLANK",
    ),
    "padding-heard": ("ctc", CTC, "frames - 1", "0 * frames + 11"),
    "padding-spelled": ("ctc", CTC, "2 * label_length", "2 * letters + 0 * label_length"),
    "no-blank-at-the-end": ("ctc", CTC, "-log_add(end, letter)", "-letter"),
    "native-blank-last": ("ctc-native", MODEL, "blank_index=BLANK", "blank_index=-1"),
    "native-batch-first": (
        "ctc-native", MODEL, "None, count,", "None, count, logits_time_major=False,",
    ),
}  # fmt: skip


# -- plain computations ------------------------------------------------------------------------


def plain_network(parameters: Mapping[str, Array], features: Array, recurrent: bool) -> Array:
    """The logits of each item (time, features) on its own, one frame after the other."""

    def affine(name: str, x: Array) -> Array:
        return np.asarray(parameters[f"{name}.weight"] @ x + parameters[f"{name}.bias"])

    def clip(x: Array) -> Array:
        return np.minimum(np.maximum(x, 0.0), 20.0)

    def one_way(steps: Sequence[Array], recurrence: Array) -> list[Array]:
        states = [np.zeros(TINY.hidden)]
        for x in steps:
            seen = parameters["layer4.weight_ih"] @ x + parameters["layer4.bias"]
            states.append(clip(seen + recurrence @ states[-1]))
        return states[1:]

    found = []
    for item in features:
        silence = np.zeros_like(item[0])
        heard = [silence] * 5 + list(item) + [silence] * 5
        steps = [np.concatenate(heard[t : t + 11]) for t in range(len(item))]
        for name in ("layer1", "layer2", "layer3"):
            steps = [clip(affine(name, x)) for x in steps]
        if recurrent:
            forward = one_way(steps, parameters["layer4.weight_hh"])
            backward = one_way(steps[::-1], parameters["layer4.weight_hh_reverse"])[::-1]
            sums = [a + b for a, b in zip(forward, backward, strict=True)]
            steps = [clip(affine("layer5", x)) for x in sums]
        found.append([affine("output", x) for x in steps])
    return np.array(found)


def plain_ctc(logits: Array, frames: int, label: Sequence[int]) -> float:
    """-log p(label | logits) of one item (time, letters), in probabilities."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    states = [BLANK, *itertools.chain(*((letter, BLANK) for letter in label))]
    alpha = [1.0] + [0.0] * (len(states) - 1)  # before the first frame, at its first blank
    for t in range(frames):
        before, alpha = alpha, []
        for s, letter in enumerate(states):
            sources = [s, s - 1] if t else [0] if s < 2 else []
            if t and letter != BLANK and s > 1 and letter != states[s - 2]:
                sources.append(s - 2)
            alpha.append(sum(before[i] for i in sources if i >= 0) * p[t, letter])
    with np.errstate(divide="ignore"):
        return -float(np.log(sum(alpha[-2:])))


def all_paths(logits: Array, frames: int, label: Sequence[int]) -> float:
    """The same by its definition: the sum over every path that spells the label."""
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=frames):
        spelled = [letter for letter, _ in itertools.groupby(path) if letter != BLANK]
        if spelled == list(label):
            total += float(np.prod([p[t, letter] for t, letter in enumerate(path)]))
    with np.errstate(divide="ignore"):
        return -float(np.log(total))


# -- what the frameworks find ------------------------------------------------------------------


def padded(labels: Sequence[Sequence[int]], frames: Sequence[int], width: int) -> dict[str, Array]:
    label = np.zeros((len(labels), width), np.int64)
    for row, letters in enumerate(labels):
        label[row, : len(letters)] = letters
    lengths = np.array([len(letters) for letters in labels])
    return {"frames": np.array(frames), "label": label, "label_length": lengths}


@pytest.fixture(scope="module")
def fed() -> dict[str, Array]:
    """Parameters, one batch, and three sets of logits (time, batch, letters) with labels."""
    rng = np.random.default_rng(0)
    parameters = draws.parameters(SPEC, "tiny", "probe", 0)
    found = {f"p/{name}": value.astype(np.float64) for name, value in parameters.items()}
    found["features"] = rng.standard_normal((SIDE, SIDE, TINY.features))
    labels = [[*rng.integers(1, 29, 2), 7, 7][: 1 + row % 4] for row in range(SIDE)]
    frames = [6 + row % 7 for row in range(SIDE)]
    found |= padded(labels, frames, 4)
    many = [rng.integers(1, 29, length).tolist() for length in (15, 1, 8, 0, 15, 12)]
    many[2] = [5] * 8
    sets: dict[str, tuple[int, int, list[list[int]], list[int]]] = {
        "few": (FEW, FRAMES, [label for label, _ in SPELLED], [count for _, count in SPELLED]),
        # Eight equal letters need all of their 15 frames.
        "many": (29, 40, many, [40, 3, 15, 9, 40, 13]),
        "spelled": (29, 40, [label for label in many if label], [40, 3, 15, 40, 13]),
    }
    for name, (letters, time, labels, frames) in sets.items():
        found[f"{name}/logits"] = 2.0 * rng.standard_normal((time, len(labels), letters))
        width = max(map(len, labels))
        found |= {f"{name}/{k}": v for k, v in padded(labels, frames, width).items()}
    return found


def run(code: str, fed: Mapping[str, Any], folder: Path, *more: str) -> dict[str, Array]:
    """What ``code`` finds, in a process of its own: torch and TensorFlow never share one."""
    np.savez(folder / "fed.npz", **fed)
    paths = str(folder / "fed.npz"), str(folder / "found.npz")
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMON + code, *paths, *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(paths[1]) as found:
        return dict(found)


@pytest.fixture(scope="module")
def torch(fed: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    return run(TORCH, fed, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def tf(fed: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    return run(TF, fed, tmp_path_factory.mktemp("tf"), json.dumps(TRAPS))


@pytest.fixture(scope="module")
def both(torch: dict[str, Array], tf: dict[str, Array]) -> dict[str, dict[str, Array]]:
    return {"torch": torch, "tf": tf}


@pytest.fixture(scope="module")
def truth(fed: dict[str, Array]) -> dict[str, Any]:
    """What plain computations make of what is fed."""
    parameters = {name[2:]: value for name, value in fed.items() if name.startswith("p/")}
    found: dict[str, Any] = {
        f"logits/{recurrent}": plain_network(parameters, fed["features"], recurrent)
        for recurrent in (True, False)
    }
    sets = {"": found["logits/True"].swapaxes(0, 1)}
    sets |= {f"{name}/": fed[f"{name}/logits"] for name in ("few", "many", "spelled")}
    for name, logits in sets.items():
        rows = zip(fed[f"{name}frames"], fed[f"{name}label"], fed[f"{name}label_length"],
                   strict=True)  # fmt: skip
        found[f"{name}loss"] = [
            plain_ctc(logits[:, row], int(frames), label[:length].tolist())
            for row, (frames, label, length) in enumerate(rows)
        ]
    return found


# -- the network -------------------------------------------------------------------------------


def test_letters() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 29
    assert (BLANK, BOUND) == (0, 20.0)
    assert [ALPHABET.index(letter) for letter in " 'az"] == [1, 2, 3, 28]


def test_the_variant_without_recurrence_is_the_full_one_but_for_it() -> None:
    full, published = SPEC.sizes["full"], SPEC.sizes["as-published"]
    assert dataclasses.replace(full, recurrent=False) == published
    names = {item.name for item in SPEC.parameters(full)}
    left = {item.name for item in SPEC.parameters(published)}
    assert {name.partition(".")[0] for name in names - left} == {"layer4", "layer5"}
    assert left < names


@pytest.mark.parametrize("engine", ["torch", "tf"])
@pytest.mark.parametrize("recurrent", [True, False])
def test_logits_are_those_of_a_plain_computation(
    both: dict[str, dict[str, Array]], truth: dict[str, Any], engine: str, recurrent: bool
) -> None:
    right = truth[f"logits/{recurrent}"]
    assert right.std() > 0.1
    np.testing.assert_allclose(both[engine][f"logits/{recurrent}"], right, atol=1e-12)


def test_the_operator_of_exports_is_the_layer(torch: dict[str, Array]) -> None:
    np.testing.assert_array_equal(torch["operator"], torch["both ways"])
    assert torch["operator"].max() == 4.0, "both directions reach the bound"


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_a_clipped_relu_has_no_gradient_at_its_bounds(
    both: dict[str, dict[str, Array]], engine: str
) -> None:
    found = [value.tolist() for name, value in both[engine].items() if name.startswith("kinks/")]
    assert found == [[0, 0, 1, 0, 0]] * (2 if engine == "torch" else 1)


# -- CTC ---------------------------------------------------------------------------------------


def test_the_plain_ctc_is_the_sum_over_all_paths(
    fed: dict[str, Array], truth: dict[str, Any]
) -> None:
    found = [
        all_paths(fed["few/logits"][:, row], frames, label)
        for row, (label, frames) in enumerate(SPELLED)
    ]
    assert np.isfinite(found).tolist() == [row < POSSIBLE for row in range(len(found))]
    np.testing.assert_allclose(truth["few/loss"], found, rtol=1e-12)


@pytest.mark.parametrize("engine", ["torch", "tf"])
@pytest.mark.parametrize("name", ["few", "many"])
def test_ctc_is_that_of_the_plain_computation(
    both: dict[str, dict[str, Array]], truth: dict[str, Any], engine: str, name: str
) -> None:
    np.testing.assert_allclose(both[engine][f"{name}/loss"], truth[f"{name}/loss"], rtol=1e-12)


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_the_gradient_of_ctc_is_that_of_pytorch(
    both: dict[str, dict[str, Array]], torch: dict[str, Array], engine: str
) -> None:
    right, found = torch["native/gradient"], both[engine]["many/gradient"]
    assert np.abs(right).max() > 0.5
    np.testing.assert_allclose(found, right, atol=1e-9)
    np.testing.assert_allclose(both[engine]["many/loss"], torch["native/loss"], rtol=1e-9)


@pytest.mark.parametrize("dense", ["False", "True"])
def test_tensorflows_own_ctc(
    fed: dict[str, Array], tf: dict[str, Array], truth: dict[str, Any], dense: str
) -> None:
    """It refuses a label of no letters, and computes in single precision."""
    np.testing.assert_allclose(tf[f"native/{dense}/loss"], truth["spelled/loss"], rtol=1e-5)
    gradient = tf[f"native/{dense}/gradient"]
    for row, frames in enumerate(fed["spelled/frames"]):
        assert np.abs(gradient[:frames, row]).max() > 0.1
        # A softmax minus what adds up to 1.
        np.testing.assert_allclose(gradient[:, row].sum(axis=1), 0.0, atol=1e-4)


@pytest.mark.parametrize("engine", ["torch", "tf"])
@pytest.mark.parametrize("name", ["few", "many"])
def test_gradients_are_finite_and_nothing_comes_from_padding(
    fed: dict[str, Array], both: dict[str, dict[str, Array]], engine: str, name: str
) -> None:
    """Also where the loss is infinite, and at states that no path reaches."""
    gradient, losses = (both[engine][f"{name}/{part}"] for part in ("gradient", "loss"))
    assert np.isfinite(gradient).all()
    for row, frames in enumerate(fed[f"{name}/frames"]):
        assert not gradient[frames:, row].any()
        assert gradient[:frames, row].any() == np.isfinite(losses[row])


@pytest.mark.parametrize(
    ("engine", "loss", "error"),
    [
        ("torch", "objective/ctc", 1e-12), ("torch", "objective/ctc-native", 1e-12),
        ("tf", "double/ctc", 1e-12), ("tf", "double/ctc-native", 1e-12),
        ("tf", "objective/ctc", 1e-12), ("tf", "objective/ctc-native", 1e-5),
    ],
)  # fmt: skip
def test_the_objective_is_the_mean_over_the_batch(
    both: dict[str, dict[str, Array]], truth: dict[str, Any], engine: str, loss: str, error: float
) -> None:
    assert float(both[engine][loss]) == pytest.approx(np.mean(truth["loss"]), rel=error)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(tf: dict[str, Array], truth: dict[str, Any], trap: str) -> None:
    what = TRAPS[trap][0]
    right = truth["logits/True"] if what == "logits" else np.mean(truth["loss"])
    error = np.abs(tf[f"trap/{trap}"] - right).max() / np.abs(right).max()
    assert error > (1e-4 if what == "ctc-native" else 1e-6)


def test_the_largest_recordings_of_every_size_can_be_spelled() -> None:
    """Even of one letter repeated, with a blank between any two."""
    for size, config in SPEC.sizes.items():
        assert 2 * config.letters - 1 <= config.time, size


def test_what_is_compared_is_written_out_and_what_is_timed_is_native() -> None:
    assert SPEC.losses == ("ctc", "ctc-native")
    assert dict(SPEC.native_losses) == {"ctc": "ctc-native"}
