"""The life of a runner: probe -> load -> run, run, run ... ; infer, train and profile on demand.

A runner executes one case in one process. Everything it hands out is numpy in the canonical
layout; everything it times stays in the engine's own layout, on the device, synchronised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xbench.errors import Unsupported
from xbench.result import Operators, Placement, Profile
from xbench.spec import Case, ModelSpec

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Work:
    """What a runner is given: a case, its model, and its own copy of parameters and inputs.

    ``batches`` holds one mapping per training step; inference and timing use the first.
    ``graph`` is the bound ONNX file of an engine that eats ONNX. ``folder`` is scratch space.
    """

    case: Case
    spec: ModelSpec
    config: Any
    parameters: Arrays
    batches: list[Arrays]
    graph: Path | None
    folder: Path


@dataclass(frozen=True, slots=True)
class Trained:
    """Losses of the steps that were trained, gradients of each, and the parameters after the last.

    Gradients and parameters go by their canonical names and layouts.
    """

    loss: list[float]
    gradients: list[Arrays]
    parameters: Arrays


def as_tuple(found: Any) -> tuple[Any, ...]:
    """What a body gave, also where it is one tensor."""
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


class DeviceTimer(ABC):
    """Events on the device's queue: ``start``, a body, ``stop``, and the time between them."""

    @abstractmethod
    def start(self) -> None:
        """Put the first event on the queue."""

    @abstractmethod
    def stop(self) -> None:
        """Put the second event on the queue."""

    @abstractmethod
    def elapsed_s(self) -> float:
        """Seconds between the two; only once the device is synchronised."""


class Runner(ABC):
    """One engine on one case. Subclasses override what is theirs; the order is the worker's."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    @abstractmethod
    def probe(self, device: str) -> dict[str, str]:
        """Compute something on ``device``. Returns facts; raises Unavailable with the reason."""

    def prepare(self, work: Work) -> None:
        """Make what ``load`` needs and no user would make anew every time. Not timed."""

    @abstractmethod
    def load(self, work: Work) -> None:
        """Build the model, bind parameters, move inputs to the device."""

    compiles = False
    """Whether ``compile`` does something that is to be timed apart from the first run."""

    def compile(self) -> None:
        """Trace or compile the body, without running it."""

    def cold(self) -> bool:
        """Whether ``compile`` will find an empty cache of compiled code (asked before it)."""
        return False

    def use(self, batch: int) -> None:
        """Make ``run`` work on another of the batches, as where shapes are cycled through."""
        raise Unsupported(f"{self.engine} does not change its inputs between runs")

    def device_timer(self) -> DeviceTimer | None:
        """The device's own clock around what ``run`` starts there; None where it has none."""
        return None

    def end_to_end(self) -> Callable[[], object] | None:
        """``run`` with the copies of inputs and outputs; None where it leaves none out."""
        return None

    def effective_precision(self) -> str:
        """What the arithmetic is done in, as in ``fp32``; empty where that is what was asked."""
        return ""

    @abstractmethod
    def run(self) -> None:
        """One whole step of the phase, synchronised: the timed region."""

    @abstractmethod
    def placement(self) -> list[Placement]:
        """Where the nodes ran. Raises FellBack if compute ran elsewhere than asked."""

    @abstractmethod
    def infer(self, batch: int = 0) -> Arrays:
        """Outputs for one of the batches."""

    @abstractmethod
    def bind(self, parameters: Arrays) -> None:
        """Put other parameters in place (and start the optimizer afresh)."""

    def move(self, seed: int, ulps: int) -> None:
        """Move the parameters that are in a file by ULPs, each up or down as ``seed`` says."""
        raise Unsupported(f"{self.engine} cannot move the parameters in a file")

    deadline_s: float | None = None
    """How long computing what is compared may take, for an engine that can stop by itself."""

    def force(self, folder: Path, narrow: str = "") -> None:
        """From now on, choose every index as the side that left its choices in ``folder`` did.

        ``narrow``: the type that side is declared in, where that is not float32.
        """
        raise Unsupported(f"{self.engine} cannot be made to choose as another side did")

    def facts(self) -> dict[str, str]:
        """What came of choices that were forced: ``ties`` and ``faults``."""
        return {}

    def terms(self) -> dict[str, int]:
        """How many terms an element of a compared tensor sums, where one operator made it."""
        return {}

    def remarks(self) -> list[str]:
        """What is to be said with a verdict on what was computed last."""
        return []

    @abstractmethod
    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        """Operator time per step, averaged over ``steps``, after a first run.

        Also the share of operator time on each device (``cpu``, ``cuda``) that ran any.
        """

    def taps(self) -> Arrays:
        """The model's named intermediate tensors for the first batch."""
        raise Unsupported(f"{self.engine} shows no intermediate tensors")

    def train(self, steps: Sequence[int]) -> Trained:
        """One optimizer step on each of these batches, from where parameters and optimizer are."""
        raise Unsupported(f"{self.engine} does not train")

    def operators(self, step: int) -> Operators:
        """Every operator of one body on its own, on a batch and from the bound parameters.

        Each is held against float64 on the inputs that it had. Raises Unsupported where the engine
        shows none, as one that compiles.
        """
        raise Unsupported(f"{self.engine} shows no operators that could be checked alone")

    def reset(self) -> None:
        """Restore the state that ``run`` changes. Inference changes none."""

    def check(self) -> None:
        """Raise EngineError if what ``run`` last computed is not finite."""
