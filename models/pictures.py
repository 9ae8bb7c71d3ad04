"""Pictures and video files: found, read, checked and brought to one size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from xbench.data import require
from xbench.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".ppm"})
VIDEOS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts"})

DIGITS = re.compile("([0-9]+)")
BOXES = frozenset(b"ftyp styp moov mdat moof mfra sidx free skip wide uuid meta udta pnot".split())
"""Types of the boxes that an MP4 or QuickTime file is made of at the top."""


def natural(path: Path) -> tuple[list[list[str | int]], str]:
    """Sort key under which ``frame9`` comes before ``frame10``, folder by folder."""
    parts: list[list[str | int]] = [
        [int(piece) if index % 2 else piece for index, piece in enumerate(DIGITS.split(part))]
        for part in path.parts
    ]
    return parts, str(path)


def find(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    """Files with one of ``suffixes`` in ``folder`` and below it, hidden ones left out."""
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file()
    )
    return sorted(found, key=natural)


def read(path: Path) -> Image:
    """The picture in ``path``, as 8-bit RGB. Raises DataError if it is damaged or none."""
    image = require("PIL.Image", "reading pictures")
    try:
        with image.open(path) as picture:
            picture.load()
    except image.UnidentifiedImageError as error:
        kinds = " ".join(sorted(PICTURES))
        raise DataError(
            f"{path}: not a picture, or cut off at its start; expected {kinds}"
        ) from error
    # The decoders raise these on damaged input; the message alone tells which damage it is.
    except (OSError, SyntaxError, ValueError, EOFError, image.DecompressionBombError) as error:
        # Only what the system refuses has a number: no such file, no permission.
        if getattr(error, "errno", None) is not None:
            raise DataError(f"{path}: cannot be read ({error}); expected a picture") from error
        raise DataError(f"{path}: damaged or truncated picture ({error})") from error
    if picture.mode == "F" or picture.mode.startswith("I"):
        raise DataError(f"{path}: more than 8 bits per channel ({picture.mode}); expected 8")
    # Pillow warns where a conversion drops the transparency of a palette.
    picture.info.pop("transparency", None)
    rgb: Image = picture.convert("RGB")
    return rgb


def fit(picture: Image, height: int, width: int) -> np.ndarray[Any, Any]:
    """uint8 (height, width, 3): cut centrally to the aspect, then scaled with a triangle filter.

    Cut and filter are integer arithmetic, so that the bits are the same on every machine.
    """
    image = require("PIL.Image", "scaling pictures")
    across, down = picture.size
    wide = min(across, max(1, round_half_up(down * width, height)))
    high = min(down, max(1, round_half_up(across * height, width)))
    left, top = (across - wide) // 2, (down - high) // 2
    cut = picture.crop((left, top, left + wide, top + high))
    return np.asarray(cut.resize((width, height), image.Resampling.BILINEAR))


def round_half_up(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def video(path: Path) -> Iterator[Image]:
    """The frames of a video file, one after another, as 8-bit RGB.

    Raises DataError if the file is no video, ends before its container says it does, or does not
    decode. Containers that declare no length (.ts, .mpg) can be cut off without anyone knowing.
    """
    av = require("av", "reading a video")
    require("PIL.Image", "reading a video")
    check_complete(path)
    packets = frames = 0
    try:
        # Without the prefix, a colon in the name would be read as a protocol.
        with av.open(f"file:{path}") as container:
            if not container.streams.video:
                raise DataError(f"{path}: holds no video stream")
            stream = container.streams.video[0]
            # A frame count in MP4 includes what its edit list leaves out on purpose.
            declared = 0 if "mp4" in container.format.name else stream.frames
            for packet in container.demux(stream):
                # The last packet is empty and has no time: it flushes the decoder.
                packets += packet.size > 0 or packet.dts is not None
                for frame in packet.decode():
                    frames += 1
                    yield frame.to_image()
    except (av.FFmpegError, IndexError) as error:
        what = f"damaged after {frames} frames" if frames else "not a video that can be read"
        raise DataError(f"{path}: {what} ({error})") from error
    if packets < declared:
        raise DataError(f"{path}: truncated: declares {declared} frames, holds {packets}")
    if not frames:
        raise DataError(f"{path}: holds no frame that can be read")


def check_complete(path: Path) -> None:
    """Raise DataError if the container in ``path`` declares more bytes than the file has.

    Decoders stop quietly at such a cut. Known are MP4/QuickTime (ISO/IEC 14496-12, 4.2), AVI
    (RIFF chunks) and Matroska/WebM (RFC 8794, RFC 9559); any other file passes.
    """
    size = path.stat().st_size
    if not size:
        raise DataError(f"{path}: empty file; expected a video")
    with path.open("rb") as file:
        start = file.read(12)
        file.seek(0)
        if start[4:8] in BOXES:
            end = _end_of_boxes(file, size)
        elif start[:4] == b"RIFF":
            end = _end_of_chunks(file)
        elif start[:4] == b"\x1a\x45\xdf\xa3":
            end = _end_of_segment(file, size)
        else:
            return
    if end > size:
        raise DataError(f"{path}: truncated: {size} bytes of the {end} that it declares")


def _end_of_boxes(file: BinaryIO, size: int) -> int:
    """Where the last of the boxes ends: length (4 bytes, big-endian), type (4 bytes), content."""
    end = 0
    while end < size:
        file.seek(end)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        # Length 0 reaches to the end of the file; an unknown type is padding that players skip.
        if length < 8 or head[4:8] not in BOXES:
            break
        end += length
    return end


def _end_of_chunks(file: BinaryIO) -> int:
    """Where the last RIFF chunk ends: at even positions, type, length, content."""
    end = 0
    while True:
        start = end + end % 2
        file.seek(start)
        head = file.read(8)
        length = int.from_bytes(head[4:8], "little")
        # A writer that could not go back leaves 0 or all ones: length unknown.
        if head[:4] != b"RIFF" or length in (0, 2**32 - 1):
            return end
        end = start + 8 + length


def _end_of_segment(file: BinaryIO, size: int) -> int:
    """Where the segment after the EBML header ends; 0 if its length is unknown."""

    def number() -> int | None:
        """A length: the zero bits in front count the bytes that follow; all ones is unknown."""
        first = file.read(1)
        if not first or not first[0]:
            return None
        more = 8 - first[0].bit_length()
        value = int.from_bytes(bytes([first[0] & (0x7F >> more)]) + file.read(more), "big")
        return None if value == (1 << 7 * (more + 1)) - 1 else value

    file.seek(4)
    header = number()
    if header is None:
        return 0
    content = file.tell() + header
    if content > size:
        return content
    file.seek(content)
    segment = file.read(4)
    length = number()
    if segment != b"\x18\x53\x80\x67" or length is None:
        return 0
    return file.tell() + length
