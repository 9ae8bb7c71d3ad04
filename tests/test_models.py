"""Every model of the registry, by the same tests: a new model needs no new test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import jobs
from xbench import exports, registry
from xbench.launch import Launcher

MODELS = registry.model_names()
LOSSES = [(name, loss) for name in MODELS for loss in registry.model(name).losses]
SIZES = {name: registry.model(name).sizes["tiny"] for name in MODELS}
LENGTHS = [
    pytest.param(name, config, id=f"{name}-{number}")
    for name, tiny in SIZES.items()
    for number, (config, _) in enumerate(exports.checked_at(registry.model(name), tiny))
    if number == 0 or config != tiny
]
"""Every model at the length of its size, and at a shorter one where lengths are free."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name: str) -> None:
    """The README states the count of every size, the full one's as published."""
    spec = registry.model(name)
    table = (registry.ROOT / "models" / name / "README.md").read_text()
    rows = {
        size: [cell.strip() for cell in row.split("|")]
        for size, row in re.findall(r"^\| `([\w-]+)` \|(.*)\|$", table, re.MULTILINE)
        if size in spec.sizes
    }
    assert rows.keys() == spec.sizes.keys()
    for size, cells in rows.items():
        assert f"{spec.parameter_count(size):,}" in cells, size


@pytest.mark.parametrize("name", MODELS)
def test_specification_is_whole(name: str) -> None:
    spec = registry.model(name)
    assert spec.name == name
    assert {"tiny", "small", "full"} <= set(spec.sizes)
    assert set(spec.batch) == set(spec.sizes)
    for size in spec.sizes:
        config = spec.sizes[size]
        for group in (spec.parameters(config), spec.inputs(config), spec.outputs(config)):
            names = [item.name for item in group]
            assert names
            assert len(set(names)) == len(names)
    folder = registry.ROOT / "models" / name
    assert (folder / "README.md").stat().st_size > 1000
    assert {path.name for path in folder.glob("*.py")} >= {"pt.py", "tf.py", "data.py"}
    words = re.findall(r"^[A-Z]+_[A-Z]+$", (folder / "README.md").read_text(), re.MULTILINE)
    assert not words, "a placeholder"


@pytest.mark.parametrize("name", MODELS)
def test_probe_parameters_are_continuous(name: str) -> None:
    """No parameter of the probe set may be constant: a dropped one would not be noticed."""
    for item in registry.model(name).parameters(registry.model(name).sizes["tiny"]):
        assert item.probe.high > item.probe.low, item.name


@pytest.mark.parametrize(("name", "loss"), LOSSES)
def test_definitions_agree_in_float64(launcher: Launcher, name: str, loss: str) -> None:
    """Loss and every gradient of five steps from the same states, and five free steps, to 1e-9."""
    torch, tf = (
        jobs.case(name, engine, "train", precision="fp64", loss=loss) for engine in ("torch", "tf")
    )
    inputs = jobs.data_file(launcher, torch)
    one = jobs.observe(launcher, torch, inputs, makes_states=True)
    other = jobs.observe(launcher, tf, inputs, states=jobs.states_of(one))
    assert one.digests == other.digests
    worst = jobs.worst_relative(other.tensors(), one.tensors())
    assert set(worst) == {"loss", "gradients", "trajectory"}
    assert max(worst.values()) < 1e-9, worst
    steps = {tensor.split("/")[1] for tensor in one.tensors() if tensor.startswith("gradients/")}
    assert steps == {"0", "1", "2", "3", "4"}
    spec = registry.model(name)
    names = {item.name for item in spec.parameters(spec.sizes["tiny"])}
    assert set(jobs.last_parameters(one.tensors())) == names
    assert {f"trajectory/loss/{step}" for step in steps} <= set(one.tensors())


@pytest.mark.parametrize(("name", "config"), LENGTHS)
def test_outputs_and_taps_agree_in_float64(launcher: Launcher, name: str, config: Any) -> None:
    torch, tf = (jobs.case(name, engine, precision="fp64") for engine in ("torch", "tf"))
    inputs = jobs.data_file(launcher, torch, config=config)
    one, other = (jobs.observe(launcher, case, inputs, taps=True).tensors() for case in (torch, tf))
    worst = jobs.worst_relative(other, one)
    assert set(worst) == {"outputs", "taps"}
    assert max(worst.values()) < 1e-9, worst
    spec = registry.model(name)
    batch = spec.batch["tiny"]
    declared = {f"taps/{tap.name}": tap.of(config, batch) for tap in spec.taps(config)}
    assert {key: value.shape for key, value in one.items() if key.startswith("taps/")} == declared
    assert [key for key in one if key.startswith("taps/")] == list(declared), "order of computation"


