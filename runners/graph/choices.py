"""Where a graph chooses an index, made visible: what it chose, and from which values.

A choice is a node whose output is the place of a largest or smallest value. A side that chose
another index than the reference computes something else from there on, and may still be right:
where the two values are closer than their own error. Needs onnx alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

OPERATORS = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
"""Operators that choose, and which of their outputs is the index."""
PREFIX = "xbench_choice"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One node that chooses.

    ``index`` is the tensor of its indices in the graph, ``node`` what messages call it, ``op`` its
    operator. ``looped``: it is in the body of a loop, and what is seen of it has the iterations for
    a first axis.
    """

    index: str
    node: str
    op: str
    looped: bool = False


def expose(model: ModelProto) -> list[Choice]:
    """Add outputs ``xbench_choice_K_index`` and ``_values`` to ``model`` for its K-th choice.

    In the main graph and in the bodies of its Loop and Scan nodes; what is deeper stays unseen.
    """
    found: list[Choice] = []
    added: list[NodeProto] = []
    for node in list(model.graph.node):
        if is_choice(node):
            added += seen(node, len(found), model.graph)
            found.append(choice(node, looped=False))
        elif node.op_type in ("Loop", "Scan") and node.domain in ("", "ai.onnx"):
            body = next(a.g for a in node.attribute if a.name == "body")
            for inner in list(body.node):
                if is_choice(inner):
                    body.node.extend(seen(inner, len(found), body))
                    # A further output of a body is collected over the iterations.
                    for name in names(len(found)):
                        node.output.append(name)
                        model.graph.output.append(ValueInfoProto(name=name))
                    found.append(choice(inner, looped=True))
            pad_scan(node, body)
    model.graph.node.extend(added)
    return found


def listed(model: ModelProto) -> list[Choice]:
    """The choices of ``model`` in the order of ``expose``, which leaves them as they are."""
    found = []
    for node in model.graph.node:
        if is_choice(node):
            found.append(choice(node, looped=False))
        elif node.op_type in ("Loop", "Scan") and node.domain in ("", "ai.onnx"):
            body = next(a.g for a in node.attribute if a.name == "body")
            found += [choice(inner, looped=True) for inner in body.node if is_choice(inner)]
    return found


def is_choice(node: NodeProto) -> bool:
    index = OPERATORS.get(node.op_type)
    own = node.domain in ("", "ai.onnx")
    return own and index is not None and len(node.output) > index and bool(node.output[index])


def choice(node: NodeProto, *, looped: bool) -> Choice:
    index = node.output[OPERATORS[node.op_type]]
    called = f"{node.op_type} {node.name or index!r}"
    return Choice(index=index, node=called, op=node.op_type, looped=looped)


def names(number: int) -> tuple[str, str]:
    """What the K-th choice is seen under: its indices, and the values they are of."""
    return f"{PREFIX}_{number}_index", f"{PREFIX}_{number}_values"


def seen(node: NodeProto, number: int, graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes that copy index and values of a choice out, as outputs of its graph."""
    sources = (node.output[OPERATORS[node.op_type]], node.input[0])
    for source, target in zip(sources, names(number), strict=True):
        graph.output.append(ValueInfoProto(name=target))
        yield helper.make_node("Identity", [source], [target], name=target)


def pad_scan(node: NodeProto, body: GraphProto) -> None:
    """Directions and axes of a Scan that lists them, for the outputs that were added."""
    states = len(body.input) - next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    wanted = len(body.output) - states
    for attribute in node.attribute:
        if attribute.name in ("scan_output_axes", "scan_output_directions"):
            attribute.ints.extend([0] * (wanted - len(attribute.ints)))
