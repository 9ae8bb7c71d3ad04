"""Numbers and units as every report writes them, and terminal tables that fit their width."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NONE = "-"
"""What stands where a value does not exist."""

TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """The text without escape sequences and control characters; line breaks stay.

    Names and reasons come from files and foreign libraries: none may steer the terminal.
    """
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


def cell(value: Text | str, style: str = "") -> Text:
    """A literal cell: no markup, no emoji codes, no escape sequences."""
    return value if isinstance(value, Text) else Text(plain(value), style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    ``rank`` 0 always stays; where the table is too wide the highest rank goes first. A column
    with ``least`` may wrap down to that many characters, others never wrap.
    """

    header: str
    cells: Sequence[Text | str]
    justify: JustifyMethod = "right"
    rank: int = 0
    least: int | None = None
    footer: str = ""

    @property
    def empty(self) -> bool:
        return all(str(value) in ("", NONE) for value in self.cells)

    @property
    def narrowest(self) -> int:
        """Characters that the column asks for."""
        lines = [str(cell(value)) for value in (self.header, *self.cells, self.footer)]
        widest = max(cell_len(line) for text in lines for line in text.split("\n"))
        return widest if self.least is None else min(self.least, widest)


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
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(cell(value) for value in row))
    return table


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
        grid = Table.grid(padding=0)
        grid.add_column(width=indent)
        grid.add_column(overflow="fold")
        grid.add_row("", text)
        self.console.print(grid if indent else text, highlight=False)

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

    def table(self, columns: Sequence[Column]) -> None:
        """Print the columns that have values; those of the highest rank go until it fits."""
        kept = [column for column in columns if column.rank == 0 or not column.empty]
        while not self.fits(kept):
            last = max(kept, key=lambda column: column.rank)
            if last.rank == 0:
                break
            kept.remove(last)
            self.dropped[last.header.replace("\n", " ")] = None
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
