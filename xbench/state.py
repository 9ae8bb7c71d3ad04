"""What is known of a case while a run goes on, and what the document keeps of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from xbench import stats
from xbench.exports import side_of
from xbench.jobs import Report
from xbench.result import OK, CaseResult, Measurement, Profile, Ratio
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
    observed: Report | None = None
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
        return side_of(self.case, self.observed)


def results(states: Sequence[State], natives: Sequence[str]) -> list[CaseResult]:
    """Every case asked for, with what is known of it; ratios are to the reference engine's."""
    return [measured_result(state, ratio(state, states, natives)) for state in states]


def measured_result(state: State, ratio: Ratio | None) -> CaseResult:
    """What the document keeps of a case that was asked for."""
    measured = state.measurements
    status, reason = state.status, state.reason
    if state.ok and not measured:
        status, reason = INTERRUPTED, "the run was stopped before this case was measured"
    samples = [m.samples for m in measured]
    compiles = [m.compile_s for m in measured if m.compile_s is not None]
    return CaseResult(
        key=state.case.key,
        case=state.case,
        status=status,
        reason=reason,
        digests=state.digests,
        samples=samples,
        latency=stats.latency(samples) if samples else None,
        ratio=ratio,
        first_run_s=statistics.median(m.first_run_s for m in measured) if measured else None,
        load_s=statistics.median(m.load_s for m in measured) if measured else None,
        compile_s=statistics.median(compiles) if compiles else None,
        peak_memory_bytes=max((m.peak_memory_bytes for m in measured), default=None),
        placement=[
            msgspec.structs.replace(p, time_share=state.shares.get(p.ep, p.time_share))
            for p in (measured[0].placement if measured else [])
        ],
        loss=state.loss,
        profile=state.profile,
        environment=state.environment,
        notes=state.notes,
    )


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


def ratio(state: State, states: Sequence[State], natives: Sequence[str]) -> Ratio | None:
    """Time relative to the first native engine on the cpu, else to the first case measured."""
    experiment = (state.case.model, state.case.size, state.case.phase)
    peers = [
        peer
        for peer in states
        if peer.measurements and (peer.case.model, peer.case.size, peer.case.phase) == experiment
    ]
    if not state.measurements:
        return None
    first = next(
        (p for p in peers if p.case.engine in natives[:1] and p.case.device == "cpu"), peers[0]
    )
    if first is state:
        return None
    return stats.ratio(
        [m.samples for m in state.measurements],
        [m.samples for m in first.measurements],
        first.case.key,
    )
