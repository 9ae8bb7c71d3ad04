"""Same or not the same: the law of the verdict. docs/verdict.md has it as a table.

In this order:

0. Other parameters or inputs on the two sides, or nothing of the kind: ``inconclusive``.
1. A tensor missing, another shape or kind of dtype, or other NaN/Inf masks: ``disagree``. Tensors
   without elements have nothing to compare: ``inconclusive`` where all are such. Alike in these but
   not comparable with float64, as after an overflow: ``inconclusive``.
2. A side that differs from itself by more than the limit: ``inconclusive``, with its random nodes.
   Tolerances that the user fixed then decide alone.
3. Integers and booleans are exact. Where they are not, the reference is evaluated under the side's
   own choices (``Confirmation.choices``): an index that differs between values that rounding can
   exchange is a tie. A few whole numbers one step away may be roundings near a boundary.
4. The RMS error to float64 decides. The limit is the largest of twice the error of the source
   engine (if that itself agrees with float64), the spread under perturbations of the parameters by
   one ULP, and the rounding of the result, 4 eps sqrt(K) RMS(reference), K = 1 but for a single
   operator. Within the limit: ``agree``; beyond ten times: ``disagree``; between: ``inconclusive``.
   A rejection is confirmed (``Confirmation``): where the judged graph, evaluated in float64, is
   itself beyond the limit, the graph is at fault. Else each operator is held to its own bound: all
   within it is ``agree``, whatever the network made of their rounding.
   Float64 against float64 (definition parity): ``agree`` within 1e-9 of the reference's RMS.
5. Of a file declared in a narrower type the error that rounding the reference's tensors to that
   type gives joins the limit.

The verdict on a pair is the worst over its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from xbench import numerics, ordinary, sentences, structure, ulps
from xbench.result import Agreement, Evidence, Operators, TensorMetrics
from xbench.tolerances import Tolerances, exceeds

AGREE, INCONCLUSIVE, DISAGREE = "agree", "inconclusive", "disagree"
SEVERITY = {AGREE: 0, INCONCLUSIVE: 1, DISAGREE: 2}
FAR_OFF = 8192.0
"""ULPs that elements far larger than all others (masks) may be off, in RMS: a thousandth."""
OTHER_CHOICES = (
    "its narrow type chooses other indices than float64 does, which change with what is looked at: "
    "what follows from them cannot be told from a fault"
)
"""What is said where the choices that were seen need not be those of the outputs."""
AT_A_BOUNDARY = "one step near a boundary"
FEW = 0.01
"""Share of whole numbers that may be one step away where they were rounded from floats."""
PARITY = 1e-9
"""Limit of definition parity, relative to the RMS of the reference: float64 rounding of these
models was seen at 3e-15, and a wrong definition is not within a million times that."""
BEYOND = 10.0
"""How many times the limit an error must exceed to be called a disagreement."""

NARROW_ROUNDING = "2x rounding to"
BEYOND_NARROW = 3.0
"""The same where rounding to a narrow type set the limit, which is a generous measure: beyond six
times what the type costs anyway."""
ANOTHER_GRAPH = "its graph, evaluated in float64"
"""What decided where the judged graph is another function than the reference."""
EPS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}
"""Distance from 1 to the next number, by precision."""

Array = np.ndarray[Any, Any]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a pair: its case key, how a sentence calls it, what it computed.

    ``unsteady``: RMS distance of the tensors that another run made differently; ``random`` names
    its random nodes. ``spread``: see ``Evidence``. ``terms``: K of tensors that one operator made.
    ``remarks`` are said with every verdict that rests on this side.
    """

    key: str
    label: str
    tensors: Mapping[str, Array]
    digests: Mapping[str, str]
    spread: Mapping[str, float] = {}
    draws: int = 0
    spread_ulps: int = 1
    unsteady: Mapping[str, float] = {}
    random: str = ""
    terms: Mapping[str, int] = {}
    remarks: Sequence[str] = ()


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """A reference evaluated with a side's own choices (indices of ArgMax, TopK).

    ``ties`` of them fall between values that rounding can exchange, ``faults`` names the first that
    does not. ``stands_in``: not the reference's graph was evaluated but the side's own, since the
    reference has none: fair only where that is the same function.
    """

    side: Side
    ties: int = 0
    faults: str = ""
    stands_in: bool = False


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a side that was rejected.

    ``graph``: its own graph evaluated in float64. ``operators``: each of its operators alone.
    ``choices``: references under the side's own choices, by the key of the reference. ``missing``
    says why there is less than there should be.
    """

    graph: Side | None = None
    operators: Operators | None = None
    choices: Mapping[str, Choices] = {}
    missing: str = ""


NOTHING = Confirmation()


class Evidences(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict rests on.

    ``reference``: the float64 evaluation; None where there is none, ``no_reference`` says why.
    ``source``: the engine whose own error is the measure; None when the judged side is that engine,
    which must not be its own excuse, and when it does not itself agree with float64.
    ``source_truth``: the reference under the source's own choices, if it made others. ``spread``:
    the side whose spread is known (a property of the function, so one engine's serves all).
    ``narrow``: the reference with every tensor rounded to the type the judged side is declared in,
    ``narrow_type``.
    ``precision`` is the judged side's, whose eps rounding is reckoned in.
    ``fixed``: tolerances that replace the evidence.
    """

    reference: Side | None
    source: Side | None = None
    source_truth: Side | None = None
    spread: Side | None = None
    narrow: Side | None = None
    narrow_type: str = ""
    precision: str = "fp32"
    confirmation: Confirmation = NOTHING
    fixed: Tolerances | None = None
    no_reference: str = ""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one tensor. ``score`` is the error over its limit; ``hint`` helps to act.

    ``nothing``: both sides are alike in having no finite element, which says nothing.
    """

    metrics: TensorMetrics
    evidence: Evidence
    limit: float | None
    score: float
    verdict: str
    hint: str = ""
    nothing: bool = False


def judge(a: Side, b: Side, evidences: Evidences, what: str) -> Agreement:
    """Hold ``a`` against ``b``: the metrics compare these two, the verdict a's error to float64.

    ``what`` is the kind of tensor: ``outputs``, ``loss``, ``gradients``, ``trajectory``, ``taps``.
    """
    reference = evidences.reference
    sides = (a, b) if reference is None else (a, b, reference)
    if problem := not_comparable(sides):
        return inconclusive(a.key, b.key, what, problem)
    mine, theirs = of_kind(a, what), of_kind(b, what)
    if not theirs:
        return inconclusive(a.key, b.key, what, f"no {what} to compare")
    pairing = structure.pair(mine, theirs, labels=(a.label, b.label))
    if pairing.missing:
        sentence = f"{a.label} has no {pairing.missing[0]}, which {b.label} has"
        return inconclusive(a.key, b.key, what, sentence, verdict=DISAGREE)
    if reference is not None:
        missing = [name for _, name in pairing.pairs if name not in reference.tensors]
        if missing:
            sentence = f"{reference.label} has no {missing[0]}, which {b.label} has"
            return inconclusive(a.key, b.key, what, sentence)
    judged = [judge_tensor(own, name, a, b, evidences) for own, name in pairing.pairs]
    empty = [item for item in judged if item.nothing]
    counted = [item for item in judged if not item.nothing] or judged
    worst = max(counted, key=lambda item: (SEVERITY[item.verdict], item.score))
    if worst.verdict == DISAGREE and what == "outputs":
        partner = {name: own for own, name in pairing.pairs}
        worst = hinted(worst, mine, theirs, partner[worst.metrics.name], pairing, (a, b))
    sentence, telling = sentences.of(
        worst,
        a,
        b,
        evidences,
        what=what,
        count=len(counted),
        departure=first_departure(a, b, evidences) if worst.verdict == DISAGREE else "",
        pairing=pairing.words,
        empty=[item.metrics.name for item in empty] if len(empty) < len(judged) else [],
    )
    return Agreement(
        a=a.key,
        b=b.key,
        what=what,
        tensors=[item.metrics for item in judged],
        evidence=worst.evidence,
        tolerance=worst.limit,
        verdict=worst.verdict,
        sentence=sentence,
        telling=telling,
    )


def hinted(
    worst: Judged,
    mine: Mapping[str, Array],
    theirs: Mapping[str, Array],
    own: str,
    pairing: structure.Pairing,
    sides: tuple[Side, Side],
) -> Judged:
    """A disagreement with what its values say of its cause: outputs swapped, axes exchanged."""
    labels = sides[0].label, sides[1].label
    hint = structure.swapped(mine, theirs, pairing, labels=labels).replace("outputs/", "")
    hint = hint or structure.layout(mine[own], theirs[worst.metrics.name], labels=labels)
    return msgspec.structs.replace(worst, hint=hint)


def of_kind(side: Side, what: str) -> dict[str, Array]:
    """The tensors of one kind, in their order."""
    return {name: value for name, value in side.tensors.items() if name.startswith(what + "/")}


def not_comparable(sides: Iterable[Side]) -> str:
    """Why the sides cannot be compared; empty when they can."""
    first, *others = sides
    for key in ("parameters", "inputs"):
        for other in others:
            if other.digests.get(key) != first.digests.get(key):
                return f"the {key} of {first.label} and {other.label} are not the same"
    return ""


def judge_tensor(own: str, name: str, a: Side, b: Side, evidences: Evidences) -> Judged:
    """The verdict on tensor ``own`` of ``a`` against tensor ``name`` of ``b`` and the reference."""
    actual, other = a.tensors[own], b.tensors[name]
    metrics = numerics.compare(name, actual, other)
    if (found := by_structure(actual, other, metrics)) is not None:
        return found
    if evidences.fixed is not None:
        return by_tolerance(own, name, a, b, metrics, evidences.fixed)
    if ulps.kind(actual.dtype) in ("i", "u", "b"):
        found = by_exactness(own, name, a, b, metrics, evidences)
    elif evidences.reference is None:
        found = without_reference(name, metrics, evidences)
    else:
        found = by_error(own, name, a, b, metrics, evidences)
    return steady(own, found, a, b, name)


def by_structure(actual: Array, other: Array, metrics: TensorMetrics) -> Judged | None:
    """Row 1: shape, kind of dtype, masks, elements. None where numbers are to decide."""
    if not metrics.problem:
        return None
    same_shape = actual.shape == other.shape
    alike = same_shape and ulps.kind(actual.dtype) == ulps.kind(other.dtype)
    if alike and actual.size == 0:
        found = decided(metrics, "no elements to compare", INCONCLUSIVE)
        return msgspec.structs.replace(found, nothing=True)
    if metrics.bitwise_equal:
        # Not one finite element, and alike in what they are instead.
        found = decided(metrics, metrics.problem, INCONCLUSIVE)
        return msgspec.structs.replace(found, nothing=True)
    return decided(metrics, metrics.problem, DISAGREE)


def decided(metrics: TensorMetrics, by: str, verdict: str, *, score: float = np.inf) -> Judged:
    """A verdict without a limit."""
    evidence = Evidence(tensor=metrics.name, decided_by=by)
    return Judged(metrics=metrics, evidence=evidence, limit=None, score=score, verdict=verdict)


def steady(own: str, found: Judged, a: Side, b: Side, name: str) -> Judged:
    """Row 2: a side that differs from itself by more than the limit proves nothing."""
    for side, tensor in ((a, own), (b, name)):
        distance = side.unsteady.get(tensor)
        if distance is None:
            continue
        evidence = msgspec.structs.replace(found.evidence, self_rms=distance)
        if found.limit is not None and distance <= found.limit:
            found = msgspec.structs.replace(found, evidence=evidence)
            continue
        by = f"{side.label} differs from itself in a second run"
        by += f": {side.random}" if side.random else ""
        return msgspec.structs.replace(
            found,
            evidence=msgspec.structs.replace(evidence, decided_by=by),
            limit=None,
            score=np.inf,
            verdict=INCONCLUSIVE,
        )
    return found


def by_tolerance(
    own: str, name: str, a: Side, b: Side, metrics: TensorMetrics, fixed: Tolerances
) -> Judged:
    """What the user fixed, element by element."""
    atol, rtol = fixed.of(name.partition("/")[2])
    outside = exceeds(a.tensors[own], b.tensors[name], atol, rtol)
    by = f"fixed tolerance: absolute {atol:g}, relative {rtol:g}"
    if outside:
        by += f"; {outside} of {metrics.elements} elements are outside"
    return decided(metrics, by, DISAGREE if outside else AGREE, score=float(outside))


def by_exactness(
    own: str, name: str, a: Side, b: Side, metrics: TensorMetrics, evidences: Evidences
) -> Judged:
    """Row 3: integers and booleans."""
    actual = a.tensors[own]
    if metrics.differing == 0:
        return decided(metrics, "equal", AGREE, score=0.0)
    reference = evidences.reference
    if reference is not None and np.array_equal(actual, reference.tensors[name]):
        by = f"equal to float64; {b.label} is the side that differs"
        return decided(metrics, by, AGREE, score=0.0)
    by = f"{metrics.differing} of {metrics.elements} differ, and integers are exact"
    choices = fair_choices(evidences)
    if choices is None:
        if not same_function(evidences):
            by += "; its graph is another function, which differs in float64 too"
            return decided(metrics, by, DISAGREE)
        known = made_choices(evidences)
        if known is None:
            return by_boundary(metrics, actual, by, evidences)
        return decided(metrics, "; ".join(filter(None, [by, known.faults])), DISAGREE)
    expected = choices.side.tensors.get(own if choices.stands_in else name)
    if expected is None or not np.array_equal(actual, expected):
        return decided(metrics, f"{by}, also under its own choices", DISAGREE)
    found = decided(metrics, "ties", AGREE, score=0.0)
    evidence = msgspec.structs.replace(found.evidence, ties=choices.ties)
    return msgspec.structs.replace(found, evidence=evidence)


def by_boundary(metrics: TensorMetrics, actual: Array, by: str, evidences: Evidences) -> Judged:
    """Whole numbers and truths made from floats near a boundary: few are one step away.

    Only where a closer look says that the graph is the same function; ``agree`` where each operator
    is within its own bound as well.
    """
    confirmation = evidences.confirmation
    reference = evidences.reference
    if confirmation.graph is None or reference is None or metrics.name not in reference.tensors:
        return decided(metrics, by, DISAGREE)
    for found in (metrics, numerics.compare("", actual, reference.tensors[metrics.name])):
        if found.differing > FEW * found.elements or (found.max_abs or 0.0) > 1.0:
            return decided(metrics, by, DISAGREE)
    operators = confirmation.operators
    if operators is None or not operators.checked or operators.unchecked:
        why = f"{by}, but {AT_A_BOUNDARY} may be rounding, which nothing here can tell"
        return decided(metrics, why, INCONCLUSIVE)
    if any(item.score > 1.0 for item in operators.worst):
        return decided(metrics, by, DISAGREE)
    agreed = decided(metrics, "roundings near a boundary", AGREE, score=0.0)
    evidence = msgspec.structs.replace(agreed.evidence, operators=operators)
    return msgspec.structs.replace(agreed, evidence=evidence)


def made_choices(evidences: Evidences) -> Choices | None:
    """The reference under the choices of the judged side, if it was evaluated so."""
    if evidences.reference is None:
        return None
    return evidences.confirmation.choices.get(evidences.reference.key)


def fair_choices(evidences: Evidences) -> Choices | None:
    """The same, where every choice is a tie and it is the reference that was evaluated."""
    choices = made_choices(evidences)
    if choices is None or choices.faults:
        return None
    return None if choices.stands_in and not same_function(evidences) else choices


def same_function(evidences: Evidences) -> bool:
    """Whether the judged graph, in float64, is the function that the reference is.

    Only then does what it computes under other choices stand for the reference. True where its
    graph is not known.
    """
    graph, reference = evidences.confirmation.graph, evidences.reference
    if graph is None or reference is None:
        return True
    computed, wanted = of_kind(graph, "outputs"), of_kind(reference, "outputs")
    pairing = structure.pair(computed, wanted)
    if pairing.missing:
        return False
    for own, name in pairing.pairs:
        value, truth = computed[own], wanted[name]
        if ulps.kind(value.dtype) in ("i", "u", "b"):
            if not np.array_equal(value, truth):
                return False
            continue
        distance = rms_or_none(value, truth)
        limits, _ = float_limits(name, evidences, truth, ordinary.rms(truth))
        if distance is None or distance > max(limits.values()):
            return False
    return True


def without_reference(name: str, metrics: TensorMetrics, evidences: Evidences) -> Judged:
    """Where there is no float64: only what is certain is a verdict."""
    if metrics.bitwise_equal:
        return decided(metrics, "bitwise equal", AGREE, score=0.0)
    why = f" ({evidences.no_reference})" if evidences.no_reference else ""
    by = f"without a float64 reference{why} nobody knows whether rounding explains it"
    return decided(metrics, by, INCONCLUSIVE, score=metrics.scaled or 0.0)


def by_error(
    own: str, name: str, a: Side, b: Side, metrics: TensorMetrics, evidences: Evidences
) -> Judged:
    """Row 4 and 5: the error to float64 against what rounding explains."""
    confirmation = evidences.confirmation
    assert evidences.reference is not None
    plain = truth = evidences.reference.tensors[name]
    choices = fair_choices(evidences)
    if choices is not None:
        truth = choices.side.tensors.get(own if choices.stands_in else name, truth)
    to_truth = numerics.compare(name, a.tensors[own], truth)
    if to_truth.problem:
        return decided(metrics, to_truth.problem, INCONCLUSIVE)
    scale, error = ordinary.rms(truth), ordinary.rms_error(a.tensors[own], truth)
    if ordinary.others_differ(a.tensors[own], truth, FAR_OFF * EPS[evidences.precision]):
        by = f"elements {ordinary.FAR:g} times larger than the others differ"
        return decided(metrics, by, DISAGREE)
    in_double = a.tensors[own].dtype == np.float64 == b.tensors[name].dtype
    if in_double and evidences.precision == "fp64":
        limits, evidence = {"float64 parity": PARITY * scale}, Evidence(tensor=name)
    else:
        limits, evidence = float_limits(name, evidences, truth, scale)
    by, limit = max(limits.items(), key=lambda item: item[1])
    evidence = msgspec.structs.replace(
        evidence,
        error_rms=error,
        other_error_rms=rms_or_none(b.tensors[name], truth),
        ties=0 if choices is None else choices.ties,
        decided_by=by,
    )
    score = error / limit if limit else (np.inf if error else 0.0)
    found = Judged(
        metrics=metrics, evidence=evidence, limit=limit, score=score, verdict=verdict_of(score, by)
    )
    if found.verdict == AGREE:
        return found
    if to_truth.subnormal_only:
        evidence = msgspec.structs.replace(evidence, decided_by=sentences.SUBNORMAL)
        return msgspec.structs.replace(found, evidence=evidence, score=1.0, verdict=AGREE)
    found = confirmed(own, found, plain, confirmation)
    made = made_choices(evidences)
    chose = made is not None and bool(made.ties or made.faults)
    if found.verdict == DISAGREE and chose and evidences.narrow is not None:
        return msgspec.structs.replace(found, verdict=INCONCLUSIVE, hint=OTHER_CHOICES)
    return found


def confirmed(own: str, found: Judged, truth: Array, confirmation: Confirmation) -> Judged:
    """What remains of a rejection once the graph and its operators were looked at.

    Operators that are all right say nothing of a graph that is not known to be.
    """
    evidence, limit = found.evidence, found.limit or 0.0
    if confirmation.graph is not None and own in confirmation.graph.tensors:
        distance = rms_or_none(confirmation.graph.tensors[own], truth)
        evidence = msgspec.structs.replace(evidence, graph_rms=distance)
        if distance is None or distance > limit:
            evidence = msgspec.structs.replace(evidence, decided_by=ANOTHER_GRAPH)
            return msgspec.structs.replace(found, evidence=evidence)
    operators = confirmation.operators
    if operators is None or not operators.checked:
        return msgspec.structs.replace(found, evidence=evidence)
    evidence = msgspec.structs.replace(
        evidence, operators=operators, decided_by="operator by operator"
    )
    within = all(item.score <= 1.0 for item in operators.worst)
    verdict = found.verdict
    if within:
        known = confirmation.graph is not None and own in confirmation.graph.tensors
        known = known and (operators.optimizer or not own.startswith("trajectory/"))
        verdict = AGREE if known and not operators.unchecked else INCONCLUSIVE
    return msgspec.structs.replace(found, evidence=evidence, verdict=verdict)


def float_limits(
    name: str, evidences: Evidences, truth: Array, scale: float
) -> tuple[dict[str, float], Evidence]:
    """The candidates for the limit of one float tensor, by name, and their evidence."""
    assert evidences.reference is not None
    terms = evidences.reference.terms.get(name, 1)
    rounding = 4.0 * EPS[evidences.precision] * scale * terms**0.5
    of = "rounding of the result" if terms == 1 else "rounding of a sum, 4 eps sqrt(K)"
    limits = {of: rounding}
    own = spread = narrow = None
    if evidences.spread is not None and name in evidences.spread.spread:
        spread = evidences.spread.spread[name]
        limits[f"{evidences.spread.spread_ulps}-ULP spread"] = spread
    if evidences.source is not None and name in evidences.source.tensors:
        under = evidences.source_truth
        plain = evidences.reference.tensors[name]
        exact = plain if under is None else under.tensors.get(name, plain)
        own = rms_or_none(evidences.source.tensors[name], exact)
        # None: the source is not finite where float64 is, which measures no rounding.
        limits["2x source error"] = 2.0 * (own or 0.0)
    if evidences.narrow is not None and name in evidences.narrow.tensors:
        # Both with every index chosen as float64 chooses, whatever the judged side chose.
        narrow = rms_or_none(evidences.narrow.tensors[name], evidences.reference.tensors[name])
        limits[f"{NARROW_ROUNDING} {evidences.narrow_type}"] = 2.0 * (narrow or 0.0)
    evidence = Evidence(
        tensor=name,
        source_error_rms=own,
        spread_rms=spread,
        rounding_rms=rounding,
        narrow_rms=narrow,
        terms=terms,
        draws=evidences.spread.draws if evidences.spread is not None else 0,
        spread_ulps=evidences.spread.spread_ulps if evidences.spread is not None else 0,
    )
    return limits, evidence


def rms_or_none(actual: Array, truth: Array) -> float | None:
    """RMS distance over ordinary elements; None where the two have none."""
    try:
        return ordinary.rms_error(actual, truth)
    except numerics.Incomparable:
        return None


def verdict_of(score: float, by: str = "") -> str:
    """The verdict for an error that is ``score`` times the limit that ``by`` set."""
    if score <= 1.0:
        return AGREE
    beyond = BEYOND_NARROW if by.startswith(NARROW_ROUNDING) else BEYOND
    return DISAGREE if score > beyond else INCONCLUSIVE


def first_departure(a: Side, b: Side, evidences: Evidences) -> str:
    """Where a disagreement starts: the first tap, in the order of computation, that departs."""
    plain = msgspec.structs.replace(evidences, confirmation=NOTHING)
    for name in evidences.reference.tensors if evidences.reference is not None else ():
        known = name.startswith("taps/") and name in a.tensors and name in b.tensors
        if known and judge_tensor(name, name, a, b, plain).verdict == DISAGREE:
            return name.removeprefix("taps/")
    return ""


def inconclusive(
    a: str, b: str, what: str, sentence: str, *, verdict: str = INCONCLUSIVE
) -> Agreement:
    """A pair of case keys of which no number could be judged, and why."""
    return Agreement(
        a=a,
        b=b,
        what=what,
        tensors=[],
        evidence=None,
        tolerance=None,
        verdict=verdict,
        sentence=sentence,
    )
