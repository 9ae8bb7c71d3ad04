"""What the cases of a run are fed: read once, written where workers read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xbench import files as onnx_files
from xbench import registry, tensors
from xbench.data import Batches
from xbench.exports import BATCHES
from xbench.files import OnnxFile
from xbench.plan import Request
from xbench.spec import FILE, Case, Signature


class Inputs:
    """Input batches by case. Cases of one model and batch, or of one file, share them."""

    def __init__(self, request: Request, folder: Path, files: Mapping[str, OnnxFile]) -> None:
        self.request = request
        self.folder = folder
        self.files = {file.digest[:12]: file for file in files.values()}
        self.paths: dict[str, Path] = {}
        self.models: dict[str, Batches] = {}

    def prepare(self, case: Case) -> None:
        """Read or draw the inputs of a case. Raises DataError for data that cannot be used."""
        key = self.key(case)
        if key in self.paths:
            return
        request = self.request
        if case.source == FILE:
            batches = onnx_files.batches(
                self.files[case.graph],
                (case.shape, *case.cycle),
                seed=case.seed,
                inputs=request.inputs,
            )
        else:
            found = self.load(case, batch=case.batch, count=request.steps, seed=case.seed)
            self.models[key] = found
            batches = found.inputs
        path = self.folder / f"inputs-{len(self.paths)}.npz"
        tensors.save_batches(path, batches)
        self.paths[key] = path

    def key(self, case: Case) -> str:
        """What cases that share their inputs have in common."""
        return (
            case.graph
            if case.source == FILE
            else f"{case.model} {case.size} {case.batch} {case.seed}"
        )

    def path(self, case: Case) -> Path:
        """Where a worker reads the inputs of a case that was prepared."""
        return self.paths[self.key(case)]

    def signature(self, case: Case) -> Signature | None:
        """Inputs and outputs of a user's file; None for a model, which has a specification."""
        return self.files[case.graph].signature if case.source == FILE else None

    def of_model(self, case: Case) -> Batches:
        """The batches of a model's case, with their description."""
        return self.models[self.key(case)]

    def load(self, case: Case, *, batch: int, count: int, seed: int) -> Batches:
        """Batches of a model's own data, or of the data that was asked for."""
        config = registry.config(registry.model(case.model), case.size)
        found: Batches = registry.model_part(case.model, "data").load(
            config, batch=batch, count=count, seed=seed, source=self.request.data
        )
        return found

    def verification(self, case: Case) -> Path:
        """One batch of each size that a model's export is checked at, different data in each."""
        path = self.folder / f"verify-{case.model}-{case.size}.npz"
        tensors.save_batches(
            path,
            [
                self.load(case, batch=batch, count=1, seed=seed).inputs[0]
                for seed, batch in enumerate(BATCHES)
            ],
        )
        return path
