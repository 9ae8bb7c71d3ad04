"""How a run tells what it is doing. The core says it here; a report shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Says nothing. Subclasses show; all methods may be called from several threads.

    A run has stages. The work of the present one is planned in rough seconds, which are corrected
    by what its tasks really take; for those that follow a run says itself what it expects.
    """

    def plan(self, weight: float) -> None:
        """More work has been found: ``weight`` seconds of it. With all else done: a new stage."""

    def later(self, seconds: float | None) -> None:
        """So much is to come after all that is planned now; None while that is not known."""

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        """Work of ``weight`` planned seconds is going on inside."""
        yield

    def note(self, text: str) -> None:
        """Something the user should know, now."""
