"""The comparison core: how far a tensor is from its reference, whatever made either of them.

With ``a`` the actual tensor, ``b`` the reference and d = |a - b|, over the elements that are
finite in both, in float64:

==============  ===============================================================================
bitwise_equal   same dtype and bit pattern; +0 and -0 differ, two NaNs do not (payloads aside)
differing       elements of different values: NaN equals NaN and +0 equals -0
subnormal_only  some differ, and each of those is subnormal or zero on both sides, in the less
                precise dtype of the two
rms             sqrt(mean(d^2))
max_abs         max(d)
p99_abs         smallest d that 99 % of the elements do not exceed (Hyndman & Fan 1996, type 1);
                exact up to ``EXACT`` elements, else at most 1/128 below it (``readings.Bins``)
max_rel         max(d / max(|b|, floor)), floor = 1e-3 * RMS(b): without one, elements that are
                zero but for rounding decide
scaled          max(d) / max|b|: relative error in the max norm (Higham 2002, section 6.2)
max_ulp         largest number of representable steps from a to b in the less precise dtype of
                the two, to which the other is rounded (``ulps``); +0 to -0 is 0, the largest
                finite to Inf is 1
cosine          sum(a b) / sqrt(sum(a^2) sum(b^2))
snr_db          10 log10(sum(b^2) / sum(d^2))
reference_rms   sqrt(mean(b^2))
histogram       elements by d / RMS(b), as ``HISTOGRAM`` says; the edges are exact up to
                ``EXACT`` elements, else at most 1/128 above
top1            share of rows along the last axis whose largest element is at the same place;
                a row whose two places hold equal values on either side (a tie) counts as such
==============  ===============================================================================

Every number is finite. A value that would be infinite or 0/0 is None: ``snr_db`` and ``cosine``
of equal zeros, ``scaled`` and ``max_rel`` against a zero reference (0 when the error is 0 too).
Floats are those of numpy and ``ml_dtypes``. Integers and booleans have everything but ``max_ulp``
and ``top1``; a 64-bit difference is exact before it is rounded to float64. ``top1`` needs two axes
and two elements in the last. Elements that are NaN in both, or the same Inf, are left out of all
metrics but ``top1``, where Inf is a value and NaN below all; ``elements`` counts them nevertheless.

Both tensors are read once, in pieces that stay in the cache, after the reference alone was read
for its RMS, which the floor needs: a tenth of the time. Sums (``sums``) neither
overflow nor vanish and are added in the order of the pieces: numbers depend on the chunk size by
rounding only, and neither on the memory layout nor on how many threads read.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from xbench import ulps
from xbench.readings import EXACT, Incomparable, Reading, check, each_error
from xbench.result import TensorMetrics
from xbench.sums import ScaledSum

__all__ = [
    "CHUNK", "EXACT", "FLOATS", "HISTOGRAM", "REL_FLOOR", "Incomparable", "compare", "rms_error",
]  # fmt: skip

Array = np.ndarray[Any, Any]

CHUNK = 1 << 17
"""Elements looked at together: small enough for every temporary to stay in the cache."""
REL_FLOOR = 1e-3
"""Of the reference's RMS: smaller reference values count as that much in ``max_rel``."""
FLOATS = ulps.NUMPY
"""Numpy's; those of ``ml_dtypes`` can be compared as well."""
HISTOGRAM = ("0", *(f"<=1e{decade}" for decade in range(-8, 1)), ">1e0")
"""The bins of ``histogram``: error over the RMS of the reference; no error at all is the first."""
_EDGES = [10.0**decade for decade in range(-8, 1)]


def compare(name: str, actual: Array, reference: Array, *, chunk: int = CHUNK) -> TensorMetrics:
    """How far ``actual`` is from ``reference``: the metrics of this module's docstring.

    Both may have any shape and memory layout; nothing of their size is allocated. Large ones are
    read by as many threads as there are CPUs to use. ``problem`` is set, and the metrics are None
    (``histogram`` empty, ``differing`` 0), when the shapes, the kinds of dtype or the NaN or Inf
    masks differ, when the dtype is not a real number, when there is no (finite) element, and when
    the difference of two finite elements exceeds float64.
    """
    a, b = np.asarray(actual), np.asarray(reference)
    # Overflow, 0/0 and invalid casts are all expected here, and each is dealt with explicitly.
    with np.errstate(all="ignore"):
        try:
            check(a, b)
            reading = Reading(a, b, chunk, REL_FLOOR, _EDGES)
            return _metrics(name, reading)
        except Incomparable as error:
            problem = str(error)
    return TensorMetrics(
        name=name,
        bitwise_equal=problem == _NOTHING,
        elements=a.size,
        problem=problem,
    )


