"""Two stored runs, held against each other: what changed, in speed, agreement, loss and memory.

``pairing`` says which case meets which, ``differences`` what is not the same around them,
``ratios`` how their times compare and what that is worth, ``wording`` says it. Here the verdicts
of all pairs are reached together, and the rows made.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from xbench import differences, pairing, ratios, speed, wording
from xbench.contrast import Change, Difference, Figure, LossChange, Row, Single, Verdicts
from xbench.errors import DataError, UsageError
from xbench.pairing import Pair
from xbench.result import Agreement, CaseResult, Document
from xbench.verdict import DISAGREE

SCHEMA = 1

Judged = Mapping[str, Sequence[Agreement]]
"""The agreements of a run by the key of the case that is judged."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Where one side comes from. ``request`` and all else of the run stay in its own document."""

    run: str
    started: str
    xbench: str
    command: list[str]
    interrupted: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run B against run A. ``run_sd`` is the noise between stored runs that ratios were held to.

    ``run_sd_known`` is false where it is the default, which nobody measured on this machine.
    """

    schema: int
    a: Side
    b: Side
    rows: list[Row]
    unmatched_a: list[Single]
    unmatched_b: list[Single]
    differences: list[Difference]
    notes: list[str]
    run_sd: float
    run_sd_known: bool


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What both runs say of their cases: verdicts by the judged case, names by key.

    ``partner``: the key of B's case by that of A's.
    """

    judged_a: Judged
    judged_b: Judged
    names_a: Mapping[str, str]
    names_b: Mapping[str, str]
    partner: Mapping[str, str]


def compare(
    a: Document, b: Document, *, across_machines: bool = False, rerun: Document | None = None
) -> Comparison:
    """What changed from run ``a`` to run ``b``.

    ``rerun`` holds cases of both sides, told apart by their ``arm`` (``A``, ``B``), measured in one
    interleaved schedule. ``across_machines`` gives verdicts on speed although the machines differ.
    Raises UsageError where the two have no case in common, DataError where a document cannot be.
    """
    for document in (a, b):
        check(document)
    matched = pairing.match(a.cases, b.cases)
    if not any(pair.asked for pair in matched.pairs):
        raise UsageError(wording.nothing_in_common(a, b))
    basis = ratios.Basis(
        a=a,
        b=b,
        spread=ratios.spread_between(a, b),
        across_machines=across_machines,
        rerun=rerun,
        arms=ratios.arms_of(rerun) if rerun is not None else {},
    )
    said = Said(
        judged_a=by_judged(a),
        judged_b=by_judged(b),
        names_a=pairing.names(a.cases),
        names_b=pairing.names(b.cases),
        partner={pair.a.key: pair.b.key for pair in matched.pairs},
    )
    pairs = [
        pair
        for pair in matched.pairs
        if pair.asked or pair.a.key in said.judged_a or pair.b.key in said.judged_b
    ]
    changes = differences.changes(a, b, pairs)
    rows = judged_rows(pairs, changes, basis, said)
    counted = differences.counted(pairs, changes)
    machines = any(d.kind == "machine" and d.what in differences.DECISIVE for d in counted)
    return Comparison(
        schema=SCHEMA,
        a=side(a),
        b=side(b),
        rows=rows,
        unmatched_a=singles(matched.left_a, said.names_a, said.judged_a),
        unmatched_b=singles(matched.left_b, said.names_b, said.judged_b),
        differences=[*differences.run_differences(a, b), *counted],
        notes=wording.notes(
            a,
            b,
            rows,
            basis.spread,
            rerun=rerun,
            other_machine=across_machines and machines,
            ambiguous=[said.names_a[result.key] for result in matched.ambiguous],
        ),
        run_sd=basis.spread.run_sd,
        run_sd_known=basis.spread.known,
    )


def check(document: Document) -> None:
    """Raise DataError for a document that no run writes."""
    keys = Counter(result.key for result in document.cases)
    if len(keys) < len(document.cases):
        twice = keys.most_common(1)[0][0]
        raise DataError(f"run {document.run.id} is damaged: it has case {twice} more than once")


def side(document: Document) -> Side:
    """What a comparison keeps of the run itself."""
    run = document.run
    return Side(
        run=run.id,
        started=run.started,
        xbench=run.xbench,
        command=list(run.command),
        interrupted=run.interrupted,
    )


