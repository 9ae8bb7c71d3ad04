"""Sound: spoken by eSpeak NG or read from wav files, and made into features for each frame.

Features follow Deep Speech (Hannun et al. 2014, arXiv 1412.5567), section 5: logarithms of linearly
spaced filters and of the energy, over windows of 20 ms. The paper's windows begin every 10 ms, and
its network takes every second of them (section 3.3): only these are made here.

Every value is rounded in a way that does not depend on the order of a sum, on fused operations or
on a library's logarithm: the same samples give the same bits on every machine.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench.data import require
from xbench.draws import natural_log
from xbench.errors import DataError

Array = np.ndarray[Any, Any]

PROGRAM = Path(__file__).with_name("espeak.py")
FRAMES = 50
"""Frames in a second: one every 20 ms, of 20 ms each, so that none overlaps the next."""
TOP = 8000
"""Hz, the upper end of the filters; half the sampling rate where that is less."""
SPACING = 50
"""Hz between the frequencies at which a frame's power is taken: what 20 ms can tell apart."""
RATES = (8000, 48000)
"""Lowest and highest sampling rate in Hz that is read."""
SCALE = 2.0**20
"""Sines are rounded to multiples of 1 / SCALE: a sum of samples times sines is then exact."""
STEPS = 2.0**16
"""Logarithms are rounded to multiples of 1 / STEPS: sums of them and of their squares are exact."""
EXPECTED = "expected a wav file of 16-bit PCM with one channel"


class Utterance(NamedTuple):
    """A sentence and how it is said: words a minute, and a pitch from 0 to 99."""

    text: str
    voice: str
    speed: int
    pitch: int


class Speech(NamedTuple):
    """What eSpeak NG said: its version, samples a second, and int16 samples of each utterance."""

    version: str
    rate: int
    sounds: list[Array]


def speak(utterances: Sequence[Utterance]) -> Speech:
    """Let eSpeak NG say ``utterances``, in a process of its own. The same ones sound the same.

    Raises DataError where espeakng-loader is not installed or what it ships does not work.
    """
    loader = require("espeakng_loader", "speaking sentences")
    library = Path(loader.get_library_path()).resolve()
    # The library has room for 160 characters of a path: it is run where it is, beside its data.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM.resolve())],
        input=json.dumps([str(library), utterances]).encode(),
        capture_output=True,
        cwd=library.parent,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        reason = said or f"{library}: ends with exit status {done.returncode}"
        raise DataError(f"eSpeak NG of espeakng-loader does not work here: {reason}")
    line, _, sound = done.stdout.partition(b"\n")
    head = json.loads(line)
    sounds = np.split(np.frombuffer(sound, np.int16), np.cumsum(head["counts"])[:-1])
    return Speech(head["version"], head["rate"], sounds)


def measured(path: Path) -> tuple[int, int]:
    """Sampling rate in Hz and number of samples that a wav file declares.

    Raises DataError, naming the file, unless it is 16-bit PCM with one channel and a rate that is
    read, and the file is large enough.
    """
    with _opened(path) as file:
        return file.getframerate(), file.getnframes()


def read(path: Path) -> tuple[int, Array]:
    """Sampling rate in Hz and the int16 samples of a wav file.

    Raises DataError as ``measured`` does, and where the file ends anywhere before its last sample.
    """
    with _opened(path) as file:
        rate, count = file.getframerate(), file.getnframes()
        content = file.readframes(count)
    if len(content) < 2 * count:
        raise DataError(f"{path}: truncated: declares {count} samples, holds {len(content) // 2}")
    return rate, np.frombuffer(content, np.int16)


