"""The clock, told what time it is: a fake clock that only bodies, resets and readings move."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xbench import bench
from xbench.bench import BATCH_BELOW_S, WINDOW, Settings, batch_size, measure
from xbench.result import Samples

LONG_S = 2.0**-6
"""A body that is not batched; powers of two, so that sums of them are exact."""


class Clock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
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
        self.clock.now_s += 1.0
        self.since_reset = 0
        self.resets += 1

    def measure(self, *, training: bool = False, **settings: float) -> Samples:
        return measure(
            self.body,
            Settings(**settings),  # type: ignore[arg-type]
            process=3,
            round_=5,
            reset=self.reset if training else None,
            clock=self.clock,
        )


def constant(seconds: float) -> Engine:
    return Engine(lambda _: seconds)


def test_what_is_measured_is_what_a_body_takes() -> None:
    samples = constant(LONG_S).measure(budget_s=1.0)
    assert (samples.process, samples.round) == (3, 5)
    assert set(samples.values_s) == {LONG_S}
    assert samples.per_sample == 1
    assert samples.steady


def test_twice_as_slow_is_measured_as_exactly_twice() -> None:
    fast, slow = (constant(s).measure(budget_s=4.0) for s in (LONG_S, 2 * LONG_S))
    assert slow.values_s[0] / fast.values_s[0] == 2.0
    assert [a / b for a, b in zip(slow.values_s, fast.values_s, strict=False)] == [2.0] * min(
        len(slow.values_s), len(fast.values_s)
    )


def test_a_flat_body_warms_up_for_two_windows() -> None:
    engine = constant(LONG_S)
    samples = engine.measure(budget_s=2.0)
    assert samples.warmup == 2 * WINDOW
    assert engine.bodies == samples.warmup + len(samples.values_s)


def test_no_warm_up_body_is_among_the_samples() -> None:
    samples = Engine(lambda n: LONG_S * (8 if n < 5 else 1)).measure(budget_s=4.0)
    assert samples.warmup > 5
    assert set(samples.values_s) == {LONG_S}
    assert samples.steady


def test_a_body_that_keeps_drifting_is_not_steady() -> None:
    engine = Engine(lambda n: LONG_S * 1.05**n)
    samples = engine.measure(budget_s=16.0)
    assert len(samples.values_s) >= 2 * WINDOW
    assert not samples.steady


def test_the_warm_up_takes_at_most_half_of_the_budget() -> None:
    engine = Engine(lambda n: LONG_S * 1.05**n)
    engine.measure(budget_s=16.0)
    spent, warm = 0.0, 0
    while spent < 8.0:
        spent += engine.duration(warm)
        warm += 1
    assert Engine(engine.duration).measure(budget_s=16.0).warmup == warm


def test_a_rest_found_only_while_sampling_is_steady() -> None:
    def drift(n: int) -> float:
        return LONG_S * 1.05**n

    capped = Engine(drift).measure(budget_s=4.0).warmup
    late = Engine(lambda n: drift(n) if n < capped else LONG_S)
    samples = late.measure(budget_s=4.0)
    assert samples.warmup == capped
    assert set(samples.values_s) == {LONG_S}
    assert samples.steady


def test_a_jump_between_the_halves_is_not_rest() -> None:
    assert not bench.at_rest([1.0] * 6 + [1.1] * 6)
    assert not bench.at_rest([1.1] * 6 + [1.0] * 6)
    assert bench.at_rest([1.0] * 6 + [1.01] * 6)
    assert not bench.at_rest([1.0, 1.0, 1.0]), "three samples cannot tell"


def test_scatter_is_not_drift() -> None:
    values = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 0.7, 1.1, 0.9, 1.3, 1.0]
    assert bench.at_rest(values)
    assert bench.is_flat(values)
    assert not bench.is_flat(values[: 2 * WINDOW - 1]), "one window and a half decide nothing"


def test_the_budget_ends_the_sampling() -> None:
    engine = constant(LONG_S)
    samples = engine.measure(budget_s=1.0)
    assert engine.clock.now_s == 1.0
    assert len(samples.values_s) == 64 - samples.warmup


def test_a_body_longer_than_the_budget_is_sampled_all_the_same() -> None:
    samples = constant(8.0).measure(budget_s=1.0, min_samples=3)
    assert samples.warmup == 1
    assert samples.values_s == [8.0] * 3


@pytest.mark.parametrize("least", [1, 7])
def test_the_least_number_of_samples(least: int) -> None:
    assert len(constant(8.0).measure(budget_s=1.0, min_samples=least).values_s) == least


@pytest.mark.parametrize("most", [10, 120])
def test_the_largest_number_of_samples(most: int) -> None:
    engine = constant(LONG_S)
    assert len(engine.measure(budget_s=1000.0, max_samples=most).values_s) == most
    assert engine.bodies == most + 2 * WINDOW


def test_short_bodies_are_timed_together() -> None:
    body_s = 2.0**-14
    engine = constant(body_s)
    samples = engine.measure(budget_s=1.0, max_samples=50)
    assert samples.per_sample == 17, "17 * 2**-14 s is the first multiple above 1 ms"
    assert set(samples.values_s) == {body_s}
    assert engine.bodies == samples.warmup + 50 * 17


def test_the_batch_is_taken_from_the_warm_body() -> None:
    samples = Engine(lambda n: 0.5 if n < WINDOW else 2.0**-14).measure(budget_s=8.0)
    assert samples.per_sample == 17


@given(st.floats(1e-9, 10.0))
@example(1e-6)
def test_a_sample_lasts_a_millisecond_and_not_a_body_more(body_s: float) -> None:
    count = batch_size(body_s)
    assert count * body_s >= BATCH_BELOW_S * (1 - 1e-12)
    assert (count - 1) * body_s < BATCH_BELOW_S


def test_a_body_that_takes_no_time_is_not_run_for_ever() -> None:
    assert batch_size(0.0) == 1_000_000


@pytest.mark.parametrize("body_s", [LONG_S, 2.0**-14])
@pytest.mark.parametrize("every", [1, 4, 16])
def test_the_state_is_restored_in_time_and_outside_the_timed_region(
    every: int, body_s: float
) -> None:
    engine = constant(body_s)
    samples = engine.measure(training=True, budget_s=64.0, max_samples=40, reset_every=every)
    assert engine.longest_without_reset <= every
    assert set(samples.values_s) == {body_s}, "a reset takes 1 s and is not in the samples"
    assert samples.per_sample <= every
    assert engine.resets <= -(-engine.bodies // (every // samples.per_sample)) + 1


def test_training_starts_from_the_restored_state() -> None:
    engine = constant(LONG_S)
    engine.body()  # the first run, which is measured apart
    engine.measure(training=True, budget_s=1.0, max_samples=5, reset_every=16)
    assert engine.longest_without_reset <= 16
    engine = constant(LONG_S)
    engine.since_reset = 15
    engine.measure(training=True, budget_s=1.0, max_samples=3, reset_every=16)
    assert engine.longest_without_reset < 16


def test_inference_is_never_reset() -> None:
    engine = constant(LONG_S)
    engine.measure(budget_s=4.0, reset_every=1)
    assert engine.resets == 0


@pytest.fixture
def garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("garbage_collection")
@pytest.mark.parametrize("before", [True, False])
def test_nothing_is_collected_inside_and_all_is_as_before_after(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    engine = constant(LONG_S)
    engine.measure(budget_s=1.0)
    assert engine.collecting == {False}
    assert gc.isenabled() is before


@pytest.mark.usefixtures("garbage_collection")
def test_a_body_that_fails_leaves_the_collector_on() -> None:
    gc.enable()

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        measure(fail, Settings(), process=0, round_=0)
    assert gc.isenabled()


def test_garbage_made_before_is_collected_before(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: order.append("collect"))
    with bench.quiet():
        order.append("body")
    assert order == ["collect", "body"]


def test_timed_is_the_difference_of_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.now_s = 100.0
    monkeypatch.setattr(bench, "now", clock)
    engine = constant(LONG_S)
    engine.clock = clock
    assert bench.timed(engine.body) == LONG_S
    assert engine.bodies == 1


def test_the_real_clock_moves_forward_only_and_costs_little() -> None:
    readings = [bench.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]
    assert bench.timer_cost_s(100) > 0


def test_the_real_clock_counts_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter_ns", lambda: 2_500_000_000)
    assert bench.now() == 2.5


# -- so many samples -----------------------------------------------------------------------------


@pytest.mark.parametrize("budget_s", [1e-9, 1e9])
@pytest.mark.parametrize("body_s", [LONG_S, 2.0**-14, 100.0])
@pytest.mark.parametrize("iterations", [1, 3, 300])
def test_exactly_as_many_samples_as_asked_for(
    iterations: int, body_s: float, budget_s: float
) -> None:
    samples = constant(body_s).measure(iterations=iterations, budget_s=budget_s)
    assert samples.values_s == [body_s] * iterations
    assert samples.warmup >= 1


def test_iterations_of_training_are_reset_as_others_are() -> None:
    engine = constant(LONG_S)
    samples = engine.measure(training=True, iterations=50, reset_every=4)
    assert samples.values_s == [LONG_S] * 50
    assert engine.longest_without_reset == 4


def test_times_of_so_many_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(lambda n: LONG_S * (n + 1))
    monkeypatch.setattr(bench, "now", engine.clock)
    assert bench.times(engine.body, 3) == [LONG_S, 2 * LONG_S, 3 * LONG_S]
    assert bench.times(engine.body, 0) == []
    assert engine.bodies == 3
    assert engine.collecting == {False}


# -- the device's own clock ----------------------------------------------------------------------


class DeviceEvents:
    """Events around the bodies of ``engine``: they take time of their own, and count bodies."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.log: list[str] = []
        self.began = 0

    def start(self) -> None:
        self.engine.clock.now_s += 1.0
        self.began = self.engine.bodies
        self.log.append("start")

    def stop(self) -> None:
        self.engine.clock.now_s += 1.0
        self.log.append(f"stop after {self.engine.bodies - self.began}")

    def elapsed_s(self) -> float:
        self.engine.clock.now_s += 1.0
        self.log.append("read")
        # A quarter of a second per body, and a second for every body that was ever run.
        return 0.25 * (self.engine.bodies - self.began) + float(self.engine.bodies)


