"""Tensors and attributes of an ONNX file as values: floats in one dtype, the rest as they are.

Integers of 2 and 4 bits are held in 8, complex numbers in two doubles. torch knows no texts: a
tensor of texts has no value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from xbench.errors import Unsupported
from xbench.runners.graph.node import Value

Array = np.ndarray[Any, Any]

FLOATS = frozenset(
    value
    for name, value in TensorProto.DataType.items()
    if name.startswith(("FLOAT", "BFLOAT")) or name == "DOUBLE"
)
"""Element types that are floats, of every width."""
NARROW = frozenset({TensorProto.INT4, TensorProto.UINT4}) | frozenset(
    value for name, value in TensorProto.DataType.items() if name in ("INT2", "UINT2")
)
"""Integers that neither numpy nor torch has."""


def from_numpy(array: Array, dtype: torch.dtype) -> Tensor:
    """A copy of an array of numpy's or ml_dtypes' types. Raises Unsupported for texts."""
    name = array.dtype.name
    if "float" in name:
        wide = array.astype(np.float64 if dtype == torch.float64 else np.float32)
        return torch.from_numpy(np.array(wide, order="C")).to(dtype)
    if array.dtype.kind in "biu":
        return torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("=")), order="C"))
    if array.dtype.kind == "c":
        return torch.from_numpy(np.array(array.astype(np.complex128), order="C"))
    if name.startswith(("int", "uint")):
        return torch.from_numpy(array.astype(np.uint8 if name[0] == "u" else np.int8))
    raise Unsupported("tensors of texts have no float64 reference")


def value_of(given: Any, dtype: torch.dtype) -> Value:
    """What ``given`` (a tensor, an array, a list of them or None) is to an operator."""
    if given is None:
        return None
    if isinstance(given, (list, tuple)):
        return [value_of(item, dtype) for item in given]
    if isinstance(given, Tensor):
        return given.to(dtype) if given.is_floating_point() else given
    return from_numpy(np.asarray(given), dtype)


def tensor(proto: TensorProto, dtype: torch.dtype) -> Value:
    """The tensor that a file holds; None where it holds texts."""
    if proto.data_type == TensorProto.STRING:
        return None
    return from_numpy(numpy_helper.to_array(proto), dtype)


def sparse(proto: onnx.SparseTensorProto, dtype: torch.dtype) -> Value:
    """A sparse tensor, made dense: its indices are linear or one row per value."""
    values = tensor(proto.values, dtype)
    if not isinstance(values, Tensor):
        return None
    indices = torch.from_numpy(np.array(numpy_helper.to_array(proto.indices), np.int64))
    shape = tuple(proto.dims)
    dense = values.new_zeros(shape)
    if indices.ndim == 1:
        dense.view(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def constant(node: onnx.NodeProto, dtype: torch.dtype) -> Value:
    """What a Constant node gives; None where that is texts."""
    (attribute,) = node.attribute
    if attribute.name == "value":
        return tensor(attribute.t, dtype)
    if attribute.name == "sparse_value":
        return sparse(attribute.sparse_tensor, dtype)
    if attribute.name in ("value_float", "value_floats"):
        held = helper.get_attribute_value(attribute)
        # The file holds a float32: the constant is exactly that, in more digits.
        return torch.tensor(held, dtype=dtype)
    if attribute.name in ("value_int", "value_ints"):
        return torch.tensor(helper.get_attribute_value(attribute), dtype=torch.int64)
    return None


def constant_type(node: onnx.NodeProto) -> int:
    """The element type of what a Constant node gives."""
    (attribute,) = node.attribute
    if attribute.name == "value":
        return int(attribute.t.data_type)
    if attribute.name == "sparse_value":
        return int(attribute.sparse_tensor.values.data_type)
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "s": TensorProto.STRING}
    return int(kinds[attribute.name.removeprefix("value_")[0]])


def attributes(node: onnx.NodeProto, dtype: torch.dtype) -> Mapping[str, Any]:
    """Every attribute by name: tensors decoded, texts as ``str``, subgraphs as they are."""
    found: dict[str, Any] = {}
    for item in node.attribute:
        held = helper.get_attribute_value(item)
        if item.type == AttributeProto.STRING:
            held = held.decode(errors="surrogateescape")
        elif item.type == AttributeProto.STRINGS:
            held = [text.decode(errors="surrogateescape") for text in held]
        elif item.type == AttributeProto.TENSOR:
            held = tensor(item.t, dtype)
        elif item.type == AttributeProto.TENSORS:
            held = [tensor(part, dtype) for part in item.tensors]
        elif item.type == AttributeProto.SPARSE_TENSOR:
            held = sparse(item.sparse_tensor, dtype)
        elif item.type in (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.GRAPHS):
            held = list(held)
        found[item.name] = held
    return found


def to_numpy(value: Value, element: int) -> Any:
    """A value as numpy's: floats as they are held, narrow integers in ml_dtypes' types."""
    if value is None:
        return None
    if isinstance(value, list):
        return [to_numpy(item, element) for item in value]
    array = value.numpy()
    if element in NARROW and not value.is_floating_point():
        return array.astype(helper.tensor_dtype_to_np_dtype(element))
    return array


STEPS = {TensorProto.INT8: 255, TensorProto.INT4: 15}
"""Steps between the least and the largest value of a tensor that is quantised to a type."""


def round_to(value: Tensor, element: int) -> Tensor:
    """Floats rounded to the nearest of an element type; beyond its largest, that one.

    NaN and Inf stay. For int8 and int4 the tensor is quantised: evenly between its least and its
    largest value (and zero, which stays). Another type that is no float, or double, rounds nothing.
    """
    if element in STEPS and value.is_floating_point():
        return quantised(value, STEPS[element])
    if element not in FLOATS or element == TensorProto.DOUBLE or not value.is_floating_point():
        return value
    limit = limit_of(element)
    held = torch.where(value.isinf(), value, value.clamp(-limit, limit))
    if element == TensorProto.FLOAT:
        return held.to(torch.float32).to(value.dtype)
    narrow = to_odd(held).numpy().astype(helper.tensor_dtype_to_np_dtype(element))
    return torch.from_numpy(narrow.astype(np.float64)).to(value.dtype)


def quantised(value: Tensor, steps: int) -> Tensor:
    """Floats on a grid of ``steps`` even steps that holds zero; what is not finite stays."""
    finite = value[value.isfinite()]
    if not finite.numel():
        return value
    low, high = finite.min().clamp(max=0.0), finite.max().clamp(min=0.0)
    step = (high - low) / steps
    held = torch.round(value / step).clamp(torch.round(low / step), torch.round(high / step)) * step
    return torch.where(value.isfinite() & (step > 0), held, value)


def to_odd(value: Tensor) -> Tensor:
    """In float32, what is not exact with its last bit set: so that narrowing rounds once.

    From double by way of float32, a value just above a tie would become the tie (Boldo and
    Melquiond 2005, "When double rounding is odd").
    """
    near = value.to(torch.float32)
    inexact = (near.to(value.dtype) != value) & value.isfinite()
    # Toward zero: one step back where rounding went away from it.
    away = inexact & (near.to(value.dtype).abs() > value.abs())
    bits = near.view(torch.int32) - away.to(torch.int32)
    return (bits | inexact.to(torch.int32)).view(torch.float32)


@functools.cache
def limit_of(element: int) -> float:
    """The largest finite value of a float type."""
    finfo = ml_dtypes.finfo(helper.tensor_dtype_to_np_dtype(element))  # type: ignore[no-untyped-call]
    return float(finfo.max)
