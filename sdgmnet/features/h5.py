"""Features and matches in hloc's h5 layout: one group per image, or per pair of images. Written by `h5_store`.

Files may come from anybody: links and external storage are refused, and arrays that would unpack to far more than the file.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import Matches
from sdgmnet.storage import is_disk_full, require_bounded, require_regular_file

Kind = Literal["features", "matches"]
KEY = {"features": "keypoints", "matches": "matches0"}  # the array that every group of this kind has
Arrays = Mapping[str, np.ndarray]
FITS: dict[str, Callable[[np.ndarray, int], bool]] = {  # arrays of an image with so many keypoints
    "keypoints": lambda values, count: values.ndim == 2 and values.shape[1] >= 2,
    "descriptors": lambda values, count: values.ndim == 2 and values.shape[1] == count,
    "image_size": lambda values, count: values.shape == (2,) and bool(((values >= 1) & (values < 2**31)).all()),
    **dict.fromkeys(("scales", "oris", "scores"), lambda values, count: values.shape == (count,)),
}


@contextmanager
def open_h5(path: Path) -> Iterator[h5py.File]:
    """For reading; whatever fails in a damaged file raises InputError."""
    try:
        require_regular_file(path)
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except OSError as error:
        if path.is_dir():
            raise InputError(f"{path} is a folder: give an h5 file.") from None
        if error.errno is not None:  # HDF5's own complaints have none
            raise InputError(f"{path} cannot be read ({error.strerror}).") from error
        raise InputError(f"{path} is not an HDF5 file, or it is damaged: give another.") from error
    with file:
        try:
            yield file
        except InputError:
            raise
        except Exception as error:  # a damaged file fails in whatever way its bytes lead to
            if is_disk_full(error) or "No space left" in str(error):
                raise
            raise InputError(f"{path} is a damaged HDF5 file: write it again, or give another.") from error


def names_in(path: Path, kind: Kind = "features") -> list[str]:
    """Names of the images, or of the pairs of images, in the file."""
    names = []

    def visit(name: str, found: h5py.Group | h5py.Dataset) -> None:
        group, _, key = name.rpartition("/")
        if isinstance(found, h5py.Dataset) and key == KEY[kind]:
            names.append(group)

    with open_h5(path) as file:
        file.visititems(visit)
    return names


def read_group(path: Path, *names: str) -> tuple[str, dict[str, np.ndarray]]:
    """The first of these groups that exists, and its arrays; an empty name and no arrays if none does."""
    with open_h5(path) as file:
        for name in names:
            if (group := _find_group(path, file, name)) is not None:
                return name, _read_arrays(path, group)
    return "", {}


def _find_group(path: Path, file: h5py.File, name: str) -> h5py.Group | None:
    """Links are refused, also those within the file: they may lead to one that leaves it."""
    group: h5py.Group | h5py.Dataset = file
    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) and part in group else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            target = link.filename if isinstance(link, h5py.ExternalLink) else link.path
            raise InputError(f"{path}: {name} is a link to {target}; links are not followed.")
        if link is None:
            return None
        group = group[part]
    return group if isinstance(group, h5py.Group) else None


def _read_arrays(path: Path, group: h5py.Group) -> dict[str, np.ndarray]:
    arrays = {}
    for key in group:
        found = group.get(key) if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
        if not isinstance(found, h5py.Dataset):
            continue
        if found.external or found.is_virtual:
            raise InputError(f"{path}: {group.name}/{key} is stored in another file; such files are not read.")
        # A chunk is unpacked as a whole, however little of it belongs to the array.
        require_bounded(path, max(found.nbytes, math.prod(found.chunks or ()) * found.dtype.itemsize))
        arrays[key] = np.asarray(found)
    return arrays


def features_to_arrays(features: Features) -> dict[str, np.ndarray]:
    """In hloc's layout: pixel centres at integers, angles clockwise in degrees, descriptors (D, N)."""
    keypoints = features.keypoints
    return {
        "keypoints": keypoints.xy.astype(np.float32),
        "descriptors": np.ascontiguousarray(features.descriptors.T),
        "scores": keypoints.response.astype(np.float32),
        "image_size": np.array(features.size),
        "scales": keypoints.sigma.astype(np.float32),
        "oris": np.rad2deg(keypoints.angle).astype(np.float32),
    }


