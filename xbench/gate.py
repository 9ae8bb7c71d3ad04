"""The gate of a comparison: which changes from run A to run B fail it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec

from xbench import speed
from xbench.compare import Comparison
from xbench.contrast import WORK
from xbench.errors import UsageError, unknown
from xbench.result import OK
from xbench.verdict import DISAGREE
from xbench.wording import few

RULES = ("slower", "disagree", "missing", "memory")
PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)%?")


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
        found[word] = Rule(word=word, limit=share(word, value) if equals else None)
    return tuple(found.values())


def share(word: str, value: str) -> float:
    """0.05 for ``5%`` or ``5``. Raises UsageError that names the rule for any other text."""
    number = PERCENT.fullmatch(value)
    if number is None or not math.isfinite(float(number[1])):
        raise UsageError(f"--fail-on {word}={value}: not a percentage, as in {word}=5%, from 0 up")
    return float(number[1]) / 100.0


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
        found = BREACHES[rule.word](comparison, rule.limit)
        if found:
            limit = "" if rule.limit is None else f" (limit {100 * rule.limit:g} %)"
            reasons.append(f"{rule.word}{limit}: {few(found)}")
    return reasons


def slower(comparison: Comparison, limit: float | None) -> list[str]:
    """Cases that became slower by more than the limit."""
    return [
        f"{row.name}, ratio {row.ratio:.3f}"
        for row in comparison.rows
        if row.verdict == speed.SLOWER
        and row.ratio is not None
        and row.ratio > 1.0 + (limit if limit is not None else row.margin or 0.0)
    ]


def disagreeing(comparison: Comparison, limit: float | None) -> list[str]:
    """Cases of B that disagree with another."""
    pairs = [
        f"{row.name} and {x.against} on {x.what}" + (", as in A" if x.a == DISAGREE else "")
        for row in comparison.rows
        for x in row.agreements
        if x.b == DISAGREE
    ]
    return pairs + [
        f"{single.name} on {what}" for single in comparison.unmatched_b for what in single.disagrees
    ]


def missing(comparison: Comparison, limit: float | None) -> list[str]:
    """Cases that ran in A and that B does not have."""
    rows = [
        f"{row.name}, {row.b_status if row.b_status != OK else 'not measured'}"
        for row in comparison.rows
        if row.a_status == OK
        and row.asked
        and (row.b_status != OK or (row.measured[0] and not row.measured[1]))
    ]
    return rows + [s.name for s in comparison.unmatched_a if s.status == OK]


def memory(comparison: Comparison, limit: float | None) -> list[str]:
    """Cases of the same work that take more memory than the limit allows."""
    return [
        f"{row.name}, {row.memory_ratio:.3f} times"
        for row in comparison.rows
        if row.memory_ratio is not None
        and row.memory_ratio > 1.0 + (limit or 0.0)
        and not any(d.kind == "identity" and d.what in WORK for d in row.differences)
    ]


BREACHES: dict[str, Callable[[Comparison, float | None], list[str]]] = {
    "slower": slower,
    "disagree": disagreeing,
    "missing": missing,
    "memory": memory,
}
