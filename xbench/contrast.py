"""What is said of the cases of two runs: the values that a comparison is made of.

Values are frozen and refer to nothing that could refer back to them (``gc=False``).
"""

from __future__ import annotations

import msgspec

WORK = ("batch", "shape", "cycle", "concurrency", "loss")
"""Fields of a case that change how much there is to do: times at two values are of other work."""
LISTED = 5
"""Cases or values that one line names; more are counted."""
STORED, INTERLEAVED = "stored", "interleaved"
"""How a ratio was measured: two runs one after the other, or both sides in the same rounds."""


class Difference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that is not the same on both sides, other than a result.

    ``kind``: ``identity`` (a field of the case), ``digest`` (what it was computed from),
    ``machine``, ``software`` or ``run``. ``a`` and ``b`` are empty where the values differ from
    case to case; a value that one side lacks is ``none``. ``cases``: how many pairs it concerns;
    ``where``: the engines and devices of those, empty where it concerns the whole run.
    """

    kind: str
    what: str
    a: str = ""
    b: str = ""
    cases: int = 1
    where: tuple[str, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What differs of a pair: ``own`` of its cases, ``around`` of the environments they ran in."""

    own: tuple[Difference, ...]
    around: tuple[Difference, ...]

    @property
    def work(self) -> list[str]:
        """The fields by which one side has more to do than the other."""
        return [d.what for d in self.own if d.kind == "identity" and d.what in WORK]


class Spread(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log standard deviation between stored runs, with the degrees of freedom behind it.

    ``known`` is false where it is the default, which nobody measured on this machine.
    """

    run_sd: float
    df: float
    known: bool


class Figure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ratio of a pair before the correction over all pairs.

    ``withheld`` says why no verdict may be given; ``remarks`` go into the sentence as they are.
    """

    method: str = ""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    rounds: int = 0
    floor: float | None = None
    withheld: str = ""
    remarks: tuple[str, ...] = ()


class Verdicts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The agreement of one case with ``against`` on both sides; empty where it was not judged."""

    what: str
    against: str
    a: str = ""
    b: str = ""

    @property
    def changed(self) -> bool:
        """Judged on both sides, and not alike."""
        return bool(self.a and self.b) and self.a != self.b


class LossChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The loss at the last step that both sides have, counted from 1; ``relative`` to A's."""

    step: int
    a: float
    b: float
    relative: float | None


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pair. ``ratio`` is the time of B over that of A, ``memory_ratio`` likewise of the peaks.

    ``p`` is corrected over the ``family`` of this comparison (Holm). ``verdict`` is empty where
    none is given. ``method``: ``stored``, or ``interleaved`` where it was measured again.
    """

    a_key: str
    b_key: str
    model: str
    size: str
    phase: str
    label: str
    a_status: str
    b_status: str
    a_reason: str = ""
    b_reason: str = ""
    asked: bool = True
    measured: tuple[bool, bool] = (True, True)
    a_median_s: float | None = None
    b_median_s: float | None = None
    method: str = ""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    family: int = 0
    margin: float | None = None
    floor: float | None = None
    verdict: str = ""
    sentence: str = ""
    agreements: tuple[Verdicts, ...] = ()
    loss: LossChange | None = None
    memory_ratio: float | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.size}, {self.phase}: {self.label}"

    @property
    def changed(self) -> tuple[Verdicts, ...]:
        """Agreements judged on both sides whose verdict is not the same."""
        return tuple(verdicts for verdicts in self.agreements if verdicts.changed)


class Single(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A case without a partner. ``disagrees``: on what it was judged to disagree."""

    key: str
    model: str
    size: str
    phase: str
    label: str
    status: str
    reason: str = ""
    disagrees: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.size}, {self.phase}: {self.label}"
