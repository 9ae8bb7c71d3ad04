"""The comparison core against numpy, exact fractions, and differences planted on purpose."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import given as given_
from hypothesis import strategies as st

from xbench.numerics import Incomparable, compare, rms_error
from xbench.result import TensorMetrics

Array = np.ndarray[Any, Any]

NUMBERS = (
    "rms", "max_abs", "p99_abs", "max_rel", "scaled", "max_ulp", "cosine", "snr_db",
    "reference_rms",
)  # fmt: skip
FLOATS = ("float16", "float32", "float64")
DTYPES = (*FLOATS, "int8", "int32", "int64", "uint8", "uint64", "bool")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=5)


def given(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Hypothesis without its wall-clock deadline."""
    return lambda test: settings(deadline=None)(given_(*strategies)(test))


@st.composite
def pairs(draw: st.DrawFn, low: float = -1e3, high: float = 1e3) -> tuple[Array, Array]:
    """Two float arrays of one shape and perhaps two precisions, of an ordinary magnitude."""
    shape = draw(SHAPES)
    arrays = []
    for _ in range(2):
        dtype = np.dtype(draw(st.sampled_from(FLOATS)))
        elements = hnp.from_dtype(dtype, min_value=low, max_value=high)
        arrays.append(draw(hnp.arrays(dtype, shape, elements=elements)))
    return arrays[0], arrays[1]


