"""The law of the verdict on a ratio of times, row by row, and Holm's correction."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import speed, stats
from xbench.result import Ratio, Samples
from xbench.speed import ALPHA, MARGIN, holm, judge, verdict

# Of a prime, so that no product of a p with a small number meets ALPHA.
PS = st.lists(st.integers(0, 7919).map(lambda i: i / 7919), max_size=7)
SURE, UNSURE = ALPHA / 2, ALPHA * 2


def a_ratio(
    ratio: float, low: float | None = None, high: float | None = None, p: float | None = None
) -> Ratio:
    return Ratio(to="b", ratio=ratio, ci_low=low, ci_high=high, rounds=20, p=p)


# -- Holm ----------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1; the last may not be below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6, 0.001]) == pytest.approx([1.0, 1.0, 0.003])
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@given(PS)
def test_adjusted_values_are_between_p_and_bonferroni(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert len(adjusted) == len(ps)
    for p, after in zip(ps, adjusted, strict=True):
        assert p <= after <= min(1.0, len(ps) * p)


@given(PS)
def test_adjusted_values_keep_the_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    for i, p in enumerate(ps):
        for j, q in enumerate(ps):
            assert p > q or adjusted[i] <= adjusted[j]


@given(PS, st.randoms(use_true_random=False))
def test_the_order_of_the_comparisons_changes_nothing(ps: list[float], random: Random) -> None:
    order = list(range(len(ps)))
    random.shuffle(order)
    assert holm([ps[i] for i in order]) == [holm(ps)[i] for i in order]


@given(PS, st.sampled_from([0.01, 0.05, 0.2]))
def test_what_is_claimed_is_what_the_step_down_test_rejects(ps: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[index] > alpha / (len(ps) - rank):
            break
        rejected.add(index)
    assert {i for i, p in enumerate(holm(ps)) if p <= alpha} == rejected


# -- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "low", "high", "word"),
    [(1.10, 1.05, 1.15, "slower"), (1 / 1.10, 0.87, 0.95, "faster")],
)
def test_sure_and_beyond_the_margin_is_a_difference(
    ratio: float, low: float, high: float, word: str
) -> None:
    assert verdict(ratio, low, high, SURE, 0.02) == word
    assert verdict(ratio, low, high, ALPHA, 0.02) == word, "ALPHA itself is sure"


@pytest.mark.parametrize(("ratio", "low", "high"), [(1.5, 0.99, 2.3), (0.6, 0.4, 1.01)])
def test_large_but_not_sure_is_inconclusive(ratio: float, low: float, high: float) -> None:
    assert verdict(ratio, low, high, UNSURE, 0.02) == "inconclusive"
    assert verdict(ratio, low, high, math.nextafter(ALPHA, 1), 0.02) == "inconclusive"


@pytest.mark.parametrize(("ratio", "low", "high"), [(1.019, 1.005, 1.033), (0.985, 0.96, 0.997)])
def test_sure_but_within_the_margin_is_no_difference(ratio: float, low: float, high: float) -> None:
    assert verdict(ratio, low, high, 0.0, 0.02) == "inconclusive"


def test_the_margin_itself_is_not_beyond_it() -> None:
    assert verdict(1.02, 1.01, 1.03, 0.0, 0.02) == "inconclusive"
    assert verdict(math.nextafter(1.02, 2), 1.01, 1.03, 0.0, 0.02) == "slower"
    assert verdict(1 / 1.02, 0.96, 0.99, 0.0, 0.02) == "inconclusive"
    assert verdict(math.nextafter(1 / 1.02, 0), 0.96, 0.99, 0.0, 0.02) == "faster"


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_an_interval_within_the_margin_on_both_sides_is_the_same(p: float) -> None:
    assert verdict(1.0, 1 / 1.02, 1.02, p, 0.02) == "same"
    assert verdict(1.01, 1.005, 1.015, p, 0.02) == "same"


@pytest.mark.parametrize(("low", "high"), [(0.99, 1.021), (0.979, 1.01), (0.9, 1.1)])
def test_an_interval_that_leaves_the_margin_is_inconclusive(low: float, high: float) -> None:
    assert verdict(1.0, low, high, 1.0, 0.02) == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "p"), [(None, 1.0, 0.0), (1.0, None, 0.0), (1.0, 1.0, None), (None, None, None)]
)
def test_without_an_interval_nothing_is_said(
    low: float | None, high: float | None, p: float | None
) -> None:
    for ratio in (1.0, 5.0, 0.2):
        assert verdict(ratio, low, high, p, 0.02) == "inconclusive"


@given(
    st.floats(0.5, 2.0), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 0.5)
)
def test_the_other_way_round_is_the_opposite(
    ratio: float, below: float, above: float, p: float, margin: float
) -> None:
    opposite = {"slower": "faster", "faster": "slower"}
    low, high = ratio / (1 + below), ratio * (1 + above)
    # Rounding may tip what lies on the margin.
    edges = [abs(abs(math.log(x)) - math.log1p(margin)) for x in (ratio, low, high)]
    if min(edges) > 1e-12:
        there = verdict(ratio, low, high, p, margin)
        back = verdict(1 / ratio, 1 / high, 1 / low, p, margin)
        assert back == opposite.get(there, there)


@given(st.floats(0.5, 2.0), st.floats(0, 1), st.floats(0, 0.2), st.floats(0, 0.2))
def test_a_wider_margin_takes_claims_back_and_makes_none(
    ratio: float, p: float, margin: float, more: float
) -> None:
    narrow = verdict(ratio, ratio * 0.9, ratio * 1.1, p, margin)
    wide = verdict(ratio, ratio * 0.9, ratio * 1.1, p, margin + more)
    assert wide in (narrow, "same", "inconclusive")


# -- a run ---------------------------------------------------------------------------------------


def test_the_comparisons_of_a_run_are_one_family() -> None:
    ratios = [
        a_ratio(1.2, 1.1, 1.3, 0.004),
        a_ratio(1.3),
        a_ratio(1.2, 1.1, 1.3, 0.002),
        a_ratio(1.2, 1.1, 1.3, 0.03),
    ]
    found = judge(ratios, [None] * 4)
    assert [item.p for item in found] == pytest.approx([0.008, None, 0.006, 0.03])
    assert [item.family for item in found] == [3] * 4
    assert [item.verdict for item in found] == ["slower", "inconclusive", "slower", "inconclusive"]
    assert [item.ratio for item in found] == [item.ratio for item in ratios]


def test_more_comparisons_make_the_same_p_less_sure() -> None:
    one = a_ratio(1.2, 1.1, 1.3, 0.006)
    (alone,) = judge([one], [None])
    assert (alone.verdict, alone.family, alone.p) == ("slower", 1, 0.006)
    assert {item.verdict for item in judge([one, one], [None, None])} == {"inconclusive"}


@pytest.mark.parametrize(
    ("floor", "margin", "expected"),
    [(None, MARGIN, "slower"), (0.001, MARGIN, "slower"), (0.049, 0.049, "slower"),
     (0.051, 0.051, "inconclusive"), (0.08, 0.08, "inconclusive")],
)  # fmt: skip
def test_nothing_is_claimed_below_the_floor_of_the_machine(
    floor: float | None, margin: float, expected: str
) -> None:
    (found,) = judge([a_ratio(1.05, 1.03, 1.07, 0.0)], [floor])
    assert (found.floor, found.margin, found.verdict) == (floor, margin, expected)


def test_every_ratio_has_its_own_floor() -> None:
    one = a_ratio(1.05, 1.03, 1.07, 0.0)
    found = judge([one, one, one], [0.2, None, 0.051])
    assert [item.margin for item in found] == [0.2, MARGIN, 0.051]
    assert [item.verdict for item in found] == ["inconclusive", "slower", "inconclusive"]
    with pytest.raises(ValueError, match="zip"):
        judge([one, one], [None])


def test_a_run_that_compares_nothing() -> None:
    assert judge([], []) == []
    (found,) = judge([a_ratio(2.0)], [None])
    assert (found.family, found.p, found.verdict) == (1, None, "inconclusive")


def runs(random: np.random.Generator, factor: float, cases: int, rounds: int = 20) -> list[Ratio]:
    """Ratios of so many cases to one reference whose process medians differ by 2.5 %."""

    def side(level: float) -> list[Samples]:
        medians = level * np.exp(0.025 * random.standard_normal(rounds))
        return [Samples(process=i, round=i, values_s=[float(m)]) for i, m in enumerate(medians)]

    reference = side(1.0)
    found = [stats.ratio(side(factor), reference, "b") for _ in range(cases)]
    return [item for item in found if item is not None]


def test_the_same_thing_against_itself_is_hardly_ever_called_different() -> None:
    random = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        ratios = runs(random, 1.0, cases=5)
        words = {item.verdict for item in judge(ratios, [None] * 5)}
        wrong += bool(words & {"slower", "faster"})
    assert wrong <= 9, "3 of 300 are allowed on average"


@pytest.mark.parametrize(("factor", "word"), [(1.06, "slower"), (1 / 1.06, "faster")])
def test_a_planted_difference_of_six_percent_is_found(factor: float, word: str) -> None:
    random = np.random.default_rng(8)
    found = 0
    for _ in range(100):
        (judged,) = judge(runs(random, factor, cases=1), [None])
        assert judged.verdict in (word, "inconclusive")
        found += judged.verdict == word
    assert found >= 90


def test_the_words_are_those_of_the_document() -> None:
    assert {speed.FASTER, speed.SLOWER, speed.SAME, speed.INCONCLUSIVE} == set(
        (Ratio.__doc__ or "").partition("(``")[2].partition("``)")[0].split()
    )


def test_a_noisy_machine_proves_no_sameness() -> None:
    within = a_ratio(1.0, 0.985, 1.015, 0.9)
    beyond = a_ratio(1.0, 0.96, 1.04, 0.9)
    found = judge([within, beyond], [0.08, 0.08])
    assert [item.verdict for item in found] == ["same", "inconclusive"]
