"""Every operator of a TensorFlow graph, held against itself in float64 on the inputs it had.

The graph of a body is walked operator by operator, each called eagerly as the kernel that the
executor would call. No reference of the whole network is needed: an operator is right when it is
within its own bound on its own inputs, and then a large difference at the end is rounding that the
network amplifies.

What the executor runs differs in one way: before it starts, Grappler folds constants, fuses
(``_FusedConv2D``) and changes layouts. The walk sees the operators as they were written, so a
fault that only a fused kernel has is not found here.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import function_def_to_graph

from xbench import numerics
from xbench.operators import check, looped, summed_up
from xbench.result import OperatorCheck, Operators
from xbench.verdict import EPS

Tensor = Any
Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]

WIDE = {tf.float32: tf.float64, tf.bfloat16: tf.float64, tf.float16: tf.float64}
WIDE |= {tf.complex64: tf.complex128}
EPSILON = {tf.float32: EPS["fp32"], tf.bfloat16: EPS["bf16"], tf.float16: EPS["fp16"]}
EPSILON |= {tf.complex64: EPS["fp32"]}

GRAPPLER = "operators were checked as written, without what Grappler fuses or folds"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf")
LOOPS = ("While", "StatelessWhile")
WRITES = re.compile(r"Assign.*|Resource(Apply|Sparse|Scatter).*|Scatter.*Variable.*|Restore.*")
"""Operators that change a variable. The walk leaves every variable as it is."""
ADDITIONS = {"AssignAddVariableOp": 1.0, "AssignSubVariableOp": -1.0}
"""Operators that add to a variable, as a running statistic is kept, and with which sign."""
RANDOM = re.compile(
    r"(Stateless)?(Random|Truncated|ParameterizedTruncated|Multinomial).*|.*Dropout"
)
STEPS = {"Ceil", "Floor", "Rint", "Round", "Sign", "FloorMod", "FloorDiv", "Mod", "TruncateMod"}
"""Operators that jump: a jump under one ULP of the input is no excuse, for they are exact."""
STILL = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape"}
STILL |= {"Reshape", "Squeeze", "ExpandDims", "Shape", "ShapeN", "Size", "Rank", "ZerosLike"}
"""Operators that compute nothing of the elements they are given."""
HANDLES = (tf.resource, tf.variant)
"""What is read or kept through these is moved, not computed."""
INDICES = {"ArgMax": 0, "ArgMin": 0, "TopKV2": 1}
"""Operators that give indices into their first input, and which result that is."""


def operators(function: Any, *args: Any, draws: int = 2) -> Operators:
    """Check each operator of ``function``, a ConcreteFunction or what tf.function can trace.

    ``args`` are the tensors it is called with. Variables are read and never written: an addition
    to one is checked on a copy, another operator that would write is left out, and said so; a later
    read sees the old value. Loops, branches and
    called functions are walked inside. ``draws``: how often the inputs of an operator are moved by
    one ULP for its bound.
    """
    if not hasattr(function, "captured_inputs"):
        # As the runner traces its own.
        function = tf.function(function, autograph=False).get_concrete_function(*args)
    walk = Walk(draws)
    values = [*tf.nest.flatten(args), *function.captured_inputs]
    walk.graph(function.graph, values)
    unchecked = [
        f"{name} ({count} calls): {reason}" for (name, reason), count in walk.skipped.most_common()
    ]
    plain = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer")
    return summed_up(walk.checks, unchecked, "" if plain else GRAPPLER)


class Walk:
    """Runs graphs eagerly, one operator after the other, and checks each."""

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self.checks: list[OperatorCheck] = []
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.random = np.random.default_rng(0)

    def graph(self, graph: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a FuncGraph for ``inputs``, captured ones at the end.

        A value is dropped after its last use.
        """
        operations = ordered(graph)
        uses = Counter(tensor.ref() for op in operations for tensor in op.inputs)
        uses.update(tensor.ref() for tensor in graph.outputs)
        values = dict(zip((tensor.ref() for tensor in graph.inputs), inputs, strict=True))
        for op in operations:
            if op.type == "Placeholder":
                continue
            given = [values[tensor.ref()] for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self.operation(op, given), strict=True):
                if uses[tensor.ref()]:
                    values[tensor.ref()] = value
            for tensor in op.inputs:
                uses[tensor.ref()] -= 1
                if not uses[tensor.ref()]:
                    del values[tensor.ref()]
        return [values[tensor.ref()] for tensor in graph.outputs]

    def operation(self, op: Any, given: list[Tensor]) -> Sequence[Tensor]:
        """What one operator gives; checked, where it computes."""
        if op.type in CALLS:
            return self.graph(function_of(op.get_attr("f")), given)
        if op.type in LOOPS:
            condition, body = (function_of(op.get_attr(key)) for key in ("cond", "body"))
            while bool(self.graph(condition, given)[0]):
                given = self.graph(body, given)
            return given
        if op.type in BRANCHES:
            key = "then_branch" if bool(given[0]) else "else_branch"
            return self.graph(function_of(op.get_attr(key)), given[1:])
        if op.type in ("Case", "StatelessCase"):
            branches = op.get_attr("branches")
            index = int(given[0])
            index = index if 0 <= index < len(branches) else len(branches) - 1
            return self.graph(function_of(branches[index]), given[1:])
        if op.type == "AssignVariableOp":
            return []  # A copy: nothing is computed.
        if op.type in ADDITIONS:
            self.addition(op, given)
            return []
        if WRITES.fullmatch(op.type):
            self.skipped[op.type, "changes a variable, which the check does not"] += 1
            return []
        attributes = attributes_of(op)
        with tf.device(op.device or None):
            actual = call(op.type, len(op.outputs), given, attributes)
        handles = any(tensor.dtype in HANDLES for tensor in (*given, *actual))
        if handles or op.type in STILL:
            return actual
        if any(tensor.dtype in WIDE for tensor in given):
            self.hold(op, given, attributes, actual)
        elif RANDOM.fullmatch(op.type):
            self.skipped[op.type, "random"] += 1
        return actual

    def addition(self, op: Any, given: list[Tensor]) -> None:
        """Check what an operator would make of its variable, on a copy of it."""
        handle, change = given
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=change.dtype)
        if before.dtype not in WIDE:
            return
        copy = tf.Variable(before)
        call(op.type, 0, [copy.handle, change], {"dtype": change.dtype})
        old, new = (tf.cast(tensor, WIDE[tensor.dtype]) for tensor in (before, change))
        blank = OperatorCheck(
            node=op.name, op=op.type, output=op.name, error_rms=0.0, limit_rms=0.0, terms=2
        )
        expected = numpy(old + ADDITIONS[op.type] * new)
        found = judged(blank, numpy(copy.read_value()), expected, [], before.dtype)
        self.checks += [found] if found else []

    def hold(
        self, op: Any, given: list[Tensor], attributes: Attributes, actual: Sequence[Tensor]
    ) -> None:
        """Check the results of one operator."""
        if RANDOM.fullmatch(op.type):
            self.skipped[op.type, "random"] += 1
            return
        try:
            expected = wide(op, given, attributes)
            draws = 0 if op.type in STEPS else self.draws
            moved = [
                wide(op, [self.moved(tensor) for tensor in given], attributes) for _ in range(draws)
            ]
        except (tf.errors.OpError, TypeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].partition(" [Op:")[0]
            self.skipped[op.type, f"not in float64: {reason}"] += 1
            return
        counts = terms(op.type, given, attributes, actual)
        for place, (value, reference) in enumerate(zip(actual, expected, strict=True)):
            if reference is None or not known(value.dtype) or not tf.size(value):
                continue
            values = [value, reference, *(draw[place] for draw in moved)]
            if INDICES.get(op.type) == place:
                # Which of several equal elements an index names is the kernel's choice.
                values = [chosen(op.type, given, index) for index in values[:2]]
            kept = values[0]
            arrays = [numpy(item) for item in values]
            found = judged(
                OperatorCheck(
                    node=op.name,
                    op=op.type,
                    output=op.outputs[place].name,
                    error_rms=0.0,
                    limit_rms=0.0,
                    terms=max(1, counts[min(place, len(counts) - 1)]),
                ),
                arrays[0],
                arrays[1],
                arrays[2:],
                kept.dtype,
                loop_of(op, given, attributes, place, value),
            )
            if found:
                self.checks.append(found)

    def moved(self, tensor: Tensor) -> Tensor:
        """A float tensor with every element one ULP up or down; zeros and what is not finite stay.

        The bits of a float, taken as an integer, are in the order of its magnitude.
        """
        if tensor.dtype not in WIDE:
            return tensor
        if tensor.dtype.is_complex:
            return tf.complex(*(self.moved(part(tensor)) for part in (tf.math.real, tf.math.imag)))
        array = np.asarray(tensor.numpy())
        integers = np.dtype(f"i{array.itemsize}")
        steps = (self.random.integers(0, 2, array.shape, np.int8) * 2 - 1).astype(integers)
        near = (array.view(integers) + steps).view(array.dtype)
        with np.errstate(invalid="ignore"):
            keep = (array == 0) | ~np.isfinite(near) | ~np.isfinite(array)
        return tf.constant(np.where(keep, array, near), tensor.dtype)


