"""What a soak shows, against series whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from xbench import stats
from xbench.result import Soak, SoakWindow, Trend
from xbench.soaking import CHANGE, WARMUP_SHARE, verdict, with_trends

Array = np.ndarray[tuple[int], np.dtype[np.float64]]
N = 60
FLAT = np.ones(N)


def soak(median: Array = FLAT, memory: Array = FLAT, p99: Sequence[float | None] = ()) -> Soak:
    """A soak of 120 s in windows of 2 s; times in units of 10 ms, memory of 100 MB."""
    tails = list(p99) or [None] * len(median)
    return Soak(
        duration_s=2.0 * len(median),
        windows=[
            SoakWindow(
                at_s=2.0 * index,
                n=200,
                median_s=0.01 * float(median[index]),
                p99_s=tails[index],
                memory_bytes=round(1e8 * float(memory[index])),
            )
            for index in range(len(median))
        ],
    )


def trends(found: Soak) -> dict[str, Trend]:
    return {trend.what: trend for trend in with_trends(found).trends}


def words(found: Soak) -> dict[str, str]:
    return {what: trend.verdict for what, trend in trends(found).items()}


def autocorrelated(random: np.random.Generator, sd: float, r: float = 0.5) -> Array:
    """About 1, where every value keeps ``r`` of what the one before was off."""
    noise = sd * random.standard_normal(N)
    noise[0] /= np.sqrt(1 - r * r)
    for index in range(1, N):
        noise[index] += r * noise[index - 1]
    return 1.0 + noise


RAMP = np.linspace(0.0, 1.0, N)


def test_memory_that_rises_is_found_and_times_that_do_not_are_steady() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        memory = (1 + 0.3 * RAMP) * (1 + 0.02 * random.standard_normal(N))
        found = trends(soak(memory=memory, median=1 + 0.001 * random.standard_normal(N)))
        assert (found["memory"].verdict, found["median"].verdict) == ("rising", "steady")
        # 0.3 * 0.9 of the ramp is after the warm-up, relative to its middle.
        assert found["memory"].change == pytest.approx(0.27 / 1.165, rel=0.2)


@pytest.mark.parametrize(("slope", "word"), [(0.2, "rising"), (-0.2, "falling")])
def test_times_that_drift_under_autocorrelated_noise_are_found(slope: float, word: str) -> None:
    random = np.random.default_rng(2)
    found = 0
    for _ in range(50):
        said = words(soak(median=(1 + slope * RAMP) * autocorrelated(random, 0.02)))
        assert said["median"] in (word, "inconclusive")
        assert said["memory"] == "steady"
        found += said["median"] == word
    assert found >= 45


def test_tails_have_a_trend_of_their_own() -> None:
    noise = 0.02 * np.random.default_rng(5).standard_normal(N)
    p99 = [0.02 * float(x) for x in (1 + 0.5 * RAMP) * (1 + noise)]
    assert words(soak(p99=p99)) == {"median": "steady", "p99": "rising", "memory": "steady"}
    assert "p99" not in words(soak())
    assert "p99" not in words(soak(p99=[0.02] * 9 + [None] * (N - 9)))


def test_noise_that_remembers_is_hardly_ever_taken_for_a_trend() -> None:
    """200 soaks of three flat quantities, lag-1 correlation 0.5: independence would find dozens."""
    random = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        p99 = [float(x) for x in autocorrelated(random, 0.05)]
        median, memory = (autocorrelated(random, 0.05) for _ in range(2))
        said = words(soak(median=median, memory=memory, p99=p99))
        assert len(said) == 3
        wrong += bool({"rising", "falling"} & set(said.values()))
    assert wrong <= 14


def test_a_constant_series_is_steady_for_certain() -> None:
    for value in (0.0, 1.0):
        found = trends(soak(memory=np.full(N, value)))
        assert [(t.change, t.p, t.verdict) for t in found.values()] == [(0.0, 1.0, "steady")] * 2


def test_a_rise_in_the_warm_up_is_none() -> None:
    early = FLAT.copy()
    early[: round(WARMUP_SHARE * N)] = np.linspace(0.1, 0.9, round(WARMUP_SHARE * N))
    assert set(words(soak(median=early, memory=early)).values()) == {"steady"}
    later = FLAT + 0.1 * np.clip(np.arange(N) - WARMUP_SHARE * N, 0, None)
    assert words(soak(memory=later))["memory"] == "rising"


@pytest.mark.parametrize(("windows", "some"), [(11, False), (12, True)])
def test_too_few_stretches_have_no_trend(windows: int, some: bool) -> None:
    # Of 12 stretches of 2 s, two begin within the first tenth of 24 s: ten are left.
    found = soak(median=np.linspace(1, 2, windows), memory=np.ones(windows))
    assert bool(with_trends(found).trends) == some
    assert stats.MIN_FOR_TREND == 10


def test_the_windows_stay_as_they_are() -> None:
    found = soak(memory=1 + RAMP)
    assert with_trends(found).windows == found.windows
    assert with_trends(found).duration_s == found.duration_s
    assert with_trends(with_trends(found)) == with_trends(found)


def test_the_p_of_all_quantities_are_one_family() -> None:
    random = np.random.default_rng(4)
    median, memory = (autocorrelated(random, 0.05) for _ in range(2))
    start = round(WARMUP_SHARE * N)
    found = trends(soak(median=median, memory=memory))
    alone = {
        "median": stats.trend((0.01 * median[start:]).tolist())[1],
        "memory": stats.trend(np.round(1e8 * memory[start:]).tolist())[1],
    }
    smaller, larger = sorted(alone, key=lambda what: alone[what])
    assert found[smaller].p == pytest.approx(min(1.0, 2 * alone[smaller]))
    assert found[larger].p == pytest.approx(min(1.0, max(2 * alone[smaller], alone[larger])))


@pytest.mark.parametrize(
    ("change", "p", "word"),
    [
        (0.5, 0.01, "rising"),
        (-0.5, 0.01, "falling"),
        (0.5, 0.0101, "inconclusive"),
        (-0.5, 1.0, "inconclusive"),
        (CHANGE, 0.0, "steady"),
        (-CHANGE, 0.0, "steady"),
        (1.01 * CHANGE, 0.0, "rising"),
        (0.0, 1.0, "steady"),
    ],
)
def test_the_word_for_a_change(change: float, p: float, word: str) -> None:
    assert verdict(change, p) == word
