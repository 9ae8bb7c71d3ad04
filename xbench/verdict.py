"""Same or not the same: the law of the verdict, with its evidence.

In this order:

1. Nothing to compare, or other parameters or inputs on the two sides: ``inconclusive``.
2. A tensor missing, another shape or kind of dtype, or other NaN/Inf masks: ``disagree``. The two
   alike in these but not comparable with float64, as after an overflow: ``inconclusive``.
3. Float64 against float64 (definition parity): ``agree`` within 1e-9 of the reference's RMS.
4. Otherwise the RMS error to float64 decides. The limit is the largest of twice the error of the
   source engine, the spread under perturbations of the parameters by ULPs, and the rounding of the
   result itself, 4 eps RMS(reference). The source engine must not be its own excuse: it is held to
   the rounding of a sum of K terms, 4 eps sqrt(K) RMS(reference), K the elements of the inputs,
   and what it lends to others is capped there (or at the spread).
   Within the limit: ``agree``; beyond ten times the limit: ``disagree``; between: ``inconclusive``.

The verdict on a pair is the worst over its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from xbench import numerics
from xbench.result import Agreement, Evidence, TensorMetrics

AGREE, INCONCLUSIVE, DISAGREE = "agree", "inconclusive", "disagree"
SEVERITY = {AGREE: 0, INCONCLUSIVE: 1, DISAGREE: 2}
PARITY = 1e-9
"""Limit of definition parity, relative to the RMS of the reference: float64 rounding of these
models was seen at 3e-15, and a wrong definition is not within a million times that."""
BEYOND = 10.0
"""How many times the limit an error must exceed to be called a disagreement."""

EPS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}
"""Distance from 1 to the next number, by precision."""

Array = np.ndarray[Any, Any]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a pair: its case key, how a sentence calls it, what it computed."""

    key: str
    label: str
    tensors: Mapping[str, Array]
    digests: Mapping[str, str]
    spread: Mapping[str, float] = {}
    draws: int = 0
    spread_ulps: int = 1


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one tensor. ``score`` is the error over its limit."""

    metrics: TensorMetrics
    evidence: Evidence
    limit: float | None
    score: float
    verdict: str


class Evidences(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict rests on.

    ``reference``: the float64 evaluation. ``source``: the engine whose own error is the measure;
    None when the judged side is that engine, which must not be its own excuse. ``spread``: the
    engine whose spread is known (a property of the function, so one engine's serves all).
    ``terms`` is K, how many terms a result may sum: the elements of the inputs. ``precision`` is
    the judged side's, whose eps rounding is reckoned in.
    """

    reference: Side
    source: Side | None
    spread: Side | None
    terms: int = 1
    precision: str = "fp32"


def judge(a: Side, b: Side, evidences: Evidences, what: str) -> Agreement:
    """Hold ``a`` against ``b``: the metrics compare these two, the verdict a's error to float64.

    ``what`` is the kind of tensor: ``outputs``, ``loss``, ``gradients``, ``parameters``, ``taps``.
    """
    if problem := not_comparable((a, b, evidences.reference)):
        return inconclusive(a.key, b.key, what, problem)
    names = [name for name in b.tensors if name.startswith(what + "/")]
    if not names:
        return inconclusive(a.key, b.key, what, f"no {what} to compare")
    for side, verdict in ((a, DISAGREE), (evidences.reference, INCONCLUSIVE)):
        missing = [name for name in names if name not in side.tensors]
        if missing:
            sentence = f"{side.label} has no {missing[0]}, which {b.label} has"
            nothing = inconclusive(a.key, b.key, what, sentence)
            return msgspec.structs.replace(nothing, verdict=verdict)
    judged = [judge_tensor(name, a, b, evidences) for name in names]
    worst = max(judged, key=lambda item: (SEVERITY[item.verdict], item.score))
    return Agreement(
        a=a.key,
        b=b.key,
        what=what,
        tensors=[item.metrics for item in judged],
        evidence=worst.evidence,
        tolerance=worst.limit,
        verdict=worst.verdict,
        sentence=sentence_of(worst, a, b, evidences, len(names), what),
    )


