"""The law of the verdict, row by row, in its order. Tests are called after the rows.

Errors are planted in whole float32 steps, so that limits are met exactly: the reference is 1.0
everywhere, its RMS is 1, ``EPS`` the step above it, and the limit of rounding alone four steps.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.result import Agreement, Evidence, OperatorCheck, Operators
from xbench.tolerances import Tolerances
from xbench.verdict import EPS as STEPS
from xbench.verdict import SEVERITY, Array, Choices, Confirmation, Evidences, Side, judge

EPS = float(np.finfo(np.float32).eps)
ONES = np.ones(4)
SAME = {"parameters": "p", "inputs": "i"}


def side(label: str, **tensors: Any) -> Side:
    """A side that computed ``outputs/y`` and whatever else is named, in this order."""
    named = {f"outputs/{name}": np.asarray(value) for name, value in tensors.items()}
    return Side(key=label, label=label, tensors=named, digests=SAME)


def but(of: Side, **fields: Any) -> Side:
    """The same side with other fields."""
    return msgspec.structs.replace(of, **fields)


def off(steps: float) -> Array:
    """Float32 ones that are off by so many steps."""
    value = (ONES + steps * EPS).astype(np.float32)
    assert np.all(value.astype(np.float64) - 1 == steps * EPS), "float32 holds the planted error"
    return value


def spreading(steps: float, label: str = "spread", ulps: int = 1) -> Side:
    """A side whose output moves by so many steps when its parameters do."""
    exact = side(label, y=off(0))
    return but(exact, spread={"outputs/y": steps * EPS}, draws=8, spread_ulps=ulps)


TRUTH = side("fp64", y=ONES)


def hold(a: Side, b: Side = TRUTH, *, truth: Side | None = TRUTH, **evidence: Any) -> Agreement:
    return judge(a, b, Evidences(reference=truth, **evidence), "outputs")


def verdict(steps: float, **evidence: Any) -> str:
    """The verdict on an error of so many steps against float64."""
    return hold(side("a", y=off(steps)), **evidence).verdict


def evidence_of(found: Agreement) -> Evidence:
    assert found.evidence is not None
    return found.evidence


# -- row 0: not the same experiment, or none -------------------------------------------------------


@pytest.mark.parametrize("what", ["parameters", "inputs"])
@pytest.mark.parametrize("who", ["a", "b", "fp64"])
def test_row_0_other_parameters_or_inputs(what: str, who: str) -> None:
    a, b, truth = (
        but(side(name, y=off(0)), digests=SAME | ({what: "other"} if name == who else {}))
        for name in ("a", "b", "fp64")
    )
    found = hold(a, b, truth=truth)
    assert found.verdict == "inconclusive"
    other = "fp64" if who == "fp64" else "b"
    assert found.sentence == f"the {what} of a and {other} are not the same"
    assert (found.tensors, found.evidence, found.tolerance) == ([], None, None)


def test_row_0_a_digest_that_is_missing_is_another_one() -> None:
    assert hold(but(side("a", y=off(0)), digests={"inputs": "i"})).verdict == "inconclusive"


def test_row_0_is_asked_before_row_1() -> None:
    assert hold(but(side("a", y=[1.0]), digests={})).verdict == "inconclusive"
    assert hold(side("a", y=[1.0])).verdict == "disagree"


def test_row_0_another_graph_is_no_other_experiment() -> None:
    assert hold(but(side("a", y=off(0)), digests=SAME | {"graph": "g"})).verdict == "agree"


def test_row_0_nothing_of_the_kind() -> None:
    found = judge(side("a", y=off(0)), TRUTH, Evidences(reference=TRUTH), "gradients")
    assert (found.verdict, found.sentence) == ("inconclusive", "no gradients to compare")
    assert (found.evidence, found.tolerance) == (None, None)


# -- row 1: structure ------------------------------------------------------------------------------

STRUCTURE = [
    (np.ones(3, np.float32), "shape (3,)"),
    (np.ones((2, 2), np.float32), "shape (2, 2)"),
    (np.ones((), np.float32), "shape ()"),
    (np.zeros(0, np.float32), "shape (0,)"),
    (np.ones(4, np.int32), "dtype int32"),
    (np.ones(4, np.bool_), "dtype bool"),
    (np.array([1, 1, 1, np.nan], np.float32), "NaN masks differ at 1 of 4"),
    (np.array([1, np.inf, 1, 1], np.float32), "+Inf masks differ at 1 of 4"),
    (np.array([1, 1, -np.inf, 1], np.float32), "-Inf masks differ at 1 of 4"),
    (np.full(4, np.nan, np.float32), "NaN masks differ at 4 of 4"),
]


@pytest.mark.parametrize(("value", "problem"), STRUCTURE)
def test_row_1_shape_dtype_masks(value: Array, problem: str) -> None:
    generous: dict[str, Any] = {"source": side("source", y=off(1000)), "spread": spreading(9e9)}
    for b in (TRUTH, side("b", y=off(0))):
        found = hold(side("a", y=value), b, **generous)
        assert found.verdict == "disagree"
        assert f"a and {b.label} differ in outputs/y: " in found.sentence
        assert problem in found.sentence
        assert problem in evidence_of(found).decided_by
        assert found.tolerance is None


@pytest.mark.parametrize(("value", "problem"), STRUCTURE)
def test_row_1_shape_dtype_masks_without_a_reference(value: Array, problem: str) -> None:
    found = hold(side("a", y=value), side("b", y=off(0)), truth=None)
    assert found.verdict == "disagree"
    assert problem in found.sentence
    assert hold(side("b", y=off(0)), side("a", y=value), truth=None).verdict == "disagree"


@pytest.mark.parametrize(("value", "problem"), STRUCTURE)
def test_row_1_no_tolerance_excuses_it(value: Array, problem: str) -> None:
    fixed = Tolerances(atol={"": 1e30}, rtol={"": 1e30})
    found = hold(side("a", y=value), fixed=fixed)
    assert found.verdict == "disagree"
    assert problem in found.sentence


def test_row_1_infinities_of_other_sign() -> None:
    minus = side("fp64", y=[1.0, -np.inf])
    assert hold(side("a", y=[1.0, np.inf]), minus, truth=minus).verdict == "disagree"


def test_row_1_a_missing_tensor() -> None:
    b = side("b", y=off(0), z=off(0))
    found = hold(side("a", y=off(0)), b, truth=side("fp64", y=ONES, z=ONES))
    assert (found.verdict, found.sentence) == ("disagree", "a has no outputs/z, which b has")
    assert hold(side("a", y=off(0)), b, truth=None).verdict == "disagree"


def test_row_1_a_tensor_more_is_said_and_is_no_fault() -> None:
    found = hold(side("a", y=off(0), z=off(0)))
    assert found.verdict == "agree"
    assert "outputs/z of a has no partner in fp64" in found.sentence


def test_row_1_a_tensor_that_the_reference_misses_cannot_be_judged() -> None:
    found = hold(*(side(name, y=off(0), z=off(0)) for name in ("a", "b")))
    assert (found.verdict, found.sentence) == ("inconclusive", "fp64 has no outputs/z, which b has")


def test_row_1_no_elements_in_any_tensor() -> None:
    a, b, truth = (side(name, y=np.zeros((0, 3)), z=[]) for name in ("a", "b", "fp64"))
    for reference in (truth, None):
        found = hold(a, b, truth=reference)
        assert found.verdict == "inconclusive"
        assert "cannot be told apart in outputs/y: no elements" in found.sentence
        assert found.tolerance is None


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, "agree"), (5, "inconclusive"), (41, "disagree")]
)
def test_row_1_no_elements_in_one_of_several(steps: int, expected: str) -> None:
    """Nothing can be said of no elements, and what can be said of the others is."""
    nothing = np.zeros((0, 3))
    truth = side("fp64", x=nothing, y=ONES)
    found = hold(side("a", x=nothing.astype(np.float32), y=off(steps)), truth, truth=truth)
    assert found.verdict == expected
    assert evidence_of(found).tensor == "outputs/y"
    assert [item.elements for item in found.tensors] == [0, 4]
    assert found.sentence.endswith("; nothing to compare in outputs/x")


def test_row_1_no_elements_of_another_kind() -> None:
    floats, whole = side("fp64", y=np.zeros(0)), side("a", y=np.zeros(0, np.int64))
    assert hold(whole, floats, truth=floats).verdict == "disagree"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_1_not_one_finite_element(value: float) -> None:
    a, b, truth = (side(name, y=np.full(3, value)) for name in ("a", "b", "fp64"))
    for reference in (truth, None):
        found = hold(a, b, truth=reference)
        assert found.verdict == "inconclusive"
        assert "no finite element" in found.sentence
        assert "nothing to compare in" not in found.sentence


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, "agree"), (5, "inconclusive"), (41, "disagree")]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_1_not_one_finite_element_in_one_of_several(
    value: float, steps: int, expected: str
) -> None:
    """As with no elements: what is alike in having nothing finite says nothing of the others."""
    nothing = np.full(4, value)
    truth = side("fp64", x=nothing, y=ONES)
    found = hold(side("a", x=nothing.astype(np.float32), y=off(steps)), truth, truth=truth)
    assert found.verdict == expected
    assert evidence_of(found).tensor == "outputs/y"
    assert found.sentence.endswith("; nothing to compare in outputs/x")
    assert found.telling
    other = hold(side("a", x=ONES, y=off(0)), truth, truth=truth)
    assert other.verdict == "disagree", "finite on one side alone is another mask"
    assert "nothing to compare in" not in other.sentence


def test_row_1_masks_that_are_equal_are_left_out() -> None:
    masked = np.array([1, np.nan, np.inf, -np.inf])
    truth = side("fp64", y=masked)
    for steps, expected in ((4, "agree"), (5, "inconclusive"), (41, "disagree")):
        value = masked.astype(np.float32) * np.float32(1 + steps * EPS)
        found = hold(side("a", y=value), truth, truth=truth)
        assert found.verdict == expected
        assert found.tolerance == pytest.approx(4 * EPS), "RMS of what is finite"


@pytest.mark.parametrize("other", [0, 1])
def test_row_1_two_sides_that_overflow_alike(other: int) -> None:
    a, b = off(0), off(other)
    a[2] = b[2] = np.inf
    found = hold(side("a", y=a), side("b", y=b))
    assert found.verdict == "inconclusive"
    assert "a and b cannot be told apart" in found.sentence
    assert hold(side("a", y=a)).verdict == "disagree", "against float64 it is plain"


PICTURE = np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (PICTURE.transpose(0, 2, 3, 1), "is NHWC where"),
        (PICTURE.reshape(6, 35), "in the same order under another shape"),
        (PICTURE.transpose(0, 2, 3, 1)[::-1], ""),
    ],
)
def test_row_1_another_layout_is_recognised_by_its_values(value: Array, hint: str) -> None:
    truth = side("fp64", y=PICTURE.astype(np.float64))
    found = hold(side("a", y=value), truth, truth=truth)
    assert found.verdict == "disagree"
    assert hint in found.sentence
    assert "shape " in found.sentence
    if not hint:
        assert "NHWC" not in found.sentence


def test_row_1_another_layout_of_the_same_shape_is_recognised_too() -> None:
    """Where height, width and channels are equal the shape tells nothing: the numbers decide."""
    cube = np.random.default_rng(0).standard_normal((1, 4, 4, 4))
    truth = side("fp64", y=cube)
    for order, hint in (((0, 2, 3, 1), "a is NHWC where fp64 is NCHW"),
                        ((0, 3, 1, 2), "a is NCHW where fp64 is NHWC")):  # fmt: skip
        found = hold(side("a", y=cube.transpose(order).astype(np.float32)), truth, truth=truth)
        assert found.verdict == "disagree"
        assert found.tolerance is not None, "the error decided, not the structure"
        assert hint in found.sentence
    other = np.random.default_rng(1).standard_normal(cube.shape).astype(np.float32)
    found = hold(side("a", y=other), truth, truth=truth)
    assert found.verdict == "disagree"
    assert "NCHW" not in found.sentence


def test_row_1_hints_call_the_sides_by_their_names() -> None:
    truth = side("fp64", y=PICTURE.astype(np.float64))
    found = hold(side("ort(tf)", y=PICTURE.transpose(0, 2, 3, 1)), truth, truth=truth)
    assert "ort(tf) is NHWC where fp64 is NCHW" in found.sentence
    y, z = np.random.default_rng(1).standard_normal((2, 4))
    truth = side("fp64", y=y, z=z)
    found = hold(side("ort(tf)", o=z, p=y), truth, truth=truth)
    assert "outputs are swapped: 'o' of ort(tf) matches 'z' of fp64" in found.sentence
    assert "'p' of ort(tf) matches 'y' of fp64" in found.sentence


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((4,), (2, 3))])
def test_row_1_swapped_outputs_are_recognised(shapes: tuple[tuple[int, ...], ...]) -> None:
    draw = np.random.default_rng(1).standard_normal
    y, z = (draw(shape) for shape in shapes)
    truth = side("fp64", y=y, z=z)
    found = hold(side("a", y=z.astype(np.float32), z=y.astype(np.float32)), truth, truth=truth)
    assert found.verdict == "disagree"
    assert "'y' and 'z' are swapped" in found.sentence
    wrong = hold(side("a", y=y.astype(np.float32), z=z * 2), truth, truth=truth)
    assert wrong.verdict == "disagree"
    assert "swapped" not in wrong.sentence


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, "agree"), (5, "inconclusive"), (41, "disagree")]
)
def test_row_1_outputs_of_other_names_are_paired_by_position(steps: int, expected: str) -> None:
    truth = side("fp64", y=ONES, z=2 * ONES)
    a = side("a", **{"out:0": off(steps), "out:1": 2 * off(0)})
    found = hold(a, truth, truth=truth)
    assert found.verdict == expected
    assert "outputs/out:0 of a is held against outputs/y of fp64, by position" in found.sentence
    assert "outputs/out:1 of a is held against outputs/z of fp64, by position" in found.sentence
    assert found.telling
    assert [item.name for item in found.tensors] == ["outputs/y", "outputs/z"]


# -- row 2: a side that differs from itself --------------------------------------------------------


def unsteady(label: str, steps: float, distance: float, random: str = "") -> Side:
    """A side that a second run put so many steps away from where it was."""
    found = side(label, y=off(steps))
    return but(found, unsteady={"outputs/y": distance * EPS}, random=random)


def test_row_2_unsteady_within_the_limit() -> None:
    found = hold(unsteady("a", 1, 4))
    assert found.verdict == "agree"
    assert evidence_of(found).self_rms == 4 * EPS
    assert found.tolerance == 4 * EPS
    assert hold(unsteady("a", 41, 4)).verdict == "disagree", "it is no excuse"


@pytest.mark.parametrize("steps", [0, 1, 20, 1000])
@pytest.mark.parametrize("distance", [4.01, 1e9, np.inf])
def test_row_2_unsteady_beyond_the_limit(steps: int, distance: float) -> None:
    found = hold(unsteady("a", steps, distance))
    assert found.verdict == "inconclusive"
    assert "a differs from itself in a second run" in found.sentence
    assert found.tolerance is None
    assert evidence_of(found).self_rms == distance * EPS


def test_row_2_the_limit_is_that_of_row_4() -> None:
    assert hold(unsteady("a", 1, 20), spread=spreading(20)).verdict == "agree"
    assert hold(unsteady("a", 1, 21), spread=spreading(20)).verdict == "inconclusive"


def test_row_2_random_nodes_are_named() -> None:
    found = hold(unsteady("a", 1000, 1000, "RandomNormal 'noise'"))
    assert found.sentence.endswith("differs from itself in a second run: RandomNormal 'noise'")
    steady = hold(but(side("a", y=off(1000)), random="RandomNormal 'noise'"))
    assert steady.verdict == "disagree", "a node that made no difference is not to blame"


def test_row_2_the_other_side_is_the_unsteady_one() -> None:
    found = hold(side("a", y=off(1000)), unsteady("b", 0, 5))
    assert found.verdict == "inconclusive"
    assert "b differs from itself" in found.sentence


def test_row_2_by_position_each_side_is_known_by_its_own_names() -> None:
    a = but(side("a", other=off(0)), unsteady={"outputs/other": 1.0})
    found = hold(a)
    assert found.verdict == "inconclusive"
    assert "a differs from itself" in found.sentence


@pytest.mark.parametrize("value", [[1, 2], [1, 3]])
def test_row_2_integers(value: list[int]) -> None:
    truth = side("fp64", y=np.array([1, 2]))
    a = but(side("a", y=np.array(value)), unsteady={"outputs/y": 1.0}, random="Multinomial 'm'")
    found = hold(a, truth, truth=truth)
    assert found.verdict == "inconclusive"
    assert "Multinomial 'm'" in found.sentence


def test_row_2_without_a_reference() -> None:
    found = hold(unsteady("a", 0, 1), side("b", y=off(0)), truth=None)
    assert found.verdict == "inconclusive"
    assert "a differs from itself" in found.sentence


def test_row_2_structure_is_asked_before() -> None:
    a = but(side("a", y=off(0)[:3]), unsteady={"outputs/y": 1.0})
    assert hold(a).verdict == "disagree"


# -- fixed tolerances ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("atol", "rtol", "expected"),
    [
        (0.2, 0.0, "agree"),
        (0.0, 0.2, "agree"),
        (0.1, 0.1, "disagree"),
        (0.0, 0.0, "disagree"),
    ],
)
def test_fixed_tolerances_decide_alone(atol: float, rtol: float, expected: str) -> None:
    fixed = Tolerances(atol={"": atol}, rtol={"": rtol})
    a = side("a", y=ONES.astype(np.float32) * np.float32(1.125))
    graph = Confirmation(graph=TRUTH, operators=checked(0.5))
    for evidence in ({}, {"source": a, "spread": spreading(9e9)}, {"confirmation": graph}):
        found = hold(a, fixed=fixed, **evidence)
        assert found.verdict == expected
        assert f"fixed tolerance: absolute {atol:g}, relative {rtol:g}" in found.sentence
        assert ("4 of 4 elements are outside" in found.sentence) == (expected == "disagree")
    assert hold(a, side("b", y=off(0)), truth=None, fixed=fixed).verdict == expected


def test_fixed_tolerances_go_by_the_name_of_the_output() -> None:
    fixed = Tolerances(atol={"": 1e-3, "z": 1.0}, rtol={"": 0.0})
    truth = side("fp64", y=ONES, z=ONES)
    found = hold(side("a", y=ONES, z=ONES + 0.5), truth, truth=truth, fixed=fixed)
    assert found.verdict == "agree"
    found = hold(side("a", y=ONES + 0.5, z=ONES), truth, truth=truth, fixed=fixed)
    assert found.verdict == "disagree"
    assert evidence_of(found).tensor == "outputs/y"


def test_fixed_tolerances_hold_for_integers() -> None:
    truth = side("fp64", y=np.array([10, 20]))
    a = side("a", y=np.array([10, 21]))
    for atol, expected in ((1.0, "agree"), (0.5, "disagree")):
        fixed = Tolerances(atol={"": atol}, rtol={"": 0.0})
        assert hold(a, truth, truth=truth, fixed=fixed).verdict == expected


def test_fixed_tolerances_are_asked_before_row_2() -> None:
    """Who fixes tolerances has said what is the same; what a second run did is not asked."""
    fixed = Tolerances(atol={"": 0.5}, rtol={"": 0.0})
    for a, b in ((unsteady("a", 0, 1e9), TRUTH), (side("a", y=off(0)), unsteady("b", 0, 1e9))):
        assert hold(a, b).verdict == "inconclusive"
        found = hold(a, b, fixed=fixed)
        assert found.verdict == "agree"
        assert evidence_of(found).self_rms is None
    wrong = but(unsteady("a", 0, 1e9), tensors={"outputs/y": 2 * off(0)})
    assert hold(wrong, fixed=fixed).verdict == "disagree"


# -- row 3: integers, booleans and what they choose ------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.bool_])
def test_row_3_integers_are_exact(dtype: type) -> None:
    truth = side("fp64", y=np.array([0, 1, 1], dtype))
    same: Array = np.array([0, 1, 1], dtype)
    other: Array = np.array([0, 1, 0], dtype)
    generous: dict[str, Any] = {"source": side("source", y=other), "spread": spreading(9e9)}
    found = hold(side("a", y=same), truth, truth=truth, **generous)
    assert (found.verdict, evidence_of(found).decided_by) == ("agree", "equal")
    found = hold(side("a", y=other), truth, truth=truth, **generous)
    assert found.verdict == "disagree"
    assert "1 of 3 differ, and integers are exact" in found.sentence


def test_row_3_the_width_of_an_integer_is_no_difference() -> None:
    truth = side("fp64", y=np.array([3, 4], np.int64))
    assert hold(side("a", y=np.array([3, 4], np.int32)), truth, truth=truth).verdict == "agree"


def test_row_3_large_integers_that_float64_cannot_tell_apart() -> None:
    truth = side("fp64", y=np.array([2**53], np.int64))
    a = side("a", y=np.array([2**53 + 1], np.int64))
    assert hold(a, truth, truth=truth).verdict == "disagree"


CHOSE, REFERENCE_CHOSE = np.array([5, 7]), np.array([5, 6])


def under(label: str = "fp64", *, stands_in: bool = False, **fields: Any) -> dict[str, Choices]:
    """Choices by the key of the reference ``label``; what is no field of them is an output."""
    known = {name: fields.pop(name) for name in ("ties", "faults") if name in fields}
    return {label: Choices(side=side("under", **fields), stands_in=stands_in, **known)}


def chosen(stands_in: bool = False, **fields: Any) -> Confirmation:
    """The graph chose as the reference did; under the side's own choices that gives ``y``."""
    choices = under(**({"y": CHOSE} | fields), stands_in=stands_in)
    return Confirmation(graph=side("graph", y=REFERENCE_CHOSE), choices=choices)


