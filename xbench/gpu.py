"""What the driver says of the GPU that CUDA cases run on, by ``nvidia-smi``.

No answer is no fact. Nothing here has met a real driver yet: docs/gpu.md.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xbench.result import Conditions

LIMIT_S = 5.0
"""A driver that has to wake up first may take seconds to answer; no answer is no fact."""
CONSTANT = {
    "name": "name",
    "sm_max_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
}
CHANGING = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same bits, as newer and as older drivers call them."""
SLOWED = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksEventReasons (NVIDIA's nvml.h) that slow work; others are idleness and
settings."""


def ask(*arguments: str) -> list[list[str]]:
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
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [[word.strip() for word in line.split(",")] for line in lines]


def facts() -> dict[str, str]:
    """Name, clocks, temperature, power and what slows the GPU now; empty where nothing answers."""
    names = CONSTANT | CHANGING
    for reasons in REASONS:
        rows = ask("--query-gpu=" + ",".join([*names.values(), reasons]))
        if rows and len(rows[0]) == len(names) + 1:
            *values, bits = rows[0]
            found = dict(zip(names, values, strict=True)) | {"slowed_by": slowed_by(bits)}
            # What a GPU does not have is written as [N/A] or [Not Supported].
            return {key: value for key, value in found.items() if value[:1] not in ("", "[")}
    return {}


def slowed_by(bits: str) -> str:
    """In words, what slows the clocks according to a hexadecimal mask of reasons."""
    try:
        mask = int(bits, 16)
    except ValueError:
        return ""
    return ", ".join(name for bit, name in SLOWED.items() if mask & bit)


def merged(start: Mapping[str, str], end: Mapping[str, str]) -> dict[str, str]:
    """Facts of two moments: what cannot change once, the rest as ``_start`` and ``_end``."""
    found = {key: start.get(key) or end.get(key, "") for key in CONSTANT}
    for key in (*CHANGING, "slowed_by"):
        found |= {f"{key}_start": start.get(key, ""), f"{key}_end": end.get(key, "")}
    return found


def foreign_processes(*, working: bool) -> list[str]:
    """Foreign processes that compute on the GPU, as ``name pid``.

    ``working`` says that this process is one of those on the GPU. In a container the driver may
    list it under the number that it has outside: then one number that means nothing here is ours.
    """
    import psutil

    rows = ask("--query-compute-apps=pid,process_name")
    listed = {int(row[0]): Path(row[-1]).name for row in rows if row and row[0].isdigit()}
    own = own_processes()
    foreign = [pid for pid in listed if pid not in own]
    outside = [pid for pid in foreign if not psutil.pid_exists(pid)]
    if working and len(foreign) == len(listed) and outside:
        foreign.remove(outside[0])
    return [f"{listed[pid]} {pid}" for pid in foreign]


def own_processes() -> set[int]:
    """Numbers of this process, of those it descends from, and of those it started."""
    import psutil

    me = psutil.Process()
    try:
        family = [*me.parents(), *me.children(recursive=True)]
    except psutil.Error:
        family = []  # One of them ended while it was looked for.
    return {me.pid, *(process.pid for process in family)}


def warnings(
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
