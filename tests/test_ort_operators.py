"""ONNX Runtime's kernels one by one: real sessions here, the float64 side in a process of its own.

Everything is prepared for all cases at once: torch is imported a single time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from xbench.result import Operators
from xbench.runners import ort_operators
from xbench.runners.base import Work
from xbench.runners.graph.segments import MANIFEST, Manifest, segments
from xbench.runners.ort import OrtRunner
from xbench.spec import Adam, Case, ModelSpec, TensorSpec

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Array = np.ndarray[Any, Any]
value, node = helper.make_tensor_value_info, helper.make_node
LEVELS = ("0", "1", "2", "99")
PADS = {"pads": [1, 1, 1, 1]}


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], held: Mapping[str, Any]
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "tests", inputs, outputs, tensors)
    sets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def numbers(*shape: int, scale: float = 1.0) -> Array:
    count = int(np.prod(shape))
    drawn = np.random.default_rng(count).normal(size=shape) * scale
    return np.asarray(drawn, np.float32)


def chain() -> onnx.ModelProto:
    """Convolutions of every kind that is fused, a residual sum, pooling, a product, softmax."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="first", **PADS),
        node("BatchNormalization", ["c", "s", "beta", "mean", "var"], ["n"], name="norm"),
        node("Relu", ["n"], ["r"], name="relu"),
        node("Conv", ["r", "w2"], ["c2"], name="second", **PADS),
        node("Add", ["c2", "r"], ["a2"], name="sum"),
        node("Relu", ["a2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"], name="third", **PADS),
        node("Sigmoid", ["c3"], ["s3"]),
        node("Concat", ["s3", "s3"], ["cat"], axis=1, name="cat"),
        node("MaxPool", ["cat"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "wm"], ["m"], name="product"),
        node("Add", ["m", "bm"], ["l"]),
        node("Softmax", ["l"], ["y"], name="soft"),
    ]
    held = {
        "w": numbers(16, 3, 3, 3, scale=0.2), "b": numbers(16), "s": numbers(16),
        "beta": numbers(16), "mean": numbers(16), "var": np.abs(numbers(16)) + 0.5,
        "w2": numbers(16, 16, 3, 3, scale=0.1), "w3": numbers(12, 16, 3, 3, scale=0.1),
        "wm": numbers(24 * 16, 10, scale=0.1), "bm": numbers(10),
    }  # fmt: skip
    return model(nodes, [value("x", FLOAT, ["N", 3, 8, 8])], [value("y", FLOAT, ["N", 10])], held)


