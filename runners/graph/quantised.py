"""Quantised operators of ONNX: sums of integers exact, everything else in double.

A product of 8-bit tensors is summed in float64, where every integer below 2**53 is exact, and then
wraps as a 32-bit accumulator does. Since subtraction of zero points and addition wrap alike, the
order in which an engine takes them does not matter. Requantisation is one multiplication and one
division in double, rounded half to even and saturated: an engine that does it in float32 may land
one step away where the value lies close to a half.

Integers under 8 bits are held as int8 or uint8, floats under 16 bits as their value in
``Node.dtype``. Formulas: the operators' entries in onnx.ai/onnx/operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value, operator


def _types(**held: Any) -> dict[int, Any]:
    """By element type, of the names that the installed onnx has: the narrow ones are young."""
    known = TensorProto.DataType
    return {known.Value(name): value for name, value in held.items() if name in known.keys()}  # noqa: SIM118


INTEGERS: dict[int, tuple[torch.dtype, int, int]] = _types(
    UINT2=(torch.uint8, 0, 3),
    INT2=(torch.int8, -2, 1),
    UINT4=(torch.uint8, 0, 15),
    INT4=(torch.int8, -8, 7),
    UINT8=(torch.uint8, 0, 255),
    INT8=(torch.int8, -128, 127),
    UINT16=(torch.uint16, 0, 65_535),
    INT16=(torch.int16, -32_768, 32_767),
    INT32=(torch.int32, -(2**31), 2**31 - 1),
)
"""Types of quantised integers: what holds them, their least and greatest value."""


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A float under 16 bits: bits of its mantissa, least exponent, greatest value.

    ``over`` is what a value beyond becomes without saturation (``top``: there is no other, nor
    NaN); ``signed_zero`` whether -0 exists.
    """

    mantissa: int
    exponent: int
    top: float
    over: float
    signed_zero: bool = True


FLOATS: dict[int, SmallFloat] = _types(
    FLOAT8E4M3FN=SmallFloat(3, -6, 448.0, math.nan),
    FLOAT8E4M3FNUZ=SmallFloat(3, -7, 240.0, math.nan, signed_zero=False),
    FLOAT8E5M2=SmallFloat(2, -14, 57_344.0, math.inf),
    FLOAT8E5M2FNUZ=SmallFloat(2, -15, 57_344.0, math.nan, signed_zero=False),
    FLOAT6E2M3=SmallFloat(3, 0, 7.5, 7.5),
    FLOAT6E3M2=SmallFloat(2, -2, 28.0, 28.0),
    FLOAT4E2M1=SmallFloat(1, 0, 6.0, 6.0),
)
"""Types of quantised floats, as onnx.ai/onnx/technical has them (float8.html, float4.html)."""

KINDS: dict[torch.dtype, int] = {
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
    torch.uint16: TensorProto.UINT16,
    torch.int16: TensorProto.INT16,
    torch.int32: TensorProto.INT32,
}
"""The element type of a tensor of which nothing is declared."""


# Shared with contrib.py.


def take(inputs: Sequence[Value], index: int) -> Tensor | None:
    """An optional input that is a tensor."""
    value = inputs[index] if index < len(inputs) else None
    assert value is None or isinstance(value, Tensor), "a sequence where a tensor belongs"
    return value


def need(inputs: Sequence[Value], index: int) -> Tensor:
    """An input that must be there."""
    value = take(inputs, index)
    assert value is not None, f"input {index} is missing"
    return value


def call(node: Node, op: str, *inputs: Value, version: int = 22, **attributes: Any) -> Tensor:
    """Another operator of ONNX's own domain, floats taken as double: its first output."""
    types = tuple(
        TensorProto.DOUBLE if isinstance(x, Tensor) and x.is_floating_point() else 0 for x in inputs
    )
    other = replace(
        node, op=op, domain="", version=version, types=types, out_types=(), attributes=attributes
    )
    out = OPERATORS["", op](other, inputs)
    first = out[0] if isinstance(out, tuple) else out
    assert isinstance(first, Tensor)
    return first


HELD_AS_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})
"""Types that no quantised tensor is of."""


