"""What came of it: measurements, profiles, agreements, and the document that holds a run.

Values are frozen. Raw samples are kept; statistics derived from them are marked as derived by
living in ``latency``. Units are in the names: ``_s`` seconds, ``_bytes`` bytes.

What a document holds thousands of is ``gc=False``: by the types of its fields it refers to nothing
that could refer back, and the garbage collector need not walk it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from xbench.spec import Case, Shape

SCHEMA = 1

OK = "ok"
STATUSES = (
    "ok",
    "unavailable",
    "unsupported",
    "failed",
    "crashed",
    "timeout",
    "out_of_memory",
    "fell_back",
    "interrupted",
)


class Samples(msgspec.Struct, frozen=True, gc=False):
    """Durations of single bodies from one fresh process, in the order they were taken.

    ``per_sample`` bodies were timed together when one is shorter than the clock is fine; the
    values are already divided by it. ``warmup`` counts bodies run before and not kept;
    ``steady`` is false when the warm-up hit its cap while still drifting. ``device_s`` is the
    device's own time of the same bodies, by its events, where the engine offers them.
    """

    process: int
    round: int
    values_s: list[float]
    per_sample: int = 1
    warmup: int = 0
    steady: bool = True
    device_s: list[float] = []


class Visit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One shape of a cycle in one process: its first run in the session, and later samples."""

    shape: Mapping[str, Shape]
    first_s: float
    samples: Samples


class Conditions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What else the machine did while one process sampled: None where it does not say.

    ``foreign_cpus``: CPUs that other processes kept busy, on average. ``steal``: share of the CPUs'
    time that a hypervisor gave to others. ``throttled_s``: how long the control group's quota held
    its processes back. ``throttle_events``: thermal throttling of a core. ``memory_stall``: share
    of the time in which some process waited for memory. ``swapped_bytes``: read back from swap.
    ``available_bytes``: memory left at the end.
    ``gpu``: facts of the GPU's driver, by name (clocks, temperature, throttle reasons, foreign
    processes).
    """

    wall_s: float
    cpus: int
    own_cpu_s: float
    foreign_cpus: float | None = None
    steal: float | None = None
    throttled_s: float | None = None
    throttle_events: int | None = None
    memory_stall: float | None = None
    swapped_bytes: int | None = None
    available_bytes: int | None = None
    gpu: Mapping[str, str] = {}


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one fresh process measured of one case.

    ``cold``: whether ``compile_s`` was paid with an empty compile cache. ``end_to_end_s``: single
    bodies with the copies of inputs and outputs, where the timed region has none to leave out.
    ``per_s``: bodies a second of all threads together, where several call one session.
    ``effective_precision``: what the arithmetic was done in, where that is not what was asked.
    """

    samples: Samples
    load_s: float
    compile_s: float | None
    first_run_s: float
    peak_memory_bytes: int
    placement: list[Placement]
    cold: bool = False
    visits: list[Visit] = []
    end_to_end_s: list[float] = []
    per_s: float | None = None
    effective_precision: str = ""
    conditions: Conditions | None = None


class Trend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether a quantity rose or fell over a soak. The test and the slope: ``stats.trend``.

    ``change`` is the slope times the duration, relative to the median; ``p`` of no trend at all.
    """

    what: str
    change: float
    p: float
    verdict: str


class SoakWindow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One stretch of a soak. ``p99_s`` is None where too few bodies ran in it."""

    at_s: float
    n: int
    median_s: float
    p99_s: float | None
    memory_bytes: int


