"""`xbench run FILE.onnx`, from the command line to the document."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.command import Done, here, run

BRIEF = ("--ep", "cpu", "--threads", "1", "--rounds", "2", "--budget", "100ms", "--no-profile")


def chain(path: Path, *, opset: int = 18, ir: int = 9) -> Path:
    """Four products of a dynamic batch of 32 values with fixed matrices."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(32, 32)).astype(np.float32) / 6, f"w{k}")
        for k in range(4)
    ]
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MatMul", [names[k], f"w{k}"], [names[k + 1]], name=f"product{k}")
        for k in range(4)
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 32]) for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir), path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return chain(tmp_path / "chain.onnx")


def asked(done: Done) -> list[dict[str, Any]]:
    """The cases that were asked for, without those that only served a verdict."""
    found: list[dict[str, Any]] = done.json()["cases"]
    return [case for case in found if case["asked"]]


def cases(*arguments: str) -> list[dict[str, Any]]:
    done = run("run", *arguments, *BRIEF, "--json", "-")
    assert done.code == 0, done.err + done.out
    return asked(done)


def refused(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    (message,) = [line for line in done.err.splitlines() if line.startswith("xbench: ")]
    for word in words:
        assert word in message


def test_a_file_is_measured_and_known_by_its_content(file: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "chain.onnx"
    moved.parent.mkdir()
    shutil.copy(file, moved)
    (first,), (second,) = (cases(str(path), "--shape", "x=4x32") for path in (file, moved))
    assert first["key"] == second["key"]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert first["case"]["graph"] == digest[: len(first["case"]["graph"])]
    assert (first["case"]["model"], first["case"]["source"]) == ("chain", "file")
    assert first["case"]["batch"] == 4
    assert first["placement"] == [
        {"ep": "cpu", "nodes": 4, "time_share": None, "ops": {"MatMul": 4}}
    ]
    assert len(first["samples"]) == 2


def test_shapes_in_turn_show_first_visits_apart(file: Path) -> None:
    (case,) = cases(str(file), "--shape", "x=1x32,64x32")
    assert case["case"]["shape"] == {"x": [1, 32]}
    assert case["case"]["cycle"] == [{"x": [64, 32]}]
    assert [visit["shape"]["x"] for visit in case["visits"]] == [[1, 32], [64, 32]] * 2
    for visit in case["visits"]:
        assert visit["first_s"] > 0
        assert len(visit["samples"]["values_s"]) >= 1
    one, other = (visit["samples"]["values_s"] for visit in case["visits"][:2])
    assert case["samples"][0]["values_s"] == [a + b for a, b in zip(one, other, strict=True)]


def test_levels_and_threads_that_call_are_cases_that_agree(file: Path) -> None:
    done = run("run", str(file), "--shape", "x=8x32", "--ort-opt", "0,99", "--concurrency", "1,2",
               *BRIEF, "--json", "-")  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    measured = asked(done)
    seen = {c["key"]: (c["case"]["options"]["ort-opt"], c["case"]["concurrency"]) for c in measured}
    assert list(seen.values()) == [("0", 1), ("0", 2), ("99", 1), ("99", 2)]
    (double,) = (case for case in found["cases"] if not case["asked"])
    assert (double["case"]["precision"], double["status"]) == ("fp64", "ok")
    pairs = {(seen[a["a"]], seen.get(a["b"], "float64")) for a in found["agreements"]}
    # Every one against float64, and what is not the bare graph against that too.
    assert pairs == {(case, "float64") for case in seen.values()} | {
        (case, ("0", 1)) for case in list(seen.values())[1:]
    }
    assert [a["verdict"] for a in found["agreements"]] == ["agree"] * 7
    for case in measured:
        assert case["items_per_s"] > 0


def test_inputs_come_from_a_file(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.ones((3, 32), np.float32))
    (given,) = cases(str(file), "--inputs", str(path))
    assert given["case"]["shape"] == {"x": [3, 32]}
    (drawn,) = cases(str(file), "--shape", "x=3x32")
    assert given["digests"]["inputs"] != drawn["digests"]["inputs"]


def test_a_precision_that_the_cpu_lacks_is_unsupported_and_the_other_told(file: Path) -> None:
    done = run("run", str(file), "--shape", "x=8x32", "--precision", "fp16,bf16", *BRIEF,
               "--json", "-")  # fmt: skip
    assert done.code == 3
    half, brain = asked(done)
    assert (half["status"], half["effective_precision"]) == ("ok", "fp32")
    assert brain["status"] == "unsupported"
    assert "bfloat16" in brain["reason"]


def test_a_dynamic_dimension_that_is_not_bound_names_input_and_flag(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(capfd, "run", str(file), *BRIEF)
    refused(done, 2, "'x'", "[batch, 32]", "--shape x=1x32")


def test_a_shape_that_does_not_fit_is_refused(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(here(capfd, "run", str(file), "--shape", "x=1x31", *BRIEF), 2, "x", "31", "32")
    refused(here(capfd, "run", str(file), "--shape", "z=1x32", *BRIEF), 2, "unknown input", "'z'")


def test_a_truncated_file_is_refused(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:-500])
    refused(here(capfd, "run", str(file), "--shape", "x=1x32", *BRIEF), 1, "chain.onnx")


@pytest.mark.parametrize(
    ("what", "numbers"), [("IR version", {"ir": 99}), ("opset", {"opset": 99})]
)
def test_what_is_newer_than_the_runtime_names_both_numbers(
    tmp_path: Path, what: str, numbers: dict[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    path = chain(tmp_path / "new.onnx", **numbers)
    done = here(capfd, "run", str(path), "--shape", "x=1x32", *BRIEF)
    refused(done, 1, "99", what)
    (message,) = [line for line in done.err.splitlines() if line.startswith("xbench: ")]
    assert len(set(re.findall(r"\b\d+\b", message)) - {"99"}) >= 1, "the runtime's own limit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "2"), "--batch is for models"),
        (("--shape", "x=1x32,2x32", "--concurrency", "2"), "--concurrency calls one shape"),
        (("--shape", "x=1x32", "--soak", "1s", "--concurrency", "2"), "--soak is one process"),
        (("--shape", "x=1x32", "--phase", "train"), "an ONNX file is for inference"),
        (("--shape", "x=1x32", "--engine", "torch"), "torch cannot run an ONNX file"),
        (("--shape", "x=1x"), "--shape"),
        (("--shape", "x=0x32"), "--shape"),
    ],
)
def test_what_a_file_cannot_do_is_one_message(
    file: Path, options: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(here(capfd, "run", str(file), *options, *BRIEF), 2, message)


def test_an_option_that_does_nothing_is_not_passed_over(file: Path) -> None:
    done = run("run", str(file), "--shape", "x=1x32", "--session-option", "session.no_such=1",
               *BRIEF, "--json", "-")  # fmt: skip
    assert done.code == 3
    (case,) = asked(done)
    assert case["status"] in ("failed", "unsupported")
    assert "no_such" in case["reason"]


def test_a_file_that_has_changed_cannot_be_measured_again(file: Path, tmp_path: Path) -> None:
    results = []
    for k in range(2):
        results.append(str(tmp_path / f"{k}.json"))
        done = run("run", str(file), "--shape", "x=4x32", *BRIEF, "--json", results[-1])
        assert done.code == 0, done.err
        chain(file, opset=17)
    refused(run("compare", *results, "--rerun"), 2, "chain is not what it was")
