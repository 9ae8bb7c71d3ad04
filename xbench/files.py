"""A user's ONNX file: what it is, which shapes its inputs get, and what is put into them."""

from __future__ import annotations

import hashlib
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from xbench import draws, tensors
from xbench.errors import DataError, UsageError, unknown
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.spec import ANY_RANK, Case, Shape, Signature, TensorSpec

Array = np.ndarray[Any, Any]

INPUT_NOTE = "inputs are drawn: floats evenly from [-1, 1), integers and booleans 0 or 1"
"""What is said beside the figures of a file that was given no inputs."""


class OnnxFile(msgspec.Struct, frozen=True, kw_only=True):
    """An ONNX file that ONNX Runtime can open.

    ``digest``: SHA-256 in hex of the file, and of the files beside it that hold its parameters:
    content only. ``facts``: ``ir``, ``opset``, ``nodes``, ``parameters`` and more.
    """

    path: str
    name: str
    digest: str
    signature: Signature
    facts: Mapping[str, str] = {}


def inspect(paths: Sequence[str], launcher: Launcher) -> dict[str, OnnxFile]:
    """What each file is, by its path, from processes that have ONNX Runtime.

    Files of one stem but other content are named by their content too. Raises DataError for the
    first that is missing or that ONNX Runtime cannot open, with the reason.
    """
    unique = list(dict.fromkeys(paths))
    for path in unique:
        check_path(Path(path))
    reports = launcher.map(lambda path: examine(path, launcher), unique)
    found = {}
    for path, report in zip(unique, reports, strict=True):
        if not report.ok or report.signature is None:
            raise DataError(f"{path}: {report.reason or 'it was not inspected'}")
        beside = report.facts.get("external", "").splitlines()
        found[path] = OnnxFile(
            path=path,
            name=Path(path).stem,
            digest=digest(Path(path), beside),
            signature=report.signature,
            facts=report.facts,
        )
    contents = Counter(
        file.name for file in {(f.name, f.digest): f for f in found.values()}.values()
    )
    return {
        path: msgspec.structs.replace(file, name=f"{file.name}-{file.digest[:8]}")
        if contents[file.name] > 1
        else file
        for path, file in found.items()
    }


def check_path(path: Path) -> None:
    """Raise DataError unless ``path`` is a file with something in it."""
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder: name the .onnx file in it")
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty")
        with path.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def examine(path: str, launcher: Launcher) -> Report:
    """The report of a process that looked at one file."""
    case = Case(
        model=Path(path).stem, size="", phase="infer", engine="ort", device="cpu", source="file"
    )
    graph = str(Path(path).absolute())
    return launcher.run(Job(kind="inspect", case=case, folder=str(launcher.folder()), graph=graph))


def digest(path: Path, beside: Sequence[str]) -> str:
    """SHA-256 in hex of a file; with the files ``beside`` it, of the digests of all."""
    try:
        parts = [tensors.digest_file(path)]
        parts += [tensors.digest_file(path.parent / name) for name in sorted(beside)]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    return parts[0] if len(parts) == 1 else hashlib.sha256("\n".join(parts).encode()).hexdigest()


# -- shapes ------------------------------------------------------------------------------------


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[Shape, ...]]:
    """Shapes by input: ``x=1,3,224,224`` is one, ``ids=1x16,1x64`` are two, in turn.

    ``x=16`` has one dimension, ``s=`` and ``s=scalar`` have none. Raises UsageError otherwise.
    """
    found: dict[str, tuple[Shape, ...]] = {}
    for item in items:
        name, equals, text = item.rpartition("=")
        if not equals or not name:
            raise UsageError(f"--shape {item!r} names no input: write it as --shape x=1,3,224,224")
        if name in found:
            raise UsageError(
                f"--shape names input {name!r} twice: several shapes are one item, as "
                f"--shape {name}=1x16,1x64"
            )
        found[name] = shapes_in(item, text.strip())
    return found


def shapes_in(item: str, text: str) -> tuple[Shape, ...]:
    """The shapes of one item, of which ``text`` is what follows the name."""
    if text in ("", "scalar"):
        return ((),)
    parts = [part.split("x") for part in text.split(",")] if "x" in text else [text.split(",")]
    return tuple(tuple(extent(item, word.strip()) for word in part) for part in parts)


