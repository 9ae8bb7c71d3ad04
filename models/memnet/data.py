"""The memory network's stories: generated to bAbI task 1's grammar, or the user's bAbI files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench.data import Batches, locate
from xbench.draws import below, shuffled, stream
from xbench.errors import DataError, unknown
from xbench.models.memnet import PAD, SPEC, Config

Array = np.ndarray[Any, Any]
Words = tuple[str, ...]

BASELINE_NAME = "answer frequencies"
EMBEDDED = "stories"
"""The name of the default; as a source it wins over XBENCH_DATA."""

HOMES = {"john": "kitchen", "mary": "bedroom", "sandra": "garden", "daniel": "hallway"}
"""Where everybody is before a story begins, which no story tells."""
PLACES = ("bedroom", "kitchen", "garden", "hallway", "bathroom", "office")
MOVES = ("went to", "went back to", "journeyed to", "moved to", "travelled to")
QUESTIONS = 5
"""Questions of a story: one after every two moves."""
WORDS = 3
"""Random words of one move: who, where to, and how it is said."""

FOLDERS = (".", "en", "en-10k", "tasks_1-20_v1-2/en", "tasks_1-20_v1-2/en-10k")
"""Where the files may lie below the named folder; the first that has some is read."""
PATTERN = "qa*_train.txt"
NUMBERED = re.compile(r"([0-9]{1,9})\s+(.+)", re.DOTALL)
WORD = re.compile(r"[^\s.,?!]+")
LINE = r"expected lines like '1 Mary moved to the bathroom.' and '3 Where is Mary?\tbathroom\t1'"


class Question(NamedTuple):
    """What was said before a question, the question itself and its answer, all in lower case."""

    story: tuple[Words, ...]
    query: Words
    answer: str


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of questions, each with the latest sentences of its story.

    ``story`` is int64 (batch, sentences, words), the latest sentence first, ``query`` int64 (batch,
    words) and ``answer`` int64 (batch): ids of words, with ``PAD`` behind the words of a sentence
    and behind the sentences of a story. ``source`` is a bAbI file, a folder with one, ``"stories"``
    or None: then what XBENCH_DATA holds for the model, else generated stories. ``seed`` makes the
    stories, or the order of the user's questions, none of which comes again before all were used.
    Raises DataError, naming file and line, for data that cannot be used.
    """
    path = None if source == EMBEDDED else locate(SPEC.name, source)
    needed = batch * count
    if path is None:
        used, words = generated(seed, needed), vocabulary()
        description = f"stories generated to the grammar of bAbI task 1 with seed {seed}"
    else:
        file = find(path)
        questions = read(file, config)
        words = by_frequency(questions)
        if len(words) + 1 > config.vocabulary:
            raise too_large(
                str(file), "ids of words and padding", 1 + len(words), "vocabulary", config
            )
        used = [questions[index] for index in shuffled(len(questions), needed, seed, "questions")]
        description = f"{len(questions):,} questions of {file}, shuffled with seed {seed}"
        if len(questions) < needed:
            description += f", repeated to fill {needed:,}"
    ids = {word: number for number, word in enumerate(words, start=PAD + 1)}
    steps = [used[start : start + batch] for start in range(0, needed, batch)]
    return Batches([as_inputs(step, ids, config) for step in steps], description)


def as_inputs(
    questions: Sequence[Question], ids: Mapping[str, int], config: Config
) -> dict[str, Array]:
    """Some questions as one batch."""
    story = np.full((len(questions), config.sentences, config.words), PAD, np.int64)
    query = np.full((len(questions), config.words), PAD, np.int64)
    for row, question in enumerate(questions):
        query[row, : len(question.query)] = [ids[word] for word in question.query]
        latest = question.story[::-1][: config.sentences]
        for place, sentence in enumerate(latest):
            story[row, place, : len(sentence)] = [ids[word] for word in sentence]
    answer = np.array([ids[question.answer] for question in questions], np.int64)
    return {"story": story, "query": query, "answer": answer}


def vocabulary() -> list[str]:
    """Every word that a generated story may have, in the order of the alphabet."""
    moves = {word for move in MOVES for word in move.split()}
    return sorted({*HOMES, *PLACES, *moves, "the", "where", "is"})


def generated(seed: int, needed: int) -> list[Question]:
    """One question of each of ``needed`` stories; fewer are the first of more.

    A story has five times two moves and a question. Who moves and where to is drawn evenly, the
    place again if it is where that person is; a question is about one of those who moved. Which
    of a story's questions is taken is drawn, too.
    """
    size = 2 * QUESTIONS * WORDS + 2
    table = stream("data", seed, EMBEDDED).random_raw(needed * size).reshape(needed, size)
    return [told(row) for row in table.tolist()]


