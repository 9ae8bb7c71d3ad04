"""The bound of one operator: a sum, inputs that move by an ULP, twice a plain loop."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import numerics
from xbench.operators import KEPT, LOOP, MOVED, SUM, check, looped, merged, summed_up
from xbench.result import OperatorCheck, Operators

EPS = float(np.finfo(np.float32).eps)
ONES = np.ones(4)
Array = np.ndarray[Any, Any]


def checked(actual: Any, expected: Any = ONES, *moved: Any, **fields: Any) -> OperatorCheck:
    """A check of one operator in float32 that sums nothing, unless ``fields`` say otherwise."""
    known = {"terms": 1, "eps": EPS} | fields
    return check("n", "Op", "t", np.asarray(actual), np.asarray(expected), moved, **known)


def off(steps: float) -> Array:
    """Ones that are off by so many float32 steps."""
    return ONES + steps * EPS


def assert_by(found: OperatorCheck, bound: str, score: float) -> None:
    assert found.bound == bound
    assert found.score == pytest.approx(score)


# -- the bound of a sum ----------------------------------------------------------------------------


@pytest.mark.parametrize(("terms", "steps"), [(1, 4), (16, 16), (10_000, 400)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_sum_may_be_off_by_the_rounding_of_its_terms(
    terms: int, steps: float, scale: float
) -> None:
    for part, within in ((0.99, True), (1.01, False)):
        found = checked(off(part * steps) * scale, ONES * scale, terms=terms)
        assert (found.score <= 1) == within
        assert found.score == pytest.approx(part, rel=1e-6)
        assert found.limit_rms == pytest.approx(steps * EPS * scale)
        assert (found.bound, found.terms) == (SUM, terms)
    assert (found.node, found.op, found.output) == ("n", "Op", "t")


def test_the_type_sets_the_step() -> None:
    half = float(np.finfo(np.float16).eps)
    assert checked(ONES + 4 * half, eps=half).score == pytest.approx(1.0)
    assert checked(ONES + 4 * half).score == pytest.approx(half / EPS)


def test_what_moves_with_its_inputs_may_move_as_far() -> None:
    """The largest of all draws, and only where it is more than the rounding of the sum."""
    found = checked(off(30), ONES, off(-40), off(8))
    assert_by(found, MOVED, 30 / 40)
    assert checked(off(41), ONES, off(-40), off(8)).score > 1
    still = checked(off(3), ONES, off(1))
    assert_by(still, SUM, 3 / 4)


def test_a_draw_that_cannot_be_compared_excuses_nothing() -> None:
    overflow = np.array([1, 1, 1, np.inf])
    for moved in (overflow, ONES[:3]):
        found = checked(off(5), ONES, moved)
        assert_by(found, SUM, 5 / 4)


@pytest.mark.parametrize("actual", [ONES[:3], np.array([1, 1, 1, np.nan]), ONES.astype(np.int64)])
def test_what_has_no_distance_has_no_score(actual: Array) -> None:
    with pytest.raises(numerics.Incomparable):
        checked(actual)


def test_an_exact_result_of_zeros() -> None:
    zeros = np.zeros(4)
    assert checked(zeros, zeros).score == 0.0
    assert checked(zeros + 1e-30, zeros).score == np.inf


# -- the bound of a plain loop ---------------------------------------------------------------------

TERMS = 10_240


def equal_terms() -> tuple[Array, Array]:
    """What a plain loop makes of equal terms in float32, and what their sum is."""
    values = np.tile(np.array([0.1, 0.7, 1 / 3], np.float32), (TERMS, 1))
    return looped(values, [0]), values.astype(np.float64).sum(axis=0)


def test_a_plain_loop_over_equal_terms_is_within_its_bound() -> None:
    """Its roundings all go one way, so that random signs would not explain it."""
    loop, exact = equal_terms()
    assert checked(loop, exact, terms=TERMS).score > 1, "without the loop it would be condemned"
    found = checked(loop, exact, terms=TERMS, loop=loop)
    assert_by(found, LOOP, 0.5)


@pytest.mark.parametrize(("times", "within"), [(1.99, True), (2.01, False), (4.0, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_nobody_has_to_be_better_than_twice_a_plain_loop(
    times: float, within: bool, sign: int
) -> None:
    loop, exact = equal_terms()
    found = checked(exact + sign * times * (loop - exact), exact, terms=TERMS, loop=loop)
    assert found.bound == LOOP
    assert found.score == pytest.approx(times / 2)
    assert (found.score <= 1) == within


def test_a_loop_that_is_exact_lowers_no_bound() -> None:
    found = checked(off(3), loop=ONES)
    assert_by(found, SUM, 3 / 4)


def test_a_loop_that_leaves_the_range_excuses_nothing() -> None:
    found = checked(off(5), loop=np.array([1, 1, 1, np.inf]))
    assert_by(found, SUM, 5 / 4)


# -- a plain loop ----------------------------------------------------------------------------------


def by_hand(values: Array, axes: list[int]) -> Array:
    """The same term by term, in Python: the last of ``axes`` changes fastest."""
    rest = [axis for axis in range(values.ndim) if axis not in axes]
    total: Array = np.zeros([values.shape[axis] for axis in rest], values.dtype)
    for kept in np.ndindex(*total.shape):
        found = None
        for summed in np.ndindex(*(values.shape[axis] for axis in axes)):
            place = [0] * values.ndim
            for axis, at in (*zip(rest, kept, strict=True), *zip(axes, summed, strict=True)):
                place[axis] = at
            term = values[tuple(place)]
            found = term if found is None else values.dtype.type(found + term)
        total[kept] = found
    return total


@pytest.mark.parametrize("axes", [[], [0], [1], [2], [0, 1], [0, 2], [1, 2], [2, 0], [0, 1, 2]])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_a_loop_is_a_loop(axes: list[int], dtype: Any) -> None:
    values = np.random.default_rng(0).standard_normal((5, 7, 6)).astype(dtype)
    found = looped(values, axes)
    expected = by_hand(values, axes)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def test_a_loop_sums_in_its_own_type_and_not_pairwise() -> None:
    ones = np.ones(2**24 + 8, np.float32)
    assert looped(ones, [0]) == 2**24, "from there on one more is rounded away"
    assert ones.sum() == 2**24 + 8
    assert looped(np.full(4096, 1.0, np.float16), [0]) == 2048


def test_axes_are_counted_from_the_end_too() -> None:
    values = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    assert np.array_equal(looped(values, [-1]), looped(values, [2]))
    assert np.array_equal(looped(values, (-2, -1)), looped(values, (1, 2)))


# -- what a document keeps -------------------------------------------------------------------------


def scored(*scores: float) -> list[OperatorCheck]:
    return [
        OperatorCheck(node=f"n{k}", op="Op", output="t", error_rms=score, limit_rms=1.0)
        for k, score in enumerate(scores)
    ]


def scores(found: Operators) -> list[float]:
    return [item.score for item in found.worst]


def test_the_least_accurate_are_kept() -> None:
    found = summed_up(scored(*(k / 10 for k in range(8))), [f"u{k}" for k in range(8)], "r")
    assert (found.checked, found.remark) == (8, "r")
    assert scores(found) == [0.7, 0.6, 0.5, 0.4, 0.3]
    assert found.unchecked == [f"u{k}" for k in range(KEPT)]
    assert not found.optimizer, "nobody said so"


def test_merged_are_the_checks_of_all_bodies() -> None:
    first = summed_up(scored(0.1, 3.0, 0.3, 0.4, 0.5, 0.6), ["Loop (l)", "If (i)"])
    second = summed_up(scored(0.2, 2.0), ["If (i)", "Scan (s)"], "as it was traced")
    found = merged([first, second])
    assert found.checked == 8
    assert scores(found) == [3.0, 2.0, 0.6, 0.5, 0.4]
    assert found.unchecked == ["Loop (l)", "If (i)", "Scan (s)"]
    assert found.remark == "as it was traced"


@pytest.mark.parametrize(
    ("of_bodies", "expected"),
    [([True], True), ([False], False), ([True, True], True), ([True, False], False)],
)
def test_merged_have_the_optimizer_where_every_body_has(
    of_bodies: list[bool], expected: bool
) -> None:
    found = [msgspec.structs.replace(summed_up(scored(0.5)), optimizer=o) for o in of_bodies]
    assert merged(found).optimizer == expected


@given(st.lists(st.lists(st.floats(0, 10), max_size=8), min_size=1, max_size=4))
def test_merging_loses_none_of_the_least_accurate(bodies: list[list[float]]) -> None:
    found = merged([summed_up(scored(*body)) for body in bodies])
    everything = sorted((score for body in bodies for score in body), reverse=True)
    assert scores(found) == everything[:KEPT]
    assert found.checked == len(everything)


def test_one_body_is_what_it_was() -> None:
    one = msgspec.structs.replace(summed_up(scored(0.5, 2.0), ["If (i)"], "r"), optimizer=True)
    assert merged([one]) == one
