"""Optimizers for PyTorch: torch.optim, whose formulas are those of ``xbench.spec``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from xbench.spec import SGD, Adam, ClipNorm, Optimizer


def clip(limit: ClipNorm, parameters: Sequence[Tensor]) -> None:
    """Clip the gradients of ``parameters`` in place, which PyTorch's own does with limit / (norm +
    1e-6), and all together only.
    """
    gradients = [item.grad for item in parameters if item.grad is not None]
    dtype = gradients[0].dtype
    # The sum of squares is soon beyond what a narrow type holds.
    wide = torch.promote_types(dtype, torch.float32)
    norms = list(torch._foreach_norm(gradients, dtype=wide))
    if not limit.per_tensor:
        norms = [torch.linalg.vector_norm(torch.stack(norms))] * len(norms)
    factors = [(limit.limit / norm).clamp_max(1.0).to(dtype) for norm in norms]
    torch._foreach_mul_(gradients, factors)


def make(optimizer: Optimizer, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """The optimizer for some parameters, in torch's one kernel for all where it has one.

    In torch 2.13.0 the one for SGD is wrong on the CPU in types narrower than float32: in
    vectors longer than a register, parameters are off by their own size. In such types
    torch's default is used, on every device.
    """
    if isinstance(optimizer, Adam):
        return torch.optim.Adam(
            parameters,
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
        )
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(
            parameters,
            lr=optimizer.lr,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            weight_decay=optimizer.weight_decay,
            fused=parameters[0].dtype.itemsize >= 4,
        )
    return torch.optim.RMSprop(
        parameters,
        lr=optimizer.lr,
        alpha=optimizer.alpha,
        eps=optimizer.eps,
        momentum=optimizer.momentum,
        centered=optimizer.centered,
    )
