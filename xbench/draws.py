"""Parameters and random inputs with the same bits on every machine and numpy version.

A tensor is a function of what names it and of nothing else: SHA-256 of (purpose, seed, name)
keys a Philox4x64-10 counter generator (Salmon et al. 2011), whose raw 64-bit words become values
by IEEE additions and multiplications alone. numpy's distributions are not used, since their
streams may change from version to version; the raw words are fixed by the algorithm.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from xbench.errors import unknown
from xbench.spec import Constant, ModelSpec, Uniform

Array = np.ndarray[Any, Any]

KINDS = ("init", "probe")
_CHUNK = 1 << 16
"""Words at a time, so that temporaries stay in the cache. Bits do not depend on it."""


def draw(
    spec: Uniform | Constant,
    shape: tuple[int, ...],
    *,
    seed: int,
    name: str,
    dtype: DTypeLike = "float32",
) -> Array:
    """An array of ``shape`` from ``spec``, in C order, from the stream of (``seed``, ``name``).

    A value is low + (high - low) * u in float64, with u the top 53 bits of a word times 2^-53,
    rounded to float32 (which may reach ``high``) and only then cast to ``dtype``: every
    precision starts from the same numbers. Raises ValueError when ``dtype`` is not a float.
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
        unit *= spec.high - spec.low
        unit += spec.low
        part[:] = unit
    return values.astype(dtype, copy=False)


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
