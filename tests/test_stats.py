"""Statistics against simulated processes whose truth is known."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench import stats
from xbench.result import Latency, Samples
from xbench.stats import half_width, latency, ratio, trend

TIMES = st.floats(1e-7, 1e3)


def one_each(*medians: float) -> list[Samples]:
    """A process of one value per round."""
    return [Samples(process=i, round=i, values_s=[value]) for i, value in enumerate(medians)]


def simulate(
    random: np.random.Generator, rounds: int, median: float, spread: float = 0.037
) -> list[Samples]:
    """Processes that differ by ``spread``, each with autocorrelated, right-skewed values."""
    samples = []
    for index in range(rounds):
        noise = random.standard_normal(12) * 0.01
        noise[1:] += 0.3 * noise[:-1]
        level = median * math.exp(spread * random.standard_normal())
        values = level * (1 + np.abs(noise))
        samples.append(Samples(process=index, round=index, values_s=values.tolist()))
    return samples


def test_latency_is_the_median_of_process_medians() -> None:
    samples = [
        Samples(process=0, round=0, values_s=[1.0, 9.0, 1.1]),  # 1.1
        Samples(process=1, round=1, values_s=[2.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
        Samples(process=2, round=2, values_s=[3.0, 5.0]),  # 4.0
    ]
    found = latency(samples)
    assert (found.median_s, found.processes, found.n) == (2.0, 3, 11)
    logs = np.log([1.1, 2.0, 4.0])
    half = 4.302652729749 * math.sqrt(math.pi / 2) * logs.std(ddof=1) / math.sqrt(3)
    assert found.ci_low_s == pytest.approx(2 * math.exp(-half), rel=1e-6)
    assert found.ci_high_s == pytest.approx(2 * math.exp(half), rel=1e-6)


@given(st.lists(TIMES, min_size=3, max_size=9))
@settings(deadline=None)
def test_the_interval_holds_its_estimate(medians: list[float]) -> None:
    found = latency(one_each(*medians))
    assert found.ci_low_s is not None
    assert found.ci_high_s is not None
    assert 0 < found.ci_low_s <= found.median_s <= found.ci_high_s
    assert found.median_s == np.median(medians)


@pytest.mark.parametrize(("processes", "has"), [(1, False), (2, False), (3, True)])
def test_no_interval_from_fewer_than_three_processes(processes: int, has: bool) -> None:
    found = latency(one_each(*range(1, processes + 1)))
    assert (found.ci_low_s is not None) == (found.ci_high_s is not None) == has


@pytest.mark.parametrize(
    ("values", "p90", "p99"), [(63, False, False), (64, True, False), (661, True, False),
                               (662, True, True)]
)  # fmt: skip
def test_tails_need_enough_values(values: int, p90: bool, p99: bool) -> None:
    half = values // 2
    samples = [
        Samples(process=0, round=0, values_s=[float(i) for i in range(1, half + 1)]),
        Samples(process=1, round=1, values_s=[float(i) for i in range(half + 1, values + 1)]),
    ]
    found = latency(samples)
    pooled = np.arange(1, values + 1)
    assert found.p90_s == (pytest.approx(np.quantile(pooled, 0.9)) if p90 else None)
    assert found.p99_s == (pytest.approx(np.quantile(pooled, 0.99)) if p99 else None)


def test_means_of_batches_have_no_tail() -> None:
    samples = [Samples(process=0, round=0, values_s=[1.0] * 700, per_sample=4)]
    assert latency(samples).p90_s is None
    assert latency(samples).p99_s is None


def test_a_process_reported_in_parts_counts_once() -> None:
    parts = [Samples(process=0, round=0, values_s=[v]) for v in (1.0, 2.0, 3.0)]
    assert latency(parts).processes == 1
    assert latency([*parts, Samples(process=1, round=0, values_s=[])]).processes == 1


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="process 2 of round 2 took"):
        latency(one_each(1.0, 1.0, value))
    with pytest.raises(ValueError, match="process 0 of round 0 took"):
        ratio(one_each(value), one_each(1.0), "b")


def test_nothing_measured() -> None:
    for samples in ([], [Samples(process=0, round=0, values_s=[])]):
        with pytest.raises(ValueError, match="no samples"):
            latency(samples)
        assert ratio(samples, one_each(1.0), "b") is None


def test_ratio_pairs_by_round() -> None:
    """A machine that is ten times slower in one round slows both sides and changes nothing."""
    a = [Samples(process=9, round=r, values_s=[2.0 * s]) for r, s in enumerate((1, 10, 3, 1))]
    b = [Samples(process=r, round=r, values_s=[1.0 * s]) for r, s in enumerate((1, 10, 3, 1))]
    found = ratio(a, b[::-1], "key")
    assert found is not None
    assert (found.to, found.rounds) == ("key", 4)
    assert found.ratio == found.ci_low == found.ci_high == pytest.approx(2)


def test_ratio_uses_common_rounds_only() -> None:
    a, b = one_each(2.0, 2.0, 2.0, 2.0), one_each(1.0, 1.0, 1.0)
    assert ratio(a[2:], b, "b") == ratio(a[2:3], b[2:], "b")
    assert ratio(a[3:], b, "b") is None
    two, three = ratio(a[1:], b, "b"), ratio(a, b, "b")
    assert two is not None
    assert three is not None
    assert (two.rounds, two.ci_low, two.ci_high) == (2, None, None)
    assert three.rounds == 3
    assert three.ci_low == pytest.approx(2)


def test_several_processes_of_a_round_are_one_observation() -> None:
    a = [Samples(process=i, round=0, values_s=[v]) for i, v in enumerate((3.0, 4.0, 50.0))]
    found = ratio(a, one_each(2.0), "b")
    assert found is not None
    assert found.rounds == 1
    assert found.ratio == pytest.approx(2)


@given(st.lists(TIMES, min_size=1, max_size=9))
@settings(deadline=None)
def test_identical_samples_have_ratio_one(medians: list[float]) -> None:
    found = ratio(one_each(*medians), one_each(*medians), "b")
    assert found is not None
    assert found.ratio == 1
    assert (found.ci_low, found.ci_high) == ((1, 1) if len(medians) > 2 else (None, None))


@given(st.lists(st.tuples(TIMES, TIMES), min_size=3, max_size=9))
@settings(deadline=None)
def test_the_other_way_round_is_the_inverse(times: list[tuple[float, float]]) -> None:
    a, b = (one_each(*side) for side in zip(*times, strict=True))
    there, back = ratio(a, b, "b"), ratio(b, a, "a")
    assert there is not None
    assert back is not None
    assert back.ci_low is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ci_high == pytest.approx(1 / back.ci_low)


@pytest.mark.parametrize("rounds", [3, 6, 15])
def test_intervals_cover_the_truth(rounds: int) -> None:
    """95 % asked for, of 1500 simulated experiments; the latency's is wide on purpose."""
    random = np.random.default_rng(20)
    truth = float(np.median(1 + np.abs(_noise(random))))  # of values about a process's level
    hits_ratio = hits_latency = 0
    experiments = 1500
    for _ in range(experiments):
        a, b = simulate(random, rounds, 1.1), simulate(random, rounds, 1.0)
        compared, alone = ratio(a, b, "b"), latency(b)
        assert compared is not None
        assert compared.ci_low is not None
        assert compared.ci_high is not None
        assert alone.ci_low_s is not None
        assert alone.ci_high_s is not None
        hits_ratio += compared.ci_low <= 1.1 <= compared.ci_high
        hits_latency += alone.ci_low_s <= truth <= alone.ci_high_s
    assert 0.93 < hits_ratio / experiments < 0.97
    assert 0.93 < hits_latency / experiments < 0.985


