"""Speech data: the pinned default, recordings laid out as LibriSpeech's and their faults, CTC."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.data import Batches, digest
from xbench.draws import stream
from xbench.errors import DataError, UsageError
from xbench.models.speech import ALPHABET, SPEC, Config, audio, data

Array = np.ndarray[Any, Any]
TINY = SPEC.sizes["tiny"]
ROOM = Config(features=5, hidden=1, time=30, letters=12)
"""For recordings of a test."""
ESPEAK_TINY_SEED_0 = "0313dacb23a52218b2b6a83946101d205c7560d6d1ff43233d1b3ea3aa5528a5"
RATE = 8000


def load(
    source: str | Path | None = None,
    *,
    config: Config = TINY,
    batch: int = 4,
    count: int = 1,
    seed: int = 0,
) -> Batches:
    text = None if source is None else str(source)
    return data.load(config, batch=batch, count=count, seed=seed, source=text)


def texts(batches: Batches) -> list[str]:
    """What is said in each recording, one after another."""
    return [
        "".join(ALPHABET[letter] for letter in label[:length])
        for batch in batches.inputs
        for label, length in zip(batch["label"], batch["label_length"], strict=True)
    ]


class TestSpoken:
    @pytest.fixture(autouse=True)
    def _needs_espeak(self) -> None:
        pytest.importorskip("espeakng_loader")

    def test_the_default_is_pinned(self) -> None:
        """The same bits wherever eSpeak NG is 1.52.0; a change here changes every result."""
        batches = load()
        assert batches.description == "sentences spoken by eSpeak NG 1.52.0, made with seed 0"
        assert digest(batches.inputs[0]) == ESPEAK_TINY_SEED_0

    def test_another_process_elsewhere_has_the_same_bits(self, tmp_path: Path) -> None:
        """And reads no framework for it."""
        code = (
            "import sys\nfrom xbench.data import digest\n"
            "from xbench.models.speech import SPEC, data\n"
            "found = data.load(SPEC.sizes['tiny'], batch=4, count=1, seed=0, source=None)\n"
            "assert not {'torch', 'tensorflow', 'scipy'} & set(sys.modules)\n"
            "print(digest(found.inputs[0]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "LC_ALL": "C", "ESPEAK_DATA_PATH": "/nowhere"},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == digest(load().inputs[0])

    @pytest.mark.parametrize(("size", "batch"), [("tiny", 1), ("tiny", 5), ("small", 3)])
    def test_shapes_types_and_ranges(self, size: str, batch: int) -> None:
        config = SPEC.sizes[size]
        batches = load(config=config, batch=batch, count=2)
        assert len(batches.inputs) == 2
        for found in batches.inputs:
            wanted = SPEC.step_inputs(config, "train")
            assert list(found) == [item.name for item in wanted]
            for item in wanted:
                assert found[item.name].shape == item.of(config, batch), item.name
                assert found[item.name].dtype == item.dtype, item.name
                assert found[item.name].flags.c_contiguous
            for row in range(batch):
                frames, length = int(found["frames"][row]), int(found["label_length"][row])
                label = found["label"][row]
                assert 1 <= length <= config.letters
                assert data.shortest(label[:length]) <= frames <= config.time
                assert set(label[:length]) <= set(range(1, len(ALPHABET)))
                assert not label[length:].any()
                sound = found["features"][row]
                assert not sound[frames:].any()
                assert sound[:frames].any(axis=1).all()
                assert sound[:frames].astype(np.float64).mean() == pytest.approx(0, abs=1e-6)
                assert sound[:frames].astype(np.float64).std() == pytest.approx(1, rel=1e-6)

    def test_the_seed_steers(self) -> None:
        assert len({digest(load(seed=seed).inputs[0]) for seed in range(3)}) == 3

    def test_batching_only_cuts_and_fewer_are_the_first_of_more(self) -> None:
        one, three = load(batch=6), load(batch=2, count=3)
        for name in one.inputs[0]:
            parts = [batch[name] for batch in three.inputs]
            np.testing.assert_array_equal(one.inputs[0][name], np.concatenate(parts))
        # The second of these needs another run of eSpeak.
        short, long = (load(batch=5, count=count) for count in (2, data.CHUNK // 5 + 2))
        for some, more in zip(short.inputs, long.inputs, strict=False):
            assert digest(some) == digest(more)

    def test_recordings_differ(self) -> None:
        batches = load(batch=40)
        features = batches.inputs[0]["features"]
        assert len({sound.tobytes() for sound in features}) == 40
        assert len(set(texts(batches))) > 30

    def test_what_is_repeated_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data, "POOL", 5)
        batches = load(batch=4, count=3)
        assert batches.description.endswith("made with seed 0, 5 repeated to fill 12")
        said = texts(batches)
        assert len(set(said[:5])) == 5
        assert said == [*said[:5], *said[:5], *said[:2]]
        assert "repeated" not in load(batch=5).description

    def test_features_are_those_of_the_sentence(self) -> None:
        """Said again by itself, in a fresh process that has said nothing before."""
        words = stream("data", 0, "speech/0").random_raw(TINY.letters + 4)
        utterance = data.utterance(TINY, words.tolist())
        speech = audio.speak([utterance])
        found = audio.features(speech.sounds[0], speech.rate, TINY.features, "")
        batch = load().inputs[0]
        assert texts(load())[0] == utterance.text
        np.testing.assert_array_equal(batch["features"][0, : batch["frames"][0]], found)

    @pytest.mark.parametrize("size", ["tiny", "small", "full"])
    def test_most_sentences_fit_and_fill(self, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
        monkeypatch.setattr(data, "CHUNK", 12)
        config = SPEC.sizes[size]
        _, found = data._spoken.__wrapped__(config, 1, 0)
        assert len(found) >= 9
        assert np.mean([len(item.features) for item in found]) > config.time / 2
        assert np.mean([len(item.label) for item in found]) > config.letters / 2

    def test_no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data, "ATTEMPTS", 2)
        words = "eSpeak NG: no sentence fits into 9 frames of 20 ms and 24 letters"
        with pytest.raises(DataError, match=words):
            load(config=Config(features=21, hidden=1, time=9, letters=24))

    def test_by_name_against_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chapter(tmp_path / "speech", {"a-0": "HI"})
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert texts(load(config=ROOM, batch=1)) == ["hi"]
        assert "eSpeak NG" in load("espeak").description

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "espeakng_loader", None)
        with pytest.raises(DataError, match=r"needs pip install 'xbench\[data\]'"):
            load(seed=123)


class TestSentences:
    def test_by_hand(self) -> None:
        """The last words of the longest one; the first of four is a verb."""
        least, most = [0] * 9, [2**64 - 1] * 9
        assert data.sentence(1, least) == "cats"
        assert data.sentence(3, most) == "ten white hands"
        assert data.sentence(4, least) == "find two red cats"
        assert data.sentence(5, least) == "cats and two red cats"
        assert data.sentence(8, least) == "find two red cats and two red cats"

    @given(st.integers(10, 500), st.integers(5, 200), st.integers(0, 2**64 - 1))
    def test_any_fits_its_letters(self, time: int, letters: int, seed: int) -> None:
        config = Config(features=21, hidden=1, time=time, letters=letters)
        words = stream("data", seed, "test").random_raw(letters + 4).tolist()
        said = data.utterance(config, words)
        assert 4 <= len(said.text) <= max(letters, 5)
        assert set(said.text) <= set(ALPHABET[1:])
        assert said.voice in data.VOICES
        assert data.SPEEDS[0] <= said.speed <= data.SPEEDS[1]
        assert data.PITCHES[0] <= said.pitch <= data.PITCHES[1]

    def test_letters(self) -> None:
        assert len(ALPHABET) == 29
        label = data.encode("a z'")
        assert label.dtype == np.int64
        assert label.tolist() == [3, 1, 28, 2]
        with pytest.raises(ValueError, match="not in"):
            data.encode("A")

    def test_the_fewest_frames(self) -> None:
        for text, frames in (("a", 1), ("ab", 2), ("aa", 3), ("hello", 6), ("aaa", 5)):
            assert data.shortest(data.encode(text)) == frames


def recording(path: Path, frames: int = 20, rate: int = RATE, seed: int = 0) -> Path:
    """A wav file of noise with so many frames."""
    words = np.random.Philox(key=seed).random_raw(frames * rate // 50)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(words.astype("<u2").tobytes())
    return path


def chapter(folder: Path, said: dict[str, str], frames: int = 20) -> Path:
    """A folder with a recording of each name, and a transcript, whose path it gives."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(said):
        recording(folder / f"{name}.wav", frames, seed=seed)
    path = folder / "1-2.trans.txt"
    path.write_text("".join(f"{name} {text}\n" for name, text in said.items()))
    return path


