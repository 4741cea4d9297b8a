"""An image for the tests of this folder."""

import cv2
import numpy as np


def noise_picture(width: int = 400, height: int = 360, seed: int = 0) -> np.ndarray:
    """Noise at several scales, as in nature: (H, W) uint8."""
    rng = np.random.default_rng(seed)
    layers = [cv2.GaussianBlur(rng.normal(size=(height, width)), (0, 0), size) * size for size in (1.5, 3, 6, 12)]
    total = np.sum(layers, axis=0)
    return np.clip(128 + 45 * total / total.std(), 0, 255).astype(np.uint8)
