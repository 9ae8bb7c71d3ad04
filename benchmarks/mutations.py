"""Seeded mutants of an ONNX model: faults of the kind that exports have, large and small.

A mutant is the model with one fault. Faults with a magnitude m (a constant scaled by 1 + m, ...)
get one between a float32 ULP and 10 %, evenly on a logarithmic scale; the others are all or
nothing. Kinds take turns, so that a frequent operator does not crowd out a rare one.

The same model, count and seed give the same mutants. A candidate that the ONNX checker refuses,
that changes the name, type or inferred shape of an input or output, or that changes nothing, is
discarded and the next one taken. Only nodes of the main graph are mutated, not the bodies of If,
Loop and Scan. What a mutant changes may have no effect on the outputs (a pad that a Relu hides):
how large the effect is, is for the one who uses it to measure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xbench import draws

Array = np.ndarray[Any, Any]

LOWEST, HIGHEST = 2.0**-23, 0.1
"""Magnitudes: from the distance of 1 to the next float32 to a tenth."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Steps of this much, modulo 1, cover [0, 1) evenly however many there are."""
FIRST_SIZE = 3
"""Sizes of dynamic axes while shapes are inferred: unlike each other, and not 1."""
TRIES = 200
"""Candidates discarded in a row before it is said that nothing fits."""

CONTINUOUS = (
    "scaled constant",
    "scaled number",
    "one weight element",
    "bias share dropped",
    "batchnorm statistics",
    "attribute scaled",
    "constant added",
    "scaled activation",
    "relu leaky",
)
"""Kinds that have a magnitude of any size."""
DISCRETE = (
    "bias dropped",
    "attribute changed",
    "operator replaced",
    "operand swapped",
    "cast inserted",
    "gates swapped",
    "gelu tanh for erf",
    "relu dropped",
    "softmax axis",
    "layout",
)
"""Kinds that are there or not; none of their faults comes twice."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A model with one fault.

    ``magnitude``: relative size of the fault, 1 for what is dropped whole, the rounding error for
    an inserted cast; None where the fault has no size. ``node``: where it is, by name or operator
    and index, and the name of the constant that was changed if it is one of several nodes.
    """

    name: str
    kind: str
    magnitude: float | None
    node: str
    description: str
    model: onnx.ModelProto


class Unfit(Exception):
    """The fault cannot be made there, or changes nothing: another is taken."""


class Dice:
    """Random numbers of one purpose, the same everywhere."""

    def __init__(self, seed: int, name: str) -> None:
        self.words = draws.stream("mutation", seed, name)

    def below(self, count: int) -> int:
        """An integer from 0 to ``count`` - 1."""
        return int(self.words.random_raw()) % count

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """The items in random order."""
        keys = [int(self.words.random_raw()) for _ in items]
        return [items[k] for k in sorted(range(len(items)), key=lambda k: keys[k])]


Apply = Callable[[onnx.ModelProto, float, Dice], str]
"""Makes the fault in a copy of the model and describes it; raises Unfit where it cannot."""


class Site(msgspec.Struct, frozen=True):
    """A place for a fault. ``magnitude`` is that of a discrete fault."""

    kind: str
    node: str
    apply: Apply
    magnitude: float | None = None


