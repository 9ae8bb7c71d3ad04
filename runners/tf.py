"""TensorFlow: graphs of tf.function, channels last."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf

from xbench import registry
from xbench.errors import EngineError, FellBack, Unavailable, Unsupported
from xbench.result import Operators, Placement, Profile
from xbench.runners import profile_tf, tf_operators, tf_optimizers
from xbench.runners.base import Array, Arrays, Runner, Trained, Work, as_tuple
from xbench.spec import PRECISIONS

ENGINES = {"tf": {"order": 1, "native": True, "packages": ("tensorflow", "keras")}}

Tensor = Any
P = ParamSpec("P")
R = TypeVar("R")

LACKS = re.compile(
    r"No OpKernel was registered|No registered '\w+' OpKernel|not in list of allowed values"
    r"|no supported kernel for|mixed precision is disallowed|requires tf\.float32 or"
)
"""What TensorFlow says where it has no kernel for a type or on a device."""


def lacks_kernels(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, raising Unsupported with TensorFlow's words where it lacks a kernel."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            # The lines that follow list kernels and where the operator was made.
            line = str(error).strip().partition("\n")[0]
            if LACKS.search(line):
                raise Unsupported(f"tensorflow: {line}") from error
            raise

    return call


class TensorFlowRunner(Runner):
    """A ``tf.Module`` under tf.function, without XLA and without soft placement."""

    jit: bool | None = None
    """``jit_compile`` of every tf.function."""

    def probe(self, device: str) -> dict[str, str]:
        gpus = tf.config.list_physical_devices("GPU")
        if device == "cuda" and not gpus:
            built = "" if tf.test.is_built_with_cuda() else ", which is built without CUDA"
            raise Unavailable(f"tensorflow {tf.__version__}{built} finds no GPU: {no_gpu()}")
        tf.config.set_soft_device_placement(False)
        with tf.device(device_name(device)):
            x = tf.ones([8, 8])
            product = self.graph(tf.matmul)(x, x)
        if float(tf.reduce_sum(product)) != 512.0:
            raise Unavailable(f"a product of ones on {device} came out wrong")
        if device == "cuda":
            return {"gpu": str(tf.config.experimental.get_device_details(gpus[0])["device_name"])}
        return {}

    def load(self, work: Work) -> None:
        case = work.case
        # One operator at a time, each on all threads: what torch and ORT do by default too.
        tf.config.threading.set_intra_op_parallelism_threads(case.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_soft_device_placement(False)
        if case.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        tf.random.set_seed(case.seed)
        self.work = work
        self.device = device_name(case.device)
        self.dtype = tf.as_dtype(PRECISIONS[case.precision])
        self.specs = {spec.name: spec for spec in work.spec.parameters(work.config)}
        self.input_specs = [
            spec
            for spec in work.spec.step_inputs(work.config, case.phase)
            if spec.name in work.batches[0]
        ]
        with tf.device(self.device):
            self.variables = {
                name: tf.Variable(
                    self.layout(name, array), name=name, trainable=self.specs[name].trainable
                )
                for name, array in work.parameters.items()
            }
            self.trained = {
                name: variable for name, variable in self.variables.items() if variable.trainable
            }
            self.optimizer = tf_optimizers.make(work.spec.optimizer, list(self.trained.values()))
            self.batches = [
                [tf.constant(self.typed(spec.to_tf(batch[spec.name]))) for spec in self.input_specs]
                for batch in work.batches
            ]
        module = registry.model_part(case.model, "tf")
        self.model = module.build(work.config, self.variables)
        self.bind(work.parameters)
        self.shown_step = self.graph(self.show_step)
        self.last: tuple[Tensor, ...] = ()
        self.inference = self.graph(self.forward)
        self.body = self.graph(self.train_step) if case.phase == "train" else self.inference

    def graph(self, body: Callable[..., Any]) -> Any:
        """A tf.function without autograph.

        Models write their control flow as TensorFlow operators, so there is no Python to convert,
        and looking for some takes 0.4 s of every trace.
        """
        return tf.function(body, autograph=False, jit_compile=self.jit)

    compiles = True

    @lacks_kernels
    def compile(self) -> None:
        with tf.device(self.device):
            self.body.get_concrete_function(*self.batches[0])

    def layout(self, name: str, array: Array) -> Array:
        """A parameter in TensorFlow's layout and the case's dtype."""
        return self.typed(self.specs[name].to_tf(array))

    def typed(self, array: Array) -> Array:
        """Floats in the case's dtype, and integers as they are."""
        dtype = self.dtype.as_numpy_dtype if array.dtype.kind == "f" else array.dtype
        return np.ascontiguousarray(array, dtype)

    def bind(self, parameters: Arrays) -> None:
        self.saved = {name: self.layout(name, array) for name, array in parameters.items()}
        self.restore()

    def restore(self) -> None:
        for name, variable in self.variables.items():
            variable.assign(self.saved[name])
        self.optimizer.reset()

    def reset(self) -> None:
        if self.work.case.phase == "train":
            self.restore()

    @lacks_kernels
    def run(self) -> None:
        with tf.device(self.device):
            self.last = as_tuple(self.body(*self.batches[0]))
        if self.work.case.device == "cuda":
            tf.test.experimental.sync_devices()

    def forward(self, *inputs: Tensor) -> Tensor:
        with tf.name_scope("forward"):
            return self.model(*inputs)

    def gradients(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape, tf.name_scope("forward"):
            loss = self.model.objective(*inputs, loss=self.work.case.loss)
        found = tape.gradient(loss, list(self.trained.values()))
        # A table of which rows were looked up has a sparse gradient.
        return loss, [tf.convert_to_tensor(gradient) for gradient in found]

    def show_step(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """A training step that also hands out its gradients, clipped if they are."""
        loss, gradients = self.gradients(*inputs)
        with tf.name_scope("optimizer"):
            if self.work.spec.clip is not None:
                gradients = tf_optimizers.clipped(self.work.spec.clip, gradients)
            self.optimizer.apply(gradients)
        return loss, gradients

    def train_step(self, *inputs: Tensor) -> Tensor:
        return self.show_step(*inputs)[0]

    def check(self) -> None:
        if not all(np.isfinite(shown(tensor)).all() for tensor in self.last):
            what = "loss" if self.work.case.phase == "train" else "output"
            raise EngineError(f"the {what} is not finite")

    def placement(self) -> list[Placement]:
        # Soft placement is off, so a kernel that the device lacks fails instead of moving.
        held = {tensor.device for tensor in self.last if self.device not in tensor.device}
        if held:
            raise FellBack(f"asked for {self.work.case.device}, results are on {sorted(held)}")
        operations = self.body.get_concrete_function(*self.batches[0]).graph.get_operations()
        elsewhere = {op.device for op in operations if op.device and self.device not in op.device}
        if elsewhere:
            raise FellBack(f"asked for {self.work.case.device}, operators are on {elsewhere}")
        return [Placement(ep=self.work.case.device, nodes=len(operations), time_share=1.0)]

    def end_to_end(self) -> Callable[[], object] | None:
        if self.work.case.device != "cuda":
            return None
        hosts = [tensor.numpy() for tensor in self.batches[0]]

        def whole() -> list[Array]:
            with tf.device(self.device):
                self.last = as_tuple(self.body(*[tf.constant(host) for host in hosts]))
            # The copy back waits for the device.
            return [tensor.numpy() for tensor in self.last]

        return whole

    def effective_precision(self) -> str:
        """TF32 where TensorFlow allows it for what was asked in float32.

        CPU kernels do bfloat16 and float16 as asked: each operator rounds its result to the type.
        """
        if self.work.case.device != "cuda" or self.work.case.precision != "fp32":
            return ""
        if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
            return ""
        gpu = tf.config.list_physical_devices("GPU")[0]
        details = tf.config.experimental.get_device_details(gpu)
        if details.get("compute_capability", (0, 0)) < (8, 0):
            return ""
        return "tf32" if tf.config.experimental.tensor_float_32_execution_enabled() else ""

    @lacks_kernels
    def infer(self, batch: int = 0) -> Arrays:
        with tf.device(self.device):
            outputs = as_tuple(self.inference(*self.batches[batch]))
        specs = self.work.spec.outputs(self.work.config)
        return {
            spec.name: np.ascontiguousarray(spec.from_tf(shown(value)))
            for spec, value in zip(specs, outputs, strict=True)
        }

    @lacks_kernels
    def taps(self) -> Arrays:
        with tf.device(self.device):
            taps = self.graph(self.model.taps)(*self.batches[0])
        specs = {spec.name: spec for spec in self.work.spec.taps(self.work.config)}
        return {
            name: np.ascontiguousarray(specs[name].from_tf(shown(value)))
            for name, value in taps.items()
        }

    @lacks_kernels
    def train(self, steps: Sequence[int]) -> Trained:
        names = list(self.trained)
        losses, gradients = [], []
        for step in steps:
            with tf.device(self.device):
                loss, grads = self.shown_step(*self.batches[step])
            losses.append(float(loss))
            gradients.append(
                {name: self.canonical(name, grad) for name, grad in zip(names, grads, strict=True)}
            )
        final = {name: self.canonical(name, value) for name, value in self.variables.items()}
        return Trained(losses, gradients, final)

    def canonical(self, name: str, tensor: Tensor) -> Array:
        """A parameter-shaped tensor in the canonical layout."""
        return np.ascontiguousarray(self.specs[name].from_tf(shown(tensor)))

    @lacks_kernels
    def operators(self, step: int) -> Operators:
        # The optimizer's kernel writes its variables, which a check of one operator must not.
        body = self.gradients if self.work.case.phase == "train" else self.forward
        with tf.device(self.device):
            return tf_operators.operators(body, *self.batches[step])

    @lacks_kernels
    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        profile = profile_tf.profile(self.run, steps, self.work.folder / "tf-profile")
        return profile, {self.work.case.device: 1.0}


def shown(tensor: Tensor) -> Array:
    """As numpy; bfloat16 and float16 in float32, which holds them exactly."""
    array: Array = tensor.numpy()
    return array.astype(np.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else array


def device_name(device: str) -> str:
    return "/device:GPU:0" if device == "cuda" else "/device:CPU:0"


def no_gpu() -> str:
    """The first thing that a GPU needs and that is missing."""
    if not Path("/proc/driver/nvidia/version").exists():
        return "no NVIDIA driver is loaded"
    return "the driver is loaded; the log of the worker names the library that is missing"


def make(engine: str) -> TensorFlowRunner:
    return TensorFlowRunner(engine)
