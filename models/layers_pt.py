"""Layers in PyTorch where its own need a word to be those of the papers, or of TensorFlow."""

from __future__ import annotations

from typing import Any

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
    """``layers.LRN`` over the channels of (batch, channels, height, width)."""
    size = int(layers.LRN["size"])
    return F.local_response_norm(
        x,
        size,
        alpha=layers.LRN["alpha"] * size,  # torch takes the mean over the channels
        beta=layers.LRN["beta"],
        k=layers.LRN["k"],
    )


def dropout(x: Tensor, keep: float, mask: Tensor | None) -> Tensor:
    """``x`` with a share of its elements zero and the others over ``keep``: by mask, or drawn."""
    return F.dropout(x, 1.0 - keep) if mask is None else x * mask
