"""Operator time of an ONNX Runtime session on the CPU, from the profile file it writes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from xbench.errors import EngineError
from xbench.optypes import classify
from xbench.result import Profile
from xbench.runners.profile_common import Cost, Event, Key, costs, stages_of, to_profile

TICK_S = 1e-6
MAX_EVENTS = 1_000_000
"""What a session records at most; it drops what comes later."""
UNRELIABLE_BELOW_S = 20e-6
"""Mean duration of a node under which the profiler's own cost blurs its share."""
_NODE_SUFFIX = "_kernel_time"
_RUN = "model_run"


class _Args(msgspec.Struct):
    op_name: str = ""
    provider: str = ""


class _Raw(msgspec.Struct):
    """One line of the file; times in microseconds since the session began to profile."""

    cat: str
    name: str
    ts: float
    dur: float
    tid: int = 0
    args: _Args = msgspec.field(default_factory=_Args)


class _Trace(NamedTuple):
    """What could be read. ``lost`` lines could not."""

    nodes: list[_Raw]
    runs: list[_Raw]
    truncated: bool
    lost: int


def parse(
    path: Path,
    *,
    wall_s: float,
    plain_wall_s: float,
    steps: int,
    skip_runs: int,
    domains: Mapping[str, str] | None = None,
) -> tuple[Profile, dict[str, float]]:
    """The profile of ``steps`` runs after the first ``skip_runs``, and time shares by provider.

    ``wall_s`` is the wall of a profiled run, ``plain_wall_s`` that of one without the profiler.
    ``domains`` gives a node's domain by its name in the optimised model; an operator that is not
    of the default one is shown with it (``com.microsoft:FusedConv``).

    The profiler adds some microseconds per node. (``wall_s`` - ``plain_wall_s``) / nodes, and no
    more than the mean of the cheapest operator, is subtracted from every node; the rest of the
    difference lies between nodes, and for those of a body in the node around it, from which it is
    subtracted as often. The profile's wall is the plain one, or the sum of its
    operators where noise makes that larger. A node with a subgraph keeps only its own time;
    nodes that ran side by side (parallel execution) share theirs. A file that was cut off is
    read as far as it goes, by complete runs.

    Raises EngineError when the file holds no nodes, or is complete and holds other runs than
    ``skip_runs`` + ``steps``.
    """
    trace = _read(path)
    nodes, complete = _select(trace, path, steps, skip_runs)
    steps = max(1, complete)
    events = _events(nodes, domains or {})
    found = costs(events, tick_s=TICK_S, steps=steps)
    count = sum(cost.calls for cost in found.by_key.values())
    overhead_s = max(0.0, wall_s - plain_wall_s) / count
    floor_s = _floor(found.by_key, overhead_s)
    between_s = overhead_s - floor_s
    held = _held(events)
    corrected = {
        key: Cost(
            cost.calls,
            max(0.0, cost.time_s - floor_s * cost.calls - between_s * held[key] / steps),
        )
        for key, cost in found.by_key.items()
    }
    total_s = math.fsum(cost.time_s for cost in corrected.values())
    wall = max(min(wall_s, plain_wall_s), total_s)
    notes = [
        f"{floor_s * 1e6:.2f} us subtracted from each of {count:g} nodes: a run took "
        f"{wall_s * 1e3:.4g} ms with the profiler and {plain_wall_s * 1e3:.4g} ms without"
    ]
    if between_s and held:
        notes.append(
            f"{between_s * 1e6:.2f} us for each of {held.total() / steps:g} nodes of a body from "
            "the node around it"
        )
    if wall == total_s:
        notes.append("the nodes took longer than the plain wall, so wall is their sum")
    if found.overlap_s > 0:
        notes.append(f"{found.overlap_s * 1e3:.3g} ms of overlap between threads shared evenly")
    notes += _doubts(found.by_key, trace, complete)
    profile = to_profile(
        corrected,
        ecosystem="onnx",
        wall_s=wall,
        steps=steps,
        truncated=trace.truncated,
        correction="; ".join(notes),
    )
    return profile, _shares(corrected)


def domains(optimised: Path) -> dict[str, str]:
    """Operator domain of every node of the optimised model: the profile does not name it."""
    import onnx

    graph = onnx.load(str(optimised), load_external_data=False).graph
    return {node.name: node.domain for node in graph.node}


