"""Who is held against whom, by what evidence: a matrix written by hand; and the verdicts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from xbench import agree, environment, registry, tensors
from xbench.agree import Files, Verdicts
from xbench.jobs import TENSORS, Report
from xbench.result import Agreement, OperatorCheck, Operators
from xbench.spec import Case
from xbench.tolerances import Tolerances
from xbench.verdict import Choices, Confirmation, Side

EPS = float(np.finfo(np.float32).eps)
SHAPES = {"x": (2, 3), "y": (5,)}


def case(label: str, phase: str = "infer", **fields: Any) -> Case:
    """The case that its label names: ``ort(tf) cuda fp64``; as its engines set threads."""
    engine, device, precision = (*label.split(), "fp32")[:3]
    engine, _, source = engine.rstrip(")").partition("(")
    threads = environment.usable_cpus() if precision == "fp64" else 1
    common: dict[str, Any] = {"model": "m", "size": "tiny", "shape": SHAPES, "threads": threads}
    return Case(
        phase=phase, engine=engine, source=source or None, device=device, precision=precision,
        **(common | fields),
    )  # fmt: skip


def cases(*labels: str) -> list[Case]:
    return [case(label) for label in labels]


NATIVES = ["torch", "tf"]
ALL = [f"{engine} {device}" for engine in ("torch", "tf", "ort(torch)", "ort(tf)")
       for device in ("cpu", "cuda")]  # fmt: skip
EXPECTED = {
    # judged, held against, whose error is the measure
    ("tf cpu fp64", "torch cpu fp64", None),
    ("torch cpu", "torch cpu fp64", None),
    ("torch cuda", "torch cpu fp64", "torch cpu"),
    ("torch cuda", "torch cpu", "torch cpu"),
    ("tf cpu", "torch cpu fp64", "torch cpu"),
    ("tf cpu", "torch cpu", "torch cpu"),
    ("tf cuda", "torch cpu fp64", "torch cpu"),
    ("tf cuda", "tf cpu", "tf cpu"),
    ("ort(torch) cpu", "torch cpu fp64", "torch cpu"),
    ("ort(torch) cpu", "torch cpu", "torch cpu"),
    ("ort(torch) cuda", "torch cpu fp64", "torch cpu"),
    ("ort(torch) cuda", "torch cpu", "torch cpu"),
    ("ort(torch) cuda", "ort(torch) cpu", "ort(torch) cpu"),
    ("ort(tf) cpu", "torch cpu fp64", "tf cpu"),
    ("ort(tf) cpu", "tf cpu", "tf cpu"),
    ("ort(tf) cuda", "torch cpu fp64", "tf cpu"),
    ("ort(tf) cuda", "tf cpu", "tf cpu"),
    ("ort(tf) cuda", "ort(tf) cpu", "ort(tf) cpu"),
}


def labels(pairs: Sequence[agree.Pair]) -> list[tuple[str, str, str | None]]:
    return [(p.a.label, p.b.label, p.source.label if p.source else None) for p in pairs]


# -- models ----------------------------------------------------------------------------------------


def test_the_whole_matrix() -> None:
    found = labels(agree.pairs(cases(*ALL), NATIVES))
    assert len(found) == len(set(found))
    assert set(found) == EXPECTED


def test_the_order_of_the_cases_does_not_matter() -> None:
    assert set(labels(agree.pairs(cases(*reversed(ALL)), NATIVES))) == EXPECTED


@pytest.mark.parametrize("label", ALL)
def test_the_pairs_of_one_case_do_not_depend_on_the_others(label: str) -> None:
    expected = {pair for pair in EXPECTED if pair[0] == label}
    if label.startswith(("tf", "ort(tf)")):
        expected.add(("tf cpu fp64", "torch cpu fp64", None))
    assert set(labels(agree.pairs(cases(label), NATIVES))) == expected


def test_the_definitions_are_compared_first() -> None:
    for order in (ALL, ALL[::-1]):
        found = labels(agree.pairs(cases(*order), NATIVES))
        assert found[0] == ("tf cpu fp64", "torch cpu fp64", None)


def test_every_pair_of_a_model_has_the_reference_and_the_spread_of_the_first_engine() -> None:
    for pair in agree.pairs(cases(*ALL), NATIVES):
        assert pair.reference == case("torch cpu fp64")
        assert pair.spread == case("torch cpu")
        assert pair.narrow is None
        assert pair.precision == pair.a.precision


def test_a_measure_has_a_pair_of_its_own_without_one() -> None:
    for pair in agree.pairs(cases(*ALL), NATIVES):
        assert (pair.own is None) == (pair.source is None)
        if pair.own is not None:
            assert (pair.own.a, pair.own.b) == (pair.source, pair.reference)
            assert (pair.own.source, pair.own.own) == (None, None)
            assert pair.own.reference == pair.reference


def test_phases_are_not_mixed() -> None:
    found = agree.pairs([case("tf cpu"), case("tf cpu", "train")], NATIVES)
    assert len(found) == 6
    assert all(pair.a.phase == pair.b.phase == pair.reference.phase for pair in found)
    assert all(pair.source.phase == pair.a.phase for pair in found if pair.source)


def test_without_a_native_engine_no_model_can_be_judged() -> None:
    assert agree.pairs(cases(*ALL), []) == []
    assert agree.witnesses(cases(*ALL), []) == []
    assert Verdicts([], {}).agreements() == []


def test_with_tensorflow_alone_it_is_the_reference() -> None:
    found = labels(agree.pairs(cases("tf cpu", "tf cuda", "ort(tf) cpu"), ["tf"]))
    assert set(found) == {
        ("tf cpu", "tf cpu fp64", None),
        ("tf cuda", "tf cpu fp64", "tf cpu"),
        ("tf cuda", "tf cpu", "tf cpu"),
        ("ort(tf) cpu", "tf cpu fp64", "tf cpu"),
        ("ort(tf) cpu", "tf cpu", "tf cpu"),
    }


def test_options_make_a_case_another_than_the_source() -> None:
    (pair,) = agree.pairs([case("torch cpu", options={"tf32": "on"})], NATIVES)
    assert pair.source == case("torch cpu")


# -- witnesses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        (ALL, {"tf cpu fp64", "torch cpu fp64"}),
        (["torch cpu"], {"torch cpu fp64"}),
        (["torch cuda"], {"torch cpu fp64", "torch cpu"}),
        (["tf cpu"], {"torch cpu fp64", "tf cpu fp64", "torch cpu"}),
        (["tf cuda"], {"torch cpu fp64", "tf cpu fp64", "torch cpu", "tf cpu"}),
        (["ort(torch) cpu"], {"torch cpu fp64", "torch cpu"}),
        (["ort(torch) cuda"], {"torch cpu fp64", "torch cpu", "ort(torch) cpu"}),
        (["ort(tf) cpu"], {"torch cpu fp64", "tf cpu fp64", "tf cpu", "torch cpu"}),
        (["tf-xla cpu"], {"torch cpu fp64", "tf cpu fp64", "tf cpu", "torch cpu"}),
    ],
)
def test_witnesses_are_what_the_verdicts_need_and_nobody_asked_for(
    asked: list[str], needed: set[str]
) -> None:
    found = [item.label for item in agree.witnesses(cases(*asked), NATIVES)]
    assert len(found) == len(set(found))
    assert set(found) == needed
    everything = [item.label for item in agree.needed(cases(*asked), NATIVES).values()]
    assert set(everything) == needed | set(asked)


@pytest.mark.parametrize("asked", [ALL, ALL[::-1], ["tf-xla cpu", "ort(tf) cuda"]])
def test_float64_is_needed_first(asked: list[str]) -> None:
    found = [item.precision for item in agree.needed(cases(*asked), NATIVES).values()]
    assert found == sorted(found, key=lambda precision: precision != "fp64")
    assert found.count("fp64") == 2
    files = [of_file(), of_file("ort(file) cuda")]
    found = [item.precision for item in agree.needed(files, NATIVES).values()]
    assert found == ["fp64", "fp32", "fp32", "fp32", "fp32"]


def test_needed_goes_by_key() -> None:
    assert all(key == item.key for key, item in agree.needed(cases(*ALL), NATIVES).items())


def test_a_witness_computes_what_the_case_computes() -> None:
    odd = Case(
        model="n", size="full", phase="train", engine="ort", source="tf", device="cuda", threads=3,
        batch=7, shape=SHAPES, loss="L", seed=9, options={"level": "1"}, concurrency=2, arm="A",
    )  # fmt: skip
    double, one = agree.double(odd, "torch"), agree.single(odd, "torch")
    for witness in (double, one):
        assert (witness.engine, witness.source, witness.device) == ("torch", None, "cpu")
        assert (witness.options, witness.concurrency, witness.arm) == ({}, 1, "")
        same = ("model", "size", "phase", "batch", "shape", "loss", "seed")
        assert [getattr(witness, name) for name in same] == [getattr(odd, name) for name in same]
    assert (double.precision, double.threads) == ("fp64", environment.usable_cpus())
    assert (one.precision, one.threads) == ("fp32", 3)
    # In float64 nothing depends on how many threads there are: cases that differ by it share it.
    assert agree.double(msgspec.structs.replace(odd, threads=1), "torch") == double


def test_the_graph_of_an_export_in_double() -> None:
    found = agree.in_double(case("ort(tf) cuda", options={"a": "b"}))
    assert (found.engine, found.source, found.device) == ("float64", "tf", "cpu")
    assert (found.precision, found.options) == ("fp64", {})


# -- the verdicts on pairs -------------------------------------------------------------------------


def side(of: Case, value: float = 1.0, spread: float | None = None, **fields: Any) -> Side:
    """Four ones, in the type of the case; they may be off."""
    dtype = np.float64 if of.precision == "fp64" else np.float32
    known: dict[str, Any] = {"tensors": {"outputs/y": np.full(4, value, dtype)}}
    if spread is not None:
        known |= {"spread": {"outputs/y": spread}, "draws": 8}
    digests = {"parameters": "p", "inputs": "i"}
    return Side(key=of.key, label=of.label, digests=digests, **(known | fields))


def sides_of(
    asked: Sequence[Case], values: Mapping[str, float] | None = None, files: Files = agree.NO_FILES
) -> dict[str, Side]:
    """A side for all that is needed, off by what ``values`` says of its label."""
    needed = agree.needed(asked, NATIVES, files).values()
    return {item.key: side(item, (values or {}).get(item.label, 1.0)) for item in needed}


def verdicts(
    asked: Sequence[Case], sides: Mapping[str, Side], files: Files = agree.NO_FILES, **more: Any
) -> Verdicts:
    return Verdicts(agree.pairs(asked, NATIVES, files), sides, **more)


def by_label(found: Sequence[Agreement], known: Mapping[str, Case]) -> dict[tuple[str, str], str]:
    return {(known[item.a].label, known[item.b].label): item.verdict for item in found}


def judged(
    asked: Sequence[Case], values: Mapping[str, float] | None = None
) -> dict[tuple[str, str], str]:
    """The verdicts, by the labels of the two, when some values are off."""
    found = verdicts(asked, sides_of(asked, values)).agreements()
    return by_label(found, agree.needed(asked, NATIVES))


def test_every_pair_gets_a_verdict() -> None:
    assert judged(cases(*ALL)) == {(a, b): "agree" for a, b, _ in EXPECTED}


EVERYTHING = [*ALL, "torch cpu fp64", "tf cpu fp64"]


@pytest.mark.parametrize("missing", EVERYTHING)
def test_a_pair_needs_both_sides_the_source_and_the_reference(missing: str) -> None:
    sides = sides_of(cases(*ALL))
    del sides[case(missing).key]
    absent = {case(missing).key: "no such device"}
    found = verdicts(cases(*ALL), sides, absent=absent).agreements()
    known = agree.needed(cases(*ALL), NATIVES)
    lacking = {(a, b) for a, b, source in EXPECTED if missing in (a, b, source)}
    if missing == "torch cpu fp64":
        lacking = {(a, b) for a, b, _ in EXPECTED}
    expected = {(a, b): "inconclusive" if (a, b) in lacking else "agree" for a, b, _ in EXPECTED}
    assert by_label(found, known) == expected
    # What cannot be judged does not vanish, and says what it lacks and why.
    others = [item for item in found if item.verdict != "agree"]
    assert {item.sentence for item in others} == {
        f"{missing} could not be computed, so nothing was compared: no such device"
    }
    assert {(item.evidence, item.tolerance) for item in others} == {(None, None)}


def test_without_a_known_reason_none_is_given() -> None:
    (found,) = verdicts(cases("torch cpu"), {}).agreements()
    assert found.sentence == "torch cpu could not be computed, so nothing was compared"


def test_training_is_judged_by_loss_gradients_and_trajectory() -> None:
    train = case("torch cpu", "train")
    names = ("loss/0", "gradients/0/w", "trajectory/w")
    double = agree.double(train, "torch")
    sides = {
        item.key: side(item, tensors={name: np.ones(4, dtype) for name in names})
        for item, dtype in ((train, np.float32), (double, np.float64))
    }
    found = verdicts([train], sides).agreements()
    assert [item.what for item in found] == ["loss", "gradients", "trajectory"]
    assert {item.verdict for item in found} == {"agree"}


def test_the_spread_is_that_of_the_first_native_engine() -> None:
    asked = cases("ort(tf) cpu")
    sides = sides_of(asked, {"ort(tf) cpu": 1.2})
    for label, spread in (("torch cpu", 0.25), ("tf cpu", 0.5)):
        sides[case(label).key] = side(case(label), spread=spread)
    found = [item for item in verdicts(asked, sides).agreements() if item.a == asked[0].key]
    assert len(found) == 2
    for item in found:
        assert item.evidence is not None
        assert (item.evidence.spread_rms, item.evidence.draws) == (0.25, 8)
        assert item.verdict == "agree"


def test_a_wrong_side_disagrees_with_all_and_the_others_do_not() -> None:
    found = judged(cases(*ALL), {"tf cuda": 1.5})
    wrong = {pair for pair, verdict in found.items() if verdict != "agree"}
    assert wrong == {("tf cuda", "torch cpu fp64"), ("tf cuda", "tf cpu")}
    assert {found[pair] for pair in wrong} == {"disagree"}


OFF = 1.0 + 4 * EPS
"""A source that is as far off as rounding explains: its exports may be off by twice that."""


@pytest.mark.parametrize(
    ("source", "export", "of_source", "of_export"),
    [
        (OFF, 1.0 + 8 * EPS, "agree", "agree"),
        (OFF, 1.0 + 9 * EPS, "agree", "inconclusive"),
        (1.0, 1.0 + 8 * EPS, "agree", "inconclusive"),
        # A source whose own verdict is not agree lends nothing.
        (1.0 + 5 * EPS, 1.0 + 8 * EPS, "inconclusive", "inconclusive"),
        (1.0 + 100 * EPS, 1.0 + 100 * EPS, "disagree", "disagree"),
        (1.0 + 100 * EPS, 1.0 + 4 * EPS, "disagree", "agree"),
    ],
)
def test_a_source_excuses_only_where_it_agrees_itself(
    source: float, export: float, of_source: str, of_export: str
) -> None:
    found = judged(cases("torch cpu", "ort(torch) cpu"), {"torch cpu": source,
                                                         "ort(torch) cpu": export})  # fmt: skip
    assert found[("torch cpu", "torch cpu fp64")] == of_source
    assert found[("ort(torch) cpu", "torch cpu fp64")] == of_export
    assert found[("ort(torch) cpu", "torch cpu")] == of_export


def test_a_source_that_differs_from_itself_lends_nothing() -> None:
    asked = cases("torch cpu", "ort(torch) cpu")
    sides = sides_of(asked, {"torch cpu": OFF, "ort(torch) cpu": 1.0 + 8 * EPS})
    sides[asked[0].key] = side(asked[0], OFF, unsteady={"outputs/y": 1.0})
    found = by_label(verdicts(asked, sides).agreements(), agree.needed(asked, NATIVES))
    assert set(found.values()) == {"inconclusive"}


def test_a_source_that_operators_acquit_lends_its_error() -> None:
    """It is what the network makes of correct operators, so an export may err as much."""
    asked = cases("torch cpu", "ort(torch) cpu")
    sides = sides_of(asked, {"torch cpu": 1.0 + 50 * EPS, "ort(torch) cpu": 1.0 + 100 * EPS})
    graph = side(case("torch cpu fp64"))
    acquitted = {asked[0].key: Confirmation(graph=graph, operators=operators(0.5))}
    known = agree.needed(asked, NATIVES)
    assert "agree" not in by_label(verdicts(asked, sides).agreements(), known).values()
    found = verdicts(asked, sides, confirmations=acquitted).agreements()
    assert set(by_label(found, known).values()) == {"agree"}


@pytest.mark.parametrize("order", [1, -1])
def test_the_pair_of_a_measure_is_not_the_pair_that_was_asked_for(order: int) -> None:
    """TensorFlow is the measure of its exports, without one; itself it has torch for a measure."""
    asked = cases("tf cpu", "ort(tf) cpu")[::order]
    sides = sides_of(asked, {"torch cpu": OFF, "tf cpu": 1.0 + 8 * EPS})
    found = by_label(verdicts(asked, sides).agreements(), agree.needed(asked, NATIVES))
    assert found["tf cpu", "torch cpu fp64"] == "agree"


def chose(source: Case, reference: Case, value: float, **fields: Any) -> dict[str, Confirmation]:
    """What the reference comes to under the choices of a source, and that its graph is right."""
    under = Choices(side=side(in_float64(), value), **fields)
    confirmation = Confirmation(graph=side(in_float64()), choices={reference.key: under})
    return {source.key: confirmation}


@pytest.mark.parametrize(
    ("faults", "of_source", "error"), [("", "agree", 4 * EPS), ("TopK 't'", "disagree", None)]
)
def test_a_source_is_measured_under_its_own_choices(
    faults: str, of_source: str, error: float | None
) -> None:
    """At a tie it is off float64 by whatever the other index gives, which is no rounding."""
    own, asked = of_file(options=ZERO), of_file()
    sides = sides_of([asked])
    sides[own.key] = side(own, 3.0 + 4 * EPS)
    sides[asked.key] = side(asked, 1.0 + 8 * EPS)
    known = chose(own, in_float64(), 3.0, ties=1, faults=faults)
    held = verdicts([asked], sides, confirmations=known)
    assert pair_of_measure(held).verdict == of_source
    found = next(item for item in held.agreements() if item.b == in_float64().key)
    assert found.evidence is not None
    assert found.evidence.source_error_rms == (None if error is None else pytest.approx(error))
    assert found.verdict == ("inconclusive" if faults else "agree")


def pair_of_measure(held: Verdicts) -> Agreement:
    """The verdict on the measure of the first pair."""
    own = held.pairs[0].own
    assert own is not None
    return held.verdict(own, "outputs")


def test_choices_of_a_source_are_those_for_the_reference_of_the_pair() -> None:
    own, asked = of_file(options=ZERO), of_file()
    sides = sides_of([asked])
    sides[own.key] = side(own, OFF)
    sides[asked.key] = side(asked, 1.0 + 8 * EPS)
    known = chose(own, in_float64(graph="ba5e"), 3.0)
    found = verdicts([asked], sides, confirmations=known).agreements()
    assert {item.verdict for item in found} == {"agree"}
    assert {item.evidence.source_error_rms for item in found if item.evidence} == {4 * EPS}


def test_choices_at_fault_measure_no_source() -> None:
    """What came of them is not known to be right, though the source is."""
    own, asked = of_file(options=ZERO), of_file()
    sides = sides_of([asked])
    sides[own.key] = side(own, OFF)
    sides[asked.key] = side(asked, 1.0 + 60 * EPS)
    known = chose(own, in_float64(), 3.0, faults="TopK 't'")
    found = verdicts([asked], sides, confirmations=known).agreements()
    assert {item.verdict for item in found} == {"inconclusive"}
    assert {item.evidence.source_error_rms for item in found if item.evidence} == {4 * EPS}


def test_what_stands_in_for_the_reference_measures_a_twin_at_a_tie() -> None:
    """An export has no other graph than its own to choose in; its CPU twin is the measure."""
    own, asked = case("ort(torch) cpu"), case("ort(torch) cuda")
    sides = sides_of([asked])
    sides[own.key] = side(own, 3.0 + 4 * EPS)
    sides[asked.key] = side(asked, 1.0 + 8 * EPS)
    found = verdicts([asked], sides).agreements()
    assert {item.verdict for item in found} == {"inconclusive"}, "that twin is itself rejected"
    known = chose(own, case("torch cpu fp64"), 3.0, ties=1, stands_in=True)
    held = verdicts([asked], sides, confirmations=known)
    across = next(item for item in held.agreements() if item.b == own.key)
    assert across.evidence is not None
    assert across.evidence.source_error_rms == pytest.approx(4 * EPS)
    assert across.verdict == "agree"


def operators(score: float) -> Operators:
    worst = OperatorCheck(node="n", op="Op", output="t", error_rms=score, limit_rms=1.0)
    return Operators(checked=1, worst=[worst])


def test_fixed_tolerances_reach_every_pair() -> None:
    asked = cases("torch cpu", "ort(torch) cpu")
    sides = sides_of(asked, {"ort(torch) cpu": 1.25})
    for atol, expected in ((0.5, "agree"), (0.1, "disagree")):
        fixed = Tolerances(atol={"": atol}, rtol={"": 0.0})
        found = verdicts(asked, sides, fixed=fixed).agreements()
        wrong = [item for item in found if item.a == asked[1].key]
        assert {item.verdict for item in wrong} == {expected}
        assert all("fixed tolerance" in item.sentence for item in found)


# -- rejections ------------------------------------------------------------------------------------


def test_rejected_are_the_cases_that_do_not_agree_with_all_that_was_found() -> None:
    asked = cases("torch cpu", "tf cpu", "ort(tf) cpu")
    sides = sides_of(asked, {"tf cpu": 1.0 + 20 * EPS})
    found = verdicts(asked, sides).rejected()
    assert found.keys() == {case("tf cpu").key}
    pairs = found[case("tf cpu").key]
    assert {item.verdict for _, item in pairs} == {"inconclusive"}
    for pair, item in pairs:
        assert (pair.a, item.a, item.b) == (case("tf cpu"), pair.a.key, pair.b.key)
    held_against = {pair.b.label for pair, _ in pairs}
    assert held_against == {"torch cpu", "torch cpu fp64"}
    assert all(pair.reference == case("torch cpu fp64") for pair, _ in pairs)


def test_of_a_file_that_is_held_against_two_references_both_pairs_are_rejected() -> None:
    """What is wrong with it is asked of each: its graph is another function than only one."""
    base, other = of_file(graph="ba5e"), of_file()
    sides = sides_of([base, other], files=AGAINST)
    sides[other.key] = side(other, 1.0 + 100 * EPS)
    found = verdicts([base, other], sides, files=AGAINST).rejected()
    assert found.keys() == {other.key}
    references = {pair.reference.key for pair, _ in found[other.key]}
    assert references == {in_float64().key, in_float64(graph="ba5e").key}


def test_of_training_every_kind_of_tensor_that_is_rejected_is_given() -> None:
    train = case("torch cpu", "train")
    double = agree.double(train, "torch")
    names = ("loss/0", "gradients/0/w", "trajectory/w")
    exact = {name: np.ones(4) for name in names}
    wrong = {name: np.full(4, 1.5 if name != "loss/0" else 1.0, np.float32) for name in names}
    sides = {train.key: side(train, tensors=wrong), double.key: side(double, tensors=exact)}
    (pairs,) = verdicts([train], sides).rejected().values()
    assert [item.what for _, item in pairs] == ["gradients", "trajectory"]


def test_a_source_that_nobody_asked_for_is_rejected_too() -> None:
    """What it lends to others depends on it."""
    asked = cases("ort(tf) cpu")
    found = verdicts(asked, sides_of(asked, {"tf cpu": 1.0 + 500 * EPS})).rejected()
    assert found.keys() == {case("tf cpu").key}


def test_definitions_in_float64_are_not_looked_at_more_closely() -> None:
    asked = cases("tf cpu")
    held = verdicts(asked, sides_of(asked, {"tf cpu fp64": 1.1}))
    found = by_label(held.agreements(), agree.needed(asked, NATIVES))
    assert found[("tf cpu fp64", "torch cpu fp64")] == "disagree"
    assert held.rejected() == {}


REJECTED: list[tuple[dict[str, Any], bool]] = [
    ({"tensors": {"outputs/y": np.full(4, 1.5, np.float32)}}, True),
    ({"tensors": {"outputs/y": np.ones(3, np.float32)}}, False),
    ({"tensors": {"outputs/z": np.ones((2, 2), np.float32)}}, False),
    ({"tensors": {"outputs/y": np.full(4, np.nan, np.float32)}}, False),
    ({"tensors": {"outputs/y": np.ones(4, np.int64)}}, False),
    ({"tensors": {}}, False),
    ({"digests": {}}, False),
    ({"unsteady": {"outputs/y": 1.0}}, False),
]


@pytest.mark.parametrize(("fields", "confirmable"), REJECTED)
def test_only_numbers_are_looked_at_more_closely(fields: dict[str, Any], confirmable: bool) -> None:
    asked = cases("torch cpu")
    sides = sides_of(asked)
    sides[asked[0].key] = msgspec.structs.replace(side(asked[0]), **fields)
    held = verdicts(asked, sides)
    assert [item.verdict == "agree" for item in held.agreements()] == [False]
    assert (held.rejected().keys() == {asked[0].key}) == confirmable


def test_integers_are_looked_at_more_closely() -> None:
    asked = cases("torch cpu")
    sides = {
        item.key: side(item, tensors={"outputs/i": np.array(values)})
        for item, values in ((asked[0], [1, 2]), (case("torch cpu fp64"), [1, 3]))
    }
    assert verdicts(asked, sides).rejected().keys() == {asked[0].key}


def test_what_could_not_be_computed_is_not_rejected() -> None:
    assert verdicts(cases(*ALL), {}).rejected() == {}


# -- what a case computed, as one side -------------------------------------------------------------


def left(folder: Path, arrays: Mapping[str, Any], **fields: Any) -> Report:
    """The report of a job that left tensors."""
    folder.mkdir()
    tensors.save(folder / TENSORS, {name: np.asarray(value) for name, value in arrays.items()})
    return Report(folder=str(folder), **fields)


def test_a_side_has_what_the_report_has(tmp_path: Path) -> None:
    report = left(
        tmp_path / "a", {"outputs/y": [1.0, 2.0]}, digests={"inputs": "i"}, draws=3, spread_ulps=1,
        spread={"outputs/y": 0.5}, terms={"outputs/y": 7}, remarks=["one was not in double"],
        unsteady={"outputs/y": 0.25},
    )  # fmt: skip
    found = agree.side_of(case("torch cuda"), report, random="RandomUniform 'r'")
    assert (found.key, found.label) == (case("torch cuda").key, "torch cuda")
    assert found.tensors["outputs/y"].tolist() == [1.0, 2.0]
    assert (found.digests, found.spread, found.draws) == (
        {"inputs": "i"}, {"outputs/y": 0.5}, 3,
    )  # fmt: skip
    assert (found.terms, found.remarks) == ({"outputs/y": 7}, ["one was not in double"])
    assert (found.unsteady, found.random) == ({"outputs/y": 0.25}, "RandomUniform 'r'")


def test_the_larger_distance_of_both_repeats_counts(tmp_path: Path) -> None:
    first = {"outputs/x": [1.0, 1.0], "outputs/y": [1.0, 1.0], "outputs/z": [1.0, 1.0]}
    report = left(tmp_path / "a", first, unsteady={"outputs/x": 5.0, "outputs/y": 0.5})
    repeat = left(
        tmp_path / "b",
        {"outputs/x": [2.0, 2.0], "outputs/y": [3.0, 3.0], "outputs/z": [1.0, np.nan]},
    )
    found = agree.side_of(case("torch cpu"), report, repeat)
    assert found.unsteady == {"outputs/x": 5.0, "outputs/y": 2.0, "outputs/z": np.inf}
    assert agree.side_of(case("torch cpu"), report).unsteady == report.unsteady


# -- compiled twins --------------------------------------------------------------------------------


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two compiled engines beside what is there, whichever runners are."""
    more = {
        name: registry.Engine(name=name, module="m", optional=True, twin=twin)
        for name, twin in (("torch-x", "torch"), ("tf-x", "tf"))
    }
    known = registry.engines() | more
    monkeypatch.setattr(registry, "engines", lambda: known)


