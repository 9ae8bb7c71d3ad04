"""The memory network's stories: the pinned default, its grammar, bAbI files and their faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xbench.data import Batches, digest
from xbench.errors import DataError
from xbench.models.memnet import SPEC, data

Array = np.ndarray[Any, Any]
TINY = SPEC.sizes["tiny"]
STORIES_TINY_SEED_0 = "16d2e7c6b7f5de62ca9bd084dc32fa5764f808750f5f548157e2e803a0e83f10"

TEXT = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Sandra moved to the garden.
6 Where is Daniel? \thallway\t4
1 John went to the office.
2 Where is John?\toffice
"""
NAME = "qa1_single-supporting-fact_train.txt"


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XBENCH_DATA", raising=False)


def load(
    source: str | Path | None = None, *, size: str = "tiny", batch: int = 8, count: int = 1,
    seed: int = 0, **changes: int,
) -> Batches:  # fmt: skip
    config = replace(SPEC.sizes[size], **changes)
    where = None if source is None else str(source)
    return data.load(config, batch=batch, count=count, seed=seed, source=where)


def whole(batches: Batches, name: str) -> Array:
    return np.concatenate([batch[name] for batch in batches.inputs])


def words(ids: Array, known: Sequence[str]) -> list[str]:
    """The words of a sentence; padding is only behind them."""
    length = int((ids != 0).sum())
    assert (ids[:length] != 0).all()
    return [known[number - 1] for number in ids[:length]]


class TestGenerated:
    def test_the_default_is_pinned(self) -> None:
        """The same bits on every machine; a change here changes every result."""
        batches = load(count=5)
        assert digest(batches.inputs[4]) == STORIES_TINY_SEED_0
        expected = "stories generated to the grammar of bAbI task 1 with seed 0"
        assert batches.description == expected

    @pytest.mark.parametrize("size", SPEC.sizes)
    def test_shapes_and_types(self, size: str) -> None:
        config = SPEC.sizes[size]
        for found in load(size=size, batch=3, count=2).inputs:
            wanted = SPEC.step_inputs(config, "train")
            assert list(found) == [item.name for item in wanted]
            for item in wanted:
                assert found[item.name].shape == item.of(config, 3), item.name
                assert found[item.name].dtype == item.dtype, item.name

    def test_every_story_follows_the_grammar_and_holds_the_answer(self) -> None:
        """Read back word by word; what the stories may hold is written out once more."""
        known = data.vocabulary()
        assert len(known) == 19
        found = load(batch=500).inputs[0]
        lengths, answers, seen = [], [], set()
        for story, query, answer in zip(*found.values(), strict=True):
            told = [words(row, known) for row in story if row.any()]
            assert not story[len(told) :].any(), "padding is only behind the sentences"
            at = {"john": "kitchen", "mary": "bedroom", "sandra": "garden", "daniel": "hallway"}
            moved = set()
            for sentence in reversed(told):
                name, *verb, to, the, place = sentence
                assert (to, the) == ("to", "the")
                assert " ".join(verb) in {"went", "went back", "moved", "journeyed", "travelled"}
                assert at[name] != place
                at[name] = place
                moved.add(name)
                seen |= {name, place, " ".join(verb)}
            where, are, name = words(query, known)
            assert (where, are) == ("where", "is")
            assert name in moved
            assert known[answer - 1] == at[name]
            lengths.append(len(told))
            answers.append(known[answer - 1])
        assert len(seen) == 4 + 6 + 5
        assert set(lengths) == {2, 4, 6, 8, 10}
        assert set(answers) == set(data.PLACES)
        for values in (lengths, answers):
            counts = Counter(map(str, values))
            expected = 500 / len(counts)
            # About evenly: within five deviations of the count of any one.
            assert all(abs(n - expected) < 5 * expected**0.5 for n in counts.values()), counts

    def test_fewer_are_the_first_of_more_and_batching_only_cuts(self) -> None:
        one, three, longer = load(batch=6), load(batch=2, count=3), load(batch=9)
        for name in one.inputs[0]:
            np.testing.assert_array_equal(whole(one, name), whole(three, name))
            np.testing.assert_array_equal(whole(one, name), whole(longer, name)[:6])

    def test_the_seed_steers(self) -> None:
        assert len({digest(load(seed=seed).inputs[0]) for seed in range(3)}) == 3

    def test_shorter_memories_keep_the_latest_sentences(self) -> None:
        short, long = load(sentences=3, batch=30), load(batch=30)
        np.testing.assert_array_equal(whole(short, "story"), whole(long, "story")[:, :3])
        assert whole(long, "story")[:, 3:].any(), "some are left out"

    def test_the_default_by_name_wins_over_the_folder_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "memnet").mkdir()
        (tmp_path / "memnet" / NAME).write_text(TEXT)
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert str(tmp_path) in load().description
        assert digest(load("stories").inputs[0]) != digest(load().inputs[0])
        monkeypatch.delenv("XBENCH_DATA")
        assert digest(load("stories").inputs[0]) == digest(load().inputs[0])


