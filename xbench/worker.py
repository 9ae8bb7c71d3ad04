"""The child side: one job in one process, or a host that forks a fresh child for each job.

    python -m xbench.worker JOB.json PARENT   does one job, and dies with the process PARENT
    python -m xbench.worker --host ENGINE     imports the engine's framework once, then reads a path
                                              of a job per line and forks a child for each

A host never runs an operator, so that its children are as fresh as spawned ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from xbench import bench, environment, registry
from xbench.errors import EngineError
from xbench.jobs import REPORT, STATES, TENSORS, Job, Report
from xbench.spec import FILE, ModelSpec, file_spec

if TYPE_CHECKING:
    from xbench.runners.base import Runner, Work

OPTIMISED, FEEDS = "optimised.onnx", "feeds.npz"
HANDSHAKE = "xbench-host-1"
TIMED = {"measure", "soak", "profile"}
"""Kinds of jobs in which a definition may draw its random inputs itself, and use the framework's
own loss where it has written one out: nothing is compared."""


def do(job: Job) -> Report:
    """The report of a job; raises whatever its engine raises."""
    return KINDS[job.kind](job)


def runner_of(job: Job) -> Runner:
    engine = registry.engine(job.case.engine)
    runner: Runner = registry.load(engine.module).make(engine.name)
    return runner


def spec_of(job: Job) -> ModelSpec:
    """The specification of a model, or what stands for it where the case is a user's file."""
    if job.signature is not None:
        return file_spec(job.case.model, job.signature)
    return registry.model(job.case.model)


def parameters_of(job: Job, kind: str) -> dict[str, Any]:
    """The canonical parameters of a case: in float32, which other precisions are cast from."""
    from xbench import draws

    if job.case.source == FILE:
        return {}
    return draws.parameters(spec_of(job), job.case.size, kind, job.case.seed)


def work_of(job: Job) -> Work:
    """Parameters and inputs of a case, made here so that every process has its own copy."""
    from xbench import tensors
    from xbench.runners.base import Work

    case, spec = job.case, spec_of(job)
    assert job.inputs is not None, "a job that loads a model has inputs"
    config = registry.config(spec, case.size)
    wanted = {item.name for item in spec.step_inputs(config, case.phase)}
    if case.draws == "native" and job.kind in TIMED:
        wanted -= {item.name for item in spec.draws(config)}
        case = msgspec.structs.replace(case, loss=spec.native_losses.get(case.loss, case.loss))
    return Work(
        case=case,
        spec=spec,
        config=config,
        parameters=parameters_of(job, job.parameter_set),
        batches=[
            {name: array for name, array in batch.items() if name in wanted}
            for batch in tensors.load_batches(Path(job.inputs))
        ],
        graph=Path(job.graph) if job.graph else None,
        folder=Path(job.folder),
    )


def probe(job: Job) -> Report:
    facts = runner_of(job).probe(job.case.device)
    packages = registry.engine(job.case.engine).packages
    return Report(facts={**environment.facts(packages), **facts})


def inspect(job: Job) -> Report:
    """What an ONNX file is, and that the engine can open it."""
    from xbench.exporters import inspect as inspecting

    assert job.graph is not None
    signature, facts = inspecting.inspect(Path(job.graph))
    return Report(signature=signature, facts=facts)


def measure(job: Job) -> Report:
    """Load, first run and samples of a case, and the memory they took."""
    from xbench import measuring

    work = work_of(job)
    measurement, soak = measuring.measure(runner_of(job), work, job)
    return Report(measurement=measurement, soak=soak, digests=digests(work))


def noise(job: Job) -> Report:
    """Samples of a body that needs no model and no inputs."""
    report: Report = registry.load(registry.engine(job.case.engine).module).sample(job)
    return report


def digests(work: Work) -> dict[str, str]:
    """What the case was computed from."""
    from xbench import data, tensors

    found = {
        "parameters": data.digest(work.parameters),
        "inputs": tensors.digest_batches(work.batches),
    }
    if work.case.source == FILE:
        # Of its external data too, which the parent has read once for all.
        found["graph"] = work.case.graph
    elif work.graph is not None:
        found["graph"] = tensors.digest_file(work.graph)
    return found


