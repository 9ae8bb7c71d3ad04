"""The report on a run of many models: one table per question, whole at any usual width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from tests.test_terminal import agreement, case, profile, ran, render, squeezed
from xbench import exits
from xbench import run as running
from xbench.errors import UsageError
from xbench.part import of_models
from xbench.plan import Request
from xbench.progress import Progress
from xbench.reports import suite
from xbench.result import SCHEMA, CaseResult, Document, Run, Soak, SoakWindow
from xbench.spec import Case

MODELS = ("alexnet", "autoencoder", "deepq", "seq2seq", "vgg")
INFER: tuple[tuple[str, str | None], ...] = (
    ("torch", None),
    ("tf", None),
    ("ort", "torch"),
    ("ort", "tf"),
)
REASON = "CUDA does not work here: libcudnn.so.9: cannot open shared object file; ask for --ep cpu"
SENTENCE = "gradients of lstm.0.weight differ by 3.1e-03 RMS, 412 times what rounding explains"
WIDTHS = (80, 160)


def of(model: str, engine: str, source: str | None, phase: str, **more: object) -> Case:
    return case(engine, source, "cpu", phase, model=model, **more)


def timed(cases: list[Case], first_s: float) -> list[CaseResult]:
    """Each case measured; every one after the first is half as slow again as the one before."""
    return [
        ran(what, first_s * 1.5**k, to=cases[0].key if k else "", ratio=1.5**k)
        for k, what in enumerate(cases)
    ]


def document() -> Document:
    """Five models; deepq infers at two batches, vgg trains on one engine alone, and fails there."""
    results = []
    agreements = []
    for number, model in enumerate(MODELS):
        for batch in (1, 32) if model == "deepq" else (2,):
            cases = [of(model, *which, "infer", batch=batch) for which in INFER]
            results += timed(cases, 1e-5 * 10**number)
        training = [of(model, *which, "train") for which in INFER[:2]]
        if model == "vgg":
            failed = training[1]
            results.append(ran(training[0], 0.4))
            results.append(
                CaseResult(key=failed.key, case=failed, status="unavailable", reason=REASON)
            )
        else:
            results += timed(training, 0.1)
    by_key = {result.key: result for result in results}
    first = {result.case.model: result for result in reversed(results)}
    for result in results:
        if result.status == "ok":
            what = "outputs" if result.case.phase == "infer" else "gradients"
            agreements.append(agreement(result, first[result.case.model], what, "agree", "agrees"))
    for model, engine, verdict in (
        ("seq2seq", "tf", "disagree"),
        ("alexnet", "torch", "inconclusive"),
    ):
        off = by_key[of(model, engine, None, "train").key]
        agreements.append(agreement(off, first[model], "gradients", verdict, SENTENCE))
    found = Document(
        schema=SCHEMA,
        run=Run(id="5f3a9c", started="2026-03-01T10:12:13", command=["xbench"], xbench="0.1.0"),
        environments={},
        cases=results,
        agreements=agreements,
    )
    return exits.with_exit(found, allow=[], strict=False)


@pytest.fixture(scope="module")
def doc() -> Document:
    return document()


def part(text: str, title: str) -> list[str]:
    """The lines of the table under a title, up to the next title."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next(
        (i for i, line in enumerate(lines[start + 1 :], start + 1) if not line.strip()), len(lines)
    )
    return lines[start:end]


def row(lines: list[str], name: str) -> list[str]:
    """The cells of a row, and of the line below it where that has no name."""
    place = next(i for i, line in enumerate(lines) if line.startswith(f"{name}  "))
    found = re.split(r"\s{2,}", lines[place].strip())[1:]
    below = lines[place + 1] if place + 1 < len(lines) else ""
    return found + (below.split() if below.startswith(" " * 10) else [])


SAME, FAST, WHERE = "The same?", "How fast?", "Where does the time go?"


# -- which report ----------------------------------------------------------------------------------


