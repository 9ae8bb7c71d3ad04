"""Is ONNX Runtime as quick on the TensorFlow export as on the torch export? What do exports cost?

    .venv/bin/python -m benchmarks.exports [MODEL ...] [--size small] [--rounds 12]

Each model is exported from both sources into an empty cache, with all checks. The two files are
then timed by the product itself: rounds in random order, a fresh process each, paired by round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from xbench import environment, plan, registry, run
from xbench.exports import Exports
from xbench.inputs import Inputs
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.spec import Case

LIMIT = 1.1
"""Claimed of the TensorFlow export's time over the torch export's."""


def request(model: str, size: str, rounds: int, cache: str) -> Request:
    """Inference by ONNX Runtime on both exports of a model."""
    return Request(
        models=(model,),
        size=size,
        phases=("infer",),
        engines=("ort",),
        sources=("torch", "tf"),
        threads=(environment.usable_cpus(),),
        rounds=rounds,
        steps=1,
        cache=cache,
    )


def export(asked: Request, cases: list[Case]) -> None:
    """Make both exports and print what they cost and how right they are."""
    for case in {case.source: case for case in cases}.values():
        with Launcher() as launcher:
            inputs = Inputs(asked, launcher.folder(), {})
            exporting = Exports(launcher, Path(asked.cache or ""), print)
            made = exporting.get(case, inputs.verification(case))
        assert made.verified is not None, made.reason
        worst = max(t.scaled or 0.0 for t in made.verified.agreement.tensors)
        print(
            f"{case.model} {case.size} from {case.source}: {made.verified.seconds:.1f} s with "
            f"checks, {made.verified.facts['nodes']} nodes; largest error over the reference's "
            f"RMS {worst:.1e}",
            flush=True,
        )


def ratios(asked: Request, cases: list[Case]) -> list[float]:
    """Print and return the ratio at every batch of inference."""
    by_batch = {batch: {c.source: c for c in cases if c.batch == batch} for batch in batches(cases)}
    document = run.execute(
        asked, Progress(), ["benchmark"], cases=cases,
        against={of["tf"].key: of["torch"].key for of in by_batch.values()}, speed_only=True,
    )  # fmt: skip
    results = {result.case.key: result for result in document.cases if result.asked}
    found = []
    for batch, of in by_batch.items():
        ratio, latency = results[of["tf"].key].ratio, results[of["torch"].key].latency
        assert ratio is not None, [result.reason for result in document.cases]
        assert latency is not None
        interval = "" if ratio.ci_low is None else f" ({ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
        print(
            f"{cases[0].model} {asked.size}, batch {batch}: ort(tf) / ort(torch) {ratio.ratio:.3f}"
            f"{interval}, {ratio.rounds} rounds, {latency.median_s * 1e3:.2f} ms",
            flush=True,
        )
        found.append(ratio.ratio)
    return found


def batches(cases: list[Case]) -> list[int]:
    return sorted({case.batch for case in cases})


def main() -> int:
    """Print the ratios of every model; 1 where one is beyond the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=registry.model_names())
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    beyond = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as cache:
            asked = request(model, options.size, options.rounds, cache)
            cases = plan.cases(asked)
            export(asked, cases)
            if max(ratios(asked, cases)) > LIMIT:
                beyond.append(model)
    print(f"claim: at most {LIMIT}; beyond: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
