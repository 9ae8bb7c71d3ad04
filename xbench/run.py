"""One run: probe, export, measure, observe, profile, judge. Data flows one way, to a Document."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from xbench import __version__, agree, guards, noise, plan, registry, soaking, tensors
from xbench import files as onnx_files
from xbench.bench import Settings, now
from xbench.errors import UsageError, unknown
from xbench.exports import Exported, Exports, default_cache
from xbench.inputs import Inputs
from xbench.jobs import Job, Report
from xbench.judging import Judging
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import (
    SCHEMA,
    Agreement,
    Document,
    Noise,
    Run,
)
from xbench.schedule import CHEAP_ROUNDS, SUITE_S, Schedule, cost_s
from xbench.spec import FILE, Case
from xbench.state import State, witness_results
from xbench.state import results as measured_results
from xbench.tolerances import unknown_names
from xbench.written import losses, printable, writable

PROFILED_S = 1.0
"""About how long to profile a case."""

WEIGHTS = {"probe": 2.0, "export": 25.0}
"""Rough seconds per job, to scale the progress bar."""
REPLICATE_S = 0.6
"""Seconds of a process that measures, until the first one has."""
AFTER = {"compare": 3.0, "profile": 2.0}
"""What a stage takes for a case, in processes that measure it: docs/decisions/0016."""


class Session:
    """The state of one run and its stages, in their order."""

    def __init__(
        self,
        request: Request,
        cases: Sequence[Case],
        inputs: Inputs,
        launcher: Launcher,
        progress: Progress,
        noise_file: Path | None,
        *,
        speed_only: bool,
    ) -> None:
        self.request = request
        self.speed_only = speed_only
        self.inputs = inputs
        self.launcher = launcher
        self.progress = progress
        self.states = {case.key: State(case) for case in cases}
        self.extra: dict[str, State] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.natives: list[str] = []
        self.graphs: dict[tuple[object, ...], dict[str, str]] = {}
        self.notes: list[str] = []
        self.agreements: list[Agreement] = []
        self.judging: Judging | None = None
        self.judged = False
        self.noise_file = noise_file
        self.noise: Noise | None = None
        self.schedule = Schedule(
            rounds=request.rounds,
            budget_s=request.budget_s,
            ci_width=request.ci_width,
            iterations=request.iterations,
        )

    # -- stages ---------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Read or draw the inputs of every case and write them where workers read them."""
        for state in self.states.values():
            self.inputs.prepare(state.case)

    def probe(self) -> None:
        """Try every engine on every device; cases of what does not work here end now."""
        wanted = {(s.case.engine, s.case.device): s.case for s in self.states.values()}
        # What evaluates the reference; a user's file has none.
        some = next((s.case for s in self.states.values() if s.case.source != FILE), None)
        natives = plan.natives(self.request) if some is not None else []
        for native in natives:
            assert some is not None
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
        wanted: dict[tuple[object, ...], list[State]] = {}
        for state in self.running():
            case = state.case
            if case.source == FILE:
                path = self.inputs.files[case.graph].path
                self.graphs[self.graph_key(case)] = {"init": path, "probe": path}
            elif case.source is not None:
                wanted.setdefault(self.graph_key(case), []).append(state)
        if not wanted:
            return
        cache = Path(self.request.cache) if self.request.cache else default_cache()
        exporting = Exports(self.launcher, cache, self.progress.note)
        groups = list(wanted.values())
        self.progress.plan(WEIGHTS["export"] * len(groups))
        checked = [self.inputs.verification(states[0].case) for states in groups]

        def one(index: int) -> Exported:
            case = agree.plain(groups[index][0].case)
            with self.progress.task(
                f"exporting {case.model} {case.size} from {case.source}", WEIGHTS["export"]
            ):
                return exporting.get(case, checked[index])

        made = self.launcher.map(one, range(len(groups)))
        for key, states, exported in zip(wanted, groups, made, strict=True):
            for state in states:
                state.fail(Report(status=exported.status, reason=exported.reason))
            self.graphs[key] = exported.graphs

    def graph(self, case: Case, kind: str) -> str | None:
        """The ONNX file of a case that eats one, with the parameter set ``kind``."""
        return self.graphs.get(self.graph_key(case), {}).get(kind)

    def graph_key(self, case: Case) -> tuple[object, ...]:
        """What cases that share an ONNX file have in common."""
        return case.model, case.size, case.source, case.seed, case.graph

    def look_around(self) -> None:
        """How noisy this machine is, by what is known, and what disturbs it right now."""
        if not self.running():
            return
        devices = {state.case.device for state in self.running()}
        threads = max(state.case.threads for state in self.running())
        self.notes += guards.before(sorted(devices), threads)
        known = registry.engines()
        real = all(known[state.case.engine].shipped for state in self.running())
        if self.noise_file is not None and real:
            compared = len(self.running()) > 1 and self.request.soak_s is None
            self.noise = noise.known(
                self.noise_file,
                self.launcher,
                self.progress,
                renew=compared,
                threads=threads,
            )

    def measure(self) -> None:
        """Rounds over all cases, in a new random order each, one process at a time."""
        order = random.Random(self.request.seed)
        for round_ in itertools.count():
            states = [s for s in self.running() if self.schedule.wants(s.measurements, s.costs_s)]
            if not states:
                return
            spent_s = sum(sum(state.walls_s) for state in self.states.values())
            order.shuffle(states)
            weights = [self.replicate_s(state) for state in states]
            if not self.schedule.begins(round_, spent_s, sum(weights)):
                self.notes.append(shared_out(states))
                return
            self.progress.plan(sum(weights))
            for number, (state, weight) in enumerate(zip(states, weights, strict=True), start=1):
                rounds_s = self.outlook(round_, spent_s)
                after_s = self.after_s("compare", "profile")
                self.progress.later(None if after_s is None else sum(rounds_s[1:]) + after_s)
                of = f"{round_ + 1}/{round_ + max(1, len(rounds_s))}"
                label = f"round {of}, case {number}/{len(states)}: {named(state.case)}"
                with self.progress.task(label, weight):
                    self.measure_once(state, round_)

    def replicate_s(self, state: State) -> float:
        """Seconds that a process of a case takes: as before, else as those of the others so far."""
        if state.walls_s:
            return statistics.median(state.walls_s)
        known = [other.walls_s[0] for other in self.states.values() if other.walls_s]
        return statistics.fmean(known) if known else REPLICATE_S

    def outlook(self, round_: int, spent_s: float) -> list[float]:
        """Seconds of each round from ``round_`` on, by what processes have taken so far."""
        replicates = [(self.replicate_s(s), self.schedule.most(s.costs_s)) for s in self.running()]
        return self.schedule.outlook(round_, spent_s, replicates)

    def after_s(self, *stages: str) -> float | None:
        """Seconds that these stages take, by what processes of the same cases have taken.

        None where none has been measured yet.
        """
        wanted = {"compare": not self.speed_only, "profile": self.request.profile}
        share = sum(AFTER[stage] for stage in stages if wanted[stage])
        if share and not any(state.walls_s for state in self.states.values()):
            return None
        return share * sum(map(self.replicate_s, self.running()))

    def measure_once(self, state: State, round_: int) -> None:
        """One fresh process of one case."""
        begin = now()
        report = self.launcher.run(
            self.job(
                "measure",
                state.case,
                graph=self.graph(state.case, "init"),
                settings=self.schedule.settings(state.costs_s),
                process=len(state.measurements),
                round=round_,
            )
        )
        state.walls_s.append(now() - begin)
        state.fail(report)
        if report.measurement is None:
            return
        if not state.measurements and (reason := self.schedule.too_small(report.measurement)):
            state.fail(Report(status="failed", reason=reason))
        state.measurements.append(report.measurement)
        state.costs_s.append(cost_s(state.walls_s[-1], report.measurement))
        state.digests = dict(report.digests)

    def soak(self) -> None:
        """One process of every case in turn, each for as long as was asked for."""
        duration_s = self.request.soak_s
        assert duration_s is not None
        states = self.running()
        self.progress.plan((duration_s + 1.5) * len(states))
        for number, state in enumerate(states, start=1):
            label = f"soaking {number}/{len(states)}: {named(state.case)}"
            with self.progress.task(label, duration_s + 1.5):
                report = self.launcher.run(
                    self.job(
                        "soak",
                        state.case,
                        graph=self.graph(state.case, "init"),
                        settings=Settings(budget_s=duration_s),
                        extra_s=duration_s,
                    )
                )
            state.fail(report)
            if report.measurement is not None and report.soak is not None:
                state.measurements.append(report.measurement)
                state.digests = dict(report.digests)
                state.soak = soaking.with_trends(report.soak)

    def observe(self) -> None:
        """Compute what is compared, and look closer at what does not agree."""
        cases = [state.case for state in self.running()]
        if not self.natives and any(case.source != FILE for case in cases):
            self.notes.append("no native engine works here: nothing could be judged in float64")
        self.judging = Judging(
            self.request,
            self.natives,
            self.inputs,
            self.launcher,
            self.progress,
            job=self.job,
            graph=lambda case: self.graph(case, "probe"),
        )
        self.progress.later(self.after_s("profile"))
        self.judging.observe(self.running(), self.extra)
        self.judging.confirm()

    def judge(self) -> None:
        """Verdicts on everything that was observed, also until an interruption."""
        self.judged = True
        if self.judging is not None:
            self.agreements = self.judging.agreements()
            self.notes += self.judging.notes

    def profile(self) -> None:
        """Operator time of every case, one at a time: profilers measure too."""
        states = self.running()
        weights = [AFTER["profile"] * self.replicate_s(state) for state in states]
        self.progress.later(0.0)
        self.progress.plan(sum(weights))
        for number, (state, weight) in enumerate(zip(states, weights, strict=True), start=1):
            medians = medians_of_one_run(state)
            body_s = statistics.median(medians) if medians else PROFILED_S
            steps = max(2, min(10, round(PROFILED_S / max(body_s, 1e-6))))
            label = f"profiling {number}/{len(states)}: {named(state.case)}"
            with self.progress.task(label, weight):
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
                alone = state.case.concurrency == 1
                if (
                    alone
                    and medians
                    and report.profile
                    and not 0.5 < report.profile.wall_s / body_s < 2
                ):
                    state.notes.append(
                        f"the profile's wall is {report.profile.wall_s / body_s:.2g} times the "
                        "measured median: the profiler cost that much, or the machine was not the "
                        "same in both; trust neither much"
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
                inputs=str(self.inputs.path(case)),
                signature=self.inputs.signature(case),
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


def named(case: Case) -> str:
    """What progress calls a case."""
    return f"{case.model} {case.phase} {case.label}"


def shared_out(states: Sequence[State]) -> str:
    """The note of a run whose time was spent before every case had all its rounds."""
    rounds = min(len(state.measurements) for state in states)
    return (
        f"{len(states)} cases got {rounds} rounds each, not {CHEAP_ROUNDS}: the rounds of a run "
        f"share {SUITE_S:g} s; --rounds, --budget or --ci-width ask for more"
    )


def medians_of_one_run(state: State) -> list[float]:
    """The median of a run by process; of a cycle, of its first shape, which is what is profiled."""
    if state.case.cycle:
        first = [m.visits[0].samples for m in state.measurements if m.visits]
    else:
        first = [m.samples for m in state.measurements]
    return [statistics.median(samples.values_s) for samples in first]


def check_tolerances(request: Request, outputs: Sequence[str]) -> None:
    """Raise UsageError for a fixed tolerance of an output that nothing has."""
    known = list(dict.fromkeys(outputs))
    for name in unknown_names((*request.atol, *request.rtol), known):
        raise unknown("output", name, known)


def execute(
    request: Request,
    progress: Progress,
    command: Sequence[str],
    *,
    cases: Sequence[Case] | None = None,
    against: Mapping[str, str] | None = None,
    speed_only: bool = False,
    noise_file: Path | None = None,
) -> Document:
    """Do all of a run. Ctrl-C ends it early and keeps what was measured.

    ``cases`` replaces those of the request; ``against`` names, by key, the case that another's
    ratio is to, where it is not the usual reference; ``speed_only`` leaves agreements and profiles
    out. ``noise_file`` holds this machine's A/A noise, measured anew when old; None: not used.
    Raises UsageError for what no case can be made of, DataError for data that cannot be read.
    """
    plan.check(request)
    started, begin = datetime.now(UTC), now()
    interrupted = False
    with Launcher(fresh=request.fresh, time_limit_s=request.time_limit_s) as launcher:
        files = onnx_files.inspect(request.files, launcher) if request.files else {}
        chosen = plan.cases(request, files) if cases is None else cases
        inputs = Inputs(request, Path(launcher.scratch.name), files)
        for case in chosen:
            if case.source == FILE and case.graph not in inputs.files:
                raise UsageError(
                    f"the file {case.model} is not what it was when this was measured: keep both "
                    "versions, under names of their own"
                )
        check_tolerances(request, [name for case in chosen for name in inputs.output_names(case)])
        session = Session(
            request, chosen, inputs, launcher, progress, noise_file, speed_only=speed_only
        )
        progress.later(None)  # Nothing has been measured yet.
        session.prepare_data()
        try:
            session.probe()
            session.export()
            if request.speed:
                session.look_around()
            if request.soak_s is not None:
                session.soak()
            elif request.speed:
                session.measure()
            if not speed_only:
                session.observe()
                session.judge()
            if request.profile and not speed_only:
                session.profile()
        except KeyboardInterrupt:
            interrupted = True
            launcher.stop()
            if not session.judged and not speed_only:
                session.judge()
        results = [
            *measured_results(
                list(session.states.values()),
                session.natives,
                session.noise,
                against or {},
                request.speed,
            ),
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
            request=writable(msgspec.to_builtins(request)),
        ),
        environments=session.environments,
        cases=results,
        agreements=session.agreements,
        losses=losses(session.states.values(), session.inputs),
        noise=session.noise,
        notes=session.notes,
    )
