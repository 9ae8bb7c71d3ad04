"""A runner that needs no framework: the truth that the core's tests know beforehand.

The options of a case, or the JSON in XBENCH_FAKE, say what happens: ``duration_s`` of a body
(times the place of its shape, where shapes are cycled through), ``device_s`` that its device's
events show of it, ``copy_s`` that copies add, ``compile_s`` with an empty cache of compiled code,
``leak_bytes`` that a body keeps, ``effective`` precision, ``error`` (relative, in float32 only) of
outputs, and what to ``fail`` with (crash kill hang exit
noise raise unavailable oom nan) in which ``stage`` (probe load run check observe). In XBENCH_FAKE,
``phase`` confines all of it to one phase.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from xbench.errors import EngineError, Unavailable
from xbench.result import OpTime, Placement, Profile
from xbench.runners.base import Array, Arrays, DeviceTimer, Runner, Trained, Work
from xbench.spec import TensorSpec

ENGINES = {"fake": {"native": True, "packages": ("numpy",), "shipped": False}}


class FakeEvents(DeviceTimer):
    """Events that always show the same time."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        assert self.running, "stopped before it was started"
        self.running = False

    def elapsed_s(self) -> float:
        return self.time_s


class FakeRunner(Runner):
    """Predicts the mean of every frame; loss and gradients follow from that."""

    def probe(self, device: str) -> dict[str, str]:
        self.options = from_environment("")
        self.misbehave("probe")
        if device == "cuda":
            raise Unavailable("the fake runner has no CUDA device")
        return {"fake": "yes"}

    def load(self, work: Work) -> None:
        self.work = work
        self.options = dict(work.case.options) | from_environment(work.case.phase)
        self.misbehave("load")
        self.parameters = dict(work.parameters)
        self.compiles = "compile_s" in self.options
        self.place = 0
        self.kept: list[bytes] = []

    def cold(self) -> bool:
        folder = Path(os.environ.get("XBENCH_COMPILE_CACHE", self.work.folder))
        self.compiled = folder / f"fake-{self.work.case.key}"
        return not self.compiled.exists()

    def compile(self) -> None:
        if self.cold():
            time.sleep(float(self.options.get("compile_s", "0")))
            self.compiled.parent.mkdir(parents=True, exist_ok=True)
            self.compiled.touch()

    def use(self, batch: int) -> None:
        self.place = batch

    def device_timer(self) -> DeviceTimer | None:
        time_s = self.options.get("device_s")
        return None if time_s is None else FakeEvents(float(time_s))

    def end_to_end(self) -> Callable[[], object] | None:
        copy_s = self.options.get("copy_s")
        if copy_s is None:
            return None

        def copied() -> None:
            time.sleep(float(copy_s))
            self.run()

        return copied

    def effective_precision(self) -> str:
        return self.options.get("effective", "")

    def misbehave(self, stage: str) -> None:
        """Do what the options ask for, if this is the stage they ask for."""
        if self.options.get("stage", "run") != stage:
            return
        fault = self.options.get("fail")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "crash":
            os.abort()
        elif fault == "hang":
            # What a job started has to go with it.
            subprocess.run(["sleep", "3600"], check=False)
        elif fault == "exit":
            print("the fake runner's last words", file=sys.stderr, flush=True)
            os._exit(7)
        elif fault == "noise":
            print(f"the fake runner makes a noise in process {os.getpid()} of {os.getppid()}")
            for stream in (1, 2):
                os.write(stream, b"exit 0\n")
        elif fault == "raise":
            raise ValueError("the fake runner was told to fail")
        elif fault == "unavailable":
            raise Unavailable("the fake runner was told to be unavailable")
        elif fault == "oom":
            raise MemoryError("the fake runner was told to run out of memory")
        elif fault == "nan" and stage == "check":
            raise EngineError("the loss is not finite")

    def run(self) -> None:
        self.misbehave("run")
        if leak := int(self.options.get("leak_bytes", "0")):
            self.kept.append(b"x" * leak)
        time.sleep(float(self.options.get("duration_s", "0")) * (self.place + 1))

    def placement(self) -> list[Placement]:
        return [Placement(ep=self.work.case.device, nodes=1, time_share=1.0)]

    def check(self) -> None:
        self.misbehave("check")

    def scale(self) -> Array:
        """One number that depends on every parameter."""
        total = sum(float(value.astype(np.float64).sum()) for value in self.parameters.values())
        dtype = np.float64 if self.work.case.precision == "fp64" else np.float32
        return np.asarray(1.0 + 1e-3 * total, dtype)

    def predict(self, batch: Arrays, specs: Iterable[TensorSpec]) -> Arrays:
        """The mean of the frames, times a number that depends on the parameters, everywhere."""
        self.misbehave("observe")
        double = self.work.case.precision == "fp64"
        error = 0.0 if double else float(self.options.get("error", "0"))
        scale = self.scale()
        inputs = next(iter(batch.values())).astype(scale.dtype)
        mean = (inputs.mean() * scale * (1.0 + error)).astype(scale.dtype)
        shapes = {name: array.shape for name, array in batch.items()}
        config = self.work.spec.fitted(self.work.config, shapes)
        return {
            spec.name: np.broadcast_to(
                mean if spec.dtype == "float32" else mean.astype(spec.dtype),
                spec.of(config, len(inputs)),
            ).copy()
            for spec in specs
        }

    def infer(self, batch: int = 0) -> Arrays:
        return self.predict(self.work.batches[batch], self.work.spec.outputs(self.work.config))

    def taps(self) -> Arrays:
        return self.predict(self.work.batches[0], self.work.spec.taps(self.work.config))

    def bind(self, parameters: Arrays) -> None:
        self.parameters = dict(parameters)

    def train(self, steps: Sequence[int]) -> Trained:
        losses, gradients = [], []
        for step in steps:
            outputs = self.predict(
                self.work.batches[step], self.work.spec.outputs(self.work.config)
            )
            output = next(iter(outputs.values()))
            losses.append(float(output.mean()))
            gradients.append(
                {name: value * output.mean() for name, value in self.parameters.items()}
            )
        return Trained(losses, gradients, dict(self.parameters))

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        op = OpTime(
            op="fake::mean",
            op_class="Reduction/Expansion",
            kind="mean",
            stage="forward",
            count=1,
            time_s=0.75,
        )
        profile = Profile(
            wall_s=1.0, steps=steps, unattributed_s=0.25, truncated=False, correction="", ops=[op]
        )
        return profile, {self.work.case.device: 1.0}


def from_environment(phase: str) -> dict[str, str]:
    """What XBENCH_FAKE asks for in this phase (in both, when it names none)."""
    asked: dict[str, str] = json.loads(os.environ.get("XBENCH_FAKE", "{}"))
    return asked if asked.get("phase", phase) == phase else {}


def make(engine: str) -> FakeRunner:
    return FakeRunner(engine)
