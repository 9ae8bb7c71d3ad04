"""Quantised operators of ONNX against ONNX's own cases, exact sums and the rounding of floats."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from xbench.runners.graph import (
    decode,
    interpreter,  # noqa: F401 - it enters every table
)
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value
from xbench.runners.graph.quantised import FLOATS, INTEGERS

OPS = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
)
DOUBLE = torch.float64


@functools.cache
def cases() -> dict[str, Any]:
    """ONNX's own cases of one node, by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return {
        case.name: case
        for case in found
        if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in OPS
    }


def array(given: Any) -> Any:
    """A case's tensor as numpy's."""
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


def call(op: str, *inputs: Any, types: tuple[int, ...] = (), **attributes: Any) -> list[Value]:
    """An operator on numpy's arrays: its outputs."""
    values = [decode.value_of(item, DOUBLE) for item in inputs]
    out = OPERATORS["", op](Node(op, attributes=attributes, types=types), values)
    return list(out) if isinstance(out, tuple) else [out]


def one(op: str, *inputs: Any, types: tuple[int, ...] = (), **attributes: Any) -> Tensor:
    """The same, for an operator of one output."""
    (out,) = call(op, *inputs, types=types, **attributes)
    assert isinstance(out, Tensor)
    return out


def test_every_operator_has_cases() -> None:
    ops = {case.model.graph.node[0].op_type for case in cases().values()}
    assert ops == set(OPS)
    assert len(cases()) >= 40


@pytest.mark.parametrize("op", OPS)
def test_agrees_with_onnx(op: str) -> None:
    for name, case in cases().items():
        graph = case.model.graph
        if graph.node[0].op_type != op:
            continue
        (inputs, expected), *_ = case.data_sets
        present = iter(zip(inputs, graph.input, strict=True))
        values: list[Value] = []
        types: list[int] = []
        for wanted in graph.node[0].input:
            item, info = next(present) if wanted else (None, None)
            values.append(None if item is None else decode.value_of(array(item), DOUBLE))
            types.append(info.type.tensor_type.elem_type if info else 0)
        node = Node(
            op,
            version=case.model.opset_import[0].version,
            attributes=decode.attributes(graph.node[0], DOUBLE),
            types=tuple(types),
            out_types=tuple(item.type.tensor_type.elem_type for item in graph.output),
            outputs=len(graph.output),
        )
        out = OPERATORS["", op](node, values)
        for mine, theirs in zip(out if isinstance(out, tuple) else [out], expected, strict=True):
            assert isinstance(mine, Tensor)
            want = array(theirs)
            assert tuple(mine.shape) == want.shape, name
            if mine.is_floating_point():
                # float16 scales: the case's own floats are rounded to them.
                rtol = 2e-3 if want.dtype == np.float16 else 1e-6
                np.testing.assert_allclose(
                    mine.numpy(), want.astype(np.float64), rtol=rtol, err_msg=name
                )
            else:
                got, whole = mine.numpy().astype(np.int64), want.astype(np.int64)
                if name == "test_dynamicquantizelinear" and got.ndim:
                    # -2.5 / (5 / 255) is a tie, which float32 misses: 153 - 127.5 goes to 25.
                    assert (got[3], whole[3]) == (25, 26)
                    whole[3] = 25
                np.testing.assert_array_equal(got, whole, err_msg=name)


def test_a_product_of_bytes_does_not_saturate() -> None:
    """64 products of 255 and 127: kernels without VNNI add two of them in 16 bits."""
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    assert one("MatMulInteger", a, b).tolist() == [[2_072_640]]
    x, w = a.reshape(1, 64, 1, 1), b.reshape(1, 64, 1, 1)
    assert one("ConvInteger", x, w).tolist() == [[[[2_072_640]]]]
    zero, one_ = np.uint8(0), np.float32(1)
    y = one("QLinearMatMul", a, one_, zero, b, one_, np.int8(0), np.float32(8192), zero)
    assert y.tolist() == [[253]]
    y = one("QLinearConv", x, one_, zero, w, one_, np.int8(0), np.float32(8192), zero)
    assert y.tolist() == [[[[253]]]]


