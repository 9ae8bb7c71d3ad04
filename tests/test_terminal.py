"""The terminal report, on documents made here."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from xbench import listing, registry, speed
from xbench.listing import Listed
from xbench.models.prednet import SPEC
from xbench.reports import format as fmt
from xbench.reports import terminal
from xbench.result import (
    SCHEMA,
    Agreement,
    CaseResult,
    Document,
    Evidence,
    Latency,
    LossTable,
    OpTime,
    Placement,
    Profile,
    Ratio,
    Run,
    Samples,
    Soak,
    SoakWindow,
    TensorMetrics,
    Trend,
    Visit,
)
from xbench.spec import Case

CUDA_REASON = (
    "[red]CUDA[/red] does not work here: libcudnn.so.9: cannot open shared object file; found "
    "list[int] of paths /usr/lib/x86_64-linux-gnu:/opt/very/long/path/that/does/not/end/soon/lib "
    ":boom: install the extra with GPU libraries, or ask for --ep cpu"
)
CRASH_REASON = (
    "the worker died of signal 11 \x1b[31m(SIGSEGV)\x1b[0m after 0.4 s; stderr:\nlast line"
)
DISAGREEMENT = (
    "gradients of lstm.0.weight differ by 3.1e-03 RMS, 412 times what rounding explains; the first "
    "tensor that departs is E0[t=1]"
)
DOUBT = "ort(tf) cpu is off: the error is 2.3 times the limit: between rounding and a fault"
INFER: tuple[tuple[str, str | None, str], ...] = (
    ("torch", None, "cpu"),
    ("torch-compile", None, "cpu"),
    ("tf", None, "cpu"),
    ("tf-xla", None, "cpu"),
    ("ort", "torch", "cpu"),
    ("ort", "tf", "cpu"),
)


def case(
    engine: str, source: str | None, device: str, phase: str = "infer", **more: object
) -> Case:
    fields = {"model": "prednet", "size": "small", "threads": 1, "batch": 2, **more}
    return Case(phase=phase, engine=engine, source=source, device=device, **fields)  # type: ignore[arg-type]


def profile(wall_s: float, train: bool = False) -> Profile:
    """Ten operators or more, one of them unknown, that do not fill the wall time."""
    table = [
        ("Conv", "Convolution", "conv", 0.41, 80.0),
        ("FusedConv[Relu]", "Convolution", "conv-fused", 0.22, 40.0),
        ("Mul", "Elementwise", "multiply", 0.07, 240.0),
        ("Add", "Elementwise", "add", 0.06, 240.5),
        ("Concat", "DataMovement", "concat", 0.04, 70.0),
        ("ReduceMean", "Reduction/Expansion", "mean", 0.03, 1.0),
        ("Clip", "Elementwise", "clip", 0.025, 120.0),
        ("Tanh", "Elementwise", "tanh", 0.02, 40.0),
        ("MyCustomOp", "Unknown", "", 0.011, 10.0),
        ("MaxPool", "Reduction/Expansion", "pool", 0.01, 30.0),
    ]
    stages = ("forward", "backward") if train else ("forward",)
    ops = [
        OpTime(op, kind, fine, stage, count, wall_s * part / len(stages))
        for op, kind, fine, part, count in table
        for stage in stages
    ]
    return Profile(
        wall_s=wall_s,
        steps=5,
        unattributed_s=wall_s - sum(op.time_s for op in ops),
        truncated=train,
        correction="7.2 us a node subtracted, from a graph of 200 Identity nodes",
        ops=ops,
    )


def ran(
    what: Case,
    median_s: float,
    *,
    to: str = "",
    steady: bool = True,
    ratio: float = 1.0,
    processes: int = 15,
    **more: object,
) -> CaseResult:
    samples = [
        Samples(process=p, round=p, values_s=[median_s] * 3, steady=steady)
        for p in range(processes)
    ]
    fields: dict[str, object] = {
        "latency": Latency(
            median_s=median_s,
            ci_low_s=median_s * 0.99,
            ci_high_s=median_s * 1.013,
            p90_s=None,
            p99_s=None,
            n=3 * processes,
            processes=processes,
        ),
        "ratio": judged(to, ratio, processes) if to else None,
        "items_per_s": what.batch / median_s,
        "first_run_s": median_s * 7,
        "load_s": 0.31,
        "compile_s": 12.5 if "compile" in what.engine else None,
        "peak_memory_bytes": 312 * 2**20,
        "placement": [Placement("cpu", 971)],
        "profile": profile(median_s, what.phase == "train"),
        **more,
    }
    return CaseResult(key=what.key, case=what, status="ok", samples=samples, **fields)  # type: ignore[arg-type]


def judged(to: str, ratio: float, rounds: int) -> Ratio:
    """A ratio with an interval of 3 % on both sides, from few rounds without a claim."""
    p = 1e-6 if abs(ratio - 1) > 0.03 and rounds > 2 else 0.4
    bare = Ratio(to=to, ratio=ratio, ci_low=ratio * 0.97, ci_high=ratio * 1.03, rounds=rounds, p=p)
    return speed.judge([bare], [0.012])[0]


def tensor(name: str, scaled: float) -> TensorMetrics:
    return TensorMetrics(
        name=name, bitwise_equal=False, rms=scaled / 3, scaled=scaled, max_ulp=1234.0
    )


def agreement(a: CaseResult, b: CaseResult, what: str, verdict: str, sentence: str) -> Agreement:
    scale = {"agree": 1.0, "inconclusive": 23.0, "disagree": 412.0}[verdict]
    name = "prediction" if what == "outputs" else "lstm.0.weight"
    return Agreement(
        a=a.key,
        b=b.key,
        what=what,
        verdict=verdict,
        sentence=sentence,
        tolerance=1.1e-7,
        tensors=[tensor("other", 9.0), tensor(name, 3e-7 * scale)],
        evidence=Evidence(
            tensor=name,
            error_rms=1e-7 * scale,
            source_error_rms=6e-8,
            spread_rms=1.1e-7,
            rounding_rms=9e-8,
            draws=8,
            spread_ulps=1,
            decided_by="1-ULP spread",
        ),
    )


def document() -> Document:
    infer = [case(*which) for which in INFER]
    ratios = (1.0, 0.71, 1.9, 1.32, 0.63, 1.01)
    results = [
        ran(what, 0.1234 * ratio, to=infer[0].key if i else "", ratio=ratio, steady=i != 3)
        for i, (what, ratio) in enumerate(zip(infer, ratios, strict=True))
    ]
    mixed = ran(
        case("ort", "tf", "cuda"),
        0.0123,
        to=infer[0].key,
        ratio=0.1,
        processes=2,
        placement=[
            Placement("CUDAExecutionProvider", 968),
            Placement("CPUExecutionProvider", 3, ops={"Shape": 2, "Gather": 1}),
        ],
    )
    trained = [case(*which, "train") for which in (INFER[0], INFER[2], INFER[4])]
    training = [
        ran(
            what,
            0.4,
            to="" if i == 0 else trained[0].key,
            ratio=1 + i,
            loss=[0.31 / (step + 1) for step in range(8)],
        )
        for i, what in enumerate(trained)
    ]
    double = ran(case("torch", None, "cpu", precision="fp64"), 0.31)
    cuda = case("torch", None, "cuda")
    crashed = case("tf-xla", None, "cpu", "train")
    results += [
        double,
        mixed,
        CaseResult(key=cuda.key, case=cuda, status="unavailable", reason=CUDA_REASON),
        *training,
        CaseResult(key=crashed.key, case=crashed, status="crashed", reason=CRASH_REASON),
    ]
    return Document(
        schema=SCHEMA,
        run=Run(
            id="5f3a9c", started="2026-03-01T10:12:13", command=["xbench", "run"], xbench="0.1.0"
        ),
        environments={
            "e1": {
                "cpu": "Xeon Platinum 8370C",
                "python": "3.12.3",
                "cpus": "4",
                "memory_gib": "15.6",
                "torch": "2.13.0",
                "os": "Linux 6.8",
            },
            "e2": {"cpu": "Xeon Platinum 8370C", "python": "3.12.3", "tensorflow": "2.21.0"},
        },
        cases=results,
        agreements=[
            *(agreement(r, double, "outputs", "agree", "agrees") for r in results[:5]),
            agreement(results[5], results[2], "outputs", "inconclusive", DOUBT),
            agreement(training[1], training[0], "loss", "agree", "agrees"),
            agreement(training[2], training[0], "gradients", "disagree", DISAGREEMENT),
        ],
        losses=[
            LossTable(
                model="prednet",
                batch=2,
                loss="L0",
                data="Enduro, 32 clips of 10 frames",
                baseline_name="copy last frame",
                baseline=[0.05] * 8,
            )
        ],
        notes=["the A/A floor of this machine is 2.1 %"],
        exit_status=4,
        exit_reasons=["1 case crashed", "1 disagreement"],
    )


def render(doc: Document, width: int, **options: object) -> str:
    out = io.StringIO()
    terminal.show(doc, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


WIDTHS = (80, 100, 160)


def squeezed(text: str) -> str:
    """Without any space, so that wrapping does not matter."""
    return re.sub(r"\s+", "", text)


def with_cases(doc: Document, *cases: CaseResult, **more: object) -> Document:
    return msgspec.structs.replace(doc, cases=list(cases), agreements=[], losses=[], **more)


def row_of(text: str, label: str) -> str:
    """The first row of a table that begins with a label."""
    return next(line for line in text.splitlines() if line.startswith(f"{label}  "))


@pytest.fixture(scope="module")
def doc() -> Document:
    return document()


@pytest.fixture(scope="module")
def wide(doc: Document) -> str:
    return render(doc, 160)


@pytest.mark.parametrize("width", [40, *WIDTHS])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_console(doc: Document, width: int, colour: bool) -> None:
    text = render(doc, width, force_terminal=colour, color_system="truecolor" if colour else None)
    lines = [Text.from_ansi(line).cell_len for line in text.splitlines()]
    assert max(lines) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_case_reason_sentence_and_note_is_there(doc: Document, width: int) -> None:
    text = render(doc, width)
    for result in doc.cases:
        assert any(line.startswith(result.case.label) for line in text.splitlines())
    for words in (CUDA_REASON, "died of signal 11 (SIGSEGV) after 0.4 s; stderr:\n  last line"):
        assert squeezed(words) in squeezed(text)
    against = f"ort(torch) cpu against torch cpu, gradients disagree: {DISAGREEMENT}"
    for words in (against, f"outputs inconclusive: {DOUBT}", doc.notes[0]):
        assert squeezed(words) in squeezed(text)
    assert text.splitlines()[-1].strip() == "exit 4: 1 case crashed; 1 disagreement"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_figure_is_cut(doc: Document, width: int) -> None:
    """Every table has all its columns whole: nothing is elided, no row is wrapped."""
    text = render(doc, width)
    assert "…" not in text
    speed, _, rest = text.partition("Speed: prednet small, train")
    assert row_of(speed, "torch-compile cpu").split()[2:][:5] == [
        "ok",
        "87.6",
        "1.3",
        "0.710",
        "3.0",
    ]
    last = row_of(speed, "ort(tf) cuda").rstrip()
    assert last.endswith("cuda 968, cpu 3" if width > 80 else "inconclusive")
    judged = row_of(rest, "ort(tf) cpu").split()
    assert judged[judged.index("2.3e-06") + 1] == "1.1e-07" or width == 80
    assert judged[-2:] == ["1-ULP", "spread"], "what decided is there at any width"
    operators = rest.split("Operators: ")[1:]
    assert len(operators) == sum(result.profile is not None for result in doc.cases)
    assert all("% of wall" in part for part in operators)


def test_narrow_names_what_it_leaves_out_and_wide_leaves_nothing_out(
    doc: Document, wide: str
) -> None:
    hint = re.search(r"left out at 80 columns: (.*)", squeeze_lines(render(doc, 80)))
    assert hint
    assert {"load ms", "max ulp", "kind"} <= set(hint[1].partition(" exit")[0].split(", "))
    assert "left out" not in wide
    for header in ("compile", "first run", "nodes ran on", "decided by", "kind", "stage"):
        assert header in wide


def squeeze_lines(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def operator_rows(part: str) -> dict[str, float]:
    """Name -> time of one printed operator table."""
    lines = part.splitlines()
    header = next(line for line in lines if line.startswith("operator "))
    end = header.index(" a step") + len(" a step")
    rows: dict[str, float] = {}
    for line in lines[lines.index(header) + 1 :]:
        value = re.search(r"\S+$", line[:end])
        if line.startswith("─") or value is None:
            continue
        rows[f"{len(rows)} {line.split('  ')[0]}"] = float(value[0])
        if line.startswith("wall"):
            return rows
    raise AssertionError("no wall row")


@pytest.mark.parametrize("width", WIDTHS)
def test_operator_rows_add_up_to_the_wall(doc: Document, width: int) -> None:
    parts = render(doc, width).split("Operators: ")[1:]
    assert parts
    for part in parts:
        rows = operator_rows(part)
        *names, last = rows
        assert last.endswith(" wall")
        assert names[-1].endswith(" unattributed")
        assert "other operators" in names[-2]
        assert len(names) == 10
        rounding = 0.5 * 10 ** -len(re.findall(r"wall +\d+\.(\d*)", part)[0])
        total = sum(rows[name] for name in names)
        assert total == pytest.approx(rows[last], abs=rounding * len(rows))
        assert rows[names[-2]] > 0


def test_class_shares_of_a_case_add_up(wide: str) -> None:
    part = wide.split("Where the time goes")[1].split("Operators")[0]
    rows = [line.split() for line in part.splitlines() if re.match(r"[A-Zu]\S+ +\d", line)]
    assert {"Convolution", "Unknown", "unattributed"} <= {row[0] for row in rows}
    for column in range(1, 9):
        assert sum(float(row[column]) for row in rows) == pytest.approx(100, abs=0.4)


def test_class_shares_are_split_over_tables_and_not_dropped(doc: Document) -> None:
    text = render(doc, 60)
    part = text.split("Where the time goes")[1].split("Operators")[0]
    rows = [line.split() for line in part.splitlines() if line.startswith("Convolution")]
    assert len(rows) > 1
    assert sum(len(row) - 1 for row in rows) == 8


def test_unknown_operators_and_a_truncated_profile_are_named(wide: str) -> None:
    assert "unknown operators, 1.1 % of wall: MyCustomOp" in wide
    assert "truncated: the profiler lost events" in wide
    assert "7.2 us a node subtracted" in wide


def test_piped_output_has_no_escape_codes_and_is_wide(
    doc: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    out = io.StringIO()
    terminal.show(doc, terminal.make_console(out))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out.getvalue())
    assert out.getvalue() == render(doc, 160)


def test_no_color_means_no_colour(doc: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[[\d;]*3\dm")
    assert colour.search(render(doc, 80, force_terminal=True, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    text = render(doc, 80, force_terminal=True, color_system="standard")
    assert not colour.search(text)


def test_verdicts_are_coloured(doc: Document) -> None:
    text = render(doc, 160, force_terminal=True, color_system="standard")
    for codes, word in (("32", "agree"), ("1;31", "disagree"), ("33", "inconclusive")):
        assert re.search(rf"\x1b\[{codes}m{word} *\x1b\[0m", text)


def test_names_from_outside_cannot_steer_the_terminal(doc: Document) -> None:
    """Markup, emoji codes and escape sequences of reasons, notes and operators are inert."""
    evil = "[bold]x[/bold] [/] list[int] :smile: \x1b]0;title\x07\x1b[2J\x9b31mhere"
    what = case("torch", None, "cpu")
    bad = profile(0.1)
    ops = [OpTime(evil, evil, evil, "forward", 1.0, 0.05)]
    result = ran(what, 0.1, notes=[evil], profile=msgspec.structs.replace(bad, ops=ops))
    lost = CaseResult(key="x", case=case("tf", None, "cpu"), status="failed", reason=evil)
    text = render(
        with_cases(doc, result, lost, notes=[evil], exit_reasons=[evil]),
        160,
        force_terminal=True,
        color_system=None,
    )
    assert text.count("[bold]x[/bold] [/] list[int] :smile:") == 7
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_marks_of_the_speed_table(wide: str) -> None:
    infer = wide.split("Speed: prednet small, infer")[1].split("Speed: ")[0]
    assert "ok*" in row_of(infer, "tf-xla cpu")
    assert infer.count("ok*") == 1
    assert "* tf-xla cpu: not steady when warm-up ended, 15 of 15 processes" in infer
    rows, _, remarks = infer.partition("  ratio: time over")
    assert rows.count("~") == 2
    assert "~1.010" in row_of(infer, "ort(tf) cpu")
    few = row_of(infer, "ort(tf) cuda").split()
    assert few[2:8] == ["ok", "12.3", "-", "~0.100", "-", "inconclusive"]
    verdicts = [row_of(infer, name).split()[7 - (" " not in name)] for name in (
        "torch-compile cpu", "tf-xla cpu", "tf cpu", "ort(torch) cpu")]  # fmt: skip
    assert verdicts == ["faster", "slower", "slower", "faster"]
    words = squeeze_lines(remarks)
    assert "p at most 0.01 of one comparison and beyond the margin of 2.0 %" in words
    assert "(A/A floor of this machine up to 1.2 %)" in words
    assert "6 in 2" in row_of(infer, "ort(tf) cuda")
    assert row_of(infer, "torch cuda").split() == ["torch", "cuda", "unavailable"]
    assert "on cpu ran Shape 2, Gather 1" in infer
    assert "ratio: time over that of torch cpu" in infer


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [("faster", "0.980"), ("slower", "0.980"), ("same", "~0.980"), ("inconclusive", "~0.980")],
)
def test_only_a_ratio_that_claims_a_difference_is_shown_without_a_mark(
    doc: Document, verdict: str, shown: str
) -> None:
    first, other = case("torch", None, "cpu"), case("tf", None, "cpu")
    ratio = msgspec.structs.replace(judged(first.key, 0.98, 15), verdict=verdict)
    one = msgspec.structs.replace(ran(other, 0.098), ratio=ratio)
    row = row_of(render(with_cases(doc, ran(first, 0.1), one), 160), "tf cpu").split()
    assert shown in row
    assert verdict in row


@pytest.mark.parametrize("width", [80, 160])
def test_an_unknown_floor_is_said(doc: Document, width: int) -> None:
    first, other = case("torch", None, "cpu"), case("tf", None, "cpu")
    ratio = msgspec.structs.replace(judged(first.key, 0.98, 15), floor=None)
    one = msgspec.structs.replace(ran(other, 0.098), ratio=ratio)
    text = squeeze_lines(render(with_cases(doc, ran(first, 0.1), one), width))
    assert "A/A floor of this machine not known: xbench doctor --noise" in text


def test_columns_of_a_device_compilers_and_precisions(doc: Document) -> None:
    what = case("torch", None, "cuda", precision="bf16")
    result = ran(
        what, 0.1, device_median_s=0.09, end_to_end_s=0.12, compile_cold_s=30.0, compile_s=2.0,
        effective_precision="fp32", items_per_s=20.0,
    )  # fmt: skip
    text = render(with_cases(doc, result), 220)
    for header in ("on device", "with copies", "compile", "cold", "warm", "computes", "items"):
        assert header in text
    row = row_of(text, "torch cuda bf16").split()
    for figure in ("90.0", "120", "30.0", "2.00", "fp32", "20.0"):
        assert figure in row, figure


@pytest.mark.parametrize("width", [80, 160])
def test_shapes_in_turn_have_a_table(doc: Document, width: int) -> None:
    visits = [
        Visit(shape={"ids": shape}, first_s=9 * time_s, samples=Samples(p, p, [time_s] * 4))
        for p in range(3)
        for shape, time_s in (((1, 16), 0.001), ((8, 128), 0.004))
    ]
    text = render(with_cases(doc, ran(case("ort", "file", "cpu"), 0.005, visits=visits)), width)
    part = text.split("Shapes in turn: ort")[1].split("Where")[0]
    assert row_of(part, "ids=1x16").split()[:3] == ["ids=1x16", "9.00", "1.00"]
    assert row_of(part, "ids=8x128").split()[:3] == ["ids=8x128", "36.0", "4.00"]


@pytest.mark.parametrize("width", [80, 160])
def test_a_soak_has_a_table_and_its_trends(doc: Document, width: int) -> None:
    windows = [
        SoakWindow(at_s=5.0 * k, n=100, median_s=0.05, p99_s=None, memory_bytes=(100 + k) * 2**20)
        for k in range(60)
    ]
    soak = Soak(
        duration_s=300.0,
        windows=windows,
        trends=[
            Trend(what="median", change=0.001, p=0.5, verdict="steady"),
            Trend(what="memory", change=0.6, p=1e-9, verdict="rising"),
        ],
    )
    text = render(with_cases(doc, ran(case("torch", None, "cpu"), 0.05, soak=soak)), width)
    part = text.split("Soak: torch cpu, infer")[1].split("Where")[0]
    assert "300 s without pause" in part
    assert "memory rising +60.0 % (p 1e-09)" in part
    assert "median steady (p 0.5)" in part
    rows = [line.split() for line in part.splitlines() if re.match(r" *[\d.]+ +100 ", line)]
    assert len(rows) == 12
    assert (rows[0][-1], rows[-1][-1]) == ("100", "155")


@pytest.mark.parametrize(
    ("count", "who"), [(3, "torch cpu, batch 1, infer; "), (4, "4 of 4 cases: ")]
)
def test_a_note_that_many_cases_share_stands_once(doc: Document, count: int, who: str) -> None:
    cases = [
        ran(case("torch", None, "cpu", batch=n + 1), 0.1, notes=["busy"]) for n in range(count)
    ]
    text = squeeze_lines(render(with_cases(doc, *cases), 160))
    assert text.count("busy") == 1
    assert f"Notes {doc.notes[0]} {who}" in text


def test_equal_labels_are_told_apart(doc: Document) -> None:
    cases = [
        case("ort", "tf", "cpu", threads=n, options=o)
        for n in (1, 2)
        for o in ({}, {"ort-opt": "all"})
    ]
    text = render(with_cases(doc, *(ran(what, 0.1) for what in cases)), 160)
    for name in ("threads 1", "threads 2, ort-opt=all"):
        assert row_of(text, f"ort(tf) cpu, {name}")


def test_models_and_sizes_have_tables_of_their_own(doc: Document) -> None:
    text = render(
        with_cases(
            doc,
            ran(case("torch", None, "cpu"), 0.1),
            ran(case("torch", None, "cpu", size="full"), 9.0),
        ),
        80,
    )
    assert "Speed: prednet small, infer" in text
    assert "Speed: prednet full, infer" in text
    assert text.startswith("prednet small, prednet full")


def test_losses_beside_the_baseline(wide: str) -> None:
    part = wide.split("Loss by step: prednet small, L0")[1].split("Where the")[0]
    assert "Enduro, 32 clips of 10 frames" in part
    rows = [line.split() for line in part.splitlines() if re.match(r" +\d+ ", line)]
    assert [row[0] for row in rows] == [str(step) for step in range(1, 9)]
    assert rows[2] == ["3", *["0.103333"] * 3, "0.050000"]
    assert squeezed("copylastframe") in squeezed(part)


def test_ragged_and_long_losses(doc: Document) -> None:
    one, two = case("torch", None, "cpu", "train"), case("tf", None, "cpu", "train")
    cases = [ran(one, 0.1, loss=[0.5] * 1000), ran(two, 0.1, loss=[0.25, float("nan")])]
    full = msgspec.structs.replace(with_cases(doc, *cases), losses=doc.losses)
    part = render(full, 80).split("Loss by step")[1].split("Where the")[0]
    rows = [line.split() for line in part.splitlines() if re.match(r" *\d+ +\d", line)]
    assert rows[0] == ["1", "0.500000", "0.250000", "0.050000"]
    assert rows[-1] == ["1000", "0.500000", "-", "-"]
    assert 50 <= len(rows) <= 51
    assert f"{len(rows)} of 1000 steps" in part


def test_the_header_tells_machine_and_settings(wide: str) -> None:
    top = wide.split("Speed")[0]
    for fact in (
        "Xeon Platinum 8370C",
        "Linux 6.8",
        "python 3.12.3",
        "torch 2.13.0",
        "tensorflow 2.21.0",
    ):
        assert top.count(fact) == 1
    assert "Xeon Platinum 8370C, 4 CPUs, 15.6 GiB, Linux 6.8" in top
    assert "15 rounds, threads 1, batch 2, seed 0" in top


def test_environments_that_differ_show_all_values(doc: Document) -> None:
    both = msgspec.structs.replace(
        doc, environments={"a": {"torch": "2.12"}, "b": {"torch": "2.13"}}
    )
    assert "torch 2.12 / 2.13" in render(both, 80)


def test_a_problem_is_told_and_a_key_outside_the_run_is_shown(doc: Document) -> None:
    broken = TensorMetrics(name="E1", bitwise_equal=False, problem="NaN at 7 places")
    strange = Agreement(
        a="0123456789",
        b="9876543210",
        what="outputs",
        tensors=[tensor("R0", 3.0), broken],
        evidence=None,
        tolerance=None,
        verdict="disagree",
        sentence="not finite",
    )
    text = render(msgspec.structs.replace(doc, agreements=[strange]), 80)
    assert "E1: NaN at 7 places" in text
    assert "0123456789 against 9876543210, outputs disagree: not finite" in text


@pytest.mark.parametrize("telling", [False, True])
def test_a_sentence_that_says_no_more_than_its_row_is_not_said(
    doc: Document, telling: bool
) -> None:
    fine = ran(case("torch", None, "cpu"), 0.1)
    plain = msgspec.structs.replace(
        agreement(fine, fine, "outputs", "agree", "the plain sentence"), telling=telling
    )
    text = render(msgspec.structs.replace(with_cases(doc, fine), agreements=[plain]), 160)
    assert ("the plain sentence" in text) == telling
    assert "Agreement: prednet small, infer" in text
    assert "1-ULP spread" in text


def test_exit_line_never_claims_more_than_happened(doc: Document) -> None:
    fine = ran(case("torch", None, "cpu"), 0.1)
    lost = CaseResult(key="x", case=case("tf", None, "cpu"), status="unavailable", reason="none")
    done = {"exit_status": 0, "exit_reasons": []}
    ok = agreement(fine, fine, "outputs", "agree", "")
    doubtful = agreement(fine, fine, "outputs", "inconclusive", "")

    def last(agreements: list[Agreement], *cases: CaseResult) -> str:
        some = msgspec.structs.replace(with_cases(doc, *cases, **done), agreements=agreements)
        return render(some, 80).splitlines()[-1].strip()

    assert last([ok], fine) == "exit 0: all ran and agreed"
    assert last([], fine) == "exit 0: all ran, nothing was compared"
    assert last([ok], fine, lost) == "exit 0: 1 of 2 cases ran and agreed"
    assert last([ok, doubtful], fine) == "exit 0: all ran, 1 of 2 comparisons agreed"


def test_an_empty_document_is_a_report_too(doc: Document) -> None:
    text = render(with_cases(doc, environments={}, notes=[]), 80)
    assert text.startswith("nothing was asked for")


def listing_text(width: int, *models: Listed) -> str:
    out = io.StringIO()
    terminal.table_list(models, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_list_tells_all_of_a_model(width: int) -> None:
    shown = listing_text(width, listing.listed(SPEC))
    assert max(map(len, shown.splitlines())) <= width
    text = squeeze_lines(shown)
    full = "full 6,915,948 parameters, 137 GFLOP an item, batch 4"
    for words in (SPEC.title, SPEC.paper, SPEC.data, full, "L0, L_all, mse-next"):
        assert words in text
    assert "data in use" not in text


def test_list_tells_batches_of_inference_that_are_its_own() -> None:
    listed = listing.listed(registry.model("deepq"))
    assert (listed.batch["tiny"], listed.infer_batch["tiny"]) == (32, (1, 32))
    assert "batch 32 (inference 1, 32)" in squeeze_lines(listing_text(160, listed))
    assert "inference" not in listing_text(160, listing.listed(SPEC))


def test_list_tells_the_data_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prednet").mkdir()
    monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
    listed = listing.listed(SPEC)
    assert (listed.data, listed.data_path) == (SPEC.data, str(tmp_path / "prednet"))
    assert f"data in use {tmp_path / 'prednet'}" in squeeze_lines(listing_text(400, listed))
    assert listing.listed(registry.model("vgg")).data_path == "", "that folder holds none for it"
    monkeypatch.setenv("XBENCH_DATA", "nowhere")
    listed = listing.listed(SPEC)
    assert (listed.data_path, listed.data_problem) == ("", "XBENCH_DATA=nowhere: no such folder")
    assert "data in use XBENCH_DATA=nowhere: no such folder" in squeeze_lines(
        listing_text(160, listed)
    )


def test_a_model_that_does_not_say_its_operations_is_listed_all_the_same() -> None:
    silent = listing.listed(msgspec.structs.replace(SPEC, flops=None))
    assert set(silent.flops_per_item.values()) == {None}
    assert "parameters, - GFLOP an item" in listing_text(160, silent)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.999, "10.0"),
        (0.0123, "0.0123"),
        (1234.4, "1234"),
        (0.0, "0"),
        (99.96, "100"),
        (float("inf"), "inf"),
        (None, "-"),
        (-0.5, "-0.500"),
    ],
)
def test_significant_digits(value: float | None, text: str) -> None:
    assert fmt.significant(value) == text


@given(st.floats(1e-6, 1e6))
def test_significant_keeps_three_digits(value: float) -> None:
    assert float(fmt.significant(value)) == pytest.approx(value, rel=5.1e-3)


@given(st.lists(st.floats(1e-9, 1e5), min_size=1))
def test_a_time_unit_makes_no_value_small(values: list[float]) -> None:
    _, size = fmt.time_unit(values)
    assert min(values) / size >= 1
    assert size == 1.0 or min(values) / size < 1000


@given(st.text())
def test_plain_text_has_no_controls(text: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", fmt.plain(text))
