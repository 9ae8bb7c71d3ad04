"""Exports: right, cached by content, bound by seed, and never served when wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import jobs
from xbench import draws, exports, registry, tensors, verdict
from xbench.exports import Exports, Verified
from xbench.inputs import Inputs
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.result import Agreement
from xbench.spec import Case


class Watched(Launcher):
    """A launcher that remembers the kinds of its jobs and lets a test meddle with their results."""

    def __init__(self) -> None:
        super().__init__(time_limit_s=300)
        self.kinds: list[str] = []
        self.after: dict[str, Callable[[Job], None]] = {}

    def run(self, job: Job) -> Report:
        report = super().run(job)
        self.kinds.append(job.kind)
        if job.kind in self.after:
            self.after[job.kind](job)
        return report


@pytest.fixture(scope="module")
def hosts() -> Iterator[Watched]:
    """One launcher for all tests: its frameworks are imported once."""
    with Watched() as launcher:
        yield launcher


@pytest.fixture
def launcher(hosts: Watched) -> Watched:
    """The launcher, with nothing remembered and nobody meddling."""
    hosts.kinds.clear()
    hosts.after.clear()
    return hosts


def verification(launcher: Launcher, case: Case) -> Path:
    spec = registry.model(case.model)
    load = registry.model_part(case.model, "data").load
    places = exports.checked_at(spec, registry.config(spec, case.size))
    path = launcher.folder() / "verify.npz"
    batches = [
        load(config, batch=batch, count=1, seed=seed, source=None).inputs[0]
        for seed, (config, batch) in enumerate(places)
    ]
    tensors.save_batches(path, batches)
    return path


def silent(text: str) -> None:
    """Nobody listens."""


def test_export_is_checked_and_a_new_seed_only_binds(launcher: Watched, tmp_path: Path) -> None:
    """What is in the files of every model is looked at in tests/test_end_to_end.py."""
    exporting = Exports(launcher, tmp_path / "own", silent)
    case = jobs.case("autoencoder", "ort", source="torch")
    inputs = verification(launcher, case)
    made = exporting.get(case, inputs)
    assert (made.status, made.reason, made.cached) == ("ok", "", False)
    assert set(launcher.kinds) == {"export", "bind", "verify", "observe"}
    assert made.verified is not None
    agreement = made.verified.agreement
    assert agreement.verdict == "agree"
    assert {t.name for t in agreement.tensors} == {
        "outputs/reconstruction",
        "outputs/reconstruction@1",
    }
    assert all(t.scaled is not None and t.scaled < 1e-5 for t in agreement.tensors)

    launcher.kinds.clear()
    again = exporting.get(case, inputs)
    assert launcher.kinds == []
    assert again.cached
    other = exporting.get(msgspec.structs.replace(case, seed=1), inputs)
    assert launcher.kinds == ["bind"], "a new seed must not export"
    one, two = (initialisers(Path(item.graphs["init"])) for item in (made, other))
    assert one.keys() == two.keys()
    assert any(not np.array_equal(one[key], two[key]) for key in one)


def initialisers(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    graph = onnx.load(str(path)).graph
    return {item.name: numpy_helper.to_array(item) for item in graph.initializer}


def scale_a_constant(job: Job) -> None:
    """A fault as exporters make them: one constant is not what it should be."""
    path = job.targets["skeleton"]
    model = onnx.load(path)
    constants = [
        item
        for item in model.graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT and numpy_helper.to_array(item).size == 1
    ]
    target = next(c for c in constants if np.isclose(numpy_helper.to_array(c), 0.2).all())
    wrong = numpy_helper.from_array(numpy_helper.to_array(target) * np.float32(1.01), target.name)
    target.CopyFrom(wrong)
    onnx.save(model, path)


def freeze_the_batch(job: Job) -> None:
    model = onnx.load(job.targets["skeleton"])
    for value in model.graph.input:
        if value.type.tensor_type.shape.dim[0].dim_param == "batch":
            value.type.tensor_type.shape.dim[0].dim_value = 5
    onnx.save(model, job.targets["skeleton"])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(scale_a_constant, "the export is wrong"), (freeze_the_batch, "image")],
)
def test_a_wrong_export_is_refused_and_not_cached(
    launcher: Watched, tmp_path: Path, fault: Callable[[Job], None], reason: str
) -> None:
    exporting = Exports(launcher, tmp_path / "own", silent)
    model = "prednet" if fault is scale_a_constant else "autoencoder"
    case = jobs.case(model, "ort", source="tf")
    launcher.after["export"] = fault
    made = exporting.get(case, verification(launcher, case))
    assert made.status == "failed"
    assert reason in made.reason
    assert made.graphs == {}
    assert list((tmp_path / "own" / "skeletons").iterdir()) == []


def test_a_damaged_skeleton_is_exported_again_and_said(
    launcher: Watched, export_cache: Path
) -> None:
    said: list[str] = []
    exporting = Exports(launcher, export_cache, said.append)
    case = jobs.case("autoencoder", "ort", source="tf")
    inputs = verification(launcher, case)
    assert exporting.get(case, inputs).status == "ok"
    skeleton = export_cache / "skeletons" / exports.skeleton_key(case) / "skeleton.onnx"
    whole = skeleton.read_bytes()
    skeleton.write_bytes(whole[: len(whole) // 2])
    launcher.kinds.clear()
    made = exporting.get(case, inputs)
    assert made.status == "ok"
    assert not made.cached
    assert "export" in launcher.kinds
    assert any("damaged" in text for text in said)
    assert skeleton.read_bytes() != whole[: len(whole) // 2]


@pytest.mark.parametrize("damage", ["verified.json", "skeleton.onnx"])
def test_a_missing_or_damaged_entry_is_not_read(
    launcher: Watched, tmp_path: Path, damage: str
) -> None:
    said: list[str] = []
    exporting = Exports(launcher, tmp_path / "own", said.append)
    folder = tmp_path / "own" / "skeletons" / "entry"
    assert exporting.read(folder) is None
    assert said == [], "nothing there is not damage"
    folder.mkdir()
    (folder / "skeleton.onnx").write_bytes(b"graph")
    (folder / "verified.json").write_bytes(b"{}" if damage == "verified.json" else b"[")
    assert exporting.read(folder) is None
    assert "damaged" in said[0]
    assert not folder.exists()


def test_a_damaged_bound_file_is_bound_again(launcher: Watched, export_cache: Path) -> None:
    exporting = Exports(launcher, export_cache, silent)
    case = jobs.case("autoencoder", "ort", source="tf")
    inputs = verification(launcher, case)
    bound = Path(exporting.get(case, inputs).graphs["init"])
    whole = bound.read_bytes()
    bound.write_bytes(whole[:100])
    launcher.kinds.clear()
    assert exporting.get(case, inputs).status == "ok"
    assert launcher.kinds == ["bind"]
    assert bound.read_bytes() == whole


def test_a_bound_file_is_named_by_its_parameters(
    launcher: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other values under the same names must not be served from the cache."""
    exporting = Exports(launcher, tmp_path / "own", silent)
    case = jobs.case("autoencoder", "ort", source="tf")
    verified = exports.Verified(
        format=1, sha256="0" * 64, facts={}, seconds=0.0,
        agreement=verdict.inconclusive("a", "b", "outputs", ""),
    )  # fmt: skip
    before = exporting.bound_path(verified, case, "probe")
    assert exporting.bound_path(verified, case, "probe") == before
    assert exporting.bound_path(verified, case, "init") != before
    drawn = draws.parameters

    def moved(*arguments: Any, **options: Any) -> Any:
        values = drawn(*arguments, **options)
        return values | {"encoder.0.bias": values["encoder.0.bias"] + 1}

    monkeypatch.setattr(draws, "parameters", moved)
    assert exporting.bound_path(verified, case, "probe") != before


