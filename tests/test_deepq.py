"""The deep Q-network: a plain computation, traps, the target network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import jobs
from xbench import draws, tensors
from xbench.launch import Launcher
from xbench.models.deepq import KERNELS, SPEC, TARGET, data
from xbench.spec import RMSProp

pytest.importorskip("ale_py")

Array = np.ndarray[Any, Any]
TINY = SPEC.sizes["tiny"]
ONLINE = {item.name for item in SPEC.exported(TINY)}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def batch() -> dict[str, Array]:
    """Steps of Breakout that end a life, that earn a point, and that do neither."""
    played = data.play("Breakout", TINY.side, 0, 0)
    ends, earns = np.flatnonzero(played.done), np.flatnonzero(played.reward)
    steps = np.unique([*ends[:3], *earns[:3], *range(100, 110)])
    return data.as_inputs(played, steps, TINY.history)


@pytest.fixture(scope="module")
def inputs(launcher: Launcher, batch: dict[str, Array]) -> Path:
    """The batch twice: for two steps of training."""
    path = launcher.folder() / "inputs.npz"
    tensors.save_batches(path, [batch, batch])
    return path


@pytest.fixture(scope="module")
def seen(launcher: Launcher, inputs: Path) -> dict[str, dict[str, Array]]:
    """What each framework's training makes of the batch in float64."""
    return {
        engine: jobs.observe(
            launcher, jobs.case("deepq", engine, "train", precision="fp64"), inputs
        ).tensors()
        for engine in ("torch", "tf")
    }


def probe() -> dict[str, Array]:
    return draws.parameters(SPEC, "tiny", "probe", 0, "float64")


def values(parameters: Mapping[str, Array], screens: Array, prefix: str = "") -> list[Array]:
    """What enters the last layer, and what leaves it, by sums of products."""

    def layer(name: str) -> tuple[Array, Array]:
        return parameters[f"{prefix}{name}.weight"], parameters[f"{prefix}{name}.bias"]

    x = screens.astype(np.float64)
    for number, (size, stride) in enumerate(KERNELS, start=1):
        weight, bias = layer(f"conv{number}")
        windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
        sums = np.tensordot(windows[:, :, ::stride, ::stride], weight, ([1, 4, 5], [1, 2, 3]))
        x = np.maximum(np.moveaxis(sums + bias, 3, 1), 0.0)
    weight, bias = layer("fc4")
    hidden = np.maximum(x.reshape(len(x), -1) @ weight.T + bias, 0.0)
    weight, bias = layer("fc5")
    return [hidden, hidden @ weight.T + bias]


def errors(batch: Mapping[str, Array]) -> tuple[Array, Array]:
    """The temporal-difference error of every step, and what enters the last layer there."""
    parameters = probe()
    hidden, found = values(parameters, batch["state"])
    _, after = values(parameters, batch["next_state"], TARGET)
    goals = [
        reward if done else reward + 0.99 * max(row)
        for reward, done, row in zip(
            batch["reward"].tolist(), batch["done"].tolist(), after.tolist(), strict=True
        )
    ]
    return found[np.arange(len(found)), batch["action"]] - np.array(goals), hidden


