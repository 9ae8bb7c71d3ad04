"""ONNX Runtime with options, in half precision, with a user's file: real sessions on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from xbench.errors import EngineError, Unsupported
from xbench.runners import ort_arithmetic, ort_session
from xbench.runners.base import Work
from xbench.runners.ort import OrtRunner
from xbench.runners.ort_precision import to_fp16
from xbench.runners.ort_session import open_session, proven_options, session_options
from xbench.spec import Adam, Case, ModelSpec, TensorSpec

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
value, node = helper.make_tensor_value_info, helper.make_node


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    parameters: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in (parameters or {}).items()]
    graph = helper.make_graph(nodes, "tests", inputs, outputs, held)
    sets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def network(dtype: int = FLOAT) -> onnx.ModelProto:
    """Convolution, activation, mean: x [N, 3, 8, 8] -> y [N, 4], k [N] (whole numbers)."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weight = np.linspace(-1, 1, 4 * 27).reshape(4, 3, 3, 3).astype(kind)
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["t"]),
        node("ReduceMean", ["t", "axes"], ["y"], keepdims=0),
        node("ArgMax", ["y"], ["k"], axis=1, keepdims=0),
    ]
    outputs = [value("y", dtype, ["N", 4]), value("k", INT64, ["N"])]
    held = {"w": weight, "axes": np.array([2, 3], np.int64)}
    return model(nodes, [value("x", dtype, ["N", 3, 8, 8])], outputs, held)


INPUTS = (TensorSpec("x", ("N", 3, 8, 8)),)
OUTPUTS = (TensorSpec("y", ("N", 4)), TensorSpec("k", ("N",), "int64"))


def spec(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> ModelSpec:
    return ModelSpec(
        name="m", title="", paper="", sizes={"": None}, batch={"": 1}, parameters=lambda _: (),
        inputs=lambda _: inputs, outputs=lambda _: outputs, taps=lambda _: (), losses=(),
        optimizer=Adam(), data="",
    )  # fmt: skip


def loaded(
    tmp_path: Path,
    made: onnx.ModelProto,
    batches: list[dict[str, Any]] | None = None,
    inputs: tuple[TensorSpec, ...] = INPUTS,
    outputs: tuple[TensorSpec, ...] = OUTPUTS,
    **fields: Any,
) -> OrtRunner:
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    common = {"model": "m", "size": "", "phase": "infer", "engine": "ort", "device": "cpu"}
    case = Case(**(common | {"source": "file"} | fields))
    runner = OrtRunner("ort")
    runner.load(
        Work(
            case=case,
            spec=spec(inputs, outputs),
            config=None,
            parameters={},
            batches=batches or [{"x": picture(2)}, {"x": picture(5)}],
            graph=path,
            folder=tmp_path,
        )
    )
    return runner


def picture(count: int) -> np.ndarray[Any, Any]:
    return np.linspace(-1, 1, count * 192, dtype=np.float32).reshape(count, 3, 8, 8)


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "name"),
    [("0", "DISABLE_ALL"), ("1", "ENABLE_BASIC"), ("2", "ENABLE_EXTENDED"), ("99", "ENABLE_ALL")],
)
def test_levels(level: str, name: str) -> None:
    made = session_options(2, {"ort-opt": level})
    assert made.graph_optimization_level.name == f"ORT_{name}"
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (2, 1)


def test_all_is_the_level_where_none_is_asked_for() -> None:
    assert session_options(1).graph_optimization_level.name == "ORT_ENABLE_ALL"


def test_a_level_changes_what_runs(tmp_path: Path) -> None:
    plain = {"ArgMax": 1, "Conv": 1, "ReduceMean": 1, "Relu": 1}
    ran_at = {}
    for level in ("0", "99"):
        runner = loaded(tmp_path, network(), options={"ort-opt": level})
        (place,) = runner.placement()
        # ONNX Runtime says where nodes went before it fuses them.
        assert place.ops == plain
        profile, _ = runner.profile(2)
        ran_at[level] = {op.op.rpartition(":")[2]: op.count for op in profile.ops}
    assert ran_at["0"] == plain
    assert "Relu" not in ran_at["99"]
    assert ran_at["99"]["Conv"] == 1


