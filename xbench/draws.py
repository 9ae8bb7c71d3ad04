"""Parameters and random inputs with the same bits on every machine and numpy version.

A tensor is a function of what names it and of nothing else: SHA-256 of (purpose, seed, name)
keys a Philox4x64-10 counter generator (Salmon et al. 2011), whose raw 64-bit words become values
by IEEE additions and multiplications alone. numpy's distributions are not used, since their
streams may change from version to version; the raw words are fixed by the algorithm.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from xbench.errors import unknown
from xbench.spec import Bernoulli, Constant, DrawSpec, LogUniform, ModelSpec, Normal, Uniform

Array = np.ndarray[Any, Any]

KINDS = ("init", "probe")
_CHUNK = 1 << 16
"""Words at a time, so that temporaries stay in the cache. Bits do not depend on it."""


def draw(
    spec: Uniform | Normal | Bernoulli | Constant,
    shape: tuple[int, ...],
    *,
    seed: int,
    name: str,
    dtype: DTypeLike = "float32",
) -> Array:
    """An array of ``shape`` from ``spec``, in C order, from the stream of (``seed``, ``name``).

    With u the top 53 bits of a word times 2^-53, a value is low + (high - low) * u, mean + std *
    ``normal_quantile``(u + 2^-54), or 1 / keep where u < keep, in float64, rounded to float32
    (which may reach ``high``) and only then cast to ``dtype``: every precision starts from the
    same numbers. Raises ValueError when ``dtype`` is not a float.
    """
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"cannot draw {np.dtype(dtype)}: only floats are drawn")
    values = np.empty(shape, np.float32)
    if isinstance(spec, Constant):
        values.fill(spec.value)
        return values.astype(dtype, copy=False)
    words = stream("draw", seed, name)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        unit = (words.random_raw(part.size) >> np.uint64(11)) * 2.0**-53
        match spec:
            case Uniform():
                unit *= spec.high - spec.low
                unit += spec.low
                part[:] = unit
            case Normal():
                part[:] = spec.mean + spec.std * normal_quantile(unit + 2.0**-54)
            case Bernoulli():
                part[:] = (unit < spec.keep) / spec.keep
    return values.astype(dtype, copy=False)


# Coefficients of Wichura 1988, algorithm AS 241, PPND7: relative error about 1e-7.
_MIDDLE = (
    (5.9109374720e01, 1.5929113202e02, 5.0434271938e01, 3.3871327179e00),
    (6.7187563600e01, 7.8757757664e01, 1.7895169469e01, 1.0),
)
_TAIL = (
    (1.7023821103e-01, 1.3067284816e00, 2.7568153900e00, 1.4234372777e00),
    (1.2021132975e-01, 7.3700164250e-01, 1.0),
)
_FAR = (
    (1.7337203997e-02, 4.2868294337e-01, 3.0812263860e00, 6.6579051150e00),
    (1.2258202635e-02, 2.4197894225e-01, 1.0),
)
_LN2 = 0.6931471805599453


def normal_quantile(probability: Array) -> Array:
    """The inverse of the normal distribution function for float64 in (0, 1), to about 1e-7.

    Wichura 1988, "The percentage points of the normal distribution", AS 241. The logarithm of its
    tails is a series of its own: libraries differ in the last bit of theirs.
    """

    def ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
        over, under = (horner(part, x) for part in coefficients)
        return over / under

    q = probability - 0.5
    found: Array = q * ratio(_MIDDLE, 0.180625 - q * q)
    outside = np.flatnonzero(np.abs(q) > 0.425)
    side = q[outside]
    r = np.sqrt(-natural_log(np.where(side < 0, probability[outside], 0.5 - side)))
    size = np.where(r <= 5.0, ratio(_TAIL, r - 1.6), ratio(_FAR, r - 5.0))
    found[outside] = np.where(side < 0, -size, size)
    return found


def horner(coefficients: tuple[float, ...], x: Array) -> Array:
    """A polynomial at ``x``, the coefficient of the highest power first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def natural_log(x: Array) -> Array:
    """The logarithm of positive float64 by additions, multiplications and divisions alone.

    x = m * 2^e with m in [1/sqrt(2), sqrt(2)); log m = 2 artanh((m - 1) / (m + 1)), as a series in
    odd powers up to 19: the rest is below 1e-16.
    """
    m, e = np.frexp(x)
    small = m < 2.0**-0.5
    m, e = np.where(small, 2.0 * m, m), e - small
    z = (m - 1.0) / (m + 1.0)
    series = horner(tuple(1.0 / power for power in range(19, 0, -2)), z * z)
    logarithm: Array = 2.0 * z * series + e * _LN2
    return logarithm


