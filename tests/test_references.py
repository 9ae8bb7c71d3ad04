"""Evaluations in float64: kept by what decides them, used only while they are what was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from tests.jobs import Array
from xbench import environment, references, registry, tensors, worker
from xbench.jobs import REPORT, STATES, TENSORS, Job, Report
from xbench.launch import Launcher
from xbench.references import SEAL, References
from xbench.spec import Case

CASE = Case(model="prednet", size="tiny", phase="infer", engine="fake", device="cpu",
            precision="fp64")  # fmt: skip


class InProcess:
    """Does jobs in this process and counts them; ``fails`` makes a report of another status."""

    def __init__(self) -> None:
        self.done: list[Job] = []
        self.fails = ""

    def run(self, job: Job) -> Report:
        self.done.append(job)
        if self.fails:
            return Report(status=self.fails, reason="told to", folder=job.folder)
        report = worker.do(job)
        (Path(job.folder) / REPORT).write_bytes(msgspec.json.encode(report))
        return msgspec.structs.replace(report, folder=job.folder)


class Desk:
    """A cache, a launcher, and jobs in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = InProcess()
        self.cache = folder / "cache"
        self.count = 0

    def job(self, case: Case = CASE, value: float = 1.0, **fields: Any) -> Job:
        self.count += 1
        folder = self.folder / f"job-{self.count}"
        folder.mkdir()
        frames: Array = np.full((1, 4, 3, 32, 40), value, np.float32)
        tensors.save_batches(folder / "inputs.npz", [{"frames": frames}] * 2)
        return Job(
            kind="observe", case=case, folder=str(folder), inputs=str(folder / "inputs.npz"),
            **({"parameter_set": "probe"} | fields),
        )  # fmt: skip

    def run(self, job: Job | None = None) -> Report:
        # A new one every time, as another command would make.
        kept = References(cast(Launcher, self.launcher), self.cache)
        return kept.run(job or self.job())

    @property
    def entries(self) -> list[Path]:
        return sorted((self.cache / "references").iterdir())

    @property
    def computed(self) -> int:
        return len(self.launcher.done)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def same(one: Report, other: Report) -> bool:
    """Whether two reports and the tensors beside them are alike, wherever they lie."""
    fields = [msgspec.structs.replace(report, folder="") for report in (one, other)]
    a, b = one.tensors(), other.tensors()
    return fields[0] == fields[1] and list(a) == list(b) and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )  # fmt: skip


# -- kept and used ---------------------------------------------------------------------------------


def test_an_evaluation_is_kept_and_used(desk: Desk) -> None:
    first = desk.run(desk.job(perturbations=2))
    assert first.ok
    assert (desk.computed, len(desk.entries)) == (1, 1)
    second = desk.run(desk.job(perturbations=2))
    assert desk.computed == 1
    assert same(first, second)
    assert first.tensors()
    assert second.spread
    assert Path(second.folder) == desk.entries[0]


