"""What can be asked for: tensors, parameters, models and cases. Plain values, no framework.

A tensor has one canonical layout (PyTorch's) and may have another in TensorFlow. Both are
written as one letter per axis, so a layout change is a permutation that can be checked:
``NTCHW`` against ``NTHWC``, ``OIHW`` against ``HWIO``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np

PHASES = ("infer", "train")
DEVICES = ("cpu", "cuda")
SOURCES = ("torch", "tf")
FILE = "file"
"""Source of a graph that is a user's ONNX file."""
PRECISIONS = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}
"""What parameters, inputs and arithmetic are asked to be in, by the command line's name."""
ARRAYS = {
    "float16", "float32", "float64", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
"""What inputs of a file may hold and which outputs can be compared: numpy's names."""
Shape = tuple[int, ...]
ANY_RANK = "..."
"""The whole shape of a tensor of which its file does not say how many dimensions it has."""


class TensorSpec(msgspec.Struct, frozen=True):
    """Name, canonical shape and layouts of one tensor.

    ``shape`` holds ints, or the name of a dynamic axis: ``"batch"``, or what the hyper-parameters
    of a model call a length (``"time"``). ``axes`` and ``tf_axes`` name the axes in the canonical
    and in TensorFlow's order; empty means the same in both.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    axes: str = ""
    tf_axes: str = ""

    def __post_init__(self) -> None:
        if sorted(self.axes) != sorted(self.tf_axes):
            raise ValueError(f"{self.name}: {self.axes!r} and {self.tf_axes!r} name other axes")
        if self.axes and len(set(self.axes)) != len(self.shape):
            raise ValueError(f"{self.name}: {self.axes!r} does not name {len(self.shape)} axes")

    @property
    def to_tf_order(self) -> tuple[int, ...]:
        """Permutation that takes the canonical layout to TensorFlow's."""
        if not self.axes:
            return tuple(range(len(self.shape)))
        return tuple(self.axes.index(axis) for axis in self.tf_axes)

    @property
    def from_tf_order(self) -> tuple[int, ...]:
        """Permutation that takes TensorFlow's layout to the canonical one."""
        order = self.to_tf_order
        return tuple(order.index(axis) for axis in range(len(order)))

    def to_tf(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array in TensorFlow's layout (a view)."""
        return array.transpose(self.to_tf_order)

    def from_tf(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array in the canonical layout (a view)."""
        return array.transpose(self.from_tf_order)

    def at(self, **axes: int) -> tuple[int, ...]:
        """The shape with its dynamic axes bound, as in ``spec.at(batch=4)``."""
        return tuple(axes[size] if isinstance(size, str) else size for size in self.shape)

    def of(self, config: Any, batch: int) -> tuple[int, ...]:
        """The shape at ``batch``, with every other dynamic axis as long as ``config`` says.

        A name is a field or a property of ``config``.
        """
        lengths = {
            size: batch if size == "batch" else getattr(config, size)
            for size in self.shape
            if isinstance(size, str)
        }
        return self.at(**lengths)


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Values drawn evenly from [low, high)."""

    low: float
    high: float


class Normal(msgspec.Struct, frozen=True, tag="normal"):
    """Values drawn from the normal distribution."""

    mean: float = 0.0
    std: float = 1.0


class Bernoulli(msgspec.Struct, frozen=True, tag="bernoulli"):
    """1 / ``keep`` with probability ``keep``, else 0: a dropout mask that keeps the mean."""

    keep: float


class LogUniform(msgspec.Struct, frozen=True, tag="log-uniform"):
    """Integers k from 0 to ``count`` - 1 with probability log((k + 2) / (k + 1)) / log(count + 1).

    Close to how often words occur that are numbered from the most frequent on (Zipf's law): the
    candidates of a sampled softmax.
    """

    count: int


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """One value everywhere."""

    value: float


class ParameterSpec(TensorSpec, frozen=True, kw_only=True):
    """A parameter: ``init`` is the published initialiser, ``probe`` a continuous distribution.

    Agreements use ``probe``: at an initialiser that sets biases to zero, a dropped bias or two
    swapped gates change nothing and no comparison could find them. One that is not ``trainable``
    (a running statistic, a target network) gets no gradient. One that is not read in
    ``inference`` is in no exported graph.
    """

    init: Uniform | Normal | Constant
    probe: Uniform
    trainable: bool = True
    inference: bool = True


class DrawSpec(TensorSpec, frozen=True, kw_only=True):
    """A random input of a training step: a dropout mask, the noise of a latent variable, ids.

    What is drawn ``LogUniform`` is of int64, everything else of float32.
    """

    distribution: Normal | Bernoulli | LogUniform


class Adam(msgspec.Struct, frozen=True, tag="adam"):
    """Adam as PyTorch writes it: p -= lr * mhat / (sqrt(vhat) + eps) (Kingma & Ba 2014, alg. 1)."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class SGD(msgspec.Struct, frozen=True, tag="sgd"):
    """Gradient descent as PyTorch writes it: g += weight_decay * p; b = momentum * b + g;
    p -= lr * b, or with ``nesterov`` p -= lr * (g + momentum * b). b begins at 0.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class RMSProp(msgspec.Struct, frozen=True, tag="rmsprop"):
    """RMSProp as PyTorch writes it: v = alpha * v + (1 - alpha) * g^2; d = g / (sqrt(v) + eps);
    b = momentum * b + d; p -= lr * b. ``centered`` subtracts the square of the mean gradient,
    m = alpha * m + (1 - alpha) * g, from v under the root (Graves 2013, eq. 38-41). All begin at 0.
    """

    lr: float
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False


Optimizer = Adam | SGD | RMSProp


class ClipNorm(msgspec.Struct, frozen=True):
    """Gradients times min(1, ``limit`` / norm) before the optimizer sees them.

    The norm is the root of the sum of squares over all gradients together, or ``per_tensor``
    (Pascanu, Mikolov & Bengio 2013, algorithm 1).
    """

    limit: float
    per_tensor: bool = False


def nothing(config: Any) -> tuple[Any, ...]:
    """No tensors: what a model without targets or draws has of them."""
    return ()


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the toolkit must know of a model that needs no framework.

    ``sizes`` maps a size to the model's own hyper-parameters; the callables take one of those.
    The first of ``losses`` is the default. ``batch`` is the default batch of each size.

    ``inputs`` are what inference takes. A training step takes ``targets`` after them, and
    ``draws`` after these, which a definition that is not given them draws itself.

    ``lengths`` are the fields of a size's hyper-parameters that only say how long inputs are: a
    graph is exported for all of them. ``native_losses`` names, for a loss that a definition writes
    in plain operators, the one that uses the framework's own, which is timed where draws are
    native. ``infer_batch`` are the batches of inference where they are not ``batch``. ``flops``
    counts the floating-point operations of inference on one item, two for a multiplication and an
    addition, of convolutions and matrix products alone.
    """

    name: str
    title: str
    paper: str
    sizes: Mapping[str, Any]
    batch: Mapping[str, int]
    parameters: Callable[[Any], tuple[ParameterSpec, ...]]
    inputs: Callable[[Any], tuple[TensorSpec, ...]]
    outputs: Callable[[Any], tuple[TensorSpec, ...]]
    taps: Callable[[Any], tuple[TensorSpec, ...]]
    losses: tuple[str, ...]
    optimizer: Optimizer
    data: str
    targets: Callable[[Any], tuple[TensorSpec, ...]] = nothing
    draws: Callable[[Any], tuple[DrawSpec, ...]] = nothing
    clip: ClipNorm | None = None
    lengths: tuple[str, ...] = ()
    native_losses: Mapping[str, str] = {}
    infer_batch: Mapping[str, tuple[int, ...]] = {}
    flops: Callable[[Any], int] | None = None

    def parameter_count(self, size: str) -> int:
        """Number of trainable values at ``size``."""
        found = self.parameters(self.sizes[size])
        return sum(math.prod(parameter.at()) for parameter in found if parameter.trainable)

    def exported(self, config: Any) -> tuple[ParameterSpec, ...]:
        """The parameters that inference reads, and an exported graph therefore holds."""
        return tuple(item for item in self.parameters(config) if item.inference)

    def batches(self, size: str, phase: str) -> tuple[int, ...]:
        """The batches that a phase is measured at where none is asked for."""
        own = self.infer_batch.get(size, ()) if phase == "infer" else ()
        return own or (self.batch[size],)

    def fitted(self, config: Any, shapes: Mapping[str, Shape]) -> Any:
        """``config`` with ``lengths`` as long as inputs of these canonical shapes are."""
        found = {
            size: shapes[item.name][axis]
            for item in self.inputs(config)
            for axis, size in enumerate(item.shape)
            if size in self.lengths
        }
        return dataclasses.replace(config, **found) if found else config

    def step_inputs(self, config: Any, phase: str) -> tuple[TensorSpec, ...]:
        """What a body of ``phase`` takes, in this order: inputs; in training targets and draws."""
        if phase == "infer":
            return self.inputs(config)
        return (*self.inputs(config), *self.targets(config), *self.draws(config))


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs of an ONNX file, which has no ``ModelSpec``: names, dtypes and shapes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def file_spec(name: str, signature: Signature) -> ModelSpec:
    """What stands for the specification of a user's ONNX file: inputs, outputs, and no parameters.

    It has one size, which is called by no name.
    """
    return ModelSpec(
        name=name,
        title=name,
        paper="",
        sizes={"": None},
        batch={"": 1},
        parameters=lambda _: (),
        inputs=lambda _: signature.inputs,
        outputs=lambda _: signature.outputs,
        taps=lambda _: (),
        losses=(),
        optimizer=Adam(),
        data="",
    )


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, gc=False):
    """One cell to measure. Two cases with equal fields are the same experiment.

    ``graph`` is the digest of a user's ONNX file (``source`` is then ``file``): a file is known by
    its content. ``cycle`` holds the shapes that follow ``shape`` in turn in the same session.
    ``concurrency`` is how many threads call one session at once. ``arm`` tells two measurements of
    one experiment apart, as the sides of a comparison that is measured again.
    """

    model: str
    size: str
    phase: str
    engine: str
    device: str
    source: str | None = None
    env: str = "default"
    threads: int = 1
    precision: str = "fp32"
    batch: int = 1
    shape: Mapping[str, Shape] = {}
    cycle: tuple[Mapping[str, Shape], ...] = ()
    concurrency: int = 1
    graph: str = ""
    arm: str = ""
    draws: str = "fed"
    loss: str = ""
    options: Mapping[str, str] = {}
    seed: int = 0

    @property
    def label(self) -> str:
        """What a table calls the case: engine, source, device and precision where not fp32.

        The source of a user's file is the name of the file.
        """
        source = self.model if self.source == FILE else self.source
        engine = self.engine if source is None else f"{self.engine}({source})"
        # An engine may be called by the precision that it is for.
        told = self.precision == "fp32" or PRECISIONS[self.precision] == self.engine
        precision = "" if told else f" {self.precision}"
        arm = f" {self.arm}" if self.arm else ""
        return f"{engine} {self.device}{precision}{arm}"

    @property
    def title(self) -> str:
        """The label, and the options: what a sentence calls the case."""
        return ", ".join([self.label, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def key(self) -> str:
        """Ten hex digits that name the experiment: over every field that is not at its default.

        A field that a later version adds therefore leaves the keys of stored runs as they are.
        """
        defaults = msgspec.to_builtins(PLAIN)
        fields = {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name in REQUIRED or value != defaults[name]
        }
        return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:10]


PLAIN = Case(model="", size="", phase="", engine="", device="")
"""Every field of a case at its default."""
REQUIRED = ("model", "size", "phase", "engine", "device")
