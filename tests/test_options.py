"""Durations, shares, lists and pairs: what is read, and that nothing else is."""

from __future__ import annotations

import contextlib
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import options
from xbench.errors import UsageError

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?"
UNIT = r"\s*(?:ms|[smh])?"
WORDS = st.text("abcXYZ019._-", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("5m", 300.0),
        ("1h", 3600.0),
        (" 2.5 S ", 2.5),
        (".5s", 0.5),
        ("1e-3", 0.001),
        ("1e2ms", 0.1),
        ("1.2e+03", 1200.0),
        ("-1s", -1.0),
        ("0", 0.0),
        ("inf", math.inf),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert options.duration_s("--budget", text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "1d", "1 0", "1.2.3", ".", "5mm", "m5", "1h30m", "1,5s", "0x10", "1_0"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        options.duration_s("--budget", text)
    assert str(caught.value).startswith("--budget ")
    assert repr(text) in str(caught.value)


@given(st.floats(0, 1e9), st.sampled_from(["", *UNITS]), st.sampled_from(["", " "]))
def test_every_number_with_every_unit_is_a_duration(value: float, unit: str, gap: str) -> None:
    found = options.duration_s("--budget", f"{value!r}{gap}{unit}")
    assert found == value * UNITS[unit or "s"]


@given(st.text(max_size=12) | st.text("0123456789.+-e msh", max_size=8))
def test_a_text_is_a_duration_or_a_usage_error(text: str) -> None:
    found = None
    with contextlib.suppress(UsageError):
        found = options.duration_s("--budget", text)
    assert isinstance(found, float) == bool(re.fullmatch(NUMBER + UNIT, text.strip().lower()))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1%", 0.01), ("0.01", 0.01), (" 2.5 % ", 0.025), ("99.9%", 0.999), ("1e-4", 1e-4)],
)
def test_shares(text: str, value: float) -> None:
    assert options.share("--ci-width", text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["0", "0%", "1", "100%", "-1%", "2", "nan", "inf", "nan%"])
def test_a_share_is_above_nothing_and_below_the_whole(text: str) -> None:
    with pytest.raises(UsageError, match="above 0 and below 100%"):
        options.share("--ci-width", text)


@pytest.mark.parametrize("text", ["", "%", "1%%", "one", "1,5%", "1% 2%"])
def test_what_is_no_number_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="--ci-width takes a number"):
        options.share("--ci-width", text)


@given(st.floats(1e-6, 99.99))
def test_percent_and_fraction_are_one_share(percent: float) -> None:
    assert options.share("-", f"{percent!r}%") == options.share("-", repr(percent / 100.0))


def test_what_was_not_given() -> None:
    assert options.duration_s("--soak", None) is None
    assert options.share("--ci-width", None) is None
    assert options.integers("--batch", None) == ()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1", (1,)), ("1,8,32", (1, 8, 32)), (" 8 , 1,8 ", (8, 1)), ("4,,2,", (4, 2)), ("-1", (-1,))],
)
def test_integers(text: str, numbers: tuple[int, ...]) -> None:
    assert options.integers("--batch", text) == numbers


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_list_is_not_the_default(text: str) -> None:
    with pytest.raises(UsageError, match="none was given"):
        options.integers("--batch", text)


@pytest.mark.parametrize("text", ["1.5", "one", "1;2", "1 2", "1e3", "9" * 5000])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--batch takes whole numbers"):
        options.integers("--batch", text)


@given(st.lists(st.integers(), min_size=1, max_size=9))
def test_integers_keep_their_order_and_come_once(numbers: list[int]) -> None:
    found = options.integers("--batch", ", ".join(map(str, numbers)))
    assert found == tuple(dict.fromkeys(numbers))


def test_pairs() -> None:
    assert options.pairs("--o", ["a=1", " b = 2 ", "c=", "d=e=f", "a=1"]) == {
        "a": "1", "b": "2", "c": "", "d": "e=f",
    }  # fmt: skip
    assert options.pairs("--o", []) == {}


@pytest.mark.parametrize("item", ["a", "", "=1", " =1"])
def test_what_is_no_pair_is_refused(item: str) -> None:
    with pytest.raises(UsageError, match="--o takes KEY=VALUE") as caught:
        options.pairs("--o", [item])
    assert repr(item) in str(caught.value)


def test_one_key_has_one_value() -> None:
    with pytest.raises(UsageError, match="--o gives a two values"):
        options.pairs("--o", ["a=1", "b=1", "a=2"])


@given(st.dictionaries(WORDS, st.text("ab=:, .1", max_size=6).map(str.strip), max_size=5))
def test_pairs_survive_being_written(given_pairs: dict[str, str]) -> None:
    assert options.pairs("--o", [f"{k}={v}" for k, v in given_pairs.items()]) == given_pairs


def test_options_of_onnx_runtime() -> None:
    found = options.ort_options(
        ["session.dynamic_block_base=4", "k=v"], ["cuda:use_tf32=0", "cpu:use_arena=a:b=c"]
    )
    assert found == {
        "session.session.dynamic_block_base": "4",
        "session.k": "v",
        "provider.cuda.use_tf32": "0",
        "provider.cpu.use_arena": "a:b=c",
    }


def test_a_session_option_is_never_taken_for_one_of_a_provider() -> None:
    found = options.ort_options(["cuda.a=1", "provider.cuda.a=2"], ["cuda:a=3"])
    assert found == {
        "session.cuda.a": "1", "session.provider.cuda.a": "2", "provider.cuda.a": "3",
    }  # fmt: skip


@pytest.mark.parametrize("item", ["use_tf32=0", ":use_tf32=0", "cuda:=0", "cuda=0"])
def test_a_provider_option_names_its_provider(item: str) -> None:
    with pytest.raises(UsageError, match="--provider-option takes EP:KEY=VALUE"):
        options.ort_options([], [item])


@pytest.mark.parametrize(
    ("session", "provider", "named"),
    [(["a"], [], "--session-option"), ([], ["cuda:a"], "--provider-option"),
     (["a=1", "a=2"], [], "--session-option gives a two values"),
     ([], ["cuda:a=1", "cuda:a=2"], "--provider-option gives cuda:a two values")],
)  # fmt: skip
def test_the_message_names_the_option(session: list[str], provider: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        options.ort_options(session, provider)


def test_the_same_key_of_two_providers_are_two_options() -> None:
    found = options.ort_options([], ["cuda:a=1", "cpu:a=2"])
    assert found == {"provider.cuda.a": "1", "provider.cpu.a": "2"}
