"""The comparison core against numpy, exact fractions, and differences planted on purpose."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis.extra.numpy as hnp
import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import given as given_
from hypothesis import strategies as st

from xbench import pieces, readings, ulps
from xbench.numerics import CHUNK, EXACT, HISTOGRAM, Incomparable, compare, rms_error
from xbench.result import TensorMetrics

Array = np.ndarray[Any, Any]

NUMBERS = (
    "rms", "max_abs", "p99_abs", "max_rel", "scaled", "max_ulp", "cosine", "snr_db",
    "reference_rms",
)  # fmt: skip
FLOATS = ("float16", "float32", "float64")
DTYPES = (*FLOATS, "int8", "int32", "int64", "uint8", "uint64", "bool")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=5)


def given(
    *strategies: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Any]:
    """Hypothesis without its wall-clock deadline."""
    return lambda test: settings(deadline=None)(given_(*strategies, **named)(test))


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
    a, b = np.zeros(8_000_000), np.ones(8_000_000)  # 64 MB each
    tracemalloc.start()
    try:
        compare("x", a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 15e6 * pieces.threads(a.size)


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


# -- what differs ----------------------------------------------------------------------------

SMALL_FLOATS = (
    "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
    "float4_e2m1fn",
)  # fmt: skip
ALL_FLOATS = (*FLOATS, "bfloat16", *SMALL_FLOATS)


def type_of(name: str) -> np.dtype[Any]:
    return np.dtype(name if name in FLOATS else getattr(ml_dtypes, name))


@given(anything())
def test_differing_counts_values_not_bits(pair: tuple[Array, Array]) -> None:
    a, b = pair
    metrics = compare("x", a, b)
    if metrics.problem:
        assert (metrics.differing, metrics.histogram, metrics.top1) == (0, [], None)
        return
    expected = sum(p != q and not (p != p and q != q) for p, q in zip(a.flat, b.flat, strict=True))
    assert metrics.differing == expected
    assert metrics.differing == 0 or not metrics.bitwise_equal
    finite = int(np.isfinite(a).sum())
    assert sum(metrics.histogram) == finite
    assert metrics.histogram[0] == finite - expected


def test_differing_of_zeros_and_nans() -> None:
    b = np.array([0.0, NAN, INF, 1.0, 5e-324])
    metrics = compare("x", np.array([-0.0, -NAN, INF, 1.0, 0.0]), b)
    assert (metrics.differing, metrics.subnormal_only, metrics.bitwise_equal) == (1, True, False)
    assert compare("x", b, b).subnormal_only is False


@pytest.mark.parametrize("name", ALL_FLOATS)
def test_subnormal_only(name: str) -> None:
    dtype = type_of(name)
    normal = ulps.smallest_normal(dtype)
    if name == "float8_e8m0fnu":
        return  # It has no zero and nothing subnormal.
    assert float(np.array(normal).astype(dtype)) == normal
    b = np.array([1.0, normal / 2, normal, 0.0]).astype(dtype)
    flushed = np.array([1.0, 0.0, normal, 0.0]).astype(dtype)
    metrics = compare("x", flushed, b)
    assert (metrics.differing, metrics.subnormal_only) == (1, True)
    for place, value in ((0, 1.5), (2, 0.0), (3, normal)):
        a = flushed.copy()
        a[place] = value
        metrics = compare("x", a, b)
        assert (metrics.differing, metrics.subnormal_only) == (2, False), place


def test_subnormal_is_a_matter_of_the_less_precise_dtype() -> None:
    a, b = np.array([1, 1e-6], np.float16), np.array([1, 2e-6], np.float32)
    assert compare("x", a, b).subnormal_only
    assert not compare("x", a.astype(np.float32), b).subnormal_only
    # What rounds to the smallest normal number is none.
    b[1] = np.nextafter(np.finfo(np.float16).smallest_normal, 0, dtype=np.float32)
    assert not compare("x", a, b).subnormal_only


def test_integers_are_never_subnormal() -> None:
    assert not compare("x", np.array([0, 1]), np.array([0, 2])).subnormal_only


# -- ULP of every type -----------------------------------------------------------------------


def ordered(dtype: np.dtype[Any]) -> tuple[Array, dict[float, int]]:
    """Every value of a type of one byte but NaN, and its place among its magnitudes."""
    values = np.arange(256).astype(np.uint8).view(dtype).astype(np.float64)
    magnitudes = sorted({abs(v) for v in values.tolist() if v == v} | {0.0})
    place = {m: i for i, m in enumerate(magnitudes)}
    return values, place | {-m: -i for m, i in place.items() if m}


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_all_codes_of_a_small_type_against_all(name: str) -> None:
    dtype = type_of(name)
    values, place = ordered(dtype)
    codes = np.flatnonzero(np.isfinite(values)).astype(np.uint8)
    for code in codes:
        mine = float(values[code])
        expected = [abs(place[mine] - place[float(v)]) for v in values[codes]]
        found = [
            ulps.farthest(np.array([code]).view(dtype), np.array([other]).view(dtype))
            for other in codes[:: 1 if code % 16 == 0 else 37]
        ]
        assert found == expected[:: 1 if code % 16 == 0 else 37]
        every = compare("x", np.full(codes.size, code).view(dtype), codes.view(dtype))
        assert every.max_ulp == max(expected)
        assert every.differing == sum(step > 0 for step in expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_all_neighbours_of_a_type_of_two_bytes(name: str) -> None:
    dtype = type_of(name)
    values = np.arange(1 << 16).astype(np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        finite = np.isfinite(values.astype(np.float64))
    ranked = np.unique(values[finite].astype(np.float64)).astype(dtype)
    for step in (1, 2, 1000):
        assert ulps.farthest(ranked[:-step], ranked[step:]) == step
        assert ulps.farthest(ranked[step:], ranked[:-step]) == step
    assert ulps.farthest(ranked[:1], ranked[-1:]) == ranked.size - 1


@pytest.mark.parametrize("name", ALL_FLOATS)
def test_beyond_the_largest_value_is_one_step(name: str) -> None:
    dtype = type_of(name)
    if name == "float64":
        return
    info: Any = np.finfo(dtype) if name in FLOATS else ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = np.array([float(info.max)]).astype(dtype)
    beyond = largest.astype(np.float64) * 4
    found = compare("x", largest, beyond)
    steps = int(found.max_ulp or 0)
    # Some types saturate: what is beyond is the largest then.
    with np.errstate(all="ignore"):
        expected = 0 if float(beyond.astype(dtype)[0]) == float(largest[0]) else 1
    assert steps == expected
    assert compare("x", beyond, largest).max_ulp == expected
    if float(info.min) < 0:
        assert compare("x", -largest, -beyond).max_ulp == expected


@pytest.mark.parametrize("one", ALL_FLOATS)
@pytest.mark.parametrize("other", ALL_FLOATS)
def test_every_pair_of_types(one: str, other: str) -> None:
    values = np.array([1.0, 2.0, 0.5, 4.0])
    metrics = compare("x", values.astype(type_of(one)), values.astype(type_of(other)))
    assert (metrics.problem, metrics.max_abs, metrics.max_ulp) == ("", 0, 0)
    assert metrics.bitwise_equal == (one == other)
    moved = np.array([1.0, 2.0, 0.5, 2.0]).astype(type_of(one))
    metrics = compare("x", moved, values.astype(type_of(other)))
    assert (metrics.max_abs, metrics.differing) == (2, 1)
    narrow = min(one, other, key=lambda name: ulps.PRECISION[name])
    # An octave has as many steps as the mantissa of the less precise type has patterns.
    assert metrics.max_ulp == 2 ** ulps.PRECISION[narrow]


@pytest.mark.parametrize("name", [*FLOATS, "bfloat16"])
@given(data=st.data())
def test_steps_between_any_two_values(name: str, data: st.DataObject) -> None:
    """Of either sign, near and far: by the magnitudes in the bits."""
    dtype = type_of(name)
    bits = np.dtype(f"u{dtype.itemsize}")
    top = int(np.array([INF]).astype(dtype).view(bits)[0])
    magnitudes = st.integers(0, top - 1) | st.integers(0, 9) | st.integers(top - 9, top - 1)
    pairs_ = st.tuples(magnitudes, st.booleans(), magnitudes, st.booleans())
    steps, sides = [], ([], [])  # type: ignore[var-annotated]
    for m, negative, n, other in data.draw(st.lists(pairs_, min_size=1, max_size=3)):
        steps.append(abs((-m if negative else m) - (-n if other else n)))
        sign = 1 << (8 * dtype.itemsize - 1)
        sides[0].append(m | (sign if negative else 0))
        sides[1].append(n | (sign if other else 0))
    x, y = (np.array(side, bits).view(dtype) for side in sides)
    assert ulps.farthest(x, y) == max(steps)


def test_types_without_infinity_and_their_nan() -> None:
    dtype = type_of("float8_e4m3fn")
    b = np.array([NAN, 448.0, 1.0]).astype(dtype)
    assert compare("x", b, b).max_ulp == 0
    problem = compare("x", np.array([1.0, 448.0, 1.0]).astype(dtype), b).problem
    assert problem.startswith("NaN masks differ at 1 of 3 elements, first at [0]: 1.0 against")


def test_narrow_integers_and_raw_memory() -> None:
    a, b = (np.array(v).astype(ml_dtypes.int4) for v in ([1, -8, 3], [1, 7, 3]))
    metrics = compare("x", a, b)
    assert (metrics.max_abs, metrics.differing, metrics.max_ulp) == (15, 1, None)
    assert compare("x", a, b.astype(np.int8)).max_abs == 15
    raw = np.zeros(2, "V2")
    assert compare("x", raw, raw).problem == "dtype |V2 cannot be compared"


# -- distribution of errors ------------------------------------------------------------------


@pytest.mark.parametrize("size", [11, EXACT, EXACT + 1, 40_000])
def test_histogram_counts_planted_decades(size: int) -> None:
    b = np.where(np.arange(size) % 2, 1.0, -1.0)  # RMS 1
    a = b.copy()
    planted = {0: 2, 1: 1, 2: 3, 4: 1, 8: 1, 9: 2, 10: 1}
    place = 0
    for bin_, count in planted.items():
        error = 0.0 if bin_ == 0 else 10.0 ** (bin_ - 9) / 2
        a[place : place + count] += error
        place += count
    found = compare("x", a, b, chunk=1000).histogram
    assert len(found) == len(HISTOGRAM) == 11
    assert sum(found) == size
    expected = [planted.get(bin_, 0) for bin_ in range(11)]
    expected[0] += size - place
    assert found == expected


def test_histogram_against_nothing() -> None:
    found = compare("x", np.array([0.0, 2.0, 3.0]), np.zeros(3)).histogram
    assert found == [1, *[0] * 9, 2]
    assert compare("x", np.ones(3), np.ones(3)).histogram == [3, *[0] * 10]


@given(st.integers(0, 2**32 - 1), st.integers(-300, 300), st.integers(100, 3000))
def test_bins_are_right_within_a_128th(seed: int, magnitude: int, chunk: int) -> None:
    """Over a range of errors that takes more than one window, and with zeros among them."""
    random = np.random.default_rng(seed)
    b = np.ones(EXACT + 500)
    d = random.standard_normal(b.size) * 2.0 ** random.integers(-120, 2, b.size)
    d[random.random(b.size) < random.random()] = 0
    a, b = d * 2.0**magnitude, np.zeros(b.size)
    b[0] = a[0] = 2.0**magnitude
    metrics = compare("x", a, b, chunk=chunk)
    found, counts, rms = metrics.p99_abs, metrics.histogram, metrics.reference_rms
    errors = np.abs(a - b)
    exact = float(np.quantile(errors, 0.99, method="inverted_cdf"))
    assert found is not None
    assert rms is not None
    assert exact * (1 - 1 / 128) <= found <= exact
    for last, edge in enumerate([0.0, *(10.0**k * rms for k in range(-8, 1))]):
        upto = sum(counts[: last + 1])
        assert np.sum(errors <= edge) <= upto <= np.sum(errors <= edge * (1 + 1 / 127))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deceived", [False, True])
def test_a_sample_changes_no_number(
    seed: int, deceived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that no bin was kept for are counted by a second reading."""
    random = np.random.default_rng(seed)
    b = random.standard_normal(20_000)
    a = b + random.standard_normal(b.size) * np.repeat(10 ** random.uniform(-7, -3, 200), 100)
    a.reshape(-1, 100)[3::7] = b.reshape(-1, 100)[3::7]
    if deceived:  # The pieces looked at hold the largest errors by far.
        a.reshape(-1, 100)[::25] += 1.0
        a.reshape(-1, 100)[1::2] = b.reshape(-1, 100)[1::2]
        a.reshape(-1, 100)[25::50] = b.reshape(-1, 100)[25::50]
    sampled = compare("x", a, b, chunk=100)
    guesses = []
    sample = readings.Reading._sample

    def spy(self: readings.Reading) -> float:
        guesses.append(sample(self))
        return -1.0

    monkeypatch.setattr(readings.Reading, "_sample", spy)
    plain = compare("x", a, b, chunk=100)
    assert guesses[0] >= 0
    for name in ("differing", "p99_abs", "max_abs", "rms"):
        assert getattr(sampled, name) == getattr(plain, name), name
    errors, rms = np.abs(a - b), float(sampled.reference_rms or 0)
    exact = float(np.quantile(errors, 0.99, method="inverted_cdf"))
    once = exact > guesses[0]  # Then edges below the guess were counted as they are.
    assert once or deceived or seed == 3
    for last, edge in enumerate([0.0, *(10.0**k * rms for k in range(-8, 1))]):
        upto = sum(sampled.histogram[: last + 1])
        most = np.sum(errors <= (edge if edge < guesses[0] and once else edge * 128 / 127))
        assert np.sum(errors <= edge) <= upto <= most
    assert sampled.p99_abs is not None
    assert exact * (1 - 1 / 128) <= sampled.p99_abs <= exact
    monkeypatch.setattr(readings.Reading, "_sample", lambda self: 1e9)
    assert compare("x", a, b, chunk=100).p99_abs == plain.p99_abs


