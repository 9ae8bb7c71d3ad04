"""Half precision for ONNX graphs: float32 becomes float16, but where ONNX does not have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xbench.errors import Unsupported

if TYPE_CHECKING:
    import onnx

REFUSED = {
    "bf16": "ONNX Runtime has no bfloat16 kernels on the CPU, and opset 18 no bfloat16 Conv",
    "fp64": "ONNX Runtime has no float64 kernels for Conv, pooling, LSTM and more",
}
"""Precisions that are not offered, and why (both were tried)."""
LARGEST_BYTES = 1_800_000_000
"""A file above this keeps its parameters beside it: one protobuf holds 2 GiB at most."""
HALF_MAX = 65504.0
GENERATORS = {
    **dict.fromkeys(("RandomNormal", "RandomUniform", "EyeLike", "Bernoulli"), "dtype"),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), "dtype"),
    **dict.fromkeys(("BlackmanWindow", "HannWindow", "HammingWindow"), "output_datatype"),
    "MelWeightMatrix": "output_datatype",
}
"""Operators that make values of a type that an attribute names: ONNX Runtime has few of them in
float16, so they stay in float32 and their result is rounded."""
Types = Mapping[str, int]


def to_fp16(source: Path, target: Path) -> None:
    """Write ``source`` with every float32 value in float16, inputs and outputs included.

    A node that ONNX defines for float32 but not for float16 (Range, the scales of Resize) keeps
    float32 behind casts. Constants beyond 65504 become that; everything else is rounded. Raises
    Unsupported for operators outside ONNX.
    """
    import onnx
    from onnx import inliner, shape_inference

    model = shape_inference.infer_shapes(inliner.inline_local_functions(onnx.load(str(source))))
    versions = {item.domain: item.version for item in model.opset_import}
    Converter(versions).graph(model.graph, {}, {})
    large = model.ByteSize() > LARGEST_BYTES
    partial = target.with_suffix(".partial")
    if large:
        onnx.save(model, str(partial), save_as_external_data=True, location=target.name + ".data")
    else:
        onnx.save(model, str(partial))
    partial.rename(target)


def value_types(graph: onnx.GraphProto) -> dict[str, int]:
    """Element type of every value of a graph, without its subgraphs, as far as it is known."""
    found = {item.name: item.data_type for item in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            found[value.name] = value.type.tensor_type.elem_type
    return found


def constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Copies of the tensors that a graph holds, by the name of their value."""
    import onnx

    found = {item.name: item for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found |= [(node.output[0], item.t) for item in node.attribute if item.name == "value"]
    copies = {}
    for name, tensor in found.items():
        copies[name] = onnx.TensorProto()
        copies[name].CopyFrom(tensor)
    return copies


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node: branches and bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


class Converter:
    """Turns float32 into float16 in place, graph by graph."""

    def __init__(self, versions: Mapping[str, int]) -> None:
        self.versions = versions
        self.added = 0

    def graph(
        self, graph: onnx.GraphProto, types: Types, tensors: Mapping[str, onnx.TensorProto]
    ) -> None:
        """One graph and all below it. ``types`` and ``tensors`` are what it sees from outside."""
        from onnx import TensorProto

        for node in graph.node:
            as_tensor(node)
        types, tensors = {**types, **value_types(graph)}, {**tensors, **constants(graph)}
        for tensor in graph.initializer:
            halve(tensor)
        if any(item.values.data_type == TensorProto.FLOAT for item in graph.sparse_initializer):
            raise Unsupported("the file has sparse float32 parameters, which have no float16 form")
        for value in (*graph.input, *graph.output, *graph.value_info):
            halve_type(value.type)
        nodes = [part for node in graph.node for part in self.node(node, types, tensors)]
        del graph.node[:]
        graph.node.extend(nodes)

    def node(
        self, node: onnx.NodeProto, types: Types, tensors: Mapping[str, onnx.TensorProto]
    ) -> list[onnx.NodeProto]:
        """The nodes that stand for ``node``: itself, and casts around it where it needs them."""
        import onnx
        from onnx import TensorProto

        for inner in subgraphs(node):
            self.graph(inner, types, tensors)
        retype(node, any(types.get(name) == TensorProto.FLOAT for name in node.output))
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self.versions or not onnx.defs.has(node.op_type, domain):
            raise Unsupported(
                f"no float16 for {domain}:{node.op_type}: xbench converts ONNX's own operators only"
            )
        schema = onnx.defs.get_schema(node.op_type, self.versions[domain], domain)
        before = [
            self.widened(node, index, tensors.get(name))
            for index, name in enumerate(node.input)
            if types.get(name) == TensorProto.FLOAT and needs_float(formal(schema.inputs, index))
        ]
        after = [
            self.narrowed(node, index)
            for index, name in enumerate(node.output)
            if types.get(name) == TensorProto.FLOAT
            and (node.op_type in GENERATORS or needs_float(formal(schema.outputs, index)))
        ]
        return [*before, node, *after]

    def widened(
        self, node: onnx.NodeProto, index: int, tensor: onnx.TensorProto | None
    ) -> onnx.NodeProto:
        """What feeds an input in float32: a constant's unrounded values, or a cast."""
        from onnx import TensorProto, helper

        name, own = self.name(), node.input[index]
        node.input[index] = name
        if tensor is not None:
            return helper.make_node("Constant", [], [name], name=name, value=tensor)
        return helper.make_node("Cast", [own], [name], name=name, to=TensorProto.FLOAT)

    def narrowed(self, node: onnx.NodeProto, index: int) -> onnx.NodeProto:
        """A cast of a float32 output to float16."""
        from onnx import TensorProto, helper

        name, own = self.name(), node.output[index]
        node.output[index] = name
        return helper.make_node("Cast", [name], [own], name=name, to=TensorProto.FLOAT16)

    def name(self) -> str:
        self.added += 1
        return f"xbench_float_{self.added}"


def formal(parameters: Any, index: int) -> Any:
    """The schema's parameter for an actual one: the last may stand for any number."""
    return parameters[min(index, len(parameters) - 1)]


def needs_float(parameter: Any) -> bool:
    """Whether ONNX lets a parameter be float32 but not float16."""
    return "tensor(float)" in parameter.types and "tensor(float16)" not in parameter.types


def halve_type(kind: onnx.TypeProto) -> None:
    """float32 becomes float16 in a type, also inside sequences and optionals."""
    from onnx import TensorProto

    if kind.HasField("tensor_type") and kind.tensor_type.elem_type == TensorProto.FLOAT:
        kind.tensor_type.elem_type = TensorProto.FLOAT16
    elif kind.HasField("sequence_type"):
        halve_type(kind.sequence_type.elem_type)
    elif kind.HasField("optional_type"):
        halve_type(kind.optional_type.elem_type)


def halve(tensor: onnx.TensorProto) -> None:
    """float32 becomes float16 in a constant; NaN and Inf stay, larger values become the largest."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.FLOAT:
        return
    value = numpy_helper.to_array(tensor)
    small = np.where(np.isfinite(value), np.clip(value, -HALF_MAX, HALF_MAX), value)
    tensor.CopyFrom(numpy_helper.from_array(small.astype(np.float16), tensor.name))


def retype(node: onnx.NodeProto, makes_float: bool) -> None:
    """float32 becomes float16 in the attributes of a node that decide the type of its outputs.

    A generator's stays float32, and is written down: left out, it would follow the input.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    by_name = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in GENERATORS and makes_float:
        if GENERATORS[node.op_type] not in by_name:
            single = helper.make_attribute(GENERATORS[node.op_type], TensorProto.FLOAT)
            node.attribute.append(single)
    elif node.op_type == "Cast" and by_name["to"].i == TensorProto.FLOAT:
        by_name["to"].i = TensorProto.FLOAT16
    elif node.op_type == "SequenceEmpty":
        if by_name.get("dtype", helper.make_attribute("dtype", 1)).i == TensorProto.FLOAT:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("dtype", TensorProto.FLOAT16))
    elif node.op_type == "ConstantOfShape" and "value" not in by_name:
        zero = numpy_helper.from_array(np.zeros(1, np.float16))
        node.attribute.append(helper.make_attribute("value", zero))
    elif node.op_type in ("Constant", "ConstantOfShape") and "value" in by_name:
        halve(by_name["value"].t)


def as_tensor(node: onnx.NodeProto) -> None:
    """Give a constant that is written as one float or a list of them its value as a tensor."""
    import numpy as np
    from onnx import helper, numpy_helper

    for attribute in node.attribute if node.op_type == "Constant" else ():
        if attribute.name in ("value_float", "value_floats"):
            number = np.asarray(helper.get_attribute_value(attribute), np.float32)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(number)))
