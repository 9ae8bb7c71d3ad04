"""Data of the image classifiers: pinned crops, class folders, damage, and the class frequencies."""

from __future__ import annotations

import importlib.metadata
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.data import Batches, digest
from xbench.errors import DataError
from xbench.models import photographs, pictures

Image = pytest.importorskip("PIL.Image")

Array = np.ndarray[Any, Any]

PNG_ALONE = "a1e23d633f1bc6a02656b8636958b2640951f29574f1858643e047ea685fc930"
ALL_TEN = "f03a4a24146cbd3f2d9944baee928d1c54ea8f9bd580897b581210866a08ba41"


def load(
    source: str | Path | None = None,
    *,
    classes: int = 10,
    side: int = 8,
    batch: int = 2,
    count: int = 1,
    seed: int = 0,
) -> Batches:
    return photographs.load(
        "vgg",
        classes=classes,
        side=side,
        batch=batch,
        count=count,
        seed=seed,
        source=None if source is None else str(source),
    )


def joined(batches: Batches, name: str) -> Array:
    return np.concatenate([batch[name] for batch in batches.inputs])


def levels(images: Array) -> Array:
    """What was read, (n, side, side, 3) from 0 to 255, from what a network is fed."""
    scaled = images.astype(np.float64).transpose(0, 2, 3, 1)
    found = (scaled * photographs.DEVIATION + photographs.MEAN) * 255
    np.testing.assert_allclose(found, np.rint(found), atol=1e-4)
    return np.rint(found).astype(np.uint8)


def write(folder: Path, *greys: int, suffix: str = "png") -> None:
    """Uniform pictures named after their grey."""
    folder.mkdir(parents=True, exist_ok=True)
    for grey in greys:
        Image.new("RGB", (12, 9), (grey, grey, grey)).save(folder / f"{grey:03}.{suffix}")


def shown(batches: Batches) -> list[tuple[int, int]]:
    """Label and grey of every picture, which must be uniform."""
    found = levels(joined(batches, "image"))
    assert (found == found[:, :1, :1, :1]).all()
    return list(zip(joined(batches, "label").tolist(), found[:, 0, 0, 0].tolist(), strict=True))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    write(tmp_path / "pets" / "cat", 1, 2, 3)
    write(tmp_path / "pets" / "dog", 11, 12)
    return tmp_path / "pets"


PETS = [(0, 1), (0, 2), (0, 3), (1, 11), (1, 12)]


