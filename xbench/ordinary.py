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
"""How many times the next smaller magnitude that of a mask is, at least."""
ALIKE = 1.001
"""How far apart the magnitudes of masks may be, as a ratio: one value, and what was added to it."""
SAMPLE = 1 << 16
"""Elements that are looked at to find masks, evenly spread."""


def ordinary(truth: Array) -> Array | None:
    """A mask of the ordinary elements of a float64 tensor; None where all of them are.

    Not ordinary are elements of nearly one magnitude beyond a gap of ``FAR``, however many they
    are. Elements that are not finite are ordinary: no metric counts them.
    """
    if truth.dtype.kind != "f" or truth.size < 2:
        return None
    flat = truth.reshape(-1)
    some = np.abs(flat[:: max(1, flat.size // SAMPLE)])
    # The largest is looked at in any case.
    peak = np.abs(flat).max(initial=0.0, where=np.isfinite(flat))
    some = np.sort(np.append(some[(some > 0) & np.isfinite(some)], peak))
    with np.errstate(over="ignore", divide="ignore"):
        gaps = np.flatnonzero(some[1:] > FAR * some[:-1])
    if not gaps.size or some[-1] > ALIKE * some[gaps[-1] + 1]:
        return None
    far = some[gaps[-1] + 1] / ALIKE
    mask: Array = ~((np.abs(truth) >= far) & np.isfinite(truth))
    return mask


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
