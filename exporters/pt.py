"""PyTorch to ONNX, through ``torch.onnx.export(dynamo=True)``.

A skeleton is an ONNX file whose parameters are graph inputs, by canonical name and in canonical
layout: it serves every seed. ``bind`` turns the inputs into initialisers.
"""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import onnx_ir
import onnx_ir.passes.common as passes
import torch
from onnxscript import optimizer

from xbench import bench, registry
from xbench.exporters import recurrent_pt
from xbench.exporters.skeleton import finish
from xbench.spec import ModelSpec

EXPORTERS = {
    "torch": {"engine": "torch", "packages": ("torch", "onnx", "onnxscript", "onnx-ir")},
}

TRACE_BATCH = 2
"""Batch to trace with: 1 would be taken for a constant."""


def export(spec: ModelSpec, config: Any, path: Path, *, opset: int) -> dict[str, str]:
    """Write the skeleton of a model's inference to ``path``; returns facts about it."""
    # Without gradients and without garbage collection the exporter is a fifth quicker: it makes
    # millions of objects and keeps most of them.
    module = registry.model_part(spec.name, "pt").build(config).eval().requires_grad_(False)
    inputs, outputs = spec.inputs(config), spec.outputs(config)
    examples = tuple(
        torch.zeros(item.of(config, TRACE_BATCH), dtype=getattr(torch, item.dtype))
        for item in inputs
    )
    named = {name for item in inputs for name in item.shape if isinstance(name, str)}
    axes = {name: torch.export.Dim(name) for name in named}
    dynamic = {
        item.name: {axis: axes[size] for axis, size in enumerate(item.shape) if size in axes}
        for item in inputs
    }
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), bench.quiet():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=[item.name for item in inputs],
            output_names=[item.name for item in outputs],
            opset_version=opset,
            external_data=False,
            optimize=False,
            verbose=False,
            custom_translation_table=recurrent_pt.TRANSLATIONS,
        )
        assert program is not None, "dynamo=True returns the program"
        lift_parameters(program.model, {item.name for item in spec.exported(config)})
        simplify(program.model)
    return finish(program.model_proto, spec, config, path, tf_layout=False)


def simplify(model: onnx_ir.Model) -> None:
    """Fold constants and drop what nobody uses, in place.

    torch's own ``optimize`` also tries some fifty rewrite rules on every node: 3 s where this takes
    0.2 s, for 971 nodes instead of 991 (PredNet small). ONNX Runtime does that when it loads.
    """
    optimizer.fold_constants(model)
    for tidy in (
        passes.RemoveUnusedNodesPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.IdentityEliminationPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
    ):
        tidy(model)


def lift_parameters(model: onnx_ir.Model, names: set[str]) -> None:
    """Turn the initialisers called ``names`` that are used into graph inputs, in place.

    Before anything is folded: what is made of a parameter is no constant.
    """
    graph = model.graph
    for value in list(graph.initializers.values()):
        if value.name in names and value.uses():
            del graph.initializers[value.name]
            value.const_value = None
            graph.inputs.append(value)
