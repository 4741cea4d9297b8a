"""Matches of two photos with known calibration -> error of the relative pose."""

import cv2
import numpy as np

from sdgmnet.sfm.scene import View

TOLERANCE = 1.0  # pixels, of an inlier
CONFIDENCE, ROUNDS = 0.99999, 10_000
MIN_MATCHES = 5


def pose_error(first: View, second: View, xy: tuple[np.ndarray, np.ndarray]) -> float:
    """The larger of the errors of rotation and of translation direction (up to its sign), in degrees.

    xy: matching pixels of the two photos, (M, 2) each. The essential matrix is estimated by MAGSAC++; infinite if there is
    none.
    """
    if len(xy[0]) < MIN_MATCHES:
        return np.inf
    here, there = (on_plane(view, one) for view, one in zip((first, second), xy, strict=True))
    focal = np.mean([view.intrinsics[[0, 1], [0, 1]].mean() for view in (first, second)])
    try:
        matrices, mask = cv2.findEssentialMat(
            here, there, np.eye(3), cv2.USAC_MAGSAC, CONFIDENCE, TOLERANCE / focal, ROUNDS
        )
    except cv2.error:  # degenerate matches
        return np.inf
    if matrices is None or mask is None:
        return np.inf
    most, best = 0, np.inf
    for number in range(0, len(matrices) - 2, 3):
        count, rotation, translation, _ = cv2.recoverPose(
            matrices[number : number + 3], here, there, np.eye(3), mask=mask.copy()
        )
        if count > most:
            most, best = count, angular_error(first, second, rotation, translation.ravel())
    return best


def on_plane(view: View, xy: np.ndarray) -> np.ndarray:
    """Pixels (M, 2) on the plane at depth 1."""
    return np.ascontiguousarray((np.column_stack([xy, np.ones(len(xy))]) @ np.linalg.inv(view.intrinsics).T)[:, :2])


def angular_error(first: View, second: View, rotation: np.ndarray, translation: np.ndarray) -> float:
    true_rotation = second.rotation @ first.rotation.T
    true_translation = second.translation - true_rotation @ first.translation
    turn = (np.trace(rotation.T @ true_rotation) - 1) / 2
    length = np.linalg.norm(translation) * np.linalg.norm(true_translation)
    along = abs(translation @ true_translation) / max(float(length), 1e-15)
    return float(np.rad2deg(max(np.arccos(np.clip(turn, -1, 1)), np.arccos(np.clip(along, 0, 1)))))
