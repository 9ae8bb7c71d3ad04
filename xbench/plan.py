"""From what was asked to the cases that answer it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from xbench import registry
from xbench.errors import UsageError, unknown
from xbench.spec import DEVICES, PHASES, Case, ModelSpec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A measuring command, checked. ``None`` means the default of the model or the machine.

    ``implied`` are devices that nobody asked for by name: where they do not work, their cases are
    left out with a note, where a device that was asked for gives ``unavailable``.
    """

    models: tuple[str, ...]
    size: str = "small"
    phases: tuple[str, ...] = PHASES
    engines: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    implied: tuple[str, ...] = ()
    batch: int | None = None
    threads: int = 1
    seed: int = 0
    steps: int = 5
    loss: str | None = None
    data: str | None = None
    rounds: int = 6
    budget_s: float = 5.0
    time_limit_s: float = 600.0
    fresh: str = "fork"
    cache: Path | None = None


def shipped_engines() -> list[str]:
    """Engines that are measured when none is named."""
    return [name for name, engine in registry.engines().items() if engine.shipped]


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


def positive(name: str, value: float) -> None:
    """Raise UsageError unless ``value`` is above zero."""
    if not value > 0:
        raise UsageError(f"{name} must be above zero, not {value:g}")


def check(request: Request) -> None:
    """Raise UsageError for whatever in the request no case could be made of."""
    for name, value in (
        ("--rounds", request.rounds),
        ("--budget", request.budget_s),
        ("--time-limit", request.time_limit_s),
        ("--steps", request.steps),
        ("--threads", request.threads),
        ("--batch", 1 if request.batch is None else request.batch),
    ):
        positive(name, value)
    if math.isinf(request.budget_s):
        raise UsageError("--budget must be finite")
    if not 0 <= request.seed < 2**31:
        raise UsageError(f"--seed must be from 0 to {2**31 - 1}, not {request.seed}")
    if request.fresh not in ("fork", "spawn"):
        raise unknown("--fresh", request.fresh, ("fork", "spawn"))
    for device in request.devices:
        if device not in DEVICES:
            raise unknown("EP", device, DEVICES)
    for name in request.models:
        spec = registry.model(name)
        registry.config(spec, request.size)
        if request.loss is not None and request.loss not in spec.losses:
            raise unknown(f"loss of {name}", request.loss, spec.losses)


def cases(request: Request) -> list[Case]:
    """Every case asked for: models by phases by engines (by sources) by devices, in that order.

    Raises UsageError when nothing is left, as with the training phase of an inference engine.
    """
    check(request)
    found = []
    for name in request.models:
        spec = registry.model(name)
        for phase in request.phases:
            for engine_name in request.engines:
                engine = registry.engine(engine_name)
                if phase not in engine.phases:
                    continue
                for source in request.sources if engine.onnx else (None,):
                    for device in request.devices:
                        found.append(case(request, spec, phase, engine_name, source, device))
    if not found:
        raise UsageError(
            f"nothing to run: {', '.join(request.engines)} cannot {' or '.join(request.phases)}"
        )
    return found


def case(
    request: Request, spec: ModelSpec, phase: str, engine: str, source: str | None, device: str
) -> Case:
    """One case of a request, with the model's own batch and loss where none was asked for."""
    config = registry.config(spec, request.size)
    batch = request.batch or spec.batch[request.size]
    return Case(
        model=spec.name,
        size=request.size,
        phase=phase,
        engine=engine,
        source=source,
        device=device,
        threads=request.threads,
        batch=batch,
        shape={item.name: item.at(batch=batch) for item in spec.inputs(config)},
        loss=(request.loss or spec.losses[0]) if phase == "train" else "",
        seed=request.seed,
    )


def engine_names(asked: str | None) -> tuple[str, ...]:
    """The engines of a comma list, or all that are shipped. Raises UsageError for unknown ones."""
    if asked is None:
        return tuple(shipped_engines())
    found = [name.strip() for name in asked.split(",") if name.strip()]
    for name in found:
        registry.engine(name)
    return names("engine", asked, found or shipped_engines())


def default_devices() -> tuple[str, ...]:
    """cpu, and cuda where there is a sign of an NVIDIA driver: asking a framework takes seconds."""
    signs = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
    return ("cpu", "cuda") if any(Path(sign).exists() for sign in signs) else ("cpu",)
