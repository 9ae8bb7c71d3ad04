"""The report on a terminal: what ran, how fast, whether it agrees, and where the time goes.

Everything asked for is in it. At a narrow width whole columns go, the least important first, and
one line at the end names them; a reason, a sentence or a number is never cut.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from rich.console import Console

from xbench.listing import Listed
from xbench.optypes import UNKNOWN
from xbench.reports import format as fmt
from xbench.reports import suite
from xbench.reports.format import Screen
from xbench.reports.tables import (
    TOP_OPERATORS,
    Names,
    agreement_columns,
    case_names,
    class_share_columns,
    drifting,
    environment_facts,
    grouped,
    heading,
    loss_columns,
    median_interval,
    operator_columns,
    ratio_interval,
    share,
    shared,
    short_ep,
    soak_columns,
    speed_columns,
    style_of,
    trend_cell,
    visit_columns,
    worst,
)
from xbench.result import OK, Agreement, CaseResult, Document, LossTable, Profile, Ratio
from xbench.speed import ALPHA, MARGIN
from xbench.stats import MIN_FOR_INTERVAL

NAMED = 3
"""Cases that a note names; more are counted."""
FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?(?!\w)")
"""A number in a note."""
PIPED_WIDTH = 160
"""Columns when nobody's terminal limits them."""


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for ``show``: the terminal's width, or wide and without codes when piped."""
    console = Console(file=file or sys.stdout, width=width, highlight=False, emoji=False)
    if width is None and not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PIPED_WIDTH
    return console


def show(document: Document, console: Console) -> None:
    """Print the whole report of a run."""
    screen = Screen(console)
    names = case_names(document.cases)
    header(screen, document)
    if suite.is_suite(document):
        overview(screen, document, names)
    else:
        in_full(screen, document, names)
    closing(screen, document, names)


def in_full(screen: Screen, document: Document, names: Names) -> None:
    """Tables of every model and phase."""
    groups = grouped(document.cases)
    for group in groups.values():
        # A case that only served a verdict was computed, not measured: it has no speed.
        asked = [result for result in group if result.asked]
        if asked:
            speed(screen, asked, names)
            cycles(screen, asked, names)
            soaks(screen, asked, names)
    judged = by_judged(document)
    for group in groups.values():
        agreements(screen, judged, group, names)
    strays = stray_agreements(document)
    if strays:
        screen.title("Agreement", "of cases outside this run")
        agreement_table(screen, strays, names)
    for losses in document.losses:
        for group in groups.values():
            trained = [
                r for r in group if (r.case.model, r.case.batch) == (losses.model, losses.batch)
            ]
            loss_by_step(screen, losses, trained, names)
    for group in groups.values():
        operator_time(screen, group, names)


def overview(screen: Screen, document: Document, names: Names) -> None:
    """One table per question over all models; what is wrong is told in full."""
    asked = [result for result in document.cases if result.asked]
    whole = {r.key: f"{r.case.model} {r.case.phase} {names[r.key]}" for r in document.cases}
    lost = [result for result in asked if result.status != OK]
    if lost:
        screen.title("Did not run", f"{len(lost)} of {fmt.plural(len(asked), 'case')}")
        failed(screen, lost, whole)
    tell(screen, suite.same(screen, document), whole)
    suite.fast(screen, document)
    ratios = [result.ratio for result in asked if result.ratio]
    if ratios:
        law(screen, ratios)
    if count := sum(map(bool, map(drifting, asked))):
        of = fmt.plural(count, "case")
        screen.item(("*", "yellow"), (f" not steady when warm-up ended: {of}", "dim"))
    named = {r.key: f"{r.case.model} {names[r.key]}" for r in document.cases}
    cycles(screen, asked, named)
    soaks(screen, asked, named)
    suite.where(screen, document)
    screen.line()
    screen.line((f"tables of a model: xbench show {document.run.id} MODEL", "dim"))


def header(screen: Screen, document: Document) -> None:
    """Model and size, the machine, and what all cases have in common."""
    cases = [result.case for result in document.cases]
    run = document.run
    what = ", ".join(dict.fromkeys(f"{case.model} {case.size}".strip() for case in cases))
    screen.line(
        (what or "nothing was asked for", "bold"),
        (f"  run {run.id}, {run.started}, xbench {run.xbench}", "dim"),
    )
    facts = environment_facts(document.environments.values())
    if facts:
        screen.line(", ".join(facts))
    if cases:
        counts = sorted({len(r.samples) for r in document.cases if r.samples} or {0})
        rounds = fmt.plural(counts[-1], "round") if counts[-1] else "nothing measured"
        if len(counts) > 1:
            rounds = f"{counts[0]} to {rounds}"
        fields = [shared(cases, field) for field in ("threads", "batch", "seed")]
        screen.line(", ".join([rounds, *fields]))
    if run.interrupted:
        screen.line(("interrupted: what had been measured is below", "bold yellow"))


