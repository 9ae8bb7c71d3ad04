"""Faster, slower, the same: the law of the verdict on a ratio of times.

A difference is claimed where it is both sure and large enough to matter:

1. ``p`` of no difference, corrected over all comparisons of the run (Holm), is at most ``ALPHA``;
2. the estimate lies beyond the margin: the practical one (``MARGIN``), or the A/A floor of this
   machine at so many rounds, where that is larger.

Then it is ``faster`` or ``slower``. ``same`` is a claim too: the whole interval lies within
``MARGIN`` on both sides (a noisy machine, whose floor is higher, proves no sameness). Everything
else is ``inconclusive``, and more rounds may tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from xbench.result import Ratio

MARGIN = 0.02
"""Relative difference below which nothing is claimed, however sure."""
ALPHA = 0.01
"""Chance of a false claim over all comparisons of a run. At 0.05 one run in twenty of the same
thing against itself would show a difference."""
FASTER, SLOWER, SAME, INCONCLUSIVE = "faster", "slower", "same", "inconclusive"


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given: claims at ``ALPHA`` are then wrong together that often.

    Holm 1979, "A simple sequentially rejective multiple test procedure": the k-th smallest of n is
    multiplied by n - k + 1, and none is below the one before.
    """
    adjusted = [0.0] * len(ps)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = least
    return adjusted


def verdict(
    ratio: float, ci_low: float | None, ci_high: float | None, p: float | None, margin: float
) -> str:
    """The verdict on a ratio of times; ``p`` is adjusted. Without an interval: inconclusive."""
    if ci_low is None or ci_high is None or p is None:
        return INCONCLUSIVE
    if p <= ALPHA and ratio > 1.0 + margin:
        return SLOWER
    if p <= ALPHA and ratio < 1.0 / (1.0 + margin):
        return FASTER
    if ci_low >= 1.0 / (1.0 + MARGIN) and ci_high <= 1.0 + MARGIN:
        return SAME
    return INCONCLUSIVE


def judge(ratios: Sequence[Ratio], floors: Sequence[float | None]) -> list[Ratio]:
    """The ratios of one run with their verdicts; ``floors`` are this machine's, for each of them.

    All ratios that have a ``p`` form one family.
    """
    family = [index for index, ratio in enumerate(ratios) if ratio.p is not None]
    adjusted: dict[int, float] = dict(
        zip(family, holm([ratios[i].p or 0.0 for i in family]), strict=True)
    )
    judged = []
    for index, (ratio, floor) in enumerate(zip(ratios, floors, strict=True)):
        margin = max(MARGIN, floor or 0.0)
        p = adjusted.get(index)
        judged.append(
            msgspec.structs.replace(
                ratio,
                p=p,
                family=max(1, len(family)),
                margin=margin,
                floor=floor,
                verdict=verdict(ratio.ratio, ratio.ci_low, ratio.ci_high, p, margin),
            )
        )
    return judged
