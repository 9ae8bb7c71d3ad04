"""Exported graphs: made once, checked, kept by content, bound to parameters when asked for.

A skeleton is cached under a key of everything that shapes it: the code of the model and of the
exporter, the size, the opset, the versions. It enters the cache only after its bound file has
passed the ONNX checker and agrees with the source framework at two batch sizes and, where lengths
are free, two lengths, so a wrong file is never served. A new seed only binds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from xbench import agree, draws, environment, registry, tensors, verdict
from xbench.bench import now
from xbench.confirm import Confirmer
from xbench.data import digest
from xbench.errors import XbenchError
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.references import References
from xbench.registry import ROOT
from xbench.result import OK, Agreement
from xbench.spec import Case, ModelSpec

FORMAT = 1
"""Raised when the layout of the cache or of skeletons changes."""
OPSET = 18
"""The newest that both exporters write (tf2onnx 1.17 stops there)."""
LAW = (
    "numerics", "ordinary", "readings", "sums", "ulps", "verdict", "agree", "confirm", "operators",
)  # fmt: skip
"""Modules of the core that decide whether a file is accepted."""
BATCHES = (1, 5)
"""Batch sizes, one input each, at which a file must agree with its source framework."""
PERTURBATIONS = 4
CACHE_LIMIT_BYTES = 4 * 2**30


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept beside a skeleton: what it is, and the evidence that it is right."""

    format: int
    sha256: str
    facts: dict[str, str]
    seconds: float
    agreement: Agreement


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """An export that was asked for. ``graphs`` maps a parameter set to its bound file."""

    source: str
    status: str = OK
    reason: str = ""
    graphs: dict[str, str] = {}
    verified: Verified | None = None
    cached: bool = False
    seconds: float = 0.0


Notify = Callable[[str], None]