STANDS_IN = pytest.mark.parametrize("stands_in", [False, True])
"""The graph of the reference was evaluated under the choices, or the side's own in its place."""


@STANDS_IN
@pytest.mark.parametrize("ties", [1, 3])
def test_row_3_ties(ties: int, stands_in: bool) -> None:
    truth = side("fp64", y=REFERENCE_CHOSE)
    confirmation = chosen(stands_in, ties=ties)
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "agree"
    assert (evidence_of(found).ties, evidence_of(found).decided_by) == (ties, "ties")
    assert f"{ties} {'tie' if ties == 1 else 'ties'}, chosen between values closer" in (
        found.sentence
    )


@STANDS_IN
def test_row_3_a_choice_at_fault(stands_in: bool) -> None:
    truth = side("fp64", y=REFERENCE_CHOSE)
    confirmation = chosen(stands_in, ties=2, faults="ArgMax 'top' chose 0.1 where there is 0.9")
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"
    assert found.sentence.endswith("ArgMax 'top' chose 0.1 where there is 0.9")


@STANDS_IN
def test_row_3_different_also_under_its_own_choices(stands_in: bool) -> None:
    truth = side("fp64", y=REFERENCE_CHOSE)
    confirmation = chosen(stands_in, ties=2, y=np.array([5, 9]))
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"
    assert "also under its own choices" in found.sentence


