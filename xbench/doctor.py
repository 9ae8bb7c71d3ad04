"""What works here, found by trying; what does not, why, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from xbench import bench, environment, guards, registry, store
from xbench import noise as noises
from xbench.errors import EngineError
from xbench.exports import default_cache
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.result import OK, SCHEMA, Noise
from xbench.spec import DEVICES, Case

FIX = {
    ("torch", "cpu"): "pip install 'xbench[torch]'",
    ("tf", "cpu"): "pip install 'xbench[tf]'",
    ("ort", "cpu"): "pip install 'xbench[ort]', or 'xbench[ort-gpu]' for CUDA",
    ("float64", "cpu"): "pip install 'xbench[torch]': it judges ONNX files",
    ("torch-compile", "cpu"): (
        "pip install 'xbench[torch]', a C++ compiler (g++, or the one that CXX names), and the C "
        "headers of this Python (python3-dev)"
    ),
    ("tf-xla", "cpu"): "pip install 'xbench[tf]'",
    ("torch", "cuda"): "an NVIDIA driver, and a torch built for its CUDA version",
    ("torch-compile", "cuda"): (
        "an NVIDIA driver, a torch built for its CUDA version with the Triton it asks for, and a "
        "GPU of compute capability 7.0 or newer"
    ),
    ("tf", "cuda"): "an NVIDIA driver, and pip install 'tensorflow[and-cuda]'",
    ("tf-xla", "cuda"): "an NVIDIA driver, and pip install 'tensorflow[and-cuda]'",
    ("ort", "cuda"): (
        "an NVIDIA driver, onnxruntime-gpu, and the CUDA and cuDNN libraries it was built for "
        "on the library path (pip install 'onnxruntime-gpu[cuda,cudnn]')"
    ),
}


BUSY = "busy"
"""Status of conditions that would disturb a measurement now: no illness, and it may pass."""
ROUNDS = (6, 15, 30)
"""Rounds for which the floor of a comparison is shown."""
NOISE_PROCESSES, NOISE_RUNS = 60, 4
"""Fifteen processes in each of four runs, about half a minute."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried: what it showed, and the ``fix`` where it did not work.

    ``needed`` is false for what a machine may lack and still be well.
    """

    what: str
    status: str
    detail: str
    fix: str = ""
    needed: bool = True


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and every check, and what its measurements are worth.

    ``noise`` is what is known of its A/A noise. Derived from that: ``floors``, the relative
    difference below which two equal things stay in 99 of 100 comparisons, by rounds;
    ``run_margin``, the same for two stored runs; ``noise_old``, that it should be measured anew.
    """

    schema: int
    machine: dict[str, str]
    checks: list[Check]
    timer_cost_s: float = 0.0
    noise: Noise | None = None
    noise_age_s: float | None = None
    noise_old: bool = False
    floors: dict[int, float] = {}
    run_margin: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether everything that must work on any machine does: no CUDA is not an illness."""
        return all(check.status == OK for check in self.checks if check.needed)


def diagnose(
    progress: Progress, *, noise: bool = False, store_path: Path | None = None
) -> Diagnosis:
    """Try every engine on every device, and the places that xbench writes to.

    With ``noise`` the A/A noise of the machine is measured and kept beside the store, else the
    one that is kept there is shown.
    """
    packages = sorted({p for e in registry.engines().values() for p in e.packages})
    kept = noises.path_beside(store_path or store.default_path())
    # The conditions first: what follows would disturb them.
    checks = [conditions(), *conflicts(), *places(kept.parent)]
    with Launcher(time_limit_s=120) as launcher:
        if noise:
            checks += measure_noise(kept, launcher, progress)
        checks += engines(launcher, progress)
    found = noises.load(kept, progress)
    now = noises.timestamp()
    return Diagnosis(
        schema=SCHEMA,
        machine=environment.facts(packages),
        checks=checks,
        timer_cost_s=bench.timer_cost_s(),
        noise=found,
        noise_age_s=None if found is None else noises.age(found, now).total_seconds(),
        noise_old=found is not None and noises.is_old(found, now),
        floors={} if found is None else {n: noises.floor(found, n) for n in ROUNDS},
        run_margin=None if found is None else noises.run_margin(found),
    )


def conditions() -> Check:
    """Whether anything would disturb a measurement that begins now."""
    seen, found = guards.look(DEVICES, environment.usable_cpus())
    if found:
        facts, advice = zip(*found, strict=True)
        detail, fix = "; ".join(facts), "; ".join(advice)
        return Check(what="conditions", status=BUSY, detail=detail, fix=fix, needed=False)
    busy, left = seen.foreign_cpus, seen.available_bytes
    parts = [
        "" if busy is None else f"other processes keep {busy:.1f} of {seen.cpus} CPUs busy",
        "" if left is None else f"{left / 2**30:.1f} GiB of memory are left",
    ]
    detail = ", ".join(part for part in parts if part) or "nothing that could be seen disturbs"
    return Check(what="conditions", status=OK, detail=detail, needed=False)


def measure_noise(path: Path, launcher: Launcher, progress: Progress) -> list[Check]:
    """Measure the noise and keep it in ``path``; a check where that went wrong."""
    if not_writable(path.parent):
        detail = f"not measured: it could not be kept in {path.parent}"
        return [Check(what="noise", status="failed", detail=detail, fix="see the store")]
    try:
        found, seen = noises.measure(launcher, progress, processes=NOISE_PROCESSES, runs=NOISE_RUNS)
    except EngineError as error:
        return [Check(what="noise", status="failed", detail=str(error), fix="see the reason")]
    # Kept even so: who asks for it on a machine that is always busy wants this one.
    noises.save(path, found)
    if noises.is_disturbed(seen):
        detail = "; ".join(sentence.partition(": ")[0] for sentence in guards.warnings(seen))
        fix = "`xbench doctor --noise` again when nothing else runs, or every floor is too high"
        return [Check(what="noise", status=BUSY, detail=detail, fix=fix, needed=False)]
    return []


def shipped() -> list[registry.Engine]:
    """Every engine that ships, those included that are measured only when named."""
    return [engine for engine in registry.engines().values() if engine.shipped]


def engines(launcher: Launcher, progress: Progress) -> list[Check]:
    """A small product on every device, by every engine, in a process of its own."""
    places = [
        # Float64 is evaluated on the cpu, whatever is there.
        [(engine.name, device) for device in (DEVICES[:1] if engine.reference else DEVICES)]
        for engine in shipped()
    ]
    progress.plan(3.0 * sum(map(len, places)))

    def tried(several: list[tuple[str, str]]) -> list[Check]:
        found = []
        for name, device in several:
            case = Case(model="", size="", phase="infer", engine=name, device=device, threads=1)
            job = Job(kind="probe", case=case, folder=str(launcher.folder()))
            with progress.task(f"trying {name} on {device}", 3.0):
                found.append(engine_check(name, device, launcher.run(job)))
        return found

    # Mostly importing: two at once are quicker.
    return [check for checks in launcher.map(tried, places) for check in checks]


def engine_check(name: str, device: str, report: Report) -> Check:
    """What the probe of an engine on a device has shown, with the fix where it failed."""
    what = f"{name} {device}"
    engine = registry.engine(name)
    needed = device == "cpu" and not engine.optional
    if not report.ok:
        fix = FIX.get((name, device), "see the reason")
        return Check(what=what, status=report.status, detail=report.reason, fix=fix, needed=needed)
    installed = engine.packages
    facts = {key: value for key, value in report.facts.items() if key not in MACHINE}
    versions = [f"{key} {facts.pop(key)}" for key in installed if key in facts]
    rest = [f"{key} {value}" for key, value in facts.items() if key != "numpy"]
    detail = ", ".join(versions + rest)
    return Check(what=what, status=OK, detail=detail, needed=needed)


MACHINE = {"python", "os", "cpu", "cpus", "memory_gib"}


def conflicts() -> list[Check]:
    """Packages that break each other."""
    both = ("onnxruntime", "onnxruntime-gpu")
    if all(environment.installed(name) for name in both):
        return [
            Check(
                what="onnxruntime wheels",
                status="failed",
                detail="onnxruntime and onnxruntime-gpu are both installed and share one folder",
                fix="pip uninstall onnxruntime onnxruntime-gpu, then install the one you want",
            )
        ]
    return []


def places(stored: Path) -> list[Check]:
    """The folders that xbench writes to: ``stored`` is that of the store."""
    found = []
    for what, path, variable in (
        ("store", stored, "XBENCH_STORE"),
        ("cache", default_cache(), "XBENCH_CACHE"),
    ):
        problem = not_writable(path)
        found.append(
            Check(
                what=what,
                status="failed" if problem else OK,
                detail=problem or str(path),
                fix=f"set {variable} to a place that can be written" if problem else "",
            )
        )
    return found


def not_writable(folder: Path) -> str:
    """Why a file cannot be made in ``folder``; empty when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".xbench-{os.getpid()}"
        trial.write_bytes(b"x")
        trial.unlink()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""
