"""How often a case is measured and how long: rounds, budget, width, iterations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import options, stats
from xbench.bench import Settings
from xbench.result import Conditions, Measurement, Samples
from xbench.schedule import (
    BUDGET_S,
    CHEAP_ROUNDS,
    CHEAP_S,
    PRECISE_BUDGET_S,
    ROUNDS,
    SUITE_S,
    Schedule,
    cheap,
    cost_s,
    sampling_s,
)

FEW, MANY = 0.001, 0.2
"""Spread of process medians, as a standard deviation of their logs."""


def one(
    *values_s: float, index: int = 0, per_sample: int = 1, wall_s: float | None = None
) -> Measurement:
    """What one process measured; ``wall_s`` is what the sampling took, where it was watched."""
    watched = None if wall_s is None else Conditions(wall_s=wall_s, cpus=1, own_cpu_s=0.0)
    return Measurement(
        samples=Samples(process=index, round=index, values_s=list(values_s), per_sample=per_sample),
        load_s=100.0,
        compile_s=100.0,
        first_run_s=100.0,
        peak_memory_bytes=1,
        placement=[],
        conditions=watched,
    )


def processes(
    schedule: Schedule, *, takes_s: float, walls_s: float = 0.5, medians: Sequence[float] = (1.0,)
) -> int:
    """How many processes a case gets where each samples for ``takes_s``."""
    done: list[Measurement] = []
    walls: list[float] = []
    while schedule.wants(done, walls):
        median = medians[len(done) % len(medians)]
        done.append(one(median, index=len(done), wall_s=takes_s))
        walls.append(walls_s)
        assert len(done) < 1000, "it never ends"
    return len(done)


# -- rounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("walls_s", "rounds"), [(0.1, 30), (CHEAP_S, 30), (1.01, 6), (500.0, 6)])
def test_a_cheap_case_gets_thirty_rounds_and_a_dear_one_six(walls_s: float, rounds: int) -> None:
    assert (CHEAP_ROUNDS, ROUNDS) == (30, 6)
    assert processes(Schedule(), takes_s=0.25, walls_s=walls_s) == rounds


@pytest.mark.parametrize("rounds", [1, 2, 7, 31])
@pytest.mark.parametrize("walls_s", [0.1, 50.0])
@pytest.mark.parametrize("takes_s", [0.01, 1000.0])
def test_rounds_that_were_asked_for_are_kept(rounds: int, walls_s: float, takes_s: float) -> None:
    # The default budget gives way.
    assert processes(Schedule(rounds=rounds), takes_s=takes_s, walls_s=walls_s) == rounds


def test_every_case_is_measured_once_whatever_was_asked() -> None:
    for schedule in (Schedule(), Schedule(budget_s=1e-9), Schedule(rounds=1, iterations=1)):
        assert schedule.wants([], [])
        assert processes(schedule, takes_s=1000.0, walls_s=1000.0) >= 1


def test_the_median_of_the_replicates_says_whether_they_are_cheap() -> None:
    assert cheap([])
    assert cheap([9.0, 0.5, 0.6])
    assert not cheap([0.5, 1.1, 1.2])
    done = [one(1.0, index=i) for i in range(6)]
    assert Schedule().wants(done, [9.0, 0.5, 0.5, 0.5, 0.5, 9.0]), "two slow starts are no rule"
    assert not Schedule().wants(done, [0.5, 0.5, 9.0, 9.0, 9.0, 9.0])


# -- budget --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget_s", "takes_s", "rounds"),
    [
        (20.0, 0.5, 30),  # It holds all of them.
        (10.0, 1.0, 11),  # The last one may begin where a tenth more is enough for it.
        (10.0, 3.0, 3),
        (10.0, 100.0, 1),
        (0.1, 0.5, 1),
    ],
)
def test_a_budget_that_was_asked_for_ends_a_case(
    budget_s: float, takes_s: float, rounds: int
) -> None:
    assert processes(Schedule(budget_s=budget_s), takes_s=takes_s) == rounds


@given(st.floats(0.1, 100), st.floats(1.0, 100))
def test_no_budget_is_exceeded_by_more_than_a_tenth_or_one_process(
    budget_s: float, takes_s: float
) -> None:
    for ci_width in (None, 1e-9):
        schedule = Schedule(budget_s=budget_s, ci_width=ci_width)
        found = processes(schedule, takes_s=takes_s, medians=(1.0, 1.3))
        assert found == 1 or found * takes_s <= 1.1 * budget_s * (1 + 1e-9)


def test_rounds_that_were_asked_for_count_before_a_budget() -> None:
    """The budget is their share; a start that takes longer does not cost a round."""
    assert processes(Schedule(rounds=10, budget_s=3.0), takes_s=1.0) == 10
    assert processes(Schedule(rounds=2, budget_s=3.0), takes_s=0.1) == 2


def test_the_budget_is_shared_by_the_rounds() -> None:
    def share(walls_s: Sequence[float] = (), **fields: Any) -> float:
        return Schedule(**fields).settings(walls_s).budget_s

    assert share() == BUDGET_S / CHEAP_ROUNDS
    assert share(walls_s=[9.0]) == BUDGET_S / 6
    assert share(budget_s=60.0) == 2.0
    assert share(budget_s=60.0, walls_s=[9.0]) == 10.0
    assert share(budget_s=60.0, rounds=4) == 15.0
    assert share(rounds=10) == BUDGET_S / 10
    assert share(ci_width=0.01) == BUDGET_S / CHEAP_ROUNDS, "more processes rather than longer ones"


def test_a_budget_that_was_asked_for_is_not_stretched_for_a_long_body() -> None:
    assert Schedule().settings([]).min_samples == Settings().min_samples > 1
    assert Schedule(budget_s=1.0).settings([]).min_samples == 1


def test_what_a_process_spent_is_its_wall_or_its_samples() -> None:
    assert sampling_s(one(1.0, 2.0, 3.0)) == 6.0
    assert sampling_s(one(1.0, 2.0, 3.0, per_sample=10)) == 60.0
    assert sampling_s(one(1.0, 2.0, 3.0, wall_s=9.0)) == 9.0
    watched = [one(1.0, index=i, wall_s=4.0) for i in range(2)]
    assert not Schedule(budget_s=10.0).wants(watched, [1.0, 1.0])
    assert Schedule(budget_s=10.0).wants([one(1.0, index=i) for i in range(2)], [1.0, 1.0])


# -- width ---------------------------------------------------------------------------------------


def test_a_width_that_is_reached_stops_a_case_after_six_rounds() -> None:
    schedule = Schedule(ci_width=0.01)
    assert processes(schedule, takes_s=0.25, medians=(1.0, 1.001)) == ROUNDS
    assert processes(schedule, takes_s=0.25, medians=(1.0,)) == ROUNDS, "three would do, but no"
    assert processes(schedule, takes_s=0.25, medians=(1.0, 1.001), walls_s=50.0) == ROUNDS


def test_a_width_that_is_not_reached_goes_on_until_the_budget() -> None:
    takes_s = 0.25
    expected = math.floor(1.1 * PRECISE_BUDGET_S / takes_s + 1e-9)
    assert expected > CHEAP_ROUNDS
    for walls_s in (0.5, 50.0):
        schedule = Schedule(ci_width=1e-6)
        assert processes(schedule, takes_s=takes_s, medians=(1.0, 1.3), walls_s=walls_s) == expected
    asked = Schedule(ci_width=1e-6, budget_s=5.0)
    assert processes(asked, takes_s=takes_s, medians=(1.0, 1.3)) == 22


def test_the_width_is_what_decides_in_between() -> None:
    medians = (1.0, 1.02, 0.99, 1.01, 1.03)
    found = processes(Schedule(ci_width=0.01), takes_s=0.25, medians=medians)
    assert ROUNDS < found < 200

    def width(rounds: int) -> float:
        samples = [one(medians[i % 5], index=i).samples for i in range(rounds)]
        half = stats.half_width(stats.latency(samples))
        assert half is not None
        return half

    assert width(found) <= 0.01
    assert all(width(rounds) > 0.01 for rounds in range(ROUNDS, found))


def test_rounds_that_were_asked_for_end_a_case_before_its_width_does() -> None:
    assert processes(Schedule(ci_width=1e-6, rounds=9), takes_s=0.25, medians=(1.0, 1.3)) == 9
    assert processes(Schedule(ci_width=0.5, rounds=9), takes_s=0.25) == ROUNDS
    assert processes(Schedule(ci_width=0.5, rounds=3), takes_s=0.25) == 3


def test_a_width_is_never_reached_before_six_rounds() -> None:
    done = [one(1.0, index=i) for i in range(ROUNDS)]
    schedule = Schedule(ci_width=0.01)
    assert [schedule.precise(done[:n]) for n in range(1, ROUNDS + 1)] == [False] * 5 + [True]
    assert not Schedule().precise(done)


# -- iterations ----------------------------------------------------------------------------------


def test_iterations_reach_the_process_and_no_budget_ends_them() -> None:
    schedule = Schedule(iterations=7, budget_s=1.0)
    assert schedule.settings([]).iterations == 7
    assert Schedule().settings([]).iterations is None
    assert processes(schedule, takes_s=1000.0) == CHEAP_ROUNDS
    assert processes(schedule, takes_s=1000.0, walls_s=1000.0) == ROUNDS
    assert processes(Schedule(iterations=7, rounds=3), takes_s=1000.0) == 3


def test_a_width_that_iterations_cannot_reach_ends_all_the_same() -> None:
    schedule = Schedule(iterations=7, ci_width=1e-6)
    assert processes(schedule, takes_s=1.0, medians=(1.0, 1.3)) <= 1.1 * PRECISE_BUDGET_S


# -- too small a budget --------------------------------------------------------------------------


def test_a_budget_that_holds_no_sample_says_which_would() -> None:
    reason = Schedule(budget_s=0.5).too_small(one(2.0, 3.0, 9.0))
    assert reason == (
        "the budget of 0.5 s is too small for one sample: a run takes 3 s; --budget 30 allows ten"
    )


@pytest.mark.parametrize("body_s", [0.1, 0.5])
def test_a_budget_that_holds_one_sample_is_enough(body_s: float) -> None:
    assert Schedule(budget_s=0.5).too_small(one(body_s)) == ""


def test_the_default_budget_is_never_too_small() -> None:
    for schedule in (Schedule(), Schedule(ci_width=0.01), Schedule(rounds=1)):
        assert schedule.too_small(one(1e6)) == ""


@given(st.floats(1e-6, 1e6))
def test_the_budget_that_is_named_can_be_given_and_is_enough(body_s: float) -> None:
    reason = Schedule(budget_s=body_s / 2).too_small(one(body_s))
    named = re.search(r"--budget (\S+) allows ten", reason)
    assert named is not None
    asked = options.duration_s("--budget", named[1])
    assert asked == pytest.approx(10 * body_s, rel=0.06)
    assert Schedule(budget_s=asked).too_small(one(body_s)) == ""


def test_a_longer_budget_does_not_make_a_case_dear() -> None:
    # 1.2 s in all, of which 1 s was sampling because it was asked to.
    assert cost_s(1.2, one(0.02, wall_s=1.0)) == pytest.approx(0.2 + BUDGET_S / CHEAP_ROUNDS)
    # A long body does: it is run five times at the least.
    assert cost_s(1.6, one(0.3, wall_s=1.5)) == pytest.approx(0.1 + 5 * 0.3)


def test_a_budget_must_hold_a_sample_of_every_round() -> None:
    schedule = Schedule(rounds=30, budget_s=5.0)
    assert schedule.too_small(one(0.1)) == ""
    message = schedule.too_small(one(0.5))
    assert "too small for one sample in each of 30 rounds" in message
    assert "fewer --rounds, or --budget 1.5e+02" in message


# -- the time of a run ---------------------------------------------------------------------------


def rounds_of(schedule: Schedule, *replicates: tuple[float, int]) -> int:
    return len(schedule.outlook(0, 0.0, replicates))


def cheap_ones(count: int, each_s: float) -> list[tuple[float, int]]:
    return [(each_s, CHEAP_ROUNDS)] * count


def test_a_run_of_few_cases_has_all_its_rounds() -> None:
    assert rounds_of(Schedule(), *cheap_ones(10, 1.0)) == CHEAP_ROUNDS
    assert rounds_of(Schedule(), (100.0, ROUNDS), (1.0, CHEAP_ROUNDS)) == ROUNDS, "600 s are spent"


@pytest.mark.parametrize("count", [1, 12, 36, 64, 1000])
@pytest.mark.parametrize("each_s", [0.1, 0.5, 1.0])
def test_many_cases_share_the_time_and_have_six_rounds_each(count: int, each_s: float) -> None:
    found = rounds_of(Schedule(), *cheap_ones(count, each_s))
    assert ROUNDS <= found <= CHEAP_ROUNDS
    if found > ROUNDS:
        assert found * count * each_s <= SUITE_S
    if found < CHEAP_ROUNDS:
        assert (found + 1) * count * each_s > SUITE_S


def test_dear_cases_take_no_part_in_later_rounds() -> None:
    schedule = Schedule()
    rounds_s = schedule.outlook(0, 0.0, [(10.0, ROUNDS), *cheap_ones(2, 1.0)])
    assert rounds_s == [12.0] * ROUNDS + [2.0] * (CHEAP_ROUNDS - ROUNDS)
    # From the middle of a run it is what is left of the same.
    assert schedule.outlook(5, 60.0, [(10.0, ROUNDS), *cheap_ones(2, 1.0)]) == rounds_s[5:]


@pytest.mark.parametrize("asked", [{"rounds": 20}, {"budget_s": 9.0}, {"ci_width": 0.01}])
def test_what_was_asked_for_is_not_shared_out(asked: dict[str, Any]) -> None:
    assert Schedule(**asked).begins(ROUNDS, 10 * SUITE_S, 1.0)
    assert not Schedule().begins(ROUNDS, 10 * SUITE_S, 1.0)
    assert not Schedule(iterations=5).begins(ROUNDS, 10 * SUITE_S, 1.0), (
        "that says nothing of rounds"
    )


def test_a_run_begins_no_round_that_its_time_does_not_hold() -> None:
    assert Schedule().begins(ROUNDS - 1, 10 * SUITE_S, 10 * SUITE_S)
    assert Schedule().begins(ROUNDS, SUITE_S - 1.0, 1.0)
    assert not Schedule().begins(ROUNDS, SUITE_S - 1.0, 1.5)


def test_the_most_rounds_of_a_case() -> None:
    assert Schedule().most([]) == Schedule().most([0.5]) == CHEAP_ROUNDS
    assert Schedule().most([9.0]) == ROUNDS
    assert Schedule(rounds=4).most([9.0]) == Schedule(rounds=4).most([]) == 4
