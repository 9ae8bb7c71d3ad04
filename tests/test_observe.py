"""What is compared: which body is run from which parameters, and how far apart two of them are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xbench import bench, draws, observe, registry
from xbench.errors import EngineError, Unsupported
from xbench.result import Placement, Profile
from xbench.runners.base import Array, Arrays, Runner, Trained, Work
from xbench.spec import FILE, Adam, Case, ModelSpec, TensorSpec

NAMES = ("first", "second")
SPEC = ModelSpec(
    name="line", title="", paper="", sizes={"tiny": None}, batch={"tiny": 1},
    parameters=lambda _: (), inputs=lambda _: (TensorSpec("x", (2,)),),
    outputs=lambda _: (TensorSpec("y", (2,)),),
    taps=lambda _: tuple(TensorSpec(name, (2,)) for name in NAMES),
    losses=("sum",), optimizer=Adam(), data="",
)  # fmt: skip
RATE = 0.25


class Line(Runner):
    """y = w x; the loss is the sum of y, the gradient of w is x; steps are recorded.

    A step moves ``w`` by ``RATE`` times the gradient, and more with every step since ``bind``, as
    an optimizer with a state does.
    """

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__("line")
        self.gain = gain
        self.bound: list[Array] = []
        self.trained: list[int] = []
        self.moves: list[tuple[int, int]] = []
        self.infinite = False

    def probe(self, device: str) -> dict[str, str]:
        return {}

    def load(self, work: Work) -> None:
        self.work = work
        self.w = work.parameters.get("w", np.ones(2, np.float32))
        self.age = 0

    def run(self) -> None: ...

    def placement(self) -> list[Placement]:
        return []

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        raise Unsupported("nothing to profile")

    def bind(self, parameters: Arrays) -> None:
        self.w, self.age = parameters["w"], 0
        self.bound.append(self.w)

    def move(self, seed: int, ulps: int) -> None:
        self.moves.append((seed, ulps))
        self.w = np.ones(2, np.float32) * np.float32(1 + 0.5 * len(self.moves))

    def infer(self, batch: int = 0) -> Arrays:
        y = self.w * self.work.batches[batch]["x"] * np.float32(self.gain)
        return {"y": y * np.float32(np.inf) if self.infinite else y, "none": np.zeros(0)}

    def taps(self) -> Arrays:
        return {"second": self.w * 2, "first": self.w, "unlisted": self.w}

    def train(self, steps: Sequence[int]) -> Trained:
        losses, gradients = [], []
        for step in steps:
            self.trained.append(step)
            self.age += 1
            x = self.work.batches[step]["x"]
            losses.append(float((self.w * x).sum()) * (float("nan") if self.infinite else 1.0))
            gradients.append({"w": x})
            self.w = (self.w - RATE * self.age * x).astype(self.w.dtype)
        return Trained(losses, gradients, {"w": self.w})


def work(phase: str = "infer", *, batches: int = 3, bare: bool = False, **fields: Any) -> Work:
    """A case on batches x = (1, 2), (2, 4), ... with w = (1, 3); ``bare`` has no parameters."""
    case = Case(model="line", size="tiny", phase=phase, engine="line", device="cpu", **fields)
    return Work(
        case=case,
        spec=SPEC,
        config=None,
        parameters={} if bare else {"w": np.array([1, 3], np.float32)},
        batches=[{"x": np.array([1, 2], np.float32) * (k + 1)} for k in range(batches)],
        graph=None,
        folder=Path(),
    )


def loaded(given: Work, gain: float = 1.0) -> Line:
    runner = Line(gain)
    runner.load(given)
    return runner


def lists(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in tensors.items()}


# -- inference -------------------------------------------------------------------------------------


def test_outputs_of_the_first_batch() -> None:
    given = work()
    found = observe.observe(loaded(given), given, every_batch=False, taps=False)
    assert lists(found) == {"outputs/y": [1.0, 6.0], "outputs/none": []}


def test_outputs_of_every_batch() -> None:
    given = work()
    found = observe.observe(loaded(given), given, every_batch=True, taps=False)
    assert [name for name in found if "none" not in name] == [
        "outputs/y", "outputs/y@1", "outputs/y@2",
    ]  # fmt: skip
    assert found["outputs/y@2"].tolist() == [3.0, 18.0]


def test_taps_come_in_the_order_of_computation() -> None:
    given = work()
    found = observe.observe(loaded(given), given, every_batch=False, taps=True)
    assert list(found) == ["outputs/y", "outputs/none", "taps/first", "taps/second"]


# -- training --------------------------------------------------------------------------------------


def test_forced_steps_begin_where_they_are_told() -> None:
    given = work("train")
    runner = loaded(given)
    states = [{"w": np.array([k, 10 * k], np.float32)} for k in (1, 2, 5)]
    found = observe.forced(runner, given, states)
    assert lists(found) == {
        "loss/0": 1 * 1 + 10 * 2,
        "gradients/0/w": [1, 2],
        "loss/1": 2 * 2 + 20 * 4,
        "gradients/1/w": [2, 4],
        "loss/2": 5 * 3 + 50 * 6,
        "gradients/2/w": [3, 6],
    }
    assert [w.tolist() for w in runner.bound] == [[1, 10], [2, 20], [5, 50]]
    assert runner.trained == [0, 1, 2], "each on its own batch"


def test_forced_is_not_told_by_what_was_trained_before() -> None:
    given = work("train")
    states = [{"w": np.array([k, k], np.float32)} for k in (1, 2)]
    fresh, used = loaded(given), loaded(given)
    used.train(range(3))
    assert lists(observe.forced(fresh, given, states)) == lists(observe.forced(used, given, states))


def test_without_states_only_the_first_step_is_forced() -> None:
    given = work("train")
    runner = loaded(given)
    found = observe.forced(runner, given, ())
    assert lists(found) == {"loss/0": 7.0, "gradients/0/w": [1.0, 2.0]}
    assert runner.trained == [0]


def test_free_training_follows_its_own_course() -> None:
    given = work("train")
    found = observe.free(loaded(given), given, {"w": np.array([1, 3], np.float32)})
    # w: (1, 3), (0.75, 2.5), (-0.25, 0.5), (-2.5, -4): steps grow with age.
    assert lists(found) == {
        "trajectory/loss/0": 7.0,
        "trajectory/loss/1": 0.75 * 2 + 2.5 * 4,
        "trajectory/loss/2": -0.25 * 3 + 0.5 * 6,
        "trajectory/w": [-2.5, -4.0],
    }


def test_training_is_compared_by_forced_steps_and_a_free_course() -> None:
    given = work("train", batches=2)
    states = [{"w": np.array([1, 3], np.float32)}, {"w": np.array([9, 9], np.float32)}]
    runner = loaded(given)
    found = observe.observe(runner, given, every_batch=False, taps=False, states=states)
    assert list(found) == [
        "loss/0", "gradients/0/w", "loss/1", "gradients/1/w",
        "trajectory/loss/0", "trajectory/loss/1", "trajectory/w",
    ]  # fmt: skip
    assert found["loss/1"] == 9 * 2 + 9 * 4
    assert found["trajectory/loss/1"] == 0.75 * 2 + 2.5 * 4, "not from the states"
    assert runner.trained == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", "float32"), ("fp64", "float64"), ("bf16", "float32"), ("fp16", "float32")],
)
def test_losses_are_held_in_the_type_of_the_case(precision: str, dtype: str) -> None:
    given = work("train", precision=precision)
    found = observe.observe(loaded(given), given, every_batch=False, taps=False)
    losses = [value for name, value in found.items() if "loss" in name]
    assert len(losses) == 4
    assert {(value.dtype.name, value.shape) for value in losses} == {(dtype, ())}


@pytest.mark.parametrize(
    "train",
    [
        lambda runner, given: observe.forced(runner, given, ()),
        lambda runner, given: observe.free(runner, given, given.parameters),
        lambda runner, given: made_by(runner, given),
    ],
)
def test_a_loss_that_is_not_finite_is_an_error(train: Callable[[Runner, Work], object]) -> None:
    given = work("train")
    runner = loaded(given)
    runner.infinite = True
    with pytest.raises(EngineError, match="the loss is not finite: nan"):
        train(runner, given)


def made_by(runner: Any, given: Work) -> list[Arrays]:
    """The states that free training makes on its way."""
    made: list[Arrays] = []
    observe.free(runner, given, given.parameters, made)
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_are_the_parameters_before_each_step(dtype: Any) -> None:
    given = work("train")
    runner = loaded(given)
    start = given.parameters["w"].astype(dtype)
    given = Work(
        case=given.case, spec=SPEC, config=None, parameters={"w": start}, batches=given.batches,
        graph=None, folder=Path(),
    )  # fmt: skip
    found = made_by(runner, given)
    assert [lists(state) for state in found] == [
        {"w": [1, 3]}, {"w": [0.75, 2.5]}, {"w": [-0.25, 0.5]},
    ]  # fmt: skip
    assert {state["w"].dtype for state in found[1:]} == {np.dtype(np.float32)}
    assert runner.trained == [0, 1, 2]
    assert len(runner.bound) == 1, "the state of the optimizer goes on"


def test_states_of_one_batch_are_the_start() -> None:
    given = work("train", batches=1)
    runner = loaded(given)
    assert [lists(state) for state in made_by(runner, given)] == [lists(given.parameters)]
    assert runner.trained == [0]


def test_a_forced_step_from_the_states_is_the_free_step_of_who_made_them() -> None:
    given = work("train")
    states = made_by(loaded(given), given)
    found = observe.observe(loaded(given), given, every_batch=False, taps=False, states=states)
    for step in range(3):
        assert found[f"loss/{step}"] == found[f"trajectory/loss/{step}"]


# -- the same, or how far apart --------------------------------------------------------------------


BASE: Arrays = {
    "a": np.array([1.0, 2.0], np.float32), "b": np.array([1, 2]), "c": np.zeros(0, np.float32),
}  # fmt: skip


def changed(**arrays: Any) -> Arrays:
    return BASE | {name: np.asarray(value) for name, value in arrays.items()}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({}, []),
        ({"a": np.array([1.0, 2.0], np.float64)}, ["a"]),
        ({"a": np.array([[1.0, 2.0]], np.float32)}, ["a"]),
        ({"a": np.array([1.0, np.nextafter(np.float32(2), np.float32(3))], np.float32)}, ["a"]),
        ({"a": np.array([-1.0, 2.0], np.float32), "b": np.array([1, 3])}, ["a", "b"]),
        ({"c": np.zeros((0, 2), np.float32)}, ["c"]),
    ],
)
def test_what_another_process_made_differently(other: Arrays, names: list[str]) -> None:
    assert observe.unlike(changed(**other), observe.bits(BASE)) == names


def test_zeros_of_other_signs_and_strides_are_told_apart_by_bits_alone() -> None:
    grid: Array = np.arange(6.0).reshape(2, 3)
    assert observe.unlike({"a": np.asfortranarray(grid)}, observe.bits({"a": grid})) == []
    zeros: list[Arrays] = [{"a": np.array([0.0])}, {"a": np.array([-0.0])}]
    assert observe.unlike(zeros[0], observe.bits(zeros[1])) == ["a"]


def test_what_has_no_digest_elsewhere_is_not_the_same() -> None:
    digests = observe.bits({name: BASE[name] for name in ("a", "b")})
    assert observe.unlike(BASE, digests) == ["c"]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, {}),
        ({"a": np.array([1.0, 4.0], np.float32)}, {"a": 2.0**0.5}),
        ({"a": np.array([1.0, 4.0], np.float32), "b": np.array([4, 5])}, {"a": 2**0.5, "b": 3.0}),
        ({"a": np.array([1.0, np.nan], np.float32)}, {"a": np.inf}),
        ({"a": np.array([np.inf, 2.0], np.float32)}, {"a": np.inf}),
        ({"a": np.ones(3, np.float32)}, {"a": np.inf}),
    ],
)
def test_how_far_a_second_run_is_from_the_first(other: Arrays, found: dict[str, float]) -> None:
    assert observe.differences(BASE, changed(**other)) == pytest.approx(found)


def test_nan_in_the_same_places_is_no_difference() -> None:
    nan: Arrays = {"a": np.array([np.nan, 1.0])}
    assert observe.differences(nan, {"a": nan["a"].copy()}) == {}


# -- spread ----------------------------------------------------------------------------------------


class Ticks:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.times: Iterator[float] = iter(range(10_000))

    def __call__(self) -> float:
        return float(next(self.times))


def spread(
    given: Work, runner: Line, perturbations: int = 8, budget_s: float = 1e9, **more: Any
) -> tuple[dict[str, float], int]:
    states = more.get("states", ())
    tensors = observe.observe(runner, given, every_batch=True, taps=False, states=states)
    return observe.spread(
        runner, given, tensors, perturbations, budget_s, every_batch=True, states=states
    )


@pytest.mark.parametrize(
    ("perturbations", "budget_s", "draws_"),
    [(8, 1e9, 8), (8, 3.5, 5), (8, 0.0, 2), (1, 0.0, 1), (0, 1e9, 0)],
)
def test_at_least_two_draws_then_more_while_the_budget_lasts(
    monkeypatch: pytest.MonkeyPatch, perturbations: int, budget_s: float, draws_: int
) -> None:
    given = work()
    runner = loaded(given)
    monkeypatch.setattr(bench, "now", Ticks())
    found, done = spread(given, runner, perturbations, budget_s)
    assert done == draws_
    assert len(runner.bound) == draws_
    assert bool(found) == bool(draws_)


def test_the_spread_is_the_largest_change_of_all_draws() -> None:
    given = work()
    runner = loaded(given)
    found, _ = spread(given, runner)
    w, x = given.parameters["w"], [batch["x"] for batch in given.batches]
    for name, batch in (("outputs/y", 0), ("outputs/y@2", 2)):
        moved = [(bound * x[batch]).astype(np.float64) - w * x[batch] for bound in runner.bound]
        changes = [float(np.sqrt(np.mean(step**2))) for step in moved]
        assert found[name] == pytest.approx(max(changes), rel=1e-6)
    assert found["outputs/y"] > 0


def test_every_parameter_moves_by_one_ulp_and_draws_differ() -> None:
    given = work()
    runner = loaded(given)
    spread(given, runner)
    for moved in runner.bound:
        neighbours = [np.nextafter(given.parameters["w"], np.float32(way)) for way in (0, 9)]
        assert all(a in pair for a, pair in zip(moved, zip(*neighbours, strict=True), strict=True))
    assert len({tuple(moved.tolist()) for moved in runner.bound}) > 1


def test_draws_depend_on_the_seed_of_the_case_alone() -> None:
    bound = []
    for seed in (0, 0, 1):
        given = work(seed=seed)
        runner = loaded(given)
        spread(given, runner, 8)
        bound.append([moved.tolist() for moved in runner.bound])
    assert bound[0] == bound[1] != bound[2]


@pytest.mark.parametrize(
    ("precision", "ulps"), [("fp32", 1), ("fp64", 1), ("bf16", 1 << 16), ("fp16", 1 << 13)]
)
def test_an_ulp_is_one_of_the_precision_of_the_case(precision: str, ulps: int) -> None:
    given = work(precision=precision)
    runner = loaded(given)
    spread(given, runner, 2)
    expected = [
        draws.perturb(given.parameters["w"], seed=1000 * k, name="w", ulps=ulps) for k in (1, 2)
    ]
    assert [moved.tolist() for moved in runner.bound] == [value.tolist() for value in expected]
    step = abs(float(runner.bound[0][0]) - 1.0)
    eps = {"fp32": 2.0**-23, "fp64": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}[precision]
    assert step in (eps, eps / 2), "1.0 is a power of two: a step down is half of one up"


def test_parameters_in_a_file_are_moved_by_the_runner() -> None:
    given = work(bare=True, source=FILE, seed=5)
    runner = loaded(given)
    found, done = spread(given, runner, 3)
    assert done == 3
    assert runner.moves == [(1005, 1), (2005, 1), (3005, 1)]
    assert runner.bound == []
    # (1.5 - 1), (2 - 1), (2.5 - 1) times x = (1, 2): the last is the largest.
    assert found["outputs/y"] == pytest.approx(1.5 * 2.5**0.5)


def test_a_runner_that_cannot_move_a_file_says_so() -> None:
    class Fixed(Line):
        move = Runner.move

    given = work(bare=True)
    runner = Fixed()
    runner.load(given)
    with pytest.raises(Unsupported, match="cannot move the parameters in a file"):
        spread(given, runner)


def test_a_draw_that_is_not_finite_says_nothing() -> None:
    """An infinite spread would excuse everything."""
    given = work()
    runner = loaded(given)
    tensors = observe.outputs(runner, given, every_batch=False)
    runner.infinite = True
    found, done = observe.spread(runner, given, tensors, 4, 1e9, every_batch=False)
    assert (found, done) == ({}, 4)


def test_training_moves_states_by_one_ulp_and_the_free_course_by_sixteen() -> None:
    given = work("train", batches=2)
    states = [{"w": np.array([k, 3 * k], np.float32)} for k in (1, 5)]
    runner = loaded(given)
    tensors = observe.observe(runner, given, every_batch=False, taps=False, states=states)
    runner.bound.clear()
    found, done = observe.spread(runner, given, tensors, 1, 1e9, every_batch=False, states=states)
    assert done == 1
    near = [draws.perturb(state["w"], seed=1000, name="w", ulps=1) for state in states]
    far = draws.perturb(given.parameters["w"], seed=1000, name="w", ulps=observe.TRAJECTORY_ULPS)
    assert [moved.tolist() for moved in runner.bound] == [w.tolist() for w in (*near, far)]
    assert set(found) == set(tensors)
    assert found["gradients/0/w"] == 0.0, "x does not depend on w"
    change = (far - given.parameters["w"]) @ given.batches[0]["x"]
    assert found["trajectory/loss/0"] == pytest.approx(abs(float(change)))


def test_training_without_states_moves_the_start() -> None:
    given = work("train")
    runner = loaded(given)
    tensors = observe.observe(runner, given, every_batch=False, taps=False)
    runner.bound.clear()
    observe.spread(runner, given, tensors, 1, 1e9, every_batch=False)
    near = draws.perturb(given.parameters["w"], seed=1000, name="w", ulps=1)
    assert runner.bound[0].tolist() == near.tolist()
    assert len(runner.bound) == 2


# -- with the runner of the tests ------------------------------------------------------------------


def fake(phase: str, **fields: Any) -> tuple[Runner, Work]:
    """The fake runner on a real model: it predicts the mean, times a number of its parameters."""
    spec = registry.model("prednet")
    frames: Array = np.linspace(0, 1, 2 * 4 * 3 * 32 * 40, dtype=np.float32)
    case = Case(model="prednet", size="tiny", phase=phase, engine="fake", device="cpu", **fields)
    given = Work(
        case=case, spec=spec, config=registry.config(spec, "tiny"),
        parameters=draws.parameters(spec, "tiny", "probe", 0),
        batches=[{"frames": part} for part in frames.reshape(2, 1, 4, 3, 32, 40)],
        graph=None, folder=Path(),
    )  # fmt: skip
    runner: Runner = registry.load(registry.engine("fake").module).make("fake")
    runner.load(given)
    return runner, given


def test_a_model_has_its_outputs_and_every_tap() -> None:
    runner, given = fake("infer")
    found = observe.observe(runner, given, every_batch=True, taps=True)
    outputs = [spec.name for spec in given.spec.outputs(given.config)]
    taps = [spec.name for spec in given.spec.taps(given.config)]
    assert taps
    assert list(found) == [
        *(f"outputs/{name}" for name in outputs), *(f"outputs/{name}@1" for name in outputs),
        *(f"taps/{name}" for name in taps),
    ]  # fmt: skip


@pytest.mark.parametrize("phase", ["infer", "train"])
def test_a_planted_error_is_beyond_the_spread_and_a_repeat_is_not(phase: str) -> None:
    runner, given = fake(phase)
    first = observe.observe(runner, given, every_batch=False, taps=False)
    again = observe.observe(runner, given, every_batch=False, taps=False)
    assert observe.differences(first, again) == {}
    found, done = observe.spread(runner, given, first, 2, 1e9, every_batch=False)
    assert done == 2
    wrong_runner, wrong_given = fake(phase, options={"error": "0.01"})
    wrong = observe.observe(wrong_runner, wrong_given, every_batch=False, taps=False)
    apart = observe.differences(first, wrong)
    kinds = {name.partition("/")[0] for name in apart}
    assert kinds == ({"outputs"} if phase == "infer" else {"loss", "gradients", "trajectory"})
    assert all(distance > 100 * found[name] for name, distance in apart.items())
