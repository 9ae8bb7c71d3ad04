"""The columns of every table of a report, from a document; printing them is not done here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from xbench.optypes import UNKNOWN
from xbench.reports import format as fmt
from xbench.reports.format import Column, cell
from xbench.result import (
    Agreement,
    CaseResult,
    Latency,
    LossTable,
    OpTime,
    Placement,
    Profile,
    Ratio,
    Soak,
    TensorMetrics,
    Trend,
    Visit,
)
from xbench.soaking import FALLING, RISING
from xbench.spec import Case
from xbench.speed import FASTER, SAME, SLOWER
from xbench.stats import MIN_FOR_INTERVAL, latency

Names = Mapping[str, str]
"""What the tables call each case, by its key."""

TOP_OPERATORS = 8
SOAK_ROWS = 12
MAX_STEPS = 50
"""More steps than this are thinned out in the loss table."""

STYLES = {
    "ok": "green",
    "agree": "green",
    "disagree": "bold red",
    "inconclusive": "yellow",
    "unavailable": "yellow",
    "unsupported": "yellow",
    "interrupted": "yellow",
}
"""Style of a status or verdict; any other status is a failure."""

VERDICTS = {FASTER: "green", SLOWER: "yellow", SAME: "", "inconclusive": "dim"}
"""Style of a verdict on speed."""

FACTS = {
    "cpu": "{}",
    "cpus": "{} CPUs",
    "memory_gib": "{} GiB",
    "gpu": "{}",
    "os": "{}",
}
"""Environment facts that the header begins with, in words; of the others it gives the name."""
VARIED = (
    "env", "threads", "batch", "shape", "cycle", "concurrency", "graph", "draws", "loss", "options",
    "seed",
)  # fmt: skip
"""Fields of a case that its label leaves out, and that tell equal labels apart."""


def grouped(cases: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Cases that stand in one table, by its heading."""
    groups: dict[str, list[CaseResult]] = {}
    for result in cases:
        case = result.case
        groups.setdefault(heading(case), []).append(result)
    return groups


def heading(case: Case) -> str:
    """What a case measures: model, size where there are several, phase."""
    return f"{case.model} {case.size}".strip() + f", {case.phase}"


def case_names(cases: Iterable[CaseResult]) -> dict[str, str]:
    """The label of each case by key; equal labels of one table get what tells them apart."""
    names: dict[str, str] = {}
    for group in grouped(cases).values():
        twins: dict[str, list[CaseResult]] = {}
        for result in group:
            twins.setdefault(result.case.label, []).append(result)
        for label, same in twins.items():
            varied = varying(same)
            for result in same:
                extra = [described(result.case, field) for field in varied]
                names[result.key] = ", ".join(filter(None, [label, *extra]))
    return names


def varying(same: Sequence[CaseResult]) -> list[str]:
    """The fields that tell cases of one label apart; not a shape that only follows the batch."""
    if len(same) == 1:
        return []
    found = [field for field in VARIED if len({repr(getattr(r.case, field)) for r in same}) > 1]
    return [field for field in found if field != "shape" or "batch" not in found]


def described(case: Case, field: str) -> str:
    """A field of a case in words, as in ``threads 4`` or ``ort-opt=all``; empty for no options."""
    value = getattr(case, field)
    if field in ("shape", "cycle"):
        shapes = [value] if field == "shape" else value
        return ", ".join(map(shape_text, shapes)) or f"no {field}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return f"{field} {value}"


def shape_text(shape: Mapping[str, Sequence[int]]) -> str:
    """Shapes by input, as in ``ids=1x16``; a scalar has none."""
    return " ".join(
        f"{name}={'x'.join(map(str, extents)) or 'scalar'}" for name, extents in shape.items()
    )


def shared(cases: Sequence[Case], field: str) -> str:
    """All values of a field over the cases, as in ``threads 1, 4``."""
    values = dict.fromkeys(str(getattr(case, field)) for case in cases)
    return f"{field} {', '.join(values)}"


