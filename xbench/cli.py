"""The command line: arguments -> one call -> report. The only place that catches XbenchError.

Imports here are lazy: `xbench --help` must not wait for numpy, let alone for a framework.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from xbench import __version__
from xbench.errors import StoreError, UsageError, XbenchError

if TYPE_CHECKING:
    from rich.console import Console

    from xbench.result import Document

GATE_FAILED = 5
INTERRUPTED = 130

app = typer.Typer(
    name="xbench",
    help="Is a model the same, how fast, where does its time go, and why does it differ: "
    "PyTorch, TensorFlow and ONNX Runtime, on CPU and CUDA.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the result as JSON (- stdout)")
]
StorePath = Annotated[
    Path | None, typer.Option("--store", metavar="FILE", help="Result store (or XBENCH_STORE)")
]
Size = Annotated[str, typer.Option(help="tiny, small, full, or another of `xbench list`")]
Seed = Annotated[int, typer.Option(help="Seed of parameters and data")]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version")] = False,
) -> None:
    if version:
        print(f"xbench {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_(json: Json = None) -> None:
    """Models: sizes with their parameters and GFLOP per item, and the data in use."""
    from xbench import listing
    from xbench.reports import terminal

    models = listing.models()
    if json is not None:
        import msgspec

        write(json, msgspec.json.format(msgspec.json.encode(models), indent=1) + b"\n")
    if json != "-":
        with stdout() as console:
            terminal.table_list(models, console)


@app.command()
def doctor(
    noise: Annotated[
        bool, typer.Option("--noise", help="Measure how much two identical things differ here")
    ] = False,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """What works on this machine, what does not, why, and the fix. Found by trying."""
    import msgspec

    from xbench import doctor as doctoring
    from xbench.reports import diagnosis
    from xbench.reports.progress import show_progress

    with show_progress() as progress:
        found = doctoring.diagnose(progress, noise=noise, store_path=store)
    if json is not None:
        write(json, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if json != "-":
        with stdout() as console:
            diagnosis.show(found, console)
    raise typer.Exit(0 if found.healthy else 1)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A model of `xbench list`")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="SOURCES", help="torch,tf; default: all")
    ] = None,
    size: Size = "small",
    seed: Seed = 0,
    parameters: Annotated[str, typer.Option(help="Parameter set: init or probe")] = "init",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files")
    ] = Path(),
    json: Json = None,
) -> None:
    """ONNX files of a model, checked against the framework they come from."""
    from xbench import export as exporting
    from xbench.reports import exports
    from xbench.reports.progress import show_progress

    with show_progress() as progress:
        made = exporting.export(
            model, sources=from_, size=size, seed=seed, kind=parameters, folder=output,
            progress=progress,
        )  # fmt: skip
    if json is not None:
        import msgspec

        write(json, msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    if json != "-":
        with stdout() as console:
            exports.show(made, console)
    raise typer.Exit(0 if all(item.status == "ok" for item in made) else 3)


@app.command()
def run(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL|FILE.onnx", help="Models or ONNX files; default: all"),
    ] = None,
    ep: Annotated[
        str | None, typer.Option("--ep", help="cpu,cuda; default: cpu, and cuda where it works")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="torch,tf,ort (the default), torch-compile,tf-xla, or all")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Sources of ONNX graphs: torch,tf")] = None,
    phase: Annotated[str | None, typer.Option(help="infer,train; default: both")] = None,
    size: Size = "small",
    batch: Annotated[str | None, typer.Option(help="As 1,8,32; default: the model's")] = None,
    threads: Annotated[
        str | None, typer.Option(help="As 1,2; default: the CPUs that may be used here")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32,bf16,fp16")] = "fp32",
    concurrency: Annotated[
        str, typer.Option(help="Threads that call one ONNX Runtime session, as 1,2,4")
    ] = "1",
    ort_opt: Annotated[
        str | None, typer.Option(help="ONNX Runtime's optimisation levels, as 0,1,2,99")
    ] = None,
    session_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of ONNX Runtime; repeatable")
    ] = None,
    provider_option: Annotated[
        list[str] | None, typer.Option(metavar="EP:KEY=VALUE", help="Of one EP; repeatable")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=SHAPE",
            help="Of a file's input: x=1,3,224,224; several in turn: ids=1x16,1x64,8x128",
        ),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="A file's inputs; default: drawn")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="FILE.onnx", help="Hold the other files against this one"),
    ] = None,
    atol: Annotated[
        str | None,
        typer.Option(
            metavar="[OUTPUT:]VALUE,...",
            help="Fixed absolute tolerance instead of evidence, as 1e-5,out:1e-4",
        ),
    ] = None,
    rtol: Annotated[
        str | None,
        typer.Option(metavar="[OUTPUT:]VALUE,...", help="Fixed relative tolerance, likewise"),
    ] = None,
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(help="Training steps that are compared")] = 5,
    loss: Annotated[str | None, typer.Option(help="One of the model's losses")] = None,
    draws: Annotated[
        str,
        typer.Option(help="Random inputs and CTC of timed training: native,fed (from numpy)"),
    ] = "native",
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder, file or name of input data")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Fresh processes per case; default: 30 if cheap, else 6; fewer for many cases"
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Measuring per case, all rounds, as 30s; default: 5s")
    ] = None,
    ci_width: Annotated[
        str | None, typer.Option(help="Stop a case when its interval is within, as 1%")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Samples per process; default: by the budget")
    ] = None,
    soak: Annotated[
        str | None, typer.Option(help="Run each case so long, as 5m, and look for trends")
    ] = None,
    speed: Annotated[bool, typer.Option(help="Measure; without it there are only verdicts")] = True,
    profile: Annotated[bool, typer.Option(help="Operator time of every case")] = True,
    time_limit: Annotated[str, typer.Option(help="What one process may take, as 10m")] = "600s",
    fresh: Annotated[str, typer.Option(help="fork or spawn: how processes are made")] = "fork",
    allow: Annotated[
        str | None, typer.Option(metavar="STATUS,...", help="Statuses that do not fail the run")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Inconclusive verdicts exit 3")] = False,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Replay a saved run, as it was")
    ] = None,
    save_plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what was asked for, for --plan")
    ] = None,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """Measure, compare, profile; print tables; store the run."""
    from xbench import environment, exits, noise, options, plan, plans, registry
    from xbench import run as running
    from xbench import store as storing
    from xbench.reports.progress import show_progress
    from xbench.result import STATUSES
    from xbench.spec import DEVICES, PHASES

    check_target("--json", json)
    allowed = registry.choose("status", allow, list(STATUSES)) if allow else []
    if plan_file is not None:
        refuse_with_plan(context)
        request = plans.load(plan_file)
    else:
        if data is not None and not models:
            raise UsageError(
                "--data is for models that are named; for all of them XBENCH_DATA names a folder "
                "with a folder for each model"
            )
        named, files = plan.split(models or [])
        if against is not None:
            files = list(dict.fromkeys([against, *files]))
        request = plan.Request(
            models=tuple(named) if models else tuple(registry.model_names()),
            files=tuple(files),
            size=size,
            phases=plan.names("phase", phase, list(PHASES)),
            engines=plan.engine_names(engine),
            sources=plan.names("source", source, list(registry.exporters())),
            devices=plan.names("EP", ep, list(DEVICES)) if ep else plan.default_devices(),
            implied=() if ep else ("cuda",),
            batch=options.integers("--batch", batch),
            threads=options.integers("--threads", threads) or (environment.usable_cpus(),),
            precisions=plan.names("precision", precision, list(plan.MEASURED)),
            concurrency=options.integers("--concurrency", concurrency),
            ort_opt=plan.names("optimisation level", ort_opt, list(plan.ORT_OPT))
            if ort_opt is not None
            else (),
            options=options.ort_options(session_option or [], provider_option or []),
            shapes=plan.shapes(shape or []),
            inputs=inputs,
            against=against,
            atol=options.tolerances("--atol", atol),
            rtol=options.tolerances("--rtol", rtol),
            seed=seed,
            steps=steps,
            loss=loss,
            draws=plan.names("draws", draws, list(plan.DRAWS)),
            data=data,
            rounds=rounds,
            budget_s=options.duration_s("--budget", budget),
            ci_width=options.share("--ci-width", ci_width),
            iterations=iterations,
            soak_s=options.duration_s("--soak", soak),
            speed=speed,
            profile=profile and speed,
            time_limit_s=options.duration_s("--time-limit", time_limit) or 0.0,
            fresh=fresh,
        )
    plan.check(request)
    if save_plan is not None:
        plans.save(request, save_plan)
    with show_progress() as progress:
        document = running.execute(
            request,
            progress,
            sys.argv[1:],
            noise_file=noise.path_beside(store or storing.default_path()),
        )
    document = exits.with_exit(document, allow=allowed, strict=strict)
    raise typer.Exit(deliver(document, json, store))


def refuse_with_plan(context: typer.Context) -> None:
    """Raise UsageError for an option that would make the replay of a plan another run."""
    reported = {"plan_file", "save_plan", "json", "store", "allow", "strict"}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in reported:
            raise UsageError(f"--plan replays a run as it was: leave {parameter.opts[0]} out")


def check_target(option: str, target: str | None) -> None:
    """Raise UsageError where the folder of a file to write is not there: before hours of work."""
    if target not in (None, "-") and not Path(str(target)).parent.is_dir():
        raise UsageError(f"{option} {target}: the folder {Path(str(target)).parent} does not exist")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A stored run, `last`, or a JSON file: the baseline")],
    b: Annotated[str, typer.Argument(help="The one that is held against it")],
    across_machines: Annotated[
        bool, typer.Option("--across-machines", help="Speed verdicts across different hardware")
    ] = False,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Measure both again, side by side, and compare that")
    ] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="GATE,...", help="Exit 5 on slower=5%, disagree, missing, memory=10%"),
    ] = None,
    md: Annotated[
        str | None, typer.Option("--md", metavar="FILE|-", help="Write Markdown for a pull request")
    ] = None,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """Two runs, case by case: ratio, interval, verdict, and what else differs between them."""
    from xbench import compare as comparing
    from xbench import gate as gating
    from xbench import store as storing
    from xbench.reports import comparison, markdown

    for option, target in (("--json", json), ("--md", md)):
        check_target(option, target)
    if json == md == "-":
        raise UsageError("--json - and --md - cannot both be stdout: give one of them a file")
    if fail_on is not None:
        gating.rules(fail_on)
    path = store or storing.default_path()
    with uncollected():
        first, second = storing.read(a, path), storing.read(b, path)
    again = measured_again(first, second, path) if rerun else None
    with uncollected():
        found = comparing.compare(first, second, across_machines=across_machines, rerun=again)
        reasons = gating.gate(found, fail_on) if fail_on is not None else []
        if json is not None:
            import msgspec

            write(json, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        if md is not None:
            write(md, markdown.comparison(found).encode())
        if "-" not in (json, md):
            with stdout() as console:
                comparison.show(found, console)
    for reason in reasons:
        say(f"gate failed: {reason}")
    # Where the rerun did not do all that it was asked for, the gate has not seen all.
    raise typer.Exit(max(GATE_FAILED if reasons else 0, again.exit_status if again else 0))


def measured_again(a: Document, b: Document, store: Path) -> Document:
    """Both sides of a comparison in one interleaved schedule; kept in the store too."""
    from xbench import exits, noise, pairing
    from xbench import rerun as rerunning
    from xbench import store as storing
    from xbench.reports.progress import show_progress

    with show_progress() as progress:
        document = rerunning.rerun(
            a, b, pairing.repeatable(a, b), progress, sys.argv[1:], noise.path_beside(store)
        )
    document = exits.with_exit(document, allow=(), strict=False)
    try:
        storing.Store(store).save(document)
    except StoreError as error:
        say(f"{error}; what was measured again is compared, but was not kept there")
    return document


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A stored run, `last`, or a JSON file")] = "last",
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Of these models alone")
    ] = None,
    all_: Annotated[bool, typer.Option("--list", help="List the stored runs instead")] = False,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """A stored run, or a result file, as tables."""
    from xbench import part
    from xbench import store as storing
    from xbench.reports import terminal

    path = store or storing.default_path()
    if all_:
        from xbench.reports import runs

        stored = storing.Store(path).runs()
        if json is not None:
            import msgspec

            write(json, msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")
        if json != "-":
            with stdout() as console:
                runs.show(stored, console)
        return
    with uncollected():
        document = storing.read(name, path)
        if models:
            document = part.of_models(document, models)
        if json is not None:
            write(json, storing.encode(document))
        if json != "-":
            with stdout() as console:
                terminal.show(document, console)


def deliver(document: Document, json: str | None, store: Path | None) -> int:
    """Store, write and print a run; its exit status.

    What cannot be written does not stop the rest.
    """
    from xbench import store as storing
    from xbench.reports import terminal

    def report() -> None:
        with stdout() as console:
            terminal.show(document, console)

    # Kept before it is printed: a terminal may go away at any time.
    actions: list[Callable[[], None]] = [
        lambda: storing.Store(store or storing.default_path()).save(document)
    ]
    if json is not None:
        actions.append(lambda: write(json, storing.encode(document)))
    if json != "-":
        actions.append(report)
    problems = []
    for action in actions:
        try:
            action()
        except StoreError as error:
            problems.append(error)
    for problem in problems:
        say(f"{problem}; the results were not kept there")
    return max([document.exit_status, *(problem.exit_status for problem in problems)])


def write(target: str, data: bytes) -> None:
    """Write to a file, or to stdout for ``-``. Raises StoreError that names the file."""
    if target == "-":
        with stdout():
            sys.stdout.buffer.write(data)
        return
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror}") from error


@contextmanager
def stdout() -> Iterator[Console]:
    """A console on stdout. Raises StoreError where it cannot be written to.

    That the reader of a pipe has left, as ``head`` does, is no error.
    """
    from xbench.reports import terminal

    try:
        yield terminal.make_console()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich raises the one for the other.
        abandon_stdout()
    except OSError as error:
        abandon_stdout()
        raise StoreError(f"cannot write to stdout: {error.strerror}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: a document is no garbage, and every pass walks all of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def abandon_stdout() -> None:
    """Let what is still to be written, at the latest at exit, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(text: str) -> None:
    """An error for a person: on stderr, without a traceback."""
    print(f"xbench: {text}", file=sys.stderr)


def main() -> None:
    """The console script."""
    # To be asked to end is like Ctrl-C: what was measured is kept, and no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = app(standalone_mode=False)
    except TyperException as error:
        problem = error.format_message().rstrip(".")
        say(f"{problem}; `xbench --help` and `xbench COMMAND --help` say more")
        status = error.exit_code
    except XbenchError as error:
        say(str(error))
        status = error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        say("interrupted")
    sys.exit(status or 0)


if __name__ == "__main__":
    main()
