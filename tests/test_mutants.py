"""The benchmarks of the verdict in small: faults are found, correct pairs are left alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from benchmarks import false_alarms, mutants, mutations
from benchmarks.mutants import Found
from tests.test_pt_operators import Bent
from xbench import verdict
from xbench.result import Agreement

EACH = 6


pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.fixture(scope="module")
def of(folder: Path) -> list[mutants.Base]:
    return list(mutants.bases(folder, ("embedding", "pooling"), prednet=False))


@pytest.fixture(scope="module")
def found(folder: Path, of: list[mutants.Base]) -> list[Found]:
    """What the product says of a few faults."""
    with pytest.MonkeyPatch.context() as patch:
        # Threads of float64 that wait for each other shall not spin: other tests need the CPUs.
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        return [item for one in of for item in mutants.study(one, EACH, 0, folder / one.name)]


def test_faults_are_found_and_noise_is_not(found: list[Found]) -> None:
    assert len(found) == 2 * EACH
    assert not [mutants.shown(item) for item in found if item.wrong]
    # The claims are about something only where both kinds are there.
    assert sum(item.effect > mutants.CERTAIN for item in found) >= 3
    assert sum(item.effect < 1 for item in found) >= 2
    assert {item.verdict for item in found} <= set(verdict.SEVERITY)
    assert any(item.verdict == verdict.DISAGREE for item in found)


def test_what_contradicts_the_claims_is_listed(
    found: list[Found], capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutants.report(found)
    large = max(found, key=lambda item: item.effect)
    missed = msgspec.structs.replace(large, verdict=verdict.AGREE)
    crashed = msgspec.structs.replace(large, verdict="crashed")
    alarm = msgspec.structs.replace(large, effect=0.5, verdict=verdict.DISAGREE)
    capsys.readouterr()
    for item in (missed, crashed, alarm):
        assert item.wrong
        assert not mutants.report([*found, item])
        assert mutants.shown(item) in capsys.readouterr().out


def test_every_effect_and_magnitude_has_one_place_on_the_curve(found: list[Found]) -> None:
    sizes = [mutations.LOWEST, 1e-6, 3e-4, 0.0999, 0.1, 1.0, *(item.magnitude for item in found)]
    effects = [0.0, 1e-9, 1e-2, 0.3, 1.0, 1e5, float("inf"), *(item.effect for item in found)]
    for values, bins in ((sizes, mutants.SIZES), (effects, mutants.EFFECTS)):
        for value in values:
            assert sum(holds(value) for _, holds in bins) == 1, value


def test_the_true_effect_is_what_float64_says(of: list[mutants.Base]) -> None:
    """A last bias moved by a known step moves the logits by that step."""
    base = next(one for one in of if one.name == "embedding")
    model = onnx.load(base.path)
    exact = mutants.in_float64(model, base.feeds)
    assert list(exact) == ["outputs/logits", "outputs/label"]
    (gemm,) = [node for node in model.graph.node if "logits" in node.output]
    bias = next(item for item in model.graph.initializer if item.name == gemm.input[2])
    moved = onnx.numpy_helper.to_array(bias) + 0.25
    bias.CopyFrom(onnx.numpy_helper.from_array(moved, bias.name))
    changed = mutants.in_float64(model, base.feeds)["outputs/logits"]
    assert changed - exact["outputs/logits"] == pytest.approx(0.25, abs=1e-6)
    assert mutants.effect(changed, exact["outputs/logits"], 1e-3) == pytest.approx(250, rel=1e-4)
    assert mutants.effect(np.array([1, 2]), np.array([1, 2]), None) == 0
    assert mutants.effect(np.array([1, 2]), np.array([1, 3]), None) == float("inf")
    assert mutants.effect(changed * np.nan, exact["outputs/logits"], 1e-3) == float("inf")


def test_correct_pairs_are_not_called_different(folder: Path) -> None:
    agreements = false_alarms.of_network("pooling", 1, folder / "correct", threads=(1, 2))
    assert len(agreements) >= 12
    assert not [item.sentence for item in agreements if item.verdict != verdict.AGREE]
    assert all(item.evidence is not None for item in agreements)


def test_gradients_of_a_resnet_are_not_called_different() -> None:
    agreements: list[Agreement] = list(false_alarms.Training(2, 0).agreements())
    assert [item.what for item in agreements] == ["loss", "gradients"] * 2
    assert not [item.sentence for item in agreements if item.verdict != verdict.AGREE]


class Bending(nn.Module):
    """Doubles what it is given; in float32 its gradient is a thousandth off."""

    def forward(self, x: Tensor) -> Tensor:
        return Bent.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_wrong_gradients_are_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises no alarm above would raise one."""
    right = false_alarms.resnet
    monkeypatch.setattr(false_alarms, "resnet", lambda: nn.Sequential(right(), Bending()))
    monkeypatch.setattr(false_alarms, "THREADS", (1,))
    monkeypatch.setattr(false_alarms, "PERTURBATIONS", 2)
    loss, gradients = false_alarms.Training(2, 0).agreements()
    assert loss.verdict == verdict.AGREE
    assert gradients.verdict == verdict.DISAGREE
    assert "xbench_test.doubled" in gradients.sentence
