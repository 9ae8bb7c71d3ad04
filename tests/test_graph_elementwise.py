"""The operators of elementwise, shaping and reducing, called directly.

ONNX's own cases (newest opsets), hand-written values for the older opsets, and properties against
numpy, ml_dtypes and Python's own integers.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.backend.test.loader import load_model_tests

from xbench.runners.graph import decode, elementwise, reducing, shaping
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value

DOUBLE = torch.float64
TABLES = {module.__name__ for module in (elementwise, shaping, reducing)}
MINE = {key: call for key, call in OPERATORS.items() if call.__module__ in TABLES}
TEXTS = {"test_equal_string", "test_equal_string_broadcast"}
RANDOM = {f"test_training_dropout{end}" for end in ("", "_default", "_mask", "_default_mask")}
NO_CASE = {"Scatter"}  # replaced by ScatterElements in opset 11
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
CASTS = {"Cast", "CastLike", "BitCast"}


def call(
    op: str, version: int, *inputs: Any, types: tuple[int, ...] = (), outputs: int = 1, **named: Any
) -> Any:
    """The operator's outputs as numpy, a tuple if it has several; None stays None."""
    values = [decode.value_of(item, DOUBLE) for item in inputs]
    node = Node(op, version=version, attributes=named, types=types, outputs=outputs)
    found = MINE["", op](node, values)
    if isinstance(found, tuple):
        return tuple(part.numpy() for part in found if isinstance(part, torch.Tensor))
    assert isinstance(found, torch.Tensor)
    return found.numpy()


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes and values; the type of integers and booleans too."""
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    if expected.dtype.kind in "iub":
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# ONNX's own cases.


@functools.cache
def cases() -> list[Any]:
    """Those whose every node is in the three tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return [
        case
        for case in found
        if all((node.domain, node.op_type) in MINE for node in case.model.graph.node)
    ]


def arrays(item: Any) -> Any:
    return onnx.numpy_helper.to_array(item) if isinstance(item, TensorProto) else item


def evaluate(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Value]:
    """The graph node by node, with the types that shape inference finds."""
    versions = {item.domain: item.version for item in model.opset_import}
    graph = onnx.shape_inference.infer_shapes(model).graph
    every = [*graph.input, *graph.value_info, *graph.output]
    types = {item.name: item.type.tensor_type.elem_type for item in every}
    held: dict[str, Value] = {"": None}
    for item, array in zip(graph.input, inputs, strict=True):
        held[item.name] = decode.value_of(arrays(array), DOUBLE)
    for proto in graph.node:
        node = Node(
            proto.op_type,
            domain=proto.domain,
            version=versions[proto.domain],
            attributes=decode.attributes(proto, DOUBLE),
            types=tuple(types.get(name, 0) for name in proto.input),
            out_types=tuple(types.get(name, 0) for name in proto.output),
            outputs=len(proto.output),
        )
        result = MINE[proto.domain, proto.op_type](node, [held[name] for name in proto.input])
        held.update(zip(proto.output, result if isinstance(result, tuple) else (result,)))  # noqa: B905
    return [held[item.name] for item in graph.output]


