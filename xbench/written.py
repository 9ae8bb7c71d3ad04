"""What a run writes down besides its measurements: trivial losses, and text that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xbench import registry
from xbench.inputs import Inputs
from xbench.result import LossTable
from xbench.state import State


def losses(states: Iterable[State], inputs: Inputs) -> list[LossTable]:
    """The trivial predictor's loss on the batches of the training cases, per model and batch."""
    tables: dict[str, LossTable] = {}
    for state in states:
        case = state.case
        key = inputs.key(case)
        if case.phase != "train" or not state.loss or key in tables:
            continue
        part = registry.model_part(case.model, "data")
        # Only a model whose baseline needs a word has one.
        note = getattr(part, "baseline_note", lambda _: "")
        config = registry.config(registry.model(case.model), case.size)
        batches = inputs.of_model(case)
        tables[key] = LossTable(
            model=case.model,
            batch=case.batch,
            loss=case.loss,
            data=printable(batches.description),
            baseline_name=" ".join([part.BASELINE_NAME, note(case.loss)]).strip(),
            baseline=part.baseline(batches.inputs, case.loss, config),
        )
    return list(tables.values())


def printable(text: str) -> str:
    """Text that can be written as UTF-8: file names may hold bytes that are none."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def writable(value: Any) -> Any:
    """Builtins as JSON gives them back: lists for tuples, text that can be written as UTF-8."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    return value