def environment_facts(environments: Iterable[Mapping[str, str]]) -> list[str]:
    """Every fact once, as ``torch 2.13.0``; environments that differ show all their values."""
    values: dict[str, dict[str, None]] = {}
    for environment in environments:
        for key, value in environment.items():
            if value:
                values.setdefault(key, {})[value] = None
    order = [*(key for key in FACTS if key in values), *(key for key in values if key not in FACTS)]
    shown = {key: " / ".join(values[key]) for key in order}
    return [
        FACTS[key].format(text) if key in FACTS else f"{key} {text}" for key, text in shown.items()
    ]


def speed_columns(group: Sequence[CaseResult], names: Names) -> list[Column]:
    """Time, ratio, first run, load, memory and placement of the cases of one phase."""
    latencies = [result.latency for result in group]
    ratios = [result.ratio for result in group]
    unit, size = fmt.time_unit(latency.median_s if latency else None for latency in latencies)
    references = {ratio.to for ratio in ratios if ratio}

    def column(header: str, cells: Sequence[Text | str], rank: int) -> Column:
        return Column(header=header, cells=cells, rank=rank)

    def times(header: str, values: Sequence[float | None], rank: int) -> Column:
        name, scale = fmt.time_unit(values)
        return column(f"{header}\n{name}", [scaled(value, scale) for value in values], rank)

    def tail(header: str, values: Sequence[float | None], rank: int) -> Column:
        return column(f"{header}\n{unit}", [scaled(value, size) for value in values], rank)

    return [
        Column(header="case", cells=[names[r.key] for r in group], justify="left", least=18),
        Column(header="status", cells=[status_cell(r) for r in group], justify="left"),
        column(f"median\n{unit}", [scaled(x.median_s if x else None, size) for x in latencies], 0),
        column("±%", [spread(x.median_s, median_interval(x)) if x else "" for x in latencies], 0),
        column("ratio", [ratio_cell(r, references) for r in group], 0),
        column("±%", [spread(x.ratio, ratio_interval(x)) if x else "" for x in ratios], 0),
        Column(
            header="verdict",
            cells=[cell(x.verdict, VERDICTS.get(x.verdict, "")) if x else "" for x in ratios],
            justify="left",
            rank=1,
        ),
        Column(
            header="ratio to",
            cells=[names.get(x.to, x.to) if x and len(references) > 1 else "" for x in ratios],
            justify="left",
            rank=2,
        ),
        Column(
            header="items\nper s",
            cells=[blank(fmt.significant(r.items_per_s)) for r in group],
            rank=4,
        ),
        times("on device", [r.device_median_s for r in group], 3),
        times("with copies", [r.end_to_end_s for r in group], 3),
        tail("p90", [x.p90_s if x else None for x in latencies], 8),
        tail("p99", [x.p99_s if x else None for x in latencies], 8),
        times("first run", [r.first_run_s for r in group], 5),
        times("load", [r.load_s for r in group], 6),
        times("compile\ncold", [r.compile_cold_s for r in group], 6),
        times(
            "compile\nwarm or\nno cache" if any(r.compile_cold_s for r in group) else "compile",
            [r.compile_s for r in group],
            6,
        ),
        Column(
            header="computes\nin",
            cells=[r.effective_precision for r in group],
            justify="left",
            rank=2,
        ),
        column("peak\nMiB", [blank(fmt.mebibytes(r.peak_memory_bytes)) for r in group], 5),
        column("samples in\nprocesses", [sampled(r) for r in group], 7),
        Column(
            header="nodes ran on",
            cells=[placed(r.placement) for r in group],
            justify="left",
            rank=3,
            least=16,
        ),
    ]


def scaled(value: float | None, unit: float) -> str:
    return "" if value is None else fmt.significant(value / unit)


def blank(text: str) -> str:
    """A figure of a case that did not run is not a dash, it is not there."""
    return "" if text == fmt.NONE else text


def style_of(word: str) -> str:
    return STYLES.get(word, "bold red")


def drifting(result: CaseResult) -> int:
    """In how many processes the warm-up hit its cap while still drifting."""
    return sum(not samples.steady for samples in result.samples)


