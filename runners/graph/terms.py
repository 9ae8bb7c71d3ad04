"""K: how many terms one element of an operator's output sums.

The rounding of a sum of K terms grows as sqrt(K) (Higham 2002, section 2.6), so this scales what
an operator may be off by. Where a count depends on the place (at a border, or in a triangle), it
is the largest. What only moves, chooses or maps elements sums one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx import NodeProto, helper
from torch import Tensor

from xbench.runners.graph.node import Value

Attributes = dict[str, Any]
Shapes = list[tuple[int, ...]]
Rule = Callable[[Attributes, Shapes, Shapes], int]
"""From the attributes and the shapes of inputs and outputs, () for one that is left out."""


def terms(
    node: NodeProto,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    *,
    inside: int = 0,
    version: int = 18,
) -> int:
    """How many terms one output element of ``node`` sums, at least 1.

    ``inside`` is what the nodes within a control node or a function summed in all that they ran,
    one after the other (``Interpreter.inside``): it stands for those, and for operators that are
    not known here. ``version`` is the opset, which tells the softmax of old apart.
    """
    rule = RULES.get(node.op_type)
    if rule is None:
        return max(1, inside)
    attributes = {
        item.name: helper.get_attribute_value(item)
        for item in node.attribute
        if item.type not in (item.GRAPH, item.TENSOR, item.GRAPHS)
    }
    if node.op_type in BY_VALUE:
        return max(1, BY_VALUE[node.op_type](attributes, inputs))
    if node.op_type in ("Softmax", "LogSoftmax") and version < 13:
        # It ran over every axis from ``axis`` on.
        return max(1, trailing(shapes(inputs), int(attributes.get("axis", 1))))
    return max(1, rule(attributes, shapes(inputs), shapes(outputs)))


def shapes(values: Sequence[Value]) -> Shapes:
    """The shape of every tensor, () for what is none."""
    return [tuple(item.shape) if isinstance(item, Tensor) else () for item in values]


def size(given: Shapes, index: int, axis: int, default: int = 1) -> int:
    """The length of an axis of a tensor, ``default`` where either is not there."""
    if index >= len(given) or not -len(given[index]) <= axis < len(given[index]):
        return default
    return given[index][axis]


def has(given: Shapes, index: int) -> bool:
    """Whether an input of at least one axis is given."""
    return index < len(given) and bool(given[index])


def matmul(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The inner dimension."""
    transposed = bool(a.get("transA", 0)) and len(given[0]) > 1
    return size(given, 0, -2 if transposed else -1)


