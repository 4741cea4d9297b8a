"""Files -> images, one way for all: gray, upright as the camera's note says, one sentence where a file is no image."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import read_bytes

PORTABLE = rb"P([56])(?:\s+(?:#[^\n]{0,999}\n){0,99})(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s"  # header of PPM and PGM
MOST_PIXELS = 2**28  # 268 megapixels: beyond any camera, and a bound on what a few bytes can make us allocate


class Unreadable(ValueError):
    """Why a file is no image, to follow its name in a sentence."""


def read_gray(path: Path | str, *, upright: bool = True) -> np.ndarray:
    """(H, W) uint8, turned as EXIF says; `upright=False` for images whose pixels are to be taken as they are stored."""
    return _read_bytes(Path(path), cv2.IMREAD_GRAYSCALE, upright)


def read_color(path: Path | str, *, upright: bool = True) -> np.ndarray:
    """(H, W, 3) uint8 in RGB, turned as EXIF says unless `upright=False`."""
    return cv2.cvtColor(_read_bytes(Path(path), cv2.IMREAD_COLOR, upright), cv2.COLOR_BGR2RGB)


def _read_bytes(path: Path, mode: int, upright: bool) -> np.ndarray:
    try:
        return read_eight_bits(path, mode | (0 if upright else cv2.IMREAD_IGNORE_ORIENTATION))
    except Unreadable as error:
        raise InputError(f"{path} {error}: replace or remove it.") from error


def read_eight_bits(path: Path, flags: int) -> np.ndarray:
    """As `read_image`, uint8 by all the bits that a deeper image uses: OpenCV alone would take the upper eight of 16."""
    picture = read_picture(path, flags | cv2.IMREAD_ANYDEPTH)
    if picture.dtype == np.uint16:
        return eight_bits(picture)
    return picture if picture.dtype == np.uint8 else read_picture(path, flags)


def eight_bits(pixels: np.ndarray) -> np.ndarray:
    """uint16 -> uint8: the upper eight of the bits in use, since cameras of 10, 12 or 14 bits leave the upper ones empty."""
    used = max(8, int(pixels.max(initial=0)).bit_length())
    return (pixels >> (used - 8)).astype(np.uint8)


def read_picture(path: Path, flags: int) -> np.ndarray:
    """A whole image by OpenCV's reading flags, or Unreadable."""
    try:
        content = read_bytes(path)  # OpenCV's own reader fails on some names
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from error
    if not content:
        raise Unreadable("is empty")
    if is_cut_off(content):
        raise Unreadable("is cut off")
    pixels = declared_pixels(content)
    if not pixels:  # other decoders take memory before they look at the file, or write files of their own
        raise Unreadable("is not an image of a kind that is read (JPEG, PNG, TIFF, WebP, BMP, PPM, PGM)")
    if pixels > MOST_PIXELS:
        raise Unreadable(
            f"says that it has {pixels / 1e6:.0f} megapixels, more than the {MOST_PIXELS / 1e6:.0f} that are read"
        )
    try:
        picture = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flags)
    except cv2.error:
        picture = None
    if picture is None:
        raise Unreadable("is not an image that can be decoded")
    return picture


def declared_pixels(content: bytes) -> int:
    """Width times height as the header of a PNG, JPEG, BMP, WebP, PPM, PGM or TIFF says, before anything is decoded; 0 where it
    is another kind.
    """
    if content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) >= 24:
        return _product(content, 16, "big", 4)
    if content[:2] == b"BM" and len(content) >= 26:
        width, height = (abs(int.from_bytes(content[at : at + 4], "little", signed=True)) for at in (18, 22))
        return width * height
    if header := re.match(PORTABLE, content):
        return int(header[2]) * int(header[3])
    if content[:2] == b"\xff\xd8":
        return max((_product(content, at + 5, "big", 2) for at in _frames_of_jpeg(content)), default=0)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _pixels_of_webp(content)
    if content[:4] in (b"II*\0", b"MM\0*"):
        return _pixels_of_tiff(content)
    return 0


def _product(content: bytes, at: int, order: Literal["big", "little"], size: int) -> int:
    first, second = (int.from_bytes(content[place : place + size], order) for place in (at, at + size))
    return first * second


def _pixels_of_webp(content: bytes) -> int:
    """By its first chunk: a canvas, or an image with fourteen bits a side, lossless or not."""
    kind = content[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        packed = int.from_bytes(content[21:25], "little")
        width, height = 1 + packed % 2**14, 1 + (packed >> 14) % 2**14
    elif kind == b"VP8 ":
        width, height = (int.from_bytes(content[at : at + 2], "little") % 2**14 for at in (26, 28))
    else:
        return 0
    return width * height


def _frames_of_jpeg(content: bytes) -> Iterator[int]:
    """Where the frame headers begin, which hold the height and the width: marks C0 to CF but tables and restarts. What is no
    mark is passed over, as decoders do.
    """
    place = 2
    while (place := content.find(b"\xff", place)) >= 0 and place + 9 <= len(content):
        mark = content[place + 1]
        if mark == 0xDA:
            return
        if mark == 0xFF:
            place += 1
            continue
        if 0xC0 <= mark <= 0xCF and mark not in (0xC4, 0xC8, 0xCC):
            yield place
        alone = mark in (0x00, 0x01) or 0xD0 <= mark <= 0xD8
        place += 2 if alone else 2 + int.from_bytes(content[place + 2 : place + 4], "big")


def _pixels_of_tiff(content: bytes) -> int:
    """Of the first directory: tags 256 and 257, of 2 or 4 bytes; the largest where a tag occurs twice."""
    order: Literal["big", "little"] = "little" if content[:2] == b"II" else "big"
    start = int.from_bytes(content[4:8], order)
    sides = {256: 0, 257: 0}
    for number in range(int.from_bytes(content[start : start + 2], order)):
        entry = content[start + 2 + 12 * number : start + 14 + 12 * number]
        if len(entry) < 12:
            break
        tag, kind = (int.from_bytes(entry[at : at + 2], order) for at in (0, 2))
        if tag in sides:
            sides[tag] = max(sides[tag], int.from_bytes(entry[8 : 8 + (2 if kind == 3 else 4)], order))
    return sides[256] * sides[257]


def is_cut_off(content: bytes) -> bool:
    """Whether a JPEG or PNG ends before its end mark, where decoders fill the rest with gray and say nothing; or a PPM or PGM
    before its last pixel, where OpenCV writes several lines of its own.
    """
    if header := re.match(PORTABLE, content):
        kind, width, height, largest = (int(number) for number in header.groups())
        return len(content) < header.end() + width * height * (3 if kind == 6 else 1) * (2 if largest > 255 else 1)
    if content[:8] == b"\x89PNG\r\n\x1a\n":
        return b"IEND" not in content[-65536:]
    if content[:2] != b"\xff\xd8":
        return False
    place = 2
    while place + 4 <= len(content):
        if content[place] != 0xFF:
            return False  # no JPEG that we can follow: the decoder shall judge
        mark = content[place + 1]
        if mark == 0xDA:  # the image itself begins; an end mark before it is that of a thumbnail
            return content.find(b"\xff\xd9", place) < 0
        if mark == 0xFF:  # a byte that fills
            place += 1
        elif mark == 0x01 or 0xD0 <= mark <= 0xD8:  # marks that stand alone
            place += 2
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return True
