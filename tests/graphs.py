"""Small ONNX files for tests, a line per node; parameters come from ``xbench.draws`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from xbench import draws
from xbench.spec import Uniform

Array = np.ndarray[Any, Any]

DOMAINS = {"": 18, "ai.onnx.ml": 3, "com.microsoft": 1}
IR = 9
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def node(op: str, inputs: str, outputs: str, *, domain: str = "", **attributes: Any) -> NodeProto:
    """A node; inputs and outputs are words, ``-`` for one that is left out."""
    taken, made = (
        ["" if word == "-" else word for word in text.split()] for text in (inputs, outputs)
    )
    return helper.make_node(op, taken, made, name=f"{op}_{made[0]}", domain=domain, **attributes)


def value(name: str, *shape: int | str, kind: int = FLOAT) -> ValueInfoProto:
    """An input or output of a graph."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def weights(name: str, *shape: int, gain: float = 1.0, seed: int = 0) -> Array:
    """Float32 values drawn evenly from [-gain, gain); by name, shape and seed alone."""
    return draws.draw(Uniform(-gain, gain), shape, seed=seed, name=name)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    name: str = "graph",
) -> onnx.GraphProto:
    """A graph, or the body of a loop; ``constants`` are arrays by name."""
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), held)


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    *,
    external: bool = False,
) -> Path:
    """Write a model of this one graph; with ``external`` its parameters lie in a file beside it."""
    used = {item.domain for item in nodes} | {""}
    imports = [helper.make_opsetid(domain, DOMAINS[domain]) for domain in sorted(used)]
    made = helper.make_model(
        graph(nodes, inputs, outputs, constants), opset_imports=imports, ir_version=IR
    )
    if external:
        onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data",
                  size_threshold=0)  # fmt: skip
    else:
        onnx.save(made, path)
    return path