def gemm(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The inner dimension and the addend."""
    return size(given, 0, 0 if a.get("transA", 0) else 1) + has(given, 2)


def einsum(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The product of the lengths of the axes that the output does not have."""
    equation = a["equation"].decode().replace(" ", "")
    left, _, right = equation.partition("->")
    if "->" not in equation:
        right = "".join(letter for letter in left if left.count(letter) == 1)
    lengths: dict[str, int] = {}
    for labels, shape in zip(left.split(","), given, strict=True):
        before, _, after = labels.partition("...")
        own = list(zip(before, shape, strict=False))
        own += list(zip(reversed(after), reversed(shape), strict=False))
        for letter, length in own:
            lengths[letter] = max(length, lengths.get(letter, 1))
    return math.prod(length for letter, length in lengths.items() if letter not in right)


def convolution(weight: int, bias: int) -> Rule:
    """Channels of a group times the kernel, and the bias; the weight's input is ``weight``."""

    def rule(a: Attributes, given: Shapes, made: Shapes) -> int:
        return math.prod(given[weight][1:]) + has(given, bias)

    return rule


def transposed_convolution(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Channels of a group times the taps that a place can meet: every stride-th of the kernel."""
    kernel = given[1][2:]
    strides = a.get("strides", [1] * len(kernel))
    dilations = a.get("dilations", [1] * len(kernel))
    taps = [
        -(-length // (stride // math.gcd(stride, dilation)))
        for length, stride, dilation in zip(kernel, strides, dilations, strict=True)
    ]
    return int(given[1][0] // int(a.get("group", 1)) * math.prod(taps) + has(given, 2))


def deformable(a: Attributes, given: Shapes, made: Shapes) -> int:
    """As a convolution, of values that are each interpolated from four."""
    return 4 * math.prod(given[1][1:]) + has(given, 3)


def window(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The kernel of a pool that sums."""
    return math.prod(a.get("kernel_shape", ()))


def spatial(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Every axis after batch and channels."""
    return math.prod(given[0][2:])


def reduced(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Elements of the input per element of the output."""
    return math.prod(given[0]) // max(1, math.prod(made[0]))


def along(default: int) -> Rule:
    """The length of the attribute ``axis``."""

    def rule(a: Attributes, given: Shapes, made: Shapes) -> int:
        return size(given, 0, int(a.get("axis", default)))

    return rule


def from_axis(default: int) -> Rule:
    """The axes from the attribute ``axis`` on."""

    def rule(a: Attributes, given: Shapes, made: Shapes) -> int:
        return trailing(given, int(a.get("axis", default)))

    return rule


def trailing(given: Shapes, axis: int) -> int:
    """The axes of the first input from ``axis`` on."""
    return math.prod(given[0][axis if axis >= 0 else len(given[0]) + axis :])


def last(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The last axis."""
    return size(given, 0, -1)


def group_norm(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The channels of a group and their space; ONNX Runtime's has its channels at any place."""
    groups = int(a.get("num_groups") or a.get("groups") or 1)
    return math.prod(given[0][1:]) // max(1, groups)


def batch_norm(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The batch and the space where it takes their statistics, else nothing is summed."""
    return given[0][0] * math.prod(given[0][2:]) if a.get("training_mode", 0) else 1


def mean_variance(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The axes whose statistics are taken."""
    return math.prod(given[0][axis] for axis in a.get("axes", (0, 2, 3)))


def recurrent(a: Attributes, given: Shapes, made: Shapes) -> int:
    """(Input and hidden size) times steps.

    A gate sums input and hidden terms. Its rounding goes into the state, and with it into every
    later step: while the state does not grow, the errors of the steps add up like terms.
    """
    steps = size(given, 0, 1 if a.get("layout", 0) else 0)
    return (size(given, 1, -1) + size(given, 2, -1)) * steps


def attention(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Head size for the scores, and keys for the softmax and the values."""
    query, key = given[0], given[1]
    heads = 1 if len(query) == 4 else int(a.get("q_num_heads", 1))
    return query[-1] // heads + size(made, 1, 2, size([key], 0, -2) + size(given, 4, 2, 0))


def packed_attention(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The projection of ONNX Runtime's Attention, then as ``attention``."""
    return size(given, 0, -1) + multi_head(a, given, made)


def multi_head(a: Attributes, given: Shapes, made: Shapes) -> int:
    """As ``attention``; heads are counted, keys are the longest of query, key and present."""
    heads = int(a.get("num_heads", 1))
    head = given[0][-1] if len(given[0]) > 3 else made[0][-1] // max(1, heads)
    lengths = [shape[-2] for shape in (*given[:2], *made[1:]) if len(shape) > 2]
    return head + max(lengths, default=1)


def resize(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Taps of the kernel on every axis that changes; an antialiased one is as wide as it skips."""
    mode = a.get("mode", b"nearest")
    taps = {b"linear": 2, b"bilinear": 2, b"cubic": 4}.get(mode, 1)
    wide = bool(a.get("antialias", 0))
    return math.prod(
        taps * (max(1, -(-before // max(1, after))) if wide else 1)
        for before, after in zip(given[0], made[0], strict=True)
        if before != after
    )


def grid_sample(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Taps of the kernel on every axis of the space."""
    taps = {b"nearest": 1, b"cubic": 4, b"bicubic": 4}.get(a.get("mode", b"linear"), 2)
    return int(taps ** (len(given[0]) - 2))


def roi_align(a: Attributes, given: Shapes, made: Shapes) -> int:
    """Four taps for every sample of a bin; where their number adapts, up to the whole map."""
    samples = int(a.get("sampling_ratio", 0)) ** 2
    if a.get("mode", b"avg") == b"max":
        return 4
    if not samples:
        samples = math.prod(
            -(-before // max(1, after))
            for before, after in zip(given[0][2:], made[0][2:], strict=True)
        )
    return 4 * samples


def scatter(a: Attributes, given: Shapes, made: Shapes) -> int:
    """What may meet in one place where updates are added; the axis' length bounds it."""
    if a.get("reduction", b"none") not in (b"add", b"mul"):
        return 1
    return size(given, 1, int(a.get("axis", 0))) + 1


def several(a: Attributes, given: Shapes, made: Shapes) -> int:
    """The number of inputs."""
    return len(given)


def fixed(count: int) -> Rule:
    """The same for every shape."""
    return lambda a, given, made: count


def cumulated(a: Attributes, inputs: Sequence[Value]) -> int:
    """The length of the axis, which an input names."""
    axis = inputs[1] if len(inputs) > 1 else None
    return size(shapes(inputs), 0, int(axis.item()) if isinstance(axis, Tensor) else 0)


def transform(a: Attributes, inputs: Sequence[Value]) -> int:
    """The length that a Fourier transform sums: of its axis, or as another input asks."""
    length = inputs[1] if len(inputs) > 1 else None
    if isinstance(length, Tensor):
        return int(length.item())
    axis = inputs[2] if len(inputs) > 2 else None
    given = shapes(inputs)
    # The last axis is real and imaginary part; the one before it is the default of opset 20.
    place = int(axis.item()) if isinstance(axis, Tensor) else int(a.get("axis", -2))
    return size(given, 0, place)


def framed(a: Attributes, inputs: Sequence[Value]) -> int:
    """The length of a frame of a short-time transform."""
    length = inputs[3] if len(inputs) > 3 else None
    return int(length.item()) if isinstance(length, Tensor) else size(shapes(inputs), 2, 0)


def scattered(a: Attributes, inputs: Sequence[Value]) -> int:
    """The most updates that ScatterND adds to one place, and what was there."""
    indices = inputs[1]
    if a.get("reduction", b"none") not in (b"add", b"mul") or not isinstance(indices, Tensor):
        return 1
    if not indices.numel():
        return 1
    rows = indices.reshape(-1, indices.shape[-1])
    counts = torch.unique(rows, dim=0, return_counts=True)[1]
    return int(counts.max()) + 1


def blocks(a: Attributes, inputs: Sequence[Value]) -> int:
    """The columns that Col2Im may add to one place: the block's size."""
    shape = inputs[2]
    return int(shape.prod()) if isinstance(shape, Tensor) else 1


BY_VALUE: dict[str, Callable[[Attributes, Sequence[Value]], int]] = {
    "CumSum": cumulated,
    "CumProd": cumulated,
    "DFT": transform,
    "STFT": framed,
    "ScatterND": scattered,
    "Col2Im": blocks,
}
"""Rules that look at the values of inputs."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(BY_VALUE, fixed(1)),
    **dict.fromkeys(
        (
            "MatMul", "MatMulInteger", "FusedMatMul", "TransposeMatMul", "QLinearMatMul",
            "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits", "MatMulBnb4",
            "FusedMatMulActivation",
        ),
        matmul,
    ),
    **dict.fromkeys(("Gemm", "FusedGemm", "QGemm", "GemmFastGelu"), gemm),
    "Einsum": einsum,
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv"), convolution(1, 2)),
    "ConvInteger": convolution(1, 4),
    "QLinearConv": convolution(3, 8),
    "CausalConvWithState": convolution(1, 2),
    "ConvTranspose": transposed_convolution,
    "DeformConv": deformable,
    **dict.fromkeys(("AveragePool", "LpPool", "QLinearAveragePool"), window),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "QLinearGlobalAveragePool", "InstanceNormalization"),
        spatial,
    ),
    **dict.fromkeys(
        (
            "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceSumSquare", "NegativeLogLikelihoodLoss",
            "SoftmaxCrossEntropyLoss", "QLinearReduceMean", "ReduceSumInteger",
        ),
        reduced,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization", "QLinearSoftmax"), along(-1)),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), from_axis(-1)
    ),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "BiasSoftmax"), last
    ),
    "EmbedLayerNormalization": lambda a, given, made: size(made, 0, -1),
    **dict.fromkeys(("GroupNormalization", "GroupNorm", "SkipGroupNorm"), group_norm),
    "BatchNormalization": batch_norm,
    "MeanVarianceNormalization": mean_variance,
    "LRN": lambda a, given, made: int(a.get("size", 1)),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), recurrent),
    "Attention": lambda a, given, made: (
        packed_attention(a, given, made) if "num_heads" in a else attention(a, given, made)
    ),
    "QAttention": packed_attention,
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), multi_head),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    "GridSample": grid_sample,
    "RoiAlign": roi_align,
    "AffineGrid": lambda a, given, made: size(made, 0, -1) + 1,
    "RotaryEmbedding": fixed(2),
    **dict.fromkeys(("ScatterElements", "Scatter"), scatter),
    **dict.fromkeys(("Sum", "Mean"), several),
    "Det": last,
}  # fmt: skip
"""By operator type, whatever its domain. What is not here sums one, or what is inside it."""
