"""Other ways to load an engine than one body after the other: cycles of shapes, threads, a soak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xbench import bench, environment
from xbench.bench import Body, Settings
from xbench.result import Samples, SoakWindow
from xbench.stats import MIN_FOR_P99

MAX_CALLS = 20_000
"""Calls of one process that are kept: of every thread the last, equally many."""
WINDOWS = 60
"""Stretches of a soak."""
KEPT = 50
"""Single times of each stretch that are kept."""


def cycle(
    bodies: Sequence[tuple[Body, Body]],
    settings: Settings,
    *,
    process: int,
    round_: int,
    clock: Callable[[], float] = bench.now,
) -> list[Samples]:
    """Samples of every body, called in turn, so that all of them see the same machine.

    A body comes with what must be done before it, untimed. Each must have run once. Bodies are
    timed singly, however short: a batch of one shape would not be the cycle that was asked for.
    Warm-up: cycles until the time of a whole one is flat.
    """

    def once() -> list[float]:
        times = []
        for prepare, body in bodies:
            prepare()
            start = clock()
            body()
            times.append(clock() - start)
        return times

    with bench.quiet():
        begin = clock()
        warm = [sum(once())]
        steady = False
        while not steady and clock() - begin < settings.budget_s / 2:
            warm.append(sum(once()))
            steady = bench.is_flat(warm)
        rows: list[list[float]] = []
        most = settings.max_samples if settings.iterations is None else settings.iterations
        while len(rows) < most and (
            settings.iterations is not None
            or len(rows) < settings.min_samples
            or clock() - begin < settings.budget_s
        ):
            rows.append(once())
    steady = steady or bench.at_rest([*warm, *(sum(row) for row in rows)])
    return [
        Samples(
            process=process,
            round=round_,
            values_s=[row[index] for row in rows],
            warmup=len(warm),
            steady=steady,
        )
        for index in range(len(bodies))
    ]


def whole(parts: Sequence[Samples]) -> Samples:
    """Samples of the whole cycle: the sums over its bodies."""
    first = parts[0]
    return Samples(
        process=first.process,
        round=first.round,
        values_s=[sum(row) for row in zip(*(part.values_s for part in parts), strict=True)],
        warmup=first.warmup,
        steady=first.steady,
    )


def concurrent(
    body: Body,
    threads: int,
    settings: Settings,
    *,
    process: int,
    round_: int,
    clock: Callable[[], float] = bench.now,
) -> tuple[Samples, float]:
    """Latencies of single calls by ``threads`` threads at once, and calls a second of all together.

    Every thread calls without pause. The first quarter of the budget is warm-up. The rate of a
    thread is that from its first recorded call to the end of its last; all are at work meanwhile.
    With ``iterations`` every thread makes that many calls. What a thread raises is raised here.
    """
    keep = MAX_CALLS // threads
    kept: list[list[float]] = [[] for _ in range(threads)]
    counts = [0] * threads
    warm = [0] * threads
    spans = [(0.0, 0.0)] * threads
    barrier = threading.Barrier(threads + 1)
    stop = threading.Event()
    recording = threading.Event()

    def work(index: int) -> None:
        own = kept[index]
        barrier.wait()
        while not stop.is_set():
            recorded = recording.is_set()
            start = clock()
            body()
            end = clock()
            time_s = end - start
            if not recorded:
                warm[index] += 1
                continue
            spans[index] = (spans[index][0] if counts[index] else start, end)
            if len(own) < keep:
                own.append(time_s)
            else:
                # The oldest goes, so that the end is seen too.
                own[counts[index] % keep] = time_s
            counts[index] += 1
            if counts[index] == settings.iterations:
                return

    with bench.quiet(), ThreadPoolExecutor(threads) as pool:
        try:
            calls = [pool.submit(work, index) for index in range(threads)]
        except RuntimeError:
            # A thread that cannot be started would leave the others waiting for it.
            barrier.abort()
            raise

        def lasted(seconds: float | None) -> bool:
            """Let the threads work; False as soon as one of them has failed."""
            done = futures.wait(calls, seconds, futures.FIRST_EXCEPTION).done
            return not any(call.exception() for call in done)

        try:
            barrier.wait()
            alive = lasted(settings.budget_s / 4)
            recording.set()
            if settings.iterations is None:
                alive = alive and lasted(settings.budget_s * 3 / 4)
                # A body longer than the budget still gives every thread a few calls.
                while alive and min(counts) < settings.min_samples:
                    alive = lasted(0.01)
            else:
                lasted(None)
        finally:
            stop.set()
    for call in calls:
        call.result()
    # A full list is a ring: its oldest call stands where the next one would have gone.
    kept = [
        own[count % keep :] + own[: count % keep] if count > keep else own
        for own, count in zip(kept, counts, strict=True)
    ]
    samples = Samples(
        process=process,
        round=round_,
        values_s=[value for own in kept for value in own],
        warmup=sum(warm),
        # Too few calls to tell are not called a drift.
        steady=all(len(own) < 2 * bench.WINDOW or bench.at_rest(own) for own in kept),
    )
    rates = [
        count / (end - start) for count, (start, end) in zip(counts, spans, strict=True) if count
    ]
    return samples, sum(rates)


def soak(
    body: Body,
    duration_s: float,
    *,
    reset: Body | None = None,
    reset_every: int = 16,
    process: int = 0,
    round_: int = 0,
    clock: Callable[[], float] = bench.now,
) -> tuple[list[SoakWindow], Samples]:
    """Run ``body`` without pause; time and memory of every stretch of ``duration_s``/``WINDOWS``.

    A body longer than a stretch ends the one it is in, and those it reached over are left out.
    Also the first ``KEPT`` times of every stretch, as samples.
    """
    kept: list[float] = []
    windows: list[SoakWindow] = []
    step_s = duration_s / WINDOWS
    since_reset = 0
    with bench.quiet():
        if reset is not None:
            reset()
        begin = clock()
        while (at_s := clock() - begin) < duration_s:
            end_s = (int(at_s / step_s) + 1) * step_s
            values: list[float] = []
            while True:
                if reset is not None and since_reset >= reset_every:
                    reset()
                    since_reset = 0
                since_reset += 1
                start = clock()
                body()
                finish = clock()
                values.append(finish - start)
                if finish - begin >= end_s:
                    break
            kept += values[:KEPT]
            times = np.asarray(values)
            windows.append(
                SoakWindow(
                    at_s=at_s,
                    n=len(values),
                    median_s=float(np.median(times)),
                    p99_s=float(np.quantile(times, 0.99)) if len(values) >= MIN_FOR_P99 else None,
                    memory_bytes=environment.resident_bytes(),
                )
            )
    steady = bench.at_rest([window.median_s for window in windows])
    return windows, Samples(process=process, round=round_, values_s=kept, steady=steady)
