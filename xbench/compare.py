"""Two stored runs, held against each other: what changed, in speed, agreement, loss and memory.

Cases are paired by identity first. What is left is paired where it is unique on both sides once
the fields that differ are set aside, and those fields are named. Stored runs are blocks measured
one after the other, so their ratio carries the noise between runs (``between_runs``); a rerun of
both sides in one interleaved schedule does not, and replaces it where there is one.

No verdict on speed is given where the work is not the same (another batch, shape, cycle or loss),
where the machines are not, or where that is not known: the figures stand, the sentence says why.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from xbench import speed, stats
from xbench.errors import DataError, UsageError, unknown
from xbench.result import OK, Agreement, CaseResult, Document, Samples
from xbench.spec import Case
from xbench.verdict import DISAGREE

SCHEMA = 1
DEFAULT_RUN_SD = 0.025
"""Log standard deviation between stored runs where nobody measured it: 3 of 30 pairs of runs of
one thing differed by over 5 %, which is 1.6 times sqrt(2) times this."""
LEAST_RUN_SD = 0.01
"""No machine is taken to be quieter: a few runs may agree by luck."""

GROUP = ("model", "size", "phase", "engine", "source", "device")
"""What a pair must have in common, whatever else differs."""
OTHERS = (
    "env", "threads", "precision", "batch", "shape", "cycle", "concurrency", "graph", "draws",
    "loss", "options", "seed", "arm",
)  # fmt: skip
"""The other fields of an identity; a pair may differ in them, and then they are named."""
WORK = ("batch", "shape", "cycle", "loss")
"""Fields that change how much there is to do: times at two values are of different work."""
MACHINE = ("cpu", "cpus", "memory_gib", "os", "gpu")
DECISIVE = ("cpu", "cpus", "gpu")
"""Facts of the machine of which one is enough to make it another."""
MOST_DROPPED = 3
"""Fields set aside at once while looking for a partner, before all are."""
LISTED = 5
"""Cases or values that one line names; more are counted."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Where one side comes from. ``request`` and all else of the run stay in its own document."""

    run: str
    started: str
    xbench: str
    command: list[str]
    interrupted: bool


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not the same on both sides, other than a result.

    ``kind``: ``identity`` (a field of the case), ``digest`` (what it was computed from),
    ``machine``, ``software`` or ``run``. ``a`` and ``b`` are empty where the values differ from
    case to case; a value that one side lacks is ``none``. ``cases``: how many pairs it concerns;
    ``where``: the engines and devices of those, empty where it concerns the whole run.
    """

    kind: str
    what: str
    a: str = ""
    b: str = ""
    cases: int = 1
    where: tuple[str, ...] = ()


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of one case with ``against`` on both sides; empty where it was not judged."""

    what: str
    against: str
    a: str = ""
    b: str = ""