class TestCrops:
    def test_png_alone_is_pinned(self) -> None:
        """The same bits wherever: no JPEG decoder has a part in it."""
        assert all(name.endswith(".png") for _, name in photographs.PHOTOGRAPHS[:5])
        assert digest(load(classes=5, side=32, batch=10).inputs[0]) == PNG_ALONE

    def test_all_ten_are_pinned(self) -> None:
        """With scikit-image 0.26.0, scikit-learn 1.9.1 and the libjpeg-turbo of Pillow 11 to 13."""
        assert digest(load(side=32, batch=20).inputs[0]) == ALL_TEN

    def test_layout_and_range(self) -> None:
        batches = load(side=12, batch=3, count=2)
        assert len(batches.inputs) == 2
        for batch in batches.inputs:
            assert batch["image"].shape == (3, 3, 12, 12)
            assert batch["image"].dtype == np.float32
            assert batch["image"].flags.c_contiguous
            assert batch["label"].shape == (3,)
            assert batch["label"].dtype == np.int64
        levels(joined(batches, "image"))
        assert batches.description == (
            "crops of 10 photographs that scikit-image and scikit-learn ship, made with seed 0"
        )

    def test_every_run_holds_every_class_once(self) -> None:
        labels = joined(load(side=1, batch=10, count=20), "label").reshape(20, 10)
        assert (np.sort(labels, axis=1) == np.arange(10)).all()
        assert len({tuple(row) for row in labels.tolist()}) > 15

    @pytest.mark.parametrize("classes", [1, 3, 10, 1000])
    def test_no_more_classes_than_asked_for(self, classes: int) -> None:
        batches = load(classes=classes, side=1, batch=20)
        used = min(classes, 10)
        assert set(joined(batches, "label").tolist()) == set(range(used))
        assert f"crops of {used} photographs" in batches.description

    def test_fewer_classes_name_only_what_they_need(self) -> None:
        assert "that scikit-image ship" in load(classes=5).description

    def test_batching_and_length_change_nothing(self) -> None:
        """Only how the same crops are cut into batches, and how many there are."""
        long = load(batch=12, count=2)
        for name in ("image", "label"):
            short = joined(load(batch=3, count=4), name)
            np.testing.assert_array_equal(joined(long, name)[:12], short)

    def test_the_seed_chooses(self) -> None:
        seeds = [load(seed=seed, batch=10) for seed in range(4)]
        assert len({digest(batches.inputs[0]) for batches in seeds}) == 4
        assert len({tuple(joined(batches, "label").tolist()) for batches in seeds}) == 4

    def test_a_model_changes_nothing(self) -> None:
        """The three classifiers see the same crops."""
        of = [
            photographs.load(m, classes=10, side=4, batch=4, count=1, seed=3, source=None)
            for m in ("alexnet", "vgg", "residual")
        ]
        assert len({digest(batches.inputs[0]) for batches in of}) == 1

    def test_each_photograph_is_decoded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        original = pictures.read

        def counted(path: Path) -> Any:
            opened.append(path.name)
            return original(path)

        monkeypatch.setattr(pictures, "read", counted)
        load(batch=40)
        assert sorted(opened) == sorted(Path(name).name for _, name in photographs.PHOTOGRAPHS)

    def test_no_package_is_imported(self) -> None:
        """Each would take seconds at every start."""
        script = (
            "import sys\n"
            "from xbench.models.photographs import load\n"
            "load('vgg', classes=10, side=2, batch=2, count=1, seed=0, source='photographs')\n"
            "print(sorted({'sklearn', 'skimage', 'scipy', 'torch'} & set(sys.modules)))"
        )
        found = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == "[]"

    @given(st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(0, 2**64 - 1), min_size=4))
    def test_a_crop_is_a_square_of_the_picture(
        self, width: int, height: int, words: list[int]
    ) -> None:
        """A picture whose pixels say where they are, cut without scaling, is found in it again."""
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        own = np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)
        shorter = min(width, height)
        edge = (shorter + 1) // 2 + (words[0] * (shorter // 2 + 1) >> 64)
        assert shorter / 2 <= edge <= shorter
        found = photographs.crop(Image.fromarray(own), edge, words[:4])
        if words[3] >> 63:
            found = found[:, ::-1]
        left, top = found[0, 0, :2].tolist()
        np.testing.assert_array_equal(found, own[top : top + edge, left : left + edge])

    def test_crops_reach_every_size_place_and_side(self) -> None:
        """Both ends of each range are drawn: a corner left out would never be seen."""
        top = 2**64 - 1
        own = np.zeros((4, 6, 3), np.uint8)
        own[..., 0], own[..., 1] = np.arange(6), np.arange(4)[:, None]
        picture = Image.fromarray(own)
        whole = photographs.crop(picture, 4, [top, top, top, 0])
        np.testing.assert_array_equal(whole, own[:, 2:])
        least = photographs.crop(picture, 2, [0, 0, 0, top])
        np.testing.assert_array_equal(least, own[:2, 1::-1])

    @given(st.integers(1, 2**32), st.integers(0, 2**64 - 1))
    def test_below(self, bound: int, word: int) -> None:
        assert 0 <= photographs.below(bound, word) < bound
        assert photographs.below(bound, 2**64 - 1) == bound - 1

    @pytest.mark.parametrize("package", ["sklearn", "skimage", "PIL"])
    def test_a_missing_package_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, package: str
    ) -> None:
        for name in (package, "PIL.Image") if package == "PIL" else (package,):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(DataError, match=rf"pip install 'xbench\[data\]' \(.*{package}"):
            load()

    def test_a_package_without_the_photograph(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "skimage").mkdir()
        (tmp_path / "skimage" / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, "skimage", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(DataError, match=r"astronaut\.png: no such file; .* of scikit-image"):
            load()


class TestNormalised:
    @given(st.integers(0, 255), st.integers(0, 2))
    def test_against_float32_written_out(self, level: int, channel: int) -> None:
        """Bit for bit: level / 255, minus the mean, over the deviation, each rounded once."""
        pixels = np.zeros((1, 1, 1, 3), np.uint8)
        pixels[..., channel] = level
        mean = np.float32((0.485, 0.456, 0.406)[channel])
        deviation = np.float32((0.229, 0.224, 0.225)[channel])
        expected = (np.float32(level) / np.float32(255) - mean) / deviation
        assert photographs.normalised(pixels)[0, channel, 0, 0] == expected

    def test_channels_come_first(self) -> None:
        pixels = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
        np.testing.assert_array_equal(levels(photographs.normalised(pixels)), pixels)


class TestFolder:
    def test_every_picture_once_under_the_label_of_its_folder(self, pets: Path) -> None:
        batches = load(pets, batch=5)
        assert sorted(shown(batches)) == PETS
        assert batches.description == f"pictures of {pets}, 2 classes"
        assert batches.inputs[0]["label"].dtype == np.int64
        assert batches.inputs[0]["image"].flags.c_contiguous

    def test_the_seed_shuffles_over_all_classes(self, pets: Path) -> None:
        orders = {tuple(shown(load(pets, batch=5, seed=seed))) for seed in range(8)}
        assert len(orders) > 5
        assert any(order[0][0] == 1 for order in orders)

    def test_too_few_are_repeated_and_it_says_so(self, pets: Path) -> None:
        batches = load(pets, batch=4, count=3)
        found = shown(batches)
        assert sorted(found[:5]) == PETS
        assert found[5:10] == found[:5]
        assert found[10:] == found[:2]
        assert batches.description.endswith("2 classes, 5 pictures repeated to fill 12")

    def test_batching_and_length_change_nothing(self, pets: Path) -> None:
        assert shown(load(pets, batch=2, count=2)) == shown(load(pets, batch=5))[:4]

    def test_only_names_decide_the_order(self, pets: Path, tmp_path: Path) -> None:
        """Not where the folder lies, nor the order in which the files were made."""
        for name in ("dog/012.png", "cat/003.png", "dog/011.png", "cat/001.png", "cat/002.png"):
            (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pets / name, tmp_path / "copy" / name)
        assert shown(load(tmp_path / "copy", batch=5)) == shown(load(pets, batch=5))

    def test_only_what_is_needed_is_opened(self, pets: Path) -> None:
        """Of a folder of pictures that are none, those that are not chosen are not looked at."""
        order = [grey for _, grey in shown(load(pets, batch=5))]
        for path in pets.rglob("*.png"):
            if int(path.stem) not in order[:2]:
                path.write_bytes(b"no picture")
        assert [grey for _, grey in shown(load(pets, batch=2))] == order[:2]
        with pytest.raises(DataError, match="not a picture"):
            load(pets, batch=3)

    def test_classes_in_the_order_of_plain_strings(self, tmp_path: Path) -> None:
        for label, name in enumerate(["10", "9", "B", "a"]):
            write(tmp_path / name, label)
        assert sorted(shown(load(tmp_path, batch=4))) == [(0, 0), (1, 1), (2, 2), (3, 3)]

    def test_the_first_classes_where_there_are_more(self, pets: Path) -> None:
        (pets / "emu").mkdir()
        batches = load(pets, classes=2, batch=5)
        assert sorted(shown(batches)) == PETS
        assert batches.description == f"pictures of {pets}, the first 2 of 3 classes"

    def test_as_many_classes_as_asked_for_are_all(self, pets: Path) -> None:
        assert load(pets, classes=2).description == f"pictures of {pets}, 2 classes"

    def test_pictures_at_any_depth(self, pets: Path) -> None:
        write(pets / "cat" / "tabby" / "young", 4)
        assert sorted(shown(load(pets, batch=6))) == sorted([*PETS, (0, 4)])

    def test_hidden_and_other_files_are_left_out(self, pets: Path) -> None:
        write(pets / ".cache", 99)
        write(pets / "cat" / ".thumbnails", 99)
        shutil.copy(pets / "cat" / "001.png", pets / "cat" / "._001.png")
        (pets / "cat" / "notes.txt").write_text("none")
        (pets / "README.txt").write_text("none")
        batches = load(pets, batch=6)
        assert sorted(set(shown(batches))) == PETS
        assert "2 classes, 5 pictures repeated" in batches.description

    def test_upper_case_suffixes(self, tmp_path: Path) -> None:
        for label, name in enumerate(["n01440764", "n01443537"]):
            write(tmp_path / name, 20 * label, suffix="JPEG")
            path = tmp_path / name / f"{20 * label:03}.JPEG"
            path.rename(tmp_path / name / f"ILSVRC2012_val_0000029{label}.JPEG")
        assert sorted(shown(load(tmp_path))) == [(0, 0), (1, 20)]

    def test_other_modes_become_rgb(self, pets: Path) -> None:
        base = Image.new("RGB", (12, 9), (0, 0, 0))
        for label, mode in enumerate(["L", "RGBA", "P", "CMYK"]):
            suffix = "jpg" if mode == "CMYK" else "png"
            base.convert(mode).save(pets / "dog" / f"{mode}{label}.{suffix}")
        assert sorted(set(shown(load(pets, batch=9)))) == sorted([*PETS, (1, 0)])

    def test_pictures_are_cut_and_scaled_alike(self, tmp_path: Path) -> None:
        for name, size in (("a", (40, 20)), ("b", (7, 90))):
            write(tmp_path / name, 5)
            words = np.random.Philox(key=size[0]).random_raw(size[0] * size[1] * 3)
            noise = (words >> np.uint64(56)).astype(np.uint8).reshape(size[1], size[0], 3)
            Image.fromarray(noise).save(tmp_path / name / "005.png")
        batches = load(tmp_path)
        for label, found in zip(
            joined(batches, "label"), levels(joined(batches, "image")), strict=True
        ):
            own = pictures.read(tmp_path / "ab"[label] / "005.png")
            np.testing.assert_array_equal(found, pictures.fit(own, 8, 8))

    def test_links_are_followed(self, pets: Path, tmp_path: Path) -> None:
        """Data sets are often put together from links."""
        (tmp_path / "linked" / "dog").mkdir(parents=True)
        (tmp_path / "linked" / "cat").symlink_to(pets / "cat")
        (tmp_path / "linked" / "dog" / "011.png").symlink_to(pets / "dog" / "011.png")
        write(tmp_path / "more", 12)
        (tmp_path / "linked" / "dog" / "more").symlink_to(tmp_path / "more")
        assert sorted(shown(load(tmp_path / "linked", batch=5))) == PETS


class TestWhereFrom:
    def test_the_sub_folder_of_the_environment(
        self, pets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XBENCH_DATA", str(pets.parent))
        assert "photographs" in load().description
        pets.rename(pets.parent / "vgg")
        assert load().description.startswith(f"pictures of {pets.parent / 'vgg'}")
        assert "photographs" in load("photographs").description


class TestBadInput:
    def test_a_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            load(tmp_path / "nowhere")

    def test_a_file(self, pets: Path) -> None:
        with pytest.raises(DataError, match=r"001\.png: not a folder; expected a folder of pic"):
            load(pets / "cat" / "001.png")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"{tmp_path}: expected .*cat/1\.jpg.*holds no folder"):
            load(tmp_path)

    def test_pictures_without_class_folders(self, pets: Path) -> None:
        with pytest.raises(DataError, match=r"cat: expected .*cat/1\.jpg.* pictures but no folder"):
            load(pets / "cat")

    def test_a_class_folder_without_pictures(self, pets: Path) -> None:
        (pets / "cow" / "sub").mkdir(parents=True)
        (pets / "cow" / "notes.txt").write_text("none")
        with pytest.raises(DataError, match=r"pets/cow: class folder without pictures \(.*\.jpeg"):
            load(pets)

    def test_one_class(self, pets: Path) -> None:
        shutil.rmtree(pets / "dog")
        with pytest.raises(DataError, match=r"pets: only one class folder \(cat\); at least two"):
            load(pets)

    @pytest.mark.parametrize("names", [["train", "val"], ["train"], ["test", "training"]])
    def test_parts_of_a_data_set_are_no_classes(self, tmp_path: Path, names: list[str]) -> None:
        for label, name in enumerate(names):
            write(tmp_path / name / "cat", label)
        with pytest.raises(DataError, match=rf"parts of a data set: .* as in {tmp_path}/t"):
            load(tmp_path)

    def test_a_class_may_be_called_train(self, tmp_path: Path) -> None:
        write(tmp_path / "bus", 0)
        write(tmp_path / "train", 1)
        assert sorted(shown(load(tmp_path))) == [(0, 0), (1, 1)]

    @pytest.mark.parametrize("content", [b"", b"hello\n" * 50])
    def test_a_picture_that_is_none(self, pets: Path, content: bytes) -> None:
        (pets / "dog" / "012.png").write_bytes(content)
        with pytest.raises(DataError, match=r"dog/012\.png: not a picture.* expected .*\.jpg"):
            load(pets, batch=5)

    @pytest.mark.parametrize("suffix", ["png", "jpg"])
    def test_a_truncated_picture(self, pets: Path, suffix: str) -> None:
        words = np.random.Philox(key=5).random_raw(64 * 64 * 3)
        noise = (words >> np.uint64(56)).astype(np.uint8).reshape(64, 64, 3)
        path = pets / "dog" / f"cut.{suffix}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(DataError, match=rf"dog/cut\.{suffix}: damaged or truncated picture"):
            load(pets, batch=6)

    def test_a_link_to_nothing(self, pets: Path) -> None:
        (pets / "dog" / "gone.png").symlink_to(pets / "nothing.png")
        with pytest.raises(DataError, match=r"dog/gone\.png: cannot be read .*No such file"):
            load(pets, batch=6)

    @pytest.mark.parametrize("target", ["dog", "."])
    def test_a_link_upwards(self, pets: Path, target: str) -> None:
        (pets / "dog" / "loop").symlink_to(pets / target)
        with pytest.raises(DataError, match=r"pets/dog/loop.*: a link to a folder around it"):
            load(pets)

    def test_a_link_to_itself(self, pets: Path) -> None:
        (pets / "dog" / "loop").symlink_to(pets / "dog" / "loop")
        with pytest.raises(DataError, match=r"pets/dog: cannot be listed"):
            load(pets)

    def test_a_pipe_is_no_picture(self, pets: Path) -> None:
        """Opening it would wait for ever."""
        os.mkfifo(pets / "dog" / "pipe.png")
        assert sorted(shown(load(pets, batch=5))) == PETS


LABELS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=5)