@pytest.mark.usefixtures("twins")
def test_a_compiled_engine_is_held_against_its_eager_twin() -> None:
    found = labels(agree.pairs(cases("torch-x cpu", "torch-x cuda", "tf-x cpu"), NATIVES))
    assert len(found) == len(set(found))
    assert set(found) == {
        ("tf cpu fp64", "torch cpu fp64", None),
        ("torch-x cpu", "torch cpu fp64", "torch cpu"),
        ("torch-x cpu", "torch cpu", "torch cpu"),
        ("torch-x cuda", "torch cpu fp64", "torch cpu"),
        ("torch-x cuda", "torch cpu", "torch cpu"),
        ("torch-x cuda", "torch-x cpu", "torch-x cpu"),
        ("tf-x cpu", "torch cpu fp64", "tf cpu"),
        ("tf-x cpu", "tf cpu", "tf cpu"),
    }


@pytest.mark.usefixtures("twins")
def test_a_compiled_engine_whose_twin_does_not_work_is_held_against_the_reference() -> None:
    found = labels(agree.pairs(cases("torch-x cpu"), ["tf"]))
    assert found == [("torch-x cpu", "tf cpu fp64", "tf cpu")]


@pytest.mark.usefixtures("twins")
def test_a_compiled_engine_evaluates_no_reference() -> None:
    needed = agree.needed(cases("torch-x cpu", "tf-x cuda"), NATIVES)
    doubles = [item.label for item in needed.values() if item.precision == "fp64"]
    assert sorted(doubles) == ["tf cpu fp64", "torch cpu fp64"]


