"""Labelled pictures: crops of photographs, or the user's class folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench.data import Batches
from xbench.errors import unknown
from xbench.models import photographs
from xbench.models.vgg import SPEC, Config

BASELINE_NAME = photographs.BASELINE_NAME


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


def baseline(
    batches: Sequence[Mapping[str, np.ndarray[Any, Any]]], loss: str, config: Config
) -> list[float]:
    """The cross-entropy of each batch, in float64, of always predicting the class frequencies."""
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    return photographs.class_frequencies(batches)