def test_attributes_and_entries() -> None:
    options = {
        "session.enable_cpu_mem_arena": "0",
        "session.enable_mem_pattern": "false",
        "session.execution_mode": "parallel",
        "session.inter_op_num_threads": "2",
        "session.logid": "tests",
        "session.session.enable_mem_reuse": "0",
        "session.session.disable_prepacking": "1",
        "session.optimization.enable_gelu_approximation": "1",
    }
    made = session_options(1, options)
    assert not made.enable_cpu_mem_arena
    assert not made.enable_mem_pattern
    assert not made.enable_mem_reuse
    assert made.execution_mode.name == "ORT_PARALLEL"
    assert (made.inter_op_num_threads, made.logid) == (2, "tests")
    assert made.get_session_config_entry("session.disable_prepacking") == "1"
    assert made.get_session_config_entry("optimization.enable_gelu_approximation") == "1"
    proven_options(options)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("enable_cpu_mem_arenas", "0", "did you mean 'enable_cpu_mem_arena'"),
        ("nonsense", "0", "no session option 'nonsense'"),
        ("enable_cpu_mem_arena", "maybe", "takes 0 or 1, not 'maybe'"),
        ("inter_op_num_threads", "two", "a whole number, not 'two'"),
        ("execution_mode", "sideways", "takes ORT_SEQUENTIAL, ORT_PARALLEL, not 'sideways'"),
        ("intra_op_num_threads", "2", "use --threads"),
        ("session.intra_op_num_threads", "2", "use --threads"),
        ("graph_optimization_level", "ORT_DISABLE_ALL", "use --ort-opt"),
        ("enable_profiling", "1", "a session of its own"),
        ("session.record_ep_graph_assignment_info", "0", "prove where nodes ran"),
    ],
)
def test_options_that_cannot_be_set(key: str, text: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        session_options(1, {f"session.{key}": text})


def test_an_entry_that_would_be_ignored_is_found(tmp_path: Path) -> None:
    options = {"session.session.disable_prepackings": "1"}
    runner = loaded(tmp_path, network(), options=options)
    for use in (runner.placement, runner.infer, lambda: runner.profile(1)):
        with pytest.raises(
            EngineError, match=r"knows no session option 'session\.disable_prepackings'"
        ):
            use()


def test_the_cpu_provider_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="would ignore use_arena"):
        loaded(tmp_path, network(), options={"provider.use_arena": "1"})


def test_provider_options_go_to_the_device_asked_for() -> None:
    options = {"provider.use_tf32": "0", "ort-opt": "1"}
    first, second = ort_session.providers("cuda", options)
    assert first == ("CUDAExecutionProvider", {"use_tf32": "0"})
    assert second == "CPUExecutionProvider"
    assert ort_session.providers("cuda", {})[0] == "CUDAExecutionProvider"


def test_a_provider_that_refuses_is_not_swapped_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def refuse(*_: Any, **arguments: Any) -> None:
        seen.update(arguments)
        raise RuntimeError("Unknown provider option: nonsense")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(EngineError, match="Unknown provider option: nonsense"):
        open_session(b"", "cuda", 1, {"provider.nonsense": "1"})
    assert seen["enable_fallback"] == 0


def test_what_does_not_open_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(EngineError) as caught:
        open_session(str(path), "cpu", 1)
    assert "[ONNXRuntimeError]" not in str(caught.value)
    assert "parsing failed" in str(caught.value)
    kernel = model(
        [node("MatMul", ["x", "x"], ["y"])],
        [value("x", TensorProto.BFLOAT16, [2, 2])],
        [value("y", TensorProto.BFLOAT16, [2, 2])],
    )
    with pytest.raises(Unsupported, match="MatMul"):
        open_session(kernel.SerializeToString(), "cpu", 1)

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(onnxruntime, "InferenceSession", full)
    with pytest.raises(MemoryError):
        open_session(b"", "cpu", 1)


# -- a user's file -------------------------------------------------------------------------------


def test_every_output_of_any_type(tmp_path: Path) -> None:
    runner = loaded(tmp_path, network())
    runner.run()
    runner.check()
    outputs = runner.infer(1)
    assert {n: (a.shape, str(a.dtype)) for n, a in outputs.items()} == {
        "y": ((5, 4), "float32"),
        "k": ((5,), "int64"),
    }
    assert outputs["k"].tolist() == outputs["y"].argmax(1).tolist()


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    made = model([node("Add", ["x", "x"], ["y"])], [value("x", FLOAT, [])], [value("y", FLOAT, [])])
    scalar = (TensorSpec("x", ()),), (TensorSpec("y", ()),)
    runner = loaded(tmp_path, made, [{"x": np.asarray(1.5, np.float32)}], *scalar)
    runner.run()
    (y,) = runner.infer().values()
    assert (y.shape, float(y)) == ((), 3.0)


