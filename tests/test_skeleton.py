"""What exporters do to a graph before it is kept: names, axes, refusals. Needs only onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xbench.errors import ExportFailed, Unsupported
from xbench.exporters.bind import bind
from xbench.exporters.skeleton import IR_VERSION, finish
from xbench.exporters.verify import check
from xbench.spec import Adam, Constant, ModelSpec, ParameterSpec, TensorSpec, Uniform

X = TensorSpec("x", ("batch", 3))
Y = TensorSpec("y", ("batch", 2))
W = ParameterSpec(name="w", shape=(3, 2), init=Constant(0.0), probe=Uniform(0.0, 1.0))
SPEC = ModelSpec(
    name="toy",
    title="",
    paper="",
    sizes={"tiny": None},
    batch={"tiny": 1},
    parameters=lambda config: (W,),
    inputs=lambda config: (X,),
    outputs=lambda config: (Y,),
    taps=lambda config: (),
    losses=("sum",),
    optimizer=Adam(),
    data="",
)


def graph(
    inputs: dict[str, list[Any]] | None = None,
    output: list[Any] | None = None,
    domain: str = "",
    opset: int = 18,
) -> onnx.ModelProto:
    """y = x @ w, as an exporter would leave it."""
    declared = {"x": ["n", 3], "w": [3, 2]} if inputs is None else inputs
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in declared.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, output or ["n", 2])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], domain=domain)
    made = helper.make_graph([node], "toy", values, [result])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(made, opset_imports=imports, ir_version=14)


def finished(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "skeleton.onnx"
    finish(model, SPEC, None, path, tf_layout=False)
    return path


def test_axes_are_named_and_versions_written(tmp_path: Path) -> None:
    path = tmp_path / "skeleton.onnx"
    facts = finish(graph(), SPEC, None, path, tf_layout=False)
    assert facts == {
        "nodes": "1",
        "opset": "18",
        "ir_version": str(IR_VERSION),
        "free axes": "batch",
    }
    model = onnx.load(str(path))
    assert model.ir_version == IR_VERSION
    assert [item.domain for item in model.opset_import] == [""]
    for value in (model.graph.input[0], model.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (graph({"x": ["n", 3]}), "dropped parameter 'w'"),
        (graph({"z": ["n", 3], "w": [3, 2]}), "dropped input 'x'"),
        (graph({"x": [2, 3], "w": [3, 2]}), "axis 'batch' is frozen"),
        (graph(output=[2, 2]), "output 'y'.*frozen"),
        (graph({"x": ["n", 4], "w": [3, 2]}), "input 'x' is declared"),
        (graph({"x": ["n", 3], "w": [2, 3]}), "parameter 'w' is declared"),
        (graph(output=["n", 2, 1]), "output 'y' is declared"),
    ],
)
def test_another_interface_is_refused(tmp_path: Path, model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ExportFailed, match=words):
        finished(tmp_path, model)
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"] or not list(tmp_path.glob("*.onnx"))


def test_a_leftover_operator_is_unsupported_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"tf\.contrib\.MatMul"):
        finished(tmp_path, graph(domain="tf.contrib"))


def test_tf_layout_turns_inputs_but_not_parameters(tmp_path: Path) -> None:
    image = TensorSpec("x", ("batch", 3, 4, 5), axes="NCHW", tf_axes="NHWC")
    kernel = ParameterSpec(
        name="w",
        shape=(2, 3, 1, 1),
        axes="OIHW",
        tf_axes="HWIO",
        init=Constant(0.0),
        probe=Uniform(0.0, 1.0),
    )
    out = TensorSpec("y", ("batch", 2, 4, 5), axes="NCHW", tf_axes="NHWC")
    import msgspec

    spec = msgspec.structs.replace(
        SPEC,
        inputs=lambda config: (image,),
        outputs=lambda config: (out,),
        parameters=lambda config: (kernel,),
    )
    model = graph({"x": ["n", 4, 5, 3], "w": [2, 3, 1, 1]}, output=["n", 4, 5, 2])
    finish(model, spec, None, tmp_path / "skeleton.onnx", tf_layout=True)
    with pytest.raises(ExportFailed, match="input 'x'"):
        finish(
            graph({"x": ["n", 3, 4, 5], "w": [2, 3, 1, 1]}, output=["n", 4, 5, 2]),
            spec,
            None,
            tmp_path / "skeleton.onnx",
            tf_layout=True,
        )


def test_bind_puts_values_and_labels_in(tmp_path: Path) -> None:
    path, target = finished(tmp_path, graph()), tmp_path / "bound.onnx"
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    bind(path, {"w": value}, target, {"seed": "7"})
    model = onnx.load(str(target))
    assert [item.name for item in model.graph.input] == ["x"]
    assert np.array_equal(numpy_helper.to_array(model.graph.initializer[0]), value)
    assert {item.key: item.value for item in model.metadata_props} == {"xbench.seed": "7"}
    onnx.checker.check_model(str(target), full_check=True)
    assert check(target, SPEC, None)["checker"] == onnx.__version__


def test_bind_refuses_other_names_and_shapes(tmp_path: Path) -> None:
    path, target = finished(tmp_path, graph()), tmp_path / "bound.onnx"
    with pytest.raises(ExportFailed, match="no input for parameter 'v'"):
        bind(path, {"v": np.zeros((3, 2), np.float32)}, target, {})
    with pytest.raises(ExportFailed, match=r"\[2, 3\], declared \[3, 2\]"):
        bind(path, {"w": np.zeros((2, 3), np.float32)}, target, {})
    assert not target.exists()


def test_check_names_an_unbound_parameter(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"\['w', 'x'\]"):
        check(finished(tmp_path, graph()), SPEC, None)


def test_check_says_what_the_checker_says(tmp_path: Path) -> None:
    model = graph({"x": ["batch", 3]}, output=["batch", 2])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 2), np.float32), "w"))
    model.ir_version = IR_VERSION
    path = tmp_path / "wrong.onnx"
    onnx.save(model, str(path))
    with pytest.raises(ExportFailed, match=r"onnx\.checker"):
        check(path, SPEC, None)
