"""Spoken sentences and their letters: eSpeak NG's, or recordings laid out as LibriSpeech's.

LibriSpeech (Panayotov et al. 2015): a folder for each chapter, with ``1-2.trans.txt`` whose lines
are the name of a recording and what is said in it, and a recording of each name beside it.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench.data import Batches, locate
from xbench.draws import below, shuffled, stream
from xbench.errors import DataError, unknown
from xbench.models.speech import ALPHABET, SPEC, Config, audio

Array = np.ndarray[Any, Any]

BASELINE_NAME = "letter frequencies and the best share of blanks"
EMBEDDED = "espeak"
"""The name of the default; as a source it wins over XBENCH_DATA."""

VOICES = ("en-us", "en", "en-us+m3", "en+f2")
"""American and British; a variant of the voice follows the plus."""
SPEEDS = (160, 230)
"""Words a minute, from and to; 175 is eSpeak's own."""
PITCHES = (35, 65)
"""From and to; 50 is eSpeak's own."""
THINGS = ("cats", "dogs", "birds", "cups", "books", "trees", "ships", "hands")
COLOURS = ("red", "blue", "green", "black", "white")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
VERBS = ("find", "take", "bring", "show")
FRAMES_PER_WORD = 16
"""At 175 words a minute: how many words a sentence gets. What then is too long is left out."""
CHUNK = 32
"""Sentences that one run of eSpeak says."""
POOL = 512
"""Different sentences at most: more are the same again."""
ATTEMPTS = 8
"""Runs of eSpeak of which none gave a sentence that fits, until it is given up."""

ENDING = ".trans.txt"
LAYOUT = (
    f"expected LibriSpeech's layout: folders with 1-2{ENDING}, whose lines are the name of a "
    "recording and its text, as in 1-2-0000 SOME WORDS, and recordings beside it, as in "
    "1-2-0000.wav"
)


class Recording(NamedTuple):
    """Features, float32 (frames, features), and the ids of what is said, int64 (letters)."""

    features: Array
    label: Array


