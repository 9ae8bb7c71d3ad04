"""The clock. Nothing else in xbench reads one to time an engine.

A body is one synchronised step of an engine: inputs in place, no host copy. The first run is
apart; bodies then warm up until two windows agree or a cap is reached; then samples are taken
until the budget is spent. Nothing is deleted from what was sampled: where the warm-up found no
rest and the samples still drift, that is said.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from xbench.result import Samples

Body = Callable[[], object]

WINDOW = 3
"""Bodies per window of the warm-up test."""
FLAT = 0.02
"""Relative difference of two window medians that counts as flat, whatever their spread."""
BATCH_BELOW_S = 1e-3
"""A body shorter than this is timed several at a time, so that a sample lasts as long."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How long one fresh process may measure.

    ``budget_s`` is spent on warm-up (at most half of it) and samples; ``min_samples`` are taken
    even when a body is longer than that. ``reset_every`` bodies the state is restored, untimed.
    More than ``max_samples`` in one process teach little: processes differ more than samples do.
    ``iterations`` asks for exactly so many samples instead, whatever they take.
    """

    budget_s: float = 1.0
    min_samples: int = 4
    max_samples: int = 120
    reset_every: int = 16
    iterations: int | None = None


def now() -> float:
    """Seconds on the monotonic performance counter (about 80 ns a call)."""
    return time.perf_counter_ns() * 1e-9


def timed(body: Body) -> float:
    """Seconds that one call of ``body`` takes."""
    start = now()
    body()
    return now() - start


def times(body: Body, count: int) -> list[float]:
    """Seconds of ``count`` calls of ``body``, one after the other."""
    with quiet():
        return [timed(body) for _ in range(count)]


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside; the garbage made before is collected first."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Events(Protocol):
    """A device's own clock around a body, as ``runners.base.DeviceTimer``."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_s(self) -> float: ...


def measure(
    body: Body,
    settings: Settings,
    *,
    process: int,
    round_: int,
    reset: Body | None = None,
    events: Events | None = None,
    clock: Callable[[], float] = now,
) -> Samples:
    """Warm up, then sample ``body``. The first run must have happened already.

    ``reset`` restores the state that bodies change (training); it runs outside the timed region.
    ``events`` give the device's own time of each sample beside the wall time. ``clock`` is for
    tests.
    """
    since_reset = 0
    device: list[float] = []

    def sample(count: int) -> float:
        nonlocal since_reset
        if reset is not None and since_reset + count > settings.reset_every:
            reset()
            since_reset = 0
        since_reset += count
        if events is not None:
            events.start()
        start = clock()
        for _ in range(count):
            body()
        wall = (clock() - start) / count
        if events is not None:
            # Outside the wall: the body has synchronised the device, only the event is left.
            events.stop()
            device.append(events.elapsed_s() / count)
        return wall

    with quiet():
        if reset is not None:
            reset()
        begin = clock()
        warm: list[float] = [sample(1)]
        steady = False
        while not steady and clock() - begin < settings.budget_s / 2:
            warm.append(sample(1))
            steady = is_flat(warm)
        per_sample = batch_size(statistics.median(warm[-WINDOW:]))
        if reset is not None:
            per_sample = min(per_sample, settings.reset_every)
        if events is not None:
            per_sample = 1  # Between two bodies of a batch the device would wait for the host.
        values: list[float] = []
        device.clear()

        def wanted() -> bool:
            if settings.iterations is not None:
                return len(values) < settings.iterations
            if len(values) < settings.min_samples:
                return True
            return len(values) < settings.max_samples and clock() - begin < settings.budget_s

        while wanted():
            values.append(sample(per_sample))
    return Samples(
        process=process,
        round=round_,
        values_s=values,
        per_sample=per_sample,
        warmup=len(warm),
        # Too few bodies to tell are not called a drift.
        steady=steady or len(warm) + len(values) < 2 * WINDOW or at_rest([*warm, *values]),
        device_s=device,
    )


def is_flat(values: list[float]) -> bool:
    """Whether the last two windows agree; False while there are not two."""
    return len(values) >= 2 * WINDOW and agree(values[-2 * WINDOW : -WINDOW], values[-WINDOW:])


def at_rest(values: list[float]) -> bool:
    """Whether the second half of the bodies agrees with the first; False where few cannot tell."""
    if len(values) < 2 * WINDOW:
        return False
    half = len(values) // 2
    return agree(values[:half], values[half:])


def agree(before: list[float], after: list[float]) -> bool:
    """Whether two medians differ by no more than the spread before (or by ``FLAT``)."""
    centre = statistics.median(before)
    shift = abs(statistics.median(after) - centre)
    spread = statistics.median([abs(value - centre) for value in before])
    return shift <= max(FLAT * centre, 2 * spread)


def batch_size(body_s: float) -> int:
    """How many bodies make a sample that lasts at least ``BATCH_BELOW_S``."""
    if body_s >= BATCH_BELOW_S:
        return 1
    count = math.ceil(BATCH_BELOW_S / max(body_s, 1e-9))
    # The division rounds: where one body less already lasts as long, the last was its fault.
    return count - 1 if (count - 1) * body_s >= BATCH_BELOW_S else count


def timer_cost_s(calls: int = 10_000) -> float:
    """Seconds that reading the clock costs, from ``calls`` readings in a row."""
    start = now()
    for _ in range(calls):
        now()
    return (now() - start) / calls
