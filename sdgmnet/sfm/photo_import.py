"""Photos as people keep them -> copies for COLMAP: upright, at most a given size, with names that its pair lists can hold."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import UnreadableImage, decode, limit_size, plain_name, read_uint8
from sdgmnet.storage import new_folder, read_record, stays_below

COPIED_FORMATS = {".jpg", ".jpeg", ".png"}
JPEG_QUALITY = 97


class Photo(TypedDict):
    name: str  # of the copy
    source: str  # of the original, relative to its folder
    width: int
    height: int
    focal: float | None  # by EXIF, as a fraction of the longer side


class ImportedPhotos(TypedDict):
    photos: list[Photo]  # ordered by name
    broken: list[list[str]]  # name and reason of each photo that cannot be read


RECORD = {
    "photos": [{"name": str, "source": str, "width": int, "height": int, "focal": int | float | None}],
    "broken": [(str, str)],
}


def read_imported(record: Path) -> ImportedPhotos:
    """The result of `import_photos`, from a JSON file."""
    imported: ImportedPhotos = read_record(record, RECORD)
    if not all(stays_below(photo["name"]) and stays_below(photo["source"]) for photo in imported["photos"]):
        raise InputError(f"{record} names photos outside of its folder: remove it.")
    return imported


def import_photos(folder: str, names: Sequence[str], target: str, max_size: int | None) -> ImportedPhotos:
    """Copy the named photos of a folder into a new folder, with the longest side at most `max_size` pixels."""
    broken: list[list[str]] = []
    photos: list[Photo] = []
    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        for name in names:
            source = Path(folder) / name
            reason, image, changed = read_photo(source)
            if image is None:
                broken.append([plain_name(name), reason])
                continue
            height, width = image.shape[:2]
            copy = part / copied_name(name, {photo["name"] for photo in photos})
            copy.parent.mkdir(parents=True, exist_ok=True)
            fits = max_size is None or max(width, height) <= max_size
            unchanged = fits and not changed and source.suffix.lower() in COPIED_FORMATS
            if unchanged:
                shutil.copyfile(source, copy)
            # COLMAP goes by the name: it cannot read a WebP that is called .jpg, which OpenCV can.
            if not unchanged or _colmap_camera(copy) is None:
                smaller = image if max_size is None else limit_size(image, max_size)
                encoded = cv2.imencode(copy.suffix, smaller, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
                copy.write_bytes(encoded.tobytes())  # unlike cv2.imwrite, this reports a full disk
                height, width = smaller.shape[:2]
            copied = copy.relative_to(part).as_posix()
            focal = exif_focal_length(source)
            photos.append(Photo(name=copied, source=plain_name(name), width=width, height=height, focal=focal))
    return ImportedPhotos(photos=sorted(photos, key=lambda photo: photo["name"]), broken=broken)


def copied_name(name: str, taken: set[str]) -> str:
    """A new name without white space, which COLMAP's pair lists cannot hold, and of a format that COLMAP reads."""
    path = Path("_".join(plain_name(name).split()))
    if path.suffix.lower() not in COPIED_FORMATS:
        path = path.with_name(f"{path.name}.jpg")
    number, free = 1, path
    while free.as_posix() in taken:
        number += 1
        free = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return free.as_posix()


def read_photo(path: Path) -> tuple[str, np.ndarray | None, bool]:
    """Why the photo cannot be read, or the upright 8-bit image and whether EXIF orientation or bit depth changed it."""
    try:
        upright = read_uint8(path, cv2.IMREAD_COLOR)
        stored = decode(path, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except UnreadableImage as error:
        return error.reason, None, False
    return "", upright, not np.array_equal(upright, stored)


def exif_focal_length(path: Path) -> float | None:
    camera = _colmap_camera(path)
    if camera is None or not camera.has_prior_focal_length:
        return None
    return round(camera.mean_focal_length() / max(camera.width, camera.height), 6)


def _colmap_camera(path: Path) -> Any:
    """None if COLMAP cannot read the photo."""
    import pycolmap

    try:
        return pycolmap.infer_camera_from_image(path)
    except Exception:  # pycolmap raises whatever its libraries do
        return None
