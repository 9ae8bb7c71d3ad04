"""What works here, found by trying; what does not, why, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from xbench import bench, environment, plan, registry, store
from xbench.exports import default_cache
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.result import OK, SCHEMA
from xbench.spec import DEVICES, Case

FIX = {
    ("torch", "cpu"): "pip install 'xbench[torch]'",
    ("tf", "cpu"): "pip install 'xbench[tf]'",
    ("ort", "cpu"): "pip install 'xbench[ort]', or 'xbench[ort-gpu]' for CUDA",
    ("torch", "cuda"): "an NVIDIA driver, and a torch built for its CUDA version",
    ("tf", "cuda"): "an NVIDIA driver, and pip install 'tensorflow[and-cuda]'",
    ("ort", "cuda"): (
        "an NVIDIA driver, onnxruntime-gpu, and the CUDA and cuDNN libraries it was built for "
        "on the library path (pip install 'onnxruntime-gpu[cuda,cudnn]')"
    ),
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried: what it showed, and the ``fix`` where it did not work."""

    what: str
    status: str
    detail: str
    fix: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and every check."""

    schema: int
    machine: dict[str, str]
    checks: list[Check]

    @property
    def healthy(self) -> bool:
        """Whether everything that must work on any machine does: no CUDA is not an illness."""
        return all(c.status == OK for c in self.checks if not c.what.endswith("cuda"))


def diagnose(progress: Progress) -> Diagnosis:
    """Try every engine on every device, and the places that xbench writes to."""
    packages = sorted({p for e in registry.engines().values() for p in e.packages})
    machine = environment.facts(packages)
    machine["timer_cost_ns"] = f"{bench.timer_cost_s() * 1e9:.0f}"
    checks = [*conflicts(), *places(), *engines(progress)]
    return Diagnosis(schema=SCHEMA, machine=machine, checks=checks)


def engines(progress: Progress) -> list[Check]:
    """A small product on every device, by every engine, in a process of its own."""
    found = []
    progress.plan(3.0 * len(plan.shipped_engines()) * len(DEVICES))
    with Launcher(time_limit_s=120) as launcher:
        for name in plan.shipped_engines():
            for device in DEVICES:
                case = Case(model="", size="", phase="infer", engine=name, device=device, threads=1)
                job = Job(kind="probe", case=case, folder=str(launcher.folder()))
                with progress.task(f"trying {name} on {device}", 3.0):
                    found.append(engine_check(name, device, launcher.run(job)))
    return found


def engine_check(name: str, device: str, report: Report) -> Check:
    """What the probe of an engine on a device has shown, with the fix where it failed."""
    what = f"{name} {device}"
    if not report.ok:
        fix = FIX.get((name, device), "see the reason")
        return Check(what=what, status=report.status, detail=report.reason, fix=fix)
    installed = registry.engine(name).packages
    facts = {key: value for key, value in report.facts.items() if key not in MACHINE}
    versions = [f"{key} {facts.pop(key)}" for key in installed if key in facts]
    rest = [f"{key} {value}" for key, value in facts.items() if key != "numpy"]
    return Check(what=what, status=OK, detail=", ".join(versions + rest))


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


def places() -> list[Check]:
    """The folders that xbench writes to."""
    found = []
    for what, path, variable in (
        ("store", store.default_path().parent, "XBENCH_STORE"),
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
