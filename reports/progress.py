"""Progress on stderr: a bar with the time left on a terminal, elsewhere a line per task."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from xbench.bench import now
from xbench.progress import Progress

BAR = 8
"""Characters of the bar."""
AROUND = 34
"""Characters of the line that are not the label: spinner, bar, percent, and the time left."""
NARROWEST, WIDEST = 20, 70
"""Characters of a label at least and at most. It takes as many always: the bar stays in place."""
NOTHING_S = 1e-6
"""Planned work that is no more than this is what sums of fractions leave."""


class BarProgress(Progress):
    """One bar over the whole run; the label names what is going on.

    Its length is time: what has passed, and what is left by the tasks done so far.
    """

    def __init__(self, console: Console) -> None:
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self.row = self.bar.add_task("starting", total=None, left="")
        self.lock = threading.Lock()
        self.active: list[str] = []
        self.planned = self.done = 0.0
        self.begin = self.stage_begin = now()
        self.done_before = 0.0  # in the stages before this one
        self.after: float | None = 0.0

    def plan(self, weight: float) -> None:
        with self.lock:
            if self.planned - self.done < NOTHING_S:
                self.stage_begin, self.done_before = now(), self.done
            self.planned += weight
            self.refresh()

    def later(self, seconds: float | None) -> None:
        with self.lock:
            self.after = seconds
            self.refresh()

    def left_s(self) -> float | None:
        """Seconds that the run still takes: this stage at its pace so far, and those after it."""
        if self.after is None:
            return None
        done, left = self.done - self.done_before, self.planned - self.done
        pace = (now() - self.stage_begin) / done if done else 1.0
        return (left * pace if left > NOTHING_S else 0.0) + self.after

    def refresh(self) -> None:
        """Show what is going on now; the caller holds the lock."""
        left, passed = self.left_s(), now() - self.begin
        label = "; ".join(self.active) or "working"
        room = min(max(NARROWEST, self.bar.console.width - AROUND), WIDEST)
        self.bar.update(
            self.row,
            description=escape(
                label.ljust(room) if len(label) <= room else f"{label[: room - 1]}…"
            ),
            total=passed + left if left is not None else None,
            completed=passed,
            left=f"{clock(left)} left" if left else "",
        )

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        with self.lock:
            self.active.append(label)
            self.refresh()
        try:
            yield
        finally:
            with self.lock:
                self.active.remove(label)
                self.done += weight
                self.refresh()

    def note(self, text: str) -> None:
        self.bar.console.print(f"note: {text}", markup=False, highlight=False)


def clock(seconds: float) -> str:
    """A time to wait for, as ``12 s``, ``3:05 min`` or ``1:02 h``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


class LineProgress(Progress):
    """A line per finished task, for logs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        begin = now()
        yield
        self.note(f"{label}: {now() - begin:.1f} s")

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Progress fit for where stderr goes: no bar where lines cannot be drawn over."""
    console = Console(file=sys.stderr, stderr=True)
    if not console.is_interactive:
        yield LineProgress(console)
        return
    progress = BarProgress(console)
    with progress.bar:
        yield progress
