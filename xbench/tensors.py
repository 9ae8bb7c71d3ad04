"""Arrays in files, and the digests that say whether two are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xbench.data import digest

Array = np.ndarray[Any, Any]


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name into an uncompressed .npz."""
    with path.open("wb") as file:
        named: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        np.savez(file, **named)


def load(path: Path) -> dict[str, Array]:
    """The arrays of ``save``."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def save_batches(path: Path, batches: Sequence[Mapping[str, Array]]) -> None:
    """Write a list of batches: array ``NAME`` of batch 3 becomes ``3/NAME``."""
    save(path, {f"{k}/{name}": a for k, batch in enumerate(batches) for name, a in batch.items()})


def load_batches(path: Path) -> list[dict[str, Array]]:
    """The batches of ``save_batches``."""
    batches: dict[int, dict[str, Array]] = {}
    for key, array in load(path).items():
        index, name = key.split("/", 1)
        batches.setdefault(int(index), {})[name] = array
    return [batches[index] for index in sorted(batches)]


def digest_batches(batches: Sequence[Mapping[str, Array]]) -> str:
    """The digest of a list of batches, order included."""
    return digest(
        {f"{k}/{name}": a for k, batch in enumerate(batches) for name, a in batch.items()}
    )


def digest_file(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_text(text: bytes) -> str:
    """SHA-256 of some bytes in hex."""
    return hashlib.sha256(text).hexdigest()
