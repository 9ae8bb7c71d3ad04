"""What is not the same around two runs: machine, software, digests, and the runs themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from xbench.contrast import LISTED, Change, Difference
from xbench.pairing import Pair, identity_differences
from xbench.result import Document

MACHINE = ("cpu", "cpus", "memory_gib", "os", "gpu")
"""Facts of an environment that are of the machine; all others are of its software."""
DECISIVE = ("cpu", "cpus", "gpu")
"""Facts of the machine of which one is enough to make it another."""
KINDS = ("machine", "software", "identity", "digest")
"""Differences of cases, in the order in which they are told."""


def changes(a: Document, b: Document, pairs: Sequence[Pair]) -> list[Change]:
    """What differs of every pair; its environments are looked at once, however many share them."""
    shared = {(pair.a.environment, pair.b.environment) for pair in pairs}
    around = {
        (x, y): environment_differences(a.environments.get(x, {}), b.environments.get(y, {}))
        for x, y in shared
    }
    return [
        Change(
            own=(*identity_differences(pair.a.case, pair.b.case), *digest_differences(pair)),
            around=around[pair.a.environment, pair.b.environment],
        )
        for pair in pairs
    ]


def environment_differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Difference, ...]:
    """The facts that are not the same, those of the machine first."""
    return tuple(
        Difference(
            kind="machine" if fact in MACHINE else "software",
            what=fact,
            a=a.get(fact) or "none",
            b=b.get(fact) or "none",
        )
        for fact in dict.fromkeys([*MACHINE, *a, *b])
        if (a.get(fact) or "") != (b.get(fact) or "")
    )


def digest_differences(pair: Pair) -> tuple[Difference, ...]:
    """The digests that both sides have and that are not the same."""
    x, y = pair.a.digests, pair.b.digests
    if x == y:
        return ()
    return tuple(
        Difference(kind="digest", what=what, a=x[what], b=y[what])
        for what in x
        if what in y and x[what] != y[what]
    )


def fresh(document: Document) -> str:
    """How the processes of a run were made; empty where it does not say."""
    return str(document.run.request.get("fresh", ""))


def run_differences(a: Document, b: Document) -> list[Difference]:
    """Differences of the runs themselves: the version of xbench, and how processes were made."""
    values = [("xbench", a.run.xbench, b.run.xbench), ("fresh", fresh(a), fresh(b))]
    return [
        Difference(kind="run", what=what, a=x, b=y, cases=0)
        for what, x, y in values
        if x and y and x != y
    ]


def counted(pairs: Sequence[Pair], changes: Sequence[Change]) -> list[Difference]:
    """Every difference of the pairs once, by ``KINDS``, with how many and whom it concerns.

    What has more than ``LISTED`` values, as a sweep has, is one difference: they stand in the rows.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter()
    where: dict[tuple[str, str, str, str], dict[str, None]] = defaultdict(dict)
    for pair, change in zip(pairs, changes, strict=True):
        place = f"{pair.a.case.engine} {pair.a.case.device}"
        recorded = pair.a.environment and pair.b.environment
        for d in (*(change.around if recorded else ()), *change.own):
            key = (d.kind, d.what, "", "") if d.kind == "digest" else (d.kind, d.what, d.a, d.b)
            counts[key] += 1
            where[key][place] = None
    values = Counter(key[:2] for key in counts)
    merged: dict[tuple[str, str, str, str], tuple[int, dict[str, None]]] = {}
    for key, count in counts.items():
        to = (*key[:2], "", "") if values[key[:2]] > LISTED else key
        have, places = merged.get(to, (0, {}))
        merged[to] = (have + count, places | where[key])
    return [
        Difference(kind=kind, what=what, a=x, b=y, cases=count, where=(*places,))
        for (kind, what, x, y), (count, places) in sorted(
            merged.items(), key=lambda item: KINDS.index(item[0][0])
        )
    ]
