"""Input data: what a model's ``data.py`` hands over, and where it may come from.

A model's ``data.py`` offers ``load(config, *, batch, count, seed, source) -> Batches`` and
``baseline(batches, loss, config) -> list[float]``, the loss of a trivial predictor on each batch.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from xbench.errors import DataError

Array = np.ndarray[Any, Any]

VARIABLE = "XBENCH_DATA"
"""Environment variable with a folder that has one sub-folder of data per model."""


class Batches(msgspec.Struct, frozen=True):
    """Inputs of consecutive steps, in the canonical layout, and what they show in one line."""

    inputs: list[dict[str, Array]]
    description: str


def digest(arrays: Mapping[str, Array]) -> str:
    """SHA-256 in hex over name, dtype, shape and bytes of every array, in the order of names.

    The memory layout (strides) does not count; the byte order does, as part of the dtype.
    """
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # ascontiguousarray makes a scalar one-dimensional: the shape is the original's.
        header = [name, array.dtype.str, list(arrays[name].shape)]
        state.update(msgspec.json.encode(header) + b"\n")
        state.update(array.tobytes())
    return state.hexdigest()


def locate(model: str, source: str | None) -> Path | None:
    """The path to read ``model``'s data from; None means the embedded default.

    ``source`` wins; else the sub-folder ``model`` of the folder that XBENCH_DATA names, if there.
    Raises DataError where a path that was named does not exist.
    """
    if source is not None:
        path = Path(source).expanduser()
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        return path
    if wrong := problem():
        raise DataError(wrong)
    root = os.environ.get(VARIABLE)
    folder = Path(root or "").expanduser() / model
    return folder if root and folder.is_dir() else None


def problem() -> str:
    """Why the folder that XBENCH_DATA names cannot be used; empty where it can or none is named."""
    root = os.environ.get(VARIABLE)
    if not root or Path(root).expanduser().is_dir():
        return ""
    return f"{VARIABLE}={root}: no such folder"


def require(module: str, purpose: str) -> Any:
    """Import an optional module. Raises DataError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{purpose} needs pip install 'xbench[data]' ({error})") from error
