"""PatchSets, folders and keypoints for the tests of this folder."""

from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.features.keypoints import Keypoints


def noise_set(points: int = 10, views: int = 3, seed: int = 0, name: str = "scene", **fields: Any) -> PatchSet:
    """Random patches; ids have gaps and are out of order."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(256, size=(points * views, 64, 64), dtype=np.uint8)
    return PatchSet(name, patches, rng.permutation(np.repeat(100 * np.arange(points) + 7, views)), **fields)


def blank_set(point_id: np.ndarray | list[int], name: str = "blank", **fields: Any) -> PatchSet:
    """Patch k is evenly k % 256."""
    ids = np.asarray(point_id, dtype=np.int64)
    levels = (np.arange(len(ids)) % 256).astype(np.uint8)[:, None, None]
    return PatchSet(name, np.broadcast_to(levels, (len(ids), 64, 64)), ids, **fields)


def random_keypoints(count: int, seed: int, extent: float = 60.0) -> Keypoints:
    """Crowded enough that many pairs are near the limits of the match rule."""
    rng = np.random.default_rng(seed)
    xy, sigma = rng.uniform(0, extent, (count, 2)), 2 ** rng.uniform(0.5, 2.5, count)
    return Keypoints(xy, sigma, rng.uniform(-np.pi, 2 * np.pi, count), rng.uniform(size=count))


def contents(folder: Path) -> dict[str, bytes]:
    """All files in and below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names(folder: Path) -> list[str]:
    """All files and folders below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def read_sequences(root: Path) -> list[ImageSequence]:
    return [read_sequence(folder) for folder in sequence_folders(root)]
