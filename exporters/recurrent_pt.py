"""The recurrent layers of ``models/recurrent_pt.py`` as ONNX operators, for the dynamo exporter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18 as op

from xbench.models import recurrent_pt  # noqa: F401 - it registers the operators


def lstm(x: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None) -> Any:
    """``xbench::lstm`` as LSTM, whose gates are in the order i, o, f, c."""

    def ordered(weights: Any) -> Any:
        i, f, g, o = op.Split(weights, num_outputs=4, axis=0)
        return op.Unsqueeze(op.Concat(i, o, f, g, axis=0), op.Constant(value_ints=[0]))

    outputs, h, c = op.LSTM(
        x,
        ordered(weight_ih),
        ordered(weight_hh),
        None if bias_ih is None else op.Concat(ordered(bias_ih), ordered(bias_hh), axis=1),
        hidden_size=weight_hh.shape[1],
    )
    return op.Squeeze(outputs, op.Constant(value_ints=[1])), h, c


def clipped_rnn(
    x: Any, weight_ih: Any, weight_hh: Any, weight_hh_reverse: Any, bias: Any, bound: float
) -> Any:
    """``xbench::clipped_rnn`` as RNN: ONNX clips to [-bound, bound] before the ReLU."""

    def both(forward: Any, backward: Any) -> Any:
        axis = op.Constant(value_ints=[0])
        return op.Concat(op.Unsqueeze(forward, axis), op.Unsqueeze(backward, axis), axis=0)

    biases = op.Concat(bias, op.Sub(bias, bias), axis=0)
    outputs, _ = op.RNN(
        x,
        both(weight_ih, weight_ih),
        both(weight_hh, weight_hh_reverse),
        both(biases, biases),
        hidden_size=weight_hh.shape[1],
        direction="bidirectional",
        activations=["Relu", "Relu"],
        clip=bound,
    )
    return op.ReduceSum(outputs, op.Constant(value_ints=[1]), keepdims=0)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.xbench.lstm.default: lstm,
    torch.ops.xbench.clipped_rnn.default: clipped_rnn,
}