class LossChange(msgspec.Struct, frozen=True, kw_only=True):
    """The loss at the last step that both sides have, counted from 1; ``relative`` to A's."""

    step: int
    a: float
    b: float
    relative: float | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pair. ``ratio`` is the time of B over that of A, ``memory_ratio`` likewise of the peaks.

    ``p`` is corrected over the ``family`` of this comparison (Holm). ``verdict`` is empty where
    none is given. ``method``: ``stored``, or ``interleaved`` where it was measured again.
    """

    a_key: str
    b_key: str
    model: str
    size: str
    phase: str
    label: str
    a_status: str
    b_status: str
    a_reason: str = ""
    b_reason: str = ""
    asked: bool = True
    measured: tuple[bool, bool] = (True, True)
    a_median_s: float | None = None
    b_median_s: float | None = None
    method: str = ""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    family: int = 0
    margin: float | None = None
    floor: float | None = None
    verdict: str = ""
    sentence: str = ""
    agreements: tuple[Verdicts, ...] = ()
    loss: LossChange | None = None
    memory_ratio: float | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.size}, {self.phase}: {self.label}"

    @property
    def changed(self) -> tuple[Verdicts, ...]:
        """Agreements judged on both sides whose verdict is not the same."""
        return tuple(pair for pair in self.agreements if pair.a and pair.b and pair.a != pair.b)


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """A case without a partner. ``disagrees``: on what it was judged to disagree."""

    key: str
    model: str
    size: str
    phase: str
    label: str
    status: str
    reason: str = ""
    disagrees: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.size}, {self.phase}: {self.label}"


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


# -- statistics -------------------------------------------------------------------------------


class Unpaired(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of two stored runs: no interval and no p under three processes on a side."""

    ratio: float
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Noise between stored runs, with the degrees of freedom of what it was learnt from."""

    run_sd: float
    df: float
    known: bool


def between_runs(
    a: Sequence[Samples], b: Sequence[Samples], run_sd: float, run_df: float = math.inf
) -> Unpaired | None:
    """Time of ``b`` over that of ``a``, two runs measured one after the other.

    The estimate is the ratio of the medians of process medians. With s the standard deviation of
    the logs of n process medians, the variance of its log is

        (pi / 2) s_a^2 / n_a + (pi / 2) s_b^2 / n_b + 2 run_sd^2

    where pi / 2 is what a median costs over a mean (as in ``stats.latency``) and ``run_sd`` the log
    standard deviation of a whole run. A measured ``run_sd`` holds the noise of processes too, so
    the interval is, if anything, too wide. Degrees of freedom by Welch and Satterthwaite
    (Satterthwaite 1946), the run part with ``run_df``: infinite for a value that is not learnt.
    None where a side has no samples. Raises ValueError as ``stats.latency`` does.
    """
    logs_a, logs_b = _logs(a), _logs(b)
    if not logs_a or not logs_b:
        return None
    log = statistics.median(logs_b) - statistics.median(logs_a)
    if min(len(logs_a), len(logs_b)) < stats.MIN_FOR_INTERVAL:
        return Unpaired(ratio=math.exp(log))
    parts = [(math.pi / 2.0 * _variance(x) / len(x), len(x) - 1.0) for x in (logs_a, logs_b)]
    parts.append((2.0 * run_sd**2, run_df))
    variance = math.fsum(part for part, _ in parts)
    if variance <= 0:
        return Unpaired(
            ratio=math.exp(log),
            ci_low=math.exp(log),
            ci_high=math.exp(log),
            p=0.0 if log else 1.0,
        )
    # Relative to the variance: the square of a tiny one would underflow.
    df = 1.0 / max(math.fsum((part / variance) ** 2 / own for part, own in parts), 1e-12)
    return _t_test(log, math.sqrt(variance), df)


def _t_test(log: float, error: float, df: float) -> Unpaired:
    from scipy.special import stdtr, stdtrit  # scipy.stats takes 0.8 s to import.

    half = float(stdtrit(df, 0.5 + stats.CONFIDENCE / 2)) * error
    return Unpaired(
        ratio=math.exp(log),
        ci_low=math.exp(log - half),
        ci_high=math.exp(log + half),
        p=2.0 * float(stdtr(df, -abs(log) / error)),
    )


def _logs(samples: Sequence[Samples]) -> list[float]:
    return [math.log(value) for value in stats._process_medians(samples).values()]


def _variance(values: Sequence[float]) -> float:
    """As ``statistics.variance``, which is exact and ten times as slow."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


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


def least_difference(spread: Spread, family: int) -> float:
    """The relative difference of stored runs under which nothing can be claimed.

    From the noise between runs alone, at ``speed.ALPHA`` over ``family`` comparisons.
    """
    from scipy.special import stdtrit

    df = min(spread.df, 1e12)  # stdtrit takes no infinity
    t = float(stdtrit(df, 1.0 - speed.ALPHA / (2.0 * max(1, family))))
    return math.expm1(t * math.sqrt(2.0) * spread.run_sd)


# -- pairing ----------------------------------------------------------------------------------


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two cases that belong together, and the fields of their identities that differ."""

    a: CaseResult
    b: CaseResult
    differences: tuple[Difference, ...] = ()


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs, in the order of A, and what has no partner. ``ambiguous`` fitted several."""

    pairs: list[Pair]
    left_a: list[CaseResult]
    left_b: list[CaseResult]
    ambiguous: list[CaseResult]


def match(a: Sequence[CaseResult], b: Sequence[CaseResult]) -> Matched:
    """Pair the cases of two runs: by identity, then by what they have in common.

    A file is known by its content: where that is the same, its name may differ; then by its name.
    """
    by_key = {result.key: result for result in b}
    partner: dict[str, CaseResult] = {}
    for result in a:
        other = by_key.get(result.key)
        # Keys come from a file, which may have been edited: the fields decide.
        if other is not None and other.case == result.case:
            partner[result.key] = other
    taken = {other.key for other in partner.values()}
    left_a = [result for result in a if result.key not in partner]
    left_b = [result for result in b if result.key not in taken]
    ambiguous: list[CaseResult] = []
    for of in (_content, _group):
        if left_a and left_b:
            found, unclear = _pair_groups(left_a, left_b, of)
            partner |= found
            ambiguous += unclear
            taken = {other.key for other in found.values()}
            left_a = [result for result in left_a if result.key not in partner]
            left_b = [result for result in left_b if result.key not in taken]
    pairs = [
        Pair(a=result, b=other, differences=_identity_differences(result.case, other.case))
        for result in a
        if (other := partner.get(result.key)) is not None
    ]
    return Matched(pairs=pairs, left_a=left_a, left_b=left_b, ambiguous=ambiguous)


def _group(case: Case) -> Hashable:
    return tuple(getattr(case, field) for field in GROUP)


def _content(case: Case) -> Hashable:
    """The group of a user's file whatever its name; None for other cases."""
    return (case.graph, *(getattr(case, f) for f in GROUP[1:])) if case.graph else None


