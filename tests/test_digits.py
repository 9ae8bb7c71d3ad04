"""The digits: the pinned default, IDX files in every layout, their faults, order, mean image."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench import draws
from xbench.data import Batches, digest
from xbench.errors import DataError
from xbench.models import digits

Image = pytest.importorskip("PIL.Image")

Array = np.ndarray[Any, Any]

DEFAULT_SEED_0 = "63eba3420553743a793f2f7dde689ef6e1643177f66e6eac1a0a9eaca1bd927e"
PINNED_ORDER = [6, 5, 4, 0, 3, 1, 7, 2, 6, 5, 7, 4]
TRAIN = "train-images-idx3-ubyte"
TEST = "t10k-images-idx3-ubyte"


def load(
    source: str | Path | None,
    *,
    side: int = 4,
    batch: int = 2,
    count: int = 1,
    seed: int = 0,
    model: str = "autoencoder",
) -> Batches:
    text = None if source is None else str(source)
    return digits.load(model, side=side, batch=batch, count=count, seed=seed, source=text)


def packed(*sizes: int, magic: int = digits.IMAGES) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in (magic, *sizes))


def idx(images: Array) -> bytes:
    """An IDX file by its description: magic number, extents, pixels row by row."""
    return packed(*images.shape) + images.astype(np.uint8).tobytes()


def uniform(*greys: int, side: int = 4) -> Array:
    """One image of each grey."""
    return np.repeat(np.array(greys, np.uint8), side * side).reshape(-1, side, side)


def squeezed(content: bytes) -> bytes:
    """gzip without the time of day."""
    return gzip.compress(content, 1, mtime=0)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(squeezed(content) if path.suffix == ".gz" else content)
    return path


def greys(batches: Batches) -> list[list[int]]:
    """Batch by batch the grey of every image; all pixels must have it."""
    shown = []
    for batch in batches.inputs:
        levels = np.rint(batch["image"] * 255).astype(int)
        assert (levels == levels[:, :1]).all()
        shown.append(levels[:, 0].tolist())
    return shown


def flat(batches: Batches) -> list[int]:
    return [grey for batch in greys(batches) for grey in batch]


class TestEmbedded:
    def test_the_default_is_pinned(self) -> None:
        """The same bits on every machine; a change here changes every result."""
        batches = load(None, side=28, batch=128)
        assert digest(batches.inputs[0]) == DEFAULT_SEED_0
        for part in ("1,797 handwritten digits of 8x8", "UCI", "scikit-learn 1.", "28x28"):
            assert part in batches.description

    def test_layout_and_range(self) -> None:
        batches = load(None, side=28, batch=3, count=2)
        assert [list(batch) for batch in batches.inputs] == [["image"], ["image"]]
        for batch in batches.inputs:
            image = batch["image"]
            assert image.shape == (3, 784)
            assert image.dtype == np.float32
            assert image.flags.c_contiguous
            levels = np.rint(image * 255)
            np.testing.assert_array_equal(image, levels.astype(np.float32) / np.float32(255))
            assert levels.min() == 0
            assert 200 < levels.max() <= 255

    def test_levels_against_the_package(self) -> None:
        """sklearn's own reader, scaled to 255 in floating point and rounded half up."""
        datasets = pytest.importorskip("sklearn.datasets")
        images, _ = digits.embedded()
        exact = datasets.load_digits().images * 255 / 16
        np.testing.assert_array_equal(images, np.floor(exact + 0.5))
        assert set(np.unique(images)) == {(value * 255 + 8) // 16 for value in range(17)}

    def test_it_is_read_without_the_package(self) -> None:
        """And so without what the package imports."""
        code = (
            "import sys\nfrom xbench.models import digits\n"
            "digits.load('x', side=28, batch=2, count=1, seed=0, source=None)\n"
            "assert not {'sklearn', 'scipy', 'torch', 'tensorflow'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_the_size_of_the_file_needs_no_scaling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
        batches = load(None, side=8)
        assert "resized" not in batches.description
        with pytest.raises(DataError, match=r"scaling images needs pip install 'xbench\[data\]'"):
            load(None, side=28)

    def test_by_name_against_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "autoenc" / TRAIN, idx(uniform(7, 7)))
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert greys(load(None, model="autoenc")) == [[7, 7]]
        assert "scikit-learn" in load("digits", model="autoenc").description
        assert "scikit-learn" in load(None, model="autoencoder").description

    def test_a_missing_package_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn", None)
        with pytest.raises(DataError, match=r"needs pip install 'xbench\[data\]' .*sklearn"):
            load(None)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda whole: b"",
            lambda whole: whole[: len(whole) // 2],
            lambda whole: whole[:2000] + bytes(100) + whole[2100:],
            lambda whole: gzip.compress(b"", mtime=0)[:10] + b"\x07" + whole[11:],
            lambda whole: gzip.compress(b"0,1,2\n3,4,5\n"),
            lambda whole: gzip.compress(gzip.decompress(whole).replace(b"16", b"17", 1)),
            lambda whole: gzip.compress(gzip.decompress(whole) + b"0,1\n"),
            lambda whole: gzip.compress(gzip.decompress(whole).replace(b"5", b"five", 1)),
        ],
        ids=["empty", "cut", "damaged", "block", "table", "range", "ragged", "text"],
    )
    @pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
    def test_a_damaged_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[bytes], bytes]
    ) -> None:
        part = "datasets/data/digits.csv.gz"
        package = find_spec("sklearn")
        assert package is not None
        assert package.origin is not None
        whole = Path(package.origin).parent.joinpath(part).read_bytes()
        copy = tmp_path / part
        copy.parent.mkdir(parents=True)
        moved = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr("xbench.models.digits.find_spec", lambda name: moved)
        with pytest.raises(DataError, match=r"digits\.csv\.gz: cannot .*expected 1797 lines"):
            load(None)
        copy.write_bytes(whole)
        load(None)
        copy.write_bytes(spoil(whole))
        with pytest.raises(DataError, match=r"digits\.csv\.gz: .*expected 1797 lines"):
            load(None)


