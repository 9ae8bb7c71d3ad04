"""bf16 and fp16: cast throughout, shown in float32, and refused where a kernel is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests import jobs
from xbench import draws, observe, registry
from xbench.jobs import Job
from xbench.launch import Launcher

EPS = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Unit roundoff: half the distance of 1 to its neighbour."""
NATIVES = ("torch", "tf")
PAIRS = [
    ("torch", "bf16"),
    ("torch", "fp16"),
    ("tf", "bf16"),
    pytest.param("tf", "fp16", marks=pytest.mark.prove),
]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(time_limit_s=300) as launcher:
        yield launcher


@pytest.mark.parametrize(("engine", "precision"), PAIRS)
def test_outputs_and_taps_are_of_that_precision(
    launcher: Launcher, engine: str, precision: str
) -> None:
    """Values that the type can hold, in float32, off float64 by about its rounding."""
    case = jobs.case("prednet", engine, precision=precision, threads=1)
    inputs = jobs.data_file(launcher, case)
    report = jobs.observe(launcher, case, inputs, taps=True, perturbations=2)
    seen = report.tensors()
    truth = jobs.observe(
        launcher, jobs.case("prednet", engine, precision="fp64", threads=1), inputs, taps=True
    ).tensors()
    # Low bits of a float32 that the type has not: 16 of bfloat16, 13 of float16.
    unused = {"bf16": 0xFFFF, "fp16": 0x1FFF}[precision]
    for name, value in seen.items():
        assert value.dtype == np.float32, name
        normal = np.abs(value) >= 2.0**-14
        assert not (value.view(np.uint32)[normal] & unused).any(), name
    error = jobs.worst_relative(seen, truth)["outputs"]
    # Seen: 1.3 and 1.2 roundings after 40 convolutions.
    assert EPS[precision] / 4 < error < 4 * EPS[precision]
    spread = report.spread["outputs/prediction"]
    scale = float(np.sqrt(np.mean(truth["outputs/prediction"] ** 2)))
    assert EPS[precision] / 4 < spread / scale < 8 * EPS[precision]


@pytest.mark.parametrize(("engine", "precision"), PAIRS)
def test_training_is_of_that_precision(launcher: Launcher, engine: str, precision: str) -> None:
    """The first step is off by some roundings; later ones depend on state in the type."""
    case = jobs.case("prednet", engine, "train", precision=precision, threads=1)
    inputs = jobs.data_file(launcher, case)
    seen = jobs.observe(launcher, case, inputs).tensors()
    truth = jobs.observe(
        launcher, jobs.case("prednet", engine, "train", precision="fp64", threads=1), inputs
    ).tensors()
    assert {value.dtype for value in seen.values()} == {np.dtype("float32")}
    assert all(np.isfinite(value).all() for value in seen.values())
    loss = float(seen["loss/0"] / truth["loss/0"]) - 1
    assert abs(loss) < 4 * EPS[precision]
    # Gradients below 6e-8 vanish in float16, hence the room.
    assert jobs.whole_relative(seen, truth, "gradients/0/") < 32 * EPS[precision]


def test_adam_moves_bf16_parameters_as_torch_does(launcher: Launcher) -> None:
    """TensorFlow's own kernel cannot: 0.999 is 1 in bfloat16, and 0/0 is NaN."""
    torch, tf = (jobs.case("prednet", e, "train", precision="bf16", threads=1) for e in NATIVES)
    inputs = jobs.data_file(launcher, torch, count=1)
    one, other = (jobs.observe(launcher, case, inputs).tensors() for case in (torch, tf))
    start = draws.parameters(registry.model("prednet"), "tiny", "probe", 0)
    moved = 0
    ends = jobs.last_parameters(other)
    for name, value in jobs.last_parameters(one).items():
        before = start[name]
        moved += int((np.abs(value - before) > 2.0**-7 * np.abs(before)).sum())
        # A step is 1e-3; gradients of another sign, near zero, may move the other way.
        assert np.abs(value - ends[name]).max() <= 2e-3 + 2.0**-7 * np.abs(value).max(), name
    assert moved, "no parameter moved by more than its rounding"


