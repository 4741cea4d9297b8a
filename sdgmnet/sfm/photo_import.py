"""Photos as people keep them -> copies that COLMAP can work on: upright, not too large, under names that its lists can hold."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import UnreadableImage, decode, plain_name, read_uint8
from sdgmnet.storage import new_folder, read_record, stays_below

KEPT_AS_THEY_ARE = {".jpg", ".jpeg", ".png"}


COPIES = {"photos": [{"name": str, "width": int, "height": int, "focal": int | float | None}], "broken": [(str, str)]}


def read_copies(record: Path) -> dict[str, Any]:
    """What `prepare_photos` returned, written down since."""
    copies: dict[str, Any] = read_record(record, COPIES)
    for copy in copies["photos"]:
        copy.setdefault("source", copy["name"])  # older records have none
        if not isinstance(copy["source"], str) or not stays_below(copy["name"]) or not stays_below(copy["source"]):
            raise InputError(f"{record} names photos that are not below its folder: remove it.")
    return copies


def prepare_photos(
    folder: str, names: Sequence[str], work: str, options: dict[str, Any], into: str = "photos"
) -> dict[str, Any]:
    """Upright photos of at most `size` pixels in work/photos, or `into`; what cannot be read is named with the reason."""
    import cv2

    from sdgmnet.features.images import limit_size

    broken: list[list[str]] = []
    kept: list[dict[str, Any]] = []
    target = Path(work) / into
    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        for name in names:
            source = Path(folder) / name
            reason, picture, changed = read_photo(source)
            if picture is None:
                broken.append([plain_name(name), reason])
                continue
            height, width = picture.shape[:2]
            scale = min(1.0, options["size"] / max(width, height))
            as_it_is = scale == 1.0 and not changed and source.suffix.lower() in KEPT_AS_THEY_ARE
            copy = part / copied_name(name, {photo["name"] for photo in kept})
            copy.parent.mkdir(parents=True, exist_ok=True)
            if as_it_is:
                shutil.copyfile(source, copy)
            if not as_it_is or not opens_in_colmap(copy):
                smaller = limit_size(picture, options["size"])
                coded = cv2.imencode(copy.suffix, smaller, [cv2.IMWRITE_JPEG_QUALITY, 97])[1]
                copy.write_bytes(coded.tobytes())  # unlike OpenCV's own writing, this says when the disk is full
                height, width = smaller.shape[:2]
            kept.append(
                {
                    "name": copy.relative_to(part).as_posix(),
                    "source": plain_name(name),
                    "width": width,
                    "height": height,
                    "focal": noted_focal_length(source),
                }
            )
    return {"broken": broken, "photos": sorted(kept, key=lambda photo: photo["name"])}


def copied_name(name: str, taken: set[str]) -> str:
    """A name that COLMAP's lists of pairs can hold, without white space, of a kind that COLMAP reads."""
    path = Path("_".join(plain_name(name).split()))
    if path.suffix.lower() not in KEPT_AS_THEY_ARE:
        path = path.with_name(f"{path.name}.jpg")
    number, free = 1, path
    while free.as_posix() in taken:
        number += 1
        free = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return free.as_posix()


def read_photo(path: Path) -> tuple[str, np.ndarray | None, bool]:
    """Why it cannot be read (or empty), the upright image (or None) of eight bits, and whether it is another than the file's
    own, by a turn that EXIF asks for or by its depth."""
    import cv2

    try:
        upright = read_uint8(path, cv2.IMREAD_COLOR)
        stored = decode(path, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except UnreadableImage as error:
        return error.reason, None, False
    return "", upright, not np.array_equal(upright, stored)


def opens_in_colmap(path: Path) -> bool:
    """Not every file that OpenCV reads: by its name it takes a WebP for the JPEG that it is called."""
    import pycolmap

    try:
        pycolmap.infer_camera_from_image(path)
    except Exception:  # whatever it stumbles over, a copy of our own is what it can read
        return False
    return True


def noted_focal_length(path: Path) -> float | None:
    """Focal length by EXIF as a share of the longer side, None where the photo does not say."""
    import pycolmap

    try:
        camera = pycolmap.infer_camera_from_image(path)
    except Exception:  # whatever it stumbles over, the focal length is then found from the matches
        return None
    if not camera.has_prior_focal_length:
        return None
    return round(camera.mean_focal_length() / max(camera.width, camera.height), 6)
