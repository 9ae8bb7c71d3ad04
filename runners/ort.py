"""ONNX Runtime: inference of bound ONNX files, and of a user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from xbench import bench
from xbench.errors import EngineError, FellBack, Unavailable, Unsupported
from xbench.result import Placement, Profile
from xbench.runners.base import Arrays, Runner, Work
from xbench.runners.ort_placement import DEVICE_OF, PROVIDERS, cause, proven_placement
from xbench.runners.ort_session import (
    captured,
    open_session,
    opened,
    proven_options,
    providers,
    session_options,
    tiny_model,
)
from xbench.spec import ARRAYS, FILE, Case, TensorSpec

ENGINES = {
    "ort": {
        "order": 2,
        "onnx": True,
        "phases": ("infer",),
        "packages": ("onnxruntime-gpu", "onnxruntime", "onnx"),
    }
}

WARMUP_RUNS = 2


class OrtRunner(Runner):
    """One session. What it was given is proved, not believed: see ``placement``.

    ``run`` may be called from several threads at once: a session takes that, and each thread has
    its own memory on a GPU.
    """

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

    def prepare(self, work: Work) -> None:
        self.graph_of(work)

    def load(self, work: Work) -> None:
        self.work = work
        self.graph = self.graph_of(work)
        case = work.case
        self.session = self.on_device(
            lambda: open_session(
                str(self.graph), case.device, threads=case.threads, options=case.options
            )
        )
        outputs = work.spec.outputs(work.config)
        self.outputs = [spec for spec in outputs if spec.dtype in ARRAYS]
        self.others = [spec for spec in outputs if spec.dtype not in ARRAYS]
        if not self.outputs:
            raise Unsupported(f"{'; '.join(map(not_compared, self.others))}, and there is no other")
        inputs = work.spec.inputs(work.config)
        self.finite = all(finite(array) for batch in work.batches for array in batch.values())
        self.batches = [
            {spec.name: self.native(spec, batch[spec.name]) for spec in inputs}
            for batch in work.batches
        ]
        self.last: Any = []
        self.bindings: dict[tuple[int, int], Any] = {}
        self.use(0)

    def graph_of(self, work: Work) -> Path:
        """The file to open: the case's, or one made from it in the precision that is asked."""
        if work.graph is None:
            raise EngineError("ONNX Runtime was given no graph")
        if work.case.precision == "fp32":
            return work.graph
        if work.case.precision != "fp16":
            from xbench.runners.ort_precision import REFUSED

            raise Unsupported(REFUSED[work.case.precision])
        target = work.folder / "fp16.onnx"
        if not target.exists():
            from xbench.runners.ort_precision import to_fp16

            to_fp16(work.graph, target)
        return target

    def on_device(self, make: Callable[[], Any]) -> Any:
        """The session that ``make`` opens. Raises FellBack where it is not on the case's device."""
        device = self.work.case.device
        if device == "cpu":
            return make()
        session, log = captured(make)
        if PROVIDERS[device][0] not in session.get_providers():
            raise FellBack(f"asked for {device}, the session is on the CPU: {cause(log)}")
        return session

    def native(self, spec: TensorSpec, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy of a canonical array in the graph's layout and precision.

        The layout is TensorFlow's where TensorFlow made the graph.
        """
        if self.work.case.source == "tf":
            array = spec.to_tf(array)
        # Not ascontiguousarray, which would make a scalar one-dimensional.
        array = array.copy(order="C")
        half = self.work.case.precision == "fp16" and array.dtype == np.float32
        # Files that are held against each other are fed the same, each in the type it declares.
        dtype = np.float16 if half else np.dtype(spec.dtype)
        return array.astype(dtype, copy=False) if array.dtype.kind == "f" else array

    def use(self, batch: int) -> None:
        self.batch = batch
        self.feeds = self.batches[batch]
        if self.work.case.device == "cuda":
            self.binding()

    def binding(self) -> Any:
        """The present batch on the GPU, and room for its outputs there: one per thread.

        So no host copy is in the timed region. Made when a thread first meets a batch.
        """
        key = (threading.get_ident(), self.batch)
        if key not in self.bindings:
            self.bindings[key] = self.bound(self.session)
        return self.bindings[key]

    def bound(self, session: Any) -> Any:
        """A new binding of the present batch for ``session``."""
        binding = session.io_binding()
        for name, array in self.feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for output in self.outputs:
            binding.bind_output(output.name, "cuda")
        return binding

    def run(self) -> None:
        if self.work.case.device == "cpu":
            # Measured: run() is quicker than run_with_iobinding() with numpy on the CPU.
            self.last = self.session.run(None, self.feeds)
        else:
            binding = self.binding()
            self.session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            self.last = binding

    def end_to_end(self) -> Callable[[], object] | None:
        if self.work.case.device == "cpu":
            return None
        return lambda: self.session.run(None, self.feeds)

    def results(self) -> list[np.ndarray[Any, Any]]:
        """What was last computed, by whichever thread."""
        on_host = self.work.case.device == "cpu"
        found: list[Any] = self.last if on_host else self.last.copy_outputs_to_cpu()
        return found

    def check(self) -> None:
        for value in self.results() if self.finite else ():
            if isinstance(value, np.ndarray) and not finite(value):
                raise EngineError("the output is not finite")

    def infer(self, batch: int = 0) -> Arrays:
        case = self.work.case
        proven_options(case.options)
        names = [spec.name for spec in self.outputs]
        values = self.session.run(names, self.batches[batch])
        by_name = dict(zip(names, values, strict=True))
        outputs = {}
        for spec in self.outputs:
            value = by_name[spec.name]
            if case.precision == "fp16" and value.dtype == np.float16:
                value = value.astype(np.float32)
            canonical = spec.from_tf(value) if case.source == "tf" else value
            outputs[spec.name] = np.asarray(canonical, order="C")
        return outputs

    def bind(self, parameters: Arrays) -> None:
        raise EngineError("the parameters of an ONNX graph are in its file")

    def remarks(self) -> list[str]:
        found = [not_compared(spec) for spec in self.others]
        if not self.finite:
            found.append("its inputs hold NaN or Inf")
        case = self.work.case
        if self.is_half(case) and "fp32" in self.effective_precision():
            found.append(
                "ONNX Runtime computed its float16 in float32 here: overflow beyond 65,504 was not "
                "exercised"
            )
        return found

    def is_half(self, case: Case) -> bool:
        """Whether float16 is what was asked for: by the case, or by the file's own parameters."""
        if case.precision == "fp16" or case.source != FILE:
            return case.precision == "fp16"
        import onnx

        from xbench.runners.graph_facts import narrow_type

        return narrow_type(onnx.load(str(self.graph), load_external_data=False)) == "float16"

    def placement(self) -> list[Placement]:
        proven_options(self.work.case.options)
        asked = PROVIDERS[self.work.case.device][0]
        found = []
        for assigned in self.session.get_provider_graph_assignment_info():
            found += [(assigned.ep_name, node.op_type) for node in assigned.get_nodes()]
        return proven_placement(found, asked)

    def effective_precision(self) -> str:
        """From the types that compute nodes had in one profiled run.

        A model's float32 graph on the CPU needs no proof; a user's file is whatever it is.
        """
        case = self.work.case
        if case.device == "cpu" and case.precision == "fp32" and case.source != "file":
            return ""
        from xbench.runners import ort_arithmetic

        trace = self.profiled(self.run)
        found = ort_arithmetic.computed_in(trace, PROVIDERS[case.device][0])
        if case.device == "cuda" and "fp32" in found and ort_arithmetic.tf32(case.options):
            found = (found - {"fp32"}) | {"tf32"}
        effective = "+".join(sorted(found))
        return "" if effective == case.precision and case.source != "file" else effective

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        from xbench.runners import profile_ort

        wall_s = 0.0

        def body() -> None:
            nonlocal wall_s
            wall_s = self.wall(steps)

        proven_options(self.work.case.options)
        optimised = self.work.folder / "optimised.onnx"
        plain_before_s = self.wall(steps)
        trace = self.profiled(body, optimised)
        # Plain on both sides of profiled, so that a drift of the machine does not pass for cost.
        plain_s = (plain_before_s + self.wall(steps)) / 2
        profile, shares = profile_ort.parse(
            trace,
            wall_s=wall_s,
            plain_wall_s=plain_s,
            steps=steps,
            skip_runs=WARMUP_RUNS,
            domains=profile_ort.domains(optimised),
        )
        return profile, {DEVICE_OF.get(ep, ep): share for ep, share in shares.items()}

    def profiled(self, body: Callable[[], None], optimised: Path | None = None) -> Path:
        """The trace of ``body``, whose runs go to a session that records every node.

        It has the options of the case. The optimised model is written to ``optimised``.
        """
        case = self.work.case
        options = session_options(case.threads, case.options)
        options.enable_profiling = True
        options.profile_file_prefix = str(self.work.folder / "ort-profile")
        if optimised is not None:
            options.optimized_model_filepath = str(optimised)
        plain, bindings = self.session, self.bindings
        self.bindings = {}
        asked = providers(case.device, case.options)
        try:
            self.session = self.on_device(lambda: opened(str(self.graph), options, asked))
            body()
            return Path(self.session.end_profiling())
        finally:
            self.session, self.bindings = plain, bindings

    def wall(self, steps: int) -> float:
        """Seconds of one run in the present session, over ``steps`` after a warm-up."""

        def runs() -> None:
            for _ in range(steps):
                self.run()

        for _ in range(WARMUP_RUNS):
            self.run()
        return bench.timed(runs) / steps


def finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether all floats are numbers; what is not a float always is."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def not_compared(spec: TensorSpec) -> str:
    """What is said of an output that is no plain array."""
    return f"output {spec.name!r} is unsupported: it is of type {spec.dtype}, and not compared"


def make(engine: str) -> OrtRunner:
    return OrtRunner(engine)
