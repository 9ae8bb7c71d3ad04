"""PredNet's frames: the pinned default, folders, videos, and the copy-the-last-frame baseline."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.data import Batches, digest, locate
from xbench.errors import DataError, UsageError
from xbench.models.prednet import SPEC, Config, data

av = pytest.importorskip("av")
Image = pytest.importorskip("PIL.Image")

TINY = SPEC.sizes["tiny"]
SMALL_FRAME = Config(channels=(3, 4), height=8, width=10, time=3)
ENDURO_TINY_SEED_0 = "f96dcfbf5de1e21d778c053bd7b397685774be52ccaffcabc1cfc51998c72dd8"


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XBENCH_DATA", raising=False)


def load(source: str | Path | None, *, batch: int = 2, count: int = 1, seed: int = 0) -> Batches:
    text = None if source is None else str(source)
    return data.load(SMALL_FRAME, batch=batch, count=count, seed=seed, source=text)


def write(folder: Path, greys: range) -> None:
    """Uniform pictures whose names only sort right by number."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, grey in enumerate(greys):
        Image.new("RGB", (10, 8), (grey, grey, grey)).save(folder / f"f{index}.png")


def greys(batches: Batches) -> list[list[list[int]]]:
    """Batch by batch, sequence by sequence, the grey of every frame; all pixels must have it."""
    shown = []
    for batch in batches.inputs:
        frames = batch["frames"] * 255
        first = frames[:, :, :1, :1, :1]
        assert (frames == first).all()
        shown.append(np.rint(first).astype(int)[..., 0, 0, 0].tolist())
    return shown


class TestEnduro:
    def test_the_default_is_pinned(self) -> None:
        """The same bits on every machine with ale-py 0.12.1; a change here changes every result."""
        batches = data.load(TINY, batch=2, count=1, seed=0, source=None)
        assert digest(batches.inputs[0]) == ENDURO_TINY_SEED_0
        assert "Enduro" in batches.description

    def test_layout_and_range(self) -> None:
        batches = data.load(TINY, batch=3, count=2, seed=1, source=None)
        assert [list(batch) for batch in batches.inputs] == [["frames"], ["frames"]]
        for batch in batches.inputs:
            frames = batch["frames"]
            assert frames.shape == SPEC.inputs(TINY)[0].at(batch=3)
            assert frames.dtype == np.float32
            assert frames.flags.c_contiguous
            levels = np.rint(frames * 255)
            np.testing.assert_array_equal(frames, levels.astype(np.float32) / np.float32(255))
            assert levels.min() >= 0
            assert 100 < levels.max() <= 255

    def test_the_seed_steers(self) -> None:
        digests = {
            digest(data.load(TINY, batch=2, count=1, seed=seed, source=None).inputs[0])
            for seed in range(4)
        }
        assert len(digests) == 4

    def test_one_drive_goes_on_through_the_batches(self) -> None:
        """Batching does not change what is seen, only how it is cut."""
        one = data.load(TINY, batch=6, count=1, seed=2, source=None).inputs
        three = data.load(TINY, batch=2, count=3, seed=2, source=None).inputs
        joined = np.concatenate([batch["frames"] for batch in three])
        np.testing.assert_array_equal(one[0]["frames"], joined)

    def test_the_car_moves(self) -> None:
        batches = data.load(TINY, batch=2, count=10, seed=0, source=None)
        frames = np.concatenate([b["frames"].reshape(-1, 3, 32, 40) for b in batches.inputs])
        moved = [float((a != b).mean()) for a, b in pairwise(frames)]
        assert min(moved) > 0
        assert np.median(moved) > 0.02

    def test_a_drive_that_ends_is_followed_by_another(self) -> None:
        """Random driving misses the day's goal, and the game stops after about 3,300 frames."""
        drives = data.enduro(0)
        first = sum(1 for _ in next(drives))
        assert 3000 < first < 4000
        assert np.asarray(next(next(drives))).shape == (122, 152, 3)

    def test_by_name_against_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "prednet", range(6))
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert "Enduro" in load("enduro").description


