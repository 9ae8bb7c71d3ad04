"""What `xbench export` made, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from xbench.export import File
from xbench.reports.format import Column, Screen, mebibytes, significant
from xbench.result import OK


def show(files: Sequence[File], console: Console) -> None:
    """A row per file, and below it the evidence that each is right, or why it is not there."""
    screen = Screen(console)

    def column(header: str, cells: list[str], rank: int = 0, left: bool = False) -> Column:
        return Column(header=header, cells=cells, rank=rank, justify="left" if left else "right")

    screen.title("Exports")
    screen.table(
        [
            column("source", [item.source for item in files], left=True),
            Column(
                header="status",
                cells=[Text(i.status, "green" if i.status == OK else "red") for i in files],
                justify="left",
            ),
            column("nodes", [item.facts.get("nodes", "-") for item in files]),
            column("opset", [item.facts.get("opset", "-") for item in files], rank=1),
            column("IR", [item.facts.get("ir_version", "-") for item in files], rank=3),
            column("MiB", [mebibytes(item.bytes) if item.path else "-" for item in files], rank=1),
            column("s", [significant(item.seconds) for item in files], rank=2),
            column("cached", ["yes" if item.cached else "no" for item in files], rank=2),
            column("checked", [item.verdict or "-" for item in files]),
            Column(
                header="file",
                cells=[item.path or "-" for item in files],
                justify="left",
                least=20,
            ),
        ]
    )
    for item in files:
        screen.item((f"{item.source}: ", "bold"), item.sentence if item.path else item.reason)
        if item.path:
            screen.item("", shaped(item.facts))


def shaped(facts: Mapping[str, str]) -> str:
    """What a file can be fed, and what repeats itself in it."""
    found = f"free axes: {facts.get('free axes', '-')}"
    return f"{found}; recurrence: {facts['recurrence']}" if "recurrence" in facts else found