def test_few_models_have_tables_of_their_own(doc: Document) -> None:
    assert suite.is_suite(doc)
    few = of_models(doc, MODELS[: suite.MANY - 1])
    assert not suite.is_suite(few)
    text = render(few, 80)
    assert SAME not in text
    assert "Speed: alexnet small, infer" in text
    assert suite.is_suite(of_models(doc, MODELS[: suite.MANY]))


def test_the_part_of_a_run_that_is_about_a_model(doc: Document) -> None:
    one = of_models(doc, ["seq2seq"])
    assert {result.case.model for result in one.cases} == {"seq2seq"}
    assert len(one.cases) == 6
    assert len(one.agreements) == 7
    assert one.exit_status == 4
    assert [reason.partition(":")[0] for reason in one.exit_reasons] == ["disagree"]
    both = of_models(doc, ["vgg", "alexnet"])
    assert (both.exit_status, both.exit_reasons) == (3, ["unavailable: train vgg tf cpu"])
    assert of_models(doc, ["deepq"]).exit_status == 0
    strict = of_models(exits.with_exit(doc, allow=["unavailable"], strict=True), ["alexnet"])
    assert strict.exit_status == 3, "an inconclusive verdict counts where it did in the whole run"
    assert (
        of_models(exits.with_exit(doc, allow=["unavailable"], strict=False), ["vgg"]).exit_status
        == 0
    )
    assert [result.case.model for result in both.cases] == ["alexnet"] * 6 + ["vgg"] * 6
    with pytest.raises(UsageError, match=r"unknown model of this run 'vg': did you mean 'vgg'"):
        of_models(doc, ["vgg", "vg"])


