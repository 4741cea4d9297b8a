"""COLMAP's text models -> arrays: cameras.txt, images.txt and points3D.txt, of any program that writes them.

Not by pycolmap, which ends the process at malformed files. Pixels are COLMAP's here: the first one has its centre at
(0.5, 0.5). `view_of` converts to ours.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.colmap_steps import HALF_PIXEL
from sdgmnet.sfm.scene import View
from sdgmnet.storage import read_text, stays_below

MAX_NUMBER = 2.0**53  # up to which doubles hold every id exactly
CAMERAS, IMAGES, POINTS = "cameras.txt", "images.txt", "points3D.txt"
# Model -> numbers of focal lengths and of all parameters: focal lengths, principal point, distortion.
MODELS = {
    "SIMPLE_PINHOLE": (1, 3), "PINHOLE": (2, 4),
    "SIMPLE_RADIAL": (1, 4), "RADIAL": (1, 5), "SIMPLE_RADIAL_FISHEYE": (1, 4), "RADIAL_FISHEYE": (1, 5),
    "OPENCV": (2, 8), "OPENCV_FISHEYE": (2, 8), "FULL_OPENCV": (2, 12), "THIN_PRISM_FISHEYE": (2, 12), "FOV": (2, 5),
}  # fmt: skip


class Camera(NamedTuple):
    model: str
    width: int
    height: int
    parameters: np.ndarray  # as COLMAP orders them

    @property
    def focal(self) -> np.ndarray:
        """(2,): of x and of y."""
        return np.broadcast_to(self.parameters[: MODELS[self.model][0]], 2)

    @property
    def principal_point(self) -> np.ndarray:
        start = MODELS[self.model][0]
        return self.parameters[start : start + 2]

    @property
    def distortion(self) -> np.ndarray:
        return self.parameters[MODELS[self.model][0] + 2 :]


class Image(NamedTuple):
    name: str
    camera: int  # id
    rotation: np.ndarray  # (3, 3), world to camera
    translation: np.ndarray  # (3,)
    xy: np.ndarray  # (K, 2) keypoints
    point: np.ndarray  # (K,) int64: id of the point that a keypoint observes, or -1


class Points(NamedTuple):
    number: np.ndarray  # (P,) int64: ids
    xyz: np.ndarray  # (P, 3)
    colour: np.ndarray  # (P, 3) uint8
    tracks: list[np.ndarray]  # (L, 2) int64 each: id of the image, index of its keypoint


class TextModel(NamedTuple):
    cameras: dict[int, Camera]  # by id
    images: dict[int, Image]
    points: Points


def read_model(folder: Path | str) -> TextModel:
    """A model whose parts refer to each other correctly."""
    folder = Path(folder)
    cameras = read_cameras(folder / CAMERAS)
    images = read_images(folder / IMAGES, cameras)
    points = read_points(folder / POINTS)
    known = set(points.number.tolist())
    for image in images.values():
        if not known.issuperset(set(image.point.tolist()) - {-1}):
            raise InputError(f"{folder / IMAGES}: {image.name} observes points that {POINTS} lacks: export it again.")
    counts = {number: len(image.xy) for number, image in images.items()}
    for number, track in zip(points.number, points.tracks, strict=True):
        if not all(0 <= keypoint < counts.get(image, 0) for image, keypoint in track.tolist()):
            raise InputError(f"{folder / POINTS}: point {number} is observed by keypoints that {IMAGES} lacks.")
    return TextModel(cameras, images, points)


def read_cameras(path: Path) -> dict[int, Camera]:
    cameras = {}
    for number, line in _content(path):
        try:
            camera, model, width, height, *given = line.split()
            parameters = _finite(given)
            if model not in MODELS or len(given) != MODELS[model][1]:
                raise ValueError(f"{model[:30]} with {len(given)} parameters")
            cameras[int(camera)] = Camera(model, int(width), int(height), parameters)
            if min(int(width), int(height)) < 1 or parameters[: MODELS[model][0]].min() <= 0:
                raise ValueError("size and focal length must be above 0")
        except (ValueError, OverflowError) as error:
            raise _malformed(path, number, error) from error
    return cameras


def read_images(path: Path, cameras: dict[int, Camera], *, keypoints: bool = True) -> dict[int, Image]:
    """By id. keypoints: False leaves them out, which is quicker."""
    from scipy.spatial.transform import Rotation

    images: dict[int, Image] = {}
    lines = _lines(path)
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        _, listed = next(lines, (0, ""))  # empty for an image without keypoints
        try:
            image, *pose, camera, name = line.strip().split(maxsplit=9)
            w, x, y, z, *translation = _finite(pose)
            if int(camera) not in cameras or not stays_below(name):
                raise ValueError(f"camera {int(camera)} is missing, or the name is not a path below a folder")
            table = _finite(listed.split() if keypoints else []).reshape(-1, 3)
            point = table[:, 2].astype(np.int64)
            rotation = Rotation.from_quat([x, y, z, w]).as_matrix()
            images[int(image)] = Image(name, int(camera), rotation, np.array(translation), table[:, :2], point)
        except (ValueError, OverflowError) as error:
            raise _malformed(path, number, error) from error
    return images


def read_points(path: Path) -> Points:
    """In the order of their ids."""
    rows: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for number, line in _content(path):
        try:
            point, *words = line.split()
            colour, track = (np.array(some, dtype=np.int64) for some in (words[3:6], words[7:]))
            if len(words) < 7 or len(track) % 2 or colour.min() < 0 or colour.max() > 255:
                raise ValueError("a point has an id, x, y, z, red, green, blue, an error and pairs of ids")
            rows[int(point)] = _finite(words[:3]), colour.astype(np.uint8), track.reshape(-1, 2)
        except (ValueError, OverflowError) as error:
            raise _malformed(path, number, error) from error
    numbers = sorted(rows)
    xyz = np.array([rows[one][0] for one in numbers], dtype=np.float64).reshape(-1, 3)
    colours = np.array([rows[one][1] for one in numbers], dtype=np.uint8).reshape(-1, 3)
    return Points(np.array(numbers, dtype=np.int64), xyz, colours, [rows[one][2] for one in numbers])


def view_of(image: Image, camera: Camera) -> View:
    """Without the lens distortion; pixel centres at integers."""
    intrinsics = np.diag([*camera.focal, 1.0])
    intrinsics[:2, 2] = camera.principal_point - HALF_PIXEL
    return View(image.name, camera.width, camera.height, intrinsics, image.rotation, image.translation)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line and its number."""
    return iter(enumerate(read_text(path, "export the model as text").split("\n"), start=1))


def _content(path: Path) -> Iterator[tuple[int, str]]:
    """Without comments and empty lines."""
    return ((number, line) for number, line in _lines(path) if line.strip() and not line.startswith("#"))


def _finite(words: list[str]) -> np.ndarray:
    numbers = np.array(words, dtype=np.float64)
    if not (np.abs(numbers) < MAX_NUMBER).all():
        raise ValueError("numbers must be finite and not too large")
    return numbers


def _malformed(path: Path, number: int, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:120].rstrip(".")
    return InputError(f"{path}, line {number}, is not as COLMAP writes it ({reason}): export the model again.")
