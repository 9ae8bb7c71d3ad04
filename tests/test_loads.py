"""Cycles of shapes, threads at once, a soak: under clocks that only bodies move."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from xbench import bench, environment, loads
from xbench.bench import WINDOW, Body, Settings
from xbench.loads import KEPT, WINDOWS, concurrent, cycle, soak, whole
from xbench.result import Samples, SoakWindow
from xbench.stats import MIN_FOR_P99

STEP_S = 2.0**-6
"""Powers of two, so that sums of them are exact."""
PATIENCE_S = 60.0
"""Reached only by threads that do not run at once."""


class Clock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# -- shapes in turn ------------------------------------------------------------------------------


class Shapes:
    """Bodies that last what ``durations`` say; remembers the order of everything."""

    def __init__(self, *durations: float, prepare_s: float = 16.0) -> None:
        self.clock = Clock()
        self.durations = durations
        self.prepare_s = prepare_s
        self.log: list[str] = []
        self.slow_until = 0
        self.collecting: set[bool] = set()

    def bodies(self) -> list[tuple[Body, Body]]:
        def pair(index: int) -> tuple[Body, Body]:
            def prepare() -> None:
                self.clock.now_s += self.prepare_s
                self.log.append(f"prepare {index}")

            def body() -> None:
                factor = 8 if len(self.log) < self.slow_until else 1
                self.clock.now_s += factor * self.durations[index]
                self.log.append(f"body {index}")
                self.collecting.add(gc.isenabled())

            return prepare, body

        return [pair(index) for index in range(len(self.durations))]

    def cycle(self, **settings: float) -> list[Samples]:
        return cycle(
            self.bodies(),
            Settings(**settings),  # type: ignore[arg-type]
            process=3,
            round_=5,
            clock=self.clock,
        )


def test_every_shape_has_its_own_times_and_what_comes_before_is_not_in_them() -> None:
    shapes = Shapes(STEP_S, 3 * STEP_S, 2 * STEP_S)
    found = shapes.cycle(budget_s=1000.0)
    assert [set(part.values_s) for part in found] == [{STEP_S}, {3 * STEP_S}, {2 * STEP_S}]
    assert {(part.process, part.round, part.per_sample) for part in found} == {(3, 5, 1)}
    assert {len(part.values_s) for part in found} == {len(found[0].values_s)}
    assert all(part.steady for part in found)
    assert shapes.collecting == {False}


def test_the_shapes_come_in_turn_each_after_its_preparation() -> None:
    shapes = Shapes(STEP_S, STEP_S)
    found = shapes.cycle(budget_s=1000.0)
    turns = found[0].warmup + len(found[0].values_s)
    assert shapes.log == ["prepare 0", "body 0", "prepare 1", "body 1"] * turns


def test_short_shapes_are_timed_singly() -> None:
    found = Shapes(2.0**-20, 2.0**-21, prepare_s=0.0).cycle(budget_s=2.0**-12, min_samples=9)
    assert [(part.per_sample, set(part.values_s)) for part in found] == [
        (1, {2.0**-20}), (1, {2.0**-21}),
    ]  # fmt: skip


def test_a_flat_cycle_warms_up_for_two_windows() -> None:
    found = Shapes(STEP_S, STEP_S, prepare_s=0.0).cycle(budget_s=100.0)
    assert {part.warmup for part in found} == {2 * WINDOW}


def test_no_cycle_of_the_warm_up_is_among_the_samples() -> None:
    shapes = Shapes(STEP_S, 2 * STEP_S, prepare_s=0.0)
    shapes.slow_until = 10
    found = shapes.cycle(budget_s=100.0)
    assert found[0].warmup > 5
    assert [set(part.values_s) for part in found] == [{STEP_S}, {2 * STEP_S}]


def test_the_warm_up_of_a_cycle_takes_at_most_half_of_the_budget() -> None:
    shapes = Shapes(1.0, 1.0, prepare_s=0.0)
    assert {part.warmup for part in shapes.cycle(budget_s=8.0)} == {2}
    assert shapes.clock.now_s == 2 * 2 + 2 * 4, "four cycles are the least, also beyond the budget"


@pytest.mark.parametrize("least", [1, 7])
def test_the_least_number_of_cycles(least: int) -> None:
    found = Shapes(8.0, 8.0).cycle(budget_s=1.0, min_samples=least)
    assert [len(part.values_s) for part in found] == [least, least]


def test_the_largest_number_of_cycles() -> None:
    found = Shapes(STEP_S, STEP_S).cycle(budget_s=1e9, max_samples=11)
    assert [len(part.values_s) for part in found] == [11, 11]


@pytest.mark.parametrize("budget_s", [1e-9, 1e9])
@pytest.mark.parametrize("iterations", [1, 5, 300])
def test_exactly_as_many_cycles_as_asked_for(iterations: int, budget_s: float) -> None:
    found = Shapes(STEP_S, STEP_S).cycle(budget_s=budget_s, iterations=iterations)
    assert [len(part.values_s) for part in found] == [iterations, iterations]


def test_a_cycle_that_keeps_drifting_is_not_steady() -> None:
    shapes = Shapes(STEP_S, STEP_S, prepare_s=0.0)
    count = 0

    def slower() -> None:
        nonlocal count
        count += 1
        shapes.clock.now_s += STEP_S * 1.05**count

    pair: tuple[Body, Body] = (lambda: None, slower)
    found = cycle([pair, pair], Settings(budget_s=64.0), process=0, round_=0, clock=shapes.clock)
    assert len(found[0].values_s) >= 2 * WINDOW
    assert not any(part.steady for part in found)


def test_the_whole_of_a_cycle_is_the_sum_of_its_shapes() -> None:
    parts = [
        Samples(process=1, round=2, values_s=[1.0, 2.0], warmup=6, steady=False),
        Samples(process=1, round=2, values_s=[10.0, 20.0], warmup=6, steady=False),
        Samples(process=1, round=2, values_s=[100.0, 200.0], warmup=6, steady=False),
    ]
    assert whole(parts) == Samples(
        process=1, round=2, values_s=[111.0, 222.0], warmup=6, steady=False
    )
    with pytest.raises(ValueError, match="zip"):
        whole([*parts, Samples(process=1, round=2, values_s=[1.0])])


# -- threads at once -----------------------------------------------------------------------------


class Watches:
    """A clock for every thread; ``body`` moves only the one of the thread that calls it."""

    def __init__(self, duration: Callable[[int], float] = lambda _: STEP_S) -> None:
        self.duration = duration
        self.own = threading.local()
        self.lock = threading.Lock()
        self.calls: Counter[int] = Counter()
        self.collecting: set[bool] = set()

    def __call__(self) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return float(getattr(self.own, "now_s", 0.0))

    def body(self) -> None:
        with self.lock:
            number = self.calls[threading.get_ident()]
            self.calls[threading.get_ident()] += 1
            self.collecting.add(gc.isenabled())
        self.own.now_s = getattr(self.own, "now_s", 0.0) + self.duration(number)

    def run(self, threads: int, **settings: float) -> tuple[Samples, float]:
        return concurrent(
            self.body,
            threads,
            Settings(budget_s=settings.pop("budget_s", 1e-3), **settings),  # type: ignore[arg-type]
            process=3,
            round_=5,
            clock=self,
        )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_threads_are_inside_the_body_at_once(threads: int) -> None:
    """A meeting of all is only possible where all are called at the same time."""
    meeting = threading.Barrier(threads)
    seen = threading.local()

    def body() -> None:
        seen.calls = getattr(seen, "calls", 0) + 1
        if seen.calls <= 3:
            meeting.wait(PATIENCE_S)

    samples, _ = concurrent(
        body, threads, Settings(budget_s=1e-3, iterations=4), process=0, round_=0
    )
    assert len(samples.values_s) == 4 * threads


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("iterations", [1, 25])
def test_every_thread_makes_exactly_as_many_calls_as_asked_for(
    threads: int, iterations: int
) -> None:
    watches = Watches()
    samples, _ = watches.run(threads, iterations=iterations)
    assert samples.values_s == [STEP_S] * (threads * iterations)
    assert (samples.process, samples.round, samples.per_sample) == (3, 5, 1)
    assert len(watches.calls) == threads
    # Whatever else was called was warm-up, and is counted as such.
    assert sum(watches.calls.values()) == threads * iterations + samples.warmup
    assert min(watches.calls.values()) >= iterations
    assert watches.collecting == {False}


@pytest.mark.parametrize("threads", [1, 4])
def test_the_rate_is_the_sum_of_the_threads(threads: int) -> None:
    _, per_s = Watches().run(threads, iterations=20)
    assert per_s == pytest.approx(threads / STEP_S)


def test_without_iterations_every_thread_makes_at_least_a_few_calls() -> None:
    watches = Watches()
    samples, per_s = watches.run(3, budget_s=1e-6, min_samples=7)
    assert len(samples.values_s) >= 3 * 7
    assert per_s == pytest.approx(3 / STEP_S), "a call that was under way at the end is whole"


def test_times_are_those_of_single_calls() -> None:
    def uneven(number: int) -> float:
        return (1 + number % 2) * STEP_S

    samples, _ = Watches(uneven).run(2, iterations=50)
    assert set(samples.values_s) == {STEP_S, 2 * STEP_S}
    assert samples.values_s.count(STEP_S) == 50, "neither two calls at once nor any pause"


@pytest.mark.parametrize("iterations", [None, 1000])
@pytest.mark.parametrize("call", [0, 3])
def test_what_one_thread_raises_ends_all_and_is_raised(call: int, iterations: int | None) -> None:
    lock = threading.Lock()
    calls: Counter[int] = Counter()

    def body() -> None:
        with lock:
            own = calls[threading.get_ident()]
            calls[threading.get_ident()] += 1
            last = len(calls) == 3 and own >= call and threading.get_ident() == max(calls)
        if last:
            raise MemoryError("planted")

    settings = Settings(budget_s=PATIENCE_S, iterations=iterations)
    enabled = gc.isenabled()
    before = threading.active_count()
    with pytest.raises(MemoryError, match="planted"):
        concurrent(body, 3, settings, process=0, round_=0)
    assert threading.active_count() == before
    assert gc.isenabled() is enabled


def test_the_calls_that_are_kept_are_the_last_ones_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``Samples`` holds times in the order they were taken: rest is found by halves of them."""
    monkeypatch.setattr(loads, "MAX_CALLS", 8)
    watches = Watches(float)
    samples, _ = watches.run(2, iterations=10)
    assert len(samples.values_s) == 8
    for own in (samples.values_s[:4], samples.values_s[4:]):
        assert own[0] >= 6.0
        assert own == [own[0], own[0] + 1, own[0] + 2, own[0] + 3]


