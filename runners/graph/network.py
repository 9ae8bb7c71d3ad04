"""Operators of networks: convolutions, pooling, normalisation, resizing and sampling.

Images are (batch, channels, then one to any number of spatial axes). Everything is written from
the operators' definitions, for all opset versions; where a definition and the engines part ways,
a comment says which is followed.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator as builtin
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from xbench.runners.graph.node import Node, NotInDouble, Value, operator


def given(inputs: Sequence[Value], index: int) -> Tensor:
    """The input that must be there."""
    value = inputs[index]
    if not isinstance(value, Tensor):
        raise TypeError(f"input {index} is no tensor")
    return value


def maybe(inputs: Sequence[Value], index: int) -> Tensor | None:
    """The input, or None where it is left out."""
    return given(inputs, index) if index < len(inputs) and inputs[index] is not None else None


def single(value: float) -> float:
    """``value`` as a float32: what a default of an attribute is in every file and engine."""
    return float(np.float32(value))


EPSILON = single(1e-5)


def along(vector: Tensor, rank: int, axis: int = 1) -> Tensor:
    """A vector as a tensor of ``rank`` axes that lies along ``axis``."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


# Windows


class Axis(NamedTuple):
    """How a window moves along one spatial axis of ``size`` elements."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    out: int

    @property
    def reach(self) -> int:
        """Elements from the first to the last one that a window touches."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def wanted(self) -> int:
        """Padding at the end that the last window needs; with ceil_mode more than ``end``."""
        return max(self.end, (self.out - 1) * self.stride + self.reach - self.size - self.begin)


