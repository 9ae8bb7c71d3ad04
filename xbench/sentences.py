"""One sentence per agreement that a person can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xbench.result import Evidence, OperatorCheck

if TYPE_CHECKING:
    from xbench.verdict import Evidences, Judged, Side

SUBNORMAL = "only subnormal numbers differ"
"""What decided where one side flushes them to zero."""
LESS_ACCURATE = 2.0
"""How many times the error of the judged side the other's must be to be called less accurate."""


def of(
    worst: Judged,
    a: Side,
    b: Side,
    evidences: Evidences,
    *,
    what: str,
    count: int,
    departure: str,
    pairing: str,
    empty: Sequence[str],
) -> tuple[str, bool]:
    """The sentence on a pair, of which ``worst`` is the tensor that decided.

    ``departure``: the first tap that departs; ``pairing``: how outputs found each other, where not
    by name; ``empty``: tensors in which there was nothing to compare. Also whether it says more
    than verdict, error and limit do.
    """
    parts = [
        main(worst, a, b, evidences, what, count),
        less_accurate(worst, b, evidences),
        worst.hint,
    ]
    parts += [rounding_alone(worst, evidences)]
    parts += [f"the first tensor that departs is {departure}" if departure else "", pairing]
    parts += [f"nothing to compare in {', '.join(empty)}" if empty else ""]
    sides = [a, b] + ([evidences.reference] if evidences.reference is not None else [])
    remarks = dict.fromkeys(remark for side in sides for remark in side.remarks)
    if (operators := worst.evidence.operators) is not None:
        parts.append(operators.remark)
    if worst.verdict != "agree" and evidences.confirmation.missing:
        parts.append(evidences.confirmation.missing)
    found = [part for part in (*parts, *remarks) if part]
    plain = worst.verdict == "agree" and worst.limit is not None and len(found) == 1
    plain = plain and worst.evidence.operators is None and not worst.evidence.ties
    plain = plain and worst.evidence.decided_by != SUBNORMAL
    return "; ".join(found), not plain


def main(worst: Judged, a: Side, b: Side, evidences: Evidences, what: str, count: int) -> str:
    """What was found, and what decided it."""
    name, evidence = worst.metrics.name, worst.evidence
    every = f"all {count} {what}" if count > 1 else name
    if worst.limit is None:
        return without_limit(worst, a, b, every)
    error = f"its RMS error to float64 is {evidence.error_rms:.2g}"
    limit = f"limit {worst.limit:.2g} ({limit_by(evidence, evidences)})"
    if evidence.decided_by == SUBNORMAL:
        return (
            f"{a.label} agrees with {b.label} in {every}, but for subnormal numbers in {name}, "
            "which one of them flushes to zero"
        )
    if worst.verdict == "agree" and evidence.operators is not None:
        return (
            f"{a.label} agrees with {b.label} in {every}: {error} in {name}, {worst.score:.2g} "
            f"times the {limit}, but each of its {evidence.operators.checked} operators is within "
            f"its own bound{least(evidence)}"
        )
    if worst.verdict == "agree" and count == 1:
        tied = f"; {evidence.ties} ties" if evidence.ties else ""
        return f"{a.label} agrees with {b.label} in {name}: {error}, {limit}{tied}"
    if worst.verdict == "agree":
        tied = f"; {evidence.ties} ties" if evidence.ties else ""
        return (
            f"{a.label} agrees with {b.label} in {every}; nearest to its limit: {name}, "
            f"{error}, {limit}{tied}"
        )
    reference = evidences.reference
    if worst.metrics.bitwise_equal and reference is not None and b.key != reference.key:
        return (
            f"{a.label} and {b.label} are bitwise equal in {name}, and both off: {error}, "
            f"{worst.score:.2g} times the {limit}{at_fault(evidence)}"
        )
    if worst.verdict == "inconclusive":
        return (
            f"{a.label} is off {b.label} in {name}: {error}, {worst.score:.2g} times the {limit}"
            f"{at_fault(evidence)}"
        )
    return (
        f"{a.label} is not the same as {b.label} in {name}: {error}, {worst.score:.2g} times the "
        f"{limit}{at_fault(evidence)}"
    )


