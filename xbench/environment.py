"""What an engine runs in: machine, interpreter, packages; and what this process uses of memory."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from xbench import machine


def facts(packages: Iterable[str]) -> dict[str, str]:
    """The machine and the versions of those ``packages`` that are installed."""
    import psutil

    found = {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpus": str(usable_cpus()),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.1f}",
    }
    for package in ("numpy", *packages):
        if version := installed(package):
            found[package] = version
    return found


def installed(package: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's own name; what the platform says where /proc does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """CPUs this process may use: its affinity, capped by the control group's quota."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = machine.quota()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def resident_bytes() -> int:
    """What this process holds of memory now, in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def start_peak() -> int:
    """Start a new memory peak where the kernel allows it; resident bytes of this process now."""
    # Where this is refused, a forked child starts a new peak anyway.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def peak_bytes() -> int:
    """The largest resident size of this process since ``start_peak``, in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