def _pair_groups(
    left_a: Sequence[CaseResult],
    left_b: Sequence[CaseResult],
    of: Callable[[Case], Hashable],
) -> tuple[dict[str, CaseResult], list[CaseResult]]:
    """Partners within each group, by A's key, and the cases of A that fit several of B."""
    groups: dict[Hashable, tuple[list[CaseResult], list[CaseResult]]] = {}
    for index, side in enumerate((left_a, left_b)):
        for result in side:
            if (key := of(result.case)) is not None:
                groups.setdefault(key, ([], []))[index].append(result)
    partner: dict[str, CaseResult] = {}
    ambiguous: list[CaseResult] = []
    for ours, theirs in groups.values():
        if ours and theirs:
            values_a = {r.key: tuple(_frozen(getattr(r.case, f)) for f in OTHERS) for r in ours}
            values_b = {r.key: tuple(_frozen(getattr(r.case, f)) for f in OTHERS) for r in theirs}
            keys, unclear = _pair_values(values_a, values_b)
            results = {result.key: result for result in theirs}
            partner |= {key: results[other] for key, other in keys.items()}
            ambiguous += [result for result in ours if result.key in unclear]
    return partner, ambiguous


_PLAIN = (int, str)
"""Asked for first: nearly every field is one of these, and ten thousand cases have many."""

Values = dict[str, tuple[Hashable, ...]]


def _pair_values(a: Values, b: Values) -> tuple[dict[str, str], set[str]]:
    """Partners by key, with as few fields set aside as it takes, and the keys that stay unclear.

    A field that no two share is set aside at once, so that a sweep over another range of it costs
    one pass. A case that fits two others with equally few fields set aside fits none.
    """
    a, b = dict(a), dict(b)
    partner: dict[str, str] = {}
    unclear: set[str] = set()
    level = 0
    while a and b:
        columns_a, columns_b = (
            list(zip(*a.values(), strict=True)),
            list(zip(*b.values(), strict=True)),
        )
        seen = [(set(x), set(y)) for x, y in zip(columns_a, columns_b, strict=True)]
        shared = [i for i, (x, y) in enumerate(seen) if x & y and len(x | y) > 1]
        if level > len(shared):
            break
        found: dict[str, set[str]] = defaultdict(set)
        back: dict[str, set[str]] = defaultdict(set)
        for dropped in itertools.combinations(shared, level):
            kept = [i for i in shared if i not in dropped]
            for key, other in _unique(a, b, kept):
                found[key].add(other)
                back[other].add(key)
        for key, others in found.items():
            if len(others) == 1 and all(len(back[other]) == 1 for other in others):
                partner[key] = next(iter(others))
            else:
                unclear.add(key)
        for key, others in found.items():
            del a[key]
            for other in others:
                b.pop(other, None)
        if found:
            level = 0  # Fewer are left, which may have less in common.
        elif level == MOST_DROPPED < len(shared):
            level = len(shared)
        else:
            level += 1
    return partner, unclear


def _unique(a: Values, b: Values, kept: Sequence[int]) -> Iterable[tuple[str, str]]:
    """Keys of the two that alone on their side have the same values in ``kept``."""
    sides = []
    for side in (a, b):
        by_values: dict[Hashable, str | None] = {}
        for key, values in side.items():
            picked = tuple([values[i] for i in kept])
            by_values[picked] = None if picked in by_values else key
        sides.append(by_values)
    for shared, one in sides[0].items():
        two = sides[1].get(shared)
        if one is not None and two is not None:
            yield one, two


def _frozen(value: Any) -> Hashable:
    """A hashable value that is equal where the field is."""
    hashable: Hashable = value
    if type(value) in _PLAIN:
        return hashable
    if isinstance(value, Mapping):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, tuple | list):
        return tuple([_frozen(item) for item in value])
    return hashable


def _identity_differences(a: Case, b: Case) -> tuple[Difference, ...]:
    """The fields that differ, options by each of their keys; ``arm`` is no difference."""
    if a == b:
        return ()
    found = []
    for field in (*GROUP, *OTHERS):
        x, y = getattr(a, field), getattr(b, field)
        if x == y or field == "arm":
            continue
        if field == "options":
            changed = [key for key in dict.fromkeys([*x, *y]) if x.get(key) != y.get(key)]
            values = [(key, x.get(key, ""), y.get(key, "")) for key in changed]
        else:
            values = [(field, _text(x), _text(y))]
        for what, before, after in values:
            found.append(
                Difference(kind="identity", what=what, a=before or "none", b=after or "none")
            )
    return tuple(found)


def _text(value: Any) -> str:
    """A field of a case in words: ``x 1x3x224x224`` for shapes."""
    if type(value) in _PLAIN:
        return str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        nested = any(isinstance(item, Mapping) for item in value)
        return (" / " if nested else "x").join(_text(item) for item in value)
    return "" if value is None else str(value)


def labels(cases: Sequence[Case]) -> list[str]:
    """What each case is called; equal labels of one table get the fields that tell them apart."""
    twins: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        twins[case.model, case.size, case.phase, case.label].append(index)
    found = [""] * len(cases)
    for (_, _, _, label), same in twins.items():
        varied = [
            field
            for field in (OTHERS if len(same) > 1 else ())
            if any(getattr(cases[i], field) != getattr(cases[same[0]], field) for i in same)
        ]
        for i in same:
            extra = [f"{f} {_text(getattr(cases[i], f)) or 'none'}" for f in varied]
            found[i] = ", ".join([label, *extra]) if extra else label
    return found


