"""Which output of one side is held against which of the other, and what another shape means.

Values decide, never names or shapes alone: a layout, an order of outputs or a reshape is told only
where the values agree under it (to ``LIMIT``) and do not without. Large tensors are looked at
through a sample; nothing of their size is copied, but where a tensor that is not contiguous is
held against one of another rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from xbench import numerics

Array = np.ndarray[Any, Any]

LIMIT = 1e-2
"""RMS difference over the standard deviation of the reference, below which values match: a
correlation above 0.9999. For integers and booleans: the elements that differ, over those of the
reference that are not its median, so that two masks of few ones are not alike for their zeros."""
SAMPLE = 1_000_000
"""Elements looked at to decide; the figure that is told is of all of them."""
MOST_SWAPPED = 16
"""Outputs that are tried crosswise; of more, only what differs is told."""
CANDIDATES = 720
"""Orders of axes tried at most: all of six axes."""
NAMED = {
    (0, 3, 1, 2): ("NHWC", "NCHW"),
    (0, 2, 3, 1): ("NCHW", "NHWC"),
    (0, 4, 1, 2, 3): ("NDHWC", "NCDHW"),
    (0, 2, 3, 4, 1): ("NCDHW", "NDHWC"),
}
"""Layouts by the order of axes that turns the first into the second."""


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs of A and B that are held against each other.

    ``pairs``: a name of A and one of B each. ``by_position``: whether some were paired so.
    ``missing``: of B without a partner in A; ``extra``: of A without one in B. ``words`` says what
    is not paired by name; empty where everything is.
    """

    pairs: list[tuple[str, str]]
    by_position: bool = False
    missing: list[str] = []
    extra: list[str] = []
    words: str = ""


def pair(
    a: Mapping[str, Array], b: Mapping[str, Array], *, labels: tuple[str, str] = ("A", "B")
) -> Pairing:
    """Pair outputs by name, and what is then left by position where both have as many left.

    The order is that of ``b``. ``labels`` is what ``words`` calls the two sides.
    """
    left_a = [name for name in a if name not in b]
    left_b = [name for name in b if name not in a]
    by_position = bool(left_a) and len(left_a) == len(left_b)
    if by_position:
        partner = dict(zip(left_b, left_a, strict=True))
        words = "; ".join(
            f"{x} of {labels[0]} is held against {y} of {labels[1]}, by position"
            for y, x in partner.items()
        )
        pairs = [(partner.get(name, name), name) for name in b]
        return Pairing(pairs=pairs, by_position=True, words=words)
    sides = [(labels[1], left_b, labels[0]), (labels[0], left_a, labels[1])]
    return Pairing(
        pairs=[(name, name) for name in b if name in a],
        missing=left_b,
        extra=left_a,
        words="; ".join(
            f"{', '.join(names)} of {owner} {'has' if len(names) == 1 else 'have'} no partner "
            f"in {other}"
            for owner, names, other in sides
            if names
        ),
    )


def layout(a: Array, b: Array, *, labels: tuple[str, str] = ("a", "b")) -> str:
    """In which other order ``a`` holds the values of ``b``: a sentence, or nothing.

    ``labels`` is what the sentence calls the two.

    Told are the same elements in C order under another shape, and a permutation of axes, also
    where the shape is the same because sizes are equal. Nothing is told where ``a`` matches ``b``
    as it is, where no such order makes it match, and where ``b`` is constant or has under two
    elements, so that values could not tell.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.size != b.size or not _comparable(a, b):
        return ""
    flat = _sample(b.size)
    index = np.unravel_index(flat, b.shape)
    expected = b[index]
    as_it_is = a[np.unravel_index(flat, a.shape)]
    if not _match(as_it_is, expected):
        return _permuted(a, b, index, expected, labels)
    if a.shape == b.shape:
        return ""
    how = _agreement(a.reshape(b.shape), b)
    shapes = f"{list(a.shape)} against {list(b.shape)}"
    mine, theirs = labels
    return how and (
        f"{mine} holds the values of {theirs} in the same order under another shape, {shapes}: "
        f"{how}"
    )


def swapped(
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    pairing: Pairing,
    *,
    labels: tuple[str, str] = ("A", "B"),
) -> str:
    """Which outputs match crosswise and not as they are paired: a sentence, or nothing.

    Those that do may be more than two, each with the values of the next. An output that matches
    its own partner, or more than one other, is left out.
    """
    if len(pairing.pairs) > MOST_SWAPPED:
        return ""
    off = [(x, y) for x, y in pairing.pairs if not _same(a[x], b[y])]
    partner: dict[str, str] = {}
    for x, _ in off:
        others = [y for _, y in off if _same(a[x], b[y])]
        if len(others) == 1:
            partner[x] = others[0]
    paired = dict(off)
    owner = {y: x for x, y in off}
    sentences = []
    for cycle in _cycles({x: owner[y] for x, y in partner.items()}):
        if len(cycle) == 2 and all(paired[x] == x for x in cycle):
            sentences.append(f"outputs {cycle[0]!r} and {cycle[1]!r} are swapped")
            continue
        matches = ", ".join(
            f"{x!r} of {labels[0]} matches {partner[x]!r} of {labels[1]}" for x in cycle
        )
        sentences.append(f"outputs are swapped: {matches}")
    return "; ".join(sentences)


def _permuted(
    a: Array, b: Array, index: tuple[Array, ...], expected: Array, labels: tuple[str, str]
) -> str:
    """The permutation of the axes of ``a`` under which it matches ``b`` best, if it does."""
    best, order = math.inf, None
    for candidate in _orders(a.shape, b.shape):
        found = _distance(a.transpose(candidate)[index], expected)
        if found < best:
            best, order = found, candidate
    if order is None or best >= LIMIT:
        return ""
    how = _agreement(a.transpose(order), b)
    if not how:
        return ""
    if order == (0, 2, 1):
        # Its own inverse: which of the two is which cannot be seen.
        what = f"one of {labels[0]} and {labels[1]} is NLC, the other NCL"
    elif order in NAMED:
        mine, theirs = NAMED[order]
        what = f"{labels[0]} is {mine} where {labels[1]} is {theirs}"
    else:
        what = f"the axes of {labels[0]} are in another order than those of {labels[1]}"
    return f"{what}: transposed by {order} {how}"


def _orders(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders of axes that turn shape ``a`` into ``b``, named ones first, at most ``CANDIDATES``.

    Axes of size 1 are kept in their order: moving them among themselves changes nothing.
    """
    if sorted(a) != sorted(b):
        return
    tried = 0
    for order in NAMED:
        if len(order) == len(a) and [a[axis] for axis in order] == list(b):
            tried += 1
            yield order
    for order in _fitting(tuple(a), tuple(b), ()):
        if tried == CANDIDATES:
            return
        if order not in NAMED and list(order) != sorted(order):
            tried += 1
            yield order