def mutants(model: onnx.ModelProto, count: int, seed: int) -> Iterator[Mutant]:
    """``count`` mutants of ``model``, one at a time; the model itself is not touched.

    Every other one has a kind with a magnitude, as long as there are others. Raises ValueError
    where the model has no place for so many faults (no float tensor at all).
    """
    plan = Survey(model)
    sites: dict[str, list[Site]] = defaultdict(list)
    for site in plan.sites():
        sites[site.kind].append(site)
    dice = Dice(seed, "order")
    # Discrete faults are drawn without replacement.
    left = {kind: dice.shuffled(sites[kind]) for kind in DISCRETE if sites[kind]}
    continuous = dice.shuffled([kind for kind in CONTINUOUS if sites[kind]])
    discrete = dice.shuffled(list(left))
    start = {kind: dice.below(1 << 32) / (1 << 32) for kind in CONTINUOUS}
    turns: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    made = failed = 0
    while made < count:
        if failed > TRIES or not (continuous or discrete):
            raise ValueError(f"the model has no place for more than {made} mutants")
        family = "discrete" if discrete and (made % 2 or not continuous) else "continuous"
        kinds = discrete if family == "discrete" else continuous
        kind = kinds[turns[family] % len(kinds)]
        turns[family] += 1
        roll = Dice(seed, f"{family}/{turns[family]}")
        if family == "discrete":
            site = left[kind].pop()
            if not left[kind]:
                discrete.remove(kind)
            magnitude = site.magnitude
        else:
            site = sites[kind][roll.below(len(sites[kind]))]
            share = (start[kind] + spread[kind] * GOLDEN) % 1.0
            magnitude = LOWEST * (HIGHEST / LOWEST) ** share
        candidate = onnx.ModelProto()
        candidate.CopyFrom(model)
        try:
            description = site.apply(candidate, magnitude or 0.0, roll)
            plan.check(candidate)
        except (Unfit, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            failed += 1
            continue
        spread[kind] += 1
        failed = 0
        yield Mutant(
            name=f"m{made:03d}-{kind.replace(' ', '-')}",
            kind=kind,
            magnitude=magnitude,
            node=site.node,
            description=description,
            model=candidate,
        )
        made += 1


class Survey:
    """What is known of a model before it is mutated: shapes, constants, who uses what.

    Sites refer to nodes and initializers by index, which is the same in a copy.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        inferred = onnx.shape_inference.infer_shapes(model)
        graph = inferred.graph
        self.types = {
            value.name: value.type.tensor_type
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self.initializers = {init.name: k for k, init in enumerate(model.graph.initializer)}
        self.constants: dict[str, onnx.TensorProto] = {
            init.name: init for init in model.graph.initializer
        }
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.sizes = dynamic_sizes(model)
        self.interface, self.elements = signature(model, self.sizes)

    def check(self, candidate: onnx.ModelProto) -> None:
        """Raise Unfit, or what the checker raises, where a mutant is not valid or has new ends."""
        onnx.checker.check_model(candidate, full_check=True)
        interface, elements = signature(candidate, self.sizes)
        if interface != self.interface:
            raise Unfit("another interface")
        if any(elements.get(name, count) != count for name, count in self.elements.items()):
            raise Unfit("a tensor between has another number of elements")

    def label(self, index: int) -> str:
        """A node by its name, or by operator and index."""
        node = self.nodes[index]
        return node.name or f"{node.op_type}[{index}]"

    def dims(self, name: str) -> list[int | None] | None:
        """Inferred sizes of a tensor, None for one that is dynamic; None without a known rank."""
        if name in self.constants:
            return list(self.constants[name].dims)
        if name not in self.types or not self.types[name].HasField("shape"):
            return None
        return [
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in self.types[name].shape.dim
        ]

    def same_shape(self, a: str, b: str) -> bool:
        """Whether two tensors are known to have one shape (a dynamic axis is like itself)."""
        x, y = self.types.get(a), self.types.get(b)
        if a in self.constants or b in self.constants or x is None or y is None:
            known = self.dims(a)
            return known is not None and None not in known and known == self.dims(b)
        return bool(x.HasField("shape") and x.shape == y.shape and x.elem_type == y.elem_type)

    def is_float(self, name: str) -> bool:
        """Whether a tensor is known to be of float32 or float64."""
        if name in self.constants:
            kind = self.constants[name].data_type
        else:
            kind = self.types[name].elem_type if name in self.types else 0
        return kind in (TensorProto.FLOAT, TensorProto.DOUBLE)

    def sites(self) -> Iterator[Site]:
        """Every place for a fault of every kind, in the order of the graph."""
        yield from constant_sites(self)
        for index, node in enumerate(self.nodes):
            if node.domain not in ("", "ai.onnx"):
                continue
            yield from bias_sites(self, index)
            yield from statistics_sites(self, index)
            yield from attribute_sites(self, index)
            yield from operator_sites(self, index)
            yield from operand_sites(self, index)
            yield from gate_sites(self, index)
            yield from activation_sites(self, index)
            yield from output_sites(self, index)


def signature(
    model: onnx.ModelProto, sizes: Mapping[str, int]
) -> tuple[list[object], dict[str, int]]:
    """Names, types and inferred shapes of inputs and outputs, dynamic axes at ``sizes``; and how
    many elements every tensor between has, which a Reshape would hide.

    The shapes that are declared are left out of the inference, so that they cannot hide what the
    nodes really give; sizes are put in, since twice an unknown size is an unknown size. What the
    inference does not know is None.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for value in bare.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes[dim.dim_param or f"{value.name}/{axis}"]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True).graph

    def described(value: onnx.ValueInfoProto) -> object:
        tensor = value.type.tensor_type
        known = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        return [value.name, tensor.elem_type, tensor.HasField("shape"), known]

    elements = {}
    for value in graph.value_info:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            elements[value.name] = math.prod(dim.dim_value for dim in dims)
    return [described(value) for side in (graph.input, graph.output) for value in side], elements