@STANDS_IN
def test_row_3_a_tensor_that_is_missing_under_the_choices_excuses_nothing(stands_in: bool) -> None:
    truth = side("fp64", y=REFERENCE_CHOSE)
    choices = {"fp64": Choices(side=side("under"), ties=1, stands_in=stands_in)}
    confirmation = Confirmation(graph=side("graph", y=REFERENCE_CHOSE), choices=choices)
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"


def test_row_3_choices_are_those_of_the_reference_that_is_asked_about() -> None:
    """A file that is held against two references may tie with the one and not with the other."""
    graph, a = side("graph", y=REFERENCE_CHOSE), side("a", y=CHOSE)
    confirmation = Confirmation(graph=graph, choices=under("other", y=CHOSE, ties=1))
    for label, expected in (("fp64", "disagree"), ("other", "agree")):
        truth = side(label, y=REFERENCE_CHOSE)
        assert hold(a, truth, truth=truth, confirmation=confirmation).verdict == expected


@pytest.mark.parametrize("faults", ["", "ArgMax 'top' is wrong"])
def test_row_3_another_graph_is_not_excused_by_its_own_choices(faults: str) -> None:
    """A graph with another constant gives, under its own choices, what it gives without them."""
    truth, wrong = side("fp64", y=REFERENCE_CHOSE), side("graph", y=CHOSE)
    choices = under(y=CHOSE, faults=faults, stands_in=True)
    confirmation = Confirmation(graph=wrong, choices=choices)
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"
    assert "its graph" in found.sentence


