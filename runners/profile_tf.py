"""Operator time of a TensorFlow step on the CPU, from its profiler's trace (xplane.pb)."""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from xbench.bench import timed
from xbench.errors import EngineError
from xbench.result import Profile
from xbench.runners.profile_common import (
    STAGES,
    Event,
    costs,
    stages_of,
    to_profile,
    tracing_note,
)

TICK_S = 1e-12
WARMUP = 2
"""Steps inside the profiler that are not counted: its own start-up."""
_WINDOW = "xbench steps"
_HOST = "/host:CPU"
_EXECUTOR = "ExecutorState::Process"
_NODE = re.compile(r"(?P<name>[^:]+):(?P<op>[A-Za-z_]\w*)")


def profile(step: Callable[[], object], steps: int, logdir: Path) -> Profile:
    """Self time of every operator over ``steps`` calls of ``step``, per step.

    ``step`` returns only when the work is done. Its forward pass lies in the name scope
    ``forward``, its update in ``optimizer``; gradients carry TensorFlow's ``gradient_tape``. The
    executor's own time between operators is one operator of class Runtime; what the Python side
    takes is unattributed. Where several threads run operators at once they share the time, so
    that they never sum to more than the wall; ``correction`` says how much that was. The trace
    is left in a new folder below ``logdir``.
    """

    def run() -> None:
        for _ in range(steps):
            step()

    step()
    logdir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tf-", dir=logdir))
    with tf.profiler.experimental.Profile(str(folder)):
        for _ in range(WARMUP):
            step()
        with tf.profiler.experimental.Trace(_WINDOW):
            wall_s = timed(run) / steps
    # Afterwards, not before: the first steps of a process are slow.
    plain_s = timed(run) / steps
    found = next(folder.rglob("*.xplane.pb"), None)
    if found is None:
        raise EngineError(f"TensorFlow's profiler wrote no trace below {folder}")
    return parse(found, wall_s=wall_s, plain_wall_s=plain_s, steps=steps)


def parse(path: Path, *, wall_s: float, plain_wall_s: float, steps: int) -> Profile:
    """The profile in the trace at ``path``; both walls are per step.

    Raises EngineError when the trace lacks the window of the steps or any operator in it.
    """
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    raw = list(_host(space))
    window = next((event for event in raw if event.name == _WINDOW), None)
    if window is None:
        raise EngineError(f"{path}: the trace does not hold the steps ({_WINDOW!r})")
    inside = [event for event in raw if window.start <= event.start < window.end]
    operators = _operators(inside)
    if not operators:
        raise EngineError(f"{path}: the trace holds no operators")
    events = [*_executor(inside, operators), *operators]
    found = costs(events, tick_s=TICK_S, steps=steps)
    return to_profile(
        found.by_key,
        ecosystem="tf",
        wall_s=wall_s,
        steps=steps,
        truncated=False,
        correction=tracing_note(wall_s, plain_wall_s, found.overlap_s),
    )


class _Raw(NamedTuple):
    """One event of the host trace: [start, end) in picoseconds; the lane is a thread."""

    name: str
    lane: int
    start: int
    end: int


def _host(space: Any) -> Iterator[_Raw]:
    """The events of all host threads on one clock."""
    for plane in space.planes:
        if plane.name != _HOST:
            continue
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns * 1000 + event.offset_ps
                name = plane.event_metadata[event.metadata_id].name
                yield _Raw(name, line.id, start, start + event.duration_ps)


def _operators(raw: Iterable[_Raw]) -> list[Event]:
    """The events that are nodes of a graph, named ``node:OpType``, with their stage."""
    nodes = [(event, match) for event in raw if (match := _NODE.fullmatch(event.name))]
    stage = stages_of(match["name"] for _, match in nodes)
    return [
        Event(_op(match["op"]), stage[match["name"]], "cpu", event.lane, event.start, event.end)
        for event, match in nodes
    ]


def _op(name: str) -> str:
    """The op type; the name of a function there is one that XLA has compiled, a whole step."""
    return "XlaLaunch" if name.startswith("__inference_") else name


def _executor(raw: Iterable[_Raw], operators: Iterable[Event]) -> Iterator[Event]:
    """The executor's runs, cut where the stage of the operators inside changes.

    One run may span a whole step; its own time after an operator belongs to the stage of that
    operator.
    """
    lanes: dict[int, list[Event]] = defaultdict(list)
    for op in sorted(operators, key=lambda op: op.start):
        lanes[op.lane].append(op)
    starts_of = {lane: [op.start for op in ops] for lane, ops in lanes.items()}
    for run in raw:
        if run.name != _EXECUTOR:
            continue
        ops, starts = lanes[run.lane], starts_of.get(run.lane, [])
        first = bisect_left(starts, run.start)
        last = bisect_left(starts, run.end)
        start: float = run.start
        stage = ops[first].stage if first < last else STAGES[0]
        for op in ops[first:last]:
            if op.stage != stage:
                yield Event(run.name, stage, "cpu", run.lane, start, op.start)
                start, stage = op.start, op.stage
        yield Event(run.name, stage, "cpu", run.lane, start, run.end)