def parameters(
    spec: ModelSpec, size: str, kind: str, seed: int, dtype: str = "float32"
) -> dict[str, Array]:
    """Every parameter of ``spec`` at ``size`` by its canonical name, in canonical layout.

    ``kind`` is ``init`` (the published initialiser) or ``probe`` (for agreements). A parameter
    depends on ``seed``, ``kind`` and its own name, so adding one leaves the others as they were.
    Raises UsageError for a size or kind that is not known.
    """
    if size not in spec.sizes:
        raise unknown("size", size, spec.sizes)
    if kind not in KINDS:
        raise unknown("kind of parameters", kind, KINDS)
    return {
        parameter.name: draw(
            parameter.init if kind == "init" else parameter.probe,
            parameter.at(),
            seed=seed,
            name=f"{kind}/{parameter.name}",
            dtype=dtype,
        )
        for parameter in spec.parameters(spec.sizes[size])
    }


def below(bound: int, word: int) -> int:
    """0 to ``bound`` - 1, evenly to within ``bound`` / 2^64, from a random word of 64 bits."""
    return word * bound >> 64


def shuffled(total: int, needed: int, seed: int, name: str) -> Array:
    """``needed`` indices below ``total``: one random order after another, the last one cut."""
    words = stream("shuffle", seed, name)
    rounds = -(-needed // total)
    order = [np.argsort(words.random_raw(total), kind="stable") for _ in range(rounds)]
    return np.concatenate(order)[:needed]


def drawn_ids(spec: LogUniform, shape: tuple[int, ...], *, seed: int, name: str) -> Array:
    """int64 of ``shape`` from ``spec``: the number of k with log(k + 2) <= u * log(count + 1)."""
    words = stream("draw", seed, name)
    unit = (words.random_raw(math.prod(shape)) >> np.uint64(11)) * 2.0**-53
    bounds = natural_log(np.arange(2.0, spec.count + 2.0))
    # u is below 1, so the last bound is never reached.
    found: Array = np.searchsorted(bounds, unit * bounds[-1], side="right").astype(np.int64)
    return found.reshape(shape)


def steps(
    spec: ModelSpec, config: Any, *, batch: int, count: int, seed: int
) -> list[dict[str, Array]]:
    """The random inputs of ``count`` training steps, by name, in float32; ids in int64.

    A tensor depends on the seed, its own name and its step, so that the first steps of a longer
    training are those of a shorter one.
    """

    def one(item: DrawSpec, step: int) -> Array:
        shape, name = item.of(config, batch), f"step/{step}/{item.name}"
        if isinstance(item.distribution, LogUniform):
            return drawn_ids(item.distribution, shape, seed=seed, name=name)
        return draw(item.distribution, shape, seed=seed, name=name)

    return [{item.name: one(item, step) for item in spec.draws(config)} for step in range(count)]


def perturb(array: Array, *, seed: int, name: str, ulps: int = 1) -> Array:
    """A copy in which every element went ``ulps`` steps up or down, by a random bit each.

    Steps are counted on the ordered integers that the bits of floats make: what ``nextafter``
    gives when called ``ulps`` times.

    Zeros stay: their neighbours are subnormals, which some engines flush, and a bias that is
    zero at its initialiser is exact. So do NaN, Inf, and what would go to Inf. Raises
    ValueError when ``array`` is not of floats of 16, 32 or 64 bits.
    """
    if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
        raise ValueError(f"cannot perturb {array.dtype} by ULPs: it is not a float")
    words = stream("perturb", seed, name)
    flat = np.ascontiguousarray(array).reshape(-1)
    moved = np.empty_like(flat)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        bits = np.unpackbits(
            words.random_raw(-(-part.size // 64)).astype("<u8").view(np.uint8),
            count=part.size,
            bitorder="little",
        )
        moved[start : start + _CHUNK] = neighbours(part, bits, ulps)
    return moved.reshape(array.shape)


def neighbours(array: Array, bits: Array, ulps: int) -> Array:
    """``perturb`` of a flat piece: up where its bit is set, else down."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    integer = np.dtype(f"i{array.dtype.itemsize}")
    magnitude = np.abs(native).view(integer).astype(np.int64)
    steps = np.where(bits, np.int64(ulps), np.int64(-ulps))
    ordered = np.where(np.signbit(native), -magnitude, magnitude) + steps
    infinity = int(np.array(np.inf, native.dtype).view(integer))
    moved = np.abs(ordered).clip(max=infinity).astype(integer).view(native.dtype)
    # A value that lands on zero keeps its sign.
    negative = np.where(ordered == 0, np.signbit(native), ordered < 0)
    moved = np.where(negative, -moved, moved)
    return np.where((array != 0) & np.isfinite(moved) & np.isfinite(array), moved, array)


def stream(purpose: str, seed: int, name: str) -> np.random.Philox:
    """The generator of one tensor. ``purpose`` keeps draws and perturbations independent."""
    digest = hashlib.sha256(f"xbench/{purpose}/{seed}/{name}".encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    return np.random.Philox(key=key, counter=0)
