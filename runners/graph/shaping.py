"""ONNX's operators that move, choose, build or count elements. Every opset of the ai.onnx domain.

No value is computed but in scatter's reductions, Range, Col2Im and the overlaps of boxes. Tensors
are on the CPU; some results are views of their inputs. Indices below zero count from the end; one
that is out of range raises IndexError, as no engine gives it a meaning.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xbench.runners.graph.elementwise import (
    Inputs,
    cast,
    given,
    integers,
    like,
    numbers,
    ordered,
    setting,
    signed,
    tensor,
    through_numpy,
    unordered,
)
from xbench.runners.graph.node import Node, NotInDouble, Value, operator


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise IndexError(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def _wrapped(indices: Tensor, size: Tensor | int) -> Tensor:
    """Indices as int64, those below zero counted from the end; raises IndexError outside."""
    indices = signed(indices).to(torch.int64)
    indices = torch.where(indices < 0, indices + size, indices)
    if bool(((indices < 0) | (indices >= size)).any()):
        raise IndexError("an index lies outside of its axis")
    return indices


# Shapes.


@operator("Reshape")
def _reshape(node: Node, inputs: Inputs) -> Value:
    """0 copies the size (unless ``allowzero``), -1 is what is left."""
    x = tensor(node, inputs, 0)
    shape = integers(inputs, 1, node.get("shape")) or []
    if not setting(node, "allowzero"):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    if -1 in shape and math.prod(shape) == 0:  # torch finds the rest ambiguous
        rest = [n for n in shape if n != -1]
        if math.prod(rest) == 0:
            shape = [0 if n == -1 else n for n in shape]
    return x.reshape(shape)


@operator("Flatten")
def _flatten(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    axis = setting(node, "axis")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Squeeze")
def _squeeze(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    axes = integers(inputs, 1, node.get("axes"))
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    gone = {_axis(a, x.ndim) for a in axes}
    if any(x.shape[a] != 1 for a in gone):
        raise ValueError(f"Squeeze: axes {sorted(gone)} of {tuple(x.shape)} are not all 1")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone])


@operator("Unsqueeze")
def _unsqueeze(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    axes = integers(inputs, 1, node.get("axes")) or []
    rank = x.ndim + len(axes)
    new = {_axis(a, rank) for a in axes}
    sizes = iter(x.shape)
    return x.reshape([1 if i in new else next(sizes) for i in range(rank)])


@operator("Transpose")
def _transpose(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    order = node.get("perm")
    return x.permute(*(reversed(range(x.ndim)) if order is None else order))


@operator("Shape")
def _shape(node: Node, inputs: Inputs) -> Value:
    shape = list(tensor(node, inputs, 0).shape)
    # A slice clamps as ONNX does.
    return torch.tensor(shape[setting(node, "start") : node.get("end")], dtype=torch.int64)


@operator("Size")
def _size(node: Node, inputs: Inputs) -> Value:
    return torch.tensor(tensor(node, inputs, 0).numel(), dtype=torch.int64)


@operator("Expand")
def _expand(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    return x.expand(np.broadcast_shapes(x.shape, tuple(numbers(tensor(node, inputs, 1)))))


@operator("Tile")
def _tile(node: Node, inputs: Inputs) -> Value:
    """Repeats per axis; in opset 1 a number of tiles and one axis."""
    x, repeats = tensor(node, inputs, 0), numbers(tensor(node, inputs, 1))
    if node.version < 6:
        axis = _axis(int(tensor(node, inputs, 2)), x.ndim)
        repeats = [repeats[0] if i == axis else 1 for i in range(x.ndim)]
    return x.repeat(repeats) if x.ndim else x


# Cutting and joining.


@operator("Concat")
def _concat(node: Node, inputs: Inputs) -> Value:
    values = [tensor(node, inputs, i) for i in range(len(inputs))]
    # numpy, since torch.cat lets an empty tensor of rank 1 pass with any other.
    axis = setting(node, "axis")
    axis = 1 if axis is None else axis  # what the text of opset 1 says
    return through_numpy(lambda *arrays: np.concatenate(arrays, axis=axis), *values)


@operator("Split")
def _split(node: Node, inputs: Inputs) -> tuple[Value, ...]:
    """By sizes, or into as many equal parts as there are outputs (the last may be smaller)."""
    x = tensor(node, inputs, 0)
    axis = _axis(setting(node, "axis") or 0, x.ndim)
    size = x.shape[axis]
    sizes = integers(inputs, 1, node.get("split"))
    if sizes is None:
        parts = node.get("num_outputs") or node.outputs
        step = -(-size // parts)
        sizes = [max(0, min(step, size - i * step)) for i in range(parts)]
    if sum(sizes) != size:
        raise ValueError(f"Split: {sizes} do not sum to {size}")
    return tuple(torch.split(x, sizes, dim=axis))


def _cut(x: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    """One axis of Slice: clamped as its text says, which differs from Python's below zero."""
    size = x.shape[axis]
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
        return x[(slice(None),) * axis + (slice(start, max(start, end), step),)]
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return x.index_select(axis, torch.tensor(range(start, end, step), dtype=torch.int64))


