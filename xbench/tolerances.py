"""Fixed tolerances, for those who want them, by the rules of Polygraphy.

The grammar is that of its ``--atol`` and ``--rtol``: ``[NAME:]VALUE``, where the last colon ends
the name and an entry without one is for every output that is not named. Entries are separated by
commas here (spaces there), so a name with a comma cannot be written.

The rule for an element is that of ``SimpleCompareFunc`` with its default statistic ``elemwise``
(polygraphy/comparator/compare.py, version 0.53): with d = |a - b| an element is outside when it
exceeds both tolerances, d > atol and d / |b| > rtol, where a |b| of 0 counts as 2.2e-16. It is
inside when either holds: this is not numpy's d <= atol + rtol |b|. A tolerance that was not given
is 1e-5, as there. Two things are not as there: d is taken in float64 (exact for integers), and
elements that are NaN in both or the same Inf are equal, as everywhere in xbench.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from xbench.errors import UsageError
from xbench.numerics import Incomparable

Array = np.ndarray[Any, Any]

DEFAULT = 1e-5
"""Of either tolerance, where it was not given (Polygraphy's own)."""
ZERO = 2.0**-52
"""What a reference of 0 counts as in the relative error (Polygraphy's own)."""
CHUNK = 1 << 16
"""Elements looked at together; the result does not depend on it."""


class Tolerances(msgspec.Struct, frozen=True, kw_only=True):
    """Tolerances by the name of the output; ``""`` holds those of all that are not named."""

    atol: Mapping[str, float] = {}
    rtol: Mapping[str, float] = {}

    def of(self, name: str) -> tuple[float, float]:
        """The absolute and the relative tolerance of an output."""
        atol, rtol = (given.get(name, given.get("", DEFAULT)) for given in (self.atol, self.rtol))
        return atol, rtol

    @property
    def names(self) -> list[str]:
        """The outputs that are named, each once."""
        return [name for name in dict.fromkeys([*self.atol, *self.rtol]) if name]


def parse(option: str, text: str) -> dict[str, float]:
    """The tolerances of an option: ``1e-5,out:1e-4`` is {"": 1e-5, "out": 1e-4}.

    Raises UsageError, which says how to write it, for an entry that is empty, not a number,
    negative, NaN or infinite (a stored document has no infinity), and for a name given twice.
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, colon, number = (part.strip() for part in entry.rpartition(":"))
        try:
            value = float(number)
        except ValueError:
            raise _wrong(option, entry, "is not a number") from None
        if colon and not name:
            raise _wrong(option, entry, "has a colon but no name before it")
        if not (math.isfinite(value) and value >= 0):
            raise _wrong(option, entry, "is not a finite number of 0 or more")
        if name in found:
            whom = f"output {name!r}" if name else "outputs that are not named"
            raise _wrong(option, entry, f"is the second tolerance for {whom}")
        found[name] = value
    return found


def _wrong(option: str, entry: str, why: str) -> UsageError:
    return UsageError(
        f"{option}: {entry.strip()!r} {why}; write one number for all outputs, and NAME:NUMBER for "
        f"one output, with commas between them, as in {option} 1e-5,NAME:1e-4"
    )


def unknown_names(names: Iterable[str], outputs: Collection[str]) -> list[str]:
    """The names for which there is no output: their tolerances would apply to nothing."""
    return [name for name in dict.fromkeys(names) if name and name not in outputs]


def exceeds(
    actual: Array, reference: Array, atol: float, rtol: float, *, chunk: int = CHUNK
) -> int:
    """How many elements of ``actual`` are outside both tolerances (see the module's docstring).

    An element that is NaN or infinite in one alone is outside. Both may have any memory layout;
    they are read in pieces, and nothing of their size is allocated. No elements: 0 of them are
    outside. Raises ``numerics.Incomparable`` where shapes or kinds of dtype differ.
    """
    a, b = np.asarray(actual), np.asarray(reference)
    if a.shape != b.shape:
        raise Incomparable(f"shape {a.shape} is not the reference's {b.shape}")
    kinds = [_kind(array) for array in (a, b)]
    if kinds[0] != kinds[1]:
        raise Incomparable(f"dtype {a.dtype} is not of the kind of the reference's {b.dtype}")
    with np.errstate(all="ignore"):
        return sum(_outside(x, y, kinds[0], atol, rtol) for x, y in _pieces(a, b, kinds[0], chunk))


def _kind(array: Array) -> str:
    """``f``, ``i``, ``u`` or ``b``. bfloat16 and the 8-bit floats are of kind V to numpy."""
    dtype = array.dtype
    if dtype.kind == "V" and np.can_cast(dtype, np.float64):
        return "f"
    if dtype.kind in "fiub" and np.can_cast(dtype, np.float64, "same_kind"):
        return str(dtype.kind)
    raise Incomparable(f"dtype {dtype} cannot be compared")


def _pieces(a: Array, b: Array, kind: str, chunk: int) -> Iterator[tuple[Array, Array]]:
    """Flat pieces of both side by side, widened to 64 bits; lent until the next one."""
    if not a.size:
        return
    wide = {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.uint64}[kind]
    yield from np.nditer(
        [a, b],
        flags=["buffered", "external_loop"],
        op_flags=[["readonly"], ["readonly"]],
        op_dtypes=[wide, wide],
        order="K",
        casting="same_kind",
        buffersize=chunk,
    )


def _outside(x: Array, y: Array, kind: str, atol: float, rtol: float) -> int:
    if kind == "f":
        difference = np.abs(x - y)
    else:
        # What wraps around in 64 bits is right in uint64.
        difference = np.where(x >= y, x - y, y - x).view(np.uint64).astype(np.float64)
    # Not "greater than": a NaN is not within. Few elements get past this line as a rule.
    suspect = ~(difference <= atol)
    if not suspect.any():
        return 0
    x, y, difference = x[suspect], y[suspect], difference[suspect]
    size = np.abs(y.astype(np.float64))
    size[size == 0] = ZERO
    outside = ~(difference / size <= rtol)
    if kind == "f":
        # A finite value over an infinite reference is Inf/Inf, which is NaN: outside.
        outside &= ~((x == y) | (np.isnan(x) & np.isnan(y)))
    return int(outside.sum())