def transformer() -> onnx.ModelProto:
    """A product with bias, Gelu, a residual sum and LayerNorm, all of them written out."""
    nodes = [
        node("MatMul", ["x", "w"], ["a0"]),
        node("Add", ["a0", "b"], ["a"]),
        node("Div", ["a", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["e1"]),
        node("Mul", ["a", "e1"], ["ae"]),
        node("Mul", ["ae", "half"], ["g"]),
        node("Add", ["g", "x"], ["res"]),
        node("ReduceMean", ["res", "axis"], ["mu"]),
        node("Sub", ["res", "mu"], ["xc"]),
        node("Pow", ["xc", "two"], ["sq"]),
        node("ReduceMean", ["sq", "axis"], ["variance"]),
        node("Add", ["variance", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", ["xc", "sd"], ["q"]),
        node("Mul", ["q", "gamma"], ["qg"]),
        node("Add", ["qg", "beta"], ["y"]),
    ]
    scalars = {"root": 2**0.5, "one": 1.0, "half": 0.5, "two": 2.0, "eps": 1e-5}
    held = {name: np.float32(number) for name, number in scalars.items()}
    arrays = {"w": numbers(16, 16), "b": numbers(16), "gamma": numbers(16), "beta": numbers(16)}
    both: dict[str, Any] = {**held, **arrays, "axis": np.array([-1], np.int64)}
    ends = [value(name, FLOAT, ["N", 5, 16]) for name in ("x", "y")]
    return model(nodes, ends[:1], ends[1:], both)


def scan() -> onnx.ModelProto:
    """A recurrence that reads a tensor from outside its body."""
    body = helper.make_graph(
        [
            node("MatMul", ["s", "w"], ["sw"]),
            node("Add", ["sw", "i"], ["t"]),
            node("Mul", ["t", "outer"], ["u"]),
            node("Tanh", ["u"], ["next"]),
            node("Identity", ["next"], ["o"]),
        ],
        "body",
        [value("s", FLOAT, [4]), value("i", FLOAT, [4])],
        [value("next", FLOAT, [4]), value("o", FLOAT, [4])],
    )
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("ReduceMax", ["r"], ["outer"], keepdims=0),
        node("Scan", ["s0", "r"], ["last", "all"], name="scan", body=body, num_scan_inputs=1),
        node("Mul", ["all", "all"], ["y"]),
    ]
    ends = [value(name, FLOAT, [6, 4]) for name in ("x", "y")]
    return model(nodes, ends[:1], ends[1:], {"s0": numbers(4), "w": numbers(4, 4)})


def reductions() -> onnx.ModelProto:
    """What a bound of twice another engine's error condemns: a tanh, a sum of a million terms."""
    nodes = [node("Tanh", ["x"], ["t"]), node("ReduceSum", ["x"], ["y"], keepdims=0, name="sum")]
    square = [1000, 1000]
    outputs = [value("y", FLOAT, []), value("t", FLOAT, square)]
    return model(nodes, [value("x", FLOAT, square)], outputs, {})


def choices() -> onnx.ModelProto:
    """A shape that is folded, indices, truths, a branch, tensors that equal others."""
    minus = helper.make_graph([node("Neg", ["e"], ["m"])], "minus", [], [value("m", FLOAT, None)])
    plus = helper.make_graph([node("Abs", ["a"], ["p"])], "plus", [], [value("p", FLOAT, None)])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "rest"], ["flat"], axis=0),
        node("Reshape", ["x", "flat"], ["xr"]),
        node("MatMul", ["xr", "w"], ["a"]),
        node("ArgMax", ["a"], ["k"], axis=1),
        node("Identity", ["a"], ["same"]),
        node("Exp", ["same"], ["e"]),
        node("Exp", ["a"], ["e2"]),
        node("Add", ["e", "e2"], ["y"]),
        node("ReduceMax", ["a"], ["most"], keepdims=0),
        node("Greater", ["most", "limit"], ["big"]),
        node("If", ["big"], ["z"], then_branch=minus, else_branch=plus, name="branch"),
    ]
    held = {"zero": np.array([0], np.int64), "rest": np.array([24], np.int64),
            "w": numbers(24, 7), "limit": np.float32(0)}  # fmt: skip
    outputs = [value("y", FLOAT, None), value("k", INT64, None), value("z", FLOAT, None)]
    return model(nodes, [value("x", FLOAT, ["N", 4, 6])], outputs, held)


def unsorted() -> onnx.ModelProto:
    """The chain with its nodes in reverse."""
    made = chain()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


STEP = 1 / 256


