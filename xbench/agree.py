"""Which pairs of observations are held against each other, and by what evidence.

Pairs: the two definitions, both in float64; every case to the float64 reference; the second native
engine to the first; every ORT case to its source framework, every compiled one to its eager twin;
every cuda case to its cpu twin. A lower precision is measured by what the source does in it.
A user's file is its own source: unoptimised on the CPU it is the measure, its graph in float64 the
reference. A file that was named against another is held against that one's float64 as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from xbench import environment, registry
from xbench.jobs import Report
from xbench.result import Agreement
from xbench.spec import FILE, Case
from xbench.tolerances import Tolerances
from xbench.verdict import (
    AGREE,
    NOTHING,
    Confirmation,
    Evidences,
    Side,
    inconclusive,
    judge,
    rms_or_none,
)

WHAT = {"infer": ("outputs",), "train": ("loss", "gradients", "trajectory")}
UNOPTIMISED = {"ort-opt": "0"}
NARROW = "narrow"
"""Option of the reference engine: every tensor is rounded to this type."""
EPS_OF = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
NARROWED = {"fp16": "float16", "bf16": "bfloat16"}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """``a`` is judged against ``b``; the own error of ``source`` is the measure, if any.

    ``reference`` is the float64 evaluation; ``spread`` the case whose spread is known; ``narrow``
    the reference with its tensors rounded to the type that ``a`` is declared in. ``precision`` is
    what ``a`` computes in, at best. ``own`` is the pair of the source and the reference: a measure
    has to pass the law itself.
    """

    a: Case
    b: Case
    source: Case | None
    reference: Case
    spread: Case
    narrow: Case | None = None
    precision: str = "fp32"
    own: Pair | None = None


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the files of a run, by the digest that cases carry.

    ``declared``: the type a file is in, where narrower than float32. ``against``: the digest of the
    file that the others are held against; empty where none was named.
    """

    declared: Mapping[str, str] = {}
    against: str = ""


NO_FILES = Files()


def plain(case: Case) -> Case:
    """The case without what changes speed and not results: how many threads call, which side."""
    return msgspec.structs.replace(
        case, precision="fp32", options={}, concurrency=1, arm="", device="cpu"
    )


def in_double(case: Case) -> Case:
    """The graph of a case that has one, evaluated in float64."""
    return msgspec.structs.replace(
        plain(case),
        engine=registry.reference(),
        precision="fp64",
        threads=environment.usable_cpus(),
    )


def double(case: Case, engine: str) -> Case:
    """The float64 evaluation of what ``case`` computes: by ``engine``, or of a user's graph."""
    if case.source == FILE:
        return in_double(case)
    return msgspec.structs.replace(
        plain(case),
        engine=engine,
        source=None,
        precision="fp64",
        threads=environment.usable_cpus(),
    )


def single(case: Case, engine: str = "") -> Case:
    """The evaluation by a native engine on the cpu, in the precision of the case.

    Of a float64 case it is the one in float32. Of a user's file it is ONNX Runtime's, unoptimised.
    """
    precision = "fp32" if case.precision == "fp64" else case.precision
    if case.source == FILE:
        return msgspec.structs.replace(
            plain(case), engine=case.engine, options=UNOPTIMISED, precision=precision
        )
    return msgspec.structs.replace(plain(case), engine=engine, source=None, precision=precision)


def pairs(cases: Sequence[Case], natives: Sequence[str], files: Files = NO_FILES) -> list[Pair]:
    """The pairs to judge for ``cases``; ``natives`` are the native engines that work here.

    The first native engine is the reference; without one there is nothing to hold a model against.
    """
    found: list[Pair] = []
    for case in cases:
        if case.source == FILE:
            found += file_pairs(case, cases, files)
        elif natives:
            found += model_pairs(case, natives)
    unique = {(pair.a.key, pair.b.key): pair for pair in found}
    # Definition parity first: where it fails, every other verdict is about another network.
    return sorted(unique.values(), key=lambda pair: pair.a.precision != "fp64")


