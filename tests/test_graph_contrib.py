"""Operators of com.microsoft and ai.onnx.ml against ONNX Runtime's CPU kernels in float32.

ONNX Runtime runs all cases once, in a process of its own. Operators without a CPU kernel are held
against the operators they are made of.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from xbench.runners.graph import (
    decode,
    interpreter,  # noqa: F401 - it enters every table
)
from xbench.runners.graph.contrib import ML, MS
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value

Array = np.ndarray[Any, Any]
DOUBLE = torch.float64

CHILD = """
import pathlib, sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
# Without this, kernels on CPUs without VNNI saturate u8 x s8.
options.add_session_config_entry("session.x64quantprecision", "1")
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    with np.load(path.with_suffix(".in.npz")) as held:
        inputs = dict(held)
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, inputs)))
    except Exception as error:
        outputs = {"error": np.array(str(error))}
    np.savez(path.with_suffix(".out.npz"), **outputs)
"""


@dataclass(frozen=True)
class Case:
    """One node: its inputs as numpy's (None: left out), attributes, and how many outputs."""

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = MS
    valid: Any = None
    """What of the first output means something, as an index."""


draw = np.random.default_rng(0)


def f(*shape: int) -> Array:
    """Floats."""
    return draw.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Array:
    """Bytes."""
    return draw.integers(0, 256, shape, np.uint8)


def s8(*shape: int) -> Array:
    """Signed bytes."""
    return draw.integers(-128, 128, shape).astype(np.int8)


def scale(value: float) -> Array:
    """A scale."""
    return np.array(value, np.float32)


def zero(value: int) -> Array:
    """A zero point of bytes."""
    return np.array(value, np.uint8)


def i32(*values: Any) -> Array:
    """Indices and lengths."""
    return np.array(values, np.int32)


def i64(*values: Any) -> Array:
    """Shapes and positions."""
    return np.array(values, np.int64)


def products() -> list[Case]:
    """Fused products."""
    a = f(2, 3, 4)
    return [
        Case("FusedMatMul", (a, f(2, 5, 4)), {"transB": 1, "alpha": 0.5}),
        Case("FusedMatMul", (f(4, 3), f(4, 5)), {"transA": 1}),
        Case("FusedMatMul", (f(3, 2, 4), f(2, 4, 5)), {"transBatchA": 1}),
        Case(
            "FusedMatMul",
            (f(4, 2, 3), f(4, 2, 5)),
            {"transBatchA": 1, "transA": 1, "transBatchB": 1},
        ),
        Case("TransposeMatMul", (f(2, 4, 3), f(2, 4, 5)), {"transA": 1, "alpha": 2.0}),
        Case(
            "FusedGemm",
            (f(4, 3), f(5, 4), f(5)),
            {
                "transA": 1,
                "transB": 1,
                "alpha": 0.5,
                "beta": 2.0,
                "activation": "LeakyRelu",
                "activation_alpha": 0.3,
            },
        ),
        Case("FusedGemm", (f(2, 3), f(3, 4)), {"activation": "Tanh"}),
        *(bits_case(bits, form) for bits in (2, 4, 8) for form in ("none", "packed")),
        *(bits_case(bits, "float") for bits in (2, 4)),
    ]


