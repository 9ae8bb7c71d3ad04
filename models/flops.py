"""Floating-point operations of the usual layers, for ``ModelSpec.flops``: of one item.

A multiplication and an addition are two. Only convolutions and matrix products are counted: biases,
activations, pools and normalisations are not, a local response normalisation included, although
PyTorch's definition of it adds neighbouring channels by a convolution.
"""

from __future__ import annotations


def dense_flops(out: int, inputs: int) -> int:
    """A matrix of (out, inputs) times one vector."""
    return 2 * out * inputs


def conv_flops(out: int, inputs: int, size: int, places: int) -> int:
    """A square convolution of ``size`` that has ``places`` places of output.

    ``inputs`` are the channels that each output sees: those of one group.
    """
    return places * dense_flops(out, inputs * size * size)