# -- comparing --------------------------------------------------------------------------------


def repeatable(a: Document, b: Document) -> list[tuple[Case, Case]]:
    """The pairs that can be measured again: asked for and run on both sides."""
    return [
        (pair.a.case, pair.b.case)
        for pair in match(a.cases, b.cases).pairs
        if pair.a.asked and pair.b.asked and pair.a.status == OK == pair.b.status
    ]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of a pair before the correction over all pairs.

    ``withheld`` says why no verdict may be given; ``remarks`` go into the sentence as they are.
    """

    method: str = ""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    rounds: int = 0
    floor: float | None = None
    withheld: str = ""
    remarks: tuple[str, ...] = ()


def compare(
    a: Document, b: Document, *, across_machines: bool = False, rerun: Document | None = None
) -> Comparison:
    """What changed from run ``a`` to run ``b``.

    ``rerun`` holds cases of both sides, told apart by their ``arm`` (``A``, ``B``), measured in one
    interleaved schedule. ``across_machines`` gives verdicts on speed although the machines differ.
    Raises UsageError where the two have no case in common, DataError where a document cannot be.
    """
    for document in (a, b):
        _check(document)
    matched = match(a.cases, b.cases)
    if not any(pair.a.asked or pair.b.asked for pair in matched.pairs):
        raise UsageError(_nothing_in_common(a, b))
    comparing = _Comparing(a, b, matched, across_machines, rerun)
    rows = comparing.rows()
    spread = comparing.spread
    return Comparison(
        schema=SCHEMA,
        a=_side(a),
        b=_side(b),
        rows=rows,
        unmatched_a=_singles(a, matched.left_a, comparing.judged_a),
        unmatched_b=_singles(b, matched.left_b, comparing.judged_b),
        differences=[*_run_differences(a, b), *comparing.differences(rows)],
        notes=comparing.notes(rows),
        run_sd=spread.run_sd,
        run_sd_known=spread.known,
    )


class _Comparing:
    """What all pairs of one comparison share."""

    def __init__(
        self,
        a: Document,
        b: Document,
        matched: Matched,
        across_machines: bool,
        rerun: Document | None,
    ) -> None:
        self.a, self.b, self.matched = a, b, matched
        self.across_machines = across_machines
        self.rerun = rerun
        self.again = _arms(rerun) if rerun is not None else {}
        self.spread = spread_between(a, b)
        self.judged_a, self.judged_b = _by_judged(a), _by_judged(b)
        self.partner = {pair.a.key: pair.b.key for pair in matched.pairs}
        names_a = labels([result.case for result in a.cases])
        names_b = labels([result.case for result in b.cases])
        self.names_b = {r.key: name for r, name in zip(b.cases, names_b, strict=True)}
        self.names_a = {r.key: name for r, name in zip(a.cases, names_a, strict=True)}
        self.environments: dict[tuple[str, str], tuple[Difference, ...]] = {}

    def rows(self) -> list[Row]:
        """Every pair that was asked for on a side, or judged, with Holm's correction over all."""
        pairs = [
            pair
            for pair in self.matched.pairs
            if pair.a.asked
            or pair.b.asked
            or pair.a.key in self.judged_a
            or pair.b.key in self.judged_b
        ]
        changed = [(*pair.differences, *_digest_differences(pair)) for pair in pairs]
        figures = [self.figure(pair, diff) for pair, diff in zip(pairs, changed, strict=True)]
        tested = [i for i, f in enumerate(figures) if f.p is not None and not f.withheld]
        adjusted: dict[int, float] = dict(
            zip(tested, speed.holm([figures[i].p or 0.0 for i in tested]), strict=True)
        )
        return [
            self.row(pair, diff, figure, adjusted.get(index), len(tested))
            for index, (pair, diff, figure) in enumerate(zip(pairs, changed, figures, strict=True))
        ]

    def row(
        self,
        pair: Pair,
        differences: tuple[Difference, ...],
        figure: Figure,
        p: float | None,
        family: int,
    ) -> Row:
        """The row of a pair; ``p`` is corrected over the family."""
        a, b = pair.a, pair.b
        verdict, margin = "", None
        if figure.ratio is not None and not figure.withheld:
            margin = max(speed.MARGIN, figure.floor or 0.0)
            verdict = speed.verdict(figure.ratio, figure.ci_low, figure.ci_high, p, margin)
        agreements = self.agreements(pair)
        memory_a, memory_b = a.peak_memory_bytes, b.peak_memory_bytes
        return Row(
            a_key=a.key,
            b_key=b.key,
            model=a.case.model,
            size=a.case.size,
            phase=a.case.phase,
            label=self.names_a[a.key],
            a_status=a.status,
            b_status=b.status,
            a_reason=a.reason,
            b_reason=b.reason,
            asked=a.asked or b.asked,
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
            sentence=_sentence(pair, differences, figure, verdict, margin, agreements),
            agreements=agreements,
            loss=_loss_change(a.loss, b.loss),
            memory_ratio=memory_b / memory_a if memory_a and memory_b else None,
            differences=differences,
        )

    def figure(self, pair: Pair, differences: tuple[Difference, ...]) -> Figure:
        """The ratio of a pair, measured again where it was, and what it may be used for."""
        a, b = pair.a, pair.b
        if a.status != OK or b.status != OK or not (a.asked and b.asked):
            return Figure()
        work = [d.what for d in differences if d.kind == "identity" and d.what in WORK]
        withheld = f"the {_and(work)} {_differ(work)}, which is other work" if work else ""
        remarks: list[str] = []
        if any(d.kind == "digest" and d.what == "inputs" for d in differences) and not work:
            if a.case.shape or a.case.source != "file":
                remarks.append(
                    "the inputs are of the same shapes but not the same values: the same work "
                    "unless it depends on values"
                )
            else:
                withheld = "the inputs differ and their shapes are not recorded"
        if self.rerun is not None:
            found = self.measured_again(pair, differences, withheld, remarks)
            if found is not None:
                return found
        try:
            stored = between_runs(a.samples, b.samples, self.spread.run_sd, self.spread.df)
        except ValueError as error:
            problem = f"{self.names_a[a.key]} of {_pair_of(self.a, self.b)}: {error}"
            raise DataError(f"a time that cannot be: {problem}") from error
        if stored is None:
            return Figure(remarks=("nothing was timed in one of the runs",))
        return Figure(
            method="stored",
            ratio=stored.ratio,
            ci_low=stored.ci_low,
            ci_high=stored.ci_high,
            p=stored.p,
            withheld=withheld or self.other_machine(pair),
            remarks=tuple(remarks),
        )

    def measured_again(
        self,
        pair: Pair,
        differences: tuple[Difference, ...],
        withheld: str,
        remarks: list[str],
    ) -> Figure | None:
        """The ratio from the rerun; None where the pair is not in it, which ``remarks`` then say.

        A change of software or of what was computed that the rerun did not repeat is not in its
        ratio, so that it gives no verdict on A against B.
        """
        sides = [
            self.again.get((arm, _identity(r.case))) for arm, r in (("A", pair.a), ("B", pair.b))
        ]
        one, two = sides
        if one is None or two is None:
            remarks.append("not measured again")
            return None
        for side in (one, two):
            if side.status != OK or not side.samples:
                remarks.append(f"not measured again: {side.status}: {_brief(side.reason)}")
                return None
        ratio = stats.ratio(two.samples, one.samples, one.key)
        if ratio is None:
            remarks.append("not measured again: the two have no round in common")
            return None
        stored = [d for d in self.environment(pair) if d.kind == "software"]
        stored += [d for d in differences if d.kind == "digest"]
        rerun = self.rerun.environments if self.rerun is not None else {}
        facts = [{**rerun.get(side.environment, {}), **side.digests} for side in (one, two)]
        lost = [
            d.what
            for d in stored
            if (facts[0].get(d.what) or "none", facts[1].get(d.what) or "none") != (d.a, d.b)
        ]
        if lost and not withheld:
            withheld = f"the rerun did not have the change of {_and(lost[:LISTED])} in it"
        return Figure(
            method="interleaved",
            ratio=ratio.ratio,
            ci_low=ratio.ci_low,
            ci_high=ratio.ci_high,
            p=ratio.p,
            rounds=ratio.rounds,
            floor=two.ratio.floor if two.ratio is not None else None,
            withheld=withheld,
            remarks=tuple(remarks),
        )

    def environment(self, pair: Pair) -> tuple[Difference, ...]:
        """What differs between the environments of a pair."""
        key = (pair.a.environment, pair.b.environment)
        if key not in self.environments:
            x, y = self.a.environments.get(key[0], {}), self.b.environments.get(key[1], {})
            self.environments[key] = tuple(
                Difference(
                    kind="machine" if fact in MACHINE else "software",
                    what=fact,
                    a=x.get(fact) or "none",
                    b=y.get(fact) or "none",
                )
                for fact in dict.fromkeys([*MACHINE, *x, *y])
                if (x.get(fact) or "") != (y.get(fact) or "")
            )
        return self.environments[key]

    def other_machine(self, pair: Pair) -> str:
        """Why times of a pair are of two machines; empty where they are of one, or may be both."""
        if self.across_machines:
            return ""
        for document, result in ((self.a, pair.a), (self.b, pair.b)):
            if not document.environments.get(result.environment, {}).get("cpu"):
                return f"run {document.run.id} does not say on which machine it was measured"
        changed = [d for d in self.environment(pair) if d.what in DECISIVE]
        told = [f"{d.what} {d.a} -> {d.b}" for d in changed]
        return f"another machine ({', '.join(told)})" if told else ""

    def agreements(self, pair: Pair) -> tuple[Verdicts, ...]:
        """The verdicts on a pair on both sides."""
        ours = self.judged_a.get(pair.a.key, ())
        theirs = self.judged_b.get(pair.b.key, ())
        if not ours and not theirs:
            return ()
        before = {(x.what, self.partner.get(x.b, x.b)): x for x in ours}
        after = {(x.what, x.b): x for x in theirs}
        return tuple(
            Verdicts(
                what=what,
                against=self.names_b.get(key) or self.names_a.get(key, key),
                a=before[what, key].verdict if (what, key) in before else "",
                b=after[what, key].verdict if (what, key) in after else "",
            )
            for what, key in dict.fromkeys([*before, *after])
        )

    def differences(self, rows: Sequence[Row]) -> list[Difference]:
        """All differences once, the machine's and the software's first, with whom they concern."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        where: dict[tuple[str, str, str, str], dict[str, None]] = defaultdict(dict)
        shown = {row.a_key: row for row in rows}
        for pair in self.matched.pairs:
            row = shown.get(pair.a.key)
            if row is None:
                continue
            recorded = pair.a.environment and pair.b.environment
            for d in (*(self.environment(pair) if recorded else ()), *row.differences):
                digest = d.kind == "digest"
                key = (d.kind, d.what, "" if digest else d.a, "" if digest else d.b)
                counts[key] += 1
                where[key][f"{pair.a.case.engine} {pair.a.case.device}"] = None
        values = Counter(key[:2] for key in counts)
        merged: dict[tuple[str, str, str, str], tuple[int, dict[str, None]]] = {}
        for key, count in counts.items():
            # A sweep: the values stand in the rows.
            to = (*key[:2], "", "") if values[key[:2]] > LISTED else key
            have, places = merged.get(to, (0, {}))
            merged[to] = (have + count, places | where[key])
        order = ("machine", "software", "identity", "digest")
        return [
            Difference(kind=key[0], what=key[1], a=key[2], b=key[3], cases=count, where=(*places,))
            for key, (count, places) in sorted(
                merged.items(), key=lambda item: order.index(item[0][0])
            )
        ]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """What a reader must know before the table: what was left open, and how sure it can be."""
        found = [
            f"{name} (run {document.run.id}) was interrupted: it has less than was asked for"
            for name, document in (("A", self.a), ("B", self.b))
            if document.run.interrupted
        ]
        measured = [row for row in rows if row.ratio is not None]
        stored = sum(row.method == "stored" for row in measured)
        family = max((row.family for row in rows), default=0)
        if stored:
            least = least_difference(self.spread, family)
            source = (
                "measured on this machine"
                if self.spread.known
                else "a default, `xbench doctor --noise` measures it"
            )
            found.append(
                f"stored runs are blocks one after the other, and differ by themselves by "
                f"{100 * self.spread.run_sd:.1f} % ({source}): under about {100 * least:.0f} % "
                "nothing can be claimed of them; --rerun measures both sides interleaved"
            )
        if self.rerun is not None:
            again = sum(row.method == "interleaved" for row in measured)
            found.append(f"measured again, interleaved: {again} of {len(measured)} ratios")
            if self.rerun.run.interrupted:
                found.append("the rerun was interrupted")
        for verdict, what in ((speed.INCONCLUSIVE, "inconclusive"), ("", "without a verdict")):
            count = sum(row.verdict == verdict for row in measured)
            if count:
                found.append(f"{count} of {len(measured)} ratios {_are(count)} {what}")
        if self.across_machines and any(
            d.what in DECISIVE for changed in self.environments.values() for d in changed
        ):
            found.append("the machines differ: a verdict on speed is on machine and code together")
        if _fresh(self.a) != _fresh(self.b) and _fresh(self.a) and _fresh(self.b):
            found.append(
                "one run forked its processes and the other did not: their memory does not compare"
            )
        if self.matched.ambiguous:
            names = [self.names_a[result.key] for result in self.matched.ambiguous]
            found.append(f"fit several cases of B equally well, so none: {_few(names)}")
        return found


def _check(document: Document) -> None:
    """Raise DataError for a document that no run writes."""
    keys = Counter(result.key for result in document.cases)
    if len(keys) < len(document.cases):
        twice = keys.most_common(1)[0][0]
        raise DataError(f"run {document.run.id} is damaged: it has case {twice} more than once")


def _side(document: Document) -> Side:
    run = document.run
    return Side(
        run=run.id,
        started=run.started,
        xbench=run.xbench,
        command=list(run.command),
        interrupted=run.interrupted,
    )


def _identity(case: Case) -> str:
    """The key of a case whatever its arm."""
    return (msgspec.structs.replace(case, arm="") if case.arm else case).key


def _arms(rerun: Document) -> dict[tuple[str, str], CaseResult]:
    """The cases of a rerun by arm and identity. Raises DataError where there are no arms."""
    found = {(r.case.arm, _identity(r.case)): r for r in rerun.cases if r.case.arm in ("A", "B")}
    if not found:
        raise DataError(f"run {rerun.run.id} is no rerun of two sides: its cases have no arms")
    return found


def _by_judged(document: Document) -> dict[str, list[Agreement]]:
    """Agreements by the key of the case that is judged."""
    found: dict[str, list[Agreement]] = defaultdict(list)
    for agreement in document.agreements:
        found[agreement.a].append(agreement)
    return dict(found)


def _digest_differences(pair: Pair) -> tuple[Difference, ...]:
    """The digests that both sides have and that are not the same."""
    x, y = pair.a.digests, pair.b.digests
    if x == y:
        return ()
    return tuple(
        Difference(kind="digest", what=what, a=x[what], b=y[what])
        for what in x
        if what in y and x[what] != y[what]
    )


def _fresh(document: Document) -> str:
    return str(document.run.request.get("fresh", ""))


def _run_differences(a: Document, b: Document) -> list[Difference]:
    """Differences of the runs themselves: the version of xbench, and how processes were made."""
    values = [("xbench", a.run.xbench, b.run.xbench), ("fresh", _fresh(a), _fresh(b))]
    return [
        Difference(kind="run", what=what, a=x, b=y, cases=0)
        for what, x, y in values
        if x and y and x != y
    ]


def _loss_change(a: Sequence[float], b: Sequence[float]) -> LossChange | None:
    """The loss at the last common step; None where a side has none, or it is no number there."""
    step = min(len(a), len(b))
    if not step or not (math.isfinite(a[step - 1]) and math.isfinite(b[step - 1])):
        return None
    x, y = a[step - 1], b[step - 1]
    return LossChange(step=step, a=x, b=y, relative=(y - x) / abs(x) if x else None)


def _singles(
    document: Document, left: Sequence[CaseResult], judged: Mapping[str, Sequence[Agreement]]
) -> list[Single]:
    """Cases asked for that have no partner, and others that were judged to disagree."""
    names = labels([result.case for result in document.cases]) if left else []
    named = {result.key: name for result, name in zip(document.cases, names, strict=False)}
    found = []
    for result in left:
        wrong = [x.what for x in judged.get(result.key, ()) if x.verdict == DISAGREE]
        if result.asked or wrong:
            found.append(
                Single(
                    key=result.key,
                    model=result.case.model,
                    size=result.case.size,
                    phase=result.case.phase,
                    label=named[result.key],
                    status=result.status,
                    reason=result.reason,
                    disagrees=tuple(dict.fromkeys(wrong)),
                )
            )
    return found


# -- sentences --------------------------------------------------------------------------------


def _sentence(
    pair: Pair,
    differences: Sequence[Difference],
    figure: Figure,
    verdict: str,
    margin: float | None,
    agreements: Sequence[Verdicts],
) -> str:
    """What became of a case, for a person."""
    parts = [_speed_sentence(pair, figure, verdict, margin)]
    named = [f"{d.what} {d.a} -> {d.b}" for d in differences if d.kind == "identity"]
    if named:
        parts.append(f"not the same in {', '.join(named)}")
    other = [d.what for d in differences if d.kind == "digest"]
    if other:
        parts.append(f"not computed from the same {_and(other)}")
    if any(d.what == "graph" and d.kind == "identity" for d in differences):
        parts.append("paired by the name of the file, whose content is not the same")
    parts += figure.remarks
    for pair_of in agreements:
        if pair_of.a and pair_of.b and pair_of.a != pair_of.b:
            parts.append(f"{pair_of.what} against {pair_of.against}: {pair_of.a} -> {pair_of.b}")
    return "; ".join(part for part in parts if part)


def _speed_sentence(pair: Pair, figure: Figure, verdict: str, margin: float | None) -> str:
    """The part on status and speed; empty for a pair that was only computed for a verdict."""
    a, b = pair.a, pair.b
    if a.status != OK and b.status != OK:
        return f"ran in neither: {a.status} in A, {b.status} in B: {_brief(b.reason)}"
    if b.status != OK:
        return f"no longer runs in B: {b.status}: {_brief(b.reason)}"
    if a.status != OK:
        return f"runs in B, did not in A ({a.status}: {_brief(a.reason)})"
    if a.asked != b.asked:
        return f"measured in {'A' if a.asked else 'B'} only"
    if figure.ratio is None:
        return ""
    text = f"B takes {figure.ratio:.3f} times as long as A"
    if figure.ci_low is not None and figure.ci_high is not None:
        text += f" (95 % interval {figure.ci_low:.3f} to {figure.ci_high:.3f})"
    if figure.method == "interleaved":
        text += f", measured again, interleaved, in {figure.rounds} rounds"
    if figure.withheld:
        return f"{text}, no verdict: {figure.withheld}"
    if verdict == speed.SAME:
        return f"{text}: the same within {100 * (margin or 0.0):.1f} %"
    if verdict != speed.INCONCLUSIVE:
        return f"{text}: {verdict}"
    if figure.ci_low is None:
        return f"{text}: inconclusive, under {stats.MIN_FOR_INTERVAL} processes on a side"
    return f"{text}: inconclusive"


def _brief(reason: str) -> str:
    """The first line of a reason."""
    return (reason.strip() or "no reason was given").splitlines()[0]


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _differ(words: Sequence[str]) -> str:
    return "differs" if len(words) == 1 else "differ"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _few(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _pair_of(a: Document, b: Document) -> str:
    return f"run {a.run.id} or {b.run.id}"


def _nothing_in_common(a: Document, b: Document) -> str:
    """What each side has, for the user to see why no case fits."""

    def has(document: Document) -> str:
        asked = [result.case for result in document.cases if result.asked]
        what = dict.fromkeys(f"{c.model} {c.size} {c.phase} {c.label}" for c in asked)
        return f"run {document.run.id} has {_few(list(what)) or 'no case at all'}"

    return f"the two have no case in common: {has(a)}; {has(b)}"


# -- gate -------------------------------------------------------------------------------------

RULES = ("slower", "disagree", "missing", "memory")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)%?")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a gate; ``limit`` is a share (0.05 for 5 %), None for the row's margin."""

    word: str
    limit: float | None = None


