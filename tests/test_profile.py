"""Profilers: traces with a known truth, and each framework for real in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import EngineError
from xbench.result import OpTime, Profile
from xbench.runners import profile_ort
from xbench.runners.profile_common import (
    Cost,
    Event,
    Key,
    costs,
    segments,
    self_times,
    stages_of,
    to_profile,
)

spans_ = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=25,
)


def union(spans: list[tuple[int, int]]) -> int:
    return len({tick for start, end in spans for tick in range(start, end)})


@given(spans_)
def test_self_times_sum_to_the_union(spans: list[tuple[int, int]]) -> None:
    owned = self_times([0] * len(spans), spans)
    assert sum(owned.ticks) == union(spans)
    assert all(0 <= t <= end - start for t, (start, end) in zip(owned.ticks, spans, strict=True))
    assert owned.overlap == 0


@given(spans_)
def test_an_instant_belongs_to_the_innermost(spans: list[tuple[int, int]]) -> None:
    owner = {t: i for start, stop, i in segments(spans) for t in range(int(start), int(stop))}
    for tick, index in owner.items():
        running = [s for s, (start, end) in enumerate(spans) if start <= tick < end]
        assert index in running
        assert spans[index][0] == max(spans[s][0] for s in running)


@given(spans_, st.data())
def test_threads_share_what_they_do_at_once(spans: list[tuple[int, int]], data: Any) -> None:
    lanes = data.draw(st.lists(st.integers(0, 3), min_size=len(spans), max_size=len(spans)))
    owned = self_times(lanes, spans)
    assert math.isclose(sum(owned.ticks), union(spans), abs_tol=1e-6)
    assert all(ticks >= 0 for ticks in owned.ticks)
    busy = sum(
        union([span for span, lane in zip(spans, lanes, strict=True) if lane == one])
        for one in set(lanes)
    )
    assert owned.overlap == busy - union(spans)


def test_self_times_of_a_known_nesting() -> None:
    # 0 holds 1 and 3; 1 holds 2; 4 stands alone on another thread, beside the second half of 3.
    spans = [(0, 100), (10, 50), (20, 30), (60, 90), (75, 95)]
    owned = self_times([7, 7, 7, 7, 8], spans)
    assert owned.ticks == [100 - 40 - 30 - 2.5, 30, 10, 15 + 7.5, 7.5 + 2.5]
    assert owned.overlap == 20


def test_big_integer_clocks_lose_nothing() -> None:
    now = 1_700_000_000 * 10**12
    assert self_times([0, 0], [(now, now + 7), (now + 1, now + 3)]).ticks == [5, 2]


def test_a_profile_merges_places_and_sorts() -> None:
    profile = to_profile(
        {
            Key("Relu", "forward", "a"): Cost(1, 0.25),
            Key("Conv", "forward", "a"): Cost(2, 0.25),
            Key("Conv", "forward", "b"): Cost(1, 0.125),
            Key("Conv", "backward", "a"): Cost(1, 0.5),
        },
        ecosystem="onnx",
        wall_s=1.5,
        steps=4,
        truncated=False,
        correction="",
    )
    assert [(op.op, op.stage, op.count, op.time_s) for op in profile.ops] == [
        ("Conv", "backward", 1, 0.5),
        ("Conv", "forward", 3, 0.375),
        ("Relu", "forward", 1, 0.25),
    ]
    assert profile.unattributed_s == 0.375


def test_costs_are_per_step() -> None:
    events = [Event("Relu", "forward", "cpu", 0, t, t + 2) for t in (0, 5, 10, 15)]
    assert costs(events, tick_s=0.5, steps=2).by_key == {
        Key("Relu", "forward", "cpu"): Cost(2.0, 2.0)
    }


def test_stages_from_scopes() -> None:
    names = {
        "forward/Conv2D": "forward",
        "forward_1/while/body/_1/Relu": "forward",
        "gradient_tape/forward/Conv2DBackpropInput": "backward",
        "StatefulPartitionedCall/gradient_tape/forward/mul/Mul_1": "backward",
        "optimizer/ResourceApplyAdam_3": "optimizer",
        "AddN_17": "backward",
    }
    assert stages_of(names) == names
    assert stages_of(["AddN", "forward", "my_optimizer/x"]) == {
        "AddN": "forward",
        "forward": "forward",
        "my_optimizer/x": "forward",
    }


# ONNX Runtime: the file


def node(op: str, ts: int, dur: int, *, name: str = "", tid: int = 1, ep: str = "CPU") -> str:
    args = {"op_name": op, "provider": ep, "thread_scheduling_stats": {"block_size": []}}
    event = {"cat": "Node", "pid": 1, "tid": tid, "dur": dur, "ts": ts, "ph": "X"}
    return json.dumps({**event, "name": f"{name or op}_kernel_time", "args": args})


def model_run(ts: int, dur: int) -> str:
    event = {"cat": "Session", "pid": 1, "tid": 1, "dur": dur, "ts": ts, "ph": "X"}
    return json.dumps({**event, "name": "model_run", "args": {}})


def one_run(ts: int) -> list[str]:
    """Conv 400 us, then a Loop of 300 us with two Adds of 100 us; 800 us in all."""
    return [
        node("Conv", ts + 10, 400, name="c"),
        node("Add", ts + 430, 100),
        node("Add", ts + 540, 100),
        node("Loop", ts + 420, 300),
        model_run(ts, 800),
    ]


def write(path: Path, lines: list[str], end: str = "\n]\n") -> Path:
    path.write_text("[\n" + ",\n".join(lines) + end)
    return path


def parse(path: Path, **changes: Any) -> tuple[Profile, dict[str, float]]:
    options = {"wall_s": 900e-6, "plain_wall_s": 900e-6, "steps": 2, "skip_runs": 1, **changes}
    return profile_ort.parse(path, **options)


def microseconds(profile: Profile) -> dict[str, tuple[float, float]]:
    return {op.op: (op.count, round(op.time_s * 1e6, 6)) for op in profile.ops}


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    warm = [node("Conv", 10, 90_000), model_run(0, 95_000)]
    lines = [*warm, *one_run(100_000), *one_run(200_000)]
    return write(tmp_path / "p.json", lines)


def test_ort_self_times_without_warm_up(three_runs: Path) -> None:
    profile, shares = parse(three_runs)
    assert microseconds(profile) == {"Conv": (1, 400), "Add": (2, 200), "Loop": (1, 100)}
    assert profile.unattributed_s == pytest.approx(200e-6)
    assert (profile.wall_s, profile.steps, profile.truncated) == (900e-6, 2, False)
    assert shares == {"CPU": 1.0}


def test_ort_floor_is_subtracted_and_said(three_runs: Path) -> None:
    profile, _ = parse(three_runs, plain_wall_s=860e-6)
    assert microseconds(profile) == {"Conv": (1, 390), "Add": (2, 180), "Loop": (1, 90)}
    assert profile.wall_s == 860e-6
    assert profile.correction.startswith("10.00 us subtracted from each of 4 nodes")
    assert "unreliable" not in profile.correction


def test_ort_floor_never_exceeds_the_cheapest_operator(tmp_path: Path) -> None:
    lines = [node("Conv", 0, 500), *(node("Add", 600 + 10 * i, 4) for i in range(9))]
    path = write(tmp_path / "p.json", [*lines, model_run(0, 800)])
    profile, _ = parse(path, wall_s=800e-6, plain_wall_s=600e-6, steps=1, skip_runs=0)
    assert microseconds(profile) == {"Conv": (1, 496), "Add": (9, 0)}
    assert profile.unattributed_s == pytest.approx(104e-6)
    assert "unreliable below 20 us per node: Add" in profile.correction


def test_ort_cost_between_the_nodes_of_a_body_is_not_the_loops(tmp_path: Path) -> None:
    """A Loop of ten Adds of 2 us, each followed by 8 us of the profiler; a Conv beside it."""
    lines = [node("Conv", 0, 100)]
    lines += [node("Add", 200 + 10 * number, 2) for number in range(10)]
    lines += [node("Loop", 200, 110), model_run(0, 400)]
    path = write(tmp_path / "p.json", lines)
    # 12 nodes at 10 us each: 2 within every node, 8 after it.
    profile, _ = parse(path, wall_s=400e-6, plain_wall_s=280e-6, steps=1, skip_runs=0)
    assert microseconds(profile) == {"Conv": (1, 98), "Loop": (1, 8), "Add": (10, 0)}
    assert "8.00 us for each of 10 nodes of a body from the node around it" in profile.correction
    plain, _ = parse(path, wall_s=280e-6, plain_wall_s=280e-6, steps=1, skip_runs=0)
    assert microseconds(plain)["Loop"] == (1, 90)
    assert "body" not in plain.correction


def test_ort_wall_is_never_below_its_operators(three_runs: Path) -> None:
    profile, _ = parse(three_runs, wall_s=850e-6, plain_wall_s=100e-6)
    assert profile.unattributed_s == 0
    assert all(op.time_s >= 0 for op in profile.ops)
    assert "wall is their sum" in profile.correction


def test_ort_profiled_run_quicker_than_plain(three_runs: Path) -> None:
    profile, _ = parse(three_runs, wall_s=850e-6, plain_wall_s=900e-6)
    assert microseconds(profile)["Conv"] == (1, 400)
    assert profile.wall_s == 850e-6


def test_ort_domains_and_providers(tmp_path: Path) -> None:
    lines = [
        node("Conv", 0, 300, name="a"),
        node("Conv", 300, 100, name="b", ep="CUDA"),
        model_run(0, 400),
    ]
    path = write(tmp_path / "p.json", lines)
    profile, shares = parse(
        path, steps=1, skip_runs=0, domains={"a": "com.microsoft.nchwc", "b": ""}
    )
    assert microseconds(profile) == {"com.microsoft.nchwc:Conv": (1, 300), "Conv": (1, 100)}
    assert {op.op_class for op in profile.ops} == {"Convolution"}
    assert shares == pytest.approx({"CPU": 0.75, "CUDA": 0.25})


def test_ort_parallel_nodes_share_the_time(tmp_path: Path) -> None:
    lines = [node("Conv", 0, 100), node("Gemm", 0, 100, tid=2), model_run(0, 100)]
    profile, _ = parse(write(tmp_path / "p.json", lines), wall_s=1e-4, steps=1, skip_runs=0)
    assert microseconds(profile) == {"Conv": (1, 50), "Gemm": (1, 50)}
    assert "0.1 ms of overlap" in profile.correction


def test_ort_other_number_of_runs_is_refused(three_runs: Path) -> None:
    with pytest.raises(EngineError, match=r"3 runs were recorded, not 2 \+ 2"):
        parse(three_runs, skip_runs=2)


def test_ort_file_cut_off_anywhere(three_runs: Path) -> None:
    """Whatever is left: complete runs only, said to be cut, or an error that says there is none."""
    whole = three_runs.read_text()
    for size in range(0, len(whole) - 3, 37):
        three_runs.write_text(whole[:size])
        if "Node" not in whole[:size].rpartition("\n")[0]:
            with pytest.raises(EngineError, match="no operator"):
                parse(three_runs)
            continue
        profile, _ = parse(three_runs)
        assert profile.truncated
        assert "cut off" in profile.correction
        if whole[:size].count('model_run", "args": {}}') >= 2:
            assert microseconds(profile)["Conv"] == (1, 400)


def test_ort_full_record_is_truncated(three_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_ort, "MAX_EVENTS", 12)
    assert parse(three_runs)[0].truncated
    monkeypatch.setattr(profile_ort, "MAX_EVENTS", 13)
    assert not parse(three_runs)[0].truncated


def test_ort_unreadable_line_is_counted(three_runs: Path) -> None:
    text = three_runs.read_text().replace('"op_name": "Loop"', '"op_name": "L"oop"', 1)
    three_runs.write_text(text)
    profile, _ = parse(three_runs)
    assert "1 lines could not be read" in profile.correction
    assert microseconds(profile)["Loop"][0] == 0.5


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300)), min_size=1, max_size=30))
def test_ort_sum_is_wall(tmp_path_factory: pytest.TempPathFactory, spans: Any) -> None:
    lines = [*(node("Relu", ts, dur) for ts, dur in spans), model_run(0, 1200)]
    path = write(tmp_path_factory.mktemp("ort") / "p.json", lines)
    profile, _ = parse(path, wall_s=1300e-6, plain_wall_s=1200e-6, steps=1, skip_runs=0)
    total = sum(op.time_s for op in profile.ops)
    assert total >= 0
    assert profile.unattributed_s >= 0
    assert total + profile.unattributed_s == pytest.approx(profile.wall_s)


# The frameworks


def run(code: str, folder: Path) -> Any:
    """What a fresh process with ``code`` prints last, as JSON; ``folder`` is its argument."""
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def read_profile(raw: Any) -> Profile:
    profile = msgspec.convert(raw, Profile)
    total = sum(op.time_s for op in profile.ops)
    assert total + profile.unattributed_s == pytest.approx(profile.wall_s)
    assert all(op.time_s >= 0 for op in profile.ops)
    assert profile.ops == sorted(profile.ops, key=lambda op: -op.time_s)
    assert {op.op_class for op in profile.ops}.isdisjoint({"Unknown"})
    return profile


def calls(profile: Profile, op: str) -> dict[str, float]:
    found: list[OpTime] = [each for each in profile.ops if each.op == op]
    return {each.stage: each.count for each in found}


TORCH = """
import sys, time, msgspec, torch
from torch.profiler import record_function
from xbench.runners.profile_pt import profile
w = torch.nn.Parameter(torch.rand(8, 8))
x = torch.rand(4, 8)
optimizer = torch.optim.Adam([w], fused=True)
def train():
    with record_function("xbench:forward"):
        loss = (x @ w).tanh().sum()
    with record_function("xbench:backward"):
        loss.backward()
    with record_function("xbench:optimizer"):
        optimizer.step(); optimizer.zero_grad()
    time.sleep(0.02)
