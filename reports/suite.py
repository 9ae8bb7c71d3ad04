"""The report on a run of many models: one table per question, a row per model and phase.

What each model's own tables say beyond that, ``xbench show RUN MODEL`` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from xbench.reports import format as fmt
from xbench.reports.format import Column, Screen, cell
from xbench.reports.tables import (
    VERDICTS,
    alike,
    case_names,
    class_times,
    drifting,
    grouped,
    median_interval,
    share,
    spread,
    style_of,
)
from xbench.result import OK, Agreement, CaseResult, Document, Profile

MANY = 4
"""Models from which a run is reported as a suite."""
GRAVITY = ("agree", "inconclusive", "disagree")
"""Verdicts, the worst last: a case that was judged several times is shown by that."""
HYPHENATED = {
    "Convolution": "Convo-\nlution",
    "Recurrent": "Recur-\nrent",
    "Elementwise": "Element-\nwise",
    "Reduction/Expansion": "Reduct./\nExpans.",
    "DataMovement": "Data-\nMovement",
    "Optimizer": "Opti-\nmizer",
    "ControlFlow": "Control-\nFlow",
    "Communication": "Commu-\nnication",
    "unattributed": "unattri-\nbuted",
}
"""Operator classes as headers of narrow columns."""
OTHER, UNATTRIBUTED = "other", "unattributed"

Rows = Mapping[str, Mapping[str, CaseResult]]
"""Cases by row (model and phase) and column (engine, and what else tells them apart)."""


def is_suite(document: Document) -> bool:
    """Whether tables of their own for every model would bury what they say together."""
    return len({(r.case.model, r.case.size) for r in document.cases if r.asked}) >= MANY


def rows_of(cases: Iterable[CaseResult]) -> Rows:
    """The cases in rows and columns, both in the order of their first case."""
    found: dict[str, dict[str, CaseResult]] = {}
    results = list(cases)
    one_size = len({result.case.size for result in results}) == 1
    one_device = len({result.case.device for result in results}) == 1
    for group in grouped(results).values():
        batches = {result.case.batch for result in group}
        for batch in sorted(batches):
            same = [result for result in group if result.case.batch == batch]
            case = same[0].case
            words = [case.model, "" if one_size else case.size, case.phase]
            words += [str(batch)] if len(batches) > 1 else []
            names = case_names(same)
            found[" ".join(filter(None, words))] = {
                short(names[result.key], case.device if one_device else ""): result
                for result in same
            }
    return found


def short(name: str, device: str) -> str:
    """A case's name without the device that all cases share."""
    return name.replace(f" {device}", "", 1) if device else name


def columns_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows.values() for name in row))


def first_column(rows: Iterable[str]) -> Column:
    """The names of the rows; a batch stands where a phase has several."""
    cells = list(rows)
    header = "model, phase" + (", batch" if any(map(batched, cells)) else "")
    return Column(header=header, cells=cells, justify="left", least=16)


def batched(row: str) -> bool:
    """Whether the name of a row ends with a batch; what stands under a row is indented."""
    return row[-1].isdigit() and not row.startswith(" ")


# -- the same? -----------------------------------------------------------------------------------


def same(screen: Screen, document: Document) -> list[Agreement]:
    """The worst verdict on each case; gives the agreements whose sentences are to be told."""
    judged: dict[str, list[Agreement]] = {}
    for agreement in document.agreements:
        judged.setdefault(agreement.a, []).append(agreement)
    rows = rows_of(result for result in document.cases if result.key in judged)
    if not rows:
        return []
    verdicts = [agreement.verdict for agreement in document.agreements]
    tally = [f"{verdicts.count(word)} {word}" for word in GRAVITY if word in verdicts]
    screen.title("The same? Worst verdict on each case", ", ".join(tally))
    screen.series(
        first_column(rows),
        [
            Column(
                header=name,
                cells=[
                    verdict_cell(judged[row[name].key]) if name in row else fmt.NONE
                    for row in rows.values()
                ],
                justify="left",
            )
            for name in columns_of(rows)
        ],
    )
    whats = ", ".join(dict.fromkeys(agreement.what for agreement in document.agreements))
    screen.item((f"compared: {whats}; with float64, and with the source or twin of a case", "dim"))
    return [
        agreement
        for agreement in document.agreements
        if agreement.verdict != GRAVITY[0] and agreement.telling
    ]


