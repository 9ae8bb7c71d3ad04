"""Optimizers of both frameworks against the formulas that the specification states."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from xbench.spec import SGD, Adam, Optimizer, RMSProp

Array = np.ndarray[Any, Any]
STEPS = 6
PLACES = 14
"""Vectors are 70 long: kernels work on several elements at once, and on the rest one by one."""
SCALE = np.repeat([1.0, -1e-3, 30.0, 0.0, 1e-5], PLACES)
START = np.repeat([0.5, -1.0, 2.0, 0.25, 1e-3], PLACES) * np.linspace(0.9, 1.1, 5 * PLACES)

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Adam(lr=0.01),
    "adam-large-epsilon": Adam(lr=0.01, beta1=0.8, beta2=0.9, eps=0.1),
    "sgd": SGD(lr=0.1),
    "decay": SGD(lr=0.1, weight_decay=0.05),
    "momentum": SGD(lr=0.1, momentum=0.9),
    "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    "rmsprop": RMSProp(lr=0.01, alpha=0.9, eps=0.1),
    "rmsprop-momentum": RMSProp(lr=0.01, alpha=0.95, eps=0.01, momentum=0.95, centered=True),
}


def gradient(value: Any, step: int) -> Any:
    """Of some function: elements of very different size, and one that is always 0."""
    return SCALE * (0.5 + value * value) / (1.0 + value * value) * (1.0 if step % 3 else -2.0)


def expected(optimizer: Optimizer) -> list[list[float]]:
    """The parameters after each step, by the docstrings of ``xbench.spec``, in float64."""
    p = START.copy()
    m, v, b = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    seen = []
    for step in range(STEPS):
        g = gradient(p, step)
        match optimizer:
            case Adam(lr=lr, beta1=b1, beta2=b2, eps=eps):
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                corrected = v / (1 - b2 ** (step + 1))
                p = p - lr * (m / (1 - b1 ** (step + 1))) / (np.sqrt(corrected) + eps)
            case SGD(lr=lr, momentum=mu, nesterov=nesterov, weight_decay=decay):
                g = g + decay * p
                b = mu * b + g
                p = p - lr * (g + mu * b if nesterov else b)
            case RMSProp(lr=lr, alpha=alpha, eps=eps, momentum=mu, centered=centered):
                v = alpha * v + (1 - alpha) * g**2
                m = alpha * m + (1 - alpha) * g
                d = g / (np.sqrt(v - m**2 if centered else v) + eps)
                b = mu * b + d
                p = p - lr * b
        seen.append(p.tolist())
    return seen


COMMON = """
import json, sys
import numpy as np
import msgspec
from xbench.spec import Optimizer
asked = json.loads(sys.stdin.read())
SCALE, START = (np.array(asked[key]) for key in ("scale", "start"))
def gradient(value, step):
    return SCALE * (0.5 + value * value) / (1.0 + value * value) * (1.0 if step % 3 else -2.0)
found = {}
for dtype in ("float64", "float32", "bfloat16"):
    for name, fields in asked["optimizers"].items():
        found[f"{name} {dtype}"] = follow(msgspec.convert(fields, Optimizer), dtype, asked["steps"])
print(json.dumps(found))
"""
TORCH = """
import torch
from xbench.runners import pt_optimizers
def follow(optimizer, dtype, steps):
    p = torch.nn.Parameter(torch.tensor(START, dtype=getattr(torch, dtype)))
    made = pt_optimizers.make(optimizer, [p])
    seen = []
    for step in range(steps):
        p.grad = torch.tensor(gradient(p.detach().double().numpy(), step), dtype=p.dtype)
        made.step()
        seen.append(p.detach().double().tolist())
    return seen
"""
TF = """
import tensorflow as tf
from xbench.runners import tf_optimizers
def follow(optimizer, dtype, steps):
    p = tf.Variable(tf.cast(START, dtype))
    made = tf_optimizers.make(optimizer, [p])
    step_once = tf.function(lambda g: made.apply([g]), autograph=False)
    seen = []
    for attempt in range(2):
        # The second time from the same start: reset forgets all.
        p.assign(tf.cast(START, dtype))
        made.reset()
        seen.append([])
        for step in range(steps):
            step_once(tf.cast(gradient(tf.cast(p, tf.float64).numpy(), step), dtype))
            seen[-1].append(tf.cast(p, tf.float64).numpy().tolist())
    assert seen[0] == seen[1], "the state was not reset"
    return seen[0]
"""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[list[float]]]]:
    """The parameters after each step, by framework and ``NAME DTYPE``, from one process each."""
    asked = json.dumps(
        {
            "steps": STEPS,
            "scale": SCALE.tolist(),
            "start": START.tolist(),
            "optimizers": msgspec.to_builtins(OPTIMIZERS),
        }
    )
    results = {}
    for framework, code in (("torch", TORCH), ("tf", TF)):
        made = subprocess.run(
            [sys.executable, "-c", COMMON.replace("found = {}", code + "found = {}")],
            input=asked, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        results[framework] = json.loads(made.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("framework", ["torch", "tf"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_formula_is_the_specified_one(found: Any, framework: str, name: str) -> None:
    truth = np.array(expected(OPTIMIZERS[name]))
    assert len({tuple(step) for step in truth.tolist()}) == STEPS, "every step changes something"
    for dtype, tolerance in (("float64", 1e-12), ("float32", 3e-6)):
        values = np.array(found[framework][f"{name} {dtype}"])
        np.testing.assert_allclose(values, truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_narrow_types_lose_no_more_than_rounding(found: Any, name: str) -> None:
    """Within a few steps of bfloat16 of each other, and of the truth.

    PyTorch's fused SGD of 2.13.0 is not, on the CPU, where a vector is long enough.
    """
    torch, tf = (np.array(found[f][f"{name} bfloat16"]) for f in ("torch", "tf"))
    truth = np.array(expected(OPTIMIZERS[name]))
    # An element that comes near 0 keeps the rounding of what it was before.
    step = 2.0**-7 * np.maximum(np.abs(truth).max(axis=0), 2.0**-7)
    assert (np.abs(torch - tf) <= 4 * step).all()
    assert (np.abs(tf - truth) <= 2 * STEPS * step).all()
