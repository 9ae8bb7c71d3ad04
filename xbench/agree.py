"""Which pairs of observations are held against each other, and by what evidence.

Pairs: the two definitions, both in float64; every case to the float64 reference; the second native
engine to the first; every ORT case to its source framework, every compiled one to its eager twin;
every cuda case to its cpu twin. A lower precision is measured by what the source does in it.
Cases of a user's file, which has no float64 reference, are held against the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from xbench import registry
from xbench.result import Agreement
from xbench.spec import FILE, Case
from xbench.verdict import Evidences, Side, inconclusive, judge, judge_alone

WHAT = {"infer": ("outputs",), "train": ("loss", "gradients", "parameters")}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """``a`` is judged against ``b``; the own error of ``source`` is the measure, if any.

    ``reference`` is the float64 evaluation; None where there is none, as of a user's file.
    """

    a: Case
    b: Case
    source: Case | None
    reference: Case | None


def plain(case: Case) -> Case:
    """The case without what changes speed and not results: how many threads call, which side."""
    return msgspec.structs.replace(
        case, precision="fp32", options={}, concurrency=1, arm="", device="cpu"
    )


def double(case: Case, engine: str) -> Case:
    """The float64 evaluation by ``engine`` of what ``case`` computes."""
    return msgspec.structs.replace(plain(case), engine=engine, source=None, precision="fp64")


def single(case: Case, engine: str) -> Case:
    """The evaluation by a native engine on the cpu, in the precision of the case.

    Of a float64 case it is the one in float32.
    """
    precision = "fp32" if case.precision == "fp64" else case.precision
    return msgspec.structs.replace(plain(case), engine=engine, source=None, precision=precision)


def pairs(cases: Sequence[Case], natives: Sequence[str]) -> list[Pair]:
    """The pairs to judge for ``cases``; ``natives`` are the native engines that work here.

    The first native engine is the reference; without one there is nothing to hold a case against.
    """
    found = [pair for case in cases if natives for pair in model_pairs(case, natives)]
    found += file_pairs([case for case in cases if case.source == FILE])
    unique = {(pair.a.key, pair.b.key): pair for pair in found}
    # Definition parity first: where it fails, every other verdict is about another network.
    return sorted(unique.values(), key=lambda pair: pair.a.precision != "fp64")


def model_pairs(case: Case, natives: Sequence[str]) -> Iterator[Pair]:
    """The pairs of one case of a model."""
    if case.source == FILE:
        return
    first = natives[0]
    twin = registry.engine(case.engine).twin
    origin = case.source or (twin if twin in natives else "")
    own = single(case, origin or first)
    is_own = case.key == own.key
    truth = double(case, first)

    def pair(a: Case, b: Case, source: Case | None) -> Pair:
        return Pair(a=a, b=b, source=source, reference=truth)

    yield pair(case, truth, None if is_own else own)
    if origin or (case.device == "cpu" and case.engine in natives[1:]):
        yield pair(case, own, own)
    definition = origin or case.engine
    if definition in natives[1:]:
        yield pair(double(case, definition), truth, None)
    if case.device != "cpu":
        cpu = on_cpu(case)
        yield pair(case, own, own) if cpu.key == own.key else pair(case, cpu, cpu)


def on_cpu(case: Case) -> Case:
    """The cpu twin of a case: without the options of its provider, one thread calling."""
    options = {k: v for k, v in case.options.items() if not k.startswith("provider.")}
    return msgspec.structs.replace(case, device="cpu", options=options, concurrency=1, arm="")


def file_pairs(cases: Sequence[Case]) -> Iterator[Pair]:
    """Every case of a user's file against its cpu twin, else the first of the same content."""
    for case in cases:
        alike = [other for other in cases if same_work(other, case)]
        cpu = on_cpu(case)
        other = cpu if cpu in alike and cpu != case else alike[0]
        if other != case:
            yield Pair(a=case, b=other, source=None, reference=None)


def same_work(a: Case, b: Case) -> bool:
    """Whether two cases of files compute the same from the same."""
    return (a.graph, a.shape, a.cycle, a.seed) == (b.graph, b.shape, b.cycle, b.seed)


def needed(cases: Sequence[Case], natives: Sequence[str]) -> dict[str, Case]:
    """Every case, by key, whose observations the pairs of ``cases`` need."""
    found: dict[str, Case] = {}
    for pair in pairs(cases, natives):
        spread = [] if pair.reference is None else [single(pair.a, natives[0])]
        for case in (pair.a, pair.b, pair.source, pair.reference, *spread):
            if case is not None:
                found.setdefault(case.key, case)
    return found


def witnesses(cases: Sequence[Case], natives: Sequence[str]) -> list[Case]:
    """Cases that nobody asked for but whose observations the pairs of ``cases`` need."""
    asked = {case.key for case in cases}
    return [case for key, case in needed(cases, natives).items() if key not in asked]


def agreements(
    cases: Sequence[Case], sides: Mapping[str, Side], natives: Sequence[str]
) -> list[Agreement]:
    """The verdict on every pair of ``cases`` (``sides`` by case key).

    A pair that lacks an observation it needs is ``inconclusive`` and names it: it must not pass for
    one that was compared.
    """
    found = []
    for pair in pairs(cases, natives):
        wanted = (pair.a, pair.b, pair.reference, pair.source)
        missing = [case for case in wanted if case is not None and case.key not in sides]
        for what in WHAT[pair.a.phase]:
            if missing:
                sentence = f"{missing[0].label} could not be computed, so nothing was compared"
                found.append(inconclusive(pair.a.key, pair.b.key, what, sentence))
                continue
            a, b = sides[pair.a.key], sides[pair.b.key]
            if pair.reference is None:
                found.append(judge_alone(a, b, what))
                continue
            evidences = Evidences(
                reference=sides[pair.reference.key],
                source=sides[pair.source.key] if pair.source else None,
                spread=sides.get(single(pair.a, natives[0]).key),
                terms=sum(math.prod(shape) for shape in pair.a.shape.values()),
                precision=pair.a.precision,
            )
            found.append(judge(a, b, evidences, what))
    return found
