"""Progress on stderr: a bar with the time left on a terminal, elsewhere a line per task."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from xbench.bench import now
from xbench.progress import Progress


class BarProgress(Progress):
    """One bar over all planned work; the label names what is going on."""

    def __init__(self, console: Console) -> None:
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self.row = self.bar.add_task("starting", total=None, left="")
        self.lock = threading.Lock()
        self.planned = 0.0
        self.done = 0.0
        self.active: list[str] = []
        self.begin = now()

    def plan(self, weight: float) -> None:
        with self.lock:
            self.planned += weight
            self.refresh()

    def refresh(self) -> None:
        """Show what is going on now; the caller holds the lock."""
        left = ""
        if self.done > 0 and self.planned > self.done:
            seconds = (now() - self.begin) / self.done * (self.planned - self.done)
            left = f"about {seconds:.0f} s left"
        label = "; ".join(self.active) or "working"
        self.bar.update(
            self.row,
            description=escape(label if len(label) <= 60 else label[:59] + "…"),
            total=self.planned or None,
            completed=self.done,
            left=left,
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