# -- top-1 -----------------------------------------------------------------------------------


def naive_top1(a: Array, b: Array) -> float:
    """Row by row."""
    agreeing = 0
    one, other = (
        np.where(np.isnan(x), -np.inf, x).astype(np.float64).reshape(-1, x.shape[-1])
        for x in (a, b)
    )
    for x, y in zip(one, other, strict=True):
        i, j = int(x.argmax()), int(y.argmax())
        agreeing += i == j or (x[i] == x[j] and y[i] == y[j])
    return agreeing / len(one)


@given(
    st.sampled_from(("float32", "float64", "float16", "bfloat16", "float8_e4m3fn")),
    hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=6),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.booleans(),
)
def test_top1_is_that_of_a_naive_loop(
    name: str, shape: tuple[int, ...], seed: int, chunk: int, nan: bool
) -> None:
    """Of few different values, so that ties are common; some NaN and Inf."""
    random = np.random.default_rng(seed)
    a, b = (random.integers(-2, 3, shape).astype(type_of(name)) for _ in range(2))
    b = np.where(random.random(shape) < 0.7, a, b)
    if nan:
        holes = random.random(shape) < 0.2
        a[holes] = b[holes] = NAN if random.random() < 0.5 or name == "float8_e4m3fn" else INF
    expected = naive_top1(a, b) if shape[-1] > 1 else None
    metrics = compare("x", a, b, chunk=chunk)
    if not metrics.problem:
        assert metrics.top1 == expected
    turned = compare("x", np.asfortranarray(a), b[..., ::-1].copy()[..., ::-1], chunk=chunk)
    assert turned == metrics


