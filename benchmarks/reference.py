"""How long does the float64 reference of PredNet take?

    .venv/bin/python -m benchmarks.reference [--size small]

From nothing: no cache, a fresh process each, imports included. The torch definition in double, both
phases, as a run needs it; and both exported graphs, node by node.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from xbench import agree, environment, plan, registry
from xbench.bench import now
from xbench.exports import Exports
from xbench.inputs import Inputs
from xbench.jobs import Job
from xbench.launch import Launcher
from xbench.plan import Request

LIMIT_S = 30.0
"""Claimed of each."""


def main() -> int:
    """Print the seconds of each evaluation; 1 where one took longer than is claimed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    size = parser.parse_args().size
    request = Request(
        models=("prednet",),
        size=size,
        engines=("torch", "ort"),
        sources=("torch", "tf"),
        threads=(environment.usable_cpus(),),
    )
    worst = 0.0
    with Launcher() as launcher, tempfile.TemporaryDirectory() as cache:
        inputs = Inputs(request, launcher.folder(), {})
        exporting = Exports(launcher, Path(cache), print)
        for case in plan.cases(request):
            inputs.prepare(case)
            graph = None
            if registry.engine(case.engine).onnx:
                graph = exporting.get(case, inputs.verification(case)).graphs["probe"]
            of = agree.in_double(case) if graph else agree.double(case, "torch")
            job = Job(
                kind="observe",
                case=msgspec.structs.replace(of, threads=environment.usable_cpus()),
                folder=str(launcher.folder()),
                inputs=str(inputs.path(case)),
                graph=graph,
                parameter_set="probe",
                makes_states=case.phase == "train",
                taps=case.phase == "infer" and graph is None,
            )
            begin = now()
            report = launcher.run(job)
            took_s = now() - begin
            if not report.ok:
                print(f"{of.title}: {report.status}: {report.reason}")
                return 1
            worst = max(worst, took_s)
            print(f"{case.phase} {of.title}, batch {case.batch}: {took_s:.1f} s")
    print(f"claim: at most {LIMIT_S:.0f} s each; the longest took {worst:.1f} s")
    return 1 if worst > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
