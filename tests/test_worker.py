"""The child side, spoken to directly: what it reports, and that it does not outlive its parent."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import PATIENCE_S, alive, sweep, wait_until
from xbench import errors, tensors, worker
from xbench.bench import Settings
from xbench.jobs import Job, Report
from xbench.result import STATUSES
from xbench.spec import Case

WORKER = [sys.executable, "-P", "-m", "xbench.worker"]


def make(folder: Path, kind: str = "measure", **fields: object) -> Job:
    """A job in ``folder``, where the worker finds it in a file."""
    folder.mkdir(exist_ok=True)
    frames = np.linspace(0, 1, 4 * 3 * 32 * 40, dtype=np.float32).reshape(1, 4, 3, 32, 40)
    tensors.save_batches(folder / "inputs.npz", [{"frames": frames}])
    case = {"model": "prednet", "size": "tiny", "phase": "infer", "engine": "fake"}
    names = [name for name in fields if name in Case.__struct_fields__]
    chosen = Case(device="cpu", **case | {name: fields.pop(name) for name in names})  # type: ignore[arg-type]
    job = Job(
        kind=kind,
        case=chosen,
        folder=str(folder),
        inputs=str(folder / "inputs.npz"),
        settings=Settings(budget_s=0.01),
        **fields,  # type: ignore[arg-type]
    )
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    return job


def done(folder: Path, kind: str, **fields: object) -> Report:
    """The report of a job that is done in this process."""
    make(folder, kind, **fields)
    worker.run(folder / "job.json")
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)


# -- reports ---------------------------------------------------------------------------------------


def test_measure_reports_samples_and_where_from(tmp_path: Path) -> None:
    report = done(tmp_path, "measure", process=4, round=2)
    assert report.ok, report.reason
    assert report.measurement is not None
    samples = report.measurement.samples
    assert (samples.process, samples.round) == (4, 2)
    assert len(samples.values_s) >= 3
    assert min(samples.values_s) > 0
    assert report.measurement.compile_s is None
    assert set(report.digests) == {"parameters", "inputs"}


def test_observe_leaves_tensors_and_a_spread(tmp_path: Path) -> None:
    fields = {"phase": "train", "parameter_set": "probe", "perturbations": 3, "follow_loss": True}
    report = done(tmp_path, "observe", **fields)
    assert report.ok, report.reason
    assert report.draws == 3
    assert len(report.loss) == 1
    seen = tensors.load(tmp_path / "tensors.npz")
    assert set(report.spread) == set(seen)
    assert {name.split("/")[0] for name in seen} == {"loss", "gradients", "trajectory"}


def test_a_loss_that_is_not_finite_fails_the_case(tmp_path: Path) -> None:
    report = done(
        tmp_path, "observe", phase="train", options={"error": "nan"}, follow_loss=True
    )  # fmt: skip
    assert report.status == "failed"
    assert "loss is not finite" in report.reason


@pytest.mark.parametrize("draws", ["native", "fed"])
@pytest.mark.parametrize("kind", sorted(worker.KINDS))
def test_what_is_timed_draws_its_masks_and_what_is_compared_is_fed_them(
    tmp_path: Path, kind: str, draws: str
) -> None:
    names = ("image", "label", "dropout6", "dropout7")

    def given_to(phase: str) -> set[str]:
        fields = {"model": "vgg", "phase": phase, "draws": draws}
        job = make(tmp_path, kind, **fields)
        tensors.save_batches(tmp_path / "inputs.npz", [{n: np.ones(1, np.float32) for n in names}])
        return set(worker.work_of(job).batches[0])

    drawn = draws == "native" and kind in ("measure", "soak", "profile")
    assert given_to("train") == ({"image", "label"} if drawn else set(names))
    assert given_to("infer") == {"image"}


@pytest.mark.parametrize("draws", ["native", "fed"])
@pytest.mark.parametrize("kind", sorted(worker.KINDS))
def test_what_is_timed_has_the_native_loss_and_what_is_compared_the_written_one(
    tmp_path: Path, kind: str, draws: str
) -> None:
    fields = {"model": "speech", "phase": "train", "draws": draws, "loss": "ctc"}
    job = make(tmp_path, kind, **fields)
    tensors.save_batches(tmp_path / "inputs.npz", [{"features": np.ones(1, np.float32)}])
    native = draws == "native" and kind in ("measure", "soak", "profile")
    assert worker.work_of(job).case.loss == ("ctc-native" if native else "ctc")
    assert job.case.loss == "ctc"


def test_probe_reports_the_environment(tmp_path: Path) -> None:
    report = done(tmp_path, "probe")
    assert report.facts["fake"] == "yes"
    assert report.facts["numpy"] == np.__version__


def test_profile_reports_its_steps(tmp_path: Path) -> None:
    report = done(tmp_path, "profile", profile_steps=7)
    assert report.profile is not None
    assert report.profile.steps == 7


def test_the_report_appears_whole(tmp_path: Path) -> None:
    done(tmp_path, "probe")
    assert not list(tmp_path.glob("*.partial"))


@given(
    st.sampled_from(
        [
            MemoryError,
            ValueError,
            RuntimeError,
            ImportError,
            ModuleNotFoundError,
            OSError,
            errors.EngineError,
            errors.Unavailable,
            errors.Unsupported,
            errors.FellBack,
            errors.ExportFailed,
            type("OutOfMemoryError", (RuntimeError,), {}),
        ]
    ),
    st.text(),
)
def test_every_error_has_a_status_and_a_reason(kind: type[Exception], text: str) -> None:
    status, reason = worker.status_of(kind(text))
    assert status in STATUSES
    assert status not in ("ok", "crashed", "timeout", "interrupted")
    memory = kind.__name__ in ("MemoryError", "OutOfMemoryError")
    assert (status == "out_of_memory") == memory
    assert (status == "unavailable") == issubclass(kind, ImportError | errors.Unavailable)
    assert reason or (issubclass(kind, errors.EngineError) and not text)


# -- processes -------------------------------------------------------------------------------------


class Host:
    """A host process, spoken to line by line."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*WORKER, "--host", "fake"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "the host is silent"
        return self.process.stdout.readline().decode().strip()

    def ask(self, folder: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder / 'job.json'}\n".encode())

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def hosting() -> Iterator[Host]:
    host = Host()
    try:
        yield host
    finally:
        host.process.kill()
        host.process.wait()
        for pipe in (host.process.stdin, host.process.stdout):
            assert pipe is not None
            pipe.close()
        sweep()


