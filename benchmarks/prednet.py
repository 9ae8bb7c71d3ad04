"""Is ONNX Runtime as quick on the TensorFlow export as on the torch export? What do exports cost?

    .venv/bin/python -m benchmarks.prednet [--size small] [--rounds 6]

Each export runs alone, into an empty cache. The two files are then timed by the product itself:
rounds in random order, a fresh process each, paired by round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from xbench import environment, plan, run, stats, tensors
from xbench.bench import now
from xbench.exports import Exports
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress


def request(size: str, rounds: int, cache: Path) -> Request:
    return Request(
        models=("prednet",),
        size=size,
        phases=("infer",),
        engines=("ort",),
        sources=("torch", "tf"),
        threads=(environment.usable_cpus(),),
        rounds=rounds,
        budget_s=2.0 * rounds,
        cache=str(cache),
    )


def exports(asked: Request, cache: Path) -> None:
    """Seconds of a first export and of a second seed, per source."""
    for case in plan.cases(asked):
        with Launcher() as launcher:
            exporting = Exports(launcher, cache, print)
            inputs = launcher.folder() / "verify.npz"
            tensors.save_batches(inputs, run.verification_batches(asked, case.model))
            first = exporting.get(case, inputs)
            assert first.verified is not None, first.reason
            begin = now()
            exporting.get(msgspec.structs.replace(case, seed=case.seed + 1), inputs)
            again_s = now() - begin
        worst = max(t.scaled or 0.0 for t in first.verified.agreement.tensors)
        print(
            f"{case.model} {case.size} from {case.source}: {first.seconds:.1f} s with checks, "
            f"{first.verified.facts['nodes']} nodes; second seed {again_s:.2f} s; "
            f"scaled error at batches 1 and 5 at most {worst:.1e}"
        )


def ratio(asked: Request) -> None:
    """Time of ONNX Runtime on the TensorFlow export over that on the torch export."""
    with Launcher() as launcher:
        session = run.Session(asked, launcher, Progress())
        session.prepare_data()
        session.export()
        session.measure()
        sides = {state.case.source: state.measurements for state in session.states.values()}
    found = stats.ratio(
        [m.samples for m in sides["tf"]], [m.samples for m in sides["torch"]], "torch"
    )
    assert found is not None
    low, high = found.ci_low or 0.0, found.ci_high or 0.0
    interval = f"{low:.3f} to {high:.3f}"
    print(f"ort(tf) / ort(torch): {found.ratio:.3f} ({interval}), {found.rounds} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = request(options.size, options.rounds, Path(folder))
        exports(asked, Path(folder))
        ratio(asked)


if __name__ == "__main__":
    sys.exit(main())
