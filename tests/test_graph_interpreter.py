"""The interpreter of ONNX graphs, and the float64 reference that it is."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from xbench import tensors
from xbench.errors import EngineError, Unavailable, Unsupported
from xbench.runners import float64
from xbench.runners.base import Work
from xbench.runners.graph import decode, ties
from xbench.runners.graph import interpreter as interpreting
from xbench.runners.graph.choices import Choice
from xbench.runners.graph.interpreter import Interpreter
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value
from xbench.runners.graph.segments import in_order
from xbench.runners.graph.terms import terms
from xbench.spec import Case, Signature, TensorSpec, file_spec

FLOAT, HALF, INT, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.BOOL,
)
node = helper.make_node


def info(name: str, element: int = FLOAT, shape: Sequence[int] | None = None) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def graph(
    nodes: list[NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, Any] | None = None,
) -> onnx.GraphProto:
    held = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (constants or {}).items()
    ]
    inputs = [info(item) if isinstance(item, str) else item for item in inputs]
    outputs = [info(item) if isinstance(item, str) else item for item in outputs]
    return helper.make_graph(nodes, "g", inputs, outputs, held)


def model(*arguments: Any, opset: int = 20, functions: Sequence[Any] = ()) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(
        graph(*arguments), opset_imports=opsets, functions=functions, ir_version=9
    )


def array(value: Value) -> np.ndarray[Any, Any]:
    assert isinstance(value, Tensor)
    return value.numpy()


def f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Values and their types


def test_floats_are_evaluated_in_double() -> None:
    x, w = f32(3, 40), f32(40, 5, seed=1)
    runs = Interpreter(model([node("MatMul", ["x", "w"], ["y"])], ["x"], ["y"], {"w": w}))
    found = array(runs.run({"x": x})["y"])
    assert found.dtype == np.float64
    np.testing.assert_array_max_ulp(found, x.astype(float) @ w.astype(float), 64)
    assert runs.not_in_double == []
    assert runs.types == {"x": FLOAT, "w": FLOAT, "y": FLOAT}


def test_the_same_graph_in_single_is_another_engine() -> None:
    x = f32(3, 40)
    made = model([node("Exp", ["x"], ["y"])], ["x"], ["y"])
    found = Interpreter(made, dtype=torch.float32).run({"x": x})["y"]
    assert array(found).dtype == np.float32
    assert (array(found) != array(Interpreter(made).run({"x": x})["y"])).any()


def test_integers_and_booleans_stay_what_they_are() -> None:
    made = model(
        [node("Greater", ["x", "zero"], ["b"]), node("Shape", ["x"], ["s"])],
        ["x"],
        [info("b", BOOL), info("s", INT)],
        {"zero": np.float32(0)},
    )
    found = Interpreter(made).run({"x": f32(2, 3)})
    assert array(found["b"]).dtype == np.bool_
    assert array(found["s"]).dtype == np.int64
    assert list(array(found["s"])) == [2, 3]


def test_every_width_of_float_and_integer_is_decoded() -> None:
    values = np.array([0.5, -1.5, 3.0])
    for kind in ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        held = values.astype(getattr(ml_dtypes, kind, None) or np.dtype(kind))
        found = decode.tensor(numpy_helper.from_array(held), torch.float64)
        assert array(found).dtype == np.float64
        assert list(array(found)) == list(values)
    four = np.array([-8, 7, 0]).astype(ml_dtypes.int4)
    assert list(array(decode.tensor(numpy_helper.from_array(four), torch.float64))) == [-8, 7, 0]


@pytest.mark.parametrize(
    ("kind", "element"), [("float16", HALF), ("bfloat16", TensorProto.BFLOAT16)]
)
def test_narrowing_rounds_once(kind: str, element: int) -> None:
    bits = {"float16": 10, "bfloat16": 7}[kind]
    # Just above a tie: by way of float32 it would become the tie, and go down to even.
    above = 1 + 2.0 ** -(bits + 1) + 2.0**-40
    values = torch.tensor(
        [above, 1 + 2.0 ** -(bits + 1), -above, 0.0, np.inf, np.nan], dtype=torch.float64
    )
    step = 1 + 2.0**-bits
    found = decode.round_to(values, element).numpy()
    np.testing.assert_array_equal(found, [step, 1.0, -step, 0.0, np.inf, np.nan])


def test_narrowing_to_half_is_numpys() -> None:
    values = np.random.default_rng(0).normal(size=4000) * 10.0 ** np.arange(-4, 4).repeat(500)
    found = decode.round_to(torch.from_numpy(values), HALF).numpy()
    np.testing.assert_array_equal(found, values.astype(np.float16).astype(np.float64))


def test_a_cast_down_rounds_and_a_cast_up_does_not() -> None:
    def cast(to: int) -> Any:
        made = model([node("Exp", ["x"], ["e"]), node("Cast", ["e"], ["y"], to=to)], ["x"], ["y"])
        made.graph.output[0].type.tensor_type.elem_type = to
        return array(Interpreter(made).run({"x": f32(50)})["y"])

    exact = np.exp(f32(50).astype(float))
    np.testing.assert_array_equal(cast(HALF), exact.astype(np.float16).astype(float))
    assert (cast(FLOAT) != cast(FLOAT).astype(np.float32)).any()


def test_texts_have_no_reference() -> None:
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"a"])
    made = model([node("Identity", ["t"], ["y"])], [], [info("y", TensorProto.STRING)])
    made.graph.initializer.append(text)
    with pytest.raises(Unsupported, match="'t' holds texts"):
        Interpreter(made).run({})
    with pytest.raises(Unsupported, match="texts"):
        Interpreter(made).run({"t": np.array(["a"], object)})


# What is run


def chain(length: int) -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(length))]
    nodes = [
        node("Neg", [a], [b], name=f"n{k}") for k, (a, b) in enumerate(itertools.pairwise(names))
    ]
    return model(nodes, ["x"], [names[-1]])


def ran(runs: Interpreter, *arguments: Any, **options: Any) -> tuple[dict[str, Value], list[str]]:
    names: list[str] = []
    found = runs.run(*arguments, visit=lambda proto, *_: names.append(proto.name), **options)
    return found, names


def test_only_what_is_needed_is_run() -> None:
    runs = Interpreter(chain(6))
    found, names = ran(runs, {"x": f32(2)}, ["t2", "x"])
    assert names == ["n0", "n1", "n2"]
    assert list(found) == ["t2", "x"]
    found, names = ran(runs, {}, ["t5"], given={"t3": np.array([4.0], np.float32)})
    assert names == ["n4", "n5"]
    assert array(found["t5"]) == 4.0
    found, names = ran(runs, {"x": f32(1)}, ["t1", "t3"], given={"t1": np.array([9.0], np.float32)})
    assert names == ["n2", "n3"]
    assert array(found["t1"]) == 9.0
    with pytest.raises(EngineError, match="no tensor 'tt'"):
        runs.run({"x": f32(1)}, ["tt"])
    with pytest.raises(EngineError, match="input 'x' is not given"):
        runs.run({})


def test_a_given_output_stays_where_the_other_of_its_node_is_computed() -> None:
    made = model(
        [node("Split", ["x"], ["a", "b"], num_outputs=2), node("Add", ["a", "b"], ["y"])],
        ["x"],
        ["y"],
    )
    given = {"a": np.array([10.0], np.float32)}
    found = Interpreter(made).run({"x": np.array([1, 2], np.float32)}, ["a", "y"], given=given)
    assert array(found["a"]) == 10
    assert array(found["y"]) == 12


def test_values_go_after_their_last_use() -> None:
    alive: list[Any] = []
    most = 0

    def visit(proto: NodeProto, made: Node, inputs: Any, outputs: Any) -> None:
        nonlocal most
        alive.append(weakref.ref(outputs[0]))
        most = max(most, sum(item() is not None for item in alive))

    Interpreter(chain(20)).run({"x": f32(2)}, visit=visit)
    assert most == 2


def test_a_walk_can_be_ended_between_nodes() -> None:
    runs = Interpreter(chain(5))
    turns = 0

    def tick() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            raise EngineError("enough")

    runs.tick = tick
    with pytest.raises(EngineError, match="enough"):
        runs.run({"x": f32(1)})
    assert turns == 3


def test_parameters_are_replaced_also_within_a_loop() -> None:
    made = model([node("Mul", ["x", "w"], ["y"])], ["x"], ["y"], {"w": np.float32(3)})
    runs = Interpreter(made)
    assert array(runs.run({"x": np.float32(2)})["y"]) == 6
    moved = {"w": torch.tensor(5.0, dtype=torch.float64)}
    assert array(runs.run({"x": np.float32(2)}, constants=moved)["y"]) == 10
    assert array(runs.run({"x": np.float32(2)})["y"]) == 6
    looped = Interpreter(adding_loop(3))
    step = {"step": torch.tensor(10.0, dtype=torch.float64)}
    assert array(looped.run({"x": np.float32(1)}, constants=step)["y"]) == 31


# Control flow


def adding_loop(trips: int) -> onnx.ModelProto:
    body = graph(
        [
            node("Add", ["s", "step"], ["t"]),
            node("Less", ["t", "end"], ["on"]),
            node("Mul", ["t", "x"], ["row"]),
        ],
        [info("i", INT, []), info("c", BOOL, []), info("s", FLOAT, [])],
        [info("on", BOOL, []), info("t", FLOAT, []), info("row", FLOAT, [])],
        {"step": np.float32(1)},
    )
    return model(
        [node("Loop", ["m", "", "x"], ["y", "rows"], body=body, name="loop")],
        [info("x", FLOAT, [])],
        ["y", "rows"],
        {"m": np.int64(trips), "end": np.float32(100)},
    )


def test_a_loop_ends_at_its_condition_or_count() -> None:
    found = Interpreter(adding_loop(4)).run({"x": np.float32(2)})
    assert array(found["y"]) == 6
    # The rows read x from outside.
    assert list(array(found["rows"])) == [6, 8, 10, 12]
    found = Interpreter(adding_loop(1000)).run({"x": np.float32(95)})
    assert array(found["y"]) == 100
    assert array(found["rows"]).shape == (5,)
    found = Interpreter(adding_loop(0)).run({"x": np.float32(2)})
    assert array(found["y"]) == 2
    assert array(found["rows"]).shape == (0,)
    assert array(found["rows"]).dtype == np.float64


def late() -> onnx.ModelProto:
    """A branch and a sum before what they read; the last node makes what the first needs."""
    then = graph([node("Add", ["t0", "a"], ["t"]), node("Neg", ["a"], ["t0"])], [], ["t"])
    other = graph([node("Mul", ["a", "a"], ["e"])], [], ["e"])
    return model(
        [
            node("Add", ["b", "half"], ["y"]),
            node("If", ["c"], ["b"], then_branch=then, else_branch=other),
            node("Shape", ["y"], ["s"]),
            node("Exp", ["scaled"], ["a"]),
            node("Cast", ["x"], ["half"], to=HALF),
            node("Mul", ["x", "two"], ["scaled"]),
            node("Constant", [], ["two"], value_float=2.0),
        ],
        ["x", info("c", BOOL, [])],
        ["y", info("s", INT)],
    )


def test_nodes_may_come_before_what_they_read() -> None:
    runs = Interpreter(late())
    x = np.float32(0.5)
    given = {"x": x, "c": np.array(False)}
    assert array(runs.run(given)["y"]) == pytest.approx(np.exp(1.0) ** 2 + 0.5, rel=1e-15)
    assert array(runs.run({**given, "c": np.array(True)})["y"]) == 0.5
    assert {"b": FLOAT, "half": HALF, "s": INT}.items() <= runs.types.items()


def order(nodes: Sequence[NodeProto]) -> list[str]:
    return [made.output[0] for made in in_order(nodes)]


def test_only_nodes_that_are_late_move() -> None:
    assert order(late().graph.node) == ["two", "scaled", "a", "b", "half", "y", "s"]
    for seed in range(5):
        nodes = [node("Add", [f"n{i // 2}", f"n{i - 1}"], [f"n{i}"]) for i in range(1, 400)]
        assert order(nodes) == [made.output[0] for made in nodes]
        drawn = np.random.default_rng(seed).permutation(len(nodes))
        assert order([nodes[k] for k in drawn]) == [made.output[0] for made in nodes]


def test_without_a_right_order_the_tensor_that_lacks_is_named() -> None:
    last = node("Neg", ["x"], ["p"])
    cycle = [node("Add", ["p", "b"], ["a"]), node("Neg", ["a"], ["b"]), last]
    twice = [node("Neg", ["b"], ["a"]), node("Neg", ["x"], ["b"]), node("Neg", ["x"], ["b"])]
    for nodes in (cycle, twice):
        assert order(nodes) == [made.output[0] for made in nodes]
    with pytest.raises(EngineError, match="the graph has no tensor 'p'"):
        Interpreter(model(cycle, ["x"], ["b"])).run({"x": np.float32(1)})
    lacks = [node("Neg", ["a"], ["y"]), node("Neg", ["nowhere"], ["a"])]
    with pytest.raises(EngineError, match="the graph has no tensor 'nowhere'"):
        Interpreter(model(lacks, ["x"], ["y"])).run({"x": np.float32(1)})


def test_a_branch_sees_what_is_around_it() -> None:
    then = graph([node("Add", ["a", "a"], ["t"])], [], ["t"])
    other = graph([node("Mul", ["a", "a"], ["e"])], [], ["e"])
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = model(
        [node("Neg", ["x"], ["a"]), node("Neg", ["x"], ["unused"]), branch],
        ["x", info("c", BOOL, [])],
        ["y"],
    )
    runs = Interpreter(made)
    assert array(runs.run({"x": np.float32(3), "c": np.array(True)})["y"]) == -6
    assert array(runs.run({"x": np.float32(3), "c": np.array(False)})["y"]) == 9
    assert runs.types["y"] == FLOAT


def test_a_scan_runs_backward_along_any_axis() -> None:
    body = graph(
        [node("Add", ["s", "r"], ["t"]), node("Identity", ["t"], ["o"])],
        ["s", "r"],
        ["t", "o"],
    )
    scan = node(
        "Scan",
        ["init", "x"],
        ["last", "sums"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    x = f32(2, 4)
    made = model([scan], ["x"], ["last", "sums"], {"init": np.zeros(2, np.float32)})
    found = Interpreter(made).run({"x": x})
    sums = x.astype(float)[:, ::-1].cumsum(1)[:, ::-1]
    np.testing.assert_allclose(array(found["sums"]), sums, rtol=1e-15)
    np.testing.assert_allclose(array(found["last"]), sums[:, 0], rtol=1e-15)


def decoder() -> onnx.ModelProto:
    """Three steps that each choose the largest of a row which the last choice scales."""
    body = graph(
        [
            node("Gather", ["table", "token"], ["row"]),
            node("ArgMax", ["row"], ["next"], axis=0, keepdims=0),
            node("Identity", ["c"], ["on"]),
        ],
        [info("i", INT, []), info("c", BOOL, []), info("token", INT, [])],
        [info("on", BOOL, []), info("next", INT, []), info("row", FLOAT, [3])],
    )
    loop = node("Loop", ["m", "", "first"], ["last", "rows"], body=body)
    return model(
        [loop],
        [info("first", INT, [])],
        [info("last", INT, []), "rows"],
        {"m": np.int64(3), "table": np.array([[0, 1, 2], [5, 4, 3], [0, 9, 9]], np.float32)},
    )


def test_a_decoded_sequence_follows_the_choices_that_are_forced() -> None:
    runs = Interpreter(decoder())
    first = {"first": np.int64(0)}
    assert array(runs.run(first)["rows"]).tolist() == [[0, 1, 2], [0, 9, 9], [5, 4, 3]]
    forced = {"next": [torch.tensor(k) for k in (2, 2, 1)]}
    seen: list[int] = []
    runs.choosing = lambda name, made, inputs, outputs: seen.append(int(array(outputs[0])))
    found = runs.run(first, forced=forced)
    assert array(found["rows"]).tolist() == [[0, 1, 2], [0, 9, 9], [0, 9, 9]]
    assert array(found["last"]) == 1
    # What it would have chosen is seen before it is forced.
    assert seen == [2, 1, 1]
    with pytest.raises(EngineError, match="more often than the 2 times"):
        runs.run(first, forced={"next": forced["next"][:2]})
    with pytest.raises(EngineError, match="of shape"):
        runs.run(first, forced={"next": [torch.tensor([1, 1])] * 3})


def test_a_forced_topk_gives_the_values_of_the_forced_places() -> None:
    made = model(
        [node("TopK", ["x", "k"], ["v", "i"])],
        ["x"],
        ["v", info("i", INT)],
        {"k": np.array([2], np.int64)},
    )
    x = np.array([[1, 3, 2]], np.float32)
    found = Interpreter(made).run({"x": x}, forced={"i": [torch.tensor([[2, 0]])]})
    assert array(found["v"]).tolist() == [[2, 1]]
    assert array(found["i"]).tolist() == [[2, 0]]


# Ways to evaluate


def test_a_function_of_the_file_is_its_body() -> None:
    scaled = node("LeakyRelu", ["a"], ["s"])
    scaled.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=1))
    function = helper.make_function(
        "own",
        "F",
        ["a", "b"],
        ["s", "h"],
        [scaled, node("OptionalHasElement", ["b"], ["h"])],
        [helper.make_opsetid("", 20)],
        attributes=[],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    made = model(
        [
            node("F", ["x"], ["y", "has"], domain="own"),
            node("F", ["y", "x"], ["z"], domain="own", slope=0.25),
        ],
        ["x"],
        ["y", "z", info("has", BOOL)],
        functions=[function],
    )
    found = Interpreter(made).run({"x": np.float32(-8)})
    assert array(found["y"]) == -4
    assert array(found["z"]) == -1
    assert not array(found["has"])


def test_the_function_of_a_schema_is_evaluated_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    x = f32(4, 6).astype(np.float16)
    made = model(
        [node("LayerNormalization", ["x", "w"], ["y"])],
        [info("x", HALF)],
        [info("y", HALF)],
        {"w": np.ones(6, np.float16)},
    )
    by_table = array(Interpreter(made).run({"x": x})["y"])
    monkeypatch.delitem(OPERATORS, ("", "LayerNormalization"))
    runs = Interpreter(made)
    by_body = array(runs.run({"x": x})["y"])
    np.testing.assert_allclose(by_body, by_table, rtol=1e-12, atol=1e-14)
    # Nor is it rounded to the type that the file declares, or to float32.
    assert (by_body != by_body.astype(np.float32)).all()
    assert runs.not_in_double == []


def test_what_a_table_refuses_onnx_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(made: Node, inputs: Sequence[Value]) -> Value:
        raise NotInDouble("not today")

    x = f32(3, 3)
    made = model([node("Det", ["x"], ["y"], name="d")], ["x"], ["y"])
    expected = array(Interpreter(made).run({"x": x})["y"])
    monkeypatch.setitem(OPERATORS, ("", "Det"), refuses)
    runs = Interpreter(made)
    np.testing.assert_allclose(array(runs.run({"x": x})["y"]), expected, rtol=1e-13)
    assert runs.not_in_double == []


def test_arithmetic_that_is_not_double_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(made: Node, inputs: Sequence[Value]) -> Value:
        assert isinstance(inputs[0], Tensor)
        return inputs[0].float().exp()

    monkeypatch.setitem(OPERATORS, ("", "Exp"), single)
    made = model([node("Exp", ["x"], ["y"], name="e")], ["x"], ["y"])
    runs = Interpreter(made)
    assert array(runs.run({"x": f32(3)})["y"]).dtype == np.float64
    assert runs.not_in_double == ["e (ai.onnx:Exp): in float32"]


def test_what_nothing_evaluates_is_named() -> None:
    made = model([node("Strange", ["x"], ["y"], domain="own", name="odd")], ["x"], ["y"])
    with pytest.raises(Unsupported, match=r"Strange of domain own .*'odd'"):
        Interpreter(made).run({"x": f32(1)})


def test_a_node_that_fails_says_which_it_is() -> None:
    made = model([node("MatMul", ["x", "x"], ["y"], name="product")], ["x"], ["y"])
    with pytest.raises(EngineError, match=r"'product' \(MatMul, opset 20\) on \[\(2, 3\)"):
        Interpreter(made).run({"x": f32(2, 3)})


def test_random_nodes_have_no_reference() -> None:
    then = graph([node("RandomUniformLike", ["x"], ["t"], name="u")], [], ["t"])
    other = graph([node("Identity", ["x"], ["e"])], [], ["e"])
    made = model(
        [
            node("RandomNormal", [], ["r"], name="n1", shape=[2]),
            node("If", ["c"], ["b"], then_branch=then, else_branch=other),
            node("Dropout", ["x", "ratio", "on"], ["d"], name="drop"),
            node("Dropout", ["x", "zero", "on"], ["whole"]),
            node("Dropout", ["x", "ratio"], ["same"]),
            node("Sum", ["r", "b", "d", "same", "whole"], ["y"]),
        ],
        ["x", info("c", BOOL, [])],
        ["y", "same"],
        {"ratio": np.float32(0.5), "on": np.array(True), "zero": np.float32(0)},
    )
    runs = Interpreter(made)
    assert runs.random == ["RandomNormal 'n1'", "RandomUniformLike 'u'", "Dropout 'drop'"]
    feeds = {"x": f32(2), "c": np.array(False)}
    with pytest.raises(Unsupported, match=r"'n1', RandomUniformLike 'u', Dropout 'drop'"):
        runs.run(feeds)
    np.testing.assert_array_equal(array(runs.run(feeds, ["same"])["same"]), f32(2))
    fed = model(
        [node("Dropout", ["x", "", "on"], ["y"], name="later")],
        ["x", info("on", BOOL, [])],
        ["y"],
    )
    with pytest.raises(Unsupported, match="later"):
        Interpreter(fed).run({"x": f32(2), "on": np.array(True)})


# Rounding to the declared types


def narrow() -> onnx.ModelProto:
    return model(
        [
            node("Mul", ["x", "x"], ["square"], name="square"),
            node("Mul", ["square", "w"], ["y"]),
        ],
        [info("x", HALF)],
        [info("y", HALF)],
        {"w": np.float16(0.5)},
    )


def test_a_tensor_beyond_float16_is_named() -> None:
    runs = Interpreter(narrow())
    found = runs.run({"x": np.array([300, 2], np.float16)})
    assert array(found["y"]).tolist() == [45000, 2]
    assert runs.exceeding == "square reaches 90000"
    assert runs.clamped == []
    runs.run({"x": np.array([2, 2], np.float16)})
    assert runs.exceeding == ""
    wide = narrow()
    wide.graph.value_info.append(info("square"))
    runs = Interpreter(wide)
    runs.run({"x": np.array([300, 2], np.float16)})
    assert runs.exceeding == ""


def test_rounded_gives_every_tensor_its_type() -> None:
    x = np.array([300, 1.234, 0.1], np.float16)
    runs = Interpreter(narrow())
    found = array(runs.run({"x": x}, rounded=True)["y"])
    expected = (x[1:] * x[1:]) * np.float16(0.5)
    np.testing.assert_array_equal(found[1:], expected.astype(float))
    assert found[0] == 44992, "half of 90,000 in float16: what leaves the range is no rounding"
    assert runs.clamped == ["square"]
    assert runs.exceeding == "square reaches 90000"


def test_narrow_rounds_whatever_a_tensor_is_declared_in() -> None:
    made = model([node("Exp", ["x"], ["y"])], ["x"], ["y"])
    x = f32(20)
    found = array(Interpreter(made).run({"x": x}, narrow=HALF)["y"])
    np.testing.assert_array_equal(found, np.exp(x.astype(float)).astype(np.float16).astype(float))


def test_within_an_operator_nothing_is_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = f32(4, 6)
    made = model(
        [node("LayerNormalization", ["x", "w"], ["y"])], ["x"], ["y"], {"w": np.ones(6, np.float32)}
    )
    by_table = array(Interpreter(made).run({"x": x}, narrow=HALF)["y"])
    monkeypatch.delitem(OPERATORS, ("", "LayerNormalization"))
    np.testing.assert_array_equal(
        array(Interpreter(made).run({"x": x}, narrow=HALF)["y"]), by_table
    )


# K


@pytest.mark.parametrize(
    ("made", "inputs", "outputs", "expected"),
    [
        (node("Add", ["a", "b"], ["y"]), [(3, 4), (4,)], [(3, 4)], 1),
        (node("MatMul", ["a", "b"], ["y"]), [(2, 3, 7), (7, 5)], [(2, 3, 5)], 7),
        (node("Gemm", ["a", "b", "c"], ["y"], transA=1), [(7, 3), (7, 5), (5,)], [(3, 5)], 8),
        (node("Einsum", ["a", "b"], ["y"], equation="...ij,jk->...ik"), [(9, 2, 7), (7, 5)], [], 7),
        (node("Conv", ["x", "w", "b"], ["y"]), [(1, 6, 9, 9), (4, 3, 2, 5), (4,)], [], 31),
        (
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2], group=2),
            [(1, 6, 9), (6, 2, 5)], [], 9,
        ),
        (node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2]), [(1, 6, 9, 9)], [], 6),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2]), [(1, 6, 9, 9)], [], 1),
        (node("GlobalAveragePool", ["x"], ["y"]), [(1, 6, 9, 8)], [(1, 6, 1, 1)], 72),
        (node("ReduceMean", ["x"], ["y"]), [(4, 6, 5)], [(4, 1, 1)], 30),
        (node("Softmax", ["x"], ["y"], axis=1), [(4, 6, 5)], [(4, 6, 5)], 6),
        (node("LayerNormalization", ["x", "w"], ["y"], axis=1), [(4, 6, 5), (6, 5)], [], 30),
        (node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"]), [(4, 6, 5)], [], 1),
        (node("LSTM", ["x", "w", "r"], ["y"]), [(10, 2, 3), (1, 16, 3), (1, 16, 4)], [], 70),
        (node("Attention", ["q", "k", "v"], ["y"]), [(1, 2, 5, 8), (1, 2, 9, 8), ()], [()], 17),
        (node("Resize", ["x", "", "s"], ["y"], mode="cubic"), [(1, 1, 4, 4)], [(1, 1, 8, 8)], 16),
        (node("Resize", ["x", "", "s"], ["y"], mode="linear"), [(1, 1, 4, 4)], [(1, 1, 4, 8)], 2),
        (node("Sum", ["a", "b", "c"], ["y"]), [(2,), (2,), (2,)], [(2,)], 3),
        (node("Gather", ["a", "i"], ["y"]), [(9, 2), (3,)], [(3, 2)], 1),
    ],
)  # fmt: skip
def test_terms(made: NodeProto, inputs: Any, outputs: Any, expected: int) -> None:
    given, found = ([torch.zeros(shape) for shape in shapes] for shapes in (inputs, outputs))
    assert terms(made, given, found) == expected


def test_terms_of_what_values_say() -> None:
    x, axis = torch.zeros(3, 50), torch.tensor(1)
    assert terms(node("CumSum", ["x", "a"], ["y"]), [x, axis], [x]) == 50
    places = torch.tensor([[0], [1], [0], [0]])
    scatter = node("ScatterND", ["x", "i", "u"], ["y"], reduction="add")
    assert terms(scatter, [x, places, torch.zeros(4, 50)], [x]) == 4
    assert terms(node("ScatterND", ["x", "i", "u"], ["y"]), [x, places, x], [x]) == 1
    four = torch.zeros(2, 3, 4, 5)
    assert terms(node("Softmax", ["x"], ["y"]), [four], [four], version=11) == 60


def test_terms_of_a_loop_are_those_of_all_that_it_ran() -> None:
    body = graph(
        [node("MatMul", ["s", "w"], ["t"]), node("Identity", ["c"], ["on"])],
        [info("i", INT, []), info("c", BOOL, []), info("s", FLOAT, [2, 4])],
        [info("on", BOOL, []), info("t", FLOAT, [2, 4])],
    )
    made = model(
        [node("Loop", ["m", "", "x"], ["y"], body=body)],
        ["x"],
        ["y"],
        {"m": np.int64(5), "w": f32(4, 4)},
    )
    runs = Interpreter(made)
    found = []
    runs.run(
        {"x": f32(2, 4)},
        visit=lambda proto, _, inputs, outputs: found.append(
            terms(proto, inputs, outputs, inside=runs.inside)
        ),
    )
    # A product of 4 terms and the copy of the condition, five times.
    assert found == [5 * (4 + 1)]


# The reference as an engine


def work(path: Path, inputs: dict[str, Any], outputs: Sequence[str], **case: Any) -> Work:
    spec = file_spec(
        "m",
        Signature(
            inputs=tuple(TensorSpec(name=n, shape=np.shape(v)) for n, v in inputs.items()),
            outputs=tuple(TensorSpec(name=name, shape=("...",)) for name in outputs),
        ),
    )
    fields: dict[str, Any] = {
        "model": "m",
        "size": "",
        "phase": "infer",
        "engine": "float64",
        "device": "cpu",
    }
    fields |= {"source": "file", "precision": "fp64", **case}
    return Work(Case(**fields), spec, None, {}, [inputs], path, path.parent)


def runner(path: Path, inputs: dict[str, Any], outputs: Sequence[str], **case: Any) -> Any:
    made = float64.make("float64")
    made.load(work(path, inputs, outputs, **case))
    return made


@pytest.fixture
def resized(tmp_path: Path) -> Path:
    """A product, resized by scales that are no parameters; the data lies beside the file."""
    made = model(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Resize", ["p", "", "scales"], ["y"], mode="linear"),
        ],
        ["x"],
        ["y", "p"],
        {"w": f32(5, 6, seed=1), "scales": np.array([1.5, 1.25], np.float32)},
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def test_the_reference_gives_outputs_in_double(resized: Path) -> None:
    x = f32(4, 5)
    made = runner(resized, {"x": x}, ["y", "p"])
    found = made.infer()
    assert found["p"].dtype == np.float64
    w = f32(5, 6, seed=1).astype(float)
    np.testing.assert_allclose(found["p"], x.astype(float) @ w, rtol=1e-14)
    assert found["y"].shape == (6, 7)
    assert made.terms() == {"outputs/p": 5}
    assert made.remarks() == []
    assert made.placement()[0].ep == "cpu"


def test_only_parameters_move_and_by_ulps_of_their_type(resized: Path) -> None:
    made = runner(resized, {"x": f32(4, 5)}, ["p"])
    moved = made.moved(1, 1)
    assert list(moved) == ["w"]
    held, after = f32(5, 6, seed=1), array(moved["w"]).astype(np.float32)
    assert (after.astype(float) == array(moved["w"])).all()
    assert set(np.unique(after.view(np.int32) - held.view(np.int32))) == {-1, 1}
    plain = made.infer()["p"]
    assert 0 < abs(made.infer(moved=moved)["p"] - plain).max() < 1e-5
    np.testing.assert_array_equal(made.infer()["p"], plain)
    made.move(1, 1)
    np.testing.assert_array_equal(made.infer()["p"], made.infer(moved=moved)["p"])
    assert (made.infer()["p"] != plain).any()


def test_without_parameters_the_inputs_move(tmp_path: Path) -> None:
    onnx.save(chain(1), tmp_path / "m.onnx")
    made = runner(tmp_path / "m.onnx", {"x": f32(9)}, ["t0"])
    assert list(made.moved(0, 1)) == ["x"]
    made.move(0, 1)
    steps = made.infer()["t0"].astype(np.float32).view(np.int32) - (-f32(9)).view(np.int32)
    assert set(steps) == {-1, 1}


def test_scales_that_are_made_of_constants_stay(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["half", "three"], ["scale"]),
        node("Concat", ["scale", "scale"], ["scales"], axis=0),
        node("Mul", ["x", "w"], ["p"]),
        node("Resize", ["p", "", "scales"], ["r"]),
        node("Pow", ["r", "two"], ["q"]),
        node("Clip", ["q", "low"], ["y"]),
    ]
    constants = {
        "half": np.array([0.5], np.float32),
        "three": np.array([3], np.float32),
        "w": np.float32(1.5),
        "two": np.float32(2),
        "low": np.float32(0.1),
    }
    runs = Interpreter(model(nodes, ["x"], ["y"], constants))
    assert list(float64.parameters(runs)) == ["w"]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn"])
def test_neighbours_of_narrow_types(kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    values = np.array([1.0, -2.5, 0.0, 7.0, np.nan] * 9)
    element = int(helper.np_dtype_to_tensor_dtype(dtype))
    held = torch.from_numpy(values)
    moved = array(float64.neighbour(held, element, 3, "w", 1))
    bits = np.dtype(f"i{dtype.itemsize}")
    steps = moved.astype(dtype).view(bits).astype(int) - values.astype(dtype).view(bits).astype(int)
    fixed = (values == 0) | np.isnan(values)
    assert set(steps[~fixed]) == {-1, 1}
    np.testing.assert_array_equal(moved[fixed], values[fixed])


def test_every_tensor_in_a_narrower_type(resized: Path) -> None:
    x = f32(4, 5)
    made = runner(resized, {"x": x}, ["y", "p"], options={"narrow": "float16"})
    w = f32(5, 6, seed=1).astype(np.float16).astype(float)
    exact = x.astype(np.float16).astype(float) @ w
    found = made.infer()
    np.testing.assert_array_equal(found["p"], exact.astype(np.float16).astype(float))
    # The scales are not rounded with the parameters.
    assert found["y"].shape == (6, 7)
    with pytest.raises(Unsupported, match="narrow=int3"):
        runner(resized, {"x": x}, ["p"], options={"narrow": "int3"})


def test_what_leaves_float16_is_remarked(tmp_path: Path) -> None:
    onnx.save(narrow(), tmp_path / "m.onnx")
    made = runner(tmp_path / "m.onnx", {"x": np.array([300], np.float16)}, ["y"])
    made.infer()
    (remark,) = made.remarks()
    assert "square reaches 90000" in remark


def test_the_time_limit_is_looked_at_between_nodes(resized: Path) -> None:
    made = runner(resized, {"x": f32(4, 5)}, ["y"])
    made.deadline_s = 1e6
    made.infer()
    made.deadline_s = 0.0
    with pytest.raises(float64.Timeout) as caught:
        made.infer()
    assert caught.value.status == "timeout"


def test_layouts_of_tensorflow(tmp_path: Path) -> None:
    made = model([node("Relu", ["x"], ["y"])], [info("x", FLOAT, [1, 2, 3, 4])], ["y"])
    onnx.save(made, tmp_path / "m.onnx")
    fields: dict[str, Any] = {"shape": (1, 4, 2, 3), "axes": "NCHW", "tf_axes": "NHWC"}
    spec = file_spec(
        "m",
        Signature(
            inputs=(TensorSpec(name="x", **fields),), outputs=(TensorSpec(name="y", **fields),)
        ),
    )
    x = f32(1, 4, 2, 3)
    base = work(tmp_path / "m.onnx", {"x": x}, ["y"], source="tf")
    runs = float64.make("float64")
    runs.load(Work(base.case, spec, None, {}, [{"x": x}], base.graph, tmp_path))
    shapes: list[Any] = []
    runs.interpreter.tick = lambda: shapes.append(runs.feeds(0)["x"].shape)  # type: ignore[union-attr]
    np.testing.assert_array_equal(runs.infer()["y"], np.maximum(x, 0).astype(float))
    assert shapes == [(1, 2, 3, 4)]


def test_the_reference_is_on_the_cpu_and_has_no_parameters_of_its_own(resized: Path) -> None:
    with pytest.raises(Unavailable, match="cuda"):
        float64.make("float64").probe("cuda")
    assert float64.make("float64").probe("cpu")
    made = runner(resized, {"x": f32(4, 5)}, ["p"])
    with pytest.raises(EngineError, match="in its file"):
        made.bind({})
    with pytest.raises(Unsupported, match="never timed"):
        made.profile(1)


def test_no_random_operator_is_in_a_table() -> None:
    assert not {name for _, name in OPERATORS} & interpreting.RANDOM


def test_forced_choices_are_judged_as_ties_or_faults(tmp_path: Path) -> None:
    x = np.array([[1.0, 1.0 + 2.0**-23, 0.5]], np.float32)
    made = model(
        [
            node("Mul", ["x", "w"], ["v"]),
            node("ArgMax", ["v"], ["i"], axis=1, keepdims=0),
            node("Gather", ["table", "i"], ["y"]),
        ],
        ["x"],
        [info("y"), info("i", INT)],
        {"w": np.float32(1.0), "table": np.array([10, 20, 30], np.float32)},
    )
    onnx.save(made, tmp_path / "m.onnx")

    def judged(chosen: int, values: np.ndarray[Any, Any]) -> tuple[float, dict[str, str]]:
        kept = [Choice(index="i", node="ArgMax 'i'", op="ArgMax")]
        (tmp_path / ties.CHOICES).write_bytes(msgspec.json.encode(kept))
        tensors.save(tmp_path / ties.VALUES, {"0/index": np.array([chosen]), "0/values": values})
        runs = runner(tmp_path / "m.onnx", {"x": x}, ["y"])
        assert runs.facts() == {}
        runs.force(tmp_path)
        runs.infer()
        return float(runs.infer()["y"][0]), runs.facts()

    # The side rounded the two largest to one number, and took the first.
    near = np.array([[1.0, 1.0, 0.5]], np.float32)
    assert judged(0, near) == (10.0, {"ties": "1", "faults": ""})
    assert judged(1, x) == (20.0, {"ties": "0", "faults": ""})
    found, facts = judged(2, x)
    assert found == 30.0
    assert "another index than float64" in facts["faults"]