LACKING = {
    "torch": (
        "pt.py",
        "        return torch.stack([prediction[0]",
        "        torch.linalg.svdvals(frames[0, 0])\n        return torch.stack([prediction[0]",
        "not implemented for",
    ),
    "tf": (
        "tf.py",
        "        return tf.stack([prediction[0]",
        "        frames += tf.cast(tf.math.igamma(frames, frames), frames.dtype)\n"
        "        return tf.stack([prediction[0]",
        "No OpKernel was registered",
    ),
    "tf-xla": (
        "tf.py",
        "        return tf.stack([prediction[0]",
        "        frames += tf.raw_ops.Dilation2D(input=frames[:, 0], filter=frames[0, 0, :2, :2],\n"
        "            strides=[1] * 4, rates=[1] * 4, padding='SAME')[:, None]\n"
        "        return tf.stack([prediction[0]",
        "No registered 'Dilation2D' OpKernel",
    ),
}


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("torch", "measure"), ("torch", "observe"), ("tf", "observe"), ("tf-xla", "measure")],
)
def test_a_missing_kernel_is_unsupported(launcher: Launcher, engine: str, kind: str) -> None:
    file, old, new, reason = LACKING[engine]
    name = f"zz_lacking_{engine.replace('-', '_')}"
    with jobs.model_copy("prednet", name, {file: (old, new)}):
        case = jobs.case(name, engine, precision="bf16", batch=2, threads=1)
        inputs = jobs.data_file(launcher, case, count=1)
        job = Job(kind=kind, case=case, folder=str(launcher.folder()), inputs=str(inputs))
        report = launcher.run(job)
    assert report.status == "unsupported", report.reason
    assert reason in report.reason
    assert "\n" not in report.reason