def judged(
    blank: OperatorCheck,
    actual: Array,
    expected: Array,
    moved: Sequence[Array],
    dtype: Any,
    loop: Array | None = None,
) -> OperatorCheck | None:
    """The check of one result, ``blank`` saying which; None where nothing in it is finite.

    ``loop`` is what a plain loop gives, of a sum.

    Integers and booleans must be equal. What is beyond the narrow ``dtype`` in float64 is Inf
    there. Other masks of NaN or Inf than float64 has count as the largest error there is, and
    ``bound`` names the difference.
    """
    try:
        if actual.dtype.kind != "f":
            error = numerics.rms_error(actual, expected)
            return msgspec.structs.replace(blank, error_rms=error, bound="exact")
        eps = EPSILON[dtype]
        limits = ml_dtypes.finfo(dtype.real_dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
        over = np.abs(expected) > float(limits.max) * (1 + eps / 4)
        expected = np.where(over, np.copysign(np.inf, expected), expected)
        finite = np.isfinite(expected)
        if finite.any() or np.isfinite(actual).any():
            numerics.rms_error(actual, expected)
            # ``check`` takes the mean of all squares: what is Inf on both sides is left out here.
            kept = [actual[finite], expected[finite], *(draw[finite] for draw in moved)]
            found = check(
                blank.node, blank.op, blank.output, kept[0], kept[1], kept[2:],
                terms=blank.terms, eps=eps, loop=None if loop is None else loop[finite],
            )  # fmt: skip
            # TensorFlow flushes what is below the smallest normal number to zero.
            least = 4.0 * math.sqrt(blank.terms) * float(limits.tiny)
            if least > found.limit_rms:
                return msgspec.structs.replace(found, limit_rms=least, bound="subnormal")
            return found
    except numerics.Incomparable as problem:
        return msgspec.structs.replace(blank, error_rms=sys.float_info.max, bound=str(problem))
    return None


def loop_of(
    op: Any, given: list[Tensor], attributes: Attributes, place: int, result: Tensor
) -> Array | None:
    """What a plain loop gives for a result that is a sum or a mean over axes of an input."""
    if not given or given[0].dtype != tf.float32 or not tf.size(given[0]):
        return None
    values = given[0].numpy()
    if op.type in ("Sum", "Mean"):
        axes = [int(axis) % values.ndim for axis in np.ravel(given[1].numpy())]
    elif op.type == "BiasAddGrad" or (op.type, place) == ("FusedBatchNormGradV3", 2):
        first = str(attributes.get("data_format", b"NHWC")).startswith(("NC", "b'NC"))
        channel = 1 if first else values.ndim - 1
        axes = [axis for axis in range(values.ndim) if axis != channel]
    else:
        return None
    total = looped(values, axes)
    if op.type == "Mean":
        total = total / np.float32(math.prod(values.shape[axis] for axis in axes))
    return np.asarray(total, np.float32).reshape(tuple(result.shape))


def ordered(graph: Any) -> list[Any]:
    """The operators of a graph, each after those it needs.

    They come as they were made, but a loop whose gradient is taken has inputs made after it.
    """
    done: set[str] = set()
    order = []
    for wanted in graph.get_operations():
        stack = [wanted]
        while stack:
            op = stack[-1]
            needs = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            missing = [need for need in needs if need.name not in done]
            stack.extend(missing)
            if not missing:
                stack.pop()
                if op.name not in done:
                    done.add(op.name)
                    order.append(op)
    return order


def function_of(name: Any) -> Any:
    """The FuncGraph of a function that an operator calls."""
    definition = context.context().get_function_def(getattr(name, "name", name))
    return function_def_to_graph.function_def_to_graph(definition)


def attributes_of(op: Any) -> Attributes:
    """The attributes that an operator's definition names, as a kernel is asked for by."""
    found = {}
    for attribute in op.op_def.attr:
        value = op.get_attr(attribute.name)
        if attribute.type == "shape":
            value = execute.make_shape(tf.TensorShape(value), attribute.name)
        elif attribute.type == "list(shape)":
            value = [execute.make_shape(tf.TensorShape(item), attribute.name) for item in value]
        found[attribute.name] = value
    return found


def call(kind: str, outputs: int, given: list[Tensor], attributes: Attributes) -> list[Tensor]:
    """Run one kernel eagerly. Raises ``tf.errors.OpError`` where there is none for the types."""
    if kind == "Const":
        return [tf.constant(tf.make_ndarray(attributes["value"]), attributes["dtype"])]
    flat: list[Any] = []
    for key, value in attributes.items():
        items = value if isinstance(value, list) else [value]
        enums = [item.as_datatype_enum if isinstance(item, tf.DType) else item for item in items]
        flat += [key, enums if isinstance(value, list) else enums[0]]
    return list(execute.execute(kind, outputs, given, tuple(flat), context.context()) or ())


def wide(op: Any, given: list[Tensor], attributes: Attributes) -> Sequence[Tensor | None]:
    """What the same operator gives in float64; None for a result that only its gradient reads.

    Raises ``tf.errors.OpError``, TypeError or ValueError where no kernel does it.
    """
    inputs = [tf.cast(t, WIDE[t.dtype]) if t.dtype in WIDE else t for t in given]
    if reference := REFERENCES.get(op.type):
        return reference(inputs, attributes)

    def widened(value: Any) -> Any:
        if isinstance(value, list):
            return [widened(item) for item in value]
        return WIDE.get(value, value) if isinstance(value, tf.DType) else value

    changed = {key: widened(value) for key, value in attributes.items()}
    with tf.device(op.device or None):
        results = call(op.type, len(op.outputs), inputs, changed)
    for result in results:
        if result.dtype in WIDE:
            raise TypeError(f"its result is {result.dtype.name} whatever it is given")
    return results


def known(dtype: Any) -> bool:
    """Whether something can be said of a result: narrow floats, integers and booleans."""
    return dtype in WIDE or dtype.is_integer or dtype.is_bool


def numpy(tensor: Tensor) -> Array:
    """Complex numbers as pairs, and narrow floats in float32, which holds them."""
    array = np.asarray(tensor.numpy())
    if tensor.dtype.is_complex:
        return np.stack([array.real, array.imag])
    return array.astype(np.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else array


def chosen(kind: str, given: list[Tensor], index: Tensor) -> Tensor:
    """The elements that an index result names."""
    source = given[0]
    if kind == "TopKV2":
        return tf.gather(source, index, axis=-1, batch_dims=source.shape.rank - 1)
    axis = int(given[1]) % source.shape.rank
    one = tf.expand_dims(index, axis)
    last = [*(d for d in range(source.shape.rank) if d != axis), axis]
    return tf.gather(
        tf.transpose(source, last), tf.transpose(one, last), batch_dims=source.shape.rank - 1
    )


def terms(
    kind: str, given: list[Tensor], attributes: Attributes, actual: Sequence[Tensor]
) -> list[int]:
    """K, how many terms one element of each result sums; the last count serves all that follow.

    What is not in the table reduces its largest input to its result, or works element by element.
    """
    if (rule := TERMS.get(kind)) is not None:
        return [rule(given, attributes)]
    largest = max((size(tensor) for tensor in given), default=1)
    return [max(1, largest // max(1, size(tensor))) for tensor in actual]


def size(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def channels(tensor: Tensor, attributes: Attributes) -> int:
    """The extent of the channels, wherever the layout has them."""
    first = attributes.get("data_format", b"NHWC").startswith(b"NC")
    return int(tensor.shape[1 if first else -1])


def product(given: list[Tensor], attributes: Attributes) -> int:
    """The inner dimension."""
    turned = attributes.get("transpose_a", attributes.get("adj_x", False))
    return int(given[0].shape[-2 if turned else -1])


def einsum(given: list[Tensor], attributes: Attributes) -> int:
    """All dimensions that the result lacks."""
    left, _, right = attributes["equation"].decode().partition("->")
    extents: dict[str, int] = {}
    for labels, tensor in zip(left.split(","), given, strict=True):
        if "..." not in labels:
            extents |= dict(zip(labels, tensor.shape, strict=True))
    return math.prod(extent for label, extent in extents.items() if label not in right)


def convolution(given: list[Tensor], attributes: Attributes) -> int:
    """Input channels of a group times the kernel's extent."""
    return size(given[1]) // int(given[1].shape[-1])


def input_gradient(given: list[Tensor], attributes: Attributes) -> int:
    """Output channels times the kernel's extent."""
    return size(given[1]) // int(given[1].shape[-2])


def places(given: list[Tensor], attributes: Attributes) -> int:
    """The batch times all places of the last input, as in the gradient of a kernel."""
    return size(given[2]) // max(1, channels(given[2], attributes))


def statistics(given: list[Tensor], attributes: Attributes) -> int:
    """The batch times all places of a batch norm."""
    return size(given[0]) // max(1, channels(given[0], attributes))


def window(given: list[Tensor], attributes: Attributes) -> int:
    return math.prod(attributes["ksize"])


def last(given: list[Tensor], attributes: Attributes) -> int:
    """The last dimension of the first input."""
    return int(given[0].shape[-1])


def scan(given: list[Tensor], attributes: Attributes) -> int:
    return int(given[0].shape[int(given[1])])


def scattered(given: list[Tensor], attributes: Attributes) -> int:
    """At most every index the same."""
    return max(size(tensor) for tensor in given if tensor.dtype.is_integer)


def counted(names: str, rule: Callable[[list[Tensor], Attributes], int]) -> dict[str, Any]:
    return dict.fromkeys(names.split(), rule)


TERMS: Mapping[str, Callable[[list[Tensor], Attributes], int]] = {
    **counted("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", product),
    **counted("Einsum", einsum),
    **counted("Conv2D Conv3D Conv", convolution),
    **counted("Conv2DBackpropInput Conv3DBackpropInputV2", input_gradient),
    **counted("Conv2DBackpropFilter Conv3DBackpropFilterV2", places),
    **counted("DepthwiseConv2dNativeBackpropFilter", places),
    **counted(
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput",
        lambda given, attributes: size(given[1]) // int(given[1].shape[-2]),
    ),
    **counted("AvgPool AvgPool3D AvgPoolGrad AvgPool3DGrad MaxPoolGrad MaxPool3DGrad", window),
    **counted("Softmax LogSoftmax SoftmaxCrossEntropyWithLogits", last),
    **counted("SparseSoftmaxCrossEntropyWithLogits", last),
    **counted("Cumsum Cumprod CumulativeLogsumexp", scan),
    **counted("AddN", lambda given, attributes: len(given)),
    **counted("FusedBatchNormV3 FusedBatchNormGradV3", statistics),
    **counted("UnsortedSegmentSum ScatterNd TensorScatterAdd SparseSegmentSum", scattered),
    **counted("LRN LRNGrad", lambda given, attributes: 2 * attributes["depth_radius"] + 1),
    **counted("ResizeBilinear", lambda given, attributes: 4),
}


def axes(x: Tensor, attributes: Attributes) -> tuple[list[int], list[int]]:
    """All dimensions but the channels', and the shape in which a vector of channels broadcasts."""
    first = attributes["data_format"].startswith(b"NC")
    rank = x.shape.rank
    channel = 1 if first else rank - 1
    return (
        [dim for dim in range(rank) if dim != channel],
        [-1 if dim == channel else 1 for dim in range(rank)],
    )


def batch_norm(given: list[Tensor], attributes: Attributes) -> list[Tensor | None]:
    """FusedBatchNormV3, which has no float64 kernel: y and the mean and variance it hands on.

    The variance is by n - 1. What is reserved for the gradient is the device's own affair.
    """
    x, scale, offset, mean, variance = given
    dims, shape = axes(x, attributes)
    factor = attributes["exponential_avg_factor"]
    handed = mean, variance
    if attributes["is_training"]:
        now = tf.reduce_mean(x, dims), tf.math.reduce_variance(x, dims)
        count = size(x) // size(scale)
        unbiased = now[1] * (count / max(1, count - 1))
        handed = now[0], unbiased
        if factor != 1.0:
            handed = (
                (1.0 - factor) * mean + factor * now[0],
                (1.0 - factor) * variance + factor * unbiased,
            )
        mean, variance = now
    inverse = tf.math.rsqrt(variance + attributes["epsilon"])
    y = (x - tf.reshape(mean, shape)) * tf.reshape(inverse * scale, shape)
    return [y + tf.reshape(offset, shape), *handed, None, None, None]


def batch_norm_gradient(given: list[Tensor], attributes: Attributes) -> list[Tensor | None]:
    """FusedBatchNormGradV3: gradients of input, scale and offset.

    Its second reserved input is the variance on the CPU, and on a GPU in training 1 / deviation.
    """
    dy, x, scale, mean, second, _ = given
    dims, shape = axes(x, attributes)
    inverse = second
    if "GPU" not in x.device or not attributes["is_training"]:
        inverse = tf.math.rsqrt(second + attributes["epsilon"])
    normal = (x - tf.reshape(mean, shape)) * tf.reshape(inverse, shape)
    by_scale, by_offset = tf.reduce_sum(dy * normal, dims), tf.reduce_sum(dy, dims)
    inner = dy
    if attributes["is_training"]:
        count = size(x) // size(scale)
        inner = dy - tf.reshape(by_offset, shape) / count
        inner -= normal * tf.reshape(by_scale, shape) / count
    return [inner * tf.reshape(scale * inverse, shape), by_scale, by_offset, None, None]


def neighbours(x: Tensor, attributes: Attributes) -> Tensor:
    """Sums over the channels within ``depth_radius`` of each, the last axis."""
    radius = attributes["depth_radius"]
    padded = tf.pad(x, [[0, 0], [0, 0], [0, 0], [radius, radius]])
    return tf.add_n([padded[..., i : i + x.shape[-1]] for i in range(2 * radius + 1)])


def local_response(given: list[Tensor], attributes: Attributes) -> list[Tensor | None]:
    """LRN, which has no float64 kernel: x / (bias + alpha * sum of squares)^beta."""
    (x,) = given
    norm = attributes["bias"] + attributes["alpha"] * neighbours(x * x, attributes)
    return [x * norm ** -attributes["beta"]]


def local_response_gradient(given: list[Tensor], attributes: Attributes) -> list[Tensor | None]:
    """LRNGrad: dy / norm^beta - 2 alpha beta x * sum of dy y / norm over the neighbours."""
    dy, x, y = given
    alpha, beta = attributes["alpha"], attributes["beta"]
    norm = attributes["bias"] + alpha * neighbours(x * x, attributes)
    shared = neighbours(dy * y / norm, attributes)
    return [dy * norm**-beta - 2.0 * alpha * beta * x * shared]


REFERENCES: Mapping[str, Callable[[list[Tensor], Attributes], list[Tensor | None]]] = {
    "FusedBatchNormV3": batch_norm,
    "FusedBatchNormGradV3": batch_norm_gradient,
    "LRN": local_response,
    "LRNGrad": local_response_gradient,
}
"""Float64 for operators without such a kernel."""
