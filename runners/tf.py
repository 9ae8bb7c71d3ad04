"""TensorFlow: graphs of tf.function, channels last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from xbench import registry
from xbench.errors import EngineError, FellBack, Unavailable
from xbench.result import Placement, Profile
from xbench.runners import profile_tf
from xbench.runners.base import Array, Arrays, Runner, Trained, Work
from xbench.runners.tf_optimizers import AdamState
from xbench.spec import PRECISIONS

ENGINES = {"tf": {"order": 1, "native": True, "packages": ("tensorflow", "keras")}}

Tensor = Any


class TensorFlowRunner(Runner):
    """A ``tf.Module`` under tf.function, without XLA and without soft placement."""

    def probe(self, device: str) -> dict[str, str]:
        gpus = tf.config.list_physical_devices("GPU")
        if device == "cuda" and not gpus:
            built = "" if tf.test.is_built_with_cuda() else ", which is built without CUDA"
            raise Unavailable(f"tensorflow {tf.__version__}{built} finds no GPU: {no_gpu()}")
        tf.config.set_soft_device_placement(False)
        with tf.device(device_name(device)):
            x = tf.ones([8, 8])
            product = tf.matmul(x, x)
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
        self.input_specs = work.spec.inputs(work.config)
        with tf.device(self.device):
            self.variables = {
                name: tf.Variable(self.layout(name, array), name=name)
                for name, array in work.parameters.items()
            }
            self.optimizer = AdamState(work.spec.optimizer, list(self.variables.values()))
            self.batches = [
                [
                    tf.constant(np.ascontiguousarray(spec.to_tf(batch[spec.name])), self.dtype)
                    for spec in self.input_specs
                ]
                for batch in work.batches
            ]
        module = registry.model_part(case.model, "tf")
        self.model = module.build(work.config, self.variables)
        self.bind(work.parameters)
        self.shown_step = graph(self.show_step)
        self.last: Tensor = None
        self.inference = graph(self.forward)
        self.body = graph(self.train_step) if case.phase == "train" else self.inference

    compiles = True

    def compile(self) -> None:
        with tf.device(self.device):
            self.body.get_concrete_function(*self.batches[0])

    def layout(self, name: str, array: Array) -> Array:
        """A parameter in TensorFlow's layout and the case's dtype."""
        return np.ascontiguousarray(self.specs[name].to_tf(array), self.dtype.as_numpy_dtype)

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

    def run(self) -> None:
        with tf.device(self.device):
            self.last = self.body(*self.batches[0])
        if self.work.case.device == "cuda":
            tf.test.experimental.sync_devices()

    def forward(self, *inputs: Tensor) -> Tensor:
        with tf.name_scope("forward"):
            return self.model(*inputs)

    def gradients(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape, tf.name_scope("forward"):
            loss = self.model.objective(*inputs, loss=self.work.case.loss)
        return loss, tape.gradient(loss, list(self.variables.values()))

    def show_step(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """A training step that also hands out its gradients."""
        loss, gradients = self.gradients(*inputs)
        with tf.name_scope("optimizer"):
            self.optimizer.apply(gradients)
        return loss, gradients

    def train_step(self, *inputs: Tensor) -> Tensor:
        return self.show_step(*inputs)[0]

    def check(self) -> None:
        if self.last is not None and not np.isfinite(self.last.numpy()).all():
            what = "loss" if self.work.case.phase == "train" else "output"
            raise EngineError(f"the {what} is not finite")

    def placement(self) -> list[Placement]:
        # Soft placement is off, so a kernel that the device lacks fails instead of moving.
        if self.last is not None and self.device not in self.last.device:
            raise FellBack(
                f"asked for {self.work.case.device}, the result is on {self.last.device}"
            )
        operations = self.body.get_concrete_function(*self.batches[0]).graph.get_operations()
        elsewhere = {op.device for op in operations if op.device and self.device not in op.device}
        if elsewhere:
            raise FellBack(f"asked for {self.work.case.device}, operators are on {elsewhere}")
        return [Placement(ep=self.work.case.device, nodes=len(operations), time_share=1.0)]

    def infer(self, batch: int = 0) -> Arrays:
        (spec,) = self.work.spec.outputs(self.work.config)
        with tf.device(self.device):
            output = self.inference(*self.batches[batch])
        return {spec.name: np.ascontiguousarray(spec.from_tf(output.numpy()))}

    def taps(self) -> Arrays:
        with tf.device(self.device):
            taps = graph(self.model.taps)(*self.batches[0])
        specs = {spec.name: spec for spec in self.work.spec.taps(self.work.config)}
        return {
            name: np.ascontiguousarray(specs[name].from_tf(value.numpy()))
            for name, value in taps.items()
        }

    def train(self) -> Trained:
        names = list(self.variables)
        losses, gradients = [], []
        for batch in self.batches:
            with tf.device(self.device):
                loss, grads = self.shown_step(*batch)
            losses.append(float(loss))
            gradients.append(
                {name: self.canonical(name, grad) for name, grad in zip(names, grads, strict=True)}
            )
        final = {name: self.canonical(name, value) for name, value in self.variables.items()}
        return Trained(losses, gradients, final)

    def canonical(self, name: str, tensor: Tensor) -> Array:
        """A parameter-shaped tensor in the canonical layout."""
        return np.ascontiguousarray(self.specs[name].from_tf(tensor.numpy()))

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        profile = profile_tf.profile(self.run, steps, self.work.folder / "tf-profile")
        return profile, {self.work.case.device: 1.0}


def graph(body: Callable[..., Any]) -> Any:
    """A tf.function without autograph.

    Models write their control flow as TensorFlow operators, so there is no Python to convert, and
    looking for some takes 0.4 s of every trace.
    """
    return tf.function(body, autograph=False)


def device_name(device: str) -> str:
    return "/device:GPU:0" if device == "cuda" else "/device:CPU:0"


def no_gpu() -> str:
    """The first thing that a GPU needs and that is missing."""
    if not Path("/proc/driver/nvidia/version").exists():
        return "no NVIDIA driver is loaded"
    return "the driver is loaded; the log of the worker names the library that is missing"


def make(engine: str) -> TensorFlowRunner:
    return TensorFlowRunner(engine)
