"""One run: probe, export, measure, observe, profile, judge. Data flows one way, to a Document."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from xbench import __version__, agree, plan, registry, tensors
from xbench.bench import Settings, now
from xbench.data import Batches
from xbench.exports import BATCHES, Exported, Exports, default_cache
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import (
    SCHEMA,
    Agreement,
    Document,
    LossTable,
    Run,
)
from xbench.spec import Case
from xbench.state import State, results, witness_results

PERTURBATIONS = 8
PROFILED_S = 1.0
"""About how long to profile a case."""

WEIGHTS = {"probe": 2.0, "export": 25.0, "observe": 3.0, "profile": 3.0}
"""Rough seconds per job, to scale the progress bar."""


class Session:
    """The state of one run and its stages, in their order."""

    def __init__(self, request: Request, launcher: Launcher, progress: Progress) -> None:
        self.request = request
        self.launcher = launcher
        self.progress = progress
        self.states = {case.key: State(case) for case in plan.cases(request)}
        self.extra: dict[str, State] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.natives: list[str] = []
        self.graphs: dict[tuple[str, str], dict[str, str]] = {}
        self.data: dict[str, Batches] = {}
        self.inputs: dict[str, Path] = {}
        self.notes: list[str] = []
        self.agreements: list[Agreement] = []
        self.judged = False
        self.settings = Settings(budget_s=request.budget_s / request.rounds)

    # -- stages ---------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Read each model's input batches and write them where workers read them."""
        request = self.request
        for name in request.models:
            spec = registry.model(name)
            self.data[name] = registry.model_part(name, "data").load(
                registry.config(spec, request.size),
                batch=request.batch or spec.batch[request.size],
                count=request.steps,
                seed=request.seed,
                source=request.data,
            )
            self.inputs[name] = Path(self.launcher.scratch.name) / f"inputs-{name}.npz"
            tensors.save_batches(self.inputs[name], self.data[name].inputs)

    def probe(self) -> None:
        """Try every engine on every device; cases of what does not work here end now."""
        wanted = {(s.case.engine, s.case.device): s.case for s in self.states.values()}
        some = next(iter(self.states.values())).case
        natives = plan.natives(self.request)
        for native in natives:
            wanted.setdefault((native, "cpu"), agree.single(some, native))
        reports = self.run_jobs(
            [self.job("probe", case) for case in wanted.values()],
            label="trying {0.engine} on {0.device}",
        )
        by_place = dict(zip(wanted, reports, strict=True))
        self.natives = [name for name in natives if by_place[name, "cpu"].ok]
        for key, state in list(self.states.items()):
            report = by_place[state.case.engine, state.case.device]
            state.environment = self.environment_of(report)
            state.fail(report)
            if not report.ok and state.case.device in self.request.implied:
                del self.states[key]
                note = f"{state.case.engine} on {state.case.device} is left out: {report.reason}"
                self.notes += [] if note in self.notes else [note]

    def environment_of(self, report: Report) -> str:
        """Remember an environment by its content; its id."""
        if not report.facts:
            return ""
        facts = dict(report.facts)
        name = tensors.digest_text(msgspec.json.encode(facts, order="sorted"))[:10]
        self.environments[name] = facts
        return name

    def export(self) -> None:
        """Find or make the ONNX file of every case that needs one."""
        wanted: dict[tuple[str, str | None], list[State]] = {}
        for state in self.running():
            if state.case.source is not None:
                wanted.setdefault((state.case.model, state.case.source), []).append(state)
        if not wanted:
            return
        exporting = Exports(
            self.launcher, self.request.cache or default_cache(), self.progress.note
        )
        groups = list(wanted.values())
        self.progress.plan(WEIGHTS["export"] * len(groups))
        inputs = {name: self.verification_inputs(name) for name in self.request.models}

        def one(states: list[State]) -> Exported:
            case = states[0].case
            with self.progress.task(
                f"exporting {case.model} {case.size} from {case.source}", WEIGHTS["export"]
            ):
                return exporting.get(case, inputs[case.model])

        for states, exported in zip(groups, self.launcher.map(one, groups), strict=True):
            for state in states:
                state.fail(Report(status=exported.status, reason=exported.reason))
            self.graphs[states[0].case.model, exported.source] = exported.graphs

    def graph(self, case: Case, kind: str) -> str | None:
        """The ONNX file of a case that eats one, with the parameter set ``kind``."""
        return self.graphs.get((case.model, case.source or ""), {}).get(kind)

    def verification_inputs(self, model: str) -> Path:
        """One batch of the model's own data for each size that an export is checked at."""
        path = Path(self.launcher.scratch.name) / f"verify-{model}.npz"
        tensors.save_batches(path, verification_batches(self.request, model))
        return path

    def measure(self) -> None:
        """Rounds over all cases, in a new random order each, one process at a time."""
        rounds = self.request.rounds
        order = random.Random(self.request.seed)
        weight = self.settings.budget_s + 1.5
        self.progress.plan(weight * rounds * len(self.running()))
        for round_ in range(rounds):
            states = self.running()
            order.shuffle(states)
            for state in states:
                label = f"round {round_ + 1}/{rounds}: {state.case.phase} {state.case.label}"
                with self.progress.task(label, weight):
                    self.measure_once(state, round_)

    def measure_once(self, state: State, round_: int) -> None:
        """One fresh process of one case."""
        report = self.launcher.run(
            self.job(
                "measure",
                state.case,
                graph=self.graph(state.case, "init"),
                process=len(state.measurements),
                round=round_,
            )
        )
        state.fail(report)
        if report.measurement is not None:
            state.measurements.append(report.measurement)
            state.digests = dict(report.digests)

    def observe(self) -> None:
        """Compute what is compared, for every case and for the witnesses their verdicts need."""
        cases = [state.case for state in self.running()]
        if not self.natives:
            self.notes.append("no native engine works here: nothing could be judged in float64")
        for case in agree.witnesses(cases, self.natives):
            self.extra[case.key] = State(case)
        states = [*self.running(), *self.extra.values()]
        jobs = []
        for state in states:
            spread = state.case == agree.single(state.case, self.natives[0]) if self.natives else 0
            job = self.job(
                "observe",
                state.case,
                graph=self.graph(state.case, "probe"),
                parameter_set="probe",
                perturbations=PERTURBATIONS if spread else 0,
                taps=self.shows_taps(state.case),
                # Losses are shown from the published initialiser, the start users train from.
                follow_loss=state.case.phase == "train" and state.case.precision == "fp32",
            )
            jobs.append(job)
        reports = self.run_jobs(jobs, label="computing {0.phase} {0.label}")
        for state, report in zip(states, reports, strict=True):
            state.fail(report)
            state.observed = report if report.ok else None
            state.loss = list(report.loss)

    def shows_taps(self, case: Case) -> bool:
        """Whether to record the intermediate tensors, by which a disagreement is located."""
        return case.engine in self.natives and case.phase == "infer"

    def judge(self) -> None:
        """Verdicts on everything that was observed."""
        self.judged = True
        sides = {
            key: side
            for key, state in (self.extra | self.states).items()
            if (side := state.side) is not None
        }
        cases = [state.case for state in self.states.values() if state.observed is not None]
        self.agreements = agree.agreements(cases, sides, self.natives)

    def profile(self) -> None:
        """Operator time of every case, one at a time: profilers measure too."""
        states = self.running()
        self.progress.plan(WEIGHTS["profile"] * len(states))
        for state in states:
            medians = [statistics.median(m.samples.values_s) for m in state.measurements]
            body_s = statistics.median(medians) if medians else PROFILED_S
            steps = max(2, min(10, round(PROFILED_S / max(body_s, 1e-6))))
            label = f"profiling {state.case.phase} {state.case.label}"
            with self.progress.task(label, WEIGHTS["profile"]):
                report = self.launcher.run(
                    self.job(
                        "profile",
                        state.case,
                        graph=self.graph(state.case, "init"),
                        profile_steps=steps,
                    )
                )
            if report.ok:
                state.profile = report.profile
                state.shares = dict(report.shares)
                if medians and report.profile and not 0.5 < report.profile.wall_s / body_s < 2:
                    state.notes.append(
                        f"the profile's wall is {report.profile.wall_s / body_s:.2g} times the "
                        "measured median: the machine was not the same in both; trust neither much"
                    )
            else:
                state.notes.append(f"no profile: {report.status}: {report.reason}")

    # -- helpers --------------------------------------------------------------------------------

    def running(self) -> list[State]:
        """Cases that nothing has gone wrong with yet."""
        return [state for state in self.states.values() if state.ok]

    def job(self, kind: str, case: Case, **more: object) -> Job:
        """A job on a case, in a folder of its own."""
        return msgspec.structs.replace(
            Job(
                kind=kind,
                case=case,
                folder=str(self.launcher.folder()),
                inputs=str(self.inputs[case.model]),
                settings=self.settings,
            ),
            **more,
        )

    def run_jobs(self, jobs: Sequence[Job], label: str) -> Iterator[Report]:
        """Jobs whose time does not matter, one after the other, each report as soon as it is there.

        Two at once would be slower: docs/decisions/0006.
        """
        self.progress.plan(sum(WEIGHTS[job.kind] for job in jobs))
        for job in jobs:
            with self.progress.task(label.format(job.case), WEIGHTS[job.kind]):
                report = self.launcher.run(job)
            yield report


