"""Every operator of a TensorFlow graph, held against itself in float64 on the inputs it had.

The graph of a body is walked operator by operator, each called eagerly as the kernel that the
executor would call. No reference of the whole network is needed: an operator is right when it is
within its own bound on its own inputs, and then a large difference at the end is rounding that the
network amplifies.

What the executor runs differs in one way: before it starts, Grappler folds constants, fuses
(``_FusedConv2D``) and changes layouts. The walk sees the operators as they were written, and their
results are bits of a run with ``tf.config.optimizer`` switched off.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from xbench import numerics
from xbench.operators import check, summed_up
from xbench.result import OperatorCheck, Operators
from xbench.verdict import EPS

Tensor = Any
Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]

WIDE = {tf.float32: tf.float64, tf.bfloat16: tf.float64, tf.float16: tf.float64}
WIDE |= {tf.complex64: tf.complex128}
EPSILON = {tf.float32: EPS["fp32"], tf.bfloat16: EPS["bf16"], tf.float16: EPS["fp16"]}
EPSILON |= {tf.complex64: EPS["fp32"]}

CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "SymbolicGradient": ""}
"""Operators that call a function, and the attribute that names it."""
BRANCHES = ("If", "StatelessIf")
LOOPS = ("While", "StatelessWhile")
WRITES = re.compile(r"Assign.*|Resource(Apply|Sparse|Scatter).*|Scatter.*Variable.*|Restore.*")
"""Operators that change a variable. The walk leaves every variable as it is."""
RANDOM = re.compile(r"(Stateless)?(Random|Truncated|ParameterizedTruncated|Multinomial).*|.*Dropout")
STEPS = set("Ceil Floor Rint Round Sign FloorMod FloorDiv Mod TruncateMod TruncateDiv".split())
"""Operators that jump: a jump under one ULP of the input is no excuse, for they are exact."""
UNFILLED = ("Empty",)
INDICES = {"ArgMax": 0, "ArgMin": 0, "TopKV2": 1}
"""Operators that give indices into their first input, and which result that is."""


def operators(function: Any, *args: Any, draws: int = 2) -> Operators:
    """Check each operator of ``function``, a ConcreteFunction or what tf.function can trace.

    ``args`` are the tensors it is called with. Variables are read and never written: an operator
    that would is left out, and said so, and a later read sees the old value. Loops, branches and
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
    return summed_up(walk.checks, unchecked)


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
        operations = graph.get_operations()
        uses = Counter(tensor.ref() for op in operations for tensor in op.inputs)
        uses.update(tensor.ref() for tensor in graph.outputs)
        values = dict(zip((tensor.ref() for tensor in graph.inputs), inputs, strict=True))
        for op in operations:
            if op.type == "Placeholder":
                continue
            given = [values[tensor.ref()] for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self.operation(graph, op, given), strict=True):
                if uses[tensor.ref()]:
                    values[tensor.ref()] = value
            for tensor in op.inputs:
                uses[tensor.ref()] -= 1
                if not uses[tensor.ref()]:
                    del values[tensor.ref()]
        return [values[tensor.ref()] for tensor in graph.outputs]

    def operation(self, graph: Any, op: Any, given: list[Tensor]) -> Sequence[Tensor]:
        """What one operator gives; checked, where it computes."""
        if op.type in CALLS:
            return self.graph(function_of(graph, op.get_attr("f")), given)
        if op.type in LOOPS:
            condition, body = (function_of(graph, op.get_attr(key)) for key in ("cond", "body"))
            while bool(self.graph(condition, given)[0]):
                given = self.graph(body, given)
            return given
        if op.type in BRANCHES:
            key = "then_branch" if bool(given[0]) else "else_branch"
            return self.graph(function_of(graph, op.get_attr(key)), given[1:])
        if op.type in ("Case", "StatelessCase"):
            branches = op.get_attr("branches")
            index = int(given[0])
            index = index if 0 <= index < len(branches) else len(branches) - 1
            return self.graph(function_of(graph, branches[index]), given[1:])
        if WRITES.fullmatch(op.type):
            self.skipped[op.type, "changes a variable, which the check does not"] += 1
            return []
        attributes = attributes_of(op)
        with tf.device(op.device or None):
            actual = call(op.type, len(op.outputs), given, attributes)
        if any(tensor.dtype in WIDE for tensor in given) and not op.type.startswith(UNFILLED):
            self.hold(op, given, attributes, actual)
        elif any(tensor.dtype == tf.float64 for tensor in given):
            self.skipped[op.type, "already in float64"] += 1
        elif RANDOM.fullmatch(op.type):
            self.skipped[op.type, "random"] += 1
        return actual

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
                wide(op, [self.moved(tensor) for tensor in given], attributes)
                for _ in range(draws)
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
    blank: OperatorCheck, actual: Array, expected: Array, moved: Sequence[Array], dtype: Any
) -> OperatorCheck | None:
    """The check of one result, ``blank`` saying which; None where nothing in it is finite.

    Integers and booleans must be equal. What is beyond the narrow ``dtype`` in float64 is Inf
    there. Other masks of NaN or Inf than float64 has count as the largest error there is, and
    ``bound`` names the difference.
    """
    try:
        if actual.dtype.kind != "f":
            error = numerics.rms_error(actual, expected)
            return msgspec.structs.replace(blank, error_rms=error, bound="exact")
        eps = EPSILON[dtype]
        limits = tf.experimental.numpy.finfo(dtype.real_dtype.as_numpy_dtype)
        over = np.abs(expected) > float(limits.max) * (1 + eps / 4)
        expected = np.where(over, np.copysign(np.inf, expected), expected)
        finite = np.isfinite(expected)
        if finite.any() or np.isfinite(actual).any():
            numerics.rms_error(actual, expected)
            # ``check`` takes the mean of all squares: what is Inf on both sides is left out here.
            kept = [actual[finite], expected[finite], *(draw[finite] for draw in moved)]
            found = check(
                blank.node, blank.op, blank.output, kept[0], kept[1], kept[2:],
                terms=blank.terms, eps=eps,
            )  # fmt: skip
            # TensorFlow flushes what is below the smallest normal number to zero.
            least = 4.0 * math.sqrt(blank.terms) * float(limits.tiny)
            if least > found.limit_rms:
                return msgspec.structs.replace(found, limit_rms=least, bound="subnormal")
            return found
    except numerics.Incomparable as problem:
        return msgspec.structs.replace(blank, error_rms=sys.float_info.max, bound=str(problem))
    return None


def function_of(graph: Any, name: Any) -> Any:
    """The FuncGraph of a function that ``graph`` calls."""
    name = getattr(name, "name", name)
    name = name.decode() if isinstance(name, bytes) else name
    return graph._get_function(name).graph
