"""What all metrics of two large tensors cost: against numpy's allclose and Polygraphy's comparison.

    .venv/bin/python -m benchmarks.comparison [--elements 1e8] [--rounds 5] [--polygraphy FOLDER]

Two float32 tensors of rows of 1,000 elements that differ by rounding, so that all three say they
agree. Ours alternates with ``numpy.testing.assert_allclose``, then with Polygraphy's
``CompareFunc.simple``, which takes at most three rounds; medians over rounds. Peak memory is that
of a fresh process that holds only the arrays. Claims: at most half of numpy's time, a fifth of
Polygraphy's, and less than 200 MB on top of the arrays.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xbench import bench, environment, numerics

Array = np.ndarray[Any, Any]

RTOL, ATOL = 1e-4, 1e-5
ROW = 1000
ADVICE = "pip install --no-deps polygraphy==0.53.6 (or --polygraphy FOLDER that holds it)"


def tensors(elements: int) -> tuple[Array, Array]:
    """A tensor and its reference, which differ by about 8 ULP."""
    random = np.random.default_rng(0)
    shape = (elements // ROW, ROW)
    reference = random.standard_normal(shape, dtype=np.float32)
    actual = random.standard_normal(shape, dtype=np.float32)
    actual *= np.float32(1e-6)
    actual += 1
    actual *= reference
    return actual, reference


def ours(a: Array, b: Array) -> None:
    metrics = numerics.compare("x", a, b)
    if metrics.problem or metrics.top1 is None or not 0 < metrics.differing < a.size:
        raise RuntimeError(f"not the comparison that was meant: {metrics}")


def allclose(a: Array, b: Array) -> None:
    np.testing.assert_allclose(a, b, rtol=RTOL, atol=ATOL)


def polygraphy(folder: str) -> Callable[[Array, Array], None]:
    """Its comparison of one output of two runs. Exits with advice where it is not installed."""
    if folder:
        sys.path.insert(0, folder)
    try:
        comparator: Any = importlib.import_module("polygraphy.comparator")
        logger: Any = importlib.import_module("polygraphy.logger")
    except ImportError:
        sys.exit(f"Polygraphy is missing: {ADVICE}")
    logger.G_LOGGER.module_severity = logger.G_LOGGER.CRITICAL

    def compare(a: Array, b: Array) -> None:
        runs = comparator.RunResults()
        for name, array in (("a", a), ("b", b)):
            result = comparator.IterationResult(outputs={"x": array}, runner_name=name)
            runs.append((name, [result]))
        with warnings.catch_warnings():  # Deprecated in favour of what older versions lack.
            warnings.simplefilter("ignore", DeprecationWarning)
            simple = comparator.CompareFunc.simple(rtol=RTOL, atol=ATOL)
        if not comparator.Comparator.compare_accuracy(runs, compare_func=simple):
            raise RuntimeError("Polygraphy does not find the arrays to agree")

    return compare


def seconds(body: Callable[[Array, Array], None], a: Array, b: Array) -> float:
    start = bench.now()
    body(a, b)
    return bench.now() - start


def ratio(
    name: str, theirs: Callable[[Array, Array], None], a: Array, b: Array, rounds: int
) -> float:
    """Our time over theirs, by medians of rounds in which both alternate.

    Both ran once before, on all elements: fresh memory costs who allocates more of it several
    times as much in the first round as later.
    """
    bodies = (ours, theirs)
    for body in bodies:
        body(a, b)
    times = [[seconds(body, a, b) for body in bodies] for _ in range(rounds)]
    medians = [statistics.median(values) for values in zip(*times, strict=True)]
    for label, median, values in zip(
        ("xbench", name), medians, zip(*times, strict=True), strict=True
    ):
        shown = " ".join(f"{value:.3f}" for value in values)
        print(f"{label}: {median:.3f} s, {median / a.size * 1e9:.2f} ns an element ({shown})")
    return float(medians[0] / medians[1])


def extra_bytes(elements: int) -> int:
    """Memory on top of the arrays at the peak of a comparison, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.comparison", "--memory", str(elements)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    return int(done.stdout)


def print_memory(elements: int) -> None:
    """What ``extra_bytes`` asks for: an earlier, small comparison has loaded all code."""
    a, b = tensors(elements)
    ours(*tensors(100 * ROW))
    before = environment.start_peak()
    ours(a, b)
    print(environment.peak_bytes() - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=lambda text: int(float(text)), default=100_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--polygraphy", metavar="FOLDER", default="", help="where it is unpacked")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory:
        print_memory(asked.memory)
        return 0
    theirs = polygraphy(asked.polygraphy)
    extra = extra_bytes(asked.elements) / 1e6
    a, b = tensors(asked.elements)
    to_numpy = ratio("numpy", allclose, a, b, asked.rounds)
    to_polygraphy = 1 / ratio("Polygraphy", theirs, a, b, min(asked.rounds, 3))
    print(f"{a.size:,} elements, {environment.usable_cpus()} CPUs")
    print(f"time over numpy's assert_allclose: {to_numpy:.3f} (claim: at most 0.5)")
    print(f"quicker than Polygraphy by: {to_polygraphy:.1f} (claim: at least 5)")
    print(f"extra memory at the peak: {extra:.1f} MB (claim: under 200)")
    return 0 if to_numpy <= 0.5 and to_polygraphy >= 5 and extra < 200 else 1


if __name__ == "__main__":
    sys.exit(main())
