"""PredNet's frames: a drive in Enduro, or the user's pictures or video."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xbench.data import Batches, locate, require
from xbench.errors import DataError, unknown
from xbench.models import pictures
from xbench.models.prednet import SPEC, Config

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]

BASELINE_NAME = "copy the last frame"
EMBEDDED = "enduro"
"""The name of the default; as a source it wins over XBENCH_DATA."""

SCREENS_PER_FRAME = 4
"""The console shows 60 screens a second; 15 frames a second make motion visible."""
START = 60
"""Frames left out while the car gathers speed."""
WINDOW = (8, 33, 160, 155)
"""Left, top, right, bottom of the view from the car; around it are a black edge and the score."""
KITTI_COLOUR = frozenset({"image_02", "image_03"})
"""Folders of the two colour cameras in KITTI raw; image_00 and image_01 hold grey pictures."""


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of ``frames``: float32 (batch, time, 3, height, width) in [0, 1].

    Sequences follow one another, ``batch`` of them in each batch, and start again from the first
    when there are too few. ``source`` is a folder, a video file, ``"enduro"`` or None: then what
    XBENCH_DATA holds for this model, else Enduro. ``seed`` only steers the car in Enduro.
    Raises DataError, naming the file, for data that cannot be used.
    """
    path = None if source == EMBEDDED else locate(SPEC.name, source)
    needed = batch * count
    if path is None:
        version = require("ale_py", "playing Enduro").__version__
        drives = enduro(seed)
        description = f"Enduro (Arcade Learning Environment {version}), driven with seed {seed}"
        sequences = cut(drives, config, needed, "Enduro")
    else:
        sequences = cut(find_clips(path), config, needed, str(path))
        description = f"frames of {path}"
    if len(sequences) < needed:
        description += f", {len(sequences)} sequences repeated to fill {needed}"
    chosen = [sequences[index % len(sequences)] for index in range(needed)]
    return Batches(
        [{"frames": as_input(chosen[i : i + batch])} for i in range(0, needed, batch)], description
    )


def as_input(sequences: list[Array]) -> Array:
    """uint8 sequences (time, height, width, 3) as one float32 batch in [0, 1], channels first."""
    frames = np.stack(sequences).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(frames, dtype=np.float32) / np.float32(255)


def cut(clips: Iterable[Iterable[Image]], config: Config, needed: int, source: str) -> list[Array]:
    """The first ``needed`` sequences (time, height, width, 3), or all; none crosses two clips."""
    sequences: list[Array] = []
    longest = 0
    for clip in clips:
        frames: list[Array] = []
        total = 0
        for total, picture in enumerate(clip, start=1):
            frames.append(pictures.fit(picture, config.height, config.width))
            if total % config.time == 0:
                sequences.append(np.stack(frames))
                frames = []
            if len(sequences) == needed:
                return sequences
        longest = max(longest, total)
    if not sequences:
        raise DataError(
            f"{source}: {longest} consecutive frames found, at least {config.time} needed"
        )
    return sequences


def find_clips(path: Path) -> list[Iterable[Image]]:
    """The videos and the folders of pictures at ``path`` and below it, in natural order."""
    kinds = " ".join(sorted(pictures.PICTURES)), " ".join(sorted(pictures.VIDEOS))
    if path.is_file():
        if path.suffix.lower() not in pictures.VIDEOS:
            raise DataError(f"{path}: expected a folder of pictures, or a video ({kinds[1]})")
        return [pictures.video(path)]
    files = pictures.find(path, pictures.PICTURES | pictures.VIDEOS)
    if colour := [file for file in files if KITTI_COLOUR & set(file.relative_to(path).parts)]:
        files = colour
    if not files:
        raise DataError(f"{path}: expected pictures ({kinds[0]}) or videos ({kinds[1]}), no such")
    groups: dict[Path, list[Path]] = {}
    for file in files:
        is_video = file.suffix.lower() in pictures.VIDEOS
        groups.setdefault(file if is_video else file.parent, []).append(file)
    return [
        pictures.video(place) if place in group else map(pictures.read, group)
        for place, group in groups.items()
    ]


def enduro(seed: int) -> Iterator[Iterator[Image]]:
    """Drives without end, each as long as the game lets it go on (about 3,300 frames).

    The player keeps the throttle down and at every frame goes straight on (half of the time), left
    or right, by the two top bits of the next Philox word.
    """
    ale = require("ale_py", "playing Enduro")
    image = require("PIL.Image", "scaling pictures")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    game = ale.ALEInterface()
    game.setInt("random_seed", 1)  # 0 would mean the time of day
    game.setFloat("repeat_action_probability", 0.0)
    game.setBool("display_screen", False)
    game.setBool("sound", False)
    game.loadROM(require("ale_py.roms", "playing Enduro").get_rom_path(EMBEDDED))
    actions = (ale.Action.FIRE, ale.Action.FIRE, ale.Action.LEFTFIRE, ale.Action.RIGHTFIRE)
    player = np.random.Philox(key=seed)

    def drive() -> Iterator[Image]:
        game.reset_game()
        while True:
            action = actions[int(player.random_raw()) >> 62]
            for _ in range(SCREENS_PER_FRAME):
                game.act(action)
            if game.game_over():
                return
            yield image.fromarray(game.getScreenRGB()).crop(WINDOW)

    while True:
        yield islice(drive(), START, None)


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, of predicting at every time step the frame before it.

    With d = x[t] - x[t-1]: E_0 is concat[relu(-d), relu(d)], whose mean is mean|d| / 2, and
    ``mse-next`` is mean(d^2); both are weighted over time as in training. ``L_all`` gets the term
    of layer 0 alone: what a copied frame would predict in the layers above is not defined.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    found = []
    for batch in batches:
        change = np.diff(batch["frames"].astype(np.float64), axis=1)
        error = np.square(change) if loss == "mse-next" else np.abs(change) / 2
        found.append(float(error.mean(axis=(0, 2, 3, 4)) @ np.array(config.time_weights[1:])))
    return found


def baseline_note(loss: str) -> str:
    """What a reader of the baseline must know; empty if nothing."""
    return "of layer 0 alone" if loss == "L_all" else ""