class TestFiles:
    def test_stories_questions_and_answers(self, tmp_path: Path) -> None:
        """Latest sentence first; a question is no sentence; ids by falling frequency."""
        file = tmp_path / "mine.txt"
        file.write_text(TEXT)
        found = load(file, batch=3)
        assert found.description == f"3 questions of {file}, shuffled with seed 0"
        known = data.by_frequency(data.read(file, TINY))
        assert known[:2] == ["the", "to"]
        stories = {}
        for story, query, answer in zip(*found.inputs[0].values(), strict=True):
            told = [" ".join(words(row, known)) for row in story if row.any()]
            stories[" ".join(words(query, known))] = (told, known[answer - 1])
        first = ["john went to the hallway", "mary moved to the bathroom"]
        assert stories == {
            "where is mary": (first, "bathroom"),
            "where is daniel": (
                ["sandra moved to the garden", "daniel went back to the hallway", *first],
                "hallway",
            ),
            "where is john": (["john went to the office"], "office"),
        }

    def test_ids_depend_on_the_file_alone(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text(TEXT)
        some, more = load(tmp_path, batch=1, seed=3), load(tmp_path, batch=3, seed=3, size="babi")
        for name in ("query", "story"):
            few = whole(some, name)
            large = whole(more, name)[:1]
            np.testing.assert_array_equal(few, large[tuple(slice(n) for n in few.shape)])

    def test_words_of_one_frequency_are_in_the_order_of_the_alphabet(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.txt"
        file.write_text("1 b c a c.\n2 d?\tc\n")
        assert data.by_frequency(data.read(file, TINY)) == ["c", "a", "b", "d"]

    def test_every_question_comes_before_one_comes_again(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text(TEXT)
        found = load(tmp_path, batch=2, count=3)
        assert found.description.endswith(", shuffled with seed 0, repeated to fill 6")
        asked = whole(found, "query")[:, 2].tolist()
        assert sorted(asked[:3]) == sorted(asked[3:])
        assert len(set(asked)) == 3
        orders = {tuple(whole(load(tmp_path, batch=3, seed=s), "answer")) for s in range(9)}
        assert len(orders) > 1

    def test_generated_stories_written_to_a_file_come_back(self, tmp_path: Path) -> None:
        lines, questions = [], data.generated(0, 20)
        for question in questions:
            numbered = [*enumerate(question.story, start=1)]
            lines += [f"{number} {' '.join(said).capitalize()}." for number, said in numbered]
            asked = " ".join(question.query).capitalize()
            lines.append(f"{len(numbered) + 1} {asked}? \t{question.answer}\t1")
        (tmp_path / NAME).write_text("\n".join(lines), newline="\r\n")
        assert data.read(tmp_path / NAME, TINY) == questions

    def test_what_others_write_is_read(self, tmp_path: Path) -> None:
        """A byte order mark, empty lines, lists of supporting lines, commas, apostrophes."""
        file = tmp_path / "mine.txt"
        file.write_bytes("\ufeff1 Then, Zo\u00eb's cat sat.\n\n2 Who sat?\tcat\t1 1\n\n".encode())
        (found,) = data.read(file, TINY)
        assert found.story == (("then", "zo\u00eb's", "cat", "sat"),)
        assert (found.query, found.answer) == (("who", "sat"), "cat")

    @pytest.mark.parametrize("folder", [".", "en", "en-10k", "tasks_1-20_v1-2/en"])
    def test_where_a_folder_may_have_it(self, tmp_path: Path, folder: str) -> None:
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        for name in (NAME, NAME.replace("train", "test"), "qa10_indefinite-knowledge_train.txt"):
            (place / name).write_text(TEXT)
        assert data.find(tmp_path) == place / NAME

    def test_the_smaller_set_comes_first(self, tmp_path: Path) -> None:
        for folder in ("en", "en-10k"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / NAME).write_text(TEXT)
        assert data.find(tmp_path) == tmp_path / "en" / NAME

    def test_a_single_task_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "qa5_three-arg-relations_train.txt").write_text(TEXT)
        assert data.find(tmp_path).name == "qa5_three-arg-relations_train.txt"

    def test_several_tasks_are_listed_in_their_order(self, tmp_path: Path) -> None:
        for task in (10, 2, 5):
            (tmp_path / f"qa{task}_x_train.txt").write_text(TEXT)
        listed = "qa2_x_train.txt, qa5_x_train.txt, qa10_x_train.txt"
        with pytest.raises(DataError, match=f"several tasks: name one of its files: {listed}$"):
            load(tmp_path)

    def test_a_folder_without_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"expected a file of bAbI.* no such file$"):
            load(tmp_path)
        with pytest.raises(DataError, match="no such file or folder"):
            load(tmp_path / "missing")

    @pytest.mark.parametrize(
        ("text", "line", "said"),
        [
            ("Mary moved.\n", 1, "not a number and a text; expected lines like"),
            ("1 Mary moved.\n2\n", 2, "not a number and a text; expected lines like"),
            ("1 Mary moved.\n\n3 John moved.\n", 3, "begins with 3; expected 2, or 1 where"),
            ("2 Mary moved.\n", 1, "begins with 2; expected 1$"),
            ("1 Mary moved.\n2 Where is Mary?\n", 2, "a question without an answer"),
            ("1 Mary moved.\n2 Where is Mary?\t\t1\n", 2, "a question without an answer"),
            ("1 Mary moved.\n2 Where is Mary?\t?\t1\n", 2, "a question without an answer"),
            ("1 Where is Mary?\there\t1\n", 1, "a question about nothing"),
            ("1 Mary moved.\n2 What?\tmilk,apple\t1\n", 2, "'milk,apple' has several words"),
            ("1 Mary moved.\n2 What?\tthe milk\t1\n", 2, "'the milk' has several words"),
            ("1 ...\n", 1, "says nothing"),
            ("1 a b c d e f g\n", 1, "7 words in a sentence, .* room for 6; --size babi has .* 12"),
            ("1 a\n2 a b c d e f g?\ta\n", 2, "7 words in a sentence, .* --size babi has"),
            (f"1 {'a ' * 13}\n", 1, "13 words in a sentence, .* no size has that much"),
        ],
    )  # fmt: skip
    def test_a_bad_line_is_named(self, tmp_path: Path, text: str, line: int, said: str) -> None:
        file = tmp_path / "mine.txt"
        file.write_text(text)
        with pytest.raises(DataError, match=said) as error:
            load(file)
        assert str(error.value).startswith(f"{file}:{line}: ")

    def test_other_text_than_utf_8_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.txt"
        file.write_bytes(b"1 Mary moved.\n2 Zo\xeb moved.\n")
        with pytest.raises(DataError, match=rf"{file}:2: not UTF-8 text"):
            load(file)

    @pytest.mark.parametrize(("text", "said"), [("", "empty;"), ("1 Mary.\n", "has no question;")])
    def test_a_file_without_questions(self, tmp_path: Path, text: str, said: str) -> None:
        file = tmp_path / "mine.txt"
        file.write_text(text)
        with pytest.raises(DataError, match=rf"{file}: {said} expected lines like"):
            load(file)

    @pytest.mark.parametrize(
        ("count", "said"),
        [
            (20, "21 ids of words and padding, .* room for 20; --size babi has room for 200$"),
            (200, "201 ids of words and padding, .* room for 20; no size has that much$"),
        ],
    )
    def test_too_many_words(self, tmp_path: Path, count: int, said: str) -> None:
        file = tmp_path / "mine.txt"
        file.write_text(counting(count))
        with pytest.raises(DataError, match=said):
            load(file)

    def test_as_many_words_as_there_is_room_for(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.txt"
        file.write_text(counting(19))
        assert whole(load(file, batch=1), "story").max() == 19


def counting(count: int) -> str:
    """A story that says ``count`` different words, one a sentence, the last one as a question."""
    lines = [f"{number} w{number}" for number in range(1, count + 1)]
    return "\n".join([*lines[:-1], f"{lines[-1]}?\tw1"])
