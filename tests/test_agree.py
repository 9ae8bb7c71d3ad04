"""Who is held against whom, by what evidence: a matrix written by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from xbench import agree, registry
from xbench.spec import Case
from xbench.verdict import Side

EPS = float(np.finfo(np.float32).eps)
SHAPES = {"x": (2, 3), "y": (5,)}


def case(label: str, phase: str = "infer") -> Case:
    """The case that its label names: ``ort(tf) cuda fp64``."""
    engine, device, precision = (*label.split(), "fp32")[:3]
    engine, _, source = engine.rstrip(")").partition("(")
    return Case(
        model="m", size="tiny", phase=phase, engine=engine, source=source or None, device=device,
        precision=precision, shape=SHAPES,
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


def labels(pairs: list[agree.Pair]) -> list[tuple[str, str, str | None]]:
    return [(p.a.label, p.b.label, p.source.label if p.source else None) for p in pairs]


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
    found = labels(agree.pairs(cases(*ALL), NATIVES))
    assert found[0] == ("tf cpu fp64", "torch cpu fp64", None)


def test_phases_are_not_mixed() -> None:
    found = agree.pairs([case("tf cpu"), case("tf cpu", "train")], NATIVES)
    assert len(found) == 6
    assert all(pair.a.phase == pair.b.phase for pair in found)
    assert all(pair.source.phase == pair.a.phase for pair in found if pair.source)


def test_without_a_native_engine_nothing_can_be_judged() -> None:
    assert agree.pairs(cases(*ALL), []) == []
    assert agree.witnesses(cases(*ALL), []) == []
    assert agree.agreements(cases(*ALL), {}, []) == []


def test_with_tensorflow_alone_it_is_the_reference() -> None:
    found = labels(agree.pairs(cases("tf cpu", "tf cuda", "ort(tf) cpu"), ["tf"]))
    assert set(found) == {
        ("tf cpu", "tf cpu fp64", None),
        ("tf cuda", "tf cpu fp64", "tf cpu"),
        ("tf cuda", "tf cpu", "tf cpu"),
        ("ort(tf) cpu", "tf cpu fp64", "tf cpu"),
        ("ort(tf) cpu", "tf cpu", "tf cpu"),
    }


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
    ],
)
def test_witnesses_are_what_the_verdicts_need_and_nobody_asked_for(
    asked: list[str], needed: set[str]
) -> None:
    found = [item.label for item in agree.witnesses(cases(*asked), NATIVES)]
    assert len(found) == len(set(found))
    assert set(found) == needed


def test_a_witness_computes_what_the_case_computes() -> None:
    odd = Case(
        model="n", size="full", phase="train", engine="ort", source="tf", device="cuda", threads=3,
        batch=7, shape=SHAPES, loss="L", seed=9, options={"level": "1"},
    )  # fmt: skip
    for witness in (agree.double(odd, "torch"), agree.single(odd, "torch")):
        assert (witness.engine, witness.source, witness.device) == ("torch", None, "cpu")
        assert witness.options == {}
        same = ("model", "size", "phase", "threads", "batch", "shape", "loss", "seed")
        assert [getattr(witness, name) for name in same] == [getattr(odd, name) for name in same]
    assert agree.double(odd, "torch").precision == "fp64"
    assert agree.single(odd, "torch").precision == "fp32"


def test_options_make_a_case_another_than_the_source() -> None:
    tuned = Case(model="m", size="tiny", phase="infer", engine="torch", device="cpu",
                 shape=SHAPES, options={"tf32": "on"})  # fmt: skip
    (pair,) = agree.pairs([tuned], NATIVES)
    assert pair.source is not None
    assert pair.source.options == {}


# -- the verdicts on pairs ----------------------------------------------------------------------


def side(label: str, value: float = 1.0, spread: float | None = None) -> tuple[str, Side]:
    key = case(label).key
    dtype = np.float64 if "fp64" in label else np.float32
    return key, Side(
        key=key,
        label=label,
        tensors={"outputs/y": np.full(4, value, dtype)},
        digests={"parameters": "p", "inputs": "i"},
        spread={} if spread is None else {"outputs/y": spread},
        draws=0 if spread is None else 8,
    )


def judged(sides: dict[str, Side]) -> set[tuple[str, str]]:
    found = agree.agreements(cases(*ALL), sides, NATIVES)
    names = {key: value.label for key, value in sides.items()}
    return {(names[item.a], names[item.b]) for item in found if item.verdict == "agree"}


EVERYTHING = [*ALL, "torch cpu fp64", "tf cpu fp64"]


def test_every_pair_gets_a_verdict() -> None:
    sides = dict(side(label) for label in EVERYTHING)
    assert judged(sides) == {(a, b) for a, b, _ in EXPECTED}
    found = agree.agreements(cases(*ALL), sides, NATIVES)
    assert {item.verdict for item in found} == {"agree"}


@pytest.mark.parametrize("missing", EVERYTHING)
def test_a_pair_needs_both_sides_the_source_and_the_reference(missing: str) -> None:
    sides = dict(side(label) for label in EVERYTHING if label != missing)
    expected = {(a, b) for a, b, source in EXPECTED if missing not in (a, b, source)}
    assert judged(sides) == (set() if missing == "torch cpu fp64" else expected)
    # What cannot be judged does not vanish, and says what it lacks.
    others = [a for a in agree.agreements(cases(*ALL), sides, NATIVES) if a.verdict != "agree"]
    assert len(others) + len(judged(sides)) == len(EXPECTED)
    assert {a.verdict for a in others} == {"inconclusive"}
    assert {a.sentence for a in others} == {
        f"{missing} could not be computed, so nothing was compared"
    }


def test_training_is_judged_by_loss_gradients_and_parameters() -> None:
    own = side("torch cpu")[1]
    train, double = case("torch cpu", "train"), agree.double(case("torch cpu", "train"), "torch")
    found = agree.agreements([train], {train.key: own, double.key: own}, NATIVES)
    assert [item.what for item in found] == ["loss", "gradients", "parameters"]


def test_a_side_that_is_the_source_is_held_to_the_rounding_of_a_sum_over_its_inputs() -> None:
    sides = dict(side(label) for label in ("torch cpu", "torch cpu fp64"))
    (found,) = agree.agreements(cases("torch cpu"), sides, NATIVES)
    elements = 2 * 3 + 5
    assert found.tolerance == pytest.approx(4 * EPS * math.sqrt(elements))


def test_the_spread_is_that_of_the_first_native_engine() -> None:
    sides = dict(
        [
            side("torch cpu", spread=0.25),
            side("tf cpu", spread=0.5),
            side("torch cpu fp64"),
            side("tf cpu fp64"),
            side("ort(tf) cpu", 1.2),
        ]
    )
    for found in agree.agreements(cases("ort(tf) cpu"), sides, NATIVES)[1:]:
        assert found.evidence is not None
        assert (found.evidence.spread_rms, found.evidence.draws) == (0.25, 8)
        assert found.verdict == "agree"


def test_a_wrong_side_disagrees_with_all_and_the_others_do_not() -> None:
    sides = dict(side(label, 1.5 if label == "ort(tf) cpu" else 1.0) for label in EVERYTHING)
    found = agree.agreements(cases(*ALL), sides, NATIVES)
    wrong = {(item.a, item.b) for item in found if item.verdict != "agree"}
    key = case("ort(tf) cpu").key
    assert wrong == {(key, case(b).key) for b in ("torch cpu fp64", "tf cpu")}


# -- compiled twins ------------------------------------------------------------------------------


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


# -- lower precisions ----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_lower_precision_is_measured_by_what_its_source_does_in_it(precision: str) -> None:
    asked = [f"{label} {precision}" for label in ("torch cpu", "tf cpu", "ort(tf) cuda")]
    found = labels(agree.pairs(cases(*asked), NATIVES))
    p = f" {precision}"
    assert set(found) == {
        ("tf cpu fp64", "torch cpu fp64", None),
        (f"torch cpu{p}", "torch cpu fp64", None),
        (f"tf cpu{p}", "torch cpu fp64", f"torch cpu{p}"),
        (f"tf cpu{p}", f"torch cpu{p}", f"torch cpu{p}"),
        (f"ort(tf) cuda{p}", "torch cpu fp64", f"tf cpu{p}"),
        (f"ort(tf) cuda{p}", f"tf cpu{p}", f"tf cpu{p}"),
        (f"ort(tf) cuda{p}", f"ort(tf) cpu{p}", f"ort(tf) cpu{p}"),
    }


def test_the_precision_of_the_case_sets_the_limit() -> None:
    sides = dict(side(label) for label in ("torch cpu fp16", "torch cpu fp64"))
    (found,) = agree.agreements(cases("torch cpu fp16"), sides, NATIVES)
    assert found.tolerance == pytest.approx(4 * 2**-10 * math.sqrt(2 * 3 + 5))


# -- sweeps --------------------------------------------------------------------------------------


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
        (plain, *_), swept = cases(label), [changed(label, **fields) for fields in SWEEP]
        witnesses = {c.key: c for c in agree.witnesses([plain, *swept], NATIVES)}
        own = {key for key, c in witnesses.items() if c.engine == "ort"}
        alone = {c.key for c in agree.witnesses([plain], NATIVES)}
        assert witnesses.keys() - own == alone - own
        found = agree.pairs([plain, *swept], NATIVES)
        references = {pair.reference.key for pair in found if pair.reference is not None}
        assert references == {case("torch cpu fp64").key}
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


@pytest.mark.parametrize("fields", [{"batch": 8}, {"threads": 4}, {"seed": 1}])
def test_what_changes_numbers_has_witnesses_of_its_own(fields: dict[str, Any]) -> None:
    one, other = case("ort(torch) cpu"), changed("ort(torch) cpu", **fields)
    found = agree.pairs([one, other], NATIVES)
    assert len({pair.b.key for pair in found}) == 4
    for pair in found:
        assert all(getattr(pair.b, name) == getattr(pair.a, name) for name in fields)


# -- files ---------------------------------------------------------------------------------------


def of_file(label: str = "ort(file) cpu", **fields: Any) -> Case:
    return changed(label, size="", graph="ab12", **fields)


def test_cases_of_a_file_are_held_against_the_first_and_have_no_reference() -> None:
    one, two, three = of_file(), of_file(threads=2), of_file(options={"ort-opt": "0"})
    for natives in (NATIVES, []):
        found = agree.pairs([one, two, three], natives)
        assert [(pair.a, pair.b) for pair in found] == [(two, one), (three, one)]
        assert {(pair.source, pair.reference) for pair in found} == {(None, None)}
        assert agree.witnesses([one, two, three], natives) == []
        assert agree.needed([one, two, three], natives).keys() == {one.key, two.key, three.key}


def test_a_file_that_is_run_once_is_held_against_nothing() -> None:
    assert agree.pairs([of_file()], NATIVES) == []
    assert agree.needed([of_file()], NATIVES) == {}


def test_a_file_on_cuda_is_held_against_its_cpu_twin() -> None:
    options = {"ort-opt": "1"}
    first, twin = of_file(), of_file(options=options)
    cuda = of_file("ort(file) cuda", options=options | {"provider.a": "b"}, concurrency=2)
    found = {pair.a.key: pair.b for pair in agree.pairs([first, cuda, twin], NATIVES)}
    assert found == {cuda.key: twin, twin.key: first}
    # A twin that nobody asked for is not made up.
    found = {pair.a.key: pair.b for pair in agree.pairs([first, cuda], NATIVES)}
    assert found == {cuda.key: first}
    assert agree.pairs([cuda], NATIVES) == []


@pytest.mark.parametrize(
    "fields",
    [{"graph": "cd34"}, {"shape": {"x": (9, 3)}}, {"seed": 1}, {"cycle": ({"x": (4, 3)},)}],
)
def test_other_work_of_a_file_is_not_compared(fields: dict[str, Any]) -> None:
    one, other = of_file(), msgspec.structs.replace(of_file(), **fields)
    assert agree.pairs([one, other], NATIVES) == []
    third = msgspec.structs.replace(other, threads=2)
    assert [(p.a, p.b) for p in agree.pairs([one, other, third], NATIVES)] == [(third, other)]


def test_files_and_models_of_one_run_do_not_meet() -> None:
    mixed = [*cases("torch cpu", "ort(torch) cpu"), of_file(), of_file(threads=2)]
    found = agree.pairs(mixed, NATIVES)
    for pair in found:
        assert (pair.a.source == "file") == (pair.b.source == "file") == (pair.reference is None)
    assert sum(pair.reference is None for pair in found) == 1


def test_a_file_is_judged_without_a_reference() -> None:
    one, same, other = of_file(), of_file(threads=2), of_file(threads=3)
    sides = {
        item.key: Side(
            key=item.key,
            label=item.label,
            tensors={"outputs/y": np.full(3, value, np.float32)},
            digests={"parameters": "p", "inputs": "i"},
        )
        for item, value in ((one, 1.0), (same, 1.0), (other, 1.5))
    }
    for natives in (NATIVES, []):
        found = agree.agreements([one, same, other], sides, natives)
        assert [(item.a, item.b, item.verdict) for item in found] == [
            (same.key, one.key, "agree"), (other.key, one.key, "inconclusive"),
        ]  # fmt: skip
        assert {item.evidence for item in found} == {None}
    lacking = agree.agreements([one, same], {same.key: sides[same.key]}, NATIVES)
    assert [item.verdict for item in lacking] == ["inconclusive"]
    assert "could not be computed" in lacking[0].sentence
