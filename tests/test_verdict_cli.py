"""Same or not the same, as a person asks it: ``xbench run FILE.onnx`` and ``--against``."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.graphs import FLOAT, INT64, STRING, graph, node, save, value, weights
from xbench import cli
from xbench.jobs import Job
from xbench.judging import Judging
from xbench.runners.ort_precision import to_fp16

BOOL = TensorProto.BOOL
VERDICTS = ("run", "--no-speed", "--ep", "cpu", "--threads", "1")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended: its exit status, what it said on stderr, and its document."""

    code: int
    err: str
    document: dict[str, Any]

    def case(self, model: str) -> dict[str, Any]:
        """The case of a file that was asked for."""
        (found,) = [c for c in self.document["cases"] if c["case"]["model"] == model and c["asked"]]
        return dict(found)

    def pair(self, a: str, *, against: str = "", engine: str = "float64") -> dict[str, Any]:
        """The agreement of file ``a`` with an evaluation of ``against``, by default of itself."""
        cases = {case["key"]: case["case"] for case in self.document["cases"]}
        (found,) = [
            item
            for item in self.document["agreements"]
            if cases[item["a"]]["model"] == a
            and (cases[item["b"]]["model"], cases[item["b"]]["engine"]) == (against or a, engine)
        ]
        return dict(found)

    def pairs(self, a: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The two agreements that every file has: with float64, and without optimisation."""
        bare = self.pair(a, engine="ort")
        (case,) = [c["case"] for c in self.document["cases"] if c["key"] == bare["b"]]
        assert case["options"]["ort-opt"] == "0"
        return self.pair(a), bare


def ask(folder: Path, *arguments: str | Path) -> Done:
    """A command in this process; its workers are processes of their own, as always."""
    result, err = folder / "result.json", io.StringIO()
    result.unlink(missing_ok=True)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setenv("XBENCH_CACHE", str(folder / "cache"))
        patch.setenv("XBENCH_STORE", str(folder / "store.sqlite"))
        line = [*VERDICTS, *map(str, arguments), "--json", str(result)]
        patch.setattr(sys, "argv", ["xbench", *line])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    signal.signal(signal.SIGTERM, before)
    document = json.loads(result.read_bytes()) if result.exists() else {}
    return Done(int(str(ended.value.code)), err.getvalue(), document)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache and one store for all commands here."""
    return tmp_path_factory.mktemp("verdicts")


def npz(folder: Path, name: str, **arrays: Any) -> Path:
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def decided(agreement: Mapping[str, Any]) -> str:
    """What decided an agreement."""
    return str(agreement["evidence"]["decided_by"])


# -- one file ----------------------------------------------------------------------------------

X = value("x", 4, 32)
Y = value("y", 4, 32)
RELU = node("Relu", "x", "y")
MAPS = [
    node("Softmax", "x", "p"),
    node("ZipMap", "p", "z", domain="ai.onnx.ml", classlabels_int64s=list(range(32))),
]
MAP = helper.make_value_info(
    "z",
    helper.make_sequence_type_proto(
        helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    ),
)
SEQUENCE = helper.make_value_info(
    "s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [4, 32]))
)


def dense(path: Path, *, external: bool = False) -> Path:
    """Two layers."""
    return save(
        path,
        [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")],
        [X],
        [value("y", 4, 10)],
        {
            "w": weights("w", 32, 32, gain=0.3),
            "b": weights("b", 32),
            "v": weights("v", 32, 10, gain=0.3),
        },
        external=external,
    )


def no_evaluation(path: Path) -> Path:
    """A convolution, and an operator that only ONNX Runtime has."""
    names = {name: weights(name, 4) for name in ("b", "s", "t", "m")}
    return save(
        path,
        [
            node("Conv", "x c b", "h"),
            node("BatchNormalization", "h s t m variance", "n"),
            node("CropAndResize", "n rois first size", "y", domain="com.microsoft"),
        ],
        [value("x", 1, 3, 8, 8)],
        [value("y", 1, 4, 3, 3)],
        {
            **names,
            "c": weights("c", 4, 3, 3, 3),
            "variance": np.abs(weights("variance", 4)) + 1,
            "rois": np.array([[0.1, 0.1, 0.9, 0.9]], np.float32),
            "first": np.array([0], np.int32),
            "size": np.array([3, 3], np.int32),
        },
    )


def random_normal(path: Path) -> Path:
    noise = helper.make_node("RandomNormal", [], ["n"], name="noise", shape=[4, 32])
    return save(path, [noise, node("Add", "x n", "y")], [X], [Y])


def alone(folder: Path) -> list[Path]:
    """Files that are judged by themselves."""
    folder.mkdir()
    middle = {"begin": np.array([2]), "end": np.array([2])}
    cut = node("Slice", "x begin end", "none")
    names = np.array([f"class {k}" for k in range(32)], object)
    made = [
        dense(folder / "dense.onnx"),
        dense(folder / "external.onnx", external=True),
        no_evaluation(folder / "no_evaluation.onnx"),
        random_normal(folder / "normal.onnx"),
    ]

    def add(
        name: str,
        nodes: Sequence[NodeProto],
        outputs: Sequence[ValueInfoProto],
        constants: Mapping[str, Any] | None = None,
        x: ValueInfoProto = X,
    ) -> None:
        made.append(save(folder / f"{name}.onnx", nodes, [x], outputs, constants))

    add("empty", [cut], [value("none", 0, 32)], middle)
    add("empty_and_more", [cut, RELU], [value("none", 0, 32), Y], middle)
    add("scalar", [node("ReduceMean", "x", "y", keepdims=0)], [value("y")])
    add("map", MAPS, [value("p", 4, 32), MAP])
    add("only_map", MAPS, [MAP])
    add("sequence", [RELU, node("SequenceConstruct", "x y", "s")], [Y, SEQUENCE])
    add(
        "text",
        [RELU, node("ArgMax", "x", "i", axis=1, keepdims=0), node("Gather", "names i", "label")],
        [Y, value("label", 4, kind=STRING)],
        {"names": names},
    )
    add(
        "dropout",
        [node("Dropout", "x half training", "y")],
        [Y],
        {"half": np.float32(0.5), "training": np.array(True)},
    )
    add(
        "matmul",
        [node("MatMul", "x w", "y")],
        [value("y", 4, 64)],
        {"w": weights("w", 4096, 64, gain=0.03)},
        value("x", 4, 4096),
    )
    add(
        "sum",
        [node("ReduceSum", "x axis", "y", keepdims=0)],
        [value("y", 1)],
        {"axis": np.array([1])},
        value("x", 1, 1_000_000),
    )
    add("tanh", [node("Tanh", "x", "y")], [value("y", 256, 256)], None, value("x", 256, 256))
    return made


@pytest.fixture(scope="module")
def one_by_one(folder: Path) -> Done:
    return ask(folder, *alone(folder / "alone"))


@pytest.mark.parametrize(
    "name", ["dense", "external", "scalar", "tanh", "matmul", "sum", "empty_and_more"]
)
def test_a_file_agrees_with_float64_and_without_optimisation(one_by_one: Done, name: str) -> None:
    for agreement in one_by_one.pairs(name):
        assert agreement["verdict"] == "agree", agreement["sentence"]
        assert agreement["evidence"]["error_rms"] <= agreement["tolerance"]


def test_external_data_is_part_of_a_file(one_by_one: Done) -> None:
    beside = one_by_one.case("external"), one_by_one.case("dense")
    errors = [one_by_one.pair(name)["evidence"]["error_rms"] for name in ("external", "dense")]
    assert errors[0] == errors[1] > 0
    assert beside[0]["case"]["graph"] != beside[1]["case"]["graph"]


@pytest.mark.parametrize(
    ("name", "terms"), [("matmul", 4096), ("sum", 1_000_000), ("scalar", 128), ("tanh", 1)]
)
def test_a_single_operator_has_the_bound_of_its_sum(
    one_by_one: Done, name: str, terms: int
) -> None:
    evidence = one_by_one.pair(name)["evidence"]
    assert evidence["terms"] == terms
    assert decided(one_by_one.pair(name)).startswith(
        "rounding of a sum" if terms > 1 else "rounding of the result"
    )


def test_no_elements_are_nothing_to_compare(one_by_one: Done) -> None:
    for agreement in one_by_one.pairs("empty"):
        assert agreement["verdict"] == "inconclusive"
        assert "no elements to compare" in agreement["sentence"]
    several = one_by_one.pair("empty_and_more")
    assert [tensor["elements"] for tensor in several["tensors"]] == [0, 128]


@pytest.mark.parametrize(
    ("name", "output", "kind"),
    [("map", "z", ""), ("sequence", "s", "sequence"), ("text", "label", "string")],
)
def test_an_output_that_is_no_array_is_named_and_the_others_compared(
    one_by_one: Done, name: str, output: str, kind: str
) -> None:
    _, bare = one_by_one.pairs(name)
    assert bare["verdict"] == "agree", bare["sentence"]
    assert f"output {output!r} is unsupported: it is of type {kind}" in bare["sentence"]
    (tensor,) = bare["tensors"]
    assert tensor["name"] in ("outputs/y", "outputs/p")


@pytest.mark.parametrize("name", ["map", "sequence", "text"])
def test_the_arrays_beside_an_output_that_is_none_are_held_against_float64(
    one_by_one: Done, name: str
) -> None:
    agreement = one_by_one.pair(name)
    assert agreement["verdict"] == "agree", agreement["sentence"]
    assert agreement["evidence"]["error_rms"] is not None


def test_a_file_without_an_output_that_can_be_compared_is_unsupported(one_by_one: Done) -> None:
    case = one_by_one.case("only_map")
    assert case["status"] == "unsupported"
    assert "output 'z' is unsupported" in case["reason"]
    assert "there is no other" in case["reason"]
    assert one_by_one.code == 3
    assert one_by_one.document["exit_reasons"] == ["unsupported: infer ort(only_map) cpu"]


@pytest.mark.parametrize(("name", "node_"), [("normal", "RandomNormal 'noise'"),
                                             ("dropout", "Dropout 'Dropout_y'")])  # fmt: skip
def test_a_random_node_is_named_and_nothing_claimed(
    one_by_one: Done, name: str, node_: str
) -> None:
    exact, bare = one_by_one.pairs(name)
    for agreement in (exact, bare):
        assert agreement["verdict"] == "inconclusive"
        assert node_ in agreement["sentence"]
    assert "differs from itself in a second run" in bare["sentence"]
    assert bare["evidence"]["self_rms"] > 0.1


def test_without_a_reference_the_reason_is_said(one_by_one: Done) -> None:
    exact, bare = one_by_one.pairs("no_evaluation")
    assert (exact["verdict"], bare["verdict"]) == ("inconclusive", "inconclusive")
    for agreement in (exact, bare):
        assert "nothing evaluates CropAndResize of domain com.microsoft" in agreement["sentence"]
    (metrics,) = bare["tensors"]
    assert 0 < metrics["scaled"] < 1e-5, "optimisation folds the normalisation"


def test_an_option_that_makes_a_result_wrong_is_found_and_the_operator_named(folder: Path) -> None:
    path = save(
        folder / "gelu.onnx",
        [
            node("MatMul", "x w", "h"),
            node("Div", "h root", "d"),
            node("Erf", "d", "e"),
            node("Add", "e one", "p"),
            node("Mul", "h p", "m"),
            node("Mul", "m half", "g"),
            node("MatMul", "g v", "y"),
        ],
        [X],
        [value("y", 4, 10)],
        {
            "w": weights("w", 32, 32, gain=0.6),
            "v": weights("v", 32, 10, gain=0.4),
            "root": np.float32(2**0.5),
            "one": np.float32(1),
            "half": np.float32(0.5),
        },
    )
    done = ask(folder, path, "--session-option", "optimization.enable_gelu_approximation=1")
    assert done.code == 4
    for agreement in done.pairs("gelu"):
        assert agreement["verdict"] == "disagree"
        assert "the operator at fault is FastGelu" in agreement["sentence"]
        assert decided(agreement) == "operator by operator"


# -- two files ---------------------------------------------------------------------------------

IMAGE = (4, 3, 8, 8)
BIAS = weights("cb", 6)
OUTPUTS = {
    "features": value("features", 4, 6, 6, 6),
    "small": value("small", 4, 6, 3, 3),
    "logits": value("logits", 4, 10),
    "scores": value("scores", 4, 10),
    "label": value("label", 4, kind=INT64),
    "sure": value("sure", 4, 10, kind=BOOL),
}


def network(
    path: Path,
    *more: NodeProto,
    bias: float = 1.0,
    choose: str = "ArgMax",
    outputs: Mapping[str, ValueInfoProto] = OUTPUTS,
) -> Path:
    """A small network of images with six outputs; ``more`` are nodes at its end."""
    nodes = [
        node("Conv", "x cw cb", "c"),
        node("Relu", "c", "features"),
        node("MaxPool", "features", "small", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "features", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f lw lb", "logits"),
        node("MatMul", "f sw", "s"),
        node("Tanh", "s", "scores"),
        node(choose, "logits", "label", axis=1, keepdims=0),
        node("Greater", "scores zero", "sure"),
        *more,
    ]
    return save(
        path,
        nodes,
        [value("x", *IMAGE)],
        list(outputs.values()),
        {
            "cw": weights("cw", 6, 3, 3, 3, gain=0.4),
            "cb": (BIAS.astype(np.float64) * bias).astype(np.float32),
            "lw": weights("lw", 6, 10, gain=0.6),
            "lb": weights("lb", 10),
            "sw": weights("sw", 6, 10, gain=0.6),
            "zero": np.float32(0.0),
        },
    )


def renamed(old: str, *new: ValueInfoProto) -> dict[str, ValueInfoProto]:
    """The outputs, one of which is replaced or left out."""
    found: dict[str, ValueInfoProto] = {}
    for name, info in OUTPUTS.items():
        found |= {item.name: item for item in new} if name == old else {name: info}
    return found


def exchanged(base: Path, path: Path, names: Mapping[str, str]) -> Path:
    """The same network with the names of two tensors exchanged."""
    model = onnx.load(base)
    for part in model.graph.node:
        for words in (part.input, part.output):
            words[:] = [names.get(word, word) for word in words]
    onnx.save(model, path)
    return path


def nearly(base: Path, path: Path) -> Path:
    """The same network with a bias in double that is off by 1e-9 before it is rounded."""
    model = onnx.load(base)
    (bias,) = [item for item in model.graph.initializer if item.name == "cb"]
    bias.CopyFrom(numpy_helper.from_array(BIAS.astype(np.float64) * (1 + 1e-9), "cb64"))
    model.graph.node.insert(0, node("Cast", "cb64", "cb", to=FLOAT))
    onnx.save(model, path)
    return path


def quantised(base: Path, folder: Path) -> list[Path]:
    """The network in int8, and once more with the scale of its weights 20 times wrong."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        """Three batches to find ranges with."""

        def __init__(self) -> None:
            self.left = [{"x": weights("calibration", *IMAGE, seed=k)} for k in range(3)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    good, wrong = folder / "int8.onnx", folder / "int8_wrong.onnx"
    quantize_static(
        str(base),
        str(good),
        Batches(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(good)
    (scale,) = [item for item in model.graph.initializer if item.name == "cw_scale"]
    scale.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(20), scale.name)
    )
    onnx.save(model, wrong)
    return [good, wrong]


def variants(base: Path, folder: Path) -> Iterator[Path]:
    """Other files of the same inputs."""
    yield network(folder / "bias.onnx", bias=1.01)
    yield nearly(base, folder / "nearly.onnx")
    to_fp16(base, folder / "half.onnx")
    yield folder / "half.onnx"
    yield from quantised(base, folder)
    yield network(folder / "missing.onnx", outputs=renamed("scores"))
    more = {"s": value("s", 4, 10), **dict(reversed(OUTPUTS.items()))}
    yield network(folder / "more.onnx", outputs=more)
    yield network(
        folder / "position.onnx",
        node("Identity", "scores", "probabilities"),
        outputs=renamed("scores", value("probabilities", 4, 10)),
    )
    yield network(
        folder / "nhwc.onnx",
        node("Transpose", "small", "small_t", perm=[0, 2, 3, 1]),
        outputs=renamed("small", value("small_t", 4, 3, 3, 6)),
    )
    yield network(
        folder / "nhwc_cube.onnx",
        node("Transpose", "features", "features_t", perm=[0, 2, 3, 1]),
        outputs=renamed("features", value("features_t", 4, 6, 6, 6)),
    )
    yield exchanged(base, folder / "swapped.onnx", {"logits": "scores", "scores": "logits"})
    yield network(folder / "least.onnx", choose="ArgMin")
    yield network(
        folder / "unsure.onnx",
        node("Not", "sure", "unsure"),
        outputs=renamed("sure", value("unsure", 4, 10, kind=BOOL)),
    )


@pytest.fixture(scope="module")
def against(folder: Path) -> Done:
    inside = folder / "two"
    inside.mkdir()
    base = network(inside / "base.onnx")
    return ask(folder, *variants(base, inside), "--against", base)


def held(done: Done, name: str) -> dict[str, Any]:
    """The agreement of a file with the one that was named against it."""
    return done.pair(name, against="base")


@pytest.mark.parametrize("name", ["nearly", "half", "int8", "more", "position"])
def test_another_file_of_the_same_function_agrees(against: Done, name: str) -> None:
    agreement = held(against, name)
    assert agreement["verdict"] == "agree", agreement["sentence"]
    assert len(agreement["tensors"]) == len(OUTPUTS)


@pytest.mark.parametrize(
    "name",
    ["bias", "int8_wrong", "missing", "nhwc", "nhwc_cube", "swapped", "least", "unsure"],
)
def test_another_function_disagrees(against: Done, name: str) -> None:
    agreement = held(against, name)
    assert agreement["verdict"] == "disagree", agreement["sentence"]
    assert any(name in reason for reason in against.document["exit_reasons"])
    # By itself every one of these files is right.
    assert [item["verdict"] for item in against.pairs(name)] == ["agree", "agree"]
    assert against.code == 4


@pytest.mark.parametrize("name", ["bias", "swapped", "least"])
def test_a_graph_that_is_another_function_is_at_fault(against: Done, name: str) -> None:
    assert "its graph" in decided(held(against, name))


def test_how_far_off_a_scaled_bias_is_is_shown(against: Done) -> None:
    evidence = held(against, "bias")["evidence"]
    assert evidence["graph_rms"] == pytest.approx(evidence["error_rms"], rel=1e-3)


def test_what_half_precision_costs_stands_beside_what_it_lost(against: Done) -> None:
    agreement = held(against, "half")
    for words in (
        "rounding every tensor to float16 alone costs",
        "SNR ",
        "top-1 the same in 100 % of rows",
        "ONNX Runtime computed its float16 in float32 here",
    ):
        assert words in agreement["sentence"]
    assert agreement["evidence"]["narrow_rms"] > 0


def test_what_eight_bits_cost_stands_beside_what_they_lost(against: Done) -> None:
    agreement = held(against, "int8")
    assert "rounding every tensor to int8 alone costs" in agreement["sentence"]
    assert "SNR " in agreement["sentence"]
    assert agreement["evidence"]["narrow_rms"] > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "ort(missing) cpu has no outputs/scores, which float64(base) cpu has"),
        ("more", "outputs/s of ort(more) cpu has no partner in float64(base) cpu"),
        ("position", "outputs/probabilities of ort(position) cpu is held against outputs/scores of "
                     "float64(base) cpu, by position"),
        ("swapped", "are swapped"),
        ("nhwc", "is NHWC where float64(base) cpu is NCHW"),
        ("nhwc", "outputs/small_t of ort(nhwc) cpu is held against outputs/small"),
        ("nhwc_cube", "is NHWC where float64(base) cpu is NCHW"),
    ],
)  # fmt: skip
def test_what_a_person_can_act_on_is_in_the_sentence(against: Done, name: str, words: str) -> None:
    assert words in held(against, name)["sentence"]


def test_integers_and_booleans_are_exact(against: Done) -> None:
    assert "4 of 4 differ, and integers are exact" in held(against, "least")["sentence"]
    assert "40 of 40 differ, and integers are exact" in held(against, "unsure")["sentence"]
    by_name = {tensor["name"]: tensor for tensor in held(against, "more")["tensors"]}
    for name in ("label", "sure"):
        assert by_name[f"outputs/{name}"]["bitwise_equal"]


# -- float16 that overflows ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def overflowing(folder: Path) -> Done:
    """A product that leaves the range of float16, and comes back into it."""
    inside = folder / "overflow"
    inside.mkdir()
    for name, gain in (("wide", 1.0), ("other", 1.3)):
        base = save(
            inside / f"{name}.onnx",
            [node("MatMul", "x w", "h"), node("Mul", "h large", "huge"),
             node("Mul", "huge little", "y")],
            [value("x", 4, 8)],
            [value("y", 4, 6)],
            {"w": weights("w", 8, 6, gain=gain), "large": np.float32(60000),
             "little": np.float32(1e-4)},
        )  # fmt: skip
        to_fp16(base, inside / f"{name}16.onnx")
    return ask(
        folder,
        inside / "wide16.onnx",
        inside / "other16.onnx",
        "--against",
        inside / "wide.onnx",
        "--inputs",
        npz(inside, "x", x=weights("x", 4, 8, gain=4.0)),
    )


def test_the_first_tensor_beyond_float16_is_named(overflowing: Done) -> None:
    agreement = overflowing.pair("wide16")
    assert agreement["verdict"] == "agree"
    assert "huge reaches " in agreement["sentence"]
    assert "beyond 65504, the largest of float16" in agreement["sentence"]
    assert "overflow beyond 65,504 was not exercised" in agreement["sentence"]


def test_the_first_tensor_beyond_float16_is_named_against_the_original(overflowing: Done) -> None:
    agreement = overflowing.pair("wide16", against="wide")
    assert agreement["verdict"] == "agree"
    assert "huge reaches " in agreement["sentence"]


def test_an_overflow_excuses_no_other_function(overflowing: Done) -> None:
    agreement = overflowing.pair("other16", against="wide")
    assert agreement["verdict"] == "disagree", agreement["sentence"]


# -- choices -------------------------------------------------------------------------------------

ROWS, WIDTH, CLASSES = 64, 64, 12


def near_tie(*, exact: bool = False) -> Any:
    """Columns of which two, the largest, have the same weights in opposite order.

    Their products with equal numbers are the same sum; but for one ULP of one small weight, unless
    ``exact``.
    """
    found = weights("columns", WIDTH, CLASSES)
    found[:, 3] = np.abs(found[:, 3])
    found[:, 7] = found[::-1, 3]
    if not exact:
        small = np.float32(1e-3)
        found[0, 3], found[-1, 7] = small, np.nextafter(small, np.float32(1))
    return found


EQUAL = np.repeat(np.abs(weights("rows", ROWS, 1)) + np.float32(0.1), WIDTH, axis=1)
"""In each row one number, again and again."""


def choosing(path: Path, columns: Any, *, shuffled: bool = False) -> Path:
    """Class and two best of a product, whose terms come in another order where ``shuffled``."""
    product = [node("MatMul", "x w", "logits")]
    if shuffled:
        product = [
            node("Gather", "x order", "xs", axis=1),
            node("Gather", "w order", "ws", axis=0),
            node("MatMul", "xs ws", "logits"),
        ]
    return save(
        path,
        [
            *product,
            node("ArgMax", "logits", "label", axis=1, keepdims=0),
            node("TopK", "logits two", "best places", axis=1),
        ],
        [value("x", ROWS, WIDTH)],
        [
            value("logits", ROWS, CLASSES),
            value("label", ROWS, kind=INT64),
            value("best", ROWS, 2),
            value("places", ROWS, 2, kind=INT64),
        ],
        {"w": columns, "two": np.array([2]), "order": np.argsort(weights("order", WIDTH))},
    )


@pytest.fixture(scope="module")
def choices(folder: Path) -> Done:
    inside = folder / "choices"
    inside.mkdir()
    wrong = near_tie()
    wrong[:, 5] = wrong[:, 7] * np.float32(1.01)
    return ask(
        folder,
        choosing(inside / "shuffled.onnx", near_tie(), shuffled=True),
        choosing(inside / "wrong.onnx", wrong),
        "--against",
        choosing(inside / "base.onnx", near_tie()),
        "--inputs",
        npz(inside, "equal", x=EQUAL),
    )


def test_an_index_between_values_closer_than_their_error_is_a_tie(choices: Done) -> None:
    for agreement in (held(choices, "shuffled"), *choices.pairs("shuffled")):
        assert agreement["verdict"] == "agree", agreement["sentence"]
        assert agreement["evidence"]["ties"] > 0
        assert "ties" in agreement["sentence"]


def test_an_index_of_another_value_is_no_tie(choices: Done) -> None:
    agreement = held(choices, "wrong")
    assert agreement["verdict"] == "disagree", agreement["sentence"]
    assert choices.pair("wrong")["verdict"] == "agree"
    assert choices.code == 4


def test_values_that_are_equal_in_float64_too_are_a_tie(folder: Path) -> None:
    inside = folder / "equal"
    inside.mkdir()
    done = ask(
        folder,
        choosing(inside / "shuffled.onnx", near_tie(exact=True), shuffled=True),
        "--against",
        choosing(inside / "base.onnx", near_tie(exact=True)),
        "--inputs",
        npz(inside, "equal", x=EQUAL),
    )
    agreement = held(done, "shuffled")
    assert agreement["verdict"] != "disagree", agreement["sentence"]


# -- decoding ------------------------------------------------------------------------------------

STEPS, TOKENS = 6, 8
START = np.arange(TOKENS)


def greedy(path: Path, columns: Any, *, shuffled: bool = False, gain: float = 1.0) -> Path:
    """A loop that feeds back what it chose: tokens, and the logits of every step times ``gain``."""
    table = np.repeat(np.abs(weights("table", CLASSES, 1)) + np.float32(0.1), WIDTH, axis=1)
    bias = weights("bias", CLASSES, CLASSES, gain=0.05)
    bias[:, 7] = bias[:, 3]
    step = [node("Gather", "table token", "e", axis=0), node("MatMul", "e w", "m")]
    if shuffled:
        step = [
            node("Gather", "table token", "e", axis=0),
            node("Gather", "e order", "es", axis=1),
            node("Gather", "w order", "ws", axis=0),
            node("MatMul", "es ws", "m"),
        ]
    body = graph(
        [
            *step,
            node("Gather", "bias token", "b", axis=0),
            node("Add", "m b", "l"),
            node("ArgMax", "l", "next", axis=1, keepdims=0),
            node("Identity", "next", "chosen"),
            node("Identity", "more", "again"),
        ],
        [value("i", kind=INT64), value("more", kind=BOOL), value("token", TOKENS, kind=INT64)],
        [
            value("again", kind=BOOL),
            value("next", TOKENS, kind=INT64),
            value("chosen", TOKENS, kind=INT64),
            value("l", TOKENS, CLASSES),
        ],
        name="body",
    )
    return save(
        path,
        [
            node("Loop", "steps yes start", "last tokens raw", body=body),
            node("Mul", "raw gain", "logits"),
        ],
        [value("start", TOKENS, kind=INT64)],
        [
            value("tokens", STEPS, TOKENS, kind=INT64),
            value("logits", STEPS, TOKENS, CLASSES),
        ],
        {
            "table": table,
            "w": columns,
            "bias": bias,
            "order": np.argsort(weights("order", WIDTH)),
            "steps": np.int64(STEPS),
            "yes": np.array(True),
            "gain": np.float32(gain),
        },
    )


@pytest.fixture(scope="module")
def decoding(folder: Path) -> Done:
    inside = folder / "decoding"
    inside.mkdir()
    wrong = near_tie()
    wrong[:, 5] = wrong[:, 7] * np.float32(1.5)
    return ask(
        folder,
        greedy(inside / "shuffled.onnx", near_tie(), shuffled=True),
        greedy(inside / "wrong.onnx", wrong),
        greedy(inside / "louder.onnx", near_tie(), gain=1.05),
        "--against",
        greedy(inside / "base.onnx", near_tie()),
        "--inputs",
        npz(inside, "start", start=START),
    )


def test_tokens_that_flip_at_a_near_tie_agree(decoding: Done) -> None:
    for agreement in (held(decoding, "shuffled"), *decoding.pairs("shuffled")):
        assert agreement["verdict"] == "agree", agreement["sentence"]
    assert held(decoding, "shuffled")["evidence"]["ties"] > 0
    # Under the same tokens, what is left of the difference is rounding.
    assert held(decoding, "shuffled")["evidence"]["error_rms"] < 1e-5


def test_logits_under_forced_tokens_are_not_excused_by_tokens_that_flip(decoding: Done) -> None:
    assert held(decoding, "shuffled")["tolerance"] < 1e-2


def test_float64_is_not_called_the_less_accurate_side(decoding: Done) -> None:
    for agreement in (held(decoding, "shuffled"), decoding.pair("shuffled")):
        assert "is the less accurate side" not in agreement["sentence"]


@pytest.mark.parametrize("name", ["wrong", "louder"])
def test_a_wrong_decode_disagrees(decoding: Done, name: str) -> None:
    agreement = held(decoding, name)
    assert agreement["verdict"] == "disagree", agreement["sentence"]
    assert decoding.pair(name)["verdict"] == "agree"


# -- inputs that are no numbers, and none at all -------------------------------------------------

FREE = value("x", "n", 8)
GEMM = {"w": weights("w", 8, 5), "b": weights("b", 5), "zero": np.float32(0)}


@pytest.fixture(scope="module")
def masked(folder: Path) -> Done:
    """A file, a copy of it and another one, on inputs with NaN and Inf."""
    inside = folder / "masks"
    inside.mkdir()
    outputs = [value("y", "n", 5), value("nan", "n", 8, kind=BOOL)]
    base = save(
        inside / "base.onnx",
        [node("Gemm", "x w b", "y"), node("IsNaN", "x", "nan")],
        [FREE],
        outputs,
        GEMM,
    )
    cleaned = save(
        inside / "cleaned.onnx",
        [
            node("Gemm", "x w b", "g"),
            node("IsNaN", "g", "m"),
            node("Where", "m zero g", "y"),
            node("IsNaN", "x", "nan"),
        ],
        [FREE],
        outputs,
        GEMM,
    )
    copy = inside / "copy.onnx"
    copy.write_bytes(base.read_bytes())
    x = weights("x", 6, 8)
    x[1, 2], x[3, 0], x[4, 5] = np.nan, np.inf, -np.inf
    return ask(folder, copy, cleaned, "--against", base, "--inputs", npz(inside, "x", x=x))


def test_nan_and_inf_in_inputs_are_compared_by_their_places(masked: Done) -> None:
    for agreement in masked.pairs("base"):
        assert agreement["verdict"] == "agree", agreement["sentence"]
        assert "its inputs hold NaN or Inf" in agreement["sentence"]


def test_a_nan_that_was_made_a_number_disagrees_whatever_copies_there_are(masked: Done) -> None:
    agreement = held(masked, "cleaned")
    assert agreement["verdict"] == "disagree"
    assert "NaN masks differ at 5 of 30 elements" in agreement["sentence"]


def test_an_input_of_no_rows(folder: Path) -> None:
    inside = folder / "rows"
    inside.mkdir()
    gemm = node("Gemm", "x w b", "y")
    nothing = save(inside / "nothing.onnx", [gemm], [FREE], [value("y", "n", 5)], GEMM)
    something = save(
        inside / "something.onnx",
        [gemm, node("ReduceSum", "x axis", "t", keepdims=0), node("Gemm", "wide w b", "fixed")],
        [FREE],
        [value("y", "n", 5), value("t", 8), value("fixed", 3, 5)],
        {**GEMM, "axis": np.array([0]), "wide": weights("wide", 3, 8)},
    )
    rows = npz(inside, "none", x=np.zeros((0, 8), np.float32))
    done = ask(folder, nothing, something, "--inputs", rows, "--strict")
    for agreement in done.pairs("nothing"):
        assert agreement["verdict"] == "inconclusive"
        assert "no elements to compare" in agreement["sentence"]
    for agreement in done.pairs("something"):
        assert agreement["verdict"] == "agree", agreement["sentence"]
    # Strict: what is inconclusive fails the run.
    assert done.code == 3
    (reason,) = done.document["exit_reasons"]
    assert reason.startswith("inconclusive: ")
    assert "something" not in reason


# -- tolerances that a person fixed ----------------------------------------------------------------


def test_fixed_tolerances_replace_the_evidence(folder: Path) -> None:
    inside = folder / "tolerances"
    inside.mkdir()
    root = node("Sqrt", "y", "root")
    one = save(inside / "one.onnx", [node("Exp", "x", "y")], [X], [Y])
    two = save(inside / "two.onnx", [node("Exp", "x", "y"), root], [X], [Y, value("root", 4, 32)])
    done = ask(folder, one, two, "--atol", "1e-4,root:0", "--rtol", "0")
    for agreement in done.pairs("one"):
        assert agreement["verdict"] == "agree"
        assert decided(agreement) == "fixed tolerance: absolute 0.0001, relative 0"
    exact, _ = done.pairs("two")
    assert exact["verdict"] == "disagree"
    assert exact["evidence"]["tensor"] == "outputs/root"
    assert decided(exact).startswith("fixed tolerance: absolute 0, relative 0; ")
    assert "outside" in decided(exact)
    assert done.code == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--atol", "y:"), ("--atol", "'y:'", "is not a number")),
        (("--atol", "1e-5,1e-4"), ("--atol", "second tolerance")),
        (("--rtol=-1",), ("--rtol", "0 or more")),
        (("--atol", "z:1e-5"), ("unknown output 'z'", "known: y")),
    ],
)
def test_a_tolerance_of_nothing_is_a_usage_error(
    folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = ask(folder, dense(folder / "usage.onnx"), *arguments)
    assert done.code == 2
    assert not done.document
    (message,) = [line for line in done.err.splitlines() if line.startswith("xbench: ")]
    for word in words:
        assert word in message


# -- float64 that takes too long -------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(folder: Path) -> Done:
    """Float64 has time for one row: nothing but its limit is other than in a true run."""
    make = Judging.job

    def limited(self: Judging, case: Any, **more: Any) -> Job:
        job = make(self, case, **more)
        assert job.inputs is not None
        with np.load(job.inputs) as archive:
            rows = max(len(array) for array in archive.values() if array.ndim)
        late = job.deadline_s is not None and rows > 1
        return make(self, case, **{**more, "deadline_s": 0.0}) if late else job

    inside = folder / "slow"
    inside.mkdir()
    paths = [
        save(
            inside / f"{name}.onnx",
            [node("MatMul", f"{x} w", "h"), node("Relu", "h", "y")],
            [value(x, batch, 8)],
            [value("y", batch, 5)],
            {"w": weights("w", 8, 5)},
        )
        for name, x, batch in (("free", "x", "n"), ("fixed", "z", 3))
    ]
    inputs = npz(inside, "inputs", x=weights("x", 7, 8), z=weights("z", 3, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judging, "job", limited)
        return ask(folder, *paths, "--inputs", inputs)


def test_a_file_that_takes_too_long_is_compared_on_one_row(slow: Done) -> None:
    for agreement in slow.pairs("free"):
        assert agreement["verdict"] == "agree", agreement["sentence"]
        assert [tensor["elements"] for tensor in agreement["tensors"]] == [5]
    (note,) = slow.document["notes"]
    assert note.startswith(
        "free: compared on the first of 7 batch rows: float64 was not done after"
    )


def test_without_a_batch_axis_that_it_takes_too_long_is_said(slow: Done) -> None:
    exact, bare = slow.pairs("fixed")
    assert exact["verdict"] == "inconclusive"
    assert "float64 was not done after 0 s" in exact["sentence"]
    # Two runs of one file that are the same to the bit are the same all the same.
    assert bare["tensors"][0]["elements"] == 15
    assert bare["verdict"] == ("agree" if bare["tensors"][0]["bitwise_equal"] else "inconclusive")


# -- what excuses nobody ---------------------------------------------------------------------------


def masking(path: Path, *, gain: float = 1.0) -> Path:
    """Logits of which a quarter are masked with -1e9."""
    return save(
        path,
        [node("MatMul", "x w", "l"), node("Where", "hidden mask l", "y")],
        [X],
        [value("y", 4, 16)],
        {
            "w": weights("w", 32, 16, gain=0.3) * np.float32(gain),
            "hidden": np.arange(16) >= 12,
            "mask": np.float32(-1e9),
        },
    )


def heads(path: Path, *, gain: float = 1.0) -> Path:
    """A head on what is gathered by the best logit, of which two are alike in float16."""
    columns = np.abs(weights("columns", 32, 8, gain=0.1))
    columns[:, 2] = np.abs(weights("best", 32)) + np.float32(0.5)
    columns[:, 5] = columns[:, 2] * np.float32(1 + 2.0**-20)
    return save(
        path,
        [
            node("Abs", "x", "a"),
            node("MatMul", "a w", "l"),
            node("TopK", "l one", "best places", axis=1),
            node("Gather", "table places", "g", axis=0),
            node("Squeeze", "g one", "e"),
            node("Add", "e x", "h"),
            node("MatMul", "h v", "y"),
        ],
        [X],
        [value("y", 4, 6)],
        {
            "w": columns,
            "table": weights("table", 8, 32),
            "v": weights("v", 32, 6, gain=0.3) * np.float32(gain),
            "one": np.array([1]),
        },
    )


@pytest.fixture(scope="module")
def excuses(folder: Path) -> Done:
    """Wrong weights beside masks, against the original."""
    inside = folder / "excuses"
    inside.mkdir()
    base = masking(inside / "base.onnx")
    return ask(folder, masking(inside / "wrong.onnx", gain=1.001), "--against", base)


def test_wrong_weights_beside_masks_disagree(excuses: Done) -> None:
    agreement = held(excuses, "wrong")
    assert agreement["verdict"] == "disagree", agreement["sentence"]
    assert agreement["tolerance"] < 1e-4
    assert [item["verdict"] for item in excuses.pairs("wrong")] == ["agree", "agree"]
    assert excuses.code == 4


def test_a_choice_that_float16_flips_excuses_no_wrong_head(folder: Path) -> None:
    inside = folder / "halves"
    inside.mkdir()
    base = heads(inside / "base.onnx")
    to_fp16(heads(inside / "other.onnx", gain=1.2), inside / "wrong.onnx")
    agreement = held(ask(folder, inside / "wrong.onnx", "--against", base), "wrong")
    assert agreement["verdict"] != "agree", agreement["sentence"]


def test_whole_numbers_of_floats_near_a_boundary_agree(folder: Path) -> None:
    """One element of 128 is rounded up to 1 in float32, and is less than 1 in float64."""
    path = save(
        folder / "whole.onnx",
        [node("Add", "x little", "s"), node("Cast", "s", "y", to=TensorProto.INT32)],
        [X],
        [value("y", 4, 32, kind=TensorProto.INT32)],
        {"little": np.float32(2.0**-25)},
    )
    x = (np.arange(128) + 0.5).astype(np.float32)
    x[7] = 1 - 2.0**-24
    done = ask(folder, path, "--inputs", npz(folder, "whole", x=x.reshape(4, 32)))
    agreement = done.pair("whole")
    assert agreement["verdict"] == "agree", agreement["sentence"]
    assert decided(agreement) == "roundings near a boundary"
    assert agreement["tensors"][0]["differing"] == 1
    assert done.code == 0


def test_an_input_of_another_name_is_a_usage_error(folder: Path) -> None:
    inside = folder / "names"
    inside.mkdir()
    base = save(inside / "base.onnx", [RELU], [X], [Y])
    other = save(inside / "other.onnx", [node("Relu", "z", "y")], [value("z", 4, 32)], [Y])
    done = ask(folder, other, "--against", base)
    assert done.code == 2
    assert not done.document
    (message,) = [line for line in done.err.splitlines() if line.startswith("xbench: ")]
    assert "other has inputs z" in message
    assert "base has x" in message
