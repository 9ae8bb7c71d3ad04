"""Small hand-made ONNX networks on which the law of the verdict is tried.

Parameters come from ``xbench.draws`` alone (same bits on every machine), from continuous
distributions without zeros, so that a dropped bias or two swapped gates change something;
gains are such that activations stay within about 0.05 to 20 (RMS). Two networks are large on
purpose: ``bigmatmul`` sums 4096 products, ``sum10m`` ten million terms, where engines differ most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xbench import draws
from xbench.spec import Uniform

Array = np.ndarray[Any, Any]

OPSET = 18
IR = 9
BATCH = "batch"


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A network and the shapes its inputs get.

    ``shapes``: by input, with the batch that suits it, first axis; ``below``: for inputs of
    integers, what their values stay below. ``opset`` is that of the default domain.
    """

    name: str
    model: onnx.ModelProto
    shapes: dict[str, tuple[int, ...]]
    below: dict[str, int] = {}
    opset: int = OPSET

    def feeds(self, batch: int | None = None, *, seed: int = 0) -> dict[str, Array]:
        """Inputs: floats evenly from [-1, 1), integers evenly from 0 to what they stay below."""
        found = {}
        for name, shape in self.shapes.items():
            shape = (batch or shape[0], *shape[1:])
            values = draws.draw(Uniform(-1.0, 1.0), shape, seed=seed, name=f"{self.name}/{name}")
            if name in self.below:
                words = draws.stream("ids", seed, f"{self.name}/{name}").random_raw(values.size)
                values = (words % np.uint64(self.below[name])).astype(np.int64).reshape(shape)
            found[name] = values
        return found


