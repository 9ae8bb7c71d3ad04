"""What ``numerics`` reads of two tensors, piece by piece.

``each_error`` reads what the RMS error needs, ``Reading`` all that the metrics need. A piece
leaves a small record; records are put together in the order of the pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xbench import pieces, ulps
from xbench.pieces import Pieces
from xbench.sums import Scaled, ScaledSum, dot, product

Array = np.ndarray[Any, Any]

EXACT = 1 << 12
"""Up to so many elements, quantile and histogram come from the errors themselves."""
_BIN_SHIFT = 45
"""Low bits of a float64 that bins of errors ignore; 7 of 52 mantissa bits stay."""
_WINDOW = 1 << 12
"""Bins below the largest error of a piece that are counted at once: 32 octaves."""

_QUICK = {np.dtype(np.float32), np.dtype(np.float64)}
"""Types that numpy compares as they are more quickly than in float64."""
_SAMPLE = 8
"""Pieces that tell about how large errors are, where there are many times more."""


class Incomparable(ValueError):
    """No distance exists between the two tensors; the message says why."""


def check(a: Array, b: Array) -> None:
    """Raises ``Incomparable`` for shapes and dtypes that have no distance."""
    if a.shape != b.shape:
        raise Incomparable(f"shape {a.shape} is not the reference's {b.shape}")
    for array in (a, b):
        if not ulps.kind(array.dtype):
            raise Incomparable(f"dtype {array.dtype} cannot be compared")
    if ulps.kind(a.dtype) != ulps.kind(b.dtype):
        raise Incomparable(f"dtype {a.dtype} is not of the kind of the reference's {b.dtype}")
    if a.size == 0:
        raise Incomparable("no elements")


class Pair:
    """One piece of both sides at a time, widened to float64 in buffers that are used again.

    After ``load``: ``x`` and ``y`` as stored, ``vx`` and ``vy`` in float64, their distance ``d``
    with its largest element ``peak`` and its squares' sum ``dd``; all flat, over the ``count``
    elements that are finite. ``whole``: vx and vy with those that are not, where there are any.
    """

    def __init__(self, a: Array, b: Array, cut: Pieces) -> None:
        self.a, self.b, self.cut = a, b, cut
        self.floats = ulps.kind(a.dtype) == "f"
        self.narrow = np.float64 not in (_native(a), _native(b))
        self.buffers = [np.empty(cut.most) for _ in range(3)]
        self.wide = np.int64 if ulps.kind(a.dtype) == "i" else np.uint64

    def load(self, index: int) -> bool:
        """Make piece ``index`` the current one; False where the NaN or Inf masks differ."""
        x, y = self.cut.of(self.a, index), self.cut.of(self.b, index)
        vx, vy = _widened(x, self.buffers[0]), _widened(y, self.buffers[1])
        d = self.buffers[2][: x.size]
        self.whole: tuple[Array, Array] | None = None
        if self.floats:
            np.subtract(vx, vy, out=d)
        else:
            d[:] = _steps(x.astype(self.wide), y.astype(self.wide))
        total = dot(d, d)
        if not math.isfinite(total):
            finite, theirs = np.isfinite(vx), np.isfinite(vy)
            if not (finite.all() and theirs.all()):
                finite &= theirs
                # NaN != NaN, hence the third term; Inf equals only the Inf of its sign.
                if not (finite | (vx == vy) | (np.isnan(vx) & np.isnan(vy))).all():
                    return False
                self.whole = vx, vy
                x, y, vx, vy, d = (part[finite] for part in (x, y, vx, vy, d))
        self.x, self.y, self.vx, self.vy, self.d, self.count = x, y, vx, vy, d, x.size
        np.abs(d, out=d)
        self.peak = float(d.max()) if self.count else 0.0
        self.dd: Scaled = (total, 0)
        if self.peak == 0 or math.isinf(self.peak):
            self.dd = (0.0, 0)
        elif not (self.narrow and math.isfinite(total)):
            self.dd = product(d, d, narrow=self.narrow)
        return True

    def differing(self) -> Array:
        """Which elements have different values."""
        x, y = self.x, self.y
        if self.floats and (x.dtype != y.dtype or x.dtype not in _QUICK):
            x, y = self.vx, self.vy
        elif x.dtype != y.dtype:
            x, y = x.astype(self.wide), y.astype(self.wide)
        return np.asarray(x != y)

    def same_bits(self) -> bool:
        """Whether dtype and bit patterns are the same."""
        bits = f"u{self.x.itemsize}"
        return self.x.dtype == self.y.dtype and bool((self.x.view(bits) == self.y.view(bits)).all())


def _native(array: Array) -> np.dtype[Any]:
    dtype: np.dtype[Any] = array.dtype.newbyteorder("=")
    return dtype


def _widened(values: Array, buffer: Array) -> Array:
    """``values`` in float64; in the buffer, unless they are that already."""
    if values.dtype == np.float64:
        return values
    out = buffer[: values.size]
    np.copyto(out, values, casting="unsafe")
    return out


def _steps(x: Array, y: Array) -> Array:
    """|x - y| of 64-bit integers, exact: what wraps around in int64 is right in uint64."""
    return np.where(x >= y, x - y, y - x).view(np.uint64)


def each_error(a: Array, b: Array, chunk: int) -> tuple[ScaledSum, int, float]:
    """sum(d^2), how many elements are finite, and max(d).

    Raises ``Incomparable`` where the masks differ.
    """
    cut = Pieces(a.shape, chunk)

    def make() -> Callable[[int], tuple[int, float, Scaled] | None]:
        pair = Pair(a, b, cut)

        def work(index: int) -> tuple[int, float, Scaled] | None:
            return (pair.count, pair.peak, pair.dd) if pair.load(index) else None

        return work

    total, count, peak = ScaledSum(), 0, 0.0
    for piece in pieces.each(cut.count, pieces.threads(a.size), make):
        if piece is None:
            raise Incomparable(mask_problem(a, b, cut))
        count, peak = count + piece[0], max(peak, piece[1])
        total.add(*piece[2])
    return total, count, peak


def mask_problem(a: Array, b: Array, cut: Pieces) -> str:
    """Which of the NaN and Inf masks differ, how often, and where first."""
    kinds: dict[str, Callable[[Array], Array]]
    kinds = {"NaN": np.isnan, "+Inf": np.isposinf, "-Inf": np.isneginf}
    counts = dict.fromkeys(kinds, 0)
    first: dict[str, tuple[int, float, float]] = {}
    at = 0
    for index in range(cut.count):
        x, y = (cut.of(side, index).astype(np.float64) for side in (a, b))
        for kind, mask in kinds.items():
            differ = np.flatnonzero(mask(x) != mask(y))
            counts[kind] += differ.size
            if differ.size:
                place = int(differ[0])
                first.setdefault(kind, (at + place, float(x[place]), float(y[place])))
        at += x.size
    problems = []
    for kind, (place, mine, theirs) in first.items():
        where = [int(i) for i in np.unravel_index(place, a.shape)] if a.ndim else []
        problems.append(
            f"{kind} masks differ at {counts[kind]} of {a.size} elements, first at "
            f"{where}: {mine} against the reference's {theirs}"
        )
    order = list(kinds)
    return "; ".join(sorted(problems, key=lambda text: order.index(text.split(" ", 1)[0])))


# -- the reference alone ---------------------------------------------------------------------


@dataclass(slots=True)
class Energy:
    """sum(b^2) of one piece or of all, max|b|, and how many elements are finite."""

    total: Scaled
    peak: float
    count: int


def energies(b: Array, cut: Pieces, workers: int) -> list[Energy]:
    """One for each piece of the reference, over its finite elements."""
    narrow = _native(b) != np.float64

    def make() -> Callable[[int], Energy]:
        buffer = np.empty(cut.most)

        def work(index: int) -> Energy:
            stored = cut.of(b, index)
            values = _widened(stored, buffer)
            total = dot(values, values)
            if not math.isfinite(total):
                stored = values = values[np.isfinite(values)]
            elif stored.dtype not in _QUICK:
                stored = values
            peak = max(float(stored.max()), -float(stored.min())) if values.size else 0.0
            if narrow and math.isfinite(total):
                return Energy((total, 0), peak, values.size)
            return (
                Energy(product(values, values, narrow=narrow), peak, values.size)
                if peak
                else (Energy((0.0, 0), 0.0, values.size))
            )

        return work

    return pieces.each(cut.count, workers, make)


# -- both ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Winner:
    """The largest element of a (part of a) row: its value, its place, the other side's value."""

    value: float
    place: int
    other: float

    def beaten_by(self, later: Winner) -> bool:
        return later.value > self.value


