"""What the doctor says of planted illnesses, and once of the real machine."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.command import alive, run
from xbench import doctor, environment, guards, noise, registry
from xbench.doctor import Check, Diagnosis
from xbench.errors import EngineError
from xbench.jobs import Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.reports import diagnosis
from xbench.result import Conditions, Noise
from xbench.spec import DEVICES

CALM = Conditions(wall_s=0.3, cpus=2, own_cpu_s=0.0, foreign_cpus=0.02, available_bytes=2**30)


def made(**changes: object) -> Noise:
    found = Noise(
        machine=noise.machine_key(), measured=noise.timestamp(), pair_sd=0.02, processes=24
    )
    return msgspec.structs.replace(found, **changes)


def devices_of(engine: registry.Engine) -> tuple[str, ...]:
    """Where an engine is tried: float64 is evaluated on the cpu, whatever is there."""
    return ("cpu",) if engine.reference else DEVICES


def test_the_real_machine() -> None:
    done = run("doctor", "--json", "-")
    found = msgspec.json.decode(done.out, type=Diagnosis)
    checks = {check.what: check for check in found.checks}
    places = [f"{e.name} {device}" for e in doctor.shipped() for device in devices_of(e)]
    assert {"torch cuda", "tf cpu", "ort cuda", "float64 cpu"} <= set(places)
    assert {*places, "store", "cache", "conditions"} <= set(checks)
    assert "float64 cuda" not in checks
    for check in found.checks:
        assert check.detail
        assert bool(check.fix) == (check.status != "ok"), check
    assert done.code == (0 if found.healthy else 1)
    assert {"python", "os", "cpu", "cpus", "memory_gib", "numpy"} <= set(found.machine)
    assert 0 < found.timer_cost_s < 1e-3
    assert found.noise is None
    assert alive() == []


@pytest.fixture
def only_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake runner stands for an engine that works on the cpu and has no CUDA."""
    monkeypatch.setattr(doctor, "shipped", lambda: [registry.engine("fake")])


@pytest.mark.usefixtures("only_fake")
def test_missing_engines_are_found_with_a_fix() -> None:
    with Launcher() as launcher:
        cpu, cuda = doctor.engines(launcher, Progress())
    assert (cpu.what, cpu.status, cpu.fix, cpu.needed) == ("fake cpu", "ok", "", True)
    assert cpu.detail.startswith("numpy ")
    assert "fake yes" in cpu.detail
    assert (cuda.what, cuda.status, cuda.needed) == ("fake cuda", "unavailable", False)
    assert cuda.detail == "the fake runner has no CUDA device"
    assert cuda.fix


def test_every_engine_that_ships_has_a_fix() -> None:
    report = Report(status="crashed", reason="it was ended by SIGILL")
    assert not {"fake", "noise"} & {engine.name for engine in doctor.shipped()}
    for engine in doctor.shipped():
        for device in devices_of(engine):
            check = doctor.engine_check(engine.name, device, report)
            assert (check.status, check.detail) == ("crashed", "it was ended by SIGILL")
            assert check.fix == doctor.FIX[engine.name, device]
            assert check.needed == (device == "cpu" and not engine.optional)


def test_only_what_is_needed_makes_ill() -> None:
    def healthy(**status: str) -> bool:
        checks = [
            Check(what=what, status=word, detail="", needed=not what.startswith("spare"))
            for what, word in status.items()
        ]
        return Diagnosis(schema=1, machine={}, checks=checks).healthy

    assert healthy(torch="ok", spare_cuda="unavailable", spare_conditions="busy", store="ok")
    assert not healthy(torch="crashed", spare_cuda="ok", store="ok")
    assert not healthy(torch="ok", store="failed")


# -- conditions ----------------------------------------------------------------------------------


def test_what_disturbs_now_is_busy_and_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("others are busy", "stop them"), ("memory is short", "end them")]
    monkeypatch.setattr(guards, "look", lambda *_: (CALM, found))
    check = doctor.conditions()
    assert (check.status, check.needed) == ("busy", False)
    assert check.detail == "others are busy; memory is short"
    assert check.fix == "stop them; end them"


def test_a_calm_machine_says_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "look", lambda *_: (CALM, []))
    check = doctor.conditions()
    assert (check.status, check.fix) == ("ok", "")
    assert check.detail == "other processes keep 0.0 of 2 CPUs busy, 1.0 GiB of memory are left"
    unknown = Conditions(wall_s=0.3, cpus=2, own_cpu_s=0.0)
    monkeypatch.setattr(guards, "look", lambda *_: (unknown, []))
    assert doctor.conditions().detail == "nothing that could be seen disturbs"


# -- noise ---------------------------------------------------------------------------------------


