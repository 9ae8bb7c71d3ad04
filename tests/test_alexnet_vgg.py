"""AlexNet and VGG-19: published sizes, what has gone wrong between frameworks, native dropout."""

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
from xbench.spec import Constant, Normal

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


class Truth:
    """What PyTorch computes in float64 from one batch, once for each model and phase."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.inputs: dict[str, Path] = {}
        self.known: dict[tuple[str, str], Mapping[str, Array]] = {}

    def of(self, model: str, phase: str) -> Mapping[str, Array]:
        if (model, phase) not in self.known:
            case = jobs.case(model, "torch", phase, precision="fp64")
            if model not in self.inputs:
                self.inputs[model] = jobs.data_file(self.launcher, case, count=1)
            seen = jobs.observe(self.launcher, case, self.inputs[model], taps=phase == "infer")
            self.known[model, phase] = seen.tensors()
        return self.known[model, phase]

    def error(self, model: str, phase: str, changes: Mapping[str, tuple[str, str]]) -> float:
        """Of TensorFlow's copy of the model with ``changes``: of its outputs, or of its loss."""
        kind = "outputs/" if phase == "infer" else "loss/"
        truth = {key: value for key, value in self.of(model, phase).items() if kind in key[:8]}
        with jobs.model_copy(model, f"zz_{model}", changes) as name:
            case = jobs.case(name, "tf", phase, precision="fp64")
            seen = jobs.observe(self.launcher, case, self.inputs[model]).tensors()
        return jobs.whole_relative(seen, truth, kind)


@pytest.fixture(scope="module")
def truth(launcher: Launcher) -> Truth:
    return Truth(launcher)


def test_sizes_are_the_published_ones() -> None:
    alexnet, vgg = (registry.model(name) for name in ("alexnet", "vgg"))
    assert alexnet.parameter_count("full") == 60_965_224
    assert vgg.parameter_count("full") == 143_667_240
    assert alexnet.sizes["full"].extents == (55, 27, 13, 6)
    assert alexnet.sizes["full"].features == 9216
    assert vgg.sizes["full"].features == 25088
    assert len(vgg.sizes["full"].convolutions) == 16


def test_alexnet_begins_as_published() -> None:
    """Deviation 0.01 everywhere; biases 1 in conv2, conv4, conv5 and the hidden layers."""
    spec = registry.model("alexnet")
    found = spec.parameters(spec.sizes["full"])
    assert {item.init for item in found if item.name.endswith("weight")} == {Normal(std=0.01)}
    ones = {item.name for item in found if item.init == Constant(1.0)}
    zeros = {item.name for item in found if item.init == Constant(0.0)}
    assert ones == {f"features.conv{i}.bias" for i in (2, 4, 5)} | {"fc6.bias", "fc7.bias"}
    assert zeros == {f"features.conv{i}.bias" for i in (1, 3)} | {"fc8.bias"}


@pytest.mark.parametrize("model", ["alexnet", "vgg"])
def test_data_has_the_shape_of_the_specification(model: str) -> None:
    spec, part = registry.model(model), registry.model_part(model, "data")
    config = spec.sizes["tiny"]
    found = part.load(config, batch=5, count=2, seed=0, source=None).inputs
    named = [*spec.inputs(config), *spec.targets(config)]
    for batch in found:
        assert {key: (value.shape, value.dtype.name) for key, value in batch.items()} == {
            item.name: (item.at(batch=5), item.dtype) for item in named
        }
    assert np.mean(part.baseline(found, "cross-entropy", config)) == pytest.approx(np.log(10))
    with pytest.raises(UsageError, match="cross-entropy"):
        part.baseline(found, "cross-entropi", config)


