"""Numbers and units as every report writes them, and terminal tables that fit their width."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

NONE = "-"
"""What stands where a value does not exist."""

LONG = 200
"""Rows from which a table is written without rich, which takes 0.1 ms a cell."""

TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """The text without escape sequences and control characters; line breaks stay.

    Names and reasons come from files and foreign libraries: none may steer the terminal.
    """
    if text.isprintable():  # Nearly all are, and ten thousand rows have many.
        return text
    return _CONTROLS.sub(" ", _ESCAPES.sub("", text).replace("\r\n", "\n"))


def significant(value: float | None, digits: int = 3) -> str:
    """Fixed point with at least ``digits`` significant digits: ``0.0123 1.23 12.3 1234``."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{decimals(value, digits)}f}"


def decimals(value: float, digits: int) -> int:
    """Decimal places that give ``value`` that many significant digits, never below 0."""
    if value == 0:
        return 0
    # The exponent of the rounded value: 9.999 has one digit before the point, not at 3 digits.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return max(0, digits - 1 - exponent)


def scientific(value: float | None) -> str:
    """Two significant digits with exponent, for errors: ``1.3e-07``; a plain ``0`` for zero."""
    if value is None:
        return NONE
    return "0" if value == 0 else f"{value:.1e}"


def ratio(value: float) -> str:
    """Three decimals, or three significant digits where that is more or the value is large."""
    return f"{value:.3f}" if 0.1 <= value < 10 else significant(value)


def integer(value: float | None) -> str:
    """Thousands separated: ``6,915,948``; one decimal where the value is no integer.

    From ten thousand million on in two digits and an exponent: nobody reads twenty.
    """
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e10:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def percent(share: float | None) -> str:
    """A share as a percentage without its sign: one decimal, none from 100 on."""
    if share is None:
        return NONE
    return f"{100 * share:.1f}" if abs(share) < 0.9995 else f"{100 * share:.0f}"


def mebibytes(value_bytes: int | None) -> str:
    """Bytes in MiB."""
    return NONE if value_bytes is None else significant(value_bytes / 2**20)


def time_unit(values_s: Iterable[float | None]) -> tuple[str, float]:
    """One unit for a column of seconds, and its size: the largest that no value is below."""
    positive = [value for value in values_s if value is not None and 0 < value < math.inf]
    smallest = min(positive, default=1.0)
    for name, size in TIME_UNITS:
        if smallest >= size:
            return name, size
    return TIME_UNITS[-1]


def plural(count: int, noun: str) -> str:
    """``1 process``, ``2 processes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def width_of(text: str) -> int:
    """Characters of a terminal that the widest line of the text takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    return max(map(cell_len, text.split("\n")))