def rules(spec: str) -> tuple[Rule, ...]:
    """The rules of ``--fail-on``: ``slower[=P%]``, ``disagree``, ``missing``, ``memory=P%``.

    Raises UsageError for an unknown or repeated word, or a percentage that is none.
    """
    found: dict[str, Rule] = {}
    for item in spec.split(","):
        word, equals, value = (part.strip() for part in item.partition("="))
        if not word:
            raise UsageError(f"--fail-on {spec!r}: say at least one of {', '.join(RULES)}")
        if word not in RULES:
            raise unknown("condition of --fail-on", word, RULES)
        if word in found:
            raise UsageError(f"--fail-on names {word} more than once")
        if equals and word in ("disagree", "missing"):
            raise UsageError(f"--fail-on {word} takes no value, not {item.strip()!r}")
        if not equals and word == "memory":
            raise UsageError("--fail-on memory needs a percentage, as in memory=10%")
        limit = None
        if equals:
            number = _PERCENT.fullmatch(value)
            if number is None or not math.isfinite(float(number[1])):
                raise UsageError(
                    f"--fail-on {word}={value}: not a percentage, as in {word}=5%, from 0 up"
                )
            limit = float(number[1]) / 100.0
        found[word] = Rule(word=word, limit=limit)
    return tuple(found.values())


