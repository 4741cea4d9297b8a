"""Keypoints of one's own, from files: h5 in hloc's schema, npz with the same names, or text."""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import arrays_of, arrays_to_keypoints, group_at, opened
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.storage import read_arrays, read_text

COLUMNS = ("x", "y", "scales", "oris", "scores")  # of a text file, the first three at least


def is_for_many(path: Path) -> bool:
    """Whether the file can hold the keypoints of several images, by name."""
    return path.suffix.lower() in (".h5", ".hdf5")


def read_keypoints(path: Path, name: str) -> Keypoints:
    """Those of the image `name`; text and npz files are about a single image.

    Text: a line a keypoint, x y sigma [angle [response]], pixel centres at integers, the angle clockwise in degrees.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    if is_for_many(path):
        with opened(path) as file:
            group = group_at(path, file, name)
            if group is None or "keypoints" not in group:
                raise InputError(f"{path} holds no keypoints of {name}.")
            arrays = arrays_of(path, group)
    elif path.suffix.lower() == ".npz":
        arrays = _of_npz(path)
    else:
        arrays = _of_text(path)
    return _checked(path, arrays)


def _of_npz(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(path)


def _of_text(path: Path) -> dict[str, np.ndarray]:
    try:
        lines = read_text(path).splitlines()
        rows = [line.split("#")[0].replace(",", " ").split() for line in lines]
        table = np.array([row for row in rows if row], dtype=np.float64)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(
            f"{path} is not a table of numbers: a line a keypoint, x y sigma [angle [response]]."
        ) from error
    if not table.size:
        table = np.zeros((0, len(COLUMNS)))
    if not 3 <= table.shape[1] <= len(COLUMNS):
        raise InputError(f"{path} has {table.shape[1]} columns: a keypoint is x y sigma [angle [response]].")
    return {"keypoints": table[:, :2], **{COLUMNS[k]: table[:, k] for k in range(2, table.shape[1])}}


def _checked(path: Path, arrays: dict[str, np.ndarray]) -> Keypoints:
    if "keypoints" not in arrays or "scales" not in arrays:
        raise InputError(f"{path} must hold keypoints (N, 2) and scales (N,), the sigma of each in pixels.")
    xy = arrays["keypoints"]
    known = {key: values for key, values in arrays.items() if key in ("keypoints", *COLUMNS)}
    fits = (
        xy.ndim == 2
        and xy.shape[1] >= 2
        and all(
            values.dtype.kind in "fiu" and (key == "keypoints" or values.shape == (len(xy),))
            for key, values in known.items()
        )
    )
    if not fits:
        raise InputError(f"{path}: keypoints are (N, 2), scales, oris and scores (N,), all of them numbers.")
    keypoints = arrays_to_keypoints(known)
    if not all(np.isfinite(column).all() for column in keypoints) or not (keypoints.sigma > 0).all():
        raise InputError(f"{path} holds keypoints that are not finite, or whose scale is not above 0.")
    return keypoints
