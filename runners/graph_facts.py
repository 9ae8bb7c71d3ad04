"""What an ONNX graph is, by looking at it: its subgraphs, its tensors, its type, its randomness."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import numpy_helper

RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
    "Bernoulli",
}  # fmt: skip
"""Operators that draw numbers."""
QUANTISED = re.compile(
    "(Dynamic)?Quantize|Q(Linear|Gemm|Attention)|MatMul(Integer|NBits)|ConvInteger"
)
"""How names of operators begin whose values are integers that stand for floats."""
FLOAT_NAMES = {
    onnx.TensorProto.FLOAT: "",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all below it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from graphs(inner)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a graph and its subgraphs hold."""
    for part in graphs(graph):
        yield from part.initializer
        for sparse in part.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def random_nodes(model: onnx.ModelProto) -> str:
    """The nodes that draw numbers, as ``RandomNormal 'n'``; empty where there are none."""
    found = []
    for graph in (*graphs(model.graph), *(function for function in model.functions)):
        for node in graph.node:
            training = node.op_type == "Dropout" and trains(node, model)
            if node.op_type in RANDOM or training:
                found.append(f"{node.op_type} {node.name or node.output[0]!r}")
    return ", ".join(found)


def trains(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Whether a Dropout may drop: its third input is there, and is not a constant False."""
    if len(node.input) < 3 or not node.input[2]:
        return False
    known = {item.name: item for graph in graphs(model.graph) for item in graph.initializer}
    for graph in graphs(model.graph):
        for other in graph.node:
            if other.op_type == "Constant":
                known |= [(other.output[0], a.t) for a in other.attribute if a.name == "value"]
    constant = known.get(node.input[2])
    return constant is None or bool(numpy_helper.to_array(constant))


def narrow_type(model: onnx.ModelProto) -> str:
    """The type that a file is declared in where that is not float32; else empty.

    ``int8`` where values are quantised, whichever integer type they are held in, or ``int4`` where
    some are so narrow; a float type where most of the parameters are in it.
    """
    sizes: Counter[int] = Counter()
    for tensor in tensors(model.graph):
        sizes[tensor.data_type] += math.prod(tensor.dims)
    quantised = [
        node
        for graph in graphs(model.graph)
        for node in graph.node
        if QUANTISED.match(node.op_type)
    ]
    if quantised:
        bits = [item.i for node in quantised for item in node.attribute if item.name == "bits"]
        four = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4} & sizes.keys()
        return "int4" if four or min(bits, default=8) <= 4 else "int8"
    for value in model.graph.input:
        # A graph without parameters is in the type of its inputs.
        sizes[value.type.tensor_type.elem_type] += 1
    floats = {kind: n for kind, n in sizes.items() if kind in FLOAT_NAMES}
    most = max(floats, key=lambda kind: floats[kind], default=onnx.TensorProto.FLOAT)
    return FLOAT_NAMES.get(most, "")
