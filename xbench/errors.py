"""Everything xbench raises on purpose.

XbenchError              the user must change something: one message, exit 1
+-- UsageError           an unknown name or a bad option: exit 2
+-- DataError            a data folder or file that cannot be used
+-- StoreError           the result store cannot be read or written
EngineError              raised in a worker; becomes the status of a case, never a traceback
+-- Unavailable          the engine or device does not work here (the reason says why)
+-- Unsupported          the engine works but cannot do this
+-- FellBack             it ran, but not where it was asked to
+-- ExportFailed         the exported file failed a check; it is never cached
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class XbenchError(Exception):
    """The user must change something. ``str(error)`` says what, in one message."""

    exit_status = 1


class UsageError(XbenchError):
    """A name, option or value that xbench does not know."""

    exit_status = 2


class DataError(XbenchError):
    """Input data that is missing, empty, damaged or of another format than expected."""


class StoreError(XbenchError):
    """The result store cannot be read or written."""


class EngineError(Exception):
    """Raised where an engine runs; ``status`` becomes the status of the case."""

    status = "failed"


class Unavailable(EngineError):
    """The engine or device does not work on this machine."""

    status = "unavailable"


class Unsupported(EngineError):
    """The engine works here but cannot do what was asked."""

    status = "unsupported"


class FellBack(EngineError):
    """The work ran on another device than the one asked for."""

    status = "fell_back"


class ExportFailed(EngineError):
    """An exported graph failed its verification."""

    status = "failed"


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not known, with the nearest known one."""
    names = sorted(known)
    lower = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[near[0]]!r}? " if near else ""
    return UsageError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