class TestClassFrequencies:
    @given(LABELS)
    def test_against_the_definition(self, labels: list[list[int]]) -> None:
        counts = Counter(label for batch in labels for label in batch)
        total = sum(counts.values())
        expected = [
            sum(-math.log(counts[label] / total) for label in batch) / len(batch)
            for batch in labels
        ]
        found = photographs.class_frequencies([{"label": np.array(batch)} for batch in labels])
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)

    @given(LABELS, st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
    def test_no_other_constant_prediction_is_better(
        self, labels: list[list[int]], scores: list[float]
    ) -> None:
        found = photographs.class_frequencies([{"label": np.array(batch)} for batch in labels])
        sizes = [len(batch) for batch in labels]
        mean = np.average(found, weights=sizes)
        other = np.mean([-math.log(scores[x] / sum(scores)) for batch in labels for x in batch])
        assert mean <= other + 1e-12

    def test_of_the_photographs_it_is_the_number_of_classes(self) -> None:
        inputs = load(side=1, batch=10, count=3).inputs
        assert photographs.class_frequencies(inputs) == pytest.approx([math.log(10)] * 3)

    def test_no_batch(self) -> None:
        assert photographs.class_frequencies([]) == []


def test_the_wheels_themselves_hold_the_photographs() -> None:
    """Not a cache that something filled: a fresh machine without network has them."""
    for package, name in photographs.PHOTOGRAPHS:
        held = importlib.metadata.files(photographs.PACKAGES[package])
        assert held is not None
        assert f"{package}/{name}" in [path.as_posix() for path in held]