def told(words: Sequence[int]) -> Question:
    """One story up to its question, as random words of 64 bits choose it."""
    moves = 2 * (1 + below(QUESTIONS, words[-1]))
    names, now = tuple(HOMES), dict(HOMES)
    story: list[Words] = []
    for move in range(moves):
        who, where, how = words[move * WORDS : (move + 1) * WORDS]
        name = names[below(len(names), who)]
        elsewhere = [place for place in PLACES if place != now[name]]
        now[name] = elsewhere[below(len(elsewhere), where)]
        story.append((name, *MOVES[below(len(MOVES), how)].split(), "the", now[name]))
    known = sorted({sentence[0] for sentence in story})
    name = known[below(len(known), words[-2])]
    return Question(tuple(story), ("where", "is", name), now[name])


def find(path: Path) -> Path:
    """The bAbI file at ``path``: itself, or in that folder the training questions of a task.

    Of task 1, where a folder has several tasks. Raises DataError, with a list, where it has
    several and not task 1, and where there is none.
    """
    if path.is_file():
        return path
    for name in FOLDERS:
        folder = path / name
        found = sorted(folder.glob(PATTERN), key=task)
        first = [file for file in found if task(file)[0] == 1]
        if len(first or found) == 1:
            return (first or found)[0]
        if found:
            listed = ", ".join(file.name for file in first or found)
            raise DataError(f"{folder}: several tasks: name one of its files: {listed}")
    raise DataError(
        f"{path}: expected a file of bAbI, as in qa1_single-supporting-fact_train.txt, here, in en "
        "or in en-10k; no such file"
    )


def task(file: Path) -> tuple[int, str]:
    """The number in a file's name, and the name: files in the order of their tasks."""
    number = re.match(r"qa(\d+)", file.name)
    return (int(number[1]) if number else 0, file.name)


def read(path: Path, config: Config) -> list[Question]:
    """Every question of a file, with all that its story said before.

    Sentences end at a line; words are what lies between spaces, without full stops, commas and
    question marks. Which sentences support an answer is not read. Raises DataError, naming the
    line, for what is not bAbI, an answer of several words, and a sentence of too many.
    """
    found: list[Question] = []
    story: list[Words] = []
    last = 0
    for number, line in enumerate(decoded(path).split("\n"), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        parts = NUMBERED.fullmatch(line.strip())
        if parts is None:
            raise DataError(f"{where}: not a number and a text; {LINE}")
        if int(parts[1]) not in (1, last + 1):
            after = f"{last + 1}, or 1 where a story begins" if last else "1"
            raise DataError(f"{where}: begins with {parts[1]}; expected {after}")
        last = int(parts[1])
        if last == 1:
            story = []
        text, *rest = parts[2].split("\t")
        words = tuple(WORD.findall(text.lower()))
        if not words:
            raise DataError(f"{where}: says nothing; {LINE}")
        if len(words) > config.words:
            raise too_large(where, "words in a sentence", len(words), "words", config)
        if not rest and not text.endswith("?"):
            story.append(words)
            continue
        answer = WORD.findall(rest[0].lower()) if rest else []
        if not answer:
            raise DataError(f"{where}: a question without an answer; {LINE}")
        if len(answer) > 1:
            raise DataError(
                f"{where}: the answer {rest[0]!r} has several words, and the network gives one; "
                "expected a task whose answers are single words, as all but 8 and 19 are"
            )
        if not story:
            raise DataError(f"{where}: a question about nothing; expected a sentence before it")
        found.append(Question(tuple(story), words, answer[0]))
    if not found:
        raise DataError(f"{path}: has no question; {LINE}")
    return found


def decoded(path: Path) -> str:
    """The text of a file. Raises DataError where it cannot be read, is empty or not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not raw:
        raise DataError(f"{path}: empty; {LINE}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text; {LINE}") from error


def by_frequency(questions: Sequence[Question]) -> list[str]:
    """Every word of a file, the most frequent first; those as frequent by the alphabet.

    A sentence counts once for each question that is asked after it.
    """
    counts: Counter[str] = Counter()
    for question in questions:
        for sentence in (*question.story, question.query, (question.answer,)):
            counts.update(sentence)
    return sorted(counts, key=lambda word: (-counts[word], word))


def too_large(where: str, what: str, count: int, limit: str, config: Config) -> DataError:
    """The error for data beyond the ``limit`` of ``config``, which says what size has room."""
    rooms = {name: getattr(size, limit) for name, size in SPEC.sizes.items()}
    enough = [name for name, room in rooms.items() if room >= count]
    advice = (
        f"--size {enough[0]} has room for {rooms[enough[0]]}" if enough else "no size has that much"
    )
    room = getattr(config, limit)
    return DataError(f"{where}: {count} {what}, and this size has room for {room}; {advice}")


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, of answering every question by the same chances.

    A word's chance is how often it is the answer among those of all batches, by which no other
    chances have as low a loss over all of them.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    answers = np.concatenate([batch["answer"] for batch in batches])
    counts = np.bincount(answers, minlength=config.vocabulary)
    costs = np.log(len(answers)) - np.log(np.maximum(counts, 1))
    return [float(costs[batch["answer"]].sum()) for batch in batches]
