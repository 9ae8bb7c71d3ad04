"""From what was asked to the cases that answer it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from xbench import registry
from xbench.errors import UsageError, unknown
from xbench.registry import Engine
from xbench.spec import DEVICES, PHASES, Case, ModelSpec, Shape

if TYPE_CHECKING:
    from xbench.files import OnnxFile

MEASURED = ("fp32", "bf16", "fp16")
"""Precisions that can be asked for; float64 is the reference's."""
DRAWS = ("native", "fed")
"""Where the random inputs of a timed training step come from: the framework, or a file."""
ORT_OPT = ("0", "1", "2", "99")
"""ONNX Runtime's graph optimisation levels: none, basic, extended, all."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measuring command, checked. ``None`` and empty mean the default of the model or machine.

    ``implied`` are devices that nobody asked for by name: where they do not work, their cases are
    left out with a note, where a device that was asked for gives ``unavailable``.
    ``files`` are paths of ONNX files; ``shapes`` gives each of their inputs one shape, or several
    to cycle through; ``inputs`` is an .npz file for them; ``against`` is the one of them that the
    others are held against. ``atol`` and ``rtol`` are fixed tolerances by output (empty: of all).
    ``draws`` says where the random inputs of timed training come from.
    ``options`` are ONNX Runtime's, as ``session.KEY`` and ``provider.EP.KEY``. ``rounds`` None: as
    many as ``schedule`` finds right. ``ci_width`` is the half width of an interval, relative.
    ``soak_s`` replaces the rounds; without ``speed`` nothing is measured.
    """

    models: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    size: str = "small"
    phases: tuple[str, ...] = PHASES
    engines: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    implied: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("fp32",)
    concurrency: tuple[int, ...] = (1,)
    ort_opt: tuple[str, ...] = ()
    options: dict[str, str] = {}
    shapes: dict[str, tuple[Shape, ...]] = {}
    inputs: str | None = None
    against: str | None = None
    atol: dict[str, float] = {}
    rtol: dict[str, float] = {}
    seed: int = 0
    steps: int = 5
    loss: str | None = None
    draws: tuple[str, ...] = ("native",)
    data: str | None = None
    rounds: int | None = None
    budget_s: float | None = None
    ci_width: float | None = None
    iterations: int | None = None
    soak_s: float | None = None
    speed: bool = True
    profile: bool = True
    time_limit_s: float = 600.0
    fresh: str = "fork"
    cache: str | None = None


def shipped_engines() -> list[str]:
    """Engines that are measured when none is named."""
    return [n for n, engine in registry.engines().items() if engine.shipped and not engine.optional]


def natives(request: Request) -> list[str]:
    """Engines that may evaluate the reference, in order of preference.

    Those that ship, whether or not they are to be measured; only where an engine of the tests is
    asked for is it the reference itself.
    """
    known = registry.engines()
    asked = [name for name in request.engines if known[name].native and not known[name].shipped]
    return asked or [name for name, item in known.items() if item.native and item.shipped]


