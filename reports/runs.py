"""The stored runs, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from xbench.reports.format import Column, Screen, significant
from xbench.result import Run


def show(runs: Sequence[Run], console: Console) -> None:
    """A row per run, the newest first."""
    screen = Screen(console)
    screen.title("Stored runs")
    screen.table(
        [
            Column(header="run", cells=[run.id for run in runs], justify="left"),
            Column(header="started (UTC)", cells=[run.started[:19] for run in runs], rank=2),
            Column(header="took (s)", cells=[significant(run.wall_s) for run in runs], rank=1),
            Column(header="xbench", cells=[run.xbench for run in runs], rank=3),
            Column(
                header="command",
                cells=[" ".join(["xbench", *run.command]) for run in runs],
                justify="left",
                least=20,
            ),
        ]
    )
