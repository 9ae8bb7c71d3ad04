"""Faults against the law of the verdict: from which size on is an exported graph caught?

    .venv/bin/python -m benchmarks.mutants [--count 300] [--seed 0]

Every mutant (``mutations``) of PredNet tiny, of both exports, and of hand-made networks is judged
as ``xbench run MUTANT.onnx BASE.onnx --against BASE.onnx --no-speed`` judges it. Its true effect is
what the fault changes when both graphs are evaluated in float64, the RMS by output; the noise is
the limit to which the law holds ONNX Runtime on the base itself, of the same output. A mutant
counts by the output where effect over noise is largest. Integers are exact: an output of integers
that differs in float64 is an effect beyond any noise, one that does not is none.

Claims: every mutant whose effect exceeds 100 times the noise is called ``disagree``, and none
whose effect is below the noise is.
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from torch import Tensor

from benchmarks import networks
from benchmarks.mutations import HIGHEST, LOWEST, Mutant, mutants
from xbench import agree, bench, draws, files, numerics, run, tensors, verdict
from xbench.export import export
from xbench.jobs import Job, Report
from xbench.judging import PERTURBATIONS, REFERENCE_S
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.references import References
from xbench.result import Agreement, Document
from xbench.runners.graph.interpreter import Interpreter
from xbench.spec import Case, Uniform

Array = np.ndarray[Any, Any]

MUTATED = ("convnet", "lstm", "attention", "embedding", "resize", "pooling", "resnet")
CERTAIN = 100.0
"""Effects beyond so many times the noise must be found."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A correct graph: its file, what it is fed, and an .npz with that."""

    name: str
    path: str
    feeds: dict[str, Array]
    inputs: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a mutant. ``effect`` is over the noise; ``verdict`` a status if it did not run.

    ``magnitude``: see ``Mutant``; 1 also for what has no size, which is there or not.
    """

    base: str
    name: str
    kind: str
    node: str
    description: str
    magnitude: float
    effect: float
    verdict: str
    by: str
    sentence: str

    @property
    def wrong(self) -> bool:
        """Whether the verdict is one that the claims rule out."""
        if self.effect > CERTAIN:
            return self.verdict != verdict.DISAGREE
        return self.effect < 1.0 and self.verdict == verdict.DISAGREE


def base(name: str, path: Path, feeds: dict[str, Array]) -> Base:
    """A graph that is there, and its inputs in a file beside it."""
    inputs = path.with_suffix(".npz")
    tensors.save(inputs, feeds)
    return Base(name=name, path=str(path), feeds=feeds, inputs=str(inputs))


def bases(folder: Path, names: Sequence[str] = MUTATED, *, prednet: bool = True) -> Iterator[Base]:
    """PredNet tiny by both exporters with its probe parameters, and hand-made networks.

    Raises XbenchError where an export fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for made in exported(folder) if prednet else ():
        onnx_inputs = onnx.load(made, load_external_data=False).graph.input
        yield base(
            made.stem,
            made,
            {
                value.name: draws.draw(
                    Uniform(0.0, 1.0),
                    tuple(d.dim_value or 1 for d in value.type.tensor_type.shape.dim),
                    seed=0,
                    name=made.stem,
                )
                for value in onnx_inputs
            },
        )
    for name in names:
        network = networks.MAKERS[name]()
        path = folder / f"{name}.onnx"
        onnx.save(network.model, path)
        yield base(name, path, network.feeds())


def exported(folder: Path) -> list[Path]:
    """PredNet tiny from every source, bound to its probe parameters."""
    made = export(
        "prednet", sources=None, size="tiny", seed=0, kind="probe", folder=folder,
        progress=Progress(),
    )  # fmt: skip
    for file in made:
        assert file.path, f"prednet could not be exported from {file.source}: {file.reason}"
    return [Path(file.path) for file in made]


