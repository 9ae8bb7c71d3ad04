"""The variational autoencoder's images: handwritten digits, or the user's MNIST files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench.data import Batches
from xbench.errors import unknown
from xbench.models import digits
from xbench.models.autoenc import SPEC, Config

Array = np.ndarray[Any, Any]

BASELINE_NAME = digits.BASELINE_NAME


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of ``image``: float32 (batch, pixels) in [0, 1]. See ``digits.load``."""
    return digits.load(
        SPEC.name, side=config.side, batch=batch, count=count, seed=seed, source=source
    )


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, of the mean image of all batches for every image.

    With p the mean pixel, an image costs the sum over its pixels x of -x log p - (1-x) log(1-p).
    The KL term is 0, since nothing is encoded. Where p is 0 or 1, every x is, and the pixel
    costs nothing (0 log 0 = 0); a pixel that is grey and the same everywhere costs its entropy.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    mean = digits.mean_image(batches)
    costs = -logarithm(mean), -logarithm(1.0 - mean)
    found = []
    for batch in batches:
        ink = batch["image"].astype(np.float64)
        found.append(float((ink @ costs[0] + (1.0 - ink) @ costs[1]).mean()))
    return found


def logarithm(probability: Array) -> Array:
    """The natural logarithm; 0 for 0, which only ever multiplies a 0 here."""
    return np.log(np.where(probability > 0.0, probability, 1.0))
