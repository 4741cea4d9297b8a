"""Image files -> arrays, one way for all: eight bits, EXIF orientation applied; and the images below a folder."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import require_regular_file

# HEIC is not read: listed so that it is reported instead of passed over.
IMAGE_SUFFIXES = {".bmp", ".heic", ".heif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = "JPEG, PNG, TIFF, WebP, BMP, PPM, PGM"  # that are read
LISTED = 5  # unreadable files in a message
MAX_PIXELS = 2**28  # 268 megapixels: beyond any camera, and a bound on the memory that a small file can ask for
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
PORTABLE = rb"P([56])(?:\s+(?:#[^\n]{0,999}\n){0,99})(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s"  # header of PPM and PGM


class UnreadableImage(InputError):
    """A file that is not an image, or a damaged one. `reason` follows the file's name in a sentence."""

    def __init__(self, path: Path | str, reason: str, advice: str = "replace it, or leave it out") -> None:
        super().__init__(path, reason, advice)
        self.path, self.reason, self.advice = path, reason, advice

    def __str__(self) -> str:
        return f"{self.path} {self.reason}: {self.advice}."


def find_photos(folder: Path, without: Iterable[Path] = ()) -> list[str]:
    """Images below the folder by their paths relative to it, sorted; no hidden ones, none in the folders `without`."""
    found, visited = [], {os.path.realpath(place) for place in without}
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        # A link may lead to a folder above it: nothing is entered twice.
        folders[:] = [] if real in visited else sorted(name for name in folders if not name.startswith("."))
        if real not in visited:
            paths = (Path(place, name) for name in files if not name.startswith("."))
            found += [path.relative_to(folder).as_posix() for path in paths if path.suffix.lower() in IMAGE_SUFFIXES]
        visited.add(real)
    return sorted(found)


def find_images(places: Sequence[Path], without: Iterable[Path] = ()) -> dict[str, Path]:
    """Name -> file of images and of the images in folders. Below a folder, names are paths relative to it.

    without: folders that are not entered.
    """
    if not places:
        raise InputError("give images, or a folder of images.")
    found: dict[str, Path] = {}
    for place in places:
        if place.is_dir():
            below = {plain_name(name): place / name for name in find_photos(place, tuple(without))}
            if not below:
                raise InputError(f"{place} contains no images ({FORMATS}): give a folder that does.")
        elif place.exists():
            below = {plain_name(place.name): place}
        else:
            raise InputError(f"{place} does not exist: give an image file or a folder of images.")
        for name, path in below.items():
            if name in found and found[name].resolve() != path.resolve():
                raise InputError(f"{found[name]} and {path} are both named {name}: give a folder that contains both.")
        found.update(below)
    return found


def require_readable(paths: Iterable[Path], minimum: int = 1, need: str = "give an image") -> None:
    """InputError unless so many of the files are images, by their headers. Files after these are not opened."""
    readable, broken = 0, []
    for path in paths:
        try:
            read_content(path)
        except UnreadableImage as error:
            broken.append(error)
        else:
            readable += 1
            if readable == minimum:
                return
    if minimum == 1 and len(broken) == 1:
        raise broken[0]
    reasons = "; ".join(f"{error.path} {error.reason}" for error in broken[:LISTED])
    more = f"; and {len(broken) - LISTED} more" if len(broken) > LISTED else ""
    listed = f" ({reasons}{more})" if broken else ""
    found = f"{readable or 'none'} of the {readable + len(broken)} files can be read" if broken else f"{readable} found"
    raise InputError(f"{need}: {found}{listed}.")


def photo_digests(folder: Path, names: Sequence[str]) -> list[list[str]]:
    """Name and SHA-1 of each photo, or why it cannot be read."""
    found = []
    for name in names:
        try:
            require_regular_file(folder / name)
            with (folder / name).open("rb") as file:
                found.append([name, hashlib.file_digest(file, "sha1").hexdigest()])
        except OSError as error:
            found.append([name, f"cannot be read: {error.strerror}"])
    return found


def plain_name(name: str) -> str:
    """A file name as valid UTF-8: bytes that are not, which Python keeps as surrogates, become %E9 and the like."""
    return "".join(f"%{ord(sign) - 0xDC00:02X}" if "\udc80" <= sign <= "\udcff" else sign for sign in name)


def read_gray(path: Path | str, *, exif_orientation: bool = True) -> np.ndarray:
    """(H, W) uint8. EXIF orientation is applied unless `exif_orientation=False`."""
    return read_uint8(path, cv2.IMREAD_GRAYSCALE, exif_orientation)


def read_color(path: Path | str, *, exif_orientation: bool = True) -> np.ndarray:
    """(H, W, 3) uint8 in RGB. EXIF orientation is applied unless `exif_orientation=False`."""
    return cv2.cvtColor(read_uint8(path, cv2.IMREAD_COLOR, exif_orientation), cv2.COLOR_BGR2RGB)


def read_uint8(path: Path | str, mode: int, exif_orientation: bool = True) -> np.ndarray:
    """In OpenCV's mode, gray or BGR, with the upper eight of the bits in use: OpenCV alone would take the upper eight of 16."""
    flags = mode | (0 if exif_orientation else cv2.IMREAD_IGNORE_ORIENTATION)
    image = decode(path, flags | cv2.IMREAD_ANYDEPTH)
    if image.dtype == np.uint16:
        return upper_eight_bits(image)
    return image if image.dtype == np.uint8 else decode(path, flags)


