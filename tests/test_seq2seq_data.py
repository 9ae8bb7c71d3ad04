"""Sentences and translations: the pinned default, texts in every layout, faults, the baseline."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import draws
from xbench.data import Batches, digest
from xbench.errors import DataError, UsageError
from xbench.models.seq2seq import EOS, FIRST_WORD, GO, PAD, SPEC, UNK, Config, data, log_expected

pytest.importorskip("num2words")

Array = np.ndarray[Any, Any]

CONFIG = Config(
    vocabulary=120, samples=16, hidden=4, layers=2, embedding=4, source_length=12, headroom=4
)
DEFAULT_SEED_0 = "ae1e5d844c3aeb1882575c362f81497f07f7f0a360d7e7da64bac810ae4d658b"
FIRST_PHRASES = [
    ("seven thousand point one four two", "sept mille virgule un quatre deux"),
    ("zero point one eight", "zéro virgule un huit"),
    (
        "seven thousand dollars , ninety five cents",
        "sept mille dollars et quatre vingt quinze cents",
    ),
    ("second", "deuxième"),
]
ENGLISH = ["A cat.", "The black cat!", "Two cats and a dog"]
FRENCH = ["Un chat.", "Le chat noir !", "Deux chats et un chien"]


def load(
    source: str | Path | None = None,
    *,
    batch: int = 3,
    count: int = 1,
    seed: int = 0,
    **changed: int,
) -> Batches:
    config = dataclasses.replace(CONFIG, **changed)
    text = None if source is None else str(source)
    return data.load(config, batch=batch, count=count, seed=seed, source=text)


def whole(batches: Batches, name: str) -> Array:
    return np.concatenate([batch[name] for batch in batches.inputs])


def sentences(batches: Batches, ids: tuple[Mapping[str, int], Mapping[str, int]]) -> list[Any]:
    """Pairs of sentences as they were before they became ids; fillings must be where they are."""
    names = [{number: word for word, number in side.items()} | {UNK: "?"} for side in ids]
    found = []
    for source, target in zip(whole(batches, "source"), whole(batches, "target"), strict=True):
        said = source[np.argmax(source != PAD) :][::-1]
        end = target.tolist().index(EOS)
        assert not target[end + 1 :].any()
        found.append(
            (
                " ".join(names[0][number] for number in said),
                " ".join(names[1][number] for number in target[:end]),
            )
        )
    return found


def default_ids(size: int = 120) -> tuple[dict[str, int], dict[str, int]]:
    english, french = data.corpus()
    return data.vocabulary(english, size, ""), data.vocabulary(french, size, "")


def default(**asked: Any) -> list[Any]:
    """Pairs of the default."""
    return sentences(load("numbers", **asked), default_ids(asked.get("vocabulary", 120)))


def ids_of(*files: Path, size: int = 120) -> tuple[dict[str, int], dict[str, int]]:
    """The ids of two texts' words by counting, in the order they are told to have."""
    found = []
    for file in files:
        words = data.tokenise(file.read_text())
        ordered = sorted(set(words), key=lambda word: (-words.count(word), word))
        found.append(dict(zip(ordered, range(FIRST_WORD, size), strict=False)))
    return found[0], found[1]


