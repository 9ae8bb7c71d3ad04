"""What is said of a pair: one sentence that a person can act on, word by word."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from xbench.result import Agreement, OperatorCheck, Operators
from xbench.tolerances import Tolerances
from xbench.verdict import Array, Choices, Confirmation, Evidences, Side, judge

EPS = float(np.finfo(np.float32).eps)
ONES = np.ones(4)


def side(label: str, **tensors: Any) -> Side:
    named = {f"outputs/{name}": np.asarray(value) for name, value in tensors.items()}
    return Side(key=label, label=label, tensors=named, digests={"parameters": "p", "inputs": "i"})


def but(of: Side, **fields: Any) -> Side:
    return msgspec.structs.replace(of, **fields)


def off(steps: float) -> Array:
    """Ones that are off by so many float32 steps; the limit of rounding alone is four."""
    return (ONES + steps * EPS).astype(np.float32)


TRUTH = side("fp64", y=ONES)


def hold(a: Side, b: Side = TRUTH, *, truth: Side | None = TRUTH, **evidence: Any) -> Agreement:
    return judge(a, b, Evidences(reference=truth, **evidence), "outputs")


def said(steps: float, **evidence: Any) -> str:
    return hold(side("a", y=off(steps)), **evidence).sentence


def chose(graph: Side, under: Side, **fields: Any) -> Confirmation:
    """The reference under the choices of the judged side comes to ``under``."""
    return Confirmation(graph=graph, choices={"fp64": Choices(side=under, **fields)})


# -- errors and limits -----------------------------------------------------------------------------


def test_agreement_names_what_is_nearest_to_its_limit() -> None:
    assert said(1) == (
        "a agrees with fp64 in outputs/y: its RMS error "
        "to float64 is 1.2e-07, limit 4.8e-07 (rounding of the result)"
    )
    truth = side("fp64", x=ONES, y=ONES, z=ONES)
    found = hold(side("a", x=off(1), y=off(3), z=off(0)), truth, truth=truth)
    assert found.sentence.startswith("a agrees with fp64 in all 3 outputs; nearest to its limit: ")
    assert "nearest to its limit: outputs/y, its RMS error to float64 is 3.6e-07" in found.sentence


def test_off_the_limit() -> None:
    assert said(8) == (
        "a is off fp64 in outputs/y: its RMS error to float64 is 9.5e-07, 2 times the limit "
        "4.8e-07 (rounding of the result)"
    )


def test_disagreement() -> None:
    assert said(80) == (
        "a is not the same as fp64 in outputs/y: its RMS error to float64 is 9.5e-06, 20 times the "
        "limit 4.8e-07 (rounding of the result)"
    )


def test_what_set_the_limit_is_named() -> None:
    spread = but(side("s", y=off(0)), spread={"outputs/y": 8 * EPS}, draws=8, spread_ulps=16)
    source = side("torch", y=off(16))
    summed = but(TRUTH, terms={"outputs/y": 1024})
    assert said(1, spread=spread).endswith("limit 9.5e-07 (16-ULP spread)")
    assert said(1, spread=spread, source=source).endswith("limit 3.8e-06 (2x source error)")
    assert hold(side("a", y=off(1)), summed, truth=summed).sentence.endswith(
        "limit 1.5e-05 (4 eps sqrt(1024))"
    )
    narrow = side("float16", y=ONES + 100 * EPS)
    assert "limit 2.4e-05 (2x rounding to float16)" in said(
        1, spread=spread, source=source, narrow=narrow, narrow_type="float16"
    )


def test_what_set_the_limit_is_named_also_where_the_graph_or_operators_decided() -> None:
    graph = side("graph", y=ONES + 80 * EPS)
    sentence = said(80, confirmation=Confirmation(graph=graph), source=side("s", y=off(3)))
    assert "13 times the limit 7.2e-07 (2x source error)" in sentence


def test_definition_parity() -> None:
    found = hold(side("tf fp64", y=ONES * (1 + 1e-8)), precision="fp64")
    assert found.sentence == (
        "tf fp64 is off fp64 in outputs/y: its RMS error to float64 is 1e-08, 10 times the limit "
        "1e-09 (float64 parity)"
    )


# -- structure, integers, tolerances ---------------------------------------------------------------


def test_another_shape() -> None:
    assert hold(side("a", y=off(0)[:3])).sentence == (
        "a and fp64 differ in outputs/y: shape (3,) is not the reference's (4,)"
    )


def test_integers() -> None:
    truth = side("fp64", i=np.array([1, 2, 3]))
    a = side("a", i=np.array([1, 2, 4]))
    assert hold(truth, truth, truth=truth).sentence == "fp64 agrees with fp64 in outputs/i (equal)"
    assert hold(a, truth, truth=truth).sentence == (
        "a and fp64 differ in outputs/i: 1 of 3 differ, and integers are exact"
    )


@pytest.mark.parametrize(("ties", "words"), [(1, "1 tie"), (4, "4 ties")])
def test_ties(ties: int, words: str) -> None:
    truth, a = side("fp64", i=np.array([1, 2])), side("a", i=np.array([1, 3]))
    found = hold(a, truth, truth=truth, confirmation=chose(truth, a, ties=ties))
    assert found.sentence == (
        f"a agrees with fp64 in outputs/i: what differs in outputs/i is {words}, chosen between "
        "values closer than their error"
    )
    assert found.telling


def test_ties_behind_a_float_that_is_nearer_to_its_limit() -> None:
    truth = side("fp64", i=np.array([1, 2]), y=ONES)
    a = side("a", i=np.array([1, 3]), y=off(2))
    under = side("under", i=np.array([1, 3]), y=ONES)
    found = hold(a, truth, truth=truth, confirmation=chose(truth, under, ties=2))
    assert found.sentence.startswith("a agrees with fp64 in all 2 outputs; nearest to its limit:")
    assert found.sentence.endswith("(rounding of the result); 2 ties")
    assert found.telling


def test_no_tie_is_said_where_there_is_none() -> None:
    """The judged side chose as float64 did; it is the other that differs."""
    truth, b = side("fp64", i=np.array([6])), side("b", i=np.array([9]))
    a = side("a", i=np.array([6]))
    found = hold(a, b, truth=truth, confirmation=chose(truth, truth, ties=0))
    assert found.sentence == (
        "a agrees with b in outputs/i (equal to float64; b is the side that differs)"
    )


def test_another_graph_behind_integers_that_differ() -> None:
    truth, a = side("fp64", i=np.array([1, 2])), side("a", i=np.array([1, 3]))
    found = hold(a, truth, truth=truth, confirmation=chose(a, a, stands_in=True))
    assert found.sentence.startswith(
        "a and fp64 differ in outputs/i: 1 of 2 differ, and integers are exact; its graph"
    )


def test_a_choice_at_fault_is_named() -> None:
    truth, a = side("fp64", i=np.array([1, 2])), side("a", i=np.array([1, 3]))
    confirmation = chose(truth, a, faults="ArgMax (top) chose 3: 0.1 below 2")
    assert hold(a, truth, truth=truth, confirmation=confirmation).sentence == (
        "a and fp64 differ in outputs/i: 1 of 2 differ, and integers are exact; "
        "ArgMax (top) chose 3: 0.1 below 2"
    )


def test_fixed_tolerances() -> None:
    fixed = Tolerances(atol={"": 1e-3}, rtol={"": 0.0})
    assert said(1, fixed=fixed) == (
        "a agrees with fp64 in outputs/y (fixed tolerance: absolute 0.001, relative 0)"
    )
    wrong = side("a", y=np.array([1, 1, 2, 3], np.float32))
    assert hold(wrong, fixed=fixed).sentence == (
        "a and fp64 differ in outputs/y: fixed tolerance: absolute 0.001, relative 0; 2 of 4 "
        "elements are outside"
    )


def test_unsteady_sides() -> None:
    a = but(side("a", y=off(0)), unsteady={"outputs/y": 1.0}, random="Multinomial 'draw'")
    assert hold(a).sentence == (
        "a and fp64 cannot be told apart in outputs/y: a differs from itself in a second run: "
        "Multinomial 'draw'"
    )


def test_without_a_reference() -> None:
    b = side("b", y=off(0))
    assert hold(side("a", y=off(0)), b, truth=None).sentence == (
        "a agrees with b in outputs/y (bitwise equal)"
    )
    assert hold(side("a", y=off(1)), b, truth=None).sentence == (
        "a and b cannot be told apart in outputs/y by 1.2e-07 of its largest value: without a "
        "float64 reference nobody knows whether rounding explains it"
    )


def test_subnormals() -> None:
    truth = side("fp64", y=np.array([1e-40, 2e-40]), z=ONES)
    a = side("a", y=np.zeros(2, np.float32), z=off(1))
    assert hold(a, truth, truth=truth).sentence == (
        "a agrees with fp64 in all 2 outputs, but for subnormal numbers in outputs/y, which one of "
        "them flushes to zero"
    )
    assert hold(a, truth, truth=truth).telling, "error and limit do not say it"


def test_what_rounding_to_the_declared_type_costs_is_said_beside() -> None:
    narrow = side("float64(file) cpu", y=ONES + 100 * EPS)
    found = hold(side("a", y=off(50)), narrow=narrow, narrow_type="int8")
    assert found.sentence == (
        "a agrees with fp64 in outputs/y: its RMS error to "
        "float64 is 6e-06, limit 2.4e-05 (2x rounding to int8); rounding every tensor to int8 "
        "alone costs 1.2e-05, SNR 104 dB"
    )
    assert found.telling
    rows = np.array([[1.0, 2.0], [4.0, 3.0]])
    truth, a = side("fp64", y=rows), side("a", y=np.array([[2, 1], [4, 3]], np.float32))
    found = hold(a, truth, truth=truth, narrow=side("n", y=rows + 1e-3), narrow_type="int8")
    assert "top-1 the same in 50 % of rows" in found.sentence
    # Where the rounded reference overflows, it costs what nobody can say.
    infinite = side("n", y=np.full(4, np.inf))
    sentence = hold(side("a", y=off(1)), narrow=infinite, narrow_type="float16").sentence
    assert "rounding every tensor" not in sentence


# -- what a closer look found ----------------------------------------------------------------------


def check(score: float, node: str = "conv_1", op: str = "Conv") -> OperatorCheck:
    return OperatorCheck(
        node=node, op=op, output="t", error_rms=score, limit_rms=1.0, bound="4 eps sqrt(K)"
    )


def looked_at(*checks: OperatorCheck, unchecked: tuple[str, ...] = (), **fields: Any) -> Any:
    operators = Operators(checked=len(checks), worst=list(checks), unchecked=list(unchecked))
    return Confirmation(graph=side("graph", y=ONES), operators=operators, **fields)


def test_every_operator_is_within_its_bound() -> None:
    found = hold(side("a", y=off(80)), confirmation=looked_at(check(0.5), check(0.25, "n2", "Add")))
    assert found.sentence == (
        "a agrees with fp64 in outputs/y: its RMS error to float64 is 9.5e-06 in outputs/y, 20 "
        "times the limit 4.8e-07 (rounding of the result), but each of its 2 operators is within "
        "its own bound; the least accurate is Conv (conv_1), at 0.5 of its bound"
    )
    assert found.telling


@pytest.mark.parametrize(
    ("node", "named"), [("conv_1", "Conv (conv_1)"), ("", "Conv"), ("Conv", "Conv")]
)
def test_an_operator_at_fault(node: str, named: str) -> None:
    assert said(80, confirmation=looked_at(check(12.0, node))) == (
        "a is not the same as fp64 in outputs/y: its RMS error to float64 is 9.5e-06, 20 times the "
        f"limit 4.8e-07 (rounding of the result); the operator at fault is {named}: on the same "
        "inputs its error is 12 times its own bound (4 eps sqrt(K))"
    )


def test_operators_that_could_not_be_checked() -> None:
    sentence = said(8, confirmation=looked_at(check(0.5), unchecked=("Loop (l)", "If (i)")))
    assert sentence == (
        "a is off fp64 in outputs/y: its RMS error to float64 is 9.5e-07, 2 times the limit "
        "4.8e-07 (rounding of the result); the 1 operators that could be checked are within their "
        "bounds, not checked: Loop (l), If (i)"
    )


def test_operators_without_the_optimizer_that_updates() -> None:
    def trained(label: str, value: Array) -> Side:
        return but(side(label), tensors={"trajectory/w": value})

    truth = trained("fp64", ONES)
    confirmation = msgspec.structs.replace(looked_at(check(0.5)), graph=truth)
    evidences = Evidences(reference=truth, confirmation=confirmation)
    sentence = judge(trained("a", off(8)), truth, evidences, "trajectory").sentence
    assert "operators that could be checked are within their bounds" in sentence
    assert not sentence.rstrip().endswith(":"), "a list of what was not checked, and nothing in it"


def test_operators_that_are_right_in_a_graph_that_nobody_evaluated() -> None:
    known = looked_at(check(0.5), missing="its graph has no float64 evaluation: Foo")
    sentence = said(8, confirmation=msgspec.structs.replace(known, graph=None))
    assert sentence.endswith("; its graph has no float64 evaluation: Foo")
    assert "not checked: ;" not in sentence, "a list of what was not checked, and nothing in it"


@pytest.mark.parametrize(
    ("graph", "words"), [(ONES + 80 * EPS, "9.5e-06 off"), (ONES * np.inf, "not comparable")]
)
def test_a_graph_at_fault(graph: Array, words: str) -> None:
    confirmation = Confirmation(graph=side("graph", y=graph))
    assert said(80, confirmation=confirmation).endswith(
        f"(rounding of the result); its graph is another function: evaluated in float64 it is "
        f"{words}"
    )


def test_why_less_is_known_is_said_of_rejections_alone() -> None:
    missing = Confirmation(missing="its graph has no float64 evaluation: Foo is unknown")
    assert said(80, confirmation=missing).endswith(
        "(rounding of the result); its graph has no float64 evaluation: Foo is unknown"
    )
    assert "Foo" not in said(1, confirmation=missing)


# -- what is said besides --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "is_said"),
    [(1, 3, True), (1, 2, False), (1, -3, True), (0, 1, True), (80, 100, False), (80, 200, True)],
)
def test_the_less_accurate_side_is_named(mine: int, theirs: int, is_said: bool) -> None:
    source = side("tf", y=off(theirs))
    found = hold(side("ort(tf)", y=off(mine)), source)
    sentence = (
        f"; tf is the less accurate side: its RMS error to float64 is {abs(theirs) * EPS:.2g}"
    )
    assert (sentence in found.sentence) == is_said
    assert found.telling or not is_said


def test_float64_is_not_called_the_less_accurate_side_at_a_tie() -> None:
    """It is held against itself as it chose; the judged side against it as that side chose."""
    truth = side("fp64", i=np.array([6]), y=3 * ONES)
    a = side("a", i=np.array([7]), y=off(2))
    under = side("under", i=np.array([7]), y=ONES)
    found = hold(a, truth, truth=truth, confirmation=chose(truth, under, ties=1))
    assert found.verdict == "agree"
    assert "less accurate" not in found.sentence


def test_swapped_outputs_take_the_place_of_another_hint() -> None:
    y, z = np.random.default_rng(0).standard_normal((2, 5))
    truth = side("fp64", y=y, z=z)
    found = hold(side("a", y=z, z=y), truth, truth=truth)
    assert found.sentence.endswith("; outputs 'y' and 'z' are swapped")


def test_the_pairing_is_said_where_it_is_not_by_name() -> None:
    words = "outputs/out of a is held against outputs/y of fp64, by position"
    for steps in (1, 8, 80):
        assert hold(side("a", out=off(steps))).sentence.endswith(f"; {words}")
    assert words in hold(side("a", out=off(0)[:3])).sentence


@pytest.mark.parametrize("empty", [np.zeros((0, 3)), np.full(4, np.nan), np.full(4, -np.inf)])
@pytest.mark.parametrize("steps", [1, 8, 80])
def test_what_there_was_nothing_to_compare_in_is_named(steps: int, empty: Array) -> None:
    truth = side("fp64", v=empty, w=empty, y=ONES)
    a = side("a", v=empty, w=empty, y=off(steps))
    found = hold(a, truth, truth=truth)
    assert found.sentence.endswith("; nothing to compare in outputs/v, outputs/w")
    assert found.telling
    assert "all 3" not in found.sentence, "two of them were not compared"


def test_remarks_of_all_sides_are_said_once() -> None:
    a = but(side("a", y=off(1)), remarks=["x overflows float16", "common"])
    b = but(side("b", y=off(0)), remarks=["common"])
    truth = but(TRUTH, remarks=["Foo was not in double"])
    sentence = hold(a, b, truth=truth).sentence
    assert sentence.endswith("; x overflows float16; common; Foo was not in double")


# -- whether a table needs the sentence ------------------------------------------------------------


def test_an_agreement_of_which_the_figures_say_everything() -> None:
    assert not hold(side("a", y=off(1))).telling


def test_what_figures_alone_do_not_say() -> None:
    a = side("a", y=off(1))
    truth = side("fp64", i=np.array([1]))
    assert hold(side("a", y=off(8))).telling
    assert hold(side("a", y=off(80))).telling
    assert hold(side("a", out=off(1))).telling, "paired by position"
    assert hold(but(a, remarks=["x"])).telling
    assert hold(a, side("b", y=off(9))).telling, "the other side is the less accurate"
    assert hold(truth, truth, truth=truth).telling, "no limit"
    assert hold(a, fixed=Tolerances(atol={"": 1.0})).telling
