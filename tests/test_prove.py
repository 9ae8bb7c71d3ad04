"""Long proofs: PredNet small, in numbers. `make prove` runs them and prints what it saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs
from xbench import exports, registry, tensors
from xbench.exports import Exports
from xbench.launch import Launcher

pytestmark = pytest.mark.prove

SEEDS = (0, 1, 2)
LOSSES = registry.model("prednet").losses


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=600) as launcher:
        yield launcher


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_definition_parity_in_float64(launcher: Launcher, loss: str, seed: int) -> None:
    """Loss, every gradient and the parameters over five steps within 1e-9."""
    torch, tf = (
        jobs.case("prednet", engine, "train", size="small", precision="fp64", loss=loss, seed=seed)
        for engine in ("torch", "tf")
    )
    inputs = jobs.data_file(launcher, torch)
    one, other = (jobs.observe(launcher, case, inputs).tensors() for case in (torch, tf))
    worst = jobs.worst_relative(other, one)
    print(f"\nfloat64 parity, small, {loss}, seed {seed}: {worst}")
    assert max(worst.values()) < 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_float32_training_steps(launcher: Launcher, seed: int) -> None:
    """Torch and TensorFlow in float32: loss within 1e-6 at all steps, gradients within 2e-5."""
    single = {
        engine: jobs.case("prednet", engine, "train", size="small", seed=seed)
        for engine in ("torch", "tf")
    }
    double = jobs.case("prednet", "torch", "train", size="small", precision="fp64", seed=seed)
    inputs = jobs.data_file(launcher, double)
    truth = jobs.observe(launcher, double, inputs).tensors()
    seen = {engine: jobs.observe(launcher, case, inputs) for engine, case in single.items()}
    for engine, report in seen.items():
        own = report.tensors()
        loss = jobs.worst_relative(own, truth)["loss"]
        # One vector: an element on the other side of a kink can be 1e-4 of its own small tensor.
        gradient = jobs.whole_relative(own, truth, "gradients/0/")
        print(
            f"\nfloat32 against float64, small, {engine}, seed {seed}: "
            f"loss {loss:.1e} over 5 steps, gradient {gradient:.1e} at the first"
        )
        assert loss < 1e-6
        assert gradient < 2e-5
    torch, tf = (seen[engine].tensors() for engine in ("torch", "tf"))
    for step in range(5):
        name = f"loss/{step}"
        assert abs(float(torch[name]) - float(tf[name])) < 1e-6 * abs(float(truth[name]))


@pytest.mark.parametrize("source", ["torch", "tf"])
def test_onnx_runtime_at_two_batches(launcher: Launcher, tmp_path: Path, source: str) -> None:
    """Scaled error of ONNX Runtime to the source framework within 1e-5 at batches 1 and 5."""
    spec = registry.model("prednet")
    case = jobs.case("prednet", "ort", size="small", source=source)
    load = registry.model_part("prednet", "data").load
    path = launcher.folder() / "verify.npz"
    tensors.save_batches(
        path,
        [
            load(spec.sizes["small"], batch=batch, count=1, seed=seed, source=None).inputs[0]
            for seed, batch in enumerate(exports.BATCHES)
        ],
    )
    made = Exports(launcher, tmp_path / "own", print).get(case, path)
    assert made.verified is not None, made.reason
    scaled = {tensor.name: tensor.scaled for tensor in made.verified.agreement.tensors}
    print(f"\nort({source}) small: {scaled}")
    assert set(scaled) == {"outputs/prediction", "outputs/prediction@1"}
    assert all(value is not None and value < 1e-5 for value in scaled.values())


def test_full_size_trains_in_both_frameworks(launcher: Launcher) -> None:
    """One step of the published size, in float32, agrees between the frameworks."""
    cases = [jobs.case("prednet", e, "train", size="full", batch=1) for e in ("torch", "tf")]
    inputs = jobs.data_file(launcher, cases[0], count=1)
    one, other = (jobs.observe(launcher, case, inputs).tensors() for case in cases)
    loss = jobs.worst_relative(other, one)["loss"]
    gradient = jobs.whole_relative(other, one, "gradients/0/")
    print(f"\ntorch against tf, float32, full, one step: loss {loss:.1e}, gradient {gradient:.1e}")
    assert loss < 1e-6
    assert gradient < 2e-5
