"""What else the machine does while xbench measures: looked at before, watched during, told after.

A counter that the machine does not have (macOS, a container, another kernel) gives None, never 0.
All counters are read from ``root``, so that a tree of files can stand for a machine in tests.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from xbench.bench import now
from xbench.result import Conditions

MACHINE = Path("/")

FOREIGN_CPUS = 0.1
"""Other processes' CPUs from which they disturb: below it are the daemons of any machine."""
FOREIGN_SHARE = 0.05
"""The same as a share of the CPUs: on many, the scheduler finds a free one for a small process."""
STEAL = 0.01
"""Share of the CPUs' time given to other machines: as large as half the least margin of a claim."""
THROTTLED = 0.01
"""Share of the time in which a quota held back: as large as half the least margin of a claim."""
STALL = 0.01
"""Share of the time in which a process waited for memory. A machine with enough shows 0."""
LEAST_SHARE, LEAST_BYTES = 0.05, 256 * 2**20
"""Memory below which the kernel drops caches, then swaps: of the whole, and in bytes."""
LOAD_PER_CPU = 1.5
"""One-minute load average per CPU: above what a run of xbench on all CPUs may leave behind."""
SHORTEST_S = 0.1
"""Ten ticks of 10 ms. What a shorter window says of shares is the rounding of its ends."""
LOOK_S = 0.3
"""How long ``before`` looks: as long as a process usually measures."""
GPU_LIMIT_S = 5.0
"""A driver that has to wake up first may take seconds to answer; no answer is no fact."""

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

GPU_CONSTANT = {
    "name": "name",
    "sm_max_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
}
GPU_CHANGING = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}
GPU_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same bits, as newer and as older drivers call them."""
GPU_SLOWED = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksEventReasons (NVIDIA's nvml.h) that slow work; others are idleness and
settings."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Readings of one moment. ``busy_s``, ``steal_s`` and ``total_s`` sum over own ``cpus``.

    ``throttled_s`` is by control group, ``thermal`` by counter.
    """

    at_s: float
    own_s: float
    cpus: int
    busy_s: float | None
    steal_s: float | None
    total_s: float | None
    throttled_s: Mapping[str, float]
    thermal: Mapping[str, int]
    stall_s: float | None
    swapped_bytes: int | None


class Watch:
    """Watches the machine between entering and leaving; then ``conditions`` says what it saw.

    Entering and leaving take about 1 ms together on two CPUs. With ``cuda`` the GPU's driver is
    asked too, before the watch begins and after it ended.
    """

    conditions: Conditions

    def __init__(self, *, cuda: bool = False, root: Path = MACHINE) -> None:
        self.cuda = cuda
        self.root = root

    def __enter__(self) -> Self:
        self.gpu = gpu_facts() if self.cuda else {}
        self.start = read(self.root)
        return self

    def __exit__(self, *_: object) -> None:
        end = read(self.root)
        left = memory_left(self.root)
        gpu = merged(self.gpu, gpu_facts()) if self.cuda else {}
        if self.cuda:
            gpu |= {"foreign_processes": "; ".join(gpu_processes(working=True))}
        self.conditions = between(self.start, end, left, {k: v for k, v in gpu.items() if v})


def read(root: Path = MACHINE) -> Counters:
    """The counters of this moment."""
    cpus = own_cpus()
    busy, steal, total = cpu_times(root, cpus)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    swapped = field(root / "proc/vmstat", "pswpin")
    return Counters(
        at_s=now(),
        own_s=sum(usage.ru_utime + usage.ru_stime for usage in used),
        cpus=len(cpus),
        busy_s=busy,
        steal_s=steal,
        total_s=total,
        throttled_s=dict(throttled(root)),
        thermal=thermal(root, cpus),
        stall_s=stalled(root),
        swapped_bytes=None if swapped is None else swapped * PAGE_BYTES,
    )


