"""The gate: what fails it, and what is no rule of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_compare import agreement, case, document, ran
from xbench.compare import compare
from xbench.errors import UsageError
from xbench.gate import RULES, gate, rules


def test_the_gate() -> None:
    slow, fast, gone, broken = (case(seed=seed) for seed in range(4))
    other = case(engine="tf")
    a = document(
        ran(slow, peak_memory_bytes=100), ran(fast), ran(gone, status="ok"), ran(broken), ran(other)
    )
    b_slow, b_broken = ran(slow, 1.3, peak_memory_bytes=120), ran(broken, status="crashed")
    extra = ran(case(engine="ort", source="tf"))
    b = document(
        b_slow, ran(fast, 0.5), ran(gone), b_broken, extra,
        agreements=[agreement(b_slow, extra, "disagree"), agreement(extra, b_slow, "disagree")],
    )  # fmt: skip
    found = compare(a, b)
    (reason,) = gate(found, "slower=5%")
    assert "seed 0, ratio 1.3" in reason
    assert "seed 1" not in reason
    assert gate(found, "slower") != []
    assert gate(found, "slower=50%") == []
    assert gate(found, "memory=10") != []
    assert gate(found, "memory=25%") == []
    (missing,) = gate(found, "missing")
    assert "crashed" in missing
    assert "tf cpu" in missing
    assert "seed 2" not in missing
    (disagree,) = gate(found, "disagree")
    assert "ort(tf) cpu on outputs" in disagree
    assert len(gate(found, "slower=5%, disagree,missing ,memory=10%")) == 4


def test_what_did_not_run_in_a_is_not_missing_in_b() -> None:
    dead = ran(case(seed=1), status="unavailable")
    alone = ran(case(engine="tf"), status="unavailable")
    found = compare(document(ran(), dead, alone), document(ran(), dead))
    assert gate(found, "missing") == []


def test_more_memory_for_more_work_is_no_breach() -> None:
    a, b = ran(peak_memory_bytes=100), ran(case(batch=8), peak_memory_bytes=800)
    assert gate(compare(document(a), document(b)), "memory=10%") == []


def test_inconclusive_fails_nothing_and_is_counted() -> None:
    found = compare(document(ran()), document(ran(time_s=1.06)))
    assert gate(found, "slower") == []
    assert any("1 of 1 ratios is inconclusive" in note for note in found.notes)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "at least one"),
        ("slower,", "at least one"),
        ("faster", "unknown condition"),
        ("slowr=5%", "did you mean 'slower'"),
        ("slower=", "not a percentage"),
        ("slower=-5%", "not a percentage"),
        ("slower=five", "not a percentage"),
        ("slower=nan", "not a percentage"),
        ("slower=inf%", "not a percentage"),
        ("slower=1e3", "not a percentage"),
        ("slower=5%%", "not a percentage"),
        ("slower=" + "9" * 400, "not a percentage"),
        ("slower=1_0", "not a percentage"),
        ("slower=\u0665", "not a percentage"),
        ("slower,slower=5%", "more than once"),
        ("disagree=5%", "takes no value"),
        ("missing=", "takes no value"),
        ("memory", "needs a percentage"),
        ("SLOWER", "did you mean 'slower'"),
    ],
)
def test_bad_gates(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rules(spec)


@given(st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 3)), st.booleans(), st.booleans())
def test_percentages_are_read_as_written(number: float, sign: bool, space: bool) -> None:
    text = f"slower{' = ' if space else '='}{number:.3f}{'%' if sign else ''}"
    (rule,) = rules(text)
    assert rule.limit == pytest.approx(number / 100, abs=1e-12)


@given(st.permutations(["slower=5%", "disagree", "missing", "memory=1.5%"]), st.integers(1, 4))
def test_any_order_of_rules(words: list[str], count: int) -> None:
    found = rules(",".join(words[:count]))
    assert [rule.word for rule in found] == [word.partition("=")[0] for word in words[:count]]


@given(st.text(max_size=30))
def test_any_text_is_rules_or_a_usage_error(text: str) -> None:
    try:
        found = rules(text)
    except UsageError:
        return
    assert found
    assert {rule.word for rule in found} <= set(RULES)
    assert all(rule.limit is None or 0 <= rule.limit < math.inf for rule in found)