def kind_of(node: Node, index: int, tensor: Tensor) -> int:
    """The element type of the output's zero point, input ``index``, which is the output's too.

    As declared of the one or the other, else what the dtype says.
    Raises NotInDouble for a float whose type nothing tells.
    """
    declared = node.types[index] if index < len(node.types) else 0
    written = node.out_types[0] if node.out_types else 0
    kind = declared or written
    if not tensor.is_floating_point() and (not kind or kind in HELD_AS_FLOATS):
        # What an operator without a schema gives is a guess; an integer tells of itself.
        kind = KINDS.get(tensor.dtype, 0)
    if not kind:
        raise NotInDouble(f"{node.op}: the element type of input {index} is not known")
    return kind


def quantise(
    x: Tensor, scale: Tensor, zero: Tensor | None, kind: int, *, saturate: bool = True
) -> Tensor:
    """x / scale + zero in the element type ``kind``, rounded half to even; floats as float64.

    Integers saturate; NaN, of which ONNX says nothing, becomes the least value. ``saturate`` is
    the attribute of that name, for floats. Parameters must broadcast. Raises NotInDouble.
    """
    y = x.double() / scale.double()
    offset = torch.zeros((), dtype=torch.float64) if zero is None else zero.double()
    if kind in FLOATS:
        if offset.any():
            raise NotInDouble("quantisation to floats with a zero point that is not zero")
        return round_small(y, FLOATS[kind], saturate=saturate)
    if kind not in INTEGERS:
        raise NotInDouble(f"quantisation to {TensorProto.DataType.Name(kind)}")
    held, low, high = INTEGERS[kind]
    whole = (torch.round(y) + offset).clamp(low, high)
    return torch.nan_to_num(whole, nan=low).to(torch.int64).to(held)


def round_small(x: Tensor, to: SmallFloat, *, saturate: bool) -> Tensor:
    """The nearest values of a small float, ties to even, subnormals kept."""
    exponent = (torch.frexp(x).exponent - 1).clamp(min=to.exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - to.mantissa)
    y = torch.where(x.isinf(), x, torch.round(x / step) * step)
    over = to.top if saturate or to.over == to.top else to.over
    y = torch.where(y.abs() > to.top, torch.copysign(torch.full_like(y, over), y), y)
    if to.over == to.top:  # A format without NaN.
        y = torch.nan_to_num(y, nan=to.top)
    return y if to.signed_zero else y + 0.0