def status_cell(result: CaseResult) -> Text:
    """The status, with a mark where the warm-up was not steady."""
    text = cell(result.status, style_of(result.status))
    return text.append("*", "yellow") if drifting(result) else text


def spread(centre: float, ends: tuple[float, float] | None) -> str:
    """The further end of a 95 % interval, in percent of its centre."""
    if ends is None or not centre:
        return fmt.NONE
    share = max(ends[1] - centre, centre - ends[0]) / centre
    # Beyond that the figure says nothing but that the machine was busy.
    return fmt.percent(share) if share < 1 else ">100"


def median_interval(latency: Latency) -> tuple[float, float] | None:
    """The 95 % interval of the median, where there were enough processes for one."""
    low, high = latency.ci_low_s, latency.ci_high_s
    if low is None or high is None or latency.processes < MIN_FOR_INTERVAL:
        return None
    return low, high


def ratio_interval(ratio: Ratio) -> tuple[float, float] | None:
    """The 95 % interval of the ratio, where there were enough rounds for one."""
    low, high = ratio.ci_low, ratio.ci_high
    return None if low is None or high is None or ratio.rounds < MIN_FOR_INTERVAL else (low, high)


def alike(ratio: Ratio) -> bool:
    """Whether nothing may be claimed: the two are the same, or cannot be told apart."""
    return ratio.verdict not in (FASTER, SLOWER)


def ratio_cell(result: CaseResult, references: set[str]) -> Text:
    """The ratio, behind ``~`` where no difference may be claimed."""
    ratio = result.ratio
    if ratio is None:
        return cell("1" if result.key in references else "", "dim")
    value = fmt.ratio(ratio.ratio)
    if alike(ratio):
        return cell(f"~{value}", "dim")
    return cell(value, VERDICTS[ratio.verdict])


def sampled(result: CaseResult) -> str:
    latency = result.latency
    return "" if latency is None else f"{latency.n:,} in {latency.processes}"


def placed(placement: Sequence[Placement]) -> str:
    """Where nodes ran, as in ``cuda 968, cpu 3``."""
    return ", ".join(
        short_ep(place.ep) + ("" if place.nodes is None else f" {place.nodes:,}")
        for place in placement
    )


def short_ep(name: str) -> str:
    """``CUDAExecutionProvider`` is ``cuda``."""
    return name.removesuffix("ExecutionProvider").lower()


def agreement_columns(rows: Sequence[Agreement], names: Names) -> list[Column]:
    """Verdict, worst tensor, errors and limit of the pairs of one phase."""
    tensors = [worst(row) for row in rows]

    def left(header: str, cells: Sequence[Text | str], rank: int, least: int | None) -> Column:
        return Column(header=header, cells=cells, justify="left", rank=rank, least=least)

    return [
        left("case", [names.get(row.a, row.a) for row in rows], 0, 15),
        left("against", [names.get(row.b, row.b) for row in rows], 0, 14),
        left("what", [row.what for row in rows], 0, None),
        left("verdict", [cell(row.verdict, style_of(row.verdict)) for row in rows], 0, None),
        left("worst tensor", [tensor.name if tensor else "" for tensor in tensors], 3, 14),
        Column(
            header="rms to\nfloat64" if all(map(in_double, rows)) else "rms\nerror",
            cells=[rms_error(r, worst(r)) for r in rows],
            rank=1,
        ),
        Column(header="rms\nlimit", cells=[fmt.scientific(r.tolerance) for r in rows], rank=2),
        Column(
            header="scaled\nerror",
            cells=[fmt.scientific(t.scaled if t else None) for t in tensors],
            rank=5,
        ),
        Column(
            header="max\nulp",
            cells=[fmt.integer(t.max_ulp if t else None) for t in tensors],
            rank=6,
        ),
        left("decided by", [decided_by(row) for row in rows], 1, 12),
    ]


