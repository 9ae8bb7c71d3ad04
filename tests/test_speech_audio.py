"""Sound: features against exact arithmetic, wav files and their faults, eSpeak NG and its."""

from __future__ import annotations

import hashlib
import math
import sys
import wave
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import DataError
from xbench.models.speech import audio
from xbench.models.speech.audio import Utterance

Array = np.ndarray[Any, Any]
SAID = (
    Utterance("two red cats", "en-us", 175, 50),
    Utterance("ten black birds", "en+f2", 200, 60),
)
"""The second voice has noise in it."""
SOUND_OF_SAID = "3bd7ad0e523b9c017efb71fbac2cc2bfa47d3c76c78b225fc2c3df193aff88da"


def noise(count: int, seed: int = 0) -> Array:
    """int16 of every size."""
    return np.random.Philox(key=seed).random_raw(count).astype(np.uint16).view(np.int16)


def tone(frequency: float, rate: int, frames: int = 4, size: float = 9000.0) -> Array:
    """A sine, int16, of so many frames."""
    place = np.arange(frames * rate // audio.FRAMES + 1)
    return np.rint(size * np.sin(2.0 * np.pi * frequency * place / rate)).astype(np.int16)


def written(
    path: Path, content: bytes, *, rate: int = 16000, channels: int = 1, width: int = 2
) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def exact(samples: Array, rate: int, count: int) -> Array:
    """The features by their definition, every sum in whole numbers or fractions."""
    window, top = rate // 50, min(8000, rate // 2)
    frequencies = range(0, top + 1, 50)
    rows = []
    for frame in range(10**6):
        start = frame * rate // 50
        if start + window > len(samples):
            break
        part = [int(sample) for sample in samples[start : start + window]]
        power = []
        for frequency in frequencies:
            both = 0
            for turn in (math.cos, math.sin):
                whole = 0
                for place, sample in enumerate(part):
                    hann = math.sin(math.pi * (place + 0.5) / window) ** 2
                    angle = 2.0 * math.pi * (place * frequency % rate) / rate
                    whole += sample * round(hann * turn(angle) * 2**20)
                both += whole * whole
            power.append(Fraction(both, 2**40))
        row = []
        for corner in range(1, count):
            value = Fraction(0)
            for frequency, part_of_it in zip(frequencies, power, strict=True):
                distance = abs(Fraction(frequency * count, top) - corner)
                value += part_of_it * max(Fraction(0), 1 - distance)
            row.append(value)
        row.append(Fraction(sum(sample * sample for sample in part)))
        rows.append([round(math.log(1.0 + float(value)) * 2**16) for value in row])
    steps = [step for row in rows for step in row]
    mean = Fraction(sum(steps), len(steps))
    deviation = math.sqrt(sum((step - mean) ** 2 for step in steps) / len(steps))
    normal = [[float(step - mean) / deviation for step in row] for row in rows]
    return np.array(normal, np.float64).astype(np.float32)


class TestFeatures:
    @pytest.mark.parametrize(("rate", "count"), [(8000, 6), (11025, 4)])
    def test_bits_against_exact_arithmetic(self, rate: int, count: int) -> None:
        """No order of a sum, and no library's logarithm, is in them."""
        samples = noise(rate // 50 * 3 + 5)
        samples[: rate // 50] //= 300
        found = audio.features(samples, rate, count, "noise")
        assert found.shape == (3, count)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, exact(samples, rate, count))

    @pytest.mark.parametrize("rate", [8000, 11025, 22050, 48000])
    def test_every_sum_of_products_is_exact(self, rate: int) -> None:
        """Of whole numbers that stay below 2^53, with the loudest samples, too."""
        sines = audio._sines(rate)
        np.testing.assert_array_equal(sines, np.rint(sines))
        assert np.abs(sines).sum(axis=0).max() * 2**15 < 2**53
        assert np.abs(sines).max() > 0.99 * 2**20

    @pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
    @pytest.mark.parametrize("count", [21, 41])
    def test_a_tone_peaks_in_its_filter(self, rate: int, count: int) -> None:
        for place in range(count - 1):
            frequency = (place + 1) * min(8000, rate // 2) / count
            found = audio.features(tone(frequency, rate), rate, count, "tone")[:, :-1]
            assert set(found.argmax(axis=1)) == {place}, frequency

    def test_what_is_above_the_filters_is_only_in_the_energy(self) -> None:
        low, high = (audio.features(tone(f, 48000), 48000, 21, "tone") for f in (5000, 12000))
        assert low[:, :-1].max() > 1
        assert high[:, :-1].max() < 0 < high[:, -1].min()

    def test_the_energy_is_the_logarithm_of_the_sum_of_squares(self) -> None:
        """Each frame is twice as loud as the last: as far above it as any."""
        sizes = np.repeat([100, 200, 400, 800], 160)
        found = audio.features((sizes * np.tile([1, -1], 320)).astype(np.int16), 8000, 3, "loud")
        steps = np.diff(found[:, -1])
        assert steps.min() > 0.1
        np.testing.assert_allclose(steps, steps[0], rtol=1e-4)
        # And from its size, where filters hear nothing: 160 samples of a, log(1 + 160 a^2).
        spaced = np.diff(np.log1p(160 * np.array([1.0, 30.0, 900.0]) ** 2))
        sizes = np.repeat([1, 30, 900], 160)
        found = audio.features((sizes * np.tile([1, -1], 240)).astype(np.int16), 8000, 3, "loud")
        ratio = (found[2, -1] - found[1, -1]) / (found[1, -1] - found[0, -1])
        assert ratio == pytest.approx(spaced[1] / spaced[0], rel=1e-4)

    def test_mean_and_deviation(self) -> None:
        for samples in (noise(16000), tone(440, 16000, 30), noise(16000) // 1000):
            found = audio.features(samples, 16000, 41, "sound").astype(np.float64)
            assert found.mean() == pytest.approx(0, abs=1e-6)
            assert found.std() == pytest.approx(1, rel=1e-6)

    def test_loudness_shifts_all_alike(self) -> None:
        """So that, but for the 1 in log(1 + x), the mean takes it away."""
        quiet, loud = noise(16000) // 8, noise(16000) // 8 * 4
        first, second = (audio.features(part, 16000, 41, "noise") for part in (quiet, loud))
        np.testing.assert_allclose(first, second, atol=1e-3)

    @pytest.mark.parametrize(
        "samples", [np.zeros(16000, np.int16), noise(319), noise(0)], ids=["zeros", "short", "none"]
    )
    def test_nothing_to_hear(self, samples: Array) -> None:
        with pytest.raises(DataError, match="a name: silent or too short"):
            audio.features(samples, 16000, 21, "a name")

    def test_silence_among_sound_is_low(self) -> None:
        samples = np.concatenate([noise(3200), np.zeros(3200, np.int16)])
        found = audio.features(samples, 16000, 21, "half")
        assert found[:10].min() > 0
        assert (found[10:] == found[-1, 0]).all()


class TestFrames:
    @given(st.integers(*audio.RATES), st.integers(0, 20000))
    def test_as_many_as_fit(self, rate: int, samples: int) -> None:
        found = audio.frame_count(samples, rate)
        ends = [i * rate // 50 + rate // 50 for i in range(found + 1)]
        assert found == 0 or ends[-2] <= samples
        assert ends[-1] > samples

    def test_a_second_has_fifty(self) -> None:
        assert [audio.frame_count(rate, rate) for rate in (8000, 11025, 22050)] == [50, 50, 50]


class TestFilters:
    @pytest.mark.parametrize("count", [2, 20, 40, 80])
    @pytest.mark.parametrize("rate", [8000, 8204, 11025, 16000, 22050, 48000])
    def test_triangles_add_up_to_one(self, rate: int, count: int) -> None:
        """Between the first and the last one's middle; and each has something to hear."""
        first, weights = audio.filters(rate, count)
        top = min(8000, rate // 2)
        total = np.zeros(top // 50 + 1)
        for start, row in zip(first, weights, strict=True):
            assert row.max() > 0
            total[start : start + len(row)] += row
        corner = top / (count + 1)
        frequency = np.arange(len(total)) * 50
        inside = (frequency >= corner) & (frequency <= top - corner)
        np.testing.assert_allclose(total[inside], 1.0, rtol=1e-9)
        assert total[0] == 0
        assert total[~inside].max() < 1

    def test_by_hand(self) -> None:
        """Corners at 0, 2000, 4000, 6000 and 8000 Hz: 40 frequencies from each to the next."""
        first, weights = audio.filters(16000, 3)
        assert first.tolist() == [1, 41, 81]
        up = np.arange(1, 41) / 40
        for row in weights:
            np.testing.assert_allclose(row, [*up, *up[-2::-1]], rtol=1e-12)


class TestWav:
    @pytest.mark.parametrize("rate", [8000, 16000, 44100])
    def test_round_trip(self, tmp_path: Path, rate: int) -> None:
        samples = np.array([0, 1, -1, 32767, -32768, 258], np.int16)
        path = written(tmp_path / "a.wav", samples.astype("<i2").tobytes(), rate=rate)
        assert audio.measured(path) == (rate, 6)
        found_rate, found = audio.read(path)
        assert found_rate == rate
        assert found.dtype == np.int16
        np.testing.assert_array_equal(found, samples)

    def test_other_parts_of_the_file_are_passed_over(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.wav", b"abcd")
        whole = path.read_bytes()
        tags = b"LIST" + (8).to_bytes(4, "little") + b"INFOISFT"
        size = (len(whole) + len(tags) - 8).to_bytes(4, "little")
        path.write_bytes(whole[:4] + size + whole[8:36] + tags + whole[36:] + b"more")
        assert audio.read(path)[1].tobytes() == b"abcd"

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"width": 1}, "8 bits a sample"),
            ({"width": 3}, "24 bits a sample"),
            ({"width": 4}, "32 bits a sample"),
            ({"channels": 2}, "2 channels"),
            ({"channels": 6}, "6 channels"),
        ],
    )
    def test_another_kind(self, tmp_path: Path, given: dict[str, int], message: str) -> None:
        path = written(tmp_path / "a.wav", bytes(24), **given)
        for act in (audio.measured, audio.read):
            with pytest.raises(DataError) as found:
                act(path)
            assert str(found.value) == (
                f"{path}: {message}; expected a wav file of 16-bit PCM with one channel"
            )

    @pytest.mark.parametrize("rate", [7999, 48001, 96000])
    def test_a_rate_out_of_range(self, tmp_path: Path, rate: int) -> None:
        path = written(tmp_path / "a.wav", bytes(24), rate=rate)
        with pytest.raises(DataError, match=rf"a\.wav: {rate} Hz; expected 8000 to 48000 Hz"):
            audio.measured(path)

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda whole: b"", "empty file; expected a wav file"),
            (lambda whole: whole[:3], "truncated in its header; expected a wav file"),
            (lambda whole: whole[:20], "truncated in its header; expected a wav file"),
            (lambda whole: whole[:36], "chunk missing; expected a wav file"),
            (lambda whole: b"fLaC" + whole, "does not start with RIFF id; expected a wav file"),
            (lambda whole: whole[:8] + b"AVI " + whole[12:], "not a WAVE file; expected"),
            (lambda whole: whole[:20] + b"\3" + whole[21:], "unknown format: 3; expected"),
            (lambda whole: whole[:40] + b"\xff\xff\xff\xff", "declares 2147483647 samples"),
            (lambda whole: whole[:60], "declares 32 samples of 2 bytes, and has 60 bytes in all"),
            (lambda whole: whole[:36] + b"LIST\xff\0\0\0" + whole[36:], "damaged; expected"),
        ],
        ids=["empty", "short", "header", "no data", "flac", "riff", "float", "huge", "cut", "part"],
    )
    def test_not_a_wav_file(
        self, tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
    ) -> None:
        path = written(tmp_path / "a.wav", bytes(64))
        path.write_bytes(spoil(path.read_bytes()))
        for act in (audio.measured, audio.read):
            with pytest.raises(DataError, match=message) as found:
                act(path)
            assert str(found.value).startswith(f"{path}: ")

    def test_cut_off_anywhere(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.wav", bytes(20))
        whole = path.read_bytes()
        for end in range(len(whole)):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"a\.wav: (empty|truncated|not a WAVE|.*missing)"):
                audio.read(path)

    def test_any_header_is_read_or_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.wav", bytes(64))
        whole = path.read_bytes()
        refused = []
        for place in range(44):
            for flip in (1, 128, 255):
                content = bytearray(whole)
                content[place] ^= flip
                path.write_bytes(content)
                try:
                    audio.read(path)
                except DataError as error:
                    refused.append(str(error))
        assert 44 < len(refused) < 3 * 44
        assert all(words.startswith(f"{path}: ") for words in refused)

    def test_a_file_that_may_not_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = written(tmp_path / "a.wav", bytes(20))

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(DataError, match=r"a\.wav: cannot be read \(Permission denied\)"):
            audio.read(path)


class TestSpeaking:
    def test_speech(self) -> None:
        pytest.importorskip("espeakng_loader")
        speech = audio.speak(SAID)
        assert speech.rate == 22050
        assert speech.version.startswith("1.")
        assert len(speech.sounds) == len(SAID)
        for sound in speech.sounds:
            assert sound.dtype == np.int16
            assert 0.5 < len(sound) / speech.rate < 2
            assert np.abs(sound.astype(int)).max() > 3000

    def test_the_same_words_sound_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the time of day, the folder, the language and the variables of eSpeak's are."""
        pytest.importorskip("espeakng_loader")
        first = audio.speak(SAID)
        assert (
            hashlib.sha256(b"".join(sound.tobytes() for sound in first.sounds)).hexdigest()
            == SOUND_OF_SAID
        )
        monkeypatch.setenv("ESPEAK_DATA_PATH", "/nowhere")
        monkeypatch.setenv("LC_ALL", "C")
        monkeypatch.chdir("/")
        second = audio.speak(SAID)
        for one, other in zip(first.sounds, second.sounds, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(
        ("changed", "longer"),
        [
            ({"speed": 100}, True),
            ({"text": "two red cats and a dog"}, True),
            ({"speed": 300}, False),
        ],
    )
    def test_what_is_asked_for_is_heard(self, changed: dict[str, Any], longer: bool) -> None:
        pytest.importorskip("espeakng_loader")
        plain, other = audio.speak([SAID[0], SAID[0]._replace(**changed)]).sounds
        assert (len(other) > 1.2 * len(plain)) == longer
        assert (len(other) < 0.8 * len(plain)) != longer

    def test_a_higher_pitch_has_more_periods(self) -> None:
        """The lag at which the sound is most like itself is shorter."""
        pytest.importorskip("espeakng_loader")
        lags = []
        for sound in audio.speak([SAID[0]._replace(text="aaa", pitch=p) for p in (20, 80)]).sounds:
            middle = sound[len(sound) // 2 :][:2000].astype(np.float64)
            like = np.correlate(middle, middle, "full")[len(middle) - 1 :]
            lags.append(50 + int(like[50:500].argmax()))
        assert lags[1] < 0.8 * lags[0]

    def test_a_voice_that_is_not_there(self) -> None:
        pytest.importorskip("espeakng_loader")
        with pytest.raises(DataError, match="refuses to say 'two red cats' as klingon-2, 175, 50"):
            audio.speak([SAID[0]._replace(voice="klingon-2")])

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "espeakng_loader", None)
        with pytest.raises(
            DataError, match=r"speaking sentences needs pip install 'xbench\[data\]' .*espeakng"
        ):
            audio.speak(SAID)

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (Path.unlink, "cannot be loaded"),
            (lambda library: library.write_bytes(b""), "cannot be loaded"),
            (lambda library: library.write_text("no library"), "cannot be loaded"),
            (lambda library: library.write_bytes(library.read_bytes()[:5000]), ""),
            (lambda library: None, "cannot read its data, espeak-ng-data"),
            (lambda library: (library.parent / "espeak-ng-data").mkdir(), "read its data"),
        ],
        ids=["missing", "empty", "text", "cut", "no data", "empty data"],
    )
    def test_a_damaged_package(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        spoil: Callable[[Path], object],
        message: str,
    ) -> None:
        loader = pytest.importorskip("espeakng_loader")
        library = tmp_path / "libespeak-ng.so"
        library.write_bytes(Path(loader.get_library_path()).read_bytes())
        spoil(library)
        moved = SimpleNamespace(get_library_path=lambda: str(library))
        monkeypatch.setitem(sys.modules, "espeakng_loader", moved)
        # No other data is taken instead.
        monkeypatch.setenv("ESPEAK_DATA_PATH", str(Path(loader.get_data_path()).parent))
        with pytest.raises(DataError) as found:
            audio.speak(SAID)
        assert str(found.value).startswith("eSpeak NG of espeakng-loader does not work here: ")
        assert message in str(found.value)
        assert str(library) in str(found.value)

    def test_a_library_that_ends_its_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("espeakng_loader")
        program = tmp_path / "crash.py"
        program.write_text("import os\nos.abort()\n")
        monkeypatch.setattr(audio, "PROGRAM", program)
        with pytest.raises(DataError, match=r"work here: .*espeak-ng.*: ends with exit status -6"):
            audio.speak(SAID)
