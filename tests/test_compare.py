"""Comparing two runs, on documents made here whose truth is known."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from xbench import stats
from xbench.compare import Comparison, compare
from xbench.errors import DataError, UsageError
from xbench.gate import gate
from xbench.pairing import repeatable
from xbench.ratios import DEFAULT_RUN_SD, LEAST_RUN_SD, spread_between
from xbench.result import SCHEMA, Agreement, CaseResult, Document, Noise, Ratio, Run, Samples
from xbench.spec import Case
from xbench.stats import between_runs

MACHINE = {"cpu": "A 1", "cpus": "2", "os": "Linux 6", "memory_gib": "8.0"}


def case(**fields: Any) -> Case:
    common: dict[str, Any] = {
        "model": "prednet", "size": "small", "phase": "infer", "engine": "torch", "device": "cpu",
        "shape": {"x": (1, 3)},
    }  # fmt: skip
    return Case(**(common | fields))


def samples(time_s: float, *, seed: int = 0, sd: float = 0.0, processes: int = 12) -> list[Samples]:
    noise = random.Random(seed)
    return [
        Samples(process=p, round=p, values_s=[time_s * math.exp(noise.gauss(0, sd))] * 3)
        for p in range(processes)
    ]


def ran(what: Case | None = None, time_s: float = 1.0, **fields: Any) -> CaseResult:
    what = what or case()
    common: dict[str, Any] = {"samples": samples(time_s, sd=0.01), "environment": "e"}
    common |= fields
    if common["samples"]:
        common["latency"] = stats.latency(common["samples"])
    return CaseResult(key=what.key, case=what, status=common.pop("status", "ok"), **common)


def document(*cases: CaseResult, **fields: Any) -> Document:
    name = fields.pop("name", "run")
    run = Run(
        id=name, started="2026-01-01T00:00:00", command=["run"], xbench="1",
        request=fields.pop("request", {}), interrupted=fields.pop("interrupted", False),
    )  # fmt: skip
    common: dict[str, Any] = {"environments": {"e": MACHINE | {"torch": "2.13"}}, "agreements": []}
    return Document(schema=SCHEMA, run=run, cases=list(cases), **(common | fields))


def agreement(judged: CaseResult, against: CaseResult, verdict: str) -> Agreement:
    return Agreement(
        a=judged.key, b=against.key, what="outputs", tensors=[], evidence=None, tolerance=None,
        verdict=verdict, sentence="",
    )  # fmt: skip


def quiet(**fields: Any) -> Noise:
    values: dict[str, Any] = {"run_sd": 0.01, "runs": 30} | fields
    return Noise(machine="m", measured="now", pair_sd=0.02, processes=30, **values)


# -- statistics -------------------------------------------------------------------------------


def test_the_interval_is_the_one_of_the_formula() -> None:
    """Against scipy's t, written down here a second time."""
    from scipy.stats import t

    a, b = samples(1.0, seed=1, sd=0.03, processes=5), samples(1.2, seed=2, sd=0.06, processes=9)
    logs = [np.log([s.values_s[0] for s in side]) for side in (a, b)]
    parts = [math.pi / 2 * x.var(ddof=1) / len(x) for x in logs] + [2 * 0.02**2]
    variance = sum(parts)
    df = variance**2 / sum(p**2 / n for p, n in zip(parts, (4, 8, 6), strict=True))
    log = float(np.median(logs[1]) - np.median(logs[0]))
    found = between_runs(a, b, 0.02, 6)
    assert found is not None
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ratio == pytest.approx(math.exp(log))
    half = t.ppf(0.975, df) * math.sqrt(variance)
    assert (found.ci_low, found.ci_high) == pytest.approx(
        (math.exp(log - half), math.exp(log + half)), rel=1e-9
    )
    assert found.p == pytest.approx(2 * t.sf(abs(log) / math.sqrt(variance), df), rel=1e-6)


@pytest.mark.parametrize(("processes", "has"), [(1, False), (2, False), (3, True)])
def test_no_interval_under_three_processes(processes: int, has: bool) -> None:
    few, many = samples(1.0, processes=processes), samples(2.0)
    for a, b in ((few, many), (many, few)):
        found = between_runs(a, b, 0.02)
        assert found is not None
        assert (found.p is not None) == (found.ci_low is not None) == has
    assert between_runs([], many, 0.02) is None
    assert between_runs(many, [], 0.02) is None


def test_swapping_the_sides_inverts_the_ratio() -> None:
    a, b = samples(1.0, seed=1, sd=0.05), samples(1.3, seed=2, sd=0.02)
    one, two = between_runs(a, b, 0.02), between_runs(b, a, 0.02)
    assert one is not None
    assert two is not None
    assert one.ratio * two.ratio == pytest.approx(1)
    assert one.p == pytest.approx(two.p)
    assert (one.ci_low or 0) * (two.ci_high or 0) == pytest.approx(1)