def model_pairs(case: Case, natives: Sequence[str]) -> Iterator[Pair]:
    """The pairs of one case of a model."""
    first = natives[0]
    twin = registry.engine(case.engine).twin
    origin = case.source or (twin if twin in natives else "")
    own = single(case, origin or first)
    is_own = case.key == own.key
    truth = double(case, first)

    def pair(a: Case, b: Case, source: Case | None) -> Pair:
        return Pair(
            a=a,
            b=b,
            source=source,
            reference=truth,
            spread=single(case, first),
            precision=a.precision,
            own=None if source is None else pair(source, truth, None),
        )

    yield pair(case, truth, None if is_own else own)
    if origin or (case.device == "cpu" and case.engine in natives[1:]):
        yield pair(case, own, own)
    definition = origin or case.engine
    if definition in natives[1:]:
        yield pair(double(case, definition), truth, None)
    if case.device != "cpu":
        cpu = on_cpu(case)
        yield pair(case, own, own) if cpu.key == own.key else pair(case, cpu, cpu)


def file_pairs(case: Case, cases: Sequence[Case], files: Files) -> Iterator[Pair]:
    """The pairs of one case of a user's file."""
    truth, own = in_double(case), single(case)
    declared = files.declared.get(case.graph, "")
    precision = EPS_OF.get(declared, case.precision)
    narrow = NARROWED.get(precision, "")

    def pair(b: Case, source: Pair | None, reference: Case, rounded: str) -> Pair:
        return Pair(
            a=case,
            b=b,
            source=None if source is None else source.a,
            reference=reference,
            spread=reference,
            narrow=rounded_to(reference, rounded),
            precision=precision,
            own=source,
        )

    # What a file computes without optimisation is the measure; that itself has none.
    measure = None if case.key == own.key else next(file_pairs(own, cases, files))
    yield pair(truth, measure, truth, narrow)
    # The same without optimisation, on the same device: what its graph transformations changed.
    bare = msgspec.structs.replace(own, device=case.device)
    if case.key not in (own.key, bare.key):
        yield pair(bare, measure, truth, narrow)
    cpu = on_cpu(case)
    if case.device != "cpu" and cpu.key in {other.key for other in cases}:
        yield pair(cpu, measure, truth, narrow)
    if files.against and files.against != case.graph:
        of = (other for other in cases if other.graph == files.against)
        base = next((other for other in of if alike(other, case)), None)
        if base is not None:
            first = next(file_pairs(single(base), cases, files))
            type_ = declared if declared.startswith("int") else narrow
            yield pair(first.reference, first, first.reference, type_)


def rounded_to(reference: Case, type_: str) -> Case | None:
    """The reference with every tensor rounded to a type; None for no type."""
    return msgspec.structs.replace(reference, options={NARROW: type_}) if type_ else None


def alike(a: Case, b: Case) -> bool:
    """Whether two cases of files are fed the same."""
    return (a.shape, a.cycle, a.seed) == (b.shape, b.cycle, b.seed)


def on_cpu(case: Case) -> Case:
    """The cpu twin of a case: without the options of its provider, one thread calling."""
    options = {k: v for k, v in case.options.items() if not k.startswith("provider.")}
    return msgspec.structs.replace(case, device="cpu", options=options, concurrency=1, arm="")


def needed(
    cases: Sequence[Case], natives: Sequence[str], files: Files = NO_FILES
) -> dict[str, Case]:
    """Every case, by key, whose observations the pairs of ``cases`` need: float64 first."""
    found: dict[str, Case] = {}
    for pair in pairs(cases, natives, files):
        for case in (pair.a, pair.b, pair.source, pair.reference, pair.spread, pair.narrow):
            if case is not None:
                found.setdefault(case.key, case)
    return dict(sorted(found.items(), key=lambda item: item[1].precision != "fp64"))


def witnesses(cases: Sequence[Case], natives: Sequence[str], files: Files = NO_FILES) -> list[Case]:
    """Cases that nobody asked for but whose observations the pairs of ``cases`` need."""
    asked = {case.key for case in cases}
    return [case for key, case in needed(cases, natives, files).items() if key not in asked]


