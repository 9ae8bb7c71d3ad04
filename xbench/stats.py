"""Statistics of latency. The process is the unit: its median is one observation.

Iterations within a process are autocorrelated, and a fresh process is a random effect of its
own, so that intervals from pooled iterations are wrong. Times are compared on the log scale,
where a ratio is a difference. Intervals are two-sided 95 %, from Student's t.

numpy and scipy are imported where they compute: a report that only reads need not wait for them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from xbench.result import Latency, Ratio, Samples

if TYPE_CHECKING:
    import numpy as np

MIN_FOR_INTERVAL = 3
"""Processes or rounds. With two, t with one degree of freedom is 12.7: an interval says nothing."""
MIN_FOR_P90 = 64
MIN_FOR_P99 = 662
"""Values from which a tail quantile is reported: six are then expected beyond it."""
CONFIDENCE = 0.95
TRIM = 0.2
"""Share of the ratios of rounds that is left out at each end."""
MIN_FOR_TRIMMING = 10
"""Values from which a mean is trimmed, and the interval of a median is that of its ranks."""
MIN_FOR_TREND = 10
"""Values in a row from which a trend is told from chance."""


class Unpaired(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of two stored runs: no interval and no p under three processes on a side."""

    ratio: float
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None


def latency(samples: Sequence[Samples]) -> Latency:
    """Median of process medians, its 95 % interval over processes, and tails of pooled values.

    The interval is about that same median. From ``MIN_FOR_TRIMMING`` processes on it lies between
    two of their medians, whose ranks hold the median of any distribution with 95 % or more (the
    sign test's interval; Conover 1999, section 3.2). Of fewer it is log m +- t sqrt(pi / 2) s /
    sqrt(n) on the log scale, for n process medians whose logs have standard deviation s: pi / 2 is
    the most by which the variance of a median exceeds that of a mean for normal values (reached as
    n grows; Cramer 1946, section 28.5), so it is, if anything, too wide. It is None under
    ``MIN_FOR_INTERVAL`` processes.

    ``p90_s`` and ``p99_s`` are None under ``MIN_FOR_P90`` and ``MIN_FOR_P99`` values, and when
    bodies were timed several at a time: the mean of a batch hides its slowest.
    Raises ValueError when there is no value, or a process median is not a positive number.
    """
    medians = list(process_medians(samples).values())
    if not medians:
        raise ValueError("no samples")
    pooled = [value for part in samples for value in part.values_s]
    single = all(part.per_sample == 1 for part in samples)
    median = statistics.median(medians)
    low, high = _of_ranks(medians) or _interval(median, [math.log(value) for value in medians])
    return Latency(
        median_s=median,
        ci_low_s=low,
        ci_high_s=high,
        p90_s=_quantile(pooled, 0.90) if single and len(pooled) >= MIN_FOR_P90 else None,
        p99_s=_quantile(pooled, 0.99) if single and len(pooled) >= MIN_FOR_P99 else None,
        n=len(pooled),
        processes=len(medians),
    )


def ratio(a: Sequence[Samples], b: Sequence[Samples], to: str) -> Ratio | None:
    """Time of ``a`` over time of ``b`` (the case ``to``), paired by round; None without a pair.

    The estimate is the trimmed mean of the logs of the ratios of process medians (of their median
    where a round has several processes), with its t interval, and ``p`` the two-sided chance of a
    mean as far from 0 where there is no difference: see ``trimmed``. Both are None under
    ``MIN_FOR_INTERVAL`` common rounds. Raises ValueError as ``latency`` does.
    """
    times_a, times_b = _round_times(a), _round_times(b)
    logs = [
        math.log(times_a[round_] / times_b[round_])
        for round_ in sorted(times_a.keys() & times_b.keys())
    ]
    if not logs:
        return None
    mean, error, df = trimmed(logs)
    found = _t_test(mean, error, df) if error is not None else Unpaired(ratio=math.exp(mean))
    return Ratio(
        to=to,
        ratio=found.ratio,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        rounds=len(logs),
        p=found.p,
    )