def quantised() -> onnx.ModelProto:
    """A classifier whose softmax is fused with the quantisation around it."""
    scales = {"sx": np.float32(0.05), "s": np.float32(STEP)}
    # As int8, which ONNX Runtime makes uint8: only floats are known on both sides.
    zeros = {"zx": np.int8(0), "z": np.int8(-128)}
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        node("Softmax", ["xd"], ["p"], name="soft"),
        node("QuantizeLinear", ["p", "s", "z"], ["pq"]),
        node("DequantizeLinear", ["pq", "s", "z"], ["y"], name="last"),
    ]
    ends = [value(name, FLOAT, [20, 10]) for name in ("x", "y")]
    return model(nodes, ends[:1], ends[1:], {**scales, **zeros})


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "chain": chain,
    "transformer": transformer,
    "scan": scan,
    "reductions": reductions,
    "choices": choices,
    "unsorted": unsorted,
    "quantised": quantised,
}
CASES = [
    *((name, level, "fp32") for name in ("chain", "transformer", "scan") for level in LEVELS),
    *((name, "99", "fp32") for name in ("reductions", "choices")),
    *((name, level, "fp32") for name in ("unsorted", "quantised") for level in ("0", "99")),
    *(("chain", level, "fp16") for level in ("0", "99")),
]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case whose operators can be run alone: its optimised graph and the float64 side."""

    work: Work
    optimised: Path
    folder: Path

    def check(self) -> Operators:
        return ort_operators.check(self.work, self.optimised, self.folder)

    def manifest(self) -> Manifest:
        return msgspec.json.decode((self.folder / MANIFEST).read_bytes(), type=Manifest)


def work_of(folder: Path, made: onnx.ModelProto, level: str, precision: str) -> Work:
    folder.mkdir()
    onnx.save(made, str(folder / "m.onnx"))
    declared = made.graph.input[0].type.tensor_type.shape.dim
    shape = tuple(axis.dim_value or 2 for axis in declared)
    inputs = (TensorSpec("x", shape),)
    spec = ModelSpec(
        name="m", title="", paper="", sizes={"": None}, batch={"": 1}, parameters=lambda _: (),
        inputs=lambda _: inputs, outputs=lambda _: (), taps=lambda _: (), losses=(),
        optimizer=Adam(), data="",
    )  # fmt: skip
    case = Case(
        model="m", size="", phase="infer", engine="ort", device="cpu", source="file", threads=2,
        precision=precision, options={"ort-opt": level},
    )  # fmt: skip
    return Work(
        case=case, spec=spec, config=None, parameters={}, batches=[{"x": numbers(*shape)}],
        graph=folder / "m.onnx", folder=folder,
    )  # fmt: skip


DOUBLE = """
import sys
from pathlib import Path
from xbench.runners.graph.expected import from_files
paths = [Path(text) for text in sys.argv[1:]]
for source, folder in zip(paths[::2], paths[1::2]):
    from_files(source, folder / "optimised.onnx", folder / "feeds.npz", folder / "expected")