def test_top1_by_hand() -> None:
    b = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 0.0], [7.0, 7.0, 0.0], [1.0, 1.1, 0.0]])
    a = b.copy()
    assert compare("x", a, b).top1 == 1
    a[0] = [3.0, 2.0, 1.0]
    assert compare("x", a, b).top1 == 0.75
    a[3] = [1.1, 1.0, 0.0]  # Not a tie: on each side one of both is larger.
    assert compare("x", a, b).top1 == 0.5
    a[2] = [7.0, 8.0, 0.0]  # A tie on one side alone.
    assert compare("x", a, b).top1 == 0.25


def test_top1_where_it_makes_no_sense() -> None:
    for array in (np.ones(4), np.ones((4, 1)), np.array(1.0), np.ones((2, 2), int)):
        assert compare("x", array, array).top1 is None


# -- layout, threads, speed's own paths ------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_numbers_are_the_same_to_the_last_bit_in_any_layout(name: str) -> None:
    random = np.random.default_rng(5)
    dtype = type_of(name) if name != "int32" else np.dtype(name)
    a, b = ((100 * random.standard_normal((4, 5, 6))).astype(dtype) for _ in range(2))
    for chunk in (7, CHUNK):
        expected = compare("x", a, b, chunk=chunk)
        for mine in layouts(a).values() if name != "bfloat16" else (np.asfortranarray(a),):
            assert compare("x", mine, np.asfortranarray(b), chunk=chunk) == expected


