"""Photo sets of the reconstruction benchmark, a folder each.

SET/images/*            the photos; or they are in SET itself
SET/keypoints/*.bin     optional: keypoints for every descriptor, in the benchmark's format
SET/ground_truth/       optional: true cameras, as COLMAP's cameras.txt and images.txt (PINHOLE or SIMPLE_PINHOLE), or
                        as Strecha's files, one NAME.camera per photo
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.sfm.colmap_text import CAMERAS, read_cameras, read_images, view_of
from sdgmnet.sfm.colmap_text import IMAGES as IMAGES_TEXT
from sdgmnet.sfm.scene import View
from sdgmnet.storage import read_text

IMAGES, KEYPOINTS, TRUTH = "images", "keypoints", "ground_truth"
NOT_PHOTOS = (KEYPOINTS, TRUTH, "descriptors", "matches", "sparse", "dense")  # folders of a set


class PhotoSet(NamedTuple):
    name: str
    images: Path
    photos: tuple[str, ...]  # names of files in `images`
    keypoints: Path | None
    truth: Path | None


def read_photo_sets(root: Path, without: Iterable[Path] = (), names: Sequence[str] = ()) -> list[PhotoSet]:
    """The folder itself if it is a set, otherwise its sub-folders that are sets; all or those with the given names.

    without: folders that are no sets, such as results, which hold images too.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give a folder of photo sets, or one set.")
    excluded = {folder.resolve() for folder in without}
    inside = sorted(child for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))
    whole = _read_set(root)
    below = (_read_set(child) for child in inside if child.resolve() not in excluded)
    sets = [whole] if whole is not None else [one for one in below if one is not None]
    if not sets:
        raise InputError(
            f"{root} contains no photos: give a set (photos, or images/ with photos), or a folder of sets."
        )
    if unknown := sorted(set(names) - {one.name for one in sets}):
        raise InputError(f"{root} has no set named {', '.join(unknown)}: it has {', '.join(one.name for one in sets)}.")
    return [one for one in sets if not names or one.name in names]


def _read_set(folder: Path) -> PhotoSet | None:
    images = folder / IMAGES if (folder / IMAGES).is_dir() else folder
    found = find_photos(images, without=[folder / name for name in NOT_PHOTOS])
    photos = tuple(name for name in found if "/" not in name)
    keypoints, truth = (folder / name if (folder / name).is_dir() else None for name in (KEYPOINTS, TRUTH))
    return PhotoSet(folder.resolve().name, images, photos, keypoints, truth) if photos else None


def read_truth(folder: Path) -> dict[str, View]:
    """True cameras by the name of the photo, pixel centres at integers."""
    if (folder / IMAGES_TEXT).is_file():
        return _read_colmap(folder)
    files = sorted(folder.glob("*.camera"))
    if not files:
        raise InputError(f"{folder} holds neither cameras.txt and images.txt nor .camera files.")
    return {path.name.removesuffix(".camera"): _read_strecha(path) for path in files}


def _read_colmap(folder: Path) -> dict[str, View]:
    cameras = read_cameras(folder / CAMERAS)
    for camera in cameras.values():
        if camera.model not in ("PINHOLE", "SIMPLE_PINHOLE"):
            raise InputError(
                f"{folder / CAMERAS} has a {camera.model} camera: undistort the photos, PINHOLE is needed."
            )
    images = read_images(folder / IMAGES_TEXT, cameras, keypoints=False)
    return {image.name: view_of(image, cameras[image.camera]) for image in images.values()}


def _read_strecha(path: Path) -> View:
    """K in three lines, a line of zeros, the camera's axes as columns in three lines, its centre, its image size."""
    words = read_text(path).split()
    try:
        numbers = [float(word) for word in words]
    except ValueError as error:
        raise InputError(f"{path} is not a .camera file: it holds something other than numbers.") from error
    if len(numbers) < 26 or not np.isfinite(numbers).all():
        raise InputError(f"{path} holds {len(numbers)} numbers; a .camera file has 26 finite ones: write it again.")
    intrinsics, axes = np.reshape(numbers[:9], (3, 3)), np.reshape(numbers[12:21], (3, 3))
    with np.errstate(over="ignore", invalid="ignore"):
        translation = -axes.T @ np.array(numbers[21:24])
    view = View(path.name.removesuffix(".camera"), int(numbers[24]), int(numbers[25]), intrinsics, axes.T, translation)
    if not np.isfinite(translation).all() or min(view.width, view.height) < 1:
        raise InputError(f"{path} has an invalid camera for {view.name}: numbers must be finite, and the size above 0.")
    return view
