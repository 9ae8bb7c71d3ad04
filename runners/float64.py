"""The float64 reference of an ONNX graph: evaluated node by node in torch double, never timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from xbench import bench, draws
from xbench.errors import EngineError, Unavailable, Unsupported
from xbench.result import Placement, Profile
from xbench.runners import graph_facts
from xbench.runners.base import Array, Arrays, Runner, Work
from xbench.runners.graph import decode
from xbench.runners.graph.choices import OPERATORS, listed
from xbench.runners.graph.interpreter import Interpreter, Plan, Step
from xbench.runners.graph.node import Node, Value
from xbench.runners.graph.terms import terms
from xbench.runners.graph.ties import Forced
from xbench.spec import ARRAYS

ENGINES = {
    "float64": {
        "order": 90,
        "onnx": True,
        "phases": ("infer",),
        "packages": ("torch", "onnx"),
        "optional": True,
        "reference": True,
    }
}

NARROW = "narrow"
"""The option that rounds every tensor to a type."""
TYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "int4": TensorProto.INT4,
}
DRAWS = 2
"""How many moved sets of parameters say how far apart the values of a choice may be."""
CONTROL: dict[str, tuple[int, ...] | None] = {
    "Resize": (1, 2), "Upsample": (1,), "Range": None, "Pad": (2,), "Clip": (1, 2), "OneHot": (2,),
    "Dropout": (1,), "Pow": (1,), "Mod": (1,), "NonMaxSuppression": (3, 4), "Loop": (0, 1),
    "Equal": None, "Less": None, "LessOrEqual": None, "Greater": None, "GreaterOrEqual": None,
    "Floor": None, "Ceil": None, "Round": None, "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2), "DynamicQuantizeMatMul": (2, 3), "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2, 3), "MatMulBnb4": (2,), "QAttention": (3, 4, 6, 7),
    "DynamicQuantizeLSTM": (8, 9, 10, 11), "QGemm": None, "GatherBlockQuantized": (2, 3),
}  # fmt: skip
"""Inputs (None: all) that say what to do, as a scale of Resize: an ULP may change a shape, an
exponent of 2 or every whole number. They are no parameters, and nor are those of QLinear...."""


class Timeout(EngineError):
    """The evaluation took longer than it may."""

    status = "timeout"


class Float64Runner(Runner):
    """One graph, made ready. ``deadline_s`` and ``force`` are set between ``load`` and ``infer``.

    ``deadline_s``: seconds after ``load`` beyond which no further node is begun.
    """

    deadline_s: float | None = None

    def probe(self, device: str) -> dict[str, str]:
        if device != "cpu":
            raise Unavailable(f"the float64 reference runs on the cpu, not on {device}")
        x = torch.ones(8, 8, dtype=torch.float64)
        if float((x @ x).sum()) != 512.0:
            raise Unavailable("a product of ones in float64 came out wrong")
        return {"cpu_capability": torch.backends.cpu.get_cpu_capability()}

    def load(self, work: Work) -> None:
        """Decode the graph. Raises EngineError without one, Unsupported for an unknown option."""
        self.begin = bench.now()
        if work.graph is None:
            raise EngineError("the float64 reference was given no graph")
        case = work.case
        torch.set_num_threads(case.threads)
        self.work = work
        asked = case.options.get(NARROW, "")
        if asked and asked not in TYPES:
            raise Unsupported(f"{NARROW}={asked} is not known: known: {', '.join(TYPES)}")
        # What is no plain array is compared by nobody; the engine's own side says so.
        outputs = work.spec.outputs(work.config)
        self.outputs = [spec for spec in outputs if spec.dtype in ARRAYS]
        model = onnx.load(str(work.graph))
        self.choices = listed(model)
        declared = graph_facts.narrow_type(model)
        self.interpreter = Interpreter(model)
        self.interpreter.tick = self.tick
        # They are decoded: half the memory of a large model.
        del model.graph.initializer[:]
        # A file that is in this type already says itself which tensors are, and which are wider.
        self.rounded = bool(asked) and asked == declared
        self.narrow = 0 if self.rounded else TYPES.get(asked, 0)
        self.parameters = parameters(self.interpreter)
        self.placed: dict[str, Value] = self.in_type(self.values())
        self.given: dict[str, Value] = {}
        self.counts: dict[str, int] = {}
        self.forced: Forced | None = None
        self.chosen: dict[int, dict[str, list[Tensor]]] = {}
        self.folder: Path | None = None

    def tick(self) -> None:
        """Before every node: raises Timeout where the time is over."""
        if self.deadline_s is not None and bench.now() - self.begin > self.deadline_s:
            raise Timeout(f"float64 was not done after {self.deadline_s:g} s")

    def values(self) -> dict[str, Value]:
        """The parameters as the file has them."""
        return {name: value for name, (value, _) in self.parameters.items()}

    def in_type(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values in the type that every tensor is to be rounded to, if any."""
        if not self.narrow:
            return dict(values)
        return {
            name: decode.round_to(value, self.narrow) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }

    def force(self, folder: Path, narrow: str = "") -> None:
        """From now on, the first batch is evaluated under the choices that a side left there."""
        self.folder, self.forced = folder, Forced(folder, self.choices, narrow)

    def feeds(self, batch: int) -> dict[str, Value]:
        """A batch in the layout of the graph, TensorFlow's where TensorFlow made it."""
        found: dict[str, Value] = {}
        for spec in self.work.spec.inputs(self.work.config):
            array = self.work.batches[batch][spec.name]
            if array.dtype.kind == "f" and array.dtype != np.dtype(spec.dtype):
                # Files that are held against each other are fed the same, each in its own type.
                array = array.astype(spec.dtype)
            if self.work.case.source == "tf":
                array = spec.to_tf(array)
            found[spec.name] = decode.value_of(array, torch.float64)
        return self.in_type(found)

    def run(self) -> None:
        self.infer()

    def infer(self, batch: int = 0, moved: Mapping[str, Value] | None = None) -> Arrays:
        """Outputs of a batch: floats in float64, others as they are.

        From ``moved`` parameters or inputs where these are given. Raises Timeout, and Unsupported
        for what has no float64 reference.
        """
        forced = self.forced if batch == 0 else None
        values = self.evaluate(batch, {**self.given, **(moved or {})}, forced)
        outputs = {}
        for spec in self.outputs:
            value = values[spec.name]
            if not isinstance(value, Tensor):
                raise Unsupported(f"the output {spec.name!r} is no tensor")
            array = value.numpy()
            canonical = spec.from_tf(array) if self.work.case.source == "tf" else array
            outputs[spec.name] = np.array(canonical, order="C")
        return outputs

    def evaluate(
        self, batch: int, moved: Mapping[str, Value], forced: Forced | None
    ) -> dict[str, Value]:
        """The outputs of the graph, under the choices of ``forced``.

        A moved graph chooses as the graph itself does: how far values move is asked, not what
        follows where an index flips. Where it then cannot be evaluated, as with a loop that ends
        elsewhere, nothing has moved: that excuses nobody.
        """
        names = [spec.name for spec in self.outputs]
        interpreter = self.interpreter
        indices = {} if forced is None else forced.indices
        own: dict[str, list[Tensor]] = {}

        def note(name: str, node: Node, inputs: Sequence[Value], made: Sequence[Value]) -> None:
            index = made[OPERATORS[node.op]]
            if isinstance(index, Tensor):
                own.setdefault(name, []).append(index)

        narrowed = bool(self.narrow or self.rounded)
        if forced is None and narrowed and batch not in self.chosen:
            # Rounding must not choose another index: what then follows is no rounding.
            interpreter.choosing = note
            interpreter.run(self.feeds(batch), names)
            interpreter.choosing = None
            self.chosen[batch] = dict(own)
        interpreter.choosing = note if forced is None else forced.see
        if forced is None and (moved or narrowed):
            indices = self.chosen.get(batch, {})
        # Only the latest evaluation is judged.
        for seen in () if forced is None else forced.seen.values():
            seen.clear()
        values = self.in_type(moved)
        feeds = self.feeds(batch)
        try:
            found = interpreter.run(
                feeds | {name: value for name, value in values.items() if name in feeds},
                names,
                constants={**self.placed, **values},
                rounded=self.rounded,
                narrow=self.narrow,
                forced=indices,
                visit=self.count,
            )
        except EngineError as error:
            if not moved or isinstance(error, Timeout):
                raise
            return self.evaluate(batch, {}, forced)
        finally:
            interpreter.choosing = None
        if forced is None and not moved and not narrowed:
            self.chosen[batch] = own
        return found

    def count(
        self, proto: NodeProto, node: Node, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> None:
        """Note how many terms the outputs of a node sum."""
        inside, version = self.interpreter.inside, node.version
        found = terms(proto, inputs, outputs, inside=inside, version=version)
        self.counts.update((name, found) for name in proto.output if name)

    def terms(self) -> dict[str, int]:
        """K of every output that a single node makes."""
        found = {}
        for spec in self.outputs:
            if self.interpreter.depth(spec.name) == 1 and spec.name in self.counts:
                found[f"outputs/{spec.name}"] = self.counts[spec.name]
        return found

    def remarks(self) -> list[str]:
        """What was not evaluated in double, and what leaves the range of float16."""
        interpreter = self.interpreter
        found = []
        if interpreter.not_in_double:
            found.append(f"not in float64: {', '.join(interpreter.not_in_double)}")
        if interpreter.exceeding:
            found.append(f"{interpreter.exceeding}, beyond 65504, the largest of float16")
        elif interpreter.clamped:
            found.append(f"{interpreter.clamped[0]} leaves the range of its type")
        return found

    def moved(self, seed: int, ulps: int) -> dict[str, Value]:
        """Every float parameter moved by ULPs of the type that the file declares it in.

        Up or down, element by element, as ``draws.perturb``. Control values such as scales of
        Resize stay. A graph without float parameters has its float inputs moved instead.
        """
        found = {
            name: neighbour(value, element, seed, name, ulps)
            for name, (value, element) in self.parameters.items()
        }
        if found:
            return found
        return {
            name: neighbour(value, self.interpreter.types.get(name, 0), seed, name, ulps)
            for name, value in self.feeds(0).items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }

    def move(self, seed: int, ulps: int) -> None:
        self.given = self.moved(seed, ulps)

    def facts(self) -> dict[str, str]:
        """``ties`` and ``faults`` of the choices that were forced; nothing without any."""
        if self.forced is None or self.folder is None:
            return {}
        others = []
        for draw in range(DRAWS):
            other = Forced(self.folder, self.choices)
            self.evaluate(0, self.moved(self.work.case.seed + draw + 1, 1), other)
            others.append(other)
        ties, faults = self.forced.judged(others)
        return {"ties": str(ties), "faults": faults}

    def bind(self, parameters: Arrays) -> None:
        raise EngineError("the parameters of an ONNX graph are in its file")

    def placement(self) -> list[Placement]:
        return [Placement(ep="cpu", nodes=None, time_share=1.0)]

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        raise Unsupported("the float64 reference is never timed")


def neighbour(value: Value, element: int, seed: int, name: str, ulps: int) -> Value:
    """A float tensor with every element ``ulps`` steps of its declared type away.

    A type that is not known counts as float32. Zeros, NaN and Inf stay, and what would be Inf.
    """
    assert isinstance(value, Tensor)
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(element or TensorProto.FLOAT))
    held: Array = value.numpy().astype(kind)
    if kind.kind == "f" and kind.name in ("float16", "float32", "float64"):
        return decode.value_of(draws.perturb(held, seed=seed, name=name, ulps=ulps), value.dtype)
    ones = np.ones(held.shape, np.float32)
    up = draws.perturb(ones, seed=seed, name=name) > ones
    moved, limit = held, decode.limit_of(element)
    with np.errstate(all="ignore"):
        for _ in range(ulps):
            moved = np.nextafter(moved, np.where(up, limit, -limit).astype(kind))
    fixed = (held == 0) | ~np.isfinite(held.astype(np.float32))
    return decode.value_of(np.where(fixed, held, moved), value.dtype)


