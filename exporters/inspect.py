"""What an ONNX file is, and that this ONNX Runtime can open it. Needs onnx, no framework."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from xbench.errors import EngineError, Unsupported
from xbench.runners.graph_facts import graphs, narrow_type, random_nodes, tensors
from xbench.runners.ort_session import open_session
from xbench.spec import ANY_RANK, ARRAYS, Signature, TensorSpec

OWN_DOMAINS = {"", "ai.onnx"}


def inspect(path: Path) -> tuple[Signature, dict[str, str]]:
    """Inputs and outputs of an ONNX file, and facts about it.

    A dynamic dimension has the file's name for it, or ``dim0_of_x``. An input that is also an
    initialiser is a parameter. ``external`` among the facts lists the files beside it, one a line.
    Raises EngineError where the file is damaged, incomplete or too new, Unsupported where ONNX
    Runtime lacks an operator or xbench cannot make an input. A kernel that only the CPU lacks is
    not the file's fault: it is a fact ``cpu``, and for a case to find.
    """
    model = read(path)
    outside = external_files(path, model)
    facts = described(model) | ({"external": "\n".join(outside)} if outside else {})
    if random := random_nodes(model):
        facts["random"] = random
    if narrow := narrow_type(model):
        facts["declared"] = narrow
    session, missing = opened(path, model)
    parameters = {item.name for item in model.graph.initializer}
    inputs = [declared(v) for v in model.graph.input if v.name not in parameters]
    for spec in inputs:
        if spec.dtype not in ARRAYS:
            raise Unsupported(
                f"input {spec.name!r} holds {spec.dtype}: xbench makes {', '.join(sorted(ARRAYS))}"
            )
    outputs = [declared(value) for value in model.graph.output]
    if session is not None:
        outputs = [inferred(spec, session) for spec in outputs]
    if missing:
        facts["cpu"] = missing
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs)), facts


def read(path: Path) -> onnx.ModelProto:
    """The file without its external data. Raises EngineError where it is not an ONNX model."""
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise EngineError(f"{path.name} is a pointer of Git LFS: fetch it with git lfs pull")
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise EngineError(damaged(path)) from error
    # Bytes of something else may decode by chance: they make no graph.
    if not model.ir_version or not model.graph.node:
        raise EngineError(damaged(path))
    return model


def damaged(path: Path) -> str:
    """What is said of bytes that are no model."""
    size = path.stat().st_size
    return f"{path.name} is not an ONNX model, or was cut off: its {size} bytes cannot be decoded"


def external_files(path: Path, model: onnx.ModelProto) -> list[str]:
    """Files beside the model that hold its tensors, relative to its folder.

    Raises EngineError for one that is missing, too short or outside the folder.
    """
    folder = path.parent
    ends: dict[str, int] = {}
    for tensor in tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        place = entry.get("location", "")
        where = f"{path.name} keeps the tensor {tensor.name!r} in {place!r}"
        if Path(place).is_absolute() or ".." in Path(place).parts or not place:
            raise EngineError(f"{where}, which is outside its folder: ONNX forbids that")
        if not (folder / place).is_file():
            raise EngineError(f"{where}, which is missing: put it into the folder of the model")
        begin = int(entry.get("offset", 0))
        end = begin + int(entry.get("length", 0))
        size = (folder / place).stat().st_size
        if size < end:
            raise EngineError(f"{where}, which ends at byte {size}, before byte {end}")
        ends[place] = max(end, ends.get(place, 0))
    return sorted(ends)


def described(model: onnx.ModelProto) -> dict[str, str]:
    """Versions and sizes of a model: nodes and parameters include those of subgraphs."""
    parts = list(graphs(model.graph))
    opsets = [
        f"{item.version}" if item.domain in OWN_DOMAINS else f"{item.domain} {item.version}"
        for item in sorted(model.opset_import, key=lambda item: item.domain not in OWN_DOMAINS)
    ]
    types: Counter[str] = Counter()
    for part in parts:
        for tensor in part.initializer:
            name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
            types[name] += math.prod(tensor.dims)
    return {
        "ir": str(model.ir_version),
        "opset": ", ".join(opsets),
        "nodes": str(sum(len(part.node) for part in parts)),
        "parameters": str(sum(types.values())),
        "parameter_types": ", ".join(name for name, _ in types.most_common()),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "runtime": ort.__version__,
    }


def opened(path: Path, model: onnx.ModelProto) -> tuple[Any, str]:
    """A session on the CPU; or none, and which kernel the CPU lacks.

    Raises as ``inspect`` does, with the file's version and the runtime's where they do not fit.
    """
    try:
        return open_session(str(path), "cpu", threads=1), ""
    except Unsupported as error:
        return None, str(error)
    except EngineError as error:
        raise explained(path, model, str(error)) from error


def explained(path: Path, model: onnx.ModelProto, said: str) -> EngineError:
    """An error that says what is wrong with a file, from what ONNX Runtime said."""
    runtime = f"this ONNX Runtime ({ort.__version__})"
    advice = "save it for an older version, or install a newer onnxruntime"
    if newest := re.search(r"max supported IR version: (\d+)", said):
        return EngineError(
            f"{path.name} has IR version {model.ir_version}, {runtime} reads up to {newest[1]}: "
            f"{advice}"
        )
    if newest := re.search(r"official support for domain (\S+) is till opset (\d+)", said):
        domain, limit = newest[1], int(newest[2])
        of = OWN_DOMAINS if domain in OWN_DOMAINS else {domain}
        own = max((item.version for item in model.opset_import if item.domain in of), default=0)
        return EngineError(
            f"{path.name} has opset {own} of {domain}, {runtime} supports up to {limit}: {advice}"
        )
    for pattern in (
        r"(?P<domain>[^\s:]*):(?P<op>\w+)\(-?\d+\) is not a registered function",
        r"Error No opset import for domain '(?P<domain>[^']*)'",
        r"No Op registered for (?P<op>\w+)",
    ):
        if found := re.search(pattern, said):
            parts = found.groupdict()
            op = f"the operator {parts['op']}" if "op" in parts else "operators"
            domain = f" of domain {parts['domain']}" if parts.get("domain") else ""
            return Unsupported(f"{path.name} needs {op}{domain}, which {runtime} does not have")
    return EngineError(f"{runtime} cannot open {path.name}: {said}")


def declared(value: onnx.ValueInfoProto) -> TensorSpec:
    """An input or output as the file declares it.

    What is no tensor has its kind for a dtype: ``sequence``, ``map``, ``optional``.
    """
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        word = str(kind).removesuffix("_type")
        return TensorSpec(name=value.name, shape=(ANY_RANK,), dtype=word)
    tensor = value.type.tensor_type
    dtype = type_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorSpec(name=value.name, shape=(ANY_RANK,), dtype=dtype)
    shape = tuple(
        axis.dim_value
        if axis.HasField("dim_value") and axis.dim_value >= 0
        else axis.dim_param or unnamed(index, value.name)
        for index, axis in enumerate(tensor.shape.dim)
    )
    return TensorSpec(name=value.name, shape=shape, dtype=dtype)


def type_name(elem_type: int) -> str:
    """numpy's name of an element type of ONNX; ONNX's own where numpy has none."""
    name = onnx.TensorProto.DataType.Name(elem_type).lower()
    return name if name == "string" else str(helper.tensor_dtype_to_np_dtype(elem_type))


def unnamed(index: int, name: str) -> str:
    """What a dynamic dimension is called that has no name."""
    return f"dim{index}_of_{name}"


def inferred(spec: TensorSpec, session: Any) -> TensorSpec:
    """An output with the dimensions that ONNX Runtime worked out where the file has none."""
    (found,) = (item for item in session.get_outputs() if item.name == spec.name)
    if spec.shape != (ANY_RANK,) or not found.shape:
        return spec
    shape = tuple(
        size if isinstance(size, int) else size or unnamed(index, spec.name)
        for index, size in enumerate(found.shape)
    )
    return TensorSpec(name=spec.name, shape=shape, dtype=spec.dtype)
