"""Pictures and videos: made here with real encoders, then cut and damaged."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xbench.errors import DataError
from xbench.models import pictures

av = pytest.importorskip("av")
Image = pytest.importorskip("PIL.Image")

VIDEO_KINDS = {
    "plain.mp4": ("mpeg4", {}),
    "faststart.mp4": ("libx264", {"movflags": "faststart"}),
    "clip.mov": ("libx264", {}),
    "clip.mkv": ("libx264", {}),
    "clip.webm": ("libvpx-vp9", {}),
    "clip.avi": ("mpeg4", {}),
}
FRAMES = 12


def noise(height: int = 48, width: int = 64) -> np.ndarray[Any, Any]:
    words = np.random.Philox(key=5).random_raw(height * width * 3)
    return (words >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3)


def encode(path: Path, codec: str, options: dict[str, str], frames: int = FRAMES) -> Path:
    """A video whose frame i is uniformly grey, 16 i."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=15)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(frames):
            grey = np.full((48, 64, 3), 16 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    return {name: encode(folder / name, *how) for name, how in VIDEO_KINDS.items()}


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise()).save(buffer, kind)
    return buffer.getvalue()


ENCODED = {suffix: encoded(kind) for suffix, kind in [
    ("png", "PNG"), ("jpg", "JPEG"), ("bmp", "BMP"), ("ppm", "PPM"),
]}  # fmt: skip


def test_natural_order() -> None:
    names = ["b/1.png", "a/frame10.png", "a/frame9.png", "a/frame009.png", "10/x.png", "9/x.png"]
    expected = ["9/x.png", "10/x.png", "a/frame009.png", "a/frame9.png", "a/frame10.png", "b/1.png"]
    assert [str(p) for p in sorted(map(Path, names), key=pictures.natural)] == expected


@given(st.lists(st.text("ab01²٣9.", min_size=1).filter(lambda s: s not in (".", ".."))))
def test_natural_order_takes_any_name(names: list[str]) -> None:
    """Names never clash in type, and the order does not depend on the order they came in."""
    paths = [Path(name) for name in names]
    backwards = paths[::-1]
    backwards.sort(key=pictures.natural)
    assert sorted(paths, key=pictures.natural) == backwards


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_is_that_of_the_numbers(numbers: list[int]) -> None:
    ordered = sorted((Path(f"f{n}.png") for n in numbers), key=pictures.natural)
    assert [p.name for p in ordered] == [f"f{n}.png" for n in sorted(numbers)]