def observe(job: Job) -> Report:
    """Compute what the case is compared by, and leave it beside the report."""
    from xbench import observe as observing
    from xbench import tensors

    runner, work = runner_of(job), work_of(job)
    runner.load(work)
    runner.deadline_s = job.deadline_s
    if job.against is not None:
        runner.force(Path(job.against), job.narrow)
    folder = Path(job.folder)
    states = tensors.load_batches(Path(job.states)) if job.states else []
    made: list[dict[str, Any]] | None = [] if job.makes_states else None

    def seen() -> dict[str, Any]:
        return observing.observe(
            runner, work, every_batch=job.every_batch, taps=job.taps, states=states, made=made
        )

    first = seen()
    if made is not None:
        states, made = made, None
        tensors.save_batches(folder / STATES, states)
    if job.repeats:
        other = observing.unlike(first, job.repeats)
        tensors.save(folder / TENSORS, {name: first[name] for name in other})
        return Report(digests=digests(work))
    tensors.save(folder / TENSORS, first)
    unsteady = observing.differences(first, seen()) if job.again else {}
    spread, draws = observing.spread(
        runner, work, first, job.perturbations, job.spread_budget_s, job.every_batch, states
    )
    loss = []
    if job.follow_loss:
        runner.bind(parameters_of(job, "init"))
        loss = observing.finite(runner.train(range(len(work.batches)))).loss
    return Report(
        loss=loss,
        unsteady=unsteady,
        bits=observing.bits(first) if job.again else {},
        spread=spread,
        draws=draws,
        spread_ulps=observing.ULPS,
        terms=runner.terms(),
        remarks=[*runner.remarks(), *computed_in(runner, work)],
        facts=runner.facts(),
        digests=digests(work),
    )


def computed_in(runner: Runner, work: Work) -> list[str]:
    """That the arithmetic was done in another precision than was asked for, if it was.

    ONNX Runtime on the CPU says so itself, where that matters: finding out takes a profile.
    """
    case = work.case
    if case.device == "cpu" and registry.engine(case.engine).onnx:
        return []
    found = runner.effective_precision()
    return [f"{case.title} computed in {found}, not in {case.precision}"] if found else []


def profile(job: Job) -> Report:
    runner, work = runner_of(job), work_of(job)
    runner.load(work)
    runner.run()
    found, shares = runner.profile(job.profile_steps)
    return Report(profile=found, shares=shares, digests=digests(work))


def export(job: Job) -> Report:
    """Write the skeleton of a model to the target ``skeleton``."""
    assert job.case.source is not None
    exporter = registry.load(registry.exporter(job.case.source).module)
    spec = spec_of(job)
    facts = exporter.export(
        spec, registry.config(spec, job.case.size), Path(job.targets["skeleton"]), opset=job.opset
    )
    return Report(facts=facts)


def bind(job: Job) -> Report:
    """Put each parameter set named in the targets into the skeleton ``graph``."""
    from xbench.exporters import bind as binding

    case, spec = job.case, spec_of(job)
    assert job.graph is not None
    held = {item.name for item in spec.exported(registry.config(spec, case.size))}
    for kind, target in job.targets.items():
        found = parameters_of(job, kind)
        parameters = {name: array for name, array in found.items() if name in held}
        label = {"model": case.model, "size": case.size, "seed": str(case.seed), "set": kind}
        binding.bind(Path(job.graph), parameters, Path(target), label)
    return Report()


def verify(job: Job) -> Report:
    """Check a bound file and save its outputs for every batch of the inputs."""
    from xbench import tensors
    from xbench.exporters import verify as verifying

    work = work_of(job)
    assert work.graph is not None
    facts = verifying.check(work.graph, work.spec, work.config)
    tensors.save(Path(job.folder) / TENSORS, verifying.run(runner_of(job), work))
    return Report(facts=facts, digests=digests(work))


def choices(job: Job) -> Report:
    """Leave what the case chooses in the folder of the job, if it chooses anything."""
    from xbench.runners import ort_choices

    number = ort_choices.choices(work_of(job), Path(job.folder))
    return Report(facts={"choices": str(number)} if number else {})


def segments(job: Job) -> Report:
    """Leave the graph that really runs in the folder of the job, and what it is fed.

    Its fact ``source`` is the file that it was made from.
    """
    from xbench.runners import ort_operators

    folder = Path(job.folder)
    source = ort_operators.optimised(work_of(job), folder / OPTIMISED, folder / FEEDS)
    return Report(facts={"source": str(source)})


def expected(job: Job) -> Report:
    """Leave what each of its operators should give in the folder that ``segments`` left."""
    from xbench.runners.graph import expected as expecting

    assert job.graph is not None
    assert job.against is not None
    folder = Path(job.against)
    begin = bench.now()

    def tick() -> None:
        if job.deadline_s is not None and bench.now() - begin > job.deadline_s:
            raise EngineError(f"float64 took longer than {job.deadline_s:g} s")

    expecting.from_files(Path(job.graph), folder / OPTIMISED, folder / FEEDS, folder, tick=tick)
    return Report()


