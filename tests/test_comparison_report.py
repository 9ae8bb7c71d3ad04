"""The comparison on a terminal and in markdown, and long tables against rich's own."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tests.test_compare import agreement, case, document, other_environment, ran
from xbench.compare import Comparison, compare
from xbench.reports import comparison as report
from xbench.reports import format as fmt
from xbench.reports import markdown
from xbench.reports.format import Column, Screen

NASTY = "a | b ` c\n# d @someone <b>x</b> https://e.org \x1b[31mred"


def console(width: int, colours: bool = False) -> Console:
    system: Any = "truecolor" if colours else None
    return Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system=system,
        highlight=False, emoji=False,
    )  # fmt: skip


def printed(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


@pytest.fixture(scope="module")
def found() -> Comparison:
    slow, fast, broken = case(), case(engine="tf"), case(engine="ort", source="torch")
    moved = case(engine="ort", source="tf", phase="train", threads=1)
    there = case(engine="ort", source="tf", phase="train", threads=2)
    lost, new = case(model="lost"), case(model="new")
    a_slow, b_slow = ran(slow, loss=[2.0]), ran(slow, 1.5, loss=[3.0], peak_memory_bytes=2)
    a = document(
        a_slow, ran(fast), ran(broken), ran(moved), ran(lost), name="first",
        agreements=[agreement(a_slow, ran(fast), "agree")],
    )  # fmt: skip
    b = document(
        b_slow, ran(fast, 0.5), ran(broken, status="crashed", reason=NASTY, samples=[]),
        ran(there, 1.01), ran(new), name="second", environments=other_environment(torch="2.14"),
        agreements=[agreement(b_slow, ran(fast), "disagree")],
    )  # fmt: skip
    return compare(a, b)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_terminal_tells_all_within_its_width(found: Comparison, width: int) -> None:
    target = console(width)
    report.show(found, target)
    text = printed(target)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    flat = " ".join(text.split())
    for part in (
        "run first", "run second", "2.13", "2.14", "slower", "faster", "ok -> crashed",
        "agree -> disagree", "no longer runs in B", "threads 1 -> 2", "Only in A", "Only in B",
        "doctor --noise",
    ):  # fmt: skip
        assert part in flat, part
    assert "\x1b" not in text
    assert flat.index("What differs") < flat.index("Compared:") < flat.index("What changed")
    # Numbers of the table stay whole.
    assert "1.500" in flat
    assert "0.500" in flat


def test_the_last_line_counts(found: Comparison) -> None:
    target = console(400)
    report.show(found, target)
    assert printed(target).splitlines()[-1] == (
        "4 cases compared: 1 slower, 1 faster, 1 inconclusive, 1 no longer run, 1 only in A, "
        "1 only in B, 1 of the agreements changed"
    )


def test_runs_that_are_the_same_say_so() -> None:
    target = console(160)
    report.show(compare(document(ran()), document(ran())), target)
    assert "the same cases, in the same environments" in printed(target)
    assert "What changed" not in printed(target)
    assert printed(target).splitlines()[-1].endswith("1 inconclusive, no agreement changed")


def test_no_claim_is_marked_as_one(found: Comparison) -> None:
    rows = {row.label: row for row in found.rows}
    doubt = next(row for row in found.rows if row.verdict == "inconclusive")
    assert report.ratio(doubt).plain.startswith("~")
    assert report.ratio(rows["torch cpu"]).plain == "1.500"


def test_many_sentences_are_counted() -> None:
    many = [case(seed=seed) for seed in range(report.MOST_SENTENCES + 5)]
    a = document(*(ran(what, samples=[]) for what in many))
    b = document(*(ran(what, samples=[], status="failed") for what in many))
    target = console(160)
    report.show(compare(a, b), target)
    assert "and 5 more cases; --json has all" in printed(target)


# -- markdown ---------------------------------------------------------------------------------


def tables(text: str) -> list[list[str]]:
    """The rows of every table of a text, by the borders of their cells."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                found.append([])
            found[-1].append(line)
        inside = line.startswith("|")
    return found


def test_markdown_is_a_table_that_holds(found: Comparison) -> None:
    text = markdown.comparison(found)
    assert text.count("<details>") == text.count("</details>") == 1
    for rows in tables(text):
        counts = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert counts == {len(markdown.HEADER) + 1}
    assert "**slower**" in text
    assert "`first`" in text
    assert "torch 2.13 -&gt; 2.14" in text
    # Before the fold there is only what changed.
    above = text.partition("<details>")[0]
    assert "crashed" in above


def test_markdown_escapes_what_files_say(found: Comparison) -> None:
    text = markdown.comparison(found)
    assert "<b>" not in text
    assert re.search(r"(?<!\\)@someone", text) is None
    assert "https://" not in text
    assert "\x1b" not in text


