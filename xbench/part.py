"""A part of a run: what it says of some of its models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from xbench import exits
from xbench.errors import unknown
from xbench.result import Document
from xbench.verdict import INCONCLUSIVE


def of_models(document: Document, names: Sequence[str]) -> Document:
    """The part of a run that is about these models, with the exit status that it alone gives.

    What was allowed in the whole run is allowed here. Raises UsageError for a model that is not in
    it.
    """
    known = list(dict.fromkeys(result.case.model for result in document.cases))
    for name in names:
        if name not in known:
            raise unknown("model of this run", name, known)
    cases = [result for result in document.cases if result.case.model in names]
    keys = {result.key for result in cases}
    part = msgspec.structs.replace(
        document,
        cases=cases,
        agreements=[agreement for agreement in document.agreements if agreement.a in keys],
        losses=[losses for losses in document.losses if losses.model in names],
    )
    counted = {reason.partition(":")[0] for reason in document.exit_reasons}
    allowed = {result.status for result in cases} - counted
    return exits.with_exit(part, allow=allowed, strict=INCONCLUSIVE in counted)