@pytest.mark.parametrize("model", ["alexnet", "vgg"])
def test_every_relu_acts_on_both_sides(truth: Truth, model: str) -> None:
    taps = {key: value for key, value in truth.of(model, "infer").items() if "taps/" in key}
    shares = {
        key: float(np.mean(value == 0))
        for key, value in taps.items()
        if key.startswith(("taps/conv", "taps/fc"))
    }
    assert len(shares) == {"alexnet": 7, "vgg": 18}[model]
    assert min(shares.values()) > 0.2
    assert max(shares.values()) < 0.8


def lrn(*, alpha: float = 1e-4, beta: float = 0.75, radius: int = 2, k: float = 2.0) -> str:
    """Local response normalisation of ``x`` as one expression of TensorFlow."""
    pads = [[0, 0], [0, 0], [0, 0], [radius, radius]]
    part = f"tf.pad(tf.square(x), {pads})[..., i : i + x.shape[-1]]"
    return f"x / ({k} + {alpha} * sum({part} for i in range({2 * radius + 1}))) ** {beta}"


LRN = "local_response_norm(x)"
LRN_TRAPS = {
    "alpha-over-size": lrn(alpha=1e-4 / 5),
    "beta": lrn(beta=0.5),
    "radius": lrn(radius=1),
    "diameter-for-radius": lrn(radius=5),
    "k": lrn(k=1.0),
}


def test_the_written_out_normalisation_is_the_models(truth: Truth) -> None:
    assert truth.error("alexnet", "infer", {"tf.py": (LRN, lrn())}) < 1e-9


@pytest.mark.parametrize("trap", LRN_TRAPS)
def test_a_wrong_normalisation_is_found(truth: Truth, trap: str) -> None:
    """By far more than float32 could hide: activations are large where it looks at them."""
    assert truth.error("alexnet", "infer", {"tf.py": (LRN, LRN_TRAPS[trap])}) > 1e-3