def test_threads_whose_calls_keep_getting_longer_are_not_steady() -> None:
    flat, _ = Watches().run(2, iterations=40)
    assert flat.steady
    drifting, _ = Watches(lambda n: 1.05**n).run(2, iterations=40)
    assert not drifting.steady


# -- a soak --------------------------------------------------------------------------------------


class Soaked:
    """A body that lasts what ``duration`` says of its number; remembers what was done to it."""

    def __init__(self, duration: Callable[[int], float]) -> None:
        self.clock = Clock()
        self.duration = duration
        self.bodies = 0
        self.since_reset = 0
        self.longest_without_reset = 0
        self.resets = 0
        self.collecting: set[bool] = set()

    def body(self) -> None:
        self.clock.now_s += self.duration(self.bodies)
        self.bodies += 1
        self.since_reset += 1
        self.longest_without_reset = max(self.longest_without_reset, self.since_reset)
        self.collecting.add(gc.isenabled())

    def reset(self) -> None:
        self.clock.now_s += 0.25
        self.since_reset = 0
        self.resets += 1

    def soak(
        self, duration_s: float, reset_every: int | None = None
    ) -> tuple[list[SoakWindow], Samples]:
        return soak(
            self.body,
            duration_s,
            reset=None if reset_every is None else self.reset,
            reset_every=reset_every or 16,
            process=3,
            round_=5,
            clock=self.clock,
        )


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the process holds, one reading after the other: 1, 2, 3, ..."""
    readings: list[int] = []

    def read() -> int:
        readings.append(len(readings) + 1)
        return readings[-1]

    monkeypatch.setattr(environment, "resident_bytes", read)
    return readings


@pytest.mark.usefixtures("memory")
def test_a_soak_is_cut_into_stretches_that_hold_every_body() -> None:
    engine = Soaked(lambda _: 0.25)
    windows, samples = engine.soak(4.0 * WINDOWS)
    assert [window.at_s for window in windows] == [4.0 * index for index in range(WINDOWS)]
    assert {(window.n, window.median_s) for window in windows} == {(16, 0.25)}
    assert engine.bodies == 16 * WINDOWS
    assert engine.clock.now_s == 4.0 * WINDOWS
    assert [window.memory_bytes for window in windows] == list(range(1, WINDOWS + 1))
    assert (samples.process, samples.round, samples.per_sample) == (3, 5, 1)
    assert samples.values_s == [0.25] * (16 * WINDOWS)
    assert samples.steady
    assert engine.collecting == {False}


def test_the_median_is_of_its_own_stretch() -> None:
    windows, samples = Soaked(lambda n: 0.25 if n < 16 * 30 else 0.5).soak(4.0 * WINDOWS)
    assert [window.median_s for window in windows] == [0.25] * 30 + [0.5] * 30
    assert not samples.steady


@pytest.mark.parametrize(("body_s", "tail"), [(2.0**-8, True), (2.0**-6, False)])
def test_a_tail_is_only_told_from_enough_bodies(body_s: float, tail: bool) -> None:
    slow = 50
    windows, samples = Soaked(lambda n: body_s * (64 if n % slow == 0 else 1)).soak(8.0 * WINDOWS)
    assert all((window.n >= MIN_FOR_P99) == tail for window in windows[1:-1])
    assert all((window.p99_s == 64 * body_s) == tail for window in windows[1:-1])
    assert all((window.p99_s is None) == (not tail) for window in windows[1:-1])
    assert len(samples.values_s) == KEPT * len(windows), "the first of every stretch"


def test_a_body_longer_than_a_stretch_leaves_out_those_it_reached_over() -> None:
    engine = Soaked(lambda _: 10.0)
    windows, samples = engine.soak(4.0 * WINDOWS)
    assert [(window.at_s, window.n) for window in windows] == [(10.0 * i, 1) for i in range(24)]
    assert {window.median_s for window in windows} == {10.0}
    assert samples.values_s == [10.0] * 24
    engine = Soaked(lambda _: 1e6)
    windows, _ = engine.soak(60.0)
    assert [(window.at_s, window.n, window.p99_s) for window in windows] == [(0.0, 1, None)]


def test_a_body_that_ends_after_its_stretch_belongs_to_the_one_it_began_in() -> None:
    windows, _ = Soaked(lambda _: 3.0).soak(4.0 * WINDOWS)
    # 0-3-6 | 6-9 | 9-12 | 12-15-18 | ...
    assert [(w.at_s, w.n) for w in windows[:4]] == [(0.0, 2), (6.0, 1), (9.0, 1), (12.0, 2)]
    assert sum(window.n for window in windows) == 80


@pytest.mark.parametrize("every", [1, 4, 16])
def test_the_state_is_restored_in_time_and_outside_the_times(every: int) -> None:
    engine = Soaked(lambda _: 0.5)
    windows, samples = engine.soak(4.0 * WINDOWS, reset_every=every)
    assert engine.longest_without_reset == every
    assert engine.resets == 1 + (engine.bodies - 1) // every, "once before it begins"
    assert set(samples.values_s) == {0.5}
    assert {window.median_s for window in windows} == {0.5}


def test_inference_is_never_reset_in_a_soak() -> None:
    engine = Soaked(lambda _: 0.5)
    engine.soak(4.0 * WINDOWS)
    assert engine.resets == 0


def test_drift_over_a_soak_is_not_steady() -> None:
    _, samples = Soaked(lambda n: 0.25 * 1.001**n).soak(4.0 * WINDOWS)
    assert not samples.steady


def test_a_body_that_fails_in_a_soak_leaves_the_collector_as_it_was() -> None:
    enabled = gc.isenabled()

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        soak(fail, 1.0)
    assert gc.isenabled() is enabled


def test_the_memory_of_a_stretch_is_that_of_this_process() -> None:
    kept: list[bytes] = []

    def grow() -> None:
        kept.append(b"\1" * (16 << 20) if len(kept) % 2 else b"")
        clock.now_s += 1.0

    clock = Clock()
    windows, _ = soak(grow, 20.0, clock=clock)
    assert windows[-1].memory_bytes - windows[0].memory_bytes > 100 << 20


def test_the_clock_is_the_one_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clock of a test all three read ``bench.now``."""
    defaults: Sequence[Callable[..., object]] = (cycle, concurrent, soak)
    for function in defaults:
        assert (function.__kwdefaults__ or {})["clock"] is bench.now