SHORT = {
    "rounding of the result": "rounding",
    "rounding of a sum, 4 eps sqrt(K)": "eps sqrt(K)",
    "2x source error": "2x source",
    "float64 parity": "parity",
    "its graph, evaluated in float64": "its graph",
    "operator by operator": "operators",
}
"""What decided, in fewer words; the sentence has them all."""


def decided_by(agreement: Agreement) -> str:
    """Which evidence decided; empty where there was none."""
    found = agreement.evidence.decided_by if agreement.evidence else ""
    return SHORT.get(found, found)


def worst(agreement: Agreement) -> TensorMetrics | None:
    """The tensor that decided; without evidence one with a problem, else the furthest off."""
    decided = agreement.evidence.tensor if agreement.evidence else None
    return max(
        agreement.tensors,
        key=lambda tensor: (tensor.name == decided, bool(tensor.problem), tensor.scaled or 0.0),
        default=None,
    )


def in_double(agreement: Agreement) -> bool:
    """Whether the error shown is the one to float64."""
    return agreement.evidence is not None and agreement.evidence.error_rms is not None


def rms_error(agreement: Agreement, tensor: TensorMetrics | None) -> str:
    """RMS error to float64, which the limit is for; without one, to the other side."""
    evidence = agreement.evidence
    if evidence is not None and evidence.error_rms is not None:
        return fmt.scientific(evidence.error_rms)
    return fmt.scientific(tensor.rms if tensor else None)


