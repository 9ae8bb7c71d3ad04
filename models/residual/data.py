"""Labelled pictures: crops of photographs, or the user's class folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench.data import Batches
from xbench.errors import unknown
from xbench.models import photographs
from xbench.models.photographs import BASELINE_NAME as BASELINE_NAME
from xbench.models.residual import SPEC, Config

Array = np.ndarray[Any, Any]


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of ``image`` and ``label``, as ``photographs.load`` makes them."""
    return photographs.load(
        SPEC.name,
        classes=config.classes,
        side=config.side,
        batch=batch,
        count=count,
        seed=seed,
        source=source,
    )


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The cross-entropy of each batch, in float64, of predicting how often each class occurs."""
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    return photographs.class_frequencies(batches)
