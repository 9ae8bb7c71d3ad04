"""What ONNX Runtime's optimisers and tools put into graphs, and ai.onnx.ml's operators on numbers.

Domain com.microsoft throughout, but for SimplifiedLayerNormalization, which ONNX Runtime writes
into ONNX's own. Formulas: ONNX Runtime's docs/ContribOperators.md and the operators' schemas, and
where those are silent what its CPU kernels give. Everything is in ``Node.dtype``; sums of integers
are exact (see quantised.py). What only a GPU's kernel defines raises NotInDouble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from xbench.runners.graph.node import Node, NotInDouble, Value, operator
from xbench.runners.graph.quantised import (
    call,
    columns,
    dequantise,
    dynamic,
    exact,
    kind_of,
    need,
    product,
    quantise,
    rows,
    take,
    wrap,
)

MS, ML = "com.microsoft", "ai.onnx.ml"
LOWEST = torch.finfo(torch.float32).min
"""What hides a later position: the least float32, as ONNX Runtime's kernels add it."""

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def _given(node: Node, *names: str) -> dict[str, Any]:
    """The attributes of these names that the node has."""
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _refuse(node: Node, condition: object, what: str) -> None:
    """Raise NotInDouble where ``condition`` holds."""
    if condition:
        raise NotInDouble(f"{node.op}: {what}")


def _first(x: Tensor) -> Tensor:
    """Channels moved from last to second."""
    return x.movedim(-1, 1)


def _last(x: Tensor) -> Tensor:
    """Channels moved from second to last."""
    return x.movedim(1, -1).contiguous()


# Products.


def _fused_matmul(node: Node, inputs: Sequence[Value]) -> Tensor:
    """alpha * A' @ B': first dimension moved before the last (transBatch), last two swapped."""
    sides = []
    for index, name in enumerate("AB"):
        x = need(inputs, index)
        if node.get(f"transBatch{name}", 0):
            x = x.movedim(0, -2)
        if node.get(f"trans{name}", 0) and x.dim() > 1:
            x = x.transpose(-1, -2)
        sides.append(x)
    return sides[0] @ sides[1] * float(node.get("alpha", 1.0))


