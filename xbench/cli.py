"""The command line: arguments -> one call -> report. The only place that catches XbenchError.

Imports here are lazy: `xbench --help` must not wait for numpy, let alone for a framework.
"""

from __future__ import annotations

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
Size = Annotated[str, typer.Option(help="tiny, small or full")]
Seed = Annotated[int, typer.Option(help="Seed of parameters and data")]
Threads = Annotated[
    int | None, typer.Option(help="Threads of every engine; default: the CPUs usable here")
]


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
    """Models, their sizes and parameters, and the data they use."""
    from xbench import registry
    from xbench.reports import terminal

    models = [registry.model(name) for name in registry.model_names()]
    if json is not None:
        import msgspec

        rows = [
            {
                "name": spec.name,
                "title": spec.title,
                "paper": spec.paper,
                "parameters": {size: spec.parameter_count(size) for size in spec.sizes},
                "batch": dict(spec.batch),
                "losses": spec.losses,
                "data": spec.data,
            }
            for spec in models
        ]
        write(json, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    if json != "-":
        with stdout() as console:
            terminal.table_list(models, console)


@app.command()
def doctor(json: Json = None) -> None:
    """What works on this machine, what does not, why, and the fix. Found by trying."""
    import msgspec

    from xbench import doctor as doctoring
    from xbench.reports import diagnosis
    from xbench.reports.progress import show_progress

    with show_progress() as progress:
        found = doctoring.diagnose(progress)
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
    models: Annotated[list[str] | None, typer.Argument(help="Models; default: all")] = None,
    ep: Annotated[
        str | None, typer.Option("--ep", help="cpu,cuda; default: cpu, and cuda where it works")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="torch,tf,ort; default: all")] = None,
    source: Annotated[str | None, typer.Option(help="Sources of ONNX graphs: torch,tf")] = None,
    phase: Annotated[str | None, typer.Option(help="infer,train; default: both")] = None,
    size: Size = "small",
    batch: Annotated[int | None, typer.Option(help="Default: the model's")] = None,
    threads: Threads = None,
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(help="Training steps that are compared")] = 5,
    loss: Annotated[str | None, typer.Option(help="One of the model's losses")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder, file or name of input data")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Fresh processes per case")] = 6,
    budget: Annotated[float, typer.Option(help="Seconds of measuring per case, all rounds")] = 5.0,
    time_limit: Annotated[float, typer.Option(help="Seconds that one process may take")] = 600.0,
    fresh: Annotated[str, typer.Option(help="fork or spawn: how processes are made")] = "fork",
    allow: Annotated[
        str | None, typer.Option(metavar="STATUS,...", help="Statuses that do not fail the run")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Inconclusive verdicts exit 3")] = False,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """Measure, compare, profile; print tables; store the run."""
    from xbench import environment, exits, plan, registry
    from xbench import run as running
    from xbench.reports.progress import show_progress
    from xbench.result import STATUSES
    from xbench.spec import DEVICES, PHASES

    if json not in (None, "-") and not Path(str(json)).parent.is_dir():
        raise UsageError(f"--json {json}: the folder {Path(str(json)).parent} does not exist")
    allowed = registry.choose("status", allow, list(STATUSES)) if allow else []
    sources = list(registry.exporters())
    request = plan.Request(
        models=tuple(models) if models else tuple(registry.model_names()),
        size=size,
        phases=plan.names("phase", phase, list(PHASES)),
        engines=plan.engine_names(engine),
        sources=plan.names("source", source, sources),
        devices=plan.names("EP", ep, list(DEVICES)) if ep else plan.default_devices(),
        implied=() if ep else ("cuda",),
        batch=batch,
        threads=environment.usable_cpus() if threads is None else threads,
        seed=seed,
        steps=steps,
        loss=loss,
        data=data,
        rounds=rounds,
        budget_s=budget,
        time_limit_s=time_limit,
        fresh=fresh,
    )
    with show_progress() as progress:
        document = running.execute(request, progress, sys.argv[1:])
    document = exits.with_exit(document, allow=allowed, strict=strict)
    raise typer.Exit(deliver(document, json, store))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A stored run, `last`, or a JSON file")] = "last",
    all_: Annotated[bool, typer.Option("--list", help="List the stored runs instead")] = False,
    json: Json = None,
    store: StorePath = None,
) -> None:
    """A stored run, or a result file, as tables."""
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
    document = storing.read(name, path)
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
