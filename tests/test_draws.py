"""Draws: the algorithm against a second implementation, pinned bits, and one-ULP steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from xbench import draws
from xbench.draws import draw, parameters, perturb
from xbench.errors import UsageError
from xbench.spec import (
    Adam,
    Bernoulli,
    Constant,
    DrawSpec,
    ModelSpec,
    Normal,
    ParameterSpec,
    Uniform,
)

Array = np.ndarray[Any, Any]
UNIT = Uniform(0.0, 1.0)
NORMAL_DIGEST = "6afdb9c4b7843045ae76bdb875bdb5f0b6a96923b07ca5335d354fa4bd7f5b3d"


def digest(arrays: Mapping[str, Array]) -> str:
    """Over names, dtypes, shapes and little-endian values."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        state.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        state.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()


def philox(key: tuple[int, int], counter: int = 0) -> Iterator[int]:
    """Philox4x64-10 in plain integers (Salmon et al. 2011, section 3.3)."""
    mask = 2**64 - 1
    while True:
        c0, c1, c2, c3 = (counter >> shift & mask for shift in (0, 64, 128, 192))
        k0, k1 = key
        for _ in range(10):
            left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
            c0, c1 = right >> 64 ^ c1 ^ k0, right & mask
            c2, c3 = left >> 64 ^ c3 ^ k1, left & mask
            k0, k1 = k0 + 0x9E3779B97F4A7C15 & mask, k1 + 0xBB67AE8584CAA73B & mask
        yield from (c0, c1, c2, c3)
        counter += 1


