"""Do the models learn? Training from the published initialisers, on the embedded data.

    .venv/bin/python -m benchmarks.training [MODEL ...] [--size small] [--steps 200] [--seeds 0 1 2]

Every framework trains in a process of its own, drawing its dropout masks and noise itself. What
counts is the mean loss of the last tenth of the steps against the trivial baseline's on the same
batches. With several seeds, means and deviations over them are printed too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from xbench import draws, environment, plan, registry
from xbench.plan import Request
from xbench.runners.base import Work
from xbench.spec import Case

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def losses(case: Case, steps: int) -> list[float]:
    """The loss of every step of one training."""
    spec = registry.model(case.model)
    config = registry.config(spec, case.size)
    engine = registry.engine(case.engine)
    load = registry.model_part(case.model, "data").load
    data = load(config, batch=case.batch, count=steps, seed=case.seed, source=None)
    parameters = draws.parameters(spec, case.size, "init", case.seed)
    runner = registry.load(engine.module).make(engine.name)
    runner.load(
        Work(
            case=case,
            spec=spec,
            config=config,
            parameters=parameters,
            batches=data.inputs,
            graph=None,
            folder=Path(),
        )
    )
    return [runner.train([step]).loss[0] for step in range(steps)]


def baseline(case: Case, steps: int) -> tuple[str, list[float]]:
    """The trivial predictor and its loss on the batches of every step."""
    spec, part = registry.model(case.model), registry.model_part(case.model, "data")
    config = registry.config(spec, case.size)
    data = part.load(config, batch=case.batch, count=steps, seed=case.seed, source=None)
    return part.BASELINE_NAME, part.baseline(data.inputs, case.loss, config)


def request(options: argparse.Namespace, seed: int) -> Request:
    """The trainings of one seed."""
    return Request(
        models=tuple(options.models),
        size=options.size,
        phases=("train",),
        engines=("torch", "tf"),
        threads=(environment.usable_cpus(),),
        seed=seed,
    )


def over_seeds(name: str, values: Iterable[float]) -> str:
    """Their mean and standard deviation."""
    several = list(values)
    return f"{name} {statistics.fmean(several):.4g} (sd {statistics.stdev(several):.2g})"


def main() -> int:
    """Print where every training begins and ends; 1 where one does not beat the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=registry.model_names())
    parser.add_argument("--size", default="small")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    beaten = True
    tenth = max(1, options.steps // 10)
    over: dict[str, list[tuple[float, ...]]] = {}
    for case in (case for seed in options.seeds for case in plan.cases(request(options, seed))):
        name, trivial = baseline(case, options.steps)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found = process.submit(losses, case, options.steps).result()
        begin, start = statistics.fmean(found[:tenth]), statistics.fmean(trivial[:tenth])
        end, floor = statistics.fmean(found[-tenth:]), statistics.fmean(trivial[-tenth:])
        beaten = beaten and end < floor
        label = f"{case.model} {case.size}, {case.engine}"
        over.setdefault(label, []).append((begin, begin / start, end, end / floor))
        print(
            f"{label}, seed {case.seed}, {options.steps} steps of batch "
            f"{case.batch}: {case.loss} {found[0]:.4g} -> {end:.4g}; {name}: {floor:.4g}",
            flush=True,
        )
    for label, rows in over.items():
        if len(rows) > 1:
            names = ("first", "over the baseline's", "last", "over the baseline's")
            parts = (over_seeds(*pair) for pair in zip(names, zip(*rows, strict=True), strict=True))
            print(f"{label}, {len(rows)} seeds, means of {tenth} steps: {', '.join(parts)}")
    print("claim: the end is below the baseline, everywhere")
    return 0 if beaten else 1


if __name__ == "__main__":
    sys.exit(main())
