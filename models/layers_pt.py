"""Layers in PyTorch where its own need a word to be those of the papers, or of TensorFlow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models import layers


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's own, without its counter of batches, which nothing reads.

    In training it normalises by the biased variance and keeps the unbiased one, as TensorFlow's
    fused kernel does.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=layers.BATCH_NORM_EPS, momentum=layers.BATCH_NORM_MOMENTUM)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        # PyTorch's own adds the counter to a state that has no version, and then misses it.
        nn.Module._load_from_state_dict(self, *arguments, **options)


def local_response_norm(x: Tensor) -> Tensor:
    """``layers.LRN`` over the channels of (batch, channels, height, width).

    The sums over neighbouring channels are a 1x1 convolution by a band of ones, twice as quick as
    the average pool that ``F.local_response_norm`` makes, also in ONNX Runtime.
    """
    channels = torch.arange(x.shape[1], device=x.device)
    near = (channels[:, None] - channels).abs() <= int(layers.LRN["size"]) // 2
    sums = F.conv2d(x.square(), near.to(x.dtype)[:, :, None, None])
    root = torch.rsqrt(layers.LRN["k"] + layers.LRN["alpha"] * sums)
    return x * (root * root.sqrt())  # the power -3/4 is two roots


def dropout(x: Tensor, keep: float, mask: Tensor | None) -> Tensor:
    """``x`` with a share of its elements zero and the others over ``keep``: by mask, or drawn."""
    return F.dropout(x, 1.0 - keep) if mask is None else x * mask
