"""The export command: bound files of a model where the user wants them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from xbench import plan, registry
from xbench.errors import XbenchError, unknown
from xbench.exports import Exported, Exports, default_cache
from xbench.inputs import Inputs
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.run import WEIGHTS

SETS = ("init", "probe")


class File(msgspec.Struct, frozen=True, kw_only=True):
    """An exported file: where it is, or why there is none, and the evidence that it is right."""

    source: str
    status: str
    reason: str
    path: str
    bytes: int
    seconds: float
    cached: bool
    facts: dict[str, str]
    verdict: str
    sentence: str


def export(
    model: str,
    *,
    sources: str | None,
    size: str,
    seed: int,
    kind: str,
    folder: Path,
    progress: Progress,
) -> list[File]:
    """Export ``model`` from each of ``sources`` (a comma list; None: all) into ``folder``.

    Raises UsageError for unknown names, XbenchError where ``folder`` cannot be written.
    """
    if kind not in SETS:
        raise unknown("parameter set", kind, SETS)
    chosen = plan.names("source", sources, list(registry.exporters()))
    request = plan.Request(
        models=(model,),
        size=size,
        phases=("infer",),
        engines=("ort",),
        sources=chosen,
        # A file is for every batch: one case of each source will do.
        batch=(1,),
        seed=seed,
    )
    cases = plan.cases(request)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise XbenchError(f"cannot make the folder {folder}: {error.strerror}") from error
    progress.plan(WEIGHTS["export"] * len(cases))
    with Launcher() as launcher:
        exports = Exports(launcher, default_cache(), progress.note)
        inputs = Inputs(request, Path(launcher.scratch.name), {}).verification(cases[0])

        def one(index: int) -> Exported:
            label = f"exporting {model} {size} from {cases[index].source}"
            with progress.task(label, WEIGHTS["export"]):
                return exports.get(cases[index], inputs, (kind,))

        made = launcher.map(one, range(len(cases)))
    return [deliver(item, model, size, kind, folder) for item in made]


def deliver(item: Exported, model: str, size: str, kind: str, folder: Path) -> File:
    """Copy a bound file out of the cache."""
    path = ""
    length = 0
    if item.graphs:
        target = folder / f"{model}-{size}-{item.source}.onnx"
        try:
            shutil.copyfile(item.graphs[kind], target)
        except OSError as error:
            raise XbenchError(f"cannot write {target}: {error.strerror}") from error
        path, length = str(target), target.stat().st_size
    verified = item.verified
    return File(
        source=item.source,
        status=item.status,
        reason=item.reason,
        path=path,
        bytes=length,
        seconds=item.seconds,
        cached=item.cached,
        facts=verified.facts if verified else {},
        verdict=verified.agreement.verdict if verified else "",
        sentence=verified.agreement.sentence if verified else "",
    )
