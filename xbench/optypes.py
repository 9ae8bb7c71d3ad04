"""One vocabulary for the operators of three ecosystems: a class and a finer kind for each.

The tables match exactly and were filled by hand. The few rules are tried only afterwards, for
families whose members are too many to list. What neither knows is ``Unknown`` and shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from xbench import optype_names
from xbench.result import Profile

Ecosystem = Literal["torch", "tf", "onnx"]

CLASSES = (
    "MatMul",
    "Convolution",
    "Recurrent",
    "Elementwise",
    "Reduction/Expansion",
    "DataMovement",
    "Optimizer",
    "Random",
    "ControlFlow",
    "Communication",
    "Runtime",
    "Opaque",
    "Unknown",
)


class OpClass(NamedTuple):
    """``op_class`` is one of ``CLASSES``; ``kind`` says more within it."""

    op_class: str
    kind: str


UNKNOWN = OpClass("Unknown", "unknown")

_Table = Mapping[str, OpClass]


def _table(groups: optype_names.Groups) -> _Table:
    """Exact names -> class. Raises ValueError for a name in two groups."""
    table: dict[str, OpClass] = {}
    for label, names in groups.items():
        op_class, kind = label.split()
        for name in names.split():
            if name in table:
                raise ValueError(f"{name} is in two groups: {table[name]} and {label}")
            table[name] = OpClass(op_class, kind)
    return table


_Rules = tuple[tuple[re.Pattern[str], OpClass], ...]


def _rules(*rules: tuple[str, str, str]) -> _Rules:
    return tuple((re.compile(pattern), OpClass(*what)) for pattern, *what in rules)


_TABLES: Mapping[Ecosystem, _Table] = {
    "torch": _table(optype_names.TORCH),
    "tf": _table(optype_names.TF),
    "onnx": _table(optype_names.ONNX),
}
_FALLBACK: Mapping[Ecosystem, _Rules] = {
    "torch": _rules(
        # What the autograd engine does around a gradient: dispatch, saved tensors, accumulation.
        (r"(torch::)?autograd::.+|.+Backward\d*", "Runtime", "autograd"),
        (r"(c10d|nccl|gloo|mpi|_c10d_functional)(::|:).+", "Communication", "collective"),
        (r"(aten::)?_foreach_\w+", "Optimizer", "multi-tensor"),
        (r"(triton_|cpp_fused_|graph_\d+_|CompiledF|Torch-Compiled).*", "Opaque", "compiled"),
        (r"(mkldnn|onednn)::.*conv.*", "Convolution", "convolution"),
        (r"(mkldnn|onednn|mkl)::.*linear.*", "MatMul", "matmul"),
        (r"aten::_?linalg_\w+", "MatMul", "linear-algebra"),
        (r"aten::_?fft_\w+", "Reduction/Expansion", "transform"),
    ),
    "tf": _rules(
        (r"(Resource)?(Sparse)?Apply\w+", "Optimizer", "update"),
        (r"(Stateless|Stateful)?(Random|Parameterized|Truncated)\w+", "Random", "random"),
        (r"StatelessSample\w+", "Random", "random"),
        (r"_?(Nccl|Collective)\w+|XlaAllReduce", "Communication", "collective"),
        (r"Tensor(List|Array|Map)\w+", "DataMovement", "list"),
        (r"\w*(Dataset|Iterator|Queue)\w*|Decode\w+", "Runtime", "input"),
        (r"_?(Mkl)?(Native)?Quantized\w*Conv\w*", "Convolution", "convolution"),
        (r"_?(Mkl)?Quantized\w*MatMul\w*", "MatMul", "matmul"),
    ),
    "onnx": _rules(
        # Subgraphs that an execution provider compiled into one node.
        (r"(TensorrtExecutionProvider|TRTKernel|OpenVINO|CoreML|DNNL|QNN).*", "Opaque", "compiled"),
        (r"(.*:)?\w+Optimizer(V\d)?", "Optimizer", "update"),
    ),
}


@cache
def classify(op: str, ecosystem: Ecosystem) -> OpClass:
    """The class and kind of ``op`` as its framework's profiler names it.

    torch: ``aten::mm`` or an autograd node; tf: an op type; onnx: an op type, with or without
    its domain in front (``com.microsoft:FusedConv``). An op that nobody listed is ``UNKNOWN``.
    """
    table = _TABLES[ecosystem]
    for name in _spellings(op, ecosystem):
        if name in table:
            return table[name]
    for pattern, what in _FALLBACK[ecosystem]:
        if pattern.fullmatch(op):
            return what
    return UNKNOWN


def _spellings(op: str, ecosystem: Ecosystem) -> tuple[str, ...]:
    """The names under which ``op`` may stand in its table, the exact one first."""
    if ecosystem == "torch":
        # Some come bare: autograd records a "detach" inside "aten::detach".
        name = op.removeprefix("aten::").partition(".")[0]
        return name, name.removesuffix("_")
    if ecosystem == "tf":
        return op, re.sub(r"^_Mkl(Native)?", "", op)
    name = op.rpartition(":")[2]
    return name, name.removesuffix("Grad")


def unknown_share(profile: Profile) -> float:
    """The share of operator time (0 to 1) in operators of class Unknown; 0 without any time."""
    total = sum(op.time_s for op in profile.ops)
    unknown = sum(op.time_s for op in profile.ops if op.op_class == UNKNOWN.op_class)
    return unknown / total if total > 0 else 0.0
