"""What is compared: outputs, losses, gradients, trajectories and taps of a case, by name.

Tensors are called ``outputs/NAME`` (``outputs/NAME@2`` for the third batch), ``loss/STEP`` and
``gradients/STEP/NAME`` (each step "forced": from a state that is the same for every engine),
``trajectory/loss/STEP`` and ``trajectory/NAME`` (losses and last parameters of free training from
the bound parameters) and ``taps/NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench import bench, draws, numerics, ordinary
from xbench.data import digest
from xbench.errors import EngineError
from xbench.runners.base import Arrays, Runner, Trained, Work

ULPS = 1
"""How far parameters move to find the spread, in ULPs of the case's precision."""
TRAJECTORY_ULPS = 16
"""The same for free training. It has kinks (ReLU, clips, max-pool) and Adam divides by the
gradient's own size: one element on the other side of a kink changes a gradient by 1e-4 to 1e-3,
and whether it falls there is decided by an engine's rounding, which is several ULP of a parameter.
What a step computes from a given state is held to one ULP, and looked at operator by operator;
a trajectory cannot be. docs/decisions/0003 has the figures."""
FLOAT32_ULPS = {"bf16": 1 << 16, "fp16": 1 << 13}
"""ULPs of float32 in one of a narrower type: it has that many fewer bits of mantissa (7 and 10
against 23). Parameters are float32 before a runner rounds them, also those of a float64 case. A
float16 that is subnormal (below 6e-5) has larger steps than this."""
States = Sequence[Mapping[str, Any]]


def observe(
    runner: Runner,
    work: Work,
    *,
    every_batch: bool,
    taps: bool,
    states: States = (),
    made: list[Arrays] | None = None,
) -> Arrays:
    """Everything that the phase of the loaded case can be compared by.

    ``states`` holds the parameters to begin each training step from; the first step begins from
    the bound ones where there are none. Where ``made`` is given, the states are those of the free
    training of this case, rounded to float32, and are entered there: what every engine begins a
    forced step from, once the float64 reference has made them.
    """
    if work.case.phase == "train":
        trajectory = free(runner, work, work.parameters, made)
        tensors = forced(runner, work, states if made is None else made) | trajectory
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


def forced(runner: Runner, work: Work, states: States) -> Arrays:
    """Loss and gradients of one step from each of the states, on its batch.

    Whatever a trajectory amplifies is left out: step 3 begins where it begins for every engine.
    """
    tensors: Arrays = {}
    for step, state in enumerate(states or [work.parameters]):
        runner.bind(dict(state))
        result = finite(runner.train([step]))
        tensors[f"loss/{step}"] = np.asarray(result.loss[0], held_in(work))
        for name, value in result.gradients[0].items():
            tensors[f"gradients/{step}/{name}"] = value
    return tensors


def free(
    runner: Runner,
    work: Work,
    start: Mapping[str, Any],
    made: list[Arrays] | None = None,
) -> Arrays:
    """Losses along free training from ``start``, and the parameters after the last step.

    The parameters before each step are entered into ``made``, rounded to float32.
    """
    runner.bind(dict(start))
    tensors: Arrays = {}
    now: Mapping[str, Any] = start
    for step in range(len(work.batches)):
        if made is not None:
            made.append({name: value.astype(np.float32) for name, value in now.items()})
        result = finite(runner.train([step]))
        tensors[f"trajectory/loss/{step}"] = np.asarray(result.loss[0], held_in(work))
        now = result.parameters
    return tensors | {f"trajectory/{name}": value for name, value in now.items()}


def held_in(work: Work) -> str:
    """The dtype of what a runner hands out: float32 for every narrower type."""
    return "float64" if work.case.precision == "fp64" else "float32"


def finite(result: Trained) -> Trained:
    """The result of training; raises EngineError where a loss is NaN or infinite."""
    if not np.isfinite(result.loss).all():
        shown = ", ".join(f"{loss:.3g}" for loss in result.loss)
        raise EngineError(f"the loss is not finite: {shown}")
    return result


def bits(tensors: Arrays) -> dict[str, str]:
    """A digest of each tensor: whether two processes computed the same."""
    return {name: digest({name: value}) for name, value in tensors.items()}


def unlike(tensors: Arrays, digests: Mapping[str, str]) -> list[str]:
    """Names of the tensors that have another digest than they had elsewhere."""
    return [name for name, found in bits(tensors).items() if digests.get(name) != found]


def differences(first: Arrays, second: Arrays) -> dict[str, float]:
    """RMS distance of each tensor that is not the same in a second run; Inf where masks differ."""
    found = {}
    for name, value in first.items():
        if digest({name: value}) == digest({name: second[name]}):
            continue
        try:
            found[name] = numerics.rms_error(second[name], value)
        except numerics.Incomparable:
            found[name] = float("inf")
    return found


def spread(
    runner: Runner,
    work: Work,
    tensors: Arrays,
    perturbations: int,
    budget_s: float,
    every_batch: bool,
    states: States = (),
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
    while done < perturbations and (done < 2 or bench.now() - begin < budget_s):
        done += 1
        for name, value in changed(runner, work, 1000 * done, every_batch, states).items():
            try:
                error = ordinary.rms_error(value, tensors[name])
            except numerics.Incomparable:
                continue
            largest[name] = max(largest.get(name, 0.0), error)
    return largest, done


def changed(runner: Runner, work: Work, draw: int, every_batch: bool, states: States) -> Arrays:
    """What the case computes from parameters that were moved by one draw."""
    step = FLOAT32_ULPS.get(work.case.precision, 1)

    def moved(parameters: Mapping[str, Any], ulps: int) -> Arrays:
        seed = work.case.seed + draw
        return {
            name: draws.perturb(value, seed=seed, name=name, ulps=ulps * step)
            for name, value in parameters.items()
        }

    if work.case.phase == "infer":
        if work.parameters:
            runner.bind(moved(work.parameters, ULPS))
        else:
            runner.move(work.case.seed + draw, ULPS * step)
        return outputs(runner, work, every_batch)
    near = [moved(state, ULPS) for state in states or [work.parameters]]
    far = moved(work.parameters, TRAJECTORY_ULPS)
    return forced(runner, work, near) | free(runner, work, far)