def cell(value: Text | str, style: str = "") -> Text:
    """A literal cell: no markup, no emoji codes, no escape sequences."""
    return value if isinstance(value, Text) else Text(plain(value), style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    ``rank`` 0 always stays; where the table is too wide the highest rank goes first. A column
    with ``least`` may wrap down to that many characters, others never wrap; ``tight`` it does so
    at once.
    """

    header: str
    cells: Sequence[Text | str]
    justify: JustifyMethod = "right"
    rank: int = 0
    least: int | None = None
    footer: str = ""
    tight: bool = False

    @property
    def empty(self) -> bool:
        return all(str(value) in ("", NONE) for value in self.cells)

    @property
    def narrowest(self) -> int:
        """Characters that the column asks for."""
        texts = [str(value) for value in (self.header, *self.cells, self.footer)]
        widest = max(width_of(plain(text)) for text in texts)
        return widest if self.least is None else min(self.least, widest)

    @property
    def extremes(self) -> Column:
        """The same column with the two cells alone that decide how wide it is, at most and least.

        These are the cell with the widest line and that with the widest word.
        """
        line = word = ""
        widest = longest = -1
        texts = {value.plain if isinstance(value, Text) else value for value in self.cells}
        for text in map(plain, texts):
            room = width_of(text)
            if room > widest:
                widest, line = room, text
            # No word is wider than its line.
            if room > longest:
                found = max(map(width_of, text.split()), default=0)
                if found > longest:
                    longest, word = found, text
        return replace(self, cells=[line, word])


def build(columns: Sequence[Column]) -> Table:
    """The table, whatever its width."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.show_footer = any(column.footer for column in columns)
    for column in columns:
        table.add_column(
            cell(column.header, "bold"),
            footer=cell(column.footer, "bold"),
            justify=column.justify,
            vertical="top",
            overflow="fold",
            no_wrap=column.least is None,
            min_width=column.narrowest,
            width=column.narrowest if column.tight and column.least is not None else None,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(cell(value) for value in row))
    return table


Lines = Sequence[Sequence[Segment]]
_MARK = "\ue000"
"""A character of one column that stands for nothing, to find where columns begin."""


class Long:
    """A table of many rows, character by character as rich prints that of ``build``.

    rich finds the widths, from ``thin``, the extremes of every column, and lays out header and
    footer. A body cell that fits on one line is then only padded; the others are wrapped by rich.
    """

    def __init__(self, columns: Sequence[Column], thin: Sequence[Column]) -> None:
        self.columns, self.thin = columns, thin

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self.widths(console, options)
        if widths is None:  # No width at which nothing is cut: rich knows what to do.
            yield build(self.columns)
            return
        frame, last = fixed(self.columns, widths), len(widths) - 1
        frame.show_footer = False
        head = console.render_lines(frame, options, pad=False)[:-1]
        yield from joined(head)
        bodies = [
            padded(column, width, 0 if index == last else 1, console, options)
            for index, (column, width) in enumerate(zip(self.columns, widths, strict=True))
        ]
        blanks = [[Segment(" " * width)] for width in widths]
        bare: list[str] = []  # What has no style is handed on in one piece.
        for row in zip(*bodies, strict=True):
            for number in range(max(map(len, row))):
                for index, lines in enumerate(row):
                    if index:
                        bare.append(" ")
                    for segment in lines[number] if number < len(lines) else blanks[index]:
                        if segment.style:
                            yield Segment("".join(bare))
                            bare.clear()
                            yield segment
                        else:
                            bare.append(segment.text)
                bare.append("\n")
        yield Segment("".join(bare))
        if any(column.footer for column in self.columns):
            frame.show_footer = True
            yield from joined(console.render_lines(frame, options, pad=False)[len(head) + 1 :])

    def widths(self, console: Console, options: ConsoleOptions) -> list[int] | None:
        """The width that rich gives each column, its padding included.

        Seen on a row that has a mark at the start of every column; None where one is not shown.
        """
        marked = [
            replace(column, justify="left", cells=[*column.cells, _MARK]) for column in self.thin
        ]
        for line in reversed(console.render_lines(build(marked), options, pad=False)):
            text = "".join(segment.text for segment in line)
            if text.count(_MARK) == len(self.columns):
                parts = [cell_len(part) for part in text.split(_MARK)]
                # A part is what follows the mark and the divider; the last column has none.
                return [*parts[1:-1], parts[-1] + 1]
        return None


def fixed(columns: Sequence[Column], widths: Sequence[int]) -> Table:
    """The table with one blank row and columns of ``widths``, which hold their padding."""
    table = build([replace(column, cells=[""]) for column in columns])
    for column, width in zip(table.columns, widths, strict=True):
        column.min_width = None
        column.width = width - (1 if column is not table.columns[-1] else 0)
    return table


def joined(lines: Lines) -> Iterator[Segment]:
    """The lines as segments, each with its end."""
    for line in lines:
        yield from line
        yield Segment.line()


def folded(text: str, width: int, *, wrap: bool) -> list[str] | None:
    """The lines of a text as rich breaks them between words; None where that is not plain to see.

    That is: characters of one cell each, single spaces, no word longer than a line.
    """
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        return None
    if len(text) <= width:
        return [text]
    words = text.split(" ")
    if not wrap or "" in words or max(map(len, words)) > width:
        return None
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def padded(
    column: Column, width: int, padding: int, console: Console, options: ConsoleOptions
) -> list[Lines]:
    """The body cells of a column as lines of segments that fill its ``width``."""
    inner, space = width - padding, Segment(" " * padding)
    options = options.update(
        width=width,
        justify=column.justify,
        no_wrap=column.least is None,
        overflow="fold",
        height=None,
    )
    known: dict[tuple[object, ...], Lines] = {}
    found = []
    for value in column.cells:
        text = value if isinstance(value, Text) else None
        key = (value,) if text is None else (text.plain, text.style, *text.spans)
        lines = known.get(key)
        if lines is None:
            content = plain(str(value)) if text is None else text.plain
            parts = None
            if not (text is not None and text.spans) and (content or text is None):
                parts = folded(content, inner, wrap=column.least is not None)
            if parts is not None:
                fill = str.rjust if column.justify == "right" else str.ljust
                if text is None or not text.style:
                    lines = [[Segment(fill(part, inner) + " " * padding)] for part in parts]
                else:
                    style = console.get_style(text.style)
                    lines = [[Segment(fill(part, inner), style), space] for part in parts]
            else:
                lines = console.render_lines(
                    Padding(cell(value), (0, padding, 0, 0)), options, style=Style.null()
                )
            known[key] = lines
        found.append(lines)
    return found


class Screen:
    """Prints titles, tables and remarks, and remembers what a narrow console had no room for."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.dropped: dict[str, None] = {}

    def line(self, *parts: Text | str | tuple[str, str], indent: int = 0) -> None:
        """One paragraph, wrapped with its indent; a tuple is (text, style)."""
        text = Text(overflow="fold")
        for part in parts:
            text.append_text(cell(*part) if isinstance(part, tuple) else cell(part))
        shown = text.plain
        if shown and shown.isprintable() and indent + width_of(shown) <= self.console.width:
            # As the grid below would have it, which takes ten times as long.
            text = Text(" " * indent).append_text(text)
        elif indent:
            grid = Table.grid(padding=0)
            grid.add_column(width=indent)
            grid.add_column(overflow="fold")
            grid.add_row("", text)
            self.console.print(grid, highlight=False)
            return
        self.console.print(text, highlight=False)

    def item(self, *parts: Text | str | tuple[str, str]) -> None:
        """A paragraph that belongs to what stands above it."""
        self.line(*parts, indent=2)

    def title(self, text: str, detail: str = "") -> None:
        """A heading after a blank line."""
        self.line()
        self.line((text, "bold cyan"), (f"  {detail}" if detail else "", "dim"))

    def fits(self, columns: Sequence[Column]) -> bool:
        """Whether no number of the table would have to wrap."""
        # Measured without a limit: what is measured within one never exceeds it.
        options = self.console.options.update(max_width=10_000)
        measured = Measurement.get(self.console, options, build(columns))
        return measured.minimum <= self.console.width

    def overflows(self, columns: Sequence[Column]) -> bool:
        """Whether rich makes the table wider than the console although it would fit.

        It takes room from the widest column first, whatever that one's least width.
        """
        segments = self.console.render(build(columns))
        line = itertools.takewhile(lambda segment: segment.text != "\n", segments)
        return sum(segment.cell_length for segment in line) > self.console.width

    def table(self, columns: Sequence[Column]) -> None:
        """Print the columns that have values; those of the highest rank go until it fits."""
        kept = [column for column in columns if column.rank == 0 or not column.empty]
        thin = [column.extremes for column in kept]
        while not (fits := self.fits(thin)):
            last = max(range(len(kept)), key=lambda index: kept[index].rank)
            if kept[last].rank == 0:
                break
            self.dropped[kept[last].header.replace("\n", " ")] = None
            del kept[last], thin[last]
        if fits and self.overflows(thin):
            kept, thin = ([replace(c, tight=True) for c in columns] for columns in (kept, thin))
        # What has no room is cut by rich in ways of its own.
        long = fits and any(len(c.cells) > LONG for c in kept) and all(c.header for c in kept)
        if long:  # It fits, so that nothing has to be cropped.
            self.console.print(Long(kept, thin), highlight=False, crop=False)
        else:
            self.console.print(build(kept), highlight=False)

    def series(self, first: Column, columns: Sequence[Column]) -> None:
        """Print equal columns beside ``first``, in as many tables as the width asks for."""
        rest = list(columns)
        while rest:
            count = 1
            while count < len(rest) and self.fits([first, *rest[: count + 1]]):
                count += 1
            self.table([first, *rest[:count]])
            rest = rest[count:]
            if rest:
                self.line()