def dequantise(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(x - zero) * scale in double. Parameters must broadcast."""
    offset = 0.0 if zero is None else zero.double()
    return (x.double() - offset) * scale.double()


def spread(parameter: Tensor, x: Tensor, axis: int, block: int = 0) -> Tensor:
    """A scale or zero point so that it broadcasts against ``x``.

    One value for all, one for each index of ``axis``, or one for each ``block`` indices.
    """
    if parameter.numel() == 1:
        return parameter.reshape(())
    if block:
        return parameter.repeat_interleave(block, dim=axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def shifted(x: Tensor, zero: Tensor | None) -> Tensor:
    """Integers less their zero point, in float64, where both are exact."""
    return x.double() if zero is None else x.double() - zero.double()


def wrap(total: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Whole numbers in float64 as an accumulator of ``dtype`` holds them: modulo its range."""
    return torch.round(total).to(torch.int64).to(dtype)


def exact(node: Node, a: Tensor, b: Tensor, terms: int) -> None:
    """Raise NotInDouble where a sum of ``terms`` products may leave what float64 holds exactly."""
    if a.numel() and b.numel() and float(a.abs().max() * b.abs().max()) * terms >= 2.0**53:
        raise NotInDouble(f"{node.op}: sums of {terms} products may exceed 2**53")


def rows(parameter: Tensor) -> Tensor:
    """A parameter of a left operand: one value, one for each row, or already broadcastable."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.unsqueeze(-1) if parameter.dim() == 1 else parameter


def columns(parameter: Tensor) -> Tensor:
    """A parameter of a right operand: one value, one for each column, or broadcastable."""
    return parameter.reshape(()) if parameter.numel() == 1 else parameter


def product(
    node: Node, a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None
) -> Tensor:
    """The matrix product of two integer tensors in an int32 accumulator."""
    left = shifted(a, None if a_zero is None else rows(a_zero))
    right = shifted(b, None if b_zero is None else columns(b_zero))
    exact(node, left, right, left.shape[-1])
    return wrap(left @ right)


def convolve(
    node: Node, x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None
) -> Tensor:
    """The convolution of two integer tensors in an int32 accumulator.

    Padding is by the zero point, which is what zeros are after the shift.
    """
    left = shifted(x, None if x_zero is None else spread(x_zero, x, 1))
    right = shifted(w, None if w_zero is None else spread(w_zero, w, 0))
    exact(node, left, right, math.prod(w.shape[1:]))
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {name: node.attributes[name] for name in names if name in node.attributes}
    return wrap(call(replace(node, dtype=torch.float64), "Conv", left, right, **attributes))


def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A float tensor in uint8 over its own range, widened to hold zero: y, scale, zero point.

    Where all are zero the scale is 1, as ONNX Runtime has it; ONNX would divide by zero.
    """
    ends = torch.cat([x.double().flatten(), torch.zeros(1, dtype=torch.float64)])
    low, high = ends.min(), ends.max()
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((-low / scale).clamp(0, 255)).to(torch.uint8)
    return quantise(x, scale, zero, TensorProto.UINT8), scale, zero


# The operators.


def _axis(node: Node) -> int:
    """The axis of per-axis parameters, 1 where it is not given."""
    return int(node.get("axis", 1))


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain="com.microsoft")
def quantize_linear(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Float, or int32, to integer or small float: per tensor, per axis or per block."""
    x, scale, zero = need(inputs, 0), need(inputs, 1), take(inputs, 2)
    default = TensorProto.UINT8 if zero is None else kind_of(node, 2, zero)
    kind = int(node.get("output_dtype", 0)) or default
    axis, block = _axis(node), int(node.get("block_size", 0))
    scale = spread(scale, x, axis, block)
    zero = None if zero is None else spread(zero, x, axis, block)
    out = quantise(x, scale, zero, kind, saturate=bool(node.get("saturate", 1)))
    return out.to(node.dtype) if kind in FLOATS else out


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Integer or small float to float: per tensor, per axis or per block."""
    x, scale, zero = need(inputs, 0), need(inputs, 1), take(inputs, 2)
    axis, block = _axis(node), int(node.get("block_size", 0))
    zero = None if zero is None else spread(zero, x, axis, block)
    return dequantise(x, spread(scale, x, axis, block), zero).to(node.dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """uint8 over the range of the tensor itself: y, scale, zero point."""
    y, scale, zero = dynamic(need(inputs, 0))
    return y, scale.to(node.dtype), zero


@operator("MatMulInteger")
def matmul_integer(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The int32 product of 8-bit matrices."""
    a, b, a_zero, b_zero = need(inputs, 0), need(inputs, 1), take(inputs, 2), take(inputs, 3)
    return product(node, a, a_zero, b, b_zero)


@operator("ConvInteger")
def conv_integer(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The int32 convolution of 8-bit tensors."""
    x, w, x_zero, w_zero = need(inputs, 0), need(inputs, 1), take(inputs, 2), take(inputs, 3)
    return convolve(node, x, x_zero, w, w_zero)


@operator("QLinearMatMul")
def qlinear_matmul(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The product of 8-bit matrices, requantised. Scales may be per row of A, column of B."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (need(inputs, i) for i in range(8))
    total = product(node, a, a_zero, b, b_zero).double()
    value = total * (rows(a_scale).double() * columns(b_scale).double())
    return quantise(value, rows(y_scale), rows(y_zero), kind_of(node, 7, y_zero))


@operator("QLinearConv")
@operator("QLinearConv", domain="com.microsoft")
def qlinear_conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The convolution of 8-bit tensors with an int32 bias, requantised.

    Weights may have a scale per output channel. ``channels_last``, com.microsoft only: x and y
    are NHWC, the weights are not.
    """
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (need(inputs, i) for i in range(8))
    bias, last = take(inputs, 8), bool(node.get("channels_last", 0))
    total = convolve(node, x.movedim(-1, 1) if last else x, x_zero, w, w_zero)
    if bias is not None:
        total = wrap(total.double() + spread(bias, total, 1).double())
    scale = x_scale.double().reshape(()) * spread(w_scale, total, 1).double()
    y = quantise(
        total.double() * scale, y_scale.reshape(()), y_zero.reshape(()), kind_of(node, 7, y_zero)
    )
    return y.movedim(1, -1).contiguous() if last else y
