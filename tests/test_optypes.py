"""The vocabulary: exact names first, rules after, and the unknown shown as unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import get_args

import pytest

from xbench import optype_names
from xbench.optypes import CLASSES, UNKNOWN, Ecosystem, OpClass, _table, classify, unknown_share
from xbench.result import OpTime, Profile

# What profiles of PredNet (torch 2.13, TensorFlow 2.21: both phases; ORT 1.31: inference) held.
# The blank after "evaluate_function:" is left out here.
PREDNET = {
    "torch": """
        AddBackward0 CatBackward0 ClampBackward1 ConvolutionBackward0
        MaxPool2DWithIndicesBackward0 MeanBackward0 MulBackward0 ReluBackward0 SliceBackward0
        SplitBackward0 SubBackward0 TanhBackward0 UpsampleNearest2DBackward0 aten::_convolution
        aten::_foreach_add_ aten::_fused_adam_ aten::_local_scalar_dense aten::_to_copy
        aten::add aten::add_ aten::as_strided aten::as_strided_ aten::cat aten::chunk
        aten::clamp aten::clamp_min aten::clone aten::contiguous aten::conv2d aten::convolution
        aten::convolution_backward aten::copy_ aten::detach aten::div aten::div_ aten::empty
        aten::empty_like aten::empty_strided aten::expand aten::fill_ aten::ge aten::item
        aten::le aten::logical_and aten::logical_and_ aten::max_pool2d
        aten::max_pool2d_with_indices aten::max_pool2d_with_indices_backward aten::mean
        aten::mkldnn_convolution aten::mul aten::narrow aten::neg aten::new_empty
        aten::new_zeros aten::ones_like aten::relu aten::resize_ aten::scalar_tensor
        aten::select aten::slice aten::slice_backward aten::split aten::stack aten::sub
        aten::sum aten::tanh aten::tanh_backward aten::tensor_split aten::threshold_backward
        aten::to aten::unbind aten::upsample_nearest2d aten::upsample_nearest2d_backward
        aten::view aten::where aten::zero_ aten::zeros
        autograd::engine::evaluate_function:AddBackward0
        autograd::engine::evaluate_function:CatBackward0
        autograd::engine::evaluate_function:ClampBackward1
        autograd::engine::evaluate_function:ConvolutionBackward0
        autograd::engine::evaluate_function:MaxPool2DWithIndicesBackward0
        autograd::engine::evaluate_function:MeanBackward0
        autograd::engine::evaluate_function:MulBackward0
        autograd::engine::evaluate_function:ReluBackward0
        autograd::engine::evaluate_function:SliceBackward0
        autograd::engine::evaluate_function:SplitBackward0
        autograd::engine::evaluate_function:SubBackward0
        autograd::engine::evaluate_function:TanhBackward0
        autograd::engine::evaluate_function:UpsampleNearest2DBackward0
        autograd::engine::evaluate_function:torch::autograd::AccumulateGrad detach
        torch::autograd::AccumulateGrad
    """,
    "tf": """
        AddN AddV2 ClipByValue ConcatV2 ExecutorState::Process Greater Less LessEqual LogicalOr
        Mean Minimum Mul Neg Pack ReadVariableOp Relu ReluGrad ResizeNearestNeighbor
        ResizeNearestNeighborGrad ResourceApplyAdam Select SelectV2 Slice Split SplitV Sub Tanh
        TanhGrad Unpack _MklNativeConv2DBackpropFilterWithBias _MklNativeConv2DBackpropInput
        _MklNativeFusedConv2D _MklNativeMaxPool _MklNativeMaxPoolGrad
    """,
    "onnx": """
        Add Cast Clip Concat ConstantOfShape Conv Expand FusedConv Max MaxPool Min Mul Relu
        ReorderInput ReorderOutput Resize Shape Slice Split Squeeze Sub Tanh Transpose Unsqueeze
    """,
}


@pytest.mark.parametrize(
    ("ecosystem", "op", "op_class", "kind"),
    [
        ("torch", "aten::mm", "MatMul", "matmul"),
        ("torch", "aten::convolution_backward", "Convolution", "gradient"),
        ("torch", "aten::mkldnn_convolution", "Convolution", "convolution"),
        ("torch", "aten::mkldnn_rnn_layer", "Recurrent", "recurrent"),
        ("torch", "aten::add_", "Elementwise", "arithmetic"),
        ("torch", "aten::native_dropout", "Random", "random"),
        ("torch", "aten::_fused_adam_", "Optimizer", "update"),
        ("torch", "aten::_foreach_addcdiv_", "Optimizer", "multi-tensor"),
        ("torch", "aten::_foreach_norm", "Reduction/Expansion", "reduction"),
        ("torch", "AddmmBackward0", "Runtime", "autograd"),
        ("torch", "c10d::allreduce_", "Communication", "collective"),
        ("torch", "cpp_fused_relu_0", "Opaque", "compiled"),
        ("tf", "_FusedConv2D", "Convolution", "convolution"),
        ("tf", "_MklNativeConv2D", "Convolution", "convolution"),
        ("tf", "_MklLayerNorm", "Reduction/Expansion", "normalization"),
        ("tf", "_MklNativeTranspose", "DataMovement", "copy"),
        ("tf", "ResourceApplyAdam", "Optimizer", "update"),
        ("tf", "ResourceSparseApplyMomentum", "Optimizer", "update"),
        ("tf", "StatelessRandomUniformV2", "Random", "random"),
        ("tf", "While", "ControlFlow", "control"),
        ("tf", "_Recv", "Runtime", "transfer"),
        ("tf", "_XlaRun", "Opaque", "compiled"),
        ("onnx", "FusedConv", "Convolution", "convolution"),
        ("onnx", "ConvGrad", "Convolution", "convolution"),
        ("onnx", "com.microsoft.nchwc:Conv", "Convolution", "convolution"),
        ("onnx", "LSTM", "Recurrent", "recurrent"),
        ("onnx", "AdamWOptimizer", "Optimizer", "update"),
        ("onnx", "Scan", "ControlFlow", "control"),
    ],
)
def test_class_and_kind(ecosystem: Ecosystem, op: str, op_class: str, kind: str) -> None:
    assert classify(op, ecosystem) == OpClass(op_class, kind)


@pytest.mark.parametrize("ecosystem", get_args(Ecosystem))
def test_every_operator_of_prednet_is_classified(ecosystem: Ecosystem) -> None:
    assert [op for op in PREDNET[ecosystem].split() if classify(op, ecosystem) == UNKNOWN] == []


@pytest.mark.parametrize("ecosystem", get_args(Ecosystem))
@pytest.mark.parametrize("op", ["", "aten::", "aten::nonsense", "NoSuchOp", "my::conv2d", "conv"])
def test_what_nobody_listed_is_unknown(ecosystem: Ecosystem, op: str) -> None:
    assert classify(op, ecosystem) == OpClass("Unknown", "unknown")


@pytest.mark.parametrize("groups", [optype_names.TORCH, optype_names.TF, optype_names.ONNX])
def test_tables_use_the_vocabulary(groups: optype_names.Groups) -> None:
    assert {what.op_class for what in _table(groups).values()} <= set(CLASSES) - {"Unknown"}


def test_a_name_in_two_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="Relu is in two groups"):
        _table({"Elementwise activation": "Relu Tanh", "MatMul matmul": "Relu"})


def profile_of(**times: float) -> Profile:
    return Profile(
        wall_s=9.0,
        steps=1,
        unattributed_s=9.0 - sum(times.values()),
        truncated=False,
        correction="",
        ops=[OpTime(op, *classify(op, "onnx"), "forward", 1.0, s) for op, s in times.items()],
    )


def test_unknown_share_is_of_operator_time() -> None:
    assert unknown_share(profile_of(Conv=3.0, Mystery=1.0)) == 0.25
    assert unknown_share(profile_of(Conv=3.0)) == 0.0
    assert unknown_share(profile_of()) == 0.0


# Names that no longer, or only in other builds, have a schema.
ABSENT = {
    "TORCH": set(),
    "TF": {"ExecutorState::Process"},
    "ONNX": {"Adam", "Adagrad", "Momentum", "AllReduce", "AllGather", "AllToAll"},
}
REGISTRY = {
    "TORCH": """
import torch
names = {n.removeprefix("aten::").split(".")[0] for n in torch._C._dispatch_get_all_op_names()}
names |= {s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas()}
names |= {n.removesuffix("_") for n in names}
""",
    "TF": """
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session as c
ops = op_def_pb2.OpList.FromString(c.TF_GetBuffer(c.TF_GetAllOpList()))
names = {op.name for op in ops.op}
""",
    "ONNX": """
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
names = {schema.name for schema in get_all_operator_schema()}
""",
}


@pytest.mark.parametrize("which", REGISTRY)
def test_listed_names_exist(which: str) -> None:
    code = REGISTRY[which] + "import json; print(json.dumps(sorted(names)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    real = set(json.loads(done.stdout.splitlines()[-1]))
    listed = set(_table(getattr(optype_names, which)))
    assert listed - real == ABSENT[which]