def extent(item: str, word: str) -> int:
    """One extent. Raises UsageError unless it is a whole number above zero."""
    if re.fullmatch(r"[0-9]{1,12}", word) is None or int(word) == 0:
        raise UsageError(
            f"--shape {item!r}: {word!r} is not a whole number above zero: write one shape as "
            "x=1,3,224,224 and several as ids=1x16,1x64"
        )
    return int(word)


def shapes_of(
    file: OnnxFile, shapes: Mapping[str, tuple[Shape, ...]], inputs: str | None = None
) -> tuple[dict[str, Shape], ...]:
    """The shape of every input, for each step of the cycle.

    An input with one shape keeps it; one without gets it from its fixed dimensions, and from
    dimensions of the same name that another input bound. ``inputs`` is an .npz whose arrays
    have their shapes. Raises UsageError where a dimension stays open or a shape does not fit.
    """
    if inputs is not None:
        if shapes:
            raise UsageError("--inputs and --shape: the arrays of the file have their own shapes")
        given = load_npz(file, Path(inputs))
        return (bound(file, {name: array.shape for name, array in given.items()}),)
    names = [spec.name for spec in file.signature.inputs]
    for name in shapes:
        if name not in names:
            raise unknown(f"input of {file.name}", name, names)
    lengths = {len(several): name for name, several in shapes.items() if len(several) > 1}
    if len(lengths) > 1:
        words = ", ".join(f"{name} has {length}" for length, name in lengths.items())
        raise UsageError(f"--shape: inputs in turn need equally many shapes, but {words}")
    steps = next(iter(lengths), 1)
    return tuple(
        bound(file, {n: s[step] if len(s) > 1 else s[0] for n, s in shapes.items()})
        for step in range(steps)
    )


def bound(file: OnnxFile, given: Mapping[str, Shape]) -> dict[str, Shape]:
    """Every input's shape where ``given`` has some of them. Raises UsageError."""
    if reason := misfit(file, given):
        raise UsageError(reason)
    sizes: dict[str, int] = {}
    for spec in file.signature.inputs:
        names = zip(spec.shape, given.get(spec.name, ()), strict=False)
        sizes |= {name: size for name, size in names if isinstance(name, str) and name != ANY_RANK}
    found = {}
    for spec in file.signature.inputs:
        if spec.name in given:
            found[spec.name] = given[spec.name]
            continue
        if any(isinstance(size, str) and size not in sizes for size in spec.shape):
            raise UsageError(
                f"input {spec.name!r} of {file.name} is declared {shown(spec.shape)}: give its "
                f"shape, as in --shape {spec.name}={example(spec)}"
            )
        found[spec.name] = tuple(
            size if isinstance(size, int) else sizes[size] for size in spec.shape
        )
    return found


def misfit(file: OnnxFile, given: Mapping[str, Shape]) -> str:
    """Why a shape does not fit what the file declares, or another input's; empty if all do."""
    sizes: dict[str, tuple[int, str]] = {}
    for spec in file.signature.inputs:
        if spec.name not in given or spec.shape == (ANY_RANK,):
            continue
        shape = given[spec.name]
        what = f"input {spec.name!r} is declared {shown(spec.shape)}, but given {shown(shape)}"
        if len(shape) != len(spec.shape):
            return f"{what}: it has {len(spec.shape)} dimensions, as in {example(spec)!r}"
        for axis, (declared, size) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(declared, int):
                if declared != size:
                    return f"{what}: dimension {axis} is fixed at {declared}"
            elif sizes.setdefault(declared, (size, spec.name))[0] != size:
                other, first = sizes[declared]
                return f"{what}: {declared!r} is {size} here and {other} in {first!r}"
    return ""


def shown(shape: Sequence[int | str]) -> str:
    """A shape in words of the command line, as ``[batch, 3, 224]``."""
    return f"[{', '.join(map(str, shape))}]"