def trimmed(values: Sequence[float]) -> tuple[float, float | None, float]:
    """Trimmed mean, its standard error, and the degrees of freedom of its t test.

    From ``MIN_FOR_TRIMMING`` values on, ``TRIM`` of them are left out at both ends, and the error
    is from the variance of the winsorized values (Tukey and McLaughlin 1963; Yuen 1974). Now and
    then a whole process meets a busy neighbour and is slower by a fifth: one such ratio in ten
    doubles the error of a plain mean. Of fewer values it is the plain mean. The error is None under
    ``MIN_FOR_INTERVAL`` values.
    """
    n = len(values)
    cut = int(TRIM * n) if n >= MIN_FOR_TRIMMING else 0
    ranked = sorted(values)
    kept = ranked[cut : n - cut]
    mean = statistics.fmean(kept)
    if n < MIN_FOR_INTERVAL:
        return mean, None, 0.0
    winsorized = [ranked[cut]] * cut + kept + [ranked[n - cut - 1]] * cut
    h = len(kept)
    return mean, math.sqrt((n - 1) * _variance(winsorized) / (h * (h - 1))), h - 1.0


def between_runs(
    a: Sequence[Samples], b: Sequence[Samples], run_sd: float, run_df: float = math.inf
) -> Unpaired | None:
    """Time of ``b`` over that of ``a``, two runs measured one after the other.

    The estimate is the ratio of the medians of process medians. With s the standard deviation of
    the logs of n process medians, the variance of its log is

        (pi / 2) s_a^2 / n_a + (pi / 2) s_b^2 / n_b + 2 run_sd^2

    where pi / 2 is what a median costs over a mean (as in ``latency``) and ``run_sd`` the log
    standard deviation of a whole run. A measured ``run_sd`` holds the noise of processes too, so
    the interval is, if anything, too wide. Degrees of freedom by Welch and Satterthwaite
    (Satterthwaite 1946), the run part with ``run_df``: infinite for a value that is not learnt.
    None where a side has no samples. Raises ValueError as ``latency`` does.
    """
    logs_a, logs_b = _logs(a), _logs(b)
    if not logs_a or not logs_b:
        return None
    log = statistics.median(logs_b) - statistics.median(logs_a)
    if min(len(logs_a), len(logs_b)) < MIN_FOR_INTERVAL:
        return Unpaired(ratio=math.exp(log))
    parts = [(math.pi / 2.0 * _variance(x) / len(x), len(x) - 1.0) for x in (logs_a, logs_b)]
    parts.append((2.0 * run_sd**2, run_df))
    variance = math.fsum(part for part, _ in parts)
    if variance <= 0:
        return _t_test(log, 0.0, 1.0)
    # Relative to the variance: the square of a tiny one would underflow.
    df = 1.0 / max(math.fsum((part / variance) ** 2 / own for part, own in parts), 1e-12)
    return _t_test(log, math.sqrt(variance), df)