def without_limit(worst: Judged, a: Side, b: Side, every: str) -> str:
    """A verdict that no error decided: structure, exactness, fixed tolerances."""
    name, by = worst.metrics.name, worst.evidence.decided_by
    if worst.verdict == "agree":
        if by == "ties":
            ties = worst.evidence.ties
            return (
                f"{a.label} agrees with {b.label} in {every}: what differs in {name} is {ties} "
                f"{'tie' if ties == 1 else 'ties'}, chosen between values closer than their error"
            )
        return f"{a.label} agrees with {b.label} in {every} ({by})"
    if worst.verdict == "disagree":
        return f"{a.label} and {b.label} differ in {name}: {by}"
    scaled = worst.metrics.scaled
    off = f" by {scaled:.2g} of its largest value" if scaled else ""
    return f"{a.label} and {b.label} cannot be told apart in {name}{off}: {by}"


def rounding_alone(worst: Judged, evidences: Evidences) -> str:
    """What the declared type costs anyway, beside what was lost."""
    alone, metrics = worst.evidence.narrow_rms, worst.metrics
    if alone is None:
        return ""
    shown = [f"rounding every tensor to {evidences.narrow_type} alone costs {alone:.2g}"]
    if metrics.snr_db is not None:
        shown.append(f"SNR {metrics.snr_db:.3g} dB")
    if metrics.top1 is not None:
        shown.append(f"top-1 the same in {100 * metrics.top1:.3g} % of rows")
    return ", ".join(shown)


def limit_by(evidence: Evidence, evidences: Evidences) -> str:
    """What set the limit, also where something else decided."""
    candidates = {
        "rounding of the result": evidence.rounding_rms,
        f"{evidence.spread_ulps}-ULP spread": evidence.spread_rms,
        "2x source error": 2 * evidence.source_error_rms if evidence.source_error_rms else None,
    }
    if evidences.narrow is not None and evidence.narrow_rms is not None:
        candidates[f"2x rounding to {evidences.narrow_type}"] = 2 * evidence.narrow_rms
    known = {name: value for name, value in candidates.items() if value is not None}
    if not known:
        return evidence.decided_by
    by = max(known, key=lambda name: known[name])
    return (
        f"4 eps sqrt({evidence.terms})"
        if by.startswith("rounding of the") and (evidence.terms > 1)
        else by
    )


def least(evidence: Evidence) -> str:
    """The least accurate operator of a side whose operators are all within their bounds."""
    if evidence.operators is None or not evidence.operators.worst:
        return ""
    worst = evidence.operators.worst[0]
    return f"; the least accurate is {named(worst)}, at {worst.score:.2g} of its bound"


def at_fault(evidence: Evidence) -> str:
    """What a rejection was traced to."""
    if evidence.decided_by == "its graph, evaluated in float64":
        apart = "not comparable" if evidence.graph_rms is None else f"{evidence.graph_rms:.2g} off"
        return f"; its graph is another function: evaluated in float64 it is {apart}"
    operators = evidence.operators
    if operators is None or not operators.worst:
        return ""
    worst = operators.worst[0]
    if worst.score > 1.0:
        return (
            f"; the operator at fault is {named(worst)}: on the same inputs its error is "
            f"{worst.score:.2g} times its own bound ({worst.bound})"
        )
    left = list(operators.unchecked)
    if not operators.optimizer and evidence.tensor.startswith("trajectory/"):
        left.append("the optimizer's update")
    words = f"; the {operators.checked} operators that could be checked are within their bounds"
    return words + (f", not checked: {', '.join(left)}" if left else "")


def named(check: OperatorCheck) -> str:
    """An operator and where it stands."""
    return f"{check.op} ({check.node})" if check.node and check.node != check.op else check.op


def less_accurate(worst: Judged, b: Side, evidences: Evidences) -> str:
    """Which side is the less accurate one, where it is not the judged one."""
    if evidences.reference is None or b.key == evidences.reference.key:
        return ""
    mine, theirs = worst.evidence.error_rms, worst.evidence.other_error_rms
    if mine is None or not theirs or theirs <= LESS_ACCURATE * mine:
        return ""
    return f"{b.label} is the less accurate side: its RMS error to float64 is {theirs:.2g}"