class TestOrder:
    def test_all_before_any_again(self, tmp_path: Path) -> None:
        path = write(tmp_path / TRAIN, idx(uniform(*range(10))))
        shown = flat(load(path, batch=5, count=6))
        rounds = [shown[start : start + 10] for start in (0, 10, 20)]
        assert all(sorted(one) == list(range(10)) for one in rounds)
        assert len({tuple(one) for one in rounds}) == 3
        assert list(range(10)) not in rounds

    def test_repeats_are_told(self, tmp_path: Path) -> None:
        path = write(tmp_path / TRAIN, idx(uniform(*range(10))))
        once, more = (load(path, batch=batch).description for batch in (10, 11))
        assert once == f"10 images of 4x4 from {path}, shuffled with seed 0"
        assert more == f"{once}, repeated to fill 11"

    def test_the_seed_is_all_that_steers(self, tmp_path: Path) -> None:
        path = write(tmp_path / TRAIN, idx(uniform(*range(50))))
        orders = {tuple(flat(load(path, batch=50, seed=seed))) for seed in range(4)}
        assert len(orders) == 4
        one = flat(load(path, batch=60, seed=1))
        assert flat(load(path, batch=6, count=10, seed=1)) == one
        assert flat(load(path, batch=3, count=5, seed=1, model="autoenc")) == one[:15]

    def test_bits_of_the_order(self) -> None:
        """The stream and the sort are fixed by their algorithms."""
        assert draws.shuffled(8, 12, 0, "digits").tolist() == PINNED_ORDER

    @given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**64))
    def test_shares_are_even(self, total: int, needed: int, seed: int) -> None:
        order = draws.shuffled(total, needed, seed, "digits")
        assert len(order) == needed
        counts = np.bincount(order, minlength=total)
        assert len(counts) == total
        assert counts.max() - counts.min() <= 1
        for start in range(0, needed, total):
            part = order[start : start + total]
            assert len(set(part.tolist())) == len(part)


class TestResize:
    def test_bits(self) -> None:
        """A triangle filter by hand: 2 to 4 pixels, weights 3/4 and 1/4, edges repeated."""
        image = np.array([[[0, 80], [160, 240]]], np.uint8)
        row = np.array([0, 20, 60, 80])
        expected = row[None] + 2 * row[:, None]
        np.testing.assert_array_equal(digits.scaled(image, 4)[0], expected)

    def test_the_same_size_is_left(self) -> None:
        images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
        np.testing.assert_array_equal(digits.scaled(images, 4), images)

    def test_smaller_and_not_square(self, tmp_path: Path) -> None:
        """Cut centrally to the aspect; then a uniform image stays uniform."""
        images = np.zeros((2, 8, 12), np.uint8)
        images[:, :, 2:10] = np.array([50, 200]).reshape(2, 1, 1)
        batches = load(write(tmp_path / "any.idx", idx(images)))
        assert sorted(flat(batches)) == [50, 200]
        assert "2 images of 8x12" in batches.description
        assert "resized to 4x4" in batches.description

    def test_pixels_arrive_row_by_row(self, tmp_path: Path) -> None:
        images = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
        found = load(write(tmp_path / TRAIN, idx(images)), batch=1).inputs[0]["image"]
        np.testing.assert_array_equal(
            found, np.arange(16, dtype=np.float32)[None] / np.float32(255)
        )