def between(
    a: Counters, b: Counters, available_bytes: int | None, gpu: Mapping[str, str]
) -> Conditions:
    """What happened from ``a`` to ``b``.

    Foreign CPUs are what all processes used less what this one used. Shares of CPU time are None
    for a window below ``SHORTEST_S``. Of several control groups, and of several thermal counters,
    the one that rose most counts: they overlap.
    """
    wall = b.at_s - a.at_s
    own = b.own_s - a.own_s
    foreign = steal = None
    if wall >= SHORTEST_S:
        busy, total = rise(a.busy_s, b.busy_s), rise(a.total_s, b.total_s)
        foreign = None if busy is None else max(0.0, busy - own) / wall
        stolen = rise(a.steal_s, b.steal_s)
        steal = stolen / total if stolen is not None and total else None
    stall = rise(a.stall_s, b.stall_s)
    swapped = rise(a.swapped_bytes, b.swapped_bytes)
    held = [
        b.throttled_s[name] - a.throttled_s[name]
        for name in a.throttled_s.keys() & b.throttled_s.keys()
    ]
    events = [b.thermal[name] - a.thermal[name] for name in a.thermal.keys() & b.thermal.keys()]
    return Conditions(
        wall_s=wall,
        cpus=b.cpus,
        own_cpu_s=own,
        foreign_cpus=foreign,
        steal=steal,
        throttled_s=max(held, default=None),
        throttle_events=max(events, default=None),
        memory_stall=stall / wall if stall is not None and wall > 0 else None,
        swapped_bytes=None if swapped is None else int(swapped),
        available_bytes=available_bytes,
        gpu=gpu,
    )


def rise(a: float | None, b: float | None) -> float | None:
    """From ``a`` to ``b``; None where one is missing."""
    return None if a is None or b is None else b - a


# -- counters ------------------------------------------------------------------------------------


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


# -- the GPU -------------------------------------------------------------------------------------


def ask_gpu(*arguments: str) -> list[list[str]]:
    """Rows that nvidia-smi answers for the GPU of CUDA cases; none where there is no answer.

    The GPU is the first of ``CUDA_VISIBLE_DEVICES``, or number 0.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    command = ["nvidia-smi", f"--id={visible}", *arguments, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GPU_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [[word.strip() for word in line.split(",")] for line in lines]


def gpu_facts() -> dict[str, str]:
    """Name, clocks, temperature, power and what slows the GPU now; empty where nothing answers."""
    names = GPU_CONSTANT | GPU_CHANGING
    for reasons in GPU_REASONS:
        rows = ask_gpu("--query-gpu=" + ",".join([*names.values(), reasons]))
        if rows and len(rows[0]) == len(names) + 1:
            *values, bits = rows[0]
            facts = dict(zip(names, values, strict=True)) | {"slowed_by": slowed_by(bits)}
            # What a GPU does not have is written as [N/A] or [Not Supported].
            return {key: value for key, value in facts.items() if value[:1] not in ("", "[")}
    return {}


def slowed_by(bits: str) -> str:
    """In words, what slows the clocks according to a hexadecimal mask of reasons."""
    try:
        mask = int(bits, 16)
    except ValueError:
        return ""
    return ", ".join(name for bit, name in GPU_SLOWED.items() if mask & bit)


def merged(start: Mapping[str, str], end: Mapping[str, str]) -> dict[str, str]:
    """Facts of two moments: what cannot change once, the rest as ``_start`` and ``_end``."""
    found = {key: start.get(key) or end.get(key, "") for key in GPU_CONSTANT}
    for key in (*GPU_CHANGING, "slowed_by"):
        found |= {f"{key}_start": start.get(key, ""), f"{key}_end": end.get(key, "")}
    return found


def gpu_processes(*, working: bool) -> list[str]:
    """Foreign processes that compute on the GPU, as ``name pid``.

    ``working`` says that this process is one of those on the GPU. In a container the driver may
    list it under the number that it has outside: then one number that means nothing here is ours.
    """
    import psutil

    rows = ask_gpu("--query-compute-apps=pid,process_name")
    listed = {int(row[0]): Path(row[-1]).name for row in rows if row and row[0].isdigit()}
    own = own_processes()
    foreign = [pid for pid in listed if pid not in own]
    outside = [pid for pid in foreign if not psutil.pid_exists(pid)]
    if working and len(foreign) == len(listed) and outside:
        foreign.remove(outside[0])
    return [f"{listed[pid]} {pid}" for pid in foreign]


# -- before --------------------------------------------------------------------------------------


def own_processes() -> set[int]:
    """Numbers of this process, of those it descends from, and of those it started."""
    import psutil

    me = psutil.Process()
    try:
        family = [*me.parents(), *me.children(recursive=True)]
    except psutil.Error:
        family = []  # One of them ended while it was looked for.
    return {me.pid, *(process.pid for process in family)}


def foreign_times() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of every process that is not ours, by its number."""
    import psutil

    own = own_processes()
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.pid not in own:
            found[process.pid] = (str(process.info["name"]), float(times.user + times.system))
    return found