class Entry(NamedTuple):
    """A line of a transcript: where it is, the recording that it names, and its text."""

    where: str
    path: Path
    text: str


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of recordings and their labels, as ``SPEC`` has inputs and targets.

    ``source`` is a folder in LibriSpeech's layout, ``"espeak"`` or None: then what XBENCH_DATA
    holds for this model, else sentences spoken by eSpeak NG. ``seed`` chooses the sentences and
    voices, or the order of the user's recordings. A recording is shown again only after all were.
    Raises DataError, naming file and line, for data that cannot be used.
    """
    path = None if source == EMBEDDED else locate(SPEC.name, source)
    needed = batch * count
    if path is None:
        found, description = spoken(config, needed, seed)
    else:
        found, description = recorded(path, config, needed, seed)
    if len(found) < needed:
        description += f", {len(found)} repeated to fill {needed}"
    chosen = [found[index % len(found)] for index in range(needed)]
    parts = [chosen[start : start + batch] for start in range(0, needed, batch)]
    return Batches([as_inputs(part, config) for part in parts], description)


def as_inputs(recordings: Sequence[Recording], config: Config) -> dict[str, Array]:
    """One batch: features filled up with frames of zeros, labels with blanks."""
    batch = len(recordings)
    features = np.zeros((batch, config.time, config.features), np.float32)
    label = np.zeros((batch, config.letters), np.int64)
    for row, recording in enumerate(recordings):
        features[row, : len(recording.features)] = recording.features
        label[row, : len(recording.label)] = recording.label
    return {
        "features": features,
        "frames": np.array([len(item.features) for item in recordings], np.int64),
        "label": label,
        "label_length": np.array([len(item.label) for item in recordings], np.int64),
    }


def encode(text: str) -> Array:
    """The ids of the letters of ``text``, int64. Raises ValueError, with the letter, at others."""
    return np.array([ALPHABET.index(letter) for letter in text], np.int64)


def shortest(label: Array) -> int:
    """The fewest frames that can show ``label``: one a letter, and a blank between equal ones."""
    return len(label) + int((label[1:] == label[:-1]).sum())


# -- the default -------------------------------------------------------------------------------


def spoken(config: Config, needed: int, seed: int) -> tuple[list[Recording], str]:
    """``needed`` recordings, at most POOL, of sentences by eSpeak NG, and what they are.

    Fewer are the first ones of more. Raises DataError where no sentence is short enough.
    """
    wanted = min(needed, POOL)
    found: list[Recording] = []
    version = ""
    chunk = 0
    while len(found) < wanted:
        version, recordings = _spoken(config, seed, chunk)
        found += recordings
        chunk += 1
        if not found and chunk == ATTEMPTS:
            raise DataError(
                f"eSpeak NG: no sentence fits into {config.time} frames of 20 ms and "
                f"{config.letters} letters"
            )
    return found[:wanted], f"sentences spoken by eSpeak NG {version}, made with seed {seed}"


@functools.lru_cache(maxsize=32)
def _spoken(config: Config, seed: int, chunk: int) -> tuple[str, list[Recording]]:
    """eSpeak's version and those of one run's recordings that fit. Callers change nothing."""
    words = stream("data", seed, f"speech/{chunk}").random_raw(CHUNK * (config.letters + 4))
    utterances = [utterance(config, row) for row in words.reshape(CHUNK, -1).tolist()]
    speech = audio.speak(utterances)
    found = []
    for said, sound in zip(utterances, speech.sounds, strict=True):
        label = encode(said.text)
        frames = audio.frame_count(len(sound), speech.rate)
        if len(label) <= config.letters and shortest(label) <= frames <= config.time:
            made = audio.features(sound, speech.rate, config.features, said.text)
            found.append(Recording(made, label))
    return speech.version, found


def utterance(config: Config, words: Sequence[int]) -> audio.Utterance:
    """A sentence about as long as ``config`` has room for, and how it is said.

    ``words`` are random, of 64 bits each: four, and one for each word of the sentence.
    """
    voice = VOICES[below(len(VOICES), words[0])]
    speed = SPEEDS[0] + below(SPEEDS[1] - SPEEDS[0] + 1, words[1])
    pitch = PITCHES[0] + below(PITCHES[1] - PITCHES[0] + 1, words[2])
    room = config.time * speed // (175 * FRAMES_PER_WORD)
    length = max(1, room - below(3, words[3]))
    text = sentence(length, words[4:])
    while len(text) > config.letters and length > 1:
        length -= 1
        text = sentence(length, words[4:])
    return audio.Utterance(text, voice, speed, pitch)


def sentence(length: int, words: Sequence[int]) -> str:
    """``length`` words of "find two red cats and six green books": always the last of such."""
    slots: tuple[tuple[str, ...], ...] = (THINGS, COLOURS, NUMBERS, ("and",))
    chosen = [slots[place % 4] for place in range(length)]
    if length % 4 == 0:
        chosen[-1] = VERBS
    picked = [slot[below(len(slot), word)] for slot, word in zip(chosen, words, strict=False)]
    return " ".join(reversed(picked))


# -- the user's recordings ---------------------------------------------------------------------


def recorded(path: Path, config: Config, needed: int, seed: int) -> tuple[list[Recording], str]:
    """``needed`` recordings of the user, or all that fit, and what they are.

    All transcripts are read; recordings are opened in an order that ``seed`` gives until there are
    enough. One of more frames or letters than ``config`` has is left out.
    """
    found_entries = entries(path)
    first = found_entries[0].path
    rate, _ = audio.measured(first)
    found: list[Recording] = []
    skipped = 0
    total = len(found_entries)
    for index in shuffled(total, total, seed, "recordings").tolist():
        if len(found) == needed:
            break
        recording = _recording(found_entries[index], config, first, rate)
        if recording is None:
            skipped += 1
        else:
            found.append(recording)
    limits = f"more than {config.time} frames of 20 ms or {config.letters} letters"
    if not found:
        raise DataError(f"{path}: every one of its {skipped} recordings has {limits}")
    description = f"recordings of {path}, shuffled with seed {seed}"
    if skipped:
        description += f", {skipped} of {limits} left out"
    return found, description


def _recording(entry: Entry, config: Config, first: Path, rate: int) -> Recording | None:
    """What ``entry`` names; None where it is longer than ``config`` allows."""
    own, samples = audio.measured(entry.path)
    if own != rate:
        raise DataError(f"{entry.path}: {own} Hz, but {first} has {rate} Hz; expected one rate")
    frames = audio.frame_count(samples, rate)
    label = encode(entry.text)
    if frames < shortest(label):
        raise DataError(
            f"{entry.where}: {len(label)} letters need at least {shortest(label)} frames, but "
            f"{entry.path} has {frames} of 20 ms: no path through them spells the label, and the "
            "CTC loss would be infinite"
        )
    if frames > config.time or len(label) > config.letters:
        return None
    _, sound = audio.read(entry.path)
    return Recording(audio.features(sound, rate, config.features, str(entry.path)), label)


def entries(path: Path) -> list[Entry]:
    """The lines of all transcripts in ``path`` and below it, in the order of names and lines.

    Raises DataError where there is none, a line cannot be used, names no recording or one that
    was named before, or a recording has no line.
    """
    if not path.is_dir():
        raise DataError(f"{path}: not a folder; {LAYOUT}")
    found: list[Entry] = []
    sounds: list[Path] = []
    for folder, names in _folders(path):
        sounds += [folder / name for name in sorted(names) if name.endswith(".wav")]
        for name in sorted(names):
            if name.endswith(ENDING):
                found += transcript(folder / name, names)
    if not found:
        held = f"{len(sounds)} wav files but no transcript" if sounds else "neither"
        raise DataError(f"{path}: {LAYOUT}; it holds {held}")
    times = Counter(entry.path for entry in found)
    for entry in found:
        if times[entry.path] > 1:
            raise DataError(f"{entry.where}: {entry.path.stem} has {times[entry.path]} lines")
    for sound in sounds:
        if sound not in times:
            raise DataError(f"{sound}: no line of a transcript beside it names it; {LAYOUT}")
    return found


def _folders(path: Path) -> list[tuple[Path, set[str]]]:
    """Every folder from ``path`` down with the names of its files, hidden ones left out."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror})") from error

    found = []
    for folder, below_it, names in os.walk(path, onerror=refuse):
        below_it[:] = sorted(name for name in below_it if not name.startswith("."))
        found.append((Path(folder), {name for name in names if not name.startswith(".")}))
    return found