def difference(found: Value, expected: Any, case: Any) -> str:
    """Casts are exact; else the case's tolerance, or one rounding of the type at its largest."""
    if isinstance(expected, list):
        assert isinstance(found, list)
        parts = zip(found, expected, strict=True)
        return "".join(difference(part, other, case) for part, other in parts)
    array = arrays(expected)
    want = decode.value_of(array, DOUBLE)
    assert isinstance(want, torch.Tensor)
    if not isinstance(found, torch.Tensor) or found.dtype != want.dtype:
        return f"{found} is not of {want.dtype}"
    if found.shape != want.shape:
        return f"shape {tuple(found.shape)}, not {tuple(want.shape)}"
    if not want.is_floating_point() or case.model.graph.node[0].op_type in CASTS:
        if not np.array_equal(found.numpy(), want.numpy(), equal_nan=want.is_floating_point()):
            return f"{found} is not {want}"
        signs = (found.signbit() != want.signbit()) & ~found.isnan() if found.numel() else found
        return "a sign of zero" if want.is_floating_point() and bool(signs.any()) else ""
    finite = want[want.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    within = max(case.atol, float(EPS[array.dtype.name]) * largest)
    if not np.allclose(found, want, rtol=case.rtol, atol=within, equal_nan=True):
        return f"off by {(found - want).abs().max()}"
    return ""


def test_onnx_cases() -> None:
    """Every case passes but those of texts and of chance, which are refused."""
    wrong, refused, seen = {}, set(), set()
    for case in cases():
        if case.name in TEXTS:
            continue
        seen |= {node.op_type for node in case.model.graph.node}
        for inputs, expected in case.data_sets:
            try:
                found = evaluate(case.model, inputs)
            except NotInDouble:
                refused.add(case.name)
                continue
            parts = zip(found, expected, strict=True)
            if text := "".join(difference(value, want, case) for value, want in parts):
                wrong[case.name] = text
    assert not wrong
    assert refused == RANDOM
    assert len(cases()) > 1300
    assert {op for _, op in MINE} - seen <= NO_CASE


# Older opsets.

A = np.arange(24, dtype=np.float64).reshape(2, 3, 4) - 7
I64 = np.int64


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater", "Equal"])
def test_broadcast_before_opset_7(op: str) -> None:
    numpy = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
        "Less": np.less, "Greater": np.greater, "Equal": np.equal,
    }[op]  # fmt: skip
    x, middle, front = np.abs(A) + 1, np.array([1.0, 2, 3]), np.array([[1.0, 2, 3], [4, 5, 6]])
    same(call(op, 1, x, middle, broadcast=1, axis=1), numpy(x, middle[:, None]))
    same(call(op, 1, x, front, broadcast=1, axis=0), numpy(x, front[:, :, None]))
    same(call(op, 1, x, front, broadcast=1, axis=-3), numpy(x, front[:, :, None]))
    same(call(op, 1, x, x[0, 0], broadcast=1), numpy(x, x[0, 0]))
    same(call(op, 1, x, x[0, 0], broadcast=1, axis=-1), numpy(x, x[0, 0]))
    same(call(op, 7, x, middle[:, None]), numpy(x, middle[:, None]))


def test_clip() -> None:
    big = 3.4028234663852886e38
    same(call("Clip", 1, np.array([np.inf, -5]), min=-1.0), [np.inf, -1])
    same(call("Clip", 6, A, min=-1.5, max=2.0), A.clip(-1.5, 2))
    same(call("Clip", 6, np.array([np.inf, -1e39, 1])), [big, -big, 1])
    same(call("Clip", 11, A, np.array(-1.5), np.array(2.0)), A.clip(-1.5, 2))
    same(call("Clip", 13, A, np.array(3.0), np.array(-1.0)), np.full_like(A, -1))
    same(call("Clip", 13, np.array([np.inf]), np.array(0.0), types=(1, 1)), [big])
    same(call("Clip", 13, np.array([-np.inf]), None, np.array(0.0), types=(10, 0, 10)), [-65504.0])
    assert np.isnan(call("Clip", 13, np.array([np.nan]), np.array(0.0), types=(1, 1)))
    top = np.array([2**64 - 1, 3, 0], np.uint64)
    bounds = np.array(2, np.uint64), np.array(2**63, np.uint64)
    same(call("Clip", 12, top, *bounds), np.array([2**63, 3, 2], np.uint64))


