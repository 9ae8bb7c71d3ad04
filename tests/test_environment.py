"""What an engine runs in, read from files made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xbench import environment, machine


@pytest.mark.parametrize(
    ("affinity", "quota", "cpus"),
    [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (2, 8.0, 2), (4, 0.5, 1), (1, None, 1)],
)
def test_usable_cpus_are_the_affinity_capped_by_the_quota(
    affinity: int, quota: float | None, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(machine, "quota", lambda: quota)
    assert environment.usable_cpus() == cpus


def test_without_affinity_the_count_of_the_host_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machine, "quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert environment.usable_cpus() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert environment.usable_cpus() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_real_affinity_is_seen() -> None:
    code = (
        "import os; from xbench.environment import usable_cpus\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(usable_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_versions_of_what_is_installed_and_of_nothing_else() -> None:
    facts = environment.facts(["msgspec", "no-such-distribution"])
    assert facts["msgspec"] == environment.installed("msgspec")
    assert {"python", "os", "cpu", "cpus", "memory_gib", "numpy"} < set(facts)
    assert "no-such-distribution" not in facts
    assert all(facts.values()), "an empty fact says nothing"
    assert facts["cpus"] == str(environment.usable_cpus())
    assert float(facts["memory_gib"]) > 0


def test_a_version_is_found_without_importing() -> None:
    code = (
        "import sys; from xbench import environment, machine\n"
        "assert environment.installed('numpy'); assert environment.installed('absent') is None\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_name_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nmodel name\t: Quick CPU: 3 GHz\nmodel name\t: other\n"
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert environment.cpu_name() == "Quick CPU: 3 GHz"


def test_the_name_of_the_processor_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert environment.cpu_name() == "riscv64"


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_a_peak_is_of_now_and_not_of_the_past() -> None:
    code = """
from xbench import environment, machine
def touch(mib):
    return len(bytearray(b"x") * (mib << 20))
touch(128)
before = environment.start_peak()
first = environment.peak_bytes() - before
touch(64)
print(first >> 20, environment.peak_bytes() - before >> 20)
"""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the kernel does not let a process start a new peak")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = (int(word) for word in done.stdout.split())
    assert 56 <= second < 96, "the 64 MiB after the start count"
    assert first < 32, "the 128 MiB before do not"