def _fitting(
    a: tuple[int, ...], b: tuple[int, ...], chosen: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    if len(chosen) == len(b):
        yield chosen
        return
    size = b[len(chosen)]
    axes = [axis for axis in range(len(a)) if a[axis] == size and axis not in chosen]
    for axis in axes[:1] if size == 1 else axes:
        yield from _fitting(a, b, (*chosen, axis))


def _sample(size: int) -> Array:
    """At most ``SAMPLE`` flat indices, evenly spread.

    Their step has no factor in common with ``size``: otherwise the last axes would stand still.
    """
    step = -(-size // SAMPLE) or 1
    while math.gcd(step, size) != 1:
        step += 1
    return np.arange(0, size, step)


def _comparable(a: Array, b: Array) -> bool:
    """Whether differences of the two mean anything."""
    return b.size > 1 and _is_float(a) == _is_float(b) and all(map(_is_number, (a, b)))


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "iub" or _is_float(array)


def _is_float(array: Array) -> bool:
    """bfloat16 and the 8-bit floats are of kind V to numpy."""
    dtype = array.dtype
    return dtype.kind == "f" or (dtype.kind == "V" and np.can_cast(dtype, np.float64))


def _same(a: Array, b: Array) -> bool:
    """Whether two outputs have the same shape and matching values, and values that can tell."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or not _comparable(a, b):
        return False
    index = np.unravel_index(_sample(b.size), b.shape)
    return _match(a[index], b[index])


def _match(a: Array, b: Array) -> bool:
    return _distance(a, b) < LIMIT


def _distance(a: Array, b: Array) -> float:
    """How far flat samples are apart (see ``LIMIT``); infinite where it means nothing.

    That is: NaN and Inf in other places, or a reference that is constant.
    """
    if not _is_float(b):
        middle = np.partition(b, b.size // 2)[b.size // 2]
        telling = np.count_nonzero(b != middle)
        return np.count_nonzero(a != b) / telling if telling else math.inf
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not finite.any():
            return math.inf
        x, y = x[finite], y[finite]
        # Of the order of 1, so that squares neither overflow nor vanish.
        scale = float(np.abs(y).max()) or 1.0
        x, y = x / scale, y / scale
        spread = float(np.std(y))
        found = float(np.sqrt(np.mean(np.square(x - y)))) / spread if spread else math.inf
    return found if math.isfinite(found) else math.inf


def _agreement(a: Array, b: Array) -> str:
    """How well all of ``a`` agrees with all of ``b``, in words; nothing where it does not."""
    metrics = numerics.compare("", a, b)
    if metrics.bitwise_equal:
        return "it is equal"
    if not _is_float(b):
        differ = sum(int((x != y).sum()) for x, y in _blocks(a, b))
        return f"{differ} of {b.size} elements differ" if differ else "it is equal"
    if metrics.scaled is None or metrics.scaled >= LIMIT:
        return ""
    return f"it agrees to {metrics.scaled:.1g}"


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    yield from np.nditer([a, b], flags=["buffered", "external_loop"], order="K")


def _cycles(following: Mapping[str, str]) -> Iterator[list[str]]:
    """The closed walks of a map, each once, from its first member."""
    seen: set[str] = set()
    for first in following:
        walk = [first]
        while following.get(walk[-1], first) not in walk:
            walk.append(following[walk[-1]])
        if following.get(walk[-1]) == first and not seen & set(walk) and len(walk) > 1:
            seen |= set(walk)
            yield walk