def _noise(random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Many values of ``simulate``'s noise."""
    noise = random.standard_normal((20_000, 12)) * 0.01
    noise[:, 1:] += 0.3 * noise[:, :-1]
    return noise.ravel()


def test_a_planted_factor_of_two_is_found() -> None:
    random = np.random.default_rng(21)
    for _ in range(200):
        found = ratio(simulate(random, 6, 2.0), simulate(random, 6, 1.0), "b")
        assert found is not None
        assert found.ci_low is not None
        assert found.ci_high is not None
        assert found.ci_low > 1.5
        assert found.ci_high < 2.7


def test_one_odd_round_is_not_taken_for_a_difference() -> None:
    random = np.random.default_rng(22)
    for factor in (10.0, 0.1):
        for median in (1.0, 1.2):
            for _ in range(100):
                a, b = simulate(random, 6, median, 0.01), simulate(random, 6, 1.0, 0.01)
                a[3] = Samples(process=3, round=3, values_s=[factor * v for v in a[3].values_s])
                found = ratio(a, b, "b")
                assert found is not None
                assert found.ci_low is not None
                assert found.ci_high is not None
                assert found.ci_low <= 1.0 <= found.ci_high
                assert latency(a).median_s == pytest.approx(median, rel=0.05)


def test_scipy_stats_is_never_imported() -> None:
    """It takes most of a second, in every command."""
    code = (
        "import sys; from xbench.result import Samples; from xbench.stats import latency;"
        "assert 'scipy' not in sys.modules;"
        "latency([Samples(i, i, [1.0 + i]) for i in range(3)]);"
        "assert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# -- the chance of no difference -------------------------------------------------------------------


def p_of(logs: Sequence[float]) -> float | None:
    """p of a ratio whose paired log ratios are these."""
    found = ratio(one_each(*np.exp(logs).tolist()), one_each(*[1.0] * len(logs)), "b")
    assert found is not None
    return found.p


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=9))
def test_p_of_few_rounds_is_that_of_students_test(logs: list[float]) -> None:
    from scipy.stats import ttest_1samp

    if np.ptp(logs) > 1e-6:
        assert p_of(logs) == pytest.approx(ttest_1samp(logs, 0.0).pvalue, rel=1e-6)