def infer():
    with torch.inference_mode():
        torch.tanh(x @ w)
print(msgspec.json.encode([profile(train, 3), profile(infer, 2)]).decode())
"""


def test_torch(tmp_path: Path) -> None:
    train, infer = map(read_profile, run(TORCH, tmp_path))
    assert calls(train, "aten::mm") == {"forward": 1, "backward": 1}
    assert calls(train, "aten::tanh") == {"forward": 1}
    assert calls(train, "aten::tanh_backward") == {"backward": 1}
    assert calls(train, "aten::_fused_adam_") == {"optimizer": 1}
    assert train.unattributed_s > 0.02, "sleeping is no operator's time"
    assert not [op.op for op in train.ops if "xbench" in op.op or op.op.startswith("Optimizer.")]
    assert calls(infer, "aten::mm") == {"forward": 1}
    assert {op.stage for op in infer.ops} == {"forward"}
    assert infer.steps == 2


TF = """
import json, sys, time, msgspec, pathlib
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(2)
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from xbench.errors import EngineError
from xbench.runners.profile_tf import parse, profile
folder = pathlib.Path(sys.argv[1])
w, m, v = (tf.Variable(tf.zeros([8, 8])) for _ in range(3))
x = tf.ones([4, 8])
@tf.function
def train(x):
    with tf.GradientTape() as tape:
        with tf.name_scope("forward"):
            loss = tf.reduce_sum(tf.tanh(tf.tanh(x @ w) @ w))
    grad = tape.gradient(loss, w)
    with tf.name_scope("optimizer"):
        tf.raw_ops.ResourceApplyAdam(
            var=w.handle, m=m.handle, v=v.handle, beta1_power=.9, beta2_power=.9, lr=.1,
            beta1=.9, beta2=.9, epsilon=1e-8, grad=grad)
    return loss