def test_the_key_follows_what_shapes_a_skeleton(monkeypatch: pytest.MonkeyPatch) -> None:
    case = jobs.case("prednet", "ort", source="torch")
    key = exports.skeleton_key(case)
    replace = msgspec.structs.replace
    same = replace(case, seed=3, batch=7, threads=1, device="cuda", phase="train")
    assert exports.skeleton_key(same) == key
    for changed in (replace(case, size="small"), replace(case, source="tf")):
        assert exports.skeleton_key(changed) != key
    monkeypatch.setattr(exports, "versions", lambda source: {"torch": "0"})
    assert exports.skeleton_key(case) != key


def test_the_cache_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    for name in ("skeletons", "bound"):
        (tmp_path / name).mkdir()
    paths = []
    for age, name in enumerate(["old", "middle", "new"]):
        folder = tmp_path / "skeletons" / name
        folder.mkdir()
        (folder / "skeleton.onnx").write_bytes(bytes(100))
        os.utime(folder, (1000 + age, 1000 + age))
        paths.append(folder)
    file = tmp_path / "bound" / "a.onnx"
    file.write_bytes(bytes(100))
    os.utime(file, (999, 999))
    exports.trim(tmp_path, 250, keep=(paths[0],))
    assert not file.exists()
    assert [path.name for path in paths if path.exists()] == ["old", "new"]


def test_a_cache_that_cannot_be_written_is_said(launcher: Watched, tmp_path: Path) -> None:
    from xbench.errors import XbenchError

    (tmp_path / "file").write_text("")
    with pytest.raises(XbenchError, match="XBENCH_CACHE"):
        Exports(launcher, tmp_path / "file" / "cache", silent)


def test_what_another_command_kept_first_is_as_good(tmp_path: Path) -> None:
    """The cache holds it already, whole, and nothing of the second one is left."""
    agreement = Agreement(
        a="", b="", what="", tensors=[], evidence=None, tolerance=None, verdict="agree", sentence=""
    )
    skeleton = tmp_path / "skeleton.onnx"
    skeleton.write_bytes(b"graph")
    verified = Verified(format=1, sha256="", facts={}, seconds=1.0, agreement=agreement)
    with Launcher() as launcher:
        exporting = Exports(launcher, tmp_path / "cache", silent)
        folder = tmp_path / "cache" / "skeletons" / "key"
        for _ in range(2):
            exporting.keep(skeleton, verified, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["key"]
    assert sorted(path.name for path in folder.iterdir()) == ["skeleton.onnx", "verified.json"]


def test_data_that_fits_the_size_need_not_fit_into_less(tmp_path: Path) -> None:
    """The shorter of the inputs that an export is checked at are not the user's."""
    data = tmp_path / "data"
    data.mkdir()
    for language, word in (("en", "one"), ("fr", "un")):
        (data / f"train.{language}").write_text(f"{' '.join([word] * 11)}\n" * 8)
    request = Request(models=("seq2seq",), size="tiny", engines=("ort",), data=str(data))
    case = jobs.case("seq2seq", "ort", source="torch")
    path = Inputs(request, tmp_path, {}).verification(case)
    lengths = [batch["source"].shape for batch in tensors.load_batches(path)]
    assert lengths == [(1, 12), (5, 8)]