def study(of: Base, count: int, seed: int, folder: Path) -> list[Found]:
    """``count`` mutants of a base, judged in one run of the product."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Mutant] = {}
    for mutant in mutants(onnx.load(of.path), count, seed):
        path = folder / f"{mutant.name}.onnx"
        onnx.save(mutant.model, path)
        made[str(path)] = mutant
    cache = folder / "cache"
    request = Request(
        files=(of.path, *made),
        against=of.path,
        phases=("infer",),
        engines=("ort",),
        inputs=of.inputs,
        speed=False,
        profile=False,
        cache=str(cache),
    )
    document = run.execute(request, Progress(), ["benchmark"])
    if document.run.interrupted:
        raise KeyboardInterrupt
    truth = agree.in_double(case_of(document, of.path))
    limits = noise(of, truth, cache)
    checked(of, document, truth, limits)
    exact = in_float64(onnx.load(of.path), of.feeds)
    return [judged(of, path, made[path], document, truth, limits, exact) for path in made]


def case_of(document: Document, path: str) -> Case:
    """The case of a file that was asked for."""
    graph = tensors.digest_file(Path(path))[:12]
    (found,) = [item.case for item in document.cases if item.case.graph == graph and item.asked]
    return found


def agreement_of(document: Document, case: Case, truth: Case) -> Agreement | None:
    """The verdict on a case against the float64 of the base; None where there is none."""
    return next(
        (item for item in document.agreements if (item.a, item.b) == (case.key, truth.key)), None
    )


def noise(of: Base, truth: Case, cache: Path) -> dict[str, float]:
    """The limit of every float output of the base, from the observations the law rests on.

    The float64 evaluation and its spread are those that the run kept in ``cache``.
    """
    with Launcher() as launcher:
        inputs = launcher.folder() / "inputs.npz"
        tensors.save_batches(inputs, [of.feeds])
        job = Job(
            kind="observe",
            case=truth,
            folder=str(launcher.folder()),
            inputs=str(inputs),
            graph=of.path,
            signature=files.inspect([of.path], launcher)[of.path].signature,
            parameter_set="probe",
            perturbations=PERTURBATIONS,
            deadline_s=REFERENCE_S,
        )
        exact = observed(References(launcher, cache).run(job), truth)
        own_case = agree.single(msgspec.structs.replace(truth, engine="ort", threads=1))
        job = msgspec.structs.replace(
            job, case=own_case, folder=str(launcher.folder()), perturbations=0, deadline_s=None
        )
        own = observed(launcher.run(job), own_case)
    without = verdict.Evidences(reference=exact, spread=exact)
    fair = verdict.judge(own, exact, without, "outputs").verdict == verdict.AGREE
    evidences = msgspec.structs.replace(without, source=own if fair else None)
    limits = {}
    for name, value in verdict.of_kind(exact, "outputs").items():
        if value.dtype.kind == "f":
            scale = numerics.rms_error(value, np.zeros_like(value))
            candidates, _ = verdict.float_limits(name, evidences, value, scale)
            limits[name] = max(candidates.values())
    return limits


def observed(report: Report, case: Case) -> verdict.Side:
    """What a job computed."""
    assert report.ok, f"{case.title}: {report.reason}"
    return agree.side_of(case, report)


def checked(of: Base, document: Document, truth: Case, limits: dict[str, float]) -> None:
    """The base agrees with itself, and the noise found here is the limit that the law used."""
    agreement = agreement_of(document, case_of(document, of.path), truth)
    assert agreement is not None
    assert agreement.verdict == verdict.AGREE, f"{of.name}: {agreement.sentence}"
    assert agreement.evidence is not None
    if agreement.tolerance is not None:
        limit = limits[agreement.evidence.tensor]
        assert math.isclose(limit, agreement.tolerance, rel_tol=1e-6), f"{of.name}: {limit}"


def in_float64(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a graph, as the law names them, evaluated in float64."""
    found = Interpreter(model).run(feeds)
    return {
        f"outputs/{name}": value.numpy()
        for name, value in found.items()
        if isinstance(value, Tensor)
    }


def effect(actual: Array, exact: Array, limit: float | None) -> float:
    """How far an output moved, over its noise; infinite where that has no measure."""
    if limit is None:
        return 0.0 if np.array_equal(actual, exact) else math.inf
    distance = verdict.rms_or_none(actual, exact)
    return math.inf if distance is None else distance / limit


