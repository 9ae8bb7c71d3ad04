"""ONNX's own cases of every operator, through the float64 interpreter.

A case that cannot pass is listed with the reason; a listed one that passes is as much a failure
as an unlisted one that does not.
"""

from __future__ import annotations

import functools
import importlib.util
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
NARROWER = ("TfIdfVectorizer", "Adam")
"""Operators that are evaluated in another precision, as the interpreter then says."""
KNOWN: dict[str, tuple[str, ...]] = {
    "texts have no float64 reference": (
        "test_ai_onnx_ml_label_encoder_string_int",
        "test_ai_onnx_ml_label_encoder_string_int_no_default",
        "test_ai_onnx_ml_label_encoder_tensor_mapping",
        "test_ai_onnx_ml_label_encoder_tensor_value_only_mapping",
        "test_equal_string",
        "test_equal_string_broadcast",
        "test_regex_full_match_basic",
        "test_regex_full_match_email_domain",
        "test_regex_full_match_empty",
        "test_string_concat",
        "test_string_concat_broadcasting",
        "test_string_concat_empty_string",
        "test_string_concat_utf8",
        "test_string_concat_zero_dimensional",
        "test_string_split_basic",
        "test_string_split_consecutive_delimiters",
        "test_string_split_empty_string_delimiter",
        "test_string_split_empty_tensor",
        "test_string_split_maxsplit",
        "test_string_split_no_delimiter",
        "test_strnormalizer_export_monday_casesensintive_lower",
        "test_strnormalizer_export_monday_casesensintive_nochangecase",
        "test_strnormalizer_export_monday_casesensintive_upper",
        "test_strnormalizer_export_monday_empty_output",
        "test_strnormalizer_export_monday_insensintive_upper_twodim",
        "test_strnormalizer_nostopwords_nochangecase",
    ),
    "random: nothing to compare with": (
        "test_bernoulli",
        "test_bernoulli_double",
        "test_bernoulli_double_expanded",
        "test_bernoulli_expanded",
        "test_bernoulli_seed",
        "test_bernoulli_seed_expanded",
        "test_training_dropout",
        "test_training_dropout_default",
        "test_training_dropout_default_mask",
        "test_training_dropout_mask",
    ),
    "a quotient that is a tie in float64 is none in the float32 of the expected value": (
        "test_dynamicquantizelinear",
        "test_dynamicquantizelinear_expanded",
    ),
    "the length that align_corners divides by is a fraction in the expected value; engines and "
    "shapes have whole ones": (
        "test_resize_downsample_scales_cubic_align_corners",
        "test_resize_downsample_scales_linear_align_corners",
    ),
}
"""By reason, the cases that cannot pass."""


@functools.cache
def cases() -> dict[str, Any]:
    """Every case of an operator by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name: case for case in load_model_tests(kind="node")}
    # onnx itself decodes images with Pillow.
    images = importlib.util.find_spec("PIL") is not None
    return {name: case for name, case in found.items() if images or "image_decoder" not in name}


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
            if interpreter.not_in_double and case.model.graph.node[0].op_type not in NARROWER:
                return f"not in double: {interpreter.not_in_double}"
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
    right = wanted.numpy()
    atol = case.atol
    if element in STEPS:
        atol += STEPS[element] * float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    try:
        np.testing.assert_allclose(actual, right, rtol=case.rtol, atol=atol)
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


def test_the_types_of_outputs_are_known_before_anything_runs() -> None:
    wrong = []
    listed = {name for names in KNOWN.values() for name in names}
    for name, case in cases().items():
        if name in listed:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        declared = {item.name: infer.element_of(item.type) for item in model.graph.output}
        for item in model.graph.output:
            item.ClearField("type")
        types = Interpreter(model).types
        for output, element in declared.items():
            if types.get(output, 0) != element:
                wrong.append(f"{name}: {output} is {element}, not {types.get(output, 0)}")
    assert not wrong, "\n".join(wrong)
