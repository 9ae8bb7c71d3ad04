"""What the doctor says of planted illnesses, and once of the real machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.command import alive, run
from xbench import doctor, environment, plan
from xbench.doctor import Check, Diagnosis
from xbench.jobs import Report
from xbench.progress import Progress
from xbench.spec import DEVICES


def test_the_real_machine() -> None:
    done = run("doctor", "--json", "-")
    found = msgspec.json.decode(done.out, type=Diagnosis)
    checks = {check.what: check for check in found.checks}
    assert {f"{name} {device}" for name in plan.shipped_engines() for device in DEVICES} <= set(
        checks
    )
    assert {"store", "cache"} <= set(checks)
    for check in found.checks:
        assert check.detail
        assert bool(check.fix) == (check.status != "ok"), check
    assert done.code == (0 if found.healthy else 1)
    assert {"python", "os", "cpu", "cpus", "memory_gib", "numpy"} <= set(found.machine)
    assert alive() == []


def test_missing_engines_are_found_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    # The fake runner stands for an engine that works on the cpu and has no CUDA.
    monkeypatch.setattr(plan, "shipped_engines", lambda: ["fake"])
    cpu, cuda = doctor.engines(Progress())
    assert (cpu.what, cpu.status, cpu.fix) == ("fake cpu", "ok", "")
    assert cpu.detail.startswith("numpy ")
    assert "fake yes" in cpu.detail
    assert (cuda.what, cuda.status) == ("fake cuda", "unavailable")
    assert cuda.detail == "the fake runner has no CUDA device"
    assert cuda.fix
    report = Report(status="crashed", reason="it was ended by SIGILL")
    for name in ("torch", "tf", "ort"):
        for device in DEVICES:
            check = doctor.engine_check(name, device, report)
            assert (check.status, check.detail) == ("crashed", "it was ended by SIGILL")
            assert check.fix == doctor.FIX[name, device]


def test_only_cuda_may_be_missing() -> None:
    def healthy(**status: str) -> bool:
        checks = [
            Check(what=what.replace("_", " "), status=word, detail="")
            for what, word in status.items()
        ]
        return Diagnosis(schema=1, machine={}, checks=checks).healthy

    assert healthy(torch_cpu="ok", torch_cuda="unavailable", store="ok")
    assert not healthy(torch_cpu="crashed", torch_cuda="ok", store="ok")
    assert not healthy(torch_cpu="ok", store="failed")


def test_wheels_that_break_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"onnxruntime": "1"}
    monkeypatch.setattr(environment, "installed", have.get)
    assert doctor.conflicts() == []
    have["onnxruntime-gpu"] = "1"
    (check,) = doctor.conflicts()
    assert check.status == "failed"
    assert "pip uninstall onnxruntime onnxruntime-gpu" in check.fix


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check.status for check in doctor.places()] == ["ok", "ok"]
    (tmp_path / "file").touch()
    for name in ("XBENCH_STORE", "XBENCH_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "file" / "below" / "it"))
    for check, name in zip(doctor.places(), ("XBENCH_STORE", "XBENCH_CACHE"), strict=True):
        assert check.status == "failed"
        assert str(tmp_path / "file" / "below") in check.detail
        assert name in check.fix
