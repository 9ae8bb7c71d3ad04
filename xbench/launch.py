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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Self, TypeVar

import msgspec

from xbench import registry
from xbench.errors import XbenchError
from xbench.jobs import REPORT, Job, Report
from xbench.worker import HANDSHAKE, kill_group

T = TypeVar("T")
R = TypeVar("R")

START_LIMIT_S = 120.0
"""A host that has not imported its framework by then is taken for dead."""
COMPILE_CACHE = "XBENCH_COMPILE_CACHE"
"""Where engines that compile keep what they have compiled."""
LONGEST_S = 1e8
"""Three years: no time limit is longer, or the system would refuse it."""


class HostDied(Exception):
    """The host ended or could not start: why, and the ``status`` that gives its job."""

    def __init__(self, reason: str, status: str = "crashed") -> None:
        super().__init__(reason)
        self.status = status


class Stopped(Exception):
    """The launcher was stopped: it starts nothing any more."""


class Host:
    """A process that has imported one engine's framework and forks a child per job."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.child: int | None = None

    def greet(self) -> None:
        """Wait until the framework is imported. Raises HostDied with the reason if it cannot be."""
        line = self.read_line(START_LIMIT_S)
        if line is None:
            raise HostDied(f"the host did not start within {START_LIMIT_S:g} s")
        if line != HANDSHAKE:
            status, _, reason = line.partition(" ")
            raise HostDied(reason, status)

    def read_line(self, limit_s: float) -> str | None:
        """The next line the host says; None when the limit passed. Raises HostDied at its end."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return None
        line = self.process.stdout.readline()
        if not line:
            raise HostDied(f"its host {ended(self.process.wait(), self.log)}")
        return line.decode().strip()

    def run(self, job_file: Path, limit_s: float) -> int | None:
        """Fork a child for the job; its exit code (negative: a signal), None when it timed out."""
        assert self.process.stdin is not None
        # A host that has died is noticed, with its reason, by the read that follows.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{job_file}\n".encode())
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

    def kill(self) -> None:
        """End the host and its child. The pipes stay open for a thread that reads from them."""
        if self.child is not None:
            kill_group(self.child)
        kill_group(self.process.pid)

    def close(self) -> None:
        """End everything; only where no other thread uses this host."""
        self.kill()
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
        # Waiting for one of several processes, as a host does, takes Linux.
        self.forks = fresh == "fork" and hasattr(os, "pidfd_open")
        self.time_limit_s = min(time_limit_s, LONGEST_S)
        self.stopped = False
        self.hosts: dict[str, Host] = {}
        self.locks: dict[str, threading.Lock] = {}
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.guard = threading.Lock()
        try:
            self.scratch = tempfile.TemporaryDirectory(prefix="xbench-", ignore_cleanup_errors=True)
        except OSError as error:
            raise XbenchError(
                f"cannot write to the folder for temporary files: {error}; set TMPDIR to another"
            ) from error
        self.counter = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and forget the scratch files. Idempotent."""
        try:
            self.stop()
        finally:
            self.scratch.cleanup()

    def stop(self) -> None:
        """Kill what still runs, in whatever thread; jobs from now on end as ``interrupted``."""
        with self.guard:
            self.stopped = True
            processes = list(self.processes)
            hosts = list(self.hosts.items())
        for _, host in hosts:
            host.kill()
        for process in processes:
            kill_group(process.pid)
        # With their processes gone, the threads that wait for them let go of the locks.
        for engine, host in hosts:
            with self.locks[engine]:
                self.drop(engine, host)

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

    def map(self, function: Callable[[T], R], items: Sequence[T], threads: int = 2) -> list[R]:
        """``function`` of every item, in threads that run jobs.

        Where it raises, or Ctrl-C is pressed, the launcher stops first: nobody waits for jobs.
        """
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(function, item) for item in items]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                self.stop()
                raise
        return [future.result() for future in futures]

    def run(self, job: Job) -> Report:
        """Do ``job`` in a fresh process. Crash, kill, timeout: always a report, never raises."""
        engine = registry.engine(job.case.engine)
        folder = Path(job.folder)
        job_file = folder / "job.json"
        limit_s = self.time_limit_s + job.extra_s
        try:
            if self.stopped:
                raise Stopped
            job_file.write_bytes(msgspec.json.encode(job))
            # An export takes long and nobody times it: the host stays free for its neighbours.
            forks = engine.fork and self.forks and job.kind != "export"
            if forks and job.case.device == "cpu":
                code = self.fork(engine.name, job_file, limit_s)
            else:
                code = self.spawn(job_file, limit_s)
            report = self.outcome(folder, code, limit_s)
        except HostDied as error:
            report = Report(status=error.status, reason=str(error), folder=str(folder))
        except OSError as error:
            report = Report(status="failed", reason=f"cannot run a process: {error}")
        except Stopped:
            return Report(status="interrupted", reason="stopped before it began")
        if self.stopped and not report.ok:
            return Report(status="interrupted", reason="stopped while it ran")
        return report

    def fork(self, engine: str, job_file: Path, limit_s: float) -> int | None:
        """Run the job in a child of the engine's host."""
        with self.guard:
            lock = self.locks.setdefault(engine, threading.Lock())
        with lock:
            host = self.hosts.get(engine)
            if host is not None and host.process.poll() is not None:
                self.drop(engine, host)
                host = None
            fresh = host is None
            if host is None:
                host = self.start_host(engine)
            try:
                if fresh:
                    host.greet()
                return host.run(job_file, limit_s)
            except BaseException:
                # Whatever the host is doing now, nobody will hear of it.
                self.drop(engine, host)
                raise

    def environment(self) -> dict[str, str]:
        """The environment of a worker; compiled code is kept for this command, and only for it.

        So the first process of a case pays for compiling with an empty cache, the next ones not.
        """
        cache = Path(self.scratch.name) / "compiled"
        # numpy's own pool is not what is measured: without it a host has one thread when it forks.
        alone = {"OPENBLAS_NUM_THREADS": "1"}
        return {COMPILE_CACHE: str(cache)} | worker_environment() | alone

    def start_host(self, engine: str) -> Host:
        """Start the host of an engine."""
        log = Path(self.scratch.name) / f"host-{engine}.log"
        with log.open("wb") as file:
            process = self.start(
                ["--host", engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=self.environment(),
            )
        host = Host(process, log)
        with self.guard:
            self.hosts[engine] = host
        return host

    def drop(self, engine: str, host: Host) -> None:
        """End a host and forget it. The caller holds the engine's lock."""
        host.close()
        with self.guard:
            self.processes.discard(host.process)
            if self.hosts.get(engine) is host:
                del self.hosts[engine]

    def spawn(self, job_file: Path, limit_s: float) -> int | None:
        """Run the job in a new interpreter."""
        with (job_file.parent / "log.txt").open("ab") as log:
            process = self.start(
                [str(job_file), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
            )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also what the worker started and left behind.
            kill_group(process.pid)
            process.wait()
            with self.guard:
                self.processes.discard(process)

    def start(
        self,
        arguments: list[str],
        *,
        stdin: int,
        stdout: IO[bytes] | int,
        stderr: IO[bytes],
        env: dict[str, str],
    ) -> subprocess.Popen[bytes]:
        """Start a worker, known to ``stop`` from its first moment. Raises Stopped after that."""
        with self.guard:
            if self.stopped:
                raise Stopped
            process = subprocess.Popen(
                # -P: a file in the user's folder must not stand in for a module of the same name.
                [sys.executable, "-P", "-m", "xbench.worker", *arguments],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                # Unbuffered, or select() would not see a line that was read ahead.
                bufsize=0,
                start_new_session=True,
            )
            self.processes.add(process)
        return process

    def outcome(self, folder: Path, code: int | None, limit_s: float) -> Report:
        """The report of a finished job: its own, or one that says how its process ended."""
        log = folder / "log.txt"
        if code is None:
            reason = f"no result within the time limit of {limit_s:g} s"
            return Report(status="timeout", reason=reason, folder=str(folder))
        path = folder / REPORT
        if code == 0 and path.exists():
            try:
                report = msgspec.json.decode(path.read_bytes(), type=Report)
            except msgspec.MsgspecError as error:
                reason = f"its report cannot be read: {error}"
                return Report(status="failed", reason=reason, folder=str(folder))
            return msgspec.structs.replace(report, folder=str(folder))
        reason = f"the process {ended(code, log)}"
        return Report(status="crashed", reason=reason, folder=str(folder))


def ended(code: int, log: Path) -> str:
    """How a process ended, in words: by which signal, or with which last words."""
    if code >= 0:
        return f"ended with exit code {code}: {last_line(log)}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # Real-time signals have no names.
        name = f"signal {-code}"
    hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def worker_environment() -> dict[str, str]:
    """The environment of a worker: the parent's, with framework chatter turned down."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    return quiet | dict(os.environ)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except OSError:
        lines = []
    return next((line for line in reversed(lines) if line), "it left no message")