def test_the_states_of_training_are_kept(desk: Desk) -> None:
    case = msgspec.structs.replace(CASE, phase="train", loss="L0")
    first, second = (desk.run(desk.job(case, makes_states=True)) for _ in range(2))
    assert desk.computed == 1
    states = [tensors.load_batches(Path(report.folder) / STATES) for report in (first, second)]
    assert len(states[0]) == 2
    for one, other in zip(*states, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_what_else_a_job_leaves_is_not_kept(desk: Desk) -> None:
    job = desk.job()
    (Path(job.folder) / "log.txt").write_text("chatter")
    desk.run(job)
    assert {path.name for path in desk.entries[0].iterdir()} == {REPORT, TENSORS, SEAL}


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed"])
def test_a_failure_is_not_kept(desk: Desk, status: str) -> None:
    desk.launcher.fails = status
    assert desk.run().status == status
    assert not (desk.cache / "references").exists()
    desk.launcher.fails = ""
    assert desk.run().ok
    assert desk.computed == 2


def test_nothing_is_left_staged(desk: Desk) -> None:
    desk.run()
    desk.run(desk.job(value=2.0))
    assert all("." not in path.name for path in desk.entries)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(desk: Desk) -> None:
    desk.cache.write_text("a file where a folder should be")
    for _ in range(2):
        assert desk.run().ok
    assert desk.computed == 2


# -- damaged entries -------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def add_space(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", [REPORT, TENSORS, SEAL])
def test_a_damaged_entry_is_computed_again(
    desk: Desk, name: str, damage: Callable[[Path], None]
) -> None:
    first = desk.run()
    damage(desk.entries[0] / name)
    again = desk.run()
    assert desk.computed == 2
    assert same(first, again)


@pytest.mark.parametrize("damage", [cut, flip, add_space, Path.unlink])
@pytest.mark.parametrize("name", [REPORT, TENSORS, SEAL])
def test_a_damaged_entry_is_replaced(desk: Desk, name: str, damage: Callable[[Path], None]) -> None:
    first = desk.run()
    damage(desk.entries[0] / name)
    for _ in range(2):
        assert same(desk.run(), first)
    # A seal that can still be read, as with a space behind it, is the same seal.
    assert desk.computed == (1 if (name, damage) == (SEAL, add_space) else 2)
    assert len(desk.entries) == 1


# -- what decides an evaluation --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"case": msgspec.structs.replace(CASE, seed=1)},
        {"case": msgspec.structs.replace(CASE, batch=2)},
        {"case": msgspec.structs.replace(CASE, options={"narrow": "float16"})},
        {"value": 2.0},
        {"parameter_set": "init"},
        {"perturbations": 2},
        {"every_batch": True},
        {"taps": True},
    ],
)
def test_another_question_is_another_entry(desk: Desk, fields: dict[str, Any]) -> None:
    desk.run()
    desk.run(desk.job(**fields))
    assert (desk.computed, len(desk.entries)) == (2, 2)
    desk.run()
    desk.run(desk.job(**fields))
    assert desk.computed == 2


def keys(*jobs: Job) -> int:
    """How many different keys jobs have."""
    return len({references.key(job) for job in jobs})


def test_where_a_job_is_done_does_not_decide(desk: Desk) -> None:
    assert keys(desk.job(), desk.job()) == 1
    assert keys(desk.job(), desk.job(value=2.0)) == 2


def test_the_graph_decides_by_its_content(desk: Desk) -> None:
    paths = [desk.folder / f"{name}.onnx" for name in "abc"]
    for path, content in zip(paths, (b"one", b"one", b"two"), strict=True):
        path.write_bytes(content)
    jobs = [desk.job(graph=str(path)) for path in paths]
    assert keys(*jobs[:2]) == 1
    assert keys(*jobs) == 2
    assert keys(desk.job(), jobs[0]) == 2


def test_of_a_file_the_digest_in_the_case_decides(desk: Desk) -> None:
    """It covers the external data as well, which the path does not."""
    path = desk.folder / "f.onnx"
    path.write_bytes(b"one")
    one, other = (
        msgspec.structs.replace(CASE, source="file", model="f", graph=digest)
        for digest in ("a", "b")
    )
    assert keys(desk.job(one, graph=str(path)), desk.job(other, graph=str(path))) == 2


