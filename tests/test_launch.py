"""A fresh process for every job, and an end for every process: against planted faults."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests import command
from tests.command import alive, wait_until
from xbench import launch, registry, tensors
from xbench.bench import Settings
from xbench.errors import XbenchError
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.spec import Case

FRESH = ("fork", "spawn")
SETTINGS = Settings(budget_s=0.01)


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    yield
    command.sweep()


def job(launcher: Launcher, kind: str = "measure", engine: str = "fake", **options: str) -> Job:
    case = Case(
        model="prednet", size="tiny", phase="infer", engine=engine, device="cpu", options=options
    )
    folder = launcher.folder()
    frames = np.linspace(0, 1, 4 * 3 * 32 * 40, dtype=np.float32).reshape(1, 4, 3, 32, 40)
    tensors.save_batches(folder / "inputs.npz", [{"frames": frames}])
    return Job(
        kind=kind,
        case=case,
        folder=str(folder),
        inputs=str(folder / "inputs.npz"),
        settings=SETTINGS,
    )


def pids(launcher: Launcher) -> tuple[int, int]:
    """The processes of a new job and of its parent, from the noise that it makes."""
    report = launcher.run(job(launcher, fail="noise"))
    assert report.ok, report.reason
    found = re.search(r"in process (\d+) of (\d+)", (Path(report.folder) / "log.txt").read_text())
    assert found
    return int(found[1]), int(found[2])


def in_thread(call: Callable[[], Report]) -> tuple[threading.Thread, list[Report]]:
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(call()))
    thread.start()
    return thread, reports


@pytest.mark.parametrize("fresh", FRESH)
def test_every_job_has_a_process_of_its_own(fresh: str) -> None:
    with Launcher(fresh=fresh) as launcher:
        (first, host), (second, same) = pids(launcher), pids(launcher)
    assert first != second
    assert os.getpid() not in (first, second)
    assert host == same
    assert (host == os.getpid()) == (fresh == "spawn")


@pytest.mark.parametrize("fresh", FRESH)
def test_the_next_job_outlives_a_fault(fresh: str) -> None:
    expected = {
        "crash": ("crashed", "ended by SIGABRT"),
        "kill": ("crashed", "ended by SIGKILL"),
        "exit": ("crashed", "exit code 7: the fake runner's last words"),
        "raise": ("failed", "ValueError: the fake runner was told to fail"),
        "oom": ("out_of_memory", "run out of memory"),
        "unavailable": ("unavailable", "told to be unavailable"),
    }
    with Launcher(fresh=fresh) as launcher:
        _, host = pids(launcher)
        for fault, (status, reason) in expected.items():
            report = launcher.run(job(launcher, fail=fault))
            assert (report.status, reason in report.reason) == (status, True), report
        assert pids(launcher)[1] == host
    wait_until(lambda: not alive())


def test_a_host_that_dies_in_a_job_is_replaced() -> None:
    with Launcher() as launcher:
        thread, reports = in_thread(lambda: launcher.run(job(launcher, duration_s="3600")))
        wait_until(lambda: "fake" in launcher.hosts and launcher.hosts["fake"].child)
        host = launcher.hosts["fake"]
        os.kill(host.process.pid, signal.SIGKILL)
        thread.join()
        assert (reports[0].status, "host was ended by SIGKILL" in reports[0].reason) == (
            "crashed",
            True,
        )
        wait_until(lambda: not alive())
        assert pids(launcher)[1] != host.process.pid


def test_a_host_that_dies_between_jobs_is_replaced_at_once() -> None:
    with Launcher() as launcher:
        _, host = pids(launcher)
        os.kill(host, signal.SIGKILL)
        launcher.hosts["fake"].process.wait()
        assert pids(launcher)[1] != host


@pytest.mark.parametrize("fresh", FRESH)
def test_past_the_time_limit_nothing_of_a_job_is_left(fresh: str) -> None:
    with Launcher(fresh=fresh) as launcher:
        _, host = pids(launcher)
        launcher.time_limit_s = 2.0
        thread, reports = in_thread(lambda: launcher.run(job(launcher, fail="hang")))
        wait_until(lambda: alive("sleep"))
        thread.join()
        wait_until(lambda: {p.pid for p in alive()} <= {host})
        assert reports[0].status == "timeout"
        assert "time limit of 2 s" in reports[0].reason
        assert pids(launcher)[1] == host


@pytest.mark.parametrize("fresh", FRESH)
def test_what_a_job_leaves_behind_goes_with_it(fresh: str) -> None:
    # The worker's own child, a `sleep`, outlives a worker that is killed alone.
    with Launcher(fresh=fresh) as launcher:
        thread, reports = in_thread(lambda: launcher.run(job(launcher, fail="hang")))
        wait_until(lambda: alive("sleep"))
        worker = alive("sleep")[0].ppid()
        os.kill(worker, signal.SIGKILL)
        thread.join()
        assert reports[0].status == "crashed"
        wait_until(lambda: not alive("sleep"))


@pytest.mark.parametrize("fresh", FRESH)
def test_close_from_another_thread_ends_a_job(fresh: str) -> None:
    launcher = Launcher(fresh=fresh)
    thread, reports = in_thread(lambda: launcher.run(job(launcher, fail="hang")))
    wait_until(lambda: alive("sleep"))
    late = job(launcher)
    launcher.close()
    thread.join()
    assert reports[0].status == "interrupted"
    assert launcher.run(late).status == "interrupted"
    assert not Path(launcher.scratch.name).exists()
    wait_until(lambda: not alive())
    launcher.close()


def test_nothing_is_started_by_a_launcher_that_was_stopped() -> None:
    with Launcher() as launcher:
        late = Path(job(launcher).folder) / "job.json"
        launcher.stop()
        for start in (launcher.spawn, partial(launcher.fork, "fake")):
            with pytest.raises(launch.Stopped):
                start(late, 60.0)
    assert alive() == []


@pytest.mark.parametrize("fresh", FRESH)
def test_close_at_any_moment_leaves_nothing(fresh: str) -> None:
    for delay_s in (0.0, 0.01, 0.1, 0.2):
        launcher = Launcher(fresh=fresh)
        hanging = job(launcher, fail="hang")
        thread, reports = in_thread(lambda held=hanging, by=launcher: by.run(held))  # type: ignore[misc]
        time.sleep(delay_s)
        launcher.close()
        thread.join()
        assert reports[0].status == "interrupted"
    wait_until(lambda: not alive())


@pytest.mark.parametrize("fresh", FRESH)
@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_in_a_job_ends_its_processes(fresh: str, threads: int) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        wait_until(lambda: alive("sleep"))
        signal.pthread_kill(main, signal.SIGINT)

    with Launcher(fresh=fresh) as launcher:
        hanging = job(launcher, fail="hang")
        thread = threading.Thread(target=press)
        thread.start()
        wait = partial(launcher.map, launcher.run, [hanging], threads) if threads else None
        with pytest.raises(KeyboardInterrupt):
            wait() if wait else launcher.run(hanging)
        thread.join()
        # Before the launcher is closed.
        wait_until(lambda: not alive())


@pytest.mark.parametrize("fresh", FRESH)
def test_noise_of_a_job_is_heard_nowhere(fresh: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Launcher(fresh=fresh) as launcher:
        report = launcher.run(job(launcher, fail="noise"))
    assert report.ok, report.reason
    assert report.measurement is not None
    assert capfd.readouterr() == ("", "")


def test_forked_and_spawned_jobs_compute_from_the_same() -> None:
    digests = []
    for fresh in FRESH:
        with Launcher(fresh=fresh) as launcher:
            digests.append(launcher.run(job(launcher)).digests)
    assert digests[0] == digests[1]
    assert set(digests[0]) == {"parameters", "inputs"}


@pytest.mark.parametrize("fresh", FRESH)
def test_an_engine_that_cannot_be_imported_is_unavailable(
    fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "path" / "xbench"
    runners = package / "runners"
    runners.mkdir(parents=True)
    root = registry.ROOT
    for source, target in ((root, package), (root / "runners", runners)):
        for path in source.iterdir():
            if path.name not in ("runners", "__pycache__"):
                (target / path.name).symlink_to(path.resolve())
    (runners / "broken.py").write_text('import not_there\nENGINES = {"broken": {}}\n')
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    engine = registry.Engine(name="broken", module="xbench.runners.broken")
    monkeypatch.setattr(registry, "engine", lambda name: engine)
    with Launcher(fresh=fresh) as launcher:
        for _ in range(2):
            report = launcher.run(job(launcher, "probe", engine="broken"))
            assert report.status == "unavailable", report
            assert report.reason.startswith("cannot import not_there: ")


def test_a_file_of_the_user_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("statistics.py", "ctypes.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.chdir(tmp_path)
    for fresh in FRESH:
        with Launcher(fresh=fresh) as launcher:
            report = launcher.run(job(launcher))
            assert report.ok, report.reason


def test_map_keeps_order_and_gives_up_together() -> None:
    with Launcher() as launcher:
        assert launcher.map(lambda x: x * x, [1, 2, 3]) == [1, 4, 9]
        hanging = job(launcher, fail="hang")

        def one(which: int) -> Report:
            if which == 0:
                return launcher.run(hanging)
            wait_until(lambda: alive("sleep"))
            raise ValueError("planted")

        with ThreadPoolExecutor(1) as pool:
            # In a thread: where map waits for the job, this test fails instead of hanging.
            waiting = pool.submit(launcher.map, one, [0, 1])
            try:
                with pytest.raises(ValueError, match="planted"):
                    waiting.result(command.PATIENCE_S)
            finally:
                launcher.stop()
        wait_until(lambda: not alive())


def test_any_end_of_a_process_is_a_report(tmp_path: Path) -> None:
    with Launcher() as launcher:
        folder = launcher.folder()
        assert launcher.outcome(folder, 0, 60.0).reason.endswith("exit code 0: it left no message")
        (folder / "log.txt").write_bytes(b"first\nlast \xff words\n\n")
        assert launcher.outcome(folder, 3, 60.0).reason.endswith("exit code 3: last \ufffd words")
        for number in range(1, 65):
            report = launcher.outcome(folder, -number, 60.0)
            assert report.status == "crashed"
            assert "was ended by " in report.reason
        (folder / "report.json").write_text('{"loss": [null]}')
        report = launcher.outcome(folder, 0, 60.0)
        assert (report.status, "cannot be read" in report.reason) == ("failed", True)


def test_a_folder_that_is_gone_is_a_report_or_an_error() -> None:
    with Launcher() as launcher:
        lost = job(launcher)
        launcher.scratch.cleanup()
        report = launcher.run(lost)
        assert (report.status, "cannot run a process" in report.reason) == ("failed", True)
        with pytest.raises(XbenchError, match="temporary files"):
            launcher.folder()


def test_no_place_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "below"))
    with pytest.raises(XbenchError, match="set TMPDIR"):
        Launcher()


def test_the_longest_time_limit_is_one_the_system_takes() -> None:
    with Launcher(time_limit_s=1e300) as launcher:
        assert launcher.run(job(launcher)).ok
    assert launcher.time_limit_s == launch.LONGEST_S
