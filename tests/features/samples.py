"""Images, keypoints and features for the tests of this folder."""

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


def write_image(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, pixels)[1].tobytes())
    return path


def blob_image(centre: np.ndarray, size: float, height: float, base: float) -> np.ndarray:
    """A Gaussian blob of standard deviation `size`: (170, 180) uint8."""
    y, x = np.mgrid[:170, :180]
    blob = base + height * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * size**2))
    return blob.round().clip(0, 255).astype(np.uint8)


def keypoints_at(xy: object, sigma: object = 1.0, angle: object = 0.0) -> Keypoints:
    """One or many; sigma and angle of all, or of each. Responses are 1."""
    rows = np.array(xy, dtype=np.float64).reshape(-1, 2)
    columns = (np.broadcast_to(np.asarray(one, dtype=np.float64), len(rows)).copy() for one in (sigma, angle, 1.0))
    return Keypoints(rows, *columns)


def random_keypoints(count: int, low: object, high: object, sigma: tuple[float, float], seed: int = 0) -> Keypoints:
    rng = np.random.default_rng(seed)
    return keypoints_at(rng.uniform(low, high, (count, 2)), rng.uniform(*sigma, count), rng.uniform(-7, 7, count))


def unit_rows(count: int, size: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, size))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def some_features(count: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    points = keypoints_at(rng.uniform(0, 100, (count, 2)), rng.uniform(1, 9, count), rng.uniform(0, 6, count))
    points = points._replace(response=rng.uniform(0, 1, count))
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
