"""The parent side: a fresh process for every job, under a time limit, its end always a report.

Engines that can be forked have a host each, which imports the framework once (2-4 s) and forks a
child per job (0.05 s). Others are spawned. CUDA is always spawned: a context does not survive a
fork, and no GPU has confirmed yet that a host which never touched CUDA is safe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec

from xbench import registry
from xbench.errors import XbenchError
from xbench.jobs import REPORT, Job, Report
from xbench.worker import HANDSHAKE

START_LIMIT_S = 120.0
"""A host that has not imported its framework by then is taken for dead."""


class HostDied(Exception):
    """The host ended or could not start; the reason is its message."""


class Host:
    """A process that has imported one engine's framework and forks a child per job."""

    def __init__(self, engine: str, log: Path) -> None:
        self.log = log
        # Unbuffered, or select() would not see a line that was read ahead.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "xbench.worker", "--host", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            env=worker_environment() | {"OPENBLAS_NUM_THREADS": "1"},
            bufsize=0,
            start_new_session=True,
        )
        self.child: int | None = None
        if self.read_line(START_LIMIT_S) != HANDSHAKE:
            raise HostDied(f"the host of {engine} did not start: {last_line(log)}")

    def read_line(self, limit_s: float) -> str | None:
        """The next line the host says; None when the limit passed. Raises HostDied at its end."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise HostDied(f"the host ended: {last_line(self.log)}")
        return line.decode().strip()

    def run(self, job_file: Path, limit_s: float) -> int | None:
        """Fork a child for the job; its exit code (negative: a signal), None when it timed out."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{job_file}\n".encode())
        except OSError as error:
            raise HostDied(f"the host ended: {last_line(self.log)}") from error
        line = self.read_line(START_LIMIT_S)
        if line is None or not line.startswith("pid "):
            raise HostDied(f"the host did not fork: {last_line(self.log)}")
        self.child = int(line.split()[1])
        timed_out = False
        line = self.read_line(limit_s)
        if line is None:
            timed_out = True
            kill_group(self.child)
            line = self.read_line(START_LIMIT_S)
        self.child = None
        if line is None:
            raise HostDied("the host did not notice that its child was killed")
        return None if timed_out else int(line.split()[1])

    def close(self) -> None:
        if self.child is not None:
            kill_group(self.child)
        kill_group(self.process.pid)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Launcher:
    """Runs jobs. ``fresh``: ``fork`` where the engine can, or ``spawn`` always.

    A context manager; leaving it ends every process it started. Safe to use from one thread per
    engine.
    """

    def __init__(self, *, fresh: str = "fork", time_limit_s: float = 600.0) -> None:
        self.fresh = fresh
        self.time_limit_s = time_limit_s
        self.closed = False
        self.hosts: dict[str, Host] = {}
        self.locks: dict[str, threading.Lock] = {}
        self.spawned: set[subprocess.Popen[bytes]] = set()
        self.guard = threading.Lock()
        try:
            self.scratch = tempfile.TemporaryDirectory(prefix="xbench-")
        except OSError as error:
            raise XbenchError(
                f"cannot write to the folder for temporary files: {error}; set TMPDIR to another"
            ) from error
        self.counter = 0

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs and forget the scratch files. Idempotent."""
        self.closed = True
        with self.guard:
            hosts, spawned = list(self.hosts.values()), list(self.spawned)
            self.hosts.clear()
        for host in hosts:
            host.close()
        for process in spawned:
            kill_group(process.pid)
            process.wait()
        self.scratch.cleanup()

    def folder(self) -> Path:
        """A new empty folder for a job. Raises XbenchError where none can be made."""
        with self.guard:
            self.counter += 1
            path = Path(self.scratch.name) / f"job-{self.counter}"
        try:
            path.mkdir()
        except OSError as error:
            raise XbenchError(f"cannot make a folder for temporary files: {error}") from error
        return path

    def run(self, job: Job) -> Report:
        """Do ``job`` in a fresh process. Crash, kill, timeout: always a report, never raises."""
        if self.closed:
            return Report(status="interrupted", reason="stopped before it began")
        engine = registry.engine(job.case.engine)
        folder = Path(job.folder)
        job_file = folder / "job.json"
        try:
            job_file.write_bytes(msgspec.json.encode(job))
            if engine.fork and self.fresh == "fork" and job.case.device == "cpu":
                code = self.fork(engine.name, job_file)
            else:
                code = self.spawn(job_file)
        except HostDied as error:
            status = "unavailable" if "No module named" in str(error) else "crashed"
            return Report(status=status, reason=str(error), folder=str(folder))
        except OSError as error:
            return Report(status="failed", reason=f"cannot run a process: {error}")
        return self.outcome(folder, code)

    def fork(self, engine: str, job_file: Path) -> int | None:
        with self.guard:
            lock = self.locks.setdefault(engine, threading.Lock())
        with lock:
            host = self.hosts.get(engine)
            if host is None or host.process.poll() is not None:
                host = Host(engine, Path(self.scratch.name) / f"host-{engine}.log")
                with self.guard:
                    self.hosts[engine] = host
            try:
                return host.run(job_file, self.time_limit_s)
            except HostDied:
                self.hosts.pop(engine, None)
                host.close()
                raise

    def spawn(self, job_file: Path) -> int | None:
        log = (job_file.parent / "log.txt").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "xbench.worker", str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=worker_environment(),
            start_new_session=True,
        )
        log.close()
        with self.guard:
            self.spawned.add(process)
        try:
            return process.wait(self.time_limit_s)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.wait()
            return None
        except BaseException:
            kill_group(process.pid)
            raise
        finally:
            with self.guard:
                self.spawned.discard(process)

    def outcome(self, folder: Path, code: int | None) -> Report:
        """The report of a finished job: its own, or one that says how its process ended."""
        log = folder / "log.txt"
        if code is None:
            reason = f"no result within the time limit of {self.time_limit_s:g} s"
            return Report(status="timeout", reason=reason, folder=str(folder))
        path = folder / REPORT
        if code == 0 and path.exists():
            report = msgspec.json.decode(path.read_bytes(), type=Report)
            return msgspec.structs.replace(report, folder=str(folder))
        if code < 0:
            name = signal.Signals(-code).name
            hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
            reason = f"the process was ended by {name}{hint}"
        else:
            reason = f"the process ended with exit code {code}: {last_line(log)}"
        return Report(status="crashed", reason=reason, folder=str(folder))


def worker_environment() -> dict[str, str]:
    """The environment of a worker: the parent's, with framework chatter turned down."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    return quiet | dict(os.environ)


def kill_group(pid: int) -> None:
    """SIGKILL to a process and what it started; nothing if it has ended."""
    # Both: a child that was just forked may not lead its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except OSError:
        lines = []
    return next((line for line in reversed(lines) if line), "it left no message")
