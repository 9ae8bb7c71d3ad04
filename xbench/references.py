"""Evaluations in float64, kept by everything that decides them: they are slow and never change.

An entry is a folder with the report of the job and what it left beside it. It is used only when
its contents are what was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from pathlib import Path

import msgspec

from xbench import environment, registry, tensors
from xbench.jobs import REPORT, STATES, TENSORS, Job, Report
from xbench.launch import Launcher
from xbench.registry import ROOT
from xbench.spec import FILE

FORMAT = 1
"""Raised when the layout of an entry changes."""
LIMIT_BYTES = 4 * 2**30
"""Of all entries together; those not used for longest go first."""
LARGEST_BYTES = 2**30
"""An evaluation that leaves more than this is not kept."""
SEAL = "digests.json"
CODE = (
    "data", "draws", "numerics", "observe", "ordinary", "pieces", "readings", "spec", "sums",
    "tensors", "ulps", "worker",
)  # fmt: skip
"""Modules of the core that decide what is evaluated, and from what."""


class References:
    """The float64 evaluations of a run, taken from ``cache`` where they are there."""

    def __init__(self, launcher: Launcher, cache: Path) -> None:
        self.launcher = launcher
        self.folder = cache / "references"

    def run(self, job: Job) -> Report:
        """The report of an ``observe`` job in float64; computed only where it is not kept."""
        folder = self.folder / key(job)
        kept = read(folder)
        if kept is not None:
            return kept
        report = self.launcher.run(job)
        if report.ok:
            # A full disk costs the time of the next run, and nothing now.
            with contextlib.suppress(OSError):
                keep(Path(job.folder), folder)
                trim(self.folder, keep_=folder)
        return report


def key(job: Job) -> str:
    """SHA-256 in hex over the code, the versions, the inputs, the graph and what is asked for."""
    case = job.case
    engine = registry.engine(case.engine)
    stem = engine.module.rsplit(".", 1)[1]
    files = [ROOT / f"{name}.py" for name in CODE] + [ROOT / "runners" / "base.py"]
    files += sorted((ROOT / "runners").glob(f"{stem}*.py"))
    if engine.reference:
        files += [ROOT / "runners" / "graph_facts.py"]
        files += sorted((ROOT / "runners" / "graph").glob("*.py"))
    if case.source != FILE:
        files += registry.model_files(case.model)
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    # A file's digest covers its external data; it stands in the case.
    graph = tensors.digest_file(Path(job.graph)) if job.graph and not case.graph else ""
    identity = msgspec.structs.replace(job, folder="", inputs=None, graph=None)
    versions = {name: environment.installed(name) for name in (*engine.packages, "numpy")}
    inputs = tensors.digest_file(Path(job.inputs)) if job.inputs else ""
    state.update(msgspec.json.encode([FORMAT, identity, versions, inputs, graph], order="sorted"))
    return state.hexdigest()


def read(folder: Path) -> Report | None:
    """The report that is kept in ``folder``; None where there is none or it is damaged."""
    try:
        digests = msgspec.json.decode((folder / SEAL).read_bytes(), type=dict[str, str])
        intact = all(tensors.digest_file(folder / name) == d for name, d in digests.items())
        report = msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError):
        intact = False
    if not intact:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    # Of a cache that cannot be written to, the order of use is not known.
    with contextlib.suppress(OSError):
        os.utime(folder)
    return msgspec.structs.replace(report, folder=str(folder))


def keep(made: Path, folder: Path) -> None:
    """Put what a job left in ``made`` into the cache, whole or not at all."""
    present = [made / name for name in (REPORT, TENSORS, STATES) if (made / name).exists()]
    if sum(path.stat().st_size for path in present) > LARGEST_BYTES:
        return
    staged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    staged.mkdir(parents=True)
    try:
        for path in present:
            shutil.copy(path, staged / path.name)
        digests = {path.name: tensors.digest_file(path) for path in present}
        (staged / SEAL).write_bytes(msgspec.json.encode(digests))
        # Where another command put the same there first, its own is as good.
        with contextlib.suppress(FileExistsError, OSError):
            staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def trim(cache: Path, keep_: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the entries that were not used for longest until all fit into ``limit_bytes``."""
    entries = sorted(
        (folder.stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir()), folder)
        for folder in cache.iterdir()
        if folder.is_dir()
    )
    total = sum(size for _, size, _ in entries)
    for _, size, folder in entries:
        if total <= limit_bytes:
            return
        if folder != keep_:
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