def test_row_3_the_graph_of_the_reference_needs_no_other_to_be_alike() -> None:
    """What the reference itself gives under a choice is the truth, whatever the judged graph is."""
    truth, wrong = side("fp64", y=REFERENCE_CHOSE), side("graph", y=CHOSE)
    confirmation = Confirmation(graph=wrong, choices=under(y=CHOSE, ties=1))
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert (found.verdict, evidence_of(found).ties) == ("agree", 1)


def test_row_3_floats_of_another_graph_are_not_excused_by_its_own_choices() -> None:
    truth = side("fp64", i=REFERENCE_CHOSE, y=ONES)
    a = side("a", i=REFERENCE_CHOSE, y=2 * off(0))
    graph = side("graph", i=REFERENCE_CHOSE, y=2 * ONES)
    choices = under(i=REFERENCE_CHOSE, y=2 * ONES, stands_in=True)
    found = hold(a, truth, truth=truth, confirmation=Confirmation(graph=graph, choices=choices))
    assert found.verdict == "disagree"
    assert evidence_of(found).error_rms == pytest.approx(1.0)
    # Nor are integers that follow from such floats.
    a, graph = (side(name, i=CHOSE, y=2 * ONES) for name in ("a", "graph"))
    choices = under(i=CHOSE, y=2 * ONES, stands_in=True)
    found = hold(a, truth, truth=truth, confirmation=Confirmation(graph=graph, choices=choices))
    assert found.verdict == "disagree"


def test_row_3_ties_of_outputs_that_are_paired_by_position() -> None:
    """What stands in for the reference has the names of the side, the reference has its own."""
    truth, a = side("fp64", y=REFERENCE_CHOSE), side("a", out=CHOSE)
    graph = side("graph", out=REFERENCE_CHOSE)
    for choices in (under(y=CHOSE, ties=1), under(out=CHOSE, ties=1, stands_in=True)):
        confirmation = Confirmation(graph=graph, choices=choices)
        found = hold(a, truth, truth=truth, confirmation=confirmation)
        assert (found.verdict, evidence_of(found).ties) == ("agree", 1)


def test_row_3_floats_that_follow_are_paired_by_position_too() -> None:
    truth = side("fp64", i=REFERENCE_CHOSE, y=3 * ONES)
    a = side("a", o1=CHOSE, o2=off(4))
    graph = side("graph", o1=REFERENCE_CHOSE, o2=3 * ONES)
    for choices in (
        under(i=CHOSE, y=ONES, ties=1),
        under(o1=CHOSE, o2=ONES, ties=1, stands_in=True),
    ):
        confirmation = Confirmation(graph=graph, choices=choices)
        assert hold(a, truth, truth=truth, confirmation=confirmation).verdict == "agree"


def test_row_3_another_graph_is_recognised_by_position() -> None:
    truth = side("fp64", i=REFERENCE_CHOSE, y=ONES)
    a = side("a", o1=CHOSE, o2=off(0))
    graph = side("graph", o1=CHOSE, o2=ONES)
    choices = under(o1=CHOSE, o2=ONES, stands_in=True)
    found = hold(a, truth, truth=truth, confirmation=Confirmation(graph=graph, choices=choices))
    assert found.verdict == "disagree"


def test_row_3_integers_of_a_narrow_type_are_exact() -> None:
    small = np.array([1, 2, 3]).astype(ml_dtypes.int4)
    truth = side("fp64", y=small)
    spread = but(side("s"), spread={"outputs/y": 5.0})
    for last, expected in ((3, "agree"), (4, "disagree")):
        a = side("a", y=np.array([1, 2, last]).astype(ml_dtypes.int4))
        assert hold(a, truth, truth=truth, spread=spread).verdict == expected


def test_row_3_what_was_not_looked_at_is_no_tie() -> None:
    truth = side("fp64", y=REFERENCE_CHOSE)
    confirmation = Confirmation(missing="its choices could not be seen: no room")
    found = hold(side("a", y=CHOSE), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"
    assert "its choices could not be seen: no room" in found.sentence


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, "agree"), (4, "agree"), (5, "inconclusive"), (41, "disagree")]
)
def test_row_3_floats_that_follow_from_a_choice(steps: int, expected: str) -> None:
    """What was gathered by another index of a tie is compared with what float64 finds there."""
    truth = side("fp64", i=REFERENCE_CHOSE, y=3 * ONES)
    a = side("a", i=CHOSE, y=off(steps))
    assert hold(a, truth, truth=truth).verdict == "disagree"
    graph = side("graph", i=REFERENCE_CHOSE, y=3 * ONES)
    for stands_in in (False, True):
        choices = under(i=CHOSE, y=ONES, ties=1, stands_in=stands_in)
        found = hold(a, truth, truth=truth, confirmation=Confirmation(graph=graph, choices=choices))
        assert found.verdict == expected
        assert evidence_of(found).ties == 1
        choices = under(i=CHOSE, y=ONES, ties=1, stands_in=stands_in, faults="TopK 't' is wrong")
        faulty = Confirmation(graph=graph, choices=choices)
        assert hold(a, truth, truth=truth, confirmation=faulty).verdict == "disagree"


@STANDS_IN
@pytest.mark.parametrize(("faults", "expected"), [("", "agree"), ("TopK 't'", "disagree")])
def test_row_3_floats_are_not_excused_by_a_choice_at_fault(
    faults: str, expected: str, stands_in: bool
) -> None:
    truth = side("fp64", y=3 * ONES)
    choices = under(y=ONES, faults=faults, stands_in=stands_in)
    confirmation = Confirmation(graph=truth, choices=choices)
    found = hold(side("a", y=off(0)), truth, truth=truth, confirmation=confirmation)
    assert found.verdict == expected


def test_row_3_a_tie_does_not_make_another_graph() -> None:
    """The graph is held against the reference as that chose, not as the side did."""
    truth = side("fp64", i=np.array([6]), y=3 * ONES)
    a = side("a", i=np.array([7]), y=off(20))
    choices = under(i=np.array([7]), y=ONES, ties=1)
    confirmation = Confirmation(graph=truth, choices=choices, operators=checked(0.5))
    found = hold(a, truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "agree"
    assert evidence_of(found).decided_by == "operator by operator"
    assert evidence_of(found).graph_rms == 0.0


# -- row 4: floats against float64 -----------------------------------------------------------------


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
def test_row_4_float64_parity(relative: float, expected: str, scale: float) -> None:
    truth = but(side("fp64", y=ONES * scale), terms={"outputs/y": 10**6})
    excuse = but(side("excuse", y=ONES * 2 * scale), spread={"outputs/y": scale})
    found = hold(
        side("a", y=ONES * scale * (1 + relative)), truth,
        truth=truth, source=excuse, spread=excuse, precision="fp64",
    )  # fmt: skip
    assert found.verdict == expected
    assert found.tolerance == pytest.approx(1e-9 * scale)
    assert evidence_of(found).decided_by == "float64 parity"


def test_row_4_a_float32_case_that_hands_out_float64_is_not_parity() -> None:
    found = hold(side("a", y=ONES * (1 + 1e-8)))
    assert (found.verdict, evidence_of(found).decided_by) == ("agree", "rounding of the result")


def test_row_4_float32_against_float64_is_not_parity() -> None:
    assert verdict(4) == "agree"
    assert 4 * EPS > 10 * 1e-9


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, "agree"), (4, "agree"), (5, "inconclusive"), (40, "inconclusive"), (41, "disagree")],
)
def test_row_4_rounding_of_the_result(steps: int, expected: str) -> None:
    exact = side("source", y=off(0))
    for sign in (1, -1):
        assert verdict(sign * steps) == expected
        assert verdict(sign * steps, source=exact) == expected
        assert verdict(sign * steps, source=exact, spread=spreading(1)) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(16, "agree"), (17, "inconclusive"), (160, "inconclusive"), (161, "disagree")],
)
def test_row_4_rounding_of_a_sum_of_k_terms(steps: int, expected: str) -> None:
    truth = but(TRUTH, terms={"outputs/y": 16})
    found = hold(side("a", y=off(steps)), truth, truth=truth)
    assert found.verdict == expected
    assert evidence_of(found).terms == 16
    other = but(TRUTH, terms={"outputs/z": 16})
    assert hold(side("a", y=off(5)), other, truth=other).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(20, "agree"), (21, "inconclusive"), (200, "inconclusive"), (201, "disagree")],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_row_4_twice_the_error_of_the_source(steps: int, expected: str, sign: int) -> None:
    assert verdict(steps, source=side("source", y=off(10 * sign))) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(32, "agree"), (33, "inconclusive"), (320, "inconclusive"), (321, "disagree")],
)
@pytest.mark.parametrize("ulps", [1, 16])
def test_row_4_the_spread_of_the_function(steps: int, expected: str, ulps: int) -> None:
    spread = spreading(32, ulps=ulps)
    for source in (side("source", y=off(0)), None):
        found = hold(side("a", y=off(steps)), source=source, spread=spread)
        assert found.verdict == expected
        assert evidence_of(found).spread_ulps == ulps
        assert f"{ulps}-ULP spread" in found.sentence


