"""ONNX Runtime's kernels one by one: what a session really runs, each on the reference's inputs.

Three processes, which exchange files: ``optimised`` here, ``graph.expected.from_files`` beside
torch, ``check`` here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from xbench import numerics, operators, tensors
from xbench.errors import EngineError
from xbench.result import OperatorCheck, Operators
from xbench.runners.base import Work
from xbench.runners.graph import segments as cutting
from xbench.runners.graph.segments import Graph, Manifest, Part, Port, Result, Segment
from xbench.runners.ort import OrtRunner
from xbench.runners.ort_precision import LARGEST_BYTES
from xbench.runners.ort_session import ERRORS, opened, providers, session_options, words

Array = np.ndarray[Any, Any]

EPS = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""Distance from 1 to the next number."""
MEMCPY = ("MemcpyToHost", "MemcpyFromHost")
STEPPED = 0.1
"""RMS distance of quantised values, in steps, where one in a hundred is one step away."""
QUANTISES = ("Quantize", "QLinear")
"""How the names of operators begin whose results are on a grid."""
ONE_STEP = 1.001
"""What counts as one step of a grid in floats, which are rounded."""
OFF_GRID = 1e-3
"""How far from a whole number of steps a value on a grid may be, in steps."""
BLOCK = 16
"""Channels in a block, at most."""


def optimised(work: Work, target: Path, feeds: Path) -> Path:
    """Write the graph that a session of the case runs to ``target``; returns the file it is of.

    Every tensor has its type as ONNX Runtime knows it. ``feeds`` gets the inputs of the first
    batch as the session takes them. Raises EngineError where ONNX Runtime cannot write or read
    such a file again, as with kernels that an execution provider compiled.
    """
    runner = OrtRunner(work.case.engine)
    runner.work = work
    source = runner.graph_of(work)
    case = work.case
    options = session_options(case.threads, case.options)
    options.optimized_model_filepath = str(target)
    skeleton = onnx.load(str(source), load_external_data=False)
    outside = any(t.data_location == onnx.TensorProto.EXTERNAL for t in skeleton.graph.initializer)
    if outside:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", target.name + ".data"
        )
    asked = providers(case.device, case.options)
    runner.on_device(lambda: opened(str(source), options, asked))
    typed(runner, target)
    inputs = work.spec.inputs(work.config)
    tensors.save(feeds, {s.name: runner.native(s, work.batches[0][s.name]) for s in inputs})
    return source


def typed(runner: OrtRunner, target: Path) -> None:
    """Declare the type of every tensor in an optimised file, as a session of it knows them.

    Copies between devices, which a session makes anew, go.
    """
    model = onnx.load(str(target), load_external_data=False)
    without_copies(model.graph)
    declared = {value.name for value in (*model.graph.input, *model.graph.output)}
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    for node in model.graph.node:
        for name in node.output:
            if name and name not in declared:
                everything.graph.output.append(onnx.ValueInfoProto(name=name))
    beside = target.with_suffix(".typed.onnx")
    onnx.save(everything, str(beside))
    session = plain_session(runner, str(beside))
    beside.unlink()
    del model.graph.value_info[:]
    for found in session.get_outputs():
        if found.name not in declared and (value := value_info(found)) is not None:
            model.graph.value_info.append(value)
    onnx.save(model, str(target))


def without_copies(graph: onnx.GraphProto) -> None:
    """Take the nodes that copy between devices out of a graph. One that makes an output stays."""
    outputs = {value.name for value in graph.output}
    copies = [n for n in graph.node if n.op_type in MEMCPY and n.output[0] not in outputs]
    names: dict[str, str] = {}
    for node in copies:
        names[node.output[0]] = names.get(node.input[0], node.input[0])
    for node in copies:
        graph.node.remove(node)
    kept = [renamed(node, names) for node in graph.node] if names else []
    if kept:
        del graph.node[:]
        graph.node.extend(kept)


def value_info(found: Any) -> onnx.ValueInfoProto | None:
    """A tensor as a session declares it; what is no tensor keeps its kind alone."""
    kind = found.type
    if not kind.startswith("tensor("):
        made = onnx.ValueInfoProto(name=found.name)
        made.type.sequence_type.SetInParent()
        return made
    name = kind.removeprefix("tensor(").removesuffix(")")
    element = onnx.TensorProto.DataType.Value(
        {"float": "FLOAT", "double": "DOUBLE"}.get(name, name.upper())
    )
    shape = [axis if isinstance(axis, int) else None for axis in found.shape]
    return helper.make_tensor_value_info(found.name, element, shape)


