"""What ``xbench list`` tells of the models: from their specifications, without any framework."""

from __future__ import annotations

import msgspec

from xbench import data, registry
from xbench.spec import ModelSpec


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A model; by size what differs between sizes.

    ``parameters`` are the trainable values; ``flops_per_item`` are those of inference, two for a
    multiplication and an addition, of convolutions and matrix products (None: the model does not
    say). ``batch`` and ``infer_batch`` are what training and inference are measured at where
    nothing is asked for. ``data`` is the default, used where ``data_path`` is empty;
    ``data_problem`` is why the folder that XBENCH_DATA names cannot be used.
    """

    name: str
    title: str
    paper: str
    parameters: dict[str, int]
    flops_per_item: dict[str, int | None]
    batch: dict[str, int]
    infer_batch: dict[str, tuple[int, ...]]
    losses: tuple[str, ...]
    data: str
    data_path: str = ""
    data_problem: str = ""


def models() -> list[Listed]:
    """Every model of the registry, in the order of their names."""
    return [listed(registry.model(name)) for name in registry.model_names()]


def listed(spec: ModelSpec) -> Listed:
    """What there is to tell of one model, the data that it would read now included."""
    problem = data.problem()
    path = "" if problem else str(data.locate(spec.name, None) or "")
    return Listed(
        name=spec.name,
        title=spec.title,
        paper=spec.paper,
        parameters={size: spec.parameter_count(size) for size in spec.sizes},
        flops_per_item={
            size: None if spec.flops is None else spec.flops(config)
            for size, config in spec.sizes.items()
        },
        batch=dict(spec.batch),
        infer_batch={size: spec.batches(size, "infer") for size in spec.sizes},
        losses=spec.losses,
        data=spec.data,
        data_path=path,
        data_problem=problem,
    )
