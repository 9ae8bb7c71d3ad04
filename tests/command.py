"""The command line as its users start it, and the processes that a test must not leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from xbench import cli

TINY = ("run", "prednet", "--size", "tiny", "--engine", "fake", "--ep", "cpu", "--steps", "1")
QUICK = (*TINY, "--rounds", "2", "--budget", "0.05")
BRIEF = (*TINY, "--rounds", "1", "--budget", "0.02", "--phase", "infer")
PATIENCE_S = 180.0
"""Far beyond what anything here takes: reached only by what hangs."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def environment(fake: dict[str, str] | None, more: dict[str, str]) -> dict[str, str]:
    scratch().mkdir(exist_ok=True)
    asked = {"XBENCH_FAKE": json.dumps(fake)} if fake else {}
    return dict(os.environ) | {"TMPDIR": str(scratch())} | asked | more


def scratch() -> Path:
    """Where the commands of this test put their temporary files."""
    return Path(os.environ["XBENCH_STORE"]).with_name("temporary")


def line(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "xbench.cli", *arguments]


def run(*arguments: str, fake: dict[str, str] | None = None, **more: str) -> Done:
    """A command from start to end; ``fake`` steers the fake runner, ``more`` is environment."""
    done = subprocess.run(
        line(*arguments),
        env=environment(fake, more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def here(capfd: pytest.CaptureFixture[str], *arguments: str) -> Done:
    """A command in this process, which has its start-up behind it: for what is to be refused."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["xbench", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    signal.signal(signal.SIGTERM, before)
    assert isinstance(ended.value.code, int)
    return Done(ended.value.code, *capfd.readouterr())


@contextmanager
def started(*arguments: str, fake: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running command; whatever is left of it goes at the end."""
    process = subprocess.Popen(
        line(*arguments),
        env=environment(fake, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        sweep()


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=PATIENCE_S)
    return Done(process.returncode, out, err)


def alive(name: str = "") -> list[psutil.Process]:
    """Processes that this test started, in whatever generation; those called ``name`` if given.

    They are known by the store that the test told them of.
    """
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("XBENCH_STORE") == os.environ["XBENCH_STORE"]
            if mine and process.pid != os.getpid() and name in process.name():
                found.append(process)
        except psutil.Error:
            continue  # It ended meanwhile, or is another user's.
    return found


def sweep() -> None:
    """End what a test that failed has left behind."""
    for process in alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def wait_until(happened: Callable[[], object]) -> None:
    """Poll; fail the test where it does not happen."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
