"""The ratio of the times of a pair, where it comes from, and why it may decide nothing.

Stored runs are blocks measured one after the other, so their ratio carries the noise between runs
(``stats.between_runs``); a rerun of both sides in one interleaved schedule does not, and replaces
it where there is one.

No verdict on speed is given where the work is not the same (another batch, shape, cycle or loss),
where the machines are not, or where that is not known: the figures stand, ``withheld`` says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from xbench import stats
from xbench.contrast import INTERLEAVED, LISTED, STORED, Change, Figure, Spread
from xbench.differences import DECISIVE
from xbench.errors import DataError
from xbench.pairing import Pair
from xbench.result import OK, CaseResult, Document
from xbench.spec import Case
from xbench.wording import brief, conjoined

DEFAULT_RUN_SD = 0.025
"""Log standard deviation between stored runs where nobody measured it: 3 of 30 pairs of runs of
one thing differed by over 5 %, which is 1.6 times sqrt(2) times this."""
LEAST_RUN_SD = 0.01
"""No machine is taken to be quieter: a few runs may agree by luck."""

SAME_SHAPES = (
    "the inputs are of the same shapes but not the same values: the same work unless it depends on "
    "values"
)

Arms = Mapping[tuple[str, str], CaseResult]
"""The cases of a rerun, by arm and by the key that they have without it."""


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What the ratios of all pairs rest on; ``across_machines`` lets different machines decide."""

    a: Document
    b: Document
    spread: Spread
    across_machines: bool = False
    rerun: Document | None = None
    arms: Arms = {}


def spread_between(a: Document, b: Document) -> Spread:
    """The larger noise that the two runs know of, at least ``LEAST_RUN_SD``; else the default."""
    known = [
        (noise.run_sd, noise.runs - 1.0)
        for noise in (a.noise, b.noise)
        if noise is not None and noise.run_sd is not None and noise.runs >= 2
    ]
    if not known:
        return Spread(run_sd=DEFAULT_RUN_SD, df=math.inf, known=False)
    run_sd, df = max(known)
    return Spread(run_sd=max(run_sd, LEAST_RUN_SD), df=df, known=True)


def arms_of(rerun: Document) -> Arms:
    """The cases of a rerun of two sides. Raises DataError where there are no arms."""
    found = {(r.case.arm, without_arm(r.case)): r for r in rerun.cases if r.case.arm in ("A", "B")}
    if not found:
        raise DataError(f"run {rerun.run.id} is no rerun of two sides: its cases have no arms")
    return found


def without_arm(case: Case) -> str:
    """The key of a case whatever its arm."""
    return (msgspec.structs.replace(case, arm="") if case.arm else case).key


def figure(pair: Pair, change: Change, name: str, basis: Basis) -> Figure:
    """The ratio of a pair called ``name``, measured again where it was, and what it may decide.

    Raises DataError that names the pair where a time cannot be.
    """
    if not pair.measured:
        return Figure()
    withheld, remarks = same_work(pair, change)
    if basis.rerun is not None:
        again = measured_again(pair, change, basis)
        if isinstance(again, Figure):
            return msgspec.structs.replace(
                again, withheld=withheld or again.withheld, remarks=remarks
            )
        remarks = (*remarks, again)
    try:
        ratio = stats.between_runs(
            pair.a.samples, pair.b.samples, basis.spread.run_sd, basis.spread.df
        )
    except ValueError as error:
        runs = f"run {basis.a.run.id} or {basis.b.run.id}"
        raise DataError(f"a time that cannot be: {name} of {runs}: {error}") from error
    if ratio is None:
        return Figure(remarks=("nothing was timed in one of the runs",))
    return Figure(
        method=STORED,
        ratio=ratio.ratio,
        ci_low=ratio.ci_low,
        ci_high=ratio.ci_high,
        p=ratio.p,
        withheld=withheld or other_machine(pair, change, basis),
        remarks=remarks,
    )


def same_work(pair: Pair, change: Change) -> tuple[str, tuple[str, ...]]:
    """Why the two sides have not the same to do, empty where they have; and remarks on it."""
    if change.work:
        differ = "differs" if len(change.work) == 1 else "differ"
        return f"the {conjoined(change.work)} {differ}, which is other work", ()
    if not any(d.kind == "digest" and d.what == "inputs" for d in change.own):
        return "", ()
    if pair.a.case.shape or pair.a.case.source != "file":
        return "", (SAME_SHAPES,)
    return "the inputs differ and their shapes are not recorded", ()


def other_machine(pair: Pair, change: Change, basis: Basis) -> str:
    """Why times of a pair are of two machines; empty where they are of one, or may be both."""
    if basis.across_machines:
        return ""
    for document, result in ((basis.a, pair.a), (basis.b, pair.b)):
        if not document.environments.get(result.environment, {}).get("cpu"):
            return f"run {document.run.id} does not say on which machine it was measured"
    told = [f"{d.what} {d.a} -> {d.b}" for d in change.around if d.what in DECISIVE]
    return f"another machine ({', '.join(told)})" if told else ""


def measured_again(pair: Pair, change: Change, basis: Basis) -> Figure | str:
    """The ratio from the rerun; in words why there is none."""
    rerun, arms = basis.rerun, basis.arms
    assert rerun is not None
    one = arms.get(("A", without_arm(pair.a.case)))
    two = arms.get(("B", without_arm(pair.b.case)))
    if one is None or two is None:
        return "not measured again"
    for side in (one, two):
        if side.status != OK or not side.samples:
            return f"not measured again: {side.status}: {brief(side.reason)}"
    ratio = stats.ratio(two.samples, one.samples, one.key)
    if ratio is None:
        return "not measured again: the two have no round in common"
    lost = not_repeated(change, rerun, one, two)
    if basis.a.run.xbench != basis.b.run.xbench:
        # The models and the runners are xbench's: both sides ran with those of now.
        lost = [*lost, "xbench"]
    return Figure(
        method=INTERLEAVED,
        ratio=ratio.ratio,
        ci_low=ratio.ci_low,
        ci_high=ratio.ci_high,
        p=ratio.p,
        rounds=ratio.rounds,
        floor=two.ratio.floor if two.ratio is not None else None,
        withheld=f"the rerun did not have the change of {conjoined(lost)} in it" if lost else "",
    )


def not_repeated(change: Change, rerun: Document, one: CaseResult, two: CaseResult) -> list[str]:
    """Changes of software or of what was computed, from A to B, that the rerun does not have.

    They are then not in its ratio either, which so gives no verdict on A against B.
    """
    stored = [d for d in change.around if d.kind == "software"]
    stored += [d for d in change.own if d.kind == "digest"]
    x, y = ({**rerun.environments.get(r.environment, {}), **r.digests} for r in (one, two))
    return [
        d.what for d in stored if (x.get(d.what) or "none", y.get(d.what) or "none") != (d.a, d.b)
    ][:LISTED]
