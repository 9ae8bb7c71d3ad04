"""Optimizers for TensorFlow with PyTorch's formulas, on TensorFlow's fused kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from xbench.spec import SGD, Adam, ClipNorm, Optimizer, RMSProp


class State(ABC):
    """What an optimizer remembers of a list of variables between steps."""

    @abstractmethod
    def reset(self) -> None:
        """Back to before the first step."""

    @abstractmethod
    def apply(self, gradients: list[Any]) -> None:
        """One step; ``gradients`` in the order of the variables."""


def make(optimizer: Optimizer, variables: list[Any]) -> State:
    """The optimizer for some variables."""
    if isinstance(optimizer, Adam):
        return AdamState(optimizer, variables)
    if isinstance(optimizer, SGD):
        return SGDState(optimizer, variables)
    return RMSPropState(optimizer, variables)


def clipped(limit: ClipNorm, gradients: list[Any]) -> list[Any]:
    """Gradients times min(1, limit / norm), of all together or of each."""
    wide = tf.float32 if narrow(gradients) else gradients[0].dtype
    norms = [tf.norm(tf.cast(gradient, wide)) for gradient in gradients]
    if not limit.per_tensor:
        norms = [tf.norm(tf.stack(norms))] * len(norms)
    return [
        gradient * tf.cast(tf.minimum(limit.limit / norm, 1.0), gradient.dtype)
        for gradient, norm in zip(gradients, norms, strict=True)
    ]


def zeros(variables: list[Any]) -> list[Any]:
    """A variable of zeros beside each of the variables."""
    return [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]


def narrow(variables: list[Any]) -> bool:
    """Whether the variables are of a type too narrow for an optimizer's arithmetic."""
    return variables[0].dtype in (tf.bfloat16, tf.float16)


class AdamState(State):
    """Adam's moments for a list of variables.

    ``ResourceApplyAdam`` computes p -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps').
    PyTorch's p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) is the same with
    eps' = eps * sqrt(1 - b2^t). Both corrections are made here in float64 and handed to the
    kernel with its own switched off (powers of zero).

    The betas are those that the kernel sees, rounded to the variables' dtype: in float32, 1 - 0.999
    is 5e-5 off. Moments and corrections that share the rounded beta cancel it; with the exact beta
    in the corrections the loss would be 2e-6 off after five steps.

    In bfloat16 and float16 the kernel cannot work: 0.999 is 1 and 1e-8 is 0. There the formula is
    computed in float32 from state kept in the variables' type, as PyTorch's fused kernel does.
    """

    def __init__(self, adam: Adam, variables: list[Any]) -> None:
        self.adam = adam
        self.variables = variables
        self.m = zeros(variables)
        self.v = zeros(variables)
        self.steps = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def reset(self) -> None:
        for moment in (*self.m, *self.v):
            moment.assign(tf.zeros_like(moment))
        self.steps.assign(0.0)

    def apply(self, gradients: list[Any]) -> None:
        adam = self.adam
        if narrow(self.variables):
            self.apply_widened(gradients)
            return
        rounded = self.variables[0].dtype.as_numpy_dtype
        beta1, beta2 = float(rounded(adam.beta1)), float(rounded(adam.beta2))
        steps = self.steps.assign_add(1.0)
        root = tf.sqrt(1.0 - tf.pow(tf.constant(beta2, tf.float64), steps))
        rate = adam.lr * root / (1.0 - tf.pow(tf.constant(beta1, tf.float64), steps))
        for variable, m, v, gradient in zip(self.variables, self.m, self.v, gradients, strict=True):
            dtype = variable.dtype
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=tf.zeros([], dtype),
                beta2_power=tf.zeros([], dtype),
                lr=tf.cast(rate, dtype),
                beta1=tf.constant(beta1, dtype),
                beta2=tf.constant(beta2, dtype),
                epsilon=tf.cast(adam.eps * root, dtype),
                grad=gradient,
            )

    def apply_widened(self, gradients: list[Any]) -> None:
        """One step in float32; variables and moments are rounded to their type afterwards."""
        adam = self.adam
        steps = self.steps.assign_add(1.0)
        root = tf.sqrt(1.0 - tf.pow(tf.constant(adam.beta2, tf.float64), steps))
        rate = adam.lr / (1.0 - tf.pow(tf.constant(adam.beta1, tf.float64), steps))
        root, rate = tf.cast(root, tf.float32), tf.cast(rate, tf.float32)
        for variable, m, v, gradient in zip(self.variables, self.m, self.v, gradients, strict=True):
            wide = [tf.cast(tensor, tf.float32) for tensor in (variable, m, v, gradient)]
            value, first, second, slope = wide
            first += (1.0 - adam.beta1) * (slope - first)
            second = adam.beta2 * second + (1.0 - adam.beta2) * slope * slope
            value -= rate * first / (tf.sqrt(second) / root + adam.eps)
            for target, result in ((variable, value), (m, first), (v, second)):
                target.assign(tf.cast(result, target.dtype))


