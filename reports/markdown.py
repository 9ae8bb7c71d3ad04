"""A comparison as GitHub's markdown, short enough for a comment on a pull request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from xbench.compare import Comparison
from xbench.contrast import Difference, Row
from xbench.reports import comparison as terminal
from xbench.reports import format as fmt

MOST_ROWS = 150
"""Rows of one table: a comment holds 65,536 characters."""
MOST_SHORT = 20
"""Cases in the table that is not folded."""
LONGEST = 200
"""Characters of one cell; reasons and commands of any length go into it."""
LONGEST_SENTENCE = 600
"""Characters of a note or a sentence."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~@])")


def escaped(text: str, longest: int = LONGEST) -> str:
    """Literal text of one line: no markup, no mention, no cell border, no end of a cell."""
    line = " ".join(fmt.plain(text).split())
    short = line if len(line) <= longest else line[: longest - 3] + "..."
    # "://" and "www." would become links, whatever is escaped around them.
    linkless = short.replace("://", ":&#47;/").replace("www.", "www&#46;")
    return _SPECIAL.sub(r"\\\1", html.escape(linkless, quote=False).replace("&amp;#4", "&#4"))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of cells that are markdown already; columns of figures are aligned by the reader."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return lines


def comparison(found: Comparison) -> str:
    """The comparison: a line, the cases that changed, and the rest folded away."""
    changed = [row for row in found.rows if terminal.notable(row) and row.asked]
    lines = [
        f"**xbench**: B (`{code(found.b.run)}`) against A (`{code(found.a.run)}`): "
        f"{escaped(terminal.tally(found))}",
        "",
    ]
    if found.differences:
        lines += ["Not the same: " + "; ".join(map(difference, found.differences[:10])), ""]
    if changed:
        lines += [*table(HEADER, map(cells, changed[:MOST_SHORT])), ""]
        if len(changed) > MOST_SHORT:
            lines += [
                f"and {len(changed) - MOST_SHORT:,} more that changed, below or in the JSON",
                "",
            ]
    lines += ["<details><summary>Details</summary>", ""]
    lines += [f"- {escaped(note, LONGEST_SENTENCE)}" for note in found.notes]
    lines += [f"- {difference(item)}" for item in found.differences[10:MOST_ROWS]]
    told = [row for row in changed if row.sentence][:MOST_SHORT]
    lines += [f"- {escaped(row.name)}: {escaped(row.sentence, LONGEST_SENTENCE)}" for row in told]
    for name, singles in (("A", found.unmatched_a), ("B", found.unmatched_b)):
        if singles:
            names = [f"{single.name}, {single.status}" for single in singles]
            more = len(names) - MOST_SHORT
            rest = f" and {more:,} more" if more > 0 else ""
            shown = "; ".join(escaped(text) for text in names[:MOST_SHORT])
            lines.append(f"- only in {name}: {shown}{rest}")
    asked = [row for row in found.rows if row.asked]
    lines += ["", *table(HEADER, map(cells, asked[:MOST_ROWS]))]
    if len(asked) > MOST_ROWS:
        lines += ["", f"{MOST_ROWS} of {len(asked):,} cases; the JSON has all"]
    lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


HEADER = ("model", "case", "status", "ratio", "95 % interval", "verdict", "agreement", "memory")


def cells(row: Row) -> list[str]:
    """The cells of a pair, escaped; a claim is bold."""
    verdict = terminal.verdict(row).plain
    return [
        escaped(f"{row.model} {row.size}, {row.phase}"),
        escaped(row.label),
        escaped(terminal.status(row).plain),
        escaped(terminal.ratio(row).plain),
        escaped(terminal.interval(row)),
        f"**{verdict}**" if verdict in ("slower", "faster") else escaped(verdict),
        escaped(terminal.agreement(row).plain),
        escaped(terminal.memory(row)),
    ]


def difference(item: Difference) -> str:
    """A difference in words."""
    values = f" {item.a} -> {item.b}" if item.a or item.b else " (by case)"
    where = f" ({', '.join(item.where[:5])})" if item.where else ""
    return escaped(f"{item.what}{values}{where}")


def code(text: str) -> str:
    """Text that cannot end the code span it stands in."""
    return " ".join(fmt.plain(text).replace("`", "'").split())
