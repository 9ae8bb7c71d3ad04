"""What else the machine does while xbench measures: looked at before, watched during, told after.

What the machine does not count is None, and nothing is said of it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from xbench import gpu, machine
from xbench.bench import now
from xbench.machine import MACHINE, TICK_S
from xbench.result import Conditions

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

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
        self.before = gpu.facts() if self.cuda else {}
        self.start = read(self.root)
        return self

    def __exit__(self, *_: object) -> None:
        end = read(self.root)
        left = machine.memory_left(self.root)
        facts = gpu.merged(self.before, gpu.facts()) if self.cuda else {}
        if self.cuda:
            facts |= {"foreign_processes": "; ".join(gpu.foreign_processes(working=True))}
        self.conditions = between(self.start, end, left, {k: v for k, v in facts.items() if v})


def read(root: Path = MACHINE) -> Counters:
    """The counters of this moment."""
    cpus = machine.own_cpus()
    busy, steal, total = machine.cpu_times(root, cpus)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    swapped = machine.field(root / "proc/vmstat", "pswpin")
    return Counters(
        at_s=now(),
        own_s=sum(usage.ru_utime + usage.ru_stime for usage in used),
        cpus=len(cpus),
        busy_s=busy,
        steal_s=steal,
        total_s=total,
        throttled_s=dict(machine.throttled(root)),
        thermal=machine.thermal(root, cpus),
        stall_s=machine.stalled(root),
        swapped_bytes=None if swapped is None else swapped * PAGE_BYTES,
    )


def between(
    a: Counters, b: Counters, available_bytes: int | None, facts: Mapping[str, str]
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
        gpu=facts,
    )


def rise(a: float | None, b: float | None) -> float | None:
    """From ``a`` to ``b``; None where one is missing."""
    return None if a is None or b is None else b - a


# -- before --------------------------------------------------------------------------------------


def foreign_times() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of every process that is not ours, by its number."""
    import psutil

    own = gpu.own_processes()
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
    seen = between(start, end, machine.memory_left(root), {})
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
    granted = machine.quota(root)
    if granted is not None and granted < cpus:
        found.append(
            (
                f"the control group grants {granted:g} CPUs to {cpus} threads and will hold "
                "them back",
                f"use --threads {max(1, int(granted))}, or raise the quota",
            )
        )
    found += saving(root)
    if "cuda" in devices and (names := "; ".join(gpu.foreign_processes(working=False))):
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
    for cpu in machine.own_cpus():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        governor = machine.text(folder / "scaling_governor").strip()
        if machine.text(folder / "scaling_driver").strip() in ("intel_pstate", "amd-pstate-epp"):
            preference = machine.text(folder / "energy_performance_preference").strip()
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
    return found + gpu.warnings(conditions, when)
