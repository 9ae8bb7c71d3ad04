"""Correct pairs against the law of the verdict: none may be called ``disagree``.

    .venv/bin/python -m benchmarks.false_alarms

* every network of ``networks`` on ONNX Runtime, at each optimisation level, with 1 and 2 threads,
  at batch 1 and 8 (the sum of ten million terms at batch 1), against float64 and unoptimised;
* PredNet tiny on torch, TensorFlow and ONNX Runtime, from both exports, inference and training,
  with 1 and 2 threads, at batch 1 and 8, of two seeds;
* loss and gradients of a ResNet with batch norm, torch with 1 and 2 threads against float64.

A comparison is one agreement of the product. Claim: at least 200, and no ``disagree``. What is
``inconclusive`` is shown.
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import mutants, networks
from xbench import bench, draws, numerics, plan, run, verdict
from xbench.data import digest
from xbench.judging import PERTURBATIONS
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import Agreement
from xbench.runners.pt_operators import operators
from xbench.spec import Uniform

Array = np.ndarray[Any, Any]

THREADS = (1, 2)
BATCHES = (1, 8)
SEEDS = (0, 1)
LEAST = 200
ONE_ROW = ("sum10m",)
"""Networks whose inputs of batch 8 would take gigabytes."""
CLASSES = 10


def executed(request: Request) -> list[Agreement]:
    """The verdicts of one run. Fails where a case does: what did not run was not compared."""
    document = run.execute(request, Progress(), ["benchmark"])
    if document.run.interrupted:
        raise KeyboardInterrupt
    for result in document.cases:
        assert result.status == "ok", f"{result.case.title}: {result.status}: {result.reason}"
    for note in document.notes:
        print(f"  {note}")
    return document.agreements


def of_network(
    name: str, batch: int, folder: Path, threads: tuple[int, ...] = THREADS
) -> list[Agreement]:
    """A network on ONNX Runtime, at every level and thread count."""
    folder.mkdir(parents=True, exist_ok=True)
    network = networks.MAKERS[name]()
    path = folder / f"{name}.onnx"
    onnx.save(network.model, path)
    return executed(
        Request(
            files=(str(path),),
            inputs=mutants.base(name, path, network.feeds(batch)).inputs,
            phases=("infer",),
            engines=("ort",),
            ort_opt=plan.ORT_OPT,
            threads=threads,
            speed=False,
            profile=False,
            cache=str(folder / "cache"),
        )
    )


def of_prednet(seed: int, phase: str) -> list[Agreement]:
    """PredNet tiny on every engine that ships, one phase."""
    return executed(
        Request(
            models=("prednet",),
            size="tiny",
            phases=(phase,),
            engines=("torch", "tf", *(("ort",) if phase == "infer" else ())),
            sources=("torch", "tf"),
            batch=BATCHES,
            threads=THREADS,
            seed=seed,
            speed=False,
            profile=False,
        )
    )


class Block(nn.Module):
    """Two convolutions with batch norm, and the way around them."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(cout)
        self.second = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(cout)
        self.around: nn.Module = nn.Identity()
        if (cin, stride) != (cout, 1):
            self.around = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.around(x) + self.second_norm(self.second(y)))


def resnet() -> nn.Module:
    """Four blocks on images of 32 x 32, two of which halve them."""
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(*stem, *blocks, *head)


def parameters(seed: int) -> dict[str, Array]:
    """Weights with the gain of a ReLU, norms around one, biases around zero."""
    found = {}
    for name, value in resnet().named_parameters():
        shape = tuple(value.shape)
        limit = math.sqrt(6.0 / math.prod(shape[1:])) if len(shape) > 1 else 0.5
        middle = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        spec = Uniform(middle - limit, middle + limit)
        found[name] = draws.draw(spec, shape, seed=seed, name=f"resnet/{name}")
    return found


