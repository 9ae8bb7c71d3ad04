"""Parameters into a skeleton: graph inputs become initialisers. Needs onnx, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from xbench.errors import ExportFailed

LARGEST_BYTES = 1_800_000_000
"""A file above this keeps its parameters beside it: one protobuf holds 2 GiB at most."""


def bind(
    skeleton: Path,
    parameters: Mapping[str, np.ndarray[Any, Any]],
    target: Path,
    label: Mapping[str, str],
) -> None:
    """Write ``skeleton`` with ``parameters`` (canonical name and layout) to ``target``.

    ``label`` goes into the file's metadata. The file appears whole or not at all. Raises
    ExportFailed when names or shapes of parameters and skeleton differ.
    """
    model = onnx.load(str(skeleton))
    graph = model.graph
    declared = {value.name: value for value in graph.input}
    for name, array in parameters.items():
        if name not in declared:
            raise ExportFailed(f"the skeleton has no input for parameter {name!r}")
        shape = [axis.dim_value for axis in declared[name].type.tensor_type.shape.dim]
        if shape != list(array.shape):
            raise ExportFailed(f"parameter {name!r} is {list(array.shape)}, declared {shape}")
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        graph.input.remove(declared[name])
    for key, value in label.items():
        model.metadata_props.add(key=f"xbench.{key}", value=value)
    partial = target.with_suffix(".partial")
    large = sum(array.nbytes for array in parameters.values()) > LARGEST_BYTES
    if large:
        onnx.save(model, str(partial), save_as_external_data=True, location=target.name + ".data")
    else:
        onnx.save(model, str(partial))
    partial.rename(target)
