"""What came of it: measurements, profiles, agreements, and the document that holds a run.

Values are frozen. Raw samples are kept; statistics derived from them are marked as derived by
living in ``latency``. Units are in the names: ``_s`` seconds, ``_bytes`` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from xbench.spec import Case

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


class Samples(msgspec.Struct, frozen=True):
    """Durations of single bodies from one fresh process, in the order they were taken.

    ``per_sample`` bodies were timed together when one is shorter than the clock is fine; the
    values are already divided by it. ``warmup`` counts bodies run before and not kept;
    ``steady`` is false when the warm-up hit its cap while still drifting.
    """

    process: int
    round: int
    values_s: list[float]
    per_sample: int = 1
    warmup: int = 0
    steady: bool = True


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one fresh process measured of one case."""

    samples: Samples
    load_s: float
    compile_s: float | None
    first_run_s: float
    peak_memory_bytes: int
    placement: list[Placement]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Derived from samples: median of process medians with a 95 % interval over processes."""

    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None
    p90_s: float | None
    p99_s: float | None
    n: int
    processes: int


class Placement(msgspec.Struct, frozen=True):
    """Where nodes ran. ``ops`` counts operator types, so that a straggler can be named."""

    ep: str
    nodes: int | None
    time_share: float | None = None
    ops: Mapping[str, int] = {}


class OpTime(msgspec.Struct, frozen=True, rename={"op_class": "class"}):
    """Self time of one operator in one stage, summed over ``count`` calls per step."""

    op: str
    op_class: str
    kind: str
    stage: str
    count: float
    time_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Operator time per step: sum of ``ops`` + ``unattributed_s`` = ``wall_s``.

    ``correction`` says what was subtracted for the profiler's own cost and how it was found.
    """

    wall_s: float
    steps: int
    unattributed_s: float
    truncated: bool
    correction: str
    ops: list[OpTime]


class TensorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How far tensor ``name`` is from its reference. Formulas stand in ``numerics``."""

    name: str
    bitwise_equal: bool
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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Why a limit is what it is, for the tensor that decided.

    ``error_rms``: the judged side's RMS error to float64. ``source_error_rms``: that of the side
    it is compared with. ``spread_rms``: RMS change of the reference engine when its parameters
    move by ``spread_ulps``, the largest of ``draws``. ``rounding_rms``: 4 eps RMS(ref), times
    sqrt(K) where the judged side is the source itself.
    """

    tensor: str
    error_rms: float | None = None
    source_error_rms: float | None = None
    spread_rms: float | None = None
    rounding_rms: float | None = None
    draws: int = 0
    spread_ulps: int = 0
    decided_by: str = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a pair: ``a`` is judged, ``b`` is what it is held against (case keys)."""

    a: str
    b: str
    what: str
    tensors: list[TensorMetrics]
    evidence: Evidence | None
    tolerance: float | None
    verdict: str
    sentence: str


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of a case. A case that did not run has a status and a reason.

    ``asked`` is false for a case that only served a verdict: it was computed, not measured.
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
    peak_memory_bytes: int | None = None
    placement: list[Placement] = []
    loss: list[float] = []
    profile: Profile | None = None
    environment: str = ""
    notes: list[str] = []
    asked: bool = True


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Derived: time of this case over that of ``to``, paired by round."""

    to: str
    ratio: float
    ci_low: float | None
    ci_high: float | None
    rounds: int


class LossTable(msgspec.Struct, frozen=True, kw_only=True):
    """Loss of each step for every training case, beside a trivial predictor's.

    ``baseline`` is the loss of ``baseline_name`` (copy the last frame, the mean image, ...) on
    the same batches.
    """

    loss: str
    data: str
    baseline_name: str
    baseline: list[float]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation: when, with which command line, by which version of xbench."""

    id: str
    started: str
    command: list[str]
    xbench: str
    wall_s: float = 0.0
    interrupted: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run; what ``--json`` writes."""

    schema: int
    run: Run
    environments: Mapping[str, Mapping[str, str]]
    cases: list[CaseResult]
    agreements: list[Agreement]
    losses: LossTable | None = None
    notes: list[str] = []
    exit_status: int = 0
    exit_reasons: list[str] = []
