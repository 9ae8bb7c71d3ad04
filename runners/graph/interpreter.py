"""Any ONNX graph, node by node, in torch double: the float64 reference.

A node is evaluated by the first of these that can: an operator of the tables (``node.OPERATORS``),
a function of the file, the function that the operator's schema gives as its meaning, and
``onnx.reference``. What none of them can is Unsupported, by name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import torch
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from torch import Tensor

from xbench.errors import EngineError, Unsupported
from xbench.runners.graph import decode, fallback, infer
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value
from xbench.runners.graph.segments import in_order
from xbench.runners.graph.terms import terms

for _table in (
    "control", "elementwise", "shaping", "reducing", "network", "recurrent", "attention",
    "quantised", "contrib",
):  # fmt: skip
    importlib.import_module(f"xbench.runners.graph.{_table}")

Visit = Callable[[NodeProto, Node, Sequence[Value], Sequence[Value]], None]
Choosing = Callable[[str, Node, Sequence[Value], Sequence[Value]], None]

RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
    "Bernoulli", "Sampling",
}  # fmt: skip
"""Operators that may give something else at every run."""
INDICES = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
"""Operators whose index output may be forced, and which output that is."""
LACKS = re.compile(r"not implemented for|not supported for|Unsupported dtype|unsupported.* dtype")
"""What torch says where it has no kernel for a type."""
OVERFLOWS = 65520.0
"""The least number that rounds to infinity in float16, whose largest is 65504."""
MISSING = object()


@dataclass(slots=True, eq=False)
class Step:
    """A node made ready: what it reads (also within its subgraphs) and its subgraphs' plans."""

    proto: NodeProto
    node: Node
    reads: tuple[str, ...]
    plans: dict[int, Plan]
    random: tuple[str, ...]
    made: dict[Any, Any] = field(default_factory=dict)
    """What a way of evaluating keeps from one execution to the next."""

    @property
    def label(self) -> str:
        """What messages call the node."""
        return label(self.proto)


