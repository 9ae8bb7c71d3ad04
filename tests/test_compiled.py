"""torch-compile and tf-xla against their eager twins; compile caches, compilers and hosts.

A C++ compiler takes 20 s where XLA takes 1 s, so what runs always is a PredNet of two time steps,
of two layers for XLA and of one for torch-compile, which only infers; `make prove` does the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests import jobs
from xbench import doctor, registry
from xbench.bench import Settings
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.optypes import unknown_share
from xbench.spec import Case

TWIN = {"torch-compile": "torch", "tf-xla": "tf"}
TINY = "Config(channels=(3, 8, 16, 32), height=32, width=40, time=4)"
SHORT = "Config(channels=(3, 4), height=16, width=16, time=2)"
FLAT = "Config(channels=(3,), height=16, width=16, time=2)"
ROUNDING = {"outputs": 1e-6, "loss": 1e-5, "gradients": 1e-4, "trajectory": 1e-5}
"""Relative RMS to float64 in float32. Seen: 1e-7, 1.5e-6 (XLA sums a mean in one chain), 3e-6 and
1.5e-6; a dropped gradient of one branch is above 1e-2. Gradients have kinks, hence their room."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def launcher(cache: Path) -> Iterator[Launcher]:
    """Hosts inherit the environment, so the cache's folder must be known when they start."""
    before = os.environ.get("XBENCH_COMPILE_CACHE")
    os.environ["XBENCH_COMPILE_CACHE"] = str(cache)
    try:
        with Launcher(time_limit_s=600) as launcher:
            yield launcher
    finally:
        del os.environ["XBENCH_COMPILE_CACHE"]
        if before is not None:
            os.environ["XBENCH_COMPILE_CACHE"] = before


@pytest.fixture(scope="module")
def short() -> Iterator[str]:
    with jobs.model_copy("prednet", "zz_short", {"__init__.py": (TINY, SHORT)}) as name:
        yield name


@pytest.fixture(scope="module")
def flat() -> Iterator[str]:
    with jobs.model_copy("prednet", "zz_flat", {"__init__.py": (TINY, FLAT)}) as name:
        yield name


def run(launcher: Launcher, kind: str, case: Case, inputs: Path) -> Report:
    job = Job(
        kind=kind,
        case=case,
        folder=str(launcher.folder()),
        inputs=str(inputs),
        settings=Settings(budget_s=0.1),
    )
    report = launcher.run(job)
    assert report.ok, report.reason
    return report


def check_twins(launcher: Launcher, model: str, engine: str, phase: str) -> None:
    """A compiled engine and its twin both round as float32 does."""
    cases = [jobs.case(model, name, phase, batch=2, threads=1) for name in (engine, TWIN[engine])]
    inputs = jobs.data_file(launcher, cases[0])
    report = jobs.observe(
        launcher,
        jobs.case(model, TWIN[engine], phase, batch=2, threads=1, precision="fp64"),
        inputs,
        makes_states=phase == "train",
    )
    truth = report.tensors()
    states = jobs.states_of(report) if phase == "train" else None
    compiled, eager = (
        jobs.observe(launcher, case, inputs, states=states).tensors() for case in cases
    )
    assert {value.dtype for value in compiled.values()} == {np.dtype("float32")}
    for seen in (compiled, eager):
        for kind, error in jobs.worst_relative(seen, truth).items():
            assert error < ROUNDING[kind], (kind, error)


def test_what_is_compiled_is_asked_for_by_name() -> None:
    engines = registry.engines()
    for name in TWIN:
        assert engines[name].optional
        assert not engines[name].native
        assert engines[name].phases == ("infer", "train")
        assert {(name, device) for device in ("cpu", "cuda")} <= set(doctor.FIX)
    assert [name for name in engines if name in ("torch", "tf", *TWIN)] == [
        "torch",
        "tf",
        "torch-compile",
        "tf-xla",
    ]


@pytest.mark.parametrize("phase", ["infer", "train"])
def test_xla_computes_what_tensorflow_does(launcher: Launcher, short: str, phase: str) -> None:
    check_twins(launcher, short, "tf-xla", phase)


