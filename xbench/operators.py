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
SUM, MOVED = "4 eps sqrt(K)", "spread of its inputs' ULPs"


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
) -> OperatorCheck:
    """Hold the result of one operator against float64 on the same inputs.

    ``expected`` is that in float64, ``moved`` the same with every float input moved by one ULP of
    its type, at random up or down. The bound is the larger of 4 eps sqrt(``terms``) RMS(expected),
    the rounding of a sum of so many terms (Higham 2002, section 3.1, with the random signs of
    section 2.6), and the largest RMS change that ``moved`` shows, which is what a backward stable
    operator may do where its terms cancel. Raises ``numerics.Incomparable`` where the two have
    other shapes or masks.
    """
    error = numerics.rms_error(actual, expected)
    scale = math.sqrt(float(np.mean(np.square(expected, dtype=np.float64))))
    bounds = {SUM: 4.0 * eps * math.sqrt(terms) * scale}
    changes = [change(value, expected) for value in moved]
    bounds[MOVED] = max(changes, default=0.0)
    bound, limit = max(bounds.items(), key=lambda item: item[1])
    return OperatorCheck(
        node=node, op=op, output=output, error_rms=error, limit_rms=limit, terms=terms, bound=bound
    )


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
    )