def bits_case(bits: int, form: str) -> Case:
    """A product with packed weights: 40 deep in blocks of 16, so the last is short."""
    depth, count, size, blocks = 40, 6, 16, 3
    packed = u8(count, blocks, size * bits // 8)
    zeros: Array | None = None
    if form == "packed":
        zeros = u8(count, -(-blocks * bits // 8))
    elif form == "float":
        zeros = f(count, blocks) + np.float32(2 ** (bits - 1))
    scales = np.abs(f(count, blocks)) / 2**bits
    names = {"K": depth, "N": count, "bits": bits, "block_size": size}
    return Case("MatMulNBits", (f(2, 3, depth), packed, scales, zeros, None, f(count)), names)


def convolutions() -> list[Case]:
    """Fused convolutions and pools."""
    x, w, b = f(1, 4, 6, 6), f(6, 2, 3, 3), f(6)
    window = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2], "kernel_shape": [3, 3]}
    clip = {"activation": "Clip", "activation_params": [-0.5, 1.0]}
    hard = {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}
    leaky = {"activation": "LeakyRelu", "activation_params": [0.2]}
    return [
        Case("FusedConv", (x, w, b), {**window, "activation": "Relu"}),
        Case("FusedConv", (x, w, b, f(1, 6, 3, 3)), {**window, "activation": "Relu"}),
        Case("FusedConv", (x, w), window | clip),
        Case("FusedConv", (x, w), window | hard),
        Case("FusedConv", (x, w), window | leaky),
        Case("FusedConv", (x, w), {**window, "activation": "Tanh"}),
        Case("NhwcMaxPool", (u8(1, 6, 6, 3),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        Case("NhwcMaxPool", (s8(1, 6, 6, 3),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case(
            "ConvTransposeWithDynamicPads",
            (f(1, 2, 5, 5), f(2, 3, 3, 3), i64(1, 0, 1, 1), f(3)),
            {"strides": [2, 2], "kernel_shape": [3, 3]},
        ),
        *(
            Case("GridSample", (f(1, 2, 5, 5), f(1, 3, 4, 2)), {"mode": mode, "padding_mode": pad})
            for mode in ("bilinear", "nearest", "bicubic")
            for pad in ("zeros", "border", "reflection")
        ),
    ]


def elementwise() -> list[Case]:
    """Activations, shapes and sets."""
    x = f(2, 3, 4)
    pads = i64(1, 0, 0, 2)
    return [
        Case("Gelu", (x * 3,)),
        Case("BiasGelu", (x, f(4))),
        Case("FastGelu", (x, f(4))),
        Case("FastGelu", (x,)),
        Case("QuickGelu", (x,)),
        Case("QuickGelu", (x,), {"alpha": 1.0}),
        Case("ExpandDims", (x, np.array(-2, np.int32))),
        Case("Pad", (f(2, 3), pads, f(1))),
        Case("Pad", (f(2, 3), pads), {"mode": "edge"}),
        Case("Pad", (f(2, 3), i64(0, 1, 1, 1)), {"mode": "reflect"}),
        Case("Trilu", (f(2, 4, 4), np.array(1, np.int64)), {"upper": 0}),
        Case("Trilu", (f(3, 4),)),
        Case("Unique", (np.array([2, 1, 1, 3, 4, 3, 2], np.float32),), outputs=3),
        Case("Inverse", (f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32),)),
        Case("CDist", (f(3, 4), f(5, 4))),
        Case("CDist", (f(3, 4), f(5, 4)), {"metric": "euclidean"}),
    ]


def normalisations() -> list[Case]:
    """Layer normalisations and what is fused with them."""
    x, skip, gamma, beta, bias = f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)
    ids, segments = i32([1, 2, 0], [3, 3, 1]), i32([0, 0, 1], [0, 1, 1])
    words, places, parts = f(5, 8), f(6, 8), f(2, 8)
    mask, positions = i32([1, 1, 0], [1, 1, 1]), i32([2, 1, 0], [0, 1, 5])
    return [
        Case("SkipLayerNormalization", (x, skip, gamma, beta, bias), {"epsilon": 0.1}, 4),
        Case("SkipLayerNormalization", (x, skip[0], gamma)),
        Case("SkipSimplifiedLayerNormalization", (x, skip, gamma, bias), {"epsilon": 0.1}, 4),
        Case("SimplifiedLayerNormalization", (x, gamma), {"axis": -1}, 2, domain=""),
        Case("SimplifiedLayerNormalization", (x, f(3, 8)), {"axis": 1, "epsilon": 0.2}, domain=""),
        Case(
            "EmbedLayerNormalization",
            (ids, segments, words, places, parts, gamma, beta, mask, positions),
            {"epsilon": 0.1},
            3,
        ),
        Case("EmbedLayerNormalization", (ids, None, words, places, None, gamma, beta), outputs=2),
    ]


def attentions() -> list[Case]:
    """Attention with every kind of mask, state and packing."""
    x, w, b = f(2, 3, 8), f(8, 24), f(24)
    state = f(2, 2, 2, 5, 4)
    two, causal = {"num_heads": 2}, {"num_heads": 2, "unidirectional": 1}
    masks = [
        i32(2, 3),
        i32(2, 3, 1, 0),
        i32([1, 0, 1], [0, 1, 1]),
        i32([[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 0, 1], [1, 1, 1], [1, 1, 1]]),
    ]
    q, k, v = f(2, 3, 8), f(2, 5, 8), f(2, 5, 12)
    past = (f(2, 2, 4, 4), f(2, 2, 4, 4))
    cases = [Case("Attention", (x, w, b, mask), two) for mask in masks]
    cases += [
        Case("Attention", (x, w, b), causal),
        Case("Attention", (x, w, b, masks[2]), causal | {"mask_filter_value": -3.0}),
        Case("Attention", (x, w, b, None, state), causal | {"scale": 0.3}, 2),
        Case("Attention", (x, w, b, None, None, f(1, 2, 3, 3)), two),
        Case("Attention", (x, f(8, 28), f(28)), two | {"qkv_hidden_sizes": [8, 8, 12]}),
        Case("MultiHeadAttention", (q, k, v, f(28)), two),
        Case("MultiHeadAttention", (q, k, v, None, i32([1, 1, 0, 1, 1], [0, 1, 1, 1, 1])), two),
        Case("MultiHeadAttention", (q, k, v, None, i32(3, 5)), two),
        Case("MultiHeadAttention", (q, f(2, 2, 5, 4), f(2, 2, 5, 4)), two),
        Case("MultiHeadAttention", (q, k, v, None, None, f(1, 1, 3, 5)), two | {"scale": 0.2}),
        Case(
            "MultiHeadAttention",
            (q, q[::-1].copy(), f(2, 3, 8), f(24), None, None, *past),
            causal,
            4,
        ),
        Case("MultiHeadAttention", (q, q[::-1].copy(), f(2, 3, 8)), causal, 3),
    ]
    return cases + groups() + rotations()


def rotations() -> list[Case]:
    """Rotary positions in every layout."""
    cos, sin = f(10, 2), f(10, 2)
    at, rows = i64(3), i64([4, 1, 0], [7, 8, 9])
    part = {"num_heads": 2, "rotary_embedding_dim": 4}
    return [
        Case("RotaryEmbedding", (f(2, 3, 8), at, cos, sin)),
        Case("RotaryEmbedding", (f(2, 3, 8), rows, cos, sin), {"interleaved": 1}),
        Case("RotaryEmbedding", (f(2, 2, 3, 4), rows, cos, sin)),
        Case("RotaryEmbedding", (f(2, 3, 16), rows, cos, sin), part),
        Case("RotaryEmbedding", (f(2, 3, 16), rows, cos, sin), part | {"interleaved": 1}),
    ]


def groups() -> list[Case]:
    """Attention in groups: first prompts, one more token, and a longer continuation."""
    heads = {"num_heads": 4, "kv_num_heads": 2}
    q, k, v, packed = f(2, 5, 64), f(2, 5, 32), f(2, 5, 32), f(2, 5, 128)
    prompt = (i32(4, 4), np.array(5, np.int32))
    cos, sin = f(20, 8), f(20, 8)
    past = (f(2, 2, 6, 16), f(2, 2, 6, 16))
    one = (f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), *past, i32(6, 3), np.array(7, np.int32))
    single = (f(1, 2, 6, 16), f(1, 2, 6, 16))
    more = (f(1, 3, 64), f(1, 3, 32), f(1, 3, 32), *single, i32(8), np.array(9, np.int32))
    nothing = (None, None)
    long = (f(1, 2, 12, 16), f(1, 2, 12, 16))
    turn = heads | {"do_rotary": 1}
    op = "GroupQueryAttention"
    padded = (i32(4, 2), np.array(5, np.int32))
    return [
        Case(op, (q, k, v, *nothing, *prompt), heads, 3),
        Case(op, (packed, None, None, *nothing, *prompt), heads | {"scale": 0.2}, 3),
        Case(op, (packed, None, None, *nothing, *prompt, cos, sin), turn, 3),
        Case(op, (q, k, v, *nothing, *prompt, cos, sin), turn | {"rotary_interleaved": 1}, 3),
        Case(op, (q, k, v, *nothing, *prompt), heads | {"local_window_size": 2}, 3),
        Case(op, (q, k, v, *nothing, *prompt), heads | {"softcap": 0.7}, 3),
        Case(op, (q, k, v, *nothing, *prompt), heads | {"smooth_softmax": 1}, 3),
        Case(op, (q, k, v, *nothing, *prompt, *nothing, None, None, f(4)), heads, 3),
        Case(op, (q, k, v, *nothing, *prompt, *nothing, None, f(1, 4, 5, 5)), heads, 3),
        Case(
            op,
            (q, k, v, *nothing, *prompt, *nothing, None, f(2, 1, 5, 5), f(4)),
            heads | {"softcap": 0.7},
            3,
        ),
        Case(op, (q, k, v, *nothing, *prompt), heads | {"causal": 0}, 3),
        Case(op, (q, k, v, *nothing, *padded), heads, 3, valid=np.s_[1, :3]),
        Case(op, one, heads, 3),
        Case(op, (*one, cos, sin), turn, 3),
        Case(op, one, heads | {"local_window_size": 3}, 3),
        Case(op, more, heads, 3),
        Case(op, (*more, cos, sin), turn | {"local_window_size": 4}, 3),
        Case(op, (*more, cos, sin, i64([6, 7, 9])), turn, 3),
        Case(op, (*more[:3], *long, *more[5:]), heads, 3),
    ]


def integers() -> list[Case]:
    """Products and elementwise operators of quantised tensors."""
    a, b = u8(2, 3, 40), u8(40, 5)
    one, two, out = (scale(0.02), zero(100)), (scale(0.03), zero(7)), (scale(0.05), zero(120))
    x, y = u8(2, 3, 4), u8(3, 1)
    signed = (scale(0.02), np.array(-5, np.int8))
    pooled = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    columns = np.abs(f(5)) / 100 + np.float32(0.001)
    picture = u8(1, 3, 6, 6)
    part = scale(1 / 256), zero(0)
    gemm = (u8(3, 40), *one, s8(5, 40), columns, s8(5))
    c = draw.integers(-5000, 5000, 5).astype(np.int32)
    w = (s8(4, 3, 3, 3), np.abs(f(4)) / 100, np.zeros(4, np.int8))
    q = (u8(2, 3, 8), s8(8, 24), f(24), scale(0.02))
    return [
        Case("MatMulIntegerToFloat", (a, b, one[0], columns, one[1], u8(5), f(5))),
        Case("MatMulIntegerToFloat", (a, s8(40, 5), one[0], two[0])),
        Case("DynamicQuantizeMatMul", (f(2, 3, 40), b, columns, u8(5), f(5))),
        Case("DynamicQuantizeMatMul", (f(3, 40), s8(40, 5), two[0])),
        Case("QLinearAdd", (x, *one, y, *two, *out)),
        Case("QLinearAdd", (s8(3), *signed, s8(3), *signed, *signed)),
        Case("QLinearMul", (x, *one, y, *two, *out)),
        Case("QLinearSigmoid", (x, *one, *part)),
        Case("QLinearLeakyRelu", (x, *one, *out), {"alpha": 0.2}),
        Case("QLinearSoftmax", (x, *one, *part), {"opset": 13, "axis": -1}),
        Case("QLinearSoftmax", (x, *one, *part), {"opset": 12, "axis": 1}),
        Case("QLinearAveragePool", (picture, *one, *out), pooled),
        Case("QLinearAveragePool", (picture, *one, *out), pooled | {"count_include_pad": 1}),
        Case("QLinearAveragePool", (u8(1, 6, 6, 3), *one, *out), pooled | {"channels_last": 1}),
        Case("QLinearGlobalAveragePool", (picture, *one, scale(0.01), zero(90))),
        Case(
            "QLinearGlobalAveragePool",
            (u8(1, 6, 6, 3), *one, scale(0.01), zero(90)),
            {"channels_last": 1},
        ),
        Case("QLinearConcat", (*out, x, *one, u8(2, 1, 4), *two), {"axis": 1}),
        Case("QLinearWhere", (x > 99, x, *one, u8(3, 4), *two, *out)),
        Case("QGemm", (*gemm, c, scale(0.5), zero(128)), {"transB": 1, "alpha": 0.9}),
        Case("QGemm", gemm, {"transB": 1, "alpha": 0.9}),
        Case("QGemm", (u8(3, 40), *one, u8(40, 5), *two, None, scale(0.5), zero(128))),
        Case(
            "QLinearConv",
            (u8(1, 6, 6, 3), *one, *w, scale(0.2), zero(128), c[:4]),
            {"channels_last": 1, "pads": [1, 1, 1, 1]},
        ),
        Case("QuantizeLinear", (x.astype(np.float32), *out)),
        Case("QuantizeLinear", (f(3, 5), columns, u8(5)), {"axis": 1}),
        Case("DequantizeLinear", (u8(3, 5), columns, u8(5)), {"axis": 1}),
        Case("DequantizeLinear", (x, *one)),
        Case(
            "QAttention", (*q, np.abs(f(24)) / 50, i32(2, 3), zero(120), s8(24)), {"num_heads": 2}
        ),
        Case(
            "QAttention",
            (*q, scale(0.03), None, zero(120), np.array(3, np.int8), f(2, 2, 2, 5, 4)),
            {"num_heads": 2, "unidirectional": 1},
            2,
        ),
    ]


def learners() -> list[Case]:
    """ai.onnx.ml."""
    x = np.array([[1, -2, 3], [-1, -4, 2], [0, 0, 0], [-1, -2, -3]], np.float32)
    line = {
        "coefficients": [0.5, -1.0, 2.0, 0.25, 0.0, 1.0],
        "targets": 2,
        "intercepts": [1.0, -1.0],
    }
    return [
        Case("Scaler", (x,), {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 0.1, 3.0]}, domain=ML),
        Case("Scaler", (x.astype(np.int64),), {"offset": [0.5], "scale": [2.0]}, domain=ML),
        *(Case("Normalizer", (x,), {"norm": norm}, domain=ML) for norm in ("MAX", "L1", "L2")),
        Case("LinearRegressor", (x,), line, domain=ML),
        Case("LinearRegressor", (x,), {"coefficients": [0.5, -1.0, 2.0]}, domain=ML),
        Case("ArrayFeatureExtractor", (f(2, 3, 4), i64([0, 2])), domain=ML),
        Case("ArrayFeatureExtractor", (f(4), i64(3)), domain=ML),
        Case("FeatureVectorizer", (f(3, 4), f(3, 2)), {"inputdimensions": [3, 3]}, domain=ML),
        Case("Binarizer", (x,), {"threshold": 0.5}, domain=ML),
    ]


CASES = [
    *products(),
    *convolutions(),
    *elementwise(),
    *normalisations(),
    *attentions(),
    *integers(),
    *learners(),
]
WITHOUT_KERNEL = {
    "BiasAdd",
    "BiasDropout",
    "BiasSoftmax",
    "FusedMatMulActivation",
    "GemmFastGelu",
    "MatMulInteger16",
    "NhwcConv",
    "NhwcFusedConv",
    "QLinearReduceMean",
}


def elements(case: Case) -> tuple[int, ...]:
    """Element types of the inputs."""
    kinds = [0 if v is None else helper.np_dtype_to_tensor_dtype(v.dtype) for v in case.inputs]
    return tuple(kinds)


def output(case: Case, name: str) -> onnx.ValueInfoProto:
    """An output whose type is inferred, but for one that cannot be."""
    if (case.op, name) == ("MultiHeadAttention", "y3"):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return onnx.ValueInfoProto(name=name)


def model(case: Case) -> onnx.ModelProto:
    """A model of the one node."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    if case.op == "SkipSimplifiedLayerNormalization":
        outputs[1] = outputs[2] = ""  # Its CPU kernel does not write them.
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [
            helper.make_tensor_value_info(name, kind, value.shape)
            for name, kind, value in zip(names, elements(case), case.inputs, strict=True)
            if name
        ],
        [output(case, name) for name in outputs if name],
    )
    opsets = [helper.make_opsetid(name, version) for name, version in (("", 21), (MS, 1), (ML, 3))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@functools.cache
def theirs() -> list[dict[str, Array]]:
    """What ONNX Runtime gives for every case."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{index:03d}.onnx") for index in range(len(CASES))]
        for path, case in zip(paths, CASES, strict=True):
            onnx.save(model(case), path)
            given = {f"x{i}": v for i, v in enumerate(case.inputs) if v is not None}
            np.savez(path.with_suffix(".in.npz"), **given)
        subprocess.run([sys.executable, "-c", CHILD, folder], check=True, timeout=120)
        results: list[dict[str, Array]] = []
        for path in paths:
            with np.load(path.with_suffix(".out.npz")) as held:
                results.append(dict(held))
        return results


