"""ONNX's elementwise operators in double: arithmetic, logic, activations, casts, Fourier.

Every opset of the ai.onnx domain. Inputs are tensors on the CPU. Integers keep ONNX's types and
wrap around; int4, int2 (uint4, uint2) are held in int8 (uint8). torch has few kernels for uint16,
uint32 and uint64: those pass through int64 (``signed``, ``ordered``) or numpy and come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor

from xbench.runners.graph.node import Node, NotInDouble, Value, operator

Inputs = Sequence[Value]

INTEGERS = {
    TensorProto.BOOL: torch.bool,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.INT4: torch.int8,
    TensorProto.UINT4: torch.uint8,
    TensorProto.INT2: torch.int8,
    TensorProto.UINT2: torch.uint8,
}
"""How an ONNX integer type is held."""

NARROW = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2}
"""Bits of the integers that are held in a wider type."""


# Inputs and attributes.


def tensor(node: Node, inputs: Inputs, index: int) -> Tensor:
    """The input at ``index``, which must be a tensor: else ``NotInDouble``."""
    value = inputs[index] if index < len(inputs) else None
    if not isinstance(value, Tensor):
        raise NotInDouble(f"{node.op}: input {index} is no tensor")
    return value


def given(inputs: Inputs, index: int) -> Tensor | None:
    """The optional input at ``index``, None where it is left out."""
    value = inputs[index] if index < len(inputs) else None
    return value if isinstance(value, Tensor) else None


def numbers(value: Tensor) -> list[int]:
    """The integers of a tensor of any shape, flattened."""
    return [int(n) for n in value.reshape(-1).tolist()]


def integers(inputs: Inputs, index: int, otherwise: Any) -> list[int] | None:
    """What is an input in newer opsets and an attribute (``otherwise``) in older ones."""
    value = given(inputs, index)
    if value is not None:
        return numbers(value)
    return None if otherwise is None else [int(n) for n in otherwise]


@cache
def _defaults(op: str, version: int, domain: str) -> dict[str, Any]:
    schema = onnx.defs.get_schema(op, version, domain)
    return {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != onnx.AttributeProto.UNDEFINED
    }


def setting(node: Node, name: str) -> Any:
    """An attribute, else the default of its opset (float32 rounded, as every engine has it)."""
    if name in node.attributes:
        value = node.attributes[name]
    else:
        value = _defaults(node.op, node.version, node.domain).get(name)
    return value.decode() if isinstance(value, bytes) else value


# Unsigned integers that torch cannot compute with.


def signed(x: Tensor) -> Tensor:
    """uint16 and uint32 as int64, uint64 as the int64 of the same bits, others as they are.

    Sums, products and bitwise operators of the results wrap as those of the originals do.
    """
    if x.dtype == torch.uint64:
        return x.view(torch.int64)
    return x.to(torch.int64) if x.dtype in (torch.uint16, torch.uint32) else x


def like(y: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of ``signed``: wraps integers to ``dtype``."""
    if dtype == torch.uint64:
        return y.to(torch.int64).view(torch.uint64)
    return y.to(dtype)


_TOP = -(2**63)


def ordered(x: Tensor) -> Tensor:
    """As ``signed``, but keeps the order of uint64 too (its top bit is flipped)."""
    return signed(x) ^ _TOP if x.dtype == torch.uint64 else signed(x)


