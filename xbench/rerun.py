"""Two stored runs measured again, side by side: what decides a comparison of sequential blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from xbench import run as running
from xbench.errors import UsageError
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import Document
from xbench.spec import Case

T = TypeVar("T", int, float)

SIDES = ("A", "B")
SAME = ("data", "inputs", "shapes", "steps", "iterations", "ci_width", "fresh")
"""What a request says of inputs: where two runs differ in it, one run cannot feed both."""


def rerun(
    a: Document,
    b: Document,
    pairs: Sequence[tuple[Case, Case]],
    progress: Progress,
    command: Sequence[str],
    noise_file: Path | None,
) -> Document:
    """Measure both cases of every pair in the same rounds; each case's ``arm`` names its side.

    The ratio of a case of B is to its partner of A, paired by round. Rounds and budget are the
    larger of the two runs'. Raises UsageError where the runs cannot be repeated in one.
    """
    requests = [request_of(document) for document in (a, b)]
    for field in SAME:
        one, other = (getattr(request, field) for request in requests)
        if one != other:
            raise UsageError(
                f"--rerun cannot feed both runs: --{field} was {one!r} in A and {other!r} in B"
            )
    first, second = requests
    request = msgspec.structs.replace(
        first,
        files=tuple(dict.fromkeys([*first.files, *second.files])),
        models=tuple(dict.fromkeys([*first.models, *second.models])),
        rounds=larger(first.rounds, second.rounds),
        budget_s=larger(first.budget_s, second.budget_s),
        implied=(),
        soak_s=None,
    )
    arms = [
        tuple(
            msgspec.structs.replace(case, arm=side) for side, case in zip(SIDES, pair, strict=True)
        )
        for pair in pairs
    ]
    return running.execute(
        request,
        progress,
        command,
        cases=[case for pair in arms for case in pair],
        against={case_b.key: case_a.key for case_a, case_b in arms},
        speed_only=True,
        noise_file=noise_file,
    )


def request_of(document: Document) -> Request:
    """What a stored run was asked for. Raises UsageError where the document does not say."""
    try:
        return msgspec.convert(dict(document.run.request), Request)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"run {document.run.id} does not say what it was asked for, so --rerun cannot repeat "
            f"it: {error}"
        ) from error


def larger(one: T | None, other: T | None) -> T | None:
    """The larger of two numbers; None, the default, where one of them is."""
    return None if one is None or other is None else max(one, other)