def test_a_ratio_of_steady_times_without_noise_between_runs() -> None:
    one, two = samples(1.0), samples(2.0)
    found, none = between_runs(one, two, 0.0), between_runs(one, one, 0.0)
    assert found is not None
    assert none is not None
    assert found.ratio == pytest.approx(2)
    assert found.p == 0.0
    assert (none.ratio, none.p) == (1.0, 1.0)


def stored(seed: int, run_sd: float, process_sd: float, factor: float = 1.0) -> list[Samples]:
    noise = random.Random(seed)
    return samples(factor * math.exp(noise.gauss(0, run_sd)), seed=seed + 10**6, sd=process_sd)


def test_the_same_thing_stored_twice_is_not_called_different() -> None:
    """200 A/A pairs with a run effect of 2 %, processes of 3 %; without the term many would be."""
    claimed = naive = 0
    for trial in range(200):
        a, b = stored(2 * trial, 0.02, 0.03), stored(2 * trial + 1, 0.02, 0.03)
        verdicts = compare(document(ran(samples=a)), document(ran(samples=b))).rows[0]
        claimed += verdicts.verdict in ("slower", "faster")
        alone = between_runs(a, b, 0.0)
        naive += alone is not None and (alone.p or 0.0) <= 0.01
    assert claimed <= 4  # 1 % is two; the default is wider than this noise.
    assert naive >= 20


def test_a_planted_slow_down_is_found_on_a_quiet_machine() -> None:
    found = 0
    for trial in range(50):
        a, b = stored(2 * trial, 0.01, 0.03), stored(2 * trial + 1, 0.01, 0.03, factor=1.1)
        row = compare(
            document(ran(samples=a), noise=quiet()), document(ran(samples=b), noise=quiet())
        ).rows[0]
        assert row.verdict in ("slower", "inconclusive")
        found += row.verdict == "slower"
    assert found >= 45


def test_faster_and_slower_have_their_direction() -> None:
    a, b = document(ran(time_s=1.0)), document(ran(time_s=1.4))
    row, back = compare(a, b).rows[0], compare(b, a).rows[0]
    assert (row.verdict, back.verdict) == ("slower", "faster")
    assert row.ratio == pytest.approx(1.4)
    assert "1.400 times as long" in row.sentence
    assert (row.family, row.margin, row.method) == (1, 0.02, "stored")


def test_holm_is_over_all_pairs() -> None:
    """A difference that is sure alone is not sure among many."""
    cases = [case(seed=seed) for seed in range(50)]
    a = [ran(what) for what in cases]
    b = [ran(what, 1.11 if what.seed == 0 else 1.0) for what in cases]
    assert compare(document(a[0]), document(b[0])).rows[0].verdict == "slower"
    rows = compare(document(*a), document(*b)).rows
    assert rows[0].verdict == "inconclusive"
    assert rows[0].family == 50


def test_the_noise_between_runs_is_the_larger_one_known() -> None:
    one = ran()

    def spread(a: Noise | None, b: Noise | None) -> tuple[float, float, bool]:
        found = spread_between(document(one, noise=a), document(one, noise=b))
        return found.run_sd, found.df, found.known

    assert spread(None, None) == (DEFAULT_RUN_SD, math.inf, False)
    assert spread(quiet(run_sd=0.03, runs=5), quiet(run_sd=0.02)) == (0.03, 4.0, True)
    assert spread(None, quiet(run_sd=0.001, runs=9)) == (LEAST_RUN_SD, 8.0, True)
    assert spread(quiet(run_sd=None), None) == (DEFAULT_RUN_SD, math.inf, False)
    assert spread(quiet(run_sd=0.05, runs=1), None) == (DEFAULT_RUN_SD, math.inf, False)
    unknown = compare(document(one), document(one))
    known = compare(document(one, noise=quiet()), document(one))
    assert "doctor --noise" in " ".join(unknown.notes)
    assert "doctor --noise" not in " ".join(known.notes)
    assert (unknown.run_sd_known, known.run_sd_known) == (False, True)


# -- what differs around the cases ------------------------------------------------------------


def other_environment(**facts: str) -> dict[str, dict[str, str]]:
    return {"e": MACHINE | {"torch": "2.13"} | facts}


