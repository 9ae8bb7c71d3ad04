"""What every segment of an optimised graph should give: the original's operators in float64.

Each gets the reference's own values, rounded to the type that they have in the optimised graph, so
that an error of one segment never reaches another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
from onnx import NodeProto, helper
from torch import Tensor

from xbench import draws, operators, tensors
from xbench.errors import EngineError, Unsupported
from xbench.runners.graph import segments as cutting
from xbench.runners.graph.interpreter import Interpreter
from xbench.runners.graph.node import Node, Value
from xbench.runners.graph.segments import Graph, Manifest, Part, Port, Result, Segment
from xbench.runners.graph.terms import terms

Array = np.ndarray[Any, Any]

DRAWS = 2
"""How often every input is moved by one ULP."""
PART_BYTES = 256 << 20
"""Arrays are written out once there are so many."""
TYPES = {"float16", "float32", "float64", "bool"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
STEPWISE = ("Resize", "Upsample", "Range", "OneHot", "Pad", "QuantizeLinear", "DequantizeLinear")
"""Operators whose constants are not moved: an ULP may change a shape, or every whole number."""
ROUNDING = ("Quantize", "QLinear", "Round", "Floor", "Ceil", "Cast", "ToInteger")
"""What is in the names of operators that round, so that a tie may go to either side."""


def from_files(
    original: Path,
    optimised: Path,
    feeds: Path,
    folder: Path,
    *,
    tick: Callable[[], None] | None = None,
) -> Manifest:
    """``expected`` for files: of ``ort_operators.optimised``, and feeds of ``tensors.save``."""
    skeleton = onnx.load(str(original), load_external_data=False)
    cut = cutting.segments(skeleton, onnx.load(str(optimised), load_external_data=False))
    return expected(onnx.load(str(original)), tensors.load(feeds), cut, folder, tick=tick)


def expected(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    segments: Sequence[Segment],
    folder: Path,
    *,
    tick: Callable[[], None] | None = None,
) -> Manifest:
    """Write inputs and float64 results of ``segments`` into ``folder``.

    In files of about ``PART_BYTES``, with a manifest beside them. The reference's tensors wait on
    disk meanwhile: memory holds a part and what one segment needs. ``tick`` is called before every
    node and may raise an EngineError: what was not evaluated by then is named in the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="reference-") as scratch:
        reference = Reference(model, feeds, segments, Path(scratch), tick)
        writer = Writer(folder)
        unchecked: dict[str, list[str]] = {}
        for index, segment in enumerate(segments):
            name = f"{segment.op} {segment.node}".strip()
            try:
                writer.add(index, segment, *reference.evaluate(segment))
            except EngineError as error:
                unchecked.setdefault(str(error), []).append(name)
        writer.flush()
    if reference.problem:
        unchecked.setdefault(reference.problem, [])
    manifest = Manifest(segments=list(segments), parts=writer.parts, unchecked=unchecked)
    (folder / cutting.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return manifest


@dataclass(slots=True)
class Outcome:
    """One output of a segment in float64, and how far moved inputs moved it."""

    port: Port
    value: Array
    spread: float
    op: str
    terms: int
    element: int
    exact: bool
    rounds: bool


@dataclass(slots=True)
class Writer:
    """Collects arrays and writes them out in parts."""

    folder: Path
    parts: list[Part] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def add(
        self, index: int, segment: Segment, given: Mapping[str, Array], outcomes: list[Outcome]
    ) -> None:
        """A segment that was evaluated, with what feeds its ports."""
        for name, value in given.items():
            if name not in self.inputs:
                self.inputs[name] = f"x{len(self.inputs)}"
                self.arrays[self.inputs[name]] = value
        for outcome in outcomes:
            key = f"y{len(self.results)}"
            self.arrays[key] = outcome.value
            self.results.append(
                Result(
                    segment=index,
                    port=outcome.port,
                    key=key,
                    op=outcome.op or segment.op,
                    terms=outcome.terms,
                    spread=outcome.spread,
                    element=outcome.element,
                    exact=outcome.exact,
                    rounds=outcome.rounds,
                )
            )
        if sum(value.nbytes for value in self.arrays.values()) >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is there, if anything is."""
        if not self.results:
            return
        file = f"part{len(self.parts)}.npz"
        tensors.save(self.folder / file, self.arrays)
        self.parts.append(Part(file=file, inputs=self.inputs, results=self.results))
        self.arrays, self.inputs, self.results = {}, {}, []


@dataclass(frozen=True, slots=True)
class Region:
    """The part of the original graph that makes some tensors.

    ``nodes``: what is evaluated, in order. ``given``: tensors that are not computed but taken from
    the reference. ``parameters``: constants of the file that are read.
    """

    nodes: list[int]
    given: list[str]
    parameters: list[str]


class Reference:
    """The original graph in float64: one whole run, and its parts from rounded inputs."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        segments: Sequence[Segment],
        scratch: Path,
        tick: Callable[[], None] | None,
    ) -> None:
        """Runs the whole graph once. ``problem`` says why where it did not reach its end."""
        self.graph, self.feeds, self.scratch = Graph(model), dict(feeds), scratch
        self.same = self.graph.aliases()
        self.alike: dict[str, list[str]] = {}
        for name, first in self.same.items():
            self.alike.setdefault(first, [first]).append(name)
        self.interpreter = Interpreter(model)
        if tick is not None:
            self.interpreter.tick = tick
        self.stored: dict[str, Path] = {}
        self.needed = self.wanted_by(segments)
        self.problem = ""
        try:
            self.interpreter.run(self.feeds, visit=self.keep)
        except EngineError as error:
            self.problem = f"float64 ended early: {error}"

    def wanted_by(self, segments: Sequence[Segment]) -> set[str]:
        """All tensors of the reference that some segment starts from."""
        found: set[str] = set()
        for segment in segments:
            found.update(port.original for port in segment.inputs)
            for ports in turns(segment):
                found.update(self.region(segment, ports).given)
        return found

    def keep(
        self, proto: NodeProto, node: Node, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> None:
        """Put tensors that are needed later on the disk."""
        for name, value in zip(proto.output, outputs, strict=False):
            if name in self.needed and isinstance(value, Tensor):
                self.stored[name] = self.scratch / f"{len(self.stored)}.npy"
                np.save(self.stored[name], value.numpy())

    def value(self, name: str) -> Array:
        """A tensor of the reference, floats in float64. Raises Unsupported where there is none."""
        if name in self.stored:
            found: Array = np.load(self.stored[name])
            return found
        if name in self.feeds:
            return np.asarray(self.feeds[name])
        held = self.interpreter.constants.get(name)
        if isinstance(held, Tensor):
            return held.numpy()
        raise Unsupported("float64 has no value for what it reads")

    def region(self, segment: Segment, wanted: Sequence[Port]) -> Region:
        """What of the original makes these outputs from the inputs of the segment.

        A branch that none of the inputs reaches, such as a shape that was folded away, is not
        evaluated but taken from the reference where it ends.
        """
        own = {self.same.get(port.original, port.original) for port in wanted}
        ends = {self.same.get(port.original, port.original) for port in segment.inputs} - own
        stops = {name for end in ends for name in self.alike.get(end, [end])}
        nodes: set[int] = set()
        seen = {port.original for port in wanted}
        waiting = list(seen)
        while waiting:
            name = waiting.pop()
            maker = self.graph.maker.get(name)
            if name in stops or maker is None:
                continue
            nodes.add(maker)
            new = set(self.graph.reads[maker]) - seen
            seen |= new
            waiting += new
        constants = self.graph.constants
        reached: set[str] = stops & seen
        inside = []
        for index in sorted(nodes):
            made, read = self.graph.nodes[index].output, self.graph.reads[index]
            if not reached.isdisjoint(read):
                inside.append(index)
                reached.update(name for name in made if name and name not in stops)
            elif all(name in constants for name in made if name):
                inside.append(index)
        computed = {name for index in inside for name in self.graph.nodes[index].output}
        read_names = {name for index in inside for name in self.graph.reads[index]}
        read_names |= {port.original for port in wanted}
        given = read_names - constants - (computed - stops)
        parameters = [n for n in read_names if n in self.interpreter.constants]
        return Region(inside, sorted(given), sorted(parameters))

    def evaluate(self, segment: Segment) -> tuple[dict[str, Array], list[Outcome]]:
        """What feeds the ports of a segment, and its outputs.

        Raises Unsupported for tensors of other kinds than numbers, and where float64 has no value.
        """
        if segment.random:
            raise Unsupported("it makes random numbers")
        if not segment.outputs:
            raise Unsupported("no tensor that it makes is one of the file")
        fed = {port.tensor: self.rounded(port.original, port.dtype) for port in segment.inputs}
        outcomes = [out for ports in turns(segment) for out in self.outcomes(segment, ports, fed)]
        return fed, outcomes

    def outcomes(
        self, segment: Segment, wanted: Sequence[Port], fed: Mapping[str, Array]
    ) -> list[Outcome]:
        """Some outputs of a segment in float64."""
        region = self.region(segment, wanted)
        ports = {self.same.get(p.original, p.original): fed[p.tensor] for p in segment.inputs}
        given = {}
        for name in region.given:
            first = self.same.get(name, name)
            given[name] = ports[first] if first in ports else self.rounded(name, 0)
        names = [port.original for port in wanted]
        counts: dict[str, int] = {}

        def count(
            proto: NodeProto, node: Node, inputs: Sequence[Value], outputs: Sequence[Value]
        ) -> None:
            found = terms(
                proto, inputs, outputs, inside=self.interpreter.inside, version=node.version
            )
            counts.update((name, found) for name in proto.output if name)

        base = self.interpreter.run({}, names, given=given, visit=count)
        casts = self.casts(region)
        narrow = narrowest([*casts, *(port.dtype for port in (*segment.inputs, *wanted))])
        dtype = helper.tensor_dtype_to_np_dtype(narrow)
        kinds = [self.graph.nodes[index].op_type for index in region.nodes]
        exact = self.exact(region)
        moved = []
        if not exact:
            moved = [self.moved(region, names, given, counts, dtype, d) for d in range(DRAWS)]
        found = []
        for port, name in zip(wanted, names, strict=True):
            value = held_in(number(base[name]), port.dtype)
            others = [held_in(number(draw[name]), port.dtype) for draw in moved]
            found.append(
                Outcome(
                    port=port,
                    value=value,
                    spread=max((operators.change(o, value) for o in others), default=0.0),
                    op=cutting.joined(kinds) if 0 < len(set(kinds)) <= 3 else "",
                    terms=max(counts.values(), default=1),
                    element=narrowest([port.dtype, *casts]),
                    exact=exact,
                    rounds=any(word in kind for kind in kinds for word in ROUNDING),
                )
            )
        return found

    def moved(
        self,
        region: Region,
        names: Sequence[str],
        given: Mapping[str, Array],
        counts: Mapping[str, int],
        narrow: np.dtype[Any],
        draw: int,
    ) -> dict[str, Value]:
        """The outputs when everything that is read moves by one ULP of its type in the file.

        That goes for parameters too: where ONNX Runtime folds several, it rounds the result to
        the type that they have. And tensors between the operators of a region move by sqrt(K) ULPs
        of the ``narrow`` type: as far as the operator that makes one may be off by rounding.
        """
        constants: dict[str, Value] = {}
        for name in set(region.parameters) - self.stepwise(region):
            held = self.interpreter.constants[name]
            element = self.interpreter.types.get(name, 0)
            if isinstance(held, Tensor) and held.is_floating_point() and numeric(element):
                dtype = helper.tensor_dtype_to_np_dtype(element)
                nudged = draws.perturb(held.numpy().astype(dtype), seed=draw, name=name)
                constants[name] = torch.from_numpy(nudged.astype(np.float64))
        values: dict[str, Any] = {
            name: draws.perturb(a, seed=draw, name=name) if a.dtype.kind == "f" else a
            for name, a in given.items()
        }
        if len(region.nodes) > 1:
            for index in region.nodes[:-1]:
                made = [name for name in self.graph.nodes[index].output if name]
                between = [name for name in made if name not in given and name not in names]
                if not between:
                    continue
                found = self.interpreter.run({}, between, given=values, constants=constants)
                for name, value in found.items():
                    ulps = max(1, round(counts.get(name, 1) ** 0.5))
                    values[name] = nudged_between(value, narrow, draw, name, ulps)
        return self.interpreter.run({}, names, given=values, constants=constants)

    def exact(self, region: Region) -> bool:
        """Whether a region knows whole numbers only: no float is read or made."""
        made = {name for index in region.nodes for name in self.graph.nodes[index].output}
        found = {self.interpreter.types.get(n, 0) for n in (*made, *region.given) if n}
        found |= {self.interpreter.types.get(name, 0) for name in region.parameters}
        return 0 not in found and not any(is_float(element) for element in found)

    def stepwise(self, region: Region) -> set[str]:
        """Constants that operators read in which an ULP may decide a shape."""
        kinds = ((index, self.graph.nodes[index].op_type) for index in region.nodes)
        found = [k for k, kind in kinds if kind in STEPWISE or "QLinear" in kind]
        return {name for index in found for name in self.graph.reads[index]}

    def casts(self, region: Region) -> list[int]:
        """The element types that nodes of a region cast to."""
        made = [
            n.output[0]
            for n in map(self.graph.nodes.__getitem__, region.nodes)
            if n.op_type in ("Cast", "CastLike")
        ]
        return [self.interpreter.types.get(name, 0) for name in made]

    def rounded(self, name: str, dtype: int) -> Array:
        """The reference's value of a tensor in an element type, or in its own where that is 0."""
        element = dtype or self.interpreter.types.get(name, 0)
        if not numeric(element):
            raise Unsupported("it reads what is no tensor of numbers of a known type")
        kind = helper.tensor_dtype_to_np_dtype(element)
        value = self.value(name)
        if kind.kind != "f":
            return value.astype(kind)
        limit = np.finfo(kind).max
        finite = np.where(np.isfinite(value), np.clip(value, -limit, limit), value)
        return finite.astype(kind)


def turns(segment: Segment) -> list[list[Port]]:
    """Outputs that may be evaluated together: one that is also read has to go alone."""
    read = {port.original for port in segment.inputs}
    together = [port for port in segment.outputs if port.original not in read]
    alone = [[port] for port in segment.outputs if port.original in read]
    return ([together] if together else []) + alone


def numeric(element: int) -> bool:
    """Whether an element type is one that is checked."""
    known = element in onnx.TensorProto.DataType.values() and element not in (0, 8)
    return known and helper.tensor_dtype_to_np_dtype(element).name in TYPES


def narrowest(elements: Iterable[int]) -> int:
    """The float type with the fewest bits among some; float32 where none is a float."""
    floats = [element for element in elements if numeric(element) and is_float(element)]
    size = {element: helper.tensor_dtype_to_np_dtype(element).itemsize for element in floats}
    return min(floats, key=size.__getitem__, default=int(onnx.TensorProto.FLOAT))


def is_float(element: int) -> bool:
    """Whether an element type is a float, of whatever width."""
    name = onnx.TensorProto.DataType.Name(element)
    return "FLOAT" in name or name == "DOUBLE"


def number(value: Value) -> Array:
    """A result as an array. Raises Unsupported for sequences and what is absent."""
    if not isinstance(value, Tensor):
        raise Unsupported("it makes what is no tensor")
    return value.numpy()


def held_in(value: Array, element: int) -> Array:
    """A result in float64 where it is a float, infinite where its type ends before it."""
    if not numeric(element):
        raise Unsupported("it makes numbers of a type that is not checked")
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if value.dtype.kind != "f" or dtype.kind != "f":
        return value
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype)
    return np.where(np.isinf(narrow), narrow.astype(np.float64), value)


def nudged_between(value: Value, dtype: np.dtype[Any], draw: int, name: str, ulps: int) -> Value:
    """A tensor between two operators, moved by ULPs of ``dtype``: the rest of it is kept."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    exact = value.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        held = exact.astype(dtype)
        step = draws.perturb(held, seed=draw, name=name, ulps=ulps).astype(np.float64) - held
    return torch.from_numpy(np.where(np.isfinite(step), exact + step, exact))
