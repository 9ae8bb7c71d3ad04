"""What an ONNX Runtime session really computes in, whatever its file says.

Needs no onnxruntime: it works on the trace of a session and on the GPU's driver.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from xbench.errors import EngineError
from xbench.optypes import classify

NAMES = {"float": "fp32", "float16": "fp16", "double": "fp64", "bfloat16": "bf16"}
"""ONNX Runtime's names of types in a trace, and the command line's."""


class _Args(msgspec.Struct):
    op_name: str = ""
    provider: str = ""
    input_type_shape: list[dict[str, Any]] = []


class _Event(msgspec.Struct):
    cat: str
    args: _Args = msgspec.field(default_factory=_Args)


def computed_in(trace: Path, provider: str) -> set[str]:
    """Types that the compute nodes on ``provider`` read first, from the profile of a run.

    Compute nodes are products, convolutions and recurrences; all but casts where there is none.
    These are types at run time, after the casts that ONNX Runtime puts in where it has no kernel
    for what the file says. Raises EngineError where the file names no node.
    """
    events = msgspec.json.decode(trace.read_bytes(), type=list[_Event])
    nodes = [e.args for e in events if e.cat == "Node" and e.args.input_type_shape]
    nodes = [node for node in nodes if node.provider == provider and node.op_name != "Cast"]
    compute = [
        node
        for node in nodes
        if classify(node.op_name, "onnx").op_class in ("MatMul", "Convolution", "Recurrent")
    ]
    first = [next(iter(node.input_type_shape[0]), "") for node in compute or nodes]
    return {NAMES.get(name, name) for name in first}


def tf32(options: Mapping[str, str]) -> bool:
    """Whether a CUDA session may round float32 products to TF32: by default it does.

    Only GPUs since compute capability 8.0 have it.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    if options.get("provider.use_tf32", "1").lower() in ("0", "false"):
        return False
    return cuda_major(int(options.get("provider.device_id", "0"))) >= 8


def cuda_major(device: int) -> int:
    """The first number of a GPU's compute capability, from the driver. Raises EngineError."""
    value, handle = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError as error:
        raise EngineError(f"cannot ask the GPU whether it has TF32: {error}") from error
    # 75: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR of cuda.h.
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(handle), device)
        or driver.cuDeviceGetAttribute(ctypes.byref(value), 75, handle)
    )
    if status:
        raise EngineError(f"cannot ask the GPU whether it has TF32: CUDA error {status}")
    return value.value