@pytest.mark.parametrize("fact", ["cpu", "cpus", "gpu"])
def test_another_machine_gets_figures_but_no_verdict(fact: str) -> None:
    a, b = document(ran()), document(ran(time_s=1.5), environments=other_environment(**{fact: "9"}))
    found = compare(a, b)
    row = found.rows[0]
    assert (row.verdict, row.p) == ("", None)
    assert row.ratio == pytest.approx(1.5)
    assert "another machine" in row.sentence
    assert found.differences[0].kind == "machine"
    assert any("without a verdict" in note for note in found.notes)
    across = compare(a, b, across_machines=True)
    assert across.rows[0].verdict == "slower"
    assert any("machine and code together" in note for note in across.notes)


@pytest.mark.parametrize("fact", ["memory_gib", "os", "torch"])
def test_other_facts_are_named_and_no_more(fact: str) -> None:
    b = document(ran(time_s=1.5), environments=other_environment(**{fact: "9"}))
    found = compare(document(ran()), b)
    assert [(d.what, d.b, d.where) for d in found.differences] == [(fact, "9", ("torch cpu",))]
    assert found.rows[0].verdict == "slower"


def test_an_unknown_machine_gets_no_verdict() -> None:
    found = compare(document(ran()), document(ran(time_s=1.5), environments={}))
    assert found.rows[0].verdict == ""
    assert "does not say on which machine" in found.rows[0].sentence


def test_versions_and_ways_of_starting_are_told() -> None:
    a = document(ran(), request={"fresh": "fork"})
    b = document(ran(), request={"fresh": "spawn"})
    b = msgspec.structs.replace(b, run=msgspec.structs.replace(b.run, xbench="2"))
    found = compare(a, b)
    assert [(d.what, d.a, d.b) for d in found.differences] == [
        ("xbench", "1", "2"), ("fresh", "fork", "spawn"),
    ]  # fmt: skip
    assert any("memory does not compare" in note for note in found.notes)


def test_digests_that_differ_are_named() -> None:
    a = ran(digests={"inputs": "1", "parameters": "2"})
    b = ran(time_s=1.5, digests={"inputs": "3", "parameters": "2"})
    row = compare(document(a), document(b)).rows[0]
    assert [(d.what, d.a, d.b) for d in row.differences] == [("inputs", "1", "3")]
    assert "same shapes" in row.sentence
    assert row.verdict == "slower"
    unknown = case(model="net", size="file", engine="ort", source="file", graph="g", shape={})
    a = ran(unknown, digests={"inputs": "1"})
    b = ran(unknown, 1.5, digests={"inputs": "3"})
    row = compare(document(a), document(b)).rows[0]
    assert row.verdict == ""
    assert "shapes are not recorded" in row.sentence


@pytest.mark.parametrize("status", ["failed", "timeout", "interrupted", "unavailable"])
def test_what_did_not_run_appears_with_its_status(status: str) -> None:
    broken = ran(status=status, reason="out of\nluck")
    row = compare(document(ran()), document(broken, interrupted=True)).rows[0]
    assert (row.a_status, row.b_status, row.ratio, row.verdict) == ("ok", status, None, "")
    assert f"no longer runs in B: {status}: out of" in row.sentence
    mended = compare(document(broken), document(ran())).rows[0]
    assert "did not in A" in mended.sentence
    assert "in neither" in compare(document(broken), document(broken)).rows[0].sentence
    found = compare(document(ran()), document(broken, interrupted=True))
    assert any("B (run run) was interrupted" in note for note in found.notes)


def test_agreements_loss_and_memory() -> None:
    reference = case(precision="fp64")
    witness = ran(reference, samples=[], asked=False)
    a = ran(loss=[3.0, 2.0, 1.0], peak_memory_bytes=100)
    b = ran(loss=[3.0, 2.2], peak_memory_bytes=150)
    found = compare(
        document(a, witness, agreements=[agreement(a, witness, "agree")]),
        document(b, witness, agreements=[agreement(b, witness, "disagree")]),
    )
    (row,) = found.rows
    assert [(x.a, x.b) for x in row.changed] == [("agree", "disagree")]
    assert "outputs against torch cpu fp64: agree -> disagree" in row.sentence
    assert row.loss is not None
    assert (row.loss.step, row.loss.a, row.loss.b) == (2, 2.0, 2.2)
    assert row.loss.relative == pytest.approx(0.1)
    assert row.memory_ratio == 1.5


def test_a_witness_is_shown_where_it_was_judged_and_never_missing() -> None:
    one, two = (ran(case(precision="fp64", seed=s), samples=[], asked=False) for s in (0, 1))
    a = document(ran(), one, two, agreements=[agreement(one, two, "agree")])
    b = document(ran(), one, agreements=[agreement(one, two, "disagree")])
    found = compare(a, b)
    assert [row.asked for row in found.rows] == [True, False]
    assert found.unmatched_a == []
    assert gate(found, "missing") == []
    assert "disagree" in gate(found, "disagree")[0]