def least_difference(run_sd: float, run_df: float, alpha: float) -> float:
    """The relative difference of two stored runs under which no p is as small as ``alpha``.

    From the noise between runs alone, as ``between_runs`` takes it: processes only add to it.
    """
    from scipy.special import stdtrit

    t = float(stdtrit(min(run_df, 1e12), 1.0 - alpha / 2.0))  # stdtrit takes no infinity
    return math.expm1(t * math.sqrt(2.0) * run_sd)


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
    best monotone curve leaves, by (1 + r) / (1 - r): neighbouring windows of one process are not
    independent. (What a straight line leaves of a step or a bend would pass for correlation. With
    r = 0.5 and no trend, p is at most 0.01 in 3.6 % of simulated series; with r = 0, in under 1 %.)
    Raises ValueError under ``MIN_FOR_TREND`` values.
    """
    import numpy as np

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
    rest = y - _monotone(y)
    power = float(rest @ rest)
    # What rounding leaves of a perfect line is no noise: its correlation says nothing.
    r = float(rest[1:] @ rest[:-1]) / power if power > n * (1e-9 * centre) ** 2 else 0.0
    # The estimate is low by (1 + 3 r) / n (Kendall 1954).
    r = min(0.95, max(0.0, r + (1.0 + 3.0 * r) / n))
    variance *= (1.0 + r) / (1.0 - r)
    score = float(np.sign(steps).sum())
    if not variance or not score:
        return change, 1.0
    z = (abs(score) - 1.0) / math.sqrt(variance)
    return change, min(1.0, math.erfc(max(z, 0.0) / math.sqrt(2.0)))


def _monotone(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rising or falling curve that is nearest to ``y`` in squares (isotonic regression)."""
    import numpy as np
    from scipy.optimize import isotonic_regression

    fits = [isotonic_regression(y, increasing=up).x for up in (True, False)]
    return np.asarray(min(fits, key=lambda fit: float(((y - fit) ** 2).sum())))


def _quantile(values: Sequence[float], q: float) -> float:
    import numpy as np

    return float(np.quantile(values, q))


def _t_test(log: float, error: float, df: float) -> Unpaired:
    """The ratio exp(log), its interval, and p that it is 1; ``error`` is that of ``log``."""
    if error == 0:
        sure = math.exp(log)
        return Unpaired(ratio=sure, ci_low=sure, ci_high=sure, p=0.0 if log else 1.0)
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(df, 0.5 + CONFIDENCE / 2)) * error
    return Unpaired(
        ratio=math.exp(log),
        ci_low=math.exp(log - half),
        ci_high=math.exp(log + half),
        p=2.0 * float(stdtr(df, -abs(log) / error)),
    )


def _logs(samples: Sequence[Samples]) -> list[float]:
    return [math.log(value) for value in process_medians(samples).values()]


def _variance(values: Sequence[float]) -> float:
    """As ``statistics.variance``, which is exact and ten times as slow."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def process_medians(samples: Sequence[Samples]) -> dict[tuple[int, int], float]:
    """The median of every process that has values, by round and process.

    Raises ValueError that names a process whose median is not a positive number.
    """
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for part in samples:
        values[part.round, part.process] += part.values_s
    medians = {key: statistics.median(found) for key, found in values.items() if found}
    for (round_, process), median in medians.items():
        if not 0 < median < math.inf:
            raise ValueError(f"process {process} of round {round_} took {median} s")
    return medians


def _round_times(samples: Sequence[Samples]) -> dict[int, float]:
    """The median of the process medians of every round."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for (round_, _), median in process_medians(samples).items():
        rounds[round_].append(median)
    return {round_: statistics.median(medians) for round_, medians in rounds.items()}


def _of_ranks(values: Sequence[float]) -> tuple[float, float] | None:
    """The values between which the median lies with ``CONFIDENCE``; None where they are too few.

    With n values the k-th from either end will do if a fair coin shows fewer than k heads in n
    throws with a chance of at most half the rest.
    """
    n = len(values)
    if n < MIN_FOR_TRIMMING:
        return None
    ranked = sorted(values)
    k, below = 0, 0.5**n
    while below <= (1 - CONFIDENCE) / 2:
        k += 1
        below += math.comb(n, k) * 0.5**n
    return ranked[k - 1], ranked[n - k]


def _interval(median: float, logs: Sequence[float]) -> tuple[float | None, float | None]:
    """median * exp(-+ t sqrt(pi / 2) s / sqrt(n)); s is the standard deviation of ``logs``."""
    n = len(logs)
    if n < MIN_FOR_INTERVAL:
        return None, None
    from scipy.special import stdtrit  # scipy.stats takes 0.8 s to import, scipy itself 0.2 s

    t = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
    factor = math.exp(t * math.sqrt(math.pi / 2) * statistics.stdev(logs) / math.sqrt(n))
    return median / factor, median * factor