def read_features(path: Path | str, name: str) -> Features:
    """Of one image. hloc's own files are read too: without scales or angles, they are 1 and 0."""
    _, arrays = read_group(Path(path), name)
    if not {"keypoints", "descriptors", "image_size"} <= set(arrays):
        raise InputError(f"{path} has no features of {name}.")
    require_valid(path, name, arrays)
    descriptors = np.ascontiguousarray(arrays["descriptors"].T)
    if descriptors.dtype.kind == "f":
        descriptors = descriptors.astype(np.float32, copy=False)
    width, height = (int(side) for side in arrays["image_size"])
    return Features(keypoints_from_arrays(arrays), descriptors, (width, height))


def require_valid(path: Path | str, name: str, arrays: Arrays) -> None:
    """Of the arrays in hloc's layout, those that are present; keypoints are."""
    count = len(np.atleast_1d(arrays["keypoints"]))
    for key, fits in FITS.items():
        values = arrays.get(key)
        if values is None or (values.dtype.kind in "iuf" and np.isfinite(values).all() and fits(values, count)):
            continue
        raise InputError(f"{path}: {name} has invalid {key} {values.shape} for {count} keypoints: write it again.")


def keypoints_from_arrays(arrays: Arrays) -> Keypoints:
    xy = np.asarray(arrays["keypoints"], dtype=np.float64)[:, :2]
    default = {"scales": 1.0, "oris": 0.0, "scores": 1.0}
    sigma, degrees, response = (
        np.asarray(arrays.get(key, np.full(len(xy), value)), dtype=np.float64) for key, value in default.items()
    )
    return Keypoints(xy, sigma, np.deg2rad(degrees), response)


def pair_name(first: str, second: str) -> str:
    """hloc's name of the group of a pair."""
    return "/".join(name.replace("/", "-") for name in (first, second))


def matches_to_arrays(matches: Matches, count: int) -> dict[str, np.ndarray]:
    """In hloc's layout: for each of the first image's `count` keypoints its match in the second or -1, and a score.

    The score is hloc's for nearest neighbours, the mean of 1 and the cosine, from the distance of unit descriptors.
    """
    largest = matches.pairs[:, 1].max(initial=0)
    found = np.full(count, -1, dtype=np.int16 if largest <= np.iinfo(np.int16).max else np.int32)
    scores = np.zeros(count, dtype=np.float16)
    found[matches.pairs[:, 0]] = matches.pairs[:, 1]
    scores[matches.pairs[:, 0]] = np.clip(1 - np.square(matches.distance) / 4, 0, 1)
    return {"matches0": found, "matching_scores0": scores}


def read_matches(path: Path | str, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (M, 2) int64 of keypoints of the first and the second image, and their scores; stored either way round."""
    forward = pair_name(first, second)
    name, arrays = read_group(Path(path), forward, pair_name(second, first))
    if not name:
        raise InputError(f"{path} has no matches of {first} and {second}.")
    found, scores = (arrays.get(key, np.empty(())) for key in ("matches0", "matching_scores0"))
    fits = found.ndim == 1 and found.shape == scores.shape and found.dtype.kind in "iu" and scores.dtype.kind == "f"
    if not (fits and np.isfinite(scores).all() and (found.astype(np.float64) < 2**31).all()):
        raise InputError(f"{path}: the matches of {first} and {second} are not in hloc's layout: write them again.")
    kept = np.flatnonzero(found >= 0)
    pairs = np.column_stack([kept, found[kept]]).astype(np.int64)
    return pairs if name == forward else pairs[:, ::-1], scores[kept]