class TestLayouts:
    @pytest.mark.parametrize("ending", ["", ".gz"])
    @pytest.mark.parametrize("folder", ["", "raw", "MNIST/raw", TRAIN])
    @pytest.mark.parametrize("style", ["-idx3-ubyte", ".idx3-ubyte"])
    @pytest.mark.parametrize("part", ["train", "t10k"])
    def test_every_name_and_place(
        self, tmp_path: Path, part: str, style: str, folder: str, ending: str
    ) -> None:
        name = f"{part}-images{style}{ending}"
        path = write(tmp_path / (name if folder == TRAIN else folder) / name, idx(uniform(9, 9)))
        write(path.with_name(f"{part}-labels-idx1-ubyte"), packed(2, magic=digits.LABELS) + b"ab")
        batches = load(tmp_path)
        assert greys(batches) == [[9, 9]]
        assert batches.description == f"2 images of 4x4 from {path}, shuffled with seed 0"

    def test_the_training_set_comes_first_then_the_plain_file(self, tmp_path: Path) -> None:
        write(tmp_path / TEST, idx(uniform(1, 1)))
        assert greys(load(tmp_path)) == [[1, 1]]
        write(tmp_path / "MNIST" / "raw" / f"{TRAIN}.gz", idx(uniform(2, 2)))
        assert greys(load(tmp_path)) == [[2, 2]]
        write(tmp_path / "MNIST" / "raw" / TRAIN, idx(uniform(3, 3)))
        assert greys(load(tmp_path)) == [[3, 3]]
        write(tmp_path / f"{TRAIN}.gz", idx(uniform(4, 4)))
        assert greys(load(tmp_path)) == [[3, 3]]

    def test_another_set_of_the_same_layout_is_not_taken_for_it(self, tmp_path: Path) -> None:
        write(tmp_path / "FashionMNIST" / "raw" / TRAIN, idx(uniform(1, 1)))
        with pytest.raises(DataError, match="no such file"):
            load(tmp_path)
        assert greys(load(tmp_path / "FashionMNIST")) == [[1, 1]]

    @pytest.mark.parametrize("name", ["any.idx", "any.gz"])
    def test_one_file_of_any_name(self, tmp_path: Path, name: str) -> None:
        assert greys(load(write(tmp_path / name, idx(uniform(5, 5))))) == [[5, 5]]

    def test_what_counts_is_the_content(self, tmp_path: Path) -> None:
        """Browsers unpack a download and leave its name."""
        path = tmp_path / f"{TRAIN}.gz"
        path.write_bytes(idx(uniform(5, 5)))
        assert greys(load(tmp_path)) == [[5, 5]]

    def test_a_plain_file_is_mapped(self, tmp_path: Path) -> None:
        images = digits.read(write(tmp_path / TRAIN, idx(uniform(1, 2))))
        assert isinstance(images, np.memmap)
        assert not images.flags.writeable


