"""Handwritten digits for the two autoencoders: MNIST's IDX files, or scikit-learn's digits."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from xbench import draws
from xbench.data import Batches, locate, require
from xbench.errors import DataError
from xbench.models import pictures

Array = np.ndarray[Any, Any]

BASELINE_NAME = "the mean image"
EMBEDDED = "digits"
"""The name of the default; as a source it wins over XBENCH_DATA."""

SETS = ("train", "t10k")
"""MNIST's two sets: the first that is there is read."""
STYLES = ("images-idx3-ubyte", "images.idx3-ubyte")
ENDINGS = ("", ".gz")
FOLDERS = ("", "raw", "MNIST/raw")
"""Where the files may lie below the named folder; torchvision makes the last."""

IMAGES = 0x00000803
"""Magic number: two zero bytes, 8 for unsigned bytes, 3 for the dimensions."""
LABELS = 0x00000801
HEADER = 16
"""Bytes: magic number, count, height and width, each 4 bytes, big-endian."""
GZIP = b"\x1f\x8b"
LEVELS = 16
"""The embedded digits count, per 4x4 pixels of a scan, how many of the 16 are ink."""


def load(
    model: str, *, side: int, batch: int, count: int, seed: int, source: str | None
) -> Batches:
    """``count`` batches of ``image``: float32 (batch, side * side) in [0, 1], rows one by one.

    ``source`` is a folder, an IDX file (plain or gzip), ``"digits"`` or None: then what
    XBENCH_DATA holds for ``model``, else scikit-learn's digits. Images of another size are scaled.
    Their order comes from ``seed`` alone: fewer images are the first ones of more. None comes
    again before all were used. Raises DataError, naming the file, for data that cannot be used.
    """
    path = None if source == EMBEDDED else locate(model, source)
    if path is None:
        images, origin = embedded()
        kind = "handwritten digits"
    else:
        file = find(path)
        images, origin = read(file), str(file)
        kind = "images"
    total, height, width = images.shape
    needed = batch * count
    # An image is read and scaled once, however often it is shown.
    used, places = np.unique(draws.shuffled(total, needed, seed, "digits"), return_inverse=True)
    flat = scaled(np.asarray(images[used]), side).reshape(-1, side * side)
    description = f"{total:,} {kind} of {height}x{width} from {origin}"
    if (height, width) != (side, side):
        description += f", resized to {side}x{side}"
    description += f", shuffled with seed {seed}"
    if total < needed:
        description += f", repeated to fill {needed}"
    steps = places.reshape(count, batch)
    return Batches(
        [{"image": flat[step].astype(np.float32) / np.float32(255)} for step in steps], description
    )


def scaled(images: Array, side: int) -> Array:
    """uint8 (n, height, width) as (n, side, side): ``pictures.fit`` of each, integer arithmetic."""
    if images.shape[1:] == (side, side):
        return images
    image = require("PIL.Image", "scaling images")
    return np.stack([pictures.fit(image.fromarray(item), side, side) for item in images])


def embedded() -> tuple[Array, str]:
    """scikit-learn's digits as uint8 (1797, 8, 8), ink 255, and what they are.

    They are the test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak
    1998, doi 10.24432/C50P49), 64 values from 0 to 16 and the digit per line. The file is read
    without the package, whose import takes a second.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError("reading digits needs pip install 'xbench[data]' (no module 'sklearn')")
    path = Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz"
    expected = f"expected 1797 lines of 64 values from 0 to {LEVELS} and a digit"
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, dtype=np.int64, delimiter=",", ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {expected}") from error
    ink = table[:, :-1]
    if table.shape != (1797, 65) or ink.min() < 0 or ink.max() > LEVELS:
        raise DataError(f"{path}: damaged or changed; {expected}")
    images = ((ink * 255 + LEVELS // 2) // LEVELS).astype(np.uint8).reshape(-1, 8, 8)
    version = metadata.version("scikit-learn")
    return images, f"UCI's Optical Recognition of Handwritten Digits (scikit-learn {version})"


def find(path: Path) -> Path:
    """The IDX file of images at ``path``: itself, or MNIST's in that folder or where others put it.

    The training set comes before the test set, a plain file before a compressed one. Some archives
    hold a folder of the file's own name around it.
    """
    if path.is_file():
        return path
    names = [f"{part}-{style}{ending}" for part in SETS for ending in ENDINGS for style in STYLES]
    for name in names:
        for folder in FOLDERS:
            for file in (path / folder / name, path / folder / name / name):
                if file.is_file():
                    return file
    raise DataError(
        f"{path}: expected MNIST's images, {SETS[0]}-{STYLES[0]} or {SETS[1]}-{STYLES[0]} "
        "(.idx3-ubyte and .gz are known too), here, in raw or in MNIST/raw; no such file"
    )


def read(path: Path) -> Array:
    """The images in an IDX file, plain or gzip: uint8 (n, height, width), read-only.

    The format is the one described on MNIST's page. A plain file is mapped, so that only the
    images that are used are read. Raises DataError for anything but a whole file of images.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(len(GZIP)) == GZIP
            size = plain.seek(0, 2)
            plain.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=plain) as file:
                    shape = _shape(path, file.read(HEADER))
                    pixels = file.read()
                _check(path, shape, len(pixels))
                return np.frombuffer(pixels, np.uint8).reshape(shape)
            shape = _shape(path, plain.read(HEADER))
            _check(path, shape, size - HEADER)
            return np.memmap(plain, np.uint8, "r", offset=HEADER, shape=shape)
    except EOFError as error:
        raise DataError(f"{path}: truncated: the gzip stream has no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _shape(path: Path, header: bytes) -> tuple[int, int, int]:
    """Count, height and width that the first 16 bytes declare."""
    expected = f"expected an IDX file of images (magic number 0x{IMAGES:08x})"
    if not header:
        raise DataError(f"{path}: empty; {expected}")
    magic = int.from_bytes(header[:4], "big")
    if len(header) >= 4 and magic == LABELS:
        raise DataError(f"{path}: holds labels (magic number 0x{magic:08x}); {expected}")
    if len(header) < 4 or magic != IMAGES:
        raise DataError(f"{path}: starts with 0x{header[:4].hex()}; {expected}")
    if len(header) < HEADER:
        raise DataError(f"{path}: truncated: {len(header)} of the {HEADER} bytes of its header")
    count, height, width = (int.from_bytes(header[i : i + 4], "big") for i in (4, 8, 12))
    if not count * height * width:
        raise DataError(
            f"{path}: declares {count} images of {height}x{width}; expected at least 1 pixel"
        )
    return count, height, width


def _check(path: Path, shape: tuple[int, int, int], size: int) -> None:
    """Raise DataError unless ``size`` bytes are what ``shape`` needs."""
    count, height, width = shape
    declared = f"declares {count} images of {height}x{width} = {prod(shape)} bytes"
    if size < prod(shape):
        raise DataError(f"{path}: truncated: {declared}, holds {size}")
    if size > prod(shape):
        raise DataError(f"{path}: {declared}, and {size - prod(shape)} more follow")


def mean_image(batches: Sequence[Mapping[str, Array]]) -> Array:
    """The mean over all images of all batches: float64 (side * side,).

    The sums are exact for up to a million images, whatever their order: a pixel is a float32
    multiple of 2^-31 below 2.
    """
    total = sum(len(batch["image"]) for batch in batches)
    sums = [batch["image"].sum(axis=0, dtype=np.float64) for batch in batches]
    return np.asarray(np.sum(sums, axis=0) / total)
