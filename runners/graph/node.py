"""What an operator of ONNX is given and gives back: the contract of every table of operators.

A tensor is a ``torch.Tensor``. Floats of every width are held in one dtype, ``Node.dtype``
(float64 for the reference); integers and booleans keep theirs. A sequence is a list of tensors, an
optional that is absent is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Value = Tensor | list[Any] | None


@dataclass(frozen=True, slots=True)
class Node:
    """One node, its attributes decoded.

    ``version`` is the opset of its domain. ``attributes``: ints, floats, texts, lists of them,
    tensors in the interpreter's dtypes, graphs as ``GraphProto``. ``types`` are the element types
    of the inputs as the file declares them (``TensorProto.FLOAT``, 0 where not known): what a
    float really is, since all floats are held alike. ``out_types`` are those of the outputs.
    ``run_graph`` evaluates a subgraph: (graph, its inputs by name) -> its outputs in order.
    """

    op: str
    domain: str = ""
    name: str = ""
    version: int = 18
    attributes: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[int, ...] = ()
    out_types: tuple[int, ...] = ()
    outputs: int = 1
    dtype: torch.dtype = torch.float64
    run_graph: Callable[[Any, Mapping[str, Value]], list[Value]] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or ``default`` where it is not given."""
        return self.attributes.get(name, default)


Operator = Callable[[Node, Sequence[Value]], "Value | tuple[Value, ...]"]
"""Returns the single output, or a tuple of all outputs (more than ``node.outputs`` may be given).
Inputs that are left out are None, or the sequence is shorter."""


class NotInDouble(NotImplementedError):
    """An operator that a table has, but not for these attributes, types or shapes."""


OPERATORS: dict[tuple[str, str], Operator] = {}
"""By domain (empty for ONNX's own) and operator type."""


def operator(*names: str, domain: str = "") -> Callable[[Operator], Operator]:
    """Enter a function into ``OPERATORS`` under each of ``names``."""

    def enter(function: Operator) -> Operator:
        for name in names:
            assert (domain, name) not in OPERATORS, f"{domain}:{name} stands in two tables"
            OPERATORS[domain, name] = function
        return function

    return enter
