"""Two stored runs beside each other, on a terminal: what differs, the table, what it means.

The differing keys come first: without them no number below can be read. The last line counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from xbench import speed
from xbench.compare import Comparison, Side
from xbench.contrast import Difference, Row, Single
from xbench.reports import format as fmt
from xbench.reports.format import Column, Screen, cell
from xbench.result import OK

VERDICTS = {
    speed.SLOWER: "bold red",
    speed.FASTER: "green",
    speed.SAME: "green",
    speed.INCONCLUSIVE: "yellow",
}
MOST_SENTENCES = 200
"""Cases that are told of one by one; the table has all of them."""


def show(comparison: Comparison, console: Console) -> None:
    """Print the whole comparison."""
    screen = Screen(console)
    screen.line(
        ("B against A", "bold"), ("  ratios are B over A: above 1 is slower or more", "dim")
    )
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        screen.item((name, "bold"), f" {described(side)}")
    differences(screen, comparison.differences)
    for note in comparison.notes:
        screen.item(note)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in comparison.rows:
        if row.asked:
            groups.setdefault((row.model, row.size, row.phase), []).append(row)
    for (model, size, phase), rows in groups.items():
        screen.title(f"Compared: {model} {size}, {phase}", fmt.plural(len(rows), "case"))
        screen.table(columns(rows))
    sentences(screen, comparison.rows)
    for name, singles in (("A", comparison.unmatched_a), ("B", comparison.unmatched_b)):
        alone(screen, f"Only in {name}", singles)
    screen.line()
    if screen.dropped:
        left_out = ", ".join(screen.dropped)
        screen.line((f"left out at {console.width} columns: {left_out}", "dim"))
    screen.line((tally(comparison), "bold"))


def described(side: Side) -> str:
    """A side in one line: its run, when, by which xbench, with which command."""
    command = " ".join(["xbench", *side.command])
    stopped = ", interrupted" if side.interrupted else ""
    return f"run {side.run}, {side.started[:19]}, xbench {side.xbench}{stopped}: {command}"


def differences(screen: Screen, found: Sequence[Difference]) -> None:
    """What is not the same on both sides, before any number."""
    if not found:
        screen.item(("the same cases, in the same environments", "dim"))
        return
    screen.title("What differs")
    screen.table(
        [
            Column(header="what", cells=[d.what for d in found], justify="left"),
            Column(header="A", cells=[value(d, d.a) for d in found], justify="left", least=10),
            Column(header="B", cells=[value(d, d.b) for d in found], justify="left", least=10),
            Column(header="kind", cells=[d.kind for d in found], justify="left", rank=2),
            Column(header="cases", cells=[fmt.integer(d.cases or None) for d in found], rank=1),
            Column(
                header="of",
                cells=[", ".join(d.where) for d in found],
                justify="left",
                rank=3,
                least=16,
            ),
        ]
    )


def value(difference: Difference, text: str) -> Text:
    return cell(text) if text else cell("by case", "dim")


def columns(rows: Sequence[Row]) -> list[Column]:
    """Status, time on both sides, ratio with its interval and verdict, agreement, loss, memory."""
    unit, size = fmt.time_unit([t for row in rows for t in (row.a_median_s, row.b_median_s)])

    def column(header: str, cells: Sequence[Text | str], rank: int) -> Column:
        return Column(header=header, cells=cells, rank=rank)

    def left(header: str, cells: Sequence[Text | str], rank: int, least: int | None) -> Column:
        return Column(header=header, cells=cells, justify="left", rank=rank, least=least)

    return [
        left("case", [row.label for row in rows], 0, 18),
        left("status", [status(row) for row in rows], 0, 11),
        column(f"A\n{unit}", [scaled(row.a_median_s, size) for row in rows], 3),
        column(f"B\n{unit}", [scaled(row.b_median_s, size) for row in rows], 3),
        column("ratio", [ratio(row) for row in rows], 0),
        column("95 %\ninterval", [interval(row) for row in rows], 2),
        left("verdict", [verdict(row) for row in rows], 0, None),
        column("p", ["" if row.p is None else fmt.scientific(row.p) for row in rows], 6),
        left("method", [row.method for row in rows], 7, None),
        left("agreement", [agreement(row) for row in rows], 1, 12),
        column("loss\n±%", [loss(row) for row in rows], 5),
        column("memory\nratio", [memory(row) for row in rows], 4),
    ]


def scaled(seconds: float | None, unit: float) -> str:
    return "" if seconds is None else fmt.significant(seconds / unit)


def status(row: Row) -> Text:
    """One word where both sides have it, else both."""
    if row.a_status == row.b_status:
        return cell(row.b_status, "green" if row.b_status == OK else "yellow")
    return cell(f"{row.a_status} -> {row.b_status}", "green" if row.b_status == OK else "bold red")


def ratio(row: Row) -> Text:
    """The ratio, behind ``~`` where nothing is claimed of it."""
    if row.ratio is None:
        return cell("")
    text = fmt.ratio(row.ratio)
    claimed = row.verdict in (speed.SLOWER, speed.FASTER, speed.SAME)
    return cell(text, VERDICTS[row.verdict]) if claimed else cell(f"~{text}", "dim")


def interval(row: Row) -> str:
    if row.ratio is None:
        return ""
    if row.ci_low is None or row.ci_high is None:
        return fmt.NONE
    return f"{fmt.ratio(row.ci_low)} to {fmt.ratio(row.ci_high)}"


def verdict(row: Row) -> Text:
    if row.ratio is None:
        return cell("")
    return cell(row.verdict or "none", VERDICTS.get(row.verdict, "dim"))


def agreement(row: Row) -> Text:
    """How the verdicts of the case changed; one word where none did."""
    if not row.agreements:
        return cell("")
    changed = Counter(
        f"{pair.a or 'not judged'} -> {pair.b or 'not judged'}"
        for pair in row.agreements
        if pair.a != pair.b
    )
    if changed:
        worse = any(pair.b == "disagree" != pair.a for pair in row.agreements)
        told = [f"{count} {text}" if count > 1 else text for text, count in changed.items()]
        return cell(", ".join(told), "bold red" if worse else "yellow")
    words = dict.fromkeys(pair.b for pair in row.agreements)
    worst = next((word for word in ("disagree", "inconclusive", "agree") if word in words), "")
    return cell(worst, {"disagree": "bold red", "inconclusive": "yellow"}.get(worst, "green"))


def loss(row: Row) -> str:
    """The change of the loss at the last common step, in percent with its sign."""
    if row.loss is None or row.loss.relative is None:
        return ""
    share = 100 * row.loss.relative
    return "0" if share == 0 else f"{share:+.2g}"


def memory(row: Row) -> str:
    return "" if row.memory_ratio is None else fmt.ratio(row.memory_ratio)


def notable(row: Row) -> bool:
    """Whether there is more to say of a pair than its figures."""
    plain = row.verdict in (speed.SAME, speed.INCONCLUSIVE) or (not row.asked and not row.changed)
    return not (plain and row.a_status == row.b_status == OK and not row.differences) or bool(
        row.changed
    )


def sentences(screen: Screen, rows: Sequence[Row]) -> None:
    """What became of every case of which there is something to say."""
    told = [row for row in rows if row.sentence and notable(row)]
    if not told:
        return
    screen.title("What changed")
    for row in told[:MOST_SENTENCES]:
        screen.item((row.name, "bold"), f": {row.sentence}")
    if len(told) > MOST_SENTENCES:
        more = len(told) - MOST_SENTENCES
        screen.item((f"and {fmt.plural(more, 'more case')}; --json has all", "dim"))


def alone(screen: Screen, title: str, singles: Sequence[Single]) -> None:
    """Cases that the other side does not have."""
    if not singles:
        return
    screen.title(title, fmt.plural(len(singles), "case"))
    for single in singles[:MOST_SENTENCES]:
        wrong = f", disagrees on {', '.join(single.disagrees)}" if single.disagrees else ""
        why = f": {single.reason}" if single.reason else ""
        screen.item((single.name, "bold"), f", {single.status}{why}{wrong}")
    if len(singles) > MOST_SENTENCES:
        more = len(singles) - MOST_SENTENCES
        screen.item((f"and {fmt.plural(more, 'more case')}; --json has all", "dim"))


def tally(comparison: Comparison) -> str:
    """Everything in one line: verdicts on speed, changes of agreement, what did not run."""
    asked = [row for row in comparison.rows if row.asked]
    counts = Counter(row.verdict for row in asked if row.ratio is not None)
    parts = [f"{counts[word]} {word}" for word in VERDICTS if counts[word]]
    if counts[""]:
        parts.append(f"{counts['']} without a verdict on speed")
    stopped = sum(row.a_status == OK and row.b_status != OK for row in asked)
    changed = sum(len(row.changed) for row in comparison.rows)
    for count, text in (
        (stopped, "no longer run"),
        (sum(row.b_status != OK and row.a_status != OK for row in asked), "ran in neither"),
        (sum(row.a_status != OK and row.b_status == OK for row in asked), "run only in B"),
        (sum(row.ratio is None and row.a_status == row.b_status == OK for row in asked),
         "not timed on both sides"),
        (len(comparison.unmatched_a), "only in A"),
        (len(comparison.unmatched_b), "only in B"),
    ):  # fmt: skip
        if count:
            parts.append(f"{count:,} {text}")
    parts.append(f"{changed:,} of the agreements changed" if changed else "no agreement changed")
    return f"{fmt.plural(len(asked), 'case')} compared: {', '.join(parts)}"
