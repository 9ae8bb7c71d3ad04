"""What `xbench doctor` found, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from xbench.doctor import Diagnosis
from xbench.reports.format import Column, Screen, percent, plural
from xbench.reports.tables import environment_facts
from xbench.result import OK, Noise

ANEW = "`xbench doctor --noise` measures it, in about half a minute"


def show(found: Diagnosis, console: Console) -> None:
    """The machine, a row per check, what to do about it, and the machine's noise."""
    screen = Screen(console)
    screen.title("Machine", " · ".join(environment_facts([found.machine])))
    screen.item(
        f"Reading the clock takes {found.timer_cost_s * 1e9:.0f} ns; what lasts below 1 ms is "
        "timed several at a time."
    )
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
        screen.title("What to do")
        for check in fixes:
            screen.item((f"{check.what}: ", "bold"), check.fix)
    show_noise(found, screen)


def show_noise(found: Diagnosis, screen: Screen) -> None:
    """How far two measurements of one thing are apart here, and what follows from it."""
    noise = found.noise
    if noise is None:
        screen.title("Noise of this machine", "not measured")
        screen.item(f"{ANEW}; no comparison claims less than it.")
        return
    screen.title("Noise of this machine", origin(found, noise))
    if found.noise_old:
        screen.item(("It is old: ", "yellow"), f"{ANEW}.")
    screen.item(
        f"One thing measured in two fresh processes differs by {percent(noise.pair_sd)} % "
        "(standard deviation), and in 99 of 100 comparisons by less than:"
    )
    floors = found.floors.items()
    screen.table(
        [
            Column(header="rounds", cells=[str(rounds) for rounds, _ in floors]),
            Column(header="difference %", cells=[percent(floor) for _, floor in floors]),
        ]
    )
    if noise.run_sd is None or found.run_margin is None:
        screen.item(f"How far whole runs are apart is not known: {ANEW}.")
        return
    screen.item(
        f"Whole runs, one after the other, differ by {percent(noise.run_sd)} % (standard "
        f"deviation of {noise.runs}). Two stored runs need a margin of at least "
        f"{percent(found.run_margin)} %; measured again in one run, the table above holds."
    )


def origin(found: Diagnosis, noise: Noise) -> str:
    """Of how many processes and runs, and how long ago."""
    runs = f" in {plural(noise.runs, 'run')}" if noise.runs else ""
    return f"{plural(noise.processes, 'process')}{runs}, measured {ago(found.noise_age_s or 0.0)}"


def ago(age_s: float) -> str:
    """``just now``, ``5 hours ago``, ``3 days ago``."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if age_s >= size:
            return f"{plural(int(age_s // size), unit)} ago"
    return "just now"
