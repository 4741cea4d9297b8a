"""COLMAP's text models -> Bundler's files, version 0.3: cameras and points, and the list of images.

Bundler's cameras look along -z with y up, and its pixels are counted from the principal point, y up.
"""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.colmap_text import Camera, read_model
from sdgmnet.storage import write_text

FLIP = np.array([1.0, -1.0, -1.0])  # y and z point the other way
MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL")  # what a focal length, k1 and k2 can hold


def write_bundler(model: Path | str, out: Path | str) -> None:
    """Write `out` and, in the same folder, its list of images: bundle.out, bundle.list.txt."""
    out, found = Path(out), read_model(model)
    cameras = {number: _focal_and_distortion(camera, Path(model)) for number, camera in found.cameras.items()}
    order = sorted(found.images, key=lambda number: found.images[number].name)
    index_of = {number: index for index, number in enumerate(order)}
    lines = ["# Bundle file v0.3", f"{len(order)} {len(found.points.number)}"]
    for number in order:
        image = found.images[number]
        rows = [cameras[image.camera], *(FLIP[:, None] * image.rotation), FLIP * image.translation]
        lines += [_numbers(row) for row in rows]
    for xyz, colour, track in zip(found.points.xyz, found.points.colour, found.points.tracks, strict=True):
        seen = []
        for number, keypoint in track.tolist():
            image = found.images[number]
            place = (image.xy[keypoint] - found.cameras[image.camera].principal_point) * FLIP[:2]
            seen.append(f"{index_of[number]} {keypoint} {_numbers(place)}")
        lines += [_numbers(xyz), " ".join(map(str, colour.tolist())), " ".join([str(len(seen)), *seen])]
    names = [f"{found.images[number].name} 0 {cameras[found.images[number].camera][0]!r}" for number in order]
    write_text(out.with_suffix(".list.txt"), "".join(f"{name}\n" for name in names))
    write_text(out, "".join(f"{line}\n" for line in lines))


def _focal_and_distortion(camera: Camera, model: Path) -> list[float]:
    """Focal length, k1, k2."""
    across, down = camera.focal.tolist()
    if camera.model not in MODELS or across != down:
        raise InputError(
            f"{model} has a camera that Bundler cannot hold ({camera.model}, focal lengths {across:g} and {down:g}): "
            f"use a model with one focal length and at most two radial coefficients."
        )
    return [across, *camera.distortion.tolist(), 0.0, 0.0][:3]


def _numbers(values: np.ndarray | list[float]) -> str:
    return " ".join(repr(float(value)) for value in values)
