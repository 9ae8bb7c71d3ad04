"""RNN, GRU and LSTM of opsets 1 to 22, all their attributes.

Inside, sequences are (steps, batch, width). A row that is shorter than the longest keeps its state
beyond its end, and its outputs there are 0; a row without steps gives back the state it was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from xbench.runners.graph.network import given, maybe, single
from xbench.runners.graph.node import Node, NotInDouble, Value, operator

Function = Callable[[Tensor], Tensor]
Formula = Callable[[Tensor, float, float], Tensor]

NEEDED = math.nan
"""Stands for a default that the definition does not give."""

# Formula, default of alpha, default of beta; None where the function has no such number.
FORMULAS: dict[str, tuple[Formula, float | None, float | None]] = {
    "relu": (lambda x, a, b: x.relu(), None, None),
    "tanh": (lambda x, a, b: x.tanh(), None, None),
    "sigmoid": (lambda x, a, b: x.sigmoid(), None, None),
    "affine": (lambda x, a, b: a * x + b, NEEDED, NEEDED),
    "leakyrelu": (lambda x, a, b: torch.where(x >= 0, x, a * x), single(0.01), None),
    "thresholdedrelu": (lambda x, a, b: torch.where(x >= a, x, 0.0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * (b * x).tanh(), NEEDED, NEEDED),
    "hardsigmoid": (lambda x, a, b: (a * x + b).clamp(0, 1), single(0.2), 0.5),
    "elu": (lambda x, a, b: torch.where(x >= 0, x, a * x.expm1()), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + x.abs()), None, None),
    "softplus": (lambda x, a, b: functional.softplus(x, threshold=700), None, None),
}


def activations_of(node: Node, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """The activations of each direction, each with its clip before it.

    A value of activation_alpha (or _beta) goes to the next function that has an alpha (a beta);
    where the list has run out, the default holds. Raises NotInDouble for an unknown function, and
    for one without a number that has no default.
    """
    names = node.get("activations") or list(defaults) * directions
    alphas = iter(node.get("activation_alpha") or ())
    betas = iter(node.get("activation_beta") or ())
    clip = node.get("clip")

    def made(name: str) -> Function:
        if name.lower() not in FORMULAS:
            raise NotInDouble(f"{node.op} with {name}")
        formula, alpha, beta = FORMULAS[name.lower()]
        a = 0.0 if alpha is None else next(alphas, alpha)
        b = 0.0 if beta is None else next(betas, beta)
        if math.isnan(a) or math.isnan(b):
            raise NotInDouble(f"{node.op} with {name} but without its alpha and beta")
        if clip is None:
            return lambda x: formula(x, a, b)
        return lambda x: formula(x.clamp(-clip, clip), a, b)

    functions = [made(name) for name in names]
    count = len(defaults)
    return [functions[i * count : (i + 1) * count] for i in range(directions)]


class Cell(NamedTuple):
    """One direction of one operator: weights, biases, first states and the way through time."""

    x: Tensor
    weight: Tensor
    recurrence: Tensor
    bias: Tensor
    recurrent_bias: Tensor
    hidden: Tensor
    lengths: Tensor | None
    backward: bool
    functions: list[Function]

    def steps(self) -> Iterator[tuple[int, Tensor | None]]:
        """Each step in order, and which rows are still running: (batch, 1), None for all."""
        count = len(self.x)
        for step in reversed(range(count)) if self.backward else range(count):
            yield step, None if self.lengths is None else (step < self.lengths)[:, None]


def cells(node: Node, inputs: Sequence[Value], defaults: Sequence[str]) -> list[Cell]:
    """The directions of an operator; X, W, R, B, sequence_lens, initial_h are its inputs 0 to 5.

    Raises ValueError where weights are not those of the direction named.
    """
    x, weight, recurrence = (given(inputs, i) for i in range(3))
    bias, lengths, hidden = (maybe(inputs, i) for i in (3, 4, 5))
    direction = node.get("direction") or "forward"
    backward = {"reverse": [True], "bidirectional": [False, True]}.get(direction, [False])
    if len(backward) != len(weight):
        raise ValueError(f"{node.op}: {direction} with weights of {len(weight)} directions")
    if node.get("layout", 0):
        x = x.transpose(0, 1)
    rows, width = recurrence.shape[1:]
    if bias is None:
        bias = x.new_zeros(len(weight), 2 * rows)
    if lengths is not None and bool((lengths == len(x)).all()):
        lengths = None
    functions = activations_of(node, defaults, len(weight))
    first = _states(node, hidden, (len(weight), x.shape[1], width), x)
    return [
        Cell(
            x,
            weight[i],
            recurrence[i],
            bias[i, :rows],
            bias[i, rows:],
            first[i],
            lengths,
            backward[i],
            functions[i],
        )
        for i in range(len(weight))
    ]


def _states(node: Node, first: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """First states as (directions, batch, width); 0 where none are given."""
    if first is None:
        return like.new_zeros(shape)
    return first.transpose(0, 1) if node.get("layout", 0) else first


def kept(running: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """The new state of the rows that are running, the old one of the others."""
    return new if running is None else torch.where(running, new, old)


def shown(running: Tensor | None, new: Tensor) -> Tensor:
    """The output of a step: 0 in the rows that have ended."""
    return new if running is None else torch.where(running, new, 0.0)


def joined(node: Node, outputs: Sequence[Tensor], *states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Y and the last states, as the layout has them, of those of each direction."""
    y = torch.stack(list(outputs), 1)
    last = [torch.stack(list(state)) for state in states]
    if node.get("layout", 0):
        return y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)
    return y, *last


