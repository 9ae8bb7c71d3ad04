"""The A/A noise of this machine: how much two measurements of the same thing differ.

No comparison may claim a difference that the machine shows between equal things. The noise is
kept in ``noise.json`` beside the store, by machine: a folder may be shared by several.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec

from xbench import environment, guards, stats
from xbench.bench import Settings
from xbench.errors import EngineError, StoreError
from xbench.jobs import Job
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.result import Conditions, Noise
from xbench.spec import Case

ENGINE = "noise"
BUDGET_S = 0.15
"""Per process, warm-up included: about 100 samples."""
PROCESS_S = 0.25
"""What a process takes in all, roughly."""
PAUSE_S = 2.0
"""Between two runs. Each also has a new host, as stored runs have."""
DISTURBED = 0.1
"""Share of the processes: the clip bears about as many. With others at 1.4 of two CPUs the
estimate was 0.35: a week of verdicts must not rest on that."""
OLD = timedelta(days=7)
CONFIDENCE = 0.99
LEAST = 4
"""Processes in a run: fewer have no spread to speak of."""


def measure(
    launcher: Launcher,
    progress: Progress,
    *,
    processes: int = 24,
    runs: int = 0,
    threads: int | None = None,
) -> tuple[Noise, list[Conditions]]:
    """Measure a fixed body in ``processes`` fresh processes, one after the other.

    The body runs on ``threads`` (None: all CPUs that may be used here): the more of them must
    keep step, the noisier. With ``runs`` the processes are divided into as many runs, with a pause
    and a new host between them.
    Also gives the conditions of every process; what disturbed them is noted. Raises EngineError
    with the reason when a process fails, ValueError for too few processes.
    """
    blocks = max(1, runs)
    threads = threads or environment.usable_cpus()
    if processes < LEAST * blocks:
        raise ValueError(f"{processes} processes are too few for {blocks} runs")
    progress.plan(PROCESS_S * processes + PAUSE_S * (blocks - 1))
    logs: list[list[float]] = []
    seen: list[Conditions] = []
    for block in range(blocks):
        count = processes // blocks + (block < processes % blocks)
        if block:
            with progress.task("a pause before the next run", PAUSE_S):
                renew_host(launcher)
                time.sleep(PAUSE_S)
        of = f" (run {block + 1} of {blocks})" if runs else ""
        with progress.task(f"noise of this machine{of}", PROCESS_S * count):
            logs.append([process(launcher, k, block, seen, threads) for k in range(count)])
    for sentence in guards.warnings(seen):
        progress.note(f"while the noise was measured, {sentence}")
    differences = [b - a for run in logs for a, b in pairwise(run)]
    found = Noise(
        machine=machine_key(threads),
        measured=timestamp(),
        pair_sd=spread(differences),
        processes=processes,
        run_sd=statistics.stdev(map(statistics.median, logs)) if runs > 1 else None,
        runs=runs,
    )
    return found, seen


def is_disturbed(seen: Sequence[Conditions]) -> bool:
    """Whether others were busy during more processes than an estimate bears (``DISTURBED``)."""
    return sum(map(guards.is_crowded, seen)) > DISTURBED * len(seen)


def process(
    launcher: Launcher, number: int, block: int, seen: list[Conditions], threads: int
) -> float:
    """The log median of one fresh process; its conditions are added to ``seen``."""
    case = Case(model="", size="", phase="infer", engine=ENGINE, device="cpu", threads=threads)
    job = Job(
        kind="noise",
        case=case,
        folder=str(launcher.folder()),
        settings=Settings(budget_s=BUDGET_S),
        process=number,
        round=block,
    )
    report = launcher.run(job)
    if report.measurement is None:
        raise EngineError(f"a process of the noise measurement {report.status}: {report.reason}")
    if report.measurement.conditions is not None:
        seen.append(report.measurement.conditions)
    return math.log(statistics.median(report.measurement.samples.values_s))


def renew_host(launcher: Launcher) -> None:
    """End the host of the noise engine. Forked processes share its layout in memory."""
    host = launcher.hosts.get(ENGINE)
    if host is not None:
        with launcher.locks[ENGINE]:
            launcher.drop(ENGINE, host)


def spread(differences: Sequence[float]) -> float:
    """Scale of the log ratios of neighbours, as the trimmed mean of a comparison meets it.

    The standard error of ``stats.trimmed`` times sqrt(n): for normal noise about its standard
    deviation, and not much more where now and then a process meets a busy neighbour. All adjacent
    ratios are taken, which ignores a slow drift as pairs do (von Neumann's successive differences,
    1941): of n processes that is worth 2n/3 degrees of freedom, where separate pairs have n/2.
    """
    _, error, _ = stats.trimmed(differences)
    assert error is not None, "measure() refuses too few processes"
    return error * math.sqrt(len(differences))


def floor(noise: Noise, rounds: int, confidence: float = CONFIDENCE) -> float:
    """The relative difference that two equal things stay below with that ``confidence``.

    t s / sqrt(rounds) on the log scale, as a ratio less 1; t has the degrees of freedom of s: two
    thirds of its processes, see ``spread``. Raises ValueError without rounds.
    """
    if rounds < 1:
        raise ValueError("a floor needs rounds")
    freedom = max(1.0, 2 * noise.processes / 3)
    return math.expm1(quantile(freedom, confidence) * noise.pair_sd / math.sqrt(rounds))


def run_margin(noise: Noise, confidence: float = CONFIDENCE) -> float | None:
    """The same for two whole runs measured apart: t s sqrt(2) with ``runs - 1`` degrees.

    None where the spread of runs was not measured.
    """
    if noise.run_sd is None or noise.runs < 2:
        return None
    return math.expm1(quantile(noise.runs - 1, confidence) * noise.run_sd * math.sqrt(2))


def quantile(freedom: float, confidence: float) -> float:
    """Student's t that is exceeded, on both sides together, with 1 - ``confidence``."""
    from scipy.special import stdtrit  # scipy.stats takes 0.8 s to import

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def machine_key(threads: int | None = None) -> str:
    """This machine in a line: processor, CPUs, memory, a hash of its name on the network.

    And how many threads the body ran on (None: all CPUs that may be used).
    """
    import psutil

    memory = psutil.virtual_memory().total / 2**30
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
    cpus = environment.usable_cpus()
    on = f"{threads or cpus} threads"
    return f"{environment.cpu_name()}, {cpus} CPUs, {memory:.1f} GiB, host {name}, {on}"