def unordered(y: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of ``ordered``."""
    return like(y ^ _TOP if dtype == torch.uint64 else y, dtype)


def through_numpy(function: Callable[..., Any], *values: Tensor) -> Tensor:
    """``function`` of the tensors as numpy arrays; integer overflow wraps silently there."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(function(*(v.numpy() for v in values))))


# Arithmetic.


def _pair(node: Node, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Both operands; before opset 7 ``axis`` says where the shape of the second one starts."""
    a, b = tensor(node, inputs, 0), tensor(node, inputs, 1)
    axis = node.get("axis")
    if node.version < 7 and node.get("broadcast") and axis is not None and b.ndim:
        start = axis + a.ndim if axis < 0 else axis
        b = b.reshape(b.shape + (1,) * max(0, a.ndim - start - b.ndim))
    return a, b


_WRAPPING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}


@operator(*_WRAPPING)
def _wrapping(node: Node, inputs: Inputs) -> Value:
    a, b = _pair(node, inputs)
    return like(_WRAPPING[node.op](signed(a), signed(b)), a.dtype)


def _truncated(a: Any, b: Any) -> Any:
    """Integer quotients, rounded towards zero (numpy's are rounded down)."""
    quotient = a // b
    if np.issubdtype(a.dtype, np.signedinteger):
        quotient = quotient + ((a != quotient * b) & ((a < 0) != (b < 0))).astype(a.dtype)
    return quotient


def _divisible(node: Node, b: Tensor) -> None:
    if not b.is_floating_point() and bool((signed(b) == 0).any()):
        raise NotInDouble(f"{node.op}: ONNX leaves the division of an integer by zero undefined")


@operator("Div")
def _div(node: Node, inputs: Inputs) -> Value:
    a, b = _pair(node, inputs)
    _divisible(node, b)
    return a / b if a.is_floating_point() else through_numpy(_truncated, a, b)


@operator("Mod")
def _mod(node: Node, inputs: Inputs) -> Value:
    """The sign of the divisor, with ``fmod`` that of the dividend."""
    a, b = _pair(node, inputs)
    _divisible(node, b)
    return through_numpy(np.fmod if setting(node, "fmod") else np.mod, a, b)


@operator("Pow")
def _pow(node: Node, inputs: Inputs) -> Value:
    """The result has the type of the base; an integer base and a float power are truncated."""
    a, b = _pair(node, inputs)
    if a.is_floating_point():
        return torch.pow(a, b.to(a.dtype))
    if b.is_floating_point():
        return torch.pow(a.to(torch.float64), b.to(torch.float64)).to(a.dtype)
    return like(torch.pow(signed(a), signed(b)), a.dtype)


@operator("BitShift")
def _bit_shift(node: Node, inputs: Inputs) -> Value:
    left = setting(node, "direction") == "LEFT"
    return through_numpy(np.left_shift if left else np.right_shift, *_pair(node, inputs))


_ORDERING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Equal": torch.eq,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
}


@operator(*_ORDERING)
def _compare(node: Node, inputs: Inputs) -> Value:
    a, b = _pair(node, inputs)
    return _ORDERING[node.op](ordered(a), ordered(b))


@operator("Max", "Min", "Sum", "Mean")
def _variadic(node: Node, inputs: Inputs) -> Value:
    values = [tensor(node, inputs, i) for i in range(len(inputs))]
    dtype = values[0].dtype
    if node.op in ("Max", "Min"):
        extreme = torch.maximum if node.op == "Max" else torch.minimum
        result = ordered(values[0])
        for value in values[1:]:
            result = extreme(result, ordered(value))
        return unordered(result, dtype)
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result / len(values) if node.op == "Mean" else result


@operator("Where")
def _where(node: Node, inputs: Inputs) -> Value:
    condition, x, y = (tensor(node, inputs, i) for i in range(3))
    return torch.where(condition, x, y)


LARGEST = {
    TensorProto.FLOAT: torch.finfo(torch.float32).max,
    TensorProto.DOUBLE: torch.finfo(torch.float64).max,
    TensorProto.FLOAT16: torch.finfo(torch.float16).max,
    TensorProto.BFLOAT16: torch.finfo(torch.bfloat16).max,
}
"""The largest finite value of a float type."""


@operator("Clip")
def _clip(node: Node, inputs: Inputs) -> Value:
    """Min(max, Max(input, min)). A bound left out is the largest finite value of the type."""
    x = tensor(node, inputs, 0)
    if node.version < 11:
        lowest, highest = setting(node, "min"), setting(node, "max")  # None in opset 1
        lowest = -math.inf if lowest is None else lowest
        highest = math.inf if highest is None else highest
        x = torch.maximum(x, torch.tensor(lowest, dtype=x.dtype))
        return torch.minimum(x, torch.tensor(highest, dtype=x.dtype))
    lower, upper = given(inputs, 1), given(inputs, 2)
    largest = LARGEST.get(node.types[0]) if node.types else None
    if x.is_floating_point() and largest is not None:
        lower = torch.tensor(-largest, dtype=x.dtype) if lower is None else lower
        upper = torch.tensor(largest, dtype=x.dtype) if upper is None else upper
    result = ordered(x)
    if lower is not None:
        result = torch.maximum(result, ordered(lower.reshape(())))
    if upper is not None:
        result = torch.minimum(result, ordered(upper.reshape(())))
    return unordered(result, x.dtype)


# Functions of one tensor.


def _sign(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, x.sign()) if x.is_floating_point() else x.sign()


def _softplus(x: Tensor) -> Tensor:
    # torch's own is linear above a threshold.
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Log": torch.log,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tan": torch.tan,
    "Asin": torch.asin,
    "Acos": torch.acos,
    "Atan": torch.atan,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Tanh": torch.tanh,
    "Asinh": torch.asinh,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Floor": torch.floor,
    "Ceil": torch.ceil,
    "Round": torch.round,  # halves to even
    "Not": torch.logical_not,
    "BitwiseNot": torch.bitwise_not,
    "Sign": _sign,
    "IsNaN": torch.isnan,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1 + x.abs()),
    "Mish": lambda x: x * torch.tanh(_softplus(x)),
    "Det": torch.linalg.det,
}


