"""Files -> pictures, one way for all: gray, upright as the camera's note says, one sentence where a file is no picture."""

import re
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.errors import InputError


class Unreadable(ValueError):
    """Why a file is no picture, to follow its name in a sentence."""


def read_gray(path: Path | str, *, upright: bool = True) -> np.ndarray:
    """(H, W) uint8, turned as EXIF says; `upright=False` for pictures whose pixels are to be taken as they are stored."""
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
    """As `read_picture`, uint8 by all the bits that a deeper picture uses: OpenCV alone would take the upper eight of 16."""
    picture = read_picture(path, flags | cv2.IMREAD_ANYDEPTH)
    if picture.dtype == np.uint16:
        return eight_bits(picture)
    return picture if picture.dtype == np.uint8 else read_picture(path, flags)


def eight_bits(pixels: np.ndarray) -> np.ndarray:
    """uint16 -> uint8: the upper eight of the bits in use, since cameras of 10, 12 or 14 bits leave the upper ones empty."""
    used = max(8, int(pixels.max(initial=0)).bit_length())
    return (pixels >> (used - 8)).astype(np.uint8)


def read_picture(path: Path, flags: int) -> np.ndarray:
    """A whole picture by OpenCV's reading flags, or Unreadable."""
    try:
        content = path.read_bytes()  # OpenCV's own reader fails on some names
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from error
    if not content:
        raise Unreadable("is empty")
    if is_cut_off(content):
        raise Unreadable("is cut off")
    try:
        picture = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flags)
    except cv2.error:
        picture = None
    if picture is None:
        raise Unreadable("is not a picture that can be decoded")
    return picture


def is_cut_off(content: bytes) -> bool:
    """Whether a JPEG or PNG ends before its end mark, where decoders fill the rest with gray and say nothing; or a PPM or PGM
    before its last pixel, where OpenCV writes several lines of its own.
    """
    if header := re.match(rb"P([56])(?:\s+(?:#[^\n]*\n)*)(\d+)\s+(\d+)\s+(\d+)\s", content):
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
        if mark == 0xDA:  # the picture itself begins; an end mark before it is that of a thumbnail
            return content.find(b"\xff\xd9", place) < 0
        if mark == 0xFF:  # a byte that fills
            place += 1
        elif mark == 0x01 or 0xD0 <= mark <= 0xD8:  # marks that stand alone
            place += 2
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return True
