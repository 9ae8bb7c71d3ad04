"""The autoencoder's images: handwritten digits, or the user's MNIST files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench.data import Batches
from xbench.errors import unknown
from xbench.models import digits
from xbench.models.autoencoder import SPEC, Config

Array = np.ndarray[Any, Any]

BASELINE_NAME = digits.BASELINE_NAME


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of ``image``: float32 (batch, pixels) in [0, 1]. See ``digits.load``."""
    return digits.load(
        SPEC.name, side=config.side, batch=batch, count=count, seed=seed, source=source
    )


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, of the mean image of all batches for every image."""
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    mean = digits.mean_image(batches)
    return [float(np.square(batch["image"].astype(np.float64) - mean).mean()) for batch in batches]