@pytest.mark.parametrize("package", ["numpy"])
def test_another_version_is_another_entry(
    desk: Desk, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = references.key(desk.job())
    real = environment.installed
    monkeypatch.setattr(
        environment, "installed", lambda name: "0.0" if name == package else real(name)
    )
    assert references.key(desk.job()) != before


def test_another_version_of_what_the_reference_engine_needs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = msgspec.structs.replace(CASE, engine=registry.reference(), source="torch")
    real, before = environment.installed, references.key(desk.job(case))
    for package in registry.engine(registry.reference()).packages:
        monkeypatch.setattr(
            environment,
            "installed",
            lambda name, other=package: "0.0" if name == other else real(name),
        )
        assert references.key(desk.job(case)) != before


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code that can be changed."""
    copy = tmp_path / "code"
    shutil.copytree(
        registry.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", "reports", "*.md")
    )
    monkeypatch.setattr(references, "ROOT", copy)
    monkeypatch.setattr(registry, "ROOT", copy)
    return copy


CHANGED = [
    *(f"{name}.py" for name in references.CODE),
    "runners/base.py",
    "runners/fake.py",
    "models/prednet/pt.py",
    "models/layers.py",
]


@pytest.mark.parametrize("name", ["readings", "sums", "pieces", "ulps", "data"])
def test_what_the_comparison_and_the_data_are_made_of_decides(name: str) -> None:
    """What these make of an evaluation is in the report that is kept."""
    assert name in references.CODE


@pytest.mark.parametrize("file", CHANGED)
def test_another_code_is_another_entry(desk: Desk, code: Path, file: str) -> None:
    before = references.key(desk.job())
    path = code / file
    path.write_bytes(path.read_bytes() + b"\n# changed\n")
    assert references.key(desk.job()) != before


@pytest.mark.parametrize("file", ["cli.py", "runners/noise.py", "verdict.py"])
def test_code_that_decides_nothing_leaves_entries_as_they_are(
    desk: Desk, code: Path, file: str
) -> None:
    before = references.key(desk.job())
    path = code / file
    path.write_bytes(path.read_bytes() + b"\n# changed\n")
    assert references.key(desk.job()) == before


def test_every_module_of_the_interpreter_decides(desk: Desk, code: Path) -> None:
    case = msgspec.structs.replace(CASE, engine=registry.reference(), source="torch")
    files = sorted((code / "runners" / "graph").glob("*.py"))
    assert files
    known = {references.key(desk.job(case))}
    for file in files:
        file.write_bytes(file.read_bytes() + b"\n# changed\n")
        known.add(references.key(desk.job(case)))
    assert len(known) == len(files) + 1


# -- how much is kept ------------------------------------------------------------------------------


def test_what_is_too_large_is_not_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "LARGEST_BYTES", 10)
    for _ in range(2):
        assert desk.run().ok
    assert desk.computed == 2
    assert not (desk.cache / "references").exists()


def entry(cache: Path, name: str, size: int, used: int) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / TENSORS).write_bytes(b"x" * size)
    os.utime(folder, (used, used))
    return folder


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (60, {"a", "b", "c"}),
        (59, {"b", "c"}),
        (50, {"b", "c"}),
        (49, {"c"}),
        (30, {"c"}),
        (0, {"c"}),
    ],
)
def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, limit: int, left: set[str]
) -> None:
    entry(tmp_path, "b", 20, used=2000)
    entry(tmp_path, "a", 10, used=1000)
    last = entry(tmp_path, "c", 30, used=3000)
    references.trim(tmp_path, keep_=last, limit_bytes=limit)
    assert {path.name for path in tmp_path.iterdir()} == left


def test_what_was_just_made_stays(tmp_path: Path) -> None:
    made = entry(tmp_path, "made", 100, used=1)
    entry(tmp_path, "later", 10, used=2000)
    references.trim(tmp_path, keep_=made, limit_bytes=5)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_is_used_counts_as_used_now(desk: Desk) -> None:
    desk.run()
    (only,) = desk.entries
    os.utime(only, (1000, 1000))
    desk.run()
    assert desk.computed == 1
    assert only.stat().st_mtime > 1000


def test_a_run_trims_the_cache(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, Path]] = []
    monkeypatch.setattr(references, "trim", lambda cache, keep_: asked.append((cache, keep_)))
    desk.run()
    assert asked == [(desk.cache / "references", desk.entries[0])]
    desk.run()
    assert len(asked) == 1, "only where something was added"
