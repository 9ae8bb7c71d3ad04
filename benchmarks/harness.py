"""What measuring costs: the harness against a bare loop of the same body.

    .venv/bin/python -m benchmarks.harness [--rounds 41]

Two bodies: an empty one, whose time is all overhead, and one of about 50 us. The bare loop is timed
over as many bodies as the harness samples; both alternate, medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import numpy as np

from xbench import bench
from xbench.bench import Settings

SETTINGS = Settings(budget_s=0.05, max_samples=20)


def harness_s(body: Callable[[], object]) -> tuple[float, int]:
    """Median of the harness' samples, and how many bodies they hold."""
    samples = bench.measure(body, SETTINGS, process=0, round_=0)
    return statistics.median(samples.values_s), samples.per_sample


def bare_s(body: Callable[[], object], count: int, loops: int) -> float:
    """The median over ``loops`` loops of ``count`` bodies, per body."""
    times = []
    with bench.quiet():
        for _ in range(loops):
            start = bench.now()
            for _ in range(count):
                body()
            times.append((bench.now() - start) / count)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    a = np.linspace(0, 1, 96 * 96, dtype=np.float64).reshape(96, 96)
    out = np.empty_like(a)

    def product() -> None:
        np.matmul(a, a, out=out)
        np.matmul(a, out, out=out)

    def nothing() -> None:
        pass

    met = True
    for name, body, most in (("empty body", nothing, None), ("body of about 50 us", product, 0.01)):
        pairs = []
        for _ in range(rounds):
            ours, count = harness_s(body)
            pairs.append((ours, bare_s(body, count, SETTINGS.max_samples)))
        ours_s, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        extra_ns = statistics.median(one - other for one, other in pairs) * 1e9
        print(
            f"{name}: {ours_s * 1e6:.3f} us by the harness, {bare * 1e6:.3f} us bare; "
            f"{extra_ns:.1f} ns an iteration more, ratio {ratio:.4f} (medians of {rounds})"
        )
        met = met and extra_ns <= 1000 and (most is None or abs(ratio - 1) <= most)
    print(f"reading the clock: {bench.timer_cost_s() * 1e9:.0f} ns")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
