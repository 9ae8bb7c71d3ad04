"""What is known of a case while a run goes on, and what the document keeps of it."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from xbench import guards, plan, speed, stats
from xbench.agree import side_of
from xbench.jobs import Report
from xbench.noise import floor
from xbench.result import OK, CaseResult, Latency, Measurement, Noise, Profile, Ratio, Soak
from xbench.spec import Case
from xbench.verdict import Side

INTERRUPTED = "interrupted"


@dataclass
class State:
    """What is known of a case so far."""

    case: Case
    status: str = OK
    reason: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    walls_s: list[float] = field(default_factory=list)
    costs_s: list[float] = field(default_factory=list)
    soak: Soak | None = None
    observed: Report | None = None
    repeat: Report | None = None
    random: str = ""
    loss: list[float] = field(default_factory=list)
    profile: Profile | None = None
    shares: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    environment: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.status == OK

    def fail(self, report: Report) -> None:
        """Take the status of a job that did not end well; the first one stays."""
        if self.ok and not report.ok:
            self.status, self.reason = report.status, report.reason

    @property
    def side(self) -> Side | None:
        """What the case computed, as one side of a pair; None where it computed nothing."""
        if self.observed is None:
            return None
        return side_of(self.case, self.observed, self.repeat, self.random)


def results(
    states: Sequence[State],
    natives: Sequence[str],
    noise: Noise | None,
    against: Mapping[str, str],
    timed: bool = True,
) -> list[CaseResult]:
    """Every case asked for, with what is known of it; without ``timed`` none was measured.

    Ratios are to the case that ``against`` names, by key, else to the reference engine's.
    """
    found = [
        ratio(state, to)
        for state, to in zip(states, references(states, natives, against), strict=True)
    ]
    present = [item for item in found if item is not None]
    floors = [None if noise is None else floor(noise, item.rounds) for item in present]
    judged = iter(speed.judge(present, floors))
    return [
        measured_result(state, None if item is None else next(judged), timed)
        for state, item in zip(states, found, strict=True)
    ]


def measured_result(state: State, ratio: Ratio | None, timed: bool = True) -> CaseResult:
    """What the document keeps of a case that was asked for; ``timed``: it was to be measured."""
    measured = state.measurements
    status, reason = state.status, state.reason
    if state.ok and not measured and (state.observed is None or timed):
        status, reason = INTERRUPTED, "the run was stopped before this case was measured"
    samples = [m.samples for m in measured]
    latency = stats.latency(samples) if samples else None
    conditions = [m.conditions for m in measured if m.conditions is not None]
    return CaseResult(
        key=state.case.key,
        case=state.case,
        status=status,
        reason=reason,
        digests=state.digests or (dict(state.observed.digests) if state.observed else {}),
        samples=samples,
        latency=latency,
        ratio=ratio,
        first_run_s=middle(m.first_run_s for m in measured),
        load_s=middle(m.load_s for m in measured),
        compile_s=middle(m.compile_s for m in measured if not m.cold),
        compile_cold_s=middle(m.compile_s for m in measured if m.cold),
        peak_memory_bytes=max((m.peak_memory_bytes for m in measured), default=None),
        items_per_s=items_per_s(state, latency),
        device_median_s=middle(
            statistics.median(m.samples.device_s) for m in measured if m.samples.device_s
        ),
        end_to_end_s=middle(statistics.median(m.end_to_end_s) for m in measured if m.end_to_end_s),
        effective_precision=measured[0].effective_precision if measured else "",
        visits=[visit for m in measured for visit in m.visits],
        conditions=conditions,
        soak=state.soak,
        placement=[
            msgspec.structs.replace(p, time_share=state.shares.get(p.ep, p.time_share))
            for p in (measured[0].placement if measured else [])
        ],
        loss=state.loss,
        profile=state.profile,
        environment=state.environment,
        notes=[*state.notes, *guards.warnings(conditions)],
    )


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the values that are there; None where none is."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def items_per_s(state: State, latency: Latency | None) -> float | None:
    """Batch items a second: from the median, or as counted where several threads ran."""
    if latency is None:
        return None
    if state.case.cycle:
        items = sum(plan.items(shape) for shape in (state.case.shape, *state.case.cycle))
        return items / latency.median_s
    counted = middle(m.per_s for m in state.measurements)
    return state.case.batch * (1 / latency.median_s if counted is None else counted)


def witness_results(states: Sequence[State]) -> list[CaseResult]:
    """Cases that only served a verdict: in the document, so that every key in it is known."""
    found = []
    for state in states:
        status, reason = state.status, state.reason
        if state.ok and state.observed is None:
            status, reason = INTERRUPTED, "the run was stopped before this was computed"
        found.append(
            CaseResult(
                key=state.case.key,
                case=state.case,
                status=status,
                reason=reason,
                digests=dict(state.observed.digests) if state.observed else {},
                asked=False,
            )
        )
    return found


def ratio(state: State, to: State | None) -> Ratio | None:
    """Time of a case relative to another's; None where either was not measured."""
    if to is None or not state.measurements or not to.measurements:
        return None
    return stats.ratio(
        [m.samples for m in state.measurements],
        [m.samples for m in to.measurements],
        to.case.key,
    )


def references(
    states: Sequence[State], natives: Sequence[str], against: Mapping[str, str]
) -> list[State | None]:
    """What each case's time is held against: the first native engine on the cpu, else the first.

    The one in the same setting (threads, precision, concurrency, draws); the reference of a
    setting is itself held against the first case of the same batch. None where that is the case
    itself. Where ``against`` names cases, by key, it is those and no others.
    """
    if against:
        by_key = {state.case.key: state for state in states}
        return [by_key.get(against.get(state.case.key, "")) for state in states]
    firsts: dict[Hashable, State] = {}
    of_setting: dict[Hashable, State] = {}
    for state in states:
        if state.measurements:
            for found, key in (
                (firsts, comparable(state.case)),
                (of_setting, comparable_in_setting(state.case)),
            ):
                best = found.setdefault(key, state)
                if native(state.case, natives) and not native(best.case, natives):
                    found[key] = state
    references: list[State | None] = []
    for state in states:
        first = firsts.get(comparable(state.case))
        nearest = of_setting.get(comparable_in_setting(state.case), first)
        to = first if nearest is state else nearest
        references.append(None if to is state else to)
    return references


def native(case: Case, natives: Sequence[str]) -> bool:
    """Whether others are held against it: the first native engine, on the cpu."""
    return case.engine in natives[:1] and case.device == "cpu"


def comparable(case: Case) -> Hashable:
    """Cases alike in these may be held against each other."""
    return experiment(case), case.batch, case.concurrency


def comparable_in_setting(case: Case) -> Hashable:
    return comparable(case), setting(case)


def experiment(case: Case) -> tuple[str, ...]:
    """Cases alike in these stand in one table."""
    return case.model, case.size, case.phase, case.graph


def setting(case: Case) -> tuple[object, ...]:
    """Cases of one experiment that are alike in these were measured in the same setting."""
    return case.threads, case.precision, case.concurrency, case.draws
