"""A user's ONNX file: what is inside, which shapes fit, what is put in, and every way it is bad."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xbench import files
from xbench.errors import DataError, EngineError, Unsupported, UsageError
from xbench.exporters.inspect import inspect
from xbench.files import OnnxFile, batches, parse_shapes, shapes_of
from xbench.launch import Launcher
from xbench.spec import Shape, Signature, TensorSpec

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
value = helper.make_tensor_value_info


def model(
    nodes: Sequence[Any] | None = None,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    *,
    parameters: Sequence[Any] = (),
    ir: int = 9,
    opset: int = 18,
    more: Sequence[tuple[str, int]] = (),
) -> onnx.ModelProto:
    """A model; y = relu(x) of [N, 4] where nothing else is said."""
    graph = helper.make_graph(
        nodes or [helper.make_node("Relu", ["x"], ["y"])],
        "tests",
        [value("x", FLOAT, ["N", 4])] if inputs is None else inputs,
        [value("y", FLOAT, ["N", 4])] if outputs is None else outputs,
        list(parameters),
    )
    sets = [helper.make_opsetid(*item) for item in (("", opset), *more)]
    return helper.make_model(graph, opset_imports=sets, ir_version=ir)


def saved(tmp_path: Path, made: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = tmp_path / name
    path.write_bytes(made.SerializeToString())
    return path


def external(path: Path, location: str, *, length: int = 64) -> Path:
    """A model whose 4x4 parameter is kept in ``location``."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], parameters=[weight])
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher() as made:
        yield made


# -- what is in a file ---------------------------------------------------------------------------


def test_a_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Mul", ["m", "s"], ["y"]),
        helper.make_node("Shape", ["y"], ["z"]),
    ]
    # "w" is an input as well, as files of IR 3 have it.
    inputs = [value("x", FLOAT, ["N", 4]), value("s", FLOAT, []), value("w", FLOAT, [4, 2])]
    outputs = [value("y", FLOAT, [None, 2]), value("z", INT64, [2])]
    path = saved(tmp_path, model(nodes, inputs, outputs, parameters=[weight]))
    signature, facts = inspect(path)
    assert signature.inputs == (
        TensorSpec("x", ("N", 4)),
        TensorSpec("s", ()),
    )
    assert signature.outputs == (
        TensorSpec("y", ("dim0_of_y", 2)),
        TensorSpec("z", (2,), "int64"),
    )
    assert (facts["ir"], facts["opset"], facts["nodes"], facts["parameters"]) == (
        "9", "18", "3", "8",
    )  # fmt: skip
    assert "external" not in facts


def test_no_shape_and_no_rank(tmp_path: Path) -> None:
    path = saved(
        tmp_path, model(inputs=[value("x", FLOAT, None)], outputs=[value("y", FLOAT, None)])
    )
    signature, _ = inspect(path)
    assert signature.inputs[0].shape == signature.outputs[0].shape == ("...",)


def test_an_output_without_a_shape_has_the_one_that_follows(tmp_path: Path) -> None:
    signature, _ = inspect(saved(tmp_path, model(outputs=[value("y", FLOAT, None)])))
    assert signature.outputs == (TensorSpec("y", ("N", 4)),)


def test_a_kernel_that_only_the_cpu_lacks_is_a_fact(tmp_path: Path) -> None:
    half = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("MatMul", ["h", "h"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=FLOAT),
    ]
    inputs, outputs = [value("x", FLOAT, [4, 4])], [value("y", FLOAT, [4, 4])]
    signature, facts = inspect(saved(tmp_path, model(nodes, inputs, outputs)))
    assert signature.outputs == (TensorSpec("y", (4, 4)),)
    assert "MatMul" in facts["cpu"]


def refused(path: Path, error: type[EngineError], *patterns: str) -> None:
    with pytest.raises(error) as caught:
        inspect(path)
    for pattern in patterns:
        assert pattern in str(caught.value)


def test_what_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for content in (b"hello, this is no model", bytes(100), b"\x08\x09", b"PK\x03\x04" + bytes(50)):
        path.write_bytes(content)
        refused(path, EngineError, "m.onnx is not an ONNX model, or was cut off")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    refused(path, EngineError, "git lfs pull")


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    whole = model().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(EngineError, match=r"m\.onnx"):
            inspect(path)


def test_too_new(tmp_path: Path) -> None:
    refused(saved(tmp_path, model(ir=99)), EngineError, "IR version 99", "reads up to 1", "newer")
    refused(
        saved(tmp_path, model(opset=99)), EngineError, "opset 99 of ai.onnx", "supports up to 2"
    )
    other = model(more=[("ai.onnx.ml", 99)])
    refused(saved(tmp_path, other), EngineError, "opset 99 of ai.onnx.ml", "supports up to")


