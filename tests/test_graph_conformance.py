"""ONNX's own cases of every operator, through the float64 interpreter.

A case that cannot pass is listed with the reason; a listed one that passes is as much a failure
as an unlisted one that does not.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from xbench.errors import EngineError
from xbench.runners.graph import decode, infer
from xbench.runners.graph.interpreter import Interpreter

CHUNKS = 8
STEPS = {
    TensorProto.FLOAT: 4 * 2.0**-23,
    TensorProto.FLOAT16: 2 * 2.0**-10,
    TensorProto.BFLOAT16: 2 * 2.0**-7,
}
"""What an expected value may be off by itself, of the largest: its steps were rounded as well."""
KNOWN: dict[str, tuple[str, ...]] = {}


@functools.cache
def cases() -> dict[str, Any]:
    """Every case of an operator by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def failure(case: Any) -> str:
    """What is wrong with the interpreter's outputs of a case; empty where nothing is."""
    try:
        interpreter = Interpreter(case.model)
        graph = case.model.graph
        for given, expected in case.data_sets:
            names = [item.name for item in graph.input]
            feeds = dict(zip(names, map(plain, given), strict=False))
            found = interpreter.run(feeds)
            for item, value in zip(graph.output, expected, strict=True):
                element = infer.element_of(item.type)
                wrong = difference(found[item.name], plain(value), element, case)
                if wrong:
                    return f"{item.name}: {wrong}"
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def plain(value: Any) -> Any:
    """A value of a data set; some are written out as the file would hold them."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def difference(found: Any, expected: Any, element: int, case: Any) -> str:
    """How a value is not the expected one; floats to the case's own tolerances."""
    if found is None or expected is None:
        return "" if found is expected is None else f"{type(found)} is not {type(expected)}"
    if isinstance(expected, list):
        if len(found) != len(expected):
            return f"{len(found)} items, not {len(expected)}"
        parts = (
            difference(one, other, element, case)
            for one, other in zip(found, expected, strict=True)
        )
        return next((text for text in parts if text), "")
    wanted = decode.value_of(expected, torch.float64)
    assert isinstance(wanted, torch.Tensor)
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f"{found.dtype}, not {wanted.dtype}"
    # An expected value is of the declared type: so is what it is held against.
    actual = decode.round_to(found, element).numpy()
    finite = wanted[wanted.isfinite()].abs() if wanted.is_floating_point() else wanted[:0]
    largest = float(finite.max()) if finite.numel() else 0.0
    atol = case.atol + STEPS.get(element, 0.0) * largest
    try:
        np.testing.assert_allclose(actual, wanted.numpy(), rtol=case.rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_operators_do_what_onnx_says(chunk: int) -> None:
    torch.set_num_threads(1)
    reasons = {name: reason for reason, names in KNOWN.items() for name in names}
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(cases())[chunk::CHUNKS]:
            said = failure(cases()[name])
            if said and name not in reasons:
                wrong.append(f"{name}: {said}")
            if not said and name in reasons:
                wrong.append(f"{name} passes, but is listed: {reasons[name]}")
    assert not wrong, "\n".join(wrong)


def test_every_case_that_is_listed_is_there() -> None:
    listed = [name for names in KNOWN.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(cases()), f"onnx {onnx.__version__}"
