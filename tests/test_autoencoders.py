"""The two autoencoders: traps, the ELBO and the baselines against plain formulas, the noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import jobs
from xbench import draws, registry, tensors
from xbench.errors import UsageError
from xbench.jobs import Job
from xbench.launch import Launcher

pytest.importorskip("PIL.Image")

Array = np.ndarray[Any, Any]

MODELS = ("autoencoder", "autoenc")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


class Truth:
    """What torch makes of the definitions in float64, each computed once."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.inputs: dict[str, Path] = {}
        self.seen: dict[tuple[str, str], dict[str, Array]] = {}

    def of(self, model: str, phase: str) -> tuple[Path, dict[str, Array]]:
        """One batch with its draws, and all that follows from it."""
        case = jobs.case(model, "torch", phase, precision="fp64")
        if model not in self.inputs:
            self.inputs[model] = jobs.data_file(self.launcher, case, count=1)
        if (model, phase) not in self.seen:
            report = jobs.observe(self.launcher, case, self.inputs[model], taps=phase == "infer")
            self.seen[model, phase] = report.tensors()
        return self.inputs[model], self.seen[model, phase]


@pytest.fixture(scope="module")
def truth(launcher: Launcher) -> Truth:
    return Truth(launcher)


# Model, phase, and what is planted in a copy of its tf.py. Loss or outputs must show it.
TRAPS = {
    "tanh-for-relu": ("autoencoder", "infer", "tf.nn.relu(", "tf.tanh("),
    "sigmoid-twice": (
        "autoencoder",
        "infer",
        'self.dense("pixels", x)',
        'tf.sigmoid(self.dense("pixels", x))',
    ),
    "errors-summed": ("autoencoder", "train", "tf.reduce_mean(", "tf.reduce_sum("),
    "relu-for-tanh": ("autoenc", "infer", "tf.tanh(", "tf.nn.relu("),
    "probability-twice": ("autoenc", "infer", "sigmoid(logits)", "sigmoid(tf.sigmoid(logits))"),
    "moments-swapped": ("autoenc", "infer", "mu, logvar = tf.split", "logvar, mu = tf.split"),
    "entropy-of-sigmoid": ("autoenc", "train", "logits=logits", "logits=tf.sigmoid(logits)"),
    "kl-summed": ("autoenc", "train", "sum(divergence, axis=1)", "sum(divergence)"),
    "pixels-summed": ("autoenc", "train", "sum(entropy, axis=1)", "sum(entropy)"),
    "pixels-averaged": ("autoenc", "train", "_sum(entropy, axis=1)", "_mean(entropy, axis=1)"),
    "kl-not-halved": ("autoenc", "train", "divergence = 0.5 *", "divergence = 1.0 *"),
    "noise-ignored": ("autoenc", "train", "mu + tf.exp(0.5 * logvar) * noise", "mu"),
    "noise-not-fed": ("autoenc", "train", "if noise is None:", "if True:"),
    "logvar-for-deviation": ("autoenc", "train", "tf.exp(0.5 * logvar)", "tf.exp(logvar)"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(launcher: Launcher, truth: Truth, trap: str) -> None:
    model, phase, old, new = TRAPS[trap]
    inputs, right = truth.of(model, phase)
    with jobs.model_copy(model, f"zz_{trap.replace('-', '_')}", {"tf.py": (old, new)}) as name:
        case = jobs.case(name, "tf", phase, precision="fp64")
        wrong = jobs.observe(launcher, case, inputs, taps=phase == "infer").tensors()
    shown = "loss" if phase == "train" else "outputs"
    assert jobs.worst_relative(wrong, right)[shown] > 1e-6


# The weight of every dense layer in TensorFlow's layout as in PyTorch's.
TRANSPOSED = (
    "        item\n        for name",
    '        __import__("msgspec").structs.replace(item, tf_axes=item.axes)\n        for name',
)


def test_a_transposed_weight_does_not_fit(launcher: Launcher, truth: Truth) -> None:
    inputs, _ = truth.of("autoencoder", "infer")
    with jobs.model_copy("autoencoder", "zz_transposed", {"__init__.py": TRANSPOSED}) as name:
        case = jobs.case(name, "tf", precision="fp64")
        folder = str(launcher.folder())
        report = launcher.run(Job(kind="observe", case=case, folder=folder, inputs=str(inputs)))
    assert not report.ok
    assert "Dimensions must be equal" in report.reason


def test_a_square_transposed_weight_gives_other_numbers(launcher: Launcher, truth: Truth) -> None:
    """Nothing but the numbers can tell where a layer has as many inputs as outputs."""
    inputs, _ = truth.of("autoencoder", "infer")
    square = {"__init__.py": ("widths=(48, 24, 12)", "widths=(196, 196)")}
    with (
        jobs.model_copy("autoencoder", "zz_square", square),
        jobs.model_copy("zz_square", "zz_square_wrong", {"__init__.py": TRANSPOSED}),
    ):
        right, same, wrong = (
            jobs.observe(launcher, jobs.case(name, engine, precision="fp64"), inputs).tensors()
            for name, engine in (
                ("zz_square", "torch"), ("zz_square", "tf"), ("zz_square_wrong", "tf"),
            )
        )  # fmt: skip
    assert jobs.worst_relative(same, right)["outputs"] < 1e-9
    assert jobs.worst_relative(wrong, right)["outputs"] > 1e-6


def probe(model: str) -> dict[str, Array]:
    return draws.parameters(registry.model(model), "tiny", "probe", 0, "float64")


def affine(parameters: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def variational(image: Array, noise: Array) -> tuple[Array, float]:
    """p(pixel = 1) and -ELBO as the definitions have them, straight from logarithms."""
    parameters = probe("autoenc")
    moments = affine(parameters, "latent", np.tanh(affine(parameters, "encoder", image)))
    count = moments.shape[1] // 2
    mu, sigma = moments[:, :count], np.sqrt(np.exp(moments[:, count:]))
    hidden = np.tanh(affine(parameters, "decoder", mu + sigma * noise))
    p = sigmoid(affine(parameters, "pixels", hidden))
    likelihood = (image * np.log(p) + (1.0 - image) * np.log(1.0 - p)).sum(axis=1)
    kl = -0.5 * (1.0 + np.log(sigma**2) - mu**2 - sigma**2).sum(axis=1)
    return p, float(np.mean(kl - likelihood))


def test_the_elbo_is_that_of_a_plain_computation(truth: Truth) -> None:
    inputs, trained = truth.of("autoenc", "train")
    batch = {
        name: value.astype(np.float64) for name, value in tensors.load_batches(inputs)[0].items()
    }
    assert np.abs(batch["noise"]).max() > 1
    _, loss = variational(batch["image"], batch["noise"])
    assert float(trained["loss/0"]) == pytest.approx(loss, rel=1e-12)
    _, seen = truth.of("autoenc", "infer")
    reconstruction, _ = variational(batch["image"], np.zeros_like(batch["noise"]))
    assert np.abs(seen["outputs/reconstruction"] - reconstruction).max() < 1e-12


def test_the_plain_autoencoder_is_that_of_a_plain_computation(truth: Truth) -> None:
    inputs, trained = truth.of("autoencoder", "train")
    x = image = tensors.load_batches(inputs)[0]["image"].astype(np.float64)
    layers = list(registry.model("autoencoder").sizes["tiny"].layers)
    assert layers == [
        *(f"{part}.{i}" for part, n in (("encoder", 3), ("decoder", 2)) for i in range(n)),
        "pixels",
    ]
    parameters = probe("autoencoder")
    for name in layers[:-1]:
        x = np.maximum(affine(parameters, name, x), 0.0)
    x = sigmoid(affine(parameters, "pixels", x))
    assert float(trained["loss/0"]) == pytest.approx(float(((x - image) ** 2).mean()), rel=1e-12)
    _, seen = truth.of("autoencoder", "infer")
    assert np.abs(seen["outputs/reconstruction"] - x).max() < 1e-12


def test_relus_act_on_both_sides_and_the_latents_vary(truth: Truth) -> None:
    _, seen = truth.of("autoencoder", "infer")
    for name in registry.model("autoencoder").sizes["tiny"].hidden:
        assert 0.1 < float((seen[f"taps/{name}"] > 0).mean()) < 0.9, name
    _, seen = truth.of("autoenc", "infer")
    for name in ("mu", "logvar"):
        assert 0.1 < float((seen[f"taps/{name}"] > 0).mean()) < 0.9, name


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_natively_drawn_noise_is_new_in_every_step(
    launcher: Launcher, truth: Truth, engine: str
) -> None:
    """With a learning rate of 0 and one image batch, nothing but the noise moves the loss."""
    fed = tensors.load_batches(truth.of("autoenc", "train")[0])[0]
    image = fed["image"].astype(np.float64)
    spec = registry.model("autoenc")
    noises = draws.steps(spec, spec.sizes["tiny"], batch=len(image), count=200, seed=1)
    expected = [variational(image, drawn["noise"].astype(np.float64))[1] for drawn in noises]
    still = {"__init__.py": ("Adam(lr=1e-3)", "Adam(lr=0.0)")}
    found = {}
    with jobs.model_copy("autoenc", f"zz_still_{engine}", still) as name:
        for kind, batch in (("fed", fed), ("native", {"image": fed["image"]})):
            path = launcher.folder() / "inputs.npz"
            tensors.save_batches(path, [batch] * 6)
            case = jobs.case(name, engine, "train", precision="fp64", draws=kind)
            seen = jobs.observe(launcher, case, path).tensors()
            found[kind] = [float(seen[f"trajectory/loss/{step}"]) for step in range(6)]
    assert found["fed"] == pytest.approx([found["fed"][0]] * 6, rel=1e-12)
    assert len(set(found["native"])) == 6
    middle, deviation = np.mean(expected), np.std(expected)
    assert deviation > 0.001 * middle
    assert np.abs(np.array([*found["native"], found["fed"][0]]) - middle).max() < 5 * deviation
    assert np.std(found["native"]) > 0.2 * deviation


# Pixels that are always 0, always 1, always a quarter, and one that varies; two batches.
ODD = [
    {"image": np.array([[0, 1, 0.25, 0.5], [0, 1, 0.25, 1]], np.float32)},
    {"image": np.array([[0, 1, 0.25, 0]], np.float32)},
]


def test_baseline_of_the_squared_error() -> None:
    data = registry.model_part("autoencoder", "data")
    config = registry.model("autoencoder").sizes["tiny"]
    assert data.baseline(ODD, "mse", config) == pytest.approx([(0.0**2 + 0.5**2) / 8, 0.5**2 / 4])


def test_baseline_of_the_elbo() -> None:
    """By hand: what is always 0 or 1 costs nothing, the grey pixel its entropy."""
    data = registry.model_part("autoenc", "data")
    config = registry.model("autoenc").sizes["tiny"]
    grey = -(0.25 * log(0.25) + 0.75 * log(0.75))
    found = data.baseline(ODD, "elbo", config)
    assert found == pytest.approx([grey + log(2), grey + log(2)])


@pytest.mark.parametrize("model", MODELS)
def test_baseline_is_that_of_every_pixel_and_the_best_constant(model: str) -> None:
    """On the real digits: pixel by pixel in plain Python, and no worse than its neighbours."""
    spec, data = registry.model(model), registry.model_part(model, "data")
    config = spec.sizes["tiny"]
    batches = data.load(config, batch=8, count=3, seed=0, source=None).inputs
    rows = [[[float(x) for x in row] for row in batch["image"]] for batch in batches]
    columns = list(zip(*(row for batch in rows for row in batch), strict=True))

    def cost(x: float, p: float) -> float:
        if model == "autoencoder":
            return float((x - p) ** 2) / len(columns)
        return -(x * log(p) if x else 0.0) - ((1 - x) * log(1 - p) if x < 1 else 0.0)

    def whole(mean: list[float]) -> list[float]:
        sums = [
            [sum(cost(x, p) for x, p in zip(row, mean, strict=True)) for row in batch]
            for batch in rows
        ]
        return [sum(costs) / len(costs) for costs in sums]

    mean = [sum(column) / len(column) for column in columns]
    assert 0.0 in mean, "a pixel that is never inked is among them"
    found = data.baseline(batches, spec.losses[0], config)
    assert found == pytest.approx(whole(mean), rel=1e-12)
    for factor in (0.99, 1.01):
        moved = [min(factor * p, 1.0) if p < 1.0 else p for p in mean]
        assert sum(whole(moved)) > sum(found)


@pytest.mark.parametrize("model", MODELS)
def test_an_unknown_loss_is_named(model: str) -> None:
    data = registry.model_part(model, "data")
    with pytest.raises(UsageError, match="unknown loss 'huber'"):
        data.baseline(ODD, "huber", registry.model(model).sizes["tiny"])


@pytest.mark.parametrize("model", MODELS)
def test_images_have_the_side_of_the_size(model: str) -> None:
    spec, data = registry.model(model), registry.model_part(model, "data")
    for size, config in spec.sizes.items():
        found = data.load(config, batch=3, count=1, seed=0, source=None).inputs[0]["image"]
        assert found.shape == spec.inputs(config)[0].at(batch=3), size
        assert found.dtype == np.float32
