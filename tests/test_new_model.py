"""Adding a model is adding a folder: one is added to a copy of the code, and all find it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xbench.registry import ROOT

CODE = ("xbench", "models", "exporters", "runners", "reports")

FOLDER = {
    "__init__.py": '''
"""A linear classifier with dropout."""
from xbench.models import layers
from xbench.spec import SGD, Bernoulli, DrawSpec, ModelSpec, TensorSpec

PARAMETERS = layers.dense("fc", 3, 8, layers.glorot_uniform)
SPEC = ModelSpec(
    name="linear", title="A linear classifier", paper="none",
    sizes={"tiny": None, "small": None}, batch={"tiny": 4, "small": 4},
    parameters=lambda _: PARAMETERS,
    inputs=lambda _: (TensorSpec("x", ("batch", 8)),),
    targets=lambda _: (TensorSpec("label", ("batch",), "int64"),),
    draws=lambda _: (DrawSpec(name="mask", shape=("batch", 8), distribution=Bernoulli(0.5)),),
    outputs=lambda _: (TensorSpec("logits", ("batch", 3)),),
    taps=lambda _: (TensorSpec("fc", ("batch", 3)),),
    losses=("cross-entropy",), optimizer=SGD(lr=0.1, momentum=0.9, nesterov=True), data="a ramp",
)
''',
    "pt.py": '''
"""The classifier in PyTorch."""
import torch.nn.functional as F
from torch import nn
from xbench.models import layers_pt

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x)

    def objective(self, x, label, mask=None, *, loss):
        return F.cross_entropy(self.fc(layers_pt.dropout(x, 0.5, mask)), label)

    def taps(self, x):
        return {"fc": self.fc(x)}

def build(config):
    return Linear()
''',
    "tf.py": '''
"""The classifier in TensorFlow."""
from xbench.models import layers_tf

class Linear(layers_tf.Layers):
    def __call__(self, x):
        return self.dense("fc", x)

    def objective(self, x, label, mask=None, *, loss):
        return layers_tf.cross_entropy(self.dense("fc", layers_tf.dropout(x, 0.5, mask)), label)

    def taps(self, x):
        return {"fc": self.dense("fc", x)}

def build(config, parameters):
    return Linear(parameters)
''',
    "data.py": '''
"""Numbers that go up."""
import numpy as np
from xbench.data import Batches

BASELINE_NAME = "one in three"

def load(config, *, batch, count, seed, source):
    x = np.linspace(-1, 1, batch * 8, dtype=np.float32).reshape(batch, 8)
    label = np.arange(batch) % 3
    return Batches([{"x": x, "label": label} for _ in range(count)], "a ramp")

def baseline(batches, loss, config):
    return [float(np.log(3)) for _ in batches]
''',
    "README.md": "# A linear classifier\n",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code and one folder more."""
    root = tmp_path_factory.mktemp("extended")
    for folder in CODE:
        shutil.copytree(
            ROOT.parent / folder,
            root / folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (root / "models/linear").mkdir()
    for name, text in FOLDER.items():
        (root / "models/linear" / name).write_text(text)
    return root


def xbench(tree: Path, *arguments: str) -> str:
    """What the command prints from the copy; fails the test where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "xbench.cli", *arguments],
        capture_output=True, text=True, cwd=tree, check=False,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def document(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of the new model on every engine that is measured by default."""
    folder = tmp_path_factory.mktemp("run")
    xbench(
        tree, "run", "linear", "--size", "tiny", "--ep", "cpu", "--rounds", "1",
        "--iterations", "3", "--steps", "2", "--json", str(folder / "run.json"),
        "--store", str(folder / "store.sqlite"),
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_it_is_listed(tree: Path) -> None:
    assert "linear" in xbench(tree, "list")


def test_every_engine_runs_it_and_agrees(document: dict[str, Any]) -> None:
    asked = [case for case in document["cases"] if case["asked"]]
    assert {(c["case"]["phase"], c["case"]["engine"], c["case"]["source"]) for c in asked} == {
        ("infer", "torch", None), ("infer", "tf", None), ("infer", "ort", "torch"),
        ("infer", "ort", "tf"), ("train", "torch", None), ("train", "tf", None),
    }  # fmt: skip
    assert {case["status"] for case in asked} == {"ok"}
    assert all(case["profile"]["ops"] for case in asked)
    assert {agreement["verdict"] for agreement in document["agreements"]} == {"agree"}
    assert {a["what"] for a in document["agreements"]} == {
        "outputs", "loss", "gradients", "trajectory",
    }  # fmt: skip


def test_its_timed_training_asks_for_native_draws(document: dict[str, Any]) -> None:
    """What a worker makes of that: tests/test_worker.py."""
    draws = {
        (case["case"]["phase"], case["case"]["draws"])
        for case in document["cases"]
        if case["asked"]
    }
    assert draws == {("infer", "fed"), ("train", "native")}


def test_its_losses_stand_beside_the_baseline(document: dict[str, Any]) -> None:
    (table,) = document["losses"]
    assert table["baseline"] == pytest.approx([1.0986, 1.0986], rel=1e-3)
    trained = [c["loss"] for c in document["cases"] if c["asked"] and c["case"]["phase"] == "train"]
    assert len(trained) == 2
    assert trained[0] == pytest.approx(trained[1], rel=1e-5)