def test_a_host_speaks_a_line_per_event(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two", options={"fail": "exit"})
    with hosting() as host:
        assert host.hear() == worker.HANDSHAKE
        ends = []
        for name in ("one", "two"):
            host.ask(tmp_path / name)
            assert host.hear().startswith("pid ")
            ends.append(host.hear())
        assert ends == ["exit 0", "exit 7"]
        host.hang_up()
        assert host.process.wait(PATIENCE_S) == 0
        assert host.hear() == ""
    assert (tmp_path / "one" / "report.json").exists()
    assert not (tmp_path / "two" / "report.json").exists()


def test_a_job_that_cannot_be_read_says_why_in_its_log(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "job.json").write_text("{")
    with hosting() as host:
        host.hear()
        host.ask(tmp_path)
        assert host.hear().startswith("pid ")
        assert host.hear() == "exit 1"
    assert "DecodeError" in (tmp_path / "log.txt").read_text()


def test_when_the_parent_goes_the_host_its_job_and_all_of_it_go(tmp_path: Path) -> None:
    make(tmp_path, options={"fail": "hang"})
    with hosting() as host:
        host.hear()
        host.ask(tmp_path)
        host.hear()
        wait_until(lambda: alive("sleep"))
        host.hang_up()
        wait_until(lambda: not [p for p in alive() if p.pid != host.process.pid])
        host.process.wait(PATIENCE_S)


def test_when_the_host_is_killed_its_job_goes(tmp_path: Path) -> None:
    make(tmp_path, options={"duration_s": "3600"})
    with hosting() as host:
        host.hear()
        host.ask(tmp_path)
        assert host.hear().startswith("pid ")
        host.process.kill()
        host.process.wait()
        wait_until(lambda: not alive())


def test_a_worker_whose_parent_is_gone_does_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    job = str(tmp_path / "job.json")
    assert subprocess.run([*WORKER, job, "1"], timeout=PATIENCE_S, check=False).returncode == 1
    assert not (tmp_path / "report.json").exists()
    me = str(os.getpid())
    assert subprocess.run([*WORKER, job, me], timeout=PATIENCE_S, check=False).returncode == 0
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize("name", ["missing", ""])
def test_an_engine_nobody_knows_is_a_failed_job(tmp_path: Path, name: str) -> None:
    report = done(tmp_path, "probe", engine=name)
    assert report.status == "failed"
    assert "unknown engine" in report.reason
