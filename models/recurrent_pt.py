"""Recurrent layers in PyTorch, time first: quick where they run, one ONNX operator where exported.

The dynamo exporter unrolls PyTorch's own recurrent layers over the length that it traced, or says
that the length is free and is wrong at another. So where a layer is exported it is an operator of
its own, ``xbench::lstm`` or ``xbench::clipped_rnn``, which ``exporters/recurrent_pt.py``
translates to ONNX. What the operators compute here is what the layers do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@torch.library.custom_op("xbench::lstm", mutates_args=())
def lstm_operator(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer from a zero state: outputs (time, batch, hidden), last h and c (1, batch, hidden).

    Gates are in the order i, f, g, o. There are two biases or none.
    """
    zero = x.new_zeros(1, x.shape[1], weight_hh.shape[1])
    biases = [] if bias_ih is None or bias_hh is None else [bias_ih, bias_hh]
    weights = [weight_ih, weight_hh, *biases]
    found = torch.lstm(x, (zero, zero), weights, bool(biases), 1, 0.0, False, False, False)
    return found[0].clone(), found[1].clone(), found[2].clone()


@lstm_operator.register_fake
def _(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
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
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    weight_hh_reverse: Tensor,
    bias: Tensor,
    bound: float,
) -> Tensor:
    """What ``both_ways`` computes."""
    found: Tensor = both_ways(x, weight_ih, weight_hh, weight_hh_reverse, bias, bound)
    return found


@clipped_rnn_operator.register_fake
def _(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    weight_hh_reverse: Tensor,
    bias: Tensor,
    bound: float,
) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight_hh.shape[1])


# torch.compile would unroll the loop over time, which takes minutes.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def both_ways(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    weight_hh_reverse: Tensor,
    bias: Tensor,
    bound: float,
) -> Tensor:
    """h_t = clip(x_t W + b + h_before U, 0, bound) forwards and backwards in time, summed.

    (time, batch, inputs) -> (time, batch, hidden). Each direction has its own U. Where the gradient
    of ``clip`` jumps, it is 0.
    """
    steps = F.linear(x, weight_ih, bias).unbind()

    def one_way(steps: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        state = x.new_zeros(x.shape[1], weight.shape[1])
        recurrence = weight.t()
        states = []
        for seen in steps:
            state = F.hardtanh_(torch.addmm(seen, state, recurrence), 0.0, bound)
            states.append(state)
        return states

    forward = one_way(steps, weight_hh)
    backward = one_way(steps[::-1], weight_hh_reverse)
    return torch.stack(forward) + torch.stack(backward[::-1])


class ClippedRNN(nn.Module):
    """A plain recurrent layer with ReLU clipped at ``bound``, both ways, directions summed.

    (time, batch, inputs) -> (time, batch, hidden). The directions share the weight of the input
    and the bias (Hannun et al. 2014, arXiv 1412.5567, section 2).
    """

    def __init__(self, input_size: int, hidden_size: int, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.weight_hh_reverse = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weight_ih, self.weight_hh, self.weight_hh_reverse, self.bias
        run = clipped_rnn_operator if torch.compiler.is_exporting() else both_ways
        found: Tensor = run(x, *weights, self.bound)
        return found
