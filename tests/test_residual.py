"""Residual networks: layers and shapes of the paper, and the traps of normalisation and padding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests import jobs
from xbench import registry
from xbench.errors import UsageError
from xbench.launch import Launcher

SPEC = registry.model("residual")
TINY = '"tiny": Config(blocks=(3, 4, 6, 3), '
SHORT = '"tiny": Config(blocks=(1, 2, 1, 1), '
"""Both shortcuts, with and without a projection, and no more: a trap is found in a second."""
BOTTLENECKS = '"tiny": Config(bottleneck=True, blocks=(1, 2, 1, 1), '

NORM = """    def batch_norm(self, name, x, *, training):
        scale, shift, *running = (
            self.parameters[f"{{name}}.{{part}}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        count = tf.cast(tf.size(x) / tf.size(scale), x.dtype)
        batch = tf.nn.moments(x, [0, 1, 2])
        if training:
            kept = (batch[0], batch[1] * {correction})
            for old, new in zip(running, kept):
                old.assign((1.0 - {momentum}) * old + {momentum} * new)
        mean, variance = batch if {own} else running
        return (x - mean) / tf.sqrt(variance + {epsilon}) * scale + shift

    def stem("""
"""Batch normalisation written out once more, with places for what goes wrong with it."""
RIGHT = {
    "correction": "count / (count - 1.0)",
    "momentum": "0.1",
    "own": "training",
    "epsilon": "1e-5",
}


def normalising(**changes: str) -> tuple[str, str]:
    """The change of tf.py that normalises by ``NORM``, right but for ``changes``."""
    return "    def stem(", NORM.format(**(RIGHT | changes))


TRAPS = {
    "same-padding-of-7x7": (
        'self.conv("stem.conv", image, stride=2, pad=3)',
        'tf.nn.conv2d(image, self.parameters["stem.conv.weight"], 2, "SAME")',
    ),
    "same-padding-of-3x3": (
        'self.conv(f"{block.name}.conv1", x, stride=block.stride, pad=1)',
        'tf.nn.conv2d(x, self.parameters[f"{block.name}.conv1.weight"], block.stride, "SAME")',
    ),
    "same-padding-of-pool": (
        "max_pool(x, size=3, stride=2, pad=1, xla=self.xla)",
        'tf.nn.max_pool2d(x, 3, 2, "SAME")',
    ),
    "keras-epsilon": normalising(epsilon="1e-3"),
    "running-statistics-unused": normalising(own="True"),
    "shortcut-not-normalised": (
        'return self.batch_norm(f"{block.name}.shortcut.norm", x, training=training)',
        "return x",
    ),
    "relu-before-the-sum": (
        "tf.nn.relu(y + self.shortcut(block, x, training))",
        "tf.nn.relu(y) + self.shortcut(block, x, training)",
    ),
}
"""Traps of inference, each as a change of tf.py."""
TRAINING_TRAPS = {
    "keras-momentum": (normalising(momentum="0.9"), {"running_mean", "running_var"}),
    "biased-running-variance": (normalising(correction="1.0"), {"running_var"}),
    "running-statistics-in-training": (
        normalising(own="False"),
        {"weight", "bias", "running_mean", "running_var"},
    ),
}
"""Traps of a training step, each with the kinds of parameters that one step spoils."""
STRIDE_IN_FIRST = """
        y = self.conv(f"{block.name}.conv1", x, stride=block.stride)
        y = tf.nn.relu(self.batch_norm(f"{block.name}.norm1", y, training=training))
        y = self.conv(f"{block.name}.conv2", y, pad=1)
"""
STRIDE_IN_SECOND = """
        y = self.conv(f"{block.name}.conv1", x)
        y = tf.nn.relu(self.batch_norm(f"{block.name}.norm1", y, training=training))
        y = self.conv(f"{block.name}.conv2", y, stride=block.stride, pad=1)
"""


class Bench:
    """Runs copies of the model that have few blocks, on the model's own data."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        case = jobs.case("residual", "torch")
        self.inputs = {count: jobs.data_file(launcher, case, count) for count in (1, 5)}
        self.truths: dict[tuple[str, str], dict[str, jobs.Array]] = {}

    def observe(
        self,
        name: str,
        engine: str,
        phase: str,
        *,
        tiny: str = SHORT,
        change: tuple[str, str] | None = None,
        precision: str = "fp64",
        steps: int = 1,
        states: Path | None = None,
    ) -> dict[str, jobs.Array]:
        """What ``engine`` computes of a copy called ``name``, after ``change`` of its tf.py."""
        changes = {"__init__.py": (TINY, tiny)} | ({"tf.py": change} if change else {})
        case = jobs.case("residual", engine, phase, precision=precision)
        with jobs.model_copy("residual", f"zz_residual_{name.replace('-', '_')}", changes) as copy:
            case = msgspec.structs.replace(case, model=copy)
            report = jobs.observe(
                self.launcher,
                case,
                self.inputs[steps],
                taps=phase == "infer",
                makes_states=phase == "train" and states is None,
                states=None if states is None else str(states),
            )
        self.states = Path(jobs.states_of(report))
        return report.tensors()

    def truth(self, phase: str, tiny: str = SHORT) -> dict[str, jobs.Array]:
        """What PyTorch computes in float64, from one batch; kept."""
        if (phase, tiny) not in self.truths:
            found = self.observe("truth", "torch", phase, tiny=tiny)
            self.truths[phase, tiny] = found
        return self.truths[phase, tiny]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Launcher(time_limit_s=300) as launcher:
        yield Bench(launcher)


@pytest.mark.parametrize(
    ("size", "depth"), [("tiny", 34), ("small", 34), ("full", 34), ("deep", 152)]
)
def test_depth(size: str, depth: int) -> None:
    """Layers with weights on the main path, as the paper counts them."""
    weights = [
        item.name
        for item in SPEC.parameters(SPEC.sizes[size])
        if len(item.shape) > 1 and ".shortcut." not in item.name
    ]
    assert len(weights) == depth


@pytest.mark.parametrize(("size", "expansion"), [("full", 1), ("deep", 4)])
def test_shapes_are_those_of_table_1(size: str, expansion: int) -> None:
    config = SPEC.sizes[size]
    shapes = {tap.name: tap.shape[1:] for tap in SPEC.taps(config)}
    assert shapes["stem"] == (64, 56, 56)
    for stage, count in enumerate(config.blocks):
        channels, side = expansion * 64 * 2**stage, 56 // 2**stage
        for number in range(1, count + 1):
            assert shapes[f"stage{stage + 1}.block{number}"] == (channels, side, side)
    assert shapes["pooled"] == (512 * expansion,)
    projections = [
        item.name for item in SPEC.parameters(config) if item.name.endswith("shortcut.conv.weight")
    ]
    first = 1 if expansion == 4 else 2  # A bottleneck widens stage 1 too.
    assert projections == [f"stage{s}.block1.shortcut.conv.weight" for s in range(first, 5)]


def test_baseline_knows_one_loss() -> None:
    data = registry.model_part("residual", "data")
    batches = [{"label": np.array([0, 0, 1, 1])}]
    config = SPEC.sizes["tiny"]
    assert data.baseline(batches, "cross-entropy", config) == pytest.approx([np.log(2)])
    with pytest.raises(UsageError, match="mse"):
        data.baseline(batches, "mse", config)


def test_the_written_out_normalisation_is_right(bench: Bench) -> None:
    """So that what the traps find is what they change of it."""
    for phase in ("infer", "train"):
        found = bench.observe("control", "tf", phase, change=normalising())
        worst = jobs.worst_relative(found, bench.truth(phase))
        assert max(worst.values()) < 1e-9, worst


@pytest.mark.parametrize("trap", TRAPS)
def test_a_sprung_trap_is_found(bench: Bench, trap: str) -> None:
    wrong = bench.observe(trap, "tf", "infer", change=TRAPS[trap])
    assert jobs.worst_relative(wrong, bench.truth("infer"))["outputs"] > 1e-6


@pytest.mark.parametrize("trap", TRAINING_TRAPS)
def test_a_sprung_trap_of_training_is_found(bench: Bench, trap: str) -> None:
    change, spoiled = TRAINING_TRAPS[trap]
    wrong = jobs.last_parameters(bench.observe(trap, "tf", "train", change=change))
    truth = jobs.last_parameters(bench.truth("train"))
    off = {
        name.rpartition(".")[2]
        for name, value in truth.items()
        if max(jobs.worst_relative({name: wrong[name]}, {name: value}).values()) > 1e-6
    }
    assert off == spoiled


def test_bottlenecks_agree_in_float64(bench: Bench) -> None:
    """Outputs and taps; loss, gradients and running statistics of five steps; all to 1e-9."""
    found = bench.observe("bottlenecks", "tf", "infer", tiny=BOTTLENECKS)
    worst = jobs.worst_relative(found, bench.truth("infer", BOTTLENECKS))
    assert set(worst) == {"outputs", "taps"}
    assert max(worst.values()) < 1e-9, worst
    one = bench.observe("bottlenecks", "torch", "train", tiny=BOTTLENECKS, steps=5)
    other = bench.observe(
        "bottlenecks", "tf", "train", tiny=BOTTLENECKS, steps=5, states=bench.states
    )
    worst = jobs.worst_relative(other, one)
    assert set(worst) == {"loss", "gradients", "trajectory"}
    assert max(worst.values()) < 1e-9, worst
    assert "stage1.block1.conv3.weight" in jobs.last_parameters(one)
    assert all(value.any() for name, value in one.items() if name.startswith("gradients/0/"))


def test_stride_in_the_second_convolution_is_found(bench: Bench) -> None:
    """It has the same parameters and shapes: only the values tell."""
    wrong = bench.observe(
        "stride", "tf", "infer", tiny=BOTTLENECKS, change=(STRIDE_IN_FIRST, STRIDE_IN_SECOND)
    )
    worst = jobs.worst_relative(wrong, bench.truth("infer", BOTTLENECKS))
    assert worst["outputs"] > 1e-6


def test_running_variance_is_unbiased_in_float32(bench: Bench) -> None:
    """TensorFlow's fused kernel hands out the unbiased variance, which float64 writes out."""
    torch, tf = (
        jobs.last_parameters(bench.observe("fused", engine, "train", precision="fp32"))
        for engine in ("torch", "tf")
    )
    # Over 4 x 2 x 2 values the two differ by a sixteenth, of which a tenth is taken.
    for name in (f"stage4.block1.norm{number}.running_var" for number in (1, 2)):
        np.testing.assert_allclose(tf[name], torch[name], rtol=1e-4)