@pytest.mark.parametrize(("engine", "twin"), [("torch-compile", "torch"), ("tf-xla", "tf")])
def test_the_compiled_engines_that_ship_name_their_twins(engine: str, twin: str) -> None:
    assert registry.engine(engine).twin == twin
    found = labels(agree.pairs([case(f"{engine} cpu")], NATIVES))
    assert (f"{engine} cpu", f"{twin} cpu", f"{twin} cpu") in found


# -- lower precisions ------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_lower_precision_is_measured_by_what_its_source_does_in_it(precision: str) -> None:
    asked = [f"{label} {precision}" for label in ("torch cpu", "tf cpu", "ort(tf) cuda")]
    pairs = agree.pairs(cases(*asked), NATIVES)
    p = f" {precision}"
    assert set(labels(pairs)) == {
        ("tf cpu fp64", "torch cpu fp64", None),
        (f"torch cpu{p}", "torch cpu fp64", None),
        (f"tf cpu{p}", "torch cpu fp64", f"torch cpu{p}"),
        (f"tf cpu{p}", f"torch cpu{p}", f"torch cpu{p}"),
        (f"ort(tf) cuda{p}", "torch cpu fp64", f"tf cpu{p}"),
        (f"ort(tf) cuda{p}", f"tf cpu{p}", f"tf cpu{p}"),
        (f"ort(tf) cuda{p}", f"ort(tf) cpu{p}", f"ort(tf) cpu{p}"),
    }
    for pair in pairs:
        assert pair.precision == pair.a.precision
        assert pair.spread.precision == precision


