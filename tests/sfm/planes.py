"""Photos of textured boards before a wall, rendered in milliseconds: enough for a real reconstruction in a test."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.sfm.scene import View, project
from tests.sfm.rendered import look

# Centre, half width and half height along x and y, and turn about the vertical in degrees; the farthest first.
BOARDS = (
    ((0.0, 0.0, 6.0), (6.0, 4.5), 0),
    ((-1.6, 0.2, 5.0), (0.9, 1.0), 25),
    ((1.5, -0.3, 4.6), (0.8, 0.9), -30),
    ((0.1, 0.9, 4.2), (0.9, 0.5), 10),
)


def board_texture(seed: int, width: int, height: int) -> np.ndarray:
    """Noise of several sizes, different everywhere."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width))
    for cells in (8, 20, 50, 120, 250):
        coarse = rng.normal(size=(max(2, cells * height // width), cells))
        total += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + 40 * total, 0, 255).astype(np.uint8)


def photograph(view: View, seed: int = 0) -> np.ndarray:
    """(H, W) uint8. The farthest board is painted first, nearer ones over it."""
    image = np.zeros((view.height, view.width), dtype=np.uint8)
    for number, (centre, half, degrees) in enumerate(BOARDS):
        turn = np.deg2rad(degrees)
        right, down = np.array([np.cos(turn), 0, np.sin(turn)]) * half[0], np.array([0, half[1], 0])
        corners = np.array([np.array(centre) + x * right + y * down for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
        there, depth = project(view, corners)
        assert (depth > 0).all()
        width = round(160 * 2 * half[0])
        texture = board_texture(100 * seed + number, width, round(width * half[1] / half[0]))
        high, wide = texture.shape
        edge = np.array([[0, 0], [wide, 0], [wide, high], [0, high]]) - 0.5
        warp = cv2.getPerspectiveTransform(edge.astype(np.float32), there.astype(np.float32))
        size = (view.width, view.height)
        painted = cv2.warpPerspective(texture, warp, size, flags=cv2.INTER_AREA)
        covered = cv2.warpPerspective(np.full_like(texture, 255), warp, size, flags=cv2.INTER_NEAREST) > 0
        image[covered] = painted[covered]
    return image


def views_around(count: int, width: int = 480, height: int = 360) -> list[View]:
    target = np.array([0, 0.1, 5.0])
    angles = np.deg2rad(6 * (np.arange(count) - (count - 1) / 2))
    steps = [np.array([np.sin(a), -0.05 - 0.04 * (number % 3), -np.cos(a)]) for number, a in enumerate(angles)]
    centres = [target + 5 * step for step in steps]
    return [look(f"{number:02d}.png", centre, target, width, height) for number, centre in enumerate(centres)]


def write_photos(folder: Path, count: int = 6, seed: int = 0, width: int = 480, height: int = 360) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for view in views_around(count, width, height):
        cv2.imwrite(str(folder / view.name), photograph(view, seed))
        paths.append(folder / view.name)
    return paths


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """A JPEG with an EXIF block that says how to turn it."""
    entry = b"\x12\x01\x03\x00\x01\x00\x00\x00" + orientation.to_bytes(2, "little") + b"\x00\x00"
    tiff = b"II*\x00\x08\x00\x00\x00\x01\x00" + entry + b"\x00\x00\x00\x00"
    block = b"Exif\x00\x00" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + jpeg[2:]


def with_focal_length(jpeg: bytes, millimetres: int) -> bytes:
    """A JPEG with an EXIF block of the focal length on 35 mm film."""
    pointer = b"\x69\x87\x04\x00\x01\x00\x00\x00" + (26).to_bytes(4, "little")
    entry = b"\x05\xa4\x03\x00\x01\x00\x00\x00" + millimetres.to_bytes(2, "little") + b"\x00\x00"
    first, second = (b"\x01\x00" + one + b"\x00\x00\x00\x00" for one in (pointer, entry))
    block = b"Exif\x00\x00" + b"II*\x00\x08\x00\x00\x00" + first + second
    return jpeg[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + jpeg[2:]


def write_odd_photos(folder: Path, count: int, odd_name: bool = False) -> Path:
    """A photo rotated by EXIF with a space in its name, one of two thirds of the size, one truncated; one with a name that is
    not UTF-8, where the file system allows it."""
    paths = write_photos(folder, count)
    image = cv2.imread(str(paths[2]), cv2.IMREAD_GRAYSCALE)
    paths[2].unlink()
    rotated = cv2.imencode(".jpg", np.rot90(image), [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    (folder / "02 turned.jpg").write_bytes(with_orientation(rotated, 6))
    large = cv2.imread(str(paths[3]), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(paths[3]), cv2.resize(large, (320, 240), interpolation=cv2.INTER_AREA))
    whole = cv2.imencode(".jpg", image)[1].tobytes()
    (folder / f"{count:02d}.jpg").write_bytes(whole[: len(whole) // 2])
    if odd_name:
        with suppress(OSError):
            paths[5].rename(folder / os.fsdecode(b"05\xe9.png"))
    return folder


def turn_between(views: Sequence[View], truth: Sequence[View], one: int, other: int) -> float:
    """Error of the rotation from one view to another, in degrees."""
    turn, true_turn = (some[one].rotation @ some[other].rotation.T for some in (views, truth))
    return float(np.rad2deg(np.arccos(np.clip((np.trace(turn @ true_turn.T) - 1) / 2, -1, 1))))


def in_pycolmap(code: str, *words: object) -> str:
    """What a script prints, run in a process of its own with cv2 imported first."""
    code = f"import sys, json, cv2, pycolmap, numpy as np\n{code}"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
