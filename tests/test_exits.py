"""The exit status: every reason alone, together, allowed and strict."""

from __future__ import annotations

import itertools

import pytest

from xbench.exits import with_exit
from xbench.result import SCHEMA, STATUSES, Agreement, CaseResult, Document, Run
from xbench.spec import Case


def result(engine: str, status: str = "ok", *, asked: bool = True) -> CaseResult:
    case = Case(model="m", size="tiny", phase="infer", engine=engine, device="cpu")
    return CaseResult(key=case.key, case=case, status=status, asked=asked)


TORCH, TF, ORT = (result(name) for name in ("torch", "tf", "ort"))


def verdict(verdict: str, a: CaseResult = ORT, what: str = "outputs") -> Agreement:
    return Agreement(
        a=a.key, b=TORCH.key, what=what, tensors=[], evidence=None, tolerance=None,
        verdict=verdict, sentence="",
    )  # fmt: skip


def document(
    *cases: CaseResult, agreements: tuple[Agreement, ...] = (), interrupted: bool = False
) -> Document:
    run = Run(id="r", started="", command=[], xbench="", interrupted=interrupted)
    return Document(
        schema=SCHEMA, run=run, environments={}, cases=[TORCH, TF, ORT, *cases],
        agreements=list(agreements),
    )  # fmt: skip


def exit_of(document: Document, *allow: str, strict: bool = False) -> tuple[int, list[str]]:
    done = with_exit(document, allow=allow, strict=strict)
    return done.exit_status, done.exit_reasons


def test_all_ran_and_agreed() -> None:
    assert exit_of(document(agreements=(verdict("agree"),))) == (0, [])
    assert exit_of(document(agreements=(verdict("agree"),)), strict=True) == (0, [])


@pytest.mark.parametrize("status", STATUSES)
def test_whatever_is_not_ok_exits_3_unless_allowed(status: str) -> None:
    run = document(result("x", status))
    assert exit_of(run) == ((0, []) if status == "ok" else (3, [f"{status}: infer x cpu"]))
    assert exit_of(run, status) == (0, [])
    other = "timeout" if status != "timeout" else "failed"
    assert exit_of(run, other) == exit_of(run)


def test_only_the_allowed_status_is_forgiven() -> None:
    run = document(result("x", "unavailable"), result("y", "crashed"))
    assert exit_of(run, "unavailable") == (3, ["crashed: infer y cpu"])
    assert exit_of(run, "unavailable", "crashed") == (0, [])


def test_each_status_is_one_reason_that_names_its_cases() -> None:
    run = document(result("x", "failed"), result("y", "crashed"), result("z", "failed"))
    assert exit_of(run)[1] == ["crashed: infer y cpu", "failed: infer x cpu, infer z cpu"]


def test_a_case_that_only_served_a_verdict_does_not_count() -> None:
    assert exit_of(document(result("x", "crashed", asked=False))) == (0, [])


def test_a_disagreement_exits_4_and_cannot_be_allowed() -> None:
    run = document(agreements=(verdict("disagree"),))
    reasons = ["disagree: ort cpu and torch cpu on outputs"]
    assert exit_of(run) == (4, reasons)
    assert exit_of(run, *STATUSES, "disagree") == (4, reasons)


def test_inconclusive_counts_only_when_strict() -> None:
    run = document(agreements=(verdict("inconclusive"),))
    assert exit_of(run) == (0, [])
    assert exit_of(run, strict=True) == (3, ["inconclusive: ort cpu and torch cpu on outputs"])


def test_a_pair_is_named_once() -> None:
    pair = verdict("disagree", what="loss")
    run = document(agreements=(pair, pair, verdict("disagree", TF, "gradients")))
    assert exit_of(run)[1] == [
        "disagree: ort cpu and torch cpu on loss, tf cpu and torch cpu on gradients"
    ]


def test_a_verdict_on_a_witness_is_named() -> None:
    witness = result("x", asked=False)
    run = document(witness, agreements=(verdict("disagree", witness),))
    assert exit_of(run) == (4, ["disagree: x cpu and torch cpu on outputs"])


def test_the_largest_of_all_reasons_wins_and_all_are_named() -> None:
    for stopped, disagree, unsure, interrupted, strict in itertools.product(
        (False, True), repeat=5
    ):
        agreements = [verdict("agree")]
        agreements += [verdict("disagree")] if disagree else []
        agreements += [verdict("inconclusive", TF)] if unsure else []
        run = document(
            *([result("x", "timeout")] if stopped else []),
            agreements=tuple(agreements),
            interrupted=interrupted,
        )
        codes = {
            "timeout": 3 if stopped else 0,
            "disagree": 4 if disagree else 0,
            "inconclusive": 3 if unsure and strict else 0,
            "interrupted": 130 if interrupted else 0,
        }
        status, reasons = exit_of(run, strict=strict)
        assert status == max(codes.values())
        assert [reason.split(":")[0] for reason in reasons] == [n for n, c in codes.items() if c]


def test_nothing_else_of_the_document_changes() -> None:
    run = document(result("x", "failed"))
    done = with_exit(run, allow=(), strict=False)
    assert (done.run, done.cases, done.agreements) == (run.run, run.cases, run.agreements)
    assert (run.exit_status, run.exit_reasons) == (0, [])
