"""Sentences and their translations: numbers spelled by num2words, or two aligned text files.

Aligned files, as WMT's and Tatoeba's are: a sentence a line, and each line of one is the
translation of the same line of the other, as in ``train.en`` and ``train.fr``.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from importlib import metadata
from itertools import chain, combinations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench import draws
from xbench.data import Batches, locate, require
from xbench.draws import below
from xbench.errors import DataError, unknown
from xbench.models.seq2seq import EOS, FIRST_WORD, PAD, SPEC, UNK, Config, log_expected

Array = np.ndarray[Any, Any]
Pair = tuple[Sequence[str], Sequence[str]]
"""The words of a sentence and of its translation."""

BASELINE_NAME = "word frequencies"
EMBEDDED = "numbers"
"""The name of the default; as a source it wins over XBENCH_DATA."""

LONGEST = 15
"""Digits of a number at most: 999 trillion, which French calls billions."""
CENTS = (1, 5, 10, 20, 25, 40, 50, 75, 80, 90, 95, 99)
"""What prices end in."""
RANDOM = 16
"""Random words of 64 bits that a phrase is made of."""
CHUNK = 64
"""Phrases that are drawn at a time."""
POOL = 65536
"""Different phrases at most: more are the same again. A second makes about 5,000."""
ATTEMPTS = 4
"""Chunks with nothing new in them until no more is looked for: few phrases are short."""
CORPUS = 4096
"""Phrases that the default's vocabulary is counted on."""
CORPUS_ROOM = 40
"""What ``source_length`` is for them."""

LINES = 100_000
"""Lines of the user's files that are read at most."""
KNOWN = 0.5
"""The least share of a text that a vocabulary has to know."""
NAMED = ("source.txt", "target.txt")
NAME = re.compile(r"(?P<stem>.+?)\.(?P<language>[A-Za-z]{2,3})(?P<ending>\.txt)?")
"""A text's name: train.en, train.en.txt."""
NO_LANGUAGES = ("bz", "bz2", "csv", "gz", "ids", "md", "tar", "tsv", "txt", "xml", "xz", "zip")
"""Endings that look like one; ``ids`` lie beside the texts in OPUS's archives."""
LAYOUT = (
    "expected two text files with a sentence a line, one for each language: train.en and train.fr, "
    "or source.txt and target.txt"
)

HYPHENS = "-\u2010\u2011"
APOSTROPHES = "'\u2019"


class Corpus(NamedTuple):
    """Pairs of sentences to show, what each side's words are called, and what this is."""

    pairs: Sequence[Pair]
    ids: tuple[Mapping[str, int], Mapping[str, int]]
    description: str


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of ``source`` and ``target``, as ``SPEC`` has them.

    ``source`` is a folder with two aligned texts, the one of them that is to be translated,
    ``"numbers"`` or None: then what XBENCH_DATA holds for this model, else English number phrases
    and their French. ``seed`` chooses the phrases, or the order of the user's sentences; fewer are
    the first ones of more. A pair is shown again only after all were. Ids depend on the texts and
    ``config.vocabulary`` alone. Raises DataError, naming file and line, for unusable data.
    """
    path = None if source == EMBEDDED else locate(SPEC.name, source)
    needed = batch * count
    found = phrases(config, needed, seed) if path is None else texts(path, config, needed, seed)
    description = found.description
    if len(found.pairs) < needed:
        description += f", {len(found.pairs):,} repeated to fill {needed:,}"
    chosen = [found.pairs[index % len(found.pairs)] for index in range(needed)]
    parts = [chosen[start : start + batch] for start in range(0, needed, batch)]
    return Batches([as_inputs(part, found.ids, config) for part in parts], description)


def as_inputs(
    pairs: Sequence[Pair], ids: tuple[Mapping[str, int], Mapping[str, int]], config: Config
) -> dict[str, Array]:
    """One batch: sources reversed behind PAD, targets followed by EOS and PAD."""
    source = np.full((len(pairs), config.source_length), PAD, np.int64)
    target = np.full((len(pairs), config.target_length), PAD, np.int64)
    for row, (said, translated) in enumerate(pairs):
        source[row, config.source_length - len(said) :] = encode(said, ids[0])[::-1]
        target[row, : len(translated) + 1] = [*encode(translated, ids[1]), EOS]
    return {"source": source, "target": target}


def encode(words: Sequence[str], ids: Mapping[str, int]) -> list[int]:
    """The ids of ``words``; UNK for those that are not known."""
    return [ids.get(word, UNK) for word in words]


def fits(pair: Pair, config: Config) -> bool:
    """Whether both sentences have room, the second one together with EOS."""
    return len(pair[0]) <= config.source_length and len(pair[1]) < config.target_length


# -- words -------------------------------------------------------------------------------------


class _Breaks(dict[int, str]):
    """For ``str.translate``: what to write for a letter so that spaces lie between words."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        if letter in HYPHENS:
            written = " "
        elif letter in APOSTROPHES:
            written = "' "
        elif unicodedata.category(letter)[0] in "PS":
            written = f" {letter} "
        else:
            written = letter
        self[code] = written
        return written


