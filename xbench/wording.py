"""What a comparison says in words: the sentence of a pair, the notes before the table."""

from __future__ import annotations

from collections.abc import Sequence

from xbench import differences, speed, stats
from xbench.contrast import INTERLEAVED, LISTED, STORED, Change, Figure, Row, Spread, Verdicts
from xbench.pairing import Pair
from xbench.result import OK, Document


def sentence(
    pair: Pair,
    change: Change,
    figure: Figure,
    verdict: str,
    margin: float | None,
    agreements: Sequence[Verdicts],
) -> str:
    """What became of a case, for a person."""
    identity = [d for d in change.own if d.kind == "identity"]
    digests = [d.what for d in change.own if d.kind == "digest"]
    parts = [speed_sentence(pair, figure, verdict, margin)]
    if identity:
        parts.append(f"not the same in {', '.join(f'{d.what} {d.a} -> {d.b}' for d in identity)}")
    if digests:
        parts.append(f"not computed from the same {conjoined(digests)}")
    if any(d.what == "graph" for d in identity):
        parts.append("paired by the name of the file, whose content is not the same")
    parts += figure.remarks
    parts += [f"{x.what} against {x.against}: {x.a} -> {x.b}" for x in agreements if x.changed]
    return "; ".join(filter(None, parts))


def speed_sentence(pair: Pair, figure: Figure, verdict: str, margin: float | None) -> str:
    """The part on status and speed; empty for a pair that was only computed for a verdict."""
    a, b = pair.a, pair.b
    if a.status != OK and b.status != OK:
        return f"ran in neither: {a.status} in A, {b.status} in B: {brief(b.reason)}"
    if b.status != OK:
        return f"no longer runs in B: {b.status}: {brief(b.reason)}"
    if a.status != OK:
        return f"runs in B, did not in A ({a.status}: {brief(a.reason)})"
    if a.asked != b.asked:
        return f"measured in {'A' if a.asked else 'B'} only"
    if figure.ratio is None:
        return ""
    text = f"B takes {figure.ratio:.3f} times as long as A"
    if figure.ci_low is not None and figure.ci_high is not None:
        text += f" (95 % interval {figure.ci_low:.3f} to {figure.ci_high:.3f})"
    if figure.method == INTERLEAVED:
        text += f", measured again, interleaved, in {figure.rounds} rounds"
    if figure.withheld:
        return f"{text}, no verdict: {figure.withheld}"
    if verdict == speed.SAME:
        return f"{text}: the same within {100 * (margin or 0.0):.1f} %"
    if verdict != speed.INCONCLUSIVE:
        return f"{text}: {verdict}"
    if figure.ci_low is None:
        return f"{text}: inconclusive, under {stats.MIN_FOR_INTERVAL} processes on a side"
    return f"{text}: inconclusive"


def notes(
    a: Document,
    b: Document,
    rows: Sequence[Row],
    spread: Spread,
    *,
    rerun: Document | None,
    other_machine: bool,
    ambiguous: Sequence[str],
) -> list[str]:
    """What a reader must know before the table: what was left open, and how sure it can be.

    ``other_machine``: verdicts were asked for although the machines differ. ``ambiguous``: names of
    the cases of A that fit several of B.
    """
    found = [
        f"{name} (run {document.run.id}) was interrupted: it has less than was asked for"
        for name, document in (("A", a), ("B", b))
        if document.run.interrupted
    ]
    found += ratio_notes(rows, spread, rerun)
    if other_machine:
        found.append("the machines differ: a verdict on speed is on machine and code together")
    ways = [differences.fresh(document) for document in (a, b)]
    if all(ways) and ways[0] != ways[1]:
        found.append(
            "one run forked its processes and the other did not: their memory does not compare"
        )
    if ambiguous:
        found.append(f"fit several cases of B equally well, so none: {few(ambiguous)}")
    return found


def ratio_notes(rows: Sequence[Row], spread: Spread, rerun: Document | None) -> list[str]:
    """How the ratios were measured, what noise they bear, and how many got no verdict."""
    measured = [row for row in rows if row.ratio is not None]
    found = []
    if any(row.method == STORED for row in measured):
        found.append(noise_note(spread, max(row.family for row in rows)))
    if rerun is not None:
        again = sum(row.method == INTERLEAVED for row in measured)
        found.append(f"measured again, interleaved: {again} of {len(measured)} ratios")
        if rerun.run.interrupted:
            found.append("the rerun was interrupted")
    for verdict, what in ((speed.INCONCLUSIVE, "inconclusive"), ("", "without a verdict")):
        count = sum(row.verdict == verdict for row in measured)
        if count:
            found.append(
                f"{count} of {len(measured)} ratios {'is' if count == 1 else 'are'} {what}"
            )
    return found


def noise_note(spread: Spread, family: int) -> str:
    """From which difference on stored runs can tell anything, over so many comparisons."""
    least = stats.least_difference(spread.run_sd, spread.df, speed.ALPHA / max(1, family))
    source = (
        "measured on this machine"
        if spread.known
        else "a default, `xbench doctor --noise` measures it"
    )
    return (
        f"stored runs are blocks one after the other, and differ by themselves by "
        f"{100 * spread.run_sd:.1f} % ({source}): under about {100 * least:.0f} % "
        "nothing can be claimed of them; --rerun measures both sides interleaved"
    )


def nothing_in_common(a: Document, b: Document) -> str:
    """What each side has, for the user to see why no case fits."""

    def has(document: Document) -> str:
        asked = [result.case for result in document.cases if result.asked]
        what = dict.fromkeys(f"{c.model} {c.size} {c.phase} {c.label}" for c in asked)
        return f"run {document.run.id} has {few(list(what)) or 'no case at all'}"

    return f"the two have no case in common: {has(a)}; {has(b)}"


def brief(reason: str) -> str:
    """The first line of a reason."""
    return (reason.strip() or "no reason was given").splitlines()[0]


def conjoined(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def few(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
