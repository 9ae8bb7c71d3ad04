"""Labelled pictures for the image classifiers: crops of photographs, or the user's class folders.

Every picture becomes RGB / 255, minus ImageNet's channel means, over its channel deviations, in
float32: the constants that torchvision's reference weights are used with. One subtraction and two
divisions per value leave every machine with the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xbench.data import Batches, locate
from xbench.draws import stream
from xbench.errors import DataError
from xbench.models import pictures

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]

BASELINE_NAME = "class frequencies"
EMBEDDED = "photographs"
"""The name of the default; as a source it wins over XBENCH_DATA."""

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of red, green and blue over ImageNet's training pictures, on a scale of 0 to 1."""

PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/ihc.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
)
"""Package and file of each class. PNG first: up to five classes need no JPEG decoder."""

WORDS = 5
"""Random words of one crop: its turn, its edge, its left, its top, and whether it is mirrored."""
SUFFIXES = tuple(sorted(pictures.PICTURES))
PARTS = frozenset({"train", "training", "val", "valid", "validation", "test"})
"""Folders that many data sets have above their class folders."""
LAYOUT = "expected a folder of pictures for each class, as in cat/1.jpg and dog/1.jpg"


def load(
    model: str, *, classes: int, side: int, batch: int, count: int, seed: int, source: str | None
) -> Batches:
    """``count`` batches of ``image``, float32 (batch, 3, side, side), and ``label``, int64 (batch).

    ``source`` is a folder with one folder of pictures per class, ``"photographs"`` or None: then
    what XBENCH_DATA holds for ``model``, else the photographs. No more than ``classes`` classes
    are used. ``seed`` chooses the crops, or the order of the user's pictures, which are taken
    without repeats until all were used. Raises DataError, naming the file, for data that cannot
    be used.
    """
    path = None if source == EMBEDDED else locate(model, source)
    needed = batch * count
    if path is None:
        pixels, labels, description = crops(classes, side, needed, seed)
    else:
        pixels, labels, description = chosen(path, classes, side, needed, seed)
    rows = np.arange(needed) % len(labels)
    parts = [rows[start : start + batch] for start in range(0, needed, batch)]
    return Batches(
        [{"image": normalised(pixels[part]), "label": labels[part]} for part in parts], description
    )


def normalised(pixels: Array) -> Array:
    """uint8 (n, height, width, 3) as float32 (n, 3, height, width), about 0 and of size 1."""
    values = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    values /= np.float32(255)
    values -= np.array(MEAN, np.float32)[:, None, None]
    values /= np.array(DEVIATION, np.float32)[:, None, None]
    return values