def test_eager_tensorflow_keeps_its_own_upsampling(short: str) -> None:
    """No function of its own around the kernel, which an exported graph would show."""
    code = f"""
import numpy as np, tensorflow as tf
from xbench import registry
spec = registry.model({short!r})
config = spec.sizes["tiny"]
build = registry.model_part({short!r}, "tf").build
zeros = {{
    p.name: tf.zeros([p.at()[i] for i in p.to_tf_order]) for p in spec.parameters(config)
}}
def ops(xla):
    model = build(config, zeros)
    model.xla = xla
    frames = tf.TensorSpec([2, 2, 16, 16, 3])
    graph = tf.function(model.__call__, autograph=False).get_concrete_function(frames).graph
    return [op.type for op in graph.get_operations()]
plain, xla = ops(False), ops(True)
assert plain.count("ResizeNearestNeighbor") == xla.count("ResizeNearestNeighbor") == 2
assert "IdentityN" not in plain and "IdentityN" in xla
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)


def test_compiling_runs_once_and_puts_the_state_back(short: str, tmp_path: Path) -> None:
    """Training from where ``compile`` left off is training from the start, to the bit."""
    case = jobs.case(short, "tf-xla", "train", batch=2)
    with Launcher() as launcher:
        inputs = jobs.data_file(launcher, case, count=2)
        job = Job(kind="measure", case=case, folder=str(tmp_path), inputs=str(inputs))
        (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
        code = f"""
import msgspec
from pathlib import Path
from xbench import worker
from xbench.jobs import Job
job = msgspec.json.decode(Path({str(tmp_path)!r}, "job.json").read_bytes(), type=Job)
runner, work = worker.runner_of(job), worker.work_of(job)
runner.load(work)
runner.compile()
assert runner.last is not None, "the step ran, which is when XLA compiles"
assert runner.body.experimental_get_tracing_count() == 1
after = runner.train([0, 1])
runner.bind(work.parameters)
fresh = runner.train([0, 1])
assert after.loss == fresh.loss
assert all((after.parameters[k] == v).all() for k, v in fresh.parameters.items())
"""
        subprocess.run(
            [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True
        )


def test_a_step_of_xla_is_one_opaque_operator(launcher: Launcher, short: str) -> None:
    case = jobs.case(short, "tf-xla", "train", batch=2)
    profile = run(launcher, "profile", case, jobs.data_file(launcher, case)).profile
    assert profile is not None
    assert unknown_share(profile) < 0.02, profile.ops
    (launch,) = [op for op in profile.ops if op.op == "XlaLaunch"]
    assert (launch.op_class, launch.count) == ("Opaque", 1)
    assert launch.time_s > 0.5 * sum(op.time_s for op in profile.ops)


@pytest.mark.prove
def test_torch_compile_is_cold_once_and_warm_in_later_processes(
    launcher: Launcher, flat: str, cache: Path
) -> None:
    """And it computes what eager torch does."""
    case = jobs.case(flat, "torch-compile", batch=2, threads=1)
    inputs = jobs.data_file(launcher, case)
    cold, warm = (run(launcher, "measure", case, inputs).measurement for _ in range(2))
    assert cold is not None
    assert warm is not None
    assert (cold.cold, warm.cold) == (True, False)
    assert [path.name for path in cache.iterdir()] == [case.key]
    check_twins(launcher, flat, "torch-compile", "infer")


def test_no_compiler_makes_torch_compile_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    case = Case(model="", size="", phase="infer", engine="torch-compile", device="cpu")
    with Launcher(time_limit_s=120) as launcher:
        report = launcher.run(Job(kind="probe", case=case, folder=str(launcher.folder())))
    assert report.status == "unavailable"
    assert "needs a C++ compiler" in report.reason
    assert "set CXX" in report.reason
    assert "C++ compiler" in doctor.engine_check("torch-compile", "cpu", report).fix


def test_a_compiler_is_found(launcher: Launcher) -> None:
    facts = {}
    for engine in TWIN:
        case = Case(model="", size="", phase="infer", engine=engine, device="cpu")
        report = launcher.run(Job(kind="probe", case=case, folder=str(launcher.folder())))
        assert report.ok, report.reason
        facts[engine] = report.facts
    assert "compiler" in facts["torch-compile"]


@pytest.mark.parametrize("engine", list(TWIN))
def test_importing_leaves_one_thread(engine: str) -> None:
    """What a host is forked with."""
    module = registry.engine(engine).module
    code = f"import {module}, os; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == "1"


@pytest.mark.prove
@pytest.mark.parametrize("phase", ["infer", "train"])
@pytest.mark.parametrize("engine", list(TWIN))
def test_compiled_twins_of_prednet(launcher: Launcher, engine: str, phase: str) -> None:
    check_twins(launcher, "prednet", engine, phase)


@pytest.mark.prove
@pytest.mark.parametrize("phase", ["infer", "train"])
def test_kernels_of_torch_compile_have_names(launcher: Launcher, phase: str) -> None:
    case = jobs.case("prednet", "torch-compile", phase)
    profile = run(launcher, "profile", case, jobs.data_file(launcher, case)).profile
    assert profile is not None
    assert unknown_share(profile) < 0.02, profile.ops
    fused = [op for op in profile.ops if "cpp_fused" in op.op]
    assert fused
    assert {op.op_class for op in fused} == {"Opaque"}
    stages = {"infer": {"forward"}, "train": {"forward", "backward"}}
    assert {op.stage for op in fused} == stages[phase]