@given(st.text(max_size=60))
def test_no_text_breaks_a_cell(text: str) -> None:
    cell = markdown.escaped(text)
    assert "\n" not in cell
    assert re.search(r"(?<!\\)(?:\\\\)*\|", cell) is None
    assert "<" not in cell
    code = markdown.code(text)
    assert "`" not in code
    assert "\n" not in code


def test_markdown_fits_a_comment() -> None:
    many = [case(seed=seed, model="m" * 100) for seed in range(3000)]
    bad: dict[str, Any] = {"status": "failed", "reason": "x" * 5000, "digests": {"inputs": "2"}}
    a = document(*(ran(what, samples=[], digests={"inputs": "1"}) for what in many))
    b = document(*(ran(what, samples=[], **bad) for what in many))
    text = markdown.comparison(compare(a, b))
    assert len(text) < 65_536
    assert "150 of 3,000 cases" in text


# -- long tables ------------------------------------------------------------------------------

WORDS = ("alpha", "b", "\u65e5\u672c\u8a9e", "ort(torch)", "x" * 30, "", "  pad", "-", "\xe9mile",
         "a\nb", "~1.02", "tail  ", "\x1b[31mred")  # fmt: skip
plain_cells = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
styled_cells = st.builds(
    lambda text, style: Text(fmt.plain(text), style),
    plain_cells, st.sampled_from(["green", "bold red", ""]),
)  # fmt: skip
marked_cells = plain_cells.map(lambda text: Text(fmt.plain(text), "green").append("*", "yellow"))


@st.composite
def some_columns(draw: st.DrawFn) -> list[Column]:
    rows = draw(st.integers(1, 6))
    cells = st.one_of(plain_cells, styled_cells, marked_cells)
    return [
        Column(
            header=draw(st.sampled_from(["h", "two\nlines", "a longer header"])),
            cells=draw(st.lists(cells, min_size=rows, max_size=rows)),
            justify=draw(st.sampled_from(["left", "right"])),
            rank=draw(st.integers(0, 3)),
            least=draw(st.sampled_from([None, None, 5, 12])),
            footer=draw(st.sampled_from(["", "f", "foot"])),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=150)
@given(some_columns(), st.sampled_from([20, 40, 80, 160]), st.booleans())
def test_long_tables_are_as_rich_prints_them(
    columns: list[Column], width: int, colours: bool
) -> None:
    shown = []
    for long in (10**9, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fmt, "LONG", long)
            target = console(width, colours)
            Screen(target).table(columns)
            shown.append(printed(target))
    assert shown[0] == shown[1]


def test_a_long_table_takes_the_quick_path() -> None:
    class Counting(fmt.Long):
        made = 0

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            Counting.made += 1

    for rows, quick in ((fmt.LONG, 0), (fmt.LONG + 1, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fmt, "Long", Counting)
            Counting.made = 0
            target = console(80)
            Screen(target).table([Column(header="n", cells=[str(i) for i in range(rows)])])
        assert Counting.made == quick
        assert printed(target).split()[-1] == str(rows - 1)


@settings(max_examples=200)
@given(some_columns(), st.integers(10, 100))
def test_where_a_table_fits_no_number_is_cut(columns: list[Column], width: int) -> None:
    """rich takes room from the widest column first, and then cuts others at the edge."""
    target = console(width)
    screen = Screen(target)
    kept = [column for column in columns if column.rank == 0 or not column.empty]
    if not kept or not screen.fits(kept):
        return
    screen.table(kept)
    text = printed(target)
    for column in kept:
        if column.least is None and not screen.dropped:
            for value in column.cells:
                for line in fmt.plain(str(value)).split("\n"):
                    assert line.strip() in text


@settings(max_examples=200)
@given(
    st.lists(st.one_of(plain_cells, styled_cells, st.tuples(plain_cells, st.just("red")))),
    st.sampled_from([10, 30, 80]), st.sampled_from([0, 2, 5]), st.booleans(),
)  # fmt: skip
def test_a_paragraph_is_the_same_with_and_without_the_grid(
    parts: list[Any], width: int, indent: int, colours: bool
) -> None:
    from rich.table import Table

    target, expected = console(width, colours), console(width, colours)
    Screen(target).line(*parts, indent=indent)
    text = Text(overflow="fold")
    for part in parts:
        text.append_text(fmt.cell(*part) if isinstance(part, tuple) else fmt.cell(part))
    grid = Table.grid(padding=0)
    grid.add_column(width=indent)
    grid.add_column(overflow="fold")
    grid.add_row("", text)
    expected.print(grid if indent else text, highlight=False)
    assert printed(target) == printed(expected)