@st.composite
def anything(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two arrays with NaN, Inf, denormals and extremes; often sharing elements."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    a = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), shape))
    b = draw(hnp.arrays(draw(st.sampled_from((a.dtype, *map(np.dtype, DTYPES)))), shape))
    if a.dtype == b.dtype:
        b = np.where(draw(hnp.arrays(bool, shape)), a, b)
    return a, b


def numbers(metrics: TensorMetrics) -> dict[str, float | None]:
    return {name: getattr(metrics, name) for name in NUMBERS}


def assert_same_numbers(found: TensorMetrics, expected: TensorMetrics) -> None:
    """But for the order in which sums were taken."""
    for name, value in numbers(expected).items():
        close = value if value is None else pytest.approx(value, rel=1e-12, abs=1e-12)
        assert getattr(found, name) == close, name


def oracle(a: Array, b: Array) -> dict[str, float | None]:
    """The formulas of the docstring written down once more, on whole arrays."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    d = np.abs(x - y)
    floor = 1e-3 * float(np.sqrt(np.mean(y**2)))
    norms = float(np.sqrt((x**2).sum()) * np.sqrt((y**2).sum()))
    energy, error = float((y**2).sum()), float((d**2).sum())
    return {
        "rms": float(np.sqrt(np.mean(d**2))),
        "max_abs": float(d.max()),
        "p99_abs": float(np.quantile(d, 0.99, method="inverted_cdf")),
        "max_rel": (
            float((d / np.maximum(np.abs(y), floor)).max()) if floor else 0.0 if not error else None
        ),
        "scaled": d.max() / np.abs(y).max() if energy else 0.0 if not error else None,
        "cosine": float((x * y).sum()) / norms if norms else None,
        "snr_db": 10 * math.log10(energy / error) if energy and error else None,
        "reference_rms": math.sqrt(energy / y.size),
    }


@given(pairs())
def test_metrics_equal_a_plain_numpy_oracle(pair: tuple[Array, Array]) -> None:
    a, b = (np.where(np.abs(x) < 1e-3, 0, x).astype(x.dtype) for x in pair)  # squares stay normal
    found = numbers(compare("x", a, b))
    expected: Any
    for name, expected in oracle(a, b).items():
        if expected is not None:  # p99_abs of a hundred elements or more comes from a histogram
            accuracy = 1 / 128 if name == "p99_abs" and a.size >= 100 else 1e-12
            expected = pytest.approx(expected, rel=accuracy, abs=1e-12)
        assert found[name] == expected, name


@given(hnp.arrays(st.sampled_from(DTYPES), SHAPES))
def test_a_tensor_is_at_no_distance_from_itself(array: Array) -> None:
    metrics = compare("x", array, array.copy())
    assert metrics.bitwise_equal
    assert metrics.elements == array.size
    if np.isfinite(array).any():
        assert metrics.problem == ""
        assert metrics.rms == metrics.max_abs == metrics.p99_abs == 0
        assert metrics.max_rel == metrics.scaled == 0
        assert metrics.max_ulp == (0 if array.dtype.kind == "f" else None)
        assert metrics.cosine == (1 if array[np.isfinite(array)].any() else None)
        assert metrics.snr_db is None
    else:
        assert metrics.problem == "no finite element to compare"


@given(pairs())
def test_distances_are_symmetric(pair: tuple[Array, Array]) -> None:
    there, back = compare("x", *pair), compare("x", *pair[::-1])
    for name in ("rms", "max_abs", "p99_abs", "max_ulp", "cosine", "bitwise_equal"):
        assert getattr(there, name) == getattr(back, name), name


@given(anything())
def test_output_is_finite_json_and_nothing_warns(pair: tuple[Array, Array]) -> None:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        metrics = compare("x", *pair)
    for name, value in numbers(metrics).items():
        assert value is None or math.isfinite(value), name
    assert msgspec.json.decode(msgspec.json.encode(metrics), type=TensorMetrics) == metrics
    assert (metrics.rms is None) == bool(metrics.problem)
    if metrics.bitwise_equal and not metrics.problem:
        assert metrics.max_abs == 0


@given(pairs(), st.integers(1, 40))
def test_chunk_size_does_not_matter(pair: tuple[Array, Array], chunk: int) -> None:
    whole, parts = compare("x", *pair), compare("x", *pair, chunk=chunk)
    for name in ("bitwise_equal", "max_abs", "p99_abs", "scaled", "max_ulp", "elements", "problem"):
        assert getattr(whole, name) == getattr(parts, name), name
    assert_same_numbers(parts, whole)


@given(
    hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(allow_nan=False)),
    hnp.arrays(np.float64, 6, elements=st.floats(allow_nan=False)),
    st.integers(1, 6),
)
def test_sums_are_right_over_the_whole_range_of_float64(a: Array, b: Array, chunk: int) -> None:
    b = b[: a.size]
    assume(np.isfinite(a).all() and np.isfinite(b).all())
    differences = [abs(Fraction(x) - Fraction(y)) for x, y in zip(a, b, strict=True)]
    metrics = compare("x", a, b, chunk=chunk)
    try:
        float(max(differences))
    except OverflowError:
        assert metrics.problem == "a difference of finite elements exceeds float64"
        with pytest.raises(Incomparable, match="exceeds float64"):
            rms_error(a, b, chunk=chunk)
        return
    squares = sum((d * d for d in differences), Fraction(0))
    energy = sum((Fraction(y) ** 2 for y in b), Fraction(0))
    assert metrics.rms is not None
    assert metrics.reference_rms is not None
    assert_root(metrics.rms, squares / a.size)
    assert_root(metrics.reference_rms, energy / a.size)
    if squares and energy:
        quotient = energy / squares
        exact = 10 * (math.log10(quotient.numerator) - math.log10(quotient.denominator))
        assert metrics.snr_db == pytest.approx(exact, abs=1e-9)
    else:
        assert metrics.snr_db is None


def assert_root(root: float, square: Fraction) -> None:
    """``root`` is the square root of ``square`` to 1e-14, or to two of the smallest subnormals."""
    slack = Fraction(root) * Fraction(1e-14) + 2 * Fraction(5e-324)
    assert max(Fraction(0), Fraction(root) - slack) ** 2 <= square <= (Fraction(root) + slack) ** 2


def test_squares_that_overflow_or_vanish() -> None:
    for scale in (2.0**665, 2.0**-665, 2.0**1023, 2.0**-1060):
        b = np.array([scale, -scale, scale / 2])
        metrics = compare("x", b / 2, b)
        assert metrics.rms == pytest.approx(0.75**0.5 * scale / 2)
        assert metrics.snr_db == pytest.approx(20 * math.log10(2))
        assert metrics.cosine == pytest.approx(1)
        assert metrics.max_rel == metrics.scaled == pytest.approx(0.5)


def test_cosine_of_sides_at_opposite_ends_of_the_range() -> None:
    metrics = compare("x", np.array([3e200, 0.0]), np.array([3e-200, 4e-200]), chunk=1)
    assert metrics.cosine == pytest.approx(0.6)
    assert metrics.max_rel is None  # beyond float64
    assert metrics.scaled is None


@given(st.sampled_from(FLOATS), st.integers(0, 99), st.integers(-40, 40), st.integers(0, 2**32 - 1))
def test_one_element_moved_by_k_ulp(dtype: str, position: int, steps: int, seed: int) -> None:
    """Wherever it lies, and the rest contributes nothing. Some start beside zero and cross it."""
    b = np.random.default_rng(seed).standard_normal(100).astype(dtype)
    b[::7] = np.finfo(dtype).smallest_subnormal * np.arange(b[::7].size)
    a = b.copy()
    for _ in range(abs(steps)):
        a[position] = np.nextafter(a[position], np.array(np.sign(steps) * np.inf, dtype))
    metrics = compare("x", a, b)
    assert metrics.max_ulp == abs(steps)
    assert metrics.bitwise_equal == (steps == 0)
    assert metrics.max_abs == abs(float(a[position]) - float(b[position]))
    assert metrics.rms == pytest.approx(metrics.max_abs / 10, rel=1e-12, abs=1e-320)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_across_the_whole_range_of_a_dtype(dtype: str) -> None:
    largest = np.finfo(dtype).max
    metrics = compare("x", np.array([0, largest], dtype), np.array([0, 0], dtype))
    bits = np.array([largest]).view(f"u{np.dtype(dtype).itemsize}")
    assert metrics.max_ulp == float(bits[0])
    both = np.array([largest / 2], dtype)
    doubled = compare("x", both, -both)
    assert doubled.max_ulp == 2 * float(both.view(f"u{both.itemsize}")[0])


def test_ulp_is_counted_in_the_less_precise_dtype() -> None:
    b = np.linspace(0.1, 3.0, 50)
    a = b.astype(np.float32)
    assert compare("x", a, b).max_ulp == 0
    assert not compare("x", a, b).bitwise_equal
    a[7] = np.nextafter(a[7], np.float32(9))
    assert compare("x", a, b).max_ulp == compare("x", b, a).max_ulp == 1
    beyond = compare("x", np.array([np.finfo(np.float32).max], np.float32), np.array([1e300]))
    assert beyond.max_ulp == 1


@pytest.mark.parametrize("eps", [2.0**-10, -(2.0**-20)])
def test_a_scaled_tensor(eps: float) -> None:
    b = np.random.default_rng(1).uniform(0.5, 2.0, 10_000)
    b[::2] *= -1
    metrics = compare("x", b * (1 + eps), b)
    assert metrics.max_rel == pytest.approx(abs(eps), rel=1e-6)
    assert metrics.scaled == pytest.approx(abs(eps), rel=1e-6)
    assert metrics.snr_db == pytest.approx(-20 * math.log10(abs(eps)), rel=1e-6)
    assert metrics.cosine == pytest.approx(1, abs=1e-12)
    assert metrics.reference_rms is not None
    assert metrics.rms == pytest.approx(abs(eps) * metrics.reference_rms, rel=1e-6)


def test_values_that_are_zero_but_for_rounding_do_not_decide_max_rel() -> None:
    b = np.ones(1000)
    b[3] = 1e-17
    a = b.copy()
    a[3] = 3e-17
    assert compare("x", a, b).max_rel == pytest.approx(2e-14, rel=1e-3)


def test_opposite_and_orthogonal() -> None:
    b = np.array([1.0, 2.0, -3.0])
    assert compare("x", -b, b).cosine == -1
    assert compare("x", np.array([2.0, -1.0, 0.0]), b).cosine == 0


@given(st.integers(100, 3000), st.integers(-20, 5), st.integers(0, 2**32 - 1), st.integers(50, 999))
def test_p99_is_within_its_bin(size: int, magnitude: int, seed: int, chunk: int) -> None:
    d = np.abs(np.random.default_rng(seed).standard_cauchy(size)) * 10.0**magnitude
    exact = float(np.quantile(d, 0.99, method="inverted_cdf"))
    found = compare("x", d, np.zeros(size), chunk=chunk).p99_abs
    assert found is not None
    assert exact * (1 - 1 / 128) <= found <= exact


def test_p99_ignores_one_element_in_a_hundred() -> None:
    b = np.zeros(1000)
    b[:10] = 1.0
    assert compare("x", b, np.zeros(1000)).p99_abs == 0
    b[10] = 1.0
    assert compare("x", b, np.zeros(1000)).p99_abs == 1
    assert compare("x", b[:99], np.zeros(99)).p99_abs == 1


def layouts(array: Array) -> dict[str, Array]:
    """The same numbers in the same places of a (4, 5, 6) tensor, stored otherwise."""
    padded = np.zeros((8, 5, 7), array.dtype)
    padded[::2, :, 1:] = array
    packed = np.zeros(array.shape, np.dtype([("flag", "u1"), ("value", array.dtype)]))
    packed["value"] = array
    frozen = array.copy()
    frozen.setflags(write=False)
    return {
        "fortran": np.asfortranarray(array),
        "transposed": array.transpose(2, 0, 1).copy().transpose(1, 2, 0),
        "strided": padded[::2, :, 1:],
        "reversed": array[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": array.astype(array.dtype.newbyteorder(">")),
        "unaligned": packed["value"],
        "read-only": frozen,
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_memory_layout_does_not_matter(dtype: str, chunk: int) -> None:
    random = np.random.default_rng(2)
    a, b = ((100 * random.standard_normal((4, 5, 6))).astype(dtype) for _ in range(2))
    expected = compare("x", a, b)
    for name, laid_a in layouts(a).items():
        for laid_b in layouts(b).values():
            found = compare("x", laid_a, laid_b, chunk=chunk)
            assert_same_numbers(found, expected)
            assert rms_error(laid_a, laid_b, chunk=chunk) == pytest.approx(expected.rms)
        assert compare("x", laid_a, a, chunk=chunk).bitwise_equal, name


def test_scalars_and_broadcast_views() -> None:
    metrics = compare("loss", np.float32(1.5), np.array(1.0))  # type: ignore[arg-type]
    assert (metrics.max_abs, metrics.elements) == (0.5, 1)
    metrics = compare("x", np.broadcast_to(np.float64(1.5), (3, 4)), np.ones((3, 4)))
    assert (metrics.rms, metrics.elements) == (0.5, 12)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        (np.zeros(3), np.zeros((3, 1)), r"shape \(3,\) is not the reference's \(3, 1\)"),
        (np.zeros(2), np.zeros(2, int), "dtype float64 is not of the kind .* int64"),
        (np.zeros(2, bool), np.zeros(2, int), "dtype bool is not of the kind"),
        (np.zeros(2, complex), np.zeros(2, complex), "dtype complex128 cannot be compared"),
        (np.array(["a"]), np.array(["a"]), "cannot be compared"),
        (np.zeros(2, np.longdouble), np.zeros(2), "cannot be compared"),
        (np.zeros((0, 3)), np.zeros((0, 3)), "no elements"),
        (np.array([1, NAN]), np.array([1.0, 2.0]), r"NaN masks differ at 1 of 2 .*\[1\]: nan"),
        (np.array([1.0, 2.0]), np.array([NAN, 2]), r"NaN masks differ .*\[0\]: 1.0 against"),
        (np.array([INF]), np.array([3.0]), r"\+Inf masks differ at 1 of 1"),
        (np.array([INF]), np.array([-INF]), r"\+Inf masks differ .*; -Inf masks differ"),
        (np.array([INF]), np.array([NAN]), r"NaN masks differ .*; \+Inf masks differ"),
        (np.array(NAN), np.array(0.0), r"NaN masks differ at 1 of 1 elements, first at \[\]"),
        (np.array([NAN, INF]), np.array([NAN, INF]), "no finite element"),
        (np.array([1.7e308]), np.array([-1.7e308]), "exceeds float64"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 100])
def test_what_cannot_be_compared_is_named(a: Array, b: Array, problem: str, chunk: int) -> None:
    metrics = compare("x", a, b, chunk=chunk)
    assert metrics.problem
    with pytest.raises(Incomparable, match=problem) as caught:
        rms_error(a, b, chunk=chunk)
    assert metrics.problem == str(caught.value)
    assert set(numbers(metrics).values()) == {None}
    assert metrics.elements == a.size


def test_a_mask_difference_names_its_first_place_in_index_order() -> None:
    a, b = np.zeros((2, 3, 4)), np.zeros((2, 3, 4))
    a[0, 2, 1] = a[1, 0, 0] = NAN
    problem = compare("x", np.asfortranarray(a), b).problem
    assert problem.startswith("NaN masks differ at 2 of 24 elements, first at [0, 2, 1]")


def test_matching_nan_and_inf_are_left_out() -> None:
    b = np.array([NAN, 1.0, INF, 2.0, -INF, 4.0])
    a = b.copy()
    assert compare("x", a, b).bitwise_equal
    a[3] = 2.5
    metrics = compare("x", a, b)
    assert (metrics.problem, metrics.max_abs, metrics.elements) == ("", 0.5, 6)
    assert metrics.rms == pytest.approx(0.5 / math.sqrt(3))
    assert not metrics.bitwise_equal


def test_nan_payloads_are_aside_but_signed_zeros_are_not() -> None:
    quiet = np.array([0x7FF8000000000000, 0], np.uint64).view(np.float64)
    other = np.array([0xFFF8000000001234, 0], np.uint64).view(np.float64)
    assert compare("x", quiet, other).bitwise_equal
    metrics = compare("x", np.array([-0.0, 1.0]), np.array([0.0, 1.0]))
    assert not metrics.bitwise_equal
    assert metrics.max_ulp == metrics.max_abs == 0


def test_zero_reference() -> None:
    metrics = compare("x", np.array([0.0, 2.0]), np.zeros(2))
    assert (metrics.max_abs, metrics.reference_rms, metrics.problem) == (2, 0, "")
    assert metrics.max_rel is metrics.scaled is metrics.cosine is metrics.snr_db is None
    metrics = compare("x", np.zeros(2), np.zeros(2))
    assert metrics.max_rel == metrics.scaled == 0


def test_integers_are_exact_beyond_the_mantissa_of_float64() -> None:
    big = np.array([2**62, 5], np.int64)
    metrics = compare("ids", big + np.array([1, 0]), big)
    assert not metrics.bitwise_equal
    assert (metrics.max_abs, metrics.max_ulp) == (1, None)
    ends = np.iinfo(np.int64)
    far = compare("ids", np.array([ends.max]), np.array([ends.min]))
    assert far.max_abs == float(2**64 - 1)
    assert compare("ids", np.array([0], np.uint64), np.array([2**64 - 1], np.uint64)).max_abs == (
        float(2**64 - 1)
    )
    assert compare("ids", np.array([-128], np.int8), np.array([127], np.int8)).max_abs == 255


def test_booleans() -> None:
    b = np.array([True, False, True, True])
    metrics = compare("mask", ~b, b)
    assert (metrics.max_abs, metrics.rms, metrics.cosine, metrics.max_ulp) == (1, 1, 0, None)


@given(pairs())
def test_rms_error_is_the_rms_of_compare(pair: tuple[Array, Array]) -> None:
    assert rms_error(*pair) == compare("x", *pair).rms


def test_little_memory_is_used() -> None:
    a, b = np.zeros(2_000_000), np.ones(2_000_000)  # 16 MB each
    tracemalloc.start()
    try:
        compare("x", a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6


def test_a_difference_in_one_chunk_is_a_difference() -> None:
    b = np.arange(4.0)
    for index in range(4):
        a = b.copy()
        a[index] = -1.0
        assert not compare("x", a, b, chunk=1).bitwise_equal


def test_rounding_breaks_no_bound() -> None:
    """The RMS of equal differences is at most the difference, and a cosine at most one."""
    for value in (0.1, 0.7, 1 / 3, float(np.finfo(np.float64).max)):
        for count in range(1, 100):
            metrics = compare("x", np.full(count, value), np.zeros(count))
            assert metrics.rms == pytest.approx(value, rel=1e-15)
            assert metrics.rms is not None
            assert metrics.rms <= value
    random = np.random.default_rng(3)
    for count in range(2, 60):
        b = random.standard_normal(count)
        for factor in (3.0, -0.7):
            cosine = compare("x", factor * b, b).cosine
            assert cosine == pytest.approx(math.copysign(1.0, factor), abs=1e-15)
            assert cosine is not None
            assert abs(cosine) <= 1