@given(st.lists(st.floats(-0.5, 0.5), min_size=10, max_size=40))
def test_p_of_many_rounds_is_that_of_yuens_test(logs: list[float]) -> None:
    from scipy.stats import trim_mean, ttest_ind

    mean, error, df = stats.trimmed(logs)
    assert mean == pytest.approx(float(trim_mean(logs, 0.2)), abs=1e-12)
    assert df == len(logs) - 2 * (len(logs) // 5) - 1
    if error is not None and error > 1e-6:
        # Against values without any spread the test of two samples is that of one.
        zeros = [0.0] * len(logs)
        expected = ttest_ind(logs, zeros, trim=0.2, equal_var=False).pvalue
        assert p_of(logs) == pytest.approx(expected, rel=1e-6)


def test_a_few_rounds_with_a_busy_neighbour_do_not_hide_a_difference() -> None:
    random = np.random.default_rng(5)
    clean = random.normal(np.log(1.05), 0.02, 30)
    spoilt = clean.copy()
    spoilt[[3, 11, 19]] += 0.4
    spoilt[[7, 23]] -= 0.3
    p = p_of(list(spoilt))
    assert p is not None
    assert p < 1e-6
    plain = spoilt.mean() / (spoilt.std(ddof=1) / np.sqrt(30))
    assert plain < 3, "a plain mean would leave it open"


@given(st.lists(st.floats(1e-6, 10.0), min_size=10, max_size=60))
def test_the_interval_of_many_processes_is_that_of_ranks(medians: list[float]) -> None:
    from scipy.stats import quantile_test

    found = latency(one_each(*medians))
    expected = quantile_test(medians, q=0, p=0.5).confidence_interval(0.95)
    assert (found.ci_low_s, found.ci_high_s) == (expected.low, expected.high)


@pytest.mark.parametrize(("rounds", "has"), [(1, False), (2, False), (3, True)])
def test_no_p_from_fewer_than_three_rounds(rounds: int, has: bool) -> None:
    assert (p_of([0.1, 0.2, 0.15][:rounds]) is not None) == has


def test_rounds_that_are_all_alike_leave_no_doubt() -> None:
    same, other = one_each(1.0, 1.0, 1.0), one_each(2.0, 2.0, 2.0)
    assert [found.p for found in (ratio(same, same, "b"), ratio(other, same, "b")) if found] == [
        1.0, 0.0,
    ]  # fmt: skip


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=9))
def test_p_and_interval_tell_the_same(logs: list[float]) -> None:
    found = ratio(one_each(*np.exp(logs).tolist()), one_each(*[1.0] * len(logs)), "b")
    assert found is not None
    assert found.p is not None
    assert found.ci_low is not None
    assert found.ci_high is not None
    if abs(found.p - 0.05) > 1e-6 and np.ptp(logs) > 1e-6:
        assert (found.p < 0.05) == (not found.ci_low <= 1.0 <= found.ci_high)


# -- the width of an interval ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [(1.8, 2.1, 0.1), (1.9, 2.4, 0.2), (2.0, 2.0, 0.0), (None, 2.1, None), (1.9, None, None)],
)
def test_the_further_end_is_the_half_width(
    low: float | None, high: float | None, width: float | None
) -> None:
    found = half_width(
        Latency(
            median_s=2.0, ci_low_s=low, ci_high_s=high, p90_s=None, p99_s=None, n=9, processes=3
        )
    )
    assert found == (None if width is None else pytest.approx(width))


