"""Does one training step of the full-size networks fit into 12 GiB, and how long does it take?

    .venv/bin/python -m benchmarks.full_size [MODEL ...] [--size full]

At the default batch, in both frameworks, by the product's own measuring: a fresh process each,
load, a first step and one more. Memory is the process's peak beyond what importing the framework
took.
"""

from __future__ import annotations

import argparse
import sys

from xbench import environment, plan, run
from xbench.plan import Request
from xbench.progress import Progress

LIMIT_BYTES = 12 * 2**30
"""Claimed of each."""


def main() -> int:
    """Print seconds and memory of every case; 1 where one failed or is beyond the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["residual", "vgg"])
    parser.add_argument("--size", default="full")
    options = parser.parse_args()
    asked = Request(
        models=tuple(options.models),
        size=options.size,
        phases=("train",),
        engines=("torch", "tf"),
        threads=(environment.usable_cpus(),),
        rounds=1,
        iterations=1,
        steps=1,
        time_limit_s=1800.0,
    )
    document = run.execute(
        asked, Progress(), ["benchmark"], cases=plan.cases(asked), speed_only=True
    )
    good = True
    for result in document.cases:
        case = result.case
        name = f"{case.model} {case.size}, {case.label}, batch {case.batch}"
        if result.status != "ok" or result.latency is None or result.peak_memory_bytes is None:
            print(f"{name}: {result.status}: {result.reason}")
            good = False
            continue
        good = good and result.peak_memory_bytes <= LIMIT_BYTES
        print(
            f"{name}: {result.latency.median_s:.1f} s a step, "
            f"{result.peak_memory_bytes / 2**30:.2f} GiB at most"
        )
    print(f"claim: at most {LIMIT_BYTES / 2**30:.0f} GiB each")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