@pytest.mark.parametrize(("precision", "eps"), [("fp16", 2**-10), ("bf16", 2**-7)])
def test_the_precision_of_the_case_sets_the_limit(precision: str, eps: float) -> None:
    asked = cases(f"torch cpu {precision}")
    (found,) = verdicts(asked, sides_of(asked)).agreements()
    assert found.tolerance == pytest.approx(4 * eps)


# -- sweeps ----------------------------------------------------------------------------------------


def changed(label: str, **fields: Any) -> Case:
    return msgspec.structs.replace(case(label), **fields)


SWEEP: list[dict[str, Any]] = [
    {"options": {"ort-opt": "0"}},
    {"options": {"ort-opt": "99", "provider.arena": "1"}},
    {"concurrency": 4},
    {"arm": "A"},
    {"arm": "B", "concurrency": 2, "options": {"session.a": "b"}},
]


def test_what_changes_speed_alone_shares_its_witnesses() -> None:
    """Level, options, threads that call, and sides do not multiply the float64 evaluations."""
    for label in ("ort(tf) cpu", "ort(tf) cuda"):
        plain, swept = case(label), [changed(label, **fields) for fields in SWEEP]
        witnesses = {c.key: c for c in agree.witnesses([plain, *swept], NATIVES)}
        own = {key for key, c in witnesses.items() if c.engine == "ort"}
        alone = {c.key for c in agree.witnesses([plain], NATIVES)}
        assert witnesses.keys() - own == alone - own
        found = agree.pairs([plain, *swept], NATIVES)
        assert {pair.reference.key for pair in found} == {case("torch cpu fp64").key}
        sources = {p.source.key for p in found if p.source and p.source.engine != "ort"}
        assert sources == {case("tf cpu").key}


