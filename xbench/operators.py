"""What one operator may be off by: its own bound, whatever engine ran it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from xbench import numerics
from xbench.result import OperatorCheck, Operators

Array = np.ndarray[Any, Any]

KEPT = 5
"""How many of the least accurate operators a document keeps."""
SUM, MOVED, LOOP = "4 eps sqrt(K)", "spread of its inputs' ULPs", "twice a plain loop"


def check(
    node: str,
    op: str,
    output: str,
    actual: Array,
    expected: Array,
    moved: Sequence[Array],
    *,
    terms: int,
    eps: float,
    loop: Array | None = None,
) -> OperatorCheck:
    """Hold the result of one operator against float64 on the same inputs.

    ``expected`` is that in float64, ``moved`` the same with every float input moved by one ULP of
    its type, at random up or down. The bound is the larger of 4 eps sqrt(``terms``) RMS(expected),
    the rounding of a sum of so many terms (Higham 2002, section 3.1, with the random signs of
    section 2.6), and the largest RMS change that ``moved`` shows, which is what a backward stable
    operator may do where its terms cancel. ``loop`` is what a plain loop in the operator's type
    gives, for an operator that sums: its roundings all go one way where its terms are alike, by
    K eps / 4 at the worst, and nobody has to be better than twice that. Raises
    ``numerics.Incomparable`` where the two have other shapes or masks.
    """
    error = numerics.rms_error(actual, expected)
    scale = math.sqrt(float(np.mean(np.square(expected, dtype=np.float64))))
    bounds = {SUM: 4.0 * eps * math.sqrt(terms) * scale}
    changes = [change(value, expected) for value in moved]
    bounds[MOVED] = max(changes, default=0.0)
    if loop is not None:
        bounds[LOOP] = 2.0 * change(loop, expected)
    bound, limit = max(bounds.items(), key=lambda item: item[1])
    return OperatorCheck(
        node=node, op=op, output=output, error_rms=error, limit_rms=limit, terms=terms, bound=bound
    )


def looped(values: Array, axes: Sequence[int]) -> Array:
    """The sum over ``axes`` by a plain loop in the type of ``values``, term by term."""
    last = np.moveaxis(values, axes, range(len(axes)))
    flat = last.reshape(-1, *last.shape[len(axes) :])
    total: Array = np.add.accumulate(flat, axis=0, dtype=values.dtype)[-1]
    return total


def change(moved: Array, expected: Array) -> float:
    """RMS distance of two results; 0 where they cannot be compared, which excuses nothing."""
    try:
        return numerics.rms_error(moved, expected)
    except numerics.Incomparable:
        return 0.0


def summed_up(
    checks: Iterable[OperatorCheck], unchecked: Sequence[str] = (), remark: str = ""
) -> Operators:
    """All checks of a side, of which the least accurate are kept."""
    found = sorted(checks, key=lambda item: item.score, reverse=True)
    return Operators(
        checked=len(found), worst=found[:KEPT], unchecked=list(unchecked)[:KEPT], remark=remark
    )


def merged(found: Sequence[Operators]) -> Operators:
    """The checks of several bodies of one side."""
    unchecked = dict.fromkeys(text for item in found for text in item.unchecked)
    both = summed_up((check for item in found for check in item.worst), list(unchecked))
    return Operators(
        checked=sum(item.checked for item in found),
        worst=both.worst,
        unchecked=both.unchecked,
        remark=next((item.remark for item in found if item.remark), ""),
        optimizer=all(item.optimizer for item in found),
    )
