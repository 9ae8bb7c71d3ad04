"""Is an exported file right? The part that needs ONNX Runtime; the parent judges the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from xbench.errors import ExportFailed
from xbench.runners.base import Arrays, Runner, Work
from xbench.spec import ModelSpec, Shape


def check(graph: Path, spec: ModelSpec, config: Any) -> dict[str, str]:
    """The ONNX checker with shape inference, and the interface of ``spec``.

    Raises ExportFailed with the checker's words.
    """
    try:
        onnx.checker.check_model(str(graph), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportFailed(f"onnx.checker: {str(error).splitlines()[0]}") from error
    model = onnx.load(str(graph), load_external_data=False)
    inputs = {value.name for value in model.graph.input}
    wanted = {item.name for item in spec.inputs(config)}
    if inputs != wanted:
        raise ExportFailed(f"the file has inputs {sorted(inputs)}, the model {sorted(wanted)}")
    return {"checker": onnx.__version__, "runtime": ort.__version__}


def run(runner: Runner, work: Work) -> Arrays:
    """Outputs for every batch; raises ExportFailed where a declared shape is not the actual one."""
    runner.load(work)
    tensors: Arrays = {}
    for index, batch in enumerate(work.batches):
        shapes = {name: array.shape for name, array in batch.items()}
        config = work.spec.fitted(work.config, shapes)
        size = next(iter(shapes.values()))[0]
        outputs = runner.infer(index)
        for item in work.spec.outputs(config):
            expect_shape(item.name, outputs[item.name], item.of(config, size), shapes)
            suffix = f"@{index}" if index else ""
            tensors[f"outputs/{item.name}{suffix}"] = outputs[item.name]
    return tensors


def expect_shape(
    name: str, value: np.ndarray[Any, Any], wanted: Shape, inputs: Mapping[str, Shape]
) -> None:
    if value.shape != wanted:
        given = ", ".join(f"{key} {list(shape)}" for key, shape in inputs.items())
        raise ExportFailed(
            f"output {name!r} is {list(value.shape)} for inputs {given}, declared {list(wanted)}"
        )