_BREAKS = _Breaks()


def tokenise(text: str) -> list[str]:
    """The words of a text, in lower case.

    Words end at spaces and hyphens. An apostrophe ends the word that it belongs to: ``l'homme`` is
    ``l'`` and ``homme``. Every other punctuation mark or symbol is a word of its own.
    """
    return unicodedata.normalize("NFC", text).lower().translate(_BREAKS).split()


def vocabulary(counts: Mapping[str, int], size: int, where: str) -> dict[str, int]:
    """Ids of words by falling count, from FIRST_WORD on and below ``size``; ties by letters.

    Raises DataError where less than half of the text would be known.
    """
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = ordered[: max(0, size - FIRST_WORD)]
    known = sum(counts[word] for word in kept) / sum(counts.values())
    if known < KNOWN:
        raise DataError(
            f"{where}: has {len(counts):,} different words, but a vocabulary of {size} has room "
            f"for {len(kept)}, which are {100 * known:.0f} % of the text; expected at least "
            f"{100 * KNOWN:.0f} % (a larger size has a larger vocabulary)"
        )
    return {word: number for number, word in enumerate(kept, start=FIRST_WORD)}


# -- the default -------------------------------------------------------------------------------


def phrases(config: Config, needed: int, seed: int) -> Corpus:
    """``needed`` different phrases, or as many as there are up to POOL.

    Raises DataError where none is short enough, or the vocabulary is too small.
    """
    wanted = min(needed, POOL)
    counts = corpus()
    ids = (
        vocabulary(counts[0], config.vocabulary, "num2words, English"),
        vocabulary(counts[1], config.vocabulary, "num2words, French"),
    )
    found: dict[str, Pair] = {}
    skipped = chunk = barren = 0
    while len(found) < wanted and barren < ATTEMPTS:
        before = len(found)
        for english, french in drawn(config.source_length, seed, f"seq2seq/{chunk}", CHUNK):
            pair = tokenise(english), tokenise(french)
            if not fits(pair, config):
                skipped += 1
            else:
                found.setdefault(english, pair)
            if len(found) == wanted:
                break
        barren = barren + 1 if len(found) == before else 0
        chunk += 1
    if not found:
        raise DataError(
            f"num2words: no phrase fits into {config.source_length} words of English and "
            f"{config.target_length - 1} of French"
        )
    description = (
        f"numbers in English and French by num2words {metadata.version('num2words')}, "
        f"made with seed {seed}"
    )
    if skipped:
        description += f", {left_out(skipped, config)}"
    return Corpus(list(found.values()), ids, description)


def left_out(count: int, config: Config) -> str:
    """How many pairs are too long, and for what."""
    limits = f"{config.source_length} or {config.target_length - 1} words"
    return f"{count:,} of more than {limits} left out"


@functools.cache
def corpus() -> tuple[Mapping[str, int], Mapping[str, int]]:
    """How often each English and each French word occurs in CORPUS phrases, always the same."""
    english: Counter[str] = Counter()
    french: Counter[str] = Counter()
    for pair in drawn(CORPUS_ROOM, 0, "seq2seq/corpus", CORPUS):
        english.update(tokenise(pair[0]))
        french.update(tokenise(pair[1]))
    return english, french


def drawn(room: int, seed: int, name: str, count: int) -> list[tuple[str, str]]:
    """``count`` phrases in English and French, about up to ``room`` words long."""
    words = draws.stream("data", seed, name).random_raw(count * RANDOM).reshape(count, RANDOM)
    return [KINDS[below(len(KINDS), first)](room, rest) for first, *rest in words.tolist()]