def test_use_changes_what_runs(tmp_path: Path) -> None:
    runner = loaded(tmp_path, network())
    for batch, count in ((1, 5), (0, 2), (1, 5)):
        runner.use(batch)
        runner.run()
        assert runner.results()[0].shape == (count, 4)


def test_the_runners_inputs_are_its_own(tmp_path: Path) -> None:
    own = picture(2)
    runner = loaded(tmp_path, network(), [{"x": own}])
    before = runner.infer()["y"]
    own[:] = 0
    assert np.array_equal(runner.infer()["y"], before)


def test_many_threads_share_a_session(tmp_path: Path) -> None:
    runner = loaded(tmp_path, network(), concurrency=4)
    expected = runner.infer()["y"]
    wrong: list[int] = []
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        for _ in range(50):
            runner.run()
            if not np.array_equal(runner.results()[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    runner.check()


def test_only_cuda_has_copies_to_leave_out(tmp_path: Path) -> None:
    runner = loaded(tmp_path, network())
    assert runner.end_to_end() is None
    assert runner.device_timer() is None


# -- precision -----------------------------------------------------------------------------------


def test_half_precision_is_in_the_file_and_single_in_the_cpu(tmp_path: Path) -> None:
    runner = loaded(tmp_path, network(), precision="fp16", source="torch")
    assert {item.type for item in runner.session.get_inputs()} == {"tensor(float16)"}
    runner.run()
    runner.check()
    outputs = runner.infer()
    assert outputs["y"].dtype == np.float32
    exact = loaded(tmp_path, network()).infer()["y"]
    error = np.abs(outputs["y"] - exact).max()
    assert 0 < error < 2e-3
    assert np.array_equal(outputs["y"], outputs["y"].astype(np.float16))
    assert runner.effective_precision() == "fp32"


def test_a_users_file_is_computed_as_it_is(tmp_path: Path) -> None:
    assert loaded(tmp_path, network()).effective_precision() == "fp32"
    double = model(
        [node("MatMul", ["x", "x"], ["y"])],
        [value("x", TensorProto.DOUBLE, [2, 2])],
        [value("y", TensorProto.DOUBLE, [2, 2])],
    )
    named = (TensorSpec("x", (2, 2), "float64"),), (TensorSpec("y", (2, 2), "float64"),)
    runner = loaded(tmp_path, double, [{"x": np.ones((2, 2))}], *named)
    assert runner.effective_precision() == "fp64"
    halves = tuple(msgspec.structs.replace(spec, dtype="float16") for spec in INPUTS)
    half = loaded(tmp_path, network(HALF), [{"x": picture(2).astype(np.float16)}], halves)
    assert half.effective_precision() == "fp32"
    assert half.infer()["y"].dtype == np.float16


def test_a_models_float32_graph_needs_no_proof(tmp_path: Path) -> None:
    assert loaded(tmp_path, network(), source="torch").effective_precision() == ""


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_precisions_that_are_not_offered(tmp_path: Path, precision: str) -> None:
    with pytest.raises(Unsupported, match="kernels"):
        loaded(tmp_path, network(), precision=precision)


def converted(tmp_path: Path, made: onnx.ModelProto) -> onnx.ModelProto:
    source, target = tmp_path / "single.onnx", tmp_path / "half.onnx"
    source.write_bytes(made.SerializeToString())
    to_fp16(source, target)
    found = onnx.load(str(target))
    onnx.checker.check_model(found, full_check=True)
    return found


def ran(made: onnx.ModelProto, **feeds: Any) -> list[Any]:
    return list(open_session(made.SerializeToString(), "cpu", 1).run(None, feeds))


def test_scales_of_a_resize_stay_exact(tmp_path: Path) -> None:
    """In float16, 1.3 is 1.2998: ten times that, rounded down, is 12 and not 13."""
    made = model(
        [node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        [value("x", FLOAT, [1, 1, 10, 10])],
        [value("y", FLOAT, None)],
        {"scales": np.array([1, 1, 1.3, 1.3], np.float32)},
    )
    (y,) = ran(converted(tmp_path, made), x=np.ones((1, 1, 10, 10), np.float16))
    assert (y.shape, y.dtype) == ((1, 1, 13, 13), np.float16)


def test_range_computes_in_single_behind_casts(tmp_path: Path) -> None:
    made = model(
        [
            node("Constant", [], ["zero"], value_float=0.0),
            node("Constant", [], ["step"], value_float=0.1),
            node("Range", ["zero", "x", "step"], ["r"]),
            node("Neg", ["r"], ["y"]),
        ],
        [value("x", FLOAT, [])],
        [value("y", FLOAT, ["n"])],
    )
    (y,) = ran(converted(tmp_path, made), x=np.asarray(1.0, np.float16))
    assert y.dtype == np.float16
    expected = (np.arange(10, dtype=np.float32) * np.float32(0.1)).astype(np.float16)
    assert np.array_equal(y, -expected)


def test_types_in_attributes_and_large_constants(tmp_path: Path) -> None:
    made = model(
        [
            node("Cast", ["k"], ["f"], to=FLOAT),
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("EyeLike", ["zeros"], ["eye"], dtype=FLOAT),
            node("Add", ["eye", "f"], ["sum"]),
            node("Where", ["mask", "sum", "least"], ["y"]),
            node("RandomUniform", [], ["u"], shape=[2], seed=1.0),
        ],
        [value("k", INT64, [2, 2]), value("mask", TensorProto.BOOL, [2, 2])],
        [value("y", FLOAT, [2, 2]), value("u", FLOAT, [2])],
        {
            "shape": np.array([2, 2], np.int64),
            "least": np.float32(np.finfo(np.float32).min),
        },
    )
    mask = np.array([[True, False], [True, True]])
    y, u = ran(converted(tmp_path, made), k=np.full((2, 2), 3), mask=mask)
    assert (y.dtype, u.dtype) == (np.float16, np.float16)
    assert y.tolist() == [[4.0, -65504.0], [3.0, 4.0]]


def test_branches_see_the_values_outside(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        # The constant has one name in both branches, and another type.
        kind = np.float32 if op == "Add" else np.int64
        held = numpy_helper.from_array(np.asarray(3, kind), "c")
        nodes = [node("Cast", ["c"], [f"{name}_f"], to=FLOAT), node(op, ["x", f"{name}_f"], [name])]
        return helper.make_graph(nodes, name, [], [value(name, FLOAT, [2])], [held])

    made = model(
        [node("If", ["b"], ["y"], then_branch=branch("t", "Add"), else_branch=branch("e", "Mul"))],
        [value("b", TensorProto.BOOL, []), value("x", FLOAT, [2])],
        [value("y", FLOAT, [2])],
    )
    half, x = converted(tmp_path, made), np.array([1, 2], np.float16)
    for b, expected in ((True, [4, 5]), (False, [3, 6])):
        (y,) = ran(half, b=np.asarray(b), x=x)
        assert (y.dtype, y.tolist()) == (np.float16, expected)


def test_loops_and_scans_carry_half(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["s2"]), node("Identity", ["s2"], ["o"])],
        "body",
        [value("s", FLOAT, [2]), value("e", FLOAT, [2])],
        [value("s2", FLOAT, [2]), value("o", FLOAT, [2])],
    )
    made = model(
        [node("Scan", ["x0", "x"], ["last", "y"], body=body, num_scan_inputs=1)],
        [value("x0", FLOAT, [2]), value("x", FLOAT, [3, 2])],
        [value("last", FLOAT, [2]), value("y", FLOAT, [3, 2])],
    )
    last, y = ran(
        converted(tmp_path, made), x0=np.zeros(2, np.float16), x=np.ones((3, 2), np.float16)
    )
    assert last.tolist() == [3, 3]
    assert y.dtype == np.float16


def test_operators_outside_onnx_are_not_guessed(tmp_path: Path) -> None:
    made = model(
        [node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft")],
        [value("x", FLOAT, [2, 2])],
        [value("y", FLOAT, [2, 2])],
    )
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(Unsupported, match=r"com\.microsoft:FusedMatMul"):
        converted(tmp_path, made)


def test_tf32_is_said_only_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    asked: list[int] = []

    def ampere(device: int) -> int:
        asked.append(device)
        return 8

    monkeypatch.setattr(ort_arithmetic, "cuda_major", ampere)
    assert ort_arithmetic.tf32({})
    assert ort_arithmetic.tf32({"provider.use_tf32": "1", "provider.device_id": "1"})
    assert asked == [0, 1]
    assert not ort_arithmetic.tf32({"provider.use_tf32": "0"})
    monkeypatch.setattr(ort_arithmetic, "cuda_major", lambda device: 7)
    assert not ort_arithmetic.tf32({})
    monkeypatch.setattr(ort_arithmetic, "cuda_major", ampere)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert not ort_arithmetic.tf32({})
