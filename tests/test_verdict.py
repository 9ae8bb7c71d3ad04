"""The law of the verdict, row by row.

Errors are planted in whole float32 steps, so that limits are met exactly: the reference is 1.0
everywhere, its RMS is 1, ``EPS`` the step above it, and the limit of rounding alone four steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.result import Agreement
from xbench.verdict import SEVERITY, Array, Evidences, Side, judge, judge_alone

EPS = float(np.finfo(np.float32).eps)
ONES = np.ones(4)
SAME = {"parameters": "p", "inputs": "i"}


def side(label: str, *, digests: Mapping[str, str] = SAME, spread: float | None = None,
         **tensors: Any) -> Side:  # fmt: skip
    """A side that computed ``outputs/y`` and whatever else is named."""
    named = {f"outputs/{name}": np.asarray(value) for name, value in tensors.items()}
    return Side(
        key=label,
        label=label,
        tensors=named,
        digests=digests,
        spread={} if spread is None else dict.fromkeys(named, spread),
        draws=0 if spread is None else 8,
    )


def off(steps: float) -> Array:
    """Float32 ones that are off by so many steps."""
    value = (ONES + steps * EPS).astype(np.float32)
    assert np.all(value.astype(np.float64) - 1 == steps * EPS), "float32 holds the planted error"
    return value


TRUTH = side("fp64", y=ONES)


def hold(
    a: Side, b: Side = TRUTH, *, truth: Side = TRUTH, source: Side | None = None,
    spread: Side | None = None, terms: int | None = None,
) -> Agreement:  # fmt: skip
    # By default the cap on what a source may excuse is out of the way.
    terms = terms or (1 if source is None else 10**9)
    evidences = Evidences(reference=truth, source=source, spread=spread, terms=terms)
    return judge(a, b, evidences, "outputs")


def verdict(steps: float, **evidence: Any) -> str:
    """The verdict on an error of so many steps against float64."""
    return hold(side("a", y=off(steps)), **evidence).verdict


# -- row 1: nothing to compare -----------------------------------------------------------------


@pytest.mark.parametrize("what", ["parameters", "inputs"])
@pytest.mark.parametrize("who", ["a", "b", "fp64"])
def test_other_parameters_or_inputs_on_any_side(what: str, who: str) -> None:
    a, b, truth = (
        side(name, digests=SAME | ({what: "other"} if name == who else {}), y=off(0))
        for name in ("a", "b", "fp64")
    )
    found = hold(a, b, truth=truth)
    assert found.verdict == "inconclusive"
    assert f"the {what} of a and b are not the same" in found.sentence
    assert found.tensors == []


def test_a_digest_that_is_missing_is_another_one() -> None:
    assert hold(side("a", digests={"inputs": "i"}, y=off(0))).verdict == "inconclusive"


def test_digests_count_before_shapes() -> None:
    assert hold(side("a", digests={}, y=[1.0])).verdict == "inconclusive"


def test_another_graph_is_no_other_experiment() -> None:
    assert hold(side("a", digests=SAME | {"graph": "g"}, y=off(0))).verdict == "agree"


def test_no_tensor_of_the_kind() -> None:
    evidences = Evidences(reference=TRUTH, source=None, spread=None)
    found = judge(side("a", y=off(0)), TRUTH, evidences, "gradients")
    assert (found.verdict, found.sentence) == ("inconclusive", "no gradients to compare")
    assert (found.evidence, found.tolerance) == (None, None)


def test_no_elements() -> None:
    empty = [side(name, y=np.zeros((0, 3))) for name in ("a", "b", "fp64")]
    found = hold(empty[0], empty[1], truth=empty[2])
    assert found.verdict == "inconclusive"
    assert "cannot be told apart in outputs/y: no elements" in found.sentence


def test_no_finite_elements() -> None:
    nan = [side(name, y=np.full(3, np.nan)) for name in ("a", "b", "fp64")]
    found = hold(nan[0], nan[1], truth=nan[2])
    assert found.verdict == "inconclusive"
    assert "no finite element" in found.sentence


# -- row 2: what differs before any number does ------------------------------------------------


def test_a_missing_tensor_is_named() -> None:
    b = side("b", y=off(0), z=off(0))
    found = hold(side("a", y=off(0)), b, truth=side("fp64", y=ONES, z=ONES))
    assert (found.verdict, found.sentence) == ("disagree", "a has no outputs/z, which b has")


def test_a_tensor_that_the_reference_misses_cannot_be_judged() -> None:
    both = [side(name, y=off(0), z=off(0)) for name in ("a", "b")]
    found = hold(*both)
    assert (found.verdict, found.sentence) == ("inconclusive", "fp64 has no outputs/z, which b has")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.ones(3, np.float32), "shape (3,)"),
        (np.ones((2, 2), np.float32), "shape (2, 2)"),
        (np.zeros(0, np.float32), "shape (0,)"),
        (np.ones(4, np.int32), "dtype int32"),
        (np.array([1, 1, 1, np.nan], np.float32), "NaN masks differ at 1 of 4"),
        (np.array([1, np.inf, 1, 1], np.float32), "+Inf masks differ at 1 of 4"),
        (np.full(4, np.nan, np.float32), "NaN masks differ at 4 of 4"),
    ],
)
def test_another_shape_kind_or_mask(value: Array, problem: str) -> None:
    for b in (TRUTH, side("b", y=off(0))):
        found = hold(side("a", y=value), b, source=side("source", y=off(1000)), spread=TRUTH)
        assert found.verdict == "disagree"
        assert f"a and {b.label} differ in outputs/y" in found.sentence
        assert problem in found.sentence
        assert found.tolerance is None


def test_infinities_of_other_sign_differ() -> None:
    plus, minus = ([1.0, np.inf], [1.0, -np.inf])
    assert hold(side("a", y=plus), truth=side("fp64", y=minus), b=side("b", y=minus)).verdict == (
        "disagree"
    )


def test_equal_masks_are_left_out() -> None:
    masked = np.array([1, np.nan, np.inf, -np.inf])
    truth = side("fp64", y=masked)
    good, bad = (masked.astype(np.float32) * np.float32(1 + k * EPS) for k in (4, 41))
    assert hold(side("a", y=good), truth, truth=truth).verdict == "agree"
    assert hold(side("a", y=bad), truth, truth=truth).verdict == "disagree"


@pytest.mark.parametrize("other", [0, 1])
def test_two_sides_that_overflow_alike_are_not_told_apart(other: int) -> None:
    a, b = off(0), off(other)
    a[2] = b[2] = np.inf
    found = hold(side("a", y=a), side("b", y=b))
    assert found.verdict == "inconclusive"
    assert "a and b cannot be told apart" in found.sentence
    assert hold(side("a", y=a)).verdict == "disagree", "against float64 it is plain"


# -- row 3: definition parity ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relative", "expected"),
    [
        (0.0, "agree"),
        (0.9e-9, "agree"),
        (1.1e-9, "inconclusive"),
        (0.9e-8, "inconclusive"),
        (1.1e-8, "disagree"),
    ],
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_float64_against_float64(relative: float, expected: str, scale: float) -> None:
    truth = side("fp64", y=ONES * scale)
    excuse = side("excuse", spread=1.0 * scale, y=ONES * 2 * scale)
    found = hold(
        side("a", y=ONES * scale * (1 + relative)), truth,
        truth=truth, source=excuse, spread=excuse, terms=10**6,
    )  # fmt: skip
    assert found.verdict == expected
    assert found.tolerance == pytest.approx(1e-9 * scale)
    assert found.evidence is not None
    assert found.evidence.decided_by == "float64 parity"


def test_float32_against_float64_is_not_parity() -> None:
    assert verdict(4) == "agree"
    assert 4 * EPS > 10 * 1e-9


# -- row 4: the limits of float32 --------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, "agree"), (4, "agree"), (5, "inconclusive"), (40, "inconclusive"), (41, "disagree")],
)
def test_rounding_of_the_result(steps: int, expected: str) -> None:
    exact = side("source", y=off(0))
    assert verdict(steps, source=exact) == expected
    assert verdict(-steps, source=exact) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(20, "agree"), (21, "inconclusive"), (200, "inconclusive"), (201, "disagree")],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_twice_the_error_of_the_source(steps: int, expected: str, sign: int) -> None:
    assert verdict(steps, source=side("source", y=off(10 * sign))) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(32, "agree"), (33, "inconclusive"), (320, "inconclusive"), (321, "disagree")],
)
def test_the_spread_of_the_function(steps: int, expected: str) -> None:
    spread = side("spread", spread=32 * EPS, y=off(0))
    assert verdict(steps, source=side("source", y=off(0)), spread=spread) == expected
    assert verdict(steps, spread=spread) == expected, "the source itself has it too"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(16, "agree"), (17, "inconclusive"), (160, "inconclusive"), (161, "disagree")],
)
def test_the_source_is_held_to_the_rounding_of_a_sum(steps: int, expected: str) -> None:
    assert verdict(steps, source=None, terms=16) == expected


def test_the_source_is_never_its_own_excuse() -> None:
    wrong = side("source", y=off(100_000))
    found = hold(wrong, source=None, terms=16)
    assert found.verdict == "disagree"
    assert found.evidence is not None
    assert found.evidence.source_error_rms is None


def test_a_wrong_source_does_not_excuse_others() -> None:
    wrong = side("source", y=off(100_000))
    assert hold(side("a", y=off(16)), wrong, source=wrong, terms=16).verdict == "agree"
    assert hold(side("a", y=off(17)), wrong, source=wrong, terms=16).verdict == "inconclusive"
    assert hold(side("a", y=off(1000)), wrong, source=wrong, terms=16).verdict == "disagree"
    # Where the function itself is that sensitive, the spread is the cap.
    shaky = side("torch", spread=EPS * 40, y=ONES)
    held = hold(side("a", y=off(40)), wrong, source=wrong, spread=shaky, terms=16)
    assert held.verdict == "agree"


def test_the_sum_is_no_excuse_for_others() -> None:
    assert verdict(100, source=side("source", y=off(0)), terms=10**6) == "disagree"


@pytest.mark.parametrize(
    ("source", "spread", "decided", "limit", "rounding"),
    [
        (1, 1, "rounding of the result", 4, 4),
        (7, 1, "2x source error", 14, 4),
        (10, 30, "1-ULP spread", 30, 4),
        (None, 1, "rounding of a sum, 4 eps sqrt(K)", 16, 16),
        (None, 30, "1-ULP spread", 30, 16),
    ],
)
def test_the_largest_limit_decides_and_is_named(
    source: int | None, spread: int, decided: str, limit: int, rounding: int
) -> None:
    found = hold(
        side("a", y=off(2)),
        source=None if source is None else side("source", y=off(source)),
        spread=side("spread", spread=spread * EPS, y=off(0)),
        terms=16,
    )
    evidence = found.evidence
    assert evidence is not None
    assert found.tolerance == pytest.approx(limit * EPS)
    assert evidence.decided_by == decided
    assert decided in found.sentence
    assert evidence.error_rms == pytest.approx(2 * EPS)
    assert evidence.source_error_rms == (None if source is None else pytest.approx(source * EPS))
    assert evidence.spread_rms == spread * EPS
    assert evidence.rounding_rms == pytest.approx(rounding * EPS)
    assert evidence.draws == 8


def test_the_rms_decides_not_the_maximum() -> None:
    one = np.ones(10_000, np.float32)
    one[0] += 100 * np.float32(EPS)
    truth = side("fp64", y=np.ones(10_000))
    found = hold(side("a", y=one), truth, truth=truth, source=side("source", y=one * 0 + 1))
    assert found.verdict == "agree"
    assert found.tensors[0].max_abs == pytest.approx(100 * EPS)


def test_the_error_is_that_to_float64_and_not_to_the_other_side() -> None:
    source = side("source", y=off(-10))
    assert hold(side("a", y=off(15)), source, source=source).verdict == "agree", "25 steps apart"
    found = hold(side("a", y=off(-25)), source, source=source)
    assert found.verdict == "inconclusive", "15 steps apart"
    assert found.tensors[0].rms == pytest.approx(15 * EPS)


def test_a_source_that_is_not_finite_or_lacks_the_tensor_is_no_measure() -> None:
    nan = np.full(4, np.nan, np.float32)
    for source in (side("source", y=nan), side("source", z=off(0))):
        assert verdict(4, source=source) == "agree"
        assert verdict(5, source=source) == "inconclusive"


def test_a_reference_of_zeros() -> None:
    zeros = side("fp64", y=np.zeros(4))
    exact, off_by_little = (np.full(4, value, np.float32) for value in (0.0, 1e-30))
    found = hold(side("a", y=exact), zeros, truth=zeros)
    assert found.verdict == "agree"
    assert hold(side("a", y=off_by_little), zeros, truth=zeros).verdict == "disagree"
    spread = side("spread", spread=1e-30, y=exact)
    tiny = hold(side("a", y=off_by_little / 2), zeros, truth=zeros, spread=spread)
    assert tiny.verdict == "agree"


def test_half_precision_is_judged_by_the_same_law() -> None:
    half = (ONES + 2**-10).astype(np.float16)
    assert hold(side("a", y=half), source=side("source", y=off(0))).verdict == "disagree"
    assert hold(side("a", y=half), source=side("source", y=half)).verdict == "agree"


# -- the pair, and what is said ----------------------------------------------------------------


@pytest.mark.parametrize("worse", ["y", "z"])
def test_the_worst_tensor_decides(worse: str) -> None:
    truth, exact = side("fp64", y=ONES, z=ONES), side("source", y=off(0), z=off(0))
    a = side("a", y=off(20 if worse == "y" else 1), z=off(20 if worse == "z" else 1))
    found = hold(a, truth, truth=truth, source=exact)
    assert found.verdict == "inconclusive"
    assert found.evidence is not None
    assert found.evidence.tensor == f"outputs/{worse}"
    assert [item.name for item in found.tensors] == ["outputs/y", "outputs/z"]
    assert (found.a, found.b, found.what) == ("a", "fp64", "outputs")


def test_a_disagreement_is_worse_than_what_cannot_be_told() -> None:
    overflow = np.full(4, np.inf, np.float32)
    b = side("b", y=overflow, z=off(0))
    found = hold(side("a", y=overflow, z=off(50)), b, truth=side("fp64", y=ONES, z=ONES))
    assert found.verdict == "disagree"
    assert found.evidence is not None
    assert found.evidence.tensor == "outputs/z"


def test_sentences() -> None:
    exact = side("source", y=off(0))
    assert hold(side("a", y=off(1)), source=exact).sentence == (
        "a agrees with fp64 in outputs/y; nearest to its limit: outputs/y, its RMS error "
        "to float64 is 1.2e-07, limit 4.8e-07 (rounding of the result)"
    )
    assert hold(side("a", y=off(8)), source=exact).sentence == (
        "a is off fp64 in outputs/y: its RMS error to float64 is 9.5e-07, above the limit 4.8e-07 "
        "(rounding of the result) but not 10 times it"
    )
    assert hold(side("a", y=off(80)), source=exact).sentence == (
        "a is not the same as fp64 in outputs/y: its RMS error to float64 is 9.5e-06, limit "
        "4.8e-07 (rounding of the result)"
    )
    two = [side(name, y=off(0), z=off(0)) for name in ("a", "fp64")]
    assert "agrees with fp64 in all 2 outputs" in hold(*two, truth=two[1]).sentence


def with_taps(label: str, dtype: type, **steps: float) -> Side:
    """A side whose taps are off by so many steps; its output by 1000 unless it is the truth."""
    taps: dict[str, Array] = {
        f"taps/{name}": (ONES + k * EPS).astype(dtype) for name, k in steps.items()
    }
    output = ONES if label == "fp64" else off(1000)
    return Side(key=label, label=label, tensors={"outputs/y": output, **taps}, digests=SAME)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ({"early": 0, "middle": 50, "late": 1000}, "middle"),
        ({"late": 1000, "middle": 50, "early": 0}, "middle"),
        ({"early": 20, "middle": 0, "late": 60}, "late"),
        ({"early": 50, "middle": 0, "late": 0}, "early"),
        ({"middle": 20, "late": 1000}, "late"),
    ],
)
def test_the_first_tap_that_departs_is_named(steps: dict[str, float], named: str) -> None:
    truth = with_taps("fp64", np.float64, early=0, middle=0, late=0)
    source = side("source", y=off(0))
    found = hold(with_taps("a", np.float32, **steps), truth, truth=truth, source=source)
    assert found.verdict == "disagree"
    assert found.sentence.endswith(f"; the first tensor that departs is {named}")


def test_without_a_tap_that_departs_none_is_named() -> None:
    truth = with_taps("fp64", np.float64, early=0)
    source = side("source", y=off(0))
    for steps in ({"early": 4}, {}):
        found = hold(with_taps("a", np.float32, **steps), truth, truth=truth, source=source)
        assert found.verdict == "disagree"
        assert "departs" not in found.sentence


# -- properties --------------------------------------------------------------------------------

VALUES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3)), min_size=4, max_size=4
)
ERRORS = st.lists(st.integers(-300, 300), min_size=4, max_size=4)


@given(VALUES, ERRORS, ERRORS, st.floats(0, 1e-3), st.integers(-40, 40), st.booleans())
@settings(max_examples=150)
def test_scaling_everything_by_a_power_of_two_changes_no_verdict(
    values: list[float], of_a: list[int], of_source: list[int], spread: float, power: int, own: bool
) -> None:
    def found(factor: float) -> Agreement:
        def single(errors: list[int]) -> Array:
            exact = np.array(values) * (1 + np.array(errors) * EPS)
            return exact.astype(np.float32) * np.float32(factor)

        truth = side("fp64", y=np.array(values) * factor)
        source = side("source", spread=spread * factor, y=single(of_source))
        evidence = None if own else source
        return hold(
            side("a", y=single(of_a)), source, truth=truth, source=evidence, spread=source, terms=9
        )

    plain, scaled = found(1.0), found(2.0**power)
    assert scaled.verdict == plain.verdict
    assert plain.tolerance is not None
    assert scaled.tolerance == pytest.approx(plain.tolerance * 2.0**power, rel=1e-12, abs=0)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6), st.integers(0, 30))
def test_a_larger_error_never_gets_a_milder_verdict(steps: list[int], source: int) -> None:
    severities = [SEVERITY[verdict(k, source=side("source", y=off(source)))] for k in sorted(steps)]
    assert severities == sorted(severities)


# -- lower precisions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "eps"), [("fp32", 2**-23), ("bf16", 2**-7), ("fp16", 2**-10)]
)
@pytest.mark.parametrize(("own", "factor"), [(False, 4.0), (True, 4.0 * 3.0)])
def test_rounding_is_reckoned_in_the_precision_of_the_case(
    precision: str, eps: float, own: bool, factor: float
) -> None:
    exact = side("source", y=off(0))
    evidences = Evidences(
        reference=TRUTH, source=None if own else exact, spread=None, terms=9, precision=precision
    )
    for error, expected in ((0.75, "agree"), (1.25, "inconclusive"), (10.25, "disagree")):
        value = (ONES * (1 + error * factor * eps)).astype(np.float32)
        found = judge(side("a", y=value), TRUTH, evidences, "outputs")
        assert found.tolerance == pytest.approx(factor * eps)
        assert found.verdict == expected


# -- without a float64 reference -----------------------------------------------------------------


def alone(a: Side, b: Side) -> Agreement:
    return judge_alone(a, b, "outputs")


def test_alone_the_same_bits_agree() -> None:
    found = alone(side("a", y=off(1), z=off(2)), side("b", y=off(1), z=off(2)))
    assert (found.a, found.b, found.what, found.verdict) == ("a", "b", "outputs", "agree")
    assert found.sentence == "a and b are bitwise equal in all 2 outputs"
    assert (found.evidence, found.tolerance) == (None, None)
    assert [item.name for item in found.tensors] == ["outputs/y", "outputs/z"]


@pytest.mark.parametrize("steps", [1, 1000])
def test_alone_a_difference_is_shown_and_nobody_knows_what_it_means(steps: int) -> None:
    found = alone(side("a", y=off(0), z=off(steps)), side("b", y=off(0), z=off(0)))
    assert found.verdict == "inconclusive"
    assert found.sentence == (
        f"a is off b in outputs/z by {steps * EPS:.2g} of its largest value; without a float64 "
        "reference nobody knows whether rounding explains it"
    )
    assert found.tensors[1].rms == pytest.approx(steps * EPS)


def test_alone_the_largest_difference_is_named() -> None:
    found = alone(side("a", y=off(7), z=off(3)), side("b", y=off(0), z=off(0)))
    assert f"in outputs/y by {7 * EPS:.2g}" in found.sentence


def test_alone_a_zero_of_the_other_sign_is_not_the_same_bits() -> None:
    assert alone(side("a", y=[0.0]), side("b", y=[-0.0])).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.ones(3, np.float32), "shape (3,)"),
        (np.zeros((0, 4), np.float32), "shape (0, 4)"),
        (np.ones(4, np.int32), "dtype int32"),
        (np.array([1, np.nan, 1, 1], np.float32), "NaN masks differ at 1 of 4"),
        (np.array([1, 1, -np.inf, 1], np.float32), "-Inf masks differ at 1 of 4"),
        (np.full(4, np.nan, np.float32), "NaN masks differ at 4 of 4"),
    ],
)
def test_alone_another_shape_kind_or_mask_is_a_difference(value: Array, problem: str) -> None:
    for a, b in ((value, off(0)), (off(0), value)):
        found = alone(side("a", x=off(0), y=a), side("b", x=off(0), y=b))
        assert found.verdict == "disagree"
        assert "a and b differ in outputs/y: " in found.sentence
    found = alone(side("a", y=value), side("b", y=off(0)))
    assert problem in found.sentence


def test_alone_a_shape_that_differs_is_seen_behind_one_without_elements() -> None:
    """Nothing can be said of no elements; of the tensor after it there can."""
    nothing = np.zeros((0, 3), np.float32)
    bad = np.array([1, np.nan, 1, 1], np.float32)
    found = alone(side("a", y=nothing, z=bad), side("b", y=nothing, z=off(0)))
    assert found.verdict == "disagree"
    assert "outputs/z" in found.sentence


def test_alone_no_elements_are_no_difference() -> None:
    nothing = np.zeros((0, 3), np.float32)
    assert alone(side("a", y=nothing), side("b", y=nothing)).verdict != "disagree"
    found = alone(side("a", y=nothing, z=off(1)), side("b", y=nothing, z=off(1)))
    assert found.verdict == "agree", "the same shape and the same bits"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_alone_what_is_not_finite_anywhere_is_the_same_where_it_is_alike(value: float) -> None:
    whole = np.full(4, value, np.float32)
    found = alone(side("a", y=whole), side("b", y=whole.copy()))
    assert found.verdict == "agree"


def test_alone_equal_masks_are_no_difference() -> None:
    masked = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert alone(side("a", y=masked), side("b", y=masked.copy())).verdict == "agree"
    other = masked.copy()
    other[0] += np.float32(EPS)
    assert alone(side("a", y=other), side("b", y=masked)).verdict == "inconclusive"


@pytest.mark.parametrize("what", ["parameters", "inputs"])
def test_alone_other_parameters_or_inputs(what: str) -> None:
    found = alone(side("a", digests=SAME | {what: "other"}, y=off(0)), side("b", y=off(0)))
    assert found.verdict == "inconclusive"
    assert f"the {what} of a and b are not the same" in found.sentence


def test_alone_a_missing_tensor_is_a_difference() -> None:
    """As in row 2: a graph that lost an output is not the same graph."""
    found = alone(side("a", y=off(0)), side("b", y=off(0), z=off(0)))
    assert found.sentence == "a has no outputs/z, which b has"
    assert found.verdict == "disagree"


def test_alone_nothing_of_the_kind_is_not_called_missing() -> None:
    found = judge_alone(side("a", y=off(0)), side("b", y=off(0)), "gradients")
    assert (found.verdict, found.sentence) == ("inconclusive", "no gradients to compare")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.bool_, np.uint8])
def test_alone_whole_numbers_are_compared_too(dtype: type) -> None:
    one: Array = np.array([0, 1], dtype)
    other: Array = np.array([0, 0], dtype)
    assert alone(side("a", y=one), side("b", y=one.copy())).verdict == "agree"
    assert alone(side("a", y=one), side("b", y=other)).verdict == "inconclusive"