def dynamic_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """A size for every dynamic axis of the inputs, by its name, else by input and axis."""
    names = {
        dim.dim_param or f"{value.name}/{axis}": None
        for value in model.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }
    return {name: FIRST_SIZE + 2 * k for k, name in enumerate(names)}


# Changes to a copy, by index of a node or name of a constant.


def array_of(model: onnx.ModelProto, survey: Survey, name: str) -> Array:
    """A constant, as an array of its own. Raises Unfit where the tensor is none."""
    if name not in survey.constants:
        raise Unfit(f"{name} is not a constant")
    value: Array = numpy_helper.to_array(survey.constants[name])
    return value.copy()


def store(model: onnx.ModelProto, survey: Survey, name: str, value: Array) -> None:
    """Replace a constant for all its users. Raises Unfit where nothing changes."""
    tensor = numpy_helper.from_array(value, survey.constants[name].name)
    old = numpy_helper.to_array(survey.constants[name])
    if old.tobytes() == np.ascontiguousarray(value).tobytes():
        raise Unfit("no value changes")
    if not np.isfinite(value).all():
        raise Unfit("a value overflows")
    if name in survey.initializers:
        model.graph.initializer[survey.initializers[name]].CopyFrom(tensor)
        return
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] == name:
            node.attribute[0].t.CopyFrom(tensor)


def give(model: onnx.ModelProto, survey: Survey, index: int, slot: int, value: Array) -> None:
    """Give one node a constant of its own. Raises Unfit where nothing changes."""
    name = survey.nodes[index].input[slot]
    if array_of(model, survey, name).tobytes() == np.ascontiguousarray(value).tobytes():
        raise Unfit("no value changes")
    fresh = f"{name}__mutated"
    model.graph.initializer.append(numpy_helper.from_array(value, fresh))
    model.graph.node[index].input[slot] = fresh


def after(
    model: onnx.ModelProto, index: int, slot: int, make: Callable[[str, str], list[onnx.NodeProto]]
) -> None:
    """Put nodes between an output of a node and all that read it.

    ``make`` gets the name of the tensor as it is, and the one that its result must have.
    """
    node = model.graph.node[index]
    name = node.output[slot]
    before = f"{name}__before"
    node.output[slot] = before
    for k, extra in enumerate(make(before, name)):
        model.graph.node.insert(index + 1 + k, extra)


def swap(names: Any, i: int, j: int) -> None:
    """Exchange two entries of a repeated field of strings."""
    names[i], names[j] = names[j], names[i]


def signed(magnitude: float, dice: Dice) -> tuple[float, str]:
    """1 + m or 1 - m, and how it is written."""
    if dice.below(2):
        return 1.0 + magnitude, f"(1 + {magnitude:.3g})"
    return 1.0 - magnitude, f"(1 - {magnitude:.3g})"


def scaled(value: Array, factor: float) -> Array:
    """``value * factor``, rounded once."""
    return (value.astype(np.float64) * factor).astype(value.dtype)


# Places, kind by kind.

NOT_PARAMETERS = {"Resize": (1, 2, 3), "Upsample": (1,), "Pad": (1, 2, 3), "Dropout": (1, 2)}
"""Inputs that are settings: what they do is not in proportion to their value."""
BIASES = {
    "Conv": (2,),
    "ConvTranspose": (2,),
    "Gemm": (2,),
    "LSTM": (3,),
    "GRU": (3,),
    "RNN": (3,),
    "BatchNormalization": (2,),
    "InstanceNormalization": (2,),
    "LayerNormalization": (2,),
    "GroupNormalization": (2,),
    "Add": (0, 1),
}
"""Inputs that are added to the result."""