def busiest(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], wall_s: float
) -> str:
    """Up to three processes that used most of a CPU: ``python 4242 at 98 %, cc 7 at 20 %``."""
    used = {
        pid: (seconds - before.get(pid, ("", seconds))[1]) / wall_s
        for pid, (_, seconds) in after.items()
    }
    top = [pid for pid in sorted(used, key=lambda pid: -used[pid]) if used[pid] >= 0.05]
    return ", ".join(f"{after[pid][0]} {pid} at {100 * used[pid]:.0f} %" for pid in top[:3])


def look(
    devices: Iterable[str],
    cpus: int,
    root: Path = MACHINE,
    wait: Callable[[float], object] = time.sleep,
) -> tuple[Conditions, list[tuple[str, str]]]:
    """What the machine does now, and what of it disturbs a measurement: facts, each with advice.

    Looks for ``LOOK_S``. ``cpus`` is how many threads the cases use at most.
    """
    processes = foreign_times()
    start = read(root)
    wait(LOOK_S)
    end = read(root)
    seen = between(start, end, memory_left(root), {})
    found = []
    if is_crowded(seen):
        names = busiest(processes, foreign_times(), seen.wall_s)
        top = f" (top: {names})" if names else ""
        found.append(
            (
                f"other processes keep {seen.foreign_cpus:.1f} of {seen.cpus} CPUs busy{top}",
                "stop those processes, or expect intervals too wide for a verdict",
            )
        )
    elif (load := os.getloadavg()[0]) > LOAD_PER_CPU * seen.cpus:
        found.append(
            (
                f"the load average of the last minute is {load:.1f} on {seen.cpus} CPUs",
                "wait until what caused the load has ended, or it may come back",
            )
        )
    if is_short(seen):
        assert seen.available_bytes is not None
        found.append(
            (
                f"only {seen.available_bytes / 2**20:,.0f} MiB of memory are left",
                "end what holds memory, or measure a smaller size or batch",
            )
        )
    granted = quota(root)
    if granted is not None and granted < cpus:
        found.append(
            (
                f"the control group grants {granted:g} CPUs to {cpus} threads and will hold "
                "them back",
                f"use --threads {max(1, int(granted))}, or raise the quota",
            )
        )
    found += saving(root)
    if "cuda" in devices and (names := "; ".join(gpu_processes(working=False))):
        found.append(
            (
                f"other processes compute on the GPU ({names})",
                "stop those processes, or choose another GPU with CUDA_VISIBLE_DEVICES",
            )
        )
    return seen, found


