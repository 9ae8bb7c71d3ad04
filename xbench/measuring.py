"""What one fresh process measures of one case: load, compile, first run, samples, memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xbench import bench, environment, guards, loads
from xbench.errors import EngineError
from xbench.jobs import Job
from xbench.result import Measurement, Samples, Soak, Visit

if TYPE_CHECKING:
    from xbench.bench import Body
    from xbench.runners.base import Runner, Work

COPIED_RUNS = 10
"""Runs with the copies of inputs and outputs, where the timed region has none."""


@dataclass(frozen=True, slots=True)
class Started:
    """A loaded case after its first run, and what that took."""

    load_s: float
    compile_s: float | None
    cold: bool
    first_run_s: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of the sampling: ``visits`` of a cycle, ``per_s`` of threads, windows of a soak."""

    samples: Samples
    visits: list[Visit] = field(default_factory=list)
    per_s: float | None = None
    soak: Soak | None = None


def measure(runner: Runner, work: Work, job: Job) -> tuple[Measurement, Soak | None]:
    """All of it. Raises EngineError where the engine cannot, or computes what is not finite."""
    runner.prepare(work)
    before = environment.start_peak()
    started = start(runner, work)
    with guards.Watch(cuda=work.case.device == "cuda") as watch:
        sampled = sample(runner, work, job, started)
    peak = environment.peak_bytes()
    runner.check()
    # Of several shapes or threads there is no one run to copy the inputs of.
    plain = not work.case.cycle and work.case.concurrency == 1
    whole = runner.end_to_end() if plain else None
    found = Measurement(
        samples=sampled.samples,
        load_s=started.load_s,
        compile_s=started.compile_s,
        cold=started.cold,
        first_run_s=started.first_run_s,
        peak_memory_bytes=max(0, peak - before),
        placement=runner.placement(),
        visits=sampled.visits,
        per_s=sampled.per_s,
        end_to_end_s=[] if whole is None else bench.times(whole, COPIED_RUNS),
        # Finding it out may take another session; it is the same in every process.
        effective_precision=deviating(runner, work) if job.process == 0 else "",
        conditions=watch.conditions,
    )
    return found, sampled.soak


def start(runner: Runner, work: Work) -> Started:
    """Load, compile and run once, each timed apart."""
    load_s = bench.timed(lambda: runner.load(work))
    cold = runner.compiles and runner.cold()
    compile_s = bench.timed(runner.compile) if runner.compiles else None
    first_run_s = bench.timed(runner.run)
    runner.check()
    return Started(load_s=load_s, compile_s=compile_s, cold=cold, first_run_s=first_run_s)


def sample(runner: Runner, work: Work, job: Job, started: Started) -> Sampled:
    """Samples in the way the case asks for: a soak, shapes in turn, threads, or plainly."""
    case, settings = work.case, job.settings
    if job.kind == "soak":
        windows, samples = loads.soak(
            runner.run,
            settings.budget_s,
            reset=runner.reset,
            reset_every=settings.reset_every,
            process=job.process,
            round_=job.round,
        )
        return Sampled(samples, soak=Soak(duration_s=settings.budget_s, windows=windows))
    if case.cycle:
        return cycled(runner, work, job, started)
    if case.concurrency > 1:
        samples, per_s = loads.concurrent(
            runner.run, case.concurrency, settings, process=job.process, round_=job.round
        )
        return Sampled(samples, per_s=per_s)
    return Sampled(
        bench.measure(
            runner.run,
            settings,
            reset=runner.reset,
            events=runner.device_timer(),
            process=job.process,
            round_=job.round,
        )
    )


def cycled(runner: Runner, work: Work, job: Job, started: Started) -> Sampled:
    """The shapes of a cycle in turn: first visits apart, then samples of each."""
    bodies: list[tuple[Body, Body]] = [
        (functools.partial(runner.use, index), runner.run) for index in range(len(work.batches))
    ]
    firsts = [started.first_run_s]
    for prepare, body in bodies[1:]:
        prepare()
        firsts.append(bench.timed(body))
    parts = loads.cycle(bodies, job.settings, process=job.process, round_=job.round)
    shapes = (work.case.shape, *work.case.cycle)
    visits = [
        Visit(shape=shape, first_s=first, samples=part)
        for shape, first, part in zip(shapes, firsts, parts, strict=True)
    ]
    return Sampled(loads.whole(parts), visits)


def deviating(runner: Runner, work: Work) -> str:
    """What the arithmetic is done in; empty where that is what was asked."""
    try:
        found = runner.effective_precision()
    except (EngineError, MemoryError) as error:
        # It may take a second session. What was measured stands without it.
        return f"unknown: {error}"
    return "" if found == work.case.precision else found