@operator("RNN")
def rnn(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Y (steps, directions, batch, width) and Y_h."""
    outputs, last = [], []
    for cell in cells(node, inputs, ["Tanh"]):
        projected = cell.x @ cell.weight.T + cell.bias + cell.recurrent_bias
        y, hidden = torch.zeros_like(projected), cell.hidden
        for step, running in cell.steps():
            new = cell.functions[0](projected[step] + hidden @ cell.recurrence.T)
            hidden = kept(running, new, hidden)
            y[step] = shown(running, new)
        outputs.append(y)
        last.append(hidden)
    return joined(node, outputs, last)


@operator("GRU")
def gru(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Y (steps, directions, batch, width) and Y_h. Gates are update, reset, hidden."""
    linear = bool(node.get("linear_before_reset", 0))
    outputs, last = [], []
    for cell in cells(node, inputs, ["Sigmoid", "Tanh"]):
        f, g = cell.functions
        width = cell.hidden.shape[-1]
        gates, inner = cell.recurrence[: 2 * width].T, cell.recurrence[2 * width :].T
        projected = cell.x @ cell.weight.T + cell.bias
        projected[..., : 2 * width] += cell.recurrent_bias[: 2 * width]
        after = cell.recurrent_bias[2 * width :]
        hidden = cell.hidden
        y = torch.zeros_like(projected[..., :width])
        for step, running in cell.steps():
            into = projected[step]
            update, reset = f(into[:, : 2 * width] + hidden @ gates).chunk(2, -1)
            back = hidden @ inner + after if linear else (reset * hidden) @ inner + after
            into = into[:, 2 * width :] + (reset * back if linear else back)
            new = (1 - update) * g(into) + update * hidden
            hidden = kept(running, new, hidden)
            y[step] = shown(running, new)
        outputs.append(y)
        last.append(hidden)
    return joined(node, outputs, last)


@operator("LSTM")
def lstm(node: Node, inputs: Sequence[Value]) -> tuple[Tensor, ...]:
    """Y (steps, directions, batch, width), Y_h and Y_c. Gates are input, output, forget, cell.

    The clip bounds what goes into the last activation too, as the definition says of every one
    (ONNX Runtime leaves that one out), but not the cell itself.
    """
    coupled = bool(node.get("input_forget", 0))
    peepholes = maybe(inputs, 7)
    outputs, last, memories = [], [], []
    found = cells(node, inputs, ["Sigmoid", "Tanh", "Tanh"])
    shape = (len(found), *found[0].hidden.shape)
    first = _states(node, maybe(inputs, 6), shape, found[0].x)
    for i, cell in enumerate(found):
        f, g, h = cell.functions
        projected = cell.x @ cell.weight.T + cell.bias + cell.recurrent_bias
        hidden, memory = cell.hidden, first[i]
        y = projected.new_zeros(*projected.shape[:2], shape[-1])
        peep = projected.new_zeros(3 * shape[-1]) if peepholes is None else peepholes[i]
        peep_in, peep_out, peep_forget = peep.chunk(3)
        for step, running in cell.steps():
            gates = projected[step] + hidden @ cell.recurrence.T
            into, out, forget, new = gates.chunk(4, -1)
            into = f(into + peep_in * memory)
            forget = 1 - into if coupled else f(forget + peep_forget * memory)
            content = forget * memory + into * g(new)
            told = f(out + peep_out * content) * h(content)
            hidden = kept(running, told, hidden)
            memory = kept(running, content, memory)
            y[step] = shown(running, told)
        outputs.append(y)
        last.append(hidden)
        memories.append(memory)
    return joined(node, outputs, last, memories)