class Training:
    """Loss and gradients of one step of the ResNet, by precision, threads and parameters."""

    def __init__(self, batch: int, seed: int) -> None:
        self.parameters = parameters(seed)
        self.images = draws.draw(Uniform(0.0, 1.0), (batch, 3, 32, 32), seed=seed, name="images")
        self.classes = torch.arange(batch) % CLASSES
        self.title = f"ResNet batch {batch} seed {seed}"

    def step(
        self, dtype: torch.dtype, threads: int, moved: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """What the verdict compares, under the names of the product."""
        model, body = self.made(dtype, threads, moved or self.parameters)
        loss = body()
        found = {"loss/0": loss.detach().numpy()}
        for name, value in model.named_parameters():
            assert value.grad is not None
            found[f"gradients/0/{name}"] = value.grad.numpy()
        return found

    def made(self, dtype: torch.dtype, threads: int, values: Mapping[str, Array]) -> Any:
        """A model with these parameters, and a call that trains it for one step."""
        torch.set_num_threads(threads)
        model = resnet().to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(values[name]))
        images = torch.from_numpy(self.images).to(dtype)

        def body() -> Tensor:
            loss = F.cross_entropy(model(images), self.classes)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return model, body

    def side(self, dtype: torch.dtype, threads: int) -> verdict.Side:
        """One side of a pair."""
        title = f"{self.title} {str(dtype).removeprefix('torch.')} threads {threads}"
        return verdict.Side(
            key=title,
            label=title,
            tensors=self.step(dtype, threads),
            digests={"parameters": digest(self.parameters)},
        )

    def spread(self, side: verdict.Side, threads: int) -> verdict.Side:
        """A side with the largest change of each tensor when every parameter moves by one ULP."""
        largest: dict[str, float] = dict.fromkeys(side.tensors, 0.0)
        for draw in range(1, PERTURBATIONS + 1):
            moved = {
                name: draws.perturb(value, seed=1000 * draw, name=name)
                for name, value in self.parameters.items()
            }
            for name, value in self.step(torch.float32, threads, moved).items():
                distance = numerics.rms_error(value, side.tensors[name])
                largest[name] = max(largest[name], distance)
        return msgspec.structs.replace(side, spread=largest, draws=PERTURBATIONS)

    def agreements(self) -> Iterator[Agreement]:
        """Float32 with each thread count against float64, as the product judges torch."""
        exact = self.side(torch.float64, max(THREADS))
        for threads in THREADS:
            side = self.spread(self.side(torch.float32, threads), threads)
            evidences = verdict.Evidences(reference=exact, spread=side)
            found = [verdict.judge(side, exact, evidences, w) for w in ("loss", "gradients")]
            if any(item.verdict != verdict.AGREE for item in found):
                _, body = self.made(torch.float32, threads, self.parameters)
                confirmation = verdict.Confirmation(graph=exact, operators=operators(body))
                evidences = msgspec.structs.replace(evidences, confirmation=confirmation)
                found = [verdict.judge(side, exact, evidences, w) for w in ("loss", "gradients")]
            yield from found


def show(title: str, found: Sequence[Agreement], seconds: float) -> None:
    """One line for a group, and one for each of its comparisons that does not agree."""
    tally = collections.Counter(item.verdict for item in found)
    words = ", ".join(f"{count} {name}" for name, count in tally.items())
    print(f"{title}: {len(found)} comparisons: {words}; {seconds:.0f} s", flush=True)
    for item in found:
        if item.verdict != verdict.AGREE:
            print(f"  {item.verdict}: {item.sentence}", flush=True)


def by_evidence(found: Sequence[Agreement]) -> None:
    """How often each evidence decided, by verdict."""
    tally = collections.Counter(
        (item.verdict, item.evidence.decided_by if item.evidence is not None else "no number")
        for item in found
    )
    print("\nverdict        evidence                                 comparisons")
    for (name, by), count in sorted(tally.items(), key=lambda item: -item[1]):
        print(f"{name:<15}{by:<41}{count:>11}")


def groups(folder: Path) -> Iterator[tuple[str, list[Agreement]]]:
    """Every comparison, group by group."""
    for name in networks.MAKERS:
        for batch in BATCHES[:1] if name in ONE_ROW else BATCHES:
            yield f"{name} batch {batch}", of_network(name, batch, folder / f"{name}-{batch}")
    for batch in BATCHES:
        for seed in SEEDS:
            training = Training(batch, seed)
            yield f"{training.title}: loss, gradients", list(training.agreements())
    for seed in SEEDS:
        for phase in ("infer", "train"):
            yield f"PredNet tiny {phase} seed {seed}", of_prednet(seed, phase)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found: list[Agreement] = []
    with tempfile.TemporaryDirectory() as name:
        begin = bench.now()
        for title, agreements in groups(Path(name)):
            show(title, agreements, bench.now() - begin)
            found += agreements
            begin = bench.now()
    by_evidence(found)
    alarms = sum(item.verdict == verdict.DISAGREE for item in found)
    open_ = sum(item.verdict == verdict.INCONCLUSIVE for item in found)
    print(f"\n{alarms} false alarms in {len(found)} comparisons, {open_} inconclusive")
    return 0 if alarms == 0 and len(found) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
