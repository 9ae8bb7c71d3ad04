"""Clipped gradients in both frameworks against the formula that the specification states."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from xbench.spec import ClipNorm

GRADIENTS = [
    np.linspace(-3.0, 4.0, 35).reshape(5, 7),
    np.full(11, 1e-3),
    np.zeros(3),
    np.array([[30.0, -40.0]]),
    np.full(900, 2100.0),
]
"""The squares of the last are beyond float16, and so is their norm with the others' in it."""
CLIPS = {
    "all-above": ClipNorm(5.0),
    "all-below": ClipNorm(1e6),
    "each": ClipNorm(10.0, per_tensor=True),
}
TOLERANCES = (("float64", 1e-14), ("float32", 1e-6), ("bfloat16", 0.02), ("float16", 0.004))
COMMON = """
import json, sys
import numpy as np
import msgspec
from xbench.spec import ClipNorm
asked = json.loads(sys.stdin.read())
gradients = [np.array(gradient) for gradient in asked["gradients"]]
print(json.dumps({
    f"{name} {dtype}": follow(msgspec.convert(fields, ClipNorm), dtype)
    for dtype in ("float64", "float32", "bfloat16", "float16")
    for name, fields in asked["clips"].items()
}))
"""
CODE = {
    "torch": """
import torch
from xbench.runners import pt_optimizers
def follow(clip, dtype):
    zeros = [torch.zeros(g.shape, dtype=getattr(torch, dtype)) for g in gradients]
    held = [torch.nn.Parameter(zero) for zero in zeros]
    for parameter, gradient in zip(held, gradients):
        parameter.grad = torch.tensor(gradient).to(parameter.dtype)
    unused = torch.nn.Parameter(torch.zeros(2))
    pt_optimizers.clip(clip, [*held, unused])
    return [parameter.grad.double().tolist() for parameter in held]
""",
    "tf": """
import tensorflow as tf
from xbench.runners import tf_optimizers
def follow(clip, dtype):
    found = tf_optimizers.clipped(clip, [tf.cast(gradient, dtype) for gradient in gradients])
    assert {value.dtype for value in found} == {tf.as_dtype(dtype)}
    return [tf.cast(value, tf.float64).numpy().tolist() for value in found]
""",
}


def expected(clip: ClipNorm) -> list[Any]:
    """The gradients after clipping, in float64."""
    squares = [float(np.square(gradient).sum()) for gradient in GRADIENTS]
    norms = np.sqrt(squares if clip.per_tensor else [sum(squares)] * len(squares))
    factors = [min(1.0, clip.limit / norm) if norm else 1.0 for norm in norms]
    return [gradient * factor for gradient, factor in zip(GRADIENTS, factors, strict=True)]


@pytest.fixture(scope="module", params=CODE)
def found(request: Any) -> dict[str, list[Any]]:
    """Clipped gradients by ``NAME DTYPE`` of one framework."""
    asked = {
        "gradients": [gradient.tolist() for gradient in GRADIENTS],
        "clips": msgspec.to_builtins(CLIPS),
    }
    code = COMMON.replace("print(", CODE[request.param] + "print(")
    made = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return dict(json.loads(made.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", CLIPS)
def test_the_formula_is_the_specified_one(found: dict[str, list[Any]], name: str) -> None:
    truth = expected(CLIPS[name])
    changed = [not np.array_equal(a, b) for a, b in zip(truth, GRADIENTS, strict=True)]
    assert (
        changed
        == {
            "all-above": [True, True, False, True, True],
            "all-below": [False] * 5,
            "each": [True, False, False, True, True],
        }[name]
    )
    for dtype, tolerance in TOLERANCES:
        for value, wanted in zip(found[f"{name} {dtype}"], truth, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=1e-7)