class Graph:
    """A graph as it grows. Tensors are their names; a parameter is made where it is used."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.below: dict[str, int] = {}

    def input(self, name: str, shape: tuple[int, ...], *, below: int = 0, free: int = 1) -> str:
        """An input whose first ``free`` axes are dynamic; of int64 where ``below`` is given."""
        kind = TensorProto.INT64 if below else TensorProto.FLOAT
        axes = [BATCH, *(f"{name}_{axis}" for axis in range(1, free)), *shape[free:]]
        self.inputs.append(helper.make_tensor_value_info(name, kind, axes))
        self.shapes[name] = shape
        if below:
            self.below[name] = below
        return name

    def output(self, name: str, *shape: int, kind: int = TensorProto.FLOAT) -> None:
        """An output with a batch in front of ``shape``."""
        self.outputs.append(helper.make_tensor_value_info(name, kind, [BATCH, *shape]))

    def add(self, op: str, *inputs: str, out: str = "", outputs: int = 1, **attributes: Any) -> str:
        """A node; the name of its first output, the others being that with ``_1`` and so on."""
        label = f"{op.lower()}_{len(self.nodes)}"
        first = out or f"{label}_out"
        names = [first, *(f"{first}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op, [*inputs], names, name=label, **attributes))
        return first

    def const(self, value: Any, dtype: str = "float32") -> str:
        """A constant that is no parameter."""
        name = f"const_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        """A constant list of int64."""
        return self.const(values, "int64")

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> str:
        """A parameter drawn evenly from [low, high)."""
        name = f"{name}_{len(self.initializers)}"
        values = draws.draw(Uniform(low, high), shape, seed=0, name=f"{self.name}/{name}")
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, shape: tuple[int, ...], fan_in: int, gain: float = 1.0) -> str:
        """A weight with variance gain^2 / fan_in: the product keeps the size of its input."""
        limit = gain * math.sqrt(3.0 / fan_in)
        return self.uniform("weight", shape, -limit, limit)

    def bias(self, size: int, *, ones: bool = False) -> str:
        """A vector around 0, or around 1 for a scale or a variance."""
        return self.uniform("bias", (size,), *((0.5, 1.5) if ones else (-0.5, 0.5)))

    def conv(self, x: str, cin: int, cout: int, kernel: int = 3, **attributes: Any) -> str:
        """A convolution with a bias; the gain makes up for the Relu before it."""
        weight = self.weight((cout, cin, kernel, kernel), cin * kernel * kernel, 1.4)
        return self.add("Conv", x, weight, self.bias(cout), **attributes)

    def batch_norm(self, x: str, channels: int) -> str:
        """A batch normalisation by stored statistics."""
        scale, shift = self.bias(channels, ones=True), self.bias(channels)
        mean, variance = self.bias(channels), self.bias(channels, ones=True)
        return self.add("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5)

    def linear(self, x: str, cin: int, cout: int, out: str = "") -> str:
        """A Gemm with the weight as PyTorch stores it."""
        weight = self.weight((cout, cin), cin)
        return self.add("Gemm", x, weight, self.bias(cout), out=out, transB=1)

    def affine(self, x: str, cin: int, cout: int, out: str = "") -> str:
        """A MatMul over the last axis and a bias."""
        product = self.add("MatMul", x, self.weight((cin, cout), cin))
        return self.add("Add", product, self.bias(cout), out=out)

    def group_norm(self, x: str, groups: int, channels: int, size: int, out: str = "") -> str:
        """Group normalisation as PyTorch exports it; x is [batch, channels, size, size]."""
        ones, zeros = self.const(np.ones(groups)), self.const(np.zeros(groups))
        flat = self.add("Reshape", x, self.ints(0, groups, channels // groups * size * size))
        normal = self.add("InstanceNormalization", flat, ones, zeros, epsilon=1e-5)
        back = self.add("Reshape", normal, self.ints(0, channels, size, size))
        scale = self.uniform("scale", (channels, 1, 1), 0.5, 1.5)
        shift = self.uniform("shift", (channels, 1, 1), -0.5, 0.5)
        return self.add("Add", self.add("Mul", back, scale), shift, out=out)

    def done(self) -> Network:
        """The finished network. Raises onnx.checker.ValidationError where it is not valid."""
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, self.initializers
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR,
            producer_name="xbench",
        )
        onnx.checker.check_model(model, full_check=True)
        return Network(name=self.name, model=model, shapes=self.shapes, below=self.below)


def convnet() -> Network:
    """Convolutions with uneven pads, batch norm, every common pooling, a classifier."""
    g = Graph("convnet")
    x = g.input("image", (2, 3, 32, 32))
    x = g.conv(x, 3, 16, pads=[0, 1, 2, 1], strides=[1, 1])
    x = g.add("Relu", g.batch_norm(x, 16))
    x = g.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = g.conv(x, 16, 32, pads=[1, 1, 1, 1])
    x = g.add("Relu", g.batch_norm(x, 32))
    x = g.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.conv(x, 32, 32, kernel=4, pads=[1, 2, 2, 1], group=1)
    x = g.add("Flatten", g.add("GlobalAveragePool", g.add("Relu", x)), axis=1)
    g.linear(x, 32, 10, out="logits")
    g.add("Softmax", "logits", out="probabilities", axis=1)
    g.output("logits", 10)
    g.output("probabilities", 10)
    return g.done()


def resnet() -> Network:
    """Three residual blocks with batch norm, one of which halves the image."""
    g = Graph("resnet")
    x = g.input("image", (2, 3, 32, 32))
    x = g.add("Relu", g.batch_norm(g.conv(x, 3, 16, pads=[1, 1, 1, 1]), 16))
    for cin, cout, stride in ((16, 16, 1), (16, 32, 2), (32, 32, 1)):
        y = g.conv(x, cin, cout, pads=[1, 1, 1, 1], strides=[stride, stride])
        y = g.add("Relu", g.batch_norm(y, cout))
        y = g.batch_norm(g.conv(y, cout, cout, pads=[1, 1, 1, 1]), cout)
        if (cin, stride) != (cout, 1):
            x = g.batch_norm(g.conv(x, cin, cout, kernel=1, strides=[stride, stride]), cout)
        x = g.add("Relu", g.add("Add", x, y))
    x = g.add("Flatten", g.add("GlobalAveragePool", x), axis=1)
    g.linear(x, 32, 10, out="logits")
    g.output("logits", 10)
    return g.done()


def lstm() -> Network:
    """An embedding, a bidirectional LSTM, a GRU and a projection at every step."""
    vocabulary, width, hidden, steps, classes = 50, 16, 16, 12, 20
    g = Graph("lstm")
    ids = g.input("ids", (2, steps), below=vocabulary)
    x = g.add("Gather", g.uniform("embedding", (vocabulary, width), -1.0, 1.0), ids, axis=0)
    x = g.add("Transpose", x, perm=[1, 0, 2])
    cell = [
        g.weight((2, 4 * hidden, width), width, 1.5),
        g.weight((2, 4 * hidden, hidden), hidden, 1.5),
        g.uniform("bias", (2, 8 * hidden), -0.5, 0.5),
    ]
    x = g.add("LSTM", x, *cell, hidden_size=hidden, direction="bidirectional")
    x = g.add("Transpose", x, perm=[0, 2, 1, 3])
    x = g.add("Reshape", x, g.ints(0, 0, 2 * hidden))
    cell = [
        g.weight((1, 3 * hidden, 2 * hidden), 2 * hidden, 3.0),
        g.weight((1, 3 * hidden, hidden), hidden, 1.5),
        g.uniform("bias", (1, 6 * hidden), -0.5, 0.5),
    ]
    x = g.add("GRU", x, *cell, hidden_size=hidden, linear_before_reset=1)
    x = g.add("Squeeze", x, g.ints(1))
    g.affine(g.add("Transpose", x, perm=[1, 0, 2]), hidden, classes, out="logits")
    g.output("logits", steps, classes)
    return g.done()


def attention() -> Network:
    """A transformer block: layer norms, masked attention of four heads, a Gelu by Erf."""
    length, width, heads = 16, 32, 4
    each = width // heads
    g = Graph("attention")
    x = g.input("tokens", (2, length, width))
    mask = g.input("mask", (2, length), below=2)
    keep = g.add("Cast", mask, to=TensorProto.BOOL)
    keep = g.add("Unsqueeze", keep, g.ints(1, 2))

    def norm(value: str) -> str:
        scale, shift = g.bias(width, ones=True), g.bias(width)
        return g.add("LayerNormalization", value, scale, shift, axis=-1, epsilon=1e-5)

    def split(value: str, perm: list[int]) -> str:
        """The heads of a projection, as [batch, heads, ...]."""
        parts = g.add("Reshape", g.affine(value, width, width), g.ints(0, 0, heads, each))
        return g.add("Transpose", parts, perm=perm)

    y = norm(x)
    query, key = split(y, [0, 2, 1, 3]), split(y, [0, 2, 3, 1])
    scores = g.add("Div", g.add("MatMul", query, key), g.const(math.sqrt(each)))
    scores = g.add("Where", keep, scores, g.const(-8.0))
    weights = g.add("Softmax", scores, axis=-1)
    y = g.add("MatMul", weights, split(y, [0, 2, 1, 3]))
    y = g.add("Transpose", y, perm=[0, 2, 1, 3])
    y = g.affine(g.add("Reshape", y, g.ints(0, 0, width)), width, width)
    x = g.add("Add", x, y)
    y = g.affine(norm(x), width, 2 * width)
    erf = g.add("Erf", g.add("Div", y, g.const(math.sqrt(2.0))))
    half = g.add("Mul", g.add("Mul", y, g.add("Add", erf, g.const(1.0))), g.const(0.5))
    g.add("Add", x, g.affine(half, 2 * width, width), out="features")
    g.output("features", length, width)
    return g.done()


def embedding() -> Network:
    """Ids to a vector, one id replaced, averaged, classified: logits and the winner's index."""
    vocabulary, width, length, classes = 40, 24, 12, 8
    g = Graph("embedding")
    ids = g.input("ids", (2, length), below=vocabulary)
    table = g.uniform("embedding", (vocabulary, width), -3.0, 3.0)
    x = g.add("Gather", table, ids, axis=0)
    rare = g.add("Less", ids, g.const(vocabulary // 4, "int64"))
    rare = g.add("Unsqueeze", rare, g.ints(2))
    x = g.add("Where", rare, g.uniform("rare", (width,), -3.0, 3.0), x)
    x = g.add("ReduceMean", x, g.ints(1), keepdims=0)
    x = g.add("Tanh", g.linear(x, width, width))
    g.linear(x, width, classes, out="logits")
    g.add("ArgMax", "logits", out="label", axis=1, keepdims=0)
    g.output("logits", classes)
    g.output("label", kind=TensorProto.INT64)
    return g.done()


def resize() -> Network:
    """An image made smaller, and larger again in two ways, with a reflecting border."""
    g = Graph("resize")
    x = g.input("image", (2, 3, 24, 24))
    x = g.add("Relu", g.conv(x, 3, 8, pads=[1, 1, 1, 1], strides=[2, 2]))
    scales = g.const([1.0, 1.0, 2.0, 2.0])
    linear = g.add("Resize", x, "", scales, mode="linear")
    nearest = g.add(
        "Resize",
        g.conv(x, 8, 8, kernel=1),
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    x = g.add("Concat", linear, nearest, axis=1)
    x = g.add("Pad", x, g.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    g.add("Tanh", g.conv(x, 16, 3), out="image_out")
    g.output("image_out", 3, 24, 24)
    return g.done()


def pooling() -> Network:
    """Averages of several kinds and norms over other axes than the batch."""
    g = Graph("pooling")
    x = g.conv(g.input("image", (2, 3, 24, 24)), 3, 16, pads=[1, 1, 1, 1])
    pool: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
    x = g.add("AveragePool", x, count_include_pad=1, pads=[1, 1, 1, 1], **pool)
    x = g.group_norm(x, 4, 16, 12)
    x = g.add("LpPool", x, p=2, pads=[0, 0, 1, 1], **pool)
    x = g.add("InstanceNormalization", x, g.bias(16, ones=True), g.bias(16), epsilon=1e-5)
    x = g.add("LRN", x, size=5, alpha=0.1, beta=0.75, bias=1.0)
    x = g.add("Clip", x, g.const(-0.9), g.const(1.1))
    x = g.add("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1], pads=[1, 0, 0, 1])
    g.linear(g.add("Flatten", g.add("GlobalMaxPool", x), axis=1), 16, 10, out="logits")
    g.output("logits", 10)
    return g.done()


def bigmatmul() -> Network:
    """One product that sums 4096 terms."""
    g = Graph("bigmatmul")
    x = g.input("x", (8, 4096))
    g.add("MatMul", x, g.weight((4096, 256), 4096), out="y")
    g.output("y", 256)
    return g.done()


def sum10m() -> Network:
    """One sum of ten million terms; how many are summed is a matter of the input's shape."""
    g = Graph("sum10m")
    x = g.input("x", (1, 10_000_000), free=2)
    g.add("ReduceSum", x, g.ints(1), out="y", keepdims=0)
    g.output("y")
    return g.done()


def tanh() -> Network:
    """One Tanh on a large tensor."""
    g = Graph("tanh")
    g.add("Tanh", g.input("x", (1, 512, 512)), out="y")
    g.output("y", 512, 512)
    return g.done()


def averagepool() -> Network:
    """One average pooling whose border does not count."""
    g = Graph("averagepool")
    x = g.input("x", (2, 16, 48, 48))
    g.add("AveragePool", x, out="y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0)
    g.output("y", 16, 48, 48)
    return g.done()


def groupnorm() -> Network:
    """One group normalisation, as PyTorch exports it."""
    g = Graph("groupnorm")
    g.group_norm(g.input("x", (2, 16, 24, 24)), 4, 16, 24, out="y")
    g.output("y", 16, 24, 24)
    return g.done()


MAKERS: Mapping[str, Callable[[], Network]] = {
    maker.__name__: maker
    for maker in (
        convnet,
        resnet,
        lstm,
        attention,
        embedding,
        resize,
        pooling,
        bigmatmul,
        sum10m,
        tanh,
        averagepool,
        groupnorm,
    )
}


def networks() -> dict[str, Network]:
    """Every network by its name."""
    return {name: make() for name, make in MAKERS.items()}


def write(folder: Path) -> dict[str, Path]:
    """Write every network into ``folder`` as NAME.onnx; the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, network in networks().items():
        paths[name] = folder / f"{name}.onnx"
        onnx.save(network.model, paths[name])
    return paths
