"""A graph evaluated in float64 under the choices that another side made: ties, or faults.

A choice is fair where its value is closer to the best than the side's own error in these two
values, and where that error is one that rounding explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from xbench import tensors
from xbench.errors import EngineError
from xbench.runners.graph.choices import OPERATORS, Choice
from xbench.runners.graph.interpreter import Interpreter
from xbench.runners.graph.node import Node, Value

CHOICES, VALUES = "choices.json", "choices.npz"
MARGIN = 10.0
"""How many times its limit the error of the values may be before the choice is a fault."""
EPS = {np.dtype("float16"): 2.0**-10, np.dtype("float32"): 2.0**-23}


@dataclass(frozen=True, slots=True)
class Seen:
    """One execution of a choice in float64: its node, the values it is of, its own indices."""

    node: Node
    values: Tensor
    own: Tensor


class Forced:
    """The choices that a side left in a folder: what to force, and whether that is fair.

    ``own`` are the choices of the graph that is evaluated: the side's are theirs by position, since
    another graph has other names. Raises EngineError where the two do not choose alike.
    """

    def __init__(self, folder: Path, own: Sequence[Choice]) -> None:
        theirs = msgspec.json.decode((folder / CHOICES).read_bytes(), type=list[Choice])
        kinds = [[(item.op, item.looped) for item in choices] for choices in (own, theirs)]
        if kinds[0] != kinds[1]:
            raise EngineError("the two graphs do not choose alike, by ArgMax or TopK, in turn")
        self.choices = list(own)
        self.arrays = tensors.load(folder / VALUES)
        self.seen: dict[str, list[Seen]] = {choice.index: [] for choice in self.choices}

    @property
    def indices(self) -> dict[str, list[Tensor]]:
        """What each choice shall return, execution by execution."""
        return {
            choice.index: [torch.from_numpy(np.array(part)) for part in self.parts(number, "index")]
            for number, choice in enumerate(self.choices)
        }

    def parts(self, number: int, kind: str) -> Sequence[np.ndarray[Any, Any]]:
        """The executions of a choice, of a loop one after the other."""
        array = self.arrays[f"{number}/{kind}"]
        return list(array) if self.choices[number].looped else [array]

    def run(
        self, interpreter: Interpreter, feeds: Mapping[str, Any], wanted: Sequence[str]
    ) -> dict[str, Value]:
        """The wanted tensors under the forced choices."""
        interpreter.choosing = self.see
        try:
            return interpreter.run(feeds, wanted, forced=self.indices)
        finally:
            interpreter.choosing = None

    def see(self, name: str, node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Note what a choice would have been (called before it is forced)."""
        values, own = inputs[0], outputs[OPERATORS[node.op]]
        if name in self.seen and isinstance(values, Tensor) and isinstance(own, Tensor):
            self.seen[name].append(Seen(node, values, own))

    def judged(self, moved: Sequence[Forced] = ()) -> tuple[int, str]:
        """How many choices are ties, and the first that is none, in words.

        ``moved`` are runs from parameters that were moved by one ULP: the spread of the values.
        """
        ties, fault = 0, ""
        for number, choice in enumerate(self.choices):
            spreads = [other.seen[choice.index] for other in moved]
            for turn, seen in enumerate(self.seen[choice.index]):
                chosen = torch.from_numpy(np.array(self.parts(number, "index")[turn]))
                theirs = self.parts(number, "values")[turn]
                spread = [of[turn].values for of in spreads if len(of) > turn]
                found, words = compared(seen, chosen, theirs, spread)
                ties += found
                where = f" in iteration {turn + 1}" if choice.looped else ""
                fault = fault or (f"{choice.node}{where} {words}" if words else "")
        return ties, fault


def compared(
    seen: Seen, chosen: Tensor, theirs: np.ndarray[Any, Any], moved: Sequence[Tensor]
) -> tuple[int, str]:
    """How many of one execution's choices are ties, and what is wrong with them, if anything."""
    apart = chosen.to(torch.int64) != seen.own.to(torch.int64)
    values = seen.values
    if theirs.shape != tuple(values.shape):
        return 0, f"chose from values of shape {list(theirs.shape)}, not {list(values.shape)}"
    if not bool(apart.any()) or not values.is_floating_point():
        number = int(apart.sum())
        return 0, f"chose {number} other places among equal numbers" if number else ""
    side = torch.from_numpy(theirs.astype(np.float64))
    error = (side - values).abs()
    scale = float(values.square().mean().sqrt())
    limits = [4.0 * EPS.get(theirs.dtype, 2.0**-23) * scale]
    limits += [float((other - values).square().mean().sqrt()) for other in moved]
    off = float(error.square().mean().sqrt())
    if off > MARGIN * max(limits):
        times = off / max(limits)
        return 0, (
            f"chose from values that are off by {off:.2g}, {times:.2g} times what rounding explains"
        )
    axis, keeps = axis_of(seen.node, values)
    at = [index if keeps else index.unsqueeze(axis) for index in (chosen, seen.own)]
    taken, best = (values.gather(axis, index.to(torch.int64)) for index in at)
    room = sum(error.gather(axis, index.to(torch.int64)) for index in at)
    gap = (taken - best).abs()
    wrong = (gap > room) & (at[0] != at[1])
    if bool(wrong.any()):
        worst = int(torch.where(wrong, gap, -1.0).argmax())
        return 0, (
            f"chose another index than float64 at {int(wrong.sum())} places, at the worst between "
            f"values {float(gap.flatten()[worst]):.2g} apart whose own error is "
            f"{float(torch.as_tensor(room).flatten()[worst]):.2g}"
        )
    return int(apart.sum()), ""


def axis_of(node: Node, values: Tensor) -> tuple[int, bool]:
    """The axis that is chosen along, and whether the indices keep it."""
    if node.op == "TopK":
        return int(node.get("axis", -1)) % values.dim(), True
    return int(node.get("axis", 0)) % values.dim(), bool(node.get("keepdims", 1))