def test_every_case_of_a_sweep_is_judged_itself() -> None:
    swept = [changed("ort(torch) cpu", **fields) for fields in SWEEP]
    found = agree.pairs(swept, NATIVES)
    assert {pair.a.key for pair in found} == {item.key for item in swept}
    assert len(found) == 2 * len(swept)


def test_the_cpu_twin_has_the_level_but_no_options_of_the_other_provider() -> None:
    options = {"ort-opt": "1", "session.a": "b", "provider.use_tf32": "0"}
    twin = agree.on_cpu(changed("ort(tf) cuda", options=options, concurrency=4, arm="A"))
    assert twin == changed("ort(tf) cpu", options={"ort-opt": "1", "session.a": "b"})


@pytest.mark.parametrize("fields", [{"batch": 8}, {"seed": 1}, {"shape": {"x": (9, 3)}}])
def test_what_changes_numbers_has_witnesses_of_its_own(fields: dict[str, Any]) -> None:
    one, other = case("ort(torch) cpu"), changed("ort(torch) cpu", **fields)
    found = agree.pairs([one, other], NATIVES)
    assert len({pair.b.key for pair in found}) == 4
    for pair in found:
        assert all(getattr(pair.b, name) == getattr(pair.a, name) for name in fields)


def test_threads_change_what_an_engine_computes_but_not_float64() -> None:
    found = agree.pairs([case("ort(torch) cpu"), changed("ort(torch) cpu", threads=4)], NATIVES)
    assert {pair.reference.key for pair in found} == {case("torch cpu fp64").key}
    assert sorted(pair.source.threads for pair in found if pair.source) == [1, 1, 4, 4]


