"""Pairing of outputs, and layouts, reshapes and swaps that values prove."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import structure

Array = np.ndarray[Any, Any]


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


X, Y, Z = (noise(4, 3, seed=seed) for seed in range(3))


def test_names_pair_whatever_their_order() -> None:
    pairing = structure.pair({"y": Y, "x": X}, {"x": X, "y": Y})
    assert pairing == structure.Pairing(pairs=[("x", "x"), ("y", "y")])


def test_what_is_left_is_paired_by_position_and_said() -> None:
    pairing = structure.pair({"y": Y, "x": X, "z": Z}, {"out:0": Y, "x": X, "out:1": Z})
    assert pairing.pairs == [("y", "out:0"), ("x", "x"), ("z", "out:1")]
    assert pairing.by_position
    assert not pairing.missing
    assert not pairing.extra
    assert pairing.words == (
        "y of A is held against out:0 of B, by position; "
        "z of A is held against out:1 of B, by position"
    )


def test_other_counts_are_not_paired_by_position() -> None:
    pairing = structure.pair({"x": X, "y": Y, "w": Z}, {"x": X, "z": Z}, labels=("torch", "ort"))
    assert pairing.pairs == [("x", "x")]
    assert not pairing.by_position
    assert (pairing.missing, pairing.extra) == (["z"], ["y", "w"])
    assert pairing.words == "z of ort has no partner in torch; y, w of torch have no partner in ort"


@pytest.mark.parametrize(("a", "b"), [({}, {}), ({}, {"x": X}), ({"x": X}, {})])
def test_sides_without_outputs(a: dict[str, Array], b: dict[str, Array]) -> None:
    pairing = structure.pair(a, b)
    assert (pairing.pairs, pairing.missing, pairing.extra) == ([], list(b), list(a))


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(NAMES, NAMES)
def test_every_output_is_paired_once_or_named(a: list[str], b: list[str]) -> None:
    pairing = structure.pair(dict.fromkeys(a, X), dict.fromkeys(b, X))
    assert sorted([x for x, _ in pairing.pairs] + pairing.extra) == sorted(a)
    assert sorted([y for _, y in pairing.pairs] + pairing.missing) == sorted(b)
    assert all(x == y for x, y in pairing.pairs if x in b or y in a)
    assert bool(pairing.words) == (sorted(a) != sorted(b))


LAYOUTS = [
    ((2, 5, 7, 3), (0, 3, 1, 2), "a is NHWC where b is NCHW"),
    ((2, 3, 5, 7), (0, 2, 3, 1), "a is NCHW where b is NHWC"),
    ((2, 4, 5, 7, 3), (0, 4, 1, 2, 3), "a is NDHWC where b is NCDHW"),
    ((2, 3, 4, 5, 7), (0, 2, 3, 4, 1), "a is NCDHW where b is NDHWC"),
    ((2, 5, 7), (0, 2, 1), "one of a and b is NLC, the other NCL"),
    ((6, 4), (1, 0), "the axes of a are in another order than those of b"),
    ((5, 2, 7), (1, 0, 2), "the axes of a are in another order than those of b"),
    # Equal sizes: shapes say nothing, values do.
    ((1, 6, 6, 6), (0, 3, 1, 2), "a is NHWC where b is NCHW"),
    ((6, 6), (1, 0), "the axes of a are in another order than those of b"),
    ((1, 6, 6, 1), (0, 3, 1, 2), "a is NHWC where b is NCHW"),
]


@pytest.mark.parametrize(("shape", "order", "words"), LAYOUTS)
def test_a_layout_is_named(shape: tuple[int, ...], order: tuple[int, ...], words: str) -> None:
    a = noise(*shape)
    b = a.transpose(order).copy()
    expected = f"{words}: transposed by {order} it is equal"
    # A channel of size 1 moves by a reshape alone, which is said first.
    if shape == (1, 6, 6, 1):
        expected = (
            "a holds the values of b in the same order under another shape, "
            "[1, 6, 6, 1] against [1, 1, 6, 6]: it is equal"
        )
    assert structure.layout(a, b) == expected


def test_an_inexact_layout_is_named_with_its_agreement() -> None:
    a = noise(2, 5, 7, 3)
    b = a.transpose(0, 3, 1, 2).copy()
    b[0, 0, 0, 0] += 3e-7 * np.abs(b).max()
    assert structure.layout(a, b) == (
        "a is NHWC where b is NCHW: transposed by (0, 3, 1, 2) it agrees to 3e-07"
    )


def test_every_order_of_four_equal_axes_is_found() -> None:
    a = noise(3, 3, 3, 3)
    for order in itertools.permutations(range(4)):
        words = structure.layout(a, a.transpose(order))
        assert (f"transposed by {order} " in words) == (order != (0, 1, 2, 3)), (order, words)


def test_an_offset_does_not_pass_for_agreement() -> None:
    # 1000 +- 1: every order agrees to 0.4 % of the largest value; one to all digits.
    a = 1000 + noise(1, 8, 8, 8, dtype="float64")
    assert structure.layout(a, a.transpose(0, 3, 1, 2)).startswith("a is NHWC where b is NCHW")


def test_integers_and_masks_have_layouts() -> None:
    labels = np.random.default_rng(0).integers(0, 9, (2, 6, 7))
    words = structure.layout(labels, labels.transpose(0, 2, 1))
    assert words.endswith("transposed by (0, 2, 1) it is equal")
    # The share of ones is under LIMIT: zeros that agree are no evidence.
    mask = np.zeros((50, 50), bool)
    mask[3, 7] = mask[20, 4] = True
    assert structure.layout(mask, mask.T).endswith("transposed by (1, 0) it is equal")
    assert structure.layout(mask, mask[::-1]) == ""
    many = np.random.default_rng(0).integers(0, 9, (100, 99))
    other = many.T.copy()
    other[4, 5] += 1
    assert structure.layout(many, other).endswith("(1, 0) 1 of 9900 elements differ")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (noise(2, 5, 7, 3), noise(2, 3, 5, 7, seed=1)),
        (noise(6, 6), noise(6, 6, seed=1)),
        (noise(6, 6), noise(6, 6)),
        (noise(6, 6), noise(6, 6) * np.float32(1.001)),
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)),
        (np.zeros((2, 0)), np.zeros((0, 2))),
        (noise(2, 3), noise(3, 3)),
        (noise(2, 3), np.arange(6).reshape(3, 2)),
        (np.array(["a", "b"]), np.array([["a"], ["b"]])),
        (np.full((2, 3), np.nan), np.full((3, 2), np.nan)),
        (np.array(1.0), np.array([1.0])),
    ],
    ids=str,
)
def test_nothing_is_told_without_proof(a: Array, b: Array) -> None:
    assert structure.layout(a, b) == ""


def test_a_symmetric_result_is_not_called_transposed() -> None:
    x = noise(5, 5)
    gram = x @ x.T
    other = (gram * (1 + noise(5, 5, seed=1) * np.float32(1e-6))).astype(np.float32)
    assert structure.layout(other.T, other) == ""


@pytest.mark.parametrize("shapes", [((9, 1), (9,)), ((2, 6), (3, 4)), ((1, 2, 3), (2, 3))])
def test_another_shape_of_the_same_values_is_named(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    a = noise(*shapes[0])
    words = structure.layout(a, a.reshape(shapes[1]) * np.float32(1 + 1e-5))
    assert words.startswith("a holds the values of b in the same order under another shape, ")
    assert f"{list(shapes[0])} against {list(shapes[1])}: it agrees to 1e-05" in words


def test_masks_that_move_along_are_no_obstacle() -> None:
    a = noise(2, 5, 7, 3)
    a[0, 1, 2, 1], a[1, 4, 6, 2] = np.nan, np.inf
    assert structure.layout(a, a.transpose(0, 3, 1, 2)).startswith("a is NHWC where b is NCHW")
    b = a.transpose(0, 3, 1, 2).copy()
    b[0, 0, 0, 0] = np.nan
    assert structure.layout(a, b) == ""


def test_a_difference_outside_the_sample_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(structure, "SAMPLE", 50)
    a = noise(4, 30, 30, 3)
    b = a.transpose(0, 3, 1, 2).copy()
    assert structure.layout(a, b).endswith("it is equal")
    flat = structure._sample(b.size)
    assert 40 <= len(flat) <= 50
    outside = next(k for k in range(b.size) if k not in flat)
    b.reshape(-1)[outside] += 1e-4
    assert "it agrees to 3e-05" in structure.layout(a, b)
    b.reshape(-1)[outside] += 100
    assert structure.layout(a, b) == ""


@pytest.mark.parametrize("shape", [(64, 64, 64), (3, 100, 10), (8, 1, 512), (7, 11), (5,), (1,)])
@pytest.mark.parametrize("limit", [600, 1000])
def test_the_sample_moves_along_every_axis(
    shape: tuple[int, ...], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure, "SAMPLE", limit)
    size = int(np.prod(shape))
    flat = structure._sample(size)
    assert min(size, limit // 4) <= len(flat) <= limit
    assert flat[-1] < size
    for along, count in zip(np.unravel_index(flat, shape), shape, strict=True):
        assert len(np.unique(along)) == count


def test_high_ranks_end() -> None:
    a = noise(*[2] * 9)
    assert structure.layout(a, noise(*[2] * 9, seed=1)) == ""


def test_swapped_outputs_are_named() -> None:
    a, b = {"scores": X, "boxes": Y, "ok": Z}, {"scores": Y, "boxes": X, "ok": Z}
    words = structure.swapped(a, b, structure.pair(a, b))
    assert words == "outputs 'scores' and 'boxes' are swapped"


def test_swapped_outputs_of_other_names_and_shapes() -> None:
    wide = noise(4, 9)
    a, b = {"s": X, "t": wide}, {"o0": wide, "o1": X + np.float32(1e-6)}
    words = structure.swapped(a, b, structure.pair(a, b), labels=("torch", "ort"))
    assert words == (
        "outputs are swapped: 's' of torch matches 'o1' of ort, 't' of torch matches 'o0' of ort"
    )


def test_three_outputs_in_a_ring() -> None:
    a, b = {"x": X, "y": Y, "z": Z}, {"x": Z, "y": X, "z": Y}
    words = structure.swapped(a, b, structure.pair(a, b))
    assert words == (
        "outputs are swapped: 'x' of A matches 'y' of B, 'y' of A matches 'z' of B, "
        "'z' of A matches 'x' of B"
    )


@pytest.mark.parametrize(
    "b",
    [
        {"x": X, "y": Y, "z": Z},
        {"x": noise(4, 3, seed=7), "y": X, "z": Z},
        {"x": Y, "y": noise(4, 3, seed=7), "z": Z},
        {"x": Y, "y": Z, "z": noise(4, 3, seed=7)},
        {"x": Y * np.float32(1.1), "y": X * np.float32(1.1), "z": Z},
    ],
)
def test_what_is_not_swapped_is_not_called_so(b: dict[str, Array]) -> None:
    a = {"x": X, "y": Y, "z": Z}
    assert structure.swapped(a, b, structure.pair(a, b)) == ""


def test_outputs_that_are_alike_are_not_swapped() -> None:
    ones = np.ones((4, 3), np.float32)
    a, b = {"x": ones, "y": 2 * ones}, {"x": 2 * ones, "y": ones}
    # Constants: their values cannot tell. Twins: which matches which cannot be told either.
    assert structure.swapped(a, b, structure.pair(a, b)) == ""
    a, b = {"x": X, "y": Y, "z": Y}, {"x": Y, "y": X, "z": X}
    assert structure.swapped(a, b, structure.pair(a, b)) == ""