def test_operators_that_the_runtime_lacks(tmp_path: Path) -> None:
    own = [helper.make_node("Mystery", ["x"], ["y"], domain="my.own")]
    known = model(own, more=[("my.own", 1)])
    refused(saved(tmp_path, known), Unsupported, "operator Mystery of domain my.own", "not have")
    refused(saved(tmp_path, model(own)), Unsupported, "domain my.own")
    plain = model([helper.make_node("Mystery", ["x"], ["y"])])
    refused(saved(tmp_path, plain), Unsupported, "operator Mystery,")


def test_external_data(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "far.bin").write_bytes(bytes(64))
    refused(external(inner / "a.onnx", "w.bin"), EngineError, "'w.bin', which is missing")
    refused(external(inner / "b.onnx", "../far.bin"), EngineError, "outside its folder")
    refused(
        external(inner / "c.onnx", str(tmp_path / "far.bin")), EngineError, "outside its folder"
    )
    (inner / "short.bin").write_bytes(bytes(10))
    refused(external(inner / "d.onnx", "short.bin"), EngineError, "ends at byte 10, before byte 64")
    (inner / "w.bin").write_bytes(bytes(64))
    _, facts = inspect(external(inner / "e.onnx", "w.bin"))
    assert (facts["external"], facts["parameters"]) == ("w.bin", "16")


def sequence() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [4]))
    nodes = [helper.make_node("SequenceLength", ["items"], ["y"])]
    return model(nodes, [helper.make_value_info("items", kind)], [value("y", INT64, [])])


def optional() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [4]))
    nodes = [helper.make_node("OptionalHasElement", ["maybe"], ["y"])]
    has = value("y", TensorProto.BOOL, [])
    return model(nodes, [helper.make_value_info("maybe", kind)], [has])


def strings() -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["text"], ["y"])]
    string = TensorProto.STRING
    return model(nodes, [value("text", string, [4])], [value("y", string, [4])])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (sequence, "input 'items' holds sequence: xbench makes"),
        (optional, "input 'maybe' holds optional: xbench makes"),
        (strings, "input 'text' holds string: xbench makes"),
    ],
)
def test_inputs_that_cannot_be_made(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], said: str
) -> None:
    refused(saved(tmp_path, make()), Unsupported, said)