class Soak(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A case run without pause: raw windows, and trends derived from them."""

    duration_s: float
    windows: list[SoakWindow]
    trends: list[Trend] = []


class Latency(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Derived from samples: median of process medians with a 95 % interval over processes."""

    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None
    p90_s: float | None
    p99_s: float | None
    n: int
    processes: int


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where nodes ran. ``ops`` counts operator types, so that a straggler can be named."""

    ep: str
    nodes: int | None
    time_share: float | None = None
    ops: Mapping[str, int] = {}


class OpTime(msgspec.Struct, frozen=True, gc=False, rename={"op_class": "class"}):
    """Self time of one operator in one stage, summed over ``count`` calls per step."""

    op: str
    op_class: str
    kind: str
    stage: str
    count: float
    time_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Operator time per step: sum of ``ops`` + ``unattributed_s`` = ``wall_s``.

    ``correction`` says what was subtracted for the profiler's own cost and how it was found.
    """

    wall_s: float
    steps: int
    unattributed_s: float
    truncated: bool
    correction: str
    ops: list[OpTime]


class TensorMetrics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far tensor ``name`` is from its reference. Formulas stand in ``numerics``.

    ``differing`` counts the elements whose values are not equal. ``subnormal_only``: some differ,
    and all of them are subnormal or zero on both sides. ``top1`` is the share of rows (along the
    last axis) whose largest element is at the same place; None where that makes no sense.
    ``histogram`` counts elements by error, as ``numerics.HISTOGRAM`` says.
    """

    name: str
    bitwise_equal: bool
    differing: int = 0
    subnormal_only: bool = False
    top1: float | None = None
    histogram: list[int] = []
    rms: float | None = None
    max_abs: float | None = None
    p99_abs: float | None = None
    max_rel: float | None = None
    scaled: float | None = None
    max_ulp: float | None = None
    cosine: float | None = None
    snr_db: float | None = None
    reference_rms: float | None = None
    elements: int = 0
    problem: str = ""


class OperatorCheck(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One operator alone, on inputs that are the reference's (rounded to its type) or its own.

    ``op``: its type, of several that were fused as ``Conv+Relu``; ``output``: the tensor it made.
    ``error_rms``: to the same operator in float64 on the same inputs. ``limit_rms``: its own bound,
    of which ``bound`` says what set it; ``terms`` is K, how many terms one result sums.
    """

    node: str
    op: str
    output: str
    error_rms: float
    limit_rms: float
    terms: int = 1
    bound: str = ""

    @property
    def score(self) -> float:
        """The error over its bound; infinite where the bound is zero and the error is not."""
        if self.limit_rms > 0:
            return self.error_rms / self.limit_rms
        return 0.0 if self.error_rms == 0 else float("inf")


class Operators(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A side checked operator by operator: ``worst`` are the least accurate, by score, descending.

    ``checked`` counts all that were; ``unchecked`` says which could not be, and why. ``remark``:
    how what was checked differs from what ran. ``optimizer``: its update was among them, without
    which they say nothing of a trajectory.
    """

    checked: int
    worst: list[OperatorCheck] = []
    unchecked: list[str] = []
    remark: str = ""
    optimizer: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a verdict is what it is, for the tensor that decided.

    ``error_rms``: the judged side's RMS error to float64. ``other_error_rms``: that of the side it
    is held against. ``source_error_rms``: that of the engine whose own error is the measure.
    ``spread_rms``: RMS change of the function when its parameters move by ``spread_ulps``, the
    largest of ``draws``. ``rounding_rms``: 4 eps RMS(ref), times sqrt(``terms``) where a single
    operator made the tensor. ``narrow_rms``: error of float64 whose tensors are rounded to the
    declared precision. ``graph_rms``: distance to float64 of the judged graph when that is
    evaluated in float64 itself. ``self_rms``: how far the side was from itself in a second run.
    ``operators``: the check operator by operator, where a rejection asked for it. ``ties``: indices
    that differ between values closer than their own error. ``decided_by`` names what decided.
    """

    tensor: str
    error_rms: float | None = None
    other_error_rms: float | None = None
    source_error_rms: float | None = None
    spread_rms: float | None = None
    rounding_rms: float | None = None
    narrow_rms: float | None = None
    graph_rms: float | None = None
    self_rms: float | None = None
    operators: Operators | None = None
    ties: int = 0
    terms: int = 1
    draws: int = 0
    spread_ulps: int = 0
    decided_by: str = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The verdict on a pair: ``a`` is judged, ``b`` is what it is held against (case keys).

    ``telling``: the sentence says more than verdict, error and limit.
    """

    a: str
    b: str
    what: str
    tensors: list[TensorMetrics]
    evidence: Evidence | None
    tolerance: float | None
    verdict: str
    sentence: str
    telling: bool = True


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything known of a case. A case that did not run has a status and a reason.

    ``asked`` is false for a case that only served a verdict: it was computed, not measured.
    ``compile_cold_s`` was paid with an empty compile cache, ``compile_s`` with a warm one (or by
    an engine that has none). ``items_per_s``: batch items, from the median, or as counted where
    several threads call one session. ``conditions``: one entry per process, as ``samples``.
    """

    key: str
    case: Case
    status: str
    reason: str = ""
    digests: Mapping[str, str] = {}
    samples: list[Samples] = []
    latency: Latency | None = None
    ratio: Ratio | None = None
    first_run_s: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    compile_cold_s: float | None = None
    peak_memory_bytes: int | None = None
    items_per_s: float | None = None
    device_median_s: float | None = None
    end_to_end_s: float | None = None
    effective_precision: str = ""
    visits: list[Visit] = []
    conditions: list[Conditions] = []
    soak: Soak | None = None
    placement: list[Placement] = []
    loss: list[float] = []
    profile: Profile | None = None
    environment: str = ""
    notes: list[str] = []
    asked: bool = True


class Ratio(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Derived: time of this case over that of ``to``, paired by round, and the verdict on it.

    ``verdict`` (``faster slower same inconclusive``) is by the law of ``speed``: ``p`` of no
    difference, Holm's correction over ``family`` comparisons included; ``margin`` is the relative
    difference below which nothing is claimed, ``floor`` the part of it that this machine's own A/A
    noise asks for (None where it is not known).
    """

    to: str
    ratio: float
    ci_low: float | None
    ci_high: float | None
    rounds: int
    p: float | None = None
    family: int = 1
    margin: float | None = None
    floor: float | None = None
    verdict: str = ""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """A/A noise of a machine: the same body in fresh processes, one after the other.

    ``pair_sd``: standard deviation of the log ratio of two neighbours, which is what a round of a
    comparison rests on. ``run_sd``: that of the log median of a whole run, measured one after the
    other as stored runs are. ``processes`` and ``runs`` say how many they come from.
    """

    machine: str
    measured: str
    pair_sd: float
    processes: int
    run_sd: float | None = None
    runs: int = 0


class LossTable(msgspec.Struct, frozen=True, kw_only=True):
    """A trivial predictor's loss, on the batches that a model's training cases of one batch saw.

    ``baseline`` is the loss of ``baseline_name`` (copy the last frame, the mean image, ...).
    """

    model: str
    batch: int
    loss: str
    data: str
    baseline_name: str
    baseline: list[float]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation: when, with which command line, by which version of xbench.

    ``request`` is the checked command as ``plan.Request``: what ``--plan`` and ``--rerun`` repeat.
    """

    id: str
    started: str
    command: list[str]
    xbench: str
    wall_s: float = 0.0
    interrupted: bool = False
    request: Mapping[str, Any] = {}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run; what ``--json`` writes."""

    schema: int
    run: Run
    environments: Mapping[str, Mapping[str, str]]
    cases: list[CaseResult]
    agreements: list[Agreement]
    losses: list[LossTable] = []
    noise: Noise | None = None
    notes: list[str] = []
    exit_status: int = 0
    exit_reasons: list[str] = []