class TestFaults:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty; expected an IDX file of images"),
            (b"\0\0", "starts with 0x0000; expected .*0x00000803"),
            (packed(2, 4, 4, magic=0x00000D03) + bytes(32), "starts with 0x00000d03; .*0x00000803"),
            (packed(2, 4, 4, magic=0x03080000) + bytes(32), "starts with 0x03080000; .*0x00000803"),
            (packed(9, magic=digits.LABELS) + bytes(9), r"holds labels \(.*0x00000801\); .*images"),
            (b"\x89PNG\r\n\x1a\n" + bytes(99), "starts with 0x89504e47; expected an IDX file"),
            (packed(2, 4), "truncated: 12 of the 16 bytes of its header"),
            (packed(0, 4, 4), "declares 0 images of 4x4; expected at least 1"),
            (packed(2, 0, 4), "declares 2 images of 0x4; expected at least 1"),
            (packed(2, 4, 4), "truncated: declares 2 images of 4x4 = 32 bytes, holds 0"),
            (packed(2, 4, 4) + bytes(31), "declares 2 images of 4x4 = 32 bytes, holds 31"),
            (packed(2, 4, 4) + bytes(33), "declares 2 images of 4x4 = 32 bytes, and 1 more follow"),
            (packed(*3 * [2**32 - 1]) + bytes(9), "declares 4294967295 images .*holds 9"),
        ],
        ids=["empty", "short", "kind", "order", "labels", "png", "header", "none", "flat",
             "no pixels", "truncated", "trailing", "huge"],
    )  # fmt: skip
    @pytest.mark.parametrize("ending", ["", ".gz"])
    def test_content(self, tmp_path: Path, content: bytes, message: str, ending: str) -> None:
        path = write(tmp_path / f"{TRAIN}{ending}", content)
        for source in (tmp_path, path):
            with pytest.raises(DataError, match=message) as found:
                load(source)
            assert str(found.value).startswith(f"{path}: ")

    def test_a_damaged_gzip(self, tmp_path: Path) -> None:
        path = write(tmp_path / f"{TRAIN}.gz", idx(np.arange(3200).reshape(-1, 4, 4)))
        whole = path.read_bytes()
        spoilt = {
            "content": whole[:60] + bytes(20) + whole[80:],
            "block": whole[:10] + b"\x07" + whole[11:],
            "checksum": whole[:-8] + bytes(8),
            "method": whole[:2] + b"\x07" + whole[3:],
            "more": whole + b"more",
        }
        for content in spoilt.values():
            path.write_bytes(content)
            with pytest.raises(DataError, match=rf"{TRAIN}\.gz: damaged gzip file \("):
                load(tmp_path)

    def test_a_gzip_cut_off(self, tmp_path: Path) -> None:
        path = write(tmp_path / f"{TRAIN}.gz", idx(uniform(1, 2)))
        whole = path.read_bytes()
        for end in range(2, len(whole)):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"\.gz: truncated: the gzip stream has no end"):
                load(tmp_path)

    def test_a_missing_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            load(tmp_path / "nowhere")

    def test_an_empty_folder_and_one_without_images(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(DataError, match=rf"{tmp_path}: expected MNIST's images, {TRAIN}"):
                load(tmp_path)
            write(tmp_path / "train-labels-idx1-ubyte", packed(1, magic=digits.LABELS) + b"a")

    def test_a_folder_of_the_environment_is_not_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "autoencoder").mkdir()
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        with pytest.raises(DataError, match="autoencoder: expected MNIST's images"):
            load(None)

    def test_a_file_that_may_not_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / TRAIN, idx(uniform(1)))

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(DataError, match=rf"{TRAIN}: cannot be read \(Permission denied\)"):
            load(path)


SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idx") / "file"


class TestReader:
    @given(shape=SHAPES, pixels=st.binary(min_size=180, max_size=180), squeeze=st.booleans())
    def test_round_trip(
        self, scratch: Path, shape: tuple[int, int, int], pixels: bytes, squeeze: bool
    ) -> None:
        images = np.frombuffer(pixels, np.uint8)[: np.prod(shape)].reshape(shape)
        content = idx(images)
        scratch.write_bytes(squeezed(content) if squeeze else content)
        found = digits.read(scratch)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, images)

    @given(shape=SHAPES, data=st.data(), squeeze=st.booleans())
    def test_any_other_length_is_an_error(
        self, scratch: Path, shape: tuple[int, int, int], data: st.DataObject, squeeze: bool
    ) -> None:
        content = idx(np.full(shape, 7))
        if squeeze:
            content = squeezed(content)
        end = data.draw(st.integers(0, len(content) - 1))
        # gzip allows zeros after its end.
        more = data.draw(st.binary(min_size=1, max_size=9).filter(any))
        for other in (content[:end], content + more):
            scratch.write_bytes(other)
            with pytest.raises(DataError, match=str(scratch)):
                digits.read(scratch)

    @given(content=st.binary(max_size=40))
    def test_anything_else_is_an_error_too(self, scratch: Path, content: bytes) -> None:
        scratch.write_bytes(content)
        with pytest.raises(DataError, match=str(scratch)):
            digits.read(scratch)


class TestMeanImage:
    def test_over_all_images_of_batches_of_any_size(self) -> None:
        batches = [
            {"image": np.array([[0, 1], [1, 1]], np.float32)},
            {"image": np.array([[0.5, 1]], np.float32), "noise": np.zeros(1, np.float32)},
        ]
        found = digits.mean_image(batches)
        assert found.dtype == np.float64
        assert found.tolist() == [0.5, 1.0]

    def test_the_sums_are_exact(self) -> None:
        """Against whole numbers: a float32 pixel is a multiple of 2^-31."""
        batches = load(None, side=28, batch=100, count=18).inputs
        whole = sum(
            (b["image"].astype(np.float64) * 2.0**31).astype(np.int64).sum(0) for b in batches
        )
        np.testing.assert_array_equal(digits.mean_image(batches), whole / 2.0**31 / 1800)
        np.testing.assert_array_equal(digits.mean_image(batches[::-1]), digits.mean_image(batches))

    def test_it_is_the_best_constant(self) -> None:
        batches = load(None, side=28, batch=1797).inputs
        mean, image = digits.mean_image(batches), batches[0]["image"]
        error = float(np.square(image - mean).mean())
        assert error == pytest.approx(float(image.astype(np.float64).var(axis=0).mean()), rel=1e-12)