def test_softmaxes_before_opset_13() -> None:
    """All axes from ``axis`` on are one; the default is 1, and -1 since."""
    flat = A.reshape(2, 12) / 5
    whole = (np.exp(flat) / np.exp(flat).sum(1, keepdims=True)).reshape(A.shape)
    last = np.exp(A / 5) / np.exp(A / 5).sum(-1, keepdims=True)
    same(call("Softmax", 11, A / 5), whole)
    same(call("Softmax", 11, A / 5, axis=-2), whole)
    same(call("LogSoftmax", 1, A / 5), np.log(whole))
    same(call("Softmax", 13, A / 5), last)
    same(call("Softmax", 12, A / 5, axis=2), last)
    hard = np.zeros((2, 12))
    hard[:, 11] = 1
    same(call("Hardmax", 11, A), hard.reshape(A.shape))
    ties = np.array([[1.0, 2, 2]])
    same(call("Hardmax", 13, ties), [[0.0, 1, 0]])
    everything = np.exp(A / 5) / np.exp(A / 5).sum()
    same(call("Softmax", 1, A / 5, axis=0), everything)


def test_axes_as_attribute_and_as_input() -> None:
    x = A[:, None, :, None, :]
    options: list[tuple[int, dict[str, Any]]] = [(11, {"axes": [1, -2]}), (13, {})]
    for version, given_ in options:
        inputs = () if given_ else (np.array([1, -2]),)
        same(call("Squeeze", version, x, *inputs, **given_), A)
        same(call("Unsqueeze", version, A, *inputs, **given_), x)
    same(call("Squeeze", 1, x), A)
    with pytest.raises(ValueError, match="not all 1"):
        call("Squeeze", 13, A, np.array([1]))
    with pytest.raises(IndexError):
        call("Squeeze", 13, A, np.array([3]))


def test_slice_versions() -> None:
    same(call("Slice", 1, A, starts=[1, -2], ends=[9, -1], axes=[2, 1]), A[:, -2:-1, 1:9])
    same(call("Slice", 1, A, starts=[1], ends=[2]), A[1:2])
    ends, steps = np.array([-(2**63), 2**63 - 1]), np.array([-1, 2])
    args = np.array([-1, 0]), ends, np.array([2, -2]), steps
    same(call("Slice", 10, A, *args), A[:, ::2, ::-1])
    # Where the text and Python differ: a start below -n of a backward slice is the first one.
    first = call("Slice", 13, A, *(np.array([n]) for n in (-9, -9, 2, -1)))
    same(first, A[:, :, :1])


def test_split_versions() -> None:
    x = np.arange(7.0)
    for parts, expected in (
        (call("Split", 2, x, split=[3, 4]), [3, 4]),
        (call("Split", 1, x, np.array([2, 5])), [2, 5]),
        (call("Split", 13, x, np.array([0, 7])), [0, 7]),
        (call("Split", 18, x, num_outputs=3), [3, 3, 1]),
        (call("Split", 11, x[:6], outputs=3), [2, 2, 2]),
    ):
        assert [len(part) for part in parts] == expected
        same(np.concatenate(parts), x[: sum(expected)])
    with pytest.raises(ValueError, match="do not sum"):
        call("Split", 13, x, np.array([1, 2]))


def test_pad_versions() -> None:
    x = A[0]
    padded = np.pad(x, ((1, 2), (0, 3)), constant_values=1.5)
    same(call("Pad", 1, x, paddings=[1, 0, 2, 3], value=1.5), padded)
    same(call("Pad", 2, x, pads=[1, 0, 2, 3], value=1.5), padded)
    same(call("Pad", 11, x, np.array([1, 0, 2, 3]), np.array(1.5)), padded)
    same(call("Pad", 18, x, np.array([2, 1]), None, np.array([-1])), np.pad(x, ((0, 0), (2, 1))))
    same(call("Pad", 13, x, np.array([-1, 0, 1, -2])), np.pad(x[1:, :2], ((0, 1), (0, 0))))
    ints = np.array([[1, 2]], np.uint16)
    same(call("Pad", 13, ints, np.array([0, 0, 1, 0])), np.pad(ints, ((0, 1), (0, 0))))


@given(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9), st.sampled_from(shaping._PAD_MODES))
def test_pad_is_numpys(size: int, before: int, after: int, mode: Any) -> None:
    x = np.arange(2.0 * size).reshape(2, size)
    pads = np.array([before, after])
    found = call("Pad", 19, x, pads, None, np.array([1]), mode=mode)
    same(found, np.pad(x, ((0, 0), (before, after)), mode=mode))