def words(purpose: str, seed: int, name: str) -> Iterator[int]:
    """The words of a stream; numpy counts up before it draws, hence counter 1."""
    key = hashlib.sha256(f"xbench/{purpose}/{seed}/{name}".encode()).digest()
    return philox((int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")), 1)


def test_the_second_implementation_gives_the_published_answers() -> None:
    """Known answers that Random123 ships for Philox4x64-10: all bits zero, all bits one."""
    assert list(islice(philox((0, 0)), 4)) == [
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    ]  # fmt: skip
    ones = 2**64 - 1
    assert list(islice(philox((ones, ones), 2**256 - 1), 4)) == [
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    ]  # fmt: skip


def test_values_follow_from_the_words() -> None:
    spec = Uniform(-0.1, 0.3)
    found = draw(spec, (3, 7), seed=5, name="a.weight")
    expected = [
        np.float32(-0.1 + (0.3 - -0.1) * ((word >> 11) / 2**53))
        for word in islice(words("draw", 5, "a.weight"), 21)
    ]
    assert found.ravel().tolist() == [float(value) for value in expected]
    assert (found.dtype, found.shape) == (np.float32, (3, 7))


def test_pinned_bits() -> None:
    """Whatever changes these changes every stored digest."""
    drawn = {
        "small": draw(Uniform(-0.25, 0.75), (1000,), seed=0, name="small"),
        "double": draw(Uniform(-0.25, 0.75), (10, 7), seed=1, name="double", dtype="float64"),
        "scalar": draw(UNIT, (), seed=-3, name="scalar"),
    }
    drawn["moved"] = perturb(drawn["small"], seed=2, name="small")
    assert digest(drawn) == ("b257826d4ac0e78d31e9bcfbf1f3401b116cc70a5b40515c9f58222b5522384d")


def test_every_precision_starts_from_the_same_numbers() -> None:
    single = draw(UNIT, (500,), seed=3, name="x")
    double = draw(UNIT, (500,), seed=3, name="x", dtype="float64")
    half = draw(UNIT, (500,), seed=3, name="x", dtype=np.float16)
    assert double.dtype == np.float64
    assert np.array_equal(double, single.astype(np.float64))
    assert np.array_equal(half, single.astype(np.float16))
    assert draw(Constant(0.1), (2,), seed=0, name="x", dtype="float64")[0] == float(np.float32(0.1))


def test_bits_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(UNIT, (10, 11), seed=3, name="x")
    for size in (1, 3, 109, 110):
        monkeypatch.setattr(draws, "_CHUNK", size)
        assert np.array_equal(draw(UNIT, (10, 11), seed=3, name="x"), whole)


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert np.array_equal(
        draw(UNIT, (10,), seed=3, name="x"), draw(UNIT, (99,), seed=3, name="x")[:10]
    )
    assert draw(UNIT, (0, 4), seed=3, name="x").shape == (0, 4)


def test_draws_are_even_and_independent() -> None:
    """Kolmogorov's distance below its 0.1 % point; correlations below four standard errors."""
    count = 100_000
    streams = [draw(UNIT, (count,), seed=s, name=n) for s, n in ((0, "a"), (1, "a"), (0, "b"))]
    for values in streams:
        ordered = np.sort(values.astype(np.float64))
        assert np.abs(ordered - (np.arange(count) + 0.5) / count).max() < 1.95 / count**0.5
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / count**0.5
    correlation = np.corrcoef(streams) - np.eye(3)
    assert np.abs(correlation).max() < 4 / count**0.5


def test_only_floats_are_drawn() -> None:
    with pytest.raises(ValueError, match="cannot draw int32"):
        draw(UNIT, (2,), seed=0, name="x", dtype="int32")


@given(st.floats(1e-300, 1 - 2.0**-53))
def test_the_normal_quantile_is_scipys(probability: float) -> None:
    """AS 241 promises seven digits; near 0 they are of the probability's distance from 1/2."""
    (found,) = draws.normal_quantile(np.array([probability]))
    assert found == pytest.approx(special.ndtri(probability), rel=2e-7, abs=2e-7)
    (log,) = draws.natural_log(np.array([probability]))
    assert log == pytest.approx(math.log(probability), rel=1e-14, abs=1e-16)


def test_normal_draws_are_quantiles_of_the_words() -> None:
    drawn = draw(Normal(2.0, 0.5), (40,), seed=3, name="x")
    unit = [(word >> 11) * 2.0**-53 + 2.0**-54 for word in islice(words("draw", 3, "x"), 40)]
    expected = 2.0 + 0.5 * special.ndtri(np.array(unit))
    np.testing.assert_allclose(drawn, expected, rtol=2e-7, atol=2e-7)
    assert digest({"x": drawn}) == NORMAL_DIGEST


def test_normal_draws_have_the_moments_of_the_normal_distribution() -> None:
    x = draw(Normal(), (400_000,), seed=0, name="x", dtype="float64")
    error = 5 / len(x) ** 0.5
    assert abs(x.mean()) < error
    assert abs((x**2).mean() - 1) < error * 2**0.5
    assert abs((x**3).mean()) < error * 15**0.5
    assert abs((x**4).mean() - 3) < error * 96**0.5


def test_masks_keep_their_share_and_the_mean() -> None:
    mask = draw(Bernoulli(0.8), (100_000,), seed=0, name="x")
    assert set(np.unique(mask)) == {0.0, np.float32(1.25)}
    assert abs((mask > 0).mean() - 0.8) < 5 * (0.16 / mask.size) ** 0.5
    unit = [(word >> 11) * 2.0**-53 for word in islice(words("draw", 0, "x"), 50)]
    assert (mask[:50] > 0).tolist() == [u < 0.8 for u in unit]


def test_draws_of_a_step_depend_on_its_number_and_not_on_how_many_follow() -> None:
    spec = msgspec.structs.replace(
        model(*PARAMETERS),
        draws=lambda _: (
            DrawSpec(name="mask", shape=("batch", 7), distribution=Bernoulli(0.5)),
            DrawSpec(name="noise", shape=("batch", 3), distribution=Normal()),
        ),
    )
    five = draws.steps(spec, None, batch=4, count=5, seed=1)
    two = draws.steps(spec, None, batch=4, count=2, seed=1)
    assert [list(step) for step in five] == [["mask", "noise"]] * 5
    assert {step["mask"].shape for step in five} == {(4, 7)}
    assert {step["noise"].dtype.name for step in five} == {"float32"}
    for short, long in zip(two, five, strict=False):
        assert all(np.array_equal(short[name], long[name]) for name in short)
    assert len({step["noise"].tobytes() for step in five}) == 5
    other = draws.steps(spec, None, batch=4, count=1, seed=2)
    assert not np.array_equal(other[0]["noise"], five[0]["noise"])


PARAMETERS = (
    ParameterSpec(name="w", shape=(4, 3), init=Uniform(-0.5, 0.5), probe=Uniform(-2.0, -1.0)),
    ParameterSpec(name="b", shape=(4,), init=Constant(0.0), probe=Uniform(1.0, 2.0)),
    ParameterSpec(name="v", shape=(4, 3), init=Uniform(-0.5, 0.5), probe=Uniform(-2.0, -1.0)),
)


def model(*specs: ParameterSpec) -> ModelSpec:
    return ModelSpec(
        name="m", title="", paper="", sizes={"tiny": None}, batch={"tiny": 1},
        parameters=lambda _: specs, inputs=lambda _: (), outputs=lambda _: (),
        taps=lambda _: (), losses=("L",), optimizer=Adam(), data="",
    )  # fmt: skip


def test_parameters_have_names_shapes_and_distributions() -> None:
    init = parameters(model(*PARAMETERS), "tiny", "init", 0)
    probe = parameters(model(*PARAMETERS), "tiny", "probe", 0, "float64")
    assert list(init) == list(probe) == ["w", "b", "v"]
    assert [value.shape for value in init.values()] == [(4, 3), (4,), (4, 3)]
    assert not init["b"].any()
    assert ((probe["b"] >= 1) & (probe["b"] <= 2)).all()
    assert ((probe["w"] >= -2) & (probe["w"] <= -1)).all()
    assert {value.dtype.name for value in init.values()} == {"float32"}
    assert {value.dtype.name for value in probe.values()} == {"float64"}


def test_a_parameter_depends_on_seed_kind_and_name_alone() -> None:
    specs = PARAMETERS
    base = parameters(model(*specs), "tiny", "probe", 0)
    other = parameters(model(specs[2], specs[0]), "tiny", "probe", 0)
    for name, value in other.items():
        assert np.array_equal(value, base[name])
    assert not np.array_equal(base["w"], base["v"])
    assert not np.array_equal(base["w"], parameters(model(*specs), "tiny", "probe", 1)["w"])
    same = msgspec.structs.replace(specs[0], init=specs[0].probe)
    assert not np.array_equal(base["w"], parameters(model(same), "tiny", "init", 0)["w"])


def test_unknown_size_and_kind_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="unknown size 'tinny': did you mean 'tiny'"):
        parameters(model(*PARAMETERS), "tinny", "init", 0)
    with pytest.raises(UsageError, match="unknown kind of parameters 'prob'"):
        parameters(model(*PARAMETERS), "tiny", "prob", 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_element_moves_by_one_step_of_its_dtype(dtype: str) -> None:
    array = draw(Uniform(-1.0, 1.0), (50, 40), seed=0, name="x", dtype=dtype)
    before = array.copy()
    moved = perturb(array, seed=0, name="x")
    up = np.nextafter(array, np.array(np.inf, dtype))
    down = np.nextafter(array, np.array(-np.inf, dtype))
    assert moved.dtype == array.dtype
    assert ((moved == up) | (moved == down))[array != 0].all()
    assert 900 < int((moved == up).sum()) < 1100  # of 2000, half each: five standard deviations
    assert np.array_equal(array, before)


def test_perturbation_bits_are_the_words_from_the_low_end() -> None:
    moved = perturb(np.ones((2, 50), np.float32), seed=4, name="x")
    stream = list(islice(words("perturb", 4, "x"), 2))
    expected = [bool(stream[i // 64] >> (i % 64) & 1) for i in range(100)]
    assert (moved > 1).ravel().tolist() == expected


def test_perturbations_differ_by_seed_and_name_not_by_layout() -> None:
    array = draw(UNIT, (30, 20), seed=0, name="x")
    moved = perturb(array, seed=0, name="x")
    assert np.array_equal(perturb(np.asfortranarray(array), seed=0, name="x"), moved)
    assert not np.array_equal(perturb(array, seed=1, name="x"), moved)
    assert not np.array_equal(perturb(array, seed=0, name="y"), moved)


def test_zeros_and_what_is_not_finite_stay() -> None:
    largest = np.finfo(np.float32).max
    still = np.array([0.0, -0.0, np.nan, np.inf, -np.inf], np.float32)
    for seed in range(8):
        with np.errstate(all="raise"):
            assert perturb(still, seed=seed, name="x").tobytes() == still.tobytes()
            ends = perturb(np.array([largest, -largest]), seed=seed, name="x")
        assert np.isfinite(ends).all()
    assert perturb(np.array(2.0), seed=0, name="x").shape == ()


def test_only_floats_are_perturbed() -> None:
    with pytest.raises(ValueError, match="cannot perturb int64"):
        perturb(np.ones(2, np.int64), seed=0, name="x")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sixteen_ulps_are_sixteen_steps(dtype: str) -> None:
    values = np.array([1.5, -1.5, 3e-3, -700.0, 0.0], dtype)
    moved = draws.perturb(values, seed=3, name="w", ulps=16)
    steps = np.abs(moved.astype(np.float64) - values) / np.spacing(np.abs(values))
    assert steps.tolist() == [16, 16, 16, 16, 0]


def test_below_reaches_both_ends() -> None:
    assert [draws.below(5, word) for word in (0, 2**64 // 5, 2**64 // 5 + 1, 2**64 - 1)] == [
        0, 0, 1, 4,
    ]  # fmt: skip
