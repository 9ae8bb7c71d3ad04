"""What the cases of a run are fed: read once, written where workers read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xbench import draws, registry, tensors
from xbench import files as onnx_files
from xbench.agree import Files
from xbench.data import Batches
from xbench.errors import UsageError
from xbench.exports import checked_at
from xbench.files import OnnxFile
from xbench.plan import Request
from xbench.spec import FILE, Case, Signature


class Inputs:
    """Input batches by case. Cases of one model and batch, or of one file, share them."""

    def __init__(self, request: Request, folder: Path, files: Mapping[str, OnnxFile]) -> None:
        self.request = request
        self.folder = folder
        self.files = {file.digest[:12]: file for file in files.values()}
        # By its path: another file may have the same content.
        self.against = files.get(request.against) if request.against is not None else None
        self.paths: dict[str, Path] = {}
        self.cut: dict[str, Path] = {}
        self.models: dict[str, Batches] = {}

    def prepare(self, case: Case) -> None:
        """Read or draw the inputs of a case. Raises DataError for data that cannot be used."""
        key = self.key(case)
        if case.source == FILE:
            self.check_alike(case, self.files[key])
        if key in self.paths:
            return
        request = self.request
        if case.source == FILE:
            base = self.files[key]
            batches = onnx_files.batches(
                base,
                (case.shape, *case.cycle),
                seed=case.seed,
                inputs=request.inputs,
            )
        else:
            spec = registry.model(case.model)
            config = registry.config(spec, case.size)
            found = self.load(
                case.model, config, batch=case.batch, count=request.steps, seed=case.seed
            )
            self.models[key] = found
            drawn = draws.steps(
                spec,
                config,
                batch=case.batch,
                count=request.steps,
                seed=case.seed,
            )
            batches = [data | random for data, random in zip(found.inputs, drawn, strict=True)]
        path = self.folder / f"inputs-{len(self.paths)}.npz"
        tensors.save_batches(path, batches)
        self.paths[key] = path

    def key(self, case: Case) -> str:
        """What cases that share their inputs have in common."""
        if case.source != FILE:
            return f"{case.model} {case.size} {case.batch} {case.seed}"
        against = self.against
        return case.graph if against is None else against.digest[:12]

    def check_alike(self, case: Case, base: OnnxFile) -> None:
        """Raise UsageError where a file cannot be fed what ``base`` is fed."""
        own = {spec.name: spec.dtype for spec in self.files[case.graph].signature.inputs}
        theirs = {spec.name: spec.dtype for spec in base.signature.inputs}
        kinds = [{n: np.dtype(dtype).kind for n, dtype in of.items()} for of in (own, theirs)]
        if kinds[0] != kinds[1]:
            raise UsageError(
                f"{case.model} has inputs {written(own)}, {base.name} has {written(theirs)}: two "
                "files are held against each other on the same inputs, by name"
            )

    def known_files(self) -> Files:
        """What the verdict has to know of the files."""
        against = self.against
        return Files(
            declared={
                digest: file.facts["declared"]
                for digest, file in self.files.items()
                if file.facts.get("declared")
            },
            against="" if against is None else against.digest[:12],
        )

    def output_names(self, case: Case) -> list[str]:
        """What the outputs of a case are called."""
        if case.source == FILE:
            return [spec.name for spec in self.files[case.graph].signature.outputs]
        spec = registry.model(case.model)
        return [item.name for item in spec.outputs(registry.config(spec, case.size))]

    def random_nodes(self, case: Case) -> str:
        """The random nodes of a user's file, as ``RandomNormal 'n'``; empty where it has none."""
        return self.files[case.graph].facts.get("random", "") if case.source == FILE else ""

    def compared(self, case: Case) -> Path:
        """What a case is compared on: its inputs, or fewer rows of them."""
        return self.cut.get(self.key(case), self.paths[self.key(case)])

    def fewer_rows(self, case: Case) -> str:
        """Compare a file on one batch row from now on; the words for it.

        Empty, and nothing changes, where its inputs have no batch axis in common.
        """
        key = self.key(case)
        specs = {spec.name: spec for spec in self.files[key].signature.inputs}
        first = {spec.shape[0] for spec in specs.values() if len(spec.shape) > 0}
        batches = tensors.load_batches(self.paths[key])
        rows = {len(array) for batch in batches for array in batch.values() if array.ndim}
        if len(first) != 1 or not isinstance(next(iter(first)), str) or max(rows, default=1) < 2:
            return ""
        path = self.folder / f"row-{key}.npz"
        tensors.save_batches(
            path,
            [{n: a[:1] if a.ndim else a for n, a in batch.items()} for batch in batches],
        )
        self.cut[key] = path
        return f"compared on the first of {max(rows)} batch rows"

    def path(self, case: Case) -> Path:
        """Where a worker reads the inputs of a case that was prepared."""
        return self.paths[self.key(case)]

    def signature(self, case: Case) -> Signature | None:
        """Inputs and outputs of a user's file; None for a model, which has a specification."""
        return self.files[case.graph].signature if case.source == FILE else None

    def of_model(self, case: Case) -> Batches:
        """The batches of a model's case, with their description."""
        return self.models[self.key(case)]

    def load(
        self,
        model: str,
        config: Any,
        *,
        batch: int,
        count: int,
        seed: int,
        source: str | None = None,
    ) -> Batches:
        """Batches of a model from ``source``, else from what was asked for, else its own data."""
        found: Batches = registry.model_part(model, "data").load(
            config, batch=batch, count=count, seed=seed, source=source or self.request.data
        )
        return found

    def verification(self, case: Case) -> Path:
        """One batch of each size that a model's export is checked at, different data in each."""
        spec = registry.model(case.model)
        places = checked_at(spec, registry.config(spec, case.size))
        batches = []
        for seed, (config, batch) in enumerate(places):
            # What fits into the size need not fit into less: shorter inputs are the default ones.
            source = (
                registry.model_part(case.model, "data").EMBEDDED if seed and spec.lengths else None
            )
            found = self.load(case.model, config, batch=batch, count=1, seed=seed, source=source)
            batches.append(found.inputs[0])
        path = self.folder / f"verify-{case.model}-{case.size}.npz"
        tensors.save_batches(path, batches)
        return path


def written(types: Mapping[str, str]) -> str:
    """Inputs with their types, as ``x float32, ids int64``."""
    return ", ".join(f"{name} {dtype}" for name, dtype in types.items()) or "none"