def limit_size(image: np.ndarray, size: int) -> np.ndarray:
    """The image with its longest side at most `size` pixels."""
    height, width = image.shape[:2]
    scale = size / max(height, width)
    if scale >= 1:
        return image
    sides = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, sides, interpolation=cv2.INTER_AREA)


def upper_eight_bits(pixels: np.ndarray) -> np.ndarray:
    """uint16 -> uint8: the upper eight of the bits in use, since cameras of 10, 12 or 14 bits leave the upper ones empty."""
    used = max(8, int(pixels.max(initial=0)).bit_length())
    return (pixels >> (used - 8)).astype(np.uint8)


def decode(path: Path | str, flags: int) -> np.ndarray:
    """A complete image by OpenCV's flags, or UnreadableImage."""
    content = read_content(path)
    try:
        image = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise UnreadableImage(path, "cannot be decoded as an image")
    return image


def read_content(path: Path | str) -> bytes:
    """The bytes of an image that is complete and of a supported format by its header, or UnreadableImage."""
    try:
        require_regular_file(path)
        content = Path(path).read_bytes()  # OpenCV's own reader fails on some names
    except FileNotFoundError:
        raise UnreadableImage(path, "does not exist", "give an image file") from None
    except IsADirectoryError:
        raise UnreadableImage(path, "is a folder", "give an image file") from None
    except OSError as error:
        raise UnreadableImage(path, f"cannot be read ({error.strerror})") from error
    if not content:
        raise UnreadableImage(path, "is empty")
    if is_truncated(content):
        raise UnreadableImage(path, "is truncated")
    pixels = declared_pixels(content)
    if not pixels:  # OpenCV's other decoders allocate before they look at the file, or write files of their own
        raise UnreadableImage(path, f"is not a supported image ({FORMATS})")
    if pixels > MAX_PIXELS:
        limit = f"{MAX_PIXELS / 1e6:.0f}"
        raise UnreadableImage(path, f"declares {pixels / 1e6:.0f} megapixels, more than the limit of {limit}")
    return content


def is_truncated(content: bytes) -> bool:
    """Whether a PNG or JPEG ends before its end marker, where decoders silently fill the rest with gray; or a PPM or PGM before
    its last pixel, where OpenCV prints several lines of its own.
    """
    if header := re.match(PORTABLE, content):
        kind, width, height, largest = (int(number) for number in header.groups())
        return len(content) < header.end() + width * height * (3 if kind == 6 else 1) * (2 if largest > 255 else 1)
    if content.startswith(PNG):
        return b"IEND" not in content[-65536:]
    if not content.startswith(JPEG):
        return False
    scan = next((at for marker, at in _jpeg_markers(content) if marker == 0xDA), None)
    return scan is None or content.find(b"\xff\xd9", scan) < 0  # an end marker before the scan is a thumbnail's


def declared_pixels(content: bytes) -> int:
    """Width times height by the header, before anything is decoded; 0 for an unsupported format."""
    if content.startswith(PNG) and len(content) >= 24:
        return _product(content, 16, "big", 4)
    if content.startswith(b"BM") and len(content) >= 26:
        width, height = (abs(int.from_bytes(content[at : at + 4], "little", signed=True)) for at in (18, 22))
        return width * height
    if header := re.match(PORTABLE, content):
        return int(header[2]) * int(header[3])
    if content.startswith(JPEG):  # the largest frame; C4, C8 and CC are tables
        frames = (at for marker, at in _jpeg_markers(content) if marker in {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
        return max((_product(content, at + 5, "big", 2) for at in frames), default=0)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp_pixels(content)
    if content[:4] in (b"II*\0", b"MM\0*"):
        return _tiff_pixels(content)
    return 0


def _product(content: bytes, at: int, order: Literal["big", "little"], size: int) -> int:
    first, second = (int.from_bytes(content[place : place + size], order) for place in (at, at + size))
    return first * second


def _jpeg_markers(content: bytes) -> Iterator[tuple[int, int]]:
    """Markers and where they begin, up to the start of the scan. Bytes between segments are passed over, as decoders do."""
    place = 2
    while (place := content.find(b"\xff", place)) >= 0 and place + 4 <= len(content):
        marker = content[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        yield marker, place
        if marker == 0xDA:
            return
        is_alone = marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8
        place += 2 if is_alone else 2 + int.from_bytes(content[place + 2 : place + 4], "big")


def _webp_pixels(content: bytes) -> int:
    """By the first chunk: an extended header, a lossless or a lossy image."""
    chunk = content[12:16]
    if chunk == b"VP8X":
        width, height = (1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
    elif chunk == b"VP8L":
        packed = int.from_bytes(content[21:25], "little")
        width, height = 1 + packed % 2**14, 1 + (packed >> 14) % 2**14
    elif chunk == b"VP8 ":
        width, height = (int.from_bytes(content[at : at + 2], "little") % 2**14 for at in (26, 28))
    else:
        return 0
    return width * height


def _tiff_pixels(content: bytes) -> int:
    """By tags 256 and 257 of the first directory; the largest value where a tag occurs twice."""
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