def rms_error(actual: Array, reference: Array, *, chunk: int = CHUNK) -> float:
    """``rms`` of ``compare`` alone, reading both tensors once.

    Raises ``Incomparable`` (a ``ValueError``) where ``compare`` sets a problem: a number
    would be taken for evidence.
    """
    a, b = np.asarray(actual), np.asarray(reference)
    with np.errstate(all="ignore"):
        check(a, b)
        total, count, peak = each_error(a, b, chunk)
        _countable(count, peak)
        return total.rms(count, peak)


_NOTHING = "no finite element to compare"


def _countable(count: int, peak: float) -> None:
    """Raises ``Incomparable`` where the elements that are finite have no distance."""
    if not math.isfinite(peak):
        raise Incomparable("a difference of finite elements exceeds float64")
    if not count:
        raise Incomparable(_NOTHING)


def _metrics(name: str, reading: Reading) -> TensorMetrics:
    """What the records of the pieces amount to. Raises ``Incomparable``."""
    found = reading.found
    count, peak = sum(piece.count for piece in found), max(piece.peak for piece in found)
    _countable(count, peak)
    aa, ab, dd = ScaledSum(), ScaledSum(), ScaledSum()
    for piece in found:
        aa.add(*piece.aa)
        ab.add(*piece.ab)
        dd.add(*piece.dd)
    differing = sum(piece.differing for piece in found)
    p99_abs, histogram = _distribution(reading, count, peak, differing)
    max_rel = max(piece.max_rel for piece in found)
    return TensorMetrics(
        name=name,
        bitwise_equal=all(piece.same_bits for piece in found),
        differing=differing,
        subnormal_only=differing > 0 and all(piece.subnormal for piece in found),
        top1=reading.top1(),
        histogram=histogram,
        rms=dd.rms(count, peak),
        max_abs=peak,
        p99_abs=p99_abs,
        max_rel=max_rel if math.isfinite(max_rel) else None,
        scaled=0.0 if peak == 0 else _quotient(peak, reading.max_ref),
        max_ulp=float(max(piece.max_ulp for piece in found)) if reading.floats else None,
        cosine=_cosine(aa, ab, reading.bb),
        snr_db=_snr_db(dd, reading.bb),
        reference_rms=reading.rms,
        elements=reading.a.size,
    )


def _distribution(
    reading: Reading, count: int, peak: float, differing: int
) -> tuple[float, list[int]]:
    """``p99_abs`` and ``histogram``: of few elements exact, of many by bins."""
    rank = -(-99 * count // 100)
    if reading.small:
        kept = [piece.kept for piece in reading.found if piece.kept is not None]
        d = kept[0] if len(kept) == 1 else np.concatenate(kept)
        p99_abs = float(np.partition(d, rank - 1)[rank - 1])
        upto = [int(np.count_nonzero(d <= edge)) for edge in reading.edges]
    else:
        ranks = reading.ranks(rank)
        p99_abs = ranks.at(rank) or 0.0
        upto = [ranks.upto(edge) for edge in reading.edges]
    bounds = [0, count - differing, *(max(k, count - differing) for k in upto), count]
    return (peak if rank == count else p99_abs), [high - low for low, high in pairwise(bounds)]


def _cosine(aa: ScaledSum, ab: ScaledSum, bb: ScaledSum) -> float | None:
    norms = math.sqrt(aa.total * bb.total)
    if norms == 0:
        return None
    exponent = ab.exponent - (aa.exponent + bb.exponent) // 2
    return max(-1.0, min(1.0, math.ldexp(ab.total / norms, exponent)))


def _snr_db(dd: ScaledSum, bb: ScaledSum) -> float | None:
    if bb.total == 0 or dd.total == 0:
        return None
    octaves = bb.exponent - dd.exponent
    return 10.0 * (math.log10(bb.total / dd.total) + octaves * math.log10(2.0))


def _quotient(numerator: float, denominator: float) -> float | None:
    """None where it is infinite."""
    if denominator == 0 or math.isinf(numerator / denominator):
        return None
    return numerator / denominator
