"""A body that needs no model and never changes: what it shows is the noise of the machine alone.

``threads`` threads multiply small float32 matrices at once. Each product is too small for a BLAS
to split (OpenBLAS splits above 64^3 multiplications at the earliest), so that every thread works
alone however the process was started. The threads are Python's: numpy lets go of the interpreter
while it multiplies. OpenBLAS's own could be set after a fork too, but with two of them on two
CPUs that others share, the median of 30 processes was 16 ms and one of them took 0.75 ms (one
matrix of side 416). That would be OpenBLAS's noise, not the machine's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xbench import bench, guards
from xbench.errors import Unavailable, Unsupported
from xbench.jobs import Job, Report
from xbench.result import Measurement, Placement, Profile
from xbench.runners.base import Arrays, Runner, Work

ENGINES = {
    "noise": {"native": False, "packages": ("numpy",), "shipped": False, "phases": ("infer",)}
}

SIDE = 48
"""Side of a matrix."""
PASSED = 8
"""Matrices of a pass, where passes are counted: they stay in the cache."""
MATRICES = 192
"""Products per thread and body: 0.40 ms on one core of an AMD EPYC, over 5 MiB of memory."""


class NoiseRunner(Runner):
    """The fixed body. It computes nothing that could be compared."""

    def probe(self, device: str) -> dict[str, str]:
        if device != "cpu":
            raise Unavailable(f"the noise of {device} is not measured")
        return {}

    def load(self, work: Work) -> None:
        # Benchmarks plant a slow-down: more passes over the same, fewer matrices.
        passes = int(work.case.options.get("passes", "0"))
        self.make(work.case.threads, PASSED if passes else MATRICES)
        self.passes = passes or 1

    def make(self, threads: int, matrices: int = MATRICES) -> None:
        """Make the matrices and start the threads."""
        self.passes = 1
        shape = (threads, matrices, SIDE, SIDE)
        self.a = np.linspace(-1, 1, np.prod(shape), dtype=np.float32).reshape(shape)
        self.b = self.a[:, ::-1].copy()
        self.out = np.empty_like(self.a)
        self.pool = ThreadPoolExecutor(threads)

    def multiply(self, thread: int) -> None:
        for _ in range(self.passes):
            np.matmul(self.a[thread], self.b[thread], out=self.out[thread])

    def run(self) -> None:
        if len(self.a) == 1:
            self.multiply(0)
        else:
            list(self.pool.map(self.multiply, range(len(self.a))))

    def placement(self) -> list[Placement]:
        return [Placement(ep="cpu", nodes=None)]

    def infer(self, batch: int = 0) -> Arrays:
        raise Unsupported("the body of the noise measurement has no outputs")

    def bind(self, parameters: Arrays) -> None:
        raise Unsupported("the body of the noise measurement has no parameters")

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        raise Unsupported("the body of the noise measurement is not profiled")


def sample(job: Job) -> Report:
    """Samples of the body on the threads of the case: the whole of a job of the kind ``noise``."""
    runner = NoiseRunner(job.case.engine)
    load_s = bench.timed(lambda: runner.make(job.case.threads))
    first_run_s = bench.timed(runner.run)
    with guards.Watch() as watch:
        samples = bench.measure(runner.run, job.settings, process=job.process, round_=job.round)
    measurement = Measurement(
        samples=samples,
        load_s=load_s,
        compile_s=None,
        first_run_s=first_run_s,
        peak_memory_bytes=0,
        placement=runner.placement(),
        conditions=watch.conditions,
    )
    return Report(measurement=measurement)


def make(engine: str) -> NoiseRunner:
    return NoiseRunner(engine)
