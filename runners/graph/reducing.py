"""ONNX's reductions, softmaxes, products and losses in double. Every opset of the ai.onnx domain.

Sums of integers wrap in their own type; means, norms and logarithms of integers are computed in
float64 and truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from xbench.runners.graph.elementwise import (
    Inputs,
    given,
    integers,
    like,
    ordered,
    setting,
    signed,
    tensor,
    unordered,
)
from xbench.runners.graph.node import Node, NotInDouble, Value, operator

Axes = tuple[int, ...]


def _axes(node: Node, inputs: Inputs, rank: int) -> Axes:
    """The axes to reduce: an input in newer opsets, an attribute in older ones.

    None or an empty list means all, or none where ``noop_with_empty_axes`` says so.
    """
    axes = integers(inputs, 1, node.get("axes"))
    if not axes:
        return () if setting(node, "noop_with_empty_axes") else tuple(range(rank))
    if not all(-rank <= a < rank for a in axes):
        raise IndexError(f"{node.op}: axes {axes} of a tensor of rank {rank}")
    return tuple(a + rank if a < 0 else a for a in axes)


def _sum(x: Tensor, axes: Axes) -> Tensor:
    # torch reads an empty list of axes as all of them.
    return x.sum(dim=axes, keepdim=True) if axes else x


def _product(x: Tensor, axes: Axes) -> Tensor:
    for axis in axes:
        x = x.prod(dim=axis, keepdim=True)
    return x


def _mean(x: Tensor, axes: Axes) -> Tensor:
    return x.mean(dim=axes, keepdim=True) if axes else x


def _log_sum_exp(x: Tensor, axes: Axes) -> Tensor:
    # logsumexp refuses empty axes of an empty set, whose answer is the logarithm of nothing.
    if x.numel() == 0:
        return _sum(x.exp(), axes).log()
    return torch.logsumexp(x, dim=axes, keepdim=True) if axes else x


_EXACT: dict[str, Callable[[Tensor, Axes], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
    "ReduceL1": lambda x, axes: _sum(x.abs(), axes),
}
"""Reductions that wrap for integers."""

_REAL: dict[str, Callable[[Tensor, Axes], Tensor]] = {
    "ReduceMean": _mean,
    "ReduceL2": lambda x, axes: _sum(x * x, axes).sqrt(),
    "ReduceLogSum": lambda x, axes: _sum(x, axes).log(),
    "ReduceLogSumExp": _log_sum_exp,
}
"""Reductions that are computed as floats."""


def _pruned(node: Node, x: Tensor, axes: Axes) -> Tensor:
    """The reduced axes, kept as ones until now, dropped unless they are to be kept."""
    if setting(node, "keepdims"):
        return x
    return x.reshape([n for i, n in enumerate(x.shape) if i not in axes])


@operator(*_EXACT, *_REAL)
def _reduce(node: Node, inputs: Inputs) -> Value:
    x = tensor(node, inputs, 0)
    axes = _axes(node, inputs, x.ndim)
    if node.op in _EXACT:
        # abs must not see the int64 of an uint64 as negative: it has no sign.
        function = _sum if node.op == "ReduceL1" and not x.dtype.is_signed else _EXACT[node.op]
        result = like(function(signed(x), axes), x.dtype)
    elif x.is_floating_point():
        result = _REAL[node.op](x, axes)
    else:
        result = _REAL[node.op](x.to(torch.float64), axes).to(x.dtype)
    return _pruned(node, result, axes)


@operator("ReduceMax", "ReduceMin")
def _reduce_extreme(node: Node, inputs: Inputs) -> Value:
    """Of an empty set: the infinity, or the limit of the integer type, that any value beats."""
    x = tensor(node, inputs, 0)
    axes = _axes(node, inputs, x.ndim)
    largest = node.op == "ReduceMax"
    if any(x.shape[a] == 0 for a in axes):
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        if x.is_floating_point():
            bound: float = -math.inf if largest else math.inf
        elif x.dtype == torch.bool:
            bound = not largest
        else:
            limits = torch.iinfo(x.dtype)
            bound = limits.min if largest else limits.max
        return _pruned(node, torch.full((), bound, dtype=x.dtype).expand(shape), axes)
    function = torch.amax if largest else torch.amin
    result = unordered(function(ordered(x), dim=axes, keepdim=True), x.dtype) if axes else x
    return _pruned(node, result, axes)


@operator("CumSum", "CumProd")
def _cumulate(node: Node, inputs: Inputs) -> Value:
    x, axis = tensor(node, inputs, 0), int(tensor(node, inputs, 1))
    function = torch.cumsum if node.op == "CumSum" else torch.cumprod
    values = signed(x)
    if setting(node, "reverse"):
        values = values.flip(axis)
    result = function(values, dim=axis, dtype=values.dtype)
    if setting(node, "exclusive") and x.shape[axis]:
        start = torch.full_like(result.narrow(axis, 0, 1), 0 if node.op == "CumSum" else 1)
        result = torch.cat([start, result.narrow(axis, 0, x.shape[axis] - 1)], dim=axis)
    if setting(node, "reverse"):
        result = result.flip(axis)
    return like(result, x.dtype)


# Softmaxes and norms.


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """One at the first largest value (a NaN wins), zero elsewhere."""
    first = x.argmax(dim=axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, first, 1)


_SOFTMAXES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "Softmax": torch.softmax,
    "LogSoftmax": torch.log_softmax,
    "Hardmax": _hardmax,
}


@operator(*_SOFTMAXES)
def _softmax(node: Node, inputs: Inputs) -> Value:
    """Along one axis; before opset 13 over all axes from ``axis`` on together."""
    x, axis = tensor(node, inputs, 0), setting(node, "axis")
    if x.numel() == 0:
        return x
    if node.version >= 13:
        return _SOFTMAXES[node.op](x, axis)
    axis = axis + x.ndim if axis < 0 else axis
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    return _SOFTMAXES[node.op](flat, 1).reshape(x.shape)


@operator("LpNormalization")
def _lp_normalization(node: Node, inputs: Inputs) -> Value:
    """x over its norm along an axis; zero where the norm is zero."""
    x, axis, p = tensor(node, inputs, 0), setting(node, "axis"), setting(node, "p")
    if p not in (1, 2):
        raise NotInDouble(f"LpNormalization: p = {p}")
    norm = torch.linalg.vector_norm(x, ord=p, dim=axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@operator("MeanVarianceNormalization")
def _mean_variance(node: Node, inputs: Inputs) -> Value:
    """(x - mean) / (deviation + 1e-9), as the operator's function body has it."""
    x = tensor(node, inputs, 0)
    axes = tuple(setting(node, "axes") or (0, 2, 3))
    centred = x - _mean(x, axes)
    return centred / (_mean(centred * centred, axes).sqrt() + 1e-9)