class TestFolder:
    def test_sequences_follow_one_another_in_natural_order(self, tmp_path: Path) -> None:
        write(tmp_path, range(0, 14))
        batches = load(tmp_path, count=2)
        assert greys(batches) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
        assert batches.description == f"frames of {tmp_path}"

    def test_too_few_start_again_and_say_so(self, tmp_path: Path) -> None:
        write(tmp_path, range(0, 11))
        batches = load(tmp_path, count=2)
        assert greys(batches) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [0, 1, 2]]]
        assert "3 sequences repeated to fill 4" in batches.description

    def test_no_sequence_crosses_folders(self, tmp_path: Path) -> None:
        write(tmp_path / "drive_2", range(0, 5))
        write(tmp_path / "drive_10", range(50, 54))
        assert greys(load(tmp_path)) == [[[0, 1, 2], [50, 51, 52]]]

    def test_kitti_raw_is_read_in_colour(self, tmp_path: Path) -> None:
        drive = tmp_path / "2011_09_26" / "2011_09_26_drive_0001_sync"
        write(drive / "image_00" / "data", range(100, 103))
        write(drive / "image_02" / "data", range(0, 4))
        write(drive / "image_03" / "data", range(20, 24))
        assert greys(load(tmp_path)) == [[[0, 1, 2], [20, 21, 22]]]

    def test_too_few_for_one_sequence(self, tmp_path: Path) -> None:
        write(tmp_path / "a", range(2))
        write(tmp_path / "b", range(1))
        with pytest.raises(DataError, match="2 consecutive frames found, at least 3 needed"):
            load(tmp_path)

    def test_a_missing_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            load(tmp_path / "nowhere")

    def test_an_empty_folder_and_one_without_pictures(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(DataError, match=r"expected pictures \(.*\.png.*\.mp4.*\)"):
                load(tmp_path)
            (tmp_path / "notes.txt").write_text("none")

    def test_a_damaged_picture_is_named(self, tmp_path: Path) -> None:
        write(tmp_path, range(6))
        lines = np.arange(64 * 64 * 3, dtype=np.uint32) ** 2 % 251
        Image.fromarray(lines.astype(np.uint8).reshape(64, 64, 3)).save(tmp_path / "f4.png")
        whole = (tmp_path / "f4.png").read_bytes()
        (tmp_path / "f4.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=r"f4\.png: damaged or truncated"):
            load(tmp_path)

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        write(tmp_path, range(1))
        with pytest.raises(DataError, match=r"f0\.png: expected a folder of pictures, or a video"):
            load(tmp_path / "f0.png")


class TestVideo:
    @pytest.fixture
    def clip(self, tmp_path: Path) -> Path:
        path = tmp_path / "clip.avi"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("ffv1", rate=15)
            stream.width, stream.height, stream.pix_fmt = 10, 8, "bgr0"
            for index in range(7):
                grey = np.full((8, 10, 3), index, np.uint8)
                frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    def test_a_file_and_a_folder_that_holds_it(self, clip: Path) -> None:
        assert greys(load(clip)) == [[[0, 1, 2], [3, 4, 5]]]
        assert greys(load(clip.parent)) == [[[0, 1, 2], [3, 4, 5]]]

    def test_too_short(self, clip: Path) -> None:
        config = Config(channels=(3, 4), height=8, width=10, time=8)
        with pytest.raises(DataError, match=r"clip\.avi: 7 consecutive .* at least 8 needed"):
            data.load(config, batch=1, count=1, seed=0, source=str(clip))

    def test_cut_off_after_enough_frames(self, clip: Path) -> None:
        clip.write_bytes(clip.read_bytes()[:-1])
        with pytest.raises(DataError, match=r"clip\.avi: truncated"):
            load(clip, batch=1)


class TestWhereFrom:
    def test_the_sub_folder_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert locate("prednet", None) is None
        write(tmp_path / "prednet", range(6))
        assert greys(load(None)) == [[[0, 1, 2], [3, 4, 5]]]
        assert locate("prednet", str(tmp_path)) == tmp_path

    def test_an_environment_that_names_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XBENCH_DATA", "/nowhere/at/all")
        with pytest.raises(DataError, match="XBENCH_DATA=/nowhere/at/all: no such folder"):
            load(None)

    @pytest.mark.parametrize("package", ["ale_py", "PIL"])
    def test_a_missing_package_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, package: str
    ) -> None:
        for name in (package, "PIL.Image") if package == "PIL" else (package,):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(DataError, match=r"pip install 'xbench\[data\]'"):
            load(None)


class TestDigest:
    def test_what_counts(self) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        base = digest({"a": array, "b": array})
        different: list[dict[str, Any]] = [
            {"a": array, "c": array},
            {"a": array},
            {"a": array.reshape(3, 2), "b": array},
            {"a": array.view(np.int32), "b": array},
            {"a": array + np.float32(1e-7), "b": array},
            {"a": np.float32(0), "b": array},
        ]
        digests = {digest(arrays) for arrays in different}
        assert len(digests) == len(different)
        assert base not in digests

    def test_what_does_not(self) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        turned = np.asfortranarray(array)
        assert digest({"a": array, "b": array}) == digest({"b": turned, "a": array})


def reference(frames: np.ndarray[Any, Any], loss: str) -> float:
    """The losses written out pixel by pixel from their definition."""
    batch, time, *_ = frames.shape
    total = 0.0
    for t in range(1, time):
        terms = []
        for b in range(batch):
            for x, p in zip(frames[b, t].ravel(), frames[b, t - 1].ravel(), strict=True):
                over, under = max(float(p) - float(x), 0.0), max(float(x) - float(p), 0.0)
                terms += [over, under] if loss != "mse-next" else [(float(p) - float(x)) ** 2]
        total += sum(terms) / len(terms) / (time - 1)
    return total


class TestBaseline:
    @given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from(SPEC.losses))
    def test_against_the_definition(self, seed: int, time: int, loss: str) -> None:
        config = Config(channels=(3, 4), height=2, width=2, time=time)
        words = np.random.Philox(key=seed).random_raw(2 * time * 3 * 4)
        frames = (words >> np.uint64(40)).astype(np.float32).reshape(2, time, 3, 2, 2) / 2**24
        found = data.baseline([{"frames": frames}] * 2, loss, config)
        assert found == pytest.approx([reference(frames, loss)] * 2, rel=1e-12)

    def test_is_the_model_loss_of_a_copied_frame(self) -> None:
        """Against E of the definition that is trained: relu(p - x) and relu(x - p), channels."""
        torch = pytest.importorskip("torch")
        frames = data.load(TINY, batch=2, count=1, seed=0, source=None).inputs[0]["frames"]
        x = torch.from_numpy(frames).double()
        total = 0.0
        for weight, t in zip(TINY.time_weights[1:], range(1, TINY.time), strict=True):
            over, under = x[:, t - 1] - x[:, t], x[:, t] - x[:, t - 1]
            error = torch.cat([torch.relu(over), torch.relu(under)], dim=1)
            total += weight * float(error.mean())
        assert data.baseline([{"frames": frames}], "L0", TINY) == pytest.approx([total], rel=1e-12)
        assert total > 0

    def test_l_all_is_marked(self) -> None:
        assert data.baseline_note("L_all")
        assert not data.baseline_note("L0")

    def test_an_unknown_loss(self) -> None:
        with pytest.raises(UsageError, match="unknown loss 'L1'"):
            data.baseline([{"frames": np.zeros((1, 4, 3, 2, 2))}], "L1", TINY)
