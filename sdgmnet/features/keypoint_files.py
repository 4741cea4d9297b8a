"""Keypoints from a file: h5 in hloc's layout, npz with the same array names, or text."""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import keypoints_from_arrays, read_group, require_valid
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.storage import read_arrays, read_text

COLUMNS = ("x", "y", "scales", "oris", "scores")  # of a text file, the first three required


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
    if not (known["scales"] > 0).all():
        raise InputError(f"{path} has keypoints whose scale is not positive.")
    return keypoints_from_arrays(known)


def _read_text(path: Path) -> dict[str, np.ndarray]:
    try:
        rows = [line.split("#")[0].replace(",", " ").split() for line in read_text(path).splitlines()]
        table = np.array([row for row in rows if row], dtype=np.float64)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(
            f"{path} is not a table of numbers: give one keypoint per line, x y sigma [angle [response]]."
        ) from error
    if not table.size:
        raise InputError(f"{path} holds no keypoints: give one per line, x y sigma [angle [response]].")
    if not 3 <= table.shape[1] <= len(COLUMNS):
        raise InputError(f"{path} has {table.shape[1]} columns: a keypoint is x y sigma [angle [response]].")
    return {"keypoints": table[:, :2], **{COLUMNS[k]: table[:, k] for k in range(2, table.shape[1])}}