def write(
    folder: Path,
    english: Sequence[str] = ENGLISH,
    french: Sequence[str] = FRENCH,
    names: tuple[str, str] = ("train.en", "train.fr"),
) -> tuple[Path, Path]:
    """Two texts, a sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (english, french), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return folder / names[0], folder / names[1]


class TestNumbers:
    def test_the_default_is_pinned(self) -> None:
        """The same bits wherever num2words is 0.5.14; a change here changes every result."""
        batches = load(batch=32)
        assert digest(batches.inputs[0]) == DEFAULT_SEED_0
        assert batches.description.startswith("numbers in English and French by num2words 0.")
        assert "made with seed 0" in batches.description

    def test_what_it_says(self) -> None:
        assert default(batch=4) == FIRST_PHRASES

    @pytest.mark.parametrize("batch", [1, 5])
    def test_shapes_types_and_ranges(self, batch: int) -> None:
        batches = load(batch=batch, count=3, seed=1)
        assert len(batches.inputs) == 3
        wanted = (*SPEC.inputs(CONFIG), *SPEC.targets(CONFIG))
        for found in batches.inputs:
            assert list(found) == [item.name for item in wanted]
            for item in wanted:
                array = found[item.name]
                assert array.shape == item.of(CONFIG, batch)
                assert array.dtype == item.dtype
                assert array.flags.c_contiguous
                assert array.min() >= 0
                assert array.max() < CONFIG.vocabulary
                assert not (array == GO).any()
            assert (found["source"] != EOS).all()

    def test_sources_are_reversed_behind_fillings_and_targets_end(self) -> None:
        ids = {"one": 4, "two": 5}, {"un": 4, "deux": 5}
        config = dataclasses.replace(CONFIG, source_length=4, headroom=1)
        pairs = [(["one", "two", "?"], ["un", "deux"]), (["two"] * 4, ["deux"] * 4)]
        found = data.as_inputs(pairs, ids, config)
        assert found["source"].tolist() == [[PAD, UNK, 5, 4], [5, 5, 5, 5]]
        assert found["target"].tolist() == [[4, 5, EOS, PAD, PAD], [5, 5, 5, 5, EOS]]

    def test_no_pair_comes_twice_and_fewer_are_the_first_of_more(self) -> None:
        more = default(batch=100, count=4)
        assert len(set(more)) == 400
        assert default(batch=8, count=5) == more[:40]
        assert default(batch=1) == more[:1]

    def test_the_seed_chooses(self) -> None:
        found = [set(default(batch=50, seed=seed)) for seed in range(3)]
        assert len(set.union(*found)) > 100

    @pytest.mark.parametrize("length", [3, 8, 40])
    def test_every_word_is_known_and_ids_do_not_depend_on_lengths(self, length: int) -> None:
        """76 ids are enough, of which 4 are no words; any length has the words of them all."""
        for seed in range(3):
            batches = load(
                vocabulary=76, source_length=length, headroom=8, batch=200, count=2, seed=seed
            )
            assert not any((array == UNK).any() for b in batches.inputs for array in b.values())
            for said, translated in sentences(batches, default_ids(76)):
                assert said
                assert translated

    def test_sentences_are_of_many_lengths(self) -> None:
        batches = load(source_length=40, headroom=10, batch=300)
        lengths = (whole(batches, "source") != PAD).sum(axis=1)
        assert lengths.min() == 1
        assert lengths.max() > 24

    def test_frequent_words_have_small_ids(self) -> None:
        for counts, ids in zip(data.corpus(), default_ids(), strict=True):
            ordered = [counts[word] for word in sorted(ids, key=lambda word: ids[word])]
            assert ordered == sorted(ordered, reverse=True)
            assert sorted(ids.values()) == list(range(FIRST_WORD, FIRST_WORD + len(counts)))

    def test_rare_words_are_unknown(self) -> None:
        """The ids of the others stay as they are."""
        many, few = (whole(load(vocabulary=size, batch=300), "source") for size in (120, 40))
        np.testing.assert_array_equal(few, np.where(many < 40, many, UNK))
        assert (few == UNK).any()

    def test_short_lengths_leave_out_and_then_repeat(self) -> None:
        batches = load(source_length=2, headroom=1, batch=150, count=2)
        pairs = sentences(batches, default_ids())
        distinct = len(set(pairs))
        assert 20 < distinct < 150
        assert pairs == (pairs[:distinct] * 300)[:300]
        assert batches.description.endswith(f" words left out, {distinct} repeated to fill 300")
        few = load(source_length=2, headroom=1, batch=7)
        assert sentences(few, default_ids()) == pairs[:7]

    def test_what_is_left_out_is_counted(self) -> None:
        """One at a time: phrases of which the first does not fit."""
        spoken = data.drawn(4, 0, "seq2seq/0", data.CHUNK)
        fitting = [
            len(data.tokenise(english)) <= 4 and len(data.tokenise(french)) <= 5
            for english, french in spoken
        ]
        third = [index for index, fits in enumerate(fitting) if fits][2]
        found = load(source_length=4, headroom=2, batch=3).description
        assert third > 2
        assert found.endswith(f", {third - 2} of more than 4 or 5 words left out")

    def test_no_room(self) -> None:
        with pytest.raises(DataError, match="no phrase fits into 1 words of English and 0 of"):
            load(source_length=1, headroom=0)

    @pytest.mark.parametrize("size", [0, 4, 5, 8])
    def test_a_vocabulary_too_small(self, size: int) -> None:
        expected = rf"English: has 72 different words, .* of {size} has room for {max(0, size - 4)}"
        with pytest.raises(DataError, match=expected):
            load(vocabulary=size)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "num2words", None)
        data.spell.cache_clear()
        data.corpus.cache_clear()
        with pytest.raises(DataError, match=r"spelling numbers needs pip install 'xbench\[data\]'"):
            load()

    def test_the_same_in_another_process(self) -> None:
        program = (
            "from xbench.data import digest\n"
            "from xbench.models.seq2seq import Config, data\n"
            f"batches = data.load({CONFIG!r}, batch=32, count=1, seed=0, source=None)\n"
            "print(digest(batches.inputs[0]))"
        )
        run = [sys.executable, "-c", program]
        assert subprocess.check_output(run, text=True).strip() == DEFAULT_SEED_0


class TestSpelling:
    """Known truths of both languages."""

    @pytest.mark.parametrize(
        ("value", "english", "french"),
        [
            (71, "seventy-one", "soixante et onze"),
            (80, "eighty", "quatre-vingts"),
            (10**9, "one billion", "un milliard"),
            (2 * 10**12, "two trillion", "deux billions"),
            (-3, "minus three", "moins trois"),
        ],
    )
    def test_numbers(self, value: int, english: str, french: str) -> None:
        assert data.spell(value) == (english, french)

    @pytest.mark.parametrize(
        ("value", "french"),
        [
            (1, "premier"),
            (3, "troisième"),
            (21, "vingt et unième"),
            (80, "quatre-vingtième"),
            (200, "deux centième"),
            (2000, "deux millième"),
        ],
    )
    def test_ordinals_without_the_plural(
        self, monkeypatch: pytest.MonkeyPatch, value: int, french: str
    ) -> None:
        monkeypatch.setattr(data, "number", lambda *_: value)
        assert data.ordinal(12, [0] * data.RANDOM)[1] == french

    def test_kinds(self) -> None:
        """The least of each kind: random words of zeros; and the greatest."""
        least, greatest = ([word] * data.RANDOM for word in (0, 2**64 - 1))
        assert data.cardinal(40, least) == ("minus one", "moins un")
        assert data.ordinal(40, greatest) == ("thirty-first", "trente et unième")
        assert data.decimal(40, least) == ("zero point one", "zéro virgule un")
        assert data.year(40, least) == ("one thousand", "mille")
        assert data.year(40, greatest) == (
            "twenty ninety-nine",
            "deux mille quatre-vingt-dix-neuf",
        )
        assert data.price(40, least) == ("one euro, one cent", "un euro et un centime")
        assert data.several(8, least) == ("zero and zero", "zéro et zéro")
        assert data.several(40, greatest)[0].count("ninety-nine") == 10

    def test_numbers_have_as_many_digits_as_there_is_room_for(self) -> None:
        greatest = [2**64 - 1] * 3
        assert data.number(15, 40, greatest) == 10**15 - 1
        assert data.number(15, 12, greatest) == 10**6 - 1
        assert data.number(4, 12, greatest) == 9999
        assert data.number(15, 1, greatest) == 9
        assert data.number(15, 40, [2**64 - 1, 0, 0]) == 10**14
        assert data.number(15, 40, [0, 0, 0]) == 1

    def test_no_phrase_uses_more_random_words_than_it_is_given(self) -> None:
        for kind in data.KINDS:
            for room in (1, 8, 40, 400):
                for word in (0, 2**63, 2**64 - 1):
                    assert all(kind(room, [word] * (data.RANDOM - 1)))


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("Twenty-one, please!", "twenty one , please !"),
            ("L'homme d\u2019État n'a pas dit «oui».", "l' homme d' état n' a pas dit « oui » ."),
            ("It's $3.50\tnow\r\n", "it' s $ 3 . 50 now"),
            ("yes - no \u2014 perhaps", "yes no \u2014 perhaps"),
            ("E\u0301te\u0301", "été"),
            ("नमस्ते दुनिया।", "नमस्ते दुनिया ।"),
            ("  \u00a0\u2003 ", ""),
            ("...", ". . ."),
        ],
    )
    def test_tokenise(self, text: str, words: str) -> None:
        assert data.tokenise(text) == words.split()

    @given(st.text())
    def test_words_stay_words(self, text: str) -> None:
        words = data.tokenise(text)
        assert data.tokenise(" ".join(words)) == words

    def test_vocabulary(self) -> None:
        counts = {"b": 3, "c": 5, "a": 3, "d": 1}
        assert data.vocabulary(counts, 8, "") == {"c": 4, "a": 5, "b": 6, "d": 7}
        assert data.vocabulary(counts, 100, "") == {"c": 4, "a": 5, "b": 6, "d": 7}
        assert data.vocabulary(counts, 6, "") == {"c": 4, "a": 5}
        with pytest.raises(DataError, match=r"^x: has 4 .* for 1, which are 42 % of the text"):
            data.vocabulary(counts, 5, "x")


class TestTexts:
    def test_a_folder(self, tmp_path: Path) -> None:
        files = write(tmp_path)
        batches = load(tmp_path)
        expected = {
            ("a cat .", "un chat ."),
            ("the black cat !", "le chat noir !"),
            ("two cats and a dog", "deux chats et un chien"),
        }
        assert set(sentences(batches, ids_of(*files))) == expected
        assert batches.description == f"sentences of {files[0]} and train.fr, shuffled with seed 0"

    @pytest.mark.parametrize(
        "names",
        [
            ("train.en", "train.fr"),
            ("Tatoeba.en-fr.en", "Tatoeba.en-fr.fr"),
            ("corpus.eng", "corpus.fra"),
            ("news.en.txt", "news.fr.txt"),
            ("source.txt", "target.txt"),
            ("a.de", "a.EN"),
        ],
    )
    def test_layouts(self, tmp_path: Path, names: tuple[str, str]) -> None:
        """Whatever else lies there: other endings, folders, hidden files, and one text alone."""
        files = write(tmp_path, names=names)
        for other in (
            "README.md",
            "train.en-fr.ids",
            "LICENSE",
            "a.tsv",
            ".x.de",
            ".x.en",
            "dev.en",
        ):
            (tmp_path / other).write_text("other\n")
        (tmp_path / "train.de").mkdir()
        assert data.find(tmp_path) == files
        assert data.find(files[0]) == files
        assert data.find(files[1]) == files[::-1]

    def test_the_direction_can_be_told(self, tmp_path: Path) -> None:
        files = write(tmp_path)
        there, back = load(files[0]), load(files[1])
        ids = ids_of(*files)
        assert sentences(back, ids[::-1]) == [pair[::-1] for pair in sentences(there, ids)]

    def test_of_several_pairs_one_is_named(self, tmp_path: Path) -> None:
        write(tmp_path)
        files = write(tmp_path, names=("dev.en", "dev.fr"))
        assert data.find(files[0]) == files

    def test_a_relative_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path)
        monkeypatch.chdir(tmp_path)
        assert data.find(Path("train.en")) == (Path("train.en"), Path("train.fr"))
        assert len(load(".").inputs) == 1

    def test_the_folder_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "seq2seq")
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert "train.en and train.fr" in load().description
        assert "num2words" in load("numbers").description

    def test_the_order_comes_from_the_seed_and_none_comes_again_early(self, tmp_path: Path) -> None:
        lines = [f"w{index}" for index in range(20)]
        files = write(tmp_path, lines, lines)
        orders = []
        for seed in range(3):
            pairs = sentences(load(tmp_path, batch=10, count=5, seed=seed), ids_of(*files))
            orders.append(pairs)
            assert sorted(pairs[:20]) == sorted((line, line) for line in lines)
            assert pairs[20:40] == pairs[:20]
            assert sentences(load(tmp_path, batch=7, seed=seed), ids_of(*files)) == pairs[:7]
        assert orders[0] != orders[1] != orders[2] != orders[0]
        description = load(tmp_path, batch=10, count=5).description
        assert description.endswith("shuffled with seed 0, 20 repeated to fill 50")

    def test_what_is_too_long_is_left_out(self, tmp_path: Path) -> None:
        """Either side; words of theirs have ids all the same."""
        english = ["a a a", "a a", "a a b", "a"]
        french = ["x", "x x x", "x x", "x x x x"]
        files = write(tmp_path, english, french)
        batches = load(tmp_path, source_length=3, headroom=0, batch=2)
        assert sorted(sentences(batches, ids_of(*files))) == [("a a a", "x"), ("a a b", "x x")]
        assert batches.description.endswith(", 2 of more than 3 or 2 words left out")

    def test_rare_words_are_unknown_and_counted(self, tmp_path: Path) -> None:
        files = write(tmp_path, ["a a a b", "a c"], ["x x", "x x"])
        batches = load(tmp_path, vocabulary=5, batch=2)
        found = sentences(batches, ids_of(*files, size=5))
        assert sorted(found) == [("a ?", "x x"), ("a a a ?", "x x")]
        assert batches.description.endswith(", 33.3 and 0.0 % of the words not in the vocabulary")

    def test_line_ends_marks_and_empty_pairs(self, tmp_path: Path) -> None:
        """Windows' line ends, a byte order mark, no end of the last line, a line empty in both."""
        (tmp_path / "a.en").write_bytes(b"\xef\xbb\xbfone\r\n\r\n- \r\ntwo\xe2\x80\xa8three")
        (tmp_path / "a.fr").write_bytes(b"un\n \n\ndeux trois\n")
        batches = load(tmp_path, batch=2)
        ids = {"one": 4, "three": 5, "two": 6}, {"deux": 4, "trois": 5, "un": 6}
        assert sorted(sentences(batches, ids)) == [("one", "un"), ("two three", "deux trois")]

    def test_of_long_files_the_beginning_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data, "LINES", 2)
        write(tmp_path, [*ENGLISH[:2], ""], FRENCH)
        batches = load(tmp_path)
        assert ", the first 2 lines, shuffled with seed 0, 2 repeated" in batches.description
        write(tmp_path, ENGLISH[:2], FRENCH[:2])
        assert "first" not in load(tmp_path).description


