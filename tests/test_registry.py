"""What is found by looking into the folders, what that imports, and what one new file changes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from xbench import registry
from xbench.errors import UsageError
from xbench.registry import ROOT

CODE = ("xbench", "models", "exporters", "runners", "reports")
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "onnx", "onnxruntime", "tf2onnx", "onnxscript"}
HEAVY = FRAMEWORKS | {"numpy", "scipy", "rich", "PIL", "av", "ale_py"}


def python(*arguments: str, tree: Path = ROOT.parent) -> str:
    """What a fresh interpreter prints that runs the code in ``tree``; fails where it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(code: str) -> set[str]:
    """Top-level modules that are loaded after ``code`` ran in a fresh interpreter."""
    said = python("-c", f"{code}\nimport sys\nprint('\\n'.join({{*sys.modules}}))")
    return {line.split(".")[0] for line in said.splitlines()}


# -- what importing and listing costs ---------------------------------------------------------


def test_the_check_of_imports_can_fail() -> None:
    assert {"numpy", "msgspec"} <= imported_by("import numpy, msgspec")


def test_listing_imports_nothing_heavy() -> None:
    loaded = imported_by(
        "import xbench.cli, xbench.plan\n"
        "from xbench import registry\n"
        "registry.engines(); registry.exporters(); registry.model_names()\n"
        "registry.model('prednet')\n"
        "xbench.plan.shipped_engines()\n"
    )
    assert "typer" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    loaded = imported_by(
        "import sys\n"
        f"sys.argv = ['xbench', *{arguments}]\n"
        "from xbench.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
    )
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_no_module_of_the_core_imports_a_framework() -> None:
    modules = [f"xbench.{path.stem}" for path in sorted(ROOT.glob("*.py"))]
    modules += [f"xbench.reports.{path.stem}" for path in sorted((ROOT / "reports").glob("*.py"))]
    modules += [f"xbench.models.{name}" for name in registry.model_names()]
    modules += [f"xbench.models.{name}.data" for name in registry.model_names()]
    modules += ["xbench.runners.base", "xbench.runners.fake"]
    loaded = imported_by(
        f"import importlib\nfor name in {modules}:\n    importlib.import_module(name)\n"
    )
    assert "numpy" in loaded
    assert not loaded & FRAMEWORKS


# -- names ------------------------------------------------------------------------------------


def test_what_ships_is_found() -> None:
    assert "prednet" in registry.model_names()
    names = list(registry.engines())
    assert names.index("torch") < names.index("tf") < names.index("ort")
    assert {"torch", "tf"} <= set(registry.exporters())


def test_every_engine_and_exporter_names_what_exists() -> None:
    for engine in registry.engines().values():
        assert (ROOT / "runners" / f"{engine.module.rsplit('.', 1)[1]}.py").is_file()
        assert set(engine.phases) <= {"infer", "train"}
        assert engine.packages, "versions of what it runs on belong into every result"
        assert not (engine.native and engine.onnx)
    for exporter in registry.exporters().values():
        assert (ROOT / "exporters" / f"{exporter.module.rsplit('.', 1)[1]}.py").is_file()
        assert registry.engines()[exporter.engine].native, "its framework can judge the export"


@pytest.mark.parametrize(
    ("call", "wrong", "near"),
    [
        (registry.model, "prednt", "'prednet'"),
        (registry.engine, "troch", "'torch'"),
        (registry.exporter, "trch", "'torch'"),
        (lambda name: registry.config(registry.model("prednet"), name), "tinny", "'tiny'"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(
    call: Callable[[str], object], wrong: str, near: str
) -> None:
    with pytest.raises(UsageError, match=f"{wrong}.*did you mean {near}") as caught:
        call(wrong)
    assert caught.value.exit_status == 2


def test_the_engine_of_the_tests_is_found_but_not_offered() -> None:
    assert registry.engine("fake").shipped is False
    with pytest.raises(UsageError) as caught:
        registry.engine("fak")
    assert "'fake'" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "prednet/..", "../models/prednet", "__pycache__"])
def test_a_path_is_not_a_model(name: str) -> None:
    with pytest.raises(UsageError):
        registry.model(name)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [("b", ["b"]), ("b,a", ["b", "a"]), (" a , b ,", ["a", "b"]), ("a,b,a", ["a", "b"])],
)
def test_a_comma_list(asked: str, chosen: list[str]) -> None:
    assert registry.choose("thing", asked, ["a", "b", "c"]) == chosen


@pytest.mark.parametrize("asked", ["", ",", "  ", "a,x", "x", "A", "a;b"])
def test_a_comma_list_that_says_nothing_or_something_unknown(asked: str) -> None:
    with pytest.raises(UsageError, match="known: a, b"):
        registry.choose("thing", asked, ["a", "b"])