@given(st.lists(TIMES, min_size=3, max_size=9), st.floats(1e-3, 1e3))
def test_the_half_width_has_no_unit(medians: list[float], factor: float) -> None:
    one, other = (
        half_width(latency(one_each(*[scale * value for value in medians])))
        for scale in (1.0, factor)
    )
    assert one is not None
    assert other == pytest.approx(one, rel=1e-6)


# -- trends ----------------------------------------------------------------------------------------


def zigzag(n: int, slope: float, size: float) -> list[float]:
    """A line with an error that changes its sign every time: nothing in it is autocorrelated."""
    return [1.0 + slope * i + size * (-1) ** i for i in range(n)]


@pytest.mark.parametrize("n", [10, 25, 60])
@pytest.mark.parametrize("slope", [-0.003, 0.0005, 0.002])
def test_a_trend_is_that_of_mann_and_kendall_and_of_theil_and_sen(n: int, slope: float) -> None:
    from scipy.stats import kendalltau, theilslopes

    values = zigzag(n, slope, 0.02)
    change, p = trend(values)
    steps = np.arange(n)
    assert change == pytest.approx(theilslopes(values, steps).slope * (n - 1) / np.median(values))
    # Without ties Kendall's tau is S over all pairs; the test takes 1 off S for continuity.
    score = abs(kendalltau(steps, values).statistic) * n * (n - 1) / 2
    z = (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    assert p == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-6)


def test_ties_narrow_the_variance() -> None:
    values = [1.0, 2.0] * 5 + [3.0, 2.0] * 5
    score = sum(np.sign(b - a) for i, a in enumerate(values) for b in values[i + 1 :])
    ties = sum(t * (t - 1) * (2 * t + 5) for t in (5, 10, 5))
    z = (score - 1) / math.sqrt((20 * 19 * 45 - ties) / 18)
    assert trend(values)[1] == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-6)


def test_an_error_that_remembers_makes_a_trend_less_sure() -> None:
    """The same values of the error, where neighbours are alike and where they are not."""
    random = np.random.default_rng(32)
    error = 0.05 * random.standard_normal(60)
    for index in range(1, 60):
        error[index] += 0.8 * error[index - 1]
    line = np.linspace(1.0, 1.3, 60)
    sure, unsure = (trend((line + e).tolist())[1] for e in (random.permutation(error), error))
    assert sure < 1e-6
    assert unsure > 100 * sure


def test_noise_alone_is_called_a_trend_as_often_as_allowed() -> None:
    """Of 400 series with a lag-1 correlation of 0.5: taken as independent, 51 would be."""
    random = np.random.default_rng(31)
    wrong = 0
    for _ in range(400):
        noise = 0.05 * random.standard_normal(54)
        for index in range(1, 54):
            noise[index] += 0.5 * noise[index - 1]
        wrong += trend((1.0 + noise).tolist())[1] <= 0.01
    assert wrong <= 16


def test_a_perfect_line_is_a_trend_beyond_doubt() -> None:
    """What rounding leaves of it is not noise that remembers."""
    for values in (np.linspace(1.0, 1.5, 54), np.arange(100.0, 154.0), 0.1 + 0.01 * np.arange(54)):
        change, p = trend(values.tolist())
        assert change == pytest.approx((values[-1] - values[0]) / np.median(values))
        assert p < 1e-6


@given(st.lists(st.floats(0.5, 2.0), min_size=10, max_size=30))
def test_backwards_a_rise_is_a_fall(values: list[float]) -> None:
    there, back = trend(values), trend(values[::-1])
    assert back[0] == pytest.approx(-there[0], rel=1e-6, abs=1e-12)
    assert 0.0 <= there[1] <= 1.0


@given(st.integers(1, 30), st.floats(1e-6, 1e6))
def test_a_trend_has_no_unit(seed: int, factor: float) -> None:
    values = 1.0 + 0.1 * np.random.default_rng(seed).standard_normal(20)
    one, other = trend(values.tolist()), trend((factor * values).tolist())
    assert other == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_what_never_changes_has_no_trend(value: float) -> None:
    assert trend([value] * 20) == (0.0, 1.0)


def test_a_trend_needs_ten_values() -> None:
    with pytest.raises(ValueError, match="a trend needs 10 values, not 9"):
        trend([1.0] * 9)
    assert trend([1.0] * 10)