@pytest.mark.parametrize(
    ("source", "spread", "terms", "decided", "limit"),
    [
        (1, 1, 1, "rounding of the result", 4),
        (7, 1, 1, "2x source error", 14),
        (10, 30, 1, "1-ULP spread", 30),
        (None, 1, 16, "rounding of a sum, 4 eps sqrt(K)", 16),
        (None, 30, 16, "1-ULP spread", 30),
        (9, 17, 16, "2x source error", 18),
    ],
)
def test_row_4_the_largest_limit_decides_and_is_named(
    source: int | None, spread: int, terms: int, decided: str, limit: int
) -> None:
    truth = but(TRUTH, terms={"outputs/y": terms})
    found = hold(
        side("a", y=off(2)), truth, truth=truth, spread=spreading(spread),
        source=None if source is None else side("source", y=off(source)),
    )  # fmt: skip
    evidence = evidence_of(found)
    assert found.tolerance == pytest.approx(limit * EPS)
    assert evidence.decided_by == decided
    assert evidence.error_rms == pytest.approx(2 * EPS)
    assert evidence.source_error_rms == (None if source is None else pytest.approx(source * EPS))
    assert evidence.spread_rms == spread * EPS
    assert evidence.rounding_rms == pytest.approx(4 * EPS * terms**0.5)
    assert (evidence.draws, evidence.terms) == (8, terms)


def test_row_4_the_source_is_never_its_own_excuse() -> None:
    wrong = side("source", y=off(100_000))
    found = hold(wrong, source=None)
    assert found.verdict == "disagree"
    assert evidence_of(found).source_error_rms is None


def test_row_4_a_source_that_is_not_finite_or_lacks_the_tensor_is_no_measure() -> None:
    nan = np.full(4, np.nan, np.float32)
    for source in (side("source", y=nan), side("source", z=off(0))):
        assert verdict(4, source=source) == "agree"
        assert verdict(5, source=source) == "inconclusive"


@pytest.mark.parametrize(
    ("steps", "expected"), [(20, "agree"), (21, "inconclusive"), (201, "disagree")]
)
def test_row_4_the_source_is_measured_under_its_own_choices(steps: int, expected: str) -> None:
    """A source that chose otherwise at a tie is not as wrong as what follows from it is apart."""
    source = side("source", y=3 * off(0) + np.float32(10 * 4 * EPS))
    distance = float(source.tensors["outputs/y"][0]) - 3.0
    assert distance == 40 * EPS
    found = hold(
        side("a", y=off(2 * steps)),
        source=source,
        source_truth=side("under", y=3 * ONES + 20 * EPS),
    )
    assert found.verdict == expected
    assert evidence_of(found).source_error_rms == pytest.approx(20 * EPS)
    # Against the reference as that chose the error of the source would excuse anything.
    assert hold(side("a", y=2 * off(0)), source=source).verdict == "agree"


def test_row_4_what_the_source_did_not_choose_is_measured_against_the_reference() -> None:
    source = side("source", y=off(10))
    for elsewhere in (None, side("under", z=3 * ONES)):
        found = hold(side("a", y=off(20)), source=source, source_truth=elsewhere)
        assert found.verdict == "agree"
        assert evidence_of(found).source_error_rms == pytest.approx(10 * EPS)


def test_row_4_a_spread_of_other_tensors_is_no_measure() -> None:
    elsewhere = but(side("spread", y=off(0)), spread={"outputs/z": 1.0})
    assert verdict(5, spread=elsewhere) == "inconclusive"


def test_row_4_the_rms_decides_not_the_maximum() -> None:
    one = np.ones(10_000, np.float32)
    one[0] += 100 * np.float32(EPS)
    truth = side("fp64", y=np.ones(10_000))
    found = hold(side("a", y=one), truth, truth=truth)
    assert found.verdict == "agree"
    assert found.tensors[0].max_abs == pytest.approx(100 * EPS)


def test_row_4_the_error_is_that_to_float64_and_not_to_the_other_side() -> None:
    source = side("source", y=off(-10))
    assert hold(side("a", y=off(15)), source, source=source).verdict == "agree", "25 steps apart"
    found = hold(side("a", y=off(-25)), source, source=source)
    assert found.verdict == "inconclusive", "15 steps apart"
    assert found.tensors[0].rms == pytest.approx(15 * EPS)
    assert evidence_of(found).error_rms == pytest.approx(25 * EPS)


def test_row_4_a_reference_of_zeros() -> None:
    zeros = side("fp64", y=np.zeros(4))
    exact, little = (np.full(4, value, np.float32) for value in (0.0, 1e-30))
    assert hold(side("a", y=exact), zeros, truth=zeros).verdict == "agree"
    assert hold(side("a", y=little), zeros, truth=zeros).verdict == "disagree"
    spread = but(side("spread", y=exact), spread={"outputs/y": 1e-30})
    tiny = hold(side("a", y=little / 2), zeros, truth=zeros, spread=spread)
    assert tiny.verdict == "agree"


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, "agree"), (5, "inconclusive"), (41, "disagree")]
)
def test_row_4_scalars(steps: int, expected: str) -> None:
    truth = side("fp64", y=np.float64(1.0))
    found = hold(side("a", y=np.float32(1.0 + steps * EPS)), truth, truth=truth)
    assert found.verdict == expected
    assert found.tensors[0].elements == 1


SUBNORMAL = 1e-40
"""Below 1.2e-38, the smallest normal float32."""


def test_row_4_only_subnormals_differ() -> None:
    truth = side("fp64", y=np.array([SUBNORMAL, 0.0, SUBNORMAL]))
    flushed = side("a", y=np.zeros(3, np.float32))
    found = hold(flushed, truth, truth=truth)
    assert found.verdict == "agree"
    assert evidence_of(found).decided_by == "only subnormal numbers differ"
    assert "subnormal" in found.sentence
    assert found.telling


@pytest.mark.parametrize("value", [1e-37, -1e-37])
def test_row_4_a_normal_number_that_is_flushed_is_condemned(value: float) -> None:
    truth = side("fp64", y=np.array([SUBNORMAL, value, SUBNORMAL]))
    assert hold(side("a", y=np.zeros(3, np.float32)), truth, truth=truth).verdict == "disagree"


# -- row 4: a rejection is looked at more closely --------------------------------------------------


def checked(*scores: float, unchecked: int = 0) -> Operators:
    """Operators by their error over their own bound, the least accurate first."""
    worst = [
        OperatorCheck(
            node=f"n{k}", op=f"Op{k}", output=f"t{k}", error_rms=score, limit_rms=1.0, bound="b"
        )
        for k, score in enumerate(sorted(scores, reverse=True))
    ]
    names = [f"Loop (l{k})" for k in range(unchecked)]
    return Operators(checked=len(worst), worst=worst, unchecked=names)