def constant_sites(survey: Survey) -> Iterator[Site]:
    """Float constants that some node uses as a parameter."""
    users: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(survey.nodes):
        for slot, name in enumerate(node.input):
            if name in survey.constants and slot not in NOT_PARAMETERS.get(node.op_type, ()):
                users[name].append(index)
    for name, where in users.items():
        if not survey.is_float(name):
            continue
        value = numpy_helper.to_array(survey.constants[name])
        if not value.any():
            continue
        node = survey.label(where[0]) if len(where) == 1 else f"constant {name}"
        # Exported arithmetic has hundreds of single numbers: they must not crowd out the weights.
        what = "scaled constant" if value.size > 1 else "scaled number"
        yield Site(what, node, _scale_constant(survey, name))
        if value.size > 1:
            yield Site("one weight element", node, _scale_element(survey, name))
        if value.ndim > 1 and value.shape[-1] == value.shape[-2] > 1:
            yield Site("layout", node, _transpose_constant(survey, name))


def _scale_constant(survey: Survey, name: str) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        factor, text = signed(magnitude, dice)
        store(model, survey, name, scaled(array_of(model, survey, name), factor))
        return f"constant {name} times {text}"

    return apply


def _scale_element(survey: Survey, name: str) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        factor, text = signed(magnitude, dice)
        value = array_of(model, survey, name)
        nonzero = np.flatnonzero(value)
        flat = int(nonzero[dice.below(nonzero.size)])
        index = np.unravel_index(flat, value.shape)
        value[index] = scaled(value[index], factor)
        store(model, survey, name, value)
        return f"element {[int(k) for k in index]} of {name} times {text}"

    return apply


def _transpose_constant(survey: Survey, name: str) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        value = array_of(model, survey, name)
        store(model, survey, name, np.ascontiguousarray(value.swapaxes(-1, -2)))
        return f"the last two axes of constant {name} exchanged"

    return apply


def bias_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Constants that a node adds; an Add of a single number is arithmetic and no bias."""
    node = survey.nodes[index]
    for slot in BIASES.get(node.op_type, ()):
        name = node.input[slot] if slot < len(node.input) else ""
        if name not in survey.constants or not survey.is_float(name):
            continue
        dims = list(survey.constants[name].dims)
        if math.prod(dims) > 1:
            drop = _drop_bias(survey, index, slot)
            yield Site("bias dropped", survey.label(index), drop, 1.0)
            yield Site("bias share dropped", survey.label(index), drop)


def _drop_bias(survey: Survey, index: int, slot: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        name = survey.nodes[index].input[slot]
        value = array_of(model, survey, name)
        give(model, survey, index, slot, scaled(value, 1.0 - magnitude))
        share = "dropped" if magnitude == 1.0 else f"times (1 - {magnitude:.3g})"
        return f"bias {name} of {survey.label(index)} {share}"

    return apply


def statistics_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Stored means and variances."""
    node = survey.nodes[index]
    if node.op_type == "BatchNormalization":
        for slot in (3, 4):
            if node.input[slot] in survey.constants:
                apply = _scale_statistic(survey, index, slot)
                yield Site("batchnorm statistics", survey.label(index), apply)


