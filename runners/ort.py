"""ONNX Runtime: inference of bound ONNX files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from xbench import bench
from xbench.errors import EngineError, FellBack, Unavailable
from xbench.result import Placement, Profile
from xbench.runners import profile_ort
from xbench.runners.base import Arrays, Runner, Work
from xbench.runners.ort_placement import DEVICE_OF, PROVIDERS, cause, proven_placement
from xbench.spec import TensorSpec

ENGINES = {
    "ort": {
        "order": 2,
        "onnx": True,
        "phases": ("infer",),
        # It imports in 0.2 s but leaves a thread behind, which a fork would lose.
        "fork": False,
        "packages": ("onnxruntime-gpu", "onnxruntime", "onnx"),
    }
}

WARMUP_RUNS = 2


class OrtRunner(Runner):
    """One session. What it was given is proved, not believed: see ``placement``."""

    def probe(self, device: str) -> dict[str, str]:
        provider = PROVIDERS[device][0]
        if provider not in ort.get_available_providers():
            raise Unavailable(f"this onnxruntime ({ort.__version__}) is built without {provider}")
        session, log = captured(lambda: open_session(tiny_model(), device, threads=1))
        got = session.get_providers()
        if provider not in got:
            raise Unavailable(f"a session asked for {provider} came back with {got}: {cause(log)}")
        (product,) = session.run(None, {"x": np.ones((8, 8), np.float32)})
        if product.sum() != 512.0:
            raise Unavailable(f"a product of ones on {device} came out wrong")
        return {"providers": ", ".join(got)}

    def load(self, work: Work) -> None:
        if work.graph is None:
            raise EngineError("ONNX Runtime was given no graph")
        self.work = work
        case = work.case
        self.session, log = captured(
            lambda: open_session(str(work.graph), case.device, threads=case.threads)
        )
        if PROVIDERS[case.device][0] not in self.session.get_providers():
            raise FellBack(f"asked for {case.device}, the session is on the CPU: {cause(log)}")
        inputs, outputs = work.spec.inputs(work.config), work.spec.outputs(work.config)
        self.outputs = outputs
        self.batches = [
            {spec.name: self.layout(spec, batch[spec.name]).copy() for spec in inputs}
            for batch in work.batches
        ]
        self.feeds = self.batches[0]
        self.last: list[Any] = []
        self.binding = self.bound(self.session) if case.device == "cuda" else None

    def layout(self, spec: TensorSpec, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A canonical array in the graph's layout: TensorFlow's where TensorFlow made the graph."""
        return np.ascontiguousarray(spec.to_tf(array) if self.work.case.source == "tf" else array)

    def bound(self, session: Any) -> Any:
        """Inputs on the GPU, outputs left there: no host copy in the timed region."""
        binding = session.io_binding()
        for name, array in self.feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for output in self.outputs:
            binding.bind_output(output.name, "cuda")
        return binding

    def run(self) -> None:
        if self.binding is None:
            # Measured: run() is quicker than run_with_iobinding() with numpy on the CPU.
            self.last = self.session.run(None, self.feeds)
        else:
            self.session.run_with_iobinding(self.binding)
            self.binding.synchronize_outputs()

    def results(self) -> list[np.ndarray[Any, Any]]:
        return self.last if self.binding is None else self.binding.copy_outputs_to_cpu()

    def check(self) -> None:
        if not all(np.isfinite(value).all() for value in self.results()):
            raise EngineError("the output is not finite")

    def infer(self, batch: int = 0) -> Arrays:
        names = [output.name for output in self.session.get_outputs()]
        values = self.session.run(names, self.batches[batch])
        by_name = dict(zip(names, values, strict=True))
        outputs = {}
        for spec in self.outputs:
            value = by_name[spec.name]
            canonical = spec.from_tf(value) if self.work.case.source == "tf" else value
            outputs[spec.name] = np.ascontiguousarray(canonical)
        return outputs

    def bind(self, parameters: Arrays) -> None:
        raise EngineError("the parameters of an ONNX graph are in its file")

    def placement(self) -> list[Placement]:
        asked = PROVIDERS[self.work.case.device][0]
        found = []
        for assigned in self.session.get_provider_graph_assignment_info():
            found += [(assigned.ep_name, node.op_type) for node in assigned.get_nodes()]
        return proven_placement(found, asked)

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        case, folder = self.work.case, self.work.folder
        plain_before_s = self.wall(steps)
        options = session_options(case.threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "ort-profile")
        options.optimized_model_filepath = str(folder / "optimised.onnx")
        plain, binding = self.session, self.binding
        self.session, log = captured(
            lambda: ort.InferenceSession(
                str(self.work.graph), options, providers=PROVIDERS[case.device]
            )
        )
        if PROVIDERS[case.device][0] not in self.session.get_providers():
            raise FellBack(f"the profiling session is on the CPU: {cause(log)}")
        self.binding = self.bound(self.session) if binding is not None else None
        wall_s = self.wall(steps)
        trace = Path(self.session.end_profiling())
        self.session, self.binding = plain, binding
        # Plain on both sides of profiled, so that a drift of the machine does not pass for cost.
        plain_s = (plain_before_s + self.wall(steps)) / 2
        profile, shares = profile_ort.parse(
            trace,
            wall_s=wall_s,
            plain_wall_s=plain_s,
            steps=steps,
            skip_runs=WARMUP_RUNS,
            domains=domains(folder / "optimised.onnx"),
        )
        return profile, {DEVICE_OF.get(ep, ep): share for ep, share in shares.items()}

    def wall(self, steps: int) -> float:
        """Seconds of one run in the present session, over ``steps`` after a warm-up."""

        def runs() -> None:
            for _ in range(steps):
                self.run()

        for _ in range(WARMUP_RUNS):
            self.run()
        return bench.timed(runs) / steps


def domains(optimised: Path) -> dict[str, str]:
    """Operator domain of every node of the optimised model: the profile does not name it."""
    import onnx

    graph = onnx.load(str(optimised), load_external_data=False).graph
    return {node.name: node.domain for node in graph.node}


def session_options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def open_session(model: str | bytes, device: str, threads: int) -> Any:
    return ort.InferenceSession(model, session_options(threads), providers=PROVIDERS[device])


def captured(action: Callable[[], Any]) -> tuple[Any, str]:
    """What ``action`` returns, and what native code wrote to stderr meanwhile.

    ONNX Runtime says why CUDA did not load only there.
    """
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            result = action()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            log = file.read().decode(errors="replace")
            os.write(2, log.encode())
    return result, log


def tiny_model() -> bytes:
    """x @ x for an 8x8 float32 x."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def make(engine: str) -> OrtRunner:
    return OrtRunner(engine)
