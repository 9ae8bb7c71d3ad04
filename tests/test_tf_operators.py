"""TensorFlow, operator by operator: correct kernels pass, planted faults are named.

TensorFlow runs in a process of its own, which prints what was found.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from xbench.result import Operators

GRAPPLER = "operators were checked as written, without what Grappler fuses or folds"

CODE = '''
import sys
from pathlib import Path
import msgspec
import numpy as np
import tensorflow as tf
from tests import jobs
from xbench import draws, registry
from xbench.runners import tf_operators
from xbench.runners.base import Work
from xbench.runners.tf import TensorFlowRunner
from xbench.runners.tf_operators import operators

found = {}
spec = registry.model("prednet")
config = registry.config(spec, "tiny")
random = np.random.default_rng(0)
frames = {i.name: random.random(i.at(batch=2), np.float32) for i in spec.inputs(config)}
parameters = draws.parameters(spec, "tiny", "probe", 0)
runner = TensorFlowRunner("tf")
case = jobs.case("prednet", "tf", "train", batch=2, threads=1)
runner.load(Work(case, spec, config, parameters, [frames], None, Path(sys.argv[1])))
with tf.device(runner.device):
    found["infer"] = operators(runner.forward, *runner.batches[0])
    found["train"] = operators(runner.gradients, *runner.batches[0])

kernel = tf.Variable(random.standard_normal((3, 3, 3, 4), np.float32))
scale = tf.Variable(tf.ones([4]))
moving = tf.Variable(tf.zeros([4]))
x = tf.constant(random.standard_normal((4, 8, 8, 3), np.float32))

@tf.function(autograph=False)
def inner(y):
    return tf.nn.gelu(y)

def network(x):
    """Batch norm, a called function, a loop and a branch, with their gradients."""
    with tf.GradientTape() as tape:
        y = tf.nn.conv2d(x, kernel, 1, "SAME")
        y, mean, _, *_ = tf.raw_ops.FusedBatchNormV3(
            x=y, scale=scale, offset=scale, mean=[], variance=[], is_training=True
        )
        moving.assign_sub(0.1 * (moving - mean))
        y = inner(tf.nn.max_pool2d(tf.nn.relu(y), 2, 2, "VALID"))
        y = tf.nn.dropout(y, 0.5)
        y = tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.sin(z)), (0, y))[1]
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: y * 2.0, lambda: y)
        loss = tf.reduce_mean(tf.nn.softmax(y)) + tf.reduce_mean(tf.square(y))
    return loss, tape.gradient(loss, [kernel, scale]), tf.argmax(y, -1)

found["network"] = operators(network, x)
assert not moving.numpy().any()

def responses(x):
    """Local response normalisation at an alpha that acts, and its gradient."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.local_response_normalization(x * 5.0, 2, bias=2.0, alpha=0.1, beta=0.75)
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, x)

channels = tf.concat([x, 2.0 * x, -x], -1)
found["responses"] = operators(responses, channels)
# A reference that divides alpha by the size, as another framework does, is another function.
right = dict(tf_operators.REFERENCES)
for name in ("LRN", "LRNGrad"):
    def wrong(given, attributes, of=right[name]):
        return of(given, attributes | {"alpha": attributes["alpha"] / 5})
    tf_operators.REFERENCES = right | {name: wrong}
    found[f"wrong {name}"] = operators(responses, channels)
tf_operators.REFERENCES = right
counter = tf.Variable(1.0)
def counting(x):
    counter.assign_add(tf.reduce_mean(x))
    return tf.tanh(x)
tf_operators.ADDITIONS["AssignAddVariableOp"] = 1.001
found["wrong addition"] = operators(counting, x)
tf_operators.ADDITIONS["AssignAddVariableOp"] = 1.0
found["addition"] = operators(counting, x)
assert counter.numpy() == 1.0

def off(x):
    """Exact in float64, 1e-3 off in float32."""
    return x * 2 if x.dtype == np.float64 else (x * 2.002).astype(np.float32)

@tf.custom_gradient
def bent(x):
    def gradient(upstream):
        return tf.numpy_function(off, [upstream], tf.float32)
    return x * 2.0, gradient

def planted(x):
    return tf.tanh(tf.numpy_function(off, [tf.tanh(x)], tf.float32))

def planted_backwards(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.tanh(bent(tf.tanh(x))))
    return tape.gradient(y, x)

found["planted"] = operators(planted, x)
found["backwards"] = operators(planted_backwards, x)
def holed(x):
    """A NaN that float64 has not."""
    x = x.copy()
    if x.dtype == np.float32:
        x.flat[0] = np.nan
    return x

found["holed"] = operators(lambda x: tf.numpy_function(holed, [x], tf.float32) + 1.0, x)
half = tf.cast(tf.reshape(x, [32, 24]), tf.bfloat16)
found["bfloat16"] = operators(
    lambda x: tf.nn.softmax(tf.tanh(tf.matmul(x, x, transpose_b=True))), half
)
found["float64"] = operators(tf.exp, tf.cast(x, tf.float64))
print(msgspec.json.encode(found).decode())
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Operators]:
    folder: Path = tmp_path_factory.mktemp("tf")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, Operators])


def test_prednet_passes(found: dict[str, Operators]) -> None:
    assert found["infer"].checked > 150
    assert found["train"].checked > 500
    for phase in ("infer", "train"):
        assert found[phase].worst[0].score < 0.5
        assert found[phase].unchecked == []
        assert found[phase].remark == GRAPPLER


def test_batch_norm_loops_and_branches_pass(found: dict[str, Operators]) -> None:
    """Only dropout's bits are left out; the moving average is checked and stays as it was."""
    assert found["network"].checked > 60
    assert found["network"].worst[0].score < 1
    assert sorted(found["network"].unchecked) == [
        "RandomUniform (1 calls): random",
    ]


@pytest.mark.parametrize("where", ["planted", "backwards", "holed"])
def test_a_planted_fault_is_named(found: dict[str, Operators], where: str) -> None:
    worst = found[where].worst
    assert worst[0].op == "PyFunc"
    assert worst[0].score > 10
    assert worst[1].score < 1, "and nothing that comes after it"


def test_operators_without_a_double_kernel_are_held_to_their_formula(
    found: dict[str, Operators],
) -> None:
    assert found["responses"].unchecked == []
    assert {"LRN", "LRNGrad"} <= {item.op for item in found["responses"].worst}
    assert found["responses"].worst[0].score < 1
    for name in ("LRN", "LRNGrad"):
        assert found[f"wrong {name}"].worst[0].op == name
        assert found[f"wrong {name}"].worst[0].score > 10


def test_an_addition_to_a_variable_is_checked_on_a_copy(found: dict[str, Operators]) -> None:
    assert found["addition"].unchecked == []
    assert found["addition"].worst[0].score < 1
    assert found["wrong addition"].worst[0].op == "AssignAddVariableOp"
    assert found["wrong addition"].worst[0].score > 10


def test_other_types(found: dict[str, Operators]) -> None:
    assert (found["bfloat16"].checked, found["bfloat16"].unchecked) == (3, [])
    assert 0 < found["bfloat16"].worst[0].score < 1
    assert max(item.error_rms for item in found["bfloat16"].worst) > 1e-5
    assert found["float64"].checked == 0
    assert found["float64"].unchecked == []