def test_parameters_move_by_ulps_of_the_precision() -> None:
    """One step of bfloat16 is 2^16 steps of float32, one of float16 2^13."""
    value = np.array([1.5, -0.3, 700.0, 1e-3], np.float32)
    for precision, bits in (("bf16", 7), ("fp16", 10)):
        ulps = observe.FLOAT32_ULPS[precision]
        moved = draws.perturb(value, seed=0, name="x", ulps=ulps)
        step = 2.0 ** (np.floor(np.log2(np.abs(value))) - bits)
        assert np.array_equal(np.abs(moved - value), step.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("ulps", [1, 2, 5, 16, 100])
def test_a_perturbation_is_so_many_calls_of_nextafter(dtype: str, ulps: int) -> None:
    """Across zero, subnormals, the largest and what is not finite."""
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        tiny = limits.smallest_subnormal
        corners = [0.0, tiny, 3 * tiny, limits.tiny, 1.0, 2.0, limits.max, np.inf, np.nan]
        values = np.array([x for x in corners for _ in range(40)], dtype)
        values = np.concatenate([values, -values])
        moved = draws.perturb(values, seed=ulps, name="x", ulps=ulps)
        ends = []
        for end in (np.inf, -np.inf):
            walked = values
            for _ in range(ulps):
                walked = np.nextafter(walked, np.array(end, dtype))
            still = (values == 0) | ~np.isfinite(values) | ~np.isfinite(walked)
            ends.append(np.where(still, values, walked).view(f"u{values.itemsize}"))
    assert moved.dtype == values.dtype
    bits = moved.view(f"u{values.itemsize}")
    up, down = (bits == end for end in ends)
    assert (up | down).all()
    apart = ends[0] != ends[1]
    assert up[apart].any()
    assert down[apart].any()


# What a CPU does inside: (1 + x) - 1 is 0 where each operator rounds, x where a compiler keeps
# more; a sum of 4608 ones stays far below that where it is kept in the type itself. Operands are
# arguments: XLA's algebra makes x of (1 + x) - 1, in float32 too.
ARITHMETIC = {
    "torch": """
import torch
for name in ("bfloat16", "float16"):
    dtype = getattr(torch, name)
    body = lambda x, one: (one + x) - one
    x, one = torch.tensor([2.0**-13], dtype=dtype), torch.ones(1, dtype=dtype)
    ones, kernel = torch.ones(1, 512, 3, 3, dtype=dtype), torch.ones(1, 512, 3, 3, dtype=dtype)
    print(float(body(x, one)), float(torch.nn.functional.conv2d(ones, kernel)))
""",
    "torch-compile": """
import torch
for name in ("bfloat16", "float16"):
    dtype = getattr(torch, name)
    body = torch.compile(lambda x, one: (one + x) - one)
    x, one = torch.tensor([2.0**-13], dtype=dtype), torch.ones(1, dtype=dtype)
    print(float(body(x, one)), 4608.0)
""",
    "tf": """
import tensorflow as tf
for dtype in (tf.bfloat16, tf.float16):
    body = tf.function(lambda x, one: (one + x) - one, jit_compile=JIT, autograph=False)
    product = tf.function(
        lambda a, b: tf.nn.conv2d(a, b, 1, "VALID"), jit_compile=JIT, autograph=False
    )
    x, one = tf.constant([2.0**-13], dtype), tf.ones([1], dtype)
    ones, kernel = tf.ones([1, 3, 3, 512], dtype), tf.ones([3, 3, 512, 1], dtype)
    print(float(body(x, one)[0]), float(product(ones, kernel)[0, 0, 0, 0]))
""",
}
ARITHMETIC["tf-xla"] = ARITHMETIC["tf"].replace("JIT", "True")
ARITHMETIC["tf"] = ARITHMETIC["tf"].replace("JIT", "None")


@pytest.mark.parametrize(
    "engine",
    [
        "torch",
        "tf",
        pytest.param("tf-xla", marks=pytest.mark.prove),
        pytest.param("torch-compile", marks=pytest.mark.prove),
    ],
)
def test_what_arithmetic_is_done_in(engine: str) -> None:
    """The ground of ``effective_precision`` on the CPU: only inductor keeps float32 in between."""
    done = subprocess.run(
        [sys.executable, "-c", ARITHMETIC[engine]], capture_output=True, text=True, check=True
    )
    seen = [tuple(float(word) for word in line.split()) for line in done.stdout.splitlines()]
    between = 2.0**-13 if engine == "torch-compile" else 0.0
    assert seen == [(between, 4608.0)] * 2


# A runner that is told it is on CUDA, where every call of the device is a fake that takes notes.
CUDA_TORCH = """
import torch
from types import SimpleNamespace
from xbench.runners import pt
notes = []
class Event:
    def __init__(self, enable_timing): assert enable_timing
    def record(self): notes.append("record")
    def synchronize(self): notes.append("event complete")
    def elapsed_time(self, other): return 2.5
torch.cuda.Event = Event
torch.cuda.synchronize = lambda: notes.append("synchronize")
torch.Tensor.pin_memory = lambda tensor: (notes.append("pin"), tensor.clone())[1]
torch.cuda.get_device_capability = lambda device: (9, 0)
runner = pt.TorchRunner("torch")
runner.device = SimpleNamespace(type="cuda")
runner.work = SimpleNamespace(case=SimpleNamespace(precision="fp32"))
runner.batches = [{"x": torch.ones(3)}]
runner.body = lambda: runner.batches[0]["x"] * 2
timer = runner.device_timer()
timer.start(); timer.stop()
assert abs(timer.elapsed_s() - 2.5e-3) < 1e-12
whole = runner.end_to_end()
runner.batches[0]["x"].zero_()
assert [x.tolist() for x in whole()] == [[2, 2, 2]], "inputs came from the host"
assert notes == ["record", "record", "event complete", "pin", "synchronize"], notes
switches = torch.backends.cudnn, torch.backends.cuda.matmul
def precision(convolutions, products):
    switches[0].allow_tf32, switches[1].allow_tf32 = convolutions, products
    return runner.effective_precision()
assert precision(True, False) == "tf32 convolutions"
assert precision(True, True) == "tf32"
assert precision(False, True) == "tf32 products"
assert precision(False, False) == ""
assert precision(True, True) == "tf32"
torch.cuda.get_device_capability = lambda device: (7, 5)
assert runner.effective_precision() == "", "no tensor cores for TF32"
runner.device = SimpleNamespace(type="cpu")
assert runner.device_timer() is None and runner.end_to_end() is None
assert runner.effective_precision() == ""
"""
CUDA_TF = """
import tensorflow as tf
from types import SimpleNamespace
from xbench.runners import tf as module
runner = module.TensorFlowRunner("tf")
runner.work = SimpleNamespace(case=SimpleNamespace(device="cuda", precision="fp32"))
runner.device = "/device:CPU:0"
runner.batches = [[tf.ones([3])]]
seen = []
def body(x):
    seen.append(x)
    return x * 2
runner.body = body
whole = runner.end_to_end()
assert [x.tolist() for x in whole()] == [[2, 2, 2]]
whole()
assert seen[0] is not seen[1] and seen[0] is not runner.batches[0][0], "a fresh copy every time"
tf.config.list_physical_devices = lambda kind: ["gpu"]
details = {"compute_capability": (9, 0)}
tf.config.experimental.get_device_details = lambda gpu: details
assert runner.effective_precision() == "tf32"
tf.config.experimental.enable_tensor_float_32_execution(False)
assert runner.effective_precision() == ""
tf.config.experimental.enable_tensor_float_32_execution(True)
details["compute_capability"] = (7, 5)
assert runner.effective_precision() == ""
runner.work.case.device = "cpu"
assert runner.end_to_end() is None and runner.device_timer() is None
assert runner.effective_precision() == ""
"""


@pytest.mark.parametrize("code", [CUDA_TORCH, CUDA_TF], ids=["torch", "tf"])
def test_what_a_cuda_runner_does(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