def operators(job: Job) -> Report:
    """Every operator of a case alone, each held to its own bound."""
    from xbench import tensors
    from xbench.operators import merged

    if job.against is not None:
        from xbench.runners import ort_operators

        folder = Path(job.against)
        return Report(operators=ort_operators.check(work_of(job), folder / OPTIMISED, folder))
    runner, work = runner_of(job), work_of(job)
    runner.load(work)
    states = tensors.load_batches(Path(job.states)) if job.states else []
    found = []
    for step in job.at or (0,):
        if states:
            runner.bind(states[step])
        found.append(runner.operators(step))
    return Report(operators=merged(found))


KINDS: dict[str, Callable[[Job], Report]] = {
    "probe": probe,
    "inspect": inspect,
    "measure": measure,
    "soak": measure,
    "noise": noise,
    "observe": observe,
    "profile": profile,
    "export": export,
    "bind": bind,
    "verify": verify,
    "choices": choices,
    "segments": segments,
    "expected": expected,
    "operators": operators,
}


def status_of(error: BaseException) -> tuple[str, str]:
    """Status and reason of a job that raised ``error``: the boundary where errors become data."""
    if isinstance(error, EngineError):
        return error.status, str(error)
    name = type(error).__name__
    text = str(error).strip() or name
    if isinstance(error, MemoryError) or name in ("OutOfMemoryError", "ResourceExhaustedError"):
        return "out_of_memory", f"{name}: {text.splitlines()[0]}"
    if isinstance(error, ImportError):
        return "unavailable", f"cannot import {error.name or 'a package'}: {text.splitlines()[0]}"
    return "failed", f"{name}: {' '.join(text.split())[:400]}"


def run(path: Path) -> None:
    """Do the job in the file ``path`` and leave a report; never raises for what the engine did."""
    job = msgspec.json.decode(path.read_bytes(), type=Job)
    try:
        report = do(job)
    except Exception as error:
        traceback.print_exc()
        status, reason = status_of(error)
        report = Report(status=status, reason=reason)
    folder = Path(job.folder)
    partial = folder / (REPORT + ".partial")
    partial.write_bytes(msgspec.json.encode(report))
    partial.rename(folder / REPORT)


def redirect(log: Path) -> None:
    """Framework chatter goes to a file, Python's and native code's alike."""
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
        # The parent may have ended before it was asked.
        if os.getppid() != parent:
            os._exit(1)


def host(engine: str) -> None:
    """Import the engine's framework, then fork a child for each job path read from stdin.

    Speaks on the real stdout, a line each: the handshake (or the status and reason of a framework
    that cannot be imported), then ``pid N`` and ``exit N`` per job.
    """
    speak = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # One BLAS thread while importing: a thread that exists at a fork is lost in the child.
    try:
        registry.load(registry.engine(engine).module)
    except Exception as error:
        traceback.print_exc()
        status, reason = status_of(error)
        speak.write(f"{status} {' '.join(reason.split())}\n")
        return
    # What is imported is no garbage: without this each collection in a child walks it for 0.15 s.
    gc.collect()
    gc.freeze()
    speak.write(f"{HANDSHAKE}\n")
    me = os.getpid()
    for line in sys.stdin:
        path = Path(line.strip())
        child = os.fork()
        if child == 0:
            child_main(path, speak, me)
        lead_group(child)
        speak.write(f"pid {child}\n")
        wait_or_orphan(child)
        # Before its number is free again: end what it started and left behind.
        kill_group(child)
        _, code = os.waitpid(child, 0)
        speak.write(f"exit {os.waitstatus_to_exitcode(code)}\n")


def lead_group(pid: int) -> None:
    """Make a process lead a group of its own. Parent and child both do it: either may be first."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def kill_group(pid: int) -> None:
    """SIGKILL to a process that leads a group and to what it started; nothing if all have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def wait_or_orphan(child: int) -> None:
    """Wait until the child ends or the parent does.

    The parent says nothing while a job runs: a readable stdin is its end.
    """
    fd = os.pidfd_open(child)
    select.select([fd, 0], [], [])
    os.close(fd)


def child_main(path: Path, speak: Any, parent: int) -> None:
    """The forked child: never returns."""
    status = 1
    try:
        die_with_parent(parent)
        lead_group(os.getpid())
        speak.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        redirect(path.with_name("log.txt"))
        run(path)
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: what the host registered to run at its end is not the child's.
        os._exit(status)


def main(arguments: list[str]) -> None:
    """Do one job, or be a host, as the arguments say."""
    if arguments[0] == "--host":
        host(arguments[1])
    else:
        die_with_parent(int(arguments[1]))
        path = Path(arguments[0])
        redirect(path.with_name("log.txt"))
        run(path)


if __name__ == "__main__":
    main(sys.argv[1:])