def _scale_statistic(survey: Survey, index: int, slot: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        factor, text = signed(magnitude, dice)
        name = survey.nodes[index].input[slot]
        give(model, survey, index, slot, scaled(array_of(model, survey, name), factor))
        what = "mean" if slot == 3 else "variance"
        return f"{what} of {survey.label(index)} times {text}"

    return apply


FLOAT_ATTRIBUTES: dict[str, dict[str, float]] = {
    "BatchNormalization": {"epsilon": 1e-5},
    "InstanceNormalization": {"epsilon": 1e-5},
    "LayerNormalization": {"epsilon": 1e-5},
    "GroupNormalization": {"epsilon": 1e-5},
    "LRN": {"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326, "gamma": 1.0507},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Gemm": {"alpha": 1.0, "beta": 1.0},
}
"""Attributes that can be scaled, with their defaults."""
CHOICES: dict[str, dict[str, tuple[Any, list[Any]]]] = {
    "AveragePool": {"count_include_pad": (0, [0, 1]), "ceil_mode": (0, [0, 1])},
    "MaxPool": {"ceil_mode": (0, [0, 1])},
    "LpPool": {"p": (2, [1, 2, 3])},
    "Conv": {"auto_pad": ("NOTSET", ["SAME_UPPER", "SAME_LOWER"])},
    "Resize": {
        "mode": ("nearest", ["nearest", "linear", "cubic"]),
        "coordinate_transformation_mode": (
            "half_pixel",
            ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"],
        ),
        "nearest_mode": (
            "round_prefer_floor",
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
        ),
        "cubic_coeff_a": (-0.75, [-0.75, -0.5]),
    },
    "Pad": {"mode": ("constant", ["constant", "reflect", "edge"])},
    "Gemm": {"transA": (0, [0, 1]), "transB": (0, [0, 1])},
    "LSTM": {"direction": ("forward", ["forward", "reverse"]), "input_forget": (0, [0, 1])},
    "GRU": {
        "direction": ("forward", ["forward", "reverse"]),
        "linear_before_reset": (0, [0, 1]),
    },
    "RNN": {"direction": ("forward", ["forward", "reverse"])},
    "LRN": {"size": (1, [3, 5, 7])},
    "TopK": {"largest": (1, [0, 1])},
    "ArgMax": {"select_last_index": (0, [0, 1])},
    "ArgMin": {"select_last_index": (0, [0, 1])},
    "CumSum": {"exclusive": (0, [0, 1]), "reverse": (0, [0, 1])},
    "DepthToSpace": {"mode": ("DCR", ["DCR", "CRD"])},
    "GridSample": {"align_corners": (0, [0, 1])},
    "Trilu": {"upper": (1, [0, 1])},
    "Mod": {"fmod": (0, [0, 1])},
    **{op: {"keepdims": (1, [0, 1])} for op in ("ReduceMean", "ReduceSum", "ReduceMax")},
}
"""Attributes with few values: the default, and what they may become."""
AXES = {
    "Concat": None,
    "Split": 0,
    "Gather": 0,
    "Flatten": 1,
    "LayerNormalization": -1,
    "ArgMax": 0,
    "ArgMin": 0,
}
"""Operators with an axis, and its default; that of a softmax is a kind of its own."""
SHIFTED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")


def attribute_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Attributes of a node that can have another value."""
    node = survey.nodes[index]
    op, label = node.op_type, survey.label(index)
    for name, default in FLOAT_ATTRIBUTES.get(op, {}).items():
        if attribute(node, name, default):
            yield Site("attribute scaled", label, _scale_attribute(survey, index, name, default))
            if name == "epsilon":
                for factor in (10.0, 100.0):
                    value = float(np.float32(factor * attribute(node, name, default)))
                    yield changed(survey, index, name, value, default)
    for name, (default, values) in CHOICES.get(op, {}).items():
        old = attribute(node, name, default)
        if pointless(survey, node, name):
            continue
        yield from (
            changed(survey, index, name, value, default) for value in values if value != old
        )
    if op in SHIFTED:
        for pads in shifted(attribute(node, "pads", [])):
            yield changed(survey, index, "pads", pads, [])
    if op in AXES:
        yield from axis_sites(survey, index, "attribute changed", AXES[op])
    if op in ("Softmax", "LogSoftmax"):
        yield from axis_sites(survey, index, "softmax axis", -1)
    if op == "Transpose":
        perm = attribute(node, "perm", [])
        for i in range(len(perm)):
            for j in range(i + 1, len(perm)):
                other = list(perm)
                other[i], other[j] = other[j], other[i]
                yield changed(survey, index, "perm", other, [], kind="layout")
    if op == "Gelu":
        way = "none" if attribute(node, "approximate", "none") == "tanh" else "tanh"
        yield changed(survey, index, "approximate", way, "none", kind="gelu tanh for erf")


def pointless(survey: Survey, node: onnx.NodeProto, name: str) -> bool:
    """Whether an attribute says nothing beside the others, or may not stand there."""
    if name == "auto_pad":
        return not attribute(node, name, "").startswith("SAME")
    if name == "count_include_pad":
        return not any(attribute(node, "pads", []))
    if name == "nearest_mode":
        return bool(attribute(node, "mode", "nearest") != "nearest")
    if name == "cubic_coeff_a":
        return bool(attribute(node, "mode", "nearest") != "cubic")
    if name == "direction":
        return bool(attribute(node, name, "forward") == "bidirectional")
    if name in ("transA", "transB"):
        # Only of a square matrix: any other would not fit.
        dims = survey.dims(node.input[0 if name == "transA" else 1])
        return not dims or None in dims or dims[0] != dims[1]
    return False


def axis_sites(survey: Survey, index: int, kind: str, default: int | None) -> Iterator[Site]:
    """Every other axis, where the rank is known."""
    node = survey.nodes[index]
    rank = len(survey.dims(node.input[0]) or [])
    old = attribute(node, "axis", default)
    if rank and old is not None:
        for axis in range(rank):
            if axis != old % rank:
                yield changed(survey, index, "axis", axis, default, kind=kind)


def shifted(pads: Sequence[int]) -> Iterator[list[int]]:
    """Pads with one row or column moved from one end of an axis to the other."""
    half = len(pads) // 2
    for axis in range(half):
        for source, target in ((axis, axis + half), (axis + half, axis)):
            if pads[source] > 0:
                moved = list(pads)
                moved[source] -= 1
                moved[target] += 1
                yield moved


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute, strings as text."""
    for item in node.attribute:
        if item.name == name:
            value = helper.get_attribute_value(item)
            return value.decode() if isinstance(value, bytes) else value
    return default


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Set an attribute, whether or not it was there."""
    for item in node.attribute:
        if item.name == name:
            item.CopyFrom(helper.make_attribute(name, value))
            return
    node.attribute.append(helper.make_attribute(name, value))


def changed(
    survey: Survey, index: int, name: str, value: Any, default: Any, kind: str = "attribute changed"
) -> Site:
    """The site where an attribute gets another value."""
    node, label = survey.nodes[index], survey.label(index)
    old = attribute(node, name, default)

    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        set_attribute(model.graph.node[index], name, value)
        if name == "mode" and node.op_type == "Pad" and value != "constant":
            # A constant to pad with makes no sense then.
            del model.graph.node[index].input[2:]
        return f"{name} of {node.op_type} {label} is {value}, was {_written(old)}"

    return Site(kind, label, apply)


def _written(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _scale_attribute(survey: Survey, index: int, name: str, default: float) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        factor, text = signed(magnitude, dice)
        node = model.graph.node[index]
        old = np.float32(attribute(node, name, default))
        new = np.float32(float(old) * factor)
        if new == old:
            raise Unfit("no value changes")
        set_attribute(node, name, float(new))
        return f"{name} of {node.op_type} {survey.label(index)} times {text}"

    return apply


REPLACED = {
    "ReduceMean": ("ReduceSum", "ReduceMax"),
    "ReduceSum": ("ReduceMean",),
    "ReduceMax": ("ReduceMin",),
    "ArgMax": ("ArgMin",),
    "GlobalAveragePool": ("GlobalMaxPool",),
    "GlobalMaxPool": ("GlobalAveragePool",),
    "Sigmoid": ("HardSigmoid",),
    "Less": ("LessOrEqual",),
    "Greater": ("GreaterOrEqual",),
    "Max": ("Min",),
    "Floor": ("Round",),
    "Sub": ("Add",),
    "Tanh": ("Softsign",),
}
"""Operators taken for one another; both take the same inputs and attributes."""


def operator_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Nodes whose operator has a relative."""
    node = survey.nodes[index]
    for op in REPLACED.get(node.op_type, ()):
        if op == "Softsign" and not survey.is_float(node.input[0]):
            continue
        yield Site("operator replaced", survey.label(index), _replace_operator(survey, index, op))


def _replace_operator(survey: Survey, index: int, op: str) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        node = model.graph.node[index]
        old, node.op_type = node.op_type, op
        return f"{op} for {old} at {survey.label(index)}"

    return apply


def operand_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Inputs whose order matters and which fit in the other order too."""
    node = survey.nodes[index]
    pairs: list[tuple[int, int]] = []
    if node.op_type in ("Sub", "Div", "Pow", "Less", "Greater"):
        pairs = [(0, 1)]
    elif node.op_type == "Where":
        pairs = [(1, 2)]
    elif node.op_type in ("MatMul", "Gemm"):
        dims = [survey.dims(name) for name in node.input[:2]]
        square = all(d and len(d) > 1 and d[-1] == d[-2] is not None for d in dims)
        pairs = [(0, 1)] if square and dims[0] == dims[1] else []
    elif node.op_type == "Concat":
        count = len(node.input)
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    for i, j in pairs:
        if node.input[i] != node.input[j]:
            yield Site("operand swapped", survey.label(index), _swap_inputs(survey, index, i, j))


def _swap_inputs(survey: Survey, index: int, i: int, j: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        node = model.graph.node[index]
        swap(node.input, i, j)
        return f"inputs {i} and {j} of {node.op_type} {survey.label(index)} swapped"

    return apply


GATES = {"LSTM": "iofc", "GRU": "zrh"}
"""Blocks of the weights, in the order of ONNX."""


def gate_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Two blocks of a recurrent weight, or two equal outputs of a Split."""
    node, label = survey.nodes[index], survey.label(index)
    if node.op_type == "Split":
        count = len(node.output)
        for i in range(count):
            for j in range(i + 1, count):
                if survey.same_shape(node.output[i], node.output[j]):
                    yield Site("gates swapped", label, _swap_outputs(survey, index, i, j))
    for slot, what in zip((1, 2, 3), ("W", "R", "B"), strict=True):
        gates = GATES.get(node.op_type, "")
        if not gates or slot >= len(node.input) or node.input[slot] not in survey.constants:
            continue
        for direction in range(survey.constants[node.input[slot]].dims[0]):
            for i in range(len(gates)):
                for j in range(i + 1, len(gates)):
                    apply = _swap_gates(survey, index, slot, direction, i, j)
                    yield Site("gates swapped", f"{label} {what}", apply)


def _swap_outputs(survey: Survey, index: int, i: int, j: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        node = model.graph.node[index]
        swap(node.output, i, j)
        return f"outputs {i} and {j} of Split {survey.label(index)} swapped"

    return apply


def _swap_gates(survey: Survey, index: int, slot: int, direction: int, i: int, j: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        node = survey.nodes[index]
        gates = GATES[node.op_type]
        value = array_of(model, survey, node.input[slot])
        # B holds the biases of W before those of R: those of W are swapped.
        rows = value.shape[1] // (len(gates) * (2 if slot == 3 else 1))
        one, two = (slice(k * rows, (k + 1) * rows) for k in (i, j))
        kept = value[direction, one].copy()
        value[direction, one] = value[direction, two]
        value[direction, two] = kept
        give(model, survey, index, slot, value)
        return (
            f"gates {gates[i]} and {gates[j]} of {'WRB'[slot - 1]} of {node.op_type} "
            f"{survey.label(index)} swapped, direction {direction}"
        )

    return apply


def activation_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Relus, which may be missing or leak, and Erf, which a Tanh approximates in a Gelu."""
    node, label = survey.nodes[index], survey.label(index)
    if node.op_type == "Relu":
        yield Site("relu dropped", label, _drop_relu(survey, index), 1.0)
        yield Site("relu leaky", label, _leak(survey, index))
    if node.op_type == "Erf" and survey.is_float(node.input[0]):
        yield Site("gelu tanh for erf", label, _approximate_erf(survey, index))


def _drop_relu(survey: Survey, index: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        model.graph.node[index].op_type = "Identity"
        return f"Relu {survey.label(index)} dropped"

    return apply


def _leak(survey: Survey, index: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        model.graph.node[index].op_type = "LeakyRelu"
        set_attribute(model.graph.node[index], "alpha", magnitude)
        return f"Relu {survey.label(index)} leaks {magnitude:.3g}"

    return apply


def _approximate_erf(survey: Survey, index: int) -> Apply:
    """erf(u) as tanh(2 / sqrt(pi) (u + 0.08943 u^3)): the usual approximation of the Gelu, whose
    0.044715 x^3 has x = sqrt(2) u (Hendrycks & Gimpel 2016)."""

    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        node = model.graph.node[index]
        u, result = node.input[0], node.output[0]
        kind = _dtype(survey, u)
        names = [f"{result}__{part}" for part in ("square", "cubic", "one", "inner", "scaled")]
        square, cubic, one, inner, outer = names
        constants = {"a": 2 * 0.044715, "b": 1.0, "c": 2.0 / math.sqrt(math.pi)}
        for name, value in constants.items():
            tensor = numpy_helper.from_array(np.array(value, kind), f"{result}__{name}")
            model.graph.initializer.append(tensor)
        a, b, c = (f"{result}__{name}" for name in constants)
        extra = [
            helper.make_node("Mul", [u, u], [square]),
            helper.make_node("Mul", [square, a], [cubic]),
            helper.make_node("Add", [cubic, b], [one]),
            helper.make_node("Mul", [one, u], [inner]),
            helper.make_node("Mul", [inner, c], [outer]),
        ]
        node.op_type, node.input[0] = "Tanh", outer
        for k, item in enumerate(extra):
            model.graph.node.insert(index + k, item)
        return f"Erf {survey.label(index)} by a Tanh"

    return apply


def output_sites(survey: Survey, index: int) -> Iterator[Site]:
    """Float results, which may be added to, scaled, rounded, or transposed where square."""
    node, label = survey.nodes[index], survey.label(index)
    if node.op_type == "Constant":
        return
    for slot, name in enumerate(node.output):
        if not name or not survey.is_float(name):
            continue
        yield Site("constant added", label, _add_constant(survey, index, slot))
        yield Site("scaled activation", label, _scale_activation(survey, index, slot))
        if survey.types[name].elem_type == TensorProto.FLOAT:
            for kind, bits in (("FLOAT16", 11), ("BFLOAT16", 8)):
                apply = _insert_cast(survey, index, slot, kind)
                yield Site("cast inserted", label, apply, 2.0**-bits)
        dims = survey.dims(name) or []
        if len(dims) > 2 and dims[-1] == dims[-2] and dims[-1] not in (None, 1):
            yield Site("layout", label, _transpose_output(survey, index, slot))


def _dtype(survey: Survey, name: str) -> Any:
    return helper.tensor_dtype_to_np_dtype(survey.types[name].elem_type)


def _add_constant(survey: Survey, index: int, slot: int) -> Apply:
    """x + m RMS(x): the graph finds the RMS itself, as it depends on the inputs."""

    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        name = survey.nodes[index].output[slot]
        sign = 1.0 if dice.below(2) else -1.0
        factor = np.array(sign * magnitude, _dtype(survey, name))
        model.graph.initializer.append(numpy_helper.from_array(factor, f"{name}__share"))

        def make(before: str, result: str) -> list[onnx.NodeProto]:
            parts = [f"{name}__{part}" for part in ("square", "mean", "rms", "constant")]
            square, mean, rms, constant = parts
            return [
                helper.make_node("Mul", [before, before], [square]),
                helper.make_node("ReduceMean", [square], [mean], keepdims=0),
                helper.make_node("Sqrt", [mean], [rms]),
                helper.make_node("Mul", [rms, f"{name}__share"], [constant]),
                helper.make_node("Add", [before, constant], [result]),
            ]

        after(model, index, slot, make)
        return f"{sign * magnitude:.3g} of its RMS added to {name}"

    return apply


def _scale_activation(survey: Survey, index: int, slot: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        name = survey.nodes[index].output[slot]
        factor, text = signed(magnitude, dice)
        tensor = numpy_helper.from_array(np.array(factor, _dtype(survey, name)), f"{name}__factor")
        model.graph.initializer.append(tensor)
        after(
            model,
            index,
            slot,
            lambda before, result: [helper.make_node("Mul", [before, f"{name}__factor"], [result])],
        )
        return f"{name} times {text}"

    return apply


def _insert_cast(survey: Survey, index: int, slot: int, kind: str) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        name = survey.nodes[index].output[slot]
        narrow = f"{name}__narrow"

        def make(before: str, result: str) -> list[onnx.NodeProto]:
            return [
                helper.make_node("Cast", [before], [narrow], to=getattr(TensorProto, kind)),
                helper.make_node("Cast", [narrow], [result], to=TensorProto.FLOAT),
            ]

        after(model, index, slot, make)
        return f"{name} rounded to {kind.lower()}"

    return apply


def _transpose_output(survey: Survey, index: int, slot: int) -> Apply:
    def apply(model: onnx.ModelProto, magnitude: float, dice: Dice) -> str:
        name = survey.nodes[index].output[slot]
        rank = len(survey.dims(name) or [])
        perm = [*range(rank - 2), rank - 1, rank - 2]
        after(
            model,
            index,
            slot,
            lambda before, result: [helper.make_node("Transpose", [before], [result], perm=perm)],
        )
        return f"the last two axes of {name} exchanged"

    return apply
