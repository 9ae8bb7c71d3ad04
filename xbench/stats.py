"""Statistics of latency. The process is the unit: its median is one observation.

Iterations within a process are autocorrelated, and a fresh process is a random effect of its
own, so that intervals from pooled iterations are wrong. Times are compared on the log scale,
where a ratio is a difference. Intervals are two-sided 95 %, from Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from xbench.result import Latency, Ratio, Samples

MIN_FOR_INTERVAL = 3
"""Processes or rounds. With two, t with one degree of freedom is 12.7: an interval says nothing."""
MIN_FOR_P90 = 64
MIN_FOR_P99 = 662
"""Values from which a tail quantile is reported: six are then expected beyond it."""
CONFIDENCE = 0.95
MIN_FOR_TREND = 10
"""Values in a row from which a trend is told from chance."""


def latency(samples: Sequence[Samples]) -> Latency:
    """Median of process medians, its 95 % interval over processes, and tails of pooled values.

    The interval is about that same median, on the log scale: log m +- t sqrt(pi / 2) s / sqrt(n)
    for n process medians whose logs have standard deviation s. pi / 2 is the most by which the
    variance of a median exceeds that of a mean for normal values (reached as n grows; Cramer
    1946, section 28.5), so the interval always holds its estimate and is, if anything, too wide.
    It is None under ``MIN_FOR_INTERVAL`` processes.

    ``p90_s`` and ``p99_s`` are None under ``MIN_FOR_P90`` and ``MIN_FOR_P99`` values, and when
    bodies were timed several at a time: the mean of a batch hides its slowest.
    Raises ValueError when there is no value, or a process median is not a positive number.
    """
    medians = list(_process_medians(samples).values())
    if not medians:
        raise ValueError("no samples")
    pooled = [value for part in samples for value in part.values_s]
    single = all(part.per_sample == 1 for part in samples)
    median = statistics.median(medians)
    low, high = _interval(median, [math.log(value) for value in medians], math.sqrt(math.pi / 2))
    return Latency(
        median_s=median,
        ci_low_s=low,
        ci_high_s=high,
        p90_s=float(np.quantile(pooled, 0.90)) if single and len(pooled) >= MIN_FOR_P90 else None,
        p99_s=float(np.quantile(pooled, 0.99)) if single and len(pooled) >= MIN_FOR_P99 else None,
        n=len(pooled),
        processes=len(medians),
    )


def ratio(a: Sequence[Samples], b: Sequence[Samples], to: str) -> Ratio | None:
    """Time of ``a`` over time of ``b`` (the case ``to``), paired by round; None without a pair.

    The estimate is the geometric mean of the ratios of process medians (of their median where a
    round has several processes), with the t interval on the paired log ratios, and ``p`` the
    two-sided chance of a mean as far from 0 where there is no difference. Both are None under
    ``MIN_FOR_INTERVAL`` common rounds. Raises ValueError as ``latency`` does.
    """
    times_a, times_b = _round_times(a), _round_times(b)
    logs = [
        math.log(times_a[round_] / times_b[round_])
        for round_ in sorted(times_a.keys() & times_b.keys())
    ]
    if not logs:
        return None
    estimate = math.exp(statistics.fmean(logs))
    low, high = _interval(estimate, logs, 1.0)
    return Ratio(to=to, ratio=estimate, ci_low=low, ci_high=high, rounds=len(logs), p=_chance(logs))


def half_width(latency: Latency) -> float | None:
    """The further end of the interval of a median, relative to it; None without an interval."""
    if latency.ci_low_s is None or latency.ci_high_s is None:
        return None
    furthest = max(latency.ci_high_s - latency.median_s, latency.median_s - latency.ci_low_s)
    return furthest / latency.median_s


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Whether a series in equal steps rises or falls: its relative change, and p of no trend.

    The change is the Theil-Sen slope (Sen 1968) times the length, over the median. p is that of the
    Mann-Kendall test (Kendall 1975), its variance widened for the lag-1 correlation r of what the
    slope leaves, by (1 + r) / (1 - r): neighbouring windows of one process are not independent.
    Raises ValueError under ``MIN_FOR_TREND`` values.
    """
    n = len(values)
    if n < MIN_FOR_TREND:
        raise ValueError(f"a trend needs {MIN_FOR_TREND} values, not {n}")
    y = np.asarray(values, np.float64)
    i, j = np.triu_indices(n, k=1)
    steps = y[j] - y[i]
    slope = float(np.median(steps / (j - i)))
    centre = float(np.median(y))
    change = slope * (n - 1) / centre if centre else 0.0
    _, ties = np.unique(y, return_counts=True)
    variance = (
        n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18.0
    rest = y - slope * np.arange(n)
    rest = rest - rest.mean()
    power = float(rest @ rest)
    r = float(rest[1:] @ rest[:-1]) / power if power else 0.0
    # The estimate is low by (1 + 3 r) / n (Kendall 1954).
    r = min(0.95, max(0.0, r + (1.0 + 3.0 * r) / n))
    variance *= (1.0 + r) / (1.0 - r)
    score = float(np.sign(steps).sum())
    if not variance or not score:
        return change, 1.0
    z = (abs(score) - 1.0) / math.sqrt(variance)
    return change, min(1.0, math.erfc(max(z, 0.0) / math.sqrt(2.0)))


def _chance(logs: Sequence[float]) -> float | None:
    """p of Student's t test that the mean of ``logs`` is 0; None where there are too few."""
    n = len(logs)
    if n < MIN_FOR_INTERVAL:
        return None
    from scipy.special import stdtr

    mean, deviation = statistics.fmean(logs), statistics.stdev(logs)
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return 2.0 * float(stdtr(n - 1, -abs(mean) * math.sqrt(n) / deviation))


def _process_medians(samples: Sequence[Samples]) -> dict[tuple[int, int], float]:
    """The median of every process that has values, by round and process."""
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for part in samples:
        values[part.round, part.process].extend(part.values_s)
    medians = {key: statistics.median(found) for key, found in values.items() if found}
    for (round_, process), median in medians.items():
        if not (median > 0 and math.isfinite(median)):
            raise ValueError(f"process {process} of round {round_} took {median} s")
    return medians


def _round_times(samples: Sequence[Samples]) -> dict[int, float]:
    """The median of the process medians of every round."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for (round_, _), median in _process_medians(samples).items():
        rounds[round_].append(median)
    return {round_: statistics.median(medians) for round_, medians in rounds.items()}


def _interval(
    estimate: float, logs: Sequence[float], inflation: float
) -> tuple[float | None, float | None]:
    """estimate * exp(-+ t * inflation * s / sqrt(n)); s is the standard deviation of ``logs``."""
    n = len(logs)
    if n < MIN_FOR_INTERVAL:
        return None, None
    from scipy.special import stdtrit  # scipy.stats takes 0.8 s to import, scipy itself 0.2 s

    t = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
    factor = math.exp(t * inflation * statistics.stdev(logs) / math.sqrt(n))
    return estimate / factor, estimate * factor
