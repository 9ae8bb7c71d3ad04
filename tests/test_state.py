"""What a case's time is held against."""

from __future__ import annotations

from typing import Any

import pytest

from xbench.result import Measurement, Samples
from xbench.spec import Case
from xbench.state import State, references

MEASURED = Measurement(
    samples=Samples(process=0, round=0, values_s=[1.0]),
    load_s=1.0,
    compile_s=None,
    first_run_s=1.0,
    peak_memory_bytes=1,
    placement=[],
)


def state(engine: str, *, measured: bool = True, **fields: Any) -> State:
    common: dict[str, Any] = {"model": "m", "size": "tiny", "phase": "infer", "device": "cpu"}
    found = State(Case(engine=engine, **(common | fields)))
    found.measurements += [MEASURED] if measured else []
    return found


def held_against(*states: State, against: dict[str, str] | None = None) -> list[int | None]:
    """The place of each state's reference among the states."""
    found = references(states, ["torch", "tf"], against or {})
    return [None if to is None else states.index(to) for to in found]


def test_the_first_native_engine_is_the_reference_wherever_it_stands() -> None:
    assert held_against(state("ort"), state("torch"), state("tf")) == [1, None, 1]
    cuda = state("torch", device="cuda")
    assert held_against(cuda, state("torch"), state("ort")) == [1, None, 1]


def test_without_a_native_engine_it_is_the_first_that_was_measured() -> None:
    lost = state("ort", measured=False)
    assert held_against(lost, state("ort", threads=2), state("ort", threads=3)) == [1, None, 1]


def test_every_setting_has_its_own_reference_and_they_are_held_against_the_first() -> None:
    states = [state(e, threads=t) for t in (1, 2) for e in ("torch", "ort")]
    assert held_against(*states) == [None, 0, 0, 2]


@pytest.mark.parametrize("field", ["batch", "concurrency"])
def test_other_work_is_not_compared(field: str) -> None:
    more: dict[str, Any] = {field: 2}
    assert held_against(state("ort"), state("ort", **more)) == [None, None]


def test_phases_and_models_are_apart() -> None:
    states = [state("torch"), state("torch", phase="train"), state("torch", model="n")]
    assert held_against(*states) == [None, None, None]


def test_named_references_are_those_and_no_others() -> None:
    a, b = state("torch", arm="A"), state("ort", arm="B")
    assert held_against(a, b, against={b.case.key: a.case.key}) == [None, 0]


def test_what_draws_its_masks_is_held_against_what_does_too() -> None:
    """A ratio of fed to native would hold the cost of drawing beside the framework's speed."""
    states = [state(engine, draws=d) for engine in ("torch", "tf") for d in ("fed", "native")]
    assert held_against(*states) == [None, 0, 0, 1]
