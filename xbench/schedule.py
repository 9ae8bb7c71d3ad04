"""How often each case is measured, and for how long: rounds, budget, precision.

A fresh process is one observation, so more processes are worth more than longer ones. Where a
replicate is cheap there are many of them; where it is not, the least that gives an interval which
holds. A budget that was asked for is kept; the default one gives way to a body that is longer.
Rounds go over all cases of a run. Those beyond the least are begun while they fit into the time of
a run, so that a suite of many cases ends, with as many rounds for each.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from xbench import stats
from xbench.bench import Settings
from xbench.result import Measurement

CHEAP_S = 1.0
"""A replicate that takes no longer is cheap: process, load, compile, first run and samples."""
CHEAP_ROUNDS = 30
"""Rounds of a cheap case. On a machine with noisy neighbours (standard deviation of paired ratios
12 %, heavy tails) trimmed ratios of 30 rounds find a 5 % slow-down in 95 of 100 resampled trials,
those of 20 in 84; benchmarks/README.md has the measured ones."""
ROUNDS = 6
"""Rounds of any other case, and the least before ``ci_width`` may stop one."""
BUDGET_S = 5.0
"""Seconds of warm-up and samples per case, unless asked for otherwise."""
PRECISE_BUDGET_S = 60.0
"""The same where a width is asked for, which ends most cases before."""
SUITE_S = 300.0
"""Seconds for all rounds of a run: what does not fit is not begun, but for the first ``ROUNDS`` and
where rounds, budget or width are asked for. The cases of one model take less; see decision 16."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; see ``plan.Request``."""

    rounds: int | None = None
    budget_s: float | None = None
    ci_width: float | None = None
    iterations: int | None = None

    @property
    def total_s(self) -> float:
        """Seconds of warm-up and samples that a case may take over all its processes."""
        if self.budget_s is not None:
            return self.budget_s
        return BUDGET_S if self.ci_width is None else PRECISE_BUDGET_S

    def settings(self, costs_s: Sequence[float]) -> Settings:
        """How long the next process of a case samples. ``costs_s``: of its processes so far."""
        rounds = self.most(costs_s)
        share = (BUDGET_S if self.budget_s is None else self.budget_s) / rounds
        strict = self.budget_s is not None
        return Settings(
            budget_s=share,
            # A budget that was asked for buys what it buys; else each process gets its samples.
            min_samples=1 if strict else Settings().min_samples,
            iterations=self.iterations,
        )

    def most(self, costs_s: Sequence[float]) -> int:
        """How many rounds a case gets at most, by what its processes so far have cost."""
        return self.rounds or (CHEAP_ROUNDS if cheap(costs_s) else ROUNDS)

    def begins(self, round_: int, spent_s: float, next_s: float) -> bool:
        """Whether a run begins ``round_``, counted from 0, which will take ``next_s``.

        ``spent_s`` is what the rounds before it took, over all cases.
        """
        asked = (self.rounds, self.budget_s, self.ci_width) != (None, None, None)
        return asked or round_ < ROUNDS or spent_s + next_s <= SUITE_S

    def outlook(
        self, round_: int, spent_s: float, replicates: Sequence[tuple[float, int]]
    ) -> list[float]:
        """Seconds of each round from ``round_`` on.

        ``replicates`` are the cases: seconds of a process, and how many rounds it gets at most.
        """
        found: list[float] = []
        while True:
            number = round_ + len(found)
            next_s = sum(each_s for each_s, most in replicates if number < most)
            if not next_s or not self.begins(number, spent_s + sum(found), next_s):
                return found
            found.append(next_s)

    def wants(self, done: Sequence[Measurement], costs_s: Sequence[float]) -> bool:
        """Whether a case is to be measured in another process."""
        if not done:
            return True
        if self.precise(done):
            return False
        if self.rounds is not None:
            return len(done) < self.rounds
        if self.budget_s is not None or self.ci_width is not None:
            # The next one will take what the last one took.
            spent_s = sum(sampling_s(one) for one in done) + sampling_s(done[-1])
            limited = self.iterations is None or self.ci_width is not None
            if limited and spent_s > 1.1 * self.total_s:
                return False
        if self.ci_width is not None:
            return True
        return len(done) < self.most(costs_s)

    def precise(self, done: Sequence[Measurement]) -> bool:
        """Whether the interval of a case is as narrow as was asked for."""
        if self.ci_width is None or len(done) < ROUNDS:
            return False
        width = stats.half_width(stats.latency([one.samples for one in done]))
        return width is not None and width <= self.ci_width

    def too_small(self, first: Measurement) -> str:
        """Why the budget does not hold one sample of a case; empty where it does."""
        body_s = statistics.median(first.samples.values_s)
        if self.budget_s is None or self.iterations is not None:
            return ""
        if self.rounds is not None and self.rounds * body_s > self.budget_s:
            return (
                f"the budget of {self.budget_s:g} s is too small for one sample in each of "
                f"{self.rounds} rounds: a run takes {body_s:.3g} s; fewer --rounds, or --budget "
                f"{10 * self.rounds * body_s:.2g}"
            )
        if body_s <= self.budget_s:
            return ""
        return (
            f"the budget of {self.budget_s:g} s is too small for one sample: a run takes "
            f"{body_s:.3g} s; --budget {10 * body_s:.2g} allows ten"
        )


def cheap(costs_s: Sequence[float]) -> bool:
    """Whether replicates of a case are, by what they took so far; they are until one was not."""
    return not costs_s or statistics.median(costs_s) <= CHEAP_S


def cost_s(wall_s: float, one: Measurement) -> float:
    """Seconds that a replicate takes where it samples as long as a cheap one.

    ``wall_s`` is what it took in all. What it sampled longer, because it was asked to, does not
    make it dear; that its body is long does.
    """
    body_s = statistics.median(one.samples.values_s)
    least = 1 + Settings().min_samples
    return wall_s - sampling_s(one) + max(BUDGET_S / CHEAP_ROUNDS, least * body_s)


def sampling_s(one: Measurement) -> float:
    """Seconds that a process spent on warm-up and samples."""
    if one.conditions is not None:
        return one.conditions.wall_s
    return sum(one.samples.values_s) * one.samples.per_sample