@operator("Slice")
def _slice(node: Node, inputs: Inputs) -> Value:
    """Starts, ends and axes are attributes before opset 10."""
    x = tensor(node, inputs, 0)
    starts = integers(inputs, 1, node.get("starts")) or []
    ends = integers(inputs, 2, node.get("ends")) or []
    axes = integers(inputs, 3, node.get("axes", range(len(starts))))
    steps = integers(inputs, 4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes or [], steps or [], strict=True):
        x = _cut(x, _axis(axis, x.ndim), start, end, step)
    return x


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _sources(size: int, before: int, after: int, mode: str) -> list[int]:
    """Which element each place of a padded axis holds; -1 for the constant."""
    places = range(-before, size + after)
    if mode == "constant":
        return [i if 0 <= i < size else -1 for i in places]
    if size == 0 and len(places):
        raise ValueError(f"Pad: mode {mode} of an empty axis")
    if mode == "edge":
        return [min(max(i, 0), size - 1) for i in places]
    if mode == "wrap":
        return [i % size for i in places]
    period = max(1, 2 * (size - 1))
    return [min(i % period, period - i % period) if size > 1 else 0 for i in places]


def pad(x: Tensor, pads: list[int], axes: list[int], mode: str, value: Tensor) -> Tensor:
    """``pads``: all the begins, then all the ends; below zero cuts. Mode as numpy.pad has it.

    A cut happens before a reflection, edge or wrap looks for its source.
    """
    for number, axis in enumerate(axes):
        before, after = pads[number], pads[number + len(axes)]
        low, high = max(0, -before), max(0, -after)
        x = x.narrow(axis, low, max(0, x.shape[axis] - low - high))
        before, after = max(0, before), max(0, after)
        if not before and not after:
            continue
        if mode == "constant":
            ends = [[*x.shape], [*x.shape]]
            ends[0][axis], ends[1][axis] = before, after
            filled = [value.reshape(()).expand(shape) for shape in ends]
            x = torch.cat([filled[0], x, filled[1]], dim=axis)
        else:
            places = _sources(x.shape[axis], before, after, mode)
            x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


@operator("Pad")
def _pad(node: Node, inputs: Inputs) -> Value:
    """Pads and value are attributes before opset 11, ``paddings`` in opset 1; axes since 18."""
    x = tensor(node, inputs, 0)
    mode = setting(node, "mode")
    pads = integers(inputs, 1, node.get("pads", node.get("paddings"))) or []
    axes = integers(inputs, 3, range(x.ndim)) or []
    value = given(inputs, 2)
    if value is None:
        value = torch.tensor(setting(node, "value") or 0).to(x.dtype)
    if mode not in _PAD_MODES:
        raise NotInDouble(f"Pad: mode {mode}")
    return pad(x, pads, [_axis(a, x.ndim) for a in axes], mode, value)


@operator("CenterCropPad")
def _center_crop_pad(node: Node, inputs: Inputs) -> Value:
    """An odd difference: one less at the start than at the end."""
    x, sizes = tensor(node, inputs, 0), numbers(tensor(node, inputs, 1))
    axes = [_axis(a, x.ndim) for a in node.get("axes") or range(x.ndim)]
    starts, ends = [], []
    for axis, size in zip(axes, sizes, strict=True):
        more = size - x.shape[axis]
        start = more // 2 if more > 0 else -(-more // 2)
        starts.append(start)
        ends.append(more - start)
    zero = torch.zeros((), dtype=x.dtype)
    return pad(x, starts + ends, axes, "constant", zero)