def axes_of(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[Axis]:
    """The windows of a convolution or pooling over an input of these spatial sizes.

    Raises ValueError for an unknown auto_pad.
    """
    rank = len(sizes)
    strides = node.get("strides") or [1] * rank
    dilations = node.get("dilations") or [1] * rank
    pads = node.get("pads") or [0] * (2 * rank)
    auto = node.get("auto_pad") or "NOTSET"
    axes = []
    for i, size in enumerate(sizes):
        stride, reach = strides[i], (kernel[i] - 1) * dilations[i] + 1
        begin, end = 0, 0
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // stride)
            total = max(0, (out - 1) * stride + reach - size)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end = total - begin
        elif auto in ("NOTSET", "VALID"):
            if auto == "NOTSET":
                begin, end = pads[i], pads[rank + i]
            room = size + begin + end - reach
            out = room // stride + 1
            # VALID rounds down in both modes. A window that would start in the padding at the end
            # is dropped: engines do so in all versions, though only 22 writes it down.
            if auto == "NOTSET" and node.get("ceil_mode", 0):
                out = -(-room // stride) + 1
                out -= (out - 1) * stride >= size + begin
        else:
            raise ValueError(f"auto_pad {auto!r} is not known")
        axes.append(Axis(size, kernel[i], stride, dilations[i], begin, end, out))
    return axes


def padded(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """``x`` with (begin, end) elements more, or fewer where negative, on each spatial axis."""
    if not any(itertools.chain(*pads)):
        return x
    return functional.pad(x, [n for pair in reversed(pads) for n in pair], value=value)


def fold(
    x: Tensor, axes: Sequence[Axis], combine: Callable[[Tensor, Tensor], Tensor], fill: float
) -> Tensor:
    """Every window combined to one element, one of the first spatial axes after the other."""
    for i, axis in enumerate(axes):
        pads = [(0, 0)] * (x.ndim - 2)
        pads[i] = (axis.begin, axis.wanted)
        views = padded(x, pads, fill).unfold(2 + i, axis.reach, axis.stride)
        x = functools.reduce(combine, views.unbind(-1)[:: axis.dilation])
    return x


# Convolutions

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


@operator("Conv")
def conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Conv of opsets 1 to 22. Raises NotInDouble beyond three spatial axes."""
    x, weight, bias = given(inputs, 0), given(inputs, 1), maybe(inputs, 2)
    rank = x.ndim - 2
    if rank not in CONVOLUTIONS:
        raise NotInDouble(f"Conv over {rank} spatial axes")
    axes = axes_of(node, x.shape[2:], weight.shape[2:])
    groups = node.get("group", 1)
    even = all(axis.begin == axis.end for axis in axes)
    if not even:
        x = padded(x, [(axis.begin, axis.end) for axis in axes])
    if groups == x.shape[1] == weight.shape[0] and groups > 1:
        return depthwise(x, weight, bias, axes, pad=even)
    y: Tensor = CONVOLUTIONS[rank](
        x,
        weight,
        bias,
        [axis.stride for axis in axes],
        [axis.begin if even else 0 for axis in axes],
        [axis.dilation for axis in axes],
        groups,
    )
    return y


def depthwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, axes: Sequence[Axis], *, pad: bool
) -> Tensor:
    """A convolution of each channel with its own kernel; torch's takes one group at a time."""
    if pad:
        x = padded(x, [(axis.begin, axis.end) for axis in axes])
    rank = x.ndim
    shape = (*x.shape[:2], *(axis.out for axis in axes))
    y = x.new_zeros(shape) if bias is None else along(bias, rank).expand(shape).clone()
    kernels = weight.flatten(1)
    for n, place in enumerate(itertools.product(*(range(axis.kernel) for axis in axes))):
        part = x
        for i, (k, axis) in enumerate(zip(place, axes, strict=True)):
            first = k * axis.dilation
            last = first + (axis.out - 1) * axis.stride + 1
            part = part[(slice(None),) * (2 + i) + (slice(first, last, axis.stride),)]
        y.addcmul_(part, along(kernels[:, n], rank))
    return y


@operator("ConvTranspose")
def conv_transpose(node: Node, inputs: Sequence[Value]) -> Tensor:
    """ConvTranspose of opsets 1 to 22: the whole result, then cut to its shape.

    Raises NotInDouble beyond three spatial axes.
    """
    x, weight, bias = given(inputs, 0), given(inputs, 1), maybe(inputs, 2)
    rank = x.ndim - 2
    if rank not in TRANSPOSED:
        raise NotInDouble(f"ConvTranspose over {rank} spatial axes")
    strides = node.get("strides") or [1] * rank
    dilations = node.get("dilations") or [1] * rank
    extra = node.get("output_padding") or [0] * rank
    auto = node.get("auto_pad") or "NOTSET"
    shape = node.get("output_shape")
    pads = node.get("pads") if auto == "NOTSET" else None
    pads = pads or [0] * (2 * rank)
    if shape:
        shape = shape[-rank:]  # some early files name batch and channels too
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    whole = TRANSPOSED[rank](
        x, weight, None, strides, 0, 0, groups=node.get("group", 1), dilation=dilations
    )
    cuts = []
    for i, size in enumerate(whole.shape[2:]):
        if shape:
            # The formula of version 1 has the halves the other way round; 11 corrected it. Where
            # more is asked for than there is, engines add it at the end.
            total = max(0, size + extra[i] - shape[i])
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
            cuts.append((-begin, shape[i] - size + begin))
        else:
            cuts.append((-pads[i], extra[i] - pads[rank + i]))
    y = padded(whole, cuts)
    return y if bias is None else y + along(bias, y.ndim)


@operator("DeformConv")
def deform_conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """DeformConv of opsets 19 and 22, over any number of spatial axes."""
    x, weight, offset = given(inputs, 0), given(inputs, 1), given(inputs, 2)
    bias, mask = maybe(inputs, 3), maybe(inputs, 4)
    batch, channels = x.shape[:2]
    kernel = weight.shape[2:]
    rank, taps, parts = len(kernel), math.prod(kernel), node.get("offset_group", 1)
    axes = axes_of(node, x.shape[2:], kernel)
    outs = [axis.out for axis in axes]
    points = math.prod(outs)
    # Where each tap of each window lies before it is moved: (taps, points, rank).
    base = torch.stack(
        [
            (
                along(torch.arange(axis.out) * axis.stride - axis.begin, 2 * rank, rank + i)
                + along(torch.arange(axis.kernel) * axis.dilation, 2 * rank, i)
            ).expand(*kernel, *outs)
            for i, axis in enumerate(axes)
        ],
        -1,
    ).reshape(taps, points, rank)
    moved = offset.reshape(batch * parts, taps, rank, points).transpose(2, 3) + base
    seen = sample(
        x.reshape(batch * parts, channels // parts, *x.shape[2:]),
        moved.reshape(batch * parts, taps * points, rank),
        "linear",
        "zeros",
    ).reshape(batch, parts, channels // parts, taps, points)
    if mask is not None:
        seen = seen * mask.reshape(batch, parts, 1, taps, points)
    groups = node.get("group", 1)
    y = torch.einsum(
        "ngckp,gock->ngop",
        seen.reshape(batch, groups, channels // groups, taps, points),
        weight.reshape(groups, -1, channels // groups, taps),
    ).reshape(batch, -1, *outs)
    return y if bias is None else y + along(bias, y.ndim)


# Pooling


@operator("MaxPool")
def max_pool(node: Node, inputs: Sequence[Value]) -> Tensor | tuple[Tensor, Tensor]:
    """MaxPool of opsets 1 to 22; (values, Indices) where two outputs are asked for.

    An index is that of the first largest element, counted over the whole input, row by row or,
    with storage_order 1, column by column within a plane.
    """
    x = given(inputs, 0)
    axes = axes_of(node, x.shape[2:], node.get("kernel_shape"))
    wide = x if x.is_floating_point() else x.to(node.dtype)
    if node.outputs < 2:
        return fold(wide, axes, torch.maximum, -math.inf).to(x.dtype)
    windows = padded(wide, [(axis.begin, axis.wanted) for axis in axes], -math.inf)
    for i, axis in enumerate(axes):
        windows = windows.unfold(2 + i, axis.reach, axis.stride)[..., :: axis.dilation]
    best, chosen = windows.flatten(2 + len(axes)).max(-1)
    places = torch.unravel_index(chosen, [axis.kernel for axis in axes])
    index = torch.zeros_like(chosen)
    column = bool(node.get("storage_order", 0))
    step = 1
    for i in range(len(axes)) if column else reversed(range(len(axes))):
        axis = axes[i]
        first = along(torch.arange(axis.out) * axis.stride - axis.begin, x.ndim, 2 + i)
        # A window of nothing but -inf must not choose the padding.
        index += (first + places[i] * axis.dilation).clamp(0, axis.size - 1) * step
        step *= axis.size
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(axes))
    return best.to(x.dtype), index + planes * step


@operator("AveragePool")
def average_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """AveragePool of opsets 1 to 22.

    With count_include_pad what pads give counts, what only ceil_mode adds does not.
    """
    x = given(inputs, 0)
    axes = axes_of(node, x.shape[2:], node.get("kernel_shape"))
    counted = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    rest = axes
    if node.get("count_include_pad", 0):
        counted = padded(counted, [(axis.begin, axis.end) for axis in axes], 1.0)
        rest = [
            axis._replace(size=axis.size + axis.begin + axis.end, begin=0, end=0) for axis in axes
        ]
    return fold(x, axes, torch.add, 0.0) / fold(counted, rest, torch.add, 0.0)


@operator("LpPool")
def lp_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """LpPool of opsets 1 to 22."""
    x, p = given(inputs, 0), node.get("p", 2)
    axes = axes_of(node, x.shape[2:], node.get("kernel_shape"))
    return fold(x.abs().pow(p), axes, torch.add, 0.0).pow(1 / p)


@operator("GlobalAveragePool")
def global_average_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The mean of each channel."""
    x = given(inputs, 0)
    return x.mean(list(range(2, x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The largest of each channel."""
    x = given(inputs, 0)
    return x.amax(list(range(2, x.ndim)), keepdim=True)


@operator("GlobalLpPool")
def global_lp_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The p-norm of each channel."""
    x, p = given(inputs, 0), node.get("p", 2)
    return x.abs().pow(p).sum(list(range(2, x.ndim)), keepdim=True).pow(1 / p)


@operator("MaxUnpool")
def max_unpool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """MaxUnpool of opsets 9 to 22.

    Indices count in the shape that kernel, strides and pads imply; a larger output_shape is filled
    up with zeros at the end, as ONNX's own test has it (ONNX Runtime counts in output_shape).
    """
    x, places, wanted = given(inputs, 0), given(inputs, 1), maybe(inputs, 2)
    kernel = node.get("kernel_shape")
    rank = len(kernel)
    strides = node.get("strides") or [1] * rank
    pads = node.get("pads") or [0] * (2 * rank)
    sizes = [
        (x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i]
        for i in range(rank)
    ]
    y = x.new_zeros([*x.shape[:2], *sizes])
    y.view(-1)[places.reshape(-1)] = x.reshape(-1)
    if wanted is None:
        return y
    return padded(y, [(0, w - s) for w, s in zip(wanted.tolist()[2:], sizes, strict=True)])


# Regions


@operator("MaxRoiPool")
def max_roi_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """MaxRoiPool of opsets 1 and 22: the largest of each bin; an empty bin gives 0.

    Corners are rounded to whole elements, halves away from zero; bins reach outwards to whole
    elements and may overlap.
    """
    x, rois = given(inputs, 0), given(inputs, 1)
    height, width = node.get("pooled_shape")
    y = x.new_zeros(len(rois), x.shape[1], height, width)
    corners = rois[:, 1:] * node.get("spatial_scale", 1.0)
    corners = (corners.sign() * (corners.abs() + 0.5).floor()).long()
    for image, (left, top, right, bottom), bins in zip(
        rois[:, 0].long().tolist(), corners.tolist(), y, strict=True
    ):
        rows = list(_bins(top, bottom, height, x.shape[2]))
        columns = list(_bins(left, right, width, x.shape[3]))
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
            part = x[image, :, row, column]
            if part.numel():
                bins[:, i, j] = part.amax((1, 2))
    return y


def _bins(first: int, last: int, count: int, size: int) -> list[slice]:
    """Elements first to last in ``count`` bins, cut to an axis of ``size``."""
    length = max(last - first + 1, 1)
    return [
        slice(
            min(max(first + i * length // count, 0), size),
            min(max(first - (-(i + 1) * length // count), 0), size),
        )
        for i in range(count)
    ]


@operator("RoiAlign")
def roi_align(node: Node, inputs: Sequence[Value]) -> Tensor:
    """RoiAlign of opsets 10 to 22.

    Mode "max" takes the largest of the four weighted neighbours, not of their sum: that is what
    ONNX's reference and ONNX Runtime do.
    """
    x, rois, images = given(inputs, 0), given(inputs, 1), given(inputs, 2)
    outs = node.get("output_height", 1), node.get("output_width", 1)
    mode = node.get("mode", "avg").lower()
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.get("coordinate_transformation_mode", default).lower() == "half_pixel"
    ratio = node.get("sampling_ratio", 0)
    corners = rois * node.get("spatial_scale", 1.0) - (0.5 if half else 0.0)
    y = x.new_zeros(len(rois), x.shape[1], *outs)
    for image, (left, top, right, bottom), out in zip(
        images.tolist(), corners.tolist(), y, strict=True
    ):
        sides = []
        for first, last, count, size in (
            (top, bottom, outs[0], x.shape[2]),
            (left, right, outs[1], x.shape[3]),
        ):
            length = last - first if half else max(last - first, 1.0)
            grid = ratio if ratio > 0 else max(math.ceil(length / count), 0)
            at = torch.arange(count * grid, dtype=node.dtype) + 0.5
            at = first + at * (length / count) / max(grid, 1)
            inside = ((at >= -1) & (at <= size)).to(node.dtype)
            at = at.clamp(0, size - 1)
            low = at.floor().long()
            part = at - low
            sides.append(
                (grid, (low, (1 - part) * inside), ((low + 1).clamp(max=size - 1), part * inside))
            )
        (rows, *ys), (columns, *xs) = sides
        if not rows * columns:
            continue
        neighbours = [
            x[image][:, iy][:, :, ix] * wy[:, None] * wx for (iy, wy), (ix, wx) in _pairs(ys, xs)
        ]
        shape = x.shape[1], outs[0], rows, outs[1], columns
        if mode == "max":
            largest = functools.reduce(torch.maximum, neighbours)
            out.copy_(largest.reshape(shape).amax((2, 4)))
        else:
            out.copy_(functools.reduce(torch.add, neighbours).reshape(shape).mean((2, 4)))
    return y


def _pairs(
    rows: list[tuple[Tensor, Tensor]], columns: list[tuple[Tensor, Tensor]]
) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    return list(itertools.product(rows, columns))


# Normalisation


@operator("BatchNormalization")
def batch_normalization(node: Node, inputs: Sequence[Value]) -> Tensor | tuple[Tensor, ...]:
    """BatchNormalization of opsets 1 to 15, with its outputs of training.

    The variance is that of the population everywhere; before version 14 the definition leaves
    open which one is meant.
    """
    x, scale, bias, mean, variance = (given(inputs, i) for i in range(5))
    if node.version >= 14:
        training = bool(node.get("training_mode", 0))
    elif node.version >= 7:
        training = node.outputs > 1
    else:
        training = not node.get("is_test", 0)
    spatial = node.version >= 9 or bool(node.get("spatial", 1))
    over = [i for i in range(x.ndim) if i != 1] if spatial else [0]

    def laid(statistic: Tensor) -> Tensor:
        return along(statistic, x.ndim) if spatial else statistic[None]

    def normal(centre: Tensor, spread: Tensor) -> Tensor:
        deviation = (laid(spread) + node.get("epsilon", EPSILON)).sqrt()
        return torch.addcmul(laid(bias), (x - laid(centre)) / deviation, laid(scale))

    if not training:
        return normal(mean, variance)
    keep = node.get("momentum", single(0.9))
    now = x.mean(over)
    spread = (x - laid(now)).square().mean(over)
    y = normal(now, spread)
    running = mean * keep + now * (1 - keep), variance * keep + spread * (1 - keep)
    return (y, *running) if node.version >= 14 else (y, *running, now, spread)


def standardised(x: Tensor, over: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / deviation over these axes, the mean, and one over the deviation."""
    mean = x.mean(list(over), keepdim=True)
    centred = x - mean
    inverse = 1 / (centred.square().mean(list(over), keepdim=True) + epsilon).sqrt()
    return centred * inverse, mean, inverse


@operator("InstanceNormalization")
def instance_normalization(node: Node, inputs: Sequence[Value]) -> Tensor:
    """InstanceNormalization of opsets 1 to 22."""
    x, scale, bias = (given(inputs, i) for i in range(3))
    plain, *_ = standardised(x, range(2, x.ndim), node.get("epsilon", EPSILON))
    return plain * along(scale, x.ndim) + along(bias, x.ndim)


@operator("LayerNormalization")
def layer_normalization(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNormalization of opset 17: the result, the mean and one over the deviation."""
    x, scale, bias = given(inputs, 0), given(inputs, 1), maybe(inputs, 2)
    first = node.get("axis", -1) % x.ndim
    plain, mean, inverse = standardised(x, range(first, x.ndim), node.get("epsilon", EPSILON))
    y = plain * scale
    return y if bias is None else y + bias, mean, inverse


@operator("RMSNormalization")
def rms_normalization(node: Node, inputs: Sequence[Value]) -> Tensor:
    """RMSNormalization of opset 23."""
    x, scale = given(inputs, 0), given(inputs, 1)
    over = list(range(node.get("axis", -1) % x.ndim, x.ndim))
    root = (x.square().mean(over, keepdim=True) + node.get("epsilon", EPSILON)).sqrt()
    y: Tensor = x / root * scale
    return y


@operator("GroupNormalization")
def group_normalization(node: Node, inputs: Sequence[Value]) -> Tensor:
    """GroupNormalization: scale and bias by group in opset 18, by channel from 21."""
    x, scale, bias = (given(inputs, i) for i in range(3))
    groups = node.get("num_groups")
    grouped = x.reshape(x.shape[0], groups, -1)
    plain, *_ = standardised(grouped, [2], node.get("epsilon", EPSILON))
    if node.version < 21:
        scale, bias = (part.repeat_interleave(x.shape[1] // groups) for part in (scale, bias))
    return plain.reshape(x.shape) * along(scale, x.ndim) + along(bias, x.ndim)


@operator("LRN")
def lrn(node: Node, inputs: Sequence[Value]) -> Tensor:
    """LRN of opsets 1 and 13: over ``size`` channels, the odd one after the middle."""
    x, size = given(inputs, 0), node.get("size")
    before = (size - 1) // 2
    # As rows of one plane the channels are the first spatial axis.
    flat = x.reshape(x.shape[0], 1, x.shape[1], -1)
    across = Axis(x.shape[1], size, 1, 1, before, size - 1 - before, x.shape[1])
    squares = fold(flat.square(), [across], torch.add, 0.0).reshape(x.shape)
    alpha, beta = node.get("alpha", single(1e-4)), node.get("beta", 0.75)
    divisor: Tensor = (squares * (alpha / size) + node.get("bias", 1.0)).pow(beta)
    return x / divisor


# Resizing

ROUNDING = 2.0**-23
"""Of a float32, relative."""


class Length(NamedTuple):
    """One axis to resize: from ``size`` to ``out`` by ``above`` / ``below``.

    A scale of a file is ``above``, over 1; from sizes both are whole numbers, so that a
    coordinate which should lie between two elements does so exactly.
    """

    axis: int
    size: int
    out: int
    above: float
    below: float
    roi: tuple[float, float] | None = None

    @property
    def exact(self) -> bool:
        """Coordinates are made of whole numbers alone."""
        return self.roi is None and isinstance(self.above, int)

    @property
    def scale(self) -> float:
        """How many elements come of one."""
        return self.above / self.below


class Filter(NamedTuple):
    """How new elements are made of old ones; the attributes of Resize."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "simple"
    cubic: float = -0.75
    outside: bool = True
    antialias: bool = False
    beyond: float = 0.0


def coordinates_of(length: Length, how: str) -> Tensor:
    """Where in the old axis each element of the new one lies, in elements. (out,) in float64.

    Lengths are whole numbers, as the definition and the engines have it; ONNX's reference puts
    size times scale for the new one. Raises NotInDouble for an unknown transformation.
    """
    y = torch.arange(length.out, dtype=torch.float64)
    size, out = length.size, length.out
    if how == "align_corners":
        return y * (size - 1) / (out - 1) if out > 1 else torch.zeros_like(y)
    if how == "tf_crop_and_resize":
        start, stop = length.roi or (0.0, 1.0)
        if out > 1:
            return start * (size - 1) + y * (stop - start) * (size - 1) / (out - 1)
        return torch.full_like(y, 0.5 * (start + stop) * (size - 1))
    if how == "asymmetric":
        return y * length.below / length.above
    middle = (y + 0.5) * length.below / length.above
    if how == "tf_half_pixel_for_nn":
        return middle
    if how == "half_pixel":
        return middle - 0.5
    if how == "pytorch_half_pixel":
        return middle - 0.5 if out > 1 else torch.zeros_like(y)
    if how == "half_pixel_symmetric":
        return size / 2 * (1 - out / (length.scale * size)) + middle - 0.5
    raise NotInDouble(f"Resize by the coordinates of {how}")


def nearest_of(at: Tensor, length: Length, how: str) -> Tensor:
    """The whole number that stands for each coordinate.

    Scales and roi of a file are float32: a coordinate that is whole, or between two, but for
    their rounding is taken to be so; engines that count in float32 do the same.
    """
    if not length.exact:
        half = (2 * at).round() / 2
        at = torch.where((at - half).abs() <= (half.abs() + 1) * ROUNDING, half, at)
    if how == "simple":  # opset 10 does not say; this is how engines read it
        how = "ceil" if length.scale < 1 else "floor"
    if how == "round_prefer_floor":
        at = (at - 0.5).ceil()
    elif how == "round_prefer_ceil":
        at = (at + 0.5).floor()
    elif how == "floor":
        at = at.floor()
    elif how == "ceil":
        at = at.ceil()
    else:
        raise ValueError(f"nearest_mode {how!r} is not known")
    return at.long()


def keys(distance: Tensor, a: float) -> Tensor:
    """The weight of cubic convolution at a distance of at least 0 (Keys 1981, equation 4)."""
    near = ((a + 2) * distance - (a + 3)) * distance.square() + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))


def resized(x: Tensor, lengths: Sequence[Length], filter: Filter, dtype: torch.dtype) -> Tensor:
    """``x`` with each of these axes resized, one after the other, the last first.

    Integers are interpolated in ``dtype`` and rounded, halves to even. Raises NotInDouble for
    what cannot be interpolated.
    """
    kind = x.dtype
    if filter.mode not in ("nearest", "linear", "cubic"):
        raise NotInDouble(f"Resize by {filter.mode}")
    if filter.mode != "nearest" and not kind.is_floating_point:
        if kind == torch.bool or kind.is_complex:
            raise NotInDouble(f"Resize of {kind} by {filter.mode}")
        x = x.to(dtype)
    lost: list[Tensor] = []
    for length in sorted(lengths, reverse=True):
        at = coordinates_of(length, filter.coordinates)
        if filter.coordinates == "tf_crop_and_resize":
            slack = length.size * ROUNDING
            beyond = (at < -slack) | (at > length.size - 1 + slack)
            lost.append(along(beyond, x.ndim, length.axis))
        if length.out == length.size and torch.equal(at, torch.arange(length.out).double()):
            continue
        if filter.mode == "nearest":
            index = nearest_of(at, length, filter.nearest).clamp(0, length.size - 1)
            x = taken(x, length.axis, index)
        else:
            x = blended(x, length, at, filter)
    if lost:
        x = x.masked_fill(functools.reduce(builtin.or_, lost), filter.beyond)
    if kind.is_floating_point or x.dtype == kind:
        return x
    bounds = torch.iinfo(kind)
    return x.round().clamp(bounds.min, bounds.max).to(kind)


def blended(x: Tensor, length: Length, at: Tensor, filter: Filter) -> Tensor:
    """One axis of ``x`` as weighted sums of the elements around each coordinate."""
    support = 1 if filter.mode == "linear" else 2
    stretch = min(length.scale, 1.0) if filter.antialias else 1.0
    radius = math.ceil(support / stretch)
    index = at.floor().long()[:, None] + torch.arange(1 - radius, radius + 1)
    distance = (index - at[:, None]).abs() * stretch
    if filter.mode == "linear":
        weights = (1 - distance).clamp(min=0)
    else:
        weights = keys(distance, filter.cubic)
    if not filter.outside:
        weights = weights * ((index >= 0) & (index < length.size))
    if not filter.outside or filter.antialias:
        sums = weights.sum(1, keepdim=True)
        weights = weights / torch.where(sums == 0, 1.0, sums)
    index = index.clamp(0, length.size - 1)
    weights = weights.to(x.dtype)
    y = x.new_zeros([length.out if i == length.axis else n for i, n in enumerate(x.shape)])
    for column, weight in zip(index.T, weights.T, strict=True):
        if weight.any():
            y.addcmul_(taken(x, length.axis, column), along(weight, x.ndim, length.axis))
    return y


def taken(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The elements at these places of one axis; on the last, gather is several times quicker."""
    if axis < x.ndim - 1:
        return x.index_select(axis, index)
    return x.gather(axis, index.expand(*x.shape[:-1], -1))


def scaled(axis: int, size: int, scale: float) -> Length:
    """An axis resized by a scale of a file; its product with the size is one of float32s."""
    return Length(axis, size, int(np.float32(size) * np.float32(scale)), scale, 1)


@operator("Resize")
def resize(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Resize of opsets 10 to 19.

    The new length is that of ``scales`` alone, also with tf_crop_and_resize: the definition's
    factor (roi_end - roi_start) is in no implementation. Raises NotInDouble as ``resized`` does.
    """
    x = given(inputs, 0)
    if node.version < 11:
        scales = given(inputs, 1).tolist()
        lengths = [scaled(i, x.shape[i], scale) for i, scale in enumerate(scales)]
        return resized(x, lengths, Filter(node.get("mode", "nearest")), node.dtype)
    roi, factors, sizes = (maybe(inputs, i) for i in (1, 2, 3))
    how = Filter(
        node.get("mode", "nearest"),
        node.get("coordinate_transformation_mode", "half_pixel"),
        node.get("nearest_mode", "round_prefer_floor"),
        node.get("cubic_coeff_a", -0.75),
        not node.get("exclude_outside", 0),
        bool(node.get("antialias", 0)),
        node.get("extrapolation_value", 0.0),
    )
    axes = [axis % x.ndim for axis in node.get("axes") or range(x.ndim)]
    old = [x.shape[axis] for axis in axes]
    if sizes is not None and sizes.numel():
        lengths = _sized(node, axes, old, sizes.tolist())
    elif factors is not None:
        lengths = [scaled(*each) for each in zip(axes, old, factors.tolist(), strict=True)]
    else:
        raise ValueError("Resize has neither scales nor sizes")
    if how.coordinates == "tf_crop_and_resize":
        if roi is None or roi.numel() != 2 * len(axes):
            raise ValueError("Resize by tf_crop_and_resize has no roi")
        ends = roi.reshape(2, -1).T.tolist()
        lengths = [
            length._replace(roi=(start, stop))
            for length, (start, stop) in zip(lengths, ends, strict=True)
        ]
    return resized(x, lengths, how, node.dtype)


def _sized(node: Node, axes: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[Length]:
    """Axes resized to sizes, all by one factor where the aspect ratio is kept."""
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [Length(*each, each[2], each[1]) for each in zip(axes, old, new, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"keep_aspect_ratio_policy {policy!r} is not known")
    choose = min if policy == "not_larger" else max
    above, below = choose(zip(new, old, strict=True), key=lambda pair: pair[0] / pair[1])
    # Halves round up; in whole numbers that is exact.
    return [
        Length(axis, size, (2 * above * size + below) // (2 * below), above, below)
        for axis, size in zip(axes, old, strict=True)
    ]


@operator("Upsample")
def upsample(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Upsample of opsets 1, 7 and 9."""
    x = given(inputs, 0)
    if node.version < 7:
        scales = [1.0, 1.0, node.get("height_scale"), node.get("width_scale")]
    else:
        scales = node.get("scales") if node.version < 9 else given(inputs, 1).tolist()
    mode = node.get("mode", "nearest")
    lengths = [scaled(i, x.shape[i], scale) for i, scale in enumerate(scales)]
    return resized(x, lengths, Filter("linear" if mode == "bilinear" else mode), node.dtype)


# Sampling


def sample(x: Tensor, at: Tensor, mode: str, padding: str, *, align: bool = False) -> Tensor:
    """Elements of an image at any places.

    ``x`` is (batch, channels, *sizes), ``at`` is (batch, places, axes) in elements, the first axis
    first; mode "nearest" takes whole numbers. The result is (batch, channels, places). ``align``
    says about what "reflection" reflects: the middle of the last element, or its edge.
    """
    sizes = x.shape[2:]
    choices: list[list[tuple[Tensor, Tensor, Tensor]]] = []
    for i, size in enumerate(sizes):
        place = at[..., i]
        low = place.floor()
        if mode == "nearest":
            taps = [(low, torch.ones_like(low))]
        elif mode == "linear":
            taps = [(low, 1 - (place - low)), (low + 1, place - low)]
        else:
            taps = [(low + k, keys((low + k - place).abs(), -0.75)) for k in range(-1, 3)]
        choices.append([])
        for whole, weight in taps:
            index = whole.long()
            inside = torch.ones_like(index, dtype=torch.bool)
            if padding == "zeros":
                inside = (index >= 0) & (index < size)
            elif padding == "reflection":
                period = max(2 * (size - 1), 1) if align else 2 * size
                index = index % period
                mirrored = period - index if align else period - 1 - index
                index = torch.where(index < size, index, mirrored)
            choices[-1].append((index.clamp(0, size - 1), inside, weight))
    flat = x.flatten(2)
    y = x.new_zeros(*x.shape[:2], at.shape[1])
    for combination in itertools.product(*choices):
        index = torch.zeros_like(combination[0][0])
        for size, (part, _, _) in zip(sizes, combination, strict=True):
            index = index * size + part
        inside = functools.reduce(builtin.and_, (part[1] for part in combination))
        weight = functools.reduce(builtin.mul, (part[2] for part in combination))
        values = flat.gather(2, index[:, None].expand(-1, x.shape[1], -1))
        y += values.masked_fill(~inside[:, None], 0.0) * weight[:, None]
    return y


@operator("GridSample")
def grid_sample(node: Node, inputs: Sequence[Value]) -> Tensor:
    """GridSample of opsets 16 to 22, over any number of spatial axes.

    Beyond the border each neighbour is moved, as torch and ONNX Runtime do. ONNX's reference moves
    the place itself, which differs for the cubic mode at a border. Integers are cut to whole
    numbers at the end. Raises ValueError for an unknown mode.
    """
    x, grid = given(inputs, 0), given(inputs, 1)
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.get("mode", "linear")
    mode, padding = modes.get(mode, mode), node.get("padding_mode", "zeros")
    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"mode {mode!r} of GridSample is not known")
    align = bool(node.get("align_corners", 0))
    sizes = x.shape[2:]
    places = grid.reshape(grid.shape[0], -1, len(sizes)).flip(-1)
    columns = []
    for i, size in enumerate(sizes):
        place = places[..., i] + 1
        place = place / 2 * (size - 1) if align else (place * size - 1) / 2
        columns.append(place.round() if mode == "nearest" else place)
    wide = x if x.is_floating_point() else x.to(node.dtype)
    y = sample(wide, torch.stack(columns, -1), mode, padding, align=align)
    return y.reshape(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)


@operator("AffineGrid")
def affine_grid(node: Node, inputs: Sequence[Value]) -> Tensor:
    """AffineGrid of opset 20: (batch, *sizes, axes), the last axis first.

    A single element with align_corners lies in the middle: the definition divides by zero there.
    """
    theta, sizes = given(inputs, 0), given(inputs, 1).tolist()[2:]
    lines = []
    for size in sizes:
        place = torch.arange(size, dtype=node.dtype)
        if node.get("align_corners", 0):
            lines.append(2 * place / (size - 1) - 1 if size > 1 else place)
        else:
            lines.append((2 * place + 1) / size - 1)
    mesh = torch.meshgrid(*lines, indexing="ij")
    homogeneous = torch.stack([*reversed(mesh), torch.ones_like(mesh[0])], -1)
    moved = homogeneous.reshape(1, -1, len(sizes) + 1) @ theta.transpose(1, 2)
    return moved.reshape(theta.shape[0], *sizes, len(sizes))
