"""The exit status of a run, and every reason for it."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from xbench.result import OK, Document
from xbench.spec import FILE
from xbench.verdict import DISAGREE, INCONCLUSIVE

NOT_RUN, DISAGREED, INTERRUPTED = 3, 4, 130


def with_exit(document: Document, *, allow: Collection[str], strict: bool) -> Document:
    """The document with its exit status: the largest of all reasons, each of them named.

    3: something asked for did not run (unless its status is in ``allow``), or with ``strict`` a
    verdict is inconclusive. 4: a disagreement. 130: interrupted.
    """
    reasons: list[tuple[int, str]] = []
    several = len({result.case.model for result in document.cases}) > 1
    labels = {
        result.key: f"{result.case.model} {result.case.title}"
        if several and result.case.source != FILE
        else result.case.title
        for result in document.cases
    }
    asked = [result for result in document.cases if result.asked]
    stopped = [r for r in asked if r.status != OK and r.status not in allow]
    for status in sorted({result.status for result in stopped}):
        what = [f"{r.case.phase} {labels[r.key]}" for r in stopped if r.status == status]
        reasons.append((NOT_RUN, f"{status}: {', '.join(what)}"))
    for verdict, code, counts in (
        (DISAGREE, DISAGREED, True),
        (INCONCLUSIVE, NOT_RUN, strict),
    ):
        found = [a for a in document.agreements if a.verdict == verdict and counts]
        if found:
            pairs = dict.fromkeys(f"{labels[a.a]} and {labels[a.b]} on {a.what}" for a in found)
            reasons.append((code, f"{verdict}: {', '.join(pairs)}"))
    if document.run.interrupted:
        reasons.append((INTERRUPTED, "interrupted"))
    return msgspec.structs.replace(
        document,
        exit_status=max((code for code, _ in reasons), default=0),
        exit_reasons=[text for _, text in reasons],
    )
