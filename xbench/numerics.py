"""The comparison core: how far a tensor is from its reference, whatever made either of them.

With ``a`` the actual tensor, ``b`` the reference and d = |a - b|, over the elements that are
finite in both, in float64:

==============  ===============================================================================
bitwise_equal   same dtype and bit pattern; +0 and -0 differ, two NaNs do not (payloads aside)
rms             sqrt(mean(d^2))
max_abs         max(d)
p99_abs         smallest d that 99 % of the elements do not exceed (Hyndman & Fan 1996, type 1);
                exact under 100 elements, else at most 1/128 below it (see ``_tails``)
max_rel         max(d / max(|b|, floor)), floor = 1e-3 * RMS(b): without one, elements that are
                zero but for rounding decide
scaled          max(d) / max|b|: relative error in the max norm (Higham 2002, section 6.2)
max_ulp         largest number of representable steps from a to b in the less precise dtype of
                the two, to which the other is rounded (ordered integers: Dawson, "Comparing
                Floating Point Numbers", 2012); +0 to -0 is 0, the largest finite to Inf is 1
cosine          sum(a b) / sqrt(sum(a^2) sum(b^2))
snr_db          10 log10(sum(b^2) / sum(d^2))
reference_rms   sqrt(mean(b^2))
==============  ===============================================================================

Every number is finite. A value that would be infinite or 0/0 is None: ``snr_db`` and ``cosine``
of equal zeros, ``scaled`` and ``max_rel`` against a zero reference (0 when the error is 0 too).
Integers and booleans have everything but ``max_ulp``; a 64-bit difference is exact before it is
rounded to float64. Elements that are NaN in both, or the same Inf, are left out of all metrics;
``elements`` counts them nevertheless.

Sums are kept with an exponent of their own (as in LAPACK's dlassq, after Blue 1978), so that
squares neither overflow nor vanish. They depend on the chunk size by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xbench.result import TensorMetrics

Array = np.ndarray[Any, Any]

CHUNK = 1 << 16
"""Elements looked at together: small enough for every temporary to stay in the cache."""
REL_FLOOR = 1e-3
"""Of the reference's RMS: smaller reference values count as that much in ``max_rel``."""
FLOATS = ("float16", "float32", "float64")
_BIN_SHIFT = 45
"""Low bits of a float64 that the histogram of ``p99_abs`` ignores; 7 of 52 mantissa bits stay."""
_MAX_EXPONENT = 1000
"""Scales of sums stay within 2 ** +-1000: normal numbers, whose use no flush to zero can spoil.
Squares of the largest float64 and of the smallest subnormal, so scaled, are normal as well."""


class Incomparable(ValueError):
    """No distance exists between the two tensors; the message says why."""


def compare(name: str, actual: Array, reference: Array, *, chunk: int = CHUNK) -> TensorMetrics:
    """How far ``actual`` is from ``reference``: the metrics of this module's docstring.

    Both may have any shape and memory layout; nothing of their size is allocated. They are read
    twice, since ``max_rel`` needs the RMS of the whole reference. ``problem`` is set, and the
    metrics are None, when the shapes, the kinds of dtype or the NaN or Inf masks differ, when
    the dtype is not a real number, when there is no (finite) element, and when the difference
    of two finite elements exceeds float64.
    """
    a, b = np.asarray(actual), np.asarray(reference)
    # Overflow, 0/0 and invalid casts are all expected here, and each is dealt with explicitly.
    with np.errstate(all="ignore"):
        try:
            _check(a, b)
            sums = _accumulate(a, b, chunk)
            if not math.isfinite(sums.max_abs):
                raise Incomparable("a difference of finite elements exceeds float64")
        except Incomparable as error:
            return TensorMetrics(
                name=name, bitwise_equal=False, elements=a.size, problem=str(error)
            )
        if not sums.count:
            return TensorMetrics(
                name=name,
                bitwise_equal=sums.same_bits,
                elements=a.size,
                problem="no finite element to compare",
            )
        reference_rms = sums.bb.rms(sums.count, sums.max_ref)
        max_rel, p99_abs = _tails(a, b, chunk, REL_FLOOR * reference_rms, sums)
    scaled = 0.0 if sums.max_abs == 0 else _quotient(sums.max_abs, sums.max_ref)
    return TensorMetrics(
        name=name,
        bitwise_equal=sums.same_bits,
        rms=sums.dd.rms(sums.count, sums.max_abs),
        max_abs=sums.max_abs,
        p99_abs=p99_abs,
        max_rel=max_rel if math.isfinite(max_rel) else None,
        scaled=scaled,
        max_ulp=float(sums.max_ulp) if a.dtype.kind == "f" else None,
        cosine=_cosine(sums),
        snr_db=_snr_db(sums),
        reference_rms=reference_rms,
        elements=a.size,
    )


