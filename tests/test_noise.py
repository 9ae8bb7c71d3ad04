"""The A/A noise: its estimate on known values, its file, and the body that it is measured with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from xbench import noise, registry
from xbench.bench import Settings
from xbench.errors import EngineError, StoreError, Unavailable, Unsupported
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.result import Conditions, Measurement, Noise, Samples
from xbench.spec import Case

NOW = "2026-03-10T12:00:00+00:00"
BUSY = Conditions(wall_s=1.0, cpus=2, own_cpu_s=1.0, foreign_cpus=1.0)


class Told(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Planted(Launcher):
    """A launcher whose processes take the planted times."""

    def __init__(self, times_s: Sequence[float], conditions: Conditions | None = None) -> None:
        super().__init__()
        self.times_s = list(times_s)
        self.conditions = conditions
        self.jobs: list[Job] = []

    def run(self, job: Job) -> Report:
        self.jobs.append(job)
        value = self.times_s[len(self.jobs) - 1]
        if value < 0:
            return Report(status="crashed", reason="planted")
        samples = Samples(process=job.process, round=job.round, values_s=[value / 2, value, 9.0])
        return Report(
            measurement=Measurement(
                samples=samples, load_s=0.0, compile_s=None, first_run_s=0.0,
                peak_memory_bytes=0, placement=[], conditions=self.conditions,
            )
        )  # fmt: skip


def made(**changes: object) -> Noise:
    found = Noise(machine=noise.machine_key(), measured=NOW, pair_sd=0.02, processes=24)
    return msgspec.structs.replace(found, **changes)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "PAUSE_S", 0.0)


# -- the estimate --------------------------------------------------------------------------------


def test_neighbours_are_compared() -> None:
    # Medians alternate: every log ratio of neighbours is 0.02.
    times = [1e-3 * math.exp(0.02 * (k % 2)) for k in range(8)]
    with Planted(times) as launcher:
        found, _ = noise.measure(launcher, Progress(), processes=8)
        assert [job.process for job in launcher.jobs] == list(range(8))
        assert {job.kind for job in launcher.jobs} == {"noise"}
        assert len({job.folder for job in launcher.jobs}) == 8
    ratios = [0.02, -0.02, 0.02, -0.02, 0.02, -0.02, 0.02]
    assert found.pair_sd == pytest.approx(float(np.std(ratios, ddof=1)))
    assert (found.processes, found.runs, found.run_sd) == (8, 0, None)
    assert found.machine == noise.machine_key()


def test_a_slow_drift_is_no_noise() -> None:
    times = [1e-3 * math.exp(0.01 * k) for k in range(24)]
    with Planted(times) as launcher:
        found, _ = noise.measure(launcher, Progress())
    assert found.pair_sd == pytest.approx(0, abs=1e-12)


def test_runs_differ_as_their_medians_do() -> None:
    # Two runs of four: equal within, 0.1 apart on the log scale; their border is no pair.
    with Planted([1.0] * 4 + [math.exp(0.1)] * 4) as launcher:
        found, _ = noise.measure(launcher, Progress(), processes=8, runs=2)
        assert [job.round for job in launcher.jobs] == [0] * 4 + [1] * 4
    assert found.pair_sd == 0
    assert found.run_sd == pytest.approx(0.1 / math.sqrt(2))
    assert found.runs == 2
    with Planted([1.0] * 13) as launcher:
        noise.measure(launcher, Progress(), processes=13, runs=3)
        assert [job.round for job in launcher.jobs] == [0] * 5 + [1] * 4 + [2] * 4


def test_one_hiccup_does_not_decide_and_tails_still_count() -> None:
    many = np.random.default_rng(0).normal(0, 0.01, 5000)
    assert noise.spread(np.diff(many).tolist()) == pytest.approx(0.01 * math.sqrt(2), rel=0.1)
    x = many[:60]
    calm = noise.spread(np.diff(x).tolist())
    hiccup = x.copy()
    hiccup[30] += 0.5
    assert calm <= noise.spread(np.diff(hiccup).tolist()) < 1.2 * calm
    assert float(np.sqrt(np.mean(np.diff(hiccup) ** 2))) > 5 * calm
    tails = x.copy()
    tails[::7] *= 5
    assert noise.spread(np.diff(tails).tolist()) > 1.1 * calm


def test_equal_values_mostly_still_show_the_rest() -> None:
    assert noise.spread([0.0, 0.0, 0.0, 0.4]) == pytest.approx(0.2)
    assert noise.spread([0.0, 0.0, 0.0]) == 0


def test_the_floor_holds_for_two_equal_things() -> None:
    random = np.random.default_rng(3)
    beyond = 0
    trials = 2000
    for _ in range(trials):
        x = random.normal(0, 0.01, 24)
        found = made(pair_sd=noise.spread(np.diff(x).tolist()))
        ratio = math.exp(random.normal(0, 0.01 * math.sqrt(2), 15).mean())
        beyond += max(ratio, 1 / ratio) - 1 > noise.floor(found, 15)
    # 1 % of 2000 is 20, give or take 4.5.
    assert 5 <= beyond <= 45


def test_the_floor_falls_with_rounds_and_rises_with_confidence() -> None:
    found = made()
    # t(0.995, 16 degrees of freedom) = 2.9208 (tables).
    assert noise.floor(found, 16) == pytest.approx(math.expm1(2.9208 * 0.02 / 4), rel=1e-4)
    assert noise.floor(found, 6) > noise.floor(found, 15) > noise.floor(found, 20)
    assert noise.floor(found, 6, 0.95) < noise.floor(found, 6)
    assert noise.floor(made(processes=60), 6) < noise.floor(found, 6)
    with pytest.raises(ValueError, match="rounds"):
        noise.floor(found, 0)


def test_the_margin_of_stored_runs() -> None:
    assert noise.run_margin(made()) is None
    assert noise.run_margin(made(run_sd=0.1, runs=1)) is None
    # t(0.995, 3 degrees of freedom) = 5.8409 (tables).
    margin = noise.run_margin(made(run_sd=0.01, runs=4))
    assert margin == pytest.approx(math.expm1(5.8409 * 0.01 * math.sqrt(2)), rel=1e-4)


def test_what_cannot_be_measured() -> None:
    with Planted([1.0, 1.0, -1.0, 1.0]) as launcher:
        with pytest.raises(EngineError, match="crashed: planted"):
            noise.measure(launcher, Progress(), processes=4)
        with pytest.raises(ValueError, match="too few"):
            noise.measure(launcher, Progress(), processes=7, runs=2)


def test_what_disturbed_is_told() -> None:
    told = Told()
    with Planted([1.0] * 4, BUSY) as launcher:
        _, seen = noise.measure(launcher, told, processes=4)
    assert seen == [BUSY] * 4
    (note,) = told.notes
    assert note.startswith("while the noise was measured, other processes kept 1.0 CPUs busy")
    assert "4 of 4 processes" in note


# -- the file ------------------------------------------------------------------------------------


def test_noise_is_kept_by_machine(tmp_path: Path) -> None:
    path = noise.path_beside(tmp_path / "below" / "store.sqlite")
    assert path == tmp_path / "below" / "noise.json"
    told = Told()
    assert noise.load(path, told) is None
    noise.save(path, made(machine="another", pair_sd=0.5))
    assert noise.load(path, told) is None
    noise.save(path, made(pair_sd=0.1))
    noise.save(path, made(pair_sd=0.2))
    assert noise.load(path, told) == made(pair_sd=0.2)
    assert noise.load(path, told, threads=77) is None, "other threads, other noise"
    noise.save(path, made(run_sd=0.03, runs=4))
    noise.save(path, made(machine=noise.machine_key(77), pair_sd=0.3))
    found = noise.load(path, told, threads=77)
    assert found is not None
    assert (found.pair_sd, found.run_sd, found.runs) == (0.3, 0.03, 4), "runs: of all CPUs"
    noise.save(path, made(pair_sd=0.2))
    assert set(msgspec.json.decode(path.read_bytes())) == {
        "another",
        noise.machine_key(),
        noise.machine_key(77),
    }
    assert [item.name for item in path.parent.iterdir()] == ["noise.json"]
    assert told.notes == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}x",
        b'{"a": {}}',
        b"\xff\xfe",
        msgspec.json.encode({"a": made(measured="yesterday")}),
        msgspec.json.encode({"a": made(measured="2026-03-10T12:00:00")}),
        msgspec.json.encode({"a": made(pair_sd=-1.0)}),
    ],
)
def test_a_damaged_file_is_none_and_can_be_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.json"
    path.write_bytes(content)
    told = Told()
    assert noise.load(path, told) is None
    (note,) = told.notes
    assert str(path) in note
    assert "damaged" in note
    noise.save(path, made())
    assert noise.load(path) == made()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the noise"):
        noise.save(tmp_path / "file" / "noise.json", made())
    (tmp_path / "noise.json").mkdir()
    with pytest.raises(StoreError, match="cannot write the noise"):
        noise.save(tmp_path / "noise.json", made())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "noise.json"]


def test_when_it_is_old() -> None:
    assert not noise.is_old(made(), "2026-03-17T12:00:00+00:00")
    assert noise.is_old(made(), "2026-03-17T12:00:01+00:00")
    assert not noise.is_old(made(), "2026-03-17T13:30:00+02:00")


def test_a_machine_is_named_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    key = noise.machine_key()
    assert key == noise.machine_key()
    monkeypatch.setattr("platform.node", lambda: "secret-host")
    other = noise.machine_key()
    assert other != key
    assert "secret-host" not in other
    assert "CPUs" in other


def test_known_noise_is_measured_when_none_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "noise.json"
    monkeypatch.setattr(noise, "timestamp", lambda: NOW)
    with Planted([1.0] * 24) as launcher:
        assert noise.known(path, launcher, Progress(), renew=False) is None
        found = noise.known(path, launcher, Progress(), renew=True)
        assert found is not None
        assert noise.load(path) == found
        assert len(launcher.jobs) == 24
        assert noise.known(path, launcher, Progress(), renew=True) == found
        assert len(launcher.jobs) == 24
    monkeypatch.setattr(noise, "timestamp", lambda: "2026-04-10T12:00:00+00:00")
    told = Told()
    with Planted([-1.0]) as launcher:
        # One that is old is better than none.
        assert noise.known(path, launcher, told, renew=False) == found
        assert noise.known(path, launcher, told, renew=True) == found
    assert "is not known: a process of the noise measurement crashed: planted" in told.notes[0]


def test_noise_that_cannot_be_kept_is_still_known(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = Told()
    with Planted([1.0] * 24) as launcher:
        found = noise.known(tmp_path / "file" / "noise.json", launcher, told, renew=True)
    assert found is not None
    assert any("was not kept" in note for note in told.notes)


def test_noise_of_a_busy_moment_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "noise.json"
    told = Told()
    with Planted([1.0] * 24, BUSY) as launcher:
        assert noise.known(path, launcher, told, renew=True) is not None
    assert not path.exists()
    assert any("not kept: others were busy" in note for note in told.notes)
    calm = msgspec.structs.replace(BUSY, foreign_cpus=0.0)
    assert noise.is_disturbed([BUSY, BUSY, *[calm] * 9])
    assert not noise.is_disturbed([BUSY, *[calm] * 9])
    assert not noise.is_disturbed([])


# -- the body ------------------------------------------------------------------------------------


def job(folder: Path, threads: int) -> Job:
    case = Case(
        model="", size="", phase="infer", engine="noise", device="cpu", threads=threads
    )  # fmt: skip
    return Job(
        kind="noise", case=case, folder=str(folder), settings=Settings(iterations=3), process=5
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_the_body_multiplies_on_every_thread(tmp_path: Path, threads: int) -> None:
    module = registry.load("xbench.runners.noise")
    runner = module.make("noise")
    runner.make(threads)
    runner.run()
    assert runner.out.shape == (threads, module.MATRICES, module.SIDE, module.SIDE)
    expected = runner.a.astype(np.float64) @ runner.b.astype(np.float64)
    np.testing.assert_allclose(runner.out, expected, atol=1e-4)
    report = module.sample(job(tmp_path, threads))
    assert report.measurement.samples.process == 5
    assert min(report.measurement.samples.values_s) > 0
    assert report.measurement.conditions.wall_s > 0


def test_the_body_is_no_engine_to_compare() -> None:
    engine = registry.engine("noise")
    assert not engine.shipped
    assert not engine.native
    assert engine.phases == ("infer",)
    runner = registry.load(engine.module).make("noise")
    assert runner.probe("cpu") == {}
    with pytest.raises(Unavailable):
        runner.probe("cuda")
    for call in (runner.infer, lambda: runner.bind({}), lambda: runner.profile(1)):
        with pytest.raises(Unsupported):
            call()


def test_no_product_is_large_enough_for_a_blas_to_split() -> None:
    # OpenBLAS, interface/gemm.c: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD = 65536 * 4.
    assert registry.load("xbench.runners.noise").SIDE ** 3 < 65536 * 4


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
def test_real_processes(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "BUDGET_S", 0.01)
    told = Told()
    with Launcher(fresh=fresh) as launcher:
        found, seen = noise.measure(launcher, told, processes=8, runs=2)
    assert found.pair_sd > 0
    assert found.run_sd is not None
    assert (found.processes, found.runs, len(seen)) == (8, 2, 8)


def test_a_new_run_has_a_new_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with Launcher() as launcher:
        if not launcher.forks:
            pytest.skip("this system has no hosts")
        noise.process(launcher, 0, 0, [], 1)
        first = launcher.hosts["noise"].process
        noise.process(launcher, 1, 0, [], 1)
        assert launcher.hosts["noise"].process is first
        noise.renew_host(launcher)
        assert first.poll() is not None
        noise.process(launcher, 0, 1, [], 1)
        assert launcher.hosts["noise"].process is not first