def _read(path: Path) -> _Trace:
    """Reads event by event (one a line), so that a file cut off anywhere still gives its start."""
    decoder = msgspec.json.Decoder(_Raw)
    nodes, runs = [], []
    seen = lost = 0
    last = b""
    with path.open("rb") as file:
        for line in file:
            last = line.strip() or last
            body = line.strip().rstrip(b",")
            if body in (b"", b"[", b"]"):
                continue
            seen += 1
            try:
                event = decoder.decode(body)
            except msgspec.DecodeError:
                lost += 1
                continue
            if event.cat == "Node" and event.name.endswith(_NODE_SUFFIX):
                nodes.append(event)
            elif event.name == _RUN:
                runs.append(event)
    if not nodes:
        raise EngineError(f"{path}: no operator was recorded")
    runs.sort(key=lambda run: run.ts)
    return _Trace(nodes, runs, last != b"]" or seen >= MAX_EVENTS, lost)


def _select(trace: _Trace, path: Path, steps: int, skip_runs: int) -> tuple[Sequence[_Raw], int]:
    """The nodes to count, and of how many complete runs they are (0: of one cut-off run)."""
    kept = trace.runs[skip_runs:]
    if not trace.truncated and len(kept) != steps:
        raise EngineError(
            f"{path}: {len(trace.runs)} runs were recorded, not {skip_runs} + {steps}"
        )
    if not trace.runs:
        return trace.nodes, 0
    kept = kept or trace.runs[-1:]
    starts = [run.ts for run in kept]

    def inside(node: _Raw) -> bool:
        position = bisect_right(starts, node.ts) - 1
        return position >= 0 and node.ts <= kept[position].ts + kept[position].dur

    return [node for node in trace.nodes if inside(node)], len(kept)


def _events(nodes: Sequence[_Raw], domains: Mapping[str, str]) -> list[Event]:
    """Nodes as events. A node is written after those of its subgraph: reversed, it is before."""
    names = [node.name.removesuffix(_NODE_SUFFIX) for node in nodes]
    stage = stages_of(names)
    events = []
    for name, node in zip(names, nodes, strict=True):
        domain = domains.get(name, "")
        op = node.args.op_name if domain in ("", "ai.onnx") else f"{domain}:{node.args.op_name}"
        where = node.args.provider
        events.append(Event(op, stage[name], where, node.tid, node.ts, node.ts + node.dur))
    return events[::-1]


def _held(events: Sequence[Event]) -> Counter[Key]:
    """How many nodes ran directly within those of each key: loops and branches hold bodies."""
    held: Counter[Key] = Counter()
    around: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        holders = around[event.lane]
        while holders and holders[-1].end <= event.start:
            holders.pop()
        if holders:
            held[Key(holders[-1].op, holders[-1].stage, holders[-1].where)] += 1
        if classify(event.op, "onnx").op_class == "ControlFlow":
            holders.append(event)
    return held


def _floor(by_key: Mapping[Key, Cost], overhead_s: float) -> float:
    """Profiler's cost inside a node: at most what the cheapest operator takes on average.

    An operator with a subgraph is left out: what is left of it beside its body says nothing.
    """
    cheapest = min(
        (
            cost.time_s / cost.calls
            for key, cost in by_key.items()
            if classify(key.op, "onnx").op_class != "ControlFlow"
        ),
        default=0.0,
    )
    return min(overhead_s, cheapest)


def _doubts(by_key: Mapping[Key, Cost], trace: _Trace, complete: int) -> list[str]:
    """What the reader must know before believing the shares."""
    short: dict[str, list[Cost]] = defaultdict(list)
    for key, cost in by_key.items():
        short[key.op].append(cost)
    names = sorted(
        op
        for op, parts in short.items()
        if sum(part.time_s for part in parts)
        < UNRELIABLE_BELOW_S * sum(part.calls for part in parts)
    )
    notes = []
    if names:
        notes.append(f"shares are unreliable below 20 us per node: {', '.join(names)}")
    if trace.truncated:
        runs = f"the {complete} complete runs kept" if complete else "one run that was cut off"
        notes.append(f"the record was cut off; times are of {runs}")
    if trace.lost:
        notes.append(f"{trace.lost} lines could not be read")
    return notes


def _shares(by_key: Mapping[Key, Cost]) -> dict[str, float]:
    """Share of the operators' time by provider, most first; of their count when there is none."""
    time: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for key, cost in by_key.items():
        time[key.where] += cost.time_s
        count[key.where] += cost.calls
    weights = time if sum(time.values()) > 0 else count
    total = sum(weights.values())
    return {
        where: weight / total
        for where, weight in sorted(weights.items(), key=lambda item: -item[1])
    }
