"""Sums of products that neither overflow nor vanish: they carry an exponent of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Scaled = tuple[float, int]
"""(total, exponent) for total * 2 ** exponent."""

_DOT = 1 << 13
"""Elements a BLAS is given at once: from 10,000 on, OpenBLAS starts threads of its own."""
_MAX_EXPONENT = 1000
"""Scales stay within 2 ** +-1000: normal numbers, whose use no flush to zero can spoil.
Squares of the largest float64 and of the smallest subnormal, so scaled, are normal as well."""
_LEAST, _MOST = 2.0**-450, 2.0**450
"""A sum of products between these lost nothing that counts and needs no scale."""


def dot(v: Array, w: Array) -> float:
    """sum(v w) of flat float64 arrays, as they are."""
    if v.size <= _DOT:
        return float(np.dot(v, w))
    whole = v.size - v.size % _DOT
    rows = np.vecdot(v[:whole].reshape(-1, _DOT), w[:whole].reshape(-1, _DOT))
    return float(rows.sum()) + float(np.dot(v[whole:], w[whole:]))


def product(v: Array, w: Array, *, narrow: bool) -> Scaled:
    """sum(v w) of finite values. ``narrow``: none comes near the ends of float64's range."""
    total = dot(v, w)
    if narrow or _LEAST < abs(total) < _MOST:
        return total, 0
    one, first = _normalised(v)
    other, second = (one, first) if w is v else _normalised(w)
    return dot(one, other), first + second


def _normalised(values: Array) -> tuple[Array, int]:
    """``values`` over a power of two near their largest magnitude, and its exponent.

    Exact, but for values too small beside the largest for their squares to count.
    """
    peak = float(np.abs(values).max())
    exponent = math.frexp(peak)[1] if peak else -_MAX_EXPONENT
    exponent = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    return values * math.ldexp(1.0, -exponent), exponent


@dataclass(slots=True)
class ScaledSum:
    """total * 2 ** exponent, as in LAPACK's dlassq (after Blue 1978)."""

    total: float = 0.0
    exponent: int = -2 * _MAX_EXPONENT

    def add(self, value: float, exponent: int) -> None:
        """Add value * 2 ** exponent."""
        if value == 0:
            return  # Its exponent says nothing, and would push out what is small.
        if exponent > self.exponent:
            self.total = math.ldexp(self.total, self.exponent - exponent)
            self.exponent = exponent
        self.total += math.ldexp(value, exponent - self.exponent)

    def rms(self, count: int, peak: float) -> float:
        """sqrt(sum / count) of a sum of squares; by rounding it must not exceed its ``peak``."""
        half = self.exponent // 2
        root = min(math.sqrt(self.total / count), math.ldexp(peak, -half))
        return math.ldexp(root, half)