class Verdicts:
    """The verdicts on all pairs of a run, by what was observed and found out so far.

    ``sides`` and ``confirmations`` go by case key; ``absent`` says why a case computed nothing.
    """

    def __init__(
        self,
        pairs_: Sequence[Pair],
        sides: Mapping[str, Side],
        confirmations: Mapping[str, Confirmation] | None = None,
        fixed: Tolerances | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self.pairs = pairs_
        self.sides = sides
        self.confirmations = confirmations or {}
        self.fixed = fixed
        self.absent = absent or {}
        self.known: dict[tuple[str, str, str, str], Agreement] = {}

    def agreements(self) -> list[Agreement]:
        """A verdict on every pair and kind of tensor."""
        return [self.verdict(pair, what) for pair in self.pairs for what in WHAT[pair.a.phase]]

    def rejected(self) -> dict[str, list[tuple[Pair, Agreement]]]:
        """The cases that do not agree with float64, by key, with every pair and what was found.

        Sources included: what they lend to others depends on it. Where nothing was compared, or
        only the structure differs, there is nothing to confirm.
        """
        found: dict[str, list[tuple[Pair, Agreement]]] = {}
        everything = [*self.pairs, *(pair.own for pair in self.pairs if pair.own is not None)]
        for pair in everything:
            if pair.a.precision == "fp64":
                continue
            for what in WHAT[pair.a.phase]:
                agreement = self.verdict(pair, what)
                if agreement.verdict != AGREE and confirmable(agreement):
                    found.setdefault(pair.a.key, []).append((pair, agreement))
        return found

    def verdict(self, pair: Pair, what: str) -> Agreement:
        """The verdict on one kind of tensor of a pair.

        One that lacks an observation it needs is ``inconclusive`` and names it: it must not pass
        for one that was compared.
        """
        # The same pair may be asked for as its own measure, which then has no source.
        source = "" if pair.source is None else pair.source.key
        key = (pair.a.key, pair.b.key, source, what)
        if key not in self.known:
            self.known[key] = self.find(pair, what)
        return self.known[key]

    def find(self, pair: Pair, what: str) -> Agreement:
        """The verdict that is not known yet."""
        a, b = self.sides.get(pair.a.key), self.sides.get(pair.b.key)
        reference = self.sides.get(pair.reference.key)
        # Of two runs of one file something can be said without float64.
        without = pair.a.source == FILE and pair.b.key != pair.reference.key
        wanted = [pair.a, pair.b, *([] if without else [pair.reference])]
        wanted += [] if pair.source is None else [pair.source]
        missing = [case for case in wanted if case.key not in self.sides]
        if missing or a is None or b is None:
            why = self.absent.get(missing[0].key, "")
            sentence = f"{missing[0].title} could not be computed, so nothing was compared"
            return inconclusive(pair.a.key, pair.b.key, what, f"{sentence}{why and ': '}{why}")
        if pair.a.source == FILE and (alone := self.sides.get(in_double(pair.a).key)) is not None:
            # What float64 found out about its graph, as that it leaves the range of float16.
            a = msgspec.structs.replace(a, remarks=[*a.remarks, *alone.remarks])
        source = self.sides[pair.source.key] if pair.source is not None else None
        own = pair.own
        if own is not None and reference is not None and self.verdict(own, what).verdict != AGREE:
            # A measure that is wrong itself must not excuse others.
            source = None
        evidences = Evidences(
            reference=reference,
            source=source,
            source_truth=self.under_choices(pair),
            spread=self.sides.get(pair.spread.key),
            narrow=self.sides.get(pair.narrow.key) if pair.narrow is not None else None,
            narrow_type=pair.narrow.options[NARROW] if pair.narrow is not None else "",
            precision=pair.precision,
            confirmation=self.confirmations.get(pair.a.key, NOTHING),
            fixed=self.fixed,
            no_reference=self.absent.get(pair.reference.key, ""),
        )
        return judge(a, b, evidences, what)

    def under_choices(self, pair: Pair) -> Side | None:
        """The reference under the choices that the source made, where these were fair."""
        if pair.source is None:
            return None
        known = self.confirmations.get(pair.source.key, NOTHING).choices.get(pair.reference.key)
        return None if known is None or known.faults else known.side


def side_of(case: Case, report: Report, repeat: Report | None = None, random: str = "") -> Side:
    """What a case computed, as one side of a pair.

    ``repeat`` is the report of another process, which kept what it computed differently;
    ``random`` names the random nodes of its graph.
    """
    tensors = report.tensors()
    unsteady = dict(report.unsteady)
    for name, value in (repeat.tensors() if repeat is not None else {}).items():
        distance = rms_or_none(value, tensors[name])
        unsteady[name] = max(unsteady.get(name, 0.0), np.inf if distance is None else distance)
    return Side(
        key=case.key,
        label=case.title,
        tensors=tensors,
        digests=report.digests,
        spread=report.spread,
        draws=report.draws,
        spread_ulps=report.spread_ulps,
        unsteady=unsteady,
        random=random,
        terms=report.terms,
        remarks=report.remarks,
    )


def confirmable(agreement: Agreement) -> bool:
    """Whether a rejection is one of numbers, that a closer look could explain."""
    evidence = agreement.evidence
    if evidence is None:
        return False
    return agreement.tolerance is not None or "integers are exact" in evidence.decided_by
