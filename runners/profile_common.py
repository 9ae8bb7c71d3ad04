"""What the profilers of all engines share: self time by nesting, and the way to a ``Profile``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from xbench.optypes import Ecosystem, classify
from xbench.result import OpTime, Profile

STAGES = ("forward", "backward", "optimizer")


class Event(NamedTuple):
    """One execution of an operator: [start, end) in ticks of the engine's trace.

    ``lane`` is the thread. ``where`` is the device or provider.
    """

    op: str
    stage: str
    where: str
    lane: int
    start: float
    end: float


class Key(NamedTuple):
    """What events are summed over."""

    op: str
    stage: str
    where: str


class Cost(NamedTuple):
    """Calls and self time of one ``Key``, per step."""

    calls: float
    time_s: float


class Costs(NamedTuple):
    """The cost of every key, and the time in which further threads were busy, per step."""

    by_key: Mapping[Key, Cost]
    overlap_s: float


def segments(spans: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float, int]]:
    """Parts of one thread's time with the position of the span that owns each.

    An instant belongs to the span that started last among those still running: the innermost
    where they nest, and a sane choice where clocks that round make them overlap. Of two that
    start together the shorter owns it; of equal ones, the later in ``spans``.
    """
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i))
    running: list[int] = []
    now = -math.inf
    for position in [*order, None]:
        until = math.inf if position is None else spans[position][0]
        while running and now < until:
            end = spans[running[-1]][1]
            stop = min(end, until)
            if stop > now:
                yield now, stop, running[-1]
                now = stop
            if end <= now:
                running.pop()
        if position is not None:
            now = max(now, until)
            running.append(position)


class Owned(NamedTuple):
    """Ticks that each span owns, and ticks in which further threads were busy beside it."""

    ticks: list[float]
    overlap: float


def self_times(lanes: Sequence[int], spans: Sequence[tuple[float, float]]) -> Owned:
    """Time that each span owns; together exactly the time in which any of them runs.

    Within a thread that is self time. Where n threads are busy at once, each owner gets 1/n of
    the instant: operators that run side by side must not add up to more than the clock.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for position, lane in enumerate(lanes):
        members[lane].append(position)
    marks: list[tuple[float, bool, int]] = []
    for positions in members.values():
        for start, stop, index in segments([spans[position] for position in positions]):
            marks += [(start, True, positions[index]), (stop, False, positions[index])]
    marks.sort()
    owned = [0.0] * len(spans)
    overlap = 0.0
    active: set[int] = set()
    now = 0.0
    for time, starts, position in marks:
        for owner in active:
            owned[owner] += (time - now) / len(active)
        overlap += (time - now) * max(0, len(active) - 1)
        now = time
        if starts:
            active.add(position)
        else:
            active.remove(position)
    return Owned(owned, overlap)


def costs(events: Sequence[Event], *, tick_s: float, steps: int) -> Costs:
    """Count and self time per step, summed by operator, stage and place."""
    owned = self_times(
        [event.lane for event in events], [(event.start, event.end) for event in events]
    )
    total: dict[Key, list[float]] = defaultdict(list)
    for event, ticks in zip(events, owned.ticks, strict=True):
        total[Key(event.op, event.stage, event.where)].append(ticks)
    by_key = {
        key: Cost(len(ticks) / steps, math.fsum(ticks) * tick_s / steps)
        for key, ticks in total.items()
    }
    return Costs(by_key, owned.overlap * tick_s / steps)


def to_profile(
    by_key: Mapping[Key, Cost],
    *,
    ecosystem: Ecosystem,
    wall_s: float,
    steps: int,
    truncated: bool,
    correction: str,
) -> Profile:
    """The profile of these costs: by operator and stage, most time first."""
    merged: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for key, cost in by_key.items():
        merged[key.op, key.stage].append(cost)
    ops = [
        OpTime(
            op,
            *classify(op, ecosystem),
            stage=stage,
            count=sum(cost.calls for cost in parts),
            time_s=math.fsum(cost.time_s for cost in parts),
        )
        for (op, stage), parts in merged.items()
    ]
    ops.sort(key=lambda op: (-op.time_s, op.op, op.stage))
    return Profile(
        wall_s=wall_s,
        steps=steps,
        unattributed_s=wall_s - math.fsum(op.time_s for op in ops),
        truncated=truncated,
        correction=correction,
        ops=ops,
    )


def tracing_note(wall_s: float, plain_s: float, overlap_s: float) -> str:
    """The ``correction`` of an engine whose profiler's cost is shown but not subtracted."""
    note = (
        "nothing subtracted; a step took "
        f"{wall_s / plain_s:.2f} times as long with the profiler as without"
    )
    if overlap_s > 0:
        note += (
            f"; {overlap_s * 1e3:.3g} ms per step in which operators of several threads ran at "
            "once is shared evenly between them"
        )
    return note


def stages_of(names: Iterable[str]) -> Mapping[str, str]:
    """Stage of every TensorFlow node from the scopes in its name.

    Below ``gradient_tape`` (TensorFlow's own scope): backward. Below ``optimizer`` or
    ``forward``, which the step opens: that. A tape also makes nodes without any scope, the sums
    of gradients: in a step that has gradients what carries no scope is backward, else forward.
    """
    found = {name: _scope(name) for name in names}
    rest = "backward" if "backward" in found.values() else "forward"
    return {name: stage or rest for name, stage in found.items()}


def _scope(name: str) -> str:
    """The stage that a scope in ``name`` says, or "". Scopes used twice end in _1, _2, ..."""
    scopes = {part.rstrip("0123456789").removesuffix("_") for part in name.split("/")[:-1]}
    if scopes & {"gradient_tape", "gradients"}:
        return "backward"
    return next((stage for stage in reversed(STAGES) if stage in scopes), "")
