"""How a run tells what it is doing. The core says it here; a report shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Says nothing. Subclasses show; all methods may be called from several threads.

    Weights are rough seconds: they scale a bar, and the time left is corrected as tasks end.
    """

    def plan(self, weight: float) -> None:
        """More work has been found: ``weight`` seconds of it."""

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        """Work of ``weight`` planned seconds is going on inside."""
        yield

    def note(self, text: str) -> None:
        """Something the user should know, now."""