def test_find_leaves_out_hidden_files_and_other_kinds(tmp_path: Path) -> None:
    for name in ("a.PNG", "._a.png", "b.txt", "sub/c.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    found = pictures.find(tmp_path, pictures.PICTURES)
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a.PNG", "sub/c.jpeg"]


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm"])
def test_read_keeps_the_pixels(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(ENCODED[suffix])
    picture = pictures.read(tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(np.asarray(picture), noise())


def test_read_makes_grey_three_channels(tmp_path: Path) -> None:
    Image.fromarray(noise()[..., 0]).save(tmp_path / "a.png")
    expected = np.repeat(noise()[..., :1], 3, axis=-1)
    np.testing.assert_array_equal(np.asarray(pictures.read(tmp_path / "a.png")), expected)


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", "png"), ("P", "png"), ("CMYK", "jpg")])
@pytest.mark.filterwarnings("error")
def test_read_makes_rgb_of_other_modes(tmp_path: Path, mode: str, suffix: str) -> None:
    """Transparency is dropped, and what ink would print is what is read."""
    colours = np.zeros((16, 16, 3), np.uint8)
    colours[:, :8], colours[:, 8:] = (255, 0, 0), (0, 0, 255)
    extra = {"transparency": bytes([0, 128])} if mode == "P" else {}
    picture = Image.fromarray(colours).convert(mode)
    picture.save(tmp_path / f"a.{suffix}", **extra)
    with Image.open(tmp_path / f"a.{suffix}") as stored:
        assert stored.mode == mode
    found = pictures.read(tmp_path / f"a.{suffix}")
    assert found.mode == "RGB"
    np.testing.assert_allclose(np.asarray(found, np.int16), colours, atol=8)


def test_read_refuses_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"a\.png: cannot be read \(.*No such file.*expected a pic"):
        pictures.read(tmp_path / "a.png")


def test_read_refuses_what_it_would_clip(tmp_path: Path) -> None:
    Image.fromarray(noise()[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png: more than 8 bits"):
        pictures.read(tmp_path / "deep.png")


@pytest.mark.parametrize("content", [b"", b"hello\n" * 50])
def test_read_refuses_what_is_no_picture(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png: not a picture.* expected .*\.jpg"):
        pictures.read(tmp_path / "a.png")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(suffix=st.sampled_from(sorted(ENCODED)), part=st.floats(0, 1, exclude_max=True))
def test_a_cut_picture_is_never_read_as_another(tmp_path: Path, suffix: str, part: float) -> None:
    """What was cut off holds pixels (an error), or only the file's own end mark (no loss)."""
    whole, path = ENCODED[suffix], tmp_path / f"cut.{suffix}"
    path.write_bytes(whole)
    expected = np.asarray(pictures.read(path))
    path.write_bytes(whole[: int(part * len(whole))])
    try:
        found = np.asarray(pictures.read(path))
    except DataError:
        return
    assert part > 0.95
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("suffix", sorted(ENCODED))
def test_a_picture_cut_in_half_is_an_error(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"half.{suffix}").write_bytes(ENCODED[suffix][: len(ENCODED[suffix]) // 2])
    with pytest.raises(DataError, match=rf"half\.{suffix}: damaged or truncated picture"):
        pictures.read(tmp_path / f"half.{suffix}")


@given(*[st.integers(1, 60)] * 4)
def test_fit_gives_the_size_asked_for(across: int, down: int, height: int, width: int) -> None:
    fitted = pictures.fit(Image.new("RGB", (across, down), (1, 2, 3)), height, width)
    assert fitted.shape == (height, width, 3)
    assert fitted.dtype == np.uint8
    assert (fitted == (1, 2, 3)).all()


def test_fit_cuts_the_middle() -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = noise(4, 4)
    np.testing.assert_array_equal(pictures.fit(Image.fromarray(wide), 4, 4), noise(4, 4))
    tall = np.ascontiguousarray(wide.transpose(1, 0, 2))
    expected = noise(4, 4).transpose(1, 0, 2)
    np.testing.assert_array_equal(pictures.fit(Image.fromarray(tall), 4, 4), expected)


def test_fit_averages_what_it_shrinks() -> None:
    """Every pixel counts: a filter that skips some would alias thin lines away."""
    lines = np.zeros((32, 32, 3), np.uint8)
    lines[::8] = 255
    fitted = pictures.fit(Image.fromarray(lines), 4, 4)
    assert abs(fitted.mean() - lines.mean()) < 2
    assert fitted.min() >= 15


@pytest.mark.parametrize("name", sorted(VIDEO_KINDS))
def test_video_gives_every_frame_in_order(videos: dict[str, Path], name: str) -> None:
    greys = [np.asarray(frame).mean() for frame in pictures.video(videos[name])]
    np.testing.assert_allclose(greys, [16 * i for i in range(FRAMES)], atol=4)


def test_video_takes_a_colon_in_its_name(videos: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "http:clip.avi"
    path.write_bytes(videos["clip.avi"].read_bytes())
    assert len(list(pictures.video(path))) == FRAMES


@pytest.mark.parametrize("name", sorted(VIDEO_KINDS))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(data=st.data())
def test_a_cut_video_is_an_error(
    videos: dict[str, Path], tmp_path: Path, name: str, data: st.DataObject
) -> None:
    """At whichever byte, even where every frame is still there."""
    whole = videos[name].read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DataError) as caught:
        list(pictures.video(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["faststart.mp4", "clip.mkv", "clip.avi"])
def test_a_cut_is_found_before_the_first_frame(
    videos: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Though most frames could be read: data must not be silently shorter."""
    whole = videos[name].read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[:-1])
    message = f"truncated: {len(whole) - 1} bytes of the {len(whole)}"
    with pytest.raises(DataError, match=message):
        next(pictures.video(path))


def test_frames_that_the_header_promises(videos: dict[str, Path], tmp_path: Path) -> None:
    """An AVI whose outer length fits but whose stream header counts one frame more."""
    whole = bytearray(videos["clip.avi"].read_bytes())
    at = whole.index(b"strh") + 8 + 32
    assert int.from_bytes(whole[at : at + 4], "little") == FRAMES
    whole[at : at + 4] = (FRAMES + 1).to_bytes(4, "little")
    path = tmp_path / "short.avi"
    path.write_bytes(whole)
    with pytest.raises(DataError, match="declares 13 frames, holds 12"):
        list(pictures.video(path))


def test_damage_inside_is_an_error(videos: dict[str, Path], tmp_path: Path) -> None:
    whole = bytearray(videos["faststart.mp4"].read_bytes())
    start = whole.index(b"mdat") + 4
    whole[start:] = bytes(len(whole) - start)
    path = tmp_path / "zeros.mp4"
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"zeros\.mp4"):
        list(pictures.video(path))


@pytest.mark.parametrize("content", [b"", b"hello\n" * 50])
def test_a_file_that_is_no_video(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.mp4: (empty file; expected a video|not a video)"):
        list(pictures.video(tmp_path / "a.mp4"))


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame(format="fltp", layout=stream.layout.name, samples=1024)
        frame.sample_rate = 16000
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(DataError, match="no video stream"):
        list(pictures.video(path))


@given(
    st.binary(max_size=64), st.sampled_from([b"", b"\x1a\x45\xdf\xa3", b"RIFF", b"\0\0\0\1ftyp"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_pass_or_are_an_error(tmp_path: Path, tail: bytes, head: bytes) -> None:
    """The parser of containers ends, and raises nothing else, whatever it reads."""
    path = tmp_path / "any"
    path.write_bytes(head + tail)
    with suppress(DataError):
        pictures.check_complete(path)


def test_a_header_that_reaches_past_the_end(tmp_path: Path) -> None:
    path = tmp_path / "huge.mkv"
    path.write_bytes(b"\x1a\x45\xdf\xa3\x01\x10" + bytes(6))
    with pytest.raises(DataError, match=r"huge\.mkv: truncated"):
        pictures.check_complete(path)


def test_unknown_lengths_pass(tmp_path: Path) -> None:
    """Written by a program that could not go back to fill them in."""
    unknown = {
        "riff": b"RIFF" + b"\xff" * 4 + b"AVI ",
        "ebml": b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01" + b"\xff" * 7,
        "box": b"\0\0\0\x08free" + b"\0\0\0\0mdat",
    }
    for name, content in unknown.items():
        (tmp_path / name).write_bytes(content)
        pictures.check_complete(tmp_path / name)