# -- the tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_no_line_is_wider_than_the_console(doc: Document, width: int) -> None:
    assert max(map(len, render(doc, width).splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_question_has_one_table_and_every_case_a_place(doc: Document, width: int) -> None:
    text = render(doc, width)
    for title in (SAME, FAST, WHERE):
        assert text.count(title) == 1
        for result in doc.cases:
            batch = f" {result.case.batch}" if result.case.batch != 2 else ""
            name = f"{result.case.model} {result.case.phase}{batch}"
            assert any(line.startswith(name) for line in part(text, title)), (title, name)
    for words in (REASON, SENTENCE):
        assert squeezed(words) in squeezed(text)
    assert "xbench show 5f3a9c MODEL" in text
    assert squeezed("exit 4: unavailable: train vgg tf cpu; disagree: ") in squeezed(text)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_case_is_shown_by_its_worst_verdict(doc: Document, width: int) -> None:
    lines = part(render(doc, width), SAME)
    assert lines[0].endswith("  33 agree, 1 inconclusive, 1 disagree")
    assert row(lines, "seq2seq train") == ["agree", "disagree", "-", "-"]
    assert row(lines, "alexnet train") == ["inconclusive", "agree", "-", "-"]
    assert row(lines, "deepq infer 32") == ["agree"] * 4
    text = squeezed(render(doc, width))
    told = "seq2seq train tf cpu against seq2seq infer torch cpu, gradients disagree: "
    assert squeezed(told + SENTENCE) in text


@pytest.mark.parametrize("width", WIDTHS)
def test_times_have_their_own_units_intervals_and_ratios(doc: Document, width: int) -> None:
    text = render(doc, width)
    lines = part(text, FAST)
    assert row(lines, "alexnet infer") == [
        "10.0 us ±1.3", "15.0 us ±1.3", "22.5 us ±1.3", "33.8 us ±1.3",
        "1", "1.500", "slower", "2.250", "slower", "3.375", "slower",
    ]  # fmt: skip
    assert row(lines, "seq2seq infer")[:2] == ["10.0 ms ±1.3", "15.0 ms ±1.3"]
    assert row(lines, "vgg train") == ["400 ms ±1.3", "unavailable", "-", "-"]
    assert squeezed(f"vgg train tf cpu unavailable: {REASON}") in squeezed(text)


@pytest.mark.parametrize(("width", "whole"), [(60, False), (160, True)])
def test_classes_that_do_not_fit_are_added_up(doc: Document, width: int, whole: bool) -> None:
    text = render(doc, width)
    lines = part(text, WHERE)
    heads = " ".join(lines[1:3])
    for name in ("Convo-", "lution", "Element-", "unattri-"):
        assert name in heads
    assert ("other" in heads) != whole
    # The shares of a case fill its wall time, whatever the width.
    cells = lines[lines.index(next(x for x in lines if x.startswith("vgg infer"))) + 4].split()
    assert cells[0] == "ort(tf)"
    assert sum(map(float, cells[1:])) == pytest.approx(100, abs=0.5)
    rest = [line.rstrip() for line in lines if line.startswith("  other: ")]
    assert [line.endswith("Unknown") for line in rest] == ([] if whole else [True])


def test_a_share_is_of_its_own_case() -> None:
    quick, slow = profile(0.01), profile(10.0)
    columns = suite.share_columns([quick, None, slow], suite.classes_of([quick, slow]), 2)
    assert [column.header.replace("-\n", "") for column in columns] == [
        "Convolution", "Elementwise", "other", "unattributed",
    ]  # fmt: skip
    assert [column.cells[0] for column in columns] == ["63.0", "17.5", "9.1", "10.4"]
    assert [column.cells[0] for column in columns] == [column.cells[2] for column in columns]
    assert {column.cells[1] for column in columns} == {""}


def test_what_was_not_done_has_no_table(doc: Document) -> None:
    bare = [
        msgspec.structs.replace(r, profile=None, samples=[], latency=None, ratio=None)
        for r in doc.cases
    ]
    text = render(msgspec.structs.replace(doc, cases=bare), 80)
    assert squeezed(f"vgg train tf cpu unavailable: {REASON}") in squeezed(text)
    assert SAME in text
    assert FAST not in text
    assert WHERE not in text
    assert "nothing measured" in text
    text = render(msgspec.structs.replace(doc, agreements=[]), 80)
    assert SAME not in text
    assert FAST in text


def test_sizes_and_devices_are_named_where_they_differ(doc: Document) -> None:
    def moved(result: CaseResult, **changes: str) -> CaseResult:
        what = msgspec.structs.replace(result.case, **changes)
        return msgspec.structs.replace(result, key=what.key, case=what)

    cuda = [moved(result, device="cuda") for result in doc.cases]
    lines = part(render(msgspec.structs.replace(doc, cases=[*doc.cases, *cuda]), 160), FAST)
    assert "torch cuda" in lines[1]
    assert "torch cpu" in lines[1]
    full = [moved(result, size="full") for result in doc.cases]
    lines = part(render(msgspec.structs.replace(doc, cases=[*doc.cases, *full]), 80), FAST)
    assert row(lines, "vgg full infer")
    assert row(lines, "vgg small infer")


def test_many_engines_take_several_tables_of_the_same_rows(doc: Document) -> None:
    more = []
    for result in doc.cases:
        for threads in (1, 2, 4):
            what = msgspec.structs.replace(result.case, threads=threads)
            more.append(msgspec.structs.replace(result, key=what.key, case=what))
    text = render(msgspec.structs.replace(doc, cases=more), 80)
    assert "…" not in text
    heads = re.findall(r"^model, phase.*$", text, re.MULTILINE)
    assert len(heads) > 4
    for threads in (1, 2, 4):
        assert text.count(f"ort(torch), threads {threads}") >= 1


def test_soaks_of_many_models_are_told_too(doc: Document) -> None:
    windows = [SoakWindow(at_s=k, n=9, median_s=0.1, p99_s=None, memory_bytes=1) for k in range(3)]
    soaked = [
        msgspec.structs.replace(result, soak=Soak(duration_s=3.0, windows=windows, trends=[]))
        for result in doc.cases
    ]
    text = render(msgspec.structs.replace(doc, cases=soaked), 80)
    assert "Soak: seq2seq ort(tf) cpu, infer" in text
    assert text.count("Soak: ") == len(doc.cases)


def test_notes_that_differ_in_figures_alone_are_told_once(doc: Document) -> None:
    def noted(several: list[str], more: str = "") -> str:
        cases = [
            msgspec.structs.replace(result, notes=[note, more] if more else [note])
            for result, note in zip(doc.cases, several, strict=False)
        ]
        return squeezed(render(msgspec.structs.replace(doc, cases=cases, agreements=[]), 160))

    notes = [f"fc8.weight: 3 of 3 had {x} CPUs" for x in ("1.5", "12", "2e-05", "9.25")]
    text = noted(notes, "4 x")
    assert squeezed("4 of 4 cases: fc8.weight: 3 of 3 had 2e-05 to 12 CPUs") in text
    assert squeezed("4 of 4 cases: 4 x") in text
    text = noted(notes[:3])
    for name, note in zip(("torch", "tf", "ort(torch)"), notes, strict=False):
        assert squeezed(f"{name} cpu, infer: {note}") in text
    other = [*notes[:3], "fc7.weight: 3 of 3 had 1.5 CPUs"]
    assert squeezed("fc7.weight: 3 of 3 had 1.5 CPUs") in noted(other), "a name is no figure"


# -- a run -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sequences() -> Document:
    """Models whose inputs are sequences, by the fake runner; deepq infers at two batches."""
    request = Request(
        models=("deepq", "memnet", "seq2seq", "speech"),
        size="tiny",
        engines=("fake",),
        rounds=1,
        budget_s=0.02,
        steps=1,
    )
    return running.execute(request, Progress(), ["run"])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_sequence_models_make_a_suite(sequences: Document, width: int) -> None:
    text = render(sequences, width)
    names = [
        *(f"deepq infer {batch}" for batch in (1, 32)),
        "deepq train",
        *(f"{m} {phase}" for m in ("memnet", "seq2seq", "speech") for phase in ("infer", "train")),
    ]
    for name in names:
        # The mean of normalised features is nothing but rounding: the fake is off there.
        if not name.startswith("speech"):
            assert row(part(text, SAME), name)[0] == "agree"
        assert re.fullmatch(r"\S+ (us|ms|s) ±-\*?", row(part(text, FAST), name)[0])
        assert name in [line.strip() for line in part(text, WHERE)]
    assert "…" not in text


class Told(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.later_s: list[float | None] = []

    def later(self, seconds: float | None) -> None:
        self.later_s.append(seconds)

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        assert weight > 0
        self.labels.append(label)
        yield


def test_a_run_whose_time_is_spent_gives_every_case_six_rounds_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xbench.schedule.SUITE_S", 0.1)
    told = Told()
    request = Request(models=("prednet",), size="tiny", engines=("fake",), steps=1)
    found = running.execute(request, told, ["run"])
    assert [len(r.samples) for r in found.cases if r.asked] == [6, 6]
    notes = [note for note in found.notes if "rounds of a run" in note]
    assert len(notes) == 1
    assert notes[0].startswith("2 cases got 6 rounds each, not 30")
    # What is being done, of how much, and from the first process on what is still to come.
    rounds = [label for label in told.labels if label.startswith("round")]
    assert [label.partition(":")[0] for label in rounds] == [
        f"round {number}/6, case {case_}/2" for number in range(1, 7) for case_ in (1, 2)
    ]
    assert {label.partition(": ")[2] for label in rounds} == {
        "prednet infer fake cpu", "prednet train fake cpu",
    }  # fmt: skip
    assert [x for x in told.labels if x.startswith("profiling")] == [
        "profiling 1/2: prednet infer fake cpu", "profiling 2/2: prednet train fake cpu",
    ]  # fmt: skip
    assert told.later_s[0] is None, "before anything was measured"
    assert told.later_s[1] is None
    known = [seconds for seconds in told.later_s if seconds is not None]
    assert len(known) == len(told.later_s) - 2
    assert all(seconds > 0 for seconds in known[:-1])
    assert known[-1] == 0


def test_a_run_without_speed_says_nothing_of_its_time_before_it_computes() -> None:
    told = Told()
    request = Request(
        models=("prednet",), size="tiny", engines=("fake",), steps=1, speed=False, profile=False
    )
    running.execute(request, told, ["run"])
    assert told.later_s == [None, 0.0]
