"""Options of the command line that are more than a word: durations, shares, lists, pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xbench.errors import UsageError

UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration_s(name: str, text: str | None) -> float | None:
    """Seconds of ``30``, ``30s``, ``500ms``, ``5m`` or ``1h``. Raises UsageError for others."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([-+]?[0-9.]+(?:e[-+]?\d+)?|inf|nan)\s*(ms|s|m|h)?\s*", text.lower())
    if found is None:
        raise UsageError(f"{name} is a duration like 30s, 500ms or 5m, not {text!r}")
    return number(name, found[1]) * UNITS_S[found[2] or "s"]


def share(name: str, text: str | None) -> float | None:
    """The share that ``1%`` or ``0.01`` is. Raises UsageError unless it is above 0 and below 1."""
    if text is None:
        return None
    body = text.strip()
    value = number(name, body.removesuffix("%").strip()) / (100.0 if body.endswith("%") else 1.0)
    if not 0.0 < value < 1.0:
        raise UsageError(f"{name} is a share like 1% or 0.01, above 0 and below 100%, not {text!r}")
    return value


def number(name: str, text: str) -> float:
    """A number. Raises UsageError for anything else."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} takes a number, not {text!r}") from None


def integers(name: str, text: str | None) -> tuple[int, ...]:
    """The integers of a comma list, without repeats; none for None. Raises UsageError."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        found = tuple(dict.fromkeys(int(word) for word in words))
    except ValueError:
        raise UsageError(f"{name} takes whole numbers like 1,8,32, not {text!r}") from None
    if not found:
        raise UsageError(f"{name} takes whole numbers like 1,8,32; none was given")
    return found


def pairs(name: str, items: Sequence[str]) -> dict[str, str]:
    """Keys and values of ``KEY=VALUE`` items. Raises UsageError for one without, or given twice."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{name} takes KEY=VALUE, not {item!r}")
        if found.setdefault(key.strip(), value.strip()) != value.strip():
            raise UsageError(f"{name} gives {key.strip()} two values")
    return found


def ort_options(session: Sequence[str], provider: Sequence[str]) -> dict[str, str]:
    """ONNX Runtime's options as a case names them: ``session.KEY``, ``provider.EP.KEY``.

    A provider option is written ``EP:KEY=VALUE``. Raises UsageError for one without an EP.
    """
    found = {f"session.{k}": v for k, v in pairs("--session-option", session).items()}
    for key, value in pairs("--provider-option", provider).items():
        ep, colon, name = key.partition(":")
        if not colon or not ep or not name:
            raise UsageError(
                f"--provider-option takes EP:KEY=VALUE, as in cuda:use_tf32=0: {key!r}"
            )
        found[f"provider.{ep}.{name}"] = value
    return found


def tolerances(option: str, text: str | None) -> dict[str, float]:
    """Fixed tolerances by output, as ``1e-5,out:1e-4``. Raises UsageError for what is none."""
    if text is None:
        return {}
    # Not at the top: numpy comes with it.
    from xbench import tolerances as fixed

    return fixed.parse(option, text)