NAMES = {f"1-2-{index:04}": text for index, text in enumerate(["AB", "CD", "EF", "GH", "IJ"])}


class TestRecorded:
    def test_features_and_labels_belong_together(self, tmp_path: Path) -> None:
        chapter(tmp_path, {"1-2-0000": "DON'T GO", "1-2-0001": "HI"}, frames=17)
        batches = load(tmp_path, config=ROOM, batch=2)
        expected = f"recordings of {tmp_path}, shuffled with seed 0"
        assert batches.description == expected
        found = batches.inputs[0]
        assert found["frames"].tolist() == [17, 17]
        assert sorted(texts(batches)) == ["don't go", "hi"]
        for row, text in enumerate(texts(batches)):
            name = "1-2-0000.wav" if text == "don't go" else "1-2-0001.wav"
            rate, samples = audio.read(tmp_path / name)
            features = audio.features(samples, rate, 5, "")
            np.testing.assert_array_equal(found["features"][row, :17], features)
            assert not found["features"][row, 17:].any()

    def test_all_folders_below_are_read(self, tmp_path: Path) -> None:
        """And hidden files, other kinds of file and empty lines are passed over."""
        chapter(tmp_path / "train" / "19" / "198", {"19-198-0000": "ONE"})
        chapter(tmp_path / "train" / "26" / "495", {"26-495-0000": "TWO", "26-495-0001": "SIX"})
        last = tmp_path / "train" / "26" / "495" / "1-2.trans.txt"
        last.write_bytes(b"\xef\xbb\xbf" + last.read_bytes().replace(b"\n", b"\r\n\r\n"))
        (tmp_path / "README.TXT").write_text("not a transcript")
        (last.parent / "._1-2.trans.txt").write_bytes(b"\0\xff")
        (last.parent / ".hidden").mkdir()
        recording(last.parent / ".hidden" / "a.wav")
        assert sorted(texts(load(tmp_path, config=ROOM, batch=3))) == ["one", "six", "two"]

    def test_case_and_spaces(self, tmp_path: Path) -> None:
        chapter(tmp_path, {"a": " Two\t RED   cats "})
        assert texts(load(tmp_path, config=ROOM, batch=1)) == ["two red cats"]

    def test_all_before_any_again(self, tmp_path: Path) -> None:
        chapter(tmp_path, NAMES)
        batches = load(tmp_path, config=ROOM, batch=4, count=3)
        assert batches.description.endswith("shuffled with seed 0, 5 repeated to fill 12")
        said = texts(batches)
        assert sorted(said[:5]) == ["ab", "cd", "ef", "gh", "ij"]
        assert said == [*said[:5], *said[:5], *said[:2]]

    def test_the_seed_shuffles_and_fewer_are_the_first_of_more(self, tmp_path: Path) -> None:
        chapter(tmp_path, NAMES)
        orders = [texts(load(tmp_path, config=ROOM, batch=5, seed=seed)) for seed in range(6)]
        assert len({tuple(order) for order in orders}) > 4
        for seed, order in enumerate(orders):
            assert texts(load(tmp_path, config=ROOM, batch=2, seed=seed)) == order[:2]

    def test_what_is_too_long_is_left_out_and_told(self, tmp_path: Path) -> None:
        chapter(tmp_path / "a", {"a-0": "FITS", "a-1": "ALSO FITS IT"}, frames=30)
        chapter(tmp_path / "b", {"b-0": "LONG"}, frames=31)
        chapter(tmp_path / "c", {"c-0": "THIRTEEN LETS"}, frames=30)
        batches = load(tmp_path, config=ROOM, batch=2)
        assert sorted(set(texts(batches))) == ["also fits it", "fits"]
        batches = load(tmp_path, config=ROOM, batch=3)
        assert batches.description == (
            f"recordings of {tmp_path}, shuffled with seed 0, 2 of more than 30 frames of 20 ms or "
            "12 letters left out, 2 repeated to fill 3"
        )

    def test_everything_too_long(self, tmp_path: Path) -> None:
        chapter(tmp_path, NAMES, frames=31)
        words = (
            f"{tmp_path}: every one of its 5 recordings has more than 30 frames of 20 ms or "
            "12 letters"
        )
        with pytest.raises(DataError, match=words):
            load(tmp_path, config=ROOM)

    def test_no_more_are_opened_than_are_needed(self, tmp_path: Path) -> None:
        """A set of many hours is not read for one step."""
        chapter(tmp_path, NAMES)
        order = texts(load(tmp_path, config=ROOM, batch=5))
        last = next(name for name, text in NAMES.items() if text.lower() == order[4])
        assert last != "1-2-0000", "the first is always opened, for its rate"
        (tmp_path / f"{last}.wav").write_bytes(b"")
        assert texts(load(tmp_path, config=ROOM, batch=4)) == order[:4]
        with pytest.raises(DataError, match="empty file"):
            load(tmp_path, config=ROOM, batch=5)


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def rewrite(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "1-2.trans.txt").write_bytes(content)