def before(
    devices: Iterable[str],
    cpus: int,
    root: Path = MACHINE,
    wait: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Sentences with advice on what would disturb a measurement that begins now.

    ``cpus`` is how many threads the cases use at most. Takes ``LOOK_S`` and a little.
    """
    return [f"{fact}: {advice}" for fact, advice in look(devices, cpus, root, wait)[1]]


def saving(root: Path) -> list[tuple[str, str]]:
    """Whether the CPUs are told to save power rather than to be quick.

    The governor ``powersave`` of intel_pstate and amd-pstate-epp follows the load like any other
    (kernel documentation, admin-guide/pm); there the energy preference ``power`` is what slows.
    """
    slow: dict[str, int] = {}
    for cpu in own_cpus():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        governor = text(folder / "scaling_governor").strip()
        if text(folder / "scaling_driver").strip() in ("intel_pstate", "amd-pstate-epp"):
            preference = text(folder / "energy_performance_preference").strip()
            setting = "energy preference power" if preference == "power" else ""
        else:
            setting = "governor powersave" if governor == "powersave" else ""
        if setting:
            slow[setting] = slow.get(setting, 0) + 1
    return [
        (
            f"{count} CPUs run with the {setting}, which keeps their clocks low",
            "choose the power profile or governor `performance` while you measure",
        )
        for setting, count in slow.items()
    ]


# -- after ---------------------------------------------------------------------------------------


def is_crowded(seen: Conditions) -> bool:
    """Whether other processes took enough CPU time to disturb.

    ``FOREIGN_CPUS`` do where no CPU was left for them; else ``FOREIGN_SHARE`` of the CPUs. On top
    comes the rounding of the counters: a tick per CPU.
    """
    if seen.foreign_cpus is None:
        return False
    rounding = seen.cpus * TICK_S / seen.wall_s
    spare = seen.cpus - seen.own_cpu_s / seen.wall_s
    roomy = spare - seen.foreign_cpus >= 1
    least = max(FOREIGN_CPUS, FOREIGN_SHARE * seen.cpus if roomy else 0.0)
    return seen.foreign_cpus > least + rounding


def is_short(seen: Conditions) -> bool:
    """Whether too little memory was left."""
    import psutil

    least = max(LEAST_BYTES, LEAST_SHARE * psutil.virtual_memory().total)
    return seen.available_bytes is not None and seen.available_bytes < least


def warnings(conditions: Sequence[Conditions]) -> list[str]:
    """What happened during the processes of a case, in sentences with advice; none is good."""

    def when(hit: Sequence[Conditions]) -> str:
        return f"during {len(hit)} of {len(conditions)} processes"

    found = []
    if hit := [c for c in conditions if is_crowded(c)]:
        mean = sum(c.foreign_cpus or 0.0 for c in hit) / len(hit)
        found.append(
            f"other processes kept {mean:.1f} CPUs busy {when(hit)}: "
            "stop those processes and measure again before you trust a small difference"
        )
    if hit := [c for c in conditions if (c.steal or 0.0) > STEAL]:
        share = max(c.steal or 0.0 for c in hit)
        found.append(
            f"the hypervisor gave up to {100 * share:.1f} % of the CPUs' time to other machines "
            f"{when(hit)}: measure with more --rounds, or on a machine that is not shared"
        )
    if hit := [c for c in conditions if (c.throttled_s or 0.0) > THROTTLED * c.wall_s]:
        held = sum(c.throttled_s or 0.0 for c in hit)
        found.append(
            f"the control group's quota held back for {held:.2g} s {when(hit)}: "
            "use fewer --threads than it grants CPUs, or raise the quota"
        )
    if hit := [c for c in conditions if c.throttle_events]:
        found.append(
            f"heat slowed the CPUs {when(hit)}: cool the machine, or measure fewer threads"
        )
    if hit := [c for c in conditions if (c.memory_stall or 0.0) > STALL or c.swapped_bytes]:
        read_back = sum(c.swapped_bytes or 0 for c in hit) / 2**20
        swap = f" and read {read_back:.1f} MiB back from swap" if read_back else ""
        found.append(
            f"processes waited for memory{swap} {when(hit)}: "
            "end what holds memory, or measure a smaller size or batch"
        )
    if hit := [c for c in conditions if is_short(c)]:
        least = min(c.available_bytes or 0 for c in hit) / 2**20
        found.append(
            f"only {least:,.0f} MiB of memory were left {when(hit)}: "
            "end what holds memory, or measure a smaller size or batch"
        )
    return found + gpu_warnings(conditions, when)


def gpu_warnings(
    conditions: Sequence[Conditions], when: Callable[[Sequence[Conditions]], str]
) -> list[str]:
    """What slowed the GPU, and who else used it."""

    def named(*keys: str) -> tuple[list[Conditions], str]:
        hit = [c for c in conditions if any(c.gpu.get(key) for key in keys)]
        values = [c.gpu[key] for c in hit for key in keys if c.gpu.get(key)]
        return hit, "; ".join(dict.fromkeys(values))

    found = []
    hit, reasons = named("slowed_by_start", "slowed_by_end")
    if hit:
        found.append(
            f"the GPU lowered its clocks ({reasons}) {when(hit)}: "
            "let it cool, or lock its clocks below that limit (nvidia-smi --lock-gpu-clocks)"
        )
    hit, names = named("foreign_processes")
    if hit:
        found.append(
            f"other processes computed on the GPU ({names}) {when(hit)}: "
            "stop those processes, or choose another GPU with CUDA_VISIBLE_DEVICES"
        )
    return found