@tf.function
def infer(x):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(x)), (0, x))[1]
def step():
    train(x).numpy(); time.sleep(0.02)
profiles = [profile(step, 3, folder), profile(lambda: infer(x).numpy(), 2, folder)]

def trace(events):
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    for number, (lane, start, duration, name) in enumerate(events):
        plane.event_metadata[number].name = name
        line = plane.lines.add(id=lane, timestamp_ns=1_700_000_000_000_000_000)
        line.events.add(metadata_id=number, offset_ps=start, duration_ps=duration)
    path = folder / "made.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path
window = (1, 1000, 9000, "xbench steps")
made = [
    window,
    (1, 1100, 8000, "EagerExecute"),
    (2, 100, 500, "forward/early:MatMul"),
    (2, 2000, 4000, "ExecutorState::Process"),
    (2, 2500, 1000, "forward/c:Conv2D"),
    (2, 2600, 300, "ParallelFor"),
    (2, 4000, 1000, "PartitionedCall/gradient_tape/forward/c:Conv2DBackpropInput"),
    (3, 4500, 1000, "AddN_3:AddN"),
    (2, 5500, 250, "optimizer/a:ResourceApplyAdam"),
]
walls = {"wall_s": 1e-8, "plain_wall_s": 5e-9}
profiles.append(parse(trace(made), steps=1, **walls))
errors = []
for events in (made[1:], [window]):
    try:
        parse(trace(events), steps=1, **walls)
    except EngineError as error:
        errors.append(str(error))