@given(st.integers(1, 7), *[st.integers(-7, 9)] * 2, st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_slice_is_pythons(size: int, start: int, end: int, step: int) -> None:
    if step < 0 and start < -size:
        start = 0
    x = np.arange(float(size))
    found = call("Slice", 13, x, *(np.array([n]) for n in (start, end, 0, step)))
    same(found, x[start:end:step])


def test_reshape_and_relatives() -> None:
    x = np.zeros((2, 0, 3))
    assert call("Reshape", 1, A, shape=[0, -1]).shape == (2, 12)
    assert call("Reshape", 5, A[:1, :1, :1], np.zeros(0, I64)).shape == ()
    assert call("Reshape", 14, x, np.array([3, 0, 7]), allowzero=1).shape == (3, 0, 7)
    assert call("Reshape", 14, x, np.array([0, 0, -1])).shape == (2, 0, 0)
    assert call("Reshape", 14, x, np.array([-1, 3])).shape == (0, 3)
    assert call("Flatten", 1, A).shape == (2, 12)
    assert call("Flatten", 11, A, axis=-1).shape == (6, 4)
    assert call("Flatten", 11, A, axis=0).shape == (1, 24)
    same(call("Shape", 1, A), np.array([2, 3, 4]))
    same(call("Shape", 15, A, start=-2, end=9), np.array([3, 4]))
    same(call("Concat", 1, A, A), np.concatenate([A, A], 1))  # the default axis was 1
    same(call("Tile", 1, A, np.array(3.0), np.array(1.0)), np.tile(A, (1, 3, 1)))
    same(call("Tile", 6, A, np.array([1, 2, 1])), np.tile(A, (1, 2, 1)))


def test_top_k_versions() -> None:
    x = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5]])
    options: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
        (1, (), {"k": 3}),
        (10, (np.array([3]),), {}),
    ]
    for version, inputs, named in options:
        values, places = call("TopK", version, x, *inputs, **named)
        same(values, [[3.0, 3, 2], [5, 5, 5]])
        same(places, np.array([[1, 2, 3], [0, 1, 2]]))
    values, places = call("TopK", 11, x, np.array([2]), largest=0)
    same(values, [[1.0, 2], [5, 5]])
    same(places, np.array([[0, 3], [0, 1]]))
    big = np.array([1, 2**64 - 1, 2**63], np.uint64)
    same(call("TopK", 11, big, np.array([2]))[0], big[[1, 2]])


def test_arg_extremes() -> None:
    x = np.array([[2.0, 7, 7], [1, 1, 0]])
    same(call("ArgMax", 1, x, axis=1), np.array([[1], [0]]))
    same(call("ArgMax", 13, x, axis=1, keepdims=0, select_last_index=1), np.array([2, 1]))
    same(call("ArgMin", 12, x.astype(np.uint32), axis=-1, keepdims=0), np.array([0, 2]))


@given(st.data(), st.sampled_from([1, 11, 18]), st.booleans())
def test_reductions_are_numpys(data: Any, version: int, keep: bool) -> None:
    op, numpy = data.draw(
        st.sampled_from(
            [
                ("ReduceSum", np.sum),
                ("ReduceMean", np.mean),
                ("ReduceProd", np.prod),
                ("ReduceMax", np.max),
                ("ReduceMin", np.min),
                ("ReduceL1", lambda x, **k: np.abs(x).sum(**k)),
                ("ReduceL2", lambda x, **k: np.sqrt((x * x).sum(**k))),
                ("ReduceSumSquare", lambda x, **k: (x * x).sum(**k)),
                ("ReduceLogSumExp", lambda x, **k: np.log(np.exp(x).sum(**k))),
            ]
        )
    )
    axes = data.draw(st.lists(st.integers(0, 2), min_size=1, unique=True))
    signed = [a - 3 if version > 1 else a for a in axes]
    x = A / 9
    expected = numpy(x, axis=tuple(axes), keepdims=keep)
    as_input = version == 18 or (op == "ReduceSum" and version >= 13)
    inputs = (np.array(signed),) if as_input else ()
    named: dict[str, Any] = {} if as_input else {"axes": signed}
    same(call(op, version, x, *inputs, keepdims=int(keep), **named), expected, 1e-11)
    same(call(op, version, x, keepdims=int(keep)), numpy(x, axis=None, keepdims=keep), 1e-11)