# What goes wrong between frameworks, planted in a copy: model, phase, file, text, wrong text.
FC6 = 'tf.nn.relu(self.dense("fc6", x))'
FC7 = 'tf.nn.relu(self.dense("fc7", x))'
SPECS = "return tuple(specs)"
OTHER = 'return tuple(__import__("msgspec").structs.replace(s, tf_axes={}) for s in specs)'
WHIO = OTHER.format('"WHIO" if s.axes == "OIHW" else s.tf_axes')
FC7_AS_STORED = OTHER.format('"OI" if s.name == "fc7.weight" else s.tf_axes')
PART = "tf.split(x, groups, axis=-1)"
TRAPS = {
    "groups-swapped-in-training": ("alexnet", "train", "tf.py", PART, f"{PART}[::-1]"),
    "both-groups-see-the-first": ("alexnet", "train", "tf.py", PART, f"{PART}[:1] * 2"),
    "group-outputs-swapped": ("alexnet", "train", "tf.py", "concat(parts,", "concat(parts[::-1],"),
    "groups-swapped": (
        "alexnet",
        "infer",
        "tf.py",
        "self.conv(full, x,",
        "self.conv(full, x if GROUPS[name] == 1 else tf.roll(x, x.shape[-1] // 2, -1),",
    ),
    "channels-last-before-fc6": (
        "alexnet",
        "infer",
        "tf.py",
        'flatten(seen["pool5"])',
        'tf.reshape(seen["pool5"], [tf.shape(image)[0], -1])',
    ),
    "same-padding-at-a-stride": (
        "alexnet",
        "infer",
        "tf.py",
        "self.conv(full, x, stride=stride, pad=pad)",
        'self.biased(full, tf.nn.conv2d(x, self.parameters[f"{full}.weight"], stride, "SAME"))',
    ),
    "mean-pool": (
        "alexnet",
        "infer",
        "tf.py",
        "max_pool(x, size=3, stride=2)",
        'tf.nn.avg_pool2d(x, 3, 2, "VALID")',
    ),
    "pool-without-overlap": ("alexnet", "infer", "tf.py", "size=3, stride=2", "size=2, stride=2"),
    "no-dropout": ("alexnet", "train", "tf.py", f"dropout({FC6}, KEEP, dropout6)", FC6),
    "dropout-scaled-twice": ("alexnet", "train", "tf.py", "dropout7)", "dropout7 / KEEP)"),
    "masks-swapped": (
        "alexnet",
        "train",
        "tf.py",
        f"{FC6}, KEEP, dropout6",
        f"{FC6}, KEEP, dropout7",
    ),
    "kernel-layout": ("alexnet", "infer", "__init__.py", SPECS, WHIO),
    "square-matrix-not-transposed": ("alexnet", "infer", "__init__.py", SPECS, FC7_AS_STORED),
    "vgg-channels-last-before-fc6": (
        "vgg",
        "infer",
        "tf.py",
        'flatten(seen[f"pool{len(GROUPS)}"])',
        'tf.reshape(seen[f"pool{len(GROUPS)}"], [tf.shape(image)[0], -1])',
    ),
    "vgg-mean-pool": (
        "vgg",
        "infer",
        "tf.py",
        "layers_tf.max_pool(x, size=2, stride=2)",
        'tf.nn.avg_pool2d(x, 2, 2, "VALID")',
    ),
    "vgg-no-dropout": ("vgg", "train", "tf.py", f"dropout({FC7}, KEEP, dropout7)", FC7),
    "vgg-kernel-layout": ("vgg", "infer", "__init__.py", SPECS, WHIO),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(truth: Truth, trap: str) -> None:
    model, phase, file, old, new = TRAPS[trap]
    assert truth.error(model, phase, {file: (old, new)}) > 1e-3


@pytest.mark.parametrize("engine", ["torch", "tf"])
@pytest.mark.parametrize("model", ["alexnet", "vgg"])
def test_dropout_that_is_not_fed_is_drawn(launcher: Launcher, model: str, engine: str) -> None:
    """Half of the active hidden units, each for itself, are lost and the others doubled.

    With one picture, the gradient of a weight over that of its layer's bias is what the layer saw:
    the hidden units after dropout. Every step has the same picture and the same parameters.
    """
    spec, steps = registry.model(model), 8
    parameters = draws.parameters(spec, "tiny", "probe", 0)
    (picture,) = (
        registry.model_part(model, "data")
        .load(spec.sizes["tiny"], batch=1, count=1, seed=0, source=None)
        .inputs
    )
    folder = launcher.folder()
    inputs, states = folder / "inputs.npz", folder / "states.npz"
    tensors.save_batches(inputs, [picture] * steps)
    tensors.save_batches(states, [parameters] * steps)
    infer, train = (
        jobs.case(model, engine, phase, precision="fp64", batch=1) for phase in ("infer", "train")
    )
    fc6 = jobs.observe(launcher, infer, inputs, taps=True).tensors()["taps/fc6"][0]
    seen = jobs.observe(launcher, train, inputs, states=str(states)).tensors()

    def given(layer: str, step: int) -> Array:
        weight, bias = (seen[f"gradients/{step}/{layer}.{part}"] for part in ("weight", "bias"))
        row = int(np.argmax(np.abs(bias)))
        found: Array = weight[row] / bias[row]
        return found

    masks: dict[str, list[Array]] = {"fc6": [], "fc7": []}
    for step in range(steps):
        after = given("fc7", step)
        fc7 = np.maximum(parameters["fc7.weight"] @ after + parameters["fc7.bias"], 0)
        masks["fc6"].append(after[fc6 > 0] / fc6[fc6 > 0])
        masks["fc7"].append(given("fc8", step)[fc7 > 0] / fc7[fc7 > 0])
    for found in masks.values():
        mask = np.concatenate(found)
        assert len(mask) > 80
        assert np.allclose(mask, np.where(mask > 1, 2.0, 0.0), atol=1e-9)
        # Five standard deviations of the share that is lost; the mean is 2 (1 - share).
        assert abs(np.mean(mask == 0) - 0.5) < 5 * 0.5 / len(mask) ** 0.5
        assert len({part.tobytes() for part in found}) == steps, "a mask of its own in every step"