def example(spec: TensorSpec) -> str:
    """A shape that an input could be given."""
    if spec.shape == (ANY_RANK,):
        return "1x16"
    return "x".join(
        str(size if isinstance(size, int) else 16 if axis else 1)
        for axis, size in enumerate(spec.shape)
    )


# -- inputs ------------------------------------------------------------------------------------


def batches(
    file: OnnxFile,
    shapes: Sequence[Mapping[str, Shape]],
    *,
    seed: int,
    inputs: str | None = None,
) -> list[dict[str, Array]]:
    """One batch for each of ``shapes`` (as ``shapes_of`` gives them).

    From the .npz ``inputs``, or drawn: a function of seed, name and shape alone. Raises
    DataError for an .npz that cannot be used, and for more than fits into memory.
    """
    if inputs is not None:
        return [load_npz(file, Path(inputs))]
    specs = file.signature.inputs
    needed = sum(
        math.prod(step[spec.name]) * np.dtype(spec.dtype).itemsize
        for step in shapes
        for spec in specs
    )
    # A draw holds its random words and their values beside what it returns.
    largest = max((math.prod(step[spec.name]) for step in shapes for spec in specs), default=0)
    check_memory(needed + 16 * largest)
    return [{spec.name: drawn(spec, step[spec.name], seed) for spec in specs} for step in shapes]


def check_memory(needed: int) -> None:
    """Raise DataError where inputs of ``needed`` bytes would take more memory than is free."""
    import psutil

    free = psutil.virtual_memory().available
    if needed > free:
        raise DataError(
            f"the inputs take {needed / 2**30:.4g} GiB and {free / 2**30:.4g} GiB are free: "
            "give smaller shapes"
        )


def drawn(spec: TensorSpec, shape: Shape, seed: int) -> Array:
    """Random values for one input: floats evenly from [-1, 1), whole numbers 0 or 1.

    A float has as many random bits as its type holds, so that none is rounded up to 1.
    """
    dtype = np.dtype(spec.dtype)
    bits = np.finfo(dtype).nmant + 1 if dtype.kind == "f" else 1
    words = draws.stream("draw", seed, f"file/{spec.name}/{shape}").random_raw(math.prod(shape))
    words >>= np.uint64(64 - bits)
    values = words * 2.0 ** (1 - bits) - 1.0 if dtype.kind == "f" else words
    return np.asarray(values).astype(dtype).reshape(shape)


def load_npz(file: OnnxFile, path: Path) -> dict[str, Array]:
    """The inputs of ``file`` from an .npz, by name, in the dtypes that it declares.

    Arrays of other names are left alone. Raises DataError where one is missing, of another kind
    of numbers, beyond what the declared type holds, or of a shape that does not fit; and for a
    file that cannot be read, or that holds pickled objects.
    """
    check_path(path)
    specs = file.signature.inputs
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError(f"{path} holds one array: xbench reads .npz files, from np.savez")
        with opened as archive:
            missing = [spec.name for spec in specs if spec.name not in archive.files]
            if missing:
                raise DataError(
                    f"{path} has no array for input {', '.join(map(repr, missing))} of "
                    f"{file.name}: it has {', '.join(map(repr, archive.files)) or 'none'}"
                )
            arrays = {spec.name: archive[spec.name] for spec in specs}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as an .npz file: {reason}") from error
    if reason := misfit(file, {name: array.shape for name, array in arrays.items()}):
        raise DataError(f"{path}: {reason}")
    return {spec.name: fitting(path, spec, arrays[spec.name]) for spec in specs}


def fitting(path: Path, spec: TensorSpec, array: Array) -> Array:
    """``array`` in the dtype of ``spec``. Raises DataError where it would be another value."""
    wanted = np.dtype(spec.dtype)
    kinds = {"f": "f", "b": "b", "i": "iu", "u": "iu"}[wanted.kind]
    what = f"{path}: array {spec.name!r} is {array.dtype}, the input is {wanted}"
    if array.dtype.kind not in kinds:
        raise DataError(what)
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if wanted.kind == "f":
        changed = bool((np.isfinite(array) & ~np.isfinite(cast)).any())
    else:
        changed = not np.array_equal(cast, array)
    if changed:
        raise DataError(f"{what}, which does not hold all of its values")
    return cast
