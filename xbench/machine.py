"""Counters of the machine, read from the files in which Linux shows them.

A counter that the machine does not have (macOS, a container, another kernel) gives None, never 0.
All are read from a ``root``, so that a tree of files can stand for a machine in tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MACHINE = Path("/")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def text(path: Path) -> str:
    """What a file says; empty where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def number(path: Path) -> int | None:
    """The integer that a file holds; None where it holds none."""
    content = text(path).strip()
    return int(content) if content.isdigit() else None


def field(path: Path, name: str) -> int | None:
    """The integer after ``name`` in a file of lines like ``name 12``; None where it has none."""
    for line in text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0].rstrip(":") == name and words[1].isdigit():
            return int(words[1])
    return None


def own_cpus() -> set[int]:
    """Numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def cpu_times(root: Path, cpus: Iterable[int]) -> tuple[float | None, float | None, float | None]:
    """Busy, stolen and all seconds of ``cpus`` since the start (proc_stat(5)); None without.

    Other CPUs of the machine do not matter to a process that never runs there.
    """
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = steal = total = 0
    found = False
    for line in text(root / "proc/stat").splitlines():
        name, *words = line.split() or [""]
        if name not in wanted or len(words) < 8:
            continue
        found = True
        user, nice, system, idle, iowait, irq, softirq, stolen = map(int, words[:8])
        busy += user + nice + system + irq + softirq
        steal += stolen
        total += user + nice + system + irq + softirq + idle + iowait + stolen
    return (busy * TICK_S, steal * TICK_S, total * TICK_S) if found else (None, None, None)


def control_groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and of those above it, versions 2 and 1.

    In a container the path often names nothing that is mounted: then the root of the mount is
    the container's own group, and it is the last of each chain.
    """
    found = []
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup"
        if controllers:
            mount = mount / controller if (mount / controller).exists() else mount / controllers
        parts = [part for part in path.split("/") if part]
        # A group outside of this namespace is written with "..": it cannot be looked into.
        parts = [] if ".." in parts else parts
        found += [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def throttled(root: Path) -> Iterator[tuple[str, float]]:
    """Seconds that the quota of each control group held its processes back."""
    for folder in control_groups(root, "cpu"):
        for name, unit in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            value = field(folder / "cpu.stat", name)
            if value is not None:
                yield str(folder), value * unit


def quota(root: Path = MACHINE) -> float | None:
    """CPUs that the control groups grant, the least of all; None where none sets a limit."""
    found = []
    for folder in control_groups(root, "cpu"):
        words = text(folder / "cpu.max").split()
        if not words:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [text(folder / name).strip() for name in names]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def thermal(root: Path, cpus: Iterable[int]) -> dict[str, int]:
    """How often heat slowed each core and its package; empty where the machine does not count."""
    found: dict[str, int] = {}
    for cpu in sorted(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        for name in ("core_throttle_count", "package_throttle_count"):
            value = number(folder / name)
            if value is None:
                return found
            found[f"cpu{cpu} {name}"] = value
    return found


def stalled(root: Path) -> float | None:
    """Seconds in which some process waited for memory (the kernel's pressure stall counter)."""
    for line in text(root / "proc/pressure/memory").splitlines():
        if line.startswith("some ") and "total=" in line:
            return int(line.rpartition("total=")[2]) * 1e-6
    return None


def memory_left(root: Path = MACHINE) -> int | None:
    """Bytes that can still be had: of the machine, or of a control group that grants less."""
    found = []
    available = field(root / "proc/meminfo", "MemAvailable")
    if available is not None:
        found.append(available * 1024)
    elif root == MACHINE:
        import psutil

        found.append(int(psutil.virtual_memory().available))
    for folder in control_groups(root, "memory"):
        for limit_file, used_file, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = number(folder / limit_file), number(folder / used_file)
            if limit is not None and used is not None:
                found.append(max(0, limit - used + (field(folder / "memory.stat", cache) or 0)))
    return min(found, default=None)
