"""What every exporter does to a skeleton before it is written: names, axes, checks, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from xbench.errors import ExportFailed, Unsupported
from xbench.spec import ModelSpec, TensorSpec

IR_VERSION = 10
"""Written into every file. It holds opset 18 to 23, and ONNX Runtime has read it since 1.18."""

DOMAINS = {"", "ai.onnx"}
"""Operator domains that a plain ONNX file may use."""


def finish(
    model: onnx.ModelProto, spec: ModelSpec, config: Any, path: Path, *, tf_layout: bool
) -> dict[str, str]:
    """Check the skeleton's operators and interface, name its dynamic axes, write it to ``path``.

    ``tf_layout`` says that inputs and outputs are in TensorFlow's layout (parameters never are).
    Raises Unsupported for an operator outside ONNX, ExportFailed for another interface than the
    model's.
    """
    strangers = {f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain not in DOMAINS}
    if strangers:
        raise Unsupported(f"the exporter left operators outside ONNX: {sorted(strangers)}")
    drop_unused_domains(model)
    model.ir_version = IR_VERSION
    declare(model.graph.input, spec.inputs(config), tf_layout, "input")
    declare(model.graph.input, spec.exported(config), False, "parameter")
    declare(model.graph.output, spec.outputs(config), tf_layout, "output")
    onnx.save(model, str(path))
    opset = next(item.version for item in model.opset_import if item.domain in DOMAINS)
    facts = {
        "nodes": str(len(model.graph.node)),
        "opset": str(opset),
        "ir_version": str(model.ir_version),
        "free axes": ", ".join(free_axes(spec.inputs(config))),
    }
    return facts | ({"recurrence": how} if (how := recurrence(model.graph)) else {})


def free_axes(specs: Iterable[TensorSpec]) -> list[str]:
    """The names of dynamic axes, each once."""
    return list(
        dict.fromkeys(size for item in specs for size in item.shape if isinstance(size, str))
    )


def recurrence(graph: onnx.GraphProto) -> str:
    """What repeats itself in a graph and how it came there, as ``3 LSTM (translated), 1 Scan``.

    Translated are the layers that stand for themselves in the definition, which no exporter knows.
    """
    counts = Counter(node.op_type for node in graph.node)
    parts = [f"{counts[op]} {op} (translated)" for op in ("LSTM", "RNN") if counts[op]]
    parts += [f"{counts[op]} {op}" for op in ("Loop", "Scan") if counts[op]]
    return ", ".join(parts)


def drop_unused_domains(model: onnx.ModelProto) -> None:
    """Forget imported operator sets that no node uses; runtimes may not know them."""
    used = [item for item in model.opset_import if item.domain in DOMAINS]
    del model.opset_import[:]
    model.opset_import.extend(used)


def declare(values: Any, specs: tuple[TensorSpec, ...], tf_layout: bool, what: str) -> None:
    """Check that ``values`` declares each of ``specs`` and give dynamic axes their names."""
    by_name = {value.name: value for value in values}
    for item in specs:
        if item.name not in by_name:
            raise ExportFailed(f"the exporter dropped {what} {item.name!r}")
        order = item.to_tf_order if tf_layout else tuple(range(len(item.shape)))
        wanted = [item.shape[axis] for axis in order]
        tensor = by_name[item.name].type.tensor_type
        declared = [axis.dim_value or axis.dim_param or "?" for axis in tensor.shape.dim]
        if len(declared) != len(wanted) or any(
            isinstance(want, int) and got != want
            for want, got in zip(wanted, declared, strict=True)
        ):
            raise ExportFailed(
                f"{what} {item.name!r} is declared {declared}, it should be {wanted}"
            )
        frozen = [
            want
            for want, got in zip(wanted, declared, strict=True)
            if isinstance(want, str) and isinstance(got, int)
        ]
        if frozen:
            raise ExportFailed(f"{what} {item.name!r}: axis {frozen[0]!r} is frozen: {declared}")
        shaped = helper.make_tensor_value_info(item.name, tensor.elem_type, wanted)
        by_name[item.name].CopyFrom(shaped)
