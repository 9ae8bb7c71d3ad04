"""Gradients where a function has a kink or a tie: both frameworks choose the same side."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

COMMON = """
import json
import numpy as np
# Few different numbers, so that nearly every window has ties; zeros of both signs.
x = np.random.default_rng(0).integers(-1, 3, (2, 3, 9, 9)).astype(np.float64)
x[0, 0, 0, :2] = -0.0
weights = np.random.default_rng(1).random((2, 3, 9, 9))
"""
TORCH = """
import torch
import torch.nn.functional as F
def gradient(body):
    y = torch.tensor(x, requires_grad=True)
    z = body(y)
    (z * torch.tensor(weights[:, :, : z.shape[2], : z.shape[3]])).sum().backward()
    return y.grad.tolist()
found = {
    "relu": gradient(F.relu),
    "pool2": gradient(lambda y: F.max_pool2d(y, 2)),
    "pool3": gradient(lambda y: F.max_pool2d(y, 3, 2)),
    "pool3 padded": gradient(lambda y: F.max_pool2d(y, 3, 2, padding=1)),
    "relu pool": gradient(lambda y: F.max_pool2d(F.relu(y), 3, 2, padding=1)),
}
print(json.dumps(found))
"""
TF = """
import tensorflow as tf
from xbench.models.layers_tf import max_pool
def gradient(body):
    y = tf.constant(x.transpose(0, 2, 3, 1))
    with tf.GradientTape() as tape:
        tape.watch(y)
        z = body(y)
        w = weights.transpose(0, 2, 3, 1)[:, : z.shape[1], : z.shape[2]]
        total = tf.reduce_sum(z * w)
    return tape.gradient(total, y).numpy().transpose(0, 3, 1, 2).tolist()
def shared(y):
    "Maxima as a reduction, whose gradient is shared between ties."
    y = y[:, :8, :8]
    return tf.reduce_max(tf.reshape(y, [2, 4, 2, 4, 2, 3]), axis=[2, 4])
found = {
    "relu": gradient(tf.nn.relu),
    "pool2": gradient(lambda y: max_pool(y, size=2, stride=2)),
    "pool3": gradient(lambda y: max_pool(y, size=3, stride=2)),
    "pool3 padded": gradient(lambda y: max_pool(y, size=3, stride=2, pad=1)),
    "pool3 padded xla": gradient(lambda y: max_pool(y, size=3, stride=2, pad=1, xla=True)),
    "relu pool": gradient(lambda y: max_pool(tf.nn.relu(y), size=3, stride=2, pad=1)),
    "trap": gradient(shared),
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def gradients() -> dict[str, dict[str, Any]]:
    """The gradients by framework and function, (batch, channels, height, width)."""
    found = {}
    for framework, code in (("torch", TORCH), ("tf", TF)):
        done = subprocess.run(
            [sys.executable, "-P", "-c", COMMON + code],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[framework] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["relu", "pool2", "pool3", "pool3 padded", "relu pool"])
def test_the_same_side_is_chosen(gradients: dict[str, dict[str, Any]], name: str) -> None:
    np.testing.assert_allclose(gradients["tf"][name], gradients["torch"][name], rtol=1e-12)


def test_padding_made_for_xla_never_wins(gradients: dict[str, dict[str, Any]]) -> None:
    np.testing.assert_array_equal(
        gradients["tf"]["pool3 padded xla"], gradients["tf"]["pool3 padded"]
    )


def test_a_gradient_shared_between_ties_is_found(gradients: dict[str, dict[str, Any]]) -> None:
    difference = np.subtract(gradients["tf"]["trap"], gradients["torch"]["pool2"])
    assert np.abs(difference).max() > 0.1