def speed(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """One row per case, those that did not run included; their reasons below."""
    case = group[0].case
    body = "one step" if case.phase == "train" else "one run"
    if case.cycle:
        body = "one cycle through all shapes; first run: of the first shape"
    if any(result.samples or result.status != OK for result in group):
        screen.title(f"Speed: {heading(case)}", f"time of {body}")
        screen.table(speed_columns(group, names))
    failed(screen, group, names)
    speed_remarks(screen, group, names)


def failed(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """Why cases did not run."""
    for result in group:
        if result.status != OK:
            screen.item(
                (names[result.key], "bold"),
                " ",
                (result.status, style_of(result.status)),
                f": {result.reason or 'no reason was given'}",
            )


def speed_remarks(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """What the marks in the table mean, for those that are there, and what strayed."""
    ratios = [result.ratio for result in group if result.ratio]
    references = {ratio.to for ratio in ratios}
    intervals = [median_interval(result.latency) for result in group if result.latency]
    intervals += [ratio_interval(ratio) for ratio in ratios]
    legend = []
    if ratios:
        to = names.get(next(iter(references))) if len(references) == 1 else None
        legend.append(f"ratio: time over that of {to or 'the reference'}, paired by round")
    if any(intervals):
        legend.append("±%: the wider half of the 95 % interval")
    if legend:
        screen.item(("; ".join(legend), "dim"))
    if ratios:
        law(screen, ratios)
    if None in intervals:
        screen.item((f"- no interval: fewer than {MIN_FOR_INTERVAL} processes", "dim"))
    if any(r.case.device != "cpu" and r.peak_memory_bytes for r in group):
        screen.item(("peak MiB of cuda cases is memory of the host, not of the GPU", "dim"))
    for result in group:
        if count := drifting(result):
            of = fmt.plural(len(result.samples), "process")
            screen.item(
                ("*", "yellow"),
                (f" {names[result.key]}: not steady when warm-up ended, {count} of {of}", "dim"),
            )
        if len(result.placement) > 1:
            few = min(result.placement, key=lambda place: place.nodes or 0)
            ops = ", ".join(f"{op} {count}" for op, count in few.ops.items())
            if ops:
                screen.item((f"{names[result.key]}: on {short_ep(few.ep)} ran {ops}", "dim"))


def law(screen: Screen, ratios: Sequence[Ratio]) -> None:
    """By what the verdicts on speed were reached, margin and noise floor included."""
    margins = sorted(x.margin for x in ratios if x.margin is not None)
    if not margins:
        return
    span = fmt.percent(margins[0])
    if margins[-1] != margins[0]:
        span += f" to {fmt.percent(margins[-1])}"
    floors = [x.floor for x in ratios if x.floor is not None]
    floor = (
        f"A/A floor of this machine up to {fmt.percent(max(floors))} %"
        if floors
        else "A/A floor of this machine not known: xbench doctor --noise"
    )
    family = ratios[0].family
    of = f"over {fmt.plural(family, 'comparison')} (Holm)" if family > 1 else "of one comparison"
    screen.item(
        (
            f"faster, slower: p at most {ALPHA:g} {of} and beyond the margin of {span} % "
            f"({floor}); same: interval within {fmt.percent(MARGIN)} %; "
            "~ no difference may be claimed",
            "dim",
        )
    )


def cycles(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """Per shape, for the cases that cycled through several."""
    for result in group:
        if result.visits:
            screen.title(f"Shapes in turn: {names[result.key]}", "one session, every shape in turn")
            screen.table(visit_columns(result))


def soaks(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """Time and memory over each soak, and whether they rose."""
    for result in group:
        if result.soak is None or not result.soak.windows:
            continue
        screen.title(
            f"Soak: {names[result.key]}, {result.case.phase}",
            f"{fmt.significant(result.soak.duration_s)} s without pause",
        )
        screen.table(soak_columns(result.soak))
        for trend in result.soak.trends:
            screen.item(trend_cell(trend))


def by_judged(document: Document) -> dict[str, list[tuple[int, Agreement]]]:
    """The agreements on each case, by its key, with their places in the document."""
    found: dict[str, list[tuple[int, Agreement]]] = {}
    for place, agreement in enumerate(document.agreements):
        found.setdefault(agreement.a, []).append((place, agreement))
    return found


def stray_agreements(document: Document) -> list[Agreement]:
    """Agreements whose judged case is not in the document."""
    keys = {result.key for result in document.cases}
    return [agreement for agreement in document.agreements if agreement.a not in keys]


def agreements(
    screen: Screen,
    judged: Mapping[str, Sequence[tuple[int, Agreement]]],
    group: Sequence[CaseResult],
    names: Names,
) -> None:
    """The verdicts on the cases of a group, in the document's order."""
    found = itertools.chain.from_iterable(judged.get(result.key, ()) for result in group)
    rows = [agreement for _, agreement in sorted(found, key=operator.itemgetter(0))]
    if not rows:
        return
    case = group[0].case
    verdicts = [row.verdict for row in rows]
    tally = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
    screen.title(f"Agreement: {heading(case)}", ", ".join(tally))
    agreement_table(screen, rows, names)


def agreement_table(screen: Screen, rows: Sequence[Agreement], names: Names) -> None:
    """One row per agreement; below it what there is to tell."""
    screen.table(agreement_columns(rows, names))
    tell(screen, rows, names)


def tell(screen: Screen, rows: Sequence[Agreement], names: Names) -> None:
    """Every sentence that says more than its row in a table."""
    told: set[tuple[str, str]] = set()
    for row in rows:
        # Against another side the same is often said again.
        same = row.a, row.sentence.replace(names.get(row.b, row.b), "")
        if not row.telling or same in told:
            continue
        told.add(same)
        judged = names.get(row.a, row.a)
        # Most sentences begin with the case themselves.
        who = "" if row.sentence.startswith(judged) else f"{judged} against "
        who += f"{names.get(row.b, row.b)}, " if who else ""
        screen.item(f"{who}{row.what} ", (row.verdict, style_of(row.verdict)), f": {row.sentence}")
        tensor = worst(row)
        if tensor is not None and tensor.problem and tensor.problem not in row.sentence:
            screen.item(f"  {tensor.name}: {tensor.problem}")


def loss_by_step(
    screen: Screen, losses: LossTable, group: Sequence[CaseResult], names: Names
) -> None:
    """A column per training case and the trivial predictor's beside them."""
    trained = [result for result in group if result.loss]
    if not trained:
        return
    case = trained[0].case
    screen.title(f"Loss by step: {case.model} {case.size}, {losses.loss}", losses.data)
    first, columns = loss_columns(trained, losses, names)
    screen.series(first, columns)
    if losses.baseline:
        screen.item((f"{losses.baseline_name}: trivial baseline on the same batches", "dim"))
    steps = max(len(result.loss) for result in trained)
    if len(first.cells) < steps:
        screen.item((f"{len(first.cells)} of {steps} steps; --json has all", "dim"))


def operator_time(screen: Screen, group: Sequence[CaseResult], names: Names) -> None:
    """Shares of the operator classes across cases, then the top operators of each case."""
    profiles = {result.key: result.profile for result in group if result.profile}
    if not profiles:
        return
    case = group[0].case
    screen.title(
        "Where the time goes: class share by case",
        f"{heading(case)}, % of wall",
    )
    first, columns = class_share_columns(profiles, names)
    screen.series(first, columns)
    for key, profile in profiles.items():
        top_operators(screen, f"{names[key]}, {case.phase}", profile)


def top_operators(screen: Screen, name: str, profile: Profile) -> None:
    """The slowest operators of a case; what is left keeps the sum equal to the wall time."""
    unit, size = fmt.time_unit([profile.wall_s])
    screen.title(
        f"Operators: {name}",
        f"wall {fmt.significant(profile.wall_s / size, 4)} {unit} a step, "
        f"{fmt.plural(profile.steps, 'profiled step')}",
    )
    ranked = sorted(profile.ops, key=lambda op: -op.time_s)
    screen.table(operator_columns(ranked[:TOP_OPERATORS], ranked[TOP_OPERATORS:], profile))
    unknown = [op for op in ranked if op.op_class == UNKNOWN.op_class]
    if unknown:
        total = fmt.percent(share(sum(op.time_s for op in unknown), profile))
        listed = ", ".join(dict.fromkeys(op.op for op in unknown))
        screen.item(("unknown operators", "bold yellow"), f", {total} % of wall: {listed}")
    if profile.truncated:
        screen.item(("truncated", "bold yellow"), ": the profiler lost events, times are too low")
    if profile.correction:
        screen.item((f"correction: {profile.correction}", "dim"))


def closing(screen: Screen, document: Document, names: Names) -> None:
    """Notes, what the width left out, and as the last line the exit status with its reasons."""
    notes = [*document.notes, *case_notes(document.cases, names)]
    if notes:
        screen.title("Notes")
        for note in notes:
            screen.item(note)
    screen.line()
    if screen.dropped:
        left_out = ", ".join(screen.dropped)
        screen.line((f"left out at {screen.console.width} columns: {left_out}", "dim"))
    style = "bold green" if document.exit_status == 0 else "bold red"
    reasons = "; ".join(document.exit_reasons) or summary(document)
    screen.line((f"exit {document.exit_status}", style), f": {reasons}")


def case_notes(cases: Sequence[CaseResult], names: Names) -> list[str]:
    """The notes of the cases; one that many share once, whatever its figures, with their range."""
    alike: dict[str, dict[str, list[CaseResult]]] = {}
    for result in cases:
        for note in result.notes:
            holders = alike.setdefault(FIGURE.sub("#", note), {})
            holders.setdefault(note, []).append(result)
    measured = sum(bool(result.samples) for result in cases)
    several = len({result.case.model for result in cases}) > 1

    def called(result: CaseResult) -> str:
        model = f"{result.case.model} " if several else ""
        return f"{model}{names[result.key]}, {result.case.phase}"

    found = []
    for noted in alike.values():
        if sum(map(len, noted.values())) > NAMED:
            holding = {result.key for results in noted.values() for result in results}
            found.append(f"{len(holding)} of {measured} cases: {ranged(list(noted))}")
            continue
        for note, results in noted.items():
            found.append(f"{'; '.join(map(called, results))}: {note}")
    return found


def ranged(notes: Sequence[str]) -> str:
    """One note for several that differ in their figures: ``1.5 to 1.7 CPUs``."""
    columns = zip(*(FIGURE.findall(note) for note in notes), strict=True)
    ends = [sorted(set(column), key=float) for column in columns]
    spans = iter([one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in ends])
    return FIGURE.sub(lambda _: next(spans), notes[0])


def summary(document: Document) -> str:
    """What ran and agreed, in one line; an exit status of 0 may have been allowed for."""
    asked = [result for result in document.cases if result.asked]
    total = len(asked)
    ran = sum(result.status == OK for result in asked)
    verdicts = [agreement.verdict for agreement in document.agreements]
    agreed = verdicts.count("agree")
    what = "all ran" if ran == total else f"{ran} of {total} cases ran"
    if not verdicts:
        return f"{what}, nothing was compared"
    if agreed == len(verdicts):
        return f"{what} and agreed"
    return f"{what}, {agreed} of {len(verdicts)} comparisons agreed"


def table_list(models: Sequence[Listed], console: Console) -> None:
    """Print what ``xbench list`` knows of each model; the first loss is the default."""
    screen = Screen(console)
    indent = max((len(model.name) for model in models), default=0) + 2
    for model in models:
        screen.line((model.name.ljust(indent), "bold cyan"), (model.title, "bold"))
        in_use = model.data_problem or model.data_path
        lines = [
            ("paper", model.paper),
            *((size, size_text(model, size)) for size in model.parameters),
            ("losses", ", ".join(model.losses)),
            ("data", model.data),
            *([("data in use", in_use)] if in_use else []),
        ]
        width = max(len(name) for name, _ in lines) + 2
        for name, text in lines:
            screen.line((name.ljust(width), "dim"), text, indent=indent)
        screen.line()


def size_text(model: Listed, size: str) -> str:
    """As ``1,234 parameters, 0.012 GFLOP an item, batch 32 (inference 1, 32)``."""
    flops = model.flops_per_item[size]
    gflop = fmt.significant(None if flops is None else flops / 1e9)
    own = model.infer_batch[size]
    apart = f" (inference {', '.join(map(str, own))})" if own != (model.batch[size],) else ""
    batch = f"batch {model.batch[size]}{apart}"
    return f"{model.parameters[size]:,} parameters, {gflop} GFLOP an item, {batch}"
