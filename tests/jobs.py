"""Jobs as the product runs them, for tests of the real frameworks (which never share a process)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from xbench import draws, registry, tensors
from xbench.jobs import STATES, Job, Report
from xbench.launch import Launcher
from xbench.spec import Case

Array = np.ndarray[Any, Any]


def case(model: str, engine: str, phase: str = "infer", **fields: Any) -> Case:
    """A tiny case on the cpu."""
    spec = registry.model(model)
    common: dict[str, Any] = {"size": "tiny", "device": "cpu", "threads": 2}
    common["batch"] = spec.batch["tiny"]
    loss = fields.pop("loss", spec.losses[0]) if phase == "train" else ""
    return Case(model=model, engine=engine, phase=phase, loss=loss, **(common | fields))


def data_file(launcher: Launcher, case: Case, count: int = 5, config: Any = None) -> Path:
    """The model's default data and draws for ``case``, where a worker reads them.

    ``config`` are other hyper-parameters than those of the size, as with shorter lengths.
    """
    spec = registry.model(case.model)
    config = config or registry.config(spec, case.size)
    data = registry.model_part(case.model, "data").load(
        config, batch=case.batch, count=count, seed=0, source=None
    )
    drawn = draws.steps(spec, config, batch=case.batch, count=count, seed=0)
    path = launcher.folder() / "inputs.npz"
    tensors.save_batches(path, [a | b for a, b in zip(data.inputs, drawn, strict=True)])
    return path


def observe(launcher: Launcher, case: Case, inputs: Path, **fields: Any) -> Report:
    """What a case computes from its probe parameters; fails the test where it does not."""
    report = launcher.run(
        Job(
            kind="observe",
            case=case,
            folder=str(launcher.folder()),
            inputs=str(inputs),
            parameter_set="probe",
            **fields,
        )
    )
    assert report.ok, report.reason
    return report


def states_of(report: Report) -> str:
    """The file of the parameters to begin each training step from, of a job that made it."""
    return str(Path(report.folder) / STATES)


def last_parameters(seen: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters after free training, by name, among what a case computed."""
    prefix = "trajectory/"
    return {
        name.removeprefix(prefix): value
        for name, value in seen.items()
        if name.startswith(prefix) and not name.startswith(f"{prefix}loss/")
    }


def worst_relative(actual: Mapping[str, Array], truth: Mapping[str, Array]) -> dict[str, float]:
    """RMS error over RMS of the reference, the largest per kind of tensor (outputs, loss, ...)."""
    worst: dict[str, float] = {}
    assert set(actual) == set(truth)
    for name, value in truth.items():
        assert actual[name].shape == value.shape, name
        error = float(np.sqrt(np.mean((actual[name].astype(np.float64) - value) ** 2)))
        scale = float(np.sqrt(np.mean(value.astype(np.float64) ** 2)))
        kind = name.partition("/")[0]
        worst[kind] = max(worst.get(kind, 0.0), error / scale if scale else error)
    return worst


def whole_relative(actual: Mapping[str, Array], truth: Mapping[str, Array], prefix: str) -> float:
    """RMS error over RMS of the reference, of all tensors below ``prefix`` as one vector."""
    names = [name for name in truth if name.startswith(prefix)]
    assert names
    error = sum(float(((actual[n].astype(np.float64) - truth[n]) ** 2).sum()) for n in names)
    scale = sum(float((truth[n].astype(np.float64) ** 2).sum()) for n in names)
    return float(np.sqrt(error / scale))


@contextmanager
def model_copy(original: str, name: str, changes: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A copy of a model's folder under another name, with one text replaced per file."""
    import shutil

    source, target = registry.ROOT / "models" / original, registry.ROOT / "models" / name
    shutil.copytree(source, target)
    try:
        for path in target.glob("*.py"):
            text = path.read_text().replace(f"models.{original}", f"models.{name}")
            path.write_text(text.replace(f'name="{original}"', f'name="{name}"'))
        for file, (old, new) in changes.items():
            text = (target / file).read_text()
            assert old in text, f"{file} has no {old!r}"
            (target / file).write_text(text.replace(old, new))
        yield name
    finally:
        shutil.rmtree(target)
