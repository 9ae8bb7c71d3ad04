"""Which case of one run meets which of another, what each is called, and how a pair differs.

Cases are paired by identity first. What is left is paired where it is unique on both sides once
the fields that differ are set aside, and those fields are named.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from xbench.contrast import Difference
from xbench.result import OK, CaseResult, Document
from xbench.spec import Case

GROUP = ("model", "size", "phase", "engine", "source", "device")
"""What a pair must have in common, whatever else differs."""
OTHERS = (
    "env", "threads", "precision", "batch", "shape", "cycle", "concurrency", "graph", "draws",
    "loss", "options", "seed", "arm",
)  # fmt: skip
"""The other fields of an identity; a pair may differ in them, and then they are named."""
MOST_DROPPED = 3
"""Fields set aside at once while looking for a partner, before all are."""

Values = dict[str, tuple[Hashable, ...]]
"""What a case has in ``OTHERS``, by its key."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two cases that belong together."""

    a: CaseResult
    b: CaseResult

    @property
    def asked(self) -> bool:
        """Whether a side was asked for it; else it only served a verdict on both."""
        return self.a.asked or self.b.asked

    @property
    def measured(self) -> bool:
        """Whether both sides were asked for it and ran it."""
        return self.a.asked and self.b.asked and self.a.status == OK == self.b.status


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs, in the order of A, and what has no partner. ``ambiguous`` fitted several."""

    pairs: list[Pair]
    left_a: list[CaseResult]
    left_b: list[CaseResult]
    ambiguous: list[CaseResult]


def match(a: Sequence[CaseResult], b: Sequence[CaseResult]) -> Matched:
    """Pair the cases of two runs: by identity, then by what they have in common.

    A file is known by its content: where that is the same, its name may differ; then by its name.
    """
    partner = equals(a, b)
    left_a, left_b = without_partner(a, b, partner)
    ambiguous: list[CaseResult] = []
    for of in (content, group):
        if left_a and left_b:
            found, unclear = pair_groups(left_a, left_b, of)
            ambiguous += unclear
            partner |= found
            left_a, left_b = without_partner(left_a, left_b, found)
    pairs = [Pair(a=result, b=partner[result.key]) for result in a if result.key in partner]
    return Matched(pairs=pairs, left_a=left_a, left_b=left_b, ambiguous=ambiguous)


def repeatable(a: Document, b: Document) -> list[tuple[Case, Case]]:
    """The pairs that can be measured again: asked for and run on both sides."""
    return [(p.a.case, p.b.case) for p in match(a.cases, b.cases).pairs if p.measured]


def equals(a: Sequence[CaseResult], b: Sequence[CaseResult]) -> dict[str, CaseResult]:
    """The case of B of the same identity, by the key of A's."""
    by_key = {result.key: result for result in b}
    # Keys come from a file, which may have been edited: the fields decide.
    return {
        result.key: other
        for result in a
        if (other := by_key.get(result.key)) is not None and other.case == result.case
    }


def without_partner(
    a: Sequence[CaseResult], b: Sequence[CaseResult], partner: Mapping[str, CaseResult]
) -> tuple[list[CaseResult], list[CaseResult]]:
    """The cases of either side that ``partner`` does not hold."""
    taken = {other.key for other in partner.values()}
    return (
        [result for result in a if result.key not in partner],
        [result for result in b if result.key not in taken],
    )


def group(case: Case) -> Hashable:
    return tuple([getattr(case, field) for field in GROUP])


def content(case: Case) -> Hashable:
    """The group of a user's file whatever its name; None for other cases."""
    return (case.graph, *(getattr(case, f) for f in GROUP[1:])) if case.graph else None


def pair_groups(
    left_a: Sequence[CaseResult],
    left_b: Sequence[CaseResult],
    of: Callable[[Case], Hashable],
) -> tuple[dict[str, CaseResult], list[CaseResult]]:
    """Partners within each group, by A's key, and the cases of A that fit several of B."""
    partner: dict[str, CaseResult] = {}
    ambiguous: list[CaseResult] = []
    groups_a, groups_b = grouped(left_a, of), grouped(left_b, of)
    for shared, ours in groups_a.items():
        if shared not in groups_b:
            continue
        theirs = {result.key: result for result in groups_b[shared]}
        keys, unclear = pair_values(
            {result.key: values_of(result.case) for result in ours},
            {key: values_of(result.case) for key, result in theirs.items()},
        )
        partner |= {key: theirs[other] for key, other in keys.items()}
        ambiguous += [result for result in ours if result.key in unclear]
    return partner, ambiguous


def grouped(
    results: Sequence[CaseResult], of: Callable[[Case], Hashable]
) -> dict[Hashable, list[CaseResult]]:
    """The cases by their group; those that have none are left out."""
    found: dict[Hashable, list[CaseResult]] = defaultdict(list)
    for result in results:
        if (key := of(result.case)) is not None:
            found[key].append(result)
    return found