def with_events(engine: Engine, **settings: float) -> tuple[Samples, DeviceEvents]:
    events = DeviceEvents(engine)
    found = measure(
        engine.body,
        Settings(**settings),  # type: ignore[arg-type]
        process=0,
        round_=0,
        events=events,
        clock=engine.clock,
    )
    return found, events


def test_every_sample_has_the_time_of_the_device() -> None:
    samples, events = with_events(constant(LONG_S), iterations=5, budget_s=1e-9)
    assert samples.per_sample == 1
    # The one body of the warm-up is not among them: the samples end with bodies 2 to 6.
    assert samples.device_s == [0.25 + body for body in (2, 3, 4, 5, 6)]
    assert events.log == ["start", "stop after 1", "read"] * (samples.warmup + 5)


def test_the_events_are_not_in_the_wall_time() -> None:
    samples, _ = with_events(constant(LONG_S), iterations=5)
    assert samples.values_s == [LONG_S] * 5


def test_bodies_on_a_device_are_timed_singly_however_short() -> None:
    # Within a batch the device would wait for the host, and its events would hold that too.
    samples, events = with_events(constant(2.0**-14), iterations=3, budget_s=1e-9)
    assert samples.per_sample == 1
    assert samples.device_s == [0.25 + body for body in (2, 3, 4)]
    assert events.log.count("stop after 1") == 3 + samples.warmup


def test_without_events_there_is_no_time_of_the_device() -> None:
    assert constant(LONG_S).measure(budget_s=1.0).device_s == []


@pytest.mark.parametrize(("samples", "steady"), [(1, True), (4, True), (5, False)])
def test_too_few_bodies_to_tell_are_not_called_a_drift(samples: int, steady: bool) -> None:
    # One body of warm-up, each body twice as long as the one before: seen only from six on.
    engine = Engine(lambda n: 8.0 * 2.0**n)
    assert engine.measure(budget_s=1.0, iterations=samples).steady is steady