def mine(case: Case) -> list[Value]:
    """What the table gives."""
    node = Node(
        case.op,
        case.domain,
        version=1,
        attributes=case.attributes,
        types=elements(case),
        outputs=case.outputs,
    )
    values = [decode.value_of(value, DOUBLE) for value in case.inputs]
    out = OPERATORS[case.domain, case.op](node, values)
    return list(out) if isinstance(out, tuple) else [out]


def run(op: str, *inputs: Any, **attributes: Any) -> Tensor:
    """The first output of an operator of com.microsoft."""
    out = mine(Case(op, inputs, attributes))[0]
    assert isinstance(out, Tensor)
    return out


def near(got: Tensor, want: Array, where: str, valid: Any = None) -> None:
    """Shapes and types are equal, floats close, requantised integers at most a step apart."""
    assert tuple(got.shape) == want.shape, where
    if want.dtype.kind == "f":
        assert got.dtype == DOUBLE, where
        apart = np.abs(got.numpy() - want)[... if valid is None else valid]
        assert apart.max() <= 1e-5 * np.abs(want).max(), f"{where}: {apart.max()}"
    else:
        assert str(got.dtype) == f"torch.{want.dtype}", where
        apart = np.abs(got.numpy().astype(np.int64) - want.astype(np.int64))
        assert apart.max() <= (want.dtype.itemsize == 1), f"{where}: {apart.max()}"
        assert apart.mean() <= 0.05, f"{where}: {apart.mean()}"