def by_judged(document: Document) -> Judged:
    """Agreements by the key of the case that is judged."""
    found: dict[str, list[Agreement]] = defaultdict(list)
    for agreement in document.agreements:
        found[agreement.a].append(agreement)
    return dict(found)


def judged_rows(
    pairs: Sequence[Pair], changes: Sequence[Change], basis: ratios.Basis, said: Said
) -> list[Row]:
    """A row of every pair; all ratios that may decide are one family of Holm's correction."""
    figures = [
        ratios.figure(pair, change, said.names_a[pair.a.key], basis)
        for pair, change in zip(pairs, changes, strict=True)
    ]
    tested = [i for i, f in enumerate(figures) if f.p is not None and not f.withheld]
    adjusted: dict[int, float] = dict(
        zip(tested, speed.holm([figures[i].p or 0.0 for i in tested]), strict=True)
    )
    return [
        row(pair, change, figure, adjusted.get(index), len(tested), said)
        for index, (pair, change, figure) in enumerate(zip(pairs, changes, figures, strict=True))
    ]


def row(
    pair: Pair, change: Change, figure: Figure, p: float | None, family: int, said: Said
) -> Row:
    """The row of a pair; ``p`` is corrected over the family."""
    a, b = pair.a, pair.b
    verdict, margin = "", None
    if figure.ratio is not None and not figure.withheld:
        margin = max(speed.MARGIN, figure.floor or 0.0)
        verdict = speed.verdict(figure.ratio, figure.ci_low, figure.ci_high, p, margin)
    agreements = verdicts(pair, said)
    memory_a, memory_b = a.peak_memory_bytes, b.peak_memory_bytes
    return Row(
        a_key=a.key,
        b_key=b.key,
        model=a.case.model,
        size=a.case.size,
        phase=a.case.phase,
        label=said.names_a[a.key],
        a_status=a.status,
        b_status=b.status,
        a_reason=a.reason,
        b_reason=b.reason,
        asked=pair.asked,
        measured=(bool(a.samples), bool(b.samples)),
        a_median_s=a.latency.median_s if a.latency else None,
        b_median_s=b.latency.median_s if b.latency else None,
        method=figure.method,
        ratio=figure.ratio,
        ci_low=figure.ci_low,
        ci_high=figure.ci_high,
        p=p,
        family=family,
        margin=margin,
        floor=figure.floor,
        verdict=verdict,
        sentence=wording.sentence(pair, change, figure, verdict, margin, agreements),
        agreements=agreements,
        loss=loss_change(a.loss, b.loss),
        memory_ratio=memory_b / memory_a if memory_a and memory_b else None,
        differences=change.own,
    )


def verdicts(pair: Pair, said: Said) -> tuple[Verdicts, ...]:
    """The agreements of a pair on both sides."""
    # Against the same on both: a case of A is called by its partner's key.
    before = {
        (x.what, said.partner.get(x.b, x.b)): x.verdict for x in said.judged_a.get(pair.a.key, ())
    }
    after = {(x.what, x.b): x.verdict for x in said.judged_b.get(pair.b.key, ())}
    return tuple(
        [
            Verdicts(
                what=what,
                against=said.names_b.get(key) or said.names_a.get(key, key),
                a=before.get((what, key), ""),
                b=after.get((what, key), ""),
            )
            for what, key in before | after
        ]
    )


def loss_change(a: Sequence[float], b: Sequence[float]) -> LossChange | None:
    """The loss at the last common step; None where a side has none, or it is no number there."""
    step = min(len(a), len(b))
    if not step or not (math.isfinite(a[step - 1]) and math.isfinite(b[step - 1])):
        return None
    x, y = a[step - 1], b[step - 1]
    return LossChange(step=step, a=x, b=y, relative=(y - x) / abs(x) if x else None)


def singles(left: Sequence[CaseResult], names: Mapping[str, str], judged: Judged) -> list[Single]:
    """Cases asked for that have no partner, and others that were judged to disagree."""
    wrong = {
        result.key: dict.fromkeys(
            x.what for x in judged.get(result.key, ()) if x.verdict == DISAGREE
        )
        for result in left
    }
    return [
        Single(
            key=result.key,
            model=result.case.model,
            size=result.case.size,
            phase=result.case.phase,
            label=names[result.key],
            status=result.status,
            reason=result.reason,
            disagrees=(*wrong[result.key],),
        )
        for result in left
        if result.asked or wrong[result.key]
    ]