@pytest.mark.parametrize("name", MODELS)
def test_probe_activations_neither_die_nor_saturate(launcher: Launcher, name: str) -> None:
    case = jobs.case(name, "torch")
    tensors = jobs.observe(launcher, case, jobs.data_file(launcher, case), taps=True).tensors()
    sizes = {
        key: float(np.sqrt(np.mean(value**2)))
        for key, value in tensors.items()
        if value.dtype.kind == "f"
    }
    outside = {key: size for key, size in sizes.items() if not 0.05 <= size <= 20}
    assert not outside


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_matters(launcher: Launcher, name: str) -> None:
    """No gradient of the probe set is zero: what has none is tested by nothing."""
    case = jobs.case(name, "torch", "train", precision="fp64")
    tensors = jobs.observe(launcher, case, jobs.data_file(launcher, case)).tensors()
    dead = [key for key, value in tensors.items() if "gradients/0/" in key and not value.any()]
    assert not dead


# What has gone wrong between frameworks: each planted in a copy of a definition, each found.
TRAPS = {
    "gates-swapped": ("tf.py", "i, f, o = tf.split", "f, i, o = tf.split"),
    "keras-hard-sigmoid": ("tf.py", "t=0.2 * x + 0.5", "t=x / 6.0 + 0.5"),
    "dropped-bias": ("tf.py", "return tf.nn.bias_add(", "return (lambda y, b: y)("),
    "error-order": (
        "tf.py",
        "[tf.nn.relu(ahat - actual), tf.nn.relu(actual - ahat)]",
        "[tf.nn.relu(actual - ahat), tf.nn.relu(ahat - actual)]",
    ),
    "no-pixel-clip": ("tf.py", "ahat = tf.minimum(ahat, 1.0)", "pass"),
    "bilinear": (
        "tf.py",
        "return tf.raw_ops.ResizeNearestNeighbor(",
        "return (lambda **k: tf.cast(tf.raw_ops.ResizeBilinear(**k), x.dtype))(",
    ),
    "gate-not-clipped-below": ("tf.py", "clip_value_min=zero", "clip_value_min=zero - 9"),
    "gate-not-clipped-above": ("tf.py", "clip_value_max=one", "clip_value_max=one + 9"),
    "kernel-layout": ("__init__.py", 'tf_axes="HWIO"', 'tf_axes="WHIO"'),
    "average-pool": ("tf.py", "tf.nn.max_pool2d", "tf.nn.avg_pool2d"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(launcher: Launcher, trap: str) -> None:
    file, old, new = TRAPS[trap]
    truth_case = jobs.case("prednet", "torch", precision="fp64")
    inputs = jobs.data_file(launcher, truth_case)
    truth = jobs.observe(launcher, truth_case, inputs).tensors()
    name = f"zz_{trap.replace('-', '_')}"
    with jobs.model_copy("prednet", name, {file: (old, new)}):
        wrong = jobs.observe(
            launcher, jobs.case(name, "tf", precision="fp64", batch=2), inputs
        ).tensors()
    assert jobs.worst_relative(wrong, truth)["outputs"] > 1e-6


def test_epsilon_of_adam_is_pytorchs(launcher: Launcher) -> None:
    """With a large epsilon, TensorFlow's own placement of it is far from PyTorch's."""
    change = {"__init__.py": ("optimizer=Adam(lr=1e-3)", "optimizer=Adam(lr=1e-3, eps=1e-3)")}
    with jobs.model_copy("prednet", "zz_large_epsilon", change) as name:
        torch, tf = (
            jobs.case(name, engine, "train", precision="fp64", batch=2)
            for engine in ("torch", "tf")
        )
        inputs = jobs.data_file(launcher, torch)
        one, other = (jobs.observe(launcher, case, inputs).tensors() for case in (torch, tf))
    assert jobs.worst_relative(other, one)["trajectory"] < 1e-9
    # And the epsilon does act here, so that the agreement says something.
    plain = jobs.case("prednet", "torch", "train", precision="fp64")
    small = jobs.observe(launcher, plain, inputs).tensors()
    ends = (jobs.last_parameters(tensors) for tensors in (one, small))
    assert max(jobs.worst_relative(*ends).values()) > 1e-6