def values_of(case: Case) -> tuple[Hashable, ...]:
    return tuple([frozen(getattr(case, field)) for field in OTHERS])


def pair_values(a: Values, b: Values) -> tuple[dict[str, str], set[str]]:
    """Partners by key, with as few fields set aside as it takes, and the keys that stay unclear.

    A field that no two share is set aside at once, so that a sweep over another range of it costs
    one pass. A case that fits two others with equally few fields set aside fits none.
    """
    a, b = dict(a), dict(b)
    partner: dict[str, str] = {}
    unclear: set[str] = set()
    level = 0
    while a and b:
        shared = shared_fields(a, b)
        if level > len(shared):
            break
        fits = {
            fit
            for dropped in itertools.combinations(shared, level)
            for fit in unique(a, b, [i for i in shared if i not in dropped])
        }
        of_a, of_b = Counter(key for key, _ in fits), Counter(other for _, other in fits)
        for key, other in fits:
            if of_a[key] == of_b[other] == 1:
                partner[key] = other
            else:
                unclear.add(key)
            a.pop(key, None)
            b.pop(other, None)
        if fits:
            level = 0  # Fewer are left, which may have less in common.
        elif level == MOST_DROPPED < len(shared):
            level = len(shared)
        else:
            level += 1
    return partner, unclear


def shared_fields(a: Values, b: Values) -> list[int]:
    """The fields, by their place, that tell cases apart and have a value that both sides have."""
    columns = (zip(*side.values(), strict=True) for side in (a, b))
    seen = [(set(x), set(y)) for x, y in zip(*columns, strict=True)]
    return [i for i, (x, y) in enumerate(seen) if x & y and len(x | y) > 1]


def unique(a: Values, b: Values, kept: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Keys of the two that alone on their side have the same values in ``kept``."""
    ours, theirs = alone(a, kept), alone(b, kept)
    for values, one in ours.items():
        other = theirs.get(values)
        if one is not None and other is not None:
            yield one, other


def alone(side: Values, kept: Sequence[int]) -> dict[Hashable, str | None]:
    """The key that has these values in ``kept``, by the values; None where several have."""
    found: dict[Hashable, str | None] = {}
    for key, values in side.items():
        picked = tuple([values[i] for i in kept])
        found[picked] = None if picked in found else key
    return found


def frozen(value: Any) -> Hashable:
    """A hashable value that is equal where the field is."""
    hashable: Hashable = value
    if type(value) in PLAIN:
        return hashable
    if isinstance(value, Mapping):
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, tuple | list):
        return tuple([frozen(item) for item in value])
    return hashable


PLAIN = (int, str)
"""Asked for first: nearly every field is one of these, and ten thousand cases have many."""


def identity_differences(a: Case, b: Case) -> tuple[Difference, ...]:
    """The fields that differ, options by each of their keys; ``arm`` is no difference."""
    if a == b:
        return ()
    found: list[tuple[str, str, str]] = []
    for field in (*GROUP, *OTHERS):
        x, y = getattr(a, field), getattr(b, field)
        if x == y or field == "arm":
            continue
        if field == "options":
            changed = [key for key in dict.fromkeys([*x, *y]) if x.get(key) != y.get(key)]
            found += [(key, x.get(key, ""), y.get(key, "")) for key in changed]
        else:
            found.append((field, in_words(x), in_words(y)))
    return tuple(
        Difference(kind="identity", what=what, a=before or "none", b=after or "none")
        for what, before, after in found
    )


def in_words(value: Any) -> str:
    """A field of a case: ``x 1x3x224x224`` for shapes; empty where it has none."""
    if type(value) in PLAIN:
        return str(value)
    if isinstance(value, (tuple, list)):
        if value and isinstance(value[0], Mapping):  # A cycle: one shape after the other.
            return " / ".join(map(in_words, value))
        return "x".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join([f"{key} {in_words(item)}" for key, item in value.items()])
    return "" if value is None else str(value)


def names(results: Sequence[CaseResult]) -> dict[str, str]:
    """What each case is called, by key; equal labels of one table get what tells them apart."""
    twins: dict[tuple[str, str, str, str], list[CaseResult]] = defaultdict(list)
    for result in results:
        case = result.case
        twins[case.model, case.size, case.phase, case.label].append(result)
    found = {}
    for (_, _, _, label), same in twins.items():
        fields = varied([result.case for result in same])
        for result in same:
            words = [f"{f} {in_words(getattr(result.case, f)) or 'none'}" for f in fields]
            found[result.key] = ", ".join([label, *words])
    return found


def varied(cases: Collection[Case]) -> list[str]:
    """The fields in which the cases are not all alike."""
    if len(cases) == 1:
        return []
    columns = [(field, [getattr(case, field) for case in cases]) for field in OTHERS]
    return [field for field, values in columns if values.count(values[0]) < len(values)]
