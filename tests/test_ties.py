"""Choices of another side under float64: which are ties, and which are faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from xbench.errors import EngineError
from xbench.runners.graph.choices import Choice
from xbench.runners.graph.node import Node
from xbench.runners.graph.ties import CHOICES, VALUES, Forced, Seen, compared

Array = np.ndarray[Any, Any]

ROWS, CLASSES = 32, 20
LAST = Node(op="ArgMax", attributes={"axis": -1, "keepdims": 0})
TYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16]
NAMES = ["float32", "float16", "bfloat16"]
LOWEST = float(np.finfo(np.float32).min)
MASKS = [-np.inf, -1e9, LOWEST]


def step(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def logits(mask: float | None = None) -> Array:
    """Drawn logits of which class 3 is by far the largest; the last five may be masked."""
    values = np.random.default_rng(5).normal(size=(ROWS, CLASSES))
    values[:, 3] = 8.0
    if mask is not None:
        values[:, -5:] = mask
    return values


def told(
    values: Array, theirs: Array, chosen: Array, moved: tuple[Array, ...] = ()
) -> tuple[int, str]:
    """What ``compared`` says of an ArgMax along the last axis."""
    exact = torch.from_numpy(values)
    seen = Seen(LAST, exact, exact.argmax(-1))
    return compared(seen, torch.from_numpy(chosen), theirs, [torch.from_numpy(m) for m in moved])


def near(dtype: Any, *, mask: float | None = None) -> tuple[Array, Array, Array]:
    """Logits with a second best that is half a step below, as exact values, in ``dtype``, indices.

    In ``dtype`` the two came out the other way round, one step apart.
    """
    values = logits(mask)
    values[:, 9] = values[:, 3] - 0.5 * step(dtype)
    theirs = values.astype(dtype)
    theirs[:, 9] = (theirs[:, 3].astype(np.float64) + 8 * step(dtype)).astype(dtype)
    chosen: Array = theirs.astype(np.float64).argmax(-1)
    assert (chosen == 9).all()
    return values, theirs, chosen


@pytest.mark.parametrize("dtype", TYPES, ids=NAMES)
@pytest.mark.parametrize("mask", [None, -np.inf])
def test_a_near_tie_is_a_tie(dtype: Any, mask: float | None) -> None:
    assert told(*near(dtype, mask=mask)) == (ROWS, "")


def test_a_tie_of_a_narrower_type_is_a_fault_in_float32() -> None:
    values, theirs, chosen = near(np.float16)
    assert told(values, theirs, chosen) == (ROWS, "")
    ties, words = told(values, theirs.astype(np.float32), chosen)
    assert ties == 0
    assert "times what rounding explains" in words


@pytest.mark.parametrize("mask", [-1e9, LOWEST])
def test_a_near_tie_beside_a_mask_is_a_tie(mask: float) -> None:
    assert told(*near(np.float32, mask=mask)) == (ROWS, "")


def test_equal_choices_are_neither() -> None:
    values = logits()
    assert told(values, values.astype(np.float32), values.argmax(-1)) == (0, "")


@pytest.mark.parametrize("mask", MASKS)
def test_a_wrong_winner_beside_a_mask_is_a_fault(mask: float) -> None:
    """The side's values are right; what it says of them is not."""
    values = logits(mask)
    chosen = values.argmax(-1)
    chosen[0] = 5
    ties, words = told(values, values.astype(np.float32), chosen)
    assert ties == 0
    assert "chose another index than float64 at 1 places" in words


@pytest.mark.parametrize("mask", MASKS)
def test_wrong_logits_beside_a_mask_are_a_fault(mask: float) -> None:
    """Masks are huge: an error of the logits is nothing beside them."""
    values = logits(mask)
    theirs = values.astype(np.float32)
    theirs[:, 5] = 9.0
    ties, words = told(values, theirs, theirs.argmax(-1))
    assert ties == 0
    assert "off by" in words


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_was_chosen_is_a_fault(mask: float) -> None:
    values = logits(mask)
    chosen = np.full(ROWS, CLASSES - 1)
    ties, words = told(values, values.astype(np.float32), chosen)
    assert ties == 0
    assert words


