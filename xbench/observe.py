"""What is compared: outputs, losses, gradients, parameters and taps of a case, by name.

Tensors are called ``outputs/NAME`` (``outputs/NAME@2`` for the third batch), ``loss/STEP``,
``gradients/STEP/NAME``, ``parameters/NAME`` (after the last step) and ``taps/NAME``.
"""

from __future__ import annotations

import numpy as np

from xbench import bench, draws, numerics
from xbench.errors import EngineError
from xbench.runners.base import Arrays, Runner, Trained, Work


def observe(runner: Runner, work: Work, *, every_batch: bool, taps: bool) -> Arrays:
    """Everything that the phase of the loaded case can be compared by."""
    if work.case.phase == "train":
        tensors = trained(runner, work)
    else:
        tensors = outputs(runner, work, every_batch)
    if taps:
        found = runner.taps()
        order = [tap.name for tap in work.spec.taps(work.config)]
        # In the order of computation: the first that departs is where a fault is.
        tensors |= {f"taps/{name}": found[name] for name in order}
    return tensors


def outputs(runner: Runner, work: Work, every_batch: bool) -> Arrays:
    """Outputs of the first batch, or of every one."""
    tensors = {}
    for index in range(len(work.batches) if every_batch else 1):
        suffix = f"@{index}" if index else ""
        for name, value in runner.infer(index).items():
            tensors[f"outputs/{name}{suffix}"] = value
    return tensors


def trained(runner: Runner, work: Work) -> Arrays:
    """Losses, gradients and last parameters of the training steps."""
    result = finite(runner.train())
    # What a runner hands out: float32 for every narrower type.
    dtype = "float64" if work.case.precision == "fp64" else "float32"
    tensors: Arrays = {f"loss/{k}": np.asarray(loss, dtype) for k, loss in enumerate(result.loss)}
    for step, gradients in enumerate(result.gradients):
        tensors |= {f"gradients/{step}/{name}": value for name, value in gradients.items()}
    tensors |= {f"parameters/{name}": value for name, value in result.parameters.items()}
    return tensors


def finite(result: Trained) -> Trained:
    """The result of training; raises EngineError where a loss is NaN or infinite."""
    if not np.isfinite(result.loss).all():
        shown = ", ".join(f"{loss:.3g}" for loss in result.loss)
        raise EngineError(f"the loss is not finite: {shown}")
    return result


ULPS = {"infer": 1, "train": 16}
"""How far the parameters are moved to find the spread of a phase, in ULPs of the case's precision.

A training step has kinks (ReLU, clips, max-pool) and Adam divides by the gradient's own size: one
element on the other side of a kink changes a gradient by 1e-4 to 1e-3, and whether it falls there
is decided by an engine's rounding, which is several ULP of a parameter. docs/decisions/0003 has
the figures.
"""
FLOAT32_ULPS = {"bf16": 1 << 16, "fp16": 1 << 13}
"""ULPs of float32 in one of a narrower type: it has that many fewer bits of mantissa (7 and 10
against 23). Parameters are float32 before a runner rounds them, also those of a float64 case. A
float16 that is subnormal (below 6e-5) has larger steps than this."""


def spread(
    runner: Runner,
    work: Work,
    tensors: Arrays,
    perturbations: int,
    budget_s: float,
    every_batch: bool,
) -> tuple[dict[str, float], int]:
    """Largest RMS change of each tensor when every parameter moves by ``ULPS``, and the draws.

    Also for a narrower type than float32 the moved values are exact neighbours only before the
    runner rounds them: a parameter then moves by ``ULPS`` or, at a power of two, by twice that.

    At least two draws are made; then more, up to ``perturbations``, while the budget lasts. A draw
    that turns a tensor into NaN or Inf says nothing about it: an infinite spread would excuse all.
    """
    largest: dict[str, float] = {}
    begin = bench.now()
    done = 0
    ulps = ULPS[work.case.phase] * FLOAT32_ULPS.get(work.case.precision, 1)
    while done < perturbations and (done < 2 or bench.now() - begin < budget_s):
        moved = {
            name: draws.perturb(
                value,
                seed=work.case.seed + 1000 * (done + 1),
                name=name,
                ulps=ulps,
            )
            for name, value in work.parameters.items()
        }
        runner.bind(moved)
        infer = work.case.phase == "infer"
        changed = outputs(runner, work, every_batch) if infer else trained(runner, work)
        for name, value in changed.items():
            try:
                error = numerics.rms_error(value, tensors[name])
            except numerics.Incomparable:
                continue
            largest[name] = max(largest.get(name, 0.0), error)
        done += 1
    return largest, done
