"""An optimised graph cut into the smallest groups of nodes whose ends the original graph knows.

ONNX Runtime keeps the names of tensors that survive its fusions. What it makes up (blocked
layouts, casts around operators without float16 kernels) is either known for what it is by its
structure, or joins the nodes on both of its sides into one segment. Needs onnx alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import onnx
from onnx import TensorProto, shape_inference

WIDER = {
    (TensorProto.FLOAT16, TensorProto.FLOAT),
    (TensorProto.BFLOAT16, TensorProto.FLOAT),
    (TensorProto.FLOAT, TensorProto.DOUBLE),
}
"""Types of the original and what ONNX Runtime may hold their values in: less would lose digits."""
NCHWC = "com.microsoft.nchwc"
"""The domain of kernels whose channels come in blocks."""
CAST = "InsertedPrecisionFreeCast_"
"""What ONNX Runtime puts before the name of a float16 tensor that it holds in float32."""
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"}
) | {"Multinomial"}
SAME = frozenset({"Identity", "MemcpyToHost", "MemcpyFromHost"})
MOVES = frozenset({"Cast", "ReorderInput", "ReorderOutput", "Transpose", "Identity"})
"""Operators that do not give a segment its name where it has others."""


class Port(msgspec.Struct, frozen=True):
    """A tensor of the optimised graph that is a tensor of the original one.

    ``dtype``: the element type that it has in the optimised graph. ``blocked``: its channels are
    in blocks there, of ONNX Runtime's own size.
    """

    tensor: str
    original: str
    dtype: int
    blocked: bool = False


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of the optimised graph (by index, in order) that can be checked by themselves.

    ``helpers`` are nodes that make a constant for it, which others may need too. ``inputs`` must
    be fed, whichever of its nodes made them; ``outputs`` are what the original graph knows of what
    it makes. ``op``: the operators, as ``Conv+Relu``.
    """

    nodes: list[int]
    inputs: list[Port]
    outputs: list[Port]
    op: str
    node: str
    helpers: list[int] = []
    random: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """An output of a segment that was evaluated in float64: array ``key`` of its part's file.

    ``op``: the original operators that were evaluated. ``terms`` is the largest K of them,
    ``spread`` the largest RMS change of the result when inputs move by one ULP. ``element``: the
    type whose rounding counts, which is narrower than the port's where the original casts to such
    a type on the way: ONNX Runtime leaves such casts out. ``exact``: no float went into it.
    ``rounds``: a float was rounded to an integer on the way, as where one quantises.
    """

    segment: int
    port: Port
    key: str
    op: str
    terms: int
    spread: float
    element: int
    exact: bool
    rounds: bool


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Some segments and the file of their arrays. ``inputs``: the key of a tensor's array."""

    file: str
    inputs: dict[str, str]
    results: list[Result]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All parts, and by reason what could not be evaluated."""

    segments: list[Segment]
    parts: list[Part]
    unchecked: dict[str, list[str]]


MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Type:
    """Element type and dimensions, as far as a file says: 0 and None where it does not."""

    dtype: int = 0
    shape: tuple[int | None, ...] | None = None
    tensor: bool = True


def types(graph: onnx.GraphProto) -> dict[str, Type]:
    """The declared type of every tensor of a graph that has one."""
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if not value.type.WhichOneof("value"):
            continue
        if not value.type.HasField("tensor_type"):
            found[value.name] = Type(tensor=False)
            continue
        held = value.type.tensor_type
        shape = None
        if held.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in held.shape.dim)
        found[value.name] = Type(held.elem_type, shape)
    for item in graph.initializer:
        found[item.name] = Type(item.data_type, tuple(item.dims))
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: onnx.NodeProto) -> list[str]:
    """All tensors that a node reads, those that its subgraphs take from outside included."""
    found = {name: None for name in node.input if name}
    for graph in subgraphs(node):
        found |= dict.fromkeys(captured(graph))
    return list(found)


def captured(graph: onnx.GraphProto) -> list[str]:
    """What a subgraph reads and does not make."""
    own = {value.name for value in graph.input} | {item.name for item in graph.initializer}
    own |= {item.values.name for item in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    names = [name for node in graph.node for name in reads(node)]
    names += [value.name for value in graph.output]
    return [name for name in dict.fromkeys(names) if name not in own]


def in_order(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes, each behind those that make what it reads, also within its subgraphs.

    Files need not be sorted for ONNX Runtime. Where they are, the order stays; else a node that
    comes too late moves right before the first that needs it. What no node makes counts as given.
    The order also stays where there is no right one: in a cycle, or where two make one tensor.
    """
    nodes = list(nodes)
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if maker.setdefault(name, index) != index:
                return nodes
    needs = [[maker[name] for name in reads(node) if name in maker] for node in nodes]
    if all(other < index for index, others in enumerate(needs) for other in others):
        return nodes
    order: list[int] = []
    done: set[int] = set()
    opened: set[int] = set()
    for first in range(len(nodes)):
        waiting = [first]
        while waiting:
            index = waiting[-1]
            late = [other for other in needs[index] if other not in done]
            if index not in done and late:
                if index in opened:
                    return nodes
                opened.add(index)
                # The first that is read comes first.
                waiting += reversed(late)
                continue
            waiting.pop()
            if index not in done:
                done.add(index)
                order.append(index)
    return [nodes[index] for index in order]


