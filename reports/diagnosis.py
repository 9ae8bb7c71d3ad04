"""What `xbench doctor` found, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from xbench.doctor import Diagnosis
from xbench.reports.format import Column, Screen
from xbench.reports.tables import environment_facts
from xbench.result import OK


def show(found: Diagnosis, console: Console) -> None:
    """The machine in one line, a row per check, and the fix of everything that does not work."""
    screen = Screen(console)
    screen.title("Machine", " · ".join(environment_facts([found.machine])))
    checks = found.checks
    screen.table(
        [
            Column(header="what", cells=[check.what for check in checks], justify="left"),
            Column(
                header="status",
                cells=[
                    Text(check.status, "green" if check.status == OK else "yellow")
                    for check in checks
                ],
                justify="left",
            ),
            Column(
                header="found", cells=[check.detail for check in checks], justify="left", least=30
            ),
        ]
    )
    fixes = [check for check in checks if check.fix]
    if fixes:
        screen.title("To make them work")
        for check in fixes:
            screen.item((f"{check.what}: ", "bold"), check.fix)