def test_reductions_of_nothing() -> None:
    none = np.zeros((2, 0, 3))
    for op, value in (
        ("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf),
        ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf), ("ReduceL1", 0.0),
    ):  # fmt: skip
        same(call(op, 18, none, np.array([1])), np.full((2, 1, 3), value))
    limits = np.iinfo(np.uint64)
    same(call("ReduceMin", 18, none.astype(np.uint64), np.array([1]), keepdims=0),
         np.full((2, 3), limits.max, np.uint64))  # fmt: skip
    same(call("ReduceMax", 20, none.astype(bool), np.array([1])), np.zeros((2, 1, 3), bool))
    # Empty axes: all of them, or the part that reduces nothing.
    axes = np.zeros(0, I64)
    same(call("ReduceSumSquare", 18, A, axes, noop_with_empty_axes=1), A * A)
    same(call("ReduceL1", 18, A, noop_with_empty_axes=1), np.abs(A))
    same(call("ReduceMax", 18, A, axes, keepdims=0), np.float64(16))


def test_products() -> None:
    a, b = A[0], A[1].T
    same(call("Gemm", 6, a, b, np.array([1.0, 2, 3]), broadcast=1, alpha=0.5, beta=2.0),
         0.5 * (a @ b) + 2 * np.array([1.0, 2, 3]))  # fmt: skip
    same(call("Gemm", 1, a.T, b.T, np.ones((3, 3)), transA=1, transB=1), a @ b + 1)
    same(call("Gemm", 11, a, b), a @ b)
    big = np.array([[2**62 + 1, 3], [5, 7]], I64)
    same(call("MatMul", 13, big, big), big @ big)
    unsigned = np.array([[2**32 - 1, 3], [5, 7]], np.uint32)
    same(call("MatMul", 13, unsigned, unsigned), unsigned @ unsigned)
    same(call("MatMul", 1, A[0, 0], A.transpose(0, 2, 1)), A[0, 0] @ A.transpose(0, 2, 1))
    for equation in ("bij, bkj->bik", "bij->jb", "bij,bij", "b...j,...k->...jk"):
        inputs = [A] * (1 + equation.count(","))
        same(call("Einsum", 12, *inputs, equation=equation), np.einsum(equation, *inputs))
    same(call("Einsum", 12, big, equation="ii"), np.einsum("ii", big))


def test_cumulative() -> None:
    x = np.array([100, 100, 100], np.int8)
    same(call("CumSum", 14, x, np.array(0)), np.cumsum(x, dtype=np.int8))
    same(call("CumSum", 11, np.arange(4.0), np.array(-1), exclusive=1, reverse=1), [6.0, 5, 3, 0])
    same(call("CumProd", 26, np.arange(1.0, 4), np.array(0), exclusive=1), [1.0, 1, 2])


def test_dropout_versions() -> None:
    with pytest.raises(NotInDouble):
        call("Dropout", 6, A)  # the default trains
    options: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
        (6, (), {"is_test": 1}),
        (7, (), {}),
        (10, (), {}),
        (13, (np.array(0.5), np.array(False)), {}),
        (13, (np.array(0.0), np.array(True)), {}),
    ]
    for version, inputs, named in options:
        found, mask = call("Dropout", version, A, *inputs, **named)
        same(found, A)
        assert mask.all()
        assert mask.dtype == (bool if version >= 10 else np.float64)
    with pytest.raises(NotInDouble, match="random"):
        call("Dropout", 22, A, None, np.array(True))