print(json.dumps([json.loads(msgspec.json.encode(profiles)), errors]))
"""


def test_tf(tmp_path: Path) -> None:
    raw, errors = run(TF, tmp_path)
    train, infer, made = map(read_profile, raw)
    products = [calls(train, op) for op in ("MatMul", "_MklMatMul") if calls(train, op)]
    assert products == [{"forward": 2, "backward": 3}]
    assert calls(train, "TanhGrad") == {"backward": 2}
    assert calls(train, "AddN") == {"backward": 1}
    assert calls(train, "ResourceApplyAdam") == {"optimizer": 1}
    assert train.unattributed_s > 0.02, "sleeping is no operator's time"
    assert calls(infer, "Tanh") == {"forward": 3}
    assert {op.stage for op in infer.ops} == {"forward"}

    truth = {
        # 2000-2500, 3500-4000 | 5000-5500 in part beside AddN | 5750-6000
        ("ExecutorState::Process", "forward"): 1000,
        ("ExecutorState::Process", "backward"): 250,
        ("ExecutorState::Process", "optimizer"): 250,
        ("Conv2D", "forward"): 1000,
        ("Conv2DBackpropInput", "backward"): 500 + 250,
        ("AddN", "backward"): 250 + 250,
        ("ResourceApplyAdam", "optimizer"): 250,
    }
    got = {(op.op, op.stage): round(op.time_s * 1e12, 3) for op in made.ops}
    assert got == truth
    assert made.unattributed_s == pytest.approx(10_000e-12 - 4_000e-12)
    assert "2.00 times as long" in made.correction
    assert "1e-06 ms per step" in made.correction
    assert ["does not hold the steps" in errors[0], "no operators" in errors[1]] == [True, True]


ORT = """
import sys, msgspec, numpy as np, onnxruntime as ort, pathlib
from onnx import TensorProto as T, helper as h
folder = pathlib.Path(sys.argv[1])
value = h.make_tensor_value_info
body = h.make_graph(
    [h.make_node("Sin", ["s"], ["t"]), h.make_node("Identity", ["c"], ["d"])], "body",
    [value("i", T.INT64, []), value("c", T.BOOL, []), value("s", T.FLOAT, [64])],
    [value("d", T.BOOL, []), value("t", T.FLOAT, [64])])
graph = h.make_graph(
    [h.make_node("Loop", ["n", "", "x"], ["y"], body=body), h.make_node("Cos", ["y"], ["z"])],
    "g", [value("x", T.FLOAT, [64])], [value("z", T.FLOAT, [64])],
    [h.make_tensor("n", T.INT64, [], [5])])
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = str(folder / "p")
session = ort.InferenceSession(
    model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for _ in range(7):
    session.run(None, {"x": np.ones(64, "f")})
from xbench.runners.profile_ort import parse
path = pathlib.Path(session.end_profiling())
result = parse(path, wall_s=0.01, plain_wall_s=0.01, steps=4, skip_runs=3)
print(msgspec.json.encode(result).decode())
"""


def test_ort(tmp_path: Path) -> None:
    raw, shares = run(ORT, tmp_path)
    profile = read_profile(raw)
    assert calls(profile, "Loop") == {"forward": 1}
    assert calls(profile, "Sin") == {"forward": 5}
    assert calls(profile, "Cos") == {"forward": 1}
    assert shares == {"CPUExecutionProvider": 1.0}
    assert not profile.truncated
    assert profile.steps == 4