# -- files -----------------------------------------------------------------------------------------


def of_file(label: str = "ort(file) cpu", **fields: Any) -> Case:
    return changed(label, **({"size": "", "graph": "ab12"} | fields))


def in_float64(**fields: Any) -> Case:
    threads = environment.usable_cpus()
    return of_file("float64(file) cpu fp64", **({"threads": threads} | fields))


ZERO = {"ort-opt": "0"}


def told(item: Case | None) -> str:
    """A case of a file by what sets it apart: ``cpu``, ``cuda 0``, ``float64``."""
    if item is None:
        return ""
    if item.engine == "float64":
        return " ".join(["float64", *item.options.values()])
    return " ".join([item.device, *item.options.values()])


def table(pairs: Sequence[agree.Pair]) -> list[tuple[str, str, str]]:
    """Judged, held against, measure."""
    return [(told(p.a), told(p.b), told(p.source)) for p in pairs]


@pytest.mark.parametrize("natives", [NATIVES, []])
def test_one_file_on_one_provider_is_held_against_float64_and_itself_unoptimised(
    natives: list[str],
) -> None:
    pairs = agree.pairs([of_file()], natives)
    assert table(pairs) == [("cpu", "float64", "cpu 0"), ("cpu", "cpu 0", "cpu 0")]
    for pair in pairs:
        assert pair.reference == pair.spread == in_float64()
        assert pair.narrow is None
        assert pair.precision == "fp32"
        assert pair.own is not None
        assert table([pair.own]) == [("cpu 0", "float64", "")]
    witnesses = agree.witnesses([of_file()], natives)
    assert [told(item) for item in witnesses] == ["float64", "cpu 0"]