def other(frames: int, rate: int) -> Callable[[Path], object]:
    """Another recording in place of the second."""
    return lambda folder: recording(folder / "b.wav", frames, rate)


LINES = b"a ONE\nb TWO\n"


class TestFaults:
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (other(20, 16000), "/b.wav: 16000 Hz, but {}/a.wav has 8000 Hz; expected one rate"),
            (rewrite(b"a ONE\nb TW0\n"), "/1-2.trans.txt:2: unknown letter '0'; expected a to z, "),
            (rewrite("a ONE\nb É\n".encode()), "/1-2.trans.txt:2: unknown letter 'é'; expected a "),
            (rewrite(b"a ONE.\nb TWO\n"), "/1-2.trans.txt:1: unknown letter '.'; expected a to z"),
            (rewrite(b"a ONE\n\nb\n"), "/1-2.trans.txt:3: no text after b; expected LibriSpeech's"),
            (rewrite(b"a ONE\nb TWO\nc X\n"), "/1-2.trans.txt:3: no c.wav beside it"),
            (drop("b.wav"), "/1-2.trans.txt:2: no b.wav beside it"),
            (rewrite(b"a ONE\n../b TWO\n"), "/1-2.trans.txt:2: no ../b.wav beside it"),
            (rewrite(b"a ONE\n"), "/b.wav: no line of a transcript beside it names it; expected "),
            (rewrite(LINES + b"a SIX\n"), "/1-2.trans.txt:1: a has 2 lines"),
            (rewrite(b"a ONE\nb TW\xd6\n"), "/1-2.trans.txt:2: not UTF-8; expected LibriSpeech's "),
            (rewrite(b""), "/1-2.trans.txt: empty; expected LibriSpeech's layout"),
            (rewrite(b" \n\n"), "/1-2.trans.txt: empty; expected LibriSpeech's layout"),
            (drop("1-2.trans.txt"), ": expected LibriSpeech's layout: folders with"),
            (other(2, RATE), "/1-2.trans.txt:2: 3 letters need at least 3 frames, but {}/b.wav has "
             "2 of 20 ms: no path through them spells the label, and the CTC loss would be "
             "infinite"),
            (other(0, RATE), "/1-2.trans.txt:2: 3 letters need at least 3 frames, but {}/b.wav has "
             "0 of"),
        ],
        ids=["rate", "digit", "accent", "dot", "no text", "no file", "lost file", "path", "no line",
             "twice", "utf-8", "empty", "blank", "no transcript", "infinite", "no frame"],
    )  # fmt: skip
    def test_of_lines_and_recordings(
        self, tmp_path: Path, spoil: Callable[[Path], object], message: str
    ) -> None:
        chapter(tmp_path, {"a": "ONE", "b": "TWO"})
        assert (tmp_path / "1-2.trans.txt").read_bytes() == LINES
        assert sorted(texts(load(tmp_path, config=ROOM, batch=2))) == ["one", "two"]
        spoil(tmp_path)
        with pytest.raises(DataError) as found:
            load(tmp_path, config=ROOM, batch=2)
        assert str(found.value).startswith(f"{tmp_path}{message.format(tmp_path)}")

    def test_equal_neighbours_need_a_frame_between_them(self, tmp_path: Path) -> None:
        chapter(tmp_path, {"a": "LL"}, frames=3)
        assert texts(load(tmp_path, config=ROOM, batch=1)) == ["ll"]
        chapter(tmp_path, {"a": "LL"}, frames=2)
        words = r"1-2\.trans\.txt:1: 2 letters need at least 3 frames, but .*a\.wav has 2 of 20 ms"
        with pytest.raises(DataError, match=words):
            load(tmp_path, config=ROOM, batch=1)

    @pytest.mark.parametrize("kind", ["flac", "mp3"])
    def test_recordings_to_convert(self, tmp_path: Path, kind: str) -> None:
        path = chapter(tmp_path, {"a": "ONE"})
        (tmp_path / "a.wav").rename(tmp_path / f"a.{kind}")
        with pytest.raises(DataError) as found:
            load(tmp_path, config=ROOM)
        assert str(found.value) == (
            f"{path}:1: no a.wav beside it; convert a.{kind} to 16-bit wav with one channel"
        )

    def test_two_transcripts_of_one_recording(self, tmp_path: Path) -> None:
        path = chapter(tmp_path, {"a": "ONE"})
        path.with_name("2-2.trans.txt").write_text("a TWO\n")
        with pytest.raises(DataError, match=r"1-2\.trans\.txt:1: a has 2 lines"):
            load(tmp_path, config=ROOM)

    def test_a_line_far_down_that_is_not_utf_8(self, tmp_path: Path) -> None:
        path = chapter(tmp_path, {"a": "ONE"})
        path.write_bytes(b"\xef\xbb\xbf" + b"a ONE\r\n" * 5000 + b"a \xff\n")
        with pytest.raises(DataError, match=r"1-2\.trans\.txt:5001: not UTF-8"):
            load(tmp_path, config=ROOM)

    @pytest.mark.parametrize(
        ("channels", "width", "message"),
        [(1, 1, "8 bits a sample"), (1, 3, "24 bits a sample"), (2, 2, "2 channels")],
    )
    def test_a_recording_of_another_kind(
        self, tmp_path: Path, channels: int, width: int, message: str
    ) -> None:
        chapter(tmp_path, {"a": "ONE"})
        with wave.open(str(tmp_path / "a.wav"), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(RATE)
            file.writeframes(bytes(6000))
        with pytest.raises(DataError, match=rf"a\.wav: {message}; expected a wav file of 16-bit"):
            load(tmp_path, config=ROOM)

    def test_a_recording_that_is_cut_off_or_silent(self, tmp_path: Path) -> None:
        chapter(tmp_path, {"a": "ONE"})
        path = tmp_path / "a.wav"
        whole = path.read_bytes()
        for end in (len(whole) - 1, len(whole) // 2):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"a\.wav: truncated: declares 3200 samples"):
                load(tmp_path, config=ROOM)
        path.write_bytes(whole[:44] + bytes(len(whole) - 44))
        with pytest.raises(DataError, match=r"a\.wav: silent or too short"):
            load(tmp_path, config=ROOM)
        path.write_bytes(b"")
        with pytest.raises(DataError, match=r"a\.wav: empty file"):
            load(tmp_path, config=ROOM)

    def test_a_folder_that_holds_none_of_it(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"{tmp_path}: expected .*1-2-0000\.wav; it holds nei"):
            load(tmp_path)
        recording(tmp_path / "a.wav")
        with pytest.raises(DataError, match="it holds 1 wav files but no transcript"):
            load(tmp_path)

    def test_a_path_that_is_none_or_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            load(tmp_path / "nowhere")
        path = recording(tmp_path / "a.wav")
        with pytest.raises(DataError, match=r"a\.wav: not a folder; expected LibriSpeech's layout"):
            load(path)

    def test_what_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chapter(tmp_path, {"a": "ONE"})

        def refuse(path: object, *_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", refuse)
            with pytest.raises(DataError, match=r"trans\.txt: cannot be read \(Permission denied"):
                load(tmp_path, config=ROOM)
        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(DataError, match=rf"{tmp_path}: cannot be listed \(Permission denied"):
            load(tmp_path, config=ROOM)


def spelt(path: Sequence[int]) -> tuple[int, ...]:
    """What a path shows: repeats are one letter, then blanks are nothing."""
    return tuple(letter for letter, _ in itertools.groupby(path) if letter)


class TestConstantLoss:
    def test_against_all_paths(self) -> None:
        """Every label of up to three of two letters, in up to six frames."""
        probabilities = np.array([0.5, 0.3, 0.2])
        sums: dict[tuple[int, tuple[int, ...]], float] = {}
        for frames in range(7):
            for path in itertools.product(range(3), repeat=frames):
                key = frames, spelt(path)
                sums[key] = sums.get(key, 0.0) + float(np.prod(probabilities[list(path)]))
        labels = [label for size in (1, 2, 3) for label in itertools.product((1, 2), repeat=size)]
        cases = [(frames, label) for frames in range(1, 7) for label in labels]
        found = data.constant_loss(
            [np.array(label) for _, label in cases],
            np.array([frames for frames, _ in cases]),
            probabilities,
        )
        total = np.array([sums.get(case, 0.0) for case in cases])
        assert (total == 0).any()
        np.testing.assert_array_equal(np.isinf(found), total == 0)
        np.testing.assert_allclose(np.exp(-found), total, rtol=1e-12)

    def test_only_frames_that_are_too_few(self) -> None:
        found = data.constant_loss(
            [data.encode("aa"), data.encode("abc")], np.array([2, 2]), np.full(29, 1 / 29)
        )
        assert found.tolist() == [np.inf, np.inf]

    def test_by_hand(self) -> None:
        """One letter in one frame; in two: b a, a b and a a."""
        found = data.constant_loss([np.array([1])] * 2, np.array([1, 2]), np.array([0.75, 0.25]))
        np.testing.assert_allclose(np.exp(-found), [0.25, 2 * 0.75 * 0.25 + 0.25**2], rtol=1e-12)

    @pytest.mark.parametrize("power", [-3.0, 1.0, 9.0])
    def test_against_torch(self, power: float) -> None:
        """In the largest size, too; with much blank, and so little that its powers vanish."""
        torch = pytest.importorskip("torch")
        letters = np.random.Philox(key=0).random_raw(200) % np.uint64(28) + np.uint64(1)
        longest = "".join(ALPHABET[int(letter)] for letter in letters)
        said = ["two red cats", "hello", "a", "aabbcc", "don't", longest, "zz" * 50]
        frames = np.array([300, 20, 500, 9, 5, 500, 500])
        weights = np.arange(3, 32, dtype=np.float64) ** power
        probabilities = weights / weights.sum()
        labels = [data.encode(text) for text in said]
        found = data.constant_loss(labels, frames, probabilities)
        expected = torch.nn.functional.ctc_loss(
            torch.from_numpy(np.log(probabilities)).expand(500, len(said), 29),
            torch.from_numpy(np.concatenate(labels)),
            torch.from_numpy(frames),
            torch.tensor([len(label) for label in labels]),
            reduction="none",
        )
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9)


def batch_of(said: Sequence[str], frames: Sequence[int]) -> dict[str, Array]:
    label = np.zeros((len(said), 12), np.int64)
    for row, text in enumerate(said):
        label[row, : len(text)] = data.encode(text)
    return {
        "frames": np.array(frames),
        "label": label,
        "label_length": np.array([len(text) for text in said]),
    }


class TestBaseline:
    def test_of_each_batch_by_hand(self) -> None:
        """One letter, twice in two frames and once in one: 1 - b^2 and 1 - b are likely."""
        batches = [batch_of(["a", "a"], [2, 1]), batch_of(["a"], [2])]
        first, second = data.baseline(batches, "ctc", ROOM)
        blank = data.least(lambda b: -2 * np.log(1 - b * b) - np.log(1 - b), 0.001, 0.999)
        assert second == pytest.approx(-np.log(1 - blank**2), rel=1e-9)
        assert first == pytest.approx((second - np.log(1 - blank)) / 2, rel=1e-9)

    def test_no_other_share_of_blanks_is_better(self) -> None:
        batches = [
            batch_of(["two red cat", "hello", "see"], [50, 12, 20]),
            batch_of(["see", "a", "see"], [20, 30, 20]),
        ]
        best = float(np.mean(data.baseline(batches, "ctc", ROOM)))
        said = ["two red cat", "hello", "see", "see", "a", "see"]
        labels = [data.encode(text) for text in said]
        counts = np.bincount(np.concatenate(labels), minlength=29)
        frequency = counts[1:] / counts.sum()
        losses = [
            float(
                data.constant_loss(
                    labels,
                    np.array([50, 12, 20, 20, 30, 20]),
                    np.array([blank, *(1 - blank) * frequency]),
                ).mean()
            )
            for blank in np.linspace(0.01, 0.99, 99)
        ]
        assert best <= min(losses) < best * 1.001
        assert best < min(losses[0], losses[-1]) * 0.9

    @pytest.mark.parametrize("loss", SPEC.losses)
    def test_padding_does_not_count(self, loss: str) -> None:
        batch = batch_of(["ab", "cc"], [7, 8])
        wider = {**batch, "label": np.pad(batch["label"], ((0, 0), (0, 9)))}
        assert data.baseline([batch], loss, ROOM) == data.baseline([wider], loss, ROOM)

    def test_the_default_is_finite(self) -> None:
        pytest.importorskip("espeakng_loader")
        found = data.baseline(load(count=3).inputs, "ctc", TINY)
        assert len(found) == 3
        assert all(10 < value < 100 for value in found)

    def test_too_few_frames(self) -> None:
        first, second = data.baseline([batch_of(["ab"], [1]), batch_of(["a"], [3])], "ctc", ROOM)
        assert first == np.inf
        assert np.isfinite(second)

    def test_no_batches(self) -> None:
        assert data.baseline([], "ctc", ROOM) == []

    def test_an_unknown_loss(self) -> None:
        with pytest.raises(UsageError, match="unknown loss 'mse'"):
            data.baseline([batch_of(["a"], [2])], "mse", ROOM)


class TestLeast:
    @given(st.floats(0.0, 1.0))
    def test_of_a_parabola(self, where: float) -> None:
        assert data.least(lambda x: (x - where) ** 2, 0.0, 1.0) == pytest.approx(where, abs=1e-3)
