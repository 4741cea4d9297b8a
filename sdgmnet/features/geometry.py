"""Points and keypoints through a homography. Pixel centres are at integers, as everywhere in the package."""

import numpy as np

from sdgmnet.features.keypoints import Keypoints


def map_points(homography: np.ndarray, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (N, 2) through a homography (3, 3): pixels (N, 2), and the third homogeneous coordinate (N,).

    A point at infinity is mapped far away. Points in front of the camera and behind it differ in the sign of the coordinate.
    """
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    w = mapped[:, 2]
    return mapped[:, :2] / nonzero(w)[:, None], w


def nonzero(w: np.ndarray) -> np.ndarray:
    """`w`, with 1e-12 in place of what is too small to divide by."""
    return np.where(np.abs(w) < 1e-12, 1e-12, w)


def homography_jacobian(homography: np.ndarray, mapped: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Derivatives (N, 2, 2) of a homography (3, 3), or of one per point (N, 3, 3), where it maps to `mapped` (N, 2)."""
    return (homography[..., :2, :2] - mapped[:, :, None] * homography[..., 2:, :2]) / w[:, None, None]


def move_keypoints(keypoints: Keypoints, xy: np.ndarray, jacobian: np.ndarray) -> Keypoints:
    """Keypoints moved to `xy` (N, 2), with sigma and angle changed by the derivative (N, 2, 2) of the map that moves them."""
    direction = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    turned = np.einsum("nij,nj->ni", jacobian, direction)
    sigma = keypoints.sigma * np.sqrt(np.abs(np.linalg.det(jacobian)))
    return Keypoints(xy, sigma, np.arctan2(turned[:, 1], turned[:, 0]) % (2 * np.pi), keypoints.response)


def map_keypoints(homography: np.ndarray, keypoints: Keypoints) -> Keypoints:
    """Keypoints through a homography (3, 3)."""
    xy, w = map_points(homography, keypoints.xy)
    return move_keypoints(keypoints, xy, homography_jacobian(homography, xy, nonzero(w)))