class TestFaults:
    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            load(tmp_path / "nowhere")

    def test_a_folder_without_a_pair(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"expected two text files .*; it holds nothing$"):
            load(tmp_path)
        for name in ("train.en", "dev.fr", "a.txt", "b.txt", "c.zip", "d.zip", "e"):
            (tmp_path / name).write_text("text\n")
        held = r"it holds a.txt, b.txt, c.zip, d.zip, dev.fr, e, \.\.\.$"
        with pytest.raises(DataError, match=held) as found:
            load(tmp_path)
        assert str(found.value).startswith(f"{tmp_path}: ")

    def test_a_file_alone(self, tmp_path: Path) -> None:
        write(tmp_path)
        for name in ("dev.en", "train.tsv"):
            (tmp_path / name).write_text("text\n")
            with pytest.raises(DataError, match=rf"{name}: .*; no second one lies beside it"):
                load(tmp_path / name)

    def test_several_pairs(self, tmp_path: Path) -> None:
        write(tmp_path)
        write(tmp_path, names=("dev.en", "dev.fr"))
        listed = "several pairs of texts: dev.en and dev.fr, train.en and train.fr; expected two"
        with pytest.raises(DataError, match=rf"{listed} .* translate: {tmp_path}/dev.en$"):
            load(tmp_path)

    def test_three_languages(self, tmp_path: Path) -> None:
        files = write(tmp_path)
        (tmp_path / "train.de").write_text("ein\n")
        listed = "train.de and train.en, train.de and train.fr, train.en and train.fr"
        with pytest.raises(DataError, match=f"several pairs of texts: {listed}"):
            load(tmp_path)
        listed = "several translations: train.en and train.de, train.en and train.fr; expected two"
        with pytest.raises(DataError, match=listed):
            load(files[0])

    @pytest.mark.parametrize("side", [0, 1])
    def test_one_file_ends_first(self, tmp_path: Path, side: int) -> None:
        files = write(tmp_path)
        text = files[side].read_text().splitlines(keepends=True)
        files[side].write_text("".join(text[:2]))
        expected = f"{files[side]}: ends after line 2, but {files[1 - side]} goes on; expected a "
        with pytest.raises(DataError) as found:
            load(tmp_path)
        assert str(found.value).startswith(expected)

    @pytest.mark.parametrize("side", [0, 1])
    def test_an_empty_file(self, tmp_path: Path, side: int) -> None:
        files = write(tmp_path)
        files[side].write_bytes(b"")
        with pytest.raises(DataError, match=f"^{files[side]}: empty; expected a sentence a line$"):
            load(tmp_path)

    @pytest.mark.parametrize("content", ["", "\n\n", " \n--\n"])
    def test_nothing_in_both(self, tmp_path: Path, content: str) -> None:
        for file in write(tmp_path):
            file.write_text(content)
        with pytest.raises(DataError, match=r"train\.en: empty; expected a sentence a line$"):
            load(tmp_path)

    @pytest.mark.parametrize("side", [0, 1])
    @pytest.mark.parametrize("line", ["", "  ", "-"])
    def test_an_empty_line_of_one(self, tmp_path: Path, side: int, line: str) -> None:
        texts = [list(ENGLISH), list(FRENCH)]
        texts[side][1] = line
        files = write(tmp_path, texts[0], texts[1])
        expected = f"^{files[side]}:2: no words, but line 2 of {files[1 - side]} has some; "
        with pytest.raises(DataError, match=expected):
            load(tmp_path)

    @pytest.mark.parametrize("side", [0, 1])
    def test_not_utf_8(self, tmp_path: Path, side: int) -> None:
        files = write(tmp_path)
        text = files[side].read_text().splitlines()
        files[side].write_bytes("\n".join([*text[:2], "été"]).encode("latin-1"))
        with pytest.raises(DataError, match=f"^{files[side]}:3: not UTF-8; expected UTF-8 text$"):
            load(tmp_path)
        files[side].write_bytes("\n".join(text).encode("utf-16"))
        with pytest.raises(DataError, match=f"^{files[side]}:1: not UTF-8"):
            load(tmp_path)

    @pytest.mark.parametrize("side", [0, 1])
    def test_a_vocabulary_too_small(self, tmp_path: Path, side: int) -> None:
        texts = [["a"], ["a"]]
        texts[side] = ["a b c"]
        files = write(tmp_path, texts[0], texts[1])
        expected = f"{files[side]}: has 3 different words, but a vocabulary of 5 has room for 1, "
        with pytest.raises(DataError) as found:
            load(tmp_path, vocabulary=5)
        assert str(found.value).startswith(f"{expected}which are 33 % of the text; expected at ")

    def test_nothing_fits(self, tmp_path: Path) -> None:
        files = write(tmp_path)
        expected = (
            f"{files[0]}: none of its 3 sentences has at most 2 words and a translation of at "
            "most 3"
        )
        with pytest.raises(DataError) as found:
            load(tmp_path, source_length=2, headroom=2)
        assert str(found.value) == expected

    def test_what_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path)

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", refuse)
            with pytest.raises(DataError, match=r"en: cannot be read \(Permission denied\)"):
                load(tmp_path)
        monkeypatch.setattr(Path, "iterdir", refuse)
        with pytest.raises(DataError, match=rf"{tmp_path}: cannot be listed \(Permission denied\)"):
            load(tmp_path)

    @given(content=st.binary(max_size=60))
    def test_any_bytes_are_data_or_an_error(
        self, tmp_path_factory: pytest.TempPathFactory, content: bytes
    ) -> None:
        folder = tmp_path_factory.getbasetemp() / "bytes"
        files = write(folder)
        files[1].write_bytes(content)
        try:
            said = load(folder).description
        except DataError as error:
            said = str(error).split(": ")[0]
        assert str(files[0]) in said or str(files[1]) in said


