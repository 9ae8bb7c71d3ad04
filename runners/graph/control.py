"""Control flow, sequences and optionals of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import Tensor

from xbench.runners.graph import decode
from xbench.runners.graph.node import Node, NotInDouble, Value, operator


def tensor_at(inputs: Sequence[Value], index: int) -> Tensor | None:
    """An input that is a tensor; None where it is left out."""
    value = inputs[index] if index < len(inputs) else None
    return value if isinstance(value, Tensor) else None


def run(node: Node, name: str, given: Sequence[Value]) -> list[Value]:
    """The outputs of the subgraph in the attribute ``name`` on ``given`` inputs, by position."""
    assert node.run_graph is not None
    graph = node.get(name)
    return node.run_graph(graph, dict(zip((item.name for item in graph.input), given, strict=True)))


def declared_empty(node: Node, graph: Any, index: int) -> Tensor:
    """A scan output of no iteration: no rows of what the body declares, unknown sizes 0."""
    kind = graph.output[index].type.tensor_type
    shape = [axis.dim_value for axis in kind.shape.dim]
    return torch.zeros((0, *shape), dtype=held_in(int(kind.elem_type), node.dtype))


def held_in(element: int, dtype: torch.dtype) -> torch.dtype:
    """The dtype of values of an element type."""
    if element in decode.FLOATS or not element:
        return dtype
    if element in decode.NARROW:
        name = TensorProto.DataType.Name(element)
        return torch.uint8 if name.startswith("U") else torch.int8
    empty = torch.from_numpy(np.zeros(0, helper.tensor_dtype_to_np_dtype(element)))
    return empty.dtype


@operator("If")
def branch(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    condition = tensor_at(inputs, 0)
    assert condition is not None
    return tuple(run(node, "then_branch" if bool(condition) else "else_branch", ()))


@operator("Loop")
def loop(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """As long as the condition holds, up to the trip count; neither given means forever."""
    trips, condition = tensor_at(inputs, 0), tensor_at(inputs, 1)
    limit = None if trips is None else int(trips)
    going = condition is None or bool(condition)
    carried = list(inputs[2:])
    graph = node.get("body")
    scanned: list[list[Value]] = [[] for _ in range(len(graph.output) - 1 - len(carried))]
    turn = 0
    while going and (limit is None or turn < limit):
        found = run(node, "body", (torch.tensor(turn), torch.tensor(going), *carried))
        first = found[0]
        # The specification ignores the body's condition where the loop starts without one; the
        # engines and onnx.reference end at a false one in either case.
        going = bool(first) if isinstance(first, Tensor) else True
        carried = found[1 : 1 + len(carried)]
        for rows, value in zip(scanned, found[1 + len(carried) :], strict=True):
            rows.append(value)
        turn += 1
    stacked = [
        torch.stack([item for item in rows if isinstance(item, Tensor)])
        if rows
        else declared_empty(node, graph, 1 + len(carried) + index)
        for index, rows in enumerate(scanned)
    ]
    return (*carried, *stacked)


@operator("Scan")
def scan(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """State and slices in, state and slices out; up to opset 8 once per row of a batch."""
    if node.version < 9:
        return scan_batch(node, inputs)
    count = int(node.get("num_scan_inputs"))
    states = list(inputs[: len(inputs) - count])
    sources = [item for item in inputs[len(inputs) - count :] if isinstance(item, Tensor)]
    outputs = len(node.get("body").output) - len(states)
    return tuple(
        scanned(
            node,
            states,
            sources,
            in_axes=node.get("scan_input_axes", [0] * count),
            in_back=node.get("scan_input_directions", [0] * count),
            out_axes=node.get("scan_output_axes", [0] * outputs),
            out_back=node.get("scan_output_directions", [0] * outputs),
        )
    )


def scanned(
    node: Node,
    states: list[Value],
    sources: list[Tensor],
    *,
    in_axes: Sequence[int],
    in_back: Sequence[int],
    out_axes: Sequence[int],
    out_back: Sequence[int],
    steps: int | None = None,
) -> list[Value]:
    """The final states and the stacked outputs of a scan over ``sources``."""
    graph = node.get("body")
    if steps is None:
        steps = sources[0].shape[in_axes[0]]
    kept: list[list[Tensor]] = [[] for _ in range(len(graph.output) - len(states))]
    for turn in range(steps):
        rows = [
            source.select(axis, source.shape[axis] - 1 - turn if back else turn)
            for source, axis, back in zip(sources, in_axes, in_back, strict=True)
        ]
        found = run(node, "body", (*states, *rows))
        states = found[: len(states)]
        for items, value in zip(kept, found[len(states) :], strict=True):
            assert isinstance(value, Tensor)
            items.append(value)
    stacked: list[Value] = []
    for index, (items, axis, back) in enumerate(zip(kept, out_axes, out_back, strict=True)):
        ordered = items[::-1] if back else items
        stacked.append(
            torch.stack(ordered, axis)
            if ordered
            else declared_empty(node, graph, len(states) + index)
        )
    return [*states, *stacked]


def scan_batch(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """Scan as opset 8 has it: batch first, time second, lengths by row; what is beyond is 0."""
    lengths = tensor_at(inputs, 0)
    count = int(node.get("num_scan_inputs"))
    given = [item for item in inputs[1:] if isinstance(item, Tensor)]
    states, sources = given[: len(given) - count], given[len(given) - count :]
    back = node.get("directions", [0] * count)
    outputs = len(node.get("body").output) - len(states)
    longest = sources[0].shape[1]
    rows = []
    for row in range(sources[0].shape[0]):
        steps = longest if lengths is None else int(lengths[row])
        found = scanned(
            node,
            [item[row] for item in states],
            [item[row, :steps] for item in sources],
            in_axes=[0] * count,
            in_back=back,
            out_axes=[0] * outputs,
            out_back=[0] * outputs,
            steps=steps,
        )
        rows.append([item for item in found if isinstance(item, Tensor)])
    joined: list[Value] = []
    for index, parts in enumerate(zip(*rows, strict=True)):
        if index < len(states):
            joined.append(torch.stack(parts))
            continue
        whole = parts[0].new_zeros((len(parts), longest, *parts[0].shape[1:]))
        for row, part in enumerate(parts):
            whole[row, : part.shape[0]] = part
        joined.append(whole)
    return tuple(joined)


@operator("SequenceMap")
def sequence_map(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """The body once per item: of every input that is a sequence its item, others whole."""
    first = inputs[0]
    assert isinstance(first, list)
    found = [
        run(node, "body", [item[turn] if isinstance(item, list) else item for item in inputs])
        for turn in range(len(first))
    ]
    count = len(node.get("body").output)
    return tuple([row[index] for row in found] for index in range(count))


@operator("SequenceConstruct")
def sequence_construct(node: Node, inputs: Sequence[Value]) -> Value:
    return list(inputs)


@operator("SequenceEmpty")
def sequence_empty(node: Node, inputs: Sequence[Value]) -> Value:
    return []


def sequence(inputs: Sequence[Value]) -> list[Any]:
    """The first input, which is a sequence."""
    first = inputs[0]
    assert isinstance(first, list)
    return first


@operator("SequenceInsert")
def sequence_insert(node: Node, inputs: Sequence[Value]) -> Value:
    items, place = list(sequence(inputs)), tensor_at(inputs, 2)
    # A negative place counts from the end before the item is in.
    items.insert(len(items) if place is None else int(place), inputs[1])
    return items


@operator("SequenceErase")
def sequence_erase(node: Node, inputs: Sequence[Value]) -> Value:
    items, place = list(sequence(inputs)), tensor_at(inputs, 1)
    del items[-1 if place is None else int(place)]
    return items


@operator("SequenceAt")
def sequence_at(node: Node, inputs: Sequence[Value]) -> Value:
    place = tensor_at(inputs, 1)
    assert place is not None
    found: Value = sequence(inputs)[int(place)]
    return found


@operator("SequenceLength")
def sequence_length(node: Node, inputs: Sequence[Value]) -> Value:
    return torch.tensor(len(sequence(inputs)))


@operator("SplitToSequence")
def split_to_sequence(node: Node, inputs: Sequence[Value]) -> Value:
    """Parts of the sizes given, of one size, or of size 1 (whose axis ``keepdims=0`` drops)."""
    data, split = tensor_at(inputs, 0), tensor_at(inputs, 1)
    assert data is not None
    axis = int(node.get("axis", 0))
    if split is None:
        parts = torch.split(data, 1, axis)
        return [part if node.get("keepdims", 1) else part.squeeze(axis) for part in parts]
    sizes = int(split) if split.ndim == 0 else [int(size) for size in split]
    return list(torch.split(data, sizes, axis))


@operator("ConcatFromSequence")
def concat_from_sequence(node: Node, inputs: Sequence[Value]) -> Value:
    items, axis = sequence(inputs), int(node.get("axis"))
    return torch.stack(items, axis) if node.get("new_axis", 0) else torch.cat(items, axis)


@operator("Optional")
def optional(node: Node, inputs: Sequence[Value]) -> Value:
    return inputs[0] if inputs else None


@operator("OptionalHasElement")
def optional_has_element(node: Node, inputs: Sequence[Value]) -> Value:
    return torch.tensor(bool(inputs) and inputs[0] is not None)


@operator("OptionalGetElement")
def optional_get_element(node: Node, inputs: Sequence[Value]) -> Value:
    if inputs[0] is None:
        raise NotInDouble("an optional that is empty")
    return inputs[0]