def judge_alone(a: Side, b: Side, what: str) -> Agreement:
    """Hold ``a`` against ``b`` without a float64 reference: only what is certain is a verdict.

    Bitwise equal: ``agree``. Another shape, dtype or NaN/Inf mask: ``disagree``. Otherwise the
    difference is shown, and whether rounding explains it is not known: ``inconclusive``.
    """
    if problem := not_comparable((a, b)):
        return inconclusive(a.key, b.key, what, problem)
    names = [name for name in b.tensors if name.startswith(what + "/")]
    if not names:
        return inconclusive(a.key, b.key, what, f"no {what} to compare")
    missing = [name for name in names if name not in a.tensors]
    if missing:
        sentence = f"{a.label} has no {missing[0]}, which {b.label} has"
        nothing = inconclusive(a.key, b.key, what, sentence)
        return msgspec.structs.replace(nothing, verdict=DISAGREE)
    metrics = [numerics.compare(name, a.tensors[name], b.tensors[name]) for name in names]
    empty = {
        name
        for name in names
        if not a.tensors[name].size
        and a.tensors[name].shape == b.tensors[name].shape
        and a.tensors[name].dtype.kind == b.tensors[name].dtype.kind
    }
    same = {metric.name for metric in metrics if metric.bitwise_equal} | empty
    wrong = next((metric for metric in metrics if metric.problem and metric.name not in same), None)
    other = max(metrics, key=lambda metric: metric.scaled or 0.0)
    if wrong is not None:
        verdict = DISAGREE
        sentence = f"{a.label} and {b.label} differ in {wrong.name}: {wrong.problem}"
    elif len(empty) == len(names):
        return inconclusive(a.key, b.key, what, f"the {what} have no elements to compare")
    elif len(same) == len(names):
        verdict = AGREE
        sentence = f"{a.label} and {b.label} are bitwise equal in all {len(names)} {what}"
    else:
        verdict = INCONCLUSIVE
        sentence = (
            f"{a.label} is off {b.label} in {other.name} by {other.scaled or 0.0:.2g} of its "
            "largest value; without a float64 reference nobody knows whether rounding explains it"
        )
    return Agreement(
        a=a.key,
        b=b.key,
        what=what,
        tensors=metrics,
        evidence=None,
        tolerance=None,
        verdict=verdict,
        sentence=sentence,
    )


def not_comparable(sides: Sequence[Side]) -> str:
    """Why the sides cannot be compared; empty when they can."""
    for key in ("parameters", "inputs"):
        if len({side.digests.get(key) for side in sides}) > 1:
            return f"the {key} of {sides[0].label} and {sides[1].label} are not the same"
    return ""


def judge_tensor(name: str, a: Side, b: Side, evidences: Evidences) -> Judged:
    """The verdict on tensor ``name``, which all sides have."""
    actual, other = a.tensors[name], b.tensors[name]
    truth = evidences.reference.tensors[name]
    metrics = numerics.compare(name, actual, other)
    to_truth = numerics.compare(name, actual, truth)
    if metrics.problem or to_truth.problem:
        empty = actual.size == 0 and actual.shape == other.shape
        alike = empty or metrics.bitwise_equal or not metrics.problem
        problem = to_truth.problem if alike else metrics.problem
        evidence = Evidence(tensor=name, decided_by=problem)
        verdict = INCONCLUSIVE if alike else DISAGREE
        return Judged(metrics=metrics, evidence=evidence, limit=None, score=np.inf, verdict=verdict)
    scale = to_truth.reference_rms or 0.0
    error = to_truth.rms or 0.0
    if actual.dtype == np.float64 == other.dtype:
        limits = {"float64 parity": PARITY * scale}
        evidence = Evidence(tensor=name, error_rms=error)
    else:
        limits, evidence = float32_limits(name, evidences, truth, scale)
        evidence = msgspec.structs.replace(evidence, error_rms=error)
    decided_by, limit = max(limits.items(), key=lambda item: item[1])
    evidence = msgspec.structs.replace(evidence, decided_by=decided_by)
    score = error / limit if limit else (np.inf if error else 0.0)
    return Judged(
        metrics=metrics, evidence=evidence, limit=limit, score=score, verdict=verdict_of(score)
    )


