"""What evaluates an operator that no table has: its schema's function, and ``onnx.reference``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

from xbench.runners.graph import decode, infer
from xbench.runners.graph.node import Node, NotInDouble, Value

KEEPS_TYPE = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"}
"""Operators whose declared types are what they are about: their functions keep them."""


def schema_function(
    proto: NodeProto, node: Node, types: Sequence[int], inputs: Sequence[Value]
) -> FunctionProto | None:
    """The function body that an operator's schema has for a node, None where it has none.

    ``types`` are the element types to build it for, which stand for those that the file declares.
    Attributes that the node leaves out have the schema's defaults.
    """
    schema = infer.schema_of(node.op, node.version, node.domain)
    if schema is None:
        return None
    body = FunctionProto()
    if schema.has_function:
        at = newest(schema.function_opset_versions, node.version)
        body.ParseFromString(schema.get_function_with_opset_version(at))
    elif schema.has_context_dependent_function:
        at = newest(schema.context_dependent_function_opset_versions, node.version)
        kinds = [
            kind_of(value, allowed(schema, index, element)).SerializeToString()
            for index, (value, element) in enumerate(zip(inputs, types, strict=True))
        ]
        built = schema.get_context_dependent_function_with_opset_version(
            at, proto.SerializeToString(), kinds
        )
        if not built:
            return None
        body.ParseFromString(built)
    else:
        return None
    if not body.node:
        return None
    defaults = [item.default_value for item in schema.attributes.values()]
    named = {item.name for item in body.attribute_proto}
    body.attribute_proto.extend(
        item for item in defaults if item.name and item.type and item.name not in named
    )
    return body


def newest(versions: Sequence[int], version: int) -> int:
    """The newest of the versions up to ``version``; the oldest where all are newer."""
    return max((item for item in versions if item <= version), default=min(versions))


def allowed(schema: Any, index: int, element: int) -> int:
    """An element type, or float32 for double where the operator knows no double."""
    if element != TensorProto.DOUBLE or not schema.inputs:
        return element
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return element if "tensor(double)" in formal.types else int(TensorProto.FLOAT)


def kind_of(value: Value, element: int) -> TypeProto:
    """The type of a value, with its shape; empty for an input that is left out."""
    if value is None:
        return TypeProto()
    if isinstance(value, list):
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(element, None))
    if not element:
        element = helper.np_dtype_to_tensor_dtype(value.numpy().dtype)
    return helper.make_tensor_type_proto(element, list(value.shape))


def reference(
    proto: NodeProto, node: Node, inputs: Sequence[Value], made: dict[Any, Any]
) -> tuple[tuple[Value, ...], bool] | None:
    """The outputs of a node by ``onnx.reference``, and whether its arithmetic was in double.

    None where it does not have the operator. Raises NotInDouble where it fails on these values.
    """
    if "reference" not in made:
        made["reference"] = evaluator(proto, node)
    runs = made["reference"]
    if runs is None:
        return None
    feeds = {
        name: decode.to_numpy(value, element)
        for name, value, element in zip(proto.input, inputs, node.types, strict=True)
        if name
    }
    try:
        found = runs.run(None, feeds)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError) as error:
        raise NotInDouble(f"onnx.reference: {first_line(error)}") from error
    floats = [item.dtype for item in found if is_float(item)]
    exact = all(dtype == np.float64 for dtype in floats) and not narrows(runs)
    outputs = tuple(decode.value_of(item, node.dtype) for item in found)
    return outputs, exact


def evaluator(proto: NodeProto, node: Node) -> Any:
    """A model of this one node, ready to run; None where ``onnx.reference`` lacks the operator."""
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(proto.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.GraphProto(name="one", node=[proto], input=inputs, output=outputs)
    opsets = [helper.make_opsetid(proto.domain, node.version)]
    if node.domain:
        opsets.append(helper.make_opsetid("", 18))
    model = onnx.ModelProto(graph=graph, opset_import=opsets, ir_version=onnx.IR_VERSION)
    try:
        return ReferenceEvaluator(model)
    except (NotImplementedError, RuntimeError, ValueError, TypeError, AttributeError):
        return None


def narrows(runs: Any) -> bool:
    """Whether the source of an implementation names float32, in which it may then compute."""
    for implementation in runs.rt_nodes_:
        module = inspect.getmodule(type(implementation))
        try:
            text = inspect.getsource(module) if module else "float32"
        except OSError:
            return True
        if "float32" in text:
            return True
    return False


def is_float(item: Any) -> bool:
    """Whether an array holds floats, of numpy's or ml_dtypes' types."""
    return isinstance(item, np.ndarray) and "float" in item.dtype.name


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0]