def rms_error(actual: Array, reference: Array, *, chunk: int = CHUNK) -> float:
    """``rms`` of ``compare`` alone, reading both tensors once.

    Raises ``Incomparable`` (a ``ValueError``) where ``compare`` sets a problem: a number
    would be taken for evidence.
    """
    a, b = np.asarray(actual), np.asarray(reference)
    total, count, peak = _ScaledSum(), 0, 0.0
    with np.errstate(all="ignore"):
        _check(a, b)
        for x, y in _finite_pairs(a, b, chunk):
            difference = _difference(x, y)
            largest = float(difference.max())
            if not math.isfinite(largest):
                raise Incomparable("a difference of finite elements exceeds float64")
            values, exponent = _normalised(difference, largest)
            total.add(float(np.square(values).sum()), 2 * exponent)
            count, peak = count + x.size, max(peak, largest)
    if not count:
        raise Incomparable("no finite element to compare")
    return total.rms(count, peak)


@dataclass(slots=True)
class _ScaledSum:
    """total * 2 ** exponent."""

    total: float = 0.0
    exponent: int = -2 * _MAX_EXPONENT

    def add(self, value: float, exponent: int) -> None:
        """Add value * 2 ** exponent."""
        if exponent > self.exponent:
            self.total = math.ldexp(self.total, self.exponent - exponent)
            self.exponent = exponent
        self.total += math.ldexp(value, exponent - self.exponent)

    def rms(self, count: int, peak: float) -> float:
        """sqrt(sum / count) of a sum of squares; by rounding it must not exceed its ``peak``."""
        half = self.exponent // 2
        root = min(math.sqrt(self.total / count), math.ldexp(peak, -half))
        return math.ldexp(root, half)


@dataclass(slots=True)
class _Sums:
    """What the first reading finds; ``dd`` is sum(d^2), ``ab`` is sum(a b), and so on."""

    count: int = 0
    same_bits: bool = True
    max_abs: float = 0.0
    max_ref: float = 0.0
    max_ulp: int = 0
    dd: _ScaledSum = field(default_factory=_ScaledSum)
    aa: _ScaledSum = field(default_factory=_ScaledSum)
    bb: _ScaledSum = field(default_factory=_ScaledSum)
    ab: _ScaledSum = field(default_factory=_ScaledSum)


def _check(a: Array, b: Array) -> None:
    """Raises ``Incomparable`` for shapes and dtypes that have no distance."""
    if a.shape != b.shape:
        raise Incomparable(f"shape {a.shape} is not the reference's {b.shape}")
    for array in (a, b):
        kind = array.dtype.kind
        if kind not in "fiub" or (kind == "f" and array.dtype.name not in FLOATS):
            raise Incomparable(f"dtype {array.dtype} cannot be compared")
    if a.dtype.kind != b.dtype.kind:
        raise Incomparable(f"dtype {a.dtype} is not of the kind of the reference's {b.dtype}")
    if a.size == 0:
        raise Incomparable("no elements")


def _finite_pairs(a: Array, b: Array, chunk: int) -> Iterator[tuple[Array, Array]]:
    """Flat pieces of both side by side: native byte order, not empty, finite elements only.

    The pieces are lent until the next one. Raises ``Incomparable`` when the masks differ.
    """
    pieces = np.nditer(
        [a, b],
        flags=["buffered", "external_loop"],
        op_flags=[["readonly", "aligned"], ["readonly", "aligned"]],
        op_dtypes=[array.dtype.newbyteorder("=") for array in (a, b)],
        order="K",
        casting="equiv",
        buffersize=chunk,
    )
    for x, y in pieces:
        if x.dtype.kind != "f":
            yield x, y
            continue
        finite = np.isfinite(x)
        if finite.all() and np.isfinite(y).all():
            yield x, y
            continue
        # NaN != NaN, hence the third term; Inf equals only the Inf of its sign.
        matched = (finite & np.isfinite(y)) | (x == y) | (np.isnan(x) & np.isnan(y))
        if not matched.all():
            raise Incomparable(_mask_problem(a, b))
        if finite.any():
            yield x[finite], y[finite]


def _mask_problem(a: Array, b: Array) -> str:
    """Which of the NaN and Inf masks differ, how often, and where first."""
    problems = []
    for kind, mask in (("NaN", np.isnan), ("+Inf", np.isposinf), ("-Inf", np.isneginf)):
        differ = np.asarray(mask(a) != mask(b))
        if differ.any():
            where = np.unravel_index(int(differ.argmax()), differ.shape)
            index = [int(i) for i in where]
            problems.append(
                f"{kind} masks differ at {int(differ.sum())} of {a.size} elements, first at "
                f"{index}: {float(a[where])} against the reference's {float(b[where])}"
            )
    return "; ".join(problems)