# -- folders made by hand ---------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty code tree that the registry looks into."""
    for folder in ("models", "runners", "exporters"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    registry._literals.cache_clear()
    yield tmp_path
    registry._literals.cache_clear()


def test_models_are_packages(tree: Path) -> None:
    for name in ("beta", "alpha"):
        (tree / "models" / name).mkdir()
        (tree / "models" / name / "__init__.py").touch()
    (tree / "models" / "notes").mkdir()
    (tree / "models" / "helper.py").touch()
    assert registry.model_names() == ["alpha", "beta"]


def test_engines_are_read_without_being_imported(tree: Path) -> None:
    (tree / "runners/one.py").write_text(
        "raise RuntimeError('imported')\n"
        "ENGINES = {'late': {'order': 9}, 'early': {'order': 1, 'phases': ('infer',)}}\n"
    )
    (tree / "runners/two.py").write_text(
        "ENGINES: dict[str, object] = {'mid': {'order': 5, 'onnx': True}, 'amid': {'order': 5}}\n"
    )
    (tree / "runners/helper.py").write_text("OTHER = {'no': {}}\nENGINES_OF_OLD = {'no': {}}\n")
    found = registry.engines()
    assert list(found) == ["early", "amid", "mid", "late"]
    assert found["early"].phases == ("infer",)
    assert found["mid"].onnx
    assert found["mid"].module == "xbench.runners.two"
    assert found["late"].module == "xbench.runners.one"


def test_sources_in_any_encoding_are_read(tree: Path) -> None:
    text = "# -*- coding: latin-1 -*-\n# \xe9\nENGINES = {'one': {}}\n"
    (tree / "runners/one.py").write_bytes(text.encode("latin-1"))
    assert list(registry.engines()) == ["one"]


def test_a_misspelt_type_of_a_field_is_not_passed_over(tree: Path) -> None:
    (tree / "runners/one.py").write_text("ENGINES = {'one': {'native': 'yes'}}\n")
    with pytest.raises(msgspec.ValidationError, match="native"):
        registry.engines()


def test_exporters_are_found_by_source(tree: Path) -> None:
    (tree / "exporters/one.py").write_text(
        "EXPORTERS = {'jax': {'engine': 'torch', 'packages': ('jax',)}}\n"
    )
    exporter = registry.exporter("jax")
    assert (exporter.source, exporter.module) == ("jax", "xbench.exporters.one")
    assert exporter.packages == ("jax",)


# -- a new model, a new runner and a new exporter, as files alone -------------------------------

MODEL = '''
"""A model of two parameters."""
from xbench.spec import Adam, Constant, ModelSpec, ParameterSpec, TensorSpec, Uniform

X = TensorSpec("x", ("batch", 3))
W = ParameterSpec(name="w", shape=(2,), init=Constant(0.5), probe=Uniform(-1.0, 1.0))
SPEC = ModelSpec(
    name="line", title="", paper="", sizes={"tiny": None}, batch={"tiny": 2},
    parameters=lambda _: (W,), inputs=lambda _: (X,),
    outputs=lambda _: (TensorSpec("y", ("batch", 3)),), taps=lambda _: (), losses=("L",),
    optimizer=Adam(), data="ones",
)
'''
DATA = '''
"""Ones."""
import numpy as np
from xbench.data import Batches

BASELINE_NAME = "nothing"

def load(config, *, batch, count, seed, source):
    return Batches([{"x": np.ones((batch, 3), np.float32)} for _ in range(count)], "ones")

def baseline(batches, loss, config):
    return [0.0 for _ in batches]

def baseline_note(loss):
    return ""
'''
RUNNER = '''
"""An engine that computes what the fake one does."""
from xbench.runners.fake import FakeRunner

ENGINES = {"line-engine": {"native": True, "packages": ("numpy",), "shipped": False}}

def make(engine):
    return FakeRunner(engine)
'''
EXPORTER = """
EXPORTERS = {"line-source": {"engine": "line-engine", "packages": ("numpy",)}}
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with a model, a runner and an exporter added, and nothing else changed."""
    root = tmp_path_factory.mktemp("extended")
    for folder in CODE:
        shutil.copytree(
            ROOT.parent / folder,
            root / folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (root / "models/line").mkdir()
    (root / "models/line/__init__.py").write_text(MODEL)
    (root / "models/line/data.py").write_text(DATA)
    (root / "runners/line.py").write_text(RUNNER)
    (root / "exporters/line.py").write_text(EXPORTER)
    return root


def test_new_files_are_found(extended: Path) -> None:
    code = (
        "import json, xbench; from xbench import registry\n"
        "print(json.dumps([xbench.__file__, registry.model_names(), list(registry.engines()),"
        " list(registry.exporters())]))"
    )
    where, models, engines, sources = json.loads(python("-c", code, tree=extended))
    assert where.startswith(str(extended))
    assert set(models) == {*registry.model_names(), "line"}
    assert set(engines) == {*registry.engines(), "line-engine"}
    assert set(sources) == {*registry.exporters(), "line-source"}


def test_a_new_model_on_a_new_engine_runs(extended: Path, tmp_path: Path) -> None:
    result = tmp_path / "run.json"
    said = python(
        "-m", "xbench.cli", "run", "line", "--engine", "line-engine", "--ep", "cpu",
        "--size", "tiny", "--rounds", "1", "--budget", "0.05", "--steps", "2",
        "--json", str(result), tree=extended,
    )  # fmt: skip
    document = json.loads(result.read_text())
    cases = [case for case in document["cases"] if case["asked"]]
    assert {case["status"] for case in cases} == {"ok"}
    assert {case["case"]["phase"] for case in cases} == {"infer", "train"}
    assert {a["verdict"] for a in document["agreements"]} == {"agree"}
    assert "line-engine cpu" in said


def test_a_part_of_a_model_is_its_module() -> None:
    part = registry.model_part("prednet", "data")
    assert part is importlib.import_module("xbench.models.prednet.data")