def verdict_cell(agreements: Sequence[Agreement]) -> Text:
    verdict = max((agreement.verdict for agreement in agreements), key=GRAVITY.index)
    return cell(verdict, style_of(verdict))


# -- how fast? -----------------------------------------------------------------------------------


def fast(screen: Screen, document: Document) -> None:
    """Median with its interval, and below it the ratio to the reference, of each case."""
    asked = [result for result in document.cases if result.asked]
    if not any(result.samples for result in asked):
        return
    rows = rows_of(asked)
    references = {result.ratio.to for result in asked if result.ratio}
    engines = dict.fromkeys(r.case.engine for r in asked if r.key in references)
    ratio = f", ratio to {' or '.join(engines)}" if engines else ""
    screen.title(f"How fast? Median of one run or step ±%{ratio}")
    screen.series(
        first_column(rows),
        [
            Column(
                header=name,
                cells=[
                    time_cell(row[name], references) if name in row else fmt.NONE
                    for row in rows.values()
                ],
            )
            for name in columns_of(rows)
        ],
    )
    screen.item((f"±%: the wider half of the 95 % interval; {fmt.NONE}: too few processes", "dim"))


def time_cell(result: CaseResult, references: set[str]) -> Text:
    """As ``12.3 ms ±1.2`` over ``0.531 faster``; the status of a case that did not run."""
    if result.status != OK:
        return cell(result.status, style_of(result.status))
    if result.latency is None:
        return cell(fmt.NONE)
    unit, size = fmt.time_unit([result.latency.median_s])
    width = spread(result.latency.median_s, median_interval(result.latency))
    text = cell(f"{fmt.significant(result.latency.median_s / size)} {unit} ±{width}")
    if drifting(result):
        text.append("*", "yellow")
    if result.ratio is None:
        return text.append("\n1", "dim") if result.key in references else text
    value = fmt.ratio(result.ratio.ratio)
    if alike(result.ratio):
        return text.append(f"\n~{value}", "dim")
    return text.append(f"\n{value} {result.ratio.verdict}", VERDICTS[result.ratio.verdict])


# -- where does the time go? ---------------------------------------------------------------------


def where(screen: Screen, document: Document) -> None:
    """Shares of the operator classes in each case; as many classes as there is room for."""
    names: list[str] = []
    profiles: list[Profile | None] = []
    for row, cases in rows_of(r for r in document.cases if r.profile).items():
        names += [row, *(f"  {name}" for name in cases)]
        profiles += [None, *(result.profile for result in cases.values())]
    classes = classes_of(profiles)
    if not names:
        return
    first = first_column(names)
    shown = len(classes)
    while shown > 1 and not screen.fits([first, *share_columns(profiles, classes, shown)]):
        shown -= 1
    screen.title("Where does the time go? Operator classes", "% of the wall time")
    screen.table([first, *share_columns(profiles, classes, shown)])
    if shown < len(classes):
        screen.item((f"{OTHER}: {', '.join(classes[shown:])}", "dim"))


def classes_of(profiles: Sequence[Profile | None]) -> list[str]:
    """The classes that take time in any profile, the greatest share first."""
    greatest: dict[str, float] = {}
    for profile in filter(None, profiles):
        for name, time_s in class_times(profile).items():
            greatest[name] = max(greatest.get(name, 0.0), share(time_s, profile) or 0.0)
    return sorted(greatest, key=lambda name: -greatest[name])


def share_columns(
    profiles: Sequence[Profile | None], classes: Sequence[str], shown: int
) -> list[Column]:
    """The first ``shown`` classes, the sum of the others, and what no operator accounts for.

    A row without a profile is blank.
    """
    columns: dict[str, list[str]] = {name: [] for name in classes[:shown]}
    columns |= {name: [] for name in ([OTHER] if classes[shown:] else []) + [UNATTRIBUTED]}
    for profile in profiles:
        times_s: dict[str, float | None] = {}
        if profile is not None:
            times_s |= class_times(profile)
            times_s[OTHER] = sum(times_s.get(name) or 0.0 for name in classes[shown:])
            times_s[UNATTRIBUTED] = profile.unattributed_s
        for name, cells in columns.items():
            cells.append("" if profile is None else fmt.percent(share(times_s.get(name), profile)))
    return [
        Column(header=HYPHENATED.get(name, name), cells=cells) for name, cells in columns.items()
    ]