@dataclass(slots=True, eq=False)
class Plan:
    """A graph or the body of a function, made ready. ``types`` also has those of outer scopes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Value]
    steps: list[Step]
    types: dict[str, int]
    captured: tuple[str, ...] = ()
    needed: list[Step] = field(default_factory=list)
    graph: Any = None


class Scope:
    """The values of a graph that runs, and those around it."""

    __slots__ = ("parent", "values")

    def __init__(self, values: dict[str, Value], parent: Scope | None = None) -> None:
        self.values = values
        self.parent = parent

    def find(self, name: str) -> Any:
        """A value, None for an input that is left out, MISSING where there is none."""
        if not name:
            return None
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return MISSING


@dataclass(slots=True)
class Asked:
    """What one run is asked for beyond its values."""

    constants: Mapping[str, Value]
    rounded: bool = False
    narrow: int = 0
    forced: Mapping[str, list[Tensor]] = field(default_factory=dict)
    visit: Visit | None = None
    taken: dict[str, int] = field(default_factory=dict)


class Interpreter:
    """A model made ready to be evaluated; what it holds of the model's data is decoded once.

    ``not_in_double``, ``exceeding``, ``clamped`` and ``inside`` tell of the latest run. The data
    of the model may be dropped once this is made.
    """

    def __init__(self, model: ModelProto, *, dtype: torch.dtype = torch.float64) -> None:
        """External data of ``model`` must be loaded. Floats of every width become ``dtype``."""
        self.dtype = dtype
        self.graph = model.graph
        self.versions = {domain_of(item): int(item.version) for item in model.opset_import}
        self.functions = {
            (domain_of(item), item.name, item.overload): item for item in model.functions
        }
        self.tick: Callable[[], None] = nothing
        """Called before every node: may raise to end the run."""
        self.choosing: Choosing | None = None
        """Called with every ArgMax, ArgMin and TopK, by its index output, before it is forced."""
        self.not_in_double: list[str] = []
        """Nodes that were not evaluated in ``dtype``, and how they were instead."""
        self.clamped: list[str] = []
        """Tensors with values beyond their type, which ``rounded`` left as they were."""
        self.exceeding = ""
        """The first tensor declared float16 with a value beyond its range, and that value."""
        self.inside = 0
        """In ``visit``: how many terms the nodes within this one summed (see ``terms``)."""
        self.main = self.plan(model.graph, self.versions, {}, ())
        self.constants: dict[str, Value] = self.main.constants
        self.types: dict[str, int] = self.main.types
        self.random = [text for step in self.main.steps for text in step.random]
        """Nodes whose results are free to differ from run to run."""
        self.asked = Asked(self.constants)

    # Making ready

    def plan(
        self,
        graph: GraphProto,
        versions: Mapping[str, int],
        outer: Mapping[str, int],
        types: Sequence[int],
    ) -> Plan:
        """A graph with ``outer`` types around it and inputs of ``types`` where it names none."""
        known = dict(outer)
        known |= {
            item.name: element for item, element in zip(graph.input, types, strict=False) if element
        }
        constants = {item.name: decode.tensor(item, self.dtype) for item in graph.initializer}
        constants |= {
            item.values.name: decode.sparse(item, self.dtype) for item in graph.sparse_initializer
        }
        plan = self.planned(
            graph.node,
            tuple(item.name for item in graph.input),
            tuple(item.name for item in graph.output),
            versions,
            known | infer.declared(graph),
            constants,
        )
        plan.graph = graph
        return plan

    def planned(
        self,
        nodes: Iterable[NodeProto],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        versions: Mapping[str, int],
        types: dict[str, int],
        constants: dict[str, Value],
    ) -> Plan:
        """Every node with its attributes and types, in order, its subgraphs planned alike."""
        # Texts have no value: what reads them says so.
        constants = {name: value for name, value in constants.items() if value is not None}
        steps = []
        for proto in in_order(nodes):
            if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
                value = decode.constant(proto, self.dtype)
                if value is not None:
                    constants[proto.output[0]] = value
                types.setdefault(proto.output[0], decode.constant_type(proto))
            else:
                steps.append(self.step(proto, versions, types, constants))
        own = {*inputs, *constants, *(name for step in steps for name in step.proto.output)}
        reads = (name for step in steps for name in step.reads)
        captured = dict.fromkeys(name for name in (*reads, *outputs) if name and name not in own)
        plan = Plan(inputs, outputs, constants, steps, types, tuple(captured))
        plan.needed = needed(steps, outputs, frozenset())
        return plan

    def step(
        self,
        proto: NodeProto,
        versions: Mapping[str, int],
        types: dict[str, int],
        constants: Mapping[str, Value],
    ) -> Step:
        """A node made ready. Enters the types of its outputs into ``types``."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        version = versions.get(domain, 1)
        attributes = decode.attributes(proto, self.dtype)
        given = tuple(types.get(name, 0) for name in proto.input)
        graphs = [
            graph
            for value in attributes.values()
            for graph in (value if isinstance(value, list) else [value])
            if isinstance(graph, GraphProto)
        ]
        within = body_types(proto.op_type, version, given)
        plans = {id(graph): self.plan(graph, versions, types, within) for graph in graphs}
        for graph in graphs:
            plans[id(graph)].graph = graph
        if plans:
            found = control_types(proto.op_type, list(plans.values()))
        else:
            found = infer.outputs(proto, domain, version, attributes, given)
        local = self.functions.get((domain, proto.op_type, proto.overload))
        random = randomness(proto, plans.values(), constants)
        made: dict[Any, Any] = {}
        if local is not None and (domain, proto.op_type) not in OPERATORS:
            body = made["function"] = self.body(local, proto, given)
            found = tuple(body.types.get(name, 0) for name in body.outputs)
            random += tuple(text for step in body.steps for text in step.random)
        for name, element in zip(proto.output, found, strict=False):
            if name and element:
                types.setdefault(name, element)
        node = Node(
            op=proto.op_type,
            domain=domain,
            name=proto.name,
            version=version,
            attributes=attributes,
            types=given,
            out_types=tuple(types.get(name, 0) for name in proto.output),
            outputs=len(proto.output),
            dtype=self.dtype,
        )
        captured = (name for plan in plans.values() for name in plan.captured)
        reads = tuple(dict.fromkeys(name for name in (*proto.input, *captured) if name))
        return Step(proto, node, reads, plans, random, made)

    def body(self, function: FunctionProto, caller: NodeProto, types: Sequence[int]) -> Plan:
        """The body of a function with the attributes of one call in place."""
        values = {item.name: item for item in function.attribute_proto}
        values |= {item.name: item for item in caller.attribute}
        nodes = [bound(node, values) for node in function.node]
        versions = {domain_of(item): int(item.version) for item in function.opset_import}
        known = {
            item.name: infer.element_of(item.type) for item in getattr(function, "value_info", ())
        }
        known |= dict(zip(function.input, types, strict=False))
        inputs = tuple(function.input)
        # Bodies may leave out what the call does not ask for.
        outputs = tuple(
            name if asked else ""
            for name, asked in zip(function.output, caller.output, strict=False)
        )
        return self.planned(nodes, inputs, outputs, versions or self.versions, known, {})

    # Running

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str] | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        constants: Mapping[str, Value] | None = None,
        rounded: bool = False,
        narrow: int = 0,
        forced: Mapping[str, list[Tensor]] | None = None,
        visit: Visit | None = None,
    ) -> dict[str, Value]:
        """The ``wanted`` tensors of the main graph, by default its outputs.

        Only nodes that these need are run, and values are dropped after their last use. ``given``
        values stand in for what nodes would compute. ``constants`` replace parameters of the same
        name, at any depth. With ``rounded``, the float outputs of every node are rounded to their
        declared type, but what is beyond its range stays (named in ``clamped``); ``narrow``
        rounds them to that element type instead, whatever they are declared in. ``forced``
        maps the index output of an ArgMax, ArgMin or TopK to what it shall return, execution by
        execution. ``visit`` sees every node of the main graph with its inputs and outputs.

        Raises Unsupported for random nodes and for operators that nothing evaluates, EngineError
        where a value is missing or a node fails.
        """
        plan = self.main
        wanted = plan.outputs if wanted is None else tuple(wanted)
        stand_in = {
            name: decode.value_of(value, self.dtype) for name, value in (given or {}).items()
        }
        steps = needed(plan.steps, wanted, stand_in.keys())
        random = [text for step in steps for text in step.random]
        if random:
            raise Unsupported(
                f"a graph with random nodes has no float64 reference: {', '.join(random)}"
            )
        self.not_in_double, self.clamped, self.exceeding, self.inside = [], [], "", 0
        self.asked = Asked(constants or {}, rounded, narrow, forced or {}, visit)
        values = {**plan.constants}
        values |= {name: value for name, value in self.asked.constants.items() if name in values}
        values |= {name: decode.value_of(value, self.dtype) for name, value in feeds.items()}
        values |= stand_in
        scope = Scope(values)
        with torch.no_grad():
            self.walk(steps, scope, plan, frozenset(wanted) | stand_in.keys(), top=True)
        return {name: self.read(scope, name, plan) for name in wanted}

    def walk(
        self, steps: list[Step], scope: Scope, plan: Plan, keep: Iterable[str], *, top: bool = False
    ) -> None:
        """Run ``steps``; every value that is not to be kept goes after its last use."""
        given = scope.values.keys() & set(keep) if top else frozenset()
        last = last_uses(steps, frozenset(keep))
        for step, done_with in zip(steps, last, strict=True):
            self.tick()
            inputs = [self.read(scope, name, plan) for name in step.proto.input]
            before, self.inside = self.inside, 0
            outputs = self.finished(step, self.evaluate(step, scope, inputs), inputs, plan)
            for name, value in zip(step.proto.output, outputs, strict=False):
                if name and name not in given:
                    scope.values[name] = value
            visit = self.asked.visit
            if visit is not None and top:
                visit(step.proto, step.node, inputs, outputs)
            elif visit is not None:
                before += terms(
                    step.proto, inputs, outputs, inside=self.inside, version=step.node.version
                )
            self.inside = 0 if top else before
            for name in done_with:
                scope.values.pop(name, None)

    def read(self, scope: Scope, name: str, plan: Plan) -> Value:
        """A value that is there, or the error that says why not."""
        value = scope.find(name)
        if value is not MISSING:
            return value  # type: ignore[no-any-return]
        if plan.types.get(name) == TensorProto.STRING:
            raise Unsupported(f"the tensor {name!r} holds texts, which have no float64 reference")
        if name in plan.inputs:
            raise EngineError(f"the input {name!r} is not given")
        raise EngineError(f"the graph has no tensor {name!r}")

    def evaluate(self, step: Step, scope: Scope, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of a node by the first way that can. Raises Unsupported where none can."""
        node = step.node
        if step.plans:

            def run_graph(graph: GraphProto, values: Mapping[str, Value]) -> list[Value]:
                return self.within(step.plans[id(graph)], values, scope)

            node = replace(node, run_graph=run_graph)
        if node.op in RANDOM or (node.op == "Dropout" and in_training(inputs)):
            raise Unsupported(f"{node.op} {step.label!r} is random: it has no float64 reference")
        reasons = []
        for way in (self.by_table, self.by_function, self.by_schema, self.by_reference):
            try:
                found = way(step, node, inputs)
            except (NotInDouble, Unsupported) as error:
                reasons.append(str(error))
                continue
            if found is not None:
                return found
        why = f" ({'; '.join(reasons)})" if any(reasons) else ""
        raise Unsupported(
            f"nothing evaluates {node.op} of domain {node.domain or 'ai.onnx'} (opset "
            f"{node.version}) in float64, as in node {step.label!r}{why}"
        )

    def by_table(self, step: Step, node: Node, inputs: Sequence[Value]) -> tuple[Value, ...] | None:
        """By the operator of a table; None where no table has it."""
        function = OPERATORS.get((node.domain, node.op))
        if function is None:
            return None
        try:
            found = function(node, inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # What torch has no kernel for, another way may do; NotImplementedError among them.
            if isinstance(error, NotInDouble) or LACKS.search(str(error)):
                raise NotInDouble(str(error).splitlines()[0] if str(error) else "") from error
            shapes = [tuple(item.shape) for item in inputs if isinstance(item, Tensor)]
            raise EngineError(
                f"node {step.label!r} ({node.op}, opset {node.version}) on {shapes}: {error}"
            ) from error
        return found if isinstance(found, tuple) else (found,)

    def by_function(
        self, step: Step, node: Node, inputs: Sequence[Value]
    ) -> tuple[Value, ...] | None:
        """By the file's own function; None where it has none of that name."""
        function = self.functions.get((node.domain, node.op, step.proto.overload))
        if function is None:
            return None
        if "function" not in step.made:
            step.made["function"] = self.body(function, step.proto, node.types)
        return self.called(step.made["function"], inputs)

    def by_schema(
        self, step: Step, node: Node, inputs: Sequence[Value]
    ) -> tuple[Value, ...] | None:
        """By the function that the schema gives as the operator's meaning; None without one."""
        types = [self.lifted(node, element) for element in node.types]
        key = tuple(
            tuple(item.shape) if isinstance(item, Tensor) else item is None for item in inputs
        )
        if ("schema", key) not in step.made:
            function = fallback.schema_function(step.proto, node, types, inputs)
            body = None if function is None else self.body(function, step.proto, types)
            step.made["schema", key] = body
        body = step.made["schema", key]
        if body is None:
            return None
        asked = self.asked
        # The parts of one operator are not tensors of the graph: only its outputs are narrowed.
        self.asked = replace(asked, narrow=0)
        try:
            return self.called(body, inputs)
        finally:
            self.asked = asked

    def by_reference(
        self, step: Step, node: Node, inputs: Sequence[Value]
    ) -> tuple[Value, ...] | None:
        """By ``onnx.reference``; None where it lacks the operator or fails on these values."""
        found = fallback.reference(step.proto, node, inputs, step.made)
        if found is None:
            return None
        outputs, in_double = found
        if not in_double or self.dtype != torch.float64:
            self.note(step, "onnx.reference")
        return outputs

    def lifted(self, node: Node, element: int) -> int:
        """The type that stands for a float within the body of an operator.

        There, casts to the operator's own type keep what is computed: only the file rounds.
        """
        if element not in decode.FLOATS or node.op == "CastLike":
            return element
        return int(TensorProto.DOUBLE if self.dtype == torch.float64 else TensorProto.FLOAT)

    def called(self, plan: Plan, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of a function's body. Inputs that are not given are None."""
        given = [*inputs, *(None for _ in range(len(plan.inputs) - len(inputs)))]
        return tuple(self.within(plan, dict(zip(plan.inputs, given, strict=True)), None))

    def within(self, plan: Plan, values: Mapping[str, Value], outer: Scope | None) -> list[Value]:
        """The outputs of a subgraph or body on ``values``, with ``outer`` values in sight."""
        own = {**plan.constants}
        own |= {
            name: value
            for name, value in self.asked.constants.items()
            if name in own and same_shape(value, own[name])
        }
        scope = Scope(own | dict(values), outer)
        self.walk(plan.needed, scope, plan, plan.outputs)
        return [self.read(scope, name, plan) for name in plan.outputs]

    def finished(
        self, step: Step, found: Sequence[Value], inputs: Sequence[Value], plan: Plan
    ) -> list[Value]:
        """A node's outputs, in ``dtype``, forced and rounded as asked.

        Raises EngineError where an operator gave fewer than the node has.
        """
        names = step.proto.output
        if len(found) < len([name for name in names if name]):
            raise EngineError(
                f"{step.node.op} gave {len(found)} outputs to node {step.label!r} with {len(names)}"
            )
        outputs = list(found[: len(names)])
        if step.node.op in INDICES and not step.node.domain:
            outputs = self.forced(step, outputs, inputs)
        for index, (name, value) in enumerate(zip(names, outputs, strict=False)):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if value.dtype != self.dtype:
                self.note(step, f"in {str(value.dtype).removeprefix('torch.')}")
                outputs[index] = value = value.to(self.dtype)
            element = plan.types.get(name, 0)
            if element == TensorProto.FLOAT16 and not self.exceeding:
                self.exceeding = beyond(name, value)
            asked = self.asked.narrow or (element if self.asked.rounded else 0)
            if asked:
                outputs[index] = self.rounded(name, value, asked)
        return outputs

    def rounded(self, name: str, value: Tensor, element: int) -> Tensor:
        """A float output in an element type."""
        held = decode.round_to(value, element)
        if element in decode.FLOATS and element != TensorProto.DOUBLE:
            limit = decode.limit_of(element)
            over = (value.abs() > limit) & value.isfinite()
            if name not in self.clamped and bool(over.any()):
                self.clamped.append(name)
            # What leaves the range is no rounding: it must not excuse anything.
            held = torch.where(over, value, held)
        return held

    def forced(self, step: Step, outputs: list[Value], inputs: Sequence[Value]) -> list[Value]:
        """The outputs with the indices that are asked for, and the values which these choose."""
        place = INDICES[step.node.op]
        if place >= len(step.proto.output):
            return outputs
        name = step.proto.output[place]
        computed = outputs[place]
        if name and self.choosing is not None:
            self.choosing(name, step.node, inputs, outputs)
        if name not in self.asked.forced or not isinstance(computed, Tensor):
            return outputs
        turn = self.asked.taken.get(name, 0)
        self.asked.taken[name] = turn + 1
        if turn >= len(self.asked.forced[name]):
            raise EngineError(f"{name!r} is asked for more often than the {turn} times given")
        chosen = torch.as_tensor(self.asked.forced[name][turn]).to(computed.dtype)
        if chosen.shape != computed.shape:
            raise EngineError(
                f"{name!r} is of shape {tuple(computed.shape)}, not {tuple(chosen.shape)}"
            )
        outputs[place] = chosen
        data = inputs[0]
        if step.node.op == "TopK" and isinstance(data, Tensor):
            outputs[0] = data.gather(int(step.node.get("axis", -1)), chosen.to(torch.int64))
        return outputs

    def depth(self, name: str) -> int:
        """How many nodes of the main graph a tensor needs."""
        return len(needed(self.main.steps, (name,), ()))

    def note(self, step: Step, how: str) -> None:
        """Name a node that was not evaluated in ``dtype``, once."""
        domain = step.node.domain or "ai.onnx"
        text = f"{step.label} ({domain}:{step.node.op}): {how}"
        if text not in self.not_in_double:
            self.not_in_double.append(text)


def needed(steps: Sequence[Step], wanted: Iterable[str], given: Iterable[str]) -> list[Step]:
    """The steps that ``wanted`` tensors need, where ``given`` ones are there already."""
    given = frozenset(given)
    open_names = set(wanted) - given - {""}
    found = []
    for step in reversed(steps):
        if open_names.isdisjoint(step.proto.output):
            continue
        found.append(step)
        open_names -= set(step.proto.output)
        open_names |= set(step.reads) - given
    return found[::-1]


def last_uses(steps: Sequence[Step], keep: frozenset[str]) -> list[list[str]]:
    """By step, the names that nothing after it reads; its own outputs if nothing ever does."""
    seen = set(keep)
    found: list[list[str]] = []
    for step in reversed(steps):
        names = {*step.reads, *step.proto.output} - seen
        found.append([name for name in names if name])
        seen |= names
    return found[::-1]


def label(proto: NodeProto) -> str:
    """What a node is called: its name, or its first output's."""
    return str(proto.name or next((name for name in proto.output if name), proto.op_type))


def domain_of(item: Any) -> str:
    """A domain, empty for ONNX's own."""
    return "" if item.domain == "ai.onnx" else str(item.domain)


def nothing() -> None:
    """Before a node: let it run."""


def same_shape(one: Value, other: Value) -> bool:
    """Whether both are tensors of one shape."""
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape


def beyond(name: str, value: Tensor) -> str:
    """The tensor and its largest value where that would be infinite in float16."""
    sizes = torch.where(value.isfinite(), value.abs(), 0.0)
    largest = float(sizes.max()) if sizes.numel() else 0.0
    return f"{name} reaches {largest:.6g}" if largest >= OVERFLOWS else ""


def in_training(inputs: Sequence[Value]) -> bool:
    """Whether a Dropout on these inputs drops anything."""
    mode = inputs[2] if len(inputs) > 2 else None
    ratio = inputs[1] if len(inputs) > 1 else None
    drops = not isinstance(ratio, Tensor) or float(ratio) != 0.0
    return isinstance(mode, Tensor) and bool(mode) and drops


def randomness(
    proto: NodeProto, plans: Iterable[Plan], constants: Mapping[str, Value]
) -> tuple[str, ...]:
    """The random nodes that a node is or holds."""
    found = [text for plan in plans for step in plan.needed for text in step.random]
    random = proto.op_type in RANDOM
    if proto.op_type == "Dropout":
        random = in_training([None, *(constants.get(name) for name in proto.input[1:])])
    if random:
        found.insert(0, f"{proto.op_type} {label(proto)!r}")
    return tuple(found)


def body_types(op: str, version: int, types: Sequence[int]) -> tuple[int, ...]:
    """Element types of the inputs of a control node's body."""
    if op == "Loop":
        return (TensorProto.INT64, TensorProto.BOOL, *types[2:])
    if op == "Scan" and version < 9:
        return tuple(types[1:])
    return tuple(types) if op in ("Scan", "SequenceMap") else ()


def control_types(op: str, plans: Sequence[Plan]) -> tuple[int, ...]:
    """Element types of the outputs of a control node, from its bodies."""
    found = [
        next(
            (
                plan.types[name]
                for plan, name in zip(plans, names, strict=True)
                if plan.types.get(name)
            ),
            0,
        )
        for names in zip(*(plan.outputs for plan in plans), strict=False)
    ]
    return tuple(found[1:] if op == "Loop" else found)


def bound(node: NodeProto, values: Mapping[str, onnx.AttributeProto]) -> NodeProto:
    """A node of a function with the attributes of the call; those not given are left out."""
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for item in node.attribute:
        if item.ref_attr_name:
            if item.ref_attr_name not in values:
                continue
            filled = copy.attribute.add()
            filled.CopyFrom(values[item.ref_attr_name])
            filled.name = item.name
            continue
        kept = copy.attribute.add()
        kept.CopyFrom(item)
        for graph in subgraphs(kept):
            inner = [bound(part, values) for part in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return copy


def subgraphs(item: onnx.AttributeProto) -> Iterator[GraphProto]:
    """The graphs that an attribute holds."""
    if item.HasField("g"):
        yield item.g
    yield from item.graphs
