"""Which case of one run meets which of another, on cases made here."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_compare import case, document, ran
from xbench.compare import compare
from xbench.errors import UsageError
from xbench.pairing import match
from xbench.result import CaseResult
from xbench.spec import Case


def paired(a: list[Case], b: list[Case]) -> list[tuple[Case, Case]]:
    found = match([ran(x) for x in a], [ran(x) for x in b])
    assert len(found.pairs) + len(found.left_a) == len(a)
    assert len(found.pairs) + len(found.left_b) == len(b)
    return [(pair.a.case, pair.b.case) for pair in found.pairs]


def test_the_same_identity_comes_first() -> None:
    one, two = case(threads=1), case(threads=2)
    assert paired([one, two], [two, one]) == [(one, one), (two, two)]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("threads", 2, "threads 1 -> 2"),
        ("batch", 8, "batch 1 -> 8"),
        ("precision", "bf16", "precision fp32 -> bf16"),
        ("seed", 7, "seed 0 -> 7"),
        ("env", "old", "env default -> old"),
        ("draws", "native", "draws fed -> native"),
        ("concurrency", 4, "concurrency 1 -> 4"),
        ("loss", "mse", "loss none -> mse"),
        ("options", {"session.x": "1"}, "session.x none -> 1"),
        ("shape", {"x": (2, 3)}, "shape x 1x3 -> x 2x3"),
        ("cycle", ({"x": (2, 3)},), "cycle none -> x 2x3"),
    ],
)
def test_a_field_that_differs_is_named(field: str, value: object, told: str) -> None:
    found = compare(document(ran(case())), document(ran(case(**{field: value}), 1.5)))
    row = found.rows[0]
    assert told in row.sentence
    assert [d.kind for d in row.differences] == ["identity"]
    assert any(d.kind == "identity" and d.cases == 1 for d in found.differences)
    # More to do is not slower.
    work = field in ("batch", "shape", "cycle", "concurrency", "loss")
    assert row.verdict == ("" if work else "slower")
    assert ("other work" in row.sentence) is work
    assert row.ratio == pytest.approx(1.5)


@pytest.mark.parametrize("field", ["model", "size", "phase", "engine", "device"])
def test_other_things_are_never_paired(field: str) -> None:
    other = case(**{field: "other"})
    assert paired([case()], [other]) == []
    with pytest.raises(UsageError, match=r"no case in common.*prednet small infer torch cpu"):
        compare(document(ran()), document(ran(other)))


def test_a_sweep_is_paired_by_what_it_has_in_common() -> None:
    a = [case(threads=1, batch=n) for n in (1, 4, 8)]
    b = [case(threads=2, batch=n) for n in (8, 4, 2)]
    found = match([ran(x) for x in a], [ran(x) for x in b])
    assert {(p.a.case.batch, p.b.case.batch) for p in found.pairs} >= {(4, 4), (8, 8)}


def test_what_fits_several_fits_none() -> None:
    a = [case(threads=1, batch=4), case(threads=9, batch=9, seed=1)]
    b = [case(threads=2, batch=4), case(threads=1, batch=8), case(threads=9, batch=9, seed=1)]
    found = compare(document(*map(ran, a)), document(*map(ran, b)))
    assert len(found.rows) == 1
    assert [single.status for single in found.unmatched_a] == ["ok"]
    assert len(found.unmatched_b) == 2
    assert any("several cases of B" in note for note in found.notes)


def test_a_file_is_known_by_its_content_then_by_its_name() -> None:
    old = case(model="net", size="file", engine="ort", source="file", graph="aaa")
    renamed = case(model="other", size="file", engine="ort", source="file", graph="aaa")
    changed = case(model="net", size="file", engine="ort", source="file", graph="bbb")
    assert paired([old], [changed, renamed]) == [(old, renamed)]
    row = compare(document(ran(old)), document(ran(changed, 1.5))).rows[0]
    assert "graph aaa -> bbb" in row.sentence
    assert "content is not the same" in row.sentence
    assert row.verdict == "slower"


def test_keys_of_another_version_do_not_matter() -> None:
    old = msgspec.structs.replace(ran(), key="0123456789")
    row = compare(document(old), document(ran())).rows[0]
    assert (row.a_key, row.b_key) == ("0123456789", case().key)
    assert row.differences == ()


def test_the_arm_is_no_difference() -> None:
    row = compare(document(ran()), document(ran(case(arm="B")))).rows[0]
    assert row.differences == ()


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.sampled_from("ab")),
        unique=True, max_size=8,
    ),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.sampled_from("ab")),
        unique=True, max_size=8,
    ),
)  # fmt: skip
def test_pairing_is_one_to_one_and_keeps_all_equals(
    a: list[tuple[int, int, int, str]], b: list[tuple[int, int, int, str]]
) -> None:
    def cases(values: list[tuple[int, int, int, str]]) -> list[CaseResult]:
        made = [case(threads=t, batch=n, seed=s, env=e) for t, n, s, e in values]
        return [CaseResult(key=x.key, case=x, status="ok") for x in made]

    found = match(cases(a), cases(b))
    ours, theirs = ([getattr(p, side).key for p in found.pairs] for side in ("a", "b"))
    assert len(set(ours)) == len(ours)
    assert len(set(theirs)) == len(theirs)
    same = {p.a.key for p in found.pairs if p.a.key == p.b.key}
    assert same == {x.key for x in cases(a)} & {x.key for x in cases(b)}
    back = match(cases(b), cases(a))
    assert {(p.b.key, p.a.key) for p in back.pairs} == {(p.a.key, p.b.key) for p in found.pairs}
