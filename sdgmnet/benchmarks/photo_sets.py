"""Photo sets for the reconstruction benchmark: a folder each, with what is known of its cameras where it is.

SET/images/*            the photos, or they lie in SET itself
SET/keypoints/*.bin     optional: keypoints that every descriptor is to use, in the benchmark's format
SET/ground_truth/       optional: true cameras, as COLMAP's cameras.txt and images.txt (PINHOLE or SIMPLE_PINHOLE), or
                        as Strecha's files, one NAME.camera for each photo
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.sfm.scene import View
from sdgmnet.storage import read_text

IMAGES, KEYPOINTS, TRUTH = "images", "keypoints", "ground_truth"
APART = (KEYPOINTS, TRUTH, "descriptors", "matches", "sparse", "dense")  # of a set, which hold no photos of it


class PhotoSet(NamedTuple):
    name: str
    images: Path
    photos: tuple[str, ...]  # names below it
    keypoints: Path | None  # folder of the keypoints to use
    truth: Path | None  # folder of the true cameras


def read_photo_sets(root: Path, without: Iterable[Path] = ()) -> list[PhotoSet]:
    """The folder itself where photos lie in it or in its images/, otherwise every sub-folder that is a set and none of
    `without`, such as results, whose images are no photos."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give a folder of photo sets, or one set.")
    whole = _read_set(root)
    if whole is not None:
        return [whole]
    others = {place.resolve() for place in without}
    folders = (child for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))
    inside = sorted(child for child in folders if child.resolve() not in others)
    sets = [one for child in inside if (one := _read_set(child)) is not None]
    if not sets:
        raise InputError(f"{root} holds no photos, nor do its sub-folders or their images folders.")
    return sets


def _read_set(folder: Path) -> PhotoSet | None:
    images = folder / IMAGES if (folder / IMAGES).is_dir() else folder
    photos = tuple(name for name in find_photos(images, without=[folder / name for name in APART]) if "/" not in name)
    if not photos:
        return None
    keypoints, truth = (folder / name if (folder / name).is_dir() else None for name in (KEYPOINTS, TRUTH))
    return PhotoSet(folder.resolve().name, images, photos, keypoints, truth)


def read_truth(folder: Path) -> dict[str, View]:
    """True cameras by the photo's name, pixel centres at integers."""
    if (folder / "images.txt").is_file():
        return _read_colmap(folder)
    files = sorted(folder.glob("*.camera"))
    if not files:
        raise InputError(f"{folder} holds neither cameras.txt and images.txt nor .camera files.")
    return {path.name.removesuffix(".camera"): _read_strecha(path) for path in files}


def _read_colmap(folder: Path) -> dict[str, View]:
    try:
        views = _cameras_and_images(folder)
    except InputError:
        raise
    except (ValueError, LookupError, OverflowError) as error:
        raise InputError(
            f"{folder} holds no cameras.txt and images.txt as COLMAP writes them ({error}): export the model again."
        ) from error
    for view in views.values():
        _require_camera(folder / "images.txt", view)
    return views


def _require_camera(path: Path, view: View) -> None:
    numbers = (view.intrinsics, view.rotation, view.translation)
    if not all(np.isfinite(one).all() for one in numbers) or min(view.width, view.height) < 1:
        raise InputError(
            f"{path} gives {view.name} a camera that is none: its numbers must be finite, its size above 0."
        )


def _cameras_and_images(folder: Path) -> dict[str, View]:
    """ValueError or LookupError where a line has too few words, words that are no numbers, or an unknown camera."""
    cameras: dict[str, tuple[int, int, np.ndarray]] = {}
    for line in _lines(folder / "cameras.txt"):
        number, model, width, height, *given = line.split()
        if model not in ("PINHOLE", "SIMPLE_PINHOLE"):
            raise InputError(f"{folder / 'cameras.txt'} has a {model} camera: undistort the photos, PINHOLE is needed.")
        values = [float(one) for one in given]
        fx, fy, cx, cy = values if model == "PINHOLE" else [values[0], *values]
        intrinsics = np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]])  # COLMAP's centres are at halves
        cameras[number] = int(width), int(height), intrinsics
    views = {}
    for line in _lines(folder / "images.txt")[::2]:  # every other line lists keypoints
        _, *pose, camera, name = line.split(maxsplit=9)
        quaternion, translation = np.array(pose[:4], dtype=np.float64), np.array(pose[4:], dtype=np.float64)
        views[name] = View(name, *cameras[camera], rotation_of(quaternion), translation)
    return views


def _lines(path: Path) -> list[str]:
    """Without comments at the beginning; a photo without keypoints has an empty line that counts."""
    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file: export the model again.") from error
    return [line for line in lines if not line.startswith("#")]


def rotation_of(quaternion: np.ndarray) -> np.ndarray:
    """(3, 3) of a quaternion w, x, y, z."""
    length = np.linalg.norm(quaternion)
    if not 0 < length < np.inf:
        raise ValueError(f"{quaternion} is no rotation")
    w, x, y, z = quaternion / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _read_strecha(path: Path) -> View:
    """K in three lines, a line of distortion, which is 0, the camera's axes as columns in three, its place, its size."""
    try:
        numbers = [float(word) for word in read_text(path).split()]
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a .camera file: it holds something else than numbers.") from error
    if not np.isfinite(numbers).all():
        raise InputError(f"{path} holds numbers that are not finite: write it again.")
    if len(numbers) < 26:
        raise InputError(f"{path} holds {len(numbers)} numbers, a .camera file 26: write it again.")
    intrinsics, axes, centre = (
        np.reshape(numbers[:9], (3, 3)),
        np.reshape(numbers[12:21], (3, 3)),
        np.array(numbers[21:24]),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        place = -axes.T @ centre
    view = View(path.name.removesuffix(".camera"), int(numbers[24]), int(numbers[25]), intrinsics, axes.T, place)
    _require_camera(path, view)
    return view