def test_activations_of_older_opsets() -> None:
    slope = np.array([0.1, 0.2, 0.3])
    same(call("PRelu", 6, A, slope), np.where(A < 0, A * slope[:, None], A))
    same(call("PRelu", 7, A, slope[:, None]), np.where(A < 0, A * slope[:, None], A))
    same(call("Selu", 1, -np.ones(1)), [1.0507 * 1.6732 * math.expm1(-1)], 1e-7)
    same(call("Selu", 6, -np.ones(1)), [-1.1113307378125625], 1e-7)
    # Defaults are the float32 that every engine computes with, not their decimal text.
    same(call("LeakyRelu", 6, -np.ones(1)), [-float(np.float32(0.01))], 1e-17)


def test_constants() -> None:
    same(call("Constant", 12, value_ints=[1, 2]), np.array([1, 2]))
    same(call("Constant", 12, value_float=0.5), np.float64(0.5))
    same(call("ConstantOfShape", 9, np.array([2, 0])), np.zeros((2, 0)))
    with pytest.raises(NotInDouble):
        call("Constant", 12, value_strings=["a"])
    same(call("Range", 11, *(np.array(n, np.int16) for n in (10, 4, -4))),
         np.array([10, 6], np.int16))  # fmt: skip
    same(call("OneHot", 11, np.array([0, -1, 5]), np.array(3), np.array([2, 7]), axis=0),
         np.array([[7, 2, 2], [2, 2, 2], [2, 7, 2]]))  # fmt: skip


def test_scatter_orders_and_wraps() -> None:
    x = np.zeros(3)
    same(call("ScatterElements", 11, x, np.array([1, -2]), np.array([4.0, 5])), [0, 5.0, 0])
    same(call("Scatter", 9, x, np.array([2]), np.array([4.0])), [0, 0, 4.0])
    big = np.array([250], np.uint16) * 257
    found = call("ScatterND", 16, big, np.array([[0], [0]]), big.repeat(2), reduction="add")
    same(found, big + big + big)
    with pytest.raises(IndexError):
        call("ScatterND", 11, x, np.array([[3]]), np.ones(1))
    with pytest.raises(IndexError):
        call("Gather", 13, x, np.array(-4))


def test_reverse_and_unique() -> None:
    x = np.arange(12.0).reshape(2, 3, 2)
    found = call("ReverseSequence", 10, x, np.array([2, 3]), batch_axis=0, time_axis=1)
    same(found, np.stack([x[0][[1, 0, 2]], x[1][::-1]]))
    y = np.array([[3, 1], [2, 1], [3, 1]], np.uint16)
    values, first, inverse, counts = call("Unique", 11, y, sorted=0, axis=0)
    same(values, y[:2])
    same(first, np.array([0, 1]))
    same(inverse, np.array([0, 1, 0]))
    same(counts, np.array([2, 1]))


# Integers.

INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def wrap(value: int, dtype: Any) -> int:
    """An exact integer as ``dtype`` holds it."""
    limits = np.iinfo(dtype)
    return (value - int(limits.min)) % (int(limits.max) - int(limits.min) + 1) + int(limits.min)


