"""The vocabulary: layouts as permutations, cases as identities, errors that help."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import errors
from xbench.errors import EngineError, UsageError, XbenchError, unknown
from xbench.spec import Adam, Case, Constant, ModelSpec, ParameterSpec, TensorSpec, Uniform

CASE = Case(model="m", size="tiny", phase="infer", engine="torch", device="cpu")


def parameter(name: str, *shape: int) -> ParameterSpec:
    return ParameterSpec(name=name, shape=shape, init=Constant(0.0), probe=Uniform(-1.0, 1.0))


@pytest.mark.parametrize(
    ("axes", "tf_axes", "order"),
    [
        ("NTCHW", "NTHWC", (0, 1, 3, 4, 2)),
        ("OIHW", "HWIO", (2, 3, 1, 0)),
        ("NCHW", "NCHW", (0, 1, 2, 3)),
    ],
)
def test_layouts_are_these_permutations(axes: str, tf_axes: str, order: tuple[int, ...]) -> None:
    spec = TensorSpec("x", tuple(range(len(axes))), axes=axes, tf_axes=tf_axes)
    assert spec.to_tf_order == order


@given(st.permutations("ABCD"))
def test_the_way_back_undoes_the_way_there(permuted: list[str]) -> None:
    spec = TensorSpec("x", (2, 3, 5, 7), axes="ABCD", tf_axes="".join(permuted))
    array = np.arange(210).reshape(2, 3, 5, 7)
    there = spec.to_tf(array)
    sizes = dict(zip("ABCD", array.shape, strict=True))
    assert there.shape == tuple(sizes[axis] for axis in permuted)
    assert np.array_equal(spec.from_tf(there), array)
    assert np.shares_memory(there, array)


def test_a_value_moves_with_its_axes() -> None:
    spec = TensorSpec("kernel", (4, 3, 2, 5), axes="OIHW", tf_axes="HWIO")
    array = np.arange(120).reshape(4, 3, 2, 5)
    there = spec.to_tf(array)
    for o, i, h, w in itertools.product(range(4), range(3), range(2), range(5)):
        assert there[h, w, i, o] == array[o, i, h, w]


def test_without_axes_both_layouts_are_one() -> None:
    array = np.arange(6).reshape(2, 3)
    spec = TensorSpec("x", (2, 3))
    assert np.array_equal(spec.to_tf(array), array)
    assert np.array_equal(spec.from_tf(array), array)


@pytest.mark.parametrize(
    ("shape", "axes", "tf_axes"),
    [
        ((1, 2), "AB", "AC"),  # another axis
        ((1, 2), "AB", ""),  # only one side named
        ((1, 2), "", "AB"),
        ((1, 2, 3), "AB", "BA"),  # too few
        ((1, 2), "AA", "AA"),  # one letter twice
        ((1,), "AB", "BA"),  # too many
    ],
)
def test_axes_that_cannot_be_are_refused(shape: tuple[int, ...], axes: str, tf_axes: str) -> None:
    with pytest.raises(ValueError, match="kernel"):
        TensorSpec("kernel", shape, axes=axes, tf_axes=tf_axes)


def test_dynamic_axes_are_bound_by_name() -> None:
    spec = TensorSpec("x", ("batch", 3, "time"))
    assert spec.at(batch=4, time=7) == (4, 3, 7)
    with pytest.raises(KeyError):
        spec.at(batch=4)


def test_parameters_are_counted() -> None:
    def parameters(width: int) -> tuple[ParameterSpec, ...]:
        return parameter("w", width, 3, 5), parameter("b", width), parameter("scalar")

    spec = ModelSpec(
        name="m", title="", paper="", sizes={"tiny": 2, "full": 7}, batch={}, parameters=parameters,
        inputs=lambda _: (), outputs=lambda _: (), taps=lambda _: (), losses=("L",),
        optimizer=Adam(), data="",
    )  # fmt: skip
    assert spec.parameter_count("tiny") == 2 * 15 + 2 + 1
    assert spec.parameter_count("full") == 7 * 15 + 7 + 1


OTHER: dict[str, Any] = {
    "model": "n", "size": "full", "phase": "train", "engine": "tf", "device": "cuda",
    "source": "torch", "env": "other", "threads": 2, "precision": "fp64", "batch": 3,
    "shape": {"x": (2, 3)}, "cycle": ({"x": (3, 3)},), "concurrency": 2, "graph": "ab",
    "arm": "B", "draws": "native", "loss": "L0", "options": {"a": "1"}, "seed": 5,
}  # fmt: skip


def test_every_field_makes_another_case() -> None:
    assert set(OTHER) == set(Case.__struct_fields__)
    changed = [msgspec.structs.replace(CASE, **{name: value}) for name, value in OTHER.items()]
    assert len({CASE.key, *(case.key for case in changed)}) == len(OTHER) + 1


def test_equal_cases_have_one_key_whatever_the_order_of_their_options() -> None:
    one = msgspec.structs.replace(CASE, options={"a": "1", "b": "2"})
    two = msgspec.structs.replace(CASE, options={"b": "2", "a": "1"})
    assert one.key == two.key
    assert len(one.key) == 10
    assert int(one.key, 16) >= 0


def test_the_key_is_the_same_in_every_process_and_version() -> None:
    # A key that changes makes stored runs incomparable: change it on purpose or not at all.
    assert CASE.key == "03900c8fae"


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "torch cpu"),
        ({"source": "tf", "engine": "ort", "device": "cuda"}, "ort(tf) cuda"),
        ({"precision": "fp64"}, "torch cpu fp64"),
    ],
)
def test_labels(fields: dict[str, Any], label: str) -> None:
    assert msgspec.structs.replace(CASE, **fields).label == label


def test_a_case_survives_json() -> None:
    case = msgspec.structs.replace(CASE, **OTHER)
    again = msgspec.json.decode(msgspec.json.encode(case), type=Case)
    assert again == case
    assert again.key == case.key


def test_specs_cannot_be_changed() -> None:
    for value, name in ((CASE, "seed"), (TensorSpec("x", ()), "name"), (Adam(), "lr")):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def test_unknown_names_suggest_the_nearest() -> None:
    error = unknown("engine", "Trch", ["tf", "torch", "ort"])
    assert isinstance(error, UsageError)
    assert str(error) == "unknown engine 'Trch': did you mean 'torch'? known: ort, tf, torch"
    assert "did you mean 'torch'" in str(unknown("engine", "TORCH", ["tf", "torch"]))
    assert "did you mean" not in str(unknown("engine", "zzzzzz", ["tf", "torch"]))


def test_exit_statuses_and_case_statuses() -> None:
    users = {errors.XbenchError: 1, errors.UsageError: 2, errors.DataError: 1, errors.StoreError: 1}
    assert {kind: kind("x").exit_status for kind in users} == users
    engines = {
        errors.Unavailable: "unavailable",
        errors.Unsupported: "unsupported",
        errors.FellBack: "fell_back",
        errors.ExportFailed: "failed",
        errors.EngineError: "failed",
    }
    assert {kind: kind("x").status for kind in engines} == engines
    assert not issubclass(EngineError, XbenchError), "an engine's failure is data, not an exit"


def test_every_error_stands_in_the_tree_of_the_docstring() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    defined = {kind.__name__ for kind in kinds if kind.__module__ == errors.__name__}
    drawn = re.findall(r"^(?:\+-- )?(\w+)  ", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(defined)
    for kind in kinds:
        if issubclass(kind, XbenchError | EngineError):
            assert ("+-- " + kind.__name__ in str(errors.__doc__)) == (
                kind not in (XbenchError, EngineError)
            )


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=4))
def test_any_name_can_be_unknown(name: str, known: list[str]) -> None:
    assert repr(name) in str(unknown("thing", name, known))