@operator(*_UNARY)
def _unary(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        if node.op == "Sign":
            return like(signed(x) != 0, x.dtype)
        return like(_UNARY[node.op](signed(x)), x.dtype)
    return _UNARY[node.op](x)


@operator("Abs")
def _abs(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    return x if x.dtype in (torch.uint16, torch.uint32, torch.uint64) else x.abs()


@operator("IsInf")
def _is_inf(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    result = torch.zeros(x.shape, dtype=torch.bool)
    if setting(node, "detect_positive"):
        result = result | x.isposinf()
    if setting(node, "detect_negative"):
        result = result | x.isneginf()
    return result


def _elu(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, setting(node, "alpha") * torch.expm1(x))


def _celu(node: Node, x: Tensor) -> Tensor:
    alpha = setting(node, "alpha")
    # torch.relu keeps a NaN.
    return torch.relu(x) + torch.clamp(alpha * torch.expm1(x / alpha), max=0)


def _selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = float(setting(node, "alpha")), float(setting(node, "gamma"))
    return torch.where(x > 0, x, alpha * torch.expm1(x)) * gamma


def _gelu(node: Node, x: Tensor) -> Tensor:
    if setting(node, "approximate") == "tanh":
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    # erfc, so that the far negative side does not cancel.
    return x / 2 * torch.erfc(-x / math.sqrt(2))


def _shrink(node: Node, x: Tensor) -> Tensor:
    """Integers are computed in the node's float type and truncated."""
    bias, threshold = setting(node, "bias"), setting(node, "lambd")
    real = x.to(node.dtype)
    below = torch.where(real < -threshold, real + bias, torch.zeros_like(real))
    return torch.where(real > threshold, real - bias, below).to(x.dtype)


_PARAMETRIC: dict[str, Callable[[Node, Tensor], Tensor]] = {
    "LeakyRelu": lambda node, x: torch.where(x < 0, setting(node, "alpha") * x, x),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Gelu": _gelu,
    "HardSigmoid": lambda node, x: torch.clamp(
        setting(node, "alpha") * x + setting(node, "beta"), 0, 1
    ),
    "HardSwish": lambda node, x: x * torch.clamp(x / 6 + 0.5, 0, 1),
    "ThresholdedRelu": lambda node, x: torch.where(
        x > setting(node, "alpha"), x, torch.zeros_like(x)
    ),
    "Swish": lambda node, x: x * torch.sigmoid(setting(node, "alpha") * x),
    "Shrink": _shrink,
}


@operator(*_PARAMETRIC)
def _parametric(node: Node, inputs: Inputs) -> Value:
    return _PARAMETRIC[node.op](node, tensor(node, inputs, 0))


@operator("SwiGLU")
def _swiglu(node: Node, inputs: Inputs) -> Value:
    a, b = tensor(node, inputs, 0), tensor(node, inputs, 1)
    return a * torch.sigmoid(setting(node, "alpha") * a) * b


@operator("PRelu")
def _prelu(node: Node, inputs: Inputs) -> Value:
    """Before opset 7 a slope has one value, or one per channel (the second axis)."""
    x, slope = tensor(node, inputs, 0), tensor(node, inputs, 1)
    if node.version < 7 and slope.ndim == 1 and slope.numel() > 1 and x.ndim > 2:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    negative = like(signed(x) * signed(slope), x.dtype)
    return torch.where(ordered(x) < ordered(torch.zeros_like(x)), negative, x)


@operator("Identity")
def _identity(node: Node, inputs: Inputs) -> Value:
    return inputs[0]


@operator("Dropout")
def _dropout(node: Node, inputs: Inputs) -> tuple[Value, ...]:
    """Inference: the input and a mask of ones. Training draws at random: ``NotInDouble``.

    The mode is an attribute before opset 7 and an input from opset 12 on.
    """
    x = tensor(node, inputs, 0)
    if node.version < 7:
        training, ratio = not setting(node, "is_test"), setting(node, "ratio")
    elif node.version < 12:
        training, ratio = False, 0.0
    else:
        mode, share = given(inputs, 2), given(inputs, 1)
        training = mode is not None and bool(mode)
        ratio = 0.5 if share is None else float(share)
    if training and ratio:
        raise NotInDouble("Dropout: training draws at random")
    return x, torch.ones(x.shape, dtype=torch.bool if node.version >= 10 else x.dtype)


# Casts.


@dataclass(frozen=True, slots=True)
class Format:
    """A float type: bits of the fraction, exponent of the least normal value, largest value."""

    bits: int
    least: int
    largest: float
    infinite: bool
    negative_zero: bool = True


FORMATS = {
    TensorProto.FLOAT16: Format(10, -14, 65504.0, True),
    TensorProto.BFLOAT16: Format(7, -126, torch.finfo(torch.bfloat16).max, True),
    TensorProto.FLOAT8E4M3FN: Format(3, -6, 448.0, False),
    TensorProto.FLOAT8E4M3FNUZ: Format(3, -7, 240.0, False, negative_zero=False),
    TensorProto.FLOAT8E5M2: Format(2, -14, 57344.0, True),
    TensorProto.FLOAT8E5M2FNUZ: Format(2, -15, 57344.0, False, negative_zero=False),
    TensorProto.FLOAT4E2M1: Format(1, 0, 6.0, False),
}


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent in float64, exact, for exponents of -1022 to 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def round_to(x: Tensor, form: Format, *, saturate: bool) -> Tensor:
    """``x`` rounded once, to nearest even, to the values of ``form``; still in float64.

    Beyond the largest value: that value with ``saturate``, else an infinity, else NaN where the
    type has none. The tables of ONNX's Cast.
    """
    x = x.to(torch.float64)
    finite = torch.where(x.isfinite(), x, torch.zeros_like(x))
    exponent = torch.frexp(finite).exponent - 1
    quantum = _power_of_two(torch.clamp(exponent, min=form.least, max=1023) - form.bits)
    result = torch.where(x.isfinite(), torch.round(finite / quantum) * quantum, x)
    if saturate:
        result = torch.clamp(result, -form.largest, form.largest)
    else:
        beyond = math.inf if form.infinite else math.nan
        result = torch.where(result.abs() > form.largest, beyond * result.sign(), result)
    return result if form.negative_zero else result + 0.0


def round_to_power(x: Tensor, mode: str, *, saturate: bool) -> Tensor:
    """``x`` rounded to FLOAT8E8M0: a power of two of -127 to 127, or NaN. Negatives: undefined."""
    x = x.to(torch.float64)
    usable = x.isfinite() & (x > 0)
    mantissa, exponent = torch.frexp(torch.where(usable, x, torch.ones_like(x)))
    over = {"up": mantissa > 0.5, "down": mantissa > 1, "nearest": mantissa >= 0.75}[mode]
    power = exponent.to(torch.int64) - 1 + over
    result = _power_of_two(power.clamp(-127, 127))
    nan = torch.full_like(x, math.nan)
    least = torch.full_like(x, 2.0**-127)
    if saturate:
        result = torch.where(x.isposinf(), torch.full_like(x, 2.0**127), result)
        result = torch.where(x == 0, least, result)
    else:
        result = torch.where((power > 127) | (power < -127) | (x <= 0) | x.isinf(), nan, result)
    return torch.where(x.isnan() | (x < 0), nan, result)


def cast(
    x: Tensor, to: int, dtype: torch.dtype, *, saturate: bool = True, mode: str = "up"
) -> Tensor:
    """``x`` as the ONNX type ``to``, held in ``dtype`` where that is a float.

    FLOAT and DOUBLE do not round. Raises ``NotInDouble`` for texts and complex numbers.
    """
    if to in (TensorProto.FLOAT, TensorProto.DOUBLE):
        return x.to(dtype)
    if to == TensorProto.FLOAT8E8M0:
        return round_to_power(x, mode, saturate=saturate).to(dtype)
    if to in FORMATS:
        # 16-bit floats overflow to infinity; 4-bit ones have nothing beyond the largest.
        eight = to not in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT4E2M1)
        limit = to == TensorProto.FLOAT4E2M1 or (eight and saturate)
        result = round_to(x, FORMATS[to], saturate=limit)
        if to == TensorProto.FLOAT4E2M1:  # has no NaN: ONNX's cases expect a negative zero
            result = torch.where(result.isnan(), -torch.zeros_like(result), result)
        return result.to(dtype)
    if to == TensorProto.BOOL:
        return x.to(torch.bool)
    if to in NARROW:
        size = 1 << NARROW[to]
        low = x.to(torch.int64) & (size - 1)
        if not INTEGERS[to].is_signed:
            return low.to(torch.uint8)
        return torch.where(low >= size // 2, low - size, low).to(torch.int8)
    if to in INTEGERS:
        return x.to(INTEGERS[to])
    name = TensorProto.DataType.Name(to) if to in TensorProto.DataType.values() else to
    raise NotInDouble(f"a cast to {name}")


@operator("Cast")
def _cast(node: Node, inputs: Inputs) -> Value:
    to = node.get("to")
    if isinstance(to, bytes | str):  # the name of the type, in opsets 1 to 5
        to = TensorProto.DataType.Value(to.decode() if isinstance(to, bytes) else to)
    return _cast_to(node, tensor(node, inputs, 0), to)


@operator("CastLike")
def _cast_like(node: Node, inputs: Inputs) -> Value:
    """The type of the second input: as declared, else the integer type it is held in."""
    x, target = tensor(node, inputs, 0), tensor(node, inputs, 1)
    to = node.types[1] if len(node.types) > 1 else 0
    to = to or (node.out_types[0] if node.out_types else 0)
    if to:
        return _cast_to(node, x, to)
    if target.is_floating_point():
        raise NotInDouble("CastLike: the float type of the second input is not known")
    return x.to(target.dtype)


def _cast_to(node: Node, x: Tensor, to: int) -> Tensor:
    saturate = setting(node, "saturate")
    mode = setting(node, "round_mode") or "up"
    return cast(x, to, node.dtype, saturate=saturate is None or bool(saturate), mode=mode)


@operator("BitCast")
def _bit_cast(node: Node, inputs: Inputs) -> Value:
    """The same bits as another type. ``NotInDouble`` for a value its declared type does not hold.

    A float that the double reference holds more exactly than its type does has no bits to read.
    """
    x, to = tensor(node, inputs, 0), node.get("to")
    source = node.types[0] if node.types else 0
    if not x.is_floating_point() and not source:
        source = next((k for k, v in INTEGERS.items() if v == x.dtype), 0)
    if not source or {source, to} & (set(NARROW) | {TensorProto.FLOAT4E2M1}):
        raise NotInDouble("BitCast: the type of the input is not known, or narrower than a byte")
    held = x.numpy()
    array = held.astype(onnx.helper.tensor_dtype_to_np_dtype(source))
    if not np.array_equal(array.astype(held.dtype), held):  # a NaN has many bit patterns
        raise NotInDouble("BitCast: the values are more exact than the type whose bits are read")
    result = array.view(onnx.helper.tensor_dtype_to_np_dtype(to)).reshape(held.shape)
    if to in INTEGERS:
        return torch.from_numpy(result.copy())
    return torch.from_numpy(np.asarray(result.astype(np.float64))).to(node.dtype)


# Windows and Fourier transforms.

_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@operator(*_WINDOWS)
def _window(node: Node, inputs: Inputs) -> Value:
    """a0 - a1 cos(t) + a2 cos(2 t) at t = 2 pi i / N, N the size, or one less if symmetric."""
    size = int(tensor(node, inputs, 0))
    a0, a1, a2 = _WINDOWS[node.op]
    period = size if setting(node, "periodic") else size - 1
    t = torch.arange(size, dtype=torch.float64) * (2 * math.pi) / period
    window = a0 - a1 * torch.cos(t) + a2 * torch.cos(2 * t)
    return cast(window, setting(node, "output_datatype"), node.dtype)


def _fourier(x: Tensor, length: int | None, axis: int, *, onesided: bool, inverse: bool) -> Tensor:
    """The transform of [..., 1] (real) or [..., 2] (complex) values; ``axis`` not the last."""
    axis = axis + x.ndim if axis < 0 else axis
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    if inverse and onesided:
        real: Tensor = torch.fft.irfft(signal, n=length, dim=axis)
        return real.unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, n=length, dim=axis))
    if onesided and not signal.is_complex():
        return torch.view_as_real(torch.fft.rfft(signal, n=length, dim=axis))
    result = torch.fft.fft(signal, n=length, dim=axis)
    if onesided:
        result = result.narrow(axis, 0, result.shape[axis] // 2 + 1)
    return torch.view_as_real(result)


@operator("DFT")
def _dft(node: Node, inputs: Inputs) -> Value:
    """The axis is an attribute (default 1) before opset 20 and an input (default -2) since."""
    length, where = given(inputs, 1), given(inputs, 2)
    axis = setting(node, "axis") if node.version < 20 else -2 if where is None else int(where)
    return _fourier(
        tensor(node, inputs, 0),
        None if length is None else int(length),
        axis,
        onesided=bool(setting(node, "onesided")),
        inverse=bool(setting(node, "inverse")),
    )


@operator("STFT")
def _stft(node: Node, inputs: Inputs) -> Value:
    """[batch, signal, 1 or 2] -> [batch, frames, bins, 2]."""
    x, step = tensor(node, inputs, 0), int(tensor(node, inputs, 1))
    window, length = given(inputs, 2), given(inputs, 3)
    if x.ndim == 2:
        x = x[..., None]
    whole = x.shape[1] if window is None else window.shape[0]
    size = whole if length is None else int(length)
    frames = x.unfold(1, size, step).transpose(2, 3)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    return _fourier(frames, None, 2, onesided=bool(setting(node, "onesided")), inverse=False)


@operator("MelWeightMatrix")
def _mel(node: Node, inputs: Inputs) -> Value:
    """[spectrogram bins, mel bins]: triangles with their corners at whole bins, peak 1."""
    bins, length, rate = (int(tensor(node, inputs, i)) for i in range(3))
    low, high = (2595 * math.log10(1 + float(tensor(node, inputs, i)) / 700) for i in range(3, 5))
    step = (high - low) / (bins + 2)
    hertz = [700 * (10 ** ((low + i * step) / 2595) - 1) for i in range(bins + 2)]
    corners = [int((length + 1) * f // rate) for f in hertz]
    weights = torch.zeros(length // 2 + 1, bins, dtype=torch.float64)
    for i in range(bins):
        left, centre, right = corners[i : i + 3]
        for j in range(left, centre):
            weights[j, i] = (j - left) / (centre - left)
        weights[centre, i] = 1
        for j in range(centre + 1, right):
            weights[j, i] = (right - j) / (right - centre)
    return cast(weights, setting(node, "output_datatype"), node.dtype)