@dataclass(slots=True)
class Found:
    """What one piece is like; sums as ``Scaled``. ``kept``: its errors, of small tensors only.

    ``subnormal``: every differing element is subnormal or zero on both sides. ``agreeing`` rows of
    those it holds; ``winners`` of both sides where it holds a part of a row.
    """

    count: int = 0
    peak: float = 0.0
    dd: Scaled = (0.0, 0)
    aa: Scaled = (0.0, 0)
    ab: Scaled = (0.0, 0)
    max_rel: float = 0.0
    max_ulp: int = 0
    differing: int = 0
    subnormal: bool = True
    same_bits: bool = True
    masks: bool = True
    agreeing: int = 0
    winners: tuple[Winner, Winner] | None = None
    kept: Array | None = None


class Reading:
    """Both tensors, read for all metrics.

    ``rms`` of the reference comes first, from it alone, since the floor (``rel_floor`` of it) and
    the ``edges`` (multiples of it) of the histogram need it; then ``found`` holds one record per
    piece, and ``ranks`` the errors by bin for tensors of more than ``EXACT`` elements.
    Raises ``Incomparable`` where the masks differ.
    """

    def __init__(
        self, a: Array, b: Array, chunk: int, rel_floor: float, edges: Sequence[float]
    ) -> None:
        self.a, self.b, self.cut = a, b, Pieces(a.shape, chunk)
        self.floats = ulps.kind(a.dtype) == "f"
        self.small = a.size <= EXACT
        # Rows along the last axis, for the place of their largest element.
        self.row = a.shape[-1] if self.floats and a.ndim > 1 and a.shape[-1] > 1 else 0
        workers = self.workers = pieces.threads(a.size)
        self.energies = energies(b, self.cut, workers)
        self.bb, self.max_ref, finite = ScaledSum(), 0.0, 0
        for energy in self.energies:
            self.bb.add(*energy.total)
            self.max_ref, finite = max(self.max_ref, energy.peak), finite + energy.count
        self.rms = self.bb.rms(finite, self.max_ref) if finite else 0.0
        self.floor = rel_floor * self.rms
        self.edges = [edge * self.rms for edge in edges]
        self.bins: list[Bins] = []
        self.above = self._sample()
        self.found = pieces.each(self.cut.count, workers, self._reader)
        if not all(found.masks for found in self.found):
            raise Incomparable(mask_problem(a, b, self.cut))

    def _reader(self) -> Callable[[int], Found]:
        """The work of one thread, with what it holds."""
        pair = Pair(self.a, self.b, self.cut)
        floors, spare = np.full(self.cut.most, self.floor), np.empty(self.cut.most)
        bins = self._bins()

        def work(index: int) -> Found:
            if not pair.load(index):
                return Found(masks=False)
            found = Found(count=pair.count, peak=pair.peak, dd=pair.dd)
            if self.row:
                self._rows(pair, index, found)
            if not math.isfinite(pair.peak) or not pair.count:
                return found
            if self.small:
                found.kept = pair.d.copy()
            if pair.peak == 0:
                found.same_bits = pair.same_bits()
                found.aa = found.ab = self.energies[index].total
                if not self.small:
                    bins.add_zeros(pair.count)
                return found
            differing = pair.differing()
            found.same_bits = False
            found.differing = int(np.count_nonzero(differing))
            found.aa = product(pair.vx, pair.vx, narrow=pair.narrow)
            found.ab = product(pair.vx, pair.vy, narrow=pair.narrow)
            if self.floats:
                found.max_ulp = ulps.farthest(pair.x, pair.y)
                found.subnormal = _subnormal(pair, differing)
            found.subnormal = found.subnormal and self.floats
            relative = spare[: pair.count]
            np.abs(pair.vy, out=relative)
            np.maximum(relative, floors[: pair.count], out=relative)
            np.divide(pair.d, relative, out=relative)
            # fmax passes over NaN, which is 0/0: no error against a zero.
            found.max_rel = float(relative.max() if self.floor else np.fmax.reduce(relative))
            if not self.small:
                bins.add(pair.d, pair.peak, spare)
            return found

        return work

    def _rows(self, pair: Pair, index: int, found: Found) -> None:
        """Where the largest elements of rows are: ``agreeing``, or the ``winners`` of a part."""
        one, other = pair.whole or (pair.vx, pair.vy)
        if not pair.whole and {pair.x.dtype, pair.y.dtype} <= _QUICK:
            one, other = pair.x, pair.y
        if self.cut.split == 1 and pair.peak == 0:
            found.agreeing = one.size // self.row
            return
        if pair.whole:
            one, other = (np.where(np.isnan(side), -np.inf, side) for side in (one, other))
        if self.cut.split > 1:
            i, j, start = int(one.argmax()), int(other.argmax()), self.cut.start(index)
            found.winners = (
                Winner(float(one[i]), start + i, float(other[i])),
                Winner(float(other[j]), start + j, float(one[j])),
            )
            return
        one, other = one.reshape(-1, self.row), other.reshape(-1, self.row)
        mine, theirs = one.argmax(axis=1), other.argmax(axis=1)
        rows = np.flatnonzero(mine != theirs)
        i, j = mine[rows], theirs[rows]
        ties = (one[rows, i] == one[rows, j]) & (other[rows, i] == other[rows, j])
        found.agreeing = one.shape[0] - rows.size + int(np.count_nonzero(ties))

    def top1(self) -> float | None:
        """Share of rows whose largest element is at the same place on both sides."""
        if not self.row:
            return None
        agreeing = sum(found.agreeing for found in self.found)
        split = self.cut.split
        if split > 1:
            parts = [found.winners for found in self.found]
            agreeing = sum(_agree(parts[at : at + split]) for at in range(0, len(parts), split))
        return agreeing / (self.a.size // self.row)

    def ranks(self, rank: int) -> Ranks:
        """The errors by bin; the element of that rank has one."""
        ranks = Ranks(self.bins)
        if ranks.at(rank) is None:
            # The sample deceived: all once more, with bins for each.
            self.bins, self.above = [], -1.0
            pieces.each(self.cut.count, self.workers, self._binner)
            ranks = Ranks(self.bins)
        return ranks

    def _binner(self) -> Callable[[int], None]:
        """The work of one thread that counts errors and nothing else."""
        pair, spare = Pair(self.a, self.b, self.cut), np.empty(self.cut.most)
        bins = self._bins()

        def work(index: int) -> None:
            pair.load(index)
            if pair.peak:
                bins.add(pair.d, pair.peak, spare)
            else:
                bins.add_zeros(pair.count)

        return work

    def _bins(self) -> Bins:
        """Another thread's."""
        bins = Bins(0 if self.small else self.cut.most, self.above, self.edges)
        self.bins.append(bins)
        return bins

    def _sample(self) -> float:
        """What about 3 % of the errors exceed, by a few pieces; negative where there are few.

        A guess that decides what is counted how, not what comes of it.
        """
        if self.cut.count < _SAMPLE**2:
            return -1.0
        pair, parts = Pair(self.a, self.b, self.cut), []
        for index in range(0, self.cut.count, self.cut.count // _SAMPLE):
            if not pair.load(index):
                return -1.0
            parts.append(pair.d[::_SAMPLE].copy())
        d = np.concatenate(parts)
        rank = d.size * 97 // 100
        return float(np.partition(d, rank)[rank]) if d.size else -1.0


def _agree(parts: list[tuple[Winner, Winner] | None]) -> bool:
    """Whether both sides of one row, in parts, have their largest element at the same place."""
    (one, other), *rest = (part for part in parts if part)
    for later_one, later_other in rest:
        one = later_one if one.beaten_by(later_one) else one
        other = later_other if other.beaten_by(later_other) else other
    if one.place == other.place:
        return True
    return one.value == other.other and other.value == one.other


def _subnormal(pair: Pair, differing: Array) -> bool:
    """Whether what differs is subnormal or zero on both sides, in the less precise dtype."""
    narrow = ulps.less_precise(pair.x.dtype, pair.y.dtype)
    limit = ulps.smallest_normal(narrow)
    if pair.peak >= 2 * limit:
        return False
    return all(
        bool((np.abs(ulps.rounded(side[differing], narrow).astype(np.float64)) < limit).all())
        for side in (pair.x, pair.y)
    )


class Bins:
    """Errors counted: those above ``above`` by exponent and the top 7 bits of the mantissa.

    Of the others, which may be most, only how many are at most each of ``edges`` is counted: a
    few comparisons cost a third of all the bins. A negative ``above`` leaves no others. The lower
    end of a bin is too small by at most 1/128 of an element or 2 ** -1029. ``zeros`` holds the
    first bin; of the rest ``low`` is the first that was ever used, ``top`` the last.
    """

    def __init__(self, most: int, above: float, edges: list[float]) -> None:
        self.above = above
        self.edges = [edge for edge in edges if edge < above]
        self.upto = [0] * len(self.edges)
        self.others = self.zeros = 0
        self.counts = np.zeros(1 << (63 - _BIN_SHIFT) if most else 0, np.int64)
        self.nothing = np.zeros(most, np.int64)
        self.low, self.top = self.counts.size, 0

    def add(self, d: Array, peak: float, spare: Array) -> None:
        """Count ``d``, whose largest is ``peak``, above zero; ``spare`` is written over."""
        if self.above >= 0:
            for at, edge in enumerate(self.edges):
                beyond = np.count_nonzero(d > edge) if edge < peak else 0
                self.upto[at] += d.size - int(beyond)
            size, d = d.size, np.compress(d > self.above, d)
            self.others += size - d.size
            if not d.size:
                return
        top = bin_of(peak)
        base = max(0, top - _WINDOW + 1)
        keys = spare.view(np.int64)[: d.size]
        np.right_shift(d.view(np.int64), _BIN_SHIFT, out=keys)
        np.subtract(keys, base, out=keys)
        np.maximum(keys, self.nothing[: d.size], out=keys)
        found = np.bincount(keys, minlength=top - base + 1)
        # The first bin of the window also holds what is far below the largest: mostly zeros.
        if found[0]:
            self._few(d[keys == 0].view(np.int64) >> _BIN_SHIFT)
            found[0] = 0
        self.counts[base : top + 1] += found
        self.low, self.top = min(self.low, base), max(self.top, top)

    def add_zeros(self, count: int) -> None:
        """Count so many elements without an error."""
        if self.above < 0:
            self.zeros += count
            return
        self.others += count
        self.upto = [upto + count for upto in self.upto]

    def _few(self, bins: Array) -> None:
        """Count bins one by one."""
        some = bins[bins > 0]
        self.zeros += bins.size - some.size
        if some.size:
            np.add.at(self.counts, some, 1)
            self.low = min(self.low, int(some.min()))


class Ranks:
    """Bins of all threads, put together."""

    def __init__(self, parts: list[Bins]) -> None:
        first = parts[0]
        self.low, top = min(part.low for part in parts), max(part.top for part in parts)
        counts = np.zeros(max(0, top + 1 - self.low), np.int64)
        for part in parts:
            counts += part.counts[self.low : top + 1]
        self.total = counts.cumsum()
        self.others = sum(part.others for part in parts)
        # In the first bin or below all bins.
        self.below = self.others + sum(part.zeros for part in parts)
        counted = zip(*(part.upto for part in parts), strict=True)
        self.edges = dict(zip(first.edges, map(sum, counted), strict=True))

    def upto(self, value: float) -> int:
        """How many are at most ``value``, one of the edges; or above it, but in its bin."""
        if value in self.edges:
            return self.edges[value]
        last = min(bin_of(value) - self.low, self.total.size - 1)
        return self.below + (int(self.total[last]) if last >= 0 else 0)

    def at(self, rank: int) -> float | None:
        """The lower end of the bin that holds the element of that rank, counted from 1.

        None where it is not among those that have bins.
        """
        if rank <= self.below:
            return None if rank <= self.others else 0.0
        return end_of(self.low + int(np.searchsorted(self.total, rank - self.below)))


def bin_of(value: float) -> int:
    """The bin that holds ``value``, which is not negative."""
    return int(np.array([value]).view(np.int64)[0]) >> _BIN_SHIFT


def end_of(index: int) -> float:
    """The lower end of a bin."""
    return float((np.array([index], np.int64) << _BIN_SHIFT).view(np.float64)[0])