@contextmanager
def _opened(path: Path) -> Iterator[wave.Wave_read]:
    """A wav file, of which all but the end of the samples has been checked."""
    try:
        with path.open("rb") as raw:
            size = os.fstat(raw.fileno()).st_size
            if not size:
                raise DataError(f"{path}: empty file; {EXPECTED}")
            with wave.open(raw) as file:
                channels, width, rate, count = file.getparams()[:4]
                if channels != 1:
                    raise DataError(f"{path}: {channels} channels; {EXPECTED}")
                if width != 2:
                    raise DataError(f"{path}: {8 * width} bits a sample; {EXPECTED}")
                if not RATES[0] <= rate <= RATES[1]:
                    raise DataError(f"{path}: {rate} Hz; expected {RATES[0]} to {RATES[1]} Hz")
                # A header may declare more than fits into memory.
                if 2 * count > size:
                    raise DataError(
                        f"{path}: truncated: declares {count} samples of 2 bytes, and has "
                        f"{size} bytes in all"
                    )
                yield file
    except EOFError as error:
        raise DataError(f"{path}: truncated in its header; {EXPECTED}") from error
    except wave.Error as error:
        raise DataError(f"{path}: {error}; {EXPECTED}") from error
    except RuntimeError as error:  # of the module, at a part that is longer than the whole
        raise DataError(f"{path}: damaged; {EXPECTED}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def frame_count(samples: int, rate: int) -> int:
    """How many whole frames ``samples`` samples make; frame i begins at i * rate // 50."""
    return max(0, -(-FRAMES * (samples - rate // FRAMES + 1) // rate))


def features(samples: Array, rate: int, count: int, name: str) -> Array:
    """float32 (frames, ``count``) of int16 samples: ``count`` - 1 filters, then the energy.

    A filter sums the power of a Hann window times its triangle, as ``filters`` makes them. The
    energy is the sum of squares of the samples. Both become log(1 + x): a power of 1 is less than
    the rounding to 16 bits leaves. Then their mean over all frames and features is subtracted, and
    they are divided by their deviation.

    Raises DataError, with ``name``, where there is no whole frame or all are silent.
    """
    frames = frame_count(len(samples), rate)
    window = rate // FRAMES
    places = (np.arange(frames) * rate // FRAMES)[:, None] + np.arange(window)
    values = samples[places].astype(np.float64)
    # Below 2^15 of a sample * 2^20 of a sine * 960 of them: exact in float64, in any order. Not
    # ``@``: on a busy machine its threads wait for each other ten times longer than this takes.
    waves = np.einsum("ij,jk->ik", values, _sines(rate)) / SCALE
    half = waves.shape[1] // 2
    power = np.square(waves[:, :half]) + np.square(waves[:, half:])
    first, weights = filters(rate, count - 1)
    found = np.zeros((frames, count))
    # One product after another: a matrix product adds in an order that machines choose.
    for k in range(weights.shape[1]):
        found[:, :-1] += weights[:, k] * power[:, first + k]
    found[:, -1] = np.square(values).sum(axis=1)
    steps = np.rint(natural_log(1.0 + found) * STEPS).astype(np.int64)
    size, total = steps.size, int(steps.sum())
    spread = size * int(np.square(steps).sum()) - total * total
    if not spread:
        raise DataError(f"{name}: silent or too short: no features can be made of it")
    normal: Array = (steps - total / size) / (math.sqrt(spread) / size)
    return normal.astype(np.float32)


@functools.cache
def _sines(rate: int) -> Array:
    """float64 (window, 2 * frequencies): cosines, then sines, in a Hann window, times SCALE.

    The frequencies are the multiples of 50 Hz up to TOP or half the rate, and zero.
    """
    place = np.arange(rate // FRAMES)[:, None]
    hann = np.square(np.sin(np.pi * (place + 0.5) / len(place)))
    # Whole turns are taken away while the angle is an integer.
    turns = place * np.arange(0, _top(rate) + 1, SPACING) % rate
    angle = 2.0 * np.pi * turns / rate
    return np.rint(np.hstack([hann * np.cos(angle), hann * np.sin(angle)]) * SCALE)


def _top(rate: int) -> int:
    return min(TOP, rate // 2)


@functools.cache
def filters(rate: int, count: int) -> tuple[Array, Array]:
    """``count`` triangles: the first frequency of each, int64, and float64 (count, widest) weights.

    Their ``count`` + 2 corners are equally far apart from 0 Hz to TOP or half the rate; a triangle
    is 1 at its middle corner and 0 at the two beside it.
    """
    frequency = np.arange(0, _top(rate) + 1, SPACING)
    # In units of the distance between corners.
    place = frequency * (count + 1) / _top(rate)
    weight = np.maximum(0.0, 1.0 - np.abs(place - np.arange(1, count + 1)[:, None]))
    widest = int((weight > 0).sum(axis=1).max())
    first = np.minimum((weight > 0).argmax(axis=1), len(frequency) - widest)
    return first, np.take_along_axis(weight, first[:, None] + np.arange(widest), axis=1)
