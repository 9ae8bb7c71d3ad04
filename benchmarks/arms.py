"""One case measured under several names in one run: what the A/A and power studies are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from xbench import environment, plan, run
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import CaseResult, Document
from xbench.spec import Case


def request(
    engine: str,
    *,
    threads: int | None = None,
    budget_s: float | None = None,
    rounds: int | None = None,
) -> Request:
    """A cheap case: PredNet tiny, inference. The engine `noise` computes its own fixed body."""
    return Request(
        models=("prednet",),
        size="tiny",
        phases=("infer",),
        engines=(engine,),
        sources=("torch",),
        threads=(threads or environment.usable_cpus(),),
        steps=1,
        rounds=rounds,
        budget_s=budget_s,
    )


def arms(asked: Request, names: Sequence[str], options: Mapping[str, dict[str, str]]) -> list[Case]:
    """The one case of a request once per name, with the options that a name has."""
    (case,) = plan.cases(asked)
    return [
        msgspec.structs.replace(case, arm=name, options=dict(case.options) | options.get(name, {}))
        for name in names
    ]


def measure(asked: Request, cases: Sequence[Case], against: Mapping[str, str]) -> Document:
    """One run of the cases, in the product's own schedule; only speed."""
    document = run.execute(
        asked, Progress(), ["benchmark"], cases=cases, against=against, speed_only=True
    )
    for result in document.cases:
        assert result.status == "ok", f"{result.case.label}: {result.status}: {result.reason}"
    return document


def by_arm(document: Document) -> dict[str, CaseResult]:
    """The results of a run by the names of their arms."""
    return {result.case.arm: result for result in document.cases}
