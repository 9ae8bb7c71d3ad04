"""Where ONNX Runtime put the nodes, and whether that is where they were asked to be.

Needs no onnxruntime: it works on what a session said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from xbench.errors import FellBack
from xbench.result import Placement

PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}
DEVICE_OF = {providers[0]: device for device, providers in PROVIDERS.items()}
COMPUTE = {
    "MatMul",
    "Convolution",
    "Recurrent",
    "activation",
    "loss",
    "normalization",
    "pooling",
    "resize",
    "softmax",
}
"""Operator classes and kinds that must run on the device asked for: nobody computes a shape with
them. Others (shapes, indices) ORT may keep on the CPU on purpose; they are counted and named."""


def proven_placement(found: Sequence[tuple[str, str]], asked: str) -> list[Placement]:
    """Nodes per execution provider, from (provider, operator) of every node.

    Raises FellBack when a compute node is not on ``asked``, or nothing is.
    """
    by_ep: dict[str, Counter[str]] = {}
    for ep, op in found:
        by_ep.setdefault(ep, Counter())[op] += 1
    strays = {
        f"{op} on {DEVICE_OF.get(ep, ep)}"
        for ep, ops in by_ep.items()
        for op in ops
        if ep != asked and is_compute(op)
    }
    if strays:
        raise FellBack(f"asked for {asked}, but {', '.join(sorted(strays))}")
    if asked not in by_ep:
        raise FellBack(f"asked for {asked}, but it was given no node")
    return [
        Placement(ep=DEVICE_OF.get(ep, ep), nodes=sum(ops.values()), ops=dict(sorted(ops.items())))
        for ep, ops in sorted(by_ep.items(), key=lambda item: item[0] != asked)
    ]


def is_compute(op: str) -> bool:
    """Whether an ONNX operator is one that must run where it was asked to."""
    # Its tables take 4 ms to make, which is no part of loading a model.
    from xbench import optypes

    kind = optypes.classify(op, "onnx")
    return kind.op_class in COMPUTE or kind.kind in COMPUTE


def cause(log: str) -> str:
    """The line of ONNX Runtime's log that a person can act on."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    for line in lines:
        if found := re.search(r"with error: (.*)", line):
            return found[1]
    errors = [line for line in lines if "[E:onnxruntime" in line or "[W:onnxruntime" in line]
    return errors[0] if errors else "ONNX Runtime gave no reason"
