"""Which pairs of observations are held against each other, and by what evidence.

Pairs: the two definitions, both in float64; every case to the float64 reference; the second native
engine to the first; every ORT case to its source framework; every cuda case to its cpu twin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from xbench.result import Agreement
from xbench.spec import Case
from xbench.verdict import Evidences, Side, inconclusive, judge

WHAT = {"infer": ("outputs",), "train": ("loss", "gradients", "parameters")}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """``a`` is judged against ``b``; the float32 error of ``source`` is the measure, if any."""

    a: Case
    b: Case
    source: Case | None


def double(case: Case, engine: str) -> Case:
    """The float64 evaluation by ``engine`` of what ``case`` computes."""
    return msgspec.structs.replace(
        case, engine=engine, source=None, device="cpu", precision="fp64", options={}
    )


def single(case: Case, engine: str) -> Case:
    """The float32 evaluation by a native engine on the cpu."""
    return msgspec.structs.replace(
        case, engine=engine, source=None, device="cpu", precision="fp32", options={}
    )


def pairs(cases: Sequence[Case], natives: Sequence[str]) -> list[Pair]:
    """The pairs to judge for ``cases``; ``natives`` are the native engines that work here.

    The first native engine is the reference; without one there is nothing to hold a case against.
    """
    if not natives:
        return []
    first = natives[0]
    found: list[Pair] = []
    for case in cases:
        own = single(case, case.source or first)
        is_own = case.key == own.key
        found.append(Pair(a=case, b=double(case, first), source=None if is_own else own))
        if case.source is not None or (case.device == "cpu" and case.engine in natives[1:]):
            found.append(Pair(a=case, b=own, source=own))
        definition = case.source or case.engine
        if definition in natives[1:]:
            found.append(Pair(a=double(case, definition), b=double(case, first), source=None))
        if case.device != "cpu":
            cpu = msgspec.structs.replace(case, device="cpu")
            if cpu.key != own.key:
                found.append(Pair(a=case, b=cpu, source=cpu))
            else:
                found.append(Pair(a=case, b=own, source=own))
    unique = {(pair.a.key, pair.b.key): pair for pair in found}
    # Definition parity first: where it fails, every other verdict is about another network.
    return sorted(unique.values(), key=lambda pair: pair.a.precision != "fp64")


def witnesses(cases: Sequence[Case], natives: Sequence[str]) -> list[Case]:
    """Cases that nobody asked for but whose observations the pairs of ``cases`` need."""
    needed: dict[str, Case] = {}
    for pair in pairs(cases, natives):
        for case in (pair.a, pair.b, pair.source, single(pair.a, natives[0])):
            if case is not None:
                needed.setdefault(case.key, case)
    asked = {case.key for case in cases}
    return [case for key, case in needed.items() if key not in asked]


def agreements(
    cases: Sequence[Case], sides: Mapping[str, Side], natives: Sequence[str]
) -> list[Agreement]:
    """The verdict on every pair of ``cases`` (``sides`` by case key).

    A pair that lacks an observation it needs is ``inconclusive`` and names it: it must not pass for
    one that was compared.
    """
    found = []
    for pair in pairs(cases, natives):
        reference, spread = double(pair.a, natives[0]), single(pair.a, natives[0])
        needed = [pair.a, pair.b, reference, *([pair.source] if pair.source else [])]
        missing = [case for case in needed if case.key not in sides]
        for what in WHAT[pair.a.phase]:
            if missing:
                sentence = f"{missing[0].label} could not be computed, so nothing was compared"
                found.append(inconclusive(pair.a.key, pair.b.key, what, sentence))
                continue
            evidences = Evidences(
                reference=sides[reference.key],
                source=sides[pair.source.key] if pair.source else None,
                spread=sides.get(spread.key),
                terms=sum(math.prod(shape) for shape in pair.a.shape.values()),
            )
            found.append(judge(sides[pair.a.key], sides[pair.b.key], evidences, what))
    return found
