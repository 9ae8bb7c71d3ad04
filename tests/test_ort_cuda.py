"""The CUDA path of the ONNX Runtime runner, with a session that is made up.

No GPU is needed: what is tested is what the runner believes, and what it refuses to.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from xbench import registry
from xbench.errors import EngineError, FellBack, Unavailable
from xbench.runners import ort as runner_module
from xbench.runners import ort_arithmetic
from xbench.runners.base import Work
from xbench.runners.ort import OrtRunner
from xbench.runners.ort_placement import cause, is_compute, proven_placement
from xbench.spec import Case

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Binding:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.outputs: list[tuple[str, str]] = []
        self.inputs: dict[str, Any] = {}

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.inputs[name] = value

    def bind_output(self, name: str, device: str) -> None:
        self.outputs.append((name, device))

    def synchronize_outputs(self) -> None:
        self.session.log.append("synchronised")

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        return [np.zeros(1, np.float32)]


class Session:
    """What an InferenceSession would say, from (provider, operator) of every node."""

    def __init__(self, providers: list[str], nodes: list[tuple[str, str]]) -> None:
        self.providers = providers
        self.nodes = nodes
        self.log: list[str] = []

    def get_providers(self) -> list[str]:
        return self.providers

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="prediction")]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(ep_name=ep, get_nodes=lambda op=op: [SimpleNamespace(op_type=op)])
            for ep, op in self.nodes
        ]

    def io_binding(self) -> Binding:
        self.binding = Binding(self)
        return self.binding

    def run(self, names: Any, feeds: Any) -> list[np.ndarray[Any, Any]]:
        self.log.append("run")
        return [np.full((8, 8), 8.0, np.float32)]

    def run_with_iobinding(self, binding: Binding) -> None:
        self.log.append("run_with_iobinding")


def loaded(monkeypatch: pytest.MonkeyPatch, session: Session, device: str = "cuda") -> OrtRunner:
    monkeypatch.setattr(runner_module, "open_session", lambda *a, **k: session)
    values = SimpleNamespace(ortvalue_from_numpy=lambda array, device, index: (device, array))
    monkeypatch.setattr(onnxruntime, "OrtValue", values)
    spec = registry.model("prednet")
    config = spec.sizes["tiny"]
    case = Case(
        model="prednet", size="tiny", phase="infer", engine="ort", source="torch", device=device
    )
    frames = np.zeros(spec.inputs(config)[0].at(batch=1), np.float32)
    runner = OrtRunner("ort")
    runner.load(
        Work(
            case=case,
            spec=spec,
            config=config,
            parameters={},
            batches=[{"frames": frames}],
            graph=Path("graph.onnx"),
            folder=Path(),
        )
    )
    return runner


def test_a_session_that_came_back_on_the_cpu_fell_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FellBack, match="the session is on the CPU"):
        loaded(monkeypatch, Session([CPU], [(CPU, "Conv")]))


def test_cuda_runs_on_bound_memory_and_synchronises(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([CUDA, CPU], [(CUDA, "Conv")])
    runner = loaded(monkeypatch, session)
    runner.run()
    assert session.log == ["run_with_iobinding", "synchronised"]
    assert session.binding.inputs["frames"][0] == "cuda"
    assert session.binding.outputs == [("prediction", "cuda")]
    runner.check()


def test_cpu_runs_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([CPU], [(CPU, "Conv")])
    runner = loaded(monkeypatch, session, "cpu")
    runner.run()
    assert session.log == ["run"]


def test_shape_nodes_on_the_cpu_are_listed_not_condemned(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [(CUDA, "Conv"), (CUDA, "Relu"), (CPU, "Shape"), (CPU, "Gather"), (CPU, "Gather")]
    on_cuda, on_cpu = loaded(monkeypatch, Session([CUDA, CPU], nodes)).placement()
    assert (on_cuda.ep, on_cuda.nodes) == ("cuda", 2)
    assert (on_cpu.ep, on_cpu.nodes, on_cpu.ops) == ("cpu", 3, {"Gather": 2, "Shape": 1})


@pytest.mark.parametrize("op", ["Conv", "MatMul", "LSTM", "Relu", "MaxPool", "Resize", "Softmax"])
def test_one_compute_node_on_the_cpu_is_a_fall_back(op: str) -> None:
    with pytest.raises(FellBack, match=f"{op} on cpu"):
        proven_placement([(CUDA, "Conv"), (CPU, op)], CUDA)
    assert is_compute(op)


def test_nothing_on_cuda_is_a_fall_back() -> None:
    with pytest.raises(FellBack, match="given no node"):
        proven_placement([(CPU, "Shape")], CUDA)
    with pytest.raises(FellBack):
        proven_placement([], CPU)


def test_an_unknown_provider_keeps_its_name() -> None:
    with pytest.raises(FellBack, match="Conv on TensorrtExecutionProvider"):
        proven_placement([("TensorrtExecutionProvider", "Conv"), (CPU, "Shape")], CPU)


LOG = (
    "\x1b[1;31m2026-11-30 13:13:30 [E:onnxruntime:Default, provider_bridge_ort.cc:2458] FAIL : "
    "Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot "
    "open shared object file: No such file or directory\n\x1b[m\n"
    "[W:onnxruntime:Default] Failed to create CUDAExecutionProvider."
)


def test_the_cause_is_the_line_a_person_can_act_on() -> None:
    missing = "libcublasLt.so.13: cannot open shared object file: No such file or directory"
    assert cause(LOG) == missing
    assert cause("nothing here") == "ONNX Runtime gave no reason"
    assert cause("noise\n[W:onnxruntime:x] no device\n") == "[W:onnxruntime:x] no device"


def test_probe_says_why_cuda_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])

    def fall_back(*_: Any, **__: Any) -> Session:
        import os

        os.write(2, LOG.encode())
        return Session([CPU], [])

    monkeypatch.setattr(runner_module, "open_session", fall_back)
    with pytest.raises(Unavailable, match=r"libcublasLt\.so\.13"):
        OrtRunner("ort").probe("cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(Unavailable, match="built without CUDAExecutionProvider"):
        OrtRunner("ort").probe("cuda")


def test_probe_believes_only_a_right_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    session = Session([CUDA, CPU], [])
    monkeypatch.setattr(runner_module, "open_session", lambda *a, **k: session)
    assert OrtRunner("ort").probe("cuda") == {"providers": f"{CUDA}, {CPU}"}
    monkeypatch.setattr(session, "run", lambda *a: [np.zeros((8, 8), np.float32)])
    with pytest.raises(Unavailable, match="came out wrong"):
        OrtRunner("ort").probe("cuda")


def test_a_result_that_is_not_finite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([CPU], [(CPU, "Conv")])
    monkeypatch.setattr(session, "run", lambda *a: [np.array([np.nan], np.float32)])
    runner = loaded(monkeypatch, session, "cpu")
    runner.run()
    with pytest.raises(EngineError, match="not finite"):
        runner.check()


def test_every_thread_and_batch_has_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([CUDA, CPU], [(CUDA, "Conv")])
    runner = loaded(monkeypatch, session)
    runner.batches.append(runner.batches[0])
    made: list[Binding] = []

    def bind() -> Binding:
        made.append(Binding(session))
        return made[-1]

    monkeypatch.setattr(session, "io_binding", bind)
    runner.run()
    assert not made
    runner.use(1)
    runner.use(0)
    runner.use(1)
    assert len(made) == 1
    thread = threading.Thread(target=runner.run)
    thread.start()
    thread.join()
    assert len(made) == 2
    # What was last computed is what is checked, though another thread computed it.
    assert runner.last is made[1]
    runner.check()


def test_end_to_end_on_cuda_copies_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([CUDA, CPU], [(CUDA, "Conv")])
    runner = loaded(monkeypatch, session)
    whole = runner.end_to_end()
    assert whole is not None
    whole()
    assert session.log == ["run"]


def trace(path: Path, *nodes: tuple[str, str, str]) -> Path:
    """A session's profile with one event per (provider, operator, type of its first input)."""
    events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_run", "args": {}}]
    events += [
        {"cat": "Node", "args": {"provider": p, "op_name": op, "input_type_shape": [{kind: [2]}]}}
        for p, op, kind in nodes
    ]
    path.write_text(json.dumps(events))
    return path


def test_what_cuda_computed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = loaded(monkeypatch, Session([CUDA, CPU], [(CUDA, "Conv")]))
    path = tmp_path / "trace.json"
    monkeypatch.setattr(runner, "profiled", lambda body: path)
    trace(path, (CUDA, "Conv", "float"), (CPU, "Gather", "int64"), (CUDA, "Cast", "float16"))
    monkeypatch.setattr(ort_arithmetic, "tf32", lambda options: True)
    assert runner.effective_precision() == "tf32"
    monkeypatch.setattr(ort_arithmetic, "tf32", lambda options: False)
    assert runner.effective_precision() == ""
    trace(path, (CUDA, "Conv", "float"), (CUDA, "FusedMatMul", "float16"))
    assert runner.effective_precision() == "fp16+fp32"
    trace(path, (CUDA, "Relu", "float16"))
    assert runner.effective_precision() == "fp16"
