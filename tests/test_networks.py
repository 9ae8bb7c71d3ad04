"""The hand-made networks run and are of sensible size; their mutants are valid, seeded, varied."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import mutations, networks

Array = np.ndarray[Any, Any]

LARGE: dict[str, dict[str, tuple[int, ...]]] = {"sum10m": {"x": (1, 10_000)}}
"""Inputs of tests where those of the network take longer."""
ALL = list(networks.MAKERS)
MUTATED = ("attention", "pooling", "lstm")
COUNT = 100


def run(model: onnx.ModelProto, feeds: dict[str, Array], *, level: int = 99) -> dict[str, Array]:
    """What onnxruntime computes, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def small(network: networks.Network, batch: int) -> dict[str, Array]:
    """Inputs of a batch that a test has time for."""
    shapes = LARGE.get(network.name, network.shapes)
    return networks.Network(
        name=network.name, model=network.model, shapes=shapes, below=network.below
    ).feeds(batch)


@pytest.mark.parametrize("name", ALL)
def test_a_network_is_valid_and_runs_at_any_batch(name: str) -> None:
    network = networks.MAKERS[name]()
    onnx.checker.check_model(network.model, full_check=True)
    assert network.name == name
    assert network.model.ir_version == networks.IR
    assert [(o.domain, o.version) for o in network.model.opset_import] == [("", network.opset)]
    for value in (*network.model.graph.input, *network.model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == networks.BATCH
    for batch in (1, 8):
        outputs = run(network.model, small(network, batch))
        assert [o.name for o in network.model.graph.output] == list(outputs)
        for output in outputs.values():
            assert len(output) == batch
            assert np.isfinite(output).all()
            assert output.size == 1 or output.std() > 0


@pytest.mark.parametrize("name", [name for name in ALL if name != "sum10m"])
def test_activations_are_of_a_sensible_size(name: str) -> None:
    network = networks.MAKERS[name]()
    model = onnx.shape_inference.infer_shapes(network.model)
    model.graph.output.extend(model.graph.value_info)
    values = run(model, network.feeds(), level=0)
    sizes = {
        key: float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
        for key, value in values.items()
        if value.dtype == np.float32
    }
    assert sizes
    assert all(0.05 <= size <= 20 for size in sizes.values()), sizes


def test_the_networks_have_every_operator_they_are_for() -> None:
    made = networks.networks()
    operators = {
        name: {node.op_type for node in network.model.graph.node} for name, network in made.items()
    }
    assert {"Conv", "BatchNormalization", "MaxPool", "Gemm", "Softmax"} <= operators["convnet"]
    assert {"Gather", "LSTM", "GRU", "MatMul"} <= operators["lstm"]
    assert {"LayerNormalization", "Where", "Softmax", "Erf"} <= operators["attention"]
    assert {"Gather", "Where", "ReduceMean", "ArgMax"} <= operators["embedding"]
    assert {"Resize", "Pad", "Concat", "Tanh"} <= operators["resize"]
    assert {"AveragePool", "LpPool", "LRN", "Clip", "InstanceNormalization"} <= operators["pooling"]
    assert operators["bigmatmul"] == {"MatMul"}
    assert operators["sum10m"] == {"ReduceSum"}
    assert math.prod(made["sum10m"].shapes["x"]) == 10_000_000
    (weight,) = made["bigmatmul"].model.graph.initializer
    assert weight.dims[0] == 4096


def test_both_sides_of_the_clip_and_of_the_mask_are_reached() -> None:
    for name, op, slot in (("pooling", "Clip", 0), ("attention", "Where", 0)):
        network = networks.MAKERS[name]()
        (node,) = [node for node in network.model.graph.node if node.op_type == op]
        model = onnx.shape_inference.infer_shapes(network.model)
        wanted = node.input[slot]
        model.graph.output.extend(v for v in model.graph.value_info if v.name == wanted)
        value = run(model, network.feeds(), level=0)[wanted]
        if op == "Clip":
            assert (value < -0.9).any()
            assert (value > 1.1).any()
        else:
            assert 0 < value.mean() < 1


def test_files_are_written_and_always_the_same(tmp_path: Path) -> None:
    first, second = networks.write(tmp_path / "a"), networks.write(tmp_path / "b")
    assert list(first) == ALL
    for name, path in first.items():
        assert path.name == f"{name}.onnx"
        assert path.read_bytes() == second[name].read_bytes()


def test_inputs_are_seeded_and_a_batch_is_what_was_asked() -> None:
    network = networks.MAKERS["attention"]()
    one, two = network.feeds(3, seed=1), network.feeds(3, seed=1)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert one["tokens"].shape == (3, 16, 32)
    assert set(np.unique(one["mask"])) == {0, 1}
    assert not np.array_equal(one["tokens"], network.feeds(3, seed=2)["tokens"])


@pytest.fixture(scope="module")
def made() -> dict[str, list[mutations.Mutant]]:
    return {
        name: list(mutations.mutants(networks.MAKERS[name]().model, COUNT, 0)) for name in MUTATED
    }


@pytest.mark.parametrize("name", MUTATED)
def test_mutants_run_and_keep_their_shapes(
    name: str, made: dict[str, list[mutations.Mutant]]
) -> None:
    network = networks.MAKERS[name]()
    feeds = network.feeds(2)
    expected = run(network.model, feeds)
    changed = 0
    for mutant in made[name]:
        onnx.checker.check_model(mutant.model, full_check=True)
        outputs = run(mutant.model, feeds)
        assert {k: v.shape for k, v in outputs.items()} == {
            k: v.shape for k, v in expected.items()
        }, mutant.description
        changed += any(not np.array_equal(outputs[key], expected[key]) for key in expected)
    # Others have no effect: an epsilon at one ULP, an element behind a Relu.
    assert changed > 0.8 * COUNT


def test_mutants_are_the_same_for_a_seed_whatever_their_number(
    made: dict[str, list[mutations.Mutant]],
) -> None:
    model = networks.MAKERS["lstm"]().model
    before = model.SerializeToString()
    again = list(mutations.mutants(model, 20, 0))
    assert model.SerializeToString() == before
    for one, two in zip(made["lstm"], again, strict=False):
        assert (one.name, one.kind, one.magnitude, one.node, one.description) == (
            two.name,
            two.kind,
            two.magnitude,
            two.node,
            two.description,
        )
        assert one.model.SerializeToString() == two.model.SerializeToString()
    other = [mutant.description for mutant in mutations.mutants(model, 20, 1)]
    assert other != [mutant.description for mutant in again]


def test_mutants_have_names_of_their_own_and_differ_from_the_model(
    made: dict[str, list[mutations.Mutant]],
) -> None:
    for name, found in made.items():
        assert len(found) == len({mutant.name for mutant in found}) == COUNT
        contents = {mutant.model.SerializeToString() for mutant in found}
        assert len(contents) == COUNT
        assert networks.MAKERS[name]().model.SerializeToString() not in contents
        assert all(mutant.description and mutant.node for mutant in found)


def test_magnitudes_cover_the_range_evenly(made: dict[str, list[mutations.Mutant]]) -> None:
    found = [
        math.log10(mutant.magnitude)
        for mutants in made.values()
        for mutant in mutants
        if mutant.kind in mutations.CONTINUOUS and mutant.magnitude is not None
    ]
    assert min(found) >= math.log10(mutations.LOWEST)
    assert max(found) <= math.log10(mutations.HIGHEST)
    counts, _ = np.histogram(found, 6, (math.log10(2.0**-23), -1.0))
    assert len(found) >= 150
    assert counts.min() >= 0.5 * len(found) / 6, counts


def test_every_kind_is_met_somewhere(made: dict[str, list[mutations.Mutant]]) -> None:
    kinds = Counter(mutant.kind for mutants in made.values() for mutant in mutants)
    for name in ("convnet", "embedding"):
        model = networks.MAKERS[name]().model
        kinds.update(mutant.kind for mutant in mutations.mutants(model, 60, 0))
    assert set(kinds) == {*mutations.CONTINUOUS, *mutations.DISCRETE}


def tensors(model: onnx.ModelProto) -> dict[str, Array]:
    return {init.name: numpy_helper.to_array(init) for init in model.graph.initializer}


def of_kind(name: str, kind: str, count: int = 150) -> list[mutations.Mutant]:
    model = networks.MAKERS[name]().model
    found = [mutant for mutant in mutations.mutants(model, count, 5) if mutant.kind == kind]
    assert found
    return found


def test_an_element_changes_by_its_magnitude_and_no_other_does() -> None:
    original = tensors(networks.MAKERS["lstm"]().model)
    places = set()
    for mutant in of_kind("lstm", "one weight element"):
        differ = {k: v for k, v in tensors(mutant.model).items() if (v != original[k]).any()}
        ((name, value),) = differ.items()
        where = np.flatnonzero(value != original[name])
        assert len(where) == 1
        places.add(int(where[0]))
        old, new = (float(array.reshape(-1)[where[0]]) for array in (original[name], value))
        assert mutant.magnitude is not None
        assert abs(new / old - 1) == pytest.approx(mutant.magnitude, rel=0.01, abs=2.0**-23)
    assert len(places) > 3


def test_swapped_gates_hold_the_same_numbers_in_another_order() -> None:
    original = tensors(networks.MAKERS["lstm"]().model)
    for mutant in of_kind("lstm", "gates swapped"):
        fresh = {k: v for k, v in tensors(mutant.model).items() if k not in original}
        ((name, value),) = fresh.items()
        old = original[name.removesuffix("__mutated")]
        assert (value != old).any()
        assert np.array_equal(np.sort(value, axis=None), np.sort(old, axis=None))


def test_the_approximate_gelu_is_close_and_not_equal() -> None:
    network = networks.MAKERS["attention"]()
    (mutant,) = of_kind("attention", "gelu tanh for erf")
    feeds = network.feeds()
    exact, other = (run(model, feeds)["features"] for model in (network.model, mutant.model))
    # The two Gelus are at most 5e-4 apart; a projection of 64 terms follows.
    assert 1e-6 < np.abs(exact - other).max() < 5e-3


def test_an_inserted_cast_rounds_as_much_as_it_says() -> None:
    network = networks.MAKERS["tanh"]()
    feeds = {"x": np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(1, 512, 512)}
    exact = run(network.model, feeds)["y"]
    found = of_kind("tanh", "cast inserted", 20)
    assert {mutant.magnitude for mutant in found} == {2.0**-11, 2.0**-8}
    for mutant in found:
        assert mutant.magnitude is not None
        rounded = run(mutant.model, feeds)["y"]
        error = np.abs(rounded - exact).max() / np.abs(exact).max()
        assert 0.5 * mutant.magnitude < error <= mutant.magnitude


def test_a_constant_added_is_a_share_of_the_rms() -> None:
    network = networks.MAKERS["tanh"]()
    feeds = network.feeds()
    exact = run(network.model, feeds)["y"].astype(np.float64)
    rms = math.sqrt(float(np.mean(exact**2)))
    for mutant in of_kind("tanh", "constant added", 12):
        assert mutant.magnitude is not None
        if mutant.magnitude > 1e-4:
            moved = run(mutant.model, feeds)["y"] - exact
            assert np.abs(moved).mean() == pytest.approx(mutant.magnitude * rms, rel=1e-2)


def test_what_a_reshape_or_the_batch_would_hide_is_discarded() -> None:
    # An axis 0 of this Concat is twice the batch; no other axis fits.
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, None])
    node = helper.make_node("Concat", ["x", "y"], ["z"], axis=1)
    graph = helper.make_graph([node], "g", [x, y], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = list(mutations.mutants(model, 30, 0))
    assert "attribute changed" not in {mutant.kind for mutant in found}
    assert "operand swapped" in {mutant.kind for mutant in found}


def test_a_model_without_a_place_for_faults_is_named() -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.INT64, ["batch"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ValueError, match="no place for more than 0 mutants"):
        next(mutations.mutants(model, 1, 0))