class SGDState(State):
    """Gradient descent: ``ResourceApplyMomentum`` computes what PyTorch does, in its names
    accum = momentum * accum + g and p -= lr * accum, or p -= lr * g + momentum * lr * accum.

    Weight decay is added to the gradient before. In bfloat16 and float16 the arithmetic is in
    float32 and only the results are rounded (PyTorch's default rounds after every operator).
    """

    def __init__(self, sgd: SGD, variables: list[Any]) -> None:
        self.sgd = sgd
        self.variables = variables
        self.buffers = zeros(variables) if sgd.momentum else []

    def reset(self) -> None:
        for buffer in self.buffers:
            buffer.assign(tf.zeros_like(buffer))

    def apply(self, gradients: list[Any]) -> None:
        if narrow(self.variables):
            self.apply_widened(gradients)
            return
        sgd = self.sgd
        for index, (variable, gradient) in enumerate(zip(self.variables, gradients, strict=True)):
            if sgd.weight_decay:
                gradient = gradient + sgd.weight_decay * variable
            rate = tf.constant(sgd.lr, variable.dtype)
            if not sgd.momentum:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=rate, delta=gradient
                )
                continue
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=self.buffers[index].handle,
                lr=rate,
                grad=gradient,
                momentum=tf.constant(sgd.momentum, variable.dtype),
                use_nesterov=sgd.nesterov,
            )

    def apply_widened(self, gradients: list[Any]) -> None:
        """One step in float32; variables and buffers are rounded to their type afterwards."""
        sgd = self.sgd
        for index, (variable, gradient) in enumerate(zip(self.variables, gradients, strict=True)):
            value, slope = tf.cast(variable, tf.float32), tf.cast(gradient, tf.float32)
            slope += sgd.weight_decay * value
            change = slope
            if sgd.momentum:
                buffer = self.buffers[index]
                change = sgd.momentum * tf.cast(buffer, tf.float32) + slope
                buffer.assign(tf.cast(change, buffer.dtype))
                if sgd.nesterov:
                    change = slope + sgd.momentum * change
            variable.assign(tf.cast(value - sgd.lr * change, variable.dtype))


class RMSPropState(State):
    """RMSProp in plain operators: TensorFlow's kernels have epsilon under the root.

    In bfloat16 and float16 the arithmetic is in float32 and only the results are rounded.
    """

    def __init__(self, rmsprop: RMSProp, variables: list[Any]) -> None:
        self.rmsprop = rmsprop
        self.variables = variables
        self.squares = zeros(variables)
        self.means = zeros(variables) if rmsprop.centered else []
        self.buffers = zeros(variables) if rmsprop.momentum else []

    def reset(self) -> None:
        for tensor in (*self.squares, *self.means, *self.buffers):
            tensor.assign(tf.zeros_like(tensor))

    def apply(self, gradients: list[Any]) -> None:
        rmsprop = self.rmsprop
        alpha = rmsprop.alpha
        wide = tf.float32 if narrow(self.variables) else self.variables[0].dtype

        def mixed(state: Any, value: Any, kept: float, added: float) -> Any:
            """``state`` becomes kept * state + added * value; what it became, before rounding."""
            found = kept * tf.cast(state, wide) + added * value
            state.assign(tf.cast(found, state.dtype))
            return found

        for index, (variable, gradient) in enumerate(zip(self.variables, gradients, strict=True)):
            slope = tf.cast(gradient, wide)
            square = mixed(self.squares[index], slope * slope, alpha, 1.0 - alpha)
            if rmsprop.centered:
                square -= tf.square(mixed(self.means[index], slope, alpha, 1.0 - alpha))
            change = slope / (tf.sqrt(square) + rmsprop.eps)
            if rmsprop.momentum:
                change = mixed(self.buffers[index], change, rmsprop.momentum, 1.0)
            value = tf.cast(variable, wide) - rmsprop.lr * change
            variable.assign(tf.cast(value, variable.dtype))