def names(kind: str, asked: str | None, known: list[str]) -> tuple[str, ...]:
    """The names of a comma list, or all that are known. Raises UsageError for an unknown one."""
    return tuple(known if asked is None else registry.choose(kind, asked, known))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of models, and paths of ONNX files: what ends in ``.onnx`` or is a path that exists."""
    models: list[str] = []
    files: list[str] = []
    known = registry.model_names()
    for word in words:
        a_file = word not in known and (word.endswith(".onnx") or os.path.exists(word))
        (files if a_file else models).append(word)
    return list(dict.fromkeys(models)), list(dict.fromkeys(files))


def shapes(items: Sequence[str]) -> dict[str, tuple[Shape, ...]]:
    """The shapes of ``INPUT=SHAPE`` items. Raises UsageError for what is none."""
    # Not at the top: numpy comes with it, and naming engines does not need numpy.
    from xbench import files as onnx_files

    return onnx_files.parse_shapes(items)


def positive(name: str, value: float) -> None:
    """Raise UsageError unless ``value`` is above zero."""
    if not value > 0:
        raise UsageError(f"{name} must be above zero, not {value:g}")


def check(request: Request) -> None:
    """Raise UsageError for whatever in the request no case could be made of."""
    for name, numbers in (
        ("--time-limit", (request.time_limit_s,)),
        ("--steps", (request.steps,)),
        ("--rounds", (request.rounds,)),
        ("--budget", (request.budget_s,)),
        ("--ci-width", (request.ci_width,)),
        ("--iterations", (request.iterations,)),
        ("--soak", (request.soak_s,)),
        ("--batch", request.batch),
        ("--threads", request.threads),
        ("--concurrency", request.concurrency),
    ):
        for number in numbers:
            if number is not None:
                positive(name, number)
                if math.isinf(number):
                    raise UsageError(f"{name} must be finite")
    if not 0 <= request.seed < 2**31:
        raise UsageError(f"--seed must be from 0 to {2**31 - 1}, not {request.seed}")
    for name, words, known in (
        ("--fresh", (request.fresh,), ("fork", "spawn")),
        ("EP", request.devices, DEVICES),
        ("precision", request.precisions, MEASURED),
        ("optimisation level", request.ort_opt, ORT_OPT),
        ("draws", request.draws, DRAWS),
    ):
        for word in words:
            if word not in known:
                raise unknown(name, word, known)
    for key in request.options:
        kind, _, rest = key.partition(".")
        ep = rest.partition(".")[0]
        if kind == "provider" and ep not in DEVICES:
            raise unknown("EP of --provider-option", ep, DEVICES)
    for name in request.models:
        spec = registry.model(name)
        registry.config(spec, request.size)
        if request.loss is not None and request.loss not in spec.losses:
            raise unknown(f"loss of {name}", request.loss, spec.losses)
    check_together(request)
    in_turn = any(len(several) > 1 for several in request.shapes.values())
    threaded = any(number > 1 for number in request.concurrency)
    if request.soak_s is not None and (in_turn or threaded):
        raise UsageError("--soak runs one thread and one shape: leave the others out")
    if in_turn and threaded:
        raise UsageError("--concurrency calls one shape: give one, or leave --concurrency out")
    if request.files and "infer" not in request.phases:
        raise UsageError("nothing to run: an ONNX file is for inference, and --phase leaves it out")
    if request.against is not None and request.against not in request.files:
        raise UsageError(f"--against {request.against}: it has to be one of the files of the run")
    if request.against is not None and len(request.files) < 2:
        raise UsageError("--against names the file that others are held against: name them too")
    if (request.shapes or request.inputs) and not request.files:
        raise UsageError("--shape and --inputs are for ONNX files: a model's come from its size")


def check_together(request: Request) -> None:
    """Raise UsageError for an option that would do nothing beside the others."""
    sampling = {
        "--rounds": request.rounds,
        "--budget": request.budget_s,
        "--ci-width": request.ci_width,
        "--iterations": request.iterations,
    }
    given = [name for name, value in sampling.items() if value is not None]
    if not request.speed and (given or request.soak_s is not None):
        options = given or ["--soak"]
        raise UsageError(f"--no-speed measures nothing: leave {', '.join(options)} out")
    models = [registry.model(name) for name in request.models]
    drawing = any(
        has_own(spec, registry.config(spec, request.size), request.loss or spec.losses[0])
        for spec in models
    )
    timed = request.speed and "train" in request.phases
    if request.draws != DRAWS[:1] and not (drawing and timed):
        raise UsageError(
            "--draws is for timed training of models that draw or have a native loss: leave it out"
        )
    if request.soak_s is not None and given:
        raise UsageError(f"--soak is one process for so long: leave {', '.join(given)} out")
    if request.iterations is not None and request.budget_s is not None:
        raise UsageError("--iterations says how many samples, --budget for how long: give one")
    for key in request.options:
        kind, _, rest = key.partition(".")
        ep = rest.partition(".")[0]
        if kind == "provider" and ep not in request.devices:
            raise UsageError(f"--provider-option for {ep}, but --ep has no {ep}")
    eats_onnx = any(registry.engine(name).onnx for name in request.engines)
    for option, is_given in (
        ("--ort-opt", bool(request.ort_opt)),
        ("--session-option and --provider-option", bool(request.options)),
        ("--concurrency", any(number > 1 for number in request.concurrency)),
    ):
        if is_given and not eats_onnx:
            raise UsageError(f"{option}: none of {', '.join(request.engines)} runs ONNX graphs")


def cases(request: Request, files: Mapping[str, OnnxFile] | None = None) -> list[Case]:
    """Every case asked for: models by phases by engines (by sources) by devices, in that order.

    Within these, by batch, threads, precision, optimisation level and concurrency. ``files`` are
    the inspected files of the request, by path. Raises UsageError when nothing is left, as with
    the training phase of an inference engine, or when a file's shapes are not bound.
    """
    check(request)
    found = [
        case
        for name in request.models
        for phase in request.phases
        for engine in request.engines
        if phase in registry.engine(engine).phases
        for case in model_cases(request, registry.model(name), phase, registry.engine(engine))
    ]
    for path in request.files:
        found += file_cases(request, (files or {})[path])
    if not found:
        what = " or ".join(request.phases) if request.models else "run an ONNX file"
        raise UsageError(f"nothing to run: {', '.join(request.engines)} cannot {what}")
    return list({case.key: case for case in found}.values())


def model_cases(request: Request, spec: ModelSpec, phase: str, engine: Engine) -> Iterator[Case]:
    """The cases of a model by one engine, with its own batch and loss where none was asked for."""
    config = registry.config(spec, request.size)
    loss = (request.loss or spec.losses[0]) if phase == "train" else ""
    own = phase == "train" and has_own(spec, config, loss)
    for source, device, batch, drawn in itertools.product(
        request.sources if engine.onnx else (None,),
        request.devices,
        request.batch or spec.batches(request.size, phase),
        request.draws if own else ("fed",),
    ):
        yield from variants(
            request,
            engine,
            Case(
                model=spec.name,
                size=request.size,
                phase=phase,
                engine=engine.name,
                source=source,
                device=device,
                batch=batch,
                shape={item.name: item.of(config, batch) for item in spec.inputs(config)},
                draws=drawn,
                loss=loss,
                seed=request.seed,
            ),
        )


def has_own(spec: ModelSpec, config: Any, loss: str) -> bool:
    """Whether training draws something, or computes a loss that frameworks have of their own.

    Where it does not, a case is fed all that it takes.
    """
    return bool(spec.draws(config)) or loss in spec.native_losses


def file_cases(request: Request, file: OnnxFile) -> Iterator[Case]:
    """The cases of an ONNX file: inference, by the engines that eat ONNX."""
    from xbench import files as onnx_files

    if request.batch:
        raise UsageError("--batch is for models: an ONNX file's is in --shape")
    first, *cycle = onnx_files.shapes_of(file, dict(request.shapes), request.inputs)
    for name in request.engines:
        engine = registry.engine(name)
        if not engine.onnx:
            continue
        for device in request.devices:
            yield from variants(
                request,
                engine,
                Case(
                    model=file.name,
                    size="",
                    phase="infer",
                    engine=name,
                    source="file",
                    device=device,
                    batch=items(first),
                    shape=first,
                    cycle=tuple(cycle),
                    graph=file.digest[:12],
                    seed=request.seed,
                ),
            )


def items(shapes: Mapping[str, Shape]) -> int:
    """Batch items of a run: the first extent of the first input that has two dimensions or more."""
    return next((shape[0] for shape in shapes.values() if len(shape) > 1), 1)


def variants(request: Request, engine: Engine, case: Case) -> Iterator[Case]:
    """The case at every thread count, precision and, for ONNX Runtime, level and concurrency."""
    levels: tuple[str, ...] = request.ort_opt if engine.onnx else ()
    options = options_for(request.options, case.device) if engine.onnx else {}
    for threads in request.threads:
        for precision in request.precisions:
            for level in levels or ("",):
                for concurrency in request.concurrency if engine.onnx else (1,):
                    yield msgspec.structs.replace(
                        case,
                        threads=threads,
                        precision=precision,
                        concurrency=concurrency,
                        options=({"ort-opt": level} if level else {}) | options,
                    )


def options_for(options: Mapping[str, str], device: str) -> dict[str, str]:
    """The options that hold on a device: ``provider.cuda.KEY`` is ``provider.KEY`` on cuda only."""
    found = {key: value for key, value in options.items() if not key.startswith("provider.")}
    own = f"provider.{device}."
    return found | {
        f"provider.{key.removeprefix(own)}": value
        for key, value in options.items()
        if key.startswith(own)
    }


def engine_names(asked: str | None) -> tuple[str, ...]:
    """The engines of a comma list, or all that are shipped. Raises UsageError for unknown ones."""
    if asked is None:
        return tuple(shipped_engines())
    found = [name.strip() for name in asked.split(",") if name.strip()]
    if found == ["all"]:
        return tuple(
            name
            for name, engine in registry.engines().items()
            if engine.shipped and not engine.reference
        )
    for name in found:
        if registry.engine(name).reference:
            raise UsageError(f"{name} is what others are held against: it is not measured")
    return names("engine", asked, found or shipped_engines())


def default_devices() -> tuple[str, ...]:
    """cpu, and cuda where there is a sign of an NVIDIA driver: asking a framework takes seconds."""
    signs = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
    return ("cpu", "cuda") if any(Path(sign).exists() for sign in signs) else ("cpu",)