def test_a_file_without_optimisation_has_no_measure() -> None:
    (pair,) = agree.pairs([of_file(options=ZERO)], NATIVES)
    assert table([pair]) == [("cpu 0", "float64", "")]
    assert pair.own is None
    assert [told(item) for item in agree.witnesses([pair.a], NATIVES)] == ["float64"]


def test_a_file_on_cuda() -> None:
    cuda = of_file("ort(file) cuda")
    alone = table(agree.pairs([cuda], NATIVES))
    assert alone == [("cuda", "float64", "cpu 0"), ("cuda", "cuda 0", "cpu 0")]
    # A twin on the CPU is held against only where it was asked for.
    both = table(agree.pairs([cuda, of_file()], NATIVES))
    assert both == [
        ("cuda", "float64", "cpu 0"), ("cuda", "cuda 0", "cpu 0"), ("cuda", "cpu", "cpu 0"),
        ("cpu", "float64", "cpu 0"), ("cpu", "cpu 0", "cpu 0"),
    ]  # fmt: skip


def test_a_file_on_cuda_without_optimisation() -> None:
    found = table(agree.pairs([of_file("ort(file) cuda", options=ZERO)], NATIVES))
    assert found == [("cuda 0", "float64", "cpu 0")]
    both = table(agree.pairs([of_file("ort(file) cuda", options=ZERO), of_file()], NATIVES))
    assert both[:1] == [("cuda 0", "float64", "cpu 0")]
    assert ("cuda 0", "cpu", "cpu 0") not in both, "another level is no twin"


def test_the_twin_of_a_file_has_no_options_of_the_other_provider() -> None:
    options = {"ort-opt": "1"}
    cuda = of_file("ort(file) cuda", options=options | {"provider.a": "b"}, concurrency=2)
    found = agree.pairs([cuda, of_file(options=options)], NATIVES)
    held = {pair.b.key for pair in found if pair.a == cuda}
    assert of_file(options=options).key in held


@pytest.mark.parametrize(
    "fields",
    [{"graph": "cd34"}, {"shape": {"x": (9, 3)}}, {"seed": 1}, {"cycle": ({"x": (4, 3)},)}],
)
def test_other_work_of_a_file_has_its_own_reference(fields: dict[str, Any]) -> None:
    one, other = of_file(), of_file(**fields)
    found = agree.pairs([one, other], NATIVES)
    assert len(found) == 4
    for pair in found:
        same = ("graph", "shape", "seed", "cycle")
        for held in (pair.b, pair.reference, pair.spread, pair.source):
            assert held is not None
            assert all(getattr(held, name) == getattr(pair.a, name) for name in same)


def test_files_and_models_of_one_run_do_not_meet() -> None:
    mixed = [*cases("torch cpu", "ort(torch) cpu"), of_file(), of_file(threads=2)]
    for pair in agree.pairs(mixed, NATIVES):
        sources = [c.source for c in (pair.a, pair.b, pair.reference, pair.spread)]
        assert len({source == "file" for source in sources}) == 1


AGAINST = Files(against="ba5e")


def test_a_file_against_another() -> None:
    base, other = of_file(graph="ba5e"), of_file(graph="ab12")
    pairs = agree.pairs([base, other], NATIVES, AGAINST)
    assert [(p.a.graph, p.b.graph, *table([p])[0]) for p in pairs] == [
        ("ba5e", "ba5e", "cpu", "float64", "cpu 0"),
        ("ba5e", "ba5e", "cpu", "cpu 0", "cpu 0"),
        ("ab12", "ab12", "cpu", "float64", "cpu 0"),
        ("ab12", "ab12", "cpu", "cpu 0", "cpu 0"),
        ("ab12", "ba5e", "cpu", "float64", "cpu 0"),
    ]
    last = pairs[-1]
    # Reference, spread and measure are those of the file that it is held against.
    assert last.reference == last.spread == in_float64(graph="ba5e")
    assert last.source == of_file(graph="ba5e", options=ZERO)
    assert last.own is not None
    assert (last.own.a, last.own.source) == (last.source, None)


@pytest.mark.parametrize("fields", [{"shape": {"x": (9, 3)}}, {"seed": 1}])
def test_a_file_is_held_against_another_on_the_same_inputs_only(fields: dict[str, Any]) -> None:
    base, other = of_file(graph="ba5e", **fields), of_file(graph="ab12")
    pairs = agree.pairs([base, other], NATIVES, AGAINST)
    assert all(pair.a.graph == pair.b.graph for pair in pairs)
    more = agree.pairs([base, of_file(graph="ba5e"), other], NATIVES, AGAINST)
    across = [pair for pair in more if pair.a.graph != pair.b.graph]
    assert [pair.b for pair in across] == [in_float64(graph="ba5e")]


@pytest.mark.parametrize(
    ("declared", "precision", "narrow"),
    [
        ("float16", "fp16", "float64 float16"),
        ("bfloat16", "bf16", "float64 bfloat16"),
        ("int8", "fp32", ""),
        ("", "fp32", ""),
    ],
)
def test_a_declared_type_sets_precision_and_narrow_reference(
    declared: str, precision: str, narrow: str
) -> None:
    files = Files(declared={"ab12": declared} if declared else {})
    pairs = agree.pairs([of_file()], NATIVES, files)
    assert len(pairs) == 2
    own = [pair.own for pair in pairs if pair.own is not None]
    for pair in (*pairs, *own):
        assert (pair.precision, told(pair.narrow)) == (precision, narrow)
    witnesses = [told(item) for item in agree.witnesses([of_file()], NATIVES, files)]
    assert witnesses == [item for item in ("float64", narrow, "cpu 0") if item]