@pytest.mark.parametrize(
    ("op", "wrapped", "kind"),
    [
        ("SequenceConstruct", helper.make_sequence_type_proto, "sequence"),
        ("Optional", helper.make_optional_type_proto, "optional"),
    ],
)
def test_an_output_that_is_no_tensor_refuses_no_file(
    tmp_path: Path, op: str, wrapped: Callable[[Any], Any], kind: str
) -> None:
    """Only inputs have to be made; what is beside such an output is known as ever."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node(op, ["y"], ["all"])]
    made = wrapped(helper.make_tensor_type_proto(FLOAT, ["N", 4]))
    outputs = [helper.make_value_info("all", made), value("y", FLOAT, ["N", 4])]
    signature, _ = inspect(saved(tmp_path, model(nodes, outputs=outputs)))
    held, tensor = signature.outputs
    assert (held.name, held.dtype) == ("all", kind)
    assert tensor == TensorSpec("y", ("N", 4))


# -- files by processes --------------------------------------------------------------------------


def test_missing_folder_and_empty_need_no_process(tmp_path: Path) -> None:
    nobody: Any = None
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name, said in (
        ("none.onnx", "no such file"),
        (".", "is a folder"),
        ("empty.onnx", "empty"),
    ):
        with pytest.raises(DataError, match=said):
            files.inspect([str(tmp_path / name)], nobody)


def test_files_are_known_by_their_content(tmp_path: Path, launcher: Launcher) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, same, other = (tmp_path / name / "m.onnx" for name in ("a", "b", "c"))
    (first.parent / "w.bin").write_bytes(np.eye(4, dtype=np.float32).tobytes())
    external(first, "w.bin")
    shutil.copytree(first.parent, same.parent, dirs_exist_ok=True)
    shutil.copytree(first.parent, other.parent, dirs_exist_ok=True)
    (other.parent / "w.bin").write_bytes(np.ones((4, 4), np.float32).tobytes())
    found = files.inspect([str(path) for path in (first, same, other, first)], launcher)
    assert list(found) == [str(path) for path in (first, same, other)]
    one, two, three = found.values()
    assert one.digest == two.digest != three.digest
    assert one.name == two.name == f"m-{one.digest[:8]}" != three.name
    alone = files.inspect([str(first)], launcher)[str(first)]
    assert (alone.name, alone.digest) == ("m", one.digest)
    assert alone.signature.inputs == (TensorSpec("x", ("N", 4)),)


def test_the_reason_of_the_process_is_the_users(tmp_path: Path, launcher: Launcher) -> None:
    path = saved(tmp_path, model(ir=99))
    with pytest.raises(DataError, match="IR version 99"):
        files.inspect([str(path)], launcher)


def test_a_plain_files_digest_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.digest(path, []) == abc
    assert files.digest(path, ["f"]) != abc


# -- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x=1,3,224,224", ((1, 3, 224, 224),)),
        ("x=16", ((16,),)),
        ("x=1x16", ((1, 16),)),
        ("x=1x16,1x64,8x128", ((1, 16), (1, 64), (8, 128))),
        ("x=2x8,16", ((2, 8), (16,))),
        ("x=", ((),)),
        ("x=scalar", ((),)),
        ("x= 1, 3", ((1, 3),)),
    ],
)
def test_shapes_are_read(text: str, shapes: tuple[Shape, ...]) -> None:
    assert parse_shapes([text]) == {"x": shapes}


def test_names_may_hold_anything() -> None:
    assert parse_shapes(["a=b:0=2", "scope/x.1=3"]) == {"a=b:0": ((2,),), "scope/x.1": ((3,),)}


@pytest.mark.parametrize(
    "text",
    ["x", "=1,2", "x=0", "x=1,0", "x=-1", "x=1,-3", "x=a", "x=1,N", "x=1,,2", "x=1x", "x=1.5",
     "x=1;2", "x=1_000", "x=\u0661", "x=[1,2]", "x=1X2", "x=1e3", "x=9999999999999"],
)  # fmt: skip
def test_bad_shapes_are_named_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes([text])
    assert repr(text) in str(caught.value)
    assert "1,3,224,224" in str(caught.value)


def test_an_input_is_named_once() -> None:
    with pytest.raises(UsageError, match="'x' twice"):
        parse_shapes(["x=1", "x=2"])


def file(*inputs: TensorSpec) -> OnnxFile:
    return OnnxFile(
        path="m.onnx", name="m", digest="0", signature=Signature(inputs=inputs, outputs=())
    )


IDS, MASK = TensorSpec("ids", ("batch", "length"), "int64"), TensorSpec("mask", ("batch", "length"))
IMAGE = TensorSpec("image", (1, 3, 8, 8))
SCALE = TensorSpec("scale", ())


def test_fixed_shapes_need_no_words() -> None:
    assert shapes_of(file(IMAGE, SCALE), {}) == ({"image": (1, 3, 8, 8), "scale": ()},)
    assert shapes_of(file(), {}) == ({},)


def test_one_shape_binds_the_names_of_others() -> None:
    found = shapes_of(file(IDS, MASK, IMAGE), {"ids": ((2, 5), (4, 7))})
    assert found == (
        {"ids": (2, 5), "mask": (2, 5), "image": (1, 3, 8, 8)},
        {"ids": (4, 7), "mask": (4, 7), "image": (1, 3, 8, 8)},
    )


def test_any_rank_takes_what_it_is_given() -> None:
    free, also = TensorSpec("a", ("...",)), TensorSpec("b", ("...",))
    assert shapes_of(file(free), {"a": ((),)}) == ({"a": ()},)
    with pytest.raises(UsageError, match=r"input 'b' .* --shape b=1x16"):
        shapes_of(file(free, also), {"a": ((3,),)})


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({}, r"'ids' of m is declared \[batch, length\].*--shape ids=1x16"),
        ({"ids": ((2, 5),), "mask": ((2, 6),)}, r"'length' is 6 here and 5 in 'ids'"),
        ({"ids": ((2, 5), (2, 6)), "mask": ((2, 5),)}, r"'length' is 5 here and 6 in 'ids'"),
        ({"ids": ((2,),)}, r"'ids'.*it has 2 dimensions"),
        ({"ids": ((1, 1),), "image": ((1, 4, 8, 8),)}, r"'image'.*dimension 1 is fixed at 3"),
        ({"idz": ((1, 1),)}, r"did you mean 'ids'"),
        ({"ids": ((1, 1),) * 2, "mask": ((1, 1),) * 3}, r"ids has 2, mask has 3"),
        ({"ids": ((1, 1),), "scale": ((3,),)}, r"'scale'.*it has 0 dimensions"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[Shape, ...]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shapes_of(file(IDS, MASK, IMAGE, SCALE), shapes)


# -- inputs --------------------------------------------------------------------------------------

DTYPES = ["float16", "float32", "float64", "bool", "int8", "int64", "uint8", "uint32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_drawn_alike_every_time(dtype: str) -> None:
    made = file(TensorSpec("x", ("N",), dtype), TensorSpec("s", (), dtype))
    shapes = shapes_of(made, {"x": ((4096,), (7,))})
    first, second = batches(made, shapes, seed=3)
    again = batches(made, shapes, seed=3)
    x, s = first["x"], first["s"]
    assert x.dtype == s.dtype == np.dtype(dtype)
    assert (x.shape, s.shape, second["x"].shape) == ((4096,), (), (7,))
    assert all(
        np.array_equal(a[n], b[n]) for a, b in zip((first, second), again, strict=True) for n in a
    )
    assert not np.array_equal(x, batches(made, shapes, seed=4)[0]["x"])
    if x.dtype.kind == "f":
        assert -1 <= x.min() < -0.99
        assert 0.99 < x.max() < 1
        assert abs(float(x.astype(np.float64).mean())) < 0.05
        assert len(np.unique(x)) > 1000
    else:
        assert set(x.tolist()) == {0, 1}
        assert 0.45 < x.mean() < 0.55


def test_inputs_have_the_same_bits_everywhere() -> None:
    made = file(TensorSpec("x", (3,)), TensorSpec("k", (8,), "int32"))
    (batch,) = batches(made, shapes_of(made, {}), seed=0)
    assert batch["x"].tobytes().hex() == PINNED_X
    assert batch["k"].tolist() == PINNED_K


PINNED_X, PINNED_K = "04c15a3f9009bfbde03b55bd", [0, 0, 0, 1, 1, 0, 0, 0]


def test_more_than_the_memory_holds_is_refused() -> None:
    made = file(TensorSpec("x", ("N",)))
    with pytest.raises(DataError, match="smaller shapes"):
        batches(made, [{"x": (10**12,)}], seed=0)


def npz(tmp_path: Path, **arrays: Any) -> str:
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    return str(path)


def from_npz(made: OnnxFile, path: str) -> dict[str, Any]:
    shapes = shapes_of(made, {}, path)
    (batch,) = batches(made, shapes, seed=0, inputs=path)
    assert shapes == ({name: array.shape for name, array in batch.items()},)
    return batch


def test_inputs_from_a_file(tmp_path: Path) -> None:
    path = npz(tmp_path, ids=np.arange(6, dtype=np.int32).reshape(2, 3), mask=np.ones((2, 3)),
               scale=np.float64(0.5), other=np.zeros(3))  # fmt: skip
    batch = from_npz(file(IDS, MASK, SCALE), path)
    assert set(batch) == {"ids", "mask", "scale"}
    assert (batch["ids"].dtype, batch["mask"].dtype) == (np.int64, np.float32)
    assert batch["ids"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["scale"].shape == ()
    with pytest.raises(UsageError, match="own shapes"):
        shapes_of(file(IDS), {"ids": ((1, 1),)}, path)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones((2, 3)), "is float64, the input is int64"),
        (np.ones((2, 3), bool), "is bool, the input is int64"),
        (np.full((2, 3), 2**63, np.uint64), "does not hold all of its values"),
        (np.array([["a", "b"]]), "the input is int64"),
        (np.ones(3, np.int64), "it has 2 dimensions"),
        (np.array([[{}]]), "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, array: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_npz(file(IDS), npz(tmp_path, ids=array))


def test_arrays_that_contradict_each_other(tmp_path: Path) -> None:
    path = npz(tmp_path, ids=np.ones((2, 3), np.int64), mask=np.ones((2, 4), np.float32))
    with pytest.raises(DataError, match="'length' is 4 here and 3 in 'ids'"):
        from_npz(file(IDS, MASK), path)
    with pytest.raises(DataError, match="does not hold all of its values"):
        from_npz(file(SCALE), npz(tmp_path, scale=np.float64(1e300)))


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    path = npz(tmp_path, ids=np.ones((200, 300), np.int64))
    with pytest.raises(DataError, match="no array for input 'mask' of m: it has 'ids'"):
        from_npz(file(MASK), path)
    whole = Path(path).read_bytes()
    for content in (whole[:1000], whole[: len(whole) - 5], b"text", whole[:100] + whole[5000:]):
        Path(path).write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as an \.npz file"):
            from_npz(file(IDS), path)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(DataError, match="holds one array"):
        from_npz(file(IDS), str(tmp_path / "one.npy"))
    with pytest.raises(DataError, match="no such file"):
        from_npz(file(IDS), str(tmp_path / "none.npz"))