def gate(comparison: Comparison, spec: str) -> list[str]:
    """Why the comparison fails the gate ``spec``, one reason per rule; empty where it passes.

    ``slower``: a verdict ``slower`` and a ratio above the limit (without one: the row's margin).
    ``disagree``: B disagrees with anything, new or not. ``missing``: a case that ran in A and that
    B lacks or did not measure. ``memory``: the ratio of peaks, for the same work, is above the
    limit. Inconclusive ratios fail nothing; ``comparison.notes`` counts them. Raises UsageError as
    ``rules`` does.
    """
    reasons = []
    for rule in rules(spec):
        found = _BREACHES[rule.word](comparison, rule.limit)
        if found:
            limit = "" if rule.limit is None else f" (limit {100 * rule.limit:g} %)"
            reasons.append(f"{rule.word}{limit}: {_few(found)}")
    return reasons


def _slower(comparison: Comparison, limit: float | None) -> list[str]:
    return [
        f"{row.name}, ratio {row.ratio:.3f}"
        for row in comparison.rows
        if row.verdict == speed.SLOWER
        and row.ratio is not None
        and row.ratio > 1.0 + (limit if limit is not None else row.margin or 0.0)
    ]


def _disagree(comparison: Comparison, limit: float | None) -> list[str]:
    pairs = [
        f"{row.name} and {x.against} on {x.what}" + (", as in A" if x.a == DISAGREE else "")
        for row in comparison.rows
        for x in row.agreements
        if x.b == DISAGREE
    ]
    return pairs + [
        f"{single.name} on {what}" for single in comparison.unmatched_b for what in single.disagrees
    ]


def _missing(comparison: Comparison, limit: float | None) -> list[str]:
    rows = [
        f"{row.name}, {row.b_status if row.b_status != OK else 'not measured'}"
        for row in comparison.rows
        if row.a_status == OK
        and row.asked
        and (row.b_status != OK or (row.measured[0] and not row.measured[1]))
    ]
    return rows + [s.name for s in comparison.unmatched_a if s.status == OK]


def _memory(comparison: Comparison, limit: float | None) -> list[str]:
    return [
        f"{row.name}, {row.memory_ratio:.3f} times"
        for row in comparison.rows
        if row.memory_ratio is not None
        and row.memory_ratio > 1.0 + (limit or 0.0)
        and not any(d.kind == "identity" and d.what in WORK for d in row.differences)
    ]


_BREACHES: dict[str, Callable[[Comparison, float | None], list[str]]] = {
    "slower": _slower,
    "disagree": _disagree,
    "missing": _missing,
    "memory": _memory,
}