@pytest.mark.parametrize(
    ("error", "expected"), [(0.9e-9, "agree"), (1.1e-9, "inconclusive"), (1.1e-8, "disagree")]
)
def test_a_file_in_float64_is_held_to_float64(error: float, expected: str) -> None:
    """Nothing that float32 rounds explains what it is off by."""
    files = Files(declared={"ab12": "float64"})
    asked = [of_file(options=ZERO)]
    (pair,) = agree.pairs(asked, NATIVES, files)
    assert (pair.precision, pair.narrow) == ("fp64", None)
    sides = sides_of(asked, files=files)
    sides[asked[0].key] = side(asked[0], tensors={"outputs/y": np.full(4, 1.0 + error)})
    (found,) = verdicts(asked, sides, files=files).agreements()
    assert found.verdict == expected


@pytest.mark.parametrize(("precision", "type_"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_a_precision_asked_for_is_narrow_as_a_declared_one(precision: str, type_: str) -> None:
    for pair in agree.pairs([of_file(precision=precision)], NATIVES):
        assert (pair.precision, told(pair.narrow)) == (precision, f"float64 {type_}")
        assert pair.source == of_file(precision=precision, options=ZERO)


@pytest.mark.parametrize("declared", ["float16", "int8"])
def test_a_narrower_file_against_another(declared: str) -> None:
    files = Files(declared={"ab12": declared}, against="ba5e")
    pairs = agree.pairs([of_file(graph="ba5e"), of_file()], NATIVES, files)
    across = next(pair for pair in pairs if pair.a.graph != pair.b.graph)
    assert across.narrow == in_float64(graph="ba5e", options={"narrow": declared})
    assert across.precision == ("fp16" if declared == "float16" else "fp32")
    base = [pair for pair in pairs if pair.a.graph == "ba5e"]
    assert {(pair.narrow, pair.precision) for pair in base} == {(None, "fp32")}


def of_pairs(
    asked: Sequence[Case], sides: Mapping[str, Side], **more: Any
) -> dict[tuple[str, str], tuple[str, str]]:
    """Verdict and sentence by the two sides."""
    found = verdicts(asked, sides, **more).agreements()
    known = agree.needed(asked, NATIVES, more.get("files", agree.NO_FILES))
    return {
        (told(known[item.a]), told(known[item.b])): (item.verdict, item.sentence) for item in found
    }


def test_a_file_is_judged_by_its_own_float64() -> None:
    asked = [of_file()]
    found = of_pairs(asked, sides_of(asked, {"ort(file) cpu": 1.0}))
    assert {verdict for verdict, _ in found.values()} == {"agree"}
    sides = sides_of(asked)
    sides[asked[0].key] = side(asked[0], 1.5)
    found = of_pairs(asked, sides)
    assert {verdict for verdict, _ in found.values()} == {"disagree"}


def test_a_file_that_float64_cannot_evaluate_still_says_what_is_certain() -> None:
    asked, double = [of_file()], in_float64()
    sides = {key: value for key, value in sides_of(asked).items() if key != double.key}
    absent = {double.key: "Foo is unknown"}
    found = of_pairs(asked, sides, absent=absent)
    assert found["cpu", "float64"] == (
        "inconclusive",
        f"{double.label} could not be computed, so nothing was compared: Foo is unknown",
    )
    assert found["cpu", "cpu 0"][0] == "agree"
    sides[asked[0].key] = side(asked[0], 1.5)
    verdict, sentence = of_pairs(asked, sides, absent=absent)["cpu", "cpu 0"]
    assert verdict == "inconclusive"
    assert "without a float64 reference (Foo is unknown) nobody knows" in sentence


def test_a_file_whose_unoptimised_twin_failed() -> None:
    asked = [of_file()]
    missing = of_file(options=ZERO)
    sides = {key: value for key, value in sides_of(asked).items() if key != missing.key}
    found = of_pairs(asked, sides, absent={missing.key: "out of memory"})
    assert {verdict for verdict, _ in found.values()} == {"inconclusive"}
    assert all(sentence.endswith(": out of memory") for _, sentence in found.values())


def test_a_wrong_file_agrees_with_itself_and_not_with_the_one_it_is_held_against() -> None:
    base, other = of_file(graph="ba5e"), of_file()
    sides = {
        key: side(item, 1.5 if item.graph == "ab12" else 1.0)
        for key, item in agree.needed([base, other], NATIVES, AGAINST).items()
    }
    found = verdicts([base, other], sides, files=AGAINST).agreements()
    across = in_float64(graph="ba5e").key
    assert {(item.a, item.b) for item in found if item.verdict == "disagree"} == {
        (other.key, across)
    }
    assert {item.verdict for item in found} == {"agree", "disagree"}


@pytest.mark.parametrize(
    ("steps", "expected"), [(200, "agree"), (201, "inconclusive"), (2001, "disagree")]
)
def test_the_narrow_reference_of_a_declared_file_joins_the_limit(steps: int, expected: str) -> None:
    files = Files(declared={"ab12": "int8"}, against="ba5e")
    base, other = of_file(graph="ba5e"), of_file()
    sides = sides_of([base, other], files=files)
    rounded = in_float64(graph="ba5e", options={"narrow": "int8"})
    sides[rounded.key] = side(rounded, 1.0 + 100 * EPS)
    sides[other.key] = side(other, 1.0 + steps * EPS)
    found = verdicts([base, other], sides, files=files).agreements()
    across = next(item for item in found if item.b == in_float64(graph="ba5e").key
                  and item.a == other.key)  # fmt: skip
    assert across.verdict == expected
    assert across.evidence is not None
    assert across.evidence.narrow_rms == pytest.approx(100 * EPS)
