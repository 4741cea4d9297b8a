"""Images and features for the tests of this folder."""

from pathlib import Path

import cv2
import h5py
import numpy as np

from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints


def noise_image(width: int = 400, height: int = 360, seed: int = 0) -> np.ndarray:
    """Noise at several scales, as in nature: (H, W) uint8."""
    rng = np.random.default_rng(seed)
    layers = [cv2.GaussianBlur(rng.normal(size=(height, width)), (0, 0), size) * size for size in (1.5, 3, 6, 12)]
    total = np.sum(layers, axis=0)
    return np.clip(128 + 45 * total / total.std(), 0, 255).astype(np.uint8)


def some_features(count: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    xy, sigma = rng.uniform(0, 100, (count, 2)), rng.uniform(1, 9, count)
    points = Keypoints(xy, sigma, rng.uniform(0, 6, count), rng.uniform(0, 1, count))
    return Features(points, rng.normal(size=(count, 128)).astype(np.float32), (640, 480))


def groups(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """All arrays of an h5 file by the name of their group, found as hloc's own `list_h5_names` finds them."""
    found: dict[str, dict[str, np.ndarray]] = {}

    def visit(_: str, one: h5py.Group | h5py.Dataset) -> None:
        if isinstance(one, h5py.Dataset):
            found.setdefault(one.parent.name.strip("/"), {})[one.name.rpartition("/")[2]] = one[()]

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found
