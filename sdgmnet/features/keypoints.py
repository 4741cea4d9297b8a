"""Image -> keypoints: OpenCV's difference-of-Gaussians detector, as plain arrays.

The package's one convention: pixel centres at integers, x to the right, y down; angles in radians, clockwise as seen on the
picture, so that the direction of angle t is (cos t, sin t) in (x, y); sigma is the scale in pixels (OpenCV's size is 2 sigma).
"""

from typing import NamedTuple

import cv2
import numpy as np


class Keypoints(NamedTuple):
    xy: np.ndarray  # (N, 2) float64
    sigma: np.ndarray  # (N,) float64
    angle: np.ndarray  # (N,) float64
    response: np.ndarray  # (N,) float64

    def select(self, which: np.ndarray) -> "Keypoints":
        return Keypoints(*(column[which] for column in self))


def detect(image: np.ndarray, limit: int | None = None) -> Keypoints:
    """DoG keypoints of a gray image (H, W) uint8, strongest first, at most `limit`.

    A place with several dominant orientations gives several keypoints, as OpenCV does. The order is a function of the
    picture alone: OpenCV's own order depends on its threads.
    """
    found = cv2.SIFT.create().detect(image, None)
    rows = np.array([(*k.pt, k.size / 2, np.deg2rad(k.angle), k.response) for k in found], dtype=np.float64).reshape(
        -1, 5
    )
    order = np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0], -rows[:, 4]))[:limit]
    rows = rows[order]
    return Keypoints(rows[:, :2], rows[:, 2], rows[:, 3], rows[:, 4])
