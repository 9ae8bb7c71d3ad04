"""A/A: how often are two measurements of the same thing called different?

    .venv/bin/python -m benchmarks.aa [--engine noise] [--runs 10] [--arms 21]

Every run measures one case under as many names as there are arms, each arm against the first, in
the product's own schedule (at a third of its default budget, to end within half an hour). Between
runs, arm k of a run is compared with arm k of the next, as `xbench compare` compares stored runs;
only ``--between`` arms, since arms of one run share what the run is off by.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import statistics
import sys
from pathlib import Path

from benchmarks import arms
from xbench import compare, store
from xbench.result import Document
from xbench.schedule import CHEAP_ROUNDS


def one(engine: str, count: int, threads: int, budget_s: float) -> Document:
    """A run of ``count`` arms, each compared with the first."""
    asked = arms.request(engine, threads=threads, rounds=CHEAP_ROUNDS, budget_s=budget_s)
    cases = arms.arms(asked, [f"arm{k:02d}" for k in range(count)], {})
    return arms.measure(asked, cases, {case.key: cases[0].key for case in cases[1:]})


def within(documents: list[Document]) -> bool:
    """Verdicts within the runs, and how far apart the ratios were; whether 1 % at most is wrong."""
    ratios = [r.ratio for document in documents for r in document.cases if r.ratio is not None]
    tally = collections.Counter(ratio.verdict for ratio in ratios)
    wrong = tally["faster"] + tally["slower"]
    off = sorted(abs(math.log(ratio.ratio)) for ratio in ratios)
    rounds = statistics.median(ratio.rounds for ratio in ratios)
    print(
        f"within a run: {wrong} of {len(ratios)} called different ({wrong / len(ratios):.1%}); "
        f"{dict(tally)}; |ratio - 1| median {off[len(off) // 2]:.2%}, "
        f"95th percentile {off[int(0.95 * len(off))]:.2%}, {rounds:g} rounds"
    )
    return wrong <= 0.01 * len(ratios)


def between(documents: list[Document], count: int) -> bool:
    """Verdicts between stored runs, from one to the next; whether 5 % at most are wrong."""
    verdicts: collections.Counter[str] = collections.Counter()
    off = []
    for before, after in itertools.pairwise(documents):
        keep = {f"arm{k:02d}" for k in range(count)}
        sides = [
            Document(
                schema=document.schema,
                run=document.run,
                environments=document.environments,
                cases=[r for r in document.cases if r.case.arm in keep],
                agreements=[],
                noise=document.noise,
            )
            for document in (before, after)
        ]
        for row in compare.compare(*sides).rows:
            verdicts[row.verdict] += 1
            if row.ratio is not None:
                off.append(abs(math.log(row.ratio)))
    total = sum(verdicts.values())
    wrong = verdicts["faster"] + verdicts["slower"]
    off.sort()
    print(
        f"between stored runs: {wrong} of {total} called different ({wrong / total:.1%}); "
        f"{dict(verdicts)}; |ratio - 1| median {off[len(off) // 2]:.2%}, "
        f"95th percentile {off[int(0.95 * len(off))]:.2%}"
    )
    return wrong <= 0.05 * total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="noise")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--budget", type=float, default=1.5, help="seconds per arm; the product: 5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", type=int, default=21)
    parser.add_argument("--between", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="folder for the runs, as JSON")
    options = parser.parse_args()
    documents = []
    for number in range(options.runs):
        documents.append(one(options.engine, options.arms, options.threads, options.budget))
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"aa-{options.engine}-{number}.json").write_bytes(
                store.encode(documents[-1])
            )
        print(f"run {number + 1} of {options.runs}: {documents[-1].run.wall_s:.0f} s", flush=True)
    met = within(documents)
    if options.runs > 1:
        met = between(documents, options.between) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