def test_the_batch_has_all_that_can_happen(batch: dict[str, Array]) -> None:
    error, _ = errors(batch)
    assert set(batch["done"]) == set(batch["reward"]) == {0.0, 1.0}
    assert set(batch["action"]) == {0, 1, 2, 3}
    assert error.min() < -1 < 1 < error.max()
    assert np.abs(error).min() < 0.5


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_the_loss_is_that_of_a_plain_computation(
    seen: dict[str, dict[str, Array]], batch: dict[str, Array], engine: str
) -> None:
    """And so is its gradient by the last layer: the error, clipped to 1, over the batch."""
    error, hidden = errors(batch)
    loss = np.mean([e * e / 2 if abs(e) <= 1 else abs(e) - 0.5 for e in error])
    assert float(seen[engine]["loss/0"]) == pytest.approx(float(loss), rel=1e-12)
    slope = np.zeros((len(error), TINY.actions))
    slope[np.arange(len(error)), batch["action"]] = np.clip(error, -1.0, 1.0) / len(error)
    for name, gradient in (("weight", slope.T @ hidden), ("bias", slope.sum(axis=0))):
        found = seen[engine][f"gradients/0/fc5.{name}"]
        np.testing.assert_allclose(found, gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("engine", ["torch", "tf"])
def test_the_target_network_has_no_gradient_and_stays_as_it_is(
    seen: dict[str, dict[str, Array]], engine: str
) -> None:
    with_gradient = {
        name.removeprefix("gradients/0/") for name in seen[engine] if "gradients/0/" in name
    }
    assert with_gradient == ONLINE
    before, after = probe(), jobs.last_parameters(seen[engine])
    kept = {name for name, value in after.items() if np.array_equal(value, before[name])}
    assert kept == {TARGET + name for name in ONLINE}
    assert before.keys() == ONLINE | kept


def test_the_frameworks_agree(seen: dict[str, dict[str, Array]]) -> None:
    assert max(jobs.worst_relative(seen["tf"], seen["torch"]).values()) < 1e-9


# What is planted in a copy: file, text, wrong text. The loss must show it.
BEST = "tf.reduce_max(self(next_state, TARGET)"
TRAPS = {
    "mean-for-max": ("tf.py", BEST, BEST.replace("max", "mean")),
    "online-for-target": ("tf.py", BEST, "tf.reduce_max(self(next_state)"),
    "the-end-is-not-the-end": ("tf.py", "GAMMA * (1.0 - done)", "GAMMA"),
    "best-for-taken": ("tf.py", "tf.reduce_sum(values * chosen,", "tf.reduce_max(values,"),
    "channels-last-before-fc4": (
        "tf.py",
        "flatten(x))",
        "tf.reshape(x, [tf.shape(x)[0], self.config.features]))",
    ),
    "newest-screen-first": ("tf.py", "x = state\n", "x = state[..., ::-1]\n"),
    "kernel-layout": (
        "__init__.py",
        "replace(item, init=init)",
        'replace(item, init=init, tf_axes=item.tf_axes.replace("HW", "WH"))',
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(
    launcher: Launcher, seen: dict[str, dict[str, Array]], inputs: Path, trap: str
) -> None:
    file, old, new = TRAPS[trap]
    with jobs.model_copy("deepq", f"zz_{trap.replace('-', '_')}", {file: (old, new)}) as name:
        wrong = jobs.observe(
            launcher, jobs.case(name, "tf", "train", precision="fp64"), inputs
        ).tensors()
    assert jobs.worst_relative(wrong, seen["torch"])["loss"] > 1e-4


def test_the_convolution_for_exports_is_the_same(
    launcher: Launcher, seen: dict[str, dict[str, Array]], inputs: Path
) -> None:
    """That they hold the online network only, with the right values, is tested of every model."""
    native = {"tf.py": ("exporting() and x is state", "x is state")}
    with jobs.model_copy("deepq", "zz_in_rows", native) as name:
        found = jobs.observe(
            launcher, jobs.case(name, "tf", "train", precision="fp64"), inputs
        ).tensors()
    assert max(jobs.worst_relative(found, seen["torch"]).values()) < 1e-9


def test_sizes_are_the_published_ones() -> None:
    """1,686,180 for the four actions of Breakout; 513 more for every other."""
    assert SPEC.parameter_count("full") == 1_686_180
    assert SPEC.parameter_count("legal") == 1_686_180 + 14 * (512 + 1)
    full = SPEC.sizes["full"]
    assert [c.side for c in full.plan()] == [20, 9, 7]
    assert full.features == 3136
    plan = [(c.inputs, c.outputs, c.size, c.stride) for c in full.plan()]
    assert plan == [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
    assert len(SPEC.parameters(full)) == 2 * len(SPEC.exported(full)) == 20


def test_the_optimizer_is_the_papers() -> None:
    """Of gradients that are sums over the batch, whose mean square has 0.01 added to it."""
    assert SPEC.optimizer == RMSProp(lr=2.5e-4, alpha=0.95, eps=0.1 / 32)
    assert set(SPEC.batch.values()) == {32}