def cardinal(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``minus two thousand and six``: one in eight is below zero."""
    value = number(LONGEST, room, words)
    return spell(-value if below(8, words[3]) == 0 else value)


def ordinal(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``two hundredth``. num2words keeps an s that French drops: not ``deux centsième``."""
    value = 1 + below(31, words[0]) if below(2, words[3]) else number(6, room, words)
    english, french = spell(value, to="ordinal")
    return english, french.replace("vingtsième", "vingtième").replace("centsième", "centième")


def decimal(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``zero point five``."""
    value = number(4, room, words) if below(4, words[3]) else 0
    places = 1 + below(3, words[4])
    return spell(Decimal(f"{value}.{1 + below(10**places - 1, words[5]):0{places}}"))


def year(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``nineteen eighty-five``, which French reads as any other number."""
    return spell(1000 + below(1100, words[0]), to="year")


def price(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``three dollars, twenty-five cents``."""
    cents = 100 * number(4, room, words) + CENTS[below(len(CENTS), words[3])]
    return spell(cents, to="currency", currency=("EUR", "USD")[below(2, words[4])])


def several(room: int, words: Sequence[int]) -> tuple[str, str]:
    """``sixty, seven and forty-one``: below a hundred, where no number has an ``and`` itself."""
    count = 2 + below(max(1, room // 4 - 1), words[0])
    spelled = [spell(below(100, word)) for word in words[1 : 1 + min(count, 10)]]
    english, french = zip(*spelled, strict=True)
    return (
        f"{', '.join(english[:-1])} and {english[-1]}",
        f"{', '.join(french[:-1])} et {french[-1]}",
    )


KINDS: tuple[Callable[[int, Sequence[int]], tuple[str, str]], ...] = (
    cardinal, cardinal, ordinal, decimal, year, price, several,
)  # fmt: skip


def number(digits: int, room: int, words: Sequence[int]) -> int:
    """A number from 1 on of at most so many digits, half as many as words at most; often round.

    How many digits it has, and after how many of them only zeros follow, is equally likely.
    """
    length = 1 + below(max(1, min(digits, room // 2)), words[0])
    leading = 1 + below(length, words[1])
    least: int = 10 ** (leading - 1)
    zeros: int = 10 ** (length - leading)
    return (least + below(9 * least, words[2])) * zeros


@functools.lru_cache(maxsize=1 << 16)
def spell(value: int | Decimal, **kind: str) -> tuple[str, str]:
    """A number in English and in French, by num2words."""
    num2words = require("num2words", "spelling numbers").num2words
    english, french = (num2words(value, lang=language, **kind) for language in ("en", "fr"))
    return english, french


# -- the user's texts --------------------------------------------------------------------------


def texts(path: Path, config: Config, needed: int, seed: int) -> Corpus:
    """``needed`` pairs of the user's texts, or all that fit, in an order that ``seed`` gives."""
    files = find(path)
    everything, more = aligned(*files)
    ids = []
    missing = []
    for side, file in enumerate(files):
        counts = Counter(chain.from_iterable(pair[side].split() for pair in everything))
        ids.append(vocabulary(counts, config.vocabulary, str(file)))
        known = sum(counts[word] for word in ids[-1])
        missing.append(1.0 - known / counts.total())
    fitting = [pair for pair in everything if fits((pair[0].split(), pair[1].split()), config)]
    if not fitting:
        raise DataError(
            f"{files[0]}: none of its {len(everything):,} sentences has at most "
            f"{config.source_length} words and a translation of at most {config.target_length - 1}"
        )
    order = draws.shuffled(len(fitting), min(len(fitting), needed), seed, "sentences").tolist()
    pairs = [(fitting[index][0].split(), fitting[index][1].split()) for index in order]
    description = f"sentences of {files[0]} and {files[1].name}"
    if more:
        description += f", the first {LINES:,} lines"
    description += f", shuffled with seed {seed}"
    if len(fitting) < len(everything):
        description += f", {left_out(len(everything) - len(fitting), config)}"
    if any(missing):
        shares = " and ".join(f"{100 * share:.1f}" for share in missing)
        description += f", {shares} % of the words not in the vocabulary"
    return Corpus(pairs, (ids[0], ids[1]), description)


def aligned(source: Path, target: Path) -> tuple[list[tuple[str, str]], bool]:
    """The sentences of two files, words parted by spaces, and whether there are more than LINES.

    Lines that are empty in both are passed over. Raises DataError, naming file and line, where one
    is empty in one file alone, a file ends before the other, or has no sentences.
    """
    found: list[tuple[str, str]] = []
    files = (source, target)
    for number, pair in enumerate(zip_longest(lines(source), lines(target)), start=1):
        if number > LINES:
            return found, True
        for own, other, line in zip(files, files[::-1], pair, strict=True):
            if line is None and number > 1:
                raise DataError(
                    f"{own}: ends after line {number - 1}, but {other} goes on; expected a "
                    "translation of every line"
                )
            if line is None:
                raise DataError(f"{own}: empty; expected a sentence a line")
        said, translated = (" ".join(tokenise(line)) for line in pair)
        if bool(said) != bool(translated):
            own, other = files if translated else files[::-1]
            raise DataError(
                f"{own}:{number}: no words, but line {number} of {other} has some; expected a "
                "translation of every line"
            )
        if said:
            found.append((said, translated))
    if not found:
        raise DataError(f"{source}: empty; expected a sentence a line")
    return found, False


def lines(path: Path) -> Iterator[str]:
    """The lines of a text one by one. Raises DataError with the first that is not UTF-8."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8; expected UTF-8 text") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def find(path: Path) -> tuple[Path, Path]:
    """The text to translate and its translation at ``path``: a folder, or the first of the two.

    In a folder the language that comes first in the alphabet is translated, or source.txt is.
    Raises DataError where there are no two that belong together, or more than two.
    """
    if path.is_dir():
        found = [pair for group in groups(path) for pair in combinations(group, 2)]
        what, hint = "several pairs of texts", ", or the name of the one to translate: {}"
    else:
        beside = [group for group in groups(path.parent) if path in group]
        found = [(path, other) for group in beside for other in group if other != path]
        what, hint = "several translations", ""
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError(f"{path}: {LAYOUT}; {held(path)}")
    listed = ", ".join(f"{first.name} and {second.name}" for first, second in found)
    raise DataError(
        f"{path}: {what}: {listed}; expected two texts in a folder{hint.format(found[0][0])}"
    )


def held(path: Path) -> str:
    """What there is instead: the first few names of a folder, or nothing beside a file."""
    if not path.is_dir():
        return "no second one lies beside it"
    names = [item.name for item in listing(path)]
    return "it holds " + (", ".join(names[:6]) + ", ..." * (len(names) > 6) or "nothing")


def groups(folder: Path) -> list[list[Path]]:
    """The texts in a folder that have all but the language in common, by language."""
    found: dict[tuple[str, str], list[tuple[str, Path]]] = {}
    for path in listing(folder):
        name = NAME.fullmatch(path.name)
        if not path.is_file():
            continue
        if path.name in NAMED:
            found.setdefault(("", ""), []).append((path.name, path))
        elif name is not None and name["language"].lower() not in NO_LANGUAGES:
            key = name["stem"], name["ending"] or ""
            found.setdefault(key, []).append((name["language"].lower(), path))
    return [[path for _, path in sorted(group)] for _, group in sorted(found.items())]


def listing(folder: Path) -> list[Path]:
    """What lies in a folder, by name, without what is hidden."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror or error})") from error


# -- the baseline ------------------------------------------------------------------------------


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, where every word has the share it has in all batches.

    The logits are the logarithms of these shares at every place: for ``softmax`` there are none
    better that are the same everywhere, and the mean loss is the entropy of the shares. For
    ``sampled-softmax`` they are held against the candidates of the batch, or, where it has none,
    against those of the same step of a training with seed 0.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    if not batches:
        return []
    counts = [word_counts(batch["target"], config.vocabulary) for batch in batches]
    total = np.sum(counts, axis=0)
    share = total / total.sum()
    if loss == "softmax":
        cost = -np.log(np.where(share > 0.0, share, 1.0))
        return [float(count @ cost / count.sum()) for count in counts]
    weight = share / np.exp(log_expected(config))
    size = len(batches[0]["target"])
    steps = draws.steps(SPEC, config, batch=size, count=len(batches), seed=0)
    return [
        sampled_loss(weight, count, batch.get("sampled", step["sampled"]))
        for count, batch, step in zip(counts, batches, steps, strict=True)
    ]


def word_counts(target: Array, vocabulary: int) -> Array:
    """How often each id occurs as a target: float64 (vocabulary,); fillings do not count."""
    found = np.bincount(target.ravel(), minlength=vocabulary).astype(np.float64)
    found[PAD] = 0.0
    return found


def sampled_loss(weight: Array, count: Array, sampled: Array) -> float:
    """The mean sampled-softmax loss, in float64, of targets that occur ``count`` times.

    ``weight`` holds the exponentials of the corrected logits (Jean et al. 2015): for each word its
    share, divided by how often it is expected in ``sampled``. A target of weight v costs
    log(1 + w / v), w being the weight of the candidates that are other words, each as often as it
    was drawn.
    """
    times = np.bincount(sampled, minlength=len(weight))
    others = times @ weight - times * weight
    seen = count > 0.0
    # Where a target is nearly all that was drawn, rounding may go below 0.
    cost = np.log1p(np.maximum(others[seen], 0.0) / weight[seen])
    return float(count[seen] @ cost / count.sum())


def baseline_note(loss: str) -> str:
    """What a reader of the baseline must know; empty if nothing."""
    return "against the candidates of seed 0" if loss == "sampled-softmax" else ""