def judged(
    of: Base,
    path: str,
    mutant: Mutant,
    document: Document,
    truth: Case,
    limits: dict[str, float],
    exact: dict[str, Array],
) -> Found:
    """The verdict on one mutant, and its true effect over the noise."""
    case = case_of(document, path)
    agreement = agreement_of(document, case, truth)
    result = next(item for item in document.cases if item.case.key == case.key)
    changed = in_float64(mutant.model, of.feeds)
    effects = [effect(changed[name], value, limits.get(name)) for name, value in exact.items()]
    evidence = agreement.evidence if agreement is not None else None
    return Found(
        base=of.name,
        name=mutant.name,
        kind=mutant.kind,
        node=mutant.node,
        description=mutant.description,
        magnitude=mutant.magnitude or 1.0,
        effect=max(effects),
        verdict=agreement.verdict if agreement is not None else result.status,
        by=evidence.decided_by if evidence is not None else "",
        sentence=agreement.sentence if agreement is not None else result.reason,
    )


Bin = tuple[str, Callable[[float], bool]]


def decades(first: int, last: int) -> list[Bin]:
    """Bins by powers of ten, from 10^first to 10^last, each without its upper end."""

    def within(low: float, high: float) -> Callable[[float], bool]:
        return lambda value: low <= value < high

    return [(f"1e{k} to 1e{k + 1}", within(10.0**k, 10.0 ** (k + 1))) for k in range(first, last)]


SIZES: list[Bin] = [
    (f"{LOWEST:.2g} to 1e-6", lambda value: value < 1e-6),
    *decades(-6, -1),
    ("above, or all or nothing", lambda value: value >= HIGHEST),
]
EFFECTS: list[Bin] = [
    ("none at all", lambda value: value == 0),
    ("below 0.01", lambda value: 0 < value < 0.01),
    *decades(-2, 5),
    ("1e5 and above", lambda value: value >= 1e5),
]


def curve(
    title: str, found: Sequence[Found], bins: Sequence[Bin], of: Callable[[Found], float]
) -> None:
    """Print the share of each verdict, bin by bin."""
    print(f"\n{title:<28}mutants  disagree  inconclusive  agree")
    for label, holds in bins:
        inside = [item for item in found if holds(of(item))]
        tally = collections.Counter(item.verdict for item in inside)
        if not inside:
            continue
        shares = [tally[v] / len(inside) for v in (verdict.DISAGREE, verdict.INCONCLUSIVE)]
        rest = ", ".join(
            f"{count} {status}" for status, count in tally.items() if status not in verdict.SEVERITY
        )
        print(
            f"{label:<28}{len(inside):>7}{shares[0]:>10.0%}{shares[1]:>14.0%}"
            f"{tally[verdict.AGREE] / len(inside):>7.0%}  {rest}".rstrip()
        )


def shown(item: Found) -> str:
    """All there is to say of a mutant that was judged wrongly."""
    return (
        f"  {item.base} {item.name}, {item.kind} at {item.node} ({item.description}): magnitude "
        f"{item.magnitude:.3g}, effect {item.effect:.3g} times the noise, {item.verdict}: "
        f"{item.sentence}"
    )


def report(found: Sequence[Found]) -> bool:
    """Print the curves and what contradicts the claims; whether nothing does."""
    curve("size of the fault", found, SIZES, lambda item: item.magnitude)
    curve("effect over noise", found, EFFECTS, lambda item: item.effect)
    certain = [item for item in found if item.effect > CERTAIN]
    below = [item for item in found if item.effect < 1.0]
    wrong = [item for item in found if item.wrong]
    missed = sum(item.wrong for item in certain)
    alarms = sum(item.wrong for item in below)
    print(
        f"\nbeyond {CERTAIN:g} times the noise: {len(certain) - missed} of {len(certain)} called "
        f"disagree; below the noise: {alarms} of {len(below)}"
    )
    for item in wrong:
        print(shown(item))
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        of = list(bases(folder))
        for k, one in enumerate(of):
            count = asked.count // len(of) + (k < asked.count % len(of))
            if not count:
                continue
            begin = bench.now()
            found += study(one, count, asked.seed, folder / f"mutants-{one.name}")
            tally = collections.Counter(item.verdict for item in found if item.base == one.name)
            print(
                f"{one.name}: {dict(tally)}, {(bench.now() - begin) / count:.1f} s a mutant",
                flush=True,
            )
    return 0 if report(found) else 1


if __name__ == "__main__":
    sys.exit(main())