def graph_off(steps: float) -> Side:
    """The judged graph, evaluated in float64: so many steps from the reference."""
    return side("graph", y=ONES + steps * EPS)


@pytest.mark.parametrize(("steps", "expected"), [(20, "inconclusive"), (41, "disagree")])
@pytest.mark.parametrize("graph", [4.01, 41, 1e6])
def test_row_4_the_graph_is_at_fault(steps: int, expected: str, graph: float) -> None:
    for operators in (None, checked(0.5)):
        confirmation = Confirmation(graph=graph_off(graph), operators=operators)
        found = hold(side("a", y=off(steps)), confirmation=confirmation)
        assert found.verdict == expected
        assert evidence_of(found).graph_rms == pytest.approx(graph * EPS)
        assert evidence_of(found).decided_by == "its graph, evaluated in float64"
        assert "its graph is another function" in found.sentence


def test_row_4_a_graph_that_is_not_finite_is_at_fault() -> None:
    graph = side("graph", y=np.full(4, np.nan))
    found = hold(
        side("a", y=off(41)), confirmation=Confirmation(graph=graph, operators=checked(0.5))
    )
    assert found.verdict == "disagree"
    assert evidence_of(found).decided_by == "its graph, evaluated in float64"
    assert "not comparable" in found.sentence


@pytest.mark.parametrize(("steps", "expected"), [(20, "inconclusive"), (41, "disagree")])
def test_row_4_the_graph_is_not_at_fault_and_nothing_more_is_known(
    steps: int, expected: str
) -> None:
    confirmation = Confirmation(graph=graph_off(4), missing="no operators here")
    found = hold(side("a", y=off(steps)), confirmation=confirmation)
    assert found.verdict == expected
    assert evidence_of(found).graph_rms == pytest.approx(4 * EPS)
    assert "its graph" not in found.sentence
    assert "no operators here" in found.sentence


@pytest.mark.parametrize("steps", [5, 40, 41, 100_000])
def test_row_4_every_operator_is_within_its_bound(steps: int) -> None:
    confirmation = Confirmation(graph=graph_off(0), operators=checked(0.25, 1.0, 0.5))
    found = hold(side("a", y=off(steps)), confirmation=confirmation)
    assert found.verdict == "agree"
    assert evidence_of(found).decided_by == "operator by operator"
    assert evidence_of(found).operators == confirmation.operators
    assert found.tolerance == pytest.approx(4 * EPS), "the limit that it exceeded stays known"
    assert "the least accurate is Op0 (n0), at 1 of its bound" in found.sentence


@pytest.mark.parametrize("steps", [5, 41, 100_000])
@pytest.mark.parametrize("graph", [None, side("graph", z=ONES)])
def test_row_4_operators_do_not_acquit_a_graph_that_nobody_evaluated(
    steps: int, graph: Side | None
) -> None:
    confirmation = Confirmation(
        graph=graph, operators=checked(0.5), missing="its graph has no float64 evaluation: Foo"
    )
    found = hold(side("a", y=off(steps)), confirmation=confirmation)
    assert found.verdict == "inconclusive"
    assert found.sentence.endswith("; its graph has no float64 evaluation: Foo")


def trained(label: str, steps: float) -> Side:
    """A side that trained; every tensor is off by so many steps."""
    value = off(steps) if label == "a" else ONES + steps * EPS
    names = ("loss/0", "gradients/0/w", "trajectory/loss/0", "trajectory/w")
    return Side(key=label, label=label, digests=SAME, tensors=dict.fromkeys(names, value))


@pytest.mark.parametrize("steps", [5, 41, 100_000])
@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize("what", ["loss", "gradients", "trajectory"])
def test_row_4_operators_say_nothing_of_a_trajectory_without_the_optimizer(
    what: str, optimizer: bool, steps: int
) -> None:
    """Parameters after training are what its update made of gradients that may all be right."""
    truth = trained("fp64", 0)
    operators = msgspec.structs.replace(checked(0.5, 1.0), optimizer=optimizer)
    confirmation = Confirmation(graph=trained("graph", 0), operators=operators)
    evidences = Evidences(reference=truth, confirmation=confirmation)
    found = judge(trained("a", steps), truth, evidences, what)
    acquitted = optimizer or what != "trajectory"
    assert found.verdict == ("agree" if acquitted else "inconclusive")
    assert evidence_of(found).decided_by == "operator by operator"


def test_row_4_an_optimizer_at_fault_is_an_operator_at_fault() -> None:
    truth = trained("fp64", 0)
    operators = msgspec.structs.replace(checked(0.5, 3.0), optimizer=True)
    confirmation = Confirmation(graph=truth, operators=operators)
    evidences = Evidences(reference=truth, confirmation=confirmation)
    assert judge(trained("a", 41), truth, evidences, "trajectory").verdict == "disagree"


@pytest.mark.parametrize(("steps", "expected"), [(20, "inconclusive"), (41, "disagree")])
@pytest.mark.parametrize("score", [1.01, 12.0, np.inf])
@pytest.mark.parametrize("unchecked", [0, 2])
def test_row_4_an_operator_is_at_fault(
    steps: int, expected: str, score: float, unchecked: int
) -> None:
    operators = checked(0.5, score, unchecked=unchecked)
    confirmation = Confirmation(graph=graph_off(0), operators=operators)
    found = hold(side("a", y=off(steps)), confirmation=confirmation)
    assert found.verdict == expected
    assert evidence_of(found).decided_by == "operator by operator"
    assert "the operator at fault is Op0 (n0)" in found.sentence


@pytest.mark.parametrize("steps", [5, 41, 100_000])
def test_row_4_operators_that_could_not_be_checked(steps: int) -> None:
    confirmation = Confirmation(graph=graph_off(0), operators=checked(0.5, unchecked=1))
    found = hold(side("a", y=off(steps)), confirmation=confirmation)
    assert found.verdict == "inconclusive"
    assert "not checked: Loop (l0)" in found.sentence


@pytest.mark.parametrize(("steps", "expected"), [(20, "inconclusive"), (41, "disagree")])
def test_row_4_not_one_operator_was_checked(steps: int, expected: str) -> None:
    confirmation = Confirmation(graph=graph_off(0), operators=checked(unchecked=2))
    assert verdict(steps, confirmation=confirmation) == expected


def test_row_4_a_closer_look_changes_no_agreement() -> None:
    confirmation = Confirmation(graph=graph_off(1e6), operators=checked(50.0), missing="m")
    assert hold(side("a", y=off(4)), confirmation=confirmation) == hold(side("a", y=off(4)))


# -- row 5: narrower types -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "eps"), [("fp32", 2**-23), ("bf16", 2**-7), ("fp16", 2**-10)]
)
@pytest.mark.parametrize("terms", [1, 9])
def test_row_5_rounding_is_reckoned_in_the_precision_of_the_case(
    precision: str, eps: float, terms: int
) -> None:
    truth = but(TRUTH, terms={"outputs/y": terms})
    factor = 4.0 * terms**0.5
    for error, expected in ((0.75, "agree"), (1.25, "inconclusive"), (10.25, "disagree")):
        value = (ONES * (1 + error * factor * eps)).astype(np.float32)
        found = hold(side("a", y=value), truth, truth=truth, precision=precision)
        assert found.tolerance == pytest.approx(factor * eps)
        assert found.verdict == expected


def test_row_5_steps_of_the_types_are_those_of_the_types() -> None:
    types: dict[str, Any] = {
        "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16,
    }  # fmt: skip
    assert {name: step_of(dtype) for name, dtype in types.items()} == STEPS


def step_of(dtype: Any) -> float:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(100, "agree"), (101, "inconclusive"), (300, "inconclusive"), (301, "disagree")],
)
@pytest.mark.parametrize("type_", ["float16", "int8"])
def test_row_5_twice_the_rounding_to_the_declared_type(
    steps: int, expected: str, type_: str
) -> None:
    narrow = side("narrow", y=ONES + 50 * EPS)
    found = hold(
        side("a", y=off(steps)), source=side("source", y=off(1)), narrow=narrow, narrow_type=type_
    )
    assert found.verdict == expected
    assert evidence_of(found).narrow_rms == pytest.approx(50 * EPS)
    assert evidence_of(found).decided_by == f"2x rounding to {type_}"


