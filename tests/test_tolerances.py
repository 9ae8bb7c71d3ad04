"""The grammar of tolerances, which one an output has, and the rule for an element."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from xbench import tolerances
from xbench.errors import UsageError
from xbench.numerics import Incomparable
from xbench.tolerances import Tolerances, exceeds, parse, unknown_names

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5", {"": 1e-5}),
        ("1e-5,out:1e-4", {"": 1e-5, "out": 1e-4}),
        ("out:1e-4,1e-5", {"": 1e-5, "out": 1e-4}),
        (" 1e-5 , out : 2 ", {"": 1e-5, "out": 2.0}),
        ("model/out:0:0", {"model/out:0": 0.0}),
        ("out:1:1e-3,out:2:1e-4", {"out:1": 1e-3, "out:2": 1e-4}),
        ("0", {"": 0.0}),
    ],
)
def test_the_grammar(text: str, expected: dict[str, float]) -> None:
    assert parse("--atol", text) == expected


@pytest.mark.parametrize(
    ("text", "entry", "why"),
    [
        ("", "''", "is not a number"),
        ("1e-5,", "''", "is not a number"),
        ("out", "'out'", "is not a number"),
        ("out:", "'out:'", "is not a number"),
        (":1e-5", "':1e-5'", "has a colon but no name before it"),
        ("-1", "'-1'", "is not a finite number of 0 or more"),
        ("x:nan", "'x:nan'", "is not a finite number of 0 or more"),
        ("inf", "'inf'", "is not a finite number of 0 or more"),
        ("1,2", "'2'", "is the second tolerance for outputs that are not named"),
        ("x:1,x:1", "'x:1'", "is the second tolerance for output 'x'"),
    ],
)
def test_what_is_wrong_is_said(text: str, entry: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse("--rtol", text)
    assert f"{entry} {why}" in str(caught.value)
    assert "--rtol 1e-5,NAME:1e-4" in str(caught.value)


def test_the_tolerances_of_an_output() -> None:
    both = Tolerances(atol={"": 1e-3, "x": 0.0}, rtol={"x": 1e-2, "z": 1e-6})
    assert both.of("x") == (0.0, 1e-2)
    assert both.of("y") == (1e-3, tolerances.DEFAULT)
    assert both.of("z") == (1e-3, 1e-6)
    assert Tolerances(atol={"x": 1.0}).of("y") == (1e-5, 1e-5)
    assert Tolerances().of("x") == (1e-5, 1e-5)
    assert both.names == ["x", "z"]


def test_names_without_an_output() -> None:
    assert unknown_names(["", "x", "yy", "x", "zz", "yy"], {"x": 1, "y": 2}) == ["yy", "zz"]
    assert unknown_names([""], []) == []


def outside(a: Any, b: Any, atol: float, rtol: float, dtype: str = "float64") -> int:
    return exceeds(np.array(a, dtype), np.array(b, dtype), atol, rtol)


def test_an_element_is_outside_only_beyond_both_tolerances() -> None:
    # d = 1: absolute alone, relative alone, neither, and both.
    assert outside([101.0], [100.0], 1.0, 0.0) == 0
    assert outside([101.0], [100.0], 0.0, 0.01) == 0
    assert outside([101.0], [100.0], 0.9, 0.009) == 1
    assert outside([101.0], [100.0], 2.0, 0.02) == 0
    # Within atol + rtol |b| = 1.1, as numpy adds them, but beyond each.
    assert outside([101.0], [100.0], 0.6, 0.005) == 1
    assert np.allclose(101.0, 100.0, atol=0.6, rtol=0.005)


def test_relative_is_to_the_reference() -> None:
    assert outside([2.0], [1.0], 0.0, 0.6) == 1
    assert outside([1.0], [2.0], 0.0, 0.6) == 0


def test_a_reference_of_zero() -> None:
    assert outside([1e-5, 2e-5], [0.0, 0.0], 1e-5, 1e-5) == 1
    assert outside([1e-20, 1e-22], [0.0, 0.0], 0.0, 1e-5) == 1
    assert outside([0.0, -0.0], [-0.0, 0.0], 0.0, 0.0) == 0


def test_what_is_not_finite_is_inside_only_where_both_are_the_same() -> None:
    nan, inf = float("nan"), float("inf")
    assert outside([nan, inf, -inf], [nan, inf, -inf], 0.0, 0.0) == 0
    assert outside([nan, 1, inf, 1, inf, -inf], [1, nan, 1, inf, -inf, inf], 1.0, 1e30) == 6


def test_numbers_too_large_for_a_difference_are_outside() -> None:
    huge = np.finfo(np.float64).max
    assert outside([huge], [-huge], 1.0, 1.0) == 1


def test_differences_of_integers_are_exact() -> None:
    top = 2**63 - 1
    assert outside([top, top], [top - 1, top], 0.0, 0.0, "int64") == 1
    assert outside([top], [-top - 1], 1e18, 0.5, "int64") == 1
    assert outside([2**64 - 1], [2**64 - 2], 0.0, 0.0, "uint64") == 1
    assert outside([1, 0], [0, 1], 0.0, 0.0, "uint8") == 2
    assert outside([3, 0], [2, 0], 1.0, 0.0, "int32") == 0
    assert outside([True, False, True], [True, True, False], 1e-5, 1e-5, "bool") == 2


def test_narrow_floats() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = np.dtype(getattr(ml_dtypes, name))
        a, b = np.array([1.0, 2.0], dtype), np.array([1.0, 1.0], dtype)
        assert exceeds(a, b, 0.5, 0.5) == 1
        assert exceeds(a, b.astype(np.float32), 0.5, 0.5) == 1
    half = np.array([60000.0, 1.0], np.float16)
    assert exceeds(half, -half, 1.0, 1.0) == 2


def test_what_has_no_difference() -> None:
    ones = np.ones(2)
    with pytest.raises(Incomparable, match="shape"):
        exceeds(ones, np.ones(3), 1.0, 1.0)
    with pytest.raises(Incomparable, match="kind"):
        exceeds(ones, np.ones(2, int), 1.0, 1.0)
    for odd in (np.array(["a", "b"]), ones + 1j, np.zeros(2, "V4"), np.zeros(2, "M8[s]")):
        with pytest.raises(Incomparable, match="cannot be compared"):
            exceeds(odd, odd, 1.0, 1.0)


def test_scalars_and_nothing() -> None:
    assert exceeds(np.array(1.0), np.array(2.0), 0.0, 0.0) == 1
    assert exceeds(np.zeros((0, 3)), np.zeros((0, 3)), 0.0, 0.0) == 0


FLOATS = st.floats(width=32) | st.sampled_from([0.0, 1.0, 1.00001, 0.99999, -1.0])
ARRAYS = npst.arrays(np.float32, (4, 5), elements=FLOATS)
LIMITS = st.sampled_from([0.0, 1e-5, 1.0000000000287557e-05, 0.5, 1e30])


def by_the_rule(a: float, b: float, atol: float, rtol: float) -> bool:
    if a == b or (a != a and b != b):
        return False
    difference, size = np.float64(abs(a - b)), np.float64(abs(b) or 2.220446049250313e-16)
    with np.errstate(all="ignore"):
        relative = difference / size
    beyond = [
        value > limit or value != value for value, limit in ((difference, atol), (relative, rtol))
    ]
    return bool(all(beyond))


@given(ARRAYS, ARRAYS, LIMITS, LIMITS, st.integers(1, 30))
def test_the_rule_element_by_element(
    a: Array, b: Array, atol: float, rtol: float, chunk: int
) -> None:
    expected = sum(
        by_the_rule(x, y, atol, rtol)
        for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
    )
    assert exceeds(a, b, atol, rtol, chunk=chunk) == expected
    # Whatever the memory layout.
    assert exceeds(a.T, b.T.copy(), atol, rtol) == expected
