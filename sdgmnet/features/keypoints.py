"""Image -> keypoints: OpenCV's difference-of-Gaussians (DoG) detector, as plain arrays.

The convention of the whole package: pixel centres at integers, x to the right, y down; angles in radians, clockwise on the
image: angle t points to (cos t, sin t) in (x, y); sigma is the scale in pixels (OpenCV's size is 2 sigma).
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.errors import InputError


class Keypoints(NamedTuple):
    xy: np.ndarray  # (N, 2) float64
    sigma: np.ndarray  # (N,) float64
    angle: np.ndarray  # (N,) float64
    response: np.ndarray  # (N,) float64

    def select(self, which: np.ndarray | slice) -> "Keypoints":
        return Keypoints(*(column[which] for column in self))


def concatenate(keypoints: Sequence[Keypoints]) -> Keypoints:
    return Keypoints(*(np.concatenate(column) for column in zip(*keypoints, strict=True)))


CONTRAST = 0.04  # OpenCV's default


def opencv_sift(contrast: float = CONTRAST) -> cv2.SIFT:
    """OpenCV's SIFT with precise upscaling: its default shifts every keypoint by a quarter of a pixel right and down."""
    return cv2.SIFT.create(contrastThreshold=contrast, enable_precise_upscale=True)


def detect(
    image: np.ndarray,
    limit: int | None = None,
    *,
    upright: bool = False,
    contrast: float = CONTRAST,
    mask: np.ndarray | None = None,
) -> Keypoints:
    """DoG keypoints of a gray image (H, W) uint8, strongest first, at most `limit`.

    contrast: OpenCV's contrastThreshold; COLMAP's default corresponds to 0.02, which finds several times as many.
    A location with several dominant orientations gives several keypoints, as in OpenCV; with `upright` every angle is 0, and a
    location gives one. With a mask (H, W), keypoints are kept on pixels where it is not 0. The order depends on the image
    alone: OpenCV's own order depends on its threads.
    """
    found = opencv_sift(contrast).detect(image, None)
    rows = np.array([(*k.pt, k.size / 2, k.angle, k.response) for k in found], dtype=np.float64).reshape(-1, 5)
    rows[:, 3] = np.deg2rad(rows[:, 3])
    rows = rows[np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0], -rows[:, 4]))]
    if upright:  # duplicates would be each other's second nearest neighbour, and fail every ratio test
        rows[:, 3] = 0
        rows = rows[np.sort(np.unique(rows[:, :3], axis=0, return_index=True)[1])]
    if mask is not None:
        rows = rows[on_mask(rows[:, :2], mask)]
    rows = rows[:limit]
    return Keypoints(rows[:, :2], rows[:, 2], rows[:, 3], rows[:, 4])


def on_mask(xy: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(N,) bool: which locations (N, 2) are on pixels of the mask (H, W) that are not 0."""
    column, row = np.floor(xy + 0.5).astype(int).T
    return mask[row.clip(0, len(mask) - 1), column.clip(0, mask.shape[1] - 1)] != 0


def to_opencv(keypoints: Keypoints, highest_octave: int = 20) -> list[cv2.KeyPoint]:
    """As OpenCV's keypoints. Their `octave`, which its SIFT reads, is the pyramid level whose scale is nearest to sigma.

    highest_octave: the last octave of the image; OpenCV's SIFT fails beyond it.
    """
    level = np.rint(3 * np.log2(keypoints.sigma / 1.6)).astype(int)  # three levels per octave, from sigma 1.6
    octave = np.clip((level - 1) // 3, -1, highest_octave)  # OpenCV's first octave is the doubled image
    layer = np.clip(level - 3 * octave, 1, 3)
    packed = (octave & 255) | (layer << 8)
    columns = (*keypoints.xy.T, 2 * keypoints.sigma, np.rad2deg(keypoints.angle) % 360, keypoints.response, packed)
    return [cv2.KeyPoint(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def from_opencv(found: Sequence[cv2.KeyPoint]) -> Keypoints:
    """From OpenCV's keypoints, in their order. Without an angle (-1), it is 0."""
    rows = np.array([(*one.pt, one.size / 2, one.angle, one.response) for one in found], dtype=np.float64)
    x, y, sigma, degrees, response = rows.reshape(-1, 5).T
    unusable = np.flatnonzero(~((sigma > 0) & np.isfinite(x + y + sigma + degrees)))
    if len(unusable):
        raise InputError(f"keypoint {unusable[0]} must have a positive size and a finite location.")
    return Keypoints(np.column_stack([x, y]), sigma, np.deg2rad(np.where(degrees < 0, 0.0, degrees)), response)
