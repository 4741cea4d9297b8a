"""hloc's h5 files -> the files of the Image Matching Challenge (image-matching-benchmark, import_features.py).

One file per array, with a dataset per image, whose key is the image's name without extension: keypoints.h5 (N, 2),
descriptors.h5 (N, D), scores.h5, scales.h5 (sigma) and angles.h5 (degrees, clockwise) (N,). In matches.h5 the key of a pair is
`b-a`, the later name first, and the dataset (2, M) has the indices of b's keypoints, then those of a's. Every pair has a key.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import h5py
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import features_to_arrays, names_in, pair_name, read_features, read_matches
from sdgmnet.features.h5_store import HDF5_OVERHEAD
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.storage import new_folder

FILES = {  # array of hloc's -> file of the benchmark
    "keypoints": "keypoints.h5",
    "descriptors": "descriptors.h5",
    "scores": "scores.h5",
    "scales": "scales.h5",
    "oris": "angles.h5",
}
MATCHES = "matches.h5"


def write_imc(
    features: Path | str, out: Path | str, matches: Path | str | None = None, *, on_progress: OnProgress = no_progress
) -> tuple[int, int, int]:
    """Write a new folder; returns the numbers of images, of pairs, and of pairs that have matches.

    Pairs that the file of matches lacks are written without matches: the benchmark needs a key per pair of images.
    """
    features, out = Path(features), Path(out)
    names = names_in(features)
    if not names:
        raise InputError(f"{features} has no features: write it with sdgmnet describe.")
    keys = {name: Path(name).stem for name in names}
    require_keys(features, keys, "" if matches is None else "-")
    sources = [features] if matches is None else [features, Path(matches)]
    needed = sum(path.stat().st_size for path in sources if path.is_file()) + HDF5_OVERHEAD * (len(FILES) + 1)
    with new_folder(out) as part:
        if shutil.disk_usage(part).free < needed:  # HDF5 crashes on a full disk
            raise InputError(f"{out}: the disk is full ({needed / 1e6:.0f} MB needed): free some space and run again.")
        counts = write_features(part, features, keys, on_progress)
        pairs = matched = 0
        if matches is not None:
            found = pairs_of(Path(matches), keys, counts)
            with h5py.File(part / MATCHES, "w") as file:
                for key, indices in track(found, "writing matches", on_progress, len(names) * (len(names) - 1) // 2):
                    file.create_dataset(key, data=indices)
                    pairs, matched = pairs + 1, matched + (indices.shape[1] > 0)
    return len(names), pairs, matched


def require_keys(features: Path, keys: dict[str, str], forbidden: str) -> None:
    """InputError if two images have the same key, or a key has the character that separates those of a pair."""
    twice = [key for key, count in Counter(keys.values()).items() if count > 1]
    if twice:
        raise InputError(f"{features} has two images called {twice[0]}, which get the same key: rename one.")
    for name, key in keys.items():
        if forbidden and forbidden in key:
            raise InputError(f"{features}: {name} has a {forbidden!r}, which separates the names of a pair: rename it.")


def write_features(folder: Path, features: Path, keys: dict[str, str], on_progress: OnProgress) -> dict[str, int]:
    """The numbers of keypoints by image."""
    counts = {}
    files = {array: h5py.File(folder / file, "w") for array, file in FILES.items()}
    try:
        for name, key in track(keys.items(), "writing features", on_progress, len(keys)):
            arrays = features_to_arrays(read_features(features, name))
            arrays["descriptors"] = np.ascontiguousarray(arrays["descriptors"].T)
            counts[name] = len(arrays["keypoints"])
            for array, file in files.items():
                file.create_dataset(key, data=arrays[array])
    finally:
        for file in files.values():
            file.close()
    return counts


def pairs_of(matches: Path, keys: dict[str, str], counts: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Keys and indices (2, M) of all pairs of images."""
    stored = set(names_in(matches, "matches"))
    for a, b in combinations(sorted(keys, key=keys.__getitem__), 2):  # the one with the earlier key first
        indices = np.empty((2, 0), dtype=np.int64)
        if stored & {pair_name(a, b), pair_name(b, a)}:
            indices = read_matches(matches, b, a)[0].T
            if indices.size and (indices.max(axis=1) >= (counts[b], counts[a])).any():
                raise InputError(
                    f"{matches}: the matches of {a} and {b} do not belong to the features: match them again."
                )
        yield f"{keys[b]}-{keys[a]}", np.ascontiguousarray(indices)
