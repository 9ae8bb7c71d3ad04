"""Operator time of a PyTorch step on the CPU, from ``torch.profiler``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from xbench.bench import timed
from xbench.result import Profile
from xbench.runners.profile_common import STAGES, Event, costs, to_profile, tracing_note

TICK_S = 1e-6
WARMUP = 2
"""Steps inside the profiler that are not counted: its own start-up."""
_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]
_PREFIX = "xbench:"
_WINDOW = f"{_PREFIX}steps"
_AROUND = ("TorchDynamo ", "Pregraph ", "AOTDispatcher ")
"""How names begin of what runs before and after compiled code, guards above all."""


def profile(step: Callable[[], object], steps: int) -> Profile:
    """Self time of every operator over ``steps`` calls of ``step``, per step.

    ``step`` opens ``record_function("xbench:forward")``, ``"xbench:backward"`` and
    ``"xbench:optimizer"``; an operator belongs to the range in which it starts, on whatever
    thread, and to the forward stage outside them. Time in Python between operators, in
    annotations too, is unattributed. Operators that ran on several threads at once share the
    time, so that they never sum to more than the wall; ``correction`` says how much that was.
    """

    def run() -> None:
        for _ in range(steps):
            step()

    step()
    with torch_profile(activities=[ProfilerActivity.CPU]) as session:
        for _ in range(WARMUP):
            step()
        with record_function(_WINDOW):
            wall_s = timed(run) / steps
    # Afterwards, not before: the first steps of a process are slow.
    plain_s = timed(run) / steps
    found = costs(_events(session.events() or ()), tick_s=TICK_S, steps=steps)
    return to_profile(
        found.by_key,
        ecosystem="torch",
        wall_s=wall_s,
        steps=steps,
        truncated=False,
        correction=tracing_note(wall_s, plain_s, found.overlap_s),
    )


def _name(name: str) -> str:
    """The operator's name, where torch.compile has put a hash into it or nothing of its own."""
    if name.startswith("## Call CompiledFxGraph"):
        return "CompiledFxGraph"
    return f"Torch-Compiled: {name}" if name.startswith(_AROUND) else name


def _events(raw: Iterable[Any]) -> Sequence[Event]:
    """The operators inside the window, in microseconds, each with its stage."""
    ranges: list[tuple[float, float, str]] = []
    ops = []
    window = (0.0, 0.0)
    for event in raw:
        start, end = event.time_range.start, event.time_range.end
        stage = event.name.removeprefix(_PREFIX)
        if event.name == _WINDOW:
            window = (start, end)
        elif stage != event.name and stage in STAGES:
            ranges.append((start, end, stage))
        elif event.device_type == _CPU and not (event.is_user_annotation or event.is_async):
            ops.append(Event(_name(event.name), "", "cpu", event.thread, start, end))
    ranges.sort()
    starts = [start for start, _, _ in ranges]

    def stage_at(time: float) -> str:
        position = bisect_right(starts, time) - 1
        if position >= 0 and time < ranges[position][1]:
            return ranges[position][2]
        return STAGES[0]

    return [
        op._replace(stage=stage_at(op.start)) for op in ops if window[0] <= op.start < window[1]
    ]