@operator("FusedMatMul", "TransposeMatMul", domain=MS)
def fused_matmul(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A matrix product with transposes and a factor."""
    return _fused_matmul(node, inputs)


@operator("FusedMatMulActivation", domain=MS)
def fused_matmul_activation(node: Node, inputs: Sequence[Value]) -> Tensor:
    """FusedMatMul, then an operator of ONNX named by an attribute."""
    return _activate(node, _fused_matmul(node, inputs))


@operator("FusedGemm", domain=MS)
def fused_gemm(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Gemm, then an operator of ONNX named by an attribute."""
    y = call(node, "Gemm", *inputs, **_given(node, "alpha", "beta", "transA", "transB"))
    return _activate(node, y)


def _activate(node: Node, x: Tensor) -> Tensor:
    """The operator ``activation``, whose attributes are called ``activation_<its name>``."""
    name = node.get("activation", "")
    names = ("alpha", "beta", "gamma", "axis")
    held = {key: node.get(f"activation_{key}") for key in names}
    held = {key: value for key, value in held.items() if value is not None}
    return call(node, name, x, **held) if name else x


@operator("GemmFastGelu", domain=MS)
def gemm_fast_gelu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """FastGelu(X @ W + bias)."""
    bias = take(inputs, 2)
    y = need(inputs, 0) @ need(inputs, 1)
    return functional.gelu(y if bias is None else y + bias, approximate="tanh")


@operator("MatMulNBits", domain=MS)
def matmul_nbits(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A @ W' + bias, W of N rows in blocks along K, each with a scale and a zero point.

    Low bits of a byte come first. ``accuracy_level`` lets an engine round A too: here it stays.
    """
    a, scales, zeros, bias = need(inputs, 0), need(inputs, 2), take(inputs, 3), take(inputs, 5)
    count, depth = int(node.get("N")), int(node.get("K"))
    bits, size = int(node.get("bits", 4)), int(node.get("block_size"))
    _refuse(node, bits not in (2, 4, 8), f"{bits} bits")
    _refuse(node, node.get("weight_prepacked", 0), "weights in a layout of one GPU")
    blocks = -(-depth // size)
    levels = unpack(need(inputs, 1).reshape(count, -1), bits)[:, :depth]
    if zeros is None:
        offsets = torch.full((count, blocks), 2 ** (bits - 1))
    elif zeros.dtype == torch.uint8:
        offsets = unpack(zeros.reshape(count, -1), bits)[:, :blocks]
    else:
        offsets = zeros.reshape(count, blocks)
    group = take(inputs, 4)
    of = torch.arange(depth) // size if group is None else group.flatten()[:depth].long()
    weights = (levels.to(a.dtype) - offsets.to(a.dtype)[:, of]) * scales.reshape(count, blocks)[
        :, of
    ]
    y = a @ weights.T
    return y if bias is None else y + bias


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Bytes as their parts of ``bits`` bits along the last dimension, the low ones first."""
    parts = packed.to(torch.int64).unsqueeze(-1) >> torch.arange(0, 8, bits)
    levels: Tensor = parts & (2**bits - 1)
    return levels.flatten(-2)


# Convolutions and pools.


def _conv_activation(node: Node, x: Tensor) -> Tensor:
    """The operator ``activation`` of a fused convolution, its numbers in ``activation_params``."""
    name, numbers = (
        node.get("activation", ""),
        [float(v) for v in node.get("activation_params", ())],
    )
    if not name:
        return x
    if name == "Clip":
        return x.clamp(*numbers)
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    held: dict[str, Any] = dict(zip(names, numbers, strict=False))
    return call(node, name, x, **held)


def _fused_conv(node: Node, x: Tensor, w: Tensor, b: Tensor | None, z: Tensor | None) -> Tensor:
    """Conv, a sum with Z, then an activation, channels first."""
    y = call(node, "Conv", x, w, b, **_given(node, *WINDOW))
    return _conv_activation(node, y if z is None else y + z)


@operator("FusedConv", domain=MS)
def fused_conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Conv, a sum with Z, then an activation."""
    return _fused_conv(node, need(inputs, 0), need(inputs, 1), take(inputs, 2), take(inputs, 3))


@operator("NhwcFusedConv", domain=MS)
def nhwc_fused_conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """FusedConv with X, Z and Y channels last; the weights are as Conv has them."""
    x, w, b, z = need(inputs, 0), need(inputs, 1), take(inputs, 2), take(inputs, 3)
    return _last(_fused_conv(node, _first(x), w, b, None if z is None else _first(z)))


@operator("NhwcConv", domain=MS)
def nhwc_conv(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Conv with X, Y and the weights channels last, which is how the GPU's kernel reads them."""
    x, w = _first(need(inputs, 0)), _first(need(inputs, 1))
    return _last(call(node, "Conv", x, w, take(inputs, 2), **_given(node, *WINDOW)))


@operator("NhwcMaxPool", domain=MS)
def nhwc_max_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """MaxPool of 8-bit integers, channels last."""
    x = need(inputs, 0)
    y = call(node, "MaxPool", _first(x).to(node.dtype), **_given(node, *POOL))
    return _last(y).to(x.dtype)


@operator("ConvTransposeWithDynamicPads", domain=MS)
def conv_transpose_dynamic(node: Node, inputs: Sequence[Value]) -> Tensor:
    """ConvTranspose whose pads are an input."""
    x, w, pads, b = need(inputs, 0), need(inputs, 1), take(inputs, 2), take(inputs, 3)
    names = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides")
    held = _given(node, *names)
    if pads is not None:
        held["pads"] = [int(value) for value in pads.flatten()]
    return call(node, "ConvTranspose", x, w, b, **held)


@operator("GridSample", domain=MS)
def grid_sample(node: Node, inputs: Sequence[Value]) -> Tensor:
    """ONNX's GridSample of opset 16, which took this one's names of modes."""
    held = _given(node, "align_corners", "mode", "padding_mode")
    return call(node, "GridSample", need(inputs, 0), need(inputs, 1), version=16, **held)


# Elementwise.


@operator("Gelu", domain=MS)
def gelu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """0.5 x (1 + erf(x / sqrt 2))."""
    return functional.gelu(need(inputs, 0))


@operator("BiasGelu", domain=MS)
def bias_gelu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Gelu(A + B)."""
    return functional.gelu(need(inputs, 0) + need(inputs, 1))


@operator("FastGelu", domain=MS)
def fast_gelu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) of z = x + bias."""
    x, bias = need(inputs, 0), take(inputs, 1)
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", domain=MS)
def quick_gelu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """x sigmoid(alpha x)."""
    x = need(inputs, 0)
    return x * torch.sigmoid(float(node.get("alpha", 1.702)) * x)


@operator("BiasAdd", domain=MS)
def bias_add(node: Node, inputs: Sequence[Value]) -> Tensor:
    """x + bias + skip."""
    return need(inputs, 0) + need(inputs, 1) + need(inputs, 2)


@operator("BiasDropout", domain=MS)
def bias_dropout(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """data + bias + residual and a mask of ones: dropout drops nothing outside training."""
    residual, training = take(inputs, 2), take(inputs, 4)
    _refuse(node, training is not None and bool(training), "training draws at random")
    y = need(inputs, 0) + need(inputs, 1)
    y = y if residual is None else y + residual
    return y, torch.ones_like(y, dtype=torch.bool)


@operator("BiasSoftmax", domain=MS)
def bias_softmax(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Softmax of data + bias over all dimensions from ``axis`` on.

    The bias has the rank of the data, ones where it repeats, or leaves out leading dimensions.
    """
    x = need(inputs, 0) + need(inputs, 1)
    axis = int(node.get("axis", 1)) % x.dim()
    return torch.softmax(x.flatten(axis), -1).reshape(x.shape)


# Shapes and sets.


@operator("ExpandDims", domain=MS)
def expand_dims(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A dimension of one at an axis that is an input."""
    return need(inputs, 0).unsqueeze(int(need(inputs, 1)))


@operator("Pad", domain=MS)
def pad(node: Node, inputs: Sequence[Value]) -> Tensor:
    """ONNX's Pad; the pads may be a row of a matrix and the value a vector of one."""
    value = take(inputs, 2)
    value = None if value is None else value.reshape(())
    x, pads = need(inputs, 0), need(inputs, 1).flatten()
    return call(node, "Pad", x, pads, value, version=13, **_given(node, "mode"))


@operator("Trilu", domain=MS)
def trilu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The upper or lower triangle of matrices."""
    diagonal = take(inputs, 1)
    shift = 0 if diagonal is None else int(diagonal)
    x = need(inputs, 0)
    return torch.triu(x, shift) if node.get("upper", 1) else torch.tril(x, shift)


@operator("Unique", domain=MS)
def unique(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Values of a vector in the order they first occur, the index of each, and their counts."""
    x = need(inputs, 0)
    values, index, counts = torch.unique(x, return_inverse=True, return_counts=True)
    at = torch.arange(x.numel())
    first = torch.full(values.shape, x.numel()).scatter_reduce(0, index, at, "amin")
    order = torch.argsort(first)
    return values[order], torch.argsort(order)[index], counts[order]


@operator("Inverse", domain=MS)
def inverse(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The inverse of square matrices."""
    return torch.inverse(need(inputs, 0))


@operator("CDist", domain=MS)
def cdist(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Distances between the rows of two matrices, from their differences."""
    metric = node.get("metric", "sqeuclidean")
    _refuse(node, metric not in ("euclidean", "sqeuclidean"), f"metric {metric}")
    difference: Tensor = need(inputs, 0)[:, None] - need(inputs, 1)[None]
    squares = difference.square().sum(-1)
    return squares.sqrt() if metric == "euclidean" else squares


# Normalisation.


def _layer_norm(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Over the last dimension: normalised, mean, 1 / sqrt(variance + epsilon)."""
    mean = x.mean(-1, keepdim=True)
    inverse_std = (x.var(-1, keepdim=True, correction=0) + epsilon).rsqrt()
    return (x - mean) * inverse_std, mean, inverse_std


@operator("SimplifiedLayerNormalization")
def simplified_layer_norm(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """x / RMS(x) * scale over the dimensions from ``axis`` on, and 1 / RMS."""
    x = need(inputs, 0)
    dims = list(range(int(node.get("axis", -1)) % x.dim(), x.dim()))
    epsilon = float(node.get("epsilon", 1e-5))
    inverse_rms = (x.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return x * inverse_rms * need(inputs, 1), inverse_rms


@operator("SkipLayerNormalization", domain=MS)
def skip_layer_norm(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Layer normalisation of input + skip + bias: y, mean, 1 / deviation, the sum."""
    beta, bias = take(inputs, 3), take(inputs, 4)
    total = need(inputs, 0) + need(inputs, 1)
    total = total if bias is None else total + bias
    y, mean, inverse_std = _layer_norm(total, float(node.get("epsilon", 1e-12)))
    y = y * need(inputs, 2)
    return y if beta is None else y + beta, mean, inverse_std, total


@operator("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_norm(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """x / RMS(x) * gamma of x = input + skip + bias: y, nothing, 1 / RMS, the sum."""
    bias = take(inputs, 3)
    total = need(inputs, 0) + need(inputs, 1)
    total = total if bias is None else total + bias
    epsilon = float(node.get("epsilon", 1e-12))
    inverse_rms = (total.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return total * inverse_rms * need(inputs, 2), None, inverse_rms, total


@operator("EmbedLayerNormalization", domain=MS)
def embed_layer_norm(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Layer normalisation of summed embeddings: y, words per row of the mask, the sum.

    Without a mask the count is zero, as ONNX Runtime's kernel has it.
    """
    ids, segments, mask, positions = (take(inputs, i) for i in (0, 1, 7, 8))
    assert ids is not None
    at = torch.arange(ids.shape[1])[None] if positions is None else positions.long()
    total = need(inputs, 2)[ids.long()] + need(inputs, 3)[at]
    if segments is not None:
        total = total + need(inputs, 4)[segments.long()]
    y, _, _ = _layer_norm(total, float(node.get("epsilon", 1e-12)))
    count = torch.zeros(len(ids)) if mask is None else (mask == 1).sum(-1)
    return y * need(inputs, 5) + need(inputs, 6), count.to(torch.int32), total


# Attention. B batch, N heads, S queries, T keys, H size of a head.


def _heads(x: Tensor, count: int) -> Tensor:
    """[B, S, N * H] as [B, N, S, H]."""
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | float
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k' + added) v as [B, S, N * H], and the logits [B, N, S, T]."""
    logits = q @ k.transpose(-1, -2) * scale + added
    return (torch.softmax(logits, -1) @ v).transpose(1, 2).flatten(2), logits


def _hidden(
    node: Node, mask: Tensor | None, batch: int, queries: int, keys: int, past: int
) -> Tensor:
    """What is added to logits to hide keys: [B or 1, 1, S or 1, T].

    A mask of one dimension holds lengths, or ends and then starts; of two or three, zeros where
    hidden. ``unidirectional`` hides later positions. Raises NotInDouble for other masks.
    """
    added = torch.zeros(1, 1, 1, keys, dtype=node.dtype)
    at = torch.arange(keys)
    kept: Tensor | None = None
    if mask is not None and mask.dim() == 1:
        kept = at < mask[:batch, None]
        if len(mask) == 2 * batch:
            kept = kept & (at >= mask[batch:, None])
        _refuse(node, len(mask) not in (batch, 2 * batch, 3 * batch + 2), "a mask of that shape")
        kept = kept[:, None, None]
    elif mask is not None and mask.shape[-1] != 1:  # A single column means no mask.
        _refuse(node, mask.dim() > 3 or mask.shape[-1] != keys, "a mask of that shape")
        kept = (mask != 0)[:, None, None] if mask.dim() == 2 else (mask != 0)[:, None]
    if kept is not None:
        filtered = float(node.get("mask_filter_value", -10_000.0))
        added = added.masked_fill(~kept, filtered)
    if node.get("unidirectional", 0):
        later = at > past + torch.arange(queries)[:, None]
        added = added.masked_fill(later, LOWEST)
    return added


def _scale(node: Node, size: int) -> float:
    """The attribute, 1 / sqrt(head size) where it is absent or zero."""
    return float(node.get("scale", 0.0)) or 1 / math.sqrt(size)


def _self_attention(
    node: Node, projected: Sequence[Tensor], mask: Tensor | None, past: Tensor | None, bias: Value
) -> tuple[Tensor, ...]:
    """Attention from its projections [B, S, N * H]: the output and the state [2, B, N, T, H]."""
    _refuse(node, node.get("past_present_share_buffer", 0), "a shared buffer of past and present")
    _refuse(node, node.get("do_rotary", 0), "rotation inside the operator")
    q, k, v = (_heads(x, int(node.get("num_heads"))) for x in projected)
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    before = 0 if past is None else past.shape[3]
    added = _hidden(node, mask, len(q), q.shape[2], k.shape[2], before)
    added = added + bias if isinstance(bias, Tensor) else added
    y, _ = _attend(q, k, v, _scale(node, q.shape[-1]), added)
    # Keys and values of different sizes have no common state.
    return (y, torch.stack([k, v])) if k.shape == v.shape else (y,)


@operator("Attention", domain=MS)
def attention(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Self-attention with its projection: the output and the state of keys and values."""
    x, weights, bias = need(inputs, 0), need(inputs, 1), take(inputs, 2)
    projected = x @ weights if bias is None else x @ weights + bias
    sizes = [int(size) for size in node.get("qkv_hidden_sizes") or [weights.shape[1] // 3] * 3]
    parts = torch.split(projected, sizes, -1)
    return _self_attention(node, parts, take(inputs, 3), take(inputs, 4), take(inputs, 5))


@operator("QAttention", domain=MS)
def qattention(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Attention whose projection is a product of 8-bit integers."""
    x, weights, bias, mask = need(inputs, 0), need(inputs, 1), need(inputs, 2), take(inputs, 5)
    total = product(node, x, take(inputs, 6), weights, take(inputs, 7)).to(node.dtype)
    projected = total * (need(inputs, 3).reshape(()) * columns(need(inputs, 4))) + bias
    return _self_attention(node, projected.chunk(3, -1), mask, take(inputs, 8), None)


def _multi_head(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, N, S, H], biases added."""
    query, key, value, bias = need(inputs, 0), take(inputs, 1), take(inputs, 2), take(inputs, 3)
    count = int(node.get("num_heads"))
    if query.dim() == 5:
        q, k, v = (query[:, :, :, i].transpose(1, 2) for i in range(3))
    elif key is not None and key.dim() == 5:
        q = _heads(query, count)
        k, v = (key[:, :, :, i].transpose(1, 2) for i in range(2))
    else:
        assert key is not None
        assert value is not None
        q = _heads(query, count)
        k = key if key.dim() == 4 else _heads(key, count)
        v = value if value.dim() == 4 else _heads(value, count)
    whole = key is not None and key.dim() == 4
    if bias is not None:
        sizes = [count * q.shape[-1], count * q.shape[-1], count * v.shape[-1]]
        parts = [part.reshape(count, 1, -1) for part in torch.split(bias, sizes)]
        q = q + parts[0]
        if not whole:
            k, v = k + parts[1], v + parts[2]
    return q, k, v


@operator("MultiHeadAttention", domain=MS)
def multi_head_attention(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Attention from its projections: output, keys and values with their past, logits.

    Keys of four dimensions are another's state as a whole: no bias is added to them.
    """
    _refuse(node, take(inputs, 8) is not None or take(inputs, 9) is not None, "a shared buffer")
    q, k, v = _multi_head(node, inputs)
    past_key, past_value = take(inputs, 6), take(inputs, 7)
    before = 0
    if past_key is not None and past_value is not None:
        before = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    added = _hidden(node, take(inputs, 4), len(q), q.shape[2], k.shape[2], before)
    bias = take(inputs, 5)
    added = added if bias is None else added + bias
    y, logits = _attend(q, k, v, _scale(node, q.shape[-1]), added)
    return y, k, v, logits


def rotate(x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary positions: pairs of the first numbers of each head turned by their position's angle.

    ``x`` [B, N, S, H], ``at`` [B, S], ``cos`` and ``sin`` [positions, half of what is turned].
    """
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    c, s = cos[at][:, None], sin[at][:, None]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (a * c - b * s, a * s + b * c)
    done = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([done, rest], -1)


@operator("RotaryEmbedding", domain=MS)
def rotary_embedding(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Rotary positions of [B, S, N * H] or [B, N, S, H]; one position is that of the first."""
    x, at, cos, sin = (need(inputs, i) for i in range(4))
    _refuse(node, node.get("is_packed_batching", 0), "packed batches")
    _refuse(node, float(node.get("scale", 1.0)) != 1.0, "a scale, which kernels leave out")
    count = int(node.get("num_heads", 0))
    size = x.shape[-1] // count if count else 2 * cos.shape[-1]
    heads = x if x.dim() == 4 else _heads(x, x.shape[-1] // size)
    if at.dim() == 1:
        at = at[:1] + torch.arange(heads.shape[2]).expand(len(x), -1)
    y = rotate(heads, at.long(), cos, sin, interleaved=bool(node.get("interleaved", 0)))
    return y if x.dim() == 4 else y.transpose(1, 2).flatten(2)


@operator("GroupQueryAttention", domain=MS)
def group_query_attention(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Causal attention whose heads share keys and values in groups: output, keys, values.

    ``seqlens_k`` is one less than what each sequence holds with its new tokens; a first prompt may
    be padded at its end, where the output means nothing. A state of quantised numbers or of a
    window only, and normalised queries, are left out. Raises NotInDouble.
    """
    quant = {node.get(name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    _refuse(node, quant != {"NONE"}, "a quantised state")
    _refuse(node, node.get("sliding_window_cache", 0), "a state of a window")
    _refuse(node, take(inputs, 14) is not None, "normalised queries and keys")
    _refuse(node, node.get("qk_output", 0) and node.outputs > 3, "the products as an output")
    count, groups = int(node.get("num_heads")), int(node.get("kv_num_heads"))
    query, key, value = need(inputs, 0), take(inputs, 1), take(inputs, 2)
    if key is None or value is None:
        size = query.shape[-1] // (count + 2 * groups)
        sizes = [count * size, groups * size, groups * size]
        query, key, value = torch.split(query, sizes, -1)
    q, k, v = _heads(query, count), _heads(key, groups), _heads(value, groups)
    lengths = need(inputs, 5).flatten().long() + 1
    total, new = int(need(inputs, 6)), q.shape[2]
    before = torch.zeros_like(lengths) if new == total else lengths - new
    at = before[:, None] + torch.arange(new)
    if node.get("do_rotary", 0):
        given, turn = take(inputs, 9), bool(node.get("rotary_interleaved", 0))
        where = (at if given is None else given.long()).clamp(max=len(need(inputs, 7)) - 1)
        cos, sin = need(inputs, 7), need(inputs, 8)
        q = rotate(q, where, cos, sin, interleaved=turn)
        k = rotate(k, where, cos, sin, interleaved=turn)
    k, v = _extend(take(inputs, 3), k, before, total), _extend(take(inputs, 4), v, before, total)
    shared = [x.repeat_interleave(count // groups, 1) for x in (k, v)]
    logits = q @ shared[0].transpose(-1, -2) * _scale(node, q.shape[-1])
    cap = float(node.get("softcap", 0.0))
    logits = cap * torch.tanh(logits / cap) if cap > 0 else logits
    bias = take(inputs, 10)
    if bias is not None:
        logits = logits + functional.pad(bias, (0, k.shape[2] - bias.shape[-1]))
    seen = _seen(node, at, lengths, k.shape[2])
    logits = logits.masked_fill(~seen[:, None], -math.inf)
    sink = take(inputs, 11)
    if sink is None and int(node.get("smooth_softmax", -1)) == 1:
        sink = torch.zeros(count, dtype=q.dtype)
    if sink is not None:
        column = sink.reshape(1, -1, 1, 1).expand(len(q), -1, new, 1)
        logits = torch.cat([logits, column], -1)
    weights = torch.softmax(logits, -1)[..., : k.shape[2]]
    return (weights @ shared[1]).transpose(1, 2).flatten(2), k, v


def _extend(past: Tensor | None, x: Tensor, before: Tensor, total: int) -> Tensor:
    """The state: what each sequence held, then its new tokens, then zeros.

    ``x`` [B, N, S, H], ``before`` the tokens held. As long as the past or ``total``.
    """
    length = max(total, 0 if past is None else past.shape[2])
    state = x.new_zeros(x.shape[0], x.shape[1], length, x.shape[3])
    for row, held in enumerate(before.tolist()):
        if past is not None:
            state[row, :, :held] = past[row, :, :held]
        state[row, :, held : held + x.shape[2]] = x[row]
    return state


def _seen(node: Node, at: Tensor, lengths: Tensor, keys: int) -> Tensor:
    """Which keys [B, S, T] each query sees: up to its own position, and within the window."""
    key = torch.arange(keys)
    if not node.get("causal", 1):
        return (key < lengths[:, None, None]).expand(-1, at.shape[1], -1)
    seen = key <= at[..., None]
    window = int(node.get("local_window_size", -1))
    return seen & (key > at[..., None] - window) if window > 0 else seen


# Integers.


@operator("MatMulInteger16", domain=MS)
def matmul_integer16(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The product of 16-bit matrices in 32 bits, unsigned where both are."""
    a, b = need(inputs, 0), need(inputs, 1)
    exact(node, a.double(), b.double(), a.shape[-1])
    unsigned = a.dtype == b.dtype == torch.uint16
    return wrap(a.double() @ b.double(), torch.uint32 if unsigned else torch.int32)


@operator("MatMulIntegerToFloat", domain=MS)
def matmul_integer_to_float(node: Node, inputs: Sequence[Value]) -> Tensor:
    """The product of 8-bit matrices as floats, the right one's scale per tensor or column."""
    a, b, a_scale, b_scale = (need(inputs, i) for i in range(4))
    total = product(node, a, take(inputs, 4), b, take(inputs, 5)).to(node.dtype)
    bias = take(inputs, 6)
    y = total * (rows(a_scale) * columns(b_scale))
    return y if bias is None else y + bias


@operator("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A rounded to uint8 over its own range, times 8-bit B, as floats."""
    a, scale, zero = dynamic(need(inputs, 0))
    b, b_scale, bias = need(inputs, 1), need(inputs, 2), take(inputs, 4)
    total = product(node, a, zero, b, take(inputs, 3)).to(node.dtype)
    y = total * (scale.to(node.dtype) * columns(b_scale))
    return y if bias is None else y + bias


def _read(inputs: Sequence[Value], first: int) -> Tensor:
    """Inputs ``first`` on: a quantised tensor, its scale and its zero point, as float64."""
    zero = take(inputs, first + 2)
    scale = need(inputs, first + 1).reshape(())
    return dequantise(need(inputs, first), scale, None if zero is None else zero.reshape(()))


def _write(node: Node, y: Tensor, inputs: Sequence[Value], first: int, like: int = 0) -> Tensor:
    """``y`` quantised by the scale and zero point at ``first``, in the type of input ``like``."""
    zero = take(inputs, first + 1)
    kind = kind_of(node, like, need(inputs, like))
    zero = None if zero is None else zero.reshape(())
    return quantise(y, need(inputs, first).reshape(()), zero, kind)


@operator("QLinearAdd", domain=MS)
def qlinear_add(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A sum of quantised tensors."""
    return _write(node, _read(inputs, 0) + _read(inputs, 3), inputs, 6)


@operator("QLinearMul", domain=MS)
def qlinear_mul(node: Node, inputs: Sequence[Value]) -> Tensor:
    """A product, element by element, of quantised tensors."""
    return _write(node, _read(inputs, 0) * _read(inputs, 3), inputs, 6)


@operator("QLinearSigmoid", domain=MS)
def qlinear_sigmoid(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Sigmoid of a quantised tensor."""
    return _write(node, torch.sigmoid(_read(inputs, 0)), inputs, 3)


@operator("QLinearLeakyRelu", domain=MS)
def qlinear_leaky_relu(node: Node, inputs: Sequence[Value]) -> Tensor:
    """LeakyRelu of a quantised tensor."""
    slope = float(node.get("alpha", 0.01))
    return _write(node, functional.leaky_relu(_read(inputs, 0), slope), inputs, 3)


@operator("QLinearSoftmax", domain=MS)
def qlinear_softmax(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Softmax of a quantised tensor, as its ``opset`` has it."""
    opset, axis = int(node.get("opset")), int(node.get("axis", -1))
    y = call(_double(node), "Softmax", _read(inputs, 0), version=opset, axis=axis)
    return _write(node, y, inputs, 3)


def _double(node: Node) -> Node:
    """The node with floats in float64, which is what quantised tensors are read as."""
    return replace(node, dtype=torch.float64)


@operator("QLinearAveragePool", domain=MS)
def qlinear_average_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """AveragePool of a quantised tensor; padding counts as zero, if at all."""
    x, last = _read(inputs, 0), bool(node.get("channels_last", 0))
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    held = _given(node, *names)
    y = call(_double(node), "AveragePool", _first(x) if last else x, **held)
    return _write(node, _last(y) if last else y, inputs, 3)


@operator("QLinearGlobalAveragePool", domain=MS)
def qlinear_global_average_pool(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Means over the positions of a quantised tensor."""
    x = _read(inputs, 0)
    start = 1 if node.get("channels_last", 0) else 2
    y = x.mean(list(range(start, start + x.dim() - 2)), keepdim=True)
    return _write(node, y, inputs, 3)


@operator("QLinearReduceMean", domain=MS)
def qlinear_reduce_mean(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Means over axes of a quantised tensor."""
    x = _read(inputs, 0)
    axes = [int(axis) for axis in node.get("axes") or range(x.dim())]
    return _write(node, x.mean(axes, keepdim=bool(node.get("keepdims", 1))), inputs, 3)


@operator("QLinearConcat", domain=MS)
def qlinear_concat(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Quantised tensors, each with its own scale, one after another in the output's."""
    parts = [_read(inputs, first) for first in range(2, len(inputs), 3)]
    return _write(node, torch.cat(parts, int(node.get("axis"))), inputs, 0, like=1)


@operator("QLinearWhere", domain=MS)
def qlinear_where(node: Node, inputs: Sequence[Value]) -> Tensor:
    """One of two quantised tensors by a condition, in the output's scale."""
    y = torch.where(need(inputs, 0), _read(inputs, 1), _read(inputs, 4))
    return _write(node, y, inputs, 7, like=1)


@operator("QGemm", domain=MS)
def qgemm(node: Node, inputs: Sequence[Value]) -> Tensor:
    """alpha * (A' @ B' + C) of 8-bit integers; floats where no output scale is given."""
    a, a_scale, a_zero, b, b_scale, b_zero = (need(inputs, i) for i in range(6))
    c, y_scale, y_zero = take(inputs, 6), take(inputs, 7), take(inputs, 8)
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    total = product(node, a, a_zero, b, b_zero)
    if c is not None:
        total = wrap(total.double() + c.double())
    scale = float(node.get("alpha", 1.0)) * a_scale.double().reshape(()) * columns(b_scale).double()
    y = total.double() * scale
    if y_scale is None or y_zero is None:
        return y.to(node.dtype)
    return quantise(y, y_scale.reshape(()), y_zero.reshape(()), kind_of(node, 8, y_zero))


# ai.onnx.ml, as far as it is numbers.


@operator("Scaler", domain=ML)
def scaler(node: Node, inputs: Sequence[Value]) -> Tensor:
    """(x - offset) * scale, per feature."""
    offset, scale = (torch.tensor(node.get(name), dtype=node.dtype) for name in ("offset", "scale"))
    return (need(inputs, 0).to(node.dtype) - offset) * scale


@operator("Normalizer", domain=ML)
def normalizer(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Rows by their maximum (with its sign), sum of magnitudes or length; zero divides nothing."""
    x = need(inputs, 0).to(node.dtype)
    norm = node.get("norm", "MAX")
    if norm == "MAX":
        by = x.amax(-1, keepdim=True)
    elif norm == "L1":
        by = x.abs().sum(-1, keepdim=True)
    else:
        by = x.square().sum(-1, keepdim=True).sqrt()
    return torch.where(by == 0, x, x / by)


@operator("LinearRegressor", domain=ML)
def linear_regressor(node: Node, inputs: Sequence[Value]) -> Tensor:
    """x @ coefficients' + intercepts, then ``post_transform``."""
    targets = int(node.get("targets", 1))
    coefficients = torch.tensor(node.get("coefficients"), dtype=node.dtype).reshape(targets, -1)
    y = need(inputs, 0).to(node.dtype) @ coefficients.T
    if node.get("intercepts"):
        y = y + torch.tensor(node.get("intercepts"), dtype=node.dtype)
    then = node.get("post_transform", "NONE")
    _refuse(node, then not in ("NONE", "LOGISTIC", "SOFTMAX"), f"post_transform {then}")
    if then == "LOGISTIC":
        return torch.sigmoid(y)
    return torch.softmax(y, -1) if then == "SOFTMAX" else y


@operator("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Chosen indices of the last axis; a vector gives a matrix of one row."""
    x, index = need(inputs, 0), need(inputs, 1).flatten().long()
    return (x[None] if x.dim() == 1 else x)[..., index]


@operator("FeatureVectorizer", domain=ML)
def feature_vectorizer(node: Node, inputs: Sequence[Value]) -> Tensor:
    """Inputs side by side, each cut or filled with zeros to its entry of ``inputdimensions``."""
    parts = []
    for index, size in enumerate(node.get("inputdimensions")):
        x = need(inputs, index).to(node.dtype)
        x = x[None] if x.dim() == 1 else x.flatten(1)
        parts.append(functional.pad(x, (0, int(size) - x.shape[1])))
    return torch.cat(parts, 1)


@operator("Binarizer", domain=ML)
def binarizer(node: Node, inputs: Sequence[Value]) -> Tensor:
    """One where above the threshold, else zero, in the input's type."""
    x = need(inputs, 0)
    return (x > float(node.get("threshold", 0.0))).to(x.dtype)
