"""The verdicts of a run: compute what is compared, judge, look closer at what was rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from xbench import agree, registry, verdict
from xbench.agree import Files, Verdicts
from xbench.confirm import Confirmer, MakeJob
from xbench.exports import default_cache
from xbench.inputs import Inputs
from xbench.jobs import STATES, Job, Report
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.references import References
from xbench.result import Agreement
from xbench.spec import FILE, Case
from xbench.state import State
from xbench.tolerances import Tolerances

PERTURBATIONS = 8
OBSERVE_S = 3.0
"""Rough seconds per case, to scale the progress bar."""
REFERENCE_S = 120.0
"""What float64 may take of a user's file, with all batch rows and then with one."""


class Judging:
    """One run's observations and what they come to.

    ``job`` makes jobs; ``graph`` is the file of a case that eats one, with its probe parameters.
    """

    def __init__(
        self,
        request: Request,
        natives: Sequence[str],
        inputs: Inputs,
        launcher: Launcher,
        progress: Progress,
        *,
        job: MakeJob,
        graph: Callable[[Case], str | None],
    ) -> None:
        self.natives = natives
        self.inputs = inputs
        self.launcher = launcher
        self.progress = progress
        self.make_job = job
        self.graph = graph
        self.fixed = (
            Tolerances(atol=request.atol, rtol=request.rtol)
            if request.atol or request.rtol
            else None
        )
        cache = Path(request.cache) if request.cache else default_cache()
        self.references = References(launcher, cache)
        self.files: Files = inputs.known_files()
        self.states: dict[str, State] = {}
        self.asked: set[str] = set()
        self.pairs: list[agree.Pair] = []
        self.training: dict[str, str] = {}
        self.confirmations: dict[str, verdict.Confirmation] = {}
        self.notes: list[str] = []

    # -- observing --------------------------------------------------------------------------------

    def observe(self, asked: Sequence[State], extra: dict[str, State]) -> None:
        """Compute what is compared, for the cases asked for and for the witnesses they need.

        Witnesses are entered into ``extra``. Float64 goes first: what it says of a training step's
        beginning is where every engine begins.
        """
        cases = [state.case for state in asked]
        self.pairs = agree.pairs(cases, self.natives, self.files)
        for case in agree.witnesses(cases, self.natives, self.files):
            extra[case.key] = State(case)
        needed = agree.needed(cases, self.natives, self.files)
        everything = {state.case.key: state for state in (*extra.values(), *asked)}
        # A case that no pair holds against another is only run where its losses are to be shown.
        self.states = {
            key: state
            for key, state in everything.items()
            if key in needed or state.case.phase == "train"
        }
        self.asked = {state.case.key for state in asked} & self.states.keys()
        for state in self.states.values():
            state.random = self.inputs.random_nodes(state.case)
        self.progress.plan(OBSERVE_S * len(self.states))
        states = sorted(self.states.values(), key=lambda state: self.turn(state.case))
        for number, state in enumerate(states, start=1):
            case = state.case
            label = f"{number}/{len(states)}: {case.model} {case.phase} {case.label}"
            with self.progress.task(f"computing {label}", OBSERVE_S):
                self.observe_one(state)

    def turn(self, case: Case) -> int:
        """The place of a case in the order of observing."""
        if case.precision != "fp64":
            return 2
        return 0 if case.source == FILE or case.engine == self.natives[0] else 1

    def observe_one(self, state: State) -> None:
        """What a case computes; twice in one process and once in another, but for float64."""
        case = state.case
        if case.precision == "fp64":
            report = self.reference(case)
        else:
            report = self.launcher.run(self.job(case, again=True))
        state.fail(report)
        state.observed = report if report.ok else None
        state.loss = list(report.loss)
        if report.ok and case.precision != "fp64":
            repeat = self.launcher.run(self.job(case, repeats=report.bits))
            state.fail(repeat)
            state.repeat = repeat if repeat.ok else None
        if report.ok and case.key == self.truth_of(case).key and case.phase == "train":
            self.training[case.key] = str(Path(report.folder) / STATES)

    def reference(self, case: Case) -> Report:
        """A float64 evaluation. Of a file that takes too long, with one batch row."""
        if case.source != FILE:
            return self.references.run(self.job(case))
        report = self.references.run(self.job(case, deadline_s=REFERENCE_S))
        too_much = report.status in ("timeout", "out_of_memory")
        if too_much and (words := self.inputs.fewer_rows(case)):
            self.notes.append(f"{case.model}: {words}: {report.reason}")
            report = self.references.run(self.job(case, deadline_s=REFERENCE_S))
        return report

    def truth_of(self, case: Case) -> Case:
        """The float64 evaluation that a case is held against."""
        return agree.double(case, self.natives[0] if self.natives else "")

    def job(self, case: Case, **more: object) -> Job:
        """The job that observes a case, from its probe parameters."""
        is_file = case.source == FILE
        first = self.natives[0] if self.natives else ""
        moved = agree.in_double(case) if is_file else agree.single(case, first)
        truth = self.truth_of(case)
        trains = case.phase == "train"
        return self.make_job(
            "observe",
            case,
            graph=self.graph(case),
            inputs=str(self.inputs.compared(case)),
            parameter_set="probe",
            perturbations=PERTURBATIONS if case == moved and "repeats" not in more else 0,
            # Taps locate a disagreement.
            taps=case.engine in self.natives and not trains,
            # Losses are shown from the published initialiser, the start users train from.
            follow_loss=trains and case.precision != "fp64" and "repeats" not in more,
            every_batch=bool(case.cycle),
            makes_states=trains and case == truth,
            states=self.training.get(truth.key) if case != truth else None,
            **more,
        )

    # -- judging ----------------------------------------------------------------------------------

    def verdicts(self) -> Verdicts:
        """The verdicts by what is known now."""
        sides = {
            key: side for key, state in self.states.items() if (side := state.side) is not None
        }
        absent = {key: state.reason for key, state in self.states.items() if not state.ok}
        return Verdicts(self.pairs, sides, self.confirmations, self.fixed, absent)

    def agreements(self) -> list[Agreement]:
        """A verdict on every pair, but for cases that failed: their status says so."""
        failed = {key for key in self.asked if self.states[key].observed is None}
        return [found for found in self.verdicts().agreements() if found.a not in failed]

    def confirm(self) -> None:
        """Look closer at what was rejected: at its graph, then at its operators."""
        if self.fixed is not None:
            return
        confirmer = Confirmer(
            self.launcher, self.references, self.confirming_job, self.graph, self.definition
        )
        confirmer.look_closer(self.verdicts, self.confirmations, self.progress)

    def confirming_job(self, kind: str, case: Case, **more: object) -> Job:
        """A job of a closer look: on the inputs that the case was compared on."""
        return self.make_job(
            kind,
            case,
            inputs=str(self.inputs.compared(case)),
            every_batch=bool(case.cycle),
            states=self.training.get(self.truth_of(case).key),
            **more,
        )

    def definition(self, case: Case) -> verdict.Side | None:
        """What the definition of a native case computes in float64, by its own engine."""
        engine = registry.engine(case.engine)
        state = self.states.get(agree.double(case, engine.twin or engine.name).key)
        return None if state is None else state.side
