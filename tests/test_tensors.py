"""Arrays through files and back, and digests that tell any two apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from xbench import tensors
from xbench.data import digest

DTYPES = st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool"])
NAMES = st.text("abc.@/[=]0_", min_size=1, max_size=12).filter(lambda name: name.strip("/."))
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0)))


def same(a: tensors.Array, b: tensors.Array) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@given(st.dictionaries(NAMES, ARRAYS, max_size=4))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_come_back_bit_by_bit_and_in_order(
    tmp_path: Path, arrays: dict[str, tensors.Array]
) -> None:
    tensors.save(tmp_path / "a.npz", arrays)
    loaded = tensors.load(tmp_path / "a.npz")
    assert list(loaded) == list(arrays)
    assert all(same(loaded[name], value) for name, value in arrays.items())


def test_what_is_not_a_number_and_what_is_not_contiguous_come_back(tmp_path: Path) -> None:
    odd = np.array([[np.nan, -np.inf], [-0.0, 5e-324]])
    arrays = {"odd": odd, "view": odd.T, "scalar": np.asarray(1.5, np.float32), "empty": odd[:0]}
    tensors.save(tmp_path / "a.npz", arrays)
    loaded = tensors.load(tmp_path / "a.npz")
    assert all(same(loaded[name], value) for name, value in arrays.items())


def test_batches_come_back_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    # Twelve: as text, 10 sorts before 2.
    batches = [{"x": np.full(2, k), "labels/y": np.asarray(-k)} for k in range(12)]
    tensors.save_batches(tmp_path / "b.npz", batches)
    loaded = tensors.load_batches(tmp_path / "b.npz")
    assert [int(batch["x"][0]) for batch in loaded] == list(range(12))
    assert [set(batch) for batch in loaded] == [{"x", "labels/y"}] * 12
    assert tensors.digest_batches(loaded) == tensors.digest_batches(batches)


def test_no_batches(tmp_path: Path) -> None:
    tensors.save_batches(tmp_path / "b.npz", [])
    assert tensors.load_batches(tmp_path / "b.npz") == []


X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
CHANGED = {
    "a value": {"x": np.where(X == 4, np.nextafter(X, np.float32(9)), X)},
    "a name": {"y": X},
    "a shape": {"x": X.reshape(4)},
    "a dtype of the same bytes": {"x": X.view(np.int32)},
    "a dtype of the same values": {"x": X.astype(np.float64)},
    "the order of values": {"x": X.T},
    "one more": {"x": X, "z": X},
    "the sign of zero": {"x": X, "z": np.array(0.0)},
    "the other sign of zero": {"x": X, "z": np.array(-0.0)},
    "nothing": {},
}


def test_any_change_is_another_digest() -> None:
    digests = {digest({"x": X})} | {digest(arrays) for arrays in CHANGED.values()}
    assert len(digests) == 1 + len(CHANGED)


def test_memory_layout_and_order_of_names_are_not_content() -> None:
    assert digest({"x": np.asfortranarray(X)}) == digest({"x": X})
    assert digest({"x": X, "y": X[:1]}) == digest({"y": X[:1], "x": X})


def test_a_name_cannot_pass_for_a_value() -> None:
    one, two = np.frombuffer(b"ab", np.uint8), np.frombuffer(b"a", np.uint8)
    assert digest({"x": one, "y": two}) != digest({"x": two, "y": one})


def test_batches_are_told_apart_by_their_order() -> None:
    one, two = {"x": X}, {"x": X + 1}
    assert tensors.digest_batches([one, two]) != tensors.digest_batches([two, one])
    assert tensors.digest_batches([one]) != tensors.digest_batches([one, one])


def test_the_digest_is_the_same_everywhere() -> None:
    # Stored runs are compared by it: change it on purpose or not at all.
    assert digest({"x": X}) == "f7deb3b56461c3fcff48868c3c45b40f6d663e41480ebcd2e9407d9eabba7179"


@pytest.mark.parametrize("content", [b"", b"xbench", bytes(3_000_000)])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert tensors.digest_file(tmp_path / "f") == tensors.digest_text(content) == expected
