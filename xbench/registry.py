"""What there is, found by looking into the folders: models, engines, exporters.

Names are read without importing what they name, so listing engines needs no framework. This is
the one place that imports by name, and it does so only when asked.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from xbench.errors import UsageError, unknown
from xbench.spec import ModelSpec

ROOT = Path(__file__).parent


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner module declares in its literal ``ENGINES``.

    ``module`` is where the runner lives; ``order`` its place in tables; ``native`` says that it
    runs the models' own definitions and may evaluate the float64 reference; ``onnx`` that it eats
    ONNX graphs; ``phases`` what it can run; ``fork`` that its framework can be imported once and
    forked; ``packages`` are the distributions whose versions describe it; ``optional`` that it is
    measured only when named; ``twin`` is the native engine that runs the same without compiling;
    ``shipped`` is false for the runner of the tests; ``reference`` is true for the one that
    evaluates any ONNX graph in float64, which is never measured.
    """

    name: str
    module: str
    order: int = 100
    native: bool = False
    onnx: bool = False
    phases: tuple[str, ...] = ("infer", "train")
    fork: bool = True
    packages: tuple[str, ...] = ()
    optional: bool = False
    twin: str = ""
    shipped: bool = True
    reference: bool = False


class Exporter(msgspec.Struct, frozen=True, kw_only=True):
    """What an exporter module declares in its literal ``EXPORTERS``: how to make ONNX of a source.

    ``engine`` is the engine whose environment it runs in.
    """

    source: str
    module: str
    engine: str
    packages: tuple[str, ...]


def model_names() -> list[str]:
    """Names of all models: the packages in ``models/``."""
    return sorted(path.parent.name for path in (ROOT / "models").glob("*/__init__.py"))


def model(name: str) -> ModelSpec:
    """The specification of a model. Raises UsageError with the nearest name if unknown."""
    names = model_names()
    if name not in names:
        raise unknown("model", name, names)
    return cast(ModelSpec, importlib.import_module(f"xbench.models.{name}").SPEC)


def model_part(name: str, part: str) -> ModuleType:
    """A module of a model: ``pt``, ``tf`` (needs the framework) or ``data``."""
    return importlib.import_module(f"xbench.models.{name}.{part}")


def model_files(name: str) -> list[Path]:
    """The code that a model is made of: its own, and what models share."""
    folder = ROOT / "models"
    return sorted([*(folder / name).glob("*.py"), *folder.glob("*.py")])


def config(spec: ModelSpec, size: str) -> Any:
    """The model's hyper-parameters at ``size``. Raises UsageError if unknown."""
    if size not in spec.sizes:
        raise unknown(f"size of {spec.name}", size, spec.sizes)
    return spec.sizes[size]


@functools.cache
def _literals(folder: str, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The entries of every literal ``name = {...}`` at the top of a module in ``folder``."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in sorted((ROOT / folder).glob("*.py")):
        text = path.read_bytes()
        # Parsing is what takes the time.
        for node in ast.parse(text).body if name.encode() in text else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    pass
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                    pass
                case _:
                    continue
            if target == name:
                module = f"xbench.{folder}.{path.stem}"
                found |= {key: (module, fields) for key, fields in ast.literal_eval(value).items()}
    return found


def engines() -> dict[str, Engine]:
    """Every engine by name, in the order in which tables show them."""
    found = [
        msgspec.convert({"name": name, "module": module, **fields}, Engine)
        for name, (module, fields) in _literals("runners", "ENGINES").items()
    ]
    return {engine.name: engine for engine in sorted(found, key=lambda e: (e.order, e.name))}


def reference() -> str:
    """The engine that evaluates any ONNX graph in float64."""
    return next(name for name, engine in engines().items() if engine.reference)


def engine(name: str) -> Engine:
    """The engine called ``name``. Raises UsageError with the nearest name if unknown."""
    known = engines()
    if name not in known:
        raise unknown("engine", name, [n for n, e in known.items() if e.shipped])
    return known[name]


def exporters() -> dict[str, Exporter]:
    """Every exporter by source."""
    return {
        source: msgspec.convert({"source": source, "module": module, **fields}, Exporter)
        for source, (module, fields) in _literals("exporters", "EXPORTERS").items()
    }


def exporter(source: str) -> Exporter:
    """The exporter of ``source``. Raises UsageError with the nearest name if unknown."""
    known = exporters()
    if source not in known:
        raise unknown("source", source, known)
    return known[source]


def load(module: str) -> ModuleType:
    """Import a module that an engine or exporter names."""
    return importlib.import_module(module)


def choose(kind: str, asked: str, known: list[str]) -> list[str]:
    """Names of a comma list, each known, in the order asked for, without repeats."""
    names = list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    if not names:
        raise UsageError(f"no {kind} given: known: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
    return names
