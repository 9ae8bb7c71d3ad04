"""Sweeps: which engine gets which of batch, threads, precision, level and concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xbench import plan, registry
from xbench.errors import UsageError
from xbench.files import OnnxFile
from xbench.plan import Request
from xbench.registry import Engine
from xbench.spec import Case, Signature, TensorSpec

REQUEST = Request(
    models=("prednet",), size="tiny", phases=("infer",), engines=("torch", "ort"),
    sources=("torch",),
)  # fmt: skip
FILE = OnnxFile(
    path="some/m.onnx",
    name="m",
    digest="0123456789abcdef" * 4,
    signature=Signature(
        inputs=(TensorSpec("ids", ("n", "t"), "int64"), TensorSpec("scale", ())),
        outputs=(TensorSpec("y", ("n", 4)),),
    ),
)


def asked(**fields: Any) -> Request:
    return msgspec.structs.replace(REQUEST, **fields)


def cases(**fields: Any) -> list[Case]:
    found = plan.cases(asked(**fields))
    assert len({case.key for case in found}) == len(found), "no case comes twice"
    return found


def of_file(**fields: Any) -> list[Case]:
    """Cases of the file alone, with a shape where none is given."""
    common: dict[str, Any] = {
        "models": (), "files": (FILE.path,), "engines": ("ort",), "shapes": {"ids": ((2, 16),)},
    }  # fmt: skip
    request = msgspec.structs.replace(REQUEST, **(common | fields))
    found = plan.cases(request, {FILE.path: FILE})
    assert len({case.key for case in found}) == len(found)
    return found


def values(found: Sequence[Case], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(case, name) for name in names) for case in found]


# -- models --------------------------------------------------------------------------------------


def test_every_batch_has_its_own_shape() -> None:
    found = cases(engines=("torch",), batch=(1, 8, 3))
    assert [case.batch for case in found] == [1, 8, 3]
    assert [case.shape["frames"][0] for case in found] == [1, 8, 3]


def test_threads_and_precisions_are_for_every_engine() -> None:
    found = cases(threads=(1, 4), precisions=("fp32", "fp16"))
    expected = [(1, "fp32"), (1, "fp16"), (4, "fp32"), (4, "fp16")]
    for engine in ("torch", "ort"):
        own = [case for case in found if case.engine == engine]
        assert values(own, "threads", "precision") == expected


def test_levels_and_concurrency_are_for_onnx_runtime_only() -> None:
    found = cases(ort_opt=("0", "99"), concurrency=(1, 4))
    natives = [case for case in found if case.engine == "torch"]
    assert values(natives, "concurrency", "options") == [(1, {})]
    ort = [case for case in found if case.engine == "ort"]
    assert values(ort, "options", "concurrency") == [
        ({"ort-opt": "0"}, 1),
        ({"ort-opt": "0"}, 4),
        ({"ort-opt": "99"}, 1),
        ({"ort-opt": "99"}, 4),
    ]


def test_the_order_is_batch_threads_precision_level_and_concurrency() -> None:
    found = cases(
        engines=("ort",), devices=("cpu", "cuda"), batch=(2, 1), threads=(4, 2),
        precisions=("fp16", "fp32"), ort_opt=("99", "0"), concurrency=(3, 1),
    )  # fmt: skip
    order = [
        (device, batch, threads, precision, {"ort-opt": level}, concurrency)
        for device in ("cpu", "cuda")
        for batch in (2, 1)
        for threads in (4, 2)
        for precision in ("fp16", "fp32")
        for level in ("99", "0")
        for concurrency in (3, 1)
    ]
    names = ("device", "batch", "threads", "precision", "options", "concurrency")
    assert values(found, *names) == order


def test_a_sweep_is_the_same_for_both_phases() -> None:
    found = cases(engines=("torch",), phases=("infer", "train"), batch=(1, 2), threads=(1, 2))
    phases = {phase: [c for c in found if c.phase == phase] for phase in ("infer", "train")}
    assert values(phases["infer"], "batch", "threads") == values(
        phases["train"], "batch", "threads"
    )
    assert len(found) == 8


def test_without_a_sweep_nothing_is_in_the_options() -> None:
    assert (
        values(cases(), "options", "concurrency", "precision", "cycle", "graph")
        == [({}, 1, "fp32", (), "")] * 2
    )


def test_what_is_asked_for_twice_is_measured_once() -> None:
    found = cases(
        engines=("torch", "torch", "ort"), batch=(1, 1), threads=(2, 2), devices=("cpu", "cpu"),
        precisions=("fp32", "fp32"), ort_opt=("0", "0"), concurrency=(2, 2), sources=("tf", "tf"),
    )  # fmt: skip
    assert values(found, "engine", "concurrency") == [("torch", 1), ("ort", 2)]


def test_a_provider_option_is_on_its_own_device_only() -> None:
    options = {"session.a": "1", "provider.cuda.use_tf32": "0", "provider.cpu.arena": "2"}
    found = cases(devices=("cpu", "cuda"), options=options)
    by_place = {(case.engine, case.device): dict(case.options) for case in found}
    assert by_place == {
        ("torch", "cpu"): {},
        ("torch", "cuda"): {},
        ("ort", "cpu"): {"session.a": "1", "provider.arena": "2"},
        ("ort", "cuda"): {"session.a": "1", "provider.use_tf32": "0"},
    }


def test_an_option_of_another_device_makes_no_other_case() -> None:
    both: dict[str, Any] = {"engines": ("ort",), "devices": ("cpu", "cuda")}
    plain, _ = cases(**both)
    same, cuda = cases(**both, options={"provider.cuda.use_tf32": "0"})
    assert plain.key == same.key
    assert dict(cuda.options) == {"provider.use_tf32": "0"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"soak_s": 5.0, "rounds": 3}, "leave --rounds out"),
        ({"soak_s": 5.0, "budget_s": 3.0, "ci_width": 0.01}, "leave --budget, --ci-width out"),
        ({"iterations": 5, "budget_s": 3.0}, "--iterations says how many samples"),
        ({"speed": False, "rounds": 3}, "--no-speed measures nothing: leave --rounds out"),
        ({"speed": False, "soak_s": 5.0}, "--no-speed measures nothing: leave --soak out"),
        ({"options": {"provider.cuda.use_tf32": "0"}}, "--provider-option for cuda"),
        ({"engines": ("torch",), "ort_opt": ("0",)}, "--ort-opt: none of torch runs ONNX"),
        ({"engines": ("torch",), "options": {"session.a": "1"}}, "none of torch runs ONNX"),
        ({"engines": ("torch",), "concurrency": (1, 4)}, "--concurrency: none of torch"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        cases(**fields)
    assert words in str(caught.value)


def test_options_stand_beside_the_level() -> None:
    (case,) = cases(engines=("ort",), ort_opt=("1",), options={"session.a": "b"})
    assert case.options == {"ort-opt": "1", "session.a": "b"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precisions": ("fp32", "fp64")}, "unknown precision 'fp64'"),
        ({"precisions": ("fp61",)}, "did you mean 'fp16'"),
        ({"ort_opt": ("3",)}, "unknown optimisation level '3'"),
        ({"concurrency": (1, 0)}, "--concurrency must be above zero, not 0"),
        ({"iterations": 0}, "--iterations must be above zero, not 0"),
        ({"ci_width": 0.0}, "--ci-width must be above zero, not 0"),
        ({"soak_s": -1.0}, "--soak must be above zero, not -1"),
        ({"soak_s": float("inf")}, "--soak must be finite"),
        ({"options": {"provider.gpu.a": "1"}}, "unknown EP of --provider-option 'gpu'"),
        ({"shapes": {"x": ((1,),)}}, "--shape and --inputs are for ONNX files"),
        ({"inputs": "x.npz"}, "--shape and --inputs are for ONNX files"),
        ({"against": "x.onnx"}, "--against x.onnx: it has to be one of the files of the run"),
        (
            {"against": "x.onnx", "files": ("x.onnx",)},
            "--against names the file that others are held against",
        ),
    ],
)
def test_a_bad_sweep_is_one_clear_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.cases(asked(**fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# -- files ---------------------------------------------------------------------------------------


def test_a_file_has_cases_of_the_engines_that_eat_it() -> None:
    (case,) = of_file(engines=("torch", "ort", "tf"), phases=("infer", "train"), seed=4)
    assert (case.model, case.size, case.phase, case.engine) == ("m", "", "infer", "ort")
    assert (case.source, case.loss, case.seed, case.cycle) == ("file", "", 4, ())
    assert case.shape == {"ids": (2, 16), "scale": ()}
    assert case.batch == 2
    assert case.graph == FILE.digest[:12]


def test_a_file_is_known_by_its_content_and_not_by_its_path() -> None:
    moved = msgspec.structs.replace(FILE, path="other/place.onnx")
    other = msgspec.structs.replace(FILE, digest="f" * 64)
    request = asked(models=(), files=(FILE.path,), engines=("ort",), shapes={"ids": ((2, 16),)})
    keys = [plan.cases(request, {FILE.path: file})[0].key for file in (FILE, moved, other)]
    assert keys[0] == keys[1] != keys[2]


def test_a_file_is_swept_as_a_model_is() -> None:
    found = of_file(
        devices=("cpu", "cuda"), threads=(1, 2), precisions=("fp32", "fp16"), ort_opt=("0", "99"),
        concurrency=(1, 2), options={"provider.cuda.a": "1"},
    )  # fmt: skip
    assert len(found) == 2**5
    order = ("device", "threads", "precision", "concurrency")
    assert values(found[:3], *order) == [
        ("cpu", 1, "fp32", 1), ("cpu", 1, "fp32", 2), ("cpu", 1, "fp32", 1),
    ]  # fmt: skip
    assert all(("provider.a" in case.options) == (case.device == "cuda") for case in found)


def test_shapes_in_turn_are_one_case() -> None:
    (case,) = of_file(shapes={"ids": ((1, 16), (1, 64), (8, 128))})
    assert case.shape == {"ids": (1, 16), "scale": ()}
    assert case.cycle == ({"ids": (1, 64), "scale": ()}, {"ids": (8, 128), "scale": ()})
    assert case.batch == 1


def test_models_and_files_in_one_run() -> None:
    request = asked(files=(FILE.path,), shapes={"ids": ((2, 16),)}, threads=(1, 2))
    found = plan.cases(request, {FILE.path: FILE})
    assert values(found, "model", "engine", "threads") == [
        ("prednet", "torch", 1), ("prednet", "torch", 2), ("prednet", "ort", 1),
        ("prednet", "ort", 2), ("m", "ort", 1), ("m", "ort", 2),
    ]  # fmt: skip


def test_an_open_dimension_of_a_file_asks_for_its_shape() -> None:
    with pytest.raises(UsageError, match="--shape ids=1x16"):
        of_file(shapes={})


def test_a_batch_is_for_models() -> None:
    with pytest.raises(UsageError, match="--batch is for models"):
        of_file(batch=(4,))


def test_a_file_cannot_be_trained() -> None:
    """Inference in place of the training that was asked for would be another run."""
    with pytest.raises(UsageError, match="nothing to run"):
        of_file(phases=("train",))


def test_without_an_engine_that_eats_onnx_there_is_nothing_to_run() -> None:
    with pytest.raises(UsageError, match="nothing to run") as caught:
        of_file(engines=("torch", "tf"))
    assert "infer" not in str(caught.value), "torch can infer: what it cannot is run an ONNX file"


@pytest.mark.parametrize(
    ("shapes", "items"),
    [
        ({"x": (8, 3)}, 8),
        ({"s": (), "x": (8, 3), "y": (2, 2)}, 8),
        ({"s": (5,), "x": (2, 3, 4)}, 2),
        ({"s": (5,)}, 1),
        ({}, 1),
    ],
)
def test_batch_items_of_a_file(shapes: dict[str, tuple[int, ...]], items: int) -> None:
    assert plan.items(shapes) == items


# -- loads that exclude each other ---------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{"concurrency": (1, 4)}, {"shapes": {"ids": ((1, 16), (1, 64))}}]
)
def test_a_soak_by_one_thread_is_not_called_something_else(fields: dict[str, Any]) -> None:
    """A soak runs one body: threads or shapes in turn would only be in the name of the case."""
    with pytest.raises(UsageError, match="--soak"):
        of_file(soak_s=10.0, **fields)
    assert of_file(soak_s=10.0)


def test_shapes_in_turn_by_one_thread_are_not_called_concurrent() -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        of_file(concurrency=(4,), shapes={"ids": ((1, 16), (1, 64))})
    assert of_file(concurrency=(4,), shapes={"ids": ((1, 16),)})


# -- what is a model, what is a file -------------------------------------------------------------


def test_words_are_models_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").write_bytes(b"")
    (tmp_path / "prednet").mkdir()
    words = ["prednet", "gone.onnx", "net", "nothing", "./prednet", str(tmp_path / "net"), "net"]
    models, files = plan.split(words)
    assert models == ["prednet", "nothing"], "a model's name is a model whatever stands in a folder"
    assert files == ["gone.onnx", "net", "./prednet", str(tmp_path / "net")]
    assert plan.split([]) == ([], [])
    assert plan.split(["prednet", "prednet", "a.onnx", "a.onnx"]) == (["prednet"], ["a.onnx"])


def test_a_word_that_is_no_path_is_an_unknown_model() -> None:
    assert plan.split(["x" * 300]) == (["x" * 300], [])
    assert plan.split(["a\0b"]) == (["a\0b"], [])


# -- engines -------------------------------------------------------------------------------------


def test_an_optional_engine_is_measured_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "a": Engine(name="a", module="m", native=True),
        "b": Engine(name="b", module="m", optional=True, twin="a"),
        "t": Engine(name="t", module="m", native=True, shipped=False),
        "r": Engine(name="r", module="m", onnx=True, optional=True, reference=True),
    }
    monkeypatch.setattr(registry, "engines", lambda: known)
    assert plan.shipped_engines() == ["a"]
    assert plan.engine_names(None) == ("a",)
    assert plan.engine_names("b") == ("b",)
    assert plan.engine_names("all") == ("a", "b")
    with pytest.raises(UsageError, match="r is what others are held against"):
        plan.engine_names("a,r")
    assert plan.natives(asked(engines=("b",))) == ["a"], "a compiled twin is never the reference"