def float32_limits(
    name: str, evidences: Evidences, truth: Array, scale: float
) -> tuple[dict[str, float], Evidence]:
    """The candidates for the limit of one float32 tensor, by name, and their evidence."""
    rounding = 4.0 * EPS[evidences.precision] * scale
    of_a_sum = rounding * evidences.terms**0.5
    if evidences.source is None:
        rounding = of_a_sum
        limits = {"rounding of a sum, 4 eps sqrt(K)": rounding}
    else:
        limits = {"rounding of the result": rounding}
    own = spread = None
    if evidences.spread is not None and name in evidences.spread.spread:
        spread = evidences.spread.spread[name]
        limits[f"{evidences.spread.spread_ulps}-ULP spread"] = spread
    if evidences.source is not None and name in evidences.source.tensors:
        try:
            own = numerics.rms_error(evidences.source.tensors[name], truth)
            # A source that is wrong must not excuse others: no more than it is allowed itself.
            limits["2x source error"] = min(2.0 * own, max(of_a_sum, spread or 0.0))
        except numerics.Incomparable:
            pass  # The source is not finite where float64 is: no measure of rounding.
    evidence = Evidence(
        tensor=name,
        source_error_rms=own,
        spread_rms=spread,
        rounding_rms=rounding,
        draws=evidences.spread.draws if evidences.spread is not None else 0,
        spread_ulps=evidences.spread.spread_ulps if evidences.spread is not None else 0,
    )
    return limits, evidence


def verdict_of(score: float) -> str:
    """The verdict for an error that is ``score`` times its limit."""
    if score <= 1.0:
        return AGREE
    return DISAGREE if score > BEYOND else INCONCLUSIVE


def sentence_of(
    worst: Judged, a: Side, b: Side, evidences: Evidences, count: int, what: str
) -> str:
    """One sentence that a person can act on."""
    name = worst.metrics.name
    if worst.limit is None:
        differ = "differ" if worst.verdict == DISAGREE else "cannot be told apart"
        return f"{a.label} and {b.label} {differ} in {name}: {worst.evidence.decided_by}"
    error = f"its RMS error to float64 is {worst.evidence.error_rms:.2g}"
    limit = f"{worst.limit:.2g} ({worst.evidence.decided_by})"
    if worst.verdict == AGREE:
        of = f"all {count} {what}" if count > 1 else name
        return (
            f"{a.label} agrees with {b.label} in {of}; nearest to its limit: {name}, "
            f"{error}, limit {limit}"
        )
    if worst.verdict == INCONCLUSIVE:
        return (
            f"{a.label} is off {b.label} in {name}: {error}, above the limit {limit} "
            f"but not {BEYOND:.0f} times it"
        )
    tail = first_departure(a, b, evidences)
    return f"{a.label} is not the same as {b.label} in {name}: {error}, limit {limit}{tail}"


def first_departure(a: Side, b: Side, evidences: Evidences) -> str:
    """Where a disagreement starts: the first tap, in the order of computation, that departs."""
    for name in evidences.reference.tensors:
        if name.startswith("taps/") and name in a.tensors and name in b.tensors:
            judged = judge_tensor(name, a, b, evidences)
            if judged.verdict == DISAGREE:
                return f"; the first tensor that departs is {name.removeprefix('taps/')}"
    return ""


def inconclusive(a: str, b: str, what: str, sentence: str) -> Agreement:
    """A pair of case keys of which nothing could be judged, and why."""
    return Agreement(
        a=a,
        b=b,
        what=what,
        tensors=[],
        evidence=None,
        tolerance=None,
        verdict=INCONCLUSIVE,
        sentence=sentence,
    )
