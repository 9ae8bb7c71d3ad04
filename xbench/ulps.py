"""Floating point types as ordered integers: numpy's, and those of ``ml_dtypes``.

Neighbouring values of a type are consecutive integers, both zeros are 0, and what lies beyond the
largest finite value (Inf, or the NaN that a type without Inf rounds to) is one more than that
(ordered integers: Dawson, "Comparing Floating Point Numbers", 2012).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NUMPY = ("float16", "float32", "float64")
PRECISION = {
    "float64": 52, "float32": 23, "float16": 10, "bfloat16": 7,
    "float8_e3m4": 4, "float8_e4m3": 3, "float8_e4m3fn": 3, "float8_e4m3fnuz": 3,
    "float8_e4m3b11fnuz": 3, "float8_e5m2": 2, "float8_e5m2fnuz": 2, "float8_e8m0fnu": 0,
    "float6_e2m3fn": 3, "float6_e3m2fn": 2, "float4_e2m1fn": 1,
}  # fmt: skip
"""Bits of the mantissa that are stored, by name of the type."""
NARROW = {"int1": "i", "int2": "i", "int4": "i", "uint1": "u", "uint2": "u", "uint4": "u"}
"""Integers of ``ml_dtypes``, which numpy takes for raw memory."""

_LEFT = {"float64": 1 << 52, "float32": 1 << 23, "float16": 1 << 10, "bfloat16": 1 << 7}
"""Codes above that of Inf, itself among them, in one sign."""


@functools.cache
def kind(dtype: np.dtype[Any]) -> str:
    """``f``, ``i``, ``u`` or ``b``; empty for what is no real number of a known format."""
    if dtype.name in PRECISION:
        return "f"
    return NARROW.get(dtype.name) or (dtype.kind if dtype.kind in "iub" else "")


@functools.cache
def less_precise(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the fewer bits of mantissa; of equally many the one of fewer bytes."""
    return min(one, other, key=lambda dtype: (PRECISION[dtype.name], dtype.itemsize))


@functools.cache
def smallest_normal(dtype: np.dtype[Any]) -> float:
    """Every value of a smaller magnitude is subnormal or zero."""
    if dtype.name in NUMPY:
        return float(np.finfo(dtype).smallest_normal)
    # An array of such a type is there only because the module is.
    return float(sys.modules["ml_dtypes"].finfo(dtype).smallest_normal)


def farthest(x: Array, y: Array) -> int:
    """The largest distance, in representable steps of the less precise type of the two.

    ``x`` and ``y``: flat, not empty, in native byte order, finite.
    """
    narrow = less_precise(x.dtype, y.dtype)
    if narrow.itemsize == 1:
        return int(np.abs(_ranks(x, narrow) - _ranks(y, narrow)).max())
    bits = f"i{narrow.itemsize}"
    one, other = (rounded(values, narrow).view(bits) for values in (x, y))
    # Of one sign, the difference of the bits is that of the magnitudes and cannot overflow. Of two,
    # it wraps to no less than what is left above the bits of Inf.
    steps = np.subtract(one, other)
    most = max(int(steps.max()), -int(steps.min()))
    if most < _LEFT[narrow.name]:
        return most
    apart = np.bitwise_xor(one, other) < 0
    steps[apart] = 0
    most = max(int(steps.max()), -int(steps.min()))
    if apart.any():
        # The sum of both magnitudes, by way of zero.
        magnitude = np.array(np.iinfo(bits).max, bits)
        sides = [(values[apart] & magnitude).astype(np.uint64) for values in (one, other)]
        most = max(most, int((sides[0] + sides[1]).max()))
    return most


def rounded(values: Array, narrow: np.dtype[Any]) -> Array:
    """``values`` in ``narrow``; by way of float32, exact, where no cast leads from type to type."""
    if values.dtype == narrow:
        return values
    if values.dtype.name not in NUMPY:
        values = values.astype(np.float32)
    return values.astype(narrow)


def _ranks(values: Array, narrow: np.dtype[Any]) -> Array:
    """Ordered integers of ``values`` in a type of 8 bits or fewer; they are rounded to it."""
    table, beyond = _table(narrow)
    here = rounded(values, narrow)
    ranks = table[here.view(np.uint8)]
    if values.dtype != narrow:
        lost = ~np.isfinite(here.astype(np.float32))
        if lost.any():
            ranks = np.where(lost, np.sign(values.astype(np.float64)) * beyond, ranks)
    return ranks


@functools.cache
def _table(dtype: np.dtype[Any]) -> tuple[Array, int]:
    """The ordered integer of each of 256 codes (int64, NaN as 0), and that of what is beyond."""
    values = np.arange(256).astype(np.uint8).view(dtype).astype(np.float64)
    finite = np.isfinite(values)
    magnitudes = np.unique(np.abs(values[finite & (values != 0)]))
    beyond = magnitudes.size + 1
    # Infinity is above all magnitudes, hence ``beyond`` by itself.
    ranks = np.where(values == 0, 0, np.searchsorted(magnitudes, np.abs(values)) + 1)
    return np.where(np.isnan(values), 0, np.sign(values) * ranks).astype(np.int64), beyond