def entropy(counts: Sequence[int]) -> float:
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts if n)


class TestBaseline:
    TARGETS = (
        np.array([[4, 4, EOS, 0], [5, EOS, 0, 0]]),
        np.array([[4, 5, 6, EOS], [4, EOS, 0, 0]]),
    )

    def test_softmax_by_hand(self) -> None:
        """Of 11 words four are EOS, four the first, two the second and one the third."""
        batches = [{"target": target} for target in self.TARGETS]
        cost = {EOS: math.log(11 / 4), 4: math.log(11 / 4), 5: math.log(11 / 2), 6: math.log(11)}
        expected = [
            (2 * cost[4] + cost[5] + 2 * cost[EOS]) / 5,
            (2 * cost[4] + cost[5] + cost[6] + 2 * cost[EOS]) / 6,
        ]
        assert data.baseline(batches, "softmax", CONFIG) == pytest.approx(expected, rel=1e-14)

    def test_softmax_is_the_entropy_of_the_words(self) -> None:
        batches = load(batch=40, count=3).inputs
        words = np.concatenate([batch["target"].ravel() for batch in batches])
        weights = [(batch["target"] != PAD).sum() for batch in batches]
        found = data.baseline(batches, "softmax", CONFIG)
        expected = entropy(np.bincount(words)[1:].tolist())
        assert np.average(found, weights=weights) == pytest.approx(expected, rel=1e-12)

    def test_equal_words_cost_the_logarithm_of_their_number(self) -> None:
        batches = [{"target": np.array([[4, EOS], [5, EOS], [6, EOS]])}]
        expected = (math.log(6) + math.log(2)) / 2
        assert data.baseline(batches, "softmax", CONFIG) == pytest.approx([expected], rel=1e-14)

    def test_one_word_costs_nothing(self) -> None:
        batches = [{"target": np.array([[EOS, PAD], [EOS, PAD]])}]
        for loss in SPEC.losses:
            assert data.baseline(batches, loss, CONFIG) == [0.0]

    def test_sampled_softmax_target_by_target(self) -> None:
        """A softmax over the true word and the candidates, written out as a model does it."""
        rng = np.random.default_rng(0)
        batches = [
            {"target": target, "sampled": rng.integers(0, 8, CONFIG.samples)}
            for target in self.TARGETS
        ]
        words = [int(w) for target in self.TARGETS for w in target.ravel() if w != PAD]

        def logit(word: int) -> float:
            """Reduced by the logarithm of the expected count."""
            share = words.count(word) / len(words)
            if share == 0.0:
                return -math.inf
            chance = math.log((word + 2) / (word + 1)) / math.log(CONFIG.vocabulary + 1)
            return math.log(share) - math.log(CONFIG.samples * chance)

        expected = []
        for batch in batches:
            costs = []
            for word in batch["target"].ravel().tolist():
                if word != PAD:
                    others = [logit(w) for w in batch["sampled"].tolist() if w != word]
                    together = sum(math.exp(value) for value in (logit(word), *others))
                    costs.append(math.log(together) - logit(word))
            expected.append(sum(costs) / len(costs))
        found = data.baseline(batches, "sampled-softmax", CONFIG)
        assert found == pytest.approx(expected, rel=1e-12)

    def test_candidates_are_those_of_a_training_with_seed_0(self) -> None:
        batches = load(batch=8, count=3).inputs
        steps = draws.steps(SPEC, CONFIG, batch=8, count=3, seed=0)
        fed = [batch | step for batch, step in zip(batches, steps, strict=True)]
        found = data.baseline(batches, "sampled-softmax", CONFIG)
        assert found == data.baseline(fed, "sampled-softmax", CONFIG)
        other = [
            batch | step
            for batch, step in zip(
                batches, draws.steps(SPEC, CONFIG, batch=8, count=3, seed=1), strict=True
            )
        ]
        assert found != data.baseline(other, "sampled-softmax", CONFIG)

    def test_only_candidates_that_are_words_compete(self) -> None:
        """None is another word that occurs: nothing to pay."""
        batch = {"target": np.array([[4, EOS, PAD]]), "sampled": np.array([0, 1, 3, 7])}
        config = dataclasses.replace(CONFIG, samples=4)
        assert data.baseline([batch], "sampled-softmax", config) == [0.0]

    def test_hardly_any_constant_is_better(self) -> None:
        """A word more or less likely than it is: the loss over many candidates does not fall."""
        batches = load(batch=16, count=30).inputs
        counts = [data.word_counts(batch["target"], 120) for batch in batches]
        steps = draws.steps(SPEC, CONFIG, batch=16, count=30, seed=5)
        share = np.sum(counts, axis=0) / np.sum(counts)
        expected = np.exp(log_expected(CONFIG))

        def mean(shares: Array) -> float:
            pairs = zip(counts, steps, strict=True)
            losses = [data.sampled_loss(shares / expected, c, s["sampled"]) for c, s in pairs]
            return float(np.mean(losses))

        own = mean(share)
        for word in np.argsort(-share)[:10]:
            for factor in (0.5, 2.0):
                changed = share.copy()
                changed[word] *= factor
                assert mean(changed) > own * 0.995

    def test_no_batches(self) -> None:
        assert data.baseline([], "softmax", CONFIG) == []

    def test_an_unknown_loss(self) -> None:
        with pytest.raises(UsageError, match="unknown loss 'ctc'"):
            data.baseline(load().inputs, "ctc", CONFIG)

    def test_the_note(self) -> None:
        assert data.baseline_note("sampled-softmax") == "against the candidates of seed 0"
        assert data.baseline_note("softmax") == ""
