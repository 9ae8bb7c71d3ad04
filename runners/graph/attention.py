"""Attention of opsets 23 to 25 and RotaryEmbedding of opset 23."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from xbench.runners.graph.network import given, maybe
from xbench.runners.graph.node import Node, Value, operator


@operator("Attention")
def attention(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Y, present_key, present_value and qk_matmul_output, all in ``node.dtype``.

    softmax_precision is a precision of the engine: a reference has more. A query that no key is
    left for gives zeros. Raises ValueError where 3-D inputs come without numbers of heads.
    """
    query, key, value = (given(inputs, i) for i in range(3))
    flat = query.ndim == 3
    if flat:
        heads, kv_heads = node.get("q_num_heads"), node.get("kv_num_heads")
        if not heads or not kv_heads:
            raise ValueError("Attention of 3-D inputs needs q_num_heads and kv_num_heads")
        query, key, value = split(query, heads), split(key, kv_heads), split(value, kv_heads)
    past_key, past_value = maybe(inputs, 4), maybe(inputs, 5)
    if past_key is not None and past_value is not None:
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    repeats = query.shape[1] // key.shape[1]
    every_key, every_value = (x.repeat_interleave(repeats, 1) for x in (key, value))

    scale = node.get("scale")
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    scores = (query * math.sqrt(scale)) @ (every_key * math.sqrt(scale)).transpose(2, 3)
    seen = [scores]
    softcap = node.get("softcap", 0.0)
    if softcap > 0:
        scores = softcap * (scores / softcap).tanh()
    seen.append(scores)
    past = 0 if past_key is None else past_key.shape[2]
    bias = bias_of(node, inputs, scores, past)
    scores = scores + bias
    seen.append(scores)
    none_left = bias.amax(-1, keepdim=True) == -math.inf
    weights = scores.masked_fill(none_left, 0.0).softmax(-1).masked_fill(none_left, 0.0)
    seen.append(weights)

    y = weights @ every_value
    if flat:
        y = y.transpose(1, 2).flatten(2)
    return y, key, value, seen[node.get("qk_matmul_output_mode", 0)]


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, steps, heads * width) as (batch, heads, steps, width)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def bias_of(node: Node, inputs: Sequence[Value], scores: Tensor, past: int) -> Tensor:
    """What is added to the scores: the mask, and -inf where a query may not look.

    (batch or 1, heads or 1, queries, keys). ``past`` keys stand before the first query; with
    nonpad_kv_seqlen the queries are the last of that many keys.
    """
    queries, keys = scores.shape[2:]
    bias = scores.new_zeros(1, 1, queries, keys)
    mask, lengths = maybe(inputs, 3), maybe(inputs, 6)
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
        short = keys - mask.shape[-1]
        bias = bias + torch.nn.functional.pad(mask, (0, short), value=-math.inf)
    key = torch.arange(keys)
    offset = torch.tensor(past).reshape(1, 1, 1, 1)
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        allowed = allowed & (key < lengths)
        offset = offset if maybe(inputs, 4) is not None else lengths - queries
    position = torch.arange(queries)[:, None] + offset
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal", 0):
        allowed = allowed & (key <= position)
    if left >= 0:
        allowed = allowed & (key >= position - left)
    if right >= 0:
        allowed = allowed & (key <= position + right)
    return bias.masked_fill(~allowed, -math.inf)


@operator("RotaryEmbedding")
def rotary_embedding(node: Node, inputs: Sequence[Value]) -> Tensor:
    """RotaryEmbedding of opset 23, in the shape of its input.

    Raises ValueError where a 3-D input comes without the number of heads.
    """
    x, cosines, sines = (given(inputs, i) for i in range(3))
    positions = maybe(inputs, 3)
    heads = node.get("num_heads", 0)
    if x.ndim == 3 and not heads:
        raise ValueError("RotaryEmbedding of a 3-D input needs num_heads")
    states = split(x, heads) if x.ndim == 3 else x
    if positions is not None:
        cosines, sines = cosines[positions], sines[positions]
    cosines, sines = cosines[:, None], sines[:, None]
    width = node.get("rotary_embedding_dim", 0) or states.shape[-1]
    turned, rest = states[..., :width], states[..., width:]
    if node.get("interleaved", 0):
        real, imaginary = turned[..., 0::2], turned[..., 1::2]
    else:
        real, imaginary = turned.chunk(2, -1)
    pair = cosines * real - sines * imaginary, sines * real + cosines * imaginary
    if node.get("interleaved", 0):
        turned = torch.stack(pair, -1).flatten(-2)
    else:
        turned = torch.cat(pair, -1)
    y = torch.cat([turned, rest], -1)
    return y.transpose(1, 2).flatten(2) if x.ndim == 3 else y