class Graph:
    """The main graph of a model, with what is asked of it again and again.

    ``nodes`` are in an order in which they can run, which the file's need not be.
    ``constants`` are tensors that depend on no input and on no random node.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.nodes = in_order(model.graph.node)
        self.held = {item.name for item in model.graph.initializer}
        self.held |= {item.values.name for item in model.graph.sparse_initializer}
        self.inputs = [v.name for v in model.graph.input if v.name not in self.held]
        self.maker = {name: k for k, n in enumerate(self.nodes) for name in n.output if name}
        self.reads = [reads(node) for node in self.nodes]
        self.constants = set(self.held)
        self.users: dict[str, list[int]] = defaultdict(list)
        for index, node in enumerate(self.nodes):
            for name in self.reads[index]:
                self.users[name].append(index)
            if not is_random(node) and all(name in self.constants for name in self.reads[index]):
                self.constants.update(name for name in node.output if name)

    def __contains__(self, name: str) -> bool:
        return name in self.maker or name in self.held or name in self.inputs

    def aliases(self) -> dict[str, str]:
        """What stands for a tensor that another one equals: of copies, and of nodes alike."""
        same: dict[str, str] = {}
        seen: dict[Any, onnx.NodeProto] = {}
        for node in self.nodes:
            given = tuple(same.get(name, name) for name in node.input)
            if node.op_type in SAME:
                same[node.output[0]] = given[0]
                continue
            if is_random(node) or any(True for _ in subgraphs(node)):
                continue
            how = tuple(sorted(item.SerializeToString() for item in node.attribute))
            first = seen.setdefault((node.domain, node.op_type, given, how), node)
            if first is not node:
                made = zip(node.output, first.output, strict=False)
                same |= {own: other for own, other in made if own and other}
        return same


def is_random(node: onnx.NodeProto) -> bool:
    """Whether a node, or one in its subgraphs, makes random numbers."""
    if node.op_type in RANDOM:
        return True
    return any(is_random(inner) for graph in subgraphs(node) for inner in graph.node)


def segments(original: onnx.ModelProto, optimised: onnx.ModelProto) -> list[Segment]:
    """Cut ``optimised`` at every tensor that ``original`` has too, in the order of its nodes.

    A tensor of the same name but of another element type, shape or kind is no such tensor.
    ``optimised`` should declare the types of all its tensors: where it does not, names decide, and
    a port's dtype is the original's. A constant that the original computes and the optimised graph
    holds is part of the segment that reads it; one that is an output is a segment of no nodes.
    """
    graph = Graph(optimised)
    known = Ports(original, graph)
    ports, names = known.found, known.node_names()
    group = list(range(len(graph.nodes)))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    helper = {
        index
        for index, node in enumerate(graph.nodes)
        if all(n in graph.constants and n not in ports for n in node.output if n)
    }
    for index in range(len(graph.nodes)):
        for name in graph.reads[index]:
            if index not in helper and name not in ports and name in graph.maker:
                maker = graph.maker[name]
                if maker not in helper:
                    group[root(index)] = root(maker)
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(graph.nodes)):
        if index not in helper:
            members[root(index)].append(index)
    made = [segment(graph, ports, nodes, helper, names) for nodes in members.values()]
    for value in optimised.graph.output:
        if value.name in graph.held and value.name in ports:
            port = ports[value.name]
            made.append(
                Segment(nodes=[], inputs=[], outputs=[port], op="Constant", node=port.original)
            )
    return made


def segment(
    graph: Graph,
    ports: Mapping[str, Port],
    nodes: list[int],
    helper: set[int],
    names: Mapping[str, str],
) -> Segment:
    """The segment of these nodes, and of the helpers that they need.

    It is called as in the original (``names``: a node's name, by itself and by what it makes)
    where a name of the original is left.
    """
    helpers: set[int] = set()
    waiting = list(nodes)
    inputs: dict[str, Port] = {}
    while waiting:
        for name in graph.reads[waiting.pop()]:
            maker = graph.maker.get(name)
            if name in ports and name not in graph.held:
                inputs[name] = ports[name]
            elif maker in helper and maker is not None and maker not in helpers:
                helpers.add(maker)
                waiting.append(maker)
    outputs = [ports[n] for k in nodes for n in graph.nodes[k].output if n in ports]
    kinds = [graph.nodes[k].op_type for k in nodes]
    naming = next((k for k in nodes if graph.nodes[k].op_type not in MOVES), nodes[0])
    named = graph.nodes[naming]
    last = outputs[-1].original if outputs else ""
    label = names.get(named.name) or names.get(last) or last or named.name
    return Segment(
        nodes=nodes,
        inputs=list(inputs.values()),
        outputs=outputs,
        op=joined(kinds),
        node=label,
        helpers=sorted(helpers),
        random=any(is_random(graph.nodes[k]) for k in nodes),
    )


def joined(kinds: Iterable[str]) -> str:
    """Operator types as ``Conv+Relu``, casts and copies left out where there are others."""
    kinds = list(kinds)
    counts = Counter([kind for kind in kinds if kind not in MOVES] or kinds)
    parts = [kind if count == 1 else f"{count} {kind}" for kind, count in counts.items()]
    return "+".join(parts) if len(parts) <= 6 else "+".join(parts[:6]) + "+..."


class Ports:
    """Which tensors of an optimised graph are tensors of the original: ``found``, by name there.

    A name that both have counts if nothing known of the types contradicts it. Behind it come
    tensors in float32 that the original has in float16, which ONNX Runtime names after them, and
    those that only the structure tells: results of nodes in blocked layout, whose operators are
    the original's.
    """

    def __init__(self, original: onnx.ModelProto, graph: Graph) -> None:
        self.original, self.graph = Graph(original), graph
        declared = shape_inference.infer_shapes(self.sorted(original), data_prop=True)
        self.types, self.there = types(declared.graph), types(graph.graph)
        self.by_inputs: dict[Any, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.original.nodes:
            self.by_inputs[node.op_type, frozenset(node.input)].append(node)
        self.found: dict[str, Port] = {}
        for name in (*graph.inputs, *graph.held):
            self.known(name)
        for node in graph.nodes:
            for index, name in enumerate(node.output):
                if name and not self.known(name):
                    self.guessed(node, index)

    def sorted(self, original: onnx.ModelProto) -> onnx.ModelProto:
        """The original with its nodes in order, without which types are not inferred."""
        nodes = self.original.nodes
        if list(original.graph.node) == nodes:
            return original
        copy = onnx.ModelProto()
        copy.CopyFrom(original)
        del copy.graph.node[:]
        copy.graph.node.extend(nodes)
        return copy

    def node_names(self) -> dict[str, str]:
        """The name of an original node, by every tensor that it makes and by itself."""
        named = [node for node in self.original.nodes if node.name]
        made = {name: node.name for node in named for name in node.output if name}
        return made | {node.name: node.name for node in named}

    def known(self, name: str) -> bool:
        """Whether the name says what a tensor is, which is then entered."""
        if self.fits(name, name, cast=False):
            self.enter(name, name)
        elif name.startswith(CAST) and name not in self.graph.constants:
            own = name.removeprefix(CAST)
            if self.fits(name, own, cast=True):
                self.enter(name, own)
        return name in self.found

    def enter(self, name: str, own: str, blocked: bool = False) -> None:
        dtype = self.there.get(name, Type()).dtype or self.types.get(own, Type()).dtype
        self.found[name] = Port(name, own, dtype, blocked)

    def fits(self, name: str, own: str, *, cast: bool, blocked: bool = False) -> bool:
        """Whether a tensor here may be the original's ``own``, by all that is known of both."""
        if own not in self.original:
            return False
        here, there = self.there.get(name, Type()), self.types.get(own, Type())
        if not (here.tensor and there.tensor):
            return False
        both_known = bool(here.dtype and there.dtype)
        widened = cast and (there.dtype, here.dtype) in WIDER
        if both_known and here.dtype != there.dtype and not widened:
            return False
        if here.shape is None or there.shape is None:
            return True
        if len(here.shape) != len(there.shape):
            return False
        pairs = enumerate(zip(here.shape, there.shape, strict=True))
        # Channels in blocks may be more: they are filled up.
        return all(None in pair or len(set(pair)) == 1 or (blocked and k == 1) for k, pair in pairs)

    def guessed(self, node: onnx.NodeProto, index: int) -> None:
        """Enter an output whose name is made up, where the structure says what it is."""
        blocked = node.domain == NCHWC and node.op_type != "ReorderOutput"
        blocked |= any(self.is_blocked(name) for name in node.input)
        if node.domain == NCHWC:
            own = self.of_blocked(node) if index == 0 else None
        else:
            own = self.of_same_inputs(node, index)
        name = node.output[index]
        if own is not None and self.fits(name, own, cast=True, blocked=blocked):
            self.enter(name, own, blocked)

    def is_blocked(self, name: str) -> bool:
        return name in self.found and self.found[name].blocked

    def own(self, name: str) -> str | None:
        """The original's name of a tensor here."""
        return self.found[name].original if name in self.found else None

    def of_same_inputs(self, node: onnx.NodeProto, index: int) -> str | None:
        """The output of the one original node of this type that reads the same tensors."""
        given = [self.own(name) if name else "" for name in node.input]
        if None in given or any(True for _ in subgraphs(node)):
            return None
        alike = [
            other
            for other in self.by_inputs[node.op_type, frozenset(given)]
            if sorted(other.input) == sorted(map(str, given)) and same_attributes(node, other)
        ]
        if len(alike) != 1 or index >= len(alike[0].output):
            return None
        in_order = list(alike[0].input) == given
        commutes = node.op_type in ("Add", "Mul", "Sum", "Max", "Min", "Mean")
        return alike[0].output[index] if in_order or commutes else None

    def of_blocked(self, node: onnx.NodeProto) -> str | None:
        """What a node in blocked layout computes.

        It is named after the tensor that it made at first. A sum or an activation that it took in
        later changes that to what they made: the only such nodes that read the tensor.
        """
        if node.op_type == "ReorderInput":
            return self.own(node.input[0])
        named = re.fullmatch(r"(.+?)_nchwc(_token_\d+)?", node.name)
        if named is None:
            return None
        first = named[1].removeprefix(CAST)
        if first not in self.original.maker:
            return None
        own: str | None = first
        taken = {item.name: item.s.decode() for item in node.attribute if item.name == "activation"}
        activation = taken.get("activation")
        if len(node.input) > 3 and node.input[3]:
            own = self.after_sum(first, self.own(node.input[3]))
        if own is not None and activation and self.made_by(own) != activation:
            own = self.only_reader(own, (activation,))
        return own

    def made_by(self, name: str) -> str:
        index = self.original.maker.get(name)
        return self.original.nodes[index].op_type if index is not None else ""

    def after_sum(self, name: str, other: str | None) -> str | None:
        """``name`` where it is already the sum with ``other``, else the node that adds them."""
        if other is None:
            return None
        node = self.original.nodes[self.original.maker[name]]
        behind = [self.original.maker.get(n) for n in node.input]
        before = [self.original.nodes[index] for index in behind if index is not None]
        if any(n.op_type in ("Add", "Sum") and other in n.input for n in (node, *before)):
            return name
        return self.only_reader(name, ("Add", "Sum"), other)

    def only_reader(self, name: str, kinds: tuple[str, ...], beside: str = "") -> str | None:
        """The output of the only node of these types that reads a tensor (and ``beside``)."""
        readers = [self.original.nodes[k] for k in self.original.users[name]]
        found = [n for n in readers if n.op_type in kinds and (not beside or beside in n.input)]
        return found[0].output[0] if len(found) == 1 else None


def same_attributes(a: onnx.NodeProto, b: onnx.NodeProto) -> bool:
    """Whether two nodes have the same attributes, wherever both say them."""
    ours, theirs = ({item.name: item for item in node.attribute} for node in (a, b))
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