def test_row_5_a_narrow_reference_that_overflows_is_no_measure() -> None:
    narrow = side("narrow", y=np.full(4, np.inf))
    found = hold(side("a", y=off(5)), narrow=narrow, narrow_type="float16")
    assert found.verdict == "inconclusive"
    assert evidence_of(found).narrow_rms is None


def test_row_5_a_narrow_reference_that_lacks_the_tensor_is_no_measure() -> None:
    found = hold(side("a", y=off(5)), narrow=side("n", z=ONES), narrow_type="float16")
    assert found.verdict == "inconclusive"
    assert evidence_of(found).narrow_rms is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_row_5_outputs_of_a_narrow_type_are_compared(dtype: Any) -> None:
    step = step_of(dtype)
    precision = "fp16" if dtype == np.float16 else "bf16"
    for steps, expected in ((4, "agree"), (5, "inconclusive"), (41, "disagree")):
        value = (ONES + steps * step).astype(dtype)
        assert hold(side("a", y=value), precision=precision).verdict == expected
        assert hold(side("a", y=value), precision="fp32").verdict == "disagree"


# -- without a float64 reference -------------------------------------------------------------------


def test_no_reference_the_same_bits_agree() -> None:
    a, b = (side(name, y=off(1), z=off(2)) for name in ("a", "b"))
    found = hold(a, b, truth=None, no_reference="not asked")
    assert (found.a, found.b, found.what, found.verdict) == ("a", "b", "outputs", "agree")
    assert evidence_of(found).decided_by == "bitwise equal"
    assert found.tolerance is None
    assert [item.name for item in found.tensors] == ["outputs/y", "outputs/z"]


@pytest.mark.parametrize("steps", [1, 1000])
def test_no_reference_a_difference_is_inconclusive_with_the_reason(steps: int) -> None:
    a, b = side("a", y=off(0), z=off(steps)), side("b", y=off(0), z=off(0))
    found = hold(a, b, truth=None, no_reference="it took over 120 s")
    assert found.verdict == "inconclusive"
    assert found.sentence == (
        f"a and b cannot be told apart in outputs/z by {steps * EPS:.2g} of its largest value: "
        "without a float64 reference (it took over 120 s) nobody knows whether rounding explains it"
    )
    assert found.tensors[1].rms == pytest.approx(steps * EPS)


def test_no_reference_the_largest_difference_is_named() -> None:
    a, b = side("a", y=off(7), z=off(3)), side("b", y=off(0), z=off(0))
    assert f"in outputs/y by {7 * EPS:.2g}" in hold(a, b, truth=None).sentence


def test_no_reference_a_zero_of_the_other_sign_is_not_the_same_bits() -> None:
    assert hold(side("a", y=[0.0]), side("b", y=[-0.0]), truth=None).verdict == "inconclusive"


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_no_reference_integers_are_exact_all_the_same(dtype: type) -> None:
    one: Array = np.array([0, 1], dtype)
    other: Array = np.array([0, 0], dtype)
    assert hold(side("a", y=one), side("b", y=one.copy()), truth=None).verdict == "agree"
    assert hold(side("a", y=one), side("b", y=other), truth=None).verdict == "disagree"


def test_no_reference_equal_masks_are_no_difference() -> None:
    masked = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert hold(side("a", y=masked), side("b", y=masked.copy()), truth=None).verdict == "agree"
    other = masked.copy()
    other[0] += np.float32(EPS)
    assert hold(side("a", y=other), side("b", y=masked), truth=None).verdict == "inconclusive"


# -- the pair --------------------------------------------------------------------------------------


@pytest.mark.parametrize("worse", ["y", "z"])
def test_the_worst_tensor_decides(worse: str) -> None:
    truth = side("fp64", y=ONES, z=ONES)
    a = side("a", **{name: off(20 if name == worse else 1) for name in ("y", "z")})
    found = hold(a, truth, truth=truth)
    assert found.verdict == "inconclusive"
    assert evidence_of(found).tensor == f"outputs/{worse}"
    assert [item.name for item in found.tensors] == ["outputs/y", "outputs/z"]
    assert (found.a, found.b, found.what) == ("a", "fp64", "outputs")


def test_the_worst_tensor_is_that_of_the_largest_error_over_its_own_limit() -> None:
    truth = side("fp64", y=ONES, z=1000 * ONES)
    found = hold(side("a", y=off(3), z=1000 * off(1)), truth, truth=truth)
    assert evidence_of(found).tensor == "outputs/y"


def test_a_disagreement_is_worse_than_what_cannot_be_told() -> None:
    overflow = np.full(4, np.inf, np.float32)
    b = side("b", y=overflow, z=off(0))
    found = hold(side("a", y=overflow, z=off(50)), b, truth=side("fp64", y=ONES, z=ONES))
    assert found.verdict == "disagree"
    assert evidence_of(found).tensor == "outputs/z"


def test_only_the_kind_that_is_asked_for_is_compared() -> None:
    tensors = {"loss/0": off(0), "gradients/0/w": off(1000)}
    a = but(side("a"), tensors=tensors)
    truth = but(side("fp64"), tensors=dict.fromkeys(tensors, ONES))
    found = {
        what: judge(a, truth, Evidences(reference=truth), what).verdict
        for what in ("loss", "gradients", "trajectory")
    }
    assert found == {"loss": "agree", "gradients": "disagree", "trajectory": "inconclusive"}


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
    found = hold(with_taps("a", np.float32, **steps), truth, truth=truth)
    assert found.verdict == "disagree"
    assert found.sentence.endswith(f"; the first tensor that departs is {named}")


def test_a_tap_is_held_against_the_reference_whatever_was_chosen() -> None:
    truth = with_taps("fp64", np.float64, early=0)
    choices = under(y=ONES, ties=1)
    a = with_taps("a", np.float32, early=50)
    confirmation = Confirmation(graph=side("graph", y=ONES), choices=choices)
    found = hold(a, truth, truth=truth, confirmation=confirmation)
    assert found.sentence.endswith("; the first tensor that departs is early")


def test_without_a_tap_that_departs_none_is_named() -> None:
    truth = with_taps("fp64", np.float64, early=0)
    for steps in ({"early": 4}, {}):
        found = hold(with_taps("a", np.float32, **steps), truth, truth=truth)
        assert found.verdict == "disagree"
        assert "departs" not in found.sentence


# -- properties ------------------------------------------------------------------------------------

VALUES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3)), min_size=4, max_size=4
)
ERRORS = st.lists(st.integers(-300, 300), min_size=4, max_size=4)


@given(VALUES, ERRORS, ERRORS, st.floats(0, 1e-3), st.integers(-40, 40), st.booleans())
@settings(max_examples=100)
def test_scaling_everything_by_a_power_of_two_changes_no_verdict(
    values: list[float], of_a: list[int], of_source: list[int], spread: float, power: int, own: bool
) -> None:
    def found(factor: float) -> Agreement:
        def single(errors: list[int]) -> Array:
            exact = np.array(values) * (1 + np.array(errors) * EPS)
            return exact.astype(np.float32) * np.float32(factor)

        truth = but(side("fp64", y=np.array(values) * factor), terms={"outputs/y": 9})
        source = but(side("source", y=single(of_source)), spread={"outputs/y": spread * factor})
        return hold(
            side("a", y=single(of_a)), source, truth=truth, spread=source,
            source=None if own else source,
        )  # fmt: skip

    plain, scaled = found(1.0), found(2.0**power)
    assert scaled.verdict == plain.verdict
    assert plain.tolerance is not None
    assert scaled.tolerance == pytest.approx(plain.tolerance * 2.0**power, rel=1e-12, abs=0)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6), st.integers(0, 30))
def test_a_larger_error_never_gets_a_milder_verdict(steps: list[int], source: int) -> None:
    severities = [SEVERITY[verdict(k, source=side("source", y=off(source)))] for k in sorted(steps)]
    assert severities == sorted(severities)


