"""What a soak shows: whether time or memory rises or falls while a case runs on and on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from xbench import speed, stats
from xbench.result import Soak, SoakWindow, Trend

WARMUP_SHARE = 0.1
"""Of the soak, left out of the trends: caches fill and memory pools grow at its beginning."""
CHANGE = 0.02
"""Relative change over the soak below which a trend is not worth a word."""
STEADY, RISING, FALLING, INCONCLUSIVE = "steady", "rising", "falling", "inconclusive"

QUANTITIES: dict[str, Callable[[SoakWindow], float | None]] = {
    "median": lambda window: window.median_s,
    "p99": lambda window: window.p99_s,
    "memory": lambda window: float(window.memory_bytes),
}


def with_trends(soak: Soak) -> Soak:
    """The soak with the trend of median, p99 and memory, where enough stretches have a value.

    A trend is ``rising`` or ``falling`` where p, corrected over the quantities (Holm), is at most
    ``speed.ALPHA`` and the change over the soak is beyond ``CHANGE``; ``steady`` where the change
    is within it; ``inconclusive`` where it is beyond, but may be chance.
    """
    settled = [w for w in soak.windows if w.at_s >= WARMUP_SHARE * soak.duration_s]
    found: list[tuple[str, float, float]] = []
    for what, value in QUANTITIES.items():
        series = [number for window in settled if (number := value(window)) is not None]
        if len(series) >= stats.MIN_FOR_TREND:
            found.append((what, *stats.trend(series)))
    trends = [
        Trend(what=what, change=change, p=p, verdict=verdict(change, p))
        for (what, change, _), p in zip(found, speed.holm([p for *_, p in found]), strict=True)
    ]
    return msgspec.structs.replace(soak, trends=trends)


def verdict(change: float, p: float) -> str:
    """The word for a relative change and its adjusted p."""
    if abs(change) <= CHANGE:
        return STEADY
    if p > speed.ALPHA:
        return INCONCLUSIVE
    return RISING if change > 0 else FALLING
