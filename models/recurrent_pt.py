"""Recurrent layers in PyTorch, time first: quick where they run, one ONNX operator where exported.

The dynamo exporter unrolls PyTorch's own recurrent layers over the length that it traced, or says
that the length is free and is wrong at another. So where a layer is exported it is an operator of
its own, ``xbench::lstm`` or ``xbench::clipped_rnn``, which ``exporters/recurrent_pt.py``
translates to ONNX. What the operators compute here is what the layers do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.library.custom_op("xbench::lstm", mutates_args=())
def lstm_operator(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer from a zero state: outputs (time, batch, hidden), last h and c (1, batch, hidden).

    Gates are in the order i, f, g, o.
    """
    zero = x.new_zeros(1, x.shape[1], weight_hh.shape[1])
    weights = [weight_ih, weight_hh, bias_ih, bias_hh]
    found = torch.lstm(x, (zero, zero), weights, True, 1, 0.0, False, False, False)
    return found[0].clone(), found[1].clone(), found[2].clone()


@lstm_operator.register_fake
def _(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = weight_hh.shape[1]
    last = x.new_empty(1, x.shape[1], hidden)
    return x.new_empty(x.shape[0], x.shape[1], hidden), last, last.clone()


class LSTM(nn.LSTM):
    """``nn.LSTM`` from a zero state on (time, batch, features); exports with any length."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # type: ignore[override]
        """Outputs (time, batch, hidden), and the last h and c (layers, batch, hidden) each."""
        if not torch.compiler.is_exporting():
            found: tuple[Tensor, tuple[Tensor, Tensor]] = super().forward(x)
            return found
        h, c = [], []
        for weights in self.all_weights:
            x, last_h, last_c = lstm_operator(x, *weights)
            h.append(last_h)
            c.append(last_c)
        return x, (torch.cat(h), torch.cat(c))


@torch.library.custom_op("xbench::clipped_rnn", mutates_args=())
def clipped_rnn_operator(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, bound: float
) -> Tensor:
    """The sum of both directions (time, batch, hidden); weights (2, hidden, inputs) and so on."""
    return both_ways(x, weight_ih, weight_hh, bias, bound)


@clipped_rnn_operator.register_fake
def _(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, bound: float) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight_hh.shape[1])


def both_ways(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, bound: float
) -> Tensor:
    """h_t = clip(x_t W + b + h_before U, 0, bound) forwards and backwards in time, summed.

    Both directions take each step in one batched product, so there are half as many steps as
    where one direction follows the other.
    """
    time, batch = x.shape[:2]
    hidden = weight_hh.shape[1]
    ways = torch.stack([x, x.flip(0)]).flatten(1, 2)  # (2, time * batch, inputs)
    seen = torch.baddbmm(bias[:, None], ways, weight_ih.transpose(1, 2))
    recurrence = weight_hh.transpose(1, 2)
    state = x.new_zeros(2, batch, hidden)
    states = []
    for now in seen.view(2, time, batch, hidden).unbind(1):
        state = torch.baddbmm(now, state, recurrence).clamp(0.0, bound)
        states.append(state)
    forward, backward = torch.stack(states, dim=1).unbind(0)
    return forward + backward.flip(0)


class ClippedRNN(nn.Module):
    """A plain recurrent layer with ReLU clipped at ``bound``, both ways, directions summed.

    (time, batch, inputs) -> (time, batch, hidden) (Hannun et al. 2014, arXiv 1412.5567, section 2).
    """

    def __init__(self, input_size: int, hidden_size: int, bound: float) -> None:
        super().__init__()
        self.bound = bound
        for suffix in ("", "_reverse"):
            for name, shape in (
                ("weight_ih", (hidden_size, input_size)),
                ("weight_hh", (hidden_size, hidden_size)),
                ("bias", (hidden_size,)),
            ):
                self.register_parameter(name + suffix, nn.Parameter(torch.empty(shape)))

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            torch.stack([getattr(self, name), getattr(self, f"{name}_reverse")])
            for name in ("weight_ih", "weight_hh", "bias")
        ]
        if torch.compiler.is_exporting():
            found: Tensor = clipped_rnn_operator(x, *parts, self.bound)
            return found
        return both_ways(x, *parts, self.bound)
