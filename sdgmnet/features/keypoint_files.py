"""Keypoints from a file: h5 in hloc's layout, npz with the same array names, or text."""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import keypoints_from_arrays, read_group, require_valid
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.storage import read_arrays, read_text

COLUMNS = ("x", "y", "scales", "oris", "scores")  # of a text file, the first three required
FORM = "x y sigma [angle [response]]"


def holds_many(path: Path) -> bool:
    """Whether the file can hold the keypoints of several images, by name."""
    return path.suffix.lower() in (".h5", ".hdf5")


def read_keypoints(path: Path, name: str) -> Keypoints:
    """Of the image `name`; text and npz files hold those of a single image.

    Text: one keypoint per line, x y sigma [angle [response]], pixel centres at integers, the angle clockwise in degrees.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    if holds_many(path):
        _, arrays = read_group(path, name)
        if "keypoints" not in arrays:
            raise InputError(f"{path} has no keypoints of {name}.")
    else:
        arrays = read_arrays(path) if path.suffix.lower() == ".npz" else _read_text(path)
    if "keypoints" not in arrays or "scales" not in arrays:
        raise InputError(f"{path} must have keypoints (N, 2) and scales (N,), the sigma of each in pixels.")
    known = {key: values for key, values in arrays.items() if key in ("keypoints", *COLUMNS)}
    require_valid(path, name, known)
    unusable = np.flatnonzero(~(known["scales"] > 0))
    if len(unusable):
        sigma = known["scales"][unusable[0]]
        raise InputError(f"{place_of(path, unusable[0])}: sigma must be positive, not {sigma:g}.")
    return keypoints_from_arrays(known)


def require_inside(keypoints: Keypoints, path: Path, image: Path, size: tuple[int, int]) -> None:
    """InputError unless all keypoints, read from the file `path`, lie in the image of a size (width, height), or half a pixel
    outside: detectors interpolate, and COLMAP has its pixel centres at halves.
    """
    outside = np.flatnonzero(~((keypoints.xy >= -1) & (keypoints.xy <= np.array(size))).all(axis=1))
    if len(outside):
        x, y = keypoints.xy[outside[0]]
        raise InputError(
            f"{place_of(path, outside[0])}: the keypoint ({x:g}, {y:g}) is outside of {image}, which has {size[0]} x {size[1]} "
            "pixels: give keypoints in pixels of this image."
        )


def place_of(path: Path, index: int) -> str:
    """Where a file has a keypoint: a line of text, or an index counted from 0."""
    if holds_many(path) or path.suffix.lower() == ".npz":
        return f"{path}, keypoint {index}"
    return f"{path}, line {_read_rows(path)[index][0]}"


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Number of the line and its words, without empty lines and comments."""
    lines = read_text(path, f"give one keypoint per line, {FORM}").splitlines()
    rows = [(number, line.split("#")[0].replace(",", " ").split()) for number, line in enumerate(lines, start=1)]
    return [(number, words) for number, words in rows if words]


def _read_text(path: Path) -> dict[str, np.ndarray]:
    rows = _read_rows(path)
    if not rows:
        raise InputError(f"{path} holds no keypoints: give one per line, {FORM}.")
    first, columns = rows[0][0], len(rows[0][1])
    if not 3 <= columns <= len(COLUMNS):
        raise InputError(f"{path}, line {first}: {columns} columns; a keypoint is {FORM}.")
    table = np.empty((len(rows), columns))
    for row, (number, words) in enumerate(rows):
        if len(words) != columns:
            raise InputError(f"{path}, line {number}: {len(words)} columns, but line {first} has {columns}.")
        try:
            table[row] = [float(word) for word in words]
        except ValueError:
            raise InputError(f"{path}, line {number}: not numbers; a keypoint is {FORM}.") from None
        if not np.isfinite(table[row]).all():
            raise InputError(f"{path}, line {number}: NaN or infinite; a keypoint is {FORM}.")
    return {"keypoints": table[:, :2], **{COLUMNS[k]: table[:, k] for k in range(2, table.shape[1])}}