@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_agrees_with_onnx_runtime(op: str) -> None:
    for index, (case, want) in enumerate(zip(CASES, theirs(), strict=True)):
        if case.op != op:
            continue
        where = f"{op}, case {index}, {case.attributes}"
        assert "error" not in want, f"{where}: {want['error']}"
        out = mine(case)
        for name, array in want.items():
            got = out[int(name[1:])]
            assert isinstance(got, Tensor)
            near(got, array, f"{where}, {name}", case.valid if name == "y0" else None)


def test_every_operator_is_tried() -> None:
    table = {key for key in OPERATORS if key[0]} | {("", "SimplifiedLayerNormalization")}
    tried = {(case.domain, case.op) for case in CASES} | {(MS, name) for name in WITHOUT_KERNEL}
    assert table - tried == set()
    assert len(table) >= 50


def reference(op: str, inputs: Sequence[Array], **attributes: Any) -> Array:
    """An operator of ONNX as onnx.reference has it, in float64."""
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    out = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "one", infos, [out]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (y,) = ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(y)


def test_channels_last_convolutions() -> None:
    x, w, b = (item.astype(np.float64) for item in (f(1, 4, 6, 5), f(6, 2, 3, 3), f(6)))
    window: dict[str, Any] = {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    plain = reference("Conv", [x, w, b], **window)
    last = np.moveaxis(plain, 1, -1)
    nhwc = np.moveaxis(x, 1, -1)
    got = run("NhwcConv", nhwc, np.moveaxis(w, 1, -1), b, **window)
    np.testing.assert_allclose(got, last, rtol=1e-12, atol=1e-12)
    z = f(*last.shape).astype(np.float64)
    got = run("NhwcFusedConv", nhwc, w, b, z, **window, activation="Relu")
    np.testing.assert_allclose(got, np.maximum(last + z, 0), rtol=1e-12, atol=1e-12)
    assert (got.numpy() == 0).any()


def test_fused_activations() -> None:
    a, b = f(2, 3, 4).astype(np.float64), f(2, 5, 4).astype(np.float64)
    plain = a @ b.transpose(0, 2, 1) * 0.5
    got = run("FusedMatMulActivation", a, b, transB=1, alpha=0.5, activation="Tanh")
    np.testing.assert_allclose(got, np.tanh(plain), rtol=1e-12)
    got = run(
        "FusedMatMulActivation",
        a,
        b,
        transB=1,
        alpha=0.5,
        activation="LeakyRelu",
        activation_alpha=0.3,
    )
    np.testing.assert_allclose(got, np.where(plain < 0, 0.3 * plain, plain), rtol=1e-12)
    x, w, bias = a[0], b[0].T, f(5).astype(np.float64)
    z = x @ w + bias
    want = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    np.testing.assert_allclose(run("GemmFastGelu", x, w, bias), want, rtol=1e-12)


def test_sums_with_a_bias() -> None:
    x, bias, skip = (item.astype(np.float64) for item in (f(2, 3, 4), f(4), f(2, 3, 4)))
    np.testing.assert_allclose(run("BiasAdd", x, bias, skip), x + bias + skip)
    y, mask = mine(Case("BiasDropout", (x, bias, skip, scale(0.5)), outputs=2))
    assert isinstance(y, Tensor)
    assert isinstance(mask, Tensor)
    np.testing.assert_allclose(y, x + bias + skip)
    assert mask.dtype == torch.bool
    assert mask.all()
    with pytest.raises(NotInDouble, match="random"):
        run("BiasDropout", x, bias, None, scale(0.5), np.array(True))
    scores, hidden = f(2, 3, 4, 5).astype(np.float64), f(2, 1, 1, 5).astype(np.float64)
    want = reference("Softmax", [scores + hidden], axis=3)
    got = run("BiasSoftmax", scores, hidden, axis=3, is_inner_broadcast=1)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    want = reference("Softmax", [(scores + hidden).reshape(2, 3, 20)], axis=-1)
    got = run("BiasSoftmax", scores, hidden, axis=2, is_inner_broadcast=1)
    np.testing.assert_allclose(got, want.reshape(2, 3, 4, 5), rtol=1e-12)


def test_integers_without_a_kernel() -> None:
    a, b = draw.integers(-9999, 9999, (3, 40)), draw.integers(-9999, 9999, (40, 2))
    want = (a @ b).astype(np.int32)
    got = run("MatMulInteger16", a.astype(np.int16), b.astype(np.int16))
    np.testing.assert_array_equal(got, want)
    big = np.full((1, 2), 65_535, np.uint16)
    got = run("MatMulInteger16", big, big.T)
    assert got.dtype == torch.uint32
    assert got.tolist() == [[2 * 65_535**2 - 2**32]]
    x = u8(2, 3, 4)
    real = (x.astype(np.float64) - 100) * np.float64(np.float32(0.02))
    want = np.rint(real.mean((0, 2)) / np.float64(np.float32(0.05))) + 120
    reduced = (x, scale(0.02), zero(100), scale(0.05), zero(120))
    got = run("QLinearReduceMean", *reduced, axes=[0, 2], keepdims=0)
    np.testing.assert_array_equal(got, want)
    assert run("QLinearReduceMean", *reduced, axes=[0, 2], keepdims=1).shape == (1, 3, 1)


def test_packed_keys_and_values() -> None:
    """As if they came apart; no kernel on a CPU takes them packed."""
    q, key, value = f(2, 3, 8), f(2, 5, 2, 4), f(2, 5, 2, 4)
    packed = run("MultiHeadAttention", q, np.stack([key, value], 3), num_heads=2)
    apart: tuple[Array, ...] = (key.reshape(2, 5, 8), value.reshape(2, 5, 8))
    assert torch.equal(packed, run("MultiHeadAttention", q, *apart, num_heads=2))
    every = f(2, 3, 2, 3, 4)
    apart = tuple(every[:, :, :, i].reshape(2, 3, 8) for i in range(3))
    packed = run("MultiHeadAttention", every, num_heads=2)
    assert torch.equal(packed, run("MultiHeadAttention", *apart, num_heads=2))


def test_bytes_do_not_saturate() -> None:
    """Kernels without VNNI give 1,048,544."""
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    one = scale(1.0)
    assert run("MatMulIntegerToFloat", a, b, one, one).item() == 2_072_640
    assert run("QGemm", a, one, zero(0), b, one, np.array(0, np.int8)).item() == 2_072_640


def test_the_activations_a_regression_may_end_in() -> None:
    x = np.array([[1.0, -2.0], [0.5, 3.0]])
    held: dict[str, Any] = {"coefficients": [1.0, 0.0, 0.0, 1.0], "targets": 2}
    (y,) = mine(Case("LinearRegressor", (x,), held | {"post_transform": "LOGISTIC"}, domain=ML))
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x)))
    (y,) = mine(Case("LinearRegressor", (x,), held | {"post_transform": "SOFTMAX"}, domain=ML))
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(-1, keepdims=True))
    with pytest.raises(NotInDouble, match="PROBIT"):
        mine(Case("LinearRegressor", (x,), held | {"post_transform": "PROBIT"}, domain=ML))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Attention", (f(1, 2, 4), f(4, 12)), {"num_heads": 2, "do_rotary": 1}),
        ("Attention", (f(1, 2, 4), f(4, 12), None, i32([[[1]]])), {"num_heads": 2}),
        (
            "MatMulNBits",
            (f(1, 16), u8(1, 1, 6), f(1, 1)),
            {"K": 16, "N": 1, "bits": 3, "block_size": 16},
        ),
        ("CDist", (f(1, 2), f(1, 2)), {"metric": "cosine"}),
        ("RotaryEmbedding", (f(1, 2, 4), i64(0), f(2, 2), f(2, 2)), {"scale": 2.0}),
        (
            "GroupQueryAttention",
            (f(1, 2, 4), None, None, None, None, i32(1), i32(2)),
            {"num_heads": 1, "kv_num_heads": 1, "sliding_window_cache": 1},
        ),
    ],
)
def test_what_no_kernel_on_a_cpu_defines_is_refused(
    op: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    if op == "Attention" and len(inputs) == 4:
        inputs = (*inputs[:3], np.ones((1, 1, 2, 2), np.int32))
    with pytest.raises(NotInDouble, match=op):
        run(op, *inputs, **attributes)
