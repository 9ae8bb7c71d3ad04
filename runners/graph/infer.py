"""The element type of every tensor of a graph, from its nodes alone: no shapes, no data.

What ``onnx.shape_inference`` would say, without writing the model out for it (which fails beyond
2 GB) and also for operators and bodies of functions that it leaves alone. A sequence or optional
has the element type of what is in it. 0 stands for what is not known.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto

from xbench.runners.graph import decode

ASKED = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that are the element type of the first output."""
AS_INPUT = {
    "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt", "SplitToSequence",
    "ConcatFromSequence", "OptionalGetElement",
}  # fmt: skip
"""Whose schema names the sequence and its tensors apart."""


def element_of(kind: onnx.TypeProto) -> int:
    """The element type that a declaration gives; of what is in a sequence or optional."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return int(kind.tensor_type.elem_type)
    if which == "sparse_tensor_type":
        return int(kind.sparse_tensor_type.elem_type)
    if which in ("sequence_type", "optional_type"):
        return element_of(getattr(kind, which).elem_type)
    return 0


def declared(graph: onnx.GraphProto) -> dict[str, int]:
    """What a graph itself says of its tensors."""
    found = {
        value.name: element_of(value.type)
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    found |= {item.name: int(item.data_type) for item in graph.initializer}
    found |= {item.values.name: int(item.values.data_type) for item in graph.sparse_initializer}
    return {name: element for name, element in found.items() if element}


@functools.cache
def schema_of(op: str, version: int, domain: str) -> Any:
    """The schema of an operator; None where onnx has none."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def outputs(
    node: onnx.NodeProto,
    domain: str,
    version: int,
    attributes: Mapping[str, Any],
    types: Sequence[int],
) -> tuple[int, ...]:
    """Element types of the outputs of a node that has no subgraph.

    From its schema: an output that shares a type variable with an input is of its type. An
    operator without one, as those of ONNX Runtime, gives what its first float input is of, or
    its first input.
    """
    count = len(node.output)
    asked = next((int(attributes[name]) for name in ASKED if attributes.get(name)), 0)
    op = node.op_type
    if op == "Constant" and not domain:
        return (decode.constant_type(node),)
    if op == "ConstantOfShape":
        given = [item.t.data_type for item in node.attribute if item.name == "value"]
        return (int(given[0]) if given else TensorProto.FLOAT,)
    if op == "CastLike":
        return (at(types, 1),)
    if op == "QuantizeLinear":
        return (at(types, 2) or asked or TensorProto.UINT8,)
    if op == "DequantizeLinear":
        return (asked or at(types, 1),)
    if op == "Optional" and isinstance(attributes.get("type"), onnx.TypeProto):
        return (element_of(attributes["type"]),)
    if op == "Optional" or op in AS_INPUT:
        return (at(types, 0) or at(types, 1),)
    if op == "SequenceEmpty":
        return (asked or TensorProto.FLOAT,)
    likely = next((item for item in types if item in decode.FLOATS), at(types, 0))
    schema = schema_of(op, version, domain)
    if schema is None:
        return (asked or likely, *(likely for _ in range(count - 1)))
    bound = bindings(schema, types)
    found = []
    for index in range(count):
        formal = schema.outputs[min(index, len(schema.outputs) - 1)]
        element = bound.get(formal.type_str, 0)
        if len(formal.types) == 1:
            element = named(next(iter(formal.types)))
        if not index and asked:
            element = asked
        if not element:
            defaults = (schema.attributes[name] for name in ASKED if name in schema.attributes)
            usual = 0 if index else next((int(item.default_value.i) for item in defaults), 0)
            element = usual or int(attributes.get("stash_type", 0)) or likely or TensorProto.FLOAT
        found.append(element)
    return tuple(found)


def bindings(schema: Any, types: Sequence[int]) -> dict[str, int]:
    """The type variables of a schema, by the inputs that are given."""
    bound: dict[str, int] = {}
    for index, element in enumerate(types):
        formals = schema.inputs
        if element and formals:
            bound.setdefault(formals[min(index, len(formals) - 1)].type_str, element)
    return bound


def named(text: str) -> int:
    """The element type in ``tensor(float)`` or ``seq(tensor(float))``; 0 for a variable."""
    if "tensor(" not in text:
        return 0
    inner = text.rsplit("tensor(", 1)[1].split(")")[0]
    return int(dict(TensorProto.DataType.items()).get(inner.upper(), 0))


def at(types: Sequence[int], index: int) -> int:
    """The type of an input, 0 where it is not given."""
    return types[index] if index < len(types) else 0
