"""Optimizers for TensorFlow with PyTorch's formulas, on TensorFlow's fused kernels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from xbench.spec import Adam


class AdamState:
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
        self.m = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
        self.v = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
        self.steps = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def reset(self) -> None:
        """Back to before the first step."""
        for moment in (*self.m, *self.v):
            moment.assign(tf.zeros_like(moment))
        self.steps.assign(0.0)

    def apply(self, gradients: list[Any]) -> None:
        """One step; ``gradients`` in the order of the variables."""
        adam = self.adam
        if self.variables[0].dtype in (tf.bfloat16, tf.float16):
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