def _accumulate(a: Array, b: Array, chunk: int) -> _Sums:
    """The first reading."""
    sums = _Sums()
    for x, y in _finite_pairs(a, b, chunk):
        difference = _difference(x, y)
        actual, ref = x.astype(np.float64), y.astype(np.float64)
        peaks = [float(np.abs(values).max()) for values in (difference, actual, ref)]
        if not math.isfinite(peaks[0]):
            sums.max_abs = math.inf
            return sums
        sums.count += x.size
        sums.same_bits = sums.same_bits and _same_bits(x, y)
        sums.max_abs = max(sums.max_abs, peaks[0])
        sums.max_ref = max(sums.max_ref, peaks[2])
        if x.dtype.kind == "f":
            sums.max_ulp = max(sums.max_ulp, _max_ulp(x, y))
        difference, d_exponent = _normalised(difference, peaks[0])
        actual, a_exponent = _normalised(actual, peaks[1])
        ref, b_exponent = _normalised(ref, peaks[2])
        sums.dd.add(float(np.square(difference).sum()), 2 * d_exponent)
        sums.aa.add(float(np.square(actual).sum()), 2 * a_exponent)
        sums.bb.add(float(np.square(ref).sum()), 2 * b_exponent)
        sums.ab.add(float((actual * ref).sum()), a_exponent + b_exponent)
    return sums


def _tails(a: Array, b: Array, chunk: int, floor: float, sums: _Sums) -> tuple[float, float]:
    """The second reading: ``max_rel`` (Inf where undefined) and ``p99_abs``.

    The quantile comes from counts by exponent and the top 7 bits of the mantissa, and is the
    lower end of its bin: too small by at most 1/128 of itself or 2 ** -1029.
    """
    counts = np.zeros(1 << (63 - _BIN_SHIFT), np.int64)
    max_rel = 0.0
    for x, y in _finite_pairs(a, b, chunk):
        difference = _difference(x, y)
        relative = difference / np.maximum(np.abs(y.astype(np.float64)), floor)
        # fmax passes over NaN, which is 0/0: no error against a zero.
        max_rel = float(np.fmax.reduce(relative, initial=max_rel))
        found = np.bincount(difference.view(np.int64) >> _BIN_SHIFT)
        counts[: found.size] += found
    rank = -(-99 * sums.count // 100)
    if rank == sums.count:
        return max_rel, sums.max_abs
    bin_ = np.searchsorted(counts.cumsum(), rank)
    return max_rel, float((np.array([bin_], np.int64) << _BIN_SHIFT).view(np.float64)[0])


def _difference(x: Array, y: Array) -> Array:
    """|x - y| in float64."""
    if x.dtype.kind == "f":
        return np.abs(x.astype(np.float64) - y.astype(np.float64))
    wide = np.int64 if x.dtype.kind == "i" else np.uint64
    return _steps(x.astype(wide), y.astype(wide)).astype(np.float64)


def _steps(x: Array, y: Array) -> Array:
    """|x - y| of 64-bit integers, exact: what wraps around in int64 is right in uint64."""
    return np.where(x >= y, x - y, y - x).view(np.uint64)


def _max_ulp(x: Array, y: Array) -> int:
    """The largest distance in representable steps of the less precise dtype."""
    narrow = min(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    return int(_steps(_ordered(x.astype(narrow)), _ordered(y.astype(narrow))).max())


def _ordered(x: Array) -> Array:
    """Integers in the order of the floats, consecutive for neighbours; both zeros are 0."""
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    lowest = np.int64(-(1 << (8 * x.itemsize - 1)))
    return np.where(bits < 0, lowest - bits, bits)


def _same_bits(x: Array, y: Array) -> bool:
    bits = f"u{x.itemsize}"
    return x.dtype == y.dtype and bool((x.view(bits) == y.view(bits)).all())


def _normalised(values: Array, peak: float) -> tuple[Array, int]:
    """``values`` over a power of two near ``peak``, their largest magnitude, and its exponent.

    Exact, but for values too small beside the peak for their squares to count.
    """
    exponent = math.frexp(peak)[1] if peak else -_MAX_EXPONENT
    exponent = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    return values * math.ldexp(1.0, -exponent), exponent


def _cosine(sums: _Sums) -> float | None:
    norms = math.sqrt(sums.aa.total * sums.bb.total)
    if norms == 0:
        return None
    exponent = sums.ab.exponent - (sums.aa.exponent + sums.bb.exponent) // 2
    return max(-1.0, min(1.0, math.ldexp(sums.ab.total / norms, exponent)))


def _snr_db(sums: _Sums) -> float | None:
    if sums.bb.total == 0 or sums.dd.total == 0:
        return None
    octaves = sums.bb.exponent - sums.dd.exponent
    return 10.0 * (math.log10(sums.bb.total / sums.dd.total) + octaves * math.log10(2.0))


def _quotient(numerator: float, denominator: float) -> float | None:
    """None where it is infinite."""
    if denominator == 0 or math.isinf(numerator / denominator):
        return None
    return numerator / denominator