@given(st.data(), st.sampled_from(INTS))
def test_integers_are_exact_and_wrap(data: Any, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    number = st.integers(int(limits.min), int(limits.max))
    edge = st.sampled_from([int(limits.min), int(limits.max), 1, int(limits.max) // 2 + 1])
    a, b = data.draw(number | edge), data.draw(number | edge)
    x, y = np.array([a], dtype), np.array([b], dtype)
    expected = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Max": max(a, b), "Min": min(a, b)}
    if b:
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        expected |= {"Div": quotient, "Mod": a % b}
        same(call("Mod", 13, x, y, fmod=1), np.array([wrap(a - b * quotient, dtype)], dtype))
    for op, value in expected.items():
        same(call(op, 14, x, y), np.array([wrap(value, dtype)], dtype))
    for op, truth in (("Less", a < b), ("GreaterOrEqual", a >= b), ("Equal", a == b)):
        same(call(op, 19, x, y), np.array([truth]))
    same(call("ReduceMax", 18, np.array([a, b], dtype)), np.array([max(a, b)], dtype))
    total = wrap(a + b, dtype)
    same(call("ReduceSum", 13, np.array([a, b], dtype)), np.array([total], dtype))
    absolute = wrap(abs(a) + abs(b), dtype)
    same(call("ReduceL1", 18, np.array([a, b], dtype)), np.array([absolute], dtype))
    shift = data.draw(st.integers(0, 7))
    if not limits.min:
        places = np.array([shift], dtype)
        left = np.array([wrap(a << shift, dtype)], dtype)
        same(call("BitShift", 11, x, places, direction="LEFT"), left)
        same(call("BitShift", 11, x, places, direction="RIGHT"), np.array([a >> shift], dtype))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_by_zero_is_refused(op: str) -> None:
    with pytest.raises(NotInDouble, match="zero"):
        call(op, 14, np.array([1]), np.array([0]))


def test_float_division_and_powers() -> None:
    found = call("Div", 14, np.array([1.0, -1, 0]), np.zeros(3))
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan])
    x, y = np.array([-7.5, 7.5, 3.0]), np.array([2.0, -2.0, np.inf])
    same(call("Mod", 13, x, y, fmod=1), np.fmod(x, y))
    same(call("Mod", 28, x, y), np.mod(x, y))
    same(call("Pow", 12, np.array([2, -3], np.int32), np.array([3.0, 2.0])),
         np.array([8, 9], np.int32))  # fmt: skip
    same(call("Pow", 15, np.array([2.0, 4.0]), np.array([-1, 2])), [0.5, 16])


# Casts.

ROUNDED = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=30, max_size=30), st.sampled_from([*ROUNDED]))
@settings(max_examples=60)
def test_casts_round_as_ml_dtypes(bits: list[int], to: int) -> None:
    """Any float32, and its neighbourhood of the type: to nearest even, in one step."""
    x = np.array(bits, np.uint32).view(np.float32)
    x = np.concatenate([x, np.ldexp(np.float32(1), np.array(bits) % 40 - 20) * (1 + x % 1)])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(ROUNDED[to]).astype(np.float64)
    found = call("Cast", 19, x.astype(np.float64), to=to, saturate=0)
    np.testing.assert_array_equal(found, expected)
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[kept], np.signbit(expected)[kept])


def test_casts_keep_what_their_type_holds() -> None:
    """Every value of the 8-bit and 16-bit types is its own rounding."""
    for to, dtype in ROUNDED.items():
        size = np.dtype(dtype).itemsize
        codes = np.arange(256**size, dtype=np.uint8 if size == 1 else np.uint16)
        with np.errstate(all="ignore"):
            values = codes.view(dtype).astype(np.float64)
        np.testing.assert_array_equal(call("Cast", 19, values, to=to), _saturated(values, to))


def _saturated(values: Any, to: int) -> Any:
    eight = to in (TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
    return np.clip(values, -57344, 57344) if eight else values


def test_casts_round_once() -> None:
    """By way of float32 the first would become a tie, and round down to even."""
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 65519.99, 65520.0])
    same(call("Cast", 13, x, to=TensorProto.FLOAT16), [1 + 2.0**-10, 1, 65504, np.inf])
    same(call("Cast", 13, x, to=TensorProto.FLOAT), x, 0.0)