def crops(classes: int, side: int, needed: int, seed: int) -> tuple[Array, Array, str]:
    """Crops of the photographs: uint8 (needed, side, side, 3), their classes, and what they are.

    The class of a crop is the photograph that it is from. Each run of as many crops as there are
    photographs holds every one once, in a random order. A crop is a square of at least half and at
    most the whole of the shorter edge, anywhere, mirrored or not, scaled to ``side``. Random
    words, integer arithmetic and the filter of ``pictures.fit`` are the same everywhere; only the
    pixels of the JPEG files depend on the libjpeg in Pillow.
    """
    used = PHOTOGRAPHS[:classes]
    photographs = [photograph(package, name) for package, name in used]
    runs = -(-needed // len(used))
    words = stream("data", seed, EMBEDDED).random_raw(runs * len(used) * WORDS)
    words = words.reshape(runs, len(used), WORDS)
    labels = np.argsort(words[:, :, 0], axis=1, kind="stable").astype(np.int64).ravel()[:needed]
    found = [
        crop(photographs[label], side, turn)
        for label, turn in zip(
            labels.tolist(), words[:, :, 1:].reshape(-1, 4).tolist(), strict=False
        )
    ]
    packages = " and ".join(sorted({PACKAGES[package] for package, _ in used}))
    return (
        np.stack(found),
        labels,
        f"crops of {len(used)} photographs that {packages} ship, made with seed {seed}",
    )


def crop(picture: Image, side: int, words: Sequence[int]) -> Array:
    """One crop, uint8 (side, side, 3), as four words of 64 bits choose it."""
    width, height = picture.size
    longest = min(width, height)
    shortest = (longest + 1) // 2
    edge = shortest + below(longest - shortest + 1, words[0])
    left, top = below(width - edge + 1, words[1]), below(height - edge + 1, words[2])
    pixels = pictures.fit(picture.crop((left, top, left + edge, top + edge)), side, side)
    return pixels[:, ::-1] if below(2, words[3]) else pixels


def below(bound: int, word: int) -> int:
    """0 to ``bound`` - 1, evenly to within ``bound`` / 2^64, from a random word of 64 bits."""
    return word * bound >> 64


def photograph(package: str, name: str) -> Image:
    """A file that ``package`` ships, decoded. The package is only looked up: importing takes long.

    Raises DataError if the package is not installed or does not hold the file.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "reading the photographs needs pip install 'xbench[data]' "
            f"(No module named {package!r})"
        )
    path = Path(spec.submodule_search_locations[0], name)
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a photograph of {PACKAGES[package]}")
    return pictures.read(path)


def chosen(path: Path, classes: int, side: int, needed: int, seed: int) -> tuple[Array, Array, str]:
    """Pictures of the user: uint8 (n, side, side, 3), their classes, and what they are.

    n is ``needed``, or the number of pictures where there are fewer. Names are listed once; only
    the pictures that the seed chooses are opened.
    """
    names = class_names(path)
    files: list[str] = []
    sizes: list[int] = []
    for name in names[:classes]:
        own = list(tree(path / name))
        if not own:
            raise DataError(f"{path / name}: class folder without pictures ({' '.join(SUFFIXES)})")
        files += own
        sizes.append(len(own))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    words = stream("data", seed, "pictures").random_raw(len(files))
    order = np.argsort(words, kind="stable")[:needed]
    found = [pictures.fit(pictures.read(Path(files[index])), side, side) for index in order]
    share = f"the first {classes} of " if len(names) > classes else ""
    description = f"pictures of {path}, {share}{len(names)} classes"
    if len(files) < needed:
        description += f", {len(files)} pictures repeated to fill {needed}"
    return np.stack(found), labels[order], description


def class_names(path: Path) -> list[str]:
    """The class folders in ``path``, in the order of plain strings, as torchvision has them.

    Files beside the class folders are no part of the data.
    Raises DataError where there are fewer than two: with one class there is nothing to learn, and
    the frequencies alone predict it without loss. So it does where all are parts of a data set,
    which would be mistaken for classes.
    """
    if not path.is_dir():
        raise DataError(f"{path}: not a folder; {LAYOUT}")
    names, loose = listed(path)
    if not names:
        held = "pictures but no folder" if loose else "no folder"
        raise DataError(f"{path}: {LAYOUT}; it holds {held}")
    if set(names) <= PARTS:
        raise DataError(
            f"{path}: {LAYOUT}; {' '.join(names)} look like parts of a data set: name one of them, "
            f"as in {path / names[0]}"
        )
    if len(names) == 1:
        raise DataError(f"{path}: only one class folder ({names[0]}); at least two are needed")
    return names


def tree(folder: Path, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The pictures in ``folder`` and below it, in an order that only depends on their names.

    Links are followed, as torchvision does. Raises DataError for one that leads back upwards.
    """
    real = os.path.realpath(folder)
    if real in above:
        raise DataError(f"{folder}: a link to a folder around it; expected a tree that ends")
    folders, files = listed(folder)
    yield from (f"{folder}/{name}" for name in files)
    for name in folders:
        yield from tree(folder / name, (*above, real))


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the pictures in ``folder``, sorted, hidden ones left out.

    A data set may have millions of files: none is looked at. Only a link that is not named like a
    picture is followed, to see whether it is a folder; a broken picture is an error when chosen.
    """
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                is_picture = entry.name.lower().endswith(SUFFIXES)
                if entry.is_dir(follow_symlinks=not is_picture):
                    folders.append(entry.name)
                elif is_picture and (entry.is_symlink() or entry.is_file()):
                    files.append(entry.name)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    return sorted(folders), sorted(files)


def class_frequencies(batches: Sequence[Mapping[str, Array]]) -> list[float]:
    """Per batch, the mean of -log p(label) in float64: the loss of knowing the frequencies only.

    p is how often a label occurs among those of all ``batches``: no other prediction that is the
    same for every picture has as low a mean loss over all of them.
    """
    if not batches:
        return []
    labels = np.concatenate([batch["label"] for batch in batches])
    _, where, counts = np.unique(labels, return_inverse=True, return_counts=True)
    losses = np.log(len(labels) / counts)[where]
    ends = np.cumsum([len(batch["label"]) for batch in batches])
    return [float(part.mean()) for part in np.split(losses, ends[:-1])]
