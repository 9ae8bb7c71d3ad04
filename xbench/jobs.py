"""What crosses between parent and worker: a job one way, a report the other. JSON and files only.

A worker writes ``report.json`` into the job's folder, and arrays into ``tensors.npz`` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from xbench.bench import Settings
from xbench.result import OK, Measurement, Operators, Profile, Soak
from xbench.spec import Case, Signature

if TYPE_CHECKING:
    import numpy as np

REPORT = "report.json"
TENSORS = "tensors.npz"
STATES = "states.npz"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One thing for one fresh process to do with one case.

    ``kind``: ``probe`` (does the engine work on the device), ``measure``, ``observe`` (compute
    what is compared), ``profile``, ``export`` (write a skeleton), ``bind`` (put parameters into
    skeletons), ``verify`` (check a bound file and compute its outputs), ``inspect`` (what an ONNX
    file is), ``soak`` (run for ``settings.budget_s`` and watch), ``choices`` (what a graph chose),
    ``segments``, ``expected``, ``operators`` (what really runs, what it should give, whether it
    does: each operator alone).
    ``extra_s`` is added to the time limit.
    ``signature`` stands in for the model's specification where ``graph`` is a user's file.
    ``inputs`` is a file written by ``tensors.save_batches``; ``graph`` an ONNX file.
    ``perturbations`` is how many perturbed parameter sets to observe at most within
    ``spread_budget_s``; ``follow_loss`` also trains from the ``init`` parameters, for the losses.
    ``states`` is a file of the parameters to begin each training step from, ``makes_states`` asks
    for such a file. ``again`` computes everything a second time in the same session; ``repeats``
    are the digests that another process found, and only what is not the same is kept.
    ``at`` are the training steps whose operators are checked. ``deadline_s`` is how long float64
    may take. ``against`` is a folder that a job before left for this one: choices, or what
    operators are held against. ``narrow`` is the type that choices were made in, at best.
    """

    kind: str
    case: Case
    folder: str
    inputs: str | None = None
    graph: str | None = None
    signature: Signature | None = None
    parameter_set: str = "init"
    settings: Settings = Settings()
    process: int = 0
    round: int = 0
    profile_steps: int = 5
    perturbations: int = 0
    spread_budget_s: float = 20.0
    every_batch: bool = False
    taps: bool = False
    follow_loss: bool = False
    states: str | None = None
    at: tuple[int, ...] = ()
    makes_states: bool = False
    again: bool = False
    repeats: Mapping[str, str] = {}
    deadline_s: float | None = None
    against: str | None = None
    narrow: str = ""
    opset: int = 18
    extra_s: float = 0.0
    targets: Mapping[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job. Only the fields of its kind are filled.

    ``shares``: of operator time, by device. ``spread`` maps a tensor to its largest RMS change
    over ``draws`` perturbations of the parameters by ``spread_ulps``.
    ``facts`` describe the environment (probe), or a file that was made (export, bind, verify).
    ``unsteady`` is the RMS distance of tensors that a second run in the same session made
    differently; ``bits`` their digests. ``terms`` is K of a tensor that a single operator made.
    ``operators`` were checked alone. ``remarks`` are said with the verdict: what was not done in
    double, the first tensor that leaves float16's range.
    """

    status: str = OK
    reason: str = ""
    measurement: Measurement | None = None
    profile: Profile | None = None
    soak: Soak | None = None
    signature: Signature | None = None
    shares: Mapping[str, float] = {}
    digests: Mapping[str, str] = {}
    loss: list[float] = []
    spread: Mapping[str, float] = {}
    draws: int = 0
    spread_ulps: int = 0
    facts: Mapping[str, str] = {}
    unsteady: Mapping[str, float] = {}
    bits: Mapping[str, str] = {}
    terms: Mapping[str, int] = {}
    operators: Operators | None = None
    remarks: list[str] = []
    folder: str = ""

    @property
    def ok(self) -> bool:
        return self.status == OK

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays that the worker left beside the report; none if it left none."""
        from xbench import tensors

        path = Path(self.folder) / TENSORS
        return tensors.load(path) if self.folder and path.exists() else {}