def loss_columns(
    trained: Sequence[CaseResult], losses: LossTable, names: Names
) -> tuple[Column, list[Column]]:
    """The steps, and the losses of each case and of the baseline, to as many decimals."""
    steps = max(len(result.loss) for result in trained)
    shown = sorted({*range(0, steps, -(-steps // MAX_STEPS)), steps - 1})
    greatest = max((abs(x) for r in trained for x in r.loss if math.isfinite(x)), default=1.0)
    places = fmt.decimals(greatest, 6)
    series = [(names[result.key], result.loss) for result in trained]
    if losses.baseline:
        series.append((losses.baseline_name, losses.baseline))
    columns = [
        Column(
            header=stacked(name),
            cells=[f"{values[s]:.{places}f}" if s < len(values) else fmt.NONE for s in shown],
        )
        for name, values in series
    ]
    return Column(header="step", cells=[str(step + 1) for step in shown]), columns


def class_share_columns(
    profiles: Mapping[str, Profile], names: Names
) -> tuple[Column, list[Column]]:
    """The classes, the greatest share first, and their share of the wall time in each case."""
    totals = {key: class_times(profile) for key, profile in profiles.items()}
    greatest: dict[str, float] = {}
    for key, times in totals.items():
        for name, time_s in times.items():
            greatest[name] = max(greatest.get(name, 0.0), share(time_s, profiles[key]) or 0.0)
    classes = sorted(greatest, key=lambda name: -greatest[name])
    unit, size = fmt.time_unit(profile.wall_s for profile in profiles.values())
    columns = [
        Column(
            header=stacked(names[key]),
            cells=[
                *(fmt.percent(share(totals[key].get(name), profile)) for name in classes),
                fmt.percent(share(profile.unattributed_s, profile)),
            ],
            footer=fmt.significant(profile.wall_s / size),
        )
        for key, profile in profiles.items()
    ]
    rows = [*map(class_cell, classes), cell("unattributed", "dim")]
    return Column(header="class", cells=rows, justify="left", footer=f"wall, {unit}"), columns


def stacked(label: str) -> str:
    """A label as a narrow header: one word a line."""
    return label.replace(" ", "\n")


def class_times(profile: Profile) -> dict[str, float]:
    """Seconds per step of each operator class."""
    times: dict[str, float] = {}
    for op in profile.ops:
        times[op.op_class] = times.get(op.op_class, 0.0) + op.time_s
    return times


def share(time_s: float | None, profile: Profile) -> float | None:
    return None if time_s is None or profile.wall_s <= 0 else time_s / profile.wall_s


def class_cell(name: str) -> Text:
    return cell(name, "bold yellow" if name == UNKNOWN.op_class else "")


def operator_columns(
    top: Sequence[OpTime], others: Sequence[OpTime], profile: Profile
) -> list[Column]:
    """Name, class, count and time of the operators of one profile."""
    unit, size = fmt.time_unit([profile.wall_s])
    places = fmt.decimals(profile.wall_s / size, 4)
    rest_s = sum(op.time_s for op in others)
    rest = [(f"other operators ({len(others)})", rest_s)] if others else []
    rest.append(("unattributed", profile.unattributed_s))
    times = [*(op.time_s for op in top), *(time_s for _, time_s in rest)]
    pad = [""] * len(rest)

    def left(header: str, cells: Sequence[Text | str], rank: int) -> Column:
        return Column(header=header, cells=[*cells, *pad], justify="left", rank=rank)

    return [
        Column(
            header="operator",
            cells=[*(op.op for op in top), *(cell(name, "dim") for name, _ in rest)],
            justify="left",
            least=20,
            footer="wall",
        ),
        left("class", [class_cell(op.op_class) for op in top], 0),
        left("kind", [op.kind for op in top], 2),
        left("stage", [op.stage for op in top], 1),
        Column(header="count", cells=[*(fmt.integer(op.count) for op in top), *pad], rank=1),
        Column(
            header=f"{unit} a step",
            cells=[f"{time_s / size:.{places}f}" for time_s in times],
            footer=f"{profile.wall_s / size:.{places}f}",
        ),
        Column(
            header="% of wall",
            cells=[fmt.percent(share(time_s, profile)) for time_s in times],
            footer=fmt.percent(share(profile.wall_s, profile)),
        ),
    ]


def visit_columns(result: CaseResult) -> list[Column]:
    """The shapes that a case cycled through: first visit, and later ones, of each."""
    by_shape: dict[str, list[Visit]] = {}
    for visit in result.visits:
        by_shape.setdefault(shape_text(visit.shape), []).append(visit)
    firsts = [statistics.median(v.first_s for v in visits) for visits in by_shape.values()]
    later = [latency([v.samples for v in visits]) for visits in by_shape.values()]
    unit, size = fmt.time_unit([x.median_s for x in later])
    first_unit, first_size = fmt.time_unit(firsts)
    return [
        Column(header="shape", cells=list(by_shape), justify="left", least=18),
        Column(header=f"first visit\n{first_unit}", cells=[scaled(x, first_size) for x in firsts]),
        Column(header=f"median\n{unit}", cells=[scaled(x.median_s, size) for x in later]),
        Column(header="±%", cells=[spread(x.median_s, median_interval(x)) for x in later]),
        Column(header=f"p90\n{unit}", cells=[scaled(x.p90_s, size) for x in later], rank=1),
        Column(header=f"p99\n{unit}", cells=[scaled(x.p99_s, size) for x in later], rank=1),
    ]


def soak_columns(soak: Soak) -> list[Column]:
    """Time and memory over a soak, in at most ``SOAK_ROWS`` of its stretches."""
    windows = soak.windows[:: -(-len(soak.windows) // SOAK_ROWS)]
    unit, size = fmt.time_unit(w.median_s for w in windows)
    return [
        Column(header="after\ns", cells=[f"{w.at_s:.1f}" for w in windows]),
        Column(header="runs", cells=[fmt.integer(w.n) for w in windows]),
        Column(header=f"median\n{unit}", cells=[scaled(w.median_s, size) for w in windows]),
        Column(header=f"p99\n{unit}", cells=[scaled(w.p99_s, size) for w in windows]),
        Column(header="memory\nMiB", cells=[fmt.mebibytes(w.memory_bytes) for w in windows]),
    ]


def trend_cell(trend: Trend) -> Text:
    """A trend in words, as in ``memory rising 12.0 % (p 0.0001)``."""
    change = "" if trend.verdict == "steady" else f" {trend.change:+.1%}".replace("%", " %")
    style = "bold yellow" if trend.verdict in (RISING, FALLING) else "dim"
    return cell(f"{trend.what} {trend.verdict}{change} (p {trend.p:.2g})", style)
