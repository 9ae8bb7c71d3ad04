"""Which elements of a tensor its RMS is of: masks are set apart, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xbench import numerics, ordinary

Array = np.ndarray[Any, Any]

LOWEST = float(np.finfo(np.float32).min)


def logits(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape)


def masked(mask: float) -> tuple[Array, Array]:
    """Logits of which a quarter are masked, and where."""
    truth, where = logits(20, 40), np.zeros((20, 40), np.bool_)
    where[:, 30:] = True
    truth[where] = mask
    return truth, where


@pytest.mark.parametrize("mask", [-1e9, 1e9, LOWEST, -1e5])
def test_finite_masks_are_set_apart(mask: float) -> None:
    truth, where = masked(mask)
    found = ordinary.ordinary(truth)
    assert found is not None
    assert np.array_equal(found, ~where)
    plain = float(np.sqrt(np.mean(np.square(truth[~where]))))
    assert ordinary.rms(truth) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("mask", [-1e9, -np.inf, np.nan, LOWEST])
def test_a_mask_does_not_drown_a_wrong_logit(mask: float) -> None:
    truth, where = masked(mask)
    wrong = truth.copy()
    wrong[~where] *= 1.01
    assert ordinary.rms_error(wrong, truth) == pytest.approx(0.01 * ordinary.rms(truth), rel=1e-9)
    assert 0.5 < ordinary.rms(truth) < 2.0
    assert not ordinary.others_differ(wrong, truth, 1e-7)


def test_infinite_masks_are_ordinary_and_hide_no_finite_one() -> None:
    truth, _ = masked(-np.inf)
    assert ordinary.ordinary(truth) is None
    truth[0, 0], truth[1, 1] = -1e9, np.nan
    found = ordinary.ordinary(truth)
    assert found is not None
    assert np.argwhere(~found).tolist() == [[0, 0]]


ORDINARY: dict[str, Array] = {
    "normal": logits(300, 300),
    "relu": np.maximum(logits(100, 100), 0),
    "sparse": np.where(logits(100, 100) > 2, logits(100, 100), 0),
    "constant": np.full(50, 7.0),
    "zeros": np.zeros(50),
    "one": np.array([1e9]),
    "empty": np.zeros(0),
    "scalar": np.array(3.0),
    "nan": np.full(50, np.nan),
    "nan and numbers": np.where(logits(50) > 0, np.nan, logits(50)),
    "infinite": np.full(50, np.inf),
    "log-normal": np.exp(logits(1000)),
    "integers": np.array([1, 10**9]),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_nothing_of_ordinary_data_is_set_apart(name: str) -> None:
    truth = ORDINARY[name]
    assert ordinary.ordinary(truth) is None
    assert not ordinary.others_differ(truth + 1, truth, 1e-7)


@pytest.mark.parametrize("name", ["normal", "relu", "sparse", "constant", "zeros", "log-normal"])
def test_without_masks_the_metrics_are_the_plain_ones(name: str) -> None:
    truth = ORDINARY[name]
    assert ordinary.rms(truth) == numerics.rms_error(truth, np.zeros_like(truth))
    actual = truth + 0.25
    assert ordinary.rms_error(actual, truth) == numerics.rms_error(actual, truth)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_boundary_is_ten_thousand_times_the_next_smaller(sign: float) -> None:
    truth = np.ones(200)
    truth[100:150] = 0
    truth[7] = sign * ordinary.FAR
    assert ordinary.ordinary(truth) is None
    truth[7] = np.nextafter(truth[7], sign * np.inf)
    found = ordinary.ordinary(truth)
    assert found is not None
    assert np.flatnonzero(~found).tolist() == [7]


def test_a_mask_that_the_sample_misses_is_set_apart() -> None:
    truth = np.ones(3 * ordinary.SAMPLE)
    truth[1] = -1e9
    found = ordinary.ordinary(truth)
    assert found is not None
    assert np.flatnonzero(~found).tolist() == [1]
    assert ordinary.rms(truth) == 1.0


def test_rms_of_nothing_finite_is_zero() -> None:
    assert ordinary.rms(np.full(4, np.nan)) == 0
    assert ordinary.rms(np.zeros(0)) == 0
    assert ordinary.rms(np.array([3.0, np.inf, -3.0, np.nan])) == 3.0


def test_the_others_differ_beyond_eps_of_their_own_rms() -> None:
    truth, where = masked(-1e9)
    for relative, expected in ((0.99e-3, False), (1.01e-3, True)):
        actual = np.where(where, truth * (1 + relative), truth)
        assert ordinary.others_differ(actual, truth, 1e-3) is expected
        assert ordinary.rms_error(actual, truth) == 0


@pytest.mark.parametrize("value", [0.0, np.nan, -np.inf, 1e9])
def test_a_mask_that_is_gone_differs(value: float) -> None:
    truth, _ = masked(-1e9)
    actual = truth.copy()
    actual[4, 35] = value
    assert ordinary.others_differ(actual, truth, 1e-5)


def test_other_shapes_have_no_distance() -> None:
    truth, _ = masked(-1e9)
    assert not ordinary.others_differ(truth[:5], truth, 1e-5)
    with pytest.raises(numerics.Incomparable):
        ordinary.rms_error(truth[:5], truth)


def test_masks_that_are_most_of_a_tensor_drown_nothing() -> None:
    truth = logits(1000)
    truth[:510] = -1e9
    assert ordinary.rms(truth) < 2.0