def shown(found: Diagnosis, width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    diagnosis.show(found, console)
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= width
    return " ".join(text.split())


@pytest.mark.usefixtures("only_fake")
def test_noise_is_measured_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUDGET_S": 0.01, "PAUSE_S": 0.0}.items():
        monkeypatch.setattr(noise, name, value)
    monkeypatch.setattr(doctor, "NOISE_PROCESSES", 8)
    monkeypatch.setattr(doctor, "NOISE_RUNS", 2)
    store = tmp_path / "elsewhere" / "store.sqlite"
    before = doctor.diagnose(Progress(), store_path=store)
    assert (before.noise, before.floors, before.run_margin) == (None, {}, None)
    assert "Noise of this machine not measured" in shown(before)
    found = doctor.diagnose(Progress(), noise=True, store_path=store)
    assert found.noise is not None
    assert (found.noise.processes, found.noise.runs) == (8, 2)
    assert set(found.floors) == {6, 15, 30}
    assert found.floors[6] == noise.floor(found.noise, 6)
    assert found.run_margin == noise.run_margin(found.noise)
    assert noise.load(store.with_name("noise.json")) == found.noise
    assert "8 processes in 2 runs, measured just now" in shown(found)
    again = doctor.diagnose(Progress(), store_path=store)
    assert again.noise == found.noise
    assert msgspec.json.decode(msgspec.json.encode(again), type=Diagnosis) == again


@pytest.mark.usefixtures("only_fake")
def test_noise_that_cannot_be_measured_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EngineError("planted")

    monkeypatch.setattr(noise, "measure", fail)
    found = doctor.diagnose(Progress(), noise=True)
    (check,) = [check for check in found.checks if check.what == "noise"]
    assert (check.status, check.detail) == ("failed", "planted")
    assert check.fix
    assert not found.healthy
    (tmp_path / "file").touch()
    found = doctor.diagnose(Progress(), noise=True, store_path=tmp_path / "file" / "s.sqlite")
    (check,) = [check for check in found.checks if check.what == "noise"]
    assert "could not be kept" in check.detail


@pytest.mark.usefixtures("only_fake")
def test_noise_of_a_busy_moment_is_kept_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = msgspec.structs.replace(CALM, wall_s=1.0, own_cpu_s=1.0, foreign_cpus=1.0)
    monkeypatch.setattr(guards, "is_short", lambda _: False)
    monkeypatch.setattr(noise, "measure", lambda *_, **__: (made(), [busy] * 3))
    found = doctor.diagnose(Progress(), noise=True)
    assert found.noise is not None
    (check,) = [check for check in found.checks if check.what == "noise"]
    assert (check.status, check.needed) == ("busy", False)
    assert check.detail == "other processes kept 1.0 CPUs busy during 3 of 3 processes"
    assert "--noise" in check.fix


@pytest.mark.parametrize("width", [60, 80, 160])
def test_noise_in_words(width: int) -> None:
    kept = made(processes=60, runs=4, run_sd=0.01)
    found = Diagnosis(
        schema=1, machine={"python": "3.11"}, checks=[], timer_cost_s=8e-8, noise=kept,
        noise_age_s=3 * 86400.0, floors={6: 0.0225, 15: 0.0141}, run_margin=0.086,
    )  # fmt: skip
    text = shown(found, width)
    assert "Reading the clock takes 80 ns" in text
    assert "60 processes in 4 runs, measured 3 days ago" in text
    assert "differs by 2.0 %" in text
    assert "6 2.2 15 1.4" in text
    assert "differ by 1.0 %" in text
    assert "a margin of at least 8.6 %" in text
    assert "It is old" not in text
    assert "It is old" in shown(msgspec.structs.replace(found, noise_old=True), width)
    alone = msgspec.structs.replace(found, noise=made(), run_margin=None)
    assert "How far whole runs are apart is not known" in shown(alone, width)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (59.0, "just now"),
        (60.0, "1 minute ago"),
        (7200.0, "2 hours ago"),
        (86400.0, "1 day ago"),
        (8.5 * 86400, "8 days ago"),
    ],
)
def test_an_age_in_words(age_s: float, words: str) -> None:
    assert diagnosis.ago(age_s) == words


# -- wheels and places ---------------------------------------------------------------------------


def test_wheels_that_break_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"onnxruntime": "1"}
    monkeypatch.setattr(environment, "installed", have.get)
    assert doctor.conflicts() == []
    have["onnxruntime-gpu"] = "1"
    (check,) = doctor.conflicts()
    assert check.status == "failed"
    assert "pip uninstall onnxruntime onnxruntime-gpu" in check.fix


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check.status for check in doctor.places(tmp_path / "new")] == ["ok", "ok"]
    (tmp_path / "file").touch()
    lost = tmp_path / "file" / "below" / "it"
    monkeypatch.setenv("XBENCH_CACHE", str(lost))
    for check, name in zip(doctor.places(lost), ("XBENCH_STORE", "XBENCH_CACHE"), strict=True):
        assert check.status == "failed"
        assert str(tmp_path / "file" / "below") in check.detail
        assert name in check.fix