def test_casts_between_other_types() -> None:
    kinds = TensorProto
    x = np.array([-2.9, 2.9, 0.0, 130.5])
    same(call("Cast", 13, x, to=kinds.INT32), np.array([-2, 2, 0, 130], np.int32))
    same(call("Cast", 13, x, to=kinds.BOOL), np.array([True, True, False, True]))
    assert call("Cast", 13, np.array([np.nan]), to=kinds.BOOL).all()
    same(call("Cast", 13, np.array([200, 70000]), to=kinds.INT8), np.array([-56, 112], np.int8))
    same(
        call("Cast", 21, np.array([7, 9, -9, 16]), to=kinds.INT4), np.array([7, -7, 7, 0], np.int8)
    )
    same(call("Cast", 21, np.array([7, 19]), to=kinds.UINT4), np.array([7, 3], np.uint8))
    same(call("Cast", 1, x, to="INT32"), np.array([-2, 2, 0, 130], np.int32))
    same(call("Cast", 13, np.array([2**64 - 1], np.uint64), to=kinds.INT64), np.array([-1]))
    same(call("CastLike", 15, x, np.array([1], np.int16)), np.array([-2, 2, 0, 130], np.int16))
    same(call("CastLike", 15, x, np.ones(1), types=(1, kinds.FLOAT16)), x.astype(np.float16))
    with pytest.raises(NotInDouble, match="STRING"):
        call("Cast", 13, x, to=kinds.STRING)
    with pytest.raises(NotInDouble, match="not known"):
        call("CastLike", 15, x, np.ones(1))
    with pytest.raises(NotInDouble, match="more exact"):
        call("BitCast", 26, np.array([0.1]), to=kinds.INT32, types=(kinds.FLOAT,))


def test_casts_to_powers_of_two() -> None:
    def to_power(x: list[float], **named: Any) -> Any:
        return call("Cast", 24, np.array(x), to=TensorProto.FLOAT8E8M0, **named)

    x = [1.0, 1.25, 1.5, 3.0]
    same(to_power(x), [1.0, 2, 2, 4])
    same(to_power(x, round_mode="down"), [1.0, 1, 1, 2])
    same(to_power(x, round_mode="nearest"), [1.0, 1, 2, 4])
    same(to_power([0.0, 1e39, 1e-40]), [2.0**-127, 2.0**127, 2.0**-126])
    assert np.isnan(to_power([0.0, 1e39, 1e-50, np.inf], saturate=0)).all()


# Accuracy where a short formula would lose digits.


def test_activations_keep_their_digits() -> None:
    same(call("Softplus", 22, np.array([30.0, -30, 800])), [30 + 9.357622968839299e-14,
         9.357622968839299e-14, 800], 1e-26)  # fmt: skip
    found = call("Gelu", 20, np.array([-10.0]))
    assert math.isclose(float(found[0]), -10 * 7.619853024160526e-24, rel_tol=1e-12)
    same(call("Elu", 6, np.array([-1e-12])), [-1e-12], 1e-24)
    assert np.isnan(call("Sign", 13, np.array([np.nan]))[0])


def test_fourier_versions() -> None:
    signal = A.reshape(2, 12, 1)
    want = np.fft.rfft(A.reshape(2, 12), n=10, axis=1)
    found = call("DFT", 17, signal, np.array(10), axis=1, onesided=1)
    same(found[..., 0] + 1j * found[..., 1], want)
    back = call("DFT", 20, found, np.array(10), np.array(-2), onesided=1, inverse=1)
    same(back, signal[:, :10])
    window = call("HannWindow", 17, np.array(4), periodic=0)
    same(window, [0, 0.75, 0.75, 0])
    frames = call("STFT", 17, signal, np.array(3), window)
    assert frames.shape == (2, 3, 3, 2)
    part = np.fft.rfft(A.reshape(2, 12)[:, 3:7] * window)
    same(frames[:, 1, :, 0] + 1j * frames[:, 1, :, 1], part)


def test_losses_ignore_a_class() -> None:
    scores = np.log(np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]]))
    labels, weight = np.array([1, -1, 0]), np.array([1.0, 3.0])
    named: dict[str, Any] = {"ignore_index": -1}
    used = -scores[0, 1] * 3 - scores[2, 0]
    same(
        call("NegativeLogLikelihoodLoss", 13, scores, labels, weight, **named), np.float64(used / 4)
    )
    loss, logs = call("SoftmaxCrossEntropyLoss", 13, scores, labels, weight, **named)
    same(loss, np.float64(used / 4))
    same(logs, scores)
