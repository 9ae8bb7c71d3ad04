"""TensorFlow to ONNX, through tf2onnx ``from_function``.

The exported function takes the parameters as arguments in canonical layout and transposes them
itself: tf2onnx's own Transposes of convolution kernels then cancel, and the skeleton's inputs are
those of the torch skeleton. (Captured variables would be folded, renamed and transposed.)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx
import tensorflow as tf
import tf2onnx

from xbench import bench, registry
from xbench.exporters import recurrent_tf
from xbench.exporters.skeleton import finish
from xbench.models import layers_tf
from xbench.spec import ModelSpec, TensorSpec

EXPORTERS = {"tf": {"engine": "tf", "packages": ("tensorflow", "tf2onnx", "onnx")}}


def export(spec: ModelSpec, config: Any, path: Path, *, opset: int) -> dict[str, str]:
    """Write the skeleton of a model's inference to ``path``; returns facts about it."""
    inputs, parameters = spec.inputs(config), spec.exported(config)
    build = registry.model_part(spec.name, "tf").build

    def forward(*arguments: Any) -> Any:
        values = arguments[len(inputs) :]
        bound = {
            item.name: tf.transpose(value, item.to_tf_order) if item.axes else value
            for item, value in zip(parameters, values, strict=True)
        }
        return build(config, bound)(*arguments[: len(inputs)])

    signature = [signature_of(item, item.to_tf_order) for item in inputs]
    signature += [signature_of(item, tuple(range(len(item.shape)))) for item in parameters]
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    graph = tf.function(forward, input_signature=signature, autograph=False)
    with bench.quiet(), layers_tf.export_mode():
        model, _ = tf2onnx.convert.from_function(
            graph,
            input_signature=signature,
            opset=opset,
            custom_op_handlers=recurrent_tf.HANDLERS,
        )
    names = {safe(item.name): item.name for item in (*inputs, *parameters)}
    outputs = [value.name for value in model.graph.output]
    wanted = [item.name for item in spec.outputs(config)]
    names |= dict(zip(outputs, wanted, strict=True))
    rename(model.graph, names)
    free_loops(model.graph)
    return finish(model, spec, config, path, tf_layout=True)


def safe(name: str) -> str:
    """A name that TensorFlow accepts for an argument."""
    return name.replace(".", "_")


def signature_of(item: TensorSpec, order: tuple[int, ...]) -> Any:
    shape = [item.shape[axis] for axis in order]
    sizes = [None if isinstance(size, str) else size for size in shape]
    return tf.TensorSpec(sizes, getattr(tf, item.dtype), name=safe(item.name))


def free_loops(graph: onnx.GraphProto) -> None:
    """Let the bodies of loops read what no step changes from outside, in place.

    tf2onnx hands everything from step to step, parameters too: ONNX Runtime then copies them at
    each, and cannot pack them for its products.
    """
    used = {name for node in graph.node for name in node.input}
    used |= {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = (attribute.g for attribute in node.attribute if attribute.name == "body")
        # A loop has a count and a condition before what it carries; its body gives a condition.
        fixed = [
            place
            for place, output in enumerate(node.output[: len(node.input) - 2])
            if output not in used and body.input[place + 2].name == body.output[place + 1].name
        ]
        rename(body, {body.input[place + 2].name: node.input[place + 2] for place in fixed})
        for place in reversed(fixed):
            del node.input[place + 2], node.output[place]
            del body.input[place + 2], body.output[place + 1]


def rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename values in ``graph`` and its subgraphs, in place."""
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                if name in names:
                    values[index] = names[name]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                rename(attribute.g, names)