@pytest.mark.parametrize("where", ["float64", "side"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_on_one_side_is_a_fault(where: str, value: float) -> None:
    values, theirs, chosen = near(np.float32)
    if where == "float64":
        # Had this been the best, float64 would have chosen it.
        values[0, 9] = value
    else:
        theirs[0, 9] = value
    exact = torch.from_numpy(values)
    seen = Seen(LAST, exact, torch.full((ROWS,), 3))
    ties, words = compared(seen, torch.from_numpy(chosen), theirs, [])
    assert ties == 0
    assert "not finite" in words


def test_a_spread_that_is_nan_explains_nothing() -> None:
    values, theirs, chosen = near(np.float32)
    theirs[:, 9] += 1
    ties, words = told(values, theirs, chosen, (np.full_like(values, np.nan),))
    assert ties == 0
    assert words


def test_what_the_values_move_by_explains_a_gap() -> None:
    values = logits()
    values[:, 9] = values[:, 3] - 1e-3
    theirs = values.astype(np.float32)
    theirs[:, 9] += np.float32(2e-3)
    chosen = theirs.argmax(-1)
    moved = values + 1e-3 * np.random.default_rng(1).normal(size=values.shape)
    ties, words = told(values, theirs, chosen)
    assert ties == 0
    assert "times what rounding explains" in words
    assert told(values, theirs, chosen, (moved,)) == (ROWS, "")


def test_a_gap_beyond_rounding_is_a_fault_although_the_sides_own_values_favour_it() -> None:
    """In one row of many the values are as wrong as they are apart: the others are not asked."""
    values = np.random.default_rng(2).normal(size=(4000, 4)) * 0.1
    values[:, 3] = 8.0
    explained = 10 * 4 * 2.0**-23 * 8.0
    gap = 4 * explained
    values[0, 1] = 8.0 - gap
    theirs = values.astype(np.float32)
    theirs[0, 1] = 8.0 + gap / 4
    chosen = theirs.argmax(-1)
    assert (chosen != 3).sum() == 1
    ties, words = told(values, theirs, chosen)
    assert ties == 0
    assert "times what rounding explains" in words


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integers_are_ties_among_equal_numbers_only(dtype: type) -> None:
    values: Array = np.array([[4, 9, 9, 1], [7, 2, 7, 7]], dtype)
    exact = torch.from_numpy(values)
    seen = Seen(LAST, exact, torch.tensor([1, 0]))
    assert compared(seen, torch.tensor([2, 3]), values, []) == (2, "")
    assert compared(seen, torch.tensor([1, 3]), values, []) == (1, "")
    ties, words = compared(seen, torch.tensor([0, 3]), values, [])
    assert (ties, words) == (0, "chose 1 numbers that are not the best")


@pytest.mark.parametrize("keeps", [0, 1])
def test_another_axis_and_indices_that_keep_it(keeps: int) -> None:
    values, theirs, chosen = (part.T.copy() for part in near(np.float32))
    node = Node(op="ArgMax", attributes={"axis": 0, "keepdims": keeps})
    exact = torch.from_numpy(values)
    seen = Seen(node, exact, exact.argmax(0, keepdim=bool(keeps)))
    at = torch.from_numpy(chosen[np.newaxis] if keeps else chosen)
    assert compared(seen, at, theirs, []) == (ROWS, "")


def test_top_k_whose_order_differs_at_a_near_tie_and_elsewhere() -> None:
    values, theirs, _ = near(np.float32)
    exact = torch.from_numpy(values)
    own = exact.topk(2).indices
    seen = Seen(Node(op="TopK", attributes={"axis": -1}), exact, own)
    assert compared(seen, own.flip(-1), theirs, []) == (2 * ROWS, "")
    wrong = own.clone()
    wrong[4, 1] = 0
    ties, words = compared(seen, wrong, theirs, [])
    assert ties == 0
    assert "at 1 places" in words


def test_values_of_another_shape_are_a_fault() -> None:
    values = logits()
    ties, words = told(values, values[:, :4].astype(np.float32), values.argmax(-1))
    assert ties == 0
    assert "of shape [32, 4], not [32, 20]" in words


def test_masks_that_both_chose_excuse_no_other_row() -> None:
    values = np.array([[3.0, 2.0, 1.0], [-1e9, -1e9, -1e9]])
    ties, words = told(values, values.astype(np.float32), np.array([2, 0]))
    assert ties == 0
    assert words


# -- choices of a graph ----------------------------------------------------------------------------


def choice(op: str, *, looped: bool = False) -> Choice:
    return Choice(index="i", node=f"{op} 'top'", op=op, looped=looped)


def left(folder: Path, theirs: list[Choice], **arrays: Array) -> Path:
    """A folder as a side leaves it."""
    (folder / CHOICES).write_bytes(msgspec.json.encode(theirs))
    held: dict[str, Any] = {name.replace("_", "/"): value for name, value in arrays.items()}
    np.savez(folder / VALUES, **held)
    return folder


@pytest.mark.parametrize(
    "theirs",
    [[], [choice("TopK")], [choice("ArgMax", looped=True)], [choice("ArgMax"), choice("TopK")]],
)
def test_graphs_that_choose_otherwise_cannot_be_held_against_each_other(
    tmp_path: Path, theirs: list[Choice]
) -> None:
    folder = left(tmp_path, theirs)
    with pytest.raises(EngineError, match="do not choose alike"):
        Forced(folder, [choice("ArgMax")])


def test_names_of_another_graph_do_not_matter(tmp_path: Path) -> None:
    other = msgspec.structs.replace(choice("ArgMax"), index="j", node="ArgMax 'best'")
    forced = Forced(left(tmp_path, [other], **{"0_index": np.array([1])}), [choice("ArgMax")])
    assert {name: [part.tolist() for part in parts] for name, parts in forced.indices.items()} == {
        "i": [[1]]
    }


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fault_in_a_loop_names_its_iteration(tmp_path: Path, wrong: bool) -> None:
    values, theirs, chosen = near(np.float32)
    second = chosen.copy()
    if wrong:
        second[0] = 5
    arrays = {"0_index": np.stack([chosen, second]), "0_values": np.stack([theirs, theirs])}
    forced = Forced(
        left(tmp_path, [choice("ArgMax", looped=True)], **arrays), [choice("ArgMax", looped=True)]
    )
    exact: Tensor = torch.from_numpy(values)
    for _ in range(2):
        forced.see("i", LAST, [exact], [exact.argmax(-1)])
    ties, fault = forced.judged()
    assert ties == (ROWS if wrong else 2 * ROWS)
    assert fault.startswith("ArgMax 'top' in iteration 2 chose another index") is wrong
    assert bool(fault) is wrong
