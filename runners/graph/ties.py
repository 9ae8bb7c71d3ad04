"""A graph evaluated in float64 under the choices that another side made: ties, or faults.

A choice is fair where the side's values at the places that were chosen, by it and by float64, are
off by no more than rounding explains (their spread, or 4 eps; ``MARGIN`` times that), and where the
two are no further apart than that either. Values at other places and masks of -1e9 or -Inf do not
count: they would excuse everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from xbench import ordinary, tensors
from xbench.errors import EngineError
from xbench.runners.graph.choices import OPERATORS, Choice
from xbench.runners.graph.node import Node, Value

CHOICES, VALUES = "choices.json", "choices.npz"
MARGIN = 10.0
"""How many times what rounding explains the error of the values, and their gap, may be."""
EPS = {
    "int4": 2.0**-3, "int8": 2.0**-7, "bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23
}  # fmt: skip


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

    def __init__(self, folder: Path, own: Sequence[Choice], narrow: str = "") -> None:
        theirs = msgspec.json.decode((folder / CHOICES).read_bytes(), type=list[Choice])
        kinds = [[(item.op, item.looped) for item in choices] for choices in (own, theirs)]
        if kinds[0] != kinds[1]:
            raise EngineError("the two graphs do not choose alike, by ArgMax or TopK, in turn")
        self.choices = list(own)
        self.eps = EPS.get(narrow, 0.0)
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
                found, words = compared(seen, chosen, theirs, spread, self.eps)
                ties += found
                where = f" in iteration {turn + 1}" if choice.looped else ""
                fault = fault or (f"{choice.node}{where} {words}" if words else "")
        return ties, fault


def compared(
    seen: Seen,
    chosen: Tensor,
    theirs: np.ndarray[Any, Any],
    moved: Sequence[Tensor],
    eps: float = 0.0,
) -> tuple[int, str]:
    """How many of one execution's choices are ties, and what is wrong with them, if anything."""
    apart = chosen.to(torch.int64) != seen.own.to(torch.int64)
    values = seen.values
    if theirs.shape != tuple(values.shape):
        return 0, f"chose from values of shape {list(theirs.shape)}, not {list(values.shape)}"
    if not bool(apart.any()):
        return 0, ""
    axis, keeps = axis_of(seen.node, values)
    index = [at if keeps else at.unsqueeze(axis) for at in (chosen, seen.own)]
    taken, best = (values.double().gather(axis, at.to(torch.int64)) for at in index)
    if not values.is_floating_point():
        wrong = int((taken != best).sum())
        return (
            (0, f"chose {wrong} numbers that are not the best") if wrong else (int(apart.sum()), "")
        )
    side = torch.from_numpy(theirs.astype(np.float64))

    places = [at.to(torch.int64) for at in index]
    differ = places[0] != places[1]

    def candidates(tensor: Tensor) -> Tensor:
        """What a tensor holds where the two chose otherwise: masked values are elsewhere."""
        return torch.cat([tensor.gather(axis, at)[differ] for at in places])

    exact, own = candidates(values), candidates(side)
    finite = exact.isfinite()
    if not bool((finite == own.isfinite()).all()):
        return 0, "chose from values that are not finite where float64 has numbers, or the reverse"
    scale, off = ordinary.rms(values.double().numpy()), rms((own - exact)[finite])
    # Values may be held in a wider type than they were computed in.
    limits = [4.0 * max(eps, EPS.get(theirs.dtype.name, 2.0**-23)) * scale]
    limits += [rms((candidates(other) - exact)[finite]) for other in moved]
    explained = MARGIN * max(limits)
    # Written so that NaN is a fault.
    if not off <= explained:
        times = MARGIN * off / explained if explained else float("inf")
        return 0, (
            f"chose from values that are off by {off:.2g}, {times:.2g} times what rounding explains"
        )
    gap = (taken - best).abs()
    wrong_places = ~(gap <= explained) & (taken != best)
    if bool(wrong_places.any()):
        worst = float(torch.where(wrong_places, gap, 0.0).max())
        return 0, (
            f"chose another index than float64 at {int(wrong_places.sum())} places, at the worst "
            f"between values {worst:.2g} apart, where rounding explains {explained:.2g}"
        )
    return int(apart.sum()), ""


def rms(values: Tensor) -> float:
    """Root mean square; 0 of nothing."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def axis_of(node: Node, values: Tensor) -> tuple[int, bool]:
    """The axis that is chosen along, and whether the indices keep it."""
    if node.op == "TopK":
        return int(node.get("axis", -1)) % values.dim(), True
    return int(node.get("axis", 0)) % values.dim(), bool(node.get("keepdims", 1))