def test_a_sum_beyond_32_bits_wraps() -> None:
    depth = 34_000
    a, b = np.full((1, depth), 255, np.uint8), np.full((depth, 1), 255, np.uint8)
    exact = depth * 255 * 255
    assert exact > 2**31
    assert one("MatMulInteger", a, b).tolist() == [[exact - 2**32]]


def test_sums_are_those_of_int64() -> None:
    draw = np.random.default_rng(1)
    a = draw.integers(0, 256, (3, 5, 300), np.uint8)
    b = draw.integers(-128, 128, (3, 300, 4)).astype(np.int8)
    rows = draw.integers(0, 256, (3, 5, 1), np.uint8)
    columns = draw.integers(-128, 128, (3, 1, 4)).astype(np.int8)
    want = (a.astype(np.int64) - rows) @ (b.astype(np.int64) - columns)
    np.testing.assert_array_equal(one("MatMulInteger", a, b, rows, columns), want)
    want = (a[0].astype(np.int64) - rows[0]) @ (b[0].astype(np.int64) - columns[0])
    got = one("MatMulInteger", a[0], b[0], rows[0, :, 0], columns[0, 0])
    np.testing.assert_array_equal(got, want)


def test_a_convolution_pads_with_the_zero_point_and_adds_an_integer_bias() -> None:
    draw = np.random.default_rng(2)
    x = draw.integers(0, 256, (1, 2, 5, 5), np.uint8)
    w = draw.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    w_scale = np.array([0.01, 0.02, 0.005], np.float32)
    w_zero = np.array([1, -2, 3], np.int8)
    bias = np.array([100, -2000, 30], np.int32)
    padded = np.pad(x.astype(np.int64) - 7, ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = np.zeros((1, 3, 5, 5), np.int64)
    for i in range(3):
        for j in range(3):
            part = padded[0, :, i : i + 5, j : j + 5]
            weights = w[:, :, i, j].astype(np.int64) - w_zero[:, None]
            total[0] += np.einsum("mc,chw->mhw", weights, part)
    scale = np.float64(np.float32(0.1)) * w_scale.astype(np.float64).reshape(1, 3, 1, 1)
    value = (total + bias.reshape(1, 3, 1, 1)) * scale / np.float64(np.float32(0.5))
    want = np.clip(np.rint(value) + 3, 0, 255)
    got = one(
        "QLinearConv",
        x,
        np.float32(0.1),
        np.uint8(7),
        w,
        w_scale,
        w_zero,
        np.float32(0.5),
        np.uint8(3),
        bias,
        pads=[1, 1, 1, 1],
    )
    np.testing.assert_array_equal(got, want)
    assert 0 < (want == 0).mean() < 0.9  # Some saturate, not all.


def test_halves_go_to_even_and_the_ends_saturate() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -np.inf, np.inf], np.float32)
    y = one("QuantizeLinear", x, np.float32(1), np.int8(0))
    assert y.tolist() == [0, 2, 2, 0, -2, 127, -128, 127]
    assert one("QuantizeLinear", x, np.float32(1)).dtype == torch.uint8
    y = one("QuantizeLinear", x, np.float32(1), output_dtype=TensorProto.INT16)
    assert y.dtype == torch.int16
    assert y[5] == 32_767
    # A block of two has its own scale; the last block may be short.
    scale = np.array([[1, 2]], np.float32)
    y = one("QuantizeLinear", x[None, :3], scale, axis=1, block_size=2)
    assert y.tolist() == [[0, 2, 1]]


def test_ties_that_only_double_sees() -> None:
    """0.49999999 / 1 is below a half: nothing is added before rounding."""
    x = torch.tensor([0.5 - 2**-40, 0.5 + 2**-40], dtype=DOUBLE)
    y = OPERATORS["", "QuantizeLinear"](
        Node("QuantizeLinear"), [x, torch.ones((), dtype=DOUBLE), None]
    )
    assert isinstance(y, Tensor)
    assert y.tolist() == [0, 1]