def timestamp() -> str:
    """The time now, as documents write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def age(noise: Noise, now_iso: str) -> timedelta:
    """Time since it was measured. Both are ISO times with an offset."""
    return datetime.fromisoformat(now_iso) - datetime.fromisoformat(noise.measured)


def is_old(noise: Noise, now_iso: str) -> bool:
    """Whether it is older than ``OLD`` and has to be measured anew."""
    return age(noise, now_iso) > OLD


# -- the file ------------------------------------------------------------------------------------


def path_beside(store: Path) -> Path:
    """Where the noise is kept: beside the store."""
    return store.with_name("noise.json")


def load(path: Path, progress: Progress | None = None, threads: int | None = None) -> Noise | None:
    """The noise of this machine on so many ``threads``; None where none is kept.

    What is damaged is noted as such.
    """
    kept = _read(path, progress or Progress())
    found, on_all = kept.get(machine_key(threads)), kept.get(machine_key())
    if found is not None and found.run_sd is None and on_all is not None:
        # How whole runs differ is measured on all CPUs only, where it is not smaller.
        return msgspec.structs.replace(found, run_sd=on_all.run_sd, runs=on_all.runs)
    return found


def save(path: Path, noise: Noise) -> None:
    """Keep it, in place of an older one of its machine. Raises StoreError naming the file."""
    try:
        _write(path, noise)
    except OSError as error:
        raise StoreError(f"cannot write the noise to {path}: {error.strerror}") from error


def known(
    path: Path,
    launcher: Launcher,
    progress: Progress,
    *,
    renew: bool,
    threads: int | None = None,
) -> Noise | None:
    """The noise that is kept; with ``renew`` it is measured and kept first, if none or old.

    What stands in the way is noted and stops nothing: None, or an old one, is the answer then.
    What was measured while others were busy is an answer for now, and is not kept.
    """
    kept = load(path, progress, threads)
    if not renew or (kept is not None and not is_old(kept, timestamp())):
        return kept
    try:
        found, seen = measure(launcher, progress, threads=threads)
    except EngineError as error:
        progress.note(f"the noise of this machine is not known: {error}")
        return kept
    finally:
        renew_host(launcher)
    if kept is not None and kept.machine == found.machine:
        # How runs differ takes minutes to measure and is kept until somebody measures it again.
        found = msgspec.structs.replace(found, run_sd=kept.run_sd, runs=kept.runs)
    if is_disturbed(seen):
        progress.note("the noise of this machine is used now, not kept: others were busy")
        return found
    try:
        _write(path, found)
    except OSError as error:
        progress.note(f"the noise of this machine was not kept in {path}: {error.strerror}")
    return found


def _write(path: Path, noise: Noise) -> None:
    """Add to the file, which is whole at any time."""
    kept = _read(path, Progress()) | {noise.machine: noise}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path, progress: Progress) -> dict[str, Noise]:
    """Every noise in the file, by machine; none where it is missing or damaged."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Noise])
        for noise in kept.values():
            if datetime.fromisoformat(noise.measured).tzinfo is None or not noise.pair_sd >= 0:
                raise ValueError(f"{noise.machine} has no usable time or spread")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        progress.note(f"{path} is damaged and taken for none: {error}")
        return {}
    return kept
