"""Recurrent layers in TensorFlow, time first: quick where they run, one ONNX operator if exported.

tf2onnx makes an ONNX Loop of a TensorFlow loop, about five times slower in ONNX Runtime than ONNX's
own recurrent operators. So where a layer is exported (inside ``export_mode``) it is a node that
only carries a name, which ``exporters/recurrent_tf.py`` translates. Running such a node fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from xbench.models.layers_tf import Layers, exporting

Tensor = Any


def named(name: str, inputs: list[Tensor], shapes: list[list[Any]], **numbers: float) -> Any:
    """A node ``name`` for the exporter, of which only the shapes of its outputs are known."""
    token = json.dumps({"name": name, **numbers}, sort_keys=True)
    outputs = tf.raw_ops.PyFunc(input=inputs, token=token, Tout=[inputs[0].dtype] * len(shapes))
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    return outputs


def lstm(
    model: Layers, name: str, x: Tensor, layers: int
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """``layers`` of LSTM from a zero state on (time, batch, features).

    Returns outputs (time, batch, hidden), and the last h and c (batch, hidden) of every layer.
    """
    h, c = [], []
    for layer in range(layers):
        x, last_h, last_c = lstm_layer(x, *lstm_weights(model, name, layer))
        h.append(last_h)
        c.append(last_c)
    return x, h, c


def lstm_weights(model: Layers, name: str, layer: int) -> list[Tensor]:
    """Kernel, recurrence and, where the layer has biases, their sum."""
    kernel, recurrence, *biases = (
        model.parameters[key]
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        if (key := f"{name}.{part}_l{layer}") in model.parameters
    )
    return [kernel, recurrence, *([biases[0] + biases[1]] if biases else [])]


def lstm_layer(
    x: Tensor,
    kernel: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    *,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer; gates of ``kernel`` (inputs, 4 hidden) and the others in the order i, f, g, o.

    ``start`` are the h and c to begin with (batch, hidden), else zeros: only from these is a layer
    exported.
    """
    hidden = recurrence.shape[0]
    weights = [kernel, recurrence] if bias is None else [kernel, recurrence, bias]
    if exporting():
        assert start is None, "no exported model has such a layer"
        time, batch = x.shape[:2]
        shapes = [[time, batch, hidden], [batch, hidden], [batch, hidden]]
        outputs, h, c = named("lstm", [x, *weights], shapes)
        return outputs, h, c
    # TensorFlow's fused BlockLSTMV2 takes longer on the CPU, has no double, and in 2.21.0 gives
    # other gradients where the last cell is used.
    seen = tf.tensordot(x, kernel, 1)
    if bias is not None:
        seen += bias
    if start is None:
        zero = tf.zeros([tf.shape(x)[1], hidden], x.dtype)
        start = zero, zero

    def step(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_step(gates + tf.matmul(h, recurrence), c)

    return in_time(step, seen, *start)


def in_time(
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``h, c = step(x[time], h, c)`` for every time: h at all times, and the last h and c.

    ``tf.scan`` would keep c at all times as well.
    """
    steps = tf.shape(x)[0]
    seen = tf.TensorArray(x.dtype, steps).unstack(x)
    states = tf.TensorArray(h.dtype, steps)

    def body(time: Tensor, h: Tensor, c: Tensor, states: Any) -> tuple[Tensor, ...]:
        h, c = step(seen.read(time), h, c)
        return time + 1, h, c, states.write(time, h)

    _, h, c, states = tf.while_loop(
        lambda time, *_: time < steps,
        body,
        (tf.constant(0), h, c, states),
        maximum_iterations=steps,
    )
    found = states.stack()
    # Where it is known, a product after it need not ask for the shape.
    found.set_shape([x.shape[0], *h.shape])
    return found, h, c


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new h and c from the sums of the four gates (batch, 4 hidden) and the cell before."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def clipped(x: Tensor, bound: float) -> Tensor:
    """``x`` between 0 and ``bound``; without gradient outside and at both, as in PyTorch."""
    return tf.minimum(tf.constant(bound, x.dtype), tf.nn.relu(x))


def clipped_rnn(model: Layers, name: str, x: Tensor, bound: float) -> Tensor:
    """h_t = clip(x_t W + b + h_before U, 0, bound) both ways in time, summed.

    (time, batch, inputs) -> (time, batch, hidden). Each direction has its own U.
    """
    kernel, recurrence, backward_recurrence, bias = (
        model.parameters[f"{name}.{part}"]
        for part in ("weight_ih", "weight_hh", "weight_hh_reverse", "bias")
    )
    hidden = bias.shape[0]
    if exporting():
        inputs = [x, kernel, recurrence, backward_recurrence, bias]
        shape = [x.shape[0], x.shape[1], hidden]
        (found,) = named("clipped_rnn", inputs, [shape], bound=bound)
        return found
    seen = tf.nn.bias_add(tf.tensordot(x, kernel, 1), bias)

    def step(states: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # Both directions in one loop, the backward one from the other end.
        return (
            clipped(seen[0] + tf.matmul(states[0], recurrence), bound),
            clipped(seen[1] + tf.matmul(states[1], backward_recurrence), bound),
        )

    zero = tf.zeros([tf.shape(x)[1], hidden], x.dtype)
    forward, backward = tf.scan(step, (seen, tf.reverse(seen, [0])), (zero, zero))
    return forward + tf.reverse(backward, [0])