@pytest.mark.parametrize("hole", [False, True])
def test_numbers_are_the_same_to_the_last_bit_with_any_number_of_threads(
    hole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(6)
    b = random.standard_normal((60, 1000)).astype(np.float32)
    a = b * (1 + np.float32(1e-6) * random.standard_normal(b.shape).astype(np.float32))
    if hole:
        a[7, 7] = b[7, 7] = NAN
    found = []
    for workers in (1, 2, 5):
        monkeypatch.setattr(pieces, "threads", lambda elements, workers=workers: workers)
        found.append((compare("x", a, b, chunk=700), rms_error(a, b, chunk=700)))
    assert found[0] == found[1] == found[2]
    assert found[0][0].rms == found[0][1]
    a[50, 3] = NAN
    assert compare("x", a, b, chunk=700).problem.startswith("NaN masks differ at 1 of 60000")
    with pytest.raises(Incomparable, match=r"first at \[50, 3\]"):
        rms_error(a, b, chunk=700)


def test_an_exception_of_a_thread_is_raised() -> None:
    def make() -> Callable[[int], int]:
        return lambda index: 1 // (index - 3)

    with pytest.raises(ZeroDivisionError):
        pieces.each(9, 2, make)
    assert pieces.each(3, 2, make) == pieces.each(3, 1, make)


@given(hnp.array_shapes(min_dims=0, max_dims=5, max_side=7), st.integers(1, 60))
def test_pieces_hold_every_element_once_and_in_order(shape: tuple[int, ...], most: int) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    cut = pieces.Pieces(shape, most)
    for laid in (array, np.asfortranarray(array)):
        found = [cut.of(laid, index) for index in range(cut.count)]
        assert all(0 < piece.size <= min(most, cut.most) for piece in found)
        assert np.array_equal(np.concatenate(found), array.ravel())
    if shape and shape[-1] > most:
        assert cut.split == cut.parts or cut.axis == 0
    elif len(shape) > 1:
        assert all(piece.size % shape[-1] == 0 for piece in found)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1, 1), (1, 2)])
def test_few_elements(shape: tuple[int, ...]) -> None:
    b = np.full(shape, 2.0, np.float32)
    metrics = compare("x", b + np.float32(1), b)
    assert (metrics.rms, metrics.max_rel, metrics.elements) == (1, 0.5, b.size)
    assert metrics.top1 == (1 if shape == (1, 2) else None)


@given(st.sampled_from(FLOATS), st.integers(5000, 9000), st.integers(0, 2**32 - 1))
def test_large_tensors_equal_a_plain_numpy_oracle(dtype: str, size: int, seed: int) -> None:
    """Above what is looked at exactly, in several pieces, some of them equal."""
    random = np.random.default_rng(seed)
    b = random.standard_normal(size).astype(dtype)
    a = b + (random.standard_normal(size) * 1e-3).astype(dtype)
    a[: size // 2] = b[: size // 2]
    metrics = compare("x", a, b, chunk=1024)
    found = numbers(metrics)
    for name, expected in oracle(a, b).items():
        accuracy = 1 / 128 if name == "p99_abs" else 1e-12
        assert found[name] == pytest.approx(expected, rel=accuracy), name
    assert metrics.differing == np.sum(a != b)