def parameters(interpreter: Interpreter) -> dict[str, tuple[Value, int]]:
    """Float constants, at any depth, that are no control values, with their declared types.

    A name that stands for different constants of several subgraphs is left out.
    """
    found: dict[str, tuple[Value, int]] = {}
    several: set[str] = set()
    for plan in plans(interpreter.main):
        for name, value in plan.constants.items():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if name in found:
                several.add(name)
            found[name] = (value, plan.types.get(name, 0))
    out = several | controls(interpreter)
    return {name: held for name, held in found.items() if name not in out}


def plans(plan: Plan) -> Iterator[Plan]:
    """A plan and those of all subgraphs."""
    yield plan
    for step in plan.steps:
        for inner in step.plans.values():
            yield from plans(inner)


def controls(interpreter: Interpreter) -> set[str]:
    """Tensors that say what to do: by name, back to the constants that they are made of."""
    found: set[str] = set()
    for plan in reversed(list(plans(interpreter.main))):
        fixed = set(plan.constants)
        for step in plan.steps:
            if step.node.op in ("Shape", "Size") or fixed.issuperset(step.reads):
                fixed.update(step.proto.output)
        for step in reversed(plan.steps):
            found.update(name for name in asked(step) if name)
            made = found.intersection(step.proto.output) - {""}
            if made and fixed.issuperset(made):
                found.update(step.reads)
    return found


def asked(step: Step) -> Sequence[str]:
    """The inputs of a node that are control values."""
    op, names = step.node.op, step.proto.input
    if op.startswith("QLinear"):
        return list(names)
    if op in ("Cast", "CastLike"):
        return list(names) if step.node.out_types[0] not in decode.FLOATS else []
    places = CONTROL.get(op, ())
    if places is None:
        return list(names)
    return [names[place] for place in places if place < len(names)]


def make(engine: str) -> Float64Runner:
    return Float64Runner(engine)