def default_cache() -> Path:
    """Where exports are kept: ``XBENCH_CACHE``, else the user's cache folder."""
    import os

    named = os.environ.get("XBENCH_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("xbench")


class Exports:
    """The exports of one run."""

    def __init__(self, launcher: Launcher, cache: Path, notify: Notify) -> None:
        self.launcher = launcher
        self.cache = cache
        self.notify = notify
        try:
            for name in ("skeletons", "bound"):
                (cache / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise XbenchError(
                f"cannot write to the cache {cache}: {error}; set XBENCH_CACHE to another folder"
            ) from error

    def get(self, case: Case, inputs: Path, sets: Sequence[str] = ("init", "probe")) -> Exported:
        """Bound files of ``case.source`` for the case's model, size and seed.

        ``inputs`` holds one batch of each size of ``BATCHES``. Never raises for what an exporter
        or an engine did: the result has a status and a reason.
        """
        assert case.source is not None
        begin = now()
        key = skeleton_key(case)
        folder = self.cache / "skeletons" / key
        verified = self.read(folder)
        cached = verified is not None
        if verified is None:
            made = self.make(case, folder, inputs)
            if isinstance(made, Report):
                return Exported(source=case.source, status=made.status, reason=made.reason)
            verified = made
        graphs = {kind: self.bound_path(verified, case, kind) for kind in sets}
        missing = {kind: str(path) for kind, path in graphs.items() if not usable(path)}
        if missing:
            report = self.bind(case, folder / "skeleton.onnx", missing)
            if not report.ok:
                return Exported(source=case.source, status=report.status, reason=report.reason)
            for target in missing.values():
                seal(Path(target))
            trim(self.cache, CACHE_LIMIT_BYTES, keep=(folder, *graphs.values()))
        return Exported(
            source=case.source,
            graphs={kind: str(path) for kind, path in graphs.items()},
            verified=verified,
            cached=cached,
            seconds=now() - begin,
        )

    def read(self, folder: Path) -> Verified | None:
        """The verified skeleton in ``folder``; None when there is none. Damage is said."""
        if not folder.exists():
            return None
        try:
            verified = msgspec.json.decode((folder / "verified.json").read_bytes(), type=Verified)
            intact = tensors.digest_file(folder / "skeleton.onnx") == verified.sha256
        except (OSError, msgspec.MsgspecError):
            intact = False
        if not intact:
            self.notify(f"the cached export {folder.name} is damaged: exporting it again")
            shutil.rmtree(folder, ignore_errors=True)
            return None
        folder.touch()
        return verified

    def make(self, case: Case, folder: Path, inputs: Path) -> Verified | Report:
        """Export, check and keep a skeleton; the report of the step that failed otherwise.

        What the source framework computes, which the file is held against, is computed while the
        exporter works.
        """
        begin = now()
        scratch = self.launcher.folder()
        skeleton, bound = scratch / "skeleton.onnx", scratch / "probe.onnx"
        engine = registry.exporter(case.source or "").engine
        # One thread: others are at work beside it, and OpenMP barriers of a crowd are slow.
        source = msgspec.structs.replace(case, engine=engine, source=None, threads=1)
        double = msgspec.structs.replace(source, precision="fp64")

        def witness() -> list[Report]:
            single = self.compute("observe", source, inputs, perturbations=PERTURBATIONS)
            return [single, self.compute("observe", double, inputs)]

        def product() -> list[Report]:
            return self.produce(case, engine, skeleton, bound, inputs)

        parts: list[Callable[[], list[Report]]] = [product, witness]
        graph, truth = self.launcher.map(lambda part: part(), parts)
        failed = next((report for report in (*graph, *truth) if not report.ok), None)
        if failed is not None:
            return failed
        reports = zip((case, source, double), (graph[-1], *truth), strict=True)
        sides = {of.key: agree.side_of(of, report) for of, report in reports}
        agreement = self.judge(case, source, double, sides, inputs, bound)
        if agreement.verdict != verdict.AGREE:
            how = "wrong" if agreement.verdict == verdict.DISAGREE else "not known to be right"
            return Report(status="failed", reason=f"the export is {how}: {agreement.sentence}")
        verified = Verified(
            format=FORMAT,
            sha256=tensors.digest_file(skeleton),
            facts=dict(graph[0].facts) | versions(case.source or ""),
            seconds=now() - begin,
            agreement=agreement,
        )
        try:
            self.keep(skeleton, verified, folder)
        except OSError as error:
            return Report(status="failed", reason=f"cannot keep the export: {error}")
        return verified

    def judge(
        self,
        case: Case,
        source: Case,
        double: Case,
        sides: Mapping[str, verdict.Side],
        inputs: Path,
        graph: Path,
    ) -> Agreement:
        """The verdict on a bound file: against its source framework, measured in float64."""
        own = agree.Pair(a=source, b=double, source=None, reference=double, spread=source)
        pair = msgspec.structs.replace(own, a=case, b=source, source=source, own=own)
        confirmations: dict[str, verdict.Confirmation] = {}

        def verdicts() -> agree.Verdicts:
            return agree.Verdicts([pair], sides, confirmations)

        def job(kind: str, of: Case, **more: Any) -> Job:
            asked = {"parameter_set": "probe", "inputs": str(inputs), "every_batch": True, **more}
            return Job(kind=kind, case=of, folder=str(self.launcher.folder()), **asked)

        references = References(self.launcher, self.cache)
        confirmer = Confirmer(
            self.launcher,
            references,
            job,
            lambda of: str(graph) if of.source else None,
            lambda of: sides[double.key],
        )
        confirmer.look_closer(verdicts, confirmations, Progress())
        return verdicts().verdict(pair, "outputs")

    def produce(
        self, case: Case, engine: str, skeleton: Path, bound: Path, inputs: Path
    ) -> list[Report]:
        """Export, bind, check and run a file; the reports up to the first that is not ok."""
        export = Job(
            kind="export",
            case=msgspec.structs.replace(case, engine=engine),
            folder=str(self.launcher.folder()),
            opset=OPSET,
            targets={"skeleton": str(skeleton)},
        )
        reports = [self.launcher.run(export)]
        if reports[-1].ok:
            reports.append(self.bind(case, skeleton, {"probe": str(bound)}))
        if reports[-1].ok:
            reports.append(self.compute("verify", case, inputs, graph=bound))
        return reports

    def compute(
        self,
        kind: str,
        case: Case,
        inputs: Path,
        *,
        graph: Path | None = None,
        perturbations: int = 0,
    ) -> Report:
        """Outputs of a case for every batch of ``inputs``, from its probe parameters."""
        return self.launcher.run(
            Job(
                kind=kind,
                case=case,
                folder=str(self.launcher.folder()),
                inputs=str(inputs),
                graph=str(graph) if graph else None,
                parameter_set="probe",
                every_batch=True,
                perturbations=perturbations,
                spread_budget_s=2.0,
            )
        )

    def keep(self, skeleton: Path, verified: Verified, folder: Path) -> None:
        """Put a verified skeleton into the cache, whole or not at all."""
        staged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
        staged.mkdir()
        try:
            shutil.copy(skeleton, staged / "skeleton.onnx")
            (staged / "verified.json").write_bytes(msgspec.json.encode(verified))
            # Where another command put the same export there first, its own is as good.
            try:
                staged.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        trim(self.cache, CACHE_LIMIT_BYTES, keep=(folder,))

    def bind(self, case: Case, skeleton: Path, targets: dict[str, str]) -> Report:
        """Put parameters into a skeleton, in a process of its own."""
        return self.launcher.run(
            Job(
                kind="bind",
                case=case,
                folder=str(self.launcher.folder()),
                graph=str(skeleton),
                targets=targets,
            )
        )

    def bound_path(self, verified: Verified, case: Case, kind: str) -> Path:
        """Named by what is in it: the skeleton's content, and the parameters'."""
        values = draws.parameters(registry.model(case.model), case.size, kind, case.seed)
        content = f"{verified.sha256[:12]}-{digest(values)[:12]}"
        name = f"{case.model}-{case.size}-{case.source}-{kind}-seed{case.seed}-{content}"
        return self.cache / "bound" / f"{name}.onnx"


def checked_at(spec: ModelSpec, config: Any) -> list[tuple[Any, int]]:
    """Hyper-parameters and batch of each input at which an export must be right.

    Lengths that are free get a third shorter each time, so that a frozen axis is found.
    """
    places = []
    for batch in BATCHES:
        places.append((config, batch))
        lengths = {name: getattr(config, name) for name in spec.lengths}
        if lengths:
            less = {name: size - size // 3 for name, size in lengths.items()}
            config = dataclasses.replace(config, **less)
    return places


def seal(path: Path) -> None:
    """Write the digest of a finished file beside it."""
    path.with_suffix(".sha256").write_text(tensors.digest_file(path))


def usable(path: Path) -> bool:
    """Whether a bound file is there and is still what was written; if so, it counts as used."""
    try:
        intact = path.with_suffix(".sha256").read_text() == tensors.digest_file(path)
        if intact:
            path.touch()
    except OSError:
        return False
    return intact


def skeleton_key(case: Case) -> str:
    """SHA-256 in hex over all that decides what a skeleton looks like."""
    assert case.source is not None
    exporter = registry.exporter(case.source)
    module = exporter.module.rsplit(".", 1)[1]
    files = [
        *registry.model_files(case.model),
        # The exporter, and what stands beside it under its name: recurrent_pt.py.
        *sorted((ROOT / "exporters").glob(f"*{module}.py")),
        ROOT / "exporters" / "skeleton.py",
        # What a file was accepted by: a stricter law looks at it again.
        ROOT / "exporters" / "bind.py",
        ROOT / "exporters" / "verify.py",
        ROOT / "spec.py",
        *(ROOT / f"{name}.py" for name in LAW),
    ]
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    identity = [FORMAT, case.model, case.size, case.source, OPSET, versions(case.source)]
    state.update(msgspec.json.encode(identity, order="sorted"))
    return state.hexdigest()


def versions(source: str) -> dict[str, str]:
    """Installed versions of what an exporter is made of."""
    packages = registry.exporter(source).packages
    return {name: environment.installed(name) or "missing" for name in packages}


def trim(cache: Path, limit_bytes: int, keep: Sequence[Path]) -> None:
    """Remove the entries that were not used for longest until the cache is below its limit.

    An entry is a skeleton's folder, or a bound file with what stands beside it. ``keep`` stays.
    """
    groups: dict[Path, list[Path]] = {}
    for path in (cache / "skeletons").iterdir():
        groups[path] = [path, *path.iterdir()]
    for path in (cache / "bound").glob("*.onnx"):
        groups[path] = [path, *path.parent.glob(f"{path.stem}.*")]
    entries = sorted(
        (path.stat().st_mtime, sum(f.stat().st_size for f in set(files) if f.is_file()), path)
        for path, files in groups.items()
    )
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= limit_bytes:
            break
        if path in keep:
            continue
        for file in groups[path][1:]:
            file.unlink(missing_ok=True)
        if path.is_dir():
            path.rmdir()
        total -= size