# Products.


@operator("MatMul")
def _matmul(node: Node, inputs: Inputs) -> Value:
    a, b = tensor(node, inputs, 0), tensor(node, inputs, 1)
    return like(torch.matmul(signed(a), signed(b)), a.dtype)


@operator("Gemm")
def _gemm(node: Node, inputs: Inputs) -> Value:
    """alpha A B + beta C. Before opset 7 C is broadcast only where ``broadcast`` says so.

    The factors are floats: integers are truncated after each product, exact for whole factors.
    """
    a, b, c = tensor(node, inputs, 0), tensor(node, inputs, 1), given(inputs, 2)
    a = a.t() if setting(node, "transA") else a
    b = b.t() if setting(node, "transB") else b
    result = _scaled(torch.matmul(signed(a), signed(b)), setting(node, "alpha"))
    if c is not None:
        result = result + _scaled(signed(c), setting(node, "beta"))
    return like(result, a.dtype)


def _scaled(x: Tensor, factor: float) -> Tensor:
    if x.is_floating_point():
        return x * factor
    if factor == int(factor):
        return x * int(factor)
    return (x.to(torch.float64) * factor).to(x.dtype)


@operator("Einsum")
def _einsum(node: Node, inputs: Inputs) -> Value:
    values = [tensor(node, inputs, i) for i in range(len(inputs))]
    equation = setting(node, "equation").replace(" ", "")
    return like(torch.einsum(equation, *map(signed, values)), values[0].dtype)


# Losses.


def _negative_log_likelihood(
    node: Node, scores: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    """scores [N, C, ...] at target [N, ...]; ``mean`` divides by the sum of the weights used."""
    ignored = node.get("ignore_index")
    target = target.to(torch.int64)
    used = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    place = torch.where(used, target, torch.zeros_like(target))
    weights = torch.ones(scores.shape[1], dtype=scores.dtype) if weight is None else weight
    share = torch.where(used, weights[place], torch.zeros((), dtype=scores.dtype))
    chosen = scores.gather(1, place.unsqueeze(1)).squeeze(1)
    # Not a product: an infinite score that is ignored counts as zero.
    loss = torch.where(used, -chosen * share, torch.zeros_like(chosen))
    reduction = setting(node, "reduction")
    if reduction == "none":
        return loss
    return loss.sum() / share.sum() if reduction == "mean" else loss.sum()


@operator("NegativeLogLikelihoodLoss")
def _nll_loss(node: Node, inputs: Inputs) -> Value:
    scores, target = tensor(node, inputs, 0), tensor(node, inputs, 1)
    return _negative_log_likelihood(node, scores, target, given(inputs, 2))


@operator("SoftmaxCrossEntropyLoss")
def _cross_entropy(node: Node, inputs: Inputs) -> tuple[Value, ...]:
    """The loss and the logarithms of the probabilities."""
    scores = torch.log_softmax(tensor(node, inputs, 0), dim=1)
    target = tensor(node, inputs, 1)
    return _negative_log_likelihood(node, scores, target, given(inputs, 2)), scores