SMALL = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}
for _name, _dtype in (("E2M3", ml_dtypes.float6_e2m3fn), ("E3M2", ml_dtypes.float6_e3m2fn)):
    if f"FLOAT6{_name}" in TensorProto.DataType.keys():  # noqa: SIM118
        SMALL[TensorProto.DataType.Value(f"FLOAT6{_name}")] = _dtype


@pytest.mark.parametrize("kind", SMALL)
def test_small_floats_round_as_their_types_do(kind: int) -> None:
    """Every value of the type, what lies between two, and a hair to either side of that."""
    dtype: Any = SMALL[kind]
    bits = int(dtype.__name__[len("float")])
    grid = np.arange(2**bits, dtype=np.uint8).view(dtype).astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    middle = (grid[1:] + grid[:-1]) / 2
    x = np.concatenate([grid, middle, middle * (1 + 1e-6), middle * (1 - 1e-6)])
    want = x.astype(np.float32).astype(dtype).astype(np.float64)
    y = one("QuantizeLinear", x, np.float32(1), output_dtype=kind)
    np.testing.assert_array_equal(y.numpy(), want)
    signs = np.signbit(y.numpy()) == np.signbit(want)
    assert signs.all()


@pytest.mark.parametrize("kind", SMALL)
def test_small_floats_saturate_or_leave(kind: int) -> None:
    top = FLOATS[kind].top
    x = np.array([top * 4, -top * 4, np.inf, -np.inf, np.nan])
    y = one("QuantizeLinear", x, np.float32(1), output_dtype=kind, saturate=1).tolist()
    assert y[:4] == [top, -top, top, -top]
    lasting = FLOATS[kind].over == top
    assert y[4] == top if lasting else math.isnan(y[4])
    y = one("QuantizeLinear", x, np.float32(1), output_dtype=kind, saturate=0).tolist()
    if kind == TensorProto.FLOAT8E5M2:
        assert y[:4] == [math.inf, -math.inf, math.inf, -math.inf]
    elif lasting:
        assert y[:4] == [top, -top, top, -top]
    else:
        assert all(math.isnan(value) for value in y)


def test_what_is_not_known_is_refused() -> None:
    x, scale = np.ones(2, np.float32), np.float32(1)
    with pytest.raises(NotInDouble, match="element type"):
        one("QuantizeLinear", x, scale, np.float32(0))
    with pytest.raises(NotInDouble, match="FLOAT"):
        one("QuantizeLinear", x, scale, output_dtype=TensorProto.FLOAT)
    assert one("QuantizeLinear", x, scale, np.int8(0), types=(1, 1, TensorProto.INT4)).tolist()


def test_a_narrow_type_saturates_at_its_own_ends() -> None:
    x = np.array([-100.0, 100.0], np.float32)
    for kind, ends in (
        (TensorProto.INT4, [-8, 7]),
        (TensorProto.UINT4, [0, 15]),
        (TensorProto.INT2, [-2, 1]),
        (TensorProto.UINT2, [0, 3]),
        (TensorProto.UINT16, [0, 100]),
    ):
        assert one("QuantizeLinear", x, np.float32(1), output_dtype=kind).tolist() == ends


def test_a_tensor_of_zeros_has_a_range() -> None:
    y, scale, zero = call("DynamicQuantizeLinear", np.zeros(3, np.float32))
    assert isinstance(y, Tensor)
    assert isinstance(scale, Tensor)
    assert isinstance(zero, Tensor)
    assert (y.tolist(), scale.item(), zero.item()) == ([0, 0, 0], 1.0, 0)


def test_no_type_of_quantised_numbers_is_unknown() -> None:
    """A release of onnx may bring types that the tables do not know."""
    schema = onnx.defs.get_schema("QuantizeLinear")
    (held,) = (item for item in schema.type_constraints if item.type_param_str == "T3")
    names = [text.removeprefix("tensor(").removesuffix(")") for text in held.allowed_type_strs]
    kinds = {TensorProto.DataType.Value(name.upper()) for name in names}
    assert kinds <= INTEGERS.keys() | FLOATS.keys()
    assert len(kinds) >= 8
