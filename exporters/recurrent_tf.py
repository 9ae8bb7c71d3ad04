"""The recurrent layers of ``models/recurrent_tf.py`` as ONNX operators, for tf2onnx."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from tf2onnx import utils

from xbench.errors import Unsupported

Name = str


def translate(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Replace a node that ``recurrent_tf.named`` made, by tf2onnx's interface for own operators.

    Raises Unsupported for Python code of another kind, which no ONNX operator stands for.
    """
    try:
        told = json.loads(node.get_attr_str("token"))
        make = MAKERS[told.pop("name")]
    except (ValueError, TypeError, KeyError) as error:
        raise Unsupported(f"the graph calls Python code in {name}") from error
    inputs, outputs = list(node.input), list(node.output)
    shapes = [graph.get_shape(output) for output in outputs]
    dtypes = [graph.get_dtype(output) for output in outputs]
    hidden = graph.get_shape(inputs[2])[-2]
    graph.remove_node(node.name)
    made = make(Maker(graph), *inputs, hidden=hidden, **told)
    for value, output, shape, dtype in zip(made, outputs, shapes, dtypes, strict=True):
        graph.make_node("Identity", [value], outputs=[output], shapes=[shape], dtypes=[dtype])


class Maker:
    """Makes nodes in a graph of tf2onnx; values are their names."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def node(self, op: str, *inputs: Name, outputs: int = 1, **attributes: Any) -> list[Name]:
        made = self.graph.make_node(op, list(inputs), attr=attributes, output_count=outputs)
        found: list[Name] = made.output
        return found

    def axes(self, *axes: int) -> Name:
        made = self.graph.make_const(utils.make_name("axes"), np.array(axes, np.int64))
        found: Name = made.output[0]
        return found

    def zeros_like(self, value: Name) -> Name:
        return self.node("Sub", value, value)[0]


def lstm(
    make: Maker, x: Name, kernel: Name, recurrence: Name, *bias: Name, hidden: int
) -> list[Name]:
    """LSTM, whose gates are in the order i, o, f, c; its weights have a row per gate and unit."""

    def ordered(weights: Name) -> Name:
        i, f, g, o = make.node("Split", weights, outputs=4, axis=0, num_outputs=4)
        (joined,) = make.node("Concat", i, o, f, g, axis=0)
        return make.node("Unsqueeze", joined, make.axes(0))[0]

    def turned(weights: Name) -> Name:
        return make.node("Transpose", weights, perm=[1, 0])[0]

    biases = []
    if bias:
        own = ordered(*bias)
        biases = make.node("Concat", own, make.zeros_like(own), axis=1)
    outputs, h, c = make.node(
        "LSTM",
        x,
        ordered(turned(kernel)),
        ordered(turned(recurrence)),
        *biases,
        outputs=3,
        hidden_size=hidden,
    )
    squeezed = [make.node("Squeeze", outputs, make.axes(1))[0]]
    return squeezed + [make.node("Squeeze", last, make.axes(0))[0] for last in (h, c)]


def clipped_rnn(
    make: Maker,
    x: Name,
    kernel: Name,
    recurrence: Name,
    backward_recurrence: Name,
    bias: Name,
    *,
    hidden: int,
    bound: float,
) -> list[Name]:
    """RNN both ways, summed: ONNX clips to [-bound, bound] before the ReLU."""

    def both(forward: Name, backward: Name) -> Name:
        parts = [make.node("Unsqueeze", way, make.axes(0))[0] for way in (forward, backward)]
        return make.node("Concat", *parts, axis=0)[0]

    weights = [
        make.node("Transpose", value, perm=[1, 0])[0]
        for value in (kernel, recurrence, backward_recurrence)
    ]
    (biases,) = make.node("Concat", bias, make.zeros_like(bias), axis=0)
    states, _ = make.node(
        "RNN",
        x,
        both(weights[0], weights[0]),
        both(weights[1], weights[2]),
        both(biases, biases),
        outputs=2,
        hidden_size=hidden,
        direction="bidirectional",
        activations=["Relu", "Relu"],
        clip=bound,
    )
    return make.node("ReduceSum", states, make.axes(1), keepdims=0)


MAKERS: dict[str, Callable[..., list[Name]]] = {"lstm": lstm, "clipped_rnn": clipped_rnn}
HANDLERS: dict[str, tuple[Callable[..., None], list[Any]]] = {"PyFunc": (translate, [])}
