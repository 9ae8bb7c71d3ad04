"""Which elements of a tensor an RMS is to be of: those that masks and their like do not drown.

A logit of -1e9 that masks a token, or the least float32, makes the RMS of a tensor so large that
no other element could ever be found wrong. Elements that far from all others are a group of their
own: compared by themselves, and left out of the RMS of the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xbench import numerics

Array = np.ndarray[Any, Any]

FAR = 1e4
"""Times the median magnitude of what is not zero: an element beyond it is no ordinary one."""
SAMPLE = 1 << 16
"""Elements that the median is taken of, evenly spread."""


def ordinary(truth: Array) -> Array | None:
    """A mask of the ordinary elements of a float64 tensor; None where all of them are.

    Elements that are not finite are ordinary: no metric counts them.
    """
    if truth.dtype.kind != "f" or truth.size < 2:
        return None
    flat = truth.reshape(-1)
    some = np.abs(flat[:: max(1, flat.size // SAMPLE)])
    some = some[(some > 0) & np.isfinite(some)]
    if not some.size:
        return None
    far = FAR * float(np.median(some))
    peak = max(float(np.fmax.reduce(flat)), -float(np.fmin.reduce(flat)))
    if not np.isfinite(peak):
        finite = flat[np.isfinite(flat)]
        peak = float(np.abs(finite).max(initial=0.0))
    if peak <= far:
        return None
    return ~((np.abs(truth) > far) & np.isfinite(truth))


def rms_error(actual: Array, truth: Array) -> float:
    """``numerics.rms_error`` of the ordinary elements of ``truth``; raises as that does."""
    mask = ordinary(truth)
    if mask is None or actual.shape != truth.shape:
        return numerics.rms_error(actual, truth)
    return numerics.rms_error(actual[mask], truth[mask])


def rms(truth: Array) -> float:
    """Root mean square of the ordinary elements that are finite; 0 of none."""
    mask = ordinary(truth)
    values = truth if mask is None else truth[mask]
    try:
        return numerics.rms_error(values, np.zeros_like(values))
    except numerics.Incomparable:
        finite = values[np.isfinite(values)]
        return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def others_differ(actual: Array, truth: Array, eps: float) -> bool:
    """Whether the elements that are not ordinary are off by more than ``eps`` of their RMS."""
    mask = ordinary(truth)
    if mask is None or actual.shape != truth.shape:
        return False
    try:
        return numerics.rms_error(actual[~mask], truth[~mask]) > eps * rms(truth[~mask])
    except numerics.Incomparable:
        return True
