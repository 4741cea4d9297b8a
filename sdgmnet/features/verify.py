"""Matches -> inliers of one homography or one fundamental matrix, by OpenCV's MAGSAC++."""

from typing import Literal, NamedTuple

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.match import Matches

Model = Literal["none", "homography", "fundamental"]
MIN_MATCHES = {"homography": 4, "fundamental": 8}
TOLERANCE = {"homography": 3.0, "fundamental": 1.5}  # pixels
ITERATIONS, CONFIDENCE = 10_000, 0.9999


class Verified(NamedTuple):
    matrix: np.ndarray | None  # (3, 3), from the first image to the second; None if none was found
    inlier: np.ndarray  # (M,) bool


def verify(
    first: Features, second: Features, matches: Matches, model: Model, tolerance: float | None = None
) -> Verified:
    """Inliers within `tolerance` pixels; with "none", every match. The same input gives the same result."""
    if model == "none":
        return Verified(None, np.ones(len(matches.pairs), dtype=bool))
    if model not in MIN_MATCHES:
        raise InputError(f"model must be none, {' or '.join(MIN_MATCHES)}, not {model!r}.")
    tolerance = TOLERANCE[model] if tolerance is None else tolerance
    if not 0 < tolerance < float("inf"):
        raise InputError(f"tolerance must be a positive number of pixels, not {tolerance}.")
    nothing = Verified(None, np.zeros(len(matches.pairs), dtype=bool))
    if len(matches.pairs) < MIN_MATCHES[model]:
        return nothing
    a, b = (np.ascontiguousarray(one.keypoints.xy[matches.pairs[:, k]]) for k, one in enumerate((first, second)))
    try:
        if model == "homography":
            matrix, mask = cv2.findHomography(a, b, cv2.USAC_MAGSAC, tolerance, None, ITERATIONS, CONFIDENCE)
        else:
            matrix, mask = cv2.findFundamentalMat(a, b, cv2.USAC_MAGSAC, tolerance, CONFIDENCE, ITERATIONS)
    except cv2.error:  # degenerate points, such as all at one location
        return nothing
    if matrix is None or matrix.shape != (3, 3) or mask is None or not np.isfinite(matrix).all():
        return nothing
    return Verified(matrix, mask.ravel().astype(bool))