@given(st.integers(0, 1000), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_more_evidence_never_makes_a_verdict_harder(
    steps: int, source: int, spread: int, narrow: int
) -> None:
    """Every candidate can only raise the limit."""
    evidence: dict[str, Any] = {
        "source": side("source", y=off(source)),
        "spread": spreading(spread),
        "narrow": side("float16", y=ONES + narrow * EPS),
    }
    plain = SEVERITY[verdict(steps)]
    alone = [SEVERITY[verdict(steps, **{name: of})] for name, of in evidence.items()]
    assert max(alone) <= plain
    assert SEVERITY[verdict(steps, **evidence)] == min(alone)


@given(st.integers(0, 1000), st.lists(st.floats(0, 3), min_size=1, max_size=4), st.integers(0, 2))
def test_operators_acquit_or_change_nothing(
    steps: int, scores: list[float], unchecked: int
) -> None:
    """A closer look never condemns, and never acquits one whose operator is at fault."""
    operators = checked(*scores, unchecked=unchecked)
    before = verdict(steps)
    after = verdict(steps, confirmation=Confirmation(graph=graph_off(0), operators=operators))
    assert SEVERITY[after] <= SEVERITY[before]
    if max(scores) > 1:
        assert after == before
    elif unchecked == 0:
        assert after == "agree"


# -- rows 3 to 5: what excuses nobody --------------------------------------------------------------

WHOLE = np.arange(200) - 100


def steps_away(*places: int, by: int = 1) -> Array:
    """Whole numbers of which those at ``places`` are so many steps away."""
    found = WHOLE.copy()
    found[list(places)] += by
    return found


def rounded(value: Array, graph: Array | None = WHOLE, operators: Operators | None = None) -> Any:
    """What is said of whole numbers whose graph gives ``graph`` in float64; None: not evaluated."""
    truth = side("fp64", y=WHOLE)
    known = None if graph is None else side("graph", y=graph)
    confirmation = Confirmation(graph=known, operators=operators)
    return hold(side("a", y=value), truth, truth=truth, confirmation=confirmation)


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("places", [(0,), (3, 150)])
def test_row_3_few_roundings_near_a_boundary_agree(places: tuple[int, ...], by: int) -> None:
    found = rounded(steps_away(*places, by=by), operators=checked(0.5, 1.0))
    assert found.verdict == "agree"
    assert evidence_of(found).decided_by == "roundings near a boundary"
    assert evidence_of(found).operators is not None
    assert "roundings near a boundary" in found.sentence


@pytest.mark.parametrize(
    "operators", [None, checked(), checked(unchecked=1), checked(0.5, unchecked=1)]
)
def test_row_3_a_rounding_of_operators_that_were_not_checked(operators: Operators | None) -> None:
    found = rounded(steps_away(3), operators=operators)
    assert found.verdict == "inconclusive"
    assert "one step near a boundary may be rounding" in found.sentence


@pytest.mark.parametrize(
    ("value", "graph", "operators", "words"),
    [
        (steps_away(3), None, checked(0.5), "1 of 200 differ"),
        (steps_away(3), steps_away(3), checked(0.5), "its graph is another function"),
        (steps_away(1, 2, 3), WHOLE, checked(0.5), "3 of 200 differ"),
        (steps_away(3, by=2), WHOLE, checked(0.5), "1 of 200 differ"),
        (steps_away(3, by=-2), WHOLE, checked(0.5), "1 of 200 differ"),
        (steps_away(3), WHOLE, checked(0.5, 1.01), "1 of 200 differ"),
        (steps_away(3, by=2), WHOLE, None, "1 of 200 differ"),
    ],
)
def test_row_3_what_is_no_rounding_near_a_boundary(
    value: Array, graph: Array | None, operators: Operators | None, words: str
) -> None:
    found = rounded(value, graph, operators)
    assert found.verdict == "disagree"
    assert words in found.sentence


@pytest.mark.parametrize(("flipped", "expected"), [(2, "agree"), (3, "disagree")])
def test_row_3_truths_near_a_boundary(flipped: int, expected: str) -> None:
    truth = side("fp64", y=WHOLE > 0)
    a = side("a", y=(WHOLE > 0) ^ (np.arange(200) < flipped))
    confirmation = Confirmation(graph=side("graph", y=WHOLE > 0), operators=checked(0.5))
    assert hold(a, truth, truth=truth, confirmation=confirmation).verdict == expected


MASK_VALUES = pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min), -np.inf])


def logits(mask: float, error: float = 0.0) -> Array:
    """Float64 ones, the first of them off, beside as many masks less one."""
    found = np.ones(64)
    found[:32] += error
    found[33:] = mask
    return found


@MASK_VALUES
@pytest.mark.parametrize(
    ("steps", "expected"), [(0, "agree"), (4, "agree"), (20, "inconclusive"), (1e6, "disagree")]
)
def test_row_4_masks_drown_no_wrong_logit(mask: float, steps: float, expected: str) -> None:
    truth = side("fp64", y=logits(mask))
    a = side("a", y=logits(mask, steps * EPS).astype(np.float32))
    source = but(side("source", y=logits(mask).astype(np.float32)), spread={"outputs/y": 0.0})
    found = hold(a, truth, truth=truth, source=source, spread=source)
    assert found.verdict == expected
    assert found.tolerance == pytest.approx(4 * EPS)


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min)])
def test_row_4_masks_of_a_graph_drown_no_wrong_logit(mask: float) -> None:
    truth, graph = side("fp64", y=logits(mask)), side("graph", y=logits(mask, 1e-3))
    a = side("a", y=logits(mask, 1e-3).astype(np.float32))
    confirmation = Confirmation(graph=graph, operators=checked(0.5))
    found = hold(a, truth, truth=truth, confirmation=confirmation)
    assert found.verdict == "disagree"
    assert evidence_of(found).decided_by == "its graph, evaluated in float64"


@pytest.mark.parametrize(
    ("relative", "expected"),
    [(0, "agree"), (8000, "agree"), (9000, "disagree"), (1e6, "disagree")],
)
def test_row_4_masks_that_differ(relative: float, expected: str) -> None:
    """Masks may be off by 8,192 ULPs; no evidence makes that more."""
    truth = side("fp64", y=logits(-1e9))
    a = side("a", y=logits(-1e9 * (1 + relative * EPS)).astype(np.float32))
    found = hold(a, truth, truth=truth, source=side("source", y=logits(1.0)), spread=spreading(9e9))
    assert found.verdict == expected
    assert ("10000 times larger than the others differ" in found.sentence) is (relative > 8192)


def test_row_4_a_mask_that_is_gone_disagrees() -> None:
    truth, value = side("fp64", y=logits(-1e9)), logits(-1e9).astype(np.float32)
    value[40] = 1.0
    found = hold(side("a", y=value), truth, truth=truth, spread=spreading(9e9))
    assert found.verdict == "disagree"


@pytest.mark.parametrize(
    ("steps", "expected"), [(300, "inconclusive"), (301, "disagree"), (999, "disagree")]
)
def test_row_5_beyond_three_times_only_where_the_type_set_the_limit(
    steps: int, expected: str
) -> None:
    narrow = side("narrow", y=ONES + 50 * EPS)
    evidence: dict[str, Any] = {"narrow": narrow, "narrow_type": "float16"}
    assert verdict(steps, **evidence) == expected
    # A spread that is larger by little sets another limit, which is beyond ten times.
    assert verdict(steps, **evidence, spread=spreading(100.5)) == "inconclusive"


@pytest.mark.parametrize(("steps", "expected"), [(20, "inconclusive"), (50, "disagree")])
def test_two_sides_that_are_the_same_bits_and_off_are_said_to_be(steps: int, expected: str) -> None:
    a, b = side("a", y=off(steps)), side("b", y=off(steps))
    found = hold(a, b)
    assert found.verdict == expected
    assert found.sentence.startswith("a and b are bitwise equal in outputs/y, and both off: ")
    assert "a is not the same as b" not in found.sentence
    # With float64 itself there is no such thing.
    assert "bitwise equal" not in hold(a).sentence
    assert "bitwise equal" not in hold(a, side("b", y=off(steps + 1))).sentence