"""


def prepared(works: Mapping[Any, Work]) -> dict[Any, Prepared]:
    """The optimised graphs, made here, and what torch says of them in a process of its own."""
    arguments = []
    for work in works.values():
        optimised = work.folder / "optimised.onnx"
        source = ort_operators.optimised(work, optimised, work.folder / "feeds.npz")
        arguments += [str(source), str(work.folder)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", DOUBLE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        key: Prepared(work, work.folder / "optimised.onnx", work.folder / "expected")
        for key, work in works.items()
    }


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Prepared]:
    root = tmp_path_factory.mktemp("operators")
    return prepared(
        {
            (name, level, precision): work_of(
                root / f"{name}-{level}-{precision}", NETWORKS[name](), level, precision
            )
            for name, level, precision in CASES
        }
    )


@pytest.mark.parametrize(("name", "level", "precision"), CASES)
def test_every_operator_of_a_right_engine_is_checked_and_within_its_bound(
    cases: dict[Any, Prepared], name: str, level: str, precision: str
) -> None:
    case = cases[name, level, precision]
    found = case.check()
    assert found.unchecked == []
    assert found.worst[0].score < 1
    outputs = [len(segment.outputs) for segment in case.manifest().segments]
    assert found.checked == sum(outputs) > 0
    optimised = onnx.load(str(case.optimised))
    reached = {
        index
        for segment in case.manifest().segments
        for index in (*segment.nodes, *segment.helpers)
    }
    assert reached == set(range(len(optimised.graph.node)))


def test_fused_and_blocked_nodes_are_segments_of_their_own(cases: dict[Any, Prepared]) -> None:
    for level in LEVELS:
        optimised = onnx.load(str(cases["chain", level, "fp32"].optimised))
        domains = {node.domain for node in optimised.graph.node if node.op_type.endswith("Conv")}
        assert domains == {
            "0": {""}, "1": {""}, "2": {"", "com.microsoft"}, "99": {"com.microsoft.nchwc"},
        }[level]  # fmt: skip
        cut = cases["chain", level, "fp32"].manifest().segments
        assert [len(segment.nodes) for segment in cut] == [1] * len(optimised.graph.node)
    norm = cases["transformer", "2", "fp32"].manifest().segments
    assert [segment.op for segment in norm] == ["MatMul", "BiasGelu", "SkipLayerNormalization"]


def names(found: Operators) -> list[str]:
    return [check.node for check in found.worst if check.score > 1]


def doctored(case: Prepared, change: Callable[[onnx.ModelProto], None]) -> Operators:
    """The check of an optimised graph that was made wrong."""
    wrong = onnx.load(str(case.optimised))
    change(wrong)
    path = case.folder.parent / "doctored.onnx"
    onnx.save(wrong, str(path))
    return ort_operators.check(case.work, path, case.folder)


def scaled(index: int, by: float) -> Callable[[onnx.ModelProto], None]:
    """Scale the weight of a convolution, which may be folded, blocked or neither."""

    def change(wrong: onnx.ModelProto) -> None:
        kinds = ("Conv", "FusedConv")
        name = [node for node in wrong.graph.node if node.op_type in kinds][index].input[1]
        (held,) = (item for item in wrong.graph.initializer if item.name == name)
        array = numpy_helper.to_array(held) * np.float32(by)
        held.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))

    return change


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("index", "node_name"), [(0, "first"), (1, "second"), (2, "third")])
def test_a_weight_that_is_off_is_found_where_it_is(
    cases: dict[Any, Prepared], level: str, index: int, node_name: str
) -> None:
    case = cases["chain", level, "fp32"]
    found = doctored(case, scaled(index, 1.001))
    (check,) = [check for check in found.worst if check.score > 1]
    assert check.op.split("+")[0] == "Conv"
    ends = {"first": {"c", "n", "r"}, "second": {"c2", "r2", "a2"}, "third": {"c3", "s3"}}
    assert check.output in ends[node_name]
    assert doctored(case, scaled(index, 1.0)).worst[0].score < 1


@pytest.mark.parametrize("level", ["2", "99"])
def test_an_activation_that_was_dropped_is_found(cases: dict[Any, Prepared], level: str) -> None:
    def drop(wrong: onnx.ModelProto) -> None:
        fused = next(
            n for n in wrong.graph.node if any(a.name == "activation" for a in n.attribute)
        )
        (place,) = (k for k, a in enumerate(fused.attribute) if a.name == "activation")
        del fused.attribute[place]
        if level == "2":
            fused.op_type, fused.domain = "Conv", ""

    found = doctored(cases["chain", level, "fp32"], drop)
    (check,) = [check for check in found.worst if check.score > 1]
    assert (check.output, check.op) == ("r", "Conv+BatchNormalization+Relu")
    assert check.score > 1000


def test_another_mask_of_infinities_is_a_fault_and_says_so(cases: dict[Any, Prepared]) -> None:
    found = doctored(cases["chain", "0", "fp32"], scaled(0, float("inf")))
    assert names(found) == ["first"]
    assert "mask" in found.worst[0].bound
    assert msgspec.json.decode(msgspec.json.encode(found), type=Operators) == found


def test_a_wrong_index_is_told_but_no_fault(cases: dict[Any, Prepared]) -> None:
    def other_end(wrong: onnx.ModelProto) -> None:
        next(n for n in wrong.graph.node if n.op_type == "ArgMax").op_type = "ArgMin"

    found = doctored(cases["choices", "99", "fp32"], other_end)
    assert names(found) == []
    (said,) = found.unchecked
    assert said.startswith("ArgMax k: 2 of 2 whole numbers differ")


def test_the_order_of_the_file_changes_no_segment(cases: dict[Any, Prepared]) -> None:
    cuts = [cases[name, "99", "fp32"].manifest().segments for name in ("chain", "unsorted")]
    one, other = ({(s.op, s.node, *(p.original for p in s.outputs)) for s in cut} for cut in cuts)
    assert one == other


def test_a_wrong_scale_of_fused_quantised_values_is_found(cases: dict[Any, Prepared]) -> None:
    def rescaled(by: float) -> Callable[[onnx.ModelProto], None]:
        def change(wrong: onnx.ModelProto) -> None:
            (last,) = (n for n in wrong.graph.node if n.output[0] == "y")
            assert last.op_type == "DequantizeLinear"
            scale = numpy_helper.from_array(np.float32(STEP * by), "wrong")
            wrong.graph.initializer.append(scale)
            last.input[1] = "wrong"

        return change

    case = cases["quantised", "99", "fp32"]
    (fused,) = [s for s in case.manifest().segments if "Softmax" in s.op]
    assert fused.op == "QuantizeLinear+QLinearSoftmax+DequantizeLinear"
    assert doctored(case, rescaled(1.0)).worst[0].score < 1
    for by in (0.5, 1.01, 2.0, 100.0):
        assert doctored(case, rescaled(by)).worst[0].score > 1


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        ({3: 1.0}, True),
        ({3: 1.0, 9: -1.0}, True),
        ({3: 1.0, 9: -1.0, 11: 1.0}, True),
        ({3: 1.0, 9: -1.0, 11: 1.0, 12: 1.0}, False),
        ({3: 2.0}, False),
        ({3: 1.01}, False),
        ({3: float("inf")}, False),
    ],
)
@pytest.mark.parametrize("held", [True, False])
def test_three_elements_of_few_may_be_one_step_away(
    cases: dict[Any, Prepared], steps: dict[int, float], right: bool, held: bool
) -> None:
    case = cases["quantised", "99", "fp32"]
    model, manifest = onnx.load(str(case.optimised)), case.manifest()
    checker = ort_operators.Checker(OrtRunner("ort"), model, manifest, case.folder)
    if not held:
        checker.cutter.held.clear()
    (result,) = [r for part in manifest.parts for r in part.results if r.port.original == "y"]
    result = msgspec.structs.replace(result, spread=0.0)
    places = np.arange(20) % 7 + 3.0
    actual = places.copy()
    for index, apart in steps.items():
        actual[index] += apart
    (found,) = checker.compared(result, (actual * STEP).astype(np.float32), places * STEP)
    assert (found.score < 1) is right
    # Integers, and floats that only one operator in floats made, or that are on no grid.
    if np.isfinite(actual).all() and 1.01 not in steps.values():
        whole = msgspec.structs.replace(result, rounds=True, exact=False)
        (found,) = checker.compared(whole, actual.astype(np.uint8), places.astype(np.uint8))
        assert (found.score < 1) is right
    shifted = places + 0.3 * (np.arange(20) == 5)
    (found,) = checker.compared(
        result, ((actual + shifted - places) * STEP).astype(np.float32), shifted * STEP
    )
    assert found.score > 1
    checker.segments = [msgspec.structs.replace(s, nodes=[]) for s in checker.segments]
    (found,) = checker.compared(result, (actual * STEP).astype(np.float32), places * STEP)
    assert found.score > 1


def test_what_cannot_run_alone_is_named_and_the_rest_checked(cases: dict[Any, Prepared]) -> None:
    def unknown(wrong: onnx.ModelProto) -> None:
        next(n for n in wrong.graph.node if n.op_type == "MaxPool").op_type = "NoSuchPool"

    case = cases["chain", "0", "fp32"]
    found = doctored(case, unknown)
    assert found.checked == case.check().checked - 1
    (said,) = found.unchecked
    assert said.startswith("MaxPool pool: ONNX Runtime does not run it alone")


def test_random_nodes_and_what_hangs_on_them_are_named(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("RandomNormalLike", ["r"], ["noise"]),
        node("Add", ["r", "noise"], ["y"], name="mix"),
    ]
    ends = [value(name, FLOAT, [4, 4]) for name in ("x", "y")]
    made = model(nodes, ends[:1], ends[1:], {})
    (case,) = prepared({0: work_of(tmp_path / "random", made, "0", "fp32")}).values()
    found = case.check()
    assert found.checked == 1
    assert any("RandomNormalLike" in said and "random" in said for said in found.unchecked)
    assert any(said.startswith("Add mix: ") for said in found.unchecked)


def test_pieces_are_cut_apart_and_stay_so(cases: dict[Any, Prepared], tmp_path: Path) -> None:
    """What would be fused in one graph is not in the graph of pieces."""
    case = cases["chain", "0", "fp32"]
    cutter = ort_operators.Cutter(onnx.load(str(case.optimised)))
    pairs = list(enumerate(case.manifest().segments))
    ports = {port.tensor: port for _, segment in pairs for port in segment.inputs}
    shapes = {"x": (2, 3, 8, 8), "n": (2, 16, 8, 8)}
    given = {name: np.zeros(shapes.get(name, (1,)), np.float32) for name in ports}
    cut, _ = cutter.cut(pairs, ports, given, {})
    for value_info in cut.graph.input:
        value_info.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "ran.onnx")
    onnxruntime.InferenceSession(
        cut.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    ran = onnx.load(str(tmp_path / "ran.onnx"))
    assert [n.op_type for n in ran.graph.node] == [n.op_type for n in cut.graph.node]
    made = {name for n in cut.graph.node for name in n.output}
    assert all(made.isdisjoint(n.input) for n in cut.graph.node)


@pytest.mark.parametrize(
    ("declared", "merged"),
    [
        (None, False),
        (value("a", FLOAT, [2, 3]), False),
        (value("a", FLOAT, ["N", 3]), False),
        (value("a", FLOAT, [3, 2]), True),
        (value("a", TensorProto.FLOAT16, [2, 3]), True),
    ],
)
def test_a_name_that_means_something_else_is_no_boundary(declared: Any, merged: bool) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["y"])]
    ends = [value(name, FLOAT, [2, 3]) for name in ("x", "y")]
    original = model(nodes, ends[:1], ends[1:], {})
    optimised = model(nodes, ends[:1], ends[1:], {})
    if declared is not None:
        optimised.graph.value_info.append(declared)
    found = segments(original, optimised)
    assert [segment.op for segment in found] == (["Relu+Tanh"] if merged else ["Relu", "Tanh"])
    assert [port.tensor for port in found[-1].outputs] == ["y"]


def test_made_up_tensors_join_their_neighbours_and_constants_do_not() -> None:
    ends = [value(name, FLOAT, [4, 4]) for name in ("x", "y")]
    held = {"w": numbers(4, 4)}
    original = model(
        [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w"], ["y"])],
        ends[:1], ends[1:], held,
    )  # fmt: skip
    optimised = model(
        [
            node("Transpose", ["w"], ["turned"], perm=[1, 0]),
            node("Gemm", ["x", "turned"], ["made_up"], transB=1),
            node("Identity", ["made_up"], ["a"]),
            node("Gemm", ["a", "turned"], ["y"], transB=1),
        ],
        ends[:1], ends[1:], held,
    )  # fmt: skip
    first, second = segments(original, optimised)
    assert (first.nodes, first.helpers, first.op) == ([1, 2], [0], "Gemm")
    assert (second.nodes, second.helpers) == ([3], [0])
    assert [port.tensor for port in second.inputs] == ["a"]
