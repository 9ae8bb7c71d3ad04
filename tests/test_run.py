"""Whole runs by the fake runner: what is planted must be found, and nothing that was found lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.command import alive, wait_until
from xbench import exits, store
from xbench import run as running
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import CaseResult, Document
from xbench.spec import PHASES


def execute(progress: Progress | None = None, **changes: object) -> Document:
    common = {
        "models": ("prednet",),
        "size": "tiny",
        "engines": ("fake",),
        "rounds": 2,
        "budget_s": 0.04,
        "steps": 1,
    }
    request = Request(**common | changes)  # type: ignore[arg-type]
    document = running.execute(request, progress or Progress(), ["run"])
    wait_until(lambda: not alive())
    return exits.with_exit(document, allow=(), strict=False)


def plant(patch: pytest.MonkeyPatch, **fake: str) -> None:
    patch.setenv("XBENCH_FAKE", json.dumps(fake))


def by_phase(document: Document) -> Mapping[str, CaseResult]:
    return {result.case.phase: result for result in document.cases if result.asked}


class Interrupting(Progress):
    """Presses Ctrl-C when a task begins whose label starts with ``at``, after ``passes`` such."""

    def __init__(self, at: str, passes: int = 0) -> None:
        self.at, self.passes = at, passes

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        if label.startswith(self.at):
            self.passes -= 1
            if self.passes < 0:
                raise KeyboardInterrupt
        yield


def test_a_run_measures_compares_and_profiles_everything() -> None:
    document = execute(rounds=3, steps=2)
    cases = by_phase(document)
    assert set(cases) == set(PHASES)
    for result in cases.values():
        assert (result.status, result.reason) == ("ok", "")
        assert [(s.process, s.round) for s in result.samples] == [(0, 0), (1, 1), (2, 2)]
        assert result.latency is not None
        assert result.latency.processes == 3
        assert result.latency.n == sum(len(s.values_s) for s in result.samples)
        assert result.profile is not None
        assert result.environment in document.environments
        assert set(result.digests) == {"parameters", "inputs"}
    assert len(cases["train"].loss) == 2
    (losses,) = document.losses
    assert len(losses.baseline) == 2
    assert sorted((a.what, a.verdict) for a in document.agreements) == [
        (what, "agree") for what in ("gradients", "loss", "outputs", "trajectory")
    ]
    keys = {result.key for result in document.cases}
    assert {key for a in document.agreements for key in (a.a, a.b)} <= keys
    assert (document.exit_status, document.exit_reasons) == (0, [])


def test_spawned_processes_give_the_same_verdicts() -> None:
    forked, spawned = (execute(rounds=1, phases=("infer",), fresh=f) for f in ("fork", "spawn"))
    assert forked.agreements == spawned.agreements
    assert [a.verdict for a in forked.agreements] == ["agree"]


def test_a_slower_phase_is_found_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, phase="train", duration_s="0.02")
    cases = by_phase(execute())
    assert cases["infer"].latency is not None
    assert cases["train"].latency is not None
    assert cases["train"].latency.median_s > cases["infer"].latency.median_s
    # Whatever the machine does, sleeping lasts no shorter.
    assert cases["train"].latency.median_s >= 0.02


def test_a_planted_error_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, error="0.01", phase="infer")
    document = execute(rounds=1)
    verdicts = {a.what: a.verdict for a in document.agreements}
    assert verdicts == {
        "outputs": "disagree", "loss": "agree", "gradients": "agree", "trajectory": "agree",
    }  # fmt: skip
    assert document.exit_status == 4
    assert document.exit_reasons[0].startswith("disagree: fake cpu and fake cpu fp64 on outputs")


def test_an_error_beyond_rounding_is_inconclusive_and_fails_only_a_strict_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The limit is 4 eps = 4.8e-7 of the outputs: three times that, where ten times disagrees.
    plant(monkeypatch, error="1.5e-6", phase="infer")
    document = execute(rounds=1, phases=("infer",))
    assert [a.verdict for a in document.agreements] == ["inconclusive"]
    assert document.exit_status == 0
    assert exits.with_exit(document, allow=(), strict=True).exit_status == 3


@pytest.mark.parametrize(
    ("fail", "stage", "status", "reason"),
    [
        ("kill", "run", "crashed", "SIGKILL"),
        ("exit", "run", "crashed", "last words"),
        ("oom", "run", "out_of_memory", "run out of memory"),
        ("unavailable", "load", "unavailable", "told to be"),
        ("nan", "check", "failed", "not finite"),
        ("hang", "run", "timeout", "time limit of 2 s"),
        ("crash", "observe", "crashed", "SIGABRT"),
    ],
)
def test_a_fault_ends_its_case_and_no_other(
    fail: str, stage: str, status: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, fail=fail, stage=stage, phase="infer")
    document = execute(rounds=1, time_limit_s=2.0 if fail == "hang" else 60.0)
    cases = by_phase(document)
    assert (cases["infer"].status, reason in cases["infer"].reason) == (status, True)
    # What was measured before it failed is kept.
    assert bool(cases["infer"].samples) == (stage == "observe")
    assert cases["train"].status == "ok"
    assert cases["train"].latency is not None
    assert {a.what for a in document.agreements} == {"loss", "gradients", "trajectory"}
    assert document.exit_status == 3
    assert document.exit_reasons == [f"{status}: infer fake cpu"]


JUDGED: dict[str, Any] = {
    "phases": ("infer",),
    "rounds": None,
    "budget_s": None,
    "speed": False,
    "profile": False,
}
"""Verdicts on inference and nothing else."""


def test_without_speed_there_are_verdicts_and_no_times() -> None:
    document = execute(**JUDGED)
    (result,) = by_phase(document).values()
    assert (result.status, result.samples, result.latency) == ("ok", [], None)
    assert set(result.digests) == {"parameters", "inputs"}
    assert [a.verdict for a in document.agreements] == ["agree"]
    assert document.exit_status == 0


def second_process(patch: pytest.MonkeyPatch, change: Callable[[Job], Report | Job]) -> None:
    """Meddle with the job, or give the report, of the process that computes a case once more."""
    run = Launcher.run

    def changed(launcher: Launcher, job: Job) -> Report:
        found = change(job) if job.repeats else job
        return run(launcher, found) if isinstance(found, Job) else found

    patch.setattr(Launcher, "run", changed)


def test_a_second_process_that_fails_ends_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    second_process(monkeypatch, lambda _: Report(status="crashed", reason="planted"))
    document = execute(**JUDGED)
    (result,) = by_phase(document).values()
    assert (result.status, result.reason) == ("crashed", "planted")
    assert document.exit_status == 3


def test_a_second_process_that_computes_something_else_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def off(job: Job) -> Job:
        case = msgspec.structs.replace(job.case, options={"error": "1e-3"})
        return msgspec.structs.replace(job, case=case)

    second_process(monkeypatch, off)
    (agreement,) = execute(**JUDGED).agreements
    assert agreement.verdict == "inconclusive"
    assert "fake cpu differs from itself in a second run" in agreement.sentence
    evidence = agreement.evidence
    assert evidence is not None
    assert evidence.self_rms is not None
    scale = agreement.tensors[0].reference_rms
    assert scale is not None
    assert evidence.self_rms == pytest.approx(1e-3 * scale, rel=0.01)


@pytest.mark.parametrize("at", ["looking closer", "checking the operators"])
def test_ctrl_c_in_a_closer_look_keeps_the_verdict(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, error="0.01", phase="infer")
    document = execute(Interrupting(at), **JUDGED)
    assert [a.verdict for a in document.agreements] == ["disagree"]
    assert document.run.interrupted
    assert document.exit_status == 130
    assert "interrupted" in document.exit_reasons


def test_losses_that_are_not_finite_fail_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, error="nan")
    document = execute(rounds=1)
    cases = by_phase(document)
    assert (cases["train"].status, cases["train"].loss) == ("failed", [])
    assert [a.verdict for a in document.agreements] == ["disagree"]
    assert store.decode(store.encode(document), "it").exit_status == 4


def test_a_device_that_was_asked_for_is_reported_and_an_implied_one_left_out() -> None:
    asked = execute(rounds=1, devices=("cuda", "cpu"), phases=("infer",))
    status = {r.case.device: (r.status, r.reason) for r in asked.cases if r.asked}
    assert status == {
        "cuda": ("unavailable", "the fake runner has no CUDA device"),
        "cpu": ("ok", ""),
    }
    assert asked.exit_status == 3
    implied = execute(rounds=1, devices=("cpu", "cuda"), implied=("cuda",), phases=("infer",))
    assert [r.case.device for r in implied.cases if r.asked] == ["cpu"]
    # What disturbs the machine of the test is noted too.
    assert implied.notes[0] == "fake on cuda is left out: the fake runner has no CUDA device"
    assert implied.exit_status == 0


@pytest.mark.parametrize(
    ("at", "passes", "rounds", "judged", "profiled"),
    [
        ("trying", 0, [], 0, 0),
        ("round", 0, [], 0, 0),
        ("round", 1, [1], 0, 0),
        ("computing", 0, [2, 2], 0, 0),
        # Observed are infer and train in float64, then infer in float32: that pair is judged.
        ("computing", 3, [2, 2], 1, 0),
        ("profiling", 0, [2, 2], 4, 0),
        ("profiling", 1, [2, 2], 4, 1),
    ],
)
def test_ctrl_c_keeps_what_was_found(
    at: str, passes: int, rounds: list[int], judged: int, profiled: int
) -> None:
    document = execute(Interrupting(at, passes))
    cases = by_phase(document)
    assert set(cases) == set(PHASES)
    assert sorted(len(r.samples) for r in cases.values() if r.samples) == rounds
    for result in cases.values():
        assert result.status == ("ok" if result.samples else "interrupted")
        assert bool(result.reason) == (not result.samples)
    assert [a.verdict for a in document.agreements].count("agree") == judged
    assert sum(r.profile is not None for r in cases.values()) == profiled
    for witness in (r for r in document.cases if not r.asked):
        assert witness.status == ("ok" if witness.digests else "interrupted")
    assert document.run.interrupted
    assert document.exit_status == 130
    assert document.exit_reasons[-1] == "interrupted"
    assert store.decode(store.encode(document), "it") == document


def test_ctrl_c_while_judging_is_not_answered_by_judging_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def judge(*_: object) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr("xbench.judging.Judging.agreements", judge)
    document = execute(rounds=1)
    assert calls == [1]
    assert document.exit_status == 130
    assert all(result.samples for result in by_phase(document).values())


FAULTS = st.fixed_dictionaries(
    {},
    optional={
        "fail": st.sampled_from(("kill", "exit", "raise", "oom", "noise", "unavailable", "nan")),
        "stage": st.sampled_from(("probe", "load", "run", "check", "observe")),
        "phase": st.sampled_from(PHASES),
        "error": st.sampled_from(("1e-4", "0.5", "nan", "inf", "1e38")),
    },
)


@given(FAULTS, st.sampled_from(PHASES), st.integers(1, 2), st.integers(0, 2**31 - 1))
@example({"error": "inf"}, "train", 1, 0)
@example({"error": "1e38"}, "train", 1, 0)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_document_of_any_run_can_be_written_and_read(
    fake: dict[str, str], phase: str, steps: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, **fake)
        document = execute(phases=(phase,), rounds=1, budget_s=0.01, steps=steps, seed=seed)
    data = store.encode(document)
    read = store.decode(data, "it")
    # JSON has no NaN and no infinity: they come back as null. All else is the same.
    assert store.encode(read) == data
    assert len(read.cases) >= 1
    assert read.exit_status in (0, 3, 4)