def test_a_comparison_survives_json() -> None:
    b = document(ran(case(threads=2), 1.5, loss=[1.0]), environments=other_environment(torch="3"))
    found = compare(document(ran(loss=[2.0])), b)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


# -- damaged documents ------------------------------------------------------------------------


def test_a_case_twice_is_damage() -> None:
    with pytest.raises(DataError, match="more than once"):
        compare(document(ran(), ran()), document(ran()))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_times_that_cannot_be_are_damage(value: float) -> None:
    bad = msgspec.structs.replace(ran(), samples=[Samples(process=0, round=0, values_s=[value])])
    with pytest.raises(DataError, match=r"cannot be.*took"):
        compare(document(ran()), document(bad))


def test_nothing_in_common_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="run a has no case at all; run b has prednet"):
        compare(document(name="a"), document(ran(), name="b"))
    many = [ran(case(model=f"m{i}")) for i in range(9)]
    with pytest.raises(UsageError, match="and 4 more"):
        compare(document(*many), document(ran()))


def test_nothing_timed_is_said() -> None:
    row = compare(document(ran(samples=[])), document(ran())).rows[0]
    assert "nothing was timed" in row.sentence


# -- measured again ---------------------------------------------------------------------------


def again(a: Case, b: Case, factor: float, **fields: Any) -> Document:
    """A rerun of a pair: both sides in the same rounds, on a machine that drifts by 20 %."""
    drift = [1.0 + 0.2 * math.sin(r) for r in range(15)]
    noise = random.Random(5)

    def arm(what: Case, side: str, time_s: float) -> CaseResult:
        timed = [
            Samples(process=r, round=r, values_s=[time_s * d * math.exp(noise.gauss(0, 0.01))])
            for r, d in enumerate(drift)
        ]
        return ran(msgspec.structs.replace(what, arm=side), samples=timed)

    one, two = arm(a, "A", 1.0), arm(b, "B", factor)
    floor = fields.pop("floor", None)
    if floor is not None:
        ratio = Ratio(to=one.key, ratio=1, ci_low=None, ci_high=None, rounds=15, floor=floor)
        two = msgspec.structs.replace(two, ratio=ratio)
    return document(one, two, name="again", **fields)


def test_a_rerun_replaces_the_ratio() -> None:
    one, two = case(), case(threads=2)
    a, b = document(ran(one)), document(ran(two, 1.05))
    assert compare(a, b).rows[0].verdict == "inconclusive"
    row = compare(a, b, rerun=again(one, two, 1.05)).rows[0]
    assert (row.method, row.verdict) == ("interleaved", "slower")
    assert row.ratio == pytest.approx(1.05, abs=0.015)
    assert "measured again, interleaved, in 15 rounds" in row.sentence
    assert compare(a, b, rerun=again(one, two, 1.0)).rows[0].verdict == "same"
    floored = compare(a, b, rerun=again(one, two, 1.05, floor=0.08)).rows[0]
    assert (floored.margin, floored.floor) == (0.08, 0.08)
    assert floored.verdict in ("same", "inconclusive")
    assert repeatable(a, b) == [(one, two)]


def test_a_rerun_on_one_machine_compares_runs_of_two() -> None:
    one, two = case(), case(threads=2)
    a, b = document(ran(one)), document(ran(two, 1.5), environments=other_environment(cpu="9"))
    assert compare(a, b).rows[0].verdict == ""
    assert compare(a, b, rerun=again(one, two, 1.1)).rows[0].verdict == "slower"


def test_a_rerun_without_the_change_in_it_gives_no_verdict() -> None:
    """Both arms ran with the torch of today: the step from 2.13 to 2.14 was not repeated."""
    a, b = document(ran()), document(ran(time_s=1.5), environments=other_environment(torch="2.14"))
    row = compare(a, b, rerun=again(case(), case(), 1.0)).rows[0]
    assert (row.method, row.verdict) == ("interleaved", "")
    assert "did not have the change of torch" in row.sentence


def test_a_rerun_that_lacks_a_pair_leaves_the_stored_ratio() -> None:
    a, b = document(ran()), document(ran(time_s=1.5))
    elsewhere = compare(a, b, rerun=again(case(seed=9), case(seed=9), 1.0)).rows[0]
    assert elsewhere.method == "stored"
    assert "not measured again" in elsewhere.sentence
    broken = again(case(), case(), 1.0)
    failed = msgspec.structs.replace(broken.cases[1], status="timeout", reason="slow")
    broken = msgspec.structs.replace(broken, cases=[broken.cases[0], failed])
    row = compare(a, b, rerun=broken).rows[0]
    assert row.method == "stored"
    assert "not measured again: timeout: slow" in row.sentence
    with pytest.raises(DataError, match="no arms"):
        compare(a, b, rerun=document(ran()))