@operator("DepthToSpace")
def _depth_to_space(node: Node, inputs: Inputs) -> Value:
    x, block = tensor(node, inputs, 0), setting(node, "blocksize")
    n, c, h, w = x.shape
    depth = c // block**2
    if setting(node, "mode") == "CRD":
        y = x.reshape(n, depth, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        y = x.reshape(n, block, block, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, depth, h * block, w * block)


@operator("SpaceToDepth")
def _space_to_depth(node: Node, inputs: Inputs) -> Value:
    x, block = tensor(node, inputs, 0), setting(node, "blocksize")
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // block, block, w // block, block)
    # The mode is new in opset 28.
    order = (0, 1, 3, 5, 2, 4) if setting(node, "mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    return y.permute(*order).reshape(n, c * block**2, h // block, w // block)


@operator("Col2Im")
def _col2im(node: Node, inputs: Inputs) -> Value:
    """[N, C * block, L] -> [N, C, *image]: overlapping blocks are added, in any rank."""
    x = tensor(node, inputs, 0)
    image, block = numbers(tensor(node, inputs, 1)), numbers(tensor(node, inputs, 2))
    rank = len(image)
    strides, dilations = (node.get(k) or [1] * rank for k in ("strides", "dilations"))
    pads = node.get("pads") or [0] * 2 * rank
    padded = [image[i] + pads[i] + pads[i + rank] for i in range(rank)]
    counts = [
        (padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    columns = x.reshape(x.shape[0], -1, *block, *counts)
    result = torch.zeros((*columns.shape[:2], *padded), dtype=x.dtype)
    all_of = (slice(None), slice(None))
    for place in itertools.product(*map(range, block)):
        starts = [p * d for p, d in zip(place, dilations, strict=True)]
        window = [
            slice(s, s + (n - 1) * step + 1, step)
            for s, n, step in zip(starts, counts, strides, strict=True)
        ]
        result[(*all_of, *window)] += columns[all_of + place]
    return result[all_of + tuple(slice(pads[i], pads[i] + image[i]) for i in range(rank))]


# Gathering and scattering.


@operator("Gather")
def _gather(node: Node, inputs: Inputs) -> Value:
    x, indices = tensor(node, inputs, 0), tensor(node, inputs, 1)
    axis = _axis(setting(node, "axis"), x.ndim)
    flat = _wrapped(indices, x.shape[axis]).reshape(-1)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return x.index_select(axis, flat).reshape(shape)


@operator("GatherElements")
def _gather_elements(node: Node, inputs: Inputs) -> Value:
    x, indices = tensor(node, inputs, 0), tensor(node, inputs, 1)
    axis = _axis(setting(node, "axis"), x.ndim)
    return like(signed(x).gather(axis, _wrapped(indices, x.shape[axis])), x.dtype)


def _tuples(indices: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """The last axis of ``indices`` as one tensor per axis that it indexes."""
    sizes = torch.tensor(shape[: indices.shape[-1]], dtype=torch.int64)
    return tuple(_wrapped(indices, sizes).unbind(-1))


@operator("GatherND")
def _gather_nd(node: Node, inputs: Inputs) -> Value:
    x, indices = tensor(node, inputs, 0), tensor(node, inputs, 1)
    batch = setting(node, "batch_dims") or 0
    places = _tuples(indices, x.shape[batch:])
    rows = [
        torch.arange(n).reshape((-1,) + (1,) * (indices.ndim - 2 - i))
        for i, n in enumerate(x.shape[:batch])
    ]
    return like(signed(x)[(*rows, *places)], x.dtype)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scattered(node: Node, x: Tensor, places: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    """A copy of ``x`` with ``updates`` put, or reduced in order. Of duplicates the last stays."""
    result = x.clone(memory_format=torch.contiguous_format)
    array, indices = result.numpy(), tuple(p.numpy() for p in places)
    reduction = setting(node, "reduction") or "none"
    if reduction == "none":
        array[indices] = updates.numpy()
    elif reduction in _REDUCTIONS:
        with np.errstate(all="ignore"):
            _REDUCTIONS[reduction].at(array, indices, updates.numpy())
    else:
        raise NotInDouble(f"{node.op}: reduction {reduction}")
    return result


@operator("ScatterElements", "Scatter")
def _scatter_elements(node: Node, inputs: Inputs) -> Value:
    x, indices, updates = (tensor(node, inputs, i) for i in range(3))
    axis = _axis(setting(node, "axis"), x.ndim)
    grid = [torch.arange(n) for n in indices.shape]
    places = list(torch.meshgrid(*grid, indexing="ij"))
    places[axis] = _wrapped(indices, x.shape[axis])
    return _scattered(node, x, tuple(places), updates)


@operator("ScatterND")
def _scatter_nd(node: Node, inputs: Inputs) -> Value:
    x, indices, updates = (tensor(node, inputs, i) for i in range(3))
    return _scattered(node, x, _tuples(indices, x.shape), updates)


@operator("TensorScatter")
def _tensor_scatter(node: Node, inputs: Inputs) -> Value:
    cache, update = tensor(node, inputs, 0), tensor(node, inputs, 1)
    starts, axis = given(inputs, 2), _axis(setting(node, "axis"), cache.ndim)
    size, count = cache.shape[axis], update.shape[axis]
    result = cache.clone(memory_format=torch.contiguous_format)
    for row in range(cache.shape[0]):
        start = 0 if starts is None else int(starts[row])
        places = [start + i for i in range(count)]
        if setting(node, "mode") == "circular":
            places = [p % size for p in places]
        elif not all(0 <= p < size for p in places):
            raise IndexError(f"TensorScatter: writes {start} to {start + count} of {size}")
        view = result[row].movedim(axis - 1, 0).numpy()
        view[np.array(places, np.int64)] = update[row].movedim(axis - 1, 0).numpy()
    return result


@operator("Compress")
def _compress(node: Node, inputs: Inputs) -> Value:
    x, condition = tensor(node, inputs, 0), tensor(node, inputs, 1)
    axis = node.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(_axis(axis, x.ndim), condition.nonzero().reshape(-1))


@operator("ReverseSequence")
def _reverse_sequence(node: Node, inputs: Inputs) -> Value:
    x, lengths = tensor(node, inputs, 0), numbers(tensor(node, inputs, 1))
    time, batch = setting(node, "time_axis"), setting(node, "batch_axis")
    moved = x.movedim((batch, time), (0, 1))
    rows = []
    for row, length in zip(moved, lengths, strict=True):
        rows.append(torch.cat([row[:length].flip(0), row[length:]]))
    return torch.stack(rows).movedim((0, 1), (batch, time)) if rows else x


# Building.


@operator("Constant")
def _constant(node: Node, inputs: Inputs) -> Value:
    """One of the ``value`` attributes; tensors, sparse ones too, come decoded."""
    for name in ("value", "sparse_value"):
        value = node.get(name)
        if isinstance(value, Tensor):
            return value.to_dense() if value.is_sparse else value
    for name in ("value_float", "value_floats"):
        if name in node.attributes:
            return torch.tensor(node.attributes[name], dtype=node.dtype)
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            return torch.tensor(node.attributes[name], dtype=torch.int64)
    raise NotInDouble(f"Constant: {', '.join(node.attributes) or 'no value'}")


@operator("ConstantOfShape")
def _constant_of_shape(node: Node, inputs: Inputs) -> Value:
    shape = numbers(tensor(node, inputs, 0))
    value = node.get("value")
    if value is None:
        return torch.zeros(shape, dtype=node.dtype)
    if not isinstance(value, Tensor):
        raise NotInDouble("ConstantOfShape: a value that is no number")
    return value.reshape(()).expand(shape)


@operator("Range")
def _range(node: Node, inputs: Inputs) -> Value:
    """start + i * delta, for ceil((limit - start) / delta) values: integers exactly."""
    start, limit, delta = (tensor(node, inputs, i).reshape(()) for i in range(3))
    if start.is_floating_point():
        count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
        return start + torch.arange(count, dtype=start.dtype) * delta
    values = range(int(start), int(limit), int(delta))
    return torch.tensor(values, dtype=torch.int64).to(start.dtype)


@operator("EyeLike")
def _eye_like(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    rows, columns = x.shape
    eye = torch.from_numpy(np.eye(rows, columns, k=setting(node, "k")))
    to = node.get("dtype")
    return eye.to(x.dtype) if to is None else cast(eye, to, node.dtype)


@operator("OneHot")
def _one_hot(node: Node, inputs: Inputs) -> Value:
    """Indices below zero count from the depth; those outside give no ``on`` value."""
    indices, values = signed(tensor(node, inputs, 0)), tensor(node, inputs, 2)
    depth = int(tensor(node, inputs, 1))
    axis = _axis(setting(node, "axis"), indices.ndim + 1)
    indices = indices.to(torch.int64)
    indices = torch.where(indices < 0, indices + depth, indices)
    shape = (-1,) + (1,) * (indices.ndim - axis)
    chosen = indices.unsqueeze(axis) == torch.arange(depth).reshape(shape)
    return torch.where(chosen, values[1], values[0])


@operator("Trilu")
def _trilu(node: Node, inputs: Inputs) -> Value:
    x, shift = tensor(node, inputs, 0), given(inputs, 1)
    part = torch.triu if setting(node, "upper") else torch.tril
    k = 0 if shift is None else int(shift)
    # A diagonal beyond the matrix is the same as one at its border.
    bound = x.shape[-1] + x.shape[-2]
    return like(part(signed(x), min(max(k, -bound), bound)), x.dtype)


# Choosing.


@operator("NonZero")
def _non_zero(node: Node, inputs: Inputs) -> Value:
    x = signed(tensor(node, inputs, 0))
    return (x.reshape(1) if x.ndim == 0 else x).nonzero().t()


@operator("TopK")
def _top_k(node: Node, inputs: Inputs) -> tuple[Value, ...]:
    """Of equal values the lower index comes first; sorted even where the order is left open."""
    x, count = tensor(node, inputs, 0), given(inputs, 1)
    axis = _axis(setting(node, "axis"), x.ndim)
    k = setting(node, "k") if count is None else int(count)
    if k > x.shape[axis]:
        raise ValueError(f"TopK: {k} of {x.shape[axis]} values")
    largest = setting(node, "largest")
    values, indices = torch.sort(
        ordered(x), dim=axis, descending=largest is None or bool(largest), stable=True
    )
    return unordered(values.narrow(axis, 0, k), x.dtype), indices.narrow(axis, 0, k)


@operator("ArgMax", "ArgMin")
def _arg(node: Node, inputs: Inputs) -> Value:
    """The first of equal values, or the last with ``select_last_index``. A NaN wins."""
    x = tensor(node, inputs, 0)
    axis = _axis(setting(node, "axis"), x.ndim)
    find = np.argmax if node.op == "ArgMax" else np.argmin
    last = bool(setting(node, "select_last_index"))
    if x.ndim == 0:
        return torch.zeros((), dtype=torch.int64)
    if last:
        x = like(signed(x).flip(axis), x.dtype)
    result = through_numpy(lambda a: find(a, axis=axis), x).to(torch.int64)
    if last:
        result = x.shape[axis] - 1 - result
    return result.unsqueeze(axis) if setting(node, "keepdims") else result


@operator("Unique")
def _unique(node: Node, inputs: Inputs) -> tuple[Value, ...]:
    """Values (or slices of ``axis``), sorted or by first occurrence; indices, inverse, counts."""
    x, axis = tensor(node, inputs, 0), node.get("axis")
    found = np.unique(
        x.numpy(), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    values, first, inverse, counts = (torch.from_numpy(np.asarray(part)) for part in found)
    inverse = inverse.reshape(-1)
    if not setting(node, "sorted"):
        order = first.argsort()
        values = values.index_select(0 if axis is None else _axis(axis, x.ndim), order)
        inverse = order.argsort()[inverse]
        first, counts = first[order], counts[order]
    return values, first, inverse, counts


def _corners(boxes: Tensor, *, centred: bool) -> Tensor:
    """[N, 4] boxes as two opposite corners: low y, low x, high y, high x."""
    if centred:
        x, y, width, height = boxes.unbind(-1)
        corners = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
        boxes = torch.stack(corners, dim=-1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=1)


def _overlaps(box: Tensor, boxes: Tensor) -> Tensor:
    """Intersection over union of one box with many; 0 where either has no area."""
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    union = (box[2:] - box[:2]).prod() + areas - shared
    return torch.where(shared > 0, shared / union, torch.zeros_like(shared))


@operator("NonMaxSuppression")
def _non_max_suppression(node: Node, inputs: Inputs) -> Value:
    """[selected, 3] of batch, class and box: by falling score, the lower index where equal."""
    boxes, scores = tensor(node, inputs, 0), tensor(node, inputs, 1)
    most, iou, least = (given(inputs, i) for i in (2, 3, 4))
    limit = 0 if most is None else int(most)
    threshold = 0.0 if iou is None else float(iou)
    selected: list[list[int]] = []
    for batch, group in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        corners = _corners(boxes[batch], centred=bool(setting(node, "center_point_box")))
        score = scores[batch, group]
        order = torch.sort(score, descending=True, stable=True).indices
        if least is not None:
            order = order[score[order] > float(least)]
        kept = 0
        while order.numel() and kept < limit:
            best, order = order[0], order[1:]
            selected.append([batch, group, int(best)])
            kept += 1
            order = order[_overlaps(corners[best], corners[order]) <= threshold]
    return torch.tensor(selected, dtype=torch.int64).reshape(-1, 3)