def transcript(path: Path, beside: set[str]) -> list[Entry]:
    """The lines of one transcript, in lower case; ``beside`` are the files of its folder."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].count(b"\n")
        raise DataError(f"{path}:{before + 1}: not UTF-8; {LAYOUT}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        name, *said = line.split()
        if not said:
            raise DataError(f"{where}: no text after {name}; {LAYOUT}")
        letters = " ".join(said).lower()
        for letter in letters:
            if letter not in ALPHABET[1:]:
                raise DataError(
                    f"{where}: unknown letter {letter!r}; expected a to z, apostrophes and spaces"
                )
        if f"{name}.wav" not in beside:
            other = [f"{name}.{kind}" for kind in ("flac", "mp3") if f"{name}.{kind}" in beside]
            hint = f"; convert {other[0]} to 16-bit wav with one channel" if other else ""
            raise DataError(f"{where}: no {name}.wav beside it{hint}")
        found.append(Entry(where, path.parent / f"{name}.wav", letters))
    if not found:
        raise DataError(f"{path}: empty; {LAYOUT}")
    return found


# -- the baseline ------------------------------------------------------------------------------


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The CTC loss of each batch, in float64, of the same probabilities at every frame.

    The letters share what the blank leaves as often as each occurs in all batches; the share of
    the blank is the one at which the mean loss over all recordings is least.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    if not batches:
        return []
    keys = [
        (int(frames), label[:length].tobytes())
        for batch in batches
        for frames, label, length in zip(
            batch["frames"], batch["label"], batch["label_length"], strict=True
        )
    ]
    # A recording that is shown again has the same loss.
    times = Counter(keys)
    labels = [np.frombuffer(label, np.int64) for _, label in times]
    lengths = np.array([frames for frames, _ in times])
    weights = np.array(list(times.values()))
    counts = np.array([np.bincount(label, minlength=len(ALPHABET)) for label in labels])
    letters = weights @ counts
    frequency = letters / letters.sum()

    def losses(blank: float) -> Array:
        return constant_loss(labels, lengths, np.array([blank, *(1.0 - blank) * frequency[1:]]))

    blank = least(lambda share: float(weights @ losses(share)), 0.001, 0.999)
    found = dict(zip(times, losses(blank).tolist(), strict=True))
    ends = np.cumsum([len(batch["frames"]) for batch in batches])
    each = np.array([found[key] for key in keys])
    return [float(part.mean()) for part in np.split(each, ends[:-1])]


def constant_loss(labels: Sequence[Array], frames: Array, probabilities: Array) -> Array:
    """-log of the sum over all paths (Graves et al. 2006, eq. 3), where no frame differs.

    ``labels`` are ids without padding; ``frames`` is int (n,); ``probabilities`` are of the blank
    and of each letter, above 0 where it occurs. float64 (n,): infinite for too few frames.

    The paths of each length are the coefficients of a power series in z. A letter stays for one
    frame or more, q z / (1 - q z) with its probability q; a blank b for none or more,
    1 / (1 - b z), before the first letter and after each; between equal letters for one or more.
    So n letters with r equal neighbours give b^r z^(n + r) prod(q) times H(z), and H is a product
    of factors 1 / (1 - a z). Its logarithm has the power sums p_k = (n + 1) b^k + sum(q^k) over k
    as coefficients, hence k h_k = sum over j from 1 to k of p_j h_(k-j), all of it positive. With
    z in units that make the largest a 1, h_k is from 1 to the number of ways to choose 2 n of
    frames + n: below 10^210 for 200 letters in 500 frames.
    """
    sizes = np.array([len(label) for label in labels])
    needed = np.array([shortest(label) for label in labels])
    spare = frames - needed
    fixed = np.array([np.log(probabilities[label]).sum() for label in labels])
    fixed += (needed - sizes) * np.log(probabilities[0])
    counts = np.array([np.bincount(label, minlength=len(probabilities)) for label in labels])
    counts[:, 0] = sizes + 1
    factors = np.where(counts > 0, probabilities, 0.0)
    largest = factors.max(axis=1)
    most = max(0, int(spare.max()))
    sums, series = np.zeros((len(labels), most)), np.ones((len(labels), most + 1))
    powers = np.ones_like(factors)
    for k in range(1, most + 1):
        powers *= factors / largest[:, None]
        sums[:, k - 1] = (counts * powers).sum(axis=1)
        series[:, k] = (sums[:, :k] * series[:, k - 1 :: -1]).sum(axis=1) / k
    paths = np.log(series[np.arange(len(labels)), np.maximum(spare, 0)]) + spare * np.log(largest)
    return np.where(spare < 0, np.inf, -(fixed + paths))


def least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where ``function`` is least between ``low`` and ``high``, to 0.001, by golden sections."""
    share = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 0.001:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return (low + high) / 2.0