def plain_session(runner: OrtRunner, model: str | bytes) -> Any:
    """A session with everything as the case has it, but that nothing is optimised."""
    case = runner.work.case
    options = session_options(case.threads, {**case.options, "ort-opt": "0"})
    asked = providers(case.device, case.options)
    return runner.on_device(lambda: opened(model, options, asked))


def check(work: Work, optimised: Path, folder: Path) -> Operators:
    """Run every segment alone on the inputs that ``expected`` left in ``folder``, and compare.

    What could not be run or evaluated is named in ``unchecked``, by reason.
    """
    runner = OrtRunner(work.case.engine)
    runner.work = work
    manifest = msgspec.json.decode((folder / cutting.MANIFEST).read_bytes(), type=Manifest)
    checker = Checker(runner, onnx.load(str(optimised)), manifest, folder)
    checks = [found for part in manifest.parts for found in checker.part(part)]
    notes = []
    for reason, names in checker.unchecked.items():
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        notes.append(f"{some}: {reason}" if some else reason)
    return operators.summed_up(checks, notes)


class Checker:
    """The cut graph, part by part. ``unchecked``: what was not checked, by reason."""

    def __init__(
        self, runner: OrtRunner, model: onnx.ModelProto, manifest: Manifest, folder: Path
    ) -> None:
        self.runner, self.folder = runner, folder
        self.cutter = Cutter(model)
        self.segments = manifest.segments
        self.unchecked = {reason: list(names) for reason, names in manifest.unchecked.items()}

    def part(self, part: Part) -> Iterator[OperatorCheck]:
        """The checks of one part."""
        arrays = tensors.load(self.folder / part.file)
        feeds = {name: arrays[key] for name, key in part.inputs.items()}
        for result, actual in self.computed(part.results, feeds, arrays):
            yield from self.compared(result, actual, arrays[result.key])

    def computed(
        self, results: list[Result], feeds: Mapping[str, Array], arrays: Mapping[str, Array]
    ) -> list[tuple[Result, Array]]:
        """What the kernels give: all segments in one session, each in its own where that fails.

        A part that lacks memory or that ONNX Runtime refuses is halved until what it refuses is
        one segment, which is entered as unchecked.
        """
        indices = list(dict.fromkeys(result.segment for result in results))
        shapes = {(r.segment, r.port.tensor): arrays[r.key].shape for r in results}
        try:
            values = self.run([self.segments[k] for k in indices], indices, feeds, shapes)
        except (EngineError, MemoryError) as error:
            if len(indices) == 1:
                reason = f"ONNX Runtime does not run it alone: {error}"
                self.leave_out(results[0], reason)
                return []
            first = set(indices[: len(indices) // 2])
            halves = (
                [r for r in results if r.segment in first],
                [r for r in results if r.segment not in first],
            )
            return [found for half in halves for found in self.computed(half, feeds, arrays)]
        return [(result, values[result.segment, result.port.tensor]) for result in results]

    def run(
        self,
        segments: list[Segment],
        indices: list[int],
        feeds: Mapping[str, Array],
        shapes: Mapping[tuple[int, str], tuple[int, ...]],
    ) -> dict[tuple[int, str], Array]:
        """The outputs of some segments, by the number of the segment and the tensor."""
        pairs = list(zip(indices, segments, strict=True))
        ports = {port.tensor: port for _, segment in pairs for port in segment.inputs}
        given = {name: self.cutter.padded(port, feeds[name]) for name, port in ports.items()}
        model, names = self.cutter.cut(pairs, ports, given, shapes)
        source: str | bytes
        if model.ByteSize() > LARGEST_BYTES:
            path = self.folder / "cut.onnx"
            (self.folder / "cut.onnx.data").unlink(missing_ok=True)
            onnx.save(model, str(path), save_as_external_data=True, location="cut.onnx.data")
            source = str(path)
        else:
            source = model.SerializeToString()
        session = plain_session(self.runner, source)
        try:
            values = session.run(list(names), given)
        except ERRORS as error:
            raise EngineError(words(error)) from error
        return dict(zip(names.values(), values, strict=True))

    def compared(self, result: Result, actual: Array, expected: Array) -> Iterator[OperatorCheck]:
        """The check of one output; none where it cannot be told, which is then entered."""
        segment = self.segments[result.segment]
        if not expected.size and actual.shape == expected.shape:
            self.leave_out(result, "it makes no elements")
            return
        made = {"node": segment.node, "op": result.op, "output": result.port.original}
        rounding = helper.tensor_dtype_to_np_dtype(result.element).name
        integers = actual.dtype.kind in "iub" and expected.dtype.kind in "iub"
        if integers and actual.shape == expected.shape and not result.exact:
            apart = int(np.count_nonzero(actual != expected))
            if apart and result.rounds and may_tie(actual, expected, result.rounds):
                yield self.stepped(result, actual, expected)
                return
            if apart and may_tie(actual, expected, result.rounds):
                self.leave_out(
                    result,
                    f"{apart} of {actual.size} whole numbers differ, which values that are closer "
                    "than their rounding explain",
                )
                return
        if integers:
            # Equal or not is told before the rounding of large ones to float64.
            same = bool((actual == expected).all()) if actual.shape == expected.shape else False
            expected = expected.astype(np.float64)
            actual = expected if same else actual.astype(np.float64)
        try:
            found = operators.check(
                made["node"],
                made["op"],
                made["output"],
                actual,
                expected,
                # All that is asked of a moved result is how far it is: the other job found that.
                [expected + result.spread],
                terms=result.terms,
                eps=0.0 if integers else EPS[rounding],
            )
            yield found if integers else self.on_grid(found, segment, actual, expected)
        except numerics.Incomparable as error:
            # Nothing finite to compare is no error where all of it is the same NaN or Inf.
            if "no finite element" in str(error):
                self.leave_out(result, "it makes no finite number")
                return
            yield OperatorCheck(
                **made,
                error_rms=sys.float_info.max,
                limit_rms=0.0,
                terms=result.terms,
                bound=str(error),
            )

    def stepped(self, result: Result, actual: Array, expected: Array) -> OperatorCheck:
        """The check of quantised values that are one step away, as near a tie they may be."""
        apart = actual.astype(np.float64) - expected.astype(np.float64)
        return OperatorCheck(
            node=self.segments[result.segment].node,
            op=result.op,
            output=result.port.original,
            error_rms=float(np.sqrt(np.mean(np.square(apart)))),
            limit_rms=steps_apart(actual.size),
            terms=1,
            bound=STEPS,
        )

    def on_grid(
        self, found: OperatorCheck, segment: Segment, actual: Array, expected: Array
    ) -> OperatorCheck:
        """The check of floats that were quantised, where one step explains every difference."""
        step = self.step(segment, expected)
        if not step or found.limit_rms >= (limit := step * steps_apart(expected.size)):
            return found
        finite = np.isfinite(expected)
        apart = np.abs(actual[finite].astype(np.float64) - expected[finite])
        if float(apart.max()) > ONE_STEP * step:
            return found
        return msgspec.structs.replace(found, limit_rms=limit, bound=STEPS)

    def step(self, segment: Segment, expected: Array) -> float:
        """The step of the grid that the floats of a segment are on; 0 where there is none.

        That is the scale of its last DequantizeLinear where this is held, else the smallest
        distance of two values. All values have to be on that grid: what an operator in floats
        makes of quantised values is not, and neither is a grid of another scale.
        """
        nodes = [self.cutter.graph.nodes[index] for index in segment.nodes]
        if not any(node.op_type.startswith(QUANTISES) for node in nodes):
            return 0.0
        values = np.unique(expected[np.isfinite(expected)].astype(np.float64))
        last = next((n for n in reversed(nodes) if n.op_type == "DequantizeLinear"), None)
        held = self.cutter.held.get(last.input[1]) if last is not None else None
        origin = 0.0
        if held is not None:
            step = float(numpy_helper.to_array(held).astype(np.float64).min())
        elif values.size > 2:
            # Two values are always on the grid of their distance.
            step, origin = float(np.diff(values).min()), float(values[0])
        else:
            return 0.0
        if not step > 0:
            return 0.0
        places = (values - origin) / step
        return step if bool((np.abs(places - np.round(places)) <= OFF_GRID).all()) else 0.0

    def leave_out(self, result: Result, reason: str) -> None:
        """Enter a result as unchecked."""
        segment = self.segments[result.segment]
        name = f"{result.op} {segment.node or result.port.original}"
        self.unchecked.setdefault(reason, []).append(name)


STEPS = "one element in a hundred, or three, one step away"


def steps_apart(size: int) -> float:
    """RMS distance in steps that ``size`` quantised values may have: three are one step away."""
    return ONE_STEP * max(STEPPED, math.sqrt(3.0 / size))


def may_tie(actual: Array, expected: Array, rounds: bool) -> bool:
    """Whether whole numbers made from floats may differ and both be right.

    Where floats were rounded, by one; indices and truths by anything, since the values that decide
    are not seen here.
    """
    if actual.dtype.kind == "b" or actual.dtype.itemsize == 8:
        return not rounds or bool(np.abs(actual.astype(object) - expected).max() <= 1)
    apart = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
    return rounds and bool(apart.max() <= 1)


class Cutter:
    """An optimised graph in pieces, any of them in one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = Graph(model)
        self.held = {item.name: item for item in model.graph.initializer}
        self.types = cutting.types(model.graph)

    def padded(self, port: Port, value: Array) -> Array:
        """What feeds a port: channels of a blocked one are filled up to whole blocks."""
        if not port.blocked:
            return value
        shape = self.types.get(port.tensor, cutting.Type()).shape
        channels = value.shape[1]
        full = (shape[1] if shape is not None else None) or -(-channels // BLOCK) * BLOCK
        width = [(0, 0)] * value.ndim
        width[1] = (0, full - channels)
        return np.pad(value, width)

    def cut(
        self,
        pairs: list[tuple[int, Segment]],
        ports: Mapping[str, Port],
        given: Mapping[str, Array],
        shapes: Mapping[tuple[int, str], tuple[int, ...]],
    ) -> tuple[onnx.ModelProto, dict[str, tuple[int, str]]]:
        """A model in which the segments touch nowhere, and what its outputs are of them.

        A tensor that several segments read is one input. What they make has a name of their own.
        """
        inputs, nodes = [], []
        entry: dict[str, str] = {}
        for name, port in ports.items():
            array = given[name]
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, dtype, array.shape))
            if port.blocked:
                entry[name] = f"blocked/{name}"
                nodes.append(
                    helper.make_node("ReorderInput", [name], [entry[name]], domain=cutting.NCHWC)
                )
        names: dict[str, tuple[int, str]] = {}
        outputs = []
        for number, segment in pairs:
            piece, made = self.piece(number, segment, entry)
            nodes += piece
            for port in segment.outputs:
                name = made[port.tensor]
                if port.blocked:
                    channels = shapes[number, port.tensor][1]
                    plain = f"{name}/plain"
                    nodes.append(
                        helper.make_node(
                            "ReorderOutput", [name], [plain], domain=cutting.NCHWC,
                            channels=channels,
                        )
                    )  # fmt: skip
                    name = plain
                names[name] = (number, port.tensor)
                outputs.append(onnx.ValueInfoProto(name=name))
        read = {name for node in nodes for name in cutting.reads(node)}
        held = [tensor for name, tensor in self.held.items() if name in read]
        graph = helper.make_graph(nodes, "segments", inputs, outputs, held)
        sparse = [t for t in self.model.graph.sparse_initializer if t.values.name in read]
        graph.sparse_initializer.extend(sparse)
        model = helper.make_model(
            graph,
            opset_imports=self.model.opset_import,
            ir_version=max(self.model.ir_version, 4),
            functions=self.model.functions,
        )
        return model, names

    def piece(
        self, number: int, segment: Segment, entry: Mapping[str, str]
    ) -> tuple[list[onnx.NodeProto], dict[str, str]]:
        """The nodes of one segment, and what its outputs are called there.

        A port that it reads is fed, also where one of its own nodes makes it.
        """
        read = {port.tensor: entry.get(port.tensor, port.tensor) for port in segment.inputs}
        chosen = sorted({*segment.nodes, *segment.helpers})
        made = {
            name: f"segment{number}/{name}"
            for index in chosen
            for name in self.graph.nodes[index].output
            if name
        }
        nodes = [renamed(self.graph.nodes[index], made | read, made) for index in chosen]
        for port in segment.outputs:
            if port.tensor in self.held:
                made[port.tensor] = f"segment{number}/{port.tensor}"
                nodes.append(helper.make_node("Identity", [port.tensor], [made[port.tensor]]))
        return nodes, made


def renamed(
    node: onnx.NodeProto, read: Mapping[str, str], made: Mapping[str, str] | None = None
) -> onnx.NodeProto:
    """A copy of a node that reads and makes tensors of other names, in its subgraphs too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    rename(copy.input, read)
    rename(copy.output, made or {})
    for graph in cutting.subgraphs(copy):
        rename_within(graph, read)
    return copy


def rename_within(graph: onnx.GraphProto, read: Mapping[str, str]) -> None:
    """Rename what a subgraph reads from outside."""
    own = {value.name for value in graph.input} | {item.name for item in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in read.items() if name not in own}
    for node in graph.node:
        rename(node.input, outer)
        for inner in cutting.subgraphs(node):
            rename_within(inner, outer)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def rename(names: Any, new: Mapping[str, str]) -> None:
    """Replace names in a repeated field."""
    names[:] = [new.get(name, name) for name in names]