def verification_batches(request: Request, model: str) -> list[dict[str, tensors.Array]]:
    """One batch of each size of ``exports.BATCHES``, different data in each."""
    spec = registry.model(model)
    config = registry.config(spec, request.size)
    load = registry.model_part(model, "data").load
    return [
        load(config, batch=batch, count=1, seed=seed, source=request.data).inputs[0]
        for seed, batch in enumerate(BATCHES)
    ]


def losses(session: Session) -> LossTable | None:
    """The trivial predictor's loss on the batches of the training cases."""
    trained = [s for s in session.states.values() if s.case.phase == "train" and s.loss]
    if not trained:
        return None
    case = trained[0].case
    part = registry.model_part(case.model, "data")
    spec = registry.model(case.model)
    config = registry.config(spec, case.size)
    batches = session.data[case.model]
    return LossTable(
        loss=case.loss,
        data=printable(batches.description),
        baseline_name=" ".join([part.BASELINE_NAME, part.baseline_note(case.loss)]).strip(),
        baseline=[part.baseline(batch, case.loss, config) for batch in batches.inputs],
    )


def printable(text: str) -> str:
    """Text that can be written as UTF-8: file names may hold bytes that are none."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def execute(request: Request, progress: Progress, command: Sequence[str]) -> Document:
    """Do all of a run. Ctrl-C ends it early and keeps what was measured.

    Raises UsageError for what no case can be made of, DataError for data that cannot be read.
    """
    started, begin = datetime.now(UTC), now()
    interrupted = False
    with Launcher(fresh=request.fresh, time_limit_s=request.time_limit_s) as launcher:
        session = Session(request, launcher, progress)
        session.prepare_data()
        try:
            session.probe()
            session.export()
            session.measure()
            session.observe()
            session.judge()
            session.profile()
        except KeyboardInterrupt:
            interrupted = True
            launcher.stop()
            if not session.judged:
                session.judge()
        cases = [
            *results(list(session.states.values()), session.natives),
            *witness_results(list(session.extra.values())),
        ]
    return Document(
        schema=SCHEMA,
        run=Run(
            id=f"{started:%Y%m%d-%H%M%S}-{tensors.digest_text(str(started).encode())[:4]}",
            started=started.isoformat(timespec="seconds"),
            command=[printable(word) for word in command],
            xbench=__version__,
            wall_s=now() - begin,
            interrupted=interrupted,
        ),
        environments=session.environments,
        cases=cases,
        agreements=session.agreements,
        losses=losses(session),
        notes=session.notes,
    )
